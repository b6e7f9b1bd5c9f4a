//! The queries of the operator that say who holds what, and what is wrong with one.

use crate::engine::script::ScriptParameter;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

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

/// What to do about a query that reads a table which is not there.
pub const MISSING_TABLE_HINT: &str = "make the table first; if tidewater init printed statements for \
     it, run these: they stand as comments in the configuration, too";

/// What is wrong with a query, which is named with its place in the configuration.
pub fn wrong(query: &str, what: &str, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message: format!("{query} {what}"),
        hint: hint.into(),
    }
}

/// Checks that the query for the values that a parameter may have yields one column.
pub fn check_allowed(query: &str, found: usize) -> Result<()> {
    match found {
        1 => Ok(()),
        _ => Err(wrong(
            query,
            &format!("yields {found} columns"),
            "select one column",
        )),
    }
}

/// Checks that a query yields a value for each partition column.
pub fn check_columns(place: &str, found: usize, names: &[&str]) -> Result<()> {
    if found == names.len() {
        return Ok(());
    }
    Err(wrong(
        place,
        &format!(
            "yields {found} columns, but there are {} partition columns",
            names.len()
        ),
        format!("select values for {}", names.join(", ")),
    ))
}
