//! The tidewater program: where it is, and how a run of it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::world::password;

#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    folder: PathBuf,
}

/// What a finished run left behind.
#[derive(Debug)]
pub(crate) struct ProgramRun {
    /// Nothing if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// The program at a path, or the one beside this one; it runs in a folder.
    pub(crate) fn find(path: Option<&Path>, folder: &Path) -> anyhow::Result<Program> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()?.with_file_name("tidewater"),
        };
        let path = std::fs::canonicalize(&path).with_context(|| {
            let place = path.display();
            format!("there is no {place}: build it (cargo build -p tidewater-cli), or name it with --program")
        })?;
        Ok(Program {
            path,
            folder: folder.to_owned(),
        })
    }

    /// The program with these arguments, ready to run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments);
        self.prepare(&mut command);
        command
    }

    /// The same, with a limit on the size of files in blocks of 512 bytes. What is written
    /// beyond fails, or ends the process, as a full disk or a quota does.
    pub(crate) fn limited(&self, arguments: &[&str], blocks: u64, is_fatal: bool) -> Command {
        let ignore = if is_fatal { "" } else { "trap '' XFSZ; " };
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{ignore}ulimit -f {blocks}; exec \"$0\" \"$@\""))
            .arg(&self.path)
            .args(arguments);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command
            .current_dir(&self.folder)
            .env_remove("TIDEWATER_PASSWORD")
            .stdin(Stdio::null());
    }

    /// Runs it to a good end.
    pub(crate) fn done(&self, arguments: &[&str]) -> anyhow::Result<ProgramRun> {
        let run = ProgramRun::from_command(&mut self.command(arguments))?;
        ensure!(run.code == Some(0), "{arguments:?}: {run:?}");
        Ok(run)
    }

    pub(crate) fn add_user(&self, arguments: &[&str], user: &str) -> anyhow::Result<()> {
        let mut command = self.command(arguments);
        let run = ProgramRun::from_command(command.env("TIDEWATER_PASSWORD", password(user)))?;
        ensure!(run.code == Some(0), "user add {user}: {run:?}");
        Ok(())
    }
}

impl ProgramRun {
    pub(crate) fn from_command(command: &mut Command) -> anyhow::Result<ProgramRun> {
        Ok(command.output()?.into())
    }

    /// Whether one of its threads panicked, however it ended.
    pub(crate) fn panicked(&self) -> bool {
        self.stderr.contains("panicked")
    }

    /// The object that it printed with `--json`.
    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_str(&self.stdout).ok()
    }

    /// How it ended, in a word: `done`, the code of its error, or a signal.
    pub(crate) fn outcome(&self) -> String {
        match self.code {
            Some(0) => "done".into(),
            Some(6) => "done, with refused rows".into(),
            None => "ended by a signal".into(),
            Some(code) => match self.json() {
                Some(object) => object["error"]["code"].as_str().unwrap_or("?").to_owned(),
                None => format!("exit code {code} without an object"),
            },
        }
    }
}

impl From<std::process::Output> for ProgramRun {
    fn from(output: std::process::Output) -> ProgramRun {
        ProgramRun {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
