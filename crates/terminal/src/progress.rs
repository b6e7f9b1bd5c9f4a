//! The progress of a sync, as one line at the foot of the terminal.
//!
//! When standard error is not a terminal, logs of scripts stay clean: nothing is written but what
//! keeps the sync waiting, once for each reason.

use std::cell::Cell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidewater_client::{SyncPhase, SyncProgress};
use tidewater_protocol::Code;

use crate::output::{bytes, counted, duration, printable};

/// How often the line is drawn, at most, in times a second.
const DRAWN_PER_SECOND: u8 = 15;

/// A pace is told after so long.
const MEASURED_FOR: Duration = Duration::from_secs(2);

/// The line.
pub struct ProgressLine {
    bar: ProgressBar,
    pace: Cell<Pace>,
    /// Whether it is told on lines of their own what keeps the sync waiting.
    tells: bool,
    /// What was told last, as long as it holds.
    delay: Cell<Option<Delay>>,
}

/// Since when a phase, or a table of it, is under way, and how far it was then.
#[derive(Clone, Copy, Default)]
struct Pace {
    phase: SyncPhase,
    expected_rows: u64,
    since: Duration,
    bytes: u64,
    rows: u64,
}

/// What keeps a sync waiting, beside other syncs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delay {
    /// The server turned the sync away, or the line broke.
    Retry(Code),
    /// The server waits for a handler.
    Handler,
}

impl Delay {
    /// What keeps it waiting in a phase. Between two tries it connects, which ends no delay.
    fn in_phase(phase: SyncPhase, before: Option<Delay>) -> Option<Delay> {
        match phase {
            SyncPhase::Retrying { reason, .. } => Some(Delay::Retry(reason)),
            SyncPhase::WaitingForHandler => Some(Delay::Handler),
            _ => match before {
                // Each break of a line brings the download further, and is one of its own.
                Some(Delay::Retry(reason)) if is_of_the_line(reason) => None,
                before => before,
            },
        }
    }
}

impl Pace {
    /// What is said of it after some time: how much a second, and how long it takes still.
    fn describe(&mut self, progress: &SyncProgress, now: Duration) -> String {
        let bytes_now = progress.bytes_sent + progress.bytes_received;
        let is_same = (self.phase, self.expected_rows) == (progress.phase, progress.expected_rows);
        if !is_same || progress.rows < self.rows {
            *self = Pace {
                phase: progress.phase,
                expected_rows: progress.expected_rows,
                since: now,
                bytes: bytes_now,
                rows: progress.rows,
            };
        }
        let passed = now.saturating_sub(self.since).as_secs_f64();
        let is_moving = matches!(
            progress.phase,
            SyncPhase::Uploading | SyncPhase::Downloading
        );
        if !is_moving || passed < MEASURED_FOR.as_secs_f64() {
            return String::new();
        }
        let mut text = format!(
            ", {}/s",
            bytes((bytes_now.saturating_sub(self.bytes) as f64 / passed) as u64)
        );
        let (done, left) = (
            progress.rows - self.rows,
            progress.expected_rows.saturating_sub(progress.rows),
        );
        if done > 0 && left > 0 {
            let left_s = (passed * left as f64 / done as f64).ceil() as u64;
            text.push_str(&format!(", about {} left", duration(left_s * 1_000)));
        }
        text
    }
}

impl ProgressLine {
    /// A line on standard error, or none if that is no terminal or nobody wants it.
    pub fn new(wanted: bool) -> ProgressLine {
        let bar = line(wanted);
        ProgressLine {
            tells: wanted && bar.is_hidden(),
            bar,
            pace: Cell::default(),
            delay: Cell::default(),
        }
    }

    /// Shows how far the sync is.
    pub fn show(&self, progress: &SyncProgress) {
        if !self.bar.is_hidden() {
            let mut pace = self.pace.get();
            let told = pace.describe(progress, self.bar.elapsed());
            self.pace.set(pace);
            self.bar.set_message(describe(progress) + &told);
            self.bar.tick();
        }
        let before = self.delay.get();
        let delay = Delay::in_phase(progress.phase, before);
        self.delay.set(delay);
        if self.tells && delay.is_some() && delay != before {
            eprintln!("{}", describe(progress));
        }
    }
}

/// How many of so many things are done, as one line at the foot of the terminal. Several threads
/// may show it.
pub struct CountLine {
    bar: ProgressBar,
    what: &'static str,
    all: u64,
}

impl CountLine {
    /// As [`ProgressLine::new`].
    pub fn new(wanted: bool, what: &'static str, all: u64) -> CountLine {
        let bar = line(wanted);
        CountLine { bar, what, all }
    }

    /// Shows how many are done.
    pub fn show(&self, done: u64) {
        if !self.bar.is_hidden() {
            let (what, all) = (self.what, self.all);
            self.bar.set_message(format!("{done} of {all} {what}"));
            self.bar.tick();
        }
    }
}

impl Drop for CountLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What stands on the screen afterwards is the result, not the line.
impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn line(wanted: bool) -> ProgressBar {
    let target = if wanted {
        ProgressDrawTarget::stderr_with_hz(DRAWN_PER_SECOND)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

fn describe(progress: &SyncProgress) -> String {
    let doing = match progress.phase {
        SyncPhase::Connecting => "connecting",
        SyncPhase::Uploading => "uploading",
        SyncPhase::Comparing => "comparing",
        SyncPhase::Waiting { ahead: 0 } => "waiting for the server",
        SyncPhase::WaitingForHandler => {
            return "the server waits for a handler, a program of its operator".into();
        }
        SyncPhase::Waiting { ahead } => {
            let syncs = counted(ahead, "sync", "syncs");
            return format!("waiting for the server, {syncs} ahead");
        }
        SyncPhase::Retrying { reason, in_ms } => return describe_retry(reason, in_ms),
        SyncPhase::Downloading => "downloading",
        SyncPhase::Applying => "applying",
        _ => "finishing",
    };
    let mut line = doing.to_owned();
    if let Some(table) = &progress.table {
        line.push(' ');
        line.push_str(&printable(table));
    }
    match (progress.rows, progress.expected_rows) {
        (0, 0) => {}
        (rows, 0) => line.push_str(&format!(": {}", counted(rows, "row", "rows"))),
        (rows, expected) => line.push_str(&format!(": {rows} of {expected} rows")),
    }
    let traffic = match progress.phase {
        SyncPhase::Uploading => Some((progress.bytes_sent, "sent")),
        SyncPhase::Downloading => Some((progress.bytes_received, "received")),
        _ => None,
    };
    if let Some((count, direction)) = traffic.filter(|(count, _)| *count > 0) {
        line.push_str(&format!(", {} {direction}", bytes(count)));
    }
    if progress.bytes_kept > 0 && progress.phase == SyncPhase::Downloading {
        line.push_str(&format!(" after {}", bytes(progress.bytes_kept)));
    }
    line
}

fn is_of_the_line(reason: Code) -> bool {
    matches!(
        reason,
        Code::ConnectionLost | Code::Unreachable | Code::Timeout
    )
}

fn describe_retry(reason: Code, in_ms: u64) -> String {
    let why = match reason {
        Code::Busy => "the server is busy",
        Code::ShuttingDown => "the server is shutting down",
        Code::ConsolidatedUnavailable => "the server cannot reach its database",
        Code::HandlerAway => "a handler of the server does not answer it",
        Code::SyncInProgress => "another sync of this remote is under way",
        Code::Redeployed => "what is published was changed",
        reason if is_of_the_line(reason) => "the connection broke",
        _ => "the server cannot serve this sync now",
    };
    // Counted up, so that the last second is one.
    format!("{why}: again in {} s", in_ms.div_ceil(1_000))
}
