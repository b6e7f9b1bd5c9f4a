//! The rules of a table, compiled: by which columns of which table its rows are told apart.
//!
//! A table that follows another one has that one's rules, with the way to it along foreign keys:
//! its *route*. What decides is at the end of it.

use std::collections::BTreeSet;

use tidewater_protocol::ColumnType;

use super::{named_columns, wrong};
use crate::engine::catalog::{ForeignKeyInfo, TableInfo, named};
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::{PublicationSpec, RuleBy, TableSpec, WindowLength, WindowSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// A rule by which rows of a table are held.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    /// From the table to the one that decides; empty if that is itself.
    pub route: Vec<Reach>,
    /// The columns that are partitioned by: of the table at the end of the route.
    pub columns: Vec<usize>,
    /// The query for the values that a user holds; `None` for everyone.
    pub values: Option<String>,
    /// Only rows in these.
    pub windows: Vec<CompiledWindow>,
}

/// A step along a foreign key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The columns that refer, of the table before.
    pub columns: Vec<usize>,
    /// The table that is referred to, by its index in the catalog.
    pub parent: usize,
    /// Its columns.
    pub parent_columns: Vec<usize>,
    /// Whether a row may be there before the one that it refers to.
    pub is_deferrable: bool,
}

/// A window of a rule.
#[derive(Clone, Debug)]
pub struct CompiledWindow {
    /// How many steps along the route its table is.
    pub level: usize,
    /// The column, of that table.
    pub column: usize,
    /// How far it reaches back.
    pub last: WindowLength,
}

impl CompiledRule {
    /// The columns that decide anything of the table at a level of the route, which is 1 or above:
    /// those that are referred to, those that refer on, those that are partitioned by, and windows'.
    pub fn watched_columns(&self, level: usize) -> Vec<usize> {
        let mut watched = self.route[level - 1].parent_columns.clone();
        watched.extend(self.route.get(level).into_iter().flat_map(|it| &it.columns));
        if level == self.route.len() {
            watched.extend(&self.columns);
        }
        let windows = self.windows.iter().filter(|it| it.level == level);
        watched.extend(windows.map(|it| it.column));
        watched.sort_unstable();
        watched.dedup();
        watched
    }

    /// The table at some place of the route; `own` is the first.
    pub fn table_at(&self, own: usize, level: usize) -> usize {
        match level {
            0 => own,
            level => self.route[level - 1].parent,
        }
    }

    /// The table that decides.
    pub fn root(&self, own: usize) -> usize {
        self.table_at(own, self.route.len())
    }

    /// Drops what of the route decides nothing.
    fn shortened(mut self) -> CompiledRule {
        if self.values.is_none() {
            let last = self.windows.iter().map(|it| it.level).max();
            self.route.truncate(last.unwrap_or(0));
        }
        self
    }
}

/// The publication whose rules are compiled.
pub(super) struct Rules<'a> {
    pub(super) spec: &'a PublicationSpec,
    pub(super) catalog: &'a [TableInfo],
    /// The tables of the publication, by their indexes in the catalog.
    pub(super) tables: Vec<usize>,
}

impl Rules<'_> {
    /// The rules of a table of the publication, by its number there.
    ///
    /// # Errors
    /// [`CentreError::Configuration`], with the place.
    pub(super) fn compile_table(&self, number: usize) -> Result<Vec<CompiledRule>> {
        self.compiled(number, &mut Vec::new())
    }

    fn place(&self, number: usize) -> String {
        super::place(self.spec, &self.spec.tables[number])
    }

    /// `below` are the tables that follow this one.
    fn compiled(&self, number: usize, below: &mut Vec<usize>) -> Result<Vec<CompiledRule>> {
        let spec = &self.spec.tables[number];
        let place = self.place(number);
        if below.contains(&number) {
            let circle = below.iter().chain([&number]);
            let names: Vec<&str> = circle.map(|&it| &*self.spec.tables[it].name).collect();
            return Err(wrong(
                format!("{place} follows itself: {}", names.join(" -> ")),
                "let one of them be partitioned by columns of its own",
            ));
        }
        below.push(number);
        let mut rules = Vec::new();
        for rule in &spec.partition {
            let found = match &rule.by {
                RuleBy::Everyone => vec![CompiledRule {
                    route: Vec::new(),
                    columns: Vec::new(),
                    values: None,
                    windows: Vec::new(),
                }],
                RuleBy::Columns { columns, values } => vec![CompiledRule {
                    route: Vec::new(),
                    columns: self.partition(&place, number, columns)?,
                    values: Some(values.clone()),
                    windows: Vec::new(),
                }],
                RuleBy::Follows { table, by } => {
                    self.followed(&place, number, (table, by.as_deref()), below)?
                }
            };
            let window = rule.window.as_ref();
            let window = window.map(|it| self.window(&place, number, it));
            let window = window.transpose()?;
            rules.extend(found.into_iter().map(|mut rule| {
                rule.windows.extend(window.clone());
                rule.shortened()
            }));
        }
        below.pop();
        Ok(rules)
    }

    /// The rules of a table that is followed, seen from the one that follows.
    fn followed(
        &self,
        place: &str,
        number: usize,
        (name, by): (&str, Option<&[String]>),
        below: &mut Vec<usize>,
    ) -> Result<Vec<CompiledRule>> {
        let parent = self.number(place, name)?;
        let route = self.route(place, number, parent, (name, by))?;
        let rules = self.compiled(parent, below)?;
        let seen = rules.into_iter().map(|mut rule| {
            for window in &mut rule.windows {
                window.level += route.len();
            }
            rule.route = route.iter().cloned().chain(rule.route).collect();
            rule
        });
        Ok(seen.collect())
    }

    /// The number of a table that is followed.
    fn number(&self, place: &str, name: &str) -> Result<usize> {
        let meant = named(self.catalog, name);
        let found = meant
            .iter()
            .find_map(|it| self.tables.iter().position(|table| table == it));
        found.ok_or_else(|| {
            let tables = self.spec.tables.iter().map(|it| &*it.name);
            let hint = match nearest(name, tables) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "follow a table of the same publication, or add that one to it".into(),
            };
            wrong(
                format!("{place} follows {name:?}, which the publication does not have"),
                hint,
            )
        })
    }

    /// The way from a table to one that it follows: the one foreign key to it, or the shortest way
    /// through tables that the publication does not have.
    fn route(
        &self,
        place: &str,
        number: usize,
        parent: usize,
        (name, by): (&str, Option<&[String]>),
    ) -> Result<Vec<Reach>> {
        let (own, goal) = (self.tables[number], self.tables[parent]);
        let info = &self.catalog[own];
        let first: Vec<&ForeignKeyInfo> = match by {
            None => info.references.iter().collect(),
            Some(by) => {
                let wanted: BTreeSet<usize> =
                    named_columns(place, info, by, "by")?.into_iter().collect();
                let is_meant = |it: &&ForeignKeyInfo| {
                    it.columns.iter().copied().collect::<BTreeSet<_>>() == wanted
                };
                info.references.iter().filter(is_meant).collect()
            }
        };
        let mut found: Vec<Vec<Reach>> = Vec::new();
        let mut ways: Vec<Vec<Reach>> = first
            .into_iter()
            .map(|it| vec![Reach::from_foreign_key(it)])
            .collect();
        let mut seen = BTreeSet::from([own]);
        while found.is_empty() && !ways.is_empty() {
            let mut next = Vec::new();
            let mut reached = BTreeSet::new();
            for way in ways {
                let at = way[way.len() - 1].parent;
                if at == goal {
                    found.push(way);
                } else if !self.tables.contains(&at) && !seen.contains(&at) {
                    reached.insert(at);
                    next.extend(self.catalog[at].references.iter().map(|reference| {
                        let reach = Reach::from_foreign_key(reference);
                        way.iter().cloned().chain([reach]).collect::<Vec<Reach>>()
                    }));
                }
            }
            seen.extend(reached);
            ways = next;
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 if own == goal => Err(wrong(
                format!("{place} follows itself"),
                "partition it by columns of its own",
            )),
            0 => Err(wrong(
                format!("{place} follows {name:?}, and no foreign key leads there"),
                match by {
                    Some(_) => {
                        "name the columns of a foreign key in `by`, or leave it out".to_owned()
                    }
                    None => format!(
                        "declare one: ALTER TABLE ... ADD FOREIGN KEY ... REFERENCES {name}, or \
                         partition by columns of its own"
                    ),
                },
            )),
            _ => {
                let keys = found.iter().map(|way| {
                    let names = way[0].columns.iter();
                    let names = names.map(|&it| format!("{:?}", info.columns[it].name));
                    format!("by = [{}]", names.collect::<Vec<_>>().join(", "))
                });
                let mut keys: Vec<String> = keys.collect();
                keys.dedup();
                Err(wrong(
                    format!("{place} follows {name:?}, to which several foreign keys lead"),
                    match keys.len() {
                        1 => "follow a table on the way, which has to be published for that".into(),
                        _ => format!("write one of {}", keys.join(", ")),
                    },
                ))
            }
        }
    }

    fn partition(&self, place: &str, number: usize, columns: &[String]) -> Result<Vec<usize>> {
        let (spec, table) = (&self.spec.tables[number], self.tables[number]);
        deciding_columns(place, spec, &self.catalog[table], columns, "partition")
    }

    fn window(&self, place: &str, number: usize, window: &WindowSpec) -> Result<CompiledWindow> {
        let info = &self.catalog[self.tables[number]];
        let names = std::slice::from_ref(&window.column);
        let column = named_columns(place, info, names, "window")?[0];
        let of_column = &info.columns[column];
        let is_time = matches!(
            of_column.column_type,
            Ok(ColumnType::Date | ColumnType::Timestamp | ColumnType::TimestampTz)
        );
        let is_number = of_column.column_type == Ok(ColumnType::Integer);
        let (name, type_name) = (&of_column.name, &of_column.type_name);
        match window.last {
            WindowLength::Time(..) if is_time => {}
            WindowLength::Number(_) if is_number => {}
            WindowLength::Time(..) if is_number => {
                return Err(wrong(
                    format!("{place}: the window's column {name:?} is a number ({type_name})"),
                    "write last = 1000 for the rows from the highest number less 1000 on",
                ));
            }
            WindowLength::Number(_) if is_time => {
                return Err(wrong(
                    format!("{place}: the window's column {name:?} is a time ({type_name})"),
                    "write last = \"90 days\"",
                ));
            }
            _ => {
                return Err(wrong(
                    format!(
                        "{place}: the window's column {name:?} is neither a date nor an integer \
                         ({type_name})"
                    ),
                    "name a column that is a date, a timestamp or an integer",
                ));
            }
        }
        Ok(CompiledWindow {
            level: 0,
            column,
            last: window.last,
        })
    }
}

/// The columns of a table by which its rows are told apart; `what` they are for people.
pub(super) fn deciding_columns(
    place: &str,
    spec: &TableSpec,
    table: &TableInfo,
    columns: &[String],
    what: &str,
) -> Result<Vec<usize>> {
    if columns.is_empty() {
        return Err(wrong(
            format!("{place}: the {what} has no columns"),
            "name them, or write partition = \"everyone\"",
        ));
    }
    let found = named_columns(place, table, columns, what)?;
    for &index in &found {
        let column = &table.columns[index];
        let name = &column.name;
        if column.is_ambiguous {
            return Err(wrong(
                format!(
                    "{place}: {name:?} of the type {} cannot be a {what} column: equal values can \
                     be spelled differently",
                    column.type_name
                ),
                format!("name an integer, text, uuid, date or numeric(p,s) column in `{what}`"),
            ));
        }
        if column.is_generated && spec.direction.uploads() {
            return Err(wrong(
                format!(
                    "{place}: the {what} column {name:?} is generated: what a remote says about \
                     it does not bind the centre, which could put its rows into the partitions of \
                     others"
                ),
                "name a column that is written, or let the table be downloaded only: direction = \
                 \"download\"",
            ));
        }
    }
    Ok(found)
}

impl Reach {
    fn from_foreign_key(reference: &ForeignKeyInfo) -> Reach {
        Reach {
            columns: reference.columns.clone(),
            parent: reference.parent,
            parent_columns: reference.parent_columns.clone(),
            is_deferrable: reference.is_deferrable,
        }
    }
}
