//! The result of an upload: what was refused is parked, what lost gives way to the centre's
//! row, and everything else stops being pending.

use rusqlite::{Connection, params};
use tidewater_protocol::{Datum, Op, PublicationSchema, UnpackedRow, Value};

use super::rows::RowSink;
use super::summary::ROWS_TOLD;
use super::{ApplySummary, ConflictSummary};
use crate::database::changes::PARKED;
use crate::database::conflicts::{self, ChangeImages, ChangeOutcome};
use crate::database::kept_uploads::GivenBackUpload;
use crate::database::refused::settled_changes::SettledEnd;
use crate::database::refused::{self, NewRefusal, TIME_UNKNOWN};
use crate::database::tables::{TABLES_AT_ONCE, change_table, rekeyed_table};
use crate::database::{SubscriptionState, changes, quote, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "applying the result of an upload";

/// The taken upload is acknowledged: what is left of its generation is no longer pending.
pub(super) fn acknowledge(
    connection: &Connection,
    subscription: &mut SubscriptionState,
) -> Result<(), RemoteError> {
    let Some(generation) = subscription.taken_generation else {
        return Ok(());
    };
    if subscription.any_unsettled {
        refused::settled_changes::acknowledged(connection, &subscription.publication, generation)
            .doing(DOING)?;
    }
    if let Some(schema) = &subscription.schema {
        if subscription.any_refused {
            refused::settle_written(connection, subscription, generation)?;
        }
        forget(connection, schema, generation)?;
    }
    connection
        .prepare_cached(
            "UPDATE tidewater_subscription SET sequence = sequence + 1, \
             upload_id = taken_upload_id, taken_generation = NULL, taken_upload_id = NULL \
             WHERE id = ?1",
        )
        .and_then(|mut statement| statement.execute([subscription.id]))
        .doing(DOING)?;
    subscription.sequence += 1;
    subscription.upload_id = subscription.taken.take();
    subscription.taken_generation = None;
    Ok(())
}

/// A given-back upload is acknowledged under the next number. What was taken waits on.
pub(super) fn acknowledge_given(
    connection: &Connection,
    subscription: &mut SubscriptionState,
    giving: GivenBackUpload,
) -> Result<(), RemoteError> {
    connection
        .execute(
            "UPDATE tidewater_subscription SET sequence = sequence + 1, upload_id = ?2 \
             WHERE id = ?1",
            params![subscription.id, giving.upload_id.0],
        )
        .doing(DOING)?;
    subscription.sequence += 1;
    subscription.upload_id = Some(giving.upload_id);
    subscription.giving = None;
    Ok(())
}

/// What is left of a generation is no longer pending.
pub(in crate::database) fn forget(
    connection: &Connection,
    schema: &PublicationSchema,
    generation: i64,
) -> Result<(), RemoteError> {
    let tables = schema.tables.iter().flat_map(|table| {
        let names = [change_table(&table.name), rekeyed_table(&table.name)];
        names.map(|name| quote::name(&name))
    });
    let tables: Vec<String> = tables.collect();
    for tables in tables.chunks(TABLES_AT_ONCE) {
        for table in not_empty(connection, tables).doing(DOING)? {
            forget_generation(connection, table, generation).doing(DOING)?;
        }
    }
    Ok(())
}

/// Those of the tables that have any row.
fn not_empty<'t>(
    connection: &Connection,
    tables: &'t [String],
) -> rusqlite::Result<Vec<&'t String>> {
    let sql = quote::list(
        tables.iter().enumerate(),
        " UNION ALL ",
        |(index, table)| format!("SELECT {index} WHERE EXISTS (SELECT 1 FROM {table})"),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map([], |row| row.get::<_, usize>(0))?;
    found.map(|index| Ok(&tables[index?])).collect()
}

fn forget_generation(
    connection: &Connection,
    change: &str,
    generation: i64,
) -> rusqlite::Result<()> {
    let others: bool = connection
        .prepare_cached(&format!(
            "SELECT EXISTS (SELECT 1 FROM {change} WHERE generation <> ?1)"
        ))?
        .query_row([generation], |row| row.get(0))?;
    if others {
        connection
            .prepare_cached(&format!("DELETE FROM {change} WHERE generation = ?1"))?
            .execute([generation])?;
    } else {
        // Without a condition SQLite drops all pages at once.
        connection
            .prepare_cached(&format!("DELETE FROM {change}"))?
            .execute([])?;
    }
    Ok(())
}

/// A change lost against the centre.
pub(super) fn note_conflict(summary: &mut ApplySummary, table: &str, key: &[Datum<'_>]) {
    summary.conflicts += 1;
    if summary.conflict_rows.len() < ROWS_TOLD {
        summary.conflict_rows.push(ConflictSummary {
            table: table.to_owned(),
            key: row::readable_key(key),
        });
    }
}

impl RowSink<'_> {
    /// A change that the centre refused.
    pub(super) fn refuse(&mut self, refused_row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        let key: Vec<Value> = refused_row.key.iter().map(Datum::to_value).collect();
        let readable = row::readable_key(&refused_row.key);
        let Some(taken) = self.subscription.taken_generation else {
            return Ok(());
        };
        let names = &self.table.names;
        let later = changes::later_than(self.connection, names, &key, taken).doing(DOING)?;
        match later {
            // It was changed again: the later change takes over the pre-image and goes up
            // with the next upload.
            Some(later) => {
                changes::move_to(self.connection, names, &key, taken, later).doing(DOING)?;
                let id = self.write_refused(refused_row, &readable)?;
                if self.subscription.is_transactional() {
                    // The transaction that changed it again takes the rest of this one along.
                    self.tell_refused(refused_row, &readable);
                    return Ok(());
                }
                let end = SettledEnd {
                    at_ms: Some(TIME_UNKNOWN),
                    ..SettledEnd::retried(later)
                };
                refused::settled_changes::settle(self.connection, id, &end).doing(DOING)
            }
            None => self.park(refused_row, taken, &key, &readable),
        }
    }

    fn park(
        &mut self,
        refused_row: &UnpackedRow<'_>,
        taken: i64,
        owned: &[Value],
        readable: &str,
    ) -> Result<(), RemoteError> {
        let names = &self.table.names;
        if !changes::has_change(self.connection, names, owned, taken).doing(DOING)? {
            // Not a change of ours: there is nothing to keep.
            return Ok(());
        }
        changes::move_to(self.connection, names, owned, taken, PARKED).doing(DOING)?;
        self.write_refused(refused_row, readable)?;
        self.tell_refused(refused_row, readable);
        Ok(())
    }

    fn tell_refused(&mut self, refused_row: &UnpackedRow<'_>, readable: &str) {
        self.summary
            .note_refused(self.table.name(), readable, refused_row.reason);
    }

    /// Writes a refusal down; the number of its entry.
    fn write_refused(
        &self,
        refused_row: &UnpackedRow<'_>,
        readable: &str,
    ) -> Result<i64, RemoteError> {
        let packed = row::pack_key(&self.table.key_types, &refused_row.key);
        refused::supersede(self.connection, self.table.name(), &packed)?;
        refused::record(
            self.connection,
            &NewRefusal {
                publication: &self.subscription.publication,
                table: self.table.name(),
                key: readable,
                key_packed: &packed,
                operation: match refused_row.refused_op {
                    Some(Op::Insert) => "insert",
                    Some(Op::Delete) => "delete",
                    _ => "update",
                },
                code: &refused::code_name(refused_row.code),
                reason: refused_row.reason,
                sequence: self.subscription.sequence + 1,
                row_values: None,
            },
        )
        .doing(DOING)?;
        Ok(self.connection.last_insert_rowid())
    }

    /// A change that lost against a row of the centre.
    pub(super) fn take_conflict_row(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        if !self.forget_lost(&row.key, Some(&row.new))? {
            return Ok(());
        }
        if self.table.same_layout {
            // Nobody recorded what was written over the change that lost.
            self.keep_untracked(&row.key, Some(&row.new))?;
            self.write(&row.new, &row.key).map(drop)
        } else {
            // The row is of an older schema; it comes again in the new one.
            self.mark_stale(&row.key)
        }
    }

    /// A change that lost against a delete in the centre.
    pub(super) fn take_conflict_removal(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        if self.forget_lost(key, None)? {
            self.keep_untracked(key, None)?;
            self.take_away(key)?;
        }
        Ok(())
    }

    /// Forgets a change that lost; whether the centre's row may take its place. A later change
    /// keeps its own pre-image, so that it will lose too, and the row is asked for.
    fn forget_lost(
        &mut self,
        key: &[Datum<'_>],
        theirs: Option<&[Datum<'_>]>,
    ) -> Result<bool, RemoteError> {
        note_conflict(self.summary, self.table.name(), key);
        self.record_conflict(key, theirs, ChangeOutcome::Lost)?;
        let Some(taken) = self.subscription.taken_generation else {
            return Ok(false);
        };
        if self.subscription.any_unsettled {
            let packed = row::pack_key(&self.table.key_types, key);
            refused::settled_changes::lost(self.connection, self.table.name(), &packed, taken)
                .doing(DOING)?;
        }
        let owned: Vec<Value> = key.iter().map(Datum::to_value).collect();
        let names = &self.table.names;
        let pair = changes::rekeyed(self.connection, names, taken, &owned).doing(DOING)?;
        changes::forget(self.connection, names, &owned, taken).doing(DOING)?;
        if let Some(pair) = pair {
            // The centre has nothing under the new key.
            let types = self.table.key_types.clone();
            self.take_away(&row::datums(&types, &pair.new))?;
        }
        if self.newest_change(key)?.is_some() {
            self.mark_stale(key)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Writes down what the change was that met somebody else's, before anything of it goes.
    pub(super) fn record_conflict(
        &mut self,
        key: &[Datum<'_>],
        theirs: Option<&[Datum<'_>]>,
        outcome: ChangeOutcome,
    ) -> Result<(), RemoteError> {
        let Some(taken) = self.subscription.taken_generation else {
            return Ok(());
        };
        let (table, connection) = (self.table.table(), self.connection);
        let key: Vec<Value> = key.iter().map(Datum::to_value).collect();
        let record = || -> rusqlite::Result<()> {
            let Some(images) = ChangeImages::from_taken(connection, table, &key, taken)? else {
                // Not a change of ours: there is nothing to keep.
                return Ok(());
            };
            let columns = self.table.result_columns.iter().map(String::as_str);
            let theirs = theirs.map(|row| conflicts::object(columns.zip(row)));
            let place = (&*self.subscription.publication, &*table.name);
            images.record(connection, place, theirs.as_deref(), outcome)
        };
        record().doing("recording a conflict")
    }
}
