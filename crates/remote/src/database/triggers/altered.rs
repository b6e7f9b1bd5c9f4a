//! Whether a synced table still has what the publication says: a tool or the user may have
//! changed it. More than that (columns, indexes and triggers of the application's own) does
//! no harm.

use rusqlite::Connection;
use tidewater_protocol::Table;

use crate::error::{Doing, RemoteError};

const DOING: &str = "looking at a table";

/// Checks that all published columns are there, and that the key is unique.
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
    /// Its key, or a column that cannot be added.
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

/// A column as SQLite has it.
struct Column {
    name: String,
    in_key: bool,
    generated: bool,
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    connection
        .prepare("SELECT name, pk > 0, hidden > 1 FROM pragma_table_xinfo(?1, 'main')")?
        .query_map([table], |row| {
            Ok(Column {
                name: row.get(0)?,
                in_key: row.get(1)?,
                generated: row.get(2)?,
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
