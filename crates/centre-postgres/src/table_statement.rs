//! How statements on the application's tables are run here: their rows are arrays, one for each
//! column, and what reads much is COPY.

use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use tidewater_protocol::ColumnType;

use super::arguments::{EncodedArgument, argument, encoded};
use super::array::Array;
use super::decoder::{RowDecoder, recycle};
use super::publication::PostgresTables;
use super::values::PostgresType;
use crate::step_failure::{StepFailure, step_failed};
use tidewater_centre::engine::connection::StatementResult;
use tidewater_centre::engine::flight::{
    SetArgument, StatementUse, TableArgument, TableStatement, TakeRow,
};

/// COPY BINARY begins with a signature, flags and an extension area.
const COPY_HEADER_BYTES: usize = 19;

/// A statement on the application's tables that is ready to be sent.
pub(super) struct PreparedTableStatement<'s> {
    pub(super) prepared: Statement,
    pub(super) asked: TableStatement<'s, PostgresTables>,
    /// The sets among its arguments.
    pub(super) sets: Vec<Array>,
}

/// Runs a prepared statement, and has the rows that it yields taken.
pub(super) async fn run_on_tables(
    client: &Client,
    PreparedTableStatement {
        prepared,
        asked,
        sets,
    }: &PreparedTableStatement<'_>,
    take: TakeRow<'_>,
) -> Result<StatementResult, StepFailure> {
    if asked.usage == StatementUse::Bulk {
        copy_out(client, prepared, asked, take).await?;
        return Ok(StatementResult::default());
    }
    let failed = step_failed(asked.what);
    let mut arguments: Vec<EncodedArgument> = Vec::with_capacity(asked.arguments.len());
    for (it, of) in asked.arguments.iter().zip(prepared.params()) {
        match it {
            TableArgument::Value(kind, value) => arguments.push(encoded(*kind, value)?),
            TableArgument::Untyped(column_type, value) => {
                arguments.push(argument(*column_type, value, of));
            }
            TableArgument::Moment(value) => {
                arguments.push(argument(ColumnType::TimestampTz, value, of));
            }
            TableArgument::Rows(_) => {}
        }
    }
    let arrays = asked.rows.iter().flat_map(|it| &it.arrays).chain(sets);
    let parameters = arguments.iter().map(|it| it as &(dyn ToSql + Sync));
    let parameters = parameters.chain(arrays.map(|it| it as &(dyn ToSql + Sync)));
    let parameters: Vec<&(dyn ToSql + Sync)> = parameters.collect();
    let rows = client.query_raw(prepared, parameters).await;
    let mut rows = pin!(rows.map_err(&failed)?);
    let is_described = !asked.described.is_empty();
    let mut decoder = match is_described {
        true => {
            let columns = prepared.columns().iter();
            RowDecoder::new(columns.map(|it| PostgresType::from_oid(it.type_().oid())))
        }
        false => RowDecoder::new(asked.yields.iter().copied()),
    };
    let mut values = Vec::with_capacity(asked.yields.len());
    while let Some(row) = rows.try_next().await.map_err(&failed)? {
        let mut datums = recycle(values);
        match decoder.result(&row, 0, &mut datums) {
            Ok(()) => take(&datums)?,
            // What an operator's statement yields may be nothing that can be read.
            Err(_) if asked.passes_unreadable => {}
            Err(error) => return Err(error.into()),
        }
        values = recycle(datums);
    }
    Ok(StatementResult {
        rows: Vec::new(),
        changed: rows.rows_affected().unwrap_or(0),
    })
}

/// The parameters of the relations of rows among some arguments, an array for each column.
pub(super) fn sets(
    arguments: &[TableArgument<'_, PostgresType>],
) -> Result<Vec<Array>, StepFailure> {
    let mut sets = Vec::new();
    for argument in arguments {
        if let TableArgument::Rows(set) = argument {
            sets.extend(set_arrays(set)?);
        }
    }
    Ok(sets)
}

fn set_arrays(set: &SetArgument<'_, PostgresType>) -> Result<Vec<Array>, StepFailure> {
    let columns = set.columns.iter().enumerate().map(|(at, column)| {
        let mut array = Array::new(column.kind);
        for row in set.rows {
            let (datum, _) = column.column_type.datum(row[at].as_ref());
            if array.push(&datum).is_err() {
                return Err(StepFailure::unfit(column.name));
            }
        }
        Ok(array)
    });
    columns.collect()
}

/// Reads the rows of a COPY.
async fn copy_out(
    client: &Client,
    prepared: &Statement,
    asked: &TableStatement<'_, PostgresTables>,
    take: TakeRow<'_>,
) -> Result<(), StepFailure> {
    let failed = step_failed(asked.what);
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
