//! Dropping what is older than its retention time, in pieces: nobody waits long for it, and what
//! does not get done now, the next call does.

use super::connection::{DatabaseConnection, SystemStatement};
use super::sql::system::{
    conflicts, given_back, incidents, once_keys, refusals, row_writers, scope_pieces,
    settled_refusals, signing_keys, sync_history,
};
use super::state::check;
use crate::engine::change_tracking::{ChangeTracking, PruningStart};
use crate::error::CentreError;
use crate::records::{GIVEN_BACK_KEPT_MS, PruneReport, RetentionTimes};

type Result<T> = std::result::Result<T, CentreError>;

/// How many rows one statement removes.
const ROWS_AT_ONCE: i64 = 20_000;

/// The pieces of a table: those older than a time, no more than so many of them.
type Piece = fn(i64, i64) -> SystemStatement;

/// See [`crate::Centre::prune`].
pub(super) async fn prune<T: ChangeTracking>(
    connection: &mut T::Connection,
    retention: RetentionTimes,
    now_ms: i64,
    random: [u8; 16],
) -> Result<PruneReport> {
    let mut pruned = PruneReport::default();
    if !check::<T>(connection).await? {
        return Ok(pruned);
    }
    let start = T::begin_pruning(connection).await?;
    if start == PruningStart::Elsewhere {
        return Ok(pruned);
    }
    let done = pieces::<T>(connection, retention, now_ms, random, &mut pruned).await;
    match done {
        Ok(()) if start == PruningStart::InTransaction => connection.commit().await?,
        Err(error) if start == PruningStart::GivingWay && is_in_the_way(&error) => {}
        done => done?,
    }
    Ok(pruned)
}

/// Whether somebody else writes: what was not pruned, is the next time.
fn is_in_the_way(error: &CentreError) -> bool {
    error.is_retryable() || matches!(error, CentreError::Locked { .. })
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
    let kept = before(retention.conflicts_ms);
    let logs = before(retention.log_ms);
    let given_back_ms = before(GIVEN_BACK_KEPT_MS);
    let (history_rows, conflict_rows) = (&mut pruned.history, &mut pruned.conflicts);
    older(connection, sync_history::prune, history, history_rows).await?;
    older(connection, incidents::prune, history, history_rows).await?;
    older(connection, conflicts::prune, kept, conflict_rows).await?;
    older(connection, refusals::prune, kept, conflict_rows).await?;
    older(connection, settled_refusals::prune, kept, conflict_rows).await?;
    older(connection, given_back::prune, given_back_ms, &mut 0).await?;
    older(connection, signing_keys::prune, logs, &mut 0).await?;
    older(connection, once_keys::prune, logs, &mut 0).await?;
    older(connection, row_writers::prune, logs, &mut 0).await?;
    older(connection, scope_pieces::prune, logs, &mut 0).await?;
    T::prune_logs(connection, logs, now_ms, random, &mut pruned.log_entries).await
}

/// Removes rows in pieces, adding to the count.
async fn older(
    connection: &mut impl DatabaseConnection,
    piece: Piece,
    before_ms: i64,
    count: &mut u64,
) -> Result<()> {
    loop {
        let delete = piece(before_ms, ROWS_AT_ONCE);
        let rows = connection.run_one("pruning", delete).await?.changed;
        *count += rows;
        if rows < ROWS_AT_ONCE as u64 {
            return Ok(());
        }
    }
}
