//! Rows and keys as JSON text, as conflicts and refused rows are kept for people.
//!
//! Numbers that JSON readers would round (decimals) and what JSON cannot say (NaN,
//! infinities, blobs) are strings.

use tidewater_protocol::{Datum, ValueRef};

/// A row as a JSON object, its columns in the given order.
pub(crate) fn row<'n>(names: impl Iterator<Item = &'n str>, values: &[Datum<'_>]) -> String {
    let mut json = String::from("{");
    for (index, (name, value)) in names.zip(values).enumerate() {
        if index > 0 {
            json.push(',');
        }
        push_string(&mut json, name);
        json.push(':');
        push_value(&mut json, value);
    }
    json.push('}');
    json
}

/// A key as a JSON array.
pub(crate) fn key(values: &[Datum<'_>]) -> String {
    let mut json = String::from("[");
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        push_value(&mut json, value);
    }
    json.push(']');
    json
}

fn push_value(json: &mut String, value: &Datum<'_>) {
    let mut scratch = String::new();
    match (value, value.stored(&mut scratch)) {
        (Datum::Boolean(boolean), _) => json.push_str(if *boolean { "true" } else { "false" }),
        (_, ValueRef::Null) => json.push_str("null"),
        (_, ValueRef::Integer(integer)) => json.push_str(&integer.to_string()),
        (_, ValueRef::Real(real)) if real.is_finite() => {
            json.push_str(&serde_json::Value::from(real).to_string());
        }
        (_, ValueRef::Text(text)) => push_string(json, text),
        (_, ValueRef::Real(_) | ValueRef::Blob(_)) => push_string(json, &value.to_string()),
    }
}

fn push_string(json: &mut String, text: &str) {
    json.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::ColumnType;

    #[test]
    fn every_kind_of_value_has_its_json() {
        let decimal = ColumnType::Decimal { scale: Some(2) };
        let values = [
            Datum::Integer(7),
            decimal.datum(ValueRef::Text("1.50")).0,
            Datum::Real(0.5),
            Datum::Real(f64::INFINITY),
            Datum::Boolean(true),
            Datum::Text("a\"b\n"),
            Datum::Bytes(&[0, 255]),
            Datum::Date(0),
            Datum::Null,
            Datum::Loose(ValueRef::Text("odd")),
        ];
        let names = ["i", "d", "r", "inf", "b", "t", "x", "day", "n", "l\"q"];
        assert_eq!(
            row(names.into_iter(), &values),
            r#"{"i":7,"d":"1.50","r":0.5,"inf":"inf","b":true,"t":"a\"b\n","x":"x'00ff'","day":"1970-01-01","n":null,"l\"q":"odd"}"#
        );
        assert_eq!(key(&values[..2]), r#"[7,"1.50"]"#);
    }
}
