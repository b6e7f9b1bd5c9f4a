//! The server's state in the schema `tidewater`: its tables and their format.

/// The schema that holds everything of ours but the triggers.
pub(super) const SCHEMA: &str = "tidewater";

/// The key of the advisory lock that deploying and pruning take: "tidewate" in ASCII.
pub(super) const ADVISORY_LOCK: i64 = 0x7469_6465_7761_7465;

/// The format version that this code reads and writes.
pub(super) const FORMAT_VERSION: i32 = 1;

/// Where this database is, as SQL: this very schema in this very database. Transaction ids
/// mean nothing anywhere else, so marks that came with a dump prove nothing.
macro_rules! place {
    () => {
        "(SELECT concat_ws('/', s.system_identifier, d.oid, 'tidewater.meta'::regclass::oid) \
         FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d \
         WHERE d.datname = current_database())"
    };
}
pub(super) const PLACE: &str = place!();

/// Makes the schema and its tables.
pub(super) const STATE: &str = concat!(
    "
CREATE SCHEMA tidewater;
COMMENT ON SCHEMA tidewater IS 'Tidewater: state of the sync server. Removed by: tidewater undeploy';
CREATE TABLE tidewater.meta (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  format_version integer NOT NULL,
  -- No log has complete entries of versions below this.
  log_floor xid8 NOT NULL,
  -- Where the database is.
  place text NOT NULL,
  -- By what remotes know the centre again when it was restored.
  centre text NOT NULL
);
INSERT INTO tidewater.meta (format_version, log_floor, place, centre)
VALUES (1, '0', '', pg_catalog.gen_random_uuid()::text);
UPDATE tidewater.meta SET place = ",
    place!(),
    ";
CREATE TABLE tidewater.signing_key (
  id integer PRIMARY KEY,
  secret bytea NOT NULL,
  created_ms bigint NOT NULL
);
CREATE TABLE tidewater.user_account (
  name text COLLATE \"C\" PRIMARY KEY,
  password_hash text NOT NULL,
  disabled boolean NOT NULL,
  created_ms bigint NOT NULL
);
CREATE TABLE tidewater.remote (
  id bytea PRIMARY KEY,
  user_name text COLLATE \"C\" NOT NULL,
  revoked boolean NOT NULL,
  credential_hash bytea NOT NULL,
  previous_credential_hash bytea NOT NULL,
  rotated_ms bigint NOT NULL,
  created_ms bigint NOT NULL,
  last_sync_ms bigint NOT NULL,
  -- Which schemas it has.
  schemas text NOT NULL DEFAULT ''
);
CREATE INDEX ON tidewater.remote (user_name);
CREATE TABLE tidewater.subscription (
  remote_id bytea NOT NULL,
  publication text COLLATE \"C\" NOT NULL,
  sequence bigint NOT NULL DEFAULT 0,
  upload_id bytea,
  result bytea,
  -- The scope issued last and the one before; nothing older counts.
  scope_serial bigint NOT NULL DEFAULT 0,
  previous_serial bigint NOT NULL DEFAULT 0,
  -- The last scope under which partitions lost since were still accepted, once.
  graced_serial bigint NOT NULL DEFAULT 0,
  -- Which scope was the newest when the remote gave back last: checkpoints with older ones know
  -- nothing of what became of that.
  given_back_serial bigint,
  PRIMARY KEY (remote_id, publication)
) WITH (fillfactor = 50);
CREATE TABLE tidewater.publication (
  name text COLLATE \"C\" PRIMARY KEY,
  definition text NOT NULL,
  schema bytea NOT NULL
);
-- Schemas that are not deployed any more: some remotes still have them.
CREATE TABLE tidewater.past_schema (
  hash bytea PRIMARY KEY,
  publication text NOT NULL,
  schema bytea NOT NULL
);
-- Registry of change logs: one for each table and list of partition columns.
CREATE TABLE tidewater.change_log (
  id integer PRIMARY KEY,
  table_oid oid NOT NULL,
  table_name text NOT NULL,
  partition_columns text[] NOT NULL,
  -- The SQL that made log and triggers: a difference means that they do not fit.
  definition text NOT NULL,
  -- Of a partitioned table: the partitions whose changes the log has, and since when they are
  -- partitions; NULL for any other.
  members text
);
-- Versions from which on remotes need all rows of a log's table again.
CREATE TABLE tidewater.everything (
  log_id integer NOT NULL,
  version xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
);
CREATE TABLE tidewater.mark (
  id bytea PRIMARY KEY,
  created_ms bigint NOT NULL
);
-- At this time, all transactions below this one had ended.
CREATE TABLE tidewater.horizon (
  at_ms bigint NOT NULL,
  oldest_running xid8 NOT NULL
);
CREATE TABLE tidewater.conflict (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at_ms bigint NOT NULL,
  remote_id bytea NOT NULL,
  user_name text NOT NULL,
  publication text NOT NULL,
  table_name text NOT NULL,
  row_key text NOT NULL,
  operation text NOT NULL,
  pre_image text,
  uploaded text,
  winner text
);
CREATE TABLE tidewater.refused (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at_ms bigint NOT NULL,
  remote_id bytea NOT NULL,
  user_name text NOT NULL,
  publication text NOT NULL,
  table_name text NOT NULL,
  row_key text NOT NULL,
  operation text NOT NULL,
  uploaded text NOT NULL,
  code text NOT NULL,
  reason text NOT NULL
);
CREATE TABLE tidewater.sync_history (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  remote_id bytea,
  user_name text NOT NULL,
  publications text NOT NULL,
  started_ms bigint NOT NULL,
  duration_ms bigint NOT NULL,
  inserts bigint NOT NULL,
  updates bigint NOT NULL,
  deletes bigint NOT NULL,
  upserts bigint NOT NULL,
  removals bigint NOT NULL,
  conflicts bigint NOT NULL,
  refused bigint NOT NULL,
  bytes_received bigint NOT NULL,
  bytes_sent bigint NOT NULL,
  error text NOT NULL
);
CREATE INDEX ON tidewater.sync_history (started_ms);
-- What remotes and the centre were found at odds about.
CREATE TABLE tidewater.incident (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at_ms bigint NOT NULL,
  kind text NOT NULL,
  remote_id bytea NOT NULL,
  user_name text NOT NULL,
  publication text NOT NULL,
  detail text NOT NULL
);
-- Which triggers track changes.
CREATE TABLE tidewater.tracked (
  log_id integer NOT NULL,
  table_oid oid NOT NULL,
  trigger_oid oid NOT NULL,
  -- The transaction that made the trigger, or switched it on or off.
  since text NOT NULL,
  PRIMARY KEY (trigger_oid)
);
-- Change logs that do not see everything: their tables are sent whole.
CREATE TABLE tidewater.untracked (
  log_id integer PRIMARY KEY
);
-- Tells a remote that is unknown because it was removed from one that is not known yet.
CREATE TABLE tidewater.removed_remote (
  id bytea PRIMARY KEY
);
-- Uploads that were forgotten, and have come back.
CREATE TABLE tidewater.given_back (
  upload_id bytea PRIMARY KEY,
  at_ms bigint NOT NULL
);
-- Changes that were in effect already when they came to a restored centre: they lose to what
-- another remote gives back of the row later.
CREATE TABLE tidewater.needless_change (
  -- Qualified: two schemas may have tables of one name.
  central_name text NOT NULL,
  table_name text NOT NULL,
  row_key text NOT NULL,
  remote_id bytea NOT NULL,
  at_ms bigint NOT NULL,
  user_name text NOT NULL,
  publication text NOT NULL,
  operation text NOT NULL,
  pre_image text,
  uploaded text
);
-- Keys may be too long for a B-tree.
CREATE INDEX ON tidewater.needless_change USING hash (row_key);
-- The types of published columns: a column that gets another one has other values in every row,
-- and no trigger sees it.
CREATE TABLE tidewater.column_type (
  log_id integer NOT NULL,
  name text NOT NULL,
  -- Of an enumeration, also each of its values; 0: the type.
  label_oid oid NOT NULL,
  type text NOT NULL,
  -- Which column this is: one that is dropped and added again under its name has another number.
  -- NULL for a value of an enumeration.
  number smallint,
  PRIMARY KEY (log_id, name, label_oid)
);
"
);
