//! A connection above every sync, for both sides, without input or output.
//!
//! Bytes, the time and what is to be sent go in; bytes to send and [`ConnectionEvent`]s come out. Owns
//! the preface, channels, credit, the order of output and pings. What the messages of a channel
//! mean, sign-in among them, is left to the handlers of the channels; sockets and TLS are left
//! to the caller. [`device`] is the handler of a device's side, for sign-in, calls and events.
//!
//! Reading never pauses once a peer is let in: what it may send before its channel's handler
//! takes it is bounded by credit for rows and messages, and by [`MAX_CONTROL_BYTES`] for control
//! messages.

mod channel;
mod connection;
pub mod device;
#[cfg(test)]
mod tests;

pub use channel::{ChannelInput, MAX_CONTROL_BYTES};
pub use connection::{ConnectionEvent, FramedConnection, PingTimings, STRANGER_BYTES};

use tidewater_protocol::Code;
use tidewater_protocol::frame::FrameError;

/// Why a connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFault {
    /// What came is not the protocol, or what was to be sent is too large.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame on a channel that there is not.
    #[error("channel {0} does not exist")]
    UnknownChannel(u8),
    /// Something else than who the peer is came first.
    #[error("something came on channel {0} before the sign-in")]
    BeforeSignIn(u8),
    /// More than credit or the limit of control messages allows.
    #[error("channel {0} was sent more than is allowed")]
    TooMuch(u8),
    /// Nothing came for too long.
    #[error("the peer was silent for too long")]
    Silent,
}

impl ConnectionFault {
    /// The fault's stable code.
    pub fn code(&self) -> Code {
        match self {
            ConnectionFault::Frame(error) => error.code(),
            ConnectionFault::UnknownChannel(_) | ConnectionFault::BeforeSignIn(_) => {
                Code::UnexpectedMessage
            }
            ConnectionFault::TooMuch(_) => Code::LimitExceeded,
            ConnectionFault::Silent => Code::Timeout,
        }
    }
}
