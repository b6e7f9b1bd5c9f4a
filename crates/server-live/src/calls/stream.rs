//! Answers that leave while the database is still read.
//!
//! The worker that reads never waits for a caller: rows go into a spool, in memory and behind that
//! in a temporary file, and the caller's connection takes them out as fast as the caller takes them.
//! Whoever drops the stream ends the reading.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use tidewater_centre::procedure::{AnswerColumn, AnswerSink, Returns, SinkReply};
use tidewater_centre::{CentreError, DownloadSink};
use tidewater_protocol::message::{CallFailed, ColumnHeader};

use super::call_lane::HeldAnswer;
use crate::call_outcome::{self as outcome, CallResult, ProcedureAnswer};
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::spool::{SpoolItem, SpoolReader, SpoolWriter, download_spool};

/// What a worker's answer comes by.
type Reply = oneshot::Receiver<Result<HeldAnswer, CentreError>>;

/// The worker's end.
pub(crate) struct AnswerSpool {
    state: Mutex<State>,
    begun: AtomicBool,
    /// The most bytes of the whole answer.
    most: u64,
    first: Arc<Notify>,
}

struct State {
    writer: SpoolWriter,
    columns: Option<Arc<[AnswerColumn]>>,
    bytes: u64,
}

impl std::fmt::Debug for AnswerSpool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerSpool").finish_non_exhaustive()
    }
}

impl AnswerSink for AnswerSpool {
    fn take(&self, columns: &Arc<[AnswerColumn]>, rows: Vec<u8>) -> SinkReply {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes += rows.len() as u64;
        if state.bytes > self.most {
            return SinkReply::TooMuch;
        }
        state.columns.get_or_insert_with(|| columns.clone());
        match state.writer.rows(rows) {
            Ok(()) => {}
            Err(CentreError::Cancelled) => return SinkReply::Unwanted,
            Err(error) => {
                tracing::warn!(%error, "an answer cannot be spooled");
                return SinkReply::Unwanted;
            }
        }
        drop(state);
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.first.notify_one();
        }
        SinkReply::More
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }
}

impl AnswerSpool {
    fn columns(&self) -> Vec<ColumnHeader> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .columns
            .as_ref()
            .map_or_else(Vec::new, outcome::headers)
    }
}

/// A call that may answer while it is read.
pub(crate) struct StreamingCall {
    spooling: Arc<AnswerSpool>,
    reader: SpoolReader,
    first: Arc<Notify>,
}

impl StreamingCall {
    /// `most`: the most bytes of the whole answer.
    pub(crate) fn new(budget: &MemoryBudget, most: u64) -> StreamingCall {
        let (writer, reader) = download_spool(budget);
        let first = Arc::new(Notify::new());
        let spooling = AnswerSpool {
            state: Mutex::new(State {
                writer,
                columns: None,
                bytes: 0,
            }),
            begun: AtomicBool::new(false),
            most,
            first: first.clone(),
        };
        StreamingCall {
            spooling: Arc::new(spooling),
            reader,
            first,
        }
    }

    /// Takes the rows for it.
    pub(crate) fn sink(&self) -> Arc<dyn AnswerSink> {
        self.spooling.clone()
    }

    /// Waits until the call has come to something: all of it, or its first rows.
    pub(crate) async fn begun(
        self,
        procedure: &str,
        returns: Returns,
        mut reply: Reply,
    ) -> Result<AnswerStart, CallFailed> {
        let done = tokio::select! {
            biased;
            () = self.first.notified() => None,
            done = &mut reply => Some(done),
        };
        let end = done.map(|done| ended(procedure, returns, done));
        let end = match end {
            Some(end) if !self.spooling.has_begun() => return end.map(AnswerStart::Whole),
            end => end,
        };
        let stream = AnswerStream {
            procedure: procedure.to_owned(),
            returns,
            columns: self.spooling.columns(),
            reader: self.reader,
            reply,
            end,
        };
        Ok(AnswerStart::Rows(Box::new(stream)))
    }
}

/// What a call came to, or begins to come to.
pub enum AnswerStart {
    /// All of it.
    Whole(ProcedureAnswer),
    /// Rows, of which the first are there.
    Rows(Box<AnswerStream>),
}

/// An answer that is still read. To drop it is to end that.
pub struct AnswerStream {
    procedure: String,
    /// What the procedure returns.
    pub returns: Returns,
    /// The columns of the rows.
    pub columns: Vec<ColumnHeader>,
    reader: SpoolReader,
    reply: Reply,
    end: Option<CallResult>,
}

/// What comes next of an answer.
pub enum AnswerPart {
    /// These rows, whole ones.
    Rows(Bytes),
    /// These are the last ones.
    Last(ProcedureAnswer),
}

impl AnswerStream {
    /// What comes next; safe to drop.
    ///
    /// # Errors
    /// The answer does not come to its end.
    pub async fn next(&mut self) -> Result<AnswerPart, CallFailed> {
        loop {
            match self.reader.try_next() {
                Ok(Some(SpoolItem::Rows(rows))) => return Ok(AnswerPart::Rows(rows)),
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(error) => {
                    let detail = format!("an answer cannot be read from its spool: {error}");
                    return Err(outcome::internal(&detail));
                }
            }
            if let Some(end) = self.end.take() {
                return end.map(AnswerPart::Last);
            }
            tokio::select! {
                biased;
                () = self.reader.ready() => {}
                done = &mut self.reply => {
                    self.end = Some(ended(&self.procedure, self.returns, done));
                }
            }
        }
    }
}

/// What a worker says of a call that it has done.
fn ended(
    procedure: &str,
    returns: Returns,
    done: Result<Result<HeldAnswer, CentreError>, oneshot::error::RecvError>,
) -> CallResult {
    let done = outcome::of_worker(done)?;
    let done = done.ok_or_else(|| outcome::no_room(true))?;
    outcome::of_script(procedure, returns, done)
}
