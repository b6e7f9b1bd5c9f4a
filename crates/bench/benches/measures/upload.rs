//! The upload of inserted rows, against a binary COPY of the same rows into the same
//! table.

use tidewater_purchase as purchase;

use crate::copy;
use crate::measure::{Samples, goal, line, of_rates};
use crate::processes::{Centre, Fleet};

/// The rate, relative to COPY's, that the upload has to reach.
const GOAL: f64 = 0.7;

/// Prints microseconds a row and the ratio of rates, with tracking and without.
pub(crate) fn run(rows: i32, runs: usize) -> anyhow::Result<()> {
    for tracking in ["log", "off"] {
        println!("\nUpload, tracking {tracking:?}: {rows} inserts, {runs} runs");
        measure(tracking, rows, runs)?;
    }
    Ok(())
}

fn measure(tracking: &str, rows: i32, runs: usize) -> anyhow::Result<()> {
    let centre = Centre::start()?;
    let url = centre.database("upload")?;
    centre.load(&url, 0)?;
    let fleet = Fleet::start(&centre, &url, tracking, "both")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let client = runtime.block_on(tidewater_testing::postgres::connect(&url))?;
    let pieces = copy::encode(purchase::purchases(purchase::FIRST_EMP_ID, 0..rows));
    // What the runs before left behind would slow down the later ones.
    let reset = "TRUNCATE purchase; VACUUM; CHECKPOINT";

    let [mut copied, mut uploaded, mut cpu]: [Samples; 3] = Default::default();
    for run in 0..runs {
        batch(&runtime, &client, reset)?;
        copied.add(runtime.block_on(copy::copy(&client, &pieces))?);

        batch(&runtime, &client, reset)?;
        let file = format!("remote-{run}.db");
        fleet.sync(&file, &[])?;
        let remote = rusqlite::Connection::open(fleet.path(&file))?;
        purchase::load_sqlite(
            &remote,
            purchase::purchases(purchase::FIRST_EMP_ID, 0..rows),
        )?;
        drop(remote);
        let synced = fleet.sync(&file, &["--upload-only"])?;
        anyhow::ensure!(
            synced.report["uploaded"]["inserts"] == rows,
            "the upload is not complete: {}",
            synced.report
        );
        uploaded.add(synced.elapsed);
        cpu.add(synced.cpu);
    }
    line("binary COPY", &copied.micros_per_row(rows), "us a row");
    line("upload", &uploaded.micros_per_row(rows), "us a row");
    line(
        "of which processor time of the remote",
        &cpu.micros_per_row(rows),
        "us a row",
    );
    goal(
        "rate of the upload to that of COPY",
        &of_rates(&uploaded, &copied),
        GOAL,
    );
    Ok(())
}

/// `VACUUM` and `CHECKPOINT` refuse to share a transaction, so each statement goes alone.
fn batch(
    runtime: &tokio::runtime::Runtime,
    client: &tokio_postgres::Client,
    statements: &str,
) -> anyhow::Result<()> {
    for statement in statements.split(';') {
        runtime.block_on(client.batch_execute(statement))?;
    }
    Ok(())
}
