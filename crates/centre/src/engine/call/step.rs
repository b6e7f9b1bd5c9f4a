//! The statements that are run for a call, in their order, and the values of their parameters.

use tidewater_protocol::{ColumnType, Value};

use crate::engine::script::{Script, ScriptParameter};
use crate::procedure::{ProcedureCall, Returns};

/// One of the statements that are run for a call.
#[derive(Clone, Copy, Debug)]
pub struct CallStep<'c> {
    /// The statement.
    pub script: &'c Script,
    /// What its rows are read for.
    pub purpose: StepPurpose,
}

/// What the rows of a statement are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPurpose {
    /// A row allows the call.
    Permission,
    /// They are the answer.
    Answer(Returns),
}

impl ProcedureCall {
    /// What is run for it, one after the other. An outcome that is no answer ends the call, and the
    /// last one counts.
    pub fn steps(&self) -> impl Iterator<Item = CallStep<'_>> {
        let allow = self.procedure.allow().map(|script| CallStep {
            script,
            purpose: StepPurpose::Permission,
        });
        let statements = self.procedure.statements();
        let answers = statements.iter().enumerate().map(move |(index, script)| {
            let returns = match index + 1 == statements.len() {
                true => self.procedure.returns(),
                false => Returns::Nothing,
            };
            CallStep {
                script,
                purpose: StepPurpose::Answer(returns),
            }
        });
        allow.into_iter().chain(answers)
    }

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
