//! The remotes' SQLite alone: what any program has to do with these files to apply a download, or
//! to read what is pending and note that it is gone.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use rusqlite::{Connection, params};
use tidewater_purchase::{FIRST_EMP_ID, Purchase, purchases};

use super::Load;
use crate::report::TimedOperation;

/// What is pending, with what the row was before.
const CHANGES: &str = "CREATE TABLE change (emp_id INT NOT NULL, purch_id INT NOT NULL, \
     cust_id INT, cost TEXT, order_date TEXT, notes TEXT, PRIMARY KEY (emp_id, purch_id))";

/// A row as a remote has it.
struct Row(Purchase, String, String);

/// Seconds of each operation.
pub(super) fn measure(folder: &Path, load: Load, threads: usize) -> anyhow::Result<[f64; 4]> {
    let folder = tempfile::Builder::new()
        .prefix("limit-")
        .tempdir_in(folder)?;
    let rows = purchases(FIRST_EMP_ID, 0..load.rows as i32);
    let rows: Vec<Row> = rows
        .map(|row| {
            let (cost, date) = (row.cost(), row.order_date());
            Row(row, cost, date)
        })
        .collect();
    let at = |number: u32| folder.path().join(format!("{number}.db"));
    each(load, threads, |number| make(&at(number)))?;
    let mut seconds = [0.0; 4];
    for (operation, seconds) in TimedOperation::TIMED.into_iter().zip(&mut seconds) {
        each(load, threads, |number| edit(&at(number), operation, &rows))?;
        let start = Instant::now();
        each(load, threads, |number| match operation {
            TimedOperation::Download => apply(&at(number), &rows),
            _ => take(&at(number), rows.len()),
        })?;
        *seconds = start.elapsed().as_secs_f64();
    }
    Ok(seconds)
}

/// Does something with each remote, in so many threads.
fn each(
    load: Load,
    threads: usize,
    work: impl Fn(u32) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicU32::new(0);
    let one = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= load.remotes {
                return anyhow::Ok(());
            }
            work(number)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(one)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread failed"))??;
        }
        Ok(())
    })
}

fn open(path: &PathBuf) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    // As a remote's file is: what was committed stays when the power is lost.
    connection.pragma_update(None, "synchronous", "EXTRA")?;
    Ok(connection)
}

fn make(path: &PathBuf) -> anyhow::Result<()> {
    let connection = open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.execute_batch(tidewater_purchase::sqlite_schema())?;
    Ok(connection.execute_batch(CHANGES)?)
}

/// The application's part, and that of the triggers.
fn edit(path: &PathBuf, operation: TimedOperation, rows: &[Row]) -> anyhow::Result<()> {
    let connection = open(path)?;
    connection.execute_batch("BEGIN")?;
    let seen = "INSERT INTO change SELECT * FROM purchase";
    match operation {
        TimedOperation::Update => {
            connection.execute(seen, [])?;
            connection.execute("UPDATE purchase SET cost = '123456790.120000'", [])?;
        }
        TimedOperation::Delete => {
            connection.execute(seen, [])?;
            connection.execute("DELETE FROM purchase", [])?;
        }
        TimedOperation::Insert => {
            write(&connection, rows)?;
            let keys =
                "INSERT INTO change (emp_id, purch_id) SELECT emp_id, purch_id FROM purchase";
            connection.execute(keys, [])?;
        }
        _ => {}
    }
    Ok(connection.execute_batch("COMMIT")?)
}

/// What has come down.
fn apply(path: &PathBuf, rows: &[Row]) -> anyhow::Result<()> {
    let connection = open(path)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    write(&connection, rows)?;
    Ok(connection.execute_batch("COMMIT")?)
}

fn write(connection: &Connection, rows: &[Row]) -> anyhow::Result<()> {
    let mut upsert = connection.prepare(
        "INSERT INTO purchase VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (emp_id, purch_id) \
         DO UPDATE SET cust_id = excluded.cust_id, cost = excluded.cost, \
         order_date = excluded.order_date, notes = excluded.notes",
    )?;
    for Row(row, cost, date) in rows {
        let (emp_id, purch_id, cust_id) = (row.emp_id, row.purch_id, row.cust_id);
        upsert.execute(params![emp_id, purch_id, cust_id, cost, date, row.notes])?;
    }
    Ok(())
}

/// What goes up, and is pending no longer.
fn take(path: &PathBuf, rows: usize) -> anyhow::Result<()> {
    let connection = open(path)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let mut count = 0;
    {
        let mut select = connection.prepare(
            "SELECT change.*, purchase.* FROM change LEFT JOIN purchase \
             ON purchase.emp_id = change.emp_id AND purchase.purch_id = change.purch_id",
        )?;
        let mut found = select.query([])?;
        while let Some(row) = found.next()? {
            for column in 0..12 {
                std::hint::black_box(row.get_ref(column)?);
            }
            count += 1;
        }
    }
    anyhow::ensure!(count == rows, "SQLite alone: {count} changes, not {rows}");
    connection.execute("DELETE FROM change", [])?;
    Ok(connection.execute_batch("COMMIT")?)
}
