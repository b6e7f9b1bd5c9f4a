//! The rows of a table as they arrive, cut anywhere.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Op, RowsReader, UnpackError, UnpackedRow};

use super::own_columns::OwnValues;
use super::rows::RowSink;
use super::table::TableApply;
use super::{Applier, ApplyPhase, MAX_ROW_BYTES, compared_tables, out_of_order, remove};
use crate::database::{CompareDue, compare, row};
use crate::error::{ErrorContext, RemoteError};

impl Applier {
    /// Rows of this table follow.
    ///
    /// # Errors
    /// The table or its columns are not those of the schema, or SQLite failed.
    pub fn table_begin(&mut self, begin: &TableBegin) -> Result<(), RemoteError> {
        self.finish_table()?;
        if let Some(halted) = self.halted.take() {
            match halted.name() == begin.table && !begin.replace {
                true => {
                    self.table = Some(halted);
                    return Ok(());
                }
                // Only tables before it had a word yet to come.
                false if begin.replace => self.finish_halted(halted)?,
                false => self.halted = Some(halted),
            }
        }
        self.uploads.had_rows = true;
        let (index, result) = match self.phase {
            ApplyPhase::Idle => return Err(out_of_order("rows")),
            ApplyPhase::Given(_) => return self.given()?.begin(begin),
            ApplyPhase::Result(index) => (index, true),
            ApplyPhase::Download(index) => (index, false),
        };
        self.switch_triggers()?;
        let connection = &self.database.connection;
        let subscription = &mut self.subscriptions[index];
        subscription.lacks_history |= !begin.ranges.is_empty() && !begin.follows_changes;
        let is_untracked = subscription.state.compare_due != CompareDue::No
            && compare::is_untracked(connection, &begin.table).doing("looking at a table")?;
        let mut table = if result {
            TableApply::for_result(connection, &subscription.state, begin)?
        } else {
            let added = subscription
                .added_columns
                .iter()
                .find(|(table, _)| *table == begin.table);
            let mut added = added.map_or_else(Vec::new, |(_, columns)| columns.clone());
            if is_untracked {
                let fillers = compare::fillers(connection, &begin.table);
                added.extend(fillers.doing("looking at a table")?);
            }
            TableApply::for_download(connection, &subscription.state, begin, &added)?
        };
        table.is_untracked = is_untracked;
        table.is_forgotten = is_untracked
            && compare::is_forgotten(connection, &begin.table).doing("looking at a table")?;
        if !result {
            table.follows_changes = begin.follows_changes;
            table.deletes_unknown = begin.deletes_unknown;
            table.only_tells = self.only_tells;
            table.verifies = subscription.state.compares
                && subscription.state.compare_due == CompareDue::Verify
                && !self.only_tells;
        }
        if begin.keyless_rows > 0 && !result {
            compared_tables::tell_keyless(&mut self.summary, &begin.table, begin.keyless_rows);
        }
        if begin.replace && !result {
            if table.is_untracked || !begin.ranges.is_empty() {
                compared_tables::begin(connection, &mut table, &begin.ranges)?;
            } else {
                table.aside = OwnValues::keep(connection, table.table())?;
                remove::clear(connection, &mut table, &mut self.summary)?;
            }
        }
        self.table = Some(Box::new(table));
        Ok(())
    }

    /// Packed rows, cut anywhere; a partial row at the end is kept for the next call.
    /// Returns how many rows were complete.
    ///
    /// # Errors
    /// The bytes are not rows of the table, or SQLite failed.
    pub fn rows(&mut self, bytes: &[u8]) -> Result<u64, RemoteError> {
        if self.partial.is_empty() {
            let (count, consumed) = self.whole_rows(bytes)?;
            self.keep_rest(&bytes[consumed..])?;
            return Ok(count);
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let (count, consumed) = self.whole_rows(&joined)?;
        self.keep_rest(&joined[consumed..])?;
        Ok(count)
    }

    /// Applies the complete rows at the beginning of `bytes`; returns how many there were and
    /// how many bytes they took.
    fn whole_rows(&mut self, bytes: &[u8]) -> Result<(u64, usize), RemoteError> {
        if let (ApplyPhase::Given(_), Some(given)) = (self.phase, &mut self.uploads.given) {
            return given.rows(bytes, &mut self.summary);
        }
        let (ApplyPhase::Result(index) | ApplyPhase::Download(index), Some(table)) =
            (self.phase, &mut self.table)
        else {
            return Err(out_of_order("rows"));
        };
        let Some(shape) = table.shape.clone() else {
            return Ok((0, bytes.len()));
        };
        let mut sink = RowSink::new(
            &self.database.connection,
            &self.subscriptions[index].state,
            table,
            &mut self.summary,
        )?;
        let mut reader = RowsReader::new(&shape, bytes);
        let mut row = UnpackedRow::default();
        let mut count = 0;
        loop {
            match reader.next(&mut row) {
                Ok(true) => {}
                Ok(false) | Err(UnpackError::Truncated) => return Ok((count, reader.consumed())),
                Err(error) => return Err(sink.bad_rows(error.to_string())),
            }
            match (self.phase, row.op) {
                (ApplyPhase::Download(_), Some(Op::Upsert)) => sink.download(&row)?,
                (ApplyPhase::Download(_), Some(Op::Remove)) => sink.remove(&row.key)?,
                (ApplyPhase::Result(_), Some(Op::Refused)) => {
                    sink.refuse(&row)?;
                    let packed = row::pack_key(&sink.table.key_types, &row.key);
                    self.uploads
                        .refused
                        .insert((sink.table.name().to_owned(), packed));
                }
                (ApplyPhase::Result(_), Some(Op::ConflictRow)) => sink.take_conflict_row(&row)?,
                (ApplyPhase::Result(_), Some(Op::Made)) => sink.take_made(&row)?,
                (ApplyPhase::Result(_), Some(Op::Merged)) => sink.take_merged(&row)?,
                (ApplyPhase::Result(_), Some(Op::ConflictGone)) => {
                    sink.take_conflict_removal(&row.key)?
                }
                (_, op) => return Err(sink.bad_rows(format!("{op:?} has no place here"))),
            }
            count += 1;
        }
    }

    /// The beginning of a row waits for the rest.
    fn keep_rest(&mut self, rest: &[u8]) -> Result<(), RemoteError> {
        if rest.len() > MAX_ROW_BYTES {
            return Err(RemoteError::BadRows {
                table: self
                    .table
                    .as_ref()
                    .map_or("", |table| table.name())
                    .to_owned(),
                what: "a row is longer than the limit".into(),
            });
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    /// The download broke off here, and was gone on with: of the table that was coming more may come,
    /// after changes of those before it. Until then it has not lost what did not come.
    ///
    /// # Errors
    /// It broke off in the middle of a row, or SQLite failed.
    pub fn download_goes_on(&mut self) -> Result<(), RemoteError> {
        if let Some(halted) = self.halted.take() {
            let coming = self.table.take();
            self.finish_halted(halted)?;
            self.table = coming;
        }
        match self.partial.is_empty() {
            true => self.halted = self.table.take(),
            // This says what is wrong.
            false => self.finish_table()?,
        }
        Ok(())
    }

    /// Nothing more comes of a table that was broken off.
    pub(super) fn finish_halted(&mut self, halted: Box<TableApply>) -> Result<(), RemoteError> {
        self.table = Some(halted);
        self.finish_table()
    }

    /// Ends the rows of a table: what a replaced table still had to lose goes.
    pub(super) fn finish_table(&mut self) -> Result<(), RemoteError> {
        let table = self.table.take();
        if !self.partial.is_empty() {
            let name = table.as_ref().map_or("", |table| table.name());
            return Err(RemoteError::BadRows {
                table: name.to_owned(),
                what: "they end in the middle of a row".into(),
            });
        }
        let Some(mut table) = table else {
            return Ok(());
        };
        if let ApplyPhase::Download(index) = self.phase {
            let state = &self.subscriptions[index].state;
            let connection = &self.database.connection;
            let mut sink = RowSink::new(connection, state, &mut table, &mut self.summary)?;
            if sink.table.is_compared {
                sink.end_compared()?;
            } else {
                sink.evict_unseen()?;
            }
            drop(sink);
            self.summary.removals += table.missing;
            self.summary.end_table(table.name());
            if let Some(aside) = table.aside.take() {
                aside.put_back(connection)?;
            }
        }
        Ok(())
    }
}
