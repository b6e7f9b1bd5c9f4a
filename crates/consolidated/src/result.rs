//! Collects what an upload came to, in the form in which it is stored and sent.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, Datum, Op, PublicationSchema, RowShape, RowsWriter};

use crate::upload::{ResultTable, UploadResult};

/// Builds an [`UploadResult`]. Tables are named by their index in the publication's
/// schema, rows are in the schema's columns.
#[derive(Debug)]
pub(crate) struct ResultBuilder<'a> {
    schema: &'a PublicationSchema,
    writers: Vec<RowsWriter<'a>>,
    result: UploadResult,
}

impl<'a> ResultBuilder<'a> {
    /// An empty result; `shapes` are those of the schema's tables.
    pub(crate) fn new(schema: &'a PublicationSchema, shapes: &'a [RowShape]) -> Self {
        debug_assert_eq!(schema.tables.len(), shapes.len());
        Self {
            schema,
            writers: shapes.iter().map(RowsWriter::new).collect(),
            result: UploadResult::default(),
        }
    }

    /// So many changes of one operation took effect.
    pub(crate) fn applied(&mut self, op: Op, rows: u64) {
        match op {
            Op::Insert => self.result.inserts += rows,
            Op::Update => self.result.updates += rows,
            Op::Delete => self.result.deletes += rows,
            _ => debug_assert!(false, "{op:?} is not an operation of an upload"),
        }
    }

    /// A change lost against this row of the centre.
    pub(crate) fn conflict_row(&mut self, table: usize, winner: &[Datum<'_>]) {
        self.result.conflicts += 1;
        self.writers[table].row(Op::ConflictRow, winner);
    }

    /// A change lost against a delete in the centre.
    pub(crate) fn conflict_gone(&mut self, table: usize, key: &[Datum<'_>]) {
        self.result.conflicts += 1;
        self.writers[table].key(Op::ConflictGone, key);
    }

    /// A change was refused.
    pub(crate) fn refused(
        &mut self,
        table: usize,
        key: &[Datum<'_>],
        op: Op,
        code: Code,
        reason: &str,
    ) {
        self.result.refused += 1;
        self.writers[table].refused(key, op, code.number(), reason);
    }

    /// The finished result: only tables with rows are in it, in the schema's order.
    pub(crate) fn finish(mut self) -> UploadResult {
        let tables = self.schema.tables.iter().zip(&mut self.writers);
        for (table, writer) in tables.filter(|(_, writer)| !writer.is_empty()) {
            let mut begin = TableBegin::of(table);
            begin.expected_rows = writer.rows();
            self.result.tables.push(ResultTable {
                begin,
                rows: writer.take(),
            });
        }
        self.result
    }
}
