//! Calls of procedures: their transactions, their statements, and what an error means for them.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a statement takes is measured by the clock; nothing else depends on it"
)]

use std::time::Instant;

use rusqlite::types::ValueRef as Stored;
use rusqlite::{ErrorCode, Statement, ffi, params_from_iter};

use tidewater_protocol::{ColumnType, Datum};

use super::arguments::bound;
use super::connection::{STEPS, SqliteConnection};
use super::dialect::SqliteDialect;
use super::{failure, values};
use tidewater_centre::engine::call::answer::{AnswerCollector, AnswerShape};
use tidewater_centre::engine::call::driver::{CallDriver, CallFailure, CallResult};
use tidewater_centre::engine::call::step::CallStep;
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;
use tidewater_centre::error::CentreError;
use tidewater_centre::{CallAnswer, CallInterrupt, CallOutcome, Cancel, ProcedureCall};

/// Interrupts the calls of a worker: each looks by itself.
pub(super) struct SqliteInterrupter;

impl CallInterrupt for SqliteInterrupter {
    fn interrupt(&self, call: &Cancel) {
        call.set();
    }
}

impl CallDriver for SqliteConnection {
    async fn begin_call(&mut self, call: &ProcedureCall) -> Result<(), CallFailure> {
        let begun = self.execute_batch(match call.procedure.is_read_only() {
            true => "PRAGMA query_only = ON; BEGIN",
            false => "BEGIN IMMEDIATE",
        });
        begun.map_err(call_failure)
    }

    async fn run_call(&mut self, call: &ProcedureCall) -> CallResult {
        let writes = !call.procedure.is_read_only();
        if writes {
            let remote = call.caller.remote_id.map(|it| it.to_string());
            let remote = remote.unwrap_or_default();
            let says = SqliteDialect.say_caller(&call.caller.user, &remote, false);
            self.flight("saying who calls", &says).await?;
        }
        let outcome = watched(self, call);
        // A trigger of the application may have undone everything.
        if writes && outcome.is_ok() && !self.is_autocommit() {
            let nobody = SqliteDialect.forget_caller();
            self.flight("running a call", &nobody).await?;
        }
        outcome.map_err(call_failure)
    }

    async fn commit_call(&mut self, _: &ProcedureCall) -> Result<(), CallFailure> {
        self.execute_batch("COMMIT").map_err(call_failure)
    }

    async fn undo_call(&mut self, call: &ProcedureCall) -> Result<(), CentreError> {
        if !self.is_autocommit() {
            self.rollback().await?;
        }
        if !call.procedure.is_read_only() {
            return Ok(());
        }
        let may_write = self.execute_batch("PRAGMA query_only = OFF");
        may_write.map_err(failure("ending a call"))
    }
}

/// Runs the steps of a call until it is not wanted any more, or has taken too long.
fn watched(connection: &SqliteConnection, call: &ProcedureCall) -> rusqlite::Result<CallOutcome> {
    let cancel = call.cancel.clone();
    let until = Instant::now().checked_add(call.timeout);
    let is_over = move || cancel.is_set() || until.is_some_and(|it| Instant::now() >= it);
    connection.progress_handler(STEPS, Some(is_over));
    let mut outcome = Ok(CallOutcome::Answer(CallAnswer::default()));
    for step in call.steps() {
        outcome = run(connection, call, step);
        if !matches!(outcome, Ok(CallOutcome::Answer(_))) {
            break;
        }
    }
    connection.progress_handler(0, None::<fn() -> bool>);
    outcome
}

/// Runs one statement to its end.
fn run(
    connection: &SqliteConnection,
    call: &ProcedureCall,
    step: CallStep<'_>,
) -> rusqlite::Result<CallOutcome> {
    let mut statement = connection.prepare_cached(&step.script.sql)?;
    let count = statement.parameter_count();
    let parameters = call.parameters(step.script).into_iter().take(count);
    let parameters = parameters.map(|(column_type, value)| bound(column_type, &value));
    let mut rows = statement.query(params_from_iter(parameters))?;
    // What its columns are, is known once it has begun: its tables may have been altered.
    let mut row = rows.next()?;
    let Some(first) = row else {
        drop(rows);
        return Ok(AnswerCollector::new(call, step.purpose, &shape(&statement)).finish());
    };
    let shape = shape(first.as_ref());
    let mut answer = AnswerCollector::new(call, step.purpose, &shape);
    while let Some(found) = row {
        if answer.wants_row() {
            let stored = (0..shape.columns().len()).map(|at| found.get_ref(at));
            let datums = stored.enumerate().map(|(at, stored)| {
                let stored = stored?;
                Ok(match class(stored) {
                    None => Datum::Null,
                    Some(class) => values::read(answer.column_type(at, class), stored),
                })
            });
            let datums: Vec<Datum<'_>> = datums.collect::<rusqlite::Result<_>>()?;
            answer.push(&datums);
        }
        if answer.has_ended() {
            break;
        }
        row = rows.next()?;
    }
    Ok(answer.finish())
}

/// The names of a statement's columns, and their types as far as they are declared.
fn shape(statement: &Statement<'_>) -> AnswerShape {
    AnswerShape::new(statement.columns().iter().map(|column| {
        let declared = column.decl_type().and_then(values::column_type);
        (column.name().to_owned(), declared)
    }))
}

/// The type of a value by itself.
fn class(stored: Stored<'_>) -> Option<ColumnType> {
    match stored {
        Stored::Null => None,
        Stored::Integer(_) => Some(ColumnType::Integer),
        Stored::Real(_) => Some(ColumnType::Real),
        Stored::Text(_) => Some(ColumnType::Text),
        Stored::Blob(_) => Some(ColumnType::Bytes),
    }
}

/// What an error means for a call.
fn call_failure(error: rusqlite::Error) -> CallFailure {
    let message = error.to_string();
    let rusqlite::Error::SqliteFailure(failed, _) = &error else {
        let code = String::new();
        return CallFailure::Final(CallOutcome::Failed { code, message });
    };
    match (failed.code, failed.extended_code) {
        (ErrorCode::OperationInterrupted, _) => CallFailure::Final(CallOutcome::Interrupted),
        (_, ffi::SQLITE_BUSY) => CallFailure::Final(CallOutcome::Busy { message }),
        // Another connection has written, or recovers the file.
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => {
            CallFailure::Retry(CallOutcome::Busy { message })
        }
        (
            ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure,
            _,
        ) => failure("running a call")(error).into(),
        (_, extended) => CallFailure::Final(CallOutcome::Failed {
            code: name(extended),
            message,
        }),
    }
}

/// SQLite's name of an extended result code.
fn name(code: i32) -> String {
    macro_rules! name {
        ($($name:ident)*) => {
            match code {
                $(ffi::$name => stringify!($name).to_owned(),)*
                other => format!("SQLITE_{other}"),
            }
        };
    }
    name! {
        SQLITE_ERROR SQLITE_PERM SQLITE_NOMEM SQLITE_READONLY SQLITE_IOERR SQLITE_FULL SQLITE_SCHEMA
        SQLITE_TOOBIG SQLITE_CONSTRAINT SQLITE_CONSTRAINT_CHECK SQLITE_CONSTRAINT_FOREIGNKEY
        SQLITE_CONSTRAINT_NOTNULL SQLITE_CONSTRAINT_PRIMARYKEY SQLITE_CONSTRAINT_TRIGGER
        SQLITE_CONSTRAINT_UNIQUE SQLITE_CONSTRAINT_ROWID SQLITE_MISMATCH SQLITE_MISUSE SQLITE_AUTH
        SQLITE_RANGE
    }
}
