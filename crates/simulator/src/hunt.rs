//! The hunt for a seed in which a judge sees a deliberate defect of the product.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chronicle::SimulationOutcome;
use crate::defects::{Defect, with};
use crate::plan::Plan;
use crate::range::{Summary, run_each};
use crate::run;

/// The seeds that last showed each defect: a name and a seed in each line.
const SEEDS: &str = include_str!("../defects.txt");

/// The seeds among which a defect must be seen.
pub const HUNTED: Range<u64> = 0..4_000;

/// A defect that a judge saw.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The seed in which it showed.
    pub seed: u64,
    /// What the judge said.
    pub what: String,
}

/// Runs a simulation of a product with this defect.
pub fn run_with(defect: Defect, plan: Plan, readable: bool) -> SimulationOutcome {
    with(Some(defect), || run(plan, readable))
}

/// Runs the seeds of a range with this defect, on so many threads.
pub fn run_all_with(defect: Defect, seeds: Range<u64>, threads: usize) -> Summary {
    run_each(seeds, threads, &|plan| run_with(defect, plan, false))
}

/// The seed that the list names for a defect.
pub fn listed(defect: Defect) -> Option<u64> {
    SEEDS.lines().find_map(|line| {
        let (name, seed) = line.split_once(' ')?;
        (name == defect.name()).then(|| seed.trim().parse().ok())?
    })
}

/// The first of these seeds in which a judge sees the defect. A seed that fails without it is
/// none.
pub fn hunt(defect: Defect, mut seeds: impl Iterator<Item = u64>) -> Option<Caught> {
    seeds.find_map(|seed| {
        let what = run_with(defect, Plan::for_seed(seed), false).failure?;
        let sound = run(Plan::for_seed(seed), false).failure.is_none();
        sound.then_some(Caught { seed, what })
    })
}

fn tell(defect: Defect, caught: Option<&Caught>) {
    match caught {
        Some(Caught { seed, what }) => {
            let what = what.lines().next().unwrap_or_default();
            println!("{:<30}{seed:>6}  {what}", defect.name());
        }
        None => println!("{:<30}  seen by no judge", defect.name()),
    }
}

/// Hunts for all defects on all cores, tells of each, and gives them in the order of their
/// names. `seeds`: where to look for one.
pub fn hunt_all<I: Iterator<Item = u64>>(
    seeds: impl Fn(Defect) -> I + Sync,
) -> Vec<(Defect, Option<Caught>)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(Defect, Option<Caught>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&defect) = Defect::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = hunt(defect, seeds(defect));
                    tell(defect, caught.as_ref());
                    let mut results = results.lock().expect("nobody panics while holding it");
                    results.push((defect, caught));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("every thread has ended");
    results.sort_by_key(|(defect, _)| defect.name());
    results
}
