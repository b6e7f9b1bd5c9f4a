//! Copies of a database, and what goes on in a centre that was restored from one.

use rusqlite::Connection;

/// Copies a database with what is in its write-ahead log, as a backup does.
pub(crate) fn copy(from: &Connection, to: &std::path::Path) -> rusqlite::Result<()> {
    let to = to.to_string_lossy();
    from.execute("VACUUM INTO ?1", [to])?;
    Ok(())
}

/// The last number that the centre's audit has given.
pub(crate) fn audit_number(centre: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'audit'";
    centre.query_row(sql, [], |row| row.get(0))
}

/// What a restored centre's audit writes down comes after all that was written down before,
/// also after what is forgotten: judges ask what came since.
pub(crate) fn number_audit_after(centre: &Connection, number: i64) -> rusqlite::Result<()> {
    centre.execute("DELETE FROM sqlite_sequence WHERE name = 'audit'", [])?;
    let sql = "INSERT INTO sqlite_sequence VALUES ('audit', ?1)";
    centre.execute(sql, [number]).map(drop)
}
