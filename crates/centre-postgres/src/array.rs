//! Parameters and results in binary form, without a detour over Rust types.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use tidewater_protocol::Datum;

use super::values::{PostgresType, UnfitValue};

/// A one-dimensional array as a parameter, built value by value.
#[derive(Debug)]
pub(super) struct Array {
    kind: PostgresType,
    count: i32,
    nulls: bool,
    elements: Vec<u8>,
}

impl Array {
    /// An empty array of values of a kind.
    pub(super) fn new(kind: PostgresType) -> Array {
        Array {
            kind,
            count: 0,
            nulls: false,
            elements: Vec::new(),
        }
    }

    /// Appends a value; an error leaves the array as it was.
    pub(super) fn push(&mut self, datum: &Datum<'_>) -> Result<(), UnfitValue> {
        self.kind.encode(datum, &mut self.elements)?;
        self.nulls |= matches!(datum, Datum::Null);
        self.count += 1;
        Ok(())
    }

    /// Takes back everything from a position that [`Self::position`] gave.
    pub(super) fn truncate(&mut self, (count, length): (i32, usize)) {
        self.count = count;
        self.elements.truncate(length);
    }

    /// The end, as [`Self::truncate`] takes it.
    pub(super) fn position(&self) -> (i32, usize) {
        (self.count, self.elements.len())
    }

    /// How a statement spells the parameter of this number.
    pub(super) fn parameter(kind: PostgresType, number: usize) -> String {
        format!("${number}::{}[]", kind.parameter().1)
    }
}

impl ToSql for Array {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.reserve(20 + self.elements.len());
        out.put_i32(i32::from(self.count > 0));
        out.put_i32(i32::from(self.nulls));
        out.put_u32(self.kind.parameter().0);
        if self.count > 0 {
            out.put_i32(self.count);
            out.put_i32(1);
            out.put_slice(&self.elements);
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        // Statements cast every parameter to the array's own type.
        true
    }

    to_sql_checked!();
}

/// A result's value as it arrived; `None` for NULL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a>(pub(super) Option<&'a [u8]>);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Raw(Some(raw)))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Raw(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
