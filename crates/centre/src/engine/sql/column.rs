//! Columns of the application's tables, as statements need them.

use std::fmt;

use tidewater_protocol::pack::same;
use tidewater_protocol::{ColumnType, Datum};

use crate::engine::exact::canonical;
use crate::engine::flight::ColumnKind;

/// A column of an application's table, as its database spells it.
pub trait SqlColumn: Clone + fmt::Debug + Send + Sync + 'static {
    /// How its values travel.
    type Kind: ColumnKind;

    /// How its values travel.
    fn kind(&self) -> Self::Kind;

    /// The type of its values, as remotes see it.
    fn column_type(&self) -> ColumnType;

    /// Its name.
    fn name(&self) -> &str;

    /// The same of a value that stands in a change log.
    fn equals_logged(&self, column: &str, value: &str) -> String {
        self.equals(column, value)
    }

    /// A value that stands in a change log, as a result.
    fn logged_output(&self, value: &str) -> String {
        value.to_owned()
    }

    /// The same of a partition's value; NULL if it is none any more.
    fn held(&self, value: &str) -> String {
        self.input(value)
    }

    /// What remotes keep where that is a text, and the value, by a table with this prefix, is none:
    /// NULL where they keep the value. `None` if they always do.
    fn kept_output(&self, _prefix: &str) -> Option<String> {
        None
    }

    /// Its name in SQL, quoted.
    fn sql_name(&self) -> &str;

    /// The expression of its default, as SQL of the database.
    fn default_sql(&self) -> Option<&str>;

    /// Whether the database computes its values, and nobody writes them.
    fn is_generated(&self) -> bool {
        false
    }

    /// Whether an update can write it.
    fn is_settable(&self) -> bool {
        true
    }

    /// What a query of an operator yields, as a value of its type; `None` if it is none.
    fn coerce<'v>(&self, value: Datum<'v>) -> Option<Datum<'v>> {
        Some(value)
    }

    /// A value of a query of an operator, made one of its type; `None` where the database does not
    /// need that.
    fn cast_value(&self, _value: &str) -> Option<String> {
        None
    }

    /// How a parameter is written as a value of its type, where the database may not find the type
    /// of a parameter by itself.
    fn typed_parameter(&self, _parameter: &str) -> Option<String> {
        None
    }

    /// The type of a parameter that carries its values, where the database has to be told.
    fn parameter_type(&self) -> &str {
        ""
    }

    /// A parameter as a value of the column, where a statement has parameters of some other type.
    fn input(&self, parameter: &str) -> String {
        parameter.to_owned()
    }

    /// Whether the column, by this name, has the value of a parameter: in the way that finds it by an
    /// index, for columns of a key. A text has it to the byte, unless [`Self::compares_loosely`].
    fn equals(&self, column: &str, parameter: &str) -> String {
        format!("{column} = {}", self.input(parameter))
    }

    /// Whether [`Self::equals`] takes other values for equal, too.
    fn compares_loosely(&self) -> bool {
        false
    }

    /// Whether the column has exactly the value of a parameter, NULL included; a text to the byte.
    fn same(&self, column: &str, parameter: &str) -> String {
        format!("{column} IS NOT DISTINCT FROM {parameter}")
    }

    /// A parameter as the column keeps its value, such as rounded. It never fails.
    fn kept(&self, parameter: &str) -> String {
        parameter.to_owned()
    }

    /// Why a value cannot go into the column, without asking the database; `is_key` if two spellings
    /// of it would be two rows of remotes. `room` is for trying.
    fn misfit(&self, is_key: bool, value: &Datum<'_>, room: &mut Vec<u8>) -> Option<String> {
        let _ = (is_key, value, room);
        None
    }

    /// Whether the column gives back a value exactly as it was.
    fn keeps(&self, value: &Datum<'_>) -> bool {
        self.normalize(*value) == *value
    }

    /// A value as the column gives it back.
    fn normalize<'v>(&self, value: Datum<'v>) -> Datum<'v> {
        canonical(value)
    }

    /// Whether two values are equal by the column's type: numbers by value, text byte by byte.
    fn is_equal(&self, left: &Datum<'_>, right: &Datum<'_>) -> bool {
        same(&canonical(*left), &canonical(*right))
    }

    /// Whether one value has to be written over the other, if only for how it is written.
    fn differs(&self, left: &Datum<'_>, right: &Datum<'_>) -> bool {
        !self.is_equal(left, right)
    }

    /// The column of a table with this prefix, such as `t.`, as a result that can be read.
    fn output(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.sql_name())
    }
}

/// An application's table, as statements need it.
#[derive(Debug)]
pub struct SqlTable<'c, C> {
    /// Its name in SQL.
    pub sql_name: &'c str,
    /// Its name for people.
    pub title: &'c str,
    /// Its columns, in order.
    pub columns: &'c [C],
    /// The primary key, as indexes into `columns`.
    pub key: &'c [usize],
    /// Those columns of it that may be NULL.
    pub nullable_key: &'c [usize],
    /// About how many rows it has; 0 if that is not known.
    pub row_estimate: u64,
}

impl<C> Clone for SqlTable<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

// Of columns of any kind: a derived one would want these to be copied, too.
impl<C> Copy for SqlTable<'_, C> {}

impl<C: SqlColumn> SqlTable<'_, C> {
    /// The condition that a row `t` has no key; `None` where every row has one.
    pub fn has_no_key(&self) -> Option<String> {
        let columns = self.nullable_key.iter();
        let are_null = columns.map(|&it| format!("t.{} IS NULL", self.columns[it].sql_name()));
        let are_null: Vec<String> = are_null.collect();
        (!are_null.is_empty()).then(|| format!("({})", are_null.join(" OR ")))
    }

    /// The names of some of its columns in SQL.
    pub fn sql_names(&self, columns: &[usize]) -> Vec<String> {
        let names = columns.iter().map(|&it| self.columns[it].sql_name());
        names.map(str::to_owned).collect()
    }
}
