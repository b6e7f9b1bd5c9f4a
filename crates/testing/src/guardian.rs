//! The process that outlives the test: ends the server and removes its folder.
//!
//! Destructors do not run when a process is killed, and statics are never dropped. So a small
//! shell reads from a pipe that only the test process holds: when that ends, however it ends,
//! the pipe closes and the shell cleans up. Until then it delivers signals, which the standard
//! library cannot send without unsafe code.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

/// The arguments are the folder and the file that is in it for as long as the server runs. Were the
/// test killed between the launch of PostgreSQL and the line `pid`, the server would notice within a
/// minute that its lock file is gone, and end.
const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
process=
while read -r word argument; do
  case $word in
    pid) process=$argument ;;
    gone) process= ;;
    signal) kill -s "$argument" "$process" ;;
  esac
done
if [ -n "$process" ]; then
  kill -s QUIT "$process"
  tries=0
  while [ -e "$1/$2" ] && kill -s 0 "$process"; do
    if [ "$tries" -ge 200 ]; then
      kill -s KILL "$process"
      break
    fi
    tries=$((tries + 1))
    sleep 0.05
  done
fi
rm -rf -- "$1"
"#;

#[derive(Debug)]
pub(crate) struct Guardian {
    shell: Child,
    /// Closed by `finish`, or by the end of the process.
    orders: Option<ChildStdin>,
}

impl Guardian {
    /// Starts to guard a folder with the data of a server. `lock` is the file in it that the server
    /// removes when it has ended.
    pub(crate) fn start(folder: &Path, lock: &str) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "tidewater-guardian"])
            .arg(folder)
            .arg(lock)
            .current_dir("/")
            // Out of the reach of Ctrl-C and of whoever ends the group of the tests.
            .process_group(0)
            .stdin(Stdio::piped())
            // Holding the test's output open would make `cargo test | less` wait.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run sh")?;
        let orders = shell.stdin.take();
        Ok(Self { shell, orders })
    }

    /// From now on `process` is the server.
    pub(crate) fn watch(&mut self, process: u32) -> anyhow::Result<()> {
        self.order(&format!("pid {process}\n"))
    }

    /// There is no server any more; its process id may be another's soon.
    pub(crate) fn forget(&mut self) -> anyhow::Result<()> {
        self.order("gone\n")
    }

    /// Sends the server a signal, named without SIG.
    pub(crate) fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        self.order(&format!("signal {signal}\n"))
    }

    /// Removes the folder, after ending what is still being watched.
    pub(crate) fn finish(&mut self) {
        self.orders = None;
        // Fails only if it was waited for already.
        let _ = self.shell.wait();
    }

    fn order(&mut self, line: &str) -> anyhow::Result<()> {
        self.orders
            .as_mut()
            .context("the guardian was dismissed")?
            .write_all(line.as_bytes())
            .context("the guardian of the server is gone")
    }
}
