//! The process that outlives the rig: it ends the servers and takes file systems away,
//! however the rig ends.
//!
//! Destructors do not run when a process is killed. So a small shell reads from a pipe that
//! only the rig holds; when that closes, the shell cleans up. PostgreSQL has a guardian of its
//! own (`crates/testing`).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use anyhow::Context;

use crate::stage::lock;

const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
processes=' '
mounts=
while read -r word argument; do
  case $word in
    watch) processes="$processes$argument " ;;
    forget) processes="${processes%% $argument *} ${processes#* $argument }" ;;
    mount)
      folder=${argument#* }
      if mount -t tmpfs -o "size=${argument%% *}m,mode=700" tidewater-rig "$folder" 2>/dev/null; then
        mounts="$mounts $folder"
        echo mounted
      else
        echo refused
      fi ;;
  esac
done
for process in $processes; do kill -KILL "$process" 2>/dev/null; done
for folder in $mounts; do umount "$folder" 2>/dev/null || umount -l "$folder"; done
"#;

#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    orders: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Keeper {
    pub(crate) fn start() -> anyhow::Result<Keeper> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "tidewater-rig-keeper"])
            .current_dir("/")
            // Out of the reach of Ctrl-C.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run sh")?;
        let input = shell.stdin.take().context("the keeper's input is piped")?;
        let output = shell.stdout.take().context("its output is piped")?;
        Ok(Keeper {
            shell,
            orders: Mutex::new(Some((input, BufReader::new(output)))),
        })
    }

    /// This process is killed if the rig ends before it.
    pub(crate) fn watch(&self, process: u32) -> anyhow::Result<()> {
        self.order(&format!("watch {process}\n"))
    }

    /// This process has ended; its number may be another's soon.
    pub(crate) fn forget(&self, process: u32) -> anyhow::Result<()> {
        self.order(&format!("forget {process}\n"))
    }

    /// Puts a file system of so many MiB in memory at a folder (without spaces in its name), if
    /// the system lets us.
    pub(crate) fn mount(&self, folder: &Path, size: u64) -> anyhow::Result<bool> {
        self.order(&format!("mount {size} {}\n", folder.display()))?;
        let mut orders = lock(&self.orders);
        let (_, answers) = orders.as_mut().context("the keeper was dismissed")?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        Ok(answer.trim() == "mounted")
    }

    fn order(&self, line: &str) -> anyhow::Result<()> {
        let mut orders = lock(&self.orders);
        let (input, _) = orders.as_mut().context("the keeper was dismissed")?;
        input
            .write_all(line.as_bytes())
            .context("the keeper is gone")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *lock(&self.orders) = None;
        // Fails only if it was waited for already.
        let _ = self.shell.wait();
    }
}
