//! Workers: tasks that own a database connection each, and take what waits for them.
//!
//! Lanes have limits of their own, so that neither long downloads nor bulk uploads keep anybody from
//! signing in or calling. Nothing here ever waits for a network.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use tidewater_centre::Centre;

use crate::connection_pool::ConnectionPool;
use crate::connector::Connector;
use crate::database_task::DatabaseTask;
use crate::fair_queue::{FairQueue, OfUser};
use crate::tuner::{Gate, Turn, tune};

/// Workers of a lane that finds out by itself how many it should have: at first.
const FIRST_WORKERS: usize = 2;

/// How many workers a lane has.
#[derive(Clone, Debug)]
pub enum WorkerCount {
    /// So many.
    Fixed(usize),
    /// As many as get the most done, of these numbers: it is found by trying.
    Tried(RangeInclusive<usize>),
}

impl WorkerCount {
    /// A number, or those among which the best one is found.
    pub fn new(fixed: Option<usize>, tried: &RangeInclusive<usize>) -> WorkerCount {
        match fixed {
            Some(count) => WorkerCount::Fixed(count),
            None => WorkerCount::Tried(tried.clone()),
        }
    }
}

/// What a lane is doing.
#[derive(Clone, Copy, Debug)]
pub struct LaneFigures {
    /// The name of the lane.
    pub name: &'static str,
    /// Workers that may be at work.
    pub level: usize,
    /// Workers that are at work.
    pub busy: usize,
    /// Tasks that wait for a worker.
    pub waiting: usize,
}

/// What a worker of a lane works with.
pub struct LaneWorker<T> {
    /// Its tasks.
    pub queue: Arc<FairQueue<T>>,
    /// Connections to the database.
    pub connections: ConnectionPool,
    gate: Arc<Gate>,
}

impl<T> Clone for LaneWorker<T> {
    fn clone(&self) -> LaneWorker<T> {
        LaneWorker {
            queue: self.queue.clone(),
            connections: self.connections.clone(),
            gate: self.gate.clone(),
        }
    }
}

impl<T: OfUser> LaneWorker<T> {
    /// Waits until one more worker may work.
    pub async fn turn(&self) -> Turn<'_> {
        let _rest = self.queue.resting.begin();
        self.gate.turn().await
    }
}

/// Does one task after the other, until the lane is closed and empty.
pub async fn run_tasks(lane: LaneWorker<DatabaseTask>) {
    while let Some(tasks) = lane.queue.next(|_| false).await {
        for task in tasks {
            let mut connection = lane.connections.take_for(&task.scripts).await;
            task.run(&mut connection).await;
        }
    }
}

/// A lane that was started.
struct StartedLane {
    figures: Box<dyn Fn() -> LaneFigures + Send + Sync>,
    close: Box<dyn Fn() + Send + Sync>,
    connections: ConnectionPool,
}

/// Starts the workers of lanes, keeps them at work, and ends them.
pub struct WorkerPool {
    connector: Arc<Connector>,
    lanes: Mutex<Vec<StartedLane>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    tuners: Mutex<Vec<AbortHandle>>,
}

impl WorkerPool {
    /// A pool without lanes. Connections are opened as they are needed.
    pub(crate) fn new(centre: Arc<dyn Centre>) -> WorkerPool {
        WorkerPool {
            connector: Connector::new(centre),
            lanes: Mutex::default(),
            tasks: Mutex::default(),
            tuners: Mutex::default(),
        }
    }

    pub(crate) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Starts the workers of a lane, which take tasks out of its queue.
    pub fn start_lane<T, F>(
        &self,
        name: &'static str,
        count: WorkerCount,
        work: impl Fn(LaneWorker<T>) -> F + Clone + Send + 'static,
    ) -> Arc<FairQueue<T>>
    where
        T: OfUser + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let queue = FairQueue::new();
        let (gate, most) = match count {
            WorkerCount::Fixed(count) => (Gate::new(count), count),
            WorkerCount::Tried(tried) => {
                let gate = Gate::new(FIRST_WORKERS.clamp(*tried.start(), *tried.end()));
                let (most, waits) = (*tried.end(), queue.clone());
                let tuning = tune(gate.clone(), tried, move || waits.waiting() > 0);
                // It has nothing to finish at shutdown, and ends with the runtime.
                lock(&self.tuners).push(tokio::spawn(tuning).abort_handle());
                (gate, most)
            }
        };
        let lane = LaneWorker {
            queue: queue.clone(),
            connections: ConnectionPool::new(&self.connector),
            gate,
        };
        for _ in 0..most {
            let (lane, work) = (lane.clone(), work.clone());
            self.keep(move || work(lane.clone()));
        }
        let (figures, closed) = (lane.clone(), queue.clone());
        lock(&self.lanes).push(StartedLane {
            figures: Box::new(move || LaneFigures {
                name,
                level: figures.gate.level(),
                busy: most.saturating_sub(figures.queue.resting.count()),
                waiting: figures.queue.waiting(),
            }),
            close: Box::new(move || closed.close()),
            connections: lane.connections,
        });
        queue
    }

    /// Runs a task, and again should it panic: a defect costs what it held, never the lane.
    pub(crate) fn keep<F>(&self, run: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let supervisor = tokio::spawn(async move {
            while let Err(error) = tokio::spawn(run()).await {
                tracing::error!(%error, "a worker failed");
                if error.is_cancelled() {
                    break;
                }
            }
        });
        lock(&self.tasks).push(supervisor);
    }

    /// What the lanes are doing.
    pub fn figures(&self) -> Vec<LaneFigures> {
        lock(&self.lanes).iter().map(|it| (it.figures)()).collect()
    }

    /// Finishes what is queued and ends the workers, within a time. Then scripts end the connections
    /// that served them.
    pub(crate) async fn close(&self, deadline: Duration) -> Instant {
        lock(&self.tuners).drain(..).for_each(|tuner| tuner.abort());
        lock(&self.lanes).iter().for_each(|it| (it.close)());
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        let until = Instant::now() + deadline;
        for mut task in tasks {
            if tokio::time::timeout_at(until, &mut task).await.is_err() {
                tracing::warn!(
                    "a worker is still busy at shutdown; what it does is left to the database"
                );
                task.abort();
            }
        }
        until
    }

    /// The connections of all lanes with which nobody works.
    pub(crate) fn take_idle(&self) -> Vec<crate::connector::Connection> {
        let lanes = lock(&self.lanes);
        lanes
            .iter()
            .flat_map(|it| it.connections.take_all())
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
