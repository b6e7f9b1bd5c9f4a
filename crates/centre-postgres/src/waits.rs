//! Locks that other sessions and prepared transactions hold: how long a sync waits for them, and who holds them.
//!
//! A sync waits for some time and is then sent away, so that a transaction of an application that
//! is left open takes no worker for long. For a while after that the others do not wait as long.
//! Who is in the way is looked up while a sync waits and remembered, because at the moment in which
//! somebody asks for the status nobody may be waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::PostgresShared;
use super::connection::PATIENCE_MS;
use super::dialect::HURRIED_MS;
use crate::driver_error::statement_failed;
use tidewater_centre::error::CentreError;

/// How long after that.
const HURRY_FOR_MS: u64 = 5_000;

/// A sync that takes longer may be waiting for somebody.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// When syncs have waited.
#[derive(Debug)]
pub(super) struct SyncWaits {
    /// The last one that has waited in vain for as long as any does.
    in_vain_ms: AtomicI64,
}

impl Default for SyncWaits {
    fn default() -> SyncWaits {
        SyncWaits {
            in_vain_ms: AtomicI64::new(i64::MIN),
        }
    }
}

impl SyncWaits {
    /// How long a sync that begins now waits for a lock.
    pub(super) fn patience_ms(&self, now_ms: i64) -> u64 {
        let in_vain_ms = self.in_vain_ms.load(Ordering::Relaxed);
        match in_vain_ms.abs_diff(now_ms) < HURRY_FOR_MS {
            true => HURRIED_MS,
            false => PATIENCE_MS,
        }
    }

    /// A sync has waited in vain.
    pub(super) fn in_vain(&self, now_ms: i64) {
        if self.patience_ms(now_ms) == PATIENCE_MS {
            self.in_vain_ms.store(now_ms, Ordering::Relaxed);
        }
    }
}

/// Does what a sync does on a backend, and looks for who is in the way if that takes long.
pub(super) async fn watched<T>(
    shared: &Arc<PostgresShared>,
    backend: i32,
    now_ms: i64,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = tokio::time::sleep(LOOK_AFTER) => {}
    }
    let shared = shared.clone();
    // The work does not wait for it.
    tokio::spawn(async move {
        if let Err(error) = note(&shared, backend, now_ms).await {
            tracing::debug!(%error, "who holds a lock is not known");
        }
    });
    work.await
}

/// Who is in the way of the backend `$1`. A prepared transaction has no process: PostgreSQL tells 0 for
/// it, and among its locks is that on its own number.
const BLOCKING: &str = "
SELECT b.pid::text, b.pid, b.application_name, coalesce(b.usename::text, ''),
  coalesce(b.xact_start::text, ''), ''
FROM unnest(pg_catalog.pg_blocking_pids($1)) AS p (pid)
JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid AND b.application_name <> 'tidewater'
UNION ALL
SELECT p.gid, 0, '', p.owner::text, p.prepared::text, p.gid FROM pg_catalog.pg_prepared_xacts p
WHERE 0 = ANY(pg_catalog.pg_blocking_pids($1)) AND EXISTS (SELECT FROM pg_catalog.pg_locks w
  JOIN pg_catalog.pg_locks h ON (h.locktype, h.database, h.relation, h.page, h.tuple, h.transactionid,
      h.classid, h.objid, h.objsubid) IS NOT DISTINCT FROM
    (w.locktype, w.database, w.relation, w.page, w.tuple, w.transactionid,
      w.classid, w.objid, w.objsubid)
  JOIN pg_catalog.pg_locks x ON x.virtualtransaction = h.virtualtransaction AND x.pid IS NULL
  WHERE w.pid = $1 AND NOT w.granted AND h.granted AND h.pid IS NULL
    AND x.locktype = 'transactionid' AND x.transactionid = p.transaction)";

async fn note(shared: &PostgresShared, backend: i32, now_ms: i64) -> Result<(), CentreError> {
    let error = |error| statement_failed("looking who holds a lock")(error);
    let mut connection = shared.pool.get().await?;
    let blocking = connection.prepare(BLOCKING, &[]).await?;
    let client = connection.client();
    let found = client.query(&blocking, &[&backend]).await.map_err(error)?;
    for row in found {
        let (holder, process, began): (String, i32, String) = (row.get(0), row.get(1), row.get(4));
        // Without its statement, which may hold what nobody wants in a log.
        tracing::warn!(
            process,
            application = row.get::<_, &str>(2),
            user = row.get::<_, &str>(3),
            since = began,
            prepared = row.get::<_, &str>(5),
            "a sync waits for a lock that another session, or a prepared transaction, holds"
        );
        let remember =
            "WITH old AS (DELETE FROM tidewater.blocker WHERE at_ms < $3::bigint - 86400000)
             INSERT INTO tidewater.blocker (holder, began, at_ms) VALUES ($1, $2, $3)
             ON CONFLICT (holder) DO UPDATE SET began = excluded.began, at_ms = excluded.at_ms";
        let remembered = client.execute(remember, &[&holder, &began, &now_ms]).await;
        remembered.map_err(error)?;
    }
    Ok(())
}
