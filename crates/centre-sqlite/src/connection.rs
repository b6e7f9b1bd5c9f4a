//! A connection to the file, and how statements on the server's own tables are run on it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use rusqlite::params_from_iter;
use rusqlite::types::{ToSqlOutput, ValueRef as Stored};

use tidewater_protocol::Value;

use super::dialect::SqliteDialect;
use super::environment::DeploymentCommits;
use super::failure;
use tidewater_centre::engine::connection::{
    self, Durability, ResultRow, StatementResult, SystemStatement,
};
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

impl connection::DatabaseConnection for SqliteConnection {
    const DIALECT: &'static dyn SqlDialect = &SqliteDialect;

    fn has_transactional_ddl(&self) -> bool {
        matches!(self.deployment_commits, DeploymentCommits::Together)
    }

    async fn flight(
        &mut self,
        what: &'static str,
        statements: &[SystemStatement],
    ) -> Result<Vec<StatementResult>, CentreError> {
        let answers = statements.iter().map(|own| run(self, own));
        answers.collect::<Result<_, _>>().map_err(failure(what))
    }

    async fn transact(
        &mut self,
        what: &'static str,
        _: Durability,
        statements: &[SystemStatement],
    ) -> Result<Vec<StatementResult>, CentreError> {
        self.begin().await?;
        let answers = self.flight(what, statements).await;
        match &answers {
            Ok(_) => self.commit().await?,
            Err(_) => self.rollback().await?,
        }
        answers
    }

    async fn begin(&mut self) -> Result<(), CentreError> {
        let begun = self.execute_batch("BEGIN IMMEDIATE");
        begun.map_err(failure("beginning a transaction"))
    }

    async fn begin_reading(&mut self) -> Result<(), CentreError> {
        // The first read takes the snapshot.
        let begun = self.execute_batch("BEGIN");
        begun.map_err(failure("beginning to read"))
    }

    async fn execute(&mut self, what: &str, sql: &str) -> Result<(), CentreError> {
        if self.is_autocommit() {
            self.live_on()?;
        }
        let executed = self.execute_batch(sql);
        executed.map_err(|error| match failure("deploying")(error) {
            CentreError::StatementFailed {
                message,
                sqlstate,
                retry,
                ..
            } => CentreError::StatementFailed {
                what: what.to_owned(),
                message,
                sqlstate,
                retry,
            },
            other => other,
        })
    }

    async fn commit(&mut self) -> Result<(), CentreError> {
        self.live_on()?;
        let committed = self.execute_batch("COMMIT");
        committed.map_err(failure("committing a transaction"))
    }

    async fn rollback(&mut self) -> Result<(), CentreError> {
        let undone = self.execute_batch("ROLLBACK");
        undone.map_err(failure("undoing a transaction"))
    }
}
