//! What can go wrong when a server is configured and started. What can go wrong in
//! a sync is [`crate::fault`]'s affair.

use tidewater_centre::CentreError;
use tidewater_protocol::Code;

use tidewater_server_config::ConfigError;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration is wrong, or a file that it names cannot be read or written.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error("cannot listen on {url}: {source}")]
    Listen {
        /// The URL of the configuration.
        url: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The consolidated database is not as it must be.
    #[error(transparent)]
    Centre(#[from] CentreError),
}

impl ServerError {
    /// The configuration is wrong: what, and what to write instead.
    pub fn configuration(message: impl Into<String>, hint: impl Into<String>) -> Self {
        ConfigError::new(message, hint).into()
    }

    /// The error's stable code.
    pub fn code(&self) -> Code {
        match self {
            ServerError::Configuration(error) => error.code(),
            ServerError::Listen { .. } => Code::Usage,
            ServerError::Centre(error) => error.code(),
        }
    }

    /// What to do next, for people.
    pub fn hint(&self) -> String {
        match self {
            ServerError::Configuration(error) => error.hint(),
            ServerError::Listen { .. } => {
                "check that no other program uses the port and that the address is this machine's"
                    .into()
            }
            ServerError::Centre(error) => error.hint(),
        }
    }
}
