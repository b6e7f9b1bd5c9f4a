//! What operators and the server do besides syncs: users, remotes, records, pruning.

use std::collections::HashSet;
use std::sync::Arc;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use tidewater_protocol::{PublicationSchema, RemoteId};

use super::connection::{Connection, refused};
use super::model::Compiled;
use super::state::ADVISORY_LOCK;
use super::triggers::LogSpec;
use super::worker::{PostgresWorker, REMOTE_COLUMNS, USER_COLUMNS, remote_record, user_record};
use super::{FINGERPRINTS, Postgres, Shared, deploy, tracked};
use crate::centre::{Centre, CentreResult, Worker};
use crate::error::CentreError;
use crate::evolution::Mode;
use crate::publication::{DeployReport, LiveTable, PublicationSpec};
use crate::records::{
    CentreStatus, ConflictRecord, GIVEN_BACK_KEPT_MS, IncidentKind, IncidentRecord, Pruned,
    RefusedRecord, RemoteRecord, Retention, SigningKey, SyncRecord, UserImport, UserRecord,
};

/// Users that one statement adds.
const IMPORT_ROWS: usize = 1_000;

impl Shared {
    async fn query(
        &self,
        what: &str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CentreError> {
        let mut connection = self.pool.get().await?;
        let statement = connection.prepare(sql, &[]).await?;
        let rows = connection.client().query(&statement, parameters).await;
        rows.map_err(refused(what))
    }

    async fn execute(
        &self,
        what: &str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, CentreError> {
        let mut connection = self.pool.get().await?;
        let statement = connection.prepare(sql, &[]).await?;
        let count = connection.client().execute(&statement, parameters).await;
        count.map_err(refused(what))
    }

    async fn load(
        &self,
        publications: &[PublicationSpec],
    ) -> Result<Vec<Arc<PublicationSchema>>, CentreError> {
        let mut connection = self.pool.get().await?;
        let mut compiled = deploy::load(connection.client_mut(), publications).await?;
        fingerprint(&connection, &mut compiled).await?;
        let compiled: Vec<Arc<Compiled>> = compiled.into_iter().map(Arc::new).collect();
        let schemas = compiled.iter().map(|it| it.schema.clone()).collect();
        self.serve(compiled);
        Ok(schemas)
    }

    async fn remove_user(&self, name: &str) -> Result<bool, CentreError> {
        let removed = self
            .query(
                "removing a user",
                "WITH gone AS (DELETE FROM tidewater.remote WHERE user_name = $1 RETURNING id),
                   subscriptions AS (DELETE FROM tidewater.subscription
                     WHERE remote_id IN (SELECT id FROM gone)),
                   remembered AS (INSERT INTO tidewater.removed_remote
                     SELECT id FROM gone ON CONFLICT DO NOTHING)
                 DELETE FROM tidewater.user_account WHERE name = $1 RETURNING name",
                &[&name],
            )
            .await?;
        Ok(!removed.is_empty())
    }

    async fn import_users(
        &self,
        users: &[UserRecord],
        update: bool,
    ) -> Result<UserImport, CentreError> {
        let what = "adding users";
        let mut connection = self.pool.get().await?;
        let error = |error| refused(what)(error);
        let transaction = connection.client_mut().transaction().await.map_err(error)?;
        // Whoever was there keeps the moment and the state; the row's xmax tells the two
        // apart.
        let on_conflict = if update {
            "DO UPDATE SET password_hash = excluded.password_hash"
        } else {
            "DO NOTHING"
        };
        let insert = format!(
            "INSERT INTO tidewater.user_account AS u (name, password_hash, disabled, created_ms)
             SELECT * FROM unnest($1::text[], $2::text[], $3::bool[], $4::int8[])
             ON CONFLICT (name) {on_conflict} RETURNING u.name, u.xmax = 0"
        );
        let insert = transaction.prepare(&insert).await.map_err(error)?;
        let mut import = UserImport::default();
        for users in users.chunks(IMPORT_ROWS) {
            let names: Vec<&str> = users.iter().map(|user| &*user.name).collect();
            let hashes: Vec<&str> = users.iter().map(|user| &*user.password_hash).collect();
            let disabled: Vec<bool> = users.iter().map(|user| user.disabled).collect();
            let created: Vec<i64> = users.iter().map(|user| user.created_ms).collect();
            let parameters: [&(dyn ToSql + Sync); 4] = [&names, &hashes, &disabled, &created];
            let rows = transaction.query(&insert, &parameters).await;
            let rows = rows.map_err(error)?;
            let done: HashSet<&str> = rows.iter().map(|row| row.get(0)).collect();
            let new = rows.iter().filter(|row| row.get(1)).count();
            import.added += new as u64;
            import.updated += (rows.len() - new) as u64;
            let taken = names.into_iter().filter(|name| !done.contains(name));
            import.taken.extend(taken.map(str::to_owned));
        }
        if import.taken.is_empty() {
            transaction.commit().await.map_err(error)?;
            return Ok(import);
        }
        transaction.rollback().await.map_err(error)?;
        Ok(UserImport {
            taken: import.taken,
            ..UserImport::default()
        })
    }

    /// Keeps a remote out, or lets it in again. False if there is no such remote.
    async fn set_revoked(&self, id: RemoteId, revoked: bool) -> Result<bool, CentreError> {
        let update = "UPDATE tidewater.remote SET revoked = $2 WHERE id = $1";
        let parameters: [&(dyn ToSql + Sync); 2] = [&id.to_vec(), &revoked];
        Ok(self
            .execute("revoking a remote", update, &parameters)
            .await?
            == 1)
    }

    async fn status(&self) -> Result<CentreStatus, CentreError> {
        let what = "reading the status";
        deploy::version(self.pool.get().await?.client()).await?;
        let counts = self
            .query(
                what,
                "SELECT (SELECT count(*) FROM tidewater.user_account),
                   (SELECT count(*) FROM tidewater.user_account WHERE disabled),
                   (SELECT count(*) FROM tidewater.remote),
                   (SELECT count(*) FROM tidewater.remote WHERE revoked),
                   (SELECT count(*) FROM tidewater.conflict),
                   (SELECT count(*) FROM (SELECT DISTINCT remote_id, publication, table_name, row_key
                    FROM tidewater.refused) AS refused)",
                &[],
            )
            .await?;
        // Statistics know new entries at once, and the size of a log they never saw is
        // better than counting millions of them.
        let logs = self
            .query(
                what,
                "SELECT l.table_name, greatest(coalesce(s.n_live_tup, 0), c.reltuples::int8, 0)
                 FROM tidewater.change_log l
                 JOIN pg_catalog.pg_class c ON c.oid = to_regclass('tidewater.log_' || l.id)
                 LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid ORDER BY l.id",
                &[],
            )
            .await?;
        let syncs = self
            .query(
                what,
                "SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts,
                   updates, deletes, upserts, removals, conflicts, refused, bytes_received,
                   bytes_sent, error
                 FROM tidewater.sync_history ORDER BY started_ms DESC, id DESC LIMIT 20",
                &[],
            )
            .await?;
        let incident_counts = self
            .query(
                what,
                "SELECT kind, count(*) FROM tidewater.incident GROUP BY kind ORDER BY kind",
                &[],
            )
            .await?;
        let incidents = self
            .query(
                what,
                "SELECT at_ms, kind, remote_id, user_name, publication, detail
                 FROM tidewater.incident ORDER BY id DESC LIMIT 20",
                &[],
            )
            .await?;
        let count = |at: usize| counts.first().map_or(0, |row| unsigned(row, at));
        Ok(CentreStatus {
            users: [count(0), count(1)],
            remotes: [count(2), count(3)],
            conflicts: count(4),
            refused: count(5),
            logs: logs
                .iter()
                .map(|row| (row.get(0), unsigned(row, 1)))
                .collect(),
            syncs: syncs.iter().map(sync_record).collect(),
            incident_counts: incident_counts
                .iter()
                .filter_map(|row| Some((IncidentKind::from_name(row.get(0))?, unsigned(row, 1))))
                .collect(),
            incidents: incidents.iter().filter_map(incident_record).collect(),
        })
    }

    /// Drops what is old; see [`Centre::prune`].
    async fn prune(&self, retention: Retention, now_ms: i64) -> Result<Pruned, CentreError> {
        let mut connection = self.pool.get().await?;
        let error = |error| refused("pruning")(error);
        let transaction = connection.client_mut().transaction().await.map_err(error)?;
        let lock = "SELECT pg_catalog.pg_try_advisory_xact_lock($1)";
        let locked = transaction
            .query_one(lock, &[&ADVISORY_LOCK])
            .await
            .map_err(error)?;
        if !locked.get::<_, bool>(0) {
            return Ok(Pruned::default());
        }
        let log_before = now_ms.saturating_sub(retention.log_ms);
        let mut pruned = Pruned {
            log_entries: prune_logs(&transaction, now_ms, log_before).await?,
            ..Pruned::default()
        };
        let mut history = 0;
        for (sql, before, counter) in [
            (
                "DELETE FROM tidewater.mark WHERE created_ms < $1",
                log_before,
                None,
            ),
            (
                "DELETE FROM tidewater.signing_key k WHERE EXISTS (
                   SELECT FROM tidewater.signing_key newer
                   WHERE newer.id > k.id AND newer.created_ms < $1)",
                log_before,
                None,
            ),
            (
                "DELETE FROM tidewater.given_back WHERE at_ms < $1",
                now_ms.saturating_sub(GIVEN_BACK_KEPT_MS),
                None,
            ),
            (
                "DELETE FROM tidewater.needless_change WHERE at_ms < $1",
                now_ms.saturating_sub(GIVEN_BACK_KEPT_MS),
                None,
            ),
            (
                "DELETE FROM tidewater.sync_history WHERE started_ms < $1",
                now_ms.saturating_sub(retention.history_ms),
                Some(&mut history),
            ),
        ] {
            let count = transaction.execute(sql, &[&before]).await.map_err(error)?;
            if let Some(counter) = counter {
                *counter += count;
            }
        }
        let before = now_ms.saturating_sub(retention.history_ms);
        let incidents = "DELETE FROM tidewater.incident WHERE at_ms < $1";
        let incidents = transaction.execute(incidents, &[&before]).await;
        pruned.history = history + incidents.map_err(error)?;
        let before = now_ms.saturating_sub(retention.conflicts_ms);
        for table in ["conflict", "refused"] {
            let delete = format!("DELETE FROM tidewater.{table} WHERE at_ms < $1");
            pruned.conflicts += transaction
                .execute(&delete, &[&before])
                .await
                .map_err(error)?;
        }
        transaction.commit().await.map_err(error)?;
        Ok(pruned)
    }
}

/// Drops what no watermark from `log_before` on needs; gives the number of entries.
async fn prune_logs(
    transaction: &Transaction<'_>,
    now_ms: i64,
    log_before: i64,
) -> Result<u64, CentreError> {
    let error = |error| refused("pruning change logs")(error);
    // Now all transactions below the oldest running one have ended. What they wrote is
    // in every snapshot that is taken from now on; it goes when the last watermark from
    // before now is older than the retention time.
    transaction
        .execute(
            "INSERT INTO tidewater.horizon (at_ms, oldest_running)
             VALUES ($1, pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()))",
            &[&now_ms],
        )
        .await
        .map_err(error)?;
    let floor = transaction
        .query_opt(
            "UPDATE tidewater.meta SET log_floor = h.oldest_running
             FROM (SELECT oldest_running FROM tidewater.horizon WHERE at_ms <= $1
                   ORDER BY oldest_running DESC LIMIT 1) h
             WHERE log_floor < h.oldest_running
             RETURNING log_floor::text",
            &[&log_before],
        )
        .await
        .map_err(error)?;
    let Some(floor) = floor else { return Ok(0) };
    let floor: String = floor.get(0);
    let logs = transaction
        .query("SELECT id FROM tidewater.change_log ORDER BY id", &[])
        .await
        .map_err(error)?;
    let mut entries = 0;
    for log in &logs {
        let log = LogSpec::log_table(log.get(0));
        let delete = format!("DELETE FROM {log} WHERE version < $1::text::xid8");
        let count = transaction.execute(&delete, &[&floor]).await;
        entries += count.map_err(error)?;
    }
    for delete in [
        "DELETE FROM tidewater.everything WHERE version < $1::text::xid8",
        "DELETE FROM tidewater.horizon WHERE oldest_running < $1::text::xid8",
    ] {
        transaction
            .execute(delete, &[&floor])
            .await
            .map_err(error)?;
    }
    Ok(entries)
}

/// Remembers how tables are now, to notice in every upload if they no longer are.
async fn fingerprint(
    connection: &Connection,
    compiled: &mut [Compiled],
) -> Result<(), CentreError> {
    let tables = compiled.iter().flat_map(|it| &it.tables);
    let oids: Vec<u32> = tables.map(|table| table.oid).collect();
    let rows = connection.client().query(FINGERPRINTS, &[&oids]).await;
    let rows = rows.map_err(refused("reading the catalog"))?;
    for table in compiled.iter_mut().flat_map(|it| &mut it.tables) {
        let row = rows.iter().find(|row| row.get::<_, u32>(0) == table.oid);
        table.fingerprint = row.map(|row| row.get(1)).unwrap_or_default();
    }
    Ok(())
}

fn unsigned(row: &Row, at: usize) -> u64 {
    row.get::<_, i64>(at).try_into().unwrap_or(0)
}

const CONFLICT_COLUMNS: &str = "at_ms, remote_id, user_name, publication, table_name, row_key, \
                                operation, pre_image, uploaded, winner";

/// A row of [`CONFLICT_COLUMNS`].
fn conflict_record(row: &Row) -> ConflictRecord {
    ConflictRecord {
        at_ms: row.get(0),
        remote_id: remote_id(row, 1),
        user: row.get(2),
        publication: row.get(3),
        table: row.get(4),
        key: row.get(5),
        operation: row.get(6),
        pre_image: row.get(7),
        uploaded: row.get(8),
        winner: row.get(9),
    }
}

fn incident_record(row: &Row) -> Option<IncidentRecord> {
    Some(IncidentRecord {
        at_ms: row.get(0),
        kind: IncidentKind::from_name(row.get(1))?,
        remote_id: RemoteId::from_slice(row.get(2)),
        user: row.get(3),
        publication: row.get(4),
        detail: row.get(5),
    })
}

fn sync_record(row: &Row) -> SyncRecord {
    let remote: Option<&[u8]> = row.get(0);
    SyncRecord {
        remote_id: remote.and_then(RemoteId::from_slice),
        user: row.get(1),
        publications: row.get(2),
        started_ms: row.get(3),
        duration_ms: unsigned(row, 4),
        uploaded: [unsigned(row, 5), unsigned(row, 6), unsigned(row, 7)],
        downloaded: [unsigned(row, 8), unsigned(row, 9)],
        conflicts: unsigned(row, 10),
        refused: unsigned(row, 11),
        bytes: [unsigned(row, 12), unsigned(row, 13)],
        error: row.get(14),
        schemas: Vec::new(),
        incidents: Vec::new(),
    }
}

fn remote_id(row: &Row, at: usize) -> RemoteId {
    // The column is only ever written from remote ids.
    RemoteId::from_slice(row.get(at)).unwrap_or(RemoteId([0; 16]))
}

impl Centre for Postgres {
    fn live_tables(&self) -> CentreResult<'_, Vec<LiveTable>> {
        Box::pin(async move {
            let connection = self.shared.pool.get().await?;
            let catalog = super::live::Catalog::read(connection.client()).await?;
            Ok(catalog.live_tables())
        })
    }

    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        dry_run: bool,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        Box::pin(async move {
            let mut connection = self.shared.pool.get().await?;
            let mode = Mode::of(dry_run);
            deploy::deploy(connection.client_mut(), publications, mode, now_ms).await
        })
    }

    fn deploy_refusing_pending<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        Box::pin(async move {
            let mut connection = self.shared.pool.get().await?;
            let mode = Mode::RefusePending;
            deploy::deploy(connection.client_mut(), publications, mode, now_ms).await
        })
    }

    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport> {
        Box::pin(async move {
            let mut connection = self.shared.pool.get().await?;
            deploy::undeploy(connection.client_mut(), dry_run).await
        })
    }

    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        Box::pin(self.shared.load(publications))
    }

    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>> {
        Box::pin(async move {
            let worker = PostgresWorker::open(self.shared.clone()).await?;
            Ok(Box::new(worker) as Box<dyn Worker>)
        })
    }

    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>> {
        Box::pin(async move {
            let select = "SELECT id, secret, created_ms FROM tidewater.signing_key \
                          ORDER BY created_ms DESC, id DESC";
            let rows = self
                .shared
                .query("reading signing keys", select, &[])
                .await?;
            let key = |row: &Row| SigningKey {
                id: row.get::<_, i32>(0).try_into().unwrap_or(0),
                secret: row.get(1),
                created_ms: row.get(2),
            };
            Ok(rows.iter().map(key).collect())
        })
    }

    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool> {
        Box::pin(async move {
            let insert = "INSERT INTO tidewater.signing_key (id, secret, created_ms)
                          VALUES ($1::int8::int4, $2, $3) ON CONFLICT DO NOTHING";
            let id = i64::from(key.id);
            let parameters: [&(dyn ToSql + Sync); 3] = [&id, &key.secret, &key.created_ms];
            let shared = &self.shared;
            let what = "adding a signing key";
            Ok(shared.execute(what, insert, &parameters).await? == 1)
        })
    }

    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool> {
        Box::pin(async move {
            // The lock lets of two calls only one take the last key but one.
            let delete = "WITH keys AS MATERIALIZED (
                            SELECT id FROM tidewater.signing_key ORDER BY id FOR UPDATE)
                          DELETE FROM tidewater.signing_key WHERE id = $1::int8
                            AND EXISTS (SELECT FROM keys WHERE id <> $1::int8)";
            let id = i64::from(id);
            let shared = &self.shared;
            let what = "retiring a signing key";
            Ok(shared.execute(what, delete, &[&id]).await? == 1)
        })
    }

    fn import_users<'a>(
        &'a self,
        users: &'a [UserRecord],
        update: bool,
    ) -> CentreResult<'a, UserImport> {
        Box::pin(self.shared.import_users(users, update))
    }

    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool> {
        Box::pin(async move {
            let insert = "INSERT INTO tidewater.user_account (name, password_hash, disabled, \
                          created_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
            let parameters: [&(dyn ToSql + Sync); 4] = [
                &user.name,
                &user.password_hash,
                &user.disabled,
                &user.created_ms,
            ];
            Ok(self
                .shared
                .execute("adding a user", insert, &parameters)
                .await?
                == 1)
        })
    }

    fn set_password<'a>(&'a self, name: &'a str, hash: &'a str) -> CentreResult<'a, bool> {
        Box::pin(async move {
            let update = "UPDATE tidewater.user_account SET password_hash = $2 WHERE name = $1";
            let count = self
                .shared
                .execute("setting a password", update, &[&name, &hash])
                .await?;
            Ok(count == 1)
        })
    }

    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool> {
        Box::pin(async move {
            let update = "UPDATE tidewater.user_account SET disabled = $2 WHERE name = $1";
            let parameters: [&(dyn ToSql + Sync); 2] = [&name, &disabled];
            Ok(self
                .shared
                .execute("disabling a user", update, &parameters)
                .await?
                == 1)
        })
    }

    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool> {
        Box::pin(self.shared.remove_user(name))
    }

    fn users(&self) -> CentreResult<'_, Vec<UserRecord>> {
        Box::pin(async move {
            let select = format!("SELECT {USER_COLUMNS} FROM tidewater.user_account ORDER BY name");
            let rows = self.shared.query("listing users", &select, &[]).await?;
            Ok(rows.iter().map(user_record).collect())
        })
    }

    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>> {
        Box::pin(async move {
            let select = format!(
                "SELECT {REMOTE_COLUMNS} FROM tidewater.remote ORDER BY user_name, created_ms, id"
            );
            let rows = self.shared.query("listing remotes", &select, &[]).await?;
            Ok(rows.iter().filter_map(remote_record).collect())
        })
    }

    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        Box::pin(self.shared.set_revoked(id, true))
    }

    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        Box::pin(self.shared.set_revoked(id, false))
    }

    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>> {
        Box::pin(async move {
            let select = format!("SELECT {CONFLICT_COLUMNS} FROM tidewater.conflict ORDER BY id");
            let rows = self.shared.query("reading conflicts", &select, &[]).await?;
            Ok(rows.iter().map(conflict_record).collect())
        })
    }

    fn newest_conflicts(&self, limit: u64) -> CentreResult<'_, Vec<ConflictRecord>> {
        Box::pin(async move {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let select = format!(
                "SELECT {CONFLICT_COLUMNS} FROM tidewater.conflict ORDER BY id DESC LIMIT $1"
            );
            let shared = &self.shared;
            let rows = shared
                .query("reading conflicts", &select, &[&limit])
                .await?;
            Ok(rows.iter().map(conflict_record).collect())
        })
    }

    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>> {
        Box::pin(async move {
            let select = "SELECT at_ms, remote_id, user_name, publication, table_name, row_key, \
                          operation, uploaded, code, reason FROM tidewater.refused ORDER BY id";
            let rows = self
                .shared
                .query("reading refused rows", select, &[])
                .await?;
            let refused = |row: &Row| RefusedRecord {
                at_ms: row.get(0),
                remote_id: remote_id(row, 1),
                user: row.get(2),
                publication: row.get(3),
                table: row.get(4),
                key: row.get(5),
                operation: row.get(6),
                row: row.get(7),
                code: row.get(8),
                reason: row.get(9),
            };
            Ok(rows.iter().map(refused).collect())
        })
    }

    fn status(&self) -> CentreResult<'_, CentreStatus> {
        Box::pin(self.shared.status())
    }

    fn prune(&self, retention: Retention, now_ms: i64) -> CentreResult<'_, Pruned> {
        Box::pin(self.shared.prune(retention, now_ms))
    }

    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()> {
        Box::pin(tracked::check(&self.shared, now_ms))
    }
}
