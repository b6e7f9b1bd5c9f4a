//! Whose connection of the database a sync with scripts has.
//!
//! What scripts leave in the session of a connection (a setting, a temporary table) is there for
//! the later scripts of their sync. So such a sync keeps to one connection: without a break while
//! it is the server's turn, and, as long as nobody else is short of one, while it waits for its
//! remote. A sync whose connection was taken meanwhile goes on with another one, on which the
//! engine runs what stands at its beginning for the session once more. So a slow remote holds
//! nothing that others wait for.
//!
//! That no version sees what another one leaves is the engine's affair, which replaces a
//! connection that has served another; here is only who gets which, so that this is seldom needed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};

use crate::connector::{Connection, Connector};

/// So many connections syncs with scripts have at most.
pub const MOST_SESSIONS: usize = 16;

/// The connections of syncs that keep to one.
pub struct SessionPool {
    connector: Arc<Connector>,
    most: usize,
    state: Mutex<PoolState>,
    freed: Notify,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    /// Those that nobody works with, the one that was given back last at the end.
    idle: Vec<IdleSession>,
    held: usize,
}

struct IdleSession {
    connection: Connection,
    version: String,
    /// The sync that may come back for it.
    sync: Weak<SyncOfSession>,
}

impl IdleSession {
    fn is_left(&self) -> bool {
        self.sync.strong_count() == 0
    }
}

/// Tells one sync from another.
struct SyncOfSession;

/// The session of one sync: it has the same connection each time that it holds one, if it can.
pub struct ScriptSession {
    pool: Arc<SessionPool>,
    version: String,
    sync: Arc<SyncOfSession>,
    /// What it held last, which may still be on its way back.
    held: Mutex<Weak<HeldConnection>>,
}

/// The connection of a sync while it is the server's turn. It goes back when the last who holds it
/// drops it.
#[derive(Clone)]
pub struct HeldSession(Arc<HeldConnection>);

struct HeldConnection {
    pool: Arc<SessionPool>,
    version: String,
    sync: Weak<SyncOfSession>,
    connection: Arc<AsyncMutex<Option<Connection>>>,
}

/// By which scripts something is done on a connection.
#[derive(Clone, Default)]
pub struct ScriptUse {
    /// The version whose session it needs; none if it needs none.
    pub version: Option<String>,
    /// The connection that its sync keeps to, if it does.
    pub session: Option<HeldSession>,
}

impl SessionPool {
    /// At most so many connections.
    pub fn new(connector: &Arc<Connector>, most: usize) -> Arc<SessionPool> {
        Arc::new(SessionPool {
            connector: connector.clone(),
            most,
            state: Mutex::default(),
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session for a sync, of a script version.
    pub fn session(self: &Arc<SessionPool>, version: String) -> ScriptSession {
        ScriptSession {
            pool: self.clone(),
            version,
            sync: Arc::new(SyncOfSession),
            held: Mutex::default(),
        }
    }

    /// How many syncs wait for a connection.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes the connections that nobody works with, to end them.
    pub fn take_idle(&self) -> Vec<Connection> {
        let idle = std::mem::take(&mut self.state().idle);
        idle.into_iter().map(|it| it.connection).collect()
    }

    /// A connection for a sync: its own; one of its version that no sync will come back for; a new
    /// one; or, when there are as many as may be, another's.
    fn try_take(&self, version: &str, sync: &Arc<SyncOfSession>) -> Option<Connection> {
        let mut state = self.state();
        let own = Arc::downgrade(sync);
        let idle = &state.idle;
        let own = idle.iter().position(|it| it.sync.ptr_eq(&own));
        let of_version = |it: &IdleSession| it.is_left() && it.version == version;
        let found = own.or_else(|| idle.iter().rposition(of_version));
        let is_full = idle.len() + state.held >= self.most;
        let found = match found {
            None if is_full => {
                let left = idle.iter().position(IdleSession::is_left);
                left.or_else(|| (!idle.is_empty()).then_some(0))
            }
            found => found,
        };
        let connection = match found {
            Some(index) => state.idle.remove(index).connection,
            None if is_full => return None,
            None => Connection::new(&self.connector),
        };
        state.held += 1;
        Some(connection)
    }
}

impl ScriptSession {
    /// The sync's connection, when there is one for it.
    pub async fn hold(&self) -> HeldSession {
        if let Some(held) = self.last_held().upgrade() {
            return HeldSession(held);
        }
        let mut waits = None;
        let connection = loop {
            let freed = self.pool.freed.notified();
            if let Some(connection) = self.pool.try_take(&self.version, &self.sync) {
                break connection;
            }
            waits.get_or_insert_with(|| Waits::new(&self.pool.waiting));
            freed.await;
        };
        let held = Arc::new(HeldConnection {
            pool: self.pool.clone(),
            version: self.version.clone(),
            sync: Arc::downgrade(&self.sync),
            connection: Arc::new(AsyncMutex::new(Some(connection))),
        });
        *self.last_held() = Arc::downgrade(&held);
        HeldSession(held)
    }

    fn last_held(&self) -> MutexGuard<'_, Weak<HeldConnection>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldSession {
    /// The connection, when whoever worked with it before is done.
    pub async fn lock(&self) -> OwnedMutexGuard<Option<Connection>> {
        self.0.connection.clone().lock_owned().await
    }

    /// Where connections come from.
    pub fn connector(&self) -> &Arc<Connector> {
        &self.0.pool.connector
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        let connection = self.connection.try_lock().ok().and_then(|mut it| it.take());
        let mut state = self.pool.state();
        state.held -= 1;
        if let Some(connection) = connection {
            state.idle.push(IdleSession {
                connection,
                version: std::mem::take(&mut self.version),
                sync: self.sync.clone(),
            });
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

impl ScriptUse {
    /// Whether both can be done on one connection, one after the other, and in one transaction.
    pub fn goes_with(&self, other: &ScriptUse) -> bool {
        self.session.is_none() && other.session.is_none() && self.version == other.version
    }
}

/// Somebody who waits, for as long as this lives.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(count: &AtomicUsize) -> Waits<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewater_centre_sqlite::connect;
    use tokio::time::timeout;

    use super::*;

    /// Leaves a mark on a session's connection; gives the one that was there.
    async fn mark(session: &ScriptSession, mark: &str) -> Option<String> {
        let held = session.hold().await;
        let mut connection = held.lock().await;
        let connection = connection.as_mut().expect("it is in its place");
        connection.version.replace(mark.to_owned())
    }

    #[tokio::test]
    async fn a_sync_has_its_connection_again_unless_another_is_short_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("centre.db");
        std::fs::write(&path, "").unwrap();
        let connector = Connector::new(connect(path.to_str().unwrap()).await.unwrap());
        let pool = SessionPool::new(&connector, 2);
        let [ada, bob, eve] = ["v", "v", "w"].map(|it| pool.session(it.into()));
        assert_eq!(mark(&ada, "ada").await, None);
        assert_eq!(
            mark(&bob, "bob").await,
            None,
            "hers is not taken while there are others"
        );
        assert_eq!(mark(&ada, "ada").await.as_deref(), Some("ada"));
        assert_eq!(mark(&bob, "bob").await.as_deref(), Some("bob"));
        // Of those who wait for their remotes, the one who has waited longest gives way.
        assert_eq!(mark(&eve, "eve").await.as_deref(), Some("ada"));
        assert_eq!(mark(&bob, "bob").await.as_deref(), Some("bob"));
        // What is left over comes before what somebody may come back for.
        drop(eve);
        assert_eq!(mark(&ada, "ada").await.as_deref(), Some("eve"));
        // Nobody gives way whose turn it is.
        let turns = (ada.hold().await, bob.hold().await);
        let late = pool.session("v".into());
        let waits = timeout(Duration::from_millis(1), late.hold()).await;
        assert!(waits.is_err() && pool.waiting() == 0);
        let wait = tokio::spawn(async move { mark(&late, "late").await });
        while pool.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        drop(turns.1);
        assert_eq!(wait.await.unwrap().as_deref(), Some("bob"));
        drop(turns.0);
        assert_eq!(pool.state().held, 0);
    }
}
