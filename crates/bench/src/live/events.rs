//! Events a second, delivered and kept.

use super::LiveBenchOptions;
use super::client::{JobKind, JobOutcome};
use super::report::Goal;
use super::stage::StageSetting;
use super::trial::{Figure, Of, Trial};
use crate::driver::employee;

const SPACES: &str = r#"
[[space]]
name = "bench"
publish = "everyone"
subscribe = "everyone"

[[space]]
name = "kept"
publish = "everyone"
subscribe = "everyone"
durable = "1d"
"#;

/// Remotes that sync while events pass, and rows of each.
const SYNCING: u32 = 8;
pub(super) const ROWS: u32 = 10;

const RAW: &str = "bytes of one to six";
const SYNCS: &str = "syncs of 8 remotes, 10 rows up each";

/// What others have delivered of one publisher to six.
const ONE_TO_SIX: &[(&str, f64)] = &[
    ("NATS", 1_530_000.0),
    ("tonic", 1_000_000.0),
    ("zenoh", 780_000.0),
    ("the paper's Voyager", 300_000.0),
];

pub(super) fn setting() -> StageSetting {
    StageSetting {
        sections: SPACES,
        employees: employee(0)..employee(SYNCING),
        purchases: ROWS,
        users: SYNCING,
        remotes: SYNCING,
    }
}

pub(super) fn trials(options: &LiveBenchOptions) -> Vec<Trial> {
    let seconds = options.seconds;
    let mut trials = vec![Trial {
        name: RAW.into(),
        run: Box::new(move |stage| {
            let raw = [JobKind::RawToSix];
            Ok(JobOutcome::beside(&stage.together(seconds, &raw)?))
        }),
        figures: vec![Figure::rate(RAW)],
    }];
    let passed = |name: String, publishers: u32, subscribers: u32| {
        let mut kinds = vec![JobKind::Listen; subscribers as usize];
        let publish = |publisher| JobKind::Publish {
            publisher,
            per_second: None,
        };
        kinds.extend((0..publishers).map(publish));
        let figure = Figure::rate(format!("delivered: {name}")).goal(Goal::AtLeast(2_500_000.0));
        Trial {
            name: figure.name.clone(),
            run: Box::new(move |stage| {
                let outcomes = stage.together(seconds, &kinds)?;
                Ok(JobOutcome::beside(&outcomes[..subscribers as usize]))
            }),
            figures: vec![figure],
        }
    };
    // The topologies of the paper: the hub is a program beside the server.
    trials.push(passed(
        "hub and two senders publish, two receive".into(),
        3,
        2,
    ));
    for clients in 1..=6 {
        let mut trial = passed(format!("hub publishes to {clients}"), 1, clients);
        if clients == 6 {
            for figure in &mut trial.figures {
                figure.goal = Some(Goal::AtLeast(3_000_000.0));
                figure.published = ONE_TO_SIX;
                figure.of = Some(Of::Figure(RAW));
            }
        }
        trials.push(trial);
    }
    for clients in 1..=6 {
        let name = format!("hub silent, two senders to {clients}");
        trials.push(passed(name, 2, clients));
    }
    let keep = |name: &str, threads, at_once, goal: Option<Goal>| Trial {
        name: name.into(),
        run: Box::new(move |stage| {
            let kind = JobKind::Keep { threads, at_once };
            Ok(JobOutcome::beside(&stage.together(seconds, &[kind])?))
        }),
        figures: vec![Figure {
            goal,
            ..Figure::rate(name).with_times()
        }],
    };
    let goal = Some(Goal::AtLeast(50_000.0));
    trials.push(keep("kept: 100 at once by each of 16", 16, 100, goal));
    trials.push(keep("kept: one by one by each of 64", 64, 1, None));
    let sync = JobKind::Syncs { remotes: SYNCING };
    let alone = vec![sync.clone()];
    let publish = JobKind::Publish {
        publisher: 0,
        per_second: Some(10_000),
    };
    let beside = vec![sync, publish, JobKind::Listen];
    let syncs = |kinds: Vec<JobKind>, figure: Figure| Trial {
        name: figure.name.clone(),
        run: Box::new(move |stage| {
            let outcomes = stage.together(seconds, &kinds)?;
            Ok(outcomes.into_iter().next().unwrap_or_default())
        }),
        figures: vec![figure.with_times()],
    };
    trials.push(syncs(alone, Figure::rate(SYNCS)));
    let figure = Figure::rate("the same while 10,000 events a second pass");
    let figure = figure.of(Of::Figure(SYNCS)).goal(Goal::Share(0.9));
    trials.push(syncs(beside, figure));
    trials
}
