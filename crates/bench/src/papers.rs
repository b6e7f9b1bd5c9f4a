//! What others have published of the same measurements, to be compared with.
//!
//! Owns the figures, under which conditions they were measured, and which scenario repeats them.
//! Nothing here is of ours.

use crate::report::{Median, ScenarioReport, TimedOperation};

/// A publication, and what it was measured on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paper {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) machine: &'static str,
}

/// How long one operation took.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) paper: &'static Paper,
    /// The scenario that repeats it.
    pub(crate) scenario: &'static str,
    pub(crate) operation: TimedOperation,
    /// What was done.
    pub(crate) conditions: &'static str,
    pub(crate) seconds: f64,
    /// How many rows that were; none where it is not known, and there is no rate.
    pub(crate) rows: Option<f64>,
}

/// How two settings of one scenario compare, which says the same on any machine.
#[derive(Debug)]
pub(crate) struct Ratio {
    pub(crate) paper: &'static Paper,
    pub(crate) scenario: &'static str,
    /// What by what.
    pub(crate) what: &'static str,
    /// None: all four operations added up.
    pub(crate) operation: Option<TimedOperation>,
    /// The two published times.
    pub(crate) seconds: (f64, f64),
    pub(crate) kind: RatioKind,
}

/// What of a report a ratio is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RatioKind {
    /// Rows a second at 100 rows a sync by those at 10,000.
    SmallByLarge,
    /// The time with a limit of connections, at its best, by that without.
    LimitedByUnlimited,
}

static MOBILINK_12: Paper = Paper {
    name: "MobiLink 12",
    source: "MobiLink 12 Performance, white paper, version 1.0, Sybase, March 2012",
    machine: "a server of 2 x 12 cores, the consolidated database in memory, ten client machines",
};

static MOBILINK_9: Paper = Paper {
    name: "MobiLink 9",
    source: "The white paper on MobiLink performance of SQL Anywhere 9, iAnywhere",
    machine: "one server with four processors",
};

static MERGE_REPLICATION: Paper = Paper {
    name: "SQL Server merge replication",
    source: "Microsoft's measurements of SQL Server merge replication",
    machine: "eight servers",
};

const fn scaled(operation: TimedOperation, seconds: f64) -> Figure {
    Figure {
        paper: &MOBILINK_12,
        scenario: "remotes",
        operation,
        conditions: "10,000 syncs of 1,000 rows",
        seconds,
        rows: Some(10_000_000.0),
    }
}

const fn older(operation: TimedOperation, seconds: f64) -> Figure {
    Figure {
        paper: &MOBILINK_9,
        scenario: "remotes",
        operation,
        conditions: "one server; how many rows these were is not told here, so there is no rate",
        seconds,
        rows: None,
    }
}

static FIGURES: [Figure; 9] = [
    scaled(TimedOperation::Download, 21.3),
    scaled(TimedOperation::Update, 88.1),
    scaled(TimedOperation::Delete, 57.8),
    scaled(TimedOperation::Insert, 33.2),
    older(TimedOperation::Download, 644.0),
    older(TimedOperation::Update, 2_072.0),
    older(TimedOperation::Delete, 1_116.0),
    older(TimedOperation::Insert, 773.0),
    Figure {
        paper: &MERGE_REPLICATION,
        scenario: "merge",
        operation: TimedOperation::Update,
        conditions: "1,200 subscribers that update rows of their own; 20,976,000 rows an hour",
        seconds: 3_600.0,
        rows: Some(20_976_000.0),
    },
];

const fn sized(operation: TimedOperation, small: f64, large: f64) -> Ratio {
    Ratio {
        paper: &MOBILINK_12,
        scenario: "size",
        what: "rows a second at 100 rows a sync, by those at 10,000",
        operation: Some(operation),
        // The same rows in less time are more rows a second: the other way round.
        seconds: (large, small),
        kind: RatioKind::SmallByLarge,
    }
}

static RATIOS: [Ratio; 5] = [
    sized(TimedOperation::Download, 70.7, 13.6),
    sized(TimedOperation::Update, 360.5, 88.4),
    sized(TimedOperation::Delete, 458.7, 58.3),
    sized(TimedOperation::Insert, 321.8, 36.4),
    Ratio {
        paper: &MOBILINK_12,
        scenario: "retry",
        what: "time of all four operations with a limit of 1,024 connections at its best, by that \
               without a limit (10,000 remotes of 1,000 rows)",
        operation: None,
        seconds: (344.6, 203.7),
        kind: RatioKind::LimitedByUnlimited,
    },
];

impl Figure {
    /// Rows by seconds.
    pub(crate) fn rows_per_second(&self) -> Option<f64> {
        self.rows.map(|rows| rows / self.seconds)
    }
}

impl Ratio {
    /// The published ratio.
    pub(crate) fn published(&self) -> f64 {
        self.seconds.0 / self.seconds.1
    }

    /// The same of a report; none if it has not measured both.
    pub(crate) fn here(&self, report: &ScenarioReport) -> Option<f64> {
        match self.kind {
            RatioKind::SmallByLarge => {
                let rate = |rows: f64| {
                    let of = |it: &&Median| {
                        Some(it.operation) == self.operation && it.point.value == Some(rows)
                    };
                    let median = report.medians.iter().find(of)?;
                    Some(median.rows_per_second.median)
                };
                Some(rate(100.0)? / rate(10_000.0)?)
            }
            RatioKind::LimitedByUnlimited => {
                let unlimited = sum(report, |connections| connections.is_none())?;
                let limited = sum(report, |connections| connections.is_some())?;
                Some(limited / unlimited)
            }
        }
    }
}

/// The least sum of the operations' times over the points with such a limit.
fn sum(report: &ScenarioReport, has: impl Fn(Option<u64>) -> bool) -> Option<f64> {
    let runs = report.runs.iter().filter(|run| has(run.connections));
    let labels: Vec<&str> = runs.map(|run| run.point.label.as_str()).collect();
    let sums = labels.into_iter().map(|label| {
        let ours = report.medians.iter().filter(|it| it.point.label == label);
        ours.map(|it| it.server_seconds.median).sum::<f64>()
    });
    sums.min_by(f64::total_cmp)
}

/// The figures that a scenario repeats.
pub(crate) fn figures(scenario: &str) -> Vec<&'static Figure> {
    FIGURES
        .iter()
        .filter(|it| it.scenario == scenario)
        .collect()
}

/// The ratios that a scenario repeats.
pub(crate) fn ratios(scenario: &str) -> Vec<&'static Ratio> {
    RATIOS.iter().filter(|it| it.scenario == scenario).collect()
}
