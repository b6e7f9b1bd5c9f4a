//! Calls of statements on their way to the database and back.
//!
//! Quick calls go in lists, as many as wait: the database answers them in one flight. Those of a
//! procedure that takes long go alone, so that nobody waits behind them. Whoever goes away has his
//! statement ended.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use tidewater_centre::procedure::{CallOutcome, Cancel, ProcedureCall};
use tidewater_centre::records::{SessionRequest, UserClaims};
use tidewater_centre::{CentreError, Worker};

use tidewater_server_jobs::connector::Connection;
use tidewater_server_jobs::database_task::DatabaseTask;
use tidewater_server_jobs::environment::Clock;
use tidewater_server_jobs::fair_queue::OfUser;
use tidewater_server_jobs::memory::{HeldMemory, MemoryBudget};
use tidewater_server_jobs::worker_pool::LaneWorker;

/// So many quick calls go together at most.
const TOGETHER: usize = 64;

/// What takes longer is not quick.
const QUICK: Duration = Duration::from_millis(5);

/// An answer of more bytes is a large one.
const LARGE_BYTES: usize = 1 << 20;

/// How long a call of somebody who has gone may go on: most are done by then.
const GRACE: Duration = Duration::from_millis(20);

/// How long the calls of a procedure take.
#[derive(Default)]
pub(crate) struct Pace {
    /// Smoothed.
    micros: AtomicU64,
    /// An answer was large: many of them together are more than may be in memory.
    is_large: AtomicBool,
}

impl Pace {
    /// Nobody knows of a procedure that was never called.
    fn is_quick(&self) -> bool {
        let micros = self.micros.load(Ordering::Relaxed);
        let is_large = self.is_large.load(Ordering::Relaxed);
        !is_large && micros > 0 && micros < QUICK.as_micros() as u64
    }

    fn took(&self, time: Duration) {
        let micros = (time.as_micros() as u64).max(1);
        let before = self.micros.load(Ordering::Relaxed);
        let smoothed = match before {
            0 => micros,
            before => (before * 7 + micros) / 8,
        };
        self.micros.store(smoothed.max(1), Ordering::Relaxed);
    }

    fn answered(&self, bytes: usize) {
        if bytes > LARGE_BYTES {
            self.is_large.store(true, Ordering::Relaxed);
        }
    }
}

/// What came of a statement, and the memory that its answer waits in; `None` if there was no room.
pub(crate) type HeldAnswer = Option<(CallOutcome, HeldMemory)>;

/// Something to do in the database for a call.
pub(crate) enum CallTask {
    /// A statement is run, or it is asked who may.
    Run {
        call: ProcedureCall,
        pace: Arc<Pace>,
        reply: oneshot::Sender<Result<HeldAnswer, CentreError>>,
    },
    /// Anything else, which goes alone.
    Alone(DatabaseTask),
}

impl OfUser for CallTask {
    fn user(&self) -> &str {
        match self {
            CallTask::Run { call, .. } => &call.caller.user,
            CallTask::Alone(task) => task.user(),
        }
    }
}

impl From<DatabaseTask> for CallTask {
    fn from(task: DatabaseTask) -> CallTask {
        CallTask::Alone(task)
    }
}

/// A call that is run, and who waits for it.
struct RunningCall {
    call: ProcedureCall,
    pace: Arc<Pace>,
    reply: oneshot::Sender<Result<HeldAnswer, CentreError>>,
    /// Nobody waits any more, and the statement is to end.
    left: bool,
}

/// Works through the lane until it is closed and empty.
pub(crate) async fn run_calls(
    lane: LaneWorker<CallTask>,
    clock: Arc<dyn Clock>,
    budget: MemoryBudget,
) {
    loop {
        let turn = lane.turn().await;
        let mut count = 0;
        let batch = lane.queue.next(|task| {
            count += 1;
            let is_quick = match task {
                CallTask::Run { pace, .. } => pace.is_quick(),
                _ => false,
            };
            is_quick && count <= TOGETHER
        });
        let Some(batch) = batch.await else {
            return;
        };
        let done = batch.len();
        let mut connection = lane.connections.take();
        let mut calls = Vec::with_capacity(done);
        for task in batch {
            match task {
                CallTask::Run { reply, .. } if reply.is_closed() => {}
                CallTask::Run { call, pace, reply } => calls.push(RunningCall {
                    call,
                    pace,
                    reply,
                    left: false,
                }),
                CallTask::Alone(task) => task.run(&mut connection).await,
            }
        }
        if !calls.is_empty() {
            run_together(calls, &mut connection, clock.now_ms(), &budget).await;
        }
        drop(connection);
        turn.done(done, done as u64);
    }
}

async fn run_together(
    mut calls: Vec<RunningCall>,
    connection: &mut Connection,
    now_ms: i64,
    budget: &MemoryBudget,
) {
    let mut again = true;
    while !calls.is_empty() {
        let started = Instant::now();
        let count = calls.len() as u32;
        let result = match connection.open().await {
            Ok(worker) => flight(worker, &mut calls, now_ms).await,
            Err(error) => Err(error),
        };
        match connection.judge(result) {
            Ok(outcomes) => {
                let each = started.elapsed() / count;
                for (running, outcome) in calls.into_iter().zip(outcomes) {
                    running.pace.took(each);
                    let bytes = bytes_of(&outcome);
                    // Others would wait behind it.
                    let streamed = running.call.has_begun_to_answer();
                    running
                        .pace
                        .answered(if streamed { usize::MAX } else { bytes });
                    // It waits until its caller, who may be slow, takes it.
                    let kept = budget.hold(bytes).map(|held| (outcome, held));
                    // Nobody waits when the caller has gone.
                    let _ = running.reply.send(Ok(kept));
                }
                return;
            }
            Err(error) => {
                // The connection broke, most likely while nobody used it. What may have been done
                // is not done again, unless that makes no difference.
                let is_away = matches!(error, CentreError::Unavailable { .. });
                let repeats = std::mem::take(&mut again) && is_away;
                let message = error.to_string();
                let mut rest = Vec::new();
                for running in calls {
                    let call = &running.call;
                    let harmless = call.once.is_some() || call.procedure.is_read_only();
                    let is_unseen = !call.has_begun_to_answer();
                    if repeats && harmless && is_unseen && !running.left {
                        rest.push(running);
                    } else {
                        let message = message.clone();
                        let error = match is_away {
                            true => CentreError::Unavailable { message },
                            false => CentreError::Internal { message },
                        };
                        let _ = running.reply.send(Err(error));
                    }
                }
                calls = rest;
            }
        }
    }
}

fn bytes_of(outcome: &CallOutcome) -> usize {
    match outcome {
        CallOutcome::Answer(answer) => answer.rows.iter().map(Bytes::len).sum(),
        _ => 0,
    }
}

/// Runs the calls, and ends those whose callers go away meanwhile.
async fn flight(
    worker: &mut Box<dyn Worker>,
    calls: &mut [RunningCall],
    now_ms: i64,
) -> Result<Vec<CallOutcome>, CentreError> {
    bring_claims(worker, calls).await?;
    let interrupter = worker.interrupter();
    let list = calls.iter().map(|it| it.call.clone()).collect();
    let mut outcomes = pin!(worker.call(list, now_ms));
    loop {
        let mut left = Vec::new();
        tokio::select! {
            biased;
            outcomes = &mut outcomes => return outcomes,
            gone = someone_left(calls) => left.extend(gone),
        }
        let cancels: Vec<Cancel> = left
            .into_iter()
            .map(|it| calls[it].call.cancel.clone())
            .collect();
        cancels.iter().for_each(Cancel::set);
        tokio::select! {
            biased;
            outcomes = &mut outcomes => return outcomes,
            () = sleep(GRACE) => {}
        }
        cancels.iter().for_each(|it| interrupter.interrupt(it));
    }
}

/// Gives the calls that name it what is known of their callers: as it is now, however long ago they
/// signed in.
async fn bring_claims(
    worker: &mut Box<dyn Worker>,
    calls: &mut [RunningCall],
) -> Result<(), CentreError> {
    let names = |it: &RunningCall| it.call.procedure.names_claims();
    let named = calls.iter().filter(|it| names(it));
    let users: BTreeSet<String> = named.map(|it| it.call.caller.user.clone()).collect();
    if users.is_empty() {
        return Ok(());
    }
    let asked = users.iter().map(|user| SessionRequest {
        user: user.clone(),
        remote_id: None,
        subscriptions: Vec::new(),
    });
    let states = worker.session_states(asked.collect()).await?;
    let known = states.into_iter().map(|it| it.user.unwrap_or_default());
    let known: HashMap<String, UserClaims> = users
        .into_iter()
        .zip(known.map(|it| it.proven.claims))
        .collect();
    for running in calls.iter_mut().filter(|it| names(it)) {
        let claims = known.get(&running.call.caller.user);
        running.call.claims = claims.cloned().unwrap_or_default();
    }
    Ok(())
}

/// Ends when a caller has gone of whom that was not known, and tells which.
async fn someone_left(calls: &mut [RunningCall]) -> Vec<usize> {
    poll_fn(|context| {
        let mut left = Vec::new();
        for (index, running) in calls.iter_mut().enumerate() {
            if !running.left && running.reply.poll_closed(context).is_ready() {
                running.left = true;
                left.push(index);
            }
        }
        match left.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(left),
        }
    })
    .await
}
