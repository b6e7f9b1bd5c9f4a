//! Numbers for the rows that remotes insert.

use rusqlite::{Connection, OptionalExtension};

use super::quote;
use super::upstream::{self, BranchSubscription};
use tidewater_centre::engine::change_tracking::NumberBlockRequest;

/// Takes numbers above all that there are, and has the table's own go on behind them, where it
/// keeps its place (AUTOINCREMENT). The file has one writer at a time.
pub(super) fn take(
    connection: &Connection,
    asked: NumberBlockRequest<'_>,
    table: &str,
) -> rusqlite::Result<Vec<(i64, i64)>> {
    if BranchSubscription::read(connection)?.numbers(table, asked.column) {
        return upstream::take_numbers(connection, table, asked.count);
    }
    let sql = format!("SELECT max({}) FROM {}", quote(asked.column), quote(table));
    let highest: Option<i64> = connection.query_row(&sql, [], |row| row.get(0))?;
    let keeps_its_place = connection
        .prepare("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'")?
        .exists([])?;
    let place = match keeps_its_place {
        false => None,
        true => connection
            .query_row(
                "SELECT seq FROM sqlite_sequence WHERE name = ?1",
                [table],
                |row| row.get::<_, i64>(0),
            )
            .optional()?,
    };
    let before = [highest, place, Some(asked.handed_out)];
    let before = before.into_iter().flatten().max().unwrap_or(0);
    let last = before.saturating_add(i64::from(asked.count));
    if keeps_its_place {
        let moved = connection.execute(
            "UPDATE sqlite_sequence SET seq = ?2 WHERE name = ?1",
            (table, last),
        )?;
        if moved == 0 {
            connection.execute(
                "INSERT INTO sqlite_sequence (name, seq) SELECT name, ?2 FROM sqlite_schema
                 WHERE type = 'table' AND name = ?1 AND upper(sql) LIKE '%AUTOINCREMENT%'",
                (table, last),
            )?;
        }
    }
    Ok(match before < last {
        true => vec![(before + 1, last)],
        false => Vec::new(),
    })
}
