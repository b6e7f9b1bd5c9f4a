//! A connection and the thread that owns it: SQLite blocks, async code must not.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

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
pub(super) struct ConnectionThread {
    jobs: mpsc::Sender<Job>,
}

impl ConnectionThread {
    /// Opens a connection to an existing database.
    pub(super) fn open(file: &DatabaseFile) -> Result<ConnectionThread, CentreError> {
        let mut file = file.open()?;
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
        Ok(ConnectionThread { jobs })
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
        self.jobs.send(Box::new(job)).map_err(|_| ended())
    }
}

/// Runs what may wait for the disk off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CentreError> + Send + 'static,
) -> Result<T, CentreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ended()))
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
    let configure = failure("configuring the connection");
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA recursive_triggers = OFF;",
        )
        .map_err(configure)?;
    Ok(connection)
}
