//! Whether a synced table still has what the publication says: a tool or the user may have
//! changed it. More than that (columns, indexes and triggers of the application's own) does
//! no harm.

use rusqlite::{Connection, OptionalExtension};
use tidewater_protocol::{ColumnType, Table};

use crate::database::quote;
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "looking at a table";

/// Checks that all published columns are there and hold the values of their types, and that the
/// key is unique and complete.
pub(super) fn check(connection: &Connection, table: &Table) -> Result<(), RemoteError> {
    let columns = columns(connection, &table.name).doing(DOING)?;
    if let Some(&index) = missing(&columns, table).first() {
        let name = &table.columns[index].name;
        return Err(altered(table, format!("column {name:?} is gone")));
    }
    check_present(connection, table, &columns)
}

/// [`check`], of the columns that are there.
fn check_present(
    connection: &Connection,
    table: &Table,
    columns: &[ActualColumn],
) -> Result<(), RemoteError> {
    let altered = |what: String| Err(altered(table, what));
    for (index, published) in table.columns.iter().enumerate() {
        let name = &published.name;
        let Some(column) = columns.iter().find(|column| column.is(name)) else {
            continue;
        };
        if column.generated {
            return altered(format!("column {name:?} is a generated one now"));
        }
        let in_key = table.key.contains(&index);
        if !keeps(&column.declared, published.column_type, in_key) {
            return altered(format!(
                "{} {name:?} is {} now, and was {}",
                if in_key { "its key column" } else { "column" },
                match column.declared.as_str() {
                    "" => "without a type",
                    declared => declared,
                },
                published.column_type.sqlite_type()
            ));
        }
    }
    let key: Vec<&str> = table
        .key_columns()
        .map(|column| column.name.as_str())
        .collect();
    let primary = columns.iter().filter(|column| column.in_key);
    let primary: Vec<String> = primary.map(|column| column.name.clone()).collect();
    let indexes = key_indexes(connection, &table.name, &key).doing(DOING)?;
    if !same(&primary, &key) && indexes.is_empty() {
        return altered(format!("its key ({}) is gone", key.join(", ")));
    }
    if let Some(name) = other_collation(connection, table).doing(DOING)? {
        return altered(format!(
            "its key column {name:?} has a COLLATE clause now, by which two keys may be one"
        ));
    }
    if let Some(name) = other_index(connection, indexes).doing(DOING)? {
        return altered(format!(
            "its unique index {name:?} has a COLLATE clause, by which two keys may be one"
        ));
    }
    let loses_null = table.columns.iter().any(|published| {
        let mut here = columns.iter().filter(|column| column.is(&published.name));
        published.nullable && here.any(|column| column.not_null)
    });
    if let Some(clause) = conflict_clause(connection, &table.name, loses_null).doing(DOING)? {
        return altered(format!(
            "one of its constraints has {clause}, which nobody hears of when a row arrives"
        ));
    }
    // Nothing finds a row by a key that is NULL.
    let is_rowid = is_rowid(connection, &table.name).doing(DOING)?;
    let in_key = |column: &&ActualColumn| key.iter().any(|name| column.is(name));
    let identity = table.identity.map(|it| &table.columns[it.column].name);
    let may_be_null = |column: &&ActualColumn| {
        // A trigger numbers the row then.
        let is_numbered = identity.is_some_and(|name| column.is(name));
        !(column.not_null || is_numbered || column.in_key && is_rowid)
    };
    match columns.iter().filter(in_key).find(may_be_null) {
        None => Ok(()),
        Some(column) => altered(format!("its key column {:?} may be NULL now", column.name)),
    }
}

fn altered(table: &Table, what: String) -> RemoteError {
    RemoteError::TableAltered {
        table: table.name.clone(),
        what,
    }
}

/// What a synced table lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableLack {
    /// It is not there.
    Table,
    /// These columns, by their index in the schema; they can be added.
    Columns(Vec<usize>),
    /// More than columns that can be added: its key, or the type of a column.
    Broken,
}

/// What a table lacks of what is published, if anything.
pub(crate) fn lack(
    connection: &Connection,
    table: &Table,
) -> Result<Option<TableLack>, RemoteError> {
    match super::is_without_rowid(connection, &table.name) {
        Err(RemoteError::TableMissing { .. }) => return Ok(Some(TableLack::Table)),
        found => found?,
    };
    let columns = columns(connection, &table.name).doing(DOING)?;
    let missing = missing(&columns, table);
    Ok(match check_present(connection, table, &columns) {
        Err(RemoteError::TableAltered { .. }) => Some(TableLack::Broken),
        Err(error) => return Err(error),
        Ok(()) if missing.is_empty() => None,
        Ok(()) => Some(TableLack::Columns(missing)),
    })
}

/// The published columns that are not there, by their index in the schema.
pub(crate) fn missing_columns(
    connection: &Connection,
    table: &Table,
) -> Result<Vec<usize>, RemoteError> {
    let columns = columns(connection, &table.name).doing(DOING)?;
    Ok(missing(&columns, table))
}

fn missing(columns: &[ActualColumn], table: &Table) -> Vec<usize> {
    let is_there = |index: &usize| {
        let name = &table.columns[*index].name;
        columns.iter().any(|column| column.is(name))
    };
    (0..table.columns.len())
        .filter(|index| !is_there(index))
        .collect()
}

/// Whether a column that is declared so stores values of the type as the change table does: else
/// no row would be found by its key, and other values would never be those of the centre.
fn keeps(declared: &str, column_type: ColumnType, in_key: bool) -> bool {
    let affinity = Affinity::from_declared(declared);
    match column_type {
        // No affinity changes a blob.
        ColumnType::Bytes => true,
        // What is stored as it is written is as good as the application.
        _ if affinity == Affinity::None => !in_key,
        ColumnType::Integer | ColumnType::Boolean => {
            matches!(affinity, Affinity::Integer | Affinity::Numeric)
        }
        ColumnType::Real => affinity == Affinity::Real,
        // None of these looks like a number.
        ColumnType::Date
        | ColumnType::Time
        | ColumnType::Timestamp
        | ColumnType::TimestampTz
        | ColumnType::Uuid
            if !in_key =>
        {
            true
        }
        _ => affinity == Affinity::Text,
    }
}

/// What SQLite makes of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affinity {
    Integer,
    Text,
    Real,
    Numeric,
    /// It leaves them as they are.
    None,
}

impl Affinity {
    /// That of a declared type. (https://www.sqlite.org/datatype3.html, "Determination Of Column
    /// Affinity"; ANY is without affinity in STRICT tables only, and taken for that everywhere.)
    fn from_declared(declared: &str) -> Affinity {
        let declared = declared.to_ascii_uppercase();
        let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
        if has(&["INT"]) {
            Affinity::Integer
        } else if has(&["CHAR", "CLOB", "TEXT"]) {
            Affinity::Text
        } else if declared.is_empty() || declared == "ANY" || has(&["BLOB"]) {
            Affinity::None
        } else if has(&["REAL", "FLOA", "DOUB"]) {
            Affinity::Real
        } else {
            Affinity::Numeric
        }
    }
}

/// Whether the primary key of a table is its rowid, which is never NULL whatever its column says:
/// then no index is made for it.
fn is_rowid(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let indexed = connection
        .prepare("SELECT 1 FROM pragma_index_list(?1, 'main') WHERE origin = 'pk'")?
        .exists([table])?;
    Ok(!indexed)
}

/// A column as SQLite has it.
struct ActualColumn {
    name: String,
    /// The type that it was declared with, maybe none.
    declared: String,
    not_null: bool,
    in_key: bool,
    generated: bool,
}

impl ActualColumn {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<ActualColumn>> {
    connection
        .prepare(
            "SELECT name, type, \"notnull\", pk > 0, hidden > 1 \
             FROM pragma_table_xinfo(?1, 'main')",
        )?
        .query_map([table], |row| {
            Ok(ActualColumn {
                name: row.get(0)?,
                declared: row.get(1)?,
                not_null: row.get(2)?,
                in_key: row.get(3)?,
                generated: row.get(4)?,
            })
        })?
        .collect()
}

/// The whole unique indexes that have exactly the columns of the key: an upsert takes any of them.
fn key_indexes(
    connection: &Connection,
    table: &str,
    key: &[&str],
) -> rusqlite::Result<Vec<String>> {
    let indexes = connection
        .prepare("SELECT name FROM pragma_index_list(?1, 'main') WHERE \"unique\" AND NOT partial")?
        .query_map([table], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    let mut found = Vec::new();
    for index in indexes {
        let columns = connection
            .prepare("SELECT coalesce(name, '') FROM pragma_index_info(?1, 'main')")?
            .query_map([&index], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<String>>>()?;
        if same(&columns, key) {
            found.push(index);
        }
    }
    Ok(found)
}

/// A key column that is not compared byte by byte. The primary key may be, and its column not:
/// SQLite has no pragma that tells of the latter.
fn other_collation<'t>(
    connection: &Connection,
    table: &'t Table,
) -> rusqlite::Result<Option<&'t str>> {
    let of_key = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1, 'main') AS i, \
                  pragma_index_xinfo(i.name, 'main') AS x WHERE i.origin <> 'c' AND x.key \
                  AND x.name = ?2 COLLATE NOCASE AND x.coll <> 'BINARY' COLLATE NOCASE)";
    for column in table.key_columns() {
        let of_column = format!(
            "SELECT k = 'a' OR k = 'A ' FROM (SELECT {} AS k FROM {} WHERE FALSE UNION ALL SELECT 'A')",
            quote::name(&column.name),
            quote::name(&table.name)
        );
        let key = connection.query_row(of_key, [&table.name, &column.name], |row| row.get(0));
        if key? || connection.query_row(&of_column, [], |row| row.get(0))? {
            return Ok(Some(&column.name));
        }
    }
    Ok(None)
}

/// One of the indexes of the key that does not compare byte by byte.
fn other_index(connection: &Connection, indexes: Vec<String>) -> rusqlite::Result<Option<String>> {
    let mut compares_otherwise = connection.prepare_cached(
        "SELECT 1 FROM pragma_index_xinfo(?1, 'main') WHERE key \
         AND coll <> 'BINARY' COLLATE NOCASE",
    )?;
    for name in indexes {
        if compares_otherwise.exists([&name])? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// A conflict clause by which a constraint removes rows, or leaves them out, and nobody hears of
/// it. Only the table's own words tell. That NOT NULL puts the default in the place of NULL does
/// neither, and no harm unless a published column `loses_null`.
fn conflict_clause(
    connection: &Connection,
    table: &str,
    loses_null: bool,
) -> rusqlite::Result<Option<String>> {
    let sql: Option<String> = connection
        .prepare_cached(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
        )?
        .query_row([table], |row| row.get(0))
        .optional()?;
    let words = words(&sql.unwrap_or_default());
    let mut constraint = "";
    for (at, word) in words.iter().enumerate() {
        match &**word {
            "PRIMARY" | "UNIQUE" | "NULL" | "CHECK" => constraint = word,
            "ON" if words.get(at + 1).is_some_and(|next| next == "CONFLICT") => {
                match words.get(at + 2).map(String::as_str) {
                    None | Some("ABORT") => {}
                    Some("REPLACE") if constraint == "NULL" && !loses_null => {}
                    Some(other) => return Ok(Some(format!("ON CONFLICT {other}"))),
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The bare words of a statement in capitals: not what is quoted or commented.
/// (https://www.sqlite.org/lang_keywords.html, https://www.sqlite.org/lang_comment.html)
fn words(sql: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let beyond = |begin: &str, end: &str| {
            let parts = rest[begin.len()..].split_once(end);
            parts.map_or("", |(_, beyond)| beyond)
        };
        rest = match first {
            '\'' => beyond("'", "'"),
            '"' => beyond("\"", "\""),
            '`' => beyond("`", "`"),
            '[' => beyond("[", "]"),
            '-' if rest.starts_with("--") => beyond("--", "\n"),
            '/' if rest.starts_with("/*") => beyond("/*", "*/"),
            _ if is_of_word(first) => {
                let end = rest.find(|next| !is_of_word(next)).unwrap_or(rest.len());
                words.push(rest[..end].to_ascii_uppercase());
                &rest[end..]
            }
            _ => &rest[first.len_utf8()..],
        };
    }
    words
}

fn is_of_word(character: char) -> bool {
    character.is_ascii_alphanumeric()
        || character == '_'
        || character == '$'
        || !character.is_ascii()
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
