//! How far a sync is.

use std::sync::Arc;

use tidewater_protocol::Code;

/// What a sync is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncPhase {
    /// Reaching the server and signing in.
    #[default]
    Connecting,
    /// Sending changes.
    Uploading,
    /// Making checksums of what is here.
    Comparing,
    /// Everything is sent; the server has not answered yet.
    Waiting {
        /// Syncs that the server serves before this one, as far as it said.
        ahead: u64,
    },
    /// The server has asked a handler, a program of its operator, and waits for its answer.
    WaitingForHandler,
    /// Receiving. Rows are counted only if they are applied while they arrive.
    Downloading,
    /// Writing what was received into the database.
    Applying,
    /// Committed.
    Done,
    /// Executing what is in the outbox, and filling the inbox.
    Calling,
    /// The server has turned the sync away, and it is tried again later. Nothing is connected.
    Retrying {
        /// Why it was turned away.
        reason: Code,
        /// When it is tried again.
        in_ms: u64,
    },
}

/// How far a sync is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncProgress {
    /// What it is at.
    pub phase: SyncPhase,
    /// The table it is at.
    pub table: Option<Arc<str>>,
    /// Rows of this table so far.
    pub rows: u64,
    /// Rows of this table altogether, where that is known; else 0.
    pub expected_rows: u64,
    /// Bytes sent so far.
    pub bytes_sent: u64,
    /// Bytes received so far.
    pub bytes_received: u64,
    /// Bytes of a download that earlier syncs have received, and that need not come again.
    pub bytes_kept: u64,
}

impl SyncProgress {
    /// A sync waits to be tried again.
    pub fn retrying(reason: Code, in_ms: u64) -> SyncProgress {
        SyncProgress {
            phase: SyncPhase::Retrying { reason, in_ms },
            ..SyncProgress::default()
        }
    }

    /// Everything is committed, and calls are made.
    pub fn calling() -> SyncProgress {
        SyncProgress {
            phase: SyncPhase::Calling,
            ..SyncProgress::default()
        }
    }

    pub(crate) fn enter_phase(&mut self, phase: SyncPhase) {
        if self.phase != phase {
            self.phase = phase;
            self.table = None;
            self.rows = 0;
            self.expected_rows = 0;
        }
    }

    pub(crate) fn enter_table(&mut self, phase: SyncPhase, table: &str, expected_rows: u64) {
        self.phase = phase;
        self.table = Some(table.into());
        self.rows = 0;
        self.expected_rows = expected_rows;
    }
}
