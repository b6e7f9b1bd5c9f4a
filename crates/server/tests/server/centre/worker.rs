//! What a worker of the centre in memory does: look-ups, uploads, downloads.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use tidewater_protocol::compare::{Intervals, Ranges};
use tidewater_protocol::message::{NumberBlock, TableBegin};
use tidewater_protocol::{Datum, Op, RemoteId, RowsReader, RowsWriter, UnpackedRow};

use super::{MemoryCentre, NAME, Rows, integer, not_here, own_key, schema};
use tidewater_centre::error::CentreResult;
use tidewater_centre::packed_rows::TableRequest;
use tidewater_centre::records::{
    FormerRecord, HistoryCheck, NumbersRequest, ProvenIdentity, RemoteRecord, SessionRequest,
    SessionState, ShutOutReason, SubscriptionRecord, SyncRecord, UserRecord,
};
use tidewater_centre::settling::{ConflictChoice, RefusedChoice, SettleOutcome};
use tidewater_centre::trying::{ScriptTrial, TriedScript};
use tidewater_centre::{
    AppendOutcome, CallInterrupt, CallOutcome, Cancel, CentreError, Checkpoint, DownloadJob,
    DownloadOutcome, DownloadSink, DownloadStart, Downloaded, HoldingRequest, NewEvents,
    OnceKeyState, OwnUpload, ProcedureCall, RemoteHolding, RunningDownloads, ScriptRun,
    StoredEvent, SyncUpload, TableCompare, UploadOutcome, UploadResult, Worker,
};

/// Interrupts nothing: no call runs here.
struct NoInterrupt;

impl CallInterrupt for NoInterrupt {
    fn interrupt(&self, call: &Cancel) {
        call.set();
    }
}

/// The centre, and its restarts when this was opened.
pub(super) struct MemoryWorker(pub(super) Arc<MemoryCentre>, pub(super) usize);

impl MemoryWorker {
    fn check(&self) -> Result<(), CentreError> {
        if self.1 != self.0.restarts.load(Ordering::SeqCst) {
            return Err(CentreError::Unavailable {
                message: "the connection broke".into(),
            });
        }
        self.0.check()
    }
}

async fn pass(gate: &watch::Sender<bool>) {
    let _ = gate.subscribe().wait_for(|open| *open).await;
}

impl MemoryWorker {
    fn session_state(&self, session: &SessionRequest) -> SessionState {
        let SessionRequest {
            user,
            remote_id,
            subscriptions: asked,
        } = session;
        let remote_id = *remote_id;
        let state = self.0.state();
        let histories = asked.iter().map(|it| {
            let (history, _) = watermark(it.watermark.as_ref()?);
            Some(match history == state.history_number {
                true => HistoryCheck::Known,
                false => HistoryCheck::Unknown,
            })
        });
        let subscriptions = asked.iter().map(|it| {
            let key = (remote_id?, it.publication.clone());
            let stored = state.subscriptions.get(&key)?;
            Some(SubscriptionRecord {
                sequence: stored.sequence,
                upload_id: stored.upload_id,
            })
        });
        let formers = asked.iter().map(|it| {
            let formers = it.formers.iter().map(|id| FormerRecord {
                removed: state.removed.contains(id),
                last: (state.subscriptions.get(&(*id, it.publication.clone()))).map(|stored| {
                    SubscriptionRecord {
                        sequence: stored.sequence,
                        upload_id: stored.upload_id,
                    }
                }),
            });
            formers.collect()
        });
        SessionState {
            user: state.users.get(user).cloned(),
            remote: remote_id.and_then(|id| state.remotes.get(&id).cloned()),
            subscriptions: subscriptions.collect(),
            histories: histories.collect(),
            centre: NAME.into(),
            removed: remote_id.is_some_and(|id| state.removed.contains(&id)),
            formers: formers.collect(),
            deployment: 0,
        }
    }
}

impl Worker for MemoryWorker {
    fn session_states(
        &mut self,
        asked: Vec<SessionRequest>,
    ) -> CentreResult<'_, Vec<SessionState>> {
        Box::pin(async move {
            pass(&self.0.session_gate).await;
            self.check()?;
            let states = asked.iter().map(|session| self.session_state(session));
            Ok(states.collect())
        })
    }

    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOutReason)>> {
        Box::pin(async move {
            self.check()?;
            let state = self.0.state();
            let reason = |id: &RemoteId| {
                let Some(remote) = state.remotes.get(id) else {
                    return Some(ShutOutReason::Removed);
                };
                let disabled = state.users.get(&remote.user).is_none_or(|it| it.disabled);
                let by_user = disabled.then_some(ShutOutReason::UserDisabled);
                remote
                    .revoked
                    .then_some(ShutOutReason::RemoteRevoked)
                    .or(by_user)
            };
            let shut_out = remotes.iter().filter_map(|id| Some((*id, reason(id)?)));
            Ok(shut_out.collect())
        })
    }

    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.check()?;
            self.0.state().remotes.insert(remote.id, remote.clone());
            Ok(())
        })
    }

    fn replace_password<'a>(
        &'a mut self,
        user: &'a str,
        before: &'a str,
        hash: &'a str,
    ) -> CentreResult<'a, bool> {
        Box::pin(async move {
            self.check()?;
            let mut state = self.0.state();
            let known = state.users.get_mut(user);
            let known = known.filter(|it| it.password_hash == before);
            Ok(known.map(|it| it.password_hash = hash.to_owned()).is_some())
        })
    }

    fn prove_user<'a>(
        &'a mut self,
        user: &'a str,
        proven: &'a ProvenIdentity,
        creates: bool,
    ) -> CentreResult<'a, bool> {
        Box::pin(async move {
            self.check()?;
            let mut state = self.0.state();
            if creates {
                state
                    .users
                    .entry(user.to_owned())
                    .or_insert_with(|| UserRecord {
                        name: user.to_owned(),
                        ..UserRecord::default()
                    });
            }
            let known = state.users.get_mut(user);
            Ok(known.map(|it| it.proven = proven.clone()).is_some())
        })
    }

    fn hand_out<'a>(&'a mut self, _: &'a NumbersRequest) -> CentreResult<'a, Vec<NumberBlock>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn name_device<'a>(&'a mut self, id: RemoteId, name: &'a str) -> CentreResult<'a, ()> {
        Box::pin(async move {
            if let Some(remote) = self.0.state().remotes.get_mut(&id) {
                remote.device_name = name.to_owned();
            }
            Ok(())
        })
    }

    fn forget_previous_credential(
        &mut self,
        id: RemoteId,
        previous: Vec<u8>,
    ) -> CentreResult<'_, ()> {
        Box::pin(async move {
            if let Some(remote) = self.0.state().remotes.get_mut(&id)
                && remote.previous_credential_hash == previous
            {
                remote.previous_credential_hash.clear();
            }
            Ok(())
        })
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        Box::pin(async move {
            self.0.applying.fetch_add(1, Ordering::SeqCst);
            pass(&self.0.apply_gate).await;
            self.0.applying.fetch_sub(1, Ordering::SeqCst);
            self.check()?;
            if uploads.len() > 1 && uploads.iter().any(|upload| upload.context.user == "eve") {
                return Err(CentreError::Internal {
                    message: "eve spoils lists".into(),
                });
            }
            let mut state = self.0.state();
            state.lists.push(uploads.len());
            Ok(uploads.iter().map(|upload| state.apply(upload)).collect())
        })
    }

    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<UploadResult>> {
        Box::pin(async move {
            let state = self.0.state();
            let stored = state
                .subscriptions
                .get(&(remote_id, publication.to_owned()));
            Ok(stored.map(|stored| stored.result.clone()))
        })
    }

    fn download<'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'a>>,
    ) -> CentreResult<'a, Downloaded> {
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
            pass(&self.0.download_gate).await;
            self.check()?;
            let (history, version, rows) = {
                let state = self.0.state();
                (state.history_number, state.version, state.rows.clone())
            };
            for (index, subscription) in job.subscriptions.iter().enumerate() {
                let start = DownloadStart {
                    scope_changed: subscription.checkpoint.is_none(),
                    ..DownloadStart::default()
                };
                sink.begin(index, start);
                let presented = subscription.checkpoint.as_ref();
                let presented = presented.map(|it| watermark(&it.watermark));
                let known = presented.filter(|it| it.0 == history).map(|it| it.1);
                let asked = requested(&subscription.requests);
                let own = subscription.own.as_ref();
                let compares = subscription.compares.first();
                let (upserts, removals) = match (known, compares) {
                    (None, Some(_)) => (0, 0),
                    _ => send(&rows, known, &asked, own, sink)?,
                };
                let upserts = upserts + compares.map_or(Ok(0), |it| compare(&rows, it, sink))?;
                let moved = known != Some(version) || compares.is_some();
                let checkpoint = moved.then(|| Checkpoint {
                    serial: 1,
                    watermark: [history.to_be_bytes(), version.to_be_bytes()].concat(),
                    rules: Vec::new(),
                });
                sink.end(
                    index,
                    DownloadOutcome {
                        checkpoint,
                        upserts,
                        removals,
                    },
                );
            }
            Ok(())
        })
    }

    fn begin_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        _: &'a str,
        now_ms: i64,
    ) -> CentreResult<'a, OnceKeyState> {
        Box::pin(async move {
            // Nobody else gets on meanwhile, so nothing finds out how late it is.
            std::thread::sleep(*self.0.noted_after.lock().unwrap());
            self.0.noted.fetch_add(1, Ordering::SeqCst);
            let mut state = self.0.state();
            let outcome = match state.once.entry((user.to_owned(), key)) {
                Entry::Vacant(entry) => {
                    entry.insert(None);
                    return Ok(OnceKeyState::New);
                }
                Entry::Occupied(entry) => entry.get().clone(),
            };
            Ok(outcome.map_or(
                OnceKeyState::Unfinished { begun_ms: now_ms },
                OnceKeyState::Done,
            ))
        })
    }

    fn finish_once<'a>(
        &'a mut self,
        user: &'a str,
        key: [u8; 16],
        outcome: Vec<u8>,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            let mut state = self.0.state();
            state.once.insert((user.to_owned(), key), Some(outcome));
            Ok(())
        })
    }

    fn forget_once<'a>(&'a mut self, user: &'a str, key: [u8; 16]) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.0.state().once.remove(&(user.to_owned(), key));
            Ok(())
        })
    }

    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.0.state().history.extend_from_slice(records);
            Ok(())
        })
    }

    fn is_usable(&self) -> bool {
        true
    }

    fn settle_conflict(&mut self, _: ConflictChoice) -> CentreResult<'_, SettleOutcome> {
        Box::pin(async { Err(not_here()) })
    }

    fn settle_refused(&mut self, _: RefusedChoice) -> CentreResult<'_, SettleOutcome> {
        Box::pin(async { Err(not_here()) })
    }

    fn try_script(&mut self, _: ScriptTrial) -> CentreResult<'_, TriedScript> {
        Box::pin(async { Err(not_here()) })
    }

    fn holdings<'a>(
        &'a mut self,
        _: &'a [Checkpoint],
    ) -> CentreResult<'a, Vec<Option<RemoteHolding>>> {
        Box::pin(async { Err(not_here()) })
    }

    fn holdings_now(
        &mut self,
        _: Vec<HoldingRequest>,
    ) -> CentreResult<'_, Vec<Option<Vec<RemoteHolding>>>> {
        Box::pin(async { Err(not_here()) })
    }

    fn call(&mut self, _: Vec<ProcedureCall>, _: i64) -> CentreResult<'_, Vec<CallOutcome>> {
        Box::pin(async { Err(not_here()) })
    }

    fn append_events(&mut self, _: Vec<NewEvents>, _: i64) -> CentreResult<'_, Vec<AppendOutcome>> {
        Box::pin(async { Err(not_here()) })
    }

    fn events_after<'a>(
        &'a mut self,
        _: &'a str,
        _: u64,
        _: u64,
        _: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        Box::pin(async { Err(not_here()) })
    }

    fn last_values<'a>(
        &'a mut self,
        _: &'a str,
        _: &'a str,
        _: u64,
        _: u64,
    ) -> CentreResult<'a, Vec<StoredEvent>> {
        Box::pin(async { Err(not_here()) })
    }

    fn event_check<'a>(&'a mut self, _: &'a str, _: u64) -> CentreResult<'a, Option<[u8; 8]>> {
        Box::pin(async { Err(not_here()) })
    }

    fn space_ends<'a>(&'a mut self, _: &'a [String]) -> CentreResult<'a, Vec<u64>> {
        Box::pin(async { Err(not_here()) })
    }

    fn run_scripts(&mut self, _: ScriptRun) -> CentreResult<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn end(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        Arc::new(NoInterrupt)
    }
}

/// The history and the version of a watermark.
fn watermark(bytes: &[u8]) -> (u64, u64) {
    let (history, version) = bytes.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    (number(history), number(version))
}

/// Sends the rows of the ranges in which a remote has something else.
fn compare(
    rows: &Rows,
    compare: &TableCompare,
    sink: &mut dyn DownloadSink,
) -> Result<u64, CentreError> {
    let table = &schema().tables[0];
    assert_eq!(compare.table, table.name);
    let shape = table.shape();
    let mut ranges = Ranges::like(&shape, &compare.ranges).unwrap();
    let there = rows.iter();
    let there = there.filter_map(|(id, (_, note))| Some((*id, note.as_deref()?)));
    let there: Vec<_> = there.collect();
    for (id, note) in &there {
        let row = [Datum::Integer(*id), Datum::Text(note)];
        ranges.add(&row[..1], &row);
    }
    let mut begin = TableBegin::for_table(table);
    begin.replace = true;
    begin.ranges = ranges.differing(&compare.ranges);
    if begin.ranges.is_empty() {
        return Ok(0);
    }
    let differing = begin.ranges.clone();
    let intervals = Intervals::new(&shape, &differing).unwrap();
    sink.table(begin);
    let mut writer = RowsWriter::new(&shape);
    for (id, note) in &there {
        let row = [Datum::Integer(*id), Datum::Text(note)];
        if intervals.contains(&row[..1]) {
            writer.row(Op::Upsert, &row);
        }
    }
    let sent = writer.rows();
    sink.rows(writer.take())?;
    Ok(sent)
}

/// The keys that a remote asks for again.
fn requested(requests: &[TableRequest]) -> BTreeSet<i64> {
    let shape = schema().tables[0].shape();
    let mut keys = BTreeSet::new();
    for request in requests {
        let mut reader = RowsReader::new(&shape, &request.rows);
        let mut row = UnpackedRow::default();
        while reader.next(&mut row).unwrap() {
            keys.insert(integer(&row.key[0]));
        }
    }
    keys
}

/// The rows to send: what changed since `known` or was asked for. Without `known`,
/// everything that is there.
fn to_send<'a>(
    rows: &'a Rows,
    known: Option<u64>,
    asked: &BTreeSet<i64>,
    own: Option<&OwnUpload>,
) -> Vec<(i64, Option<&'a str>)> {
    let Some(known) = known else {
        let there = rows.iter();
        let there = there.filter_map(|(id, (_, note))| Some((*id, Some(note.as_deref()?))));
        return there.collect();
    };
    let is_own = |id: i64, note: &Option<String>| {
        own.and_then(|own| own.rows.get(&own_key(id)))
            .is_some_and(|uploaded| uploaded.as_deref() == note.as_ref().map(String::as_bytes))
    };
    let mut chosen: BTreeMap<i64, Option<&str>> = BTreeMap::new();
    for (id, (version, note)) in rows {
        if *version > known && !is_own(*id, note) {
            chosen.insert(*id, note.as_deref());
        }
    }
    for id in asked {
        let note = rows.get(id).and_then(|(_, note)| note.as_deref());
        chosen.insert(*id, note);
    }
    chosen.into_iter().collect()
}

fn send(
    rows: &Rows,
    known: Option<u64>,
    asked: &BTreeSet<i64>,
    own: Option<&OwnUpload>,
    sink: &mut dyn DownloadSink,
) -> Result<(u64, u64), CentreError> {
    let table = &schema().tables[0];
    let shape = table.shape();
    let mut writer = RowsWriter::new(&shape);
    let (mut upserts, mut removals) = (0, 0);
    let chosen = to_send(rows, known, asked, own);
    if !chosen.is_empty() || known.is_none() {
        let mut begin = TableBegin::for_table(table);
        begin.replace = known.is_none();
        sink.table(begin);
    }
    for (id, note) in chosen {
        match note {
            Some(note) => {
                upserts += 1;
                writer.row(Op::Upsert, &[Datum::Integer(id), Datum::Text(note)]);
            }
            None => {
                removals += 1;
                writer.key(Op::Remove, &[Datum::Integer(id)]);
            }
        }
        if writer.len() >= 64 << 10 {
            sink.rows(writer.take())?;
        }
    }
    if !writer.is_empty() {
        sink.rows(writer.take())?;
    }
    Ok((upserts, removals))
}
