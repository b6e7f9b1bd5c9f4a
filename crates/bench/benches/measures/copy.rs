//! The yardstick of uploads: the same rows by binary COPY.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use tidewater_purchase::Purchase;
use tokio_postgres::Client;

/// Microseconds between 1970-01-01, from which rows count, and 2000-01-01, from which
/// PostgreSQL does.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;
const PIECE_BYTES: usize = 256 << 10;

/// The rows in the format of `COPY ... (FORMAT BINARY)`, cut into pieces.
pub(crate) fn encode(rows: impl Iterator<Item = Purchase>) -> Vec<Bytes> {
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
        put_numeric(&mut piece, row.cost_micros);
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
fn put_numeric(out: &mut BytesMut, micros: i64) {
    // Two groups stand behind the point, so the number is counted in hundred-millionths.
    let mut rest = micros.unsigned_abs() as u128 * 100;
    let mut digits = Vec::with_capacity(8);
    while rest > 0 {
        digits.push((rest % 10_000) as u16);
        rest /= 10_000;
    }
    let weight = digits.len() as i16 - 3;
    out.put_i32(8 + 2 * digits.len() as i32);
    out.put_i16(digits.len() as i16);
    out.put_i16(weight);
    out.put_u16(if micros < 0 { 0x4000 } else { 0 });
    out.put_u16(6);
    for digit in digits.into_iter().rev() {
        out.put_u16(digit);
    }
}

/// Copies the pieces into the table, in a transaction of its own, and tells how long it took.
pub(crate) async fn copy(client: &Client, pieces: &[Bytes]) -> anyhow::Result<Duration> {
    let statement = "COPY purchase (emp_id, purch_id, cust_id, cost, order_date, notes) \
                     FROM STDIN (FORMAT BINARY)";
    let start = Instant::now();
    let sink = client.copy_in(statement).await?;
    let mut sink = pin!(sink);
    for piece in pieces {
        sink.send(piece.clone()).await?;
    }
    sink.finish().await?;
    Ok(start.elapsed())
}
