//! What the adapter takes from outside, so that a simulator can run it in a world of its
//! own: threads, randomness, and which file a path names. Where the file is, and what it is
//! made of, SQLite decides.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::Connection;

pub use tidewater_centre::engine::thread::Jobs;
use tidewater_centre::error::CentreError;

/// Everything that the adapter for SQLite takes from outside.
#[derive(Clone)]
pub struct SqliteEnvironment {
    /// Where the jobs of a connection run.
    pub jobs: Jobs,
    /// Fills bytes that nobody can guess.
    pub randomness: Randomness,
    /// Which file a path names now.
    pub files: Files,
    /// Sees every connection before its first job.
    pub opened: Arc<dyn Fn(&Connection) + Send + Sync>,
    /// How the statements of a deployment are committed.
    pub deployment_commits: DeploymentCommits,
}

/// How the statements of a deployment are committed.
#[derive(Clone)]
pub enum DeploymentCommits {
    /// All at once.
    Together,
    /// Each by itself, as where DDL is not transactional; nobody else may deploy meanwhile. Asked before
    /// each commit, this says false where the process dies. So SQLite proves what other databases
    /// rely on.
    Each(Arc<dyn Fn() -> bool + Send + Sync>),
}

/// Fills bytes that nobody can guess; false if it has failed.
pub type Randomness = Arc<dyn Fn(&mut [u8]) -> bool + Send + Sync>;

/// Which file a path names: its device and number; `None` where files have no such numbers,
/// an error if there is none.
pub type Files = Arc<dyn Fn(&Path) -> io::Result<Option<FileIdentity>> + Send + Sync>;

/// A file's device and number.
pub type FileIdentity = (u64, u64);

impl SqliteEnvironment {
    /// The operating system's.
    pub fn real() -> SqliteEnvironment {
        SqliteEnvironment {
            jobs: Jobs::Threads,
            randomness: Arc::new(|bytes| SystemRandom::new().fill(bytes).is_ok()),
            files: Arc::new(|path| std::fs::metadata(path).map(|metadata| identity(&metadata))),
            opened: Arc::new(|_| {}),
            deployment_commits: DeploymentCommits::Together,
        }
    }

    /// Fills bytes that nobody can guess.
    pub(super) fn random(&self, bytes: &mut [u8]) -> Result<(), CentreError> {
        if (self.randomness)(bytes) {
            Ok(())
        } else {
            Err(CentreError::Internal {
                message: "the source of random bytes has failed".into(),
            })
        }
    }
}

#[cfg(unix)]
fn identity(metadata: &std::fs::Metadata) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// Elsewhere an open file cannot be removed or replaced.
#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> Option<FileIdentity> {
    None
}
