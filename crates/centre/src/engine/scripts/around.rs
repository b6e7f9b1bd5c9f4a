//! What scripts do around the uploads and downloads of a connection, each in a transaction of its
//! own on the same connection, and whose session that is.

use std::sync::Arc;

use tidewater_protocol::Code;

use super::{ScriptTransaction, Scripts, of_version};
use crate::context::SyncContext;
use crate::download::{DownloadJob, Downloaded, RunningDownloads};
use crate::engine::database::WorkerConnection;
use crate::error::CentreError;
use crate::script_notes::{ABORT, ScriptNotes, ScriptReport};
use crate::scripting::ScriptRun;
use crate::upload::{SyncUpload, UploadOutcome};

type Result<T> = std::result::Result<T, CentreError>;

/// What a connection serves by scripts: one version at a time, since what the scripts of one leave in
/// its session is no affair of another's, nor of what is generated.
#[derive(Default)]
pub struct ScriptConnection {
    session: SessionUse,
    /// Something has failed in the session: how it was left, nobody knows, so that no other sync gets
    /// it.
    is_spent: bool,
    /// The sync whose session it is, if it is one's.
    sync: Option<ScriptNotes>,
}

/// What a connection's session is for.
#[derive(Default)]
enum SessionUse {
    /// For whatever leaves nothing in it.
    #[default]
    Plain,
    /// For scripts of one version.
    Begun(VersionInUse),
    /// It is to be replaced: scripts may have left something in it.
    Spoiled,
}

/// The version of scripts that a session is for.
struct VersionInUse {
    scripts: Arc<Scripts>,
    /// What has begun it.
    run: ScriptRun,
    /// The deployment whose scripts these are: what those of another one find in a session may not
    /// be what they expect.
    deployment: i64,
}

impl VersionInUse {
    fn is_same(&self, other: &VersionInUse) -> bool {
        let version = |it: &VersionInUse| {
            let run = &it.run;
            super::version(&run.context, &run.publication).to_owned()
        };
        let is_as_deployed = self.deployment == other.deployment;
        is_as_deployed
            && version(self) == version(other)
            && self.scripts.shares_connections(&other.scripts)
    }
}

/// The version whose session a run needs; none if its scripts leave nothing in one.
fn version_in_use<L: WorkerConnection>(lane: &L, run: Option<&ScriptRun>) -> Option<VersionInUse> {
    let run = run?;
    let scripts = scripts(lane, &run.context, &run.publication)?;
    scripts.needs_a_session().then(|| VersionInUse {
        scripts,
        run: run.clone(),
        deployment: lane.shared().served().number,
    })
}

/// The scripts that a sync has chosen of a publication, if any are served.
fn scripts<L: WorkerConnection>(
    lane: &L,
    context: &SyncContext,
    publication: &str,
) -> Option<Arc<Scripts>> {
    let served = lane.shared().served();
    let publication = served.publication(publication).ok()?;
    // What is asked for and is not there is told by what is done with it.
    of_version(&publication.scripts, context, &publication.schema.name).cloned()
}

/// The part of a list that is of one sync: how many of the list, and what it runs by scripts.
struct OfSync {
    count: usize,
    runs: Vec<Option<ScriptRun>>,
    version: Option<VersionInUse>,
}

impl OfSync {
    /// # Errors
    /// See [`check_one_version`].
    fn new<L: WorkerConnection>(lane: &L, runs: Vec<Option<ScriptRun>>) -> Result<OfSync> {
        let scripted = runs.iter().flatten();
        let chosen = scripted.clone().filter_map(|it| {
            let scripts = scripts(lane, &it.context, &it.publication)?;
            let version = super::version(&it.context, &it.publication);
            Some((&*it.publication, version, scripts))
        });
        check_one_version(chosen)?;
        Ok(OfSync {
            count: 1,
            version: scripted
                .clone()
                .find_map(|it| version_in_use(lane, Some(it))),
            runs,
        })
    }

    /// Whether the one and then the other can be done in one session, and in one transaction.
    fn shares_a_session(&self, other: &OfSync) -> bool {
        match (&self.version, &other.version) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                let is_kept = one.scripts.keeps_a_session() || other.scripts.keeps_a_session();
                one.is_same(other) && !is_kept
            }
            _ => false,
        }
    }

    /// What the connection is to serve for it.
    fn run(&self) -> Option<&ScriptRun> {
        let served = self.version.as_ref().map(|it| &it.run);
        served.or_else(|| self.runs.iter().flatten().next())
    }
}

/// A list of uploads by sync, each with what it runs by scripts.
fn by_sync<L: WorkerConnection>(lane: &L, uploads: &[SyncUpload]) -> Result<Vec<OfSync>> {
    let is_one = |one: &SyncUpload, other: &SyncUpload| {
        one.context.scripts.is_same_sync(&other.context.scripts)
    };
    let syncs = uploads.chunk_by(is_one).map(|of_sync| {
        let runs = of_sync.iter().map(|it| scripted(lane, it)).collect();
        Ok(OfSync {
            count: of_sync.len(),
            ..OfSync::new(lane, runs)?
        })
    });
    syncs.collect()
}

impl ScriptConnection {
    /// Whether scripts may have left something in the connection's session.
    pub fn serves_scripts(&self) -> bool {
        !matches!(self.session, SessionUse::Plain)
    }

    /// Has the connection serve what a sync has chosen; `None`: nothing of scripts. What another
    /// version has left in its session goes with the connection, in whose place a new one comes.
    /// If the sync began elsewhere, what stands at its beginning for the session is run here, too.
    async fn serve<L: WorkerConnection>(
        &mut self,
        lane: &mut L,
        run: Option<&ScriptRun>,
    ) -> Result<()> {
        let wanted = version_in_use(lane, run);
        let fits = match (&self.session, &wanted) {
            (SessionUse::Plain, _) => true,
            (SessionUse::Begun(begun), Some(wanted)) => !self.is_spent && begun.is_same(wanted),
            (SessionUse::Begun(_), None) | (SessionUse::Spoiled, _) => false,
        };
        if !fits {
            if let Err(error) = self.end(lane).await {
                tracing::warn!(%error, "a connection could not be ended by its script");
            }
            lane.renew().await?;
            self.session = SessionUse::Plain;
            self.is_spent = false;
        }
        let (Some(wanted), Some(run)) = (wanted, run) else {
            return Ok(());
        };
        if !self.serves_scripts() {
            // What a script leaves that fails is no affair of others, either.
            self.session = SessionUse::Spoiled;
            if wanted.scripts.has(ScriptTransaction::Connecting) {
                lane.run_scripts(run.within(ScriptTransaction::Connecting))
                    .await?;
            }
            self.session = SessionUse::Begun(wanted);
        }
        self.enter(lane, run).await
    }

    /// Has the session be that of a sync.
    async fn enter<L: WorkerConnection>(&mut self, lane: &mut L, run: &ScriptRun) -> Result<()> {
        let notes = &run.context.scripts;
        let is_own = self.sync.as_ref().is_some_and(|it| it.is_same_sync(notes));
        let is_beside = matches!(
            run.transaction,
            ScriptTransaction::Acknowledged | ScriptTransaction::SigningIn
        );
        if is_own || is_beside {
            return Ok(());
        }
        self.sync = None;
        for (publication, checkpoint) in notes.beginnings() {
            if run.transaction == ScriptTransaction::Begin && run.publication == publication {
                continue;
            }
            let resume = ScriptRun {
                context: run.context.clone(),
                publication,
                checkpoint,
                transaction: ScriptTransaction::Resume,
            };
            lane.run_scripts(resume).await?;
        }
        self.sync = Some(notes.clone());
        Ok(())
    }

    /// Ends what the connection serves, if it serves scripts.
    pub async fn end<L: WorkerConnection>(&mut self, lane: &mut L) -> Result<()> {
        self.sync = None;
        match std::mem::replace(&mut self.session, SessionUse::Spoiled) {
            SessionUse::Begun(begun) if begun.scripts.has(ScriptTransaction::Closing) => {
                lane.run_scripts(begun.run.within(ScriptTransaction::Closing))
                    .await
            }
            _ => Ok(()),
        }
    }

    /// Runs the scripts of a transaction of their own.
    pub async fn run<L: WorkerConnection>(&mut self, lane: &mut L, run: ScriptRun) -> Result<()> {
        self.serve(lane, Some(&run)).await?;
        self.is_spent = true;
        run_reporting(lane, run.clone()).await?;
        self.is_spent = false;
        if run.transaction == ScriptTransaction::Begin {
            let notes = &run.context.scripts;
            notes.note_beginning(&run.publication, run.checkpoint);
        }
        Ok(())
    }

    /// Applies uploads, those together that may share a session, and has reported what is to be.
    pub async fn apply<L: WorkerConnection>(
        &mut self,
        lane: &mut L,
        uploads: Vec<SyncUpload>,
    ) -> Result<Vec<UploadOutcome>> {
        let mut syncs = by_sync(lane, &uploads)?.into_iter().peekable();
        let mut outcomes = Vec::with_capacity(uploads.len());
        let mut left = uploads.into_iter();
        while let Some(first) = syncs.next() {
            let mut together: Vec<SyncUpload> = left.by_ref().take(first.count).collect();
            let mut runs = first.runs.clone();
            while let Some(next) = syncs.next_if(|it| first.shares_a_session(it)) {
                together.extend(left.by_ref().take(next.count));
                runs.extend(next.runs);
            }
            self.serve(lane, first.run()).await?;
            self.is_spent = true;
            let applied = apply_together(lane, together, runs).await?;
            let has_failed = |it: &UploadOutcome| matches!(it, UploadOutcome::Failed { .. });
            self.is_spent = applied.iter().any(has_failed);
            outcomes.extend(applied);
        }
        Ok(outcomes)
    }

    /// Reads downloads with what stands before and after them: of several those that may share the
    /// session of the first; nothing is read of the others.
    pub async fn download<L: WorkerConnection>(
        &mut self,
        lane: &mut L,
        mut downloads: Vec<RunningDownloads<'_>>,
    ) -> Result<Downloaded> {
        let all = downloads.len();
        let mut together: Vec<OfSync> = Vec::new();
        for it in &downloads {
            let runs = downloaded(lane, &it.job);
            let of_sync = OfSync::new(lane, runs)?;
            let is_apart = |first: &OfSync| !first.shares_a_session(&of_sync);
            if together.first().is_some_and(is_apart) {
                break;
            }
            together.push(of_sync);
        }
        downloads.truncate(together.len());
        if let Some(first) = together.first() {
            self.serve(lane, first.run()).await?;
        }
        self.is_spent = true;
        let runs = |of_sync: &OfSync| of_sync.runs.iter().flatten().cloned().collect();
        let runs: Vec<Vec<ScriptRun>> = together.iter().map(runs).collect();
        for run in runs.iter().flatten() {
            run_reporting(lane, run.within(ScriptTransaction::BeforeDownload)).await?;
        }
        let mut outcomes = lane.download(downloads).await?;
        for (outcome, runs) in outcomes.iter_mut().zip(runs) {
            match outcome {
                Some(Ok(())) => *outcome = Some(after_download(lane, &runs).await),
                Some(Err(error)) => {
                    for run in &runs {
                        report_failure(lane, run, error).await;
                    }
                }
                None => {}
            }
        }
        self.is_spent = outcomes.iter().any(|it| matches!(it, Some(Err(_))));
        outcomes.resize_with(all, || None);
        Ok(outcomes)
    }
}

/// Applies uploads in one session, and has reported what is to be.
async fn apply_together<L: WorkerConnection>(
    lane: &mut L,
    uploads: Vec<SyncUpload>,
    runs: Vec<Option<ScriptRun>>,
) -> Result<Vec<UploadOutcome>> {
    let outcomes = lane.apply(uploads).await?;
    for (run, outcome) in runs.into_iter().zip(&outcomes) {
        let Some(run) = run else { continue };
        match outcome {
            UploadOutcome::Failed { error } => report_failure(lane, &run, error).await,
            _ => report(lane, &run).await,
        }
    }
    Ok(outcomes)
}

/// Has scripts report what is to be reported of a sync, in a transaction of their own.
async fn report<L: WorkerConnection>(lane: &mut L, run: &ScriptRun) {
    let publication = &run.publication;
    if !run.context.scripts.has_reports(publication) {
        return;
    }
    let reported = lane
        .run_scripts(run.within(ScriptTransaction::Reporting))
        .await;
    if let Err(error) = reported {
        tracing::error!(%error, publication, "an error could not be reported by scripts");
    }
}

/// Has scripts report what has ended a sync. A connection that has broken cannot.
async fn report_failure<L: WorkerConnection>(lane: &mut L, run: &ScriptRun, error: &CentreError) {
    if let CentreError::Unavailable { .. } | CentreError::Cancelled = error {
        return;
    }
    let failure = ScriptReport {
        table: String::new(),
        code: error.code().name().to_owned(),
        database_code: error.database_code().unwrap_or_default().to_owned(),
        message: error.to_string(),
        action: ABORT,
    };
    // Where `handle_error` has ended the sync, that is reported already, with the row's table.
    if !run.context.scripts.has_ending_report(&run.publication) {
        run.context.scripts.report(&run.publication, failure);
    }
    report(lane, run).await;
}

/// Runs the scripts of a transaction of their own, and has reported what they fail for.
async fn run_reporting<L: WorkerConnection>(lane: &mut L, run: ScriptRun) -> Result<()> {
    let ran = lane.run_scripts(run.clone()).await;
    if let Err(error) = &ran {
        report_failure(lane, &run, error).await;
    }
    ran
}

/// What stands after a download.
async fn after_download<L: WorkerConnection>(lane: &mut L, runs: &[ScriptRun]) -> Result<()> {
    for run in runs {
        run_reporting(lane, run.within(ScriptTransaction::AfterDownload)).await?;
    }
    Ok(())
}

/// The scripts of an upload, if it has chosen some.
fn scripted<L: WorkerConnection>(lane: &L, upload: &SyncUpload) -> Option<ScriptRun> {
    scripts(lane, &upload.context, &upload.publication)?;
    Some(ScriptRun {
        context: upload.context.clone(),
        publication: upload.publication.clone(),
        checkpoint: upload.checkpoint.clone(),
        transaction: ScriptTransaction::Upload,
    })
}

/// Those of the subscriptions of a download that have chosen some.
fn downloaded<L: WorkerConnection>(lane: &L, job: &DownloadJob) -> Vec<Option<ScriptRun>> {
    let scripted = job
        .subscriptions
        .iter()
        .filter(|it| scripts(lane, &job.context, &it.publication).is_some());
    let runs = scripted.map(|it| {
        Some(ScriptRun {
            context: job.context.clone(),
            publication: it.publication.clone(),
            checkpoint: it.checkpoint.clone(),
            transaction: ScriptTransaction::Download,
        })
    });
    runs.collect()
}

/// Checks that what a sync has chosen of publications can be run in one session: publication, version
/// and scripts of each.
///
/// # Errors
/// It has chosen several versions, and what one leaves in a session, another must not see.
pub fn check_one_version<'p>(
    chosen: impl Iterator<Item = (&'p str, &'p str, Arc<Scripts>)>,
) -> Result<()> {
    let chosen: Vec<_> = chosen.collect();
    let needs = chosen.iter().any(|(.., it)| it.needs_a_session());
    let Some((name, version, _)) = chosen.first().filter(|_| needs) else {
        return Ok(());
    };
    match chosen.iter().find(|(_, it, _)| it != version) {
        None => Ok(()),
        Some((other, another, _)) => Err(CentreError::Peer {
            message: format!(
                "a sync has one script version, and asks for {version:?} of {name:?} and for \
                 {another:?} of {other:?}: choose one for both with --script-version"
            ),
            code: Code::ParameterNotAllowed,
        }),
    }
}

impl ScriptRun {
    fn within(&self, transaction: ScriptTransaction) -> ScriptRun {
        ScriptRun {
            transaction,
            ..self.clone()
        }
    }
}
