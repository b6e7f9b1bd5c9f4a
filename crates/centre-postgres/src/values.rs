//! PostgreSQL's binary format of values, to and from [`Datum`].
//!
//! Owns the kinds of types that travel in binary form and both directions of each.
//! COPY BINARY and binary arrays spell a value the same way: a length of four bytes
//! (-1 for NULL), then the bytes of the type's send function. Which column has which
//! kind is `live`'s affair.

use std::str;

use tidewater_protocol::datetime::MAX_MICROS;
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::{ColumnType, Datum, ValueRef};

mod numeric;

/// 2000-01-01, from where PostgreSQL counts, in days since 1970-01-01.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;

/// How the values of a column travel between us and PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Int2,
    Int4,
    Int8,
    Bool,
    Float4,
    Float8,
    Numeric,
    /// text and varchar.
    Text,
    /// char(n). The blanks behind are padding, not value.
    Bpchar,
    Bytea,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Jsonb,
    /// Everything else: as the text that its own functions read and write.
    Other,
}

/// A value that a column of this kind cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

impl Kind {
    /// The kind of a base type, by the type's OID (`pg_type.dat`).
    pub(super) fn of(type_oid: u32) -> Kind {
        match type_oid {
            16 => Kind::Bool,
            17 => Kind::Bytea,
            20 => Kind::Int8,
            21 => Kind::Int2,
            23 => Kind::Int4,
            25 | 1043 => Kind::Text,
            114 => Kind::Json,
            700 => Kind::Float4,
            701 => Kind::Float8,
            1042 => Kind::Bpchar,
            1082 => Kind::Date,
            1083 => Kind::Time,
            1114 => Kind::Timestamp,
            1184 => Kind::TimestampTz,
            1700 => Kind::Numeric,
            2950 => Kind::Uuid,
            3802 => Kind::Jsonb,
            _ => Kind::Other,
        }
    }

    /// The OID and name of the type of a parameter (or of an array's elements) that
    /// carries such values.
    pub(super) fn parameter(self) -> (u32, &'static str) {
        match self {
            Kind::Bool => (16, "bool"),
            Kind::Bytea => (17, "bytea"),
            Kind::Int8 => (20, "int8"),
            Kind::Int2 => (21, "int2"),
            Kind::Int4 => (23, "int4"),
            Kind::Text | Kind::Bpchar | Kind::Other => (25, "text"),
            Kind::Json => (114, "json"),
            Kind::Float4 => (700, "float4"),
            Kind::Float8 => (701, "float8"),
            Kind::Date => (1082, "date"),
            Kind::Time => (1083, "time"),
            Kind::Timestamp => (1114, "timestamp"),
            Kind::TimestampTz => (1184, "timestamptz"),
            Kind::Numeric => (1700, "numeric"),
            Kind::Uuid => (2950, "uuid"),
            Kind::Jsonb => (3802, "jsonb"),
        }
    }

    /// The type as remotes see it; `scale` is that of a numeric column.
    pub(super) fn column_type(self, scale: Option<u16>) -> ColumnType {
        match self {
            Kind::Int2 | Kind::Int4 | Kind::Int8 => ColumnType::Integer,
            Kind::Bool => ColumnType::Boolean,
            Kind::Float4 | Kind::Float8 => ColumnType::Real,
            Kind::Numeric => ColumnType::Decimal { scale },
            Kind::Text | Kind::Bpchar => ColumnType::Text,
            Kind::Bytea => ColumnType::Bytes,
            Kind::Date => ColumnType::Date,
            Kind::Time => ColumnType::Time,
            Kind::Timestamp => ColumnType::Timestamp,
            Kind::TimestampTz => ColumnType::TimestampTz,
            Kind::Uuid => ColumnType::Uuid,
            Kind::Json | Kind::Jsonb => ColumnType::Json,
            Kind::Other => ColumnType::Opaque,
        }
    }

    /// Appends a value with its length. An error leaves `out` as it was.
    pub(super) fn encode(self, datum: &Datum<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        match (self, *datum) {
            (_, Datum::Null) => out.extend_from_slice(&(-1i32).to_be_bytes()),
            (Kind::Int4, Datum::Integer(integer)) => {
                put(
                    out,
                    &i32::try_from(integer).map_err(|_| Unfit)?.to_be_bytes(),
                );
            }
            (Kind::Int8, Datum::Integer(integer)) => put(out, &integer.to_be_bytes()),
            (Kind::Int2, Datum::Integer(integer)) => {
                put(
                    out,
                    &i16::try_from(integer).map_err(|_| Unfit)?.to_be_bytes(),
                );
            }
            (Kind::Bool, Datum::Boolean(boolean)) => put(out, &[u8::from(boolean)]),
            (Kind::Float8, Datum::Real(real)) => put(out, &real.to_be_bytes()),
            (Kind::Float4, Datum::Real(real)) => {
                let single = real as f32;
                if single.is_infinite() && real.is_finite() {
                    return Err(Unfit);
                }
                put(out, &single.to_be_bytes());
            }
            (Kind::Numeric, Datum::Decimal(decimal)) => numeric::encode(decimal, out)?,
            (Kind::Text | Kind::Bpchar | Kind::Json | Kind::Other, Datum::Text(text)) => {
                if text.as_bytes().contains(&0) {
                    return Err(Unfit);
                }
                put(out, text.as_bytes());
            }
            (Kind::Jsonb, Datum::Text(text)) => {
                if text.as_bytes().contains(&0) {
                    return Err(Unfit);
                }
                let length = i32::try_from(text.len() + 1).map_err(|_| Unfit)?;
                out.extend_from_slice(&length.to_be_bytes());
                out.push(1);
                out.extend_from_slice(text.as_bytes());
            }
            (Kind::Bytea, Datum::Bytes(bytes)) => put(out, bytes),
            (Kind::Date, Datum::Date(days)) => put(out, &date(days)?.to_be_bytes()),
            (Kind::Time, Datum::Time(micros)) => put(out, &micros.to_be_bytes()),
            (Kind::Timestamp, Datum::Timestamp(micros))
            | (Kind::TimestampTz, Datum::TimestampTz(micros)) => {
                put(out, &timestamp(micros)?.to_be_bytes());
            }
            (Kind::Uuid, Datum::Uuid(uuid)) => put(out, &uuid),
            _ => return Err(Unfit),
        }
        Ok(())
    }

    /// Reads a value. Long decimals are spelled out in `scratch`.
    pub(super) fn decode<'a>(
        self,
        bytes: &'a [u8],
        scratch: &'a mut String,
    ) -> Result<Datum<'a>, Unfit> {
        Ok(match self {
            Kind::Int4 => Datum::Integer(i32::from_be_bytes(fixed(bytes)?).into()),
            Kind::Int8 => Datum::Integer(i64::from_be_bytes(fixed(bytes)?)),
            Kind::Int2 => Datum::Integer(i16::from_be_bytes(fixed(bytes)?).into()),
            Kind::Bool => Datum::Boolean(bytes == [1]),
            Kind::Float8 => Datum::Real(canonical_real(f64::from_be_bytes(fixed(bytes)?))),
            Kind::Float4 => {
                Datum::Real(canonical_real(shortest(f32::from_be_bytes(fixed(bytes)?))))
            }
            Kind::Numeric => Datum::Decimal(numeric::decode(bytes, scratch)?),
            Kind::Text | Kind::Json | Kind::Other => Datum::Text(text(bytes)?),
            Kind::Bpchar => Datum::Text(text(bytes)?.trim_end_matches(' ')),
            Kind::Jsonb => match bytes.split_first() {
                Some((1, json)) => Datum::Text(text(json)?),
                _ => return Err(Unfit),
            },
            Kind::Bytea => Datum::Bytes(bytes),
            Kind::Date => Datum::Date(match i32::from_be_bytes(fixed(bytes)?) {
                i32::MAX => i64::MAX,
                i32::MIN => i64::MIN,
                days => i64::from(days) + EPOCH_DAYS,
            }),
            Kind::Time => Datum::Time(i64::from_be_bytes(fixed(bytes)?)),
            Kind::Timestamp => {
                micros_since_1970(fixed(bytes)?).map_or_else(|| far_future(bytes), Datum::Timestamp)
            }
            Kind::TimestampTz => micros_since_1970(fixed(bytes)?)
                .map_or_else(|| far_future(bytes), Datum::TimestampTz),
            Kind::Uuid => Datum::Uuid(fixed(bytes)?),
        })
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    // Values are at most `pack::MAX_VALUE_BYTES` long.
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Unfit> {
    bytes.try_into().map_err(|_| Unfit)
}

fn text(bytes: &[u8]) -> Result<&str, Unfit> {
    str::from_utf8(bytes).map_err(|_| Unfit)
}

/// The real of the shortest decimal that means this single: 21.35 is 21.35 on remotes, too, and
/// means the same single when it comes back.
pub(super) fn shortest(single: f32) -> f64 {
    let exact = f64::from(single);
    match single.is_finite() {
        true => format!("{single:e}").parse().unwrap_or(exact),
        false => exact,
    }
}

/// Remotes know one zero and one NaN.
fn canonical_real(real: f64) -> f64 {
    if real == 0.0 {
        0.0
    } else if real.is_nan() {
        f64::NAN
    } else {
        real
    }
}

fn date(days: i64) -> Result<i32, Unfit> {
    match days {
        i64::MAX => Ok(i32::MAX),
        i64::MIN => Ok(i32::MIN),
        days => match i32::try_from(days.saturating_sub(EPOCH_DAYS)) {
            Ok(i32::MAX | i32::MIN) | Err(_) => Err(Unfit),
            Ok(days) => Ok(days),
        },
    }
}

fn timestamp(micros: i64) -> Result<i64, Unfit> {
    match micros {
        i64::MAX | i64::MIN => Ok(micros),
        micros => micros.checked_sub(EPOCH_MICROS).ok_or(Unfit),
    }
}

fn micros_since_1970(bytes: [u8; 8]) -> Option<i64> {
    match i64::from_be_bytes(bytes) {
        infinity @ (i64::MAX | i64::MIN) => Some(infinity),
        micros => micros
            .checked_add(EPOCH_MICROS)
            .filter(|micros| micros.unsigned_abs() <= MAX_MICROS.unsigned_abs()),
    }
}

/// A moment beyond the calendar of remotes must not keep the other rows from them: it goes
/// there as what it is here, microseconds since 2000.
fn far_future(bytes: &[u8]) -> Datum<'_> {
    let micros = fixed(bytes).map_or(i64::MAX, i64::from_be_bytes);
    Datum::Loose(ValueRef::Integer(micros))
}

/// Whether a column with this scale gives back the very same decimal.
pub(super) fn decimal_is_exact(decimal: Decimal<'_>, scale: Option<u16>) -> bool {
    match (decimal, scale) {
        (_, None) => true,
        (Decimal::Exact { scale: own, .. }, Some(scale)) => own == scale,
        (Decimal::Text(text), Some(scale)) => match text.split_once('.') {
            Some((_, fraction)) => fraction.len() == usize::from(scale),
            None => scale == 0 || !text.ends_with(|last: char| last.is_ascii_digit()),
        },
    }
}

#[cfg(test)]
mod tests;
