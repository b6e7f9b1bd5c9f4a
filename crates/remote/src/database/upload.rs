//! Reading an upload: the net changes of the taken generation, with values as of it.

use tidewater_protocol::Value;
use tidewater_protocol::message::TableBegin;

use super::{Database, SubscriptionState};
use crate::error::RemoteError;

/// How far an upload was read.
#[derive(Clone, Debug, Default)]
pub struct UploadCursor {
    /// The table in the schema.
    table: usize,
    /// The key of the last row read.
    after: Option<Vec<Value>>,
    /// Whether rows of the table were handed out already.
    begun: bool,
}

/// A piece of an upload: rows of one table.
#[derive(Clone, Debug)]
pub struct UploadChunk {
    /// The header, with the table's first piece.
    pub begin: Option<TableBegin>,
    /// Packed rows; a row is never cut.
    pub rows: Vec<u8>,
    /// Inserts among them.
    pub inserts: u64,
    /// Updates among them.
    pub updates: u64,
    /// Deletes among them.
    pub deletes: u64,
}

impl Database {
    /// Reads the next piece of the taken upload, about 64 KiB; `None` at its end.
    pub fn upload_chunk(
        &self,
        subscription: &SubscriptionState,
        cursor: &mut UploadCursor,
    ) -> Result<Option<UploadChunk>, RemoteError> {
        let _ = (subscription, cursor);
        todo!()
    }

    /// An upper bound of the rows of the taken upload, and an estimate of its packed bytes.
    pub fn upload_estimate(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<(u64, u64), RemoteError> {
        let _ = subscription;
        todo!()
    }

    /// The stale rows to ask for: per table a header and packed `Request` rows.
    pub fn requests(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<Vec<(TableBegin, Vec<u8>)>, RemoteError> {
        let _ = subscription;
        todo!()
    }
}
