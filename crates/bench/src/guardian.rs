//! The process that outlives bench: ends the server that bench has started and removes its folder,
//! however bench ends.
//!
//! A small shell reads from a pipe that only this process holds. When that ends, the pipe closes,
//! and the shell does what is left to do.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
read -r word
[ "$word" = dismissed ] && exit
kill -s TERM "$1"
tries=0
# The drivers end too, because nobody talks to them any more.
while kill -s 0 "$1" && [ "$tries" -lt 400 ] || [ "$tries" -lt 50 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
rm -rf -- "$2"
"#;

/// See the module.
pub(crate) struct Guardian {
    shell: Child,
    orders: Option<ChildStdin>,
}

impl Guardian {
    /// Starts to guard a process and the folder with everything that bench has made.
    pub(crate) fn new(process: u32, folder: &Path) -> anyhow::Result<Guardian> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "tidewater-bench-guardian"])
            .arg(process.to_string())
            .arg(folder)
            .current_dir("/")
            // Out of the reach of Ctrl-C.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = shell.stdin.take();
        Ok(Guardian { shell, orders })
    }

    /// There is nothing to guard any more.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut orders) = self.orders.take() {
            // It may have ended already.
            let _ = std::io::Write::write_all(&mut orders, b"dismissed\n");
        }
        let _ = self.shell.wait();
    }
}
