//! The scenarios: what each varies, and how far.
//!
//! Most are a list of cases, each a plan under some settings of the server. Where there are
//! several, their repeats alternate, so that a machine that becomes slower or faster meanwhile
//! does the same to all of them.

mod merge;
mod own;
mod points;
mod slow;

use crate::fleet::Fleet;
use crate::measure::{MeasurePlan, measure};
use crate::options::{Options, Scenario, TrackingSetting, Workers};
use crate::own::OwnDatabase;
use crate::report::{OperationRun, RunClock, ScenarioReport};
use crate::server::Settings;
use crate::supervisor::Watcher;

/// A plan and the server that it is run on.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCase {
    pub(crate) plan: MeasurePlan,
    pub(crate) settings: Settings,
}

/// Runs a scenario to its end.
///
/// # Errors
/// Something is wrong with what was asked for, a driver or a remote failed, or the user
/// interrupted it. Nothing that it has made is left, unless that is what the error is about.
pub fn run(options: &Options, watcher: &Watcher<'_>) -> anyhow::Result<ScenarioReport> {
    let cases = points::cases(options)?;
    let most = cases.iter().map(|case| case.plan.remotes).max();
    let settings = Settings {
        remotes: most.unwrap_or(1) + slow::beside(options),
        ..settings(options)
    };
    let own = match options.scenario {
        Scenario::Own => Some(OwnDatabase::read(options)?),
        _ => None,
    };
    let mut fleet = Fleet::gather(options, watcher, settings.clone(), own)?;
    let done = with_fleet(&mut fleet, options, cases, &settings);
    let dispersed = fleet.disperse(done.is_ok());
    let mut report = match (done, dispersed) {
        (Err(error), Err(more)) => {
            // What went wrong first is the error.
            (watcher.note)(&format!("what was made could not be removed: {more:#}"));
            return Err(error);
        }
        (Err(error), Ok(())) => return Err(error),
        (Ok(report), dispersed) => dispersed.map(|()| report)?,
    };
    report.summarize();
    Ok(report)
}

fn with_fleet(
    fleet: &mut Fleet<'_>,
    options: &Options,
    cases: Vec<PlannedCase>,
    settings: &Settings,
) -> anyhow::Result<ScenarioReport> {
    fleet.serve(settings)?;
    if options.scenario == Scenario::Protocols {
        // Their first syncs go over TCP, which no case but the first one serves.
        fleet.remotes(settings.remotes)?;
    }
    let runs = alternate(fleet, cases, settings.remotes, options.repeat)?;
    let wants_limit = options.with_limit || options.scenario == Scenario::Limit;
    let limit = match wants_limit {
        true => fleet.limit(&runs)?,
        false => Vec::new(),
    };
    Ok(ScenarioReport {
        scenario: options.scenario.name().into(),
        varied: points::varied(options.scenario).into(),
        machine: fleet.machine()?,
        medians: Vec::new(),
        limit,
        notes: notes(options, &runs),
        runs,
    })
}

/// Runs cases one after the other, and again, the other way round.
fn alternate(
    fleet: &mut Fleet<'_>,
    mut cases: Vec<PlannedCase>,
    remotes: u32,
    repeat: u32,
) -> anyhow::Result<Vec<OperationRun>> {
    let mut runs = Vec::new();
    for round in 0..repeat.max(1) {
        for case in &cases {
            let settings = Settings {
                remotes,
                ..case.settings.clone()
            };
            fleet.serve(&settings)?;
            let plan = &case.plan;
            (fleet.watcher.note)(&format!(
                "{}: {} remotes of {} rows, {} sets, round {} of {}",
                plan.point.label,
                plan.remotes,
                plan.rows,
                plan.sets,
                round + 1,
                repeat.max(1)
            ));
            runs.extend(match fleet.options.scenario {
                Scenario::Merge => merge::measure(fleet, plan, round)?,
                Scenario::Own => own::measure(fleet, plan, round)?,
                Scenario::Slow => slow::measure(fleet, plan, round)?,
                _ => measure(fleet, plan, round)?,
            });
        }
        cases.reverse();
    }
    Ok(runs)
}

/// Settings as the options have them, where the scenario does not vary them.
fn settings(options: &Options) -> Settings {
    Settings {
        tracking: options.tracking,
        workers: options.workers.first().copied().unwrap_or(Workers::Auto),
        connections: options.connections,
        remotes: 0,
        cpus: None,
        way: None,
    }
}

/// What a reader has to know to judge the figures.
fn notes(options: &Options, runs: &[OperationRun]) -> Vec<String> {
    let mut notes = Vec::new();
    if options.tracking == TrackingSetting::Off {
        notes.push("Without tracking, uploads are timed without a download.".into());
    }
    if runs.iter().any(|run| run.clock == RunClock::Drivers) {
        notes.push(
            "Total server times below a fifth of a second, and those of which the server's history \
             does not tell every sync, are by the drivers' clock."
                .into(),
        );
    }
    match options.scenario {
        Scenario::Merge => notes.extend(merge::notes(runs)),
        Scenario::Own => notes.push(
            "Updates and deletes are the same on every remote, so all but the first of each may be \
             conflicts; inserted rows have a key of their own on each."
                .into(),
        ),
        Scenario::Protocols => notes.push(
            "Ratios are of total times, round by round: to tcp off, and of relay to tls-ecc with \
             the same compression. All TLS but tls-resumed shakes hands in full at each sync, as \
             a program does that is started for it. Bytes are of the protocol, packed, without \
             what TLS and HTTP add."
                .into(),
        ),
        Scenario::Slow => notes.push(
            "Processor time is that of fast and slow remotes together, in the lines of both."
                .into(),
        ),
        _ => {}
    }
    notes
}
