//! Arguments of calls: from what a caller has to what a procedure declares.
//!
//! One table for the binary protocol, JSON, command lines and outboxes: who has no type for a
//! value writes it as text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::message::ArgumentValue;
use crate::value::{ColumnType, Fit, Value, ValueRef};

/// Whole numbers up to this size are exact as a real.
const EXACT_REAL: f64 = 9_007_199_254_740_992.0;

/// The names of the types that an argument can have.
pub const ARGUMENT_TYPES: [&str; 12] = [
    "integer",
    "decimal",
    "real",
    "boolean",
    "text",
    "blob",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "uuid",
    "json",
];

/// The type of this name.
pub fn argument_type(name: &str) -> Option<ColumnType> {
    Some(match name {
        "integer" => ColumnType::Integer,
        "decimal" => ColumnType::Decimal { scale: None },
        "real" => ColumnType::Real,
        "boolean" => ColumnType::Boolean,
        "text" => ColumnType::Text,
        "blob" => ColumnType::Bytes,
        "date" => ColumnType::Date,
        "time" => ColumnType::Time,
        "timestamp" => ColumnType::Timestamp,
        "timestamptz" => ColumnType::TimestampTz,
        "uuid" => ColumnType::Uuid,
        "json" => ColumnType::Json,
        _ => return None,
    })
}

/// The name of a type, as a declaration has it.
pub fn type_name(column_type: ColumnType) -> &'static str {
    match column_type {
        ColumnType::Integer => "integer",
        ColumnType::Decimal { .. } => "decimal",
        ColumnType::Real => "real",
        ColumnType::Boolean => "boolean",
        ColumnType::Text | ColumnType::Opaque => "text",
        ColumnType::Bytes => "blob",
        ColumnType::Date => "date",
        ColumnType::Time => "time",
        ColumnType::Timestamp => "timestamp",
        ColumnType::TimestampTz => "timestamptz",
        ColumnType::Uuid => "uuid",
        ColumnType::Json => "json",
    }
}

/// Makes of what was given a value of a type, in the form in which a remote would store it. `None`
/// if it cannot be one.
pub fn coerce(column_type: ColumnType, given: &ArgumentValue) -> Option<Value> {
    use ColumnType::{Boolean, Bytes, Decimal, Integer, Json, Real};
    let value = match (column_type, given) {
        (Json, given) => Value::Text(json(given)?),
        (Bytes, ArgumentValue::Bytes(bytes)) => Value::Blob(bytes.to_vec()),
        (Bytes, ArgumentValue::Text(text)) => Value::Blob(STANDARD.decode(text).ok()?),
        (Boolean, ArgumentValue::Boolean(boolean)) => Value::Integer(i64::from(*boolean)),
        (Integer, ArgumentValue::Real(real)) if real.fract() == 0.0 && real.abs() <= EXACT_REAL => {
            Value::Integer(*real as i64)
        }
        (Integer, ArgumentValue::Text(text)) => Value::Integer(text.trim().parse().ok()?),
        (Real, ArgumentValue::Text(text)) => match text.trim().parse::<f64>() {
            Ok(real) if real.is_finite() => Value::Real(real),
            _ => Value::Text(text.clone()),
        },
        // As short as it can be written, which is what a caller without decimals has meant.
        (Decimal { .. }, ArgumentValue::Real(real)) if real.is_finite() => {
            Value::Text(real.to_string())
        }
        (_, ArgumentValue::Integer(integer)) => Value::Integer(*integer),
        (_, ArgumentValue::Real(real)) => Value::Real(*real),
        (_, ArgumentValue::Text(text)) => Value::Text(text.clone()),
        _ => return None,
    };
    let (datum, fit) = column_type.datum(value.as_ref());
    (fit != Fit::Unfit).then(|| datum.to_value())
}

/// What was given, as the text of a JSON value.
fn json(given: &ArgumentValue) -> Option<String> {
    Some(match given {
        ArgumentValue::Json(text) | ArgumentValue::Text(text) => text.clone(),
        ArgumentValue::Boolean(boolean) => boolean.to_string(),
        ArgumentValue::Integer(integer) => integer.to_string(),
        ArgumentValue::Real(real) if real.is_finite() => real.to_string(),
        ArgumentValue::Real(_) | ArgumentValue::Bytes(_) => return None,
    })
}

/// A value of a type, for a receiver who is to see what it is.
pub fn given(column_type: ColumnType, value: &Value) -> Option<ArgumentValue> {
    match (column_type, value) {
        (ColumnType::Boolean, Value::Integer(integer)) => {
            Some(ArgumentValue::Boolean(*integer != 0))
        }
        (ColumnType::Json, Value::Text(text)) => Some(ArgumentValue::Json(text.clone())),
        (_, value) => value.as_ref().into(),
    }
}

/// The bytes as JSON has them.
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A value as it is stored, for whoever has no type for it.
impl From<ValueRef<'_>> for Option<ArgumentValue> {
    fn from(value: ValueRef<'_>) -> Option<ArgumentValue> {
        Some(match value {
            ValueRef::Null => return None,
            ValueRef::Integer(integer) => ArgumentValue::Integer(integer),
            ValueRef::Real(real) => ArgumentValue::Real(real),
            ValueRef::Text(text) => ArgumentValue::Text(text.to_owned()),
            ValueRef::Blob(bytes) => ArgumentValue::Bytes(bytes.to_vec().into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_becomes_what_is_declared() {
        let text = |text: &str| ArgumentValue::Text(text.into());
        let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
        for (name, given, value) in [
            ("integer", ArgumentValue::Integer(7), Value::Integer(7)),
            ("integer", ArgumentValue::Real(7.0), Value::Integer(7)),
            ("integer", text(" 7"), Value::Integer(7)),
            (
                "decimal",
                ArgumentValue::Real(12.5),
                Value::Text("12.5".into()),
            ),
            (
                "decimal",
                ArgumentValue::Integer(3),
                Value::Text("3".into()),
            ),
            ("real", text("1.5"), Value::Real(1.5)),
            ("real", ArgumentValue::Integer(2), Value::Real(2.0)),
            ("boolean", ArgumentValue::Boolean(true), Value::Integer(1)),
            ("boolean", text("false"), Value::Integer(0)),
            ("text", text("x"), Value::Text("x".into())),
            ("blob", text("AP8="), Value::Blob(vec![0, 255])),
            ("uuid", text(&uuid.to_uppercase()), Value::Text(uuid.into())),
            (
                "timestamp",
                text("2026-11-26 10:00"),
                Value::Text("2026-11-26T10:00:00.000000".into()),
            ),
            (
                "json",
                ArgumentValue::Json("[1]".into()),
                Value::Text("[1]".into()),
            ),
            ("json", ArgumentValue::Integer(1), Value::Text("1".into())),
        ] {
            let column_type = argument_type(name).unwrap();
            assert_eq!(coerce(column_type, &given), Some(value), "{name} {given:?}");
            assert_eq!(type_name(column_type), name);
        }
    }

    #[test]
    fn what_it_cannot_be_is_refused() {
        for (name, given) in [
            ("integer", ArgumentValue::Real(1.5)),
            ("integer", ArgumentValue::Text("seven".into())),
            ("integer", ArgumentValue::Boolean(true)),
            ("text", ArgumentValue::Integer(1)),
            ("blob", ArgumentValue::Text("?".into())),
            ("date", ArgumentValue::Text("yesterday".into())),
            ("json", ArgumentValue::Bytes(vec![1].into())),
        ] {
            let column_type = argument_type(name).unwrap();
            assert_eq!(coerce(column_type, &given), None, "{name} {given:?}");
        }
        assert!(ARGUMENT_TYPES.iter().all(|it| argument_type(it).is_some()));
    }
}
