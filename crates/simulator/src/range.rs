//! Many seeds on several cores, and what they came to together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::chronicle::SimulationOutcome;
use crate::clerk;
use crate::disks;
use crate::hierarchy;
use crate::host;
use crate::judge;
use crate::market;
use crate::network;
use crate::office;
use crate::operator;
use crate::plan::Plan;
use crate::remote;
use crate::run;
use crate::simulation;

/// What a range of seeds came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// How many seeds.
    pub seeds: u64,
    /// Connections that carried a session.
    pub sessions: u64,
    /// How long it took in their own time.
    pub simulated_seconds: u64,
    /// By seed.
    pub failures: Vec<SeedFailure>,
    /// How often each kind of fault came about; all kinds are there.
    pub faults: BTreeMap<&'static str, u64>,
}

/// A seed that broke a promise.
#[derive(Clone, Debug, Serialize)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// The promise, and what broke it.
    pub what: String,
}

impl Summary {
    fn add(&mut self, seed: u64, ended: SimulationOutcome) {
        self.seeds += 1;
        self.sessions += ended.sessions;
        self.simulated_seconds += ended.simulated_ms / 1_000;
        for (kind, count) in ended.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        if let Some(what) = ended.failure {
            self.failures.push(SeedFailure { seed, what });
        }
    }
}

/// Runs the seeds of a range on so many threads.
pub fn run_all(seeds: Range<u64>, threads: usize) -> Summary {
    run_each(seeds, threads, &|plan| run(plan, false))
}

/// Runs the seeds of a range on so many threads, in this way.
pub(crate) fn run_each(
    seeds: Range<u64>,
    threads: usize,
    run: &(dyn Fn(Plan) -> SimulationOutcome + Sync),
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary {
        faults: kinds().map(|kind| (kind, 0)).collect(),
        ..Summary::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let ended = run(Plan::for_seed(seed));
                    let mut summary = summary.lock().expect("nobody panics while holding it");
                    summary.add(seed, ended);
                }
            });
        }
    });
    let mut summary = summary
        .into_inner()
        .expect("nobody panics while holding it");
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

/// Every kind of fault that there is.
fn kinds() -> impl Iterator<Item = &'static str> {
    let kinds = [
        network::KINDS,
        operator::KINDS,
        remote::ACCIDENTS,
        remote::LOSSES,
        remote::ASKING,
        remote::ADOPTIONS,
        remote::CALLING,
        office::KINDS,
        office::HANDLING,
        clerk::KINDS,
        judge::RESOLUTIONS,
        disks::KINDS,
        hierarchy::KINDS,
        market::KINDS[0],
        market::KINDS[1],
        &[host::EXHAUSTED, simulation::LOCKED],
    ];
    kinds.into_iter().flatten().copied()
}
