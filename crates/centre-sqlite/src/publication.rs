//! The tables of publications, and the SQL that serves them.

use tidewater_protocol::ColumnType;

use super::catalog::{SqliteCatalog, SqliteColumn};
use super::recorded_log::RecordedLog;
use super::values::{NativeRows, SqliteKind};
use super::{quote, state};
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::publication;
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::served_table::{self, TableAdapter};

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
    /// A foreign key of the table to itself acts.
    pub(super) acts_on_itself: bool,
    /// The condition that a row `t` has no key; `None` where every row has one.
    pub(super) has_no_key: Option<String>,
    /// `SELECT` of rows as they are read, by key.
    pub(super) read_key: String,
    /// Conditions for the row `t` of a key; the parameters are its values.
    pub(super) by_key: String,
    /// Overrides the table's own ON CONFLICT clauses, which could displace rows that
    /// the remote may not touch. Only where there are any: it would override those of
    /// the application's triggers as well.
    conflict_clause: &'static str,
}

impl TableAdapter for SqliteTables {
    type Kind = SqliteKind;
    type Rows = NativeRows;
    type Column = SqliteColumn;
    type Log = RecordedLog;
    type Details = TableDetails;

    fn log_table(id: i64) -> String {
        quote(&state::log_table(id))
    }

    fn write_clause(details: &TableDetails) -> &'static str {
        details.conflict_clause
    }
}

/// Makes a table of what is compiled.
pub(super) fn served_table(published: &CompiledTable<'_>, catalog: &SqliteCatalog) -> ServedTable {
    let live = &catalog.tables[published.table];
    let log = |rule| RecordedLog::for_rule(published, rule, catalog);
    let details = TableDetails {
        guarded: live.has_triggers || live.has_conflict_clauses,
        acts_on_itself: catalog.infos[published.table]
            .references
            .iter()
            .any(|it| it.parent == published.table),
        has_no_key: live.has_no_key(&catalog.infos[published.table], "t"),
        conflict_clause: match live.has_conflict_clauses {
            true => " OR ABORT",
            false => "",
        },
        ..TableDetails::default()
    };
    let mut table = ServedTable::new(published, catalog, log, TableDetails::default());
    let by_key = |prefix: &str| {
        let terms = table.key_columns().zip(1..).map(|(column, number)| {
            let name = format!("{prefix}{}", column.sql);
            column.equals(&name, &format!("?{number}"))
        });
        terms.collect::<Vec<_>>().join(" AND ")
    };
    let details = TableDetails {
        key_types: table.key_columns().map(|it| it.column_type).collect(),
        read_key: format!(
            "SELECT {} FROM {} WHERE {}",
            table.outputs(),
            table.from,
            by_key("t.")
        ),
        by_key: by_key("t."),
        ..details
    };
    table.details = details;
    table
}

/// `SELECT` of something of all rows that a rule can give, up to further conditions.
pub(super) fn select_rows(table: &ServedTable, rule: usize, what: &str) -> String {
    let key = table.key_columns().map(|it| format!("t.{}", it.sql));
    format!(
        "SELECT {what} FROM {} WHERE {}",
        table.rules[rule].from,
        not_null(key)
    )
}

/// The names of the key's columns.
pub(super) fn key_outputs(table: &ServedTable) -> String {
    let key = table.key_columns().map(|it| format!("t.{}", it.sql));
    key.collect::<Vec<_>>().join(", ")
}

/// Conditions for the rows of one partition of a rule, each begun with AND; the parameters are its
/// values.
pub(super) fn is_in_partition(rule: &TableRule) -> String {
    let conditions = rule.columns.iter().zip(1..).map(|(column, number)| {
        let name = format!("{}.{}", rule.alias, column.sql);
        format!(" AND {}", column.equals(&name, &format!("?{number}")))
    });
    conditions.collect()
}

/// The condition that the column of a window is at least, or less than, a parameter.
pub(super) fn is_in_window(
    rule: &TableRule,
    window: usize,
    is_less: bool,
    number: usize,
) -> String {
    let column = window_column(rule, window);
    let operator = if is_less { "<" } else { ">=" };
    format!(" AND {column} {operator} ?{number}")
}

/// The column of a window, with its table's alias.
pub(super) fn window_column(rule: &TableRule, window: usize) -> String {
    let window = &rule.windows[window];
    format!("{}.{}", window.alias, window.column.sql)
}

/// The keys that the log of a rule has, each once, with the row that is there now or NULLs;
/// parameters: the position, the partition.
pub(super) fn select_changes(table: &ServedTable, rule: &TableRule) -> String {
    let (keys, partition) = (&rule.log_columns.key, &rule.log_columns.partition);
    let partition = partition.iter().zip(2..);
    let partition = partition.map(|(column, number)| format!(" AND {column} = ?{number}"));
    let join = table.key_columns().zip(keys).map(|(column, key)| {
        let name = format!("t.{}", column.sql);
        column.equals(&name, &format!("l.{key}"))
    });
    let outputs = keys.iter().map(|key| format!("l.{key}"));
    format!(
        "SELECT {outputs}, {columns} FROM (SELECT DISTINCT {keys} FROM {log} WHERE id > ?1{partition} \
         AND {not_null}) l LEFT JOIN {rows} ON {join}",
        outputs = outputs.collect::<Vec<_>>().join(", "),
        columns = table.outputs(),
        keys = keys.join(", "),
        log = rule.log_table(),
        partition = partition.collect::<String>(),
        not_null = not_null(keys.iter().cloned()),
        rows = table.joined(),
        join = join.collect::<Vec<_>>().join(" AND "),
    )
}

fn not_null(names: impl Iterator<Item = String>) -> String {
    let terms: Vec<_> = names.map(|name| format!("{name} IS NOT NULL")).collect();
    terms.join(" AND ")
}
