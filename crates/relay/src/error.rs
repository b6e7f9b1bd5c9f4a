//! Why a relay cannot start.

use std::io;
use std::path::PathBuf;

/// Why a relay cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The configuration is wrong.
    #[error("{message}")]
    Configuration {
        /// What is wrong, and where.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {url}: {source}")]
    Listen {
        /// The URL of the configuration.
        url: String,
        /// What the system says.
        source: io::Error,
    },
}

impl RelayError {
    pub(crate) fn configuration(message: impl Into<String>, hint: impl Into<String>) -> Self {
        RelayError::Configuration {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// What to do next, for people.
    pub fn hint(&self) -> String {
        match self {
            RelayError::Configuration { hint, .. } => hint.clone(),
            RelayError::File { .. } => "check the path and its permissions".into(),
            RelayError::Listen { .. } => {
                "check that no other program uses the port and that the address is this machine's"
                    .into()
            }
        }
    }
}
