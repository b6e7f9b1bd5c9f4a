//! First downloads over lines that break, and over a slow one: what keeping what has come is
//! worth, and when `auto` packs.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tidewater_bench::own_address;
use tidewater_bench::spread::Spread;

use crate::line::{ChartLine, JobKind};
use crate::measure::{Samples, at_most, line, time};
use crate::processes::{Centre, Fleet};

/// 200 MB in twenty seconds.
const FAST: f64 = 10e6;
/// How often a bad line breaks.
const BREAKS_EVERY: Duration = Duration::from_secs(3);
/// 1 Mbit a second.
const SLOW: f64 = 125e3;
/// Rows for the slow line: some seconds of it, packed.
const SLOW_ROWS: i32 = 20_000;
/// Photographs for it, which get no smaller, and how large each is.
const PHOTOS: i32 = 40;
const PHOTO_BYTES: i32 = 32 << 10;

/// What a line that breaks may cost: the time with it by the time without.
const BROKEN_GOAL: f64 = 1.3;
/// What packed rows have of raw ones.
const PACKED_GOAL: f64 = 0.35;
/// What `auto` may cost where nothing gets smaller.
const DENSE_GOAL: f64 = 1.03;

/// A table of pictures: bytes without any order.
const PHOTO: &str = "\
CREATE TABLE photo (id INT PRIMARY KEY, content BYTEA NOT NULL);
INSERT INTO photo SELECT id, (
  SELECT string_agg(sha256(convert_to(id || '.' || part, 'UTF8')), '') FROM generate_series(1, SIZE / 32) part
) FROM generate_series(1, COUNT) id;";

/// Prints times with and without breaks, bytes and times over a slow line.
pub(crate) fn run(rows: i32, runs: usize) -> anyhow::Result<()> {
    println!("\nLines: first downloads, {runs} runs");
    let centre = Centre::start()?;
    broken(&centre, rows, runs)?;
    slow(&centre, runs)
}

fn broken(centre: &Centre, rows: i32, runs: usize) -> anyhow::Result<()> {
    let url = centre.database("broken")?;
    centre.load(&url, rows)?;
    let fleet = Fleet::start(centre, &url, "log", "both")?;
    let [mut whole, mut broken]: [Samples; 2] = Default::default();
    for run in 0..runs {
        for (breaks_every, samples) in [(None, &mut whole), (Some(BREAKS_EVERY), &mut broken)] {
            let name = format!("{run}-{}.db", breaks_every.is_some());
            let kind = JobKind {
                speed: FAST,
                breaks_every,
            };
            let server = address(&fleet)?;
            let between = ChartLine::lay([127, 0, 0, 1].into(), server, kind)?;
            let to = format!("tcp://{}", between.address);
            let (synced, took) = time(|| fleet.sync_over(&to, &name, &["--compression", "off"]))?;
            let came = &synced.report["downloaded"]["upserts"];
            anyhow::ensure!(*came == rows, "the download is not complete: {came}");
            samples.add(took);
        }
    }
    let of = |samples: &Samples| Spread::from_values(samples.seconds().to_vec());
    line("first download over 10 MB a second", &of(&whole), "s");
    line("the same, all breaks every 3 seconds", &of(&broken), "s");
    at_most("broken to whole", &ratio(&broken, &whole), BROKEN_GOAL);
    Ok(())
}

fn slow(centre: &Centre, runs: usize) -> anyhow::Result<()> {
    let url = centre.database("slow")?;
    centre.load(&url, SLOW_ROWS)?;
    let rows = Fleet::start(centre, &url, "log", "both")?;
    let url = centre.database("photos")?;
    let script = PHOTO
        .replace("SIZE", &PHOTO_BYTES.to_string())
        .replace("COUNT", &PHOTOS.to_string());
    tokio::runtime::Runtime::new()?.block_on(async {
        let client = tidewater_testing::postgres::connect(&url).await?;
        client.batch_execute(&script).await?;
        anyhow::Ok(())
    })?;
    let photos = Fleet::start_with(
        centre,
        &url,
        "[[publication.table]]\nname = \"photo\"\npartition = \"everyone\"\n",
    )?;
    for (what, fleet) in [("rows", &rows), ("photographs", &photos)] {
        let mut times: [Samples; 3] = Default::default();
        let mut bytes: [Vec<f64>; 3] = Default::default();
        let settings = ["off", "auto", "zstd"];
        for run in 0..runs {
            for (index, compression) in settings.into_iter().enumerate() {
                let kind = JobKind {
                    speed: SLOW,
                    breaks_every: None,
                };
                let between = ChartLine::lay(own_address(), address(fleet)?, kind)?;
                let to = format!("tcp://{}", between.address);
                let name = format!("{what}-{compression}-{run}.db");
                let synced = fleet.sync_over(&to, &name, &["--compression", compression])?;
                let came = synced.report["bytes_received"].as_f64();
                bytes[index].push(came.context("the remote did not tell")?);
                times[index].add(synced.elapsed);
            }
        }
        for index in 0..settings.len() {
            let seconds = Spread::from_values(times[index].seconds().to_vec());
            line(&format!("{what}, {}", settings[index]), &seconds, "s");
        }
        let of_bytes = |index: usize| {
            let pairs = bytes[index].iter().zip(&bytes[0]);
            Spread::from_values(pairs.map(|(ours, raw)| ours / raw).collect())
        };
        let goal = match what {
            "rows" => PACKED_GOAL,
            _ => DENSE_GOAL,
        };
        for index in [1, 2] {
            let name = format!("{what}, bytes, {} to off", settings[index]);
            at_most(&name, &of_bytes(index), goal);
        }
        let name = format!("{what}, time, auto to off");
        at_most(&name, &ratio(&times[1], &times[0]), goal.max(PACKED_GOAL));
    }
    Ok(())
}

/// Of times, run by run.
fn ratio(ours: &Samples, theirs: &Samples) -> Spread {
    let pairs = ours.seconds().iter().zip(theirs.seconds());
    Spread::from_values(pairs.map(|(ours, theirs)| ours / theirs).collect())
}

fn address(fleet: &Fleet) -> anyhow::Result<SocketAddr> {
    let address = fleet.url().strip_prefix("tcp://");
    Ok(address.context("the server does not speak TCP")?.parse()?)
}
