//! Writes rows one by one: each is read by its key, compared here, and written by its key.
//!
//! Rows that cannot touch each other are read together, and those behind each other that need the same
//! statement are written by it in one flight.

use std::borrow::Cow;
use std::collections::HashMap;

use tidewater_protocol::{Code, ColumnType, Datum, Op, UnpackedRow};

use super::central_rows::{
    KeyRows, Kind, Rows, Source, has_values, key_of, key_source, read_kinds, read_text, row_types,
};
use super::ending_rows::{RowPlace, ended};
use super::incoming_rows::{IncomingTable, RowRef};
use super::row_batch::{BatchOutcome, CentralRow, CyclePart, RowBatch};
use super::upload_driver::UploadDriver;
use super::upload_writer::{SAVE_ROWS, SAVE_UPLOAD, UploadWriter};
use crate::engine::connection::{DatabaseConnection as _, TransactionMode};
use crate::engine::flight::{FlightStep, RowParameters as _, TableStatement};
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::row_statements::{ImageColumn, ImageParameters, RowImage, key_columns};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const WRITING: &str = "writing a row";
const SAVE_ROW: &str = "SAVEPOINT tidewater_row";
const UNDO_ROW: &str = "ROLLBACK TO SAVEPOINT tidewater_row";
const RELEASE_ROW: &str = "RELEASE SAVEPOINT tidewater_row";
const SAVE_TOGETHER: &str = "SAVEPOINT tidewater_together";
const UNDO_TOGETHER: &str = "ROLLBACK TO SAVEPOINT tidewater_together";
const RELEASE_TOGETHER: &str = "RELEASE SAVEPOINT tidewater_together";

/// So many rows are read together.
const ROWS_AT_ONCE: usize = 256;

/// What a row is written by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RowStatement {
    Insert,
    /// Sets these columns.
    Update(Vec<usize>),
    Delete,
}

/// What became of a row that was written.
enum RowFate {
    Applied,
    /// A trigger has done something else than delete it.
    Kept,
    Failed(RefusalReason),
}

/// Rows behind each other that are written by the same statement.
struct RowRun<D: UploadDriver> {
    statement: RowStatement,
    rows: Rows<D>,
    at: Vec<RowRef>,
}

/// A statement for one row after the other.
struct RowText<K> {
    kinds: Vec<K>,
    text: String,
}

/// Writes the rows of a batch.
struct RowWriting<'b, 'u, D: UploadDriver> {
    table: &'b IncomingTable<'u, D::Tables>,
    op: Op,
    /// See [`RowBatch::insists`].
    insists: bool,
    key: RowImage,
    types: Vec<ColumnType>,
    /// The statement that reads rows by key, and its keys.
    read: String,
    read_kinds: Vec<Kind<D>>,
    source: Source<'b, D>,
    texts: HashMap<RowStatement, RowText<Kind<D>>>,
    outcome: BatchOutcome,
    /// Whether the centre keeps every value so far exactly as it came.
    is_exact: bool,
    room: Vec<u8>,
}

impl<D: UploadDriver> UploadWriter<D> {
    /// Writes rows, in their order.
    pub(super) async fn write_rows(
        &mut self,
        batch: &RowBatch<'_, '_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        let table = batch.table;
        let state = self.driver.table_state(table.table);
        let is_guarded = self.immediate
            || state.may_leave_something
            || Self::dialect().ends_transactions_at_errors();
        let source = key_source::<D>(table, &[]);
        let mut writing: RowWriting<'_, '_, D> = RowWriting {
            table,
            op: batch.op,
            insists: batch.insists,
            key: batch.key,
            types: row_types(table),
            read: read_text(&source, table, &[]),
            read_kinds: read_kinds::<D>(table),
            source,
            texts: HashMap::new(),
            outcome: BatchOutcome::default(),
            is_exact: true,
            room: Vec::new(),
        };
        let touches = batch.op != Op::Insert && state.acts_on_itself;
        let at_once = if is_guarded || touches {
            1
        } else {
            ROWS_AT_ONCE
        };
        // Those of several uploads may have the same key, and each has to see what the one before it
        // did; within a chunk a key is there once.
        let of_chunks = rows.chunk_by(|one, next| one.chunk() == next.chunk());
        for some in of_chunks.flat_map(|it| it.chunks(at_once)) {
            let some = self.leave_endings(&mut writing, some);
            let runs = self.decide(&mut writing, &some).await?;
            for run in runs {
                match is_guarded {
                    true => self.write_guarded(&mut writing, &run).await?,
                    false => self.write_run(&mut writing, &run).await?,
                }
            }
        }
        if !writing.is_exact {
            self.inexact.insert(table.index);
        }
        Ok(writing.outcome)
    }

    /// Refuses those of some rows that are known to end the transaction; gives the others.
    fn leave_endings<'s>(
        &self,
        writing: &mut RowWriting<'_, '_, D>,
        rows: &'s [RowRef],
    ) -> Cow<'s, [RowRef]> {
        if self.endings.count() == 0 {
            return rows.into();
        }
        let mut others = rows.to_vec();
        others.retain(|&at| {
            let known = self.endings.row(self.place(writing.table, at));
            let refused = known.map(|it| FailedRow::new(at, it.clone()));
            let is_other = refused.is_none();
            writing.outcome.refused.extend(refused);
            is_other
        });
        others.into()
    }

    fn place(&self, table: &IncomingTable<'_, D::Tables>, at: RowRef) -> RowPlace {
        (self.number, table.place, at)
    }

    /// Reads the rows of the centre that some rows mean, and decides what is written.
    async fn decide(
        &mut self,
        writing: &mut RowWriting<'_, '_, D>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRun<D>>> {
        let table = writing.table;
        let keys = KeyRows::<D>::new(&writing.source, table, rows, writing.key, &[])?;
        let mut central: Vec<Option<CentralRow>> = Vec::new();
        central.resize_with(rows.len(), || None);
        self.read_central(&keys, &writing.read, &writing.read_kinds, |place, row| {
            central[place] = Some(CentralRow::pack(&writing.types, &row[2..]));
        })
        .await?;
        let mut places = keys.places.iter().peekable();
        let mut runs = Vec::new();
        table.rows(rows, |place, row| {
            let has_key = places.next_if(|it| **it == place).is_some();
            writing.decide(
                rows[place],
                row,
                has_key,
                central[place].as_ref(),
                &mut runs,
            )
        })?;
        Ok(runs)
    }

    /// Writes rows that can be written behind each other.
    async fn write_run(
        &mut self,
        writing: &mut RowWriting<'_, '_, D>,
        run: &RowRun<D>,
    ) -> Result<()> {
        let mut done = 0;
        while done < run.at.len() {
            let step = writing.step(run, done);
            let ran = self.driver.connection().run(WRITING, vec![step]).await;
            match ran {
                Ok(answers) => {
                    let changed = answers.first().map_or(0, |it| it.changed);
                    let expected = (run.at.len() - done) as u64;
                    if changed == 0 && expected == 1 {
                        let fate = self.fate_of_ignored(writing, run, run.at[done]).await?;
                        writing.note(run.at[done], fate);
                    } else {
                        writing.outcome.applied += expected;
                    }
                    return Ok(());
                }
                Err(failure) => {
                    let Some(fault) = failure.fault else {
                        return Err(failure.error);
                    };
                    let at = run.at[fault.row];
                    writing.outcome.applied += (fault.row - done) as u64;
                    match fault.has_ended {
                        true => self.note_ended(writing, at, fault.refusal).await?,
                        false => writing.note(at, RowFate::Failed(fault.refusal)),
                    }
                    done = fault.row + 1;
                }
            }
        }
        Ok(())
    }

    /// Writes a row, so that nothing is left behind if it fails.
    async fn write_guarded(
        &mut self,
        writing: &mut RowWriting<'_, '_, D>,
        run: &RowRun<D>,
    ) -> Result<()> {
        let at = run.at[0];
        let steps = vec![FlightStep::run(SAVE_ROW), writing.step(run, 0)];
        let ran = self.driver.connection().run(WRITING, steps).await;
        let mut fate = match ran {
            Ok(answers) if answers.last().is_some_and(|it| it.changed == 0) => {
                self.fate_of_ignored(writing, run, at).await?
            }
            Ok(_) => RowFate::Applied,
            Err(failure) => {
                let Some(fault) = failure.fault else {
                    return Err(failure.error);
                };
                if fault.has_ended {
                    return self.note_ended(writing, at, fault.refusal).await;
                }
                RowFate::Failed(fault.refusal)
            }
        };
        let is_violated = self.immediate
            && matches!(fate, RowFate::Applied)
            && self.driver.has_deferred_violations()?;
        if is_violated {
            fate = RowFate::Failed(RefusalReason::new(Code::RowForeignKey, String::new()));
        }
        let undo = match fate {
            RowFate::Failed(_) => UNDO_ROW,
            _ => "",
        };
        writing.note(at, fate);
        self.run(WRITING, [undo, RELEASE_ROW]).await
    }

    /// What became of one of some rows, about which their statement did nothing because of a
    /// trigger.
    async fn fate_of_ignored(
        &mut self,
        writing: &RowWriting<'_, '_, D>,
        run: &RowRun<D>,
        at: RowRef,
    ) -> Result<RowFate> {
        if run.statement != RowStatement::Delete {
            let title = &writing.table.table.title;
            let reason = format!("a trigger of {title} ignored the change");
            return Ok(RowFate::Failed(RefusalReason::new(
                Code::RowConstraint,
                reason,
            )));
        }
        let (source, table) = (&writing.source, writing.table);
        let keys = KeyRows::<D>::new(source, table, &[at], writing.key, &[])?;
        let mut is_there = false;
        self.read_central(&keys, &writing.read, &writing.read_kinds, |_, _| {
            is_there = true
        })
        .await?;
        Ok(match is_there {
            true => RowFate::Kept,
            false => RowFate::Applied,
        })
    }

    /// Notes that a row has ended the transaction. The rest is only tried, to find all such rows at
    /// once.
    async fn note_ended(
        &mut self,
        writing: &RowWriting<'_, '_, D>,
        at: RowRef,
        refusal: RefusalReason,
    ) -> Result<()> {
        let place = self.place(writing.table, at);
        self.endings.add_row(place, writing.worded(refusal));
        let going_on = "going on after a row that ended the transaction";
        let begin = Self::dialect().begin(TransactionMode::WRITING);
        self.run(going_on, [begin, SAVE_UPLOAD, SAVE_ROWS]).await
    }

    /// Applies parts one row after the other, with all foreign keys checked at the end. Whether all
    /// rows could be written; otherwise none is.
    pub(super) async fn write_deferred(
        &mut self,
        parts: &[CyclePart<'_, '_, D::Tables>],
    ) -> Result<bool> {
        let Some((defer, check)) = Self::dialect().defer_checks() else {
            return Ok(false);
        };
        self.run(WRITING, [SAVE_TOGETHER, defer]).await?;
        let immediate = std::mem::replace(&mut self.immediate, false);
        let written = self.write_parts(parts).await;
        self.immediate = immediate;
        if written.is_err() {
            // It may be an upload's own error, after which others go on.
            let _ = self.run(WRITING, [check]).await;
        }
        let is_well = written? && !self.driver.has_deferred_violations()?;
        let undo = if is_well { "" } else { UNDO_TOGETHER };
        self.run(WRITING, [undo, check, RELEASE_TOGETHER]).await?;
        Ok(is_well)
    }

    /// Whether all rows could be written: first what leaves, then what frees, then what takes, and
    /// at last what could not leave before.
    async fn write_parts(&mut self, parts: &[CyclePart<'_, '_, D::Tables>]) -> Result<bool> {
        let is = |op| move |part: &&CyclePart<'_, '_, D::Tables>| part.op == op;
        let mut late = Vec::new();
        for part in parts.iter().filter(is(Op::Update)) {
            late.push((part, self.those_left(part, &part.rows).await?));
        }
        let deletes = parts.iter().filter(is(Op::Delete)).rev();
        for part in deletes.chain(parts.iter().filter(is(Op::Insert))) {
            if !self.those_left(part, &part.rows).await?.is_empty() {
                return Ok(false);
            }
        }
        for (part, rows) in late {
            if !self.those_left(part, &rows).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes rows; gives back those that could not be written.
    async fn those_left(
        &mut self,
        part: &CyclePart<'_, '_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        let batch = RowBatch::new(part.table, part.op, &part.changed);
        let known = self.endings.count();
        let outcome = self.write_rows(&batch, rows).await?;
        if self.endings.count() > known {
            return Err(ended());
        }
        let told = outcome.failed.iter().chain(&outcome.refused);
        let mut left: Vec<RowRef> = told.map(|it| it.at).collect();
        left.extend(outcome.passed_over.iter().chain(&outcome.kept));
        left.sort_unstable();
        Ok(left)
    }
}

impl<D: UploadDriver> RowWriting<'_, '_, D> {
    /// Decides what becomes of a row, of which the key may be that of one of the centre.
    fn decide(
        &mut self,
        at: RowRef,
        row: &UnpackedRow<'_>,
        has_key: bool,
        central: Option<&CentralRow>,
        runs: &mut Vec<RowRun<D>>,
    ) -> Result<()> {
        if !has_key && self.op == Op::Insert {
            let refusal = self.bad_key(&row.key);
            self.outcome.refused.push(FailedRow::new(at, refusal));
            return Ok(());
        }
        let Some(central) = central else {
            match self.op {
                Op::Insert => self.insert(at, row, runs),
                _ => self.outcome.passed_over.push(at),
            }
            return Ok(());
        };
        // Nobody could be told what a change of one that is not whole lost against.
        if self.op == Op::Insert || !central.is_whole {
            self.outcome.passed_over.push(at);
            return Ok(());
        }
        let now = central.values(&self.types)?;
        if !self.insists && !has_values(self.table, &row.old, &now) {
            self.outcome.passed_over.push(at);
            return Ok(());
        }
        match self.op {
            Op::Update => self.update(at, row, &now, runs),
            _ => {
                let key = key_of(self.table, row, self.key);
                self.add(RowStatement::Delete, at, &key, runs);
            }
        }
        Ok(())
    }

    fn insert(&mut self, at: RowRef, row: &UnpackedRow<'_>, runs: &mut Vec<RowRun<D>>) {
        self.note_exactness(&row.new);
        let written = self.table.written.iter();
        let values: Vec<Datum<'_>> = written.map(|&it| self.uploaded(&row.new, it)).collect();
        self.add(RowStatement::Insert, at, &values, runs);
    }

    /// Writes what differs from the centre's row, if only in how it is written.
    fn update(
        &mut self,
        at: RowRef,
        row: &UnpackedRow<'_>,
        now: &[Datum<'_>],
        runs: &mut Vec<RowRun<D>>,
    ) {
        self.note_exactness(&row.new);
        let columns = self.table.sent.iter().copied();
        let changed = columns.filter(|&it| {
            let column = &self.table.table.columns[it];
            !self.table.read_only.contains(&it)
                && column.differs(&self.uploaded(&row.new, it), &now[it])
        });
        let changed: Vec<usize> = changed.collect();
        if changed.is_empty() {
            self.outcome.applied += 1;
            return;
        }
        let mut values = key_of(self.table, row, self.key);
        values.extend(changed.iter().map(|&it| self.uploaded(&row.new, it)));
        self.add(RowStatement::Update(changed), at, &values, runs);
    }

    /// A value as the centre will give it back.
    fn uploaded<'v>(&self, values: &[Datum<'v>], index: usize) -> Datum<'v> {
        let value = self.table.map.sources[index].and_then(|at| values.get(at));
        let column = &self.table.table.columns[index];
        value.map_or(Datum::Null, |it| column.normalize(*it))
    }

    /// Notes whether all of a row will be in the centre as it is uploaded.
    fn note_exactness(&mut self, new: &[Datum<'_>]) {
        let columns = &self.table.table.columns;
        let mut sources = self.table.map.sources.iter().zip(columns);
        self.is_exact = self.is_exact
            && sources.all(|(source, column)| {
                let value = source.and_then(|at| new.get(at));
                value.is_some_and(|it| column.keeps(it))
            });
    }

    /// Adds a row to those of a statement, or refuses it if a value is none of its column.
    fn add(
        &mut self,
        statement: RowStatement,
        at: RowRef,
        values: &[Datum<'_>],
        runs: &mut Vec<RowRun<D>>,
    ) {
        if runs.last().is_none_or(|it| it.statement != statement) {
            let kinds = &self.text(&statement).kinds;
            runs.push(RowRun {
                rows: Rows::<D>::new(kinds),
                statement,
                at: Vec::new(),
            });
        }
        let run = runs.last_mut().expect("one was pushed if there was none");
        if run.rows.push(values) {
            run.at.push(at);
            return;
        }
        let columns = columns_of(self.table, &run.statement);
        // A statement is run for one row at least.
        if run.at.is_empty() {
            runs.pop();
        }
        let refusal = self.bad_value(&columns, values);
        self.outcome.refused.push(FailedRow::new(at, refusal));
    }

    /// The text of a statement; made when it is first needed.
    fn text(&mut self, statement: &RowStatement) -> &RowText<Kind<D>> {
        if !self.texts.contains_key(statement) {
            let text = row_text::<D>(self.table, statement);
            self.texts.insert(statement.clone(), text);
        }
        &self.texts[statement]
    }

    /// Runs a statement for the rows that are not done.
    fn step<'s>(&'s self, run: &'s RowRun<D>, done: usize) -> FlightStep<'s, D::Tables> {
        let mut statement = TableStatement::new(WRITING, &*self.texts[&run.statement].text);
        statement.rows = vec![&run.rows];
        statement.done = done;
        FlightStep::table(statement, |_| Ok(()))
    }

    fn note(&mut self, at: RowRef, fate: RowFate) {
        match fate {
            RowFate::Applied => self.outcome.applied += 1,
            RowFate::Kept => self.outcome.kept.push(at),
            RowFate::Failed(refusal) => {
                let refusal = self.worded(refusal);
                self.outcome.failed.push(FailedRow::new(at, refusal));
            }
        }
    }

    /// The refusal with a reason, where the database does not tell which foreign key it is.
    fn worded(&self, mut refusal: RefusalReason) -> RefusalReason {
        if refusal.code == Code::RowForeignKey && refusal.reason.is_empty() {
            let table = &self.table.table.title;
            refusal.reason = match self.op {
                Op::Delete => format!("other rows still refer to this row of {table}"),
                _ => format!(
                    "a row that this row of {table} refers to is missing, or it is referred to"
                ),
            };
        }
        refusal
    }

    fn bad_key(&mut self, key: &[Datum<'_>]) -> RefusalReason {
        let columns = key_columns(&self.table.table.as_sql());
        self.bad_value(&columns, key)
    }

    fn bad_value(&mut self, columns: &[ImageColumn], values: &[Datum<'_>]) -> RefusalReason {
        let table = self.table.table;
        let mut pairs = columns.iter().zip(values);
        let misfit = pairs.find_map(|(&(_, index), value)| {
            let is_key = table.key.contains(&index);
            table.columns[index].misfit(is_key, value, &mut self.room)
        });
        let reason = misfit.unwrap_or_else(|| "the key cannot be stored".into());
        RefusalReason::new(Code::RowBadValue, reason)
    }
}

/// The columns whose values a statement has.
fn columns_of<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    statement: &RowStatement,
) -> Vec<ImageColumn> {
    let new = |columns: &[usize]| -> Vec<ImageColumn> {
        columns.iter().map(|&it| (RowImage::New, it)).collect()
    };
    let mut key = key_columns(&table.table.as_sql());
    match statement {
        RowStatement::Insert => new(&table.written),
        RowStatement::Update(changed) => {
            key.extend(new(changed));
            key
        }
        RowStatement::Delete => key,
    }
}

fn row_text<D: UploadDriver>(
    table: &IncomingTable<'_, D::Tables>,
    statement: &RowStatement,
) -> RowText<Kind<D>> {
    let columns = columns_of(table, statement);
    let source = ImageParameters::new::<Rows<D>>(table.table.as_sql(), columns, 1);
    let clause = D::Tables::write_clause(&table.table.details);
    RowText {
        kinds: source.kinds(),
        text: match statement {
            RowStatement::Insert => source.insert_one(&table.table.filled, clause),
            RowStatement::Update(changed) => source.update_one(changed, clause),
            RowStatement::Delete => source.delete_one(),
        },
    }
}
