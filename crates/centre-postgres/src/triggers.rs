//! Change logs: the SQL that makes a log table, its trigger functions and triggers.
//!
//! What is in place and what has to be made is `deploy`'s affair.

use super::catalog::Table;
use super::publication::PgColumn;
use super::quote::{ident, ident_list, literal, qualified};
use super::state::SCHEMA;
use tidewater_centre::engine::database::ChangeLog;
use tidewater_centre::publication::Tracking;

/// What a change log has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSpec {
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
    /// Whether the table is partitioned, and its partitions need triggers too.
    pub(super) partitioned: bool,
    columns: Vec<LogColumn>,
    /// The key's columns that somebody writes.
    written_key: Vec<String>,
    /// Whether one of the log's columns is generated.
    generated: bool,
}

/// A column of a log: a key or partition column of the tracked table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogColumn {
    source: String,
    type_oid: u32,
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
    /// Whether it fires for each row; PostgreSQL copies it to partitions then.
    pub(super) by_row: bool,
    sql: String,
}

impl ChangeLog for LogSpec {
    fn identity(&self) -> String {
        Self::identity_of(self.table_oid, &self.partition)
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn partition(&self) -> &[String] {
        &self.partition
    }

    /// One that fires by row serves both.
    fn join(&mut self, other: &LogSpec) {
        self.by_row |= other.by_row;
    }
}

impl LogSpec {
    /// The log that a table needs for a list of partition columns: those first,
    /// then the key's columns that are not among them.
    pub(super) fn new(table: &Table, partition: &[usize], tracking: Tracking) -> LogSpec {
        let positions = Self::positions(partition, &table.key);
        let column = |&index: &usize| LogColumn::of(&table.columns[index]);
        let written = table.key.iter().map(|&index| &table.columns[index]);
        let written = written.filter(|column| !column.generated);
        LogSpec {
            table_oid: table.oid,
            table: table.sql_name.clone(),
            title: table.title.clone(),
            partition: partition
                .iter()
                .map(|&index| table.columns[index].name.clone())
                .collect(),
            by_row: tracking == Tracking::Row,
            partitioned: table.members.is_some(),
            columns: positions.iter().map(column).collect(),
            written_key: written.map(|column| column.name.clone()).collect(),
            generated: positions.iter().any(|&it| table.columns[it].generated),
        }
    }

    /// What tells logs apart.
    pub(super) fn identity_of(table_oid: u32, partition: &[String]) -> String {
        format!("{table_oid} {partition:?}")
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
        self.create_table(id) + &self.create_functions(id)
    }

    fn create_table(&self, id: i32) -> String {
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
        sql
    }

    fn create_functions(&self, id: i32) -> String {
        let mut sql = String::new();
        let [new, old, moved] = self.inserts(id);
        let marker = marker(id);
        for (suffix, body) in [("new", new), ("old", old), ("moved", moved)] {
            // The owner may rename a column, or give it another type, at any time: writes go
            // on, and nothing that they change is missed.
            let mut body = format!("IF {} THEN {body} ELSE {marker} END IF;", self.fits());
            if suffix == "moved" && self.watches_leaving() {
                body = format!("{} {body}", self.leaving(id));
            }
            sql.push_str(&function(id, suffix, &body));
        }
        sql.push_str(&function(id, "truncated", &marker));
        sql
    }

    /// The statements of the functions for new rows, for old ones, and for those whose key
    /// or partition changed.
    fn inserts(&self, id: i32) -> [String; 3] {
        let insert = |what: String| self.insert(id, &what);
        let one = |row| self.insert(id, &format!("VALUES ({})", self.values(row)));
        let all = |from: &str| format!("SELECT {} FROM {from} r", self.values("r."));
        let (new, old) = (all("tidewater_new"), all("tidewater_old"));
        match (self.by_row, self.partitioned) {
            (true, _) => [one("NEW."), one("OLD."), one("OLD.")],
            (false, false) => [insert(new), insert(old), one("OLD.")],
            // A row that moves to another leaf is updated for the statement only: no row
            // trigger for updates sees it.
            (false, true) => {
                let collated = |from: &str| {
                    let columns = self.columns.iter();
                    let columns =
                        columns.map(|it| format!("r.{}{}", ident(&it.source), it.collate));
                    let columns = columns.collect::<Vec<_>>().join(", ");
                    format!("SELECT {columns} FROM {from} r")
                };
                let (before, after) = (collated("tidewater_old"), collated("tidewater_new"));
                let both = insert(new.clone()) + " " + &insert(format!("{before} EXCEPT {after}"));
                [insert(new), insert(old), both]
            }
        }
    }

    fn insert(&self, id: i32, what: &str) -> String {
        let names: Vec<String> = (0..self.columns.len()).map(log_column).collect();
        let (log, names) = (Self::log_table(id), names.join(", "));
        format!("INSERT INTO {log} ({names}) {what};")
    }

    /// The values of the log's columns of one row.
    fn values(&self, row: &str) -> String {
        ident_list(row, self.columns.iter().map(|it| it.source.as_str()))
    }

    /// Whether rows that change their partition need a trigger of their own.
    ///
    /// The transition tables of a MERGE do not have them: PostgreSQL takes such a row for one
    /// deleted and one inserted, and fires the triggers for updates.
    fn watches_leaving(&self) -> bool {
        self.partitioned && !self.by_row
    }

    /// What the function for moved rows does before a row with another key is written.
    fn leaving(&self, id: i32) -> String {
        let (old, new) = (self.values("OLD."), self.values("NEW."));
        let marker = marker(id);
        // What is generated is not known yet.
        let log = match self.generated {
            true => marker.clone(),
            false => self.insert(id, &format!("VALUES ({old}), ({new})")),
        };
        format!(
            "IF TG_LEVEL = 'ROW' THEN IF {} THEN {log} ELSE {marker} END IF; RETURN NEW; END IF;",
            self.fits()
        )
    }

    /// Whether the columns that a function names are still there as they were.
    fn fits(&self) -> String {
        let columns = self.columns.iter().map(|column| {
            // Names of columns have no NUL.
            let name = literal(&column.source).unwrap_or_default();
            format!("({name}, {}::oid)", column.type_oid)
        });
        format!(
            "(SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a \
             WHERE a.attrelid = TG_RELID AND (a.attname, a.atttypid) IN ({})) = {}",
            columns.collect::<Vec<_>>().join(", "),
            self.columns.len()
        )
    }

    /// The statement that logs all rows of a table that has the columns of the tracked one.
    pub(super) fn log_rows(&self, id: i32, table: &str) -> String {
        let names: Vec<String> = (0..self.columns.len()).map(log_column).collect();
        format!(
            "INSERT INTO {} ({}) SELECT {} FROM ONLY {table} r;\n",
            Self::log_table(id),
            names.join(", "),
            ident_list("r.", self.columns.iter().map(|it| it.source.as_str()))
        )
    }

    /// The statements that remove log, functions and (with the functions) triggers.
    pub(super) fn drop(id: i32) -> String {
        let mut sql = Self::drop_functions(id);
        sql.push_str(&format!(
            "DROP TABLE IF EXISTS {};\n\
             DELETE FROM tidewater.everything WHERE log_id = {id};\n\
             DELETE FROM tidewater.tracked WHERE log_id = {id};\n\
             DELETE FROM tidewater.untracked WHERE log_id = {id};\n\
             DELETE FROM tidewater.change_log WHERE id = {id};\n",
            Self::log_table(id)
        ));
        sql
    }

    /// The triggers go with them.
    fn drop_functions(id: i32) -> String {
        let functions = FUNCTIONS.iter().map(|function| {
            let name = qualified(SCHEMA, &format!("log_{id}_{function}"));
            format!("DROP FUNCTION IF EXISTS {name}() CASCADE;\n")
        });
        functions.collect()
    }

    /// The triggers on the tracked table.
    pub(super) fn triggers(&self, id: i32) -> Vec<Trigger> {
        self.triggers_on(id, &self.table)
    }

    /// The triggers on a partition of the tracked table. Those for each row are PostgreSQL's
    /// affair: it copies them from the table above.
    pub(super) fn member_triggers(&self, id: i32, table: &str) -> Vec<Trigger> {
        let mut triggers = self.triggers_on(id, table);
        triggers.retain(|trigger| !trigger.by_row);
        triggers
    }

    /// The columns that an update has to set to move a row to another partition, and that
    /// it did: those of the key, which has all that the table is partitioned by.
    fn leaves(&self) -> (String, String) {
        let names = || self.written_key.iter().map(|name| ident(name));
        let differs = names().map(|name| format!("OLD.{name} IS DISTINCT FROM NEW.{name}"));
        (
            names().collect::<Vec<_>>().join(", "),
            differs.collect::<Vec<_>>().join(" OR "),
        )
    }

    fn triggers_on(&self, id: i32, table: &str) -> Vec<Trigger> {
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
            // After all others of its kind, whose changes it has to see.
            let name = match suffix {
                "leaving" => format!("~tidewater_{id}_{suffix}"),
                _ => format!("tidewater_{id}_{suffix}"),
            };
            let quoted = ident(&name);
            let function = qualified(SCHEMA, &format!("log_{id}_{function}"));
            let when = match suffix {
                "leaving" => "BEFORE",
                _ => "AFTER",
            };
            let mut sql = format!(
                "CREATE TRIGGER {quoted} {when} {event} ON {table} {how}EXECUTE FUNCTION {function}();"
            );
            if self.by_row {
                // Also in a replication worker, which fires no others.
                sql.push_str(&format!(
                    "\nALTER TABLE {table} ENABLE ALWAYS TRIGGER {quoted};"
                ));
            }
            let by_row = how.starts_with("FOR EACH ROW");
            Trigger { name, by_row, sql }
        };
        let mut triggers = vec![
            trigger("insert", "INSERT", new, "new"),
            trigger("delete", "DELETE", old, "old"),
            trigger("truncate", "TRUNCATE", "FOR EACH STATEMENT ", "truncated"),
        ];
        if self.watches_leaving() {
            triggers.push(trigger("update", "UPDATE", BOTH, "moved"));
            let (of, differs) = self.leaves();
            let how = format!("FOR EACH ROW WHEN ({differs}) ");
            triggers.push(trigger(
                "leaving",
                &format!("UPDATE OF {of}"),
                &how,
                "moved",
            ));
        } else {
            triggers.push(trigger("update", "UPDATE", new, "new"));
            triggers.push(trigger("moved", "UPDATE", &moved, "moved"));
        }
        triggers
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

const BOTH: &str = "REFERENCING OLD TABLE AS tidewater_old NEW TABLE AS tidewater_new \
                    FOR EACH STATEMENT ";

const FUNCTIONS: [&str; 4] = ["new", "old", "moved", "truncated"];

/// The statement by which remotes get all rows again.
pub(super) fn marker(id: i32) -> String {
    format!("INSERT INTO tidewater.everything (log_id) VALUES ({id});")
}

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
    fn of(column: &PgColumn) -> LogColumn {
        let collatable = column.collation.is_some();
        LogColumn {
            source: column.name.clone(),
            type_oid: column.type_oid,
            definition: if collatable {
                format!("{} COLLATE \"C\"", column.cast_name)
            } else {
                column.cast_name.clone()
            },
            collate: if collatable { " COLLATE \"C\"" } else { "" },
        }
    }
}
