//! Judging the judges: simulations of a product with a deliberate defect.

use std::ops::Range;

use tidewater_protocol::defect::{Defect, with};

use crate::chronicle::Ended;
use crate::plan::Plan;
use crate::range::{Summary, run_each};
use crate::run;

/// A defect that a judge saw.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The first seed in which it showed.
    pub seed: u64,
    /// What the judge said.
    pub what: String,
}

/// Runs a simulation of a product with this defect.
pub fn run_with(defect: Defect, plan: Plan, readable: bool) -> Ended {
    with(Some(defect), || run(plan, readable))
}

/// Runs the seeds of a range with this defect, on so many threads.
pub fn run_all_with(defect: Defect, seeds: Range<u64>, threads: usize) -> Summary {
    run_each(seeds, threads, &|plan| run_with(defect, plan, false))
}

/// The first seed in which a judge sees the defect. A seed that fails without it is none.
pub fn hunt(defect: Defect, mut seeds: Range<u64>) -> Option<Caught> {
    seeds.find_map(|seed| {
        let what = run_with(defect, Plan::of(seed), false).failure?;
        let sound = run(Plan::of(seed), false).failure.is_none();
        sound.then_some(Caught { seed, what })
    })
}
