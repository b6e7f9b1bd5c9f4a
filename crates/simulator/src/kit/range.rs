//! Many seeds on several cores.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Extent, Kit, SeedOutcome, Tally, run};

/// What a range of seeds came to.
#[derive(Clone, Debug, Default)]
pub struct RangeOutcome {
    /// How many seeds were played.
    pub seeds: u64,
    /// What was done in them together.
    pub tally: Tally,
    /// The first one that broke a promise: seeds behind it are not played.
    pub failed: Option<SeedOutcome>,
}

/// Runs the seeds of a range on so many threads, up to the first that breaks a promise; `told` hears
/// how many are done. The same range comes to the same, however many threads there are.
pub fn run_range(
    kit: &Kit,
    seeds: Range<u64>,
    extent: Extent,
    threads: usize,
    told: &(dyn Fn(u64) + Sync),
) -> RangeOutcome {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let played: Mutex<Vec<SeedOutcome>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                        break;
                    }
                    let one = run(kit, seed, extent, false);
                    if one.failure.is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                    let mut played = played.lock().unwrap_or_else(PoisonError::into_inner);
                    played.push(one);
                    told(played.len() as u64);
                }
            });
        }
    });
    let mut played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
    played.sort_by_key(|it| it.seed);
    let first = failed.into_inner();
    let mut outcome = RangeOutcome::default();
    for one in played.into_iter().filter(|it| it.seed <= first) {
        outcome.seeds += 1;
        outcome.tally.add(&one.tally);
        if one.seed == first {
            // Once more, to tell what happened.
            outcome.failed = Some(run(kit, first, extent, true));
        }
    }
    outcome
}
