//! Events on their way to the centre and back: what is appended, and what is read again.
//!
//! While one append is under way the next ones gather, and go together in one transaction: what a
//! commit costs is shared by all who publish meanwhile. There is one worker for it, as whoever comes
//! second would wait for the numbers of the first.

use std::sync::Arc;

use tokio::sync::oneshot;

use tidewater_centre::CentreError;
use tidewater_centre::events::{AppendOutcome, NewEvents, StoredEvent};

use tidewater_server_jobs::connector::Connection;
use tidewater_server_jobs::database_task::DatabaseTask;
use tidewater_server_jobs::environment::Clock;
use tidewater_server_jobs::fair_queue::{FairQueue, OfUser};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::worker_pool::{LaneWorker, WorkerCount, WorkerPool, run_tasks};

/// Workers that read durable events.
const EVENT_READERS: usize = 2;

/// What goes in one transaction at most, beyond the first of the list.
const TOGETHER_EVENTS: usize = 20_000;
const TOGETHER_BYTES: usize = 8 << 20;

/// Hears that events are kept: the events, the number of the first, and the check.
type StoredHook = Box<dyn FnOnce(&NewEvents, u64, [u8; 8]) + Send + Sync>;

/// Events to be kept.
pub(crate) struct EventAppend {
    pub(crate) new: NewEvents,
    /// Hears first that they are kept: the events, the number of the first, and the check.
    stored: StoredHook,
    pub(crate) reply: oneshot::Sender<Result<AppendOutcome, CentreError>>,
}

impl OfUser for EventAppend {}

/// Which events of a space.
#[derive(Clone, Debug)]
pub(crate) struct EventRange {
    pub(crate) space: String,
    pub(crate) after: u64,
    pub(crate) limit: u64,
    pub(crate) max_bytes: u64,
}

/// The lanes to the centre, for those who keep and read events.
#[derive(Clone)]
pub struct EventStore {
    appends: Arc<FairQueue<EventAppend>>,
    reads: Arc<FairQueue<DatabaseTask>>,
}

impl EventStore {
    /// Starts the workers that keep and read events.
    pub fn start(pool: &WorkerPool, clock: &Arc<dyn Clock>) -> EventStore {
        let clock = clock.clone();
        EventStore {
            appends: pool.start_lane("publishing", WorkerCount::Fixed(1), move |lane| {
                run_appends(lane, clock.clone())
            }),
            reads: pool.start_lane("events", WorkerCount::Fixed(EVENT_READERS), run_tasks),
        }
    }

    /// Keeps events; `stored` hears of it first.
    pub(crate) async fn append(
        &self,
        new: NewEvents,
        stored: StoredHook,
    ) -> Result<AppendOutcome, Fault> {
        let (reply, answer) = oneshot::channel();
        self.appends.submit(EventAppend { new, stored, reply });
        self.appends.answered(answer).await
    }

    /// See [`tidewater_centre::Worker::events_after`].
    pub(crate) async fn after(&self, range: EventRange) -> Result<Vec<StoredEvent>, Fault> {
        self.reads
            .ask(range, |worker, it| {
                worker.events_after(&it.space, it.after, it.limit, it.max_bytes)
            })
            .await
    }

    /// See [`tidewater_centre::Worker::last_values`]; behind the subject.
    pub(crate) async fn last(
        &self,
        range: EventRange,
        subject: String,
    ) -> Result<Vec<StoredEvent>, Fault> {
        self.reads
            .ask((range, subject), |worker, (it, subject)| {
                worker.last_values(&it.space, subject, it.limit, it.max_bytes)
            })
            .await
    }

    /// See [`tidewater_centre::Worker::event_check`].
    pub(crate) async fn check(&self, space: &str, id: u64) -> Result<Option<[u8; 8]>, Fault> {
        self.reads
            .ask((space.to_owned(), id), |worker, (space, id)| {
                worker.event_check(space, *id)
            })
            .await
    }

    /// See [`tidewater_centre::Worker::space_ends`].
    pub(crate) async fn ends(&self, spaces: Vec<String>) -> Result<Vec<u64>, Fault> {
        self.reads
            .ask(spaces, |worker, spaces| worker.space_ends(spaces))
            .await
    }

    pub(crate) async fn end(&self, space: &str) -> Result<u64, Fault> {
        let ends = self.ends(vec![space.to_owned()]).await?;
        Ok(ends.first().copied().unwrap_or_default())
    }
}

/// Works through the lane until it is closed and empty.
async fn run_appends(lane: LaneWorker<EventAppend>, clock: Arc<dyn Clock>) {
    loop {
        let (mut events, mut bytes) = (0, 0);
        let batch = lane.queue.next(|it| {
            let is_first = events == 0;
            events += it.new.events.len().max(1);
            bytes += it.new.events.iter().map(|(_, it)| it.len()).sum::<usize>();
            is_first || (events <= TOGETHER_EVENTS && bytes <= TOGETHER_BYTES)
        });
        let Some(mut batch) = batch.await else {
            return;
        };
        // Whoever has gone before it began is not waiting for it.
        batch.retain(|it| !it.reply.is_closed());
        if batch.is_empty() {
            continue;
        }
        let mut connection = lane.connections.take();
        append_all(batch, &mut connection, clock.now_ms()).await;
    }
}

async fn append_all(batch: Vec<EventAppend>, connection: &mut Connection, now_ms: i64) {
    if batch.len() > 1 {
        match append(&batch, connection, now_ms).await {
            Ok(appended) => return done(batch, appended),
            Err(CentreError::Unavailable { message }) => {
                for it in batch {
                    let message = message.clone();
                    let _ = it.reply.send(Err(CentreError::Unavailable { message }));
                }
                return;
            }
            // One of them is to blame: nothing was appended, so each goes alone.
            Err(error) => {
                let count = batch.len();
                tracing::debug!(%error, count, "lists of events are appended singly");
            }
        }
    }
    for it in batch {
        let one = vec![it];
        match append(&one, connection, now_ms).await {
            Ok(appended) => done(one, appended),
            Err(error) => {
                let reply = one.into_iter().next().map(|it| it.reply);
                let _ = reply.map(|it| it.send(Err(error)));
            }
        }
    }
}

/// Appends in one transaction; once more if the connection broke, most likely while nobody used it,
/// and if that makes no difference.
async fn append(
    batch: &[EventAppend],
    connection: &mut Connection,
    now_ms: i64,
) -> Result<Vec<AppendOutcome>, CentreError> {
    let repeatable = batch.iter().all(|it| it.new.once.is_some());
    let list: Vec<NewEvents> = batch.iter().map(|it| it.new.clone()).collect();
    let appended = match repeatable {
        true => {
            connection
                .ask(&list, |worker, list| {
                    worker.append_events(list.clone(), now_ms)
                })
                .await?
        }
        false => {
            connection
                .ask_once(&list, |worker, list| {
                    worker.append_events(list.clone(), now_ms)
                })
                .await?
        }
    };
    match appended.len() == batch.len() {
        true => Ok(appended),
        false => Err(CentreError::Internal {
            message: format!("{} of {} lists of events", appended.len(), batch.len()),
        }),
    }
}

fn done(batch: Vec<EventAppend>, appended: Vec<AppendOutcome>) {
    for (it, appended) in batch.into_iter().zip(appended) {
        if let AppendOutcome::At { first, check } = appended {
            (it.stored)(&it.new, first, check);
        }
        // Nobody waits when the publisher has gone.
        let _ = it.reply.send(Ok(appended));
    }
}
