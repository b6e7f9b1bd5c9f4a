//! What scripts do around the uploads and downloads of a connection, each in a transaction of its
//! own on the same connection.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Scripts, Transaction, chosen};
use crate::context::SyncContext;
use crate::download::DownloadJob;
use crate::engine::database::Lane;
use crate::error::CentreError;
use crate::scripting::{Report, ScriptRun};
use crate::upload::{SyncUpload, UploadOutcome};

type Result<T> = std::result::Result<T, CentreError>;

/// The versions that a connection serves: what has begun them.
#[derive(Default)]
pub struct Connected(HashMap<String, (Arc<Scripts>, ScriptRun)>);

/// The scripts that a sync has chosen of a publication, if any are served.
fn scripts<L: Lane>(lane: &L, context: &SyncContext, publication: &str) -> Option<Arc<Scripts>> {
    let served = lane.served();
    let publication = served.publication(publication).ok()?;
    match publication.scripts.is_empty() {
        true => None,
        // What is asked for and is not there is told by what is done with it.
        false => chosen(&publication.scripts, context, &publication.schema.name).ok()?,
    }
}

impl Connected {
    /// Has the connection serve what a sync has chosen.
    async fn begin<L: Lane>(&mut self, lane: &mut L, run: &ScriptRun) -> Result<()> {
        let Some(scripts) = scripts(lane, &run.context, &run.publication) else {
            return Ok(());
        };
        let version = super::version(&run.context, &run.publication);
        let is_begun = self
            .0
            .get(version)
            .is_some_and(|(begun, _)| *begun == scripts);
        if is_begun || !scripts.has(Transaction::Connecting) && !scripts.has(Transaction::Closing) {
            return Ok(());
        }
        let version = version.to_owned();
        let begin = run.of(Transaction::Connecting);
        lane.run_scripts(begin.clone()).await?;
        self.0.insert(version, (scripts, begin));
        Ok(())
    }

    /// Ends all versions that the connection serves.
    pub async fn end<L: Lane>(&mut self, lane: &mut L) -> Result<()> {
        for (_, (_, run)) in self.0.drain() {
            lane.run_scripts(run.of(Transaction::Closing)).await?;
        }
        Ok(())
    }

    /// Runs the scripts of a transaction of their own.
    pub async fn run<L: Lane>(&mut self, lane: &mut L, run: ScriptRun) -> Result<()> {
        self.begin(lane, &run).await?;
        lane.run_scripts(run).await
    }

    /// Applies uploads, and has reported what is to be.
    pub async fn apply<L: Lane>(
        &mut self,
        lane: &mut L,
        uploads: Vec<SyncUpload>,
    ) -> Result<Vec<UploadOutcome>> {
        let runs: Vec<Option<ScriptRun>> = uploads.iter().map(|it| scripted(lane, it)).collect();
        for run in runs.iter().flatten() {
            self.begin(lane, run).await?;
        }
        let outcomes = lane.apply(uploads).await?;
        for (run, outcome) in runs.into_iter().zip(&outcomes) {
            let Some(run) = run else { continue };
            let (notes, publication) = (&run.context.scripts, &run.publication);
            if let UploadOutcome::Failed { error } = outcome {
                let report = Report {
                    table: String::new(),
                    code: error.code().name().to_owned(),
                    message: error.to_string(),
                };
                notes.report(publication, report);
            }
            if !notes.has_reports(publication) {
                continue;
            }
            let reported = lane.run_scripts(run.of(Transaction::Reporting)).await;
            if let Err(error) = reported {
                tracing::error!(%error, publication, "an error could not be reported by scripts");
            }
        }
        Ok(outcomes)
    }

    /// What stands before downloads.
    pub async fn before_downloads<L: Lane>(
        &mut self,
        lane: &mut L,
        runs: &[Vec<ScriptRun>],
    ) -> Result<()> {
        for run in runs.iter().flatten() {
            self.begin(lane, run).await?;
            lane.run_scripts(run.of(Transaction::BeforeDownload))
                .await?;
        }
        Ok(())
    }
}

/// What stands after a download.
pub async fn after_download<L: Lane>(lane: &mut L, runs: &[ScriptRun]) -> Result<()> {
    for run in runs {
        lane.run_scripts(run.of(Transaction::AfterDownload)).await?;
    }
    Ok(())
}

/// The scripts of an upload, if it has chosen some.
fn scripted<L: Lane>(lane: &L, upload: &SyncUpload) -> Option<ScriptRun> {
    scripts(lane, &upload.context, &upload.publication)?;
    Some(ScriptRun {
        context: upload.context.clone(),
        publication: upload.publication.clone(),
        checkpoint: upload.checkpoint.clone(),
        transaction: Transaction::Upload,
    })
}

/// Those of the subscriptions of a download that have chosen some.
pub fn downloaded<L: Lane>(lane: &L, job: &DownloadJob) -> Vec<ScriptRun> {
    let scripted = job
        .subscriptions
        .iter()
        .filter(|it| scripts(lane, &job.context, &it.publication).is_some());
    let runs = scripted.map(|it| ScriptRun {
        context: job.context.clone(),
        publication: it.publication.clone(),
        checkpoint: it.checkpoint.clone(),
        transaction: Transaction::Download,
    });
    runs.collect()
}

impl ScriptRun {
    fn of(&self, transaction: Transaction) -> ScriptRun {
        ScriptRun {
            transaction,
            ..self.clone()
        }
    }
}
