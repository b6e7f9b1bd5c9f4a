//! The lane of uploads: a worker takes as many waiting syncs as fit and hands them over as one list;
//! it never waits for more.

use std::sync::Arc;

use tokio::sync::oneshot;

use tidewater_centre::{CentreError, SyncUpload, UploadOutcome};
use tidewater_protocol::RemoteId;

use crate::connector::Connection;
use crate::fair_queue::OfUser;
use crate::memory::Reservation;
use crate::metrics::{Phase, Timer};
use crate::remote_task::{RemoteTask, refuse_shut_out};
use crate::script_sessions::ScriptUse;
use crate::session_validity::SessionValidity;
use crate::tuner::Turn;
use crate::worker_pool::LaneWorker;

/// What one transaction takes at most, beyond the first sync of the list.
const BATCH_SYNCS: usize = 64;
const BATCH_ROWS: u64 = 20_000;
const BATCH_BYTES: u64 = 16 << 20;

/// The uploads of one sync.
pub struct UploadTask {
    /// Whether the remote may still upload.
    pub validity: SessionValidity,
    /// The uploads, in the order of the Hello.
    pub uploads: Vec<SyncUpload>,
    /// How many rows they have.
    pub rows: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The memory that the rows hold.
    pub reservation: Arc<Reservation>,
    /// By which scripts they are applied.
    pub scripts: ScriptUse,
    /// Measures the phases.
    pub timer: Timer,
    /// Where the outcomes go.
    pub reply: oneshot::Sender<Result<Vec<UploadOutcome>, CentreError>>,
}

impl OfUser for UploadTask {}

impl RemoteTask for UploadTask {
    fn remote_id(&self) -> Option<RemoteId> {
        self.uploads.first().map(|it| it.context.remote_id)
    }

    fn validity(&self) -> SessionValidity {
        self.validity
    }

    fn refuse(self, error: CentreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// Works through the lane until it is closed and empty.
pub(crate) async fn run_uploads(lane: LaneWorker<UploadTask>) {
    loop {
        let turn = lane.turn().await;
        let (mut syncs, mut rows, mut bytes) = (0, 0, 0);
        let mut scripts = None;
        let batch = lane.queue.next(|task| {
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
        let mut taken = lane
            .connections
            .take_for(&scripts.unwrap_or_default())
            .await;
        apply_batch(batch, &turn, &mut taken).await;
        drop(taken);
        turn.done(syncs, rows);
    }
}

async fn apply_batch(batch: Vec<UploadTask>, turn: &Turn<'_>, connection: &mut Connection) {
    let batch = refuse_shut_out(batch, connection).await;
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
