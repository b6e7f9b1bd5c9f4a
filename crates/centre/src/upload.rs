//! Uploads as they reach the consolidated database, and what becomes of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use tidewater_protocol::message::{ForgottenRefusal, GivenUp, TableBegin};
use tidewater_protocol::pack::same;
use tidewater_protocol::{Code, Op, RowShape, RowsReader, UnpackedRow, UploadId};

use crate::context::SyncContext;
use crate::error::CentreError;
use crate::packed_rows::{RowsChunk, TableRequest};
use crate::scope::{Checkpoint, Partitions};
use crate::verdict::{ContendedChange, Resolutions, Verdicts};

/// One upload of one subscription, complete and validated: every chunk consists of
/// whole well-formed rows of operations Insert, Update and Delete.
#[derive(Clone, Debug)]
pub struct SyncUpload {
    /// Whose it is.
    pub context: SyncContext,
    /// The publication.
    pub publication: String,
    /// The upload's number; applied only if the subscription's last is one less.
    pub sequence: u64,
    /// Its random id.
    pub upload_id: UploadId,
    /// The verified checkpoint that the remote presented, if any: its scope is the
    /// last signed scope of the remote.
    pub checkpoint: Option<Checkpoint>,
    /// The remote says that the centre has forgotten it. Such an upload is applied once,
    /// whatever the remotes are that give it back; for the others it comes to nothing.
    pub given_back: bool,
    /// The remote's file is a copy or was restored, and the original may have sent these changes,
    /// too, as part of another upload.
    pub copied: bool,
    /// It has changes that were refused before, or were made from such before the remote heard that an
    /// operator has settled them: the numbers of the uploads with which they were refused last. An
    /// only 0: of whatever uploads.
    pub retried: Vec<u64>,
    /// Refused rows that its user has given up since.
    pub given_up: Vec<GivenUp>,
    /// Inserts of which the remote was told that they are refused, and of which the centre may have
    /// forgotten that.
    pub forgotten_refusals: Vec<ForgottenRefusal>,
    /// The rows, a table after the other in the order in which they were sent.
    pub tables: Vec<UploadTable>,
    /// What handlers have said of them.
    pub verdicts: Verdicts,
    /// What they have decided of rows that others have changed, too.
    pub resolutions: Resolutions,
}

/// The uploaded rows of one table.
#[derive(Clone, Debug)]
pub struct UploadTable {
    /// Table and columns as the remote announced them: known to the publication, or
    /// to an older version of it.
    pub begin: TableBegin,
    /// The rows.
    pub chunks: Vec<UploadChunk>,
}

impl UploadTable {
    /// Reads all rows, packed in this way.
    ///
    /// # Errors
    /// The rows cannot be read, or are none of an upload.
    pub fn each_row(
        &self,
        shape: &RowShape,
        mut take: impl FnMut(&UnpackedRow<'_>, Op),
    ) -> Result<(), CentreError> {
        for chunk in &self.chunks {
            each_packed(shape, &chunk.packed()?, |_, row| match row.op {
                Some(op @ (Op::Insert | Op::Update | Op::Delete)) => {
                    take(row, op);
                    Ok(())
                }
                _ => Err(malformed(NO_OPERATION)),
            })?;
        }
        Ok(())
    }
}

/// What is wrong with a row that says what only the centre says.
const NO_OPERATION: &str = "an operation that an upload cannot have";

/// An error of who sent the rows.
pub fn malformed(what: &str) -> CentreError {
    CentreError::Peer {
        message: what.to_owned(),
        code: Code::MalformedMessage,
    }
}

/// Reads packed rows; `take` gets each with where it begins.
///
/// # Errors
/// They cannot be read, or `take` fails.
pub fn each_packed(
    shape: &RowShape,
    packed: &[u8],
    mut take: impl FnMut(u32, &UnpackedRow<'_>) -> Result<(), CentreError>,
) -> Result<(), CentreError> {
    let mut reader = RowsReader::new(shape, packed);
    let mut row = UnpackedRow::default();
    loop {
        let offset = reader.consumed() as u32;
        match reader.next(&mut row) {
            Ok(true) => take(offset, &row)?,
            Ok(false) => return Ok(()),
            Err(error) => return Err(malformed(&format!("rows that cannot be read: {error}"))),
        }
    }
}

/// What an uploaded row is to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadedRowKind {
    /// An insert.
    Insert,
    /// An update that leaves the key.
    Update,
    /// An update that gives the row another key.
    Move,
    /// A delete.
    Delete,
}

impl UploadedRowKind {
    /// What an unpacked row is; `None` if it is none of an upload.
    pub fn from_row(shape: &RowShape, row: &UnpackedRow<'_>) -> Option<UploadedRowKind> {
        match row.op? {
            Op::Insert => Some(UploadedRowKind::Insert),
            Op::Delete => Some(UploadedRowKind::Delete),
            Op::Update if gives_another_key(shape, row) => Some(UploadedRowKind::Move),
            Op::Update => Some(UploadedRowKind::Update),
            _ => None,
        }
    }
}

/// Whether an update gives its row another key.
pub(crate) fn gives_another_key(shape: &RowShape, row: &UnpackedRow<'_>) -> bool {
    let mut key = shape.key.iter();
    key.any(|&column| !same(&row.old[column], &row.new[column]))
}

/// Where an uploaded row begins in its chunk, and what it is: 8 bytes, so that nobody unpacks a row
/// to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMark {
    /// In bytes.
    pub offset: u32,
    /// What the row is.
    pub kind: UploadedRowKind,
}

/// A piece of an upload's rows, with the mark of each where there was memory for them.
#[derive(Clone, Debug)]
pub struct UploadChunk {
    rows: RowsChunk,
    marks: Option<Arc<[RowMark]>>,
}

impl UploadChunk {
    /// `marks`: one of each row, in their order; without them whoever needs them reads the rows.
    pub fn new(rows: RowsChunk, marks: Option<Vec<RowMark>>) -> UploadChunk {
        UploadChunk {
            rows,
            marks: marks.map(Into::into),
        }
    }

    /// Marks the rows of a piece in memory.
    ///
    /// # Errors
    /// The rows cannot be read, or are none of an upload.
    pub fn from_packed(shape: &RowShape, packed: Vec<u8>) -> Result<UploadChunk, CentreError> {
        let marks = mark_rows(shape, &packed)?;
        Ok(UploadChunk::new(
            RowsChunk::Memory(packed.into()),
            Some(marks),
        ))
    }

    /// The mark of each row, in their order.
    ///
    /// # Errors
    /// It has none, and the rows cannot be read.
    pub(crate) fn marks(&self, shape: &RowShape) -> Result<Cow<'_, [RowMark]>, CentreError> {
        match &self.marks {
            Some(marks) => Ok(Cow::Borrowed(marks)),
            None => mark_rows(shape, &self.packed()?).map(Cow::Owned),
        }
    }

    /// How many bytes its rows have.
    pub fn length(&self) -> usize {
        self.rows.length()
    }

    /// The packed rows.
    ///
    /// # Errors
    /// The spool file cannot be read.
    pub fn packed(&self) -> Result<Bytes, CentreError> {
        self.rows.read().map_err(|error| CentreError::Internal {
            message: format!("an upload's spool file cannot be read: {error}"),
        })
    }
}

/// Marks packed rows.
fn mark_rows(shape: &RowShape, packed: &[u8]) -> Result<Vec<RowMark>, CentreError> {
    let mut marks = Vec::new();
    each_packed(shape, packed, |offset, row| {
        let kind = UploadedRowKind::from_row(shape, row);
        let kind = kind.ok_or_else(|| malformed(NO_OPERATION))?;
        marks.push(RowMark { offset, kind });
        Ok(())
    })?;
    Ok(marks)
}

/// What became of one upload of the list.
#[derive(Debug)]
pub enum UploadOutcome {
    /// It is applied and committed.
    Applied {
        /// What to tell the remote; stored with the subscription.
        result: UploadResult,
        /// What the same sync's download leaves out.
        own: OwnUpload,
    },
    /// This very upload was applied before: the stored result.
    AlreadyApplied {
        /// The stored result.
        result: UploadResult,
    },
    /// Handlers have to decide of these rows first; nothing was done, and its number is still free.
    Contended {
        /// The rows.
        rows: Vec<ContendedChange>,
    },
    /// Its number does not follow; nothing was done.
    OutOfSequence,
    /// It cannot be applied, now or ever (columns that cannot be reconciled, a spool
    /// file that cannot be read): nothing of it was, and its number is still free.
    /// The others of the list are not affected.
    Failed {
        /// Why.
        error: CentreError,
    },
}

/// What an upload came to, as it is stored and sent.
#[derive(Clone, PartialEq, Message)]
pub struct UploadResult {
    /// Rows inserted.
    #[prost(uint64, tag = "1")]
    pub inserts: u64,
    /// Rows updated.
    #[prost(uint64, tag = "2")]
    pub updates: u64,
    /// Rows deleted.
    #[prost(uint64, tag = "3")]
    pub deletes: u64,
    /// Changes that lost against the centre.
    #[prost(uint64, tag = "4")]
    pub conflicts: u64,
    /// Changes refused.
    #[prost(uint64, tag = "5")]
    pub refused: u64,
    /// Their rows: operations Refused, ConflictRow, ConflictGone.
    #[prost(message, repeated, tag = "6")]
    pub tables: Vec<ResultTable>,
    /// What the remote could write that it did not hold by the checkpoint that it presented.
    /// Not sent; see [`GainedPartitions`].
    #[prost(message, repeated, tag = "7")]
    pub gained: Vec<GainedPartitions>,
    /// The serial of the scope in that checkpoint, if there was one. Not sent; see
    /// [`UploadResult::is_of_another_scope`].
    #[prost(uint64, optional, tag = "8")]
    pub held: Option<u64>,
    /// Rows to which handlers have seen: the remote is to get what the centre has of them, or to
    /// hear that it has nothing. Not sent; the download answers them, see [`Self::requests`].
    #[prost(message, repeated, tag = "9")]
    pub asked: Vec<ResultTable>,
}

impl UploadResult {
    /// What the download of the same sync has to answer beside what the remote asks for.
    pub fn requests(&self) -> impl Iterator<Item = TableRequest> {
        self.asked.iter().map(|it| TableRequest {
            begin: it.begin.clone(),
            rows: it.rows.clone().into(),
        })
    }

    /// Whether a remote that presents this checkpoint holds other partitions than the one that
    /// uploaded, so that what the result says was gained is not what this one has gained: that
    /// was another copy of its file, or its checkpoint did not count, because another schema
    /// was published then.
    pub fn is_of_another_scope(&self, presented: Option<&Checkpoint>) -> bool {
        let presented = presented.map(|checkpoint| checkpoint.serial);
        presented.is_some() && presented != self.held
    }
}

/// Partitions of one rule that came into a remote's scope after its checkpoint and before
/// its upload. Rows of them may be on the remote without its checkpoint saying so: should they
/// leave the scope before it has downloaded, they have to be taken from it all the same. A sync
/// that has no download tells the remote to compare with its next one.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GainedPartitions {
    /// The number of the rule.
    #[prost(int64, tag = "1")]
    pub rule: i64,
    /// The partitions, packed as in a [`crate::Scope`].
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub partitions: Vec<Vec<u8>>,
}

impl GainedPartitions {
    /// The partitions of a rule among these that are not in scope now.
    pub fn lost<'a>(
        gained: &'a [GainedPartitions],
        rule: i64,
        scope: &'a Partitions,
    ) -> impl Iterator<Item = &'a Vec<u8>> {
        let of_rule = gained.iter().filter(move |it| it.rule == rule);
        let partitions = of_rule.flat_map(|it| &it.partitions);
        partitions.filter(|&packed| !scope.contains(packed))
    }
}

/// The result's rows of one table.
#[derive(Clone, PartialEq, Message)]
pub struct ResultTable {
    /// Table and columns of the rows.
    #[prost(message, required, tag = "1")]
    pub begin: TableBegin,
    /// The packed rows.
    #[prost(bytes = "vec", tag = "2")]
    pub rows: Vec<u8>,
}

/// What a sync uploaded, so that its own download does not send it back.
#[derive(Clone, Debug, Default)]
pub struct OwnUpload {
    /// The version under which the change log has the upload's effects.
    pub version: u64,
    /// Every log entry of that version is a row of this upload, and every such row
    /// is in the centre exactly as it was uploaded: the version can be left out
    /// whole. Only if nothing else was applied in the same transaction and no
    /// trigger, rule, cascade or conversion can have changed anything.
    pub skip_version: bool,
    /// Otherwise: (index of the table, packed key) to the packed row as uploaded,
    /// `None` for a delete. A row that is in the centre exactly so is left out.
    pub rows: HashMap<(usize, Vec<u8>), Option<Vec<u8>>>,
}
/// Reads a stored result.
pub fn decode_result(bytes: &[u8]) -> Result<UploadResult, CentreError> {
    UploadResult::decode(bytes).map_err(|error| CentreError::Internal {
        message: format!("a stored result cannot be read: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::{ColumnType, Datum, RowsWriter};

    #[test]
    fn a_chunk_without_marks_reads_the_same_ones() {
        let shape = RowShape {
            columns: vec![ColumnType::Integer, ColumnType::Text],
            key: vec![0],
        };
        let mut writer = RowsWriter::new(&shape);
        writer.row(Op::Insert, &[Datum::Integer(1), Datum::Text("a")]);
        writer.row(Op::Insert, &[Datum::Integer(2), Datum::Text("bc")]);
        let marked = UploadChunk::from_packed(&shape, writer.take()).unwrap();
        let unmarked = UploadChunk::new(marked.rows.clone(), None);
        let marks = marked.marks(&shape).unwrap();
        assert_eq!(marks.len(), 2);
        assert!(marks[1].offset > marks[0].offset);
        assert_eq!(unmarked.marks(&shape).unwrap(), marks);
    }
}
