//! Reading packed rows.

use super::{
    LOOSE, MAX_VALUE_BYTES, Op, RowShape, TAG_BLOB, TAG_INTEGER, TAG_REAL, TAG_TEXT, UnpackError,
    UnpackedRow, bitmap_len,
};
use crate::decimal::Decimal;
use crate::value::{ColumnType, Datum, ValueRef};

/// Unpacks rows of one shape, one after the other, out of a buffer.
#[derive(Debug)]
pub struct RowsReader<'a> {
    shape: &'a RowShape,
    cursor: PackedCursor<'a>,
}

impl<'a> RowsReader<'a> {
    /// A reader at the beginning of `bytes`.
    pub fn new(shape: &'a RowShape, bytes: &'a [u8]) -> Self {
        Self {
            shape,
            cursor: PackedCursor { bytes, at: 0 },
        }
    }

    /// How many bytes the rows read so far took.
    pub fn consumed(&self) -> usize {
        self.cursor.at
    }

    /// Reads the next row into `row`; false at the end.
    ///
    /// # Errors
    /// [`UnpackError::Truncated`] when the buffer ends inside the row: then
    /// [`Self::consumed`] is still where the row begins, and the same row can be
    /// read again from a longer buffer. [`UnpackError::Malformed`] otherwise.
    pub fn next(&mut self, row: &mut UnpackedRow<'a>) -> Result<bool, UnpackError> {
        let start = self.cursor.at;
        if start == self.cursor.bytes.len() {
            return Ok(false);
        }
        let result = self.read(row);
        if result.is_err() {
            self.cursor.at = start;
        }
        result.map(|()| true)
    }

    fn read(&mut self, row: &mut UnpackedRow<'a>) -> Result<(), UnpackError> {
        let byte = self.cursor.byte()?;
        let op = Op::from_byte(byte & !LOOSE).ok_or(UnpackError::Malformed("unknown operation"))?;
        let loose = byte & LOOSE != 0;
        row.op = Some(op);
        row.old.clear();
        row.new.clear();
        row.key.clear();
        let columns = || self.shape.columns.iter().copied();
        match op {
            Op::Insert | Op::Upsert | Op::ConflictRow | Op::Made | Op::Merged => {
                self.cursor.row(columns(), loose, &mut row.new)?;
                row.key
                    .extend(self.shape.key.iter().map(|&index| row.new[index]));
            }
            Op::Update => {
                self.cursor.row(columns(), loose, &mut row.old)?;
                let bitmap = self.cursor.bytes(bitmap_len(self.shape.columns.len()))?;
                for (index, column) in columns().enumerate() {
                    let changed = bitmap[index / 8] & (1 << (index % 8)) != 0;
                    row.new.push(if changed {
                        self.cursor.nullable(column, loose)?
                    } else {
                        row.old[index]
                    });
                }
                row.key
                    .extend(self.shape.key.iter().map(|&index| row.old[index]));
            }
            Op::Delete => {
                self.cursor.row(columns(), loose, &mut row.old)?;
                row.key
                    .extend(self.shape.key.iter().map(|&index| row.old[index]));
            }
            Op::Request | Op::Remove | Op::ConflictGone | Op::Refused => {
                for &index in &self.shape.key {
                    row.key
                        .push(self.cursor.nullable(self.shape.columns[index], loose)?);
                }
                if op == Op::Refused {
                    row.refused_op = Op::from_byte(self.cursor.byte()?);
                    row.code = u32::try_from(self.cursor.varint()?)
                        .map_err(|_| UnpackError::Malformed("code out of range"))?;
                    row.reason = self.cursor.text()?;
                }
            }
        }
        Ok(())
    }
}

/// Unpacks what [`super::pack_values`] wrote.
///
/// # Errors
/// The bytes are not a row of these columns, or more than one.
pub fn unpack_values<'a>(
    bytes: &'a [u8],
    columns: &[ColumnType],
) -> Result<Vec<Datum<'a>>, UnpackError> {
    let mut cursor = PackedCursor { bytes, at: 0 };
    let loose = match cursor.byte()? {
        0 => false,
        1 => true,
        _ => return Err(UnpackError::Malformed("bad row flag")),
    };
    let mut values = Vec::with_capacity(columns.len());
    cursor.row(columns.iter().copied(), loose, &mut values)?;
    if cursor.at != bytes.len() {
        return Err(UnpackError::Malformed("bytes after the row"));
    }
    Ok(values)
}

#[derive(Debug)]
struct PackedCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> PackedCursor<'a> {
    fn byte(&mut self) -> Result<u8, UnpackError> {
        let byte = *self.bytes.get(self.at).ok_or(UnpackError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], UnpackError> {
        if count > MAX_VALUE_BYTES {
            return Err(UnpackError::Malformed("a value is longer than the limit"));
        }
        let end = self.at + count;
        let bytes = self.bytes.get(self.at..end).ok_or(UnpackError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, UnpackError> {
        let number = self.varint128()?;
        u64::try_from(number).map_err(|_| UnpackError::Malformed("number out of range"))
    }

    fn varint128(&mut self) -> Result<u128, UnpackError> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u128::from(first));
        }
        // Numbers of up to 63 bits, nearly all of them, stay in one register.
        let mut low = u64::from(first & 0x7f);
        let mut shift = 7;
        while shift < 63 {
            let byte = self.byte()?;
            low |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(u128::from(low));
            }
            shift += 7;
        }
        let mut number = u128::from(low);
        while shift < 128 {
            let byte = self.byte()?;
            let part = u128::from(byte & 0x7f);
            if shift > 121 && part >> (128 - shift) != 0 {
                return Err(UnpackError::Malformed("number out of range"));
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
        Err(UnpackError::Malformed("number out of range"))
    }

    fn signed(&mut self) -> Result<i64, UnpackError> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn sized(&mut self) -> Result<&'a [u8], UnpackError> {
        let count = usize::try_from(self.varint()?)
            .map_err(|_| UnpackError::Malformed("a value is longer than the limit"))?;
        self.bytes(count)
    }

    fn text(&mut self) -> Result<&'a str, UnpackError> {
        std::str::from_utf8(self.sized()?).map_err(|_| UnpackError::Malformed("text is not UTF-8"))
    }

    fn real(&mut self) -> Result<f64, UnpackError> {
        let bytes = self.bytes(8)?;
        let bytes = bytes.try_into().map_err(|_| UnpackError::Truncated)?;
        Ok(f64::from_le_bytes(bytes))
    }

    fn row(
        &mut self,
        columns: impl ExactSizeIterator<Item = ColumnType>,
        loose: bool,
        values: &mut Vec<Datum<'a>>,
    ) -> Result<(), UnpackError> {
        let nulls = self.bytes(bitmap_len(columns.len()))?;
        for (index, column) in columns.enumerate() {
            let null = nulls[index / 8] & (1 << (index % 8)) != 0;
            values.push(if null {
                Datum::Null
            } else {
                self.value(column, loose)?
            });
        }
        Ok(())
    }

    fn nullable(&mut self, column: ColumnType, loose: bool) -> Result<Datum<'a>, UnpackError> {
        match self.byte()? {
            0 => Ok(Datum::Null),
            1 => self.value(column, loose),
            _ => Err(UnpackError::Malformed("bad NULL flag")),
        }
    }

    fn value(&mut self, column: ColumnType, loose: bool) -> Result<Datum<'a>, UnpackError> {
        if loose {
            let value = match self.byte()? {
                TAG_INTEGER => ValueRef::Integer(self.signed()?),
                TAG_REAL => ValueRef::Real(self.real()?),
                TAG_TEXT => ValueRef::Text(self.text()?),
                TAG_BLOB => ValueRef::Blob(self.sized()?),
                _ => return Err(UnpackError::Malformed("unknown value tag")),
            };
            return Ok(column.datum(value).0);
        }
        let within = |count: i64, limit: i64| {
            let infinite = count == i64::MAX || count == i64::MIN;
            if infinite || (-limit..=limit).contains(&count) {
                Ok(count)
            } else {
                Err(UnpackError::Malformed("date or time out of range"))
            }
        };
        Ok(match column {
            ColumnType::Integer => Datum::Integer(self.signed()?),
            ColumnType::Boolean => match self.byte()? {
                0 => Datum::Boolean(false),
                1 => Datum::Boolean(true),
                _ => return Err(UnpackError::Malformed("bad boolean")),
            },
            ColumnType::Real => Datum::Real(self.real()?),
            ColumnType::Text | ColumnType::Json | ColumnType::Opaque => Datum::Text(self.text()?),
            ColumnType::Bytes => Datum::Bytes(self.sized()?),
            ColumnType::Date => Datum::Date(within(self.signed()?, crate::datetime::MAX_DAYS)?),
            ColumnType::Time => match self.signed()? {
                micros @ 0..=86_400_000_000 => Datum::Time(micros),
                _ => return Err(UnpackError::Malformed("date or time out of range")),
            },
            ColumnType::Timestamp => {
                Datum::Timestamp(within(self.signed()?, crate::datetime::MAX_MICROS)?)
            }
            ColumnType::TimestampTz => {
                Datum::TimestampTz(within(self.signed()?, crate::datetime::MAX_MICROS)?)
            }
            ColumnType::Uuid => {
                let bytes = self.bytes(16)?;
                Datum::Uuid(bytes.try_into().map_err(|_| UnpackError::Truncated)?)
            }
            ColumnType::Decimal { .. } => match self.varint()? {
                0 => {
                    let text = self.text()?;
                    match Decimal::parse(text) {
                        Some((decimal @ Decimal::Text(_), true)) => Datum::Decimal(decimal),
                        _ => return Err(UnpackError::Malformed("bad decimal")),
                    }
                }
                header => {
                    let scale = u16::try_from(header - 1)
                        .ok()
                        .filter(|&scale| usize::from(scale) <= crate::decimal::MAX_EXACT_DIGITS * 4)
                        .ok_or(UnpackError::Malformed("bad decimal"))?;
                    let zigzag = self.varint128()?;
                    let unscaled = (zigzag >> 1) as i128 ^ -((zigzag & 1) as i128);
                    if unscaled.unsigned_abs() >= 10u128.pow(38) {
                        return Err(UnpackError::Malformed("bad decimal"));
                    }
                    Datum::Decimal(Decimal::Exact { unscaled, scale })
                }
            },
        })
    }
}
