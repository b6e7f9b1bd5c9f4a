//! What the triggers on the tables along a route append to a change log.
//!
//! An entry of the log carries the values of the table at the end. Nobody else writes meanwhile, so
//! what is below a row is all there is. A row above that is deleted, or displaced, is logged for
//! before it goes: what cascades below finds it gone.

use super::catalog::SqliteCatalog;
use super::quote;
use super::recorded_log::{RecordedLog, SchemaObject, differs, those};
use super::route::{Route, at, equal};

impl Route {
    /// The statement's rest for the entries of a row of the tracked table: `OLD` or `NEW`.
    pub(super) fn entry(&self, log: &RecordedLog, row: &str) -> String {
        let step = &self.steps[0];
        let first = at(1);
        format!(
            "SELECT {} FROM {} {first}{} WHERE {}",
            log.entry_values(&at(self.steps.len()), row),
            quote(&step.table),
            self.joins("JOIN", 1, &first, ""),
            equal(&first, &step.parent_columns, row, &step.columns),
        )
    }

    /// The same for everything below a row of the table at a level: below who refers to `key`, under
    /// the values of `row`. `from` has these, if they are rows of a table.
    fn below(
        &self,
        log: &RecordedLog,
        level: usize,
        (key, row): (&str, &str),
        from: Option<&str>,
    ) -> String {
        let mut tables = Vec::new();
        let mut conditions = Vec::new();
        for lower in 0..level {
            let table = match lower {
                0 => &log.table,
                lower => &self.steps[lower - 1].table,
            };
            tables.push(format!("{} {}", quote(table), at(lower)));
            let step = &self.steps[lower];
            let above = match lower + 1 == level {
                true => key.to_owned(),
                false => at(lower + 1),
            };
            // The collation is that of the column that is referred to.
            conditions.push(equal(
                &above,
                &step.parent_columns,
                &at(lower),
                &step.columns,
            ));
        }
        tables.extend(from.map(str::to_owned));
        let mut root = row.to_owned();
        for upper in level..self.steps.len() {
            let (step, alias) = (&self.steps[upper], at(upper + 1));
            tables.push(format!("{} {alias}", quote(&step.table)));
            conditions.push(equal(&alias, &step.parent_columns, &root, &step.columns));
            root = alias;
        }
        format!(
            "SELECT {} FROM {} WHERE {}",
            log.entry_values(&root, &at(0)),
            tables.join(", "),
            conditions.join(" AND "),
        )
    }

    /// The triggers on the tables along the way.
    pub(super) fn triggers(
        &self,
        log: &RecordedLog,
        catalog: &SqliteCatalog,
        name: &str,
    ) -> Vec<SchemaObject> {
        let mut triggers = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let level = index + 1;
            let on = quote(&step.table);
            let mut add = |suffix: &str, event: &str, bodies: Vec<String>| {
                let name = format!("{name}_above_{level}_{suffix}");
                let bodies = bodies
                    .into_iter()
                    .map(|it| format!("{} {it}; ", log.insert_into()));
                let sql = format!(
                    "CREATE TRIGGER {} {event} BEGIN {}END",
                    quote(&name),
                    bodies.collect::<String>()
                );
                triggers.push(SchemaObject { name, sql });
            };
            let below = |key: &str, row: &str| self.below(log, level, (key, row), None);
            let deleted = format!("BEFORE DELETE ON {on} FOR EACH ROW");
            add("gone", &deleted, vec![below("OLD", "OLD")]);
            let inserted = format!("AFTER INSERT ON {on} FOR EACH ROW");
            add("late", &inserted, vec![below("NEW", "NEW")]);
            // Not "UPDATE OF": setting the rowid names no column.
            let moved = format!(
                "AFTER UPDATE ON {on} FOR EACH ROW WHEN {}",
                differs("OLD", "NEW", &step.watched)
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
            let displaced: Vec<String> = log
                .displaced(catalog, &step.table)
                .into_iter()
                .map(|condition| {
                    let from = those(&on, &condition);
                    self.below(log, level, (&on, &on), Some(&from))
                })
                .collect();
            if !displaced.is_empty() {
                let insert = format!("BEFORE INSERT ON {on} FOR EACH ROW");
                add("displaces", &insert, displaced.clone());
                let not_itself = differs("OLD", &on, &step.parent_columns);
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
