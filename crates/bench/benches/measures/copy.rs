//! The yardstick of uploads: the same rows by binary COPY.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
pub(crate) use tidewater_bench::copy::encode;
use tokio_postgres::Client;

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
