//! The queries of the operator that say who holds what, and what is wrong with one.

use crate::engine::script::ScriptParameter;
use crate::error::CentreError;

/// A query for the values of the partition columns that a user holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeQuery {
    /// The operator's query, with positional parameters.
    pub inner: String,
    /// As it is run.
    pub sql: String,
    /// What the parameters stand for.
    pub parameters: Vec<ScriptParameter>,
}

/// A parameter of remotes whose values are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Its name.
    pub parameter: String,
    /// The query, which yields a row if the value that is set is allowed.
    pub query: ScopeQuery,
}

/// What is wrong with a query, which is named with its place in the configuration.
pub fn wrong(query: &str, what: &str, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message: format!("{query} {what}"),
        hint: hint.into(),
    }
}
