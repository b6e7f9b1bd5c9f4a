//! The connections to the consolidated database: opened when they are needed, replaced when they
//! broke. What is asked over them, the tasks of the
//! lanes say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use tidewater_centre::error::CentreResult;
use tidewater_centre::records::{SessionRequest, SessionState};
use tidewater_centre::{Centre, CentreError, ScriptRun, SyncUpload, UploadOutcome, Worker};

/// How long a failed attempt to connect answers for the next ones.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Opens database connections for all workers.
pub struct Connector {
    centre: Arc<dyn Centre>,
    /// When it last failed, and what the driver said.
    failed: Mutex<Option<(Instant, String)>>,
    /// How often connections broke. What was opened before the last time is suspect: a
    /// database that was restarted has ended all of them.
    breaks: AtomicU64,
}

impl Connector {
    /// A connector to a database; nothing is opened yet.
    pub fn new(centre: Arc<dyn Centre>) -> Arc<Connector> {
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
pub struct Connection {
    connector: Arc<Connector>,
    worker: Option<Box<dyn Worker>>,
    /// [`Connector::breaks`] when it was opened.
    opened_after: u64,
    /// The version of scripts for which it was used last, if it was one whose session it needs.
    pub version: Option<String>,
}

impl Connection {
    /// A connection that is opened when it is needed.
    pub fn new(connector: &Arc<Connector>) -> Connection {
        Connection {
            connector: connector.clone(),
            worker: None,
            opened_after: 0,
            version: None,
        }
    }

    /// Has scripts end it.
    pub async fn end(&mut self) {
        if let Some(worker) = self.worker.as_mut().filter(|it| it.is_usable())
            && let Err(error) = worker.end().await
        {
            tracing::warn!(%error, "a connection could not be ended by its script");
        }
    }

    /// Whether there is one that was used before, which may have broken meanwhile.
    pub fn is_open(&self) -> bool {
        self.worker.is_some()
    }

    /// The open connection; opens it first, if there is none that can be used.
    pub async fn open(&mut self) -> Result<&mut Box<dyn Worker>, CentreError> {
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
    pub fn judge<T>(&mut self, result: Result<T, CentreError>) -> Result<T, CentreError> {
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

    /// Asks the worker; once more, if the connection broke while nobody used it.
    ///
    /// # Errors
    /// What the worker says.
    pub async fn ask<A: Sync, T>(
        &mut self,
        arguments: &A,
        question: impl for<'w> Fn(&'w mut dyn Worker, &'w A) -> CentreResult<'w, T>,
    ) -> Result<T, CentreError> {
        self.ask_counting(arguments, question, || {}).await
    }

    /// Asks the worker, and nobody twice.
    ///
    /// # Errors
    /// What the worker says.
    pub async fn ask_once<A: Sync, T>(
        &mut self,
        arguments: &A,
        question: impl for<'w> FnOnce(&'w mut dyn Worker, &'w A) -> CentreResult<'w, T>,
    ) -> Result<T, CentreError> {
        let result = match self.open().await {
            Ok(worker) => question(&mut **worker, arguments).await,
            Err(error) => Err(error),
        };
        self.judge(result)
    }

    /// The same as [`Self::ask`]; `count` is called before the second try.
    async fn ask_counting<A: Sync, T>(
        &mut self,
        arguments: &A,
        question: impl for<'w> Fn(&'w mut dyn Worker, &'w A) -> CentreResult<'w, T>,
        count: impl Fn(),
    ) -> Result<T, CentreError> {
        let mut again = self.is_open();
        loop {
            let result = self.ask_once(arguments, &question).await;
            if !repeats(&result, &mut again) {
                return result;
            }
            count();
        }
    }

    /// Looks up what sessions need.
    pub async fn session_states(
        &mut self,
        asked: &[SessionRequest],
    ) -> Result<Vec<SessionState>, CentreError> {
        let states = self
            .ask(&asked, |worker, asked| {
                worker.session_states(asked.to_vec())
            })
            .await?;
        all_of(asked.len(), states, "states of sessions")
    }

    /// Runs scripts, each in a transaction of its own.
    ///
    /// # Errors
    /// One of them failed: those behind it were not run.
    pub async fn run_scripts(&mut self, runs: &[ScriptRun]) -> Result<(), CentreError> {
        for run in runs {
            self.ask_counting(
                run,
                |worker, run| worker.run_scripts(run.clone()),
                || run.context.scripts.count_retry(&run.publication),
            )
            .await?;
        }
        Ok(())
    }

    /// Applies uploads. Had they been applied by a try whose connection broke, sequence and id tell.
    pub async fn apply(
        &mut self,
        uploads: Vec<SyncUpload>,
    ) -> Result<Vec<UploadOutcome>, CentreError> {
        let count = || {
            for upload in &uploads {
                upload.context.scripts.count_retry(&upload.publication);
            }
        };
        // The rows are shared, not copied.
        let outcomes = self
            .ask_counting(
                &uploads,
                |worker, uploads| worker.apply(uploads.clone()),
                count,
            )
            .await?;
        all_of(uploads.len(), outcomes, "outcomes of uploads")
    }
}

/// The answers, if there is one to each question.
fn all_of<T>(expected: usize, answers: Vec<T>, what: &str) -> Result<Vec<T>, CentreError> {
    match answers.len() == expected {
        true => Ok(answers),
        false => Err(CentreError::Internal {
            message: format!("{} of {expected} {what}", answers.len()),
        }),
    }
}

/// Whether a call is worth a second try: its connection broke, most likely while it was
/// idle. `again` is spent.
pub fn repeats<T>(result: &Result<T, CentreError>, again: &mut bool) -> bool {
    matches!(result, Err(CentreError::Unavailable { .. })) && std::mem::take(again)
}
