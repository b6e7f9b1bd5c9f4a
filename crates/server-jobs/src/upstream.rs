//! What a branch's server knows of its line to headquarters.
//!
//! The line itself is a remote like any other, on the same file, and kept by whoever runs the
//! server (the `tidewater` program). It notes here what came of each sync: devices are told what
//! is above their branch, and operators how the line is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The line to headquarters, as it was last. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Upstream(Arc<Mutex<UpstreamState>>);

#[derive(Debug, Default)]
struct UpstreamState {
    /// There is such a state.
    is_there: bool,
    above: Vec<String>,
    synced: Option<Instant>,
    is_failing: bool,
    pending: u64,
    refused: u64,
}

/// What operators are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpstreamFigures {
    /// Since the last sync that was done; `None` if there was none since the start.
    pub age: Option<Duration>,
    /// The last sync failed.
    pub is_failing: bool,
    /// Rows of the branch that wait for headquarters.
    pub pending: u64,
    /// Rows of the branch that headquarters has refused.
    pub refused: u64,
}

impl Upstream {
    /// What is above the branch: the names of the centres, nearest first.
    pub fn set_above(&self, above: Vec<String>) {
        let mut state = self.state();
        state.is_there = true;
        state.above = above;
    }

    /// A sync is done.
    pub fn synced(&self) {
        let mut state = self.state();
        state.synced = Some(Instant::now());
        state.is_failing = false;
    }

    /// A sync has failed.
    pub fn failed(&self) {
        self.state().is_failing = true;
    }

    /// So many changes wait for the next sync, and so many were refused.
    pub fn set_waiting(&self, pending: u64, refused: u64) {
        let mut state = self.state();
        (state.pending, state.refused) = (pending, refused);
    }

    /// What is above the branch: the names of the centres, nearest first.
    pub fn above(&self) -> Vec<String> {
        self.state().above.clone()
    }

    /// What operators are shown; `None` if the server is no branch's.
    pub fn figures(&self) -> Option<UpstreamFigures> {
        let state = self.state();
        state.is_there.then(|| UpstreamFigures {
            age: state.synced.map(|at| at.elapsed()),
            is_failing: state.is_failing,
            pending: state.pending,
            refused: state.refused,
        })
    }

    fn state(&self) -> MutexGuard<'_, UpstreamState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
