//! Publications, compiled against the catalog: the schema as remotes see it, and what of each
//! table is published.
//!
//! Pure: no SQL is run here. The errors are the operator's, so they say where in the
//! configuration something is wrong and what to write instead.

use tidewater_protocol::{Column, ForeignKey, PublicationSchema, Table};

use super::catalog::{TableInfo, named};
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec, TableSpec, Tracking, check_names};

type Result<T> = std::result::Result<T, CentreError>;

/// So many tables of the database an error names.
const NAMED: usize = 20;

/// A table of a publication.
#[derive(Clone, Debug)]
pub struct Published<'s> {
    /// The table as it is configured.
    pub spec: &'s TableSpec,
    /// Where the table stands in the configuration, for errors.
    pub place: String,
    /// The table's index in the catalog.
    pub table: usize,
    /// The published columns, as indexes into the catalog's.
    pub columns: Vec<usize>,
    /// The partition columns, as indexes into the published ones.
    pub partition: Vec<usize>,
    /// Whether foreign keys act on its deletes, and on its updates.
    pub acts_on_delete: bool,
    /// Whether foreign keys act on its updates.
    pub acts_on_update: bool,
    /// Its deletes go before inserts and updates, for the unique values that they free. Not where
    /// foreign keys act on them: they could take along what the same upload moves elsewhere.
    pub deletes_first: bool,
    /// Whether changes are read from a change log.
    pub is_logged: bool,
}

fn wrong(message: String, hint: impl Into<String>) -> CentreError {
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
) -> Result<(PublicationSchema, Vec<Published<'s>>)> {
    let mut chosen: Vec<Published<'s>> = Vec::with_capacity(spec.tables.len());
    for table in &spec.tables {
        let place = format!("publication {:?}: table {:?}", spec.name, table.name);
        let index = find(&place, catalog, &named(catalog, &table.name))?;
        let name = &catalog[index].name;
        if chosen.iter().any(|it| catalog[it.table].name == *name) {
            return Err(wrong(
                format!("{place}: another table of the publication is called {name:?}"),
                "list a table once; remotes know tables without their schema: publish two of \
                 one name in two publications",
            ));
        }
        chosen.push(Published::of(table, place, index, catalog)?);
    }
    let tables = parents_first(chosen, catalog);
    let schema = PublicationSchema {
        name: spec.name.clone(),
        tables: tables
            .iter()
            .map(|table| table.schema(&tables, catalog))
            .collect(),
    };
    check_names(&schema)?;
    Ok((schema, tables))
}

/// The one table that is meant.
fn find(place: &str, catalog: &[TableInfo], meant: &[usize]) -> Result<usize> {
    let index = match *meant {
        [index] => index,
        [] => {
            return Err(wrong(
                format!("{place}: there is no such table in the database"),
                format!("the database has {}; a view is no table", known(catalog)),
            ));
        }
        _ => {
            return Err(wrong(
                format!("{place}: two tables can be meant, of different schemas"),
                "rename one of the schemas or tables that have a point in their name",
            ));
        }
    };
    match catalog[index].obstacle() {
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

/// Orders tables so that whoever is referred to comes first, where there is no cycle.
fn parents_first<'s>(mut waiting: Vec<Published<'s>>, catalog: &[TableInfo]) -> Vec<Published<'s>> {
    let mut ordered = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_free = |table: &Published<'_>| {
            let parents = catalog[table.table].references.iter().map(|it| it.parent);
            let mut parents = parents.filter(|&parent| parent != table.table);
            !parents.any(|parent| waiting.iter().any(|it| it.table == parent))
        };
        let free = waiting.iter().position(is_free);
        ordered.push(waiting.remove(free.unwrap_or(0)));
    }
    ordered
}

impl<'s> Published<'s> {
    fn of(
        spec: &'s TableSpec,
        place: String,
        index: usize,
        catalog: &[TableInfo],
    ) -> Result<Published<'s>> {
        let table = &catalog[index];
        let columns = published_columns(&place, spec, table)?;
        let partition = partition(&place, spec, table, &columns)?;
        let references = catalog.iter().flat_map(|it| &it.references);
        let references = references.filter(|it| it.parent == index);
        let acts_on_delete = references.clone().any(|it| it.on_delete.acts());
        Ok(Published {
            spec,
            place,
            table: index,
            columns,
            partition,
            acts_on_delete,
            acts_on_update: references.clone().any(|it| it.on_update.acts()),
            deletes_first: table.has_secondary_unique && !acts_on_delete,
            is_logged: spec.tracking != Tracking::Off && spec.direction.downloads(),
        })
    }

    /// Columns of the catalog's table as indexes into the published ones; `None` if one of them is
    /// not published.
    pub fn positions(&self, columns: &[usize]) -> Option<Vec<usize>> {
        let position = |index| self.columns.iter().position(|it| it == index);
        columns.iter().map(position).collect()
    }

    fn schema(&self, tables: &[Published<'_>], catalog: &[TableInfo]) -> Table {
        let table = &catalog[self.table];
        let columns = self.columns.iter().filter_map(|&index| {
            let column = &table.columns[index];
            // Whatever has no type for remotes was refused before.
            let column_type = *column.column_type.as_ref().ok()?;
            Some(Column {
                name: column.name.clone(),
                column_type,
                nullable: column.nullable,
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
        let unique = table.unique.iter();
        Table {
            name: table.name.clone(),
            columns: columns.collect(),
            key: self.positions(&table.key).unwrap_or_default(),
            partition: self.partition.clone(),
            unique: unique.filter_map(|it| self.positions(it)).collect(),
            foreign_keys: foreign_keys.collect(),
            direction: self.spec.direction,
        }
    }
}

/// The published columns of a table, as indexes into the catalog's.
fn published_columns(place: &str, spec: &TableSpec, table: &TableInfo) -> Result<Vec<usize>> {
    let all = 0..table.columns.len();
    let columns = match &spec.columns {
        None => all.filter(|&it| table.columns[it].is_by_default).collect(),
        Some(names) => resolve(place, table, names, "columns")?,
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

/// The indexes of named columns; names that differ in case only from one column mean that one.
fn resolve(place: &str, table: &TableInfo, names: &[String], what: &str) -> Result<Vec<usize>> {
    let mut indexes = Vec::with_capacity(names.len());
    for name in names {
        let index = table.column(name).ok_or_else(|| {
            let names: Vec<&str> = table.columns.iter().map(|it| it.name.as_str()).collect();
            wrong(
                format!("{place} has no column {name:?}, named in `{what}`"),
                format!("its columns are {}", names.join(", ")),
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

/// The partition columns, as indexes into the published ones.
fn partition(
    place: &str,
    spec: &TableSpec,
    table: &TableInfo,
    published: &[usize],
) -> Result<Vec<usize>> {
    let PartitionSpec::Columns { columns, .. } = &spec.partition else {
        return Ok(Vec::new());
    };
    if columns.is_empty() {
        return Err(wrong(
            format!("{place}: the partition has no columns"),
            "name them, or write partition = \"everyone\"",
        ));
    }
    let mut partition = Vec::with_capacity(columns.len());
    for index in resolve(place, table, columns, "partition")? {
        let column = &table.columns[index];
        let name = &column.name;
        if column.is_ambiguous {
            return Err(wrong(
                format!(
                    "{place}: {name:?} of the type {} cannot be a partition column: equal values \
                     can be spelled differently",
                    column.type_name
                ),
                "partition by an integer, text, uuid, date or numeric(p,s) column",
            ));
        }
        if column.is_generated && spec.direction.uploads() {
            return Err(wrong(
                format!(
                    "{place}: the partition column {name:?} is generated: what a remote says \
                     about it does not bind the centre, which could put its rows into the \
                     partitions of others"
                ),
                "partition by a column that is written, or let the table be downloaded only: \
                 direction = \"download\"",
            ));
        }
        let position = published.iter().position(|&it| it == index);
        partition.push(position.ok_or_else(|| {
            wrong(
                format!("{place}: `columns` leaves out the partition column {name:?}"),
                format!("add {name:?} to `columns`"),
            )
        })?);
    }
    Ok(partition)
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

/// A publication as it is kept, to notice when the configuration changes: equal text, equal
/// meaning.
pub fn definition(spec: &PublicationSpec) -> String {
    let tables = spec.tables.iter().map(|table| {
        let partition = match &table.partition {
            PartitionSpec::Everyone => serde_json::json!("everyone"),
            PartitionSpec::Columns { columns, values } => {
                serde_json::json!({ "columns": columns, "values": values })
            }
        };
        serde_json::json!({
            "name": table.name,
            "partition": partition,
            "direction": format!("{:?}", table.direction).to_lowercase(),
            "columns": table.columns,
            "tracking": format!("{:?}", table.tracking).to_lowercase(),
        })
    });
    serde_json::json!({ "name": spec.name, "tables": tables.collect::<Vec<_>>() }).to_string()
}
