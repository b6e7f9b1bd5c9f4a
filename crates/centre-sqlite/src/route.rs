//! The way from a tracked table to the one that decides who holds its rows, and the joins along it.

use super::catalog::SqliteCatalog;
use super::quote;
use tidewater_centre::engine::compile::CompiledRule;

/// The way; empty where the tracked table itself decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) steps: Vec<RouteStep>,
}

/// A step up. All are names as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteStep {
    /// The columns that refer, of the table before.
    pub(super) columns: Vec<String>,
    /// The table that is referred to.
    pub(super) table: String,
    /// Its columns that are referred to.
    pub(super) parent_columns: Vec<String>,
    /// All its columns that decide anything.
    pub(super) watched: Vec<String>,
}

/// The alias of the table at a level.
pub(super) fn at(level: usize) -> String {
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
}

/// Whether columns of two rows are equal; the names are not quoted yet.
pub(super) fn equal(one: &str, columns: &[String], other: &str, others: &[String]) -> String {
    let pairs = columns.iter().zip(others);
    let pairs =
        pairs.map(|(left, right)| format!("{one}.{} = {other}.{}", quote(left), quote(right)));
    pairs.collect::<Vec<_>>().join(" AND ")
}
