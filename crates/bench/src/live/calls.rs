//! Calls a second.

use std::time::Instant;

use super::LiveOptions;
use super::client::{Kind, Outcome};
use super::report::{LivePoint, LiveReport};
use super::stage::{self, Stage};
use crate::spread::Spread;
use crate::supervisor::Watcher;

const PROCEDURES: &str = r#"
[[procedure]]
name = "lookup"
sql = "SELECT cost FROM purchase WHERE emp_id = {a.emp} AND purch_id = {a.purch}"
arguments = { emp = "integer", purch = "integer" }
returns = "value"
allow = "everyone"
read_only = true
"#;

/// How many look up at the same time.
const LOOKUPS: u32 = 16;

/// Its name, how many programs do what, the goal, and what others have published.
type Measure = (
    &'static str,
    u32,
    Kind,
    Option<f64>,
    &'static [(&'static str, f64)],
);

pub(super) fn run(options: &LiveOptions, watcher: &Watcher<'_>) -> anyhow::Result<LiveReport> {
    let mut stage = Stage::set(options, PROCEDURES)?;
    let mut report = LiveReport::new("calls", stage.base.url());
    let measured = measure(options, watcher, &mut stage, &mut report);
    let cleared = stage.clear();
    measured?;
    cleared?;
    Ok(report)
}

fn measure(
    options: &LiveOptions,
    watcher: &Watcher<'_>,
    stage: &mut Stage,
    report: &mut LiveReport,
) -> anyhow::Result<()> {
    let mut points: Vec<(LivePoint, Vec<Outcome>)> = Vec::new();
    let raw = "bytes there and back, one after the other";
    let names: [Measure; 5] = [
        (
            raw,
            1,
            Kind::Raw,
            None,
            &[("a machine of this kind", 61_000.0)],
        ),
        (
            "calls one after the other",
            1,
            Kind::Echo {
                threads: 1,
                pause_ms: 0,
            },
            Some(37_000.0),
            &[
                ("redis", 29_135.0),
                ("tonic", 13_401.0),
                ("NATS", 9_020.0),
                ("the paper's Voyager", 4_091.0),
                ("the paper's Axis", 246.0),
            ],
        ),
        (
            "the same over HTTP with JSON",
            1,
            Kind::EchoHttp,
            Some(12_000.0),
            &[("Axis 1.4 on such a machine", 595.0)],
        ),
        (
            "4 programs of 250 threads, 25 ms between calls",
            4,
            Kind::Echo {
                threads: 250,
                pause_ms: 25,
            },
            Some(39_000.0),
            &[
                ("redis", 37_754.0),
                ("NATS", 36_128.0),
                ("tonic", 29_979.0),
                ("the paper's Voyager", 6_518.0),
            ],
        ),
        (
            "a row by its key, 16 at a time",
            1,
            Kind::Lookup { threads: LOOKUPS },
            None,
            &[],
        ),
    ];
    for (name, _, _, goal, published) in &names {
        let point = LivePoint {
            name: (*name).to_owned(),
            per_second: Spread::default(),
            median_us: None,
            p99_us: None,
            of: None,
            published: published.to_vec(),
            goal: *goal,
        };
        points.push((point, Vec::new()));
    }
    let mut database = Vec::new();
    for round in 0..options.repeat {
        for ((point, outcomes), (_, programs, kind, _, _)) in points.iter_mut().zip(&names) {
            watcher.check()?;
            (watcher.note)(&format!(
                "{} of {}: {}",
                round + 1,
                options.repeat,
                point.name
            ));
            let job = stage.job(options.seconds, kind.clone());
            let jobs = vec![job; *programs as usize];
            outcomes.push(added(&stage::together(&jobs)?));
        }
        watcher.check()?;
        (watcher.note)("the same look-ups without Tidewater");
        let begun = Instant::now();
        let count = stage.base.look_up(LOOKUPS, options.seconds)?;
        database.push(count as f64 / begun.elapsed().as_secs_f64());
    }
    let database = Spread::of(database);
    let mut raw_rate = 0.0;
    for (point, outcomes) in points {
        let rates = outcomes.iter().map(|it| it.count as f64 / it.seconds);
        let per_second = Spread::of(rates.collect());
        let of = |value: fn(&Outcome) -> f64| {
            Some(Spread::of(outcomes.iter().map(value).collect()).median)
        };
        let compared = match point.name.as_str() {
            name if name == raw => {
                raw_rate = per_second.median;
                None
            }
            "a row by its key, 16 at a time" => Some((
                "the database's own".to_owned(),
                per_second.median / database.median,
            )),
            "4 programs of 250 threads, 25 ms between calls" => Some((
                "the 40,000 that the pauses allow".to_owned(),
                per_second.median / 40_000.0,
            )),
            _ => Some(("the bytes".to_owned(), per_second.median / raw_rate)),
        };
        report.points.push(LivePoint {
            per_second,
            median_us: of(|it| it.median_us),
            p99_us: of(|it| it.p99_us),
            of: compared,
            ..point
        });
    }
    report.points.push(LivePoint {
        name: "the database alone, 16 at a time, prepared".into(),
        per_second: database,
        median_us: None,
        p99_us: None,
        of: None,
        published: Vec::new(),
        goal: None,
    });
    Ok(())
}

/// What programs that ran beside each other came to.
fn added(outcomes: &[Outcome]) -> Outcome {
    let count = outcomes.iter().map(|it| it.count).sum();
    let longest = outcomes.iter().map(|it| it.seconds).fold(0.0, f64::max);
    let worst = |value: fn(&Outcome) -> f64| outcomes.iter().map(value).fold(0.0, f64::max);
    Outcome {
        count,
        seconds: longest,
        median_us: worst(|it| it.median_us),
        p99_us: worst(|it| it.p99_us),
    }
}
