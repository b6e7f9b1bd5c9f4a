//! A publication's schema arrives, for the first time or anew: tables are made, rebuilt and
//! dropped inside the apply, and what is pending stays pending.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tidewater_protocol::{Code, Datum, PublicationSchema, Table};

use super::ApplySummary;
use super::remove::own_values;
use super::user_triggers::UserTriggers;
use crate::database::refused::{self, Refusal};
use crate::database::tables::{
    Names, change_table, create_change_table, create_indexes, create_user_table, filler,
    name_is_taken,
};
use crate::database::{SubscriptionState, quote, row, triggers};
use crate::error::{Doing, RemoteError};

const DOING: &str = "putting the publication's schema in place";

/// Why a change is refused that was not uploaded before its table left.
const LEFT: &str = "the table left the publication, or has another key now";

/// What a migration leaves to be done, and what it did.
pub(super) struct Migration {
    pub(super) schema: Arc<PublicationSchema>,
    /// Statements to run after the rows have arrived.
    pub(super) indexes: Vec<String>,
    pub(super) added_columns: Vec<(String, Vec<String>)>,
}

/// Puts a schema in place of the one that the subscription had, if any.
pub(super) fn migrate(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
    index: usize,
    schema: PublicationSchema,
    user_triggers: &mut UserTriggers,
    summary: &mut ApplySummary,
) -> Result<Migration, RemoteError> {
    let subscription = &subscriptions[index];
    check_names(connection, subscriptions, index, &schema)?;
    let mut migration = Migration {
        schema: Arc::new(schema),
        indexes: Vec::new(),
        added_columns: Vec::new(),
    };
    let schema = Arc::clone(&migration.schema);
    let old_tables = subscription.schema.iter().flat_map(|old| &old.tables);
    // References to a table that is being rebuilt must not follow it to its interim name.
    connection
        .pragma_update(None, "legacy_alter_table", true)
        .doing(DOING)?;
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
            None => create(connection, new, &schema).doing(DOING)?,
            Some(old) if same_definition(old, subscription, new, &schema) => continue,
            Some(old) => {
                let indexes = user_indexes(connection, &new.name).doing(DOING)?;
                user_triggers
                    .save_table(connection, &new.name)
                    .doing(DOING)?;
                triggers::drop_table_triggers(connection, &new.name)?;
                rebuild(connection, old, new, &schema).doing(DOING)?;
                migration.indexes.extend(indexes);
                let added = new.columns.iter().map(|column| column.name.clone());
                let added = added.filter(|name| old.column(name).is_none()).collect();
                migration.added_columns.push((new.name.clone(), added));
            }
        }
        migration.indexes.extend(create_indexes(new));
    }
    connection
        .pragma_update(None, "legacy_alter_table", false)
        .doing(DOING)?;
    connection
        .execute(
            "UPDATE tidewater_subscription SET schema = ?2, schema_hash = ?3 WHERE id = ?1",
            params![subscription.id, schema.encode(), schema.hash()],
        )
        .doing(DOING)?;
    Ok(migration)
}

/// Nothing else in the file, and no other subscription, has a table of these names.
fn check_names(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
    index: usize,
    schema: &PublicationSchema,
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
        if !holds(&subscriptions[index], &table.name) && name_is_taken(connection, &table.name)? {
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
    connection.execute_batch(&create_change_table(table, &change_table(&table.name)))
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
    keep_values(connection, subscription, table, summary).doing(DOING)?;
    let names = Names::of(table);
    user_triggers
        .save_table(connection, &table.name)
        .doing(DOING)?;
    connection
        .execute_batch(&format!(
            "DROP TABLE {}; DROP TABLE {};",
            names.table, names.change
        ))
        .doing(DOING)?;
    connection
        .execute(
            "DELETE FROM tidewater_stale WHERE table_name = ?1",
            [&table.name],
        )
        .map(drop)
        .doing(DOING)
}

fn keep_values(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    summary: &mut ApplySummary,
) -> rusqlite::Result<()> {
    let names = Names::of(table);
    let types = row::key_types(table);
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
    let mut statement = connection.prepare(&sql)?;
    let found = statement
        .query_map([], |found| {
            Ok((
                row::owned(found, 0, table.key.len())?,
                found.get::<_, i64>(table.key.len())?,
                found.get::<_, bool>(table.key.len() + 1)?,
                found.get::<_, bool>(table.key.len() + 2)?,
            ))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for (key, generation, was_there, is_there) in found {
        let operation = match (was_there, is_there) {
            (false, true) => "insert",
            (true, true) => "update",
            (true, false) => "delete",
            (false, false) => continue,
        };
        let values = own_values(connection, table, &key, generation)?;
        let datums: Vec<Datum<'_>> = row::datums(&types, &key);
        let packed = row::pack_key(&types, &datums);
        let kept = connection.execute(
            "UPDATE tidewater_refused SET row_values = ?3 WHERE table_name = ?1 \
             AND key_packed = ?2 AND row_values IS NULL",
            params![table.name, packed, values],
        )?;
        if kept == 0 {
            let readable = row::readable_key(&datums);
            summary.note_refused(&table.name, &readable, LEFT);
            refused::record(
                connection,
                &Refusal {
                    publication: &subscription.publication,
                    table: &table.name,
                    key: &readable,
                    key_packed: &packed,
                    operation,
                    code: Code::RowNotPublished.name(),
                    reason: LEFT,
                    sequence: subscription.sequence,
                    row_values: Some(&values),
                },
            )?;
        }
    }
    Ok(())
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
    old: &Table,
    new: &Table,
    schema: &PublicationSchema,
) -> rusqlite::Result<()> {
    let old_names = Names::of(old);
    let names = Names::of(new);
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
    connection.execute_batch(&format!(
        "INSERT INTO {interim} ({}) SELECT {} FROM {}; DROP TABLE {}; \
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
