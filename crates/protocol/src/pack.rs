//! Row packing: rows of a table as a dense stream of bytes.
//!
//! A stream of packed rows is preceded, outside of it, by the table's
//! [`RowShape`]. Each row begins with an operation; what follows depends on it.
//! Values are packed by column type, without tags. A row that holds a value which
//! its column's type cannot take is marked *loose*: then every value of it carries
//! a tag and is packed as SQLite stores it. The bytes are specified in
//! `docs/protocol.md`, "Row packing".

mod read;

pub use self::read::{RowsReader, unpack_values};
use crate::decimal::Decimal;
use crate::value::{ColumnType, Datum, ValueRef};

/// What a packed row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Upload: a row that the centre did not have. `new`.
    Insert = 1,
    /// Upload: a changed row. `old` is the pre-image, `new` the row.
    Update = 2,
    /// Upload: a removed row. `old` is the pre-image.
    Delete = 3,
    /// Request: a row that the remote wants to be sent again. `key`.
    Request = 4,
    /// Download: a row as it is in the centre. `new`.
    Upsert = 5,
    /// Download: a key that is not, or no longer, in the remote's scope. `key`.
    Remove = 6,
    /// Upload result: a change was refused. `key`, `refused_op`, `code`, `reason`.
    Refused = 7,
    /// Upload result: a change lost against this row of the centre. `new`.
    ConflictRow = 8,
    /// Upload result: a change lost against a delete in the centre. `key`.
    ConflictGone = 9,
    /// Upload result: a change was taken, and the centre has made this row of it. `new`.
    Made = 10,
    /// Upload result: a change was taken together with one of somebody else's, and this row has come
    /// of it. `new`.
    Merged = 11,
}

impl Op {
    fn from_byte(byte: u8) -> Option<Op> {
        Some(match byte {
            1 => Op::Insert,
            2 => Op::Update,
            3 => Op::Delete,
            4 => Op::Request,
            5 => Op::Upsert,
            6 => Op::Remove,
            7 => Op::Refused,
            8 => Op::ConflictRow,
            9 => Op::ConflictGone,
            10 => Op::Made,
            11 => Op::Merged,
            _ => return None,
        })
    }
}

const LOOSE: u8 = 0x80;

/// The largest number of columns that a row can have.
pub const MAX_COLUMNS: usize = 2_000;

/// The largest packed size of one value in bytes (64 MiB).
pub const MAX_VALUE_BYTES: usize = 64 << 20;

/// The first value that is longer than rows may carry, as its index and its bytes.
pub fn too_long(values: &[Datum<'_>]) -> Option<(usize, usize)> {
    let lengths = values.iter().map(|value| match value {
        Datum::Text(text) | Datum::Loose(ValueRef::Text(text)) => text.len(),
        Datum::Bytes(bytes) | Datum::Loose(ValueRef::Blob(bytes)) => bytes.len(),
        // The others have a few bytes, and a decimal's text no more than it had as text.
        Datum::Decimal(Decimal::Text(text)) => text.len(),
        _ => 0,
    });
    lengths
        .enumerate()
        .find(|(_, bytes)| *bytes > MAX_VALUE_BYTES)
}

/// What a reader must know of a table to unpack its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// The types of the columns, in the order in which they are packed.
    pub columns: Vec<ColumnType>,
    /// The indexes of the primary key's columns in `columns`, in key order.
    pub key: Vec<usize>,
}

/// One unpacked row. Reused from row to row; which fields are filled depends on
/// `op` (see [`Op`]).
#[derive(Debug, Default)]
pub struct UnpackedRow<'a> {
    /// What the row says.
    pub op: Option<Op>,
    /// The pre-image, one value a column.
    pub old: Vec<Datum<'a>>,
    /// The row, one value a column.
    pub new: Vec<Datum<'a>>,
    /// The primary key. Filled for every operation.
    pub key: Vec<Datum<'a>>,
    /// The operation that was refused.
    pub refused_op: Option<Op>,
    /// Why it was refused: the number of a [`crate::Code`].
    pub code: u32,
    /// Why it was refused, for people.
    pub reason: &'a str,
}

/// Why packed rows cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The bytes end inside a row: more are needed.
    #[error("the rows end in the middle of a row")]
    Truncated,
    /// The bytes are not packed rows of this shape.
    #[error("malformed row: {0}")]
    Malformed(&'static str),
}

// ---------------------------------------------------------------------------
// Writing

/// Packs rows of one shape, one after the other, into a buffer.
#[derive(Debug)]
pub struct RowsWriter<'a> {
    shape: &'a RowShape,
    out: Vec<u8>,
    rows: u64,
}

impl RowShape {
    /// The types of the key's columns, in key order.
    pub fn key_columns(&self) -> Vec<ColumnType> {
        self.key.iter().map(|&index| self.columns[index]).collect()
    }
}

/// Appends one whole row under an operation that carries one.
pub(crate) fn put_whole(out: &mut Vec<u8>, shape: &RowShape, op: Op, row: &[Datum<'_>]) {
    let loose = row.iter().any(Datum::is_loose);
    out.push(op as u8 | if loose { LOOSE } else { 0 });
    put_row(out, &shape.columns, row, loose);
}

impl<'a> RowsWriter<'a> {
    /// A writer with an empty buffer.
    pub fn new(shape: &'a RowShape) -> Self {
        Self {
            shape,
            out: Vec::new(),
            rows: 0,
        }
    }

    /// How many bytes wait in the buffer.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether no bytes wait in the buffer.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// How many rows were packed since the writer was made.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Hands over what is packed and goes on with an empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        let capacity = self.out.capacity();
        std::mem::replace(&mut self.out, Vec::with_capacity(capacity))
    }

    fn begin(&mut self, op: Op, loose: bool) {
        self.rows += 1;
        self.out.push(op as u8 | if loose { LOOSE } else { 0 });
    }

    /// `Insert`, `Upsert`, `ConflictRow` or `Made`, by `op`: a whole row.
    pub fn row(&mut self, op: Op, new: &[Datum<'_>]) {
        debug_assert_eq!(new.len(), self.shape.columns.len());
        self.rows += 1;
        put_whole(&mut self.out, self.shape, op, new);
    }

    /// `Update`: the pre-image, and of the new row what differs from it.
    pub fn update(&mut self, old: &[Datum<'_>], new: &[Datum<'_>]) {
        debug_assert_eq!(old.len(), self.shape.columns.len());
        debug_assert_eq!(new.len(), self.shape.columns.len());
        let loose = old.iter().chain(new).any(Datum::is_loose);
        self.begin(Op::Update, loose);
        put_row(&mut self.out, &self.shape.columns, old, loose);
        let changed_at = self.out.len();
        self.out.resize(changed_at + bitmap_len(old.len()), 0);
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            if !same(old, new) {
                self.out[changed_at + index / 8] |= 1 << (index % 8);
                put_nullable(&mut self.out, new, loose);
            }
        }
    }

    /// `Delete`: the pre-image.
    pub fn delete(&mut self, old: &[Datum<'_>]) {
        let loose = old.iter().any(Datum::is_loose);
        self.begin(Op::Delete, loose);
        put_row(&mut self.out, &self.shape.columns, old, loose);
    }

    /// `Request`, `Remove` or `ConflictGone`, by `op`: a key.
    pub fn key(&mut self, op: Op, key: &[Datum<'_>]) {
        debug_assert_eq!(key.len(), self.shape.key.len());
        let loose = key.iter().any(Datum::is_loose);
        self.begin(op, loose);
        for datum in key {
            put_nullable(&mut self.out, datum, loose);
        }
    }

    /// `Refused`: a key, what was tried, and why not.
    pub fn refused(&mut self, key: &[Datum<'_>], op: Op, code: u32, reason: &str) {
        self.key(Op::Refused, key);
        self.out.push(op as u8);
        put_varint(&mut self.out, u64::from(code));
        put_bytes(&mut self.out, reason.as_bytes());
    }
}

/// Whether two values pack to the same bytes (NaN equals NaN, whatever bits either has).
pub fn same(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    let same_real = |left: f64, right: f64| {
        left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
    };
    match (left, right) {
        (Datum::Real(left), Datum::Real(right)) => same_real(*left, *right),
        (Datum::Loose(ValueRef::Real(left)), Datum::Loose(ValueRef::Real(right))) => {
            same_real(*left, *right)
        }
        _ => left == right,
    }
}

/// Packs the values of one row without an operation: what two rows are compared
/// and hashed by. Rows that are equal in canonical form pack to equal bytes.
pub fn pack_values(out: &mut Vec<u8>, columns: &[ColumnType], values: &[Datum<'_>]) {
    let loose = values.iter().any(Datum::is_loose);
    out.push(u8::from(loose));
    put_row(out, columns, values, loose);
}

fn bitmap_len(columns: usize) -> usize {
    columns.div_ceil(8)
}

fn put_row(out: &mut Vec<u8>, columns: &[ColumnType], values: &[Datum<'_>], loose: bool) {
    let nulls_at = out.len();
    out.resize(nulls_at + bitmap_len(columns.len()), 0);
    for (index, value) in values.iter().enumerate() {
        if matches!(value, Datum::Null | Datum::Loose(ValueRef::Null)) {
            out[nulls_at + index / 8] |= 1 << (index % 8);
        } else {
            put_value(out, value, loose);
        }
    }
}

fn put_nullable(out: &mut Vec<u8>, value: &Datum<'_>, loose: bool) {
    if matches!(value, Datum::Null | Datum::Loose(ValueRef::Null)) {
        out.push(0);
    } else {
        out.push(1);
        put_value(out, value, loose);
    }
}

const TAG_INTEGER: u8 = 1;
const TAG_REAL: u8 = 2;
const TAG_TEXT: u8 = 3;
const TAG_BLOB: u8 = 4;

/// How NaN is packed.
const NAN: u64 = 0x7ff8_0000_0000_0000;

fn put_value(out: &mut Vec<u8>, value: &Datum<'_>, loose: bool) {
    if loose {
        let mut scratch = String::new();
        match value.stored(&mut scratch) {
            ValueRef::Null => {}
            ValueRef::Integer(integer) => {
                out.push(TAG_INTEGER);
                put_signed(out, integer);
            }
            ValueRef::Real(real) => {
                out.push(TAG_REAL);
                out.extend_from_slice(&real.to_le_bytes());
            }
            ValueRef::Text(text) => {
                out.push(TAG_TEXT);
                put_bytes(out, text.as_bytes());
            }
            ValueRef::Blob(blob) => {
                out.push(TAG_BLOB);
                put_bytes(out, blob);
            }
        }
        return;
    }
    match *value {
        Datum::Null | Datum::Loose(_) => {}
        Datum::Integer(integer)
        | Datum::Date(integer)
        | Datum::Time(integer)
        | Datum::Timestamp(integer)
        | Datum::TimestampTz(integer) => put_signed(out, integer),
        Datum::Boolean(boolean) => out.push(u8::from(boolean)),
        Datum::Real(real) => {
            // One of the many forms of NaN, so that equal rows have equal checksums.
            let bits = if real.is_nan() { NAN } else { real.to_bits() };
            out.extend_from_slice(&bits.to_le_bytes());
        }
        Datum::Text(text) => put_bytes(out, text.as_bytes()),
        Datum::Bytes(bytes) => put_bytes(out, bytes),
        Datum::Uuid(uuid) => out.extend_from_slice(&uuid),
        Datum::Decimal(Decimal::Text(text)) => {
            put_varint(out, 0);
            put_bytes(out, text.as_bytes());
        }
        Datum::Decimal(Decimal::Exact { unscaled, scale }) => {
            put_varint(out, u64::from(scale) + 1);
            let zigzag = ((unscaled << 1) ^ (unscaled >> 127)) as u128;
            put_varint128(out, zigzag);
        }
    }
}

/// Appends an unsigned LEB128 number.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_varint128(out: &mut Vec<u8>, mut number: u128) {
    while number > u128::from(u64::MAX) {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    put_varint(out, number as u64);
}

fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
