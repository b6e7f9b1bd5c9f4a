//! Writes the rows of one operation of one table, and decides what becomes of those that meet
//! something else than they expect.
//!
//! Not here: what scripts write ([`super::scripted`]), what a resolver makes of both sides
//! ([`super::resolver_output`]), and what handlers decide of a conflict before it is written.

use std::collections::HashSet;

use tidewater_protocol::{Code, Datum, Op, pack};

use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::resolver_output::ResolverOutput;
use super::row_batch::{BatchOutcome, MetRow, RowBatch};
use super::row_writers;
use super::upload_driver::UploadDriver;
use crate::engine::exact::canonical;
use crate::engine::membership::Barrier;
use crate::engine::resolve::Winner;
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::{OnDelete, TableAdapter};
use crate::engine::upload::incoming_rows::ROWS_AT_ONCE;
use crate::engine::upload::ready_rows::{ReadyRows, find_changed, obstacle};
use crate::engine::upload::refusal_reason::{FailedRow, RowDecision};
use crate::engine::upload::row_meeting::{ConflictJudge, MeetingFate, RowMeeting};
use crate::engine::upload::upload_run::{EarlierFailures, UploadProgress, UploadRun, WritePurpose};
use crate::error::CentreError;
use crate::records::ConflictOutcome;

/// Of a table that refers to itself, so many levels of rows are told apart by whether others are
/// below them that stay.
const MOST_LEVELS: usize = 32;

/// So often is a row resolved that others change meanwhile, before all of the list is tried again.
const MOST_MEETINGS: u32 = 16;

type Result<T> = std::result::Result<T, CentreError>;

/// What the rows of one operation are sorted into before any is written.
#[derive(Default)]
pub(super) struct SortedRows {
    /// To be written.
    pub(super) ready: ReadyRows,
    /// Cannot be written as they are; what they lost against has to be read.
    pub(super) unready: Vec<RowRef>,
    /// Lose whatever the centre has.
    pub(super) lost: Vec<RowRef>,
    /// Handlers have seen to them.
    pub(super) handled: Vec<RowRef>,
}

/// Uploaded rows, and the rows of the centre under their keys.
struct MetRows<'m> {
    op: Op,
    rows: &'m [RowRef],
    central: Vec<Option<MetRow>>,
}

/// Rows of a meeting that are written after it.
#[derive(Default)]
struct RowsAfterMeeting {
    /// The centre has none with their key.
    gone: Vec<RowRef>,
    /// They are written over what the upload's own parents have made of the centre's rows.
    written_again: Vec<RowRef>,
    /// Scripts decide of them.
    for_scripts: Vec<RowRef>,
}

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// Writes rows of one operation; gives back those that failed, and deletes that
    /// would do something to children.
    pub(super) async fn write(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        refs: &[RowRef],
        earlier: &EarlierFailures,
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<FailedRow>> {
        if self.is_scripted(table.index, op) {
            return self.write_by_script(table, op, refs, progress).await;
        }
        let mut sorted = self.sort(table, op, refs, progress)?;
        let mut failed = Vec::new();
        if op == Op::Delete && self.looks_for_children(table) {
            for (_, rows) in &mut sorted.ready.sets {
                self.leave_parents(table, rows, false, &mut failed).await?;
            }
        }
        let mut unready = sorted.unready;
        for (changed, refs) in &sorted.ready.sets {
            let batch = RowBatch::new(table, op, changed);
            let written = self.rows.write(&batch, refs).await?;
            unready.extend(note(table, op, written, &mut failed, progress)?);
        }
        for attempt in 1.. {
            for rows in unready.chunks(ROWS_AT_ONCE) {
                self.meet(table, op, rows, earlier, progress, &mut failed)
                    .await?;
            }
            unready = std::mem::take(&mut progress.overtaken);
            if unready.is_empty() {
                break;
            }
            if attempt == MOST_MEETINGS {
                let table = self.publication.schema.tables[table.index].name.clone();
                return Err(CentreError::Overtaken { table });
            }
        }
        self.lose(table, op, &sorted.lost, progress).await?;
        self.leave_handled(table, op, &sorted.handled, progress)
            .await?;
        failed.sort_by_key(|failed| failed.at);
        Ok(failed)
    }

    /// Whether a delete leaves rows where they are to which others refer: also where their operator has
    /// devices take those along, an operator who writes one row has to say so.
    fn looks_for_children(&self, table: &IncomingTable<'_, R::Tables>) -> bool {
        match (self.purpose, table.table.on_delete) {
            (_, OnDelete::Nothing) => false,
            (WritePurpose::Operator { force }, _) => !force,
            (WritePurpose::Sync, on_delete) => on_delete == OnDelete::Looks,
        }
    }

    /// Takes deletes out of those to be written that would take children along, or change them.
    async fn leave_parents(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        rows: &mut Vec<RowRef>,
        insists: bool,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let schema = &self.publication.schema.tables[table.index];
        let mut keys = schema.foreign_keys.iter();
        let refers_to_itself = keys.any(|key| key.parent == schema.name);
        for level in 1.. {
            let mut parents = self
                .rows
                .find_rows_with_children(table, rows, insists)
                .await?;
            if !parents.is_empty() && level == MOST_LEVELS {
                parents.clone_from(rows);
            }
            if parents.is_empty() {
                break;
            }
            failed.extend(parents.iter().map(|&at| FailedRow {
                has_children: true,
                ..FailedRow::new(
                    at,
                    RefusalReason {
                        code: Code::RowForeignKey,
                        reason: "others refer to this row".into(),
                        database_code: None,
                    },
                )
            }));
            let parents: HashSet<RowRef> = parents.into_iter().collect();
            rows.retain(|at| !parents.contains(at));
            // Those that stay may be children of others.
            if !refers_to_itself {
                break;
            }
        }
        Ok(())
    }

    /// Tells what can be written from what cannot, and refuses what never will.
    pub(super) fn sort(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        refs: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<SortedRows> {
        let mut sorted = SortedRows::default();
        let mut membership = self.membership(table);
        let hands_over = self.hands_over(table, op);
        let UploadProgress {
            outcomes,
            may_be_out_of_scope,
            ..
        } = &mut *progress;
        // Reused from row to row.
        let mut changed = Vec::new();
        table.images(refs, |at, uploaded| {
            let decision = outcomes.decision(table, op, uploaded.key);
            let is_handled = decision == Some(RowDecision::Handled);
            match decision {
                Some(RowDecision::Refused(refusal)) => {
                    outcomes.refused(table, uploaded, &refusal);
                    return Ok(());
                }
                Some(RowDecision::Lost) => {
                    sorted.lost.push(refs[at]);
                    return Ok(());
                }
                Some(RowDecision::Handled) | None => {}
            }
            find_changed(table, uploaded, &mut changed);
            let mut refusal = obstacle(self.rows, self.publication, table, uploaded, &changed);
            let judged = uploaded.new.filter(|_| refusal.is_none() && !hands_over);
            if let Some(barrier) = judged.and_then(|new| membership.barrier_to_new(new)) {
                // It may come into scope by the upload itself.
                *may_be_out_of_scope |= !is_handled;
                let refuses_at_once = is_handled || outcomes.refuses_at_once();
                refusal = refuses_at_once.then(|| RefusalReason::barred(barrier));
            }
            if let Some(refusal) = refusal {
                outcomes.refused(table, uploaded, &refusal);
                return Ok(());
            }
            if is_handled {
                sorted.handled.push(refs[at]);
                return Ok(());
            }
            let is_unready = uploaded.old.is_some_and(|old| {
                membership.barrier(old).is_some()
                    || self.rows.misfit_reason(table, RowImage::Old, old).is_some()
            });
            if is_unready || op == Op::Update && changed.is_empty() {
                sorted.unready.push(refs[at]);
                return Ok(());
            }
            sorted.ready.add(table, &mut changed, refs[at]);
            Ok(())
        })?;
        Ok(sorted)
    }

    /// Reads the rows of the centre that uploaded ones met, and does with each what
    /// [`RowMeeting::decide`] says.
    async fn meet(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        earlier: &EarlierFailures,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let central = self.rows.find(table, op, rows, RowImage::Old).await?;
        let mut resolving = self.resolving(table);
        if resolving.asks_who_wrote() {
            let publication = self.publication;
            let found = row_writers::find(self.rows, publication, table.index, &central).await?;
            resolving.writers = found;
        }
        let met = MetRows { op, rows, central };
        let after = self.judge_met(table, &met, earlier, &mut resolving, progress, failed)?;
        let RowsAfterMeeting {
            mut gone,
            written_again,
            for_scripts,
        } = after;
        let written = self.write_resolved(table, op, resolving, progress, failed);
        written.await?;
        if !for_scripts.is_empty() {
            self.fight(table, for_scripts, progress, failed).await?;
        }
        if !written_again.is_empty() {
            let insisted = self.insist(table, op, &written_again, RowImage::Old, progress, failed);
            gone.extend(insisted.await?);
        }
        if op == Op::Update && !gone.is_empty() && !table.moves.is_empty() {
            gone = self.meet_moved(table, gone, progress, failed).await?;
        }
        self.decide_gone(table, op, gone, earlier, progress, failed)
            .await
    }

    /// Notes what becomes of rows that met others; gives those that have to be written.
    fn judge_met(
        &self,
        table: &IncomingTable<'_, R::Tables>,
        met: &MetRows<'_>,
        earlier: &EarlierFailures,
        resolving: &mut ResolverOutput<'r>,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<RowsAfterMeeting> {
        let MetRows { op, rows, .. } = *met;
        let (mut membership, mut shown) = (self.membership(table), self.shown(table));
        let types = &self.publication.row_types[table.index];
        let schema = &self.publication.schema.tables[table.index];
        let key_cascades = self.key_cascades;
        let is_insert = op == Op::Insert;
        let judge_of_table = self.conflict_judge(table, op, resolving);
        let keeps_families_apart = is_insert && self.keeps_families_apart(table);
        let outcomes = &mut progress.outcomes;
        let mut after = RowsAfterMeeting::default();
        table.images(rows, |number, uploaded| {
            let at = rows[number];
            let Some(met) = &met.central[number] else {
                after.gone.push(at);
                return Ok(());
            };
            let central = met.central.values(types)?;
            let before = uploaded
                .old
                .and_then(|old| key_cascades.before(table.index, old, &central));
            let before = before.as_ref().unwrap_or(&central);
            let barrier = membership.barrier(&central);
            let barrier = barrier.filter(|_| membership.barrier(before).is_some());
            // One that cannot be sent is as good as gone until it can: then it comes with a download.
            let winner = shown.winner(&central, before);
            let winner = winner.filter(|_| met.central.is_whole);
            let may_be_written = barrier.is_none() && met.central.is_whole;
            let may_be_resolved = may_be_written && resolving.resolves() && before == &central;
            let meeting = RowMeeting {
                op,
                is_as_uploaded: met.is_as_uploaded,
                barrier,
                is_changed_by_own_parents: may_be_written
                    && is_own_doing(table, uploaded, before, &central),
                leaves_its_key: is_insert
                    && key_cascades.leaves_key(table.index, schema, uploaded.key),
                is_made_twice: may_be_resolved
                    && met.is_as_uploaded
                    && resolving.resolves_equal(table, uploaded, &central),
                failed_for: earlier.get(&at),
                judge: match winner {
                    Some(_) if may_be_resolved => judge_of_table,
                    _ => ConflictJudge::Centre,
                },
            };
            let is_equal = meeting.is_equal();
            match meeting.decide() {
                MeetingFate::WrittenAgain => after.written_again.push(at),
                MeetingFate::Applied => outcomes.applied(op, 1),
                MeetingFate::Failed(refusal) => failed.push(FailedRow::new(at, refusal)),
                MeetingFate::Refused(refusal) => outcomes.refused(table, uploaded, &refusal),
                MeetingFate::Conflict(judge) => {
                    let ended = match (judge, winner) {
                        (ConflictJudge::Resolver, Some(winner)) => {
                            resolving.take(table, at, uploaded, winner)
                        }
                        (ConflictJudge::Scripts, Some(winner))
                            if !resolving.counts_twice(table, uploaded, winner) =>
                        {
                            after.for_scripts.push(at);
                            None
                        }
                        (ConflictJudge::Scripts, Some(_)) => Some(ConflictOutcome::Parked),
                        _ => Some(ConflictOutcome::Centre),
                    };
                    match ended {
                        None => {}
                        // There is nothing to choose between.
                        Some(ConflictOutcome::Centre) if is_equal => outcomes.applied(op, 1),
                        Some(_) if keeps_families_apart => {
                            outcomes.refused(table, uploaded, &RefusalReason::another_row());
                        }
                        Some(ended) => outcomes.conflict(table, uploaded, winner, ended),
                    }
                }
            }
            Ok(())
        })?;
        Ok(after)
    }

    /// Who decides of a row that may be resolved.
    fn conflict_judge(
        &self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        resolving: &ResolverOutput<'_>,
    ) -> ConflictJudge {
        if !resolving.resolves() {
            return ConflictJudge::Centre;
        }
        let winner = self.publication.resolvers[table.index].winner;
        match op {
            Op::Update if winner == Winner::Script => ConflictJudge::Scripts,
            Op::Insert if self.publication.followed[table.index] => ConflictJudge::Centre,
            _ => ConflictJudge::Resolver,
        }
    }

    /// Whether an insert that meets another row is refused, because both may have rows below them. An
    /// operator who insists makes one of two rows, but not of two that others follow.
    fn keeps_families_apart(&self, table: &IncomingTable<'_, R::Tables>) -> bool {
        let may_be_merged = self.purpose.insists() && !self.publication.followed[table.index];
        self.key_cascades.has_children(table.index) && !may_be_merged
    }

    /// Updates that give rows other keys and do not find them under the old ones: the row may be
    /// where it is to be, because its parent has taken it along, or because it was there before.
    /// Gives back the others.
    async fn meet_moved(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        rows: Vec<RowRef>,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<Vec<RowRef>> {
        let met = self
            .rows
            .find(table, Op::Update, &rows, RowImage::New)
            .await?;
        let (mut membership, mut shown) = (self.membership(table), self.shown(table));
        let types = &self.publication.row_types[table.index];
        let (key_cascades, mut applied) = (self.key_cascades, 0);
        let outcomes = &mut progress.outcomes;
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        table.images(&rows, |at, uploaded| {
            let row = rows[at];
            let Some(met) = met[at].as_ref().filter(|it| it.central.is_whole) else {
                gone.push(row);
                return Ok(());
            };
            let central = met.central.values(types)?;
            let before = uploaded
                .old
                .and_then(|old| key_cascades.before(table.index, old, &central));
            let before = before.as_ref().unwrap_or(&central);
            match [&central, before]
                .map(|it| membership.barrier(it))
                .contains(&None)
            {
                true if met.is_as_uploaded => applied += 1,
                true if is_own_doing(table, uploaded, before, &central) => changed.push(row),
                // It has followed its parent, and somebody else has changed it.
                true if before != &central => {
                    let winner = shown.winner(&central, before);
                    outcomes.conflict(table, uploaded, winner, ConflictOutcome::Centre);
                }
                _ => gone.push(row),
            }
            Ok(())
        })?;
        progress.outcomes.applied(Op::Update, applied);
        if !changed.is_empty() {
            let insisted =
                self.insist(table, Op::Update, &changed, RowImage::New, progress, failed);
            gone.extend(insisted.await?);
        }
        Ok(gone)
    }

    /// Writes rows whatever the centre has instead of what they expect; gives back those that were
    /// passed over all the same.
    async fn insist(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        key: RowImage,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<Vec<RowRef>> {
        let mut sorted = self.sort(table, op, rows, progress)?;
        let mut passed_over = sorted.unready;
        if op == Op::Delete && self.looks_for_children(table) {
            for (_, rows) in &mut sorted.ready.sets {
                self.leave_parents(table, rows, true, failed).await?;
            }
        }
        for (changed, rows) in &sorted.ready.sets {
            let batch = RowBatch {
                table,
                op,
                changed,
                insists: true,
                key,
            };
            let written = self.rows.write(&batch, rows).await?;
            passed_over.extend(note(table, op, written, failed, progress)?);
        }
        Ok(passed_over)
    }

    /// Leaves rows to the handlers that have seen to them, if they are the remote's to change.
    async fn leave_handled(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let types = &self.publication.row_types[table.index];
        // Where only the handler has rows, what the remote has is what it has given.
        let is_ours = !self.publication.handled[table.index].keeps_uploads;
        for rows in rows.chunks(ROWS_AT_ONCE) {
            let met = self.rows.find(table, op, rows, RowImage::Old).await?;
            let mut membership = self.membership(table);
            let outcomes = &mut progress.outcomes;
            table.images(rows, |at, uploaded| {
                let barrier = match (uploaded.old, &met[at]) {
                    (None, _) => None,
                    (_, Some(met)) => membership.barrier(&met.central.values(types)?),
                    (Some(old), None) => membership.barrier(old),
                };
                match barrier {
                    None => outcomes.handled(table, uploaded, is_ours),
                    Some(barrier) => {
                        outcomes.refused(table, uploaded, &RefusalReason::barred(barrier));
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Decides what becomes of rows whose key the centre does not have.
    async fn decide_gone(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        mut gone: Vec<RowRef>,
        earlier: &EarlierFailures,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        gone.sort_unstable();
        match op {
            // Whoever made the rows may give them back later.
            Op::Delete if self.upload.given_back => progress.outcomes.conflicts_gone(table, &gone),
            Op::Delete => {
                progress.outcomes.applied(op, gone.len() as u64);
                Ok(())
            }
            // Their key is free: some other unique constraint was in the way, and tells its name
            // when nobody looks away.
            Op::Insert => {
                let insisted = self.insist(table, op, &gone, RowImage::Old, progress, failed);
                let passed_over = insisted.await?;
                debug_assert!(passed_over.is_empty());
                Ok(())
            }
            _ => {
                gone.retain(|at| match earlier.get(at) {
                    Some(refusal) => {
                        failed.push(FailedRow::new(*at, refusal.clone()));
                        false
                    }
                    None => true,
                });
                self.decide_deleted(table, &gone, progress, failed).await
            }
        }
    }

    /// What is to be resolved of a table.
    fn resolving(&self, table: &IncomingTable<'_, R::Tables>) -> ResolverOutput<'r> {
        let how = (self.purpose, self.sent_before);
        let rank = self
            .admission
            .scope
            .ranks
            .get(table.index)
            .copied()
            .flatten();
        ResolverOutput::new(self.publication, table.index, self.upload, how).with_rank(rank)
    }

    /// Decides what becomes of updates of rows that somebody has deleted.
    async fn decide_deleted(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        gone: &[RowRef],
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let mut resolving = self.resolving(table);
        let outcomes = &mut progress.outcomes;
        table.images(gone, |at, uploaded| {
            let ended = match resolving.resolves() {
                true => resolving.take_gone(table, gone[at], uploaded),
                false => Some(ConflictOutcome::Centre),
            };
            if let Some(ended) = ended {
                outcomes.conflict(table, uploaded, None, ended);
            }
            Ok(())
        })?;
        self.write_resolved(table, Op::Update, resolving, progress, failed)
            .await
    }

    /// Has rows lose against whatever the centre has.
    pub(super) async fn lose(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let types = &self.publication.row_types[table.index];
        for rows in rows.chunks(ROWS_AT_ONCE) {
            let met = self.rows.find(table, op, rows, RowImage::Old).await?;
            let (mut membership, mut shown) = (self.membership(table), self.shown(table));
            let outcomes = &mut progress.outcomes;
            table.images(rows, |at, uploaded| {
                let Some(met) = &met[at] else {
                    match op {
                        Op::Delete => outcomes.applied(op, 1),
                        _ => outcomes.conflict(table, uploaded, None, ConflictOutcome::Centre),
                    }
                    return Ok(());
                };
                let central = met.central.values(types)?;
                if !membership.has(&central) {
                    let refusal = RefusalReason::barred(Barrier::OutOfScope);
                    outcomes.refused(table, uploaded, &refusal);
                    return Ok(());
                }
                let winner = shown.winner(&central, &central);
                let winner = winner.filter(|_| met.central.is_whole);
                outcomes.conflict(table, uploaded, winner, ConflictOutcome::Centre);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Whether a row was as its remote says before the upload's own parents changed it, and is not any
/// more.
fn is_own_doing<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    uploaded: &UploadedImages<'_, '_>,
    before: &[Datum<'_>],
    central: &[Datum<'_>],
) -> bool {
    let same = |one: &[Datum<'_>], other: &[Datum<'_>]| {
        let mut columns = table.written.iter();
        columns.all(|&it| pack::same(&canonical(one[it]), &canonical(other[it])))
    };
    uploaded
        .old
        .is_some_and(|old| same(old, before) && !same(before, central))
}

/// Notes what became of rows; gives back those that were passed over.
fn note<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    op: Op,
    written: BatchOutcome,
    failed: &mut Vec<FailedRow>,
    progress: &mut UploadProgress<'_>,
) -> Result<Vec<RowRef>> {
    let outcomes = &mut progress.outcomes;
    outcomes.applied(op, written.applied + written.kept.len() as u64);
    outcomes.keep(table, &written.kept);
    outcomes.refuse(table, &written.refused)?;
    // The centre has what was uploaded under a key of its own, which the download brings. Under
    // the remote's key there is nothing.
    outcomes.conflicts_gone(table, &written.elsewhere)?;
    failed.extend(written.failed);
    Ok(written.passed_over)
}
