//! What a sync uploaded, row by row, for its own download to leave out.

use std::collections::HashMap;

use tidewater_protocol::{ColumnType, Op, RowShape, UnpackedRow};

use super::incoming_rows::{IncomingTable, RowRef};
use crate::engine::exact::{pack_exact, pack_row, types_of};
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::upload::{ResultTable, UploadResult, each_packed, gives_another_key};

/// Rows beyond this are not remembered: the remote gets them again, and nothing is
/// wrong but the traffic.
const MAX_BYTES: usize = 32 << 20;

/// About what a row takes beside its bytes.
const ROW_BYTES: usize = 96;

/// The number of a table, and a packed key.
type OwnKey = (usize, Vec<u8>);

type OwnRows = HashMap<OwnKey, Option<Vec<u8>>>;

/// What one upload of those whose rows are read brings.
#[derive(Default)]
struct UploadEcho {
    /// What is uploaded under each key.
    rows: OwnRows,
    /// The keys that rows were to have, by those that they had.
    moved: HashMap<OwnKey, OwnKey>,
    bytes: usize,
}

/// The rows of each upload that were taken, of uploads that came to these results; see
/// [`crate::OwnUpload::rows`]. `owner` tells by a row's place which upload it belongs to.
///
/// Those that were not are none of the remote's own: its result told what the centre had
/// then, and what became of that afterwards (a cascade of the same upload) is news.
pub(super) fn rows<T: TableAdapter>(
    shapes: &[RowShape],
    incoming: &[IncomingTable<'_, T>],
    owner: impl Fn(&IncomingTable<'_, T>, RowRef) -> usize,
    results: &[&UploadResult],
) -> Result<Vec<OwnRows>, CentreError> {
    let mut all: Vec<UploadEcho> = Vec::new();
    all.resize_with(results.len(), UploadEcho::default);
    for table in incoming.iter().filter(|table| table.is_open) {
        let shape = &shapes[table.index];
        let key_types = types_of(shape, &shape.key);
        table.each(|at, row| {
            all[owner(table, at)].add(table, row, shape, &key_types);
            Ok(())
        })?;
    }
    let taken = all.into_iter().zip(results);
    taken
        .map(|(own, result)| own.taken(incoming, &result.tables))
        .collect()
}

impl UploadEcho {
    /// Adds a row as it was uploaded.
    fn add<T: TableAdapter>(
        &mut self,
        table: &IncomingTable<'_, T>,
        row: &UnpackedRow<'_>,
        shape: &RowShape,
        key_types: &[ColumnType],
    ) {
        if self.bytes > MAX_BYTES {
            return;
        }
        let mut image = None;
        if row.op != Some(Op::Delete) {
            if !table.map.is_complete() {
                return;
            }
            let mut buffer = Vec::new();
            let values = table.arranged(&row.new, &mut buffer);
            image = Some(pack_row(&shape.columns, values));
        }
        let mut key = pack_exact(key_types, &row.key);
        self.bytes += key.len() + image.as_ref().map_or(0, Vec::len) + ROW_BYTES;
        if row.op == Some(Op::Update) && gives_another_key(&table.map.shape, row) {
            let new = table.map.shape.key.iter().map(|&column| row.new[column]);
            let new = pack_exact(key_types, &new.collect::<Vec<_>>());
            // Another row may have come in its place.
            let before = (table.index, key.clone());
            self.rows.entry(before.clone()).or_insert(None);
            self.moved.insert(before, (table.index, new.clone()));
            key = new;
        }
        self.rows.insert((table.index, key), image);
    }

    /// Those that the result does not say anything else of.
    fn taken<T: TableAdapter>(
        self,
        incoming: &[IncomingTable<'_, T>],
        result: &[ResultTable],
    ) -> Result<OwnRows, CentreError> {
        let UploadEcho {
            mut rows, moved, ..
        } = self;
        for told in result {
            let mut tables = incoming.iter();
            let table = tables.find(|it| it.upload().begin.table == told.begin.table);
            let (Some(table), Some(shape)) = (table, told.begin.shape()) else {
                continue;
            };
            let key_types = types_of(&shape, &shape.key);
            each_packed(&shape, &told.rows, |_, row| {
                let key = (table.index, pack_exact(&key_types, &row.key));
                match row.op {
                    // That is what the remote has of it.
                    Some(Op::Made | Op::Merged) => {
                        rows.insert(key, Some(pack_row(&shape.columns, &row.new)))
                    }
                    _ => {
                        // What is under the key that it was to have has not come from the remote.
                        if let Some(new) = moved.get(&key) {
                            rows.remove(new);
                        }
                        rows.remove(&key)
                    }
                };
                Ok(())
            })?;
        }
        Ok(rows)
    }
}
