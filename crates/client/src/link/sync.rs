//! A sync on a link, while others call.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{ApplyWork, SessionOptions, SessionOutcome};
use tidewater_remote::{SyncError, SyncProgress};

use super::Link;
use crate::error::ClientError;
use crate::socket_loop::TICK;

/// How often a connection is looked at while something is applied.
const GLANCE: Duration = Duration::from_millis(20);

impl Link {
    /// Syncs, while others call. Gives the database back with what came of it.
    pub(crate) fn sync(
        &self,
        database: RemoteDatabase,
        options: SessionOptions,
        seed: [u8; 32],
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> (RemoteDatabase, Result<SessionOutcome, ClientError>) {
        let shared = &self.shared;
        let mut state = shared.state();
        if !state.can_sync() {
            // The server has said goodbye since somebody looked: the next sync makes a connection.
            let lost = SyncError::ConnectionLost {
                during: "before the sync began",
                source: None,
            };
            return (database, Err(lost.into()));
        }
        state.line.connection.sync(database, options, seed);
        state.syncing = Some(None);
        shared.flush(state);
        let mut leads = false;
        let mut state = shared.state();
        while state.line.connection.is_syncing() {
            if let Some(work) = state.line.connection.poll_work() {
                if std::mem::take(&mut leads) {
                    state.resign();
                }
                drop(state);
                let work = self.work(work, progress);
                state = shared.state();
                state.line.connection.handle_work(work);
                continue;
            }
            if leads || !state.led {
                leads = true;
                state.led = true;
                state = shared.lead(state);
            } else {
                state.syncing = Some(Some(thread::current()));
                drop(state);
                thread::park_timeout(TICK);
                state = shared.state();
            }
            if let Some(now) = state.line.connection.progress().cloned() {
                // It may call on this very link.
                drop(state);
                let broken = progress(&now).is_break();
                state = shared.state();
                if broken {
                    state.line.connection.cancel();
                }
            }
        }
        state.syncing = None;
        let ended = state.line.connection.end_sync();
        let (database, outcome) = ended.expect("the sync has ended, and its work is handed back");
        let broken = state.broken.take();
        if leads {
            state.resign();
        }
        shared.flush(state);
        match broken {
            Some(error) => (database, Err(error)),
            None => (database, Ok(outcome)),
        }
    }

    /// Has work done beside the connection, or in its place if that takes no time.
    fn work(
        &self,
        mut work: ApplyWork,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> ApplyWork {
        let cancelled = AtomicBool::new(false);
        let clock = self.shared.state().line.clock;
        if !work.is_short() {
            let mut last = work.progress().clone();
            thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                let work = &mut work;
                let cancelled = &cancelled;
                let apply = move || {
                    while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
                        work.step(clock.now());
                        // The other side waits until this one is done.
                        let _ = sender.send(work.progress().clone());
                    }
                };
                let thread = thread::Builder::new().name("tidewater-apply".into());
                if thread.spawn_scoped(scope, apply).is_err() {
                    return;
                }
                loop {
                    match receiver.recv_timeout(GLANCE) {
                        Ok(progress) => last = progress,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    let mut state = self.shared.state();
                    if !state.led {
                        self.shared.pump(&mut state);
                    }
                    drop(state);
                    if progress(&last).is_break() {
                        cancelled.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
            work.step(clock.now());
            if !work.is_done() && progress(work.progress()).is_break() {
                cancelled.store(true, Ordering::Relaxed);
            }
        }
        work
    }
}
