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

use super::{KeptLimits, put};
use crate::database::{RemoteDatabase, SubscriptionState, UploadCursor, UploadPiece};
use crate::error::RemoteError;

/// Counts an upload piece by piece, and copies it as far as it is kept.
#[derive(Debug)]
pub(crate) struct UploadCopy {
    /// What is between its beginning and its end; `None` once it is too large.
    body: Option<BytesMut>,
    counted: RowTally,
    limits: KeptLimits,
    /// See [`UploadBegin::retried`].
    retried: Vec<u64>,
}

/// What an upload's beginning says of it.
#[derive(Clone, Copy)]
struct UploadHeader {
    sequence: u64,
    upload_id: Option<UploadId>,
    may_be_sent_twice: bool,
}

impl UploadHeader {
    fn from_taken(subscription: &SubscriptionState) -> UploadHeader {
        UploadHeader {
            sequence: subscription.sequence + 1,
            upload_id: subscription.taken,
            may_be_sent_twice: subscription.may_be_sent_twice(),
        }
    }
}

/// What is kept of an upload.
#[derive(Debug)]
pub(crate) enum CopiedUpload {
    /// It holds nothing.
    Nothing,
    /// All of it, frame by frame.
    Whole(Vec<u8>),
    /// It is too large: only that it was there.
    TooLarge,
}

impl CopiedUpload {
    fn bytes(&self) -> usize {
        match self {
            CopiedUpload::Nothing | CopiedUpload::TooLarge => 0,
            CopiedUpload::Whole(bytes) => bytes.len(),
        }
    }
}

impl UploadCopy {
    pub(crate) fn new(limits: KeptLimits) -> UploadCopy {
        UploadCopy {
            body: Some(BytesMut::new()),
            counted: RowTally::default(),
            limits,
            retried: Vec::new(),
        }
    }

    /// Of an upload with changes that were refused with these before.
    pub(crate) fn with_retried(self, retried: Vec<u64>) -> UploadCopy {
        UploadCopy { retried, ..self }
    }

    /// The next piece of the upload.
    pub(crate) fn add(&mut self, chunk: &UploadPiece) -> Result<(), RemoteError> {
        self.counted.add(chunk);
        if let Some(body) = &mut self.body {
            if body.len() + chunk.rows.len() <= self.limits.upload_bytes {
                return put_chunk(body, chunk);
            }
            self.body = None;
        }
        Ok(())
    }

    /// What was counted, for the end of an upload that is given up.
    pub(crate) fn counted(&self) -> UploadEnd {
        self.counted.rows.clone()
    }

    /// The end of the upload.
    pub(crate) fn end(&self) -> UploadEnd {
        self.counted.end()
    }

    fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, BytesMut::len)
    }

    /// What is kept of the upload.
    fn finish(self, beginning: UploadHeader) -> Result<CopiedUpload, RemoteError> {
        match self.body {
            Some(body) => whole(&body, &self.counted, beginning, self.retried),
            None => Ok(CopiedUpload::TooLarge),
        }
    }
}

/// How many rows of an upload there were, and their checksum.
#[derive(Debug, Default)]
struct RowTally {
    rows: UploadEnd,
    checksum: crc32fast::Hasher,
}

impl RowTally {
    fn add(&mut self, chunk: &UploadPiece) {
        self.rows.inserts += chunk.inserts;
        self.rows.updates += chunk.updates;
        self.rows.deletes += chunk.deletes;
        self.checksum.update(&chunk.rows);
    }

    fn end(&self) -> UploadEnd {
        UploadEnd {
            checksum: self.checksum.clone().finalize(),
            ..self.rows.clone()
        }
    }
}

fn put_chunk(body: &mut BytesMut, chunk: &UploadPiece) -> Result<(), RemoteError> {
    if let Some(begin) = &chunk.begin {
        put(body, Control::TableBegin(begin.clone()))?;
    }
    put_rows(body, SYNC_CHANNEL, &chunk.rows);
    Ok(())
}

/// A whole upload as it is kept.
fn whole(
    body: &[u8],
    counted: &RowTally,
    beginning: UploadHeader,
    retried: Vec<u64>,
) -> Result<CopiedUpload, RemoteError> {
    let end = counted.end();
    let rows @ 1.. = end.inserts + end.updates + end.deletes else {
        return Ok(CopiedUpload::Nothing);
    };
    let mut frames = BytesMut::with_capacity(body.len() + 128);
    let begin = UploadBegin {
        subscription: 0,
        sequence: beginning.sequence,
        upload_id: beginning
            .upload_id
            .map(|id| id.to_vec())
            .unwrap_or_default(),
        rows,
        bytes: body.len() as u64,
        given_back: false,
        copied: beginning.may_be_sent_twice,
        given_up: Vec::new(),
        behind_bytes: 0,
        retried,
        forgotten_refusals: Vec::new(),
    };
    put(&mut frames, Control::UploadBegin(begin))?;
    frames.extend_from_slice(body);
    put(&mut frames, Control::UploadEnd(end))?;
    Ok(CopiedUpload::Whole(frames.into()))
}

/// What is kept of the uploads that a sync has sent, by subscription. Together they are not
/// larger than one upload that is kept.
#[derive(Debug, Default)]
pub(crate) struct UploadCopies(HashMap<usize, CopiedUpload>);

impl UploadCopies {
    /// Makes room for the copy under way. Those that go are read out of the file, if their
    /// results come.
    pub(crate) fn make_room(&mut self, for_copy: &UploadCopy) {
        let held: usize = self.0.values().map(CopiedUpload::bytes).sum();
        if held + for_copy.bytes() > for_copy.limits.upload_bytes {
            self.0.retain(|_, copy| copy.bytes() == 0);
        }
    }

    /// A subscription's upload was sent to its end.
    pub(crate) fn keep_sent(
        &mut self,
        index: usize,
        subscription: &SubscriptionState,
        copy: UploadCopy,
    ) -> Result<(), RemoteError> {
        let copy = copy.finish(UploadHeader::from_taken(subscription))?;
        self.0.insert(index, copy);
        Ok(())
    }

    /// What is to be kept of a subscription's taken upload: the copy, else what the file says.
    pub(super) fn take(
        &mut self,
        index: usize,
        subscription: &SubscriptionState,
        database: &RemoteDatabase,
    ) -> Result<CopiedUpload, RemoteError> {
        match self.0.remove(&index) {
            Some(copy) => Ok(copy),
            None => read(subscription, database),
        }
    }
}

/// The taken upload out of the file, as a copy of it would be.
fn read(
    subscription: &SubscriptionState,
    database: &RemoteDatabase,
) -> Result<CopiedUpload, RemoteError> {
    let retried = database.retried(subscription)?;
    let mut copy = UploadCopy::new(database.kept_limits()).with_retried(retried);
    let mut cursor = UploadCursor::default();
    while let Some(chunk) = database.upload_chunk(subscription, &mut cursor)? {
        copy.add(&chunk)?;
        if copy.body.is_none() {
            return Ok(CopiedUpload::TooLarge);
        }
    }
    copy.finish(UploadHeader::from_taken(subscription))
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::message::{ColumnHeader, TableBegin};
    use tidewater_protocol::{Datum, Op, RowsWriter};

    use super::*;

    const MIB: usize = 1 << 20;

    const FIRST: UploadHeader = UploadHeader {
        sequence: 1,
        upload_id: None,
        may_be_sent_twice: false,
    };

    fn items() -> TableBegin {
        let column = |name: &str, column_type| ColumnHeader {
            name: name.into(),
            column_type,
            scale_plus_one: 0,
        };
        TableBegin {
            table: "item".into(),
            columns: vec![column("id", 1), column("name", 5)],
            key: vec![0],
            ..TableBegin::default()
        }
    }

    /// A copy of so many inserts of 1 MiB each.
    fn copy_of(count: usize) -> UploadCopy {
        let mut copy = UploadCopy::new(KeptLimits::default());
        let shape = items().shape().unwrap();
        for id in 0..count {
            let mut writer = RowsWriter::new(&shape);
            let name = "x".repeat(MIB - 16);
            writer.row(Op::Insert, &[Datum::Integer(id as i64), Datum::Text(&name)]);
            let chunk = UploadPiece {
                begin: (id == 0).then(items),
                rows: writer.take(),
                inserts: 1,
                updates: 0,
                deletes: 0,
            };
            copy.add(&chunk).unwrap();
        }
        copy
    }

    fn sent(copies: &mut UploadCopies, index: usize, count: usize) {
        let copy = copy_of(count);
        copies.make_room(&copy);
        let copied = copy.finish(FIRST).unwrap();
        copies.0.insert(index, copied);
    }

    #[test]
    fn what_is_too_large_is_not_copied_and_counted_on() {
        let copy = copy_of(7);
        assert!(copy.bytes() > 6 * MIB);
        assert!(matches!(
            copy.finish(FIRST).unwrap(),
            CopiedUpload::Whole(_)
        ));
        let copy = copy_of(20);
        assert_eq!((copy.bytes(), copy.end().inserts), (0, 20));
        assert!(matches!(
            copy.finish(FIRST).unwrap(),
            CopiedUpload::TooLarge
        ));
    }

    #[test]
    fn copies_together_are_not_larger_than_one_may_be() {
        let mut copies = UploadCopies::default();
        sent(&mut copies, 1, 3);
        sent(&mut copies, 2, 3);
        assert!(copies.0.contains_key(&1) && copies.0.contains_key(&2));
        sent(&mut copies, 3, 6);
        assert!(copies.0.contains_key(&3));
        for index in [1, 2] {
            assert!(!copies.0.contains_key(&index), "it is read from the file");
        }
    }
}
