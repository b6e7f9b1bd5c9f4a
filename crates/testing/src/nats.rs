//! A NATS server of a test's own.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for a real process, which knows no other clock"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server; it ends when this is dropped.
#[derive(Debug)]
pub struct Nats {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Nats {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// There is no `nats-server`, or it does not start.
    pub fn start() -> Result<Nats> {
        let folder = tempfile::tempdir()?;
        let mut nats = Nats {
            process: spawn("-1", folder.path())?,
            port: 0,
            folder,
        };
        nats.port = nats.find_port()?;
        Ok(nats)
    }

    /// Starts it again where it was, after [`Self::stop`].
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.process = spawn(&self.port.to_string(), self.folder.path())?;
        self.find_port().map(|_| ())
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Publishes something, as any program can, and waits until it is there.
    ///
    /// # Errors
    /// The server is away.
    pub fn publish(&self, subject: &str, payload: &[u8]) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!(
            "CONNECT {{\"verbose\":false}}\r\nPUB {subject} {}\r\n",
            payload.len()
        );
        stream.write_all(&[head.as_bytes(), payload, b"\r\nPING\r\n"].concat())?;
        for line in BufReader::new(&stream).lines() {
            if line? == "PONG" {
                return Ok(());
            }
        }
        anyhow::bail!("NATS has closed the connection")
    }

    /// Ends it.
    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// It writes down which port it has taken.
    fn find_port(&mut self) -> Result<u16> {
        let file = self.folder.path();
        let file = file.join(format!("nats-server_{}.ports", self.process.id()));
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(port) = read_port(&file) {
                return Ok(port);
            }
            ensure!(
                self.process.try_wait()?.is_none() && Instant::now() < end,
                "nats-server does not start"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn spawn(port: &str, folder: &Path) -> Result<Child> {
    Command::new(program())
        .args(["--addr", "127.0.0.1", "--port", port, "--ports_file_dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("nats-server cannot be started: install it (Debian: nats-server)")
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Of `{"nats":["nats://127.0.0.1:4222"],...}`, the port.
fn read_port(file: &Path) -> Option<u16> {
    let text = std::fs::read_to_string(file).ok()?;
    let (_, rest) = text.split_once("nats://")?;
    let url = rest.split('"').next().filter(|it| rest.len() > it.len())?;
    url.rsplit(':').next()?.parse().ok()
}

/// Where distributions put it, if it is not in the path.
fn program() -> PathBuf {
    let known = Path::new("/usr/sbin/nats-server");
    match known.exists() {
        true => known.to_owned(),
        false => "nats-server".into(),
    }
}
