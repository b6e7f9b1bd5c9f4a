//! A HAProxy of a test's own.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for a real process, which knows no other clock"
)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many ports are tried: somebody else may take one that was free.
const ATTEMPTS: usize = 5;

/// A running HAProxy; it ends when this is dropped.
#[derive(Debug)]
pub struct Haproxy {
    process: Child,
    /// The ports that it listens on, on 127.0.0.1.
    pub ports: [u16; 2],
    _folder: tempfile::TempDir,
}

impl Haproxy {
    /// Starts one with the configuration that is made for these free ports.
    ///
    /// # Errors
    /// There is no `haproxy`, it refuses the configuration, or it does not start.
    pub fn start(configuration: impl Fn([u16; 2]) -> String) -> Result<Haproxy> {
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let ports = free_ports()?;
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("haproxy.cfg");
            fs::write(&file, configuration(ports))?;
            Haproxy::check(&file)?;
            let mut process = Command::new(program())
                // In the foreground.
                .args(["-q", "-db", "-f"])
                .arg(&file)
                .stdin(Stdio::null())
                .stderr(fs::File::create(folder.path().join("log"))?)
                .spawn()
                .context("haproxy cannot be started")?;
            if listens(&mut process, ports)? {
                return Ok(Haproxy {
                    process,
                    ports,
                    _folder: folder,
                });
            }
            said = fs::read_to_string(folder.path().join("log"))?;
        }
        anyhow::bail!("haproxy does not start: {said}")
    }

    /// Has HAProxy read a configuration.
    ///
    /// # Errors
    /// There is no `haproxy`, or it has something against the file.
    pub fn check(file: &Path) -> Result<()> {
        let checked = Command::new(program())
            // Warnings are errors.
            .args(["-c", "-dW", "-f"])
            .arg(file)
            .output()
            .context("haproxy cannot be started: install it (Debian: haproxy)")?;
        let said = String::from_utf8_lossy(&checked.stderr);
        ensure!(checked.status.success(), "haproxy: {said}");
        Ok(())
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until it listens; whether it does.
fn listens(process: &mut Child, ports: [u16; 2]) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        if process.try_wait()?.is_some() {
            return Ok(false);
        }
        if ports
            .iter()
            .all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
        {
            return Ok(true);
        }
        ensure!(Instant::now() < end, "haproxy does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two at once, so that they differ.
fn free_ports() -> Result<[u16; 2]> {
    let listen = || TcpListener::bind("127.0.0.1:0");
    let (one, other) = (listen()?, listen()?);
    Ok([one.local_addr()?.port(), other.local_addr()?.port()])
}

/// Where distributions put it, if it is not in the path.
fn program() -> PathBuf {
    let known = Path::new("/usr/sbin/haproxy");
    match known.exists() {
        true => known.to_owned(),
        false => "haproxy".into(),
    }
}
