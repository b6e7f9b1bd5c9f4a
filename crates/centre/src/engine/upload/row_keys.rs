//! Rows of an upload by their table and key.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{ColumnType, Datum, Table, UnpackedRow};

use crate::engine::membership::Barrier;
use crate::engine::upload::column_map::ColumnMap;
use crate::upload::{UploadTable, gives_another_key};

/// A row, by the index of the table in the publication and the packed key.
pub(crate) type RowKey = (usize, Vec<u8>);

/// Rows.
pub(crate) type RowKeys = HashSet<RowKey>;

/// The packed key of a row.
pub(crate) fn pack_key(table: &Table, key: &[Datum<'_>]) -> Vec<u8> {
    let types: Vec<ColumnType> = table.key_columns().map(|key| key.column_type).collect();
    let mut packed = Vec::new();
    pack_values(&mut packed, &types, key);
    packed
}

/// An uploaded table that is published.
#[derive(Clone, Copy)]
pub(crate) struct UploadedTable<'u> {
    pub(crate) upload: &'u UploadTable,
    /// Its index in the publication.
    pub(crate) index: usize,
    /// How its rows are read.
    pub(crate) map: &'u ColumnMap,
    /// Whether it has updates that give rows other keys.
    pub(crate) has_moves: bool,
}

impl UploadedTable<'_> {
    /// Whether an update gives its row another key.
    pub(crate) fn moves(&self, row: &UnpackedRow<'_>) -> bool {
        gives_another_key(&self.map.shape, row)
    }
}

/// Rows that may not be written, and why.
pub(crate) type Barred = HashMap<RowKey, Barrier>;
