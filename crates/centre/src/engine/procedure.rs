//! Procedures: reading what the operator wrote, and running calls.
//!
//! Each call is a transaction of its own. Those that only read are run all at once where the
//! database can; the others one after the other, and again where a deadlock or the like undid them.
//! A call with a key notes the key first in its own transaction, and what came of it last: so it has
//! taken effect if and only if that is known.

use std::sync::Arc;

use tidewater_protocol::{ColumnType, Value};

use super::connection::{DatabaseConnection, Durability};
use super::once::{self, KeyUse};
use super::script::{Script, ScriptParameter, ScriptPurpose, first_word, statements};
use crate::engine::callable_procedure::{CallableProcedure, StatementCheck};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::procedure::{CallOutcome, ProcedureCall, Returns};
use crate::procedure_spec::{ArgumentSpec, ProcedureSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// How often a call is begun that others undo.
const ATTEMPTS: u32 = 8;

/// A statement that is none of these would do something beyond the transaction of its call.
const BEGINNINGS: [&str; 12] = [
    "SELECT", "WITH", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "CALL",
    "TRUNCATE", "NOTIFY",
];

impl ProcedureCall {
    /// The values of a script's parameters, with their types.
    pub fn parameters(&self, script: &Script) -> Vec<(ColumnType, Value)> {
        let procedure = &self.procedure;
        let values = script.parameters.iter().map(|parameter| {
            let value = match parameter {
                ScriptParameter::System("username") => Value::Text(self.caller.user.clone()),
                ScriptParameter::System("remote_id") => match self.caller.remote_id {
                    Some(id) => Value::Text(id.to_string()),
                    None => Value::Null,
                },
                ScriptParameter::Claim(name) => match self.claims.named(name) {
                    Some(claim) => Value::Text(claim.to_owned()),
                    None => Value::Null,
                },
                ScriptParameter::System(_)
                | ScriptParameter::User(_)
                | ScriptParameter::New(_)
                | ScriptParameter::Old(_)
                | ScriptParameter::Mark(_) => Value::Null,
                ScriptParameter::Argument(name) => {
                    let place = procedure.arguments.iter().position(|it| it.name == *name);
                    let value = place.and_then(|it| self.arguments.get(it));
                    value.cloned().unwrap_or(Value::Null)
                }
            };
            (procedure.type_of(parameter), value)
        });
        values.collect()
    }
}

/// See [`crate::Centre::procedures`].
pub(super) async fn compile<T: ChangeTracking>(
    connection: &mut T::Connection,
    specs: &[ProcedureSpec],
) -> Result<Vec<Arc<CallableProcedure>>> {
    let mut procedures: Vec<Arc<CallableProcedure>> = Vec::with_capacity(specs.len());
    for spec in specs {
        let place = format!("procedure {:?}", spec.name);
        if procedures.iter().any(|it| it.name == spec.name) {
            let hint = "give each procedure a name of its own";
            return Err(wrong(&place, "is there twice", hint));
        }
        let mut procedure = read::<T>(spec, &place)?;
        procedure.read_only |= check::<T>(connection, &procedure, &place).await?;
        procedures.push(Arc::new(procedure));
    }
    Ok(procedures)
}

/// Reads what the operator wrote.
fn read<T: ChangeTracking>(spec: &ProcedureSpec, place: &str) -> Result<CallableProcedure> {
    for (index, argument) in spec.arguments.iter().enumerate() {
        let name = &argument.name;
        let before = &spec.arguments[..index];
        if !tidewater_protocol::message::SubscriptionParameter::is_name(name) {
            let what = format!("has an argument with the impossible name {name:?}");
            let hint = "a name has letters of ASCII, digits and underscores, no digit first";
            return Err(wrong(place, &what, hint));
        }
        if before.iter().any(|it| it.name == *name) {
            let what = format!("has the argument {name:?} twice");
            return Err(wrong(place, &what, "declare it once"));
        }
    }
    let mut procedure = CallableProcedure {
        name: spec.name.clone(),
        arguments: spec.arguments.clone(),
        returns: spec.returns,
        read_only: spec.read_only,
        statements: Vec::new(),
        allow: None,
    };
    if let Some(sql) = &spec.sql {
        procedure.statements = scripts::<T>(sql, spec, place)?;
        if procedure.statements.is_empty() {
            let hint = "write an SQL statement, or leave `sql` out if a program provides it";
            return Err(wrong(place, "has an empty text for its SQL", hint));
        }
        if !T::dialect().takes_several_statements() && procedure.statements.len() > 1 {
            let hint = format!(
                "{} prepares one at a time: put them into one WITH, or into a function that the \
                 statement calls",
                T::dialect().title()
            );
            return Err(wrong(place, "has several statements", hint));
        }
    }
    if let Some(allow) = &spec.allow {
        let named = allow_query(place);
        let mut scripts = scripts::<T>(allow, spec, &named)?;
        procedure.allow = scripts.pop().filter(|_| scripts.is_empty());
        if procedure.allow.is_none() {
            let hint = "write one query, which yields a row if the call is allowed";
            return Err(wrong(&named, "is not one statement", hint));
        }
    }
    if spec.sql.is_some() {
        unused(&procedure, place)?;
    }
    Ok(procedure)
}

/// What the query is called that says who may call.
fn allow_query(place: &str) -> String {
    format!("{place}: the allow query")
}

/// The statements of a text.
fn scripts<T: ChangeTracking>(sql: &str, spec: &ProcedureSpec, named: &str) -> Result<Vec<Script>> {
    let is_wrong = |error: super::script::ScriptError| {
        wrong(named, &format!("is wrong: {error}"), error.hint())
    };
    let mut scripts = Vec::new();
    for statement in statements(sql, T::lexing()).map_err(is_wrong)? {
        let word = first_word(statement, T::lexing());
        if !BEGINNINGS.contains(&&*word) {
            let what = format!("has a statement that begins with {word:?}");
            let hint = "a call is a transaction of its own, which reads and writes rows: write \
                        SELECT, INSERT, UPDATE, DELETE or the like";
            return Err(wrong(named, &what, hint));
        }
        let script = Script::parse_for(ScriptPurpose::Call, statement, T::lexing(), T::parameter);
        let script = script.map_err(is_wrong)?;
        for parameter in &script.parameters {
            let ScriptParameter::Argument(name) = parameter else {
                continue;
            };
            if spec.arguments.iter().any(|it| it.name == *name) {
                continue;
            }
            let names = || spec.arguments.iter().map(|it| it.name.as_str());
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean {{a.{near}}}?"),
                None => format!("declare it: arguments = {{ {name} = \"text\" }}"),
            };
            let what = format!("names {{a.{name}}}, and there is no such argument");
            return Err(wrong(named, &what, hint));
        }
        scripts.push(script);
    }
    Ok(scripts)
}

/// Finds arguments that nothing uses.
fn unused(procedure: &CallableProcedure, place: &str) -> Result<()> {
    let scripts = procedure.statements.iter().chain(&procedure.allow);
    let used: Vec<&ScriptParameter> = scripts.flat_map(|it| &it.parameters).collect();
    let is_used = |argument: &ArgumentSpec| {
        used.iter()
            .any(|it| matches!(it, ScriptParameter::Argument(name) if *name == argument.name))
    };
    match procedure.arguments.iter().find(|it| !is_used(it)) {
        None => Ok(()),
        Some(ArgumentSpec { name, .. }) => Err(wrong(
            place,
            &format!("does not use its argument {name:?}"),
            format!("write {{a.{name}}} in its SQL, or remove the argument"),
        )),
    }
}

/// Has the database read a procedure's statements; whether it is known to change nothing.
async fn check<T: ChangeTracking>(
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

/// What became of a call that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRun {
    /// This.
    Done(CallOutcome),
    /// This; but it was others that undid it, and the same call may succeed when it is run again.
    Again(CallOutcome),
}

/// How a database runs calls, on one connection.
pub trait CallRunner: Send {
    /// The connection.
    type Connection: DatabaseConnection;

    /// The connection, for the server's own tables.
    fn connection(&mut self) -> &mut Self::Connection;

    /// Runs calls that only read, each in a transaction of its own that cannot write.
    fn read(
        &mut self,
        calls: &[&ProcedureCall],
    ) -> impl Future<Output = Result<Vec<CallRun>>> + Send;

    /// Begins a call's transaction. An outcome: it could not be begun.
    fn begin(
        &mut self,
        call: &ProcedureCall,
    ) -> impl Future<Output = Result<Option<CallRun>>> + Send;

    /// Runs the call in its transaction.
    fn run(&mut self, call: &ProcedureCall) -> impl Future<Output = Result<CallRun>> + Send;

    /// Commits the transaction of a call that came to this.
    fn commit(
        &mut self,
        call: &ProcedureCall,
        outcome: CallOutcome,
    ) -> impl Future<Output = Result<CallRun>> + Send;

    /// Undoes the transaction, if it is still open.
    fn undo(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// See [`crate::Worker::call`].
///
/// # Errors
/// The database is away.
pub async fn call(
    calls: &mut impl CallRunner,
    list: &[ProcedureCall],
    now_ms: i64,
) -> Result<Vec<CallOutcome>> {
    let mut outcomes = Vec::with_capacity(list.len());
    let kinds =
        list.chunk_by(|one, other| one.procedure.is_read_only() && other.procedure.is_read_only());
    for some in kinds {
        match some[0].procedure.is_read_only() {
            true => outcomes.extend(read_all(calls, some).await?),
            false => outcomes.push(write(calls, &some[0], now_ms).await?),
        }
    }
    Ok(outcomes)
}

async fn read_all(calls: &mut impl CallRunner, list: &[ProcedureCall]) -> Result<Vec<CallOutcome>> {
    let mut outcomes: Vec<CallOutcome> = list.iter().map(|_| CallOutcome::Interrupted).collect();
    let mut left: Vec<usize> = (0..list.len()).collect();
    for _ in 0..ATTEMPTS {
        left.retain(|&it| !list[it].cancel.is_set() || outcomes[it] != CallOutcome::Interrupted);
        if left.is_empty() {
            break;
        }
        let some: Vec<&ProcedureCall> = left.iter().map(|&it| &list[it]).collect();
        let ran = calls.read(&some).await?;
        let mut again = Vec::new();
        for (place, ran) in left.into_iter().zip(ran) {
            outcomes[place] = match ran {
                CallRun::Done(outcome) => outcome,
                // Its caller has seen rows of it.
                CallRun::Again(outcome) if list[place].has_begun_to_answer() => outcome,
                CallRun::Again(outcome) => {
                    again.push(place);
                    outcome
                }
            };
        }
        left = again;
    }
    Ok(outcomes)
}

async fn write(
    calls: &mut impl CallRunner,
    call: &ProcedureCall,
    now_ms: i64,
) -> Result<CallOutcome> {
    let mut last = CallOutcome::Interrupted;
    for _ in 0..ATTEMPTS {
        if call.cancel.is_set() {
            return Ok(CallOutcome::Interrupted);
        }
        let ran = match call.once {
            None => write_once(calls, call).await?,
            Some(key) => write_under(calls, call, key, now_ms).await?,
        };
        match ran {
            CallRun::Done(outcome) => return Ok(outcome),
            CallRun::Again(outcome) => last = outcome,
        }
    }
    Ok(last)
}

/// Runs a call in a transaction of its own.
async fn write_once(calls: &mut impl CallRunner, call: &ProcedureCall) -> Result<CallRun> {
    if let Some(ran) = calls.begin(call).await? {
        return Ok(ran);
    }
    match calls.run(call).await? {
        CallRun::Done(outcome @ CallOutcome::Answer(_)) => calls.commit(call, outcome).await,
        ran => {
            calls.undo().await?;
            Ok(ran)
        }
    }
}

/// The same under a key.
async fn write_under(
    calls: &mut impl CallRunner,
    call: &ProcedureCall,
    key: [u8; 16],
    now_ms: i64,
) -> Result<CallRun> {
    let user = &call.caller.user;
    let used = KeyUse::Call(call.procedure.name());
    if let Some(ran) = calls.begin(call).await? {
        return Ok(ran);
    }
    let note = once::note(user, key, used, now_ms);
    let noted = calls.connection().run_one(KEEPING, note).await;
    match noted.map(|it| it.changed) {
        Ok(0) => {
            calls.undo().await?;
            return match once::kept(calls.connection(), user, key, used).await {
                // The row was there and is not any more: it was pruned in between.
                Ok(None) => Ok(CallRun::Again(CallOutcome::KeyTaken)),
                Ok(Some(kept)) => Ok(CallRun::Done(stored(&kept)?)),
                Err(error) => hindered(call, error),
            };
        }
        Ok(_) => {}
        Err(error) => {
            calls.undo().await?;
            return hindered(call, error);
        }
    }
    let ran = match calls.run(call).await? {
        CallRun::Done(outcome @ CallOutcome::Answer(_)) => {
            let bytes = outcome.encode().unwrap_or_default();
            let finish = once::finish(user, key, used, bytes);
            match calls.connection().run_one(KEEPING, finish).await {
                Ok(_) => calls.commit(call, outcome).await?,
                Err(error) => hindered(call, error)?,
            }
        }
        ran => ran,
    };
    let CallRun::Done(outcome) = ran else {
        calls.undo().await?;
        return Ok(ran);
    };
    if matches!(outcome, CallOutcome::Answer(_)) {
        return Ok(CallRun::Done(outcome));
    }
    calls.undo().await?;
    let Some(bytes) = outcome.encode() else {
        return Ok(CallRun::Done(outcome));
    };
    keep_failure(calls, call, key, now_ms, (outcome, bytes)).await
}

/// Keeps that a call has failed, unless somebody else was faster with the same one: then that
/// counts.
async fn keep_failure(
    calls: &mut impl CallRunner,
    call: &ProcedureCall,
    key: [u8; 16],
    now_ms: i64,
    (outcome, bytes): (CallOutcome, Vec<u8>),
) -> Result<CallRun> {
    let user = &call.caller.user;
    let used = KeyUse::Call(call.procedure.name());
    let keep = [once::note_done(user, key, used, bytes, now_ms)];
    let connection = calls.connection();
    match connection
        .transact(KEEPING, Durability::Durable, &keep)
        .await
    {
        Ok(answers) if answers.first().is_some_and(|it| it.changed > 0) => {
            Ok(CallRun::Done(outcome))
        }
        Ok(_) => match once::kept(connection, user, key, used).await {
            Ok(Some(kept)) => Ok(CallRun::Done(stored(&kept)?)),
            Ok(None) => Ok(CallRun::Done(outcome)),
            Err(error) => hindered(call, error),
        },
        // Nothing was done: whoever calls again finds out again.
        Err(error) => hindered(call, error),
    }
}

/// What is being done with keys.
const KEEPING: &str = "keeping what became of a call";

/// What it means for a call that a statement on the server's own tables fails.
///
/// # Errors
/// It is no matter of this call.
fn hindered(call: &ProcedureCall, error: CentreError) -> Result<CallRun> {
    match error {
        CentreError::Locked { message } => Ok(CallRun::Done(CallOutcome::Busy { message })),
        // query_canceled: if not by this call, then by what was meant for another one.
        CentreError::StatementFailed {
            sqlstate: Some(state),
            ..
        } if state == "57014" => Ok(match call.cancel.is_set() {
            true => CallRun::Done(CallOutcome::Interrupted),
            false => CallRun::Again(CallOutcome::Interrupted),
        }),
        CentreError::StatementFailed {
            message,
            retry: true,
            ..
        } => Ok(CallRun::Again(CallOutcome::Busy { message })),
        other => Err(other),
    }
}

/// What is kept of a call.
fn stored(kept: &once::KeyRecord) -> Result<CallOutcome> {
    if !kept.is_same {
        return Ok(CallOutcome::KeyTaken);
    }
    let outcome = kept.outcome.as_deref().and_then(CallOutcome::decode);
    outcome.ok_or_else(|| CentreError::Internal {
        message: "what became of a call is not as it was kept".into(),
    })
}
