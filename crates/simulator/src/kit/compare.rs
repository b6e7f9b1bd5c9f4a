//! I3, I5 and I6: when everybody has synced and nobody writes, a device has what one has that begins
//! anew for the same user, refused rows aside. Whatever a script, a window or a partition says, it
//! says it to both.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, params_from_iter};

use super::editable::Editable;
use super::tables::PublishedTable;
use super::values::{Row, quote};
use super::watch::Audit;

/// A row that two devices have otherwise.
pub(super) struct Difference {
    pub(super) table: String,
    pub(super) key: String,
    pub(super) here: String,
    pub(super) anew: String,
}

/// The first row that a device has otherwise than one that began anew.
pub(super) fn difference(
    (here, anew): (&Connection, &Connection),
    tables: &[&PublishedTable],
    editable: &[Editable],
) -> rusqlite::Result<Option<Difference>> {
    let aside = aside(here, tables)?;
    for table in tables.iter().filter(|it| it.direction.downloads()) {
        let (mine, theirs) = (rows(here, table)?, rows(anew, table)?);
        let keys: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        for key in keys {
            let (one, other) = (mine.get(key), theirs.get(key));
            let is_aside = aside.contains(&(table.name.clone(), key.clone()));
            if one == other || is_aside {
                continue;
            }
            // What a refused row belongs to stays with it.
            if other.is_none() && is_needed(here, table, key, editable, &aside)? {
                continue;
            }
            return Ok(Some(Difference {
                table: table.name.clone(),
                key: key.clone(),
                here: table.told(one),
                anew: table.told(other),
            }));
        }
    }
    Ok(None)
}

/// All rows of a table by their keys.
fn rows(
    connection: &Connection,
    table: &PublishedTable,
) -> rusqlite::Result<BTreeMap<String, Row>> {
    let (key, columns) = (table.key_of(""), table.columns_of(""));
    let sql = format!("SELECT {key}, {columns} FROM {}", quote(&table.name));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| {
        Ok((table.read_key(row, 0)?, table.read(row, table.key.len())?))
    })?;
    rows.collect()
}

/// The row with a key as people are told of it.
pub(super) fn row_named(
    connection: &Connection,
    table: &PublishedTable,
    key: &str,
) -> rusqlite::Result<Option<Row>> {
    Ok(rows(connection, table)?.remove(key))
}

/// Rows whose change was refused, and rows that wait to be asked for again because of one.
fn aside(
    connection: &Connection,
    tables: &[&PublishedTable],
) -> rusqlite::Result<BTreeSet<(String, String)>> {
    let sql = "SELECT table_name, key FROM tidewater_refused";
    let refused: BTreeSet<(String, String)> = connection
        .prepare_cached(sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut aside = refused.clone();
    // A row that finds its unique value taken by a refused one, or is needed by it, is stale.
    let stale = "SELECT count(*) FROM tidewater_stale";
    let stale: i64 = connection
        .prepare_cached(stale)?
        .query_row([], |row| row.get(0))?;
    if stale > 0 && !refused.is_empty() {
        for table in tables {
            let sql = "SELECT 1 FROM tidewater_stale WHERE table_name = ?1";
            if connection.prepare_cached(sql)?.exists([&table.name])? {
                let keys = rows(connection, table)?.into_keys();
                aside.extend(keys.map(|key| (table.name.clone(), key)));
                aside.insert((table.name.clone(), String::new()));
            }
        }
    }
    Ok(aside)
}

/// Whether a row that should be gone is referred to by one that stays aside.
fn is_needed(
    connection: &Connection,
    table: &PublishedTable,
    key: &str,
    editable: &[Editable],
    aside: &BTreeSet<(String, String)>,
) -> rusqlite::Result<bool> {
    let is_table = |it: &Editable| it.name.eq_ignore_ascii_case(&table.name);
    let Some(place) = editable.iter().position(is_table) else {
        return Ok(false);
    };
    let columns = table.columns_of("");
    let names = table.columns.iter().map(|it| it.name.as_str());
    let names: Vec<&str> = names.collect();
    let sql = format!(
        "SELECT {}, {columns} FROM {}",
        table.key_of(""),
        quote(&table.name)
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        if table.read_key(row, 0)? != key {
            continue;
        }
        for child in editable {
            for reference in child.references.iter().filter(|it| it.parent == place) {
                let mut conditions = Vec::new();
                let mut values = Vec::new();
                for (own, theirs) in reference.fields.iter().zip(&reference.parent_fields) {
                    let parent = &editable[place].fields[*theirs].name;
                    let at = names.iter().position(|it| it.eq_ignore_ascii_case(parent));
                    let Some(at) = at else { continue };
                    values.push(row.get::<_, rusqlite::types::Value>(table.key.len() + at)?);
                    let name = quote(&child.fields[*own].name);
                    conditions.push(format!("{name} = ?{}", values.len()));
                }
                if conditions.is_empty() || !aside.iter().any(|it| it.0 == child.name) {
                    continue;
                }
                let sql = format!(
                    "SELECT 1 FROM {} WHERE {}",
                    quote(&child.name),
                    conditions.join(" AND ")
                );
                if connection
                    .prepare_cached(&sql)?
                    .exists(params_from_iter(&values))?
                {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

impl Difference {
    /// What to say of it.
    pub(super) fn told(&self, centre: &Connection, audit: &Audit, place: usize) -> String {
        let Difference {
            table,
            key,
            here,
            anew,
        } = self;
        let changes = audit.count(centre, place, key).unwrap_or_default();
        let since = match changes {
            0 => "the centre never changed it".to_owned(),
            1 => "the centre changed it once".to_owned(),
            count => format!("the centre changed it {count} times"),
        };
        let promise = match (here.as_str(), changes) {
            (_, 1..) => "I3: a change was skipped:",
            _ => "I6: devices do not end equal:",
        };
        format!(
            "{promise} of {table} {key} it has {here}; a device that begins anew for the same user \
             has {anew} ({since})"
        )
    }
}
