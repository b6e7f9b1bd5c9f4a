//! Publications, compiled against the catalog: everything that serving them needs.
//!
//! Pure: no SQL is run here. The errors are the operator's, so they say where in the
//! configuration something is wrong and what to write instead.

use tidewater_protocol::Direction;

use super::catalog::PostgresCatalog;
use super::route::Route;
use super::triggers::{LogSpec, log_column};
use super::values::PostgresType;
use crate::column::PgColumn;
use tidewater_centre::OnUnseenChildren;
use tidewater_centre::engine::catalog::CatalogReader as _;
use tidewater_centre::engine::compile::{CompiledTable, WhichRule};
use tidewater_centre::engine::publication::{self, ServedTable};
use tidewater_centre::engine::upload::target_table::OnDelete;

/// A publication, ready to be served.
pub(super) type Publication = publication::Publication<PublishedTable>;

/// A table of a publication.
#[derive(Debug)]
pub(crate) struct PublishedTable {
    pub(super) oid: u32,
    /// Its name in SQL.
    pub(super) sql_name: String,
    /// Its name in a configuration.
    pub(super) title: String,
    /// The published columns.
    pub(super) columns: Vec<PgColumn>,
    pub(super) key: Vec<usize>,
    pub(super) direction: Direction,
    /// By which its rows are held.
    pub(super) rules: Vec<TableRule>,
    /// The columns by which they are written.
    written: Vec<PgColumn>,
    /// What rows as they are read have behind the published columns, and the aliases of their
    /// tables in [`Self::from`].
    extras: Vec<(String, PgColumn)>,
    /// The table as `t`, and what its rules follow.
    pub(super) from: String,
    /// What a delete does to published children.
    pub(super) on_delete: OnDelete,
    /// For each of their foreign keys that acts on deletes: the children's table, and how they refer
    /// to a row `t`, as rows `c`.
    pub(super) children: Vec<ChildKey>,
    pub(super) effects: Effects,
    /// What [`super::FINGERPRINTS`] said when it was loaded.
    pub(super) fingerprint: String,
    /// The planner's guess of the number of rows.
    pub(super) row_estimate: u64,
}

/// A rule by which rows of a table are held.
#[derive(Debug)]
pub(super) struct TableRule {
    /// The change log; `None` if the table is not tracked.
    pub(super) log: Option<LogSpec>,
    /// The log's number, known once it is deployed.
    pub(super) log_id: i32,
    /// The alias of the table that decides, in [`PublishedTable::from`].
    pub(super) alias: String,
    /// Its columns that are partitioned by.
    pub(super) columns: Vec<PgColumn>,
    /// Where the rule does not follow: the columns' places among the published ones.
    pub(super) own: Vec<usize>,
    /// The columns of the windows, with the aliases and the names of their tables.
    pub(super) windows: Vec<(String, String, PgColumn)>,
    /// The log's columns that have the key.
    pub(super) log_key: Vec<String>,
}

/// A foreign key of children.
#[derive(Clone, Debug)]
pub(super) struct ChildKey {
    /// Their table in SQL.
    pub(super) table: String,
    /// The condition.
    pub(super) refers: String,
    /// Whether they are rows of the same table.
    pub(super) is_same_table: bool,
}

/// What beside the uploaded rows an upload may change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effects {
    /// Triggers of the user, generated columns, or values that a column gives back in
    /// another form.
    pub(super) always: bool,
    /// Foreign keys that act on a delete.
    pub(super) on_delete: bool,
    /// Foreign keys that act on an update.
    pub(super) on_update: bool,
}

impl PublishedTable {
    /// Whether rows are inserted with defaults where remotes said nothing.
    pub(super) fn fills(&self) -> bool {
        let mut columns = self.columns.iter();
        columns.any(|column| column.is_filled && column.default.is_some())
    }
}

impl ServedTable for PublishedTable {
    type Log = LogSpec;

    fn sql_name(&self) -> String {
        self.sql_name.clone()
    }

    fn logs(&self) -> Vec<&LogSpec> {
        let logs = self.rules.iter().map(|rule| rule.log.as_ref());
        logs.flatten().collect()
    }

    fn log(&self, rule: usize) -> Option<i64> {
        let rule = &self.rules[rule];
        rule.log.as_ref().map(|_| i64::from(rule.log_id))
    }

    fn set_log(&mut self, rule: usize, id: i64) {
        self.rules[rule].log_id = id as i32;
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

fn child_keys(published: &CompiledTable<'_>, catalog: &PostgresCatalog) -> Vec<ChildKey> {
    let parent = &catalog.tables[published.table];
    let keys = published.children.iter().map(|children| {
        let child = &catalog.tables[children.table];
        let pairs = children.columns.iter().zip(&children.parent_columns);
        let refers = pairs.map(|(&referring, &referred)| {
            let (referring, referred) = (&child.columns[referring], &parent.columns[referred]);
            format!("c.{} = t.{}", referring.sql, referred.sql)
        });
        ChildKey {
            table: child.sql_name.clone(),
            refers: refers.collect::<Vec<_>>().join(" AND "),
            is_same_table: children.table == published.table,
        }
    });
    keys.collect()
}

impl TableRule {
    fn from_compiled(
        published: &CompiledTable<'_>,
        number: usize,
        catalog: &PostgresCatalog,
    ) -> (TableRule, String) {
        let live = &catalog.tables[published.table];
        let rule = &published.rules[number];
        let route = Route::from_rule(live, rule, catalog);
        let prefix = format!("r{number}_");
        let alias = |level: usize| match level {
            0 => "t".to_owned(),
            level => format!("{prefix}a{level}"),
        };
        let table_at = |level| &catalog.tables[rule.table_at(published.table, level)];
        let root = table_at(rule.route.len());
        let windows = rule.windows.iter().map(|window| {
            let table = table_at(window.level);
            let column = table.columns[window.column].clone();
            (alias(window.level), table.sql_name.clone(), column)
        });
        let own = rule.columns.iter().filter(|_| route.is_empty());
        let own = own.filter_map(|column| published.columns.iter().position(|it| it == column));
        let joins = route.joins("LEFT JOIN", 0, "t", &prefix);
        let key = live.key.iter().enumerate().map(|(at, column)| {
            let places = rule.columns.iter();
            let merged = places
                .take_while(|_| route.is_empty())
                .position(|it| it == column);
            let unmerged = live.key[..at]
                .iter()
                .filter(|it| !route.is_empty() || !rule.columns.contains(it));
            log_column(merged.unwrap_or(rule.columns.len() + unmerged.count()))
        });
        let is_logged = published.is_logged;
        let log = || LogSpec::new(live, rule, catalog, published.spec.tracking);
        let rule = TableRule {
            log: is_logged.then(log),
            log_id: 0,
            alias: alias(rule.route.len()),
            columns: rule
                .columns
                .iter()
                .map(|&it| root.columns[it].clone())
                .collect(),
            own: own.collect(),
            windows: windows.collect(),
            log_key: key.collect(),
        };
        (rule, joins)
    }

    /// The log table's name in SQL.
    pub(super) fn log_table(&self) -> String {
        LogSpec::log_table(self.log_id)
    }

    /// The query for the highest value of a window's column.
    pub(super) fn highest_sql(&self, window: usize) -> String {
        let (_, table, column) = &self.windows[window];
        format!("SELECT pg_catalog.max({}) FROM {table}", column.output(""))
    }
}

impl PublishedTable {
    /// The columns of which a rule's query, or that of one of its windows, yields values.
    pub(super) fn asked(&self, which: WhichRule, window: Option<usize>) -> &[PgColumn] {
        match (which, window) {
            (WhichRule::Held(rule), None) => &self.rules[rule].columns,
            (WhichRule::Held(rule), Some(window)) => {
                std::slice::from_ref(&self.rules[rule].windows[window].2)
            }
            (WhichRule::Written, _) => &self.written,
        }
    }

    /// A query for a rule's values with its results cast to the columns' types.
    pub(super) fn scope_sql(&self, inner: &str, which: WhichRule) -> String {
        let columns = self.asked(which, None);
        let names: Vec<String> = (0..columns.len()).map(log_column).collect();
        let outputs = columns.iter().zip(&names);
        let outputs = outputs.map(|(column, name)| {
            // A numeric's scale decides how it is spelled; a varchar's limit must not cut
            // a longer value down to another partition's.
            let cast = match column.kind {
                PostgresType::Numeric
                | PostgresType::Time
                | PostgresType::Timestamp
                | PostgresType::TimestampTz => &column.type_name,
                _ => &column.cast_name,
            };
            match column.kind {
                PostgresType::Other => format!("v.{name}::{cast}::text"),
                _ => format!("v.{name}::{cast}"),
            }
        });
        // The query may end in a comment: the parenthesis stands on a line of its own.
        format!(
            "SELECT DISTINCT {} FROM (\n{inner}\n) AS v({})",
            outputs.collect::<Vec<_>>().join(", "),
            names.join(", ")
        )
    }

    pub(super) fn from_compiled(
        published: &CompiledTable<'_>,
        catalog: &PostgresCatalog,
    ) -> PublishedTable {
        let live = &catalog.tables[published.table];
        let columns = published.columns.iter();
        let columns = columns.map(|it| PgColumn {
            is_filled: published.filled.contains(it),
            ..live.columns[*it].clone()
        });
        let columns: Vec<PgColumn> = columns.collect();
        let rules =
            (0..published.rules.len()).map(|it| TableRule::from_compiled(published, it, catalog));
        let (rules, joins): (Vec<TableRule>, Vec<String>) = rules.unzip();
        let extras = published.extras(catalog.tables()).into_iter().map(|extra| {
            let rule = &published.rules[extra.rule];
            let table = &catalog.tables[rule.table_at(published.table, extra.level)];
            let alias = match extra.level {
                0 => "t".to_owned(),
                level => format!("r{}_a{level}", extra.rule),
            };
            (alias, table.columns[extra.column].clone())
        });
        let written = published.rule(WhichRule::Written);
        let written = written.into_iter().flat_map(|rule| &rule.columns);
        PublishedTable {
            oid: live.oid,
            sql_name: live.sql_name.clone(),
            title: live.title.clone(),
            key: published.positions(&live.key).unwrap_or_default(),
            from: format!("{} t{}", live.sql_name, joins.concat()),
            extras: extras.collect(),
            direction: published.spec.direction,
            rules,
            written: written.map(|&it| live.columns[it].clone()).collect(),
            on_delete: on_delete(published),
            children: child_keys(published, catalog),
            effects: Effects {
                // Whether a partition has a trigger of its own is not asked in every upload.
                always: live.members.is_some()
                    || live.user_triggers
                    || live.columns.iter().any(|column| column.generated),
                on_delete: published.acts_on_delete,
                on_update: published.acts_on_update,
            },
            fingerprint: String::new(),
            row_estimate: live.row_estimate,
            columns,
        }
    }

    /// The key's columns, under the names that they have in another relation, as
    /// results in binary form.
    pub(super) fn key_outputs(&self, prefix: &str, names: &[String]) -> String {
        let outputs =
            self.key
                .iter()
                .zip(names)
                .map(|(&index, name)| match self.columns[index].kind {
                    PostgresType::Other => format!("{prefix}{name}::text"),
                    _ => format!("{prefix}{name}"),
                });
        outputs.collect::<Vec<_>>().join(", ")
    }

    /// [`Self::from`] as one side of a join.
    pub(super) fn joined(&self) -> String {
        match self.from.contains(" JOIN ") {
            true => format!("({})", self.from),
            false => self.from.clone(),
        }
    }

    /// A row of [`Self::from`] as it is read.
    pub(super) fn read(&self) -> String {
        let extras = self.extras.iter();
        let extras = extras.map(|(alias, column)| column.output(&format!("{alias}.")));
        let published = self.columns.iter().map(|column| column.output("t."));
        published.chain(extras).collect::<Vec<_>>().join(", ")
    }

    /// The columns of a row as it is read.
    pub(super) fn read_columns(&self) -> impl Iterator<Item = &PgColumn> {
        let extras = self.extras.iter().map(|(_, column)| column);
        self.columns.iter().chain(extras)
    }

    /// The rules by columns of the table's own, that are tracked.
    pub(super) fn own_rules(&self) -> impl Iterator<Item = &TableRule> {
        let rules = self.rules.iter();
        rules.filter(|rule| rule.log.is_some() && !rule.own.is_empty())
    }
}
