//! Values in SQL, and what databases give back, made values again.
//!
//! Written apart from the product's own conversions on purpose: it is what those are
//! checked against.

use tidewater_protocol::Value;

use super::Dialect;
use super::types::Type;

/// A literal for SQLite: on a remote, and in an SQLite centre.
pub fn sqlite_literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        // The literal's minus sign is an operator, and its operand is too large.
        Value::Integer(i64::MIN) => "(-9223372036854775807 - 1)".into(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) if real.is_infinite() => {
            if *real > 0.0 { "9e999" } else { "-9e999" }.into()
        }
        Value::Real(real) => format!("{real:e}"),
        Value::Text(text) => quoted(text),
        Value::Blob(bytes) => format!("x'{}'", hex(bytes)),
    }
}

/// A literal for the centre.
pub fn literal(dialect: Dialect, column: Type, value: &Value) -> String {
    if dialect == Dialect::Sqlite {
        return sqlite_literal(value);
    }
    match postgres_text(column, value) {
        Some(text) => format!("{}::{}", quoted(&text), column.declared(dialect)),
        None => "NULL".into(),
    }
}

/// A field of PostgreSQL's COPY.
pub fn copied(column: Type, value: &Value) -> String {
    let Some(text) = postgres_text(column, value) else {
        return "\\N".into();
    };
    let text = text.replace('\\', "\\\\").replace('\t', "\\t");
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// What PostgreSQL reads as the value; `None` for NULL.
fn postgres_text(column: Type, value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::Integer(integer) if column == Type::Boolean => (*integer != 0).to_string(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) if real.is_infinite() => {
            if *real > 0.0 { "Infinity" } else { "-Infinity" }.into()
        }
        Value::Real(real) => format!("{real:e}"),
        Value::Blob(bytes) => format!("\\x{}", hex(bytes)),
        Value::Text(text) => match column {
            Type::Date | Type::Timestamp | Type::TimestampTz => postgres_moment(text),
            _ => text.clone(),
        },
    })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `-004712-01-01T...` is `4713-01-01 ... BC` there.
fn postgres_moment(text: &str) -> String {
    let Some(rest) = text
        .strip_prefix(['+', '-'])
        .filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    else {
        return text.to_owned();
    };
    let (year, rest) = rest.split_once('-').unwrap_or((rest, ""));
    let year: i64 = year.parse().unwrap_or_default();
    match (text.starts_with('-'), year) {
        (false, 1..) => format!("{year}-{rest}"),
        (_, year) => format!("{:04}-{rest} BC", year + 1),
    }
}

/// What PostgreSQL writes for a value, as a remote stores it.
pub fn from_postgres(column: Type, text: &str) -> Value {
    let real = |text: &str| match text {
        "NaN" => Some(Value::Text(text.into())),
        "Infinity" => Some(Value::Real(f64::INFINITY)),
        "-Infinity" => Some(Value::Real(f64::NEG_INFINITY)),
        _ => None,
    };
    let value = match column {
        Type::SmallInt | Type::Integer | Type::BigInt | Type::Domain => {
            text.parse().ok().map(Value::Integer)
        }
        Type::Boolean => Some(Value::Integer(i64::from(text == "t"))),
        Type::Double => {
            real(text).or_else(|| text.parse().ok().map(|real: f64| Value::Real(real + 0.0)))
        }
        // The shortest decimal that means the single is what remotes get, too.
        Type::Single => {
            real(text).or_else(|| text.parse().ok().map(|real: f64| Value::Real(real + 0.0)))
        }
        Type::Bytes => text.strip_prefix("\\x").and_then(bytes).map(Value::Blob),
        Type::Char(_) => Some(Value::Text(text.trim_end_matches(' ').into())),
        Type::Time => Some(Value::Text(microseconds(text))),
        Type::Date | Type::Timestamp | Type::TimestampTz => Some(Value::Text(moment(column, text))),
        _ => Some(Value::Text(text.into())),
    };
    value.unwrap_or_else(|| Value::Text(format!("not understood: {text}")))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn microseconds(time: &str) -> String {
    let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
    format!("{whole}.{fraction:0<6}")
}

fn moment(column: Type, text: &str) -> String {
    if text.ends_with("infinity") {
        return text.to_owned();
    }
    let (text, before_christ) = match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (date, time) = text.split_once(' ').unwrap_or((text, ""));
    let (year, month_and_day) = date.split_once('-').unwrap_or((date, ""));
    let year: i64 = year.parse().unwrap_or_default();
    let year = if before_christ { 1 - year } else { year };
    let date = match year {
        1..=9_999 => format!("{year:04}-{month_and_day}"),
        0.. => format!("+{year:06}-{month_and_day}"),
        _ => format!("-{:06}-{month_and_day}", -year),
    };
    match column {
        Type::Date => date,
        Type::TimestampTz => {
            format!("{date}T{}Z", microseconds(time.trim_end_matches("+00")))
        }
        _ => format!("{date}T{}", microseconds(time)),
    }
}

/// What an SQLite centre has stored, as a remote stores it.
pub fn from_sqlite_centre(column: Type, value: Value) -> Value {
    match (column, value) {
        // NUMERIC affinity keeps them as numbers.
        (Type::Decimal(_, scale), Value::Integer(integer)) => match scale {
            0 => Value::Text(integer.to_string()),
            _ => Value::Text(format!("{integer}.{}", "0".repeat(scale.into()))),
        },
        (Type::Decimal(_, scale), Value::Real(real)) => {
            Value::Text(format!("{real:.*}", usize::from(scale)))
        }
        (Type::Boolean | Type::SmallInt | Type::Integer | Type::BigInt, value) => value,
        // A column of text on the remote.
        (Type::Double | Type::Single | Type::Bytes, value) => value,
        (_, Value::Integer(integer)) => Value::Text(integer.to_string()),
        (_, Value::Real(real)) => Value::Text(real.to_string()),
        (_, value) => value,
    }
}

/// A key as conflicts and refused rows tell it.
pub fn key_json<'v>(key: impl Iterator<Item = (Type, &'v Value)>) -> String {
    let mut json = String::from("[");
    for (index, (column, value)) in key.enumerate() {
        if index > 0 {
            json.push(',');
        }
        match value {
            Value::Integer(integer) if column == Type::Boolean => {
                json.push_str(if *integer == 0 { "false" } else { "true" });
            }
            Value::Integer(integer) => json.push_str(&integer.to_string()),
            Value::Null => json.push_str("null"),
            Value::Real(real) => json.push_str(&real.to_string()),
            Value::Text(text) => push_json(&mut json, text),
            Value::Blob(bytes) => push_json(&mut json, &format!("x'{}'", hex(bytes))),
        }
    }
    json.push(']');
    json
}

fn push_json(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            other => json.push(other),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_christ_and_beyond_9999_come_back_as_they_went() {
        for (ours, postgres) in [
            ("-004712-01-01", "4713-01-01 BC"),
            ("+000000-02-29", "0001-02-29 BC"),
            ("+5874897-12-31", "5874897-12-31"),
            ("2026-01-02", "2026-01-02"),
            ("-infinity", "-infinity"),
        ] {
            assert_eq!(postgres_moment(ours), postgres);
            assert_eq!(
                from_postgres(Type::Date, postgres),
                Value::Text(ours.into())
            );
        }
        assert_eq!(
            from_postgres(Type::TimestampTz, "4713-01-01 00:00:00+00 BC"),
            Value::Text("-004712-01-01T00:00:00.000000Z".into())
        );
    }
}
