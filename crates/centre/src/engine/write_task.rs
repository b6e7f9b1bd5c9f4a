//! What is written by a writer of uploads, in transactions of its own: uploads, what operators choose,
//! scripts.

use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;
use crate::engine::{scripts, upload};
use crate::error::CentreError;
use crate::scripting::ScriptRun;
use crate::settling::{ConflictChoice, RefusedChoice, SettleOutcome};
use crate::trying::{ScriptTrial, TriedScript};
use crate::upload::{SyncUpload, UploadOutcome};

/// Something to write.
#[derive(Debug)]
pub enum WriteTask {
    /// See [`crate::Worker::apply`].
    Apply(Vec<SyncUpload>),
    /// See [`crate::Worker::settle_conflict`].
    SettleConflict(ConflictChoice),
    /// See [`crate::Worker::settle_refused`].
    SettleRefused(RefusedChoice),
    /// See [`crate::Worker::run_scripts`].
    RunScripts(ScriptRun),
    /// See [`crate::Worker::try_script`].
    TryScript(ScriptTrial),
}

/// What became of a [`WriteTask`].
#[derive(Debug)]
pub enum WriteOutcome {
    /// Uploads were applied.
    Applied(Vec<UploadOutcome>),
    /// A choice of an operator was settled.
    Settled(SettleOutcome),
    /// Scripts have run.
    Ran,
    /// A script was tried.
    Tried(TriedScript),
}

impl WriteTask {
    /// The time at which it was handed over, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match self {
            WriteTask::Apply(uploads) => uploads.first().map_or(0, |it| it.context.now_ms),
            WriteTask::SettleConflict(choice) => choice.now_ms,
            WriteTask::SettleRefused(choice) => choice.now_ms,
            WriteTask::RunScripts(asked) => asked.context.now_ms,
            WriteTask::TryScript(trial) => trial.context.now_ms,
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// The database failed; nothing is written.
    pub async fn run(
        self,
        writer: &mut UploadWriter<impl UploadDriver>,
    ) -> Result<WriteOutcome, CentreError> {
        Ok(match self {
            WriteTask::Apply(uploads) => {
                WriteOutcome::Applied(upload::apply(writer, &uploads).await?)
            }
            WriteTask::SettleConflict(choice) => {
                WriteOutcome::Settled(upload::settle_conflict(writer, &choice).await?)
            }
            WriteTask::SettleRefused(choice) => {
                WriteOutcome::Settled(upload::settle_refused(writer, &choice).await?)
            }
            WriteTask::RunScripts(asked) => {
                scripts::run(writer, &asked).await?;
                WriteOutcome::Ran
            }
            WriteTask::TryScript(trial) => {
                WriteOutcome::Tried(scripts::try_script(writer, &trial).await?)
            }
        })
    }
}

impl WriteOutcome {
    /// The error of a database that has done something else than it was asked to.
    pub(super) fn into_mismatch(self) -> CentreError {
        CentreError::Internal {
            message: format!("a task was answered with what became of another one: {self:?}"),
        }
    }
}
