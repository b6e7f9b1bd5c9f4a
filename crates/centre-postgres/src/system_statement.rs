//! How statements on the server's own tables are run here.

use std::error::Error;
use std::pin::Pin;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::future::{self, BoxFuture};
use futures_util::{FutureExt, StreamExt, TryFutureExt, pin_mut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

use tidewater_protocol::{ColumnType, Value};

use super::connection::PostgresConnection;
use super::description::describe;
use super::dialect::PostgresDialect;
use crate::driver_error::{centre_error, statement_failed};
use tidewater_centre::engine::connection::{
    self, Durability, ResultRow, StatementResult, SystemStatement,
};
use tidewater_centre::engine::described_statement::{DescribedStatement, DescriptionError};
use tidewater_centre::engine::sql::sql_dialect::SqlDialect;
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_centre::error::CentreError;

/// A parameter, encoded as the type that PostgreSQL gave it.
#[derive(Debug)]
struct EncodedParameter<'a>(&'a Value);

impl ToSql for EncodedParameter<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(integer) => match *kind {
                Type::BOOL => (*integer != 0).to_sql(kind, out),
                Type::INT2 => i16::try_from(*integer)?.to_sql(kind, out),
                Type::INT4 => i32::try_from(*integer)?.to_sql(kind, out),
                Type::OID => u32::try_from(*integer)?.to_sql(kind, out),
                _ => integer.to_sql(kind, out),
            },
            Value::Real(real) => real.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Blob(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A value of a result.
struct ResultCell(Value);

impl<'a> FromSql<'a> for ResultCell {
    fn from_sql(kind: &Type, bytes: &'a [u8]) -> Result<ResultCell, Box<dyn Error + Sync + Send>> {
        Ok(ResultCell(match *kind {
            Type::BOOL => Value::Integer(i64::from(bool::from_sql(kind, bytes)?)),
            Type::INT2 => Value::Integer(i64::from(i16::from_sql(kind, bytes)?)),
            Type::INT4 => Value::Integer(i64::from(i32::from_sql(kind, bytes)?)),
            Type::INT8 => Value::Integer(i64::from_sql(kind, bytes)?),
            Type::OID => Value::Integer(i64::from(u32::from_sql(kind, bytes)?)),
            Type::BYTEA => Value::Blob(bytes.to_owned()),
            _ => Value::Text(std::str::from_utf8(bytes)?.to_owned()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<ResultCell, Box<dyn Error + Sync + Send>> {
        Ok(ResultCell(Value::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

async fn run(
    client: &Client,
    statement: &Statement,
    own: &SystemStatement,
) -> Result<StatementResult, tokio_postgres::Error> {
    // Rows are arrays, one for each column.
    let rows = match own.sql.row_columns() {
        None => {
            let parameters = own.parameters.iter().map(EncodedParameter);
            client.query_raw(statement, parameters).await?
        }
        Some(columns) => {
            let column = |at: usize| own.rows.iter().map(move |row| EncodedParameter(&row[at]));
            let arrays = (0..columns).map(|at| column(at).collect::<Vec<_>>());
            client.query_raw(statement, arrays).await?
        }
    };
    pin_mut!(rows);
    let mut answer = StatementResult::default();
    while let Some(row) = rows.next().await {
        let row = row?;
        let values = (0..row.len()).map(|index| Ok(row.try_get::<_, ResultCell>(index)?.0));
        let values: Result<_, tokio_postgres::Error> = values.collect();
        answer.rows.push(ResultRow(values?));
    }
    answer.changed = rows.rows_affected().unwrap_or(0);
    Ok(answer)
}

/// Sends everything before it waits for the first answer.
pub(super) async fn all_at_once<T>(futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<_> = futures.into_iter().map(future::maybe_done).collect();
    future::poll_fn(|context| {
        for future in &mut done {
            let _ = Pin::new(future).poll(context);
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(done.len());
    for mut future in done {
        (&mut future).await;
        outputs.extend(Pin::new(&mut future).take_output());
    }
    outputs
}

/// Runs statements that [`PostgresConnection::prepare_own`] has prepared, all in one flight.
pub(super) async fn run_all(
    client: &Client,
    prepared: &[Statement],
    statements: &[SystemStatement],
) -> Result<Vec<StatementResult>, tokio_postgres::Error> {
    let runs = prepared.iter().zip(statements);
    let runs = runs.map(|(statement, own)| run(client, statement, own).boxed());
    let answers = all_at_once(runs.collect()).await.into_iter();
    answers.collect()
}

impl PostgresConnection {
    pub(super) async fn prepare_own(
        &mut self,
        statements: &[SystemStatement],
    ) -> Result<Vec<Statement>, CentreError> {
        let mut prepared = Vec::with_capacity(statements.len());
        for own in statements {
            let identity = own.sql.identity();
            if let Some(known) = self.system_statements.get(&identity) {
                prepared.push(known.clone());
                continue;
            }
            let statement = self.prepare(&PostgresDialect.spell(own.sql), &[]).await?;
            self.system_statements.insert(identity, statement.clone());
            prepared.push(statement);
        }
        Ok(prepared)
    }
}

impl connection::DatabaseConnection for PostgresConnection {
    const DIALECT: &'static dyn SqlDialect = &PostgresDialect;

    async fn flight(
        &mut self,
        what: &'static str,
        statements: &[SystemStatement],
    ) -> Result<Vec<StatementResult>, CentreError> {
        let prepared = self.prepare_own(statements).await?;
        let answers = run_all(self.client(), &prepared, statements).await;
        answers.map_err(statement_failed(what))
    }

    async fn transact(
        &mut self,
        what: &'static str,
        durability: Durability,
        statements: &[SystemStatement],
    ) -> Result<Vec<StatementResult>, CentreError> {
        let prepared = self.prepare_own(statements).await?;
        let client = self.client();
        let begin = match durability {
            Durability::Durable => "BEGIN",
            Durability::Soon => "BEGIN; SET LOCAL synchronous_commit = off",
        };
        let batch = |sql| {
            client
                .batch_execute(sql)
                .map_ok(|()| StatementResult::default())
        };
        let mut runs = vec![batch(begin).boxed()];
        for (statement, own) in prepared.iter().zip(statements) {
            runs.push(run(client, statement, own).boxed());
        }
        // After a failure it undoes the transaction.
        runs.push(batch("COMMIT").boxed());
        let answers = all_at_once(runs).await.into_iter();
        let mut answers: Vec<StatementResult> = answers
            .collect::<Result<_, _>>()
            .map_err(statement_failed(what))?;
        answers.pop();
        answers.remove(0);
        Ok(answers)
    }

    async fn describe(
        &mut self,
        sql: &str,
        told: &[Option<ColumnType>],
    ) -> Result<DescribedStatement, DescriptionError> {
        describe(self.client(), sql, told).await
    }

    async fn begin(&mut self) -> Result<(), CentreError> {
        let begun = self.client().batch_execute("BEGIN").await;
        begun.map_err(statement_failed("beginning a transaction"))
    }

    async fn begin_reading(&mut self) -> Result<(), CentreError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let begun = self.client().batch_execute(begin).await;
        begun.map_err(statement_failed("beginning to read"))
    }

    async fn begin_trying(&mut self) -> Result<(), CentreError> {
        // One that only reads creates no temporary tables, either.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
        let begun = self.client().batch_execute(begin).await;
        begun.map_err(statement_failed("beginning to read"))
    }

    async fn execute(&mut self, what: &str, sql: &str) -> Result<(), CentreError> {
        let executed = self.client().batch_execute(sql).await;
        executed.map_err(|error| match error.code().map(|code| code.code()) {
            // lock_not_available
            Some("55P03") => CentreError::Locked {
                message: "the table is locked by another session".into(),
            },
            _ => centre_error(what, &error),
        })
    }

    async fn commit(&mut self) -> Result<(), CentreError> {
        let committed = self.client().batch_execute("COMMIT").await;
        committed.map_err(statement_failed("committing a transaction"))
    }

    async fn rollback(&mut self) -> Result<(), CentreError> {
        let undone = self.client().batch_execute("ROLLBACK").await;
        undone.map_err(statement_failed("undoing a transaction"))
    }
}
