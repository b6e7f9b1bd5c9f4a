//! PostgreSQL as the engine's database: its connections, and what runs on them.

use std::sync::{Arc, PoisonError};

use super::connection::Connection;
use super::download::DatabaseSnapshot;
use super::publication::PublishedTable;
use super::rows::UploadRows;
use super::waits::watched;
use super::{Postgres, Served, Shared, download, fill_random, tracked};
use tidewater_centre::centre::CentreResult;
use tidewater_centre::download::{DownloadJob, DownloadSink};
use tidewater_centre::engine;
use tidewater_centre::engine::database::{Database, Job, Lane};
use tidewater_centre::error::CentreError;
use tidewater_centre::upload::{SyncUpload, UploadOutcome};

/// A connection that runs syncs.
pub(crate) struct PostgresLane {
    connection: Connection,
    shared: Arc<Shared>,
}

impl PostgresLane {
    /// Begins a sync.
    async fn enter(&mut self, now_ms: i64) -> Result<(), CentreError> {
        self.connection.enter().await?;
        let patience_ms = self.shared.waits.patience_ms(now_ms);
        self.connection.wait_for_locks(patience_ms).await
    }
}

impl Lane for PostgresLane {
    type Connection = Connection;
    type Table = PublishedTable;

    fn served(&self) -> Arc<Served> {
        let served = self.shared.served.read();
        served.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    fn run<'a, T: Send + 'static>(&'a mut self, job: Job<Connection, T>) -> CentreResult<'a, T> {
        Box::pin(self.connection.run(job))
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        let now_ms = uploads.first().map_or(0, |upload| upload.context.now_ms);
        Box::pin(async move {
            self.enter(now_ms).await?;
            let backend = self.connection.backend();
            let mut rows = UploadRows::new(&mut self.connection, &self.shared, now_ms);
            let work = engine::upload::apply(&mut rows, &uploads);
            let result = watched(&self.shared, backend, now_ms, work).await;
            self.connection.leave(result).await
        })
    }

    fn download<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()> {
        Box::pin(async move {
            let now_ms = job.context.now_ms;
            self.enter(now_ms).await?;
            let backend = self.connection.backend();
            let work = read_download(&mut self.connection, &self.shared, &job, sink);
            let result = watched(&self.shared, backend, now_ms, work).await;
            if let Err(CentreError::Locked { .. }) = result {
                self.shared.waits.in_vain(now_ms);
            }
            self.connection.leave(result).await
        })
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

    fn served(&self) -> Arc<Served> {
        self.shared.served()
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
