//! Events on their way to the centre and back: what is appended, and what is read again.
//!
//! While one append is under way the next ones gather, and go together in one transaction: what a
//! commit costs is shared by all who publish meanwhile. There is one worker for it, as whoever comes
//! second would wait for the numbers of the first.

use std::sync::Arc;

use tokio::sync::oneshot;

use tidewater_centre::CentreError;
use tidewater_centre::events::{AppendOutcome, NewEvents, StoredEvent};

use super::Hub;
use crate::connector::{Connection, Idle};
use crate::environment::Clock;
use crate::fault::Fault;
use crate::lane::{Lane, OfUser};

/// What goes in one transaction at most, beyond the first of the list.
const TOGETHER_EVENTS: usize = 20_000;
const TOGETHER_BYTES: usize = 8 << 20;

/// Events to be kept.
pub(crate) struct Append {
    pub(super) new: NewEvents,
    /// Who hears of them first.
    pub(super) hub: Arc<Hub>,
    pub(super) reply: oneshot::Sender<Result<AppendOutcome, CentreError>>,
}

/// Something to be read.
pub(crate) enum Read {
    /// See [`tidewater_centre::Worker::events_after`].
    After(
        Range,
        oneshot::Sender<Result<Vec<StoredEvent>, CentreError>>,
    ),
    /// See [`tidewater_centre::Worker::last_values`]; behind the subject.
    Last(
        Range,
        String,
        oneshot::Sender<Result<Vec<StoredEvent>, CentreError>>,
    ),
    /// See [`tidewater_centre::Worker::event_check`].
    Check(
        String,
        u64,
        oneshot::Sender<Result<Option<[u8; 8]>, CentreError>>,
    ),
    /// See [`tidewater_centre::Worker::space_ends`].
    Ends(Vec<String>, oneshot::Sender<Result<Vec<u64>, CentreError>>),
}

impl OfUser for Append {}
impl OfUser for Read {}

/// Which events of a space.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(super) space: String,
    pub(super) after: u64,
    pub(super) limit: u64,
    pub(super) max_bytes: u64,
}

/// The lanes to the centre, for those who keep and read events.
#[derive(Clone)]
pub(crate) struct Store {
    pub(super) appends: Arc<Lane<Append>>,
    pub(super) reads: Arc<Lane<Read>>,
}

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            appends: Lane::new(),
            reads: Lane::new(),
        }
    }

    pub(crate) fn lanes(&self) -> (&Arc<Lane<Append>>, &Arc<Lane<Read>>) {
        (&self.appends, &self.reads)
    }

    pub(crate) fn close(&self) {
        self.appends.close();
        self.reads.close();
    }

    /// Keeps events.
    pub(super) async fn append(
        &self,
        new: NewEvents,
        hub: &Arc<Hub>,
    ) -> Result<AppendOutcome, Fault> {
        let (reply, answer) = oneshot::channel();
        let hub = Arc::clone(hub);
        self.appends.submit(Append { new, hub, reply });
        answered(answer).await
    }

    pub(super) async fn after(&self, range: Range) -> Result<Vec<StoredEvent>, Fault> {
        let (reply, answer) = oneshot::channel();
        self.reads.submit(Read::After(range, reply));
        answered(answer).await
    }

    pub(super) async fn last(
        &self,
        range: Range,
        subject: String,
    ) -> Result<Vec<StoredEvent>, Fault> {
        let (reply, answer) = oneshot::channel();
        self.reads.submit(Read::Last(range, subject, reply));
        answered(answer).await
    }

    pub(super) async fn check(&self, space: &str, id: u64) -> Result<Option<[u8; 8]>, Fault> {
        let (reply, answer) = oneshot::channel();
        self.reads.submit(Read::Check(space.to_owned(), id, reply));
        answered(answer).await
    }

    pub(super) async fn ends(&self, spaces: Vec<String>) -> Result<Vec<u64>, Fault> {
        let (reply, answer) = oneshot::channel();
        self.reads.submit(Read::Ends(spaces, reply));
        answered(answer).await
    }

    pub(super) async fn end(&self, space: &str) -> Result<u64, Fault> {
        let ends = self.ends(vec![space.to_owned()]).await?;
        Ok(ends.first().copied().unwrap_or_default())
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, CentreError>>) -> Result<T, Fault> {
    match answer.await {
        Ok(result) => result.map_err(Fault::from),
        // The lanes close when the server ends.
        Err(_) => Err(Fault::shutting_down()),
    }
}

pub(crate) async fn run_appends(lane: Arc<Lane<Append>>, idle: Idle, clock: Arc<dyn Clock>) {
    loop {
        let (mut events, mut bytes) = (0, 0);
        let batch = lane.next(|it| {
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
        let mut connection = idle.take();
        append_all(batch, &mut connection, clock.now_ms()).await;
        idle.give_back(connection);
    }
}

async fn append_all(batch: Vec<Append>, connection: &mut Connection, now_ms: i64) {
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
    batch: &[Append],
    connection: &mut Connection,
    now_ms: i64,
) -> Result<Vec<AppendOutcome>, CentreError> {
    let mut again = batch.iter().all(|it| it.new.once.is_some());
    loop {
        let result = match connection.open().await {
            Ok(worker) => {
                let list = batch.iter().map(|it| it.new.clone()).collect();
                worker.append_events(list, now_ms).await
            }
            Err(error) => Err(error),
        };
        let result = connection.judge(result);
        let is_away = matches!(result, Err(CentreError::Unavailable { .. }));
        if !is_away || !std::mem::take(&mut again) {
            let appended = result?;
            if appended.len() != batch.len() {
                return Err(CentreError::Internal {
                    message: format!("{} of {} lists of events", appended.len(), batch.len()),
                });
            }
            return Ok(appended);
        }
    }
}

fn done(batch: Vec<Append>, appended: Vec<AppendOutcome>) {
    for (it, appended) in batch.into_iter().zip(appended) {
        if let AppendOutcome::At { first, check } = appended {
            it.hub.stored(&it.new, first, check);
        }
        // Nobody waits when the publisher has gone.
        let _ = it.reply.send(Ok(appended));
    }
}

pub(crate) async fn run_reads(lane: Arc<Lane<Read>>, idle: Idle) {
    while let Some(batch) = lane.next(|_| false).await {
        let mut connection = idle.take();
        for read in batch {
            run_read(read, &mut connection).await;
        }
        idle.give_back(connection);
    }
}

/// Reads; once more if the connection broke, most likely while nobody used it.
async fn run_read(read: Read, connection: &mut Connection) {
    macro_rules! answer {
        ($reply:expr, |$worker:ident| $reading:expr) => {{
            let mut again = true;
            let result = loop {
                let result = match connection.open().await {
                    Ok($worker) => $reading.await,
                    Err(error) => Err(error),
                };
                let result = connection.judge(result);
                let is_away = matches!(result, Err(CentreError::Unavailable { .. }));
                if !is_away || !std::mem::take(&mut again) {
                    break result;
                }
            };
            // Nobody waits when the reader has gone.
            let _ = $reply.send(result);
        }};
    }
    match read {
        Read::After(it, reply) => {
            answer!(reply, |worker| {
                worker.events_after(&it.space, it.after, it.limit, it.max_bytes)
            });
        }
        Read::Last(it, subject, reply) => {
            answer!(reply, |worker| {
                worker.last_values(&it.space, &subject, it.limit, it.max_bytes)
            });
        }
        Read::Check(space, id, reply) => {
            answer!(reply, |worker| worker.event_check(&space, id));
        }
        Read::Ends(spaces, reply) => answer!(reply, |worker| worker.space_ends(&spaces)),
    }
}
