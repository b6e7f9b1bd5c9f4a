//! What change tracking adds to the centre's own writes.
//!
//! The same statements (insert from another table, update of all rows, delete of all
//! rows) run on the table as it is, and on the table as it is after `deploy`.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use tidewater_purchase as purchase;

use crate::measure::{Samples, Spread, line};
use crate::processes::Centre;

const STATEMENTS: [(&str, &str); 3] = [
    ("insert", "INSERT INTO purchase SELECT * FROM source"),
    ("update", "UPDATE purchase SET cost = cost + 1"),
    ("delete", "DELETE FROM purchase"),
];

/// Prints microseconds a row for each statement, without and with tracking.
pub(crate) fn run(rows: i32, runs: usize) -> anyhow::Result<()> {
    println!("\nTracking: {rows} rows a statement, {runs} runs, microseconds a row");
    let centre = Centre::start()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (plain, tracked) = runtime.block_on(async {
        let plain = prepare(&centre.database("plain")?, rows).await?;
        let url = centre.database("tracked")?;
        let tracked = prepare(&url, rows).await?;
        centre.deploy(&url, "log", "both").await?;
        anyhow::Ok((plain, tracked))
    })?;
    let mut samples: [[Samples; 2]; 3] = Default::default();
    for _ in 0..runs {
        for (statement, samples) in STATEMENTS.iter().zip(&mut samples) {
            for (client, samples) in [&plain, &tracked].into_iter().zip(samples) {
                samples.add(runtime.block_on(execute(client, statement.1))?);
            }
        }
        for client in [&plain, &tracked] {
            runtime.block_on(execute(client, "VACUUM purchase"))?;
        }
    }
    for ((name, _), [plain, tracked]) in STATEMENTS.iter().zip(&samples) {
        line(
            &format!("{name}, no tracking"),
            &plain.micros_per_row(rows),
            "us",
        );
        line(
            &format!("{name}, tracked"),
            &tracked.micros_per_row(rows),
            "us",
        );
        let pairs = tracked.seconds().iter().zip(plain.seconds());
        let added = pairs.map(|(with, without)| (with - without) * 1e6 / f64::from(rows));
        line(
            &format!("{name}, added by tracking"),
            &Spread::from_values(added.collect()),
            "us",
        );
    }
    Ok(())
}

async fn prepare(url: &str, rows: i32) -> anyhow::Result<Client> {
    let client = tidewater_testing::postgres::connect(url).await?;
    client.batch_execute(purchase::postgres_schema()).await?;
    purchase::load_postgres(
        &client,
        purchase::purchases(purchase::FIRST_EMP_ID, 0..rows),
    )
    .await?;
    client
        .batch_execute(
            "CREATE TABLE source AS SELECT * FROM purchase ORDER BY emp_id, purch_id; \
             TRUNCATE purchase",
        )
        .await?;
    Ok(client)
}

async fn execute(client: &Client, statement: &str) -> anyhow::Result<Duration> {
    let start = Instant::now();
    client.batch_execute(statement).await?;
    Ok(start.elapsed())
}
