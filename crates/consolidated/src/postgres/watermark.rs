//! Watermarks and their marks.
//!
//! A watermark is the snapshot of a download together with the *mark* that proves
//! that this history of the database is the one that gave it out: a random row,
//! committed synchronously after the snapshot was taken. Everything that the snapshot
//! saw is durable by then, and every transaction id below the mark's is spent.

use tokio::sync::{mpsc, oneshot};

use super::connection::{Address, Connection, refused};
use super::fill_random;
use crate::error::CentreError;

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

/// A download that waits for a mark.
struct Request {
    now_ms: i64,
    reply: oneshot::Sender<Result<[u8; MARK_BYTES], String>>,
}

/// Asks the mark service for marks.
#[derive(Clone, Debug)]
pub(super) struct Marks(mpsc::UnboundedSender<Request>);

impl Marks {
    /// Starts the service; it ends when the last handle is gone. It connects at the
    /// first request.
    pub(super) fn start(address: Address) -> Marks {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(serve(address, receiver));
        Marks(sender)
    }

    /// A mark for a snapshot that was taken before this call.
    pub(super) async fn mark(&self, now_ms: i64) -> Result<[u8; MARK_BYTES], CentreError> {
        let gone = || CentreError::Internal {
            message: "the mark service has ended".into(),
        };
        let (reply, answer) = oneshot::channel();
        self.0.send(Request { now_ms, reply }).map_err(|_| gone())?;
        let answer = answer.await.map_err(|_| gone())?;
        answer.map_err(|message| CentreError::Unavailable { message })
    }
}

async fn serve(address: Address, mut requests: mpsc::UnboundedReceiver<Request>) {
    let mut connection: Option<Connection> = None;
    while let Some(first) = requests.recv().await {
        // All downloads that wait at this moment share one mark: their snapshots are
        // taken, and the mark's transaction has not begun.
        let mut waiting = vec![first];
        while let Ok(another) = requests.try_recv() {
            waiting.push(another);
        }
        let oldest = waiting.iter().map(|request| request.now_ms).min();
        let result = write_mark(&address, &mut connection, oldest.unwrap_or(0)).await;
        if result.is_err() {
            connection = None;
        }
        let result = result.map_err(|error| error.to_string());
        for request in waiting {
            // Whoever no longer waits was cancelled.
            let _ = request.reply.send(result.clone());
        }
    }
}

async fn write_mark(
    address: &Address,
    connection: &mut Option<Connection>,
    created_ms: i64,
) -> Result<[u8; MARK_BYTES], CentreError> {
    let mut mark = [0; MARK_BYTES];
    fill_random(&mut mark)?;
    if connection.as_ref().is_none_or(Connection::is_closed) {
        *connection = Some(Connection::open(address).await?);
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
        .map_err(refused("writing a mark"))?;
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
