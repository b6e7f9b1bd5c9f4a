//! A change log and what it records: its columns, the values of its entries, and the rows that an
//! INSERT or UPDATE displaces.

use super::catalog::{SqliteCatalog, SqliteTable, UniqueKey, UniqueTerm};
use super::route::Route;
use super::{quote, state};
use tidewater_centre::engine::catalog::TableInfo;
use tidewater_centre::engine::change_log::ChangeLog;

/// A change log and what it records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedLog {
    pub(super) id: i64,
    pub(super) table: String,
    /// The way to the table that decides.
    pub(super) route: Route,
    /// The names of that one's partition columns.
    pub(super) partition: Vec<String>,
    /// The names of the key's columns.
    pub(super) key: Vec<String>,
    /// What tells the log from others of the table, for people.
    pub(super) by: Vec<String>,
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
    /// The names of the log's own partition columns.
    pub(super) fn partition_columns(&self) -> Vec<String> {
        (0..self.partition.len())
            .map(|index| format!("p{index}"))
            .collect()
    }

    /// The names of the log's own key columns.
    pub(super) fn key_columns(&self) -> Vec<String> {
        (0..self.key.len())
            .map(|index| format!("k{index}"))
            .collect()
    }

    pub(super) fn entry_columns(&self) -> Vec<String> {
        let mut columns = self.partition_columns();
        columns.extend(self.key_columns());
        columns
    }

    pub(super) fn insert_into(&self) -> String {
        let table = quote(&state::log_table(self.id));
        format!("INSERT INTO {table} ({})", self.entry_columns().join(", "))
    }

    /// The values of an entry: of what decides, and of the tracked table's row.
    pub(super) fn entry_values(&self, above: &str, own: &str) -> String {
        let above = self
            .partition
            .iter()
            .map(|it| format!("{above}.{}", quote(it)));
        let own = self.key.iter().map(|it| format!("{own}.{}", quote(it)));
        above.chain(own).collect::<Vec<_>>().join(", ")
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

/// Whether one of the columns differs between two rows, to the byte.
pub(super) fn differs(left: &str, right: &str, columns: &[String]) -> String {
    let columns = columns.iter().map(|column| {
        let column = quote(column);
        format!("{left}.{column} IS NOT {right}.{column} COLLATE BINARY")
    });
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
