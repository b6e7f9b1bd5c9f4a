//! Watermarks and their marks.
//!
//! A watermark is the snapshot of a download together with the *mark* that proves
//! that this history of the database is the one that gave it out: a random row,
//! committed synchronously after the snapshot was taken. Everything that the snapshot
//! saw is durable by then, and every transaction id below the mark's is spent.

use super::connection::{DatabaseAddress, PostgresConnection};
use super::fill_random;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::marks;
use tidewater_centre::error::CentreError;

const MARK_BYTES: usize = 16;

/// A snapshot as a watermark keeps it; `None` for anything else, such as another adapter's position.
pub(super) fn snapshot(position: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(position).ok()?;
    is_snapshot(text).then_some(text)
}

/// `xmin:xmax:list`, well enough formed that PostgreSQL takes it.
fn is_snapshot(text: &str) -> bool {
    let mut parts = text.split(':');
    let number = |part: Option<&str>| part.and_then(|it| it.parse::<u64>().ok());
    let (Some(xmin), Some(xmax), Some(list), None) = (
        number(parts.next()),
        number(parts.next()),
        parts.next(),
        parts.next(),
    ) else {
        return false;
    };
    let mut last = 0;
    0 < xmin
        && xmin <= xmax
        && (list.is_empty()
            || list.split(',').all(|part| {
                let number = part.parse::<u64>().ok();
                let fits = number.is_some_and(|it| xmin <= it && it < xmax && last < it);
                last = number.unwrap_or(0);
                fits
            }))
}

/// Asks for marks, at a time.
pub(super) type Marks = marks::MarkQueue<i64, Vec<u8>>;

/// Starts the task that makes marks; it ends when nobody can ask any more. It connects at the
/// first request.
pub(super) fn start(address: DatabaseAddress) -> Marks {
    let (marks, mut asking) = marks::queue::<i64, Vec<u8>>();
    tokio::spawn(async move {
        let mut connection: Option<PostgresConnection> = None;
        while let Some((asked, waiting)) = asking.next().await {
            let oldest = asked.iter().min().copied();
            let mark = write_mark(&address, &mut connection, oldest.unwrap_or(0)).await;
            if mark.is_err() {
                connection = None;
            }
            waiting.answer(mark.map(|mark| vec![mark.to_vec(); asked.len()]));
        }
    });
    marks
}

async fn write_mark(
    address: &DatabaseAddress,
    connection: &mut Option<PostgresConnection>,
    created_ms: i64,
) -> Result<[u8; MARK_BYTES], CentreError> {
    let mut mark = [0; MARK_BYTES];
    fill_random(&mut mark)?;
    if connection
        .as_ref()
        .is_none_or(PostgresConnection::is_closed)
    {
        *connection = Some(PostgresConnection::open(address).await?);
    }
    let Some(connection) = connection else {
        return Err(CentreError::Internal {
            message: "no connection for marks".into(),
        });
    };
    let insert = "INSERT INTO tidewater.mark (id, created_ms) VALUES ($1, $2)";
    let statement = connection.prepare(insert, &[]).await?;
    connection
        .client()
        .execute(&statement, &[&mark.as_slice(), &created_ms])
        .await
        .map_err(statement_failed("writing a mark"))?;
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_told_from_other_bytes() {
        assert_eq!(snapshot(b"731:740:731,735"), Some("731:740:731,735"));
        assert_eq!(snapshot(b"\xff1:1:"), None);
        for text in ["731:740:", "1:1:"] {
            assert!(is_snapshot(text), "{text}");
        }
        for text in [
            "", "5", "5:4:", "0:4:", "5:9:4", "5:9:6,6", "5:9:9", "5:9::", "5:9:x",
        ] {
            assert!(!is_snapshot(text), "{text}");
        }
    }
}
