//! An SQLite file alone, as a consolidated database: prepared statements, one transaction a batch.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tidewater_purchase::{Purchase, purchases};

use super::Load;
use crate::driver::employee;
use crate::report::TimedOperation;

const IS_SEEN: &str = "emp_id = ?1 AND purch_id = ?2 AND cust_id IS ?3 AND cost IS ?4 \
     AND order_date IS ?5 AND notes IS ?6";

/// A row as texts, which the server gets from the network.
struct Row(Purchase, String, String, String);

impl Row {
    fn new(row: Purchase) -> Row {
        let (cost, date) = (row.cost(), row.order_date());
        let updated = row.clone().updated().cost();
        Row(row, cost, date, updated)
    }
}

/// Seconds of each operation.
pub(super) fn measure(path: &Path, load: Load) -> anyhow::Result<[f64; 4]> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    // As the server's connections are.
    connection.pragma_update(None, "synchronous", "FULL")?;
    run(&connection, load, TimedOperation::Insert)?;
    let mut seconds = [0.0; 4];
    for (operation, seconds) in TimedOperation::TIMED.into_iter().zip(&mut seconds) {
        *seconds = run(&connection, load, operation)?.as_secs_f64();
    }
    Ok(seconds)
}

fn run(connection: &Connection, load: Load, operation: TimedOperation) -> anyhow::Result<Duration> {
    let mut elapsed = Duration::ZERO;
    let mut done = 0;
    for remotes in load.batches() {
        let employees = remotes.map(employee);
        let of_one = |employee| purchases(employee, 0..load.rows as i32);
        let rows: Vec<Row> = match operation {
            TimedOperation::Download => Vec::new(),
            _ => employees.clone().flat_map(of_one).map(Row::new).collect(),
        };
        let start = Instant::now();
        connection.execute_batch("BEGIN")?;
        match operation {
            TimedOperation::Download => {
                for employee in employees {
                    done += read(connection, employee)?;
                }
            }
            _ => done += write(connection, operation, &rows)?,
        }
        connection.execute_batch("COMMIT")?;
        elapsed += start.elapsed();
    }
    anyhow::ensure!(
        done == load.all_rows(),
        "SQLite alone: {} of {done} rows, not of {}",
        operation.name(),
        load.all_rows()
    );
    Ok(elapsed)
}

fn read(connection: &Connection, employee: i32) -> anyhow::Result<u64> {
    let mut select = connection.prepare_cached(
        "SELECT emp_id, purch_id, cust_id, cost, order_date, notes FROM bench_limit \
         WHERE emp_id = ?1",
    )?;
    let mut rows = select.query([employee])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        for column in 0..6 {
            std::hint::black_box(row.get_ref(column)?);
        }
        count += 1;
    }
    Ok(count)
}

fn write(connection: &Connection, operation: TimedOperation, rows: &[Row]) -> anyhow::Result<u64> {
    let sql = match operation {
        TimedOperation::Update => format!("UPDATE bench_limit SET cost = ?7 WHERE {IS_SEEN}"),
        TimedOperation::Delete => format!("DELETE FROM bench_limit WHERE {IS_SEEN}"),
        _ => "INSERT INTO bench_limit VALUES (?1, ?2, ?3, ?4, ?5, ?6)".into(),
    };
    let mut statement = connection.prepare_cached(&sql)?;
    let mut count = 0;
    for Row(row, cost, date, updated) in rows {
        let (emp_id, purch_id, cust_id) = (row.emp_id, row.purch_id, row.cust_id);
        let notes = &row.notes;
        count += match operation {
            TimedOperation::Update => statement.execute(params![
                emp_id, purch_id, cust_id, cost, date, notes, updated
            ])?,
            // Deletes come after updates.
            TimedOperation::Delete => {
                statement.execute(params![emp_id, purch_id, cust_id, updated, date, notes])?
            }
            _ => statement.execute(params![emp_id, purch_id, cust_id, cost, date, notes])?,
        };
    }
    Ok(count as u64)
}
