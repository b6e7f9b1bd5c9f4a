//! Running the queries that say who holds what.

use std::sync::Arc;

use tidewater_protocol::Datum;

use super::{ScopePurpose, ScopeQuestion, ScopeQuestions, failed};
use crate::context::SyncContext;
use crate::engine::connection::{DatabaseConnection, SystemStatement};
use crate::engine::flight::{ColumnKind as _, FlightStep, TableArgument, TableStatement};
use crate::engine::publication::Publication;
use crate::engine::scope_query::wrong;
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::sql::system_table::SystemType;
use crate::error::CentreError;
use crate::scope::{Partitions, Scope};

type Result<T> = std::result::Result<T, CentreError>;

/// What to do about a query whose results are of no use.
const HINT: &str = "correct the query, or the data that it reads";

/// What somebody holds of a publication now, asked in his name.
///
/// # Errors
/// A query fails, or a parameter is what the user may not ask for.
pub async fn ask_reader_scope<C: DatabaseConnection<Tables: TableAdapter>>(
    connection: &mut C,
    publication: &Publication<C::Tables>,
    context: &SyncContext,
    purpose: ScopePurpose,
) -> Result<Scope> {
    let remote = context.remote_id.to_string();
    let says = C::DIALECT.say_caller(&context.user, &remote, true);
    ask_scope(connection, &says, publication, context, purpose).await
}

/// The same after what has to be said before.
///
/// # Errors
/// A query fails, or a parameter is what the user may not ask for.
pub async fn ask_scope<C: DatabaseConnection<Tables: TableAdapter>>(
    connection: &mut C,
    says: &[SystemStatement],
    publication: &Publication<C::Tables>,
    context: &SyncContext,
    purpose: ScopePurpose,
) -> Result<Scope> {
    let publications = [publication];
    let questions = ScopeQuestions::new(context, &publications, purpose);
    let mut answers = questions.no_answers();
    let mut steps: Vec<FlightStep<'_, C::Tables>> = says.iter().map(FlightStep::System).collect();
    steps.extend(questions.steps(&publications, &mut answers));
    let asked = connection.run("saying who syncs", steps).await;
    asked.map_err(|failure| match failure.step.checked_sub(says.len()) {
        Some(number) => questions.explain(&publications, number, failure.error),
        None => failure.error,
    })?;
    questions.scope(0, &share(answers))
}

/// Answers as [`ScopeQuestions::scope`] takes them.
pub fn share(answers: Vec<Partitions>) -> Vec<Arc<Partitions>> {
    answers.into_iter().map(Arc::new).collect()
}

impl<'p> ScopeQuestions<'p> {
    /// Room for the answers.
    pub fn no_answers(&self) -> Vec<Partitions> {
        vec![Partitions::new(); self.list.len()]
    }

    /// The steps of a flight that ask, one for each question.
    pub fn steps<'s, T: TableAdapter>(
        &'s self,
        publications: &[&'s Publication<T>],
        answers: &'s mut [Partitions],
    ) -> impl Iterator<Item = FlightStep<'s, T>> {
        let asked = self.list.iter().zip(answers);
        asked.map(|(question, answer)| {
            let rule = question.rule;
            let table = &publications[question.publication].tables[rule.table];
            ask(question, table, answer)
        })
    }

    /// What it means that a step of these has failed.
    pub fn explain<T: TableAdapter>(
        &self,
        publications: &[&Publication<T>],
        step: usize,
        error: CentreError,
    ) -> CentreError {
        match self.list.get(step) {
            Some(question) => {
                let tables = &publications[question.publication].tables;
                failed(question, &tables[question.rule.table].title, error)
            }
            None => error,
        }
    }
}

fn ask<'s, T: TableAdapter>(
    question: &'s ScopeQuestion<'_>,
    table: &'s ServedTable<T>,
    answer: &'s mut Partitions,
) -> FlightStep<'s, T> {
    let parameters = question.parameters.iter();
    let mut statement = TableStatement::new("running a values query", question.sql);
    statement.arguments = parameters
        .map(|it| TableArgument::text(it.as_deref()))
        .collect();
    if let Some(ranked) = question.ranks {
        statement.yields = vec![T::Kind::of_system(SystemType::Text)];
        return FlightStep::table(statement, move |row| {
            *answer = ScopeQuestions::ranked(rank(ranked, row)?);
            Ok(())
        });
    }
    if question.permits.is_some() {
        return FlightStep::table(statement, |_| {
            *answer = ScopeQuestions::permitted(true);
            Ok(())
        });
    }
    let columns = table.asked(question.which, question.window);
    statement.yields = columns.iter().map(|it| it.kind()).collect();
    FlightStep::table(statement, move |row| {
        let mut values = Vec::with_capacity(row.len());
        for (column, value) in columns.iter().zip(row) {
            // The highest value of a window's column may be anything; then it is of no use.
            let of_window = question.window.map(|_| Datum::Null);
            let coerced = column.coerce(*value).or(of_window);
            values.push(coerced.ok_or_else(|| unlike(question, table, column.name(), value))?);
        }
        question.rule.take(question.window, answer, &values);
        Ok(())
    })
}

/// The rank that a query yields, as text.
fn rank(table: &str, row: &[Datum<'_>]) -> Result<Option<String>> {
    let rank = match row.first() {
        None | Some(Datum::Null) => return Ok(None),
        Some(rank) => rank.to_string(),
    };
    match rank.parse::<i64>() {
        Ok(_) => Ok(Some(rank)),
        Err(_) => Err(wrong(
            &format!("the rank query of {table:?}"),
            &format!("yields {rank:.40?}, which is no integer"),
            HINT,
        )),
    }
}

/// The error of a value that is none of a partition column.
fn unlike<T: TableAdapter>(
    question: &ScopeQuestion<'_>,
    table: &ServedTable<T>,
    column: &str,
    value: &Datum<'_>,
) -> CentreError {
    let place = table.asked(question.which, question.window).iter();
    let place = place.map(|it| it.name()).position(|it| it == column);
    let types = question.rule.asked_types(question.window);
    CentreError::Configuration {
        message: format!(
            "the values query of {:?} yields {:.40}, which is no {:?} as {column:?} is",
            table.title,
            value.to_string(),
            types[place.unwrap_or_default()],
        ),
        hint: HINT.into(),
    }
}
