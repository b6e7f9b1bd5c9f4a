//! The way from a tracked table to the one that decides who holds its rows: the joins, and the
//! triggers on the tables along it.
//!
//! An entry of the log carries the values of the table at the end. Who writes a row of the tracked
//! table locks those above it as a foreign key does (`FOR KEY SHARE`), which hinders nobody but who
//! moves one of them: that one waits for all who have written below, and logs what is below then,
//! under the old values and the new ones. Whoever writes below afterwards waits for him. A row above
//! that is deleted is logged for before it goes: what cascades below finds it gone.

use super::catalog::{PostgresCatalog, PostgresTable};
use super::quote::{ident, literal, qualified};
use super::state::SCHEMA;
use super::triggers::{LogSpec, function_of, marker};
use crate::column::PgColumn;
use tidewater_centre::engine::compile::{CompiledRule, Reach};
use tidewater_centre::engine::sql::rule_route::{alias_at, equal_columns};

/// The way; empty where the tracked table itself decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    steps: Vec<RouteStep>,
}

/// A step up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteStep {
    /// The columns that refer, of the table before, quoted.
    columns: Vec<String>,
    /// The table that is referred to.
    pub(super) oid: u32,
    pub(super) table: String,
    pub(super) title: String,
    /// Its columns that are referred to.
    parent_columns: Vec<String>,
    /// All its columns that decide anything.
    watched: Vec<WatchedColumn>,
    /// Whether what is below may be there before it is.
    is_late: bool,
}

/// A column that triggers look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchedColumn {
    pub(super) name: String,
    pub(super) type_oid: u32,
    /// How values are compared byte by byte.
    collate: &'static str,
}

impl Route {
    pub(super) fn from_rule(
        own: &PostgresTable,
        rule: &CompiledRule,
        catalog: &PostgresCatalog,
    ) -> Route {
        let mut steps = Vec::with_capacity(rule.route.len());
        let mut below = own;
        for (
            index,
            Reach {
                columns,
                parent,
                parent_columns,
                is_deferrable,
            },
        ) in rule.route.iter().enumerate()
        {
            let table = &catalog.tables[*parent];
            let sql = |table: &PostgresTable, columns: &[usize]| {
                let columns = columns.iter().map(|&it| table.columns[it].sql.clone());
                columns.collect::<Vec<String>>()
            };
            let level = index + 1;
            let watched = rule
                .watched_columns(level)
                .into_iter()
                .map(|it| &table.columns[it]);
            steps.push(RouteStep {
                columns: sql(below, columns),
                oid: table.oid,
                table: table.sql_name.clone(),
                title: table.title.clone(),
                parent_columns: sql(table, parent_columns),
                watched: watched.map(WatchedColumn::from_column).collect(),
                is_late: *is_deferrable || table.members.is_some(),
            });
            below = table;
        }
        Route { steps }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The tables along it.
    pub(super) fn steps(&self) -> &[RouteStep] {
        &self.steps
    }

    /// The names that tell it from other ways.
    pub(super) fn names(&self) -> Vec<String> {
        let steps = self.steps.iter();
        let steps = steps.map(|it| format!("{} -> {}", it.columns.join(", "), it.title));
        steps.collect()
    }

    /// The alias of what decides, where the tracked table is `own`.
    pub(super) fn root(&self, own: &str) -> String {
        match self.steps.len() {
            0 => own.to_owned(),
            length => alias_at(length),
        }
    }

    /// ` JOIN`s of the tables above the one at a level, which has this alias.
    pub(super) fn joins(&self, how: &str, level: usize, alias: &str, prefix: &str) -> String {
        let mut below = alias.to_owned();
        let steps = self
            .steps
            .iter()
            .enumerate()
            .skip(level)
            .map(|(index, step)| {
                let above = format!("{prefix}{}", alias_at(index + 1));
                let on = equal_columns(&below, &step.columns, &above, &step.parent_columns);
                below.clone_from(&above);
                format!(" {how} {} {above} ON {on}", step.table)
            });
        steps.collect()
    }

    /// ` FOR KEY SHARE` of the tables above the one at a level, or another lock of them.
    fn lock(&self, level: usize, how: &str) -> String {
        let above: Vec<String> = (level + 1..=self.steps.len()).map(alias_at).collect();
        match above.is_empty() {
            true => String::new(),
            false => format!(" FOR {how} OF {}", above.join(", ")),
        }
    }

    /// The statement that holds what is above rows unless it is held already: `query` gives the
    /// query that locks it so.
    ///
    /// A lock that was waited for comes with the row as it was before, so it is taken by a statement
    /// of its own, and the next one sees the row as it is. Where a transaction sees one snapshot all
    /// along, it must end where somebody has moved a row since: then no weaker lock fails.
    fn hold(is_held: &str, query: impl Fn(&str) -> String) -> String {
        let (moving, still) = (query("KEY SHARE"), query("SHARE"));
        format!(
            "IF pg_catalog.current_setting('transaction_isolation') NOT LIKE 'read %' \
             THEN PERFORM {still}; ELSIF NOT {is_held} THEN PERFORM {moving}; END IF;"
        )
    }

    /// Holds what is above rows of the tracked table, as [`Self::entries`] takes them. Where foreign
    /// keys are `checked` before triggers fire, an insert holds the one row above it by its own.
    pub(super) fn hold_above_own(&self, from: &str, checked: bool) -> String {
        let first = alias_at(1);
        let step = &self.steps[0];
        let is_held = match checked && self.steps.len() == 1 && !step.is_late {
            true => "(TG_OP = 'INSERT')",
            false => "false",
        };
        Self::hold(is_held, |how| {
            format!(
                "1 FROM {from} CROSS JOIN LATERAL (SELECT 1 FROM {} {first}{} WHERE {}{} \
                 OFFSET 0) held",
                step.table,
                self.joins("JOIN", 1, &first, ""),
                equal_columns("r", &step.columns, &first, &step.parent_columns),
                self.lock(0, how)
            )
        })
    }

    /// Holds what is above rows of the table at a level, as [`Self::below`] takes them.
    fn hold_above(&self, level: usize, rows: &[String]) -> String {
        if level == self.steps.len() {
            return String::new();
        }
        let from = self.values(level, rows);
        Self::hold("false", |how| {
            let above = self.joins("JOIN", level, "r", "");
            format!("1 FROM {from}{above}{}", self.lock(level, how))
        })
    }

    /// A relation `r` of values of the watched columns at a level.
    fn values(&self, level: usize, rows: &[String]) -> String {
        let watched = self.steps[level - 1].watched.iter();
        let names: Vec<String> = watched.map(|it| ident(&it.name)).collect();
        format!("(VALUES {}) AS r({})", rows.join(", "), names.join(", "))
    }

    /// The entries of rows of the tracked table: `from` has them under the alias `r`, with their
    /// keys and the columns that refer.
    ///
    /// Each row's way up is looked up by itself. A plan is kept for a session: one that was made for
    /// many rows would read whole tables for one.
    pub(super) fn entries(&self, spec: &LogSpec, from: &str) -> String {
        let (root, first) = (self.root("r"), alias_at(1));
        let step = &self.steps[0];
        format!(
            "SELECT {} FROM {from} CROSS JOIN LATERAL (SELECT {} FROM {} {first}{} WHERE {}{} \
             OFFSET 0) {root}",
            spec.entry(&format!("{root}."), "r."),
            spec.deciding(&format!("{root}.")),
            step.table,
            self.joins("JOIN", 1, &first, ""),
            equal_columns("r", &step.columns, &first, &step.parent_columns),
            self.lock(0, "KEY SHARE")
        )
    }

    /// The entries of everything below rows of the table at a level: `rows` are lists of values of
    /// its watched columns.
    fn below(&self, spec: &LogSpec, level: usize, rows: &[String]) -> String {
        let step = &self.steps[level - 1];
        let mut from = self.values(level, rows);
        let mut above = "r".to_owned();
        let mut keys = &step.parent_columns;
        for lower in (0..level).rev() {
            let (alias, columns) = (alias_at(lower), &self.steps[lower].columns);
            let table = match lower {
                0 => &spec.table,
                lower => &self.steps[lower - 1].table,
            };
            let on = equal_columns(&alias, columns, &above, keys);
            from.push_str(&format!(" JOIN {table} {alias} ON {on}"));
            if lower > 0 {
                keys = &self.steps[lower - 1].parent_columns;
            }
            above = alias;
        }
        let root = match level == self.steps.len() {
            true => "r".to_owned(),
            false => alias_at(self.steps.len()),
        };
        format!(
            "SELECT {} FROM {from}{}{}",
            spec.entry(&format!("{root}."), &format!("{}.", alias_at(0))),
            self.joins("JOIN", level, "r", ""),
            self.lock(level, "KEY SHARE")
        )
    }

    /// The function of the triggers on the table at a level.
    pub(super) fn function(&self, spec: &LogSpec, id: i32, level: usize) -> String {
        let step = &self.steps[level - 1];
        let marker = marker(id);
        // The columns that are referred to of one row, the others of another.
        let mixed = |keys: &str, others: &str| {
            let values = step.watched.iter().map(|it| {
                let name = ident(&it.name);
                let row = match step.parent_columns.contains(&name) {
                    true => keys,
                    false => others,
                };
                format!("{row}.{name}")
            });
            format!("({})", values.collect::<Vec<_>>().join(", "))
        };
        let log = |rows: &[String]| spec.insert(id, &self.below(spec, level, rows));
        let (old, new) = (mixed("OLD", "OLD"), mixed("NEW", "NEW"));
        let crossed = [mixed("NEW", "OLD"), mixed("OLD", "NEW")];
        let locked = step
            .parent_columns
            .iter()
            .map(|it| format!("x.{it} = NEW.{it}"));
        let body = format!(
            "IF NOT {fits} THEN {marker} \
             ELSIF TG_OP = 'DELETE' THEN {hold_old} {log_old} \
             ELSIF TG_OP = 'INSERT' THEN {hold_new} {log_new} \
             ELSE PERFORM 1 FROM {table} x WHERE {locked} FOR UPDATE; {hold_both} {log_both} \
             IF {is_renamed} THEN {log_crossed} END IF; \
             IF pg_catalog.current_setting('transaction_isolation') NOT LIKE 'read %' \
             THEN {marker} END IF; END IF; \
             IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NULL;",
            fits = spec.fits(level),
            hold_old = self.hold_above(level, std::slice::from_ref(&old)),
            hold_new = self.hold_above(level, std::slice::from_ref(&new)),
            hold_both = self.hold_above(level, &[old.clone(), new.clone()]),
            log_old = log(std::slice::from_ref(&old)),
            log_new = log(std::slice::from_ref(&new)),
            log_both = log(&[old.clone(), new.clone()]),
            log_crossed = log(&crossed),
            table = step.table,
            locked = locked.collect::<Vec<_>>().join(" AND "),
            is_renamed = differ(step.referred()),
        );
        function_of(&Self::function_name(id, level), &body)
    }

    fn function_name(id: i32, level: usize) -> String {
        qualified(SCHEMA, &format!("log_{id}_above_{level}"))
    }

    /// The triggers on the table at a level: their names and the statements that make them.
    pub(super) fn triggers(&self, id: i32, level: usize, always: bool) -> Vec<(String, String)> {
        let step = &self.steps[level - 1];
        let mut wanted = vec![
            // After all others of its kind: what they veto does not happen.
            (
                format!("~tidewater_{id}_{level}_gone"),
                "BEFORE DELETE",
                String::new(),
            ),
            (
                format!("tidewater_{id}_{level}_moved"),
                "AFTER UPDATE",
                format!("WHEN ({}) ", differ(&step.watched)),
            ),
        ];
        if step.is_late {
            let name = format!("tidewater_{id}_{level}_late");
            wanted.push((name, "AFTER INSERT", String::new()));
        }
        let triggers = wanted.into_iter().map(|(name, event, when)| {
            let (quoted, table) = (ident(&name), &step.table);
            let mut sql = format!(
                "CREATE TRIGGER {quoted} {event} ON {table} FOR EACH ROW {when}EXECUTE FUNCTION {}();",
                Self::function_name(id, level)
            );
            if always {
                sql.push_str(&format!("\nALTER TABLE {table} ENABLE ALWAYS TRIGGER {quoted};"));
            }
            (name, sql)
        });
        triggers.collect()
    }

    /// The conditions that the tables along it have the columns that functions name, but for the one
    /// at a level, on whose row (or on that of a partition of it) the trigger fires. Each is looked
    /// up by the catalog's index: a statement of one row waits for all of them.
    pub(super) fn conditions(&self, own: &LogSpec, level: usize) -> Vec<String> {
        let tables = std::iter::once((own.table_oid, &own.table, &own.watched));
        let steps = self.steps.iter();
        let steps = steps.map(|it| (it.oid, &it.table, &it.watched));
        let mut conditions = Vec::new();
        for (index, (oid, table, columns)) in tables.chain(steps).enumerate() {
            let relation = match index == level {
                true => "TG_RELID".to_owned(),
                false => {
                    let text = literal(table).unwrap_or_default();
                    conditions.push(format!("pg_catalog.to_regclass({text}) = {oid}::oid"));
                    format!("{oid}::oid")
                }
            };
            for column in columns {
                // Names of columns have no NUL.
                let name = literal(&column.name).unwrap_or_default();
                conditions.push(format!(
                    "(SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = \
                     {relation} AND a.attname = {name}) = {}::oid",
                    column.type_oid
                ));
            }
        }
        conditions
    }
}

/// Whether one of the columns differs between the old row and the new one.
pub(super) fn differ<'w>(columns: impl IntoIterator<Item = &'w WatchedColumn>) -> String {
    let columns = columns.into_iter().map(|column| {
        let (name, collate) = (ident(&column.name), column.collate);
        format!("OLD.{name}{collate} IS DISTINCT FROM NEW.{name}{collate}")
    });
    columns.collect::<Vec<_>>().join(" OR ")
}

impl WatchedColumn {
    pub(super) fn from_column(column: &PgColumn) -> WatchedColumn {
        WatchedColumn {
            name: column.name.clone(),
            type_oid: column.type_oid,
            collate: match column.collation {
                Some(_) => " COLLATE \"C\"",
                None => "",
            },
        }
    }

    /// The column of the alias `r`, to be compared byte by byte.
    pub(super) fn exact(&self) -> String {
        format!("r.{}{}", ident(&self.name), self.collate)
    }
}

impl RouteStep {
    /// The columns that are referred to.
    fn referred(&self) -> impl Iterator<Item = &WatchedColumn> {
        let columns = self.watched.iter();
        columns.filter(|it| self.parent_columns.contains(&ident(&it.name)))
    }
}
