//! Who is connected, and the end of those that are shut out.
//!
//! Who signs in is looked up once. Afterwards nothing is asked for each message; instead, before
//! an upload is applied and before a download is read, whatever came over the network since the
//! look-up ([`tidewater_server_jobs::session_validity`]) makes the worker ask once more, and the remotes of all connections that
//! go on for longer are asked about together at a fixed interval. What is asked, and of whom, is
//! the workers' and the server's.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use tidewater_centre::records::ShutOutReason;
use tidewater_protocol::RemoteId;

/// What stands for the remote of a program without a file. No remote has this id.
pub const PROGRAM: RemoteId = RemoteId([0; 16]);

/// How often connected remotes are asked about.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// The remotes that are connected. One may be several times.
#[derive(Default)]
pub struct ConnectionRegistry {
    inside: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
}

struct Entry {
    remote_id: RemoteId,
    user: String,
    entered: Instant,
    word: Arc<Word>,
}

/// Tells one connection that it is over.
#[derive(Default)]
struct Word {
    reason: OnceLock<ShutOutReason>,
    ready: Notify,
}

/// One connection's place in the registry, from its sign-in to its end.
pub struct Registration<'a> {
    registry: &'a ConnectionRegistry,
    number: u64,
    word: Arc<Word>,
    kept: AtomicBool,
}

impl ConnectionRegistry {
    fn inside(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remote of a connection comes in.
    pub fn enter(&self, remote_id: RemoteId, user: &str) -> Registration<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let word = Arc::<Word>::default();
        let entry = Entry {
            remote_id,
            user: user.to_owned(),
            entered: Instant::now(),
            word: word.clone(),
        };
        self.inside().insert(number, entry);
        Registration {
            registry: self,
            number,
            word,
            kept: AtomicBool::new(false),
        }
    }

    /// Every connection's remote and its user.
    pub fn connected(&self) -> Vec<(RemoteId, String)> {
        let inside = self.inside();
        let entries = inside.values().filter(|it| it.remote_id != PROGRAM);
        let mut connected: Vec<_> = entries.map(|it| (it.remote_id, it.user.clone())).collect();
        connected.sort();
        connected
    }

    /// The remotes that have been inside for at least so long.
    pub fn inside_for(&self, duration: Duration) -> Vec<RemoteId> {
        let inside = self.inside();
        let remotes = inside.values().filter(|it| it.remote_id != PROGRAM);
        let long = remotes.filter(|entry| entry.entered.elapsed() >= duration);
        long.map(|entry| entry.remote_id).collect()
    }

    /// The users whose programs have been inside for at least so long.
    pub fn users_inside_for(&self, duration: Duration) -> BTreeSet<String> {
        let inside = self.inside();
        let programs = inside.values().filter(|it| it.remote_id == PROGRAM);
        let long = programs.filter(|entry| entry.entered.elapsed() >= duration);
        long.map(|entry| entry.user.clone()).collect()
    }

    /// Ends the connections of these remotes.
    pub fn end(&self, shut_out: &[(RemoteId, ShutOutReason)]) {
        let inside = self.inside();
        for (remote_id, reason) in shut_out {
            for entry in inside.values().filter(|it| it.remote_id == *remote_id) {
                entry.word.say(*reason);
            }
        }
    }

    /// Ends the connections of a user's programs.
    pub fn end_programs(&self, user: &str, reason: ShutOutReason) {
        let inside = self.inside();
        let programs = inside.values().filter(|it| it.remote_id == PROGRAM);
        for entry in programs.filter(|it| it.user == user) {
            entry.word.say(reason);
        }
    }
}

impl Word {
    fn say(&self, reason: ShutOutReason) {
        // The first reason is as good as the second.
        let _ = self.reason.set(reason);
        self.ready.notify_one();
    }
}

impl Registration<'_> {
    /// Tells the connection from all others of this server.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// More than syncs goes over the connection: it may be silent, as long as it answers to pings.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Whether it may be silent.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// Ends when the remote is shut out. Safe to drop.
    pub async fn shut_out(&self) -> ShutOutReason {
        loop {
            if let Some(reason) = self.word.reason.get() {
                return *reason;
            }
            self.word.ready.notified().await;
        }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.registry.inside().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: RemoteId = RemoteId([1; 16]);
    const BOB: RemoteId = RemoteId([2; 16]);

    #[tokio::test(start_paused = true)]
    async fn only_connections_of_the_remote_that_is_shut_out_end() {
        let registry = ConnectionRegistry::default();
        let ada = registry.enter(ADA, "ada");
        tokio::time::advance(WATCH_EVERY).await;
        let bob = registry.enter(BOB, "bob");
        assert_eq!(registry.inside_for(WATCH_EVERY), [ADA]);
        let again = registry.enter(BOB, "bob");
        let (ada_too, bob_too) = ((ADA, "ada".to_owned()), (BOB, "bob".to_owned()));
        assert_eq!(registry.connected(), [ada_too, bob_too.clone(), bob_too]);
        drop(again);
        assert_eq!(registry.inside_for(Duration::ZERO).len(), 2);
        registry.end(&[(ADA, ShutOutReason::UserDisabled)]);
        assert_eq!(ada.shut_out().await, ShutOutReason::UserDisabled);
        let patience = Duration::from_secs(60);
        let waited = tokio::time::timeout(patience, bob.shut_out()).await;
        assert!(waited.is_err());
        drop((ada, bob));
        assert!(registry.inside().is_empty());
    }
}
