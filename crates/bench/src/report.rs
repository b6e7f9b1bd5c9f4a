//! What a scenario has found, as `tidewater bench --json` prints it.
//!
//! Fields are only ever added. All times are in seconds, all sizes in bytes. Everything that a
//! table or a chart shows is here: whoever draws needs nothing else.

use serde::{Deserialize, Serialize};

use crate::spread::{Spread, percentile};

/// One scenario, run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioReport {
    /// Its name, as on the command line.
    pub scenario: String,
    /// What the scenario varies, as the title of an axis: `remotes`, `workers`, `rows a sync`.
    pub varied: String,
    /// Where it ran.
    pub machine: MachineReport,
    /// Every timed run of one operation, in the order in which they ran.
    pub runs: Vec<OperationRun>,
    /// The medians of the repeats, in the order in which the points were first run.
    pub medians: Vec<Median>,
    /// What the databases do alone, where that was asked.
    pub limit: Vec<Limit>,
    /// What a reader has to know to judge the figures.
    pub notes: Vec<String>,
}

/// The machine of the server, and the parts that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineReport {
    /// The processor's name.
    pub processor: String,
    /// Cores that the supervisor may use.
    pub cores: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// The operating system and its version.
    pub system: String,
    /// The version of Tidewater.
    pub tidewater: String,
    /// The kind and version of the consolidated database, and of its settings those that decide
    /// about speed: `PostgreSQL 15.8, fsync on, synchronous_commit on`.
    pub database: String,
    /// Whether the consolidated database runs on this machine.
    pub database_is_here: bool,
    /// The version of the remotes' SQLite.
    pub sqlite: String,
    /// Where the remotes' files are: `memory` or a folder.
    pub files: String,
    /// Processes that drive remotes.
    pub drivers: u64,
    /// Whether they ran on other machines.
    pub drivers_are_elsewhere: bool,
}

/// What the remotes of a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimedOperation {
    /// Rows that are new in the centre come down.
    Download,
    /// Changed rows go up, with conflict detection.
    Update,
    /// Deleted rows go up.
    Delete,
    /// New rows go up.
    Insert,
    /// Nothing is to do.
    Empty,
    /// Whatever a file of the user's own has pending goes up.
    Upload,
}

impl TimedOperation {
    /// The four timed syncs, in the order in which the database ends as it began.
    pub(crate) const TIMED: [TimedOperation; 4] = [
        TimedOperation::Download,
        TimedOperation::Update,
        TimedOperation::Delete,
        TimedOperation::Insert,
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TimedOperation::Download => "download",
            TimedOperation::Update => "update",
            TimedOperation::Delete => "delete",
            TimedOperation::Insert => "insert",
            TimedOperation::Empty => "empty",
            TimedOperation::Upload => "upload",
        }
    }
}

/// Where on the axis of what varies a run lies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What to write at the axis: `10`, `auto`, `limit 1024, fixed 5 s`.
    pub label: String,
    /// Its place on the axis, where that is a number.
    pub value: Option<f64>,
    /// Which line of a chart it belongs to, where there are several: `fast beside slow`.
    pub series: String,
    /// The label of the point that it is compared with, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
}

/// One operation of all remotes, over all sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationRun {
    /// What was done.
    pub operation: TimedOperation,
    /// Where it lies on the axis of what varies.
    pub point: Point,
    /// Which repeat, from 0.
    pub repeat: u64,
    /// Remotes that synced at once, in each set.
    pub remotes: u64,
    /// Rows of each sync.
    pub rows_per_sync: u64,
    /// Sets, of as many remotes each.
    pub sets: u64,
    /// Syncs that were done, over all sets.
    pub syncs: u64,
    /// Rows that were moved, over all sets.
    pub rows: u64,
    /// Change tracking in the centre: `log` or `off`.
    pub tracking: String,
    /// Workers for uploads and for downloads, each: a number or `auto`.
    pub workers: String,
    /// The limit of connections; none if all remotes could connect.
    pub connections: Option<u64>,
    /// The last end minus the first start of a set, summed over sets: the total server time.
    pub server_seconds: f64,
    /// Whose clock that is.
    pub clock: RunClock,
    /// The same by the clock of the drivers, from the first sync's start to the last one's end.
    /// Of drivers on several machines: the longest of their own.
    pub driver_seconds: f64,
    /// The same by the server's own history, in whole milliseconds; none if it was not whole.
    pub history_seconds: Option<f64>,
    /// Rows by total server time.
    pub rows_per_second: f64,
    /// Syncs by total server time.
    pub syncs_per_second: f64,
    /// How long single remotes took, from opening the file to after the commit, retries included.
    pub remote_seconds: Distribution,
    /// Processor time.
    pub cpu_seconds: Cpu,
    /// The most memory that the server had resident in the run; none if nobody could tell.
    pub server_peak_bytes: Option<u64>,
    /// How often remotes were sent away and came back.
    pub retries: u64,
    /// Rows that lost against the centre; only a file of the user's own can have such.
    pub conflicts: u64,
    /// Rows that the centre did not take; only a file of the user's own can have such.
    pub refused: u64,
    /// Bytes of the protocol that remotes sent.
    pub bytes_sent: u64,
    /// Bytes of the protocol that remotes received.
    pub bytes_received: u64,
    /// Where the time of a sync went, as remotes see it.
    pub phases: Phases,
}

/// Whose clock the total server time is by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunClock {
    /// The start and duration of each sync in the server's history.
    Server,
    /// The starts and ends that drivers saw: where the history's milliseconds are too coarse, or
    /// it is not whole.
    Drivers,
}

/// How the times of single remotes lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// Ninety-nine of a hundred are at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Distribution {
    /// Of some values.
    pub fn from_values(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        Distribution {
            min: percentile(&values, 0.0),
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            p50: percentile(&values, 0.5),
            p90: percentile(&values, 0.9),
            p99: percentile(&values, 0.99),
            max: percentile(&values, 1.0),
        }
    }
}

/// Processor time of the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Of the server; with an embedded database, of that too.
    pub server: f64,
    /// Of the database's processes; 0 if it is embedded in the server, none if it runs elsewhere.
    pub database: Option<f64>,
    /// Of all drivers, with their remotes.
    pub drivers: f64,
}

/// Seconds of one sync by what a remote was at, as a mean over all syncs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Opening the file.
    pub open: f64,
    /// Reaching the server and signing in.
    pub connect: f64,
    /// Sending.
    pub upload: f64,
    /// Waiting for the server's answer.
    pub wait: f64,
    /// Receiving.
    pub download: f64,
    /// Writing what was received.
    pub apply: f64,
    /// Sent away, until coming back.
    pub retry: f64,
}

impl Phases {
    /// Adds those of other syncs.
    pub fn add(&mut self, more: Phases) {
        self.open += more.open;
        self.connect += more.connect;
        self.upload += more.upload;
        self.wait += more.wait;
        self.download += more.download;
        self.apply += more.apply;
        self.retry += more.retry;
    }

    /// The sums, shared out over so many syncs.
    pub fn shared(self, syncs: u64) -> Phases {
        let share = |sum: f64| sum / syncs.max(1) as f64;
        Phases {
            open: share(self.open),
            connect: share(self.connect),
            upload: share(self.upload),
            wait: share(self.wait),
            download: share(self.download),
            apply: share(self.apply),
            retry: share(self.retry),
        }
    }
}

/// The repeats of one operation at one point, together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Median {
    /// What was done.
    pub operation: TimedOperation,
    /// Where it lies on the axis of what varies.
    pub point: Point,
    /// How often it was run.
    pub repeats: u64,
    /// Total server time.
    pub server_seconds: Spread,
    /// Rows by total server time.
    pub rows_per_second: Spread,
    /// Syncs by total server time.
    pub syncs_per_second: Spread,
    /// Microseconds of processor time of all parts that are here, for each sync.
    pub cpu_us_per_sync: Spread,
    /// By the point that it is compared with, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<PointComparison>,
}

/// A point by another one of the same run, repeat by repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointComparison {
    /// The other one's label.
    pub label: String,
    /// Total server time.
    pub server_seconds: Spread,
    /// Bytes sent and received.
    pub bytes: Spread,
}

/// What the databases do with the same rows, operations and batches, and nothing of ours between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// What was done.
    pub operation: TimedOperation,
    /// Rows of each sync that was imitated.
    pub rows_per_sync: u64,
    /// The consolidated database alone.
    pub database_rows_per_second: f64,
    /// The remotes' SQLite alone.
    pub remote_rows_per_second: f64,
    /// Both on the same cores: 1 / (1 / database + 1 / remote).
    pub rows_per_second: f64,
    /// What Tidewater reached in the same run, as a share of that; none if it was not measured.
    pub share: Option<f64>,
}

impl ScenarioReport {
    /// Makes the medians from the runs.
    pub fn summarize(&mut self) {
        let mut medians: Vec<Median> = Vec::new();
        for run in &self.runs {
            let is_known = |it: &Median| it.operation == run.operation && it.point == run.point;
            if !medians.iter().any(is_known) {
                medians.push(Median::for_point(run.operation, &run.point, &self.runs));
            }
        }
        self.medians = medians;
    }
}

impl PointComparison {
    fn for_point(
        operation: TimedOperation,
        point: &Point,
        runs: &[OperationRun],
    ) -> Option<PointComparison> {
        let label = point.against.clone()?;
        let of_operation = || runs.iter().filter(|run| run.operation == operation);
        let pairs = of_operation().filter(|run| run.point == *point);
        let pairs = pairs.filter_map(|run| {
            let is_other = |it: &&OperationRun| it.repeat == run.repeat && it.point.label == label;
            Some((run, of_operation().find(is_other)?))
        });
        let pairs: Vec<(&OperationRun, &OperationRun)> = pairs.collect();
        let spread = |value: fn(&OperationRun) -> f64| {
            let ratios = pairs.iter().map(|(run, other)| value(run) / value(other));
            Spread::from_values(ratios.filter(|it| it.is_finite()).collect())
        };
        Some(PointComparison {
            server_seconds: spread(|run| run.server_seconds),
            bytes: spread(|run| (run.bytes_sent + run.bytes_received) as f64),
            label,
        })
    }
}

impl Median {
    fn for_point(operation: TimedOperation, point: &Point, runs: &[OperationRun]) -> Median {
        let against = PointComparison::for_point(operation, point, runs);
        let ours = |run: &&OperationRun| run.operation == operation && run.point == *point;
        let runs: Vec<&OperationRun> = runs.iter().filter(ours).collect();
        let spread = |value: fn(&OperationRun) -> f64| {
            Spread::from_values(runs.iter().map(|run| value(run)).collect())
        };
        Median {
            operation,
            point: point.clone(),
            repeats: runs.len() as u64,
            server_seconds: spread(|run| run.server_seconds),
            rows_per_second: spread(|run| run.rows_per_second),
            syncs_per_second: spread(|run| run.syncs_per_second),
            cpu_us_per_sync: spread(|run| {
                let cpu = run.cpu_seconds;
                let all = cpu.server + cpu.database.unwrap_or(0.0) + cpu.drivers;
                all * 1e6 / run.syncs.max(1) as f64
            }),
            against,
        }
    }
}
