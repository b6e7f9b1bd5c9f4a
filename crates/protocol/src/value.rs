//! Values: how a column's type is stored on a remote, and what travels.
//!
//! A [`ValueRef`] is what SQLite stores on a remote. A [`Datum`] is the same value
//! understood by its [`ColumnType`]; it is what row packing reads and writes and
//! what adapters translate to their database. The type table of the product is
//! implemented here and nowhere else.

use crate::datetime;
use crate::decimal::Decimal;
use crate::identity::{parse_uuid, push_uuid};

/// The type of a published column, as far as remotes need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Whole numbers of up to 64 bits. Stored as INTEGER.
    Integer,
    /// Exact decimals. Stored as TEXT in canonical form: with a scale, exactly so
    /// many digits stand behind the point.
    Decimal {
        /// Digits behind the point, where the column fixes them.
        scale: Option<u16>,
    },
    /// Binary floating point. Stored as REAL, NaN as the TEXT 'NaN'.
    Real,
    /// Stored as INTEGER 0 or 1.
    Boolean,
    /// Stored as TEXT.
    Text,
    /// Stored as BLOB.
    Bytes,
    /// Stored as TEXT `YYYY-MM-DD`.
    Date,
    /// Time of day. Stored as TEXT `HH:MM:SS.ffffff`.
    Time,
    /// Date and time without a zone. Stored as TEXT `YYYY-MM-DDTHH:MM:SS.ffffff`.
    Timestamp,
    /// A point in time. Stored as TEXT `YYYY-MM-DDTHH:MM:SS.ffffffZ`, in UTC.
    TimestampTz,
    /// Stored as lower-case TEXT.
    Uuid,
    /// JSON. Stored as TEXT, unchanged.
    Json,
    /// Any other type of the centre, carried as the text that it reads and writes
    /// (enums, arrays, ranges). Stored as TEXT.
    Opaque,
}

/// A value as SQLite stores it, borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT.
    Text(&'a str),
    /// BLOB.
    Blob(&'a [u8]),
}

/// A value as SQLite stores it, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT.
    Text(String),
    /// BLOB.
    Blob(Vec<u8>),
}

impl Value {
    /// The same value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Real(real) => ValueRef::Real(*real),
            Value::Text(text) => ValueRef::Text(text),
            Value::Blob(blob) => ValueRef::Blob(blob),
        }
    }
}

impl ValueRef<'_> {
    /// The same value, owned.
    pub fn to_owned(self) -> Value {
        match self {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(integer) => Value::Integer(integer),
            ValueRef::Real(real) => Value::Real(real),
            ValueRef::Text(text) => Value::Text(text.to_owned()),
            ValueRef::Blob(blob) => Value::Blob(blob.to_owned()),
        }
    }
}

/// A value understood by its column's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Datum<'a> {
    /// NULL, of any type.
    Null,
    /// [`ColumnType::Integer`].
    Integer(i64),
    /// [`ColumnType::Decimal`].
    Decimal(Decimal<'a>),
    /// [`ColumnType::Real`].
    Real(f64),
    /// [`ColumnType::Boolean`].
    Boolean(bool),
    /// [`ColumnType::Text`], [`ColumnType::Json`] and [`ColumnType::Opaque`].
    Text(&'a str),
    /// [`ColumnType::Bytes`].
    Bytes(&'a [u8]),
    /// [`ColumnType::Date`]: days since 1970-01-01; `i64::MAX` and `i64::MIN` are
    /// the infinities.
    Date(i64),
    /// [`ColumnType::Time`]: microseconds since midnight, up to and with 24:00.
    Time(i64),
    /// [`ColumnType::Timestamp`]: microseconds since 1970-01-01T00:00;
    /// `i64::MAX` and `i64::MIN` are the infinities.
    Timestamp(i64),
    /// [`ColumnType::TimestampTz`]: microseconds since 1970-01-01T00:00Z;
    /// `i64::MAX` and `i64::MIN` are the infinities.
    TimestampTz(i64),
    /// [`ColumnType::Uuid`].
    Uuid([u8; 16]),
    /// A stored value that its column's type cannot take. It travels as it is, so
    /// that the centre can refuse it by name instead of losing it.
    Loose(ValueRef<'a>),
}

/// How well a stored value fits its column's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// In canonical form: the centre will give back exactly this.
    Canonical,
    /// Understood, but the centre's form of it is spelled differently.
    Convertible,
    /// Not a value of this type.
    Unfit,
}

impl ColumnType {
    /// The declared type of the column on a remote, chosen so that SQLite's
    /// affinity never changes a value.
    pub fn sqlite_type(self) -> &'static str {
        match self {
            ColumnType::Integer | ColumnType::Boolean => "INTEGER",
            ColumnType::Real => "REAL",
            ColumnType::Bytes => "BLOB",
            _ => "TEXT",
        }
    }

    /// Understands a stored value, and tells how well it fits.
    pub fn datum(self, value: ValueRef<'_>) -> (Datum<'_>, Fit) {
        let understood = match (self, value) {
            (_, ValueRef::Null) => Some((Datum::Null, true)),
            (ColumnType::Integer, ValueRef::Integer(integer)) => {
                Some((Datum::Integer(integer), true))
            }
            (ColumnType::Boolean, ValueRef::Integer(integer @ (0 | 1))) => {
                Some((Datum::Boolean(integer == 1), true))
            }
            (ColumnType::Boolean, ValueRef::Text(text)) => {
                boolean_word(text).map(|boolean| (Datum::Boolean(boolean), false))
            }
            (ColumnType::Real, ValueRef::Real(real)) => {
                let negative_zero = real == 0.0 && real.is_sign_negative();
                let real = if negative_zero { 0.0 } else { real };
                Some((Datum::Real(real), !negative_zero))
            }
            (ColumnType::Real, ValueRef::Integer(integer)) => {
                Some((Datum::Real(integer as f64), false))
            }
            (ColumnType::Real, ValueRef::Text(text)) if text.eq_ignore_ascii_case("nan") => {
                Some((Datum::Real(f64::NAN), text == "NaN"))
            }
            (ColumnType::Text | ColumnType::Json | ColumnType::Opaque, ValueRef::Text(text)) => {
                Some((Datum::Text(text), true))
            }
            (ColumnType::Bytes, ValueRef::Blob(blob)) => Some((Datum::Bytes(blob), true)),
            (ColumnType::Decimal { scale }, ValueRef::Text(text)) => {
                Decimal::parse(text).map(|(decimal, canonical)| {
                    let (decimal, rescaled) = decimal.with_scale(scale);
                    (Datum::Decimal(decimal), canonical && !rescaled)
                })
            }
            (ColumnType::Decimal { scale }, ValueRef::Integer(integer)) => {
                let (decimal, _) = Decimal::from_integer(integer).with_scale(scale);
                Some((Datum::Decimal(decimal), false))
            }
            (ColumnType::Uuid, ValueRef::Text(text)) => parse_uuid(text).map(|uuid| {
                let mut canonical = String::with_capacity(36);
                push_uuid(&uuid, &mut canonical);
                (Datum::Uuid(uuid), canonical == text)
            }),
            (ColumnType::Date, ValueRef::Text(text)) => {
                datetime::parse_date(text).map(|(days, canonical)| (Datum::Date(days), canonical))
            }
            (ColumnType::Time, ValueRef::Text(text)) => datetime::parse_time(text)
                .map(|(micros, canonical)| (Datum::Time(micros), canonical)),
            (ColumnType::Timestamp, ValueRef::Text(text)) => datetime::parse_timestamp(text)
                .map(|(micros, canonical)| (Datum::Timestamp(micros), canonical)),
            (ColumnType::TimestampTz, ValueRef::Text(text)) => datetime::parse_timestamptz(text)
                .map(|(micros, canonical)| (Datum::TimestampTz(micros), canonical)),
            _ => None,
        };
        match understood {
            Some((datum, true)) => (datum, Fit::Canonical),
            Some((datum, false)) => (datum, Fit::Convertible),
            None => (Datum::Loose(value), Fit::Unfit),
        }
    }
}

fn boolean_word(text: &str) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    if is("true") || is("t") || is("1") {
        Some(true)
    } else if is("false") || is("f") || is("0") {
        Some(false)
    } else {
        None
    }
}

impl<'a> Datum<'a> {
    /// The value as a remote stores it. Text that has to be made is written into
    /// `scratch`, which is cleared first.
    pub fn stored<'b>(&self, scratch: &'b mut String) -> ValueRef<'b>
    where
        'a: 'b,
    {
        scratch.clear();
        match *self {
            Datum::Null => return ValueRef::Null,
            Datum::Integer(integer) => return ValueRef::Integer(integer),
            Datum::Boolean(boolean) => return ValueRef::Integer(i64::from(boolean)),
            Datum::Real(real) if real.is_nan() => return ValueRef::Text("NaN"),
            Datum::Real(real) => return ValueRef::Real(real),
            Datum::Text(text) => return ValueRef::Text(text),
            Datum::Bytes(bytes) => return ValueRef::Blob(bytes),
            Datum::Loose(value) => return value,
            Datum::Decimal(decimal) => decimal.push_to(scratch),
            Datum::Date(days) => datetime::push_date(days, scratch),
            Datum::Time(micros) => datetime::push_time(micros, scratch),
            Datum::Timestamp(micros) => datetime::push_timestamp(micros, scratch),
            Datum::TimestampTz(micros) => datetime::push_timestamptz(micros, scratch),
            Datum::Uuid(uuid) => push_uuid(&uuid, scratch),
        }
        ValueRef::Text(scratch)
    }

    /// The value as a remote stores it, owned.
    pub fn to_value(&self) -> Value {
        self.stored(&mut String::new()).to_owned()
    }

    /// Whether the value is stored in a form that its column's type does not know.
    pub fn is_loose(&self) -> bool {
        matches!(self, Datum::Loose(_))
    }
}

/// What people read in reports: text unquoted, blobs in hexadecimal, NULL as `NULL`.
impl std::fmt::Display for Datum<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.stored(&mut String::new()) {
            ValueRef::Null => f.write_str("NULL"),
            ValueRef::Integer(integer) => write!(f, "{integer}"),
            ValueRef::Real(real) => write!(f, "{real}"),
            ValueRef::Text(text) => f.write_str(text),
            ValueRef::Blob(blob) => {
                f.write_str("x'")?;
                for byte in blob {
                    write!(f, "{byte:02x}")?;
                }
                f.write_str("'")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(column_type: ColumnType, value: ValueRef<'_>) -> (Value, Fit) {
        let (datum, fit) = column_type.datum(value);
        (datum.to_value(), fit)
    }

    #[test]
    fn canonical_values_come_back_as_they_were() {
        let scale6 = ColumnType::Decimal { scale: Some(6) };
        for (column_type, text) in [
            (scale6, "123456789.120000"),
            (scale6, "-0.000001"),
            (scale6, "NaN"),
            (ColumnType::Decimal { scale: None }, "1.50"),
            (ColumnType::Date, "2026-02-28"),
            (ColumnType::Time, "23:59:59.999999"),
            (ColumnType::Timestamp, "1999-12-31T23:59:59.000001"),
            (ColumnType::TimestampTz, "0001-01-01T00:00:00.000000Z"),
            (ColumnType::Timestamp, "infinity"),
            (ColumnType::Uuid, "0f8fad5b-d9cb-469f-a165-70867728950e"),
            (ColumnType::Json, "{\"a\" : 1}"),
        ] {
            assert_eq!(
                fit(column_type, ValueRef::Text(text)),
                (Value::Text(text.into()), Fit::Canonical),
                "{column_type:?} {text}"
            );
        }
    }

    #[test]
    fn other_spellings_are_converted() {
        for (column_type, text, canonical) in [
            (ColumnType::Decimal { scale: Some(2) }, "1.5", "1.50"),
            (ColumnType::Decimal { scale: Some(2) }, "+01.50", "1.50"),
            (ColumnType::Decimal { scale: Some(2) }, "-0", "0.00"),
            (
                ColumnType::Timestamp,
                "2026-01-02 03:04",
                "2026-01-02T03:04:00.000000",
            ),
            (
                ColumnType::TimestampTz,
                "2026-01-02T03:04:05+02:00",
                "2026-01-02T01:04:05.000000Z",
            ),
            (
                ColumnType::Uuid,
                "0F8FAD5B-D9CB-469F-A165-70867728950E",
                "0f8fad5b-d9cb-469f-a165-70867728950e",
            ),
        ] {
            assert_eq!(
                fit(column_type, ValueRef::Text(text)),
                (Value::Text(canonical.into()), Fit::Convertible),
                "{column_type:?} {text}"
            );
        }
    }

    #[test]
    fn unfit_values_are_kept_as_they_are() {
        for (column_type, value) in [
            (ColumnType::Integer, ValueRef::Text("abc")),
            (ColumnType::Boolean, ValueRef::Integer(2)),
            (ColumnType::Decimal { scale: None }, ValueRef::Text("1,5")),
            (ColumnType::Date, ValueRef::Text("2026-02-30")),
            (ColumnType::Bytes, ValueRef::Text("x")),
        ] {
            assert_eq!(fit(column_type, value), (value.to_owned(), Fit::Unfit));
        }
    }

    #[test]
    fn negative_zero_becomes_zero() {
        let (value, fit) = fit(ColumnType::Real, ValueRef::Real(-0.0));
        assert!(matches!(value, Value::Real(real) if real.is_sign_positive()));
        assert_eq!(fit, Fit::Convertible);
    }
}
