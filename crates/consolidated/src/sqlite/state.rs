//! The server's own tables in the centre: their definition and its version.

use rusqlite::Connection;

use super::{failure, quote};
use crate::error::CentreError;
use crate::own_tables;

/// The format version that this code reads and writes.
pub(super) const FORMAT_VERSION: i64 = 1;

/// The table that tells the version.
const META: &str = "tidewater_meta";

/// Everything of ours begins with this.
pub(super) const PREFIX: &str = "tidewater_";

/// Makes the server's tables.
const STATE: &str = "
-- `centre` is by what remotes know the centre again when it was restored.
CREATE TABLE tidewater_meta (
    format_version INTEGER NOT NULL, centre TEXT NOT NULL DEFAULT '');
INSERT INTO tidewater_meta (format_version) VALUES (1);
CREATE TABLE tidewater_signing_key (
    id INTEGER PRIMARY KEY, secret BLOB NOT NULL, created_ms INTEGER NOT NULL);
CREATE TABLE tidewater_user_account (
    name TEXT NOT NULL PRIMARY KEY, password_hash TEXT NOT NULL, disabled INTEGER NOT NULL,
    created_ms INTEGER NOT NULL);
CREATE TABLE tidewater_remote (
    id BLOB NOT NULL PRIMARY KEY, user_name TEXT NOT NULL, revoked INTEGER NOT NULL,
    credential_hash BLOB NOT NULL, previous_credential_hash BLOB NOT NULL,
    rotated_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL, last_sync_ms INTEGER NOT NULL,
    -- Which schemas it has.
    schemas TEXT NOT NULL DEFAULT '');
-- Tells a remote that is unknown because it was removed from one that is not known yet.
CREATE TABLE tidewater_removed_remote (id BLOB NOT NULL PRIMARY KEY) WITHOUT ROWID;
-- Uploads that were forgotten, and have come back.
CREATE TABLE tidewater_given_back (
    upload_id BLOB NOT NULL PRIMARY KEY, at_ms INTEGER NOT NULL);
CREATE TABLE tidewater_subscription (
    remote_id BLOB NOT NULL, publication TEXT NOT NULL,
    sequence INTEGER NOT NULL DEFAULT 0, upload_id BLOB, result BLOB,
    -- The last scope handed out, the one that the remote held when it was, and the one
    -- whose lost partitions have taken their last upload.
    scope_serial INTEGER NOT NULL DEFAULT 0, previous_serial INTEGER NOT NULL DEFAULT 0,
    graced_serial INTEGER NOT NULL DEFAULT 0,
    -- Which scope was the newest when the remote gave back last: checkpoints with older ones
    -- know nothing of what became of that.
    given_back_serial INTEGER,
    PRIMARY KEY (remote_id, publication)) WITHOUT ROWID;
CREATE TABLE tidewater_publication (
    name TEXT NOT NULL PRIMARY KEY, definition TEXT NOT NULL, schema BLOB NOT NULL);
-- Schemas that are not deployed any more: some remotes still have them.
CREATE TABLE tidewater_past_schema (
    hash BLOB NOT NULL PRIMARY KEY, publication TEXT NOT NULL, schema BLOB NOT NULL) WITHOUT ROWID;
-- A number that stands for one table of one publication as long as its partition columns
-- stay what they are. A new generation has every remote fetch the table whole.
CREATE TABLE tidewater_published_table (
    id INTEGER PRIMARY KEY AUTOINCREMENT, publication TEXT NOT NULL, name TEXT NOT NULL,
    identity TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 1,
    log_id INTEGER, UNIQUE (publication, name));
-- Entries up to the floor have been pruned.
CREATE TABLE tidewater_change_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, identity TEXT NOT NULL,
    floor INTEGER NOT NULL DEFAULT 0);
-- Positions are those of all logs when the mark was made, stamp is their sum.
CREATE TABLE tidewater_mark (
    id BLOB NOT NULL PRIMARY KEY, created_ms INTEGER NOT NULL, stamp INTEGER NOT NULL,
    positions BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE tidewater_conflict (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, remote_id BLOB NOT NULL,
    user_name TEXT NOT NULL, publication TEXT NOT NULL, table_name TEXT NOT NULL,
    key TEXT NOT NULL, operation TEXT NOT NULL, pre_image TEXT, uploaded TEXT, winner TEXT);
CREATE TABLE tidewater_refused (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, remote_id BLOB NOT NULL,
    user_name TEXT NOT NULL, publication TEXT NOT NULL, table_name TEXT NOT NULL,
    key TEXT NOT NULL, operation TEXT NOT NULL, row TEXT NOT NULL, code TEXT NOT NULL,
    reason TEXT NOT NULL);
CREATE TABLE tidewater_sync_history (
    id INTEGER PRIMARY KEY, remote_id BLOB, user_name TEXT NOT NULL, publications TEXT NOT NULL,
    started_ms INTEGER NOT NULL, duration_ms INTEGER NOT NULL, inserts INTEGER NOT NULL,
    updates INTEGER NOT NULL, deletes INTEGER NOT NULL, upserts INTEGER NOT NULL,
    removals INTEGER NOT NULL, conflicts INTEGER NOT NULL, refused INTEGER NOT NULL,
    bytes_received INTEGER NOT NULL, bytes_sent INTEGER NOT NULL, error TEXT NOT NULL);
CREATE INDEX tidewater_sync_history_started ON tidewater_sync_history (started_ms);
-- What remotes and the centre were found at odds about.
CREATE TABLE tidewater_incident (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, remote_id BLOB NOT NULL,
    user_name TEXT NOT NULL, publication TEXT NOT NULL, detail TEXT NOT NULL);
-- Changes that were in effect already when they came to a restored centre.
CREATE TABLE tidewater_needless_change (
    table_name TEXT NOT NULL, key TEXT NOT NULL, remote_id BLOB NOT NULL, at_ms INTEGER NOT NULL,
    user_name TEXT NOT NULL, publication TEXT NOT NULL, operation TEXT NOT NULL,
    pre_image TEXT, uploaded TEXT, PRIMARY KEY (table_name, key, remote_id));
";

/// The version of the server's tables; 0 if there are none.
///
/// # Errors
/// A newer program has been here.
pub(super) fn version(connection: &Connection) -> Result<i64, CentreError> {
    let read = failure("reading the version of the server's state");
    if !is_there(connection, META).map_err(read)? {
        return Ok(0);
    }
    let version: i64 = connection
        .query_row("SELECT format_version FROM tidewater_meta", [], |row| {
            row.get(0)
        })
        .map_err(read)?;
    if version == FORMAT_VERSION {
        Ok(version)
    } else {
        Err(CentreError::Configuration {
            message: format!(
                "the server's tables in the database have version {version}; \
                 this program knows {FORMAT_VERSION}"
            ),
            hint: "use the newer program with this database".into(),
        })
    }
}

/// Whether a table is there. It is asked of the file: what SQLite tells of a column's metadata
/// may be from before another connection dropped the table.
pub(super) fn is_there(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?
        .exists([table])
}

/// The server's tables that are there; change logs have their own list.
///
/// # Errors
/// SQLite failed.
pub(super) fn tables(connection: &Connection) -> Result<Vec<&'static str>, CentreError> {
    let reading = failure("looking for the server's tables");
    let mut found = Vec::new();
    for table in own_tables::made_by(STATE) {
        if is_there(connection, table).map_err(reading)? {
            found.push(table);
        }
    }
    Ok(found)
}

/// Refuses to work with a state of which somebody has dropped a part.
///
/// # Errors
/// Tables are missing, though others are there; or a newer program has been here.
pub(super) fn check_complete(connection: &Connection) -> Result<(), CentreError> {
    let found = tables(connection)?;
    if found.is_empty() {
        return Ok(());
    }
    if found.contains(&META) {
        version(connection)?;
    }
    let mut wanted = own_tables::made_by(STATE);
    wanted.retain(|table| !found.contains(table));
    match wanted.as_slice() {
        [] => Ok(()),
        missing => Err(own_tables::missing(missing)),
    }
}

/// Makes the server's tables.
pub(super) fn create(connection: &Connection) -> Result<(), CentreError> {
    connection
        .execute_batch(STATE)
        .map_err(failure("creating the server's state"))
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

/// The numbers of all change logs.
pub(super) fn logs(connection: &Connection) -> Result<Vec<i64>, CentreError> {
    let read = failure("reading the list of change logs");
    let mut statement = connection
        .prepare_cached("SELECT id FROM tidewater_change_log ORDER BY id")
        .map_err(read)?;
    let ids = statement.query_map([], |row| row.get(0)).map_err(read)?;
    ids.collect::<rusqlite::Result<_>>().map_err(read)
}
