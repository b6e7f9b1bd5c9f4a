//! A consolidated database in memory: one table of integers and notes that everyone
//! holds, with gates that tests close to hold its workers up.
//!
//! An upload is applied once, by its number and id. A change whose pre-image is not what
//! the centre has loses, one of a note that begins with "refused" is refused, and of
//! every change it is kept what became of it.

mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use worker::MemoryWorker;

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{
    Code, Column, ColumnType, Datum, Op, PublicationSchema, RemoteId, RowsReader, RowsWriter,
    Table, UnpackedRow, UploadId,
};

use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::error::CentreResult;
use tidewater_centre::explain::{ExplainQuestion, Explanation};
use tidewater_centre::preview::{Preview, PreviewRequest};
use tidewater_centre::publication::DeployedPublications;
use tidewater_centre::records::{
    CentrePulse, CentreStatus, ConflictFilter, ConflictRecord, PruneReport, RefusedFilter,
    RefusedRecord, RemoteRecord, RetentionTimes, SigningKey, SyncRecord, UserImport, UserRecord,
};
use tidewater_centre::trying::ScriptsToTry;
use tidewater_centre::{
    CallableProcedure, Centre, CentreError, FollowPosition, FollowedCommits, ListedTable,
    OwnUpload, ProcedureSpec, PublicationSpec, ResultTable, SpaceRetention, SyncUpload,
    UploadOutcome, UploadResult, Worker,
};

type Rows = BTreeMap<i64, (u64, Option<String>)>;

/// What the test configuration publishes.
pub(crate) fn schema() -> PublicationSchema {
    let column = |name: &str, column_type| Column {
        name: name.into(),
        column_type,
        nullable: false,
        default: None,
    };
    PublicationSchema {
        name: "notes".into(),
        tables: vec![Table {
            name: "note".into(),
            columns: vec![
                column("id", ColumnType::Integer),
                column("text", ColumnType::Text),
            ],
            key: vec![0],
            partition: vec![],
            unique: vec![],
            foreign_keys: vec![],
            direction: Default::default(),
            checks: Vec::new(),
            identity: None,
        }],
        transactional: false,
    }
}

/// What became of an uploaded change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Applied,
    Conflict,
    Refused,
}

/// An uploaded change: the note before and after, `None` where there is no row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Change {
    pub(crate) remote_id: RemoteId,
    pub(crate) id: i64,
    pub(crate) old: Option<String>,
    pub(crate) new: Option<String>,
}

#[derive(Clone, Default)]
struct Subscription {
    sequence: u64,
    upload_id: Option<UploadId>,
    result: UploadResult,
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) users: HashMap<String, UserRecord>,
    pub(crate) remotes: HashMap<RemoteId, RemoteRecord>,
    /// Remotes that went with their users.
    pub(crate) removed: BTreeSet<RemoteId>,
    subscriptions: HashMap<(RemoteId, String), Subscription>,
    pub(crate) keys: Vec<SigningKey>,
    /// What came of calls that are done once, by user and key; `None` as long as nobody knows.
    once: HashMap<(String, [u8; 16]), Option<Vec<u8>>>,
    /// Id to version and note.
    pub(crate) rows: Rows,
    version: u64,
    /// Which history of the centre this is: a restored one begins another.
    history_number: u64,
    pub(crate) history: Vec<SyncRecord>,
    /// The sizes of the lists that were applied.
    pub(crate) lists: Vec<usize>,
    /// Every change of every upload that took effect, in order.
    pub(crate) changes: Vec<(Change, Fate)>,
}

/// The centre's name.
pub(crate) const NAME: &str = "memory";

pub(crate) struct MemoryCentre {
    state: Mutex<State>,
    /// Uploads and downloads wait while these are closed.
    pub(crate) session_gate: watch::Sender<bool>,
    pub(crate) apply_gate: watch::Sender<bool>,
    pub(crate) download_gate: watch::Sender<bool>,
    pub(crate) unavailable: AtomicBool,
    /// Each one breaks all connections, which nobody is told before they are used.
    pub(crate) restarts: AtomicUsize,
    /// The next call of a worker panics.
    pub(crate) defective: AtomicBool,
    pub(crate) prunes: AtomicUsize,
    /// Lists that a worker has begun with, and not finished.
    pub(crate) applying: AtomicUsize,
    pub(crate) workers: AtomicUsize,
    /// How many keys of calls were noted, and for how long the centre keeps its thread before it
    /// notes one.
    pub(crate) noted: AtomicUsize,
    pub(crate) noted_after: Mutex<Duration>,
}

impl MemoryCentre {
    pub(crate) fn new() -> Arc<MemoryCentre> {
        let key = SigningKey {
            id: 1,
            secret: vec![7; 32],
            created_ms: 0,
        };
        Arc::new(MemoryCentre {
            state: Mutex::new(State {
                keys: vec![key],
                ..State::default()
            }),
            session_gate: watch::Sender::new(true),
            apply_gate: watch::Sender::new(true),
            download_gate: watch::Sender::new(true),
            unavailable: AtomicBool::new(false),
            restarts: AtomicUsize::new(0),
            defective: AtomicBool::new(false),
            prunes: AtomicUsize::new(0),
            applying: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            noted: AtomicUsize::new(0),
            noted_after: Mutex::default(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Restores it to an earlier state: nobody can tell from what it holds.
    pub(crate) fn restore(&self, earlier: State) {
        let mut state = self.state();
        let history_number = state.history_number + 1;
        *state = State {
            history_number,
            ..earlier
        };
    }

    /// A change by an application of the centre.
    pub(crate) fn write(&self, id: i64, note: Option<&str>) {
        self.state().write(id, note.map(str::to_owned));
    }

    fn check(&self) -> Result<(), CentreError> {
        if self.defective.swap(false, Ordering::SeqCst) {
            panic!("a defect of the adapter");
        }
        if self.unavailable.load(Ordering::SeqCst) {
            return Err(CentreError::Unavailable {
                message: "the test says so: secret-host".into(),
            });
        }
        Ok(())
    }
}

impl State {
    fn write(&mut self, id: i64, note: Option<String>) {
        self.version += 1;
        self.rows.insert(id, (self.version, note));
    }

    fn apply(&mut self, upload: &SyncUpload) -> UploadOutcome {
        let key = (upload.context.remote_id, upload.publication.clone());
        let stored = self.subscriptions.entry(key.clone()).or_default();
        if (stored.sequence, stored.upload_id) == (upload.sequence, Some(upload.upload_id)) {
            return UploadOutcome::AlreadyApplied {
                result: stored.result.clone(),
            };
        }
        if stored.sequence + 1 != upload.sequence {
            return UploadOutcome::OutOfSequence;
        }
        let mut result = UploadResult::default();
        let mut own = OwnUpload::default();
        let table = &schema().tables[0];
        let shape = table.shape();
        let mut answers = RowsWriter::new(&shape);
        for chunk in upload.tables.iter().flat_map(|table| &table.chunks) {
            let bytes = chunk.packed().unwrap();
            let mut reader = RowsReader::new(&shape, &bytes);
            let mut row = UnpackedRow::default();
            while reader.next(&mut row).unwrap() {
                let change = Change {
                    remote_id: upload.context.remote_id,
                    id: integer(&row.key[0]),
                    old: row.old.get(1).map(text),
                    new: row.new.get(1).map(text),
                };
                let op = row.op.unwrap();
                let fate = self.change(&change, op, &mut result, &mut answers);
                if fate == Fate::Applied {
                    let as_uploaded = change.new.as_ref().map(|note| note.clone().into_bytes());
                    own.rows.insert(own_key(change.id), as_uploaded);
                }
                self.changes.push((change, fate));
            }
        }
        if !answers.is_empty() {
            result.tables.push(ResultTable {
                begin: TableBegin::for_table(table),
                rows: answers.take(),
            });
        }
        own.version = self.version;
        let stored = self.subscriptions.entry(key).or_default();
        *stored = Subscription {
            sequence: upload.sequence,
            upload_id: Some(upload.upload_id),
            result: result.clone(),
        };
        UploadOutcome::Applied { result, own }
    }

    /// The rows that are there.
    pub(crate) fn notes(&self) -> Vec<(i64, String)> {
        let rows = self.rows.iter();
        let rows = rows.filter_map(|(id, (_, note))| Some((*id, note.clone()?)));
        rows.collect()
    }

    /// Decides on a change, and does it.
    fn change(
        &mut self,
        change: &Change,
        op: Op,
        result: &mut UploadResult,
        answers: &mut RowsWriter<'_>,
    ) -> Fate {
        let key = [Datum::Integer(change.id)];
        let Change { id, old, new, .. } = change;
        if new.as_ref().is_some_and(|note| note.starts_with("refused")) {
            result.refused += 1;
            let code = Code::ConsolidatedRefused.number();
            answers.refused(&key, op, code, "the centre takes no such notes");
            return Fate::Refused;
        }
        let current = self.rows.get(id).and_then(|(_, note)| note.clone());
        if current != *new && current != *old {
            result.conflicts += 1;
            match &current {
                Some(note) => {
                    answers.row(Op::ConflictRow, &[Datum::Integer(*id), Datum::Text(note)])
                }
                None => answers.key(Op::ConflictGone, &key),
            }
            return Fate::Conflict;
        }
        match op {
            Op::Insert => result.inserts += 1,
            Op::Update => result.updates += 1,
            _ => result.deletes += 1,
        }
        if current != *new {
            self.write(*id, new.clone());
        }
        Fate::Applied
    }
}

/// The key of a row in [`OwnUpload::rows`].
fn own_key(id: i64) -> (usize, Vec<u8>) {
    (0, id.to_be_bytes().to_vec())
}

fn integer(datum: &Datum<'_>) -> i64 {
    match datum {
        Datum::Integer(integer) => *integer,
        other => panic!("{other:?}"),
    }
}

fn text(datum: &Datum<'_>) -> String {
    match datum {
        Datum::Text(text) => (*text).to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Through an [`Arc`], because workers need to hold on to it.
pub(crate) struct Handle(pub(crate) Arc<MemoryCentre>);

impl Centre for Handle {
    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn deploy<'a>(
        &'a self,
        _: &'a [PublicationSpec],
        _: bool,
        _: i64,
    ) -> CentreResult<'a, DeployReport> {
        Box::pin(async { Ok(DeployReport::default()) })
    }

    fn deploy_refusing_pending<'a>(
        &'a self,
        _: &'a [PublicationSpec],
        _: i64,
    ) -> CentreResult<'a, DeployReport> {
        Box::pin(async { Ok(DeployReport::default()) })
    }

    fn rename(&self, _: i64) -> CentreResult<'_, bool> {
        Box::pin(async { Ok(false) })
    }

    fn undeploy(&self, _: bool) -> CentreResult<'_, DeployReport> {
        Box::pin(async { Ok(DeployReport::default()) })
    }

    fn run_statements<'a>(&'a self, _: &'a str) -> CentreResult<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        Box::pin(async move {
            let names = publications.iter().map(|publication| &publication.name);
            Ok(names
                .map(|name| {
                    let mut schema = schema();
                    schema.name = name.clone();
                    Arc::new(schema)
                })
                .collect())
        })
    }

    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>> {
        Box::pin(async {
            self.0.check()?;
            self.0.workers.fetch_add(1, Ordering::SeqCst);
            let restarts = self.0.restarts.load(Ordering::SeqCst);
            Ok(Box::new(MemoryWorker(self.0.clone(), restarts)) as Box<dyn Worker>)
        })
    }

    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>> {
        Box::pin(async { Ok(self.0.state().keys.clone()) })
    }

    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool> {
        Box::pin(async {
            self.0.state().keys.insert(0, key.clone());
            Ok(true)
        })
    }

    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool> {
        Box::pin(async move {
            let keys = &mut self.0.state().keys;
            let before = keys.len();
            keys.retain(|key| key.id != id);
            Ok(keys.len() < before)
        })
    }

    fn import_users<'a>(&'a self, _: &'a [UserRecord], _: bool) -> CentreResult<'a, UserImport> {
        Box::pin(async { Ok(UserImport::default()) })
    }

    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool> {
        Box::pin(async {
            let mut state = self.0.state();
            Ok(state
                .users
                .insert(user.name.clone(), user.clone())
                .is_none())
        })
    }

    fn set_password<'a>(&'a self, _: &'a str, _: &'a str) -> CentreResult<'a, bool> {
        Box::pin(async { Ok(false) })
    }

    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool> {
        Box::pin(async move {
            let mut state = self.0.state();
            let user = state.users.get_mut(name);
            Ok(user.map(|user| user.disabled = disabled).is_some())
        })
    }

    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool> {
        Box::pin(async move { Ok(self.0.state().users.remove(name).is_some()) })
    }

    fn users(&self) -> CentreResult<'_, Vec<UserRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn forget_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        Box::pin(async move { Ok(self.0.state().remotes.remove(&id).is_some()) })
    }

    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        Box::pin(async move {
            let mut state = self.0.state();
            let remote = state.remotes.get_mut(&id);
            Ok(remote.map(|remote| remote.revoked = true).is_some())
        })
    }

    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        Box::pin(async move {
            let mut state = self.0.state();
            let remote = state.remotes.get_mut(&id);
            Ok(remote.map(|remote| remote.revoked = false).is_some())
        })
    }

    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn find_conflicts<'a>(
        &'a self,
        _: &'a ConflictFilter,
    ) -> CentreResult<'a, Vec<ConflictRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn conflict(&self, _: i64) -> CentreResult<'_, Option<ConflictRecord>> {
        Box::pin(async { Ok(None) })
    }

    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn find_refused<'a>(&'a self, _: &'a RefusedFilter) -> CentreResult<'a, Vec<RefusedRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn refused_row(&self, _: i64) -> CentreResult<'_, Option<RefusedRecord>> {
        Box::pin(async { Ok(None) })
    }

    fn status(&self) -> CentreResult<'_, CentreStatus> {
        Box::pin(async { Ok(CentreStatus::default()) })
    }

    fn prune(&self, _: RetentionTimes, _: i64) -> CentreResult<'_, PruneReport> {
        Box::pin(async {
            self.0.prunes.fetch_add(1, Ordering::SeqCst);
            Ok(PruneReport::default())
        })
    }

    fn other_sessions(&self) -> CentreResult<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    fn refresh(&self) -> CentreResult<'_, Option<DeployedPublications>> {
        Box::pin(async { Ok(None) })
    }

    fn explain<'a>(&'a self, _: &'a ExplainQuestion) -> CentreResult<'a, Explanation> {
        Box::pin(async { Err(not_here()) })
    }

    fn preview<'a>(
        &'a self,
        _: &'a [PublicationSpec],
        _: &'a PreviewRequest,
    ) -> CentreResult<'a, Preview> {
        Box::pin(async { Err(not_here()) })
    }

    fn scripts_to_try<'a>(
        &'a self,
        _: &'a PublicationSpec,
        _: &'a str,
    ) -> CentreResult<'a, ScriptsToTry> {
        Box::pin(async { Err(not_here()) })
    }

    fn pulse(&self) -> CentreResult<'_, CentrePulse> {
        Box::pin(async { Ok(CentrePulse::default()) })
    }

    fn follow(&self, _: Option<FollowPosition>) -> CentreResult<'_, FollowedCommits> {
        Box::pin(async { Err(not_here()) })
    }

    fn prune_events<'a>(&'a self, _: &'a [SpaceRetention], _: i64) -> CentreResult<'a, u64> {
        Box::pin(async { Err(not_here()) })
    }

    fn procedures<'a>(
        &'a self,
        _: &'a [ProcedureSpec],
    ) -> CentreResult<'a, Vec<Arc<CallableProcedure>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn check_tracking(&self, _: i64) -> CentreResult<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// What this centre says to what no test asks of it.
fn not_here() -> CentreError {
    CentreError::Internal {
        message: "no test asks that of the centre in memory".into(),
    }
}
