//! The uploaded rows of one table: where they are, and what they mean to it.

use bytes::Bytes;

use tidewater_protocol::{Code, Datum, Op, Row, RowsReader};

use crate::columns::ColumnMap;
use crate::error::CentreError;
use crate::orphans;
use crate::postgres::binary::{Kind, decimal_is_exact};
use crate::postgres::model::{Compiled, CompiledTable, PgColumn};
use crate::upload::{RowsChunk, UploadTable};

/// Up to so many inserts go by statements, more by COPY.
pub(super) const COPY_THRESHOLD: u64 = 100;

/// Where an uploaded row begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowRef {
    chunk: u32,
    offset: u32,
}

impl RowRef {
    /// The bytes between two rows of a chunk; nothing is known across chunks.
    pub(super) fn distance(self, next: RowRef) -> usize {
        if self.chunk == next.chunk {
            next.offset.abs_diff(self.offset) as usize
        } else {
            0
        }
    }
}

/// The uploaded rows of one table.
pub(super) struct Incoming<'u> {
    /// Its place among those of the upload, which may have several of one table.
    pub(super) place: usize,
    /// The table's index in the publication.
    pub(super) index: usize,
    pub(super) table: &'u CompiledTable,
    pub(super) map: ColumnMap,
    /// The published columns that the remote sends.
    pub(super) sent: Vec<usize>,
    /// A trigger can change the key of a row before it is inserted, or keep it out.
    pub(super) edits_inserts: bool,
    /// A unique constraint can be deferred: `ON CONFLICT` does not work then.
    pub(super) defers_unique: bool,
    /// Row security holds for us: COPY does not work then.
    pub(super) row_security: bool,
    upload: &'u UploadTable,
    /// Whether the remote's columns are the published ones, in their order.
    identity: bool,
    pub(super) inserts: u64,
    /// The inserts, if there are few.
    pub(super) insert_refs: Vec<RowRef>,
    pub(super) updates: Vec<RowRef>,
    pub(super) deletes: Vec<RowRef>,
}

impl<'u> Incoming<'u> {
    /// The rows as they came.
    pub(super) fn upload(&self) -> &UploadTable {
        self.upload
    }

    /// Looks through the rows of a published table once.
    pub(super) fn new(
        publication: &'u Compiled,
        upload: &'u UploadTable,
        index: usize,
        map: ColumnMap,
    ) -> Result<Incoming<'u>, CentreError> {
        let table = &publication.tables[index];
        let published = map.sources.iter().enumerate();
        let sent = published
            .filter(|(_, it)| it.is_some())
            .map(|(index, _)| index);
        let sent: Vec<usize> = sent.collect();
        let in_order = map
            .sources
            .iter()
            .enumerate()
            .all(|(at, it)| *it == Some(at));
        let mut incoming = Incoming {
            place: 0,
            index,
            table,
            identity: in_order && map.shape.columns.len() == table.columns.len(),
            map,
            sent,
            edits_inserts: false,
            defers_unique: false,
            row_security: false,
            upload,
            inserts: 0,
            insert_refs: Vec::new(),
            updates: Vec::new(),
            deletes: Vec::new(),
        };
        incoming.look_through()?;
        Ok(incoming)
    }

    fn look_through(&mut self) -> Result<(), CentreError> {
        let mut found = Found::default();
        self.each(|at, row| found.note(at, row))?;
        self.inserts = found.inserts;
        self.updates = found.updates;
        self.deletes = found.deletes;
        if self.inserts <= COPY_THRESHOLD {
            self.insert_refs = found.few;
        }
        Ok(())
    }

    /// Finds the inserts, after all, if there are many.
    pub(super) fn find_inserts(&self) -> Result<Vec<RowRef>, CentreError> {
        if self.inserts <= COPY_THRESHOLD {
            return Ok(self.insert_refs.clone());
        }
        let mut inserts = Vec::with_capacity(self.inserts as usize);
        self.each(|at, row| {
            if row.op == Some(Op::Insert) {
                inserts.push(at);
            }
            Ok(())
        })?;
        Ok(inserts)
    }

    /// The rows as they came.
    pub(super) fn uploaded(&self) -> orphans::Uploaded<'_> {
        (self.upload, self.index, &self.map)
    }

    /// How many chunks the rows come in.
    pub(super) fn chunk_count(&self) -> usize {
        self.upload.chunks.len()
    }

    /// A chunk's bytes.
    pub(super) fn chunk(&self, chunk: usize) -> Result<Bytes, CentreError> {
        read(&self.upload.chunks[chunk])
    }

    fn each(
        &self,
        mut take: impl FnMut(RowRef, &Row<'_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        for chunk in 0..self.upload.chunks.len() {
            let bytes = self.chunk(chunk)?;
            let mut reader = RowsReader::new(&self.map.shape, &bytes);
            let mut row = Row::default();
            loop {
                let at = RowRef {
                    chunk: chunk as u32,
                    offset: reader.consumed() as u32,
                };
                match reader.next(&mut row) {
                    Ok(true) => take(at, &row)?,
                    Ok(false) => break,
                    Err(error) => return Err(malformed(&error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Reads the rows at some places, in order.
    pub(super) fn rows(
        &self,
        refs: &[RowRef],
        mut take: impl FnMut(usize, &Row<'_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        let mut at = 0;
        while let Some(first) = refs.get(at) {
            let bytes = self.chunk(first.chunk as usize)?;
            let mut row = Row::default();
            while let Some(next) = refs.get(at).filter(|next| next.chunk == first.chunk) {
                let rest = &bytes[next.offset as usize..];
                match RowsReader::new(&self.map.shape, rest).next(&mut row) {
                    Ok(true) => take(at, &row)?,
                    _ => return Err(malformed("a row that was there before is gone")),
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// Uploaded values in the order of the published columns, NULL for those that the
    /// remote does not send.
    pub(super) fn arranged<'r, 'a>(
        &self,
        values: &'r [Datum<'a>],
        buffer: &'r mut Vec<Datum<'a>>,
    ) -> &'r [Datum<'a>] {
        if self.identity {
            return values;
        }
        buffer.clear();
        let sources = self.map.sources.iter();
        buffer.extend(sources.map(|source| source.map_or(Datum::Null, |at| values[at])));
        buffer
    }

    /// The columns that an insert writes.
    pub(super) fn written(&self) -> impl Iterator<Item = usize> {
        let columns = self.sent.iter().copied();
        columns.filter(|&index| !self.table.columns[index].generated)
    }
}

/// Where rows are, by operation.
#[derive(Default)]
struct Found {
    inserts: u64,
    /// The inserts, as long as there are few.
    few: Vec<RowRef>,
    updates: Vec<RowRef>,
    deletes: Vec<RowRef>,
}

impl Found {
    fn note(&mut self, at: RowRef, row: &Row<'_>) -> Result<(), CentreError> {
        match row.op {
            Some(Op::Insert) => {
                self.inserts += 1;
                if self.inserts <= COPY_THRESHOLD {
                    self.few.push(at);
                }
            }
            Some(Op::Update) => self.updates.push(at),
            Some(Op::Delete) => self.deletes.push(at),
            _ => return Err(malformed("a row of another operation in an upload")),
        }
        Ok(())
    }
}

fn read(chunk: &RowsChunk) -> Result<Bytes, CentreError> {
    chunk.read().map_err(|error| CentreError::Internal {
        message: format!("an upload's spool file cannot be read: {error}"),
    })
}

/// Why a value cannot go into its column, without asking the database.
pub(super) fn obstacle(column: &PgColumn, is_key: bool, value: &Datum<'_>) -> Option<String> {
    // What is blank beyond the limit of a varchar is cut off without an error.
    let cut = |text: &str| {
        let limit = column.limit.and_then(|limit| usize::try_from(limit).ok());
        column.kind == Kind::Text && limit.is_some_and(|limit| text.chars().count() > limit)
    };
    let padded =
        |text: &str| is_key && text.ends_with(' ') && (column.kind == Kind::Bpchar || cut(text));
    match value {
        // Two spellings of one key would be two rows on the remote.
        Datum::Text(text) if padded(text) => Some(unfit(column, value)),
        Datum::Time(micros) | Datum::Timestamp(micros) | Datum::TimestampTz(micros)
            if is_key && is_rounded(column, *micros) =>
        {
            Some(unfit(column, value))
        }
        Datum::Loose(_) => Some(unfit(column, value)),
        _ => None,
    }
}

/// Whether a column that keeps fewer digits of a second changes a time.
fn is_rounded(column: &PgColumn, micros: i64) -> bool {
    let digits = column.limit.and_then(|limit| u32::try_from(limit).ok());
    let infinite = micros == i64::MAX || micros == i64::MIN;
    !infinite && digits.is_some_and(|it| it < 6 && micros % 10_i64.pow(6 - it) != 0)
}

/// The reason why a value does not fit a column.
pub(super) fn unfit(column: &PgColumn, value: &Datum<'_>) -> String {
    const LONGEST: usize = 60;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    format!(
        "column {:?} of type {} cannot hold {text:?}",
        column.name, column.type_name
    )
}

/// Whether the column gives back the value exactly as it was.
pub(super) fn is_exact(column: &PgColumn, value: &Datum<'_>) -> bool {
    let fits = |text: &str| match column.limit {
        Some(limit) => text.len() <= limit as usize || text.chars().count() <= limit as usize,
        None => true,
    };
    match (column.kind, *value) {
        (_, Datum::Null) => true,
        (Kind::Jsonb | Kind::Other, _) => false,
        (Kind::Text, Datum::Text(text)) => fits(text),
        (Kind::Bpchar, Datum::Text(text)) => fits(text) && !text.ends_with(' '),
        (Kind::Float4, Datum::Real(real)) => f64::from(real as f32).to_bits() == real.to_bits(),
        (Kind::Float8, Datum::Real(real)) => {
            real.is_finite() && (real != 0.0 || real.is_sign_positive())
                || real.is_infinite()
                || real.to_bits() == f64::NAN.to_bits()
        }
        (Kind::Numeric, Datum::Decimal(decimal)) => {
            // A negative scale rounds before the point.
            !column.type_name.contains('-') && decimal_is_exact(decimal, column.scale)
        }
        (Kind::Time | Kind::Timestamp | Kind::TimestampTz, _) => {
            column.limit.is_none_or(|limit| limit >= 6)
        }
        _ => true,
    }
}

pub(super) fn malformed(what: &str) -> CentreError {
    CentreError::Peer {
        message: what.to_owned(),
        code: Code::MalformedMessage,
    }
}
