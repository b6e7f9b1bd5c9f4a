//! Samples, medians, spreads, and how they are printed.

use std::time::{Duration, Instant};

pub(crate) use tidewater_bench::spread::Spread;

/// Times of several runs of one thing.
#[derive(Default)]
pub(crate) struct Samples {
    seconds: Vec<f64>,
}

impl Samples {
    /// Adds a run.
    pub(crate) fn add(&mut self, duration: Duration) {
        self.seconds.push(duration.as_secs_f64());
    }

    /// The seconds of each run, in order.
    pub(crate) fn seconds(&self) -> &[f64] {
        &self.seconds
    }

    /// Microseconds a row: median, smallest, largest.
    pub(crate) fn micros_per_row(&self, rows: i32) -> Spread {
        let per_row = self
            .seconds
            .iter()
            .map(|seconds| seconds * 1e6 / f64::from(rows));
        Spread::from_values(per_row.collect())
    }
}

/// The ratio `ours / theirs` of *rates*, that is `theirs / ours` of times, run by run.
pub(crate) fn of_rates(ours: &Samples, theirs: &Samples) -> Spread {
    let pairs = ours.seconds().iter().zip(theirs.seconds());
    Spread::from_values(pairs.map(|(ours, theirs)| theirs / ours).collect())
}

/// Runs something and tells how long it took.
pub(crate) fn time<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Duration)> {
    let start = Instant::now();
    let result = run()?;
    Ok((result, start.elapsed()))
}

/// Prints one line of results.
pub(crate) fn line(what: &str, spread: &Spread, unit: &str) {
    println!("  {what:<58} {spread} {unit}");
}

/// Prints a ratio beside its goal.
pub(crate) fn goal(what: &str, ratio: &Spread, at_least: f64) {
    let verdict = if ratio.median >= at_least {
        "met"
    } else {
        "NOT met"
    };
    println!("  {what:<58} {ratio} times; goal at least {at_least}: {verdict}");
}

/// Prints a ratio of costs beside its goal.
pub(crate) fn at_most(what: &str, ratio: &Spread, goal: f64) {
    let verdict = if ratio.median <= goal {
        "met"
    } else {
        "NOT met"
    };
    println!("  {what:<58} {ratio} times; goal at most {goal}: {verdict}");
}
