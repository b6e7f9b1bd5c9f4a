//! Changes that met somebody else's: what the device is told of them, and what the user does then.
//!
//! A change that lost, or was taken together with somebody else's, is not pending any more. Both
//! versions stand in `tidewater_conflicts`, where any application can read them, until it deletes
//! them. Writing one's own again is an ordinary change: it is made as an application makes it, by
//! a connection of its own, so that triggers record it, foreign keys act and rules hold.

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use serde::Serialize;
use tidewater_protocol::{Datum, Table, Value};

use super::refused::RowSelection;
use super::row_values::{exists, kept_values, key_in, key_of, run, value_of};
use super::tables::QuotedNames;
use super::{BUSY_TIMEOUT, RemoteDatabase, SubscriptionState, changes, quote, row};
use crate::error::{ErrorContext, RemoteError};

/// So many are kept in a file, the newest ones.
pub(crate) const MOST_KEPT: u64 = 10_000;

/// The time of a conflict before the apply that brought it knows its own.
const TIME_UNKNOWN: i64 = -1;

/// A change of this device that met somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConflictedChange {
    /// Its number, for applying it again or dismissing it.
    pub id: i64,
    /// The publication.
    pub publication: String,
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// The row as it was before, a JSON object; `None` for inserts.
    pub pre_image: Option<String>,
    /// The row as it was to be; `None` for deletes.
    pub mine: Option<String>,
    /// The row that the centre has since; `None` if it has none.
    pub theirs: Option<String>,
    /// `lost` or `merged`.
    pub outcome: String,
    /// When it was told here, in milliseconds since 1970.
    pub at_ms: i64,
}

/// What became of a change that met another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeOutcome {
    /// The centre's row stands.
    Lost,
    /// The row has something of both.
    Merged,
}

impl ChangeOutcome {
    fn name(self) -> &'static str {
        match self {
            ChangeOutcome::Lost => "lost",
            ChangeOutcome::Merged => "merged",
        }
    }
}

/// A change with the rows that it was made from and that it made, as JSON objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeImages {
    /// The key of the row as it was before.
    pub(crate) key_packed: Vec<u8>,
    /// The same, readable.
    pub(crate) key: String,
    pub(crate) pre_image: Option<String>,
    pub(crate) mine: Option<String>,
}

impl ChangeImages {
    /// Reads a change as it was taken: by any of its keys, with the row as it was at the end of
    /// its generation. `None` if there is no such change.
    pub(crate) fn from_taken(
        connection: &Connection,
        table: &Table,
        key: &[Value],
        generation: i64,
    ) -> rusqlite::Result<Option<ChangeImages>> {
        let names = QuotedNames::for_table(table);
        let (old, new) = match changes::rekeyed(connection, &names, generation, key)? {
            Some(pair) => (pair.old, pair.new),
            None => (key.to_vec(), key.to_vec()),
        };
        let recorded = |key: &[Value], generation| recorded(connection, &names, key, generation);
        let Some(before) = recorded(&old, generation)? else {
            return Ok(None);
        };
        let later = changes::next_of(connection, &names, &new, generation)?;
        let after = match later {
            Some(later) => recorded(&new, later)?.flatten(),
            None => present(connection, &names, &new)?,
        };
        let types = row::key_types(table);
        let key = row::datums(&types, &old);
        Ok(Some(ChangeImages {
            key_packed: row::pack_key(&types, &key),
            key: row::readable_key(&key),
            pre_image: before.map(|values| whole(table, &names, &old, &values)),
            mine: after.map(|values| whole(table, &names, &new, &values)),
        }))
    }

    pub(crate) fn operation(&self) -> &'static str {
        match (&self.pre_image, &self.mine) {
            (None, _) => "insert",
            (_, None) => "delete",
            _ => "update",
        }
    }

    /// Writes the conflict down, beside the row that the centre has.
    pub(crate) fn record(
        &self,
        connection: &Connection,
        (publication, table): (&str, &str),
        theirs: Option<&str>,
        outcome: ChangeOutcome,
    ) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "INSERT INTO tidewater_conflicts (publication, table_name, key, key_packed, \
                 operation, pre_image, mine, theirs, outcome, at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                publication,
                table,
                self.key,
                self.key_packed,
                self.operation(),
                self.pre_image,
                self.mine,
                theirs,
                outcome.name(),
                TIME_UNKNOWN,
            ])?;
        let id = connection.last_insert_rowid().unsigned_abs();
        // One apply may bring more than are kept.
        match id.is_multiple_of(MOST_KEPT) {
            true => drop_oldest(connection),
            false => Ok(()),
        }
    }
}

/// Gives what an apply has recorded its time, and drops the oldest beyond [`MOST_KEPT`].
pub(crate) fn settle(connection: &Connection, now_ms: i64) -> Result<(), RemoteError> {
    let doing = "recording conflicts";
    connection
        .execute(
            "UPDATE tidewater_conflicts SET at = ?1 WHERE at = ?2",
            params![now_ms, TIME_UNKNOWN],
        )
        .doing(doing)?;
    drop_oldest(connection).doing(doing)
}

fn drop_oldest(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "DELETE FROM tidewater_conflicts WHERE id <= \
               (SELECT id FROM tidewater_conflicts ORDER BY id DESC LIMIT 1 OFFSET ?1)";
    connection.execute(sql, [MOST_KEPT]).map(drop)
}

/// How many are kept.
pub(crate) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM tidewater_conflicts";
    let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// A row as a JSON object, in the order of its columns.
pub(crate) fn object<'n, 'v>(columns: impl Iterator<Item = (&'n str, &'v Datum<'v>)>) -> String {
    let columns = columns.map(|(name, datum)| {
        let name = serde_json::Value::from(name);
        format!("{name}:{}", row::json(datum))
    });
    let columns: Vec<String> = columns.collect();
    format!("{{{}}}", columns.join(","))
}

/// The values that were recorded of a row as it was before a generation; `Some(None)` if it was
/// not there, `None` if nothing was recorded.
fn recorded(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<Option<Option<Vec<Value>>>> {
    let pre = quote::list(&names.pre, "", |pre| format!(", {pre}"));
    let mut statement = connection.prepare_cached(&format!(
        "SELECT present{pre} FROM {} WHERE {} AND generation = ?{}",
        names.change,
        names.change_key_is_bound(),
        key.len() + 1
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, generation)?;
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let is_present: bool = found.get(0)?;
    let values = is_present.then(|| row::owned(found, 1, names.pre.len()));
    values.transpose().map(Some)
}

/// The values of a row as it is, those of the key aside.
fn present(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
) -> rusqlite::Result<Option<Vec<Value>>> {
    let values = quote::list(&names.values, "", |&at| format!(", {}", names.columns[at]));
    let mut statement = connection.prepare_cached(&format!(
        "SELECT 1{values} FROM {} WHERE {}",
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut statement, key)?;
    let mut rows = statement.raw_query();
    let found = rows.next()?;
    found
        .map(|found| row::owned(found, 1, names.values.len()))
        .transpose()
}

/// A row as a JSON object, from its key and its other values.
fn whole(table: &Table, names: &QuotedNames, key: &[Value], values: &[Value]) -> String {
    let mut row: Vec<Datum<'_>> = vec![Datum::Null; table.columns.len()];
    let key = table.key.iter().zip(key);
    let values = names.values.iter().zip(values);
    for (&at, value) in key.chain(values) {
        row[at] = table.columns[at].column_type.datum(value.as_ref()).0;
    }
    let names = table.columns.iter().map(|column| column.name.as_str());
    object(names.zip(&row))
}

impl RemoteDatabase {
    /// Every conflict that is listed, oldest first.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn conflicts(&self) -> Result<Vec<ConflictedChange>, RemoteError> {
        let read = || -> rusqlite::Result<Vec<ConflictedChange>> {
            self.connection
                .prepare(
                    "SELECT id, publication, table_name, key, operation, pre_image, mine, theirs, \
                     outcome, at FROM tidewater_conflicts ORDER BY id",
                )?
                .query_map([], |row| {
                    Ok(ConflictedChange {
                        id: row.get(0)?,
                        publication: row.get(1)?,
                        table: row.get(2)?,
                        key: row.get(3)?,
                        operation: row.get(4)?,
                        pre_image: row.get(5)?,
                        mine: row.get(6)?,
                        theirs: row.get(7)?,
                        outcome: row.get(8)?,
                        at_ms: row.get(9)?,
                    })
                })?
                .collect()
        };
        read().doing("reading conflicts")
    }

    /// Takes conflicts off the list; returns how many. Nothing else changes.
    ///
    /// # Errors
    /// The file is locked, or SQLite failed.
    pub fn dismiss_conflicts(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        let doing = "dismissing conflicts";
        let transaction = self.write(doing)?;
        let mut dismissed = 0;
        match which {
            RowSelection::All => {
                let sql = "DELETE FROM tidewater_conflicts";
                dismissed += transaction.execute(sql, []).doing(doing)?;
            }
            RowSelection::Ids(ids) => {
                for id in ids {
                    dismissed += take_off(&transaction, *id).doing(doing)?;
                }
            }
        }
        transaction.commit().doing(doing)?;
        Ok(dismissed as u64)
    }

    /// Writes the device's own versions again, over whatever is there, and takes the conflicts off
    /// the list; returns how many. It is an ordinary change, which the next sync uploads: a row
    /// that is gone is inserted, a delete deletes. All of them are written, or none.
    ///
    /// # Errors
    /// One of them cannot be written, and why; the file is locked, or SQLite failed.
    pub fn apply_conflicts(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        let conflicts = self.conflicts()?;
        let subscriptions = self.subscriptions()?;
        let doing = "applying conflicts again";
        let mut application = as_application(&self.path).doing(doing)?;
        let transaction = application
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .doing(doing)?;
        let mut applied = 0;
        for conflict in conflicts.iter().filter(|it| which.includes(it.id)) {
            let key_packed: Option<Vec<u8>> = transaction
                .query_row(
                    "SELECT key_packed FROM tidewater_conflicts WHERE id = ?1",
                    [conflict.id],
                    |row| row.get(0),
                )
                .optional()
                .doing(doing)?;
            // Somebody has taken it off the list meanwhile.
            let Some(key_packed) = key_packed else {
                continue;
            };
            let wanted = RowToReapply::from_conflict(conflict, &key_packed, &subscriptions)
                .map_err(|what| conflict.cannot_be_applied(&what))?;
            match wanted.write(&transaction) {
                Ok(true) => {}
                Ok(false) => {
                    let what = "a trigger of the application keeps it out";
                    return Err(conflict.cannot_be_applied(what));
                }
                Err(error) if is_busy(&error) => return Err(RemoteError::sqlite(doing, error)),
                Err(error) => return Err(conflict.cannot_be_applied(&error.to_string())),
            }
            take_off(&transaction, conflict.id).doing(doing)?;
            applied += 1;
        }
        match transaction.commit() {
            Ok(()) => Ok(applied),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                Err(RemoteError::Usage {
                    what: format!("the changes cannot be written: {error}"),
                    hint: "write them by hand, or dismiss the conflicts".into(),
                })
            }
            Err(error) => Err(RemoteError::sqlite(doing, error)),
        }
    }
}

impl ConflictedChange {
    fn cannot_be_applied(&self, what: &str) -> RemoteError {
        RemoteError::Usage {
            what: format!(
                "conflict {} ({} {} {}) cannot be applied again: {what}; nothing was changed",
                self.id, self.operation, self.table, self.key
            ),
            hint: "write the row by hand, then dismiss the conflict".into(),
        }
    }
}

pub(crate) fn take_off(connection: &Connection, id: i64) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM tidewater_conflicts WHERE id = ?1";
    connection.prepare_cached(sql)?.execute([id])
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// A connection that writes as applications do.
pub(crate) fn as_application(path: &std::path::Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "EXTRA")?;
    Ok(connection)
}

/// A row that is to be written once more.
struct RowToReapply {
    names: QuotedNames,
    /// The key that it had, and the one that it is to have.
    known: Vec<Value>,
    key: Vec<Value>,
    /// All columns that are known, by their index; `None` if the row is to go.
    values: Option<Vec<(usize, Value)>>,
}

impl RowToReapply {
    /// # Errors
    /// It cannot be written: why.
    fn from_conflict(
        conflict: &ConflictedChange,
        key_packed: &[u8],
        subscriptions: &[SubscriptionState],
    ) -> Result<RowToReapply, String> {
        let table = subscriptions.iter().find_map(|subscription| {
            let schema = subscription.schema.as_deref()?;
            schema.table(&conflict.table)
        });
        let table = table.ok_or("its table is not in the file any more")?;
        if !table.direction.uploads() {
            return Err("its table takes no changes from remotes any more".into());
        }
        let known = key_of(table, key_packed).ok_or("its table has another key now")?;
        let names = QuotedNames::for_table(table);
        let Some(mine) = &conflict.mine else {
            return Ok(RowToReapply {
                names,
                key: known.clone(),
                known,
                values: None,
            });
        };
        let mine = kept_values(mine).ok_or("its values cannot be read")?;
        let key = key_in(table, &mine).ok_or("its table has another key now")?;
        let value = |(at, column): (usize, &tidewater_protocol::Column)| {
            let value = mine.get(&column.name)?;
            Some((at, value_of(column.column_type, value)))
        };
        let values = table.columns.iter().enumerate().filter_map(value);
        Ok(RowToReapply {
            values: Some(values.collect()),
            names,
            known,
            key,
        })
    }

    /// False if something has kept the row as it was.
    fn write(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let names = &self.names;
        let is_here = |key: &[Value]| exists(connection, names, key);
        let here = match is_here(&self.key)? {
            true => Some(&self.key),
            false => is_here(&self.known)?.then_some(&self.known),
        };
        let Some(values) = &self.values else {
            let Some(key) = here else { return Ok(true) };
            let sql = format!("DELETE FROM {} WHERE {}", names.table, names.key_is_bound());
            run(connection, names, &sql, key, std::iter::empty())?;
            return Ok(!is_here(key)?);
        };
        let columns = || values.iter().map(|(at, _)| names.columns[*at].as_str());
        let given = values.iter().map(|(_, value)| value);
        if let Some(key) = here {
            let first = key.len() + 1;
            let set = quote::list(columns().enumerate(), ", ", |(number, column)| {
                format!("{column} = ?{}", first + number)
            });
            let sql = format!(
                "UPDATE {} SET {set} WHERE {}",
                names.table,
                names.key_is_bound()
            );
            return Ok(run(connection, names, &sql, key, given)? > 0);
        }
        let all: Vec<&str> = columns().collect();
        let first = self.key.len() + 1;
        // Every statement has the key's parameters.
        let sql = format!(
            "INSERT INTO {} ({}) SELECT {} WHERE {}",
            names.table,
            all.join(", "),
            quote::list(first..first + all.len(), ", ", |n| format!("?{n}")),
            quote::list(1..first, " AND ", |n| format!("?{n} IS NOT NULL")),
        );
        Ok(run(connection, names, &sql, &self.key, given)? > 0)
    }
}
