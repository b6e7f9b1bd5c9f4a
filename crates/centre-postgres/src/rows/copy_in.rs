//! Many inserts of one table at once, by COPY BINARY straight into it.
//!
//! All or nothing: what COPY refuses, or what it cannot take (a value out of range, a
//! row out of scope), is left to the statements, which tell row from row.

use bytes::Bytes;
use futures_util::{SinkExt, future};

use tidewater_protocol::{Datum, Op, RowsReader, UnpackedRow};

use super::refusal::may_be_data_error;
use super::{LiveTable, PostgresIncomingTable};
use crate::column::{is_exact, obstacle};
use crate::connection::PostgresConnection;
use crate::decoder::recycle;
use crate::driver_error::statement_failed;
use crate::quote::ident_list;
use crate::values::PostgresType;
use tidewater_centre::engine::upload::row_batch::MayWrite;
use tidewater_centre::error::CentreError;
use tidewater_centre::upload::malformed;

/// What goes into one message of COPY.
const PIECE_BYTES: usize = 256 << 10;

/// Signature, flags and extension area of COPY BINARY.
const HEADER: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: &[u8; 2] = b"\xff\xff";

/// Whether the table takes COPY at all.
pub(super) fn is_possible(incoming: &PostgresIncomingTable<'_>, live: LiveTable) -> bool {
    let columns = &incoming.table.columns;
    // COPY does not tell under which keys the rows are now.
    !live.edits_inserts
        && !live.row_security
        && incoming
            .written
            .iter()
            .all(|&index| columns[index].kind != PostgresType::Other)
}

/// The statement that copies rows into a table.
fn statement(incoming: &PostgresIncomingTable<'_>) -> String {
    let columns = &incoming.table.columns;
    let written = incoming.written.iter();
    let names = written.map(|&index| columns[index].name.as_str());
    format!(
        "COPY {} ({}) FROM STDIN (FORMAT BINARY)",
        incoming.table.sql_name,
        ident_list("", names)
    )
}

/// Copies all inserts of a table into it, inside a savepoint. Gives whether they are there exactly as
/// they were uploaded; `None` if none is there, and the statements have to tell.
pub(super) async fn copy_in(
    connection: &mut PostgresConnection,
    incoming: &PostgresIncomingTable<'_>,
    may_write: &mut MayWrite<'_>,
) -> Result<Option<bool>, CentreError> {
    let statement = connection.prepare(&statement(incoming), &[]).await?;
    let client = connection.client();
    let error = |error| statement_failed("copying rows of an upload")(error);
    let (saved, sink) = future::join(
        client.batch_execute("SAVEPOINT tidewater_copy"),
        connection.copy_in(&statement),
    )
    .await;
    saved.map_err(error)?;
    let mut sink = Box::pin(sink.map_err(error)?);
    let mut encoder = Encoder::new(incoming);
    let mut suitable = true;
    for chunk in 0..incoming.chunk_count() {
        let bytes = incoming.chunk(chunk)?;
        if !encoder.chunk(incoming, &bytes, &mut |row| may_write(chunk, row))? {
            suitable = false;
            break;
        }
        while let Some(piece) = encoder.piece() {
            // A COPY that failed swallows the rest; the reason comes with its end.
            if sink.feed(piece).await.is_err() {
                break;
            }
        }
    }
    if suitable {
        // As above.
        let _ = sink.feed(encoder.end()).await;
        match sink.as_mut().finish().await {
            Ok(rows) if rows == incoming.inserts => {
                let release = client.batch_execute("RELEASE tidewater_copy").await;
                release.map_err(error)?;
                return Ok(Some(encoder.exact));
            }
            // A trigger kept rows out: the statements find out which.
            Ok(_) => {}
            Err(refusal) if may_be_data_error(&refusal) => {}
            Err(other) => return Err(error(other)),
        }
    } else {
        // A sink that is dropped before its end makes the COPY fail.
        drop(sink);
    }
    client
        .batch_execute("ROLLBACK TO tidewater_copy; RELEASE tidewater_copy")
        .await
        .map_err(error)?;
    Ok(None)
}

/// Packed rows to tuples of COPY BINARY.
struct Encoder {
    written: Vec<(usize, bool)>,
    out: Vec<u8>,
    buffer: Vec<Datum<'static>>,
    /// Whether the rows so far will be in the table exactly as they were uploaded.
    exact: bool,
}

impl Encoder {
    fn new(incoming: &PostgresIncomingTable<'_>) -> Encoder {
        let key = &incoming.table.key;
        let mut out = Vec::with_capacity(PIECE_BYTES + (64 << 10));
        out.extend_from_slice(HEADER);
        Encoder {
            written: incoming
                .written
                .iter()
                .map(|&index| (index, key.contains(&index)))
                .collect(),
            out,
            buffer: Vec::new(),
            exact: true,
        }
    }

    /// Encodes the inserts of a chunk; false if one of them is not for COPY.
    fn chunk(
        &mut self,
        incoming: &PostgresIncomingTable<'_>,
        bytes: &[u8],
        may_write: &mut (dyn FnMut(&[Datum<'_>]) -> bool + Send),
    ) -> Result<bool, CentreError> {
        let mut reader = RowsReader::new(&incoming.map.shape, bytes);
        let mut row = UnpackedRow::default();
        while reader
            .next(&mut row)
            .map_err(|error| malformed(&error.to_string()))?
        {
            if row.op == Some(Op::Insert) && !self.insert(incoming, &row, may_write) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Encodes an insert; false if it is not for COPY.
    fn insert(
        &mut self,
        incoming: &PostgresIncomingTable<'_>,
        row: &UnpackedRow<'_>,
        may_write: &mut (dyn FnMut(&[Datum<'_>]) -> bool + Send),
    ) -> bool {
        let columns = &incoming.table.columns;
        let mut buffer = recycle(std::mem::take(&mut self.buffer));
        let values = incoming.arranged(&row.new, &mut buffer);
        if !may_write(values) {
            return false;
        }
        let count = self.written.len() as i16;
        self.out.extend_from_slice(&count.to_be_bytes());
        for &(index, is_key) in &self.written {
            let (column, value) = (&columns[index], &values[index]);
            if obstacle(column, is_key, value).is_some()
                || column.kind.encode(value, &mut self.out).is_err()
            {
                return false;
            }
            self.exact = self.exact && is_exact(column, value);
        }
        self.buffer = recycle(buffer);
        true
    }

    /// A piece to send, if there is enough for one.
    fn piece(&mut self) -> Option<Bytes> {
        if self.out.len() < PIECE_BYTES {
            return None;
        }
        let empty = Vec::with_capacity(PIECE_BYTES + (64 << 10));
        Some(std::mem::replace(&mut self.out, empty).into())
    }

    /// The last piece.
    fn end(&mut self) -> Bytes {
        self.out.extend_from_slice(TRAILER);
        std::mem::take(&mut self.out).into()
    }
}
