//! The database as the engine's: its connections, and what runs on them.

use std::sync::Arc;

use tidewater_centre::download::{Downloaded, RunningDownloads};
use tidewater_centre::engine::database::{Database, Job, WorkerConnection};
use tidewater_centre::engine::follow::CommittedChanges;
use tidewater_centre::engine::served_publications::{CentreShared, ServedPublications};
use tidewater_centre::engine::write_task::{WriteOutcome, WriteTask};
use tidewater_centre::error::CentreResult;
use tidewater_centre::{CallInterrupt, CallOutcome, ProcedureCall};

use crate::connection::{DatabaseAddress, MysqlConnection};
use crate::publication::MysqlTables;
use crate::{MysqlCentre, SharedServed};

/// A connection that runs syncs.
pub(crate) struct MysqlWorkerConnection {
    connection: MysqlConnection,
    address: DatabaseAddress,
    served: SharedServed,
}

impl WorkerConnection for MysqlWorkerConnection {
    type Connection = MysqlConnection;
    type Tables = MysqlTables;

    fn shared(&self) -> &CentreShared<MysqlTables> {
        &self.served
    }

    fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    fn renew(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            self.connection = MysqlConnection::open(&self.address).await?;
            Ok(())
        })
    }

    fn run<'a, T: Send + 'static>(
        &'a mut self,
        job: Job<MysqlConnection, T>,
    ) -> CentreResult<'a, T> {
        Box::pin(self.connection.run_job(job))
    }

    fn write(&mut self, _: WriteTask) -> CentreResult<'_, WriteOutcome> {
        todo!("uploads: an UploadWriter over this connection")
    }

    fn call(&mut self, _: Vec<ProcedureCall>, _: i64) -> CentreResult<'_, Vec<CallOutcome>> {
        todo!("calls: run_calls on this connection")
    }

    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        todo!("calls: KILL QUERY by another connection")
    }

    fn download<'a, 'd: 'a>(
        &'a mut self,
        _: Vec<RunningDownloads<'d>>,
    ) -> CentreResult<'a, Downloaded> {
        todo!("downloads: read_downloads with a SnapshotDriver")
    }
}

impl Database for MysqlCentre {
    type Lane = MysqlWorkerConnection;

    fn open_lane(&self) -> CentreResult<'_, MysqlWorkerConnection> {
        Box::pin(async move {
            Ok(MysqlWorkerConnection {
                connection: MysqlConnection::open(&self.address).await?,
                address: self.address.clone(),
                served: self.served.clone(),
            })
        })
    }

    fn run<T: Send + 'static>(&self, job: Job<MysqlConnection, T>) -> CentreResult<'_, T> {
        Box::pin(async move { self.admin.lock().await.run_job(job).await })
    }

    fn run_apart<T: Send + 'static>(&self, job: Job<MysqlConnection, T>) -> CentreResult<'_, T> {
        Box::pin(async move {
            let mut connection = MysqlConnection::open(&self.address).await?;
            connection.run_job(job).await
        })
    }

    fn shared(&self) -> &CentreShared<MysqlTables> {
        &self.served
    }

    fn follow(
        &self,
        _: Arc<ServedPublications<MysqlTables>>,
        _: Option<Vec<u8>>,
    ) -> CentreResult<'_, CommittedChanges> {
        todo!("following: what was committed since a position")
    }

    fn check_tracking(&self, _: i64) -> CentreResult<'_, ()> {
        todo!("change logs: whether the triggers are there as they were deployed")
    }
}
