//! Reading an upload: the net changes of the taken generation, with values as of it.
//!
//! The value of a row as of a generation is the pre-image in the first later generation, if
//! there is one, else the row as it is now. That does not change while the upload is under
//! way, whatever the application does; so every piece is a short read of its own, and a retry
//! is the same to the byte.

mod change_packer;
mod change_reader;
mod order;
mod too_long_row;

use std::collections::VecDeque;

use rusqlite::Connection;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Op, RowsWriter, Table, Value};

use self::change_reader::{PackedPiece, ReadPart, read};
pub(super) use self::order::in_step;
use super::stale_rows::{mark_stale, stale_keys};
use super::tables::{QuotedNames, TABLES_AT_ONCE, change_table};
use super::triggers::{self, schema_version};
use super::{RemoteDatabase, SubscriptionState, data_version, quote, row};
use crate::error::{ErrorContext, RemoteError};

/// A piece ends after the row that reaches so many packed bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// So many rows are packed to estimate the size of an upload.
pub(super) const SAMPLE_ROWS: u64 = 64;

/// How far an upload was read.
#[derive(Clone, Debug, Default)]
pub struct UploadCursor {
    /// The table in the schema.
    table: usize,
    /// The key of the last row read.
    after: Option<Vec<Value>>,
    /// Whether rows of the table were handed out already.
    begun: bool,
    /// What is known of changes of the table after the taking.
    later: LaterChanges,
    /// The file's schema version, and whether changes and table are read side by side
    /// under it.
    in_step: Option<(i64, bool)>,
    /// The tables that have changes, where that was looked at; else any may have some.
    changed: Option<Vec<usize>>,
    /// There are so few rows that looking each of them up costs less than to find out whether
    /// changes and table are read side by side.
    looks_up: bool,
}

/// What is known of changes that the application made to a table after the taking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LaterChanges {
    /// Nothing yet.
    #[default]
    Unknown,
    /// There are none as long as the file's data version is this: no other connection
    /// has written since we looked.
    None { data_version: i64 },
    /// There may be some: every row has to be looked up.
    Possible,
}

/// The beginning of an upload that is read.
#[derive(Debug)]
pub(crate) struct UploadBeginning {
    pub(crate) cursor: UploadCursor,
    /// Its first pieces, if it is small.
    pub(crate) read: VecDeque<UploadPiece>,
    /// An upper bound of its rows.
    pub(crate) rows: u64,
    /// An estimate of its packed bytes.
    pub(crate) bytes: u64,
}

/// A piece of an upload: rows of one table.
#[derive(Clone, Debug)]
pub struct UploadPiece {
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

impl RemoteDatabase {
    /// Reads the next piece of the taken upload, about 64 KiB; `None` at its end, also when
    /// nothing was taken.
    ///
    /// # Errors
    /// SQLite failed, or the file is locked.
    pub fn upload_chunk(
        &self,
        subscription: &SubscriptionState,
        cursor: &mut UploadCursor,
    ) -> Result<Option<UploadPiece>, RemoteError> {
        let (Some(schema), Some(generation)) =
            (&subscription.schema, subscription.taken_generation)
        else {
            return Ok(None);
        };
        while let Some(table) = schema.tables.get(cursor.table) {
            let changed = cursor.changed.as_ref();
            let is_changed = changed.is_none_or(|changed| changed.contains(&cursor.table));
            if table.direction.uploads() && is_changed {
                let piece = self
                    .read_piece(table, generation, subscription.taken_under, cursor)
                    .doing("reading an upload")?;
                self.mark_stale(table, &piece.respelled)?;
                self.set_aside(subscription, table, generation, &piece.too_long)?;
                let begin = (!cursor.begun).then(|| TableBegin::for_table(table));
                let more = piece.last.is_some();
                cursor.after = piece.last;
                cursor.begun = more;
                if !more {
                    cursor.table += 1;
                    cursor.later = LaterChanges::Unknown;
                    cursor.in_step = None;
                }
                if piece.packed_rows > 0 {
                    return Ok(Some(UploadPiece {
                        begin,
                        ..piece.chunk
                    }));
                }
            } else {
                cursor.table += 1;
            }
        }
        Ok(None)
    }

    /// Reads the next piece of a table, and what is known of later changes with it, in one
    /// snapshot.
    fn read_piece(
        &self,
        table: &Table,
        generation: i64,
        taken_under: Option<i64>,
        cursor: &mut UploadCursor,
    ) -> rusqlite::Result<PackedPiece> {
        // An apply reads in its own transaction.
        let transaction = match self.connection.is_autocommit() {
            true => Some(self.connection.unchecked_transaction()?),
            false => None,
        };
        let snapshot = &self.connection;
        let data_version = data_version(snapshot)?;
        if cursor.later == LaterChanges::Unknown && taken_under == Some(data_version) {
            cursor.later = LaterChanges::None { data_version };
        }
        cursor.later = match cursor.later {
            // The whole table is looked through once, not once for every piece.
            LaterChanges::Unknown => match has_later(snapshot, table, generation)? {
                true => LaterChanges::Possible,
                false => LaterChanges::None { data_version },
            },
            LaterChanges::None { data_version: then } if then != data_version => {
                LaterChanges::Possible
            }
            known => known,
        };
        let schema_version = schema_version(snapshot)?;
        let in_step = match cursor.in_step {
            _ if cursor.looks_up => false,
            Some((version, in_step)) if version == schema_version => in_step,
            _ => triggers::are_plain(snapshot)? || in_step(snapshot, table)?,
        };
        cursor.in_step = Some((schema_version, in_step));
        let part = ReadPart {
            generation,
            may_have_later: cursor.later == LaterChanges::Possible,
            in_step,
            limit_bytes: CHUNK_BYTES,
            limit_rows: u64::MAX,
        };
        let piece = read(snapshot, table, cursor.after.take(), part)?;
        transaction.map_or(Ok(()), rusqlite::Transaction::commit)?;
        Ok(piece)
    }

    /// The centre spells these rows differently: they are asked for, to have its spelling.
    fn mark_stale(&self, table: &Table, packed_keys: &[Vec<u8>]) -> Result<(), RemoteError> {
        if packed_keys.is_empty() {
            return Ok(());
        }
        let mark = || -> rusqlite::Result<()> {
            let transaction = match self.connection.is_autocommit() {
                true => Some(self.connection.unchecked_transaction()?),
                false => None,
            };
            for packed in packed_keys {
                mark_stale(&self.connection, &table.name, packed)?;
            }
            transaction.map_or(Ok(()), rusqlite::Transaction::commit)
        };
        mark().doing("marking rows to ask for again")
    }

    /// Where to begin reading the taken upload, and how many rows each table may have in it.
    fn upload_counts(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<(UploadCursor, Vec<u64>), RemoteError> {
        let doing = "estimating an upload";
        let tables = subscription.schema.iter().flat_map(|it| &it.tables);
        let tables: Vec<&Table> = tables.collect();
        let mut counts = vec![0; tables.len()];
        let mut cursor = UploadCursor::default();
        let Some(generation) = subscription.taken_generation else {
            return Ok((cursor, counts));
        };
        let taken_under = subscription.taken_under;
        let only_taken = taken_under == Some(data_version(&self.connection).doing(doing)?);
        let uploads: Vec<usize> = (0..tables.len())
            .filter(|&index| tables[index].direction.uploads())
            .collect();
        for some in uploads.chunks(TABLES_AT_ONCE) {
            let sql = quote::list(some, " UNION ALL ", |&index| {
                count_sql(tables[index], index, only_taken)
            });
            let mut count = || -> rusqlite::Result<()> {
                let mut statement = self.connection.prepare_cached(&sql)?;
                let mut rows = match only_taken {
                    true => statement.query([])?,
                    false => statement.query([generation])?,
                };
                while let Some(row) = rows.next()? {
                    counts[row.get::<_, usize>(0)?] = row.get::<_, i64>(1)?.unsigned_abs();
                }
                Ok(())
            };
            count().doing(doing)?;
        }
        let changed = uploads.into_iter().filter(|&index| counts[index] > 0);
        cursor.changed = Some(changed.collect());
        cursor.looks_up = counts.iter().sum::<u64>() <= SAMPLE_ROWS;
        Ok((cursor, counts))
    }

    /// Begins to read the taken upload: an upper bound of its rows, an estimate of its packed
    /// bytes, and what of it was read for that.
    ///
    /// # Errors
    /// SQLite failed, or the file is locked.
    pub(crate) fn begin_upload(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<UploadBeginning, RemoteError> {
        let (mut cursor, counts) = self.upload_counts(subscription)?;
        let rows: u64 = counts.iter().sum();
        let mut read = VecDeque::new();
        if !cursor.looks_up {
            let bytes = self.sampled_bytes(subscription, &counts)?;
            return Ok(UploadBeginning {
                cursor,
                read,
                rows,
                bytes,
            });
        }
        let mut bytes = 0;
        while bytes < CHUNK_BYTES {
            let Some(chunk) = self.upload_chunk(subscription, &mut cursor)? else {
                let bytes = bytes as u64;
                return Ok(UploadBeginning {
                    cursor,
                    read,
                    rows,
                    bytes,
                });
            };
            bytes += chunk.rows.len();
            read.push_back(chunk);
        }
        let packed = read.iter().map(|it| it.inserts + it.updates + it.deletes);
        let packed = packed.sum::<u64>().max(1);
        let bytes = (bytes as u64 / packed + 1) * rows.max(packed);
        Ok(UploadBeginning {
            cursor,
            read,
            rows,
            bytes,
        })
    }

    /// An upper bound of the rows of the taken upload, and an estimate of its packed bytes.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn upload_estimate(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<(u64, u64), RemoteError> {
        let (_, counts) = self.upload_counts(subscription)?;
        let bytes = self.sampled_bytes(subscription, &counts)?;
        Ok((counts.iter().sum(), bytes))
    }

    /// An estimate of the packed bytes of so many changes of each table, by the first ones.
    fn sampled_bytes(
        &self,
        subscription: &SubscriptionState,
        counts: &[u64],
    ) -> Result<u64, RemoteError> {
        let tables = subscription.schema.iter().flat_map(|it| &it.tables);
        let generation = subscription.taken_generation.unwrap_or_default();
        let mut bytes = 0;
        for (table, &count) in tables.zip(counts).filter(|(_, count)| **count > 0) {
            let part = ReadPart {
                generation,
                may_have_later: true,
                in_step: false,
                limit_bytes: CHUNK_BYTES,
                limit_rows: SAMPLE_ROWS,
            };
            let sample = read(&self.connection, table, None, part).doing("estimating an upload")?;
            let size = sample.chunk.rows.len() as u64;
            bytes += match sample.packed_rows {
                0 => count * 16,
                packed if packed >= count => size,
                packed => (size / packed + 1) * count,
            };
        }
        Ok(bytes)
    }

    /// The stale rows to ask for: per table a header and packed `Request` rows. Rows that
    /// were changed after the taking, or whose change is refused, are not asked for: they
    /// could not be applied anyway.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn requests(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<Vec<(TableBegin, Vec<u8>)>, RemoteError> {
        let mut requests = Vec::new();
        let Some(schema) = &subscription.schema else {
            return Ok(requests);
        };
        // Reading an upload may have added some.
        if !subscription.any_stale && subscription.taken.is_none() {
            return Ok(requests);
        }
        for table in &schema.tables {
            let taken = subscription.taken_generation;
            let (rows, packed) =
                request_rows(&self.connection, table, taken).doing("reading rows to ask for")?;
            if rows > 0 {
                let begin = TableBegin {
                    expected_rows: rows,
                    ..TableBegin::for_table(table)
                };
                requests.push((begin, packed));
            }
        }
        Ok(requests)
    }
}

fn request_rows(
    connection: &Connection,
    table: &Table,
    taken: Option<i64>,
) -> rusqlite::Result<(u64, Vec<u8>)> {
    let names = QuotedNames::for_table(table);
    let types = row::key_types(table);
    let shape = table.shape();
    let mut writer = RowsWriter::new(&shape);
    let mut scratch = String::new();
    for packed in stale_keys(connection, table)? {
        let Ok(key) = row::unpack_key(&types, &packed) else {
            continue;
        };
        let mut busy = connection.prepare_cached(&format!(
            "SELECT 1 FROM {} WHERE {} AND generation IS NOT ?{} LIMIT 1",
            names.change,
            names.change_key_is_bound(),
            key.len() + 1
        ))?;
        row::bind_key(&mut busy, &key, &mut scratch)?;
        busy.raw_bind_parameter(key.len() + 1, taken)?;
        if busy.raw_query().next()?.is_none() {
            writer.key(Op::Request, &key);
        }
    }
    let count = writer.rows();
    Ok((count, writer.take()))
}

/// Whether a table has changes of generations after this one.
fn has_later(connection: &Connection, table: &Table, generation: i64) -> rusqlite::Result<bool> {
    let change = QuotedNames::for_table(table).change;
    connection
        .prepare_cached(&format!(
            "SELECT EXISTS (SELECT 1 FROM {change} WHERE generation > ?1)"
        ))?
        .query_row([generation], |found| found.get(0))
}

/// Counts the changes of a generation; or all of a table where nothing was changed after
/// the taking (refused changes make it an upper bound): SQLite counts these page by page,
/// those of a generation one by one. `index` is the table's number.
fn count_sql(table: &Table, index: usize, only_taken: bool) -> String {
    let change = quote::name(&change_table(&table.name));
    let of_generation = if only_taken {
        ""
    } else {
        " WHERE generation = ?1"
    };
    format!("SELECT {index}, count(*) FROM {change}{of_generation}")
}
