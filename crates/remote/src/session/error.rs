//! What can go wrong with a sync as a whole, whose fault it is, and what to do next.

use std::io;

use tidewater_connection::ConnectionFault;
use tidewater_protocol::Code;
use tidewater_protocol::frame::{FrameError, HEADER_BYTES};
use tidewater_protocol::message::FailureNotice;

use crate::error::RemoteError;

/// The longest message or hint of a server that is passed on, in characters.
const MAX_SERVER_TEXT: usize = 2_000;

/// What was going on where the other side has not said anything yet.
pub(crate) const BEFORE_A_WORD: &str = "before the server said anything";

/// Why a sync did not happen. The remote is as it was before, except for what the error
/// is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The server broke the protocol.
    #[error("the server broke the protocol: {what}")]
    Protocol {
        /// How.
        code: Code,
        /// What it did.
        what: String,
    },
    /// Whoever answered is no Tidewater server: the address is wrong.
    #[error("what answers at this address does not speak the Tidewater protocol: {what}")]
    NotTidewater {
        /// What came instead.
        what: String,
        /// What to do next.
        hint: &'static str,
    },
    /// The server said that it cannot go on.
    #[error("{message}")]
    Server {
        /// The server's code, or the nearest that this version knows.
        code: Code,
        /// What is wrong.
        message: String,
        /// What to do next.
        hint: String,
        /// When to come back, if that helps.
        retry_after_ms: Option<u64>,
    },
    /// The server has too much to do.
    #[error("the server is busy")]
    Busy {
        /// When to come back.
        retry_after_ms: u64,
    },
    /// The server is that of another centre than the one whose rows the file holds.
    #[error(
        "this server is another centre's, not of the one that the file was synced with: that \
         one's rows would leave the file"
    )]
    AnotherCentre,
    /// The file is a branch's, and the server is below it, or is its own.
    #[error(
        "this server is {}: each would wait for what the other has from it",
        if *.is_own { "the branch's own" } else { "below this branch, which it has for its headquarters" }
    )]
    OwnDescendant {
        /// It is the branch's own server, which serves the same file.
        is_own: bool,
    },
    /// No proof of who we are is at hand.
    #[error("the remote has not signed in yet")]
    PasswordMissing,
    /// Something about the remote's file.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The download could not be kept until it was complete.
    #[error("the download cannot be kept beside the database: {0}")]
    Spool(#[source] io::Error),
    /// The server was silent for too long.
    #[error("the server was silent for {} seconds ({during})", .after_ms / 1000)]
    Timeout {
        /// How long we waited.
        after_ms: u64,
        /// What we waited for.
        during: &'static str,
    },
    /// The connection ended in the middle.
    #[error("the connection to the server was lost ({during})")]
    ConnectionLost {
        /// What was going on.
        during: &'static str,
        /// What the system said, if anything.
        source: Option<io::Error>,
    },
    /// The caller cancelled.
    #[error("the sync was cancelled")]
    Cancelled,
    /// The caller asked for something that does not make sense.
    #[error("{what}")]
    Usage {
        /// What was wrong.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A defect of this program.
    #[error("a defect of Tidewater: {what}")]
    Defect {
        /// What should never be.
        what: &'static str,
    },
}

impl SyncError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            SyncError::Protocol { code, .. } | SyncError::Server { code, .. } => *code,
            SyncError::NotTidewater { .. } => Code::Usage,
            SyncError::Busy { .. } => Code::Busy,
            SyncError::AnotherCentre => Code::AnotherCentre,
            SyncError::OwnDescendant { .. } => Code::OwnDescendant,
            SyncError::PasswordMissing => Code::CredentialInvalid,
            SyncError::Remote(error) => error.code(),
            SyncError::Spool(_) => Code::RemoteDatabase,
            SyncError::Timeout { .. } => Code::Timeout,
            SyncError::ConnectionLost { .. } => Code::ConnectionLost,
            SyncError::Cancelled => Code::Cancelled,
            SyncError::Usage { .. } => Code::Usage,
            SyncError::Defect { .. } => Code::Internal,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            SyncError::Protocol { .. } | SyncError::Defect { .. } => {
                "nothing was changed; update both programs, and report it if it happens again"
            }
            SyncError::NotTidewater { hint, .. } => hint,
            SyncError::Server { hint, code, .. } if hint.is_empty() => sign_in_hint(*code),
            SyncError::Server { hint, .. } | SyncError::Usage { hint, .. } => hint,
            SyncError::Busy { .. } => "nothing was changed; sync again later",
            SyncError::AnotherCentre => {
                "nothing was changed; see that the address is right. If the centre was made anew, \
                 first bring there what only this file still has (see \"the centre is gone\" in \
                 operations.md); then sync once with --other-centre"
            }
            SyncError::OwnDescendant { .. } => {
                "nothing was changed; write the address of the server above this branch as `server` \
                 under [upstream]"
            }
            SyncError::PasswordMissing => {
                "sign in with the user's password, or with what stands in its place"
            }
            SyncError::Remote(error) => return error.hint(),
            SyncError::Spool(_) => {
                "make room on the disk, and see that the database's folder can be written"
            }
            SyncError::Timeout { during, .. } | SyncError::ConnectionLost { during, .. }
                if *during == BEFORE_A_WORD =>
            {
                "nothing is lost; sync again later. If it stays so, another program listens at this \
                 address, or for another scheme: see that scheme, host and port are those of a \
                 Tidewater server"
            }
            SyncError::Timeout { .. } | SyncError::ConnectionLost { .. } => {
                "nothing is lost; sync again when the network is better"
            }
            SyncError::Cancelled => "nothing is lost; sync again when you like",
        }
        .to_owned()
    }

    /// When to come back, where the server said so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            SyncError::Busy { retry_after_ms } => Some(*retry_after_ms),
            SyncError::Server { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }

    /// Checks the first bytes that come: other protocols begin otherwise than any frame. A TLS
    /// server's alert looks like the beginning of a frame that never ends.
    pub(crate) fn check_first(first: &[u8]) -> Result<(), SyncError> {
        const HINT: &str = "see that scheme, host and port are those of a Tidewater server";
        let (what, hint) = match first {
            [0x15, 3, 0..=4, 0, 2, ..] => (
                "it answers with a TLS alert, so it listens on tls:// at this port".to_owned(),
                "write the address with tls:// in front instead of tcp://",
            ),
            [b'H', b'T', b'T', b'P', ..] => (
                "it is a web server".to_owned(),
                "write the address with http:// or https:// in front if a Tidewater server is \
                 behind the web server; else see that host and port are those of a Tidewater server",
            ),
            [b'S', b'S', b'H', b'-', ..] => ("it is an SSH server".to_owned(), HINT),
            _ if first.len() >= HEADER_BYTES && is_text(first) => {
                let said = String::from_utf8_lossy(first);
                (format!("it begins with {said:?}"), HINT)
            }
            _ => return Ok(()),
        };
        Err(SyncError::NotTidewater { what, hint })
    }

    pub(crate) fn unexpected(what: impl Into<String>) -> SyncError {
        SyncError::Protocol {
            code: Code::UnexpectedMessage,
            what: what.into(),
        }
    }

    pub(crate) fn malformed(what: impl Into<String>) -> SyncError {
        SyncError::Protocol {
            code: Code::MalformedMessage,
            what: what.into(),
        }
    }

    pub(crate) fn checksum(what: impl Into<String>) -> SyncError {
        SyncError::Protocol {
            code: Code::ChecksumMismatch,
            what: what.into(),
        }
    }
}

/// Whether bytes are those of a text: no frame begins so, as its channel is a small number.
fn is_text(bytes: &[u8]) -> bool {
    let is_of_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n');
    bytes.iter().all(is_of_text)
}

fn sign_in_hint(code: Code) -> &'static str {
    match code {
        Code::CredentialInvalid => "sign in with the user's password again",
        Code::WrongPassword => "see that user and password are right",
        _ => "ask whoever runs the server",
    }
}

/// Bytes on a connection that has proven to be Tidewater's, but are no frame.
impl From<FrameError> for SyncError {
    fn from(error: FrameError) -> SyncError {
        SyncError::Protocol {
            code: error.code(),
            what: error.to_string(),
        }
    }
}

/// The server broke the rules of the connection.
impl From<ConnectionFault> for SyncError {
    fn from(fault: ConnectionFault) -> SyncError {
        SyncError::Protocol {
            code: fault.code(),
            what: fault.to_string(),
        }
    }
}

/// What a server says is shown to people: it gets no control characters through.
impl From<FailureNotice> for SyncError {
    fn from(failure: FailureNotice) -> SyncError {
        let code = known_code(failure.code);
        let mut message = printable(&failure.message);
        if message.is_empty() {
            message = format!("the server failed with code {}", failure.code);
        }
        SyncError::Server {
            code,
            message,
            hint: printable(&failure.hint),
            retry_after_ms: (failure.retry_after_ms > 0).then_some(failure.retry_after_ms),
        }
    }
}

/// A code of a newer server is taken for its hundred's plainest.
fn known_code(number: u32) -> Code {
    Code::from_number(number).unwrap_or(match number / 100 {
        1 => Code::UnexpectedMessage,
        2 => Code::SchemaMismatch,
        3 => Code::CredentialInvalid,
        4 => Code::Busy,
        _ => Code::Internal,
    })
}

fn printable(text: &str) -> String {
    let replace = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.chars().take(MAX_SERVER_TEXT).map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_told_by_their_first_bytes() {
        for (first, told) in [
            (&b"HTTP/1"[..], "a web server"),
            (b"SSH-2.", "an SSH server"),
            (b"220 ma", "\"220 ma\""),
            (&[0x15, 3, 3, 0, 2, 2], "tls://"),
        ] {
            let error = SyncError::check_first(first).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(error.code(), Code::Usage);
            assert!(!error.hint().is_empty());
        }
        for frame in [&[5, 0, 0, 0, 1, 0][..], b"HT", &[]] {
            assert!(SyncError::check_first(frame).is_ok());
        }
    }

    #[test]
    fn a_servers_words_cannot_move_the_cursor_of_a_terminal() {
        let failure = FailureNotice {
            code: 399,
            message: "no\x1b[2J\nway".into(),
            hint: String::new(),
            retry_after_ms: 0,
            subject: String::new(),
        };
        let error = SyncError::from(failure);
        assert_eq!(error.to_string(), "no [2J way");
        assert_eq!(error.code(), Code::CredentialInvalid);
        assert!(!error.hint().is_empty());
        assert_eq!(error.retry_after_ms(), None);
    }
}
