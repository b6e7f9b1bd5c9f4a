//! The uploaded rows of one table: where they are, and what they mean to it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;

use tidewater_protocol::{Code, Datum, Op, Row, RowsReader};

use super::rows::TargetTable;
use crate::columns::ColumnMap;
use crate::engine::publication::Publication;
use crate::error::CentreError;
use crate::orphans;
use crate::upload::UploadTable;

/// Up to so many inserts are written as other rows are, more are loaded in bulk where the database
/// can.
pub(crate) const FEW_INSERTS: u64 = 100;

/// Where an uploaded row begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowRef {
    chunk: u32,
    offset: u32,
}

impl RowRef {
    /// The bytes between two rows of a chunk; nothing is known across chunks.
    pub(crate) fn distance(self, next: RowRef) -> usize {
        if self.chunk == next.chunk {
            next.offset.abs_diff(self.offset) as usize
        } else {
            0
        }
    }
}

/// The uploaded rows of one table.
pub(crate) struct Incoming<'u, T> {
    /// Its place among those of the upload, which may have several of one table.
    pub(crate) place: usize,
    /// The table's index in the publication.
    pub(crate) index: usize,
    pub(crate) table: &'u T,
    pub(crate) map: ColumnMap,
    /// The published columns that the remote sends.
    pub(crate) sent: Vec<usize>,
    /// Those of them that an insert writes.
    pub(crate) written: Vec<usize>,
    /// Those of them that an update can set.
    pub(crate) updatable: Vec<usize>,
    /// Whether remotes may change the table.
    pub(crate) is_open: bool,
    pub(crate) inserts: u64,
    pub(crate) updates: Vec<RowRef>,
    pub(crate) deletes: Vec<RowRef>,
    upload: &'u UploadTable,
    /// Whether the remote's columns are the published ones, in their order.
    identity: bool,
    /// The inserts, if there are few.
    few_inserts: Vec<RowRef>,
}

/// The images of an uploaded row, in the order of the published columns.
pub(crate) struct Uploaded<'r, 'a> {
    pub(crate) op: Op,
    pub(crate) key: &'r [Datum<'a>],
    pub(crate) old: Option<&'r [Datum<'a>]>,
    pub(crate) new: Option<&'r [Datum<'a>]>,
}

impl<'u, T: TargetTable> Incoming<'u, T> {
    /// Looks through the rows of a published table once.
    ///
    /// # Errors
    /// The rows cannot be read, or are none of an upload.
    pub(crate) fn new(
        publication: &'u Publication<T>,
        upload: &'u UploadTable,
        place: usize,
        index: usize,
        map: ColumnMap,
    ) -> Result<Incoming<'u, T>, CentreError> {
        let (table, schema) = (
            &publication.tables[index],
            &publication.schema.tables[index],
        );
        let sources = map.sources.iter().enumerate();
        let sent: Vec<usize> = sources
            .filter_map(|(column, source)| source.map(|_| column))
            .collect();
        let mut written = sent.clone();
        written.retain(|&column| table.is_written(column));
        let mut updatable = written.clone();
        updatable.retain(|&column| table.is_settable(column) && !schema.key.contains(&column));
        let mut sources = map.sources.iter().enumerate();
        let in_order = sources.all(|(at, source)| *source == Some(at));
        let mut incoming = Incoming {
            place,
            index,
            table,
            sent,
            written,
            updatable,
            is_open: schema.direction.uploads(),
            inserts: 0,
            updates: Vec::new(),
            deletes: Vec::new(),
            upload,
            identity: in_order && map.shape.columns.len() == schema.columns.len(),
            few_inserts: Vec::new(),
            map,
        };
        incoming.look_through()?;
        Ok(incoming)
    }

    fn look_through(&mut self) -> Result<(), CentreError> {
        let (mut inserts, mut few) = (0, Vec::new());
        let (mut updates, mut deletes) = (Vec::new(), Vec::new());
        self.each(|at, row| {
            match row.op {
                Some(Op::Insert) => {
                    inserts += 1;
                    if inserts <= FEW_INSERTS {
                        few.push(at);
                    }
                }
                Some(Op::Update) => updates.push(at),
                Some(Op::Delete) => deletes.push(at),
                _ => return Err(malformed("a row of another operation in an upload")),
            }
            Ok(())
        })?;
        self.inserts = inserts;
        self.updates = updates;
        self.deletes = deletes;
        if inserts <= FEW_INSERTS {
            self.few_inserts = few;
        }
        Ok(())
    }
}

impl<T> Incoming<'_, T> {
    /// The rows as they came.
    pub(crate) fn upload(&self) -> &UploadTable {
        self.upload
    }

    /// The rows as they came, and how they are read.
    pub(crate) fn uploaded(&self) -> orphans::Uploaded<'_> {
        (self.upload, self.index, &self.map)
    }

    /// Finds the inserts.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn find_inserts(&self) -> Result<Vec<RowRef>, CentreError> {
        if self.inserts <= FEW_INSERTS {
            return Ok(self.few_inserts.clone());
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

    /// How many chunks the rows come in.
    pub(crate) fn chunk_count(&self) -> usize {
        self.upload.chunks.len()
    }

    /// A chunk's bytes.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn chunk(&self, chunk: usize) -> Result<Bytes, CentreError> {
        let read = self.upload.chunks[chunk].read();
        read.map_err(|error| CentreError::Internal {
            message: format!("an upload's spool file cannot be read: {error}"),
        })
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn each(
        &self,
        mut take: impl FnMut(RowRef, &Row<'_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        for chunk in 0..self.chunk_count() {
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

    /// Reads the rows at some places, in order; `take` gets each with its place in the list.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn rows(
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

    /// The rows at some places, packed; behind each may be others.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn packed(&self, refs: &[RowRef]) -> Result<Vec<Bytes>, CentreError> {
        let mut chunks: HashMap<u32, Bytes> = HashMap::new();
        let packed = refs.iter().map(|at| {
            let chunk = match chunks.entry(at.chunk) {
                Entry::Occupied(read) => read.into_mut(),
                Entry::Vacant(unread) => unread.insert(self.chunk(at.chunk as usize)?),
            };
            Ok(chunk.slice(at.offset as usize..))
        });
        packed.collect()
    }

    /// As [`Self::rows`], with the images in the order of the published columns.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn images(
        &self,
        refs: &[RowRef],
        mut take: impl FnMut(usize, &Uploaded<'_, '_>) -> Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        self.rows(refs, |at, row| self.with_images(row, |it| take(at, it)))
    }

    /// The images of a row.
    pub(crate) fn with_images<R>(
        &self,
        row: &Row<'_>,
        take: impl FnOnce(&Uploaded<'_, '_>) -> R,
    ) -> R {
        let (mut old_buffer, mut new_buffer) = (Vec::new(), Vec::new());
        let op = row.op.unwrap_or(Op::Insert);
        let old = (op != Op::Insert).then(|| self.arranged(&row.old, &mut old_buffer));
        let new = (op != Op::Delete).then(|| self.arranged(&row.new, &mut new_buffer));
        take(&Uploaded {
            op,
            key: &row.key,
            old,
            new,
        })
    }

    /// Uploaded values in the order of the published columns, NULL for those that the
    /// remote does not send.
    pub(crate) fn arranged<'r, 'a>(
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

/// An error of who sent the rows.
pub(crate) fn malformed(what: &str) -> CentreError {
    CentreError::Peer {
        message: what.to_owned(),
        code: Code::MalformedMessage,
    }
}
