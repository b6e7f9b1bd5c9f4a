//! What the application of a remote does between two syncs: it writes into the file with SQLite.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, TransactionBehavior, params_from_iter};
use tidewater_purchase::{Purchase, load_sqlite, purchases};

use crate::gate::{Cell, PendingTable};
use crate::own::{MultipliedChanges, is_in};
use crate::report::TimedOperation;
use crate::sql_name::quoted;

/// Changes all rows of an employee; `times` tells how often they were updated before.
pub(crate) fn edit(
    path: &Path,
    employee: i32,
    operation: TimedOperation,
    rows: u32,
    times: u32,
) -> anyhow::Result<()> {
    let mut connection = open(path)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let changed = match operation {
        TimedOperation::Update => {
            let mut row = Purchase::new(employee, 0);
            for _ in 0..=times {
                row = row.updated();
            }
            transaction.execute("UPDATE purchase SET cost = ?1", [row.cost()])? as u64
        }
        TimedOperation::Delete => transaction.execute("DELETE FROM purchase", [])? as u64,
        TimedOperation::Insert => load_sqlite(&transaction, purchases(employee, 0..rows as i32))?,
        TimedOperation::Download | TimedOperation::Empty | TimedOperation::Upload => {
            u64::from(rows)
        }
    };
    transaction.commit().context("the remote's file")?;
    anyhow::ensure!(
        changed == u64::from(rows),
        "the file has {changed} rows to {}, and should have {rows}",
        operation.name()
    );
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    // The file is in no danger: the remotes of a load generator are thrown away.
    connection.pragma_update(None, "synchronous", false)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    Ok(connection)
}

/// Does what was pending in another file, as the remote with this number does it, one of so many.
pub(super) fn replay(
    path: &Path,
    tables: &[PendingTable],
    number: u32,
    remotes: u32,
) -> anyhow::Result<()> {
    let mut connection = open(path)?;
    let multiplied = MultipliedChanges::in_file(tables, &connection, number, remotes)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for table in tables {
        let name = quoted(&table.name);
        let is_key = |index: &usize| table.key.contains(index);
        let key = |first: usize| {
            let columns = table.key.iter().zip(first..);
            let columns =
                columns.map(|(&it, at)| format!("{} = ?{at}", quoted(&table.columns[it])));
            columns.collect::<Vec<_>>().join(" AND ")
        };
        let columns: Vec<String> = table.columns.iter().map(|it| quoted(it)).collect();
        if !table.inserts.is_empty() {
            let marks = vec!["?"; columns.len()].join(", ");
            let sql = format!(
                "INSERT INTO {name} ({}) VALUES ({marks})",
                columns.join(", ")
            );
            let mut insert = transaction.prepare(&sql)?;
            for row in &table.inserts {
                let row = multiplied.insert(table, row);
                // A row of references to what was there before is made once.
                if !is_in(table, &row, &transaction)? {
                    insert.execute(params_from_iter(row))?;
                }
            }
        }
        let others: Vec<usize> = (0..columns.len()).filter(|it| !is_key(it)).collect();
        if !table.updates.is_empty() && !others.is_empty() {
            let sets = others.iter().zip(1..);
            let sets = sets.map(|(&it, at)| format!("{} = ?{at}", columns[it]));
            let sets = sets.collect::<Vec<_>>().join(", ");
            let sql = format!("UPDATE {name} SET {sets} WHERE {}", key(others.len() + 1));
            let mut update = transaction.prepare(&sql)?;
            for row in &table.updates {
                let values = others.iter().chain(&table.key).map(|&it| &row[it]);
                update.execute(params_from_iter(values))?;
            }
        }
        if !table.deletes.is_empty() {
            let sql = format!("DELETE FROM {name} WHERE {}", key(1));
            let mut delete = transaction.prepare(&sql)?;
            for row in &table.deletes {
                delete.execute(params_from_iter(row))?;
            }
        }
    }
    Ok(transaction.commit()?)
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Integer(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Real(number) => ToSqlOutput::Owned(Value::Real(*number)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Cell::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
