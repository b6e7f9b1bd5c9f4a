//! Rows that arrived and could not be applied, and are asked for again.

use rusqlite::Connection;
use tidewater_protocol::Table;

/// Notes that a row must be asked for again.
pub(crate) fn mark_stale(
    connection: &Connection,
    table: &str,
    packed_key: &[u8],
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO tidewater_stale (table_name, key_packed) VALUES (?1, ?2) \
             ON CONFLICT DO NOTHING",
        )?
        .execute((table, packed_key))
        .map(drop)
}

/// The keys of a table's stale rows, packed, in their order.
pub(crate) fn stale_keys(connection: &Connection, table: &Table) -> rusqlite::Result<Vec<Vec<u8>>> {
    connection
        .prepare_cached(
            "SELECT key_packed FROM tidewater_stale WHERE table_name = ?1 ORDER BY key_packed",
        )?
        .query_map([&table.name], |found| found.get(0))?
        .collect()
}
