//! Inserts, updates and deletes by statements for many rows, which compare them with those of the
//! centre and give back what they have written.
//!
//! A batch is one statement in a savepoint. What fails is bisected to the single row; what the
//! statement passed over is told.

use std::collections::{BTreeSet, HashSet};

use tidewater_protocol::{Code, ColumnType, Datum, Op, pack};

use super::central_rows::{Kind, Rows, Source, images, images_from, number, pre_image, values};
use super::incoming_rows::{IncomingTable, RowRef};
use super::row_batch::{BatchOutcome, CyclePart, RowBatch, batch_size};
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::flight::{
    ColumnKind as _, FlightStep, RowParameters as _, StatementUse, TableStatement,
};
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::row_statements::{FoundBy, JointPart, TakenRow, joint, known_after};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::system_table::SystemType;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const APPLYING: &str = "applying rows of an upload";

/// Fewer rows are halved, without a look for suspects.
const FEW: usize = 8;

/// About the most bytes of rows that go into one statement: a message to a database has less than a
/// GiB.
const MOST_BYTES: usize = 256 << 20;

const SAVE_BATCH: &str = "SAVEPOINT tidewater_batch";
const UNDO_BATCH: &str = "ROLLBACK TO SAVEPOINT tidewater_batch";
const RELEASE_BATCH: &str = "RELEASE SAVEPOINT tidewater_batch";
const SAVE_SUSPECTS: &str = "SAVEPOINT tidewater_suspects";
const UNDO_SUSPECTS: &str = "ROLLBACK TO SAVEPOINT tidewater_suspects";
const RELEASE_SUSPECTS: &str = "RELEASE SAVEPOINT tidewater_suspects";
/// Around what may have to be undone: what triggers that fire before an insert do, and rows that are
/// only applied together.
const GUARD: &str = "SAVEPOINT tidewater_guard";
const UNDO_GUARD: &str = "ROLLBACK TO SAVEPOINT tidewater_guard";
const RELEASE_GUARD: &str = "RELEASE SAVEPOINT tidewater_guard";

/// The step of a batch's flight that has its statement.
const STATEMENT_STEP: usize = 2;

/// One statement for rows of a batch.
struct BatchStatement<'b, 'u, D: UploadDriver> {
    table: &'b IncomingTable<'u, D::Tables>,
    op: Op,
    changed: &'b [usize],
    /// Inserts that find a unique value taken fail.
    is_strict: bool,
    source: Source<'b, D>,
    text: String,
    /// Inserts may have to be undone.
    is_guarded: bool,
    /// Updates give rows other keys.
    gives_keys: bool,
    /// Deletes that a trigger keeps from happening are told apart from those that do not find their
    /// rows as they expect them.
    finds_kept: bool,
    /// See [`RowBatch::insists`].
    insists: bool,
    /// An insert cannot pass over what is taken.
    defers_unique: bool,
}

/// What a statement gave back of the rows that it has written.
enum WrittenRows {
    /// The packed keys of inserted rows: all of them, and where each ends.
    Keys(Vec<u8>, Vec<usize>),
    /// The numbers of others, and whether each has the key that it was to have.
    Numbers(Vec<(usize, bool)>),
}

/// What became of a statement in a savepoint.
enum StatementOutcome {
    Written(WrittenRows),
    Failed(RefusalReason),
    /// The role may write no row at all so.
    Denied(RefusalReason),
}

impl WrittenRows {
    fn new(op: Op) -> WrittenRows {
        match op {
            Op::Insert => WrittenRows::Keys(Vec::new(), Vec::new()),
            _ => WrittenRows::Numbers(Vec::new()),
        }
    }

    fn add(&mut self, types: &[ColumnType], row: &[Datum<'_>]) {
        match self {
            WrittenRows::Keys(packed, ends) => {
                pack::pack_values(packed, types, row);
                ends.push(packed.len());
            }
            WrittenRows::Numbers(numbers) => {
                let is_there = row.get(1).is_none_or(|it| *it == Datum::Boolean(true));
                numbers.push((number(&row[0]), is_there));
            }
        }
    }

    fn count(&self) -> usize {
        match self {
            WrittenRows::Keys(_, ends) => ends.len(),
            WrittenRows::Numbers(numbers) => numbers.len(),
        }
    }

    /// Whether some row has another key than it was to have.
    fn is_elsewhere(&self) -> bool {
        match self {
            WrittenRows::Keys(..) => false,
            WrittenRows::Numbers(numbers) => numbers.iter().any(|it| !it.1),
        }
    }

    /// The packed keys of inserted rows.
    fn keys(&self) -> HashSet<&[u8]> {
        let WrittenRows::Keys(packed, ends) = self else {
            return HashSet::new();
        };
        let begins = std::iter::once(&0).chain(ends);
        begins
            .zip(ends)
            .map(|(&from, &to)| &packed[from..to])
            .collect()
    }
}

impl<D: UploadDriver> UploadWriter<D> {
    /// Writes rows, in their order.
    pub(super) async fn write_sets(
        &mut self,
        batch: &RowBatch<'_, '_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        let writing = self.batch_statement(batch);
        let mut written = BatchOutcome::default();
        let mut rest = rows;
        while !rest.is_empty() {
            // What fails is told apart from what is passed over by itself.
            let count = if writing.is_strict {
                1
            } else {
                batch_size(rest)
            };
            let (some, after) = rest.split_at(count);
            self.bisect(&writing, some, &mut written).await?;
            rest = after;
        }
        Ok(written)
    }

    fn batch_statement<'b, 'u>(
        &self,
        batch: &RowBatch<'b, 'u, D::Tables>,
    ) -> BatchStatement<'b, 'u, D> {
        let &RowBatch {
            table,
            op,
            changed,
            insists,
            key,
        } = batch;
        let state = self.driver.table_state(table.table);
        let is_strict = insists && op == Op::Insert;
        let source = images::<D>(table, op, changed);
        let text = match op {
            Op::Insert => {
                let taken = match is_strict || state.defers_unique {
                    true => TakenRow::Fails,
                    false => TakenRow::PassedOver,
                };
                let clause = Self::dialect().insert_clause();
                source.insert(&table.table.filled, clause, taken)
            }
            Op::Update if insists => source.update(changed, FoundBy::Key(key)),
            Op::Update => source.update(changed, FoundBy::PreImage(pre_image(table))),
            _ => source.delete((!insists).then(|| pre_image(table))),
        };
        BatchStatement {
            table,
            op,
            changed,
            is_strict,
            source,
            text,
            is_guarded: op == Op::Insert && state.edits_inserts,
            gives_keys: changed.iter().any(|it| table.table.key.contains(it)),
            // What policies keep from a role, no trigger has kept.
            finds_kept: op == Op::Delete
                && state.keeps_deletes
                && !(self.role.is_another() && state.hides_rows),
            insists,
            defers_unique: state.defers_unique,
        }
    }

    /// Runs a batch, and what fails again in halves.
    async fn bisect(
        &mut self,
        writing: &BatchStatement<'_, '_, D>,
        batch: &[RowRef],
        written: &mut BatchOutcome,
    ) -> Result<()> {
        let table = writing.table;
        let mut waiting = vec![batch.to_vec()];
        let mut is_whole = true;
        while let Some(rows) = waiting.pop() {
            let rows = rows.as_slice();
            let parameters = values::<D>(&writing.source, table, rows)?;
            if writing.is_guarded || writing.gives_keys {
                self.run(APPLYING, [GUARD]).await?;
            }
            let expected = match writing.finds_kept {
                true => self.lock_deletable(table, rows, writing.insists).await?,
                false => Vec::new(),
            };
            let executed = self.execute(writing, &parameters).await?;
            if writing.gives_keys {
                let is_elsewhere = matches!(&executed,
                    StatementOutcome::Written(result) if result.is_elsewhere());
                self.end_guard(is_elsewhere).await?;
                if is_elsewhere {
                    split_or_fail(rows, &mut waiting, written, kept_from_its_key(table));
                    continue;
                }
            }
            if writing.is_guarded {
                if let StatementOutcome::Written(result) = &executed
                    && let Some(others) = again(writing, rows, result, written)?
                {
                    self.end_guard(true).await?;
                    waiting.extend(others);
                    continue;
                }
                self.end_guard(false).await?;
            }
            match executed {
                StatementOutcome::Written(result)
                    if writing.is_guarded && has_other_keys(table, rows, &result)? =>
                {
                    written.elsewhere.extend(rows);
                }
                StatementOutcome::Written(result) => {
                    self.note_written(writing, rows, &result, &expected, written)
                        .await?;
                }
                StatementOutcome::Failed(refusal) => match rows {
                    // Nothing was passed over, so it may be the key that is taken.
                    [at] if writing.op == Op::Insert
                        && !writing.is_strict
                        && refusal.code == Code::RowKeyInUse
                        && writing.defers_unique =>
                    {
                        written.passed_over.push(*at);
                    }
                    rows => {
                        let suspects = match std::mem::take(&mut is_whole) {
                            true => self.suspects(writing, rows, &parameters).await?,
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

    /// Notes what a statement has done about rows. `expected` are the deletes that found their rows.
    async fn note_written(
        &mut self,
        writing: &BatchStatement<'_, '_, D>,
        rows: &[RowRef],
        result: &WrittenRows,
        expected: &[RowRef],
        written: &mut BatchOutcome,
    ) -> Result<()> {
        let passed_over = passed_over(writing.table, rows, result)?;
        written.applied += (rows.len() - passed_over.len()) as u64;
        if writing.is_guarded {
            let passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
            let done = rows.iter().filter(|at| !passed_over.contains(at));
            let done: Vec<RowRef> = done.copied().collect();
            self.log_moved(writing.table, &done).await?;
        }
        let (kept, passed_over) = passed_over
            .into_iter()
            .partition::<Vec<RowRef>, _>(|at| expected.contains(at));
        written.kept.extend(kept);
        pass_over(written, writing.table, writing.is_strict, passed_over);
        Ok(())
    }

    async fn end_guard(&mut self, undoes: bool) -> Result<()> {
        let undo = if undoes { UNDO_GUARD } else { "" };
        self.run(APPLYING, [undo, RELEASE_GUARD]).await
    }

    /// Runs the statement of a batch in a savepoint, in one flight.
    async fn execute(
        &mut self,
        writing: &BatchStatement<'_, '_, D>,
        rows: &Rows<D>,
    ) -> Result<StatementOutcome> {
        let types: Vec<ColumnType> = match writing.op {
            Op::Insert => key_types(writing.table),
            _ => Vec::new(),
        };
        let mut written = WrittenRows::new(writing.op);
        let step = writing.step(rows, |row| written.add(&types, row));
        let steps = vec![
            FlightStep::run(SAVE_BATCH),
            self.role.enter(),
            step,
            self.role.leave(),
            FlightStep::run(RELEASE_BATCH),
        ];
        let failure = match self.driver.connection().run(APPLYING, steps).await {
            Ok(_) => return Ok(StatementOutcome::Written(written)),
            Err(failure) => failure,
        };
        let fault = failure.fault.filter(|_| failure.step == STATEMENT_STEP);
        let Some(fault) = fault.filter(|it| self.role.explains(it)) else {
            return Err(failure.error);
        };
        if fault.is_certain {
            self.run(APPLYING, [UNDO_BATCH, RELEASE_BATCH]).await?;
            return Ok(StatementOutcome::Failed(fault.refusal));
        }
        self.run(APPLYING, [UNDO_BATCH]).await?;
        let nothing = Rows::<D>::new(&writing.source.kinds());
        // Whether nothing is wrong with the statement itself.
        let ran = {
            let step = writing.step(&nothing, |_| {});
            self.role.run(self.driver.connection(), step).await
        };
        self.run(APPLYING, [UNDO_BATCH, RELEASE_BATCH]).await?;
        match (ran.is_ok(), fault.is_denied) {
            (true, _) => Ok(StatementOutcome::Failed(fault.refusal)),
            (false, true) => Ok(StatementOutcome::Denied(fault.refusal)),
            (false, false) => Err(failure.error),
        }
    }

    /// Sees to it that rows which a trigger put into another partition leave those who hold the
    /// one that they were uploaded into, the uploader first of all.
    async fn log_moved(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        inserted: &[RowRef],
    ) -> Result<()> {
        let what = "logging uploaded rows";
        let source = images::<D>(table, Op::Insert, &[]);
        let rules = table.table.own_rules();
        let logs: Vec<String> = rules.filter_map(|it| source.log_moved(it)).collect();
        if logs.is_empty() || inserted.is_empty() {
            return Ok(());
        }
        let rows = values::<D>(&source, table, inserted)?;
        let steps = logs.into_iter().map(|text| {
            let mut statement = TableStatement::new(what, text);
            statement.rows = vec![&rows];
            FlightStep::table(statement, |_| Ok(()))
        });
        let steps = steps.collect();
        self.connection().run(what, steps).await?;
        Ok(())
    }

    /// Those of some inserts or updates that violate a constraint as they were uploaded; none if that
    /// cannot be told. A query finds them together, where halving would come to each by a dozen
    /// statements that fail. It decides nothing: each of them is tried alone.
    async fn suspects(
        &mut self,
        writing: &BatchStatement<'_, '_, D>,
        rows: &[RowRef],
        parameters: &Rows<D>,
    ) -> Result<Vec<RowRef>> {
        let what = "looking for rows that violate constraints";
        if writing.op == Op::Delete || rows.len() < FEW {
            return Ok(Vec::new());
        }
        self.run(what, [SAVE_SUSPECTS]).await?;
        let known = known_after(writing.source.columns(), writing.changed);
        let columns = &writing.table.table.columns;
        let names: Vec<&str> = known.iter().map(|&(_, it)| columns[it].name()).collect();
        let condition = self.driver.violation(writing.table.table, &names).await;
        let mut found = Vec::new();
        if let Ok(Some(condition)) = condition {
            let text = writing.source.violating(writing.changed, &condition);
            let mut statement = TableStatement::new(what, text);
            statement.usage = StatementUse::Once;
            statement.rows = vec![parameters];
            statement.yields = vec![system_kind::<D>(SystemType::Integer)];
            let mut suspects = Vec::new();
            let step = FlightStep::table(statement, |row| {
                suspects.push(rows[number(&row[0])]);
                Ok(())
            });
            let asked = self.role.run(self.driver.connection(), step).await;
            if asked.is_ok() {
                found = suspects;
            }
        }
        // Whatever the constraints' own functions say or do, nothing of it stays.
        self.run(what, [UNDO_SUSPECTS, RELEASE_SUSPECTS]).await?;
        Ok(found)
    }

    /// Applies parts by one statement: what one row frees, another can take, and foreign keys are
    /// checked when all is done. Whether all rows could be written; otherwise none is.
    pub(super) async fn write_jointly(
        &mut self,
        parts: &[CyclePart<'_, '_, D::Tables>],
    ) -> Result<bool> {
        let bytes: usize = parts.iter().map(|it| distance(&it.rows)).sum();
        if bytes > MOST_BYTES {
            return Ok(false);
        }
        let (mut of_parts, mut rows, mut first) = (Vec::new(), Vec::new(), 1);
        for part in parts {
            let source = images_from::<D>(part.table, part.op, &part.changed, first);
            first += source.columns().len();
            rows.push(values::<D>(&source, part.table, &part.rows)?);
            of_parts.push(JointPart {
                source,
                op: part.op,
                changed: &part.changed,
                filled: &part.table.table.filled,
                pre_image: pre_image(part.table),
            });
        }
        let text = joint(&of_parts, Self::dialect().insert_clause());
        let mut written = vec![0; parts.len()];
        let mut statement = TableStatement::new(APPLYING, text);
        statement.rows = rows.iter().collect();
        statement.yields = vec![
            system_kind::<D>(SystemType::Integer),
            system_kind::<D>(SystemType::Boolean),
        ];
        let step = FlightStep::table(statement, |row| {
            written[number(&row[0])] += usize::from(row[1] == Datum::Boolean(true));
            Ok(())
        });
        let steps = vec![
            FlightStep::run(GUARD),
            self.role.enter(),
            step,
            self.role.leave(),
        ];
        let ran = self.driver.connection().run(APPLYING, steps).await;
        let mut pairs = parts.iter().zip(&written);
        let is_well = match ran {
            Ok(_) => pairs.all(|(part, written)| *written == part.rows.len()),
            Err(failure) => {
                let fault = failure.fault.filter(|_| failure.step == STATEMENT_STEP);
                match fault.filter(|it| self.role.explains(it)) {
                    Some(_) => false,
                    None => return Err(failure.error),
                }
            }
        };
        self.end_guard(!is_well).await?;
        for part in parts.iter().filter(|it| is_well && it.op == Op::Insert) {
            if self.driver.table_state(part.table.table).edits_inserts {
                self.log_moved(part.table, &part.rows).await?;
            }
        }
        Ok(is_well)
    }
}

impl<D: UploadDriver> BatchStatement<'_, '_, D> {
    /// Runs it for rows.
    fn step<'s>(
        &'s self,
        rows: &'s Rows<D>,
        mut take: impl FnMut(&[Datum<'_>]) + Send + 's,
    ) -> FlightStep<'s, D::Tables> {
        let mut statement = TableStatement::new(APPLYING, &*self.text);
        statement.rows = vec![rows];
        let (integer, boolean) = (SystemType::Integer, SystemType::Boolean);
        statement.yields = match self.op {
            Op::Insert => self.table.table.key_columns().map(|it| it.kind()).collect(),
            Op::Update => vec![system_kind::<D>(integer), system_kind::<D>(boolean)],
            _ => vec![system_kind::<D>(integer)],
        };
        FlightStep::table(statement, move |row| {
            take(row);
            Ok(())
        })
    }
}

fn system_kind<D: UploadDriver>(of: SystemType) -> Kind<D> {
    Kind::<D>::of_system(of)
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

fn kept_from_its_key<T: TableAdapter>(table: &IncomingTable<'_, T>) -> RefusalReason {
    let title = &table.table.title;
    let reason = format!("a trigger of {title} keeps the row from its new key");
    RefusalReason::new(Code::RowConstraint, reason)
}

/// Notes rows that a statement did nothing about. Of an insert that looks at nothing else, it was a
/// trigger.
fn pass_over<T: TableAdapter>(
    written: &mut BatchOutcome,
    table: &IncomingTable<'_, T>,
    is_strict: bool,
    rows: Vec<RowRef>,
) {
    if !is_strict {
        return written.passed_over.extend(rows);
    }
    let reason = format!("a trigger of {} ignored the row", table.table.title);
    let refusal = RefusalReason::new(Code::RowConstraint, reason);
    let failed = rows.into_iter();
    let failed = failed.map(|at| FailedRow::new(at, refusal.clone()));
    written.failed.extend(failed);
}

/// Inserts into a table with triggers that fire before them have to be undone if not all of
/// them came to something, or under other keys: which one a trigger gave another key cannot
/// be told of several, and what it did about a row that was passed over must not stay. Gives
/// those that are to be done again.
fn again<D: UploadDriver>(
    writing: &BatchStatement<'_, '_, D>,
    rows: &[RowRef],
    result: &WrittenRows,
    written: &mut BatchOutcome,
) -> Result<Option<Vec<Vec<RowRef>>>> {
    let table = writing.table;
    if has_other_keys(table, rows, result)? {
        let one_by_one = rows.chunks(1).rev().map(<[RowRef]>::to_vec);
        return Ok((rows.len() > 1).then(|| one_by_one.collect()));
    }
    let passed_over = passed_over(table, rows, result)?;
    if passed_over.is_empty() {
        return Ok(None);
    }
    let is_passed_over: BTreeSet<&RowRef> = passed_over.iter().collect();
    let mut others = rows.to_vec();
    others.retain(|at| !is_passed_over.contains(at));
    pass_over(written, table, writing.is_strict, passed_over);
    Ok(Some(match others.is_empty() {
        true => Vec::new(),
        false => vec![others],
    }))
}

/// Whether a trigger of the centre gave an inserted row another key than the remote's.
fn has_other_keys<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    rows: &[RowRef],
    result: &WrittenRows,
) -> Result<bool> {
    let mut inserted = result.keys();
    let types = key_types(table);
    let mut packed = Vec::new();
    table.rows(rows, |_, row| {
        packed.clear();
        pack::pack_values(&mut packed, &types, &row.key);
        inserted.remove(&*packed);
        Ok(())
    })?;
    Ok(!inserted.is_empty())
}

fn key_types<T: TableAdapter>(table: &IncomingTable<'_, T>) -> Vec<ColumnType> {
    table
        .table
        .key_columns()
        .map(|it| it.column_type())
        .collect()
}

/// The rows of a batch that a statement did nothing about.
fn passed_over<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    rows: &[RowRef],
    result: &WrittenRows,
) -> Result<Vec<RowRef>> {
    if result.count() == rows.len() {
        return Ok(Vec::new());
    }
    if let WrittenRows::Numbers(numbers) = result {
        let mut done = vec![false; rows.len()];
        for &(number, _) in numbers {
            done[number] = true;
        }
        let undone = rows.iter().zip(done).filter(|(_, done)| !done);
        return Ok(undone.map(|(at, _)| *at).collect());
    }
    // An insert can only give back what is in the table: the keys.
    let types = key_types(table);
    let inserted = result.keys();
    let mut passed_over = Vec::new();
    let mut packed = Vec::new();
    table.rows(rows, |at, row| {
        packed.clear();
        pack::pack_values(&mut packed, &types, &row.key);
        if !inserted.contains(&*packed) {
            passed_over.push(rows[at]);
        }
        Ok(())
    })?;
    Ok(passed_over)
}

/// From the first of some rows to the last, in bytes.
fn distance(rows: &[RowRef]) -> usize {
    let distances = rows.windows(2).map(|pair| pair[0].distance(pair[1]));
    distances.sum()
}
