//! Whether something new may begin now, and when whoever has to wait comes back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::environment::{Environment, random};

use crate::drain_rate::DrainRate;
use crate::fault::Fault;
use crate::lanes::WorkerLanes;
use crate::signal::Signal;

/// How far the server's shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum ShutdownPhase {
    /// The server runs.
    Running,
    /// Everything as before, but balancers are told to send others elsewhere.
    Leaving,
    /// No new syncs.
    Draining,
    /// No syncs at all.
    Aborting,
}

/// The shutdown of a server: who shuts it down sets the phase, all others look and wait.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<Signal<ShutdownPhase>>);

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown(Arc::new(Signal::new(ShutdownPhase::Running)))
    }
}

impl Shutdown {
    /// The phase now.
    pub fn phase(&self) -> ShutdownPhase {
        self.0.get()
    }

    /// Goes on to a phase, and wakes all who wait for it.
    pub fn enter(&self, phase: ShutdownPhase) {
        self.0.set(phase);
    }

    /// Whether nothing new may begin.
    pub fn is_draining(&self) -> bool {
        self.phase() >= ShutdownPhase::Draining
    }

    /// Ends when others are to be sent elsewhere.
    pub async fn leaving(&self) {
        self.reached(ShutdownPhase::Leaving).await;
    }

    /// Ends when no new syncs may begin.
    pub async fn draining(&self) {
        self.reached(ShutdownPhase::Draining).await;
    }

    /// Ends when all syncs must.
    pub async fn aborted(&self) {
        self.reached(ShutdownPhase::Aborting).await;
    }

    async fn reached(&self, phase: ShutdownPhase) {
        self.0.wait_for(|current| current >= phase).await;
    }
}

/// Decides whether a sync may begin: by what waits for a worker, and how fast that becomes less.
///
/// The server's `connection` asks it of a sync that comes with the sign-in, before it looks the user
/// up; the session of the sync asks it of any other, and both tasks of a sync ask before they wait.
pub struct SyncAdmission {
    lanes: Arc<WorkerLanes>,
    /// So many syncs may wait for a worker: `server.limits.backlog`.
    backlog: usize,
    drain: DrainRate,
    environment: Environment,
}

impl SyncAdmission {
    /// `backlog`: so many syncs may wait for a worker.
    pub fn new(lanes: Arc<WorkerLanes>, backlog: usize, environment: Environment) -> SyncAdmission {
        SyncAdmission {
            lanes,
            backlog,
            drain: DrainRate::new(),
            environment,
        }
    }

    /// Whether so many syncs wait that no other may begin.
    pub fn is_full(&self) -> bool {
        self.exceeds_backlog(self.lanes.backlog())
    }

    /// Whether so many are as many as may wait.
    pub fn exceeds_backlog(&self, waiting: usize) -> bool {
        waiting >= self.backlog
    }

    /// A sync is complete.
    pub fn completed(&self, now: Instant) {
        self.drain.completed(now);
    }

    /// Come back later; when, follows from how fast the backlog drains.
    pub fn busy(&self) -> Fault {
        let jitter = random(&*self.environment.randomness).unwrap_or([128; 2]);
        let jitter = u16::from_le_bytes(jitter);
        Fault::busy(self.drain.retry_after_ms(Instant::now(), jitter))
    }

    /// When to come back after a while that is known, in milliseconds: a little later, and not all
    /// at once.
    pub fn later_ms(&self, left: Duration) -> u64 {
        let [jitter] = random(&*self.environment.randomness).unwrap_or([128]);
        let left = left.max(Duration::from_secs(1));
        let left = left.mul_f32(1.0 + f32::from(jitter) / 1_024.0);
        u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
    }
}
