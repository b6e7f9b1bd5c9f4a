//! A balancer of a test's own: HAProxy or nginx.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for a real process, which knows no other clock"
)]

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::claim_port;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which program balances.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
}

/// A running balancer; it ends when this is dropped.
#[derive(Debug)]
pub struct Balancer {
    process: Child,
    /// The ports that it listens on, on 127.0.0.1.
    pub ports: [u16; 2],
    _folder: tempfile::TempDir,
}

impl Balancer {
    /// Starts one with the configuration that is made for these free ports.
    ///
    /// # Errors
    /// The program is not there, refuses the configuration, or does not start.
    pub fn start(kind: Kind, configuration: impl Fn([u16; 2]) -> String) -> Result<Balancer> {
        let ports = [claim_port()?, claim_port()?];
        let folder = tempfile::tempdir()?;
        let file = kind.write(folder.path(), &configuration(ports))?;
        kind.check(&file)?;
        let log = folder.path().join("log");
        let mut process = kind
            .command(&file)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()?;
        let is_there = listens(&mut process, ports)?;
        let balancer = Balancer {
            process,
            ports,
            _folder: folder,
        };
        match is_there {
            true => Ok(balancer),
            false => anyhow::bail!("{kind:?} does not start: {}", fs::read_to_string(log)?),
        }
    }
}

impl Kind {
    /// Has the program read a configuration.
    ///
    /// # Errors
    /// It is not there, or has something against the file.
    pub fn check(self, file: &Path) -> Result<()> {
        let mut command = Command::new(self.program());
        let command = match self {
            // Warnings are errors.
            Kind::Haproxy => command.args(["-c", "-dW", "-f"]),
            Kind::Nginx => command.args(["-t", "-q", "-c"]),
        };
        let checked = command.arg(file).output();
        let checked = checked.with_context(|| format!("install {self:?}: see scripts/test.sh"))?;
        let said = String::from_utf8_lossy(&checked.stderr);
        let is_fine = match self {
            Kind::Haproxy => true,
            Kind::Nginx => said.is_empty(),
        };
        ensure!(checked.status.success() && is_fine, "{self:?}: {said}");
        Ok(())
    }

    /// Writes a configuration with which nothing of the machine is used or left.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, folder: &Path, text: &str) -> Result<PathBuf> {
        let place = folder.display();
        let (name, text) = match self {
            Kind::Haproxy => ("haproxy.cfg", text.to_owned()),
            Kind::Nginx => {
                let head = format!("pid {place}/pid;\nerror_log stderr;\n");
                let of = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let paths = of.map(|it| format!("{it}_temp_path {place}/{it};\n"));
                let http = format!("http {{\naccess_log off;\n{}", paths.concat());
                ("nginx.conf", head + &text.replace("http {\n", &http))
            }
        };
        let file = folder.join(name);
        fs::write(&file, text)?;
        Ok(file)
    }

    /// The program with such a file, in the foreground, as one process.
    pub fn command(self, file: &Path) -> Command {
        let mut command = Command::new(self.program());
        match self {
            Kind::Haproxy => command.args(["-q", "-db", "-f"]).arg(file),
            Kind::Nginx => {
                let alone = "daemon off; master_process off;";
                command.args(["-g", alone, "-c"]).arg(file)
            }
        };
        command
    }

    /// Where distributions put it, if it is not in the path.
    fn program(self) -> PathBuf {
        let name = match self {
            Kind::Haproxy => "haproxy",
            Kind::Nginx => "nginx",
        };
        let known = Path::new("/usr/sbin").join(name);
        match known.exists() {
            true => known,
            false => name.into(),
        }
    }
}

impl Drop for Balancer {
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
        ensure!(Instant::now() < end, "the balancer does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
