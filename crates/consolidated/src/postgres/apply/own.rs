//! What a sync uploaded, row by row, for its own download to leave out.

use std::collections::HashMap;

use tidewater_protocol::{ColumnType, Op, RowsReader, pack};

use super::incoming::{Incoming, malformed};
use crate::error::CentreError;
use crate::upload::ResultTable;

/// Rows beyond this are not remembered: the remote gets them again, and nothing is
/// wrong but the traffic.
const MAX_BYTES: usize = 32 << 20;

type Rows = HashMap<(usize, Vec<u8>), Option<Vec<u8>>>;

/// The rows of an upload that were taken; see [`crate::OwnUpload::rows`].
///
/// Those that were not are none of the remote's own: its result told what the centre had
/// then, and what became of that afterwards (a cascade of the same upload) is news.
pub(super) fn rows(incoming: &[Incoming<'_>], result: &[ResultTable]) -> Result<Rows, CentreError> {
    let mut rows = uploaded(incoming)?;
    for told in result {
        let mut tables = incoming.iter();
        let table = tables.find(|it| it.upload().begin.table == told.begin.table);
        let (Some(table), Some(shape)) = (table, told.begin.shape()) else {
            continue;
        };
        let key_types: Vec<ColumnType> = shape.key.iter().map(|&it| shape.columns[it]).collect();
        let mut reader = RowsReader::new(&shape, &told.rows);
        let mut row = tidewater_protocol::Row::default();
        while reader
            .next(&mut row)
            .map_err(|error| malformed(&error.to_string()))?
        {
            let mut key = Vec::new();
            pack::pack_values(&mut key, &key_types, &row.key);
            rows.remove(&(table.index, key));
        }
    }
    Ok(rows)
}

fn uploaded(incoming: &[Incoming<'_>]) -> Result<Rows, CentreError> {
    let mut rows = Rows::new();
    let mut bytes = 0;
    for table in incoming
        .iter()
        .filter(|table| table.table.direction.uploads())
    {
        let columns = table.table.columns.iter();
        let types: Vec<ColumnType> = columns.map(|it| it.kind.column_type(it.scale)).collect();
        let key_types: Vec<ColumnType> = table.table.key.iter().map(|&it| types[it]).collect();
        for chunk in 0..table.chunk_count() {
            let chunk = table.chunk(chunk)?;
            let mut reader = RowsReader::new(&table.map.shape, &chunk);
            let mut row = tidewater_protocol::Row::default();
            while reader
                .next(&mut row)
                .map_err(|error| malformed(&error.to_string()))?
            {
                let mut key = Vec::new();
                pack::pack_values(&mut key, &key_types, &row.key);
                let mut image = None;
                if row.op != Some(Op::Delete) {
                    if !table.map.is_complete() {
                        continue;
                    }
                    let mut buffer = Vec::new();
                    let mut packed = Vec::new();
                    let values = table.arranged(&row.new, &mut buffer);
                    pack::pack_values(&mut packed, &types, values);
                    image = Some(packed);
                }
                bytes += key.len() + image.as_ref().map_or(0, Vec::len) + 96;
                if bytes > MAX_BYTES {
                    return Ok(rows);
                }
                rows.insert((table.index, key), image);
            }
        }
    }
    Ok(rows)
}
