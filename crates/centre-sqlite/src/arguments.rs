//! The parameters of statements that an operator wrote.

use rusqlite::types::Value as Native;
use serde_json::{Value as Json, json};

use tidewater_protocol::{ColumnType, Value};

use super::values::{self, SqliteKind};
use tidewater_centre::engine::flight::SetArgument;

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

/// The parameter that [`set_relation`](tidewater_centre::engine::sql::sql_dialect::SqlDialect::set_relation) reads.
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
