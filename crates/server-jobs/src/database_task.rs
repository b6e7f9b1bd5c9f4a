//! What a worker does with its connection to the database, and how one asks it.
//!
//! Whoever wants something of the database says so once, where it is wanted: the arguments, and the
//! method of the [`Worker`] that takes them. The queue, the connection and the second try after one
//! that broke are here.

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use tidewater_centre::error::CentreResult;
use tidewater_centre::{CentreError, Worker};

use crate::connector::Connection;
use crate::fair_queue::{FairQueue, OfUser};
use crate::fault::Fault;
use crate::script_sessions::ScriptUse;

/// What is done with the connection.
type Run = Box<dyn for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, ()> + Send>;

/// Something that a worker does with its connection to the database.
pub struct DatabaseTask {
    /// Whose turn it is; empty for what is done for all alike.
    user: String,
    /// By which scripts it is done.
    pub(crate) scripts: ScriptUse,
    run: Run,
}

impl DatabaseTask {
    /// Something for all alike, without scripts.
    pub fn new(
        run: impl for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, ()> + Send + 'static,
    ) -> DatabaseTask {
        DatabaseTask {
            user: String::new(),
            scripts: ScriptUse::default(),
            run: Box::new(run),
        }
    }

    /// The same, when it is a user's turn.
    pub fn for_user(self, user: &str) -> DatabaseTask {
        DatabaseTask {
            user: user.to_owned(),
            ..self
        }
    }

    /// The same, on the connection of these scripts.
    pub fn with_scripts(self, scripts: ScriptUse) -> DatabaseTask {
        DatabaseTask { scripts, ..self }
    }

    /// Does it.
    pub async fn run(self, connection: &mut Connection) {
        (self.run)(connection).await;
    }
}

impl OfUser for DatabaseTask {
    fn user(&self) -> &str {
        &self.user
    }
}

impl<T: OfUser + From<DatabaseTask>> FairQueue<T> {
    /// Asks the database; once more, if the connection broke while nobody used it.
    ///
    /// # Errors
    /// What the database says, or the server is shutting down.
    pub async fn ask<A, R>(
        &self,
        arguments: A,
        question: impl for<'w> Fn(&'w mut dyn Worker, &'w A) -> CentreResult<'w, R>
        + Send
        + Sync
        + 'static,
    ) -> Result<R, Fault>
    where
        A: Send + Sync + 'static,
        R: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.submit(T::from(DatabaseTask::new(move |connection| {
            Box::pin(async move {
                // Nobody waits when the asker has gone.
                let _ = reply.send(connection.ask(&arguments, question).await);
            })
        })));
        self.answered(answer).await
    }

    /// The same when it is a user's turn, and only once: a second time would not be the same.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub async fn ask_once<A, R>(
        &self,
        user: &str,
        arguments: A,
        question: impl for<'w> FnOnce(&'w mut dyn Worker, &'w A) -> CentreResult<'w, R> + Send + 'static,
    ) -> Result<R, Fault>
    where
        A: Send + Sync + 'static,
        R: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = DatabaseTask::new(move |connection| {
            Box::pin(async move {
                let _ = reply.send(connection.ask_once(&arguments, question).await);
            })
        });
        self.submit(T::from(task.for_user(user)));
        self.answered(answer).await
    }

    /// Tells the database something that nobody waits for. `missing`: what the log says if it
    /// comes to nothing.
    pub fn note<A>(
        &self,
        missing: &'static str,
        arguments: A,
        question: impl for<'w> FnOnce(&'w mut dyn Worker, &'w A) -> CentreResult<'w, ()>
        + Send
        + 'static,
    ) where
        A: Send + Sync + 'static,
    {
        self.submit(T::from(DatabaseTask::new(move |connection| {
            Box::pin(async move {
                if let Err(error) = connection.ask_once(&arguments, question).await {
                    tracing::warn!(%error, "{missing}");
                }
            })
        })));
    }
}

impl<T: OfUser> FairQueue<T> {
    /// Waits for the answer of a worker.
    ///
    /// # Errors
    /// What the worker says; the server is shutting down; or the worker failed.
    pub async fn answered<R>(
        &self,
        answer: oneshot::Receiver<Result<R, CentreError>>,
    ) -> Result<R, Fault> {
        match answer.await {
            Ok(result) => Ok(result?),
            Err(_) if self.is_closed() => Err(Fault::shutting_down()),
            Err(_) => Err(Fault::internal("a worker dropped its task")),
        }
    }
}
