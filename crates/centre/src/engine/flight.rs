//! What a database connection runs: flights of statements, sent together where the database can.
//!
//! A flight is the one thing that a driver runs. It mixes steps of a transaction, statements on the
//! server's own tables, and statements on the application's.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tidewater_protocol::{ColumnType, Datum, Value};

use super::row_fault::RowFault;
use super::sql::system_table::SystemType;
use super::system_statement::{StatementResult, SystemStatement};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Takes rows, each as it is read. An error ends the reading.
pub type TakeRow<'t> = &'t mut (dyn FnMut(&[Datum<'_>]) -> Result<()> + Send);

/// The same, owned by a step.
pub type RowTaker<'t> = Box<dyn FnMut(&[Datum<'_>]) -> Result<()> + Send + 't>;

/// How the values of a column travel between the engine and a database.
pub trait ColumnKind: Copy + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The kind of a value that is no application's.
    fn of_system(system_type: SystemType) -> Self;
}

/// Rows of values as the parameters of a statement, which is run for all of them: at once, or for one
/// after the other.
pub trait RowParameters: fmt::Debug + Send + Sync {
    /// The kinds of values.
    type Kind: ColumnKind;

    /// No rows yet, of columns of these kinds.
    fn new(kinds: &[Self::Kind]) -> Self;

    /// Appends a row. False, and nothing is appended, if a value is none of its column.
    fn push(&mut self, row: &[Datum<'_>]) -> bool;

    /// How many rows there are.
    fn count(&self) -> usize;

    /// How a statement names them; the number of their first parameter is given.
    fn source(kinds: &[Self::Kind], first: usize) -> RowSource;
}

/// How a statement names the rows that it is run for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSource {
    /// The relation that has them, for `FROM`; empty where the statement is run for each of them.
    pub relation: String,
    /// A row's number, from 1 on.
    pub number: String,
    /// The values of its columns.
    pub columns: Vec<String>,
}

/// How values travel between the engine and a database.
pub trait ValueTypes: fmt::Debug + Send + Sync + 'static {
    /// The kinds of values.
    type Kind: ColumnKind;
    /// Rows of values as parameters.
    type Rows: RowParameters<Kind = Self::Kind>;
}

/// A parameter of a [`TableStatement`].
#[derive(Clone, Debug)]
pub enum TableArgument<'s, K> {
    /// A value of this kind.
    Value(K, Datum<'s>),
    /// A value that becomes one of whatever type the statement takes there.
    Untyped(ColumnType, &'s Value),
    /// A moment of the server's own, whatever it is compared with.
    Moment(&'s Value),
    /// Rows of values as one relation: see
    /// [`SqlDialect::set_relation`](super::sql::sql_dialect::SqlDialect::set_relation).
    Rows(&'s SetArgument<'s, K>),
}

/// Rows of values that a statement reads as one relation.
#[derive(Clone, Debug)]
pub struct SetArgument<'s, K> {
    /// Their columns.
    pub columns: Vec<SetArgumentColumn<'s, K>>,
    /// The rows.
    pub rows: &'s [Vec<Value>],
}

/// A column of a [`SetArgument`].
#[derive(Clone, Debug)]
pub struct SetArgumentColumn<'s, K> {
    /// Its name.
    pub name: &'s str,
    /// The kind of its values.
    pub kind: K,
    /// Their type.
    pub column_type: ColumnType,
}

/// What a statement is going to be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatementUse {
    /// It is run again and again: what the database makes of its text is kept.
    #[default]
    Often,
    /// Its text is of no more use after it.
    Once,
    /// The same, and it reads many rows. It has no parameters.
    Bulk,
}

/// A statement on the application's tables, or of an operator.
#[derive(Debug)]
pub struct TableStatement<'s, T: ValueTypes> {
    /// What is being done, for the error.
    pub what: &'static str,
    /// Its text, in the database's own SQL.
    pub sql: Cow<'s, str>,
    /// The first of its parameters.
    pub arguments: Vec<TableArgument<'s, T::Kind>>,
    /// The rows that it is run for, behind those. Several lists are for a statement that reads all of
    /// them at once.
    pub rows: Vec<&'s T::Rows>,
    /// How many of them are done already, where it is run for one after the other.
    pub done: usize,
    /// The kinds of the columns that it yields.
    pub yields: Vec<T::Kind>,
    /// In the place of these, the types of the columns of a statement of an operator: a database that
    /// tells the types of what a statement yields goes by that.
    pub described: &'s [ColumnType],
    /// Whether rows of it that cannot be read are passed over: nobody needs them.
    pub passes_unreadable: bool,
    /// What it is going to be used for.
    pub usage: StatementUse,
}

/// A step of a flight.
pub enum FlightStep<'s, T: ValueTypes> {
    /// SQL without parameters that yields nothing; nothing is done for an empty text.
    Run(Cow<'s, str>),
    /// From here on, each statement of the flight may take so long; `None` if that is as it was. What
    /// undoes the transaction to a savepoint ends it, too.
    Limit(Option<Duration>),
    /// Commits the transaction, or undoes it if a step before it has failed.
    Commit,
    /// A statement on the server's own tables.
    System(&'s SystemStatement),
    /// A statement on the application's tables, and what takes the rows that it yields.
    Table(TableStatement<'s, T>, RowTaker<'s>),
}

/// A step has failed, and those behind it have done nothing.
#[derive(Debug)]
pub struct FlightFailure {
    /// Its number in the flight, from 0.
    pub step: usize,
    /// The answers to those before it; `None` if no step of the flight has run.
    pub done: Option<Vec<StatementResult>>,
    /// What is wrong.
    pub error: CentreError,
    /// What that is of rows, if it may be them.
    pub fault: Option<Box<RowFault>>,
}

impl From<FlightFailure> for CentreError {
    fn from(failure: FlightFailure) -> CentreError {
        failure.error
    }
}

impl RowSource {
    /// Of a statement that is run for no rows.
    pub fn none() -> RowSource {
        RowSource {
            relation: String::new(),
            number: String::new(),
            columns: Vec::new(),
        }
    }
}

impl<K: ColumnKind> TableArgument<'_, K> {
    /// A text, or NULL.
    pub fn text(text: Option<&str>) -> TableArgument<'_, K> {
        let value = text.map_or(Datum::Null, Datum::Text);
        TableArgument::Value(K::of_system(SystemType::Text), value)
    }
}

impl<'s, T: ValueTypes> TableStatement<'s, T> {
    /// A statement that has no parameters and yields nothing, yet.
    pub fn new(what: &'static str, sql: impl Into<Cow<'s, str>>) -> TableStatement<'s, T> {
        TableStatement {
            what,
            sql: sql.into(),
            arguments: Vec::new(),
            rows: Vec::new(),
            done: 0,
            yields: Vec::new(),
            described: &[],
            passes_unreadable: false,
            usage: StatementUse::default(),
        }
    }
}

impl<'s, T: ValueTypes> FlightStep<'s, T> {
    /// Has the rows of a statement taken.
    pub fn table(
        statement: TableStatement<'s, T>,
        take: impl FnMut(&[Datum<'_>]) -> Result<()> + Send + 's,
    ) -> FlightStep<'s, T> {
        FlightStep::Table(statement, Box::new(take))
    }

    /// Runs a text.
    pub fn run(sql: impl Into<Cow<'s, str>>) -> FlightStep<'s, T> {
        FlightStep::Run(sql.into())
    }
}
