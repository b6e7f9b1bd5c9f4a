//! `[live]`: what servers have in common that are live.

use std::fmt;

use tidewater_carrier::ServerUrl;

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

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

impl LiveConfig {
    pub(super) fn read(mut section: SectionReader) -> Result<LiveConfig, ConfigError> {
        let servers = section.texts("servers")?;
        let servers = servers.iter().map(|server| {
            let url = server.parse::<ServerUrl>().map_err(|error| {
                ConfigError::new(
                    format!("live.servers: {server:?}: {error}"),
                    "write the addresses at which remotes reach the servers, such as \
                     servers = [\"tls://one.example.com:7439\", \"tls://two.example.com:7439\"]",
                )
            })?;
            Ok(url.to_string())
        });
        Ok(LiveConfig {
            servers: servers.collect::<Result<_, ConfigError>>()?,
            nats: section.text("nats")?,
        })
    }
}
