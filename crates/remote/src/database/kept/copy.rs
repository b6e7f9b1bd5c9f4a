//! An upload as it is kept, put together while it is read.
//!
//! Owns the frames of a kept upload, or its [outlines](super::outline). A sync copies them while
//! it sends them, so that nothing is
//! read twice; only what it did not send is read out of the file. Both are the same to the
//! byte, however the frames were cut on the connection.

use std::collections::HashMap;

use bytes::BytesMut;
use tidewater_protocol::UploadId;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_rows};
use tidewater_protocol::message::{Control, UploadBegin, UploadEnd};

use super::content::{Part, each_part};
use super::outline::Outlines;
use super::{KeptLimits, put};
use crate::database::{Database, SubscriptionState, UploadChunk, UploadCursor};
use crate::error::RemoteError;

/// Counts an upload piece by piece, and copies it as far as it is kept.
#[derive(Debug)]
pub(crate) struct UploadCopy {
    form: Form,
    counted: Counted,
    limits: KeptLimits,
}

/// How an upload is copied.
#[derive(Debug)]
enum Form {
    /// Whole: what is between its beginning and its end.
    Whole(BytesMut),
    /// It is too large to be kept whole.
    Outlines(Outlines),
    /// Its outlines are too large, too.
    Nothing,
}

/// What is kept of an upload.
#[derive(Debug)]
pub(crate) enum Copied {
    /// It holds nothing, or is too large.
    Nothing,
    /// All of it, frame by frame.
    Whole(Vec<u8>),
    /// The outlines of its parts.
    Outlines(Vec<Vec<u8>>),
}

impl Copied {
    fn bytes(&self) -> usize {
        match self {
            Copied::Nothing => 0,
            Copied::Whole(bytes) => bytes.len(),
            Copied::Outlines(parts) => parts.iter().map(Vec::len).sum(),
        }
    }
}

impl UploadCopy {
    pub(crate) fn new(limits: KeptLimits) -> UploadCopy {
        UploadCopy {
            form: Form::Whole(BytesMut::new()),
            counted: Counted::default(),
            limits,
        }
    }

    /// The next piece of the upload.
    pub(crate) fn add(&mut self, chunk: &UploadChunk) -> Result<(), RemoteError> {
        self.counted.add(chunk);
        let part_bytes = self.limits.part_bytes;
        if let Form::Whole(body) = &mut self.form {
            if body.len() + chunk.rows.len() <= self.limits.whole_upload_bytes {
                return put_chunk(body, chunk);
            }
            let mut outlines = Outlines::default();
            put(body, Control::UploadEnd(UploadEnd::default()))?;
            each_part(std::mem::take(body), |part| match part {
                Part::Begin(_) => Ok(()),
                Part::Table(begin, rows) => outlines.add(Some(&begin), &rows, part_bytes),
            })?;
            self.form = Form::Outlines(outlines);
        }
        if let Form::Outlines(outlines) = &mut self.form {
            outlines.add(chunk.begin.as_ref(), &chunk.rows, part_bytes)?;
            if outlines.bytes() > self.limits.outlines_bytes {
                self.form = Form::Nothing;
            }
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
        match &self.form {
            Form::Whole(body) => body.len(),
            Form::Outlines(outlines) => outlines.bytes(),
            Form::Nothing => 0,
        }
    }

    /// What is kept of the upload.
    fn finish(self, sequence: u64, upload_id: Option<UploadId>) -> Result<Copied, RemoteError> {
        Ok(match self.form {
            Form::Whole(body) => match whole(&body, &self.counted, sequence, upload_id)? {
                Some(bytes) => Copied::Whole(bytes),
                None => Copied::Nothing,
            },
            Form::Outlines(outlines) => Copied::Outlines(outlines.finish()?),
            Form::Nothing => Copied::Nothing,
        })
    }
}

/// How many rows of an upload there were, and their checksum.
#[derive(Debug, Default)]
struct Counted {
    rows: UploadEnd,
    checksum: crc32fast::Hasher,
}

impl Counted {
    fn add(&mut self, chunk: &UploadChunk) {
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

/// Puts a whole upload together.
#[derive(Debug, Default)]
pub(super) struct Frames {
    body: BytesMut,
    counted: Counted,
}

impl Frames {
    pub(super) fn add(&mut self, chunk: &UploadChunk) -> Result<(), RemoteError> {
        self.counted.add(chunk);
        put_chunk(&mut self.body, chunk)
    }

    /// The upload; `None` if nothing is in it.
    pub(super) fn finish(
        self,
        sequence: u64,
        upload_id: Option<UploadId>,
    ) -> Result<Option<Vec<u8>>, RemoteError> {
        whole(&self.body, &self.counted, sequence, upload_id)
    }
}

fn put_chunk(body: &mut BytesMut, chunk: &UploadChunk) -> Result<(), RemoteError> {
    if let Some(begin) = &chunk.begin {
        put(body, Control::TableBegin(begin.clone()))?;
    }
    put_rows(body, SYNC_CHANNEL, &chunk.rows);
    Ok(())
}

/// A whole upload as it is kept; `None` if it holds nothing.
fn whole(
    body: &[u8],
    counted: &Counted,
    sequence: u64,
    upload_id: Option<UploadId>,
) -> Result<Option<Vec<u8>>, RemoteError> {
    let end = counted.end();
    let rows @ 1.. = end.inserts + end.updates + end.deletes else {
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
    };
    put(&mut frames, Control::UploadBegin(begin))?;
    frames.extend_from_slice(body);
    put(&mut frames, Control::UploadEnd(end))?;
    Ok(Some(frames.into()))
}

/// What is kept of the uploads that a sync has sent, by subscription. Together they are not
/// larger than one upload that is kept whole.
#[derive(Debug, Default)]
pub(crate) struct Copies(HashMap<usize, Copied>);

impl Copies {
    /// Makes room for the copy under way. Those that go are read out of the file, if their
    /// results come.
    pub(crate) fn make_room(&mut self, for_copy: &UploadCopy) {
        let held: usize = self.0.values().map(Copied::bytes).sum();
        if held + for_copy.bytes() > for_copy.limits.whole_upload_bytes {
            self.0.retain(|_, copy| copy.bytes() == 0);
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
    ) -> Result<Copied, RemoteError> {
        match self.0.remove(&index) {
            Some(copy) => Ok(copy),
            None => read(subscription, database),
        }
    }
}

/// The taken upload out of the file, as a copy of it would be.
fn read(subscription: &SubscriptionState, database: &Database) -> Result<Copied, RemoteError> {
    let mut copy = UploadCopy::new(database.kept_limits());
    let mut cursor = UploadCursor::default();
    while let Some(chunk) = database.upload_chunk(subscription, &mut cursor)? {
        copy.add(&chunk)?;
        if matches!(copy.form, Form::Nothing) {
            return Ok(Copied::Nothing);
        }
    }
    copy.finish(subscription.sequence + 1, subscription.taken)
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::message::{ColumnHeader, TableBegin};
    use tidewater_protocol::{Datum, Op, RowsWriter};

    use super::*;

    const MIB: usize = 1 << 20;

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
        let mut copy = UploadCopy::new(KeptLimits {
            part_bytes: 8 * MIB,
            ..KeptLimits::default()
        });
        let shape = items().shape().unwrap();
        for id in 0..count {
            let mut writer = RowsWriter::new(&shape);
            let name = "x".repeat(MIB - 16);
            writer.row(Op::Insert, &[Datum::Integer(id as i64), Datum::Text(&name)]);
            let chunk = UploadChunk {
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

    fn sent(copies: &mut Copies, index: usize, count: usize) {
        let copy = copy_of(count);
        copies.make_room(&copy);
        let copied = copy.finish(1, None).unwrap();
        copies.0.insert(index, copied);
    }

    #[test]
    fn what_is_too_large_is_outlined_in_parts_and_counted_on() {
        let copy = copy_of(7);
        assert!(copy.bytes() > 6 * MIB);
        assert!(matches!(copy.finish(1, None).unwrap(), Copied::Whole(_)));
        let copy = copy_of(20);
        assert!(copy.bytes() < 1000);
        assert_eq!(copy.end().inserts, 20);
        let Copied::Outlines(parts) = copy.finish(1, None).unwrap() else {
            panic!("it is not outlined");
        };
        let mut rows = Vec::new();
        for part in &parts {
            let mut count = 0;
            each_part(BytesMut::from(&part[..]), |part| {
                if let Part::Table(begin, packed) = part {
                    super::super::content::each_row(&begin, &packed, |row, _, _| {
                        assert_eq!(row.op, Some(Op::Request));
                        count += 1;
                    })?;
                }
                Ok(())
            })
            .unwrap();
            rows.push(count);
        }
        assert_eq!(rows, [8, 8, 4], "each is at most 8 MiB when it is whole");
    }

    #[test]
    fn of_what_has_too_large_outlines_nothing_is_kept() {
        let mut copy = copy_of(1);
        copy.limits = KeptLimits {
            whole_upload_bytes: 100,
            outlines_bytes: 10,
            ..copy.limits
        };
        let chunk = UploadChunk {
            begin: Some(items()),
            rows: Vec::new(),
            inserts: 0,
            updates: 0,
            deletes: 0,
        };
        copy.add(&chunk).unwrap();
        assert!(matches!(copy.finish(1, None).unwrap(), Copied::Nothing));
    }

    #[test]
    fn copies_together_are_not_larger_than_one_may_be() {
        let mut copies = Copies::default();
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
