//! Making synced tables again that the user or a tool dropped or took apart, when the user
//! asks for it. The compare that follows fills them: the centre's rows count.
//!
//! Nothing of the user's is thrown away here: a table that cannot be completed is set aside
//! under another name, and what was pending in it is listed among the refused, with its values.

use rusqlite::{Connection, params};
use tidewater_protocol::{PublicationSchema, Table};

use super::apply::{ApplySummary, keep_values};
use super::refused::TIME_UNKNOWN;
use super::subscription::load_all;
use super::tables::{
    QuotedNames, aside_name, change_table, create_change_table, create_indexes,
    create_rekeyed_table, create_user_table, name_is_taken, rekeyed_table,
};
use super::triggers::{self, TableLack};
use super::{RemoteDatabase, SubscriptionState, compare, quote};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "making synced tables again";

impl RemoteDatabase {
    /// Makes tables again that are missing, or are not as they were published; returns
    /// their names. A compare is due then. The time is in milliseconds since 1970.
    ///
    /// # Errors
    /// Something else has the name of a table, or SQLite failed.
    pub fn rebuild_broken_tables(&mut self, now_ms: i64) -> Result<Vec<String>, RemoteError> {
        let transaction = self.write(DOING)?;
        let subscriptions = load_all(&transaction)?;
        let (mut rebuilt, mut made, mut completed) = (Vec::new(), Vec::new(), Vec::new());
        for subscription in &subscriptions {
            let Some(schema) = &subscription.schema else {
                continue;
            };
            for table in &schema.tables {
                match rebuild(&transaction, subscription, table, schema)? {
                    TableRebuild::Not => continue,
                    TableRebuild::Made => made.push(table.name.clone()),
                    TableRebuild::Completed(columns) => {
                        completed.push((table.name.clone(), columns))
                    }
                }
                rebuilt.push(table.name.clone());
            }
        }
        if rebuilt.is_empty() {
            return Ok(rebuilt);
        }
        // What is missing in a table that was made again is nobody's delete: it is tracked
        // from now on, and was never untracked. The rows of one that lacked columns may be the
        // user's: the tool that left these out took the triggers along.
        let mut untracked = triggers::ensure(&transaction, &subscriptions)?;
        untracked.retain(|it| !made.contains(&it.table));
        compare::note_untracked(&transaction, &untracked).doing(DOING)?;
        for (table, columns) in &completed {
            compare::note_fillers(&transaction, table, columns).doing(DOING)?;
        }
        let sql = "UPDATE tidewater_refused SET at = ?2 WHERE at = ?1";
        let told = transaction.execute(sql, params![TIME_UNKNOWN, now_ms]);
        told.doing(DOING)?;
        transaction.commit().doing(DOING)?;
        self.make_compare_due()?;
        Ok(rebuilt)
    }
}

/// What was done with a table.
enum TableRebuild {
    /// Nothing: it is as it was published.
    Not,
    /// It was made anew, without rows.
    Made,
    /// These columns were made anew.
    Completed(Vec<String>),
}

/// Completes a table.
fn rebuild(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    schema: &PublicationSchema,
) -> Result<TableRebuild, RemoteError> {
    match triggers::lack(connection, table)? {
        None => return Ok(TableRebuild::Not),
        Some(TableLack::Columns(columns)) => {
            for &index in &columns {
                add_column(connection, table, index).doing(DOING)?;
            }
            let names = columns.iter().map(|&index| &table.columns[index].name);
            return Ok(TableRebuild::Completed(names.cloned().collect()));
        }
        Some(TableLack::Table) => {}
        Some(TableLack::Broken) => set_aside(connection, subscription, table)?,
    }
    if name_is_taken(connection, &table.name)? {
        return Err(RemoteError::TableInTheWay {
            publication: schema.name.clone(),
            table: table.name.clone(),
        });
    }
    create(connection, table, schema).doing(DOING)?;
    Ok(TableRebuild::Made)
}

/// Makes an empty table. Changes of the old one have no values any more: what they would say
/// now is that everything was deleted.
fn create(
    connection: &Connection,
    table: &Table,
    schema: &PublicationSchema,
) -> rusqlite::Result<()> {
    connection.execute_batch(&create_user_table(table, schema, &table.name))?;
    compare::forget_untracked(connection, &table.name)?;
    let change = change_table(&table.name);
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", quote::name(&change)))?;
    connection.execute_batch(&create_change_table(table, &change))?;
    let rekeyed = quote::name(&rekeyed_table(&table.name));
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {rekeyed}"))?;
    connection.execute_batch(&create_rekeyed_table(table))?;
    for index in create_indexes(table) {
        // One of the old table's may still have the name, beside it.
        if let Some(name) = index.split(" ON ").next() {
            let drop = name.replacen("CREATE INDEX", "DROP INDEX IF EXISTS", 1);
            connection.execute_batch(&drop)?;
        }
        connection.execute_batch(&index)?;
    }
    Ok(())
}

/// Adds a column that a tool left out. Rows with local changes get the value that was last
/// recorded; others get the centre's by the compare.
fn add_column(connection: &Connection, table: &Table, index: usize) -> rusqlite::Result<()> {
    let names = QuotedNames::for_table(table);
    let column = &table.columns[index];
    let default = match &column.default {
        // SQLite adds no column with a default that is not constant.
        Some(default) if !default.to_ascii_uppercase().starts_with("CURRENT_") => {
            format!(" DEFAULT {default}")
        }
        _ => String::new(),
    };
    connection.execute_batch(&format!(
        "ALTER TABLE {} ADD COLUMN {} {}{default}",
        names.table,
        names.columns[index],
        column.column_type.sqlite_type()
    ))?;
    let Some(position) = names.values.iter().position(|&value| value == index) else {
        return Ok(());
    };
    let recorded = format!(
        "FROM {} AS h WHERE {} AND h.present = 1",
        names.change,
        names.change_of("h", "p")
    );
    connection.execute_batch(&format!(
        "UPDATE {} AS p SET {} = (SELECT h.{} {recorded} ORDER BY h.generation DESC LIMIT 1) \
         WHERE EXISTS (SELECT 1 {recorded})",
        names.table, names.columns[index], names.pre[position]
    ))
}

/// Gives a table that cannot be completed another name, once what is pending in it is listed.
fn set_aside(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
) -> Result<(), RemoteError> {
    triggers::drop_table_triggers(connection, &table.name)?;
    let aside = aside_name(connection, &table.name)?;
    let missing = triggers::missing_columns(connection, table)?;
    // Without its key, nobody knows which row a change is about.
    if missing.iter().all(|index| !table.key.contains(index)) {
        for index in missing {
            add_column(connection, table, index).doing(DOING)?;
        }
        let reason = format!("the table was taken apart, and made again: it is {aside} now");
        let mut summary = ApplySummary::default();
        keep_values(connection, subscription, table, &reason, &mut summary).doing(DOING)?;
    }
    let rename = || -> rusqlite::Result<()> {
        // References of other tables stay with the name.
        connection.pragma_update(None, "legacy_alter_table", true)?;
        let renamed = connection.execute_batch(&format!(
            "ALTER TABLE {} RENAME TO {}",
            quote::name(&table.name),
            quote::name(&aside)
        ));
        connection.pragma_update(None, "legacy_alter_table", false)?;
        renamed
    };
    rename().doing(DOING)
}
