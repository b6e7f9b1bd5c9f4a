//! The unique indexes of a user table, and which rows a new row would collide with.
//!
//! Publications bring no unique index but the primary key; these are the application's own.

use rusqlite::Connection;
use tidewater_protocol::index_sql;

use crate::database::quote;
use crate::error::{ErrorContext, RemoteError};

/// A unique index other than the primary key.
#[derive(Clone, Debug)]
pub(crate) struct UniqueIndex {
    terms: Vec<IndexTerm>,
    /// The columns of the table, for terms that are expressions.
    columns: Vec<String>,
}

#[derive(Clone, Debug)]
struct IndexTerm {
    what: TermContent,
    collation: String,
}

#[derive(Clone, Debug)]
enum TermContent {
    Column(String),
    Expression(String),
}

impl UniqueIndex {
    /// The condition for a row of the table (alias `row`) to collide with a new one, whose
    /// column is what `new` makes of its name. A partial index collides less often: more rows
    /// than necessary are found, which does no harm. `None` if nothing can be said.
    pub(crate) fn collides(&self, row: &str, new: &dyn Fn(&str) -> String) -> Option<String> {
        let conditions: Vec<String> = self
            .terms
            .iter()
            .map(|term| {
                let (left, right) = match &term.what {
                    TermContent::Column(column) => {
                        (format!("{row}.{}", quote::name(column)), new(column))
                    }
                    TermContent::Expression(expression) => (
                        // As it stands in the index, so that the index finds it: the row is
                        // the only one in sight whose columns need no alias.
                        format!("({expression})"),
                        format!(
                            "(SELECT {expression} FROM (SELECT {}))",
                            self.columns_from(new)
                        ),
                    ),
                };
                format!("{left} = {right} COLLATE {}", quote::name(&term.collation))
            })
            .collect();
        (!conditions.is_empty()).then(|| conditions.join(" AND "))
    }

    /// Whether anything is known about what collides.
    pub(crate) fn is_known(&self) -> bool {
        !self.terms.is_empty()
    }

    fn columns_from(&self, value: &dyn Fn(&str) -> String) -> String {
        quote::list(&self.columns, ", ", |column| {
            format!("{} AS {}", value(column), quote::name(column))
        })
    }

    /// Whether only these columns decide.
    pub(crate) fn uses_only(&self, known: &dyn Fn(&str) -> bool) -> bool {
        self.terms.iter().all(|term| match &term.what {
            TermContent::Column(column) => known(column),
            TermContent::Expression(_) => self.columns.iter().all(|column| known(column)),
        })
    }
}

/// Whether a table has any unique index but its primary key.
pub(super) fn has_unique_index(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT 1 FROM pragma_index_list(?1, 'main') WHERE \"unique\" AND origin <> 'pk'",
        )?
        .exists([table])
}

/// The unique indexes of a table but its primary key.
pub(crate) fn unique_indexes(
    connection: &Connection,
    table: &str,
) -> Result<Vec<UniqueIndex>, RemoteError> {
    read(connection, table).doing("looking at the indexes of a table")
}

fn read(connection: &Connection, table: &str) -> rusqlite::Result<Vec<UniqueIndex>> {
    let mut statement = connection.prepare_cached(
        "SELECT l.name, m.sql FROM pragma_index_list(?1, 'main') AS l \
         LEFT JOIN sqlite_master AS m ON m.type = 'index' AND m.name = l.name \
         WHERE l.\"unique\" AND l.origin <> 'pk' ORDER BY l.name",
    )?;
    let indexes = statement
        .query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(String, Option<String>)>>>()?;
    if indexes.is_empty() {
        return Ok(Vec::new());
    }
    let columns = connection
        .prepare_cached("SELECT name FROM pragma_table_info(?1, 'main')")?
        .query_map([table], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    let mut found = Vec::new();
    for (index, sql) in indexes {
        let parts = sql.as_deref().and_then(index_sql::parts);
        let expressions = parts.map(|(terms, _)| terms).unwrap_or_default();
        let terms = connection
            .prepare_cached(
                "SELECT seqno, name, coll FROM pragma_index_xinfo(?1, 'main') WHERE key \
                 ORDER BY seqno",
            )?
            .query_map([index], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<Vec<(usize, Option<String>, Option<String>)>>>()?;
        let terms = terms.into_iter().filter_map(|(position, name, collation)| {
            let what = match name {
                Some(column) => TermContent::Column(column),
                None => TermContent::Expression(expressions.get(position)?.clone()),
            };
            Some(IndexTerm {
                what,
                collation: collation.unwrap_or_else(|| "BINARY".into()),
            })
        });
        found.push(UniqueIndex {
            terms: terms.collect(),
            columns: columns.clone(),
        });
    }
    Ok(found)
}
