//! Which partitions a user holds now: running the queries that say so.

use super::connection::SqliteConnection;
use super::values;
use tidewater_centre::engine::catalog::ColumnInfo;
use tidewater_centre::engine::scope_query::{MISSING_TABLE_HINT, ScopeQuery, check_columns, wrong};
use tidewater_centre::error::CentreError;

/// Checks that a query can be run, and yields what the partition columns are.
pub(super) fn check(
    connection: &SqliteConnection,
    named: &str,
    query: &ScopeQuery,
    columns: &[&ColumnInfo],
) -> Result<(), CentreError> {
    let statement = prepared(connection, named, &query.sql)?;
    let names: Vec<&str> = columns.iter().map(|it| &*it.name).collect();
    check_columns(named, statement.column_count(), &names)?;
    for (result, column) in statement.columns().iter().zip(columns) {
        let Ok(wanted) = column.column_type else {
            continue;
        };
        // Of an expression nothing is known: its values are looked at when it is run.
        let found = result.decl_type().and_then(values::column_type);
        if found.is_some_and(|found| !values::alike(found, wanted)) {
            let what = format!(
                "yields {}, declared as {}, for the partition column {:?}, which is no such thing",
                result.name(),
                result.decl_type().unwrap_or_default(),
                column.name
            );
            let hint = "select a column of the same type, or convert it in the query with CAST";
            return Err(wrong(named, &what, hint));
        }
    }
    check_parameters(named, &statement, query)
}

/// Checks that the query for the values of a parameter can be run, and yields one column.
pub(super) fn check_allowed(
    connection: &SqliteConnection,
    named: &str,
    query: &ScopeQuery,
) -> Result<(), CentreError> {
    let inner = prepared(connection, named, &query.inner)?;
    tidewater_centre::engine::scope_query::check_allowed(named, inner.column_count())?;
    check_parameters(named, &prepared(connection, named, &query.sql)?, query)
}

/// A query that changes nothing.
fn prepared<'c>(
    connection: &'c SqliteConnection,
    named: &str,
    sql: &str,
) -> Result<rusqlite::Statement<'c>, CentreError> {
    let statement = connection.prepare(sql).map_err(|error| {
        let message = error.to_string();
        let hint = match message.starts_with("no such table") {
            true => MISSING_TABLE_HINT,
            false => "try it in the sqlite3 shell with a value in place of {s.username}",
        };
        wrong(named, &format!("is refused by SQLite: {message}"), hint)
    })?;
    match statement.readonly() {
        true => Ok(statement),
        false => Err(wrong(named, "changes the database", "write a SELECT")),
    }
}

fn check_parameters(
    named: &str,
    statement: &rusqlite::Statement<'_>,
    query: &ScopeQuery,
) -> Result<(), CentreError> {
    if statement.parameter_count() != query.parameters.len() {
        let hint = "write {s.username} and the like for parameters";
        return Err(wrong(named, "has parameters of SQLite's own", hint));
    }
    Ok(())
}
