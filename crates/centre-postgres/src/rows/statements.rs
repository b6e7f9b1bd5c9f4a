//! Inserts, updates and deletes by set-based statements over array parameters.
//!
//! A batch is one statement in a savepoint. What fails is bisected to the single row; what the
//! statement passed over is told.

use std::collections::{BTreeSet, HashSet};

use tokio_postgres::{Row as ResultRow, Statement};

use tidewater_protocol::{Code, ColumnType, Datum, Op, UnpackedRow, pack};

use super::execute::StatementOutcome;
use super::fitness::{obstacle, unfit};
use super::sql::{self, PostgresIncomingTable};
use super::{Result, UploadRows};
use crate::array::Array;
use crate::decoder::{RowDecoder, recycle};
use crate::driver_error::statement_failed;
use crate::publication::{PostgresTables, ServedTable};
use crate::rows::execute::as_parameters;
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::refusal_reason::{FailedRow, RefusalReason};
use tidewater_centre::engine::upload::upload_writer::{
    BatchOutcome, CentralRow, MetRow, RowBatch, RowImage,
};
use tidewater_centre::error::CentreError;

/// The most rows of one statement.
const BATCH_ROWS: usize = 2_000;
/// The most bytes of one statement's parameters, unless one row has more.
const BATCH_BYTES: usize = 4 << 20;
/// Around what may have to be undone: what triggers that fire before an insert do, and rows that
/// are only applied together.
pub(super) const GUARD: &str = "SAVEPOINT tidewater_guard";
pub(super) const KEEP: &str = "RELEASE tidewater_guard";
pub(super) const UNDO: &str = "ROLLBACK TO tidewater_guard; RELEASE tidewater_guard";

/// One statement for rows of a batch.
struct BatchStatement<'b, 'u> {
    table: &'b PostgresIncomingTable<'u>,
    op: Op,
    changed: &'b [usize],
    /// Inserts that find a unique value taken fail.
    is_strict: bool,
    statement: Statement,
    /// Inserts may have to be undone.
    is_guarded: bool,
    /// Updates give rows other keys.
    gives_keys: bool,
    /// Deletes that a trigger keeps from happening are told apart from those that do not find their
    /// rows as they expect them.
    finds_kept: bool,
    /// See [`RowBatch::insists`].
    insists: bool,
}

impl UploadRows<'_> {
    /// See [`Rows::write`](tidewater_centre::engine::upload::upload_writer::UploadWriter::write).
    pub(super) async fn write_batch(
        &mut self,
        batch: &RowBatch<'_, '_, PostgresTables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        let &RowBatch {
            table,
            op,
            changed,
            insists,
            key,
        } = batch;
        let live = self.live(table.table);
        let is_strict = insists && op == Op::Insert;
        let text = match op {
            Op::Insert => sql::insert(table, !is_strict && !live.defers_unique),
            Op::Update => sql::update(table, changed, 1, insists.then_some(key)),
            _ => sql::delete(table, 1, insists),
        };
        let writing = BatchStatement {
            table,
            op,
            changed,
            is_strict,
            statement: self.connection.prepare(&text, &[]).await?,
            is_guarded: op == Op::Insert && live.edits_inserts,
            gives_keys: changed.iter().any(|it| table.table.key.contains(it)),
            // What policies keep from a role, no trigger has kept.
            finds_kept: op == Op::Delete
                && live.keeps_deletes
                && !(self.acting.is_another() && live.has_policies),
            insists,
        };
        let mut written = BatchOutcome::default();
        let mut rest = rows;
        while !rest.is_empty() {
            // What fails is told apart from what is passed over by itself.
            let count = if is_strict { 1 } else { batch_size(rest) };
            let (some, after) = rest.split_at(count);
            self.bisect(&writing, some, &mut written).await?;
            rest = after;
        }
        Ok(written)
    }

    /// Runs a batch, and what fails again in halves.
    async fn bisect(
        &mut self,
        writing: &BatchStatement<'_, '_>,
        batch: &[RowRef],
        written: &mut BatchOutcome,
    ) -> Result<()> {
        let &BatchStatement {
            table,
            op,
            changed,
            is_strict,
            is_guarded,
            gives_keys,
            finds_kept,
            insists,
            ..
        } = writing;
        let mut waiting = vec![batch.to_vec()];
        let mut is_whole = true;
        while let Some(rows) = waiting.pop() {
            let rows = rows.as_slice();
            let parameters = parameters(table, op, changed, rows)?;
            if is_guarded || gives_keys {
                self.savepoint(GUARD).await?;
            }
            let expected = match finds_kept {
                true => self.lock_deletable(table, rows, insists).await?,
                false => Vec::new(),
            };
            let executed = self.execute(&writing.statement, &parameters).await?;
            if gives_keys {
                let is_elsewhere = matches!(&executed, StatementOutcome::Rows(result)
                    if result.iter().any(|row| !row.get::<_, bool>(1)));
                self.savepoint(if is_elsewhere { UNDO } else { KEEP })
                    .await?;
                if is_elsewhere {
                    split_or_fail(rows, &mut waiting, written, kept_from_its_key(table));
                    continue;
                }
            }
            if is_guarded {
                if let StatementOutcome::Rows(result) = &executed
                    && let Some(others) = again(table, rows, result, is_strict, written)?
                {
                    self.savepoint(UNDO).await?;
                    waiting.extend(others);
                    continue;
                }
                self.savepoint(KEEP).await?;
            }
            match executed {
                StatementOutcome::Rows(result)
                    if is_guarded && has_other_keys(table, rows, &result)? =>
                {
                    written.elsewhere.extend(rows);
                }
                StatementOutcome::Rows(result) => {
                    let passed_over = passed_over(table, op, rows, &result)?;
                    written.applied += (rows.len() - passed_over.len()) as u64;
                    if is_guarded {
                        let passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
                        let done = rows.iter().filter(|at| !passed_over.contains(at));
                        let done: Vec<RowRef> = done.copied().collect();
                        self.log_moved(table, &done).await?;
                    }
                    let (kept, passed_over) = passed_over
                        .into_iter()
                        .partition(|at| expected.contains(at));
                    written.kept.extend::<Vec<RowRef>>(kept);
                    pass_over(written, table, is_strict, passed_over);
                }
                StatementOutcome::Failed(refusal) => match rows {
                    // Nothing was passed over, so it may be the key that is taken.
                    [at] if op == Op::Insert
                        && !is_strict
                        && refusal.code == Code::RowKeyInUse
                        && self.live(table.table).defers_unique =>
                    {
                        written.passed_over.push(*at);
                    }
                    rows => {
                        let suspects = match std::mem::take(&mut is_whole) {
                            true => self.suspects(table, op, changed, rows, &parameters).await?,
                            false => Vec::new(),
                        };
                        match suspects.is_empty() {
                            true => split_or_fail(rows, &mut waiting, written, refusal),
                            false => set_apart(rows, &suspects, &mut waiting),
                        }
                    }
                },
                StatementOutcome::Denied(refusal) => {
                    let failed = rows.iter().map(|&at| FailedRow::new(at, refusal.clone()));
                    written.failed.extend(failed);
                }
            }
        }
        Ok(())
    }

    pub(super) async fn savepoint(&self, sql: &str) -> Result<()> {
        self.batch_execute("applying rows of an upload", sql).await
    }

    /// Sees to it that rows which a trigger put into another partition leave those who hold the
    /// one that they were uploaded into, the uploader first of all.
    pub(super) async fn log_moved(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        inserted: &[RowRef],
    ) -> Result<()> {
        let logs = sql::log_moved(table);
        if logs.is_empty() || inserted.is_empty() {
            return Ok(());
        }
        let arrays = parameters(table, Op::Insert, &[], inserted)?;
        for sql in logs {
            let statement = self.connection.prepare(&sql, &[]).await?;
            let client = self.connection.client();
            let logged = client.execute(&statement, &as_parameters(&arrays)).await;
            logged.map_err(statement_failed("logging uploaded rows"))?;
        }
        Ok(())
    }

    /// See [`Rows::find`](tidewater_centre::engine::upload::upload_writer::UploadWriter::find).
    pub(super) async fn read_by_key(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        op: Op,
        rows: &[RowRef],
        image: RowImage,
    ) -> Result<Vec<Option<MetRow>>> {
        // A key that no row of the centre can have is that of no row.
        let mut possible = Vec::with_capacity(rows.len());
        let mut places = Vec::with_capacity(rows.len());
        table.rows(rows, |at, row| {
            if is_possible_key(table.table, &key_of(table, row, image)) {
                possible.push(rows[at]);
                places.push(at);
            }
            Ok(())
        })?;
        let statement = sql::read_by_key(table, op);
        let statement = self.connection.prepare(&statement, &[]).await?;
        let arrays = read_parameters(table, op, &possible, image)?;
        let client = self.connection.client();
        let parameters = as_parameters(&arrays);
        let result = self
            .acting
            .run(client, client.query(&statement, &parameters))
            .await;
        let what = "reading rows that an upload met";
        let result = result.map_err(|error| self.acting.unreadable(what, error))?;
        let mut found: Vec<Option<&ResultRow>> = vec![None; possible.len()];
        for row in &result {
            found[ordinal(row, 0)] = Some(row);
        }
        let columns = || table.table.read_columns();
        let types: Vec<ColumnType> = columns().map(|it| it.kind.column_type(it.scale)).collect();
        let mut decoder = RowDecoder::new(columns().map(|it| it.kind));
        let mut met: Vec<Option<MetRow>> = Vec::new();
        met.resize_with(rows.len(), || None);
        for (row, &place) in found.iter().zip(&places) {
            let Some(row) = row else { continue };
            let mut central = Vec::with_capacity(types.len());
            decoder.result(row, 2, &mut central)?;
            met[place] = Some(MetRow {
                is_as_uploaded: row.get::<_, Option<bool>>(1) == Some(true),
                central: CentralRow::pack(&types, central),
            });
        }
        Ok(met)
    }

    /// Locks rows against changes.
    pub(super) async fn lock_by_key(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        rows: &[RowRef],
    ) -> Result<()> {
        let mut possible = rows.to_vec();
        let mut is_possible = Vec::with_capacity(rows.len());
        table.rows(rows, |_, row| {
            is_possible.push(is_possible_key(
                table.table,
                &key_of(table, row, RowImage::Old),
            ));
            Ok(())
        })?;
        let mut is_possible = is_possible.into_iter();
        possible.retain(|_| is_possible.next() == Some(true));
        let statement = self.connection.prepare(&sql::lock(table), &[]).await?;
        let arrays = read_parameters(table, Op::Delete, &possible, RowImage::Old)?;
        let client = self.connection.client();
        let parameters = as_parameters(&arrays);
        let locking = client.query(&statement, &parameters);
        let locked = self.acting.run(client, locking).await;
        let what = "locking rows that a script is to change";
        locked
            .map(drop)
            .map_err(|error| self.acting.unreadable(what, error))
    }

    /// Locks those of some rows that a delete finds as it expects them.
    async fn lock_deletable(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let text = sql::deletable(table, insists);
        let statement = self.connection.prepare(&text, &[]).await?;
        let mut found = Vec::new();
        let mut rest = rows;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(batch_size(rest));
            rest = after;
            let arrays = parameters(table, Op::Delete, &[], some)?;
            let client = self.connection.client();
            let result = client.query(&statement, &as_parameters(&arrays)).await;
            let result = result.map_err(statement_failed("looking for rows to delete"))?;
            found.extend(result.iter().map(|row| some[ordinal(row, 0)]));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// See [`UploadWriter::find_rows_with_children`](tidewater_centre::engine::upload::upload_writer::UploadWriter::find_rows_with_children).
    pub(super) async fn look_for_children(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let found = self.lock_deletable(table, rows, insists).await?;
        if found.is_empty() {
            return Ok(found);
        }
        // Only now, when nobody can add children any more.
        let statement = self.connection.prepare(&sql::parents(table), &[]).await?;
        let arrays = read_parameters(table, Op::Delete, &found, RowImage::Old)?;
        let client = self.connection.client();
        let result = client.query(&statement, &as_parameters(&arrays)).await;
        let result = result.map_err(statement_failed("looking for children of rows to delete"))?;
        Ok(result.iter().map(|row| found[ordinal(row, 0)]).collect())
    }
}

/// Suspects are tried one by one, after the others.
fn set_apart(rows: &[RowRef], suspects: &[RowRef], waiting: &mut Vec<Vec<RowRef>>) {
    let suspects: BTreeSet<RowRef> = suspects.iter().copied().collect();
    waiting.extend(suspects.iter().rev().map(|&at| vec![at]));
    let mut others = rows.to_vec();
    others.retain(|at| !suspects.contains(at));
    if !others.is_empty() {
        waiting.push(others);
    }
}

/// Rows that fail together are tried in halves.
fn split_or_fail(
    rows: &[RowRef],
    waiting: &mut Vec<Vec<RowRef>>,
    written: &mut BatchOutcome,
    refusal: RefusalReason,
) {
    if let &[at] = rows {
        written.failed.push(FailedRow::new(at, refusal));
        return;
    }
    let (left, right) = rows.split_at(rows.len() / 2);
    waiting.push(right.to_vec());
    waiting.push(left.to_vec());
}

fn kept_from_its_key(table: &PostgresIncomingTable<'_>) -> RefusalReason {
    RefusalReason {
        code: Code::RowConstraint,
        reason: format!(
            "a trigger of {} keeps the row from its new key",
            table.table.title
        ),
        database_code: None,
    }
}

/// The key of an uploaded row as it is, or as it is to be.
fn key_of<'a>(
    table: &PostgresIncomingTable<'_>,
    row: &UnpackedRow<'a>,
    image: RowImage,
) -> Vec<Datum<'a>> {
    if image == RowImage::Old || row.new.is_empty() {
        return row.key.clone();
    }
    let key = table.map.shape.key.iter();
    key.map(|&column| row.new[column]).collect()
}

/// Notes rows that a statement did nothing about. Of an insert that looks at nothing else, it was a
/// trigger.
fn pass_over(
    written: &mut BatchOutcome,
    table: &PostgresIncomingTable<'_>,
    is_strict: bool,
    rows: Vec<RowRef>,
) {
    if !is_strict {
        return written.passed_over.extend(rows);
    }
    let refusal = RefusalReason {
        code: Code::RowConstraint,
        reason: format!("a trigger of {} ignored the row", table.table.title),
        database_code: None,
    };
    let failed = rows.into_iter();
    let failed = failed.map(|at| FailedRow::new(at, refusal.clone()));
    written.failed.extend(failed);
}

/// How many rows of a list go into one statement.
pub(super) fn batch_size(refs: &[RowRef]) -> usize {
    // A row's distance to the next tells its size closely enough.
    let mut bytes = 0;
    for (index, pair) in refs.windows(2).take(BATCH_ROWS - 1).enumerate() {
        bytes += pair[0].distance(pair[1]);
        if bytes > BATCH_BYTES {
            return index + 1;
        }
    }
    refs.len().min(BATCH_ROWS)
}

/// Inserts into a table with triggers that fire before them have to be undone if not all of
/// them came to something, or under other keys: which one a trigger gave another key cannot
/// be told of several, and what it did about a row that was passed over must not stay. Gives
/// those that are to be done again.
fn again(
    table: &PostgresIncomingTable<'_>,
    rows: &[RowRef],
    result: &[ResultRow],
    is_strict: bool,
    written: &mut BatchOutcome,
) -> Result<Option<Vec<Vec<RowRef>>>> {
    if has_other_keys(table, rows, result)? {
        let one_by_one = rows.chunks(1).rev().map(<[RowRef]>::to_vec);
        return Ok((rows.len() > 1).then(|| one_by_one.collect()));
    }
    let passed_over = passed_over(table, Op::Insert, rows, result)?;
    if passed_over.is_empty() {
        return Ok(None);
    }
    let is_passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
    let mut others = rows.to_vec();
    others.retain(|at| !is_passed_over.contains(at));
    pass_over(written, table, is_strict, passed_over);
    Ok(Some(match others.is_empty() {
        true => Vec::new(),
        false => vec![others],
    }))
}

/// Whether a trigger of the centre gave an inserted row another key than the remote's.
fn has_other_keys(
    table: &PostgresIncomingTable<'_>,
    rows: &[RowRef],
    result: &[ResultRow],
) -> Result<bool> {
    let mut inserted = inserted_keys(table, result)?;
    let types = key_types(table);
    let mut packed = Vec::new();
    table.rows(rows, |_, row| {
        packed.clear();
        pack::pack_values(&mut packed, &types, &row.key);
        inserted.remove(&packed);
        Ok(())
    })?;
    Ok(!inserted.is_empty())
}

fn key_types(table: &PostgresIncomingTable<'_>) -> Vec<ColumnType> {
    let table = table.table;
    let columns = table.key.iter().map(|&it| &table.columns[it]);
    columns
        .map(|column| column.kind.column_type(column.scale))
        .collect()
}

/// The packed keys that an insert gave back.
fn inserted_keys(
    incoming: &PostgresIncomingTable<'_>,
    result: &[ResultRow],
) -> Result<HashSet<Vec<u8>>> {
    let table = incoming.table;
    let types = key_types(incoming);
    let mut decoder = RowDecoder::new(table.key.iter().map(|&it| table.columns[it].kind));
    let mut inserted = HashSet::with_capacity(result.len());
    let mut key = Vec::new();
    for row in result {
        let mut values = recycle(key);
        decoder.result(row, 0, &mut values)?;
        let mut packed = Vec::new();
        pack::pack_values(&mut packed, &types, &values);
        inserted.insert(packed);
        key = recycle(values);
    }
    Ok(inserted)
}

/// Whether a row can have this key.
fn is_possible_key(table: &ServedTable, key: &[Datum<'_>]) -> bool {
    let mut encoded = Vec::new();
    let columns = table.key.iter().map(|&index| &table.columns[index]);
    columns.zip(key).all(|(column, value)| {
        obstacle(column, true, value).is_none() && column.kind.encode(value, &mut encoded).is_ok()
    })
}

/// Ordinals count from 1.
pub(super) fn ordinal(row: &ResultRow, column: usize) -> usize {
    row.get::<_, i64>(column) as usize - 1
}

/// The array parameters of a statement, column by column.
pub(super) fn parameters(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    changed: &[usize],
    rows: &[RowRef],
) -> Result<Vec<Array>> {
    let columns = &incoming.table.columns;
    let images = sql::images(incoming, op, changed);
    let arrays = images.iter();
    let mut arrays: Vec<Array> = arrays
        .map(|&(_, index)| Array::new(columns[index].kind))
        .collect();
    incoming.images(rows, |_, uploaded| {
        for (array, &(image, index)) in arrays.iter_mut().zip(&images) {
            let values = match image {
                RowImage::Old => uploaded.old,
                RowImage::New => uploaded.new,
            };
            let value = values.map_or(&Datum::Null, |values| &values[index]);
            array.push(value).map_err(|_| CentreError::Internal {
                message: format!("{} was to be sent", unfit(&columns[index], value)),
            })?;
        }
        Ok(())
    })?;
    Ok(arrays)
}

/// The rows of a batch that a statement did nothing about.
fn passed_over(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    rows: &[RowRef],
    result: &[ResultRow],
) -> Result<Vec<RowRef>> {
    if result.len() == rows.len() {
        return Ok(Vec::new());
    }
    if op != Op::Insert {
        let mut done = vec![false; rows.len()];
        for row in result {
            done[ordinal(row, 0)] = true;
        }
        let undone = rows.iter().zip(done).filter(|(_, done)| !done);
        return Ok(undone.map(|(at, _)| *at).collect());
    }
    // An insert can only give back what is in the table: the keys.
    let types = key_types(incoming);
    let inserted = inserted_keys(incoming, result)?;
    let mut passed_over = Vec::new();
    let mut packed = Vec::new();
    incoming.rows(rows, |at, row| {
        packed.clear();
        pack::pack_values(&mut packed, &types, &row.key);
        if !inserted.contains(&packed) {
            passed_over.push(rows[at]);
        }
        Ok(())
    })?;
    Ok(passed_over)
}

/// The parameters of [`sql::read_by_key`]: the keys of an image, and what is compared with.
fn read_parameters(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    rows: &[RowRef],
    image: RowImage,
) -> Result<Vec<Array>> {
    let (columns, key) = (&incoming.table.columns, &incoming.table.key);
    let compared = sql::compared(incoming, op);
    let arrays = key.iter().chain(&compared);
    let mut arrays: Vec<Array> = arrays
        .map(|&index| Array::new(columns[index].kind))
        .collect();
    incoming.rows(rows, |_, row| {
        let (keys, others) = arrays.split_at_mut(key.len());
        for (array, value) in keys.iter_mut().zip(&key_of(incoming, row, image)) {
            // They were looked at.
            let _ = array.push(value);
        }
        let mut buffer = Vec::new();
        let values = match row.new.is_empty() {
            true => &row.old,
            false => &row.new,
        };
        let values = incoming.arranged(values, &mut buffer);
        for (array, &index) in others.iter_mut().zip(&compared) {
            // New images were looked at; an unfit old one is not compared.
            if array.push(&values[index]).is_err() {
                let _ = array.push(&Datum::Null);
            }
        }
        Ok(())
    })?;
    Ok(arrays)
}
