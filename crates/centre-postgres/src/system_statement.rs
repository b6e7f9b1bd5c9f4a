//! How statements on the server's own tables are run here.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::future::{self, BoxFuture};
use futures_util::{FutureExt, StreamExt, pin_mut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Error, Statement};

use tidewater_protocol::{ColumnType, Value};

use super::connection::PostgresConnection;
use super::description::describe;
use super::dialect::PostgresDialect;
use crate::driver_error::statement_failed;
use crate::publication::PostgresTables;
use crate::script_times;
use crate::step_failure::{StepFailure, step_failed};
use crate::table_statement::{PreparedTableStatement, run_on_tables, sets};
use tidewater_centre::engine::connection::{self, ResultRow, StatementResult, SystemStatement};
use tidewater_centre::engine::described_statement::{DescribedStatement, DescriptionError};
use tidewater_centre::engine::flight::{
    FlightFailure, FlightStep, RowTaker, StatementUse, TableArgument, TableStatement,
};
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
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
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
    fn from_sql(
        kind: &Type,
        bytes: &'a [u8],
    ) -> Result<ResultCell, Box<dyn std::error::Error + Sync + Send>> {
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

    fn from_sql_null(_: &Type) -> Result<ResultCell, Box<dyn std::error::Error + Sync + Send>> {
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
) -> Result<StatementResult, Error> {
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
        let values: Result<_, Error> = values.collect();
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

impl PostgresConnection {
    async fn prepare_one_of_own(
        &mut self,
        own: &SystemStatement,
    ) -> Result<Statement, CentreError> {
        let identity = own.sql.identity();
        if let Some(known) = self.system_statements.get(&identity) {
            return Ok(known.clone());
        }
        let statement = self.prepare(&PostgresDialect.spell(own.sql), &[]).await?;
        self.system_statements.insert(identity, statement.clone());
        Ok(statement)
    }
}

impl connection::DatabaseConnection for PostgresConnection {
    type Tables = PostgresTables;

    const DIALECT: &'static dyn SqlDialect = &PostgresDialect;

    fn is_lost(&self) -> bool {
        self.is_closed()
    }

    async fn run(
        &mut self,
        what: &str,
        steps: Vec<FlightStep<'_, PostgresTables>>,
    ) -> Result<Vec<StatementResult>, FlightFailure> {
        let mut prepared = Vec::with_capacity(steps.len());
        for (step, number) in steps.into_iter().zip(0..) {
            let step = self.prepare_step(step).await;
            let step = step.map_err(|StepFailure { error, fault }| FlightFailure {
                step: number,
                done: None,
                error,
                fault,
            })?;
            prepared.push(step);
        }
        join_texts(&mut prepared);
        let client = self.client();
        let runs = prepared.into_iter();
        let runs = runs.map(|step| run_step(client, what, step).boxed());
        let mut done = Vec::with_capacity(runs.len());
        // After a failure, what follows in a transaction fails, too, and its end undoes it.
        for answer in all_at_once(runs.collect()).await {
            match answer {
                Ok(answer) => done.push(answer),
                Err(StepFailure { error, fault }) => {
                    return Err(FlightFailure {
                        step: done.len(),
                        done: Some(done),
                        error,
                        fault,
                    });
                }
            }
        }
        Ok(done)
    }

    async fn describe(
        &mut self,
        sql: &str,
        told: &[Option<ColumnType>],
    ) -> Result<DescribedStatement, DescriptionError> {
        describe(self.client(), sql, told).await
    }
}

impl PostgresConnection {
    /// Prepares the statement of a step, if it has one.
    async fn prepare_step<'s>(
        &mut self,
        step: FlightStep<'s, PostgresTables>,
    ) -> Result<PreparedStep<'s>, StepFailure> {
        Ok(match step {
            FlightStep::Run(sql) => PreparedStep::Run(sql),
            FlightStep::Limit(limit) => PreparedStep::Run(match limit {
                Some(limit) => {
                    let millis = limit.as_millis();
                    format!("SET LOCAL statement_timeout = {millis}").into()
                }
                None => "SET LOCAL statement_timeout TO DEFAULT".into(),
            }),
            FlightStep::Commit => PreparedStep::Commit,
            FlightStep::System(own) => {
                PreparedStep::System(self.prepare_one_of_own(own).await?, own)
            }
            FlightStep::Table(asked, take) => {
                let sets = sets(&asked.arguments)?;
                let prepared = self.prepare_on_tables(&asked).await?;
                let statement = PreparedTableStatement {
                    prepared,
                    asked,
                    sets,
                };
                PreparedStep::Table(statement, take)
            }
        })
    }

    async fn prepare_on_tables(
        &mut self,
        statement: &TableStatement<'_, PostgresTables>,
    ) -> Result<Statement, CentreError> {
        let types = statement.arguments.iter().map(|it| match it {
            TableArgument::Value(kind, _) => {
                Type::from_oid(kind.parameter().0).unwrap_or(Type::UNKNOWN)
            }
            TableArgument::Untyped(..) | TableArgument::Rows(_) => Type::UNKNOWN,
            TableArgument::Moment(_) => Type::TIMESTAMPTZ,
        });
        let mut types: Vec<Type> = types.collect();
        let last = types.iter().rposition(|it| *it != Type::UNKNOWN);
        types.truncate(last.map_or(0, |it| it + 1));
        match statement.usage {
            StatementUse::Often => {
                let sql = script_times::told_apart(&statement.sql, &statement.arguments);
                self.prepare(&sql, &types).await
            }
            StatementUse::Once => {
                let prepared = self.client().prepare_typed(&statement.sql, &types).await;
                prepared.map_err(statement_failed(statement.what))
            }
            // Prepared before: what is sent after another answer would be run behind the rest of
            // the flight.
            StatementUse::Bulk => {
                let copy = format!("COPY ({}) TO STDOUT (FORMAT BINARY)", statement.sql);
                let prepared = self.client().prepare(&copy).await;
                prepared.map_err(statement_failed(statement.what))
            }
        }
    }
}

/// A step of a flight whose statement is prepared.
enum PreparedStep<'s> {
    Run(Cow<'s, str>),
    /// Sent by itself: a text before it that fails would keep it from undoing the transaction.
    Commit,
    System(Statement, &'s SystemStatement),
    Table(PreparedTableStatement<'s>, RowTaker<'s>),
}

/// Texts behind each other go as one.
fn join_texts(steps: &mut [PreparedStep<'_>]) {
    let mut first: Option<usize> = None;
    for at in 0..steps.len() {
        let PreparedStep::Run(text) = &mut steps[at] else {
            first = None;
            continue;
        };
        let text = std::mem::take(text);
        match first {
            _ if text.is_empty() => {}
            None => {
                steps[at] = PreparedStep::Run(text);
                first = Some(at);
            }
            Some(first) => {
                if let PreparedStep::Run(before) = &mut steps[first] {
                    *before = format!("{before}; {text}").into();
                }
            }
        }
    }
}

async fn run_text(client: &Client, what: &str, sql: &str) -> Result<StatementResult, StepFailure> {
    let done = client.batch_execute(sql).await;
    done.map_err(step_failed(what))?;
    Ok(StatementResult::default())
}

async fn run_step(
    client: &Client,
    what: &str,
    step: PreparedStep<'_>,
) -> Result<StatementResult, StepFailure> {
    match step {
        PreparedStep::Run(sql) if sql.is_empty() => Ok(StatementResult::default()),
        PreparedStep::Run(sql) => run_text(client, what, &sql).await,
        PreparedStep::Commit => run_text(client, what, "COMMIT").await,
        PreparedStep::System(prepared, own) => {
            let answer = run(client, &prepared, own).await;
            answer.map_err(step_failed(what))
        }
        PreparedStep::Table(statement, mut take) => {
            run_on_tables(client, &statement, &mut *take).await
        }
    }
}
