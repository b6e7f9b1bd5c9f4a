//! What an adapter implements for its database.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::connection::DatabaseConnection;
use super::follow::CommittedChanges;
use super::inspect::DatabaseInspection;
use crate::download::{Downloaded, RunningDownloads};
use crate::engine::served_publications::{CentreShared, ServedPublications};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::write_task::{WriteOutcome, WriteTask};
use crate::error::{CentreError, CentreResult};
use crate::procedure::{CallInterrupt, CallOutcome, ProcedureCall};
use crate::scripting::ScriptRun;
use crate::settling::{ConflictChoice, RefusedChoice, SettleOutcome};
use crate::trying::{ScriptTrial, TriedScript};
use crate::upload::{SyncUpload, UploadOutcome};

/// Something to do on a connection.
pub type Job<C, T> =
    Box<dyn for<'c> FnOnce(&'c mut C) -> BoxFuture<'c, Result<T, CentreError>> + Send>;

/// Runs jobs on one connection, one after the other.
pub trait WorkerConnection: Send + 'static {
    /// The connection.
    type Connection: DatabaseConnection<Tables = Self::Tables>;
    /// What its tables have of its own.
    type Tables: TableAdapter;

    /// What it shares with the centre.
    fn shared(&self) -> &CentreShared<Self::Tables>;

    /// Whether the connection is there, as far as can be told without a word to the database.
    fn is_usable(&self) -> bool;

    /// Has a new connection in the place of this one, of whose session nothing is left.
    fn renew(&mut self) -> CentreResult<'_, ()>;

    /// Runs a job.
    fn run<'a, T: Send + 'static>(
        &'a mut self,
        job: Job<Self::Connection, T>,
    ) -> CentreResult<'a, T>;

    /// Writes something.
    fn write(&mut self, task: WriteTask) -> CentreResult<'_, WriteOutcome>;

    /// See [`crate::Worker::apply`].
    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        let written = self.write(WriteTask::Apply(uploads));
        Box::pin(async {
            match written.await? {
                WriteOutcome::Applied(outcomes) => Ok(outcomes),
                other => Err(other.into_mismatch()),
            }
        })
    }

    /// See [`crate::Worker::settle_conflict`].
    fn settle_conflict(&mut self, choice: ConflictChoice) -> CentreResult<'_, SettleOutcome> {
        let written = self.write(WriteTask::SettleConflict(choice));
        Box::pin(async {
            match written.await? {
                WriteOutcome::Settled(outcome) => Ok(outcome),
                other => Err(other.into_mismatch()),
            }
        })
    }

    /// See [`crate::Worker::settle_refused`].
    fn settle_refused(&mut self, choice: RefusedChoice) -> CentreResult<'_, SettleOutcome> {
        let written = self.write(WriteTask::SettleRefused(choice));
        Box::pin(async {
            match written.await? {
                WriteOutcome::Settled(outcome) => Ok(outcome),
                other => Err(other.into_mismatch()),
            }
        })
    }

    /// See [`crate::Worker::run_scripts`].
    fn run_scripts(&mut self, asked: ScriptRun) -> CentreResult<'_, ()> {
        let written = self.write(WriteTask::RunScripts(asked));
        Box::pin(async {
            match written.await? {
                WriteOutcome::Ran => Ok(()),
                other => Err(other.into_mismatch()),
            }
        })
    }

    /// See [`crate::Worker::try_script`].
    fn try_script(&mut self, trial: ScriptTrial) -> CentreResult<'_, TriedScript> {
        let written = self.write(WriteTask::TryScript(trial));
        Box::pin(async {
            match written.await? {
                WriteOutcome::Tried(tried) => Ok(tried),
                other => Err(other.into_mismatch()),
            }
        })
    }

    /// See [`crate::Worker::call`].
    fn call(
        &mut self,
        calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>>;

    /// See [`crate::Worker::interrupter`].
    fn interrupter(&self) -> Arc<dyn CallInterrupt>;

    /// See [`crate::Worker::download`].
    fn download<'a, 'd: 'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'d>>,
    ) -> CentreResult<'a, Downloaded>;
}

/// A database that can be a centre.
pub trait Database: DatabaseInspection {
    /// A connection that runs syncs.
    type Lane: WorkerConnection<Connection = Self::Connection, Tables = Self::Tables>;

    /// Opens another connection that runs syncs.
    fn open_lane(&self) -> CentreResult<'_, Self::Lane>;

    /// Runs a job on a connection for administration.
    fn run<T: Send + 'static>(&self, job: Job<Self::Connection, T>) -> CentreResult<'_, T>;

    /// Runs a job that takes long on a connection for administration: others do not wait for it.
    fn run_apart<T: Send + 'static>(&self, job: Job<Self::Connection, T>) -> CentreResult<'_, T>;

    /// What it shares with its workers.
    fn shared(&self) -> &CentreShared<Self::Tables>;

    /// Reads what change logs tell since a position that this gave before, on a connection of its
    /// own; without one, only how far they go. No commit is skipped, also none of a transaction
    /// that began before the position. Cheap if nothing was committed.
    fn follow(
        &self,
        served: Arc<ServedPublications<Self::Tables>>,
        since: Option<Vec<u8>>,
    ) -> CentreResult<'_, CommittedChanges>;

    /// See [`crate::Centre::check_tracking`].
    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()>;
}
