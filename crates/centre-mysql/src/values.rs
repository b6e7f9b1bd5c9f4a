//! Values between the driver's types and the product's.
//!
//! Owns the kinds of columns, how a value of each is read and bound, and the rows of parameters.
//! Which column is of which kind is `catalog`'s affair.
//!
//! Every text and every string of bytes travels as bytes; what they are, the kind says. Numbers of
//! [`MysqlKind::Decimal`] travel as text, all others in binary form.

use mysql_async::consts::ColumnType as NativeType;
use mysql_async::{Column, Value as Native};

use tidewater_centre::engine::exact::{canonical, shortest};
use tidewater_centre::engine::flight::{ColumnKind, RowParameters, RowSource};
use tidewater_centre::engine::sql::system_table::SystemType;
use tidewater_protocol::datetime::{
    INFINITY, MAX_DAYS, NEGATIVE_INFINITY, civil_from_days, days_from_civil,
};
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::identity::{parse_uuid, push_uuid};
use tidewater_protocol::{ColumnType, Datum, Value, ValueRef};

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;

/// The years that a date can have. Year 0 is no year of a date that anybody means.
const YEARS: std::ops::RangeInclusive<i64> = 1..=9999;

/// How the values of a column travel between the engine and the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the catalog finds no columns yet")
)]
pub(crate) enum MysqlKind {
    /// Every integer that fits into 64 bits with a sign.
    Integer,
    /// `BIGINT UNSIGNED`. Remotes see a decimal without digits behind the point.
    Unsigned,
    /// `TINYINT(1)`, and bits of a length of one.
    Boolean,
    /// `FLOAT`, of 32 bits.
    Single,
    /// `DOUBLE`.
    Double,
    /// `DECIMAL`.
    Decimal {
        /// The digits behind the point.
        scale: u16,
    },
    /// Texts of a character set.
    Text,
    /// Strings of bytes.
    Bytes,
    /// `DATE`.
    Date,
    /// `TIME`, which is a duration: what is no time of a day travels as its microseconds.
    Time,
    /// `DATETIME`, which has no zone.
    DateTime,
    /// `TIMESTAMP`, a point in time; sessions are in UTC.
    Timestamp,
    /// `UUID`, which MariaDB has.
    Uuid,
    /// `JSON`.
    Json,
    /// Everything else, as the text that the database makes of it.
    Other,
}

impl ColumnKind for MysqlKind {
    fn of_system(system_type: SystemType) -> MysqlKind {
        match system_type {
            SystemType::Integer | SystemType::Serial => MysqlKind::Integer,
            SystemType::Boolean => MysqlKind::Boolean,
            SystemType::ShortText | SystemType::Text => MysqlKind::Text,
            SystemType::ShortBlob | SystemType::Blob => MysqlKind::Bytes,
        }
    }
}

impl MysqlKind {
    /// The kind of values that are of no column, by their type.
    pub(super) fn of_type(column_type: ColumnType) -> MysqlKind {
        match column_type {
            ColumnType::Integer => MysqlKind::Integer,
            ColumnType::Decimal { scale } => MysqlKind::Decimal {
                scale: scale.unwrap_or(0),
            },
            ColumnType::Real => MysqlKind::Double,
            ColumnType::Boolean => MysqlKind::Boolean,
            ColumnType::Text => MysqlKind::Text,
            ColumnType::Bytes => MysqlKind::Bytes,
            ColumnType::Date => MysqlKind::Date,
            ColumnType::Time => MysqlKind::Time,
            ColumnType::Timestamp => MysqlKind::DateTime,
            ColumnType::TimestampTz => MysqlKind::Timestamp,
            ColumnType::Uuid => MysqlKind::Uuid,
            ColumnType::Json => MysqlKind::Json,
            ColumnType::Opaque => MysqlKind::Other,
        }
    }

    /// The type as remotes see it.
    pub(super) fn column_type(self) -> ColumnType {
        match self {
            MysqlKind::Integer => ColumnType::Integer,
            MysqlKind::Unsigned => ColumnType::Decimal { scale: Some(0) },
            MysqlKind::Boolean => ColumnType::Boolean,
            MysqlKind::Single | MysqlKind::Double => ColumnType::Real,
            MysqlKind::Decimal { scale } => ColumnType::Decimal { scale: Some(scale) },
            MysqlKind::Text => ColumnType::Text,
            MysqlKind::Bytes => ColumnType::Bytes,
            MysqlKind::Date => ColumnType::Date,
            MysqlKind::Time => ColumnType::Time,
            MysqlKind::DateTime => ColumnType::Timestamp,
            MysqlKind::Timestamp => ColumnType::TimestampTz,
            MysqlKind::Uuid => ColumnType::Uuid,
            MysqlKind::Json => ColumnType::Json,
            MysqlKind::Other => ColumnType::Opaque,
        }
    }
}

/// Understands a value as the driver gives it.
pub(super) fn read(kind: MysqlKind, native: &Native) -> Datum<'_> {
    let datum = match (kind, native) {
        (_, Native::NULL) => Datum::Null,
        (MysqlKind::Boolean, Native::Int(value @ (0 | 1))) => Datum::Boolean(*value == 1),
        // A bit comes as a byte.
        (MysqlKind::Boolean, Native::Bytes(bytes)) if matches!(**bytes, [0 | 1]) => {
            Datum::Boolean(**bytes == [1])
        }
        (MysqlKind::Unsigned, Native::UInt(value)) => Datum::Decimal(Decimal::Exact {
            unscaled: i128::from(*value),
            scale: 0,
        }),
        (_, Native::Int(value)) => match kind {
            MysqlKind::Integer => Datum::Integer(*value),
            _ => kind.column_type().datum(ValueRef::Integer(*value)).0,
        },
        (_, Native::UInt(value)) => match i64::try_from(*value) {
            Ok(value) => kind.column_type().datum(ValueRef::Integer(value)).0,
            Err(_) => Datum::Loose(ValueRef::Real(*value as f64)),
        },
        (_, Native::Float(value)) => real(kind, f64::from(*value)),
        (_, Native::Double(value)) => real(kind, *value),
        (_, Native::Bytes(bytes)) => read_bytes(kind, bytes),
        (_, &Native::Date(year, month, day, hour, minute, second, micros)) => {
            // MySQL has dates of which a part is zero. No day is meant by them.
            if month == 0 || day == 0 {
                return Datum::Loose(ValueRef::Text("0000-00-00"));
            }
            let days = days_from_civil(year.into(), month.into(), day.into());
            let clock = clock_micros(0, hour, minute, second, micros);
            match kind {
                MysqlKind::Date => Datum::Date(days),
                MysqlKind::Timestamp => Datum::TimestampTz(days * MICROS_PER_DAY + clock),
                _ => Datum::Timestamp(days * MICROS_PER_DAY + clock),
            }
        }
        (_, &Native::Time(is_negative, days, hour, minute, second, micros)) => {
            let clock = clock_micros(days, hour, minute, second, micros);
            match is_negative || clock > MICROS_PER_DAY {
                true if is_negative => Datum::Loose(ValueRef::Integer(-clock)),
                true => Datum::Loose(ValueRef::Integer(clock)),
                false => Datum::Time(clock),
            }
        }
    };
    canonical(datum)
}

fn clock_micros(days: u32, hour: u8, minute: u8, second: u8, micros: u32) -> i64 {
    let hours = i64::from(days) * 24 + i64::from(hour);
    let seconds = (hours * 60 + i64::from(minute)) * 60 + i64::from(second);
    seconds * MICROS_PER_SECOND + i64::from(micros)
}

fn real(kind: MysqlKind, value: f64) -> Datum<'static> {
    match kind {
        MysqlKind::Single | MysqlKind::Double => Datum::Real(value),
        _ => Datum::Loose(ValueRef::Real(value)),
    }
}

fn read_bytes(kind: MysqlKind, bytes: &[u8]) -> Datum<'_> {
    if kind == MysqlKind::Bytes {
        return Datum::Bytes(bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Datum::Loose(ValueRef::Blob(bytes));
    };
    match kind {
        MysqlKind::Text | MysqlKind::Json | MysqlKind::Other => Datum::Text(text),
        MysqlKind::Uuid => match parse_uuid(text) {
            Some(uuid) => Datum::Uuid(uuid),
            None => Datum::Loose(ValueRef::Text(text)),
        },
        _ => kind.column_type().datum(ValueRef::Text(text)).0,
    }
}

/// A value as it is bound to a statement; `None` if no column of this kind can keep it.
pub(super) fn bind(kind: MysqlKind, datum: &Datum<'_>) -> Option<Native> {
    Some(match (kind, *datum) {
        (_, Datum::Null) => Native::NULL,
        (MysqlKind::Integer, Datum::Integer(value)) => Native::Int(value),
        (MysqlKind::Boolean, Datum::Boolean(value)) => Native::Int(value.into()),
        (MysqlKind::Unsigned, Datum::Decimal(value)) => match shortest(value) {
            Decimal::Exact { unscaled, scale: 0 } => Native::UInt(unscaled.try_into().ok()?),
            _ => return None,
        },
        (MysqlKind::Double, Datum::Real(value)) if value.is_finite() => Native::Double(value),
        (MysqlKind::Single, Datum::Real(value)) if value.is_finite() => {
            let single = value as f32;
            match single.is_finite() {
                true => Native::Float(single),
                false => return None,
            }
        }
        (MysqlKind::Decimal { .. }, Datum::Decimal(value)) => {
            let mut text = String::new();
            value.push_to(&mut text);
            match text.ends_with(|it: char| it.is_ascii_digit()) {
                true => Native::Bytes(text.into_bytes()),
                // No number, or an infinite one.
                false => return None,
            }
        }
        (MysqlKind::Text | MysqlKind::Json | MysqlKind::Other, Datum::Text(text)) => {
            Native::Bytes(text.as_bytes().to_owned())
        }
        (MysqlKind::Bytes, Datum::Bytes(bytes)) => Native::Bytes(bytes.to_owned()),
        (MysqlKind::Date, Datum::Date(days)) => moment(days, 0)?,
        (MysqlKind::DateTime, Datum::Timestamp(micros))
        | (MysqlKind::Timestamp, Datum::TimestampTz(micros)) => {
            if micros == INFINITY || micros == NEGATIVE_INFINITY {
                return None;
            }
            let (days, clock) = (
                micros.div_euclid(MICROS_PER_DAY),
                micros.rem_euclid(MICROS_PER_DAY),
            );
            moment(days, clock)?
        }
        (MysqlKind::Time, Datum::Time(micros)) => {
            let (hours, minutes, seconds, rest) = clock(micros);
            let days = u32::try_from(hours / 24).ok()?;
            Native::Time(false, days, (hours % 24) as u8, minutes, seconds, rest)
        }
        (MysqlKind::Uuid, Datum::Uuid(uuid)) => {
            let mut text = String::new();
            push_uuid(&uuid, &mut text);
            Native::Bytes(text.into_bytes())
        }
        _ => return None,
    })
}

/// A day and the microseconds of it.
fn moment(days: i64, micros: i64) -> Option<Native> {
    if !(-MAX_DAYS..=MAX_DAYS).contains(&days) {
        return None;
    }
    let (year, month, day) = civil_from_days(days);
    if !YEARS.contains(&year) {
        return None;
    }
    let (hours, minutes, seconds, rest) = clock(micros);
    Some(Native::Date(
        year as u16,
        month as u8,
        day as u8,
        hours as u8,
        minutes,
        seconds,
        rest,
    ))
}

/// Hours, minutes, seconds and microseconds.
fn clock(micros: i64) -> (i64, u8, u8, u32) {
    let seconds = micros / MICROS_PER_SECOND;
    (
        seconds / 3600,
        (seconds / 60 % 60) as u8,
        (seconds % 60) as u8,
        (micros % MICROS_PER_SECOND) as u32,
    )
}

/// A plain value as it is bound to a statement.
pub(super) fn native(value: ValueRef<'_>) -> Native {
    match value {
        ValueRef::Null => Native::NULL,
        ValueRef::Integer(value) => Native::Int(value),
        ValueRef::Real(value) => Native::Double(value),
        ValueRef::Text(text) => Native::Bytes(text.as_bytes().to_owned()),
        ValueRef::Blob(bytes) => Native::Bytes(bytes.to_owned()),
    }
}

/// What strings of a column are that a statement on the server's own tables yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainColumn {
    /// Texts.
    Text,
    /// Strings of bytes.
    Bytes,
    /// Decimal numbers: sums of integers are such.
    Number,
}

impl PlainColumn {
    /// What the database says of a column.
    pub(super) fn of(column: &Column) -> PlainColumn {
        /// The character set of strings of bytes, and of all that is no text.
        const BINARY: u16 = 63;
        match column.column_type() {
            NativeType::MYSQL_TYPE_DECIMAL | NativeType::MYSQL_TYPE_NEWDECIMAL => {
                PlainColumn::Number
            }
            _ if column.character_set() == BINARY => PlainColumn::Bytes,
            _ => PlainColumn::Text,
        }
    }

    /// A value of such a column; `None` if the server's own tables have none like it.
    pub(super) fn read(self, native: Native) -> Option<Value> {
        Some(match native {
            Native::NULL => Value::Null,
            Native::Int(value) => Value::Integer(value),
            Native::UInt(value) => Value::Integer(value.try_into().ok()?),
            Native::Float(value) => Value::Real(value.into()),
            Native::Double(value) => Value::Real(value),
            Native::Bytes(bytes) if self == PlainColumn::Bytes => Value::Blob(bytes),
            Native::Bytes(bytes) => {
                let text = String::from_utf8(bytes).ok()?;
                match self {
                    PlainColumn::Number => Value::Integer(text.parse().ok()?),
                    _ => Value::Text(text),
                }
            }
            Native::Date(..) | Native::Time(..) => return None,
        })
    }
}

/// Rows of values as parameters: the statement is run for one after the other.
#[derive(Debug)]
pub(crate) struct NativeRows {
    kinds: Vec<MysqlKind>,
    pub(super) rows: Vec<Vec<Native>>,
}

impl RowParameters for NativeRows {
    type Kind = MysqlKind;

    fn new(kinds: &[MysqlKind]) -> NativeRows {
        NativeRows {
            kinds: kinds.to_vec(),
            rows: Vec::new(),
        }
    }

    fn push(&mut self, row: &[Datum<'_>]) -> bool {
        let values = self.kinds.iter().zip(row);
        let bound = values.map(|(&kind, value)| bind(kind, value));
        let bound: Option<Vec<Native>> = bound.collect();
        let is_fit = bound.is_some();
        self.rows.extend(bound);
        is_fit
    }

    fn count(&self) -> usize {
        self.rows.len()
    }

    fn source(kinds: &[MysqlKind], first: usize) -> RowSource {
        RowSource {
            relation: String::new(),
            number: format!("?{first}"),
            columns: (1..=kinds.len())
                .map(|at| format!("?{}", first + at))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
