//! A translation of a database into one of SQLite, for simulations: PostgreSQL cannot run in
//! simulated time.
//!
//! Owns which tables, constraints and rows there are, and what of them is left out. How SQL is
//! spelled otherwise is [`dialect`]'s affair. The database is only read, in one snapshot.

mod dialect;

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::{Row, Transaction};

use tidewater_protocol::Value;

use super::connection::{PostgresConnection, address};
use crate::driver_error::statement_failed;
use tidewater_centre::error::CentreError;

pub use dialect::{SqlNames, without_casts};

type Result<T> = std::result::Result<T, CentreError>;

/// A database as SQLite would have it.
#[derive(Debug, Default)]
pub struct SqliteTranslation {
    /// Its tables.
    pub tables: Vec<TranslatedTable>,
    /// What is not in it, for people.
    pub left_out: Vec<String>,
    /// How its tables are called in SQL.
    pub names: SqlNames,
}

/// A table as SQLite would have it.
#[derive(Debug)]
pub struct TranslatedTable {
    /// Its name, without a schema.
    pub name: String,
    /// Columns with their types, the primary key and unique constraints, each as SQL.
    pub parts: Vec<String>,
    /// References and checks, each as SQL with what it is called. SQLite may not understand them all.
    pub checks: Vec<(String, String)>,
    /// The columns, in the order of the rows.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Value>>,
}

/// A column as PostgreSQL has it.
struct SourceColumn {
    name: String,
    /// As PostgreSQL writes its type.
    declared: String,
    is_not_null: bool,
    is_generated: bool,
    is_numbered: bool,
    default: Option<String>,
}

/// A table as PostgreSQL has it.
struct SourceTable {
    oid: u32,
    schema: String,
    name: String,
    columns: Vec<SourceColumn>,
}

const TABLES: &str = "
SELECT c.oid, n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
  a.attnotnull, a.attgenerated <> '', a.attidentity <> '',
  pg_catalog.pg_get_expr(d.adbin, d.adrelid)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('information_schema', 'tidewater') AND n.nspname !~ '^pg_'
ORDER BY n.nspname <> 'public', n.nspname, c.relname, a.attnum";

const CONSTRAINTS: &str = "
SELECT o.conrelid, o.conname, o.contype::text,
  (SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.n)
   FROM pg_catalog.unnest(o.conkey) WITH ORDINALITY k (attnum, n)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = o.conrelid AND a.attnum = k.attnum),
  o.confrelid,
  (SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.n)
   FROM pg_catalog.unnest(o.confkey) WITH ORDINALITY k (attnum, n)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = o.confrelid AND a.attnum = k.attnum),
  o.confdeltype::text, o.confupdtype::text, o.condeferred,
  CASE o.contype WHEN 'c' THEN pg_catalog.pg_get_expr(o.conbin, o.conrelid) END
FROM pg_catalog.pg_constraint o
WHERE o.conrelid <> 0 AND o.contype IN ('p', 'u', 'f', 'c', 'x')
ORDER BY o.conrelid, o.contype <> 'p', o.conname";

/// What else tables have: their triggers, unique indexes that are no constraints, row security.
const BESIDES: &str = "
SELECT t.tgrelid, 'the trigger ' || t.tgname FROM pg_catalog.pg_trigger t
WHERE NOT t.tgisinternal AND t.tgname NOT LIKE 'tidewater%'
UNION ALL
SELECT i.indrelid, 'the unique index ' || c.relname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indisunique AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_constraint o WHERE o.conindid = i.indexrelid)
UNION ALL
SELECT c.oid, 'row security' FROM pg_catalog.pg_class c WHERE c.relrowsecurity
ORDER BY 1, 2";

/// Translates the database that a URL names, with its rows or without; `most_bytes`: so much of
/// them at most.
///
/// # Errors
/// The database cannot be read, or its rows are more.
pub async fn translate(
    url: &str,
    with_rows: bool,
    most_bytes: u64,
) -> std::result::Result<SqliteTranslation, CentreError> {
    let mut connection = PostgresConnection::first(&address(url)?).await?;
    let client = connection.client_mut();
    let begin = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true);
    let reading = begin.start().await.map_err(statement_failed(READING))?;
    let tables = tables(&reading).await?;
    let mut translation = SqliteTranslation::default();
    let tables = without_namesakes(tables, &mut translation);
    let names: BTreeMap<u32, &str> = tables.iter().map(|it| (it.oid, &*it.name)).collect();
    let constraints = query(&reading, CONSTRAINTS).await?;
    let mut left = most_bytes;
    for table in &tables {
        let of_table = constraints
            .iter()
            .filter(|it| it.get::<_, u32>(0) == table.oid);
        let of_table: Vec<&Row> = of_table.collect();
        let mut translated = described(table, &of_table, &names, &mut translation.left_out);
        if with_rows {
            translated.rows = rows(&reading, table, &mut left).await?;
        }
        translation.tables.push(translated);
    }
    for row in query(&reading, BESIDES).await? {
        if let Some(name) = names.get(&row.get::<_, u32>(0)) {
            let what: String = row.get(1);
            translation.left_out.push(format!("{what} of {name}"));
        }
    }
    Ok(translation)
}

const READING: &str = "reading the database to translate it";

async fn query(reading: &Transaction<'_>, sql: &str) -> Result<Vec<Row>> {
    reading
        .query(sql, &[])
        .await
        .map_err(statement_failed(READING))
}

async fn tables(reading: &Transaction<'_>) -> Result<Vec<SourceTable>> {
    let mut tables: Vec<SourceTable> = Vec::new();
    for row in query(reading, TABLES).await? {
        let oid = row.get(0);
        if tables.last().is_none_or(|it| it.oid != oid) {
            tables.push(SourceTable {
                oid,
                schema: row.get(1),
                name: row.get(2),
                columns: Vec::new(),
            });
        }
        let default: Option<String> = row.get(8);
        let is_sequence = |it: &String| it.starts_with("nextval(");
        if let Some(table) = tables.last_mut() {
            table.columns.push(SourceColumn {
                name: row.get(3),
                declared: row.get(4),
                is_not_null: row.get(5),
                is_generated: row.get(6),
                is_numbered: row.get(7) || default.as_ref().is_some_and(is_sequence),
                default: default.filter(|it| !is_sequence(it)),
            });
        }
    }
    Ok(tables)
}

/// SQLite has no schemas: of tables of one name the first stays.
fn without_namesakes(
    tables: Vec<SourceTable>,
    translation: &mut SqliteTranslation,
) -> Vec<SourceTable> {
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for table in tables {
        if seen.insert(table.name.to_lowercase()) {
            translation.names.add(&table.schema, &table.name);
            kept.push(table);
        } else {
            let SourceTable { schema, name, .. } = table;
            let what = format!("the table {schema}.{name}: another schema has one of this name");
            translation.left_out.push(what);
        }
    }
    kept
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|it| quote(it)).collect();
    names.join(", ")
}

/// How SQLite declares a table.
fn described(
    table: &SourceTable,
    constraints: &[&Row],
    names: &BTreeMap<u32, &str>,
    left_out: &mut Vec<String>,
) -> TranslatedTable {
    let key = constraints.iter().find(|it| it.get::<_, String>(2) == "p");
    let key: Vec<String> = key.map_or_else(Vec::new, |it| it.get(3));
    let mut translated = TranslatedTable {
        name: table.name.clone(),
        parts: Vec::new(),
        checks: Vec::new(),
        columns: table.columns.iter().map(|it| it.name.clone()).collect(),
        rows: Vec::new(),
    };
    // SQLite numbers a key of one column that is declared so.
    let is_row_id = |it: &SourceColumn| it.is_numbered && key == [it.name.clone()];
    for column in &table.columns {
        let part = match is_row_id(column) {
            true => format!("{} INTEGER NOT NULL PRIMARY KEY", quote(&column.name)),
            false => declared(column, &table.name, left_out),
        };
        translated.parts.push(part);
        if let Some(length) = dialect::length(&column.declared) {
            let check = format!("CHECK (length({}) <= {length})", quote(&column.name));
            let what = format!("the length of {}", column.name);
            translated.checks.push((what, check));
        }
    }
    let has_row_id = table.columns.iter().any(is_row_id);
    for constraint in constraints {
        let name: String = constraint.get(1);
        let columns: Vec<String> = constraint.get::<_, Option<_>>(3).unwrap_or_default();
        let columns = listed(&columns);
        match constraint.get::<_, String>(2).as_str() {
            "p" if has_row_id => {}
            "p" => translated.parts.push(format!("PRIMARY KEY ({columns})")),
            "u" => translated.parts.push(format!("UNIQUE ({columns})")),
            "f" => match names.get(&constraint.get::<_, u32>(4)) {
                Some(target) => {
                    let sql = dialect::reference(constraint, &columns, &quote(target));
                    translated.checks.push((name, sql));
                }
                None => left_out.push(format!("the reference {name} of {}", table.name)),
            },
            "c" => {
                let check: Option<String> = constraint.get(9);
                let check = dialect::without_casts(&check.unwrap_or_default());
                translated.checks.push((name, format!("CHECK ({check})")));
            }
            _ => left_out.push(format!("the constraint {name} of {}", table.name)),
        }
    }
    translated
}

/// How SQLite declares a column.
fn declared(column: &SourceColumn, table: &str, left_out: &mut Vec<String>) -> String {
    let SourceColumn { name, declared, .. } = column;
    let known = dialect::declared(declared);
    if known.is_none() {
        left_out.push(format!("the type {declared} of {table}.{name}: it is text"));
    }
    let mut part = format!("{} {}", quote(name), known.unwrap_or("TEXT"));
    if column.is_numbered {
        left_out.push(format!("the numbering of {table}.{name}"));
    } else if column.is_not_null && !column.is_generated {
        part.push_str(" NOT NULL");
    }
    if column.is_generated {
        let what = "it is a column like any other";
        left_out.push(format!("what computes {table}.{name}: {what}"));
        return part;
    }
    if let Some(default) = &column.default {
        match dialect::default(default) {
            Some(default) => part.push_str(&format!(" DEFAULT {default}")),
            None => left_out.push(format!("the default {default} of {table}.{name}")),
        }
    }
    part
}

/// The rows of a table, as SQLite keeps them.
async fn rows(
    reading: &Transaction<'_>,
    table: &SourceTable,
    left: &mut u64,
) -> Result<Vec<Vec<Value>>> {
    let columns = table.columns.iter().map(|it| {
        let name = quote(&it.name);
        dialect::read(&it.declared, &name)
    });
    let columns: Vec<String> = columns.collect();
    let (schema, name) = (quote(&table.schema), quote(&table.name));
    let select = format!("SELECT {} FROM {schema}.{name}", columns.join(", "));
    let reading_rows = query(reading, &select).await?;
    let mut rows = Vec::with_capacity(reading_rows.len());
    for row in reading_rows {
        let mut values = Vec::with_capacity(table.columns.len());
        for at in 0..table.columns.len() {
            let value = dialect::value(&row, at).map_err(statement_failed(READING))?;
            let bytes = match &value {
                Value::Text(text) => text.len() as u64,
                Value::Blob(bytes) => bytes.len() as u64,
                _ => 8,
            };
            *left = left
                .checked_sub(bytes)
                .ok_or_else(|| CentreError::Configuration {
                    message: "the rows of the database are too many to begin every seed with"
                        .into(),
                    hint: "simulate with --empty, or name a smaller database in the configuration"
                        .into(),
                })?;
            values.push(value);
        }
        rows.push(values);
    }
    Ok(rows)
}
