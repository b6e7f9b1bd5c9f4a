//! The configuration file: what an operator can say, its defaults, and errors that
//! tell what to write instead. Documented in `docs/configuration.md`.
//!
//! What the settings do is left to the modules that they are handed to.

mod acting;
mod database_url;
mod error;
mod handler;
mod identity;
mod images;
mod keys;
mod kinds;
mod lines;
mod listen_urls;
mod names;
mod partition;
mod procedure;
mod publication;
mod raw;
mod relay;
mod scripts;
mod sign_in;
mod space;
mod text;
mod upstream;
mod value;
mod wake;
mod web;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidewater_carrier::CompressionOptions;
use tidewater_carrier::proxy_header::IpNetworks;
use tidewater_centre::records::RetentionTimes;
use tidewater_centre::{CentreError, GivenPartitions, MarkFrequency, PublicationSpec};
use tidewater_protocol::frame::DEFAULT_MESSAGE_BYTES;

pub use self::database_url::DatabaseUrl;
pub use self::error::ConfigError;
pub use self::handler::{
    HandlerAddress, HandlerConfig, HandlerEvent, HandlerFormat, HandlerStandIn, Handling, Secret,
    TableHandling,
};
pub use self::images::{
    ImageConfig, ImageRows, ImagesConfig, NO_IMAGE_HINT, image_obstacle, is_image_name,
    is_of_images,
};
use self::lines::Lines;
pub use self::names::{BUILT_IN_PREFIX, MAX_NAME_BYTES};
pub use self::procedure::{Allow, ArgumentConfig, ProcedureConfig, Provision, Sql, Work};
pub use self::relay::{RelayConfig, RelayProof};
pub use self::sign_in::{
    Algorithm, CertificateName, CertificatesConfig, KeptClaim, KeySource, LdapAccount, LdapConfig,
    LdapEntry, OidcConfig, Passwords, SignInConfig, USER,
};
pub use self::space::{Rule, SpaceConfig};
pub use self::text::duration;
pub use self::upstream::{UpstreamConfig, UpstreamPace, UpstreamProof};
pub use self::wake::WakeConfig;
pub use self::web::WebAddress;

/// Everything that a configuration file says.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of scripts, if it is said; `scripts` otherwise, if that is there.
    pub scripts: Option<PathBuf>,
    /// Where and how the server listens, and its database.
    pub server: ServerConfig,
    /// How long things are kept.
    pub retention: RetentionConfig,
    /// How the server logs.
    pub log: LogConfig,
    /// What remotes may subscribe to.
    pub publications: Vec<PublicationSpec>,
    /// What can be called.
    pub procedures: Vec<ProcedureConfig>,
    /// Where events are published and subscribed to.
    pub spaces: Vec<SpaceConfig>,
    /// What servers have in common that are live.
    pub live: LiveConfig,
    /// Who may say who a user is.
    pub sign_in: SignInConfig,
    /// Where is told who has something to fetch and is not connected.
    pub wakes: Vec<WakeConfig>,
    /// Programs that are asked at events of syncs.
    pub handlers: Vec<HandlerConfig>,
    /// What they are asked.
    pub handling: Handling,
    /// The relays through which devices come.
    pub relay: Option<RelayConfig>,
    /// The headquarters of which the database is a branch's.
    pub upstream: Option<UpstreamConfig>,
    /// The files from which new remotes begin.
    pub images: Option<ImagesConfig>,
    /// No file says this: what everybody holds of a server that is there to make an image.
    pub given: Option<Arc<GivenPartitions>>,
    /// Nor this: the user to whose remotes a server speaks that is there to make an image.
    pub only: Option<String>,
    lines: Lines,
}

/// `[live]`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LiveConfig {
    /// The URL of NATS, over which servers and other programs pass events on.
    pub nats: Option<String>,
    /// Where live remotes go when this server shuts down.
    pub servers: Vec<String>,
}

/// A URL may hold a password.
impl fmt::Debug for LiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveConfig").finish_non_exhaustive()
    }
}

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
    pub limits: Limits,
}

impl ServerConfig {
    /// Makes relative paths start at this folder.
    fn start_paths_at(&mut self, folder: &Path) -> Result<(), ConfigError> {
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

/// `[server.limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time.
    pub connections: usize,
    /// Syncs that wait for a worker before new ones are told to come back later.
    pub backlog: usize,
    /// Memory for rows on their way; what does not fit goes to temporary files.
    pub memory_bytes: u64,
    /// Database connections that look up who signs in.
    pub session_workers: usize,
    /// Database connections that apply uploads; `None`: as many as get the most done.
    pub upload_workers: Option<usize>,
    /// Database connections that read downloads; `None`: as many as get the most done.
    pub download_workers: Option<usize>,
    /// Database connections that run calls; `None`: as many as get the most done.
    pub call_workers: Option<usize>,
    /// Between how many of each of these is tried, where no number is fixed.
    pub tried_workers: RangeInclusive<usize>,
    /// Packed bytes of the uploads of one sync.
    pub upload_bytes: u64,
    /// Rows of the uploads of one sync.
    pub upload_rows: u64,
    /// Packed bytes of one uploaded row.
    pub row_bytes: usize,
    /// Bytes of one call, of one answer in one piece, and of one event.
    pub message_bytes: usize,
    /// Bytes of the rows of one answer, which come in pieces.
    pub answer_bytes: usize,
    /// The same of one that is sent while it is read.
    pub answer_stream_bytes: u64,
    /// Publications in one sync.
    pub subscriptions: usize,
    /// Passwords that are checked at the same time (19 MiB and some ten milliseconds
    /// of a core each).
    pub password_checks: usize,
    /// From the accepted connection to the complete SignIn.
    pub handshake: Duration,
    /// Silence of a remote that has to say something, takes nothing, or does not sync.
    pub idle: Duration,
    /// One whole sync.
    pub sync: Duration,
    /// What running syncs are given at shutdown.
    pub shutdown: Duration,
    /// How often a waiting remote hears that the server is there.
    pub waiting: Duration,
    /// How often a first download can be gone on with, should it break.
    pub marks: MarkFrequency,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 10_000,
            backlog: 5_000,
            memory_bytes: 256 << 20,
            session_workers: 2,
            upload_workers: None,
            download_workers: None,
            call_workers: None,
            tried_workers: 1..=16,
            upload_bytes: 4 << 30,
            upload_rows: 50_000_000,
            row_bytes: 80 << 20,
            message_bytes: DEFAULT_MESSAGE_BYTES,
            answer_bytes: 16 << 20,
            answer_stream_bytes: 1 << 30,
            subscriptions: 64,
            password_checks: half_of_the_cores(),
            handshake: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            sync: Duration::from_secs(3_600),
            shutdown: Duration::from_secs(30),
            waiting: Duration::from_secs(5),
            marks: MarkFrequency::default(),
        }
    }
}

/// Sign-ins must leave room for running syncs.
fn half_of_the_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// `[retention]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// How long things are kept.
    pub keep: RetentionTimes,
    /// How often what is older is dropped.
    pub interval: Duration,
}

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

impl Default for RetentionConfig {
    fn default() -> Self {
        RetentionConfig {
            keep: RetentionTimes {
                log_ms: 60 * DAY_MS,
                history_ms: 14 * DAY_MS,
                conflicts_ms: 180 * DAY_MS,
            },
            interval: Duration::from_secs(3_600),
        }
    }
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How lines are written.
    pub format: LogFormat,
    /// What is logged: a level, or directives such as `info,tidewater_server=debug`.
    pub level: String,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads a configuration file. Relative paths in it start at its folder, wherever
    /// the program runs.
    ///
    /// # Errors
    /// The file cannot be read, or says something that cannot be.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::File {
            what: "configuration",
            path: path.display().to_string(),
            source,
        })?;
        let mut config = Config::parse(&text).map_err(|error| match error {
            ConfigError::Invalid { message, hint } => ConfigError::Invalid {
                message: format!("{}: {message}", path.display()),
                hint,
            },
            other => other,
        })?;
        if let Some(folder) = path.parent() {
            config.server.start_paths_at(folder)?;
            for ca in config.wakes.iter_mut().filter_map(|it| it.ca.as_mut()) {
                *ca = folder.join(&*ca);
            }
            config.sign_in.start_paths_at(folder);
            if let Some(relay) = &mut config.relay {
                relay.start_paths_at(folder);
            }
            if let Some(upstream) = &mut config.upstream {
                upstream.start_paths_at(folder);
            }
            if let Some(images) = &mut config.images {
                images.folder = folder.join(&images.folder);
            }
            for handler in &mut config.handlers {
                handler.start_paths_at(folder);
            }
            for procedure in &mut config.procedures {
                procedure.load(folder)?;
            }
            scripts::read(folder, config.scripts.as_deref(), &mut config.publications)?;
            scripts::check_passwords(&config)?;
        }
        Ok(config)
    }

    /// Checks the addresses to listen on, as starting a server does.
    ///
    /// # Errors
    /// One of them is none, or is not allowed.
    pub fn check_listen(&self) -> Result<(), ConfigError> {
        self.server.listen_urls()?;
        self.server.http_url()?;
        self.server.admin_url().map(|_| ())
    }

    /// Where the admin endpoint is, `host:port`, if there is one.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn admin_address(&self) -> Result<Option<String>, ConfigError> {
        Ok(self.server.admin_url()?.map(|url| url.address()))
    }

    /// Reads a configuration. Environment variables that it names are taken from
    /// this process.
    ///
    /// # Errors
    /// It says something that cannot be; the message names the key and the place.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse_with(text, &|name| std::env::var(name).ok())
    }

    /// Reads a configuration, with environment variables from a function.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_with(
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        keys::check(text)?;
        let table: toml::Table = text.parse().map_err(|error| keys::not_toml(text, &error))?;
        let mut value = toml::Value::Table(table);
        text::expand(&mut value, "", variable)?;
        let lines = Lines::of(text);
        let mut config = raw::read(value).map_err(|error| match error {
            ConfigError::Invalid { message, hint } => ConfigError::Invalid {
                message: lines.locate(message),
                hint,
            },
            other => other,
        })?;
        config.lines = lines;
        Ok(config)
    }

    /// What the database says of a publication or one of its tables, with the line where the
    /// configuration names that.
    pub fn locate(&self, message: String) -> String {
        self.lines.locate(message)
    }

    /// The same for an error.
    pub fn locate_error(&self, error: CentreError) -> CentreError {
        match error {
            CentreError::Configuration { message, hint } => CentreError::Configuration {
                message: self.locate(message),
                hint,
            },
            other => other,
        }
    }
}
