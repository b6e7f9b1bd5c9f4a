//! The embedded consolidated database: one SQLite file, which applications read and
//! write with any driver at the same time.
//!
//! Each worker owns a connection on a thread of its own ([`tidewater_centre::engine::thread`]). Writers are
//! serialized by SQLite itself, over all processes; readers have snapshots of their
//! own (write-ahead log). What changes is noticed by triggers ([`triggers`]) that
//! append to change logs; [`watermark`] says why nothing is skipped.
//!
//! What this adapter cannot see: changes made with triggers dropped or under
//! `PRAGMA writable_schema`; rows whose primary key holds NULL are not synced; keys
//! and partition values must be written in canonical form (see [`values`]).

mod arguments;
mod calls;
mod catalog;
mod connection;
mod database;
mod description;
mod dialect;
mod download;
mod environment;
mod file;
mod follow;
mod inspect;
mod numbers;
mod prune;
mod publication;
mod recorded_log;
mod route_triggers;
mod rows;
mod scope_sources;
mod served;
mod state;
mod tracking;
mod triggers;
mod upstream;
mod values;
mod watermark;

use std::path::PathBuf;
use std::sync::Arc;

use file::{DatabaseFile, OpenFile};
use follow::Follower;
use publication::SqliteTables;
use rusqlite::ErrorCode;
use watermark::Marker;

use self::connection::SqliteConnection;
use tidewater_centre::centre::Centre;
use tidewater_centre::engine::centre::EngineCentre;
use tidewater_centre::engine::served_publications::CentreShared;
use tidewater_centre::engine::thread::ConnectionThread;
use tidewater_centre::error::CentreError;

pub use environment::{
    DeploymentCommits, FileIdentity, Files, Jobs, Randomness, SqliteEnvironment,
};

/// A SQLite file as a consolidated database.
struct SqliteCentre {
    file: DatabaseFile,
    admin: ConnectionThread<OpenFile>,
    marker: Marker,
    served: SharedServed,
    follower: Follower,
}

/// What is served now; workers take it, refreshed, at the beginning of each job.
type SharedServed = Arc<CentreShared<SqliteTables>>;

/// Opens the file at `path`, which must exist.
pub async fn connect(path: &str) -> Result<Arc<dyn Centre>, CentreError> {
    let path = PathBuf::from(path);
    if !path.is_file() {
        return Err(CentreError::Configuration {
            message: format!("there is no database file {}", path.display()),
            hint: "create it together with its tables first, for example with sqlite3".into(),
        });
    }
    connect_in(path, SqliteEnvironment::real()).await
}

/// Opens the file at `path` in an environment of its own.
///
/// # Errors
/// SQLite cannot open it.
pub async fn connect_in(
    path: PathBuf,
    environment: SqliteEnvironment,
) -> Result<Arc<dyn Centre>, CentreError> {
    let inside = environment.clone();
    let open = move || {
        let file = DatabaseFile::at(path, inside)?;
        let admin = ConnectionThread::start(file.open()?, &file.environment().jobs)?;
        let marker = Marker::start(&file)?;
        Ok((file, admin, marker))
    };
    let (file, admin, marker) = environment.jobs.blocking(open).await?;
    admin
        .run(|connection| {
            let looking = failure("opening the file");
            connection
                .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
                .map_err(looking)?;
            // A copy that a tool made of a deployed file may have another journal: there each
            // download would wait for its own mark.
            let is_deployed = connection
                .prepare("SELECT 1 FROM sqlite_schema WHERE name = 'tidewater_centre_meta'")
                .and_then(|mut found| found.exists([]))
                .map_err(looking)?;
            match is_deployed {
                true => tracking::use_write_ahead_log(connection, false).map(drop),
                false => Ok(()),
            }
        })
        .await?;
    Ok(Arc::new(EngineCentre(SqliteCentre {
        marker,
        served: Arc::new(CentreShared::new(move |bytes| environment.random(bytes))),
        admin,
        follower: Follower::default(),
        file,
    })))
}

/// A name as an SQL identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Turns an error of the driver into ours, saying what was being done.
fn failure(what: &str) -> impl Fn(rusqlite::Error) -> CentreError + Copy + '_ {
    move |error| {
        let (retry, code) = match &error {
            rusqlite::Error::SqliteFailure(failure, _)
                if failure.extended_code == rusqlite::ffi::SQLITE_BUSY =>
            {
                return CentreError::Locked {
                    message: format!("{what}: another connection holds the file locked"),
                };
            }
            // Somebody makes room, or mends the disk.
            rusqlite::Error::SqliteFailure(failure, _)
                if matches!(
                    failure.code,
                    ErrorCode::DiskFull | ErrorCode::SystemIoFailure
                ) =>
            {
                return CentreError::Unavailable {
                    message: format!("{what}: {error}"),
                };
            }
            rusqlite::Error::SqliteFailure(failure, _) => (
                matches!(
                    failure.code,
                    ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked
                ),
                Some(failure.extended_code.to_string()),
            ),
            _ => (false, None),
        };
        let message = error.to_string();
        // What `deploy` makes is not there.
        if message.starts_with("no such table: tidewater_centre_") {
            return CentreError::NotDeployed {
                message: format!("{what}: {message}"),
            };
        }
        CentreError::StatementFailed {
            what: what.into(),
            message,
            sqlstate: code,
            retry,
        }
    }
}

/// Whether a foreign key is violated now that would only be noticed at the commit.
/// No SQL tells that without reading whole tables; SQLite keeps a counter.
#[expect(unsafe_code, reason = "rusqlite does not offer sqlite3_db_status")]
fn deferred_violations(connection: &SqliteConnection) -> Result<bool, CentreError> {
    let (mut violations, mut highest) = (0, 0);
    // SAFETY: the handle is that of an open connection, which this thread alone uses
    // while it holds the reference; SQLite writes to the two integers and keeps no
    // pointer to them.
    let result = unsafe {
        rusqlite::ffi::sqlite3_db_status(
            connection.handle(),
            rusqlite::ffi::SQLITE_DBSTATUS_DEFERRED_FKS,
            &mut violations,
            &mut highest,
            0,
        )
    };
    if result == rusqlite::ffi::SQLITE_OK {
        Ok(violations != 0)
    } else {
        Err(CentreError::Internal {
            message: format!("sqlite3_db_status failed with {result}"),
        })
    }
}

/// A text as an SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
