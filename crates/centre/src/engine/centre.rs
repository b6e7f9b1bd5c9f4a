//! The centre and its workers, over any database.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use tidewater_protocol::message::NumberBlock;
use tidewater_protocol::{PublicationSchema, RemoteId};

use super::catalog::{CatalogReader, listed};
use super::connection::{DatabaseConnection, TransactionMode};
use super::database::{Database, Job, WorkerConnection};
use super::{
    activity, deploy, events, explain, follow, numbers, once, preview, procedure, prune, recorded,
    records, refusals, scripts, session, state,
};
use crate::centre::{Centre, Worker};
use crate::deploy_report::DeployReport;
use crate::download::{Downloaded, RunningDownloads};
use crate::engine::callable_procedure::CallableProcedure;
use crate::engine::evolution::DeploymentMode;
use crate::engine::scripts::ScriptConnection;
use crate::error::{CentreError, CentreResult};
use crate::events::{AppendOutcome, NewEvents, SpaceRetention, StoredEvent};
use crate::explain::{ExplainQuestion, Explanation};
use crate::follow::{FollowPosition, FollowedCommits, HoldingRequest, RemoteHolding};
use crate::preview::{Preview, PreviewRequest};
use crate::procedure::{CallInterrupt, CallOutcome, OnceKeyState, ProcedureCall};
use crate::procedure_spec::ProcedureSpec;
use crate::publication::{DeployedPublications, ListedTable, PublicationSpec};
use crate::records::{
    CentrePulse, CentreStatus, ConflictFilter, ConflictRecord, NumbersRequest, ProvenIdentity,
    PruneReport, RefusedFilter, RefusedRecord, RemoteRecord, RetentionTimes, SessionRequest,
    SessionState, ShutOutReason, SigningKey, SyncRecord, UserImport, UserRecord,
};
use crate::scope::Checkpoint;
use crate::scripting::ScriptRun;
use crate::settling::{ConflictChoice, RefusedChoice, SettleOutcome};
use crate::trying::{ScriptTrial, ScriptsToTry, TriedScript};
use crate::upload::{SyncUpload, UploadOutcome, UploadResult, decode_result};

/// A centre over a database.
pub struct EngineCentre<D>(pub D);

/// A worker on a connection.
struct EngineWorker<D: Database>(D::Lane, ScriptConnection);

/// Makes a [`Job`] of an expression that is a future over the connection.
macro_rules! job {
    (|$connection:ident| $future:expr) => {
        job(move |$connection| Box::pin(async move { $future.await }))
    };
}

/// Runs statements in one transaction.
async fn run_statements(
    connection: &mut impl DatabaseConnection,
    sql: &str,
) -> Result<(), CentreError> {
    connection.begin(TransactionMode::WRITING).await?;
    connection.execute("running statements", sql).await?;
    connection.commit().await
}

fn job<C, T>(
    job: impl for<'c> FnOnce(&'c mut C) -> BoxFuture<'c, Result<T, CentreError>> + Send + 'static,
) -> Job<C, T> {
    Box::new(job)
}

impl<D: Database> EngineCentre<D> {
    fn deploy_in(
        &self,
        publications: &[PublicationSpec],
        mode: DeploymentMode,
        now_ms: i64,
    ) -> CentreResult<'_, DeployReport> {
        let specs = publications.to_vec();
        Box::pin(async move {
            let mut random = [0; 48];
            self.0.shared().random(&mut random)?;
            let deploy =
                job!(|connection| deploy::deploy::<D>(connection, &specs, mode, now_ms, &random));
            self.0.run(deploy).await
        })
    }
}

impl<D: Database> Centre for EngineCentre<D> {
    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>> {
        self.0.run(job!(|connection| async {
            let catalog = D::catalog(connection).await?;
            Ok(listed(catalog.tables()))
        }))
    }

    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        dry_run: bool,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        self.deploy_in(publications, DeploymentMode::from_dry_run(dry_run), now_ms)
    }

    fn deploy_refusing_pending<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        self.deploy_in(publications, DeploymentMode::RefusePending, now_ms)
    }

    fn rename(&self, now_ms: i64) -> CentreResult<'_, bool> {
        Box::pin(async move {
            let mut random = [0; 48];
            self.0.shared().random(&mut random)?;
            let rename = job!(|connection| async move {
                match state::check::<D>(connection).await? {
                    true => recorded::rename(connection, &random, now_ms).await,
                    false => Ok(false),
                }
            });
            self.0.run(rename).await
        })
    }

    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport> {
        let undeploy = job!(|connection| deploy::undeploy::<D>(connection, dry_run));
        self.0.run(undeploy)
    }

    fn other_sessions(&self) -> CentreResult<'_, u64> {
        self.0
            .run(job!(|connection| activity::count_other_sessions::<D>(
                connection
            )))
    }

    fn run_statements<'a>(&'a self, sql: &'a str) -> CentreResult<'a, ()> {
        let sql = sql.to_owned();
        self.0
            .run(job!(|connection| run_statements(connection, &sql)))
    }

    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        let specs = publications.to_vec();
        Box::pin(async move {
            let load = job!(|connection| deploy::load::<D>(connection, &specs));
            let loaded = self.0.run(load).await?;
            let publications = loaded.publications.iter();
            let schemas = publications.map(|it| it.announced.clone()).collect();
            self.0.shared().serve(Arc::new(loaded));
            Ok(schemas)
        })
    }

    fn refresh(&self) -> CentreResult<'_, Option<DeployedPublications>> {
        Box::pin(async move {
            let served = self.0.shared().served();
            let reload =
                job!(|connection| async move { deploy::reload::<D>(connection, &served).await });
            if let Some(loaded) = self.0.run(reload).await? {
                self.0.shared().serve(Arc::new(loaded));
            }
            Ok(Some(self.0.shared().served().deployed()))
        })
    }

    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>> {
        Box::pin(async move {
            let lane = self.0.open_lane().await?;
            Ok(Box::new(EngineWorker::<D>(lane, ScriptConnection::default())) as Box<dyn Worker>)
        })
    }

    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>> {
        self.0
            .run(job!(|connection| records::signing_keys(connection)))
    }

    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool> {
        let key = key.clone();
        self.0.run(job!(|connection| records::add_signing_key(
            connection, &key
        )))
    }

    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool> {
        self.0.run(job!(|connection| records::retire_signing_key(
            connection, id
        )))
    }

    fn import_users<'a>(
        &'a self,
        users: &'a [UserRecord],
        update: bool,
    ) -> CentreResult<'a, UserImport> {
        let users = users.to_vec();
        let import = job!(|connection| records::import_users(connection, &users, update));
        self.0.run(import)
    }

    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool> {
        let user = user.clone();
        self.0
            .run(job!(|connection| records::add_user(connection, &user)))
    }

    fn set_password<'a>(&'a self, name: &'a str, hash: &'a str) -> CentreResult<'a, bool> {
        let (name, hash) = (name.to_owned(), hash.to_owned());
        self.0.run(job!(|connection| records::set_password(
            connection, &name, &hash
        )))
    }

    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool> {
        let name = name.to_owned();
        let set = job!(|connection| records::set_disabled(connection, &name, disabled));
        self.0.run(set)
    }

    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool> {
        let name = name.to_owned();
        self.0
            .run(job!(|connection| records::remove_user(connection, &name)))
    }

    fn users(&self) -> CentreResult<'_, Vec<UserRecord>> {
        self.0.run(job!(|connection| records::users(connection)))
    }

    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>> {
        self.0.run(job!(|connection| records::remotes(connection)))
    }

    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0.run(job!(|connection| records::set_revoked(
            connection, id, true
        )))
    }

    fn forget_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0
            .run(job!(|connection| records::forget_remote(connection, id)))
    }

    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.0.run(job!(|connection| records::set_revoked(
            connection, id, false
        )))
    }

    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>> {
        self.0
            .run(job!(|connection| records::conflicts(connection)))
    }

    fn find_conflicts<'a>(
        &'a self,
        filter: &'a ConflictFilter,
    ) -> CentreResult<'a, Vec<ConflictRecord>> {
        let filter = filter.clone();
        let find = job!(|connection| records::find_conflicts(connection, &filter));
        self.0.run(find)
    }

    fn conflict(&self, id: i64) -> CentreResult<'_, Option<ConflictRecord>> {
        self.0
            .run(job!(|connection| records::conflict(connection, id)))
    }

    fn find_refused<'a>(
        &'a self,
        filter: &'a RefusedFilter,
    ) -> CentreResult<'a, Vec<RefusedRecord>> {
        let filter = filter.clone();
        let find = job!(|connection| refusals::find(connection, &filter));
        self.0.run(find)
    }

    fn refused_row(&self, id: i64) -> CentreResult<'_, Option<RefusedRecord>> {
        self.0.run(job!(|connection| refusals::row(connection, id)))
    }

    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>> {
        self.0.run(job!(|connection| refusals::all(connection)))
    }

    fn explain<'a>(&'a self, question: &'a ExplainQuestion) -> CentreResult<'a, Explanation> {
        let question = question.clone();
        let explain = job!(|connection| explain::explain::<D>(connection, &question));
        self.0.run_apart(explain)
    }

    fn preview<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        asked: &'a PreviewRequest,
    ) -> CentreResult<'a, Preview> {
        let (specs, asked) = (publications.to_vec(), asked.clone());
        let preview = job!(|connection| preview::preview::<D>(connection, &specs, &asked));
        self.0.run_apart(preview)
    }

    fn scripts_to_try<'a>(
        &'a self,
        publication: &'a PublicationSpec,
        version: &'a str,
    ) -> CentreResult<'a, ScriptsToTry> {
        let (spec, version) = (publication.clone(), version.to_owned());
        let read = job!(|connection| scripts::scripts_to_try::<D>(connection, &spec, &version));
        self.0.run_apart(read)
    }

    fn status(&self) -> CentreResult<'_, CentreStatus> {
        self.0.run(job!(|connection| async {
            state::check::<D>(connection).await?;
            let logs = D::log_sizes(connection).await?;
            let blockers = activity::read_blockers::<D>(connection).await?;
            let tables = recorded::DeploymentRecord::read(connection).await?.tables();
            let keyless_rows = D::keyless_rows(connection, &tables).await?;
            let status = records::status(connection, logs, blockers).await?;
            Ok(CentreStatus {
                keyless_rows,
                ..status
            })
        }))
    }

    fn pulse(&self) -> CentreResult<'_, CentrePulse> {
        self.0.run(job!(|connection| async {
            state::check::<D>(connection).await?;
            let (oldest_transaction_ms, lock_waits) = activity::read_load::<D>(connection).await?;
            Ok(CentrePulse {
                oldest_transaction_ms,
                lock_waits,
                logs: D::about_log_sizes(connection).await?,
                oldest_sync_ms: records::oldest_sync_ms(connection).await?,
            })
        }))
    }

    fn prune(&self, retention: RetentionTimes, now_ms: i64) -> CentreResult<'_, PruneReport> {
        Box::pin(async move {
            let mut random = [0; 16];
            self.0.shared().random(&mut random)?;
            let prune = job!(|connection| prune::prune::<D>(connection, retention, now_ms, random));
            self.0.run_apart(prune).await
        })
    }

    fn follow(&self, since: Option<FollowPosition>) -> CentreResult<'_, FollowedCommits> {
        Box::pin(async move {
            let served = self.0.shared().served();
            let since = since.map(|it| it.0);
            let changes = self.0.follow(served.clone(), since).await?;
            Ok(follow::followed(&served, changes))
        })
    }

    fn prune_events<'a>(
        &'a self,
        spaces: &'a [SpaceRetention],
        now_ms: i64,
    ) -> CentreResult<'a, u64> {
        let spaces = spaces.to_vec();
        let prune = job!(|connection| events::prune(connection, &spaces, now_ms));
        self.0.run_apart(prune)
    }

    fn procedures<'a>(
        &'a self,
        specs: &'a [ProcedureSpec],
    ) -> CentreResult<'a, Vec<Arc<CallableProcedure>>> {
        let specs = specs.to_vec();
        self.0.run(job!(|connection| procedure::compile::<D>(
            connection, &specs
        )))
    }

    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()> {
        self.0.check_tracking(now_ms)
    }
}

impl<D: Database> Worker for EngineWorker<D> {
    fn is_usable(&self) -> bool {
        self.0.is_usable()
    }

    fn session_states(
        &mut self,
        asked: Vec<SessionRequest>,
    ) -> CentreResult<'_, Vec<SessionState>> {
        self.0
            .run(job!(|connection| session::states::<D>(connection, &asked)))
    }

    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOutReason)>> {
        let remotes = remotes.to_vec();
        self.0
            .run(job!(|connection| session::shut_out(connection, &remotes)))
    }

    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()> {
        let remote = remote.clone();
        self.0
            .run(job!(|connection| session::save_remote(connection, &remote)))
    }

    fn prove_user<'a>(
        &'a mut self,
        user: &'a str,
        proven: &'a ProvenIdentity,
        creates: bool,
    ) -> CentreResult<'a, bool> {
        let (user, proven) = (user.to_owned(), proven.clone());
        self.0.run(job!(|connection| records::prove_user(
            connection, &user, &proven, creates
        )))
    }

    fn replace_password<'a>(
        &'a mut self,
        user: &'a str,
        before: &'a str,
        hash: &'a str,
    ) -> CentreResult<'a, bool> {
        let [user, before, hash] = [user, before, hash].map(str::to_owned);
        self.0.run(job!(|connection| records::replace_password(
            connection, &user, &before, &hash
        )))
    }

    fn hand_out<'a>(&'a mut self, asked: &'a NumbersRequest) -> CentreResult<'a, Vec<NumberBlock>> {
        let (served, asked) = (self.0.shared().served(), asked.clone());
        self.0.run(job!(|connection| numbers::hand_out::<D>(
            connection, &served, &asked
        )))
    }

    fn name_device<'a>(&'a mut self, id: RemoteId, name: &'a str) -> CentreResult<'a, ()> {
        let name = name.to_owned();
        self.0.run(job!(|connection| session::name_device(
            connection, id, &name
        )))
    }

    fn forget_previous_credential(
        &mut self,
        id: RemoteId,
        previous: Vec<u8>,
    ) -> CentreResult<'_, ()> {
        let forget =
            job!(|connection| session::forget_previous_credential(connection, id, previous));
        self.0.run(forget)
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        let EngineWorker(lane, connected) = self;
        match lane.shared().served().has_scripts() || connected.serves_scripts() {
            false => lane.apply(uploads),
            true => Box::pin(connected.apply(lane, uploads)),
        }
    }

    fn run_scripts(&mut self, asked: ScriptRun) -> CentreResult<'_, ()> {
        let EngineWorker(lane, connected) = self;
        Box::pin(connected.run(lane, asked))
    }

    fn end(&mut self) -> CentreResult<'_, ()> {
        let EngineWorker(lane, connected) = self;
        Box::pin(connected.end(lane))
    }

    fn settle_conflict(&mut self, choice: ConflictChoice) -> CentreResult<'_, SettleOutcome> {
        self.0.settle_conflict(choice)
    }

    fn settle_refused(&mut self, choice: RefusedChoice) -> CentreResult<'_, SettleOutcome> {
        self.0.settle_refused(choice)
    }

    fn try_script(&mut self, trial: ScriptTrial) -> CentreResult<'_, TriedScript> {
        self.0.try_script(trial)
    }

    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<UploadResult>> {
        let publication = publication.to_owned();
        self.0.run(job!(|connection| async {
            let bytes = session::stored_result(connection, remote_id, &publication).await?;
            bytes.map(|bytes| decode_result(&bytes)).transpose()
        }))
    }

    fn download<'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'a>>,
    ) -> CentreResult<'a, Downloaded> {
        let EngineWorker(lane, connected) = self;
        match lane.shared().served().has_scripts() || connected.serves_scripts() {
            false => lane.download(downloads),
            true => Box::pin(connected.download(lane, downloads)),
        }
    }

    fn holdings_now(
        &mut self,
        asked: Vec<HoldingRequest>,
    ) -> CentreResult<'_, Vec<Option<Vec<RemoteHolding>>>> {
        let served = self.0.shared().served();
        self.0.run(job!(|connection| async move {
            follow::holdings_now::<D>(connection, &served, &asked).await
        }))
    }

    fn holdings<'a>(
        &'a mut self,
        checkpoints: &'a [Checkpoint],
    ) -> CentreResult<'a, Vec<Option<RemoteHolding>>> {
        let checkpoints = checkpoints.to_vec();
        self.0.run(job!(|connection| follow::holdings(
            connection,
            &checkpoints
        )))
    }

    fn call(
        &mut self,
        calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>> {
        self.0.call(calls, now_ms)
    }

    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        self.0.interrupter()
    }

    fn begin_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        procedure: &'a str,
        now_ms: i64,
    ) -> CentreResult<'a, OnceKeyState> {
        let user = user.to_owned();
        let procedure = procedure.to_owned();
        self.0.run(job!(|connection| once::begin(
            connection, &user, key, &procedure, now_ms
        )))
    }

    fn finish_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        outcome: Vec<u8>,
    ) -> CentreResult<'a, ()> {
        let user = user.to_owned();
        self.0.run(job!(|connection| once::finish_provided(
            connection, &user, key, outcome
        )))
    }

    fn forget_once<'a>(&'a mut self, user: &'a str, key: [u8; 16]) -> CentreResult<'a, ()> {
        let user = user.to_owned();
        self.0.run(job!(|connection| once::forget_provided(
            connection, &user, key
        )))
    }

    fn append_events(
        &mut self,
        batch: Vec<NewEvents>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<AppendOutcome>> {
        Box::pin(async move {
            let mut check = [0; 8];
            self.0.shared().random(&mut check)?;
            let append = job!(|connection| events::append(connection, &batch, check, now_ms));
            self.0.run(append).await
        })
    }

    fn events_after<'a>(
        &'a mut self,
        space: &'a str,
        after: u64,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        let (space, most) = (space.to_owned(), (limit, max_bytes));
        self.0.run(job!(|connection| events::after(
            connection, &space, after, most
        )))
    }

    fn last_values<'a>(
        &'a mut self,
        space: &'a str,
        after_subject: &'a str,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        let (space, subject) = (space.to_owned(), after_subject.to_owned());
        let most = (limit, max_bytes);
        self.0.run(job!(|connection| events::last_values(
            connection, &space, &subject, most
        )))
    }

    fn event_check<'a>(&'a mut self, space: &'a str, id: u64) -> CentreResult<'a, Option<[u8; 8]>> {
        let space = space.to_owned();
        self.0.run(job!(|connection| events::event_check(
            connection, &space, id
        )))
    }

    fn space_ends<'a>(&'a mut self, spaces: &'a [String]) -> CentreResult<'a, Vec<u64>> {
        let spaces = spaces.to_vec();
        self.0
            .run(job!(|connection| events::ends(connection, &spaces)))
    }

    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()> {
        let syncs = records.to_vec();
        self.0
            .run(job!(|connection| records::record_syncs(connection, &syncs)))
    }
}
