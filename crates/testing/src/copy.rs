//! Text into a PostgreSQL table by COPY.

use std::pin::pin;

use anyhow::Context;
use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Client;

/// Runs a `COPY ... FROM STDIN` statement with the given pieces of data; returns the rows that
/// were copied.
pub(crate) async fn copy_in(
    client: &Client,
    statement: &str,
    pieces: impl IntoIterator<Item = Bytes>,
) -> anyhow::Result<u64> {
    let sink = client
        .copy_in(statement)
        .await
        .with_context(|| format!("refused: {statement}"))?;
    let mut sink = pin!(sink);
    for piece in pieces {
        sink.send(piece).await?;
    }
    sink.finish()
        .await
        .with_context(|| format!("failed: {statement}"))
}
