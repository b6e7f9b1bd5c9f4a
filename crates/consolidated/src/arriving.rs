//! Uploads that are applied while they arrive: the growing list of rows between a session
//! that receives them and the worker that applies them, and how long that may wait.
//!
//! Which uploads are handed over early is the server's affair, and whether they are complete
//! and undamaged too; what can be done with rows before that is each adapter's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use tidewater_protocol::message::TableBegin;

use crate::upload::{RowsChunk, SyncUpload};

/// The longest that a worker waits for rows without a pause, and in all what it waits
/// before it has done anything.
const PATIENCE: Duration = Duration::from_millis(200);
/// For this much work a worker waits once as long again: a remote that is a little slower
/// than the database is worth waiting for, in proportion to what is at stake.
const WORK_PER_WAIT: u32 = 4;

/// Something of an upload, in the order in which it was sent.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Rows of this table follow.
    Table(TableBegin),
    /// Rows.
    Rows(RowsChunk),
    /// That was all, and all of it is as it was sent.
    Complete,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// Nothing more comes.
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ready: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both ends of an upload that is applied while it arrives; `head` is the upload without
/// its tables.
pub fn arriving(head: SyncUpload) -> (Arrival, ArrivingUpload) {
    debug_assert!(head.tables.is_empty(), "the tables come later");
    let shared = Arc::<Shared>::default();
    let arrival = Arrival {
        shared: shared.clone(),
    };
    let upload = ArrivingUpload {
        head,
        shared,
        patience: Patience::new(),
    };
    (arrival, upload)
}

/// The session's end. Dropping it without [`Arrival::complete`] abandons the upload:
/// nothing of it takes effect.
#[derive(Debug)]
pub struct Arrival {
    shared: Arc<Shared>,
}

impl Arrival {
    /// Rows of a table follow. A table without rows is not told of.
    pub fn table(&self, begin: TableBegin) {
        self.push(Piece::Table(begin));
    }

    /// Whole, well-formed rows of operations Insert, Update and Delete.
    pub fn rows(&self, chunk: RowsChunk) {
        self.push(Piece::Rows(chunk));
    }

    /// Everything that was handed over is the complete upload, as it was sent.
    pub fn complete(self) {
        self.push(Piece::Complete);
    }

    fn push(&self, piece: Piece) {
        if Arc::strong_count(&self.shared) == 1 {
            // The worker has given up.
            return;
        }
        self.shared.state().pieces.push_back(piece);
        self.shared.ready.notify_one();
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.ready.notify_one();
    }
}

/// The worker's end: an upload of which the rest is still on its way.
#[derive(Debug)]
pub struct ArrivingUpload {
    /// The upload, without its tables.
    pub(crate) head: SyncUpload,
    shared: Arc<Shared>,
    patience: Patience,
}

impl ArrivingUpload {
    /// What the upload is, without its tables.
    pub fn head(&self) -> &SyncUpload {
        &self.head
    }

    /// What comes next. `None` if the upload was abandoned, or if the worker has waited
    /// for it as long as it may: then nothing of it must take effect. Safe to drop.
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        self.patience.since.get_or_insert_with(Instant::now);
        loop {
            {
                let mut state = self.shared.state();
                if let Some(piece) = state.pieces.pop_front() {
                    return Some(piece);
                }
                if state.ended {
                    return None;
                }
            }
            let begun = Instant::now();
            let waited = timeout(self.patience.left(begun), self.shared.ready.notified()).await;
            self.patience.waited += begun.elapsed();
            if waited.is_err() && self.shared.state().pieces.is_empty() {
                return None;
            }
        }
    }

    /// Whether the next piece would have to be waited for.
    pub(crate) fn is_dry(&self) -> bool {
        let state = self.shared.state();
        state.pieces.is_empty() && !state.ended
    }

    /// Receives all of it, as an adapter would that does nothing before that: for tests of
    /// servers. `None` as with the rows themselves.
    pub async fn collect(mut self) -> Option<SyncUpload> {
        let mut upload = self.head.clone();
        loop {
            match self.next().await? {
                Piece::Table(begin) => upload.tables.push(crate::upload::UploadTable {
                    begin,
                    chunks: Vec::new(),
                }),
                Piece::Rows(chunk) => upload.tables.last_mut()?.chunks.push(chunk),
                Piece::Complete => return Some(upload),
            }
        }
    }
}

/// How long a worker may still wait for one remote.
#[derive(Debug)]
struct Patience {
    /// When the worker first asked for rows.
    since: Option<Instant>,
    waited: Duration,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            since: None,
            waited: Duration::ZERO,
        }
    }

    /// How long the next wait may be.
    fn left(&self, now: Instant) -> Duration {
        let worked = (now - self.since.unwrap_or(now)).saturating_sub(self.waited);
        (PATIENCE + worked / WORK_PER_WAIT)
            .saturating_sub(self.waited)
            .min(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tidewater_protocol::{RemoteId, UploadId};

    fn both_ends() -> (Arrival, ArrivingUpload) {
        arriving(SyncUpload {
            remote_id: RemoteId::from_random([1; 16]),
            user: "ada".into(),
            publication: "p".into(),
            sequence: 1,
            upload_id: UploadId([1; 16]),
            checkpoint: None,
            given_back: false,
            unknown_history: false,
            tables: Vec::new(),
            now_ms: 0,
        })
    }

    fn rows(arrival: &Arrival) {
        arrival.rows(RowsChunk::Memory(Bytes::from_static(b"rows")));
    }

    /// How long a worker has the upload that takes `work` for each piece, and whether all
    /// of it came; the pieces come so far apart, and after them nothing.
    async fn held(pieces: u32, apart: Duration, work: Duration, ends: bool) -> (Duration, bool) {
        let (arrival, mut upload) = both_ends();
        arrival.table(TableBegin::default());
        let sends = async move {
            for _ in 0..pieces {
                tokio::time::sleep(apart).await;
                rows(&arrival);
            }
            if ends {
                arrival.complete();
            } else {
                std::future::pending::<()>().await;
            }
        };
        let receives = async {
            let since = Instant::now();
            loop {
                match upload.next().await {
                    None => return (since.elapsed(), false),
                    Some(Piece::Complete) => return (since.elapsed(), true),
                    Some(_) => tokio::time::sleep(work).await,
                }
            }
        };
        tokio::select! {
            biased;
            held = receives => held,
            () = async { sends.await; std::future::pending().await } => unreachable!("pending"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_trickles_holds_a_worker_for_the_patience_and_no_longer() {
        for apart in [1, 7, 50, 199] {
            let apart = Duration::from_millis(apart);
            let (held, complete) = held(u32::MAX, apart, Duration::ZERO, true).await;
            assert!(!complete);
            assert!(held <= PATIENCE + Duration::from_millis(2), "{held:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_costs_at_most_a_part_of_the_work_more() {
        let (work, apart) = (Duration::from_millis(40), Duration::from_millis(50));
        // It waits 10 ms for each 40 of work: a quarter, for ever.
        let (held_long, complete) = held(1_000, apart, work, true).await;
        assert!(complete && held_long > Duration::from_secs(50));
        // Twice as long, and the patience is soon gone.
        let (held_short, complete) = held(1_000, 2 * apart, work, true).await;
        assert!(
            !complete && held_short < Duration::from_secs(2),
            "{held_short:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_pause_is_never_longer_than_the_patience() {
        let (arrival, mut upload) = both_ends();
        arrival.table(TableBegin::default());
        assert!(upload.next().await.is_some());
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let since = Instant::now();
        assert!(upload.next().await.is_none());
        assert!(since.elapsed() <= PATIENCE + Duration::from_millis(2));
    }

    #[tokio::test]
    async fn what_is_abandoned_is_never_complete() {
        let (arrival, mut upload) = both_ends();
        arrival.table(TableBegin::default());
        rows(&arrival);
        drop(arrival);
        assert!(matches!(upload.next().await, Some(Piece::Table(_))));
        assert!(matches!(upload.next().await, Some(Piece::Rows(_))));
        assert!(upload.next().await.is_none());
        let (arrival, upload) = both_ends();
        arrival.table(TableBegin::default());
        rows(&arrival);
        arrival.complete();
        let upload = upload.collect().await.expect("it is complete");
        assert_eq!(upload.tables[0].chunks.len(), 1);
    }

    #[test]
    fn for_a_worker_that_has_given_up_nothing_is_kept() {
        let (arrival, upload) = both_ends();
        rows(&arrival);
        drop(upload);
        rows(&arrival);
        assert!(arrival.shared.state().pieces.len() <= 1);
    }
}
