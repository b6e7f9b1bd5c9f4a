//! Rows of the sample table in PostgreSQL's binary formats.

use bytes::{BufMut, Bytes, BytesMut};
use tidewater_purchase::Purchase;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// Microseconds between 1970-01-01, from which rows count, and 2000-01-01, from which
/// PostgreSQL does.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;
const PIECE_BYTES: usize = 256 << 10;

/// The rows in the format of `COPY ... (FORMAT BINARY)`, cut into pieces.
pub fn encode(rows: impl Iterator<Item = Purchase>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut piece = BytesMut::with_capacity(PIECE_BYTES + 256);
    piece.put_slice(b"PGCOPY\n\xff\r\n\0");
    piece.put_u64(0);
    for row in rows {
        piece.put_i16(6);
        for integer in [row.emp_id, row.purch_id, row.cust_id] {
            piece.put_i32(4);
            piece.put_i32(integer);
        }
        let cost = numeric(row.cost_micros);
        piece.put_i32(cost.len() as i32);
        piece.put_slice(&cost);
        piece.put_i32(8);
        piece.put_i64(row.order_date_micros - POSTGRES_EPOCH_MICROS);
        piece.put_i32(row.notes.len() as i32);
        piece.put_slice(row.notes.as_bytes());
        if piece.len() >= PIECE_BYTES {
            pieces.push(piece.split().freeze());
            piece.reserve(PIECE_BYTES + 256);
        }
    }
    piece.put_i16(-1);
    pieces.push(piece.freeze());
    pieces
}

/// A numeric of scale 6: digits in base 10,000, as `numeric_recv` reads them.
fn numeric(micros: i64) -> Vec<u8> {
    // Two groups stand behind the point, so the number is counted in hundred-millionths.
    let mut rest = u128::from(micros.unsigned_abs()) * 100;
    let mut digits = Vec::with_capacity(8);
    while rest > 0 {
        digits.push((rest % 10_000) as u16);
        rest /= 10_000;
    }
    let mut out = Vec::with_capacity(8 + 2 * digits.len());
    out.put_i16(digits.len() as i16);
    out.put_i16(digits.len() as i16 - 3);
    out.put_u16(if micros < 0 { 0x4000 } else { 0 });
    out.put_u16(6);
    for digit in digits.into_iter().rev() {
        out.put_u16(digit);
    }
    out
}

/// A numeric as a parameter, in millionths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Micros(pub(crate) i64);

impl ToSql for Micros {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_slice(&numeric(self.0));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

/// A timestamp as a parameter, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamp(pub(crate) i64);

impl ToSql for Timestamp {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_i64(self.0 - POSTGRES_EPOCH_MICROS);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMP
    }

    to_sql_checked!();
}
