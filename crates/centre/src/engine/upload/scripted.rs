//! Rows that scripts upload.
//!
//! What a remote may write is judged as ever: by the scope, and by the centre's row where a table is
//! partitioned. Then the script decides what becomes of a row; what it has made of it is read back.

use std::collections::HashSet;

use tidewater_protocol::{ColumnType, Datum, Op, Table, Value, pack};

use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::row_batch::{MetRow, RowSet, ScriptOutcome};
use super::upload_driver::UploadDriver;
use crate::engine::exact::canonical;
use crate::engine::resolve::Winner;
use crate::engine::row_fault::RefusalReason;
use crate::engine::script::ScriptParameter;
use crate::engine::scripts::{
    CompiledScript, RESOLVING, ScriptEnvironment, ScriptStatement, ScriptTimer,
};
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::incoming_rows::ROWS_AT_ONCE;
use crate::engine::upload::outcomes::ResolutionRecord;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::row_keys::pack_key;
use crate::engine::upload::upload_run::{UploadProgress, UploadRun};
use crate::error::CentreError;
use crate::records::ConflictOutcome;

type Result<T> = std::result::Result<T, CentreError>;

impl ScriptEnvironment<'_> {
    /// The values of a statement's parameters for a row.
    fn of_row<T: TableAdapter>(
        &self,
        statement: &ScriptStatement,
        (table, names): (&IncomingTable<'_, T>, &Table),
        uploaded: &UploadedImages<'_, '_>,
    ) -> Vec<Value> {
        let column = |name: &String, image: Option<&[Datum<'_>]>| {
            let place = names.column(name).filter(|it| table.sent.contains(it));
            let value = place
                .zip(image)
                .map(|(place, image)| image[place].to_value());
            value.unwrap_or(Value::Null)
        };
        let parameters = statement.script.parameters.iter();
        let values = parameters.map(|parameter| match parameter {
            ScriptParameter::New(name) => column(name, uploaded.new.or(uploaded.old)),
            ScriptParameter::Old(name) => column(name, uploaded.old),
            other => self.value(other, &names.name),
        });
        values.collect()
    }
}

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// Whether a table has a script for an event.
    fn has_script(&self, table: usize, event: &str) -> bool {
        let scripts = self.scripting.as_ref().map(|it| &it.scripts);
        scripts.is_some_and(|it| it.of_table(table, event).is_some())
    }

    /// Whether rows of an operation are written by scripts.
    pub(super) fn is_scripted(&self, table: usize, op: Op) -> bool {
        let finds_conflicts = self.publication.resolvers[table].winner == Winner::Script;
        if self.forces_conflicts(table) {
            return true;
        }
        let events: &[&str] = match op {
            Op::Insert => &["upload_insert"],
            Op::Delete => &["upload_delete"],
            // The server finds conflicts, and scripts only resolve them.
            _ if finds_conflicts => &["upload_update"],
            _ => &["upload_update", RESOLVING[0], RESOLVING[1], RESOLVING[2]],
        };
        events.iter().any(|event| self.has_script(table, event))
    }

    /// Whether every uploaded row of a table is a conflict for scripts.
    fn forces_conflicts(&self, table: usize) -> bool {
        let finds_conflicts = self.publication.resolvers[table].winner == Winner::Script;
        let scripts = self.scripting.as_ref().map(|it| &it.scripts);
        !finds_conflicts && scripts.is_some_and(|it| it.forces_conflicts(table))
    }

    /// Has scripts write rows of one operation; gives back those that failed.
    pub(super) async fn write_by_script(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        refs: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<FailedRow>> {
        let sorted = self.sort(table, op, refs, progress)?;
        let ready = sorted.ready.sets.into_iter().flat_map(|(_, rows)| rows);
        let mut rows: Vec<RowRef> = ready.chain(sorted.unready).collect();
        rows.sort_unstable();
        self.lose(table, op, &sorted.lost, progress).await?;
        let mut failed = Vec::new();
        for some in rows.chunks(ROWS_AT_ONCE) {
            let mut some = self.judge_central(table, op, some, progress).await?;
            if op == Op::Update && self.sent_before.all {
                some = self.park_sent_twice(table, &some, progress).await?;
            }
            let forced = self.forces_conflicts(table.index);
            match op {
                Op::Insert => {
                    let events: &[&str] = match forced {
                        true => &[RESOLVING[1], RESOLVING[2]],
                        false => &["upload_insert"],
                    };
                    self.each(table, op, events, &some, progress, &mut failed)
                        .await?
                }
                Op::Delete => {
                    let events: &[&str] = match forced {
                        true => &[RESOLVING[0], RESOLVING[2]],
                        false => &["upload_delete"],
                    };
                    self.each(table, op, events, &some, progress, &mut failed)
                        .await?
                }
                _ => {
                    self.update_by_script(table, &some, progress, &mut failed)
                        .await?
                }
            }
        }
        Ok(failed)
    }

    /// Leaves out, and refuses, what the remote may not write because of what the centre has.
    async fn judge_central(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<RowRef>> {
        let rules = &self.publication.rules[self.publication.rules_of(table.index)];
        let rows = &*self.refuse_taken_keys(table, op, rows, progress).await?;
        let is_everyones = rules.iter().any(|it| it.query.is_none() && !it.follows);
        if is_everyones && self.publication.writes[table.index].rule.is_none() {
            return Ok(rows.to_vec());
        }
        let met = self.rows.find(table, op, rows, RowImage::Old).await?;
        let mut membership = self.membership(table);
        let types = &self.publication.row_types[table.index];
        let mut left = Vec::with_capacity(rows.len());
        let outcomes = &mut progress.outcomes;
        table.images(rows, |at, uploaded| {
            let barrier = match &met[at] {
                Some(met) => membership.barrier(&met.central.values(types)?),
                None => uploaded.old.and_then(|old| membership.barrier(old)),
            };
            match barrier {
                None => left.push(rows[at]),
                Some(_) if op == Op::Insert => {
                    outcomes.refused(table, uploaded, &RefusalReason::key_in_use());
                }
                Some(barrier) => outcomes.refused(table, uploaded, &RefusalReason::barred(barrier)),
            }
            Ok(())
        })?;
        Ok(left)
    }

    /// Leaves out, and refuses, updates that give a row the key of another row of the centre, unless
    /// the upload gives that one another key, too: a script finds rows by their keys, and would write
    /// over a row that the remote does not know, or may not write.
    async fn refuse_taken_keys(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<RowRef>> {
        let moved = |at: &RowRef| op == Op::Update && table.moves.binary_search(at).is_ok();
        let (moves, mut left): (Vec<RowRef>, Vec<RowRef>) = rows.iter().partition(|at| moved(at));
        if moves.is_empty() {
            return Ok(left);
        }
        let schema = &self.publication.schema.tables[table.index];
        let types = &self.publication.row_types[table.index];
        let mut leaving = HashSet::new();
        table.rows(&table.moves, |_, row| {
            leaving.insert(pack_key(schema, &row.key));
            Ok(())
        })?;
        let met = self.rows.find(table, op, &moves, RowImage::New).await?;
        let mut membership = self.membership(table);
        let outcomes = &mut progress.outcomes;
        table.images(&moves, |at, uploaded| {
            let is_free = match &met[at] {
                None => true,
                Some(met) => {
                    let central = met.central.values(types)?;
                    let key: Vec<Datum<'_>> = schema.key.iter().map(|&it| central[it]).collect();
                    leaving.contains(&pack_key(schema, &key))
                        && membership.barrier(&central).is_none()
                }
            };
            match is_free {
                true => left.push(moves[at]),
                false => {
                    outcomes.refused(table, uploaded, &RefusalReason::key_in_use());
                }
            }
            Ok(())
        })?;
        left.sort_unstable();
        Ok(left)
    }

    /// Leaves out updates that the centre may have already, of a copied file or given back to a branch, of whose rows the centre has something else than it had
    /// when they were made: the original may have sent them, and nobody but the operator can tell
    /// whether their script would do the same a second time.
    async fn park_sent_twice(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<RowRef>> {
        let met = self
            .rows
            .find(table, Op::Update, rows, RowImage::Old)
            .await?;
        let mut shown = self.shown(table);
        let types = &self.publication.row_types[table.index];
        let mut left = Vec::with_capacity(rows.len());
        let outcomes = &mut progress.outcomes;
        table.images(rows, |at, uploaded| {
            let central = met[at].as_ref().map(|it| it.central.values(types));
            let (Some(central), Some(old)) = (central.transpose()?, uploaded.old) else {
                left.push(rows[at]);
                return Ok(());
            };
            if are_same(&table.sent, old, &central) {
                left.push(rows[at]);
            } else {
                let winner = shown.winner(&central, &central);
                outcomes.conflict(table, uploaded, winner, ConflictOutcome::Parked);
            }
            Ok(())
        })?;
        Ok(left)
    }

    /// Runs the scripts of some events for rows, of each row all or none of them; gives what they
    /// have come to for each.
    async fn run_for(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        events: &[&str],
        rows: &[RowRef],
    ) -> Result<Vec<ScriptOutcome>> {
        let none = || rows.iter().map(|_| ScriptOutcome::default()).collect();
        let Some(scripting) = self.scripting.as_ref().filter(|_| !rows.is_empty()) else {
            return Ok(none());
        };
        let scripts = scripting.scripts.clone();
        let found = events
            .iter()
            .filter_map(|it| scripts.of_table(table.index, it));
        let found: Vec<&CompiledScript> = found.collect();
        let Some(first) = found.first() else {
            return Ok(none());
        };
        let statements = found.iter().flat_map(|it| it.statements.iter().cloned());
        let statements: Vec<ScriptStatement> = statements.collect();
        let timed = ScriptTimer::begin();
        let ran = match first.is_of_sets() {
            true => self.run_set_for(table, &statements, rows).await,
            false => {
                let names = &self.publication.schema.tables[table.index];
                let mut values = Vec::with_capacity(rows.len());
                table.images(rows, |_, uploaded| {
                    let of_statements = statements.iter();
                    let of_statements =
                        of_statements.map(|it| scripting.of_row(it, (table, names), uploaded));
                    values.push(of_statements.collect());
                    Ok(())
                })?;
                self.rows.run_script(&statements, &values).await
            }
        };
        if let Some(scripting) = &self.scripting {
            let events: Vec<&'static str> = found.iter().map(|it| it.event.name).collect();
            let runs = if first.is_of_sets() { 1 } else { rows.len() };
            timed.end_of_rows(scripting, &events, self.name(Some(table.index)), runs);
        }
        ran.map_err(|error| first.names(error))
    }

    /// Runs a script once for all rows, and what fails again in halves. Of rows among which it has
    /// found fewer than there are, each is said to be unchanged.
    async fn run_set_for(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        statements: &[ScriptStatement],
        rows: &[RowRef],
    ) -> Result<Vec<ScriptOutcome>> {
        let mut all: Vec<ScriptOutcome> = rows.iter().map(|_| ScriptOutcome::default()).collect();
        let name = &*self.publication.schema.tables[table.index].name;
        let columns = statements
            .iter()
            .map(|it| &it.set)
            .find(|it| !it.is_empty());
        let (Some(columns), Some(scripting)) = (columns, &self.scripting) else {
            return Ok(all);
        };
        // The next ones are behind.
        let mut waiting = vec![(0, rows.len())];
        while let Some((begin, end)) = waiting.pop() {
            let some = &rows[begin..end];
            let mut set = RowSet {
                values: statements
                    .iter()
                    .map(|it| scripting.values(it, name))
                    .collect(),
                rows: Vec::with_capacity(some.len()),
            };
            table.images(some, |_, uploaded| {
                let values = columns.iter().map(|column| {
                    let image = match column.is_old {
                        true => uploaded.old,
                        false => uploaded.new,
                    };
                    let is_sent = table.sent.contains(&column.index);
                    let image = image.filter(|_| is_sent);
                    image.map_or(Value::Null, |it| it[column.index].to_value())
                });
                set.rows.push(values.collect());
                Ok(())
            })?;
            match self.rows.run_set(table.table, statements, &set).await? {
                ScriptOutcome::Done { changed, .. } => {
                    // Which of them it has not found, it does not tell.
                    let fewer = changed.is_some_and(|it| it < some.len() as u64);
                    let changed = fewer.then_some(0);
                    all[begin..end].fill(ScriptOutcome::Done { changed, row: None });
                }
                refused if some.len() == 1 => all[begin] = refused,
                ScriptOutcome::Refused(_) => {
                    let middle = begin + some.len() / 2;
                    waiting.extend([(middle, end), (begin, middle)]);
                }
            }
        }
        Ok(all)
    }

    /// Inserts, or deletes.
    async fn each(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        events: &[&str],
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let before = match op {
            Op::Delete => self.rows.find(table, op, rows, RowImage::Old).await?,
            _ => rows.iter().map(|_| None).collect(),
        };
        let ran = self.run_for(table, events, rows).await?;
        let (mut done, mut found) = (Vec::with_capacity(rows.len()), Vec::new());
        for ((row, ran), before) in rows.iter().zip(ran).zip(before) {
            match ran {
                ScriptOutcome::Done { .. } => {
                    done.push(*row);
                    found.push(before);
                }
                ScriptOutcome::Refused(refusal) => failed.push(FailedRow::new(*row, refusal)),
            }
        }
        if op != Op::Delete {
            progress.outcomes.applied(op, done.len() as u64);
            return Ok(());
        }
        let lost = self.judge_deletes(table, &done, &found, progress).await?;
        let gone = done.len() - lost.len();
        progress.outcomes.applied(op, gone as u64);
        self.lose(table, op, &lost, progress).await
    }

    /// Keeps the rows that a delete script has left where they are, such as with a mark: their
    /// remote gets them back. Gives those that it has not touched because another side had changed
    /// them before: these deletes lose. `before` is what the centre had before the script, by row.
    async fn judge_deletes(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        done: &[RowRef],
        before: &[Option<MetRow>],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<RowRef>> {
        let after = self
            .rows
            .find(table, Op::Delete, done, RowImage::Old)
            .await?;
        let types = &self.publication.row_types[table.index];
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        table.images(done, |at, uploaded| {
            let (Some(after), Some(old)) = (&after[at], uploaded.old) else {
                return Ok(());
            };
            let after = after.central.values(types)?;
            let is_untouched = match &before[at] {
                Some(before) => are_same(&table.sent, &before.central.values(types)?, &after),
                None => false,
            };
            match is_untouched && !are_same(&table.sent, old, &after) {
                true => lost.push(done[at]),
                false => kept.push(done[at]),
            }
            Ok(())
        })?;
        progress.outcomes.keep(table, &kept);
        Ok(lost)
    }

    async fn update_by_script(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let fetches = ["upload_fetch", "upload_fetch_column_conflict"];
        let fetch = fetches
            .into_iter()
            .find(|it| self.has_script(table.index, it));
        let updates = self.has_script(table.index, "upload_update");
        // What the centre has before is compared with what the script makes of it: nobody else may
        // change a row in between.
        self.rows.lock_rows(table, rows).await?;
        let (mut plain, mut fought) = (Vec::new(), Vec::new());
        match fetch {
            // Without one every update is a conflict, where conflicts are all that there are scripts for.
            None if !updates => fought.extend_from_slice(rows),
            None => plain.extend_from_slice(rows),
            Some(fetch) => {
                let fetched = self.run_for(table, &[fetch], rows).await?;
                let types = &self.publication.shapes[table.index].columns;
                let by_column = fetch != "upload_fetch";
                table.images(rows, |at, uploaded| {
                    match &fetched[at] {
                        ScriptOutcome::Refused(refusal) => {
                            failed.push(FailedRow::new(rows[at], refusal.clone()));
                        }
                        ScriptOutcome::Done { row, .. } => match row {
                            Some(central)
                                if is_as_before(types, table, uploaded, central, by_column) =>
                            {
                                plain.push(rows[at]);
                            }
                            _ => fought.push(rows[at]),
                        },
                    }
                    Ok(())
                })?;
            }
        }
        let event = "upload_update";
        let before = self.rows.find(table, Op::Update, &plain, RowImage::Old);
        let before = before.await?;
        let ran = self.run_for(table, &[event], &plain).await?;
        let (mut taken, mut unchanged) = (Vec::with_capacity(plain.len()), Vec::new());
        for (at, (row, ran)) in plain.iter().zip(ran).enumerate() {
            match ran {
                ScriptOutcome::Done {
                    changed: Some(0), ..
                } => unchanged.push(at),
                ScriptOutcome::Done { .. } => taken.push(at),
                ScriptOutcome::Refused(refusal) => failed.push(FailedRow::new(*row, refusal)),
            }
        }
        if self.is_of_sets(table.index, event) && !unchanged.is_empty() {
            let found = unchanged.iter().map(|&at| (plain[at], &before[at]));
            let found: Vec<(RowRef, &Option<MetRow>)> = found.collect();
            let missed = self.missed(table, &found).await?;
            fought.extend(&missed);
            let missed: HashSet<RowRef> = missed.into_iter().collect();
            taken.extend(unchanged.iter().filter(|&&at| !missed.contains(&plain[at])));
            taken.sort_unstable();
        } else {
            fought.extend(unchanged.into_iter().map(|at| plain[at]));
        }
        progress.outcomes.applied(Op::Update, taken.len() as u64);
        let taken = taken.into_iter().map(|at| (plain[at], &before[at]));
        self.leave_others_to_download(table, &taken.collect::<Vec<_>>(), progress)?;
        self.fight(table, fought, progress, failed).await
    }

    /// What others had made of rows before their script wrote them reaches the remote with a download,
    /// like any other change of theirs: told with the result, it would count as what the remote's next
    /// change was made from, and a script that adds the difference would add another one. `taken`:
    /// rows with what the centre had before.
    fn leave_others_to_download(
        &self,
        table: &IncomingTable<'_, R::Tables>,
        taken: &[(RowRef, &Option<MetRow>)],
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let rows: Vec<RowRef> = taken.iter().map(|it| it.0).collect();
        let types = &self.publication.row_types[table.index];
        let outcomes = &mut progress.outcomes;
        table.images(&rows, |at, uploaded| {
            let (Some(before), Some(old)) = (taken[at].1, uploaded.old) else {
                return Ok(());
            };
            if !are_same(&table.sent, old, &before.central.values(types)?) {
                outcomes.resolved(table, uploaded, None);
            }
            Ok(())
        })
    }

    /// Of updates that went to a script as a set, those that it has not found: their rows are not as
    /// they were uploaded, and are what they were before the script, or are not there.
    async fn missed(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        found: &[(RowRef, &Option<MetRow>)],
    ) -> Result<Vec<RowRef>> {
        let rows: Vec<RowRef> = found.iter().map(|it| it.0).collect();
        let after = self
            .rows
            .find(table, Op::Update, &rows, RowImage::New)
            .await?;
        let types = &self.publication.row_types[table.index];
        let all: Vec<usize> =
            (0..self.publication.schema.tables[table.index].columns.len()).collect();
        let mut missed = Vec::new();
        table.images(&rows, |at, uploaded| {
            let taken = match (&after[at], found[at].1, uploaded.new) {
                (Some(after), Some(before), Some(new)) => {
                    let after = after.central.values(types)?;
                    are_same(&table.sent, new, &after)
                        || !are_same(&all, &before.central.values(types)?, &after)
                }
                (after, ..) => after.is_some(),
            };
            if !taken {
                missed.push(rows[at]);
            }
            Ok(())
        })?;
        Ok(missed)
    }

    fn is_of_sets(&self, table: usize, event: &str) -> bool {
        let scripting = self.scripting.as_ref();
        let script = scripting.and_then(|it| it.scripts.of_table(table, event));
        script.is_some_and(CompiledScript::is_of_sets)
    }

    /// Updates that are conflicts: their scripts resolve them, or the centre's row stands.
    pub(super) async fn fight(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        mut fought: Vec<RowRef>,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        fought.sort_unstable();
        if !RESOLVING.iter().any(|it| self.has_script(table.index, it)) {
            return self.lose(table, Op::Update, &fought, progress).await;
        }
        let ran = self.run_for(table, &RESOLVING, &fought).await?;
        let mut left = Vec::with_capacity(fought.len());
        for (row, ran) in fought.into_iter().zip(ran) {
            match ran {
                ScriptOutcome::Done { .. } => left.push(row),
                ScriptOutcome::Refused(refusal) => failed.push(FailedRow::new(row, refusal)),
            }
        }
        let met = self
            .rows
            .find(table, Op::Update, &left, RowImage::New)
            .await?;
        let types = &self.publication.row_types[table.index];
        let mut gone = Vec::new();
        let outcomes = &mut progress.outcomes;
        table.images(&left, |at, uploaded| {
            let Some(met) = &met[at] else {
                gone.push(left[at]);
                return Ok(());
            };
            let central = met.central.values(types)?;
            let record = ResolutionRecord {
                outcome: ConflictOutcome::Merged,
                replaced: None,
                row: Some(&central),
            };
            outcomes.resolved(table, uploaded, Some(record));
            Ok(())
        })?;
        outcomes.applied(Op::Update, (left.len() - gone.len()) as u64);
        // The scripts have left nothing of it, or had nothing to resolve: it stays deleted.
        self.lose(table, Op::Update, &gone, progress).await
    }
}

/// Whether two images of a row are the same in some columns.
fn are_same(columns: &[usize], one: &[Datum<'_>], other: &[Datum<'_>]) -> bool {
    let same = |&column: &usize| pack::same(&canonical(one[column]), &canonical(other[column]));
    columns.iter().all(same)
}

/// Whether the centre's row is as the remote has seen it; or in the columns that it changes.
fn is_as_before<T: TableAdapter>(
    types: &[ColumnType],
    table: &IncomingTable<'_, T>,
    uploaded: &UploadedImages<'_, '_>,
    central: &[Value],
    by_column: bool,
) -> bool {
    let (Some(old), Some(new)) = (uploaded.old, uploaded.new) else {
        return false;
    };
    table.sent.iter().all(|&column| {
        if by_column && pack::same(&old[column], &new[column]) {
            return true;
        }
        let (central, _) = types[column].datum(central[column].as_ref());
        pack::same(&canonical(old[column]), &canonical(central))
    })
}
