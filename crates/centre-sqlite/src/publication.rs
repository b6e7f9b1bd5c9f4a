//! The tables of publications, and the SQL that serves them.

use tidewater_protocol::{ColumnType, Datum};

use super::catalog::{SqliteCatalog, SqliteColumn};
use super::recorded_log::RecordedLog;
use super::values::{self, NativeRows, SqliteKind};
use super::{quote, state};
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::flight::ValueTypes;
use tidewater_centre::engine::publication;
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::served_table::{self, TableAdapter};
use tidewater_centre::engine::window::WindowBound;
use tidewater_centre::error::CentreError;

const DAY_MICROS: i64 = 86_400_000_000;

/// A publication as it is served.
pub(super) type Publication = publication::Publication<SqliteTables>;

/// A table of a [`Publication`].
pub(crate) type ServedTable = served_table::ServedTable<SqliteTables>;

/// A rule by which rows of a table are held.
pub(super) type TableRule = served_table::TableRule<SqliteTables>;

/// What SQLite has of its own in the tables that it serves.
#[derive(Debug)]
pub(crate) struct SqliteTables;

/// What only SQLite knows of a table.
#[derive(Debug, Default)]
pub(crate) struct TableDetails {
    /// Types of key columns.
    pub(super) key_types: Vec<ColumnType>,
    /// A failed statement may leave something behind.
    pub(super) guarded: bool,
    /// What is done to one of its rows may do something to another one: by foreign keys.
    pub(super) acts_on_itself: bool,
    /// Overrides the table's own ON CONFLICT clauses, which could displace rows that
    /// the remote may not touch. Only where there are any: it would override those of
    /// the application's triggers as well.
    conflict_clause: &'static str,
}

impl ValueTypes for SqliteTables {
    type Kind = SqliteKind;
    type Rows = NativeRows;
}

impl TableAdapter for SqliteTables {
    type Column = SqliteColumn;
    type Log = RecordedLog;
    type Details = TableDetails;

    const SPELLS_PARTITIONS: bool = false;

    fn log_table(id: i64) -> String {
        quote(&state::log_table(id))
    }

    fn is_in_partitions<'a>(
        rule: &TableRule,
        partitions: &[Vec<Datum<'a>>],
        arguments: &mut ConditionArguments<'a, SqliteKind>,
    ) -> Result<String, CentreError> {
        let mut conditions = Vec::with_capacity(rule.columns.len());
        for (column, value) in rule.columns.iter().zip(partitions.iter().flatten()) {
            let (column_type, as_text) = (column.column_type, column.is_kept_as_text);
            values::bind(column_type, as_text, value).map_err(|why| {
                CentreError::Configuration {
                    message: format!("the partition value {value:.40} {why}"),
                    hint: "correct the values query, or the data that it reads".into(),
                }
            })?;
            let parameter = arguments.push(column.kind(), *value);
            conditions.push(column.equals(&format!("{}.{}", rule.alias, column.sql), &parameter));
        }
        Ok(conditions.join(" AND "))
    }

    /// Applications spell a moment as they like: the day it is of comes before, and the next one
    /// behind it, in whatever spelling.
    fn is_in_window(
        rule: &TableRule,
        bound: &WindowBound,
        column_type: ColumnType,
        arguments: &mut ConditionArguments<'_, SqliteKind>,
    ) -> String {
        let column = window_column(rule, bound.window);
        let mut conditions = Vec::new();
        for (position, operator) in [(Some(bound.from), ">="), (bound.to, "<")] {
            let Some(position) = position.filter(|it| *it > i64::MIN) else {
                continue;
            };
            let (column_type, value) = window_value(column_type, position, operator == "<");
            let kind = SqliteKind {
                column_type,
                is_kept_as_text: false,
            };
            let parameter = arguments.push(kind, value);
            conditions.push(format!("{column} {operator} {parameter}"));
        }
        match conditions.is_empty() {
            true => "true".into(),
            false => conditions.join(" AND "),
        }
    }

    fn write_clause(details: &TableDetails) -> &'static str {
        details.conflict_clause
    }
}

/// Where a window begins or ends, as the day that is compared.
pub(super) fn window_value(
    column_type: ColumnType,
    position: i64,
    is_end: bool,
) -> (ColumnType, Datum<'static>) {
    let days = match column_type {
        ColumnType::Integer => return (ColumnType::Integer, Datum::Integer(position)),
        ColumnType::Date => position,
        _ => position.div_euclid(DAY_MICROS) + i64::from(is_end),
    };
    (ColumnType::Date, Datum::Date(days))
}

/// Whether foreign keys lead from a table to tables that they change, and one of these is itself, or
/// has triggers of the application, which may do anything.
fn acts_on_itself(table: usize, catalog: &SqliteCatalog) -> bool {
    let (mut reached, mut next) = (Vec::new(), vec![table]);
    while let Some(parent) = next.pop() {
        for (child, info) in catalog.infos.iter().enumerate() {
            let mut references = info.references.iter().filter(|it| it.parent == parent);
            if !references.any(|it| it.on_delete.acts() || it.on_update.acts()) {
                continue;
            }
            if child == table || catalog.tables[child].has_triggers {
                return true;
            }
            if !reached.contains(&child) {
                reached.push(child);
                next.push(child);
            }
        }
    }
    false
}

/// Makes a table of what is compiled.
pub(super) fn served_table(published: &CompiledTable<'_>, catalog: &SqliteCatalog) -> ServedTable {
    let live = &catalog.tables[published.table];
    let log = |rule| RecordedLog::for_rule(published, rule, catalog);
    let details = TableDetails {
        guarded: live.has_triggers || live.has_conflict_clauses,
        acts_on_itself: acts_on_itself(published.table, catalog),
        conflict_clause: match live.has_conflict_clauses {
            true => " OR ABORT",
            false => "",
        },
        ..TableDetails::default()
    };
    let mut table = ServedTable::new(published, catalog, log, details);
    table.details.key_types = table.key_columns().map(|it| it.column_type).collect();
    table
}

/// The names of the key's columns.
pub(super) fn key_outputs(table: &ServedTable) -> String {
    let key = table.key_columns().map(|it| format!("t.{}", it.sql));
    key.collect::<Vec<_>>().join(", ")
}

/// The column of a window, with its table's alias.
pub(super) fn window_column(rule: &TableRule, window: usize) -> String {
    let window = &rule.windows[window];
    format!("{}.{}", window.alias, window.column.sql)
}
