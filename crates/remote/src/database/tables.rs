//! User tables and their change tables: names, definitions, indexes.
//!
//! Owns every name that is derived from a published table, and the DDL. When the DDL runs
//! is decided by [`super::apply`]; what fills the change tables is [`super::triggers`].

pub(crate) mod canonical;

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension};
use tidewater_protocol::{
    Column, ColumnType, ForeignKey, ForeignKeyAction, PublicationSchema, Table, Value,
};

use super::layout::PREFIX;
use super::{quote, row};
use crate::error::{ErrorContext, RemoteError};

/// So many tables are looked at by one statement: what SQLite takes in one is limited.
pub(crate) const TABLES_AT_ONCE: usize = 100;

/// The names of a published table in SQL, quoted.
#[derive(Clone, Debug)]
pub(crate) struct QuotedNames {
    /// The user table.
    pub(crate) table: String,
    /// The change table.
    pub(crate) change: String,
    /// The columns of the user table, in the schema's order.
    pub(crate) columns: Vec<String>,
    /// The key columns of the user table, in key order.
    pub(crate) key: Vec<String>,
    /// The same columns in the change table.
    pub(crate) change_key: Vec<String>,
    /// The types of the key columns.
    key_types: Vec<ColumnType>,
    /// The columns that are not part of the key, as indexes into the schema's.
    pub(crate) values: Vec<usize>,
    /// The same columns in the change table.
    pub(crate) pre: Vec<String>,
    /// The table of changed keys.
    pub(crate) rekeyed: String,
    /// The key columns in it: those of the new key, and those of the old one.
    pub(crate) new_key: Vec<String>,
    pub(crate) old_key: Vec<String>,
}

impl QuotedNames {
    pub(crate) fn for_table(table: &Table) -> QuotedNames {
        let change_column = |prefix: &str, index: usize| {
            quote::name(&format!("{prefix}{}", table.columns[index].name))
        };
        let key = |prefix: &str| -> Vec<String> {
            let key = table.key.iter();
            key.map(|&index| change_column(prefix, index)).collect()
        };
        let values: Vec<usize> = (0..table.columns.len())
            .filter(|index| !table.key.contains(index))
            .collect();
        QuotedNames {
            table: quote::name(&table.name),
            change: quote::name(&change_table(&table.name)),
            columns: table
                .columns
                .iter()
                .map(|column| quote::name(&column.name))
                .collect(),
            key: table
                .key_columns()
                .map(|column| quote::name(&column.name))
                .collect(),
            change_key: key("key_"),
            rekeyed: quote::name(&rekeyed_table(&table.name)),
            new_key: key("new_"),
            old_key: key("old_"),
            key_types: row::key_types(table),
            pre: values
                .iter()
                .map(|&index| change_column("pre_", index))
                .collect(),
            values,
        }
    }

    /// `change.key_a = row.a AND ...`: the change rows of a row, by two aliases.
    pub(crate) fn change_of(&self, change: &str, row: &str) -> String {
        let pairs = self.change_key.iter().zip(&self.key);
        quote::list(pairs, " AND ", |(change_key, key)| {
            format!("{change}.{change_key} = {row}.{key}")
        })
    }

    /// `a = ?1 AND b = ?2 ...` over the user table.
    pub(crate) fn key_is_bound(&self) -> String {
        bound(&self.key)
    }

    /// `key_a = ?1 AND key_b = ?2 ...` over the change table.
    pub(crate) fn change_key_is_bound(&self) -> String {
        bound(&self.change_key)
    }

    /// The same over an alias of the change table, where the user table is beside it: that may
    /// have a column `key_a` of its own.
    pub(crate) fn change_key_is_bound_in(&self, change: &str) -> String {
        quote::list(
            self.change_key.iter().enumerate(),
            " AND ",
            |(index, column)| format!("{change}.{column} = ?{}", index + 1),
        )
    }

    /// Which of the key's columns are of bytes.
    pub(crate) fn key_is_bytes(&self) -> impl Iterator<Item = bool> {
        let types = self.key_types.iter();
        types.map(|column_type| *column_type == ColumnType::Bytes)
    }

    /// Binds an owned key to the parameters from 1 on.
    pub(crate) fn bind_key(
        &self,
        statement: &mut rusqlite::Statement<'_>,
        key: &[Value],
    ) -> rusqlite::Result<()> {
        for (index, (value, column_type)) in key.iter().zip(&self.key_types).enumerate() {
            let of_bytes = *column_type == ColumnType::Bytes;
            let value = row::BoundValue::for_key(value.as_ref(), of_bytes);
            statement.raw_bind_parameter(index + 1, value)?;
        }
        Ok(())
    }
}

fn bound(columns: &[String]) -> String {
    quote::list(columns.iter().enumerate(), " AND ", |(index, column)| {
        format!("{column} = ?{}", index + 1)
    })
}

/// The name of a table's change table.
pub(crate) fn change_table(table: &str) -> String {
    format!("{PREFIX}change_{table}")
}

/// The name of the table of a table's changed keys.
pub(crate) fn rekeyed_table(table: &str) -> String {
    format!("{PREFIX}rekeyed_{table}")
}

/// Checks that a schema can be laid out at all.
pub(crate) fn check_schema(schema: &PublicationSchema) -> Result<(), RemoteError> {
    let unusable = |what: String| RemoteError::SchemaUnusable {
        publication: schema.name.clone(),
        what,
    };
    if let Some(what) = schema.unusable_name() {
        return Err(unusable(what));
    }
    for table in &schema.tables {
        for column in &table.columns {
            if let Some(default) = &column.default
                && !is_literal(default)
                && !is_computed(default)
            {
                return Err(unusable(format!(
                    "table {:?}: the default of column {:?} is not a literal",
                    table.name, column.name
                )));
            }
        }
        let mut checks = table.checks.iter();
        if let Some(check) = checks.find(|it| !is_one_expression(&it.condition)) {
            return Err(unusable(format!(
                "table {:?}: the rule {:?} is more than a condition",
                table.name, check.name
            )));
        }
    }
    Ok(())
}

/// A free name for what is left of a table that is not synced any more.
pub(crate) fn aside_name(connection: &Connection, table: &str) -> Result<String, RemoteError> {
    let mut number = 1;
    loop {
        let name = format!("{table}_unsynced_{number}");
        if !name_is_taken(connection, &name)? {
            return Ok(name);
        }
        number += 1;
    }
}

/// Whether something in the file, that is not ours, has the name already.
pub(crate) fn name_is_taken(connection: &Connection, name: &str) -> Result<bool, RemoteError> {
    connection
        .query_row(
            "SELECT 1 FROM sqlite_master WHERE name = ?1 COLLATE NOCASE \
             AND type IN ('table', 'view', 'index')",
            [name],
            |_| Ok(()),
        )
        .optional()
        .map(|found| found.is_some())
        .doing("looking for tables in the way")
}

/// Whether a default is one SQL literal and nothing more: it comes from the server and
/// stands unquoted in our DDL, which SQLite 3.9 has to understand (it has no TRUE).
fn is_literal(default: &str) -> bool {
    let quoted = |text: &str| {
        text.strip_prefix('\'')
            .and_then(|rest| rest.strip_suffix('\''))
            .is_some_and(|inner| !inner.replace("''", "").contains('\''))
    };
    let upper = default.to_ascii_uppercase();
    let word = matches!(
        upper.as_str(),
        "NULL" | "CURRENT_TIMESTAMP" | "CURRENT_DATE" | "CURRENT_TIME"
    );
    let unsigned = default.strip_prefix(['-', '+']).unwrap_or(default);
    let number = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && unsigned
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'))
        && unsigned.parse::<f64>().is_ok();
    let blob = default.strip_prefix(['x', 'X']).is_some_and(|rest| {
        quoted(rest)
            && rest[1..rest.len() - 1].len() % 2 == 0
            && rest[1..rest.len() - 1]
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit())
    });
    word || number || blob || quoted(default)
}

/// Whether a default is an expression, in parentheses.
pub(crate) fn is_computed(default: &str) -> bool {
    default.starts_with('(') && is_one_expression(default)
}

/// Whether a text from the server is one expression: what it opens it closes, and nothing follows.
fn is_one_expression(text: &str) -> bool {
    let (mut depth, mut quote) = (0_i32, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, ';' | '`' | '[' | '\0') => return false,
            (None, '-' | '/') if matches!(&text[at + 1..].chars().next(), Some('-' | '*')) => {
                return false;
            }
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0 && quote.is_none() && !text.trim().is_empty()
}

/// What a key that is not in canonical form is told.
pub(crate) fn canonical_name(column: &Column) -> String {
    let form = canonical::form(column.column_type);
    format!("{} in canonical form: {form}", column.name)
}

/// The key columns, and the conditions that their values are in canonical form;
/// `row` goes before the columns (`NEW.`).
pub(crate) fn key_checks<'t>(
    table: &'t Table,
    row: &'t str,
) -> impl Iterator<Item = (&'t Column, String)> {
    table.key_columns().map(move |column| {
        let name = format!("{row}{}", quote::name(&column.name));
        (column, canonical::check(column.column_type, &name))
    })
}

/// The statement that creates a user table under the given name.
pub(crate) fn create_user_table(table: &Table, schema: &PublicationSchema, name: &str) -> String {
    let names = QuotedNames::for_table(table);
    let mut parts = Vec::new();
    for (index, column) in table.columns.iter().enumerate() {
        let mut part = format!(
            "{} {}",
            names.columns[index],
            column.column_type.sqlite_type()
        );
        let in_key = table.key.contains(&index);
        let has_numbers = table.identity.is_some_and(|it| it.column == index);
        if has_numbers {
            // INTEGER could make it the rowid, which SQLite numbers by its own rule.
            part = format!("{} INT", names.columns[index]);
        } else if in_key || !column.nullable {
            part.push_str(" NOT NULL");
        }
        if let Some(default) = &column.default {
            part.push_str(&format!(" DEFAULT {default}"));
        }
        let mut checks = key_checks(table, "");
        if let Some((_, check)) = checks.find(|(key, _)| key.name == column.name) {
            let until_numbered = match has_numbers {
                true => format!("{} IS NULL OR ", names.columns[index]),
                false => String::new(),
            };
            part.push_str(&format!(
                " CONSTRAINT {} CHECK ({until_numbered}{check})",
                quote::name(&canonical_name(column))
            ));
        }
        parts.push(part);
    }
    parts.push(format!("PRIMARY KEY ({})", names.key.join(", ")));
    for foreign_key in &table.foreign_keys {
        if enforceable(foreign_key, schema) {
            parts.push(foreign_key_clause(foreign_key, &names));
        }
    }
    let checks = table.checks.iter().map(|check| {
        let (name, condition) = (quote::name(&check.name), &check.condition);
        format!("CONSTRAINT {name} CHECK ({condition})")
    });
    parts.extend(checks);
    let without_rowid = match table.identity {
        Some(_) => "",
        None => " WITHOUT ROWID",
    };
    format!(
        "CREATE TABLE {} (\n  {}\n){without_rowid}",
        quote::name(name),
        parts.join(",\n  ")
    )
}

/// SQLite wants the referred columns to be unique; on remotes only the primary key is.
pub(crate) fn enforceable(foreign_key: &ForeignKey, schema: &PublicationSchema) -> bool {
    let Some(parent) = schema.table(&foreign_key.parent) else {
        return false;
    };
    let wanted: HashSet<&str> = foreign_key
        .parent_columns
        .iter()
        .map(String::as_str)
        .collect();
    let key: HashSet<&str> = parent
        .key_columns()
        .map(|column| column.name.as_str())
        .collect();
    wanted == key && foreign_key.parent_columns.len() == key.len()
}

fn foreign_key_clause(foreign_key: &ForeignKey, names: &QuotedNames) -> String {
    let action = |action: ForeignKeyAction| match action {
        ForeignKeyAction::NoAction => "NO ACTION",
        ForeignKeyAction::Restrict => "RESTRICT",
        ForeignKeyAction::Cascade => "CASCADE",
        ForeignKeyAction::SetNull => "SET NULL",
        ForeignKeyAction::SetDefault => "SET DEFAULT",
    };
    format!(
        "FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {} ON UPDATE {}",
        quote::list(&foreign_key.columns, ", ", |&index| names.columns[index]
            .clone()),
        quote::name(&foreign_key.parent),
        quote::list(&foreign_key.parent_columns, ", ", |column| quote::name(
            column
        )),
        action(foreign_key.on_delete),
        action(foreign_key.on_update),
    )
}

/// The statement that creates a change table under the given name. Its columns are declared
/// like the user table's, so that affinity changes nothing on the way.
pub(crate) fn create_change_table(table: &Table, name: &str) -> String {
    let names = QuotedNames::for_table(table);
    let mut parts = Vec::new();
    for (name, column) in names.change_key.iter().zip(table.key_columns()) {
        parts.push(format!(
            "{name} {} NOT NULL",
            column.column_type.sqlite_type()
        ));
    }
    parts.push("generation INTEGER NOT NULL".into());
    parts.push("present INTEGER NOT NULL".into());
    for (name, &index) in names.pre.iter().zip(&names.values) {
        parts.push(format!(
            "{name} {}",
            table.columns[index].column_type.sqlite_type()
        ));
    }
    parts.push(format!(
        "PRIMARY KEY ({}, generation)",
        names.change_key.join(", ")
    ));
    format!(
        "CREATE TABLE {} (\n  {}\n) WITHOUT ROWID",
        quote::name(name),
        parts.join(",\n  ")
    )
}

/// The statements that create the table of a table's changed keys: see [`super::rekeyed`].
pub(crate) fn create_rekeyed_table(table: &Table) -> String {
    let names = QuotedNames::for_table(table);
    let columns = quote::list([&names.new_key, &names.old_key], "", |columns| {
        quote::list(
            columns.iter().zip(table.key_columns()),
            "",
            |(name, column)| format!("  {name} {} NOT NULL,\n", column.column_type.sqlite_type()),
        )
    });
    format!(
        "CREATE TABLE {rekeyed} (\n  generation INTEGER NOT NULL,\n{columns}  \
         PRIMARY KEY (generation, {})\n) WITHOUT ROWID;\n\
         CREATE INDEX {} ON {rekeyed} (generation, {})",
        names.new_key.join(", "),
        quote::name(&former_key_index(&table.name)),
        names.old_key.join(", "),
        rekeyed = names.rekeyed,
    )
}

/// The statements that create a user table's secondary indexes: for the centre's unique
/// constraints and for references. What the primary key already finds gets none.
pub(crate) fn create_indexes(table: &Table) -> Vec<String> {
    let names = QuotedNames::for_table(table);
    let wanted = table.unique.iter().chain(
        table
            .foreign_keys
            .iter()
            .map(|foreign_key| &foreign_key.columns),
    );
    let mut seen: Vec<&[usize]> = vec![&table.key];
    let mut statements = Vec::new();
    for columns in wanted {
        if columns.is_empty() || seen.iter().any(|index| index.starts_with(columns)) {
            continue;
        }
        seen.push(columns);
        statements.push(format!(
            "CREATE INDEX {} ON {} ({})",
            quote::name(&index_name(&table.name, statements.len() + 1)),
            names.table,
            quote::list(columns, ", ", |&index| names.columns[index].clone()),
        ));
    }
    statements
}

/// The name of the index of a table's changed keys by what they were. See [`PREFIX`].
fn former_key_index(table: &str) -> String {
    format!("{PREFIX}former_key_{table}")
}

fn index_name(table: &str, number: usize) -> String {
    format!("{PREFIX}index_{number}_{table}")
}

/// What a row that was there before a column was published holds in it: the default, else
/// NULL, else a zero of the type (until the centre's value arrives).
pub(crate) fn filler(column: &Column) -> String {
    // What is computed would be another value for the row and for its pre-image.
    match column.default.as_ref().filter(|it| !is_computed(it)) {
        Some(default) => default.clone(),
        None if column.nullable => "NULL".into(),
        None => zero(column.column_type),
    }
}

/// A value of the type that satisfies NOT NULL, as an SQL literal.
pub(crate) fn zero(column_type: ColumnType) -> String {
    match column_type {
        ColumnType::Integer | ColumnType::Boolean => "0".into(),
        ColumnType::Real => "0.0".into(),
        ColumnType::Decimal { scale } => match scale {
            Some(scale @ 1..) => format!("'0.{}'", "0".repeat(usize::from(scale))),
            _ => "'0'".into(),
        },
        ColumnType::Text | ColumnType::Opaque => "''".into(),
        ColumnType::Bytes => "x''".into(),
        ColumnType::Date => "'1970-01-01'".into(),
        ColumnType::Time => "'00:00:00.000000'".into(),
        ColumnType::Timestamp => "'1970-01-01T00:00:00.000000'".into(),
        ColumnType::TimestampTz => "'1970-01-01T00:00:00.000000Z'".into(),
        ColumnType::Uuid => "'00000000-0000-0000-0000-000000000000'".into(),
        ColumnType::Json => "'null'".into(),
    }
}

#[cfg(test)]
mod tests;
