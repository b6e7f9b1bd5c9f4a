//! PostgreSQL as the engine's database: its connections, and what runs on them.

use std::sync::{Arc, PoisonError};

use tidewater_protocol::Table;

use super::catalog::Catalog;
use super::connection::{Connection, refused};
use super::download::DatabaseSnapshot;
use super::model::{Compiled, CompiledTable};
use super::state::{self, ADVISORY_LOCK};
use super::triggers::LogSpec;
use super::upload::UploadRows;
use super::{
    FINGERPRINTS, Postgres, Served, Shared, deploy, download, fill_random, scope, tracked,
    watermark,
};
use crate::centre::CentreResult;
use crate::download::{DownloadJob, DownloadSink};
use crate::engine;
use crate::engine::compile::Published;
use crate::engine::connection::{Answer, Connection as _, Own, own};
use crate::engine::database::{Database, Job, Lane, Tracking};
use crate::engine::deploy::{InPlace, Lock, Step};
use crate::engine::scope::ScopeQuery;
use crate::error::CentreError;
use crate::publication::DeployStep;
use crate::script::Dialect;
use crate::upload::{SyncUpload, UploadOutcome};

/// A connection that runs syncs.
pub(crate) struct PostgresLane {
    connection: Connection,
    shared: Arc<Shared>,
}

impl Lane for PostgresLane {
    type Connection = Connection;

    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    fn run<'a, T: Send + 'static>(&'a mut self, job: Job<Connection, T>) -> CentreResult<'a, T> {
        Box::pin(self.connection.run(job))
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        Box::pin(async move {
            self.connection.enter().await?;
            let mut rows = UploadRows::new(&mut self.connection, &self.shared);
            let result = engine::upload::apply(&mut rows, &uploads).await;
            self.connection.leave(result).await
        })
    }

    fn download<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            self.connection.enter().await?;
            let result = read_download(&mut self.connection, &self.shared, &job, sink).await;
            self.connection.leave(result).await
        })
    }
}

impl Tracking for Postgres {
    type Connection = Connection;

    type Catalog = Catalog;
    type Table = CompiledTable;
    type Log = LogSpec;

    const DIALECT: Dialect = Dialect::Postgres;

    const LOGS: &str = state::LOGS;

    const UNSEEN: Option<&str> = Some(
        "changes made with session_replication_role = replica or by logical replication are only \
         seen by tables with tracking = \"row\"",
    );

    fn parameter(number: usize) -> String {
        format!("${number}")
    }

    async fn catalog(connection: &mut Connection) -> Result<Catalog, CentreError> {
        Catalog::read(connection.client()).await
    }

    fn table(published: &Published<'_>, _: &Table, catalog: &Catalog) -> CompiledTable {
        CompiledTable::of(published, catalog)
    }

    fn scope_sql(inner: &str, table: &CompiledTable) -> String {
        table.scope_sql(inner)
    }

    async fn check_query(
        connection: &mut Connection,
        place: &str,
        query: &ScopeQuery,
        schema: &Table,
        table: &CompiledTable,
    ) -> Result<(), CentreError> {
        scope::check(connection.client(), place, query, schema, table).await
    }

    fn state() -> String {
        state::state()
    }

    async fn found_tables(
        connection: &mut Connection,
        wanted: &[&'static str],
    ) -> Result<Vec<&'static str>, CentreError> {
        deploy::found_tables(connection.client(), wanted).await
    }

    async fn prepare(connection: &mut Connection, _: bool) -> Result<Vec<DeployStep>, CentreError> {
        deploy::check_encoding(connection.client()).await?;
        Ok(Vec::new())
    }

    async fn begin_alone(connection: &mut Connection) -> Result<(), CentreError> {
        deploy::begin_alone(connection, deploy::LOCK_TIMEOUT_MS).await
    }

    async fn in_place(
        connection: &mut Connection,
        catalog: &Catalog,
        wanted: &[LogSpec],
    ) -> Result<InPlace, CentreError> {
        deploy::in_place(connection.client(), catalog, wanted).await
    }

    fn lock(lock: Lock, table: &str) -> String {
        deploy::lock(lock, table)
    }

    fn make_log(log: &LogSpec, id: i64, catalog: &Catalog) -> String {
        deploy::make_log(log, id as i32, catalog)
    }

    fn everything(id: i64) -> String {
        deploy::everything(id)
    }

    fn deployed(publications: &[Compiled]) -> String {
        tracked::remember_all(publications)
    }

    async fn traces(connection: &mut Connection) -> Result<Vec<Step>, CentreError> {
        deploy::traces(connection).await
    }

    /// Remembers how tables are now, to notice in every upload if they no longer are.
    async fn complete(
        connection: &mut Connection,
        publications: &mut [Compiled],
    ) -> Result<i64, CentreError> {
        let tables = publications.iter().flat_map(|it| &it.tables);
        let oids: Vec<u32> = tables.map(|table| table.oid).collect();
        let rows = connection.client().query(FINGERPRINTS, &[&oids]).await;
        let rows = rows.map_err(refused("reading the catalog"))?;
        for table in publications.iter_mut().flat_map(|it| &mut it.tables) {
            let row = rows.iter().find(|row| row.get::<_, u32>(0) == table.oid);
            table.fingerprint = row.map(|row| row.get(1)).unwrap_or_default();
        }
        Ok(0)
    }

    fn ask_pruned(position: &[u8]) -> Vec<Own> {
        let pruned = "SELECT pg_catalog.pg_snapshot_xmin(?1::text::pg_snapshot) < log_floor
            FROM tidewater.history";
        let snapshot = watermark::snapshot(position);
        snapshot.into_iter().map(|it| own!(pruned, it)).collect()
    }

    fn is_pruned(answers: &[Answer]) -> Result<bool, CentreError> {
        let row = answers.first().and_then(|answer| answer.rows.first());
        row.map_or(Ok(false), |row| row.get(0))
    }

    async fn log_sizes(connection: &mut Connection) -> Result<Vec<(String, u64)>, CentreError> {
        // Statistics know new entries at once, and the size of a log they never saw is
        // better than counting millions of them.
        let sizes = own!(
            "SELECT l.table_name, greatest(coalesce(s.n_live_tup, 0), c.reltuples::int8, 0)
             FROM tidewater.change_log l
             JOIN pg_catalog.pg_class c ON c.oid = to_regclass('tidewater.log_' || l.id)
             LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid ORDER BY l.id"
        );
        let answer = connection.run_one("reading the status", sizes).await?;
        let rows = answer.rows.iter();
        rows.map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    async fn begin_pruning(connection: &mut Connection) -> Result<bool, CentreError> {
        connection.begin().await?;
        let lock = own!(
            "SELECT pg_catalog.pg_try_advisory_xact_lock(?1)",
            ADVISORY_LOCK
        );
        let locked = connection.run_one("pruning", lock).await?;
        if locked
            .rows
            .first()
            .is_some_and(|row| row.get(0).unwrap_or(false))
        {
            return Ok(true);
        }
        connection.rollback().await?;
        Ok(false)
    }

    async fn end_pruning(
        connection: &mut Connection,
        result: Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        result?;
        connection.commit().await
    }

    async fn prune_logs(
        connection: &mut Connection,
        before_ms: i64,
        now_ms: i64,
        _: [u8; 16],
        entries: &mut u64,
    ) -> Result<(), CentreError> {
        let what = "pruning change logs";
        let marks = own!(
            "DELETE FROM tidewater.mark WHERE created_ms < ?1",
            before_ms
        );
        // Now all transactions below the oldest running one have ended. What they wrote is
        // in every snapshot that is taken from now on; it goes when the last watermark from
        // before now is older than the retention time.
        let horizon = own!(
            "INSERT INTO tidewater.horizon (at_ms, oldest_running)
             VALUES (?1, pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()))",
            now_ms
        );
        let floor = own!(
            "UPDATE tidewater.history SET log_floor = h.oldest_running
             FROM (SELECT oldest_running FROM tidewater.horizon WHERE at_ms <= ?1
                   ORDER BY oldest_running DESC LIMIT 1) h
             WHERE log_floor < h.oldest_running
             RETURNING log_floor::text",
            before_ms
        );
        let logs = own!("SELECT id FROM tidewater.change_log ORDER BY id");
        let answers = connection
            .flight(what, &[marks, horizon, floor, logs])
            .await?;
        let Some(floor) = answers[2].rows.first() else {
            return Ok(());
        };
        let floor: String = floor.get(0)?;
        let client = connection.client();
        for log in &answers[3].rows {
            let log = LogSpec::log_table(log.get::<i64>(0)? as i32);
            let delete = format!("DELETE FROM {log} WHERE version < $1::text::xid8");
            let count = client.execute(&delete, &[&floor]).await;
            *entries += count.map_err(refused(what))?;
        }
        for delete in [
            "DELETE FROM tidewater.everything WHERE version < $1::text::xid8",
            "DELETE FROM tidewater.horizon WHERE oldest_running < $1::text::xid8",
        ] {
            let deleted = client.execute(delete, &[&floor]).await;
            deleted.map_err(refused(what))?;
        }
        Ok(())
    }
}

impl Database for Postgres {
    type Lane = PostgresLane;

    fn open_lane(&self) -> CentreResult<'_, PostgresLane> {
        Box::pin(async move {
            Ok(PostgresLane {
                connection: Connection::open(&self.shared.address).await?,
                shared: self.shared.clone(),
            })
        })
    }

    fn run<T: Send + 'static>(&self, job: Job<Connection, T>) -> CentreResult<'_, T> {
        Box::pin(async move { self.shared.pool.get().await?.run(job).await })
    }

    fn run_apart<T: Send + 'static>(&self, job: Job<Connection, T>) -> CentreResult<'_, T> {
        self.run(job)
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), CentreError> {
        fill_random(bytes)
    }

    fn serve(&self, loaded: Served) {
        let served = self.shared.served.write();
        *served.unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()> {
        Box::pin(tracked::check(&self.shared, now_ms))
    }
}

async fn read_download(
    connection: &mut Connection,
    shared: &Shared,
    job: &DownloadJob,
    sink: &mut dyn DownloadSink,
) -> Result<(), CentreError> {
    let publications = download::publications(shared, job)?;
    let mut snapshot = DatabaseSnapshot::open(connection, shared, job, &publications).await?;
    engine::download::download(&mut snapshot, job, sink).await
}
