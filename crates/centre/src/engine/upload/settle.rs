//! Writing rows of one operation of one table, and deciding what becomes of those that meet
//! something else than they expect: the one place where conflicts are decided.

use std::collections::HashMap;

use tidewater_protocol::{Code, Datum, Op, Table, pack};

use super::apply::{Earlier, Progress, Run};
use super::incoming::{Incoming, RowRef};
use super::rows::{Batch, Failed, Image, Met, Refusal, Rows, Written};
use crate::error::CentreError;

/// Updates are told apart by the columns that they change, so that a user's `UPDATE OF` triggers
/// fire for those only; up to so many kinds of them.
const MAX_CHANGE_SETS: usize = 16;

/// So many rows of the centre are looked at together.
const ROWS_AT_ONCE: usize = 2_000;

type Result<T> = std::result::Result<T, CentreError>;

/// What the rows of one operation are sorted into before any is written.
#[derive(Default)]
pub(super) struct Sorted {
    /// To be written; for updates by the set of changed columns.
    pub(super) ready: Vec<(Vec<usize>, Vec<RowRef>)>,
    /// Cannot be written as they are; what they lost against has to be read.
    pub(super) lost: Vec<RowRef>,
}

impl Sorted {
    /// Those that can be written.
    pub(super) fn rows(&self) -> impl Iterator<Item = RowRef> {
        self.ready.iter().flat_map(|(_, rows)| rows).copied()
    }
}

/// What becomes of a row that has met one of the centre.
enum Verdict {
    /// The centre has what the remote wants.
    Applied,
    /// The centre's row wins.
    Lost,
    /// It is none of the remote's business.
    Refused(Code, &'static str),
}

/// Decides who wins. `is_theirs`: the centre's row is in a partition of the remote.
fn decide(op: Op, met: &Met, is_theirs: bool) -> Verdict {
    match op {
        Op::Insert if !is_theirs => Verdict::Refused(Code::RowKeyInUse, "key in use"),
        _ if !is_theirs => Verdict::Refused(Code::RowOutOfScope, OUT_OF_SCOPE),
        Op::Insert | Op::Update if met.is_as_uploaded => Verdict::Applied,
        _ => Verdict::Lost,
    }
}

const OUT_OF_SCOPE: &str = "this row is not in your partitions";

impl<R: Rows> Run<'_, R> {
    /// Writes rows of one operation; gives back those that the database refused.
    pub(super) async fn write(
        &mut self,
        table: &Incoming<'_, R::Table>,
        op: Op,
        refs: &[RowRef],
        earlier: &Earlier,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Failed>> {
        let Sorted { ready, mut lost } = self.sort(table, op, refs, progress)?;
        let mut failed = Vec::new();
        for (changed, refs) in &ready {
            let batch = Batch {
                table,
                op,
                changed,
                insists: false,
            };
            let written = self.rows.write(&batch, refs).await?;
            lost.extend(note(table, op, written, &mut failed, progress)?);
        }
        for rows in lost.chunks(ROWS_AT_ONCE) {
            self.meet(table, op, rows, earlier, progress, &mut failed)
                .await?;
        }
        failed.sort_by_key(|failed| failed.at);
        Ok(failed)
    }

    /// Tells what can be written from what cannot, and refuses what never will.
    pub(super) fn sort(
        &mut self,
        table: &Incoming<'_, R::Table>,
        op: Op,
        refs: &[RowRef],
        progress: &mut Progress<'_>,
    ) -> Result<Sorted> {
        let mut sorted = Sorted::default();
        let mut sets: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut membership = self.membership(table);
        let schema = &self.publication.schema.tables[table.index];
        let (rows, outcomes) = (&mut *self.rows, &mut progress.outcomes);
        // Reused from row to row.
        let mut changed = Vec::new();
        table.images(refs, |at, uploaded| {
            if let Some(refusal) = outcomes.why_orphan(table, op, uploaded.key) {
                outcomes.refused(table, uploaded, &refusal);
                return Ok(());
            }
            if let Some(new) = uploaded.new {
                let null = uploaded.key.iter().position(|it| *it == Datum::Null);
                let refusal = if let Some(place) = null {
                    let column = &schema.columns[schema.key[place]].name;
                    let reason = format!("the key column {column} is NULL");
                    Some((Code::RowNotNull, reason))
                } else if uploaded
                    .old
                    .is_some_and(|old| !has_key_of(schema, old, new))
                {
                    let reason = "an update cannot give a row another key";
                    Some((Code::RowBadValue, reason.to_owned()))
                } else if let Some(reason) = rows.unfit(table, Image::New, new) {
                    Some((Code::RowBadValue, reason))
                } else {
                    let is_theirs = membership.has(new);
                    (!is_theirs).then(|| (Code::RowOutOfScope, OUT_OF_SCOPE.to_owned()))
                };
                if let Some((code, reason)) = refusal {
                    outcomes.refused(table, uploaded, &Refusal { code, reason });
                    return Ok(());
                }
            }
            let mut is_lost = uploaded.old.is_some_and(|old| {
                !membership.has(old) || rows.unfit(table, Image::Old, old).is_some()
            });
            changed.clear();
            if let (Some(old), Some(new)) = (uploaded.old, uploaded.new) {
                let differs = |index: &usize| !pack::same(&old[*index], &new[*index]);
                changed.extend(table.updatable.iter().copied().filter(differs));
                is_lost |= changed.is_empty();
            }
            if is_lost {
                sorted.lost.push(refs[at]);
                return Ok(());
            }
            let set = match sets.get(&changed) {
                Some(&set) => set,
                None => {
                    if sets.len() >= MAX_CHANGE_SETS {
                        changed.clone_from(&table.updatable);
                    }
                    *sets.entry(changed.clone()).or_insert_with_key(|changed| {
                        sorted.ready.push((changed.clone(), Vec::new()));
                        sorted.ready.len() - 1
                    })
                }
            };
            sorted.ready[set].1.push(refs[at]);
            Ok(())
        })?;
        Ok(sorted)
    }

    /// Reads the rows of the centre that uploaded ones met, and settles who wins.
    async fn meet(
        &mut self,
        table: &Incoming<'_, R::Table>,
        op: Op,
        rows: &[RowRef],
        earlier: &Earlier,
        progress: &mut Progress<'_>,
        failed: &mut Vec<Failed>,
    ) -> Result<()> {
        let met = self.rows.find(table, op, rows).await?;
        let mut membership = self.membership(table);
        let types = &self.publication.shapes[table.index].columns;
        let Progress {
            outcomes,
            undisputed,
            ..
        } = &mut *progress;
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        table.images(rows, |at, uploaded| {
            let Some(met) = &met[at] else {
                gone.push(rows[at]);
                return Ok(());
            };
            let central = met.central.values(types)?;
            match decide(op, met, membership.has(&central)) {
                Verdict::Applied => outcomes.applied(op, 1),
                Verdict::Refused(code, reason) => {
                    let reason = reason.to_owned();
                    outcomes.refused(table, uploaded, &Refusal { code, reason });
                }
                Verdict::Lost if undisputed.contains(&(table.place, rows[at])) => {
                    changed.push(rows[at]);
                }
                Verdict::Lost => match earlier.get(&rows[at]) {
                    Some(refusal) => failed.push(Failed {
                        at: rows[at],
                        refusal: refusal.clone(),
                    }),
                    // One that cannot be sent is as good as gone until it can: then it comes with
                    // a download.
                    None => {
                        let winner = met.central.is_whole.then_some(&central[..]);
                        outcomes.conflict(table, uploaded, winner);
                    }
                },
            }
            Ok(())
        })?;
        if !changed.is_empty() {
            gone.extend(self.insist(table, op, &changed, progress, failed).await?);
        }
        self.settle_gone(table, op, gone, earlier, progress, failed)
            .await
    }

    /// Writes rows whatever the centre has instead of what they expect; gives back those that were
    /// passed over all the same.
    async fn insist(
        &mut self,
        table: &Incoming<'_, R::Table>,
        op: Op,
        rows: &[RowRef],
        progress: &mut Progress<'_>,
        failed: &mut Vec<Failed>,
    ) -> Result<Vec<RowRef>> {
        let batch = Batch {
            table,
            op,
            changed: &[],
            insists: true,
        };
        let written = self.rows.write(&batch, rows).await?;
        note(table, op, written, failed, progress)
    }

    /// Settles rows whose key the centre does not have.
    async fn settle_gone(
        &mut self,
        table: &Incoming<'_, R::Table>,
        op: Op,
        mut gone: Vec<RowRef>,
        earlier: &Earlier,
        progress: &mut Progress<'_>,
        failed: &mut Vec<Failed>,
    ) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
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
                let passed_over = self.insist(table, op, &gone, progress, failed).await?;
                debug_assert!(passed_over.is_empty());
                Ok(())
            }
            _ => {
                gone.retain(|at| match earlier.get(at) {
                    Some(refusal) => {
                        failed.push(Failed {
                            at: *at,
                            refusal: refusal.clone(),
                        });
                        false
                    }
                    None => true,
                });
                progress.outcomes.conflicts_gone(table, &gone)
            }
        }
    }
}

/// Whether both images have the same key.
fn has_key_of(schema: &Table, old: &[Datum<'_>], new: &[Datum<'_>]) -> bool {
    let mut key = schema.key.iter();
    key.all(|&column| pack::same(&old[column], &new[column]))
}

/// Notes what became of rows; gives back those that were passed over.
fn note<T>(
    table: &Incoming<'_, T>,
    op: Op,
    written: Written,
    failed: &mut Vec<Failed>,
    progress: &mut Progress<'_>,
) -> Result<Vec<RowRef>> {
    let outcomes = &mut progress.outcomes;
    outcomes.applied(op, written.applied);
    outcomes.refuse(table, &written.refused)?;
    // The centre has what was uploaded under a key of its own, which the download brings. Under
    // the remote's key there is nothing.
    outcomes.conflicts_gone(table, &written.elsewhere)?;
    failed.extend(written.failed);
    Ok(written.passed_over)
}
