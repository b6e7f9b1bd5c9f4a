//! Whether a database takes a statement that an operator wrote, and whether that yields what it has to.

use tidewater_protocol::ColumnType;

use crate::engine::catalog::ColumnInfo;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::{DatabaseConnection as _, system_sql};
use crate::engine::described_statement::{
    DescribedColumn, DescribedStatement, DescriptionError, StatementProblem, StatementProblemKind,
};
use crate::engine::scope_query::{ScopeQuery, wrong};
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// What to do about a query that reads a table which is not there.
const MISSING_TABLE_HINT: &str = "make the table first; if tidewater init printed statements for it, \
     run these: they stand as comments in the configuration, too";

/// So many characters of a statement tell where something is wrong in it.
const EXCERPT: usize = 30;

/// What an operator is told of a statement that the database does not take. It is named with its
/// place in the configuration.
pub(in crate::engine) fn refused(
    dialect: &dyn SqlDialect,
    named: &str,
    sql: &str,
    error: DescriptionError,
) -> CentreError {
    let problem = match error {
        DescriptionError::Refused(problem) => problem,
        DescriptionError::Failed(error) => return error,
    };
    let title = dialect.title();
    let hint = match (problem.hint, problem.kind) {
        (Some(hint), _) => hint,
        (None, StatementProblemKind::UnfitTypes) => format!(
            "say the type of a parameter that {title} takes for another, such as \
             CAST({{s.username}} AS text), and see that the function is there"
        ),
        (None, _) => dialect.trial_hint().to_owned(),
    };
    let at = problem.position.map(|it| excerpt(sql, it));
    let what = format!(
        "is refused by {title}: {}{}",
        problem.message,
        at.unwrap_or_default()
    );
    wrong(named, &what, hint)
}

/// The text at a position, which counts characters from 1.
fn excerpt(sql: &str, position: usize) -> String {
    let rest = sql.chars().skip(position.saturating_sub(1)).take(EXCERPT);
    match rest.collect::<String>().trim() {
        "" => " at its end".into(),
        rest => format!(" at {rest:?}"),
    }
}

/// Checks that a statement has so many parameters: those that its operator named.
pub(in crate::engine) fn check_parameters(
    dialect: &dyn SqlDialect,
    named: &str,
    found: &DescribedStatement,
    count: usize,
) -> Result<()> {
    if found.parameters.len() == count {
        return Ok(());
    }
    let what = format!("has parameters of {}'s own", dialect.title());
    let hint = "write {s.username}, {a.NAME} and the like for parameters";
    Err(wrong(named, &what, hint))
}

/// Checks that a statement is not known to change something.
pub(in crate::engine) fn check_that_reads(named: &str, found: &DescribedStatement) -> Result<()> {
    match found.writes {
        Some(true) => Err(wrong(named, "changes the database", "write a SELECT")),
        _ => Ok(()),
    }
}

/// Checks that the query of a rule can be run, and yields values for the partition columns.
pub(in crate::engine) async fn check_values<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    query: &ScopeQuery,
    columns: &[&ColumnInfo],
) -> Result<()> {
    let inner = describe_query::<T>(connection, named, &query.inner, query).await?;
    if inner.columns.len() != columns.len() {
        let names: Vec<&str> = columns.iter().map(|it| &*it.name).collect();
        let what = format!(
            "yields {} columns, but there are {} partition columns",
            inner.columns.len(),
            names.len()
        );
        let hint = format!("select values for {}", names.join(", "));
        return Err(wrong(named, &what, hint));
    }
    for (found, wanted) in inner.columns.iter().zip(columns) {
        if let Some(title) = unfit_type::<T>(connection, found, wanted).await? {
            let what = format!(
                "yields {title} for the partition column {:?}, which is {}",
                wanted.name, wanted.type_name
            );
            let hint = format!(
                "select a column of that type, or convert it in the query: CAST(... AS {})",
                wanted.type_name
            );
            return Err(wrong(named, &what, hint));
        }
    }
    check_whole::<T>(connection, named, query).await
}

/// Checks that a query of an operator can be run, and yields one column. `hint` tells which.
pub(in crate::engine) async fn check_one_column<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    query: &ScopeQuery,
    hint: &str,
) -> Result<()> {
    let inner = describe_query::<T>(connection, named, &query.inner, query).await?;
    match inner.columns.len() {
        1 => check_whole::<T>(connection, named, query).await,
        count => Err(wrong(named, &format!("yields {count} columns"), hint)),
    }
}

/// Checks that a query can be run as it is: with what stands around the operator's text.
async fn check_whole<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    query: &ScopeQuery,
) -> Result<()> {
    let whole = describe_query::<T>(connection, named, &query.sql, query).await?;
    check_parameters(T::dialect(), named, &whole, query.parameters.len())
}

/// Has the database read a query, whose parameters are texts, and which changes nothing.
async fn describe_query<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    sql: &str,
    query: &ScopeQuery,
) -> Result<DescribedStatement> {
    let told = vec![Some(ColumnType::Text); query.parameters.len()];
    let found = connection.describe(sql, &told).await;
    let found = found.map_err(|mut error| {
        if let DescriptionError::Refused(StatementProblem {
            kind: StatementProblemKind::MissingTable,
            hint,
            ..
        }) = &mut error
        {
            *hint = Some(MISSING_TABLE_HINT.to_owned());
        }
        refused(T::dialect(), named, sql, error)
    })?;
    check_that_reads(named, &found)?;
    Ok(found)
}

/// What the type of a query's column is called for people, if its values cannot be values of a
/// partition column. Of a type that is not told nothing is known: the values are looked at when the
/// query is run.
async fn unfit_type<T: ChangeTracking>(
    connection: &mut T::Connection,
    found: &DescribedColumn,
    wanted: &ColumnInfo,
) -> Result<Option<String>> {
    let (Some(column_type), Ok(wanted_type)) = (found.column_type, &wanted.column_type) else {
        return Ok(None);
    };
    let Some(assignment) = T::dialect().assignment_sql() else {
        let fits = is_stored_alike(column_type, *wanted_type);
        return Ok((!fits).then(|| found.type_name.clone()));
    };
    let asked = system_sql!(assignment, found.type_name, wanted.type_name);
    let what = "comparing the types of a partition query";
    let answer = connection.run_one(what, asked).await?;
    match answer.rows.first() {
        Some(row) if !row.get::<bool>(1)? => row.get(0).map(Some),
        // A type that the database does not list is one of its own: nothing to compare.
        _ => Ok(None),
    }
}

/// Whether values of one type can be values of the other where the database converts what it can:
/// numbers, texts and bytes are three different things.
fn is_stored_alike(one: ColumnType, other: ColumnType) -> bool {
    let class = |column_type| match column_type {
        ColumnType::Integer
        | ColumnType::Boolean
        | ColumnType::Real
        | ColumnType::Decimal { .. } => 0,
        ColumnType::Bytes => 1,
        _ => 2,
    };
    class(one) == class(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_begins_where_the_problem_is() {
        assert_eq!(excerpt("SELECT é x FROM y", 10), " at \"x FROM y\"");
        assert_eq!(excerpt("SELECT", 7), " at its end");
        let long = format!("SELECT {}", "x".repeat(100));
        assert_eq!(excerpt(&long, 8).len(), EXCERPT + " at \"\"".len());
    }

    #[test]
    fn numbers_texts_and_bytes_are_stored_apart() {
        let scale = Some(2);
        for (one, other, alike) in [
            (ColumnType::Integer, ColumnType::Decimal { scale }, true),
            (ColumnType::Text, ColumnType::Uuid, true),
            (ColumnType::Text, ColumnType::Integer, false),
            (ColumnType::Bytes, ColumnType::Text, false),
        ] {
            assert_eq!(is_stored_alike(one, other), alike, "{one:?} {other:?}");
        }
    }
}
