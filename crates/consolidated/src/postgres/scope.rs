//! Who holds which partitions: running the partition queries, and what became of a
//! scope since it was signed.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::try_join_all;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use tidewater_protocol::{Datum, pack};

use super::array::Array;
use super::connection::{Connection, refused};
use super::model::{Compiled, CompiledTable, PgColumn};
use super::rows::RowDecoder;
use crate::engine::exact::unpack;
use crate::error::CentreError;
use crate::scope::Scope;

/// The partition queries of some publications, prepared; equal ones run once.
pub(super) struct ScopeQueries {
    statements: Vec<(Statement, Vec<String>)>,
    /// For each publication and table: which of them.
    of_table: Vec<Vec<Option<usize>>>,
}

/// Facts of the sync that a query can name.
pub(super) struct Facts<'a> {
    pub(super) user: &'a str,
    pub(super) remote_id: String,
}

impl ScopeQueries {
    /// Prepares the queries.
    pub(super) async fn prepare(
        connection: &mut Connection,
        facts: &Facts<'_>,
        publications: &[&Compiled],
    ) -> Result<ScopeQueries, CentreError> {
        let mut queries = ScopeQueries {
            statements: Vec::new(),
            of_table: Vec::with_capacity(publications.len()),
        };
        let mut seen: HashMap<(&str, Vec<String>), usize> = HashMap::new();
        for publication in publications {
            let mut of_table = Vec::with_capacity(publication.tables.len());
            for table in &publication.tables {
                let Some(query) = &table.scope else {
                    of_table.push(None);
                    continue;
                };
                let values = query.parameters.iter().map(|&name| match name {
                    "username" => facts.user.to_owned(),
                    "remote_id" => facts.remote_id.clone(),
                    _ => publication.schema.name.clone(),
                });
                let values: Vec<String> = values.collect();
                let index = match seen.get(&(query.sql.as_str(), values.clone())) {
                    Some(&index) => index,
                    None => {
                        let types = vec![Type::TEXT; values.len()];
                        let statement = connection.prepare(&query.sql, &types).await?;
                        let index = queries.statements.len();
                        queries.statements.push((statement, values.clone()));
                        seen.insert((&query.sql, values), index);
                        index
                    }
                };
                of_table.push(Some(index));
            }
            queries.of_table.push(of_table);
        }
        Ok(queries)
    }

    /// Runs the queries, all in one flight.
    pub(super) async fn run(&self, client: &Client) -> Result<Vec<Vec<Row>>, CentreError> {
        try_join_all(
            self.statements
                .iter()
                .map(|(statement, values)| async move {
                    let values: Vec<&(dyn ToSql + Sync)> = values
                        .iter()
                        .map(|value| value as &(dyn ToSql + Sync))
                        .collect();
                    let rows = client.query(statement, &values).await;
                    rows.map_err(refused("a partition query"))
                }),
        )
        .await
    }

    /// The scope of a publication, out of the results of [`Self::run`].
    pub(super) fn scope(
        &self,
        index: usize,
        publication: &Compiled,
        results: &[Vec<Row>],
    ) -> Result<Scope, CentreError> {
        let tables = publication.tables.iter().zip(&self.of_table[index]);
        let tables = tables.map(|(table, query)| {
            let mut set = BTreeSet::new();
            let Some(query) = query else { return Ok(set) };
            let columns: Vec<_> = partition_types(table);
            let mut decoder = RowDecoder::new(table.partition_columns().map(|it| it.kind));
            for row in &results[*query] {
                let mut values = Vec::with_capacity(columns.len());
                decoder.result(row, 0, &mut values)?;
                if !values.iter().any(|value| matches!(value, Datum::Null)) {
                    let mut packed = Vec::new();
                    pack::pack_values(&mut packed, &columns, &values);
                    set.insert(packed);
                }
            }
            Ok(set)
        });
        Ok(Scope {
            tables: tables.collect::<Result<_, CentreError>>()?,
        })
    }
}

impl CompiledTable {
    /// The partition columns.
    pub(super) fn partition_columns(&self) -> impl Iterator<Item = &PgColumn> {
        self.partition.iter().map(|&index| &self.columns[index])
    }
}

/// The types of a table's partition columns.
pub(super) fn partition_types(table: &CompiledTable) -> Vec<tidewater_protocol::ColumnType> {
    let columns = table.partition_columns();
    columns.map(|it| it.kind.column_type(it.scale)).collect()
}

/// Partitions as array parameters, one array for each partition column.
pub(super) fn partition_arrays<'a>(
    table: &CompiledTable,
    partitions: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Array>, CentreError> {
    let types = partition_types(table);
    let mut arrays: Vec<Array> = table
        .partition_columns()
        .map(|it| Array::new(it.kind))
        .collect();
    for packed in partitions {
        let values = unpack(packed, &types)?;
        for (array, value) in arrays.iter_mut().zip(&values) {
            // A signed value that no longer fits its column's type is in no row.
            let position = array.position();
            if array.push(value).is_err() {
                array.truncate(position);
                let _ = array.push(&Datum::Null);
            }
        }
    }
    Ok(arrays)
}
