//! The server's own tables in the file: whether they are there, and the change logs'.

use super::dialect::{PREFIX, SqliteDialect};
use super::{failure, quote};
use rusqlite::Connection;
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::error::CentreError;

/// Makes the tables of the change logs.
pub(super) const LOGS: &[&str] = &[
    "
-- Entries up to the floor have been pruned; whoever has not come to the entry of `everything`
-- gets all rows.
CREATE TABLE tidewater.change_log (
  id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, identity TEXT NOT NULL,
  -- The columns of its table when it was deployed last: one that is dropped and added again has
  -- other values in every row, and no trigger sees it.
  columns TEXT NOT NULL DEFAULT '[]',
  floor INTEGER NOT NULL DEFAULT 0, everything INTEGER NOT NULL DEFAULT 0)",
    "
-- Counts what is written to tables that partition queries read: users may hold other partitions
-- since.
CREATE TABLE tidewater.scope_change (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL)",
    "INSERT INTO tidewater.scope_change VALUES (1, 0)",
    "
-- Who uploads, for triggers of the application: there is a row in the transaction of an upload,
-- and nobody sees it outside.
CREATE TABLE tidewater.uploading (username TEXT NOT NULL, remote_id TEXT NOT NULL)",
    "
-- Positions are those of all logs when the mark was made, stamp is their sum.
CREATE TABLE tidewater.mark (
  id BLOB NOT NULL PRIMARY KEY, created_ms INTEGER NOT NULL, stamp INTEGER NOT NULL,
  positions BLOB NOT NULL)",
];

/// Those of some of the server's tables that are there.
pub(super) fn found(
    connection: &Connection,
    wanted: &[&'static str],
) -> rusqlite::Result<Vec<&'static str>> {
    let mut statement = connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?;
    let mut found = Vec::new();
    for &table in wanted {
        if statement.exists([SqliteDialect.table(table)])? {
            found.push(table);
        }
    }
    Ok(found)
}

/// The names of change logs' tables and triggers begin with this, and a number.
pub(super) fn log_prefix() -> String {
    format!("{PREFIX}log_")
}

/// The name of a change log's table.
pub(super) fn log_table(id: i64) -> String {
    format!("{}{id}", log_prefix())
}

/// The position that a change log has reached, in the connection's snapshot. The
/// newest entry is never pruned, so this never falls.
pub(super) fn log_position(connection: &Connection, id: i64) -> Result<i64, CentreError> {
    let sql = format!("SELECT coalesce(max(id), 0) FROM {}", quote(&log_table(id)));
    let mut statement = connection
        .prepare_cached(&sql)
        .map_err(failure("reading a change log"))?;
    statement
        .query_row([], |row| row.get(0))
        .map_err(failure("reading a change log"))
}

/// Whether a log has everything since a position.
pub(super) fn goes_back_to(
    connection: &Connection,
    log: i64,
    position: i64,
) -> Result<bool, CentreError> {
    connection
        .prepare_cached(
            "SELECT 1 FROM tidewater_centre_change_log
             WHERE id = ?1 AND floor <= ?2 AND everything <= ?2",
        )
        .and_then(|mut statement| statement.exists([log, position]))
        .map_err(failure("reading a change log's floor"))
}

/// How much was written to tables that partition queries read, in the connection's snapshot.
pub(super) fn scope_version(connection: &Connection) -> Result<i64, CentreError> {
    connection
        .prepare_cached("SELECT version FROM tidewater_centre_scope_change")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(failure("looking for other partitions"))
}

/// The numbers of all change logs.
pub(super) fn logs(connection: &Connection) -> Result<Vec<i64>, CentreError> {
    let read = failure("reading the list of change logs");
    let mut statement = connection
        .prepare_cached("SELECT id FROM tidewater_centre_change_log ORDER BY id")
        .map_err(read)?;
    let ids = statement.query_map([], |row| row.get(0)).map_err(read)?;
    ids.collect::<rusqlite::Result<_>>().map_err(read)
}
