//! Whether a synced table still has what the publication says: a tool or the user may have
//! changed it. More than that (columns, indexes and triggers of the application's own) does
//! no harm.

use rusqlite::Connection;
use tidewater_protocol::{ColumnType, Table};

use crate::error::{Doing, RemoteError};

const DOING: &str = "looking at a table";

/// Checks that all published columns are there, that the key is unique, and that it holds the
/// values of its types.
pub(super) fn check(connection: &Connection, table: &Table) -> Result<(), RemoteError> {
    let altered = |what: String| RemoteError::TableAltered {
        table: table.name.clone(),
        what,
    };
    let columns = columns(connection, &table.name).doing(DOING)?;
    let is = |column: &Column, name: &str| column.name.eq_ignore_ascii_case(name);
    for published in &table.columns {
        let found = columns.iter().find(|column| is(column, &published.name));
        match found {
            None => return Err(altered(format!("column {:?} is gone", published.name))),
            Some(column) if column.generated => {
                let what = format!("column {:?} is a generated one now", published.name);
                return Err(altered(what));
            }
            Some(_) => {}
        }
    }
    for published in table.key_columns() {
        let found = columns.iter().find(|column| is(column, &published.name));
        let declared = found.map_or("", |column| &column.declared);
        if !keeps(declared, published.column_type) {
            return Err(altered(format!(
                "its key column {:?} is {declared} now, and was {}",
                published.name,
                published.column_type.sqlite_type()
            )));
        }
    }
    let key: Vec<&str> = table
        .key_columns()
        .map(|column| column.name.as_str())
        .collect();
    let primary = columns.iter().filter(|column| column.in_key);
    let primary: Vec<String> = primary.map(|column| column.name.clone()).collect();
    if same(&primary, &key) || has_unique_index(connection, &table.name, &key).doing(DOING)? {
        return Ok(());
    }
    Err(altered(format!("its key ({}) is gone", key.join(", "))))
}

/// What a synced table lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// It is not there.
    Table,
    /// These columns, by their index in the schema; they can be added.
    Columns(Vec<usize>),
    /// Its key, or the type of its key, or a column that cannot be added.
    Key,
}

/// What a table lacks of what is published, if anything.
pub(crate) fn lack(connection: &Connection, table: &Table) -> Result<Option<Lack>, RemoteError> {
    match super::is_without_rowid(connection, &table.name) {
        Err(RemoteError::TableMissing { .. }) => return Ok(Some(Lack::Table)),
        found => found?,
    };
    if check(connection, table).is_ok() {
        return Ok(None);
    }
    let columns = columns(connection, &table.name).doing(DOING)?;
    let is_there = |index: &usize| {
        let published = &table.columns[*index].name;
        let mut columns = columns.iter();
        columns.any(|column| column.name.eq_ignore_ascii_case(published))
    };
    let missing = (0..table.columns.len()).filter(|index| !is_there(index));
    let missing: Vec<usize> = missing.collect();
    let key: Vec<&str> = table
        .key_columns()
        .map(|column| column.name.as_str())
        .collect();
    let primary = columns.iter().filter(|column| column.in_key);
    let primary: Vec<String> = primary.map(|column| column.name.clone()).collect();
    let has_key =
        same(&primary, &key) || has_unique_index(connection, &table.name, &key).doing(DOING)?;
    Ok(Some(match has_key && !missing.is_empty() {
        true => Lack::Columns(missing),
        false => Lack::Key,
    }))
}

/// Whether a column that is declared so stores values of the type as they are: else no row would
/// be found by its key. (https://www.sqlite.org/datatype3.html, "Determination Of Column
/// Affinity")
fn keeps(declared: &str, column_type: ColumnType) -> bool {
    let declared = declared.to_ascii_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
    let affinity = if has(&["INT"]) {
        Affinity::Integer
    } else if has(&["CHAR", "CLOB", "TEXT"]) {
        Affinity::Text
    } else if declared.is_empty() || has(&["BLOB"]) {
        return true;
    } else if has(&["REAL", "FLOA", "DOUB"]) {
        Affinity::Real
    } else {
        Affinity::Numeric
    };
    match column_type.sqlite_type() {
        "INTEGER" => matches!(affinity, Affinity::Integer | Affinity::Numeric),
        "REAL" => affinity == Affinity::Real,
        "TEXT" => affinity == Affinity::Text,
        // No affinity changes a blob.
        _ => true,
    }
}

/// What SQLite makes of the values of a column; a column without affinity makes nothing of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affinity {
    Integer,
    Text,
    Real,
    Numeric,
}

/// A column as SQLite has it.
struct Column {
    name: String,
    /// The type that it was declared with, maybe none.
    declared: String,
    in_key: bool,
    generated: bool,
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    connection
        .prepare("SELECT name, type, pk > 0, hidden > 1 FROM pragma_table_xinfo(?1, 'main')")?
        .query_map([table], |row| {
            Ok(Column {
                name: row.get(0)?,
                declared: row.get(1)?,
                in_key: row.get(2)?,
                generated: row.get(3)?,
            })
        })?
        .collect()
}

/// Whether a whole unique index has exactly the columns of the key: then an upsert finds it.
fn has_unique_index(connection: &Connection, table: &str, key: &[&str]) -> rusqlite::Result<bool> {
    let indexes = connection
        .prepare("SELECT name FROM pragma_index_list(?1, 'main') WHERE \"unique\" AND NOT partial")?
        .query_map([table], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    for index in indexes {
        let columns = connection
            .prepare("SELECT coalesce(name, '') FROM pragma_index_info(?1, 'main')")?
            .query_map([index], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<String>>>()?;
        if same(&columns, key) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same names, in whatever order.
fn same(columns: &[String], key: &[&str]) -> bool {
    let has = |name: &str| {
        columns
            .iter()
            .any(|column| column.eq_ignore_ascii_case(name))
    };
    columns.len() == key.len() && key.iter().all(|name| has(name))
}
