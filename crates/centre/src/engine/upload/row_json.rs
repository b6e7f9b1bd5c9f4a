//! Rows and keys as JSON text, as conflicts and refused rows are kept for people.
//!
//! Numbers that JSON readers would round (decimals) and what JSON cannot say (NaN,
//! infinities, blobs) are strings.

use serde_json::Value as Json;

use tidewater_protocol::{ColumnType, Datum, Fit, Table, Value, ValueRef};

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

/// A value.
pub(crate) fn json(value: Datum<'_>) -> String {
    let mut json = String::new();
    push_value(&mut json, &value);
    json
}

/// A row that was read.
#[derive(Debug)]
pub(crate) struct ReadRow {
    /// Values by their column.
    pub(crate) values: Vec<(usize, Value)>,
    /// Names of columns that the table does not have.
    pub(crate) unknown: Vec<String>,
}

/// Reads what [`row`] made, or what people write like it.
///
/// # Errors
/// It cannot be read: why.
pub(crate) fn read(table: &Table, json: &str) -> Result<ReadRow, String> {
    let object = match serde_json::from_str(json) {
        Ok(Json::Object(object)) => object,
        Ok(_) => return Err("a row is a JSON object: {\"column\": value, ...}".into()),
        Err(error) => return Err(format!("the row is no JSON: {error}")),
    };
    let mut row = ReadRow {
        values: Vec::new(),
        unknown: Vec::new(),
    };
    for (name, json) in object {
        let Some(column) = table.column(&name) else {
            row.unknown.push(name);
            continue;
        };
        let column_type = table.columns[column].column_type;
        let value = value(column_type, json).map_err(|what| format!("column {name:?}: {what}"))?;
        row.values.push((column, value));
    }
    Ok(row)
}

/// Reads what [`key`] made; `None` if the table has another key.
pub(crate) fn read_key(table: &Table, json: &str) -> Option<Vec<(usize, Value)>> {
    let array: Vec<Json> = serde_json::from_str(json).ok()?;
    if array.len() != table.key.len() {
        return None;
    }
    let values = table.key.iter().zip(array);
    let values = values.map(|(&column, json)| {
        let value = value(table.columns[column].column_type, json).ok()?;
        Some((column, value))
    });
    values.collect()
}

/// A value as remotes store it.
fn value(column_type: ColumnType, json: Json) -> Result<Value, String> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Array(_) | Json::Object(_) if column_type == ColumnType::Json => {
            Value::Text(json.to_string())
        }
        Json::Array(_) | Json::Object(_) => return Err("a value is expected".into()),
        Json::Bool(boolean) => Value::Integer(i64::from(boolean)),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Value::Integer(integer),
            // Of a fraction, a reader of JSON has kept what fits a double.
            _ if matches!(column_type, ColumnType::Decimal { .. }) => {
                return Err(format!("write decimals as text: \"{number}\""));
            }
            (None, Some(real)) => Value::Real(real),
            (None, None) => return Err(format!("{number} is too large")),
        },
        Json::String(text) => match column_type {
            ColumnType::Bytes => blob(&text).ok_or("bytes are written as \"x'00ff'\"")?,
            ColumnType::Real if text != "NaN" => {
                let real = text.parse().map(Value::Real);
                real.unwrap_or(Value::Text(text))
            }
            _ => Value::Text(text),
        },
    })
}

/// A value as people write it where the type is known; `None` if it is none.
pub(crate) fn from_text(column_type: ColumnType, text: &str) -> Option<Value> {
    let read = match column_type {
        ColumnType::Integer => Value::Integer(text.parse().ok()?),
        _ => value(column_type, Json::String(text.to_owned())).ok()?,
    };
    let (_, fit) = column_type.datum(read.as_ref());
    (fit != Fit::Unfit).then_some(read)
}

/// `x'00ff'`
fn blob(text: &str) -> Option<Value> {
    let digits = text.strip_prefix("x'")?.strip_suffix('\'')?;
    let pairs = digits.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>().map(Value::Blob)
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

pub(super) fn datum<'v>(table: &Table, column: usize, value: &'v Value) -> Datum<'v> {
    table.columns[column].column_type.datum(value.as_ref()).0
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

    #[test]
    fn what_is_written_is_read_again() {
        let types = [
            ColumnType::Integer,
            ColumnType::Decimal { scale: Some(2) },
            ColumnType::Real,
            ColumnType::Real,
            ColumnType::Boolean,
            ColumnType::Bytes,
            ColumnType::Date,
            ColumnType::Text,
        ];
        let values = [
            Datum::Integer(i64::MIN),
            types[1].datum(ValueRef::Text("123456789012345678901.50")).0,
            Datum::Real(0.1),
            Datum::Real(f64::NEG_INFINITY),
            Datum::Boolean(false),
            Datum::Bytes(&[0, 255]),
            Datum::Date(1),
            Datum::Null,
        ];
        let names: Vec<String> = (0..types.len()).map(|it| format!("c{it}")).collect();
        let columns = names.iter().zip(types);
        let table = Table {
            name: "t".into(),
            columns: columns
                .map(|(name, column_type)| tidewater_protocol::Column {
                    name: name.clone(),
                    column_type,
                    nullable: true,
                    default: None,
                })
                .collect(),
            key: vec![1, 0],
            partition: Vec::new(),
            unique: Vec::new(),
            foreign_keys: Vec::new(),
            direction: tidewater_protocol::Direction::Both,
            checks: Vec::new(),
            identity: None,
        };
        let written = row(names.iter().map(String::as_str), &values);
        let mut found = read(&table, &written).unwrap().values;
        found.sort_by_key(|it| it.0);
        let found: Vec<Datum<'_>> = found
            .iter()
            .map(|(column, value)| types[*column].datum(value.as_ref()).0)
            .collect();
        assert_eq!(found, values);
        let found = read_key(&table, &key(&[values[1], values[0]])).unwrap();
        assert_eq!(
            (found[0].0, found[1].1.clone()),
            (1, Value::Integer(i64::MIN))
        );
        assert!(read_key(&table, "[1]").is_none());
        assert_eq!(read(&table, r#"{"x":1}"#).unwrap().unknown, ["x"]);
        for (wrong, told) in [
            (r#"{"c1":0.1}"#, "write decimals as text"),
            (r#"{"c5":"00ff"}"#, "bytes are written"),
            ("[]", "a JSON object"),
            ("{", "no JSON"),
        ] {
            let error = read(&table, wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
