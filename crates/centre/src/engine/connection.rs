//! What the engine asks of a database connection: to run statements on the server's own tables.
//!
//! [`super::sql`] has the statements; the adapter spells them as its database wants them. Parameters
//! and results are plain values; a flag is an integer, 0 or 1.

use tidewater_protocol::{ColumnType, RemoteId, UploadId, Value};

use crate::engine::described_statement::{DescribedStatement, DescriptionError};
use crate::engine::flight::{FlightFailure, FlightStep};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::engine::sql::statement_shape::SystemSql;
use crate::error::CentreError;

/// A statement on the server's own tables.
#[derive(Clone, Debug)]
pub struct SystemStatement {
    /// What it does.
    pub sql: SystemSql,
    /// The values of `?1`, `?2` and so on.
    pub parameters: Vec<Value>,
    /// The rows that it is run for, if it is: see [`each`].
    pub rows: Vec<Vec<Value>>,
}

/// Makes a [`SystemStatement`] of what it does, or of a neutral text, and its parameters.
#[macro_export]
macro_rules! system_sql {
    ($sql:expr $(, $parameter:expr)* $(,)?) => {
        $crate::engine::connection::SystemStatement {
            sql: $crate::engine::sql::statement_shape::SystemSql::from($sql),
            parameters: vec![$($crate::engine::connection::StatementParameter::value(&$parameter)),*],
            rows: Vec::new(),
        }
    };
}
pub use crate::system_sql;

/// The values of one row, for [`each`].
#[macro_export]
macro_rules! system_row {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::engine::connection::StatementParameter::value(&$value)),*]
    };
}
pub use crate::system_row;

/// A statement that does for each of some rows what it would do for it alone.
pub fn each(sql: impl Into<SystemSql>, rows: Vec<Vec<Value>>) -> SystemStatement {
    SystemStatement {
        sql: sql.into(),
        parameters: Vec::new(),
        rows,
    }
}

/// What a statement gave.
#[derive(Debug, Default)]
pub struct StatementResult {
    /// The rows that it read or gave back.
    pub rows: Vec<ResultRow>,
    /// How many rows it wrote.
    pub changed: u64,
}

/// A row of an [`StatementResult`].
#[derive(Debug)]
pub struct ResultRow(pub Vec<Value>);

/// What a transaction is begun for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    /// It writes.
    Writing(Durability),
    /// It reads from one snapshot.
    Reading,
    /// The same, and temporary tables can be created in it. It is undone in the end.
    Trying,
}

impl TransactionMode {
    /// It writes, and what it writes is durable.
    pub const WRITING: TransactionMode = TransactionMode::Writing(Durability::Durable);
}

/// How long what was committed may be lost with the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Not at all.
    Durable,
    /// For a moment, if the database can save the wait for the disk.
    Soon,
}

/// One connection to the database. After an error of [`CentreError::Unavailable`] it is of no more
/// use.
pub trait DatabaseConnection: Send {
    /// What its tables have of its own.
    type Tables: TableAdapter;

    /// How the database spells statements.
    const DIALECT: &'static dyn SqlDialect;

    /// See [`SqlDialect::has_transactional_ddl`]. A test may have a connection do without.
    fn has_transactional_ddl(&self) -> bool {
        Self::DIALECT.has_transactional_ddl()
    }

    /// Runs the steps of a flight one after the other, in one round trip where the database can;
    /// gives an answer to each. `what` is being done, for the error.
    fn run(
        &mut self,
        what: &str,
        steps: Vec<FlightStep<'_, Self::Tables>>,
    ) -> impl Future<Output = Result<Vec<StatementResult>, FlightFailure>> + Send;

    /// Runs statements on the server's own tables.
    fn flight(
        &mut self,
        what: &'static str,
        statements: &[SystemStatement],
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let steps = statements.iter().map(FlightStep::System);
            Ok(self.run(what, steps.collect()).await?)
        }
    }

    /// The same in a transaction that writes; nothing of it is done on an error.
    fn transact(
        &mut self,
        what: &'static str,
        durability: Durability,
        statements: &[SystemStatement],
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let begin = Self::DIALECT.begin(TransactionMode::Writing(durability));
            let mut steps = Vec::with_capacity(statements.len() + 2);
            steps.push(FlightStep::run(begin));
            steps.extend(statements.iter().map(FlightStep::System));
            steps.push(FlightStep::Commit);
            let mut answers = self.run(what, steps).await?;
            answers.pop();
            answers.remove(0);
            Ok(answers)
        }
    }

    /// Runs SQL of the database's own that yields nothing.
    ///
    /// # Errors
    /// [`CentreError::Locked`] if another session is in the way.
    fn execute(
        &mut self,
        what: &str,
        sql: &str,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        async move {
            let ran = self.run(what, vec![FlightStep::run(sql)]).await;
            ran.map(drop).map_err(|failure| match failure.error {
                CentreError::Locked { .. } => CentreError::Locked {
                    message: "the table is locked by another session".into(),
                },
                error => error,
            })
        }
    }

    /// Begins a transaction.
    fn begin(
        &mut self,
        mode: TransactionMode,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        self.execute("beginning a transaction", Self::DIALECT.begin(mode))
    }

    /// Has the database read a statement of an operator without running it. Of its parameters these
    /// types are told, in their order; the database finds out the others.
    fn describe(
        &mut self,
        sql: &str,
        told: &[Option<ColumnType>],
    ) -> impl Future<Output = Result<DescribedStatement, DescriptionError>> + Send;

    /// Commits it.
    fn commit(&mut self) -> impl Future<Output = Result<(), CentreError>> + Send {
        async move {
            let what = "committing a transaction";
            self.run(what, vec![FlightStep::Commit]).await?;
            Ok(())
        }
    }

    /// Undoes it.
    fn rollback(&mut self) -> impl Future<Output = Result<(), CentreError>> + Send {
        self.execute("undoing a transaction", "ROLLBACK")
    }

    /// Runs statements that read, most of them something for one row ([`each`]), whose number they
    /// yield first: all of the same SQL at once. The answers are without the numbers.
    fn gather(
        &mut self,
        what: &'static str,
        statements: Vec<SystemStatement>,
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let mut merged: Vec<SystemStatement> = Vec::new();
            // By the merged statement and its row: the statement that it came from.
            let mut places: Vec<Vec<usize>> = Vec::new();
            let mut answers = Vec::new();
            answers.resize_with(statements.len(), StatementResult::default);
            for (place, own) in statements.into_iter().enumerate() {
                let mut others = merged.iter();
                let same = others.position(|it| !own.rows.is_empty() && it.sql == own.sql);
                match same {
                    Some(at) => {
                        merged[at].rows.extend(own.rows);
                        places[at].push(place);
                    }
                    None => {
                        merged.push(own);
                        places.push(vec![place]);
                    }
                }
            }
            let found = self.flight(what, &merged).await?;
            for ((found, own), places) in found.into_iter().zip(&merged).zip(&places) {
                if own.rows.is_empty() {
                    answers[places[0]] = found;
                    continue;
                }
                for mut row in found.rows {
                    let number: u64 = row.get(0)?;
                    row.0.remove(0);
                    let place = places.get(number as usize - 1);
                    if let Some(&place) = place {
                        answers[place].rows.push(row);
                    }
                }
            }
            Ok(answers)
        }
    }

    /// One statement.
    fn run_one(
        &mut self,
        what: &'static str,
        statement: SystemStatement,
    ) -> impl Future<Output = Result<StatementResult, CentreError>> + Send {
        async move {
            let answers = self.flight(what, &[statement]).await?;
            Ok(answers.into_iter().next().unwrap_or_default())
        }
    }
}

impl ResultRow {
    /// The value of a column.
    ///
    /// # Errors
    /// It is of another type, because somebody has written to the server's own tables.
    pub fn get<T: ColumnValue>(&self, index: usize) -> Result<T, CentreError> {
        let value = self.0.get(index).and_then(T::read);
        value.ok_or_else(|| CentreError::Internal {
            message: format!(
                "column {index} of a row of the server's own tables is not as it was written: {:?}",
                self.0.get(index)
            ),
        })
    }
}

/// What a parameter can be.
pub trait StatementParameter {
    /// The value that is sent.
    fn value(&self) -> Value;
}

/// What a column can be read as.
pub trait ColumnValue: Sized {
    /// What a value says; `None` if it is of another type.
    fn read(value: &Value) -> Option<Self>;
}

impl StatementParameter for i64 {
    fn value(&self) -> Value {
        Value::Integer(*self)
    }
}

impl StatementParameter for u64 {
    fn value(&self) -> Value {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl StatementParameter for u32 {
    fn value(&self) -> Value {
        Value::Integer(i64::from(*self))
    }
}

impl StatementParameter for bool {
    fn value(&self) -> Value {
        Value::Integer(i64::from(*self))
    }
}

impl StatementParameter for str {
    fn value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl StatementParameter for String {
    fn value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl StatementParameter for [u8] {
    fn value(&self) -> Value {
        Value::Blob(self.to_owned())
    }
}

impl StatementParameter for Vec<u8> {
    fn value(&self) -> Value {
        Value::Blob(self.clone())
    }
}

impl StatementParameter for RemoteId {
    fn value(&self) -> Value {
        Value::Blob(self.0.to_vec())
    }
}

impl StatementParameter for UploadId {
    fn value(&self) -> Value {
        Value::Blob(self.0.to_vec())
    }
}

impl<T: StatementParameter + ?Sized> StatementParameter for &T {
    fn value(&self) -> Value {
        (*self).value()
    }
}

impl<T: StatementParameter> StatementParameter for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, StatementParameter::value)
    }
}

impl ColumnValue for i64 {
    fn read(value: &Value) -> Option<i64> {
        match value {
            Value::Integer(integer) => Some(*integer),
            _ => None,
        }
    }
}

impl ColumnValue for u64 {
    fn read(value: &Value) -> Option<u64> {
        i64::read(value)?.try_into().ok()
    }
}

impl ColumnValue for u32 {
    fn read(value: &Value) -> Option<u32> {
        i64::read(value)?.try_into().ok()
    }
}

impl ColumnValue for bool {
    fn read(value: &Value) -> Option<bool> {
        i64::read(value).map(|integer| integer != 0)
    }
}

impl ColumnValue for String {
    fn read(value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl ColumnValue for Vec<u8> {
    fn read(value: &Value) -> Option<Vec<u8>> {
        match value {
            Value::Blob(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl ColumnValue for RemoteId {
    fn read(value: &Value) -> Option<RemoteId> {
        RemoteId::from_slice(&Vec::read(value)?)
    }
}

impl ColumnValue for UploadId {
    fn read(value: &Value) -> Option<UploadId> {
        UploadId::from_slice(&Vec::read(value)?)
    }
}

impl<T: ColumnValue> ColumnValue for Option<T> {
    fn read(value: &Value) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::read(value).map(Some),
        }
    }
}
