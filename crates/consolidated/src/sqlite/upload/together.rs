//! Rows that need each other, applied together or not at all; see [`crate::linked`].

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use tidewater_protocol::{Code, Op};

use super::{Collected, DeferredKeys, Pending, UploadRun, each_row, unpacked};
use crate::error::CentreError;
use crate::linked::{Group, Links, Succession, may_wait};
use crate::sift::{Sift, Trial};
use crate::sqlite::row::{Fate, Refusal, RowError, Stop};
use crate::sqlite::{deferred_violations, failure};

/// Which rows of a group may be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeavesOut {
    /// Those that cannot be applied and for which no others wait.
    NotNeeded,
    /// Any that cannot be applied.
    Failed,
    /// Also those that violate a foreign key, which only a look at all tables tells.
    Violators,
}

/// How applying a group ended.
enum Attempt {
    /// The numbers and fates of its rows.
    Done(Vec<(usize, Fate)>),
    /// Not at all; which of them violate a foreign key, if that was looked for.
    Violates(HashSet<usize>),
}

impl UploadRun<'_> {
    /// Before the deletes: applies those together with rows that would be taken along by them,
    /// because they cannot leave before. False: it cannot be told whether these violate a key,
    /// because others do; with keys checked after each row it can.
    pub(super) fn leave_first(
        &mut self,
        deleting: &[usize],
        keys: DeferredKeys,
        collected: &mut Collected<'_>,
    ) -> Result<bool, Stop> {
        let mut tables = deleting.iter().map(|&table| self.tables[table].index);
        let takes_along = tables.any(|index| self.publication.tables[index].is_acted_on);
        if collected.pending.is_empty() || !takes_along {
            return Ok(true);
        }
        let pending = std::mem::take(&mut collected.pending);
        let pending = self.one_by_one(pending, keys, collected)?;
        let (mut rows, aside) = those_that_wait(pending);
        let failed = rows.len();
        for &table in deleting {
            let shape = self.tables[table].map.shape.clone();
            each_row(self.uploaded[table], &shape, |number, row, bytes| {
                let work = &self.tables[table];
                let schema = &self.publication.schema;
                let refused = self
                    .orphans
                    .reason(schema, work.index, Op::Delete, &row.key);
                let comes = row.op == Some(Op::Delete) && refused.is_none();
                if comes && work.is_deletable(row).map_err(stop)? {
                    rows.push(Pending {
                        place: (table, number),
                        bytes: bytes(),
                        refusal: Refusal {
                            code: Code::RowForeignKey,
                            reason: String::new(),
                        },
                    });
                }
                Ok(())
            })?;
        }
        let mut groups = self.groups(&rows)?;
        groups.retain(Group::precedes_deletes);
        let can_be_told = groups.is_empty() || !deferred_violations(self.connection)?;
        if can_be_told {
            let done = self.apply_groups(&rows, groups, LeavesOut::NotNeeded, collected)?;
            let deleted = done.iter().filter(|&&number| number >= failed);
            collected
                .settled
                .extend(deleted.map(|&number| rows[number].place));
            rows.truncate(failed);
            collected.pending = without(rows, &done);
            collected.pending.extend(aside);
        }
        Ok(can_be_told)
    }

    /// Applies rows that failed one by one and need each other; gives back the others.
    pub(super) fn together(
        &mut self,
        pending: Vec<Pending>,
        keys: DeferredKeys,
        collected: &mut Collected<'_>,
    ) -> Result<Vec<Pending>, Stop> {
        let (rows, mut left) = those_that_wait(pending);
        let groups = self.groups(&rows)?;
        if groups.is_empty() || deferred_violations(self.connection)? {
            left.extend(rows);
            return Ok(left);
        }
        let leaves_out = match keys {
            DeferredKeys::AtTheEnd => LeavesOut::Failed,
            DeferredKeys::AfterEachRow => LeavesOut::Violators,
        };
        let done = self.apply_groups(&rows, groups, leaves_out, collected)?;
        left.extend(without(rows, &done));
        left.sort_by_key(|pending| pending.place);
        Ok(left)
    }

    fn groups(&self, rows: &[Pending]) -> Result<Vec<Group>, CentreError> {
        let mut links = Links::new(&self.publication.schema);
        for row in rows {
            let work = &self.tables[row.place.0];
            let unpacked = unpacked(&work.map.shape, &row.bytes)?;
            links.add_failed(work.index, &work.map, &unpacked, row.refusal.code);
        }
        Ok(links.groups())
    }

    /// Applies groups of rows; gives the numbers of those that are done.
    fn apply_groups(
        &mut self,
        rows: &[Pending],
        groups: Vec<Group>,
        leaves_out: LeavesOut,
        collected: &mut Collected<'_>,
    ) -> Result<HashSet<usize>, Stop> {
        let mut done = HashSet::new();
        for group in groups {
            for (number, fate) in self.group(rows, group, leaves_out)? {
                let pending = &rows[number];
                let shape = self.tables[pending.place.0].map.shape.clone();
                let row = unpacked(&shape, &pending.bytes)?;
                self.collect(pending.place.0, &row, fate, collected)?;
                done.insert(number);
            }
        }
        Ok(done)
    }

    /// Applies a group; gives the numbers and fates of those that are done. What is left out is
    /// judged when all else is done.
    fn group(
        &mut self,
        rows: &[Pending],
        mut group: Group,
        leaves_out: LeavesOut,
    ) -> Result<Vec<(usize, Fate)>, Stop> {
        loop {
            match self.attempt(rows, &group, leaves_out, true)? {
                Attempt::Done(fates) => return Ok(fates),
                Attempt::Violates(violators) if !violators.is_empty() => {
                    group.rows.retain(|number| !violators.contains(number));
                }
                Attempt::Violates(_) => break,
            }
        }
        if leaves_out == LeavesOut::Violators {
            return Ok(Vec::new());
        }
        let is_needed = |number: &usize| group.needed.contains(number);
        let (needed, others): (Vec<usize>, Vec<usize>) =
            group.rows.iter().partition(|it| is_needed(it));
        let mut sift = Sift::new(needed, &others);
        while let Some(Trial { rows: tried, stays }) = sift.next() {
            group.rows = tried;
            group.rows.sort_unstable();
            let attempt = self.attempt(rows, &group, LeavesOut::NotNeeded, stays)?;
            sift.told(matches!(attempt, Attempt::Done(_)));
            if stays && let Attempt::Done(fates) = attempt {
                return Ok(fates);
            }
        }
        Ok(Vec::new())
    }

    /// Applies a group with all foreign keys checked at its end. If that goes, it is undone all the
    /// same unless it `stays`.
    fn attempt(
        &mut self,
        rows: &[Pending],
        group: &Group,
        leaves_out: LeavesOut,
        stays: bool,
    ) -> Result<Attempt, Stop> {
        self.savepoint("SAVEPOINT tidewater_together")?;
        self.savepoint("PRAGMA defer_foreign_keys = ON")?;
        let fates = self.in_turn(rows, group);
        if fates.is_err() {
            // It may be an upload's own error, after which others go on.
            let _ = self.savepoint("PRAGMA defer_foreign_keys = OFF");
        }
        let fates = fates?;
        let applied: Vec<usize> = fates.iter().map(|(number, _)| *number).collect();
        let is_violated = deferred_violations(self.connection)?;
        let mut violators = HashSet::new();
        if is_violated && leaves_out == LeavesOut::Violators {
            violators = self.violators(rows, &applied)?;
        }
        let misses = match leaves_out {
            LeavesOut::NotNeeded => {
                let applied: HashSet<usize> = applied.iter().copied().collect();
                !group.needed.is_subset(&applied)
            }
            _ => applied.is_empty(),
        };
        let is_well = !misses && !is_violated;
        if !is_well || !stays {
            self.savepoint("ROLLBACK TO tidewater_together")?;
        }
        self.savepoint("PRAGMA defer_foreign_keys = OFF")?;
        self.savepoint("RELEASE tidewater_together")?;
        Ok(match is_well {
            true => Attempt::Done(fates),
            false => Attempt::Violates(violators),
        })
    }

    /// Applies the rows of a group: first what leaves, then what takes another row's place, what
    /// frees, children first, then what takes; and what could not leave before is tried after each
    /// table. Gives those that could be applied.
    fn in_turn(&mut self, rows: &[Pending], group: &Group) -> Result<Vec<(usize, Fate)>, Stop> {
        let (mut updates, mut deletes, mut inserts) = (Vec::new(), Vec::new(), Vec::new());
        let mut successions = group.successions.clone();
        let has = |number| group.rows.binary_search(&number).is_ok();
        // An upload may have a table in several places, each with columns of its own.
        let same = |it: &Succession| rows[it.deleted].place.0 == rows[it.inserted].place.0;
        successions.retain(|it| has(it.deleted) && has(it.inserted) && same(it));
        for &number in &group.rows {
            let mut pairs = successions.iter();
            if pairs.any(|it| it.deleted == number || it.inserted == number) {
                continue;
            }
            let Pending { place, bytes, .. } = &rows[number];
            let work = &self.tables[place.0];
            match unpacked(&work.map.shape, bytes)?.op {
                Some(Op::Update) => updates.push(number),
                Some(Op::Delete) => deletes.push((work.index, number)),
                _ => inserts.push(number),
            }
        }
        deletes.sort_by_key(|&(table, number)| (Reverse(table), number));
        let mut fates = Vec::with_capacity(group.rows.len());
        self.those_that_can(rows, &mut updates, &mut fates)?;
        // All of them before any: what one does by its foreign keys changes another.
        let mut able = Vec::with_capacity(successions.len());
        for it in successions {
            if self.can_succeed(&rows[it.deleted], &rows[it.inserted])? {
                able.push(it);
            }
        }
        let able = self.those_that_succeed(rows, able, &mut updates, &mut fates)?;
        for of_table in deletes.chunk_by(|a, b| a.0 == b.0) {
            let mut of_table: Vec<usize> = of_table.iter().map(|&(_, number)| number).collect();
            self.those_that_can(rows, &mut of_table, &mut fates)?;
            self.those_that_can(rows, &mut updates, &mut fates)?;
        }
        self.those_that_succeed(rows, able, &mut updates, &mut fates)?;
        self.those_that_can(rows, &mut inserts, &mut fates)?;
        self.those_that_can(rows, &mut updates, &mut fates)?;
        Ok(fates)
    }

    /// Puts rows in the places of others, and tries after each what could not leave; gives back
    /// those that do not go.
    fn those_that_succeed(
        &mut self,
        rows: &[Pending],
        successions: Vec<Succession>,
        updates: &mut Vec<usize>,
        fates: &mut Vec<(usize, Fate)>,
    ) -> Result<Vec<Succession>, Stop> {
        let mut left = Vec::new();
        for it in successions {
            if self.succeed(&rows[it.deleted], &rows[it.inserted])? {
                fates.push((it.deleted, Fate::Succeeded));
                fates.push((it.inserted, Fate::Applied));
                self.those_that_can(rows, updates, fates)?;
            } else {
                left.push(it);
            }
        }
        Ok(left)
    }

    /// Whether a row can be put in the place of another one.
    fn can_succeed(&self, deleted: &Pending, inserted: &Pending) -> Result<bool, Stop> {
        let endings = [deleted, inserted].map(|it| (self.index, it.place.0, it.place.1));
        if endings.iter().any(|it| self.endings.contains_key(it)) {
            return Ok(false);
        }
        let work = &self.tables[inserted.place.0];
        let gone = unpacked(&work.map.shape, &deleted.bytes)?;
        let row = unpacked(&work.map.shape, &inserted.bytes)?;
        let schema = &self.publication.schema;
        let refused = self
            .orphans
            .reason(schema, work.index, Op::Insert, &row.key);
        Ok(refused.is_none() && work.can_succeed(&gone, &row).map_err(stop)?)
    }

    /// Puts it there; false if it does not go.
    fn succeed(&mut self, deleted: &Pending, inserted: &Pending) -> Result<bool, Stop> {
        let work = &self.tables[inserted.place.0];
        let gone = unpacked(&work.map.shape, &deleted.bytes)?;
        let row = unpacked(&work.map.shape, &inserted.bytes)?;
        self.savepoint("SAVEPOINT tidewater_row")?;
        let done = work.succeed(&gone, &row).map_err(|error| match error {
            RowError::Ended(refusal) => Stop::Ended {
                place: (self.index, inserted.place.0, inserted.place.1),
                refusal,
            },
            RowError::Centre(error) => Stop::Centre(error),
        })?;
        if !done {
            self.savepoint("ROLLBACK TO tidewater_row")?;
        }
        self.savepoint("RELEASE tidewater_row")?;
        Ok(done)
    }

    /// Applies what can be applied of some rows, which leaves the others of them.
    fn those_that_can(
        &mut self,
        rows: &[Pending],
        numbers: &mut Vec<usize>,
        fates: &mut Vec<(usize, Fate)>,
    ) -> Result<(), Stop> {
        for number in std::mem::take(numbers) {
            let pending = &rows[number];
            let shape = self.tables[pending.place.0].map.shape.clone();
            let row = unpacked(&shape, &pending.bytes)?;
            match self.row(pending.place, DeferredKeys::AtTheEnd, &row)? {
                fate @ (Fate::Applied | Fate::Needless) => fates.push((number, fate)),
                _ => numbers.push(number),
            }
        }
        Ok(())
    }

    /// Which rows of a group violate a key now: inserted and updated rows by their
    /// rowid; deletes whose row is still referred to by the table. If none can be told,
    /// all of them.
    fn violators(
        &self,
        rows: &[Pending],
        applied: &[usize],
    ) -> Result<HashSet<usize>, CentreError> {
        let checking = failure("checking foreign keys");
        // Tables without rowids are checked as a whole: their rows have `None`.
        let mut children: HashMap<String, HashSet<Option<i64>>> = HashMap::new();
        let mut parents: HashSet<String> = HashSet::new();
        let mut statement = self
            .connection
            .prepare_cached("SELECT \"table\", rowid, parent FROM pragma_foreign_key_check")
            .map_err(checking)?;
        let mut found = statement.query([]).map_err(checking)?;
        while let Some(row) = found.next().map_err(checking)? {
            let of_table = children.entry(row.get(0).map_err(checking)?).or_default();
            of_table.insert(row.get(1).map_err(checking)?);
            parents.insert(row.get(2).map_err(checking)?);
        }
        let mut violators = HashSet::new();
        for &number in applied {
            let Pending { place, bytes, .. } = &rows[number];
            let work = &self.tables[place.0];
            let table = &self.publication.schema.tables[work.index].name;
            let row = unpacked(&work.map.shape, bytes)?;
            let violates = match (row.op, children.get(table)) {
                (Some(Op::Delete), _) => parents.contains(table),
                (_, None) => false,
                (_, Some(of_table)) => {
                    of_table.contains(&None) || of_table.contains(&work.rowid(&row.key)?)
                }
            };
            if violates {
                violators.insert(number);
            }
        }
        if violators.is_empty() {
            violators.extend(applied);
        }
        Ok(violators)
    }
}

/// Rows that may wait for others, and the rest.
fn those_that_wait(pending: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let waits = |it: &Pending| may_wait(it.refusal.code);
    pending.into_iter().partition(waits)
}

fn stop(error: RowError) -> Stop {
    match error {
        RowError::Centre(error) => Stop::Centre(error),
        // A look at a row ends nothing.
        RowError::Ended(refusal) => Stop::Centre(CentreError::Internal {
            message: refusal.reason,
        }),
    }
}

fn without(rows: Vec<Pending>, done: &HashSet<usize>) -> Vec<Pending> {
    let rows = rows.into_iter().enumerate();
    let left = rows.filter(|(number, _)| !done.contains(number));
    left.map(|(_, row)| row).collect()
}
