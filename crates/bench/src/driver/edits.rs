//! What the application of a remote does between two syncs: it writes into the file with SQLite.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rusqlite::{Connection, TransactionBehavior};
use tidewater_purchase::{Purchase, load_sqlite, purchases};

use crate::report::Operation;

/// Changes all rows of an employee; `times` tells how often they were updated before.
pub(super) fn edit(
    path: &Path,
    employee: i32,
    operation: Operation,
    rows: u32,
    times: u32,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    // The file is in no danger: the remotes of a load generator are thrown away.
    connection.pragma_update(None, "synchronous", false)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let changed = match operation {
        Operation::Update => {
            let mut row = Purchase::new(employee, 0);
            for _ in 0..=times {
                row = row.updated();
            }
            transaction.execute("UPDATE purchase SET cost = ?1", [row.cost()])? as u64
        }
        Operation::Delete => transaction.execute("DELETE FROM purchase", [])? as u64,
        Operation::Insert => load_sqlite(&transaction, purchases(employee, 0..rows as i32))?,
        Operation::Download | Operation::Empty | Operation::Upload => u64::from(rows),
    };
    transaction.commit().context("the remote's file")?;
    anyhow::ensure!(
        changed == u64::from(rows),
        "the file has {changed} rows to {}, and should have {rows}",
        operation.name()
    );
    Ok(())
}
