//! What else goes on in the database: other sessions, and who holds locks.

use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::{DatabaseConnection as _, ResultRow, StatementResult, system_sql};
use crate::engine::scope_query::wrong;
use crate::error::CentreError;
use crate::records::BlockingTransaction;

type Result<T> = std::result::Result<T, CentreError>;

/// See [`crate::Centre::other_sessions`].
pub(super) async fn count_other_sessions<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<u64> {
    let Some(sql) = T::dialect().activity().other_sessions else {
        return Ok(0);
    };
    let answer = connection.run_one("looking for other sessions", system_sql!(sql));
    first(&answer.await?, |row| row.get(0)).map(Option::unwrap_or_default)
}

/// When the oldest transaction that is open began, and how many sessions wait for a lock.
pub(super) async fn read_load<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<(Option<i64>, Option<u64>)> {
    let Some(sql) = T::dialect().activity().load else {
        return Ok((None, None));
    };
    let answer = connection.run_one("reading the figures", system_sql!(sql));
    let load = first(&answer.await?, |row| Ok((row.get(0)?, Some(row.get(1)?))))?;
    Ok(load.unwrap_or_default())
}

/// See [`crate::records::CentreStatus::blockers`].
pub(super) async fn read_blockers<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<Vec<BlockingTransaction>> {
    let Some(sql) = T::dialect().activity().blockers else {
        return Ok(Vec::new());
    };
    let answer = connection.run_one("reading the status", system_sql!(sql));
    let answer = answer.await?;
    let blockers = answer.rows.iter().map(|row| {
        Ok(BlockingTransaction {
            process: row.get(0)?,
            application: row.get(1)?,
            user: row.get(2)?,
            since_ms: row.get(3)?,
            statement: row.get(4)?,
            prepared: row.get(5)?,
        })
    });
    blockers.collect()
}

/// Checks that it can be told up to when everything is visible that was written, by
/// [`safe_until`](super::download::OpenedSubscription::safe_until).
pub(super) async fn check_safe_time<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<()> {
    let Some(sight) = T::dialect().activity().sight else {
        return Ok(());
    };
    let asked = system_sql!(sight.asks);
    let answer = connection.run_one("looking what the server's role may see", asked);
    if first(&answer.await?, |row| row.get(0))?.unwrap_or(false) {
        return Ok(());
    }
    let what = "needs to see when other sessions' transactions began, which this role may not: rows \
                that are committed late would be missing on remotes";
    Err(wrong("download_cursor", what, sight.grant))
}

fn first<T>(
    answer: &StatementResult,
    read: impl FnOnce(&ResultRow) -> Result<T>,
) -> Result<Option<T>> {
    answer.rows.first().map(read).transpose()
}
