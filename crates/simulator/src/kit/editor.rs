//! Somebody who edits a file at random: rows as its tables allow them, with values that are there
//! already, mostly.
//!
//! Statements are text, so that whoever reads a trace can run them.

use std::cell::Cell;
use std::rc::Rc;

use rusqlite::Connection;
use rusqlite::types::Value;
use tidewater_protocol::{ColumnType, datetime, identity};

use super::editable::{Editable, KeyReference};
use super::values::quote;
use crate::random::SeededRandom;

/// A text that nobody else has written has this between who wrote it and a number.
const TOKEN: char = '~';

/// Statements of a transaction, at most.
const STATEMENTS: u64 = 4;

/// How the statements of a transaction went.
#[derive(Clone, Debug, Default)]
pub(super) struct EditReport {
    /// Those that were done.
    pub(super) statements: Vec<String>,
    pub(super) inserts: u64,
    pub(super) updates: u64,
    pub(super) deletes: u64,
    /// Those that the file itself refused.
    pub(super) impossible: u64,
}

/// An editor of one file.
pub(super) struct Editor {
    name: String,
    random: SeededRandom,
    count: u64,
    /// The last number that was given to a row of the world.
    numbers: Rc<Cell<i64>>,
    /// The names of users, which partitions often go by.
    users: Vec<String>,
    now_ms: i64,
}

/// A row that a later statement of the transaction may refer to.
struct Parent {
    table: usize,
    values: Vec<(usize, Value)>,
}

/// The mark in a text that an editor has made, if there is one.
pub(super) fn token(text: &str) -> Option<String> {
    let at = text.find(TOKEN)?;
    let is_name = |it: &char| it.is_ascii_alphanumeric();
    let begin = text[..at].chars().rev().take_while(is_name).count();
    let number: String = text[at + 1..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    (begin > 0 && !number.is_empty()).then(|| format!("{}{TOKEN}{number}", &text[at - begin..at]))
}

impl Editor {
    pub(super) fn new(
        name: &str,
        random: SeededRandom,
        numbers: &Rc<Cell<i64>>,
        users: &[String],
    ) -> Editor {
        Editor {
            name: name.to_owned(),
            random,
            count: 0,
            numbers: numbers.clone(),
            users: users.to_vec(),
            now_ms: 0,
        }
    }

    /// Runs some statements in the transaction that the connection has open.
    pub(super) fn edit(
        &mut self,
        connection: &Connection,
        tables: &[Editable],
        now_ms: i64,
    ) -> rusqlite::Result<EditReport> {
        self.now_ms = now_ms;
        let mut edited = EditReport::default();
        let mut parent: Option<Parent> = None;
        for _ in 0..self.random.between(1, STATEMENTS) {
            let Some(table) = self.any_table(tables, parent.as_ref()) else {
                break;
            };
            let chance = self.random.below(100);
            let is_child = parent
                .as_ref()
                .is_some_and(|it| refers(&tables[table], it.table));
            match chance {
                _ if is_child => {
                    let made =
                        self.insert(connection, tables, table, parent.as_ref(), &mut edited)?;
                    parent = made.or(parent);
                }
                0..=39 => parent = self.insert(connection, tables, table, None, &mut edited)?,
                40..=89 => self.update(connection, tables, table, &mut edited)?,
                _ => self.delete(connection, &tables[table], &mut edited)?,
            }
        }
        Ok(edited)
    }

    /// Where the next statement goes: mostly to a table that is published, and behind a new row
    /// often to one that refers to it.
    fn any_table(&mut self, tables: &[Editable], parent: Option<&Parent>) -> Option<usize> {
        let places: Vec<usize> = (0..tables.len()).collect();
        if let Some(parent) = parent
            && self.random.percent(60)
        {
            let children = places
                .iter()
                .filter(|&&it| refers(&tables[it], parent.table));
            let children: Vec<usize> = children.copied().collect();
            if let Some(child) = self.random.pick(&children) {
                return Some(child);
            }
        }
        let published = places.iter().filter(|&&it| tables[it].is_published);
        let published: Vec<usize> = published.copied().collect();
        match self.random.percent(85) {
            true => self.random.pick(&published),
            false => self.random.pick(&places),
        }
    }

    fn insert(
        &mut self,
        connection: &Connection,
        tables: &[Editable],
        place: usize,
        parent: Option<&Parent>,
        edited: &mut EditReport,
    ) -> rusqlite::Result<Option<Parent>> {
        let table = &tables[place];
        // What is new of its own first; if that cannot be, what is there already.
        for only_known in [false, true] {
            let mut values: Vec<(usize, Value)> = Vec::new();
            for field in 0..table.fields.len() {
                let known = &table.fields[field];
                let is_key = table.key.contains(&field);
                if !known.is_writable || (is_key && self.leaves_out(table, field)) {
                    continue;
                }
                let referred = table.reference_of(field);
                let of_parent = referred.and_then(|(reference, to)| {
                    let parent = parent.filter(|it| it.table == reference.parent)?;
                    let mut values = parent.values.iter();
                    values.find(|it| it.0 == to).map(|it| it.1.clone())
                });
                let value = match (of_parent, referred) {
                    (Some(value), _) => value,
                    (None, Some((reference, to))) => {
                        let chosen = values.iter().map(|it| (it.0, &it.1)).collect::<Vec<_>>();
                        self.referred(connection, tables, table, (field, reference, to), &chosen)?
                    }
                    (None, None) if is_key => self.key_value(connection, table, field)?,
                    (None, None) => {
                        if known.has_default && self.random.percent(25) {
                            continue;
                        }
                        self.value(connection, table, field, only_known)?
                    }
                };
                values.push((field, value));
            }
            if values.is_empty() {
                return Ok(None);
            }
            let names = values.iter().map(|it| quote(&table.fields[it.0].name));
            let names: Vec<String> = names.collect();
            let literals: Vec<String> = values.iter().map(|it| literal(&it.1)).collect();
            let sql = format!(
                "INSERT INTO {} ({}) VALUES ({})",
                quote(&table.name),
                names.join(", "),
                literals.join(", ")
            );
            if run(connection, &sql, edited)? {
                edited.inserts += 1;
                return Ok(Some(Parent {
                    table: place,
                    values,
                }));
            }
        }
        Ok(None)
    }

    /// Whether the number of a new row is left to the product, or to SQLite.
    fn leaves_out(&mut self, table: &Editable, field: usize) -> bool {
        table.numbered == Some(field) && self.random.percent(80)
    }

    fn update(
        &mut self,
        connection: &Connection,
        tables: &[Editable],
        place: usize,
        edited: &mut EditReport,
    ) -> rusqlite::Result<()> {
        let table = &tables[place];
        let Some(condition) = self.any_row(connection, table)? else {
            return Ok(());
        };
        let fields = (0..table.fields.len())
            .filter(|it| table.fields[*it].is_writable && !table.key.contains(it));
        let fields: Vec<usize> = fields.collect();
        for only_known in [false, true] {
            let mut set: Vec<(usize, Value)> = Vec::new();
            for _ in 0..self.random.between(1, 2) {
                let Some(field) = self.random.pick(&fields) else {
                    return Ok(());
                };
                if set.iter().any(|it| it.0 == field) {
                    continue;
                }
                let value = match table.reference_of(field) {
                    // A row that belongs elsewhere from now on is a rare thing.
                    Some(_) if self.random.percent(60) => continue,
                    Some((reference, to)) => {
                        self.referred(connection, tables, table, (field, reference, to), &[])?
                    }
                    None => self.value(connection, table, field, only_known)?,
                };
                set.push((field, value));
            }
            if set.is_empty() {
                return Ok(());
            }
            let set = set
                .iter()
                .map(|it| format!("{} = {}", quote(&table.fields[it.0].name), literal(&it.1)));
            let set: Vec<String> = set.collect();
            let name = quote(&table.name);
            let sql = format!("UPDATE {name} SET {} WHERE {condition}", set.join(", "));
            if run(connection, &sql, edited)? {
                edited.updates += 1;
                return Ok(());
            }
        }
        Ok(())
    }

    fn delete(
        &mut self,
        connection: &Connection,
        table: &Editable,
        edited: &mut EditReport,
    ) -> rusqlite::Result<()> {
        if let Some(condition) = self.any_row(connection, table)? {
            let sql = format!("DELETE FROM {} WHERE {condition}", quote(&table.name));
            if run(connection, &sql, edited)? {
                edited.deletes += 1;
            }
        }
        Ok(())
    }

    /// The condition that names some row.
    fn any_row(
        &mut self,
        connection: &Connection,
        table: &Editable,
    ) -> rusqlite::Result<Option<String>> {
        if table.key.is_empty() {
            return Ok(None);
        }
        let Some(at) = self.any_offset(connection, table)? else {
            return Ok(None);
        };
        let order = table.order();
        let sql = format!(
            "SELECT {order} FROM {} ORDER BY {order} LIMIT 1 OFFSET {at}",
            quote(&table.name)
        );
        connection.query_row(&sql, [], |row| {
            let conditions = table.key.iter().enumerate().map(|(at, &field)| {
                let value: Value = row.get(at)?;
                let name = quote(&table.fields[field].name);
                Ok(format!("{name} = {}", literal(&value)))
            });
            let conditions: Vec<String> = conditions.collect::<rusqlite::Result<_>>()?;
            Ok(Some(conditions.join(" AND ")))
        })
    }

    fn any_offset(
        &mut self,
        connection: &Connection,
        table: &Editable,
    ) -> rusqlite::Result<Option<u64>> {
        let sql = format!("SELECT count(*) FROM {}", quote(&table.name));
        let count: i64 = connection
            .prepare_cached(&sql)?
            .query_row([], |row| row.get(0))?;
        Ok(match count.unsigned_abs() {
            0 => None,
            count => Some(self.random.below(count)),
        })
    }

    /// The value that some row has in a column.
    fn known(
        &mut self,
        connection: &Connection,
        table: &Editable,
        field: usize,
    ) -> rusqlite::Result<Option<Value>> {
        let Some(at) = self.any_offset(connection, table)? else {
            return Ok(None);
        };
        let (name, order) = (quote(&table.fields[field].name), table.order());
        let sql = format!(
            "SELECT {name} FROM {} ORDER BY {order} LIMIT 1 OFFSET {at}",
            quote(&table.name)
        );
        let value: Value = connection.query_row(&sql, [], |row| row.get(0))?;
        // What an editor has made is its own.
        let is_made = matches!(&value, Value::Text(text) if token(text).is_some());
        Ok((!is_made).then_some(value))
    }

    /// What a column that refers to another table is to hold.
    fn referred(
        &mut self,
        connection: &Connection,
        tables: &[Editable],
        table: &Editable,
        (field, reference, to): (usize, &KeyReference, usize),
        chosen: &[(usize, &Value)],
    ) -> rusqlite::Result<Value> {
        let of_key = table.key.contains(&field);
        if table.fields[field].is_nullable && !of_key && self.random.percent(15) {
            return Ok(Value::Null);
        }
        let parent = &tables[reference.parent];
        let (name, order) = (quote(&parent.name), parent.order());
        // Columns of one reference name one row.
        let before = reference.fields.iter().zip(&reference.parent_fields);
        let before = before.filter_map(|(own, theirs)| {
            let value = chosen.iter().find(|it| it.0 == *own)?.1;
            let name = quote(&parent.fields[*theirs].name);
            Some(format!("{name} IS {}", literal(value)))
        });
        let mut conditions: Vec<String> = before.collect();
        conditions.push("1".into());
        let conditions = conditions.join(" AND ");
        let sql = format!("SELECT count(*) FROM {name} WHERE {conditions}");
        let count: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
        if count == 0 {
            return match of_key {
                true => self.key_value(connection, table, field),
                false => self.value(connection, table, field, false),
            };
        }
        let at = self.random.below(count.unsigned_abs());
        let to = quote(&parent.fields[to].name);
        let sql = format!(
            "SELECT {to} FROM {name} WHERE {conditions} ORDER BY {order} LIMIT 1 OFFSET {at}"
        );
        connection.query_row(&sql, [], |row| row.get(0))
    }

    /// A key that nobody has, mostly.
    fn key_value(
        &mut self,
        connection: &Connection,
        table: &Editable,
        field: usize,
    ) -> rusqlite::Result<Value> {
        let column_type = table.fields[field].column_type;
        let column_type = column_type.unwrap_or(ColumnType::Integer);
        if table.key.len() > 1 && self.random.percent(60) {
            // Together with the others it is new.
            if let Some(value) = self.known(connection, table, field)? {
                return Ok(value);
            }
        }
        let number = match self.random.percent(6) {
            // Somebody else may take it, too.
            true => self.numbers.get(),
            false => self.numbers.get() + 1,
        };
        self.numbers.set(number.max(self.numbers.get()));
        Ok(match column_type {
            ColumnType::Integer => number.into(),
            ColumnType::Boolean => (number % 2).into(),
            ColumnType::Decimal { scale } => decimal(number, scale).into(),
            ColumnType::Real => (number as f64).into(),
            ColumnType::Bytes => number.to_be_bytes().to_vec().into(),
            ColumnType::Date | ColumnType::Time => self.made(column_type),
            ColumnType::Timestamp | ColumnType::TimestampTz => time(column_type, number * 1_000),
            ColumnType::Uuid => {
                let mut bytes = [0; 16];
                self.random.fill(&mut bytes);
                bytes[8..].copy_from_slice(&number.to_be_bytes());
                let mut text = String::new();
                identity::push_uuid(&bytes, &mut text);
                text.into()
            }
            ColumnType::Text | ColumnType::Json | ColumnType::Opaque => {
                self.count += 1;
                format!("{}{TOKEN}{}", self.name, self.count).into()
            }
        })
    }

    /// What a column is to hold: something that is there already, or something new.
    fn value(
        &mut self,
        connection: &Connection,
        table: &Editable,
        field: usize,
        only_known: bool,
    ) -> rusqlite::Result<Value> {
        let known = &table.fields[field];
        if known.is_nullable && self.random.percent(12) {
            return Ok(Value::Null);
        }
        let likely = if only_known { 100 } else { 45 };
        let value = match self.random.percent(likely) || known.column_type.is_none() {
            true => self.known(connection, table, field)?,
            false => None,
        };
        if let Some(value) = value {
            return Ok(value);
        }
        let column_type = known.column_type.unwrap_or(ColumnType::Text);
        if column_type == ColumnType::Text && self.random.percent(10) {
            let places: Vec<usize> = (0..self.users.len()).collect();
            if let Some(user) = self.random.pick(&places) {
                return Ok(self.users[user].clone().into());
            }
        }
        Ok(self.made(column_type))
    }

    fn made(&mut self, column_type: ColumnType) -> Value {
        let number = self.random.below(100) as i64;
        match column_type {
            ColumnType::Integer => number.into(),
            ColumnType::Boolean => (number % 2).into(),
            ColumnType::Decimal { scale } => decimal(number, scale).into(),
            ColumnType::Real => (number as f64 / 4.0).into(),
            ColumnType::Bytes => vec![number as u8; 8].into(),
            ColumnType::Time => {
                let mut text = String::new();
                datetime::push_time(number * 60_000_000, &mut text);
                text.into()
            }
            ColumnType::Date => {
                let mut text = String::new();
                datetime::push_date(self.now_ms / 86_400_000 - number, &mut text);
                text.into()
            }
            ColumnType::Timestamp | ColumnType::TimestampTz => {
                time(column_type, self.now_ms - number * 1_000)
            }
            ColumnType::Uuid => {
                let mut bytes = [0; 16];
                self.random.fill(&mut bytes);
                let mut text = String::new();
                identity::push_uuid(&bytes, &mut text);
                text.into()
            }
            ColumnType::Json => format!("{{\"n\":{number}}}").into(),
            ColumnType::Text | ColumnType::Opaque => {
                self.count += 1;
                format!("{}{TOKEN}{}", self.name, self.count).into()
            }
        }
    }
}

fn refers(table: &Editable, to: usize) -> bool {
    table.references.iter().any(|it| it.parent == to)
}

fn decimal(number: i64, scale: Option<u16>) -> String {
    match scale.unwrap_or_default() {
        0 => number.to_string(),
        scale => format!("{number}.{:0<1$}", (number % 9).max(1), usize::from(scale)),
    }
}

fn time(column_type: ColumnType, ms: i64) -> Value {
    let mut text = String::new();
    match column_type {
        ColumnType::TimestampTz => datetime::push_timestamptz(ms * 1_000, &mut text),
        _ => datetime::push_timestamp(ms * 1_000, &mut text),
    }
    text.into()
}

/// A value as SQL.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) if real.is_finite() => format!("{real:?}"),
        Value::Real(real) if real.is_nan() => "NULL".into(),
        Value::Real(real) => (if *real > 0.0 { "9e999" } else { "-9e999" }).into(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Blob(bytes) => {
            let digits: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
            format!("x'{digits}'")
        }
    }
}

/// Runs a statement; false, and nothing has happened, if the file does not take it.
fn run(connection: &Connection, sql: &str, edited: &mut EditReport) -> rusqlite::Result<bool> {
    connection.execute_batch("SAVEPOINT edit")?;
    match connection.execute(sql, []) {
        Ok(_) => {
            connection.execute_batch("RELEASE edit")?;
            edited.statements.push(sql.to_owned());
            Ok(true)
        }
        Err(error) if crate::application::is_busy(&error) => Err(error),
        Err(_) if !connection.is_autocommit() => {
            connection.execute_batch("ROLLBACK TO edit; RELEASE edit")?;
            edited.impossible += 1;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_in_whatever_a_script_has_made_of_it() {
        assert_eq!(token("r0~17").as_deref(), Some("r0~17"));
        assert_eq!(token("copy of r0~17 (2)").as_deref(), Some("r0~17"));
        assert_eq!(token("about ~ 17"), None);
    }

    #[test]
    fn decimals_have_the_digits_of_their_scale() {
        assert_eq!(decimal(7, Some(2)), "7.70");
        assert_eq!(decimal(7, None), "7");
    }
}
