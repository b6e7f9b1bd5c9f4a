//! What a remote can tell about itself without a server.

use serde::Serialize;

use super::Database;
use crate::error::RemoteError;

/// The state of a remote.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The remote's id, once it has one.
    pub remote_id: Option<String>,
    /// The server's URL.
    pub server: String,
    /// The user.
    pub user: String,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// The state of a subscription.
#[derive(Clone, Debug, Serialize)]
pub struct SubscriptionStatus {
    /// The publication.
    pub publication: String,
    /// When it last synced, in milliseconds since 1970.
    pub last_sync_at_ms: Option<i64>,
    /// The last acknowledged upload.
    pub sequence: u64,
    /// Whether an upload was taken whose acknowledgement is missing.
    pub upload_in_flight: bool,
    /// Its tables.
    pub tables: Vec<TableStatus>,
}

/// The state of a table.
#[derive(Clone, Debug, Serialize)]
pub struct TableStatus {
    /// The table.
    pub table: String,
    /// Its rows.
    pub rows: u64,
    /// Keys with changes that the next sync uploads, or that are on their way.
    pub pending: u64,
    /// Changes that the centre refused.
    pub refused: u64,
    /// Rows that the next sync asks for again.
    pub stale: u64,
}

impl Database {
    /// The state of the remote.
    pub fn status(&self) -> Result<Status, RemoteError> {
        todo!()
    }
}
