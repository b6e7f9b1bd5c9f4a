//! Change logs: the SQL that makes a log table, its trigger functions and triggers.
//!
//! What is in place and what has to be made is `deploy`'s affair.

use super::catalog::{PostgresCatalog, PostgresTable};
use super::quote::{ident, qualified};
use super::route::{Route, WatchedColumn, differ};
use super::state::SCHEMA;
use crate::column::PgColumn;
use tidewater_centre::engine::change_log::ChangeLog;
use tidewater_centre::engine::compile::CompiledRule;
use tidewater_centre::engine::sql::served_table::log_column;
use tidewater_centre::publication::TrackingMode;

/// What a change log has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSpec {
    /// The tracked table.
    pub(super) table_oid: u32,
    /// Its name, quoted.
    pub(super) table: String,
    /// Its name, for people.
    pub(super) title: String,
    /// What tells the log from others of the table: the route's steps and the partition columns'
    /// names; empty for "everyone".
    pub(super) partition: Vec<String>,
    /// Whether triggers fire by row.
    pub(super) by_row: bool,
    /// Whether the table is partitioned, and its partitions need triggers too.
    pub(super) partitioned: bool,
    /// The way to the table that decides.
    pub(super) route: Route,
    /// The columns of the tracked table that triggers look at.
    pub(super) watched: Vec<WatchedColumn>,
    columns: Vec<LogColumn>,
    /// The key's columns that somebody writes.
    written_key: Vec<String>,
    /// Whether one of the columns that triggers look at is generated.
    generated: bool,
}

/// A column of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogColumn {
    /// The column whose values it has, quoted.
    source: String,
    /// Whether that is one of the table which decides, at the end of a route.
    is_above: bool,
    definition: String,
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

    fn by(&self) -> &[String] {
        &self.partition
    }

    /// One that fires by row serves both.
    fn join(&mut self, other: &LogSpec) {
        self.by_row |= other.by_row;
    }
}

impl LogSpec {
    /// The log that a rule of a table needs: the partition columns first, then the key's
    /// columns that are not among them.
    pub(super) fn new(
        table: &PostgresTable,
        rule: &CompiledRule,
        catalog: &PostgresCatalog,
        tracking: TrackingMode,
    ) -> LogSpec {
        let route = Route::from_rule(table, rule, catalog);
        let is_above = !route.is_empty();
        let root = rule
            .route
            .last()
            .map_or(table, |it| &catalog.tables[it.parent]);
        let deciding = rule.columns.iter().map(|&it| &root.columns[it]);
        let own = |column: &&PgColumn| {
            is_above
                || !rule
                    .columns
                    .iter()
                    .any(|&it| table.columns[it].name == column.name)
        };
        let key = || table.key.iter().map(|&index| &table.columns[index]);
        let columns = deciding
            .clone()
            .map(|it| LogColumn::from_column(it, is_above));
        let columns = columns.chain(
            key()
                .filter(own)
                .map(|it| LogColumn::from_column(it, false)),
        );
        let referring = rule.route.first().into_iter().flat_map(|it| &it.columns);
        let mut watched: Vec<&PgColumn> = match is_above {
            true => referring.map(|&it| &table.columns[it]).collect(),
            false => deciding.clone().collect(),
        };
        for column in key() {
            if !watched.iter().any(|it| it.name == column.name) {
                watched.push(column);
            }
        }
        let names = deciding.map(|it| it.name.clone());
        LogSpec {
            table_oid: table.oid,
            table: table.sql_name.clone(),
            title: table.title.clone(),
            partition: route.names().into_iter().chain(names).collect(),
            by_row: tracking == TrackingMode::Row,
            partitioned: table.members.is_some(),
            generated: watched.iter().any(|it| it.generated),
            watched: watched
                .into_iter()
                .map(WatchedColumn::from_column)
                .collect(),
            columns: columns.collect(),
            written_key: key()
                .filter(|it| !it.generated)
                .map(|it| it.name.clone())
                .collect(),
            route,
        }
    }

    /// What tells logs apart.
    pub(super) fn identity_of(table_oid: u32, partition: &[String]) -> String {
        format!("{table_oid} {partition:?}")
    }

    /// How many of the log's columns have the partition's values; behind them are the key's.
    fn partition_length(&self) -> usize {
        self.partition.len() - self.route.steps().len()
    }

    /// The functions that it has.
    pub(super) fn function_count(&self) -> i64 {
        (FUNCTIONS.len() + self.route.steps().len()) as i64
    }

    /// What is made for the log, as one text; its equality tells that nothing has to
    /// be made anew.
    pub(super) fn definition(&self) -> String {
        let mut text = self.create(0);
        let above = self
            .route_triggers(0)
            .into_iter()
            .map(|(_, trigger)| trigger);
        for trigger in self.triggers(0).into_iter().chain(above) {
            text.push_str(&trigger.sql);
            text.push('\n');
        }
        text
    }

    /// The log table's name, quoted.
    pub(super) fn log_table(id: i64) -> String {
        qualified(SCHEMA, &format!("log_{id}"))
    }

    /// The statements that make log and functions.
    pub(super) fn create(&self, id: i32) -> String {
        self.create_table(id) + &self.create_functions(id)
    }

    fn create_table(&self, id: i32) -> String {
        let log = Self::log_table(id.into());
        let mut sql = format!(
            "CREATE TABLE {log} (version xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()"
        );
        for (position, column) in self.columns.iter().enumerate() {
            let name = log_column(position);
            sql.push_str(&format!(", {name} {}", column.definition));
        }
        sql.push_str(");\n");
        let partition: String = (0..self.partition_length())
            .map(|position| log_column(position) + ", ")
            .collect();
        sql.push_str(&format!(
            "CREATE INDEX {} ON {log} ({partition}version);\n",
            ident(&format!("log_{id}_index"))
        ));
        if !partition.is_empty() {
            // By which the changes of all partitions are followed.
            let name = ident(&format!("log_{id}_versions"));
            sql.push_str(&format!("CREATE INDEX {name} ON {log} (version);\n"));
        }
        sql
    }

    fn create_functions(&self, id: i32) -> String {
        let mut sql = String::new();
        let [new, old, moved] = self.inserts(id);
        let (marker, fits) = (marker(id), self.fits(0));
        for (suffix, body) in [("new", new), ("old", old), ("moved", moved)] {
            // The owner may rename a column, or give it another type, at any time: writes go
            // on, and nothing that they change is missed.
            let mut body = format!("IF {fits} THEN {body} ELSE {marker} END IF;");
            if suffix == "moved" && self.watches_leaving() {
                body = format!("{} {body}", self.leaving(id));
            }
            sql.push_str(&function(id, suffix, &body));
        }
        sql.push_str(&function(id, "truncated", &marker));
        for level in 1..=self.route.steps().len() {
            sql.push_str(&self.route.function(self, id, level));
        }
        sql
    }

    /// The statements of the functions for new rows, for old ones, and for those whose key
    /// or partition changed.
    fn inserts(&self, id: i32) -> [String; 3] {
        let insert = |from: &str| self.log(id, from);
        let one = |row: &str| insert(&self.rows_of(&[row]));
        let (new, old) = ("tidewater_new r", "tidewater_old r");
        match (self.by_row, self.partitioned) {
            (true, _) => [one("NEW"), one("OLD"), one("OLD")],
            (false, false) => [insert(new), insert(old), one("OLD")],
            // A row that moves to another leaf is updated for the statement only: no row
            // trigger for updates sees it.
            (false, true) => {
                let exact = |from: &str| {
                    let columns = self
                        .watched
                        .iter()
                        .map(|it| format!("{} AS {}", it.exact(), ident(&it.name)));
                    format!(
                        "SELECT {} FROM {from}",
                        columns.collect::<Vec<_>>().join(", ")
                    )
                };
                let moved = format!("({} EXCEPT {}) AS r", exact(old), exact(new));
                let both = insert(new) + " " + &insert(&moved);
                [insert(new), insert(old), both]
            }
        }
    }

    /// Rows as a relation `r`, with the columns that triggers look at.
    fn rows_of(&self, rows: &[&str]) -> String {
        let names: Vec<String> = self.watched.iter().map(|it| ident(&it.name)).collect();
        let rows = rows.iter().map(|row| {
            let values = names.iter().map(|name| format!("{row}.{name}"));
            format!("({})", values.collect::<Vec<_>>().join(", "))
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        format!("(VALUES {rows}) AS r({})", names.join(", "))
    }

    /// The query for the entries of a relation `r` of rows.
    fn entries(&self, from: &str) -> String {
        match self.route.is_empty() {
            true => format!("SELECT {} FROM {from}", self.entry("r.", "r.")),
            false => self.route.entries(self, from),
        }
    }

    /// The statements of a trigger that log a relation `r` of rows.
    fn log(&self, id: i32, from: &str) -> String {
        let insert = self.insert(id, &self.entries(from));
        match self.route.is_empty() {
            true => insert,
            // Triggers that fire always do so where foreign keys are not checked, too.
            false => {
                let hold = self.route.hold_above_own(from, !self.by_row);
                format!("{hold} {insert}")
            }
        }
    }

    /// The statement that appends what a query yields.
    pub(super) fn insert(&self, id: i32, what: &str) -> String {
        let names: Vec<String> = (0..self.columns.len()).map(log_column).collect();
        let (log, names) = (Self::log_table(id.into()), names.join(", "));
        format!("INSERT INTO {log} ({names}) {what};")
    }

    /// The columns of an entry, of the table that decides and of the tracked one.
    pub(super) fn entry(&self, above: &str, own: &str) -> String {
        let columns = self.columns.iter().map(|column| match column.is_above {
            true => format!("{above}{}", column.source),
            false => format!("{own}{}", column.source),
        });
        columns.collect::<Vec<_>>().join(", ")
    }

    /// The columns of an entry that are of the table which decides, at the end of a route.
    pub(super) fn deciding(&self, above: &str) -> String {
        let columns = self.columns.iter().filter(|it| it.is_above);
        let columns = columns.map(|it| format!("{above}{}", it.source));
        columns.collect::<Vec<_>>().join(", ")
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
        let marker = marker(id);
        // What is generated is not known yet.
        let log = match self.generated {
            true => marker.clone(),
            false => self.log(id, &self.rows_of(&["OLD", "NEW"])),
        };
        format!(
            "IF TG_LEVEL = 'ROW' THEN IF {} THEN {log} ELSE {marker} END IF; RETURN NEW; END IF;",
            self.fits(0)
        )
    }

    /// Whether the columns that a function names are still there as they were; it is that of a
    /// trigger on the table at a level of the route, of which 0 is the tracked one.
    pub(super) fn fits(&self, level: usize) -> String {
        let conditions = self.route.conditions(self, level);
        format!("({}) IS TRUE", conditions.join(" AND "))
    }

    /// The statement that logs all rows of a table that has the columns of the tracked one.
    pub(super) fn log_rows(&self, id: i32, table: &str) -> String {
        self.insert(id, &self.entries(&format!("ONLY {table} r"))) + "\n"
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
            Self::log_table(id.into())
        ));
        sql
    }

    /// The triggers go with them.
    fn drop_functions(id: i32) -> String {
        format!(
            "DO $$ DECLARE f record; BEGIN FOR f IN SELECT p.oid::regprocedure AS name \
             FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'tidewater'::regnamespace \
             AND p.proname ~ '^log_{id}_' \
             LOOP EXECUTE 'DROP FUNCTION ' || f.name || ' CASCADE'; END LOOP; END $$;\n"
        )
    }

    /// The triggers on the tables of the route.
    pub(super) fn route_triggers(&self, id: i32) -> Vec<(u32, Trigger)> {
        let steps = self.route.steps().iter().enumerate();
        let triggers = steps.flat_map(|(index, step)| {
            let triggers = self.route.triggers(id, index + 1, self.by_row);
            triggers.into_iter().map(|(name, sql)| {
                let by_row = true;
                (step.oid, Trigger { name, by_row, sql })
            })
        });
        triggers.collect()
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
        let moved = format!("FOR EACH ROW WHEN ({}) ", differ(&self.watched));
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

fn function(id: i32, suffix: &str, body: &str) -> String {
    let name = qualified(SCHEMA, &format!("log_{id}_{suffix}"));
    function_of(&name, &format!("{body} RETURN NULL;"))
}

/// Whoever writes the table runs the function: with the rights of its owner and
/// nothing but system schemas on the path.
pub(super) fn function_of(name: &str, body: &str) -> String {
    let mut tag = "$tidewater$".to_owned();
    while body.contains(&tag) {
        tag.insert(1, '_');
    }
    format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER \
         SET search_path = pg_catalog, pg_temp \
         AS {tag} BEGIN {body} END {tag};\n\
         REVOKE ALL ON FUNCTION {name}() FROM PUBLIC;\n"
    )
}

impl LogColumn {
    fn from_column(column: &PgColumn, is_above: bool) -> LogColumn {
        LogColumn {
            source: column.sql.clone(),
            is_above,
            definition: match column.collation {
                Some(_) => format!("{} COLLATE \"C\"", column.cast_name),
                None => column.cast_name.clone(),
            },
        }
    }
}
