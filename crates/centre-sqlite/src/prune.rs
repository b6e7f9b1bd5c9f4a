//! Pruning change logs.

use std::time::Duration;

use prost::Message;
use rusqlite::{OptionalExtension, params};

use super::connection::SqliteConnection;
use super::watermark::{LogPositions, insert_mark};
use super::{failure, quote, state};
use tidewater_centre::engine::change_tracking::PruningStart;
use tidewater_centre::error::CentreError;

/// How many entries one transaction removes; writers wait that long.
const ENTRIES_AT_ONCE: i64 = 20_000;

/// The change logs: the table's name and the entries.
pub(super) fn log_sizes(connection: &SqliteConnection) -> Result<Vec<(String, u64)>, CentreError> {
    sizes(connection, "count(*)")
}

/// The same without counting: entries are numbered, and the oldest go first.
pub(super) fn about_log_sizes(
    connection: &SqliteConnection,
) -> Result<Vec<(String, u64)>, CentreError> {
    sizes(
        connection,
        "coalesce(max(id) - (SELECT min(id) FROM {log}) + 1, 0)",
    )
}

/// `size` is an expression; `{log}` stands for the log.
fn sizes(connection: &SqliteConnection, size: &str) -> Result<Vec<(String, u64)>, CentreError> {
    let counting = failure("counting the entries of change logs");
    let mut sizes = Vec::new();
    for log in state::logs(connection)? {
        let name = quote(&state::log_table(log));
        let size = size.replace("{log}", &name);
        let sql = format!(
            "SELECT table_name, (SELECT {size} FROM {name}) FROM tidewater_centre_change_log WHERE id = ?1"
        );
        let size = connection.query_row(&sql, [log], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))
        });
        sizes.push(size.map_err(counting)?);
    }
    sizes.sort();
    Ok(sizes)
}

/// Has the connection give way to other writers.
pub(super) fn begin(connection: &SqliteConnection) -> Result<PruningStart, CentreError> {
    let impatient = connection.busy_timeout(Duration::ZERO);
    impatient.map_err(failure("pruning"))?;
    Ok(PruningStart::GivingWay)
}

/// Drops entries of a log that say no more than later ones of the same key and partition; counts
/// them. Whoever has not seen the one that is dropped has not seen the one that stays.
fn compact(connection: &SqliteConnection, log: i64) -> Result<u64, CentreError> {
    let compacting = failure("compacting the change logs");
    let table = quote(&state::log_table(log));
    let columns: Vec<String> = connection
        .prepare(&format!("SELECT * FROM {table} LIMIT 0"))
        .map_err(compacting)?
        .column_names()
        .into_iter()
        .filter(|name| *name != "id")
        .map(quote)
        .collect();
    let superseded = format!(
        "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY {} ORDER BY id DESC) AS number
         FROM {table}) WHERE number > 1",
        columns.join(", ")
    );
    let mut statement = connection.prepare(&superseded).map_err(compacting)?;
    let ids = statement.query_map([], |row| row.get(0));
    let ids: Vec<i64> = ids.and_then(Iterator::collect).map_err(compacting)?;
    drop(statement);
    let delete = format!("DELETE FROM {table} WHERE id = ?1");
    for some in ids.chunks(ENTRIES_AT_ONCE as usize) {
        let transaction = connection.unchecked_transaction().map_err(compacting)?;
        let mut delete = transaction.prepare_cached(&delete).map_err(compacting)?;
        for id in some {
            delete.execute([id]).map_err(compacting)?;
        }
        drop(delete);
        transaction.commit().map_err(compacting)?;
    }
    Ok(ids.len() as u64)
}

/// Drops entries of change logs, and the marks that are of no more use.
///
/// Entries have no time of their own: a mark says how far each log was when it was
/// made, so everything up to the newest mark that is too old is too old as well. A
/// remote that has been idle keeps its mark as long as no log has passed it.
pub(super) fn logs(
    connection: &SqliteConnection,
    before_ms: i64,
    now_ms: i64,
    mark: [u8; 16],
    entries: &mut u64,
) -> Result<(), CentreError> {
    let pruning = failure("pruning the change logs");
    let newest: Option<i64> = connection
        .query_row("SELECT max(stamp) FROM tidewater_centre_mark", [], |row| {
            row.get(0)
        })
        .map_err(pruning)?;
    let mut stamp = 0;
    for log in state::logs(connection)? {
        stamp += state::log_position(connection, log)?;
    }
    if newest != Some(stamp) {
        insert_mark(connection, mark, now_ms)?;
    }
    for log in state::logs(connection)? {
        *entries += compact(connection, log)?;
    }
    let expired: Option<(i64, Vec<u8>)> = connection
        .query_row(
            "SELECT stamp, positions FROM tidewater_centre_mark WHERE created_ms < ?1
             ORDER BY stamp DESC LIMIT 1",
            [before_ms],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(pruning)?;
    let Some((stamp, positions)) = expired else {
        return Ok(());
    };
    let positions =
        LogPositions::decode(positions.as_slice()).map_err(|_| CentreError::Internal {
            message: "the positions of a mark cannot be read".into(),
        })?;
    let logs = state::logs(connection)?;
    for position in positions
        .logs
        .iter()
        .filter(|each| logs.contains(&each.log))
    {
        // The newest entry stays: its number must not be given out again.
        let last = state::log_position(connection, position.log)?;
        let floor = position.position.min(last - 1);
        // The floor first: who comes in between is sent everything.
        connection
            .execute(
                "UPDATE tidewater_centre_change_log SET floor = ?2 WHERE id = ?1 AND floor < ?2",
                params![position.log, floor],
            )
            .map_err(pruning)?;
        let table = quote(&state::log_table(position.log));
        let sql = format!(
            "DELETE FROM {table} WHERE id IN
                 (SELECT id FROM {table} WHERE id <= ?1 LIMIT {ENTRIES_AT_ONCE})"
        );
        loop {
            match connection.execute(&sql, [floor]).map_err(pruning)? {
                0 => break,
                rows => *entries += rows as u64,
            }
        }
    }
    connection
        .execute(
            "DELETE FROM tidewater_centre_mark WHERE created_ms < ?1 AND stamp < ?2",
            params![before_ms, stamp],
        )
        .map_err(pruning)?;
    Ok(())
}
