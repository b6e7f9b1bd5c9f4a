//! `[[wake]]`: where to tell who is not connected and has something to fetch, as it is configured.

use std::fmt;
use std::path::PathBuf;

use super::web::WebAddress;
use crate::error::ConfigError;
use crate::section_reader::{SectionReader, unknown_word};

/// An address of the operator's.
#[derive(Clone, PartialEq, Eq)]
pub struct WakeConfig {
    /// Where it is.
    pub address: WebAddress,
    /// What it is told to let us in.
    pub token: Option<String>,
    /// A PEM file with the authorities to trust, instead of public ones.
    pub ca: Option<PathBuf>,
    /// Only what concerns these; `None`: all.
    pub publications: Option<Vec<String>>,
}

/// The token is a secret.
impl fmt::Debug for WakeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeConfig")
            .field("url", &self.address.url)
            .finish_non_exhaustive()
    }
}

impl WakeConfig {
    pub(super) fn read(
        mut section: SectionReader,
        insecure: bool,
        published: &[&str],
    ) -> Result<WakeConfig, ConfigError> {
        let url = section.text("url")?.unwrap_or_default();
        let address = WebAddress::read(&url, insecure)
            .map_err(|(what, hint)| ConfigError::new(format!("wake.url {url:?} {what}"), hint))?;
        let is_plain = |it: &String| it.chars().all(|it| it.is_ascii_graphic());
        let token = section.text("token")?;
        if token.as_ref().is_some_and(|it| !is_plain(it)) {
            return Err(ConfigError::new(
                "wake.token has characters that cannot be in a header",
                "write what the address expects behind Authorization: Bearer",
            ));
        }
        let publications = section.optional_texts("publications")?;
        let mut named = publications.iter().flatten();
        let unknown = named.find(|it| !published.contains(&it.as_str()));
        // A configuration without publications is of a server that serves what others deploy.
        if let Some(unknown) = unknown.filter(|_| !published.is_empty()) {
            return Err(unknown_word("wake.publications", unknown, published));
        }
        Ok(WakeConfig {
            address,
            token,
            ca: section.path("ca")?,
            publications,
        })
    }
}
