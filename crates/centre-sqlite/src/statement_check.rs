//! Whether SQLite takes a statement that an operator wrote.

use super::connection::SqliteConnection;
use tidewater_centre::engine::callable_procedure::StatementCheck;
use tidewater_centre::engine::scope_query::wrong;
use tidewater_centre::engine::script::Script;
use tidewater_centre::error::CentreError;

/// See [`check_call`](tidewater_centre::engine::change_tracking::ChangeTracking::check_call); with so many
/// parameters beside its own for rows.
pub(super) fn check_statement(
    connection: &SqliteConnection,
    named: &str,
    script: &Script,
    rows: usize,
) -> Result<StatementCheck, CentreError> {
    let statement = connection.prepare(&script.sql).map_err(|error| {
        let hint = "try it in the sqlite3 shell with values in place of the parameters";
        wrong(named, &format!("is refused by SQLite: {error}"), hint)
    })?;
    if statement.parameter_count() != script.parameters.len() + rows {
        let hint = "write {a.NAME} and the like for parameters";
        return Err(wrong(named, "has parameters of SQLite's own", hint));
    }
    let columns = statement.columns();
    Ok(StatementCheck {
        columns: columns.iter().map(|it| it.name().to_owned()).collect(),
        writes: Some(!statement.readonly()),
    })
}
