//! Subscribers that update rows of their own, sync, and again, for a given time.
//!
//! A row counts once for each sync that has committed it in the centre. The edits lie within the
//! time, as they do where people work.

use crate::fleet::{Fleet, group};
use crate::gate::{Retry, Task};
use crate::measure::{MeasurePlan, Sum, clear, edit, sync};
use crate::report::{OperationRun, TimedOperation};
use crate::spread::Spread;

/// How long by default, and in the papers.
const SECONDS: f64 = 10.0;
const PAPER_SECONDS: f64 = 600.0;

pub(super) fn measure(
    fleet: &mut Fleet<'_>,
    plan: &MeasurePlan,
    round: u32,
) -> anyhow::Result<Vec<OperationRun>> {
    let default = if fleet.options.paper {
        PAPER_SECONDS
    } else {
        SECONDS
    };
    let seconds = fleet.options.seconds.unwrap_or(default);
    let remotes = 0..plan.remotes;
    let rows = plan.rows;
    fleet.remotes(plan.remotes)?;
    let all = [(remotes.clone(), rows)];
    edit(fleet, &all, TimedOperation::Download)?;
    let download = Task::Sync(sync(fleet, TimedOperation::Download, rows, Retry::Advised));
    fleet.step(vec![group(remotes.clone(), download)])?;
    let churn = Task::Churn { rows, seconds };
    let timed = fleet.timed(vec![group(remotes, churn)], None)?;
    let mut sum = Sum::new(TimedOperation::Update);
    sum.add(&timed, 0);
    clear(fleet, &all)?;
    Ok(vec![sum.run(fleet, plan, round)])
}

pub(super) fn notes(runs: &[OperationRun]) -> Option<String> {
    let rates = runs.iter().map(|run| run.rows_per_second * 3_600.0);
    let spread = Spread::from_values(rates.collect());
    (!runs.is_empty()).then(|| {
        format!(
            "{:.1} million rows changed an hour ({:.1} to {:.1}).",
            spread.median / 1e6,
            spread.min / 1e6,
            spread.max / 1e6
        )
    })
}
