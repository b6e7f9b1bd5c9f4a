//! Running the statements of scripts for uploaded rows.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a statement takes is measured by the clock; nothing else depends on it"
)]

use std::fmt::Write;
use std::time::Instant;

use rusqlite::params_from_iter;
use rusqlite::types::Value as Native;
use serde_json::{Value as Json, json};

use tidewater_protocol::Value;

use crate::calls::{STEPS, bound, of_script};
use crate::connection::Connection;
use crate::row::savepoint;
use crate::row_error::classify;
use crate::{download, failure, quote};
use tidewater_centre::engine::scripts::{SCRIPT_TIMEOUT, SetColumn, Statement};
use tidewater_centre::engine::upload::rows::{Refusal, RowSet, ScriptRan};
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const RUNNING: &str = "running a script";

/// Runs the statements of a script for each row; what is refused of one is undone alone.
pub(super) fn run(
    connection: &Connection,
    statements: &[Statement],
    rows: &[Vec<Vec<Value>>],
) -> Result<Vec<ScriptRan>> {
    let mut all = Vec::with_capacity(rows.len());
    for values in rows {
        let ran = apart(connection, || {
            let (mut changed, mut row) = (None, None);
            for (statement, values) in statements.iter().zip(values) {
                let natives = of_script(statement, values);
                let (count, first) = one(connection, statement, natives)?;
                if statement.counts {
                    changed = Some(changed.map_or(count, |least: u64| least.min(count)));
                }
                row = first;
            }
            Ok(ScriptRan::Done { changed, row })
        });
        all.push(ran?.unwrap_or_else(ScriptRan::Refused));
    }
    Ok(all)
}

/// Runs them once for all rows of a set.
pub(super) fn run_set(
    connection: &Connection,
    statements: &[Statement],
    set: &RowSet,
) -> Result<ScriptRan> {
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
    let ran = apart(connection, || {
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
        Ok(ScriptRan::Done { changed, row: None })
    });
    Ok(ran?.unwrap_or_else(ScriptRan::Refused))
}

/// Does something in a savepoint of its own; if SQLite refuses it, it is undone.
fn apart<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> Result<std::result::Result<T, Refusal>> {
    savepoint(connection, "SAVEPOINT tidewater_script")?;
    let until = Instant::now().checked_add(SCRIPT_TIMEOUT);
    let is_over = move || until.is_some_and(|it| Instant::now() >= it);
    connection.progress_handler(STEPS, Some(is_over));
    let done = work();
    connection.progress_handler(0, None::<fn() -> bool>);
    let done = match done {
        Ok(done) => Ok(done),
        Err(error) => {
            let refusal = classify(&error, "", false);
            let refusal = refusal.filter(|_| !connection.is_autocommit());
            let refusal = refusal.ok_or_else(|| failure(RUNNING)(error))?;
            savepoint(connection, "ROLLBACK TO tidewater_script")?;
            Err(refusal)
        }
    };
    savepoint(connection, "RELEASE tidewater_script")?;
    Ok(done)
}

/// Runs one statement to its end: how many rows it has changed, and the first one that it yields.
fn one(
    connection: &Connection,
    statement: &Statement,
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

/// See [`rows_sql`](tidewater_centre::engine::database::Tracking::rows_sql): one parameter, a JSON
/// array of arrays.
pub(crate) fn rows_sql(columns: &[SetColumn], number: usize) -> String {
    let mut sql = String::from("(SELECT ");
    for (at, column) in columns.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let _ = write!(
            sql,
            "{comma}CASE json_type(value, '$[{at}]') WHEN 'object' \
             THEN unhex(json_extract(value, '$[{at}].hex')) \
             ELSE json_extract(value, '$[{at}]') END AS {}",
            quote(&column.name)
        );
    }
    let _ = write!(sql, " FROM json_each(?{number}))");
    sql
}

/// A value as [`rows_sql`] reads it.
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
