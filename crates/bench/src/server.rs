//! The server of a scenario: its configuration and its process.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::guardian::Guardian;
use crate::options::{TrackingSetting, Workers};
use crate::processes;
use crate::program::tidewater;
use crate::way::ConnectionWay;

/// What remotes subscribe to.
pub(crate) const PUBLICATION: &str = "bench";

/// How long a server that was asked to end may take.
const STOP_DEADLINE: Duration = Duration::from_secs(45);
/// How long the port of a server that has just ended may be taken.
const PORT_DEADLINE: Duration = Duration::from_secs(10);

/// What of the configuration scenarios vary.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tracking: TrackingSetting,
    pub(crate) workers: Workers,
    /// As many as there are remotes, and some more, if it does not say.
    pub(crate) connections: Option<u32>,
    /// The most remotes that there will be at once.
    pub(crate) remotes: u32,
    /// Cores that server and database may use.
    pub(crate) cpus: Option<u32>,
    /// What carries connections: TCP as it is, if it does not say.
    pub(crate) way: Option<ConnectionWay>,
}

impl Settings {
    /// The configuration file, for a server that listens here, with what there is in a folder.
    pub(crate) fn configuration(
        &self,
        consolidated: &str,
        ip: IpAddr,
        port: u16,
        folder: &Path,
    ) -> String {
        let text = |text: &str| toml::Value::from(text).to_string();
        let listen = std::net::SocketAddr::from((ip, port));
        let scheme = self.way.map_or("tcp", |it| it.protocol.scheme());
        let connections = self.connections.unwrap_or(self.remotes + 1_000);
        let mut config = format!(
            "[server]\nlisten = [{}]\nconsolidated = {}\n",
            text(&format!("{scheme}://{listen}")),
            text(consolidated),
        );
        if !ip.is_loopback() {
            config.push_str("insecure = true\n");
        }
        if let Some(way) = self.way {
            config.push_str(&of_way(way, folder));
        }
        // Whoever may connect may wait: what is limited is the number of connections.
        let _ = write!(
            config,
            "\n[server.limits]\nconnections = {connections}\nbacklog = {connections}\n"
        );
        if let Workers::Fixed(number) = self.workers {
            let _ = write!(
                config,
                "upload_workers = {number}\ndownload_workers = {number}\n"
            );
        }
        let _ = write!(
            config,
            "\n[log]\nlevel = \"warn\"\n\n\
             [[publication]]\nname = \"{PUBLICATION}\"\n\n\
             [[publication.table]]\nname = \"purchase\"\n\
             partition = {{ columns = [\"emp_id\"], \
             values = \"SELECT emp_id FROM bench_user WHERE login = {{s.username}}\" }}\n\
             tracking = \"{}\"\n",
            self.tracking.name()
        );
        config
    }
}

/// What the configuration says of a way.
fn of_way(way: ConnectionWay, folder: &Path) -> String {
    let path = |path: PathBuf| toml::Value::from(path.to_string_lossy().as_ref()).to_string();
    let mut config = format!("compression = \"{}\"\n", way.compression);
    if let Some(key) = way.protocol.key() {
        let _ = write!(
            config,
            "\n[server.tls]\ncertificate = {}\nkey = {}\n",
            path(key.certificate(folder)),
            path(key.private(folder))
        );
    }
    config
}

/// A server that runs.
pub(crate) struct ServerProcess {
    child: Child,
    log: PathBuf,
    pub(crate) port: u16,
    guardian: Guardian,
}

impl ServerProcess {
    /// Starts `tidewater` as a server with a configuration file; returns when it listens.
    pub(crate) fn start(folder: &Path, configuration: &str) -> anyhow::Result<ServerProcess> {
        let path = folder.join("tidewater.toml");
        fs::write(&path, configuration)?;
        Self::start_as("serve", folder, &path)
    }

    /// Starts `tidewater` with a command that serves, and a configuration file; returns when it
    /// listens.
    pub(crate) fn start_as(
        command: &str,
        folder: &Path,
        path: &Path,
    ) -> anyhow::Result<ServerProcess> {
        let until = Instant::now() + PORT_DEADLINE;
        loop {
            let log = folder.join(format!("{command}.log"));
            match Self::start_once(command, path, &log, folder)? {
                Ok(server) => return Ok(server),
                Err(message) if message.contains("in use") && Instant::now() < until => {
                    std::thread::sleep(processes::GLANCE);
                }
                Err(message) => bail!("the server did not start: {message}"),
            }
        }
    }

    fn start_once(
        command: &str,
        path: &Path,
        log: &Path,
        folder: &Path,
    ) -> anyhow::Result<Result<ServerProcess, String>> {
        let mut child = tidewater()?
            .arg(command)
            .arg("-c")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .context("cannot start a server")?;
        let guardian = Guardian::new(child.id(), folder);
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let port = line.trim().rsplit_once(':');
        let Some(port) = port.and_then(|(_, port)| port.parse().ok()) else {
            child.wait()?;
            return Ok(Err(last_words(log)));
        };
        Ok(Ok(ServerProcess {
            child,
            log: log.to_owned(),
            port,
            guardian: guardian?,
        }))
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// An error with the server's last words, if it does not run any more.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended ({status}): {}", last_words(&self.log)),
        }
    }

    /// Ends it in good order.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        processes::terminate(self.child.id());
        let until = Instant::now() + STOP_DEADLINE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                bail!("the server does not end");
            }
            std::thread::sleep(processes::GLANCE);
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // After `stop` it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.guardian.dismiss();
    }
}

/// The end of a log.
pub(crate) fn last_words(log: &Path) -> String {
    const BYTES: u64 = 4_096;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        Ok(String::from_utf8_lossy(&end).trim().to_owned())
    };
    let words = read().unwrap_or_default();
    if words.is_empty() {
        "it said nothing".into()
    } else {
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_server::Config;

    #[test]
    fn the_configuration_says_what_was_asked_for() {
        let mut settings = Settings {
            tracking: TrackingSetting::Off,
            workers: Workers::Fixed(7),
            connections: Some(1_024),
            remotes: 10,
            cpus: None,
            way: None,
        };
        let url = "sqlite:/tmp/a \"quoted\" file.db";
        let text = settings.configuration(url, [127, 0, 0, 1].into(), 7439, Path::new("/tmp"));
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.server.consolidated, url);
        assert_eq!(config.server.limits.connections, 1_024);
        assert_eq!(config.server.limits.upload_workers, Some(7));
        assert_eq!(config.server.limits.download_workers, Some(7));
        assert_eq!(config.publications[0].tables[0].name, "purchase");

        settings.workers = Workers::Auto;
        settings.connections = None;
        let text = settings.configuration(url, [0, 0, 0, 0].into(), 0, Path::new("/tmp"));
        assert!(!text.contains("workers"));
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.server.limits.connections, 1_010);
        assert!(config.server.insecure);
    }
}
