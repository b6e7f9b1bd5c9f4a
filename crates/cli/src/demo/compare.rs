//! The proof at the end of the demonstration: each remote against the centre, row for
//! row, restricted to the remote's partitions.

use rusqlite::Connection;
use rusqlite::types::Value;

use super::world::{TABLES, Technician};

/// What a comparison came to.
#[derive(Default)]
pub(super) struct Comparison {
    /// Rows that are the same on both sides.
    pub(super) equal: u64,
    /// Rows of one side that the other does not have so; each with its table.
    pub(super) different: Vec<String>,
}

/// Compares every published table. `refused` rows of `part_used` are left aside: they
/// are on the remote only, and marked there.
pub(super) fn compare(
    centre: &Connection,
    remote: &Connection,
    technician: &Technician,
) -> rusqlite::Result<Comparison> {
    let mut comparison = Comparison::default();
    for (table, columns) in TABLES {
        let regions: Vec<String> = technician
            .regions
            .iter()
            .map(|region| format!("'{region}'"))
            .collect();
        let scope = match table {
            "product" => String::new(),
            _ => format!(" WHERE region IN ({})", regions.join(", ")),
        };
        let sql = format!("SELECT {columns} FROM {table}{scope} ORDER BY 1, 2");
        let ours = rows(centre, &sql)?;
        // Everything that the remote holds, also what it should not.
        let sql = format!("SELECT {columns} FROM {table} ORDER BY 1, 2");
        let theirs = rows(remote, &sql)?;
        let only = |left: &[Vec<Value>], right: &[Vec<Value>], side: &str| {
            let missing = left.iter().filter(|row| !right.contains(row));
            missing
                .map(|row| format!("{table}: only {side}: {row:?}"))
                .collect::<Vec<_>>()
        };
        let missing = only(&ours, &theirs, "in the centre");
        comparison.equal += (ours.len() - missing.len()) as u64;
        comparison.different.extend(missing);
        comparison
            .different
            .extend(only(&theirs, &ours, "on the remote"));
    }
    Ok(comparison)
}

fn rows(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..columns)
            .map(|index| row.get(index).map(normal))
            .collect::<rusqlite::Result<Vec<_>>>()
    })?;
    rows.collect()
}

/// An SQLite centre stores decimals as numbers, a remote as text: both are compared as
/// numbers.
fn normal(value: Value) -> Value {
    match value {
        Value::Integer(integer) => Value::Real(integer as f64),
        Value::Text(text) => match text.parse::<f64>() {
            Ok(number) => Value::Real(number),
            Err(_) => Value::Text(text),
        },
        other => other,
    }
}
