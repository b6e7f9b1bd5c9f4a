//! A connection and the thread that owns it: SQLite blocks, async code must not. In a
//! simulation it is a task ([`Jobs::Tasks`]).

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::environment::Jobs;
use super::failure;
use super::file::{DatabaseFile, OpenFile};
use crate::error::CentreError;

/// How long a statement waits for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Room for the prepared statements of some publications.
const STATEMENTS: usize = 512;

type Job = Box<dyn FnOnce(&mut OpenFile) + Send>;

/// A connection on a thread of its own. Jobs run one after the other; the thread
/// ends when this is dropped and the last job is done.
pub(super) struct ConnectionThread(Queue);

enum Queue {
    Thread(mpsc::Sender<Job>),
    Task(UnboundedSender<Job>),
}

impl ConnectionThread {
    /// Opens a connection to an existing database.
    pub(super) fn open(file: &DatabaseFile) -> Result<ConnectionThread, CentreError> {
        let delay = match &file.environment().jobs {
            Jobs::Threads => None,
            Jobs::Tasks(delay) => Some(delay.clone()),
        };
        let mut file = file.open()?;
        if let Some(delay) = delay {
            let (jobs, queue) = unbounded_channel();
            tokio::spawn(run_in_task(file, queue, delay));
            return Ok(ConnectionThread(Queue::Task(jobs)));
        }
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("sqlite".into())
            .spawn(move || {
                for job in queue {
                    job(&mut file);
                }
            })
            .map_err(|error| CentreError::Unavailable {
                message: format!("no thread for a connection: {error}"),
            })?;
        Ok(ConnectionThread(Queue::Thread(jobs)))
    }

    /// Whether a job may block.
    pub(super) fn may_block(&self) -> bool {
        matches!(self.0, Queue::Thread(_))
    }

    /// Runs a job and waits for its result. A job that began is finished even if
    /// nobody waits any more.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, CentreError> + Send + 'static,
    ) -> Result<T, CentreError> {
        let (result, wait) = oneshot::channel();
        self.start(job, result)?;
        wait.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Starts a job without waiting for its result.
    pub(super) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, CentreError> + Send + 'static,
        result: oneshot::Sender<Result<T, CentreError>>,
    ) -> Result<(), CentreError> {
        let job = move |file: &mut OpenFile| {
            // Nobody waits when the caller was cancelled.
            let _ = result.send(file.run(job));
        };
        let sent = match &self.0 {
            Queue::Thread(jobs) => jobs.send(Box::new(job)).is_ok(),
            Queue::Task(jobs) => jobs.send(Box::new(job)).is_ok(),
        };
        if sent { Ok(()) } else { Err(ended()) }
    }
}

async fn run_in_task(
    mut file: OpenFile,
    mut queue: UnboundedReceiver<Job>,
    delay: Arc<dyn Fn() -> Duration + Send + Sync>,
) {
    while let Some(job) = queue.recv().await {
        tokio::time::sleep(delay()).await;
        job(&mut file);
    }
}

/// The error of a thread that is gone.
pub(super) fn ended() -> CentreError {
    CentreError::Unavailable {
        message: "the connection's thread has ended".into(),
    }
}

/// Opens a connection as every part of the adapter uses it.
pub(super) fn open(path: &Path) -> Result<Connection, CentreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let unavailable = |error: rusqlite::Error| CentreError::Unavailable {
        message: format!("{}: {error}", path.display()),
    };
    let connection = Connection::open_with_flags(path, flags).map_err(unavailable)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(unavailable)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let configure = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => CentreError::Configuration {
            message: format!("{} is not an SQLite database", path.display()),
            hint: "check the path in `consolidated`".into(),
        },
        _ => failure("configuring the connection")(error),
    };
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA recursive_triggers = OFF;",
        )
        .map_err(configure)?;
    Ok(connection)
}
