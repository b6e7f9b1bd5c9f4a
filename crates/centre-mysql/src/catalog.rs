//! The application's tables as the database describes them.

use tidewater_centre::engine::catalog::{CatalogReader, TableInfo};
use tidewater_centre::engine::sql::column::{SqlColumn, SqlTable};
use tidewater_protocol::ColumnType;

use crate::values::MysqlKind;

/// All tables of the application, by name. None is read yet.
#[derive(Debug, Default)]
pub(crate) struct MysqlCatalog {
    infos: Vec<TableInfo>,
}

impl CatalogReader for MysqlCatalog {
    type Column = MysqlColumn;

    fn tables(&self) -> &[TableInfo] {
        &self.infos
    }

    fn sql_table(&self, _: usize) -> SqlTable<'_, MysqlColumn> {
        todo!("publishing: what statements need of a table")
    }
}

/// A column, as statements need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MysqlColumn {
    name: String,
    /// Its name in SQL.
    sql: String,
    kind: MysqlKind,
    /// The expression of its default.
    default: Option<String>,
    /// Whether the database computes its values.
    is_generated: bool,
}

#[cfg(test)]
impl MysqlColumn {
    /// A column of a kind.
    pub(crate) fn of_kind(name: &str, kind: MysqlKind) -> MysqlColumn {
        MysqlColumn {
            name: name.to_owned(),
            sql: crate::quote::quote(name),
            kind,
            default: None,
            is_generated: false,
        }
    }
}

impl MysqlColumn {
    fn is_text(&self) -> bool {
        matches!(
            self.kind,
            MysqlKind::Text | MysqlKind::Json | MysqlKind::Other
        )
    }
}

impl SqlColumn for MysqlColumn {
    type Kind = MysqlKind;

    fn kind(&self) -> MysqlKind {
        self.kind
    }

    fn column_type(&self) -> ColumnType {
        self.kind.column_type()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn sql_name(&self) -> &str {
        &self.sql
    }

    fn default_sql(&self) -> Option<&str> {
        self.default.as_deref()
    }

    fn is_generated(&self) -> bool {
        self.is_generated
    }

    /// Once by its collation, for its index, and once to the byte.
    fn equals(&self, column: &str, parameter: &str) -> String {
        match self.is_text() {
            true => format!(
                "{column} = {parameter} AND \
                 CAST({column} AS BINARY) = CAST({parameter} AS BINARY)"
            ),
            false => format!("{column} = {parameter}"),
        }
    }

    fn same(&self, column: &str, parameter: &str) -> String {
        match self.is_text() {
            true => format!("CAST({column} AS BINARY) <=> CAST({parameter} AS BINARY)"),
            false => format!("{column} <=> {parameter}"),
        }
    }
}
