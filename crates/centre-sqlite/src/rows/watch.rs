//! What a transaction that is undone has changed, counted by temporary triggers.

use rusqlite::params;

use crate::connection::SqliteConnection;
use crate::quote;
use crate::tracking::literal;
use tidewater_centre::trying::ChangedTable;

/// The tables of the application.
const TABLES: &str = "SELECT name FROM main.sqlite_schema WHERE type = 'table'
    AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'
    AND sql NOT LIKE 'CREATE VIRTUAL%'";

/// Begins to count.
pub(super) fn begin(connection: &SqliteConnection) -> rusqlite::Result<()> {
    let tables: Vec<String> = {
        let mut select = connection.prepare(TABLES)?;
        let names = select.query_map([], |row| row.get(0))?;
        names.collect::<rusqlite::Result<_>>()?
    };
    connection.execute_batch("CREATE TEMP TABLE tidewater_tried (name TEXT, op INTEGER)")?;
    for (number, table) in tables.iter().enumerate() {
        for (op, event) in ["INSERT", "UPDATE", "DELETE"].iter().enumerate() {
            let sql = format!(
                "CREATE TEMP TRIGGER tidewater_tried_{number}_{op} AFTER {event} ON main.{} BEGIN
                     INSERT INTO tidewater_tried VALUES ({}, {op});
                 END",
                quote(table),
                literal(table),
            );
            connection.execute_batch(&sql)?;
        }
    }
    Ok(())
}

/// What was counted.
pub(super) fn changed(connection: &SqliteConnection) -> rusqlite::Result<Vec<ChangedTable>> {
    let mut select = connection.prepare(
        "SELECT name, sum(op = 0), sum(op = 1), sum(op = 2) FROM temp.tidewater_tried
         GROUP BY name ORDER BY name",
    )?;
    let count = |number: i64| number.unsigned_abs();
    let changed = select.query_map(params![], |row| {
        Ok(ChangedTable {
            table: row.get(0)?,
            inserted: count(row.get(1)?),
            updated: count(row.get(2)?),
            deleted: count(row.get(3)?),
        })
    })?;
    changed.collect()
}
