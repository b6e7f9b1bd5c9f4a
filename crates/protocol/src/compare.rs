//! Comparing two copies of a table without sending them: checksums of key ranges.
//!
//! Owns the range order of keys, the checksum of a row, and [`Ranges`] and
//! [`Intervals`], which both sides use: boundaries and rows go in, sums and
//! differing intervals come out. Where rows come from, and what becomes of those
//! that differ, is left to the remote and the adapters. The normative text is
//! `docs/protocol.md`, "Comparing".

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use crate::decimal::{Decimal, power_of_ten};
use crate::message::{KeyInterval, KeyRange};
use crate::pack::{self, Op, RowShape, UnpackError};
use crate::value::{ColumnType, Datum, ValueRef};

/// A range holds at least so many rows, as far as there are so many.
pub const MIN_ROWS_PER_RANGE: u64 = 256;

/// A table is divided into about so many ranges at most.
pub const MAX_RANGES: u64 = 4_096;

/// How many rows of a table of `rows` rows make one range: every so many-th key is
/// a boundary.
pub fn rows_per_range(rows: u64) -> u64 {
    MIN_ROWS_PER_RANGE.max(rows / MAX_RANGES)
}

/// Why ranges or intervals of keys cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A bound is not a packed key of the table.
    #[error("a bound of a range of keys cannot be read: {0}")]
    Bound(#[from] UnpackError),
    /// The bounds do not ascend, or the last range has one, or there is no range.
    #[error("the ranges of keys do not follow each other")]
    Order,
}

// ---------------------------------------------------------------------------
// The order of keys

/// The range order of two keys of the same table. It is the same on both sides and
/// for every database; none of them sorts by it.
pub fn compare_keys(left: &[Datum<'_>], right: &[Datum<'_>]) -> Ordering {
    for (left, right) in left.iter().zip(right) {
        let order = compare_values(left, right);
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len())
}

/// The range order of two values of the same column.
pub fn compare_values(left: &Datum<'_>, right: &Datum<'_>) -> Ordering {
    use Datum::{Boolean, Bytes, Date, Integer, Loose, Real, Text, Time, Timestamp, TimestampTz};
    match (left, right) {
        (Integer(left), Integer(right))
        | (Date(left), Date(right))
        | (Time(left), Time(right))
        | (Timestamp(left), Timestamp(right))
        | (TimestampTz(left), TimestampTz(right)) => left.cmp(right),
        (Boolean(left), Boolean(right)) => left.cmp(right),
        (Text(left), Text(right)) => left.as_bytes().cmp(right.as_bytes()),
        (Bytes(left), Bytes(right)) => left.cmp(right),
        (Datum::Uuid(left), Datum::Uuid(right)) => left.cmp(right),
        (Real(left), Real(right)) => left.total_cmp(right),
        (Datum::Decimal(left), Datum::Decimal(right)) => compare_decimals(left, right),
        (Loose(left), Loose(right)) => compare_stored(left, right),
        _ => rank(left).cmp(&rank(right)),
    }
}

/// NULL first, then what the type knows, then what it does not.
fn rank(value: &Datum<'_>) -> u8 {
    match value {
        Datum::Null => 0,
        Datum::Integer(_) => 1,
        Datum::Decimal(_) => 2,
        Datum::Real(_) => 3,
        Datum::Boolean(_) => 4,
        Datum::Text(_) => 5,
        Datum::Bytes(_) => 6,
        Datum::Date(_) => 7,
        Datum::Time(_) => 8,
        Datum::Timestamp(_) => 9,
        Datum::TimestampTz(_) => 10,
        Datum::Uuid(_) => 11,
        Datum::Loose(_) => 12,
    }
}

fn compare_stored(left: &ValueRef<'_>, right: &ValueRef<'_>) -> Ordering {
    let class = |value: &ValueRef<'_>| match value {
        ValueRef::Null => 0,
        ValueRef::Integer(_) => 1,
        ValueRef::Real(_) => 2,
        ValueRef::Text(_) => 3,
        ValueRef::Blob(_) => 4,
    };
    match (left, right) {
        (ValueRef::Integer(left), ValueRef::Integer(right)) => left.cmp(right),
        (ValueRef::Real(left), ValueRef::Real(right)) => left.total_cmp(right),
        (ValueRef::Text(left), ValueRef::Text(right)) => left.as_bytes().cmp(right.as_bytes()),
        (ValueRef::Blob(left), ValueRef::Blob(right)) => left.cmp(right),
        _ => class(left).cmp(&class(right)),
    }
}

/// By their exact value: -Infinity, numbers, Infinity, NaN.
fn compare_decimals(left: &Decimal<'_>, right: &Decimal<'_>) -> Ordering {
    if let (
        Decimal::Exact {
            unscaled: left,
            scale: left_scale,
        },
        Decimal::Exact {
            unscaled: right,
            scale: right_scale,
        },
    ) = (left, right)
    {
        let scale = *left_scale.max(right_scale);
        let grown = |unscaled: &i128, own: u16| {
            let factor = power_of_ten(u32::from(scale - own))?;
            unscaled.checked_mul(factor)
        };
        if let (Some(left), Some(right)) = (grown(left, *left_scale), grown(right, *right_scale)) {
            return left.cmp(&right);
        }
    }
    let special = |decimal: &Decimal<'_>| match decimal {
        Decimal::Text("-Infinity") => -1,
        Decimal::Text("Infinity") => 1,
        Decimal::Text("NaN") => 2,
        _ => 0,
    };
    let (left_special, right_special) = (special(left), special(right));
    if left_special != 0 || right_special != 0 {
        return left_special.cmp(&right_special);
    }
    let (mut left_text, mut right_text) = (String::new(), String::new());
    left.push_to(&mut left_text);
    right.push_to(&mut right_text);
    compare_digits(&left_text, &right_text)
}

/// Two numbers of any length in canonical form.
fn compare_digits(left: &str, right: &str) -> Ordering {
    let (left_negative, left) = digits(left);
    let (right_negative, right) = digits(right);
    match (left_negative, right_negative) {
        (false, false) => magnitude(left, right),
        (true, true) => magnitude(right, left),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    }
}

/// The digits before and behind the point that count.
type Digits<'a> = (&'a str, &'a str);

/// Whether the number is below zero, and its digits.
fn digits(text: &str) -> (bool, Digits<'_>) {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text),
    };
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let zero = whole.is_empty() && fraction.is_empty();
    (negative && !zero, (whole, fraction))
}

fn magnitude(left: Digits<'_>, right: Digits<'_>) -> Ordering {
    let by_length = left.0.len().cmp(&right.0.len());
    let by_whole = || left.0.cmp(right.0);
    by_length
        .then_with(by_whole)
        .then_with(|| left.1.cmp(right.1))
}

// ---------------------------------------------------------------------------
// Keys as they travel in bounds

/// Appends the packed form of a key, as bounds carry it.
pub fn pack_key(out: &mut Vec<u8>, key_columns: &[ColumnType], key: &[Datum<'_>]) {
    pack::pack_values(out, key_columns, key);
}

/// Sorts packed keys by range order and drops those that stand twice.
///
/// # Errors
/// One of them is not a packed key of these columns.
pub fn sort_keys(key_columns: &[ColumnType], keys: &mut Vec<Vec<u8>>) -> Result<(), CompareError> {
    let order = {
        let mut values = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            values.push((pack::unpack_values(key, key_columns)?, index));
        }
        values.sort_by(|(left, _), (right, _)| compare_keys(left, right));
        values.dedup_by(|(left, _), (right, _)| compare_keys(left, right).is_eq());
        values
            .into_iter()
            .map(|(_, index)| index)
            .collect::<Vec<_>>()
    };
    *keys = order
        .into_iter()
        .map(|index| std::mem::take(&mut keys[index]))
        .collect();
    Ok(())
}

/// The bounds of consecutive ranges, ascending: all values of all of them in one
/// vector.
#[derive(Debug)]
struct Bounds<'a> {
    width: usize,
    values: Vec<Datum<'a>>,
}

impl<'a> Bounds<'a> {
    fn new(key_columns: &[ColumnType]) -> Bounds<'a> {
        Bounds {
            width: key_columns.len(),
            values: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.values.len() / self.width
    }

    fn get(&self, index: usize) -> &[Datum<'a>] {
        &self.values[index * self.width..(index + 1) * self.width]
    }

    /// Appends a bound, which must come after the last.
    fn push(&mut self, key_columns: &[ColumnType], packed: &'a [u8]) -> Result<(), CompareError> {
        let key = pack::unpack_values(packed, key_columns)?;
        let last = self.len().checked_sub(1);
        if last.is_some_and(|last| compare_keys(self.get(last), &key).is_ge()) {
            return Err(CompareError::Order);
        }
        self.values.extend(key);
        Ok(())
    }

    /// How many bounds come before the key: its range's index.
    fn before(&self, key: &[Datum<'_>]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if compare_keys(self.get(middle), key).is_lt() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

// ---------------------------------------------------------------------------
// Checksums

/// What one range of keys holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RangeSum {
    /// Its rows.
    pub rows: u64,
    /// The wrapping sum of their checksums.
    pub checksum: u64,
}

/// The checksum of a row that is packed as [`Op::Upsert`] under the publication
/// schema's shape: XXH3 with 64 bits.
pub fn row_checksum(packed: &[u8]) -> u64 {
    xxh3_64(packed)
}

/// A table divided into ranges of its keys, with the sum of each. Range *i* holds
/// the keys after bound *i - 1* up to and with bound *i*; the last has no bound.
#[derive(Debug)]
pub struct Ranges<'a> {
    shape: &'a RowShape,
    untils: Vec<&'a [u8]>,
    bounds: Bounds<'a>,
    sums: Vec<RangeSum>,
    packed: Vec<u8>,
    last: usize,
}

impl<'a> Ranges<'a> {
    /// Divides at these packed keys, which ascend in range order (see
    /// [`sort_keys`]); with none, the whole table is one range.
    ///
    /// # Errors
    /// One is not a packed key of the shape, or they do not ascend.
    pub fn at(
        shape: &'a RowShape,
        bounds: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Ranges<'a>, CompareError> {
        let key_columns = shape.key_columns();
        let mut ranges = Ranges {
            shape,
            untils: Vec::new(),
            bounds: Bounds::new(&key_columns),
            sums: Vec::new(),
            packed: Vec::new(),
            last: 0,
        };
        for bound in bounds {
            ranges.bounds.push(&key_columns, bound)?;
            ranges.untils.push(bound);
        }
        ranges.untils.push(&[]);
        ranges.sums.resize(ranges.untils.len(), RangeSum::default());
        Ok(ranges)
    }

    /// Divides as the other side did.
    ///
    /// # Errors
    /// A bound is not a packed key of the shape; they do not ascend; or another than
    /// the last range, and only it, has no bound.
    pub fn like(shape: &'a RowShape, ranges: &'a [KeyRange]) -> Result<Ranges<'a>, CompareError> {
        match ranges.split_last() {
            Some((last, bounded)) if last.until.is_empty() => {
                if bounded.iter().any(|range| range.until.is_empty()) {
                    return Err(CompareError::Order);
                }
                Ranges::at(shape, bounded.iter().map(|range| &range.until[..]))
            }
            _ => Err(CompareError::Order),
        }
    }

    /// Adds a row.
    pub fn add(&mut self, key: &[Datum<'_>], row: &[Datum<'_>]) {
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        pack::put_whole(&mut packed, self.shape, Op::Upsert, row);
        self.add_packed(key, &packed);
        self.packed = packed;
    }

    /// Adds a row that is packed already, as [`row_checksum`] wants it.
    pub fn add_packed(&mut self, key: &[Datum<'_>], packed: &[u8]) {
        // Rows come mostly in key order: the range of the row before is tried first.
        if !self.holds(self.last, key) {
            self.last = self.bounds.before(key);
        }
        let sum = &mut self.sums[self.last];
        sum.rows += 1;
        sum.checksum = sum.checksum.wrapping_add(row_checksum(packed));
    }

    fn holds(&self, range: usize, key: &[Datum<'_>]) -> bool {
        let after = range
            .checked_sub(1)
            .is_none_or(|before| compare_keys(self.bounds.get(before), key).is_lt());
        after && (range == self.bounds.len() || compare_keys(key, self.bounds.get(range)).is_le())
    }

    /// The sums, in the order of the ranges.
    pub fn sums(&self) -> &[RangeSum] {
        &self.sums
    }

    /// The ranges as they travel.
    pub fn to_wire(&self) -> Vec<KeyRange> {
        let ranges = self.untils.iter().zip(&self.sums);
        ranges
            .map(|(until, sum)| KeyRange {
                until: until.to_vec(),
                rows: sum.rows,
                checksum: sum.checksum,
            })
            .collect()
    }

    /// The intervals in which the other side has something else, neighbours joined.
    /// `theirs` are the ranges that these were made like.
    pub fn differing(&self, theirs: &[KeyRange]) -> Vec<KeyInterval> {
        let mut intervals: Vec<KeyInterval> = Vec::new();
        let mut open = false;
        for (index, (own, their)) in self.sums.iter().zip(theirs).enumerate() {
            let differs = own.rows != their.rows || own.checksum != their.checksum;
            if differs {
                let until = self.untils[index].to_vec();
                match intervals.last_mut().filter(|_| open) {
                    Some(interval) => interval.until = until,
                    None => {
                        let before = index.checked_sub(1).map(|before| self.untils[before]);
                        intervals.push(KeyInterval {
                            after: before.unwrap_or_default().to_vec(),
                            until,
                        });
                    }
                }
            }
            open = differs;
        }
        intervals
    }
}

/// Intervals of keys: each holds the keys after `after` up to and with `until`; an
/// empty one is no bound.
#[derive(Debug)]
pub struct Intervals<'a> {
    /// Where each begins: after this bound, or at the beginning.
    open_start: bool,
    open_end: bool,
    /// The starts and ends in turn, without those that are open.
    bounds: Bounds<'a>,
    empty: bool,
}

impl<'a> Intervals<'a> {
    /// Reads the intervals of a download.
    ///
    /// # Errors
    /// A bound is not a packed key of the shape, or the intervals do not ascend.
    pub fn new(
        shape: &RowShape,
        intervals: &'a [KeyInterval],
    ) -> Result<Intervals<'a>, CompareError> {
        let key_columns = shape.key_columns();
        let mut bounds = Bounds::new(&key_columns);
        let last = intervals.len().saturating_sub(1);
        let mut open_start = false;
        let mut open_end = false;
        for (index, interval) in intervals.iter().enumerate() {
            match (index, interval.after.is_empty()) {
                (_, false) => bounds.push(&key_columns, &interval.after)?,
                (0, true) => open_start = true,
                _ => return Err(CompareError::Order),
            }
            match interval.until.is_empty() {
                false => bounds.push(&key_columns, &interval.until)?,
                true if index == last => open_end = true,
                true => return Err(CompareError::Order),
            }
        }
        Ok(Intervals {
            open_start,
            open_end,
            bounds,
            empty: intervals.is_empty(),
        })
    }

    /// Whether one of the intervals holds the key.
    pub fn contains(&self, key: &[Datum<'_>]) -> bool {
        if self.empty {
            return false;
        }
        // Each bound before the key is one step in or out.
        self.bounds.before(key).is_multiple_of(2) == self.open_start
    }

    /// Whether the intervals hold every key there can be.
    pub fn is_everything(&self) -> bool {
        self.open_start && self.open_end && self.bounds.len() == 0
    }
}

#[cfg(test)]
mod tests;
