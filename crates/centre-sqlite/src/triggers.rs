//! The triggers that append to the change logs.
//!
//! Applications write the file with any driver, so the triggers use built-in
//! functions only. An entry says: look at this key again, for those who hold this
//! partition. One too many costs a look, one too few loses a change, so everything
//! that may be affected is logged:
//! - the new row of every INSERT and UPDATE, the old one of every DELETE, also by
//!   UPSERT and by foreign-key actions, which fire triggers like any statement;
//! - the old partition and key where an UPDATE changes them;
//! - before every INSERT and UPDATE, the rows that would be displaced by a REPLACE
//!   through the primary key or any unique index, because SQLite removes those without
//!   firing DELETE triggers (unless recursive_triggers is on).

use super::catalog::{Table, Term, Unique};
use super::{quote, state};
use tidewater_centre::engine::catalog::TableInfo;
use tidewater_centre::engine::database::ChangeLog;

/// A change log and what it records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(super) id: i64,
    pub(super) table: String,
    /// Column names.
    pub(super) partition: Vec<String>,
    pub(super) key: Vec<String>,
}

/// The table that a log is of.
#[derive(Clone, Copy)]
pub(super) struct Of<'c> {
    pub(super) info: &'c TableInfo,
    pub(super) table: &'c Table,
}

/// Something in the file's schema.
pub(super) struct Object {
    pub(super) name: String,
    pub(super) sql: String,
}

impl ChangeLog for Log {
    fn identity(&self) -> String {
        serde_json::json!([self.table, self.partition, self.key]).to_string()
    }

    fn title(&self) -> &str {
        &self.table
    }

    fn partition(&self) -> &[String] {
        &self.partition
    }

    fn join(&mut self, _: &Log) {}
}

impl Log {
    /// Everything that the log is made of, with the name of each: table, index, triggers.
    pub(super) fn objects(&self, of: Of<'_>) -> Vec<Object> {
        let name = state::log_table(self.id);
        let table = quote(&name);
        let columns = self.entry_columns();
        let columns: String = columns.iter().map(|it| format!(", {it}")).collect();
        let mut objects = vec![Object {
            sql: format!("CREATE TABLE {table} (id INTEGER PRIMARY KEY{columns})"),
            name: name.clone(),
        }];
        if !self.partition.is_empty() {
            // The rowid follows the indexed columns: a range of one partition is one seek.
            let name = format!("{name}_partition");
            let columns = self.partition_columns().join(", ");
            objects.push(Object {
                sql: format!("CREATE INDEX {} ON {table} ({columns})", quote(&name)),
                name,
            });
        }
        objects.extend(self.triggers(of));
        objects
    }

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

    fn entry_columns(&self) -> Vec<String> {
        let mut columns = self.partition_columns();
        columns.extend(self.key_columns());
        columns
    }

    /// All triggers that feed the log.
    fn triggers(&self, of: Of<'_>) -> Vec<Object> {
        let on = quote(&self.table);
        let mut triggers = Vec::new();
        let mut add = |suffix: &str, event: &str, body: String| {
            let name = format!("{}_{suffix}", state::log_table(self.id));
            let sql = format!("CREATE TRIGGER {} {event} BEGIN {body}; END", quote(&name));
            triggers.push(Object { name, sql });
        };
        let uniques = of.table.uniques.iter();
        let displaced: Vec<_> = uniques.map(|it| self.append_displaced(of, it)).collect();
        if !displaced.is_empty() {
            let event = format!("BEFORE INSERT ON {on} FOR EACH ROW");
            add("before_insert", &event, displaced.join("; "));
            let event = format!("BEFORE UPDATE ON {on} FOR EACH ROW");
            let not_itself = differs("OLD", &on, &self.key);
            let others = displaced
                .iter()
                .map(|each| format!("{each} AND ({not_itself})"));
            add(
                "before_update",
                &event,
                others.collect::<Vec<_>>().join("; "),
            );
        }
        let insert = format!("AFTER INSERT ON {on} FOR EACH ROW");
        add("insert", &insert, self.append("NEW"));
        let update = format!("AFTER UPDATE ON {on} FOR EACH ROW");
        add("update", &update, self.append("NEW"));
        let moved: Vec<_> = self.partition.iter().chain(&self.key).cloned().collect();
        // Not "UPDATE OF": setting the rowid names no column.
        let event = format!(
            "AFTER UPDATE ON {on} FOR EACH ROW WHEN {}",
            differs("OLD", "NEW", &moved)
        );
        add("move", &event, self.append("OLD"));
        let delete = format!("AFTER DELETE ON {on} FOR EACH ROW");
        add("delete", &delete, self.append("OLD"));
        triggers
    }

    fn insert_into(&self) -> String {
        let table = quote(&state::log_table(self.id));
        format!("INSERT INTO {table} ({})", self.entry_columns().join(", "))
    }

    fn values_of(&self, row: &str) -> String {
        let columns = self.partition.iter().chain(&self.key);
        let values = columns.map(|column| format!("{row}.{}", quote(column)));
        values.collect::<Vec<_>>().join(", ")
    }

    fn append(&self, row: &str) -> String {
        format!("{} VALUES ({})", self.insert_into(), self.values_of(row))
    }

    /// Logs the rows that NEW displaces through one unique constraint.
    fn append_displaced(&self, of: Of<'_>, unique: &Unique) -> String {
        let on = quote(&self.table);
        let terms = unique.terms.iter().map(|term| match term {
            Term::Column(column, collation) => {
                let (name, collation) = (quote(&of.info.columns[*column].name), quote(collation));
                format!(
                    "{on}.{name} COLLATE {collation} = {}",
                    of.replacing(*column)
                )
            }
            Term::Expression(expression) => {
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
        format!(
            "{} SELECT {} FROM {on} WHERE {}",
            self.insert_into(),
            self.values_of(&on),
            conditions.join(" AND ")
        )
    }
}

/// Whether one of the columns differs between two rows, to the byte.
fn differs(left: &str, right: &str, columns: &[String]) -> String {
    let columns = columns.iter().map(|column| {
        let column = quote(column);
        format!("{left}.{column} IS NOT {right}.{column} COLLATE BINARY")
    });
    columns.collect::<Vec<_>>().join(" OR ")
}

impl Of<'_> {
    /// What a column of the new row is going to be, as far as a BEFORE trigger can know.
    fn replacing(self, column: usize) -> String {
        let name = quote(&self.info.columns[column].name);
        match self.table.replaces_null(self.info, column) {
            Some(default) => format!("coalesce(NEW.{name}, {default})"),
            None => format!("NEW.{name}"),
        }
    }
}
