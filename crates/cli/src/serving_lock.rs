//! Whether a server serves an SQLite file: an advisory lock on a file beside it, which the server
//! holds for as long as it runs.
//!
//! PostgreSQL tells by its sessions; see [`tidewater_centre::Centre::other_sessions`].

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::PathBuf;

/// What the lock's file is called, behind the name of the database.
const SUFFIX: &str = "-serving";

/// Holds the lock until it is dropped. Several servers may.
#[derive(Debug)]
pub(crate) struct ServingLock {
    _file: File,
}

impl ServingLock {
    /// Takes the lock for a server of the database; `None` if it is no SQLite file, or if no lock can
    /// be had, which keeps no server from its work.
    pub(crate) fn hold(consolidated: &str) -> Option<ServingLock> {
        let path = path(consolidated)?;
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        let held = options.open(&path).and_then(|file| {
            file.lock_shared()?;
            Ok(ServingLock { _file: file })
        });
        held.inspect_err(|error| {
            let path = path.display().to_string();
            tracing::warn!(path, %error, "tidewater undeploy will not notice this server");
        })
        .ok()
    }

    /// Whether a server holds the lock.
    pub(crate) fn is_held(consolidated: &str) -> bool {
        let file = path(consolidated).and_then(|path| File::open(path).ok());
        file.is_some_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Removes the lock's file. Nobody may serve by now.
    pub(crate) fn remove(consolidated: &str) {
        if let Some(path) = path(consolidated) {
            // It may never have been there.
            let _ = fs::remove_file(path);
        }
    }
}

fn path(consolidated: &str) -> Option<PathBuf> {
    let path = consolidated.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    Some(PathBuf::from(format!("{path}{SUFFIX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_noticed_as_long_as_it_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        assert!(!ServingLock::is_held(&url));
        let first = ServingLock::hold(&url).unwrap();
        let second = ServingLock::hold(&url).unwrap();
        drop(first);
        assert!(ServingLock::is_held(&url));
        drop(second);
        assert!(!ServingLock::is_held(&url));
        ServingLock::remove(&url);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(ServingLock::hold("postgres://127.0.0.1/shop").is_none());
    }
}
