//! Samples, medians, spreads, and how they are printed.

use std::time::{Duration, Instant};

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
        Spread::of(per_row.collect())
    }
}

/// Median, smallest and largest of several values.
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values[middle - 1] + values[middle]) / 2.0
        } else {
            values[middle]
        };
        Spread {
            median,
            smallest: values[0],
            largest: values[values.len() - 1],
        }
    }

    /// The ratio `ours / theirs` of *rates*, that is `theirs / ours` of times, run by run.
    pub(crate) fn of_rates(ours: &Samples, theirs: &Samples) -> Spread {
        let pairs = ours.seconds().iter().zip(theirs.seconds());
        Spread::of(pairs.map(|(ours, theirs)| theirs / ours).collect())
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.smallest, self.largest
        )
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            (spread.median, spread.smallest, spread.largest),
            (2.5, 1.0, 4.0)
        );
    }
}
