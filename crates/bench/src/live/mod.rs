//! What is measured beside a reference: calls, events and wake-ups of the live layer under load, and
//! first syncs from images. A server of its own, and programs that are
//! processes of their own; each point beside a reference of the same run.

mod calls;
mod client;
mod events;
mod images;
mod report;
mod stage;
mod trial;
mod wake;

use std::path::PathBuf;

pub use self::client::client;
pub use self::report::{Goal, LivePoint, LiveReport, Unit, live_table};
use self::stage::Stage;
use self::trial::{Trial, run_all};
use crate::supervisor::Watcher;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveScenario {
    /// Procedures.
    Calls,
    /// Spaces.
    Events,
    /// Remotes that are told that something has changed.
    Wake {
        /// How many are live while one of them is told.
        remotes: u32,
        /// How many are live while the server's memory is measured.
        idle: u32,
    },
    /// First syncs, by rows and from an image.
    Images {
        /// How many rows the remote has then.
        rows: u32,
    },
}

/// How.
#[derive(Clone, Debug)]
pub struct LiveBenchOptions {
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
pub fn run_live(options: &LiveBenchOptions, watcher: &Watcher<'_>) -> anyhow::Result<LiveReport> {
    let (name, setting) = match options.scenario {
        LiveScenario::Calls => ("calls", calls::setting()),
        LiveScenario::Events => ("events", events::setting()),
        LiveScenario::Wake { remotes, idle } => ("wake", wake::setting(remotes, idle)),
        LiveScenario::Images { rows } => ("images", images::setting(rows)),
    };
    let mut stage = Stage::set(options, &setting)?;
    let trials: Vec<Trial> = match options.scenario {
        LiveScenario::Calls => calls::trials(options),
        LiveScenario::Events => events::trials(options),
        LiveScenario::Wake { remotes, idle } => wake::trials(options, remotes, idle),
        LiveScenario::Images { rows } => images::trials(rows),
    };
    let measured = run_all(trials, options, watcher, &mut stage);
    let database = stage.base.describe();
    let cleared = stage.clear();
    let points = measured?;
    cleared?;
    Ok(LiveReport::new(name, database?, points))
}
