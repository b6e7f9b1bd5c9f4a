//! The lane of downloads: a worker reads as many as can be read from one snapshot.

use tidewater_centre::{CentreError, DownloadJob, RunningDownloads};
use tidewater_protocol::RemoteId;

use crate::connector::{Connection, repeats};
use crate::fair_queue::OfUser;
use crate::memory::Reservation;
use crate::metrics::{Phase, Timer};
use crate::remote_task::{RemoteTask, refuse_shut_out};
use crate::script_sessions::ScriptUse;
use crate::session_validity::SessionValidity;
use crate::spool::SpoolWriter;
use crate::tuner::Turn;
use crate::worker_pool::LaneWorker;

/// So many downloads are read from one snapshot at most.
const BATCH_DOWNLOADS: usize = 32;

/// The downloads of one sync, and the stored results of uploads that were applied
/// before.
pub struct DownloadTask {
    /// The remote.
    pub remote_id: RemoteId,
    /// Whether it may still download.
    pub validity: SessionValidity,
    /// Index of the subscription and its publication.
    pub stored: Vec<(usize, String)>,
    /// What is read; `None` if only stored results are wanted.
    pub job: Option<DownloadJob>,
    /// The memory that what the remote compares holds.
    pub reservation: Reservation,
    /// By which scripts it is read.
    pub scripts: ScriptUse,
    /// Measures the phases.
    pub timer: Timer,
    /// Where rows go.
    pub spool: SpoolWriter,
}

impl OfUser for DownloadTask {}

impl RemoteTask for DownloadTask {
    fn remote_id(&self) -> Option<RemoteId> {
        Some(self.remote_id)
    }

    fn validity(&self) -> SessionValidity {
        self.validity
    }

    fn refuse(self, error: CentreError) {
        self.spool.finish(Err(error));
    }
}

/// Works through the lane until it is closed and empty.
pub(crate) async fn run_downloads(lane: LaneWorker<DownloadTask>) {
    loop {
        let turn = lane.turn().await;
        let mut syncs = 0;
        let mut scripts = None;
        let tasks = lane.queue.next(|task| {
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
        let mut taken = lane
            .connections
            .take_for(&scripts.unwrap_or_default())
            .await;
        let tasks = refuse_shut_out(tasks, &mut taken).await;
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
                Some(RunningDownloads {
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
