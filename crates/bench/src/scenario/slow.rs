//! Remotes with slow lines beside remotes with fast ones: a line that takes minutes must not keep
//! anybody else from the workers.

use std::ops::Range;

use crate::fleet::{Fleet, group};
use crate::gate::{Group, Retry, Task};
use crate::measure::{MeasurePlan, Sum, check, clear, edit, sync};
use crate::options::{Options, Scenario};
use crate::report::{OperationRun, Point, TimedOperation};

/// 4,800 baud.
const BYTES_PER_SECOND: u64 = 480;
/// Slow remotes are under way when the fast ones begin.
const HEAD_START_MS: u64 = 1_500;

/// How many slow remotes there are.
pub(super) fn beside(options: &Options) -> u32 {
    let default = if options.paper { 1_000 } else { 100 };
    match options.scenario {
        Scenario::Slow => options.remotes.first().copied().unwrap_or(default),
        _ => 0,
    }
}

/// Their rows: what a slow line can carry in some seconds, unless it is said.
fn slow_rows(options: &Options, fast: u32) -> u32 {
    let default = if options.paper { fast } else { 20 };
    options.rows.get(1).copied().unwrap_or(default.min(fast))
}

pub(super) fn measure(
    fleet: &mut Fleet<'_>,
    plan: &MeasurePlan,
    round: u32,
) -> anyhow::Result<Vec<OperationRun>> {
    let options = fleet.options;
    let fast = 0..plan.remotes;
    let slow = plan.remotes..plan.remotes + beside(options);
    let slow_rows = slow_rows(options, plan.rows);
    let mut all: Vec<(Range<u32>, u32)> = vec![(fast, plan.rows)];
    if plan.point.label != "alone" {
        all.push((slow, slow_rows));
    }
    fleet.remotes(plan.remotes + beside(options))?;
    let mut runs = Vec::new();
    for operation in TimedOperation::TIMED {
        edit(fleet, &all, operation)?;
        let groups = all.iter().enumerate().map(|(number, (remotes, rows))| {
            let is_slow = number == 1;
            let task = Task::Sync(sync(fleet, operation, *rows, Retry::Advised));
            let is_beside = all.len() > 1;
            Group {
                line: is_slow.then(|| options.line.unwrap_or(BYTES_PER_SECOND)),
                delay_ms: if is_beside && !is_slow {
                    HEAD_START_MS
                } else {
                    0
                },
                ..group(remotes.clone(), task)
            }
        });
        let timed = fleet.timed(groups.collect(), None)?;
        check(fleet, &all, operation)?;
        for (number, (remotes, rows)) in all.iter().enumerate() {
            let mut sum = Sum::new(operation);
            sum.add(&timed, number);
            let plan = MeasurePlan {
                remotes: remotes.len() as u32,
                rows: *rows,
                point: Point {
                    series: if number == 0 { "fast" } else { "slow" }.into(),
                    ..plan.point.clone()
                },
                ..plan.clone()
            };
            runs.push(sum.run(fleet, &plan, round));
        }
    }
    clear(fleet, &all)?;
    Ok(runs)
}
