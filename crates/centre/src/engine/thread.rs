//! A connection of a driver that blocks, and the thread that owns it: async code must not block.
//! In a simulation it is a task ([`Jobs::Tasks`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, oneshot};

use tidewater_protocol::message::TableBegin;

use crate::download::{
    DownloadOutcome, DownloadSink, DownloadStart, Downloaded, RunningDownloads, ToldSettled,
};
use crate::error::CentreError;
use crate::follow::RemoteHolding;

type Result<T> = std::result::Result<T, CentreError>;

/// How many chunks of a download the connection may be ahead of the sink.
const CHUNKS_AHEAD: usize = 4;

/// Where the jobs of a connection run.
#[derive(Clone)]
pub enum Jobs {
    /// On a thread of its own.
    Threads,
    /// In an async task of its own, for simulations: one thread for everything, and a job
    /// begins so long after it was its turn.
    Tasks(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Jobs {
    /// Runs what may wait for the disk off the async threads.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self {
            Jobs::Threads => {
                let done = tokio::task::spawn_blocking(work).await;
                done.unwrap_or_else(|_| Err(ended()))
            }
            Jobs::Tasks(delay) => {
                tokio::time::sleep(delay()).await;
                work()
            }
        }
    }
}

/// What a thread owns.
pub trait ThreadOwner: Send + 'static {
    /// What its jobs run on.
    type Connection;

    /// Runs a job, and undoes what it leaves open.
    fn run<T>(&mut self, job: impl FnOnce(&mut Self::Connection) -> Result<T>) -> Result<T>;
}

type Job<C> = Box<dyn FnOnce(&mut C) + Send>;

/// A connection on a thread of its own. Jobs run one after the other; the thread
/// ends when this is dropped and the last job is done.
pub enum ConnectionThread<C> {
    /// A thread.
    Thread(mpsc::Sender<Job<C>>),
    /// A task, where there are no threads.
    Task(UnboundedSender<Job<C>>),
}

impl<C: ThreadOwner> ConnectionThread<C> {
    /// Starts the thread of a connection.
    pub fn start(mut connection: C, jobs: &Jobs) -> Result<ConnectionThread<C>> {
        if let Jobs::Tasks(delay) = jobs {
            let (jobs, queue) = unbounded_channel();
            tokio::spawn(run_in_task(connection, queue, delay.clone()));
            return Ok(ConnectionThread::Task(jobs));
        }
        let (jobs, queue) = mpsc::channel::<Job<C>>();
        spawn("connection", move || {
            for job in queue {
                job(&mut connection);
            }
        })?;
        Ok(ConnectionThread::Thread(jobs))
    }

    /// Runs a job and waits for its result. A job that began is finished even if
    /// nobody waits any more.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut C::Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (result, wait) = oneshot::channel();
        self.begin(job, result)?;
        wait.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Runs a job that reads downloads, and passes them on to their sinks.
    pub async fn download(
        &self,
        downloads: Vec<RunningDownloads<'_>>,
        read: impl FnOnce(&mut C::Connection, &mut [RunningDownloads<'_>]) -> Result<Downloaded>
        + Send
        + 'static,
    ) -> Result<Downloaded> {
        let may_block = matches!(self, ConnectionThread::Thread(_));
        let ahead = match may_block {
            true => CHUNKS_AHEAD,
            false => Semaphore::MAX_PERMITS,
        };
        let (events, mut arriving) = tokio::sync::mpsc::channel(ahead);
        let (result, wait) = oneshot::channel();
        let (mut jobs, mut sinks) = (Vec::new(), Vec::new());
        for (number, RunningDownloads { job, sink }) in downloads.into_iter().enumerate() {
            let is_gone = Arc::new(AtomicBool::new(false));
            let away = AwaySink {
                number,
                events: events.clone(),
                may_block,
                is_gone: is_gone.clone(),
            };
            jobs.push((job, away));
            sinks.push((sink, is_gone));
        }
        // The channel ends with the job.
        drop(events);
        let work = move |connection: &mut C::Connection| {
            let downloads = jobs.iter_mut().map(|(job, sink)| RunningDownloads {
                job: job.clone(),
                sink,
            });
            read(connection, &mut downloads.collect::<Vec<_>>())
        };
        self.begin(work, result)?;
        while let Some((number, event)) = arriving.recv().await {
            let (sink, is_gone) = &mut sinks[number];
            if is_gone.load(Ordering::Relaxed) {
                continue;
            }
            let taken = match event {
                SinkEvent::Begin(index, start) => {
                    sink.begin(index, start);
                    Ok(())
                }
                SinkEvent::Settled(told) => {
                    sink.settled(told);
                    Ok(())
                }
                SinkEvent::Table(begin) => {
                    sink.table(begin);
                    Ok(())
                }
                SinkEvent::Rows(rows) => sink.rows(rows),
                SinkEvent::Mark(mark, rows) => {
                    sink.mark(mark, rows);
                    Ok(())
                }
                SinkEvent::Comparing => sink.comparing(),
                SinkEvent::Holds(index, holding) => {
                    sink.holds(index, holding);
                    Ok(())
                }
                SinkEvent::End(index, outcome) => {
                    sink.end(index, outcome);
                    Ok(())
                }
            };
            match taken {
                Ok(()) => {}
                // Only this one stops.
                Err(CentreError::Cancelled) => is_gone.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let mut downloaded = wait.await.unwrap_or_else(|_| Err(ended()))?;
        // It may have been read to its end before it was noticed.
        for (outcome, (_, is_gone)) in downloaded.iter_mut().zip(&sinks) {
            if is_gone.load(Ordering::Relaxed) {
                *outcome = Some(Err(CentreError::Cancelled));
            }
        }
        Ok(downloaded)
    }

    /// Begins a job without waiting for its result.
    fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut C::Connection) -> Result<T> + Send + 'static,
        result: oneshot::Sender<Result<T>>,
    ) -> Result<()> {
        let job = move |connection: &mut C| {
            // Nobody waits when the caller was cancelled.
            let _ = result.send(connection.run(job));
        };
        let sent = match self {
            ConnectionThread::Thread(jobs) => jobs.send(Box::new(job)).is_ok(),
            ConnectionThread::Task(jobs) => jobs.send(Box::new(job)).is_ok(),
        };
        sent.then_some(()).ok_or_else(ended)
    }
}

async fn run_in_task<C>(
    mut connection: C,
    mut queue: UnboundedReceiver<Job<C>>,
    delay: Arc<dyn Fn() -> Duration + Send + Sync>,
) {
    while let Some(job) = queue.recv().await {
        tokio::time::sleep(delay()).await;
        job(&mut connection);
    }
}

/// Starts a thread that nobody joins.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| CentreError::Unavailable {
        message: format!("no thread for a {name}: {error}"),
    })
}

/// The error of a thread that is gone.
pub fn ended() -> CentreError {
    CentreError::Unavailable {
        message: "the connection's thread has ended".into(),
    }
}

/// The result of a future on a connection that blocks: nothing that it waits for is ever not ready.
pub fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    future.now_or_never().unwrap_or_else(|| {
        Err(CentreError::Internal {
            message: "a statement had to be waited for on a connection that blocks".into(),
        })
    })
}

/// A step of a download, for a sink on another thread.
enum SinkEvent {
    Begin(usize, DownloadStart),
    Settled(ToldSettled),
    Table(TableBegin),
    Rows(Vec<u8>),
    Mark(Vec<u8>, u64),
    Comparing,
    Holds(usize, RemoteHolding),
    End(usize, DownloadOutcome),
}

/// Passes a download on to the sink. If that is gone, the next rows tell.
struct AwaySink {
    number: usize,
    events: tokio::sync::mpsc::Sender<(usize, SinkEvent)>,
    may_block: bool,
    is_gone: Arc<AtomicBool>,
}

impl AwaySink {
    fn send(&self, event: SinkEvent) -> Result<()> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(CentreError::Cancelled);
        }
        let event = (self.number, event);
        let sent = match self.may_block {
            true => self.events.blocking_send(event).is_ok(),
            false => self.events.try_send(event).is_ok(),
        };
        sent.then_some(()).ok_or(CentreError::Cancelled)
    }
}

impl DownloadSink for AwaySink {
    fn begin(&mut self, index: usize, start: DownloadStart) {
        let _ = self.send(SinkEvent::Begin(index, start));
    }

    fn settled(&mut self, told: ToldSettled) {
        let _ = self.send(SinkEvent::Settled(told));
    }

    fn table(&mut self, begin: TableBegin) {
        let _ = self.send(SinkEvent::Table(begin));
    }

    fn rows(&mut self, rows: Vec<u8>) -> Result<()> {
        self.send(SinkEvent::Rows(rows))
    }

    fn mark(&mut self, mark: Vec<u8>, rows: u64) {
        let _ = self.send(SinkEvent::Mark(mark, rows));
    }

    fn comparing(&mut self) -> Result<()> {
        self.send(SinkEvent::Comparing)
    }

    fn holds(&mut self, index: usize, holding: RemoteHolding) {
        let _ = self.send(SinkEvent::Holds(index, holding));
    }

    fn end(&mut self, index: usize, outcome: DownloadOutcome) {
        let _ = self.send(SinkEvent::End(index, outcome));
    }
}
