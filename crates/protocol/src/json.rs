//! Calls and their answers as JSON: what the web protocol, command lines and outboxes have.
//!
//! Decimals, dates, times and UUIDs are strings, so that nothing is lost; bytes are base64; a JSON
//! value is itself.

use serde_json::{Map, Value as Json};

use crate::argument::to_base64;
use crate::message::{Answer, Argument, ArgumentValue, ColumnHeader, Returns};
use crate::pack::UnpackError;
use crate::value::{ColumnType, Value};

/// Arguments of a JSON object.
pub fn arguments(object: &Map<String, Json>) -> Vec<Argument> {
    let arguments = object.iter();
    let arguments = arguments.map(|(name, value)| Argument::new(name.as_str(), given(value)));
    arguments.collect()
}

/// A JSON value as an argument; `None` for null.
pub fn given(value: &Json) -> Option<ArgumentValue> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(boolean) => ArgumentValue::Boolean(*boolean),
        Json::String(text) => ArgumentValue::Text(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => ArgumentValue::Integer(integer),
            // Beyond 64 bits with a sign: whoever declares a decimal gets all digits.
            (None, _) if number.is_u64() => ArgumentValue::Text(number.to_string()),
            (None, Some(real)) => ArgumentValue::Real(real),
            (None, None) => ArgumentValue::Text(number.to_string()),
        },
        value @ (Json::Array(_) | Json::Object(_)) => ArgumentValue::Json(value.to_string()),
    })
}

/// Arguments as a JSON object.
pub fn object(arguments: &[Argument]) -> Map<String, Json> {
    let arguments = arguments.iter();
    let arguments = arguments.map(|it| {
        (
            it.name.clone(),
            it.given.as_ref().map_or(Json::Null, from_argument),
        )
    });
    arguments.collect()
}

fn from_argument(given: &ArgumentValue) -> Json {
    match given {
        ArgumentValue::Boolean(boolean) => Json::from(*boolean),
        ArgumentValue::Integer(integer) => Json::from(*integer),
        ArgumentValue::Real(real) => real_number(*real),
        ArgumentValue::Text(text) => Json::from(text.as_str()),
        ArgumentValue::Bytes(bytes) => Json::from(to_base64(bytes)),
        ArgumentValue::Json(text) => embedded(text),
    }
}

/// What came of a call: null for nothing, a value, an object for a row, a list of them for rows.
///
/// # Errors
/// The rows are not packed as their columns say.
pub fn answer(answer: &Answer) -> Result<Json, UnpackError> {
    let mut rows = answer.unpack()?.into_iter();
    let columns = &answer.columns;
    Ok(match answer.returns() {
        Returns::Nothing => Json::Null,
        Returns::Value => match (rows.next(), columns.first()) {
            (Some(row), Some(column)) => match row.into_iter().next() {
                Some(value) => cell(column, &value),
                None => Json::Null,
            },
            _ => Json::Null,
        },
        Returns::Row => rows.next().map_or(Json::Null, |it| row(columns, &it)),
        Returns::Rows => rows.map(|it| row(columns, &it)).collect(),
    })
}

fn row(columns: &[ColumnHeader], values: &[Value]) -> Json {
    let cells = columns.iter().zip(values);
    let cells = cells.map(|(column, value)| (column.name.clone(), cell(column, value)));
    Json::Object(cells.collect())
}

fn cell(column: &ColumnHeader, value: &Value) -> Json {
    from_value(column.column_type().unwrap_or(ColumnType::Opaque), value)
}

/// A value of a type.
pub fn from_value(column_type: ColumnType, value: &Value) -> Json {
    match (column_type, value) {
        (_, Value::Null) => Json::Null,
        (ColumnType::Boolean, Value::Integer(integer)) => Json::from(*integer != 0),
        (ColumnType::Json, Value::Text(text)) => embedded(text),
        (_, Value::Integer(integer)) => Json::from(*integer),
        (_, Value::Real(real)) => real_number(*real),
        (_, Value::Text(text)) => Json::from(text.as_str()),
        (_, Value::Blob(bytes)) => Json::from(to_base64(bytes)),
    }
}

/// JSON has no infinities.
fn real_number(real: f64) -> Json {
    match real.is_finite() {
        true => Json::from(real),
        false => Json::from(real.to_string()),
    }
}

/// What is stored as JSON and is none is text.
fn embedded(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text))
}

/// What a provider answers with, made of JSON: a value of it, a row of an object, rows of a list of
/// objects with the same names.
pub fn to_answer(value: &Json) -> Answer {
    let is_row = |value: &Json| value.is_object();
    match value {
        Json::Null => Answer::nothing(),
        Json::Object(object) => table(Returns::Row, &[object]),
        Json::Array(list) if !list.is_empty() && list.iter().all(is_row) => {
            let rows: Vec<_> = list.iter().filter_map(Json::as_object).collect();
            table(Returns::Rows, &rows)
        }
        value => {
            let (column_type, value) = typed(value);
            let (datum, _) = column_type.datum(value.as_ref());
            Answer::value(column_type, &datum)
        }
    }
}

/// Columns are those of all rows; where types differ, values are JSON.
fn table(returns: Returns, rows: &[&Map<String, Json>]) -> Answer {
    let mut columns: Vec<(&str, Option<ColumnType>)> = Vec::new();
    for (name, value) in rows.iter().flat_map(|row| row.iter()) {
        let found = (!value.is_null()).then(|| typed(value).0);
        match columns.iter_mut().find(|(known, _)| known == name) {
            None => columns.push((name, found)),
            Some((_, known)) => {
                *known = match (*known, found) {
                    (known, None) => known,
                    (None, found) => found,
                    (Some(known), Some(found)) if known == found => Some(known),
                    (Some(ColumnType::Integer), Some(ColumnType::Real))
                    | (Some(ColumnType::Real), Some(ColumnType::Integer)) => Some(ColumnType::Real),
                    _ => Some(ColumnType::Json),
                }
            }
        }
    }
    let headers: Vec<(&str, ColumnType)> = columns
        .into_iter()
        .map(|(name, column_type)| (name, column_type.unwrap_or(ColumnType::Text)))
        .collect();
    let values: Vec<Vec<Value>> = rows
        .iter()
        .map(|row| {
            let values =
                headers
                    .iter()
                    .map(|(name, column_type)| match (row.get(*name), column_type) {
                        (None | Some(Json::Null), _) => Value::Null,
                        (Some(value), ColumnType::Json) => Value::Text(value.to_string()),
                        (Some(value), _) => typed(value).1,
                    });
            values.collect()
        })
        .collect();
    let data: Vec<Vec<_>> = values
        .iter()
        .map(|row| {
            let cells = row.iter().zip(&headers);
            cells
                .map(|(value, (_, column_type))| column_type.datum(value.as_ref()).0)
                .collect()
        })
        .collect();
    let data: Vec<&[_]> = data.iter().map(Vec::as_slice).collect();
    let columns = headers.into_iter();
    let columns = columns.map(|(name, column_type)| ColumnHeader::new(name, column_type));
    Answer::new(returns, columns.collect(), &data)
}

fn typed(value: &Json) -> (ColumnType, Value) {
    match value {
        Json::Null => (ColumnType::Text, Value::Null),
        Json::Bool(boolean) => (ColumnType::Boolean, Value::Integer(i64::from(*boolean))),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => (ColumnType::Integer, Value::Integer(integer)),
            (None, Some(real)) => (ColumnType::Real, Value::Real(real)),
            (None, None) => (ColumnType::Text, Value::Text(number.to_string())),
        },
        Json::String(text) => (ColumnType::Text, Value::Text(text.clone())),
        value => (ColumnType::Json, Value::Text(value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_provider_answers_in_json_comes_back_as_json() {
        for value in [
            json!(null),
            json!(7),
            json!("x"),
            json!(true),
            json!(1.5),
            json!([1, 2]),
            json!([]),
            json!({"a": 1, "b": "x", "c": null, "d": {"e": [1]}}),
            json!([{"a": 1, "b": null}, {"a": 2, "b": "x"}]),
            json!([{"a": 1}, {"a": "x"}]),
        ] {
            assert_eq!(answer(&to_answer(&value)), Ok(value));
        }
        // A missing value is null, and one kind of numbers is as good as the other.
        let rows = answer(&to_answer(&json!([{"a": 1}, {"a": 1.5, "b": 2}])));
        assert_eq!(rows, Ok(json!([{"a": 1.0, "b": null}, {"a": 1.5, "b": 2}])));
    }

    #[test]
    fn arguments_come_back_as_they_were() {
        let given = json!({"a": 1, "b": 1.5, "c": "x", "d": null, "e": [1, {"f": 2}], "g": false});
        let object_of = given.as_object().unwrap();
        assert_eq!(&object(&arguments(object_of)), object_of);
        let large = json!({"n": u64::MAX});
        let large = arguments(large.as_object().unwrap());
        assert_eq!(
            large[0].given,
            Some(ArgumentValue::Text(u64::MAX.to_string()))
        );
    }
}
