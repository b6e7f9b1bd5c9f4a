//! The first download of a remote, against a prepared insert of the same rows.

use tidewater_purchase as purchase;

use crate::measure::{Samples, goal, line, of_rates, time};
use crate::processes::{Centre, Fleet};

/// The rate, relative to SQLite's own, that the first download has to reach.
const GOAL: f64 = 0.6;

/// Prints microseconds a row and the ratio of rates.
pub(crate) fn run(rows: i32, runs: usize) -> anyhow::Result<()> {
    println!("\nFirst download: {rows} rows, {runs} runs");
    let centre = Centre::start()?;
    let url = centre.database("download")?;
    centre.load(&url, rows)?;
    let fleet = Fleet::start(&centre, &url, "log", "both")?;
    let expected: Vec<_> = purchase::purchases(purchase::FIRST_EMP_ID, 0..rows).collect();

    let [mut insert, mut download, mut cpu]: [Samples; 3] = Default::default();
    for run in 0..runs {
        let plain = rusqlite::Connection::open(fleet.path(&format!("plain-{run}.db")))?;
        plain.execute_batch(purchase::sqlite_schema())?;
        let values = PreparedBatch::new(&expected);
        let ((), elapsed) = time(|| values.insert(&plain))?;
        insert.add(elapsed);

        let synced = fleet.sync(&format!("remote-{run}.db"), &[])?;
        anyhow::ensure!(
            synced.report["downloaded"]["upserts"] == rows,
            "the download is not complete: {}",
            synced.report
        );
        download.add(synced.elapsed);
        cpu.add(synced.cpu);
    }
    line(
        "SQLite, prepared insert, one transaction",
        &insert.micros_per_row(rows),
        "us a row",
    );
    line("first download", &download.micros_per_row(rows), "us a row");
    line(
        "of which processor time of the remote",
        &cpu.micros_per_row(rows),
        "us a row",
    );
    goal(
        "rate of the first download to that of the insert",
        &of_rates(&download, &insert),
        GOAL,
    );
    Ok(())
}

/// Rows with their text made beforehand: only SQLite's part is timed.
struct PreparedBatch {
    rows: Vec<(i32, i32, i32, String, String, String)>,
}

impl PreparedBatch {
    fn new(rows: &[purchase::Purchase]) -> PreparedBatch {
        let row = |row: &purchase::Purchase| {
            let (cost, date) = (row.cost(), row.order_date());
            (
                row.emp_id,
                row.purch_id,
                row.cust_id,
                cost,
                date,
                row.notes.clone(),
            )
        };
        PreparedBatch {
            rows: rows.iter().map(row).collect(),
        }
    }

    fn insert(&self, connection: &rusqlite::Connection) -> anyhow::Result<()> {
        connection.execute_batch("BEGIN")?;
        let mut insert = connection.prepare("INSERT INTO purchase VALUES (?, ?, ?, ?, ?, ?)")?;
        for (emp_id, purch_id, cust_id, cost, date, notes) in &self.rows {
            insert.execute(rusqlite::params![
                emp_id, purch_id, cust_id, cost, date, notes
            ])?;
        }
        connection.execute_batch("COMMIT")?;
        Ok(())
    }
}
