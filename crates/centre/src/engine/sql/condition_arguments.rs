//! The parameters of conditions that are written one after the other.

use tidewater_protocol::Datum;

use super::column::SqlColumn;
use super::sql_dialect::SqlDialect;
use crate::engine::flight::{ColumnKind, RowParameters, TableArgument};

/// The parameters of a statement's conditions, as they are written.
pub struct ConditionArguments<'a, K> {
    dialect: &'static dyn SqlDialect,
    list: Vec<TableArgument<'a, K>>,
}

impl<'a, K: ColumnKind> ConditionArguments<'a, K> {
    /// None yet.
    pub fn new(dialect: &'static dyn SqlDialect) -> ConditionArguments<'a, K> {
        ConditionArguments {
            dialect,
            list: Vec::new(),
        }
    }

    /// Appends a value; gives the parameter in SQL.
    pub fn push(&mut self, kind: K, value: Datum<'a>) -> String {
        self.list.push(TableArgument::Value(kind, value));
        self.dialect.parameter(self.list.len())
    }

    /// Appends the values of a key; gives them in SQL, or `None` if no row can have it.
    pub fn push_key<'c, R, C>(
        &mut self,
        columns: impl Iterator<Item = &'c C> + Clone,
        key: &[Datum<'a>],
    ) -> Option<Vec<String>>
    where
        R: RowParameters<Kind = K>,
        C: SqlColumn<Kind = K>,
    {
        let kinds: Vec<K> = columns.clone().map(|it| it.kind()).collect();
        if !R::new(&kinds).push(key) {
            return None;
        }
        let values = columns.zip(key);
        let values = values.map(|(column, value)| {
            let parameter = self.push(column.kind(), *value);
            column.input(&parameter)
        });
        Some(values.collect())
    }

    /// The number of the next one.
    pub fn next(&self) -> usize {
        self.list.len() + 1
    }

    /// All of them.
    pub fn into_list(self) -> Vec<TableArgument<'a, K>> {
        self.list
    }
}
