//! What happened: a line each, counters of faults, and what the judges found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// The record of one simulation.
pub(crate) struct Chronicle {
    began: Instant,
    hash: RefCell<Xxh3>,
    /// Kept only if somebody wants to read them.
    lines: Option<RefCell<Vec<String>>>,
    faults: RefCell<BTreeMap<&'static str, u64>>,
    sessions: Cell<u64>,
    failure: RefCell<Option<String>>,
}

impl Chronicle {
    pub(crate) fn new(readable: bool) -> Chronicle {
        Chronicle {
            began: Instant::now(),
            hash: RefCell::new(Xxh3::new()),
            lines: readable.then(RefCell::default),
            faults: RefCell::default(),
            sessions: Cell::new(0),
            failure: RefCell::default(),
        }
    }

    /// Milliseconds since the beginning.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Something happened.
    pub(crate) fn note(&self, what: &str) {
        let line = format!("{:>9} {what}", self.elapsed_ms());
        let mut hash = self.hash.borrow_mut();
        hash.update(line.as_bytes());
        hash.update(b"\n");
        if let Some(lines) = &self.lines {
            lines.borrow_mut().push(line);
        }
    }

    /// A fault came about.
    pub(crate) fn fault(&self, kind: &'static str) {
        self.note(&format!("fault: {kind}"));
        *self.faults.borrow_mut().entry(kind).or_default() += 1;
    }

    /// Whether a kind of fault came about.
    pub(crate) fn has_happened(&self, kind: &str) -> bool {
        self.faults.borrow().contains_key(kind)
    }

    /// A session ended.
    pub(crate) fn session(&self) {
        self.sessions.set(self.sessions.get() + 1);
    }

    /// A judge found a promise broken. The first finding counts: what follows may follow
    /// from it.
    pub(crate) fn failed(&self, what: String) {
        self.note(&format!("BROKEN: {what}"));
        self.failure.borrow_mut().get_or_insert(what);
    }

    /// What it all came to.
    pub(crate) fn conclude(&self) -> SimulationOutcome {
        let lines = self.lines.as_ref();
        SimulationOutcome {
            hash: self.hash.borrow().digest(),
            lines: lines
                .map(|lines| lines.borrow().clone())
                .unwrap_or_default(),
            faults: self.faults.borrow().clone(),
            sessions: self.sessions.get(),
            simulated_ms: self.elapsed_ms(),
            failure: self.failure.borrow().clone(),
        }
    }
}

/// How a simulation ended.
#[derive(Clone, Debug, Default)]
pub struct SimulationOutcome {
    /// Of every line: the same for the same seed.
    pub hash: u64,
    /// What happened, if it was to be kept.
    pub lines: Vec<String>,
    /// The faults that came about, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Connections that carried a session.
    pub sessions: u64,
    /// How long it took in its own time.
    pub simulated_ms: u64,
    /// The first promise that was broken.
    pub failure: Option<String>,
}
