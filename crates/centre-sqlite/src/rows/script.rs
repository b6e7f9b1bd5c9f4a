//! Running statements of scripts for uploaded rows.

use rusqlite::params_from_iter;

use tidewater_protocol::Value;

use crate::calls::of_script;
use crate::connection::Connection;
use crate::row::savepoint;
use crate::row_error::classify;
use crate::{download, failure};
use tidewater_centre::engine::scripts::Statement;
use tidewater_centre::engine::upload::rows::ScriptRan;
use tidewater_centre::error::CentreError;

const RUNNING: &str = "running a script";

/// Runs a statement once for each list of values; what is refused of one is undone alone.
pub(super) fn run(
    connection: &Connection,
    statement: &Statement,
    parameters: &[Vec<Value>],
) -> Result<Vec<ScriptRan>, CentreError> {
    let mut all = Vec::with_capacity(parameters.len());
    for values in parameters {
        savepoint(connection, "SAVEPOINT tidewater_script")?;
        let ran = match one(connection, statement, values) {
            Ok(ran) => ran,
            Err(error) => {
                let refusal = classify(&error, "", false);
                let refusal = refusal.filter(|_| !connection.is_autocommit());
                let refusal = refusal.ok_or_else(|| failure(RUNNING)(error))?;
                savepoint(connection, "ROLLBACK TO tidewater_script")?;
                ScriptRan::Refused(refusal)
            }
        };
        savepoint(connection, "RELEASE tidewater_script")?;
        all.push(ran);
    }
    Ok(all)
}

fn one(
    connection: &Connection,
    statement: &Statement,
    values: &[Value],
) -> rusqlite::Result<ScriptRan> {
    let natives = of_script(statement, values);
    let mut prepared = connection.prepare_cached(&statement.script.sql)?;
    let mut first = None;
    let mut rows = prepared.query(params_from_iter(natives))?;
    while let Some(row) = rows.next()? {
        if first.is_none() && !statement.yields.is_empty() {
            let datums = download::values(row, 0, &statement.yields)?;
            first = Some(datums.iter().map(|it| it.to_value()).collect());
        }
    }
    drop(rows);
    let changed = statement.counts.then(|| connection.changes());
    Ok(ScriptRan::Done {
        changed,
        row: first,
    })
}
