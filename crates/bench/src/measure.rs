//! The timed syncs: sets of remotes, operation by operation, so that the database ends as it
//! began.

use std::ops::Range;

use crate::driver::employee;
use crate::fleet::{Fleet, TimedStep, group};
use crate::gate::{GroupReport, MovedRows, Retry, Sync, Task};
use crate::options::TrackingSetting;
use crate::report::{Cpu, Distribution, OperationRun, Phases, Point, RunClock, TimedOperation};

/// Below this, the whole milliseconds of the server's history are off by more than a hundredth.
const COARSE_SECONDS: f64 = 0.2;

/// One sync with nothing to do is short beside what else a machine is at.
const EMPTY_TIMES: u32 = 5;

/// What is measured at one point.
#[derive(Clone, Debug)]
pub(crate) struct MeasurePlan {
    pub(crate) point: Point,
    /// Remotes of each set.
    pub(crate) remotes: u32,
    pub(crate) rows: u32,
    pub(crate) sets: u32,
    pub(crate) operations: Vec<TimedOperation>,
    pub(crate) retry: Retry,
}

/// Runs a plan once.
pub(crate) fn measure(
    fleet: &mut Fleet<'_>,
    plan: &MeasurePlan,
    repeat: u32,
) -> anyhow::Result<Vec<OperationRun>> {
    fleet.remotes(plan.remotes * plan.sets)?;
    aim(fleet, plan.remotes * plan.sets)?;
    let mut sums: Vec<Sum> = plan.operations.iter().map(|&it| Sum::new(it)).collect();
    for set in 0..plan.sets {
        let first = set * plan.remotes;
        for sum in &mut sums {
            let times = match (sum.operation, fleet.settings().way) {
                (TimedOperation::Empty, Some(_)) => EMPTY_TIMES,
                _ => 1,
            };
            for _ in 0..times {
                let timed = one(fleet, plan, first, sum.operation)?;
                sum.add(&timed, 0);
            }
        }
        undo(fleet, plan, first)?;
    }
    let runs = sums.into_iter().map(|sum| sum.run(fleet, plan, repeat));
    Ok(runs.collect())
}

/// Has remotes go over to the way that is measured.
fn aim(fleet: &mut Fleet<'_>, remotes: u32) -> anyhow::Result<()> {
    match fleet.aim()? {
        None => Ok(()),
        Some(aim) => fleet
            .step(vec![group(0..remotes, Task::Aim(aim))])
            .map(|_| ()),
    }
}

/// One operation of one set of remotes.
fn one(
    fleet: &mut Fleet<'_>,
    plan: &MeasurePlan,
    first: u32,
    operation: TimedOperation,
) -> anyhow::Result<TimedStep> {
    let remotes = first..first + plan.remotes;
    edit(fleet, &[(remotes.clone(), plan.rows)], operation)?;
    let sync = Task::Sync(sync(fleet, operation, plan.rows, plan.retry));
    // A server's history knows nothing of what happens before it is spoken to.
    let is_told = fleet.settings().way.is_none();
    let syncs = is_told.then_some(u64::from(plan.remotes));
    let timed = fleet.timed(vec![group(remotes.clone(), sync)], syncs)?;
    check(fleet, &[(remotes, plan.rows)], operation)?;
    Ok(timed)
}

/// Whether the centre has what the remotes should have made of it.
pub(crate) fn check(
    fleet: &mut Fleet<'_>,
    remotes: &[(Range<u32>, u32)],
    operation: TimedOperation,
) -> anyhow::Result<()> {
    let rows = remotes
        .iter()
        .map(|(remotes, rows)| remotes.len() as u64 * u64::from(*rows));
    let (expected, which) = match operation {
        TimedOperation::Update => (rows.sum(), "purchase WHERE cost > 123456790"),
        TimedOperation::Delete => (0, "purchase"),
        TimedOperation::Insert | TimedOperation::Download => (rows.sum(), "purchase"),
        TimedOperation::Empty | TimedOperation::Upload => return Ok(()),
    };
    let found = fleet.base.count(which)?;
    anyhow::ensure!(
        found == expected,
        "after {}, the centre has {found} rows where it should have {expected}",
        operation.name()
    );
    Ok(())
}

/// What applications do before a timed sync: that of the centre, or those of the remotes.
pub(crate) fn edit(
    fleet: &mut Fleet<'_>,
    remotes: &[(Range<u32>, u32)],
    operation: TimedOperation,
) -> anyhow::Result<()> {
    match operation {
        TimedOperation::Download => {
            for (remotes, rows) in remotes {
                let employees = employee(remotes.start)..employee(remotes.end);
                fleet.base.insert(employees, *rows)?;
            }
            fleet.base.settle()
        }
        TimedOperation::Empty | TimedOperation::Upload => Ok(()),
        TimedOperation::Update | TimedOperation::Delete | TimedOperation::Insert => {
            let groups = remotes.iter().map(|(remotes, rows)| {
                let rows = *rows;
                group(remotes.clone(), Task::Edit { operation, rows })
            });
            fleet.step(groups.collect())?;
            Ok(())
        }
    }
}

/// A timed sync.
pub(crate) fn sync(fleet: &Fleet<'_>, operation: TimedOperation, rows: u32, retry: Retry) -> Sync {
    let is_upload = !matches!(operation, TimedOperation::Download | TimedOperation::Empty);
    Sync {
        // What went up would come down again: partitions are sent whole.
        upload_only: is_upload && fleet.settings().tracking == TrackingSetting::Off,
        retry,
        compression: compression(fleet),
        afresh: is_afresh(fleet),
        expected: Some(MovedRows::by(operation, u64::from(rows))),
        ..Sync::default()
    }
}

/// How syncs are packed on the way that is measured.
fn compression(fleet: &Fleet<'_>) -> Option<String> {
    let way = fleet.settings().way?;
    Some(way.compression.to_string())
}

/// Whether hands are shaken in full on the way that is measured.
fn is_afresh(fleet: &Fleet<'_>) -> bool {
    let way = fleet.settings().way;
    way.is_some_and(|it| it.protocol.key().is_some() && !it.protocol.resumes())
}

/// Undoes what a set of remotes has left.
fn undo(fleet: &mut Fleet<'_>, plan: &MeasurePlan, first: u32) -> anyhow::Result<()> {
    let has_rows = |operation: &TimedOperation| *operation != TimedOperation::Empty;
    if !plan.operations.iter().any(has_rows) {
        return Ok(());
    }
    clear(fleet, &[(first..first + plan.remotes, plan.rows)])
}

/// The centre's application deletes the rows, and the remotes hear of it.
pub(crate) fn clear(fleet: &mut Fleet<'_>, remotes: &[(Range<u32>, u32)]) -> anyhow::Result<()> {
    fleet.base.execute("DELETE FROM purchase")?;
    fleet.base.settle()?;
    let groups = remotes.iter().map(|(remotes, rows)| {
        let sync = Sync {
            home: fleet.settings().way.is_none(),
            compression: compression(fleet),
            expected: Some(MovedRows {
                removals: u64::from(*rows),
                ..MovedRows::default()
            }),
            ..Sync::default()
        };
        group(remotes.clone(), Task::Sync(sync))
    });
    fleet.step(groups.collect())?;
    let left = fleet.base.count("purchase")?;
    anyhow::ensure!(left == 0, "{left} rows are left that nobody should have");
    Ok(())
}

/// One operation over all sets.
pub(crate) struct Sum {
    pub(crate) operation: TimedOperation,
    sets: u64,
    report: GroupReport,
    driver_seconds: f64,
    history_seconds: Option<f64>,
    cpu: Cpu,
    peak: Option<u64>,
}

impl Sum {
    pub(crate) fn new(operation: TimedOperation) -> Sum {
        Sum {
            operation,
            sets: 0,
            report: GroupReport::default(),
            driver_seconds: 0.0,
            history_seconds: Some(0.0),
            cpu: Cpu {
                database: Some(0.0),
                ..Cpu::default()
            },
            peak: None,
        }
    }

    /// Adds one group of a step. Processor time is that of the whole step.
    pub(crate) fn add(&mut self, timed: &TimedStep, group: usize) {
        self.sets += 1;
        self.driver_seconds += timed.spans.get(group).copied().unwrap_or(0.0);
        let history = self.history_seconds.zip(timed.history_span);
        self.history_seconds = history.map(|(sum, span)| sum + span);
        self.cpu.server += timed.cpu.server;
        self.cpu.drivers += timed.cpu.drivers;
        let database = self.cpu.database.zip(timed.cpu.database);
        self.cpu.database = database.map(|(sum, more)| sum + more);
        self.peak = self.peak.max(timed.server_peak_bytes);
        if let Some(group) = timed.groups.get(group) {
            self.report.add(group.clone());
        }
    }

    pub(crate) fn run(self, fleet: &Fleet<'_>, plan: &MeasurePlan, repeat: u32) -> OperationRun {
        let report = self.report;
        let syncs = report.starts_ns.len() as u64;
        let rows = report.moved.rows(self.operation);
        let fine = self.history_seconds;
        let fine = fine.filter(|seconds| *seconds >= COARSE_SECONDS * self.sets as f64);
        let (clock, seconds) = match fine {
            Some(seconds) => (RunClock::Server, seconds),
            None => (RunClock::Drivers, self.driver_seconds),
        };
        let rate = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        let times = report.starts_ns.iter().zip(&report.ends_ns);
        let times = times.map(|(start, end)| end.saturating_sub(*start) as f64 / 1e9);
        let settings = fleet.settings();
        let is_empty = self.operation == TimedOperation::Empty;
        OperationRun {
            operation: self.operation,
            point: plan.point.clone(),
            repeat: u64::from(repeat),
            remotes: u64::from(plan.remotes),
            rows_per_sync: match is_empty {
                true => 0,
                false => u64::from(plan.rows),
            },
            sets: self.sets.max(u64::from(plan.sets)),
            syncs,
            rows,
            tracking: settings.tracking.name().into(),
            workers: settings.workers.to_string(),
            connections: settings.connections.map(u64::from),
            server_seconds: seconds,
            clock,
            driver_seconds: self.driver_seconds,
            history_seconds: self.history_seconds,
            rows_per_second: rate(rows),
            syncs_per_second: rate(syncs),
            remote_seconds: Distribution::from_values(times.collect()),
            cpu_seconds: self.cpu,
            server_peak_bytes: self.peak,
            retries: report.retries,
            conflicts: report.conflicts,
            refused: report.refused,
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            phases: Phases::shared(report.phases, syncs),
        }
    }
}
