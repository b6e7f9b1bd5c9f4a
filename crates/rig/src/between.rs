//! What stands between devices and servers: HAProxy, set up as `deploy/` does it, and a relay, which
//! servers dial.

use std::path::Path;

use anyhow::Context;
use tidewater_testing::balancer::Kind;
use tidewater_testing::claim_port;

use crate::program::Program;
use crate::servers::Ports;
use crate::standing::{Ends, Standing};

const HAPROXY: &str = include_str!("../../../deploy/haproxy.cfg");
/// From where HAProxy connects to servers: everybody else comes from 127.0.0.1.
pub(crate) const BALANCER: &str = "127.0.0.9";
/// The servers' name at the relay.
pub(crate) const NAME: &str = "localhost";

/// What `tidewater cert` has made.
const CERTIFICATE: &str = "tls/tidewater-dev.pem";
const KEY: &str = "tls/tidewater-dev.key";

/// HAProxy, and where it listens.
pub(crate) struct RigBalancer {
    pub(crate) standing: Standing,
    pub(crate) remotes: u16,
    /// For TLS, which ends here.
    pub(crate) web: u16,
}

impl RigBalancer {
    pub(crate) fn new(folder: &Path, servers: &[Ports]) -> anyhow::Result<RigBalancer> {
        let (remotes, web) = (claim_port()?, claim_port()?);
        let both = folder.join("tls/both.pem");
        let pem = [CERTIFICATE, KEY].map(|it| std::fs::read_to_string(folder.join(it)));
        let [certificate, key] = pem;
        std::fs::write(&both, certificate? + &key?)?;
        let text = HAPROXY
            .replace("maxconn 20000", "maxconn 500")
            .replace("bind :7439", &format!("bind 127.0.0.1:{remotes}"))
            .replace("bind :443", &format!("bind 127.0.0.1:{web}"))
            .replace("/etc/haproxy/tidewater.pem", &both.display().to_string())
            .replace("check port 7440", &format!("source {BALANCER} check"));
        let text: String = text.lines().map(|it| servers_of(it, servers)).collect();
        let file = Kind::Haproxy.write(folder, &text)?;
        Kind::Haproxy.check(&file)?;
        let command = move || Kind::Haproxy.command(&file);
        Ok(RigBalancer {
            standing: Standing::new("haproxy", Ends::Never, command),
            remotes,
            web,
        })
    }
}

/// A line of the configuration: that of its first server becomes one for each, its second goes.
fn servers_of(line: &str, servers: &[Ports]) -> String {
    let of_each = |port: fn(&Ports) -> u16| {
        let lines = servers.iter().enumerate().map(|(number, ports)| {
            let (port, admin) = (port(ports), ports.admin);
            let cookie = if line.contains("cookie") {
                format!("cookie {number}")
            } else {
                String::new()
            };
            format!("    server {number} 127.0.0.1:{port} port {admin} {cookie}\n")
        });
        lines.collect()
    };
    match line.trim_start() {
        it if it.starts_with("server one 192.0.2.11:7439") => of_each(|it| it.plain),
        it if it.starts_with("server one 192.0.2.11:7441") => of_each(|it| it.web),
        it if it.starts_with("server ") => String::new(),
        _ => format!("{line}\n"),
    }
}

/// A relay, and where it listens.
pub(crate) struct Relay {
    pub(crate) standing: Standing,
    pub(crate) devices: u16,
    pub(crate) servers: u16,
}

impl Relay {
    /// Writes its configuration, and the servers' token.
    pub(crate) fn new(folder: &Path, program: &Program) -> anyhow::Result<Relay> {
        let (devices, servers) = (claim_port()?, claim_port()?);
        let tokens = program
            .done(&["relay", "token", "--out", "relay.token"])?
            .stdout;
        let text = format!(
            "listen = [\"tls://127.0.0.1:{devices}\"]\nservers = \"tls://127.0.0.1:{servers}\"\n\
             [tls]\ncertificate = {CERTIFICATE:?}\nkey = {KEY:?}\n\
             [[server]]\nname = {NAME:?}\n{tokens}"
        );
        std::fs::write(folder.join("relay.toml"), text).context("the relay's configuration")?;
        let program = program.clone();
        let command = move || program.command(&["relay", "-c", "relay.toml"]);
        Ok(Relay {
            standing: Standing::new("relay", Ends::Never, command),
            devices,
            servers,
        })
    }
}

/// What has a server dial the relay at this port.
pub(crate) fn dials(port: u16) -> String {
    format!(
        "[relay]\nconnect = [\"tls://127.0.0.1:{port}\"]\nname = {NAME:?}\nca = {CERTIFICATE:?}\n\
         token_file = \"relay.token\"\n"
    )
}
