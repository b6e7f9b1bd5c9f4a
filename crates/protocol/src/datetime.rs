//! Dates and times: ISO 8601 text to counts of days and microseconds, and back.
//!
//! Years outside 0001 to 9999 are spelled with a sign and at least six digits
//! (ISO 8601 expanded, astronomical numbering: the year 0000 is 1 BC). The
//! Text that drivers write is read as well, as long as it says no more than the column's type
//! keeps in a database that has these types: finer fractions are rounded, a zone behind a time
//! without one is passed over. What is read is listed in `docs/remote-database.md`. The
//! calendar arithmetic is the days-from-civil algorithm of Howard Hinnant
//! ("chrono-Compatible Low-Level Date Algorithms").

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// The count that stands for the timestamp or date `infinity`.
pub const INFINITY: i64 = i64::MAX;
/// The count that stands for the timestamp or date `-infinity`.
pub const NEGATIVE_INFINITY: i64 = i64::MIN;

/// The largest distance of a day from 1970-01-01 that is understood: enough for
/// every date that a supported database knows.
pub const MAX_DAYS: i64 = 2_200_000_000;
/// The same in microseconds, for timestamps.
pub const MAX_MICROS: i64 = 106_000_000 * MICROS_PER_DAY;

/// The days since 1970-01-01 of a day of the Gregorian calendar, which is a valid one.
pub fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The year, the month and the day of a count of days since 1970-01-01, which is between minus and
/// plus [`MAX_DAYS`].
pub fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The same day so many months later, in days since 1970-01-01; the last of the month where that
/// is shorter.
pub fn add_months(days: i64, months: i64) -> i64 {
    let (year, month, day) = civil_from_days(days);
    let month = year * 12 + month - 1 + months;
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
    let length =
        days_from_civil(year + month / 12, month % 12 + 1, 1) - days_from_civil(year, month, 1);
    days_from_civil(year, month, day.min(length))
}

fn push_digits(number: i64, width: usize, text: &mut String) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    while rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    start = start.min(digits.len() - width);
    for &digit in &digits[start..] {
        text.push(digit as char);
    }
}

fn push_infinity(count: i64, text: &mut String) -> bool {
    match count {
        INFINITY => text.push_str("infinity"),
        NEGATIVE_INFINITY => text.push_str("-infinity"),
        _ => return false,
    }
    true
}

/// Appends `YYYY-MM-DD` for a count of days since 1970-01-01.
pub fn push_date(days: i64, text: &mut String) {
    if push_infinity(days, text) {
        return;
    }
    let (year, month, day) = civil_from_days(days.clamp(-MAX_DAYS, MAX_DAYS));
    if (1..=9999).contains(&year) {
        push_digits(year, 4, text);
    } else {
        text.push(if year < 0 { '-' } else { '+' });
        push_digits(year, 6, text);
    }
    text.push('-');
    push_digits(month, 2, text);
    text.push('-');
    push_digits(day, 2, text);
}

/// Appends `HH:MM:SS.ffffff` for a count of microseconds since midnight.
pub fn push_time(micros: i64, text: &mut String) {
    push_digits(micros / 3_600_000_000, 2, text);
    text.push(':');
    push_digits(micros / 60_000_000 % 60, 2, text);
    text.push(':');
    push_digits(micros / 1_000_000 % 60, 2, text);
    text.push('.');
    push_digits(micros % 1_000_000, 6, text);
}

/// Appends `YYYY-MM-DDTHH:MM:SS.ffffff` for a count of microseconds since 1970.
pub fn push_timestamp(micros: i64, text: &mut String) {
    if push_infinity(micros, text) {
        return;
    }
    push_date(micros.div_euclid(MICROS_PER_DAY), text);
    text.push('T');
    push_time(micros.rem_euclid(MICROS_PER_DAY), text);
}

/// Appends `YYYY-MM-DDTHH:MM:SS.ffffffZ` for a count of microseconds since 1970.
pub fn push_timestamptz(micros: i64, text: &mut String) {
    push_timestamp(micros, text);
    if micros != INFINITY && micros != NEGATIVE_INFINITY {
        text.push('Z');
    }
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.rest.first() == Some(&byte)).then(|| self.rest = &self.rest[1..])
    }

    fn number(&mut self, shortest: usize, longest: usize) -> Option<i64> {
        let count = self
            .rest
            .iter()
            .take(longest)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if count < shortest {
            return None;
        }
        let number = self.rest[..count]
            .iter()
            .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
        self.rest = &self.rest[count..];
        Some(number)
    }

    fn date(&mut self) -> Option<i64> {
        let sign = match self.rest.first()? {
            b'+' => 1,
            b'-' => -1,
            _ => 0,
        };
        let year = if sign == 0 {
            self.number(4, 4)?
        } else {
            self.rest = &self.rest[1..];
            sign * self.number(4, 7)?
        };
        self.take(b'-')?;
        let month = self.number(2, 2)?;
        self.take(b'-')?;
        let day = self.number(2, 2)?;
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days_of_month = match month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 => 28 + i64::from(leap),
            _ => return None,
        };
        if !(1..=days_of_month).contains(&day) {
            return None;
        }
        Some(days_from_civil(year, month, day))
    }

    /// What stands between a date and a time.
    fn between(&mut self) -> Option<()> {
        let is_between = matches!(self.rest.first(), Some(b'T' | b't' | b' '));
        is_between.then(|| self.rest = &self.rest[1..])
    }

    fn time(&mut self) -> Option<i64> {
        let hour = self.number(2, 2)?;
        self.take(b':')?;
        let minute = self.number(2, 2)?;
        let (mut second, mut micros) = (0, 0);
        if self.take(b':').is_some() {
            second = self.number(2, 2)?;
            // Behind minutes a point would mean something else to every database.
            if self.take(b'.').is_some() {
                micros = self.micros()?;
            }
        }
        let total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros;
        (hour <= 24 && minute < 60 && second < 60 && total <= MICROS_PER_DAY).then_some(total)
    }

    /// The digits behind the point of seconds.
    fn micros(&mut self) -> Option<i64> {
        let before = self.rest.len();
        let mut micros = self.number(1, 6)?;
        for _ in (before - self.rest.len())..6 {
            micros *= 10;
        }
        // Finer than a microsecond, which is rounded; half of one to the even side.
        let count = self
            .rest
            .iter()
            .take_while(|it| it.is_ascii_digit())
            .count();
        let (finer, rest) = self.rest.split_at(count);
        self.rest = rest;
        let is_half = finer.first() == Some(&b'5') && finer[1..].iter().all(|it| *it == b'0');
        let is_up = match finer.first() {
            Some(b'5'..) if is_half => micros % 2 == 1,
            Some(b'5'..) => true,
            _ => false,
        };
        Some(micros + i64::from(is_up))
    }

    /// A zone as a database accepts it where it means nothing to it.
    fn pass_over_zone(&mut self) -> Option<()> {
        self.offset().map(drop)
    }

    /// A zone offset in microseconds; no zone is UTC.
    fn offset(&mut self) -> Option<i64> {
        let _ = self.take(b' ');
        if matches!(self.rest, b"" | b"Z" | b"z") || self.is_utc() {
            self.rest = b"";
            return Some(0);
        }
        let sign = if self.take(b'+').is_some() {
            1
        } else {
            self.take(b'-')?;
            -1
        };
        let hours = self.number(2, 2)?;
        let (mut minutes, mut seconds) = (0, 0);
        if !self.rest.is_empty() {
            let has_colon = self.take(b':').is_some();
            minutes = self.number(2, 2)?;
            if has_colon && self.take(b':').is_some() {
                seconds = self.number(2, 2)?;
            }
        }
        let total = (hours * 60 + minutes) * 60 + seconds;
        (hours < 16 && minutes < 60 && seconds < 60).then_some(sign * total * 1_000_000)
    }

    fn is_utc(&self) -> bool {
        let is = |name: &[u8]| self.rest.eq_ignore_ascii_case(name);
        is(b"UTC") || is(b"GMT")
    }
}

fn parse_infinity(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("infinity") {
        Some(INFINITY)
    } else if text.eq_ignore_ascii_case("-infinity") {
        Some(NEGATIVE_INFINITY)
    } else {
        None
    }
}

/// The year has four digits and is not 0000.
fn has_usual_year(text: &[u8]) -> bool {
    text[0].is_ascii_digit() && &text[..4] != b"0000"
}

/// `YYYY-MM-DDTHH:MM:SS.ffffff`, as the beginning of a text that could be read.
fn has_usual_shape(text: &[u8], length: usize) -> bool {
    text.len() == length
        && has_usual_year(text)
        && text[10] == b'T'
        && &text[11..13] != b"24"
        && has_micros(&text[19..])
}

/// `.ffffff`, as the beginning of a text.
fn has_micros(text: &[u8]) -> bool {
    text.len() >= 7 && text[0] == b'.' && text[1..7].iter().all(u8::is_ascii_digit)
}

/// The count, and whether the text is its canonical spelling. The usual spelling is told
/// by its shape; only others are written again and compared.
fn with_canonical(count: i64, text: &str, usual: bool, push: fn(i64, &mut String)) -> (i64, bool) {
    if usual {
        return (count, true);
    }
    let mut canonical = String::with_capacity(32);
    push(count, &mut canonical);
    (count, canonical == text)
}

/// Reads a date: days since 1970-01-01, and whether the text was canonical.
pub fn parse_date(text: &str) -> Option<(i64, bool)> {
    let days = match parse_infinity(text) {
        Some(infinity) => infinity,
        None => {
            let mut scanner = Scanner {
                rest: text.as_bytes(),
            };
            let days = scanner.date()?;
            // Drivers that know no dates write the midnight with which the day begins.
            if !scanner.rest.is_empty() {
                scanner.between()?;
                let is_midnight = scanner.time()? == 0;
                is_midnight.then(|| scanner.pass_over_zone())??;
            }
            if !scanner.rest.is_empty() || days.abs() > MAX_DAYS {
                return None;
            }
            days
        }
    };
    let usual = text.len() == 10 && has_usual_year(text.as_bytes());
    Some(with_canonical(days, text, usual, push_date))
}

/// Reads a time of day: microseconds, and whether the text was canonical.
pub fn parse_time(text: &str) -> Option<(i64, bool)> {
    let mut scanner = Scanner {
        rest: text.as_bytes(),
    };
    let micros = scanner.time()?;
    scanner.pass_over_zone()?;
    let usual = text.len() == 15 && has_micros(&text.as_bytes()[8..]);
    scanner
        .rest
        .is_empty()
        .then(|| with_canonical(micros, text, usual, push_time))
}

fn scan_timestamp(scanner: &mut Scanner<'_>) -> Option<i64> {
    let days = scanner.date()?;
    let micros = if scanner.rest.is_empty() {
        0
    } else {
        scanner.between()?;
        scanner.time()?
    };
    let total = days.checked_mul(MICROS_PER_DAY)?.checked_add(micros)?;
    (total.unsigned_abs() <= MAX_MICROS as u64).then_some(total)
}

/// Reads a date and time: microseconds since 1970, and whether the text was canonical.
pub fn parse_timestamp(text: &str) -> Option<(i64, bool)> {
    let micros = match parse_infinity(text) {
        Some(infinity) => infinity,
        None => {
            let mut scanner = Scanner {
                rest: text.as_bytes(),
            };
            let micros = scan_timestamp(&mut scanner)?;
            scanner.pass_over_zone()?;
            if !scanner.rest.is_empty() {
                return None;
            }
            micros
        }
    };
    let usual = has_usual_shape(text.as_bytes(), 26);
    Some(with_canonical(micros, text, usual, push_timestamp))
}

/// Reads a point in time: microseconds since 1970 in UTC, and whether the text was
/// canonical. Without a zone it is taken to be in UTC.
pub fn parse_timestamptz(text: &str) -> Option<(i64, bool)> {
    let micros = match parse_infinity(text) {
        Some(infinity) => infinity,
        None => {
            let mut scanner = Scanner {
                rest: text.as_bytes(),
            };
            let local = scan_timestamp(&mut scanner)?;
            let offset = scanner.offset()?;
            if !scanner.rest.is_empty() {
                return None;
            }
            let micros = local - offset;
            // The zone may lead over the edge.
            if micros.unsigned_abs() > MAX_MICROS as u64 {
                return None;
            }
            micros
        }
    };
    let usual = has_usual_shape(text.as_bytes(), 27) && text.ends_with('Z');
    Some(with_canonical(micros, text, usual, push_timestamptz))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(days: i64) -> String {
        let mut text = String::new();
        push_date(days, &mut text);
        text
    }

    #[test]
    fn finer_than_a_microsecond_is_rounded() {
        for (text, expected) in [
            ("10:00:00.1234567", "10:00:00.123457"),
            ("10:00:00.123456789", "10:00:00.123457"),
            ("10:00:00.1234564999", "10:00:00.123456"),
            ("10:00:00.1234565", "10:00:00.123456"),
            ("10:00:00.1234575", "10:00:00.123458"),
            ("10:00:00.12345650001", "10:00:00.123457"),
            ("10:00:00.9999999", "10:00:01.000000"),
            ("23:59:59.9999999", "24:00:00.000000"),
        ] {
            let (micros, canonical) = parse_time(text).unwrap();
            let mut written = String::new();
            push_time(micros, &mut written);
            assert_eq!((written.as_str(), canonical), (expected, false), "{text}");
        }
        let (micros, _) = parse_timestamp("2026-12-31T23:59:59.9999999Z").unwrap();
        let mut written = String::new();
        push_timestamp(micros, &mut written);
        assert_eq!(written, "2027-01-01T00:00:00.000000");
    }

    #[test]
    fn a_date_has_no_time_but_midnight() {
        assert_eq!(parse_date("2026-01-02T00:00:01"), None);
        assert_eq!(parse_date("2026-01-02T24:00"), None);
        assert_eq!(parse_date("2026-01-02T"), None);
        assert_eq!(parse_date("2026-01-02 Z"), None);
    }

    #[test]
    fn a_fraction_of_minutes_is_no_time() {
        assert_eq!(parse_time("07:05.5"), None);
        // As long as the canonical spelling of another time.
        assert_eq!(parse_time("07:05.500000000"), None);
        assert_eq!(parse_timestamp("2026-02-28T07:05.500000000"), None);
    }

    #[test]
    fn a_point_in_time_is_within_the_limits_after_its_zone_too() {
        let mut last = String::new();
        push_timestamptz(MAX_MICROS, &mut last);
        assert_eq!(parse_timestamptz(&last), Some((MAX_MICROS, true)));
        let beyond = last.replace('Z', "-15:59");
        assert_eq!(parse_timestamptz(&beyond), None);
        let mut first = String::new();
        push_timestamptz(-MAX_MICROS, &mut first);
        assert_eq!(parse_timestamptz(&first.replace('Z', "+00:01")), None);
    }

    #[test]
    fn days_count_from_1970_in_both_directions() {
        for (days, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (10_957, "2000-01-01"),
            (11_016, "2000-02-29"),
            (-719_162, "0001-01-01"),
            (-719_163, "+000000-12-31"),
            (2_932_896, "9999-12-31"),
            (2_932_897, "+010000-01-01"),
        ] {
            assert_eq!(date(days), text);
            assert_eq!(parse_date(text), Some((days, true)));
        }
    }

    #[test]
    fn every_day_of_eight_centuries_comes_back() {
        for days in -146_097..146_097 {
            assert_eq!(parse_date(&date(days)), Some((days, true)));
        }
    }

    #[test]
    fn only_the_one_spelling_of_a_moment_is_canonical() {
        type Parse = fn(&str) -> Option<(i64, bool)>;
        type Push = fn(i64, &mut String);
        let parsers: [(Parse, Push); 4] = [
            (parse_date, push_date),
            (parse_time, push_time),
            (parse_timestamp, push_timestamp),
            (parse_timestamptz, push_timestamptz),
        ];
        for text in [
            "2026-01-02",
            "0000-01-02",
            "+012026-01-02",
            "03:04:05.000006",
            "03:04:05.00000600",
            "24:00:00.000000",
            "2026-01-02T03:04:05.000006",
            "2026-01-02 03:04:05.000006",
            "2026-01-02T24:00:00.000000",
            "0000-01-02T03:04:05.000006",
            "2026-01-02T03:04:05.0000060",
            "2026-01-02T03:04:05.00000Z",
            "2026-01-02T03:04:05.00000 Z",
            "2026-01-02T03:04:05.0000005",
            "2026-01-02 00:00:00",
            "03:04:05.00000Z",
            "2026-01-02T03:04:05.000006Z",
            "2026-01-02T03:04:05.000006z",
            "2026-01-02T03:04:05.00+02:00",
            "2026-01-02T03:04:05.0000+02",
            "2026-01-02T03:04+02:00",
            "infinity",
            "-infinity",
            "Infinity",
        ] {
            for (parse, push) in parsers {
                if let Some((count, canonical)) = parse(text) {
                    let mut written = String::new();
                    push(count, &mut written);
                    assert_eq!(canonical, written == text, "{text} is {written}");
                }
            }
        }
    }

    #[test]
    fn impossible_dates_and_times_are_refused() {
        for text in [
            "2025-02-29",
            "2025-13-01",
            "2025-00-01",
            "2025-1-1",
            "20250101",
            "",
            "x",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
        for text in ["24:00:00.000001", "23:60", "1:00", "12:00:60", "12:00:00."] {
            assert_eq!(parse_time(text), None, "{text}");
        }
        assert_eq!(parse_time("24:00:00.000000"), Some((86_400_000_000, true)));
    }
}
