//! What came of it.

use std::fmt::Write as _;

use serde::Serialize;

use crate::machine;
use crate::report::Machine;
use crate::spread::Spread;

/// One thing that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LivePoint {
    /// What.
    pub name: String,
    /// How many of it a second.
    pub per_second: Spread,
    /// Microseconds of one: half of all take at most that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
    /// And all but a hundredth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// The point of this run that it is to be compared with, and the share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<(String, f64)>,
    /// What others have published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<(&'static str, f64)>,
    /// What was to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct LiveReport {
    /// Which scenario.
    pub scenario: &'static str,
    /// Where.
    pub machine: Machine,
    /// `postgres` or `sqlite`.
    pub database: String,
    /// In the order in which they were measured.
    pub points: Vec<LivePoint>,
}

impl LiveReport {
    pub(super) fn new(scenario: &'static str, url: &str) -> LiveReport {
        let database = url.split_once(':').map_or(url, |(scheme, _)| scheme);
        LiveReport {
            scenario,
            machine: machine::look(),
            database: database.to_owned(),
            points: Vec::new(),
        }
    }
}

/// The report as a table for people.
pub fn live_table(report: &LiveReport) -> String {
    let mut text = String::new();
    for point in &report.points {
        let rate = &point.per_second;
        let _ = write!(
            text,
            "{:<58} {:>10.0} a second ({:.0} to {:.0})",
            point.name, rate.median, rate.min, rate.max
        );
        if let (Some(median), Some(p99)) = (point.median_us, point.p99_us) {
            let _ = write!(text, "; {median:.0} us, 99th {p99:.0} us");
        }
        if let Some((of, share)) = &point.of {
            let _ = write!(text, "; {share:.2} of {of}");
        }
        if let Some(goal) = point.goal {
            let _ = write!(text, "; goal {goal:.0}");
        }
        text.push('\n');
        for (who, rate) in &point.published {
            let _ = writeln!(text, "    {who}: {rate:.0}");
        }
    }
    text
}
