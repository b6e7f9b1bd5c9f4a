//! Collects what an upload came to, in the form in which it is stored and sent.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, Datum, Op, PublicationSchema, RowShape, RowsWriter, pack};

use crate::engine::upload::row_keys::{RowKeys, pack_key};
use crate::upload::{ResultTable, UploadResult};

/// Builds an [`UploadResult`]. Tables are named by their index in the publication's
/// schema, rows are in the schema's columns.
#[derive(Debug)]
pub(crate) struct ResultBuilder<'a> {
    schema: &'a PublicationSchema,
    writers: Vec<RowsWriter<'a>>,
    result: UploadResult,
    /// The refused inserts, by table and packed key.
    refused_inserts: RowKeys,
    /// The other refused rows.
    refused_changes: RowKeys,
    /// Those of both that refer to something that is not there.
    refused_by_foreign_key: RowKeys,
    /// Rows that lost.
    lost: RowKeys,
    /// Keys of rows that the remote is to get as the centre has them.
    asked: Vec<RowsWriter<'a>>,
}

impl<'a> ResultBuilder<'a> {
    /// An empty result; `shapes` are those of the schema's tables.
    pub(crate) fn new(schema: &'a PublicationSchema, shapes: &'a [RowShape]) -> Self {
        debug_assert_eq!(schema.tables.len(), shapes.len());
        Self {
            schema,
            writers: shapes.iter().map(RowsWriter::new).collect(),
            result: UploadResult::default(),
            refused_inserts: RowKeys::new(),
            refused_changes: RowKeys::new(),
            refused_by_foreign_key: RowKeys::new(),
            lost: RowKeys::new(),
            asked: shapes.iter().map(RowsWriter::new).collect(),
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

    /// A change lost against this row of the centre. One that cannot be sent is as good as gone
    /// until it can: then it comes with a download.
    pub(crate) fn conflict_row(&mut self, table: usize, winner: &[Datum<'_>]) {
        let key = &self.schema.tables[table].key;
        let key: Vec<_> = key.iter().map(|&index| winner[index]).collect();
        if pack::too_long(winner).is_some() {
            return self.conflict_gone(table, &key);
        }
        self.note_lost(table, &key);
        self.writers[table].row(Op::ConflictRow, winner);
    }

    /// A change lost against a delete in the centre.
    pub(crate) fn conflict_gone(&mut self, table: usize, key: &[Datum<'_>]) {
        self.note_lost(table, key);
        self.writers[table].key(Op::ConflictGone, key);
    }

    fn note_lost(&mut self, table: usize, key: &[Datum<'_>]) {
        self.result.conflicts += 1;
        let key = pack_key(&self.schema.tables[table], key);
        self.lost.insert((table, key));
    }

    /// The remote is to get a row as the centre has it.
    pub(crate) fn asks(&mut self, table: usize, key: &[Datum<'_>]) {
        self.asked[table].key(Op::Request, key);
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
        self.note_refused(Some(table), key, op);
        if code == Code::RowForeignKey {
            let key = pack_key(&self.schema.tables[table], key);
            self.refused_by_foreign_key.insert((table, key));
        }
        self.writers[table].refused(key, op, code.number(), reason);
    }

    /// The centre has made something else of a row that was taken: by itself, or together with
    /// what somebody else has made of it (`Merged`).
    pub(crate) fn made(&mut self, table: usize, op: Op, row: &[Datum<'_>]) {
        self.writers[table].row(op, row);
        self.result.conflicts += u64::from(op == Op::Merged);
    }

    /// Counts a refused row that is told under another header than the table's.
    pub(crate) fn note_refused(&mut self, table: Option<usize>, key: &[Datum<'_>], op: Op) {
        self.result.refused += 1;
        let Some(table) = table else {
            return;
        };
        let row = (table, pack_key(&self.schema.tables[table], key));
        match op {
            Op::Insert => self.refused_inserts.insert(row),
            _ => self.refused_changes.insert(row),
        };
    }

    /// Adds rows under a header of their own.
    pub(crate) fn add_table(&mut self, table: ResultTable) {
        self.result.tables.push(table);
    }

    /// Whether some row lost or was refused.
    pub(crate) fn has_vain(&self) -> bool {
        self.result.refused + self.result.conflicts > 0
    }

    /// Whether a change of a row was refused.
    pub(crate) fn is_refused(&self, row: &(usize, Vec<u8>), op: Op) -> bool {
        match op {
            Op::Insert => self.refused_inserts.contains(row),
            _ => self.refused_changes.contains(row),
        }
    }

    /// Whether a row was refused because nothing is there that it refers to.
    pub(crate) fn is_refused_by_foreign_key(&self, row: &(usize, Vec<u8>)) -> bool {
        self.refused_by_foreign_key.contains(row)
    }

    /// How many changes were refused.
    pub(crate) fn refused_count(&self) -> u64 {
        self.result.refused
    }

    /// Whether a change of a row lost.
    pub(crate) fn is_lost(&self, row: &(usize, Vec<u8>)) -> bool {
        self.lost.contains(row)
    }

    /// The finished result: only tables with rows are in it, in the schema's order.
    pub(crate) fn finish(mut self) -> UploadResult {
        let tables = self.schema.tables.iter().zip(&mut self.writers);
        for (table, writer) in tables.filter(|(_, writer)| !writer.is_empty()) {
            let mut begin = TableBegin::for_table(table);
            begin.expected_rows = writer.rows();
            self.result.tables.push(ResultTable {
                begin,
                rows: writer.take(),
            });
        }
        let asked = self.schema.tables.iter().zip(&mut self.asked);
        for (table, writer) in asked.filter(|(_, writer)| !writer.is_empty()) {
            self.result.asked.push(ResultTable {
                begin: TableBegin::for_table(table),
                rows: writer.take(),
            });
        }
        self.result
    }
}
