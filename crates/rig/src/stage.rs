//! What all parts of a run share: its folder, its counters, its findings, and when to stop.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many findings are told in full.
const MOST_FINDINGS: usize = 100;
/// How long somebody who waits for something sleeps between two looks.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// One run.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
    began: Instant,
    /// Applications edit and remotes sync on and on.
    pub(crate) runs: AtomicBool,
    /// Somebody may break something: not before all is prepared.
    pub(crate) breaks: AtomicBool,
    /// All is judged.
    pub(crate) is_over: AtomicBool,
    faults: Mutex<BTreeMap<String, u64>>,
    syncs: Mutex<BTreeMap<String, u64>>,
    findings: Mutex<Findings>,
    diary: Mutex<File>,
}

#[derive(Debug, Default)]
struct Findings {
    told: Vec<String>,
    all: usize,
}

impl Stage {
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Stage> {
        Ok(Stage {
            folder: folder.to_owned(),
            began: Instant::now(),
            runs: AtomicBool::new(true),
            breaks: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            faults: Mutex::default(),
            syncs: Mutex::default(),
            findings: Mutex::default(),
            diary: Mutex::new(File::create(folder.join("diary.log"))?),
        })
    }

    /// A path in the run's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A log in the run's folder, which whoever is started again goes on with.
    pub(crate) fn log(&self, name: &str) -> std::io::Result<File> {
        File::options()
            .create(true)
            .append(true)
            .open(self.path(name))
    }

    pub(crate) fn runs(&self) -> bool {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn breaks(&self) -> bool {
        self.breaks.load(Ordering::SeqCst)
    }

    /// Nothing more is broken if somebody cannot go on: an hour would be spent for nothing.
    pub(crate) fn unless_it_fails<T>(&self, played: anyhow::Result<T>) -> anyhow::Result<T> {
        if let Err(error) = &played {
            self.note(&format!("somebody cannot go on: {error:#}"));
            self.breaks.store(false, Ordering::SeqCst);
        }
        played
    }

    /// Counts a fault that took effect.
    pub(crate) fn fault(&self, kind: &str) {
        *lock(&self.faults).entry(kind.to_owned()).or_default() += 1;
        self.note(&format!("fault: {kind}"));
    }

    /// Counts how a sync ended.
    pub(crate) fn sync_ended(&self, how: &str) {
        *lock(&self.syncs).entry(how.to_owned()).or_default() += 1;
    }

    /// Something that must not be.
    pub(crate) fn finding(&self, what: String) {
        self.note(&format!("FINDING: {what}"));
        let mut findings = lock(&self.findings);
        findings.all += 1;
        if findings.told.len() < MOST_FINDINGS {
            findings.told.push(what);
        }
    }

    pub(crate) fn findings(&self) -> (Vec<String>, usize) {
        let findings = lock(&self.findings);
        (findings.told.clone(), findings.all)
    }

    pub(crate) fn faults(&self) -> BTreeMap<String, u64> {
        lock(&self.faults).clone()
    }

    pub(crate) fn syncs(&self) -> BTreeMap<String, u64> {
        lock(&self.syncs).clone()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes a line into the run's diary, which is for whoever looks into a finding.
    pub(crate) fn note(&self, line: &str) {
        let mut text = String::new();
        let _ = writeln!(text, "{:10.3} {line}", self.began.elapsed().as_secs_f64());
        // Without a diary the run is still worth something.
        let _ = lock(&self.diary).write_all(text.as_bytes());
    }

    /// Sleeps, but not beyond the end of the run.
    pub(crate) fn pause(&self, duration: Duration) {
        let end = Instant::now() + duration;
        while self.runs() && Instant::now() < end {
            std::thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
        }
    }
}

/// Locks; whoever panicked meanwhile has left nothing half done here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
