//! A connection to the file, and how statements on the server's own tables are run on it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rusqlite::params_from_iter;
use rusqlite::types::{ToSqlOutput, Value as Native, ValueRef as Stored};

use tidewater_protocol::{ColumnType, Datum, Value};

use super::arguments::{bound, moment, set_json};
use super::description::describe;
use super::dialect::SqliteDialect;
use super::environment::DeploymentCommits;
use super::failure;
use super::publication::SqliteTables;
use super::rows::refusal;
use super::values::{self, SqliteKind};
use tidewater_centre::engine::connection::{self, ResultRow, StatementResult, SystemStatement};
use tidewater_centre::engine::described_statement::{DescribedStatement, DescriptionError};
use tidewater_centre::engine::flight::{
    FlightFailure, FlightStep, StatementUse, TableArgument, TableStatement, TakeRow,
};
use tidewater_centre::engine::row_fault::RowFault;
use tidewater_centre::engine::sql::sql_dialect::SqlDialect;
use tidewater_centre::engine::sql::statement_shape::{StatementIdentity, SystemSql};
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_centre::error::CentreError;

/// A connection to the file.
pub(crate) struct SqliteConnection {
    connection: rusqlite::Connection,
    deployment_commits: DeploymentCommits,
}

impl SqliteConnection {
    pub(super) fn new(
        connection: rusqlite::Connection,
        deployment_commits: DeploymentCommits,
    ) -> SqliteConnection {
        SqliteConnection {
            connection,
            deployment_commits,
        }
    }

    /// Whether the process lives on to the next commit.
    fn live_on(&self) -> Result<(), CentreError> {
        match &self.deployment_commits {
            DeploymentCommits::Each(lives_on) if !lives_on() => Err(CentreError::Unavailable {
                message: "the environment has the process die here".into(),
            }),
            _ => Ok(()),
        }
    }
}

impl Deref for SqliteConnection {
    type Target = rusqlite::Connection;

    fn deref(&self) -> &rusqlite::Connection {
        &self.connection
    }
}

impl DerefMut for SqliteConnection {
    fn deref_mut(&mut self) -> &mut rusqlite::Connection {
        &mut self.connection
    }
}

/// So many steps of a statement are between two looks whether it is to end.
pub(super) const STEPS: i32 = 1_000;

/// Has statements end that take longer.
#[allow(
    clippy::disallowed_methods,
    reason = "how long a statement takes is measured by the clock; nothing else depends on it"
)]
fn limit_time(connection: &SqliteConnection, limit: Option<Duration>) {
    match limit.and_then(|it| Instant::now().checked_add(it)) {
        Some(until) => connection.progress_handler(STEPS, Some(move || Instant::now() >= until)),
        None => connection.progress_handler(0, None::<fn() -> bool>),
    }
}

thread_local! {
    /// The statements that this thread has run, as they are spelled.
    static SPELLED: RefCell<HashMap<StatementIdentity, Rc<str>>> = RefCell::default();
}

fn spell(sql: SystemSql) -> Rc<str> {
    SPELLED.with_borrow_mut(|spelled| {
        let known = spelled.entry(sql.identity());
        Rc::clone(known.or_insert_with(|| SqliteDialect.spell(sql).into()))
    })
}

/// A parameter.
struct BoundParameter<'a>(&'a Value);

impl rusqlite::ToSql for BoundParameter<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => Stored::Null,
            Value::Integer(integer) => Stored::Integer(*integer),
            Value::Real(real) => Stored::Real(*real),
            Value::Text(text) => Stored::Text(text.as_bytes()),
            Value::Blob(bytes) => Stored::Blob(bytes),
        }))
    }
}

fn value(stored: Stored<'_>) -> Value {
    match stored {
        Stored::Null => Value::Null,
        Stored::Integer(integer) => Value::Integer(integer),
        Stored::Real(real) => Value::Real(real),
        Stored::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        Stored::Blob(bytes) => Value::Blob(bytes.to_owned()),
    }
}

/// Runs one statement of the server's own; for rows one after the other.
pub(super) fn run(
    connection: &rusqlite::Connection,
    own: &SystemStatement,
) -> rusqlite::Result<StatementResult> {
    let mut statement = connection.prepare_cached(&spell(own.sql))?;
    if own.rows.is_empty() {
        return match own.sql.row_columns() {
            None => run_once(connection, &mut statement, own.parameters.iter()),
            Some(_) => Ok(StatementResult::default()),
        };
    }
    let mut all = StatementResult::default();
    for (row, number) in own.rows.iter().zip(1..) {
        let number = Value::Integer(number);
        let parameters = std::iter::once(&number).chain(row);
        let answer = run_once(connection, &mut statement, parameters)?;
        all.rows.extend(answer.rows);
        all.changed += answer.changed;
    }
    Ok(all)
}

fn run_once<'v>(
    connection: &rusqlite::Connection,
    statement: &mut rusqlite::Statement<'_>,
    parameters: impl Iterator<Item = &'v Value>,
) -> rusqlite::Result<StatementResult> {
    let columns = statement.column_count();
    let parameters = params_from_iter(parameters.map(BoundParameter));
    if columns == 0 {
        let changed = statement.execute(parameters)? as u64;
        return Ok(StatementResult {
            changed,
            ..StatementResult::default()
        });
    }
    let mut found = statement.query(parameters)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let values = (0..columns).map(|index| Ok(value(row.get_ref(index)?)));
        rows.push(ResultRow(values.collect::<rusqlite::Result<_>>()?));
    }
    drop(found);
    let changed = match statement.readonly() {
        true => 0,
        false => connection.changes(),
    };
    Ok(StatementResult { rows, changed })
}

/// Why a step has failed.
struct StepFailure {
    error: CentreError,
    fault: Option<Box<RowFault>>,
}

impl From<CentreError> for StepFailure {
    fn from(error: CentreError) -> StepFailure {
        StepFailure { error, fault: None }
    }
}

impl SqliteConnection {
    /// An error of a step as ours, with what it is of the row of this number.
    fn step_failed<'a>(
        &'a self,
        what: &'a str,
        row: usize,
    ) -> impl Fn(rusqlite::Error) -> StepFailure + Copy + 'a {
        move |error| StepFailure {
            fault: refusal::reason(&error).map(|refusal| {
                Box::new(RowFault {
                    refusal,
                    is_certain: true,
                    is_denied: false,
                    has_ended: self.is_autocommit(),
                    row,
                })
            }),
            error: failure(what)(error),
        }
    }

    fn run_step(
        &self,
        what: &str,
        step: FlightStep<'_, SqliteTables>,
    ) -> Result<StatementResult, StepFailure> {
        let commits = match &step {
            FlightStep::Run(sql) => self.is_autocommit() && !sql.starts_with("BEGIN"),
            step => matches!(step, FlightStep::Commit),
        };
        if commits {
            self.live_on()?;
        }
        let done = match step {
            FlightStep::Run(sql) => run_text(self, &sql),
            FlightStep::Commit => run_text(self, "COMMIT"),
            FlightStep::Limit(_) => Ok(StatementResult::default()),
            FlightStep::System(own) => run(self, own),
            FlightStep::Table(statement, mut take) => {
                return run_on_tables(self, &statement, &mut *take);
            }
        };
        done.map_err(self.step_failed(what, 0))
    }
}

/// Runs statements without parameters. A single one is kept, as savepoints are.
fn run_text(connection: &rusqlite::Connection, sql: &str) -> rusqlite::Result<StatementResult> {
    match sql.contains(';') {
        true => connection.execute_batch(sql)?,
        false if sql.is_empty() => {}
        false => drop(connection.prepare_cached(sql)?.execute([])?),
    }
    Ok(StatementResult::default())
}

/// Runs a statement on the application's tables, for rows one after the other.
fn run_on_tables(
    connection: &SqliteConnection,
    asked: &TableStatement<'_, SqliteTables>,
    take: TakeRow<'_>,
) -> Result<StatementResult, StepFailure> {
    // That a statement cannot be prepared is no fault of the rows that it would be run for.
    let failed = |error| {
        let mut failure = connection.step_failed(asked.what, 0)(error);
        failure.fault = failure.fault.filter(|_| asked.rows.is_empty());
        failure
    };
    let arguments: Vec<Native> = asked.arguments.iter().map(argument).collect();
    let (mut kept, mut prepared);
    let statement: &mut rusqlite::Statement<'_> = match asked.usage {
        StatementUse::Often => {
            kept = connection.prepare_cached(&asked.sql).map_err(failed)?;
            &mut kept
        }
        StatementUse::Once | StatementUse::Bulk => {
            prepared = connection.prepare(&asked.sql).map_err(failed)?;
            &mut prepared
        }
    };
    let mut answer = StatementResult::default();
    let mut run = |parameters: &mut dyn Iterator<Item = &Native>, row| {
        let failed = connection.step_failed(asked.what, row);
        let parameters = params_from_iter(parameters);
        if statement.column_count() == 0 {
            answer.changed += statement.execute(parameters).map_err(failed)? as u64;
            return Ok(());
        }
        let mut found = statement.query(parameters).map_err(failed)?;
        while let Some(row) = found.next().map_err(failed)? {
            let values: rusqlite::Result<Vec<Datum<'_>>> = match asked.described {
                [] => {
                    let yields = asked.yields.iter().enumerate();
                    let values = yields.map(|(at, kind)| Ok(kind.read(row.get_ref(at)?)));
                    values.collect()
                }
                types => {
                    let types = types.iter().enumerate();
                    let values = types.map(|(at, it)| Ok(values::read(*it, row.get_ref(at)?)));
                    values.collect()
                }
            };
            answer.changed += 1;
            take(&values.map_err(failed)?)?;
        }
        Ok::<_, StepFailure>(())
    };
    match asked.rows.first() {
        None => run(&mut arguments.iter(), 0)?,
        Some(rows) => {
            for (at, row) in rows.rows.iter().enumerate().skip(asked.done) {
                let number = Native::Integer(at as i64 + 1);
                let parameters = arguments.iter().chain([&number]).chain(row);
                run(&mut { parameters }, at)?;
            }
        }
    }
    Ok(answer)
}

fn argument(argument: &TableArgument<'_, SqliteKind>) -> Native {
    match argument {
        TableArgument::Value(kind, value) => {
            let bound = values::bind(kind.column_type, kind.is_kept_as_text, value);
            // What the column cannot keep is compared as it is.
            bound.unwrap_or_else(|_| values::native(value.stored(&mut String::new())))
        }
        TableArgument::Untyped(column_type, value) => bound(*column_type, value),
        TableArgument::Moment(value) => moment(value),
        TableArgument::Rows(set) => Native::Text(set_json(set)),
    }
}

impl connection::DatabaseConnection for SqliteConnection {
    type Tables = SqliteTables;

    const DIALECT: &'static dyn SqlDialect = &SqliteDialect;

    fn has_transactional_ddl(&self) -> bool {
        matches!(self.deployment_commits, DeploymentCommits::Together)
    }

    async fn run(
        &mut self,
        what: &str,
        steps: Vec<FlightStep<'_, SqliteTables>>,
    ) -> Result<Vec<StatementResult>, FlightFailure> {
        let mut answers = Vec::with_capacity(steps.len());
        let mut limit = None;
        let mut steps = steps.into_iter().enumerate();
        while let Some((number, step)) = steps.next() {
            if let FlightStep::Limit(of_rest) = step {
                limit = of_rest;
            }
            let is_limited = limit.is_some() && matches!(step, FlightStep::Table(..));
            if is_limited {
                limit_time(self, limit);
            }
            let done = self.run_step(what, step);
            if is_limited {
                limit_time(self, None);
            }
            match done {
                Ok(answer) => answers.push(answer),
                Err(StepFailure { error, fault }) => {
                    let is_undone = steps.any(|(_, it)| matches!(it, FlightStep::Commit));
                    if is_undone && !self.is_autocommit() {
                        // The error says more than that this failed, too.
                        let _ = self.execute_batch("ROLLBACK");
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
        sql: &str,
        _: &[Option<ColumnType>],
    ) -> Result<DescribedStatement, DescriptionError> {
        describe(self, sql)
    }
}
