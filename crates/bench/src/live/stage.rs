//! What a measure of the live layer needs around it: a database, a server, programs.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::Context;
use tempfile::TempDir;

use super::LiveBenchOptions;
use super::client::{Job, JobKind, JobOutcome, USER};
use crate::base::{self, Base};
use crate::driver::{employee, user};
use crate::error::BadInput;
use crate::options::{TrackingSetting, Workers};
use crate::password::Password;
use crate::processes::raise_open_files;
use crate::program::{find_tidewater, own_program};
use crate::server::{ServerProcess, Settings};

/// Connections beside those of remotes.
const OTHER_CONNECTIONS: u32 = 1_000;

/// Files beside the sockets of remotes that a server has open.
const OTHER_FILES: u64 = 500;

/// What a scenario finds in the database and in the configuration.
pub(super) struct StageSetting {
    /// Sections for the configuration.
    pub(super) sections: &'static str,
    /// Who has purchases, and how many each.
    pub(super) employees: Range<i32>,
    pub(super) purchases: u32,
    /// Users with the partition of one employee each: see [`employee`].
    pub(super) users: u32,
    /// The most remotes that there will be at once.
    pub(super) remotes: u32,
}

/// Database and server; both are as before when it is dropped by [`Stage::clear`].
pub(super) struct Stage {
    pub(super) base: Box<dyn Base>,
    server: Option<ServerProcess>,
    password: Password,
    http_port: u16,
    configuration: String,
    folder: TempDir,
}

impl Stage {
    pub(super) fn set(options: &LiveBenchOptions, setting: &StageSetting) -> anyhow::Result<Stage> {
        find_tidewater()?;
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
        base.insert(setting.employees.clone(), setting.purchases)?;
        let password = Password::random()?;
        let settings = Settings {
            tracking: TrackingSetting::Log,
            workers: Workers::Auto,
            connections: Some(setting.remotes + OTHER_CONNECTIONS),
            remotes: setting.remotes,
            cpus: None,
            way: None,
        };
        // A port that was free a moment ago.
        let http_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let plain =
            settings.configuration(base.url(), Ipv4Addr::LOCALHOST.into(), 0, folder.path());
        let http = format!("[server]\nhttp = \"http://127.0.0.1:{http_port}\"\n");
        let configuration = plain.replacen("[server]\n", &http, 1) + setting.sections;
        base::deploy(&*base, &configuration)?;
        let mut names = vec![USER.to_owned()];
        let mut values = String::new();
        for number in 0..setting.users {
            let _ = write!(values, ", ('{}', {})", user(number), employee(number));
            names.push(user(number));
        }
        base::add_users(&*base, &names, password.hash())?;
        if let Some(values) = values.get(2..) {
            let insert = format!("INSERT INTO bench_user (login, emp_id) VALUES {values}");
            base.execute(&insert)?;
        }
        base.settle()?;
        let wanted = u64::from(setting.remotes) + OTHER_FILES;
        if let Some(room) = raise_open_files(wanted).filter(|room| *room < wanted) {
            return Err(BadInput::error(
                format!("{wanted} open files are needed, and the system's limit is {room}"),
                format!("raise it (ulimit -n {wanted}), or take fewer remotes"),
            ));
        }
        let server = ServerProcess::start(folder.path(), &configuration)?;
        Ok(Stage {
            base,
            server: Some(server),
            password,
            http_port,
            configuration,
            folder,
        })
    }

    /// An error if the server has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Some(server) => server.check(),
            None => Ok(()),
        }
    }

    /// Where the server listens.
    pub(super) fn url(&self) -> String {
        let port = self.server.as_ref().map_or(0, |it| it.port);
        format!("tcp://127.0.0.1:{port}")
    }

    /// Where its web protocol is.
    pub(super) fn http_port(&self) -> u16 {
        self.http_port
    }

    pub(super) fn process(&self) -> u32 {
        self.server.as_ref().map_or(0, ServerProcess::process)
    }

    pub(super) fn password(&self) -> &str {
        self.password.text()
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn job(&self, seconds: f64, kind: JobKind) -> Job {
        Job {
            server: self.url(),
            ca_file: None,
            http_port: self.http_port,
            password: self.password.text().to_owned(),
            seconds,
            kind,
        }
    }

    /// Does jobs at the same time, each in a program of its own.
    pub(super) fn together(
        &self,
        seconds: f64,
        kinds: &[JobKind],
    ) -> anyhow::Result<Vec<JobOutcome>> {
        let programs = kinds
            .iter()
            .map(|kind| Program::start(&self.job(seconds, kind.clone())));
        let mut programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        programs.iter_mut().try_for_each(Program::go)?;
        programs.into_iter().map(Program::outcome).collect()
    }

    /// Another server of the same database, that nobody has used yet.
    pub(super) fn another_server(&self, tls: bool) -> anyhow::Result<AnotherServer> {
        let folder = self.folder.path().join("another");
        std::fs::create_dir_all(&folder)?;
        let http = format!("http = \"http://127.0.0.1:{}\"\n", self.http_port);
        let configuration = self.configuration.replacen(&http, "", 1);
        if !tls {
            let process = ServerProcess::start(&folder, &configuration)?;
            return Ok(AnotherServer {
                url: format!("tcp://127.0.0.1:{}", process.port),
                ca_file: None,
                process,
            });
        }
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        std::fs::write(&certificate, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        let configuration = configuration.replacen("\"tcp://", "\"tls://", 1);
        let text = |path: &Path| toml::Value::from(&*path.to_string_lossy()).to_string();
        let tls = format!(
            "\n[server.tls]\ncertificate = {}\nkey = {}\n",
            text(&certificate),
            text(&key)
        );
        let process = ServerProcess::start(&folder, &(configuration + &tls))?;
        Ok(AnotherServer {
            url: format!("tls://127.0.0.1:{}", process.port),
            ca_file: Some(certificate),
            process,
        })
    }

    pub(super) fn clear(mut self) -> anyhow::Result<()> {
        if let Some(server) = self.server.take() {
            server.stop()?;
        }
        base::clear(&mut *self.base)
    }
}

/// A server beside the one of all measures.
pub(super) struct AnotherServer {
    pub(super) process: ServerProcess,
    pub(super) url: String,
    /// Whom to trust, with TLS.
    pub(super) ca_file: Option<PathBuf>,
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
        let mut child = own_program()?
            .arg("live-client")
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

    pub(super) fn outcome(mut self) -> anyhow::Result<JobOutcome> {
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
