//! The file of the database, and whether it still is the one that its path names.
//!
//! A connection goes on with the file that it opened, also when another one has been put
//! in its place: what it commits from then on, nobody will ever read. To restore a backup
//! while a server runs does that. So paths and files are compared before each job, and
//! once more after it has committed: what may have gone to a file that is no longer there
//! is a failure, and never acknowledged. The server's operator restarts the server; to
//! open the other file by itself could find it half copied.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::thread;
use crate::error::CentreError;

/// Which file a path names: its device and number.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// Elsewhere an open file cannot be removed or replaced.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<Identity> {
    None
}

/// The database's file as it was when the centre was opened.
#[derive(Clone)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    identity: Option<Identity>,
}

impl DatabaseFile {
    pub(super) fn at(path: PathBuf) -> Result<DatabaseFile, CentreError> {
        let metadata = std::fs::metadata(&path).map_err(|error| CentreError::Unavailable {
            message: format!("{}: {error}", path.display()),
        })?;
        Ok(DatabaseFile {
            identity: identity(&metadata),
            path,
        })
    }

    /// A connection to it.
    pub(super) fn open(&self) -> Result<OpenFile, CentreError> {
        let connection = thread::open(&self.path)?;
        let file = OpenFile {
            connection,
            file: self.clone(),
            log: None,
        };
        file.check()?;
        Ok(file)
    }

    fn replaced(&self, path: &Path) -> CentreError {
        CentreError::Unavailable {
            message: format!(
                "{} was removed or replaced while it was open; restart the server, and stop it \
                 before a restore",
                path.display()
            ),
        }
    }
}

/// A connection to the file.
pub(super) struct OpenFile {
    connection: Connection,
    file: DatabaseFile,
    /// The write-ahead log. It stays as long as a connection uses it.
    log: Option<Identity>,
}

impl OpenFile {
    /// Runs a job. It fails if it may have read or written a file that was replaced.
    pub(super) fn run<T>(
        &mut self,
        job: impl FnOnce(&mut Connection) -> Result<T, CentreError>,
    ) -> Result<T, CentreError> {
        self.check()?;
        let result = job(&mut self.connection)?;
        if self.log.is_none() {
            self.log = found(&self.log_path());
        }
        self.check()?;
        Ok(result)
    }

    fn check(&self) -> Result<(), CentreError> {
        let path = &self.file.path;
        if found(path) != self.file.identity {
            return Err(self.file.replaced(path));
        }
        if self.log.is_some() {
            let log = self.log_path();
            if found(&log) != self.log {
                return Err(self.file.replaced(&log));
            }
        }
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        let mut path = self.file.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }
}

impl Drop for OpenFile {
    /// The last connection that closes copies the log into the file and removes it, by its
    /// path: not what another database has there by now.
    fn drop(&mut self) {
        if self.check().is_err() {
            // What fails here leaves it to the closing, as before.
            let _ = self
                .connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

/// The file that is there now, if there is one.
fn found(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().as_ref().and_then(identity)
}
