//! Receiving uploads: order, counts, checksums and limits, rows validated as they
//! arrive and cut into chunks at row boundaries. Without input or output but the
//! spool; what rows mean is the centre's affair.

use tidewater_centre::packed_rows::TableRequest;
use tidewater_centre::upload::UploadedRowKind;
use tidewater_centre::{RowMark, UploadChunk, UploadTable};
use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::message::{
    MAX_FORGOTTEN_REFUSALS, MAX_GIVEN_UP, MAX_RETRIED, RequestBegin, TableBegin, UploadBegin,
    UploadEnd, UploadState,
};
use tidewater_protocol::pack::MAX_COLUMNS;
use tidewater_protocol::{
    Code, Op, PublicationSchema, RowShape, RowsReader, UnpackError, UnpackedRow, UploadId,
};

use tidewater_server_config::ServerLimits;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{MemoryBudget, Reservation};
use tidewater_server_jobs::spool::RowStore;

/// Encoded table headers of one sync.
const HEADER_BYTES: usize = 4 << 20;
/// Rows that one sync asks for again, in packed bytes.
const REQUEST_BYTES: usize = 16 << 20;
/// An incomplete row up to this size needs no reservation.
const PARTIAL_ROW_BYTES: usize = 128 << 10;

/// What the Hello says of a subscription, and what the server answered.
#[derive(Clone)]
pub(crate) struct ExpectedUpload<'a> {
    pub schema: &'a PublicationSchema,
    pub state: UploadState,
    /// The upload that may come.
    pub sequence: u64,
    pub upload_id: Option<UploadId>,
}

/// One complete upload.
#[derive(Debug)]
pub(crate) struct ReceivedUpload {
    /// What the remote said of it. Behind a pointer, as every session has room for it.
    pub begin: Box<UploadBegin>,
    pub tables: Vec<UploadTable>,
}

/// The place in the Hello of the subscription of which an upload is.
pub(crate) fn place_of(begin: &UploadBegin) -> usize {
    begin.subscription as usize
}

/// Everything that a remote sent in one sync.
pub(crate) struct ReceivedRows {
    pub uploads: Vec<ReceivedUpload>,
    /// Per subscription, in the order of the Hello.
    pub requests: Vec<Vec<TableRequest>>,
    pub rows: u64,
    pub bytes: u64,
    /// The memory that the rows hold.
    pub reservation: Reservation,
}

/// Takes what a remote sends between Hello and DownloadRequest.
pub(crate) struct Receiver<'a> {
    limits: &'a ServerLimits,
    expected: Vec<ExpectedUpload<'a>>,
    store: RowStore,
    section: Section,
    table: Option<OpenTable>,
    uploads: Vec<ReceivedUpload>,
    /// Which subscriptions have sent an upload.
    seen: Vec<bool>,
    requests: Vec<Vec<TableRequest>>,
    header_bytes: usize,
    request_bytes: usize,
    rows: u64,
    bytes: u64,
    /// Memory of an incomplete row that is longer than usual.
    partial: Reservation,
    /// What has come of uploads before, by subscription.
    broken: Vec<Option<Box<BrokenUpload>>>,
}

/// What has come of an upload that broke off: whole rows.
pub(crate) struct BrokenUpload {
    store: RowStore,
    tables: Vec<UploadTable>,
    counts: [u64; 3],
    header_bytes: usize,
    pub bytes: u64,
    pub checksum: u32,
}

impl BrokenUpload {
    /// How much of the memory for rows it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.store.memory_bytes()
    }
}

enum Section {
    Nothing,
    Upload(OpenUpload),
    Request(usize),
}

struct OpenUpload {
    begin: Box<UploadBegin>,
    /// The server has it already: its rows are counted and dropped.
    ignored: bool,
    tables: Vec<UploadTable>,
    /// Inserts, updates, deletes.
    counts: [u64; 3],
    checksum: crc32fast::Hasher,
}

struct OpenTable {
    /// `None` for rows that mean nothing to the publication and are dropped.
    begin: Option<TableBegin>,
    shape: RowShape,
    /// Whole rows up to `valid`, then the beginning of the next one.
    buffer: Vec<u8>,
    valid: usize,
    /// The buffer's length at which reading the incomplete row is tried again.
    retry_at: usize,
    /// Those of the whole rows of the buffer.
    marks: Vec<RowMark>,
    chunks: Vec<UploadChunk>,
}

impl<'a> Receiver<'a> {
    pub(crate) fn new(
        limits: &'a ServerLimits,
        budget: &MemoryBudget,
        expected: Vec<ExpectedUpload<'a>>,
        broken: Vec<Option<Box<BrokenUpload>>>,
    ) -> Receiver<'a> {
        let count = expected.len();
        Receiver {
            limits,
            expected,
            store: RowStore::new(budget, limits.memory_bytes),
            section: Section::Nothing,
            table: None,
            uploads: Vec::new(),
            seen: vec![false; count],
            requests: (0..count).map(|_| Vec::new()).collect(),
            header_bytes: 0,
            request_bytes: 0,
            rows: 0,
            bytes: 0,
            partial: budget.empty(),
            broken,
        }
    }

    /// What has come of uploads that are not complete, by subscription, if it is so much.
    pub(crate) fn into_broken(mut self, least_bytes: u64) -> Vec<(usize, Box<BrokenUpload>)> {
        let whole = self.whole_rows();
        let before = self.broken.into_iter().enumerate();
        let before = before.filter_map(|(index, broken)| Some((index, broken?)));
        let mut broken: Vec<(usize, Box<BrokenUpload>)> = before.collect();
        let Some((upload, bytes, checksum)) = whole.filter(|it| it.1 >= least_bytes) else {
            return broken;
        };
        let upload_now = BrokenUpload {
            store: self.store,
            tables: upload.tables,
            counts: upload.counts,
            header_bytes: self.header_bytes,
            bytes,
            checksum: checksum.finalize(),
        };
        broken.push((place_of(&upload.begin), Box::new(upload_now)));
        broken
    }

    /// The whole rows of the upload that is coming, if it is the first of its sync.
    fn whole_rows(&mut self) -> Option<(OpenUpload, u64, crc32fast::Hasher)> {
        if !self.uploads.is_empty() || !matches!(self.section, Section::Upload(_)) {
            return None;
        }
        // What cannot be read any more, or stored, is not kept.
        self.validate().and_then(|()| self.store_chunk()).ok()?;
        let Section::Upload(mut upload) = std::mem::replace(&mut self.section, Section::Nothing)
        else {
            return None;
        };
        if let Some(table) = self.table.take()
            && let (Some(begin), false) = (table.begin, table.chunks.is_empty())
        {
            let chunks = table.chunks;
            upload.tables.push(UploadTable { begin, chunks });
        }
        if upload.ignored || upload.begin.given_back {
            return None;
        }
        let mut checksum = crc32fast::Hasher::new();
        let mut bytes = 0;
        for chunk in upload.tables.iter().flat_map(|it| &it.chunks) {
            checksum.update(&chunk.packed().ok()?);
            bytes += chunk.length() as u64;
        }
        Some((upload, bytes, checksum))
    }

    /// An upload begins.
    pub(crate) fn upload_begin(&mut self, begin: UploadBegin) -> Result<(), Fault> {
        if !matches!(self.section, Section::Nothing) {
            return Err(Fault::unexpected("the beginning of an upload"));
        }
        let index = place_of(&begin);
        let expected = self
            .expected
            .get(index)
            .filter(|_| !self.seen[index])
            .ok_or_else(|| Fault::unexpected("an upload"))?;
        let id = UploadId::from_slice(&begin.upload_id);
        if id.is_none() || id != expected.upload_id || begin.sequence != expected.sequence {
            return Err(Fault::peer(
                Code::UnexpectedMessage,
                "the upload is not the one that the Hello announced",
            ));
        }
        if begin.given_up.len() > MAX_GIVEN_UP {
            return Err(Fault::peer(
                Code::LimitExceeded,
                format!("more than {MAX_GIVEN_UP} refused rows are given up with one upload"),
            ));
        }
        if begin.forgotten_refusals.len() > MAX_FORGOTTEN_REFUSALS {
            return Err(Fault::peer(
                Code::LimitExceeded,
                format!("one upload tells more than {MAX_FORGOTTEN_REFUSALS} forgotten refusals"),
            ));
        }
        if begin.retried.len() > MAX_RETRIED {
            return Err(Fault::peer(
                Code::LimitExceeded,
                format!("one upload goes back to more than {MAX_RETRIED} others"),
            ));
        }
        if begin.rows > self.limits.upload_rows {
            return Err(self.too_many_rows());
        }
        // The size is an estimate, by the first rows: what really comes is counted.
        let ignored = expected.state != UploadState::InSequence;
        if !ignored {
            self.store.announce(begin.bytes);
        }
        self.seen[index] = true;
        let behind_bytes = begin.behind_bytes;
        let mut upload = OpenUpload {
            begin: Box::new(begin),
            ignored,
            tables: Vec::new(),
            counts: [0; 3],
            checksum: crc32fast::Hasher::new(),
        };
        let broken = self.broken.get_mut(index).and_then(Option::take);
        if behind_bytes > 0 {
            let broken = broken.filter(|it| it.bytes == behind_bytes && self.bytes == 0);
            let broken = broken.ok_or_else(|| Fault::unexpected("the rest of an upload"))?;
            upload.tables = broken.tables;
            upload.counts = broken.counts;
            let (checksum, bytes) = (broken.checksum, broken.bytes);
            upload.checksum = crc32fast::Hasher::new_with_initial_len(checksum, bytes);
            self.store = broken.store;
            self.header_bytes += broken.header_bytes;
            self.rows += broken.counts.iter().sum::<u64>();
            self.bytes += bytes;
        }
        self.section = Section::Upload(upload);
        Ok(())
    }

    /// Requests begin.
    pub(crate) fn request_begin(&mut self, begin: RequestBegin) -> Result<(), Fault> {
        self.end_requests()?;
        let index = begin.subscription as usize;
        if !matches!(self.section, Section::Nothing) || index >= self.expected.len() {
            return Err(Fault::unexpected("the beginning of requests"));
        }
        self.section = Section::Request(index);
        Ok(())
    }

    /// Rows of a table follow.
    pub(crate) fn table_begin(&mut self, begin: TableBegin) -> Result<(), Fault> {
        self.end_table()?;
        let (index, request) = match &self.section {
            Section::Nothing => return Err(Fault::unexpected("a table")),
            Section::Upload(upload) => (place_of(&upload.begin), false),
            Section::Request(index) => (*index, true),
        };
        self.header_bytes += prost::Message::encoded_len(&begin) + 64;
        if self.header_bytes > HEADER_BYTES {
            return Err(Fault::peer(
                Code::LimitExceeded,
                "too many table headers in one sync",
            ));
        }
        let (shape, key_known) = shape_of(&begin, self.expected[index].schema)?;
        // Without the key's columns a key cannot be read. The remote's schema is
        // another then, and it is sent everything anyway.
        let dropped = request && !key_known;
        let chunks = match &mut self.section {
            // It goes on with the table at which it broke off.
            Section::Upload(upload) => {
                let last = upload.tables.pop_if(|last| last.begin == begin);
                last.map_or_else(Vec::new, |it| it.chunks)
            }
            _ => Vec::new(),
        };
        self.table = Some(OpenTable {
            begin: (!dropped).then_some(begin),
            shape,
            buffer: Vec::new(),
            valid: 0,
            retry_at: 0,
            marks: Vec::new(),
            chunks,
        });
        Ok(())
    }

    /// Packed rows, cut anywhere.
    pub(crate) fn rows(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(table) = &mut self.table else {
            return Err(Fault::unexpected("rows without a table"));
        };
        match &mut self.section {
            Section::Nothing => return Err(Fault::unexpected("rows")),
            Section::Upload(upload) => {
                upload.checksum.update(bytes);
                self.bytes += bytes.len() as u64;
                if self.bytes > self.limits.upload_bytes {
                    return Err(self.too_many_bytes());
                }
            }
            Section::Request(_) => {
                self.request_bytes += bytes.len();
                if self.request_bytes > REQUEST_BYTES {
                    return Err(Fault::peer(
                        Code::LimitExceeded,
                        "too many rows are asked for again",
                    ));
                }
                if !self.store.reserve(bytes.len() as u64) {
                    return Err(Fault::busy(2_000));
                }
            }
        }
        if table.begin.is_none() {
            return Ok(());
        }
        table.buffer.extend_from_slice(bytes);
        if table.buffer.len() >= table.retry_at {
            self.validate()?;
        }
        Ok(())
    }

    /// Reads the rows of the buffer that are complete, and stores them in chunks.
    fn validate(&mut self) -> Result<(), Fault> {
        let Some(table) = &mut self.table else {
            return Ok(());
        };
        let mut reader = RowsReader::new(&table.shape, &table.buffer[table.valid..]);
        let mut row = UnpackedRow::default();
        let uploading = matches!(self.section, Section::Upload(_));
        let complete = loop {
            let offset = (table.valid + reader.consumed()) as u32;
            match reader.next(&mut row) {
                Ok(true) => {}
                Ok(false) => break true,
                Err(UnpackError::Truncated) => break false,
                Err(error) => {
                    return Err(Fault::peer(
                        Code::MalformedMessage,
                        format!("the remote sent a {error}"),
                    ));
                }
            }
            match &mut self.section {
                Section::Upload(upload) => {
                    let kind = UploadedRowKind::from_row(&table.shape, &row);
                    let kind = kind.ok_or_else(|| Fault::unexpected("a row of this kind"))?;
                    upload.counts[match kind {
                        UploadedRowKind::Insert => 0,
                        UploadedRowKind::Update | UploadedRowKind::Move => 1,
                        UploadedRowKind::Delete => 2,
                    }] += 1;
                    table.marks.push(RowMark { offset, kind });
                }
                Section::Request(_) if row.op == Some(Op::Request) => {}
                _ => return Err(Fault::unexpected("a row of this kind")),
            }
            self.rows += u64::from(uploading);
        };
        if self.rows > self.limits.upload_rows {
            return Err(self.too_many_rows());
        }
        table.valid += reader.consumed();
        let partial = table.buffer.len() - table.valid;
        if partial > self.limits.row_bytes {
            return Err(Fault::limit(
                "a row",
                self.limits.row_bytes as u64,
                "row_size",
            ));
        }
        // A long row is not read again with every frame that brings a piece of it.
        table.retry_at = if complete {
            0
        } else {
            table.buffer.len() + (partial / 4).min(4 << 20)
        };
        let reserved = self.partial.bytes() as usize + PARTIAL_ROW_BYTES;
        if partial > reserved && !self.partial.grow_anyway((partial - reserved) as u64) {
            return Err(Fault::busy(2_000));
        }
        if uploading && table.valid >= ROWS_PAYLOAD_BYTES {
            self.store_chunk()?;
        }
        Ok(())
    }

    /// Stores the whole rows of the buffer; the incomplete rest stays.
    fn store_chunk(&mut self) -> Result<(), Fault> {
        let Some(table) = &mut self.table else {
            return Ok(());
        };
        if table.valid == 0 {
            return Ok(());
        }
        let mut rest = Vec::with_capacity(table.buffer.len() - table.valid);
        rest.extend_from_slice(&table.buffer[table.valid..]);
        let mut rows = std::mem::replace(&mut table.buffer, rest);
        rows.truncate(table.valid);
        let mut marks = std::mem::take(&mut table.marks);
        table.retry_at = table.retry_at.saturating_sub(table.valid);
        table.valid = 0;
        let partial = self.partial.bytes();
        self.partial.shrink(partial);
        let ignored = matches!(&self.section, Section::Upload(upload) if upload.ignored);
        if !ignored {
            rows.shrink_to_fit();
            marks.shrink_to_fit();
            // They save a reading of the rows. While others fill the memory, the rows go to a file
            // and are read once more.
            let is_free = self
                .store
                .reserve_free(std::mem::size_of_val(&*marks) as u64);
            let chunk = self.store.put(rows).map_err(|error| {
                let mut fault = Fault::busy(10_000);
                fault.detail = format!("an upload cannot be spooled to a temporary file: {error}");
                fault
            })?;
            table
                .chunks
                .push(UploadChunk::new(chunk, is_free.then_some(marks)));
        }
        Ok(())
    }

    /// The table's rows are complete.
    fn end_table(&mut self) -> Result<(), Fault> {
        self.validate()?;
        let Some(table) = &self.table else {
            return Ok(());
        };
        if table.begin.is_some() && table.valid != table.buffer.len() {
            return Err(Fault::peer(
                Code::MalformedMessage,
                "the remote's rows end in the middle of a row",
            ));
        }
        if matches!(self.section, Section::Upload(_)) {
            self.store_chunk()?;
        }
        let Some(OpenTable {
            begin: Some(begin),
            buffer,
            chunks,
            ..
        }) = self.table.take()
        else {
            return Ok(());
        };
        match &mut self.section {
            Section::Nothing => {}
            Section::Upload(upload) => {
                if !chunks.is_empty() {
                    upload.tables.push(UploadTable { begin, chunks });
                }
            }
            Section::Request(index) => {
                if !buffer.is_empty() {
                    self.requests[*index].push(TableRequest {
                        begin,
                        rows: buffer.into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The upload is complete, or abandoned.
    pub(crate) fn upload_end(&mut self, end: UploadEnd) -> Result<(), Fault> {
        if !matches!(self.section, Section::Upload(_)) {
            return Err(Fault::unexpected("the end of an upload"));
        }
        if end.abandoned {
            self.table = None;
            self.section = Section::Nothing;
            return Ok(());
        }
        self.end_table()?;
        let Section::Upload(upload) = std::mem::replace(&mut self.section, Section::Nothing) else {
            return Ok(());
        };
        let told = [end.inserts, end.updates, end.deletes];
        if told != upload.counts || end.checksum != upload.checksum.finalize() {
            return Err(Fault::peer(
                Code::ChecksumMismatch,
                format!(
                    "the upload arrived damaged: {told:?} rows were sent, {:?} arrived",
                    upload.counts
                ),
            ));
        }
        if upload.counts.iter().sum::<u64>() > upload.begin.rows {
            return Err(Fault::peer(
                Code::LimitExceeded,
                "the upload has more rows than were announced",
            ));
        }
        if !upload.ignored {
            self.uploads.push(ReceivedUpload {
                begin: upload.begin,
                tables: upload.tables,
            });
        }
        Ok(())
    }

    /// Something comes that is no part of an upload and no request.
    pub(crate) fn pause(&mut self, what: &str) -> Result<(), Fault> {
        self.end_requests()?;
        match self.section {
            Section::Nothing => Ok(()),
            _ => Err(Fault::unexpected(what)),
        }
    }

    fn end_requests(&mut self) -> Result<(), Fault> {
        if matches!(self.section, Section::Request(_)) {
            self.end_table()?;
            self.section = Section::Nothing;
        }
        Ok(())
    }

    /// Everything has arrived.
    pub(crate) fn finish(mut self) -> Result<ReceivedRows, Fault> {
        self.pause("the request for the download (an upload has not ended)")?;
        Ok(ReceivedRows {
            uploads: self.uploads,
            requests: self.requests,
            rows: self.rows,
            bytes: self.bytes,
            reservation: self.store.into_reservation(),
        })
    }

    fn too_many_rows(&self) -> Fault {
        Fault::limit(
            "the number of uploaded rows",
            self.limits.upload_rows,
            "upload_rows",
        )
    }

    fn too_many_bytes(&self) -> Fault {
        Fault::limit(
            "the upload's size in bytes",
            self.limits.upload_bytes,
            "upload_size",
        )
    }
}

/// How rows under this header are packed, and whether it has the key's columns.
fn shape_of(begin: &TableBegin, schema: &PublicationSchema) -> Result<(RowShape, bool), Fault> {
    if begin.columns.is_empty() || begin.columns.len() > MAX_COLUMNS {
        return Err(Fault::peer(
            Code::LimitExceeded,
            format!(
                "table {:?} was sent with {} columns",
                begin.table,
                begin.columns.len()
            ),
        ));
    }
    let columns = begin.columns.iter().map(|column| {
        column.column_type().ok_or_else(|| {
            Fault::new(
                Code::SchemaMismatch,
                format!(
                    "column {:?} of table {:?} has a type that the server does not know",
                    column.name, begin.table
                ),
                "update the server",
            )
        })
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let table = schema.table(&begin.table);
    if !begin.key.is_empty() {
        let shape = begin.shape().ok_or_else(|| {
            let table = &begin.table;
            Fault::peer(
                Code::MalformedMessage,
                format!("table {table:?} was sent with a key that cannot be"),
            )
        })?;
        return Ok((shape, table.is_some_and(|table| begin.has_key_of(table))));
    }
    let key = table.and_then(|table| {
        let positions = table
            .key_columns()
            .map(|key| begin.columns.iter().position(|c| c.name == key.name));
        positions.collect::<Option<Vec<usize>>>()
    });
    let key_known = key.is_some();
    let shape = RowShape {
        columns,
        key: key.unwrap_or_default(),
    };
    Ok((shape, key_known))
}

#[cfg(test)]
mod tests;
