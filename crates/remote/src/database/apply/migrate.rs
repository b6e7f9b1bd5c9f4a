//! A publication's schema arrives, for the first time or anew: tables are made, rebuilt and
//! dropped inside the apply, and what is pending stays pending.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tidewater_protocol::{Code, Datum, PublicationSchema, Table, Value};

use super::ApplySummary;
use super::adopt::{self, AdoptedTable};
use super::own_columns::OwnColumns;
use super::remove::own_values;
use super::user_triggers::UserTriggers;
use crate::database::refused::{self, NewRefusal};
use crate::database::row_values::row_values;
use crate::database::tables::{
    QuotedNames, aside_name, change_table, create_change_table, create_indexes,
    create_rekeyed_table, create_user_table, filler, name_is_taken,
};
use crate::database::{SubscriptionState, compare, quote, row, triggers};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "putting the publication's schema in place";

/// Why a change is refused that was not uploaded before its table left.
const LEFT: &str = "the table left the publication, or has another key now";

/// Why a change is refused that was not uploaded before its table was closed.
const CLOSED: &str = "the table takes no changes of remotes any more";

/// Why nobody can tell any more what was changed in a table.
const HIDDEN: &str = "the table is not sent to remotes any more";

/// What a migration leaves to be done, and what it did.
pub(super) struct Migration {
    pub(super) schema: Arc<PublicationSchema>,
    /// Statements to run after the rows have arrived.
    pub(super) indexes: Vec<String>,
    pub(super) added_columns: Vec<(String, Vec<String>)>,
    /// Tables of the application's that are adopted.
    pub(super) adopted: Vec<AdoptedTable>,
}

/// Puts a schema in place of the one that the subscription had, if any. `adopts`: tables of the
/// application's are not in its way.
pub(super) fn migrate(
    connection: &Connection,
    (subscriptions, index): (&[SubscriptionState], usize),
    schema: PublicationSchema,
    adopts: bool,
    user_triggers: &mut UserTriggers,
    summary: &mut ApplySummary,
) -> Result<Migration, RemoteError> {
    let subscription = &subscriptions[index];
    check_names(connection, (subscriptions, index), &schema, adopts)?;
    let mut migration = Migration {
        schema: Arc::new(schema),
        indexes: Vec::new(),
        added_columns: Vec::new(),
        adopted: Vec::new(),
    };
    let schema = Arc::clone(&migration.schema);
    let old_tables = subscription.schema.iter().flat_map(|old| &old.tables);
    for old in old_tables.clone() {
        let closed = |new: &&Table| old.direction.uploads() && !new.direction.uploads();
        if let Some(new) = schema.table(&old.name).filter(closed)
            && same_key(old, new)
        {
            keep_untracked_rows(connection, subscription, old, CLOSED, summary)?;
            give_up_changes(connection, subscription, old, summary).doing(DOING)?;
        }
    }
    for old in old_tables.clone() {
        let hides = |new: &&Table| old.direction.downloads() && !new.direction.downloads();
        if schema.table(&old.name).is_some_and(|new| hides(&new)) {
            keep_untracked_rows(connection, subscription, old, HIDDEN, summary)?;
            compare::forget_untracked(connection, &old.name).doing(DOING)?;
        }
    }
    // References to a table that is being rebuilt must not follow it to its interim name. The
    // setting makes SQLite forget what it has prepared: it is only on where it is needed.
    connection
        .pragma_update(None, "legacy_alter_table", true)
        .doing(DOING)?;
    let changed = change_tables(
        connection,
        subscription,
        user_triggers,
        summary,
        &mut migration,
    );
    let off = connection.pragma_update(None, "legacy_alter_table", false);
    changed.and(off.doing(DOING))?;
    connection
        .execute(
            "UPDATE tidewater_subscription SET schema = ?2, schema_hash = ?3, transactional = ?4 \
             WHERE id = ?1",
            params![
                subscription.id,
                schema.encode(),
                schema.hash(),
                schema.transactional
            ],
        )
        .doing(DOING)?;
    Ok(migration)
}

/// Drops, creates and rebuilds tables, until they are those of the new schema.
fn change_tables(
    connection: &Connection,
    subscription: &SubscriptionState,
    user_triggers: &mut UserTriggers,
    summary: &mut ApplySummary,
    migration: &mut Migration,
) -> Result<(), RemoteError> {
    let schema = Arc::clone(&migration.schema);
    let old_tables = subscription.schema.iter().flat_map(|old| &old.tables);
    for old in old_tables.clone() {
        let keeps_key = schema
            .table(&old.name)
            .is_some_and(|new| same_key(old, new));
        if !keeps_key {
            drop_table(connection, subscription, old, user_triggers, summary)?;
        }
    }
    for new in &schema.tables {
        let mut olds = old_tables.clone();
        match olds.find(|old| old.name == new.name && same_key(old, new)) {
            None if adopt::is_table(connection, &new.name)? => {
                let indexes = user_indexes(connection, &new.name).doing(DOING)?;
                migration.indexes.extend(indexes);
                let mut adopted = AdoptedTable::set_aside(connection, &schema, new, user_triggers)?;
                create(connection, new, &schema).doing(DOING)?;
                adopted.add_own_columns(connection)?;
                summary.not_restored.extend(adopted.lost());
                migration.adopted.push(adopted);
            }
            None => create(connection, new, &schema).doing(DOING)?,
            Some(old) if same_definition(old, subscription, new, &schema) => continue,
            Some(old) => {
                let own = OwnColumns::read(connection, &schema.name, old, new)?;
                let indexes = user_indexes(connection, &new.name).doing(DOING)?;
                user_triggers
                    .save_table(connection, &new.name)
                    .doing(DOING)?;
                triggers::drop_table_triggers(connection, &new.name)?;
                rebuild(connection, (old, new), &schema, &own).doing(DOING)?;
                summary.not_restored.extend(own.lost);
                migration.indexes.extend(indexes);
                let added = new.columns.iter().map(|column| column.name.clone());
                let added = added.filter(|name| old.column(name).is_none()).collect();
                migration.added_columns.push((new.name.clone(), added));
            }
        }
        migration.indexes.extend(create_indexes(new));
    }
    Ok(())
}

/// Nothing else in the file, and no other subscription, has a table of these names.
fn check_names(
    connection: &Connection,
    (subscriptions, index): (&[SubscriptionState], usize),
    schema: &PublicationSchema,
    adopts: bool,
) -> Result<(), RemoteError> {
    let holds = |subscription: &SubscriptionState, name: &str| {
        let mut tables = subscription.schema.iter().flat_map(|schema| &schema.tables);
        tables.any(|table| table.name.eq_ignore_ascii_case(name))
    };
    for table in &schema.tables {
        let other = subscriptions
            .iter()
            .enumerate()
            .find(|(other, subscription)| *other != index && holds(subscription, &table.name));
        if let Some((_, other)) = other {
            return Err(RemoteError::TableInTwoPublications {
                table: table.name.clone(),
                first: other.publication.clone(),
                second: schema.name.clone(),
            });
        }
        let is_free = holds(&subscriptions[index], &table.name)
            || !name_is_taken(connection, &table.name)?
            || adopts && adopt::is_table(connection, &table.name)?;
        if !is_free {
            return Err(RemoteError::TableInTheWay {
                publication: schema.name.clone(),
                table: table.name.clone(),
            });
        }
    }
    Ok(())
}

/// Whether rows of both definitions are told apart by the same key.
fn same_key(old: &Table, new: &Table) -> bool {
    let key = |table: &Table| -> Vec<_> {
        table
            .key_columns()
            .map(|column| (column.name.clone(), column.column_type))
            .collect()
    };
    key(old) == key(new)
}

/// Whether nothing has to be rebuilt: the tables are declared in the same words.
fn same_definition(
    old: &Table,
    subscription: &SubscriptionState,
    new: &Table,
    schema: &PublicationSchema,
) -> bool {
    let Some(old_schema) = &subscription.schema else {
        return false;
    };
    create_user_table(old, old_schema, &old.name) == create_user_table(new, schema, &new.name)
        && create_indexes(old) == create_indexes(new)
        && old.columns == new.columns
}

fn create(
    connection: &Connection,
    table: &Table,
    schema: &PublicationSchema,
) -> rusqlite::Result<()> {
    connection.execute_batch(&create_user_table(table, schema, &table.name))?;
    connection.execute_batch(&create_change_table(table, &change_table(&table.name)))?;
    connection.execute_batch(&create_rekeyed_table(table))
}

/// A table leaves the publication, or its rows are told apart by another key. Its changes
/// cannot be uploaded any more; the user's values stay.
fn drop_table(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    user_triggers: &mut UserTriggers,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    keep_values(connection, subscription, table, LEFT, summary).doing(DOING)?;
    keep_untracked_rows(connection, subscription, table, LEFT, summary)?;
    let names = QuotedNames::for_table(table);
    user_triggers
        .save_table(connection, &table.name)
        .doing(DOING)?;
    connection
        .execute_batch(&format!(
            "DROP TABLE {}; DROP TABLE {}; DROP TABLE {};",
            names.table, names.change, names.rekeyed
        ))
        .doing(DOING)?;
    compare::forget_untracked(connection, &table.name).doing(DOING)?;
    connection
        .execute(
            "DELETE FROM tidewater_stale WHERE table_name = ?1",
            [&table.name],
        )
        .map(drop)
        .doing(DOING)
}

/// A table takes no changes any more: the rows become those of the centre, the user's
/// values stay.
fn give_up_changes(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    summary: &mut ApplySummary,
) -> rusqlite::Result<()> {
    keep_values(connection, subscription, table, CLOSED, summary)?;
    compare::forget_untracked(connection, &table.name)?;
    let names = QuotedNames::for_table(table);
    connection.execute_batch(&format!(
        "DELETE FROM {}; DELETE FROM {}",
        names.change, names.rekeyed
    ))
}

/// Columns leave the publication, but changes of them have not, as far as is known,
/// arrived: the user's values stay. To be called while the changes are still there, which
/// is before a result acknowledges them.
pub(super) fn keep_dropped_columns(
    connection: &Connection,
    subscription: &SubscriptionState,
    schema: &PublicationSchema,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    for old in subscription.schema.iter().flat_map(|old| &old.tables) {
        let Some(new) = schema.table(&old.name).filter(|new| same_key(old, new)) else {
            continue;
        };
        let is_dropped = |index: usize| {
            !old.key.contains(&index) && new.column(&old.columns[index].name).is_none()
        };
        let dropped: Vec<usize> = (0..old.columns.len())
            .filter(|&at| is_dropped(at))
            .collect();
        if old.direction.uploads() && !dropped.is_empty() {
            keep_columns(connection, subscription, old, &dropped, summary).doing(DOING)?;
            let names = dropped.iter().map(|&index| &*old.columns[index].name);
            let reason = columns_left(&names.collect::<Vec<_>>());
            keep_untracked_rows(connection, subscription, old, &reason, summary)?;
        }
    }
    Ok(())
}

fn keep_columns(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    dropped: &[usize],
    summary: &mut ApplySummary,
) -> rusqlite::Result<()> {
    let names = QuotedNames::for_table(table);
    let changed = quote::list(dropped, " OR ", |&index| {
        let pre = quote::name(&format!("pre_{}", table.columns[index].name));
        format!(
            "CASE h.present WHEN 1 THEN h.{pre} END IS NOT p.{}",
            names.columns[index]
        )
    });
    let dropped_names = dropped.iter().map(|&index| &*table.columns[index].name);
    let reason = columns_left(&dropped_names.collect::<Vec<_>>());
    for change in first_changes(connection, table)? {
        let (Some(operation @ ("insert" | "update")), key) = (change.operation(), &change.key)
        else {
            continue;
        };
        let mut differs = connection.prepare_cached(&format!(
            "SELECT 1 FROM {} AS h JOIN {} AS p ON {} WHERE {} AND h.generation = ?{} \
             AND ({changed})",
            names.change,
            names.table,
            names.change_of("h", "p"),
            names.change_key_is_bound_in("h"),
            key.len() + 1,
        ))?;
        names.bind_key(&mut differs, key)?;
        differs.raw_bind_parameter(key.len() + 1, change.generation)?;
        if differs.raw_query().next()?.is_none() {
            continue;
        }
        let is_dropped = |index: usize| dropped.contains(&index);
        let values = own_values(connection, table, key, change.generation, &is_dropped)?;
        note(
            connection,
            subscription,
            table,
            (key, operation, &values),
            &reason,
            summary,
        )?;
    }
    Ok(())
}

/// Why changes of these columns are refused.
pub(super) fn columns_left(names: &[&str]) -> String {
    let columns = quote::list(names, ", ", |name| format!("{name:?}"));
    match names {
        [_] => format!("the column {columns} left the publication before its change arrived"),
        _ => format!("the columns {columns} left the publication before their changes arrived"),
    }
}

/// The oldest change of a row that is still there, and what came of the row.
struct FirstChange {
    key: Vec<Value>,
    generation: i64,
    was_there: bool,
    is_there: bool,
}

impl FirstChange {
    /// What the user did to the row, all changes together; `None` for nothing.
    fn operation(&self) -> Option<&'static str> {
        match (self.was_there, self.is_there) {
            (false, true) => Some("insert"),
            (true, true) => Some("update"),
            (true, false) => Some("delete"),
            (false, false) => None,
        }
    }
}

fn first_changes(connection: &Connection, table: &Table) -> rusqlite::Result<Vec<FirstChange>> {
    let names = QuotedNames::for_table(table);
    let keys = quote::list(&names.change_key, ", ", |key| format!("h.{key}"));
    // Of a group, SQLite gives the columns of the row that has the minimum.
    let sql = format!(
        "SELECT {keys}, min(h.generation), h.present, p.{} IS NOT NULL FROM {} AS h \
         LEFT JOIN {} AS p ON {} GROUP BY {keys}",
        names.key[0],
        names.change,
        names.table,
        names.change_of("h", "p"),
    );
    connection
        .prepare(&sql)?
        .query_map([], |found| {
            Ok(FirstChange {
                key: row::owned(found, 0, table.key.len())?,
                generation: found.get(table.key.len())?,
                was_there: found.get(table.key.len() + 1)?,
                is_there: found.get(table.key.len() + 2)?,
            })
        })?
        .collect()
}

/// Writes down what the user has changed in a table, before the changes go.
pub(in crate::database) fn keep_values(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    reason: &str,
    summary: &mut ApplySummary,
) -> rusqlite::Result<()> {
    let types = row::key_types(table);
    for change in first_changes(connection, table)? {
        let (Some(operation), key) = (change.operation(), &change.key) else {
            continue;
        };
        let values = row_values(connection, table, key)?;
        let packed = row::pack_key(&types, &row::datums(&types, key));
        let kept = connection.execute(
            "UPDATE tidewater_refused SET row_values = ?3 WHERE table_name = ?1 \
             AND key_packed = ?2 AND row_values IS NULL",
            params![table.name, packed, values],
        )?;
        if kept == 0 {
            let change = (key.as_slice(), operation, values.as_str());
            note(connection, subscription, table, change, reason, summary)?;
        }
    }
    Ok(())
}

/// Nobody knows what the user has changed in an untracked table: all its rows are kept, beside
/// it.
fn keep_untracked_rows(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    reason: &str,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    if !compare::is_untracked(connection, &table.name).doing(DOING)? {
        return Ok(());
    }
    let aside = aside_name(connection, &table.name)?;
    connection
        .execute_batch(&format!(
            "CREATE TABLE {} AS SELECT * FROM {}",
            quote::name(&aside),
            QuotedNames::for_table(table).table
        ))
        .doing(DOING)?;
    let reason = format!(
        "{reason}, and what was written while its table had no tracking triggers is nowhere but \
         in the copy {aside}"
    );
    let change: (&[Value], _, _) = (&[], "update", "{}");
    note(connection, subscription, table, change, &reason, summary).doing(DOING)
}

/// A change among the refused ones that has nothing but its values any more.
fn note(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    (key, operation, values): (&[Value], &str, &str),
    reason: &str,
    summary: &mut ApplySummary,
) -> rusqlite::Result<()> {
    let types = row::key_types(table);
    let datums: Vec<Datum<'_>> = row::datums(&types, key);
    let readable = row::readable_key(&datums);
    summary.note_refused(&table.name, &readable, reason);
    refused::record(
        connection,
        &NewRefusal {
            publication: &subscription.publication,
            table: &table.name,
            key: &readable,
            key_packed: &row::pack_key(&types, &datums),
            operation,
            code: Code::RowNotPublished.name(),
            reason,
            // The upload that is on its way has told the centre of it.
            sequence: subscription.sequence + u64::from(subscription.taken.is_some()),
            row_values: Some(values),
        },
    )
}

/// The indexes that the application made on a table.
fn user_indexes(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ?1 \
             COLLATE NOCASE AND sql IS NOT NULL AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'",
        )?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// The procedure that SQLite recommends for changing a table: make a new one, copy, drop the
/// old one, rename. (https://www.sqlite.org/lang_altertable.html, "Making Other Kinds Of Table
/// Schema Changes")
fn rebuild(
    connection: &Connection,
    (old, new): (&Table, &Table),
    schema: &PublicationSchema,
    own: &OwnColumns,
) -> rusqlite::Result<()> {
    let old_names = QuotedNames::for_table(old);
    let names = QuotedNames::for_table(new);
    let interim = quote::name("tidewater_interim");
    // The row and its pre-image get the same values for what is new or must not be NULL any
    // more: that is no change of the user's.
    let value = |index: usize, stored: &dyn Fn(&str) -> String| {
        let column = &new.columns[index];
        match old.column(&column.name) {
            None => filler(column),
            Some(at) if old.columns[at].nullable && !column.nullable => {
                format!("coalesce({}, {})", stored(&column.name), filler(column))
            }
            Some(_) => stored(&column.name),
        }
    };
    connection.execute_batch(&create_user_table(new, schema, "tidewater_interim"))?;
    connection.execute_batch(&own.add_to(&interim))?;
    let owned = own.after_others();
    connection.execute_batch(&format!(
        "INSERT INTO {interim} ({}{owned}) SELECT {}{owned} FROM {}; DROP TABLE {}; \
         ALTER TABLE {interim} RENAME TO {};",
        names.columns.join(", "),
        quote::list(0..new.columns.len(), ", ", |index| {
            value(index, &|name| quote::name(name))
        }),
        old_names.table,
        old_names.table,
        names.table,
    ))?;
    connection.execute_batch(&create_change_table(new, "tidewater_interim"))?;
    let pre = quote::list(&names.values, "", |&index| {
        let image = value(index, &|name| quote::name(&format!("pre_{name}")));
        format!(", CASE present WHEN 1 THEN {image} END")
    });
    connection.execute_batch(&format!(
        "INSERT INTO {interim} SELECT {}, generation, present{pre} FROM {}; DROP TABLE {}; \
         ALTER TABLE {interim} RENAME TO {};",
        names.change_key.join(", "),
        old_names.change,
        old_names.change,
        names.change,
    ))?;
    Ok(())
}
