//! Reading changes of a generation in key order, each with the row as it is now.
//!
//! Changes of neighbouring rows are read side by side with the table: two scans cost half
//! of a look-up for every row. As soon as the table has many rows that did not change, or
//! where it is not certain that both come in the same order, rows are looked up.

use std::cmp::Ordering;

use rusqlite::{CachedStatement, Connection, Row};
use tidewater_protocol::{Table, Value};

use super::packer::{Images, Packer};
use super::{UploadChunk, order};
use crate::database::tables::{Names, change_table};
use crate::database::take::bind_key;
use crate::database::{quote, row};

/// So many unchanged rows of the table may be passed, beside one for each change, before
/// rows are looked up.
const STRAY_ROWS: u64 = 16;

/// Rows that were read, and where to go on.
pub(super) struct Piece {
    pub(super) chunk: UploadChunk,
    pub(super) packed_rows: u64,
    pub(super) last: Option<Vec<Value>>,
    /// The packed keys of rows with values that the centre will spell differently.
    pub(super) respelled: Vec<Vec<u8>>,
}

/// What is to be read of a table's changes.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) generation: i64,
    /// Some of the rows may have been changed after the taking.
    pub(super) may_have_later: bool,
    /// The changes and the table come in the same order: see [`in_step`].
    pub(super) in_step: bool,
    /// The piece ends after the row that reaches so many packed bytes,
    pub(super) limit_bytes: usize,
    /// or so many rows.
    pub(super) limit_rows: u64,
}

/// Where a query of changes has its columns.
pub(super) struct Columns {
    pub(super) pre: usize,
    now: usize,
}

impl Columns {
    pub(super) const PRESENT: usize = 0;
    pub(super) const LATER: usize = 1;
    const EXISTS: usize = 2;
    pub(super) const KEY: usize = 3;
}

/// Where to begin.
enum From {
    Start,
    After(Vec<Value>),
    At(Vec<Value>),
}

/// Whether the changes of a table and the table itself are read in the same order.
pub(super) fn in_step(connection: &Connection, table: &Table) -> rusqlite::Result<bool> {
    let key = |prefix: &str| -> Vec<String> {
        let columns = table.key_columns();
        columns
            .map(|column| format!("{prefix}{}", column.name))
            .collect()
    };
    Ok(order::is_by_bytes(connection, &table.name, &key(""))?
        && order::is_by_bytes(connection, &change_table(&table.name), &key("key_"))?)
}

/// Reads changes in key order, from the one after the given key, until a limit is reached.
pub(super) fn read(
    connection: &Connection,
    table: &Table,
    after: Option<Vec<Value>>,
    part: Part,
) -> rusqlite::Result<Piece> {
    let names = Names::of(table);
    let shape = table.shape();
    let key_types = row::key_types(table);
    let mut reader = Reader {
        connection,
        table,
        names: &names,
        columns: Columns {
            pre: Columns::KEY + names.key.len(),
            now: Columns::KEY + names.key.len() + names.values.len(),
        },
        packer: Packer::new(connection, table, &names, &shape, &key_types),
        part,
    };
    let from = after.map_or(From::Start, From::After);
    let last = match part.in_step {
        true => reader.side_by_side(from)?,
        false => reader.looked_up(&from)?,
    };
    let mut packer = reader.packer;
    Ok(Piece {
        packed_rows: packer.writer.rows(),
        chunk: UploadChunk {
            begin: None,
            rows: packer.writer.take(),
            inserts: packer.inserts,
            updates: packer.updates,
            deletes: packer.deletes,
        },
        last,
        respelled: packer.respelled,
    })
}

struct Reader<'a> {
    connection: &'a Connection,
    table: &'a Table,
    names: &'a Names,
    columns: Columns,
    packer: Packer<'a>,
    part: Part,
}

impl<'a> Reader<'a> {
    /// Looks the row up for each change. Returns the last key that was read, if a limit
    /// was reached there.
    fn looked_up(&mut self, from: &From) -> rusqlite::Result<Option<Vec<Value>>> {
        let mut changes = self.changes(from, true)?;
        let mut changes = changes.raw_query();
        let mut images = Images::default();
        while let Some(change) = changes.next()? {
            let exists = change.get_ref(Columns::EXISTS)?.as_i64_or_null()? == Some(1);
            let now = exists.then_some((change, self.columns.now));
            let mut these = images.recycle();
            self.packer.pack(change, now, &self.columns, &mut these)?;
            images = these.recycle();
            if self.is_full() {
                return self.key_of(change).map(Some);
            }
        }
        Ok(None)
    }

    /// Scans the changes and the table side by side, and goes on by looking up where that
    /// does not pay or the order of two values is in doubt. Returns what `looked_up` does.
    fn side_by_side(&mut self, from: From) -> rusqlite::Result<Option<Vec<Value>>> {
        let key_len = self.names.key.len();
        let mut changes = self.changes(&from, false)?;
        let mut changes = changes.raw_query();
        let mut next = changes.next()?;
        let Some(first) = next else {
            return Ok(None);
        };
        let mut table = self.table_from(&self.key_of(first)?)?;
        let mut table = table.raw_query();
        let mut beside = table.next()?;
        let mut strays = STRAY_ROWS;
        let mut images = Images::default();
        while let Some(change) = next {
            let now = loop {
                let Some(row) = beside else { break None };
                match order::compare(row, 0, change, Columns::KEY, key_len)? {
                    Some(Ordering::Equal) => break Some((row, key_len)),
                    Some(Ordering::Greater) => break None,
                    Some(Ordering::Less) if strays > 0 => strays -= 1,
                    _ => {
                        let here = From::At(self.key_of(change)?);
                        return self.looked_up(&here);
                    }
                }
                beside = table.next()?;
            };
            let mut these = images.recycle();
            self.packer.pack(change, now, &self.columns, &mut these)?;
            images = these.recycle();
            if self.is_full() {
                return self.key_of(change).map(Some);
            }
            strays += 1;
            next = changes.next()?;
            if now.is_some() {
                beside = table.next()?;
            }
        }
        Ok(None)
    }

    fn is_full(&self) -> bool {
        let writer = &self.packer.writer;
        writer.len() >= self.part.limit_bytes || writer.rows() >= self.part.limit_rows
    }

    fn key_of(&self, change: &Row<'_>) -> rusqlite::Result<Vec<Value>> {
        row::owned(change, Columns::KEY, self.table.key.len())
    }

    /// The changes in key order, with the row as it is now or without.
    fn changes(&self, from: &From, with_row: bool) -> rusqlite::Result<CachedStatement<'a>> {
        let sql = changes_sql(self.names, from, self.part.may_have_later, with_row);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut generation = 1;
        if let From::After(key) | From::At(key) = from {
            bind_key(&mut statement, key)?;
            generation += key.len();
        }
        statement.raw_bind_parameter(generation, self.part.generation)?;
        Ok(statement)
    }

    /// The rows of the table in key order, from this key on: key, then values.
    fn table_from(&self, key: &[Value]) -> rusqlite::Result<CachedStatement<'a>> {
        let names = self.names;
        let keys = names.key.join(", ");
        let values = quote::list(&names.values, "", |&index| {
            format!(", {}", names.columns[index])
        });
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {keys}{values} FROM {} WHERE ({keys}) >= ({}) ORDER BY {keys}",
            names.table,
            quote::list(1..=key.len(), ", ", |n| format!("?{n}")),
        ))?;
        bind_key(&mut statement, key)?;
        Ok(statement)
    }
}

fn changes_sql(names: &Names, from: &From, may_have_later: bool, with_row: bool) -> String {
    let change = &names.change;
    let keys = quote::list(&names.change_key, ", ", |key| format!("c.{key}"));
    let pre = quote::list(&names.pre, "", |pre| format!(", c.{pre}"));
    let same = quote::list(&names.change_key, " AND ", |key| {
        format!("l.{key} = c.{key}")
    });
    let key_len = names.key.len();
    let bound = |operator: &str| {
        let parameters = quote::list(1..=key_len, ", ", |n| format!("?{n}"));
        let bound = format!("({keys}) {operator} ({parameters}) AND ");
        (key_len + 1, bound)
    };
    let (generation, bound) = match from {
        From::Start => (1, String::new()),
        From::After(_) => bound(">"),
        From::At(_) => bound(">="),
    };
    let later = match may_have_later {
        true => format!(
            "(SELECT l.generation FROM {change} AS l WHERE {same} \
             AND l.generation > ?{generation} ORDER BY l.generation LIMIT 1)"
        ),
        false => "NULL".into(),
    };
    let (exists, now, join) = match with_row {
        true => (
            format!("t.{} IS NOT NULL", names.key[0]),
            quote::list(&names.values, "", |&index| {
                format!(", t.{}", names.columns[index])
            }),
            format!(
                " LEFT JOIN {} AS t ON {}",
                names.table,
                names.change_of("c", "t")
            ),
        ),
        false => ("NULL".into(), String::new(), String::new()),
    };
    format!(
        "SELECT c.present, {later}, {exists}, {keys}{pre}{now} FROM {change} AS c{join} \
         WHERE {bound}c.generation = ?{generation} ORDER BY {keys}"
    )
}
