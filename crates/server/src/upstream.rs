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
pub struct Upstream(Arc<Mutex<Line>>);

#[derive(Debug, Default)]
struct Line {
    /// There is such a line.
    is_there: bool,
    above: Vec<String>,
    synced: Option<Instant>,
    is_failing: bool,
    pending: u64,
    refused: u64,
}

/// What operators are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Since the last sync that was done; `None` if there was none since the start.
    pub(crate) age: Option<Duration>,
    pub(crate) is_failing: bool,
    pub(crate) pending: u64,
    pub(crate) refused: u64,
}

impl Upstream {
    /// What is above the branch: the names of the centres, nearest first.
    pub fn set_above(&self, above: Vec<String>) {
        let mut line = self.line();
        line.is_there = true;
        line.above = above;
    }

    /// A sync is done.
    pub fn synced(&self) {
        let mut line = self.line();
        line.synced = Some(Instant::now());
        line.is_failing = false;
    }

    /// A sync has failed.
    pub fn failed(&self) {
        self.line().is_failing = true;
    }

    /// So many changes wait for the next sync, and so many were refused.
    pub fn set_waiting(&self, pending: u64, refused: u64) {
        let mut line = self.line();
        (line.pending, line.refused) = (pending, refused);
    }

    pub(crate) fn above(&self) -> Vec<String> {
        self.line().above.clone()
    }

    /// `None` if the server is no branch's.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let line = self.line();
        line.is_there.then(|| Figures {
            age: line.synced.map(|at| at.elapsed()),
            is_failing: line.is_failing,
            pending: line.pending,
            refused: line.refused,
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
