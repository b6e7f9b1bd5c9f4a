//! What can be wrong with a configuration.

use std::io;

use tidewater_protocol::Code;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration says something that cannot be.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and where.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// A file that the configuration names, or the configuration itself, cannot be read or
    /// written.
    #[error("{what} {path:?}: {source}")]
    File {
        /// What the file is.
        what: &'static str,
        /// Its path.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

impl ConfigError {
    /// An error with what to write instead.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The error's stable code.
    pub fn code(&self) -> Code {
        Code::Usage
    }

    /// What to do next, for people.
    pub fn hint(&self) -> String {
        match self {
            ConfigError::Invalid { hint, .. } => hint.clone(),
            ConfigError::File { .. } => "check the path and its permissions".into(),
        }
    }
}
