//! Values between SQLite's storage classes and the product's types.
//!
//! Owns what a declared type means, how a stored value is read, how an uploaded one
//! is bound, and when two are equal. SQLite enforces little: a value that is not of
//! its column's declared type is read as [`Datum::Loose`] and travels so.
//!
//! DECIMAL and NUMERIC have NUMERIC affinity, so SQLite keeps them as INTEGER or as
//! REAL: about 15 significant digits. What would not come back exactly is refused. A
//! declared type with both DECIMAL and TEXT in it (`DECIMAL_TEXT(30,6)`) has TEXT
//! affinity and keeps every digit.

use rusqlite::types::{Value as Native, ValueRef as Stored};

use tidewater_protocol::decimal::{Decimal, power_of_ten};
use tidewater_protocol::pack::same;
use tidewater_protocol::{ColumnType, Datum, ValueRef};

use tidewater_centre::engine::exact::{canonical, shortest};
use tidewater_centre::engine::flight::{ColumnKind, RowParameters, RowSource};
use tidewater_centre::engine::sql::system_table::SystemType;

/// How the values of a column travel between the engine and SQLite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SqliteKind {
    /// The type of the values.
    pub(super) column_type: ColumnType,
    /// Whether the column has TEXT affinity.
    pub(super) is_kept_as_text: bool,
}

impl SqliteKind {
    /// Understands a value as SQLite stores it.
    pub(super) fn read(self, stored: Stored<'_>) -> Datum<'_> {
        read(self.column_type, stored)
    }
}

impl ColumnKind for SqliteKind {
    fn of_system(system_type: SystemType) -> SqliteKind {
        SqliteKind {
            column_type: match system_type {
                SystemType::Integer | SystemType::Serial => ColumnType::Integer,
                SystemType::Boolean => ColumnType::Boolean,
                SystemType::ShortText | SystemType::Text => ColumnType::Text,
                SystemType::ShortBlob | SystemType::Blob => ColumnType::Bytes,
            },
            is_kept_as_text: false,
        }
    }
}

/// Rows of values as parameters: the statement is run for one after the other.
#[derive(Debug)]
pub(crate) struct NativeRows {
    kinds: Vec<SqliteKind>,
    pub(super) rows: Vec<Vec<Native>>,
}

impl RowParameters for NativeRows {
    type Kind = SqliteKind;

    fn new(kinds: &[SqliteKind]) -> NativeRows {
        NativeRows {
            kinds: kinds.to_vec(),
            rows: Vec::new(),
        }
    }

    fn push(&mut self, row: &[Datum<'_>]) -> bool {
        let values = self.kinds.iter().zip(row);
        let bound = values.map(|(it, value)| bind(it.column_type, it.is_kept_as_text, value));
        let bound: Result<Vec<Native>, _> = bound.collect();
        let is_fit = bound.is_ok();
        self.rows.extend(bound);
        is_fit
    }

    fn count(&self) -> usize {
        self.rows.len()
    }

    fn source(kinds: &[SqliteKind], first: usize) -> RowSource {
        RowSource {
            relation: String::new(),
            number: format!("?{first}"),
            columns: (1..=kinds.len())
                .map(|at| format!("?{}", first + at))
                .collect(),
        }
    }
}

/// The type that a declared type name stands for; `None` for names that mean nothing.
pub(super) fn column_type(declared: &str) -> Option<ColumnType> {
    let upper = declared.trim().to_ascii_uppercase();
    let (base, arguments) = match upper.split_once('(') {
        Some((base, rest)) => (base.trim(), rest.split(')').next()),
        None => (upper.as_str(), None),
    };
    let has = |part: &str| upper.contains(part);
    if has("DECIMAL") || has("NUMERIC") {
        return Some(ColumnType::Decimal {
            scale: decimal_scale(arguments)?,
        });
    }
    if base.starts_with("BOOL") {
        return Some(ColumnType::Boolean);
    }
    if has("TIMESTAMPTZ") || has("DATETIMEOFFSET") || has("WITH TIME ZONE") {
        return Some(ColumnType::TimestampTz);
    }
    Some(match base.split_whitespace().next()? {
        "TIMESTAMP" | "DATETIME" | "DATETIME2" => ColumnType::Timestamp,
        "DATE" => ColumnType::Date,
        "TIME" => ColumnType::Time,
        "UUID" | "GUID" | "UNIQUEIDENTIFIER" => ColumnType::Uuid,
        "JSON" | "JSONB" => ColumnType::Json,
        "INT" | "INTEGER" | "TINYINT" | "SMALLINT" | "MEDIUMINT" | "BIGINT" | "INT2" | "INT4"
        | "INT8" | "UNSIGNED" => ColumnType::Integer,
        "BYTEA" | "BINARY" | "VARBINARY" => ColumnType::Bytes,
        _ if has("CHAR") || has("CLOB") || has("TEXT") => ColumnType::Text,
        _ if has("BLOB") => ColumnType::Bytes,
        _ if has("REAL") || has("DOUBLE") || has("FLOAT") => ColumnType::Real,
        _ => return None,
    })
}

/// The scale of `(precision, scale)`; outer `None` if that is no number.
fn decimal_scale(arguments: Option<&str>) -> Option<Option<u16>> {
    let Some(arguments) = arguments else {
        return Some(None);
    };
    match arguments.split_once(',') {
        Some((_, scale)) => scale.trim().parse().ok().map(Some),
        None => Some(Some(0)),
    }
}

/// Whether a column of this declared type has TEXT affinity.
pub(super) fn is_kept_as_text(declared: &str) -> bool {
    let upper = declared.to_ascii_uppercase();
    !upper.contains("INT")
        && ["CHAR", "CLOB", "TEXT"]
            .iter()
            .any(|name| upper.contains(name))
}

/// Understands a value as SQLite stores it.
pub(super) fn read(column_type: ColumnType, stored: Stored<'_>) -> Datum<'_> {
    let value = match stored {
        Stored::Null => ValueRef::Null,
        Stored::Integer(integer) => ValueRef::Integer(integer),
        Stored::Real(real) => {
            if let ColumnType::Decimal { scale } = column_type {
                return read_decimal(real, scale);
            }
            ValueRef::Real(real)
        }
        Stored::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => ValueRef::Text(text),
            Err(_) => ValueRef::Blob(bytes),
        },
        Stored::Blob(bytes) => ValueRef::Blob(bytes),
    };
    canonical(column_type.datum(value).0)
}

fn read_decimal(real: f64, scale: Option<u16>) -> Datum<'static> {
    let text = match scale {
        Some(scale) => format!("{real:.*}", usize::from(scale)),
        None => real.to_string(),
    };
    match Decimal::parse(&text) {
        Some((Decimal::Exact { unscaled, scale }, _)) => {
            canonical(Datum::Decimal(Decimal::Exact { unscaled, scale }))
        }
        _ if real == f64::INFINITY => Datum::Decimal(Decimal::Text("Infinity")),
        _ if real == f64::NEG_INFINITY => Datum::Decimal(Decimal::Text("-Infinity")),
        _ => Datum::Loose(ValueRef::Real(real)),
    }
}

/// Whether two values are equal by the column's type: numbers by value, text byte by
/// byte. A value that is none of the type is what it looks like: here it may be a number,
/// in the remote's column the same as text.
pub(super) fn equal(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    match (left, right) {
        (Datum::Null, _) | (_, Datum::Null) => left == right,
        (Datum::Loose(_), _) | (_, Datum::Loose(_)) => look_the_same(left, right),
        (Datum::Decimal(left), Datum::Decimal(right)) => shortest(*left) == shortest(*right),
        _ => same(&canonical(*left), &canonical(*right)),
    }
}

/// Whether one value has to be written over the other: they are not equal, or a decimal has
/// other digits, which the column may keep (1.5 and 1.50).
pub(super) fn differ(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    match (left, right) {
        (Datum::Decimal(left), Datum::Decimal(right)) => left != right,
        _ => !equal(left, right),
    }
}

fn look_the_same(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    let is_number = |datum: &Datum<'_>| {
        matches!(
            datum,
            Datum::Loose(ValueRef::Integer(_) | ValueRef::Real(_))
        )
    };
    let (left_text, right_text) = (left.to_string(), right.to_string());
    if left_text == right_text || !(is_number(left) || is_number(right)) {
        return left_text == right_text;
    }
    // SQLite's own spelling of a real is another than ours.
    let number = |text: &str| text.parse::<f64>().ok();
    number(&left_text).is_some_and(|left| number(&right_text) == Some(left))
}

/// What a query yields, made a value of the column's type the way a cast would;
/// packed with [`tidewater_centre::engine::exact::pack_exact`].
pub(super) fn coerce(column_type: ColumnType, datum: Datum<'_>) -> Option<Datum<'_>> {
    let Datum::Loose(value) = datum else {
        return Some(datum);
    };
    match (column_type, value) {
        (ColumnType::Integer, ValueRef::Text(text)) => text.trim().parse().ok().map(Datum::Integer),
        (ColumnType::Integer, ValueRef::Real(real))
            if real.fract() == 0.0 && real.abs() < 9.0e15 =>
        {
            Some(Datum::Integer(real as i64))
        }
        (ColumnType::Real, ValueRef::Text(text)) => text.trim().parse().ok().map(Datum::Real),
        _ => None,
    }
}

/// The value as it is bound to a statement. `as_text` tells that the column has TEXT
/// affinity.
///
/// # Errors
/// Why the column cannot keep it, for people, without the value itself.
pub(super) fn bind(
    column_type: ColumnType,
    as_text: bool,
    datum: &Datum<'_>,
) -> Result<Native, &'static str> {
    match datum {
        Datum::Loose(_) => return Err("is not a value of this type"),
        Datum::Decimal(decimal) if !as_text => return bind_decimal(*decimal),
        Datum::Text(text) if column_type == ColumnType::Json && !is_json(text) => {
            return Err("is not JSON");
        }
        _ => {}
    }
    Ok(native(datum.stored(&mut String::new())))
}

/// A value as it is bound to a statement, whatever the type.
pub(super) fn native(value: ValueRef<'_>) -> Native {
    match value {
        ValueRef::Null => Native::Null,
        ValueRef::Integer(integer) => Native::Integer(integer),
        ValueRef::Real(real) => Native::Real(real),
        ValueRef::Text(text) => Native::Text(text.to_owned()),
        ValueRef::Blob(blob) => Native::Blob(blob.to_owned()),
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn bind_decimal(decimal: Decimal<'_>) -> Result<Native, &'static str> {
    const TOO_LONG: &str = "has more digits than the column keeps exactly \
        (SQLite keeps about 15; declare it DECIMAL_TEXT to keep all)";
    match shortest(decimal) {
        Decimal::Text("Infinity") => Ok(Native::Real(f64::INFINITY)),
        Decimal::Text("-Infinity") => Ok(Native::Real(f64::NEG_INFINITY)),
        Decimal::Text("NaN") => Ok(Native::Text("NaN".into())),
        Decimal::Text(_) => Err(TOO_LONG),
        Decimal::Exact { unscaled, scale: 0 } => i64::try_from(unscaled)
            .map(Native::Integer)
            .map_err(|_| TOO_LONG),
        exact @ Decimal::Exact { scale, .. } => {
            let mut text = String::new();
            exact.push_to(&mut text);
            let real: f64 = text.parse().map_err(|_| TOO_LONG)?;
            if format!("{real:.*}", usize::from(scale)) == text {
                Ok(Native::Real(real))
            } else {
                Err(TOO_LONG)
            }
        }
    }
}

/// The value as the column will give it back: decimals rounded to the column's scale,
/// half away from zero.
pub(super) fn normalize(column_type: ColumnType, datum: Datum<'_>) -> Datum<'_> {
    let (
        ColumnType::Decimal {
            scale: Some(wanted),
        },
        Datum::Decimal(Decimal::Exact { unscaled, scale }),
    ) = (column_type, datum)
    else {
        return canonical(datum);
    };
    if scale <= wanted {
        let (decimal, _) = Decimal::Exact { unscaled, scale }.with_scale(Some(wanted));
        return Datum::Decimal(decimal);
    }
    let Some(divisor) = power_of_ten(u32::from(scale - wanted)) else {
        return Datum::Decimal(Decimal::Exact {
            unscaled: 0,
            scale: wanted,
        });
    };
    let half = (unscaled % divisor).abs() >= divisor - (unscaled % divisor).abs();
    let rounded = unscaled / divisor + if half { unscaled.signum() } else { 0 };
    Datum::Decimal(Decimal::Exact {
        unscaled: rounded,
        scale: wanted,
    })
}

/// Whether the column gives back a value as it was.
pub(super) fn is_kept(column_type: ColumnType, as_text: bool, datum: &Datum<'_>) -> bool {
    match (column_type, datum) {
        (_, Datum::Null) => true,
        // Numbers become numbers.
        (ColumnType::Json, _) => as_text,
        (ColumnType::Decimal { scale: None }, Datum::Decimal(decimal)) if !as_text => {
            shortest(*decimal) == *decimal
        }
        _ => normalize(column_type, *datum) == *datum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_centre::engine::exact::pack_exact;

    #[test]
    fn declared_types_are_understood() {
        for (declared, expected) in [
            ("INTEGER", Some(ColumnType::Integer)),
            ("unsigned big int", Some(ColumnType::Integer)),
            ("POINT", None),
            ("", None),
            ("BOOLEAN", Some(ColumnType::Boolean)),
            (
                "NUMERIC(30, 6)",
                Some(ColumnType::Decimal { scale: Some(6) }),
            ),
            ("DECIMAL(9)", Some(ColumnType::Decimal { scale: Some(0) })),
            ("DECIMAL_TEXT", Some(ColumnType::Decimal { scale: None })),
            ("double precision", Some(ColumnType::Real)),
            ("VARCHAR(64)", Some(ColumnType::Text)),
            ("timestamp with time zone", Some(ColumnType::TimestampTz)),
            ("DATETIME", Some(ColumnType::Timestamp)),
            ("DATE", Some(ColumnType::Date)),
            ("LONGBLOB", Some(ColumnType::Bytes)),
            ("ANY", None),
        ] {
            assert_eq!(column_type(declared), expected, "{declared}");
        }
        assert!(is_kept_as_text("DECIMAL_TEXT(30,6)"));
        assert!(!is_kept_as_text("DECIMAL(30,6)"));
    }

    #[test]
    fn a_decimal_comes_back_exactly_or_is_refused() {
        let column = ColumnType::Decimal { scale: Some(6) };
        for text in ["123456789.120000", "0.000001", "-7.500000", "12.000000"] {
            let datum = column.datum(ValueRef::Text(text)).0;
            let native = bind(column, false, &datum).unwrap();
            let back = read(column, Stored::from(&native));
            assert_eq!(back.to_string(), text);
        }
        let long = column.datum(ValueRef::Text("123456789012345678.123456")).0;
        assert!(bind(column, false, &long).is_err());
        assert!(matches!(bind(column, true, &long), Ok(Native::Text(_))));
    }

    #[test]
    fn decimals_are_equal_by_value_and_rounded_half_away_from_zero() {
        let any = ColumnType::Decimal { scale: None };
        let datum = |text| any.datum(ValueRef::Text(text)).0;
        assert!(equal(&datum("1.5"), &datum("1.50")));
        assert!(!equal(&datum("1.5"), &datum("1.51")));
        assert_eq!(
            pack_exact(&[any], &[datum("1.5")]),
            pack_exact(&[any], &[datum("1.50")])
        );
        let cents = ColumnType::Decimal { scale: Some(2) };
        for (text, rounded) in [("1.005", "1.01"), ("-1.005", "-1.01"), ("1.0049", "1.00")] {
            assert_eq!(normalize(cents, datum(text)).to_string(), rounded);
        }
    }

    #[test]
    fn what_a_query_yields_is_cast() {
        let cast = |column, stored| coerce(column, read(column, stored)).map(|it| it.to_string());
        let integer = ColumnType::Integer;
        assert_eq!(cast(integer, Stored::Text(b"12")), Some("12".into()));
        assert_eq!(cast(integer, Stored::Real(3.0)), Some("3".into()));
        assert_eq!(cast(integer, Stored::Text(b"x")), None);
    }
}
