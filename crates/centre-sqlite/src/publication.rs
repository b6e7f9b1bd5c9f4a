//! A publication compiled against the application's tables: its schema as remotes see
//! it, and the SQL that serves it.

use tidewater_protocol::{ColumnType, Table};

use super::catalog::Catalog;
use super::triggers::Log;
use super::{quote, values};
use tidewater_centre::engine::compile::Published;
use tidewater_centre::engine::publication::ServedTable;

/// A publication as it is served.
pub(super) type Publication = tidewater_centre::engine::publication::Publication<PublishedTable>;

/// A table of a [`Publication`].
#[derive(Debug)]
pub(crate) struct PublishedTable {
    /// Its change log, if its changes are read from one.
    pub(super) log: Option<Log>,
    /// For each column: its declared type, for messages, and whether its affinity is
    /// TEXT.
    pub(super) declared: Vec<(String, bool)>,
    /// Types of key and partition columns.
    pub(super) key_types: Vec<ColumnType>,
    pub(super) partition_types: Vec<ColumnType>,
    pub(super) partition_as_text: Vec<bool>,
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

impl ServedTable for PublishedTable {
    type Log = Log;

    fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    fn set_log(&mut self, id: i64) {
        if let Some(log) = &mut self.log {
            log.id = id;
        }
    }
}

impl PublishedTable {
    pub(super) fn new(
        published: &Published<'_>,
        table: &Table,
        catalog: &Catalog,
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
        let declared = published.columns.iter().map(|&index| {
            let declared = info.columns[index].type_name.clone();
            let as_text = values::is_kept_as_text(&declared);
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
        let log = || Log {
            id: 0,
            table: table.name.clone(),
            partition: column_names(&table.partition),
            key: column_names(&table.key),
        };
        PublishedTable {
            log: published.is_logged.then(log),
            partition_as_text: partition_as_text.collect(),
            declared,
            key_types: column_types(&table.key),
            partition_types: column_types(&table.partition),
            deletes_first: published.deletes_first,
            is_acted_on: published.acts_on_delete,
            guarded: live.has_triggers || live.has_conflict_clauses,
            select_key: format!("SELECT {} FROM {name} WHERE {by_key}", names.join(", ")),
            select_partition: format!("{select_all} AND {}", equals(table, &table.partition)),
            select_all,
            delete_key: format!("DELETE FROM {name} WHERE {by_key}"),
            conflict_clause,
            name,
        }
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
