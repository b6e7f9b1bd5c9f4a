//! Packing the rows of one table into the sink.

use prost::Message;

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Datum, Op, RowShape, RowsWriter, Table};

use super::resuming::ReadPosition;
use super::shared_readings::{NotedPiece, NotedRows};
use crate::download::{DownloadSink, MarkFrequency};
use crate::engine::too_long;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// What was sent.
#[derive(Clone, Copy)]
pub(super) struct SentCounts {
    pub(super) upserts: u64,
    pub(super) removals: u64,
    /// Rows that were left out, because the remote had sent them as they are.
    pub(super) own: u64,
    /// Bytes of rows.
    pub(super) bytes: u64,
    /// Bytes of rows since the last mark.
    unmarked: usize,
    /// How many are worth one.
    mark_every: usize,
}

impl SentCounts {
    pub(super) fn new(marks: Option<MarkFrequency>) -> SentCounts {
        SentCounts {
            upserts: 0,
            removals: 0,
            own: 0,
            bytes: 0,
            unmarked: 0,
            mark_every: marks.map_or(usize::MAX, |it| it.bytes),
        }
    }

    fn add_bytes(&mut self, bytes: usize) {
        self.unmarked += bytes;
        self.bytes += bytes as u64;
    }
}

/// Packs the rows of one table into the sink.
pub(super) struct Output<'a> {
    schema: &'a Table,
    pub(super) begin: Option<TableBegin>,
    writer: RowsWriter<'a>,
    counts: &'a mut SentCounts,
    /// Rows of the table that are read whole, also before.
    pub(super) whole_rows: u64,
    /// What is noted for others, and the counts before.
    noting: Option<(NotedRows, [u64; 2])>,
    pub(super) sink: &'a mut dyn DownloadSink,
}

impl<'a> Output<'a> {
    pub(super) fn new(
        schema: &'a Table,
        shape: &'a RowShape,
        counts: &'a mut SentCounts,
        sink: &'a mut dyn DownloadSink,
    ) -> Output<'a> {
        Output {
            schema,
            begin: Some(TableBegin::for_table(schema)),
            writer: RowsWriter::new(shape),
            counts,
            whole_rows: 0,
            noting: None,
            sink,
        }
    }

    /// Sends a row as it was read.
    pub(super) fn upsert(&mut self, row: &[Datum<'_>]) -> Result<()> {
        let row = &row[..self.schema.columns.len()];
        let before = self.writer.len();
        self.writer.row(Op::Upsert, row);
        too_long::check(self.schema, row, self.writer.len() - before)?;
        self.counts.upserts += 1;
        self.counts.add_bytes(self.writer.len() - before);
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    /// Leaves a row out that the remote has sent as it is.
    pub(super) fn leave_out(&mut self) {
        self.counts.own += 1;
    }

    /// Nothing of a table that is not downloaded has to be removed.
    pub(super) fn remove(&mut self, key: &[Datum<'_>]) -> Result<()> {
        if !self.schema.direction.downloads() {
            return Ok(());
        }
        let before = self.writer.len();
        self.writer.key(Op::Remove, key);
        self.counts.removals += 1;
        self.counts.add_bytes(self.writer.len() - before);
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    pub(super) fn announce(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.sink.table(begin);
        }
        if let Some((noted, _)) = &mut self.noting {
            noted.is_announced = true;
        }
    }

    /// Notes for others what follows.
    pub(super) fn note(&mut self) {
        self.noting = Some((
            NotedRows::default(),
            [self.counts.upserts, self.counts.removals],
        ));
    }

    /// What was noted; `None` if that was too much.
    pub(super) fn noted(&mut self) -> Result<Option<NotedRows>> {
        self.flush(1)?;
        let counts = &*self.counts;
        Ok(self.noting.take().map(|(mut noted, [upserts, removals])| {
            noted.upserts = counts.upserts - upserts;
            noted.removals = counts.removals - removals;
            noted
        }))
    }

    /// Hands over what was noted for somebody else.
    pub(super) fn repeat(&mut self, noted: &NotedRows) -> Result<()> {
        if noted.is_announced {
            self.announce();
        }
        for piece in &noted.pieces {
            match piece {
                NotedPiece::Rows(rows) => {
                    self.counts.add_bytes(rows.len());
                    self.sink.rows(rows.clone())?;
                }
                NotedPiece::Mark(mark, rows) => {
                    self.counts.unmarked = 0;
                    self.sink.mark(mark.clone(), *rows);
                }
            }
        }
        self.counts.upserts += noted.upserts;
        self.counts.removals += noted.removals;
        Ok(())
    }

    /// The download can be gone on with here, if that is worth a mark.
    pub(super) fn mark_if_due(&mut self, position: impl FnOnce() -> ReadPosition) -> Result<()> {
        if self.counts.unmarked < self.counts.mark_every {
            return Ok(());
        }
        self.flush(1)?;
        let mut position = position();
        position.rows = self.whole_rows;
        self.mark(&position);
        Ok(())
    }

    /// The table is complete: the same before the next one.
    pub(super) fn mark_behind(&mut self, table: usize) -> Result<()> {
        if self.counts.unmarked >= self.counts.mark_every {
            self.flush(1)?;
            self.mark(&ReadPosition::before(table + 1));
        }
        Ok(())
    }

    fn mark(&mut self, position: &ReadPosition) {
        self.counts.unmarked = 0;
        let mark = position.encode_to_vec();
        if let Some((noted, _)) = &mut self.noting {
            noted
                .pieces
                .push(NotedPiece::Mark(mark.clone(), position.rows));
        }
        self.sink.mark(mark, position.rows);
    }

    /// Hands over what is packed if it is at least so much; the table's header goes before its
    /// first rows.
    pub(super) fn flush(&mut self, least: usize) -> Result<()> {
        if self.writer.len() >= least.max(1) {
            self.announce();
            let rows = self.writer.take();
            let noting = self.noting.take();
            self.noting = noting.and_then(|(mut noted, before)| {
                let fits = noted.piece(&rows);
                fits.then_some((noted, before))
            });
            self.sink.rows(rows)?;
        }
        Ok(())
    }
}
