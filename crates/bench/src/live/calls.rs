//! Calls a second.

use std::time::Instant;

use super::LiveBenchOptions;
use super::client::{JobKind, JobOutcome};
use super::report::Goal;
use super::stage::StageSetting;
use super::trial::{Figure, Of, Trial};
use crate::base;

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

const RAW: &str = "bytes there and back, one after the other";
const DATABASE: &str = "the database alone, 16 at a time, prepared";

pub(super) fn setting() -> StageSetting {
    let (employees, purchases) = base::LOOK_UP;
    StageSetting {
        sections: PROCEDURES,
        employees: 0..employees,
        purchases,
        users: 0,
        remotes: 0,
    }
}

pub(super) fn trials(options: &LiveBenchOptions) -> Vec<Trial> {
    let seconds = options.seconds;
    let programs = |kinds: Vec<JobKind>, figure: Figure| Trial {
        name: figure.name.clone(),
        run: Box::new(move |stage| Ok(JobOutcome::beside(&stage.together(seconds, &kinds)?))),
        figures: vec![figure.with_times()],
    };
    let echo = |threads, pause_ms| JobKind::Echo { threads, pause_ms };
    let look_up = Figure::rate("a row by its key, 16 at a time");
    vec![
        programs(
            vec![JobKind::Raw],
            Figure::rate(RAW).published(&[("a machine of this kind", 61_000.0)]),
        ),
        programs(
            vec![echo(1, 0)],
            Figure::rate("calls one after the other")
                .of(Of::Figure(RAW))
                .goal(Goal::AtLeast(37_000.0))
                .published(&[
                    ("redis", 29_135.0),
                    ("tonic", 13_401.0),
                    ("NATS", 9_020.0),
                    ("the paper's Voyager", 4_091.0),
                    ("the paper's Axis", 246.0),
                ]),
        ),
        programs(
            vec![JobKind::EchoHttp],
            Figure::rate("the same over HTTP with JSON")
                .of(Of::Figure(RAW))
                .goal(Goal::AtLeast(12_000.0))
                .published(&[("Axis 1.4", 595.0)]),
        ),
        programs(
            vec![echo(250, 25); 4],
            Figure::rate("4 programs of 250 threads, 25 ms between calls")
                .of(Of::Ideal("the 40,000 that the pauses allow", 40_000.0))
                .goal(Goal::AtLeast(39_000.0))
                .published(&[
                    ("redis", 37_754.0),
                    ("NATS", 36_128.0),
                    ("tonic", 29_979.0),
                    ("the paper's Voyager", 6_518.0),
                ]),
        ),
        programs(
            vec![JobKind::Lookup { threads: LOOKUPS }],
            look_up.of(Of::Figure(DATABASE)).goal(Goal::Share(0.6)),
        ),
        Trial {
            name: DATABASE.into(),
            run: Box::new(move |stage| {
                let begun = Instant::now();
                let count = stage.base.look_up(LOOKUPS, seconds)?;
                Ok(JobOutcome::counted(count, begun.elapsed()))
            }),
            figures: vec![Figure::rate(DATABASE)],
        },
    ]
}
