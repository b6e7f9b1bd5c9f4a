//! What PostgreSQL tells of other sessions. When the transactions of other users began is only known
//! to who may read all statistics.

use tidewater_centre::engine::sql::activity_sql::{ActivitySql, SightOfTransactions};

pub(super) const ACTIVITY: ActivitySql = ActivitySql {
    other_sessions: Some(OTHER_SESSIONS),
    load: Some(LOAD),
    blockers: Some(BLOCKERS),
    sight: Some(SightOfTransactions {
        asks: "SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')",
        grant: "GRANT pg_read_all_stats TO the role of the consolidated URL",
    }),
};

const OTHER_SESSIONS: &str = "
SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND pid <> pg_catalog.pg_backend_pid()
  AND backend_type = 'client backend'
  AND application_name = pg_catalog.current_setting('application_name')";

/// Of this database; a prepared transaction counts as an open one.
const LOAD: &str = "
SELECT (extract(epoch FROM least(
    (SELECT min(xact_start) FROM pg_catalog.pg_stat_activity
      WHERE datname = current_database() AND pid <> pg_catalog.pg_backend_pid()),
    (SELECT min(prepared) FROM pg_catalog.pg_prepared_xacts
      WHERE database = current_database()))) * 1000)::int8,
  (SELECT count(DISTINCT l.pid) FROM pg_catalog.pg_locks l
    JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    WHERE NOT l.granted AND a.datname = current_database())";

/// Who is in the way of a sync now, and those whom [`crate::waits`] remembers.
const BLOCKERS: &str = "
WITH waiting AS (
  SELECT w.pid FROM pg_catalog.pg_stat_activity w
  WHERE w.application_name = 'tidewater' AND w.datname = current_database()
    AND w.wait_event_type = 'Lock')
SELECT b.pid, coalesce(b.application_name, ''), coalesce(b.usename::text, ''),
  coalesce((extract(epoch FROM b.xact_start) * 1000)::int8, 0) AS since,
  coalesce(b.query, ''), ''
FROM pg_catalog.pg_stat_activity b
WHERE b.application_name <> 'tidewater' AND (
  b.pid IN (SELECT unnest(pg_catalog.pg_blocking_pids(w.pid)) FROM waiting w)
  OR b.xact_start IS NOT NULL AND EXISTS (SELECT FROM tidewater.blocker k
    WHERE k.holder = b.pid::text AND k.began = b.xact_start::text))
UNION ALL
SELECT 0, '', p.owner::text, (extract(epoch FROM p.prepared) * 1000)::int8, '', p.gid
FROM pg_catalog.pg_prepared_xacts p
WHERE p.database = current_database() AND EXISTS (SELECT FROM tidewater.blocker k
  WHERE k.holder = p.gid AND k.began = p.prepared::text)
ORDER BY since";
