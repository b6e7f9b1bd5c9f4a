//! The connections of a lane that nobody works with, and those that somebody has taken.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::connector::{Connection, Connector};
use crate::script_sessions::{HeldSession, ScriptUse};

/// The connections of a lane that nobody works with: no more are opened than work at the same time.
#[derive(Clone)]
pub struct ConnectionPool {
    connector: Arc<Connector>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl ConnectionPool {
    /// A pool without connections: they are opened as they are needed.
    pub(crate) fn new(connector: &Arc<Connector>) -> ConnectionPool {
        ConnectionPool {
            connector: connector.clone(),
            idle: Arc::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was last used for this version of scripts. If there is only one that was used for
    /// another, it is that in whose place the engine has a new one come.
    fn take_of(&self, version: Option<&str>) -> Connection {
        let mut idle = self.idle();
        let fitting = idle.iter().rposition(|it| it.version.as_deref() == version);
        let taken = match fitting {
            Some(index) => Some(idle.remove(index)),
            None => (!idle.is_empty()).then(|| idle.remove(0)),
        };
        drop(idle);
        let mut connection = taken.unwrap_or_else(|| Connection::new(&self.connector));
        connection.version = version.map(str::to_owned);
        connection
    }

    /// The one that was used last: its caches are warm. It goes back when it is dropped.
    pub fn take(&self) -> TakenConnection<'_> {
        TakenConnection {
            connection: Some(self.take_of(None)),
            place: ConnectionHome::Idle(self),
        }
    }

    /// A connection for something that is done by scripts; it goes back when it is dropped.
    pub async fn take_for(&self, scripts: &ScriptUse) -> TakenConnection<'_> {
        let Some(session) = &scripts.session else {
            return TakenConnection {
                connection: Some(self.take_of(scripts.version.as_deref())),
                place: ConnectionHome::Idle(self),
            };
        };
        let mut place = session.lock().await;
        let connection = place.take();
        let new = || Connection::new(session.connector());
        TakenConnection {
            connection: Some(connection.unwrap_or_else(new)),
            place: ConnectionHome::Session {
                place,
                _held: session.clone(),
            },
        }
    }

    /// Takes all, to end them.
    pub(crate) fn take_all(&self) -> Vec<Connection> {
        std::mem::take(&mut *self.idle())
    }
}

/// A connection that somebody works with.
pub struct TakenConnection<'a> {
    /// It is there until this is dropped.
    connection: Option<Connection>,
    place: ConnectionHome<'a>,
}

/// Where a connection goes back to.
enum ConnectionHome<'a> {
    Idle(&'a ConnectionPool),
    Session {
        place: OwnedMutexGuard<Option<Connection>>,
        /// It goes after the guard, and then finds the connection in its place.
        _held: HeldSession,
    },
}

impl Deref for TakenConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
            .as_ref()
            .expect("it is there until the drop")
    }
}

impl DerefMut for TakenConnection<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection
            .as_mut()
            .expect("it is there until the drop")
    }
}

impl Drop for TakenConnection<'_> {
    fn drop(&mut self) {
        // What a worker that panics has left in its connection, nobody knows: it is not used again.
        let connection = self.connection.take().filter(|_| !std::thread::panicking());
        match &mut self.place {
            ConnectionHome::Idle(pool) => pool.idle().extend(connection),
            ConnectionHome::Session { place, .. } => **place = connection,
        }
    }
}
