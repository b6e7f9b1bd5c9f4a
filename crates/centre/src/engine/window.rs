//! Windows: where they begin.
//!
//! That is a full day (or hour) of UTC, or a round number: between two of them a scope stays as it
//! is, and an idle sync has nothing to do.

use tidewater_protocol::{ColumnType, Datum, datetime};

use crate::engine::scope_query::ScopeQuery;
use crate::publication::{WindowLength, WindowUnit};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// A window of numbers moves on in so many steps of its width.
const STEPS: u64 = 16;

/// A window of a rule.
#[derive(Debug)]
pub struct Window {
    /// Where its value is in a row as it is read.
    pub column: usize,
    /// The column's type: a date, a timestamp or an integer.
    pub column_type: ColumnType,
    /// How far it reaches back.
    pub last: WindowLength,
    /// The query for the highest value, if that counts.
    pub highest: Option<ScopeQuery>,
}

/// A range of values of a window's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBound {
    /// The number of the window among the rule's.
    pub window: usize,
    /// The first value.
    pub from: i64,
    /// The first one behind it, if there is one.
    pub to: Option<i64>,
}

impl Window {
    /// The first value that is in it; `highest` is the highest one there is.
    pub fn low(&self, now_ms: i64, highest: Option<i64>) -> i64 {
        match self.last {
            WindowLength::Number(width) => highest.map_or(i64::MIN, |highest| {
                let step = i64::try_from((width / STEPS).max(1)).unwrap_or(i64::MAX);
                let low = highest.saturating_sub_unsigned(width);
                low.div_euclid(step).saturating_mul(step)
            }),
            WindowLength::Time(amount, unit) => {
                let ms = begins(now_ms, i64::from(amount), unit);
                match self.column_type {
                    ColumnType::Date => ms.div_euclid(DAY_MS),
                    _ => ms.saturating_mul(1000),
                }
            }
        }
    }

    /// Whether a value is in the window that begins there.
    pub fn has(value: Datum<'_>, low: i64) -> bool {
        position(value).is_some_and(|it| it >= low)
    }

    /// A value of the column.
    pub fn datum(&self, position: i64) -> Datum<'static> {
        match self.column_type {
            ColumnType::Date => Datum::Date(position),
            ColumnType::Timestamp => Datum::Timestamp(position),
            ColumnType::TimestampTz => Datum::TimestampTz(position),
            _ => Datum::Integer(position),
        }
    }
}

/// What a value of such a column is compared as.
pub fn position(value: Datum<'_>) -> Option<i64> {
    match value {
        Datum::Integer(it) | Datum::Date(it) | Datum::Timestamp(it) | Datum::TimestampTz(it) => {
            Some(it)
        }
        _ => None,
    }
}

/// So long ago, in milliseconds since 1970, as a full hour or day.
fn begins(now_ms: i64, amount: i64, unit: WindowUnit) -> i64 {
    let today = now_ms.div_euclid(DAY_MS);
    let day = match unit {
        WindowUnit::Hours => {
            let hour = now_ms.div_euclid(HOUR_MS);
            return hour.saturating_sub(amount).saturating_mul(HOUR_MS);
        }
        WindowUnit::Days => today - amount,
        WindowUnit::Weeks => today - amount * 7,
        WindowUnit::Months => datetime::add_months(today, -amount),
        WindowUnit::Years => datetime::add_months(today, -amount * 12),
    };
    day.saturating_mul(DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn low(column_type: ColumnType, last: WindowLength, highest: Option<i64>) -> i64 {
        let window = Window {
            column: 0,
            column_type,
            last,
            highest: None,
        };
        // 2026-03-31T13:45:00Z
        window.low(1_774_964_700_000, highest)
    }

    fn low_day(text: &str) -> String {
        let days = low(ColumnType::Date, text.parse().unwrap(), None);
        Datum::Date(days).to_string()
    }

    #[test]
    fn windows_begin_at_full_days_and_hours() {
        assert_eq!(low_day("1 day"), "2026-03-30");
        assert_eq!(low_day("2 weeks"), "2026-03-17");
        assert_eq!(low_day("1 month"), "2026-02-28");
        assert_eq!(low_day("25 months"), "2024-02-29");
        assert_eq!(low_day("1 year"), "2025-03-31");
        let hours = low(ColumnType::TimestampTz, "36 hours".parse().unwrap(), None);
        let hours = Datum::TimestampTz(hours).to_string();
        assert_eq!(hours, "2026-03-30T01:00:00.000000Z");
    }

    #[test]
    fn a_window_of_numbers_begins_at_a_round_one() {
        let of = |highest| low(ColumnType::Integer, WindowLength::Number(1_000), highest);
        assert_eq!(of(Some(5_007)), 3_968);
        assert_eq!(of(Some(5_020)), 3_968);
        assert_eq!(of(Some(5_030)), 4_030);
        assert_eq!(of(Some(i64::MIN)), i64::MIN);
        assert_eq!(of(None), i64::MIN);
    }
}
