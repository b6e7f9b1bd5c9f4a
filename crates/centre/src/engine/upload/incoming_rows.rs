//! The uploaded rows of one table: where they are, and what they mean to it.

use std::borrow::Cow;

use bytes::Bytes;

use tidewater_protocol::{Datum, Op, RowsReader, UnpackedRow};

use crate::engine::publication::Publication;
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::upload::column_map::{AnnouncedColumns, ColumnMap};
use crate::engine::upload::row_keys::UploadedTable;
use crate::error::CentreError;
use crate::upload::{RowMark, UploadTable, UploadedRowKind, each_packed, malformed};

/// Up to so many inserts are written as other rows are, more are loaded in bulk where the database
/// can.
pub const FEW_INSERTS: u64 = 100;

/// Where an uploaded row begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowRef {
    chunk: u32,
    offset: u32,
}

impl RowRef {
    /// The number of its chunk.
    pub fn chunk(self) -> usize {
        self.chunk as usize
    }

    /// The bytes between two rows of a chunk; nothing is known across chunks.
    pub fn distance(self, next: RowRef) -> usize {
        if self.chunk == next.chunk {
            next.offset.abs_diff(self.offset) as usize
        } else {
            0
        }
    }
}

/// The uploaded rows of one table.
pub struct IncomingTable<'u, T: TableAdapter> {
    /// Its place among those of the upload, which may have several of one table.
    pub place: usize,
    /// The table's index in the publication.
    pub index: usize,
    /// What the adapter knows of it.
    pub table: &'u ServedTable<T>,
    /// How the remote's columns relate to the published ones.
    pub map: ColumnMap,
    /// The published columns that the remote sends.
    pub sent: Vec<usize>,
    /// Those of them that remotes do not write.
    pub read_only: Vec<usize>,
    /// Those of them that an insert writes.
    pub written: Vec<usize>,
    /// Those of them that an update can set.
    pub updatable: Vec<usize>,
    /// Whether remotes may change the table.
    pub is_open: bool,
    /// How many inserts there are.
    pub inserts: u64,
    /// The updates that give rows other keys.
    pub moves: Vec<RowRef>,
    /// The other updates.
    pub updates: Vec<RowRef>,
    /// The deletes.
    pub deletes: Vec<RowRef>,
    upload: &'u UploadTable,
    /// The marks of each chunk's rows.
    marks: Vec<Cow<'u, [RowMark]>>,
    /// Whether the remote's columns are the published ones, in their order.
    identity: bool,
}

impl<T: TableAdapter> IncomingTable<'_, T> {
    /// How many inserts, updates and deletes there are.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let updates = self.moves.len() + self.updates.len();
        [self.inserts, updates as u64, self.deletes.len() as u64]
    }
}

/// The images of an uploaded row, in the order of the published columns.
pub struct UploadedImages<'r, 'a> {
    /// What is to be done.
    pub op: Op,
    /// The key.
    pub key: &'r [Datum<'a>],
    /// The pre-image, but of an insert.
    pub old: Option<&'r [Datum<'a>]>,
    /// The new image, but of a delete.
    pub new: Option<&'r [Datum<'a>]>,
}

impl<'u, T: TableAdapter> IncomingTable<'u, T> {
    /// Sorts the rows of a published table by what they are.
    ///
    /// # Errors
    /// Rows without marks cannot be read.
    pub fn new(
        publication: &'u Publication<T>,
        upload: &'u UploadTable,
        place: usize,
        index: usize,
        map: ColumnMap,
    ) -> Result<IncomingTable<'u, T>, CentreError> {
        let (table, schema) = (
            &publication.tables[index],
            &publication.schema.tables[index],
        );
        let sources = map.sources.iter().enumerate();
        let sent: Vec<usize> = sources
            .filter_map(|(column, source)| source.map(|_| column))
            .collect();
        let mut read_only = publication.writes[index].read_only.clone();
        read_only.retain(|column| sent.contains(column));
        let mut written = sent.clone();
        written
            .retain(|column| !table.columns[*column].is_generated() && !read_only.contains(column));
        let mut updatable = written.clone();
        updatable.retain(|&column| table.columns[column].is_settable());
        let mut sources = map.sources.iter().enumerate();
        let in_order = sources.all(|(at, source)| *source == Some(at));
        let marks = upload.chunks.iter().map(|it| it.marks(&map.shape));
        let mut incoming = IncomingTable {
            place,
            index,
            table,
            sent,
            read_only,
            written,
            updatable,
            is_open: schema.direction.uploads(),
            inserts: 0,
            moves: Vec::new(),
            updates: Vec::new(),
            deletes: Vec::new(),
            upload,
            marks: marks.collect::<Result<_, _>>()?,
            identity: in_order && map.shape.columns.len() == schema.columns.len(),
            map,
        };
        incoming.sort_rows();
        Ok(incoming)
    }

    /// The same with everybody's rights: no column is kept from whoever writes.
    pub(crate) fn unrestricted(mut self) -> IncomingTable<'u, T> {
        self.read_only.clear();
        self.written.clone_from(&self.sent);
        self.written
            .retain(|column| !self.table.columns[*column].is_generated());
        self.updatable.clone_from(&self.written);
        self.updatable
            .retain(|&column| self.table.columns[column].is_settable());
        self.is_open = true;
        self
    }

    /// The same for rows of the server's own making, under the header of the table as it is.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn of_ours(
        publication: &'u Publication<T>,
        upload: &'u UploadTable,
        place: usize,
    ) -> Result<IncomingTable<'u, T>, CentreError> {
        match ColumnMap::find(&publication.schema, &upload.begin)? {
            AnnouncedColumns::Published(index, map) => {
                IncomingTable::new(publication, upload, place, index, map)
            }
            AnnouncedColumns::Unpublished(_) => Err(CentreError::Internal {
                message: "a published table is not published".into(),
            }),
        }
    }

    fn sort_rows(&mut self) {
        let (mut moves, mut updates, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, at) in marked_rows(&self.marks) {
            match kind {
                UploadedRowKind::Insert => {}
                UploadedRowKind::Move => moves.push(at),
                UploadedRowKind::Update => updates.push(at),
                UploadedRowKind::Delete => deletes.push(at),
            }
        }
        let others = moves.len() + updates.len() + deletes.len();
        let rows: usize = self.marks.iter().map(|it| it.len()).sum();
        self.inserts = (rows - others) as u64;
        (self.moves, self.updates, self.deletes) = (moves, updates, deletes);
    }
}

/// What each row of a table is, and where it begins.
fn marked_rows(marks: &[Cow<'_, [RowMark]>]) -> impl Iterator<Item = (UploadedRowKind, RowRef)> {
    let chunks = (0..).zip(marks);
    chunks.flat_map(|(chunk, it)| {
        it.iter().map(move |mark| {
            let offset = mark.offset;
            (mark.kind, RowRef { chunk, offset })
        })
    })
}

impl<T: TableAdapter> IncomingTable<'_, T> {
    /// The rows as they came.
    pub fn upload(&self) -> &UploadTable {
        self.upload
    }

    /// The rows as they came, and how they are read.
    pub(crate) fn uploaded(&self) -> UploadedTable<'_> {
        UploadedTable {
            upload: self.upload,
            index: self.index,
            map: &self.map,
            has_moves: !self.moves.is_empty(),
        }
    }

    /// Whether a published column belongs to the key.
    pub fn is_key(&self, column: usize) -> bool {
        let source = self.map.sources[column];
        source.is_some_and(|source| self.map.shape.key.contains(&source))
    }

    /// How many rows there are.
    pub fn count(&self) -> u64 {
        let others = self.moves.len() + self.updates.len() + self.deletes.len();
        self.inserts + others as u64
    }

    /// The operation of each row, with the number of its chunk.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (usize, Op)> {
        marked_rows(&self.marks).map(|(kind, at)| {
            let op = match kind {
                UploadedRowKind::Insert => Op::Insert,
                UploadedRowKind::Update | UploadedRowKind::Move => Op::Update,
                UploadedRowKind::Delete => Op::Delete,
            };
            (at.chunk(), op)
        })
    }

    /// Finds the inserts.
    pub fn find_inserts(&self) -> Vec<RowRef> {
        let inserts = marked_rows(&self.marks).filter(|(kind, _)| *kind == UploadedRowKind::Insert);
        inserts.map(|(_, at)| at).collect()
    }

    /// How many chunks the rows come in.
    pub fn chunk_count(&self) -> usize {
        self.upload.chunks.len()
    }

    /// A chunk's bytes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn chunk(&self, chunk: usize) -> Result<Bytes, CentreError> {
        self.upload.chunks[chunk].packed()
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn each(
        &self,
        mut take: impl FnMut(RowRef, &UnpackedRow<'_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        for (chunk, rows) in (0..).zip(&self.upload.chunks) {
            each_packed(&self.map.shape, &rows.packed()?, |offset, row| {
                take(RowRef { chunk, offset }, row)
            })?;
        }
        Ok(())
    }

    /// Reads the rows at some places, in order; `take` gets each with its place in the list.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn rows(
        &self,
        refs: &[RowRef],
        mut take: impl FnMut(usize, &UnpackedRow<'_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        let mut at = 0;
        while let Some(first) = refs.get(at) {
            let bytes = self.chunk(first.chunk as usize)?;
            let mut row = UnpackedRow::default();
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

    /// As [`Self::rows`], with the images in the order of the published columns.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn images(
        &self,
        refs: &[RowRef],
        mut take: impl FnMut(usize, &UploadedImages<'_, '_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        self.rows(refs, |at, row| self.with_images(row, |it| take(at, it)))
    }

    /// The images of a row.
    pub fn with_images<R>(
        &self,
        row: &UnpackedRow<'_>,
        take: impl FnOnce(&UploadedImages<'_, '_>) -> R,
    ) -> R {
        let (mut old_buffer, mut new_buffer) = (Vec::new(), Vec::new());
        let op = row.op.unwrap_or(Op::Insert);
        let old = (op != Op::Insert).then(|| self.arranged(&row.old, &mut old_buffer));
        let new = (op != Op::Delete).then(|| self.arranged(&row.new, &mut new_buffer));
        take(&UploadedImages {
            op,
            key: &row.key,
            old,
            new,
        })
    }

    /// Uploaded values in the order of the published columns, NULL for those that the
    /// remote does not send.
    pub fn arranged<'r, 'a>(
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
}

/// So many rows of the centre are looked at together.
pub(super) const ROWS_AT_ONCE: usize = 2_000;
