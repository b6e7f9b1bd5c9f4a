//! A procedure that can be called: what the operator wrote, read for a database.

use tidewater_protocol::ColumnType;

use crate::engine::script::{Script, ScriptParameter};
use crate::procedure::Returns;
use crate::procedure_spec::ArgumentSpec;

/// A procedure that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallableProcedure {
    pub(super) name: String,
    pub(super) arguments: Vec<ArgumentSpec>,
    pub(super) returns: Returns,
    pub(super) read_only: bool,
    pub(super) statements: Vec<Script>,
    pub(super) allow: Option<Script>,
}

impl CallableProcedure {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a call has to say.
    pub fn arguments(&self) -> &[ArgumentSpec] {
        &self.arguments
    }

    /// What it answers with.
    pub fn returns(&self) -> Returns {
        self.returns
    }

    /// Whether it changes nothing.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether a program provides it: calls only tell whether they are allowed.
    pub fn is_provided(&self) -> bool {
        self.statements.is_empty()
    }

    /// What the database runs, one after the other; the last one answers. None if a program
    /// provides the procedure.
    pub fn statements(&self) -> &[Script] {
        &self.statements
    }

    /// The query that yields a row if the call is allowed.
    pub fn allow(&self) -> Option<&Script> {
        self.allow.as_ref()
    }

    /// Whether it names what is known of the caller, so that a call of it has to bring that.
    pub fn names_claims(&self) -> bool {
        let scripts = self.statements.iter().chain(&self.allow);
        let mut parameters = scripts.flat_map(|it| &it.parameters);
        parameters.any(|it| matches!(it, ScriptParameter::Claim(_)))
    }

    /// The type of a script's parameter.
    pub fn type_of(&self, parameter: &ScriptParameter) -> ColumnType {
        let ScriptParameter::Argument(name) = parameter else {
            return ColumnType::Text;
        };
        let argument = self.arguments.iter().find(|it| it.name == *name);
        argument.map_or(ColumnType::Text, |it| it.column_type)
    }
}

/// What the query is called that says who may call a procedure, which has a place in the configuration.
pub(in crate::engine) fn allow_query(place: &str) -> String {
    format!("{place}: the allow query")
}
