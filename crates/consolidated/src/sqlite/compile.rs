//! A publication compiled against the application's tables: its schema as remotes see
//! it, and the SQL that serves it.

use std::sync::Arc;

use rusqlite::Connection;

use tidewater_protocol::{ColumnType, PublicationSchema, RowShape, Table};

use super::catalog::{self, Live};
use super::{quote, types};
use crate::engine::catalog::TableInfo;
use crate::engine::compile::{self, Published};
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec};
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
    /// Whether changes of the table are read from a change log.
    pub(super) is_logged: bool,
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
    /// Checks a publication against the database, whose tables `catalog` describes, and compiles it. What is deployed is
    /// not looked at: the caller fills in [`Compiled::deployed`].
    pub(super) fn compile(
        connection: &Connection,
        all: &[Live],
        catalog: &[TableInfo],
        spec: &PublicationSpec,
    ) -> Result<Publication, CentreError> {
        let compiled = compile::compile(spec, catalog, |name| catalog::named(all, name))?;
        let mut tables = Vec::with_capacity(compiled.tables.len());
        for (published, table) in compiled.tables.iter().zip(&compiled.schema.tables) {
            let live = &all[published.table];
            tables.push(Compiled::new(connection, live, published, table)?);
        }
        Ok(Publication {
            shapes: compiled.schema.tables.iter().map(Table::shape).collect(),
            schema: Arc::new(compiled.schema),
            tables,
        })
    }

    /// Everything about a table that remotes and watermarks depend on, as text.
    pub(super) fn identity(&self, index: usize) -> String {
        let table = &self.tables[index];
        format!("{:?} {:?}", table.partition_names, table.partition_types)
    }
}

impl Compiled {
    fn new(
        connection: &Connection,
        live: &Live,
        published: &Published<'_>,
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
            is_logged: published.is_logged,
            values: values_script(connection, published, table)?,
            partition_as_text: partition_as_text.collect(),
            declared,
            key_types: column_types(&table.key),
            partition_types: column_types(&table.partition),
            partition_names: column_names(&table.partition),
            key_names: column_names(&table.key),
            deletes_first: published.deletes_first,
            is_acted_on: published.acts_on_delete,
            guarded: live.has_triggers || live.has_conflict_clauses,
            select_key: format!("SELECT {} FROM {name} WHERE {by_key}", names.join(", ")),
            select_partition: format!("{select_all} AND {}", equals(table, &table.partition)),
            select_all,
            delete_key: format!("DELETE FROM {name} WHERE {by_key}"),
            conflict_clause,
            name,
        })
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
    published: &Published<'_>,
    table: &Table,
) -> Result<Option<Script>, CentreError> {
    let PartitionSpec::Columns { columns, values } = &published.spec.partition else {
        return Ok(None);
    };
    let wrong = |what: String, hint: String| {
        configuration(
            format!("{}: the values query {what}", published.place),
            hint,
        )
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
