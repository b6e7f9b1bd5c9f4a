//! The server's own tables, for any database.
//!
//! The text is neutral, as in [`super::connection`]; the types are `INTEGER` (64 bits), `BOOLEAN`,
//! `TEXT` (compared byte by byte), `BLOB` and `SERIAL`, a primary key whose numbers the database
//! gives. An adapter adds the tables of its change logs.

use super::connection::Connection;
use crate::error::CentreError;

/// The format version that this code reads and writes.
pub(crate) const FORMAT_VERSION: i64 = 1;

/// The table that tells the version.
pub(crate) const META: &str = "tidewater.meta";

/// Makes the tables.
pub(crate) const STATE: &str = "
-- `centre` is by what remotes know the centre again when it was restored.
CREATE TABLE tidewater.meta (
  format_version INTEGER NOT NULL,
  centre TEXT NOT NULL
);
INSERT INTO tidewater.meta (format_version, centre) VALUES (1, '');
CREATE TABLE tidewater.signing_key (
  id INTEGER PRIMARY KEY,
  secret BLOB NOT NULL,
  created_ms INTEGER NOT NULL
);
CREATE TABLE tidewater.user_account (
  name TEXT NOT NULL PRIMARY KEY,
  password_hash TEXT NOT NULL,
  disabled BOOLEAN NOT NULL,
  created_ms INTEGER NOT NULL
);
CREATE TABLE tidewater.remote (
  id BLOB NOT NULL PRIMARY KEY,
  user_name TEXT NOT NULL,
  revoked BOOLEAN NOT NULL,
  credential_hash BLOB NOT NULL,
  previous_credential_hash BLOB NOT NULL,
  rotated_ms INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  last_sync_ms INTEGER NOT NULL,
  -- Which schemas it has.
  schemas TEXT NOT NULL DEFAULT ''
);
CREATE INDEX tidewater_remote_user ON tidewater.remote (user_name);
-- Tells a remote that is unknown because it was removed from one that is not known yet.
CREATE TABLE tidewater.removed_remote (
  id BLOB NOT NULL PRIMARY KEY
);
-- Uploads that were forgotten, and have come back.
CREATE TABLE tidewater.given_back (
  upload_id BLOB NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL
);
CREATE TABLE tidewater.subscription (
  remote_id BLOB NOT NULL,
  publication TEXT NOT NULL,
  sequence INTEGER NOT NULL DEFAULT 0,
  upload_id BLOB,
  result BLOB,
  -- The last scope handed out, the one that the remote held when it was, and the one
  -- whose lost partitions have taken their last upload.
  scope_serial INTEGER NOT NULL DEFAULT 0,
  previous_serial INTEGER NOT NULL DEFAULT 0,
  graced_serial INTEGER NOT NULL DEFAULT 0,
  -- Which scope was the newest when the remote gave back last: checkpoints with older ones
  -- know nothing of what became of that.
  given_back_serial INTEGER,
  PRIMARY KEY (remote_id, publication)
);
CREATE TABLE tidewater.publication (
  name TEXT NOT NULL PRIMARY KEY,
  definition TEXT NOT NULL,
  schema BLOB NOT NULL
);
-- By which rows of a published table a remote holds; another number when its partition columns are
-- others.
CREATE TABLE tidewater.rule (
  id SERIAL,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  identity TEXT NOT NULL
);
-- Schemas that are not deployed any more: some remotes still have them.
CREATE TABLE tidewater.past_schema (
  hash BLOB NOT NULL PRIMARY KEY,
  publication TEXT NOT NULL,
  schema BLOB NOT NULL
);
CREATE TABLE tidewater.conflict (
  id SERIAL,
  at_ms INTEGER NOT NULL,
  remote_id BLOB NOT NULL,
  user_name TEXT NOT NULL,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  row_key TEXT NOT NULL,
  operation TEXT NOT NULL,
  pre_image TEXT,
  uploaded TEXT,
  winner TEXT
);
CREATE TABLE tidewater.refused (
  id SERIAL,
  at_ms INTEGER NOT NULL,
  remote_id BLOB NOT NULL,
  user_name TEXT NOT NULL,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  row_key TEXT NOT NULL,
  operation TEXT NOT NULL,
  uploaded TEXT NOT NULL,
  code TEXT NOT NULL,
  reason TEXT NOT NULL
);
CREATE TABLE tidewater.sync_history (
  id SERIAL,
  remote_id BLOB,
  user_name TEXT NOT NULL,
  publications TEXT NOT NULL,
  started_ms INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  inserts INTEGER NOT NULL,
  updates INTEGER NOT NULL,
  deletes INTEGER NOT NULL,
  upserts INTEGER NOT NULL,
  removals INTEGER NOT NULL,
  conflicts INTEGER NOT NULL,
  refused INTEGER NOT NULL,
  bytes_received INTEGER NOT NULL,
  bytes_sent INTEGER NOT NULL,
  error TEXT NOT NULL
);
CREATE INDEX tidewater_sync_history_started ON tidewater.sync_history (started_ms);
-- What remotes and the centre were found at odds about.
CREATE TABLE tidewater.incident (
  id SERIAL,
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  remote_id BLOB,
  user_name TEXT NOT NULL,
  publication TEXT NOT NULL,
  detail TEXT NOT NULL
);
";

/// The tables that a script makes, by their neutral names: each `CREATE TABLE` begins a line.
pub(crate) fn made_by(script: &str) -> impl Iterator<Item = &str> {
    let made = script
        .lines()
        .filter_map(|line| line.strip_prefix("CREATE TABLE "));
    made.filter_map(|table| table.split_whitespace().next())
}

/// Judges which of the server's own tables are there: all of `wanted`, or none. `version` is the
/// one in [`META`], if that is there.
///
/// # Errors
/// Some are missing; or a newer program has been here.
pub(crate) fn judge<C: Connection>(
    version: Option<i64>,
    wanted: &[&str],
    found: &[&str],
) -> Result<(), CentreError> {
    if let Some(version) = version.filter(|&version| version != FORMAT_VERSION) {
        return Err(newer(version));
    }
    let mut missing = wanted.to_vec();
    missing.retain(|table| !found.contains(table));
    if found.is_empty() || missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(|it| C::spell(it)).collect();
    Err(incomplete(&missing))
}

fn newer(version: i64) -> CentreError {
    CentreError::Configuration {
        message: format!(
            "the server's tables in the database have format version {version}, made by a newer \
             Tidewater; this one knows {FORMAT_VERSION}"
        ),
        hint: "update this Tidewater".into(),
    }
}

/// Some of the tables are not there, though others are.
fn incomplete(tables: &[String]) -> CentreError {
    let (noun, verb) = match tables {
        [_] => ("table", "is"),
        _ => ("tables", "are"),
    };
    CentreError::Configuration {
        message: format!(
            "the server's {noun} {} {verb} missing from the database",
            tables.join(", ")
        ),
        hint: "restore the database from a backup; without one, run tidewater undeploy (with \
               --discard if it cannot read what is kept), tidewater deploy and tidewater user \
               add: the remotes then begin anew, and what they have pending goes up"
            .into(),
    }
}
