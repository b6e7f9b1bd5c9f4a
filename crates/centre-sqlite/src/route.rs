//! The way from a tracked table to the one that decides who holds its rows: the joins, and what the
//! triggers on the tables along it append.
//!
//! An entry of the log carries the values of the table at the end. Nobody else writes meanwhile, so
//! what is below a row is all there is. A row above that is deleted, or displaced, is logged for
//! before it goes: what cascades below finds it gone.

use super::catalog::SqliteCatalog;
use super::quote;
use super::triggers::{RecordedLog, SchemaObject, differs, those};
use tidewater_centre::engine::compile::CompiledRule;

/// The way; empty where the tracked table itself decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    steps: Vec<RouteStep>,
}

/// A step up. All are names as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RouteStep {
    /// The columns that refer, of the table before.
    columns: Vec<String>,
    /// The table that is referred to.
    table: String,
    /// Its columns that are referred to.
    parent_columns: Vec<String>,
    /// All its columns that decide anything.
    watched: Vec<String>,
}

/// The alias of the table at a level.
fn at(level: usize) -> String {
    format!("a{level}")
}

impl Route {
    pub(super) fn from_rule(own: usize, rule: &CompiledRule, catalog: &SqliteCatalog) -> Route {
        let names = |table: usize, columns: &[usize]| {
            let info = &catalog.infos[table];
            let names = columns.iter().map(|&it| info.columns[it].name.clone());
            names.collect::<Vec<String>>()
        };
        let mut below = own;
        let steps = rule.route.iter().enumerate().map(|(index, reach)| {
            let level = index + 1;
            let mut watched = reach.parent_columns.clone();
            watched.extend(rule.route.get(level).into_iter().flat_map(|it| &it.columns));
            if level == rule.route.len() {
                watched.extend(&rule.columns);
            }
            let windows = rule.windows.iter().filter(|it| it.level == level);
            watched.extend(windows.map(|it| it.column));
            watched.sort_unstable();
            watched.dedup();
            let step = RouteStep {
                columns: names(below, &reach.columns),
                table: catalog.infos[reach.parent].name.clone(),
                parent_columns: names(reach.parent, &reach.parent_columns),
                watched: names(reach.parent, &watched),
            };
            below = reach.parent;
            step
        });
        Route {
            steps: steps.collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What tells it from other ways.
    pub(super) fn names(&self) -> Vec<String> {
        let steps = self.steps.iter();
        let steps = steps.map(|it| {
            let (columns, parents) = (it.columns.join(", "), it.parent_columns.join(", "));
            format!("({columns}) -> {} ({parents})", it.table)
        });
        steps.collect()
    }

    /// The columns of the tracked table that refer.
    pub(super) fn own_columns(&self) -> &[String] {
        self.steps.first().map_or(&[], |step| &step.columns)
    }

    /// ` JOIN`s of the tables above the one of the alias, which is at a level; `how`: `JOIN` or
    /// `LEFT JOIN`.
    pub(super) fn joins(&self, how: &str, level: usize, alias: &str, prefix: &str) -> String {
        let mut below = alias.to_owned();
        let steps = self
            .steps
            .iter()
            .enumerate()
            .skip(level)
            .map(|(index, step)| {
                let above = format!("{prefix}{}", at(index + 1));
                let on = equal(&above, &step.parent_columns, &below, &step.columns);
                below.clone_from(&above);
                format!(" {how} {} {above} ON {on}", quote(&step.table))
            });
        steps.collect()
    }

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

/// Whether columns of two rows are equal; the names are not quoted yet.
fn equal(one: &str, columns: &[String], other: &str, others: &[String]) -> String {
    let pairs = columns.iter().zip(others);
    let pairs =
        pairs.map(|(left, right)| format!("{one}.{} = {other}.{}", quote(left), quote(right)));
    pairs.collect::<Vec<_>>().join(" AND ")
}
