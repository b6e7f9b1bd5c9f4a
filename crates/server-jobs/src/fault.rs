//! Why a sync ends without success: what the remote is told, and the log.

use tidewater_centre::CentreError;
use tidewater_centre::records::ShutOutReason;
use tidewater_protocol::Code;
use tidewater_protocol::event::EventError;
use tidewater_protocol::frame::FrameError;
use tidewater_protocol::message::{Busy, Control, FailureNotice};

/// When a remote comes back whose sync an application's transaction was in the way of.
const LOCKED_RETRY_AFTER_MS: u64 = 5_000;

/// The end of a sync, as the remote is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The stable code.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// When to come back, in milliseconds; 0 if that says nothing.
    pub retry_after_ms: u64,
    /// What it is about: see [`FailureNotice::subject`].
    pub subject: Option<Box<FaultSubject>>,
    /// For the log only: what the remote must not know.
    pub detail: String,
    /// Nobody is there who would understand an answer.
    pub silent: bool,
}

/// What a fault is about. Few are about something, and whatever may fail has room for a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSubject(pub(crate) String);

impl Fault {
    /// A fault that is about nothing in particular, and of which the remote is told.
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Fault {
        Fault {
            code,
            message: message.into(),
            hint: hint.into(),
            retry_after_ms: 0,
            subject: None,
            detail: String::new(),
            silent: false,
        }
    }

    /// The same of an upload to a publication. What a script has ended was undone whole, whereupon its
    /// remote need not send it again as it was: see [`FailureNotice::subject`].
    pub fn of_upload(self, publication: &str) -> Fault {
        let is_undone = self.code == Code::ScriptFailed;
        let subject = is_undone.then(|| Box::new(FaultSubject(publication.to_owned())));
        Fault {
            subject: subject.or(self.subject),
            ..self
        }
    }

    /// The remote broke the protocol.
    pub fn peer(code: Code, message: impl Into<String>) -> Fault {
        Fault::new(
            code,
            message,
            "update the remote's Tidewater; if it is up to date, please report this",
        )
    }

    /// A message came where none of its kind can be.
    pub fn unexpected(what: &str) -> Fault {
        Fault::peer(Code::UnexpectedMessage, format!("{what} came out of turn"))
    }

    /// A message says what cannot be.
    pub fn malformed(what: &str) -> Fault {
        Fault::peer(Code::MalformedMessage, format!("the remote sent {what}"))
    }

    /// Something is over a limit of the configuration.
    pub fn limit(what: &str, limit: u64, key: &str) -> Fault {
        Fault::new(
            Code::LimitExceeded,
            format!("{what} exceeds the server's limit of {limit}"),
            format!("the server's operator can raise server.limits.{key}"),
        )
    }

    /// The remote was silent, or took nothing, for too long.
    pub fn timeout(what: &str) -> Fault {
        Fault::new(
            Code::Timeout,
            format!("timed out: {what}"),
            "check the network, then sync again",
        )
    }

    /// The remote is gone. Nobody is told.
    pub fn gone() -> Fault {
        Fault {
            silent: true,
            ..Fault::new(Code::ConnectionLost, "the remote closed the connection", "")
        }
    }

    /// The remote gives up the sync, not the connection.
    pub fn cancelled() -> Fault {
        Fault::new(Code::Cancelled, "the remote cancelled the sync", "")
    }

    /// There is too much to do: come back after so many milliseconds. The remote gets the time and no
    /// text.
    pub fn busy(retry_after_ms: u64) -> Fault {
        Fault {
            retry_after_ms,
            ..Fault::new(Code::Busy, "the server is busy", "sync again later")
        }
    }

    /// A handler does not answer. Which one it is, is for the log.
    pub fn handler_away(retry_after_ms: u64) -> Fault {
        Fault {
            retry_after_ms,
            ..Fault::new(
                Code::HandlerAway,
                "a program that the server asks in each sync (a handler) does not answer the server",
                "nothing is lost: sync again later; if it stays so, tell the server's operator",
            )
        }
    }

    /// The remote may not, or no longer, come in.
    pub fn shut_out(reason: ShutOutReason) -> Fault {
        let (code, message, hint) = match reason {
            ShutOutReason::UserDisabled => (
                Code::UserDisabled,
                "this user is disabled",
                "ask the server's operator",
            ),
            ShutOutReason::RemoteRevoked => (
                Code::RemoteRevoked,
                "this remote was revoked",
                "its changes stay in the file: the server's operator can let it in again \
                 (tidewater remote restore ID); without them, begin with a new file",
            ),
            ShutOutReason::Removed => (
                Code::CredentialInvalid,
                "the remote's credential is not, or no longer, valid",
                "sign in once more with user and password",
            ),
        };
        Fault::new(code, message, hint)
    }

    /// What is published was changed while the sync ran: the next one goes by it.
    pub fn redeployed() -> Fault {
        Fault {
            retry_after_ms: 100,
            ..Fault::new(
                Code::Redeployed,
                "what the server publishes was changed during the sync",
                "sync again",
            )
        }
    }

    /// Whether it may come of what is published being served as it was before.
    pub fn may_be_outdated(&self) -> bool {
        matches!(
            self.code,
            Code::ConsolidatedRefused | Code::NotDeployed | Code::Internal | Code::Redeployed
        )
    }

    /// The server ends.
    pub fn shutting_down() -> Fault {
        Fault {
            retry_after_ms: 5_000,
            ..Fault::new(
                Code::ShuttingDown,
                "the server is shutting down",
                "sync again later",
            )
        }
    }

    /// A defect, or something that only the log tells.
    pub fn internal(detail: impl Into<String>) -> Fault {
        Fault {
            detail: detail.into(),
            ..Fault::new(
                Code::Internal,
                "internal error of the server",
                "tell the server's operator to look into its log",
            )
        }
    }

    /// Whether the connection itself is gone.
    pub fn is_gone(&self) -> bool {
        self.code == Code::ConnectionLost
    }

    /// What to send.
    pub fn to_control(&self) -> Control {
        if self.code == Code::Busy {
            return Control::Busy(Busy {
                retry_after_ms: self.retry_after_ms,
            });
        }
        let mut failure = FailureNotice::new(self.code, self.message.as_str(), self.hint.as_str());
        failure.retry_after_ms = self.retry_after_ms;
        if let Some(subject) = &self.subject {
            failure.subject.clone_from(&subject.0);
        }
        Control::Failure(failure)
    }
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Fault {
        let message = error.to_string();
        match error {
            FrameError::Version { .. } => Fault::new(
                Code::ProtocolVersion,
                message,
                "update the older of the two: the remote's Tidewater or the server",
            ),
            other => {
                let mut fault = Fault::peer(other.code(), message);
                fault.silent = other == FrameError::NotTidewater;
                fault
            }
        }
    }
}

impl From<EventError> for Fault {
    fn from(error: EventError) -> Fault {
        Fault::peer(error.code(), error.to_string())
    }
}

impl From<tidewater_connection::ConnectionFault> for Fault {
    fn from(fault: tidewater_connection::ConnectionFault) -> Fault {
        match fault {
            tidewater_connection::ConnectionFault::Frame(error) => error.into(),
            tidewater_connection::ConnectionFault::Silent => Fault::timeout("the remote is silent"),
            other => Fault::peer(other.code(), other.to_string()),
        }
    }
}

/// Remotes are told what to do; what the database says is for the server's log.
impl From<CentreError> for Fault {
    fn from(error: CentreError) -> Fault {
        let detail = error.to_string();
        let mut fault = match &error {
            CentreError::Unavailable { .. } => Fault {
                retry_after_ms: 5_000,
                ..Fault::new(
                    Code::ConsolidatedUnavailable,
                    "the server cannot reach its consolidated database",
                    "sync again later",
                )
            },
            CentreError::Locked { .. } => Fault::busy(LOCKED_RETRY_AFTER_MS),
            // Retried by the adapter already; later it will do.
            _ if error.is_retryable() => Fault::busy(1_000),
            // What it asks for, and who can mend it is the remote.
            CentreError::Peer {
                message,
                code: code @ Code::ParameterNotAllowed,
            } => Fault::new(*code, message.clone(), error.hint()),
            CentreError::Peer { message, code } => {
                Fault::new(*code, format!("the remote sent {message}"), error.hint())
            }
            CentreError::NotAllowed { .. } => {
                Fault::new(error.code(), error.to_string(), error.hint())
            }
            CentreError::NoRole { .. } => Fault::new(
                Code::NoRole,
                "the server has no role of its database for this user",
                "tell the server's operator, who finds the reason in the server's log",
            ),
            // The row is one that the remote may have.
            CentreError::TooLong { message } => {
                Fault::new(Code::LimitExceeded, message.clone(), error.hint())
            }
            CentreError::NotAuthenticated { .. } => {
                Fault::new(error.code(), error.to_string(), error.hint())
            }
            CentreError::Script { file, .. } => Fault::new(
                Code::ScriptFailed,
                format!("the server's script {file} failed"),
                "nothing is lost: tell the server's operator, who finds the reason in the server's \
                 log, and sync again when it is mended",
            ),
            // Its user may know why his row is refused.
            CentreError::EndedByScript { .. } => {
                Fault::new(error.code(), error.to_string(), error.hint())
            }
            CentreError::ShutOut(reason) => return Fault::shut_out(*reason),
            CentreError::Cancelled => Fault::gone(),
            CentreError::NotDeployed { .. } => Fault::new(
                Code::NotDeployed,
                "what the server publishes is not what its database has",
                "tell the server's operator to run tidewater deploy",
            ),
            CentreError::Redeployed { .. } => return Fault::redeployed(),
            _ if error.is_out_of_resources() => Fault {
                retry_after_ms: 5_000,
                ..Fault::new(
                    Code::ConsolidatedUnavailable,
                    "the consolidated database has no room, or its disk fails",
                    "sync again later; the server's operator finds the reason in its log",
                )
            },
            CentreError::StatementFailed { .. } => Fault::new(
                Code::ConsolidatedRefused,
                "the consolidated database refused an operation of the server",
                "tell the server's operator to look into its log",
            ),
            CentreError::Configuration { .. } => Fault::new(
                Code::ConsolidatedRefused,
                "something in the server's configuration does not fit its database",
                "tell the server's operator, who finds the reason in the server's log",
            ),
            _ => Fault::internal(""),
        };
        fault.detail = detail;
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_says_stays_on_the_server() {
        let fault = Fault::from(CentreError::StatementFailed {
            what: "INSERT".into(),
            message: "relation secret".into(),
            sqlstate: None,
            retry: false,
        });
        assert!(!format!("{:?}", fault.to_control()).contains("secret"));
        assert!(fault.detail.contains("secret"));
    }

    #[test]
    fn what_may_succeed_later_says_when() {
        for error in [
            CentreError::Locked {
                message: "somebody's transaction".into(),
            },
            CentreError::Unavailable {
                message: "gone".into(),
            },
            CentreError::StatementFailed {
                what: "COMMIT".into(),
                message: "deadlock".into(),
                sqlstate: None,
                retry: true,
            },
            CentreError::StatementFailed {
                what: "COPY".into(),
                message: "No space left on device".into(),
                sqlstate: Some("53100".into()),
                retry: false,
            },
        ] {
            let fault = Fault::from(error);
            assert!(fault.code.is_transient());
            assert!(fault.retry_after_ms > 0);
        }
    }
}
