//! What the remote sends, in order.
//!
//! Owns the plan of a sync's messages, what of it was given away, and copies of the uploads that
//! were sent. Rows are read from the database piece by piece as the connection takes them, so
//! that an upload of any size needs little memory. Leaves reading rows to the database, and
//! credit to the connection.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::{
    CompareTable, Control, DownloadRequest, ForgottenRefusal, RequestBegin, TableBegin,
    UploadBegin, UploadEnd,
};
use tidewater_protocol::{RowShape, RowsReader, Table, UnpackedRow};

use super::error::SyncError;
use super::progress::{SyncPhase, SyncProgress};
use crate::database::kept_uploads::{self, UploadCopies, UploadCopy};
use crate::database::{
    RemoteDatabase, SubscriptionState, UploadBeginning, UploadCursor, UploadPiece, compare,
};

/// How many bytes of keys one sync asks for again; the rest is for the next. A server takes
/// at least so many.
const REQUEST_BYTES: usize = 4 << 20;

/// How many bytes of checksums one sync sends. A server takes at least so many.
const COMPARE_BYTES: usize = 4 << 20;

/// An upload of so many bytes that was sent before waits until the server has said how much of it
/// has come.
const LARGE_BYTES: u64 = 512 << 10;

/// How many ranges go into one message: far less than a frame holds.
const RANGES_PER_MESSAGE: usize = 256;

/// What goes out next.
#[derive(Debug)]
pub(crate) enum OutgoingFrame {
    Control(Control),
    Rows(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendStep {
    Upload(usize),
    Requests(usize),
    Compare(usize),
    DownloadRequest,
}

/// What is being sent.
#[derive(Debug)]
enum SendState {
    Upload(Box<OutgoingUpload>),
    /// An upload of this subscription that is given back: its frames.
    Given(usize, BytesMut),
    /// The checksums of this subscription's tables, from this one on.
    Compare(usize, usize),
    Requests(std::vec::IntoIter<(TableBegin, Vec<u8>)>),
}

#[derive(Debug)]
struct OutgoingUpload {
    subscription: usize,
    cursor: UploadCursor,
    /// What was read already.
    read: VecDeque<UploadPiece>,
    copy: UploadCopy,
}

impl OutgoingUpload {
    /// Reads so many bytes of rows, which are there already; what was read beyond them, with its
    /// table. `None`: they are other ones.
    fn skip(
        &mut self,
        (bytes, checksum): (u64, u32),
        database: &RemoteDatabase,
        subscription: &SubscriptionState,
    ) -> Result<Option<(TableBegin, Vec<u8>)>, SyncError> {
        let mut table = None;
        let mut left = bytes;
        let mut there = crc32fast::Hasher::new();
        loop {
            let chunk = match self.read.pop_front() {
                Some(chunk) => Some(chunk),
                None => database.upload_chunk(subscription, &mut self.cursor)?,
            };
            let Some(chunk) = chunk else {
                return Ok(None);
            };
            self.copy.add(&chunk)?;
            table = chunk.begin.or(table);
            let mut rows = chunk.rows;
            let come = usize::try_from(left).map_or(rows.len(), |it| it.min(rows.len()));
            let rest = rows.split_off(come);
            there.update(&rows);
            left -= come as u64;
            if left == 0 {
                let begin = table.filter(|_| there.clone().finalize() == checksum);
                return Ok(begin.map(|begin| (begin, rest)));
            }
        }
    }
}

/// Follows what the remote sends.
#[derive(Debug, Default)]
pub(super) struct OutgoingMessages {
    plan: VecDeque<SendStep>,
    sending: Option<SendState>,
    /// The uploads that were sent to their ends.
    copies: UploadCopies,
    /// A large upload that is next, until the server has said how much of it came before.
    waiting: Option<Box<(usize, UploadBeginning)>>,
    /// Of the uploads of all subscriptions, what the server has said: bytes of rows and checksum.
    received: Option<Vec<(u64, u32)>>,
    /// What was read and not given away yet.
    ready: VecDeque<OutgoingFrame>,
    /// Bytes of keys that may still be asked for again.
    request_bytes: usize,
    upload_only: bool,
    requested: bool,
}

impl OutgoingMessages {
    /// Plans the sync after its Hello.
    pub(super) fn new(
        hello: Control,
        subscriptions: &[SubscriptionState],
        uploads: bool,
        upload_only: bool,
    ) -> OutgoingMessages {
        let mut plan = VecDeque::new();
        for (index, subscription) in subscriptions.iter().enumerate() {
            let sends = uploads && !subscription.compares;
            if sends && subscription.next_upload().is_some() {
                plan.push_back(SendStep::Upload(index));
            }
        }
        for (index, subscription) in subscriptions.iter().enumerate() {
            // Rows are asked for again only if something is to be downloaded.
            if !upload_only && subscription.schema.is_some() {
                plan.push_back(SendStep::Requests(index));
            }
        }
        for (index, subscription) in subscriptions.iter().enumerate() {
            if !upload_only && subscription.compares {
                plan.push_back(SendStep::Compare(index));
            }
        }
        plan.push_back(SendStep::DownloadRequest);
        OutgoingMessages {
            plan,
            sending: None,
            copies: UploadCopies::default(),
            waiting: None,
            received: None,
            ready: VecDeque::from([OutgoingFrame::Control(hello)]),
            request_bytes: REQUEST_BYTES,
            upload_only,
            requested: false,
        }
    }

    /// Whether everything up to and with the DownloadRequest was handed out.
    pub(super) fn is_requested(&self) -> bool {
        self.requested
    }

    /// Gives away the copies of what was sent, to be kept when it is acknowledged.
    pub(super) fn take_copies(&mut self) -> UploadCopies {
        std::mem::take(&mut self.copies)
    }

    /// Whether nothing more of this subscription's upload will be sent.
    pub(super) fn upload_is_over(&self, subscription: usize) -> bool {
        !self.plan.contains(&SendStep::Upload(subscription)) && !self.is_uploading(subscription)
    }

    /// The server has let us in, and has so many bytes of uploads that broke off, with this
    /// checksum.
    pub(super) fn welcomed(&mut self, received: Vec<(u64, u32)>) {
        self.received = Some(received);
    }

    fn is_uploading(&self, subscription: usize) -> bool {
        let waiting = self.waiting.as_ref().map(|it| it.0);
        waiting == Some(subscription) || self.is_sending_upload(subscription)
    }

    fn is_sending_upload(&self, subscription: usize) -> bool {
        match &self.sending {
            Some(SendState::Upload(upload)) => upload.subscription == subscription,
            Some(SendState::Given(index, _)) => *index == subscription,
            _ => false,
        }
    }

    /// Nothing more is sent.
    pub(super) fn stop(&mut self) {
        self.plan.clear();
        self.sending = None;
        self.waiting = None;
        self.copies = UploadCopies::default();
        self.ready.clear();
    }

    /// The server has this upload already: what is left of it need not travel.
    pub(super) fn abandon(&mut self, subscription: usize) {
        self.plan
            .retain(|&step| step != SendStep::Upload(subscription));
        self.waiting = self.waiting.take().filter(|it| it.0 != subscription);
        if !self.is_sending_upload(subscription) {
            return;
        }
        let end = match self.sending.take() {
            Some(SendState::Upload(upload)) => upload.copy.counted(),
            _ => UploadEnd::default(),
        };
        self.ready.clear();
        self.push_control(Control::UploadEnd(UploadEnd {
            abandoned: true,
            ..end
        }));
    }

    /// The next message or piece of rows to send, if there is one; of rows, what there is room
    /// for.
    pub(super) fn poll(
        &mut self,
        room: usize,
        database: &RemoteDatabase,
        subscriptions: &[SubscriptionState],
        progress: &mut SyncProgress,
    ) -> Result<Option<OutgoingFrame>, SyncError> {
        loop {
            match self.ready.pop_front() {
                Some(OutgoingFrame::Rows(mut rows)) if rows.len() > room => {
                    let piece = rows.split_to(room);
                    self.ready.push_front(OutgoingFrame::Rows(rows));
                    return Ok((room > 0).then_some(OutgoingFrame::Rows(piece)));
                }
                Some(output) => return Ok(Some(output)),
                None => {}
            }
            if let Some(waiting) = self.waiting.take() {
                if self.received.is_none() {
                    self.waiting = Some(waiting);
                    return Ok(None);
                }
                let (index, beginning) = *waiting;
                self.begin_upload(index, beginning, database, subscriptions)?;
            } else if let Some(sending) = self.sending.take() {
                self.sending = match sending {
                    SendState::Upload(upload) => {
                        self.next_piece(upload, database, subscriptions, progress)?
                    }
                    SendState::Given(index, frames) => self.next_frame(index, frames, progress)?,
                    SendState::Compare(index, table) => {
                        self.next_compare(index, table, database, subscriptions, progress)?
                    }
                    SendState::Requests(tables) => self.next_request(tables),
                };
            } else {
                match self.plan.pop_front() {
                    None => return Ok(None),
                    Some(step) => self.begin(step, database, subscriptions)?,
                }
            }
        }
    }

    fn push_control(&mut self, control: Control) {
        self.ready.push_back(OutgoingFrame::Control(control));
    }

    fn push_rows(&mut self, rows: impl Into<Bytes>) {
        self.ready.push_back(OutgoingFrame::Rows(rows.into()));
    }

    fn begin(
        &mut self,
        step: SendStep,
        database: &RemoteDatabase,
        subscriptions: &[SubscriptionState],
    ) -> Result<(), SyncError> {
        let control = match step {
            SendStep::Upload(index) => {
                let subscription = &subscriptions[index];
                if let Some(giving) = subscription.giving {
                    let mut frames = database.kept_frames(giving)?;
                    let forgotten = database.forgotten_refusals(subscription)?;
                    let control = given_begin(index, subscription, forgotten, &mut frames)?;
                    self.sending = Some(SendState::Given(index, frames));
                    self.push_control(control);
                    return Ok(());
                }
                let beginning = database.begin_upload(subscription)?;
                // What was taken just now was never sent.
                let was_sent = subscription.taken_under.is_none();
                if was_sent && beginning.bytes >= LARGE_BYTES && self.received.is_none() {
                    self.waiting = Some(Box::new((index, beginning)));
                    return Ok(());
                }
                return self.begin_upload(index, beginning, database, subscriptions);
            }
            SendStep::Requests(index) => {
                let subscription = &subscriptions[index];
                let mut tables = database.requests(subscription)?;
                for (begin, rows) in &mut tables {
                    self.shorten(subscription, begin, rows);
                }
                tables.retain(|(_, rows)| !rows.is_empty());
                if tables.is_empty() {
                    return Ok(());
                }
                self.sending = Some(SendState::Requests(tables.into_iter()));
                Control::RequestBegin(RequestBegin {
                    subscription: index as u32,
                })
            }
            SendStep::Compare(index) => {
                self.sending = Some(SendState::Compare(index, 0));
                return Ok(());
            }
            SendStep::DownloadRequest => {
                self.requested = true;
                Control::DownloadRequest(DownloadRequest {
                    upload_only: self.upload_only,
                })
            }
        };
        self.push_control(control);
        Ok(())
    }

    /// Begins an upload, behind what the server has of it.
    fn begin_upload(
        &mut self,
        index: usize,
        beginning: UploadBeginning,
        database: &RemoteDatabase,
        subscriptions: &[SubscriptionState],
    ) -> Result<(), SyncError> {
        let subscription = &subscriptions[index];
        let received = self.received.as_ref().and_then(|it| it.get(index).copied());
        let retried = database.retried(subscription)?;
        let new_copy = || UploadCopy::new(database.kept_limits()).with_retried(retried.clone());
        let mut upload = OutgoingUpload {
            subscription: index,
            cursor: beginning.cursor,
            read: beginning.read,
            copy: new_copy(),
        };
        let mut behind_bytes = 0;
        let mut rest = None;
        if let Some(received) = received.filter(|it| it.0 > 0) {
            rest = upload.skip(received, database, subscription)?;
            match rest {
                Some(_) => behind_bytes = received.0,
                // It has something else: from the beginning.
                None => {
                    let again = database.begin_upload(subscription)?;
                    upload.cursor = again.cursor;
                    upload.read = again.read;
                    upload.copy = new_copy();
                }
            }
        }
        self.push_control(Control::UploadBegin(UploadBegin {
            subscription: index as u32,
            sequence: subscription.sequence + 1,
            upload_id: subscription.taken.map(|id| id.to_vec()).unwrap_or_default(),
            rows: beginning.rows,
            bytes: beginning.bytes,
            given_back: false,
            copied: subscription.may_be_sent_twice(),
            given_up: database.given_up(subscription)?,
            behind_bytes,
            retried,
            forgotten_refusals: database.forgotten_refusals(subscription)?,
        }));
        if let Some((begin, rows)) = rest {
            // Also if its next rows come with the next piece.
            self.push_control(Control::TableBegin(begin));
            if !rows.is_empty() {
                self.push_rows(rows);
            }
        }
        self.sending = Some(SendState::Upload(Box::new(upload)));
        Ok(())
    }

    /// Cuts requests to what one sync may ask for.
    fn shorten(
        &mut self,
        subscription: &SubscriptionState,
        begin: &mut TableBegin,
        rows: &mut Vec<u8>,
    ) {
        if rows.len() > self.request_bytes {
            let schema = subscription.schema.as_deref();
            let shape = schema
                .and_then(|schema| schema.table(&begin.table))
                .map(Table::shape);
            let (count, bytes) =
                shape.map_or((0, 0), |shape| whole_rows(&shape, rows, self.request_bytes));
            begin.expected_rows = count;
            rows.truncate(bytes);
        }
        self.request_bytes -= rows.len();
    }

    fn next_piece(
        &mut self,
        mut upload: Box<OutgoingUpload>,
        database: &RemoteDatabase,
        subscriptions: &[SubscriptionState],
        progress: &mut SyncProgress,
    ) -> Result<Option<SendState>, SyncError> {
        let subscription = &subscriptions[upload.subscription];
        let chunk = match upload.read.pop_front() {
            Some(chunk) => Some(chunk),
            None => database.upload_chunk(subscription, &mut upload.cursor)?,
        };
        let Some(chunk) = chunk else {
            self.push_control(Control::UploadEnd(upload.copy.end()));
            self.copies
                .keep_sent(upload.subscription, subscription, upload.copy)?;
            return Ok(None);
        };
        upload.copy.add(&chunk)?;
        self.copies.make_room(&upload.copy);
        if let Some(begin) = chunk.begin {
            progress.enter_table(SyncPhase::Uploading, &begin.table, begin.expected_rows);
            self.push_control(Control::TableBegin(begin));
        }
        progress.rows += chunk.inserts + chunk.updates + chunk.deletes;
        self.push_rows(chunk.rows);
        Ok(Some(SendState::Upload(upload)))
    }

    /// The next frame of an upload that is given back.
    fn next_frame(
        &mut self,
        index: usize,
        mut frames: BytesMut,
        progress: &mut SyncProgress,
    ) -> Result<Option<SendState>, SyncError> {
        match kept_uploads::next_frame(&mut frames)? {
            None => return Ok(None),
            Some(Frame::Rows { bytes, .. }) => self.push_rows(bytes),
            Some(Frame::Message { .. }) => {}
            Some(Frame::Control { control, .. }) => {
                if let Some(Control::TableBegin(begin)) = &control {
                    progress.enter_table(SyncPhase::Uploading, &begin.table, begin.expected_rows);
                }
                if let Some(control) = control {
                    self.push_control(control);
                }
            }
        }
        Ok(Some(SendState::Given(index, frames)))
    }

    fn next_request(
        &mut self,
        mut tables: std::vec::IntoIter<(TableBegin, Vec<u8>)>,
    ) -> Option<SendState> {
        let (begin, rows) = tables.next()?;
        self.push_control(Control::TableBegin(begin));
        self.push_rows(rows);
        Some(SendState::Requests(tables))
    }

    /// The checksums of the next table.
    fn next_compare(
        &mut self,
        index: usize,
        table: usize,
        database: &RemoteDatabase,
        subscriptions: &[SubscriptionState],
        progress: &mut SyncProgress,
    ) -> Result<Option<SendState>, SyncError> {
        let tables = subscriptions[index].schema.iter();
        let tables: Vec<&Table> = tables
            .flat_map(|schema| compare::compared(schema))
            .collect();
        let Some(&compared) = tables.get(table) else {
            return Ok(None);
        };
        progress.enter_table(SyncPhase::Comparing, &compared.name, 0);
        let begin = TableBegin::for_table(compared);
        let ranges = database.agreed_ranges(compared, COMPARE_BYTES / tables.len())?;
        let untracked = database.is_untracked(compared)?;
        for ranges in ranges.chunks(RANGES_PER_MESSAGE) {
            let message = CompareTable {
                subscription: index as u32,
                table: Some(Box::new(begin.clone())),
                ranges: ranges.to_vec(),
                untracked,
            };
            self.push_control(Control::CompareTable(message));
        }
        Ok(Some(SendState::Compare(index, table + 1)))
    }
}

/// The beginning of an upload that is given back, under its new number.
fn given_begin(
    index: usize,
    subscription: &SubscriptionState,
    forgotten_refusals: Vec<ForgottenRefusal>,
    frames: &mut BytesMut,
) -> Result<Control, SyncError> {
    match kept_uploads::next_frame(frames)? {
        Some(Frame::Control {
            control: Some(Control::UploadBegin(begin)),
            ..
        }) => Ok(Control::UploadBegin(UploadBegin {
            subscription: index as u32,
            sequence: subscription.sequence + 1,
            given_back: true,
            forgotten_refusals,
            ..begin
        })),
        _ => Err(SyncError::Defect {
            what: "a kept upload does not begin with its beginning",
        }),
    }
}

/// How many rows fit into so many bytes, and how many bytes they are.
fn whole_rows(shape: &RowShape, rows: &[u8], limit: usize) -> (u64, usize) {
    let mut reader = RowsReader::new(shape, rows);
    let mut row = UnpackedRow::default();
    let (mut count, mut bytes) = (0, 0);
    while matches!(reader.next(&mut row), Ok(true)) && reader.consumed() <= limit {
        count += 1;
        bytes = reader.consumed();
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::{ColumnType, Datum, Op, RowsWriter};

    use super::*;

    #[test]
    fn requests_are_cut_between_rows() {
        let shape = RowShape {
            columns: vec![ColumnType::Text],
            key: vec![0],
        };
        let mut writer = RowsWriter::new(&shape);
        for key in ["one", "two", "three"] {
            writer.key(Op::Request, &[Datum::Text(key)]);
        }
        let rows = writer.take();
        let two = rows.len() - "three".len() - 3;
        assert_eq!(whole_rows(&shape, &rows, 0), (0, 0));
        assert_eq!(whole_rows(&shape, &rows, two - 1), (1, two / 2));
        assert_eq!(whole_rows(&shape, &rows, two), (2, two));
        assert_eq!(whole_rows(&shape, &rows, rows.len() - 1), (2, two));
        assert_eq!(whole_rows(&shape, &rows, rows.len()), (3, rows.len()));
    }
}
