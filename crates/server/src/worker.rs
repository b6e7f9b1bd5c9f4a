//! Workers: tasks that own a database connection each, and take what waits for them.
//!
//! Lanes with limits of their own, so that neither long downloads nor bulk uploads keep
//! anybody from signing in or calling: lookups, uploads, downloads, calls, scripts beside these, and two for
//! durable events. A worker of
//! the upload lane takes as many waiting syncs as fit and hands them over as one
//! list; it never waits for more. Nothing here ever waits for a network.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use tidewater_centre::records::{
    AskedSession, NumbersWanted, Proven, RemoteRecord, SessionState, ShutOut, SyncRecord,
};
use tidewater_centre::{
    AskedHolding, Centre, CentreError, DownloadJob, Downloading, Holding, ScriptRun, SyncUpload,
    UploadOutcome,
};
use tidewater_protocol::RemoteId;
use tidewater_protocol::message::NumberBlock;

use crate::calls::lane::{CallTask, run_calls};
use crate::config::ServerLimits;
use crate::connector::{Connection, Connector, Idle, repeats};
use crate::environment::Clock;
use crate::images::Opened;
pub(crate) use crate::lane::{Lane, OfUser, Ticket};
use crate::memory::{MemoryBudget, Reservation};
use crate::metrics::{Phase, Timer};
use crate::registry::Standing;
use crate::script_sessions::{MOST_SESSIONS, ScriptUse, SessionPool};
use crate::spaces::store::{Store, run_appends, run_reads};
use crate::spool::SpoolWriter;
use crate::tuner::{Gate, Turn, tune};

/// What one transaction takes at most, beyond the first sync of the list.
const BATCH_SYNCS: usize = 64;
const BATCH_ROWS: u64 = 20_000;
const BATCH_BYTES: u64 = 16 << 20;

/// So many downloads are read from one snapshot at most.
const BATCH_DOWNLOADS: usize = 32;

/// Workers of a lane that finds out by itself how many it should have: at first, and at most.
const FIRST_WORKERS: usize = 2;

/// Workers that run scripts beside uploads and downloads.
const SCRIPT_WORKERS: usize = 2;

/// Workers that read durable events.
const EVENT_READERS: usize = 2;

/// How long the history lags behind at most.
const HISTORY_LAG: Duration = Duration::from_millis(50);

/// Short lookups and notes.
pub(crate) enum SessionTask {
    /// Everything that opening a session needs.
    Open {
        session: AskedSession,
        reply: oneshot::Sender<Result<SessionState, CentreError>>,
    },
    /// Which of these remotes may go on no longer.
    ShutOut {
        remotes: Vec<RemoteId>,
        reply: oneshot::Sender<Result<Vec<(RemoteId, ShutOut)>, CentreError>>,
    },
    /// What remotes hold now.
    HoldingsNow {
        asked: Vec<AskedHolding>,
        reply: oneshot::Sender<Result<Vec<Option<Vec<Holding>>>, CentreError>>,
    },
    /// A new remote or a new credential.
    Save {
        remote: RemoteRecord,
        reply: oneshot::Sender<Result<(), CentreError>>,
    },
    /// What was said of a user who has proven himself, who may be added if he is new.
    Prove {
        user: String,
        proven: Proven,
        creates: bool,
        reply: oneshot::Sender<Result<bool, CentreError>>,
    },
    /// Another password of a user, whose present one has the hash `before`.
    ReplacePassword {
        user: String,
        before: String,
        hash: String,
        reply: oneshot::Sender<Result<bool, CentreError>>,
    },
    /// Numbers for the rows of a remote.
    HandOut {
        wanted: NumbersWanted,
        reply: oneshot::Sender<Result<Vec<NumberBlock>, CentreError>>,
    },
    /// Whether the one subscription that is asked for, of an image, is covered by what the user holds:
    /// see [`tidewater_centre::DownloadStart::covers_image`].
    CoversImage {
        job: Box<DownloadJob>,
        reply: oneshot::Sender<Result<bool, CentreError>>,
    },
    /// What people call the device of a remote.
    NameDevice(RemoteId, String),
    /// The credential before, of which this is the hash, is void.
    ForgetPrevious(RemoteId, Vec<u8>),
    /// For the history.
    Record(Vec<SyncRecord>),
}

/// The uploads of one sync.
pub(crate) struct ApplyTask {
    /// Whether the remote may still upload.
    pub(crate) standing: Standing,
    pub(crate) uploads: Vec<SyncUpload>,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The memory that the rows hold.
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) scripts: ScriptUse,
    pub(crate) timer: Timer,
    pub(crate) reply: oneshot::Sender<Result<Vec<UploadOutcome>, CentreError>>,
}

/// The downloads of one sync, and the stored results of uploads that were applied
/// before.
pub(crate) struct DownloadTask {
    pub(crate) remote_id: RemoteId,
    /// Whether it may still download.
    pub(crate) standing: Standing,
    /// Index of the subscription and its publication.
    pub(crate) stored: Vec<(usize, String)>,
    pub(crate) job: Option<DownloadJob>,
    /// The memory that what the remote compares holds.
    pub(crate) reservation: Reservation,
    pub(crate) scripts: ScriptUse,
    pub(crate) timer: Timer,
    pub(crate) spool: SpoolWriter,
}

/// Scripts of one sync that have a transaction of their own.
pub(crate) struct ScriptTask {
    pub(crate) runs: Vec<ScriptRun>,
    pub(crate) scripts: ScriptUse,
    pub(crate) reply: oneshot::Sender<Result<(), CentreError>>,
}

impl OfUser for ScriptTask {
    fn user(&self) -> &str {
        self.runs.first().map_or("", |it| &it.context.user)
    }
}

impl OfUser for SessionTask {}
impl OfUser for ApplyTask {}
impl OfUser for DownloadTask {}

/// All lanes with their workers.
pub(crate) struct Workers {
    pub(crate) sessions: Arc<Lane<SessionTask>>,
    pub(crate) uploads: Arc<Lane<ApplyTask>>,
    pub(crate) downloads: Arc<Lane<DownloadTask>>,
    pub(crate) calls: Arc<Lane<CallTask>>,
    pub(crate) scripts: Arc<Lane<ScriptTask>>,
    pub(crate) sessions_of_scripts: Arc<SessionPool>,
    pub(crate) events: Store,
    /// Of uploads, of downloads and of calls, with how many workers there are.
    gates: OnceLock<[(Arc<Gate>, usize); 3]>,
    history: Arc<History>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    tuners: Mutex<Vec<AbortHandle>>,
    /// Connections that may serve scripts.
    idle: Mutex<Vec<Idle>>,
}

impl Workers {
    /// Starts the tasks. Database connections are opened as they are needed.
    pub(crate) fn start(
        centre: Arc<dyn Centre>,
        limits: &ServerLimits,
        clock: &Arc<dyn Clock>,
        budget: &MemoryBudget,
    ) -> Workers {
        let connector = Connector::new(centre);
        let workers = Workers {
            sessions: Lane::new(),
            uploads: Lane::new(),
            downloads: Lane::new(),
            calls: Lane::new(),
            scripts: Lane::new(),
            sessions_of_scripts: SessionPool::new(&connector, MOST_SESSIONS),
            idle: Mutex::new(Vec::new()),
            events: Store::new(),
            gates: OnceLock::new(),
            history: Arc::default(),
            tasks: Mutex::new(Vec::new()),
            tuners: Mutex::new(Vec::new()),
        };
        let (history, lane) = (workers.history.clone(), workers.sessions.clone());
        workers.keep(move || keep_history(history.clone(), lane.clone()));
        for _ in 0..limits.session_workers {
            let (lane, connector) = (workers.sessions.clone(), connector.clone());
            workers.keep(move || run_sessions(lane.clone(), Connection::new(&connector)));
        }
        let (gate, most) = workers.gate(
            limits.upload_workers,
            &limits.tried_workers,
            &workers.uploads,
        );
        let uploads = (gate.clone(), most);
        let idle = workers.idle(&connector);
        for _ in 0..most {
            let (lane, gate, idle) = (workers.uploads.clone(), gate.clone(), idle.clone());
            workers.keep(move || run_uploads(lane.clone(), gate.clone(), idle.clone()));
        }
        let (gate, most) = workers.gate(
            limits.download_workers,
            &limits.tried_workers,
            &workers.downloads,
        );
        let idle = workers.idle(&connector);
        for _ in 0..most {
            let (lane, gate, idle) = (workers.downloads.clone(), gate.clone(), idle.clone());
            workers.keep(move || run_downloads(lane.clone(), gate.clone(), idle.clone()));
        }
        let downloads = (gate, most);
        let idle = workers.idle(&connector);
        for _ in 0..SCRIPT_WORKERS {
            let (lane, idle) = (workers.scripts.clone(), idle.clone());
            workers.keep(move || run_scripts(lane.clone(), idle.clone()));
        }
        let (gate, most) = workers.gate(limits.call_workers, &limits.tried_workers, &workers.calls);
        let idle = Idle::new(&connector);
        for _ in 0..most {
            let (lane, gate, idle) = (workers.calls.clone(), gate.clone(), idle.clone());
            let (clock, budget) = (clock.clone(), budget.clone());
            workers.keep(move || {
                let (idle, clock) = (idle.clone(), clock.clone());
                run_calls(lane.clone(), gate.clone(), idle, clock, budget.clone())
            });
        }
        let idle = Idle::new(&connector);
        let (appends, reads) = workers.events.lanes();
        let (lane, of_appends, clock) = (appends.clone(), idle.clone(), clock.clone());
        workers.keep(move || run_appends(lane.clone(), of_appends.clone(), clock.clone()));
        for _ in 0..EVENT_READERS {
            let (lane, idle) = (reads.clone(), idle.clone());
            workers.keep(move || run_reads(lane.clone(), idle.clone()));
        }
        // It is set once.
        let _ = workers.gates.set([uploads, downloads, (gate, most)]);
        workers
    }

    /// Connections that serve scripts, which are ended when the server does.
    fn idle(&self, connector: &Arc<Connector>) -> Idle {
        let idle = Idle::new(connector);
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(idle.clone());
        idle
    }

    /// The gate of a lane with so many workers, and how many there are to be. Without a number,
    /// what is best is found by trying.
    fn gate<T: OfUser + Send + 'static>(
        &self,
        fixed: Option<usize>,
        tried: &RangeInclusive<usize>,
        lane: &Arc<Lane<T>>,
    ) -> (Arc<Gate>, usize) {
        let Some(most) = fixed else {
            let gate = Gate::new(FIRST_WORKERS.clamp(*tried.start(), *tried.end()));
            let lane = lane.clone();
            let tuning = tune(gate.clone(), tried.clone(), move || lane.waiting() > 0);
            // It has nothing to finish at shutdown, and ends with the runtime.
            self.tuners().push(tokio::spawn(tuning).abort_handle());
            return (gate, *tried.end());
        };
        (Gate::new(most), most)
    }

    fn tuners(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.tuners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a worker, and another one should it panic: a defect costs the tasks that
    /// it held, never the lane.
    fn keep<F>(&self, run: impl Fn() -> F + Send + 'static)
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
        self.tasks().push(supervisor);
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs that wait for a worker.
    pub(crate) fn backlog(&self) -> usize {
        self.uploads.waiting() + self.downloads.waiting()
    }

    /// Of each lane its name, how many workers may work, how many are at work, and what waits for
    /// one.
    pub(crate) fn lanes(&self, limits: &ServerLimits) -> [(&'static str, usize, usize, usize); 7] {
        let of = |index: usize| {
            let gates = self.gates.get();
            gates.map_or((0, 0), |it| (it[index].0.level(), it[index].1))
        };
        let [uploads, downloads, calls] = [of(0), of(1), of(2)];
        let sessions = (limits.session_workers, limits.session_workers);
        let (appends, reads) = self.events.lanes();
        [
            self.sessions.figures("sessions", sessions),
            self.uploads.figures("uploads", uploads),
            self.downloads.figures("downloads", downloads),
            self.calls.figures("calls", calls),
            self.scripts
                .figures("scripts", (SCRIPT_WORKERS, SCRIPT_WORKERS)),
            appends.figures("publishing", (1, 1)),
            reads.figures("events", (EVENT_READERS, EVENT_READERS)),
        ]
    }

    /// Adds a sync to the history, soon.
    pub(crate) fn record(&self, record: SyncRecord) {
        self.history.records().push(record);
        self.history.ready.notify_one();
    }

    /// Finishes what is queued and ends the workers.
    pub(crate) async fn close(&self, deadline: Duration) {
        self.tuners().drain(..).for_each(|tuner| tuner.abort());
        self.history.closed.store(true, Ordering::Relaxed);
        self.history.ready.notify_one();
        self.history.hand_over(&self.sessions);
        self.sessions.close();
        self.uploads.close();
        self.downloads.close();
        self.calls.close();
        self.scripts.close();
        self.events.close();
        let tasks = std::mem::take(&mut *self.tasks());
        let until = Instant::now() + deadline;
        for mut task in tasks {
            if tokio::time::timeout_at(until, &mut task).await.is_err() {
                tracing::warn!(
                    "a worker is still busy at shutdown; what it does is left to the database"
                );
                task.abort();
            }
        }
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        let ending = idle.iter().flat_map(Idle::take_all);
        for mut connection in ending.chain(self.sessions_of_scripts.take_idle()) {
            let ended = tokio::time::timeout_at(until, connection.end());
            if ended.await.is_err() {
                tracing::warn!("end_connection takes longer than the shutdown may");
            }
        }
    }
}

/// Syncs that are complete and not yet in the history. It may lag behind a little: a
/// commit for each sync would cost a small database as much as the sync itself.
#[derive(Default)]
struct History {
    records: Mutex<Vec<SyncRecord>>,
    ready: Notify,
    closed: AtomicBool,
}

impl History {
    fn records(&self) -> MutexGuard<'_, Vec<SyncRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&self, lane: &Lane<SessionTask>) {
        let mut records = std::mem::take(&mut *self.records());
        if !records.is_empty() {
            // Servers that note the same remotes lock them in the same order.
            records.sort_by_key(|record| record.remote_id);
            lane.submit(SessionTask::Record(records));
        }
    }
}

async fn keep_history(history: Arc<History>, lane: Arc<Lane<SessionTask>>) {
    while !history.closed.load(Ordering::Relaxed) {
        history.ready.notified().await;
        tokio::time::sleep(HISTORY_LAG).await;
        history.hand_over(&lane);
    }
}

async fn run_scripts(lane: Arc<Lane<ScriptTask>>, idle: Idle) {
    loop {
        let Some(tasks) = lane.next(|_| false).await else {
            return;
        };
        for task in tasks {
            let mut taken = idle.take_for(&task.scripts).await;
            let result = taken.run_scripts(&task.runs).await;
            drop(taken);
            // Whoever is gone hears of it at the next sync.
            let _ = task.reply.send(result);
        }
    }
}

async fn run_sessions(lane: Arc<Lane<SessionTask>>, mut connection: Connection) {
    loop {
        let mut sessions = 0;
        let tasks = lane.next(|_| {
            sessions += 1;
            sessions <= BATCH_SYNCS
        });
        let Some(tasks) = tasks.await else {
            return;
        };
        let (mut asked, mut replies) = (Vec::new(), Vec::new());
        for task in tasks {
            match task {
                SessionTask::Open { reply, .. } if reply.is_closed() => {}
                SessionTask::Open { session, reply } => {
                    asked.push(session);
                    replies.push(reply);
                }
                task => run_session_task(task, &mut connection).await,
            }
        }
        open_sessions(asked, replies, &mut connection).await;
    }
}

/// Looks up what sessions need, all at once; each alone if one of them is not well.
async fn open_sessions(
    asked: Vec<AskedSession>,
    replies: Vec<oneshot::Sender<Result<SessionState, CentreError>>>,
    connection: &mut Connection,
) {
    if asked.len() > 1
        && let Ok(states) = connection.session_states(&asked).await
    {
        for (reply, state) in replies.into_iter().zip(states) {
            let _ = reply.send(Ok(state));
        }
        return;
    }
    for (session, reply) in asked.chunks(1).zip(replies) {
        let states = connection.session_states(session).await;
        let _ = reply.send(states.map(|mut states| states.remove(0)));
    }
}

async fn run_session_task(task: SessionTask, connection: &mut Connection) {
    match task {
        SessionTask::Open { session, reply } => {
            open_sessions(vec![session], vec![reply], connection).await;
        }
        SessionTask::ShutOut { remotes, reply } => {
            let _ = reply.send(connection.shut_out(&remotes).await);
        }
        SessionTask::HoldingsNow { asked, reply } => {
            let _ = reply.send(connection.holdings_now(asked).await);
        }
        SessionTask::Save { remote, reply } => {
            let _ = reply.send(connection.save_remote(&remote).await);
        }
        SessionTask::Prove {
            user,
            proven,
            creates,
            reply,
        } => {
            let _ = reply.send(connection.prove_user(&user, &proven, creates).await);
        }
        SessionTask::ReplacePassword {
            user,
            before,
            hash,
            reply,
        } => {
            let _ = reply.send(connection.replace_password(&user, &before, &hash).await);
        }
        SessionTask::HandOut { wanted, reply } => {
            let result = match connection.open().await {
                Ok(worker) => worker.hand_out(&wanted).await,
                Err(error) => Err(error),
            };
            let _ = reply.send(connection.judge(result));
        }
        SessionTask::CoversImage { job, reply } => {
            let mut opened = Opened::default();
            let result = match connection.open().await {
                Ok(worker) => worker.download_one(*job, &mut opened).await,
                Err(error) => Err(error),
            };
            let _ = reply.send(connection.judge(result).map(|()| opened.covers_image));
        }
        SessionTask::NameDevice(id, name) => {
            let result = match connection.open().await {
                Ok(worker) => worker.name_device(id, &name).await,
                Err(error) => Err(error),
            };
            if let Err(error) = connection.judge(result) {
                // The next sign-in tries again.
                tracing::warn!(%error, remote = %id, "the name of a device could not be noted");
            }
        }
        SessionTask::ForgetPrevious(id, previous) => {
            let result = match connection.open().await {
                Ok(worker) => worker.forget_previous_credential(id, previous).await,
                Err(error) => Err(error),
            };
            if let Err(error) = connection.judge(result) {
                // The next use of the new credential tries again.
                tracing::warn!(%error, remote = %id, "an old credential could not be voided");
            }
        }
        SessionTask::Record(records) => {
            let result = match connection.open().await {
                Ok(worker) => worker.record_syncs(&records).await,
                Err(error) => Err(error),
            };
            if let Err(error) = connection.judge(result) {
                let syncs = records.len();
                tracing::warn!(%error, syncs, "syncs are missing in the history");
            }
        }
    }
}

async fn run_uploads(lane: Arc<Lane<ApplyTask>>, gate: Arc<Gate>, idle: Idle) {
    loop {
        let rest = lane.resting.begin();
        let turn = gate.turn().await;
        drop(rest);
        let (mut syncs, mut rows, mut bytes) = (0, 0, 0);
        let mut scripts = None;
        let batch = lane.next(|task| {
            let first = scripts.get_or_insert_with(|| task.scripts.clone());
            if syncs > 0 && !first.goes_with(&task.scripts) {
                return false;
            }
            syncs += 1;
            rows += task.rows;
            bytes += task.bytes;
            syncs <= BATCH_SYNCS && rows <= BATCH_ROWS && bytes <= BATCH_BYTES
        });
        let Some(mut batch) = batch.await else {
            return;
        };
        batch.iter_mut().for_each(|it| it.timer.next(Phase::Apply));
        let (syncs, rows) = (batch.len(), batch.iter().map(|task| task.rows).sum());
        let mut taken = idle.take_for(&scripts.unwrap_or_default()).await;
        apply_batch(batch, &turn, &mut taken).await;
        drop(taken);
        turn.done(syncs, rows);
    }
}

/// A task of a remote that may have been shut out since it signed in.
trait OfRemote: Sized {
    fn remote_id(&self) -> Option<RemoteId>;
    fn standing(&self) -> Standing;
    fn refuse(self, error: CentreError);
}

impl OfRemote for ApplyTask {
    fn remote_id(&self) -> Option<RemoteId> {
        self.uploads.first().map(|it| it.context.remote_id)
    }

    fn standing(&self) -> Standing {
        self.standing
    }

    fn refuse(self, error: CentreError) {
        let _ = self.reply.send(Err(error));
    }
}

impl OfRemote for DownloadTask {
    fn remote_id(&self) -> Option<RemoteId> {
        Some(self.remote_id)
    }

    fn standing(&self) -> Standing {
        self.standing
    }

    fn refuse(self, error: CentreError) {
        self.spool.finish(Err(error));
    }
}

/// Answers the tasks of remotes that were shut out since they signed in; gives the others.
async fn turn_away<T: OfRemote>(tasks: Vec<T>, connection: &mut Connection) -> Vec<T> {
    let doubtful = tasks.iter().filter(|task| !task.standing().is_certain());
    let doubtful: Vec<RemoteId> = doubtful.filter_map(T::remote_id).collect();
    if doubtful.is_empty() {
        return tasks;
    }
    let shut_out = connection.shut_out(&doubtful).await;
    let mut admitted = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = task.remote_id().filter(|id| doubtful.contains(id));
        match (&shut_out, id) {
            (_, None) => admitted.push(task),
            (Err(error), _) => task.refuse(CentreError::Unavailable {
                message: error.to_string(),
            }),
            (Ok(list), Some(id)) => match list.iter().find(|(of, _)| *of == id) {
                Some((_, reason)) => task.refuse(CentreError::ShutOut(*reason)),
                None => admitted.push(task),
            },
        }
    }
    admitted
}

async fn apply_batch(batch: Vec<ApplyTask>, turn: &Turn<'_>, connection: &mut Connection) {
    let batch = turn_away(batch, connection).await;
    if batch.len() > 1 {
        let all = batch.iter().flat_map(|task| task.uploads.iter().cloned());
        match connection.apply(all.collect()).await {
            Ok(outcomes) => {
                turn.note_locks(&outcomes);
                let mut outcomes = outcomes.into_iter();
                for task in batch {
                    let own = outcomes.by_ref().take(task.uploads.len()).collect();
                    let _ = task.reply.send(Ok(own));
                }
                return;
            }
            Err(CentreError::Unavailable { message }) => {
                for task in batch {
                    let message = message.clone();
                    let _ = task.reply.send(Err(CentreError::Unavailable { message }));
                }
                return;
            }
            // Not one of them could begin.
            Err(CentreError::Locked { message }) => {
                turn.was_locked();
                for task in batch {
                    let message = message.clone();
                    let _ = task.reply.send(Err(CentreError::Locked { message }));
                }
                return;
            }
            // One of them is to blame: nothing was applied, so each goes alone.
            Err(error) => {
                tracing::debug!(%error, syncs = batch.len(), "a list of uploads is applied singly");
            }
        }
    }
    for task in batch {
        let result = connection.apply(task.uploads).await;
        match &result {
            Ok(outcomes) => turn.note_locks(outcomes),
            Err(CentreError::Locked { .. }) => turn.was_locked(),
            Err(_) => {}
        }
        drop(task.reservation);
        // A remote that is gone hears of it at its next sync.
        let _ = task.reply.send(result);
    }
}

async fn run_downloads(lane: Arc<Lane<DownloadTask>>, gate: Arc<Gate>, idle: Idle) {
    loop {
        let rest = lane.resting.begin();
        let turn = gate.turn().await;
        drop(rest);
        let mut syncs = 0;
        let mut scripts = None;
        let tasks = lane.next(|task| {
            let first = scripts.get_or_insert_with(|| task.scripts.clone());
            if syncs > 0 && !first.goes_with(&task.scripts) {
                return false;
            }
            syncs += 1;
            syncs <= BATCH_DOWNLOADS && task.is_light()
        });
        let Some(mut tasks) = tasks.await else {
            return;
        };
        tasks.retain(|task| !task.spool.is_cancelled());
        tasks.iter_mut().for_each(|it| it.timer.next(Phase::Read));
        let mut taken = idle.take_for(&scripts.unwrap_or_default()).await;
        let tasks = turn_away(tasks, &mut taken).await;
        download_batch(tasks, &turn, &mut taken).await;
        drop(taken);
    }
}

impl DownloadTask {
    fn finish(self, result: Result<(), CentreError>, turn: &Turn<'_>) {
        turn.done(1, self.spool.row_count());
        drop(self.reservation);
        self.spool.finish(result);
    }

    /// Whether it can be expected not to keep others waiting that are read from the same snapshot:
    /// the remote has something already, and compares nothing.
    fn is_light(&self) -> bool {
        let mut subscriptions = self.job.iter().flat_map(|job| &job.subscriptions);
        subscriptions.all(|it| it.checkpoint.is_some() && it.compares.is_empty())
    }
}

/// Reads downloads, as many as can from one snapshot, and what is left of them from the next. One
/// that fails is read again by itself.
async fn download_batch(tasks: Vec<DownloadTask>, turn: &Turn<'_>, connection: &mut Connection) {
    // What was applied before is looked up for each.
    let is_plain = |task: &DownloadTask| task.stored.is_empty() && task.job.is_some();
    let (mut left, mut alone): (Vec<_>, Vec<_>) = tasks.into_iter().partition(is_plain);
    while left.len() > 1 {
        left = download_together(left, &mut alone, turn, connection).await;
    }
    for task in left.into_iter().chain(alone) {
        download_alone(task, turn, connection).await;
    }
}

/// Reads downloads from one snapshot. Gives those of which nothing was read: others had so much, or
/// failed. These are among those that are to be read `alone`.
async fn download_together(
    mut tasks: Vec<DownloadTask>,
    alone: &mut Vec<DownloadTask>,
    turn: &Turn<'_>,
    connection: &mut Connection,
) -> Vec<DownloadTask> {
    let result = match connection.open().await {
        Ok(worker) => {
            let downloads = tasks.iter_mut().filter_map(|task| {
                Some(Downloading {
                    job: task.job.clone()?,
                    sink: &mut task.spool,
                })
            });
            worker.download(downloads.collect()).await
        }
        Err(error) => Err(error),
    };
    let Ok(outcomes) = connection.judge(result) else {
        alone.extend(tasks);
        return Vec::new();
    };
    let mut left = Vec::new();
    for (task, outcome) in tasks.into_iter().zip(outcomes) {
        match outcome {
            None => left.push(task),
            Some(outcome) => match connection.judge(outcome) {
                // What the remote has been told cannot be said once more.
                Err(_) if !task.spool.has_begun() => alone.push(task),
                outcome => task.finish(outcome, turn),
            },
        }
    }
    left
}

async fn download_alone(mut task: DownloadTask, turn: &Turn<'_>, connection: &mut Connection) {
    let mut again = connection.is_open();
    let result = loop {
        let result = download(&mut task, connection).await;
        let result = connection.judge(result);
        // As above.
        if task.spool.has_begun() || !repeats(&result, &mut again) {
            break result;
        }
    };
    task.finish(result, turn);
}

async fn download(task: &mut DownloadTask, connection: &mut Connection) -> Result<(), CentreError> {
    let worker = connection.open().await?;
    for (index, publication) in &task.stored {
        let result = worker.stored_result(task.remote_id, publication).await?;
        let result = result.unwrap_or_default();
        if let Some(job) = &mut task.job {
            let subscription = &mut job.subscriptions[*index];
            subscription.gained.clone_from(&result.gained);
            subscription.requests.extend(result.requests());
        }
        task.spool.stored(*index, result);
    }
    match task.job.clone() {
        Some(job) => worker.download_one(job, &mut task.spool).await,
        None => Ok(()),
    }
}
