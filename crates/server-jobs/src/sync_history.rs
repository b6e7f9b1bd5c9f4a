//! Syncs that are complete and not yet in the history. It may lag behind a little: a commit for each
//! sync would cost a small database as much as the sync itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use tidewater_centre::records::SyncRecord;

use crate::database_task::DatabaseTask;
use crate::fair_queue::FairQueue;
use crate::session_lane::SessionTask;

/// How long the history lags behind at most.
const HISTORY_LAG: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct SyncHistory {
    records: Mutex<Vec<SyncRecord>>,
    ready: Notify,
    closed: AtomicBool,
}

impl SyncHistory {
    fn records(&self) -> MutexGuard<'_, Vec<SyncRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sync, soon.
    pub(crate) fn add(&self, record: SyncRecord) {
        self.records().push(record);
        self.ready.notify_one();
    }

    /// Hands over what there is, and ends [`Self::run`].
    pub(crate) fn close(&self, lane: &FairQueue<SessionTask>) {
        self.closed.store(true, Ordering::Relaxed);
        self.ready.notify_one();
        self.hand_over(lane);
    }

    fn hand_over(&self, lane: &FairQueue<SessionTask>) {
        let mut records = std::mem::take(&mut *self.records());
        if records.is_empty() {
            return;
        }
        // Servers that note the same remotes lock them in the same order.
        records.sort_by_key(|record| record.remote_id);
        let task = DatabaseTask::new(move |connection| {
            Box::pin(async move {
                let recorded = connection
                    .ask_once(&records, |worker, records| worker.record_syncs(records))
                    .await;
                if let Err(error) = recorded {
                    let syncs = records.len();
                    tracing::warn!(%error, syncs, "syncs are missing in the history");
                }
            })
        });
        lane.submit(task.into());
    }

    /// Hands over what is added, until it is closed.
    pub(crate) async fn run(self: Arc<SyncHistory>, lane: Arc<FairQueue<SessionTask>>) {
        while !self.closed.load(Ordering::Relaxed) {
            self.ready.notified().await;
            tokio::time::sleep(HISTORY_LAG).await;
            self.hand_over(&lane);
        }
    }
}
