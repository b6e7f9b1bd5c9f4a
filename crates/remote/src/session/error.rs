//! What can go wrong with a sync as a whole, whose fault it is, and what to do next.

use std::io;

use tidewater_connection::device::DeviceError;
use tidewater_protocol::Code;
use tidewater_protocol::frame::FrameError;
use tidewater_protocol::message::FailureNotice;

use crate::error::RemoteError;

/// Why a sync did not happen. The remote is as it was before, except for what the error
/// is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The connection failed, or what the server said on it.
    #[error(transparent)]
    Connection(DeviceError),
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
    /// Something about the remote's file.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The download could not be kept until it was complete.
    #[error("the download cannot be kept beside the database: {0}")]
    Spool(#[source] io::Error),
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
            SyncError::Connection(error) => error.code(),
            SyncError::AnotherCentre => Code::AnotherCentre,
            SyncError::OwnDescendant { .. } => Code::OwnDescendant,
            SyncError::Remote(error) => error.code(),
            SyncError::Spool(_) => Code::RemoteDatabase,
            SyncError::Cancelled => Code::Cancelled,
            SyncError::Usage { .. } => Code::Usage,
            SyncError::Defect { .. } => Code::Internal,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            SyncError::Connection(error) => return connection_hint(error),
            SyncError::Defect { .. } => CHANGED_NOTHING,
            SyncError::Usage { hint, .. } => hint,
            SyncError::AnotherCentre => {
                "nothing was changed; see that the address is right. If the centre was made anew, \
                 first bring there what only this file still has (see \"the centre is gone\" in \
                 operations.md); then sync once with --other-centre"
            }
            SyncError::OwnDescendant { .. } => {
                "nothing was changed; write the address of the server above this branch as `server` \
                 under [upstream]"
            }
            SyncError::Remote(error) => return error.hint(),
            SyncError::Spool(_) => {
                "make room on the disk, and see that the database's folder can be written"
            }
            SyncError::Cancelled => "nothing is lost; sync again when you like",
        }
        .to_owned()
    }

    /// When to come back, where the server said so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            SyncError::Connection(error) => error.retry_after_ms(),
            _ => None,
        }
    }

    pub(crate) fn unexpected(what: impl Into<String>) -> SyncError {
        SyncError::Connection(DeviceError::unexpected(what))
    }

    pub(crate) fn malformed(what: impl Into<String>) -> SyncError {
        SyncError::Connection(DeviceError::malformed(what))
    }

    pub(crate) fn checksum(what: impl Into<String>) -> SyncError {
        SyncError::Connection(DeviceError::Protocol {
            code: Code::ChecksumMismatch,
            what: what.into(),
        })
    }
}

const CHANGED_NOTHING: &str =
    "nothing was changed; update both programs, and report it if it happens again";

/// What to do next about a sync whose connection failed: nothing of it was done, and all of it can
/// be done again.
fn connection_hint(error: &DeviceError) -> String {
    match error {
        DeviceError::Protocol { .. } | DeviceError::Defect { .. } => CHANGED_NOTHING,
        DeviceError::Busy { .. } => "nothing was changed; sync again later",
        DeviceError::Timeout { .. } | DeviceError::ConnectionLost { .. }
            if error.is_before_a_word() =>
        {
            "nothing is lost; sync again later. If it stays so, another program listens at this \
             address, or for another scheme: see that scheme, host and port are those of a \
             Tidewater server"
        }
        DeviceError::Timeout { .. } | DeviceError::ConnectionLost { .. } => {
            "nothing is lost; sync again when the network is better"
        }
        DeviceError::Cancelled | DeviceError::Closed => "nothing is lost; sync again when you like",
        other => return other.hint(),
    }
    .to_owned()
}

/// A sync that the caller cancelled says so in its own words, whatever it was at.
impl From<DeviceError> for SyncError {
    fn from(error: DeviceError) -> SyncError {
        match error {
            DeviceError::Cancelled => SyncError::Cancelled,
            other => SyncError::Connection(other),
        }
    }
}

impl From<FailureNotice> for SyncError {
    fn from(failure: FailureNotice) -> SyncError {
        SyncError::Connection(failure.into())
    }
}

/// What was kept of a download are no frames.
impl From<FrameError> for SyncError {
    fn from(error: FrameError) -> SyncError {
        SyncError::Connection(DeviceError::Protocol {
            code: error.code(),
            what: error.to_string(),
        })
    }
}
