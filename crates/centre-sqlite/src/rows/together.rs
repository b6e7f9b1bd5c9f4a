//! Rows that need each other, applied with all foreign keys checked at the end; see
//! the engine.

use tidewater_protocol::Op;

use super::refusal::RowError;
use super::{Result, UploadRows, ended};
use crate::deferred_violations;
use crate::publication::SqliteTables;
use crate::row::{RowFate, SqliteIncomingTable};
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::upload_writer::CyclePart;

impl UploadRows<'_> {
    /// See [`UploadWriter::write_cycle`](tidewater_centre::engine::upload::upload_writer::UploadWriter::write_cycle).
    pub(super) fn apply_together(
        &mut self,
        parts: &[CyclePart<'_, '_, SqliteTables>],
    ) -> Result<bool> {
        self.savepoint("SAVEPOINT tidewater_together")?;
        self.savepoint("PRAGMA defer_foreign_keys = ON")?;
        let immediate = std::mem::replace(&mut self.immediate, false);
        let written = self.write_all(parts);
        self.immediate = immediate;
        if written.is_err() {
            // It may be an upload's own error, after which others go on.
            let _ = self.savepoint("PRAGMA defer_foreign_keys = OFF");
        }
        let is_well = written? && !deferred_violations(self.connection)?;
        if !is_well {
            self.savepoint("ROLLBACK TO tidewater_together")?;
        }
        self.savepoint("PRAGMA defer_foreign_keys = OFF")?;
        self.savepoint("RELEASE tidewater_together")?;
        Ok(is_well)
    }

    /// Whether all rows could be written: first what leaves, then what frees, then what takes, and
    /// at last what could not leave before.
    fn write_all(&mut self, parts: &[CyclePart<'_, '_, SqliteTables>]) -> Result<bool> {
        let is = |op| move |part: &&CyclePart<'_, '_, SqliteTables>| part.op == op;
        let mut late = Vec::new();
        for part in parts.iter().filter(is(Op::Update)) {
            late.push((part.table, self.those_left(part.table, &part.rows)?));
        }
        for part in parts.iter().filter(is(Op::Delete)).rev() {
            if !self.those_left(part.table, &part.rows)?.is_empty() {
                return Ok(false);
            }
        }
        for part in parts.iter().filter(is(Op::Insert)) {
            if !self.those_left(part.table, &part.rows)?.is_empty() {
                return Ok(false);
            }
        }
        for (table, rows) in late {
            if !self.those_left(table, &rows)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes rows; gives back those that could not be written.
    fn those_left(
        &mut self,
        table: &SqliteIncomingTable<'_>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        let mut left = Vec::new();
        let mut end = None;
        let mut writer = self.writer(table)?;
        table.rows(rows, |number, row| {
            let at = rows[number];
            if end.is_some() || self.ending(table, at).is_some() {
                left.push(at);
                return Ok(());
            }
            match writer.write(row) {
                Ok(RowFate::Applied) => {}
                Ok(_) => left.push(at),
                Err(RowError::Centre(error)) => return Err(error),
                Err(RowError::Ended(refusal)) => end = Some((at, refusal)),
            }
            Ok(())
        })?;
        let is_exact = writer.is_exact;
        drop(writer);
        if !is_exact {
            self.inexact.insert(table.index);
        }
        if let Some((at, refusal)) = end {
            self.note_ending(table, at, refusal);
            return Err(ended());
        }
        Ok(left)
    }
}
