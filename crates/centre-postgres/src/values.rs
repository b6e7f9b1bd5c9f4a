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

use tidewater_centre::engine::flight::ColumnKind;
use tidewater_centre::engine::sql::system_table::SystemType;

mod numeric;

/// 2000-01-01, from where PostgreSQL counts, in days since 1970-01-01.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;

/// How the values of a column travel between us and PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PostgresType {
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
pub(super) struct UnfitValue;

impl ColumnKind for PostgresType {
    fn of_system(system_type: SystemType) -> PostgresType {
        match system_type {
            SystemType::Integer | SystemType::Serial => PostgresType::Int8,
            SystemType::Boolean => PostgresType::Bool,
            SystemType::ShortText | SystemType::Text => PostgresType::Text,
            SystemType::ShortBlob | SystemType::Blob => PostgresType::Bytea,
        }
    }
}

impl PostgresType {
    /// The kind of a base type, by the type's OID (`pg_type.dat`).
    pub(super) fn from_oid(type_oid: u32) -> PostgresType {
        match type_oid {
            16 => PostgresType::Bool,
            17 => PostgresType::Bytea,
            20 => PostgresType::Int8,
            21 => PostgresType::Int2,
            23 => PostgresType::Int4,
            25 | 1043 => PostgresType::Text,
            114 => PostgresType::Json,
            700 => PostgresType::Float4,
            701 => PostgresType::Float8,
            1042 => PostgresType::Bpchar,
            1082 => PostgresType::Date,
            1083 => PostgresType::Time,
            1114 => PostgresType::Timestamp,
            1184 => PostgresType::TimestampTz,
            1700 => PostgresType::Numeric,
            2950 => PostgresType::Uuid,
            3802 => PostgresType::Jsonb,
            _ => PostgresType::Other,
        }
    }

    /// The OID and name of the type of a parameter (or of an array's elements) that
    /// carries such values.
    pub(super) fn parameter(self) -> (u32, &'static str) {
        match self {
            PostgresType::Bool => (16, "bool"),
            PostgresType::Bytea => (17, "bytea"),
            PostgresType::Int8 => (20, "int8"),
            PostgresType::Int2 => (21, "int2"),
            PostgresType::Int4 => (23, "int4"),
            PostgresType::Text | PostgresType::Bpchar | PostgresType::Other => (25, "text"),
            PostgresType::Json => (114, "json"),
            PostgresType::Float4 => (700, "float4"),
            PostgresType::Float8 => (701, "float8"),
            PostgresType::Date => (1082, "date"),
            PostgresType::Time => (1083, "time"),
            PostgresType::Timestamp => (1114, "timestamp"),
            PostgresType::TimestampTz => (1184, "timestamptz"),
            PostgresType::Numeric => (1700, "numeric"),
            PostgresType::Uuid => (2950, "uuid"),
            PostgresType::Jsonb => (3802, "jsonb"),
        }
    }

    /// The digits behind the point, by the type's modifier, if it has a fixed number of them.
    pub(super) fn scale(self, modifier: i32) -> Option<i32> {
        // numeric.c, numeric_typmod_scale: eleven bits with a sign.
        let is_fixed = self == PostgresType::Numeric && modifier >= 4;
        is_fixed.then(|| (((modifier - 4) & 0x7ff) ^ 0x400) - 0x400)
    }

    /// The type as remotes see it; `scale` is that of a numeric column.
    pub(super) fn column_type(self, scale: Option<u16>) -> ColumnType {
        match self {
            PostgresType::Int2 | PostgresType::Int4 | PostgresType::Int8 => ColumnType::Integer,
            PostgresType::Bool => ColumnType::Boolean,
            PostgresType::Float4 | PostgresType::Float8 => ColumnType::Real,
            PostgresType::Numeric => ColumnType::Decimal { scale },
            PostgresType::Text | PostgresType::Bpchar => ColumnType::Text,
            PostgresType::Bytea => ColumnType::Bytes,
            PostgresType::Date => ColumnType::Date,
            PostgresType::Time => ColumnType::Time,
            PostgresType::Timestamp => ColumnType::Timestamp,
            PostgresType::TimestampTz => ColumnType::TimestampTz,
            PostgresType::Uuid => ColumnType::Uuid,
            PostgresType::Json | PostgresType::Jsonb => ColumnType::Json,
            PostgresType::Other => ColumnType::Opaque,
        }
    }

    /// Appends a value with its length. An error leaves `out` as it was.
    pub(super) fn encode(self, datum: &Datum<'_>, out: &mut Vec<u8>) -> Result<(), UnfitValue> {
        match (self, *datum) {
            (_, Datum::Null) => out.extend_from_slice(&(-1i32).to_be_bytes()),
            (PostgresType::Int4, Datum::Integer(integer)) => {
                put(
                    out,
                    &i32::try_from(integer)
                        .map_err(|_| UnfitValue)?
                        .to_be_bytes(),
                );
            }
            (PostgresType::Int8, Datum::Integer(integer)) => put(out, &integer.to_be_bytes()),
            (PostgresType::Int2, Datum::Integer(integer)) => {
                put(
                    out,
                    &i16::try_from(integer)
                        .map_err(|_| UnfitValue)?
                        .to_be_bytes(),
                );
            }
            (PostgresType::Bool, Datum::Boolean(boolean)) => put(out, &[u8::from(boolean)]),
            (PostgresType::Float8, Datum::Real(real)) => put(out, &real.to_be_bytes()),
            (PostgresType::Float4, Datum::Real(real)) => {
                let single = real as f32;
                if single.is_infinite() && real.is_finite() {
                    return Err(UnfitValue);
                }
                put(out, &single.to_be_bytes());
            }
            (PostgresType::Numeric, Datum::Decimal(decimal)) => numeric::encode(decimal, out)?,
            (
                PostgresType::Text
                | PostgresType::Bpchar
                | PostgresType::Json
                | PostgresType::Other,
                Datum::Text(text),
            ) => {
                if text.as_bytes().contains(&0) {
                    return Err(UnfitValue);
                }
                put(out, text.as_bytes());
            }
            (PostgresType::Jsonb, Datum::Text(text)) => {
                if text.as_bytes().contains(&0) {
                    return Err(UnfitValue);
                }
                let length = i32::try_from(text.len() + 1).map_err(|_| UnfitValue)?;
                out.extend_from_slice(&length.to_be_bytes());
                out.push(1);
                out.extend_from_slice(text.as_bytes());
            }
            (PostgresType::Bytea, Datum::Bytes(bytes)) => put(out, bytes),
            (PostgresType::Date, Datum::Date(days)) => put(out, &date(days)?.to_be_bytes()),
            (PostgresType::Time, Datum::Time(micros)) => put(out, &micros.to_be_bytes()),
            (PostgresType::Timestamp, Datum::Timestamp(micros))
            | (PostgresType::TimestampTz, Datum::TimestampTz(micros)) => {
                put(out, &timestamp(micros)?.to_be_bytes());
            }
            (PostgresType::Uuid, Datum::Uuid(uuid)) => put(out, &uuid),
            _ => return Err(UnfitValue),
        }
        Ok(())
    }

    /// Reads a value. Long decimals are spelled out in `scratch`.
    pub(super) fn decode<'a>(
        self,
        bytes: &'a [u8],
        scratch: &'a mut String,
    ) -> Result<Datum<'a>, UnfitValue> {
        Ok(match self {
            PostgresType::Int4 => Datum::Integer(i32::from_be_bytes(fixed(bytes)?).into()),
            PostgresType::Int8 => Datum::Integer(i64::from_be_bytes(fixed(bytes)?)),
            PostgresType::Int2 => Datum::Integer(i16::from_be_bytes(fixed(bytes)?).into()),
            PostgresType::Bool => Datum::Boolean(bytes == [1]),
            PostgresType::Float8 => Datum::Real(canonical_real(f64::from_be_bytes(fixed(bytes)?))),
            PostgresType::Float4 => {
                Datum::Real(canonical_real(shortest(f32::from_be_bytes(fixed(bytes)?))))
            }
            PostgresType::Numeric => Datum::Decimal(numeric::decode(bytes, scratch)?),
            PostgresType::Text | PostgresType::Json | PostgresType::Other => {
                Datum::Text(text(bytes)?)
            }
            PostgresType::Bpchar => Datum::Text(text(bytes)?.trim_end_matches(' ')),
            PostgresType::Jsonb => match bytes.split_first() {
                Some((1, json)) => Datum::Text(text(json)?),
                _ => return Err(UnfitValue),
            },
            PostgresType::Bytea => Datum::Bytes(bytes),
            PostgresType::Date => Datum::Date(match i32::from_be_bytes(fixed(bytes)?) {
                i32::MAX => i64::MAX,
                i32::MIN => i64::MIN,
                days => i64::from(days) + EPOCH_DAYS,
            }),
            PostgresType::Time => Datum::Time(i64::from_be_bytes(fixed(bytes)?)),
            PostgresType::Timestamp => {
                micros_since_1970(fixed(bytes)?).map_or_else(|| far_future(bytes), Datum::Timestamp)
            }
            PostgresType::TimestampTz => micros_since_1970(fixed(bytes)?)
                .map_or_else(|| far_future(bytes), Datum::TimestampTz),
            PostgresType::Uuid => Datum::Uuid(fixed(bytes)?),
        })
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    // Values are at most `pack::MAX_VALUE_BYTES` long.
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], UnfitValue> {
    bytes.try_into().map_err(|_| UnfitValue)
}

fn text(bytes: &[u8]) -> Result<&str, UnfitValue> {
    str::from_utf8(bytes).map_err(|_| UnfitValue)
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

fn date(days: i64) -> Result<i32, UnfitValue> {
    match days {
        i64::MAX => Ok(i32::MAX),
        i64::MIN => Ok(i32::MIN),
        days => match i32::try_from(days.saturating_sub(EPOCH_DAYS)) {
            Ok(i32::MAX | i32::MIN) | Err(_) => Err(UnfitValue),
            Ok(days) => Ok(days),
        },
    }
}

fn timestamp(micros: i64) -> Result<i64, UnfitValue> {
    match micros {
        i64::MAX | i64::MIN => Ok(micros),
        micros => micros.checked_sub(EPOCH_MICROS).ok_or(UnfitValue),
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
