//! The file of the database, and whether it still is the one that its path names.
//!
//! A connection goes on with the file that it opened, also when another one has been put
//! in its place: what it commits from then on, nobody will ever read. To restore a backup
//! while a server runs does that. So paths and files are compared before each job, and
//! once more after it has committed: what may have gone to a file that is no longer there
//! is a failure, and never acknowledged. The server's operator restarts the server; to
//! open the other file by itself could find it half copied.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags};

use super::connection::SqliteConnection;
use super::environment::{DeploymentCommits, FileIdentity, SqliteEnvironment};
use super::failure;
use tidewater_centre::engine::thread::ThreadOwner;
use tidewater_centre::error::CentreError;

/// How long a statement waits for another writer: a remote that is told to come back later does no
/// harm, one worker after the other that waits does.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for the prepared statements of some publications.
const STATEMENTS: usize = 512;

/// The database's files as they were when the centre was opened.
#[derive(Clone)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    identity: Option<FileIdentity>,
    /// The write-ahead log, once a connection of ours uses it: it stays for as long.
    log: Arc<OnceLock<FileIdentity>>,
    environment: SqliteEnvironment,
}

impl DatabaseFile {
    pub(super) fn at(
        path: PathBuf,
        environment: SqliteEnvironment,
    ) -> Result<DatabaseFile, CentreError> {
        let identity = (environment.files)(&path).map_err(|error| CentreError::Unavailable {
            message: format!("{}: {error}", path.display()),
        })?;
        Ok(DatabaseFile {
            identity,
            path,
            log: Arc::default(),
            environment,
        })
    }

    /// Where its connections live.
    pub(super) fn environment(&self) -> &SqliteEnvironment {
        &self.environment
    }

    /// A connection to it.
    pub(super) fn open(&self) -> Result<OpenFile, CentreError> {
        self.check()?;
        let commits = self.environment.deployment_commits.clone();
        let connection = open(&self.path, commits)?;
        self.check()?;
        (self.environment.opened)(&connection);
        Ok(OpenFile {
            connection,
            file: self.clone(),
        })
    }

    /// Whether the paths still name the same files.
    fn check(&self) -> Result<(), CentreError> {
        if self.found(&self.path) != self.identity {
            return Err(replaced(&self.path));
        }
        let log = self.log_path();
        match self.log.get() {
            Some(known) if self.found(&log) != Some(*known) => Err(replaced(&log)),
            _ => Ok(()),
        }
    }

    /// Remembers the write-ahead log after its first use.
    fn remember_log(&self) {
        if self.log.get().is_none()
            && let Some(log) = self.found(&self.log_path())
        {
            self.log.get_or_init(|| log);
        }
    }

    /// The file that is there now, if there is one.
    fn found(&self, path: &Path) -> Option<FileIdentity> {
        (self.environment.files)(path).ok().flatten()
    }

    fn log_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }
}

fn replaced(path: &Path) -> CentreError {
    CentreError::Unavailable {
        message: format!(
            "{} was removed or replaced while it was open; restart the server, and stop it \
             before a restore",
            path.display()
        ),
    }
}

/// A connection to the file.
pub(super) struct OpenFile {
    connection: SqliteConnection,
    file: DatabaseFile,
}

impl ThreadOwner for OpenFile {
    type Connection = SqliteConnection;

    /// It fails if the job may have read or written a file that was replaced.
    fn run<T>(
        &mut self,
        job: impl FnOnce(&mut SqliteConnection) -> Result<T, CentreError>,
    ) -> Result<T, CentreError> {
        self.file.check()?;
        let result = job(&mut self.connection);
        if !self.connection.is_autocommit() {
            // The error that left the transaction open is told.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        let result = result?;
        self.file.remember_log();
        self.file.check()?;
        Ok(result)
    }
}

impl Drop for OpenFile {
    /// The last connection that closes copies the log into the file and removes it, by its
    /// path: not what another database has there by now.
    fn drop(&mut self) {
        if self.file.check().is_err() {
            // What fails here leaves it to the closing, as before.
            let _ = self
                .connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

/// Opens a connection as every part of the adapter uses it.
fn open(path: &Path, commits: DeploymentCommits) -> Result<SqliteConnection, CentreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let unavailable = |error: rusqlite::Error| CentreError::Unavailable {
        message: format!("{}: {error}", path.display()),
    };
    let connection = rusqlite::Connection::open_with_flags(path, flags);
    let connection = SqliteConnection::new(connection.map_err(unavailable)?, commits);
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
