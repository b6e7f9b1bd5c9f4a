//! Rows that need each other: applied by one statement, or not at all.

use tidewater_protocol::Op;

use super::sql;
use super::statements::{Executed, GUARD, KEEP, UNDO, execute, ordinal, parameters};
use super::{Result, UploadRows};
use crate::publication::PublishedTable;
use tidewater_centre::engine::upload::incoming::RowRef;
use tidewater_centre::engine::upload::rows::{Ends, Part};

/// About the most bytes of rows that go into one statement: a message to PostgreSQL has less than
/// a GiB.
const MOST_BYTES: usize = 256 << 20;

impl UploadRows<'_> {
    /// See [`Rows::together`](tidewater_centre::engine::upload::rows::Rows::together).
    pub(super) async fn apply_together(
        &mut self,
        parts: &[Part<'_, '_, PublishedTable>],
        ends: Ends,
    ) -> Result<Option<Vec<Vec<usize>>>> {
        let lists = parts.iter().flat_map(|it| [&it.rows, &it.successors]);
        let bytes: usize = lists.map(|rows| distance(rows)).sum();
        if bytes > MOST_BYTES || !parts.iter().all(can_succeed) {
            return Ok(None);
        }
        let mut arrays = Vec::new();
        for Part {
            table,
            op,
            changed,
            rows,
            successors,
        } in parts
        {
            if successors.is_empty() {
                arrays.extend(parameters(table, *op, changed, rows)?);
            } else {
                arrays.extend(parameters(table, Op::Delete, &[], rows)?);
                arrays.extend(parameters(table, Op::Insert, &[], successors)?);
            }
        }
        let text = sql::together(parts);
        let statement = self.connection.prepare(&text, &[]).await?;
        self.savepoint(GUARD).await?;
        let mut written: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
        if let Executed::Rows(result) = execute(self.connection, &statement, &arrays).await? {
            for row in result {
                written[row.get::<_, i32>(0) as usize].push(ordinal(&row, 1));
            }
        }
        let mut pairs = parts.iter().zip(&written);
        let is_well = pairs.all(|(part, written)| {
            let may_lose = part.op == Op::Update && part.successors.is_empty();
            may_lose || written.len() == part.rows.len()
        });
        let is_well = is_well && written.iter().any(|rows| !rows.is_empty());
        if !is_well || ends == Ends::Undone {
            self.savepoint(UNDO).await?;
            return Ok(is_well.then_some(written));
        }
        self.savepoint(KEEP).await?;
        for (part, written) in parts.iter().zip(&written) {
            if part.op == Op::Insert && self.live(part.table.table).edits_inserts {
                let mut rows: Vec<RowRef> = written.iter().map(|&at| part.rows[at]).collect();
                rows.sort_unstable();
                self.log_moved(part.table, &rows).await?;
            }
        }
        Ok(Some(written))
    }
}

/// Whether rows can be put in the place of others, if they are to be.
fn can_succeed(part: &Part<'_, '_, PublishedTable>) -> bool {
    let PublishedTable { columns, key, .. } = part.table.table;
    let mut changed = part.changed.iter();
    part.successors.is_empty()
        || !changed.any(|&it| columns[it].identity_always)
            && key.iter().all(|it| part.changed.contains(it))
}

/// From the first of some rows to the last, in bytes.
fn distance(rows: &[RowRef]) -> usize {
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    let distances = rows.windows(2).map(|pair| pair[0].distance(pair[1]));
    distances.sum()
}
