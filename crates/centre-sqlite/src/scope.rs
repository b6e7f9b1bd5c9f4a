//! Which partitions a user holds now: running the queries that say so.

use std::sync::Arc;

use rusqlite::params_from_iter;

use tidewater_protocol::Datum;

use super::connection::SqliteConnection;
use super::publication::Publication;
use super::{failure, values};
use tidewater_centre::SyncContext;
use tidewater_centre::engine::scope::{ScopePurpose, ScopeQuestion, ScopeQuestions, failed};
use tidewater_centre::engine::scope_query::wrong;
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
