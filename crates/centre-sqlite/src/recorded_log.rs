//! A change log and what it records: its columns, the values of its entries, and the rows that an
//! INSERT or UPDATE displaces.

use super::catalog::{SqliteCatalog, SqliteColumn, SqliteTable, UniqueKey, UniqueTerm};
use super::{quote, state};
use tidewater_centre::engine::catalog::{CatalogReader as _, TableInfo};
use tidewater_centre::engine::change_log::ChangeLog;
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::sql::rule_route::RuleRoute;
use tidewater_centre::engine::sql::served_table::LogColumns;

/// A change log and what it records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedLog {
    pub(super) id: i64,
    /// The tracked table.
    pub(super) table: String,
    /// The route to the table that decides.
    pub(super) route: RuleRoute<SqliteColumn>,
    /// That one's partition columns, in SQL.
    pub(super) partition: Vec<String>,
    /// The key's columns, in SQL.
    pub(super) key: Vec<String>,
    /// The columns of the log.
    columns: LogColumns,
    /// What tells the log from others of the table, for people.
    by: Vec<String>,
}

/// A table that a unique constraint is of.
#[derive(Clone, Copy)]
struct ConstrainedTable<'c> {
    info: &'c TableInfo,
    table: &'c SqliteTable,
}

/// Something in the file's schema.
pub(super) struct SchemaObject {
    pub(super) name: String,
    pub(super) sql: String,
}

impl ChangeLog for RecordedLog {
    fn identity(&self) -> String {
        serde_json::json!([self.table, self.by, self.key]).to_string()
    }

    fn title(&self) -> &str {
        &self.table
    }

    fn by(&self) -> &[String] {
        &self.by
    }

    fn join(&mut self, _: &RecordedLog) {}
}

impl RecordedLog {
    /// The log that a rule of a table needs.
    pub(super) fn for_rule(
        published: &CompiledTable<'_>,
        rule: usize,
        catalog: &SqliteCatalog,
    ) -> RecordedLog {
        let rule = &published.rules[rule];
        let table = catalog.sql_table(published.table);
        let root = catalog.sql_table(rule.root(published.table));
        let route = RuleRoute::from_rule(published.table, rule, catalog);
        let names = rule.columns.iter().map(|&it| root.columns[it].name.clone());
        RecordedLog {
            id: 0,
            table: table.title.to_owned(),
            key: table.sql_names(table.key),
            columns: LogColumns::new(rule, table.key),
            by: route.names().into_iter().chain(names).collect(),
            partition: root.sql_names(&rule.columns),
            route,
        }
    }

    /// The same under a number.
    pub(super) fn with_id(&self, id: i64) -> RecordedLog {
        RecordedLog { id, ..self.clone() }
    }

    /// The names of the log's own columns that have the partition's values.
    pub(super) fn partition_columns(&self) -> &[String] {
        &self.columns.partition
    }

    /// The names of all columns of an entry.
    pub(super) fn entry_columns(&self) -> Vec<String> {
        self.columns.all()
    }

    pub(super) fn insert_into(&self) -> String {
        let table = quote(&state::log_table(self.id));
        format!("INSERT INTO {table} ({})", self.entry_columns().join(", "))
    }

    /// The values of an entry: of what decides, and of the tracked table's row.
    pub(super) fn entry_values(&self, above: &str, own: &str) -> String {
        let above = self.partition.iter().map(|it| format!("{above}.{it}"));
        let key = self.columns.key_alone();
        let key = key.map(|(place, _)| format!("{own}.{}", self.key[place]));
        above.chain(key).collect::<Vec<_>>().join(", ")
    }

    /// Conditions for the rows of a table that NEW displaces, by each unique constraint.
    pub(super) fn displaced(&self, catalog: &SqliteCatalog, table: &str) -> Vec<String> {
        let place = catalog.infos.iter().position(|it| it.name == table);
        let of = place.map(|place| ConstrainedTable {
            info: &catalog.infos[place],
            table: &catalog.tables[place],
        });
        let uniques = of
            .into_iter()
            .flat_map(|of| of.table.uniques.iter().map(move |it| (of, it)));
        uniques
            .map(|(of, unique)| displaced_by(of, unique))
            .collect()
    }
}

/// The rows of a table for which a condition holds, which names columns without their table, under
/// the table's name.
pub(super) fn those(on: &str, condition: &str) -> String {
    format!("(SELECT * FROM {on} WHERE {condition}) AS {on}")
}

/// The condition for the rows that NEW displaces through one unique constraint.
fn displaced_by(of: ConstrainedTable<'_>, unique: &UniqueKey) -> String {
    let on = quote(&of.info.name);
    let terms = unique.terms.iter().map(|term| match term {
        UniqueTerm::Column(column, collation) => {
            let (name, collation) = (quote(&of.info.columns[*column].name), quote(collation));
            format!(
                "{on}.{name} COLLATE {collation} = {}",
                of.replacing(*column)
            )
        }
        UniqueTerm::Expression(expression) => {
            // The expression names columns without saying whose: once they are the
            // table's, once those of a row that is made of NEW's.
            let columns = of.info.columns.iter().enumerate();
            let new = columns.map(|(index, column)| {
                format!("{} AS {}", of.replacing(index), quote(&column.name))
            });
            let new = new.collect::<Vec<_>>().join(", ");
            format!("({expression}) = (SELECT ({expression}) FROM (SELECT {new}) AS {on})")
        }
    });
    let mut conditions: Vec<_> = terms.collect();
    conditions.extend(unique.condition.iter().map(|sql| format!("({sql})")));
    conditions.join(" AND ")
}

/// Whether one of the columns, given by their names in SQL, differs between two rows, to the byte.
pub(super) fn differs<'n>(
    left: &str,
    right: &str,
    columns: impl IntoIterator<Item = &'n String>,
) -> String {
    let columns = columns
        .into_iter()
        .map(|column| format!("{left}.{column} IS NOT {right}.{column} COLLATE BINARY"));
    columns.collect::<Vec<_>>().join(" OR ")
}

impl ConstrainedTable<'_> {
    /// What a column of the new row is going to be, as far as a BEFORE trigger can know.
    fn replacing(self, column: usize) -> String {
        let name = quote(&self.info.columns[column].name);
        match self.table.replaces_null(self.info, column) {
            Some(default) => format!("coalesce(NEW.{name}, {default})"),
            None => format!("NEW.{name}"),
        }
    }
}
