//! The lanes of syncs: look-ups, uploads, downloads, and scripts beside these. Calls and durable
//! events start lanes of their own in the same pool.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use tidewater_centre::records::{SessionRequest, SessionState, SyncRecord};
use tidewater_centre::{Centre, ScriptRun};
use tidewater_server_config::ServerLimits;

use crate::connector::Connection;
use crate::database_task::DatabaseTask;
use crate::download_lane::{DownloadTask, run_downloads};
use crate::fair_queue::FairQueue;
use crate::fault::Fault;
use crate::script_sessions::{MOST_SESSIONS, ScriptUse, SessionPool};
use crate::session_lane::{SessionTask, run_sessions};
use crate::sync_history::SyncHistory;
use crate::upload_lane::{UploadTask, run_uploads};
use crate::worker_pool::{WorkerCount, WorkerPool, run_tasks};

/// Workers that run scripts beside uploads and downloads.
const SCRIPT_WORKERS: usize = 2;

/// The lanes of syncs with their workers.
pub struct WorkerLanes {
    /// Short look-ups and notes.
    pub sessions: Arc<FairQueue<SessionTask>>,
    /// Uploads of syncs.
    pub uploads: Arc<FairQueue<UploadTask>>,
    /// Downloads of syncs.
    pub downloads: Arc<FairQueue<DownloadTask>>,
    /// Scripts that have a transaction of their own.
    scripts: Arc<FairQueue<DatabaseTask>>,
    /// The connections of syncs whose scripts leave something in them.
    pub script_sessions: Arc<SessionPool>,
    history: Arc<SyncHistory>,
    pool: Arc<WorkerPool>,
}

impl WorkerLanes {
    /// Starts the tasks. Database connections are opened as they are needed.
    pub fn start(centre: Arc<dyn Centre>, limits: &ServerLimits) -> WorkerLanes {
        let pool = Arc::new(WorkerPool::new(centre));
        let tried = &limits.tried_workers;
        let count = WorkerCount::Fixed(limits.session_workers);
        let sessions = pool.start_lane("sessions", count, run_sessions);
        let count = WorkerCount::new(limits.upload_workers, tried);
        let uploads = pool.start_lane("uploads", count, run_uploads);
        let count = WorkerCount::new(limits.download_workers, tried);
        let downloads = pool.start_lane("downloads", count, run_downloads);
        let count = WorkerCount::Fixed(SCRIPT_WORKERS);
        let scripts = pool.start_lane("scripts", count, run_tasks);
        let history = Arc::<SyncHistory>::default();
        let (kept, lane) = (history.clone(), sessions.clone());
        pool.keep(move || kept.clone().run(lane.clone()));
        WorkerLanes {
            sessions,
            uploads,
            downloads,
            scripts,
            script_sessions: SessionPool::new(pool.connector(), MOST_SESSIONS),
            history,
            pool,
        }
    }

    /// The workers of all lanes, for those that others start.
    pub fn pool(&self) -> &Arc<WorkerPool> {
        &self.pool
    }

    /// Syncs that wait for a worker.
    pub fn backlog(&self) -> usize {
        self.uploads.waiting() + self.downloads.waiting()
    }

    /// Looks up everything that opening a session needs.
    ///
    /// # Errors
    /// What the database says, or the server is shutting down.
    pub async fn look_up(&self, session: SessionRequest) -> Result<SessionState, Fault> {
        let (reply, answer) = oneshot::channel();
        self.sessions.submit(SessionTask::LookUp { session, reply });
        self.sessions.answered(answer).await
    }

    /// Runs scripts, each in a transaction of its own, when it is their user's turn.
    ///
    /// # Errors
    /// One of them failed: those behind it were not run.
    pub async fn run_scripts(&self, runs: Vec<ScriptRun>, scripts: ScriptUse) -> Result<(), Fault> {
        let user = runs.first().map(|it| it.context.user.clone());
        let (reply, answer) = oneshot::channel();
        let task = DatabaseTask::new(move |connection: &mut Connection| {
            Box::pin(async move {
                // Whoever is gone hears of it at the next sync.
                let _ = reply.send(connection.run_scripts(&runs).await);
            })
        });
        let task = task.for_user(&user.unwrap_or_default());
        self.scripts.submit(task.with_scripts(scripts));
        self.scripts.answered(answer).await
    }

    /// Adds a sync to the history, soon.
    pub fn record(&self, record: SyncRecord) {
        self.history.add(record);
    }

    /// Finishes what is queued and ends the workers. Then scripts end the connections that have
    /// served them.
    pub async fn close(&self, deadline: Duration) {
        self.history.close(&self.sessions);
        let until = self.pool.close(deadline).await;
        let ending = self.pool.take_idle().into_iter();
        for mut connection in ending.chain(self.script_sessions.take_idle()) {
            let ended = tokio::time::timeout_at(until, connection.end());
            if ended.await.is_err() {
                tracing::warn!("end_connection takes longer than the shutdown may");
            }
        }
    }
}
