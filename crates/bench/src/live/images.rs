//! The first sync of a remote with many rows: by rows, and from an image that the server keeps.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tidewater_client::{ImageRequest, Remote, SyncOptions, begin_from_image};
use tidewater_purchase::FIRST_PURCH_ID;

use super::client::JobOutcome;
use super::report::{Goal, Unit};
use super::stage::{Stage, StageSetting};
use super::trial::{Figure, Of, Trial};
use crate::driver::{employee, user};
use crate::processes::GLANCE;
use crate::server::PUBLICATION;

/// The server makes it once, and it becomes older with every change.
const SECTIONS: &str = "
[images]
every = \"365d\"

[[images.image]]
name = \"bench\"
publication = \"bench\"
user = \"b0\"
public = true
";

/// Rows that have changed since the image was made, with each measurement some more.
const CHANGES: u32 = 10;

/// As long as that, the server may take to make the image.
const PATIENCE: Duration = Duration::from_secs(3_600);

const BY_ROWS: &str = "first sync by rows";
const RATE_BY_ROWS: &str = "rows a second, by rows";

pub(super) fn setting(rows: u32) -> StageSetting {
    StageSetting {
        sections: SECTIONS,
        employees: employee(0)..employee(1),
        purchases: rows,
        users: 1,
        remotes: 1,
    }
}

pub(super) fn trials(rows: u32) -> Vec<Trial> {
    let mut changed = 0;
    let trial = move |name: &'static str, from_image| Trial {
        name: name.into(),
        run: Box::new(move |stage| {
            wait_for_image(stage)?;
            changed = (changed + CHANGES).min(rows);
            change(stage, changed)?;
            begin(stage, rows, from_image)
        }),
        figures: vec![Figure {
            unit: Unit::Milliseconds,
            value: |it| it.seconds * 1e3,
            ..Figure::rate(name)
        }],
    };
    let mut by_rows = trial(BY_ROWS, false);
    by_rows.figures.push(Figure::rate(RATE_BY_ROWS));
    let mut from_image = trial("first sync from an image", true);
    let rate = Figure::rate("rows a second, from an image");
    let rate = rate.of(Of::Figure(RATE_BY_ROWS)).goal(Goal::Share(5.0));
    from_image.figures.push(rate);
    vec![by_rows, from_image]
}

/// The server makes it when it starts.
fn wait_for_image(stage: &mut Stage) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    let manifest = stage.folder().join("images/bench.json");
    while !manifest.exists() {
        stage.check()?;
        if Instant::now() > until {
            bail!("the server makes no image");
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}

fn change(stage: &mut Stage, rows: u32) -> anyhow::Result<()> {
    let until = i64::from(FIRST_PURCH_ID) + i64::from(rows);
    stage.base.execute(&format!(
        "UPDATE purchase SET cost = cost + 1 WHERE emp_id = {} AND purch_id < {until}",
        employee(0)
    ))
}

/// A new remote, until it has everything.
fn begin(stage: &Stage, rows: u32, from_image: bool) -> anyhow::Result<JobOutcome> {
    let path = stage.folder().join("begins.db");
    remove(&path);
    let (server, user) = (stage.url(), user(0));
    let begun = Instant::now();
    if from_image {
        let port = stage.http_port();
        let manifest = format!("http://127.0.0.1:{port}/tidewater/images/bench.json");
        let wanted = ImageRequest {
            manifest: &manifest,
            server: &server,
            user: &user,
        };
        let options = SyncOptions::default();
        begin_from_image(&path, wanted, &options, &mut |_, _| {
            ControlFlow::Continue(())
        })?;
    }
    let mut remote = Remote::open(&path)?;
    remote.subscribe(&server, &user, &[PUBLICATION])?;
    remote.set_password(stage.password().to_owned());
    let report = remote.sync(&mut |_| ControlFlow::Continue(()))?;
    let took = begun.elapsed();
    let came = report.downloaded.upserts;
    ensure!(
        (came == u64::from(rows)) != from_image && came > 0,
        "{came} rows have come from the server"
    );
    drop(remote);
    let file = rusqlite::Connection::open(&path)?;
    let has: i64 = file.query_row("SELECT count(*) FROM purchase", [], |row| row.get(0))?;
    drop(file);
    ensure!(has == i64::from(rows), "the remote has {has} rows");
    remove(&path);
    Ok(JobOutcome::counted(u64::from(rows), took))
}

fn remove(remote: &Path) {
    for end in ["", "-wal", "-shm", "-tidewater-image"] {
        let _ = std::fs::remove_file(format!("{}{end}", remote.display()));
    }
}
