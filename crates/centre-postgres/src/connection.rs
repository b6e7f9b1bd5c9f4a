//! One connection to PostgreSQL: its settings, its prepared statements, its errors.

use std::collections::HashMap;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, CopyInSink, NoTls, Statement};

use super::interrupt::{Canceller, Interruption};
use super::pooler::{MARK, Pooler};
use super::tls::{self, Tls};
use super::{entry, url};
use crate::driver_error::statement_failed;
use crate::prepared_procedure::PreparedProcedure;
use tidewater_centre::engine::database::Job;
use tidewater_centre::engine::sql::statement_shape::StatementIdentity;
use tidewater_centre::error::CentreError;

/// The longest that one statement of a sync may take; reading a whole partition for
/// a first download is one statement.
const STATEMENT_TIMEOUT_MS: u64 = 30 * 60 * 1000;
/// The longest that one of our transactions may wait for us: nothing of ours waits
/// for a network inside a transaction for long, so this only ends what a dead server left.
const IDLE_TIMEOUT_MS: u64 = 5 * 60 * 1000;
/// How long a statement waits for a lock. Whoever would wait longer comes back later: one open
/// transaction of an application must not keep all workers.
pub(super) const PATIENCE_MS: u64 = 2_000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Prepared statements that a connection keeps; when there are more, all are
/// dropped and prepared again as they are needed.
pub(super) const MAX_STATEMENTS: usize = 1_000;

/// After so long the system asks whether the other machine is still there, every so often, and
/// gives up: one that lost its power says nothing.
const SILENCE: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASK: u32 = 3;

/// Where the database is, and how it is spoken to.
#[derive(Clone, Debug)]
pub(super) struct DatabaseAddress {
    config: Config,
    tls: Option<Tls>,
    /// What stands between, and what is done about it.
    pooler: Pooler,
    /// Ends statements of its connections.
    pub(super) canceller: Canceller,
}

impl DatabaseAddress {
    /// The same, sharing nothing with the connections of this one.
    pub(super) fn alone(&self) -> DatabaseAddress {
        DatabaseAddress {
            canceller: Canceller::default(),
            ..self.clone()
        }
    }
}

/// Reads a URL and puts the settings on it that our sessions rely on.
pub(super) fn address(url: &str) -> Result<DatabaseAddress, CentreError> {
    let (plain, wishes) = tls::TlsOptions::split(url);
    let read = |plain: &str| {
        Config::from_str(plain).map_err(|error| CentreError::Configuration {
            // The URL may hold a password: say what is wrong with it, not what it is.
            message: match url::unknown_parameter(plain) {
                Some(name) => format!("the database's URL has an unknown parameter {name:?}"),
                None => format!("the database's URL is no PostgreSQL URL: {error}"),
            },
            hint: match url::unknown_parameter(plain) {
                Some(_) => format!("known are: {}", url::PARAMETERS.join(", ")),
                None => url::advice(url),
            },
        })
    };
    let mut config = read(&plain)?;
    let own = config.get_options().map(str::to_owned);
    if own.is_some() {
        config = read(&url::without_options(&plain))?;
    }
    if let Some(message) = url::misread(url, &config) {
        return Err(CentreError::Configuration {
            message: message.into(),
            hint: url::advice(url),
        });
    }
    let tls = wishes.apply(&mut config)?;
    if config.get_hosts().len() > 1 {
        // Whichever of them is not a standby: nothing can be served by one.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if config.get_keepalives_idle() > SILENCE {
        config.keepalives_idle(SILENCE);
        config.keepalives_interval(ASK_EVERY);
        config.keepalives_retries(ASK);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE + ASK_EVERY * ASK);
    }
    let mut options = format!("-c {MARK}=on");
    for (name, value) in [
        ("statement_timeout", STATEMENT_TIMEOUT_MS.to_string()),
        (
            "idle_in_transaction_session_timeout",
            IDLE_TIMEOUT_MS.to_string(),
        ),
        ("DateStyle", "ISO".into()),
        ("IntervalStyle", "iso_8601".into()),
        ("bytea_output", "hex".into()),
        // Floats in arrays and points travel as text.
        ("extra_float_digits", "1".into()),
        ("xmloption", "content".into()),
        ("standard_conforming_strings", "on".into()),
        // Longer than the time after which PostgreSQL looks for deadlocks.
        ("lock_timeout", PATIENCE_MS.to_string()),
        ("search_path", "public".into()),
        // What an upload is acknowledged for must not be lost in a crash.
        ("synchronous_commit", "on".into()),
        // Compiling a plan takes longer than all of our statements run.
        ("jit", "off".into()),
        // Nor would another plan than the first help them: all look for keys, by lists of them.
        ("plan_cache_mode", "force_generic_plan".into()),
        ("default_transaction_isolation", "read\\ committed".into()),
    ] {
        options.push_str(&format!(" -c {name}={value}"));
    }
    // What the operator writes into the URL comes last, and so counts.
    if let Some(own) = own {
        options.push_str(&format!(" {own}"));
    }
    config.application_name("tidewater");
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    let pooler = Pooler::from_options(config.clone(), &options);
    config.options(options);
    Ok(DatabaseAddress {
        config,
        tls,
        pooler,
        canceller: Canceller::default(),
    })
}

/// What holds for the transactions of a connection, until something else is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TransactionSettings {
    /// They only read.
    read_only: bool,
    /// How long a statement may take; `None`: as long as one of a sync.
    timeout_ms: Option<u64>,
}

/// How many warnings the database has given on a connection since somebody asked.
#[derive(Clone, Debug, Default)]
pub(super) struct WarningCount(Arc<AtomicU64>);

impl WarningCount {
    fn note(&self, notice: &DbError) {
        let is_warning = notice.parsed_severity() == Some(Severity::Warning);
        if is_warning {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        let (state, message) = (notice.code().code(), notice.message());
        tracing::debug!(state, message, "PostgreSQL remarks");
    }

    /// The number, which is forgotten.
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// A connection with its prepared statements.
pub(crate) struct PostgresConnection {
    client: Client,
    statements: HashMap<String, Statement>,
    /// Those of them that are on the server's own tables, found without spelling them.
    pub(super) system_statements: HashMap<StatementIdentity, Statement>,
    /// The process that serves it.
    backend: i32,
    warnings: WarningCount,
    /// What sets the time that a statement may take to what it was in the beginning.
    timeout: String,
    /// How long it waits for locks.
    patience_ms: u64,
    /// What holds for its transactions; `None` if that is not known.
    settings: Option<TransactionSettings>,
    /// Procedures that were called, by their address.
    pub(super) procedures: HashMap<usize, Arc<PreparedProcedure>>,
    /// Ends what runs on it.
    interruption: Arc<Interruption>,
    /// See [`PostgresConnection::copy_in`].
    out_of_step: AtomicBool,
    /// Whether a transaction may be open that nobody is running any more: a job
    /// failed, or was dropped in the middle.
    unfinished: bool,
}

impl PostgresConnection {
    /// Connects once more to a database that did let us in. What keeps us out now may be
    /// put right while we are running.
    pub(super) async fn open(address: &DatabaseAddress) -> Result<PostgresConnection, CentreError> {
        let opened = PostgresConnection::first(address).await;
        opened.map_err(|error| CentreError::Unavailable {
            message: match error {
                CentreError::Unavailable { message } => message,
                other => other.to_string(),
            },
        })
    }

    /// Connects; the connection is driven by a task of its own until it is dropped.
    ///
    /// # Errors
    /// [`CentreError::Configuration`] if somebody has to put something right,
    /// [`CentreError::Unavailable`] if it may succeed later.
    pub(super) async fn first(
        address: &DatabaseAddress,
    ) -> Result<PostgresConnection, CentreError> {
        let config = &address.config;
        let warnings = WarningCount::default();
        let client = address.pooler.enter(address, &warnings).await?;
        entry::let_triggers_fire(&client, config).await?;
        let backend = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]);
        let backend = backend
            .await
            .map_err(statement_failed("connecting"))?
            .get(0);
        let interruption = Interruption::new(address, backend);
        Ok(PostgresConnection {
            client,
            backend,
            warnings,
            timeout: address.pooler.timeout(),
            patience_ms: PATIENCE_MS,
            settings: Some(TransactionSettings::default()),
            procedures: HashMap::new(),
            interruption,
            statements: HashMap::new(),
            system_statements: HashMap::new(),
            out_of_step: AtomicBool::new(false),
            unfinished: false,
        })
    }

    /// How many warnings the database has given since this was asked.
    pub(super) fn take_warnings(&self) -> u64 {
        self.warnings.take()
    }

    /// Runs a job. What it leaves behind on an error is undone.
    pub(super) async fn run_job<T>(
        &mut self,
        job: Job<PostgresConnection, T>,
    ) -> Result<T, CentreError> {
        self.enter().await?;
        let result = job(self).await;
        self.leave(result).await
    }

    /// Ends what a job before this one left, and expects the worst of this one.
    pub(super) async fn enter(&mut self) -> Result<(), CentreError> {
        self.enter_calls().await?;
        if let Some(set) = self.set(false, None) {
            let set = self.client.batch_execute(&set).await;
            set.map_err(statement_failed("leaving what calls have set"))?;
        }
        Ok(())
    }

    /// The same for calls, which say by themselves what is to hold for them.
    pub(super) async fn enter_calls(&mut self) -> Result<(), CentreError> {
        if self.is_closed() {
            return Err(CentreError::Unavailable {
                message: "the connection is of no more use".into(),
            });
        }
        if self.unfinished {
            let rollback = self.client.batch_execute("ROLLBACK").await;
            rollback.map_err(statement_failed("ending a transaction"))?;
            // What it had set may not have arrived.
            self.settings = None;
        }
        self.unfinished = true;
        Ok(())
    }

    /// What has to be run, outside of transactions, so that this holds for those that follow;
    /// nothing if it does already. Times are rounded up, so that they seldom differ.
    pub(super) fn set(&mut self, read_only: bool, timeout: Option<Duration>) -> Option<String> {
        let timeout_ms = timeout.map(|it| {
            let ms = u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
            ms.clamp(1, STATEMENT_TIMEOUT_MS).next_power_of_two()
        });
        let wanted = TransactionSettings {
            read_only,
            timeout_ms,
        };
        let before = self.settings.replace(wanted);
        let differs =
            |of: fn(TransactionSettings) -> Option<u64>| before.map(of) != Some(of(wanted));
        let mut set = String::new();
        if differs(|it| Some(u64::from(it.read_only))) {
            let on = if read_only { "on" } else { "off" };
            set.push_str(&format!("SET default_transaction_read_only = {on}; "));
        }
        if differs(|it| it.timeout_ms) {
            set.push_str(&match timeout_ms {
                Some(ms) => format!("SET statement_timeout = {ms}; "),
                // What the operator's URL says.
                None => self.timeout.clone(),
            });
        }
        (!set.is_empty()).then_some(set)
    }

    /// What was to be set may not hold.
    pub(super) fn forget_settings(&mut self) {
        self.settings = None;
    }

    /// Ends what runs on it.
    pub(super) fn interruption(&self) -> Arc<Interruption> {
        self.interruption.clone()
    }

    /// Whether a transaction may be open that nobody is running any more.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Ends a job.
    pub(super) async fn leave<T>(
        &mut self,
        result: Result<T, CentreError>,
    ) -> Result<T, CentreError> {
        match result.is_err() {
            true => self.abandon().await,
            false => self.unfinished = false,
        }
        result
    }

    /// Ends a job that has failed.
    pub(super) async fn abandon(&mut self) {
        if !self.is_closed() {
            // What it holds must not be held until the next one.
            self.unfinished = self.client.batch_execute("ROLLBACK").await.is_err();
            self.forget_statements();
        }
    }

    /// The process that serves it.
    pub(super) fn backend(&self) -> i32 {
        self.backend
    }

    /// Waits so long for locks from now on; outside of transactions.
    pub(super) async fn wait_for_locks(&mut self, patience_ms: u64) -> Result<(), CentreError> {
        if self.patience_ms != patience_ms {
            let set = format!("SET lock_timeout = {patience_ms}");
            let set = self.client.batch_execute(&set).await;
            set.map_err(statement_failed("setting how long locks are waited for"))?;
            self.patience_ms = patience_ms;
        }
        Ok(())
    }

    /// The same, for transactions of the driver's.
    pub(super) fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The driver's client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the connection is of no more use.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.out_of_step.load(Ordering::Relaxed)
    }

    /// Begins a COPY. After a failure the connection is of no more use: the driver ends
    /// the rows of every COPY, also of one that PostgreSQL has refused before any; that is
    /// answered once more, and from there on every statement would be told the outcome of
    /// the one before it, a commit too.
    pub(super) async fn copy_in(
        &self,
        statement: &Statement,
    ) -> Result<CopyInSink<Bytes>, tokio_postgres::Error> {
        self.out_of_step.store(true, Ordering::Relaxed);
        let sink = self.client.copy_in(statement).await?;
        self.out_of_step.store(false, Ordering::Relaxed);
        Ok(sink)
    }

    /// A prepared statement; `parameters` are the types that its text does not tell.
    pub(super) async fn prepare(
        &mut self,
        sql: &str,
        parameters: &[Type],
    ) -> Result<Statement, CentreError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= MAX_STATEMENTS {
            self.statements.clear();
            self.system_statements.clear();
        }
        let statement = self
            .client
            .prepare_typed(sql, parameters)
            .await
            .map_err(statement_failed("a statement of Tidewater"))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Forgets all prepared statements, because what they refer to has changed.
    pub(super) fn forget_statements(&mut self) {
        self.statements.clear();
        self.system_statements.clear();
        self.procedures.clear();
    }
}

impl DatabaseAddress {
    /// Connects, and drives the connection on a task of its own until it is dropped.
    pub(super) async fn dial(
        &self,
        config: &Config,
        warnings: &WarningCount,
    ) -> Result<Client, tokio_postgres::Error> {
        let warnings = warnings.clone();
        let (client, driven) = match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                (client, drive(connection, warnings))
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                (client, drive(connection, warnings))
            }
        };
        tokio::spawn(driven);
        Ok(client)
    }

    /// What the URL says, with our settings as options of the session.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }
}

/// Drives a connection until its client is dropped.
fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    warnings: WarningCount,
) -> Pin<Box<dyn Future<Output = ()> + Send>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) => warnings.note(&notice),
                Ok(_) => {}
                // Whoever uses the client is told the same.
                Err(error) => {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                    return;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_none_is_told_without_its_password() {
        let error = address("postgres://u:secret@host:port/db").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn options_of_the_url_count() {
        let address = address("postgres://u@h/db?options=-c%20geqo%3Doff").unwrap();
        let options = address.config.get_options().unwrap();
        assert!(options.contains(" -c statement_timeout="));
        assert!(options.ends_with(" -c geqo=off"));
    }
}
