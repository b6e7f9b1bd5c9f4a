//! Rows on their way through the server: in memory while the budget allows it,
//! behind that in an unlinked temporary file.
//!
//! [`RowStore`] keeps an upload until a worker applies it. [`download_spool`] lies
//! between a worker that reads a download and the connection that sends it, so that
//! a slow remote never holds a worker. Files are written and read 64 KiB at a time
//! through the page cache, in place: handing each piece to another thread would
//! cost more than the copy.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use tidewater_protocol::message::TableBegin;

use crate::memory::{MemoryBudget, Reservation};
use tidewater_centre::packed_rows::RowsChunk;
use tidewater_centre::{
    CentreError, DownloadOutcome, DownloadSink, DownloadStart, RemoteHolding, ToldSettled,
    UploadResult,
};

/// How much of one download waits in memory before the rest goes to a file.
const DOWNLOAD_MEMORY_BYTES: u64 = 1 << 20;

/// The part of the budget that one upload can reserve by announcing its size. More
/// is reserved only as rows arrive, so that announcing alone starves nobody.
const ANNOUNCED_SHARE: u64 = 8;

/// Where the rows of one sync's uploads are until they are applied.
#[derive(Debug)]
pub struct RowStore {
    reservation: Reservation,
    /// Bytes of the reservation that hold rows.
    used: u64,
    budget_bytes: u64,
    file: Option<Arc<File>>,
    file_end: u64,
}

impl RowStore {
    /// An empty store. So many bytes of the budget are its own at most.
    pub fn new(budget: &MemoryBudget, budget_bytes: u64) -> RowStore {
        RowStore {
            reservation: budget.empty(),
            used: 0,
            budget_bytes,
            file: None,
            file_end: 0,
        }
    }

    /// Reserves what an upload announces, if that much is free; otherwise its rows
    /// go to a file as soon as nothing is free.
    pub fn announce(&mut self, bytes: u64) {
        let bytes = bytes.min(self.budget_bytes / ANNOUNCED_SHARE);
        let _ = self.reservation.grow(bytes);
    }

    /// Keeps rows.
    ///
    /// # Errors
    /// They have to go to a file, and that fails.
    pub fn put(&mut self, rows: Vec<u8>) -> io::Result<RowsChunk> {
        if self.hold(rows.len() as u64, Reservation::grow) {
            return Ok(RowsChunk::Memory(rows.into()));
        }
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.file.insert(Arc::new(tempfile::tempfile()?)).clone(),
        };
        let offset = self.file_end;
        file.write_all_at(&rows, offset)?;
        self.file_end += rows.len() as u64;
        self.reservation.spool(rows.len() as u64);
        Ok(RowsChunk::File {
            file,
            offset,
            length: rows.len(),
        })
    }

    /// Reserves memory for bytes that need not be kept.
    #[must_use]
    pub fn reserve_free(&mut self, bytes: u64) -> bool {
        self.hold(bytes, Reservation::grow)
    }

    /// Reserves memory for bytes that can only be there.
    #[must_use]
    pub fn reserve(&mut self, bytes: u64) -> bool {
        self.hold(bytes, Reservation::grow_anyway)
    }

    fn hold(&mut self, bytes: u64, grow: fn(&mut Reservation, u64) -> bool) -> bool {
        let missing = (self.used + bytes).saturating_sub(self.reservation.bytes());
        let fits = missing == 0 || grow(&mut self.reservation, missing);
        if fits {
            self.used += bytes;
        }
        fits
    }

    /// The memory that it has reserved.
    pub fn memory_bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Bytes in files.
    #[cfg(test)]
    pub fn spooled_bytes(&self) -> u64 {
        self.file_end
    }

    /// The rows are complete: the memory that they hold, until they are applied.
    pub fn into_reservation(mut self) -> Reservation {
        let unused = self.reservation.bytes() - self.used;
        self.reservation.shrink(unused);
        self.reservation
    }
}

/// What comes out of a [`SpoolReader`].
#[derive(Debug)]
pub enum SpoolItem {
    /// The stored result of an upload that was applied before.
    Stored(usize, UploadResult),
    /// See [`DownloadSink::begin`].
    Begin(usize, Box<DownloadStart>),
    /// See [`DownloadSink::settled`].
    Settled(ToldSettled),
    /// See [`DownloadSink::table`].
    Table(TableBegin),
    /// See [`DownloadSink::rows`].
    Rows(Bytes),
    /// See [`DownloadSink::mark`].
    Mark(Vec<u8>, u64),
    /// See [`DownloadSink::holds`].
    Holds(usize, RemoteHolding),
    /// See [`DownloadSink::end`].
    End(usize, DownloadOutcome),
    /// The worker is done.
    Finished(Result<(), CentreError>),
}

enum Slot {
    Item(SpoolItem),
    File { offset: u64, length: usize },
}

struct State {
    slots: VecDeque<Slot>,
    reservation: Reservation,
    file: Option<File>,
    file_end: u64,
    /// Slots that are in the file. At zero the file begins anew.
    file_slots: usize,
}

struct SpoolState {
    state: Mutex<State>,
    ready: Notify,
    cancelled: AtomicBool,
}

impl SpoolState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker's end. Dropping it without [`SpoolWriter::finish`] tells the reader
/// that the worker failed.
pub struct SpoolWriter {
    shared: Arc<SpoolState>,
    /// Whether something was pushed already.
    begun: bool,
    finished: bool,
    /// How many rows were read.
    rows: u64,
}

/// The connection's end. Dropping it cancels the download.
pub struct SpoolReader {
    shared: Arc<SpoolState>,
    /// Reserved bytes of the rows handed out last.
    handed_out: u64,
}

/// Both ends of a spool.
pub fn download_spool(budget: &MemoryBudget) -> (SpoolWriter, SpoolReader) {
    let shared = Arc::new(SpoolState {
        state: Mutex::new(State {
            slots: VecDeque::new(),
            reservation: budget.empty(),
            file: None,
            file_end: 0,
            file_slots: 0,
        }),
        ready: Notify::new(),
        cancelled: AtomicBool::new(false),
    });
    let writer = SpoolWriter {
        shared: shared.clone(),
        begun: false,
        finished: false,
        rows: 0,
    };
    let reader = SpoolReader {
        shared,
        handed_out: 0,
    };
    (writer, reader)
}

impl SpoolWriter {
    /// Whether the reader is gone.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }

    /// Whether anything has been handed to the reader.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// How many rows were read.
    pub fn row_count(&self) -> u64 {
        self.rows
    }

    /// A stored result, before anything else.
    pub fn stored(&mut self, index: usize, result: UploadResult) {
        self.begun = true;
        self.push(SpoolItem::Stored(index, result));
    }

    /// The worker is done.
    pub fn finish(mut self, result: Result<(), CentreError>) {
        self.finish_with(result);
    }

    fn finish_with(&mut self, result: Result<(), CentreError>) {
        self.finished = true;
        self.push(SpoolItem::Finished(result));
        self.shared.ready.notify_one();
    }

    /// Without waking the reader: small things leave together with what follows.
    fn push(&self, item: SpoolItem) {
        self.shared.state().slots.push_back(Slot::Item(item));
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        if !self.finished {
            self.finish_with(Err(CentreError::Internal {
                message: "a worker ended in the middle of a download".into(),
            }));
        }
    }
}

impl DownloadSink for SpoolWriter {
    fn begin(&mut self, index: usize, start: DownloadStart) {
        self.begun = true;
        self.push(SpoolItem::Begin(index, Box::new(start)));
    }

    fn settled(&mut self, told: ToldSettled) {
        self.push(SpoolItem::Settled(told));
    }

    fn table(&mut self, begin: TableBegin) {
        self.push(SpoolItem::Table(begin));
    }

    fn rows(&mut self, rows: Vec<u8>) -> Result<(), CentreError> {
        self.comparing()?;
        let length = rows.len();
        let mut state = self.shared.state();
        let state = &mut *state;
        // Once the file is in use, what follows goes there too until it is empty:
        // alternating would only spread the writes.
        let fits = state.file_slots == 0
            && state.reservation.bytes() + length as u64 <= DOWNLOAD_MEMORY_BYTES
            && state.reservation.grow(length as u64);
        if fits {
            let item = SpoolItem::Rows(rows.into());
            state.slots.push_back(Slot::Item(item));
        } else {
            let offset = state.append(&rows).map_err(|error| CentreError::Internal {
                message: format!("a download cannot be spooled to a temporary file: {error}"),
            })?;
            state.slots.push_back(Slot::File { offset, length });
        }
        self.shared.ready.notify_one();
        Ok(())
    }

    fn comparing(&mut self) -> Result<(), CentreError> {
        match self.is_cancelled() {
            true => Err(CentreError::Cancelled),
            false => Ok(()),
        }
    }

    fn mark(&mut self, mark: Vec<u8>, rows: u64) {
        self.push(SpoolItem::Mark(mark, rows));
    }

    fn holds(&mut self, index: usize, holding: RemoteHolding) {
        self.push(SpoolItem::Holds(index, holding));
    }

    fn end(&mut self, index: usize, outcome: DownloadOutcome) {
        self.rows += outcome.upserts + outcome.removals;
        self.push(SpoolItem::End(index, outcome));
    }
}

impl State {
    fn append(&mut self, rows: &[u8]) -> io::Result<u64> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let offset = self.file_end;
        file.write_all_at(rows, offset)?;
        self.file_end += rows.len() as u64;
        self.file_slots += 1;
        self.reservation.spool(rows.len() as u64);
        Ok(offset)
    }

    fn load(&mut self, offset: u64, length: usize) -> io::Result<Bytes> {
        let mut buffer = vec![0; length];
        self.file
            .as_ref()
            .ok_or_else(|| io::Error::other("the spool has no file"))?
            .read_exact_at(&mut buffer, offset)?;
        self.file_slots -= 1;
        if self.file_slots == 0 {
            self.file_end = 0;
            self.reservation.unspool();
        }
        Ok(buffer.into())
    }
}

impl SpoolReader {
    /// What comes next, if it is there. The memory of rows is free again with the
    /// call after the one that handed them out.
    pub fn try_next(&mut self) -> io::Result<Option<SpoolItem>> {
        let mut state = self.shared.state();
        state
            .reservation
            .shrink(std::mem::take(&mut self.handed_out));
        match state.slots.pop_front() {
            None => Ok(None),
            Some(Slot::File { offset, length }) => {
                Ok(Some(SpoolItem::Rows(state.load(offset, length)?)))
            }
            Some(Slot::Item(item)) => {
                if let SpoolItem::Rows(rows) = &item {
                    self.handed_out = rows.len() as u64;
                }
                Ok(Some(item))
            }
        }
    }

    /// Waits until there is more, or nothing ever will be. Safe to drop.
    pub async fn ready(&self) {
        self.shared.ready.notified().await;
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_that_does_not_fit_the_budget_is_spooled_and_reads_back() {
        let budget = MemoryBudget::new(1_000);
        let mut store = RowStore::new(&budget, 1_000);
        store.announce(100);
        assert_eq!(budget.free(), 900);
        let chunks: Vec<RowsChunk> = (0..30u8)
            .map(|number| store.put(vec![number; 100]).unwrap())
            .collect();
        assert_eq!(store.spooled_bytes(), 2_000);
        for (number, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk.read().unwrap(), vec![number as u8; 100]);
        }
        let reservation = store.into_reservation();
        assert_eq!((reservation.bytes(), budget.free()), (1_000, 0));
        drop(reservation);
        assert_eq!(budget.free(), 1_000);
    }

    #[test]
    fn announcing_alone_takes_only_a_share_of_the_budget() {
        let budget = MemoryBudget::new(800);
        let mut store = RowStore::new(&budget, 800);
        store.announce(u64::MAX);
        assert_eq!(budget.free(), 700);
        assert_eq!(store.into_reservation().bytes(), 0);
        assert_eq!(budget.free(), 800);
    }

    #[test]
    fn two_uploads_that_together_exceed_the_budget_both_complete() {
        let budget = MemoryBudget::new(1_000);
        let mut one = RowStore::new(&budget, 1_000);
        let mut two = RowStore::new(&budget, 1_000);
        for _ in 0..20 {
            one.put(vec![1; 100]).unwrap();
            two.put(vec![2; 100]).unwrap();
        }
        assert_eq!(one.spooled_bytes() + two.spooled_bytes(), 3_000);
    }

    fn drain(reader: &mut SpoolReader) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(item) = reader.try_next().unwrap() {
            seen.push(match item {
                SpoolItem::Rows(rows) => format!("rows {}x{}", rows[0], rows.len()),
                SpoolItem::Begin(index, _) => format!("begin {index}"),
                SpoolItem::End(index, _) => format!("end {index}"),
                SpoolItem::Finished(Ok(())) => "finished".into(),
                SpoolItem::Finished(Err(error)) => format!("failed: {error}"),
                other => format!("{other:?}"),
            });
        }
        seen
    }

    #[test]
    fn a_download_keeps_its_order_through_memory_and_file() {
        let budget = MemoryBudget::new(100 << 20);
        let (mut writer, mut reader) = download_spool(&budget);
        for round in 0..2u8 {
            writer.begin(0, DownloadStart::default());
            let mut expected = vec!["begin 0".to_owned()];
            for number in 0..40 {
                writer.rows(vec![round * 40 + number; 64 << 10]).unwrap();
                expected.push(format!("rows {}x65536", round * 40 + number));
            }
            assert_eq!(budget.free(), (100 << 20) - DOWNLOAD_MEMORY_BYTES);
            assert_eq!(drain(&mut reader), expected);
            assert_eq!(budget.free(), 100 << 20);
            // The file was emptied and begins anew.
            assert_eq!(reader.shared.state().file_end, 0);
        }
        writer.finish(Ok(()));
        assert_eq!(drain(&mut reader), ["finished"]);
    }

    #[test]
    fn either_end_learns_that_the_other_is_gone() {
        let budget = MemoryBudget::new(0);
        let (mut writer, reader) = download_spool(&budget);
        drop(reader);
        assert!(matches!(writer.rows(vec![1]), Err(CentreError::Cancelled)));
        let (writer, mut reader) = download_spool(&budget);
        drop(writer);
        assert_eq!(
            drain(&mut reader),
            ["failed: internal error: a worker ended in the middle of a download"]
        );
    }
}
