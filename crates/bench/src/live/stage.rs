//! What a measure of the live layer needs around it: a database, a server, programs.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

use super::LiveOptions;
use super::client::{Job, Kind, Outcome};
use crate::base::{self, Base};
use crate::options::{Tracking, Workers};
use crate::password::Password;
use crate::server::{ServerProcess, Settings};

/// The user as whom programs sign in.
pub(super) const USER: &str = "bench-0";

/// Database and server; both are as before when it is dropped by [`Stage::clear`].
pub(super) struct Stage {
    pub(super) base: Box<dyn Base>,
    server: Option<ServerProcess>,
    password: Password,
    http_port: u16,
    _folder: TempDir,
}

impl Stage {
    /// `sections` are added to the server's configuration.
    pub(super) fn set(options: &LiveOptions, sections: &str) -> anyhow::Result<Stage> {
        let folder = match &options.files {
            Some(files) => tempfile::tempdir_in(files)?,
            None => tempfile::tempdir()?,
        };
        let url = match &options.consolidated {
            Some(url) => url.clone(),
            None => {
                let path = folder.path().join("consolidated.db");
                let path = path.to_str().context("the folder's name is not UTF-8")?;
                format!("sqlite:{path}")
            }
        };
        let mut base = base::open(&url)?;
        base::prepare(&mut *base)?;
        let (employees, purchases) = base::LOOK_UP;
        base.insert(0..employees, purchases)?;
        let password = Password::random()?;
        let settings = Settings {
            tracking: Tracking::Log,
            workers: Workers::Auto,
            connections: Some(20_000),
            remotes: 0,
            cpus: None,
        };
        // A port that was free a moment ago.
        let http_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let plain = settings.configuration(base.url(), Ipv4Addr::LOCALHOST.into(), 0);
        let http = format!("[server]\nhttp = \"http://127.0.0.1:{http_port}\"\n");
        let configuration = plain.replacen("[server]\n", &http, 1) + sections;
        base::deploy(&*base, &configuration)?;
        base::add_users(&*base, &[USER.to_owned()], password.hash())?;
        base.settle()?;
        let server = ServerProcess::start(folder.path(), &configuration)?;
        Ok(Stage {
            base,
            server: Some(server),
            password,
            http_port,
            _folder: folder,
        })
    }

    pub(super) fn job(&self, seconds: f64, kind: Kind) -> Job {
        Job {
            server_port: self.server.as_ref().map_or(0, |it| it.port),
            http_port: self.http_port,
            user: USER.to_owned(),
            password: self.password.text().to_owned(),
            seconds,
            kind,
        }
    }

    pub(super) fn clear(mut self) -> anyhow::Result<()> {
        if let Some(server) = self.server.take() {
            server.stop()?;
        }
        base::clear(&mut *self.base)
    }
}

/// A program that does a job.
pub(super) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it; it waits for [`Program::go`].
    pub(super) fn start(job: &Job) -> anyhow::Result<Program> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "live-client"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a program")?;
        let input = child.stdin.take().context("a program has no input")?;
        let output = child.stdout.take().context("a program has no output")?;
        let mut program = Program {
            child,
            input,
            output: BufReader::new(output),
        };
        writeln!(program.input, "{}", serde_json::to_string(job)?)?;
        let ready = program.line()?;
        anyhow::ensure!(ready == "ready", "a program is not ready: {ready}");
        Ok(program)
    }

    pub(super) fn go(&mut self) -> anyhow::Result<()> {
        writeln!(self.input, "go")?;
        Ok(self.input.flush()?)
    }

    pub(super) fn outcome(mut self) -> anyhow::Result<Outcome> {
        let line = self.line()?;
        let outcome = serde_json::from_str(&line);
        outcome.with_context(|| format!("a program has failed: {line}"))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends by itself, unless it failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All at once.
pub(super) fn together(jobs: &[Job]) -> anyhow::Result<Vec<Outcome>> {
    let programs = jobs.iter().map(Program::start);
    let mut programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
    programs.iter_mut().try_for_each(Program::go)?;
    programs.into_iter().map(Program::outcome).collect()
}
