//! What the adapter takes from outside, so that a simulator can run it in a world of its
//! own: threads and randomness. Where the file is, and what it is made of, SQLite decides.

use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::Connection;

use crate::error::CentreError;

/// Everything that the adapter for SQLite takes from outside.
#[derive(Clone)]
pub struct SqliteEnvironment {
    /// Where the jobs of a connection run.
    pub jobs: Jobs,
    /// Fills bytes that nobody can guess.
    pub randomness: Randomness,
    /// Sees every connection before its first job.
    pub opened: Arc<dyn Fn(&Connection) + Send + Sync>,
}

/// Fills bytes that nobody can guess; false if it has failed.
pub type Randomness = Arc<dyn Fn(&mut [u8]) -> bool + Send + Sync>;

/// Where the jobs of a connection run.
#[derive(Clone)]
pub enum Jobs {
    /// On a thread of its own: SQLite blocks, async code must not.
    Threads,
    /// In an async task of its own, for simulations: one thread for everything, and a job
    /// begins so long after it was its turn.
    Tasks(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl SqliteEnvironment {
    /// The operating system's.
    pub fn real() -> SqliteEnvironment {
        SqliteEnvironment {
            jobs: Jobs::Threads,
            randomness: Arc::new(|bytes| SystemRandom::new().fill(bytes).is_ok()),
            opened: Arc::new(|_| {}),
        }
    }

    /// Random bytes of a fixed number.
    pub(super) fn random<const N: usize>(&self) -> Result<[u8; N], CentreError> {
        let mut bytes = [0; N];
        if (self.randomness)(&mut bytes) {
            Ok(bytes)
        } else {
            Err(CentreError::Internal {
                message: "the source of random bytes has failed".into(),
            })
        }
    }

    /// Runs what may wait for the disk off the async threads.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CentreError> + Send + 'static,
    ) -> Result<T, CentreError> {
        match &self.jobs {
            Jobs::Threads => {
                let done = tokio::task::spawn_blocking(work).await;
                done.unwrap_or_else(|_| Err(super::thread::ended()))
            }
            Jobs::Tasks(delay) => {
                tokio::time::sleep(delay()).await;
                work()
            }
        }
    }
}
