//! The few connections that serve what needs no worker.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::connection::{DatabaseAddress, PostgresConnection};
use tidewater_centre::error::CentreError;

/// More than so many are never open at once.
const MAX_CONNECTIONS: usize = 4;

/// Connections that are opened when they are needed and kept.
pub(super) struct Pool {
    address: DatabaseAddress,
    permits: Semaphore,
    idle: Mutex<Vec<PostgresConnection>>,
}

/// A connection out of the pool; goes back when dropped.
pub(super) struct PooledConnection<'p> {
    pool: &'p Pool,
    /// `None` only while being dropped.
    connection: Option<PostgresConnection>,
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    /// A pool that has one connection already.
    pub(super) fn new(address: DatabaseAddress, first: PostgresConnection) -> Pool {
        Pool {
            address,
            permits: Semaphore::new(MAX_CONNECTIONS),
            idle: Mutex::new(vec![first]),
        }
    }

    /// A connection; waits while all are in use.
    pub(super) async fn get(&self) -> Result<PooledConnection<'_>, CentreError> {
        let permit = self.permits.acquire().await;
        let permit = permit.map_err(|_| CentreError::Internal {
            message: "the pool of connections is closed".into(),
        })?;
        let idle = loop {
            match self.idle().pop() {
                Some(connection) if connection.is_closed() => {}
                other => break other,
            }
        };
        let connection = match idle {
            Some(connection) => connection,
            None => PostgresConnection::open(&self.address).await?,
        };
        Ok(PooledConnection {
            pool: self,
            connection: Some(connection),
            _permit: permit,
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PostgresConnection>> {
        // Nothing that holds the lock can panic half-way.
        self.idle
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Deref for PooledConnection<'_> {
    type Target = PostgresConnection;

    fn deref(&self) -> &PostgresConnection {
        self.connection
            .as_ref()
            .expect("a connection that is lent is there until the drop")
    }
}

impl DerefMut for PooledConnection<'_> {
    fn deref_mut(&mut self) -> &mut PostgresConnection {
        self.connection
            .as_mut()
            .expect("a connection that is lent is there until the drop")
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        // What somebody gave up in the middle may have a transaction open.
        let usable = |it: &PostgresConnection| !it.is_closed() && !it.is_unfinished();
        if let Some(connection) = self.connection.take().filter(usable) {
            self.pool.idle().push(connection);
        }
    }
}
