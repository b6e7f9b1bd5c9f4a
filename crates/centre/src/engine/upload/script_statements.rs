//! Runs the statements of scripts for uploaded rows: each row's in turn, all of them in one flight;
//! or once for all rows of a set.

use std::fmt::Debug;

use tidewater_protocol::{Code, Value};

use super::row_batch::{RowSet, ScriptOutcome};
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::connection::{DatabaseConnection as _, StatementResult};
use crate::engine::flight::{
    FlightStep, SetArgument, SetArgumentColumn, TableArgument, TableStatement,
};
use crate::engine::row_fault::RefusalReason;
use crate::engine::scripts::{SCRIPT_TIMEOUT, ScriptStatement};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const RUNNING: &str = "running a script";
const SAVE: &str = "SAVEPOINT tidewater_script";
const UNDO: &str = "ROLLBACK TO SAVEPOINT tidewater_script";
const RELEASE: &str = "RELEASE SAVEPOINT tidewater_script";

/// So many steps of a flight are before the first statement.
const STEPS_BEFORE: usize = 3;

/// So many rows are tried at once after one was refused.
const CAREFULLY: usize = 16;

/// Why a foreign key refuses what a script does, where the database does not tell which one it is: a
/// script may write any table.
const FOREIGN_KEY: &str = "a foreign key refuses what the script writes: a row that is referred to \
                           is missing, or would be";

/// What statements come to in a savepoint: with how many rows each has changed; or the refusal, with
/// the number of the statement.
type TriedStatements = std::result::Result<Vec<StatementResult>, (usize, RefusalReason)>;

/// The first row that a statement yields.
type FirstRow = Option<Vec<Value>>;

impl<D: UploadDriver> UploadWriter<D> {
    /// Runs the statements of a script for each row, in order; of a row, all statements or none. By
    /// row and statement: the values of the parameters.
    pub(crate) async fn run_script(
        &mut self,
        statements: &[ScriptStatement],
        rows: &[Vec<Vec<Value>>],
    ) -> Result<Vec<ScriptOutcome>> {
        self.has_run_scripts = true;
        // A file with nothing but comments is a script that does nothing.
        if statements.is_empty() {
            return Ok(vec![ScriptOutcome::default(); rows.len()]);
        }
        let count = statements.len();
        let mut all = Vec::with_capacity(rows.len());
        let (mut rest, mut size) = (rows, rows.len());
        while let Some(first) = rest.first() {
            if let Some(refusal) = self.endings.script(|| self.name_run(statements, first)) {
                all.push(ScriptOutcome::Refused(refusal.clone()));
                rest = &rest[1..];
                continue;
            }
            let some = &rest[..size.clamp(1, rest.len())];
            let is_known = |row: &&Vec<Vec<Value>>| {
                let known = self.endings.script(|| self.name_run(statements, row));
                known.is_some()
            };
            let some = match some.iter().position(|it| is_known(&it)) {
                Some(known) => &some[..known],
                None => some,
            };
            let mut first_rows: Vec<FirstRow> = vec![None; some.len() * statements.len()];
            let each = some.iter().flat_map(|row| statements.iter().zip(row));
            let steps = each.zip(&mut first_rows);
            let steps = steps.map(|((statement, values), first)| {
                read_first(statement, statement.with_values(RUNNING, values), first)
            });
            match self.try_scripts(steps.collect()).await? {
                Ok(ran) => {
                    let outcomes = ran.chunks(count).zip(first_rows.chunks_mut(count));
                    all.extend(outcomes.map(|(ran, first)| ScriptOutcome::Done {
                        changed: least_changed(statements, ran, |it| it.counts),
                        row: first.last_mut().and_then(Option::take),
                    }));
                    rest = &rest[some.len()..];
                    size = size.saturating_mul(4);
                }
                // Those before it were undone with it.
                Err((number, refusal)) => {
                    let before = number / count;
                    if !self.is_usable() {
                        let name = self.name_run(statements, &some[before]);
                        return Err(self.endings.add_script(name, refusal));
                    }
                    match before {
                        0 => {
                            all.push(ScriptOutcome::Refused(refusal));
                            rest = &rest[1..];
                            size = CAREFULLY;
                        }
                        before => size = before,
                    }
                }
            }
        }
        Ok(all)
    }

    /// Runs the statements of a script once for all of a set of rows of a table: how many rows the
    /// least of those updates that read the set has changed. If the database refuses something,
    /// nothing is done.
    pub(crate) async fn run_set(
        &mut self,
        table: &ServedTable<D::Tables>,
        statements: &[ScriptStatement],
        set: &RowSet,
    ) -> Result<ScriptOutcome> {
        self.has_run_scripts = true;
        let named = &(&set.values, &set.rows);
        if let Some(refusal) = self.endings.script(|| self.name_run(statements, named)) {
            return Ok(ScriptOutcome::Refused(refusal.clone()));
        }
        let reads_set = |it: &&ScriptStatement| !it.set.is_empty();
        let columns = statements.iter().find(reads_set);
        let columns = columns.into_iter().flat_map(|it| it.set.iter());
        let columns = columns.map(|it| SetArgumentColumn {
            name: &it.name,
            kind: table.columns[it.index].kind(),
            column_type: it.column_type,
        });
        let argument = SetArgument {
            columns: columns.collect(),
            rows: &set.rows,
        };
        let steps = statements.iter().zip(&set.values).map(|(it, values)| {
            let mut statement = it.with_values(RUNNING, values);
            statement.passes_unreadable = true;
            if !it.set.is_empty() {
                let rows = TableArgument::Rows(&argument);
                statement.arguments.push(rows);
            }
            FlightStep::table(statement, |_| Ok(()))
        });
        let counts = |it: &ScriptStatement| it.counts && !it.set.is_empty();
        Ok(match self.try_scripts(steps.collect()).await? {
            Ok(ran) => ScriptOutcome::Done {
                changed: least_changed(statements, &ran, counts),
                row: None,
            },
            Err((_, refusal)) if !self.is_usable() => {
                let name = self.name_run(statements, named);
                return Err(self.endings.add_script(name, refusal));
            }
            Err((_, refusal)) => ScriptOutcome::Refused(refusal),
        })
    }

    /// Runs statements in a savepoint, in one flight: all of them or none.
    async fn try_scripts(
        &mut self,
        runs: Vec<FlightStep<'_, D::Tables>>,
    ) -> Result<TriedStatements> {
        let count = runs.len();
        let mut steps = Vec::with_capacity(count + STEPS_BEFORE + 3);
        steps.push(FlightStep::run(SAVE));
        steps.push(FlightStep::Limit(Some(SCRIPT_TIMEOUT)));
        steps.push(self.role.enter());
        steps.extend(runs);
        steps.push(self.role.leave());
        steps.push(FlightStep::Limit(None));
        steps.push(FlightStep::run(RELEASE));
        let failure = match self.driver.connection().run(RUNNING, steps).await {
            Ok(mut answers) => {
                answers.truncate(STEPS_BEFORE + count);
                answers.drain(..STEPS_BEFORE);
                return Ok(Ok(answers));
            }
            Err(failure) => failure,
        };
        let number = failure.step.checked_sub(STEPS_BEFORE);
        let number = number.filter(|it| *it < count);
        let fault = failure.fault.filter(|it| self.role.explains(it));
        let (Some(number), Some(fault)) = (number, fault) else {
            return Err(failure.error);
        };
        if !fault.has_ended && failure.done.is_some() {
            self.run(RUNNING, [UNDO, RELEASE]).await?;
        }
        let mut refusal = fault.refusal;
        if refusal.code == Code::RowForeignKey && refusal.reason.is_empty() {
            refusal.reason = FOREIGN_KEY.to_owned();
        }
        Ok(Err((number, refusal)))
    }

    /// What tells a run from others of the list.
    fn name_run(&self, statements: &[ScriptStatement], values: &impl Debug) -> String {
        let sql = statements.iter().map(|it| &it.script.sql);
        let number = self.number;
        format!("{number} {:?} {values:?}", sql.collect::<Vec<_>>())
    }
}

/// Runs a statement of which the first row is read, if any is.
fn read_first<'s, T: TableAdapter>(
    script: &ScriptStatement,
    mut statement: TableStatement<'s, T>,
    first: &'s mut FirstRow,
) -> FlightStep<'s, T> {
    let is_read = !script.yields.is_empty();
    statement.passes_unreadable = true;
    FlightStep::table(statement, move |row| {
        if is_read && first.is_none() {
            *first = Some(row.iter().map(|it| it.to_value()).collect());
        }
        Ok(())
    })
}

/// The least number of rows that those of some statements have changed of which it tells something.
fn least_changed(
    statements: &[ScriptStatement],
    ran: &[StatementResult],
    counts: impl Fn(&ScriptStatement) -> bool,
) -> Option<u64> {
    let ran = statements.iter().zip(ran).filter(|(it, _)| counts(it));
    ran.map(|(_, ran)| ran.changed).min()
}
