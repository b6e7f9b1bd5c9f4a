//! The timed syncs: sets of remotes, operation by operation, so that the database ends as it
//! began.

use crate::driver::employee;
use crate::fleet::{Fleet, Timed, group};
use crate::gate::{GroupReport, Moved, Retry, Sync, Task};
use crate::options::Tracking;
use crate::report::{Cpu, Distribution, Operation, Phases, Point, Run, RunClock};

/// The four timed syncs, in the order in which the database ends as it began.
pub(crate) const ALL: [Operation; 4] = [
    Operation::Download,
    Operation::Update,
    Operation::Delete,
    Operation::Insert,
];

/// Below this, the whole milliseconds of the server's history are off by more than a hundredth.
const COARSE_SECONDS: f64 = 0.2;

/// What is measured at one point.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) point: Point,
    /// Remotes of each set.
    pub(crate) remotes: u32,
    pub(crate) rows: u32,
    pub(crate) sets: u32,
    pub(crate) operations: Vec<Operation>,
    pub(crate) retry: Retry,
}

/// Runs a plan once.
pub(crate) fn measure(fleet: &mut Fleet<'_>, plan: &Plan, repeat: u32) -> anyhow::Result<Vec<Run>> {
    fleet.remotes(plan.remotes * plan.sets)?;
    let mut sums: Vec<Sum> = plan.operations.iter().map(|&it| Sum::of(it)).collect();
    for set in 0..plan.sets {
        let first = set * plan.remotes;
        for sum in &mut sums {
            let timed = one(fleet, plan, first, sum.operation)?;
            sum.add(timed);
        }
        undo(fleet, plan, first)?;
    }
    let runs = sums.into_iter().map(|sum| sum.run(fleet, plan, repeat));
    Ok(runs.collect())
}

/// One operation of one set of remotes.
fn one(
    fleet: &mut Fleet<'_>,
    plan: &Plan,
    first: u32,
    operation: Operation,
) -> anyhow::Result<Timed> {
    let remotes = first..first + plan.remotes;
    let upload_only = match operation {
        Operation::Download => {
            let employees = employee(remotes.start)..employee(remotes.end);
            fleet.base.insert(employees, plan.rows)?;
            fleet.base.settle()?;
            false
        }
        Operation::Empty | Operation::Upload => false,
        Operation::Update | Operation::Delete | Operation::Insert => {
            let edit = Task::Edit {
                operation,
                rows: plan.rows,
            };
            fleet.step(vec![group(remotes.clone(), edit)])?;
            fleet.settings().tracking == Tracking::Off
        }
    };
    let sync = Task::Sync(Sync {
        upload_only,
        retry: plan.retry,
        expected: Some(Moved::by(operation, u64::from(plan.rows))),
    });
    fleet.timed(vec![group(remotes, sync)], Some(u64::from(plan.remotes)))
}

/// The centre's application deletes the rows, and the remotes hear of it.
fn undo(fleet: &mut Fleet<'_>, plan: &Plan, first: u32) -> anyhow::Result<()> {
    let has_rows = |operation: &Operation| *operation != Operation::Empty;
    if !plan.operations.iter().any(has_rows) {
        return Ok(());
    }
    let remotes = first..first + plan.remotes;
    let (from, to) = (employee(remotes.start), employee(remotes.end));
    fleet.base.execute(&format!(
        "DELETE FROM purchase WHERE emp_id >= {from} AND emp_id < {to}"
    ))?;
    fleet.base.settle()?;
    let sync = Sync {
        expected: Some(Moved {
            removals: u64::from(plan.rows),
            ..Moved::default()
        }),
        ..Sync::default()
    };
    fleet.step(vec![group(remotes, Task::Sync(sync))])?;
    let left = fleet.base.count("purchase")?;
    anyhow::ensure!(left == 0, "{left} rows are left that nobody should have");
    Ok(())
}

/// One operation over all sets.
pub(crate) struct Sum {
    pub(crate) operation: Operation,
    sets: u64,
    report: GroupReport,
    driver_seconds: f64,
    history_seconds: Option<f64>,
    cpu: Cpu,
    peak: Option<u64>,
}

impl Sum {
    pub(crate) fn of(operation: Operation) -> Sum {
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

    /// Adds the first group of a step.
    pub(crate) fn add(&mut self, timed: Timed) {
        self.sets += 1;
        self.driver_seconds += timed.spans.first().copied().unwrap_or(0.0);
        let history = self.history_seconds.zip(timed.history_span);
        self.history_seconds = history.map(|(sum, span)| sum + span);
        self.cpu.server += timed.cpu.server;
        self.cpu.drivers += timed.cpu.drivers;
        let database = self.cpu.database.zip(timed.cpu.database);
        self.cpu.database = database.map(|(sum, more)| sum + more);
        self.peak = self.peak.max(timed.server_peak_bytes);
        if let Some(group) = timed.groups.into_iter().next() {
            self.report.add(group);
        }
    }

    pub(crate) fn run(self, fleet: &Fleet<'_>, plan: &Plan, repeat: u32) -> Run {
        let report = self.report;
        let syncs = report.starts_ns.len() as u64;
        let rows = report.moved.rows();
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
        let is_empty = self.operation == Operation::Empty;
        Run {
            operation: self.operation,
            point: plan.point.clone(),
            repeat: u64::from(repeat),
            remotes: u64::from(plan.remotes),
            rows_per_sync: if is_empty { 0 } else { u64::from(plan.rows) },
            sets: u64::from(plan.sets),
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
            remote_seconds: Distribution::of(times.collect()),
            cpu_seconds: self.cpu,
            server_peak_bytes: self.peak,
            retries: report.retries,
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            phases: Phases::shared(report.phases, syncs),
        }
    }
}
