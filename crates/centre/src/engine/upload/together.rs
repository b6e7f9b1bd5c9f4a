//! Rows that need each other ([`crate::engine::upload::linked`]): applied together, or not at all.

use std::collections::{BTreeSet, HashMap, HashSet};

use tidewater_protocol::{Code, Op};

use super::apply::{Progress, Run};
use super::incoming::{Incoming, RowRef};
use super::rows::{Ends, Failed, Part, Rows, TargetTable};
use crate::engine::upload::linked::{Group, Links, may_wait};
use crate::engine::upload::sift::{Sift, Trial};
use crate::error::CentreError;

/// The most rows that are applied together, unless one group has more.
const MOST_ROWS: usize = 2_000;

type Result<T> = std::result::Result<T, CentreError>;

/// Which rows are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidates {
    /// Those that failed so far and the deletes that are still to come, which would take children
    /// along that cannot leave before.
    WithDeletes,
    /// Those that failed.
    Failed,
}

/// A row: the place of its table in the upload, what is done with it, and where it is.
type Candidate = (usize, Op, RowRef);

/// Which inserted rows take the place of deleted ones.
type Successors = HashMap<Candidate, Candidate>;

impl<'r, R: Rows> Run<'r, R> {
    /// Whether deletes that are still to come could take along a row that has not left its parent
    /// because it failed so far, perhaps for a value that one of them frees.
    pub(super) fn waits_for_deletes(&self, progress: &Progress<'_>) -> bool {
        let mut tables = self.tables.iter();
        let takes_along =
            |it: &Incoming<'_, R::Table>| it.table.acts_on_delete() && !it.deletes.is_empty();
        progress.refusals.iter().any(|it| it.op != Op::Delete) && tables.any(takes_along)
    }

    /// Applies rows that need each other. False: there are some, but it cannot be told which of
    /// them violate a constraint.
    pub(super) async fn together(
        &mut self,
        progress: &mut Progress<'_>,
        which: Candidates,
    ) -> Result<bool> {
        let (mut candidates, mut groups) = self.find_groups(progress, which).await?;
        if groups.is_empty() {
            return Ok(true);
        }
        let mut failed = progress.refusals.iter().flat_map(|it| &it.failed);
        if failed.any(|it| it.refusal.code == Code::RowKeyInUse) {
            self.look_again(progress).await?;
            (candidates, groups) = self.find_groups(progress, which).await?;
        }
        if !groups.is_empty() && !self.rows.can_tell()? {
            return Ok(false);
        }
        let pairs = groups.iter().flat_map(|group| &group.successions);
        let pairs = pairs.map(|it| (candidates[it.deleted], candidates[it.inserted]));
        // An upload may have a table in several places, each with columns of its own.
        let successors = pairs.filter(|(deleted, inserted)| deleted.0 == inserted.0);
        let successors: Successors = successors.collect();
        let done = self
            .apply_groups(&candidates, groups, &successors, progress)
            .await?;
        for refusals in &mut progress.refusals {
            let (table, op) = (refusals.table, refusals.op);
            let failed = &mut refusals.failed;
            failed.retain(|failed| !done.contains(&(table, op, failed.at)));
        }
        progress.refusals.retain(|it| !it.failed.is_empty());
        let deleted = done.into_iter().filter(|&(_, op, _)| op == Op::Delete);
        let deleted = deleted.map(|(table, _, row)| (table, row));
        progress.settled.extend(deleted);
        Ok(true)
    }

    /// Tries rows again that found their unique values taken: others may have made way since.
    async fn look_again(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        for mut refusals in std::mem::take(&mut progress.refusals) {
            let is_taken = |failed: &Failed| failed.refusal.code == Code::RowKeyInUse;
            let (taken, others) = refusals.failed.into_iter().partition(is_taken);
            refusals.failed = taken;
            self.again(&mut refusals, false, progress).await?;
            refusals.failed.extend::<Vec<_>>(others);
            refusals.failed.sort_by_key(|failed| failed.at);
            if !refusals.failed.is_empty() {
                progress.refusals.push(refusals);
            }
        }
        Ok(())
    }

    /// Rows that may need each other, and which of them do.
    async fn find_groups(
        &mut self,
        progress: &mut Progress<'_>,
        which: Candidates,
    ) -> Result<(Vec<Candidate>, Vec<Group>)> {
        let mut links = Links::new(&self.publication.schema);
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut codes = Vec::new();
        for (place, it) in self.tables.iter().enumerate() {
            if !links.concern(it.index) {
                continue;
            }
            for refusals in progress.refusals.iter().filter(|it| it.table == place) {
                let failed = refusals.failed.iter();
                for failed in failed.filter(|failed| may_wait(failed.refusal.code)) {
                    candidates.push((place, refusals.op, failed.at));
                    codes.push(Some(failed.refusal.code));
                }
            }
            let comes = which == Candidates::WithDeletes && !it.table.deletes_first();
            if comes && it.is_open && !it.deletes.is_empty() {
                let mut rows = self.deletable(it, progress).await?;
                rows.retain(|&row| !progress.settled.contains(&(place, row)));
                candidates.extend(rows.into_iter().map(|row| (place, Op::Delete, row)));
                codes.resize(candidates.len(), None);
            }
        }
        let mut codes = codes.into_iter();
        for of_table in candidates.chunk_by(|a, b| a.0 == b.0) {
            let it = &self.tables[of_table[0].0];
            let rows: Vec<RowRef> = of_table.iter().map(|&(_, _, row)| row).collect();
            it.rows(&rows, |_, row| {
                match codes.next().flatten() {
                    Some(code) => links.add_failed(it.index, &it.map, row, code),
                    None => links.add(it.index, &it.map, row),
                }
                Ok(())
            })?;
        }
        let mut groups = links.groups();
        if which == Candidates::WithDeletes {
            groups.retain(Group::precedes_deletes);
        }
        Ok((candidates, groups))
    }

    /// The deletes of a table that find their rows as their pre-images say.
    pub(super) async fn deletable(
        &mut self,
        table: &Incoming<'_, R::Table>,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<RowRef>> {
        let mut deletes = Vec::with_capacity(table.deletes.len());
        table.rows(&table.deletes, |at, row| {
            let refusal = progress.outcomes.why_orphan(table, Op::Delete, &row.key);
            if refusal.is_none() {
                deletes.push(table.deletes[at]);
            }
            Ok(())
        })?;
        let sorted = self.sort(table, Op::Delete, &deletes, progress)?;
        let ready: Vec<RowRef> = sorted.rows().collect();
        let mut found = self.rows.deletable(table, &ready).await?;
        found.sort_unstable();
        Ok(found)
    }

    /// Applies groups, as many at once as go together; those that do not, by halves, and the one
    /// that does not by itself without the rows that are to blame. Gives the rows that are done.
    async fn apply_groups(
        &mut self,
        candidates: &[Candidate],
        groups: Vec<Group>,
        successors: &Successors,
        progress: &mut Progress<'_>,
    ) -> Result<HashSet<Candidate>> {
        let row = |&number: &usize| candidates[number];
        let mut waiting = batches(groups);
        waiting.reverse();
        let mut done = HashSet::new();
        while let Some(groups) = waiting.pop() {
            let rows: Vec<Candidate> = groups.iter().flat_map(|it| &it.rows).map(row).collect();
            let written = self
                .all_or_none(&rows, Ends::Kept, successors, progress)
                .await?;
            if let Some(written) = written {
                done.extend(written);
            } else if groups.len() > 1 {
                let mut left = groups;
                let right = left.split_off(left.len() / 2);
                waiting.extend([right, left]);
            } else {
                let group = &groups[0];
                let is_needed = |number: &&usize| group.needed.contains(number);
                let (needed, others): (Vec<_>, Vec<_>) = group.rows.iter().partition(is_needed);
                let [needed, others] = [needed, others]
                    .map(|numbers| numbers.into_iter().map(row).collect::<Vec<Candidate>>());
                let units = group.units(|number| candidates[number].1 == Op::Delete);
                let units = units.iter().map(|it| it.iter().map(row).collect());
                let sift = Sift::new(needed, &others, units.collect());
                done.extend(self.without_some(sift, successors, progress).await?);
            }
        }
        Ok(done)
    }

    /// Applies a group that failed without those to blame of the rows for which nobody waits.
    async fn without_some(
        &mut self,
        mut sift: Sift<Candidate>,
        successors: &Successors,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Candidate>> {
        while let Some(Trial { rows, stays }) = sift.next() {
            let ends = if stays { Ends::Kept } else { Ends::Undone };
            let done = self.all_or_none(&rows, ends, successors, progress).await?;
            sift.told(done.is_some());
            if stays && let Some(done) = done {
                return Ok(done);
            }
        }
        Ok(Vec::new())
    }

    /// Applies rows together; gives those that were written, see [`Rows::together`].
    async fn all_or_none(
        &mut self,
        rows: &[Candidate],
        ends: Ends,
        successors: &Successors,
        progress: &mut Progress<'_>,
    ) -> Result<Option<Vec<Candidate>>> {
        let Some(parts) = self.parts(rows, successors, progress)? else {
            return Ok(None);
        };
        let Some(written) = self.rows.together(&parts, ends).await? else {
            return Ok(None);
        };
        let mut done = Vec::new();
        if ends == Ends::Undone {
            return Ok(Some(done));
        }
        for (part, written) in parts.iter().zip(written) {
            let of = |rows: &[RowRef]| {
                let mut rows: Vec<RowRef> = written.iter().map(|&at| rows[at]).collect();
                rows.sort_unstable();
                rows
            };
            let mut by_operation = vec![(part.op, of(&part.rows))];
            if !part.successors.is_empty() {
                let deleted = of(&part.rows);
                part.table.rows(&deleted, |_, row| {
                    progress.outcomes.succeeded(part.table, &row.key);
                    Ok(())
                })?;
                by_operation = vec![(Op::Delete, deleted), (Op::Insert, of(&part.successors))];
            }
            for (op, rows) in by_operation {
                progress.outcomes.applied(op, rows.len() as u64);
                done.extend(rows.into_iter().map(|row| (part.table.place, op, row)));
            }
        }
        Ok(Some(done))
    }

    /// What applies rows together; `None` if one of them cannot be applied at all.
    fn parts(
        &mut self,
        rows: &[Candidate],
        successors: &Successors,
        progress: &mut Progress<'_>,
    ) -> Result<Option<Vec<Part<'r, 'r, R::Table>>>> {
        let chosen: HashSet<&Candidate> = rows.iter().collect();
        let pairs = successors.iter();
        let pairs = pairs.filter(|(deleted, it)| chosen.contains(deleted) && chosen.contains(it));
        let succeeding: HashMap<&Candidate, &Candidate> = pairs.collect();
        let succeed: HashSet<&Candidate> = succeeding.values().copied().collect();
        let mut parts = Vec::new();
        for op in [Op::Delete, Op::Update, Op::Insert] {
            for table in self.tables {
                let mut refs = Vec::new();
                let (mut replaced, mut replacing) = (Vec::new(), Vec::new());
                for it in rows.iter().filter(|it| it.0 == table.place) {
                    match succeeding.get(it) {
                        // It may need what deletes free.
                        Some(successor) if op == Op::Update => {
                            replaced.push(it.2);
                            replacing.push(successor.2);
                        }
                        None if it.1 == op && !succeed.contains(it) => refs.push(it.2),
                        _ => {}
                    }
                }
                if !replaced.is_empty() {
                    for (op, rows) in [(Op::Delete, &replaced), (Op::Insert, &replacing)] {
                        if self.sort(table, op, rows, progress)?.rows().count() < rows.len() {
                            return Ok(None);
                        }
                    }
                    parts.push(Part {
                        table,
                        op: Op::Update,
                        changed: table.written.clone(),
                        rows: replaced,
                        successors: replacing,
                    });
                }
                let sorted = self.sort(table, op, &refs, progress)?;
                let mut ready: Vec<RowRef> = sorted.rows().collect();
                if op != Op::Update && ready.len() < refs.len() {
                    return Ok(None);
                }
                if ready.is_empty() {
                    continue;
                }
                ready.sort_unstable();
                let changed = sorted.ready.into_iter().flat_map(|(columns, _)| columns);
                let changed: BTreeSet<usize> = changed.collect();
                parts.push(Part {
                    table,
                    op,
                    changed: changed.into_iter().collect(),
                    rows: ready,
                    successors: Vec::new(),
                });
            }
        }
        Ok((!parts.is_empty()).then_some(parts))
    }
}

/// As many groups at once as go together.
fn batches(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let mut batches: Vec<Vec<Group>> = Vec::new();
    let mut rows = 0;
    for group in groups {
        if rows + group.rows.len() > MOST_ROWS {
            rows = 0;
        }
        rows += group.rows.len();
        match batches.last_mut() {
            Some(batch) if rows > group.rows.len() => batch.push(group),
            _ => batches.push(vec![group]),
        }
    }
    batches
}
