//! Reading what a remote holds of a table, row by row.

use rusqlite::types::Value as Native;
use rusqlite::{Connection, params_from_iter};

use tidewater_protocol::{ColumnType, Datum};

use super::{Plan, partition_values, values};
use crate::error::CentreError;
use crate::sqlite::failure;

/// Reads everything that the remote holds of a table.
pub(super) fn all_rows(
    connection: &Connection,
    plan: &Plan<'_>,
    index: usize,
    mut take: impl FnMut(&[Datum<'_>]) -> Result<(), CentreError>,
) -> Result<(), CentreError> {
    let table = &plan.publication.tables[index];
    if table.partition_types.is_empty() {
        let types = &plan.publication.shapes[index].columns;
        return query_rows(connection, &table.select_all, Vec::new(), types, take);
    }
    for partition in &plan.scope.tables[index] {
        partition_rows(connection, plan, index, partition, &mut take)?;
    }
    Ok(())
}

/// Reads a partition of a table.
pub(super) fn partition_rows(
    connection: &Connection,
    plan: &Plan<'_>,
    index: usize,
    partition: &[u8],
    take: impl FnMut(&[Datum<'_>]) -> Result<(), CentreError>,
) -> Result<(), CentreError> {
    let table = &plan.publication.tables[index];
    let types = &plan.publication.shapes[index].columns;
    let values = partition_values(table, partition)?;
    query_rows(connection, &table.select_partition, values, types, take)
}

fn query_rows(
    connection: &Connection,
    sql: &str,
    parameters: Vec<Native>,
    types: &[ColumnType],
    mut take: impl FnMut(&[Datum<'_>]) -> Result<(), CentreError>,
) -> Result<(), CentreError> {
    let reading = failure("reading a table");
    let mut statement = connection.prepare_cached(sql).map_err(reading)?;
    let mut rows = statement
        .query(params_from_iter(parameters))
        .map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        take(&values(row, 0, types).map_err(reading)?)?;
    }
    Ok(())
}
