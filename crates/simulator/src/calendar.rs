//! The days of a simulation: when it begins, and which readings are of which day.

use tidewater_protocol::datetime;

/// When every simulation begins, in milliseconds since 1970.
pub(crate) const BEGIN_MS: i64 = 1_700_000_000_000;

/// A day, in milliseconds.
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// How many days a reading is held.
pub(crate) const RECENT_DAYS: i64 = 2;

/// Days that readings are of, from the one on which simulations begin.
pub(crate) const DAYS: std::ops::RangeInclusive<i64> = -4..=2;

/// A day as the database writes it, so many after the one on which simulations begin.
pub(crate) fn day(after: i64) -> String {
    day_of(BEGIN_MS + after * DAY_MS)
}

/// The first day of the window, at a time in milliseconds since 1970.
pub(crate) fn low_day(now_ms: i64) -> String {
    day_of(now_ms - RECENT_DAYS * DAY_MS)
}

fn day_of(ms: i64) -> String {
    let mut text = String::new();
    datetime::push_date(ms.div_euclid(DAY_MS), &mut text);
    text
}
