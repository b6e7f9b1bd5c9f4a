//! One connection: its settings, the texts that it knows, and what runs on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};

use tidewater_centre::engine::connection::{self, StatementResult, SystemStatement};
use tidewater_centre::engine::database::Job;
use tidewater_centre::engine::described_statement::{DescribedStatement, DescriptionError};
use tidewater_centre::engine::flight::{FlightFailure, FlightStep, StatementUse, TableStatement};
use tidewater_centre::engine::sql::sql_dialect::SqlDialect;
use tidewater_centre::engine::sql::statement_shape::StatementIdentity;
use tidewater_centre::error::CentreError;
use tidewater_protocol::ColumnType;

use crate::dialect::MysqlDialect;
use crate::driver_error::{connecting, statement_failed};
use crate::numbered_text::NumberedText;
use crate::publication::MysqlTables;
use crate::step_failure::{StepFailure, step_failed};
use crate::system_statement::SpelledStatement;
use crate::table_statement::run_on_tables;

/// Prepared statements that a connection keeps. A server has 16,382 of them for all of its
/// connections, unless it is told otherwise.
const STATEMENTS: usize = 400;
/// Texts on the application's tables that a connection remembers; when there are more, all are read
/// again as they are needed.
const TEXTS: usize = 1_000;
/// After so long the system asks whether the other machine is still there.
const SILENCE: Duration = Duration::from_secs(30);

/// What our statements rely on, whatever the server's defaults are.
///
/// Texts are Unicode and compared byte by byte, unless a column says otherwise. Quotes, comments and
/// `||` are those of standard SQL, and a value that does not fit is an error. A lock is waited for
/// two seconds: one open transaction of an application must not keep all workers. A statement takes
/// half an hour at the most: reading a whole partition for a first download is one. A connection may
/// be idle for long, but not in a transaction.
const SETTINGS: [&str; 3] = [
    concat!(
        "SET NAMES utf8mb4 COLLATE ",
        "/*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */"
    ),
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,\
     NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
     time_zone = '+00:00', autocommit = 1, foreign_key_checks = 1, unique_checks = 1, \
     default_storage_engine = 'InnoDB', innodb_lock_wait_timeout = 2, lock_wait_timeout = 2, \
     wait_timeout = 31536000 \
     /*M!100300 , max_statement_time = 1800, idle_transaction_timeout = 300 */\
     /*!80000 , max_execution_time = 1800000 */",
];

/// Where the database is, and how it is spoken to.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseAddress(Opts);

impl DatabaseAddress {
    /// Reads `mysql://user:password@host:port/database`, and puts on it what our sessions rely on.
    ///
    /// # Errors
    /// It is no such URL. The error does not tell it: it may hold a password.
    pub(crate) fn read(url: &str) -> Result<DatabaseAddress, CentreError> {
        const HINT: &str = "write mysql://user:password@host:3306/database";
        let plain = match url.strip_prefix("mariadb://") {
            Some(rest) => format!("mysql://{rest}"),
            None => url.to_owned(),
        };
        let read = Opts::from_url(&plain).map_err(|error| CentreError::Configuration {
            message: format!("the database's URL is no URL of MySQL: {error}"),
            hint: HINT.into(),
        })?;
        if read.db_name().is_none_or(str::is_empty) {
            return Err(CentreError::Configuration {
                message: "the database's URL names no database".into(),
                hint: HINT.into(),
            });
        }
        let options = OptsBuilder::from_opts(read)
            // Rows that were found count as written, whether they were so before or not.
            .client_found_rows(true)
            .prefer_socket(false)
            .tcp_keepalive(Some(SILENCE))
            .stmt_cache_size(STATEMENTS)
            .setup(SETTINGS.to_vec());
        Ok(DatabaseAddress(options.into()))
    }
}

/// A connection with the texts that it knows.
pub(crate) struct MysqlConnection {
    connection: Conn,
    address: DatabaseAddress,
    /// Statements on the server's own tables, found without spelling them.
    system: HashMap<StatementIdentity, Arc<SpelledStatement>>,
    /// Texts on the application's tables.
    texts: HashMap<String, Arc<NumberedText>>,
    /// Whether nobody knows what is open on it: a job failed and could not be undone, or was dropped
    /// in the middle.
    is_unfinished: bool,
}

impl MysqlConnection {
    /// Connects.
    ///
    /// # Errors
    /// [`CentreError::Configuration`] if somebody has to put something right,
    /// [`CentreError::Unavailable`] if it may succeed later.
    pub(crate) async fn first(address: &DatabaseAddress) -> Result<MysqlConnection, CentreError> {
        let connection = Conn::new(address.0.clone()).await;
        Ok(MysqlConnection {
            connection: connection.map_err(|error| connecting(&error))?,
            address: address.clone(),
            system: HashMap::new(),
            texts: HashMap::new(),
            is_unfinished: false,
        })
    }

    /// Connects once more to a database that did let us in. What keeps us out now may be put right
    /// while we are running.
    pub(crate) async fn open(address: &DatabaseAddress) -> Result<MysqlConnection, CentreError> {
        let opened = MysqlConnection::first(address).await;
        opened.map_err(|error| CentreError::Unavailable {
            message: match error {
                CentreError::Unavailable { message } => message,
                other => other.to_string(),
            },
        })
    }

    /// Whether the connection is there, as far as can be told without a word to the database.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_unfinished && !self.connection.is_disconnected()
    }

    /// The driver's connection.
    pub(crate) fn driver(&mut self) -> &mut Conn {
        &mut self.connection
    }

    /// Runs a job. What it leaves open is undone: the next transaction that began would commit it. Where
    /// the connection is of no more use, there is another one in its place.
    pub(crate) async fn run_job<T>(
        &mut self,
        job: Job<MysqlConnection, T>,
    ) -> Result<T, CentreError> {
        if !self.is_usable() {
            *self = MysqlConnection::open(&self.address).await?;
        }
        self.is_unfinished = true;
        let result = job(self).await;
        self.is_unfinished = match &result {
            Err(CentreError::Unavailable { .. }) => true,
            Ok(_) if !self.has_transaction() => false,
            _ => self.undo().await.is_err(),
        };
        result
    }

    /// Whether a transaction is open, as the database said last.
    fn has_transaction(&self) -> bool {
        let last = self.connection.last_ok_packet();
        last.is_some_and(|it| {
            let flags = it.status_flags();
            flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
        })
    }

    /// Ends the transaction that is open, if one is, and what variables say of it.
    async fn undo(&mut self) -> Result<(), CentreError> {
        connection::DatabaseConnection::rollback(self).await?;
        let forget = MysqlDialect.forget_caller();
        let what = "forgetting for whom a transaction ran";
        let forgotten = connection::DatabaseConnection::flight(self, what, &forget).await;
        forgotten.map(drop)
    }

    fn spelled(&mut self, own: &SystemStatement) -> Arc<SpelledStatement> {
        let known = self.system.entry(own.sql.identity());
        Arc::clone(known.or_insert_with(|| Arc::new(SpelledStatement::new(own.sql))))
    }

    fn text(&mut self, asked: &TableStatement<'_, MysqlTables>) -> Arc<NumberedText> {
        if let Some(known) = self.texts.get(&*asked.sql) {
            return Arc::clone(known);
        }
        let text = Arc::new(NumberedText::read(MysqlDialect.lexing(), &asked.sql));
        if asked.usage == StatementUse::Often {
            if self.texts.len() >= TEXTS {
                self.texts.clear();
            }
            self.texts.insert(asked.sql.to_string(), Arc::clone(&text));
        }
        text
    }

    async fn run_step(
        &mut self,
        what: &str,
        step: FlightStep<'_, MysqlTables>,
    ) -> Result<StatementResult, StepFailure> {
        match step {
            FlightStep::Run(sql) => self.run_text(what, &sql).await,
            FlightStep::Commit => self.run_text(what, "COMMIT").await,
            FlightStep::Limit(_) => todo!("scripts: how long a statement may take"),
            FlightStep::System(own) => {
                let spelled = self.spelled(own);
                let done = spelled.run(&mut self.connection, own).await;
                done.map_err(step_failed(what, 0))
            }
            FlightStep::Table(asked, mut take) => {
                let text = self.text(&asked);
                run_on_tables(&mut self.connection, &text, &asked, &mut *take).await
            }
        }
    }

    /// Runs statements without parameters.
    async fn run_text(&mut self, what: &str, sql: &str) -> Result<StatementResult, StepFailure> {
        if !sql.is_empty() {
            let done = self.connection.query_drop(sql).await;
            done.map_err(step_failed(what, 0))?;
        }
        Ok(StatementResult::default())
    }
}

impl connection::DatabaseConnection for MysqlConnection {
    type Tables = MysqlTables;

    const DIALECT: &'static dyn SqlDialect = &MysqlDialect;

    async fn run(
        &mut self,
        what: &str,
        steps: Vec<FlightStep<'_, MysqlTables>>,
    ) -> Result<Vec<StatementResult>, FlightFailure> {
        let mut answers = Vec::with_capacity(steps.len());
        let mut steps = steps.into_iter().enumerate();
        while let Some((number, step)) = steps.next() {
            match self.run_step(what, step).await {
                Ok(answer) => answers.push(answer),
                Err(StepFailure { error, fault }) => {
                    if steps.any(|(_, it)| matches!(it, FlightStep::Commit)) {
                        // The error says more than that this failed, too.
                        let _ = self.connection.query_drop("ROLLBACK").await;
                    }
                    return Err(FlightFailure {
                        step: number,
                        done: Some(answers),
                        error,
                        fault,
                    });
                }
            }
        }
        Ok(answers)
    }

    async fn describe(
        &mut self,
        _: &str,
        _: &[Option<ColumnType>],
    ) -> Result<DescribedStatement, DescriptionError> {
        todo!("publishing: what a prepared statement tells of its columns and parameters")
    }
}

/// Runs a query of the adapter's own that yields one value for each row.
pub(crate) async fn query_column<T>(
    connection: &mut MysqlConnection,
    what: &str,
    sql: &str,
) -> Result<Vec<T>, CentreError>
where
    T: mysql_async::prelude::FromRow + Send + 'static,
{
    let found = connection.driver().query(sql).await;
    found.map_err(statement_failed(what))
}
