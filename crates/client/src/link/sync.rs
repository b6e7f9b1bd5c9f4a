//! A sync on a link, while others call.

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tidewater_connection::device::DeviceError;
use tidewater_remote::SyncProgress;
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{ApplyWork, SessionOptions, SessionOutcome};

use super::Link;
use super::state::LinkState;
use crate::carrier_loop::TICK;
use crate::error::ClientError;

/// How often a connection is looked at while something is applied.
const GLANCE: Duration = Duration::from_millis(20);

impl LinkState {
    /// Whether a sync can begin.
    fn can_sync(&self) -> bool {
        self.lost.is_none() && !self.closing && self.line.connection.can_sync()
    }

    /// The sync under way, if there is one, ends with the connection, and is the first to hear why.
    pub(super) fn break_sync(&mut self, error: ClientError) -> ClientError {
        if !self.line.connection.is_syncing() {
            return error;
        }
        self.line.connection.cancel();
        let for_others = ClientError::from_shared(&error);
        self.sync.broken = Some(error);
        for_others
    }
}

impl Link {
    /// Whether another sync can begin on it.
    pub(crate) fn can_sync(&self) -> bool {
        self.shared.state().can_sync()
    }

    /// Bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.shared.state().line.traffic()
    }

    /// Says good-bye. Whoever still waits for an answer gets none.
    pub(crate) fn hang_up(&self) {
        let mut state = self.shared.state();
        state.closing = true;
        state.line.hang_up();
        state.lose(DeviceError::Closed.into());
        self.shared.is_lost.store(true, Ordering::Release);
        self.shared.spaces.close();
        self.shared.quiet.notify_all();
        let _ = self.shared.socket.shutdown(Shutdown::Both);
    }

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
            let lost = DeviceError::ConnectionLost {
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
        let broken = state.sync.broken.take();
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
