//! Publications, compiled against the catalog: the schema as remotes see it, and what of each
//! table is published.
//!
//! Pure: no SQL is run here. The errors are the operator's, so they say where in the
//! configuration something is wrong and what to write instead.

mod offline;
mod rules;
#[cfg(test)]
mod tests;
mod writes;

use tidewater_protocol::{
    Column, ColumnType, ForeignKey, IdentityColumn, PublicationSchema, Table,
};

pub use self::rules::{CompiledRule, CompiledWindow, Reach};
pub use self::writes::CompiledWrites;

use self::rules::Rules;
use super::catalog::{TableInfo, named};
use super::resolve::{self, Resolver};
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::{
    HandledSpec, PublicationSpec, TableSpec, TrackingMode, UploadMode, check_names,
};

type Result<T> = std::result::Result<T, CentreError>;

/// So many tables of the database an error names.
const NAMED: usize = 20;

/// Rows that go with others, or become others, when those are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CascadingChildren {
    /// Their table's index in the catalog.
    pub table: usize,
    /// The columns that refer, as indexes into that table's.
    pub columns: Vec<usize>,
    /// The columns that they refer to, as indexes into the parent's.
    pub parent_columns: Vec<usize>,
}

/// A table of a publication.
#[derive(Clone, Debug)]
pub struct CompiledTable<'s> {
    /// The table as it is configured.
    pub spec: &'s TableSpec,
    /// Where the table stands in the configuration, for errors.
    pub place: String,
    /// The table's index in the catalog.
    pub table: usize,
    /// The published columns, as indexes into the catalog's.
    pub columns: Vec<usize>,
    /// The rules by which its rows are held.
    pub rules: Vec<CompiledRule>,
    /// What remotes may write of them.
    pub writes: CompiledWrites,
    /// What becomes of rows that two sides have changed.
    pub resolver: Resolver,
    /// What handlers have to say.
    pub handled: HandledSpec,
    /// Whether foreign keys act on its deletes, and on its updates.
    pub acts_on_delete: bool,
    /// Whether foreign keys act on its updates.
    pub acts_on_update: bool,
    /// The published tables whose foreign keys act on its deletes.
    pub children: Vec<CascadingChildren>,
    /// Whether changes are read from a change log.
    pub is_logged: bool,
    /// The column that remotes have numbers for, among the published ones.
    pub identity: Option<IdentityColumn>,
    /// What the centre fills where a remote leaves it NULL, as indexes into the catalog's columns.
    pub filled: Vec<usize>,
}

/// Which rule of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichRule {
    /// The one with this number of those by which its rows are held.
    Held(usize),
    /// The one by which they are written.
    Written,
}

/// Something that decides who holds a row, and is not among its published columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecidingColumn {
    /// The number of the table's rule.
    pub rule: usize,
    /// How many steps along its route the column's table is.
    pub level: usize,
    /// The column, by its index in the catalog.
    pub column: usize,
    /// Its type.
    pub column_type: ColumnType,
}

pub(super) fn wrong(message: String, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message,
        hint: hint.into(),
    }
}

/// Compiles a publication: its schema, and what its tables are made of, in the schema's order.
///
/// # Errors
/// [`CentreError::Configuration`], with the place.
pub fn compile<'s>(
    spec: &'s PublicationSpec,
    catalog: &[TableInfo],
) -> Result<(PublicationSchema, Vec<CompiledTable<'s>>)> {
    let mut indexes: Vec<usize> = Vec::with_capacity(spec.tables.len());
    for table in &spec.tables {
        let place = place(spec, table);
        let index = find(&place, table, catalog, &named(catalog, &table.name))?;
        let name = &catalog[index].name;
        if indexes.iter().any(|&it| catalog[it].name == *name) {
            return Err(wrong(
                format!("{place}: another table of the publication is called {name:?}"),
                "list a table once; remotes know tables without their schema: publish two of \
                 one name in two publications",
            ));
        }
        indexes.push(index);
    }
    let rules = Rules {
        spec,
        catalog,
        tables: indexes,
    };
    let chosen = spec.tables.iter().enumerate().map(|(number, table)| {
        let index = rules.tables[number];
        CompiledTable::new(
            table,
            place(spec, table),
            index,
            rules.compile_table(number)?,
            catalog,
        )
    });
    let chosen: Vec<CompiledTable<'s>> = chosen.collect::<Result<_>>()?;
    let mut tables = parents_first(chosen, catalog);
    let published: Vec<usize> = tables.iter().map(|it| it.table).collect();
    for table in &mut tables {
        table.children = children(catalog, table.table, &published);
    }
    let schema = PublicationSchema {
        name: spec.name.clone(),
        tables: tables
            .iter()
            .map(|table| table.schema(&tables, catalog))
            .collect(),
        transactional: spec.upload == UploadMode::Transactional,
    };
    check_names(&schema)?;
    Ok((schema, tables))
}

/// Whether changes of a table are read from a change log.
fn is_logged(spec: &TableSpec) -> bool {
    spec.tracking != TrackingMode::Off && spec.direction.downloads()
}

/// Where a table stands in the configuration.
fn place(spec: &PublicationSpec, table: &TableSpec) -> String {
    format!("publication {:?}: table {:?}", spec.name, table.name)
}

/// The one table that is meant.
fn find(place: &str, spec: &TableSpec, catalog: &[TableInfo], meant: &[usize]) -> Result<usize> {
    let index = match *meant {
        [index] => index,
        [] => {
            let table = place.rsplit(": table ").next().unwrap_or_default();
            let titles = catalog.iter().map(|it| &*it.title);
            let hint = match nearest(table.trim_matches('"'), titles) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("the database has {}; a view is no table", known(catalog)),
            };
            return Err(wrong(
                format!("{place}: there is no such table in the database"),
                hint,
            ));
        }
        _ => {
            return Err(wrong(
                format!("{place}: two tables can be meant, of different schemas"),
                "rename one of the schemas or tables that have a point in their name",
            ));
        }
    };
    let table = &catalog[index];
    // Of a table that is served already nobody may lose all syncs: it goes whole.
    let unnoticed = table
        .unnoticed
        .clone()
        .filter(|_| is_logged(spec) && !table.is_tracked);
    match table.obstacle().or(unnoticed) {
        None => Ok(index),
        Some(obstacle) => Err(wrong(
            format!("{place} cannot be published: {obstacle}"),
            "change the table, or leave it out of the publication",
        )),
    }
}

fn known(catalog: &[TableInfo]) -> String {
    let titles = catalog.iter().take(NAMED).map(|it| it.title.as_str());
    let titles: Vec<&str> = titles.collect();
    match (titles.is_empty(), catalog.len().saturating_sub(NAMED)) {
        (true, _) => "no tables".into(),
        (_, 0) => titles.join(", "),
        (_, more) => format!("{} and {more} more", titles.join(", ")),
    }
}

/// The children of a table that are published beside it.
fn children(catalog: &[TableInfo], parent: usize, published: &[usize]) -> Vec<CascadingChildren> {
    let keys = published.iter().flat_map(|&table| {
        let references = catalog[table].references.iter();
        references.map(move |reference| (table, reference))
    });
    let acting = keys.filter(|(_, it)| it.parent == parent && it.on_delete.acts());
    let children = acting.map(|(table, reference)| CascadingChildren {
        table,
        columns: reference.columns.clone(),
        parent_columns: reference.parent_columns.clone(),
    });
    children.collect()
}

/// Orders tables so that whoever is referred to comes first, where there is no cycle.
fn parents_first<'s>(
    mut waiting: Vec<CompiledTable<'s>>,
    catalog: &[TableInfo],
) -> Vec<CompiledTable<'s>> {
    let mut ordered = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_free = |table: &CompiledTable<'_>| {
            let parents = catalog[table.table].references.iter().map(|it| it.parent);
            let mut parents = parents.filter(|&parent| parent != table.table);
            !parents.any(|parent| waiting.iter().any(|it| it.table == parent))
        };
        let free = waiting.iter().position(is_free);
        ordered.push(waiting.remove(free.unwrap_or(0)));
    }
    ordered
}

impl<'s> CompiledTable<'s> {
    fn new(
        spec: &'s TableSpec,
        place: String,
        index: usize,
        rules: Vec<CompiledRule>,
        catalog: &[TableInfo],
    ) -> Result<CompiledTable<'s>> {
        let table = &catalog[index];
        let columns = published_columns(&place, spec, table)?;
        check_published(&place, table, &columns, &rules)?;
        let writes = CompiledWrites::new(&place, spec, table, &columns, &rules)?;
        let resolver = resolve::compile(&place, spec, table, &columns, &writes)?;
        let references = catalog.iter().flat_map(|it| &it.references);
        let references = references.filter(|it| it.parent == index);
        let acts_on_delete = references.clone().any(|it| it.on_delete.acts());
        let identity = offline::identity(&place, spec, table, &columns)?;
        let filled = offline::filled(&place, spec, table)?;
        Ok(CompiledTable {
            identity,
            filled,
            spec,
            place,
            table: index,
            columns,
            rules,
            writes,
            resolver,
            handled: spec.handled,
            acts_on_delete,
            acts_on_update: references.clone().any(|it| it.on_update.acts()),
            children: Vec::new(),
            is_logged: is_logged(spec),
        })
    }

    /// One of its rules.
    pub fn rule(&self, which: WhichRule) -> Option<&CompiledRule> {
        match which {
            WhichRule::Held(number) => self.rules.get(number),
            WhichRule::Written => self.writes.rule.as_ref(),
        }
    }

    /// Columns of the catalog's table as indexes into the published ones; `None` if one of them is
    /// not published.
    pub fn positions(&self, columns: &[usize]) -> Option<Vec<usize>> {
        let position = |index| self.columns.iter().position(|it| it == index);
        columns.iter().map(position).collect()
    }

    /// What a row as it is read has behind the published columns: what decides who holds it and
    /// is not among them.
    pub fn extras(&self, catalog: &[TableInfo]) -> Vec<DecidingColumn> {
        let mut extras: Vec<DecidingColumn> = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            let deciding = rule.columns.iter().map(|&it| (rule.route.len(), it));
            let windows = rule.windows.iter().map(|it| (it.level, it.column));
            for (level, column) in deciding.chain(windows) {
                let table = &catalog[rule.table_at(self.table, level)];
                let Ok(column_type) = table.columns[column].column_type else {
                    continue;
                };
                let extra = DecidingColumn {
                    rule: number,
                    level,
                    column,
                    column_type,
                };
                let is_published = level == 0 && self.columns.contains(&column);
                if !is_published && !extras.contains(&extra) {
                    extras.push(extra);
                }
            }
        }
        extras
    }

    /// The place of a column in a row as it is read.
    pub fn place_of(
        &self,
        catalog: &[TableInfo],
        rule: usize,
        level: usize,
        column: usize,
    ) -> usize {
        let mut published = self.columns.iter();
        let own = published.position(|it| *it == column);
        own.filter(|_| level == 0).unwrap_or_else(|| {
            let extras = self.extras(catalog);
            let mut extras = extras.iter();
            let is_meant =
                |it: &DecidingColumn| (it.rule, it.level, it.column) == (rule, level, column);
            self.columns.len() + extras.position(is_meant).unwrap_or_default()
        })
    }

    /// The way to the table that decides, as text: what makes it another way.
    pub fn route_names(&self, catalog: &[TableInfo], rule: &CompiledRule) -> Vec<String> {
        let mut below = self.table;
        let route = rule.route.iter().map(|reach| {
            let names = |table: usize, columns: &[usize]| {
                let columns = columns.iter().map(|&it| &*catalog[table].columns[it].name);
                columns.collect::<Vec<_>>().join(", ")
            };
            let text = format!(
                "({}) -> {} ({})",
                names(below, &reach.columns),
                catalog[reach.parent].title,
                names(reach.parent, &reach.parent_columns),
            );
            below = reach.parent;
            text
        });
        route.collect()
    }

    /// What remotes will find slow or refused.
    pub fn warnings(&self, catalog: &[TableInfo], table: &Table) -> Vec<String> {
        let mut warnings = self.offline_warnings(&catalog[self.table], table);
        let unnoticed = catalog[self.table].unnoticed.iter();
        let unnoticed = unnoticed.filter(|_| self.is_logged);
        warnings.extend(unnoticed.map(|why| {
            let place = &self.place;
            format!("{place}: every download sends the whole table, because {why}")
        }));
        warnings.extend(self.writes.warnings(&self.place, &catalog[self.table]));
        for rule in &self.rules {
            let root = &catalog[rule.root(self.table)];
            let what = "sending a partition whole reads the whole table";
            warnings.extend(root.lacks_index(&rule.columns, what));
            let mut below = self.table;
            for reach in &rule.route {
                let what = "moving a row that it refers to reads the whole table";
                warnings.extend(catalog[below].lacks_index(&reach.columns, what));
                below = reach.parent;
            }
            for window in &rule.windows {
                let table = &catalog[rule.table_at(self.table, window.level)];
                let what = "when the window moves on, the whole table is read";
                warnings.extend(table.lacks_index(&[window.column], what));
            }
        }
        warnings.dedup();
        warnings
    }

    /// The published columns that tell who holds a row.
    fn own_partition(&self) -> Vec<usize> {
        let own = self.rules.iter().filter(|rule| rule.route.is_empty());
        let mut found = Vec::new();
        for column in own.flat_map(|rule| &rule.columns) {
            let position = self.columns.iter().position(|it| it == column);
            found.extend(position.filter(|it| !found.contains(it)));
        }
        found
    }

    fn schema(&self, tables: &[CompiledTable<'_>], catalog: &[TableInfo]) -> Table {
        let table = &catalog[self.table];
        let columns = self.columns.iter().filter_map(|&index| {
            let column = &table.columns[index];
            // Whatever has no type for remotes was refused before.
            let column_type = *column.column_type.as_ref().ok()?;
            Some(Column {
                name: column.name.clone(),
                column_type,
                // What a remote does not write, it cannot have when it inserts a row.
                nullable: column.nullable
                    || self.filled.contains(&index)
                    || self.writes.read_only.contains(&index),
                default: column.default.clone(),
            })
        });
        let foreign_keys = table.references.iter().filter_map(|reference| {
            let mut tables = tables.iter();
            let parent = tables.find(|it| it.table == reference.parent)?;
            parent.positions(&reference.parent_columns)?;
            let of_parent = &catalog[reference.parent];
            let columns = self.positions(&reference.columns)?;
            let names = reference.parent_columns.iter();
            (columns.len() == names.len()).then(|| ForeignKey {
                columns,
                parent: of_parent.name.clone(),
                parent_columns: names
                    .map(|&index| of_parent.columns[index].name.clone())
                    .collect(),
                on_delete: reference.on_delete,
                on_update: reference.on_update,
            })
        });
        // In an order of their own: in which one they were made is nothing to remotes.
        let mut foreign_keys: Vec<ForeignKey> = foreign_keys.collect();
        foreign_keys.sort_by(|a, b| {
            let order = |it: &ForeignKey| (it.columns.clone(), it.parent.clone());
            order(a)
                .cmp(&order(b))
                .then_with(|| a.parent_columns.cmp(&b.parent_columns))
        });
        let unique = table.unique.iter();
        let mut unique: Vec<Vec<usize>> = unique.filter_map(|it| self.positions(it)).collect();
        unique.sort();
        Table {
            name: table.name.clone(),
            columns: columns.collect(),
            key: self.positions(&table.key).unwrap_or_default(),
            partition: self.own_partition(),
            unique,
            foreign_keys,
            direction: self.spec.direction,
            checks: self.checks(table),
            identity: self.identity,
        }
    }
}

/// The published columns of a table, as indexes into the catalog's.
fn published_columns(place: &str, spec: &TableSpec, table: &TableInfo) -> Result<Vec<usize>> {
    let all = 0..table.columns.len();
    let columns = match &spec.columns {
        None => all.filter(|&it| table.columns[it].is_by_default).collect(),
        Some(names) => named_columns(place, table, names, "columns")?,
    };
    for &index in &columns {
        if let Err(obstacle) = &table.columns[index].column_type {
            return Err(wrong(
                format!("{place} cannot be published: {obstacle}"),
                "change the table, or list the other columns in `columns`",
            ));
        }
    }
    if columns.len() > spec.max_columns() {
        return Err(wrong(
            format!("{place} has more than {} columns", spec.max_columns()),
            "list those to publish in `columns`",
        ));
    }
    if let Some(&key) = table.key.iter().find(|index| !columns.contains(index)) {
        let name = &table.columns[key].name;
        return Err(wrong(
            format!("{place}: `columns` leaves out {name:?} of the primary key"),
            format!("add {name:?} to `columns`"),
        ));
    }
    Ok(columns)
}

/// Checks that remotes have what tells to whom a row belongs that they write.
fn check_published(
    place: &str,
    table: &TableInfo,
    published: &[usize],
    rules: &[CompiledRule],
) -> Result<()> {
    let own = rules.iter().filter(|rule| rule.route.is_empty());
    let missing = |column: &&usize| !published.contains(column);
    let mut deciding = own.flat_map(|rule| &rule.columns);
    let referring = rules.iter().filter_map(|rule| rule.route.first());
    let mut referring = referring.flat_map(|reach| &reach.columns);
    let (index, what) = match (deciding.find(missing), referring.find(missing)) {
        (Some(&index), _) => (index, "the partition column"),
        (_, Some(&index)) => (index, "the column"),
        _ => return Ok(()),
    };
    let name = &table.columns[index].name;
    Err(wrong(
        format!("{place}: `columns` leaves out {what} {name:?}, which tells who holds a row"),
        format!("add {name:?} to `columns`"),
    ))
}

/// The indexes of named columns; names that differ in case only from one column mean that one.
pub(super) fn named_columns(
    place: &str,
    table: &TableInfo,
    names: &[String],
    what: &str,
) -> Result<Vec<usize>> {
    let mut indexes = Vec::with_capacity(names.len());
    for name in names {
        let index = table.column(name).ok_or_else(|| {
            let names = || table.columns.iter().map(|it| it.name.as_str());
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("its columns are {}", names().collect::<Vec<_>>().join(", ")),
            };
            wrong(
                format!("{place} has no column {name:?}, named in `{what}`"),
                hint,
            )
        })?;
        if indexes.contains(&index) {
            return Err(wrong(
                format!("{place}: the column {name:?} is listed twice in `{what}`"),
                "list it once",
            ));
        }
        indexes.push(index);
    }
    Ok(indexes)
}

/// Whether remotes must fetch a table anew to fit its columns.
pub fn columns_differ(old: &Table, new: &Table) -> bool {
    let columns = |table: &Table| -> Vec<_> {
        let columns = table.columns.iter();
        columns
            .map(|column| (column.name.clone(), column.column_type))
            .collect()
    };
    columns(old) != columns(new) || old.key != new.key || old.direction != new.direction
}

/// Whether a remote that has a table as it was needs nothing but the values of new columns, besides
/// what has changed in it.
pub fn follows(old: &Table, new: &Table) -> bool {
    let key = |table: &Table| -> Vec<String> {
        let columns = table.key_columns();
        columns.map(|column| column.name.clone()).collect()
    };
    let is_kept = |column: &Column| {
        let old = old.column(&column.name).map(|index| &old.columns[index]);
        old.is_none_or(|old| old.column_type == column.column_type)
    };
    old.direction == new.direction && key(old) == key(new) && new.columns.iter().all(is_kept)
}

/// A publication as it is recorded: equal text, equal meaning.
pub fn definition(spec: &PublicationSpec) -> Result<String> {
    serde_json::to_string(spec).map_err(|error| CentreError::Internal {
        message: format!(
            "the publication {:?} cannot be recorded: {error}",
            spec.name
        ),
    })
}

/// What [`definition`] has recorded.
///
/// # Errors
/// Somebody has written to the server's own tables.
pub fn recorded_spec(definition: &str) -> Result<PublicationSpec> {
    serde_json::from_str(definition).map_err(|error| CentreError::Internal {
        message: format!("a publication is not as it was recorded: {error}"),
    })
}

/// A publication that names its columns: those that remotes know from its schema. What was added
/// to its tables since is left out.
pub fn with_columns_of(
    spec: &PublicationSpec,
    schema: &PublicationSchema,
    catalog: &[TableInfo],
) -> PublicationSpec {
    let mut spec = spec.clone();
    for table in &mut spec.tables {
        let meant = named(catalog, &table.name);
        let meant = meant.first().map(|&index| &catalog[index].name);
        if let Some(known) = meant.and_then(|name| schema.table(name)) {
            let columns = known.columns.iter().map(|column| column.name.clone());
            table.columns = Some(columns.collect());
        }
    }
    spec
}

/// Whether remotes that know one schema would be told of other tables, columns or keys by the
/// other.
pub fn tables_differ(old: &PublicationSchema, new: &PublicationSchema) -> bool {
    old.tables.len() != new.tables.len()
        || old.tables.iter().any(|old| {
            new.table(&old.name)
                .is_none_or(|new| columns_differ(old, new) || old.partition != new.partition)
        })
}
