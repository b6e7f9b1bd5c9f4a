//! I6 (and with it I3): when everybody has synced and nobody writes, every remote equals
//! the centre restricted to its scope, refused rows aside.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension};

use super::has_table;
use super::parties::{Parties, other_key};
use crate::besides;
use crate::tables::{BALANCES, EDITED, Holder, SyncedTable};

type Rows = BTreeMap<i64, Vec<Value>>;

/// The first row that differs.
pub(crate) fn difference(
    parties: &Parties<'_>,
    holder: Holder<'_>,
) -> rusqlite::Result<Option<String>> {
    let aside = aside(parties)?;
    let mut besides = Vec::new();
    for table in besides::TABLES {
        if has_table(parties.centre, table.name)? {
            besides.push(table);
        }
    }
    for table in EDITED.iter().chain(BALANCES).chain(besides) {
        let mut here = rows(parties.remote, table, None)?;
        let mut there = rows(parties.centre, table, Some(holder))?;
        for (_, key) in aside.iter().filter(|(name, _)| name == table.name) {
            here.remove(key);
            there.remove(key);
        }
        let keys: BTreeSet<&i64> = here.keys().chain(there.keys()).collect();
        for key in keys {
            let (here, there) = (here.get(key), there.get(key));
            if here != there {
                return Ok(Some(format!(
                    "I6: {} {key} of {} is {here:?}, in the centre {there:?}",
                    table.name, holder.user
                )));
            }
        }
    }
    Ok(None)
}

/// All rows, or those that somebody holds.
fn rows(
    connection: &Connection,
    table: &SyncedTable,
    of: Option<Holder<'_>>,
) -> rusqlite::Result<Rows> {
    let scope = of.map_or("?1 IS NULL".into(), |holder| table.held_by(holder));
    let mut columns = table.columns.to_vec();
    // Comes and goes, on the remotes as in the centre.
    let extra = "SELECT 1 FROM pragma_table_info(?1) WHERE name = 'extra'";
    if connection.prepare_cached(extra)?.exists([table.name])? {
        columns.push("extra");
    }
    let sql = format!(
        "SELECT {} FROM {} WHERE {scope}",
        columns.join(", "),
        table.name
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([of.map(|holder| holder.user)], |row| {
        let values = (0..columns.len()).map(|index| row.get(index));
        let number = table.key_is.number(row.get_ref(0)?)?;
        Ok((number, values.collect::<rusqlite::Result<_>>()?))
    })?;
    rows.collect()
}

/// Rows whose change was refused, what they refer to (it stays as long as they do), rows of the
/// centre that find their code taken by them, and those that refer to a row under the key of which
/// an insert was refused: they are another family's, and wait for the user's decision.
fn aside(parties: &Parties<'_>) -> rusqlite::Result<BTreeSet<(String, i64)>> {
    let remote = parties.remote;
    let mut aside = BTreeSet::new();
    let sql = "SELECT table_name, key, operation = 'insert' FROM tidewater_refused";
    let mut statement = remote.prepare_cached(sql)?;
    let refused = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for refused in refused {
        let (table, key, is_insert): (String, String, bool) = refused?;
        let Some(of) = EDITED
            .iter()
            .chain(besides::TABLES)
            .find(|it| it.name == table)
        else {
            continue;
        };
        // A refusal names the key that a row had before; here it has the one that it was given.
        let before = of.key_is.number_in(&key).unwrap_or_default();
        aside.insert((table.clone(), before));
        let key = other_key(remote, of, before, ["old", "new"])?.unwrap_or(before);
        let (mut child, mut child_key) = (of, key);
        while let Some((column, parent)) = child.reference() {
            let (name, key) = (child.name, child.key());
            let sql = format!("SELECT {column} FROM {name} WHERE {key} = ?1");
            let mut statement = remote.prepare_cached(&sql)?;
            let parent_key = statement.query_row([child.key_is.value(child_key)], |row| {
                Ok(parent.key_is.number(row.get_ref(0)?)?)
            });
            let Some(parent_key) = parent_key.optional()? else {
                break;
            };
            aside.insert((parent.name.to_owned(), parent_key));
            (child, child_key) = (parent, parent_key);
        }
        if of.has_code() {
            let sql = format!("SELECT code FROM {table} WHERE {} = ?1", of.key());
            let mut statement = remote.prepare_cached(&sql)?;
            let code: Option<Option<String>> = statement
                .query_row([of.key_is.value(key)], |row| row.get(0))
                .optional()?;
            let sql = format!("SELECT {} FROM {table} WHERE code = ?1", of.key());
            let mut statement = parties.centre.prepare_cached(&sql)?;
            let mut holders = statement.query([code.flatten()])?;
            while let Some(row) = holders.next()? {
                aside.insert((table.clone(), of.key_is.number(row.get_ref(0)?)?));
            }
        }
        if is_insert {
            add_family(parties.centre, (of, key), &mut aside)?;
        }
        aside.insert((table, key));
    }
    Ok(aside)
}

/// Adds what refers to a row of the centre, to any depth.
fn add_family(
    centre: &Connection,
    (parent, key): (&SyncedTable, i64),
    aside: &mut BTreeSet<(String, i64)>,
) -> rusqlite::Result<()> {
    for child in parent.children().map(|index| &EDITED[index]) {
        let Some((column, _)) = child.reference() else {
            continue;
        };
        let sql = format!(
            "SELECT {} FROM {} WHERE {column} = ?1",
            child.key(),
            child.name
        );
        let mut statement = centre.prepare_cached(&sql)?;
        let keys = statement.query_map([parent.key_is.value(key)], |row| {
            Ok(child.key_is.number(row.get_ref(0)?)?)
        })?;
        for key in keys.collect::<rusqlite::Result<Vec<i64>>>()? {
            aside.insert((child.name.to_owned(), key));
            add_family(centre, (child, key), aside)?;
        }
    }
    Ok(())
}
