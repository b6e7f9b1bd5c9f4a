//! Rows that failed are tried again: what failed alone may pass when others are in, and rows that
//! need each other pass together ([`super::key_cycles`]).
//!
//! A round costs in proportion to the rows that are tried in it, and all rounds of an upload
//! together in proportion to its rows.

use std::collections::{BTreeSet, HashSet};

use tidewater_protocol::{Code, Op};

use super::incoming_rows::{IncomingTable, RowRef};
use super::key_cycles::KeyCycles;
use super::row_batch::CyclePart;
use super::upload_driver::UploadDriver;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::upload_run::{
    EarlierFailures, TableFailures, UploadProgress, UploadRun,
};
use crate::error::CentreError;

/// How many rows are tried again, for each row of the upload.
const TRIES_PER_ROW: u64 = 4;

/// That many are tried again however small the upload is.
const FREE_TRIES: u64 = 1_000;

/// The most rows that are applied together, unless one circle has more.
const MOST_ROWS: usize = 2_000;

type Result<T> = std::result::Result<T, CentreError>;

/// A row: the place of its table in the upload, what is done with it, and where it is.
type Candidate = (usize, Op, RowRef);

/// Whether a row that failed so may have waited for another one.
fn may_wait(failed: &FailedRow) -> bool {
    let codes = [Code::RowForeignKey, Code::RowKeyInUse, Code::RowConstraint];
    codes.contains(&failed.refusal.code)
}

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// Tries failed rows again as long as that gets some of them in. False: there are rows that
    /// need each other, but it cannot be told whether they violate a constraint.
    pub(super) async fn retry(&mut self, progress: &mut UploadProgress<'_>) -> Result<bool> {
        let rows: u64 = self.tables.iter().map(IncomingTable::count).sum();
        let mut left = rows * TRIES_PER_ROW + FREE_TRIES;
        // The first tries were in their order. Of rows that wait for the next one each, a round in
        // their order would get in a single one.
        let mut backwards = true;
        loop {
            let failed = progress.failures.iter().flat_map(|it| &it.failed);
            let waiting = failed.filter(|it| may_wait(it)).count() as u64;
            let before = progress.failed_rows();
            if waiting == 0 || waiting > left {
                return Ok(true);
            }
            left -= waiting;
            self.retry_single_rows(backwards, progress).await?;
            backwards = !backwards;
            if progress.failed_rows() < before {
                continue;
            }
            match self.retry_cycles(progress).await? {
                None => return Ok(false),
                Some(0) => return Ok(true),
                Some(_) => {}
            }
        }
    }

    async fn retry_single_rows(
        &mut self,
        backwards: bool,
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let mut failures = std::mem::take(&mut progress.failures);
        let count = failures.len();
        for number in 0..count {
            let at = if backwards {
                count - 1 - number
            } else {
                number
            };
            self.retry_operation(&mut failures[at], backwards, progress)
                .await?;
        }
        failures.retain(|failure| !failure.failed.is_empty());
        progress.failures = failures;
        Ok(())
    }

    /// Tries failed rows of one operation once more, which leaves those that fail again.
    async fn retry_operation(
        &mut self,
        failures: &mut TableFailures,
        backwards: bool,
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let failed = std::mem::take(&mut failures.failed);
        let (waiting, hopeless): (Vec<FailedRow>, Vec<FailedRow>) =
            failed.into_iter().partition(may_wait);
        let mut refs: Vec<RowRef> = waiting.iter().map(|failed| failed.at).collect();
        if backwards {
            refs.reverse();
        }
        let mut earlier = EarlierFailures::new();
        if failures.op == Op::Update {
            let waiting = waiting.into_iter();
            earlier = waiting.map(|it| (it.at, it.refusal)).collect();
        }
        let (table, op) = (&self.tables[failures.table], failures.op);
        failures.failed = self.write(table, op, &refs, &earlier, progress).await?;
        failures.failed.extend(hopeless);
        failures.failed.sort_by_key(|failed| failed.at);
        Ok(())
    }

    /// Applies rows that need each other, and counts them. `None`: there are some, but it cannot
    /// be told whether they violate a constraint.
    async fn retry_cycles(&mut self, progress: &mut UploadProgress<'_>) -> Result<Option<usize>> {
        let mut circles = KeyCycles::new(&self.publication.schema, &self.key_cascades.foreign_keys);
        let mut candidates: Vec<Candidate> = Vec::new();
        for failures in &progress.failures {
            let table = &self.tables[failures.table];
            let failed = failures.failed.iter();
            let waiting = failed.filter(|it| may_wait(it) && !it.has_children);
            let rows: Vec<RowRef> = waiting.map(|it| it.at).collect();
            table.rows(&rows, |at, row| {
                circles.add(table.index, &table.map, row);
                candidates.push((failures.table, failures.op, rows[at]));
                Ok(())
            })?;
        }
        let circles = circles.find();
        if circles.is_empty() {
            return Ok(Some(0));
        }
        if !self.rows.can_check_single_rows()? {
            return Ok(None);
        }
        let mut done: HashSet<Candidate> = HashSet::new();
        let row = |&number: &usize| candidates[number];
        for some in batches(&circles) {
            let rows: Vec<Candidate> = some.iter().flatten().map(row).collect();
            if self.all_or_none(&rows, progress).await? {
                done.extend(rows);
                continue;
            }
            for circle in some.iter().filter(|_| some.len() > 1) {
                let rows: Vec<Candidate> = circle.iter().map(row).collect();
                if self.all_or_none(&rows, progress).await? {
                    done.extend(rows);
                }
            }
        }
        for failures in &mut progress.failures {
            let (table, op) = (failures.table, failures.op);
            let failed = &mut failures.failed;
            failed.retain(|failed| !done.contains(&(table, op, failed.at)));
        }
        progress.failures.retain(|it| !it.failed.is_empty());
        Ok(Some(done.len()))
    }

    /// Applies rows together; whether they are in.
    async fn all_or_none(
        &mut self,
        rows: &[Candidate],
        progress: &mut UploadProgress<'_>,
    ) -> Result<bool> {
        let mut parts = Vec::new();
        for op in [Op::Delete, Op::Update, Op::Insert] {
            for table in self.tables {
                let of_part = rows.iter().filter(|it| it.0 == table.place && it.1 == op);
                let mut refs: Vec<RowRef> = of_part.map(|it| it.2).collect();
                refs.sort_unstable();
                let sorted = self.sort(table, op, &refs, progress)?;
                if sorted
                    .ready
                    .sets
                    .iter()
                    .map(|(_, rows)| rows.len())
                    .sum::<usize>()
                    < refs.len()
                {
                    return Ok(false);
                }
                if refs.is_empty() {
                    continue;
                }
                let changed = sorted
                    .ready
                    .sets
                    .into_iter()
                    .flat_map(|(columns, _)| columns);
                let changed: BTreeSet<usize> = changed.collect();
                parts.push(CyclePart {
                    table,
                    op,
                    changed: changed.into_iter().collect(),
                    rows: refs,
                });
            }
        }
        if !self.rows.write_cycle(&parts).await? {
            return Ok(false);
        }
        for part in &parts {
            progress.outcomes.applied(part.op, part.rows.len() as u64);
        }
        Ok(true)
    }
}

/// As many circles at once as go together.
fn batches(circles: &[Vec<usize>]) -> Vec<&[Vec<usize>]> {
    let mut batches = Vec::new();
    let (mut from, mut rows) = (0, 0);
    for (at, circle) in circles.iter().enumerate() {
        if at > from && rows + circle.len() > MOST_ROWS {
            batches.push(&circles[from..at]);
            (from, rows) = (at, 0);
        }
        rows += circle.len();
    }
    batches.push(&circles[from..]);
    batches
}
