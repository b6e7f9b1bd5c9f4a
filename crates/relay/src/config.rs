//! The configuration file of a relay: what an operator can say, its defaults, and errors that tell
//! what to write instead. Documented in `docs/configuration.md`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use tidewater_carrier::listen::ServerRegistration;
use tidewater_carrier::{ServerUrl, Transport};

use crate::error::RelayError;

/// Everything that a configuration file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayServiceConfig {
    /// Where devices connect.
    pub listen: Vec<ServerUrl>,
    /// Where servers connect.
    pub servers: ServerUrl,
    /// Where the relay says how it goes, `host:port`.
    pub admin: Option<String>,
    /// With what the relay says to servers who it is.
    pub tls: Option<TlsFiles>,
    /// Whose certificates are believed when they say that a server has a name.
    pub authority: Option<PathBuf>,
    /// Connections of devices at the same time.
    pub connections: usize,
    /// Idle lines at the same time.
    pub lines: usize,
    /// The servers that there can be, by name.
    pub names: HashMap<String, ServerProofs>,
    /// How it logs.
    pub log: RelayLogConfig,
}

/// What servers of a name can prove themselves with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerProofs {
    /// Hashes of tokens.
    pub tokens: HashSet<String>,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, followed by those that lead to its issuer.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// `[log]`, as of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayLogConfig {
    /// `text` or `json`.
    pub format: Option<String>,
    /// A level, or directives.
    pub level: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelayConfig {
    listen: Vec<String>,
    servers: String,
    admin: Option<String>,
    #[serde(default)]
    insecure: bool,
    tls: Option<TlsFiles>,
    authority: Option<PathBuf>,
    connections: Option<usize>,
    lines: Option<usize>,
    #[serde(default)]
    server: Vec<RawServer>,
    #[serde(default)]
    log: RelayLogConfig,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    name: String,
    #[serde(default)]
    tokens: Vec<String>,
}

const CONNECTIONS: usize = 5_000;
const LINES: usize = 1_000;

/// Files and tasks have an end.
const MOST: usize = 1_000_000;

impl RelayServiceConfig {
    /// Reads a configuration file. Relative paths in it start at its folder.
    ///
    /// # Errors
    /// The file cannot be read, or says something that cannot be.
    pub fn load(file: &Path) -> Result<RelayServiceConfig, RelayError> {
        let text = fs::read_to_string(file).map_err(|source| RelayError::File {
            file: file.to_owned(),
            source,
        })?;
        let mut config = RelayServiceConfig::parse(&text).map_err(|error| match error {
            RelayError::Configuration { message, hint } => {
                let message = format!("{}: {message}", file.display());
                RelayError::Configuration { message, hint }
            }
            other => other,
        })?;
        if let Some(folder) = file.parent() {
            if let Some(tls) = &mut config.tls {
                tls.certificate = folder.join(&tls.certificate);
                tls.key = folder.join(&tls.key);
            }
            config.authority = config.authority.map(|it| folder.join(it));
        }
        Ok(config)
    }

    /// Reads a configuration.
    ///
    /// # Errors
    /// It says something that cannot be.
    pub fn parse(text: &str) -> Result<RelayServiceConfig, RelayError> {
        let raw: RawRelayConfig = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|it| 1 + it.matches('\n').count());
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            RelayError::configuration(
                format!("{place}{}", error.message()),
                "see docs/configuration.md for what a relay's configuration can say",
            )
        })?;
        raw.read()
    }
}

impl RawRelayConfig {
    fn read(self) -> Result<RelayServiceConfig, RelayError> {
        let wrong = |what: String, hint: &str| RelayError::configuration(what, hint);
        if self.listen.is_empty() {
            return Err(wrong(
                "listen is empty".into(),
                "write listen = [\"tls://0.0.0.0:7439\"]",
            ));
        }
        let listen = self.listen.iter().map(|text| {
            let hint = "write listen = [\"tls://0.0.0.0:7439\"]: tls, wss and https all come \
                        through there";
            let url = url("listen", text, hint)?;
            match url.transport {
                Transport::Tls => Ok(url),
                _ => Err(wrong(format!("listen: {url} is not tls://"), hint)),
            }
        });
        let listen = listen.collect::<Result<_, _>>()?;
        let hint = "write servers = \"tls://0.0.0.0:7444\"";
        let servers = url("servers", &self.servers, hint)?;
        match servers.transport {
            Transport::Tls if self.tls.is_none() => {
                return Err(wrong(
                    format!("servers: {servers} needs a certificate"),
                    "write [tls] with certificate and key; to try it out, make them: tidewater \
                     cert --out . --host NAME",
                ));
            }
            Transport::Tls => {}
            Transport::Tcp if servers.is_exposed() && !self.insecure => {
                return Err(wrong(
                    format!("servers: {servers} would have tokens sent unencrypted"),
                    "write tls://, or insecure = true if something in front encrypts",
                ));
            }
            Transport::Tcp if self.authority.is_some() => {
                return Err(wrong(
                    "authority: without TLS no server shows a certificate".into(),
                    "write servers = \"tls://...\", or leave authority out",
                ));
            }
            Transport::Tcp => {}
            _ => return Err(wrong(format!("servers: {servers} is not tls://"), hint)),
        }
        let admin = self.admin.as_deref().map(|it| admin(it, self.insecure));
        let mut names = HashMap::new();
        for server in self.server {
            let (name, server) = server.read(self.authority.is_some())?;
            if names.insert(name.clone(), server).is_some() {
                return Err(wrong(
                    format!("two [[server]] are named {name}"),
                    "write one: every server that proves itself for it is one of its farm",
                ));
            }
        }
        if names.is_empty() {
            return Err(wrong(
                "there is no [[server]]".into(),
                "write [[server]] with the name by which devices know it, and tokens",
            ));
        }
        Ok(RelayServiceConfig {
            listen,
            servers,
            admin: admin.transpose()?,
            tls: self.tls,
            authority: self.authority,
            connections: count("connections", self.connections, CONNECTIONS)?,
            lines: count("lines", self.lines, LINES)?,
            names,
            log: self.log,
        })
    }
}

fn count(key: &str, value: Option<usize>, default: usize) -> Result<usize, RelayError> {
    match value.unwrap_or(default) {
        value @ 1..=MOST => Ok(value),
        value => Err(RelayError::configuration(
            format!("{key} is {value}"),
            format!("write a number from 1 to {MOST}"),
        )),
    }
}

fn url(key: &str, text: &str, hint: &str) -> Result<ServerUrl, RelayError> {
    let url = ServerUrl::to_listen(text);
    url.map_err(|error| RelayError::configuration(format!("{key}: {error}"), hint))
}

/// The port of the admin endpoint of a server, too.
const ADMIN_PORT: u16 = 7440;

fn admin(text: &str, insecure: bool) -> Result<String, RelayError> {
    let hint = "write admin = \"http://127.0.0.1:7440\"";
    let mut url = url("admin", text, hint)?;
    if url.transport != Transport::Http {
        let message = format!("admin: {text:?} does not begin with http://");
        return Err(RelayError::configuration(message, hint));
    }
    if !text
        .trim_end_matches('/')
        .ends_with(&format!(":{}", url.port))
    {
        url.port = ADMIN_PORT;
    }
    if url.is_exposed() && !insecure {
        return Err(RelayError::configuration(
            format!("admin: {text} would tell everybody on the network how the relay goes"),
            "listen on 127.0.0.1, or write insecure = true",
        ));
    }
    Ok(url.address())
}

impl RawServer {
    fn read(self, has_authority: bool) -> Result<(String, ServerProofs), RelayError> {
        let wrong = |what: String, hint: &str| RelayError::configuration(what, hint);
        let Some(name) = ServerRegistration::name(&self.name) else {
            return Err(wrong(
                format!("server: {:?} is no host name", self.name),
                "write the name by which devices know the server: name = \"sync.example.com\"",
            ));
        };
        if self.tokens.is_empty() && !has_authority {
            return Err(wrong(
                format!("server {name:?} has no tokens: nobody could prove to be that"),
                "write tokens = [\"sha256:...\"] as tidewater relay token prints it, or authority",
            ));
        }
        let tokens = self.tokens.into_iter().map(|token| {
            let token = token.to_ascii_lowercase();
            let digits = token.strip_prefix("sha256:").unwrap_or_default();
            match digits.len() == 64 && digits.bytes().all(|it| it.is_ascii_hexdigit()) {
                true => Ok(token),
                // It may be a token: it stays out of what is told.
                false => Err(wrong(
                    format!("server {name:?}: one of its tokens is not sha256: and 64 digits"),
                    "write the hash of the token, as tidewater relay token prints it",
                )),
            }
        });
        let tokens = tokens.collect::<Result<_, _>>()?;
        Ok((name, ServerProofs { tokens }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash() -> String {
        format!("sha256:{}", "0a".repeat(32))
    }

    fn plain(more: &str) -> String {
        format!("listen = [\"tls://0.0.0.0:0\"]\nservers = \"tcp://127.0.0.1:0\"\n{more}")
    }

    fn named(name: &str) -> String {
        format!("[[server]]\nname = {name:?}\ntokens = [{:?}]\n", hash())
    }

    #[test]
    fn a_configuration_says_who_may_be_what() {
        let text = plain(&format!(
            "admin = \"http://localhost\"\nlines = 5\n{}",
            named("Sync.Example.COM.")
        ));
        let config = RelayServiceConfig::parse(&text).unwrap();
        assert_eq!(config.admin.as_deref(), Some("localhost:7440"));
        assert_eq!((config.lines, config.connections), (5, CONNECTIONS));
        assert!(config.names["sync.example.com"].tokens.contains(&hash()));
    }

    #[test]
    fn what_cannot_be_is_told_with_what_to_write() {
        let a = named("a");
        for (text, what, hint) in [
            (plain(""), "no [[server]]", "name"),
            (plain(&format!("{a}{a}")), "two [[server]]", "farm"),
            (
                plain("[[server]]\nname = \"a\""),
                "has no tokens",
                "relay token",
            ),
            (
                plain("[[server]]\nname = \"a b\"\n"),
                "no host name",
                "sync.example.com",
            ),
            (
                plain("[[server]]\nname = \"a\"\ntokens = [\"secret\"]"),
                "not sha256:",
                "relay token",
            ),
            (plain(&format!("lines = 0\n{a}")), "lines is 0", "from 1"),
            (
                plain(&format!("line = 1\n{a}")),
                "line 3: unknown field",
                "docs/",
            ),
            (
                plain(&format!("authority = \"x\"\n{a}")),
                "authority",
                "tls://",
            ),
            (
                plain(&format!("admin = \"http://0.0.0.0:1\"\n{a}")),
                "admin",
                "insecure",
            ),
            (
                plain(&format!("admin = \"tls://127.0.0.1\"\n{a}")),
                "admin",
                "http://",
            ),
            (
                plain(&a).replace("tcp://127.0.0.1", "tcp://0.0.0.0"),
                "unencrypted",
                "insecure",
            ),
            (
                plain(&a).replace("tcp://", "tls://"),
                "certificate",
                "tidewater cert",
            ),
            (
                plain(&a).replace("tcp://", "ws://"),
                "is not tls://",
                "servers",
            ),
            (
                plain(&a).replace("tls://0", "tcp://0"),
                "is not tls://",
                "https",
            ),
            (
                plain(&a).replace("\"tls://0.0.0.0:0\"", ""),
                "listen is empty",
                "listen",
            ),
            ("servers = 7".into(), "line 1", "docs/"),
        ] {
            let error = RelayServiceConfig::parse(&text).unwrap_err();
            assert!(error.to_string().contains(what), "{what}: {error}");
            assert!(error.hint().contains(hint), "{hint}: {}", error.hint());
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
