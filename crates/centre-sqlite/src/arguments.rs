//! The parameters of statements that an operator wrote.

use std::fmt::Write as _;

use rusqlite::types::Value as Native;
use serde_json::{Value as Json, json};

use tidewater_protocol::{ColumnType, Value};

use super::values::{self, SqliteKind};
use crate::quote;
use tidewater_centre::engine::flight::SetArgument;
use tidewater_centre::engine::scripts::{ScriptStatement, SetColumn};

/// The parameters of a script's statement.
pub(super) fn of_script(statement: &ScriptStatement, values: &[Value]) -> Vec<Native> {
    let typed = statement.typed().zip(values);
    let natives = typed.map(|((column_type, is_own_time), value)| match is_own_time {
        true => moment(value),
        false => bound(column_type, value),
    });
    natives.collect()
}

/// A time of the server's own, spelled as SQLite's functions spell theirs, to be compared with them.
pub(super) fn moment(value: &Value) -> Native {
    match value {
        Value::Text(text) => {
            let seconds = text.get(..19).unwrap_or(text);
            Native::Text(seconds.replace('T', " "))
        }
        value => bound(ColumnType::TimestampTz, value),
    }
}

/// A value as a parameter.
pub(super) fn bound(column_type: ColumnType, value: &Value) -> Native {
    let (datum, _) = column_type.datum(value.as_ref());
    // A decimal that no number is, is compared and kept as text.
    values::bind(column_type, false, &datum).unwrap_or_else(|_| values::native(value.as_ref()))
}

/// See [`rows_sql`](tidewater_centre::engine::change_tracking::ChangeTracking::rows_sql): one parameter, a JSON
/// array of arrays.
pub(super) fn rows_sql(columns: &[SetColumn], number: usize) -> String {
    let mut sql = String::from("(SELECT ");
    for (at, column) in columns.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let _ = write!(
            sql,
            "{comma}CASE json_type(value, '$[{at}]') WHEN 'object' \
             THEN unhex(json_extract(value, '$[{at}].hex')) \
             ELSE json_extract(value, '$[{at}]') END AS {}",
            quote(&column.name)
        );
    }
    let _ = write!(sql, " FROM json_each(?{number}))");
    sql
}

/// The parameter that [`rows_sql`] reads.
pub(super) fn set_json(set: &SetArgument<'_, SqliteKind>) -> String {
    let rows = set.rows.iter().map(|row| {
        let values = set.columns.iter().zip(row);
        Json::Array(
            values
                .map(|(it, value)| encode(it.column_type, value))
                .collect(),
        )
    });
    Json::Array(rows.collect()).to_string()
}

fn encode(column_type: ColumnType, value: &Value) -> Json {
    match bound(column_type, value) {
        Native::Null => Json::Null,
        Native::Integer(integer) => json!(integer),
        // JSON has no other way to say that there is no end.
        Native::Real(real) if real.is_infinite() => json!(real.signum() * f64::MAX),
        Native::Real(real) => json!(real),
        Native::Text(text) => Json::String(text),
        Native::Blob(bytes) => {
            let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}
