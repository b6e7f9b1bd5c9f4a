//! The server's own tables, for any database.
//!
//! The text is neutral, as in [`super::connection`]; the types are `INTEGER` (64 bits), `BOOLEAN`,
//! `TEXT` (compared byte by byte), `BLOB` and `SERIAL`, a primary key whose numbers the database
//! gives. An adapter adds the tables of its change logs.

use super::connection::{DatabaseConnection, system_sql};
use crate::engine::change_tracking::ChangeTracking;
use crate::error::CentreError;

/// The format version that this code reads and writes.
const FORMAT_VERSION: i64 = 1;

/// The table that tells the version.
const META: &str = "tidewater.meta";

/// Makes the tables.
pub const STATE: &str = "
-- `centre` is by what remotes know the centre again when it was restored.
CREATE TABLE tidewater.meta (
  format_version INTEGER NOT NULL,
  centre TEXT NOT NULL,
  -- Counts deployments: servers notice by it that there was another one.
  deployment INTEGER NOT NULL DEFAULT 0
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
  created_ms INTEGER NOT NULL,
  -- What was said of the user at the last sign-in without a password of this database: when, by
  -- whom, and claims as JSON.
  proven_ms INTEGER NOT NULL DEFAULT 0,
  proven_by TEXT NOT NULL DEFAULT '',
  claims TEXT NOT NULL DEFAULT ''
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
  schemas TEXT NOT NULL DEFAULT '',
  -- How many times it has synced since it last compared everything.
  unverified INTEGER NOT NULL DEFAULT 0,
  -- What people call the device; empty if nobody has named it.
  device_name TEXT NOT NULL DEFAULT ''
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
  -- When it was applied.
  uploaded_ms INTEGER NOT NULL DEFAULT 0,
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
-- Partitions of which checkpoints have a digest; see engine/scope/difference.rs.
CREATE TABLE tidewater.scope_piece (
  digest BLOB NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  content BLOB NOT NULL
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
  winner TEXT,
  replaced TEXT,
  outcome TEXT NOT NULL,
  settled_ms INTEGER,
  settled_by TEXT,
  settled_as TEXT,
  -- What the scripts of the sync went by.
  sync_notes TEXT NOT NULL DEFAULT ''
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
  reason TEXT NOT NULL,
  -- The number of the upload.
  sequence INTEGER NOT NULL,
  pre_image TEXT,
  -- The refused row that it refers to, if it was refused for that.
  parent_table TEXT,
  parent_key TEXT,
  sync_notes TEXT NOT NULL DEFAULT ''
);
-- Refused rows that are settled, each once, by the number of its last attempt.
CREATE TABLE tidewater.settled_refusal (
  id INTEGER NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  remote_id BLOB NOT NULL,
  user_name TEXT NOT NULL,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  row_key TEXT NOT NULL,
  operation TEXT NOT NULL,
  uploaded TEXT NOT NULL,
  code TEXT NOT NULL,
  reason TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  pre_image TEXT,
  parent_table TEXT,
  parent_key TEXT,
  attempts INTEGER NOT NULL,
  settled_ms INTEGER NOT NULL,
  settled_by TEXT NOT NULL,
  settled_as TEXT NOT NULL,
  settled_row TEXT,
  settled_reason TEXT
);
CREATE INDEX tidewater_settled_refusal_remote
  ON tidewater.settled_refusal (remote_id, publication, id);
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
CREATE INDEX tidewater_refused_remote ON tidewater.refused (remote_id, publication);
CREATE INDEX tidewater_sync_history_started ON tidewater.sync_history (started_ms);
-- Which remote has which numbers for the rows that it inserts.
CREATE TABLE tidewater.identity_block (
  id SERIAL,
  table_name TEXT NOT NULL,
  column_name TEXT NOT NULL,
  remote_id BLOB NOT NULL,
  user_name TEXT NOT NULL,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL,
  at_ms INTEGER NOT NULL
);
CREATE INDEX tidewater_identity_block_table ON tidewater.identity_block (table_name, last);
-- Who has written a row last by an upload, where conflicts go by the rank of users; as long as the
-- row is what that upload made of it, which the image tells.
CREATE TABLE tidewater.row_writer (
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  row_key BLOB NOT NULL,
  user_name TEXT NOT NULL,
  -- NULL: none.
  user_rank INTEGER,
  image BLOB NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (publication, table_name, row_key)
);
CREATE INDEX tidewater_row_writer_at ON tidewater.row_writer (at_ms);
-- What takes effect once, by a key that its user chose; the outcome is NULL until it is known.
CREATE TABLE tidewater.once (
  user_name TEXT NOT NULL,
  call_key BLOB NOT NULL,
  kind INTEGER NOT NULL,
  procedure_name TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  outcome BLOB,
  PRIMARY KEY (user_name, call_key)
);
CREATE INDEX tidewater_once_at ON tidewater.once (at_ms);
-- The number of the last event of each space.
CREATE TABLE tidewater.space (
  name TEXT NOT NULL PRIMARY KEY,
  last INTEGER NOT NULL
);
CREATE TABLE tidewater.event (
  space TEXT NOT NULL,
  id INTEGER NOT NULL,
  -- Random, to tell the event from another one of this number.
  check_bytes BLOB NOT NULL,
  subject TEXT NOT NULL,
  payload BLOB NOT NULL,
  user_name TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (space, id)
);
CREATE INDEX tidewater_event_subject ON tidewater.event (space, subject, id);
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

/// The server's own tables, by their neutral names: each `CREATE TABLE` begins a line.
pub fn own_tables<T: ChangeTracking>() -> Vec<&'static str> {
    let lines = STATE.lines().chain(T::LOGS.lines());
    let made = lines.filter_map(|line| line.strip_prefix("CREATE TABLE "));
    made.filter_map(|table| table.split_whitespace().next())
        .collect()
}

/// Whether the server's own tables are there.
///
/// # Errors
/// Some are missing, though others are there; or a newer program has been here.
pub async fn check<T: ChangeTracking>(connection: &mut T::Connection) -> Result<bool, CentreError> {
    let wanted = own_tables::<T>();
    let found = T::found_tables(connection, &wanted).await?;
    if found.contains(&META) {
        let version = system_sql!("SELECT format_version FROM tidewater.meta");
        let answer = connection.run_one("reading the state's version", version);
        let version = answer.await?.rows.first().map(|row| row.get::<i64>(0));
        let version = version.transpose()?;
        if let Some(version) = version.filter(|&version| version != FORMAT_VERSION) {
            return Err(newer(version));
        }
    }
    let missing = wanted.iter().filter(|table| !found.contains(table));
    let missing: Vec<String> = missing.map(|it| T::Connection::spell(it)).collect();
    if found.is_empty() || missing.is_empty() {
        return Ok(!found.is_empty());
    }
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
