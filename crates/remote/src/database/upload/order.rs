//! Whether two tables can be read side by side: in which order SQLite yields their keys.
//!
//! Our own tables are WITHOUT ROWID, and their keys compare byte by byte. A tool that
//! rebuilds tables may give one another collation or a rowid, and a file may be encoded in
//! UTF-16, whose bytes sort differently. Nothing is taken for granted here.

use std::cmp::Ordering;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};
use tidewater_protocol::Table;

use crate::database::tables::change_table;

/// Whether the changes of a table and the table itself are read in the same order.
pub(in crate::database) fn in_step(
    connection: &Connection,
    table: &Table,
) -> rusqlite::Result<bool> {
    let key = |prefix: &str| -> Vec<String> {
        let columns = table.key_columns();
        columns
            .map(|column| format!("{prefix}{}", column.name))
            .collect()
    };
    Ok(is_by_bytes(connection, &table.name, &key(""))?
        && is_by_bytes(connection, &change_table(&table.name), &key("key_"))?)
}

/// Whether reading a table by its primary key yields the rows in the order of [`compare`].
/// The key must begin with these columns.
pub(super) fn is_by_bytes(
    connection: &Connection,
    table: &str,
    key: &[String],
) -> rusqlite::Result<bool> {
    let without_rowid: Option<bool> = connection
        .prepare_cached(
            "SELECT wr AND (SELECT encoding FROM pragma_encoding) = 'UTF-8' \
             FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
        )?
        .query_row([table], |found| found.get(0))
        .optional()?;
    if without_rowid != Some(true) {
        return Ok(false);
    }
    let mut index = connection.prepare_cached(
        "SELECT x.name FROM pragma_index_list(?1, 'main') AS l, \
         pragma_index_xinfo(l.name, 'main') AS x WHERE l.origin = 'pk' AND x.key \
         AND NOT x.\"desc\" AND x.coll = 'BINARY' ORDER BY x.seqno",
    )?;
    let found: Vec<String> = index
        .query_map([table], |found| found.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    if found.len() < key.len() {
        return Ok(false);
    }
    for (column, found) in key.iter().zip(&found) {
        // The collation of comparisons is the column's, and that of the index may differ.
        let (_, collation, ..) = connection.column_metadata(Some("main"), table, column)?;
        if !column.eq_ignore_ascii_case(found) || collation != Some(c"BINARY") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares the values of two rows, from a column each on. `None` where values of different
/// kinds meet: what SQLite makes of them depends on the declared types.
pub(super) fn compare(
    left: &Row<'_>,
    left_from: usize,
    right: &Row<'_>,
    right_from: usize,
    count: usize,
) -> rusqlite::Result<Option<Ordering>> {
    for position in 0..count {
        let left = left.get_ref(left_from + position)?;
        let right = right.get_ref(right_from + position)?;
        let order = match (left, right) {
            (ValueRef::Integer(left), ValueRef::Integer(right)) => Some(left.cmp(&right)),
            (ValueRef::Real(left), ValueRef::Real(right)) => left.partial_cmp(&right),
            (ValueRef::Text(left), ValueRef::Text(right))
            | (ValueRef::Blob(left), ValueRef::Blob(right)) => Some(left.cmp(right)),
            _ => None,
        };
        if order != Some(Ordering::Equal) {
            return Ok(order);
        }
    }
    Ok(Some(Ordering::Equal))
}
