//! Which partitions a user holds now: running the queries that say so.

use std::sync::Arc;

use rusqlite::params_from_iter;

use tidewater_protocol::Datum;

use super::connection::SqliteConnection;
use super::publication::Publication;
use super::{failure, values};
use tidewater_centre::SyncContext;
use tidewater_centre::engine::catalog::ColumnInfo;
use tidewater_centre::engine::scope::{ScopePurpose, ScopeQuestion, ScopeQuestions, failed};
use tidewater_centre::engine::scope_query::{MISSING_TABLE_HINT, ScopeQuery, check_columns, wrong};
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::{Partitions, Scope};

/// The partitions that the user holds now, in the connection's snapshot.
pub(super) fn current(
    connection: &SqliteConnection,
    publication: &Publication,
    context: &SyncContext,
    purpose: ScopePurpose,
) -> Result<Scope, CentreError> {
    let questions = ScopeQuestions::new(context, &[publication], purpose);
    let answers = questions.list.iter();
    let answers = answers.map(|it| answer(connection, publication, it));
    questions.scope(0, &answers.collect::<Result<Vec<_>, _>>()?)
}

fn answer(
    connection: &SqliteConnection,
    publication: &Publication,
    question: &ScopeQuestion<'_>,
) -> Result<Arc<Partitions>, CentreError> {
    if question.ranks.is_some() {
        return ranked(connection, question);
    }
    if question.permits.is_some() {
        return permitted(connection, question);
    }
    let rule = question.rule;
    let table = &publication.schema.tables[rule.table];
    let columns = publication.tables[rule.table].asked(question.which, question.window);
    let running = |error| {
        let error = failure("running a values query")(error);
        failed(question, &table.name, error)
    };
    let mut statement = connection.prepare_cached(question.sql).map_err(running)?;
    let parameters = params_from_iter(&question.parameters);
    let mut rows = statement.query(parameters).map_err(running)?;
    let types = rule.asked_types(question.window);
    let mut partitions = Partitions::new();
    while let Some(row) = rows.next().map_err(running)? {
        let mut values = Vec::with_capacity(types.len());
        for (position, &column_type) in types.iter().enumerate() {
            let stored = row.get_ref(position).map_err(running)?;
            // The highest value of a window's column may be anything; then it is of no use.
            let of_window = question.window.map(|_| Datum::Null);
            let value = values::coerce(column_type, stored).or(of_window);
            let value = value.ok_or_else(|| {
                CentreError::Configuration {
                    message: format!(
                        "the values query of {:?} yields {:.40}, which is no {column_type:?} as {:?} is",
                        table.name,
                        values::read(column_type, stored).to_string(),
                        columns.get(position).map_or("", |it| &it.name),
                    ),
                    hint: "correct the query, or the data that it reads".into(),
                }
            })?;
            values.push(values::normalize(column_type, value));
        }
        rule.take(question.window, &mut partitions, &values);
    }
    Ok(Arc::new(partitions))
}

/// The answer to a question for a rank.
fn ranked(
    connection: &SqliteConnection,
    question: &ScopeQuestion<'_>,
) -> Result<Arc<Partitions>, CentreError> {
    let run = || -> rusqlite::Result<Option<String>> {
        let mut statement = connection.prepare_cached(question.sql)?;
        statement.query_row(params_from_iter(&question.parameters), |row| row.get(0))
    };
    let rank = run().map_err(|error| {
        let error = failure("running a rank query")(error);
        failed(question, "", error)
    })?;
    if let Some(rank) = rank.as_ref().filter(|it| it.parse::<i64>().is_err()) {
        let query = format!("the rank query of {:?}", question.ranks.unwrap_or_default());
        let what = format!("yields {rank:.40?}, which is no integer");
        return Err(wrong(
            &query,
            &what,
            "correct the query, or the data that it reads",
        ));
    }
    Ok(Arc::new(ScopeQuestions::ranked(rank)))
}

/// The answer to a question that permits something.
fn permitted(
    connection: &SqliteConnection,
    question: &ScopeQuestion<'_>,
) -> Result<Arc<Partitions>, CentreError> {
    let run = || -> rusqlite::Result<bool> {
        let mut statement = connection.prepare_cached(question.sql)?;
        let mut rows = statement.query(params_from_iter(&question.parameters))?;
        Ok(rows.next()?.is_some())
    };
    let allowed = run().map_err(|error| {
        let error = failure("running an allowed query")(error);
        failed(question, "", error)
    })?;
    Ok(Arc::new(ScopeQuestions::permitted(allowed)))
}

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
