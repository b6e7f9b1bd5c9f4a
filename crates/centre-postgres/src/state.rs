//! The server's state in the schema `tidewater`: its tables and their format.

/// The schema that holds everything of ours but the triggers.
pub(super) const SCHEMA: &str = "tidewater";

/// The key of the advisory lock that deploying and pruning take: "tidewate" in ASCII.
pub(super) const ADVISORY_LOCK: i64 = 0x7469_6465_7761_7465;

/// Where this database is, as SQL: this very schema in this very database. Transaction ids
/// mean nothing anywhere else, so marks that came with a dump prove nothing.
macro_rules! place {
    () => {
        "(SELECT concat_ws('/', s.system_identifier, d.oid, 'tidewater.history'::regclass::oid) \
         FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d \
         WHERE d.datname = current_database())"
    };
}
pub(super) const PLACE: &str = place!();

/// Makes the schema.
pub(super) const SCHEMA_DDL: &str = "
CREATE SCHEMA tidewater;
COMMENT ON SCHEMA tidewater IS 'Tidewater: state of the sync server. Removed by: tidewater undeploy';
";

/// Makes the tables of the change logs.
pub(super) const LOGS: &str = concat!(
    "
-- Every sync writes its row anew.
ALTER TABLE tidewater.subscription SET (fillfactor = 50);
CREATE TABLE tidewater.history (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  -- No log has complete entries of versions below this.
  log_floor xid8 NOT NULL,
  -- Where the database is.
  place text NOT NULL
);
INSERT INTO tidewater.history (log_floor, place) VALUES ('0', '');
UPDATE tidewater.history SET place = ",
    place!(),
    ";
-- Registry of change logs: one for each table, the way to the table that decides, and that one's
-- partition columns.
CREATE TABLE tidewater.change_log (
  id integer PRIMARY KEY,
  table_oid oid NOT NULL,
  table_name text NOT NULL,
  partition_columns text[] NOT NULL,
  -- The tables above it that its rule follows; they have triggers, too.
  above oid[] NOT NULL,
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
-- Writes to tables that partition queries read: users may hold other partitions since. Whoever
-- follows them comes within seconds.
CREATE TABLE tidewater.scope_change (
  version xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX scope_change_versions ON tidewater.scope_change (version);
CREATE FUNCTION tidewater.note_scope_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp
  AS $tidewater$ BEGIN INSERT INTO tidewater.scope_change DEFAULT VALUES; RETURN NULL; END $tidewater$;
REVOKE ALL ON FUNCTION tidewater.note_scope_change() FROM PUBLIC;
CREATE TABLE tidewater.mark (
  id bytea PRIMARY KEY,
  created_ms bigint NOT NULL
);
-- At this time, all transactions below the first one had ended, and from the second one on none had
-- begun.
CREATE TABLE tidewater.horizon (
  at_ms bigint NOT NULL,
  oldest_running xid8 NOT NULL,
  next_to_begin xid8 NOT NULL
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
-- Transactions that have kept syncs waiting: the session's process, or the name of one that is
-- prepared, and when it began or was prepared.
CREATE TABLE tidewater.blocker (
  holder text PRIMARY KEY,
  began text NOT NULL,
  at_ms bigint NOT NULL
);
-- Change logs that do not see everything: their tables are sent whole.
CREATE TABLE tidewater.untracked (
  log_id integer PRIMARY KEY
);
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
