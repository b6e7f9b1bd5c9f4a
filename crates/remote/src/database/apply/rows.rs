//! Writing the rows of one table: an arriving row, and everything that can be in its way.
//!
//! A local change is never overwritten: its row is marked stale and asked for again. Neither
//! does one row that cannot be written keep the others from being written.

use std::hash::{DefaultHasher, Hash, Hasher};

use rusqlite::{CachedStatement, Connection, ErrorCode};
use tidewater_protocol::{ColumnType, Datum, UnpackedRow, Value};

use super::ApplySummary;
use super::table::TableApply;
use super::undecided_rows::{self, UndecidedRow};
use crate::database::changes::PARKED;
use crate::database::row::read_keys;
use crate::database::stale_rows::mark_stale;
use crate::database::{SubscriptionState, quote, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "applying rows";

/// Where the rows of one table go.
pub(super) struct RowSink<'a> {
    pub(super) connection: &'a Connection,
    pub(super) subscription: &'a SubscriptionState,
    pub(super) table: &'a mut TableApply,
    pub(super) summary: &'a mut ApplySummary,
    upsert: CachedStatement<'a>,
    pub(super) scratch: String,
}

impl<'a> RowSink<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        subscription: &'a SubscriptionState,
        table: &'a mut TableApply,
        summary: &'a mut ApplySummary,
    ) -> Result<RowSink<'a>, RemoteError> {
        Ok(RowSink {
            connection,
            subscription,
            upsert: connection.prepare_cached(&table.upsert_sql).doing(DOING)?,
            table,
            summary,
            scratch: String::new(),
        })
    }

    /// The peer sent what cannot be.
    pub(super) fn bad_rows(&self, what: String) -> RemoteError {
        RemoteError::BadRows {
            table: self.table.name().to_owned(),
            what,
        }
    }

    /// A row of a download.
    pub(super) fn download(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        if self.table.is_compared {
            self.note_arrived(&row.key)?;
        }
        self.forget_idle(&row.key)?;
        if self.table.has_changes && self.newest_change(&row.key)?.is_some() {
            return self.keep_local(row);
        }
        if (self.table.is_compared || self.table.is_untracked) && self.settle_compared(row)? {
            return Ok(());
        }
        if let Some(undecided) = self.waits_for(row).doing(DOING)? {
            self.mark_stale(&row.key)?;
            return undecided_rows::note(self.connection, self.table, &row.key, &undecided)
                .doing(DOING);
        }
        if self.write(&row.new, &row.key)? {
            self.summary.upserts += 1;
            self.table.missing = self.table.missing.saturating_sub(1);
        }
        Ok(())
    }

    /// The row that the application has inserted here, and that the centre does not have, if an
    /// arriving one refers to it: the centre has another row under that key, to which the arriving one
    /// belongs. It is shown when the user has decided about his own. Until then what refers to it waits
    /// for the same, and so does what refers to that.
    fn waits_for(&mut self, row: &UnpackedRow<'_>) -> rusqlite::Result<Option<UndecidedRow>> {
        for parent in &self.table.pending_parents {
            let types = parent.columns.iter().zip(&parent.key_types);
            let value = |(&column, &column_type): (&usize, &ColumnType)| {
                let value = row.new[column].to_value();
                let key = column_type.datum(value.as_ref()).0.to_value();
                (key != Value::Null).then_some(key)
            };
            let Some(key) = types.map(value).collect::<Option<Vec<Value>>>() else {
                continue;
            };
            let key = row::datums(&parent.key_types, &key);
            let packed = row::pack_key(&parent.key_types, &key);
            let mut statement = self.connection.prepare_cached(&parent.was_present)?;
            row::bind_key(&mut statement, &key, &mut self.scratch)?;
            let mut found = statement.raw_query();
            if let Some(found) = found.next()?
                && !found.get::<_, bool>(0)?
            {
                let table = parent.table.clone();
                return Ok(Some(UndecidedRow { table, key: packed }));
            }
            let mut statement = self.connection.prepare_cached(&parent.waits)?;
            row::bind_key(&mut statement, &key, &mut self.scratch)?;
            statement.raw_bind_parameter(key.len() + 1, &parent.table)?;
            statement.raw_bind_parameter(key.len() + 2, packed)?;
            if let Some(found) = statement.raw_query().next()? {
                let (table, key) = (found.get(0)?, found.get(1)?);
                return Ok(Some(UndecidedRow { table, key }));
            }
        }
        Ok(None)
    }

    /// The key has a local change: the row that arrived has to wait.
    fn keep_local(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        self.fill_added_columns(row)?;
        let is_base = self.rebase(&row.key, Some(&row.new))?;
        if !self.table.parked_unseen.is_empty() {
            let packed = row::pack_key(&self.table.key_types, &row.key);
            self.table.parked_unseen.remove(&packed);
        }
        match is_base {
            true => Ok(()),
            false => self.mark_stale(&row.key),
        }
    }

    /// Writes a row over whatever is under its key; false if it had to be marked stale.
    pub(super) fn write(
        &mut self,
        new: &[Datum<'_>],
        key: &[Datum<'_>],
    ) -> Result<bool, RemoteError> {
        let mut written = self.try_write(new, key);
        if let Err(error) = &written
            && is_local_rule(self.connection, error)
            && self.make_room(new, key)?
        {
            written = self.try_write(new, key);
        }
        match written {
            Ok(true) => {}
            // A trigger of the application that ignores the row, or a rule that forbids it.
            Ok(false) => {
                self.mark_stale(key)?;
                return Ok(false);
            }
            Err(error) if is_local_rule(self.connection, &error) => {
                self.mark_stale(key)?;
                return Ok(false);
            }
            Err(error) => return Err(failed(self.connection, DOING, error)),
        }
        if self.table.has_stale {
            self.clear_stale(key)?;
        }
        self.note_written(key);
        Ok(true)
    }

    /// Whoever collides with this row later must not push it out.
    pub(super) fn note_written(&mut self, key: &[Datum<'_>]) {
        if !self.table.unique.is_empty() {
            self.table.written.insert(hash(&self.table.key_types, key));
        }
    }

    /// Whether the row is there now: `RAISE(IGNORE)` in a trigger of the application keeps it
    /// out without an error.
    fn try_write(&mut self, new: &[Datum<'_>], key: &[Datum<'_>]) -> rusqlite::Result<bool> {
        let key_columns = &self.table.table().key;
        row::bind_row(&mut self.upsert, new, key_columns, &mut self.scratch)?;
        if self.upsert.raw_execute()? > 0 {
            return Ok(true);
        }
        // A row that is nothing but its key and was there already.
        Ok(self.table.names.values.is_empty() && self.exists(key)?)
    }

    /// Whether there is a row under a key.
    pub(super) fn exists(&mut self, key: &[Datum<'_>]) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(&self.table.row_sql.exists)?;
        row::bind_key(&mut statement, key, &mut self.scratch)?;
        let found = statement.raw_query().next()?.is_some();
        Ok(found)
    }

    /// A unique index of the application's stands against the row. Rows in the way that are
    /// merely older go, and are asked for again; false if one of them must stay.
    fn make_room(&mut self, new: &[Datum<'_>], key: &[Datum<'_>]) -> Result<bool, RemoteError> {
        let mut in_the_way: Vec<Vec<Value>> = Vec::new();
        for index in 0..self.table.unique.len() {
            for found in self.colliding(index, new).doing(DOING)? {
                let same = found
                    .iter()
                    .zip(key)
                    .all(|(found, key)| *found == key.to_value());
                if !same && !in_the_way.contains(&found) {
                    in_the_way.push(found);
                }
            }
        }
        // Of an untracked table nobody knows yet which rows are merely older.
        if in_the_way.is_empty() || self.table.is_untracked {
            return Ok(false);
        }
        let types = self.table.key_types.clone();
        for found in &in_the_way {
            let found = row::datums(&types, found);
            let fresh = self.table.written.contains(&hash(&types, &found));
            if fresh || self.newest_change(&found)?.is_some() {
                return Ok(false);
            }
        }
        for found in &in_the_way {
            let found = row::datums(&types, found);
            match self.delete_row(&found) {
                Ok(_) => self.mark_stale(&found)?,
                Err(error) if is_local_rule(self.connection, &error) => return Ok(false),
                Err(error) => return Err(failed(self.connection, DOING, error)),
            }
        }
        Ok(true)
    }

    /// The keys of the rows that collide with a new one through a unique index.
    fn colliding(&self, index: usize, new: &[Datum<'_>]) -> rusqlite::Result<Vec<Vec<Value>>> {
        let table = self.table.table();
        let unique = &self.table.unique[index];
        let position = |name: &str| {
            let columns = table.columns.iter();
            columns
                .clone()
                .position(|column| column.name.eq_ignore_ascii_case(name))
        };
        if !unique.uses_only(&|name| position(name).is_some()) {
            return Ok(Vec::new());
        }
        let parameter = |name: &str| match position(name) {
            Some(position) => format!("?{}", position + 1),
            None => "NULL".into(),
        };
        let Some(collides) = unique.collides("t", &parameter) else {
            return Ok(Vec::new());
        };
        let names = &self.table.names;
        // The last condition holds always; it makes the statement have a parameter for every
        // column.
        let sql = format!(
            "SELECT {} FROM {} AS t WHERE ({collides}) AND (?{} IS NULL OR TRUE)",
            quote::list(&names.key, ", ", |key| format!("t.{key}")),
            names.table,
            new.len(),
        );
        let owned: Vec<Value> = new.iter().map(Datum::to_value).collect();
        let binds: Vec<row::BoundValue<'_>> = owned
            .iter()
            .map(|value| row::BoundValue::new(value.as_ref()))
            .collect();
        let parameters: Vec<&dyn rusqlite::ToSql> = binds
            .iter()
            .map(|bind| bind as &dyn rusqlite::ToSql)
            .collect();
        read_keys(self.connection, &sql, &parameters, table)
    }

    /// The newest generation with a change of this key; parked ones count.
    pub(super) fn newest_change(&mut self, key: &[Datum<'_>]) -> Result<Option<i64>, RemoteError> {
        let sql = &self.table.row_sql.newest_change;
        generation(self.connection, sql, key, &mut self.scratch).doing(DOING)
    }

    /// The oldest one.
    pub(super) fn oldest_change(&mut self, key: &[Datum<'_>]) -> rusqlite::Result<Option<i64>> {
        let sql = &self.table.row_sql.oldest_change;
        generation(self.connection, sql, key, &mut self.scratch)
    }

    pub(super) fn mark_stale(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        let packed = row::pack_key(&self.table.key_types, key);
        mark_stale(self.connection, self.table.name(), &packed).doing(DOING)?;
        self.table.has_stale = true;
        self.summary.stale += 1;
        Ok(())
    }

    pub(super) fn clear_stale(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        let packed = row::pack_key(&self.table.key_types, key);
        self.connection
            .prepare_cached("DELETE FROM tidewater_stale WHERE table_name = ?1 AND key_packed = ?2")
            .and_then(|mut statement| statement.execute((self.table.name(), packed)))
            .map(drop)
            .doing(DOING)
    }

    /// Deletes a row; returns how many there were (none or one).
    pub(super) fn delete_row(&mut self, key: &[Datum<'_>]) -> rusqlite::Result<u64> {
        let mut statement = self.connection.prepare_cached(&self.table.row_sql.delete)?;
        row::bind_key(&mut statement, key, &mut self.scratch)?;
        Ok(statement.raw_execute()? as u64)
    }

    /// Deletes the change of a key in a generation.
    pub(super) fn delete_change(
        &mut self,
        key: &[Datum<'_>],
        generation: i64,
    ) -> rusqlite::Result<()> {
        let sql = &self.table.row_sql.delete_change;
        let mut statement = self.connection.prepare_cached(sql)?;
        row::bind_key(&mut statement, key, &mut self.scratch)?;
        statement.raw_bind_parameter(key.len() + 1, generation)?;
        statement.raw_execute().map(drop)
    }

    /// A column that came with the new schema, or was made again, holds a filler in a row that
    /// the application has changed. The centre's value belongs both in the row and in its
    /// pre-image, or the next upload would write the filler over it. What the application has
    /// written into the column since is its own.
    pub(super) fn fill_added_columns(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        if self.table.added.is_empty() {
            return Ok(());
        }
        let key: Vec<Value> = row.key.iter().map(Datum::to_value).collect();
        let names = &self.table.names;
        let fill = || -> rusqlite::Result<()> {
            for &index in &self.table.added {
                let Some(position) = names.values.iter().position(|&value| value == index) else {
                    continue;
                };
                let value = row.new[index].to_value();
                let (table, change) = (&names.table, &names.change);
                let column = &names.columns[index];
                let has_key = names.change_key_is_bound();
                let parameter = key.len() + 1;
                for sql in [
                    format!(
                        "UPDATE {table} SET {column} = ?{parameter} WHERE {} AND \
                         (NOT EXISTS (SELECT 1 FROM {change} WHERE {has_key}) OR \
                         EXISTS (SELECT 1 FROM {change} WHERE {has_key} AND present = 1 \
                         AND {} IS {table}.{column}))",
                        names.key_is_bound(),
                        names.pre[position],
                    ),
                    format!(
                        "UPDATE {} SET {} = ?{parameter} WHERE {} AND present = 1 \
                         AND generation >= {PARKED}",
                        change, names.pre[position], has_key,
                    ),
                ] {
                    let mut statement = self.connection.prepare_cached(&sql)?;
                    names.bind_key(&mut statement, &key)?;
                    statement
                        .raw_bind_parameter(parameter, row::BoundValue::new(value.as_ref()))?;
                    statement.raw_execute()?;
                }
            }
            Ok(())
        };
        fill().doing(DOING)
    }
}

/// The generation that a statement finds for a key.
fn generation(
    connection: &Connection,
    sql: &str,
    key: &[Datum<'_>],
    scratch: &mut String,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(sql)?;
    row::bind_key(&mut statement, key, scratch)?;
    let mut rows = statement.raw_query();
    rows.next()?.map(|found| found.get(0)).transpose()
}

fn hash(types: &[tidewater_protocol::ColumnType], key: &[Datum<'_>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    row::pack_key(types, key).hash(&mut hasher);
    hasher.finish()
}

/// Whether a statement failed because of something the application put into the file: a
/// unique index, a CHECK, a trigger that raises. One that ended our transaction is none.
pub(super) fn is_local_rule(connection: &Connection, error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) && !connection.is_autocommit()
}

/// The error of a statement that failed for good. Our transaction ends only with a trigger
/// of the application: `RAISE(ROLLBACK)`, or a statement `OR ROLLBACK`.
pub(super) fn failed(connection: &Connection, doing: &str, error: rusqlite::Error) -> RemoteError {
    let violates = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
    match violates && connection.is_autocommit() {
        true => RemoteError::by_trigger(doing, &error),
        false => RemoteError::sqlite(doing, error),
    }
}
