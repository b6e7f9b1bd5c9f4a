//! The test kit for users: their own configuration, scripts and schema in the simulated world.
//!
//! Network, hosts, disks and the product are those of the other world. What is generic is here: who
//! edits tables that nobody here has seen ([`editor`]), and what can be asked of any table
//! ([`ledger`], [`compare`]). What a script means nobody knows; that what a device has written is
//! somewhere, that it is there once, and that devices have what the centre has, holds for all.

mod answers;
mod compare;
mod double;
mod editable;
mod editor;
mod ledger;
mod prepare;
mod range;
mod remote;
mod simulation;
mod tables;
mod tally;
#[cfg(test)]
mod tests;
mod translated;
mod values;
mod watch;
mod world;

pub use answers::HandlerAnswers;
pub use prepare::{Kit, KitOptions, MOST_BYTES};
pub use range::{RangeOutcome, run_range};
pub use tally::{RefusedRows, Tally};
pub(crate) use watch::opened;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tidewater_centre::CentreError;
use tokio::task::LocalSet;

use crate::chronicle::Chronicle;
use crate::random::SeededRandom;
use crate::vfs;

/// When every simulation begins, in milliseconds since 1970: noon of 15 January 2026.
pub(crate) const BEGIN_MS: i64 = 1_768_478_400_000;

/// How much of everything there is in the world of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many remotes.
    pub remotes: u64,
    /// How often each of them syncs.
    pub syncs: u64,
}

/// Why there is nothing to simulate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KitError {
    /// The consolidated database cannot be copied.
    #[error("{what}")]
    Centre {
        /// What is wrong.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// Something was asked for that cannot be.
    #[error("{what}")]
    Usage {
        /// What is wrong.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The configuration does not fit the database.
    #[error(transparent)]
    Configuration(#[from] CentreError),
    /// SQLite failed.
    #[error("the copy of the consolidated database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Our own fault.
    #[error("{0}")]
    Internal(String),
}

/// How the world of a seed ended.
#[derive(Clone, Debug)]
pub struct SeedOutcome {
    /// Its seed.
    pub seed: u64,
    /// The first promise that was broken.
    pub failure: Option<String>,
    /// What happened, each line after its simulated milliseconds, if it was to be kept.
    pub lines: Vec<String>,
    /// What was done.
    pub tally: Tally,
}

/// Runs the world of a seed; with `readable` it keeps what happened.
pub fn run(kit: &Kit, seed: u64, extent: Extent, readable: bool) -> SeedOutcome {
    crate::watch_panics();
    crate::PANICS.with_borrow_mut(Option::take);
    let mut random = SeededRandom::new(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads needs nothing of the system");
    let chronicle = runtime.block_on(async { Rc::new(Chronicle::new(readable)) });
    let tally = Rc::new(std::cell::RefCell::new(Tally::default()));
    watch::begin(Some(&kit.known.audit), random.fork());
    let played = catch_unwind(AssertUnwindSafe(|| {
        let tasks = LocalSet::new();
        let world = async {
            vfs::set_clock(Some(BEGIN_MS), true);
            simulation::play(kit, extent, random, &chronicle, &tally).await;
        };
        tasks.block_on(&runtime, world);
    }));
    let panicked = crate::PANICS.with_borrow_mut(Option::take);
    if let Some(what) = panicked.or(played.err().map(|_| "a panic".to_owned())) {
        chronicle.failed(format!("panic: {what}"));
    }
    let ended = runtime.block_on(async { chronicle.conclude() });
    let ended = crate::leaks(&runtime, ended);
    drop(runtime);
    vfs::set_clock(None, false);
    watch::end();
    let mut tally = tally.borrow().clone();
    tally.faults = ended.faults;
    tally.connections = ended.sessions;
    tally.simulated_ms = ended.simulated_ms;
    SeedOutcome {
        seed,
        failure: ended.failure,
        lines: ended.lines,
        tally,
    }
}
