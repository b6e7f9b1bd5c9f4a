//! Numbers for the rows that the application inserts: what is left of them, and the triggers that
//! give them out.
//!
//! SQLite cannot be told which number it gives to a row, and a BEFORE trigger cannot change one.
//! So a table with numbers keeps its hidden rowid, its column may be NULL for a moment, and an
//! AFTER trigger puts the number in. The tracking triggers then see a row whose key was nobody's
//! and becomes this: they record an insert.

use rusqlite::{Connection, params};
use tidewater_protocol::message::NumberBlock;
use tidewater_protocol::{RemoteId, Table};

use super::quote;
use crate::error::{ErrorContext, RemoteError};

/// How many numbers a subscription has left, by table.
pub(super) fn left(
    connection: &Connection,
    subscription: i64,
) -> rusqlite::Result<Vec<(String, u64)>> {
    connection
        .prepare_cached(
            "SELECT table_name, sum(last - next + 1) FROM tidewater_identity_block \
             WHERE subscription = ?1 AND next <= last GROUP BY table_name",
        )?
        .query_map([subscription], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()))
        })?
        .collect()
}

/// Takes numbers that are this remote's from now on, each with its subscription; forgets those
/// that are used up. They are for the identity under which they were asked for.
pub(super) fn store(
    connection: &Connection,
    remote_id: Option<RemoteId>,
    blocks: &[(i64, NumberBlock)],
) -> Result<(), RemoteError> {
    let doing = "storing numbers";
    let store = || -> rusqlite::Result<()> {
        connection.execute("DELETE FROM tidewater_identity_block WHERE next > last", [])?;
        let mut insert = connection.prepare(
            "INSERT INTO tidewater_identity_block (subscription, table_name, next, last) \
             SELECT ?1, ?2, ?3, ?4 FROM tidewater_state WHERE remote_id IS ?5",
        )?;
        let remote_id = remote_id.map(|id| id.0);
        for (subscription, NumberBlock { table, first, last }) in blocks {
            insert.execute(params![subscription, table, first, last, remote_id])?;
        }
        Ok(())
    };
    store().doing(doing)
}

/// Forgets all numbers: they are another remote's, or a restored centre's that may hand them out
/// again.
pub(super) fn forget(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute("DELETE FROM tidewater_identity_block", [])
        .map(drop)
}

/// The name of the hidden rowid of a table that has numbers.
pub(super) fn rowid(table: &Table) -> &'static str {
    let is_free = |name: &&&str| {
        let mut columns = table.columns.iter();
        !columns.any(|column| column.name.eq_ignore_ascii_case(name))
    };
    let names = ["rowid", "_rowid_", "oid"];
    names.iter().find(is_free).unwrap_or(&"rowid")
}

/// Gives numbers to rows that came to have none while the triggers were gone, as far as there are
/// any.
pub(super) fn number_rows(connection: &Connection, table: &Table) -> Result<(), RemoteError> {
    let Some(column) = column(table) else {
        return Ok(());
    };
    let name = quote::name(&table.name);
    let number = format!(
        "UPDATE {name} SET {column} = (SELECT next FROM {next}) WHERE {rowid} = \
         (SELECT min({rowid}) FROM {name} WHERE {column} IS NULL) AND EXISTS (SELECT 1 FROM {next})",
        next = next(table),
        rowid = rowid(table),
    );
    let used = "UPDATE tidewater_identity_block SET next = next + 1 WHERE id = \
                (SELECT id FROM tidewater_identity_block WHERE table_name = ?1 AND next <= last \
                ORDER BY next LIMIT 1)";
    let doing = "numbering rows";
    pass_over_taken(connection, table).doing(doing)?;
    while connection.execute(&number, []).doing(doing)? > 0 {
        connection.execute(used, [&table.name]).doing(doing)?;
        pass_over_taken(connection, table).doing(doing)?;
    }
    Ok(())
}

/// Passes over the next numbers as long as rows have them: somebody has chosen these in the centre.
pub(super) fn pass_over_taken(connection: &Connection, table: &Table) -> rusqlite::Result<()> {
    match column(table) {
        Some(column) => connection.execute(&pass_over(table, &column), []).map(drop),
        None => Ok(()),
    }
}

/// The statement that moves each block behind the rows that have its next numbers. It is part of a
/// trigger, where SQLite takes no WITH.
fn pass_over(table: &Table, column: &str) -> String {
    let name = quote::name(&table.name);
    format!(
        "UPDATE tidewater_identity_block SET next = (SELECT t.{column} + 1 FROM {name} t \
         WHERE t.{column} >= tidewater_identity_block.next AND NOT EXISTS \
         (SELECT 1 FROM {name} n WHERE n.{column} = t.{column} + 1) ORDER BY t.{column} LIMIT 1) \
         WHERE table_name = {} AND next <= last AND EXISTS \
         (SELECT 1 FROM {name} t WHERE t.{column} = tidewater_identity_block.next)",
        quote::text(&table.name)
    )
}

/// The column that has numbers, in SQL.
pub(super) fn column(table: &Table) -> Option<String> {
    let identity = table.identity?;
    Some(quote::name(&table.columns[identity.column].name))
}

/// The next number, as a relation of one row or none.
fn next(table: &Table) -> String {
    format!(
        "(SELECT next FROM tidewater_identity_block WHERE table_name = {} AND next <= last \
         ORDER BY next LIMIT 1)",
        quote::text(&table.name)
    )
}

/// The body of the trigger that gives a number to a new row.
pub(super) fn give(table: &Table, column: &str) -> String {
    let told = format!(
        "table \"{}\" has no numbers left for {}: sync to get more",
        table.name, column
    );
    format!(
        "  {};\n  SELECT RAISE(ABORT, {}) WHERE NOT EXISTS (SELECT 1 FROM {next});\n  \
         UPDATE {} SET {column} = (SELECT next FROM {next}) WHERE {rowid} = NEW.{rowid};\n",
        pass_over(table, column),
        quote::text(&told),
        quote::name(&table.name),
        next = next(table),
        rowid = rowid(table),
    )
}

/// The body of the triggers that note that a number of ours is used, whoever chose it.
pub(super) fn used(table: &Table, column: &str) -> String {
    format!(
        "  UPDATE tidewater_identity_block SET next = NEW.{column} + 1 WHERE table_name = {} \
         AND next <= NEW.{column} AND last >= NEW.{column};\n",
        quote::text(&table.name)
    )
}

/// The body of the trigger that keeps a number from being taken away.
pub(super) fn keep(table: &Table, column: &str) -> String {
    let told = format!("NOT NULL constraint failed: {}.{column}", table.name);
    format!("  SELECT RAISE(ABORT, {});\n", quote::text(&told))
}
