//! What came of it.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::machine;
use crate::report::MachineReport;
use crate::spread::Spread;

/// One thing that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LivePoint {
    /// What.
    pub name: String,
    /// How much, or how many.
    pub value: Spread,
    /// Of what.
    pub unit: Unit,
    /// Microseconds of one: half of all take at most that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
    /// And all but a hundredth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// The share of events that a subscriber was too slow for.
    pub missed: f64,
    /// What of this run it is to be compared with, and the share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of: Option<(String, f64)>,
    /// What others have published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<(&'static str, f64)>,
    /// What was to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// So many a second.
    PerSecond,
    /// Milliseconds.
    Milliseconds,
    /// KiB.
    Kib,
    /// Hundredths of a processor core.
    CorePercent,
}

impl Unit {
    /// As people write it.
    pub fn text(self) -> &'static str {
        match self {
            Unit::PerSecond => "a second",
            Unit::Milliseconds => "ms",
            Unit::Kib => "KiB",
            Unit::CorePercent => "% of a core",
        }
    }

    /// What is measured in it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Unit::PerSecond => "How many a second",
            Unit::Milliseconds => "How long",
            Unit::Kib => "Memory",
            Unit::CorePercent => "Processor time",
        }
    }
}

/// What was to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The value is to be at least that.
    AtLeast(f64),
    /// At most that.
    AtMost(f64),
    /// At least this share of what it is compared with.
    Share(f64),
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtLeast(least) => write!(f, "{least:.0}"),
            Goal::AtMost(most) => write!(f, "{most:.0} at most"),
            Goal::Share(share) => write!(f, "a share of {share}"),
        }
    }
}

impl LivePoint {
    /// Whether its goal is reached, if it has one.
    pub fn is_reached(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::AtLeast(least) => self.value.median >= least,
            Goal::AtMost(most) => self.value.median <= most,
            Goal::Share(least) => self.share_of.as_ref()?.1 >= least,
        })
    }
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct LiveReport {
    /// Which scenario.
    pub scenario: &'static str,
    /// Where.
    pub machine: MachineReport,
    /// In the order in which they were measured first.
    pub points: Vec<LivePoint>,
}

impl LiveReport {
    pub(super) fn new(
        scenario: &'static str,
        database: String,
        points: Vec<LivePoint>,
    ) -> LiveReport {
        LiveReport {
            scenario,
            machine: MachineReport {
                database,
                ..machine::look()
            },
            points,
        }
    }
}

/// The report as a table for people.
pub fn live_table(report: &LiveReport) -> String {
    let mut text = String::new();
    for point in &report.points {
        let Spread { median, min, max } = point.value;
        let digits = usize::from(max < 1_000.0);
        let _ = write!(
            text,
            "{:<58} {median:>10.digits$} {} ({min:.digits$} to {max:.digits$})",
            point.name,
            point.unit.text(),
        );
        if let (Some(median), Some(p99)) = (point.median_us, point.p99_us) {
            let _ = write!(text, "; {median:.0} us, 99th {p99:.0} us");
        }
        if let Some((of, share)) = &point.share_of {
            let _ = write!(text, "; {share:.2} of {of}");
        }
        if point.missed > 0.0 {
            let _ = write!(text, "; {:.1} % missed", point.missed * 100.0);
        }
        if let (Some(goal), Some(reached)) = (point.goal, point.is_reached()) {
            let verdict = if reached { "reached" } else { "MISSED" };
            let _ = write!(text, "; goal {goal}: {verdict}");
        }
        text.push('\n');
        for (who, rate) in &point.published {
            let _ = writeln!(text, "    {who}: {rate:.0}");
        }
    }
    text
}
