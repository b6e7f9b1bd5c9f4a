//! How statements on the application's tables are run here: their rows are arrays, one for each
//! column, and what reads much is COPY.

use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, RowStream, Statement};

use tidewater_protocol::Datum;

use super::arguments::{EncodedArgument, encoded, of_script};
use super::array::Array;
use super::decoder::{RowDecoder, recycle};
use super::publication::PostgresTables;
use super::values::PostgresType;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::connection::StatementResult;
use tidewater_centre::engine::flight::{
    RowParameters, RowSource, ScriptCall, StatementUse, TableArgument, TableStatement, TakeRow,
};
use tidewater_centre::error::CentreError;

/// COPY BINARY begins with a signature, flags and an extension area.
const COPY_HEADER_BYTES: usize = 19;

/// Rows of values as parameters: an array for each column.
#[derive(Debug)]
pub(crate) struct ArrayRows {
    arrays: Vec<Array>,
    count: usize,
    /// Where the arrays ended before the last row.
    before: Vec<(i32, usize)>,
}

impl RowParameters for ArrayRows {
    type Kind = PostgresType;

    fn new(kinds: &[PostgresType]) -> ArrayRows {
        ArrayRows {
            arrays: kinds.iter().map(|&kind| Array::new(kind)).collect(),
            count: 0,
            before: Vec::with_capacity(kinds.len()),
        }
    }

    fn push(&mut self, row: &[Datum<'_>]) -> bool {
        self.before.clear();
        self.before.extend(self.arrays.iter().map(Array::position));
        let mut values = self.arrays.iter_mut().zip(row);
        let fits = values.all(|(array, value)| array.push(value).is_ok());
        match fits {
            true => self.count += 1,
            false => {
                for (array, &before) in self.arrays.iter_mut().zip(&self.before) {
                    array.truncate(before);
                }
            }
        }
        fits
    }

    fn count(&self) -> usize {
        self.count
    }

    fn source(kinds: &[PostgresType], first: usize) -> RowSource {
        let parameters = kinds.iter().zip(first..);
        let parameters = parameters.map(|(&kind, number)| Array::parameter(kind, number));
        let names = (1..=kinds.len()).map(|at| format!("c{at}, "));
        RowSource {
            relation: format!(
                "unnest({}) WITH ORDINALITY AS v({}n)",
                parameters.collect::<Vec<_>>().join(", "),
                names.collect::<String>()
            ),
            number: "v.n".into(),
            columns: (1..=kinds.len()).map(|at| format!("v.c{at}")).collect(),
        }
    }
}

/// Runs a prepared statement, and has the rows that it yields taken.
pub(super) async fn run_on_tables(
    client: &Client,
    prepared: &Statement,
    asked: &TableStatement<'_, PostgresTables>,
    take: TakeRow<'_>,
) -> Result<StatementResult, CentreError> {
    if asked.usage == StatementUse::Bulk {
        copy_out(client, prepared, asked, take).await?;
        return Ok(StatementResult::default());
    }
    let failed = statement_failed(asked.what);
    let arguments = asked.arguments.iter();
    let arguments = arguments.map(|TableArgument::Value(kind, value)| encoded(*kind, value));
    let arguments: Vec<EncodedArgument> = arguments.collect::<Result<_, CentreError>>()?;
    let arrays = asked.rows.iter().flat_map(|it| &it.arrays);
    let parameters = arguments.iter().map(|it| it as &(dyn ToSql + Sync));
    let parameters = parameters.chain(arrays.map(|it| it as &(dyn ToSql + Sync)));
    let parameters: Vec<&(dyn ToSql + Sync)> = parameters.collect();
    let rows = client.query_raw(prepared, parameters).await;
    let decoder = RowDecoder::new(asked.yields.iter().copied());
    take_rows(rows.map_err(&failed)?, decoder, asked.what, take).await
}

/// Runs a statement of a script, whose columns are what PostgreSQL says.
pub(super) async fn run_script(
    client: &Client,
    prepared: &Statement,
    call: ScriptCall<'_>,
    take: TakeRow<'_>,
) -> Result<StatementResult, CentreError> {
    let arguments = of_script(call.statement, call.values, prepared);
    let rows = client.query_raw(prepared, arguments).await;
    let columns = prepared.columns().iter();
    let decoder = RowDecoder::new(columns.map(|it| PostgresType::from_oid(it.type_().oid())));
    let rows = rows.map_err(statement_failed(call.what))?;
    take_rows(rows, decoder, call.what, take).await
}

async fn take_rows(
    rows: RowStream,
    mut decoder: RowDecoder,
    what: &str,
    take: TakeRow<'_>,
) -> Result<StatementResult, CentreError> {
    let failed = statement_failed(what);
    let mut rows = pin!(rows);
    let mut values = Vec::new();
    while let Some(row) = rows.try_next().await.map_err(&failed)? {
        let mut datums = recycle(values);
        decoder.result(&row, 0, &mut datums)?;
        take(&datums)?;
        values = recycle(datums);
    }
    Ok(StatementResult {
        rows: Vec::new(),
        changed: rows.rows_affected().unwrap_or(0),
    })
}

/// Reads the rows of a COPY.
async fn copy_out(
    client: &Client,
    prepared: &Statement,
    asked: &TableStatement<'_, PostgresTables>,
    take: TakeRow<'_>,
) -> Result<(), CentreError> {
    let failed = statement_failed(asked.what);
    let stream = client.copy_out(prepared).await.map_err(&failed)?;
    let mut stream = pin!(stream);
    let mut decoder = RowDecoder::new(asked.yields.iter().copied());
    let mut values = Vec::with_capacity(asked.yields.len());
    let mut skip = COPY_HEADER_BYTES;
    // What a message of COPY began and the next one completes.
    let mut carry: Vec<u8> = Vec::new();
    while let Some(message) = stream.try_next().await.map_err(&failed)? {
        let carried = !carry.is_empty();
        if carried {
            carry.extend_from_slice(&message);
        }
        let bytes: &[u8] = if carried { &carry } else { &message };
        let mut at = skip.min(bytes.len());
        skip -= at;
        // A field count of -1 ends the data.
        while let Some(count) = bytes.get(at..at + 2)
            && count != [0xff, 0xff]
        {
            let mut row = recycle(values);
            let length = decoder.tuple(&bytes[at + 2..], &mut row)?;
            if length.is_some() {
                take(&row)?;
            }
            values = recycle(row);
            match length {
                Some(length) => at += 2 + length,
                None => break,
            }
        }
        let ended = bytes.get(at..at + 2) == Some(&[0xff, 0xff]);
        carry = match ended {
            true => Vec::new(),
            false => bytes[at..].to_vec(),
        };
    }
    Ok(())
}
