//! What the remote sends, in order, as far as the server's credit goes.
//!
//! Owns the plan of a sync's messages and what of it is on its way. Rows are read from the
//! database piece by piece as the connection takes them, so that an upload of any size
//! needs little memory. Leaves reading rows to the database.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, INITIAL_CREDIT_BYTES, MAX_PAYLOAD_BYTES, ROWS_PAYLOAD_BYTES, SYNC_CHANNEL,
    put_control, put_rows,
};
use tidewater_protocol::message::{
    Control, Credit, DownloadRequest, RequestBegin, TableBegin, UploadBegin, UploadEnd,
};
use tidewater_protocol::{Row, RowShape, RowsReader, Table};

use super::error::SyncError;
use super::progress::{Phase, Progress};
use crate::database::{Database, SubscriptionState, UploadCursor};

/// How many bytes of keys one sync asks for again; the rest is for the next. A server takes
/// at least so many.
const REQUEST_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Upload(usize),
    Requests(usize),
    DownloadRequest,
}

/// What is being sent.
#[derive(Debug)]
enum Sending {
    Upload(Upload),
    Requests(std::vec::IntoIter<(TableBegin, Vec<u8>)>),
}

#[derive(Debug)]
struct Upload {
    subscription: usize,
    cursor: UploadCursor,
    end: UploadEnd,
    checksum: crc32fast::Hasher,
}

/// Follows what the remote sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    plan: VecDeque<Step>,
    sending: Option<Sending>,
    /// Packed rows that wait for credit.
    rows: Bytes,
    /// How many more bytes of rows the server takes.
    credit: u64,
    /// Answers that go before everything else.
    urgent: BytesMut,
    /// Bytes of keys that may still be asked for again.
    request_bytes: usize,
    upload_only: bool,
    requested: bool,
}

impl Outgoing {
    /// Plans the sync. `first` is what opens the connection.
    pub(super) fn new(
        first: BytesMut,
        subscriptions: &[SubscriptionState],
        uploads: bool,
        upload_only: bool,
    ) -> Outgoing {
        let mut plan = VecDeque::new();
        for (index, subscription) in subscriptions.iter().enumerate() {
            if uploads && subscription.taken.is_some() {
                plan.push_back(Step::Upload(index));
            }
        }
        for (index, subscription) in subscriptions.iter().enumerate() {
            // Rows are asked for again only if something is to be downloaded.
            if !upload_only && subscription.schema.is_some() {
                plan.push_back(Step::Requests(index));
            }
        }
        plan.push_back(Step::DownloadRequest);
        Outgoing {
            plan,
            sending: None,
            rows: Bytes::new(),
            credit: INITIAL_CREDIT_BYTES,
            urgent: first,
            request_bytes: REQUEST_BYTES,
            upload_only,
            requested: false,
        }
    }

    /// Whether everything up to and with the DownloadRequest was handed out.
    pub(super) fn is_requested(&self) -> bool {
        self.requested
    }

    /// Whether nothing more of this subscription's upload will be sent.
    pub(super) fn upload_is_over(&self, subscription: usize) -> bool {
        !self.plan.contains(&Step::Upload(subscription)) && !self.is_uploading(subscription)
    }

    fn is_uploading(&self, subscription: usize) -> bool {
        matches!(&self.sending, Some(Sending::Upload(upload)) if upload.subscription == subscription)
    }

    /// The server takes more rows.
    pub(super) fn credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// Gives the server credit for more rows.
    pub(super) fn grant(&mut self, bytes: u64) -> Result<(), SyncError> {
        let credit = Credit {
            channel: u32::from(SYNC_CHANNEL),
            bytes,
        };
        self.urgent(CONNECTION_CHANNEL, Control::Credit(credit))
    }

    /// Sends a message before everything else.
    pub(super) fn urgent(&mut self, channel: u8, control: Control) -> Result<(), SyncError> {
        Ok(put_control(&mut self.urgent, channel, control)?)
    }

    /// Drops what is not sent yet, but for answers.
    pub(super) fn stop(&mut self) {
        self.plan.clear();
        self.sending = None;
        self.rows = Bytes::new();
    }

    /// The server has this upload already: what is left of it need not travel.
    pub(super) fn abandon(&mut self, subscription: usize) -> Result<(), SyncError> {
        self.plan.retain(|&step| step != Step::Upload(subscription));
        if !self.is_uploading(subscription) {
            return Ok(());
        }
        if let Some(Sending::Upload(upload)) = self.sending.take() {
            self.rows = Bytes::new();
            let end = UploadEnd {
                abandoned: true,
                ..upload.end
            };
            self.urgent(SYNC_CHANNEL, Control::UploadEnd(end))?;
        }
        Ok(())
    }

    /// The next bytes to send, about [`ROWS_PAYLOAD_BYTES`] of them; `None` while there is
    /// nothing to send, or no credit for it.
    pub(super) fn poll(
        &mut self,
        database: Option<&Database>,
        subscriptions: &[SubscriptionState],
        progress: &mut Progress,
    ) -> Result<Option<Bytes>, SyncError> {
        let mut out = std::mem::take(&mut self.urgent);
        while out.len() < ROWS_PAYLOAD_BYTES {
            if !self.rows.is_empty() {
                let most = self.credit.min(MAX_PAYLOAD_BYTES as u64) as usize;
                let count = self.rows.len().min(most);
                if count == 0 {
                    break;
                }
                put_rows(&mut out, SYNC_CHANNEL, &self.rows[..count]);
                self.rows.advance(count);
                self.credit -= count as u64;
            } else if let Some(sending) = self.sending.take() {
                let database = database.ok_or(SyncError::Defect {
                    what: "rows to send while the download is applied",
                })?;
                self.sending = match sending {
                    Sending::Upload(upload) => {
                        self.next_piece(upload, database, subscriptions, &mut out, progress)?
                    }
                    Sending::Requests(tables) => self.next_request(tables, &mut out)?,
                };
            } else {
                match self.plan.pop_front() {
                    None => break,
                    Some(step) => self.begin(step, database, subscriptions, &mut out)?,
                }
            }
        }
        Ok((!out.is_empty()).then(|| out.freeze()))
    }

    fn begin(
        &mut self,
        step: Step,
        database: Option<&Database>,
        subscriptions: &[SubscriptionState],
        out: &mut BytesMut,
    ) -> Result<(), SyncError> {
        let database = database.ok_or(SyncError::Defect {
            what: "messages to send while the download is applied",
        });
        let control = match step {
            Step::Upload(index) => {
                let subscription = &subscriptions[index];
                let (rows, bytes) = database?.upload_estimate(subscription)?;
                self.sending = Some(Sending::Upload(Upload {
                    subscription: index,
                    cursor: UploadCursor::default(),
                    end: UploadEnd::default(),
                    checksum: crc32fast::Hasher::new(),
                }));
                Control::UploadBegin(UploadBegin {
                    subscription: index as u32,
                    sequence: subscription.sequence + 1,
                    upload_id: subscription.taken.map(|id| id.to_vec()).unwrap_or_default(),
                    rows,
                    bytes,
                })
            }
            Step::Requests(index) => {
                let subscription = &subscriptions[index];
                let mut tables = database?.requests(subscription)?;
                for (begin, rows) in &mut tables {
                    self.shorten(subscription, begin, rows);
                }
                tables.retain(|(_, rows)| !rows.is_empty());
                if tables.is_empty() {
                    return Ok(());
                }
                self.sending = Some(Sending::Requests(tables.into_iter()));
                Control::RequestBegin(RequestBegin {
                    subscription: index as u32,
                })
            }
            Step::DownloadRequest => {
                self.requested = true;
                Control::DownloadRequest(DownloadRequest {
                    upload_only: self.upload_only,
                })
            }
        };
        Ok(put_control(out, SYNC_CHANNEL, control)?)
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
        mut upload: Upload,
        database: &Database,
        subscriptions: &[SubscriptionState],
        out: &mut BytesMut,
        progress: &mut Progress,
    ) -> Result<Option<Sending>, SyncError> {
        let subscription = &subscriptions[upload.subscription];
        let Some(chunk) = database.upload_chunk(subscription, &mut upload.cursor)? else {
            upload.end.checksum = upload.checksum.finalize();
            put_control(out, SYNC_CHANNEL, Control::UploadEnd(upload.end))?;
            return Ok(None);
        };
        if let Some(begin) = chunk.begin {
            progress.table(Phase::Uploading, &begin.table, begin.expected_rows);
            put_control(out, SYNC_CHANNEL, Control::TableBegin(begin))?;
        }
        upload.end.inserts += chunk.inserts;
        upload.end.updates += chunk.updates;
        upload.end.deletes += chunk.deletes;
        progress.rows += chunk.inserts + chunk.updates + chunk.deletes;
        upload.checksum.update(&chunk.rows);
        self.rows = chunk.rows.into();
        Ok(Some(Sending::Upload(upload)))
    }

    fn next_request(
        &mut self,
        mut tables: std::vec::IntoIter<(TableBegin, Vec<u8>)>,
        out: &mut BytesMut,
    ) -> Result<Option<Sending>, SyncError> {
        let Some((begin, rows)) = tables.next() else {
            return Ok(None);
        };
        put_control(out, SYNC_CHANNEL, Control::TableBegin(begin))?;
        self.rows = rows.into();
        Ok(Some(Sending::Requests(tables)))
    }
}

/// How many rows fit into so many bytes, and how many bytes they are.
fn whole_rows(shape: &RowShape, rows: &[u8], limit: usize) -> (u64, usize) {
    let mut reader = RowsReader::new(shape, rows);
    let mut row = Row::default();
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
            partition: vec![],
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
