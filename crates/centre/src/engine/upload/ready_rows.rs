//! Rows that are ready to be written, and what keeps a row from being that.

use std::collections::HashMap;

use tidewater_protocol::{Code, Datum, pack};

use crate::engine::publication::Publication;
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;

/// Rows to be written; updates by the set of columns that they change.
#[derive(Default)]
pub(super) struct ReadyRows {
    pub(super) sets: Vec<(Vec<usize>, Vec<RowRef>)>,
    /// Where a set of columns is among these.
    places: HashMap<Vec<usize>, usize>,
}

impl ReadyRows {
    /// Adds a row that changes these columns.
    pub(super) fn add<T: TableAdapter>(
        &mut self,
        table: &IncomingTable<'_, T>,
        changed: &mut Vec<usize>,
        row: RowRef,
    ) {
        let set = match self.places.get(changed) {
            Some(&set) => set,
            None => {
                if self.places.len() >= MAX_CHANGE_SETS {
                    let is_key = |it: &usize| table.is_key(*it);
                    let key: Vec<usize> = changed.iter().copied().filter(is_key).collect();
                    let all = table.updatable.iter().copied();
                    changed.clear();
                    changed.extend(all.filter(|it| key.contains(it) || !is_key(it)));
                }
                let sets = &mut self.sets;
                *self
                    .places
                    .entry(changed.clone())
                    .or_insert_with_key(|changed| {
                        sets.push((changed.clone(), Vec::new()));
                        sets.len() - 1
                    })
            }
        };
        self.sets[set].1.push(row);
    }
}

/// Why a row can never be what it is to be, if that is known without the database.
pub(super) fn obstacle<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    table: &IncomingTable<'_, R::Tables>,
    uploaded: &UploadedImages<'_, '_>,
    changed: &[usize],
) -> Option<RefusalReason> {
    let new = uploaded.new?;
    let schema = &publication.schema.tables[table.index];
    let name = |column: usize| &schema.columns[column].name;
    let refusal = |code, reason| Some(RefusalReason::new(code, reason));
    let differs = |&&column: &&usize| {
        let old = uploaded.old;
        old.is_some_and(|old| !pack::same(&old[column], &new[column]))
    };
    if let Some(&column) = table.read_only.iter().find(differs) {
        let reason = format!("the column {} is not written by remotes", name(column));
        return refusal(Code::RowDownloadOnly, reason);
    }
    for &column in &schema.key {
        if new[column] == Datum::Null {
            let reason = format!("the key column {} is NULL", name(column));
            return refusal(Code::RowNotNull, reason);
        }
        let is_other = uploaded
            .old
            .is_some_and(|old| !pack::same(&old[column], &new[column]));
        if is_other && !changed.contains(&column) {
            let reason = format!("the key column {} cannot be updated", name(column));
            return refusal(Code::RowBadValue, reason);
        }
    }
    let reason = rows.misfit_reason(table, RowImage::New, new)?;
    refusal(Code::RowBadValue, reason)
}

/// Finds the columns that an update sets; of other operations there are none.
pub(super) fn find_changed<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    uploaded: &UploadedImages<'_, '_>,
    changed: &mut Vec<usize>,
) {
    changed.clear();
    if let (Some(old), Some(new)) = (uploaded.old, uploaded.new) {
        let differs = |index: &usize| !pack::same(&old[*index], &new[*index]);
        changed.extend(table.updatable.iter().copied().filter(differs));
    }
}

/// Updates are told apart by the columns that they change, so that a user's `UPDATE OF` triggers
/// fire for those only; up to so many kinds of them.
const MAX_CHANGE_SETS: usize = 16;
