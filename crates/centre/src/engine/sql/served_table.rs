//! A table of a publication, as the statements that serve it need it.

use std::fmt;

use tidewater_protocol::{ColumnType, Datum, Direction};

use super::column::{SqlColumn, SqlTable};
use super::condition_arguments::ConditionArguments;
use super::rule_route::{RuleRoute, alias_at};
use crate::engine::catalog::CatalogReader;
use crate::engine::change_log::ChangeLog;
use crate::engine::compile::{CompiledRule, CompiledTable, WhichRule};
use crate::engine::flight::ValueTypes;
use crate::engine::window::WindowBound;
use crate::error::CentreError;
use crate::publication::OnUnseenChildren;

/// What a database has of its own in the tables that it serves.
pub trait TableAdapter: ValueTypes {
    /// A column.
    type Column: SqlColumn<Kind = Self::Kind>;
    /// A change log.
    type Log: ChangeLog + fmt::Debug + 'static;
    /// What else it knows of a table.
    type Details: fmt::Debug + Send + Sync + 'static;

    /// Whether conditions spell the values of partitions, so that rows of many are read at once;
    /// otherwise those are parameters, and partitions are read one after the other.
    const SPELLS_PARTITIONS: bool;

    /// The name of a change log's table in SQL.
    fn log_table(id: i64) -> String;

    /// The condition that a row is of one of these partitions of a rule.
    ///
    /// # Errors
    /// A value is none that the database can have.
    fn is_in_partitions<'a>(
        rule: &TableRule<Self>,
        partitions: &[Vec<Datum<'a>>],
        arguments: &mut ConditionArguments<'a, Self::Kind>,
    ) -> Result<String, CentreError>
    where
        Self: Sized;

    /// The condition that a row may be in a window, whose column is of this type.
    fn is_in_window(
        rule: &TableRule<Self>,
        bound: &WindowBound,
        column_type: ColumnType,
        arguments: &mut ConditionArguments<'_, Self::Kind>,
    ) -> String
    where
        Self: Sized;

    /// The query for how many bytes a table weighs, if that can be told cheaply.
    fn weight_sql(_table: &ServedTable<Self>) -> Option<String>
    where
        Self: Sized,
    {
        None
    }

    /// The query whether there are policies that hide rows of a table from some, if there can be.
    fn policies_sql(_table: &ServedTable<Self>) -> Option<String>
    where
        Self: Sized,
    {
        None
    }

    /// What stands behind `INSERT` and `UPDATE` of one row of a table.
    fn write_clause(_details: &Self::Details) -> &'static str {
        ""
    }
}

/// A table of a publication, ready to be served.
#[derive(Debug)]
pub struct ServedTable<A: TableAdapter> {
    /// Its name in SQL.
    pub sql_name: String,
    /// Its name in a configuration.
    pub title: String,
    /// The published columns.
    pub columns: Vec<A::Column>,
    /// The primary key, as indexes into `columns`.
    pub key: Vec<usize>,
    /// Which ways its rows go.
    pub direction: Direction,
    /// By which its rows are held.
    pub rules: Vec<TableRule<A>>,
    /// The columns by which they are written.
    pub written: Vec<A::Column>,
    /// By published column, the default that the centre fills in where a remote leaves it NULL.
    pub filled: Vec<Option<String>>,
    /// What rows as they are read have behind the published columns, and the aliases of their
    /// tables in [`Self::from`].
    extras: Vec<(String, A::Column)>,
    /// The table as `t`, with what its rules follow as far as that is there.
    pub from: String,
    /// The condition that a row `t` has no key; `None` where every row has one.
    pub has_no_key: Option<String>,
    /// About how many rows it had when it was loaded; 0 if that is not known.
    pub row_estimate: u64,
    /// What a delete does to published children.
    pub on_delete: OnDelete,
    /// Their foreign keys that act on its deletes.
    pub children: Vec<ChildKey>,
    /// What the database knows of it.
    pub details: A::Details,
}

/// A rule by which rows of a table are held.
#[derive(Debug)]
pub struct TableRule<A: TableAdapter> {
    /// The change log; `None` if the table is not tracked.
    pub log: Option<A::Log>,
    /// The log's number, known once it is deployed.
    pub log_id: i64,
    /// The columns of the log.
    pub log_columns: LogColumns,
    /// The alias of the table that decides, in [`ServedTable::from`] and in [`Self::from`].
    pub alias: String,
    /// Its columns that are partitioned by.
    pub columns: Vec<A::Column>,
    /// Where the rule does not follow: the columns' places among the published ones.
    pub own: Vec<usize>,
    /// The columns of the windows.
    pub windows: Vec<WindowColumn<A::Column>>,
    /// The table as `t`, with what this rule follows, and what others do as far as that is there.
    pub from: String,
}

/// The column of a window.
#[derive(Clone, Debug)]
pub struct WindowColumn<C> {
    /// The alias of its table in [`TableRule::from`].
    pub alias: String,
    /// Its table in SQL.
    pub table: String,
    /// The column.
    pub column: C,
}

impl<C: SqlColumn> WindowColumn<C> {
    /// The query for its highest value.
    pub fn highest_sql(&self) -> String {
        format!("SELECT max({}) FROM {}", self.column.output(""), self.table)
    }
}

/// The columns of a change log, by their names: those of the partition, and behind them those of the
/// key that are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogColumns {
    /// The partition's values.
    pub partition: Vec<String>,
    /// The key's.
    pub key: Vec<String>,
}

/// A foreign key by which published children refer to a table.
#[derive(Clone, Debug)]
pub struct ChildKey {
    /// Their table in SQL.
    pub table: String,
    /// The condition that a row `c` of them refers to a row `t`.
    pub refers: String,
    /// Their key, as columns of `c`.
    pub key: Vec<String>,
    /// Whether they are rows of the same table.
    pub is_same_table: bool,
}

/// What a delete does to published rows that refer to the deleted one by a foreign key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// Nothing.
    Nothing,
    /// It would take them along, or change them: they are looked for before it.
    Looks,
    /// The same, and that is as its operator wants it.
    TakesAlong,
}

/// The name of a change log's column at a place.
pub fn log_column(place: usize) -> String {
    format!("c{place}")
}

/// What the table at a level of a rule's route is called in [`ServedTable::from`].
pub fn rule_alias(rule: usize, level: usize) -> String {
    match level {
        0 => "t".to_owned(),
        level => format!("{}{}", rule_prefix(rule), alias_at(level)),
    }
}

fn rule_prefix(rule: usize) -> String {
    format!("r{rule}_")
}

impl LogColumns {
    /// The columns of the log of a rule, of a table with this key.
    pub fn new(rule: &CompiledRule, key: &[usize]) -> LogColumns {
        // Only columns of the table itself can be both.
        let shared = |column: &usize| match rule.route.is_empty() {
            true => rule.columns.iter().position(|it| it == column),
            false => None,
        };
        let mut count = rule.columns.len();
        let key = key.iter().map(|column| {
            log_column(shared(column).unwrap_or_else(|| {
                count += 1;
                count - 1
            }))
        });
        LogColumns {
            key: key.collect(),
            partition: (0..rule.columns.len()).map(log_column).collect(),
        }
    }

    /// The key's columns that are not among the partition's, with their places in the key.
    pub fn key_alone(&self) -> impl Iterator<Item = (usize, &String)> {
        let key = self.key.iter().enumerate();
        key.filter(|(_, name)| !self.partition.contains(name))
    }

    /// All of them.
    pub fn all(&self) -> Vec<String> {
        let key = self.key_alone().map(|(_, name)| name);
        self.partition.iter().chain(key).cloned().collect()
    }
}

impl<A: TableAdapter> ServedTable<A> {
    /// Makes one of what is compiled; `log` makes the change log of a rule by its number.
    pub fn new<R>(
        published: &CompiledTable<'_>,
        catalog: &R,
        log: impl Fn(usize) -> A::Log,
        details: A::Details,
    ) -> ServedTable<A>
    where
        R: CatalogReader<Column = A::Column>,
    {
        let live = catalog.sql_table(published.table);
        let routes = published.rules.iter();
        let routes = routes.map(|rule| RuleRoute::from_rule(published.table, rule, catalog));
        let routes: Vec<RuleRoute<A::Column>> = routes.collect();
        let from = |by: Option<usize>| {
            let joins = routes.iter().enumerate().map(|(rule, route)| {
                let how = match by == Some(rule) {
                    true => "JOIN",
                    false => "LEFT JOIN",
                };
                route.joins(how, 0, "t", &rule_prefix(rule))
            });
            format!("{} t{}", live.sql_name, joins.collect::<String>())
        };
        let rules = published.rules.iter().enumerate().map(|(number, rule)| {
            let root = catalog.sql_table(rule.root(published.table));
            let windows = rule.windows.iter().map(|window| {
                let table = catalog.sql_table(rule.table_at(published.table, window.level));
                WindowColumn {
                    alias: rule_alias(number, window.level),
                    table: table.sql_name.to_owned(),
                    column: table.columns[window.column].clone(),
                }
            });
            let own = rule.columns.iter().filter(|_| rule.route.is_empty());
            let own = own.filter_map(|column| published.columns.iter().position(|it| it == column));
            TableRule {
                log: published.is_logged.then(|| log(number)),
                log_id: 0,
                log_columns: LogColumns::new(rule, live.key),
                alias: rule_alias(number, rule.route.len()),
                columns: rule
                    .columns
                    .iter()
                    .map(|&it| root.columns[it].clone())
                    .collect(),
                own: own.collect(),
                windows: windows.collect(),
                from: from(Some(number)),
            }
        });
        let extras = published.extras(catalog.tables()).into_iter().map(|extra| {
            let rule = &published.rules[extra.rule];
            let table = catalog.sql_table(rule.table_at(published.table, extra.level));
            let column = table.columns[extra.column].clone();
            (rule_alias(extra.rule, extra.level), column)
        });
        let written = published.rule(WhichRule::Written).into_iter();
        let written = written.flat_map(|rule| &rule.columns);
        let columns = published.columns.iter();
        ServedTable {
            sql_name: live.sql_name.to_owned(),
            title: live.title.to_owned(),
            key: published.positions(live.key).unwrap_or_default(),
            direction: published.spec.direction,
            rules: rules.collect(),
            written: written.map(|&it| live.columns[it].clone()).collect(),
            filled: columns
                .clone()
                .map(|it| {
                    let default = live.columns[*it].default_sql().map(str::to_owned);
                    default.filter(|_| published.filled.contains(it))
                })
                .collect(),
            extras: extras.collect(),
            from: from(None),
            has_no_key: live.has_no_key(),
            row_estimate: live.row_estimate,
            on_delete: on_delete(published),
            children: child_keys(published, catalog),
            columns: columns.map(|&it| live.columns[it].clone()).collect(),
            details,
        }
    }

    /// The columns of which a rule's query, or that of one of its windows, yields values.
    pub fn asked(&self, which: WhichRule, window: Option<usize>) -> &[A::Column] {
        match (which, window) {
            (WhichRule::Held(rule), None) => &self.rules[rule].columns,
            (WhichRule::Held(rule), Some(window)) => {
                std::slice::from_ref(&self.rules[rule].windows[window].column)
            }
            (WhichRule::Written, _) => &self.written,
        }
    }

    /// Itself, as statements need it.
    pub fn as_sql(&self) -> SqlTable<'_, A::Column> {
        SqlTable {
            sql_name: &self.sql_name,
            title: &self.title,
            columns: &self.columns,
            key: &self.key,
            nullable_key: &[],
            row_estimate: self.row_estimate,
        }
    }

    /// Whether rows are inserted with defaults where remotes said nothing.
    pub fn fills(&self) -> bool {
        self.filled.iter().any(Option::is_some)
    }

    /// The columns of its key.
    pub fn key_columns(&self) -> impl Iterator<Item = &A::Column> + Clone {
        self.key.iter().map(|&index| &self.columns[index])
    }

    /// [`Self::from`] as one side of a join.
    pub fn joined(&self) -> String {
        match self.from.contains(" JOIN ") {
            true => format!("({})", self.from),
            false => self.from.clone(),
        }
    }

    /// The columns of a row of [`Self::from`] as it is read, as results.
    pub fn outputs(&self) -> String {
        let extras = self.extras.iter();
        let extras = extras.map(|(alias, column)| column.output(&format!("{alias}.")));
        let published = self.columns.iter().map(|column| column.output("t."));
        published.chain(extras).collect::<Vec<_>>().join(", ")
    }

    /// The columns of a row as it is read.
    pub fn read_columns(&self) -> impl Iterator<Item = &A::Column> {
        let extras = self.extras.iter().map(|(_, column)| column);
        self.columns.iter().chain(extras)
    }

    /// The change logs of its rules, in their order; none if its changes are not tracked.
    pub fn logs(&self) -> impl Iterator<Item = &A::Log> {
        self.rules.iter().filter_map(|rule| rule.log.as_ref())
    }

    /// The number of the change log of a rule, once that is deployed; `None` if its changes are not
    /// tracked.
    pub fn log(&self, rule: usize) -> Option<i64> {
        let rule = &self.rules[rule];
        rule.log.as_ref().map(|_| rule.log_id)
    }

    /// The rules by columns of the table's own, that are tracked.
    pub fn own_rules(&self) -> impl Iterator<Item = &TableRule<A>> {
        let rules = self.rules.iter();
        rules.filter(|rule| rule.log.is_some() && !rule.own.is_empty())
    }
}

impl<A: TableAdapter> TableRule<A> {
    /// The name of the log's table in SQL.
    pub fn log_table(&self) -> String {
        A::log_table(self.log_id)
    }
}

/// What a delete of a table does to published children.
fn on_delete(published: &CompiledTable<'_>) -> OnDelete {
    match (
        published.children.is_empty(),
        published.spec.on_unseen_children,
    ) {
        (true, _) => OnDelete::Nothing,
        (false, OnUnseenChildren::Conflict) => OnDelete::Looks,
        (false, OnUnseenChildren::Cascade) => OnDelete::TakesAlong,
    }
}

fn child_keys<R: CatalogReader>(published: &CompiledTable<'_>, catalog: &R) -> Vec<ChildKey> {
    let parent = catalog.sql_table(published.table);
    let keys = published.children.iter().map(|children| {
        let child = catalog.sql_table(children.table);
        let pairs = children.columns.iter().zip(&children.parent_columns);
        let refers = pairs.map(|(&referring, &referred)| {
            let (referring, referred) = (&child.columns[referring], &parent.columns[referred]);
            // By the collation of the parent's column, as the foreign key does.
            format!("t.{} = c.{}", referred.sql_name(), referring.sql_name())
        });
        let key = child.key.iter();
        ChildKey {
            table: child.sql_name.to_owned(),
            refers: refers.collect::<Vec<_>>().join(" AND "),
            key: key
                .map(|&it| format!("c.{}", child.columns[it].sql_name()))
                .collect(),
            is_same_table: children.table == published.table,
        }
    });
    keys.collect()
}
