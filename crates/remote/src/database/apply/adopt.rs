//! Tables of the application's that have the names of published ones, at the first download that
//! brings these: if the caller wants it, they are adopted.
//!
//! The application's table is set aside, the centre's is made and filled as in a new file, and then
//! the two are compared row by row. What the application had otherwise, or alone, becomes pending
//! changes, or gives way. What only the centre has stays: that the application had no such row
//! says nothing of its having been deleted. Columns that are not published go along.

use rusqlite::Connection;
use tidewater_protocol::pack::same;
use tidewater_protocol::{Column, Fit, PublicationSchema, Table, Value};

use super::own_columns::OwnColumns;
use super::user_triggers::UserTriggers;
use crate::database::refused::write_pending;
use crate::database::tables::{QuotedNames, aside_name};
use crate::database::{SubscriptionState, quote, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "adopting a table of the application";

/// The rows of the application's table as the published one would have them.
const CONVERTED: &str = "temp.tidewater_adopted";

/// What counts where a table that is adopted differs from the centre.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptionRule {
    /// What the file has: differences become pending changes.
    Mine,
    /// What the centre has.
    Centre,
}

/// A table that is being adopted.
#[derive(Debug)]
pub(super) struct AdoptedTable {
    /// The published table.
    table: String,
    /// What its rows are called meanwhile.
    aside: String,
    own: OwnColumns,
    /// The published columns that it had.
    columns: Vec<String>,
}

/// Whether a table of the application has the name; views and indexes are not adopted.
pub(super) fn is_table(connection: &Connection, name: &str) -> Result<bool, RemoteError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' \
               AND name = ?1 COLLATE NOCASE AND sql NOT LIKE 'CREATE VIRTUAL%')";
    let found = connection.query_row(sql, [name], |row| row.get(0));
    found.doing(DOING)
}

impl AdoptedTable {
    /// Gives the application's table another name, before the published one is made. Its triggers
    /// are saved.
    pub(super) fn set_aside(
        connection: &Connection,
        schema: &PublicationSchema,
        table: &Table,
        user_triggers: &mut UserTriggers,
    ) -> Result<AdoptedTable, RemoteError> {
        let found = columns_of(connection, &table.name).doing(DOING)?;
        let is_there = |column: &Column| found.contains(&column.name);
        if let Some(missing) = table.key_columns().find(|column| !is_there(column)) {
            let what = format!("it has no column {:?}, which is in the key", missing.name);
            return Err(unusable(&table.name, &what));
        }
        let mut known = table.clone();
        known.columns.retain(is_there);
        let mut own = OwnColumns::read(connection, &schema.name, &known, table)?;
        own.relax();
        user_triggers
            .save_table(connection, &table.name)
            .doing(DOING)?;
        let aside = aside_name(connection, &table.name)?;
        connection
            .execute_batch(&format!(
                "ALTER TABLE {} RENAME TO {}",
                quote::name(&table.name),
                quote::name(&aside)
            ))
            .doing(DOING)?;
        let columns = known.columns.into_iter().map(|column| column.name);
        Ok(AdoptedTable {
            table: table.name.clone(),
            aside,
            own,
            columns: columns.collect(),
        })
    }

    /// Adds the columns that are not published to the table that was made.
    pub(super) fn add_own_columns(&self, connection: &Connection) -> Result<(), RemoteError> {
        let sql = self.own.add_to(&quote::name(&self.table));
        connection.execute_batch(&sql).doing(DOING)
    }

    /// What cannot be made again.
    pub(super) fn lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.own.lost)
    }

    /// All rows of the centre have arrived: now the application's count, or go.
    pub(super) fn finish(
        self,
        connection: &Connection,
        subscription: &SubscriptionState,
        adopt: AdoptionRule,
    ) -> Result<(), RemoteError> {
        let schema = subscription.schema.as_deref();
        let Some(table) = schema.and_then(|schema| schema.table(&self.table)) else {
            return Ok(());
        };
        self.each_row(connection, subscription, table, adopt)?;
        let drop = format!("DROP TABLE {}", quote::name(&self.aside));
        connection.execute_batch(&drop).doing(DOING)
    }

    fn each_row(
        &self,
        connection: &Connection,
        subscription: &SubscriptionState,
        table: &Table,
        adopt: AdoptionRule,
    ) -> Result<(), RemoteError> {
        let is_mine = adopt == AdoptionRule::Mine && table.direction.uploads();
        let columns = self.columns.iter().filter_map(|name| table.column(name));
        let columns: Vec<usize> = columns.collect();
        self.convert(connection, table, &columns).doing(DOING)?;
        let put_back = self.put_back(table);
        let sql = format!("SELECT * FROM {CONVERTED}");
        let mut statement = connection.prepare(&sql).doing(DOING)?;
        let mut rows = statement.raw_query();
        while let Some(found) = rows.next().doing(DOING)? {
            let mut values = Vec::with_capacity(columns.len());
            let mut unfit = None;
            for (place, &at) in columns.iter().enumerate() {
                let column = &table.columns[at];
                let stored = found.get_ref(place).doing(DOING)?;
                let (datum, fit) = row::datum(column.column_type, stored);
                let value = match fit {
                    // The centre is the one to say what is wrong with it.
                    Fit::Unfit => row::value(stored).to_owned(),
                    Fit::Canonical | Fit::Convertible => datum.to_value(),
                };
                if table.key.contains(&at) && (fit == Fit::Unfit || value == Value::Null) {
                    unfit = Some((column, value.clone()));
                }
                values.push((at, value));
            }
            match unfit {
                None => {}
                // The centre has no such row.
                Some(_) if !is_mine => continue,
                Some((column, value)) => return Err(unfit_key(table, column, &value)),
            }
            let key = key_of(table, &values);
            if is_mine {
                write_row(connection, subscription, table, values)?;
            }
            if let Some(sql) = &put_back {
                let own = row::owned(found, columns.len(), self.own.names().count());
                let put_back = || -> rusqlite::Result<()> {
                    let mut statement = connection.prepare_cached(sql)?;
                    QuotedNames::for_table(table).bind_key(&mut statement, &key)?;
                    for (number, value) in own?.iter().enumerate() {
                        let value = row::BoundValue::new(value.as_ref());
                        statement.raw_bind_parameter(key.len() + 1 + number, value)?;
                    }
                    statement.raw_execute().map(drop)
                };
                put_back().doing(DOING)?;
            }
        }
        drop(rows);
        drop(statement);
        let drop = format!("DROP TABLE {CONVERTED}");
        connection.execute_batch(&drop).doing(DOING)
    }

    /// Makes of the rows what SQLite makes of them when they are written to the published table.
    fn convert(
        &self,
        connection: &Connection,
        table: &Table,
        columns: &[usize],
    ) -> rusqlite::Result<()> {
        let own: Vec<String> = self.own.names().collect();
        let declared = quote::list(columns, ", ", |&at| {
            let column = &table.columns[at];
            format!(
                "{} {}",
                quote::name(&column.name),
                column.column_type.sqlite_type()
            )
        });
        let names = columns.iter().map(|&at| &table.columns[at].name);
        let names: Vec<String> = names
            .map(|name| quote::name(name))
            .chain(own.clone())
            .collect();
        connection.execute_batch(&format!(
            "DROP TABLE IF EXISTS {CONVERTED}; CREATE TABLE {CONVERTED} ({declared}{}); \
             INSERT INTO {CONVERTED} SELECT {} FROM {}",
            quote::list(&own, "", |name| format!(", {name}")),
            names.join(", "),
            quote::name(&self.aside)
        ))
    }

    /// The statement that gives a row the values of columns that are not published.
    fn put_back(&self, table: &Table) -> Option<String> {
        let names = QuotedNames::for_table(table);
        let set = quote::list(self.own.names().enumerate(), ", ", |(number, own)| {
            format!("{own} = ?{}", table.key.len() + 1 + number)
        });
        (!set.is_empty()).then(|| {
            format!(
                "UPDATE {} SET {set} WHERE {}",
                names.table,
                names.key_is_bound()
            )
        })
    }
}

/// The key among the values of a row.
fn key_of(table: &Table, values: &[(usize, Value)]) -> Vec<Value> {
    let value_at = |at: usize| values.iter().find(|(index, _)| *index == at);
    let key = table.key.iter().filter_map(|&at| value_at(at));
    key.map(|(_, value)| value.clone()).collect()
}

fn unfit_key(table: &Table, column: &Column, value: &Value) -> RemoteError {
    let what = format!(
        "a row has {:.60} in {:?}, which is in the key and takes {:?} values",
        format!("{value:?}"),
        column.name,
        column.column_type
    );
    unusable(&table.name, &what)
}

/// A row of the application becomes a pending change where it says anything else than the
/// centre's.
fn write_row(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    values: Vec<(usize, Value)>,
) -> Result<(), RemoteError> {
    let key = key_of(table, &values);
    let mut others = values;
    others.retain(|(at, _)| !table.key.contains(at));
    if let Some(here) = here(connection, table, &key).doing(DOING)? {
        others.retain(|(at, value)| {
            let column_type = table.columns[*at].column_type;
            let (mine, fit) = column_type.datum(value.as_ref());
            let (centres, _) = column_type.datum(here[*at].as_ref());
            fit == Fit::Unfit || !same(&mine, &centres)
        });
        if others.is_empty() {
            return Ok(());
        }
    }
    let types = row::key_types(table);
    let readable = row::readable_key(&row::datums(&types, &key));
    let written = write_pending(connection, table, subscription.generation, key, others);
    match written.doing(DOING)? {
        true => Ok(()),
        false => {
            let what = format!(
                "the row {readable} is not in the centre, and lacks a column that must not be NULL"
            );
            Err(unusable(&table.name, &what))
        }
    }
}

/// The row under a key.
fn here(
    connection: &Connection,
    table: &Table,
    key: &[Value],
) -> rusqlite::Result<Option<Vec<Value>>> {
    let names = QuotedNames::for_table(table);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM {} WHERE {}",
        names.columns.join(", "),
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut statement, key)?;
    let mut rows = statement.raw_query();
    let found = rows.next()?;
    found
        .map(|found| row::owned(found, 0, names.columns.len()))
        .transpose()
}

fn columns_of(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare("SELECT name FROM pragma_table_info(?1, 'main')")?
        .query_map([table], |row| row.get(0))?
        .collect()
}

fn unusable(table: &str, what: &str) -> RemoteError {
    RemoteError::Usage {
        what: format!("the table {table:?} cannot be adopted: {what}"),
        hint: "nothing was changed; correct the table and sync again, or take the centre's rows \
               with --adopt centre"
            .into(),
    }
}
