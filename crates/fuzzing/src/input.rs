//! Reading choices off the beginning of the bytes that a fuzzer gives.
//!
//! A fuzzer that changes one byte should change one choice: every choice takes a fixed
//! number of bytes, and what is missing counts as zero.

use tidewater_protocol::pack::same;
use tidewater_protocol::{ColumnType, Datum, RowShape};

/// The bytes that are left.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    /// The next byte; zero at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&first, rest)) => {
                self.bytes = rest;
                first
            }
            None => 0,
        }
    }

    /// A choice among `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// The next bytes, as many as their first byte says and are there.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.bytes.len());
        let (piece, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        piece
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Everything that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// A type of a column, of all there are.
    pub(crate) fn column_type(&mut self) -> ColumnType {
        match self.below(14) {
            0 => ColumnType::Integer,
            1 => ColumnType::Decimal { scale: None },
            2 => ColumnType::Real,
            3 => ColumnType::Boolean,
            4 => ColumnType::Text,
            5 => ColumnType::Bytes,
            6 => ColumnType::Date,
            7 => ColumnType::Time,
            8 => ColumnType::Timestamp,
            9 => ColumnType::TimestampTz,
            10 => ColumnType::Uuid,
            11 => ColumnType::Json,
            12 => ColumnType::Opaque,
            _ => ColumnType::Decimal {
                scale: Some(u16::from(self.byte() % 45)),
            },
        }
    }

    /// A table of up to eleven columns, with a key of up to three of them in any order.
    pub(crate) fn shape(&mut self) -> RowShape {
        let count = self.below(11) + 1;
        let columns: Vec<ColumnType> = (0..count).map(|_| self.column_type()).collect();
        let mut key = vec![self.below(count)];
        for _ in 0..self.below(3) {
            let index = self.below(count);
            if !key.contains(&index) {
                key.push(index);
            }
        }
        RowShape { columns, key }
    }
}

/// [`same`] for rows.
pub(crate) fn all_same(left: &[Datum<'_>], right: &[Datum<'_>]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| same(left, right))
}
