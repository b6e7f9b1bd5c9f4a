//! Ending statements while they run.
//!
//! PostgreSQL takes the request on another connection and ends whatever statement runs by the time
//! that it arrives. So it is sent only while the call that is meant runs, as far as we know;
//! what was ended by mistake is run again, and nothing else is begun on the connection before all
//! requests have been taken.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::connection::{DatabaseAddress, PostgresConnection};
use crate::driver_error::statement_failed;
use tidewater_centre::error::CentreError;
use tidewater_centre::{CallInterrupt, Cancel};

/// After so long a call that still runs is interrupted again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Ends what runs on a connection.
pub(super) struct Interruption {
    address: DatabaseAddress,
    backend: i32,
    runtime: Handle,
    state: Mutex<InterruptState>,
    /// A request was taken.
    taken: Notify,
}

#[derive(Default)]
struct InterruptState {
    /// The calls that were sent and have not been answered. The first one runs.
    queue: VecDeque<Cancel>,
    /// Whether a request was made since calls began.
    has_fired: bool,
    /// How many of them have not been taken yet.
    on_their_way: usize,
}

impl Interruption {
    /// Of the connection that this process serves.
    pub(super) fn new(address: &DatabaseAddress, backend: i32) -> Arc<Interruption> {
        Arc::new(Interruption {
            address: address.clone(),
            backend,
            runtime: Handle::current(),
            state: Mutex::default(),
            taken: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, InterruptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the requests that were made until now.
    pub(super) fn forget_fired(&self) {
        self.state().has_fired = false;
    }

    /// Whether a request was made since that.
    pub(super) fn has_fired(&self) -> bool {
        self.state().has_fired
    }

    /// These calls are sent now, and are run in this order.
    pub(super) fn begin(self: &Arc<Self>, calls: impl Iterator<Item = Cancel>) {
        let mut state = self.state();
        state.queue = calls.collect();
        self.fire_if_wanted(&mut state);
    }

    /// The first of the calls is answered.
    pub(super) fn answered(self: &Arc<Self>) {
        let mut state = self.state();
        state.queue.pop_front();
        self.fire_if_wanted(&mut state);
    }

    /// Ends the call that runs.
    pub(super) fn end_running(self: &Arc<Self>) {
        self.fire(&mut self.state());
    }

    /// Nothing runs any more; returns when nothing that is begun now can be hit.
    pub(super) async fn drain(&self) {
        self.state().queue.clear();
        self.all_taken().await;
    }

    /// Returns when no request is on its way.
    pub(super) async fn all_taken(&self) {
        loop {
            let taken = self.taken.notified();
            let mut taken = std::pin::pin!(taken);
            // From here on it is noticed.
            taken.as_mut().enable();
            if self.state().on_their_way == 0 {
                return;
            }
            taken.await;
        }
    }

    fn fire_if_wanted(self: &Arc<Self>, state: &mut InterruptState) {
        if state.queue.front().is_some_and(Cancel::is_set) {
            self.fire(state);
        }
    }

    /// Ends what runs. As long as that is a call which is not wanted, it is done again: a request
    /// that comes between two statements of it ends nothing.
    fn fire(self: &Arc<Self>, state: &mut InterruptState) {
        state.has_fired = true;
        state.on_their_way += 1;
        let meant = state.queue.front().cloned();
        let own = self.clone();
        self.runtime.spawn(async move {
            loop {
                own.send().await;
                tokio::time::sleep(AGAIN_AFTER).await;
                let mut state = own.state();
                let (Some(runs), Some(meant)) = (state.queue.front(), &meant) else {
                    return;
                };
                if !runs.is(meant) || !meant.is_set() {
                    return;
                }
                state.has_fired = true;
                state.on_their_way += 1;
            }
        });
    }

    async fn send(&self) {
        if let Err(error) = self
            .address
            .canceller
            .cancel(&self.address, self.backend)
            .await
        {
            tracing::debug!(%error, "a statement could not be interrupted");
        }
        self.state().on_their_way -= 1;
        self.taken.notify_waiters();
    }
}

/// A connection on which statements of others are ended; opened when it is needed, and kept. Unlike
/// the protocol's own request to cancel, its answer tells that the signal was sent.
#[derive(Clone, Default)]
pub(super) struct Canceller(Arc<AsyncMutex<Option<PostgresConnection>>>);

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canceller")
    }
}

impl Canceller {
    async fn cancel(&self, address: &DatabaseAddress, backend: i32) -> Result<(), CentreError> {
        let mut kept = self.0.lock().await;
        let connection = match kept.take().filter(|it| !it.is_closed()) {
            Some(connection) => connection,
            // It does not keep itself: then it would never be closed.
            None => PostgresConnection::open(&address.alone()).await?,
        };
        let connection = kept.insert(connection);
        let cancel = "SELECT pg_catalog.pg_cancel_backend($1)";
        let cancel = connection.prepare(cancel, &[]).await?;
        let sent = connection.client().query_one(&cancel, &[&backend]).await;
        sent.map(drop)
            .map_err(statement_failed("interrupting a statement"))
    }
}

/// Interrupts the calls of a worker.
pub(super) struct PostgresInterrupter(pub(super) Arc<Interruption>);

impl CallInterrupt for PostgresInterrupter {
    fn interrupt(&self, call: &Cancel) {
        // Under the lock: either it is seen set when the call begins to run, or it runs now.
        let mut state = self.0.state();
        call.set();
        if state.queue.front().is_some_and(|it| it.is(call)) {
            self.0.fire(&mut state);
        }
    }
}
