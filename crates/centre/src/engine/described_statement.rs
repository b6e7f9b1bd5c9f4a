//! What a database says of a statement that it has read without running it.

use tidewater_protocol::ColumnType;

use crate::error::CentreError;

/// A statement that the database takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedStatement {
    /// The columns that it yields, in their order; none if it yields no rows.
    pub columns: Vec<DescribedColumn>,
    /// The types of its parameters as remotes would see them, in their order, as far as the database
    /// tells them.
    pub parameters: Vec<Option<ColumnType>>,
    /// Whether it changes something, if the database tells that.
    pub writes: Option<bool>,
}

/// A column that a statement yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedColumn {
    /// Its name.
    pub name: String,
    /// The type as remotes would see it, if the database tells it.
    pub column_type: Option<ColumnType>,
    /// The type as the database names it; empty if it does not tell it.
    pub type_name: String,
    /// Whether its values are read as they are sent; see
    /// [`readable_query`](super::sql::sql_dialect::SqlDialect::readable_query).
    pub is_readable: bool,
}

/// What a statement has wrong that the engine goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementProblemKind {
    /// A table that it reads or writes is not there.
    MissingTable,
    /// What it does is not there for the types that its values have, or the type of a parameter is
    /// not found: a function, an operator, a conversion.
    UnfitTypes,
    /// Anything else, as a syntax error.
    Other,
}

/// Why a database does not take a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementProblem {
    /// Which kind of problem that is.
    pub kind: StatementProblemKind,
    /// What the database says.
    pub message: String,
    /// Where in the statement that is, in characters from 1, if the database tells it.
    pub position: Option<usize>,
    /// What the database advises, if that is of use to an operator.
    pub hint: Option<String>,
}

/// Why there is no description of a statement.
#[derive(Debug)]
pub enum DescriptionError {
    /// The database does not take it.
    Refused(StatementProblem),
    /// The database could not read it now, whatever it says.
    Failed(CentreError),
}

impl DescriptionError {
    /// The error of a database that has read a statement, and what that would be as a problem of the
    /// statement.
    pub fn new(error: CentreError, problem: StatementProblem) -> DescriptionError {
        let is_refusal = match &error {
            CentreError::NotDeployed { .. } => true,
            CentreError::StatementFailed { retry, .. } => !retry && !error.is_out_of_resources(),
            _ => false,
        };
        match is_refusal {
            true => DescriptionError::Refused(problem),
            false => DescriptionError::Failed(error),
        }
    }
}
