//! Tracking triggers: they write down the pre-image of every row before its first change in
//! a generation.
//!
//! All of them are BEFORE triggers. A trigger of the user that runs first and touches the
//! same row fires them again, nested, with what the row was before; and a row that REPLACE
//! displaces is still there to be read. What is recorded and then does not happen (OR IGNORE,
//! DO NOTHING) is no net change and is never sent.
//!
//! That a row's key was changed is noted afterwards (`rekeyed`), when it has really happened:
//! see [`super::rekeyed`].
//!
//! They use built-in functions only, and nothing that SQLite 3.9 cannot parse: the application
//! may bring a library that old, and one object that it cannot parse makes the whole file
//! unusable to it. A pre-image that is there already is kept by `WHEN NOT EXISTS`, never by
//! `INSERT OR IGNORE`: an `OR` clause of the application's statement overrides those of its
//! triggers.

mod altered_tables;
mod spelling;
mod trigger_writer;
mod unique;

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension};
use tidewater_protocol::Table;

pub(crate) use altered_tables::{TableLack, lack, missing_columns};
use unique::has_unique_index;
pub(crate) use unique::{UniqueIndex, unique_indexes};

use super::SubscriptionState;
use super::layout::{PREFIX, STATE, is_own_trigger};
use super::tables::{self, QuotedNames};
use super::upload::in_step;
use super::{numbers, quote};
use crate::error::{ErrorContext, RemoteError};
use trigger_writer::TriggerWriter;

/// A table that was not tracked, or not wholly: it may have been changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UntrackedTable {
    pub(crate) subscription: i64,
    pub(crate) table: String,
    /// Changes of it can be uploaded.
    pub(crate) uploads: bool,
    pub(crate) missed: MissedChanges,
}

/// What may have happened to a table without being tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedChanges {
    /// Anything: its triggers were gone.
    Anything,
    /// Rows that `REPLACE` pushed out through a unique index that is new.
    Displaced,
}

/// Makes the tracking triggers of all tables as they should be; returns the tables that
/// were not tracked.
///
/// Any DDL changes the file's schema version. While it is the one that was found in order
/// last time, nothing needs to be looked at.
pub(crate) fn ensure(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
) -> Result<Vec<UntrackedTable>, RemoteError> {
    ensure_all(connection, subscriptions, true)
}

/// Makes the triggers again that were dropped in the transaction that goes on.
pub(crate) fn put_back(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
) -> Result<(), RemoteError> {
    ensure_all(connection, subscriptions, false).map(drop)
}

/// See [`ensure`]. `spells`: keys may have been written while a table had no triggers.
fn ensure_all(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
    spells: bool,
) -> Result<Vec<UntrackedTable>, RemoteError> {
    let mut untracked = Vec::new();
    let existing = existing(connection)?;
    let mut is_plain = true;
    for subscription in subscriptions {
        let Some(schema) = &subscription.schema else {
            continue;
        };
        for table in &schema.tables {
            // What only remotes write cannot be compared: nobody sends it.
            let missed = ensure_table(connection, subscription, table, (&existing, spells))?;
            if let Some(missed) = missed.filter(|_| table.direction.downloads()) {
                untracked.push(UntrackedTable {
                    subscription: subscription.id,
                    table: table.name.clone(),
                    uploads: table.direction.uploads(),
                    missed,
                });
            }
            is_plain = is_plain && table_is_plain(connection, table).doing("looking at a table")?;
        }
    }
    remember_checked(connection, is_plain)?;
    Ok(untracked)
}

/// See [`are_plain`].
fn table_is_plain(connection: &Connection, table: &Table) -> rusqlite::Result<bool> {
    let has_trigger = connection
        .prepare_cached(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE",
        )?
        .query_map([&table.name], |row| row.get::<_, String>(0))?
        .any(|name| !name.is_ok_and(|name| is_own_trigger(&name)));
    Ok(!has_trigger && !has_unique_index(connection, &table.name)? && in_step(connection, table)?)
}

/// Whether the schema is the one that [`ensure`] last saw.
pub(crate) fn are_checked(connection: &Connection) -> Result<bool, RemoteError> {
    is_version_of(connection, 8).doing("reading the schema version")
}

/// Whether the synced tables are as they were made: no trigger of the application's and no unique
/// index of its own is on any, and each is read in the order of its changes. [`ensure`] has found
/// that out; as long as the schema stays what it was then, nobody need look again.
pub(crate) fn are_plain(connection: &Connection) -> rusqlite::Result<bool> {
    is_version_of(connection, 9)
}

/// Whether the file's schema version is the one in this column of [`STATE`].
fn is_version_of(connection: &Connection, column: usize) -> rusqlite::Result<bool> {
    let noted: i64 = connection
        .prepare_cached(STATE)?
        .query_row([], |row| row.get(column))?;
    Ok(schema_version(connection)? == noted)
}

/// Notes that the triggers fit the schema as it is now, and whether the tables are plain.
fn remember_checked(connection: &Connection, is_plain: bool) -> Result<(), RemoteError> {
    let doing = "noting the schema version";
    let version = schema_version(connection).doing(doing)?;
    connection
        .execute(
            "UPDATE tidewater_state SET checked_schema_version = ?1, plain_schema_version = ?2 \
             WHERE checked_schema_version <> ?1 OR plain_schema_version <> ?2",
            [version, if is_plain { version } else { -1 }],
        )
        .map(drop)
        .doing(doing)
}

/// A number that changes with every DDL in the file.
pub(crate) fn schema_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("PRAGMA schema_version")?
        .query_row([], |row| row.get(0))
}

/// A trigger that has the name of one of ours. Where a table was renamed, and another took its
/// name, its triggers went with it.
struct NamesakeTrigger {
    table: String,
    sql: String,
}

fn existing(connection: &Connection) -> Result<BTreeMap<String, NamesakeTrigger>, RemoteError> {
    let doing = "looking for tracking triggers";
    let mut statement = connection
        .prepare(
            "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' \
             AND name LIKE 'tidewater\\_%' ESCAPE '\\'",
        )
        .doing(doing)?;
    let rows = statement
        .query_map([], |row| {
            let (table, sql) = (row.get(1)?, row.get(2)?);
            Ok((row.get(0)?, NamesakeTrigger { table, sql }))
        })
        .doing(doing)?;
    rows.collect::<rusqlite::Result<_>>().doing(doing)
}

/// Returns what was not tracked. A unique index that is new needs triggers more; without them
/// only `REPLACE` through it is missed.
fn ensure_table(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    (existing, spells): (&BTreeMap<String, NamesakeTrigger>, bool),
) -> Result<Option<MissedChanges>, RemoteError> {
    let without_rowid = is_without_rowid(connection, &table.name)?;
    altered_tables::check(connection, table)?;
    let unique = unique_indexes(connection, &table.name)?;
    let writer = TriggerWriter {
        names: QuotedNames::for_table(table),
        table,
        subscription: subscription.id,
        defaults: defaults(connection, &table.name)?,
        is_unchecked: spelling::is_unchecked(connection, table)?,
    };
    let wanted = statements(&writer, &unique, without_rowid);
    let mut missed = None;
    let of_table = |kind| {
        let found = existing.get(&trigger_name(kind, &table.name))?;
        let is_there = found.table.eq_ignore_ascii_case(&table.name);
        is_there.then_some(&found.sql)
    };
    if has_new_index(&writer, &unique, of_table("displacing_insert")) {
        missed = Some(MissedChanges::Displaced);
    }
    let is_gone = |kind| wanted.contains_key(kind) && of_table(kind).is_none();
    if RECORDING.into_iter().any(is_gone) {
        missed = Some(MissedChanges::Anything);
    }
    let respells = spells
        && match table.direction.uploads() {
            true => SPELLING.into_iter().any(is_gone),
            // Nobody but a tool writes there.
            false => writer.is_unchecked && missed.is_some(),
        };
    if respells {
        drop_table_triggers(connection, &table.name)?;
        if spelling::respell(connection, subscription, table)? {
            missed = Some(MissedChanges::Anything);
        }
    }
    for &kind in KINDS.into_iter().flatten() {
        let name = trigger_name(kind, &table.name);
        let expected = wanted.get(kind);
        let is_elsewhere = of_table(kind).is_none() && existing.contains_key(&name);
        if of_table(kind) == expected && !is_elsewhere && !respells {
            continue;
        }
        let drop = format!("DROP TRIGGER IF EXISTS {}", quote::name(&name));
        connection
            .execute_batch(&drop)
            .doing("dropping a trigger")?;
        if let Some(sql) = expected {
            connection.execute_batch(sql).doing("creating a trigger")?;
        }
    }
    if NUMBERING.into_iter().any(is_gone) {
        numbers::number_rows(connection, table)?;
    }
    Ok(missed)
}

/// Whether there is a unique index through which `REPLACE` was not tracked by this trigger.
fn has_new_index(
    writer: &TriggerWriter<'_>,
    unique: &[UniqueIndex],
    displaces: Option<&String>,
) -> bool {
    let mut known = unique.iter().filter(|index| index.is_known());
    writer.table.direction.uploads()
        && known.any(|index| {
            let tracking = writer.displaced(index, "");
            displaces.is_none_or(|trigger| !trigger.contains(&tracking))
        })
}

/// Drops the tracking triggers of a table.
pub(crate) fn drop_table_triggers(connection: &Connection, table: &str) -> Result<(), RemoteError> {
    for &kind in KINDS.into_iter().flatten() {
        let name = quote::name(&trigger_name(kind, table));
        connection
            .execute_batch(&format!("DROP TRIGGER IF EXISTS {name}"))
            .doing("dropping a trigger")?;
    }
    Ok(())
}

/// The table has no rowid, as we made it. A tool that rebuilds tables may give it one.
fn is_without_rowid(connection: &Connection, table: &str) -> Result<bool, RemoteError> {
    connection
        .query_row(
            "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1 \
             COLLATE NOCASE AND type = 'table'",
            [table],
            |row| row.get(0),
        )
        .optional()
        .doing("looking at a table")?
        .ok_or_else(|| RemoteError::TableMissing {
            table: table.to_owned(),
        })
}

/// The values that `REPLACE` puts in the place of NULL in columns that have none, by the
/// column's name in SQL. BEFORE triggers see the NULL. What is computed is not known.
fn defaults(connection: &Connection, table: &str) -> Result<BTreeMap<String, String>, RemoteError> {
    let doing = "looking at the defaults of a table";
    let mut statement = connection
        .prepare_cached(
            "SELECT name, dflt_value FROM pragma_table_info(?1, 'main') \
             WHERE \"notnull\" AND dflt_value IS NOT NULL AND instr(dflt_value, '(') = 0",
        )
        .doing(doing)?;
    let rows = statement
        .query_map([table], |row| {
            Ok((quote::name(&row.get::<_, String>(0)?), row.get(1)?))
        })
        .doing(doing)?;
    rows.collect::<rusqlite::Result<_>>().doing(doing)
}

const KINDS: [&[&str]; 4] = [&RECORDING, &DISPLACING, &SPELLING, &NUMBERING];

/// Without these, changes go unnoticed.
const RECORDING: [&str; 8] = [
    "insert",
    "over_insert",
    "inserted",
    "update",
    "rekey",
    "rekeyed",
    "delete",
    "forget_rekeyed",
];

/// Without these, only what `REPLACE` pushes out through a unique index does.
const DISPLACING: [&str; 2] = ["displacing_insert", "displacing_update"];

/// These record nothing.
const SPELLING: [&str; 2] = ["spelling_insert", "spelling_update"];

/// These give numbers to rows, and see to it that none is given twice.
const NUMBERING: [&str; 4] = [
    "identity",
    "unset_identity",
    "use_identity",
    "move_identity",
];

/// See [`PREFIX`]: no two tables have a trigger of one name.
fn trigger_name(kind: &str, table: &str) -> String {
    format!("{PREFIX}{kind}_{table}")
}

/// The triggers that a table should have, by kind.
fn statements(
    writer: &TriggerWriter<'_>,
    unique: &[UniqueIndex],
    without_rowid: bool,
) -> BTreeMap<&'static str, String> {
    if !writer.table.direction.uploads() {
        return BTreeMap::from([
            ("insert", writer.download_only("insert", "INSERT")),
            ("update", writer.download_only("update", "UPDATE")),
            ("delete", writer.download_only("delete", "DELETE")),
        ]);
    }
    let mut statements = BTreeMap::from([
        ("insert", writer.insert()),
        ("over_insert", writer.over_insert()),
        ("update", writer.gone("update", "BEFORE UPDATE")),
        ("rekey", writer.rekey(without_rowid)),
        ("rekeyed", writer.rekeyed(without_rowid)),
        ("delete", writer.gone("delete", "BEFORE DELETE")),
        ("forget_rekeyed", writer.forget_rekeyed()),
    ]);
    let mut key = writer.table.key_columns();
    let is_computed = key.any(|it| it.default.as_deref().is_some_and(tables::is_computed));
    if !without_rowid || is_computed {
        // The key may be assigned by SQLite, and BEFORE INSERT does not know it then.
        statements.insert("inserted", writer.inserted());
    }
    if let Some(column) = numbers::column(writer.table) {
        statements.extend(writer.numbering(&column));
    }
    if writer.is_unchecked {
        let body = spelling::tell_misspelt(writer.table);
        let update = format!("BEFORE UPDATE OF {}", writer.names.key.join(", "));
        for (kind, event) in SPELLING.into_iter().zip(["BEFORE INSERT", &update]) {
            statements.insert(kind, writer.create(kind, event, "", &body));
        }
    }
    let unique: Vec<&UniqueIndex> = unique.iter().filter(|index| index.is_known()).collect();
    if !unique.is_empty() {
        statements.insert("displacing_insert", writer.displacing_insert(&unique));
        statements.insert("displacing_update", writer.displacing_update(&unique));
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of tables and indexes are in one namespace, those of triggers in another.
    #[test]
    fn names_of_two_tables_objects_never_meet() {
        let objects = ["change", "rekeyed", "former_key", "index"];
        for kinds in [KINDS.concat(), objects.to_vec()] {
            for (one, other) in kinds
                .iter()
                .flat_map(|it| kinds.iter().map(move |o| (it, o)))
            {
                let meets = other
                    .strip_prefix(one)
                    .is_some_and(|it| it.starts_with('_'));
                assert!(!meets, "{one} of a table could be {other} of another");
            }
        }
    }
}
