//! The programs' one error: a stable code, what is wrong, and what to do next.
//!
//! Owns the exit codes too, because they follow from the code. How errors are printed
//! is [`crate::output`]'s affair.

use std::io;
use std::path::Path;

use tidewater_centre::CentreError;
use tidewater_client::{CallError, ClientError, DeviceError, RemoteError};
use tidewater_protocol::Code;
use tidewater_server::{ConfigError, ServerError};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    /// The stable code; its name stands in JSON, and the exit code follows from it.
    pub code: Code,
    /// What is wrong, and where.
    pub message: String,
    /// What to do next; empty if there is nothing to say.
    pub hint: String,
    /// When to try again, if the server said so.
    pub retry_after_ms: Option<u64>,
    /// Whether it is a server that says so: what its operator has to put right is for a
    /// device to try again later.
    pub of_server: bool,
}

impl Failure {
    /// An error with what to do next.
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
            hint: hint.into(),
            retry_after_ms: None,
            of_server: false,
        }
    }

    /// Wrong usage or configuration.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, message, hint)
    }

    /// A file or folder that the user named cannot be read or written.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            _ => "",
        };
        Failure::usage(
            format!("cannot {doing} {}: {}", path.display(), describe(error)),
            hint,
        )
    }

    /// The program cannot begin with what it was asked for: the system does not let it.
    pub fn start(error: &io::Error) -> Failure {
        let message = format!("cannot start: {}", describe(error));
        Failure::new(Code::Internal, message, "")
    }

    /// The process's exit code, as `--help` lists them.
    pub fn exit_code(&self) -> u8 {
        match self.code {
            Code::NotDeployed if self.of_server => 2,
            code => exit_code(code),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<CentreError> for Failure {
    fn from(error: CentreError) -> Failure {
        Failure::new(error.code(), error.to_string(), error.hint())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::new(error.code(), error.to_string(), error.hint())
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::new(error.code(), error.to_string(), error.hint())
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Failure {
        Failure::new(error.code(), error.to_string(), error.hint())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let mut hint = error.hint();
        if error.code() == Code::CredentialInvalid {
            hint = format!("{hint}: pipe it in with --password-stdin, or set TIDEWATER_PASSWORD");
        }
        if error.code() == Code::SignInAgain {
            hint = format!(
                "{hint}: --token-file FILE, --password-stdin, or --certificate FILE with --certificate-key FILE"
            );
        }
        Failure {
            code: error.code(),
            message: error.to_string(),
            hint,
            retry_after_ms: error.retry_after_ms(),
            of_server: matches!(error.device_error(), Some(DeviceError::Server { .. })),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let hint = error.hint();
        let code = error.code().unwrap_or(Code::Internal);
        let mut failure = Failure::new(code, error.to_string(), hint);
        if let CallError::Failed(failed) = &error {
            if !failed.own_code.is_empty() {
                failure.message = format!("{} ({})", failed.message, failed.own_code);
            }
            failure.retry_after_ms = Some(failed.retry_after_ms).filter(|it| *it > 0);
            failure.of_server = true;
        }
        failure
    }
}

/// The error without Rust's `(os error 2)`, which tells a user nothing.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// Exit codes are for scripts: they tell whether trying again, signing in again, or
/// calling somebody is what helps.
fn exit_code(code: Code) -> u8 {
    match code {
        // The configuration disagrees with the database: `deploy` was not run.
        Code::Usage
        | Code::NotARemote
        | Code::NotDeployed
        | Code::NoSuchProcedure
        | Code::BadArgument
        | Code::NoSuchSpace
        | Code::BadSubject
        | Code::NameTaken => 1,
        Code::Timeout
        | Code::TooManyAttempts
        | Code::ConnectionLost
        | Code::Busy
        | Code::ShuttingDown
        | Code::ConsolidatedUnavailable
        | Code::Unreachable
        | Code::SyncInProgress
        | Code::Redeployed
        | Code::IdentityUnavailable
        | Code::HandlerAway
        | Code::RemoteLocked
        | Code::NoProvider
        | Code::DeadlineExceeded => 2,
        Code::WrongPassword
        | Code::TokenExpired
        | Code::CredentialInvalid
        | Code::UserDisabled
        | Code::RemoteRevoked
        | Code::CertificateInvalid
        | Code::ParameterNotAllowed
        | Code::NoRole
        | Code::ProofRejected
        | Code::UnknownUser
        | Code::SignInAgain
        | Code::NotAllowed => 3,
        Code::ProtocolVersion
        | Code::SchemaMismatch
        | Code::UnknownPublication
        | Code::AnotherCentre
        | Code::OwnDescendant
        | Code::ImageInvalid
        | Code::TableInTheWay => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_documented_exit_code_and_none_means_success() {
        for &code in Code::ALL {
            assert!((1..=5).contains(&exit_code(code)), "{code}");
        }
    }

    #[test]
    fn exit_code_2_means_that_trying_again_later_can_help() {
        for &code in Code::ALL {
            if exit_code(code) == 2 {
                assert!(code.is_transient(), "{code}");
            }
        }
    }

    #[test]
    fn a_server_that_is_not_deployed_is_for_devices_to_try_again_later() {
        let mut failure = Failure::new(Code::NotDeployed, "", "");
        assert_eq!(failure.exit_code(), 1);
        failure.of_server = true;
        assert_eq!(failure.exit_code(), 2);
    }

    #[test]
    fn operating_system_errors_are_told_in_words() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(describe(&error), "no such file or directory");
    }
}
