//! A publication compiled against the application's tables: its schema as remotes see
//! it, and the SQL that serves it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::Value as Native;

use tidewater_protocol::{
    Column as SchemaColumn, ColumnType, Datum, ForeignKey, PublicationSchema, RowShape, Table,
};

use super::live::{self, Live};
use super::{quote, types};
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec, TableSpec, Tracking, check_names};
use crate::script::{Dialect, Script};

/// A publication ready to be served.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) schema: Arc<PublicationSchema>,
    /// In the order of the schema.
    pub(super) shapes: Arc<[RowShape]>,
    pub(super) tables: Vec<Compiled>,
}

/// A table of a [`Publication`].
#[derive(Debug)]
pub(super) struct Compiled {
    /// Its number, generation and change log, once it is deployed.
    pub(super) deployed: Deployed,
    pub(super) tracking: Tracking,
    /// The values query of its partitions.
    pub(super) values: Option<Script>,
    /// For each column: its declared type, for messages, and whether its affinity is
    /// TEXT.
    pub(super) declared: Vec<(String, bool)>,
    /// Types of key and partition columns.
    pub(super) key_types: Vec<ColumnType>,
    pub(super) partition_types: Vec<ColumnType>,
    pub(super) partition_as_text: Vec<bool>,
    pub(super) partition_names: Vec<String>,
    pub(super) key_names: Vec<String>,
    /// Deletes go before inserts and updates, for the unique values that they free. Not where
    /// foreign keys act on them: they could take along what the same upload moves elsewhere.
    /// What needs their values is tried again after them.
    pub(super) deletes_first: bool,
    /// Whether foreign keys act on its deletes.
    pub(super) is_acted_on: bool,
    /// A failed statement may leave something behind.
    pub(super) guarded: bool,
    /// `SELECT` of all columns by key.
    pub(super) select_key: String,
    /// All columns of all rows.
    pub(super) select_all: String,
    /// All columns of the rows of one partition; parameters are its values.
    pub(super) select_partition: String,
    pub(super) delete_key: String,
    /// The rowid by key; of no use for tables without rowids.
    pub(super) select_rowid: String,
    /// Overrides the table's own ON CONFLICT clauses, which could displace rows that
    /// the remote may not touch. Only where there are any: it would override those of
    /// the application's triggers as well.
    conflict_clause: &'static str,
    name: String,
}

/// What the deployed state says of a published table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deployed {
    pub(super) id: i64,
    pub(super) generation: i64,
    pub(super) log: Option<i64>,
}

fn configuration(message: String, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message,
        hint: hint.into(),
    }
}

impl Publication {
    /// Checks a publication against the database and compiles it. What is deployed is
    /// not looked at: the caller fills in [`Compiled::deployed`].
    pub(super) fn compile(
        connection: &Connection,
        all: &[Live],
        spec: &PublicationSpec,
    ) -> Result<Publication, CentreError> {
        let mut parts = Vec::with_capacity(spec.tables.len());
        let mut seen = BTreeSet::new();
        for table in &spec.tables {
            let found = find(all, spec, table)?;
            if !seen.insert(found.name.clone()) {
                return Err(configuration(
                    format!(
                        "publication {:?} has the table {:?} twice",
                        spec.name, found.name
                    ),
                    "remove one of the two",
                ));
            }
            parts.push((found, table));
        }
        let parts = parents_first(parts);
        let mut schema = PublicationSchema {
            name: spec.name.clone(),
            tables: Vec::new(),
        };
        let mut tables = Vec::with_capacity(parts.len());
        for (live, spec) in &parts {
            let table = schema_table(connection, live, spec)?;
            let mut compiled = Compiled::new(connection, live, spec, &table)?;
            compiled.is_acted_on = is_acted_on(live, all);
            compiled.deletes_first = live.has_secondary_unique() && !compiled.is_acted_on;
            tables.push(compiled);
            schema.tables.push(table);
        }
        add_references(&mut schema, &parts);
        check_names(&schema)?;
        Ok(Publication {
            shapes: schema.tables.iter().map(Table::shape).collect(),
            schema: Arc::new(schema),
            tables,
        })
    }

    /// Everything about a table that remotes and watermarks depend on, as text.
    pub(super) fn identity(&self, index: usize) -> String {
        let table = &self.tables[index];
        format!("{:?} {:?}", table.partition_names, table.partition_types)
    }
}

fn find<'l>(
    live: &'l [Live],
    publication: &PublicationSpec,
    spec: &TableSpec,
) -> Result<&'l Live, CentreError> {
    let name = spec.name.strip_prefix("main.").unwrap_or(&spec.name);
    let exact = live.iter().find(|table| table.name == name);
    let mut others = live.iter();
    let table = exact
        .or_else(|| others.find(|table| table.name.eq_ignore_ascii_case(name)))
        .ok_or_else(|| {
            let known: Vec<_> = live.iter().map(|table| table.name.as_str()).collect();
            configuration(
                format!(
                    "publication {:?}: there is no table {:?} in the database",
                    publication.name, spec.name
                ),
                format!("the database has {}; a view is no table", known.join(", ")),
            )
        })?;
    match table.obstacle() {
        None => Ok(table),
        Some(obstacle) => Err(configuration(
            format!("the table {:?} cannot be published: {obstacle}", table.name),
            "change the table, or remove it from the publication",
        )),
    }
}

/// Orders tables so that referred ones come before those that refer to them; what is
/// part of a cycle keeps its order.
fn parents_first<'a>(mut parts: Vec<(&'a Live, &'a TableSpec)>) -> Vec<(&'a Live, &'a TableSpec)> {
    let mut ordered: Vec<(&Live, &TableSpec)> = Vec::with_capacity(parts.len());
    while !parts.is_empty() {
        let waits = |(table, _): &(&Live, &TableSpec)| {
            table.foreign_keys.iter().any(|reference| {
                let parent = &reference.parent;
                let is_parent =
                    |(other, _): &(&Live, &TableSpec)| other.name.eq_ignore_ascii_case(parent);
                !table.name.eq_ignore_ascii_case(parent) && parts.iter().any(is_parent)
            })
        };
        let next = parts.iter().position(|part| !waits(part)).unwrap_or(0);
        ordered.push(parts.remove(next));
    }
    ordered
}

/// The indexes of named columns.
fn resolve(live: &Live, names: &[String], what: &str) -> Result<Vec<usize>, CentreError> {
    let mut indexes = Vec::with_capacity(names.len());
    for name in names {
        let index = live.column(name).ok_or_else(|| {
            let known: Vec<_> = live.columns.iter().map(|column| &*column.name).collect();
            configuration(
                format!("{:?} has no column {name:?}, named in {what}", live.name),
                format!("its columns are {}", known.join(", ")),
            )
        })?;
        if indexes.contains(&index) {
            return Err(configuration(
                format!("{:?}: the column {name:?} is twice in {what}", live.name),
                "remove one of the two",
            ));
        }
        indexes.push(index);
    }
    Ok(indexes)
}

fn schema_table(
    connection: &Connection,
    live: &Live,
    spec: &TableSpec,
) -> Result<Table, CentreError> {
    let published = match &spec.columns {
        Some(names) => resolve(live, names, "columns")?,
        None => (0..live.columns.len())
            .filter(|&index| !live.columns[index].generated)
            .collect(),
    };
    if published.len() > spec.max_columns() {
        return Err(configuration(
            format!(
                "the table {:?} has more than {} columns",
                live.name,
                spec.max_columns()
            ),
            "name those to publish with columns = [...]",
        ));
    }
    let mut columns = Vec::with_capacity(published.len());
    for &index in &published {
        let column = &live.columns[index];
        let cannot = |why: String| {
            configuration(
                format!("the table {:?} cannot be published: {why}", live.name),
                "change the table, or name the published columns with columns = [...]",
            )
        };
        if column.generated {
            return Err(cannot(format!("the column {:?} is generated", column.name)));
        }
        let column_type = types::column_type(&column.declared)
            .ok_or_else(|| cannot(live::type_obstacle(column)))?;
        columns.push(SchemaColumn {
            name: column.name.clone(),
            column_type,
            nullable: column.nullable,
            default: column
                .default
                .as_deref()
                .and_then(|sql| default_literal(connection, column_type, sql)),
        });
    }
    let place = |index: usize, what: &str| {
        let position = published.iter().position(|&each| each == index);
        position.ok_or_else(|| {
            let name = &live.columns[index].name;
            configuration(
                format!(
                    "{:?}: the {what} column {name:?} is not published",
                    live.name
                ),
                format!("add {name:?} to columns"),
            )
        })
    };
    let partition = match &spec.partition {
        PartitionSpec::Everyone => Vec::new(),
        PartitionSpec::Columns { columns, .. } if columns.is_empty() => {
            return Err(configuration(
                format!("{:?}: the list of partition columns is empty", live.name),
                "name columns, or say partition = \"everyone\"",
            ));
        }
        PartitionSpec::Columns { columns, .. } => resolve(live, columns, "partition")?,
    };
    let unique = live.uniques.iter().filter_map(|unique| {
        let columns = unique.terms.iter().map(|term| match term {
            live::Term::Column(column, _) => place(*column, "").ok(),
            live::Term::Expression(_) => None,
        });
        let columns = columns.collect::<Option<Vec<usize>>>();
        // Of an index whose SQL is not understood no term may be known.
        let tells = !unique.is_primary_key && unique.condition.is_none();
        columns.filter(|columns| tells && !columns.is_empty())
    });
    let key = live.key.iter().map(|&index| place(index, "key"));
    let partition = partition.iter().map(|&index| place(index, "partition"));
    Ok(Table {
        name: live.name.clone(),
        columns,
        key: key.collect::<Result<_, _>>()?,
        partition: partition.collect::<Result<_, _>>()?,
        unique: unique.collect(),
        foreign_keys: Vec::new(),
        direction: spec.direction,
    })
}

/// The default of a column as remotes can declare it: literals only.
fn default_literal(connection: &Connection, column_type: ColumnType, sql: &str) -> Option<String> {
    let text = sql.trim();
    let is_word = ["true", "false"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    let is_quoted = text.len() >= 2
        && text.starts_with('\'')
        && text.ends_with('\'')
        && !text[1..text.len() - 1].replace("''", "").contains('\'');
    if !is_word && !is_quoted && text.parse::<f64>().is_err() {
        return None;
    }
    let value: Native = connection
        .query_row(&format!("SELECT {text}"), [], |row| row.get(0))
        .ok()?;
    let datum = types::settled(column_type, types::read(column_type, (&value).into()));
    // SQLite's own quoting is what remotes parse.
    let stored: Native = match datum {
        Datum::Null | Datum::Loose(_) => return None,
        other => types::bind(column_type, true, &other).ok()?,
    };
    connection
        .query_row("SELECT quote(?1)", [stored], |row| row.get(0))
        .ok()
}

/// Whether deletes of a table's rows change rows of tables that refer to it.
fn is_acted_on(live: &Live, all: &[Live]) -> bool {
    let mut references = all.iter().flat_map(|it| &it.foreign_keys);
    references.any(|it| it.on_delete.acts() && it.parent.eq_ignore_ascii_case(&live.name))
}

fn add_references(schema: &mut PublicationSchema, parts: &[(&Live, &TableSpec)]) {
    let by_name: BTreeMap<String, usize> = parts
        .iter()
        .enumerate()
        .map(|(index, (live, _))| (live.name.to_ascii_lowercase(), index))
        .collect();
    for (index, (live, _)) in parts.iter().enumerate() {
        for reference in &live.foreign_keys {
            let Some(&parent) = by_name.get(&reference.parent.to_ascii_lowercase()) else {
                continue;
            };
            let parent_live = parts[parent].0;
            let parent_columns: Vec<_> = match reference.parent_columns.as_slice() {
                [] => parent_live.key.clone(),
                names => names
                    .iter()
                    .filter_map(|name| parent_live.column(name))
                    .collect(),
            };
            let parent_columns: Vec<_> = parent_columns
                .iter()
                .map(|&column| parent_live.columns[column].name.clone())
                .filter(|name| schema.tables[parent].column(name).is_some())
                .collect();
            let columns = reference.columns.iter().map(|name| {
                let column = live.column(name)?;
                schema.tables[index].column(&live.columns[column].name)
            });
            let Some(columns) = columns.collect::<Option<Vec<_>>>() else {
                continue;
            };
            if columns.len() != parent_columns.len() {
                continue;
            }
            schema.tables[index].foreign_keys.push(ForeignKey {
                columns,
                parent: parent_live.name.clone(),
                parent_columns,
                on_delete: reference.on_delete,
                on_update: reference.on_update,
            });
        }
    }
}

impl Compiled {
    fn new(
        connection: &Connection,
        live: &Live,
        spec: &TableSpec,
        table: &Table,
    ) -> Result<Compiled, CentreError> {
        let name = quote(&table.name);
        let names: Vec<_> = table
            .columns
            .iter()
            .map(|column| quote(&column.name))
            .collect();
        let select_all = format!(
            "SELECT {} FROM {name} WHERE {}",
            names.join(", "),
            not_null(table.key.iter().map(|&index| &names[index]))
        );
        let by_key = equals(table, &table.key);
        let conflict_clause = if live.has_conflict_clauses {
            " OR ABORT"
        } else {
            ""
        };
        let declared = table.columns.iter().map(|column| {
            let live = live.column(&column.name).map(|index| &live.columns[index]);
            let declared = live
                .map(|column| column.declared.clone())
                .unwrap_or_default();
            let as_text = types::is_kept_as_text(&declared);
            (declared, as_text)
        });
        let declared: Vec<(String, bool)> = declared.collect();
        let partition_as_text = table.partition.iter().map(|&index| declared[index].1);
        let column_types = |indexes: &[usize]| {
            let types = indexes
                .iter()
                .map(|&index| table.columns[index].column_type);
            types.collect::<Vec<_>>()
        };
        let column_names = |indexes: &[usize]| {
            let names = indexes
                .iter()
                .map(|&index| table.columns[index].name.clone());
            names.collect::<Vec<_>>()
        };
        Ok(Compiled {
            deployed: Deployed::default(),
            tracking: spec.tracking,
            values: values_script(connection, spec, table)?,
            partition_as_text: partition_as_text.collect(),
            declared,
            key_types: column_types(&table.key),
            partition_types: column_types(&table.partition),
            partition_names: column_names(&table.partition),
            key_names: column_names(&table.key),
            deletes_first: false,
            is_acted_on: false,
            guarded: live.has_triggers || live.has_conflict_clauses,
            select_key: format!("SELECT {} FROM {name} WHERE {by_key}", names.join(", ")),
            select_partition: format!("{select_all} AND {}", equals(table, &table.partition)),
            select_all,
            select_rowid: format!("SELECT rowid FROM {name} WHERE {by_key}"),
            delete_key: format!("DELETE FROM {name} WHERE {by_key}"),
            conflict_clause,
            name,
        })
    }

    /// Whether changes of the table are read from a change log.
    pub(super) fn is_logged(&self, table: &Table) -> bool {
        self.tracking != Tracking::Off && table.direction.downloads()
    }

    /// `INSERT` of some columns.
    pub(super) fn insert(&self, table: &Table, columns: &[usize]) -> String {
        let names = columns
            .iter()
            .map(|&index| quote(&table.columns[index].name));
        let parameters = (1..=columns.len()).map(|number| format!("?{number}"));
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

    /// The keys that a log has in one partition after a position, each once, with the
    /// row that is there now or NULLs. Parameters: the position, the partition.
    pub(super) fn select_changes(&self, table: &Table, log: &super::triggers::Log) -> String {
        let keys = log.key_columns();
        let columns = table.columns.iter();
        let columns = columns.map(|column| format!("t.{}", quote(&column.name)));
        let partition = log.partition_columns().into_iter().enumerate();
        let partition =
            partition.map(|(number, column)| format!(" AND {column} = ?{}", number + 2));
        let join = keys.iter().zip(&table.key).map(|(key, &index)| {
            let column = &table.columns[index];
            let name = quote(&column.name);
            match column.column_type {
                // Once by the column's collation, for its index; once to the byte.
                ColumnType::Text => {
                    format!("t.{name} = l.{key} AND t.{name} = l.{key} COLLATE BINARY")
                }
                _ => format!("t.{name} = l.{key}"),
            }
        });
        format!(
            "SELECT {keys}, {columns} FROM (SELECT DISTINCT {bare} FROM {log} WHERE id > ?1{partition} \
             AND {not_null}) l LEFT JOIN {name} t ON {join}",
            keys = keys
                .iter()
                .map(|key| format!("l.{key}"))
                .collect::<Vec<_>>()
                .join(", "),
            columns = columns.collect::<Vec<_>>().join(", "),
            bare = keys.join(", "),
            log = quote(&super::state::log_table(log.id)),
            partition = partition.collect::<String>(),
            not_null = not_null(keys.iter()),
            name = self.name,
            join = join.collect::<Vec<_>>().join(" AND "),
        )
    }
}

fn not_null<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let terms: Vec<_> = names.map(|name| format!("{name} IS NOT NULL")).collect();
    terms.join(" AND ")
}

/// Columns compared with parameters; text to the byte, whatever its collation.
fn equals(table: &Table, columns: &[usize]) -> String {
    let terms = columns.iter().enumerate().map(|(number, &index)| {
        let column = &table.columns[index];
        let (name, number) = (quote(&column.name), number + 1);
        match column.column_type {
            ColumnType::Text => {
                format!("{name} = ?{number} AND {name} = ?{number} COLLATE BINARY")
            }
            _ => format!("{name} = ?{number}"),
        }
    });
    terms.collect::<Vec<_>>().join(" AND ")
}

/// Parses and tries the values query.
fn values_script(
    connection: &Connection,
    spec: &TableSpec,
    table: &Table,
) -> Result<Option<Script>, CentreError> {
    let PartitionSpec::Columns { columns, values } = &spec.partition else {
        return Ok(None);
    };
    let wrong = |what: String, hint: String| {
        configuration(format!("the values query of {:?} {what}", table.name), hint)
    };
    let script = Script::parse(values, Dialect::Sqlite, |number| format!("?{number}"))
        .map_err(|error| wrong(format!("is wrong: {error}"), error.hint()))?;
    let statement = connection.prepare(&script.sql).map_err(|error| {
        let hint = "try it in the sqlite3 shell with a value in place of {s.username}";
        wrong(format!("is refused by SQLite: {error}"), hint.into())
    })?;
    if !statement.readonly() {
        let hint = "write a SELECT";
        return Err(wrong("changes the database".into(), hint.into()));
    }
    if statement.column_count() != columns.len() {
        return Err(wrong(
            format!(
                "yields {} columns, but there are {} partition columns",
                statement.column_count(),
                columns.len()
            ),
            format!("select values for {}", columns.join(", ")),
        ));
    }
    for (result, &index) in statement.columns().iter().zip(&table.partition) {
        let column = &table.columns[index];
        // Of an expression nothing is known: its values are looked at when it is run.
        let found = result.decl_type().and_then(types::column_type);
        if found.is_some_and(|found| !types::alike(found, column.column_type)) {
            return Err(wrong(
                format!(
                    "yields {}, declared as {}, for the partition column {:?}, which is no such \
                     thing",
                    result.name(),
                    result.decl_type().unwrap_or_default(),
                    column.name
                ),
                "select a column of the same type, or convert it in the query with CAST".into(),
            ));
        }
    }
    if statement.parameter_count() != script.parameters.len() {
        let hint = "write {s.username} and the like for parameters";
        return Err(wrong("has parameters of SQLite's own".into(), hint.into()));
    }
    Ok(Some(script))
}
