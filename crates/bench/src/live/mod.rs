//! The live layer under load: calls, events, wake-ups. A server of its own, and programs that are
//! processes of their own; each point beside a reference of the same run.

mod calls;
mod client;
mod report;
mod stage;

use std::path::PathBuf;

pub use self::client::client;
pub use self::report::{LivePoint, LiveReport, live_table};
use crate::supervisor::Watcher;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveScenario {
    /// Procedures.
    Calls,
}

/// How.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// What.
    pub scenario: LiveScenario,
    /// The consolidated database; an SQLite file of its own without one.
    pub consolidated: Option<String>,
    /// How long each point is measured.
    pub seconds: f64,
    /// How often.
    pub repeat: u32,
    /// Where files are made.
    pub files: Option<PathBuf>,
}

/// Measures.
///
/// # Errors
/// The database is not empty, or something broke.
pub fn run_live(options: &LiveOptions, watcher: &Watcher<'_>) -> anyhow::Result<LiveReport> {
    match options.scenario {
        LiveScenario::Calls => calls::run(options, watcher),
    }
}
