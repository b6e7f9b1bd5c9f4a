//! What leaves the remote: single rows, and tables that are replaced.
//!
//! Nothing that is pending goes. A row with a refused change goes, but all its values stay with
//! the refusal. A refused insert stays: the centre never had the row, and all its values are the
//! user's own. A parent stays as long as a pending child refers to it.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::Map;
use tidewater_protocol::{Datum, Value};

use super::ApplySummary;
use super::rows::{RowSink, failed, is_local_rule};
use super::table::TableApply;
use crate::database::changes::PARKED;
use crate::database::refused::{self, NewRefusal};
use crate::database::row::read_keys;
use crate::database::row_values::row_values;
use crate::database::stale_rows::mark_stale;
use crate::database::{changes, compare, quote, row};
use crate::error::{ErrorContext, RemoteError};
use tidewater_protocol::Code;

const DOING: &str = "removing rows";

/// Why a change is refused that nobody refused before its row left.
const LEFT: &str = "the row left the user's partitions";

/// Empties a table whose rows all arrive anew, but for what is pending.
pub(super) fn clear(
    connection: &Connection,
    table: &mut TableApply,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    let name = table.name().to_owned();
    connection
        .execute("DELETE FROM tidewater_stale WHERE table_name = ?1", [&name])
        .doing(DOING)?;
    table.has_stale = false;
    let names = &table.names;
    let mut kept = Vec::new();
    let mut stays = Vec::new();
    if table.has_changes {
        let keys = names.change_key.join(", ");
        let change = &names.change;
        let pending = format!("SELECT DISTINCT {keys} FROM {change} WHERE generation > {PARKED}");
        kept = read_keys(connection, &pending, &[], table.table()).doing(DOING)?;
        let parked =
            format!("SELECT {keys} FROM {change} WHERE generation = {PARKED} AND present = 1");
        for key in read_keys(connection, &parked, &[], table.table()).doing(DOING)? {
            if !kept.contains(&key) {
                let key = row::datums(&table.key_types, &key);
                table
                    .parked_unseen
                    .insert(row::pack_key(&table.key_types, &key));
            }
        }
        stays.push(unchanged(table));
    }
    if let Some(needed) = table.needed() {
        let keys = quote::list(&table.names.key, ", ", |key| format!("p.{key}"));
        let mut conditions = vec![needed.clone()];
        conditions.extend(stays.iter().cloned());
        let parents = format!(
            "SELECT {keys} FROM {} AS p WHERE {}",
            table.names.table,
            conditions.join(" AND ")
        );
        kept.extend(read_keys(connection, &parents, &[], table.table()).doing(DOING)?);
        stays.push(format!("NOT {needed}"));
    }
    for key in &kept {
        let key = row::datums(&table.key_types, key);
        let packed = row::pack_key(&table.key_types, &key);
        mark_stale(connection, &name, &packed).doing(DOING)?;
        table.has_stale = true;
        summary.stale += 1;
    }
    table.missing = delete_where(connection, table, &stays)?;
    Ok(())
}

/// The condition that a row, alias `p`, has no local change.
fn unchanged(table: &TableApply) -> String {
    let names = &table.names;
    format!(
        "NOT EXISTS (SELECT 1 FROM {} AS h WHERE {})",
        names.change,
        names.change_of("h", "p")
    )
}

/// Deletes the rows, alias `p`, that all the conditions hold for; returns how many. A trigger
/// of the application that forbids or ignores one does not keep the others.
fn delete_where(
    connection: &Connection,
    table: &TableApply,
    conditions: &[String],
) -> Result<u64, RemoteError> {
    let names = &table.names;
    let condition = match conditions {
        [] => String::new(),
        _ => format!(" WHERE {}", conditions.join(" AND ")),
    };
    // Without a condition and without an alias, SQLite drops all pages at once.
    let sql = if conditions.is_empty() {
        format!("DELETE FROM {}", names.table)
    } else {
        format!("DELETE FROM {} AS p{condition}", names.table)
    };
    let deleted = connection
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.execute([]));
    let mut count = 0;
    match deleted {
        Ok(deleted) => count = deleted as u64,
        Err(error) if is_local_rule(connection, &error) => {}
        Err(error) => return Err(failed(connection, DOING, error)),
    }
    let triggers_fire = connection
        .db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)
        .doing(DOING)?;
    if !triggers_fire {
        return Ok(count);
    }
    let keys = quote::list(&names.key, ", ", |key| format!("p.{key}"));
    let select = format!("SELECT {keys} FROM {} AS p{condition}", names.table);
    let one = format!("DELETE FROM {} WHERE {}", names.table, names.key_is_bound());
    for key in read_keys(connection, &select, &[], table.table()).doing(DOING)? {
        let delete = || -> rusqlite::Result<usize> {
            let mut statement = connection.prepare_cached(&one)?;
            names.bind_key(&mut statement, &key)?;
            statement.raw_execute()
        };
        match delete() {
            Ok(1..) => count += 1,
            Ok(0) => mark_kept(connection, table, &key)?,
            Err(error) if is_local_rule(connection, &error) => {
                mark_kept(connection, table, &key)?;
            }
            Err(error) => return Err(failed(connection, DOING, error)),
        }
    }
    Ok(count)
}

/// A trigger of the application keeps a row that should go: it is asked for again.
fn mark_kept(
    connection: &Connection,
    table: &TableApply,
    key: &[Value],
) -> Result<(), RemoteError> {
    let key = row::datums(&table.key_types, key);
    let packed = row::pack_key(&table.key_types, &key);
    mark_stale(connection, table.name(), &packed).doing(DOING)
}

impl RowSink<'_> {
    /// A key that is not, or no longer, in the remote's scope.
    pub(super) fn remove(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        self.keep_untracked(key, None)?;
        self.summary.removals += self.take_away(key)?;
        Ok(())
    }

    /// Removes a row as far as local changes allow; returns how many went.
    pub(super) fn take_away(&mut self, key: &[Datum<'_>]) -> Result<u64, RemoteError> {
        if self.table.has_changes {
            match self.newest_change(key)? {
                Some(PARKED) if self.is_refused_insert(key)? => {
                    self.clear_stale(key)?;
                    return Ok(0);
                }
                Some(PARKED) => return self.evict(key),
                Some(_) => {
                    self.mark_stale(key)?;
                    return Ok(0);
                }
                None => {}
            }
        }
        if self.is_needed(key)? {
            self.mark_stale(key)?;
            return Ok(0);
        }
        self.delete_or_mark(key)
    }

    /// Whether the refused change of a key is the insert of a row that was not there.
    fn is_refused_insert(&mut self, key: &[Datum<'_>]) -> Result<bool, RemoteError> {
        let names = &self.table.names;
        let check = |scratch: &mut String| -> rusqlite::Result<bool> {
            let mut statement = self.connection.prepare_cached(&format!(
                "SELECT 1 FROM {} WHERE {} AND generation = {PARKED} AND present = 0",
                names.change,
                names.change_key_is_bound()
            ))?;
            row::bind_key(&mut statement, key, scratch)?;
            let found = statement.raw_query().next()?.is_some();
            Ok(found)
        };
        check(&mut self.scratch).doing(DOING)
    }

    fn delete_or_mark(&mut self, key: &[Datum<'_>]) -> Result<u64, RemoteError> {
        let deleted = match self.delete_row(key) {
            Ok(deleted) => deleted,
            Err(error) if is_local_rule(self.connection, &error) => {
                self.mark_stale(key)?;
                return Ok(0);
            }
            Err(error) => return Err(failed(self.connection, DOING, error)),
        };
        if deleted == 0 && self.exists(key).doing(DOING)? {
            // A trigger of the application ignored it.
            self.mark_stale(key)?;
            return Ok(0);
        }
        if self.table.has_stale {
            self.clear_stale(key)?;
        }
        Ok(deleted)
    }

    /// Whether a pending child refers to the row.
    fn is_needed(&mut self, key: &[Datum<'_>]) -> Result<bool, RemoteError> {
        let Some(needed) = self.table.needed() else {
            return Ok(false);
        };
        let names = &self.table.names;
        let sql = format!(
            "SELECT 1 FROM {} AS p WHERE {} AND {needed}",
            names.table,
            names.key_is_bound()
        );
        let check = |scratch: &mut String| -> rusqlite::Result<bool> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            row::bind_key(&mut statement, key, scratch)?;
            let found = statement.raw_query().next()?.is_some();
            Ok(found)
        };
        check(&mut self.scratch).doing(DOING)
    }

    /// After the last row of a replaced table: refused changes whose rows did not come are
    /// out of scope.
    pub(super) fn evict_unseen(&mut self) -> Result<(), RemoteError> {
        let types = self.table.key_types.clone();
        for packed in std::mem::take(&mut self.table.parked_unseen) {
            let Ok(key) = row::unpack_key(&types, &packed) else {
                continue;
            };
            self.summary.removals += self.evict(&key)?;
        }
        Ok(())
    }

    /// A row with a refused change leaves: all its values go to the refusal.
    fn evict(&mut self, key: &[Datum<'_>]) -> Result<u64, RemoteError> {
        let names = &self.table.names;
        let gone: Vec<Value> = key.iter().map(Datum::to_value).collect();
        let (mut known, mut live) = (gone.clone(), gone.clone());
        if let Some(pair) = changes::rekeyed(self.connection, names, PARKED, &gone).doing(DOING)? {
            (known, live) = (pair.old, pair.new);
        }
        if !changes::has_change(self.connection, names, &known, PARKED).doing(DOING)? {
            // It has gone already, by its other key.
            return Ok(0);
        }
        if changes::later_than(self.connection, names, &known, PARKED)
            .doing(DOING)?
            .is_some()
        {
            // The row was changed again under its other key: that goes up first.
            self.mark_stale(key)?;
            return Ok(0);
        }
        let types = self.table.key_types.clone();
        let key = row::datums(&types, &known);
        let values = row_values(self.connection, self.table.table(), &live).doing(DOING)?;
        let packed = row::pack_key(&types, &key);
        let kept = self
            .connection
            .prepare_cached(
                "UPDATE tidewater_refused SET row_values = ?3 WHERE table_name = ?1 \
                 AND key_packed = ?2 AND row_values IS NULL",
            )
            .and_then(|mut statement| statement.execute((self.table.name(), &packed, &values)))
            .doing(DOING)?;
        if kept == 0 {
            refused::record(
                self.connection,
                &NewRefusal {
                    publication: &self.subscription.publication,
                    table: self.table.name(),
                    key: &row::readable_key(&key),
                    key_packed: &packed,
                    operation: "update",
                    code: Code::RowOutOfScope.name(),
                    reason: LEFT,
                    sequence: self.subscription.sequence,
                    row_values: Some(&values),
                },
            )
            .doing(DOING)?;
            self.summary
                .note_refused(self.table.name(), &row::readable_key(&key), LEFT);
        }
        changes::forget(self.connection, &self.table.names, &known, PARKED).doing(DOING)?;
        if self.table.is_untracked {
            self.note_gave_way(&packed)?;
        }
        let other = [&known, &live].into_iter().find(|it| **it != gone);
        let live = row::datums(&types, &live);
        let removed = match self.is_needed(&live)? {
            true => {
                self.mark_stale(&live)?;
                0
            }
            false => self.delete_or_mark(&live)?,
        };
        // Nobody has said what the centre has under the other key: it may be this very row.
        if let Some(other) = other {
            self.mark_stale(&row::datums(&types, other))?;
        }
        Ok(removed)
    }
}

/// What the user wrote in a change into the columns that are meant, by their index, as a JSON
/// object: the key, and those that differ from the pre-image. Of an untracked table, all of these.
pub(super) fn own_values(
    connection: &Connection,
    table: &tidewater_protocol::Table,
    key: &[Value],
    generation: i64,
    is_meant: &dyn Fn(usize) -> bool,
) -> rusqlite::Result<String> {
    let names = crate::database::tables::QuotedNames::for_table(table);
    let pre = quote::list(&names.pre, "", |pre| format!(", h.{pre}"));
    let now = quote::list(&names.values, "", |&index| {
        format!(", p.{}", names.columns[index])
    });
    let mut statement = connection.prepare_cached(&format!(
        "SELECT h.present, p.{} IS NOT NULL{pre}{now} FROM {} AS h LEFT JOIN {} AS p ON {} \
         WHERE {} AND h.generation = ?{}",
        names.key[0],
        names.change,
        names.table,
        names.change_of("h", "p"),
        names.change_key_is_bound_in("h"),
        key.len() + 1,
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, generation)?;
    // Of an untracked table, what is recorded as the row before may be the user's, too.
    let all = compare::is_untracked(connection, &table.name)?;
    let mut own = Map::new();
    let types = row::key_types(table);
    for (column, datum) in table.key_columns().zip(row::datums(&types, key)) {
        own.insert(column.name.clone(), row::json(&datum));
    }
    let mut rows = statement.raw_query();
    if let Some(found) = rows.next()? {
        let (present, exists): (bool, bool) = (found.get(0)?, found.get(1)?);
        let count = names.values.len();
        for (position, &index) in names.values.iter().enumerate() {
            let before = found.get_ref(2 + position)?;
            let now = found.get_ref(2 + count + position)?;
            if exists && is_meant(index) && (all || !present || before != now) {
                let column = &table.columns[index];
                let (datum, _) = column.column_type.datum(row::value(now));
                own.insert(column.name.clone(), row::json(&datum));
            }
        }
    }
    Ok(serde_json::Value::Object(own).to_string())
}
