//! Change logs: the SQL that makes a log table, its trigger functions and triggers.
//!
//! What is in place and what has to be made is `deploy`'s affair.

use super::live::{LiveColumnInfo, TableInfo};
use super::quote::{ident, ident_list, qualified};
use super::state::SCHEMA;
use crate::publication::Tracking;

/// What a change log has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogSpec {
    /// The tracked table.
    pub(super) table_oid: u32,
    /// Its name, quoted.
    pub(super) table: String,
    /// Its name, for people.
    pub(super) title: String,
    /// The partition columns' names; empty for "everyone".
    pub(super) partition: Vec<String>,
    /// Whether triggers fire by row.
    pub(super) by_row: bool,
    columns: Vec<LogColumn>,
}

/// A column of a log: a key or partition column of the tracked table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogColumn {
    source: String,
    definition: String,
    /// How values are compared byte by byte.
    collate: &'static str,
}

/// The log's column that has the values of a tracked table's column.
pub(super) fn log_column(position: usize) -> String {
    format!("c{position}")
}

/// A trigger on a tracked table.
pub(super) struct Trigger {
    pub(super) name: String,
    sql: String,
}

impl LogSpec {
    /// The log that a table needs for a list of partition columns: those first,
    /// then the key's columns that are not among them.
    pub(super) fn new(table: &TableInfo, partition: &[usize], tracking: Tracking) -> LogSpec {
        let positions = Self::positions(partition, &table.key);
        let column = |&index: &usize| LogColumn::of(&table.columns[index]);
        LogSpec {
            table_oid: table.oid,
            table: qualified(&table.schema, &table.name),
            title: table.title(),
            partition: partition
                .iter()
                .map(|&index| table.columns[index].name.clone())
                .collect(),
            by_row: tracking == Tracking::Row,
            columns: positions.iter().map(column).collect(),
        }
    }

    /// What tells logs apart.
    pub(super) fn identity(&self) -> (u32, Vec<String>) {
        (self.table_oid, self.partition.clone())
    }

    /// Which columns of the tracked table the log's columns have, in order.
    pub(super) fn positions(partition: &[usize], key: &[usize]) -> Vec<usize> {
        let rest = key.iter().filter(|index| !partition.contains(index));
        partition.iter().chain(rest).copied().collect()
    }

    /// What is made for the log, as one text; its equality tells that nothing has to
    /// be made anew.
    pub(super) fn definition(&self) -> String {
        let mut text = self.create(0);
        for trigger in self.triggers(0) {
            text.push_str(&trigger.sql);
            text.push('\n');
        }
        text
    }

    /// The log table's name, quoted.
    pub(super) fn log_table(id: i32) -> String {
        qualified(SCHEMA, &format!("log_{id}"))
    }

    /// The statements that make log and functions.
    pub(super) fn create(&self, id: i32) -> String {
        let log = Self::log_table(id);
        let mut sql = format!(
            "CREATE TABLE {log} (version xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()"
        );
        for (position, column) in self.columns.iter().enumerate() {
            let name = log_column(position);
            sql.push_str(&format!(", {name} {}", column.definition));
        }
        sql.push_str(");\n");
        let partition: String = (0..self.partition.len())
            .map(|position| log_column(position) + ", ")
            .collect();
        sql.push_str(&format!(
            "CREATE INDEX {} ON {log} ({partition}version);\n",
            ident(&format!("log_{id}_index"))
        ));
        let names: Vec<String> = (0..self.columns.len()).map(log_column).collect();
        let names = names.join(", ");
        let values = |prefix| ident_list(prefix, self.columns.iter().map(|it| it.source.as_str()));
        let insert = |what: String| format!("INSERT INTO {log} ({names}) {what};");
        let (new, old) = if self.by_row {
            (
                format!("VALUES ({})", values("NEW.")),
                format!("VALUES ({})", values("OLD.")),
            )
        } else {
            (
                format!("SELECT {} FROM tidewater_new r", values("r.")),
                format!("SELECT {} FROM tidewater_old r", values("r.")),
            )
        };
        sql.push_str(&function(id, "new", &insert(new)));
        sql.push_str(&function(id, "old", &insert(old)));
        let moved = format!("VALUES ({})", values("OLD."));
        sql.push_str(&function(id, "moved", &insert(moved)));
        let marker = format!("INSERT INTO tidewater.everything (log_id) VALUES ({id});");
        sql.push_str(&function(id, "truncated", &marker));
        sql
    }

    /// The statements that remove log, functions and (with the functions) triggers.
    pub(super) fn drop(id: i32) -> String {
        let mut sql = String::new();
        for function in FUNCTIONS {
            let name = qualified(SCHEMA, &format!("log_{id}_{function}"));
            sql.push_str(&format!("DROP FUNCTION IF EXISTS {name}() CASCADE;\n"));
        }
        sql.push_str(&format!(
            "DROP TABLE IF EXISTS {};\n\
             DELETE FROM tidewater.everything WHERE log_id = {id};\n\
             DELETE FROM tidewater.change_log WHERE id = {id};\n",
            Self::log_table(id)
        ));
        sql
    }

    /// The triggers on the tracked table.
    pub(super) fn triggers(&self, id: i32) -> Vec<Trigger> {
        let differs = self.columns.iter().map(|column| {
            let name = ident(&column.source);
            let collate = column.collate;
            format!("OLD.{name}{collate} IS DISTINCT FROM NEW.{name}{collate}")
        });
        let moved = format!(
            "FOR EACH ROW WHEN ({}) ",
            differs.collect::<Vec<_>>().join(" OR ")
        );
        let (new, old) = if self.by_row {
            ("FOR EACH ROW ", "FOR EACH ROW ")
        } else {
            (
                "REFERENCING NEW TABLE AS tidewater_new FOR EACH STATEMENT ",
                "REFERENCING OLD TABLE AS tidewater_old FOR EACH STATEMENT ",
            )
        };
        let trigger = |suffix: &str, event: &str, how: &str, function: &str| {
            let name = format!("tidewater_{id}_{suffix}");
            let quoted = ident(&name);
            let function = qualified(SCHEMA, &format!("log_{id}_{function}"));
            let table = &self.table;
            let mut sql = format!(
                "CREATE TRIGGER {quoted} AFTER {event} ON {table} {how}EXECUTE FUNCTION {function}();"
            );
            if self.by_row {
                // Also in a replication worker, which fires no others.
                sql.push_str(&format!(
                    "\nALTER TABLE {table} ENABLE ALWAYS TRIGGER {quoted};"
                ));
            }
            Trigger { name, sql }
        };
        vec![
            trigger("insert", "INSERT", new, "new"),
            trigger("update", "UPDATE", new, "new"),
            trigger("moved", "UPDATE", &moved, "moved"),
            trigger("delete", "DELETE", old, "old"),
            trigger("truncate", "TRUNCATE", "FOR EACH STATEMENT ", "truncated"),
        ]
    }
}

impl Trigger {
    /// The statements that make it.
    pub(super) fn create(&self) -> String {
        format!("{}\n", self.sql)
    }

    /// The statements that make it, whether it is there or not.
    pub(super) fn replace(&self, table: &str) -> String {
        format!(
            "DROP TRIGGER IF EXISTS {} ON {table};\n{}\n",
            ident(&self.name),
            self.sql
        )
    }
}

const FUNCTIONS: [&str; 4] = ["new", "old", "moved", "truncated"];

/// Whoever writes the table runs the function: with the rights of its owner and
/// nothing but system schemas on the path.
fn function(id: i32, suffix: &str, body: &str) -> String {
    let name = qualified(SCHEMA, &format!("log_{id}_{suffix}"));
    let mut tag = "$tidewater$".to_owned();
    while body.contains(&tag) {
        tag.insert(1, '_');
    }
    format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER \
         SET search_path = pg_catalog, pg_temp \
         AS {tag} BEGIN {body} RETURN NULL; END {tag};\n\
         REVOKE ALL ON FUNCTION {name}() FROM PUBLIC;\n"
    )
}

impl LogColumn {
    fn of(column: &LiveColumnInfo) -> LogColumn {
        let collatable = column.collation.is_some();
        LogColumn {
            source: column.name.clone(),
            definition: if collatable {
                format!("{} COLLATE \"C\"", column.base_type_name)
            } else {
                column.base_type_name.clone()
            },
            collate: if collatable { " COLLATE \"C\"" } else { "" },
        }
    }
}
