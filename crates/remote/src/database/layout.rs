//! The internal tables: their definition, the format's version, and how a file gets there.
//!
//! Everything of ours begins with `tidewater_`. What the tables mean is written down in
//! `docs/remote-database.md`. Change tables belong to [`super::tables`].

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{ErrorContext, RemoteError};

/// The format that this program reads and writes.
pub(crate) const FORMAT_VERSION: i64 = 1;

/// The prefix of every internal table, index and trigger. Behind it, what belongs to a table is called
/// after its kind, `_`, and the table. No kind begins with another one and `_`: else the objects of two
/// tables could meet in one name, whatever is done about characters.
pub(crate) const PREFIX: &str = "tidewater_";

/// The prefix of everything that belongs to a centre in the same file: a branch's file is a remote
/// of headquarters and the centre of its devices. To a remote its triggers are the application's.
const CENTRE_PREFIX: &str = "tidewater_centre_";

/// Whether a trigger is one of the remote's own, by its name.
pub(crate) fn is_own_trigger(name: &str) -> bool {
    name.starts_with(PREFIX) && !name.starts_with(CENTRE_PREFIX)
}

/// Makes the internal tables.
///
/// `tidewater_state.centre` is the name of the centre that gave the remote its id, `above` the names
/// of those above that one, nearest first, as a JSON array; `device_name` is what people call the
/// device.
/// `checked_schema_version` is the file's schema version under which tracking was last found in
/// order, `plain_schema_version` the same where nothing of the application's own was on a synced
/// table: see [`super::triggers::are_plain`].
/// `tidewater_subscription.compare_due`: see [`super::subscription::CompareDue`]; `verified`: what the
/// server is to hear of the last compare that it had asked for; `image`: the SHA-256 of the image
/// from which the file began, as long as the checkpoint is that of the image; `copied_until`: the last
/// generation whose changes another copy of the file may have sent, too, as it was made before this
/// one was told that it is a copy; `is_dropped`: 1 where the server has no such publication any more.
/// In `tidewater_refused`, `again` is 1 where the next sync tries the change again: it was
/// refused by the very sync that changed the scope or the schema, and stays listed until then. Where
/// only values are left it is 1 where the centre may have forgotten the refusal: see
/// [`super::refused::forgotten_refusals`];
/// `copied` is 1 where it was refused before the file was told that it is a copy.
/// `tidewater_settled` has what was refused and is settled, by the same ids: see
/// [`super::refused::settled_changes`]. `tidewater_subscription.deployment` is what the centre last said of
/// its deployment, `settled_after` where it goes on to tell what operators have settled.
/// `tidewater_conflicts` has what [`super::conflicts`] tells the application; its ids are never given
/// out again, so that nobody dismisses another one than he has seen.
/// `tidewater_kept` holds acknowledged uploads as [`super::kept_uploads`] packs them; `total_bytes` is the
/// sum of `bytes` of this row and of all before it, `remote_id` the id under which the upload went
/// up, and `centre` where to, if that is not the remote's id any more; without `bytes` it is only
/// known to have been there. `tidewater_untracked` names the tables that were changed while
/// their triggers were gone; `fillers`, as a JSON array, the columns that were made again and hold
/// nobody's values; `forgotten` is 1 where a restored centre has forgotten changes that were not
/// kept; `tidewater_gave_way` the rows that the application may have changed and that
/// gave way to the centre's; `tidewater_unsubscribed` the subscriptions that the remote has ended,
/// by the numbers that they had in the file. `tidewater_identity_block` has the numbers for rows that
/// the application inserts, from `next` to `last`. The application writes `tidewater_outbox` and
/// `tidewater_interest` itself: what it could write wrongly is told by the names of constraints.
/// `tidewater_state.outbox_covered` is the last row of the outbox before which all changes were
/// taken.
const TABLES: &str = r#"
CREATE TABLE tidewater_state (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  format_version INTEGER NOT NULL,
  remote_id BLOB,
  server TEXT NOT NULL DEFAULT '',
  user TEXT NOT NULL DEFAULT '',
  credential BLOB,
  token BLOB,
  ca TEXT,
  checked_schema_version INTEGER NOT NULL DEFAULT -1,
  plain_schema_version INTEGER NOT NULL DEFAULT -1,
  centre TEXT NOT NULL DEFAULT '',
  outbox_covered INTEGER NOT NULL DEFAULT 0,
  pin TEXT,
  above TEXT NOT NULL DEFAULT '[]',
  device_name TEXT NOT NULL DEFAULT ''
);
INSERT INTO tidewater_state (one, format_version) VALUES (1, 1);
CREATE TABLE tidewater_subscription (
  id INTEGER PRIMARY KEY,
  publication TEXT NOT NULL UNIQUE,
  generation INTEGER NOT NULL DEFAULT 2,
  sequence INTEGER NOT NULL DEFAULT 0,
  upload_id BLOB,
  taken_generation INTEGER,
  taken_upload_id BLOB,
  checkpoint BLOB,
  schema BLOB,
  schema_hash BLOB,
  last_sync_at INTEGER,
  compare_due INTEGER NOT NULL DEFAULT 0,
  deployment INTEGER NOT NULL DEFAULT 0,
  settled_after INTEGER NOT NULL DEFAULT 0,
  transactional INTEGER NOT NULL DEFAULT 0,
  verified BLOB,
  image BLOB,
  copied_until INTEGER NOT NULL DEFAULT 0,
  is_dropped INTEGER NOT NULL DEFAULT 0
);
CREATE VIEW tidewater_transaction AS SELECT NULL AS ended;
CREATE TRIGGER tidewater_transaction_ends INSTEAD OF INSERT ON tidewater_transaction BEGIN
  UPDATE tidewater_subscription SET generation = generation + 2 WHERE transactional = 1;
END;
CREATE TABLE tidewater_refused (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  key TEXT NOT NULL,
  key_packed BLOB NOT NULL,
  operation TEXT NOT NULL,
  code TEXT NOT NULL,
  reason TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  at INTEGER NOT NULL,
  row_values TEXT,
  again INTEGER NOT NULL DEFAULT 0,
  copied INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX tidewater_refused_key ON tidewater_refused (table_name, key_packed);
CREATE TABLE tidewater_settled (
  id INTEGER PRIMARY KEY,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  key TEXT NOT NULL,
  key_packed BLOB NOT NULL,
  operation TEXT NOT NULL,
  code TEXT NOT NULL,
  reason TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  at INTEGER NOT NULL,
  row_values TEXT,
  outcome TEXT NOT NULL,
  settled_by TEXT NOT NULL,
  settled_at INTEGER NOT NULL,
  generation INTEGER
);
CREATE INDEX tidewater_settled_generation ON tidewater_settled (publication, generation)
  WHERE generation IS NOT NULL;
CREATE TABLE tidewater_conflicts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  publication TEXT NOT NULL,
  table_name TEXT NOT NULL,
  key TEXT NOT NULL,
  key_packed BLOB NOT NULL,
  operation TEXT NOT NULL,
  pre_image TEXT,
  mine TEXT,
  theirs TEXT,
  outcome TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE TABLE tidewater_stale (
  table_name TEXT NOT NULL,
  key_packed BLOB NOT NULL,
  waits_for_table TEXT,
  waits_for_key BLOB,
  PRIMARY KEY (table_name, key_packed)
) WITHOUT ROWID;
CREATE TABLE tidewater_kept (
  id INTEGER PRIMARY KEY,
  subscription INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  upload_id BLOB NOT NULL,
  at INTEGER NOT NULL,
  giving INTEGER NOT NULL DEFAULT 0,
  total_bytes INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  remote_id BLOB,
  centre TEXT
);
CREATE INDEX tidewater_kept_giving ON tidewater_kept (subscription, id) WHERE giving = 1;
CREATE INDEX tidewater_kept_former ON tidewater_kept (subscription, remote_id, sequence)
  WHERE remote_id IS NOT NULL;
CREATE TABLE tidewater_untracked (
  table_name TEXT PRIMARY KEY,
  fillers TEXT NOT NULL DEFAULT '[]',
  forgotten INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE tidewater_identity_block (
  id INTEGER PRIMARY KEY,
  subscription INTEGER NOT NULL,
  table_name TEXT NOT NULL,
  next INTEGER NOT NULL,
  last INTEGER NOT NULL
);
CREATE INDEX tidewater_identity_block_next ON tidewater_identity_block (table_name, next);
CREATE TABLE tidewater_gave_way (
  table_name TEXT NOT NULL,
  key_packed BLOB NOT NULL,
  PRIMARY KEY (table_name, key_packed)
) WITHOUT ROWID;
CREATE TABLE tidewater_parameter (
  publication TEXT NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (publication, name)
) WITHOUT ROWID;
CREATE TABLE tidewater_unsubscribed (
  id INTEGER PRIMARY KEY,
  publication TEXT NOT NULL UNIQUE,
  sequence INTEGER NOT NULL,
  upload_id BLOB
);
CREATE TABLE tidewater_outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL DEFAULT 'call'
    CONSTRAINT "kind is call or event" CHECK (kind IN ('call', 'event')),
  name TEXT NOT NULL
    CONSTRAINT "name is that of a procedure, of an event SPACE/SUBJECT"
    CHECK (length(name) > 0 AND (kind <> 'event' OR name LIKE '_%/_%')),
  arguments TEXT,
  recipient TEXT
    CONSTRAINT "recipient of a call is user:NAME or remote:ID"
    CHECK (recipient IS NULL OR kind = 'call'
      AND (recipient GLOB 'user:?*' OR recipient GLOB 'remote:?*')),
  deadline TEXT
    CONSTRAINT "deadline is a time in UTC like 2026-11-26T10:00:00Z"
    CHECK (deadline IS NULL OR deadline GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
      AND julianday(deadline) IS NOT NULL),
  key BLOB NOT NULL DEFAULT (randomblob(16))
    CONSTRAINT "key has 16 bytes" CHECK (length(key) = 16),
  state TEXT NOT NULL DEFAULT 'pending'
    CONSTRAINT "state is pending, sent, answered or failed"
    CHECK (state IN ('pending', 'sent', 'answered', 'failed')),
  code TEXT,
  reason TEXT,
  created_at INTEGER NOT NULL
    DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
  settled_at INTEGER
);
CREATE INDEX tidewater_outbox_waiting ON tidewater_outbox (id)
  WHERE state IN ('pending', 'sent');
CREATE TABLE tidewater_inbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  outbox INTEGER,
  space TEXT,
  subject TEXT,
  payload,
  position BLOB,
  user TEXT,
  published_at INTEGER,
  received_at INTEGER NOT NULL
);
CREATE TABLE tidewater_interest (
  id INTEGER PRIMARY KEY,
  space TEXT NOT NULL,
  subject TEXT NOT NULL,
  position BLOB,
  since INTEGER,
  code TEXT,
  reason TEXT,
  UNIQUE (space, subject)
);
"#;

/// Why a file without our state cannot become a remote: other tables of Tidewater's are in it.
pub(crate) fn obstacle(connection: &Connection) -> Result<Option<&'static str>, RemoteError> {
    if version(connection)?.is_some() {
        return Ok(None);
    }
    let count = |pattern: &str| {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name GLOB ?1";
        connection
            .query_row(sql, [pattern], |row| row.get::<_, i64>(0))
            .doing("looking for other tables of Tidewater's")
    };
    // Only a consolidated database has users.
    if count("tidewater_centre_user_account")? > 0 {
        return Ok(Some("it is a consolidated database"));
    }
    let remains = "it was one, but its table tidewater_state is gone; what was not uploaded is \
                   still in its own tables";
    Ok((count("tidewater_*")? > 0).then_some(remains))
}

/// Makes the internal tables in a file that has none, and refuses those of another format.
pub(crate) fn ensure(connection: &mut Connection) -> Result<(), RemoteError> {
    if version(connection)? == Some(FORMAT_VERSION) {
        return Ok(());
    }
    let doing = "preparing the internal tables";
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .doing(doing)?;
    match version(&transaction)? {
        None => transaction.execute_batch(TABLES).doing(doing)?,
        Some(FORMAT_VERSION) => {}
        Some(found) => {
            return Err(RemoteError::TooNew {
                found,
                known: FORMAT_VERSION,
            });
        }
    }
    transaction.commit().doing(doing)
}

/// Everything in `tidewater_state`, read by one statement wherever something of it is wanted.
pub(crate) const STATE: &str = "SELECT format_version, remote_id, server, user, credential, \
     token, ca, centre, checked_schema_version, plain_schema_version, pin, device_name FROM tidewater_state";

/// Whether the file has the internal tables of this program's format, as almost every one does that
/// is opened. The statement is one that a sync needs anyway.
pub(crate) fn is_ours(connection: &Connection) -> bool {
    let version = connection
        .prepare_cached(STATE)
        .and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(0)));
    version == Ok(FORMAT_VERSION)
}

fn version(connection: &Connection) -> Result<Option<i64>, RemoteError> {
    let doing = "reading the format version";
    let exists: Option<i64> = connection
        .query_row(
            "SELECT 1 FROM sqlite_master WHERE name = 'tidewater_state'",
            [],
            |row| row.get(0),
        )
        .optional()
        .doing(doing)?;
    if exists.is_none() {
        return Ok(None);
    }
    // A table of this name that somebody else made has no such column or row.
    let version = connection
        .query_row("SELECT format_version FROM tidewater_state", [], |row| {
            row.get(0)
        })
        .optional();
    match version {
        Ok(Some(version)) => Ok(Some(version)),
        _ => Ok(Some(i64::MAX)),
    }
}
