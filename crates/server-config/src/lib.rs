//! The configuration file: what an operator can say, its defaults, and errors that
//! tell what to write instead. Documented in `docs/configuration.md`.
//!
//! What the settings do is left to the modules that they are handed to.

mod acting;
mod compression;
mod database_url;
mod error;
pub mod grammar;
mod handler;
mod identity;
mod images;
mod limits;
mod lines;
mod listen_urls;
mod live;
mod log;
mod names;
mod partition;
mod procedure;
mod publication;
mod relay;
mod reload;
mod retention;
mod scripts;
mod section_reader;
mod server;
mod sign_in;
mod space;
mod table;
mod text;
mod upstream;
mod wake;
mod web;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidewater_centre::{CentreError, GivenPartitions, PublicationSpec};

pub use self::database_url::DatabaseUrl;
pub use self::error::ConfigError;
use self::handler::HandlerReader;
pub use self::handler::{
    HandlerAddress, HandlerAssignments, HandlerConfig, HandlerEvent, HandlerFormat, HandlerSecret,
    HandlerStandIn, TableAssignment,
};
pub use self::images::{
    ImageConfig, ImageRows, ImagesConfig, NO_IMAGE_HINT, image_obstacle, is_image_name,
    is_image_user,
};
pub use self::limits::ServerLimits;
use self::lines::LineIndex;
pub use self::live::LiveConfig;
pub use self::log::{LogConfig, LogFormat};
use self::names::check_names;
pub use self::names::{BUILT_IN_PREFIX, MAX_NAME_BYTES};
pub use self::procedure::{
    ArgumentConfig, CallPermission, ProcedureConfig, ProcedureProvider, ProcedureWork, SqlSource,
};
pub use self::relay::{RelayConfig, RelayProof};
pub use self::retention::RetentionConfig;
use self::section_reader::SectionReader;
pub use self::server::{ServerConfig, TlsConfig};
pub use self::sign_in::{
    CertificateName, CertificatesConfig, IssuerKeySource, KeptClaim, LdapAccount, LdapConfig,
    LdapEntry, OidcConfig, PasswordSource, SignInConfig, SigningAlgorithm, USER_PLACEHOLDER,
};
pub use self::space::{SpaceConfig, SubjectRule};
pub use self::text::parse_duration;
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
    pub handling: HandlerAssignments,
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
    lines: LineIndex,
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
        grammar::check::check_text(text)?;
        let parsed: Result<toml::Table, _> = text.parse();
        let mut table = parsed.map_err(|error| grammar::check::not_toml(text, &error))?;
        text::expand_table(&mut table, "", variable)?;
        let lines = LineIndex::from_text(text);
        let mut config =
            Config::read(SectionReader::new("", table)).map_err(|error| match error {
                ConfigError::Invalid { message, hint } => ConfigError::Invalid {
                    message: lines.locate(message),
                    hint,
                },
                other => other,
            })?;
        config.lines = lines;
        Ok(config)
    }

    /// Makes a configuration of a text whose keys are known and whose variables are expanded.
    ///
    /// # Errors
    /// Something is out of range, or must be said and is not.
    fn read(mut root: SectionReader) -> Result<Config, ConfigError> {
        let server = root.section("server")?.ok_or_else(|| {
            ConfigError::new(
                "[server] is missing",
                "write [server] with listen and consolidated",
            )
        })?;
        let server = ServerConfig::read(server)?;
        let insecure = server.insecure;
        let mut handlers = HandlerReader::read(root.sections("handler")?, insecure)?;
        let publications = root.sections("publication")?.into_iter().enumerate();
        let publications: Vec<PublicationSpec> = publications
            .map(|(index, section)| publication::read(section, index, &mut handlers))
            .collect::<Result<_, _>>()?;
        check_names("publication", publications.iter().map(|it| &it.name))?;
        let procedures = root.sections("procedure")?.into_iter().enumerate();
        let procedures: Vec<ProcedureConfig> = procedures
            .map(|(index, section)| ProcedureConfig::read(section, index))
            .collect::<Result<_, _>>()?;
        check_names("procedure", procedures.iter().map(|it| &it.name))?;
        let names: Vec<&str> = publications.iter().map(|it| &*it.name).collect();
        let wakes = root.sections("wake")?.into_iter();
        let wakes = wakes.map(|section| WakeConfig::read(section, insecure, &names));
        let wakes = wakes.collect::<Result<_, _>>()?;
        let images = root.section("images")?;
        let images = images.map(|section| ImagesConfig::read(section, &names));
        let images = images.transpose()?;
        let relay = root.section("relay")?;
        let relay = relay.map(|section| RelayConfig::read(section, &server));
        let relay = relay.transpose()?;
        let upstream = root.section("upstream")?;
        let upstream = upstream.map(|section| UpstreamConfig::read(section, &server));
        let upstream = upstream.transpose()?;
        let sign_in = root.section_or_empty("sign_in")?;
        let sign_in = SignInConfig::read(sign_in, insecure, &mut handlers)?;
        handlers.check(&procedures)?;
        Ok(Config {
            scripts: root.path("scripts")?,
            retention: RetentionConfig::read(root.section_or_empty("retention")?)?,
            log: LogConfig::read(root.section_or_empty("log")?)?,
            spaces: space::read(root.sections("space")?)?,
            live: LiveConfig::read(root.section_or_empty("live")?)?,
            handlers: handlers.all,
            handling: handlers.handling,
            wakes,
            sign_in,
            upstream,
            images,
            given: None,
            only: None,
            server,
            publications,
            procedures,
            relay,
            lines: LineIndex::default(),
        })
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
