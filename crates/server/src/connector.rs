//! The connections to the consolidated database: opened when they are needed, replaced when they
//! broke. What is done on them is [`crate::worker`]'s affair.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use tidewater_protocol::RemoteId;

use crate::script_sessions::{HeldSession, ScriptUse};
use tidewater_centre::error::CentreResult;
use tidewater_centre::records::{
    ProvenIdentity, RemoteRecord, SessionRequest, SessionState, ShutOutReason,
};
use tidewater_centre::{
    Centre, CentreError, HoldingRequest, RemoteHolding, ScriptRun, SyncUpload, UploadOutcome,
    Worker,
};

/// How long a failed attempt to connect answers for the next ones.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Opens database connections for all workers.
pub(crate) struct Connector {
    centre: Arc<dyn Centre>,
    /// When it last failed, and what the driver said.
    failed: Mutex<Option<(Instant, String)>>,
    /// How often connections broke. What was opened before the last time is suspect: a
    /// database that was restarted has ended all of them.
    breaks: AtomicU64,
}

impl Connector {
    pub(crate) fn new(centre: Arc<dyn Centre>) -> Arc<Connector> {
        Arc::new(Connector {
            centre,
            failed: Mutex::new(None),
            breaks: AtomicU64::new(0),
        })
    }

    async fn connect(&self) -> Result<Box<dyn Worker>, CentreError> {
        if let Some((at, message)) = &*self.failed()
            && at.elapsed() < RECONNECT_AFTER
        {
            return Err(CentreError::Unavailable {
                message: message.clone(),
            });
        }
        let result = self.centre.worker().await;
        match &result {
            Ok(_) => *self.failed() = None,
            Err(error) => {
                tracing::error!(%error, "no connection to the consolidated database");
                *self.failed() = Some((Instant::now(), error.to_string()));
            }
        }
        result
    }

    fn failed(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's database connection: opened when needed, replaced when broken.
pub(crate) struct Connection {
    connector: Arc<Connector>,
    worker: Option<Box<dyn Worker>>,
    /// [`Connector::breaks`] when it was opened.
    opened_after: u64,
    /// The version of scripts for which it was used last, if it was one whose session it needs.
    pub(crate) version: Option<String>,
}

/// The connections of a lane that nobody works with: no more are opened than work at the same time.
#[derive(Clone)]
pub(crate) struct Idle {
    connector: Arc<Connector>,
    connections: Arc<Mutex<Vec<Connection>>>,
}

impl Idle {
    pub(crate) fn new(connector: &Arc<Connector>) -> Idle {
        Idle {
            connector: connector.clone(),
            connections: Arc::default(),
        }
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was used last: its caches are warm.
    pub(crate) fn take(&self) -> Connection {
        self.take_of(None)
    }

    /// The one that was last used for this version of scripts. If there is only one that was used for
    /// another, it is that in whose place the engine has a new one come.
    fn take_of(&self, version: Option<&str>) -> Connection {
        let mut idle = self.connections();
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

    /// A connection for something that is done by scripts; it goes back when it is dropped.
    pub(crate) async fn take_for(&self, scripts: &ScriptUse) -> TakenConnection<'_> {
        let Some(session) = &scripts.session else {
            return TakenConnection {
                connection: Some(self.take_of(scripts.version.as_deref())),
                place: Place::Idle(self),
            };
        };
        let mut place = session.lock().await;
        let connection = place.take();
        let new = || Connection::new(session.connector());
        TakenConnection {
            connection: Some(connection.unwrap_or_else(new)),
            place: Place::Session {
                place,
                _held: session.clone(),
            },
        }
    }

    /// Takes all, to end them.
    pub(crate) fn take_all(&self) -> Vec<Connection> {
        std::mem::take(&mut *self.connections())
    }

    pub(crate) fn give_back(&self, connection: Connection) {
        self.connections().push(connection);
    }
}

/// A connection that somebody works with.
pub(crate) struct TakenConnection<'a> {
    /// It is there until this is dropped.
    connection: Option<Connection>,
    place: Place<'a>,
}

/// Where a connection goes back to.
enum Place<'a> {
    Idle(&'a Idle),
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
        let connection = self.connection.take();
        match &mut self.place {
            Place::Idle(idle) => idle.connections().extend(connection),
            Place::Session { place, .. } => **place = connection,
        }
    }
}

impl Connection {
    pub(crate) fn new(connector: &Arc<Connector>) -> Connection {
        Connection {
            connector: connector.clone(),
            worker: None,
            opened_after: 0,
            version: None,
        }
    }

    /// Has scripts end it.
    pub(crate) async fn end(&mut self) {
        if let Some(worker) = self.worker.as_mut().filter(|it| it.is_usable())
            && let Err(error) = worker.end().await
        {
            tracing::warn!(%error, "a connection could not be ended by its script");
        }
    }

    /// Whether there is one that was used before, which may have broken meanwhile.
    pub(crate) fn is_open(&self) -> bool {
        self.worker.is_some()
    }

    pub(crate) async fn open(&mut self) -> Result<&mut Box<dyn Worker>, CentreError> {
        // The database was restarted, most likely, while the worker had nothing to do.
        let breaks = self.connector.breaks.load(Ordering::Relaxed);
        let suspect = self.opened_after != breaks;
        if self
            .worker
            .as_ref()
            .is_some_and(|it| suspect || !it.is_usable())
        {
            self.worker = None;
        }
        if self.worker.is_none() {
            self.opened_after = breaks;
        }
        match &mut self.worker {
            Some(worker) => Ok(worker),
            none => Ok(none.insert(self.connector.connect().await?)),
        }
    }

    /// Passes a result on; after [`CentreError::Unavailable`] the connection is
    /// given up.
    pub(crate) fn judge<T>(&mut self, result: Result<T, CentreError>) -> Result<T, CentreError> {
        if let Err(CentreError::Unavailable { message }) = &result
            && self.worker.take().is_some()
        {
            // Of those that break at once, one makes the others suspect.
            let (known, breaks) = (self.opened_after, &self.connector.breaks);
            let (order, next) = (Ordering::Relaxed, known + 1);
            let _ = breaks.compare_exchange(known, next, order, order);
            tracing::warn!(%message, "a connection to the consolidated database broke");
        }
        result
    }

    pub(crate) async fn session_states(
        &mut self,
        asked: &[SessionRequest],
    ) -> Result<Vec<SessionState>, CentreError> {
        let expected = asked.len();
        let mut again = self.is_open();
        let states = loop {
            let result = match self.open().await {
                Ok(worker) => worker.session_states(asked.to_vec()).await,
                Err(error) => Err(error),
            };
            let result = self.judge(result);
            if !repeats(&result, &mut again) {
                break result?;
            }
        };
        if states.len() != expected {
            return Err(CentreError::Internal {
                message: format!("the states of {} of {expected} sessions", states.len()),
            });
        }
        Ok(states)
    }

    /// Asks the worker; once more, if the connection broke while nobody used it.
    async fn ask<A: Sync, T>(
        &mut self,
        arguments: &A,
        method: impl for<'w> Fn(&'w mut dyn Worker, &'w A) -> CentreResult<'w, T>,
    ) -> Result<T, CentreError> {
        let mut again = self.is_open();
        loop {
            let result = match self.open().await {
                Ok(worker) => method(&mut **worker, arguments).await,
                Err(error) => Err(error),
            };
            let result = self.judge(result);
            if !repeats(&result, &mut again) {
                return result;
            }
        }
    }

    pub(crate) async fn save_remote(&mut self, remote: &RemoteRecord) -> Result<(), CentreError> {
        self.ask(remote, |worker, remote| worker.save_remote(remote))
            .await
    }

    pub(crate) async fn prove_user(
        &mut self,
        user: &str,
        proven: &ProvenIdentity,
        creates: bool,
    ) -> Result<bool, CentreError> {
        self.ask(
            &(user, proven, creates),
            |worker, &(user, proven, creates)| worker.prove_user(user, proven, creates),
        )
        .await
    }

    pub(crate) async fn replace_password(
        &mut self,
        user: &str,
        before: &str,
        hash: &str,
    ) -> Result<bool, CentreError> {
        self.ask(&(user, before, hash), |worker, &(user, before, hash)| {
            worker.replace_password(user, before, hash)
        })
        .await
    }

    pub(crate) async fn run_scripts(&mut self, runs: &[ScriptRun]) -> Result<(), CentreError> {
        for run in runs {
            let mut again = self.is_open();
            loop {
                let result = match self.open().await {
                    Ok(worker) => worker.run_scripts(run.clone()).await,
                    Err(error) => Err(error),
                };
                let result = self.judge(result);
                if !repeats(&result, &mut again) {
                    break result?;
                }
                run.context.scripts.count_retry(&run.publication);
            }
        }
        Ok(())
    }

    pub(crate) async fn shut_out(
        &mut self,
        remotes: &[RemoteId],
    ) -> Result<Vec<(RemoteId, ShutOutReason)>, CentreError> {
        self.ask(&remotes, |worker, remotes| worker.shut_out(remotes))
            .await
    }

    pub(crate) async fn holdings_now(
        &mut self,
        asked: Vec<HoldingRequest>,
    ) -> Result<Vec<Option<Vec<RemoteHolding>>>, CentreError> {
        self.ask(&asked, |worker, asked| worker.holdings_now(asked.clone()))
            .await
    }

    pub(crate) async fn apply(
        &mut self,
        uploads: Vec<SyncUpload>,
    ) -> Result<Vec<UploadOutcome>, CentreError> {
        let expected = uploads.len();
        let mut again = self.is_open();
        let outcomes = loop {
            // The rows are shared, not copied.
            let result = match self.open().await {
                Ok(worker) => worker.apply(uploads.clone()).await,
                Err(error) => Err(error),
            };
            // Had it been applied after all, sequence and id would tell.
            let result = self.judge(result);
            if !repeats(&result, &mut again) {
                break result?;
            }
            for upload in &uploads {
                upload.context.scripts.count_retry(&upload.publication);
            }
        };
        if outcomes.len() != expected {
            return Err(CentreError::Internal {
                message: format!("{} outcomes of {expected} uploads", outcomes.len()),
            });
        }
        Ok(outcomes)
    }
}

/// Whether a call is worth a second try: its connection broke, most likely while it was
/// idle. `again` is spent.
pub(crate) fn repeats<T>(result: &Result<T, CentreError>, again: &mut bool) -> bool {
    matches!(result, Err(CentreError::Unavailable { .. })) && std::mem::take(again)
}
