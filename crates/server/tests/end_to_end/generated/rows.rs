//! Rows of a whole database as of one moment, and what differs between two.

use std::collections::BTreeMap;

use tidewater_protocol::Value;
use tidewater_testing::generate::Dialect;
use tidewater_testing::generate::name;
use tidewater_testing::generate::schema::{Role, Schema, Table, TableId};
use tidewater_testing::generate::spelling::key_json;
use tidewater_testing::generate::types::Type;

/// Rows by their key, as conflicts tell it.
pub(crate) type Rows = BTreeMap<String, Vec<Value>>;

/// All tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Snapshot(BTreeMap<TableId, Rows>);

static NO_ROWS: Rows = Rows::new();

impl Snapshot {
    /// Reads all tables of a schema by a query each.
    pub(crate) fn read(
        schema: &Schema,
        mut query: impl FnMut(&Table) -> Vec<Vec<Value>>,
    ) -> Snapshot {
        let tables = schema.tables.iter();
        let rows = tables.map(|table| {
            let rows = query(table).into_iter();
            let rows = rows.map(|row| (key_of(table, &row), row));
            (table.id, rows.collect())
        });
        Snapshot(rows.collect())
    }

    /// The rows of a table.
    pub(crate) fn table(&self, id: TableId) -> &Rows {
        self.0.get(&id).unwrap_or(&NO_ROWS)
    }

    /// The keys whose rows differ.
    pub(crate) fn differences<'a>(&'a self, later: &'a Snapshot, table: &Table) -> Vec<&'a String> {
        let (before, after) = (self.table(table.id), later.table(table.id));
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| match (before.get(*key), after.get(*key)) {
            (Some(before), Some(after)) => !same_row(table, before, after),
            _ => true,
        });
        keys
    }
}

/// The key of a row.
pub(crate) fn key_of(table: &Table, row: &[Value]) -> String {
    let key = table.key.iter();
    key_json(key.map(|&it| (table.columns[it].column_type, &row[it])))
}

/// Whether two rows are the same, apart from what the centre computes.
pub(crate) fn same_row(table: &Table, one: &[Value], other: &[Value]) -> bool {
    let columns = table.columns.iter().zip(one.iter().zip(other));
    columns
        .filter(|(column, _)| column.role != Role::Generated)
        .all(|(_, (one, other))| same(one, other))
}

/// Whether two values are the same, bit by bit.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Real(one), Value::Real(other)) => one.to_bits() == other.to_bits(),
        _ => one == other,
    }
}

/// The columns of a table as a query reads them: with NULL for those that this centre does
/// not publish.
pub(crate) fn select_list(dialect: Dialect, in_centre: bool, table: &Table) -> String {
    let columns = table.columns.iter().map(|column| {
        if is_published(dialect, column.role) {
            match column.column_type {
                // Unlike all others, its cast writes another text than it does by itself.
                Type::Inet if in_centre && dialect == Dialect::Postgres => {
                    format!("{}::text", name(&column.name))
                }
                _ => name(&column.name),
            }
        } else {
            "NULL".into()
        }
    });
    columns.collect::<Vec<_>>().join(", ")
}

/// SQLite's generated columns are not published.
fn is_published(dialect: Dialect, role: Role) -> bool {
    dialect == Dialect::Postgres || role != Role::Generated
}

/// The types of a table's columns.
pub(crate) fn types(table: &Table) -> Vec<Type> {
    table
        .columns
        .iter()
        .map(|column| column.column_type)
        .collect()
}
