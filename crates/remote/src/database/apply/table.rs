//! What applying rows of one table needs to know: names, statements, and what of the slow
//! paths can be needed at all. Found out once a table, not once a row.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::Connection;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{ColumnType, PublicationSchema, RowShape, Table, Value};

use super::own_columns::OwnValues;
use crate::database::changes::PARKED;
use crate::database::tables::QuotedNames;
use crate::database::triggers::{self, UniqueIndex, unique_indexes};
use crate::database::{SubscriptionState, quote, row};
use crate::error::{ErrorContext, RemoteError};

/// One table of a result or a download.
#[derive(Debug)]
pub(super) struct TableApply {
    schema: Arc<PublicationSchema>,
    /// The table in the schema.
    index: usize,
    pub(super) names: QuotedNames,
    pub(super) key_types: Vec<ColumnType>,
    /// How the rows are packed; `None` when they are of no use (their table is gone).
    pub(super) shape: Option<RowShape>,
    /// The rows have the columns of the schema. Otherwise only their keys are used.
    pub(super) same_layout: bool,
    pub(super) upsert_sql: String,
    pub(super) row_sql: RowSql,
    /// The change table is not empty.
    pub(super) has_changes: bool,
    /// There are stale rows.
    pub(super) has_stale: bool,
    /// For each reference to this table from one with pending changes: the condition that a
    /// row of this table, alias `p`, has such a child.
    pub(super) needed_by: Vec<String>,
    /// The references to tables with pending changes, or with rows that wait.
    pub(super) pending_parents: Vec<PendingParent>,
    /// The application's own unique indexes.
    pub(super) unique: Vec<UniqueIndex>,
    /// Hashes of keys that were written in this apply; kept only where a row can be pushed
    /// out by another through a unique index.
    pub(super) written: HashSet<u64>,
    /// Replacing: the packed keys of refused changes that have not arrived yet.
    pub(super) parked_unseen: HashSet<Vec<u8>>,
    /// Replacing: the values of columns of the application's own.
    pub(super) aside: Option<OwnValues>,
    /// How many rows of a table that is replaced have gone, less those that came.
    pub(super) missing: u64,
    /// Replacing what was compared: rows that are equal stay, see [`super::compared_tables`].
    pub(super) is_compared: bool,
    /// What differs in a compared table is only told.
    pub(super) only_tells: bool,
    /// What differs in a compared table nobody expects: the server is told of it.
    pub(super) verifies: bool,
    /// The table was changed while nothing tracked it: what differs from the centre may be
    /// the user's.
    pub(super) is_untracked: bool,
    /// A restored centre has forgotten changes of the untracked table that were not kept, among
    /// them perhaps deletes.
    pub(super) is_forgotten: bool,
    /// What the centre changed since the checkpoint has come already: what differs besides in
    /// an untracked table that is compared is the user's.
    pub(super) follows_changes: bool,
    /// Deletes of the centre have not come with them: a row that is only here may be one of those.
    pub(super) deletes_unknown: bool,
    /// The columns that rows of a result have, by name: those of their own header.
    pub(super) result_columns: Vec<String>,
    /// Columns that the schema has since this apply, or that were made again in an untracked
    /// table, as indexes into the schema's.
    pub(super) added: Vec<usize>,
}

/// Statements about the row of one key, put together once: as text they cost as much as to run.
#[derive(Debug)]
pub(super) struct RowSql {
    /// Its newest change, its oldest one.
    pub(super) newest_change: String,
    pub(super) oldest_change: String,
    pub(super) delete_change: String,
    pub(super) exists: String,
    pub(super) delete: String,
}

impl RowSql {
    fn new(names: &QuotedNames) -> RowSql {
        let (table, change) = (&names.table, &names.change);
        let (key, change_key) = (names.key_is_bound(), names.change_key_is_bound());
        let generation = names.key.len() + 1;
        let first_change = |order: &str| {
            format!(
                "SELECT generation FROM {change} WHERE {change_key} \
                 ORDER BY generation {order} LIMIT 1"
            )
        };
        RowSql {
            newest_change: first_change("DESC"),
            oldest_change: first_change("ASC"),
            delete_change: format!(
                "DELETE FROM {change} WHERE {change_key} AND generation = ?{generation}"
            ),
            exists: format!("SELECT 1 FROM {table} WHERE {key}"),
            delete: format!("DELETE FROM {table} WHERE {key}"),
        }
    }
}

impl TableApply {
    pub(super) fn for_download(
        connection: &Connection,
        subscription: &SubscriptionState,
        begin: &TableBegin,
        added: &[String],
    ) -> Result<TableApply, RemoteError> {
        let bad = |what: &str| RemoteError::BadLayout {
            table: begin.table.clone(),
            what: what.to_owned(),
        };
        let (schema, index) =
            find(subscription, &begin.table).ok_or_else(|| bad("no such table"))?;
        let table = &schema.tables[index];
        if !same_columns(begin, table) {
            return Err(bad("other columns than the schema's"));
        }
        let shape = table.shape();
        let added = added.iter().filter_map(|name| table.column(name)).collect();
        TableApply::new(connection, schema.clone(), index, Some(shape), true, added)
    }

    /// Results are kept by the server and may be older than the schema: the columns are those
    /// of their own header.
    pub(super) fn for_result(
        connection: &Connection,
        subscription: &SubscriptionState,
        begin: &TableBegin,
    ) -> Result<TableApply, RemoteError> {
        let bad = |what: &str| RemoteError::BadLayout {
            table: begin.table.clone(),
            what: what.to_owned(),
        };
        let Some(own) = subscription.schema.clone() else {
            return Err(bad("no such table"));
        };
        let Some((schema, index)) = find(subscription, &begin.table) else {
            // The table has left the publication. There is nothing to apply its rows to.
            return TableApply::new(connection, own, 0, None, false, Vec::new());
        };
        let table = &schema.tables[index];
        if !begin.key.is_empty() && !begin.has_key_of(table) {
            // Its rows were told apart by another key.
            return TableApply::new(connection, own, index, None, false, Vec::new());
        }
        if same_columns(begin, table) {
            let shape = Some(table.shape());
            let same = TableApply::new(connection, schema, index, shape, true, Vec::new());
            return same.map(|same| same.with_columns(begin));
        }
        let position = |name: &str| begin.columns.iter().position(|column| column.name == name);
        let key: Option<Vec<usize>> = table
            .key_columns()
            .map(|column| position(&column.name))
            .collect();
        let columns: Option<Vec<ColumnType>> = begin
            .columns
            .iter()
            .map(|column| column.column_type())
            .collect();
        let columns = columns.ok_or_else(|| bad("a column of an unknown type"))?;
        let shape = key.map(|key| RowShape { columns, key });
        let other = TableApply::new(connection, schema, index, shape, false, Vec::new());
        other.map(|other| other.with_columns(begin))
    }

    fn with_columns(mut self, begin: &TableBegin) -> TableApply {
        let columns = begin.columns.iter();
        self.result_columns = columns.map(|column| column.name.clone()).collect();
        self
    }

    fn new(
        connection: &Connection,
        schema: Arc<PublicationSchema>,
        index: usize,
        shape: Option<RowShape>,
        same_layout: bool,
        added: Vec<usize>,
    ) -> Result<TableApply, RemoteError> {
        let Some(table) = schema.tables.get(index) else {
            return Err(RemoteError::BadLayout {
                table: String::new(),
                what: "the schema has no tables".into(),
            });
        };
        let names = QuotedNames::for_table(table);
        let doing = "looking at a table's pending changes";
        let has_changes = is_not_empty(connection, &names.change).doing(doing)?;
        let has_stale = connection
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM tidewater_stale WHERE table_name = ?1)")
            .and_then(|mut statement| statement.query_row([&table.name], |row| row.get(0)))
            .doing(doing)?;
        let needed_by = needed_by(connection, &schema, table).doing(doing)?;
        let unique = match triggers::are_plain(connection).doing(doing)? {
            true => Vec::new(),
            false => unique_indexes(connection, &table.name)?,
        };
        Ok(TableApply {
            upsert_sql: upsert_sql(&names),
            row_sql: RowSql::new(&names),
            key_types: row::key_types(table),
            shape,
            same_layout,
            has_changes,
            has_stale,
            pending_parents: pending_parents(connection, &schema, table).doing(doing)?,
            needed_by,
            unique,
            written: HashSet::new(),
            parked_unseen: HashSet::new(),
            aside: None,
            missing: 0,
            is_compared: false,
            only_tells: false,
            verifies: false,
            is_untracked: false,
            is_forgotten: false,
            follows_changes: false,
            deletes_unknown: false,
            added,
            result_columns: Vec::new(),
            names,
            index,
            schema,
        })
    }

    pub(super) fn table(&self) -> &Table {
        &self.schema.tables[self.index]
    }

    pub(super) fn name(&self) -> &str {
        &self.table().name
    }

    /// The condition that a row, alias `p`, is the parent of a pending child.
    pub(super) fn needed(&self) -> Option<String> {
        (!self.needed_by.is_empty()).then(|| format!("({})", self.needed_by.join(" OR ")))
    }
}

fn find(subscription: &SubscriptionState, table: &str) -> Option<(Arc<PublicationSchema>, usize)> {
    let schema = subscription.schema.as_ref()?;
    let index = schema.tables.iter().position(|each| each.name == table)?;
    Some((Arc::clone(schema), index))
}

fn same_columns(begin: &TableBegin, table: &Table) -> bool {
    begin.columns == TableBegin::for_table(table).columns
}

/// Whether a table has any row.
pub(super) fn is_not_empty(connection: &Connection, quoted: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!("SELECT EXISTS (SELECT 1 FROM {quoted})"))?
        .query_row([], |row| row.get(0))
}

fn upsert_sql(names: &QuotedNames) -> String {
    let parameters: Vec<String> = (1..=names.columns.len()).map(|n| format!("?{n}")).collect();
    let update = if names.values.is_empty() {
        "NOTHING".to_owned()
    } else {
        let sets = quote::list(&names.values, ", ", |&index| {
            let column = &names.columns[index];
            format!("{column} = excluded.{column}")
        });
        format!("UPDATE SET {sets}")
    };
    // By another name than its own: a table may be called `excluded`.
    format!(
        "INSERT INTO {} AS tidewater_row ({}) VALUES ({}) ON CONFLICT ({}) DO {update}",
        names.table,
        names.columns.join(", "),
        parameters.join(", "),
        names.key.join(", "),
    )
}

/// A reference to the key of a table that has pending changes, or rows that wait for a decision of
/// the user.
#[derive(Debug)]
pub(super) struct PendingParent {
    /// The referring columns, in the order of the key that they refer to.
    pub(super) columns: Vec<usize>,
    /// The types of that key.
    pub(super) key_types: Vec<ColumnType>,
    /// Yields for a key whether the row was there when it was first changed.
    pub(super) was_present: String,
    pub(super) table: String,
    /// Yields for a key, the table's name and the packed key what the row waits for, if it waits and is
    /// not there.
    pub(super) waits: String,
}

/// Yields for a key whether the row was there when it was first changed.
pub(super) fn was_present(names: &QuotedNames) -> String {
    format!(
        "SELECT present FROM {} WHERE {} ORDER BY generation LIMIT 1",
        names.change,
        names.change_key_is_bound()
    )
}

fn pending_parents(
    connection: &Connection,
    schema: &PublicationSchema,
    child: &Table,
) -> rusqlite::Result<Vec<PendingParent>> {
    let mut parents = Vec::new();
    for foreign_key in &child.foreign_keys {
        let Some(parent) = schema.table(&foreign_key.parent) else {
            continue;
        };
        let names = QuotedNames::for_table(parent);
        let referring = |column: &tidewater_protocol::Column| {
            let mut referred = foreign_key.parent_columns.iter();
            let place = referred.position(|it| *it == column.name)?;
            Some(foreign_key.columns[place])
        };
        let columns: Option<Vec<usize>> = parent.key_columns().map(referring).collect();
        let Some(columns) = columns.filter(|it| it.len() == foreign_key.columns.len()) else {
            continue;
        };
        let waits = "SELECT EXISTS (SELECT 1 FROM tidewater_stale \
                     WHERE table_name = ?1 AND waits_for_table IS NOT NULL)";
        let some_wait = connection
            .prepare_cached(waits)?
            .query_row([&parent.name], |row| row.get(0))?;
        if some_wait || is_not_empty(connection, &names.change)? {
            let number = names.key.len();
            parents.push(PendingParent {
                table: parent.name.clone(),
                waits: format!(
                    "SELECT waits_for_table, waits_for_key FROM tidewater_stale \
                     WHERE table_name = ?{} AND key_packed = ?{} AND waits_for_table IS NOT NULL \
                     AND NOT EXISTS (SELECT 1 FROM {} WHERE {})",
                    number + 1,
                    number + 2,
                    names.table,
                    names.key_is_bound()
                ),
                columns,
                key_types: row::key_types(parent),
                was_present: was_present(&names),
            });
        }
    }
    Ok(parents)
}

/// For each reference to a table from one with local changes: the condition that a row of it,
/// alias `p`, has such a child.
pub(in crate::database) fn needed_by(
    connection: &Connection,
    schema: &PublicationSchema,
    parent: &Table,
) -> rusqlite::Result<Vec<String>> {
    let conditions = references_to(connection, schema, parent)?;
    let conditions = conditions.into_iter().map(|(child, refers)| {
        let names = QuotedNames::for_table(child);
        format!(
            "EXISTS (SELECT 1 FROM {} AS c JOIN {} AS h ON {} WHERE {refers})",
            names.table,
            names.change,
            names.change_of("h", "c"),
        )
    });
    Ok(conditions.collect())
}

/// A row with a local change that refers to another one, which stays for it.
#[derive(Debug)]
pub(in crate::database) struct ReferringRow {
    pub(in crate::database) table: String,
    /// Readable: a JSON array.
    pub(in crate::database) key: String,
    /// Its change is refused, and does not go up by itself.
    pub(in crate::database) is_refused: bool,
}

/// The first row with a local change that refers to a row.
pub(in crate::database) fn referring_row(
    connection: &Connection,
    schema: &PublicationSchema,
    parent: &Table,
    key: &[Value],
) -> rusqlite::Result<Option<ReferringRow>> {
    let parents = QuotedNames::for_table(parent);
    let is_meant = quote::list(parents.key.iter().enumerate(), " AND ", |(at, column)| {
        format!("p.{column} = ?{}", at + 1)
    });
    for (child, refers) in references_to(connection, schema, parent)? {
        let names = QuotedNames::for_table(child);
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {}, h.generation FROM {} AS p JOIN {} AS c ON {refers} JOIN {} AS h ON {} \
             WHERE {is_meant} ORDER BY h.generation DESC LIMIT 1",
            quote::list(&names.key, ", ", |key| format!("c.{key}")),
            parents.table,
            names.table,
            names.change,
            names.change_of("h", "c"),
        ))?;
        parents.bind_key(&mut statement, key)?;
        let mut rows = statement.raw_query();
        if let Some(found) = rows.next()? {
            let count = names.key.len();
            let key = row::owned(found, 0, count)?;
            return Ok(Some(ReferringRow {
                table: child.name.clone(),
                key: row::readable_key(&row::datums(&row::key_types(child), &key)),
                is_refused: found.get::<_, i64>(count)? == PARKED,
            }));
        }
    }
    Ok(None)
}

/// The references to a table from tables with local changes, each with the condition that a row of
/// that one, alias `c`, refers to a row, alias `p`.
fn references_to<'s>(
    connection: &Connection,
    schema: &'s PublicationSchema,
    parent: &Table,
) -> rusqlite::Result<Vec<(&'s Table, String)>> {
    let mut found = Vec::new();
    for child in &schema.tables {
        let references: Vec<_> = child
            .foreign_keys
            .iter()
            .filter(|foreign_key| foreign_key.parent == parent.name)
            .collect();
        if references.is_empty() {
            continue;
        }
        let names = QuotedNames::for_table(child);
        if !is_not_empty(connection, &names.change)? {
            continue;
        }
        for foreign_key in references {
            let pairs = foreign_key.columns.iter().zip(&foreign_key.parent_columns);
            let refers = quote::list(pairs, " AND ", |(&column, parent_column)| {
                format!(
                    "c.{} = p.{}",
                    names.columns[column],
                    quote::name(parent_column)
                )
            });
            found.push((child, refers));
        }
    }
    Ok(found)
}
