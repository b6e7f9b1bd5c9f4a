//! The route from a table to the one that decides who holds its rows, and the joins along it.

use crate::engine::catalog::CatalogReader;
use crate::engine::compile::CompiledRule;
use crate::engine::sql::column::SqlColumn;

/// The route; empty where the table itself decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRoute<C> {
    /// Its steps, from the table up.
    pub steps: Vec<RuleRouteStep<C>>,
}

/// A step along a foreign key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRouteStep<C> {
    /// The columns that refer, of the table before, in SQL.
    pub columns: Vec<String>,
    /// The table that is referred to, by its index in the catalog.
    pub parent: usize,
    /// Its name in SQL.
    pub table: String,
    /// Its name for people.
    pub title: String,
    /// Its columns that are referred to, in SQL.
    pub parent_columns: Vec<String>,
    /// All its columns that decide anything.
    pub watched: Vec<C>,
    /// Whether a row may be there before the one that it refers to.
    pub is_deferrable: bool,
}

/// The alias of the table at a level of a route; that of the first table is 0.
pub fn alias_at(level: usize) -> String {
    format!("a{level}")
}

/// Whether columns of two rows are equal; the names are those of SQL.
pub fn equal_columns(one: &str, columns: &[String], other: &str, others: &[String]) -> String {
    let pairs = columns.iter().zip(others);
    let pairs = pairs.map(|(left, right)| format!("{one}.{left} = {other}.{right}"));
    pairs.collect::<Vec<_>>().join(" AND ")
}

impl<C> RuleRoute<C> {
    /// The route of a rule of a table, which is given by its index in the catalog.
    pub fn from_rule<R>(own: usize, rule: &CompiledRule, catalog: &R) -> RuleRoute<C>
    where
        R: CatalogReader<Column = C>,
        C: SqlColumn,
    {
        let mut below = catalog.sql_table(own);
        let mut steps = Vec::with_capacity(rule.route.len());
        for (index, reach) in rule.route.iter().enumerate() {
            let level = index + 1;
            let table = catalog.sql_table(reach.parent);
            let watched = rule
                .watched_columns(level)
                .into_iter()
                .map(|it| table.columns[it].clone());
            steps.push(RuleRouteStep {
                columns: below.sql_names(&reach.columns),
                parent: reach.parent,
                table: table.sql_name.to_owned(),
                title: table.title.to_owned(),
                parent_columns: table.sql_names(&reach.parent_columns),
                watched: watched.collect(),
                is_deferrable: reach.is_deferrable,
            });
            below = table;
        }
        RuleRoute { steps }
    }

    /// Whether the table itself decides.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The names that tell it from other routes.
    pub fn names(&self) -> Vec<String> {
        let steps = self.steps.iter();
        let steps = steps.map(|it| format!("{} -> {}", it.columns.join(", "), it.title));
        steps.collect()
    }

    /// The alias of the table that decides, where the first one has the alias `own`.
    pub fn deciding_alias(&self, own: &str) -> String {
        match self.steps.len() {
            0 => own.to_owned(),
            length => alias_at(length),
        }
    }

    /// ` JOIN`s of the tables above the one at a level, which has this alias. `how` is `JOIN` or
    /// `LEFT JOIN`; the aliases of the joined tables begin with the prefix.
    pub fn joins(&self, how: &str, level: usize, alias: &str, prefix: &str) -> String {
        let mut below = alias.to_owned();
        let steps = self.steps.iter().enumerate().skip(level);
        let joins = steps.map(|(index, step)| {
            let above = format!("{prefix}{}", alias_at(index + 1));
            // A database that compares by the collation of the left side compares as the foreign key does.
            let on = equal_columns(&above, &step.parent_columns, &below, &step.columns);
            below.clone_from(&above);
            format!(" {how} {} {above} ON {on}", step.table)
        });
        joins.collect()
    }
}
