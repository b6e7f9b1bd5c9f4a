//! Following what is committed, on a connection of its own.
//!
//! A position is a snapshot. What has become visible since is what was running then or began later,
//! and both are found by the version of their entries: however long a transaction is open, nothing
//! is read twice for it, and nothing is skipped when it ends.

use futures_util::future::{join, join_all, join4};
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::PostgresPublications;
use super::connection::{DatabaseAddress, PostgresConnection};
use super::decoder::RowDecoder;
use super::publication::TableRule;
use super::values::PostgresType;
use super::watermark::snapshot;
use crate::column::PgColumn;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::follow::{CommittedChanges, LogChanges, logs};
use tidewater_centre::engine::publication::RowRule;
use tidewater_centre::engine::sql::served_table::log_column;
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::Partitions;

/// Not by reading a whole log, and not with processes that have to be started first, whatever the
/// planner believes of it: it plans for any position, and most are of a moment ago.
const SETTINGS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off;
  SET max_parallel_workers_per_gather = 0";

const NOW: &str = "SELECT pg_catalog.pg_current_snapshot()::text";

/// Where the snapshot is; whether logs do not go back to the oldest version `$2` that a position has
/// not seen, or the next version `$1` has not been reached: then this is another history.
const STATE: &str = "SELECT pg_catalog.pg_current_snapshot()::text,
  (SELECT log_floor > $2::text::xid8 FROM tidewater.history)
    OR pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) < $1::text::xid8";

/// The logs of which everything may have changed; [`SCOPES`] if users may hold other partitions.
const EVERYTHING: &str = "SELECT log_id FROM tidewater.everything
  WHERE version >= $1::text::xid8 OR version = ANY ($2::text[]::xid8[])
  UNION SELECT 0 FROM tidewater.scope_change WHERE version >= $1::text::xid8
  UNION SELECT 0 FROM tidewater.scope_change WHERE version = ANY ($2::text[]::xid8[])";

/// The number of no log.
const SCOPES: i64 = 0;

/// The connection, once somebody follows.
#[derive(Default)]
pub(super) struct Follower(Mutex<Option<PostgresConnection>>);

/// What a position has not seen: the versions that were running, and those from the next one on.
struct Unseen<'s> {
    oldest: &'s str,
    next: &'s str,
    running: Vec<&'s str>,
}

impl Unseen<'_> {
    /// By a snapshot; `None` for what is none.
    fn since(position: &[u8]) -> Option<Unseen<'_>> {
        let mut parts = snapshot(position)?.split(':');
        let (oldest, next) = (parts.next()?, parts.next()?);
        let running = parts.next()?.split(',').filter(|it| !it.is_empty());
        Some(Unseen {
            oldest,
            next,
            running: running.collect(),
        })
    }
}

/// A change log that is read.
struct FollowedLog<'s> {
    id: i64,
    rule: &'s RowRule,
    kinds: Vec<PostgresType>,
    statement: Statement,
}

impl Follower {
    /// See [`Database::follow`](tidewater_centre::engine::database::Database::follow).
    pub(super) async fn follow(
        &self,
        address: &DatabaseAddress,
        served: &PostgresPublications,
        since: Option<Vec<u8>>,
    ) -> Result<CommittedChanges, CentreError> {
        let mut kept = self.0.lock().await;
        let connection = match kept.take().filter(|it| !it.is_closed()) {
            Some(connection) => connection,
            None => open(address).await?,
        };
        let connection = kept.insert(connection);
        connection.enter().await?;
        let followed = read(connection, served, since).await;
        connection.leave(followed).await
    }
}

async fn open(address: &DatabaseAddress) -> Result<PostgresConnection, CentreError> {
    let connection = PostgresConnection::open(address).await?;
    let set = connection.client().batch_execute(SETTINGS).await;
    set.map_err(statement_failed("following changes"))?;
    Ok(connection)
}

async fn read(
    connection: &mut PostgresConnection,
    served: &PostgresPublications,
    since: Option<Vec<u8>>,
) -> Result<CommittedChanges, CentreError> {
    let following = statement_failed("following changes");
    let now = connection.prepare(NOW, &[]).await?;
    let now = connection.client().query_one(&now, &[]).await;
    let position = now.map_err(&following)?.get::<_, String>(0).into_bytes();
    let Some(since) = since.filter(|it| *it != position) else {
        return Ok(CommittedChanges {
            position,
            ..CommittedChanges::default()
        });
    };
    let unseen = Unseen::since(&since).ok_or_else(|| CentreError::Internal {
        message: "changes are followed from a position that is none".into(),
    })?;
    let mut logs = Vec::new();
    for (id, rule, table, place) in self::logs(served) {
        let of_table = &table.rules[place];
        logs.push(FollowedLog {
            id,
            rule,
            kinds: of_table.columns.iter().map(|it| it.kind).collect(),
            statement: connection.prepare(&entries(of_table), &[]).await?,
        });
    }
    let state = connection.prepare(STATE, &[]).await?;
    let everything = connection.prepare(EVERYTHING, &[]).await?;
    let (next, running) = (&unseen.next, &unseen.running);
    let new: [&(dyn ToSql + Sync); 2] = [next, running];
    let ends: [&(dyn ToSql + Sync); 2] = [next, &unseen.oldest];
    let client = connection.client();
    // One flight, and one snapshot.
    let (begun, (state, everything), entries, ended) = join4(
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        join(
            client.query_one(&state, &ends),
            client.query(&everything, &new),
        ),
        join_all(logs.iter().map(|log| client.query(&log.statement, &new))),
        client.batch_execute("COMMIT"),
    )
    .await;
    begun.map_err(&following)?;
    let state = state.map_err(&following)?;
    let everything = everything.map_err(&following)?;
    let is_lost = state.get::<_, Option<bool>>(1).unwrap_or(true);
    let everything: Vec<i64> = everything
        .iter()
        .map(|row| i64::from(row.get::<_, i32>(0)))
        .collect();
    let mut changes = CommittedChanges {
        position: state.get::<_, String>(0).into_bytes(),
        logs: Vec::new(),
        scopes: is_lost || everything.contains(&SCOPES),
    };
    for (log, rows) in logs.iter().zip(entries) {
        let rows = rows.map_err(&following)?;
        if is_lost || everything.contains(&log.id) {
            changes.logs.push((log.id, LogChanges::Everything));
        } else if !rows.is_empty() {
            let partitions = LogChanges::Partitions(partitions(log, &rows)?);
            changes.logs.push((log.id, partitions));
        }
    }
    ended.map_err(&following)?;
    Ok(changes)
}

/// The query for the partitions of a log's new entries, each once; for one row if everybody gets
/// the same.
fn entries(rule: &TableRule) -> String {
    let log = rule.log_table();
    let conditions = [
        "version >= $1::text::xid8",
        "version = ANY ($2::text[]::xid8[])",
    ];
    if rule.columns.is_empty() {
        let some = conditions.map(|it| format!("EXISTS (SELECT FROM {log} WHERE {it})"));
        return format!("SELECT WHERE {}", some.join(" OR "));
    }
    let columns = rule.columns.iter().enumerate().map(|(at, column)| {
        let PgColumn { kind, .. } = column;
        let read = match kind {
            // It has no equality.
            PostgresType::Json => "text",
            kind => kind.parameter().1,
        };
        format!("{}::{read}", log_column(at))
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let new = conditions.map(|it| format!("SELECT {columns} FROM {log} WHERE {it}"));
    new.join(" UNION ")
}

fn partitions(log: &FollowedLog<'_>, rows: &[Row]) -> Result<Partitions, CentreError> {
    let mut partitions = Partitions::new();
    let mut decoder = RowDecoder::new(log.kinds.iter().copied());
    for row in rows {
        let mut values = Vec::with_capacity(log.kinds.len());
        decoder.result(row, 0, &mut values)?;
        log.rule.take(None, &mut partitions, &values);
    }
    Ok(partitions)
}
