//! Running the statements of scripts for uploaded rows: each row's in turn, all of them in one
//! flight; or once for all rows of a set.

use futures_util::future::{BoxFuture, FutureExt, join3};
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

use tidewater_protocol::{Code, Value};

use super::refusal::{may_be_data_error, reason};
use super::{Result, UploadRows};
use crate::arguments::{EncodedArgument, of_script};
use crate::array::Array;
use crate::decoder::RowDecoder;
use crate::driver_error::{centre_error, statement_failed};
use crate::publication::ServedTable;
use crate::script_times;
use crate::system_statement::all_at_once;
use crate::values::PostgresType;
use tidewater_centre::engine::scripts::{self, SCRIPT_TIMEOUT};
use tidewater_centre::engine::upload::refusal_reason::RefusalReason;
use tidewater_centre::engine::upload::upload_writer::{RowSet, ScriptOutcome};

const RUNNING: &str = "running a script";

/// So many rows are tried at once after one was refused.
const CAREFULLY: usize = 16;

/// What statements come to in a savepoint: with what each yields; or the refusal, with the number
/// of the statement.
type Tried<T> = std::result::Result<Vec<T>, (usize, RefusalReason)>;

impl UploadRows<'_> {
    /// See [`run_script`](tidewater_centre::engine::upload::upload_writer::UploadWriter::run_script).
    pub(super) async fn run_statements(
        &mut self,
        statements: &[scripts::ScriptStatement],
        rows: &[Vec<Vec<Value>>],
    ) -> Result<Vec<ScriptOutcome>> {
        let prepared = self.prepare_scripts(statements).await?;
        let mut all = Vec::with_capacity(rows.len());
        let (mut rest, mut size) = (rows, rows.len());
        while !rest.is_empty() {
            let some = &rest[..size.clamp(1, rest.len())];
            let each = some.iter().flat_map(|row| {
                let of_row = statements.iter().zip(&prepared).zip(row);
                of_row.map(|((statement, prepared), values)| {
                    let arguments = of_script(statement, values, prepared);
                    run(self.connection.client(), prepared, statement, arguments).boxed()
                })
            });
            match self.try_scripts(each.collect()).await? {
                Ok(ran) => {
                    let rows = ran.chunks(statements.len().max(1));
                    all.extend(rows.map(together));
                    rest = &rest[some.len()..];
                    size = size.saturating_mul(4);
                }
                // Those before it were undone with it.
                Err((number, refusal)) => match number / statements.len().max(1) {
                    0 => {
                        all.push(ScriptOutcome::Refused(refusal));
                        rest = &rest[1..];
                        size = CAREFULLY;
                    }
                    before => size = before,
                },
            }
        }
        Ok(all)
    }

    /// See [`run_set`](tidewater_centre::engine::upload::upload_writer::UploadWriter::run_set).
    pub(super) async fn run_for_set(
        &mut self,
        table: &ServedTable,
        statements: &[scripts::ScriptStatement],
        set: &RowSet,
    ) -> Result<ScriptOutcome> {
        let prepared = self.prepare_scripts(statements).await?;
        let mut arrays = Vec::new();
        let columns = statements
            .iter()
            .map(|it| &it.set)
            .find(|it| !it.is_empty());
        for (at, column) in columns.into_iter().flat_map(|it| it.iter()).enumerate() {
            let mut array = Array::new(table.columns[column.index].kind);
            for row in &set.rows {
                let (datum, _) = column.column_type.datum(row[at].as_ref());
                if array.push(&datum).is_err() {
                    return Ok(ScriptOutcome::Refused(RefusalReason {
                        code: Code::RowBadValue,
                        reason: format!("the value of {} is none of its column's", column.name),
                        database_code: None,
                    }));
                }
            }
            arrays.push(array);
        }
        let client = self.connection.client();
        let runs = statements.iter().zip(&prepared).zip(&set.values);
        let runs = runs.map(|((statement, prepared), values)| {
            let arguments = of_script(statement, values, prepared);
            let arrays: &[Array] = match statement.set.is_empty() {
                true => &[],
                false => &arrays,
            };
            run_with(client, prepared, statement, arguments, arrays).boxed()
        });
        Ok(match self.try_scripts(runs.collect()).await? {
            Ok(ran) => {
                let of_set = statements
                    .iter()
                    .zip(&ran)
                    .filter(|it| !it.0.set.is_empty());
                let changed = of_set.filter_map(|(_, ran)| ran.0).min();
                ScriptOutcome::Done { changed, row: None }
            }
            Err((_, refusal)) => ScriptOutcome::Refused(refusal),
        })
    }

    async fn prepare_scripts(
        &mut self,
        statements: &[scripts::ScriptStatement],
    ) -> Result<Vec<Statement>> {
        let mut prepared = Vec::with_capacity(statements.len());
        for statement in statements {
            prepared.push(script_times::prepare(self.connection, &statement.script).await?);
        }
        Ok(prepared)
    }

    /// Runs statements in a savepoint, in one flight: all of them or none.
    async fn try_scripts<T>(
        &self,
        runs: Vec<BoxFuture<'_, std::result::Result<T, Error>>>,
    ) -> Result<Tried<T>> {
        let (client, acting) = (self.connection.client(), &self.acting);
        let millis = SCRIPT_TIMEOUT.as_millis();
        let begin = format!(
            "SAVEPOINT tidewater_script; SET LOCAL statement_timeout = {millis}; {}",
            acting.enter()
        );
        let end = format!(
            "{}SET LOCAL statement_timeout TO DEFAULT; RELEASE tidewater_script",
            acting.leave()
        );
        let count = runs.len();
        let (saved, ran, released) = join3(
            client.batch_execute(&begin),
            all_at_once(runs),
            client.batch_execute(&end),
        )
        .await;
        saved.map_err(statement_failed(RUNNING))?;
        let mut done = Vec::with_capacity(count);
        for (number, ran) in ran.into_iter().enumerate() {
            match ran {
                Ok(ran) => done.push(ran),
                Err(error) => {
                    let of_row = may_be_data_error(&error) || acting.is_denied(&error);
                    let Some(refusal) = error.as_db_error().filter(|_| of_row) else {
                        return Err(centre_error(RUNNING, &error));
                    };
                    let refusal = reason(refusal);
                    self.savepoint("ROLLBACK TO tidewater_script; RELEASE tidewater_script")
                        .await?;
                    return Ok(Err((number, refusal)));
                }
            }
        }
        released.map_err(statement_failed(RUNNING))?;
        Ok(Ok(done))
    }
}

/// What the statements of a script have come to together.
fn together(ran: &[(Option<u64>, Option<Vec<Value>>)]) -> ScriptOutcome {
    ScriptOutcome::Done {
        changed: ran.iter().filter_map(|it| it.0).min(),
        row: ran.last().and_then(|it| it.1.clone()),
    }
}

/// How many rows a statement has changed, if that tells anything, and the first that it yields.
type Ran = std::result::Result<(Option<u64>, Option<Vec<Value>>), Error>;

async fn run(
    client: &Client,
    prepared: &Statement,
    statement: &scripts::ScriptStatement,
    arguments: Vec<EncodedArgument>,
) -> Ran {
    run_with(client, prepared, statement, arguments, &[]).await
}

async fn run_with(
    client: &Client,
    prepared: &Statement,
    statement: &scripts::ScriptStatement,
    arguments: Vec<EncodedArgument>,
    arrays: &[Array],
) -> Ran {
    let arguments = arguments.iter().map(|it| it as &(dyn ToSql + Sync));
    let arrays = arrays.iter().map(|it| it as &(dyn ToSql + Sync));
    let parameters: Vec<&(dyn ToSql + Sync)> = arguments.chain(arrays).collect();
    let rows = client.query_raw(prepared, parameters).await?;
    pin_mut!(rows);
    let mut first = None;
    let columns = prepared.columns().iter();
    let kinds = columns.map(|it| PostgresType::from_oid(it.type_().oid()));
    let mut decoder = RowDecoder::new(kinds);
    while let Some(row) = rows.next().await {
        let row = row?;
        if first.is_some() || statement.yields.is_empty() {
            continue;
        }
        let mut datums = Vec::new();
        let read = decoder.result(&row, 0, &mut datums);
        first = read
            .is_ok()
            .then(|| datums.iter().map(|it| it.to_value()).collect());
    }
    let changed = rows.rows_affected().filter(|_| statement.counts);
    Ok((changed, first))
}
