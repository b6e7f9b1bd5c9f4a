//! Running statements of scripts for uploaded rows: each row's in turn, all of them in one flight.

use futures_util::future::{BoxFuture, FutureExt, join3};
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::{Client, Error, Statement};

use tidewater_protocol::Value;

use super::refusal::{may_be_data_error, reason};
use super::{Result, UploadRows};
use crate::calls::of_script;
use crate::connection::{centre_error, refused};
use crate::decoder::RowDecoder;
use crate::own::all_at_once;
use crate::values::Kind;
use tidewater_centre::engine::scripts;
use tidewater_centre::engine::upload::rows::{Refusal, ScriptRan};

const RUNNING: &str = "running a script";

impl UploadRows<'_> {
    /// See [`run_script`](tidewater_centre::engine::upload::rows::Rows::run_script).
    pub(super) async fn run_statement(
        &mut self,
        statement: &scripts::Statement,
        parameters: &[Vec<Value>],
    ) -> Result<Vec<ScriptRan>> {
        let prepared = self.connection.prepare(&statement.script.sql, &[]).await?;
        let mut all = Vec::with_capacity(parameters.len());
        let mut rest = parameters;
        while !rest.is_empty() {
            let (ran, refused) = self.try_statement(&prepared, statement, rest).await?;
            match refused {
                None => {
                    all.extend(ran);
                    break;
                }
                // Those before it are undone with it.
                Some((place, refusal)) => {
                    let (before, from) = rest.split_at(place);
                    if !before.is_empty() {
                        let (ran, refused) =
                            self.try_statement(&prepared, statement, before).await?;
                        all.extend(ran);
                        if let Some((place, refusal)) = refused {
                            all.truncate(all.len() - before.len() + place);
                            all.push(ScriptRan::Refused(refusal));
                            rest = &rest[place + 1..];
                            continue;
                        }
                    }
                    all.push(ScriptRan::Refused(refusal));
                    rest = &from[1..];
                }
            }
        }
        Ok(all)
    }

    /// Runs a statement for rows in a savepoint: all of them, or the place and the refusal of the
    /// first that is refused, and nothing is done.
    async fn try_statement(
        &self,
        prepared: &Statement,
        statement: &scripts::Statement,
        parameters: &[Vec<Value>],
    ) -> Result<(Vec<ScriptRan>, Option<(usize, Refusal)>)> {
        let (client, acting) = (self.connection.client(), &self.acting);
        let begin = format!("SAVEPOINT tidewater_script; {}", acting.enter());
        let end = format!("{}RELEASE tidewater_script", acting.leave());
        let runs = parameters
            .iter()
            .map(|values| run(client, prepared, statement, values).boxed());
        let runs: Vec<BoxFuture<'_, _>> = runs.collect();
        let (saved, ran, released) = join3(
            client.batch_execute(&begin),
            all_at_once(runs),
            client.batch_execute(&end),
        )
        .await;
        saved.map_err(refused(RUNNING))?;
        let mut done = Vec::with_capacity(parameters.len());
        for (place, ran) in ran.into_iter().enumerate() {
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
                    return Ok((Vec::new(), Some((place, refusal))));
                }
            }
        }
        released.map_err(refused(RUNNING))?;
        Ok((done, None))
    }
}

async fn run(
    client: &Client,
    prepared: &Statement,
    statement: &scripts::Statement,
    values: &[Value],
) -> std::result::Result<ScriptRan, Error> {
    let arguments = of_script(statement, values, prepared);
    let rows = client.query_raw(prepared, arguments).await?;
    pin_mut!(rows);
    let mut first = None;
    let kinds = prepared
        .columns()
        .iter()
        .map(|it| Kind::of(it.type_().oid()));
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
    Ok(ScriptRan::Done {
        changed,
        row: first,
    })
}
