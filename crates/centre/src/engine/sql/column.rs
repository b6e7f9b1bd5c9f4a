//! Columns of the application's tables, as statements need them.

use std::fmt;

/// A column of an application's table, as its database spells it.
pub trait SqlColumn: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &str;

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

    /// The value of such a parameter as one of its type.
    fn input(&self, value: &str) -> String {
        value.to_owned()
    }

    /// The column of a table with this prefix, such as `t.`, as a result that can be read.
    fn output(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.sql_name())
    }
}

/// An application's table, as statements need it.
#[derive(Clone, Copy, Debug)]
pub struct SqlTable<'c, C> {
    /// Its name in SQL.
    pub sql_name: &'c str,
    /// Its name for people.
    pub title: &'c str,
    /// Its columns, in order.
    pub columns: &'c [C],
    /// The primary key, as indexes into `columns`.
    pub key: &'c [usize],
}

impl<C: SqlColumn> SqlTable<'_, C> {
    /// The names of some of its columns in SQL.
    pub fn sql_names(&self, columns: &[usize]) -> Vec<String> {
        let names = columns.iter().map(|&it| self.columns[it].sql_name());
        names.map(str::to_owned).collect()
    }
}
