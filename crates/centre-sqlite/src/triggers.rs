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

use super::catalog::SqliteCatalog;
use super::recorded_log::{RecordedLog, SchemaObject, differs, those};
use super::{quote, state};
use tidewater_centre::engine::sql::rule_route::alias_at;

impl RecordedLog {
    /// Everything that the log is made of, with the name of each: table, index, triggers.
    pub(super) fn objects(&self, catalog: &SqliteCatalog) -> Vec<SchemaObject> {
        let name = state::log_table(self.id);
        let table = quote(&name);
        let columns = self.entry_columns();
        let columns: String = columns.iter().map(|it| format!(", {it}")).collect();
        let mut objects = vec![SchemaObject {
            sql: format!("CREATE TABLE {table} (id INTEGER PRIMARY KEY{columns})"),
            name: name.clone(),
        }];
        if !self.partition.is_empty() {
            // The rowid follows the indexed columns: a range of one partition is one seek.
            let name = format!("{name}_partition");
            let columns = self.partition_columns().join(", ");
            objects.push(SchemaObject {
                sql: format!("CREATE INDEX {} ON {table} ({columns})", quote(&name)),
                name,
            });
        }
        objects.extend(self.triggers(catalog));
        objects.extend(self.route_triggers(catalog, &name));
        objects
    }

    /// All triggers that feed the log.
    fn triggers(&self, catalog: &SqliteCatalog) -> Vec<SchemaObject> {
        let on = quote(&self.table);
        let mut triggers = Vec::new();
        let mut add = |suffix: &str, event: &str, body: String| {
            let name = format!("{}_{suffix}", state::log_table(self.id));
            let sql = format!("CREATE TRIGGER {} {event} BEGIN {body}; END", quote(&name));
            triggers.push(SchemaObject { name, sql });
        };
        let displaced = self.displaced(catalog, &self.table).into_iter();
        let above = match self.route.is_empty() {
            true => on.clone(),
            false => alias_at(self.route.steps.len()),
        };
        let displaced = displaced.map(|condition| {
            format!(
                "{} SELECT {} FROM {}{} WHERE 1",
                self.insert_into(),
                self.entry_values(&above, &on),
                those(&on, &condition),
                self.route.joins("JOIN", 0, &on, ""),
            )
        });
        let displaced: Vec<String> = displaced.collect();
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
        let deciding = match self.route.is_empty() {
            true => &self.partition[..],
            false => &self.route.steps[0].columns,
        };
        let moved = deciding.iter().chain(&self.key);
        // Not "UPDATE OF": setting the rowid names no column.
        let event = format!(
            "AFTER UPDATE ON {on} FOR EACH ROW WHEN {}",
            differs("OLD", "NEW", moved)
        );
        add("move", &event, self.append("OLD"));
        let delete = format!("AFTER DELETE ON {on} FOR EACH ROW");
        add("delete", &delete, self.append("OLD"));
        triggers
    }

    fn append(&self, row: &str) -> String {
        let what = match self.route.is_empty() {
            true => format!("VALUES ({})", self.entry_values(row, row)),
            false => self.entry_by_route(row),
        };
        format!("{} {what}", self.insert_into())
    }
}
