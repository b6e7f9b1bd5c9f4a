//! Rows that need each other: applied by one statement, or not at all.

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio_postgres::types::ToSql;

use tidewater_protocol::{Code, Op};

use super::incoming::{Incoming, RowRef};
use super::sql::{self, Part};
use super::statements::{Executed, Failed, GUARD, KEEP, Statements, UNDO, execute};
use super::{Admitted, One, Progress};
use crate::error::CentreError;
use crate::linked::{Group, Links, may_wait};
use crate::postgres::array::Array;
use crate::postgres::connection::{Connection, refused};
use crate::postgres::model::CompiledTable;
use crate::sift::{Sift, Trial};

/// The most rows of one statement, unless one group has more.
const MOST_ROWS: usize = 2_000;

/// About the most bytes of rows that go into one statement: a message to PostgreSQL has less than
/// a GiB.
const MOST_BYTES: usize = 256 << 20;

/// Which rows are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidates {
    /// Those that failed so far and the deletes that are still to come, which would take children
    /// along that cannot leave before.
    WithDeletes,
    /// Those that failed.
    Failed,
}

/// A row: the number of its table in the upload, what is done with it, and where it is.
type Candidate = (usize, Op, RowRef);

impl One<'_> {
    /// Whether deletes that are still to come could take along a row that has not left its parent
    /// because it failed so far, perhaps for a value that one of them frees.
    pub(super) fn waits_for_deletes(
        &self,
        incoming: &[Incoming<'_>],
        progress: &Progress<'_>,
    ) -> bool {
        let mut tables = incoming.iter();
        let takes_along = |it: &Incoming<'_>| it.table.effects.on_delete && !it.deletes.is_empty();
        progress.refusals.iter().any(|it| it.op != Op::Delete) && tables.any(takes_along)
    }

    /// Tries rows again that found their unique values taken: others may have made way since.
    async fn look_again(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
    ) -> Result<(), CentreError> {
        for mut refusals in std::mem::take(&mut progress.refusals) {
            let is_taken = |failed: &Failed| failed.code == Code::RowKeyInUse;
            let (taken, others) = refusals.failed.into_iter().partition(is_taken);
            refusals.failed = taken;
            self.run_again(
                connection,
                incoming,
                admitted,
                progress,
                &mut refusals,
                false,
            )
            .await?;
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
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
        which: Candidates,
    ) -> Result<(Vec<Candidate>, Vec<Group>), CentreError> {
        let mut links = Links::new(&self.publication.schema);
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut codes = Vec::new();
        for (at, it) in incoming.iter().enumerate() {
            if !links.concern(it.index) {
                continue;
            }
            for refusals in progress.refusals.iter().filter(|it| it.table == at) {
                let rows = refusals
                    .failed
                    .iter()
                    .filter(|failed| may_wait(failed.code));
                for failed in rows {
                    candidates.push((at, refusals.op, failed.at));
                    codes.push(Some(failed.code));
                }
            }
            let comes = which == Candidates::WithDeletes && !it.table.deletes_first;
            if comes && it.table.direction.uploads() && !it.deletes.is_empty() {
                let statements = self.statements(connection, it, admitted, progress);
                let mut rows = deletable(statements).await?;
                rows.retain(|&row| !progress.settled.contains(&(at, row)));
                candidates.extend(rows.into_iter().map(|row| (at, Op::Delete, row)));
                codes.resize(candidates.len(), None);
            }
        }
        let mut codes = codes.into_iter();
        for of_table in candidates.chunk_by(|a, b| a.0 == b.0) {
            let it = &incoming[of_table[0].0];
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

    /// Applies rows that need each other.
    pub(super) async fn together(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
        which: Candidates,
    ) -> Result<(), CentreError> {
        let (mut candidates, mut groups) = self
            .find_groups(connection, incoming, admitted, progress, which)
            .await?;
        if groups.is_empty() {
            return Ok(());
        }
        let mut failed = progress.refusals.iter().flat_map(|it| &it.failed);
        if failed.any(|it| it.code == Code::RowKeyInUse) {
            self.look_again(connection, incoming, admitted, progress)
                .await?;
            (candidates, groups) = self
                .find_groups(connection, incoming, admitted, progress, which)
                .await?;
        }
        let pairs = groups.iter().flat_map(|group| &group.successions);
        let pairs = pairs.map(|it| (candidates[it.deleted], candidates[it.inserted]));
        // An upload may have a table in several places, each with columns of its own.
        let successors = pairs.filter(|(deleted, inserted)| deleted.0 == inserted.0);
        let successors: HashMap<Candidate, Candidate> = successors.collect();
        let mut waiting = batches(groups);
        waiting.reverse();
        let mut done = HashSet::new();
        while let Some(groups) = waiting.pop() {
            let rows = groups.iter().flat_map(|group| &group.rows);
            let rows: Vec<Candidate> = rows.map(|&number| candidates[number]).collect();
            let mut attempt = Attempt {
                one: self,
                connection,
                incoming,
                admitted,
                progress,
                successors: &successors,
            };
            if let Some(written) = attempt.all_or_none(&rows, Ends::Kept).await? {
                done.extend(written);
            } else if groups.len() > 1 {
                let mut left = groups;
                let right = left.split_off(left.len() / 2);
                waiting.extend([right, left]);
            } else {
                let is_needed = |number: &usize| groups[0].needed.contains(number);
                let (needed, others) = groups[0].rows.iter().partition(|it| is_needed(it));
                let [needed, others] = [needed, others].map(|numbers: Vec<usize>| {
                    let rows = numbers.into_iter().map(|number| candidates[number]);
                    rows.collect::<Vec<Candidate>>()
                });
                done.extend(attempt.without_some(Sift::new(needed, &others)).await?);
            }
        }
        for refusals in &mut progress.refusals {
            let (table, op) = (refusals.table, refusals.op);
            refusals
                .failed
                .retain(|failed| !done.contains(&(table, op, failed.at)));
        }
        progress.refusals.retain(|it| !it.failed.is_empty());
        let deleted = done.into_iter().filter(|&(_, op, _)| op == Op::Delete);
        progress
            .settled
            .extend(deleted.map(|(table, _, row)| (table, row)));
        Ok(())
    }
}

/// Whether what was applied stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Kept,
    Undone,
}

/// What applying a group takes.
struct Attempt<'a, 'u, 'p> {
    one: &'a One<'u>,
    connection: &'a mut Connection,
    incoming: &'a [Incoming<'u>],
    admitted: &'a Admitted,
    progress: &'a mut Progress<'p>,
    /// Which inserted rows take the place of deleted ones.
    successors: &'a HashMap<Candidate, Candidate>,
}

/// One statement for rows that need each other.
#[derive(Default)]
struct Prepared<'a, 'u> {
    parts: Vec<Part<'a, 'u>>,
    /// One for each part.
    places: Vec<Placed>,
    /// Those of all parts.
    parameters: Vec<Array>,
}

/// Rows of a part of the statement.
struct Placed {
    table: usize,
    op: Op,
    rows: Vec<RowRef>,
    /// If rows take the places of these, for each of them the one that does.
    successors: Vec<RowRef>,
}

impl Placed {
    fn new(table: usize, op: Op, rows: Vec<RowRef>) -> Placed {
        Placed {
            table,
            op,
            rows,
            successors: Vec::new(),
        }
    }
}

impl<'a, 'u> Attempt<'a, 'u, '_> {
    /// Applies a group that failed without those to blame of the rows for which nobody waits.
    async fn without_some(
        &mut self,
        mut sift: Sift<Candidate>,
    ) -> Result<Vec<Candidate>, CentreError> {
        while let Some(Trial { rows, stays }) = sift.next() {
            let ends = if stays { Ends::Kept } else { Ends::Undone };
            let done = self.all_or_none(&rows, ends).await?;
            sift.told(done.is_some());
            if stays && let Some(done) = done {
                return Ok(done);
            }
        }
        Ok(Vec::new())
    }

    /// Applies rows by one statement; gives those that were written. All inserts and deletes have
    /// to be among them: an update that finds its row changed loses for itself.
    async fn all_or_none(
        &mut self,
        rows: &[Candidate],
        ends: Ends,
    ) -> Result<Option<Vec<Candidate>>, CentreError> {
        let Some(prepared) = self.prepare(rows)?.filter(|it| !it.parts.is_empty()) else {
            return Ok(None);
        };
        let Prepared {
            parts,
            places,
            parameters,
        } = prepared;
        let connection = &mut *self.connection;
        let statement = connection.prepare(&sql::together(&parts), &[]).await?;
        let error = |error| refused("applying rows that need each other")(error);
        let begun = connection.client().batch_execute(GUARD).await;
        begun.map_err(error)?;
        // By part, the places of the rows.
        let mut written: Vec<Vec<usize>> = vec![Vec::new(); places.len()];
        if let Executed::Rows(result) = execute(connection, &statement, &parameters).await? {
            for row in result {
                let part = row.get::<_, i32>(0) as usize;
                // Ordinals count from 1.
                written[part].push(row.get::<_, i64>(1) as usize - 1);
            }
        }
        let mut parts = places.iter().zip(&written);
        let all = parts
            .all(|(place, written)| place.op == Op::Update || written.len() == place.rows.len())
            && written.iter().any(|rows| !rows.is_empty());
        let kept = all && ends == Ends::Kept;
        let end = connection
            .client()
            .batch_execute(if kept { KEEP } else { UNDO })
            .await;
        end.map_err(error)?;
        if !kept {
            return Ok(all.then(Vec::new));
        }
        let mut done = Vec::new();
        for (place, written) in places.into_iter().zip(written) {
            let of = |rows: &[RowRef]| {
                let mut rows: Vec<RowRef> = written.iter().map(|&at| rows[at]).collect();
                rows.sort_unstable();
                rows
            };
            let mut rows = vec![(place.op, of(&place.rows))];
            if !place.successors.is_empty() {
                rows.push((Op::Insert, of(&place.successors)));
            }
            let succeeds = !place.successors.is_empty();
            for (op, rows) in rows {
                if succeeds && op == Op::Delete {
                    let (incoming, outcomes) =
                        (&self.incoming[place.table], &mut self.progress.outcomes);
                    incoming.rows(&rows, |_, row| {
                        outcomes.succeeded(incoming, &row.key);
                        Ok(())
                    })?;
                }
                self.note(place.table, op, &rows).await?;
                done.extend(rows.into_iter().map(|row| (place.table, op, row)));
            }
        }
        Ok(Some(done))
    }

    /// What applies rows by one statement; `None` if one of them cannot be applied at all.
    fn prepare(&mut self, rows: &[Candidate]) -> Result<Option<Prepared<'a, 'u>>, CentreError> {
        let (one, incoming, admitted) = (self.one, self.incoming, self.admitted);
        let (connection, progress) = (&mut *self.connection, &mut *self.progress);
        let mut prepared = Prepared::default();
        let chosen: HashSet<&Candidate> = rows.iter().collect();
        let succeeding = rows
            .iter()
            .filter_map(|it| Some((it, self.successors.get(it)?)));
        let succeeding: HashMap<&Candidate, &Candidate> =
            succeeding.filter(|(_, it)| chosen.contains(it)).collect();
        let succeed: HashSet<&Candidate> = succeeding.values().copied().collect();
        // Inserts are made to wait for deletes, which the statement has to name before.
        let operations = [Op::Delete, Op::Update, Op::Insert].into_iter();
        let possible = operations.flat_map(|op| (0..incoming.len()).map(move |table| (table, op)));
        let mut bytes = 0;
        for (table, op) in possible {
            let mut refs = Vec::new();
            let mut replaced = Placed::new(table, Op::Delete, Vec::new());
            for it in rows.iter().filter(|it| it.0 == table) {
                match succeeding.get(it) {
                    // It may need what deletes free.
                    Some(successor) if op == Op::Update => {
                        replaced.rows.push(it.2);
                        replaced.successors.push(successor.2);
                    }
                    None if it.1 == op && !succeed.contains(it) => refs.push(it.2),
                    _ => {}
                }
            }
            let lists = [&refs, &replaced.rows, &replaced.successors];
            bytes += lists.map(|rows| distance(rows)).iter().sum::<usize>();
            if bytes > MOST_BYTES {
                return Ok(None);
            }
            let of_table = &incoming[table];
            let mut statements = one.statements(connection, of_table, admitted, progress);
            if !replaced.rows.is_empty() {
                let changed: Vec<usize> = of_table.written().collect();
                let CompiledTable { columns, key, .. } = of_table.table;
                let is_settable = !changed.iter().any(|&it| columns[it].identity_always)
                    && key.iter().all(|it| changed.contains(it));
                if !is_settable {
                    return Ok(None);
                }
                let images = [
                    (Op::Delete, &replaced.rows),
                    (Op::Insert, &replaced.successors),
                ];
                for (op, rows) in images {
                    if statements.sort(op, rows)?.rows().count() < rows.len() {
                        return Ok(None);
                    }
                    let parameters = statements.parameters(op, &[], rows)?;
                    prepared.parameters.extend(parameters);
                }
                prepared.places.push(replaced);
                prepared.parts.push(Part {
                    incoming: of_table,
                    op: Op::Update,
                    changed,
                    succeeds: true,
                });
            }
            let sorted = statements.sort(op, &refs)?;
            let mut ready: Vec<RowRef> = sorted.rows().collect();
            if op != Op::Update && ready.len() < refs.len() {
                return Ok(None);
            }
            if ready.is_empty() {
                continue;
            }
            ready.sort_unstable();
            let columns = sorted.ready.into_iter().flat_map(|(columns, _)| columns);
            let changed: BTreeSet<usize> = columns.collect();
            let changed: Vec<usize> = changed.into_iter().collect();
            let parameters = statements.parameters(op, &changed, &ready)?;
            prepared.parameters.extend(parameters);
            prepared.places.push(Placed::new(table, op, ready));
            prepared.parts.push(Part {
                incoming: of_table,
                op,
                changed,
                succeeds: false,
            });
        }
        Ok(Some(prepared))
    }

    /// Notes that rows were written.
    async fn note(&mut self, table: usize, op: Op, rows: &[RowRef]) -> Result<(), CentreError> {
        self.progress.outcomes.applied(op, rows.len() as u64);
        let incoming = &self.incoming[table];
        let mut statements =
            self.one
                .statements(self.connection, incoming, self.admitted, self.progress);
        if op == Op::Insert && incoming.edits_inserts {
            statements.log_moved(rows).await?;
        }
        Ok(())
    }
}

/// The deletes of a table that find their rows as their pre-images say; nobody else changes these
/// any more.
async fn deletable(mut of: Statements<'_, '_, '_, '_>) -> Result<Vec<RowRef>, CentreError> {
    let incoming = of.incoming;
    let mut deletes = Vec::with_capacity(incoming.deletes.len());
    incoming.rows(&incoming.deletes, |at, row| {
        let refused = of.outcomes.why_orphan(incoming, Op::Delete, &row.key);
        if refused.is_none() {
            deletes.push(incoming.deletes[at]);
        }
        Ok(())
    })?;
    let sorted = of.sort(Op::Delete, &deletes)?;
    let ready: Vec<RowRef> = sorted.rows().collect();
    let text = sql::deletable(of.incoming);
    let statement = of.connection.prepare(&text, &[]).await?;
    let mut found = Vec::new();
    let mut rest = ready.as_slice();
    while !rest.is_empty() {
        let (rows, after) = rest.split_at(of.batch_size(rest));
        rest = after;
        let arrays = of.parameters(Op::Delete, &[], rows)?;
        let parameters: Vec<&(dyn ToSql + Sync)> =
            arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
        let result = of.connection.client().query(&statement, &parameters);
        let result = result
            .await
            .map_err(refused("looking for rows to delete"))?;
        // Ordinals count from 1.
        let at = result
            .iter()
            .map(|row| rows[row.get::<_, i64>(0) as usize - 1]);
        found.extend(at);
    }
    found.sort_unstable();
    Ok(found)
}

/// From the first of some rows to the last, in bytes.
fn distance(rows: &[RowRef]) -> usize {
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    let distances = rows.windows(2).map(|pair| pair[0].distance(pair[1]));
    distances.sum()
}

/// As many groups at once as go into one statement.
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
