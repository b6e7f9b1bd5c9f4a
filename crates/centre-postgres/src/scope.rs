//! Who holds which partitions: reading and running the queries that say so.

use tokio_postgres::Client;
use tokio_postgres::types::{Oid, Type};

use crate::column::PgColumn;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::scope_query::{MISSING_TABLE_HINT, ScopeQuery, check_columns, wrong};
use tidewater_centre::error::CentreError;

/// Checks that a query can be run, and yields what the partition columns are.
pub(super) async fn check(
    client: &Client,
    named: &str,
    query: &ScopeQuery,
    columns: &[PgColumn],
) -> Result<(), CentreError> {
    let types = vec![Type::TEXT; query.parameters.len()];
    let inner = client
        .prepare_typed(&query.inner, &types)
        .await
        .map_err(|error| unreadable(named, &query.inner, error))?;
    let names: Vec<&str> = columns.iter().map(|it| &*it.name).collect();
    check_columns(named, inner.columns().len(), &names)?;
    for (result, column) in inner.columns().iter().zip(columns) {
        let (found, wanted) = (result.type_().oid(), &column.cast_name);
        if !is_assignable(client, found, wanted).await? {
            let what = format!(
                "yields {} for the partition column {:?}, which is {}",
                type_name(client, found).await?,
                column.name,
                column.type_name
            );
            let hint = "select a column of that type, or convert it in the query: ";
            return Err(wrong(named, &what, format!("{hint}::{wanted}")));
        }
    }
    // As it is run: with its results cast.
    client
        .prepare_typed(&query.sql, &types)
        .await
        .map_err(|error| unreadable(named, &query.inner, error))?;
    Ok(())
}

/// Checks that the query for the values of a parameter can be run, and yields one column.
pub(super) async fn check_allowed(
    client: &Client,
    named: &str,
    query: &ScopeQuery,
) -> Result<(), CentreError> {
    let types = vec![Type::TEXT; query.parameters.len()];
    let inner = client.prepare_typed(&query.inner, &types).await;
    let inner = inner.map_err(|error| unreadable(named, &query.inner, error))?;
    tidewater_centre::engine::scope_query::check_allowed(named, inner.columns().len())?;
    let whole = client.prepare_typed(&query.sql, &types).await;
    whole.map_err(|error| unreadable(named, &query.inner, error))?;
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
    let row = row.map_err(statement_failed("comparing the types of a partition query"))?;
    // A type without a row of its own is a pseudo-type of the server: nothing to compare.
    Ok(row.is_none_or(|row| row.get(0)))
}

async fn type_name(client: &Client, oid: Oid) -> Result<String, CentreError> {
    let sql = "SELECT pg_catalog.format_type($1, NULL)";
    let row = client.query_one(sql, &[&oid]).await;
    Ok(row.map_err(statement_failed("naming a type"))?.get(0))
}

/// What PostgreSQL says of a query, and where.
fn unreadable(named: &str, query: &str, error: tokio_postgres::Error) -> CentreError {
    use tokio_postgres::error::{ErrorPosition, SqlState};
    let Some(refusal) = error.as_db_error() else {
        return statement_failed("checking a partition query")(error);
    };
    let at = match refusal.position() {
        Some(ErrorPosition::Original(position)) => near(query, *position as usize),
        _ => String::new(),
    };
    let hint = match *refusal.code() == SqlState::UNDEFINED_TABLE {
        true => MISSING_TABLE_HINT,
        false => "the query must run in the schema public and yield the partition columns' values",
    };
    let what = format!("is refused by PostgreSQL: {}{at}", refusal.message());
    wrong(named, &what, hint)
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
