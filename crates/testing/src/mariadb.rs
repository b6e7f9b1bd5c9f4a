//! A real MariaDB server that belongs to one test binary.
//!
//! Owns the server's life: finding the programs, making the data, starting, and leaving nothing
//! behind, not even when the test process is killed. Leaves to the tests what they put into it.

#![allow(
    clippy::disallowed_methods,
    reason = "a real process is waited for, with deadlines of real time"
)]

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::account::Account;
use crate::claim_port;
use crate::guardian::Guardian;

/// Names a folder with MariaDB's programs, before all other places.
const FOLDER_VARIABLE: &str = "TIDEWATER_MARIADB_BIN";
/// How long a start may take.
const START_DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The file that the server has for as long as it runs, in its folder.
const LOCK: &str = "data/server.pid";

/// Defaults that ours are not: what a session relies on it has to set. Commits do not reach the disk,
/// which survives everything but the end of the operating system.
const SETTINGS: [&str; 9] = [
    "--sql-mode=",
    "--default-time-zone=+05:45",
    "--character-set-server=latin1",
    "--innodb-lock-wait-timeout=50",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-buffer-pool-size=64M",
    "--max-connections=300",
    "--performance-schema=OFF",
    "--skip-name-resolve",
];

/// One running MariaDB, reachable on a loopback port as `root` without a password.
///
/// Dropping it ends the server and removes its data.
#[derive(Debug)]
pub struct MariaDb {
    port: u16,
    server: Child,
    guardian: Guardian,
}

/// The server that all tests of one test binary share, started at the first call. It ends after the
/// test process, however that ends.
///
/// # Panics
///
/// When no MariaDB is installed or it does not start: such a test cannot run.
pub fn shared_mariadb() -> &'static MariaDb {
    static SHARED: OnceLock<MariaDb> = OnceLock::new();
    SHARED.get_or_init(|| MariaDb::start().expect("tests need a MariaDB that starts"))
}

impl MariaDb {
    /// Starts a server; returns when it accepts connections.
    pub fn start() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tidewater-mariadb-")
            .tempdir()
            .context("cannot make a folder for MariaDB")?;
        // MariaDB refuses to run as root.
        let account = match fs::metadata(folder.path())?.uid() {
            0 => Some(Account::unprivileged("mysql")?),
            _ => None,
        };
        if let Some(account) = account {
            std::os::unix::fs::chown(folder.path(), Some(account.uid), Some(account.gid))?;
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))?;
        make_data(account, folder.path())?;
        let mut guardian = Guardian::start(folder.path(), LOCK)?;
        // From here on the guardian removes it.
        let folder = folder.keep();
        let port = claim_port()?;
        let log = File::create(folder.join("log"))?;
        let server = command(&program("mariadbd")?, account, &folder)
            .arg("--no-defaults")
            .arg(format!("--datadir={}", folder.join("data").display()))
            .arg(format!("--pid-file={}", folder.join(LOCK).display()))
            .arg(format!("--socket={}", folder.join("socket").display()))
            .arg(format!("--port={port}"))
            .arg("--bind-address=127.0.0.1")
            .args(SETTINGS)
            // Not the terminal's group: Ctrl-C is for the tests, the guardian ends the server.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run mariadbd")?;
        guardian.watch(server.id())?;
        let mut mariadb = Self {
            port,
            server,
            guardian,
        };
        mariadb.wait_until_ready(&folder.join("log"))?;
        Ok(mariadb)
    }

    /// The URL of a database of this server, whether it exists or not; of none with an empty name.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    fn wait_until_ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let said = fs::read(log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            if said.contains("ready for connections") {
                return Ok(());
            }
            if let Some(status) = self.server.try_wait()? {
                self.guardian.forget()?;
                bail!("MariaDB did not start ({status}):\n{said}");
            }
            if Instant::now() > deadline {
                bail!("MariaDB did not become ready in time:\n{said}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // The guardian waits until the server has ended, which it has when it was waited for.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = self.guardian.forget();
        self.guardian.finish();
    }
}

/// Makes `folder/data`.
fn make_data(account: Option<Account>, folder: &Path) -> anyhow::Result<()> {
    let output = command(&program("mariadb-install-db")?, account, folder)
        .arg("--no-defaults")
        .arg(format!("--datadir={}", folder.join("data").display()))
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .output()
        .context("cannot run mariadb-install-db")?;
    if !output.status.success() {
        bail!(
            "mariadb-install-db failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// A command that runs a program as `account`.
fn command(program: &Path, account: Option<Account>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    // The caller's folders may be closed to the account, that of temporary files too.
    command.current_dir(folder);
    command.env("TMPDIR", folder).env("LC_ALL", "C");
    if let Some(account) = account {
        command.uid(account.uid).gid(account.gid);
    }
    command
}

/// Looks in `TIDEWATER_MARIADB_BIN`, then in `PATH`, then where distributions put servers.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
    let folders = folders.into_iter().chain(std::env::split_paths(&path));
    let folders = folders.chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    let mut programs = folders.map(|it| it.join(name));
    programs.find(|it| it.is_file()).with_context(|| {
        format!(
            "found no {name}: install MariaDB (Debian: apt-get install mariadb-server), or set \
             {FOLDER_VARIABLE} to the folder that holds it"
        )
    })
}
