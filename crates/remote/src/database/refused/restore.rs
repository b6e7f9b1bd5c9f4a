//! Refused changes of which only the values are left: writing them again, and seeing that they
//! were.
//!
//! What is written again is recorded as a change of the current generation, as triggers would.
//! Its effects on other rows were recorded when it was written first.

use std::collections::BTreeMap;

use rusqlite::Connection;
use tidewater_protocol::{Code, Table, Value};

use super::settled_changes::{SettledEnd, settle};
use super::{RefusalDecision, RefusedRow, RowSelection, RowsChange, TIME_UNKNOWN, delete_row};
use crate::database::changes::{self, has_change};
use crate::database::row_values::{exists, kept_values, key_in, key_of, run, value_of};
use crate::database::tables::QuotedNames;
use crate::database::{RemoteDatabase, SubscriptionState, quote};
use crate::error::{ErrorContext, RemoteError};

impl RemoteDatabase {
    /// Writes the values of refused changes, whose rows left the remote, as pending changes:
    /// onto the row that is there, or as a new one. Returns how many. Those cannot be whose row
    /// is still here (see [`RemoteDatabase::retry_refused`]), whose table takes no changes any more,
    /// or that lack a value that the table needs; and inserts under whose key somebody else's row is
    /// here by now: that would become of both.
    ///
    /// # Errors
    /// The file is locked, a rule of the application stands against a row, or SQLite failed.
    pub fn restore_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        let doing = "restoring refused rows";
        let entries: BTreeMap<i64, RefusedRow> = self
            .refused()?
            .into_iter()
            .map(|entry| (entry.id, entry))
            .collect();
        let subscriptions = self.subscriptions()?;
        self.decide(which, doing, RowsChange::Yes, |connection, found| {
            let Some(entry) = entries.get(&found.id) else {
                return Ok(None);
            };
            let Some(wanted) = RowToRestore::from_refused(entry, &found.key_packed, &subscriptions)
            else {
                return Ok(None);
            };
            let is_written = wanted.write(connection)?;
            Ok(
                is_written
                    .then(|| RefusalDecision::Settled(SettledEnd::retried(wanted.generation))),
            )
        })
    }
}

/// A row to be written again.
struct RowToRestore<'a> {
    table: &'a Table,
    names: QuotedNames,
    generation: i64,
    is_delete: bool,
    /// The row was refused because its key was another row's.
    has_taken_key: bool,
    /// The key of the refusal, and the one that the row had.
    known: Vec<Value>,
    key: Vec<Value>,
    /// Values by the column's index; none of the key.
    values: Vec<(usize, Value)>,
}

impl<'a> RowToRestore<'a> {
    /// `None` if it cannot be written.
    fn from_refused(
        entry: &RefusedRow,
        key_packed: &[u8],
        subscriptions: &'a [SubscriptionState],
    ) -> Option<RowToRestore<'a>> {
        let (subscription, table) = subscriptions.iter().find_map(|subscription| {
            let table = subscription.schema.as_deref()?.table(&entry.table)?;
            Some((subscription, table))
        })?;
        let kept = kept_values(entry.values.as_deref()?)?;
        let known = key_of(table, key_packed)?;
        let value = |index: usize| {
            let column = &table.columns[index];
            Some((index, value_of(column.column_type, kept.get(&column.name)?)))
        };
        let outside = (0..table.columns.len()).filter(|index| !table.key.contains(index));
        let wanted = RowToRestore {
            names: QuotedNames::for_table(table),
            generation: subscription.generation,
            is_delete: entry.operation == "delete",
            has_taken_key: entry.operation == "insert" && entry.code == Code::RowKeyInUse.name(),
            key: key_in(table, &kept).unwrap_or_else(|| known.clone()),
            known,
            values: outside.filter_map(value).collect(),
            table,
        };
        let says_something = wanted.is_delete
            || !wanted.values.is_empty()
            || wanted.names.values.is_empty()
            || wanted.key != wanted.known;
        (table.direction.uploads() && says_something).then_some(wanted)
    }

    fn write(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let is_here = |key: &[Value]| exists(connection, &self.names, key);
        let here = match is_here(&self.key)? {
            true => Some(&self.key),
            false => is_here(&self.known)?.then_some(&self.known),
        };
        if self.is_delete {
            let Some(key) = here else { return Ok(false) };
            record(connection, &self.names, key, self.generation)?;
            return delete_row(connection, &self.names, key).map(|()| true);
        }
        if here.is_some() && self.has_taken_key {
            return Ok(false);
        }
        if here.is_none() && self.lacks_a_value() {
            return Ok(false);
        }
        record(connection, &self.names, &self.key, self.generation)?;
        match here {
            None => self.insert(connection)?,
            Some(key) if *key == self.key => self.update(connection)?,
            Some(key) => {
                record(connection, &self.names, key, self.generation)?;
                self.rekey(connection)?;
                self.update(connection)?;
            }
        }
        Ok(true)
    }

    /// A new row needs a value for every column that may not be NULL.
    fn lacks_a_value(&self) -> bool {
        self.names.values.iter().any(|&index| {
            let column = &self.table.columns[index];
            let needs = !column.nullable && column.default.is_none();
            needs && self.values.iter().all(|(given, _)| *given != index)
        })
    }

    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let names = &self.names;
        let columns = self.values.iter().map(|(at, _)| &names.columns[*at]);
        let columns: Vec<&str> = names
            .key
            .iter()
            .chain(columns)
            .map(String::as_str)
            .collect();
        let sql = format!(
            "INSERT INTO {} ({}) VALUES ({})",
            names.table,
            columns.join(", "),
            quote::list(1..=columns.len(), ", ", |n| format!("?{n}")),
        );
        let values = self.values.iter().map(|(_, value)| value);
        run(connection, names, &sql, &self.key, values).map(drop)
    }

    fn update(&self, connection: &Connection) -> rusqlite::Result<()> {
        if self.values.is_empty() {
            return Ok(());
        }
        let names = &self.names;
        let set = quote::list(self.values.iter().enumerate(), ", ", |(number, (at, _))| {
            format!("{} = ?{}", names.columns[*at], names.key.len() + 1 + number)
        });
        let sql = format!(
            "UPDATE {} SET {set} WHERE {}",
            names.table,
            names.key_is_bound()
        );
        let values = self.values.iter().map(|(_, value)| value);
        run(connection, names, &sql, &self.key, values).map(drop)
    }

    /// The row that is here under its old key gets the new one.
    fn rekey(&self, connection: &Connection) -> rusqlite::Result<()> {
        let names = &self.names;
        let set = quote::list(names.key.iter().enumerate(), ", ", |(number, column)| {
            format!("{column} = ?{}", names.key.len() + 1 + number)
        });
        let sql = format!(
            "UPDATE {} SET {set} WHERE {}",
            names.table,
            names.key_is_bound()
        );
        run(connection, names, &sql, &self.known, self.key.iter())?;
        changes::note_rekeyed(connection, names, &self.known, &self.key, self.generation)
    }
}

/// Writes a row as a pending change: these values (by the column's index, none of the key) onto the
/// one that is here, or a new one. False if a new one lacks a value that it needs.
pub(crate) fn write_pending(
    connection: &Connection,
    table: &Table,
    generation: i64,
    key: Vec<Value>,
    values: Vec<(usize, Value)>,
) -> rusqlite::Result<bool> {
    let wanted = RowToRestore {
        names: QuotedNames::for_table(table),
        generation,
        is_delete: false,
        has_taken_key: false,
        known: key.clone(),
        key,
        values,
        table,
    };
    wanted.write(connection)
}

/// Records a row as it is, unless it is recorded already.
fn record(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<()> {
    if has_change(connection, names, key, generation)? {
        return Ok(());
    }
    let count = key.len();
    let sql = format!(
        "INSERT INTO {} ({}, generation, present{}) SELECT {}, ?{}, p.{} IS NOT NULL{} \
         FROM (SELECT 1) LEFT JOIN {} AS p ON {}",
        names.change,
        names.change_key.join(", "),
        quote::list(&names.pre, "", |pre| format!(", {pre}")),
        quote::list(1..=count, ", ", |n| format!("?{n}")),
        count + 1,
        names.key[0],
        quote::list(&names.values, "", |&at| format!(
            ", p.{}",
            names.columns[at]
        )),
        names.table,
        quote::list(names.key.iter().enumerate(), " AND ", |(at, column)| {
            format!("p.{column} = ?{}", at + 1)
        }),
    );
    let generation = Value::Integer(generation);
    run(connection, names, &sql, key, std::iter::once(&generation)).map(drop)
}

/// Rows that were written again and taken settle what was refused of them before. To be called
/// while the generation that is acknowledged is still recorded, without what of it was refused or
/// lost.
pub(crate) fn settle_written(
    connection: &Connection,
    subscription: &SubscriptionState,
    generation: i64,
) -> Result<(), RemoteError> {
    let settle = || -> rusqlite::Result<()> {
        let entries: Vec<(i64, String, Vec<u8>, String)> = connection
            .prepare_cached(&format!(
                "SELECT id, table_name, key_packed, row_values FROM tidewater_refused \
                 WHERE publication = ?1 AND row_values IS NOT NULL AND at <> {TIME_UNKNOWN}"
            ))?
            .query_map([&subscription.publication], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        for (id, table, key_packed, values) in entries {
            let schema = subscription.schema.as_deref();
            let Some(table) = schema.and_then(|schema| schema.table(&table)) else {
                continue;
            };
            let kept = kept_values(&values).unwrap_or_default();
            // Of columns that are not published any more nothing can be taken.
            if kept.keys().any(|name| table.column(name).is_none()) {
                continue;
            }
            let keys = [key_of(table, &key_packed), key_in(table, &kept)];
            let names = QuotedNames::for_table(table);
            for key in keys.into_iter().flatten() {
                if changes::is_net(connection, &names, &key, generation)? {
                    settle(connection, id, &SettledEnd::taken())?;
                    break;
                }
            }
        }
        Ok(())
    };
    settle().doing("settling what was refused before")
}
