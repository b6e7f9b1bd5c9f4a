//! Running the statements of scripts for uploaded rows.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a statement takes is measured by the clock; nothing else depends on it"
)]

use std::collections::HashMap;

use std::fmt::Debug;
use std::time::Instant;

use rusqlite::params_from_iter;
use rusqlite::types::Value as Native;
use serde_json::{Value as Json, json};

use tidewater_protocol::{Code, Value};

use super::refusal::reason;
use crate::arguments::{bound, of_script};
use crate::calls::STEPS;
use crate::connection::SqliteConnection;
use crate::row::savepoint;
use crate::{download, failure};
use tidewater_centre::engine::scripts::{SCRIPT_TIMEOUT, ScriptStatement, SetColumn};
use tidewater_centre::engine::upload::refusal_reason::RefusalReason;
use tidewater_centre::engine::upload::upload_writer::{RowSet, ScriptOutcome};
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const RUNNING: &str = "running a script";

/// Why a foreign key refuses what a script does. A script may write any table, and SQLite does not
/// tell of which one the foreign key is.
const FOREIGN_KEY: &str = "a foreign key refuses what the script writes: a row that is referred to \
                           is missing, or would be";

/// Runs of scripts that end the transaction (a trigger's RAISE(ROLLBACK)): refused without being
/// tried when the list is run again. By the number of the upload, and what is run.
#[derive(Default)]
pub(super) struct EndingScripts {
    refusals: HashMap<String, RefusalReason>,
}

impl EndingScripts {
    fn name(number: usize, statements: &[ScriptStatement], values: &impl Debug) -> String {
        let sql = statements.iter().map(|it| &it.script.sql);
        format!("{number} {:?} {values:?}", sql.collect::<Vec<_>>())
    }

    /// Why a run is not tried.
    fn refusal(&self, name: impl FnOnce() -> String) -> Option<&RefusalReason> {
        match self.refusals.is_empty() {
            true => None,
            false => self.refusals.get(&name()),
        }
    }
}

/// What became of a run.
enum RunOutcome {
    Ran(ScriptOutcome),
    /// The transaction is gone.
    Ended(RefusalReason),
}

/// Runs the statements of a script for each row; what is refused of one is undone alone. `None` if
/// one has ended the transaction.
pub(super) fn run(
    connection: &SqliteConnection,
    statements: &[ScriptStatement],
    rows: &[Vec<Vec<Value>>],
    endings: &mut EndingScripts,
    number: usize,
) -> Result<Option<Vec<ScriptOutcome>>> {
    let mut all = Vec::with_capacity(rows.len());
    for values in rows {
        let name = || EndingScripts::name(number, statements, values);
        if let Some(refusal) = endings.refusal(name) {
            all.push(ScriptOutcome::Refused(refusal.clone()));
            continue;
        }
        let outcome = apart(connection, || {
            let (mut changed, mut row) = (None, None);
            for (statement, values) in statements.iter().zip(values) {
                let natives = of_script(statement, values);
                let (count, first) = one(connection, statement, natives)?;
                if statement.counts {
                    changed = Some(changed.map_or(count, |least: u64| least.min(count)));
                }
                row = first;
            }
            Ok(ScriptOutcome::Done { changed, row })
        });
        match outcome? {
            RunOutcome::Ran(ran) => all.push(ran),
            RunOutcome::Ended(refusal) => {
                endings.refusals.insert(name(), refusal);
                return Ok(None);
            }
        }
    }
    Ok(Some(all))
}

/// Runs them once for all rows of a set. `None` if that has ended the transaction.
pub(super) fn run_set(
    connection: &SqliteConnection,
    statements: &[ScriptStatement],
    set: &RowSet,
    endings: &mut EndingScripts,
    number: usize,
) -> Result<Option<ScriptOutcome>> {
    let name = || EndingScripts::name(number, statements, &(&set.values, &set.rows));
    if let Some(refusal) = endings.refusal(name) {
        return Ok(Some(ScriptOutcome::Refused(refusal.clone())));
    }
    let columns = statements
        .iter()
        .map(|it| &it.set)
        .find(|it| !it.is_empty());
    let rows = set.rows.iter().map(|row| {
        let values = columns.into_iter().flat_map(|it| it.iter()).zip(row);
        Json::Array(
            values
                .map(|(column, value)| encode(column, value))
                .collect(),
        )
    });
    let rows = Json::Array(rows.collect()).to_string();
    let outcome = apart(connection, || {
        let mut changed: Option<u64> = None;
        for (statement, values) in statements.iter().zip(&set.values) {
            let mut natives = of_script(statement, values);
            if !statement.set.is_empty() {
                natives.push(Native::Text(rows.clone()));
            }
            let (count, _) = one(connection, statement, natives)?;
            if statement.counts && !statement.set.is_empty() {
                changed = Some(changed.map_or(count, |least| least.min(count)));
            }
        }
        Ok(ScriptOutcome::Done { changed, row: None })
    });
    match outcome? {
        RunOutcome::Ran(ran) => Ok(Some(ran)),
        RunOutcome::Ended(refusal) => {
            endings.refusals.insert(name(), refusal);
            Ok(None)
        }
    }
}

/// Runs something in a savepoint of its own; if SQLite refuses it, it is undone.
fn apart(
    connection: &SqliteConnection,
    work: impl FnOnce() -> rusqlite::Result<ScriptOutcome>,
) -> Result<RunOutcome> {
    savepoint(connection, "SAVEPOINT tidewater_script")?;
    let until = Instant::now().checked_add(SCRIPT_TIMEOUT);
    let is_over = move || until.is_some_and(|it| Instant::now() >= it);
    connection.progress_handler(STEPS, Some(is_over));
    let done = work();
    connection.progress_handler(0, None::<fn() -> bool>);
    let ran = match done {
        Ok(ran) => ran,
        Err(error) => {
            let refusal = reason(&error, "", false);
            let mut refusal = refusal.ok_or_else(|| failure(RUNNING)(error))?;
            if refusal.code == Code::RowForeignKey {
                refusal.reason = FOREIGN_KEY.to_owned();
            }
            if connection.is_autocommit() {
                return Ok(RunOutcome::Ended(refusal));
            }
            savepoint(connection, "ROLLBACK TO tidewater_script")?;
            ScriptOutcome::Refused(refusal)
        }
    };
    savepoint(connection, "RELEASE tidewater_script")?;
    Ok(RunOutcome::Ran(ran))
}

/// Runs one statement to its end: how many rows it has changed, and the first one that it yields.
fn one(
    connection: &SqliteConnection,
    statement: &ScriptStatement,
    natives: Vec<Native>,
) -> rusqlite::Result<(u64, Option<Vec<Value>>)> {
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
    Ok((connection.changes(), first))
}

/// A value as [`set_relation`](crate::dialect::SqliteDialect) reads it.
fn encode(column: &SetColumn, value: &Value) -> Json {
    match bound(column.column_type, value) {
        Native::Null => Json::Null,
        Native::Integer(integer) => json!(integer),
        // JSON has no other way to say that there is no end.
        Native::Real(real) if real.is_infinite() => json!(real.signum() * f64::MAX),
        Native::Real(real) => json!(real),
        Native::Text(text) => Json::String(text),
        Native::Blob(bytes) => {
            let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}
