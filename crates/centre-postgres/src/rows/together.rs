//! Rows that need each other: applied by one statement, or not at all.

use tidewater_protocol::Op;

use super::execute::StatementOutcome;
use super::sql;
use super::statements::{GUARD, KEEP, UNDO, parameters};
use super::{Result, UploadRows};
use crate::publication::PostgresTables;
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::upload_writer::CyclePart;

/// About the most bytes of rows that go into one statement: a message to PostgreSQL has less than
/// a GiB.
const MOST_BYTES: usize = 256 << 20;

impl UploadRows<'_> {
    /// See [`UploadWriter::write_cycle`](tidewater_centre::engine::upload::upload_writer::UploadWriter::write_cycle).
    pub(super) async fn apply_together(
        &mut self,
        parts: &[CyclePart<'_, '_, PostgresTables>],
    ) -> Result<bool> {
        let bytes: usize = parts.iter().map(|it| distance(&it.rows)).sum();
        if bytes > MOST_BYTES {
            return Ok(false);
        }
        let mut arrays = Vec::new();
        for part in parts {
            arrays.extend(parameters(part.table, part.op, &part.changed, &part.rows)?);
        }
        let text = sql::together(parts);
        let statement = self.connection.prepare(&text, &[]).await?;
        self.savepoint(GUARD).await?;
        let mut written = vec![0; parts.len()];
        if let StatementOutcome::Rows(result) = self.execute(&statement, &arrays).await? {
            for row in result {
                written[row.get::<_, i32>(0) as usize] += usize::from(row.get::<_, bool>(1));
            }
        }
        let mut pairs = parts.iter().zip(&written);
        let is_well = pairs.all(|(part, written)| *written == part.rows.len());
        self.savepoint(if is_well { KEEP } else { UNDO }).await?;
        for part in parts.iter().filter(|it| is_well && it.op == Op::Insert) {
            if self.live(part.table.table).edits_inserts {
                self.log_moved(part.table, &part.rows).await?;
            }
        }
        Ok(is_well)
    }
}

/// From the first of some rows to the last, in bytes.
fn distance(rows: &[RowRef]) -> usize {
    let distances = rows.windows(2).map(|pair| pair[0].distance(pair[1]));
    distances.sum()
}
