//! What the databases do alone: the same rows, operations and batch sizes, as many at once as
//! there are cores, and nothing of Tidewater's between.
//!
//! Both sides run on the same cores in the field, so together they can do at most
//! 1 / (1 / consolidated + 1 / remotes).

mod postgres;
mod remotes;
mod sqlite;

use std::path::Path;

use crate::base::Base;
use crate::machine;
use crate::report::{Limit, OperationRun, TimedOperation};
use crate::spread::Spread;
use crate::supervisor::Watcher;

/// What one transaction of the server takes at most.
const BATCH_SYNCS: u32 = 64;
const BATCH_ROWS: u32 = 20_000;
/// More rows make no other rate, only a longer run.
const MOST_ROWS: u32 = 1_000_000;

/// The table of the consolidated database, which nobody tracks.
const TABLE: &str = "bench_limit";

/// What is imitated.
#[derive(Clone, Copy, Debug)]
struct Load {
    remotes: u32,
    rows: u32,
}

impl Load {
    fn all_rows(self) -> u64 {
        u64::from(self.remotes) * u64::from(self.rows)
    }

    /// Remotes whose rows share a transaction.
    fn batch(self) -> u32 {
        (BATCH_ROWS / self.rows.max(1)).clamp(1, BATCH_SYNCS)
    }

    /// The batches, as numbers of remotes.
    fn batches(self) -> Vec<std::ops::Range<u32>> {
        let batch = self.batch();
        let firsts = (0..self.remotes).step_by(batch as usize);
        firsts
            .map(|first| first..self.remotes.min(first + batch))
            .collect()
    }
}

/// Measures the limit of each size that the runs have.
pub(crate) fn measure(
    base: &mut dyn Base,
    files: &Path,
    runs: &[OperationRun],
    watcher: &Watcher<'_>,
) -> anyhow::Result<Vec<Limit>> {
    let mut limits = Vec::new();
    let mut known = Vec::new();
    for run in runs {
        let is_new = !known.contains(&run.rows_per_sync);
        if !is_new || !TimedOperation::TIMED.contains(&run.operation) {
            continue;
        }
        known.push(run.rows_per_sync);
        let rows = u32::try_from(run.rows_per_sync)?;
        let remotes = u32::try_from(run.remotes)?;
        let load = Load {
            remotes: remotes.min((MOST_ROWS / rows).max(1)),
            rows,
        };
        (watcher.note)(&format!("the databases alone, {rows} rows a sync"));
        limits.extend(limits_of(base, files, load, runs, watcher)?);
    }
    Ok(limits)
}

fn limits_of(
    base: &mut dyn Base,
    files: &Path,
    load: Load,
    runs: &[OperationRun],
    watcher: &Watcher<'_>,
) -> anyhow::Result<Vec<Limit>> {
    base.execute(&format!("DROP TABLE IF EXISTS {TABLE}"))?;
    let schema = tidewater_purchase::postgres_schema();
    base.execute(&schema.replace("purchase", TABLE))?;
    let cores = machine::cores();
    let url = base.url().to_owned();
    let database = match url.strip_prefix("sqlite:") {
        Some(path) => sqlite::measure(Path::new(path), load)?,
        None => postgres::measure(&url, load, cores)?,
    };
    base.execute(&format!("DROP TABLE IF EXISTS {TABLE}"))?;
    watcher.check()?;
    let remotes = remotes::measure(files, load, cores)?;
    let limit = |number: usize| {
        let operation = TimedOperation::TIMED[number];
        let rate = |seconds: f64| load.all_rows() as f64 / seconds.max(1e-9);
        let (database, remote) = (rate(database[number]), rate(remotes[number]));
        let both = 1.0 / (1.0 / database + 1.0 / remote);
        Limit {
            operation,
            rows_per_sync: u64::from(load.rows),
            database_rows_per_second: database,
            remote_rows_per_second: remote,
            rows_per_second: both,
            share: reached(runs, operation, load.rows).map(|reached| reached / both),
        }
    };
    Ok((0..TimedOperation::TIMED.len()).map(limit).collect())
}

/// What Tidewater reached, rows a second.
fn reached(runs: &[OperationRun], operation: TimedOperation, rows: u32) -> Option<f64> {
    let ours = runs
        .iter()
        .filter(|run| run.operation == operation && run.rows_per_sync == u64::from(rows));
    let rates: Vec<f64> = ours.map(|run| run.rows_per_second).collect();
    (!rates.is_empty()).then(|| Spread::from_values(rates).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_large_as_those_of_the_server() {
        let load = Load {
            remotes: 130,
            rows: 1_000,
        };
        assert_eq!(load.batch(), 20);
        assert_eq!(load.batches().len(), 7);
        assert_eq!(load.batches().last(), Some(&(120..130)));
        let load = Load {
            remotes: 130,
            rows: 1,
        };
        assert_eq!(load.batches(), [0..64, 64..128, 128..130]);
        let load = Load {
            remotes: 2,
            rows: 100_000,
        };
        assert_eq!(load.batches(), [0..1, 1..2]);
    }
}
