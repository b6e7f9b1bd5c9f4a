//! Whether the statements of a procedure yield what it returns.

use crate::engine::callable_procedure::{CallableProcedure, StatementCheck, allow_query};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
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
        let named = allow_query(place);
        let found = T::check_call(connection, &named, procedure, allow).await?;
        if found.writes == Some(true) {
            return Err(wrong(&named, "changes the database", "write a SELECT"));
        }
        if found.columns.is_empty() {
            let hint = "write a SELECT, which yields a row if the call is allowed";
            return Err(wrong(&named, "yields no columns", hint));
        }
    }
    let mut last = StatementCheck::default();
    let mut reads = true;
    for statement in &procedure.statements {
        last = T::check_call(connection, place, procedure, statement).await?;
        reads &= last.writes == Some(false);
        if last.writes == Some(true) && procedure.read_only {
            let what = "changes the database, and is declared to be read_only";
            return Err(wrong(place, what, "remove read_only, or write a SELECT"));
        }
    }
    if procedure.is_provided() {
        return Ok(true);
    }
    let columns = &last.columns;
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
