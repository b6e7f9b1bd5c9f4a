//! The relay of the scenario `protocols`: a process of `tidewater` between remotes and server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use anyhow::Context;

use crate::program::tidewater;
use crate::server::ServerProcess;
use crate::way::BEHIND_RELAY;

/// The server's token, in the folder of the bench.
const TOKEN: &str = "relay.token";

/// Idle lines of the server: a relay has a remote wait where there are none.
const LINES: u32 = 64;

/// A relay that runs.
pub(crate) struct RelayProcess {
    process: ServerProcess,
    /// Where it waits for servers.
    servers: u16,
    /// Where remotes come.
    pub(crate) remotes: u16,
}

impl RelayProcess {
    /// Starts one, with a token for the server.
    pub(crate) fn start(folder: &Path) -> anyhow::Result<RelayProcess> {
        let token = folder.join(TOKEN);
        let made = tidewater()?
            .args(["relay", "token", "--out"])
            .arg(&token)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        anyhow::ensure!(made.status.success(), "there is no token for the relay");
        let hash = String::from_utf8(made.stdout).context("the token's hash")?;
        // Ports that were free a moment ago.
        let places = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let mut ports = Vec::new();
        for place in &places {
            let place = place.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            ports.push(place.local_addr()?.port());
        }
        drop(places);
        let (remotes, servers) = (ports[0], ports[1]);
        let config = folder.join("relay.toml");
        fs::write(
            &config,
            format!(
                "listen = [\"tls://127.0.0.1:{remotes}\"]\nservers = \"tcp://127.0.0.1:{servers}\"\n\
                 connections = 100000\n\n[log]\nlevel = \"warn\"\n\n\
                 [[server]]\nname = \"{BEHIND_RELAY}\"\n{hash}"
            ),
        )?;
        Ok(RelayProcess {
            process: ServerProcess::start_as("relay", folder, &config)?,
            servers,
            remotes,
        })
    }

    /// What the configuration of a server says to be reached through it.
    pub(crate) fn section(&self, folder: &Path) -> String {
        let token = toml::Value::from(folder.join(TOKEN).to_string_lossy().as_ref());
        format!(
            "\n[relay]\nconnect = [\"tcp://127.0.0.1:{}\"]\nname = \"{BEHIND_RELAY}\"\n\
             token_file = {token}\nlines = {LINES}\n",
            self.servers
        )
    }

    /// Ends it.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.process.stop()
    }
}
