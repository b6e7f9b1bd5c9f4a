//! An upload as it is kept, put together while it is read.
//!
//! Owns the frames of a kept upload. A sync copies them while it sends them, so that nothing is
//! read twice; only what it did not send is read out of the file. Both are the same to the
//! byte, however the frames were cut on the connection.

use std::collections::HashMap;

use bytes::BytesMut;
use tidewater_protocol::UploadId;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_rows};
use tidewater_protocol::message::{Control, UploadBegin, UploadEnd};

use super::put;
use crate::database::{Database, SubscriptionState, UploadChunk, UploadCursor};
use crate::error::RemoteError;

/// A larger upload is not kept: bulk writes would be written twice.
const MAX_UPLOAD_BYTES: usize = 8 << 20;

/// Counts an upload piece by piece, and copies it as far as it may be kept.
#[derive(Debug)]
pub(crate) struct UploadCopy {
    /// What is between the beginning and the end; `None` once it is more than is kept.
    body: Option<BytesMut>,
    counted: UploadEnd,
    checksum: crc32fast::Hasher,
}

impl UploadCopy {
    pub(crate) fn new() -> UploadCopy {
        UploadCopy {
            body: Some(BytesMut::new()),
            counted: UploadEnd::default(),
            checksum: crc32fast::Hasher::new(),
        }
    }

    /// The next piece of the upload.
    pub(crate) fn add(&mut self, chunk: &UploadChunk) -> Result<(), RemoteError> {
        self.counted.inserts += chunk.inserts;
        self.counted.updates += chunk.updates;
        self.counted.deletes += chunk.deletes;
        self.checksum.update(&chunk.rows);
        if self.bytes() + chunk.rows.len() > MAX_UPLOAD_BYTES {
            self.body = None;
        }
        if let Some(body) = &mut self.body {
            if let Some(begin) = &chunk.begin {
                put(body, Control::TableBegin(begin.clone()))?;
            }
            put_rows(body, SYNC_CHANNEL, &chunk.rows);
        }
        Ok(())
    }

    /// What was counted, for the end of an upload that is given up.
    pub(crate) fn counted(&self) -> UploadEnd {
        self.counted.clone()
    }

    /// The end of the upload.
    pub(crate) fn end(&self) -> UploadEnd {
        UploadEnd {
            checksum: self.checksum.clone().finalize(),
            ..self.counted()
        }
    }

    fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, BytesMut::len)
    }

    /// The whole upload as it is kept; `None` if it holds nothing, or more than is kept.
    fn finish(
        self,
        sequence: u64,
        upload_id: Option<UploadId>,
    ) -> Result<Option<Vec<u8>>, RemoteError> {
        let end = self.end();
        let rows = end.inserts + end.updates + end.deletes;
        let (Some(body), 1..) = (self.body, rows) else {
            return Ok(None);
        };
        let mut frames = BytesMut::with_capacity(body.len() + 128);
        let begin = UploadBegin {
            subscription: 0,
            sequence,
            upload_id: upload_id.map(|id| id.to_vec()).unwrap_or_default(),
            rows,
            bytes: body.len() as u64,
            given_back: false,
            unknown_history: false,
        };
        put(&mut frames, Control::UploadBegin(begin))?;
        frames.extend_from_slice(&body);
        put(&mut frames, Control::UploadEnd(end))?;
        Ok(Some(frames.into()))
    }
}

/// The uploads that a sync has sent, by subscription: whole, or `None` if they are not to be
/// kept. Together they are not larger than one that may be kept.
#[derive(Debug, Default)]
pub(crate) struct Copies(HashMap<usize, Option<Vec<u8>>>);

impl Copies {
    /// Makes room for the copy under way. Those that go are read out of the file, if their
    /// results come.
    pub(crate) fn make_room(&mut self, for_copy: &UploadCopy) {
        let held: usize = self.0.values().flatten().map(Vec::len).sum();
        if held + for_copy.bytes() > MAX_UPLOAD_BYTES {
            self.0.retain(|_, copy| copy.is_none());
        }
    }

    /// A subscription's upload was sent to its end.
    pub(crate) fn sent(
        &mut self,
        index: usize,
        subscription: &SubscriptionState,
        copy: UploadCopy,
    ) -> Result<(), RemoteError> {
        let copy = copy.finish(subscription.sequence + 1, subscription.taken)?;
        self.0.insert(index, copy);
        Ok(())
    }

    /// What is to be kept of a subscription's taken upload: the copy, else what the file says.
    pub(super) fn take(
        &mut self,
        index: usize,
        subscription: &SubscriptionState,
        database: &Database,
    ) -> Result<Option<Vec<u8>>, RemoteError> {
        match self.0.remove(&index) {
            Some(copy) => Ok(copy),
            None => read(subscription, database),
        }
    }
}

/// The taken upload out of the file, as a copy of it would be.
fn read(
    subscription: &SubscriptionState,
    database: &Database,
) -> Result<Option<Vec<u8>>, RemoteError> {
    let mut copy = UploadCopy::new();
    let mut cursor = UploadCursor::default();
    while let Some(chunk) = database.upload_chunk(subscription, &mut cursor)? {
        copy.add(&chunk)?;
        if copy.body.is_none() {
            return Ok(None);
        }
    }
    copy.finish(subscription.sequence + 1, subscription.taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_of(bytes: usize) -> UploadCopy {
        let mut copy = UploadCopy::new();
        for piece in vec![7; bytes].chunks(1 << 20) {
            let chunk = UploadChunk {
                begin: None,
                rows: piece.to_vec(),
                inserts: 1,
                updates: 0,
                deletes: 0,
            };
            copy.add(&chunk).unwrap();
        }
        copy
    }

    fn sent(copies: &mut Copies, index: usize, bytes: usize) {
        let copy = copy_of(bytes);
        copies.make_room(&copy);
        let whole = copy.finish(1, None).unwrap();
        copies.0.insert(index, whole);
    }

    #[test]
    fn a_copy_is_dropped_as_soon_as_it_is_too_large_and_goes_on_counting() {
        let copy = copy_of(7 << 20);
        assert!(copy.bytes() > 7 << 20);
        let copy = copy_of(10 << 20);
        assert_eq!(copy.bytes(), 0);
        let end = copy.end();
        assert_eq!(end.inserts, 10);
        assert_eq!(end.checksum, crc32fast::hash(&vec![7; 10 << 20]));
        assert!(copy.finish(1, None).unwrap().is_none());
    }

    #[test]
    fn copies_together_are_not_larger_than_one_may_be() {
        let mut copies = Copies::default();
        sent(&mut copies, 0, 10 << 20);
        sent(&mut copies, 1, 3 << 20);
        sent(&mut copies, 2, 3 << 20);
        assert!(copies.0[&1].is_some() && copies.0[&2].is_some());
        sent(&mut copies, 3, 6 << 20);
        assert!(copies.0[&3].is_some());
        for index in [1, 2] {
            assert!(!copies.0.contains_key(&index), "it is read from the file");
        }
        assert!(copies.0[&0].is_none(), "it stays known as too large");
    }
}
