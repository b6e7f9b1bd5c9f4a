//! The relays that a server dials, as they are configured.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use tidewater_carrier::listen::{RelayToken, ServerRegistration};
use tidewater_carrier::{ClientCertificate, Pin, ServerUrl, Transport};

use super::ServerConfig;
use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// `[relay]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Where the relays wait for servers.
    pub connect: Vec<ServerUrl>,
    /// The host name by which devices know this server.
    pub name: String,
    /// How this server proves that.
    pub proof: RelayProof,
    /// The authorities that say who a relay is, instead of those that browsers trust.
    pub ca: Option<PathBuf>,
    /// The key of the relays, in place of authorities.
    pub pin: Option<Pin>,
    /// Idle lines at each relay.
    pub lines: usize,
}

/// How a server proves to a relay who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum RelayProof {
    /// By what only the two know.
    Token(RelayToken),
    /// The same, in a file.
    TokenFile(PathBuf),
    /// By a certificate that has the name.
    Certificate(ClientCertificate),
}

/// The token stays out of logs.
impl fmt::Debug for RelayProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayProof")
    }
}

impl RelayProof {
    /// The token, if there is one, as its file is now.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub fn token(&self) -> Result<Option<RelayToken>, ConfigError> {
        match self {
            RelayProof::Token(token) => Ok(Some(token.clone())),
            RelayProof::Certificate(_) => Ok(None),
            RelayProof::TokenFile(file) => {
                let text = fs::read_to_string(file).map_err(|source| ConfigError::File {
                    what: "relay.token_file",
                    path: file.display().to_string(),
                    source,
                })?;
                token(text.trim(), "relay.token_file").map(Some)
            }
        }
    }
}

/// The port at which relays wait for servers, where a URL names none.
const PORT: u16 = 7444;

impl RelayConfig {
    pub(super) fn read(
        mut section: SectionReader,
        server: &ServerConfig,
    ) -> Result<RelayConfig, ConfigError> {
        let wrong = |what: String, hint: &str| Err(ConfigError::new(what, hint));
        let hint = "write connect = [\"tls://relay.example.com:7444\"]";
        let connect = section.texts("connect")?;
        if connect.is_empty() {
            return wrong("relay.connect names no relay".into(), hint);
        }
        if server.tls.is_none() {
            return wrong(
                "[relay] needs a certificate: TLS of devices ends at this server".into(),
                "write [server.tls] with the certificate and key of relay.name",
            );
        }
        let connect = connect.iter().map(|text| url(text, server.insecure));
        let connect = connect.collect::<Result<_, _>>()?;
        let Some(name) = section
            .text("name")?
            .as_deref()
            .and_then(ServerRegistration::name)
        else {
            return wrong(
                "relay.name is no host name".into(),
                "write the name by which devices know this server: name = \"sync.example.com\"",
            );
        };
        let proof = match (
            section.text("token")?,
            section.path("token_file")?,
            section.path("certificate")?,
            section.path("key")?,
        ) {
            (Some(text), None, None, None) => RelayProof::Token(token(&text, "relay.token")?),
            (None, Some(file), None, None) => RelayProof::TokenFile(file),
            (None, None, Some(certificate), Some(key)) => {
                RelayProof::Certificate(ClientCertificate { certificate, key })
            }
            _ => {
                return wrong(
                    "relay: it has to be one of token, token_file, and certificate with key".into(),
                    "write token_file = \"FILE\" with what tidewater relay token prints",
                );
            }
        };
        let pin = section.text("pin")?;
        let pin = pin.as_deref().map(str::parse::<Pin>).transpose();
        let pin = pin.map_err(|error| {
            ConfigError::new(
                format!("relay.pin: {error}"),
                "write pin = \"sha256/...\", or ca = \"FILE.pem\" instead",
            )
        })?;
        Ok(RelayConfig {
            connect,
            name,
            proof,
            ca: section.path("ca")?,
            pin,
            lines: section.count("lines")?,
        })
    }
}

fn token(text: &str, key: &str) -> Result<RelayToken, ConfigError> {
    text.parse().map_err(|()| {
        ConfigError::new(
            format!("{key} holds no token"),
            "write what tidewater relay token prints: 8 to 512 visible characters",
        )
    })
}

fn url(text: &str, insecure: bool) -> Result<ServerUrl, ConfigError> {
    let wrong = |what: String, hint: &str| ConfigError::new(what, hint);
    let hint = "write connect = [\"tls://relay.example.com:7444\"]";
    let url: Result<ServerUrl, _> = text.parse();
    let mut url = url.map_err(|error| wrong(format!("relay.connect: {error}"), hint))?;
    if !matches!(url.transport, Transport::Tls | Transport::Tcp) {
        return Err(wrong(format!("relay.connect: {url} is not tls://"), hint));
    }
    if url.is_exposed() && !insecure {
        return Err(wrong(
            format!("relay.connect: {url} would send the token unencrypted"),
            "write tls://, or insecure = true under [server]",
        ));
    }
    let after = text.split_once("://").map_or(text, |(_, rest)| rest);
    if !crate::listen_urls::names_port(after, &url) {
        url.port = PORT;
    }
    Ok(url)
}

impl RelayConfig {
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        if let Some(ca) = &mut self.ca {
            *ca = folder.join(&*ca);
        }
        match &mut self.proof {
            RelayProof::Token(_) => {}
            RelayProof::TokenFile(file) => *file = folder.join(&*file),
            RelayProof::Certificate(own) => {
                own.certificate = folder.join(&own.certificate);
                own.key = folder.join(&own.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const TLS: &str = "[server]\nconsolidated = \"sqlite:x\"\n[server.tls]\ncertificate = \"c\"\n\
                       key = \"k\"\n";

    fn relay(text: &str) -> Result<RelayConfig, ConfigError> {
        let config = Config::parse(&format!("{TLS}[relay]\n{text}"))?;
        Ok(config.relay.unwrap())
    }

    const WHERE: &str = "connect = [\"relay.example.com\"]\nname = \"Sync.example.com\"\n";

    #[test]
    fn a_server_says_where_relays_are_and_who_it_is() {
        let relay = relay(&format!("{WHERE}token = \"abcdefgh\"")).unwrap();
        let urls: Vec<String> = relay.connect.iter().map(ToString::to_string).collect();
        assert_eq!(urls, ["tls://relay.example.com:7444"]);
        assert_eq!(relay.name, "sync.example.com");
        assert_eq!(relay.lines, 4);
        assert!(relay.proof.token().unwrap().is_some());
        assert!(!format!("{relay:?}").contains("abcdefgh"));
    }

    #[test]
    fn what_cannot_be_is_told_with_what_to_write() {
        let token = "token = \"abcdefgh\"\n";
        for (text, what, hint) in [
            (
                format!("name = \"a\"\n{token}"),
                "names no relay",
                "connect",
            ),
            (WHERE.into(), "one of token", "token_file"),
            (
                format!("{WHERE}{token}token_file = \"x\""),
                "one of token",
                "relay token",
            ),
            (
                format!("{WHERE}certificate = \"x\""),
                "one of token",
                "token_file",
            ),
            (
                format!("{WHERE}token = \"short\""),
                "relay.token",
                "relay token",
            ),
            (
                format!("{WHERE}{token}lines = 0"),
                "relay.lines is 0",
                "1 to 256",
            ),
            (format!("{WHERE}{token}pin = \"x\""), "relay.pin", "ca ="),
            (
                format!("{WHERE}{token}").replace("Sync.", "/"),
                "no host name",
                "name =",
            ),
            (
                format!("{WHERE}{token}").replace("\"relay.", "\"tcp://relay."),
                "unencrypted",
                "insecure",
            ),
            (
                format!("{WHERE}{token}").replace("\"relay.", "\"wss://relay."),
                "is not tls://",
                "connect",
            ),
        ] {
            let error = relay(&text).unwrap_err();
            assert!(error.to_string().contains(what), "{what}: {error}");
            assert!(error.hint().contains(hint), "{hint}: {}", error.hint());
        }
        let text = format!("[server]\nconsolidated = \"sqlite:x\"\n[relay]\n{WHERE}{token}");
        let error = Config::parse(&text).unwrap_err();
        assert!(error.hint().contains("[server.tls]"), "{error}");
    }
}
