//! A worker: one connection that runs syncs.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::{Semaphore, mpsc, oneshot};

use tidewater_protocol::{RemoteId, UploadId};

use super::download::Event;
use super::file::DatabaseFile;
use super::thread::{self, ConnectionThread};
use super::watermark::{self, Marker};
use super::{SharedServed, admin, apply, deploy, download, failure};
use crate::centre::{CentreResult, Worker};
use crate::download::{DownloadJob, DownloadSink};
use crate::error::CentreError;
use crate::records::{
    AskedSubscription, FormerRecord, RemoteRecord, SessionState, ShutOut, SubscriptionRecord,
    SyncRecord,
};
use crate::upload::{SyncUpload, UploadOutcome, UploadResult};

/// How many chunks of a download the connection may be ahead of the sink.
const CHUNKS_AHEAD: usize = 4;

/// A connection on a thread of its own.
pub(super) struct SqliteWorker {
    thread: ConnectionThread,
    marker: Marker,
    served: SharedServed,
}

impl SqliteWorker {
    pub(super) fn open(
        file: &DatabaseFile,
        marker: Marker,
        served: SharedServed,
    ) -> Result<SqliteWorker, CentreError> {
        Ok(SqliteWorker {
            thread: ConnectionThread::open(file)?,
            marker,
            served,
        })
    }

    fn run<'a, T: Send + 'static>(
        &'a self,
        job: impl FnOnce(&mut Connection) -> Result<T, CentreError> + Send + 'static,
    ) -> CentreResult<'a, T> {
        Box::pin(self.thread.run(job))
    }
}

impl Worker for SqliteWorker {
    fn session_state<'a>(
        &'a mut self,
        user: &'a str,
        remote_id: Option<RemoteId>,
        subscriptions: &'a [AskedSubscription],
    ) -> CentreResult<'a, SessionState> {
        let (user, asked) = (user.to_owned(), subscriptions.to_vec());
        self.run(move |connection| session_state(connection, &user, remote_id, &asked))
    }

    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOut)>> {
        let remotes = remotes.to_vec();
        self.run(move |connection| admin::shut_out(connection, &remotes))
    }

    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()> {
        let remote = remote.clone();
        self.run(move |connection| save_remote(connection, &remote))
    }

    fn forget_previous_credential(&mut self, id: RemoteId) -> CentreResult<'_, ()> {
        self.run(move |connection| {
            let sql = "UPDATE tidewater_remote SET previous_credential_hash = x'' WHERE id = ?1";
            let forgetting = failure("forgetting a credential");
            connection.execute(sql, [id.0]).map_err(forgetting)?;
            Ok(())
        })
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        let served = self.served.clone();
        self.run(move |connection| {
            let served = deploy::refresh(connection, &served)?;
            apply::apply(connection, &served, &uploads)
        })
    }

    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<UploadResult>> {
        let publication = publication.to_owned();
        self.run(move |connection| {
            let result: Option<Option<Vec<u8>>> = connection
                .prepare_cached(
                    "SELECT result FROM tidewater_subscription
                     WHERE remote_id = ?1 AND publication = ?2",
                )
                .and_then(|mut statement| {
                    let parameters = params![remote_id.0, publication];
                    statement.query_row(parameters, |row| row.get(0)).optional()
                })
                .map_err(failure("reading a stored result"))?;
            result
                .flatten()
                .map(|result| apply::decode_result(&result))
                .transpose()
        })
    }

    fn download<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        let served = self.served.clone();
        let marker = self.marker.clone();
        Box::pin(async move {
            let may_block = self.thread.may_block();
            let ahead = if may_block {
                CHUNKS_AHEAD
            } else {
                Semaphore::MAX_PERMITS
            };
            let (events, mut arriving) = mpsc::channel(ahead);
            let (result, wait) = oneshot::channel();
            let read = move |connection: &mut Connection| {
                let mut emit = |event| {
                    let sent = if may_block {
                        events.blocking_send(event).is_ok()
                    } else {
                        events.try_send(event).is_ok()
                    };
                    sent.then_some(()).ok_or(CentreError::Cancelled)
                };
                let served = deploy::refresh(connection, &served)?;
                download::download(connection, &served, &marker, job, &mut emit)
            };
            self.thread.start(read, result)?;
            while let Some(event) = arriving.recv().await {
                match event {
                    Event::Begin(index, scope_changed) => sink.begin(index, scope_changed),
                    Event::Table(begin) => sink.table(begin),
                    Event::Rows(rows) => sink.rows(rows)?,
                    Event::Comparing => sink.comparing()?,
                    Event::End(index, outcome) => sink.end(index, outcome),
                }
            }
            wait.await.unwrap_or_else(|_| Err(thread::ended()))
        })
    }

    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()> {
        let records = records.to_vec();
        self.run(move |connection| admin::record_syncs(connection, &records))
    }
}

fn session_state(
    connection: &Connection,
    user: &str,
    remote_id: Option<RemoteId>,
    asked: &[AskedSubscription],
) -> Result<SessionState, CentreError> {
    let reading = failure("opening a session");
    let mut state = SessionState {
        user: admin::user(connection, user)?,
        ..SessionState::default()
    };
    for subscription in asked {
        let watermark = subscription.watermark.as_deref();
        let history = watermark.map(|it| watermark::history(connection, it));
        state.histories.push(history.transpose()?);
    }
    state.centre = connection
        .prepare_cached("SELECT centre FROM tidewater_meta")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(reading)?;
    for asked in asked {
        let formers = asked.formers.iter().map(|&former| {
            let is_theirs = admin::remote(connection, former)?.is_some_and(|it| it.user == user);
            Ok(FormerRecord {
                removed: was_removed(connection, former).map_err(reading)?,
                last: match is_theirs {
                    true => last_upload(connection, former, &asked.publication).map_err(reading)?,
                    false => None,
                },
            })
        });
        let formers = formers.collect::<Result<_, CentreError>>()?;
        state.formers.push(formers);
    }
    let Some(id) = remote_id else {
        state.subscriptions = vec![None; asked.len()];
        return Ok(state);
    };
    state.remote = admin::remote(connection, id)?;
    state.removed = state.remote.is_none() && was_removed(connection, id).map_err(reading)?;
    for asked in asked {
        let last = last_upload(connection, id, &asked.publication).map_err(reading)?;
        state.subscriptions.push(last);
    }
    Ok(state)
}

fn was_removed(connection: &Connection, id: RemoteId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM tidewater_removed_remote WHERE id = ?1")?
        .exists([id.0])
}

fn last_upload(
    connection: &Connection,
    id: RemoteId,
    publication: &str,
) -> rusqlite::Result<Option<SubscriptionRecord>> {
    connection
        .prepare_cached(
            "SELECT sequence, upload_id FROM tidewater_subscription
             WHERE remote_id = ?1 AND publication = ?2",
        )?
        .query_row(params![id.0, publication], subscription)
        .optional()
}

fn subscription(row: &Row<'_>) -> rusqlite::Result<SubscriptionRecord> {
    let id: Option<Vec<u8>> = row.get(1)?;
    Ok(SubscriptionRecord {
        sequence: row.get::<_, i64>(0)? as u64,
        upload_id: id.and_then(|id| UploadId::from_slice(&id)),
    })
}

fn save_remote(connection: &Connection, remote: &RemoteRecord) -> Result<(), CentreError> {
    connection
        .prepare_cached(
            "INSERT INTO tidewater_remote (id, user_name, revoked, credential_hash,
                 previous_credential_hash, rotated_ms, created_ms, last_sync_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET credential_hash = ?4, previous_credential_hash = ?5,
                 rotated_ms = ?6",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                remote.id.0,
                remote.user,
                remote.revoked,
                remote.credential_hash,
                remote.previous_credential_hash,
                remote.rotated_ms,
                remote.created_ms,
                remote.last_sync_ms,
            ])
        })
        .map_err(failure("saving a remote"))?;
    Ok(())
}
