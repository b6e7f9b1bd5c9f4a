//! Values as judges compare them: what is equal by its column's type is equal here, wherever it is
//! stored. An SQLite centre and a remote spell decimals, dates and UUIDs in ways of their own.

use rusqlite::types::ValueRef as Stored;
use serde_json::Value as Json;

use tidewater_centre::engine::exact::{canonical, shortest};
use tidewater_protocol::{ColumnType, Datum, ValueRef};

/// The values of a row, in the order of its table's columns.
pub(super) type Row = Vec<Json>;

/// A value as it is compared.
pub(super) fn compared(column_type: ColumnType, stored: Stored<'_>) -> Json {
    understood(column_type, stored, true)
}

/// A value of a key as people are told of it.
pub(super) fn named(column_type: ColumnType, stored: Stored<'_>) -> Json {
    understood(column_type, stored, false)
}

/// A value that the product has told as JSON, as it is compared.
pub(super) fn retold(column_type: ColumnType, told: &Json) -> Json {
    match (column_type, told) {
        (ColumnType::Decimal { .. }, Json::String(text)) => {
            compared(column_type, Stored::Text(text.as_bytes()))
        }
        (ColumnType::Real, Json::Number(number)) => number.as_f64().map_or(Json::Null, Json::from),
        _ => told.clone(),
    }
}

fn understood(column_type: ColumnType, stored: Stored<'_>, is_short: bool) -> Json {
    let text;
    let value = match stored {
        Stored::Null => ValueRef::Null,
        Stored::Integer(integer) => ValueRef::Integer(integer),
        Stored::Real(real) => match column_type {
            ColumnType::Decimal { scale } => {
                text = match scale {
                    Some(scale) => format!("{real:.*}", usize::from(scale)),
                    None => real.to_string(),
                };
                ValueRef::Text(&text)
            }
            _ => ValueRef::Real(real),
        },
        Stored::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => ValueRef::Text(text),
            Err(_) => ValueRef::Blob(bytes),
        },
        Stored::Blob(bytes) => ValueRef::Blob(bytes),
    };
    let datum = match canonical(column_type.datum(value).0) {
        Datum::Decimal(decimal) if is_short => Datum::Decimal(shortest(decimal)),
        datum => datum,
    };
    json(&datum)
}

fn json(datum: &Datum<'_>) -> Json {
    if let Datum::Boolean(boolean) = datum {
        return (*boolean).into();
    }
    let mut scratch = String::new();
    match datum.stored(&mut scratch) {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(integer) => integer.into(),
        ValueRef::Real(real) if real.is_finite() => real.into(),
        ValueRef::Text(text) => text.into(),
        ValueRef::Real(_) | ValueRef::Blob(_) => datum.to_string().into(),
    }
}

/// A name as an SQL identifier.
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_in_two_spellings_is_one() {
        let money = ColumnType::Decimal { scale: Some(2) };
        let text = compared(money, Stored::Text(b"1.50"));
        assert_eq!(compared(money, Stored::Real(1.5)), text);
        assert_eq!(retold(money, &"1.50".into()), text);
        let time = ColumnType::Timestamp;
        assert_eq!(
            compared(time, Stored::Text(b"2026-11-22 11:49:37")),
            compared(time, Stored::Text(b"2026-11-22T11:49:37.000000")),
        );
        assert_eq!(named(money, Stored::Real(1.5)), Json::from("1.50"));
    }
}
