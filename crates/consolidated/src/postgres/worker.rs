//! A connection that runs syncs, and what a session asks of it.

use std::sync::Arc;

use futures_util::future;

use tidewater_protocol::{RemoteId, UploadId};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::apply::{self, decode_result};
use super::connection::{Connection, refused};
use super::watermark::Watermark;
use super::{Shared, download};
use crate::centre::{CentreResult, Worker};
use crate::download::{DownloadJob, DownloadSink};
use crate::error::CentreError;
use crate::evolution::encode_known;
use crate::records::{
    AskedSubscription, FormerRecord, History, IncidentRecord, RemoteRecord, SessionState, ShutOut,
    SubscriptionRecord, SyncRecord, UserRecord,
};
use crate::upload::{SyncUpload, UploadOutcome, UploadResult};

/// See [`Worker`].
pub(super) struct PostgresWorker {
    connection: Connection,
    shared: Arc<Shared>,
    /// Whether a transaction may be open that nobody is running any more: a call
    /// failed, or was dropped in the middle.
    unfinished: bool,
}

/// The columns of [`user_record`].
pub(super) const USER_COLUMNS: &str = "name, password_hash, disabled, created_ms";

/// The columns of [`remote_record`].
pub(super) const REMOTE_COLUMNS: &str = "id, user_name, revoked, credential_hash, \
    previous_credential_hash, rotated_ms, created_ms, last_sync_ms";

pub(super) fn user_record(row: &Row) -> UserRecord {
    UserRecord {
        name: row.get(0),
        password_hash: row.get(1),
        disabled: row.get(2),
        created_ms: row.get(3),
    }
}

pub(super) fn remote_record(row: &Row) -> Option<RemoteRecord> {
    Some(RemoteRecord {
        id: RemoteId::from_slice(row.get(0))?,
        user: row.get(1),
        revoked: row.get(2),
        credential_hash: row.get(3),
        previous_credential_hash: row.get(4),
        rotated_ms: row.get(5),
        created_ms: row.get(6),
        last_sync_ms: row.get(7),
    })
}

impl PostgresWorker {
    pub(super) async fn open(shared: Arc<Shared>) -> Result<PostgresWorker, CentreError> {
        Ok(PostgresWorker {
            connection: Connection::open(&shared.address).await?,
            shared,
            unfinished: false,
        })
    }

    /// Ends what a call before this one left, and expects the worst of this one.
    async fn enter(&mut self) -> Result<(), CentreError> {
        if self.connection.is_closed() {
            return Err(CentreError::Unavailable {
                message: "the connection is of no more use".into(),
            });
        }
        if self.unfinished {
            let rollback = self.connection.client().batch_execute("ROLLBACK").await;
            rollback.map_err(refused("ending a transaction"))?;
        }
        self.unfinished = true;
        Ok(())
    }

    async fn leave<T>(&mut self, result: Result<T, CentreError>) -> Result<T, CentreError> {
        if result.is_err() && !self.connection.is_closed() {
            // What a failed call holds must not be held until the next one.
            self.unfinished = self
                .connection
                .client()
                .batch_execute("ROLLBACK")
                .await
                .is_err();
            self.connection.forget_statements();
        } else {
            self.unfinished = false;
        }
        result
    }

    async fn session(
        &mut self,
        user: &str,
        remote_id: Option<RemoteId>,
        asked: &[AskedSubscription],
    ) -> Result<SessionState, CentreError> {
        let error = |error| refused("looking up a session")(error);
        let connection = &mut self.connection;
        let users = format!("SELECT {USER_COLUMNS} FROM tidewater.user_account WHERE name = $1");
        let users = connection.prepare(&users, &[]).await?;
        let remotes = format!("SELECT {REMOTE_COLUMNS} FROM tidewater.remote WHERE id = $1");
        let remotes = connection.prepare(&remotes, &[]).await?;
        let subscriptions = connection.prepare(SUBSCRIPTIONS, &[]).await?;
        let publications = asked.iter().map(|it| it.publication.as_str());
        let publications: Vec<&str> = publications.collect();
        let watermarks = asked.iter().map(|it| it.watermark.as_deref());
        let watermarks = watermarks.map(|it| Watermark::decode(it?));
        let watermarks: Vec<Option<Watermark>> = watermarks.collect();
        let marks = watermarks.iter().map(|it| Some(&it.as_ref()?.mark[..]));
        let marks: Vec<Option<&[u8]>> = marks.collect();
        let snapshots = watermarks.iter().map(|it| Some(&it.as_ref()?.snapshot[..]));
        let snapshots: Vec<Option<&str>> = snapshots.collect();
        let centre = connection.prepare(CENTRE, &[]).await?;
        let id = remote_id.map(RemoteId::to_vec);
        let client = connection.client();
        let (found, remote, centre, rows) = future::join4(
            client.query_opt(&users, &[&user]),
            client.query_opt(&remotes, &[&id]),
            client.query_one(&centre, &[&id]),
            client.query(&subscriptions, &[&id, &publications, &marks, &snapshots]),
        )
        .await;
        let (found, remote, centre, rows) = (
            found.map_err(error)?,
            remote.map_err(error)?,
            centre.map_err(error)?,
            rows.map_err(error)?,
        );
        let mut state = SessionState {
            user: found.as_ref().map(user_record),
            remote: remote.as_ref().and_then(remote_record),
            centre: centre.get(0),
            removed: centre.get(1),
            formers: self.formers(user, asked).await?,
            ..SessionState::default()
        };
        for (row, asked) in rows.iter().zip(asked) {
            state.subscriptions.push(subscription_record(row));
            let history = match (row.get(2), row.get(3)) {
                (_, Some(false)) => History::Pruned,
                (true, Some(true)) => History::Known,
                _ => History::Unknown,
            };
            let history = asked.watermark.as_ref().map(|_| history);
            state.histories.push(history);
        }
        Ok(state)
    }

    /// What is known of the former ids, of each subscription.
    async fn formers(
        &mut self,
        user: &str,
        asked: &[AskedSubscription],
    ) -> Result<Vec<Vec<FormerRecord>>, CentreError> {
        let pairs = asked.iter().flat_map(|subscription| {
            let formers = subscription.formers.iter();
            formers.map(|id| (&id.0[..], subscription.publication.as_str()))
        });
        let (ids, publications): (Vec<&[u8]>, Vec<&str>) = pairs.unzip();
        let mut rows = Vec::new();
        if !ids.is_empty() {
            let statement = self.connection.prepare(FORMERS, &[]).await?;
            let client = self.connection.client();
            let found = client
                .query(&statement, &[&ids, &publications, &user])
                .await;
            rows = found.map_err(refused("looking up former ids"))?;
        }
        let mut records = rows.iter().map(|row| FormerRecord {
            removed: row.get(2),
            last: subscription_record(row),
        });
        let formers = asked
            .iter()
            .map(|it| records.by_ref().take(it.formers.len()).collect());
        Ok(formers.collect())
    }

    async fn shut_out(
        &mut self,
        remotes: &[RemoteId],
    ) -> Result<Vec<(RemoteId, ShutOut)>, CentreError> {
        let statement = self.connection.prepare(SHUT_OUT, &[]).await?;
        let ids: Vec<&[u8]> = remotes.iter().map(|id| id.0.as_slice()).collect();
        let rows = self.connection.client().query(&statement, &[&ids]).await;
        let rows = rows.map_err(refused("looking for remotes that are shut out"))?;
        let shut_out = rows.iter().filter_map(|row| {
            let reason = match (row.get(1), row.get(2)) {
                (Some(true), _) => ShutOut::RemoteRevoked,
                (Some(false), Some(true)) => ShutOut::UserDisabled,
                _ => ShutOut::Removed,
            };
            Some((RemoteId::from_slice(row.get(0))?, reason))
        });
        Ok(shut_out.collect())
    }

    async fn save(&mut self, remote: &RemoteRecord) -> Result<(), CentreError> {
        let statement = self.connection.prepare(SAVE_REMOTE, &[]).await?;
        self.connection
            .client()
            .execute(
                &statement,
                &[
                    &remote.id.0.as_slice(),
                    &remote.user,
                    &remote.revoked,
                    &remote.credential_hash,
                    &remote.previous_credential_hash,
                    &remote.rotated_ms,
                    &remote.created_ms,
                    &remote.last_sync_ms,
                ],
            )
            .await
            .map_err(refused("saving a remote"))?;
        Ok(())
    }

    async fn record(&mut self, records: &[SyncRecord]) -> Result<(), CentreError> {
        let error = |error| refused("recording syncs")(error);
        let statement = self.connection.prepare(RECORD_SYNC, &[]).await?;
        let incident = self.connection.prepare(RECORD_INCIDENT, &[]).await?;
        let client = self.connection.client();
        // Few enough that all are sent before the COMMIT.
        for records in records.chunks(16) {
            let incidents = records.iter().flat_map(|record| &record.incidents);
            let incidents = incidents.map(|it| insert_incident(client, &incident, it));
            let inserts = records.iter();
            let inserts = inserts.map(|record| insert_record(client, &statement, record));
            // Nobody waits for the disk for the sake of the history.
            let (begun, recorded, ended) = future::join3(
                client.batch_execute("BEGIN; SET LOCAL synchronous_commit = off"),
                future::join(future::join_all(inserts), future::join_all(incidents)),
                client.batch_execute("COMMIT"),
            )
            .await;
            begun.map_err(error)?;
            for recorded in recorded.0.into_iter().chain(recorded.1) {
                recorded.map_err(error)?;
            }
            ended.map_err(error)?;
        }
        Ok(())
    }

    async fn result(
        &mut self,
        remote_id: RemoteId,
        publication: &str,
    ) -> Result<Option<UploadResult>, CentreError> {
        let select = "SELECT result FROM tidewater.subscription \
                      WHERE remote_id = $1 AND publication = $2";
        let statement = self.connection.prepare(select, &[]).await?;
        let row = self
            .connection
            .client()
            .query_opt(&statement, &[&remote_id.0.as_slice(), &publication])
            .await
            .map_err(refused("reading a stored result"))?;
        let result: Option<Vec<u8>> = row.and_then(|row| row.get(0));
        result.map(|bytes| decode_result(&bytes)).transpose()
    }
}

/// Of each publication `$2`: the subscription of the remote `$1`, whether there is the mark
/// `$3`, and whether the logs have everything since the snapshot `$4`.
const SUBSCRIPTIONS: &str = "
SELECT s.sequence, s.upload_id, EXISTS (SELECT FROM tidewater.mark WHERE id = p.mark),
  pg_catalog.pg_snapshot_xmin(p.snapshot::pg_snapshot) >= (SELECT log_floor FROM tidewater.meta)
FROM unnest($2::text[], $3::bytea[], $4::text[]) WITH ORDINALITY AS p(name, mark, snapshot, n)
LEFT JOIN tidewater.subscription s ON s.remote_id = $1 AND s.publication = p.name
ORDER BY p.n";

/// The centre's name, and whether the remote `$1` was removed.
const CENTRE: &str = "
SELECT centre, EXISTS (SELECT FROM tidewater.removed_remote WHERE id = $1) FROM tidewater.meta";

/// Of each former id `$1` of a remote of the user `$3`: its subscription to the publication `$2`,
/// and whether it was removed.
const FORMERS: &str = "
SELECT s.sequence, s.upload_id,
  EXISTS (SELECT FROM tidewater.removed_remote gone WHERE gone.id = f.id)
FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS f(id, publication, n)
LEFT JOIN tidewater.remote r ON r.id = f.id AND r.user_name = $3
LEFT JOIN tidewater.subscription s ON s.remote_id = r.id AND s.publication = f.publication
ORDER BY f.n";

fn subscription_record(row: &Row) -> Option<SubscriptionRecord> {
    let sequence: Option<i64> = row.get(0);
    let id: Option<&[u8]> = row.get(1);
    Some(SubscriptionRecord {
        sequence: sequence?.try_into().unwrap_or(0),
        upload_id: id.and_then(UploadId::from_slice),
    })
}

const SHUT_OUT: &str = "
SELECT asked.id, r.revoked, u.disabled FROM unnest($1::bytea[]) AS asked (id)
LEFT JOIN tidewater.remote r ON r.id = asked.id
LEFT JOIN tidewater.user_account u ON u.name = r.user_name
WHERE r.revoked IS NOT FALSE OR u.disabled IS NOT FALSE";

const SAVE_REMOTE: &str = "
INSERT INTO tidewater.remote (id, user_name, revoked, credential_hash, previous_credential_hash,
  rotated_ms, created_ms, last_sync_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO UPDATE SET user_name = excluded.user_name,
  revoked = remote.revoked OR excluded.revoked,
  credential_hash = excluded.credential_hash,
  previous_credential_hash = excluded.previous_credential_hash,
  rotated_ms = excluded.rotated_ms";

const RECORD_SYNC: &str = "
WITH history AS (
  INSERT INTO tidewater.sync_history (remote_id, user_name, publications, started_ms, duration_ms,
    inserts, updates, deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent,
    error)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15))
UPDATE tidewater.remote SET last_sync_ms = greatest(last_sync_ms, $16),
  schemas = CASE $17 WHEN '' THEN schemas ELSE $17 END WHERE id = $1";

const RECORD_INCIDENT: &str = "
INSERT INTO tidewater.incident (at_ms, kind, remote_id, user_name, publication, detail)
VALUES ($1, $2, $3, $4, $5, $6)";

async fn insert_incident(
    client: &Client,
    statement: &Statement,
    incident: &IncidentRecord,
) -> Result<u64, tokio_postgres::Error> {
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &incident.at_ms,
        &incident.kind.name(),
        &incident.remote_id.map_or(Vec::new(), |id| id.0.to_vec()),
        &incident.user,
        &incident.publication,
        &incident.detail,
    ];
    client.execute(statement, &parameters).await
}

async fn insert_record(
    client: &Client,
    statement: &Statement,
    record: &SyncRecord,
) -> Result<u64, tokio_postgres::Error> {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let remote = record.remote_id.map(RemoteId::to_vec);
    let (uploaded, downloaded) = (record.uploaded.map(count), record.downloaded.map(count));
    let (conflicts, rows_refused) = (count(record.conflicts), count(record.refused));
    let (bytes, duration) = (record.bytes.map(count), count(record.duration_ms));
    // A sync that failed is in the history, but it was none.
    let ended = if record.error.is_empty() {
        record.started_ms.saturating_add(duration)
    } else {
        0
    };
    let schemas = encode_known(&record.schemas);
    let parameters: [&(dyn ToSql + Sync); 17] = [
        &remote,
        &record.user,
        &record.publications,
        &record.started_ms,
        &duration,
        &uploaded[0],
        &uploaded[1],
        &uploaded[2],
        &downloaded[0],
        &downloaded[1],
        &conflicts,
        &rows_refused,
        &bytes[0],
        &bytes[1],
        &record.error,
        &ended,
        &schemas,
    ];
    client.execute(statement, &parameters).await
}

impl Worker for PostgresWorker {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    fn session_state<'a>(
        &'a mut self,
        user: &'a str,
        remote_id: Option<RemoteId>,
        subscriptions: &'a [AskedSubscription],
    ) -> CentreResult<'a, SessionState> {
        Box::pin(async move {
            self.enter().await?;
            let result = self.session(user, remote_id, subscriptions).await;
            self.leave(result).await
        })
    }

    fn shut_out<'a>(
        &'a mut self,
        remotes: &'a [RemoteId],
    ) -> CentreResult<'a, Vec<(RemoteId, ShutOut)>> {
        Box::pin(async move {
            self.enter().await?;
            let result = self.shut_out(remotes).await;
            self.leave(result).await
        })
    }

    fn save_remote<'a>(&'a mut self, remote: &'a RemoteRecord) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.enter().await?;
            let result = self.save(remote).await;
            self.leave(result).await
        })
    }

    fn forget_previous_credential(&mut self, id: RemoteId) -> CentreResult<'_, ()> {
        Box::pin(async move {
            self.enter().await?;
            let update = "UPDATE tidewater.remote SET previous_credential_hash = '' WHERE id = $1";
            let result = self
                .connection
                .client()
                .execute(update, &[&id.0.as_slice()])
                .await;
            let result = result
                .map(|_| ())
                .map_err(refused("forgetting a credential"));
            self.leave(result).await
        })
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        Box::pin(async move {
            self.enter().await?;
            let shared = self.shared.clone();
            let result = apply::apply(&mut self.connection, &shared, &uploads).await;
            self.leave(result).await
        })
    }

    fn stored_result<'a>(
        &'a mut self,
        remote_id: RemoteId,
        publication: &'a str,
    ) -> CentreResult<'a, Option<UploadResult>> {
        Box::pin(async move {
            self.enter().await?;
            let result = self.result(remote_id, publication).await;
            self.leave(result).await
        })
    }

    fn download<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.enter().await?;
            let shared = self.shared.clone();
            let result = download::download(&mut self.connection, &shared, job, sink).await;
            self.leave(result).await
        })
    }

    fn record_syncs<'a>(&'a mut self, records: &'a [SyncRecord]) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.enter().await?;
            let result = self.record(records).await;
            self.leave(result).await
        })
    }
}
