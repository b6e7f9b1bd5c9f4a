//! Calls of procedures: running their statements, reading their answers, and ending them early.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a statement takes is measured by the clock; nothing else depends on it"
)]

use std::sync::Arc;

use std::time::Instant;

use bytes::Bytes;
use rusqlite::types::{Value as Native, ValueRef as Stored};
use rusqlite::{ErrorCode, ffi, params_from_iter};

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::pack::too_long;
use tidewater_protocol::{ColumnType, Datum, Op, RowShape, RowsWriter, Value, ValueRef};

use super::connection::SqliteConnection;
use super::{failure, values};
use tidewater_centre::engine::callable_procedure::StatementCheck;
use tidewater_centre::engine::connection::{DatabaseConnection as _, system_sql};
use tidewater_centre::engine::procedure::{CallRun, CallRunner};
use tidewater_centre::engine::scope_query::wrong;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::scripts::ScriptStatement;
use tidewater_centre::error::CentreError;
use tidewater_centre::{
    AnswerColumn, AnswerSink, CallAnswer, CallInterrupt, CallOutcome, Cancel, ProcedureCall,
    Returns,
};

/// So many steps of a statement are between two looks whether it is to end.
pub(super) const STEPS: i32 = 1_000;

/// So many rows are held before a sink is given them.
const ROWS_AT_ONCE: usize = 4_000;

/// Interrupts the calls of a worker: each looks by itself.
pub(super) struct SqliteInterrupter;

impl CallInterrupt for SqliteInterrupter {
    fn interrupt(&self, call: &Cancel) {
        call.set();
    }
}

/// See [`CallRunner`].
pub(super) struct SqliteCalls<'c> {
    connection: &'c mut SqliteConnection,
}

/// What a statement of a call comes to.
type Answered = Result<CallOutcome, rusqlite::Error>;

impl<'c> SqliteCalls<'c> {
    pub(super) fn new(connection: &'c mut SqliteConnection) -> SqliteCalls<'c> {
        SqliteCalls { connection }
    }

    /// Does something for a call that ends when the call is not wanted any more, or has taken too
    /// long.
    fn watched<T>(&self, call: &ProcedureCall, work: impl FnOnce(&SqliteConnection) -> T) -> T {
        let cancel = call.cancel.clone();
        let until = Instant::now().checked_add(call.timeout);
        let is_over = move || cancel.is_set() || until.is_some_and(|it| Instant::now() >= it);
        self.connection.progress_handler(STEPS, Some(is_over));
        let done = work(self.connection);
        self.connection.progress_handler(0, None::<fn() -> bool>);
        done
    }

    /// Reads in a transaction of its own, in which nothing can be written.
    fn read_one(&self, call: &ProcedureCall) -> Result<CallRun, CentreError> {
        if call.cancel.is_set() {
            return Ok(CallRun::Done(CallOutcome::Interrupted));
        }
        let begun = self
            .connection
            .execute_batch("PRAGMA query_only = ON; BEGIN");
        let answered = match begun {
            Ok(()) => self.watched(call, |connection| answer(connection, call)),
            Err(error) => Err(error),
        };
        if !self.connection.is_autocommit() {
            let ended = self.connection.execute_batch("ROLLBACK");
            ended.map_err(failure("ending a call"))?;
        }
        let may_write = self.connection.execute_batch("PRAGMA query_only = OFF");
        may_write.map_err(failure("ending a call"))?;
        ran(answered)
    }
}

impl CallRunner for SqliteCalls<'_> {
    type Connection = SqliteConnection;

    fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }

    async fn read(&mut self, calls: &[&ProcedureCall]) -> Result<Vec<CallRun>, CentreError> {
        calls.iter().map(|call| self.read_one(call)).collect()
    }

    async fn begin(&mut self, _: &ProcedureCall) -> Result<Option<CallRun>, CentreError> {
        match self.connection.execute_batch("BEGIN IMMEDIATE") {
            Ok(()) => Ok(None),
            Err(error) => ran(Err(error)).map(Some),
        }
    }

    async fn run(&mut self, call: &ProcedureCall) -> Result<CallRun, CentreError> {
        let caller = &call.caller;
        let remote = caller.remote_id.map(|it| it.to_string());
        let who = system_sql!(
            "INSERT INTO tidewater.uploading (username, remote_id) VALUES (?1, ?2)",
            caller.user,
            remote.unwrap_or_default(),
        );
        let forget = system_sql!("DELETE FROM tidewater.uploading");
        let says = [forget.clone(), who];
        self.connection.flight("saying who calls", &says).await?;
        let answered = self.watched(call, |connection| answer(connection, call));
        // A trigger of the application may have undone everything.
        if answered.is_ok() && !self.connection.is_autocommit() {
            self.connection.run_one("running a call", forget).await?;
        }
        ran(answered)
    }

    async fn commit(
        &mut self,
        _: &ProcedureCall,
        outcome: CallOutcome,
    ) -> Result<CallRun, CentreError> {
        match self.connection.execute_batch("COMMIT") {
            Ok(()) => Ok(CallRun::Done(outcome)),
            Err(error) => {
                self.undo().await?;
                ran(Err(error))
            }
        }
    }

    async fn undo(&mut self) -> Result<(), CentreError> {
        match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.connection.rollback().await,
        }
    }
}

/// Runs the statements of a call, if it is allowed.
fn answer(connection: &SqliteConnection, call: &ProcedureCall) -> Answered {
    if let Some(allow) = call.procedure.allow() {
        let mut statement = connection.prepare_cached(&allow.sql)?;
        let parameters = parameters(call, allow, statement.parameter_count());
        if statement
            .query(params_from_iter(parameters))?
            .next()?
            .is_none()
        {
            return Ok(CallOutcome::NotAllowed);
        }
    }
    let mut outcome = CallOutcome::Answer(CallAnswer {
        columns: Arc::new([]),
        rows: Vec::new(),
        count: 0,
    });
    let statements = call.procedure.statements();
    for (index, script) in statements.iter().enumerate() {
        let returns = match index + 1 == statements.len() {
            true => call.procedure.returns(),
            false => Returns::Nothing,
        };
        outcome = run(connection, call, script, returns)?;
    }
    Ok(outcome)
}

/// Runs one statement to its end.
fn run(
    connection: &SqliteConnection,
    call: &ProcedureCall,
    script: &Script,
    returns: Returns,
) -> Answered {
    let mut statement = connection.prepare_cached(&script.sql)?;
    let parameters = parameters(call, script, statement.parameter_count());
    let mut rows = statement.query(params_from_iter(parameters))?;
    let mut found: Vec<Vec<Native>> = Vec::new();
    // What its columns are, is known once it has begun: its tables may have been altered.
    let mut columns = None;
    let (mut count, mut bytes) = (0u64, 0);
    while let Some(row) = rows.next()? {
        count += 1;
        let (names, _) = columns.get_or_insert_with(|| columns_of(row.as_ref()));
        let is_left_out = match returns {
            Returns::Nothing => true,
            Returns::Value | Returns::Row => count > 1,
            Returns::Rows => false,
        };
        if is_left_out {
            continue;
        }
        let values = (0..names.len()).map(|at| Ok(row.get_ref(at)?.into()));
        let values: Vec<Native> = values.collect::<rusqlite::Result<_>>()?;
        // Packed it has no fewer bytes.
        bytes += 1 + values.iter().map(length).sum::<usize>();
        if bytes > call.max_bytes {
            return Ok(CallOutcome::TooLarge);
        }
        found.push(values);
        if let Some(sink) = call
            .streams_to()
            .filter(|_| bytes >= ROWS_PAYLOAD_BYTES || found.len() >= ROWS_AT_ONCE)
            && let Some(columns) = &mut columns
        {
            bytes = 0;
            if let Some(ends) = hand_out(columns, &mut found, sink) {
                return Ok(ends);
            }
        }
    }
    drop(rows);
    if matches!(returns, Returns::Value | Returns::Row) && count > 1 {
        return Ok(CallOutcome::SeveralRows);
    }
    let answer = match returns {
        Returns::Nothing => CallAnswer {
            columns: Arc::new([]),
            rows: Vec::new(),
            count: 0,
        },
        _ => {
            let columns = columns.unwrap_or_else(|| columns_of(&statement));
            match pack(columns, &found, call.max_bytes) {
                Some(answer) => answer,
                None => return Ok(CallOutcome::TooLarge),
            }
        }
    };
    Ok(CallOutcome::Answer(answer))
}

/// The names of a statement's columns, and their types as far as they are declared.
type Columns = (Vec<String>, Vec<Option<ColumnType>>);

fn columns_of(statement: &rusqlite::Statement<'_>) -> Columns {
    let columns = statement.columns();
    let columns = columns.iter().map(|column| {
        let declared = column.decl_type().and_then(values::column_type);
        (column.name().to_owned(), declared)
    });
    columns.unzip()
}

/// Gives rows to a sink; what becomes of the call, if that takes no more. What their columns are, is
/// settled with that.
fn hand_out(
    columns: &mut Columns,
    found: &mut Vec<Vec<Native>>,
    sink: &dyn AnswerSink,
) -> Option<CallOutcome> {
    let Some(answer) = pack(columns.clone(), found, usize::MAX) else {
        return Some(CallOutcome::TooLarge);
    };
    found.clear();
    columns.1 = answer
        .columns
        .iter()
        .map(|it| Some(it.column_type))
        .collect();
    let mut pieces = answer.rows.into_iter();
    pieces.find_map(|rows| sink.take(&answer.columns, rows.into()).ends())
}

/// The bytes of texts and blobs.
fn length(value: &Native) -> usize {
    match value {
        Native::Text(text) => text.len(),
        Native::Blob(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Packs rows; `None` if they have too many bytes. Of a column that is not declared the first value
/// tells the type.
fn pack((names, declared): Columns, rows: &[Vec<Native>], max_bytes: usize) -> Option<CallAnswer> {
    let types = declared.into_iter().enumerate().map(|(at, declared)| {
        declared.unwrap_or_else(|| {
            let mut found = rows.iter().filter_map(|row| type_of(&row[at]));
            found.next().unwrap_or(ColumnType::Text)
        })
    });
    let types: Vec<ColumnType> = types.collect();
    let columns = names.into_iter().zip(&types);
    let columns = columns.map(|(name, &column_type)| AnswerColumn { name, column_type });
    let shape = RowShape {
        columns: types.clone(),
        key: Vec::new(),
    };
    let mut answer = CallAnswer {
        columns: columns.collect(),
        rows: Vec::new(),
        count: rows.len() as u64,
    };
    let mut writer = RowsWriter::new(&shape);
    let mut bytes = 0;
    for row in rows {
        let datums = types.iter().zip(row);
        let datums =
            datums.map(|(&column_type, value)| values::read(column_type, Stored::from(value)));
        let datums: Vec<Datum<'_>> = datums.collect();
        let before = writer.len();
        writer.row(Op::Upsert, &datums);
        bytes += writer.len() - before;
        if bytes > max_bytes || too_long(&datums).is_some() {
            return None;
        }
        if writer.len() >= ROWS_PAYLOAD_BYTES {
            answer.rows.push(Bytes::from(writer.take()));
        }
    }
    if !writer.is_empty() {
        answer.rows.push(Bytes::from(writer.take()));
    }
    Some(answer)
}

fn type_of(value: &Native) -> Option<ColumnType> {
    match value {
        Native::Null => None,
        Native::Integer(_) => Some(ColumnType::Integer),
        Native::Real(_) => Some(ColumnType::Real),
        Native::Text(_) => Some(ColumnType::Text),
        Native::Blob(_) => Some(ColumnType::Bytes),
    }
}

/// The parameters of a statement.
fn parameters(call: &ProcedureCall, script: &Script, count: usize) -> Vec<Native> {
    let values = call.parameters(script).into_iter().take(count);
    let natives = values.map(|(column_type, value)| bound(column_type, &value));
    natives.collect()
}

/// The parameters of a script's statement. A time of the server's own is spelled as SQLite's
/// functions spell theirs, to be compared with them.
pub(super) fn of_script(statement: &ScriptStatement, values: &[Value]) -> Vec<Native> {
    let typed = statement.typed().zip(values);
    let natives = typed.map(|((column_type, is_own_time), value)| match value {
        Value::Text(text) if is_own_time => {
            let seconds = text.get(..19).unwrap_or(text);
            Native::Text(seconds.replace('T', " "))
        }
        value => bound(column_type, value),
    });
    natives.collect()
}

/// A value as a parameter.
pub(super) fn bound(column_type: ColumnType, value: &Value) -> Native {
    let (datum, _) = column_type.datum(value.as_ref());
    // A decimal that no number is, is compared and kept as text.
    values::bind(column_type, false, &datum).unwrap_or_else(|_| match value.as_ref() {
        ValueRef::Null => Native::Null,
        ValueRef::Integer(integer) => Native::Integer(integer),
        ValueRef::Real(real) => Native::Real(real),
        ValueRef::Text(text) => Native::Text(text.to_owned()),
        ValueRef::Blob(bytes) => Native::Blob(bytes.to_owned()),
    })
}

/// What an answer or a failure means for a call.
fn ran(answered: Answered) -> Result<CallRun, CentreError> {
    let error = match answered {
        Ok(outcome) => return Ok(CallRun::Done(outcome)),
        Err(error) => error,
    };
    let message = error.to_string();
    let rusqlite::Error::SqliteFailure(code, _) = &error else {
        let code = String::new();
        return Ok(CallRun::Done(CallOutcome::Failed { code, message }));
    };
    Ok(match (code.code, code.extended_code) {
        (ErrorCode::OperationInterrupted, _) => CallRun::Done(CallOutcome::Interrupted),
        (_, ffi::SQLITE_BUSY) => CallRun::Done(CallOutcome::Busy { message }),
        // Another connection has written, or recovers the file.
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => {
            CallRun::Again(CallOutcome::Busy { message })
        }
        (
            ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure,
            _,
        ) => return Err(failure("running a call")(error)),
        (_, extended) => CallRun::Done(CallOutcome::Failed {
            code: name(extended),
            message,
        }),
    })
}

/// SQLite's name of an extended result code.
fn name(code: i32) -> String {
    let name = match code {
        ffi::SQLITE_ERROR => "SQLITE_ERROR",
        ffi::SQLITE_PERM => "SQLITE_PERM",
        ffi::SQLITE_NOMEM => "SQLITE_NOMEM",
        ffi::SQLITE_READONLY => "SQLITE_READONLY",
        ffi::SQLITE_IOERR => "SQLITE_IOERR",
        ffi::SQLITE_FULL => "SQLITE_FULL",
        ffi::SQLITE_SCHEMA => "SQLITE_SCHEMA",
        ffi::SQLITE_TOOBIG => "SQLITE_TOOBIG",
        ffi::SQLITE_CONSTRAINT => "SQLITE_CONSTRAINT",
        ffi::SQLITE_CONSTRAINT_CHECK => "SQLITE_CONSTRAINT_CHECK",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "SQLITE_CONSTRAINT_FOREIGNKEY",
        ffi::SQLITE_CONSTRAINT_NOTNULL => "SQLITE_CONSTRAINT_NOTNULL",
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY => "SQLITE_CONSTRAINT_PRIMARYKEY",
        ffi::SQLITE_CONSTRAINT_TRIGGER => "SQLITE_CONSTRAINT_TRIGGER",
        ffi::SQLITE_CONSTRAINT_UNIQUE => "SQLITE_CONSTRAINT_UNIQUE",
        ffi::SQLITE_CONSTRAINT_ROWID => "SQLITE_CONSTRAINT_ROWID",
        ffi::SQLITE_MISMATCH => "SQLITE_MISMATCH",
        ffi::SQLITE_MISUSE => "SQLITE_MISUSE",
        ffi::SQLITE_AUTH => "SQLITE_AUTH",
        ffi::SQLITE_RANGE => "SQLITE_RANGE",
        other => return format!("SQLITE_{other}"),
    };
    name.to_owned()
}

/// See [`check_call`](tidewater_centre::engine::change_tracking::ChangeTracking::check_call); with so many
/// parameters beside its own for rows.
pub(super) fn check(
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
