//! Defects between server and centre: a centre that does something else than it is told, and
//! tells something else than it did.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::error::CentreResult;
use tidewater_centre::explain::{ExplainQuestion, Explanation};
use tidewater_centre::preview::{Preview, PreviewRequest};
use tidewater_centre::procedure_spec::ProcedureSpec;
use tidewater_centre::records::{
    CentrePulse, CentreStatus, ConflictFilter, ConflictRecord, NumbersRequest, ProvenIdentity,
    PruneReport, RefusedFilter, RefusedRecord, RemoteRecord, RetentionTimes, SessionRequest,
    SessionState, ShutOutReason, SigningKey, SubscriptionRecord, SyncRecord, UserImport,
    UserRecord,
};
use tidewater_centre::trying::{ScriptTrial, ScriptsToTry, TriedScript};
use tidewater_centre::{
    AppendOutcome, CallInterrupt, CallOutcome, Centre, Checkpoint, ConflictChoice,
    DeployedPublications, DownloadJob, DownloadOutcome, DownloadSink, Downloaded, FollowPosition,
    FollowedCommits, HoldingRequest, ListedTable, NewEvents, OnceKeyState, OwnUpload, Parameters,
    ProcedureCall, PublicationSpec, RefusedChoice, RemoteHolding, RunningDownloads, ScriptRun,
    SettleOutcome, SpaceRetention, StoredEvent, SyncContext, SyncUpload, UploadOutcome,
    UploadResult, Worker,
};
use tidewater_protocol::message::NumberBlock;
use tidewater_protocol::{Op, PublicationSchema, RemoteId, UploadId};

use super::contests;
use super::download_sinks::{Filter, Later};
use super::list::{Defect, current, is_on};
use super::market;
use super::uploads::{EVERYBODY, alter, rewritten};
use crate::application;
use crate::calendar::BEGIN_MS;
use crate::liar;
use crate::scenario::Carelessness;
use crate::tables::REGIONS;

thread_local! {
    /// What remotes say of their last uploads.
    static BELIEVED: RefCell<HashMap<RemoteId, SubscriptionRecord>> = RefCell::default();
    /// What remotes set first.
    static FIRST_SET: RefCell<HashMap<RemoteId, Arc<Parameters>>> = RefCell::default();
    /// Downloads since it was last looked for commits.
    static DOWNLOADS: Cell<u64> = const { Cell::new(0) };
}

/// A remote is about to say this of its last upload.
pub(super) fn believe(remote_id: RemoteId, sequence: u64, upload_id: Option<UploadId>) {
    let claimed = SubscriptionRecord {
        sequence,
        upload_id,
    };
    BELIEVED.with_borrow_mut(|believed| believed.insert(remote_id, claimed));
}

/// A world begins.
pub(super) fn forget_all() {
    BELIEVED.with_borrow_mut(HashMap::clear);
    FIRST_SET.with_borrow_mut(HashMap::clear);
    contests::forget_all();
    market::forget_all();
    DOWNLOADS.set(0);
}

/// The centre in this file, with what is wrong with it, if anything is.
pub(crate) fn meddle(centre: Arc<dyn Centre>, path: PathBuf) -> Arc<dyn Centre> {
    match current() {
        Some(_) => Arc::new(MeddlingCentre(centre, path)),
        None => centre,
    }
}

struct MeddlingCentre(Arc<dyn Centre>, PathBuf);

impl Centre for MeddlingCentre {
    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>> {
        self.0.tables()
    }
    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        dry_run: bool,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        self.0.deploy(publications, dry_run, now_ms)
    }
    fn deploy_refusing_pending<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        self.0.deploy_refusing_pending(publications, now_ms)
    }
    fn rename(&self, now_ms: i64) -> CentreResult<'_, bool> {
        self.0.rename(now_ms)
    }
    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport> {
        self.0.undeploy(dry_run)
    }
    fn other_sessions(&self) -> CentreResult<'_, u64> {
        self.0.other_sessions()
    }
    fn run_statements<'a>(&'a self, sql: &'a str) -> CentreResult<'a, ()> {
        self.0.run_statements(sql)
    }
    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        if is_on(Defect::ParameterUnchecked) {
            let _ = allow_anything(&self.1);
        }
        self.0.load(publications)
    }
    fn refresh(&self) -> CentreResult<'_, Option<DeployedPublications>> {
        self.0.refresh()
    }
    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>> {
        self.0.signing_keys()
    }
    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool> {
        self.0.add_signing_key(key)
    }
    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool> {
        self.0.retire_signing_key(id)
    }
    fn import_users<'a>(
        &'a self,
        users: &'a [UserRecord],
        update: bool,
    ) -> CentreResult<'a, UserImport> {
        self.0.import_users(users, update)
    }
    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool> {
        self.0.add_user(user)
    }
    fn set_password<'a>(&'a self, name: &'a str, hash: &'a str) -> CentreResult<'a, bool> {
        self.0.set_password(name, hash)
    }
    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool> {
        self.0.set_disabled(name, disabled)
    }
    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool> {
        self.0.remove_user(name)
    }
    fn users(&self) -> CentreResult<'_, Vec<UserRecord>> {
        self.0.users()
    }
    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>> {
        self.0.remotes()
    }
    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0.revoke_remote(id)
    }
    fn forget_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0.forget_remote(id)
    }
    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0.restore_remote(id)
    }
    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>> {
        self.0.conflicts()
    }
    fn find_conflicts<'a>(
        &'a self,
        filter: &'a ConflictFilter,
    ) -> CentreResult<'a, Vec<ConflictRecord>> {
        self.0.find_conflicts(filter)
    }
    fn conflict(&self, id: i64) -> CentreResult<'_, Option<ConflictRecord>> {
        self.0.conflict(id)
    }
    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>> {
        self.0.refused()
    }
    fn find_refused<'a>(
        &'a self,
        filter: &'a RefusedFilter,
    ) -> CentreResult<'a, Vec<RefusedRecord>> {
        self.0.find_refused(filter)
    }
    fn refused_row(&self, id: i64) -> CentreResult<'_, Option<RefusedRecord>> {
        self.0.refused_row(id)
    }
    fn status(&self) -> CentreResult<'_, CentreStatus> {
        self.0.status()
    }
    fn prune(&self, retention: RetentionTimes, now_ms: i64) -> CentreResult<'_, PruneReport> {
        self.0.prune(retention, now_ms)
    }
    fn pulse(&self) -> CentreResult<'_, CentrePulse> {
        self.0.pulse()
    }
    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()> {
        self.0.check_tracking(now_ms)
    }
    fn follow(&self, since: Option<FollowPosition>) -> CentreResult<'_, FollowedCommits> {
        Box::pin(async move {
            let mut followed = self.0.follow(since).await?;
            if is_on(Defect::WakeLostInSync) && DOWNLOADS.replace(0) > 0 {
                followed.touched.clear();
            }
            Ok(followed)
        })
    }
    fn procedures<'a>(
        &'a self,
        specs: &'a [ProcedureSpec],
    ) -> CentreResult<'a, Vec<Arc<CallableProcedure>>> {
        Box::pin(async move {
            let mut specs = specs.to_vec();
            for spec in &mut specs {
                // Spaces have their rules read as procedures of this name.
                let is_of_space = spec.name == "allow";
                match (current(), is_of_space) {
                    (Some(Defect::CallRightsUnasked), false) => spec.allow = None,
                    (Some(Defect::EventRightsUnasked), true) => {
                        spec.allow = Some("SELECT 1".into());
                    }
                    _ => {}
                }
            }
            self.0.procedures(&specs).await
        })
    }
    fn prune_events<'a>(
        &'a self,
        spaces: &'a [SpaceRetention],
        now_ms: i64,
    ) -> CentreResult<'a, u64> {
        self.0.prune_events(spaces, now_ms)
    }
    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>> {
        Box::pin(async {
            let inner = self.0.worker().await?;
            let path = self.1.clone();
            Ok(Box::new(MeddlingWorker { inner, path }) as Box<dyn Worker>)
        })
    }
    fn explain<'a>(&'a self, question: &'a ExplainQuestion) -> CentreResult<'a, Explanation> {
        self.0.explain(question)
    }
    fn preview<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        asked: &'a PreviewRequest,
    ) -> CentreResult<'a, Preview> {
        self.0.preview(publications, asked)
    }
    fn scripts_to_try<'a>(
        &'a self,
        publication: &'a PublicationSpec,
        version: &'a str,
    ) -> CentreResult<'a, ScriptsToTry> {
        self.0.scripts_to_try(publication, version)
    }
}

struct MeddlingWorker {
    inner: Box<dyn Worker>,
    path: PathBuf,
}

/// Has an upload run the scripts of a careless version.
fn change_version(upload: &mut SyncUpload) {
    let careless = match current() {
        Some(Defect::ScriptRunTwice) => Carelessness::Twice,
        Some(Defect::ScriptPassedOver) => Carelessness::Generated,
        Some(Defect::ScriptConflictUnnoticed) => Carelessness::Blind,
        Some(Defect::ScriptEndLeftOut) => Carelessness::Open,
        _ => return,
    };
    let parameters = Arc::make_mut(&mut upload.context.parameters);
    let set = parameters.entry(upload.publication.clone()).or_default();
    set.insert("script_version".into(), careless.version());
}

impl Worker for MeddlingWorker {
    fn is_usable(&self) -> bool {
        self.inner.is_usable()
    }

    fn session_states(
        &mut self,
        asked: Vec<SessionRequest>,
    ) -> CentreResult<'_, Vec<SessionState>> {
        Box::pin(async move {
            let remotes: Vec<Option<RemoteId>> = asked.iter().map(|it| it.remote_id).collect();
            let mut states = self.inner.session_states(asked).await?;
            for (state, remote_id) in states.iter_mut().zip(remotes) {
                if is_on(Defect::CopyUnnoticed)
                    && let Some(claimed) = remote_id.and_then(believed)
                {
                    let records = state.subscriptions.iter_mut().flatten();
                    for record in records.filter(|it| it.sequence >= claimed.sequence) {
                        *record = claimed.clone();
                    }
                }
            }
            Ok(states)
        })
    }

    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOutReason)>> {
        self.inner.shut_out(remotes)
    }
    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()> {
        self.inner.save_remote(remote)
    }
    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()> {
        self.inner.record_syncs(records)
    }
    fn prove_user<'a>(
        &'a mut self,
        user: &'a str,
        proven: &'a ProvenIdentity,
        creates: bool,
    ) -> CentreResult<'a, bool> {
        self.inner.prove_user(user, proven, creates)
    }
    fn replace_password<'a>(
        &'a mut self,
        user: &'a str,
        before: &'a str,
        hash: &'a str,
    ) -> CentreResult<'a, bool> {
        self.inner.replace_password(user, before, hash)
    }

    fn settle_conflict(&mut self, choice: ConflictChoice) -> CentreResult<'_, SettleOutcome> {
        Box::pin(async move {
            let outcome = self.inner.settle_conflict(choice.clone()).await?;
            market::resolved(&self.path, &choice, &outcome);
            Ok(outcome)
        })
    }
    fn settle_refused(&mut self, choice: RefusedChoice) -> CentreResult<'_, SettleOutcome> {
        Box::pin(async move {
            let id = choice.refused;
            let mut choice = choice;
            let is_noted = contests::give_up(&mut choice);
            market::agree(&mut choice);
            let sent = market::value_sent(&self.path, &choice);
            let outcome = self.inner.settle_refused(choice).await;
            if let Ok(outcome) = &outcome {
                market::replayed(&self.path, sent, outcome);
            }
            if is_noted && outcome.is_ok() {
                contests::note_replayed(&self.path, id);
            }
            outcome
        })
    }
    fn run_scripts(&mut self, asked: ScriptRun) -> CentreResult<'_, ()> {
        self.inner.run_scripts(asked)
    }
    fn end(&mut self) -> CentreResult<'_, ()> {
        self.inner.end()
    }
    fn hand_out<'a>(&'a mut self, asked: &'a NumbersRequest) -> CentreResult<'a, Vec<NumberBlock>> {
        self.inner.hand_out(asked)
    }
    fn holdings_now(
        &mut self,
        asked: Vec<HoldingRequest>,
    ) -> CentreResult<'_, Vec<Option<Vec<RemoteHolding>>>> {
        self.inner.holdings_now(asked)
    }
    fn holdings<'a>(
        &'a mut self,
        checkpoints: &'a [Checkpoint],
    ) -> CentreResult<'a, Vec<Option<RemoteHolding>>> {
        self.inner.holdings(checkpoints)
    }
    fn call(
        &mut self,
        mut calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>> {
        if is_on(Defect::CallKeyForgotten) {
            calls.iter_mut().for_each(|call| call.once = None);
        }
        self.inner.call(calls, now_ms)
    }
    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        self.inner.interrupter()
    }
    fn begin_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        procedure: &'a str,
        now_ms: i64,
    ) -> CentreResult<'a, OnceKeyState> {
        self.inner.begin_once(user, key, procedure, now_ms)
    }
    fn finish_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        outcome: Vec<u8>,
    ) -> CentreResult<'a, ()> {
        self.inner.finish_once(user, key, outcome)
    }
    fn forget_once<'a>(&'a mut self, user: &'a str, key: [u8; 16]) -> CentreResult<'a, ()> {
        self.inner.forget_once(user, key)
    }
    fn append_events(
        &mut self,
        mut batch: Vec<NewEvents>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<AppendOutcome>> {
        if is_on(Defect::EventKeyForgotten) {
            batch.iter_mut().for_each(|events| events.once = None);
        }
        self.inner.append_events(batch, now_ms)
    }
    fn events_after<'a>(
        &'a mut self,
        space: &'a str,
        after: u64,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        Box::pin(async move {
            let events = self.inner.events_after(space, after, limit, max_bytes);
            let mut events = events.await?;
            if is_on(Defect::EventSkipped) && after > 0 && events.len() > 1 {
                events.remove(0);
            }
            Ok(events)
        })
    }
    fn last_values<'a>(
        &'a mut self,
        space: &'a str,
        after_subject: &'a str,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        self.inner
            .last_values(space, after_subject, limit, max_bytes)
    }
    fn event_check<'a>(&'a mut self, space: &'a str, id: u64) -> CentreResult<'a, Option<[u8; 8]>> {
        self.inner.event_check(space, id)
    }
    fn space_ends<'a>(&'a mut self, spaces: &'a [String]) -> CentreResult<'a, Vec<u64>> {
        self.inner.space_ends(spaces)
    }

    fn name_device<'a>(&'a mut self, id: RemoteId, name: &'a str) -> CentreResult<'a, ()> {
        self.inner.name_device(id, name)
    }

    fn forget_previous_credential(
        &mut self,
        id: RemoteId,
        previous: Vec<u8>,
    ) -> CentreResult<'_, ()> {
        self.inner.forget_previous_credential(id, previous)
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        Box::pin(async move {
            let mut uploads = uploads;
            if let Ok(centre) = application::open(&self.path) {
                uploads.iter_mut().for_each(|upload| alter(upload, &centre));
                for upload in &mut uploads {
                    market::alter(upload, &centre);
                }
            }
            uploads.iter_mut().for_each(change_version);
            uploads.iter_mut().for_each(contests::misread);
            uploads.iter().for_each(contests::note_differences);
            let centre = application::open(&self.path);
            let since = centre.as_ref().map_or(0, contests::last_conflict);
            let count = uploads.len();
            let brought: Vec<_> = uploads.iter().map(market::look_through).collect();
            let mut outcomes = match self.inner.apply(uploads).await {
                Err(_) if is_on(Defect::AcknowledgedBeforeCommit) => {
                    let applied = |_| UploadOutcome::Applied {
                        result: UploadResult::default(),
                        own: OwnUpload::default(),
                    };
                    (0..count).map(applied).collect()
                }
                outcomes => outcomes?,
            };
            if let (Ok(centre), true) = (&centre, is_on(Defect::ParkedWritten)) {
                contests::write_parked(centre, since);
            }
            for (brought, outcome) in brought.into_iter().zip(&outcomes) {
                market::applied(&self.path, brought, outcome);
            }
            for outcome in &mut outcomes {
                match outcome {
                    UploadOutcome::AlreadyApplied { result }
                    | UploadOutcome::Applied { result, .. }
                        if is_on(Defect::MergedToldAsMade) =>
                    {
                        contests::tell_as_made(result);
                    }
                    UploadOutcome::AlreadyApplied { result } if is_on(Defect::ResultNotKept) => {
                        forget(result);
                    }
                    UploadOutcome::Applied { result, .. } if is_on(Defect::MadeNotTold) => {
                        forget_made(result);
                    }
                    _ => {}
                }
            }
            Ok(outcomes)
        })
    }

    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<UploadResult>> {
        Box::pin(async move {
            let mut result = self.inner.stored_result(remote_id, publication).await?;
            if is_on(Defect::DifferenceAddedTwice) && result.is_some() {
                contests::add_again(&self.path, remote_id);
            }
            if is_on(Defect::SumCountedOnRetry) && result.is_some() {
                market::add_again(&self.path, remote_id);
            }
            if is_on(Defect::ResultNotKept) {
                result.iter_mut().for_each(forget);
            }
            Ok(result)
        })
    }

    fn download<'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'a>>,
    ) -> CentreResult<'a, Downloaded> {
        if current().is_none() {
            return self.inner.download(downloads);
        }
        Box::pin(async move {
            let mut downloaded = Vec::with_capacity(downloads.len());
            for RunningDownloads { job, sink } in downloads {
                downloaded.push(Some(self.download_one(job, sink).await));
            }
            Ok(downloaded)
        })
    }

    fn download_one<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            DOWNLOADS.set(DOWNLOADS.get() + 1);
            let mut job = job;
            if is_on(Defect::ScopeOfEverybody) {
                job.context.user = EVERYBODY.into();
            }
            if is_on(Defect::WindowStandsStill) {
                job.context.now_ms = BEGIN_MS;
            }
            if is_on(Defect::ParameterNotFollowed) {
                job.context.parameters = first_set(&job.context);
            }
            let regions = regions(&job.context.user, &self.path);
            for subscription in &mut job.subscriptions {
                match (current(), &mut subscription.checkpoint) {
                    (Some(Defect::GainedPartitionsNotWhole), Some(checkpoint)) => {
                        liar::claim_all(checkpoint);
                    }
                    (Some(Defect::LostPartitionsNotRemoved), Some(checkpoint)) => {
                        forget_lost(checkpoint, &job.context.user, &self.path);
                    }
                    _ => {}
                }
            }
            let own = job.subscriptions.iter().filter_map(|it| it.own.as_ref());
            let own = own.flat_map(|own| own.rows.keys().map(|(_, key)| key.clone()));
            let mut filter = Filter {
                sink,
                own: own.collect(),
                regions,
                table: None,
                resumed: false,
                left_out: [0; 2],
                outcome: None,
            };
            let again = is_on(Defect::WatermarkAfterReads).then(|| job.clone());
            self.inner.download_one(job, &mut filter).await?;
            let outcome = filter.outcome.take();
            if let (Some(again), Some((index, outcome))) = (again, outcome) {
                sleep(Duration::from_secs(1)).await;
                let mut later = Later(None);
                self.inner.download_one(again, &mut later).await?;
                let checkpoint = later.0.or(outcome.checkpoint);
                let outcome = DownloadOutcome {
                    checkpoint,
                    ..outcome
                };
                filter.sink.end(index, outcome);
            }
            Ok(())
        })
    }
    fn try_script(&mut self, trial: ScriptTrial) -> CentreResult<'_, TriedScript> {
        self.inner.try_script(trial)
    }
}

/// What is deployed says no more what parameters may be.
fn allow_anything(centre: &Path) -> rusqlite::Result<()> {
    let sql = "UPDATE tidewater_centre_publication SET definition = json_remove(definition, '$.parameters')";
    application::open(centre)?.execute(sql, []).map(drop)
}

/// What a remote had set when it first had set anything.
fn first_set(context: &SyncContext) -> Arc<Parameters> {
    let now = &context.parameters;
    if now.values().all(BTreeMap::is_empty) {
        return now.clone();
    }
    FIRST_SET.with_borrow_mut(|first| {
        let first = first.entry(context.remote_id);
        first.or_insert_with(|| now.clone()).clone()
    })
}

fn believed(remote_id: RemoteId) -> Option<SubscriptionRecord> {
    BELIEVED.with_borrow(|believed| believed.get(&remote_id).cloned())
}

fn forget(result: &mut UploadResult) {
    let held = result.held;
    *result = UploadResult {
        held,
        ..UploadResult::default()
    };
}

/// Leaves out what the centre has made of rows.
fn forget_made(result: &mut UploadResult) {
    for table in &mut result.tables {
        table.rows = rewritten(&table.begin, &table.rows, &mut |row, _| {
            (row.op != Some(Op::Made)).then_some(())
        });
    }
}

/// The regions that a user has.
fn regions(user: &str, centre: &Path) -> Vec<i64> {
    let sql = "SELECT region FROM assignment WHERE login = ?1";
    let read = || {
        let centre = application::open(centre)?;
        let mut statement = centre.prepare(sql)?;
        let regions = statement.query_map([user], |row| row.get(0))?;
        regions.collect::<rusqlite::Result<_>>()
    };
    read().unwrap_or_default()
}

/// Leaves out what a user has no more of what a remote holds.
fn forget_lost(checkpoint: &mut Checkpoint, user: &str, centre: &Path) {
    let sql = "SELECT 1 FROM assignment WHERE login = ?1 AND region = ?2";
    let Ok(centre) = application::open(centre) else {
        return;
    };
    for region in 1..=REGIONS {
        let has = centre
            .prepare_cached(sql)
            .and_then(|mut it| it.exists((user, region as i64)));
        if matches!(has, Ok(false)) {
            let packed = liar::packed(region);
            for held in liar::sets(checkpoint) {
                held.remove(&packed);
            }
        }
    }
}
