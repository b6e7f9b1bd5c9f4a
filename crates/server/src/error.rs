//! What can go wrong when a server is configured and started. What can go wrong in
//! a sync is [`crate::fault`]'s affair.

use tidewater_centre::CentreError;
use tidewater_protocol::Code;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration is wrong.
    #[error("{message}")]
    Configuration {
        /// What is wrong, and where.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// A file cannot be read or written.
    #[error("{what} {path:?}: {source}")]
    File {
        /// What the file is.
        what: &'static str,
        /// Its path.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
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
    pub(crate) fn configuration(message: impl Into<String>, hint: impl Into<String>) -> Self {
        ServerError::Configuration {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The error's stable code.
    pub fn code(&self) -> Code {
        match self {
            ServerError::Configuration { .. } | ServerError::File { .. } => Code::Usage,
            ServerError::Listen { .. } => Code::Usage,
            ServerError::Centre(error) => error.code(),
        }
    }

    /// What to do next, for people.
    pub fn hint(&self) -> String {
        match self {
            ServerError::Configuration { hint, .. } => hint.clone(),
            ServerError::File { .. } => "check the path and its permissions".into(),
            ServerError::Listen { .. } => {
                "check that no other program uses the port and that the address is this machine's"
                    .into()
            }
            ServerError::Centre(error) => error.hint(),
        }
    }
}
