//! A PgBouncer of a test's own, before a PostgreSQL of tests.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for a real process, which knows no other clock"
)]

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::claim_port;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running PgBouncer; it ends when this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one on a free port, before the PostgreSQL on a port of this machine, with more lines
    /// for its configuration, such as `pool_mode = session`.
    ///
    /// # Errors
    /// There is no `pgbouncer`, or it does not start.
    pub fn start(postgres: u16, more: &str) -> Result<PgBouncer> {
        let port = claim_port()?;
        let folder = tempfile::tempdir()?;
        // Another user may have to read it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let file = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={postgres} user=postgres\n[pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\ndefault_pool_size = 100\n{more}\n"
        );
        fs::write(&file, text)?;
        let mut command = Command::new(program());
        command.arg("-q").stdin(Stdio::null()).stderr(Stdio::null());
        // It does not run as root.
        if fs::metadata(folder.path())?.uid() == 0 {
            command.args(["-u", "postgres"]);
        }
        let process = command.arg(&file).spawn();
        let mut process = process.context("install PgBouncer (Debian: pgbouncer)")?;
        let is_there = listens(&mut process, port)?;
        let bouncer = PgBouncer {
            process,
            port,
            _folder: folder,
        };
        ensure!(is_there, "PgBouncer does not start");
        Ok(bouncer)
    }

    /// The URL of a database behind it, of its URL without.
    pub fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap_or_default();
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until it listens; whether it does.
fn listens(process: &mut Child, port: u16) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        if process.try_wait()?.is_some() {
            return Ok(false);
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(true);
        }
        ensure!(Instant::now() < end, "PgBouncer does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where distributions put it, if it is not in the path.
fn program() -> PathBuf {
    let known = Path::new("/usr/sbin/pgbouncer");
    match known.exists() {
        true => known.to_owned(),
        false => "pgbouncer".into(),
    }
}
