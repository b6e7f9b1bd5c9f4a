//! Procedures: reading what the operator wrote. Their calls are the affair of [`super::call`].

use std::sync::Arc;

use super::call::check;
use super::script::{Script, ScriptParameter, ScriptPurpose, first_word, statements};
use crate::engine::callable_procedure::{CallableProcedure, allow_query};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::procedure_spec::{ArgumentSpec, ProcedureSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// A statement that is none of these would do something beyond the transaction of its call.
const BEGINNINGS: [&str; 12] = [
    "SELECT", "WITH", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "CALL",
    "TRUNCATE", "NOTIFY",
];

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
        procedure.read_only |= check::check_statements::<T>(connection, &procedure, &place).await?;
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
