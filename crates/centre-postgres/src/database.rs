//! PostgreSQL as the engine's database: its connections, and what runs on them.

use std::sync::Arc;

use super::connection::PostgresConnection;
use super::download::DatabaseSnapshot;
use super::interrupt::PostgresInterrupter;
use super::publication::PostgresTables;
use super::rows::UploadRows;
use super::waits::watched;
use super::{PostgresCentre, PostgresPublications, PostgresShared, tracked};
use tidewater_centre::download::{Downloaded, RunningDownloads};
use tidewater_centre::engine::database::{Database, Job, WorkerConnection};
use tidewater_centre::engine::download::SnapshotReading;
use tidewater_centre::engine::follow::CommittedChanges;
use tidewater_centre::engine::served_publications::CentreShared;
use tidewater_centre::engine::upload::upload_writer::UploadWriter;
use tidewater_centre::engine::write_task::{WriteOutcome, WriteTask};
use tidewater_centre::error::{CentreError, CentreResult};
use tidewater_centre::{CallInterrupt, CallOutcome, ProcedureCall, engine};

/// A connection that runs syncs.
pub(crate) struct PostgresWorkerConnection {
    connection: PostgresConnection,
    shared: Arc<PostgresShared>,
}

impl PostgresWorkerConnection {
    /// Begins a sync.
    async fn enter(&mut self, now_ms: i64) -> Result<(), CentreError> {
        self.connection.enter().await?;
        let patience_ms = self.shared.waits.patience_ms(now_ms);
        self.connection.wait_for_locks(patience_ms).await
    }
}

impl WorkerConnection for PostgresWorkerConnection {
    type Connection = PostgresConnection;
    type Tables = PostgresTables;

    fn shared(&self) -> &CentreShared<PostgresTables> {
        &self.shared.centre
    }

    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    fn renew(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            self.connection = PostgresConnection::open(&self.shared.address).await?;
            Ok(())
        })
    }

    fn run<'a, T: Send + 'static>(
        &'a mut self,
        job: Job<PostgresConnection, T>,
    ) -> CentreResult<'a, T> {
        Box::pin(self.connection.run_job(job))
    }

    fn write(&mut self, task: WriteTask) -> CentreResult<'_, WriteOutcome> {
        let now_ms = task.now_ms();
        Box::pin(async move {
            self.enter(now_ms).await?;
            let backend = self.connection.backend();
            let mut rows =
                UploadWriter::new(UploadRows::new(&mut self.connection, &self.shared, now_ms));
            let work = task.run(&mut rows);
            let result = watched(&self.shared, backend, now_ms, work).await;
            self.connection.leave(result).await
        })
    }

    fn call(
        &mut self,
        calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>> {
        Box::pin(async move {
            self.connection.enter_calls().await?;
            let work = engine::call::order::run_calls(&mut self.connection, &calls, now_ms);
            let result = work.await;
            self.connection.interruption().drain().await;
            self.connection.leave(result).await
        })
    }

    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        Arc::new(PostgresInterrupter(self.connection.interruption()))
    }

    fn download<'a, 'd: 'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'d>>,
    ) -> CentreResult<'a, Downloaded> {
        Box::pin(async move {
            let mut downloads = downloads;
            let now_ms = downloads.first().map_or(0, |it| it.job.context.now_ms);
            self.enter(now_ms).await?;
            let backend = self.connection.backend();
            let served = self.shared.centre.served();
            let driver = DatabaseSnapshot {
                connection: &mut self.connection,
                shared: &self.shared,
                has_adopted: false,
            };
            let work = engine::download::read_downloads(driver, &served, &mut downloads);
            let result = watched(&self.shared, backend, now_ms, work).await;
            if let Err(CentreError::Locked { .. }) = result {
                self.shared.waits.in_vain(now_ms);
            }
            match result {
                Ok(SnapshotReading {
                    outcomes,
                    is_broken: true,
                }) => {
                    self.connection.abandon().await;
                    Ok(outcomes)
                }
                Ok(SnapshotReading { outcomes, .. }) => self.connection.leave(Ok(outcomes)).await,
                Err(error) => self.connection.leave(Err(error)).await,
            }
        })
    }
}

impl Database for PostgresCentre {
    type Lane = PostgresWorkerConnection;

    fn open_lane(&self) -> CentreResult<'_, PostgresWorkerConnection> {
        Box::pin(async move {
            Ok(PostgresWorkerConnection {
                connection: PostgresConnection::open(&self.shared.address).await?,
                shared: self.shared.clone(),
            })
        })
    }

    fn run<T: Send + 'static>(&self, job: Job<PostgresConnection, T>) -> CentreResult<'_, T> {
        Box::pin(async move { self.shared.pool.get().await?.run_job(job).await })
    }

    fn run_apart<T: Send + 'static>(&self, job: Job<PostgresConnection, T>) -> CentreResult<'_, T> {
        self.run(job)
    }

    fn shared(&self) -> &CentreShared<PostgresTables> {
        &self.shared.centre
    }

    fn follow(
        &self,
        served: Arc<PostgresPublications>,
        since: Option<Vec<u8>>,
    ) -> CentreResult<'_, CommittedChanges> {
        Box::pin(async move {
            let shared = &self.shared;
            shared
                .follower
                .follow(&shared.address, &served, since)
                .await
        })
    }

    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()> {
        Box::pin(tracked::check(&self.shared, now_ms))
    }
}
