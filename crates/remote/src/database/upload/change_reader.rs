//! Reading changes of a generation in key order, each with the row as it is now.
//!
//! Changes of neighbouring rows are read side by side with the table: two scans cost half
//! of a look-up for every row. As soon as the table has many rows that did not change, or
//! where it is not certain that both come in the same order, rows are looked up.

use std::cmp::Ordering;

use rusqlite::{CachedStatement, Connection, Row};
use tidewater_protocol::{Table, Value};

use super::change_packer::{ChangePacker, QueryColumns, RowImages};
use super::too_long_row::TooLongRow;
use super::{UploadPiece, order};
use crate::database::tables::QuotedNames;
use crate::database::{changes, quote, row};

/// So many unchanged rows of the table may be passed, beside one for each change, before
/// rows are looked up.
const STRAY_ROWS: u64 = 16;

/// Rows that were read, and where to go on.
pub(super) struct PackedPiece {
    pub(super) chunk: UploadPiece,
    pub(super) packed_rows: u64,
    pub(super) last: Option<Vec<Value>>,
    /// The packed keys of rows with values that the centre will spell differently.
    pub(super) respelled: Vec<Vec<u8>>,
    /// Rows that are not among those packed.
    pub(super) too_long: Vec<TooLongRow>,
}

/// What is to be read of a table's changes.
#[derive(Clone, Copy)]
pub(super) struct ReadPart {
    pub(super) generation: i64,
    /// Some of the rows may have been changed after the taking.
    pub(super) may_have_later: bool,
    /// The changes and the table come in the same order: see [`order::in_step`].
    pub(super) in_step: bool,
    /// The piece ends after the row that reaches so many packed bytes,
    pub(super) limit_bytes: usize,
    /// or so many rows.
    pub(super) limit_rows: u64,
}

/// Which keys are read.
enum KeySelection {
    All,
    /// Those after this one.
    After(Vec<Value>),
    /// This one and those after it.
    From(Vec<Value>),
    /// Those after this one that differ from it only in the last column. SQLite compares a
    /// whole key with every row that it reads, and this with none: it seeks the bounds.
    AfterWithin(Vec<Value>),
    /// This one, and those after it that differ from it only in the last column.
    FromWithin(Vec<Value>),
    /// Those after this one that differ from it in another column than the last.
    Beyond(Vec<Value>),
}

impl KeySelection {
    /// The key that the parameters from 1 on are bound to.
    fn bound(&self) -> Option<&[Value]> {
        match self {
            KeySelection::All => None,
            KeySelection::After(key)
            | KeySelection::From(key)
            | KeySelection::AfterWithin(key)
            | KeySelection::FromWithin(key)
            | KeySelection::Beyond(key) => Some(key),
        }
    }

    /// The condition on these columns, with a parameter for each.
    fn condition(&self, columns: &[String]) -> String {
        let within = columns.len() - 1;
        match self {
            KeySelection::All => "TRUE".into(),
            KeySelection::After(_) => compared(columns, ">"),
            KeySelection::From(_) => compared(columns, ">="),
            KeySelection::AfterWithin(_) => equal(&columns[..within], &columns[within], ">"),
            KeySelection::FromWithin(_) => equal(&columns[..within], &columns[within], ">="),
            KeySelection::Beyond(_) if within == 0 => "FALSE".into(),
            KeySelection::Beyond(_) => compared(&columns[..within], ">"),
        }
    }
}

/// `(a, b) > (?1, ?2)`
fn compared(columns: &[String], operator: &str) -> String {
    let parameters = quote::list(1..=columns.len(), ", ", |n| format!("?{n}"));
    format!("({}) {operator} ({parameters})", columns.join(", "))
}

/// `a = ?1 AND b > ?2`
fn equal(same: &[String], last: &str, operator: &str) -> String {
    let parameter = same.len() + 1;
    let same = quote::list(same.iter().enumerate(), "", |(index, column)| {
        format!("{column} = ?{} AND ", index + 1)
    });
    format!("{same}{last} {operator} ?{parameter}")
}

/// Reads changes in key order, from the one after the given key, until a limit is reached.
pub(super) fn read(
    connection: &Connection,
    table: &Table,
    after: Option<Vec<Value>>,
    part: ReadPart,
) -> rusqlite::Result<PackedPiece> {
    let names = QuotedNames::for_table(table);
    let shape = table.shape();
    let key_types = row::key_types(table);
    let any_rekeyed = changes::any_rekeyed(connection, &names, part.generation)?;
    let rekeyed_in = any_rekeyed.then_some(part.generation);
    let mut reader = ChangeReader {
        connection,
        table,
        names: &names,
        columns: QueryColumns {
            pre: QueryColumns::KEY + names.key.len(),
            now: QueryColumns::KEY + names.key.len() + names.values.len(),
        },
        packer: ChangePacker::new(connection, table, &names, &shape, &key_types, rekeyed_in),
        part,
    };
    let last = reader.read(after)?;
    let mut packer = reader.packer;
    Ok(PackedPiece {
        packed_rows: packer.writer.rows(),
        chunk: UploadPiece {
            begin: None,
            rows: packer.writer.take(),
            inserts: packer.inserts,
            updates: packer.updates,
            deletes: packer.deletes,
        },
        last,
        respelled: packer.respelled,
        too_long: packer.too_long,
    })
}

struct ChangeReader<'a> {
    connection: &'a Connection,
    table: &'a Table,
    names: &'a QuotedNames,
    columns: QueryColumns,
    packer: ChangePacker<'a>,
    part: ReadPart,
}

impl<'a> ChangeReader<'a> {
    /// Reads until a limit is reached; returns the last key then.
    fn read(&mut self, after: Option<Vec<Value>>) -> rusqlite::Result<Option<Vec<Value>>> {
        let mut keys = match (after, self.part.in_step) {
            (Some(after), true) => KeySelection::AfterWithin(after),
            (Some(after), false) => KeySelection::After(after),
            (None, _) => KeySelection::All,
        };
        if self.part.in_step {
            loop {
                match (self.scan_side_by_side(&keys)?, keys) {
                    (ScanEnd::Full(last), _) => return Ok(Some(last)),
                    (ScanEnd::Keys, KeySelection::AfterWithin(after)) => {
                        keys = KeySelection::Beyond(after)
                    }
                    (ScanEnd::Keys, _) => return Ok(None),
                    (ScanEnd::OutOfStep(next), _) => {
                        keys = KeySelection::From(next);
                        break;
                    }
                }
            }
        }
        self.look_up(&keys)
    }

    /// Looks the row up for each change.
    fn look_up(&mut self, keys: &KeySelection) -> rusqlite::Result<Option<Vec<Value>>> {
        let mut changes = self.changes(keys, true)?;
        let mut changes = changes.raw_query();
        let mut images = RowImages::default();
        while let Some(change) = changes.next()? {
            let exists = change.get_ref(QueryColumns::EXISTS)?.as_i64_or_null()? == Some(1);
            let now = exists.then_some((change, self.columns.now));
            let mut these = images.recycle();
            self.packer.pack(change, now, &self.columns, &mut these)?;
            images = these.recycle();
            if self.is_full() {
                let last = self.key_of(change)?;
                if self.is_found(&last)? {
                    return Ok(Some(last));
                }
            }
        }
        Ok(None)
    }

    /// Scans the changes and the table side by side.
    fn scan_side_by_side(&mut self, keys: &KeySelection) -> rusqlite::Result<ScanEnd> {
        let key_len = self.names.key.len();
        let mut changes = self.changes(keys, false)?;
        let mut changes = changes.raw_query();
        let mut next = changes.next()?;
        let Some(first) = next else {
            return Ok(ScanEnd::Keys);
        };
        let first = self.key_of(first)?;
        let mut table = self.table_rows(match keys {
            KeySelection::AfterWithin(_) => KeySelection::FromWithin(first),
            _ => KeySelection::From(first),
        })?;
        let mut table = table.raw_query();
        let mut beside = table.next()?;
        let mut strays = STRAY_ROWS;
        let mut images = RowImages::default();
        while let Some(change) = next {
            let now = loop {
                let Some(row) = beside else { break None };
                match order::compare(row, 0, change, QueryColumns::KEY, key_len)? {
                    Some(Ordering::Equal) => break Some((row, key_len)),
                    Some(Ordering::Greater) => break None,
                    Some(Ordering::Less) if strays > 0 => strays -= 1,
                    _ => return self.key_of(change).map(ScanEnd::OutOfStep),
                }
                beside = table.next()?;
            };
            let mut these = images.recycle();
            self.packer.pack(change, now, &self.columns, &mut these)?;
            images = these.recycle();
            if self.is_full() {
                return self.key_of(change).map(ScanEnd::Full);
            }
            strays += 1;
            next = changes.next()?;
            if now.is_some() {
                beside = table.next()?;
            }
        }
        Ok(ScanEnd::Keys)
    }

    fn is_full(&self) -> bool {
        let writer = &self.packer.writer;
        writer.len() >= self.part.limit_bytes || writer.rows() >= self.part.limit_rows
    }

    fn key_of(&self, change: &Row<'_>) -> rusqlite::Result<Vec<Value>> {
        row::owned(change, QueryColumns::KEY, self.table.key.len())
    }

    /// Whether a key means its row when it is bound. Text that is no Unicode does not where the
    /// file is encoded in UTF-16: going on after it would skip rows.
    fn is_found(&self, key: &[Value]) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT 1 FROM {} WHERE {} AND generation = ?{}",
            self.names.change,
            self.names.change_key_is_bound(),
            key.len() + 1
        ))?;
        self.names.bind_key(&mut statement, key)?;
        statement.raw_bind_parameter(key.len() + 1, self.part.generation)?;
        Ok(statement.raw_query().next()?.is_some())
    }

    /// The changes in key order, with the row as it is now or without.
    fn changes(
        &self,
        keys: &KeySelection,
        with_row: bool,
    ) -> rusqlite::Result<CachedStatement<'a>> {
        let sql = changes_sql(self.names, keys, self.part.may_have_later, with_row);
        let mut statement = self.connection.prepare_cached(&sql)?;
        if let Some(key) = keys.bound() {
            self.names.bind_key(&mut statement, key)?;
        }
        let generation = self.names.key.len() + 1;
        statement.raw_bind_parameter(generation, self.part.generation)?;
        Ok(statement)
    }

    /// The rows of the table in key order: key, then values.
    fn table_rows(&self, keys: KeySelection) -> rusqlite::Result<CachedStatement<'a>> {
        let names = self.names;
        let key = names.key.join(", ");
        let values = quote::list(&names.values, "", |&index| {
            format!(", {}", names.columns[index])
        });
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {key}{values} FROM {} WHERE {} ORDER BY {key}",
            names.table,
            keys.condition(&names.key),
        ))?;
        if let Some(key) = keys.bound() {
            self.names.bind_key(&mut statement, key)?;
        }
        Ok(statement)
    }
}

/// How a scan ended.
enum ScanEnd {
    /// All keys were read.
    Keys,
    /// A limit was reached, with this key.
    Full(Vec<Value>),
    /// Looking up pays from this key on, or the order of two values is in doubt.
    OutOfStep(Vec<Value>),
}

fn changes_sql(
    names: &QuotedNames,
    keys: &KeySelection,
    may_have_later: bool,
    with_row: bool,
) -> String {
    let change = &names.change;
    let key: Vec<String> = names
        .change_key
        .iter()
        .map(|key| format!("c.{key}"))
        .collect();
    let condition = keys.condition(&key);
    let key = key.join(", ");
    let pre = quote::list(&names.pre, "", |pre| format!(", c.{pre}"));
    let same = quote::list(&names.change_key, " AND ", |key| {
        format!("l.{key} = c.{key}")
    });
    let generation = names.key.len() + 1;
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
        "SELECT c.present, {later}, {exists}, {key}{pre}{now} FROM {change} AS c{join} \
         WHERE {condition} AND c.generation = ?{generation} ORDER BY {key}"
    )
}
