//! `[upstream]`: the headquarters of a branch.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_carrier::{CompressionOptions, Pin, ServerUrl, ServerUrls};

use super::compression::read_compression;
use super::{ServerConfig, text};
use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// The least time between two syncs.
const SOONEST: Duration = Duration::from_secs(1);

/// `[upstream]`.
#[derive(Clone, PartialEq)]
pub struct UpstreamConfig {
    /// Where headquarters is.
    pub server: ServerUrls,
    /// As whom the branch signs in; empty if its proof says that.
    pub user: String,
    /// How it proves that, until it has a credential of its own.
    pub proof: Option<UpstreamProof>,
    /// What it subscribes to.
    pub publications: Vec<String>,
    /// When it syncs.
    pub every: UpstreamPace,
    /// The authorities to trust.
    pub ca: Option<PathBuf>,
    /// The key of headquarters' server.
    pub pin: Option<Pin>,
    /// The HTTP proxy to go through, or `none`.
    pub proxy: Option<String>,
    /// How what is sent is packed.
    pub packing: CompressionOptions,
    /// Whether what is not encrypted may leave the machine.
    pub insecure: bool,
}

/// How a branch proves who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum UpstreamProof {
    /// By a password.
    Password(String),
    /// By the password in a file.
    PasswordFile(PathBuf),
    /// By the token of an identity provider that is in a file.
    TokenFile(PathBuf),
    /// By a client certificate, and its key.
    Certificate(PathBuf, PathBuf),
}

/// When a branch syncs with headquarters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamPace {
    /// So often.
    Every(Duration),
    /// Whenever something has changed: it stays connected.
    Live,
}

/// A password is not for logs.
impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("server", &self.server)
            .field("user", &self.user)
            .field("publications", &self.publications)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl UpstreamConfig {
    /// Makes relative paths start at this folder.
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        let proof = self.proof.as_mut();
        let files: Vec<&mut PathBuf> = match proof {
            Some(UpstreamProof::PasswordFile(file) | UpstreamProof::TokenFile(file)) => vec![file],
            Some(UpstreamProof::Certificate(certificate, key)) => vec![certificate, key],
            Some(UpstreamProof::Password(_)) | None => Vec::new(),
        };
        for file in files.into_iter().chain(&mut self.ca) {
            *file = folder.join(&*file);
        }
    }
}

impl UpstreamConfig {
    pub(super) fn read(
        mut section: SectionReader,
        own: &ServerConfig,
    ) -> Result<UpstreamConfig, ConfigError> {
        if !own.consolidated.starts_with("sqlite:") {
            return Err(ConfigError::new(
                "[upstream] needs an SQLite file, and server.consolidated is another database",
                "write consolidated = \"sqlite:branch.db\": the file is a remote of headquarters and \
                 the centre of this branch's devices; or leave [upstream] out",
            ));
        }
        let insecure = section.flag("insecure")?;
        let server = read_server(section.text("server")?, own)?;
        if let Some(exposed) = server.exposed().filter(|_| !insecure) {
            return Err(ConfigError::new(
                format!("upstream.server: {exposed} would send everything unencrypted"),
                "use tls://, wss:// or https://, or write insecure = true under [upstream]",
            ));
        }
        let publications = section.texts("publications")?;
        if publications.is_empty() || publications.iter().any(String::is_empty) {
            return Err(ConfigError::new(
                "[upstream] does not say what the branch holds",
                "write publications = [\"NAME\"], publications of headquarters",
            ));
        }
        let certificate = match (section.path("certificate")?, section.path("key")?) {
            (Some(certificate), Some(key)) => Some(UpstreamProof::Certificate(certificate, key)),
            (None, None) => None,
            _ => {
                return Err(ConfigError::new(
                    "[upstream] needs both certificate and key, or neither",
                    "write certificate = \"FILE.pem\" and key = \"FILE.pem\"",
                ));
            }
        };
        let proofs = [
            section.text("password")?.map(UpstreamProof::Password),
            section
                .path("password_file")?
                .map(UpstreamProof::PasswordFile),
            section.path("token_file")?.map(UpstreamProof::TokenFile),
            certificate,
        ];
        let mut proofs = proofs.into_iter().flatten();
        let proof = proofs.next();
        if proofs.next().is_some() {
            return Err(ConfigError::new(
                "[upstream] says in more than one way how the branch signs in",
                "write one of password, password_file, token_file, and certificate with key",
            ));
        }
        let user = section.text("user")?.unwrap_or_default();
        let tells_user = matches!(
            proof,
            Some(UpstreamProof::TokenFile(_) | UpstreamProof::Certificate(..))
        );
        if user.is_empty() && !tells_user {
            return Err(ConfigError::new(
                "upstream.user is missing",
                "write user = \"NAME\", as whom this branch signs in at headquarters",
            ));
        }
        Ok(UpstreamConfig {
            server,
            user,
            proof,
            publications,
            every: read_pace(&section.text("every")?.unwrap_or_default())?,
            ca: section.path("ca")?,
            pin: read_pin(section.text("pin")?)?,
            proxy: section.text("proxy")?,
            packing: read_compression(&mut section)?,
            insecure,
        })
    }
}

/// Not one of the addresses at which this server listens: more is found out when it signs in.
fn read_server(server: Option<String>, own: &ServerConfig) -> Result<ServerUrls, ConfigError> {
    let example = "write server = \"tls://headquarters.example.com:7439\"";
    let server =
        server.ok_or_else(|| ConfigError::new("upstream.server is missing", example.to_owned()))?;
    let urls: ServerUrls = server.parse().map_err(|error| {
        ConfigError::new(format!("upstream.server: {server:?}: {error}"), example)
    })?;
    let listen = own
        .listen
        .iter()
        .filter_map(|it| it.parse::<ServerUrl>().ok());
    let listen: Vec<String> = listen.map(|it| it.address()).collect();
    let mut own = urls
        .urls()
        .iter()
        .filter(|url| listen.contains(&url.address()));
    match own.next() {
        None => Ok(urls),
        Some(url) => Err(ConfigError::new(
            format!("upstream.server: {url} is this server itself"),
            "write the address of the server above it",
        )),
    }
}

fn read_pace(every: &str) -> Result<UpstreamPace, ConfigError> {
    match every.trim() {
        "live" => Ok(UpstreamPace::Live),
        span => match text::parse_duration(span).filter(|it| *it >= SOONEST) {
            Some(span) => Ok(UpstreamPace::Every(span)),
            None => Err(ConfigError::new(
                format!("upstream.every is {span:?}"),
                "write every = \"30s\", with at least a second, or every = \"live\"",
            )),
        },
    }
}

fn read_pin(text: Option<String>) -> Result<Option<Pin>, ConfigError> {
    let Some(text) = text else {
        return Ok(None);
    };
    match text.parse() {
        Ok(pin) => Ok(Some(pin)),
        Err(_) => Err(ConfigError::new(
            format!("upstream.pin: {text:?} is no pin"),
            "write pin = \"sha256/BASE64\", as tidewater cert prints it",
        )),
    }
}
