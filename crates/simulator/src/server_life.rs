//! Whether the process of a server lives: until it is killed, or dies at a commit or on its disk.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidewater_server::Signal;

use crate::vfs;

/// No commit is the last one.
const NEVER: u64 = u64::MAX;

/// Whether a process lives.
pub(crate) struct Life {
    dead: Signal<bool>,
    /// As the disk knows it: it may die at a write.
    on_disk: vfs::Process,
    /// Commits until it is killed.
    commits_left: AtomicU64,
    /// Whether the last one still takes effect.
    commits_last: AtomicBool,
    /// Connections over which bytes may still come.
    connections: AtomicU64,
}

impl Life {
    pub(crate) fn new(on_disk: vfs::Process) -> Life {
        Life {
            dead: Signal::new(false),
            on_disk,
            commits_left: AtomicU64::new(NEVER),
            commits_last: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        }
    }

    /// A connection begins, or ends.
    pub(crate) fn count_connection(&self, begins: bool) {
        let count = &self.connections;
        match begins {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether it serves somebody.
    pub(crate) fn is_serving(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    /// A transaction is about to commit; whether it must not.
    pub(crate) fn refuses_commit(&self) -> bool {
        if self.is_dead() {
            return true;
        }
        let left = self.commits_left.load(Ordering::Relaxed);
        if left == NEVER {
            return false;
        }
        self.commits_left
            .store(left.saturating_sub(1), Ordering::Relaxed);
        if left > 1 {
            return false;
        }
        self.dead.set(true);
        !self.commits_last.load(Ordering::Relaxed)
    }

    /// It will die at its so many-th commit, before or after that takes effect.
    pub(crate) fn die_at_commit(&self, commit: u64, takes_effect: bool) {
        self.commits_last.store(takes_effect, Ordering::Relaxed);
        self.commits_left.store(commit, Ordering::Relaxed);
    }

    /// It is dead from now on.
    pub(crate) fn die(&self) {
        self.dead.set(true);
    }

    /// Ends when the process is dead.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            biased;
            _ = self.dead.wait_for(|dead| dead) => {}
            () = self.on_disk.ended() => {}
        }
    }

    /// Whether it is dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get() || self.on_disk.is_dead()
    }

    /// By which an accident of the disk names it.
    pub(crate) fn number(&self) -> u64 {
        self.on_disk.number()
    }
}
