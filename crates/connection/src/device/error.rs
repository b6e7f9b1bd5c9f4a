//! Why a device's connection failed, whose fault that is, and what to do next.

use std::io;

use tidewater_protocol::Code;
use tidewater_protocol::frame::HEADER_BYTES;
use tidewater_protocol::message::FailureNotice;

use crate::ConnectionFault;

/// The longest message or hint of a server that is passed on, in characters.
const MAX_SERVER_TEXT: usize = 2_000;

/// What was going on where the other side has not said anything yet.
pub(super) const BEFORE_A_WORD: &str = "before the server said anything";

/// Why a connection cannot be used, or what was asked of it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
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
    /// No proof of who we are is at hand.
    #[error("the remote has not signed in yet")]
    ProofMissing,
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
    /// The caller no longer waits for what it has begun.
    #[error("the program has cancelled this")]
    Cancelled,
    /// This program has closed the connection.
    #[error("the program has closed the connection")]
    Closed,
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

impl DeviceError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            DeviceError::Protocol { code, .. } | DeviceError::Server { code, .. } => *code,
            DeviceError::NotTidewater { .. } | DeviceError::Usage { .. } => Code::Usage,
            DeviceError::Busy { .. } => Code::Busy,
            DeviceError::ProofMissing => Code::CredentialInvalid,
            DeviceError::Timeout { .. } => Code::Timeout,
            DeviceError::ConnectionLost { .. } => Code::ConnectionLost,
            DeviceError::Cancelled | DeviceError::Closed => Code::Cancelled,
            DeviceError::Defect { .. } => Code::Internal,
        }
    }

    /// What a program that calls, publishes or listens does next.
    pub fn hint(&self) -> String {
        match self {
            DeviceError::Protocol { .. } | DeviceError::Defect { .. } => {
                "update both programs, and report it if it happens again"
            }
            DeviceError::NotTidewater { hint, .. } => hint,
            DeviceError::Server { hint, code, .. } if hint.is_empty() => sign_in_hint(*code),
            DeviceError::Server { hint, .. } | DeviceError::Usage { hint, .. } => hint,
            DeviceError::Busy { .. } => "try again later",
            DeviceError::ProofMissing => {
                "sign in with the user's password, or with what stands in its place"
            }
            DeviceError::Timeout { .. } | DeviceError::ConnectionLost { .. }
                if self.is_before_a_word() =>
            {
                "try again later. If it stays so, another program listens at this address, or for \
                 another scheme: see that scheme, host and port are those of a Tidewater server"
            }
            DeviceError::Timeout { .. } | DeviceError::ConnectionLost { .. } => {
                "connect again when the network is better; a call without an answer may have been \
                 executed or not, and one with a key can be made again"
            }
            DeviceError::Cancelled => "try again when you like",
            DeviceError::Closed => "connect again for further calls and events",
        }
        .to_owned()
    }

    /// When to come back, where the server said so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            DeviceError::Busy { retry_after_ms } => Some(*retry_after_ms),
            DeviceError::Server { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }

    /// Whether the connection failed before the server said anything: then nobody knows whether
    /// there is a server.
    pub fn is_before_a_word(&self) -> bool {
        match self {
            DeviceError::Timeout { during, .. } | DeviceError::ConnectionLost { during, .. } => {
                *during == BEFORE_A_WORD
            }
            _ => false,
        }
    }

    /// The server said something at a time when it must not.
    pub fn unexpected(what: impl Into<String>) -> DeviceError {
        DeviceError::Protocol {
            code: Code::UnexpectedMessage,
            what: what.into(),
        }
    }

    /// The server said something that cannot be.
    pub fn malformed(what: impl Into<String>) -> DeviceError {
        DeviceError::Protocol {
            code: Code::MalformedMessage,
            what: what.into(),
        }
    }

    /// Checks the first bytes that come: other protocols begin otherwise than any frame. A TLS
    /// server's alert looks like the beginning of a frame that never ends.
    pub(super) fn check_first(first: &[u8]) -> Result<(), DeviceError> {
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
        Err(DeviceError::NotTidewater { what, hint })
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

/// The server broke the rules of the connection.
impl From<ConnectionFault> for DeviceError {
    fn from(fault: ConnectionFault) -> DeviceError {
        DeviceError::Protocol {
            code: fault.code(),
            what: fault.to_string(),
        }
    }
}

/// What a server says is shown to people: it gets no control characters through.
impl From<FailureNotice> for DeviceError {
    fn from(failure: FailureNotice) -> DeviceError {
        let code = known_code(failure.code);
        let mut message = printable(&failure.message);
        if message.is_empty() {
            message = format!("the server failed with code {}", failure.code);
        }
        DeviceError::Server {
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
            let error = DeviceError::check_first(first).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(error.code(), Code::Usage);
            assert!(!error.hint().is_empty());
        }
        for frame in [&[5, 0, 0, 0, 1, 0][..], b"HT", &[]] {
            assert!(DeviceError::check_first(frame).is_ok());
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
        let error = DeviceError::from(failure);
        assert_eq!(error.to_string(), "no [2J way");
        assert_eq!(error.code(), Code::CredentialInvalid);
        assert!(!error.hint().is_empty());
        assert_eq!(error.retry_after_ms(), None);
    }

    #[test]
    fn no_hint_tells_a_program_that_only_calls_to_sync() {
        let lost = |during| DeviceError::ConnectionLost {
            during,
            source: None,
        };
        for error in [
            DeviceError::unexpected("a Welcome"),
            DeviceError::Busy { retry_after_ms: 1 },
            DeviceError::ProofMissing,
            lost(BEFORE_A_WORD),
            lost("while connected"),
            DeviceError::Cancelled,
            DeviceError::Closed,
        ] {
            assert!(!error.hint().contains("sync"), "{}", error.hint());
        }
    }
}
