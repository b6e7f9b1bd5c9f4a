//! What the triggers on the tables along a route append to a change log.
//!
//! An entry of the log carries the values of the table at the end. Nobody else writes meanwhile, so
//! what is below a row is all there is. A row above that is deleted, or displaced, is logged for
//! before it goes: what cascades below finds it gone.

use super::catalog::SqliteCatalog;
use super::quote;
use super::recorded_log::{RecordedLog, SchemaObject, differs, those};
use tidewater_centre::engine::sql::rule_route::{alias_at, equal_columns};

impl RecordedLog {
    /// The statement's rest for the entries of a row of the tracked table: `OLD` or `NEW`.
    pub(super) fn entry_by_route(&self, row: &str) -> String {
        let steps = &self.route.steps;
        let (step, first) = (&steps[0], alias_at(1));
        format!(
            "SELECT {} FROM {} {first}{} WHERE {}",
            self.entry_values(&alias_at(steps.len()), row),
            step.table,
            self.route.joins("JOIN", 1, &first, ""),
            equal_columns(&first, &step.parent_columns, row, &step.columns),
        )
    }

    /// The same for everything below a row of the table at a level: below who refers to `key`, under
    /// the values of `row`. `from` has these, if they are rows of a table.
    fn below(&self, level: usize, (key, row): (&str, &str), from: Option<&str>) -> String {
        let steps = &self.route.steps;
        let mut tables = Vec::new();
        let mut conditions = Vec::new();
        for lower in 0..level {
            let table = match lower {
                0 => quote(&self.table),
                lower => steps[lower - 1].table.clone(),
            };
            tables.push(format!("{table} {}", alias_at(lower)));
            let step = &steps[lower];
            let above = match lower + 1 == level {
                true => key.to_owned(),
                false => alias_at(lower + 1),
            };
            // The collation is that of the column that is referred to.
            conditions.push(equal_columns(
                &above,
                &step.parent_columns,
                &alias_at(lower),
                &step.columns,
            ));
        }
        tables.extend(from.map(str::to_owned));
        let mut root = row.to_owned();
        for (upper, step) in steps.iter().enumerate().skip(level) {
            let alias = alias_at(upper + 1);
            tables.push(format!("{} {alias}", step.table));
            conditions.push(equal_columns(
                &alias,
                &step.parent_columns,
                &root,
                &step.columns,
            ));
            root = alias;
        }
        format!(
            "SELECT {} FROM {} WHERE {}",
            self.entry_values(&root, &alias_at(0)),
            tables.join(", "),
            conditions.join(" AND "),
        )
    }

    /// The triggers on the tables along the way.
    pub(super) fn route_triggers(&self, catalog: &SqliteCatalog, name: &str) -> Vec<SchemaObject> {
        let mut triggers = Vec::new();
        for (index, step) in self.route.steps.iter().enumerate() {
            let level = index + 1;
            let on = &step.table;
            let mut add = |suffix: &str, event: &str, bodies: Vec<String>| {
                let name = format!("{name}_above_{level}_{suffix}");
                let bodies = bodies
                    .into_iter()
                    .map(|it| format!("{} {it}; ", self.insert_into()));
                let sql = format!(
                    "CREATE TRIGGER {} {event} BEGIN {}END",
                    quote(&name),
                    bodies.collect::<String>()
                );
                triggers.push(SchemaObject { name, sql });
            };
            let below = |key: &str, row: &str| self.below(level, (key, row), None);
            let deleted = format!("BEFORE DELETE ON {on} FOR EACH ROW");
            add("gone", &deleted, vec![below("OLD", "OLD")]);
            let inserted = format!("AFTER INSERT ON {on} FOR EACH ROW");
            add("late", &inserted, vec![below("NEW", "NEW")]);
            // Not "UPDATE OF": setting the rowid names no column.
            let moved = format!(
                "AFTER UPDATE ON {on} FOR EACH ROW WHEN {}",
                differs("OLD", "NEW", step.watched.iter().map(|it| &it.sql))
            );
            let renamed = differs("OLD", "NEW", &step.parent_columns);
            let crossed = |key, row| format!("{} AND ({renamed})", below(key, row));
            let bodies = vec![
                below("OLD", "OLD"),
                below("NEW", "NEW"),
                crossed("OLD", "NEW"),
                crossed("NEW", "OLD"),
            ];
            add("moved", &moved, bodies);
            let displaced: Vec<String> = self
                .displaced(catalog, &step.title)
                .into_iter()
                .map(|condition| {
                    let from = those(on, &condition);
                    self.below(level, (on, on), Some(&from))
                })
                .collect();
            if !displaced.is_empty() {
                let insert = format!("BEFORE INSERT ON {on} FOR EACH ROW");
                add("displaces", &insert, displaced.clone());
                let not_itself = differs("OLD", on, &step.parent_columns);
                let others = displaced
                    .iter()
                    .map(|it| format!("{it} AND ({not_itself})"));
                let update = format!("BEFORE UPDATE ON {on} FOR EACH ROW");
                add("displaces_moved", &update, others.collect());
            }
        }
        triggers
    }
}
