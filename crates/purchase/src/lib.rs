//! The `purchase` table of the performance budgets, and rows for it.
//!
//! Owns the table's definition and a generator whose rows are the same at every run: 92 bytes
//! each (three integers of 4, 8 for the cost, 8 for the date, 64 of notes), partitioned by
//! `emp_id`. What is measured with them belongs to the benchmark.
//!
//! A crate of its own, because both the load generator, which is part of the program, and the
//! tests of what is below it need the same rows, and neither may depend on the other.

use std::fmt::Write;
use std::ops::Range;
use std::pin::pin;

use anyhow::Context;
use bytes::Bytes;
use futures_util::SinkExt;
use tidewater_protocol::datetime::push_timestamp;
use tokio_postgres::Client;

/// The `purch_id` of the row with number 0: large, so that no integer packs into few bytes.
pub const FIRST_PURCH_ID: i32 = 1_000_000_000;
/// A good `emp_id` for the first employee, large for the same reason.
pub const FIRST_EMP_ID: i32 = 1_500_000_000;
/// The cost of a row that was never updated, in millionths.
pub const FIRST_COST_MICROS: i64 = 123_456_789_120_000;

const SCHEMA: &str = "\
CREATE TABLE purchase (
  emp_id INT NOT NULL,
  purch_id INT NOT NULL,
  cust_id INT NOT NULL,
  cost NUMERIC(30,6) NOT NULL,
  order_date TIMESTAMP NOT NULL,
  notes VARCHAR(64),
  PRIMARY KEY (emp_id, purch_id)
);
";

const COLUMNS: &str = "emp_id, purch_id, cust_id, cost, order_date, notes";
/// Enough rows for a message of COPY to cost little, few enough to stay in the cache.
const COPY_PIECE_BYTES: usize = 64 * 1024;
/// 2024-01-01T00:00:00 UTC.
const FIRST_ORDER_MICROS: i64 = 1_704_067_200_000_000;

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purchase {
    /// The partition.
    pub emp_id: i32,
    /// With `emp_id`, the primary key.
    pub purch_id: i32,
    /// Any large number.
    pub cust_id: i32,
    /// In millionths, as the column's scale is 6.
    pub cost_micros: i64,
    /// Microseconds since 1970-01-01T00:00:00.
    pub order_date_micros: i64,
    /// 64 ASCII characters.
    pub notes: String,
}

/// The statement that creates the table in PostgreSQL.
pub fn postgres_schema() -> &'static str {
    SCHEMA
}

/// The statement that creates the table in SQLite.
pub fn sqlite_schema() -> &'static str {
    SCHEMA
}

/// The rows of an employee with the given numbers, counted from 0; `purch_id` is the number
/// plus [`FIRST_PURCH_ID`].
pub fn purchases(emp_id: i32, numbers: Range<i32>) -> impl Iterator<Item = Purchase> + Clone {
    numbers.map(move |number| Purchase::new(emp_id, number))
}

/// Copies rows into the table; returns how many.
pub async fn load_postgres(
    client: &Client,
    rows: impl IntoIterator<Item = Purchase>,
) -> anyhow::Result<u64> {
    let mut rows = rows.into_iter().peekable();
    let statement = format!("COPY purchase ({COLUMNS}) FROM STDIN");
    let sink = client.copy_in(&statement).await;
    let mut sink = pin!(sink.context("COPY purchase was refused")?);
    while rows.peek().is_some() {
        let mut piece = String::with_capacity(COPY_PIECE_BYTES + 256);
        while piece.len() < COPY_PIECE_BYTES
            && let Some(row) = rows.next()
        {
            // The generator's notes hold nothing that COPY would want escaped.
            let _ = writeln!(
                piece,
                "{}\t{}\t{}\t{}\t{}\t{}",
                row.emp_id,
                row.purch_id,
                row.cust_id,
                row.cost(),
                row.order_date(),
                row.notes
            );
        }
        sink.send(Bytes::from(piece)).await?;
    }
    sink.finish().await.context("COPY purchase failed")
}

/// Inserts rows into the table, in the transaction that is open, or in one of its own; returns
/// how many.
pub fn load_sqlite(
    connection: &rusqlite::Connection,
    rows: impl IntoIterator<Item = Purchase>,
) -> anyhow::Result<u64> {
    connection.execute_batch("SAVEPOINT purchase")?;
    let inserted = insert_sqlite(connection, rows);
    if inserted.is_err() {
        connection.execute_batch("ROLLBACK TO purchase")?;
    }
    connection.execute_batch("RELEASE purchase")?;
    inserted
}

fn insert_sqlite(
    connection: &rusqlite::Connection,
    rows: impl IntoIterator<Item = Purchase>,
) -> anyhow::Result<u64> {
    let mut insert = connection.prepare(&format!(
        "INSERT INTO purchase ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
    ))?;
    let mut inserted = 0;
    for row in rows {
        insert.execute(rusqlite::params![
            row.emp_id,
            row.purch_id,
            row.cust_id,
            row.cost(),
            row.order_date(),
            row.notes
        ])?;
        inserted += 1;
    }
    Ok(inserted)
}

impl Purchase {
    /// The row of an employee with a number from 0 upward.
    pub fn new(emp_id: i32, number: i32) -> Self {
        let mut random = SplitMix::seeded(emp_id, number);
        Self {
            emp_id,
            purch_id: FIRST_PURCH_ID.wrapping_add(number),
            cust_id: FIRST_PURCH_ID + (random.next() % 1_000_000_000) as i32,
            cost_micros: FIRST_COST_MICROS,
            order_date_micros: FIRST_ORDER_MICROS + i64::from(number) * 1_000_000,
            notes: notes(&mut random),
        }
    }

    /// The row after one more update, which adds 1 to the cost.
    #[must_use]
    pub fn updated(mut self) -> Self {
        self.cost_micros += 1_000_000;
        self
    }

    /// The cost with the column's scale: `123456789.120000`.
    pub fn cost(&self) -> String {
        let sign = if self.cost_micros < 0 { "-" } else { "" };
        let micros = self.cost_micros.unsigned_abs();
        format!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }

    /// The date as ISO 8601 with microseconds: `2024-01-01T00:00:00.000000`.
    pub fn order_date(&self) -> String {
        let mut text = String::with_capacity(26);
        push_timestamp(self.order_date_micros, &mut text);
        text
    }
}

/// Letters and digits at random: text that repeats would flatter a transport that compresses.
fn notes(random: &mut SplitMix) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -";
    let mut notes = String::with_capacity(64);
    while notes.len() < 64 {
        let mut bits = random.next();
        for _ in 0..8 {
            notes.push(char::from(ALPHABET[(bits & 63) as usize]));
            bits >>= 6;
        }
    }
    notes
}

/// Sebastiano Vigna's SplitMix64: deterministic, and any seed is a good one.
struct SplitMix(u64);

impl SplitMix {
    fn seeded(emp_id: i32, number: i32) -> Self {
        Self((u64::from(emp_id as u32) << 32) | u64::from(number as u32))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_at_every_run() {
        let row = Purchase::new(FIRST_EMP_ID, 5);
        assert_eq!(row, purchases(FIRST_EMP_ID, 3..9).nth(2).unwrap());
        assert_eq!(row.purch_id, 1_000_000_005);
        assert_eq!(row.order_date(), "2024-01-01T00:00:05.000000");
        assert_ne!(row.notes, Purchase::new(FIRST_EMP_ID + 1, 5).notes);
        assert_ne!(row.notes, Purchase::new(FIRST_EMP_ID, 6).notes);
    }

    #[test]
    fn notes_have_64_characters_that_copy_takes_as_they_are() {
        for row in purchases(FIRST_EMP_ID, 0..100) {
            assert_eq!(row.notes.len(), 64);
            assert!(
                row.notes
                    .bytes()
                    .all(|it| (b' '..=b'z').contains(&it) && it != b'\\')
            );
        }
    }

    #[test]
    fn cost_grows_by_one_with_every_update() {
        let row = Purchase::new(FIRST_EMP_ID, 0);
        assert_eq!(row.cost(), "123456789.120000");
        assert_eq!(row.updated().updated().cost(), "123456791.120000");
    }
}
