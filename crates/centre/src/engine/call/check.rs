//! Whether the statements of a procedure yield what it returns.

use crate::engine::callable_procedure::{CallableProcedure, allow_query};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::described_statement::{
    DescribedStatement, DescriptionError, StatementProblem, StatementProblemKind,
};
use crate::engine::scope_query::wrong;
use crate::engine::script::Script;
use crate::engine::statement_check::{check_parameters, check_that_reads, refused};
use crate::error::CentreError;
use crate::procedure::Returns;

type Result<T> = std::result::Result<T, CentreError>;

/// Has the database read a procedure's statements; whether it is known to change nothing.
pub(crate) async fn check_statements<T: ChangeTracking>(
    connection: &mut T::Connection,
    procedure: &CallableProcedure,
    place: &str,
) -> Result<bool> {
    if let Some(allow) = &procedure.allow {
        check_allow::<T>(connection, procedure, &allow_query(place), allow).await?;
    }
    let mut columns: Vec<String> = Vec::new();
    let mut reads = true;
    for statement in &procedure.statements {
        let found =
            describe::<T>(connection, place, (procedure, statement), &statement.sql).await?;
        if let Some(readable) = T::dialect().readable_query(&statement.sql, &found.columns) {
            describe::<T>(connection, place, (procedure, statement), &readable).await?;
        }
        reads &= found.writes == Some(false);
        if found.writes == Some(true) && procedure.read_only {
            let what = "changes the database, and is declared to be read_only";
            return Err(wrong(place, what, "remove read_only, or write a SELECT"));
        }
        columns = found.columns.into_iter().map(|it| it.name).collect();
    }
    if procedure.is_provided() {
        return Ok(true);
    }
    match procedure.returns {
        Returns::Nothing => return Ok(reads),
        _ if columns.is_empty() => {
            let hint = "write a SELECT or RETURNING, or returns = \"nothing\"";
            return Err(wrong(
                place,
                "returns something that its SQL does not yield",
                hint,
            ));
        }
        Returns::Value if columns.len() > 1 => {
            let what = format!(
                "returns one value, and its SQL yields {}",
                columns.join(", ")
            );
            let hint = "select one column, or write returns = \"row\"";
            return Err(wrong(place, &what, hint));
        }
        _ => {}
    }
    let twice = |(at, name): (usize, &String)| columns[..at].contains(name);
    match columns.iter().enumerate().find(|it| twice(*it)) {
        None => Ok(reads),
        Some((_, name)) => Err(wrong(
            place,
            &format!("yields two columns that are called {name:?}"),
            "give each column a name of its own with AS",
        )),
    }
}

/// Has the database read the query of who may call.
async fn check_allow<T: ChangeTracking>(
    connection: &mut T::Connection,
    procedure: &CallableProcedure,
    named: &str,
    allow: &Script,
) -> Result<()> {
    let found = describe::<T>(connection, named, (procedure, allow), &allow.sql).await?;
    check_that_reads(named, &found)?;
    if found.columns.is_empty() {
        let hint = "write a SELECT, which yields a row if the call is allowed";
        return Err(wrong(named, "yields no columns", hint));
    }
    // Whether it yields a row may be asked within another statement.
    let asked = format!("SELECT CASE WHEN EXISTS (\n{}\n) THEN 1 END", allow.sql);
    describe::<T>(connection, named, (procedure, allow), &asked).await?;
    Ok(())
}

/// Has the database read a statement of a procedure with the parameters of a script: under the
/// declared types of its arguments, or under others, if it needs them and finds them out.
async fn describe<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    (procedure, script): (&CallableProcedure, &Script),
    sql: &str,
) -> Result<DescribedStatement> {
    let told = script.parameters.iter();
    let told: Vec<_> = told.map(|it| Some(procedure.type_of(it))).collect();
    let mut found = connection.describe(sql, &told).await;
    if let Err(DescriptionError::Refused(StatementProblem {
        kind: StatementProblemKind::UnfitTypes,
        ..
    })) = &found
    {
        let told = vec![None; script.parameters.len()];
        found = connection.describe(sql, &told).await.or(found);
    }
    let found = found.map_err(|error| refused(T::dialect(), named, sql, error))?;
    check_parameters(T::dialect(), named, &found, script.parameters.len())?;
    Ok(found)
}
