//! The file as the engine's database: its connections, each on a thread of its own, and what runs
//! on them.

use std::sync::{Arc, PoisonError};

use futures_util::FutureExt;
use prost::Message;
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

use tidewater_protocol::Table;
use tidewater_protocol::message::TableBegin;

use super::catalog::Catalog;
use super::compile::{Compiled, Publication};
use super::download::FileSnapshot;
use super::thread::{self, ConnectionThread};
use super::triggers::Log;
use super::upload::UploadRows;
use super::watermark::{Marker, Positions};
use super::{SharedServed, SqliteCentre, deploy, failure, prune, scope, state};
use crate::centre::CentreResult;
use crate::download::{DownloadJob, DownloadOutcome, DownloadSink};
use crate::engine;
use crate::engine::compile::Published;
use crate::engine::connection::{Answer, Own, own};
use crate::engine::database::{Database, Job, Lane, Tracking};
use crate::engine::deploy::{InPlace, Loaded, Lock, Step};
use crate::engine::scope::ScopeQuery;
use crate::error::CentreError;
use crate::publication::DeployStep;
use crate::script::Dialect;
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

    type Catalog = Catalog;
    type Table = Compiled;
    type Log = Log;

    const DIALECT: Dialect = Dialect::Sqlite;

    const UNSEEN: Option<&str> = None;

    fn parameter(number: usize) -> String {
        format!("?{number}")
    }

    async fn catalog(connection: &mut Connection) -> Result<Catalog, CentreError> {
        Catalog::read(connection)
    }

    fn table(published: &Published<'_>, schema: &Table, catalog: &Catalog) -> Compiled {
        Compiled::new(published, schema, catalog)
    }

    fn scope_sql(inner: &str, _: &Compiled) -> String {
        inner.to_owned()
    }

    async fn check_query(
        connection: &mut Connection,
        place: &str,
        query: &ScopeQuery,
        schema: &Table,
        _: &Compiled,
    ) -> Result<(), CentreError> {
        scope::check(connection, place, query, schema)
    }

    fn state() -> String {
        state::create()
    }

    async fn check_state(connection: &mut Connection) -> Result<bool, CentreError> {
        state::check(connection)
    }

    async fn prepare(
        connection: &mut Connection,
        dry_run: bool,
    ) -> Result<Vec<DeployStep>, CentreError> {
        deploy::use_write_ahead_log(connection, dry_run)
    }

    async fn begin_alone(connection: &mut Connection) -> Result<(), CentreError> {
        let begun = engine::connection::Connection::begin(connection).await;
        begun.map_err(|error| match error.is_retryable() {
            true => CentreError::Locked {
                message: "the database file is locked by another connection; nothing was changed"
                    .into(),
            },
            false => error,
        })
    }

    async fn in_place(
        connection: &mut Connection,
        catalog: &Catalog,
        wanted: &[Log],
    ) -> Result<InPlace, CentreError> {
        let found = deploy::in_place(connection, catalog, wanted);
        found.map_err(failure("reading the list of change logs"))
    }

    fn lock(_: Lock, _: &str) -> String {
        deploy::lock()
    }

    fn make_log(log: &Log, id: i64, catalog: &Catalog) -> String {
        deploy::make_log(log, id, catalog)
    }

    fn everything(id: i64) -> String {
        deploy::everything(id)
    }

    fn deployed(_: &[Publication]) -> String {
        String::new()
    }

    async fn traces(connection: &mut Connection) -> Result<Vec<Step>, CentreError> {
        deploy::traces(connection)
    }

    async fn complete(
        connection: &mut Connection,
        _: &mut [Publication],
    ) -> Result<i64, CentreError> {
        deploy::schema_version(connection)
    }

    fn ask_pruned(position: &[u8]) -> Vec<Own> {
        let positions = Positions::decode(position).unwrap_or_default();
        let pruned = "SELECT 1 FROM tidewater.change_log WHERE id = ?1 AND floor > ?2";
        let logs = positions.logs.iter();
        logs.map(|it| own!(pruned, it.log, it.position)).collect()
    }

    fn is_pruned(answers: &[Answer]) -> Result<bool, CentreError> {
        Ok(answers.iter().any(|log| !log.rows.is_empty()))
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

    fn serve(&self, loaded: Loaded<Compiled>) {
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    fn check_tracking(&self, _: i64) -> CentreResult<'_, ()> {
        // Every job looks by itself.
        Box::pin(async { Ok(()) })
    }
}
