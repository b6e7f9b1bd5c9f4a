//! The file as the engine's database: its connections, each on a thread of its own, and what runs
//! on them.

use std::sync::Arc;

use super::calls::SqliteInterrupter;
use super::connection::SqliteConnection;
use super::download::FileSnapshot;
use super::file::{DatabaseFile, OpenFile};
use super::publication::SqliteTables;
use super::rows::UploadRows;
use super::served::refresh;
use super::watermark::Marker;
use super::{SharedServed, SqliteCentre};
use tidewater_centre::download::{Downloaded, RunningDownloads};
use tidewater_centre::engine::database::{Database, Job, WorkerConnection};
use tidewater_centre::engine::follow::CommittedChanges;
use tidewater_centre::engine::served_publications::{CentreShared, ServedPublications};
use tidewater_centre::engine::thread::{ConnectionThread, ThreadOwner, at_once};
use tidewater_centre::engine::upload::upload_writer::UploadWriter;
use tidewater_centre::engine::write_task::{WriteOutcome, WriteTask};
use tidewater_centre::error::CentreResult;
use tidewater_centre::{CallInterrupt, CallOutcome, ProcedureCall, engine};

/// A connection that runs syncs.
pub(crate) struct SqliteWorkerConnection {
    thread: ConnectionThread<OpenFile>,
    file: DatabaseFile,
    marker: Marker,
    served: SharedServed,
}

impl WorkerConnection for SqliteWorkerConnection {
    type Connection = SqliteConnection;
    type Tables = SqliteTables;

    fn shared(&self) -> &CentreShared<SqliteTables> {
        &self.served
    }

    fn is_usable(&self) -> bool {
        true
    }

    fn renew(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            let file = self.file.clone();
            let open = move || ConnectionThread::start(file.open()?, &file.environment().jobs);
            self.thread = self.file.environment().jobs.blocking(open).await?;
            Ok(())
        })
    }

    fn run<'a, T: Send + 'static>(
        &'a mut self,
        job: Job<SqliteConnection, T>,
    ) -> CentreResult<'a, T> {
        Box::pin(self.thread.run(|connection| at_once(job(connection))))
    }

    fn write(&mut self, task: WriteTask) -> CentreResult<'_, WriteOutcome> {
        let served = self.served.clone();
        Box::pin(self.thread.run(move |connection| {
            let served = refresh(connection, &served)?;
            at_once(task.run(&mut UploadWriter::new(UploadRows {
                connection,
                served: &served,
            })))
        }))
    }

    fn call(
        &mut self,
        calls: Vec<ProcedureCall>,
        now_ms: i64,
    ) -> CentreResult<'_, Vec<CallOutcome>> {
        Box::pin(self.thread.run(move |connection| {
            at_once(engine::call::order::run_calls(connection, &calls, now_ms))
        }))
    }

    fn interrupter(&self) -> Arc<dyn CallInterrupt> {
        Arc::new(SqliteInterrupter)
    }

    fn download<'a, 'd: 'a>(
        &'a mut self,
        downloads: Vec<RunningDownloads<'d>>,
    ) -> CentreResult<'a, Downloaded> {
        let (served, marker) = (self.served.clone(), self.marker.clone());
        Box::pin(
            self.thread
                .download(downloads, move |connection, downloads| {
                    let served = refresh(connection, &served)?;
                    let marker = &marker;
                    let driver = FileSnapshot { connection, marker };
                    let read = engine::download::read_downloads(driver, &served, downloads);
                    Ok(at_once(read)?.outcomes)
                }),
        )
    }
}

impl Database for SqliteCentre {
    type Lane = SqliteWorkerConnection;

    fn open_lane(&self) -> CentreResult<'_, SqliteWorkerConnection> {
        let (file, marker, served) = (self.file.clone(), self.marker.clone(), self.served.clone());
        Box::pin(self.file.environment().jobs.blocking(move || {
            Ok(SqliteWorkerConnection {
                thread: ConnectionThread::start(file.open()?, &file.environment().jobs)?,
                file,
                marker,
                served,
            })
        }))
    }

    fn run<T: Send + 'static>(&self, job: Job<SqliteConnection, T>) -> CentreResult<'_, T> {
        Box::pin(self.admin.run(|connection| at_once(job(connection))))
    }

    fn run_apart<T: Send + 'static>(&self, job: Job<SqliteConnection, T>) -> CentreResult<'_, T> {
        let file = self.file.clone();
        let run = move || file.open()?.run(|connection| at_once(job(connection)));
        Box::pin(self.file.environment().jobs.blocking(run))
    }

    fn shared(&self) -> &CentreShared<SqliteTables> {
        &self.served
    }

    fn follow(
        &self,
        served: Arc<ServedPublications<SqliteTables>>,
        since: Option<Vec<u8>>,
    ) -> CentreResult<'_, CommittedChanges> {
        Box::pin(self.follower.follow(&self.file, served, since))
    }

    fn check_tracking(&self, _: i64) -> CentreResult<'_, ()> {
        // Every job looks by itself.
        Box::pin(async { Ok(()) })
    }
}
