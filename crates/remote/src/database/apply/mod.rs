//! Applying what a sync brought, in one transaction.

use serde::Serialize;
use tidewater_protocol::PublicationSchema;
use tidewater_protocol::message::TableBegin;

use super::{Database, SubscriptionState};
use crate::error::RemoteError;

/// What an apply did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplySummary {
    /// Rows written.
    pub upserts: u64,
    /// Rows removed.
    pub removals: u64,
    /// Changes that lost against the centre.
    pub conflicts: u64,
    /// Changes that the centre refused.
    pub refused: u64,
    /// The first 100 of them.
    pub refused_rows: Vec<RefusedSummary>,
    /// Rows that could not be applied and will be asked for again.
    pub stale: u64,
}

/// One refused change in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedSummary {
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// Why.
    pub reason: String,
}

/// An apply could not begin; here is the database back.
#[derive(Debug)]
pub struct ApplyRefused {
    /// The database, unchanged.
    pub database: Database,
    /// Why.
    pub error: RemoteError,
}

/// An apply under way. It owns the database so that a session can hold it from message to
/// message; dropping it rolls everything back and closes the file.
#[derive(Debug)]
pub struct Applier {
    database: Database,
}

impl Database {
    /// Begins to apply a sync. `expected` are the subscriptions as [`Database::begin_sync`]
    /// gave them; `new_schemas` has one entry for each of them.
    ///
    /// # Errors
    /// The file is locked, or another sync changed it meanwhile.
    pub fn begin_apply(
        self,
        expected: &[SubscriptionState],
        new_schemas: &[Option<PublicationSchema>],
    ) -> Result<Applier, Box<ApplyRefused>> {
        let _ = (expected, new_schemas);
        todo!()
    }
}

impl Applier {
    /// The result of a subscription's upload follows.
    pub fn result_begin(&mut self, subscription: usize) -> Result<(), RemoteError> {
        let _ = subscription;
        todo!()
    }

    /// The result is complete: what was taken is acknowledged.
    pub fn result_end(&mut self) -> Result<(), RemoteError> {
        todo!()
    }

    /// The download of a subscription follows. Its new schema, if any, is put in place.
    pub fn download_begin(
        &mut self,
        subscription: usize,
        scope_changed: bool,
    ) -> Result<(), RemoteError> {
        let _ = (subscription, scope_changed);
        todo!()
    }

    /// Rows of this table follow.
    pub fn table_begin(&mut self, begin: &TableBegin) -> Result<(), RemoteError> {
        let _ = begin;
        todo!()
    }

    /// Packed rows, cut anywhere; a partial row at the end is kept for the next call.
    /// Returns how many rows were complete.
    pub fn rows(&mut self, bytes: &[u8]) -> Result<u64, RemoteError> {
        let _ = bytes;
        todo!()
    }

    /// The download is complete. An empty checkpoint leaves the old one.
    pub fn download_end(&mut self, checkpoint: &[u8]) -> Result<(), RemoteError> {
        let _ = checkpoint;
        todo!()
    }

    /// What was done so far.
    pub fn summary(&self) -> &ApplySummary {
        todo!()
    }

    /// Commits everything, and gives the database back, also when that failed: then nothing
    /// is changed.
    pub fn commit(self, now_ms: i64) -> (Database, Result<ApplySummary, RemoteError>) {
        let _ = now_ms;
        todo!()
    }

    /// Rolls everything back and gives the database back.
    pub fn abort(self) -> Database {
        self.database
    }
}
