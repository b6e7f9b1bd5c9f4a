//! `[server]` and `[server.tls]`: where and how the server listens, and its database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_carrier::CompressionOptions;
use tidewater_carrier::proxy_header::{IpNetwork, IpNetworkError, IpNetworks};

use super::compression::read_compression;
use super::limits::ServerLimits;
use crate::database_url::DatabaseUrl;
use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// `[server]`.
#[derive(Clone)]
pub struct ServerConfig {
    /// URLs to listen on: `tcp://host:port` or `tls://host:port`.
    pub listen: Vec<String>,
    /// The URL of the admin endpoint: `http://host:port`.
    pub admin: Option<String>,
    /// The URL of the web protocol: `http://host:port` or `https://host:port`.
    pub http: Option<String>,
    /// The URL of the consolidated database.
    pub consolidated: String,
    /// Whether `tcp://` is allowed on addresses other than loopback.
    pub insecure: bool,
    /// The certificate for `tls://`.
    pub tls: Option<TlsConfig>,
    /// How what is sent is packed.
    pub packing: CompressionOptions,
    /// Balancers and web servers in front, whose word counts about whom something comes from.
    pub proxies: IpNetworks,
    /// How long everything goes on at the end while the admin endpoint says that it does not.
    pub drain_delay: Duration,
    /// After so many syncs a remote compares everything with the centre; never if 0.
    pub verify_every: u64,
    /// `[server.limits]`.
    pub limits: ServerLimits,
}

impl ServerConfig {
    /// Makes relative paths start at this folder.
    pub(super) fn start_paths_at(&mut self, folder: &Path) -> Result<(), ConfigError> {
        if let Some(tls) = &mut self.tls {
            tls.certificate = folder.join(&tls.certificate);
            tls.key = folder.join(&tls.key);
        }
        let Some(path) = self.consolidated.strip_prefix("sqlite:") else {
            return Ok(());
        };
        let path = folder.join(path.strip_prefix("//").unwrap_or(path));
        let path = path.to_str().ok_or_else(|| {
            ConfigError::new(
                format!("the folder {} is not UTF-8", folder.display()),
                "give the folder another name, or write an absolute path",
            )
        })?;
        self.consolidated = format!("sqlite:{path}");
        Ok(())
    }
}

/// The consolidated database's URL may hold a password.
impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("listen", &self.listen)
            .field("admin", &self.admin)
            .field("http", &self.http)
            .field("insecure", &self.insecure)
            .field("tls", &self.tls)
            .field("packing", &self.packing)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// `[server.tls]`: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate, followed by those that lead to its issuer.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl ServerConfig {
    pub(super) fn read(mut section: SectionReader) -> Result<ServerConfig, ConfigError> {
        let consolidated = section.text("consolidated")?.ok_or_else(|| {
            ConfigError::new(
                "server.consolidated is missing",
                "write consolidated = \"postgres://user@host:5432/database\" or \"sqlite:path\"",
            )
        })?;
        DatabaseUrl::parse(&consolidated).map_err(|error| {
            ConfigError::new(format!("server.consolidated: {error}"), error.hint())
        })?;
        let tls = section.section("tls")?.map(TlsConfig::read).transpose()?;
        Ok(ServerConfig {
            listen: match section.texts("listen")? {
                none if none.is_empty() => SectionReader::empty("server").texts("listen")?,
                listen => listen,
            },
            admin: section.text("admin")?,
            http: section.text("http")?,
            consolidated,
            insecure: section.flag("insecure")?,
            tls,
            packing: read_compression(&mut section)?,
            proxies: read_proxies(&section.texts("proxies")?)?,
            drain_delay: section.duration("drain_delay")?,
            verify_every: section.optional_number("verify_every")?.unwrap_or(0),
            limits: ServerLimits::read(section.section_or_empty("limits")?)?,
        })
    }
}

impl TlsConfig {
    fn read(mut section: SectionReader) -> Result<TlsConfig, ConfigError> {
        let named = |it: Option<PathBuf>| it.filter(|it| !it.as_os_str().is_empty());
        let certificate = named(section.path("certificate")?);
        let key = named(section.path("key")?);
        let (certificate, key) = certificate.zip(key).ok_or_else(|| {
            ConfigError::new(
                "[server.tls] needs both certificate and key",
                "write certificate = \"FILE.pem\" and key = \"FILE.pem\"",
            )
        })?;
        Ok(TlsConfig { certificate, key })
    }
}

fn read_proxies(texts: &[String]) -> Result<IpNetworks, ConfigError> {
    let read = |text: &String| {
        text.parse::<IpNetwork>().map_err(|error| {
            ConfigError::new(
                format!("server.proxies: {text:?} {error}"),
                match error {
                    IpNetworkError::Beyond { network } => format!("write \"{network}\""),
                    _ => "write addresses and networks, such as \
                          proxies = [\"10.0.0.0/8\", \"127.0.0.1\", \"fd00::/8\"]"
                        .to_owned(),
                },
            )
        })
    };
    texts.iter().map(read).collect()
}
