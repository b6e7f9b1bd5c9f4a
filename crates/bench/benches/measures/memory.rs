//! Peak memory of a server and a remote that move a large table.

use tidewater_purchase as purchase;

use crate::processes::{Centre, Fleet, Peak};

const REMOTE_GOAL_MIB: u64 = 64;
const SERVER_GOAL_MIB: u64 = 256;

/// Prints the peaks of a first download and of an upload of all rows.
pub(crate) fn run(rows: i32) -> anyhow::Result<()> {
    println!("\nPeak memory: {rows} rows");
    let centre = Centre::start()?;

    let url = centre.database("download")?;
    centre.load(&url, rows)?;
    let fleet = Fleet::start(&centre, &url, "log", "both")?;
    let synced = fleet.sync("remote.db", &[])?;
    report("first download", synced.peak, fleet.stop()?);

    let url = centre.database("upload")?;
    centre.load(&url, 0)?;
    let fleet = Fleet::start(&centre, &url, "log", "both")?;
    fleet.sync("remote.db", &[])?;
    let remote = rusqlite::Connection::open(fleet.path("remote.db"))?;
    purchase::load_sqlite(
        &remote,
        purchase::purchases(purchase::FIRST_EMP_ID, 0..rows),
    )?;
    drop(remote);
    let synced = fleet.sync("remote.db", &[])?;
    report("upload", synced.peak, fleet.stop()?);
    Ok(())
}

fn report(what: &str, remote: Peak, server: Peak) {
    for (who, peak, goal) in [
        ("remote", remote, REMOTE_GOAL_MIB),
        ("server", server, SERVER_GOAL_MIB),
    ] {
        let mib = peak.kib.div_ceil(1024);
        let verdict = if mib < goal { "met" } else { "NOT met" };
        println!(
            "  {:<58} {mib} MiB; goal below {goal}: {verdict}",
            format!("{what}, {who}")
        );
    }
}
