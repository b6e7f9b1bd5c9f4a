//! Deletes that were given back to a restored centre before the rows that they delete.
//!
//! Who deleted a row may give that back before who inserted it. There is nothing yet to delete
//! then, and nothing to tell: a row that is gone is what the delete wanted. So it is kept, with
//! the row as it was when it was deleted, and takes effect when an upload that is given back has
//! made the row what it was. A row that has become another meanwhile stays.

use prost::Message;

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{ColumnType, Op, Row, RowShape, RowsWriter, pack};

use crate::error::CentreError;
use crate::upload::{RowsChunk, UploadTable};

/// A delete that waits for its row.
#[derive(Debug)]
pub(crate) struct AwaitedDelete {
    /// The table's name on remotes.
    pub(crate) table: String,
    /// The row's packed key.
    pub(crate) key: Vec<u8>,
    /// The table and columns as the remote announced them, a [`TableBegin`].
    pub(crate) begin: Vec<u8>,
    /// The delete as the remote sent it.
    pub(crate) packed: Vec<u8>,
}

impl AwaitedDelete {
    /// The delete of an uploaded row.
    pub(crate) fn new(
        upload: &UploadTable,
        shape: &RowShape,
        key_types: &[ColumnType],
        row: &Row<'_>,
    ) -> AwaitedDelete {
        let mut packed = RowsWriter::new(shape);
        packed.delete(&row.old);
        AwaitedDelete {
            table: upload.begin.table.clone(),
            key: packed_key(key_types, row),
            begin: upload.begin.encode_to_vec(),
            packed: packed.take(),
        }
    }

    /// The delete as an upload has it.
    pub(crate) fn upload(&self) -> Result<UploadTable, CentreError> {
        let begin = TableBegin::decode(&self.begin[..]);
        let begin = begin.map_err(|error| CentreError::Internal {
            message: format!("a delete that waits for its row cannot be read: {error}"),
        })?;
        Ok(UploadTable {
            begin,
            chunks: vec![RowsChunk::Memory(self.packed.clone().into())],
        })
    }
}

/// The packed keys of the rows that uploaded rows of a table have inserted or updated.
pub(crate) fn written_keys(
    upload: &UploadTable,
    shape: &RowShape,
    key_types: &[ColumnType],
) -> Result<Vec<Vec<u8>>, CentreError> {
    let mut keys = Vec::new();
    upload.each_row(shape, |row, op| {
        if op != Op::Delete {
            keys.push(packed_key(key_types, row));
        }
    })?;
    Ok(keys)
}

fn packed_key(key_types: &[ColumnType], row: &Row<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    pack::pack_values(&mut key, key_types, &row.key);
    key
}
