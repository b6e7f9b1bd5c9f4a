//! Dropping what is older than its retention time, in pieces: nobody waits long for it, and what
//! does not get done now, the next call does.

use super::connection::{DatabaseConnection, system_sql};
use super::state::check;
use crate::engine::change_tracking::ChangeTracking;
use crate::error::CentreError;
use crate::records::{GIVEN_BACK_KEPT_MS, PruneReport, RetentionTimes};

type Result<T> = std::result::Result<T, CentreError>;

/// How many rows one statement removes.
const ROWS_AT_ONCE: i64 = 20_000;

/// The pieces of a table: those older than `?1`, no more than `?2` of them.
macro_rules! piece {
    ($table:literal, $key:literal, $time:literal) => {
        concat!(
            "DELETE FROM tidewater.",
            $table,
            " WHERE ",
            $key,
            " IN (SELECT ",
            $key,
            " FROM tidewater.",
            $table,
            " WHERE ",
            $time,
            " < ?1 LIMIT ?2)"
        )
    };
}

/// A signing key goes when it was superseded longer ago than a watermark can be of use.
const KEYS: &str = "DELETE FROM tidewater.signing_key WHERE id IN (
    SELECT k.id FROM tidewater.signing_key k WHERE EXISTS (
        SELECT 1 FROM tidewater.signing_key newer
        WHERE newer.id > k.id AND newer.created_ms < ?1) LIMIT ?2)";

/// One that waits for the operator stays.
const CONFLICTS: &str = "DELETE FROM tidewater.conflict WHERE id IN (
    SELECT id FROM tidewater.conflict
    WHERE at_ms < ?1 AND (outcome <> 'parked' OR settled_ms IS NOT NULL) LIMIT ?2)";

/// Keys go with the logs: whoever comes back later has been told to begin anew.
const ONCE: &str = "DELETE FROM tidewater.once WHERE (user_name, call_key) IN (
    SELECT user_name, call_key FROM tidewater.once WHERE at_ms < ?1 LIMIT ?2)";

/// Who comes later than that compares, and has no pending change of an older row.
const ROW_WRITERS: &str = "DELETE FROM tidewater.row_writer
    WHERE (publication, table_name, row_key) IN (
    SELECT publication, table_name, row_key FROM tidewater.row_writer WHERE at_ms < ?1 LIMIT ?2)";

/// See [`crate::Centre::prune`].
pub(super) async fn prune<T: ChangeTracking>(
    connection: &mut T::Connection,
    retention: RetentionTimes,
    now_ms: i64,
    random: [u8; 16],
) -> Result<PruneReport> {
    let mut pruned = PruneReport::default();
    if !check::<T>(connection).await? || !T::begin_pruning(connection).await? {
        return Ok(pruned);
    }
    let result = pieces::<T>(connection, retention, now_ms, random, &mut pruned).await;
    T::end_pruning(connection, result).await?;
    Ok(pruned)
}

async fn pieces<T: ChangeTracking>(
    connection: &mut T::Connection,
    retention: RetentionTimes,
    now_ms: i64,
    random: [u8; 16],
    pruned: &mut PruneReport,
) -> Result<()> {
    let before = |kept_ms: i64| now_ms.saturating_sub(kept_ms);
    let history = before(retention.history_ms);
    let conflicts = before(retention.conflicts_ms);
    let logs = before(retention.log_ms);
    let given_back = before(GIVEN_BACK_KEPT_MS);
    let (history_rows, conflict_rows) = (&mut pruned.history, &mut pruned.conflicts);
    older(
        connection,
        piece!("sync_history", "id", "started_ms"),
        history,
        history_rows,
    )
    .await?;
    older(
        connection,
        piece!("incident", "id", "at_ms"),
        history,
        history_rows,
    )
    .await?;
    older(connection, CONFLICTS, conflicts, conflict_rows).await?;
    older(
        connection,
        piece!("refused", "id", "at_ms"),
        conflicts,
        conflict_rows,
    )
    .await?;
    older(
        connection,
        piece!("settled_refusal", "id", "settled_ms"),
        conflicts,
        conflict_rows,
    )
    .await?;
    older(
        connection,
        piece!("given_back", "upload_id", "at_ms"),
        given_back,
        &mut 0,
    )
    .await?;
    older(connection, KEYS, logs, &mut 0).await?;
    older(connection, ONCE, logs, &mut 0).await?;
    older(connection, ROW_WRITERS, logs, &mut 0).await?;
    older(
        connection,
        piece!("scope_piece", "digest", "at_ms"),
        logs,
        &mut 0,
    )
    .await?;
    T::prune_logs(connection, logs, now_ms, random, &mut pruned.log_entries).await
}

/// Removes rows in pieces, adding to the count.
async fn older(
    connection: &mut impl DatabaseConnection,
    sql: &'static str,
    before_ms: i64,
    count: &mut u64,
) -> Result<()> {
    loop {
        let piece = system_sql!(sql, before_ms, ROWS_AT_ONCE);
        let rows = connection.run_one("pruning", piece).await?.changed;
        *count += rows;
        if rows < ROWS_AT_ONCE as u64 {
            return Ok(());
        }
    }
}
