//! The values of one row: all of them as a JSON object, and back; and statements whose parameters are
//! a key and values.

use rusqlite::Connection;
use serde_json::{Map, Value as Json};
use tidewater_protocol::{ColumnType, Table, Value};

use super::row;
use super::tables::QuotedNames;

/// All values of a row, as a JSON object; of one that was deleted, its key.
pub(crate) fn row_values(
    connection: &Connection,
    table: &Table,
    key: &[Value],
) -> rusqlite::Result<String> {
    let names = QuotedNames::for_table(table);
    let types = row::key_types(table);
    let mut values = Map::new();
    for (column, datum) in table.key_columns().zip(row::datums(&types, key)) {
        values.insert(column.name.clone(), row::json(&datum));
    }
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM {} WHERE {}",
        names.columns.join(", "),
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut statement, key)?;
    let mut rows = statement.raw_query();
    if let Some(found) = rows.next()? {
        for (index, column) in table.columns.iter().enumerate() {
            let (datum, _) = row::datum(column.column_type, found.get_ref(index)?);
            values.insert(column.name.clone(), row::json(&datum));
        }
    }
    Ok(serde_json::Value::Object(values).to_string())
}

/// Whether a table has a row under a key.
pub(crate) fn exists(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT 1 FROM {} WHERE {}",
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut statement, key)?;
    let found = statement.raw_query().next()?.is_some();
    Ok(found)
}

/// Runs a statement whose parameters are a key and then values; returns how many rows it changed.
pub(crate) fn run<'v>(
    connection: &Connection,
    names: &QuotedNames,
    sql: &str,
    key: &[Value],
    values: impl Iterator<Item = &'v Value>,
) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(sql)?;
    names.bind_key(&mut statement, key)?;
    for (number, value) in values.enumerate() {
        statement
            .raw_bind_parameter(key.len() + 1 + number, row::BoundValue::new(value.as_ref()))?;
    }
    statement.raw_execute()
}

/// The values that [`row_values`] has made a JSON object of.
pub(crate) fn kept_values(values: &str) -> Option<Map<String, Json>> {
    serde_json::from_str(values).ok()
}

/// A key as it was packed.
pub(crate) fn key_of(table: &Table, packed: &[u8]) -> Option<Vec<Value>> {
    let key = row::unpack_key(&row::key_types(table), packed).ok()?;
    Some(key.iter().map(|datum| datum.to_value()).collect())
}

/// The key among kept values.
pub(crate) fn key_in(table: &Table, kept: &Map<String, Json>) -> Option<Vec<Value>> {
    let columns = table.key_columns();
    columns
        .map(|column| Some(value_of(column.column_type, kept.get(&column.name)?)))
        .collect()
}

/// Reads back what [`row::json`] made.
pub(crate) fn value_of(column_type: ColumnType, json: &Json) -> Value {
    match json {
        Json::Bool(boolean) => Value::Integer(i64::from(*boolean)),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Value::Integer(integer),
            (None, Some(real)) => Value::Real(real),
            (None, None) => Value::Null,
        },
        Json::String(text) if column_type == ColumnType::Bytes => {
            blob(text).map_or_else(|| Value::Text(text.clone()), Value::Blob)
        }
        Json::String(text) if column_type == ColumnType::Real && text != "NaN" => {
            let real = text.parse().map(Value::Real);
            real.unwrap_or_else(|_| Value::Text(text.clone()))
        }
        Json::String(text) => Value::Text(text.clone()),
        Json::Null | Json::Array(_) | Json::Object(_) => Value::Null,
    }
}

/// `x'00ff'`
fn blob(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("x'")?.strip_suffix('\'')?;
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
