//! The user's own configuration and data: new remotes that download what the user has, and then
//! upload what one file has pending.

use crate::fleet::{Fleet, group};
use crate::gate::{Sync, Task};
use crate::measure::{MeasurePlan, Sum};
use crate::report::{OperationRun, TimedOperation};

pub(super) fn measure(
    fleet: &mut Fleet<'_>,
    plan: &MeasurePlan,
    round: u32,
) -> anyhow::Result<Vec<OperationRun>> {
    let remotes = fleet.fresh(plan.remotes);
    let count = Some(u64::from(plan.remotes));
    let pending = fleet.own.as_ref().map(|own| own.pending.clone());
    let begin = Task::Begin { timed: true };
    let replay = Task::Replay {
        tables: pending.unwrap_or_default(),
        remotes: plan.remotes,
    };
    let sync = Task::Sync(Sync {
        retry: plan.retry,
        ..Sync::default()
    });
    let mut runs = Vec::new();
    let downloaded = fleet.timed(vec![group(remotes.clone(), begin)], count)?;
    fleet.step(vec![group(remotes.clone(), replay)])?;
    let uploaded = fleet.timed(vec![group(remotes, sync)], count)?;
    for (operation, timed) in [
        (TimedOperation::Download, downloaded),
        (TimedOperation::Upload, uploaded),
    ] {
        let mut sum = Sum::new(operation);
        sum.add(&timed, 0);
        let mut run = sum.run(fleet, plan, round);
        run.rows_per_sync = run.rows / run.syncs.max(1);
        runs.push(run);
    }
    Ok(runs)
}
