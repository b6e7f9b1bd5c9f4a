//! Lets PostgreSQL read the partition queries when they are deployed, so that a wrong one is
//! found then and not at a sync.

use tokio_postgres::Client;
use tokio_postgres::types::{Oid, Type};

use crate::error::CentreError;
use crate::postgres::connection::refused;
use crate::postgres::model::{Compiled, CompiledTable, ScopeQuery};

/// Checks every partition query.
///
/// # Errors
/// [`CentreError::Configuration`], with the place in the configuration.
pub(super) async fn check(client: &Client, compiled: &[Compiled]) -> Result<(), CentreError> {
    for publication in compiled {
        for table in &publication.tables {
            if let Some(query) = &table.scope {
                let place = format!(
                    "publication {:?}: table {:?}: partition values",
                    publication.schema.name, table.title
                );
                check_one(client, table, query, &place).await?;
            }
        }
    }
    Ok(())
}

async fn check_one(
    client: &Client,
    table: &CompiledTable,
    query: &ScopeQuery,
    place: &str,
) -> Result<(), CentreError> {
    let types = vec![Type::TEXT; query.parameters.len()];
    let inner = client
        .prepare_typed(&query.inner, &types)
        .await
        .map_err(|error| wrong(place, &query.inner, error))?;
    if inner.columns().len() != table.partition.len() {
        return Err(CentreError::Configuration {
            message: format!(
                "{place}: the query yields {} columns, the partition has {}",
                inner.columns().len(),
                table.partition.len()
            ),
            hint: "select one value for each partition column".into(),
        });
    }
    for (result, column) in inner.columns().iter().zip(table.partition_columns()) {
        let (found, wanted) = (result.type_().oid(), &column.cast_name);
        if !is_assignable(client, found, wanted).await? {
            return Err(CentreError::Configuration {
                message: format!(
                    "{place}: the query yields {} for the partition column {:?}, which is {}",
                    type_name(client, found).await?,
                    column.name,
                    column.type_name
                ),
                hint: format!(
                    "select a column of that type, or convert it in the query: ::{wanted}"
                ),
            });
        }
    }
    // As it is run: with its results cast.
    client
        .prepare_typed(&query.sql, &types)
        .await
        .map_err(|error| wrong(place, &query.inner, error))?;
    Ok(())
}

/// Whether a value of a type could be written to a column: it is the same, or PostgreSQL
/// converts it without being asked, as it does everything to text. Text is converted to
/// nothing by itself, and a cast that fails for some values would fail in the middle of a sync.
async fn is_assignable(client: &Client, found: Oid, wanted: &str) -> Result<bool, CentreError> {
    let sql = "
        WITH pair AS (SELECT
          coalesce(nullif(f.typbasetype, 0), f.oid) AS found,
          coalesce(nullif(w.typbasetype, 0), w.oid) AS wanted,
          w.typcategory = 'S' AS to_text
          FROM pg_catalog.pg_type f, pg_catalog.pg_type w
          WHERE f.oid = $1 AND w.oid = $2::text::regtype)
        SELECT found = wanted OR to_text OR EXISTS (
          SELECT 1 FROM pg_catalog.pg_cast c
          WHERE c.castsource = found AND c.casttarget = wanted AND c.castcontext IN ('i', 'a'))
        FROM pair";
    let row = client.query_opt(sql, &[&found, &wanted]).await;
    let row = row.map_err(refused("comparing the types of a partition query"))?;
    // A type without a row of its own is a pseudo-type of the server: nothing to compare.
    Ok(row.is_none_or(|row| row.get(0)))
}

async fn type_name(client: &Client, oid: Oid) -> Result<String, CentreError> {
    let sql = "SELECT pg_catalog.format_type($1, NULL)";
    let row = client.query_one(sql, &[&oid]).await;
    Ok(row.map_err(refused("naming a type"))?.get(0))
}

/// What PostgreSQL says of a query, and where.
fn wrong(place: &str, query: &str, error: tokio_postgres::Error) -> CentreError {
    use tokio_postgres::error::ErrorPosition;
    let Some(refusal) = error.as_db_error() else {
        return refused("checking a partition query")(error);
    };
    let at = match refusal.position() {
        Some(ErrorPosition::Original(position)) => near(query, *position as usize),
        _ => String::new(),
    };
    CentreError::Configuration {
        message: format!("{place}: {}{at}", refusal.message()),
        hint: "the query must run in the schema public and yield the partition columns' values"
            .into(),
    }
}

/// The text at a position, which counts characters from 1.
fn near(query: &str, position: usize) -> String {
    let rest: String = query
        .chars()
        .skip(position.saturating_sub(1))
        .take(30)
        .collect();
    match rest.trim() {
        "" => " at its end".into(),
        rest => format!(" at {rest:?}"),
    }
}
