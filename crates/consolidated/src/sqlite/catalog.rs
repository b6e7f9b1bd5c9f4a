//! The application's tables as SQLite describes them.

use rusqlite::Connection;
use rusqlite::types::Value as Native;

use tidewater_protocol::{ColumnType, Datum, ForeignKeyAction, index_sql};

use super::{failure, own, types};
use crate::engine::catalog::{self, ColumnInfo, TableInfo};
use crate::error::CentreError;

/// A table of the application.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    /// The primary key, as indexes into `columns`, in key order.
    pub(super) key: Vec<usize>,
    /// Everything by which a row can displace another; the primary key first.
    pub(super) uniques: Vec<Unique>,
    pub(super) foreign_keys: Vec<Reference>,
    /// The leading columns of its indexes, the primary key's included.
    pub(super) indexed: Vec<Vec<String>>,
    /// Whether a statement on it may leave something behind when it fails, or end
    /// the transaction: triggers of the application, conflict clauses.
    pub(super) has_triggers: bool,
    pub(super) has_conflict_clauses: bool,
}

/// A column of a [`Live`] table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) declared: String,
    pub(super) nullable: bool,
    pub(super) default: Option<String>,
    pub(super) generated: bool,
}

/// The primary key or a unique index.
#[derive(Debug)]
pub(super) struct Unique {
    pub(super) is_primary_key: bool,
    pub(super) terms: Vec<Term>,
    /// The condition of a partial index, as SQL over the table's columns.
    pub(super) condition: Option<String>,
}

/// What a unique index is about.
#[derive(Debug)]
pub(super) enum Term {
    /// A column, and the collation by which it is compared.
    Column(usize, String),
    /// SQL over the table's columns.
    Expression(String),
}

/// A foreign key.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) columns: Vec<String>,
    pub(super) parent: String,
    /// Empty for the parent's primary key.
    pub(super) parent_columns: Vec<String>,
    pub(super) on_delete: ForeignKeyAction,
    pub(super) on_update: ForeignKeyAction,
}

impl Column {
    fn described(&self, connection: &Connection) -> ColumnInfo {
        let column_type = match types::column_type(&self.declared) {
            _ if self.generated => Err(format!("the column {:?} is generated", self.name)),
            Some(column_type) => Ok(column_type),
            None => Err(type_obstacle(self)),
        };
        let default = self.default.as_deref().zip(column_type.as_ref().ok());
        ColumnInfo {
            name: self.name.clone(),
            type_name: self.declared.clone(),
            nullable: self.nullable,
            default: default
                .and_then(|(sql, &column_type)| default_literal(connection, column_type, sql)),
            column_type,
            is_generated: self.generated,
            is_by_default: !self.generated,
            is_ambiguous: false,
        }
    }

    /// The value that `REPLACE` puts in the place of NULL where the column has none, unless it
    /// is computed. BEFORE triggers see the NULL.
    pub(super) fn replaces_null(&self) -> Option<&str> {
        let default = self.default.as_deref().filter(|_| !self.nullable);
        default.filter(|sql| !sql.contains('('))
    }
}

impl Unique {
    /// The columns, if remotes can have such a constraint. Of an index whose SQL is not understood
    /// no term may be known.
    fn columns(&self) -> Option<Vec<usize>> {
        let columns = self.terms.iter().map(|term| match term {
            Term::Column(column, _) => Some(*column),
            Term::Expression(_) => None,
        });
        let columns = columns.collect::<Option<Vec<usize>>>()?;
        let tells = !self.is_primary_key && self.condition.is_none() && !columns.is_empty();
        tells.then_some(columns)
    }
}

impl Reference {
    fn described(&self, table: &Live, tables: &[Live]) -> Option<catalog::Reference> {
        let mut parents = tables.iter();
        let parent = parents.position(|it| it.name.eq_ignore_ascii_case(&self.parent))?;
        let of_parent = &tables[parent];
        let columns = self.columns.iter().map(|name| table.column(name));
        let parent_columns = match self.parent_columns.as_slice() {
            [] => of_parent.key.clone(),
            names => {
                let columns = names.iter().map(|name| of_parent.column(name));
                columns.collect::<Option<_>>()?
            }
        };
        Some(catalog::Reference {
            columns: columns.collect::<Option<_>>()?,
            parent,
            parent_columns,
            on_delete: self.on_delete,
            on_update: self.on_update,
        })
    }
}

impl Live {
    /// A column's index by its name, whatever its case.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        let exact = self.columns.iter().position(|column| column.name == name);
        exact.or_else(|| {
            let mut columns = self.columns.iter();
            columns.position(|column| column.name.eq_ignore_ascii_case(name))
        })
    }

    /// Whether it has unique constraints besides its primary key.
    pub(super) fn has_secondary_unique(&self) -> bool {
        self.uniques.iter().any(|unique| !unique.is_primary_key)
    }

    /// Why it cannot be published, and the way out.
    pub(super) fn obstacle(&self) -> Option<String> {
        if self.name.to_ascii_lowercase().starts_with(own::PREFIX) {
            return Some(format!(
                "names that begin with {} are Tidewater's own; rename the table",
                own::PREFIX
            ));
        }
        if self.key.is_empty() {
            return Some("it has no primary key; declare one".into());
        }
        let mut key = self.key.iter().map(|&index| &self.columns[index]);
        if let Some(column) = key.find(|column| types::column_type(&column.declared).is_none()) {
            return Some(type_obstacle(column));
        }
        None
    }
}

/// Why a column of unknown type cannot be published, and the way out.
fn type_obstacle(column: &Column) -> String {
    format!(
        "the column {:?} has the declared type {:?}, which stands for no type; \
         declare INTEGER, REAL, BOOLEAN, DECIMAL(p,s), TEXT, BLOB, DATE, TIME, TIMESTAMP, \
         TIMESTAMPTZ, UUID or JSON, or leave it out with columns = [...]",
        column.name, column.declared
    )
}

/// All tables of the application, by name.
pub(super) fn tables(connection: &Connection) -> Result<Vec<Live>, CentreError> {
    read_tables(connection).map_err(failure("reading the database's schema"))
}

/// The tables as the engine knows them, in the same order.
pub(super) fn described(connection: &Connection, tables: &[Live]) -> Vec<TableInfo> {
    let described = tables.iter().map(|table| TableInfo {
        name: table.name.clone(),
        title: table.name.clone(),
        columns: table
            .columns
            .iter()
            .map(|column| column.described(connection))
            .collect(),
        key: table.key.clone(),
        unique: table.uniques.iter().filter_map(Unique::columns).collect(),
        has_secondary_unique: table.has_secondary_unique(),
        references: table
            .foreign_keys
            .iter()
            .filter_map(|reference| reference.described(table, tables))
            .collect(),
        ignores_case: true,
        obstacle: table.obstacle(),
    });
    described.collect()
}

/// The tables that a name in a configuration can mean.
pub(super) fn named(tables: &[Live], name: &str) -> Vec<usize> {
    let name = name.strip_prefix("main.").unwrap_or(name);
    let exact = tables.iter().position(|table| table.name == name);
    let found = exact.or_else(|| {
        let mut tables = tables.iter();
        tables.position(|table| table.name.eq_ignore_ascii_case(name))
    });
    found.into_iter().collect()
}

fn read_tables(connection: &Connection) -> rusqlite::Result<Vec<Live>> {
    // Virtual tables and their shadows keep rows by means that no trigger sees.
    let mut statement = connection.prepare(
        "SELECT name, sql FROM sqlite_schema s WHERE type = 'table'
         AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'
         AND sql NOT LIKE 'CREATE VIRTUAL%'
         AND NOT EXISTS (SELECT 1 FROM sqlite_schema v WHERE v.sql LIKE 'CREATE VIRTUAL%'
             AND s.name LIKE v.name || '\\_%' ESCAPE '\\') ORDER BY name",
    )?;
    let named = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let named = named.collect::<rusqlite::Result<Vec<_>>>()?;
    let tables = named.into_iter();
    tables
        .map(|(name, sql)| read_table(connection, name, &sql))
        .collect()
}

fn read_table(connection: &Connection, name: String, sql: &str) -> rusqlite::Result<Live> {
    let mut columns = Vec::new();
    let mut key: Vec<(i64, usize)> = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?1)
         WHERE hidden <> 1 ORDER BY cid",
    )?;
    let mut rows = statement.query([&name])?;
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(4)?;
        if position > 0 {
            key.push((position, columns.len()));
        }
        columns.push(Column {
            name: row.get(0)?,
            declared: row.get(1)?,
            nullable: row.get::<_, i64>(2)? == 0 && position == 0,
            default: row.get(3)?,
            generated: row.get::<_, i64>(5)? != 0,
        });
    }
    key.sort_unstable();
    let mut live = Live {
        foreign_keys: read_references(connection, &name)?,
        has_triggers: has_triggers(connection, &name)?,
        has_conflict_clauses: sql.to_ascii_uppercase().contains("CONFLICT"),
        columns,
        key: key.into_iter().map(|(_, index)| index).collect(),
        uniques: Vec::new(),
        indexed: Vec::new(),
        name,
    };
    read_indexes(connection, &mut live)?;
    Ok(live)
}

fn has_triggers(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE
         AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'",
    )?;
    statement.exists([table])
}

fn read_indexes(connection: &Connection, live: &mut Live) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT l.name, l.\"unique\", l.origin, s.sql FROM pragma_index_list(?1) l
         LEFT JOIN sqlite_schema s ON s.type = 'index' AND s.name = l.name ORDER BY l.name",
    )?;
    let mut rows = statement.query([&live.name])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let is_unique: bool = row.get(1)?;
        let is_primary_key = row.get::<_, String>(2)? == "pk";
        let sql: Option<String> = row.get(3)?;
        let parts = sql.as_deref().and_then(index_sql::parts);
        let (mut texts, condition) = parts.unwrap_or_default();
        let mut terms = Vec::new();
        let mut details = connection.prepare_cached(
            "SELECT cid, coll FROM pragma_index_xinfo(?1) WHERE key = 1 ORDER BY seqno",
        )?;
        let mut details = details.query([&name])?;
        while let Some(detail) = details.next()? {
            let column: i64 = detail.get(0)?;
            let text = texts.get_mut(terms.len()).map(std::mem::take);
            terms.push(match (usize::try_from(column), text) {
                (Ok(column), _) => Term::Column(column, detail.get(1)?),
                (Err(_), Some(text)) => Term::Expression(text),
                // Only the rowid, which no CREATE INDEX can name.
                (Err(_), None) => continue,
            });
        }
        if condition.is_none() {
            let leading = terms.iter().map_while(|term| match term {
                Term::Column(column, _) => Some(live.columns[*column].name.clone()),
                Term::Expression(_) => None,
            });
            live.indexed.push(leading.collect());
        }
        if is_unique {
            live.uniques.push(Unique {
                is_primary_key,
                terms,
                condition,
            });
        }
    }
    live.uniques.sort_by_key(|unique| !unique.is_primary_key);
    if !live.key.is_empty() && !live.uniques.iter().any(|unique| unique.is_primary_key) {
        // INTEGER PRIMARY KEY is the rowid and has no index.
        let key = live.key.iter();
        let names = key.clone().map(|&index| live.columns[index].name.clone());
        live.indexed.push(names.collect());
        let terms = key.map(|&index| Term::Column(index, "BINARY".into()));
        live.uniques.insert(
            0,
            Unique {
                is_primary_key: true,
                terms: terms.collect(),
                condition: None,
            },
        );
    }
    Ok(())
}

fn read_references(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Reference>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, \"table\", \"from\", \"to\", on_update, on_delete
         FROM pragma_foreign_key_list(?1) ORDER BY id DESC, seq",
    )?;
    let mut rows = statement.query([table])?;
    let mut references: Vec<(i64, Reference)> = Vec::new();
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        if references.last().is_none_or(|(last, _)| *last != id) {
            let reference = Reference {
                columns: Vec::new(),
                parent: row.get(1)?,
                parent_columns: Vec::new(),
                on_update: action(&row.get::<_, String>(4)?),
                on_delete: action(&row.get::<_, String>(5)?),
            };
            references.push((id, reference));
        }
        let (_, reference) = references.last_mut().expect("one was pushed just now");
        reference.columns.push(row.get(2)?);
        reference
            .parent_columns
            .extend(row.get::<_, Option<String>>(3)?);
    }
    Ok(references
        .into_iter()
        .map(|(_, reference)| reference)
        .collect())
}

fn action(name: &str) -> ForeignKeyAction {
    match name {
        "RESTRICT" => ForeignKeyAction::Restrict,
        "CASCADE" => ForeignKeyAction::Cascade,
        "SET NULL" => ForeignKeyAction::SetNull,
        "SET DEFAULT" => ForeignKeyAction::SetDefault,
        _ => ForeignKeyAction::NoAction,
    }
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
