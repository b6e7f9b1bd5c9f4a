//! A publication compiled against the application's tables: its schema as remotes see
//! it, and the SQL that serves it.

use tidewater_protocol::{ColumnType, Table};

use super::catalog::SqliteCatalog;
use super::recorded_log::RecordedLog;
use super::route::Route;
use super::{quote, values};
use tidewater_centre::OnUnseenChildren;
use tidewater_centre::engine::catalog::TableInfo;
use tidewater_centre::engine::compile::{CompiledTable, WhichRule};
use tidewater_centre::engine::publication::ServedTable;
use tidewater_centre::engine::upload::target_table::OnDelete;

/// A publication as it is served.
pub(super) type Publication = tidewater_centre::engine::publication::Publication<PublishedTable>;

/// A table of a [`Publication`].
#[derive(Debug)]
pub(crate) struct PublishedTable {
    /// By which its rows are held.
    pub(super) rules: Vec<TableRule>,
    /// The names of the columns by which they are written, for people.
    written: Vec<String>,
    /// For each column: its declared type, for messages, and whether its affinity is
    /// TEXT.
    pub(super) declared: Vec<(String, bool)>,
    /// Types of key columns.
    pub(super) key_types: Vec<ColumnType>,
    /// What a delete does to published children.
    pub(super) on_delete: OnDelete,
    /// Whose foreign keys act on its deletes.
    pub(super) children: Vec<ChildKeys>,
    /// A failed statement may leave something behind.
    pub(super) guarded: bool,
    /// `SELECT` of rows as they are read, by key.
    pub(super) read_key: String,
    /// The table as `t`, with what its rules follow as far as that is there.
    pub(super) from: String,
    /// Conditions for the row of a key; the parameters are its values.
    pub(super) by_key: String,
    pub(super) delete_key: String,
    /// Overrides the table's own ON CONFLICT clauses, which could displace rows that
    /// the remote may not touch. Only where there are any: it would override those of
    /// the application's triggers as well.
    conflict_clause: &'static str,
    /// Its name, quoted.
    pub(super) name: String,
    /// Its name for people.
    pub(super) title: String,
    /// For each column that the centre fills where a remote leaves it NULL: its default.
    filled: Vec<Option<String>>,
}

/// A rule by which rows of a table are held.
#[derive(Debug)]
pub(super) struct TableRule {
    /// The change log, if changes are read from one.
    pub(super) log: Option<RecordedLog>,
    /// All rows as they are read, joined with what the rule follows, up to a `WHERE`.
    pub(super) select: String,
    /// The keys of the same rows.
    pub(super) select_keys: String,
    /// The number of the rows that have no key, and else would be among them; `None` where every row
    /// has one.
    pub(super) count_keyless: Option<String>,
    /// Conditions for the rows of one partition; the parameters are its values.
    pub(super) is_in_partition: String,
    /// Of the partition columns: their types, and whether their affinity is TEXT.
    pub(super) types: Vec<(ColumnType, bool)>,
    /// The names of the partition columns, for people.
    names: Vec<String>,
    /// The columns of the windows, with their tables' aliases and names.
    windows: Vec<(String, String, String)>,
    /// The keys that the log has, each once, with the row that is there now or NULLs; parameters:
    /// the position, the partition.
    pub(super) select_changes: String,
}

/// Looks for the children of a row.
#[derive(Debug)]
pub(super) struct ChildKeys {
    /// The keys of those that refer to the row with a key.
    pub(super) select: String,
    /// Whether they are rows of the same table.
    pub(super) is_same_table: bool,
}

impl ServedTable for PublishedTable {
    type Log = RecordedLog;

    fn sql_name(&self) -> String {
        self.name.clone()
    }

    fn logs(&self) -> Vec<&RecordedLog> {
        let logs = self.rules.iter().map(|rule| rule.log.as_ref());
        logs.flatten().collect()
    }

    fn log(&self, rule: usize) -> Option<i64> {
        self.rules[rule].log.as_ref().map(|log| log.id)
    }

    fn set_log(&mut self, rule: usize, id: i64) {
        if let Some(log) = &mut self.rules[rule].log {
            log.id = id;
            let rule = &mut self.rules[rule];
            rule.select_changes = rule.select_changes.replace(
                &quote(&super::state::log_table(0)),
                &quote(&super::state::log_table(id)),
            );
        }
    }
}

impl TableRule {
    /// The query for the highest value of a window's column.
    pub(super) fn highest_sql(&self, window: usize) -> String {
        let (_, table, column) = &self.windows[window];
        format!("SELECT max({column}) FROM {table}")
    }

    /// The column of a window, with its table's alias.
    pub(super) fn window_column(&self, window: usize) -> String {
        let (alias, _, column) = &self.windows[window];
        format!("{alias}.{column}")
    }

    /// The condition that the column of a window is at least, or less than, a parameter.
    pub(super) fn is_in_window(&self, window: usize, is_less: bool, number: usize) -> String {
        let (alias, _, column) = &self.windows[window];
        let operator = if is_less { "<" } else { ">=" };
        format!(" AND {alias}.{column} {operator} ?{number}")
    }
}

/// What the table at a level of a rule's route is called in [`PublishedTable::from`].
pub(super) fn alias(rule: usize, level: usize) -> String {
    match level {
        0 => "t".to_owned(),
        level => format!("r{rule}_a{level}"),
    }
}

/// How rows of a table are read, with what its rules follow.
struct RowReading<'r> {
    published: &'r CompiledTable<'r>,
    table: &'r Table,
    catalog: &'r SqliteCatalog,
    routes: Vec<Route>,
}

impl<'r> RowReading<'r> {
    fn new(
        published: &'r CompiledTable<'r>,
        table: &'r Table,
        catalog: &'r SqliteCatalog,
    ) -> RowReading<'r> {
        let rules = published.rules.iter();
        let routes = rules.map(|rule| Route::from_rule(published.table, rule, catalog));
        RowReading {
            published,
            table,
            catalog,
            routes: routes.collect(),
        }
    }

    /// The table as `t`, with what its rules follow; a rule by which rows are looked for has them
    /// all.
    fn from(&self, by: Option<usize>) -> String {
        let joins = self.routes.iter().enumerate().map(|(rule, route)| {
            let how = if by == Some(rule) {
                "JOIN"
            } else {
                "LEFT JOIN"
            };
            route.joins(how, 0, "t", &format!("r{rule}_"))
        });
        format!("{} t{}", quote(&self.table.name), joins.collect::<String>())
    }

    /// The columns of a row as it is read.
    fn columns(&self) -> String {
        let published = self.table.columns.iter();
        let published = published.map(|column| format!("t.{}", quote(&column.name)));
        let extras = self.published.extras(&self.catalog.infos);
        let extras = extras.into_iter().map(|extra| {
            let rule = &self.published.rules[extra.rule];
            let table = &self.catalog.infos[rule.table_at(self.published.table, extra.level)];
            let name = quote(&table.columns[extra.column].name);
            format!("{}.{name}", alias(extra.rule, extra.level))
        });
        published.chain(extras).collect::<Vec<_>>().join(", ")
    }

    fn key_names(&self) -> Vec<String> {
        let key = self.table.key.iter();
        key.map(|&index| self.table.columns[index].name.clone())
            .collect()
    }

    fn rule(&self, number: usize) -> TableRule {
        let (published, route) = (self.published, &self.routes[number]);
        let rule = &published.rules[number];
        let root = &self.catalog.infos[rule.root(published.table)];
        let deciding = || rule.columns.iter().map(|&it| &root.columns[it]);
        let deciding_alias = alias(number, rule.route.len());
        let conditions = deciding().enumerate().map(|(at, column)| {
            let column_type = column.column_type.clone().unwrap_or(ColumnType::Text);
            let name = format!("{deciding_alias}.{}", quote(&column.name));
            format!(
                " AND {}",
                equals(&name, column_type, &format!("?{}", at + 1))
            )
        });
        let types = deciding().map(|column| {
            let column_type = column.column_type.clone().unwrap_or(ColumnType::Text);
            (column_type, values::is_kept_as_text(&column.type_name))
        });
        let names: Vec<String> = deciding().map(|it| it.name.clone()).collect();
        let windows = rule.windows.iter().map(|window| {
            let table = &self.catalog.infos[rule.table_at(published.table, window.level)];
            let column = quote(&table.columns[window.column].name);
            (alias(number, window.level), quote(&table.name), column)
        });
        let log = RecordedLog {
            id: 0,
            table: self.table.name.clone(),
            partition: names.clone(),
            key: self.key_names(),
            by: route.names().into_iter().chain(names.clone()).collect(),
            route: route.clone(),
        };
        let key = self.key_names();
        let key: Vec<String> = key.iter().map(|it| format!("t.{}", quote(it))).collect();
        let own = published.table;
        let keyless = self.catalog.tables[own].has_no_key(&self.catalog.infos[own], "t");
        TableRule {
            select: format!(
                "SELECT {} FROM {} WHERE {}",
                self.columns(),
                self.from(Some(number)),
                not_null(key.iter())
            ),
            select_keys: format!(
                "SELECT {} FROM {} WHERE {}",
                key.join(", "),
                self.from(Some(number)),
                not_null(key.iter())
            ),
            count_keyless: keyless.map(|has_no_key| {
                let from = self.from(Some(number));
                format!("SELECT count(*) FROM {from} WHERE {has_no_key}")
            }),
            is_in_partition: conditions.collect(),
            types: types.collect(),
            names,
            windows: windows.collect(),
            select_changes: self.select_changes(&log),
            log: published.is_logged.then_some(log),
        }
    }

    /// See [`TableRule::select_changes`].
    fn select_changes(&self, log: &RecordedLog) -> String {
        let keys = log.key_columns();
        let partition = log.partition_columns().into_iter().enumerate();
        let partition =
            partition.map(|(number, column)| format!(" AND {column} = ?{}", number + 2));
        let join = keys.iter().zip(&self.table.key).map(|(key, &index)| {
            let column = &self.table.columns[index];
            let name = format!("t.{}", quote(&column.name));
            equals(&name, column.column_type, &format!("l.{key}"))
        });
        let from = self.from(None);
        let rows = match from.contains(" JOIN ") {
            true => format!("({from})"),
            false => from,
        };
        format!(
            "SELECT {keys}, {columns} FROM (SELECT DISTINCT {bare} FROM {log} WHERE id > ?1{partition} \
             AND {not_null}) l LEFT JOIN {rows} ON {join}",
            keys = keys
                .iter()
                .map(|key| format!("l.{key}"))
                .collect::<Vec<_>>()
                .join(", "),
            columns = self.columns(),
            bare = keys.join(", "),
            log = quote(&super::state::log_table(log.id)),
            partition = partition.collect::<String>(),
            not_null = not_null(keys.iter()),
            join = join.collect::<Vec<_>>().join(" AND "),
        )
    }
}

/// A column compared with something; text to the byte, whatever its collation: once by that, for its
/// index, and once to the byte.
pub(super) fn equals(name: &str, column_type: ColumnType, value: &str) -> String {
    match column_type {
        ColumnType::Text => format!("{name} = {value} AND {name} = {value} COLLATE BINARY"),
        _ => format!("{name} = {value}"),
    }
}

impl PublishedTable {
    pub(super) fn new(
        published: &CompiledTable<'_>,
        table: &Table,
        catalog: &SqliteCatalog,
    ) -> PublishedTable {
        let (info, live) = (
            &catalog.infos[published.table],
            &catalog.tables[published.table],
        );
        let name = quote(&table.name);
        let names: Vec<_> = table
            .columns
            .iter()
            .map(|column| quote(&column.name))
            .collect();
        let reading = RowReading::new(published, table, catalog);
        let by_key = |prefix: &str| {
            let terms = table.key.iter().enumerate().map(|(number, &index)| {
                let name = format!("{prefix}{}", names[index]);
                let column_type = table.columns[index].column_type;
                equals(&name, column_type, &format!("?{}", number + 1))
            });
            terms.collect::<Vec<_>>().join(" AND ")
        };
        let conflict_clause = if live.has_conflict_clauses {
            " OR ABORT"
        } else {
            ""
        };
        let declared = published.columns.iter().map(|&index| {
            let declared = info.columns[index].type_name.clone();
            let as_text = values::is_kept_as_text(&declared);
            (declared, as_text)
        });
        let declared: Vec<(String, bool)> = declared.collect();
        let column_types = |indexes: &[usize]| {
            let types = indexes
                .iter()
                .map(|&index| table.columns[index].column_type);
            types.collect::<Vec<_>>()
        };
        let written = published.rule(WhichRule::Written);
        let written = written.into_iter().flat_map(|rule| &rule.columns);
        PublishedTable {
            written: written.map(|&it| info.columns[it].name.clone()).collect(),
            rules: (0..published.rules.len())
                .map(|it| reading.rule(it))
                .collect(),
            declared,
            key_types: column_types(&table.key),
            on_delete: on_delete(published),
            children: child_keys(published, catalog),
            guarded: live.has_triggers || live.has_conflict_clauses,
            read_key: format!(
                "SELECT {} FROM {} WHERE {}",
                reading.columns(),
                reading.from(None),
                by_key("t.")
            ),
            from: reading.from(None),
            by_key: by_key("t."),
            delete_key: format!("DELETE FROM {name} WHERE {}", by_key("")),
            conflict_clause,
            name,
            title: info.title.clone(),
            filled: published
                .columns
                .iter()
                .map(|&index| {
                    let default = live.default_of(index)?;
                    let is_filled = published.filled.contains(&index);
                    is_filled.then(|| default.to_owned())
                })
                .collect(),
        }
    }

    /// The names of the columns of a rule, for people.
    pub(super) fn names(&self, which: WhichRule) -> &[String] {
        match which {
            WhichRule::Held(rule) => &self.rules[rule].names,
            WhichRule::Written => &self.written,
        }
    }

    /// Whether rows are inserted with defaults where remotes said nothing.
    pub(super) fn fills(&self) -> bool {
        self.filled.iter().any(Option::is_some)
    }

    /// `INSERT` of some columns.
    pub(super) fn insert(&self, table: &Table, columns: &[usize]) -> String {
        let names = columns
            .iter()
            .map(|&index| quote(&table.columns[index].name));
        let parameters = columns.iter().enumerate().map(|(at, &index)| {
            let number = at + 1;
            match &self.filled[index] {
                Some(default) => format!("coalesce(?{number}, ({default}))"),
                None => format!("?{number}"),
            }
        });
        format!(
            "INSERT{} INTO {} ({}) VALUES ({})",
            self.conflict_clause,
            self.name,
            names.collect::<Vec<_>>().join(", "),
            parameters.collect::<Vec<_>>().join(", ")
        )
    }

    /// `UPDATE` of some columns; the key's parameters follow theirs.
    pub(super) fn update(&self, table: &Table, columns: &[usize]) -> String {
        let assignments = columns.iter().enumerate().map(|(number, &index)| {
            format!("{} = ?{}", quote(&table.columns[index].name), number + 1)
        });
        let key = table.key.iter().enumerate().map(|(number, &index)| {
            let number = columns.len() + number + 1;
            format!("{} = ?{number}", quote(&table.columns[index].name))
        });
        format!(
            "UPDATE{} {} SET {} WHERE {}",
            self.conflict_clause,
            self.name,
            assignments.collect::<Vec<_>>().join(", "),
            key.collect::<Vec<_>>().join(" AND ")
        )
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

fn child_keys(published: &CompiledTable<'_>, catalog: &SqliteCatalog) -> Vec<ChildKeys> {
    let infos = &catalog.infos;
    let parent = &infos[published.table];
    let children = published.children.iter().map(|children| {
        let child = &infos[children.table];
        let names = |info: &TableInfo, columns: &[usize], prefix: &str| {
            let names = columns.iter();
            let names = names.map(|&it| format!("{prefix}{}", quote(&info.columns[it].name)));
            names.collect::<Vec<_>>()
        };
        let referring = names(child, &children.columns, "c.");
        let referred = names(parent, &children.parent_columns, "p.");
        let joined = referred.iter().zip(&referring);
        // By the collation of the parent's column, as the foreign key does.
        let joined = joined.map(|(referred, referring)| format!("{referred} = {referring}"));
        let key = names(parent, &parent.key, "p.");
        let key = key
            .iter()
            .zip(1..)
            .map(|(name, at)| format!("{name} = ?{at}"));
        ChildKeys {
            select: format!(
                "SELECT {} FROM {} p JOIN {} c ON {} WHERE {}",
                names(child, &child.key, "c.").join(", "),
                quote(&parent.name),
                quote(&child.name),
                joined.collect::<Vec<_>>().join(" AND "),
                key.collect::<Vec<_>>().join(" AND ")
            ),
            is_same_table: children.table == published.table,
        }
    });
    children.collect()
}

fn not_null<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let terms: Vec<_> = names.map(|name| format!("{name} IS NOT NULL")).collect();
    terms.join(" AND ")
}
