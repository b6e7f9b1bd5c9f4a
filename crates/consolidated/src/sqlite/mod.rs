//! The embedded consolidated database: one SQLite file, which applications read and
//! write with any driver at the same time.
//!
//! Each worker owns a connection on a thread of its own ([`thread`]). Writers are
//! serialized by SQLite itself, over all processes; readers have snapshots of their
//! own (write-ahead log). What changes is noticed by triggers ([`triggers`]) that
//! append to change logs; [`watermark`] says why nothing is skipped.
//!
//! What this adapter cannot see: changes made with triggers dropped or under
//! `PRAGMA writable_schema`; rows whose primary key holds NULL are not synced; keys
//! and partition values must be written in canonical form (see [`types`]).

mod admin;
mod apply;
mod compile;
mod deploy;
mod download;
mod environment;
mod file;
mod given_back;
mod live;
mod row;
mod row_error;
mod scope;
mod state;
mod thread;
mod triggers;
mod types;
mod upload;
mod watermark;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rusqlite::{Connection, ErrorCode};

use tidewater_protocol::{PublicationSchema, RemoteId};

use crate::centre::{Centre, CentreResult, Worker};
use crate::error::CentreError;
use crate::evolution::Mode;
use crate::publication::{DeployReport, LiveTable, PublicationSpec};
use crate::records::{
    CentreStatus, ConflictRecord, Pruned, RefusedRecord, RemoteRecord, Retention, SigningKey,
    UserImport, UserRecord,
};

pub use environment::{FileIdentity, Files, Jobs, Randomness, SqliteEnvironment};

use compile::Publication;
use deploy::Served;
use file::DatabaseFile;
use thread::ConnectionThread;
use watermark::Marker;

/// A SQLite file as a consolidated database.
pub(crate) struct SqliteCentre {
    file: DatabaseFile,
    admin: ConnectionThread,
    marker: Marker,
    served: SharedServed,
}

/// What is served now; workers take it, refreshed, at the beginning of each job.
type SharedServed = Arc<RwLock<Arc<Served>>>;

/// Opens the file at `path`, which must exist.
pub(crate) async fn connect(path: &str) -> Result<Arc<dyn Centre>, CentreError> {
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
        let admin = ConnectionThread::open(&file)?;
        let marker = Marker::start(&file)?;
        Ok((file, admin, marker))
    };
    let (file, admin, marker) = environment.blocking(open).await?;
    admin
        .run(|connection| {
            let looking = failure("opening the file");
            connection
                .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
                .map_err(looking)
        })
        .await?;
    Ok(Arc::new(SqliteCentre {
        marker,
        served: Arc::new(RwLock::new(Arc::new(Served::default()))),
        admin,
        file,
    }))
}

impl SqliteCentre {
    fn run<'a, T: Send + 'static>(
        &'a self,
        job: impl FnOnce(&mut Connection) -> Result<T, CentreError> + Send + 'static,
    ) -> CentreResult<'a, T> {
        Box::pin(self.admin.run(job))
    }
}

impl Centre for SqliteCentre {
    fn live_tables(&self) -> CentreResult<'_, Vec<LiveTable>> {
        self.run(|connection| live::listed(connection))
    }

    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        dry_run: bool,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        let specs = publications.to_vec();
        let random = self.file.environment().random();
        self.run(move |connection| {
            let mode = Mode::of(dry_run);
            deploy::deploy(connection, &specs, mode, now_ms, Some(random?))
                .map(|(report, _)| report)
        })
    }

    fn deploy_refusing_pending<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport> {
        let specs = publications.to_vec();
        let random = self.file.environment().random();
        self.run(move |connection| {
            let mode = Mode::RefusePending;
            deploy::deploy(connection, &specs, mode, now_ms, Some(random?))
                .map(|(report, _)| report)
        })
    }

    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport> {
        self.run(move |connection| deploy::undeploy(connection, dry_run))
    }

    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>> {
        let specs = publications.to_vec();
        let shared = self.served.clone();
        self.run(move |connection| {
            let served = Arc::new(deploy::load(connection, &specs)?);
            let publications = served.publications.iter();
            let schemas = publications
                .map(|publication| Arc::new(publication.schema.clone()))
                .collect();
            *shared
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner()) = served;
            Ok(schemas)
        })
    }

    fn worker(&self) -> CentreResult<'_, Box<dyn Worker>> {
        let (file, marker, served) = (self.file.clone(), self.marker.clone(), self.served.clone());
        Box::pin(self.file.environment().blocking(move || {
            let worker = worker::SqliteWorker::open(&file, marker, served)?;
            Ok(Box::new(worker) as Box<dyn Worker>)
        }))
    }

    fn signing_keys(&self) -> CentreResult<'_, Vec<SigningKey>> {
        self.run(|connection| admin::signing_keys(connection))
    }

    fn add_signing_key<'a>(&'a self, key: &'a SigningKey) -> CentreResult<'a, bool> {
        let key = key.clone();
        self.run(move |connection| admin::add_signing_key(connection, &key))
    }

    fn retire_signing_key(&self, id: u32) -> CentreResult<'_, bool> {
        self.run(move |connection| admin::retire_signing_key(connection, id))
    }

    fn import_users<'a>(
        &'a self,
        users: &'a [UserRecord],
        update: bool,
    ) -> CentreResult<'a, UserImport> {
        let users = users.to_vec();
        self.run(move |connection| admin::import_users(connection, &users, update))
    }

    fn add_user<'a>(&'a self, user: &'a UserRecord) -> CentreResult<'a, bool> {
        let user = user.clone();
        self.run(move |connection| admin::add_user(connection, &user))
    }

    fn set_password<'a>(&'a self, name: &'a str, hash: &'a str) -> CentreResult<'a, bool> {
        let (name, hash) = (name.to_owned(), hash.to_owned());
        self.run(move |connection| admin::set_password(connection, &name, &hash))
    }

    fn set_disabled<'a>(&'a self, name: &'a str, disabled: bool) -> CentreResult<'a, bool> {
        let name = name.to_owned();
        self.run(move |connection| admin::set_disabled(connection, &name, disabled))
    }

    fn remove_user<'a>(&'a self, name: &'a str) -> CentreResult<'a, bool> {
        let name = name.to_owned();
        self.run(move |connection| admin::remove_user(connection, &name))
    }

    fn users(&self) -> CentreResult<'_, Vec<UserRecord>> {
        self.run(|connection| admin::users(connection))
    }

    fn remotes(&self) -> CentreResult<'_, Vec<RemoteRecord>> {
        self.run(|connection| admin::remotes(connection))
    }

    fn revoke_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.run(move |connection| admin::set_revoked(connection, id, true))
    }

    fn restore_remote(&self, id: RemoteId) -> CentreResult<'_, bool> {
        self.run(move |connection| admin::set_revoked(connection, id, false))
    }

    fn conflicts(&self) -> CentreResult<'_, Vec<ConflictRecord>> {
        self.run(|connection| admin::conflicts(connection))
    }

    fn newest_conflicts(&self, limit: u64) -> CentreResult<'_, Vec<ConflictRecord>> {
        self.run(move |connection| admin::newest_conflicts(connection, limit))
    }

    fn refused(&self) -> CentreResult<'_, Vec<RefusedRecord>> {
        self.run(|connection| admin::refused(connection))
    }

    fn status(&self) -> CentreResult<'_, CentreStatus> {
        self.run(|connection| admin::status(connection))
    }

    fn prune(&self, retention: Retention, now_ms: i64) -> CentreResult<'_, Pruned> {
        // On a connection of its own: other administration does not wait for it.
        Box::pin(async move {
            let file = self.file.clone();
            let mark = file.environment().random()?;
            self.file
                .environment()
                .blocking(move || {
                    let prune = |connection: &mut Connection| {
                        admin::prune(connection, retention, now_ms, mark)
                    };
                    file.open()?.run(prune)
                })
                .await
        })
    }
}

impl Served {
    /// A publication by its name.
    fn publication(&self, name: &str) -> Result<&Publication, CentreError> {
        let mut publications = self.publications.iter();
        publications
            .find(|publication| publication.schema.name == name)
            .ok_or_else(|| CentreError::Peer {
                message: format!("a request for the publication {name:?}, which is not served"),
                code: tidewater_protocol::Code::UnknownPublication,
            })
    }
}

/// A name as an SQL identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Turns an error of the driver into ours, saying what was being done.
fn failure(what: &'static str) -> impl Fn(rusqlite::Error) -> CentreError + Copy {
    move |error| {
        let (retry, code) = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => (
                matches!(
                    failure.code,
                    ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked
                ),
                Some(failure.extended_code.to_string()),
            ),
            _ => (false, None),
        };
        CentreError::Refused {
            what: what.into(),
            message: error.to_string(),
            sqlstate: code,
            retry,
        }
    }
}

/// Whether a foreign key is violated now that would only be noticed at the commit.
/// No SQL tells that without reading whole tables; SQLite keeps a counter.
#[expect(unsafe_code, reason = "rusqlite does not offer sqlite3_db_status")]
fn deferred_violations(connection: &Connection) -> Result<bool, CentreError> {
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

/// The path of a URL `sqlite:path`.
pub(crate) fn path_of(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty() && Path::new(path).file_name().is_some()).then_some(path)
}
