//! The file as the engine's database: its connections, each on a thread of its own, and what runs
//! on them.

use std::sync::{Arc, PoisonError};

use futures_util::FutureExt;
use prost::Message;
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

use tidewater_protocol::PublicationSchema;
use tidewater_protocol::message::TableBegin;

use super::download::FileSnapshot;
use super::thread::{self, ConnectionThread};
use super::upload::UploadRows;
use super::watermark::{Marker, Watermark};
use super::{SharedServed, SqliteCentre, catalog, deploy, prune, state};
use crate::centre::CentreResult;
use crate::download::{DownloadJob, DownloadOutcome, DownloadSink};
use crate::engine::connection::{Answer, Own, own};
use crate::engine::database::{Database, Job, Lane, Tracking};
use crate::engine::{self, catalog::listed};
use crate::error::CentreError;
use crate::evolution::Mode;
use crate::publication::{DeployReport, ListedTable, PublicationSpec};
use crate::records::History;
use crate::upload::{SyncUpload, UploadOutcome};

/// How many chunks of a download the connection may be ahead of the sink.
const CHUNKS_AHEAD: usize = 4;

/// A connection that runs syncs.
pub(crate) struct SqliteLane {
    thread: ConnectionThread,
    marker: Marker,
    served: SharedServed,
}

/// Runs a job to its end.
fn finish<T>(connection: &mut Connection, job: Job<Connection, T>) -> Result<T, CentreError> {
    ended(connection, |connection| at_once(job(connection)))
}

/// The result of a future: nothing that it waits for is ever not ready.
pub(super) fn at_once<T>(
    future: impl Future<Output = Result<T, CentreError>>,
) -> Result<T, CentreError> {
    future.now_or_never().unwrap_or_else(|| {
        Err(CentreError::Internal {
            message: "a statement on a file had to be waited for".into(),
        })
    })
}

/// Runs a job, and undoes what it leaves open.
pub(super) fn ended<T>(
    connection: &mut Connection,
    job: impl FnOnce(&mut Connection) -> Result<T, CentreError>,
) -> Result<T, CentreError> {
    let result = job(connection);
    if !connection.is_autocommit() {
        // The error that left the transaction open is told.
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

/// A step of a download, for a sink on another thread.
enum Event {
    Begin(usize, bool),
    Table(TableBegin),
    Rows(Vec<u8>),
    Comparing,
    End(usize, DownloadOutcome),
}

/// Passes a download on to the sink. If that is gone, the next rows tell.
struct AwaySink {
    events: mpsc::Sender<Event>,
    may_block: bool,
}

impl AwaySink {
    fn send(&self, event: Event) -> Result<(), CentreError> {
        let sent = match self.may_block {
            true => self.events.blocking_send(event).is_ok(),
            false => self.events.try_send(event).is_ok(),
        };
        sent.then_some(()).ok_or(CentreError::Cancelled)
    }
}

impl DownloadSink for AwaySink {
    fn begin(&mut self, index: usize, scope_changed: bool) {
        let _ = self.send(Event::Begin(index, scope_changed));
    }

    fn table(&mut self, begin: TableBegin) {
        let _ = self.send(Event::Table(begin));
    }

    fn rows(&mut self, rows: Vec<u8>) -> Result<(), CentreError> {
        self.send(Event::Rows(rows))
    }

    fn comparing(&mut self) -> Result<(), CentreError> {
        self.send(Event::Comparing)
    }

    fn end(&mut self, index: usize, outcome: DownloadOutcome) {
        let _ = self.send(Event::End(index, outcome));
    }
}

impl Lane for SqliteLane {
    type Connection = Connection;

    fn is_usable(&self) -> bool {
        true
    }

    fn run<'a, T: Send + 'static>(&'a mut self, job: Job<Connection, T>) -> CentreResult<'a, T> {
        Box::pin(self.thread.run(|connection| finish(connection, job)))
    }

    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>> {
        let served = self.served.clone();
        Box::pin(self.thread.run(move |connection| {
            let served = deploy::refresh(connection, &served)?;
            ended(connection, |connection| {
                let mut rows = UploadRows::new(connection, &served);
                at_once(engine::upload::apply(&mut rows, &uploads))
            })
        }))
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
                let mut sink = AwaySink { events, may_block };
                let served = deploy::refresh(connection, &served)?;
                let mut snapshot = FileSnapshot::open(connection, &served, &marker, &job)?;
                at_once(engine::download::download(&mut snapshot, &job, &mut sink))
            };
            self.thread
                .start(move |connection| ended(connection, read), result)?;
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
}

impl Tracking for SqliteCentre {
    type Connection = Connection;

    fn ask_history(watermark: &[u8]) -> Vec<Own> {
        let Ok(watermark) = Watermark::decode(watermark) else {
            return Vec::new();
        };
        let mark = own!("SELECT 1 FROM tidewater.mark WHERE id = ?1", watermark.mark);
        let mut asked = vec![mark];
        let logs = watermark.tables.iter().filter(|it| it.log != 0);
        let pruned = "SELECT 1 FROM tidewater.change_log WHERE id = ?1 AND floor > ?2";
        asked.extend(logs.map(|it| own!(pruned, it.log, it.position)));
        asked
    }

    fn history(_: &[u8], answers: &[Answer]) -> Result<History, CentreError> {
        Ok(match answers.split_first() {
            Some((_, logs)) if logs.iter().any(|log| !log.rows.is_empty()) => History::Pruned,
            Some((mark, _)) if !mark.rows.is_empty() => History::Known,
            _ => History::Unknown,
        })
    }

    async fn log_sizes(connection: &mut Connection) -> Result<Vec<(String, u64)>, CentreError> {
        prune::log_sizes(connection)
    }

    async fn begin_pruning(connection: &mut Connection) -> Result<bool, CentreError> {
        prune::begin(connection)
    }

    async fn end_pruning(
        _: &mut Connection,
        result: Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        match result {
            // It gives way to other writers.
            Err(error) if error.is_retryable() => Ok(()),
            result => result,
        }
    }

    async fn prune_logs(
        connection: &mut Connection,
        before_ms: i64,
        now_ms: i64,
        random: [u8; 16],
        entries: &mut u64,
    ) -> Result<(), CentreError> {
        prune::logs(connection, before_ms, now_ms, random, entries)
    }
}

impl Database for SqliteCentre {
    type Lane = SqliteLane;

    fn open_lane(&self) -> CentreResult<'_, SqliteLane> {
        let (file, marker, served) = (self.file.clone(), self.marker.clone(), self.served.clone());
        Box::pin(self.file.environment().blocking(move || {
            Ok(SqliteLane {
                thread: ConnectionThread::open(&file)?,
                marker,
                served,
            })
        }))
    }

    fn run<T: Send + 'static>(&self, job: Job<Connection, T>) -> CentreResult<'_, T> {
        Box::pin(self.admin.run(|connection| finish(connection, job)))
    }

    fn run_apart<T: Send + 'static>(&self, job: Job<Connection, T>) -> CentreResult<'_, T> {
        let file = self.file.clone();
        let run = move || file.open()?.run(|connection| finish(connection, job));
        Box::pin(self.file.environment().blocking(run))
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), CentreError> {
        self.file.environment().random(bytes)
    }

    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>> {
        Box::pin(self.admin.run(|connection| {
            let tables = catalog::tables(connection)?;
            Ok(listed(&catalog::described(connection, &tables)))
        }))
    }

    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        mode: Mode,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        let specs = publications.to_vec();
        let mut random = [0; 48];
        let filled = self.file.environment().random(&mut random);
        Box::pin(self.admin.run(move |connection| {
            filled?;
            deploy::deploy(connection, &specs, mode, now_ms, &random).map(|(report, _)| report)
        }))
    }

    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport> {
        let undeploy = move |connection: &mut Connection| deploy::undeploy(connection, dry_run);
        Box::pin(self.admin.run(undeploy))
    }

    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        let specs = publications.to_vec();
        let shared = self.served.clone();
        Box::pin(self.admin.run(move |connection| {
            let served = Arc::new(deploy::load(connection, &specs)?);
            let publications = served.publications.iter();
            let schemas = publications
                .map(|publication| publication.schema.clone())
                .collect();
            *shared.write().unwrap_or_else(PoisonError::into_inner) = served;
            Ok(schemas)
        }))
    }

    fn check_tracking(&self, _: i64) -> CentreResult<'_, ()> {
        // Every job looks by itself.
        Box::pin(async { Ok(()) })
    }

    async fn check_state(connection: &mut Connection) -> Result<(), CentreError> {
        state::check(connection).map(drop)
    }
}
