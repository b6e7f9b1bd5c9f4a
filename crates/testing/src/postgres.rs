//! A real PostgreSQL server that belongs to one test, or to one test binary.
//!
//! Owns the server's life: finding the programs, making the data, starting, crashing,
//! restarting, and leaving nothing behind, not even when the test process is killed.
//! Leaves to the tests what they put into it.

#![allow(
    clippy::disallowed_methods,
    reason = "a real process is waited for, with deadlines of real time"
)]

mod copies;
mod programs;
mod template;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

pub use copies::Snapshot;
use programs::Programs;

use crate::account::Account;
use crate::claim_port;
use crate::guardian::Guardian;

/// How long a start may take; crash recovery on a loaded machine included.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long a shutdown may take before the process is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How a test server differs from PostgreSQL's defaults.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// Whether commits reach the disk (`fsync`, `full_page_writes`). Off by default, which is
    /// faster and still survives [`Postgres::kill`], because the operating system lives on;
    /// on for benchmarks and wherever the cost of a commit matters.
    pub durable: bool,
    /// More settings, as in `postgresql.conf`: `("wal_level", "logical")`. Later ones win.
    pub settings: Vec<(String, String)>,
}

/// One running PostgreSQL, reachable on a loopback port without a password.
///
/// The superuser is `postgres`, the encoding UTF-8, the locale C, the time zone UTC.
/// Dropping it ends the server and removes its data.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    account: Option<Account>,
    options: PostgresOptions,
    folder: PathBuf,
    port: u16,
    server: Option<Child>,
    guardian: Guardian,
    databases: AtomicU64,
}

/// The server that all tests of one test binary may share, started at the first call.
///
/// Make a database of your own in it with [`Postgres::fresh_database`]. It ends after the test
/// process, however that ends.
///
/// # Panics
///
/// When no PostgreSQL is installed or it does not start: such a test cannot run.
pub fn shared_postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| Postgres::start().expect("tests need a PostgreSQL that starts"))
}

/// Connects and drives the connection on the current runtime until the client is dropped.
pub async fn connect(url: &str) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .with_context(|| format!("cannot connect to {url}"))?;
    tokio::spawn(async move {
        // Whoever uses the client sees the error; a killed server is nothing to report here.
        let _ = connection.await;
    });
    Ok(client)
}

impl Postgres {
    /// Starts a server with the default options.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(PostgresOptions::default())
    }

    /// Starts a server; returns when it accepts connections.
    pub fn start_with(options: PostgresOptions) -> anyhow::Result<Self> {
        Self::start_on(options, template::make_data)
    }

    /// Starts a server on data that somebody makes in `data` below a folder.
    fn start_on(
        options: PostgresOptions,
        make_data: impl FnOnce(&Programs, Option<Account>, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let programs = Programs::find()?;
        let folder = tempfile::Builder::new()
            .prefix("tidewater-pg-")
            .tempdir()
            .context("cannot make a folder for PostgreSQL")?;
        // PostgreSQL refuses to run as root.
        let account = match fs::metadata(folder.path())?.uid() {
            0 => Some(Account::unprivileged("postgres")?),
            _ => None,
        };
        if let Some(account) = account {
            std::os::unix::fs::chown(folder.path(), Some(account.uid), Some(account.gid))?;
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))?;
        make_data(&programs, account, folder.path())?;
        let guardian = Guardian::start(folder.path(), "data/postmaster.pid")?;
        let mut postgres = Self {
            programs,
            account,
            options,
            // From here on the guardian removes it.
            folder: folder.keep(),
            port: claim_port()?,
            server: None,
            guardian,
            databases: AtomicU64::new(0),
        };
        postgres.restart()?;
        Ok(postgres)
    }

    /// The URL of a database of this server, whether it exists or not.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The loopback port, the same through all restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where the server keeps its data.
    pub fn data_directory(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the server has logged since the first start.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) -> anyhow::Result<()> {
        let quoted = name.replace('"', "\"\"");
        self.execute(
            "postgres",
            // Nobody can be connected to template0, so the copy never finds it in use.
            &format!("CREATE DATABASE \"{quoted}\" TEMPLATE template0"),
        )
        .with_context(|| format!("cannot create database {name}"))
    }

    /// Creates an empty database with a name of its own and returns its URL.
    ///
    /// # Panics
    ///
    /// When the server does not create it.
    pub fn fresh_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("fresh_{number}");
        self.create_database(&name)
            .expect("a running test server creates databases");
        self.url(&name)
    }

    /// Creates a copy of one of this server's databases and returns its URL. Whoever is
    /// connected to the database is thrown out.
    ///
    /// # Panics
    ///
    /// When the server does not copy it.
    pub fn copy_database(&self, url: &str) -> String {
        let original = url.rsplit('/').next().unwrap_or_default();
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let copy = format!("copy_{number}");
        let statements = [
            format!("ALTER DATABASE \"{original}\" ALLOW_CONNECTIONS false"),
            format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = '{original}'"
            ),
            // It waits for those who are on their way out.
            format!("CREATE DATABASE \"{copy}\" TEMPLATE \"{original}\""),
            // The sequences of a copy go back when the server crashes before the next checkpoint
            // (PostgreSQL 15 and later): they believe that the log has their next values.
            "CHECKPOINT".into(),
            format!("ALTER DATABASE \"{original}\" ALLOW_CONNECTIONS true"),
        ];
        for sql in statements {
            self.execute("postgres", &sql)
                .expect("a running test server copies databases");
        }
        self.url(&copy)
    }

    /// Runs SQL statements in a database; for preparations, from async tests as well.
    pub fn execute(&self, database: &str, sql: &str) -> anyhow::Result<()> {
        let url = self.url(database);
        // A thread of its own, because the caller's may already drive a runtime.
        std::thread::scope(|scope| {
            let work = scope.spawn(|| -> anyhow::Result<()> {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?
                    .block_on(async { Ok(connect(&url).await?.batch_execute(sql).await?) })
            });
            work.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The folder of PostgreSQL's programs.
    pub fn programs(&self) -> PathBuf {
        let folder = self.programs.initdb.parent();
        folder.map(PathBuf::from).unwrap_or_default()
    }

    /// A database of this server as SQL that makes it anew, statement by statement.
    pub fn dump(&self, url: &str) -> anyhow::Result<String> {
        let program = self.programs.initdb.with_file_name("pg_dump");
        let output = self
            .programs
            .command(&program, self.account, &self.folder)
            .args([
                "--inserts",
                "--no-owner",
                "--no-privileges",
                "--dbname",
                url,
            ])
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!(
                "pg_dump failed ({}):\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Crashes the server: every session ends at once, nothing is written or said any more.
    ///
    /// Recovery happens in [`Postgres::restart`]. The processes are gone when this returns.
    /// (The signal is SIGQUIT: like SIGKILL it flushes nothing, but to all processes at once.)
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.shut_down("QUIT")
    }

    /// Kills the server's first process alone, with SIGKILL: its sessions notice, and end by
    /// themselves some moments later.
    pub fn kill_first_process(&mut self) -> anyhow::Result<()> {
        self.shut_down("KILL")
    }

    /// Shuts the server down in good order, open sessions disconnected; its data stays.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.shut_down("INT")
    }

    /// Starts the server again on the same port and data, stopping it first if it runs.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.stop()?;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            match self.launch(deadline)? {
                Launch::Ready => return Ok(()),
                Launch::PortTaken | Launch::SessionsLeft if Instant::now() < deadline => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Launch::PortTaken => bail!("port {} was taken meanwhile", self.port),
                Launch::SessionsLeft => bail!("sessions of a killed server do not end"),
            }
        }
    }

    fn launch(&mut self, deadline: Instant) -> anyhow::Result<Launch> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let logged_before = log.metadata()?.len();
        let server = self
            .command()
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.programs.postgres.display()))?;
        let process = server.id();
        self.server = Some(server);
        self.guardian.watch(process)?;
        loop {
            if let Some(status) = self.reap()? {
                let log = self.log();
                let news = log.get(logged_before as usize..).unwrap_or(&log);
                if news.contains("could not bind") || news.contains("could not create any TCP/IP") {
                    return Ok(Launch::PortTaken);
                }
                // Its lock file, or its shared memory, is still held.
                if news.contains("lock file \"") || news.contains("pre-existing shared memory") {
                    return Ok(Launch::SessionsLeft);
                }
                bail!("PostgreSQL did not start ({status}):\n{news}");
            }
            if self.says_ready(process) {
                return Ok(Launch::Ready);
            }
            if Instant::now() > deadline {
                bail!("PostgreSQL did not become ready in time:\n{}", self.log());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn command(&self) -> Command {
        let mut command =
            self.programs
                .command(&self.programs.postgres, self.account, &self.folder);
        // Not the terminal's group: Ctrl-C is for the tests, the guardian ends the server.
        command.process_group(0);
        command.arg("-D").arg(self.data_directory());
        let durable = if self.options.durable { "on" } else { "off" };
        let port = self.port.to_string();
        let settings = [
            ("listen_addresses", "127.0.0.1"),
            ("port", port.as_str()),
            ("unix_socket_directories", ""),
            ("fsync", durable),
            ("full_page_writes", durable),
            ("max_prepared_transactions", "10"),
            ("max_connections", "200"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        let extra = self
            .options
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in settings.into_iter().chain(extra) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
    }

    /// Reads the status that the server keeps for `pg_ctl` in its lock file: process id in the
    /// first line, status in the eighth (PostgreSQL's `utils/pidfile.h`). Unlike a connection
    /// attempt it cannot mistake another server on the port for this one.
    fn says_ready(&self, process: u32) -> bool {
        let Ok(lock) = fs::read_to_string(self.data_directory().join("postmaster.pid")) else {
            return false;
        };
        let mut lines = lock.lines();
        lines.next().map(str::trim) == Some(process.to_string().as_str())
            // A standby that can be asked says so, until it is promoted.
            && matches!(lines.nth(6).map(str::trim), Some("ready" | "standby"))
    }

    fn shut_down(&mut self, signal: &str) -> anyhow::Result<()> {
        if self.reap()?.is_some() || self.server.is_none() {
            return Ok(());
        }
        self.guardian.signal(signal)?;
        let deadline = Instant::now() + STOP_DEADLINE;
        while self.reap()?.is_none() {
            if Instant::now() > deadline {
                self.kill_process();
                bail!("PostgreSQL did not stop in time:\n{}", self.log());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Takes note that the server has ended, if it has.
    fn reap(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(server) = &mut self.server else {
            return Ok(None);
        };
        let Some(status) = server.try_wait()? else {
            return Ok(None);
        };
        self.server = None;
        self.guardian.forget()?;
        Ok(Some(status))
    }

    fn kill_process(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Both can only fail for a process that has ended already.
            let _ = server.kill();
            let _ = server.wait();
            let _ = self.guardian.forget();
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.kill().is_err() {
            self.kill_process();
        }
        self.guardian.finish();
    }
}

enum Launch {
    Ready,
    PortTaken,
    /// Of a server whose first process was killed.
    SessionsLeft,
}

/// Copies a tree of folders and files, all owned by `account` if there is one; returns how many
/// entries it has.
fn copy_tree(from: &Path, to: &Path, account: Option<Account>) -> anyhow::Result<u64> {
    fs::create_dir(to)?;
    let mut entries = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        entries += 1;
        if entry.file_type()?.is_dir() {
            entries += copy_tree(&entry.path(), &target, account)?;
        } else {
            fs::copy(entry.path(), &target)?;
            if let Some(account) = account {
                std::os::unix::fs::chown(&target, Some(account.uid), Some(account.gid))?;
            }
        }
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    if let Some(account) = account {
        std::os::unix::fs::chown(to, Some(account.uid), Some(account.gid))?;
    }
    Ok(entries)
}
