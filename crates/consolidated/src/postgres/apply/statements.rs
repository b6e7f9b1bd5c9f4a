//! Inserts, updates and deletes by set-based statements over array parameters.
//!
//! A batch is one statement in a savepoint. What fails is bisected to the single row;
//! what the statement passed over is read by its key and classified.

use std::collections::{BTreeSet, HashMap, HashSet};

use futures_util::future;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row as ResultRow, Statement};

use tidewater_protocol::{Code, ColumnType, Datum, Op, Row, pack};

use super::incoming::{Incoming, RowRef, is_exact, obstacle, unfit};
use super::outcomes::{Outcomes, Uploaded, is_data_error, may_be_data_error, reason};
use super::sql;
use crate::engine::upload::DOWNLOAD_ONLY;
use crate::error::CentreError;
use crate::postgres::array::Array;
use crate::postgres::connection::{Connection, centre_error, refused};
use crate::postgres::rows::{RowDecoder, recycle};
use crate::postgres::scope::Membership;

/// The most rows of one statement.
const BATCH_ROWS: usize = 2_000;
/// The most bytes of one statement's parameters, unless one row has more.
const BATCH_BYTES: usize = 4 << 20;
/// Around what may have to be undone: what triggers that fire before an insert do, and rows that
/// are only applied together.
pub(super) const GUARD: &str = "SAVEPOINT tidewater_guard";
pub(super) const KEEP: &str = "RELEASE tidewater_guard";
pub(super) const UNDO: &str = "ROLLBACK TO tidewater_guard; RELEASE tidewater_guard";
/// Updates are told apart by the columns that they change, so that a user's
/// `UPDATE OF` triggers fire for those only; up to so many kinds of them.
const MAX_CHANGE_SETS: usize = 16;

/// A row that the database refused; it is tried again when everything else is in.
pub(super) struct Failed {
    pub(super) at: RowRef,
    pub(super) code: Code,
    pub(super) reason: String,
}

/// The state of applying the rows of one table.
pub(super) struct Statements<'c, 'u, 'p, 'm> {
    pub(super) connection: &'c mut Connection,
    pub(super) incoming: &'c Incoming<'u>,
    pub(super) outcomes: &'c mut Outcomes<'p>,
    pub(super) membership: Membership<'m>,
    /// Whether every row so far is in the centre as it was uploaded.
    pub(super) exact: &'c mut bool,
    /// Whether a restored centre has forgotten the upload.
    pub(super) given_back: bool,
    /// Updates that are tried again, and what they failed for. If one does not find its row as it
    /// was any more, that is what the rest of the upload did to it: nobody else has won.
    pub(super) earlier: HashMap<RowRef, (Code, String)>,
}

/// The outcome of a statement in a savepoint.
pub(super) enum Executed {
    Rows(Vec<ResultRow>),
    Failed(Code, String),
}

/// What the rows of one operation are sorted into before any statement.
#[derive(Default)]
pub(super) struct Sorted {
    /// To be done by a statement; for updates by the set of changed columns.
    pub(super) ready: Vec<(Vec<usize>, Vec<RowRef>)>,
    /// Cannot be done as they are; what they lost against has to be read.
    pub(super) lost: Vec<RowRef>,
}

impl Sorted {
    /// Those that can be done.
    pub(super) fn rows(&self) -> impl Iterator<Item = RowRef> {
        self.ready.iter().flat_map(|(_, rows)| rows).copied()
    }
}

impl Statements<'_, '_, '_, '_> {
    /// Applies rows of one operation; gives back those that the database refused.
    pub(super) async fn run(
        &mut self,
        op: Op,
        refs: &[RowRef],
    ) -> Result<Vec<Failed>, CentreError> {
        let sorted = self.sort(op, refs)?;
        let mut failed = Vec::new();
        for (changed, refs) in &sorted.ready {
            let text = match op {
                Op::Insert => sql::insert(self.incoming, !self.incoming.defers_unique),
                Op::Update => sql::update(self.incoming, changed, 1),
                _ => sql::delete(self.incoming, 1),
            };
            let statement = self.connection.prepare(&text, &[]).await?;
            let mut at = 0;
            while at < refs.len() {
                let count = self.batch_size(&refs[at..]);
                let batch = &refs[at..at + count];
                self.bisect(op, &statement, changed, batch, &mut failed)
                    .await?;
                at += count;
            }
        }
        self.classify(op, &sorted.lost, &mut failed).await?;
        failed.sort_by_key(|failed| failed.at);
        Ok(failed)
    }

    /// How many rows of a list go into one statement.
    pub(super) fn batch_size(&self, refs: &[RowRef]) -> usize {
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

    /// Tells what can be done from what cannot, and refuses what never will.
    pub(super) fn sort(&mut self, op: Op, refs: &[RowRef]) -> Result<Sorted, CentreError> {
        let mut sorted = Sorted::default();
        let mut sets: HashMap<Vec<usize>, usize> = HashMap::new();
        let (incoming, membership) = (self.incoming, &mut self.membership);
        let (outcomes, exact) = (&mut *self.outcomes, &mut *self.exact);
        let updatable = sql::updatable(incoming);
        // Reused from row to row.
        let (mut changed, mut encoded) = (Vec::new(), Vec::new());
        incoming.rows(refs, |at, row| {
            with_uploaded(incoming, row, |uploaded| {
                if outcomes.refuse_orphan(incoming, uploaded) {
                    return;
                }
                if let Some(new) = uploaded.new {
                    if let Some(reason) = unfit_value(incoming, new, &mut encoded) {
                        outcomes.refused(incoming, uploaded, Code::RowBadValue, &reason);
                        return;
                    }
                    if !membership.has(new) {
                        let reason = "this row is not in your partitions";
                        outcomes.refused(incoming, uploaded, Code::RowOutOfScope, reason);
                        return;
                    }
                    let columns = &incoming.table.columns;
                    *exact = *exact
                        && incoming
                            .written()
                            .all(|index| is_exact(&columns[index], &new[index]));
                }
                let lost = uploaded.old.is_some_and(|old| {
                    !membership.has(old) || unfit_value(incoming, old, &mut encoded).is_some()
                });
                changed.clear();
                if let (Some(old), Some(new)) = (uploaded.old, uploaded.new) {
                    let differs = |index: &usize| !pack::same(&old[*index], &new[*index]);
                    changed.extend(updatable.iter().copied().filter(differs));
                }
                if lost || (op == Op::Update && changed.is_empty()) {
                    sorted.lost.push(refs[at]);
                    return;
                }
                let set = match sets.get(&changed) {
                    Some(&set) => set,
                    None => {
                        if sets.len() >= MAX_CHANGE_SETS {
                            changed.clone_from(&updatable);
                        }
                        *sets.entry(changed.clone()).or_insert_with_key(|changed| {
                            sorted.ready.push((changed.clone(), Vec::new()));
                            sorted.ready.len() - 1
                        })
                    }
                };
                sorted.ready[set].1.push(refs[at]);
            });
            Ok(())
        })?;
        Ok(sorted)
    }

    /// Why a row that did not find its pre-image failed before, if it did.
    fn failed_before(&self, at: RowRef) -> Option<Failed> {
        let (code, reason) = self.earlier.get(&at)?.clone();
        Some(Failed { at, code, reason })
    }

    /// Runs a batch, and what fails again in halves.
    async fn bisect(
        &mut self,
        op: Op,
        statement: &Statement,
        changed: &[usize],
        batch: &[RowRef],
        failed: &mut Vec<Failed>,
    ) -> Result<(), CentreError> {
        let guarded = op == Op::Insert && self.incoming.edits_inserts;
        let mut waiting = vec![batch.to_vec()];
        let mut without_effect = Vec::new();
        while let Some(rows) = waiting.pop() {
            let rows = rows.as_slice();
            let parameters = self.parameters(op, changed, rows)?;
            if guarded {
                self.savepoint(GUARD).await?;
            }
            let executed = execute(self.connection, statement, &parameters).await?;
            if guarded {
                if let Executed::Rows(result) = &executed
                    && let Some(others) = self.again(rows, result, &mut without_effect)?
                {
                    self.savepoint(UNDO).await?;
                    waiting.extend(others);
                    continue;
                }
                self.savepoint(KEEP).await?;
            }
            match executed {
                Executed::Rows(result) if guarded && self.has_other_keys(rows, &result)? => {
                    self.kept_under_another_key(rows)?;
                }
                Executed::Rows(result) => {
                    let passed_over = self.passed_over(op, rows, &result)?;
                    self.outcomes
                        .applied(op, (rows.len() - passed_over.len()) as u64);
                    if op == Op::Insert && self.incoming.edits_inserts {
                        let passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
                        let done = rows.iter().filter(|at| !passed_over.contains(at));
                        let done: Vec<RowRef> = done.copied().collect();
                        self.log_moved(&done).await?;
                    }
                    self.classify(op, &passed_over, failed).await?;
                }
                Executed::Failed(code, reason) => match rows {
                    // Nothing was passed over, so it may be the key that is taken.
                    [at] if op == Op::Insert
                        && code == Code::RowKeyInUse
                        && self.incoming.defers_unique =>
                    {
                        self.classify(op, &[*at], failed).await?;
                    }
                    [at] => failed.push(Failed {
                        at: *at,
                        code,
                        reason,
                    }),
                    rows => {
                        let (left, right) = rows.split_at(rows.len() / 2);
                        waiting.push(right.to_vec());
                        waiting.push(left.to_vec());
                    }
                },
            }
        }
        self.classify(op, &without_effect, failed).await
    }

    /// Inserts into a table with triggers that fire before them have to be undone if not all of
    /// them came to something, or under other keys: which one a trigger gave another key cannot
    /// be told of several, and what it did about a row that was passed over must not stay. Gives
    /// those that are to be done again; those that were passed over go to `without_effect`.
    fn again(
        &self,
        rows: &[RowRef],
        result: &[ResultRow],
        without_effect: &mut Vec<RowRef>,
    ) -> Result<Option<Vec<Vec<RowRef>>>, CentreError> {
        if self.has_other_keys(rows, result)? {
            let one_by_one = rows.chunks(1).rev().map(<[RowRef]>::to_vec);
            return Ok((rows.len() > 1).then(|| one_by_one.collect()));
        }
        let passed_over = self.passed_over(Op::Insert, rows, result)?;
        if passed_over.is_empty() {
            return Ok(None);
        }
        let is_passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
        let mut others = rows.to_vec();
        others.retain(|at| !is_passed_over.contains(at));
        without_effect.extend(&passed_over);
        Ok(Some(match others.is_empty() {
            true => Vec::new(),
            false => vec![others],
        }))
    }

    pub(super) async fn savepoint(&self, sql: &str) -> Result<(), CentreError> {
        let done = self.connection.client().batch_execute(sql).await;
        done.map_err(refused("applying rows of an upload"))
    }

    /// Whether a trigger of the centre gave an inserted row another key than the remote's.
    fn has_other_keys(&self, rows: &[RowRef], result: &[ResultRow]) -> Result<bool, CentreError> {
        if !self.incoming.edits_inserts {
            return Ok(false);
        }
        let mut inserted = self.inserted_keys(result)?;
        let types = self.key_types();
        let mut packed = Vec::new();
        self.incoming.rows(rows, |_, row| {
            packed.clear();
            pack::pack_values(&mut packed, &types, &row.key);
            inserted.remove(&packed);
            Ok(())
        })?;
        Ok(!inserted.is_empty())
    }

    /// The centre has what was uploaded under a key of its own, which the download brings.
    /// Under the remote's key there is nothing.
    fn kept_under_another_key(&mut self, rows: &[RowRef]) -> Result<(), CentreError> {
        let (incoming, outcomes) = (self.incoming, &mut *self.outcomes);
        incoming.rows(rows, |_, row| {
            with_uploaded(incoming, row, |it| outcomes.conflict(incoming, it, None));
            Ok(())
        })
    }

    /// Sees to it that rows which a trigger put into another partition leave those who hold the
    /// one that they were uploaded into, the uploader first of all.
    pub(super) async fn log_moved(&mut self, inserted: &[RowRef]) -> Result<(), CentreError> {
        let Some(sql) = sql::log_moved(self.incoming) else {
            return Ok(());
        };
        let parameters = self.parameters(Op::Insert, &[], inserted)?;
        let parameters: Vec<&(dyn ToSql + Sync)> = parameters
            .iter()
            .map(|it| it as &(dyn ToSql + Sync))
            .collect();
        let statement = self.connection.prepare(&sql, &[]).await?;
        let logged = self.connection.client().execute(&statement, &parameters);
        logged
            .await
            .map(drop)
            .map_err(refused("logging uploaded rows"))
    }

    fn key_types(&self) -> Vec<ColumnType> {
        let table = self.incoming.table;
        let columns = table.key.iter().map(|&it| &table.columns[it]);
        columns
            .map(|column| column.kind.column_type(column.scale))
            .collect()
    }

    /// The packed keys that an insert gave back.
    fn inserted_keys(&self, result: &[ResultRow]) -> Result<HashSet<Vec<u8>>, CentreError> {
        let table = self.incoming.table;
        let types = self.key_types();
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

    /// The array parameters of a statement.
    pub(super) fn parameters(
        &self,
        op: Op,
        changed: &[usize],
        rows: &[RowRef],
    ) -> Result<Vec<Array>, CentreError> {
        self.arrays(&sql::images(self.incoming, op, changed), rows)
    }

    /// The values of some images, column by column.
    pub(super) fn arrays(
        &self,
        images: &[(sql::Image, usize)],
        rows: &[RowRef],
    ) -> Result<Vec<Array>, CentreError> {
        let incoming = self.incoming;
        let columns = &incoming.table.columns;
        let mut arrays: Vec<Array> = images
            .iter()
            .map(|&(_, index)| Array::new(columns[index].kind))
            .collect();
        incoming.rows(rows, |_, row| {
            let mut result = Ok(());
            with_uploaded(incoming, row, |uploaded| {
                for (array, &(image, index)) in arrays.iter_mut().zip(images) {
                    let values = match image {
                        sql::Image::Old => uploaded.old,
                        sql::Image::New => uploaded.new,
                    };
                    let value = values.map_or(&Datum::Null, |values| &values[index]);
                    if array.push(value).is_err() {
                        result = Err(CentreError::Internal {
                            message: format!("{} was to be sent", unfit(&columns[index], value)),
                        });
                    }
                }
            });
            result
        })?;
        Ok(arrays)
    }

    /// The rows of a batch that a statement did nothing about.
    fn passed_over(
        &self,
        op: Op,
        rows: &[RowRef],
        result: &[ResultRow],
    ) -> Result<Vec<RowRef>, CentreError> {
        if result.len() == rows.len() {
            return Ok(Vec::new());
        }
        if op != Op::Insert {
            let mut done = vec![false; rows.len()];
            for row in result {
                // Ordinals count from 1.
                let ordinal = row.get::<_, i64>(0) as usize - 1;
                done[ordinal] = true;
            }
            let undone = rows.iter().zip(done).filter(|(_, done)| !done);
            return Ok(undone.map(|(at, _)| *at).collect());
        }
        // An insert can only give back what is in the table: the keys.
        let types = self.key_types();
        let inserted = self.inserted_keys(result)?;
        let mut passed_over = Vec::new();
        let mut packed = Vec::new();
        self.incoming.rows(rows, |at, row| {
            packed.clear();
            pack::pack_values(&mut packed, &types, &row.key);
            if !inserted.contains(&packed) {
                passed_over.push(rows[at]);
            }
            Ok(())
        })?;
        Ok(passed_over)
    }

    /// Reads the rows of the centre that uploaded ones met, and tells who won.
    async fn classify(
        &mut self,
        op: Op,
        refs: &[RowRef],
        failed: &mut Vec<Failed>,
    ) -> Result<(), CentreError> {
        for rows in refs.chunks(BATCH_ROWS) {
            // A key that no row of the centre can have is that of no row.
            let mut possible = Vec::with_capacity(rows.len());
            let mut gone = Vec::new();
            self.incoming.rows(rows, |at, row| {
                let key = self.incoming.table.key.iter().zip(&row.key);
                let mut encoded = Vec::new();
                let mut key =
                    key.map(|(&index, value)| (&self.incoming.table.columns[index], value));
                let fits = key.all(|(column, value)| {
                    obstacle(column, true, value).is_none()
                        && column.kind.encode(value, &mut encoded).is_ok()
                });
                if fits { &mut possible } else { &mut gone }.push(rows[at]);
                Ok(())
            })?;
            let statement = sql::read_by_key(self.incoming, op);
            let statement = self.connection.prepare(&statement, &[]).await?;
            let arrays = self.read_parameters(op, &possible)?;
            let parameters: Vec<&(dyn ToSql + Sync)> =
                arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
            let result = self
                .connection
                .client()
                .query(&statement, &parameters)
                .await;
            let result = result.map_err(refused("reading rows that an upload met"))?;
            let mut met = vec![None; possible.len()];
            for (index, row) in result.iter().enumerate() {
                let ordinal = row.get::<_, i64>(0) as usize - 1;
                met[ordinal] = Some(index);
            }
            self.judge(op, &possible, &met, &result, &mut gone, failed)?;
            gone.sort_unstable();
            self.settle_gone(op, &gone, failed).await?;
        }
        Ok(())
    }

    /// The parameters of [`sql::read_by_key`]: keys, and what is compared with.
    fn read_parameters(&self, op: Op, rows: &[RowRef]) -> Result<Vec<Array>, CentreError> {
        let incoming = self.incoming;
        let columns = &incoming.table.columns;
        let compared = sql::compared(incoming, op);
        let mut arrays: Vec<Array> = compared
            .iter()
            .map(|&index| Array::new(columns[index].kind))
            .collect();
        incoming.rows(rows, |_, row| {
            with_uploaded(incoming, row, |uploaded| {
                let values = uploaded.new.or(uploaded.old).unwrap_or_default();
                for (array, &index) in arrays.iter_mut().zip(&compared) {
                    // Keys were looked at, new images too; an unfit old one is not compared.
                    if array.push(&values[index]).is_err() {
                        let _ = array.push(&Datum::Null);
                    }
                }
            });
            Ok(())
        })?;
        Ok(arrays)
    }

    /// Judges uploaded rows against those of the centre with the same key.
    fn judge(
        &mut self,
        op: Op,
        rows: &[RowRef],
        met: &[Option<usize>],
        result: &[ResultRow],
        gone: &mut Vec<RowRef>,
        failed: &mut Vec<Failed>,
    ) -> Result<(), CentreError> {
        let incoming = self.incoming;
        let before: Vec<Option<Failed>> = rows.iter().map(|&at| self.failed_before(at)).collect();
        let mut before = before.into_iter();
        let (outcomes, membership) = (&mut *self.outcomes, &mut self.membership);
        let mut decoder = RowDecoder::new(incoming.table.columns.iter().map(|it| it.kind));
        incoming.rows(rows, |at, row| {
            let before = before.next().flatten();
            let Some(index) = met[at] else {
                gone.push(rows[at]);
                return Ok(());
            };
            let central_row = &result[index];
            let equal = central_row.get::<_, Option<bool>>(1) == Some(true);
            let mut central = Vec::with_capacity(incoming.table.columns.len());
            decoder.result(central_row, 2, &mut central)?;
            let in_scope = membership.has(&central);
            with_uploaded(incoming, row, |uploaded| match (op, in_scope) {
                (Op::Insert, false) => {
                    outcomes.refused(incoming, uploaded, Code::RowKeyInUse, "key in use");
                }
                (_, false) => {
                    let reason = "this row is not in your partitions";
                    outcomes.refused(incoming, uploaded, Code::RowOutOfScope, reason);
                }
                (Op::Insert | Op::Update, true)
                    if equal && !lost_what_is_computed(incoming, uploaded, &central) =>
                {
                    outcomes.applied(op, 1);
                }
                _ => match before {
                    Some(before) => failed.push(before),
                    None => outcomes.conflict(incoming, uploaded, Some(&central)),
                },
            });
            Ok(())
        })
    }

    /// Settles rows whose key the centre does not have.
    async fn settle_gone(
        &mut self,
        op: Op,
        gone: &[RowRef],
        failed: &mut Vec<Failed>,
    ) -> Result<(), CentreError> {
        match op {
            // Whoever made the rows may give them back later.
            Op::Delete if self.given_back => {
                let (incoming, outcomes) = (self.incoming, &mut *self.outcomes);
                incoming.rows(gone, |_, row| {
                    with_uploaded(incoming, row, |it| outcomes.conflict(incoming, it, None));
                    Ok(())
                })?;
            }
            Op::Delete => self.outcomes.applied(op, gone.len() as u64),
            Op::Insert => self.insert_alone(gone, failed).await?,
            _ => {
                let mut lost = Vec::with_capacity(gone.len());
                for &at in gone {
                    match self.failed_before(at) {
                        Some(before) => failed.push(before),
                        None => lost.push(at),
                    }
                }
                let (incoming, outcomes) = (self.incoming, &mut *self.outcomes);
                incoming.rows(&lost, |_, row| {
                    with_uploaded(incoming, row, |it| outcomes.conflict(incoming, it, None));
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Inserts that were passed over although their key is free: some other unique
    /// constraint was in the way, and tells its name when nobody looks away.
    async fn insert_alone(
        &mut self,
        rows: &[RowRef],
        failed: &mut Vec<Failed>,
    ) -> Result<(), CentreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let text = sql::insert(self.incoming, false);
        let statement = self.connection.prepare(&text, &[]).await?;
        for at in rows {
            let parameters = self.parameters(Op::Insert, &[], &[*at])?;
            let guarded = self.incoming.edits_inserts;
            if guarded {
                self.savepoint(GUARD).await?;
            }
            let executed = execute(self.connection, &statement, &parameters).await?;
            if guarded {
                let ignored = matches!(&executed, Executed::Rows(result) if result.is_empty());
                self.savepoint(if ignored { UNDO } else { KEEP }).await?;
            }
            match executed {
                Executed::Rows(result) if self.has_other_keys(&[*at], &result)? => {
                    self.kept_under_another_key(&[*at])?;
                }
                Executed::Rows(result) if result.is_empty() => failed.push(Failed {
                    at: *at,
                    code: Code::RowConstraint,
                    reason: format!("a trigger of {} ignored the row", self.incoming.table.title),
                }),
                Executed::Rows(_) => self.outcomes.applied(Op::Insert, 1),
                Executed::Failed(code, reason) => failed.push(Failed {
                    at: *at,
                    code,
                    reason,
                }),
            }
        }
        Ok(())
    }

    /// Refuses for good what the database still refuses.
    pub(super) fn refuse(&mut self, failed: &[Failed]) -> Result<(), CentreError> {
        let (incoming, outcomes) = (self.incoming, &mut *self.outcomes);
        let refs: Vec<RowRef> = failed.iter().map(|failed| failed.at).collect();
        incoming.rows(&refs, |at, row| {
            let Failed { code, reason, .. } = &failed[at];
            with_uploaded(incoming, row, |it| {
                outcomes.refused(incoming, it, *code, reason)
            });
            Ok(())
        })
    }

    /// Refuses every row of a table that takes no uploads.
    pub(super) fn refuse_all(&mut self, refs: &[RowRef]) -> Result<(), CentreError> {
        let (incoming, outcomes) = (self.incoming, &mut *self.outcomes);
        incoming.rows(refs, |_, row| {
            with_uploaded(incoming, row, |it| {
                outcomes.refused(incoming, it, Code::RowDownloadOnly, DOWNLOAD_ONLY);
            });
            Ok(())
        })
    }
}

/// Runs a statement in a savepoint, in one flight.
pub(super) async fn execute(
    connection: &Connection,
    statement: &Statement,
    arrays: &[Array],
) -> Result<Executed, CentreError> {
    let client = connection.client();
    let error = |error| refused("applying rows of an upload")(error);
    let parameters: Vec<&(dyn ToSql + Sync)> =
        arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
    let (saved, result, released) = future::join3(
        client.batch_execute("SAVEPOINT tidewater_batch"),
        client.query(statement, &parameters),
        client.batch_execute("RELEASE tidewater_batch"),
    )
    .await;
    saved.map_err(error)?;
    match result {
        Ok(rows) => {
            released.map_err(error)?;
            Ok(Executed::Rows(rows))
        }
        Err(refusal) => {
            let not_the_rows = || Err(centre_error("applying rows of an upload", &refusal));
            let Some(data) = refusal
                .as_db_error()
                .filter(|_| may_be_data_error(&refusal))
            else {
                return not_the_rows();
            };
            let (code, reason) = reason(data);
            client
                .batch_execute("ROLLBACK TO tidewater_batch; RELEASE tidewater_batch")
                .await
                .map_err(error)?;
            if !is_data_error(&refusal) && !runs_without_rows(connection, statement, arrays).await {
                return not_the_rows();
            }
            Ok(Executed::Failed(code, reason))
        }
    }
}

/// Whether nothing is wrong with the statement itself.
async fn runs_without_rows(
    connection: &Connection,
    statement: &Statement,
    arrays: &[Array],
) -> bool {
    let empty: Vec<Array> = arrays.iter().map(Array::emptied).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> =
        empty.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
    let result = connection.client().query(statement, &parameters).await;
    result.is_ok()
}

/// The images of an uploaded row in the order of the published columns.
pub(super) fn with_uploaded(
    incoming: &Incoming<'_>,
    row: &Row<'_>,
    take: impl FnOnce(&Uploaded<'_, '_>),
) {
    let (mut old_buffer, mut new_buffer) = (Vec::new(), Vec::new());
    let op = row.op.unwrap_or(Op::Insert);
    let old = (op != Op::Insert).then(|| incoming.arranged(&row.old, &mut old_buffer));
    let new = (op != Op::Delete).then(|| incoming.arranged(&row.new, &mut new_buffer));
    take(&Uploaded {
        op,
        key: &row.key,
        old,
        new,
    });
}

/// Why some value of a row cannot go into its column. `encoded` is room to try it in.
fn unfit_value(
    incoming: &Incoming<'_>,
    row: &[Datum<'_>],
    encoded: &mut Vec<u8>,
) -> Option<String> {
    let table = incoming.table;
    encoded.clear();
    incoming.sent.iter().find_map(|&index| {
        let (column, value) = (&table.columns[index], &row[index]);
        let is_key = table.key.contains(&index);
        obstacle(column, is_key, value).or_else(|| {
            let fits = column.kind.encode(value, encoded).is_ok();
            (!fits).then(|| unfit(column, value))
        })
    })
}

/// Whether a remote wrote another value into a generated column than the centre computes. It is
/// told, because no change of the centre brings the centre's value back to it.
fn lost_what_is_computed(
    incoming: &Incoming<'_>,
    uploaded: &Uploaded<'_, '_>,
    central: &[Datum<'_>],
) -> bool {
    let (Some(old), Some(new)) = (uploaded.old, uploaded.new) else {
        return false;
    };
    let mut columns = incoming.table.columns.iter().enumerate();
    columns.any(|(index, column)| {
        let was_written = column.generated && !pack::same(&old[index], &new[index]);
        was_written && !pack::same(&new[index], &central[index])
    })
}
