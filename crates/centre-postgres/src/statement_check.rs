//! Whether PostgreSQL takes a statement that an operator wrote.

use tokio_postgres::Error;

use super::connection::PostgresConnection;
use crate::driver_error::statement_failed;
use crate::prepared_procedure::{CallStatement, prepare_guard};
use tidewater_centre::engine::callable_procedure::{CallableProcedure, StatementCheck};
use tidewater_centre::engine::scope_query::wrong;
use tidewater_centre::engine::script::Script;
use tidewater_centre::error::CentreError;

/// See [`check_call`](tidewater_centre::engine::change_tracking::ChangeTracking::check_call).
pub(super) async fn check_call(
    connection: &mut PostgresConnection,
    named: &str,
    procedure: &CallableProcedure,
    script: &Script,
) -> Result<StatementCheck, CentreError> {
    let client = connection.client();
    let prepared = async {
        let statement = CallStatement::prepare(client, procedure, script).await?;
        if procedure.allow() == Some(script) {
            prepare_guard(client, procedure, script).await?;
        }
        Ok(statement)
    };
    let prepared = prepared.await;
    let CallStatement { shape, .. } =
        prepared.map_err(|error| refused_by_database(named, error))?;
    Ok(StatementCheck {
        columns: shape.columns().iter().map(|it| it.name.clone()).collect(),
        writes: None,
    })
}

const CAST_HINT: &str = "say the type of a parameter that PostgreSQL takes for another, such as \
                         CAST({s.username} AS text), and see that the function is there";

/// What is wrong with a statement that the operator wrote.
pub(super) fn refused_by_database(named: &str, error: Error) -> CentreError {
    let Some(refusal) = error.as_db_error() else {
        return statement_failed("checking a statement")(error);
    };
    let hint = match refusal.hint() {
        Some(hint) if !hint.contains("explicit type casts") => hint.to_owned(),
        Some(_) => CAST_HINT.into(),
        // A function or operator that is not there, or of which there are several; a type that is
        // not known.
        None if ["42883", "42725", "42P18"].contains(&refusal.code().code()) => CAST_HINT.into(),
        None => "the statement must run in the schema public".into(),
    };
    let what = format!("is refused by PostgreSQL: {}", refusal.message());
    wrong(named, &what, hint)
}
