//! Reading an upload: the net changes of the taken generation, with values as of it.
//!
//! The value of a row as of a generation is the pre-image in the first later generation, if
//! there is one, else the row as it is now. That does not change while the upload is under
//! way, whatever the application does; so every piece is a short read of its own, and a retry
//! is the same to the byte.

use rusqlite::{Connection, Statement};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::pack::same;
use tidewater_protocol::{ColumnType, Datum, Fit, Op, RowShape, RowsWriter, Table, Value};

use super::tables::Names;
use super::take::{PARKED, bind_key};
use super::{Database, SubscriptionState, quote, row};
use crate::error::{Doing, RemoteError};

/// A piece ends after the row that reaches so many packed bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// So many rows are packed to estimate the size of an upload.
const SAMPLE_ROWS: u64 = 64;

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
    later: Later,
}

/// What is known of changes that the application made to a table after the taking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Later {
    /// Nothing yet.
    #[default]
    Unknown,
    /// There are none as long as the file's data version is this: no other connection
    /// has written since we looked.
    None { data_version: i64 },
    /// There may be some: every row has to be looked up.
    Possible,
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
    /// Reads the next piece of the taken upload, about 64 KiB; `None` at its end, also when
    /// nothing was taken.
    ///
    /// # Errors
    /// SQLite failed, or the file is locked.
    pub fn upload_chunk(
        &self,
        subscription: &SubscriptionState,
        cursor: &mut UploadCursor,
    ) -> Result<Option<UploadChunk>, RemoteError> {
        let (Some(schema), Some(generation)) =
            (&subscription.schema, subscription.taken_generation)
        else {
            return Ok(None);
        };
        while let Some(table) = schema.tables.get(cursor.table) {
            if table.direction.uploads() {
                let piece = self
                    .read_piece(table, generation, cursor)
                    .doing("reading an upload")?;
                self.mark_stale(table, &piece.respelled)?;
                let begin = (!cursor.begun).then(|| TableBegin::of(table));
                let more = piece.last.is_some();
                cursor.after = piece.last;
                cursor.begun = more;
                if !more {
                    cursor.table += 1;
                    cursor.later = Later::Unknown;
                }
                if piece.packed_rows > 0 {
                    return Ok(Some(UploadChunk {
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
        cursor: &mut UploadCursor,
    ) -> rusqlite::Result<Piece> {
        let snapshot = self.connection.unchecked_transaction()?;
        let data_version: i64 =
            snapshot.query_row("PRAGMA data_version", [], |found| found.get(0))?;
        cursor.later = match cursor.later {
            // The whole table is looked through once, not once for every piece.
            Later::Unknown => match has_later(&snapshot, table, generation)? {
                true => Later::Possible,
                false => Later::None { data_version },
            },
            Later::None { data_version: then } if then != data_version => Later::Possible,
            known => known,
        };
        let piece = read(
            &snapshot,
            table,
            generation,
            cursor.after.take(),
            cursor.later == Later::Possible,
            (CHUNK_BYTES, u64::MAX),
        )?;
        snapshot.commit()?;
        Ok(piece)
    }

    /// The centre spells these rows differently: they are asked for, to have its spelling.
    fn mark_stale(&self, table: &Table, packed_keys: &[Vec<u8>]) -> Result<(), RemoteError> {
        if packed_keys.is_empty() {
            return Ok(());
        }
        let doing = "marking rows to ask for again";
        let transaction = self.connection.unchecked_transaction().doing(doing)?;
        for packed in packed_keys {
            mark_stale(&transaction, &table.name, packed).doing(doing)?;
        }
        transaction.commit().doing(doing)
    }

    /// An upper bound of the rows of the taken upload, and an estimate of its packed bytes.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn upload_estimate(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<(u64, u64), RemoteError> {
        let doing = "estimating an upload";
        let (mut rows, mut bytes) = (0, 0);
        let (Some(schema), Some(generation)) =
            (&subscription.schema, subscription.taken_generation)
        else {
            return Ok((0, 0));
        };
        for table in schema
            .tables
            .iter()
            .filter(|table| table.direction.uploads())
        {
            let count: i64 = self
                .connection
                .prepare_cached(&format!(
                    "SELECT count(*) FROM {} WHERE generation = ?1",
                    Names::of(table).change
                ))
                .and_then(|mut statement| statement.query_row([generation], |row| row.get(0)))
                .doing(doing)?;
            let count = count.unsigned_abs();
            if count == 0 {
                continue;
            }
            let limit = (CHUNK_BYTES, SAMPLE_ROWS);
            let sample = read(&self.connection, table, generation, None, true, limit);
            let sample = sample.doing(doing)?;
            let size = sample.chunk.rows.len() as u64;
            rows += count;
            bytes += match sample.packed_rows {
                0 => count * 16,
                packed if packed >= count => size,
                packed => (size / packed + 1) * count,
            };
        }
        Ok((rows, bytes))
    }

    /// The stale rows to ask for: per table a header and packed `Request` rows. Rows that
    /// were changed after the taking are not asked for: they could not be applied anyway.
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
        for table in &schema.tables {
            let taken = subscription.taken_generation;
            let (rows, packed) =
                request_rows(&self.connection, table, taken).doing("reading rows to ask for")?;
            if rows > 0 {
                let begin = TableBegin {
                    expected_rows: rows,
                    ..TableBegin::of(table)
                };
                requests.push((begin, packed));
            }
        }
        Ok(requests)
    }
}

/// Notes that a row must be asked for again.
pub(crate) fn mark_stale(
    connection: &Connection,
    table: &str,
    packed_key: &[u8],
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO tidewater_stale (table_name, key_packed) VALUES (?1, ?2) \
             ON CONFLICT DO NOTHING",
        )?
        .execute((table, packed_key))
        .map(drop)
}

fn request_rows(
    connection: &Connection,
    table: &Table,
    taken: Option<i64>,
) -> rusqlite::Result<(u64, Vec<u8>)> {
    let mut stale = connection.prepare_cached(
        "SELECT key_packed FROM tidewater_stale WHERE table_name = ?1 ORDER BY key_packed",
    )?;
    let mut rows = stale.query([&table.name])?;
    let names = Names::of(table);
    let types = row::key_types(table);
    let shape = table.shape();
    let mut writer = RowsWriter::new(&shape);
    let mut scratch = String::new();
    while let Some(found) = rows.next()? {
        let packed: Vec<u8> = found.get(0)?;
        let Ok(key) = row::unpack_key(&types, &packed) else {
            continue;
        };
        let mut busy = connection.prepare_cached(&format!(
            "SELECT 1 FROM {} WHERE {} AND generation > {PARKED} \
             AND generation IS NOT ?{} LIMIT 1",
            names.change,
            names.change_key_is_bound(),
            key.len() + 1
        ))?;
        row::bind(&mut busy, 1, &key, &mut scratch)?;
        busy.raw_bind_parameter(key.len() + 1, taken)?;
        if busy.raw_query().next()?.is_none() {
            writer.key(Op::Request, &key);
        }
    }
    let count = writer.rows();
    Ok((count, writer.take()))
}

/// Rows that were read, and where to go on.
struct Piece {
    chunk: UploadChunk,
    packed_rows: u64,
    last: Option<Vec<Value>>,
    /// The packed keys of rows with values that the centre will spell differently.
    respelled: Vec<Vec<u8>>,
}

/// Where a query of changes has its columns.
struct Columns {
    key: usize,
    pre: usize,
    now: usize,
}

const PRESENT: usize = 0;
const LATER: usize = 1;
const EXISTS: usize = 2;
const FIRST_COLUMN: usize = 3;

/// Whether a table has changes of generations after this one.
fn has_later(connection: &Connection, table: &Table, generation: i64) -> rusqlite::Result<bool> {
    let change = Names::of(table).change;
    connection
        .prepare_cached(&format!(
            "SELECT EXISTS (SELECT 1 FROM {change} WHERE generation > ?1)"
        ))?
        .query_row([generation], |found| found.get(0))
}

/// Reads changes of a generation in key order, until the limit of bytes or rows is reached.
/// `may_have_later`: some of the rows may have been changed after the taking.
fn read(
    connection: &Connection,
    table: &Table,
    generation: i64,
    after: Option<Vec<Value>>,
    may_have_later: bool,
    (limit_bytes, limit_rows): (usize, u64),
) -> rusqlite::Result<Piece> {
    let names = Names::of(table);
    let shape = table.shape();
    let key_types = row::key_types(table);
    let sql = changes_sql(&names, after.is_some(), may_have_later);
    let mut statement = connection.prepare_cached(&sql)?;
    let key_len = table.key.len();
    if let Some(after) = &after {
        bind_key(&mut statement, after)?;
        statement.raw_bind_parameter(key_len + 1, generation)?;
    } else {
        statement.raw_bind_parameter(1, generation)?;
    }
    let columns = Columns {
        key: FIRST_COLUMN,
        pre: FIRST_COLUMN + key_len,
        now: FIRST_COLUMN + key_len + names.values.len(),
    };
    let mut packer = Packer {
        writer: RowsWriter::new(&shape),
        table,
        shape: &shape,
        names: &names,
        columns,
        later: None,
        connection,
        inserts: 0,
        updates: 0,
        deletes: 0,
        respelled: Vec::new(),
        key_types: &key_types,
    };
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let mut last = None;
    let mut rows = statement.raw_query();
    while let Some(found) = rows.next()? {
        let (mut before, mut after) = (row::recycle(old), row::recycle(new));
        packer.pack(found, &mut before, &mut after)?;
        (old, new) = (row::recycle(before), row::recycle(after));
        if packer.writer.len() >= limit_bytes || packer.writer.rows() >= limit_rows {
            last = Some(row::owned(found, FIRST_COLUMN, key_len)?);
            break;
        }
    }
    let packed_rows = packer.writer.rows();
    Ok(Piece {
        chunk: UploadChunk {
            begin: None,
            rows: packer.writer.take(),
            inserts: packer.inserts,
            updates: packer.updates,
            deletes: packer.deletes,
        },
        packed_rows,
        last,
        respelled: packer.respelled,
    })
}

fn changes_sql(names: &Names, after: bool, may_have_later: bool) -> String {
    let change = &names.change;
    let keys = quote::list(&names.change_key, ", ", |key| format!("c.{key}"));
    let pre = quote::list(&names.pre, "", |pre| format!(", c.{pre}"));
    let now = quote::list(&names.values, "", |&index| {
        format!(", t.{}", names.columns[index])
    });
    let same = quote::list(&names.change_key, " AND ", |key| {
        format!("l.{key} = c.{key}")
    });
    let (generation, from) = if after {
        let parameters: Vec<String> = (1..=names.key.len()).map(|n| format!("?{n}")).collect();
        (
            names.key.len() + 1,
            format!("({keys}) > ({}) AND ", parameters.join(", ")),
        )
    } else {
        (1, String::new())
    };
    let later = match may_have_later {
        true => format!(
            "(SELECT l.generation FROM {change} AS l WHERE {same} \
             AND l.generation > ?{generation} ORDER BY l.generation LIMIT 1)"
        ),
        false => "NULL".into(),
    };
    format!(
        "SELECT c.present, {later}, t.{} IS NOT NULL, {keys}{pre}{now} FROM {change} AS c LEFT JOIN {} AS t ON {} \
         WHERE {from}c.generation = ?{generation} ORDER BY {keys}",
        names.key[0],
        names.table,
        names.change_of("c", "t"),
    )
}

struct Packer<'a> {
    writer: RowsWriter<'a>,
    table: &'a Table,
    shape: &'a RowShape,
    names: &'a Names,
    columns: Columns,
    /// Reads the pre-image of a later generation; prepared when the first one is needed.
    later: Option<rusqlite::CachedStatement<'a>>,
    connection: &'a Connection,
    inserts: u64,
    updates: u64,
    deletes: u64,
    respelled: Vec<Vec<u8>>,
    key_types: &'a [ColumnType],
}

impl Packer<'_> {
    fn pack<'r>(
        &mut self,
        found: &'r rusqlite::Row<'_>,
        old: &mut Vec<Datum<'r>>,
        new: &mut Vec<Datum<'r>>,
    ) -> rusqlite::Result<()> {
        let present = found.get_ref(PRESENT)?.as_i64_or_null()? == Some(1);
        if let Some(later) = found.get_ref(LATER)?.as_i64_or_null()? {
            return self.pack_later(found, later, present);
        }
        let exists = found.get_ref(EXISTS)?.as_i64_or_null()? == Some(1);
        let fit = self.fill(found, self.columns.now, new)?;
        if present {
            self.fill(found, self.columns.pre, old)?;
        }
        self.write(present, old, exists, new, fit);
        Ok(())
    }

    /// The row was changed again: its value as of the upload is the later pre-image.
    fn pack_later(
        &mut self,
        found: &rusqlite::Row<'_>,
        later: i64,
        present: bool,
    ) -> rusqlite::Result<()> {
        let mut statement = match self.later.take() {
            Some(statement) => statement,
            None => {
                let pre = quote::list(&self.names.pre, "", |pre| format!(", {pre}"));
                self.connection.prepare_cached(&format!(
                    "SELECT present{pre} FROM {} WHERE {} AND generation = ?{}",
                    self.names.change,
                    self.names.change_key_is_bound(),
                    self.names.key.len() + 1
                ))?
            }
        };
        let key = row::owned(found, FIRST_COLUMN, self.table.key.len())?;
        let mut values = vec![Value::Null; self.table.columns.len()];
        let exists = later_image(&mut statement, &key, later, self.names, &mut values)?;
        for (&index, value) in self.table.key.iter().zip(&key) {
            values[index] = value.clone();
        }
        self.later = Some(statement);
        let mut pre = Vec::new();
        self.fill(found, self.columns.pre, &mut pre)?;
        let mut fit = Fit::Canonical;
        let types = self.shape.columns.iter();
        let new: Vec<Datum<'_>> = types
            .zip(&values)
            .map(|(column_type, value)| {
                let (datum, own) = column_type.datum(value.as_ref());
                fit = fit.max(own);
                datum
            })
            .collect();
        self.write(present, &pre, exists, &new, fit);
        Ok(())
    }

    /// Understands a whole row: the key, and the values from `from` on.
    fn fill<'r>(
        &self,
        found: &'r rusqlite::Row<'_>,
        from: usize,
        values: &mut Vec<Datum<'r>>,
    ) -> rusqlite::Result<Fit> {
        values.resize(self.table.columns.len(), Datum::Null);
        let mut worst = Fit::Canonical;
        let keys = self.table.key.iter().enumerate();
        let keys = keys.map(|(position, &index)| (index, self.columns.key + position));
        let others = self.names.values.iter().enumerate();
        let others = others.map(|(position, &index)| (index, from + position));
        for (index, column) in keys.chain(others) {
            let stored = row::value(found.get_ref(column)?);
            let (datum, fit) = self.shape.columns[index].datum(stored);
            values[index] = datum;
            worst = worst.max(fit);
        }
        Ok(worst)
    }

    fn write(
        &mut self,
        present: bool,
        old: &[Datum<'_>],
        exists: bool,
        new: &[Datum<'_>],
        fit: Fit,
    ) {
        match (present, exists) {
            (false, false) => return,
            (false, true) => {
                self.writer.row(Op::Insert, new);
                self.inserts += 1;
            }
            (true, false) => {
                self.writer.delete(old);
                self.deletes += 1;
                return;
            }
            (true, true) => {
                // Two spellings of one value are no change.
                if !old.iter().zip(new).all(|(old, new)| same(old, new)) {
                    self.writer.update(old, new);
                    self.updates += 1;
                }
            }
        }
        if fit == Fit::Convertible {
            let key: Vec<Datum<'_>> = self.table.key.iter().map(|&index| new[index]).collect();
            self.respelled.push(row::pack_key(self.key_types, &key));
        }
    }
}

/// The pre-image in a later generation; whether there was a row.
fn later_image(
    statement: &mut Statement<'_>,
    key: &[Value],
    later: i64,
    names: &Names,
    values: &mut [Value],
) -> rusqlite::Result<bool> {
    bind_key(statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, later)?;
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else {
        return Ok(false);
    };
    for (position, &index) in names.values.iter().enumerate() {
        values[index] = row::value(found.get_ref(position + 1)?).to_owned();
    }
    found.get(0)
}
