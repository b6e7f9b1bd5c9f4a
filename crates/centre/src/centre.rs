//! The traits that a database implements to be a consolidated database.

use std::sync::Arc;

use tidewater_protocol::message::NumberBlock;
use tidewater_protocol::{PublicationSchema, RemoteId};

use crate::deploy_report::DeployReport;
use crate::download::{DownloadJob, DownloadSink, Downloaded, RunningDownloads};
use crate::engine::callable_procedure::CallableProcedure;
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
use crate::upload::{SyncUpload, UploadOutcome};

/// A consolidated database: what needs no transaction of a sync. Shared by all
/// tasks of a server. Every method may be called at any time from any task.
pub trait Centre: Send + Sync {
    /// The tables that could be published, for `tidewater init`.
    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>>;

    /// Makes the database fit the publications: server state, change logs,
    /// triggers, a first signing key. Repeatable: a second call finds nothing to do.
    /// With `dry_run` nothing is changed and the report tells what would be.
    ///
    /// # Errors
    /// [`CentreError::RemotesHeldUp`] when remotes may have something pending that would be
    /// refused; and whatever is wrong with the publications.
    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        dry_run: bool,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport>;

    /// Deploys all the same when remotes may have something pending that is refused for it.
    fn deploy_refusing_pending<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport>;

    /// Gives a copy of a database a name of its own: remotes of the original, and what was signed
    /// for them, are not known here any more, and remotes of this one not there. Users stay.
    /// False if nothing is deployed, so that deploying gives a name.
    fn rename(&self, now_ms: i64) -> CentreResult<'_, bool>;

    /// Removes every trace of Tidewater.
    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport>;

    /// How many other sessions of Tidewater are connected to the database: of servers, which always
    /// are, and of commands that run at this moment. A database that cannot tell counts none.
    fn other_sessions(&self) -> CentreResult<'_, u64>;

    /// Runs statements of the operator's own in one transaction.
    fn run_statements<'a>(&'a self, sql: &'a str) -> CentreResult<'a, ()>;

    /// Compiles the publications for serving, and gives their schemas as remotes
    /// will see them, in the same order.
    ///
    /// # Errors
    /// [`CentreError::NotDeployed`] when the database does not fit them.
    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>>;

    /// Looks whether something else was deployed, or whether the served tables were altered since
    /// they were loaded, and serves what is deployed as it is now. `None`: this centre always
    /// serves what was loaded.
    ///
    /// # Errors
    /// [`CentreError::NotDeployed`], or what is wrong with the publications: what was served
    /// before is served on.
    fn refresh(&self) -> CentreResult<'_, Option<DeployedPublications>>;

    /// Another database connection that can run syncs.
    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>>;

    /// All signing keys, newest first. At least one after deploying.
    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>>;

    /// Adds a signing key. False if its number is taken. It is the newest from now on:
    /// servers begin to sign with it as soon as all of them have had the time to learn of
    /// it.
    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool>;

    /// Removes a signing key: what it signed counts for nothing any more. False if there
    /// is no such key, or no other.
    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool>;

    /// Adds a list of users in one transaction. A name that is taken keeps its user and
    /// gets the new password hash with `update`; without, nothing of the list is added.
    fn import_users<'a>(
        &'a self,
        users: &'a [UserRecord],
        update: bool,
    ) -> CentreResult<'a, UserImport>;

    /// Adds a user. False if the name is taken.
    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool>;

    /// Sets a user's password hash. False if there is no such user.
    fn set_password<'a>(&'a self, name: &'a str, hash: &'a str) -> CentreResult<'a, bool>;

    /// Keeps a user out, or lets one in again. False if there is no such user.
    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool>;

    /// Removes a user with all remotes and subscriptions. False if there is none.
    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool>;

    /// All users, by name.
    fn users(&self) -> CentreResult<'_, Vec<UserRecord>>;

    /// All remotes, by user and time.
    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>>;

    /// Keeps a remote out. False if there is no such remote.
    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool>;

    /// Forgets a remote that was made for something which has come to nothing. False if there is no
    /// such remote.
    fn forget_remote(&self, id: RemoteId) -> CentreResult<'_, bool>;

    /// Lets a remote in again that was kept out, as it was. False if there is no such remote.
    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool>;

    /// The conflicts kept, oldest first.
    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>>;

    /// Those of the conflicts kept that are asked for, newest first.
    fn find_conflicts<'a>(
        &'a self,
        filter: &'a ConflictFilter,
    ) -> CentreResult<'a, Vec<ConflictRecord>>;

    /// The conflict with this number, if it is kept.
    fn conflict(&self, id: i64) -> CentreResult<'_, Option<ConflictRecord>>;

    /// The refused rows kept that nobody has settled: every attempt, oldest first.
    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>>;

    /// Those of the refused rows kept that are asked for, each once, by its last attempt, newest
    /// first.
    fn find_refused<'a>(
        &'a self,
        filter: &'a RefusedFilter,
    ) -> CentreResult<'a, Vec<RefusedRecord>>;

    /// The refused row with an attempt of this number, by its last attempt.
    fn refused_row(&self, id: i64) -> CentreResult<'_, Option<RefusedRecord>>;

    /// Why a row is, is not, or was removed from a remote. Nothing is changed.
    ///
    /// # Errors
    /// [`CentreError::Configuration`] if there is no such remote, table or key.
    fn explain<'a>(&'a self, question: &'a ExplainQuestion) -> CentreResult<'a, Explanation>;

    /// What the publications would mean to the remotes that there are, against what is deployed.
    /// Nothing is changed.
    ///
    /// # Errors
    /// Whatever is wrong with the publications; and [`CentreError::NotDeployed`] if nothing is.
    fn preview<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        asked: &'a PreviewRequest,
    ) -> CentreResult<'a, Preview>;

    /// The scripts of a version of a publication, as it is configured, to be tried or printed. Nothing
    /// is changed.
    ///
    /// # Errors
    /// Whatever is wrong with the publication.
    fn scripts_to_try<'a>(
        &'a self,
        publication: &'a PublicationSpec,
        version: &'a str,
    ) -> CentreResult<'a, ScriptsToTry>;

    /// Figures for the operator.
    fn status(&self) -> CentreResult<'_, CentreStatus>;

    /// How it goes at the moment. Called every few seconds; a database that tells nothing is fine.
    fn pulse(&self) -> CentreResult<'_, CentrePulse>;

    /// Drops what is older than its retention time, signing keys too that were superseded
    /// longer ago than a watermark can be of use. Of several servers that call
    /// this at once, one does it and the others return at once.
    fn prune(&self, retention: RetentionTimes, now_ms: i64) -> CentreResult<'_, PruneReport>;

    /// What was committed since a position that this gave before; without one, only from where to
    /// follow on. No commit is skipped, whenever its transaction began, and what was not committed
    /// is not told. Cheap enough to be called every 50 ms, and on a connection of its own.
    fn follow(&self, since: Option<FollowPosition>) -> CentreResult<'_, FollowedCommits>;

    /// Drops the events of some spaces that are older than their retention time; counts them. Those
    /// of other spaces stay.
    fn prune_events<'a>(
        &'a self,
        spaces: &'a [SpaceRetention],
        now_ms: i64,
    ) -> CentreResult<'a, u64>;

    /// Has the database read procedures as they are configured, and gives them in the same order
    /// so that they can be called. To be read again when the tables that they name were altered.
    ///
    /// # Errors
    /// [`CentreError::Configuration`], with the procedure's name.
    fn procedures<'a>(
        &'a self,
        specs: &'a [ProcedureSpec],
    ) -> CentreResult<'a, Vec<Arc<CallableProcedure>>>;

    /// Looks whether the changes of the served tables are still tracked. Of a table whose are
    /// not, remotes get all rows, and an incident tells. Called every few seconds; a database
    /// that notices by itself has nothing to do.
    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()>;
}

/// One database connection that runs syncs, one call after the other. After an
/// error of [`CentreError::Unavailable`] it is of no more use.
pub trait Worker: Send {
    /// Whether the connection is there, as far as can be told without a word to the
    /// database: one that broke while it was idle is better replaced before it fails
    /// somebody's sync.
    fn is_usable(&self) -> bool;

    /// Looks up everything that opening some sessions needs, in one round trip; in their order.
    fn session_states(&mut self, asked: Vec<SessionRequest>)
    -> CentreResult<'_, Vec<SessionState>>;

    /// Those of these remotes that may go on no longer, with the reason.
    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOutReason)>>;

    /// Registers a remote, or a new credential of a known one (matched by id).
    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()>;

    /// Notes what was said of a user who has just proven himself, and adds him if he is new and
    /// may be. Tells whether he is there.
    fn prove_user<'a>(
        &'a mut self,
        user: &'a str,
        proven: &'a ProvenIdentity,
        creates: bool,
    ) -> CentreResult<'a, bool>;

    /// Replaces the hash of a user's password, if it is this one. Tells whether it was.
    fn replace_password<'a>(
        &'a mut self,
        user: &'a str,
        before: &'a str,
        hash: &'a str,
    ) -> CentreResult<'a, bool>;

    /// Hands out numbers to a remote: they are nobody else's from then on.
    fn hand_out<'a>(&'a mut self, asked: &'a NumbersRequest) -> CentreResult<'a, Vec<NumberBlock>>;

    /// Notes what people call the device of a remote.
    fn name_device<'a>(&'a mut self, id: RemoteId, name: &'a str) -> CentreResult<'a, ()>;

    /// The new credential of a remote has been used: the one before, of which this is the hash, is
    /// void. If another one is the one before by now, nothing happens.
    fn forget_previous_credential(
        &mut self,
        id: RemoteId,
        previous: Vec<u8>,
    ) -> CentreResult<'_, ()>;

    /// Applies a list of uploads in one transaction with one commit: each exactly
    /// once, in order, each with a fate of its own. Deadlocks and serialization
    /// failures are retried inside. On an error nothing of the list was applied, or
    /// (if the connection broke during the commit) it is unknown, and a retry under
    /// the same sequence and id tells.
    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>>;

    /// Writes the version of a row that an operator has chosen, and notes with the conflict that it
    /// is settled, in one transaction. No remote's rights count. Deadlocks and serialization
    /// failures are retried inside.
    fn settle_conflict(&mut self, choice: ConflictChoice) -> CentreResult<'_, SettleOutcome>;

    /// Settles a refused row as an operator says: writes it, if it is to be written, and notes how
    /// it is settled, in one transaction. No remote's rights count. Deadlocks and serialization
    /// failures are retried inside.
    fn settle_refused(&mut self, choice: RefusedChoice) -> CentreResult<'_, SettleOutcome>;

    /// Runs a script, and what stands before it in a sync, in a transaction that is undone.
    ///
    /// # Errors
    /// A script before it fails, or the row that it is run for is none of its table.
    fn try_script(&mut self, trial: ScriptTrial) -> CentreResult<'_, TriedScript>;

    /// Runs scripts of a sync that have a transaction of their own, if there are some. Deadlocks and
    /// serialization failures are retried inside.
    ///
    /// # Errors
    /// One of them failed, and nothing of them counts.
    fn run_scripts(&mut self, asked: ScriptRun) -> CentreResult<'_, ()>;

    /// The connection is not needed any more: scripts that end one are run.
    fn end(&mut self) -> CentreResult<'_, ()>;

    /// The stored result of the last upload of a subscription.
    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<crate::upload::UploadResult>>;

    /// Reads the downloads of some syncs from one snapshot into their sinks. Before the
    /// first row reaches a sink, the mark of the new watermark is durable.
    ///
    /// # Errors
    /// Nothing was read for anybody.
    fn download<'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'a>>,
    ) -> CentreResult<'a, Downloaded>;

    /// Reads the downloads of one sync.
    fn download_one<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            let downloaded = self.download(vec![RunningDownloads { job, sink }]).await?;
            let first = downloaded.into_iter().flatten().next();
            first.unwrap_or_else(|| {
                Err(CentreError::Internal {
                    message: "a download has come to nothing".into(),
                })
            })
        })
    }

    /// What remotes hold that present these checkpoints, for [`Centre::follow`]. `None`: it is not
    /// known any more, and the remote has to sync.
    fn holdings<'a>(
        &'a mut self,
        checkpoints: &'a [Checkpoint],
    ) -> CentreResult<'a, Vec<Option<RemoteHolding>>>;

    /// What remotes hold now of their publications, in the order that was asked, by what partition
    /// queries say in this moment. `None`: a query cannot be run for them. An empty list: they may
    /// not have what they have asked for any more.
    fn holdings_now(
        &mut self,
        asked: Vec<HoldingRequest>,
    ) -> CentreResult<'_, Vec<Option<Vec<RemoteHolding>>>>;

    /// Runs calls of procedures, each in a transaction of its own, in their order; those that
    /// follow each other and only read are run in one flight where the database can. Deadlocks and
    /// serialization failures are retried inside. Each call has an outcome of its own.
    ///
    /// # Errors
    /// The database is away, and nobody knows which calls took effect: those under a key can be
    /// run again, and those that only read.
    fn call(
        &mut self,
        calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>>;

    /// Ends calls that run on this connection.
    fn interrupter(&self) -> Arc<dyn CallInterrupt>;

    /// Notes that something is begun elsewhere under a key of a user, which is to take effect once:
    /// a call of this procedure.
    fn begin_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        procedure: &'a str,
        now_ms: i64,
    ) -> CentreResult<'a, OnceKeyState>;

    /// Keeps the outcome of what was begun. If one is kept already, nothing happens.
    fn finish_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        outcome: Vec<u8>,
    ) -> CentreResult<'a, ()>;

    /// What was begun was not done: the key is free again. If an outcome is kept, nothing happens.
    fn forget_once<'a>(&'a mut self, user: &'a str, key: [u8; 16]) -> CentreResult<'a, ()>;

    /// Appends events to their spaces in one transaction with one durable commit; in their order.
    /// Their numbers become visible in order: a reader who has seen one will see none before it
    /// come.
    ///
    /// # Errors
    /// Nothing was appended, or (if the connection broke during the commit) it is unknown, and
    /// doing it again under the same keys tells.
    fn append_events(
        &mut self,
        batch: Vec<NewEvents>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<AppendOutcome>>;

    /// The events of a space behind this number, in their order: no more than `limit`, and with
    /// about `max_bytes` of payloads, one at least if there is one.
    fn events_after<'a>(
        &'a mut self,
        space: &'a str,
        after: u64,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>>;

    /// The newest event of each subject of a space, by the bytes of their subjects, from behind this
    /// one on (the empty one is before all others); as many as of [`Self::events_after`].
    fn last_values<'a>(
        &'a mut self,
        space: &'a str,
        after_subject: &'a str,
        limit: u64,
        max_bytes: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>>;

    /// The check of the event with this number; `None` if it is not there, or not any more.
    fn event_check<'a>(&'a mut self, space: &'a str, id: u64) -> CentreResult<'a, Option<[u8; 8]>>;

    /// The number of the last event of each of these spaces, 0 where there never was one. Cheap.
    fn space_ends<'a>(&'a mut self, spaces: &'a [String]) -> CentreResult<'a, Vec<u64>>;

    /// Adds syncs to the history and notes when their remotes last synced, with few
    /// commits for many.
    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()>;
}
