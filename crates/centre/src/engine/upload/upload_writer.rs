//! Writes the rows of a list of uploads, on one connection and in one transaction: the steps of that
//! transaction, by what the dialect spells and the driver runs.

use std::collections::HashSet;
use std::sync::Arc;

use tidewater_protocol::Datum;

use super::ending_rows::{EndingRows, TRIALS, ended};
use super::incoming_rows::{IncomingTable, RowRef};
use super::row_batch::{BatchOutcome, CyclePart, MayWrite, RowBatch};
use super::upload_driver::UploadDriver;
use crate::engine::assumed_role::AssumedRole;
use crate::engine::connection::{DatabaseConnection, SystemStatement, TransactionMode};
use crate::engine::flight::{ColumnKind as _, FlightStep, TableStatement, ValueTypes};
use crate::engine::publication::Publication;
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::sql_dialect::{SqlDialect, WriteStrategy};
use crate::engine::sql::system_table::SystemType;
use crate::error::CentreError;
use crate::trying::ChangedTable;

type Result<T> = std::result::Result<T, CentreError>;

/// How often a list is tried when other writers are in the way.
const ATTEMPTS: u32 = 10;

pub(super) const SAVE_UPLOAD: &str = "SAVEPOINT tidewater_upload";
const UNDO_UPLOAD: &str = "ROLLBACK TO SAVEPOINT tidewater_upload";
const RELEASE_UPLOAD: &str = "RELEASE SAVEPOINT tidewater_upload";
pub(super) const SAVE_ROWS: &str = "SAVEPOINT tidewater_rows";
const UNDO_ROWS: &str = "ROLLBACK TO SAVEPOINT tidewater_rows";
const RELEASE_ROWS: &str = "RELEASE SAVEPOINT tidewater_rows";

/// Writes the rows of a list of uploads.
pub struct UploadWriter<D: UploadDriver> {
    pub(super) driver: D,
    /// Under which the application's tables are read and written for this upload.
    pub(super) role: AssumedRole,
    /// The transaction has begun.
    has_begun: bool,
    /// An upload of the list has waited for a lock in vain: the next ones do not wait for long, so
    /// that somebody's transaction holds up only who needs what it holds.
    hurries: bool,
    /// Tables of the upload, by their index, that may keep some value otherwise than it came.
    pub(super) inexact: HashSet<usize>,
    /// The number of what was begun.
    pub(super) number: usize,
    /// Whether constraints that could wait are checked after each row.
    pub(super) immediate: bool,
    /// What was found to end the transaction.
    pub(super) endings: EndingRows,
    /// Scripts have run, which may do anything.
    pub(super) has_run_scripts: bool,
    /// Room to try values in.
    room: Vec<u8>,
}

impl<D: UploadDriver> UploadWriter<D> {
    /// Writes by a driver.
    pub fn new(driver: D) -> UploadWriter<D> {
        UploadWriter {
            driver,
            role: AssumedRole::default(),
            has_begun: false,
            hurries: false,
            inexact: HashSet::new(),
            number: 0,
            immediate: false,
            endings: EndingRows::default(),
            has_run_scripts: false,
            room: Vec::new(),
        }
    }

    pub(super) fn dialect() -> &'static dyn SqlDialect {
        <D::Connection as DatabaseConnection>::DIALECT
    }

    /// Runs SQL that yields nothing, as one flight.
    pub(super) async fn run(
        &mut self,
        what: &'static str,
        sql: impl IntoIterator<Item = &str>,
    ) -> Result<()> {
        let steps = sql.into_iter().map(FlightStep::run).collect();
        self.connection().run(what, steps).await?;
        Ok(())
    }

    /// The connection, for the server's own tables.
    pub(crate) fn connection(&mut self) -> &mut D::Connection {
        self.driver.connection()
    }

    /// Whether the transaction can go on, as far as can be told without a word to the database.
    pub(crate) fn is_usable(&self) -> bool {
        self.driver.is_usable()
    }

    /// A publication that is served.
    pub(crate) fn publication(&self, name: &str) -> Result<Arc<Publication<D::Tables>>> {
        self.driver.publication(name)
    }

    /// Begins an upload, or several that share statements, and with the first ones the
    /// transaction. The number is the same whenever the list is tried again.
    pub(crate) async fn begin(&mut self, number: usize) -> Result<()> {
        self.number = number;
        if !self.has_begun {
            self.endings.is_found = false;
        }
        let dialect = Self::dialect();
        let hurry = match self.hurries {
            true => dialect.hurry(),
            false => String::new(),
        };
        let begin = match std::mem::replace(&mut self.has_begun, true) {
            false => [dialect.begin(TransactionMode::WRITING), "", SAVE_UPLOAD],
            true => [dialect.defer_again(), &hurry, SAVE_UPLOAD],
        };
        self.run("beginning to apply uploads", begin).await
    }

    /// Keeps what was begun, and with it its result.
    pub(crate) async fn store_result(&mut self, result: SystemStatement) -> Result<()> {
        let steps = vec![FlightStep::System(&result), FlightStep::run(RELEASE_UPLOAD)];
        let storing = "storing the result of an upload";
        self.connection().run(storing, steps).await?;
        Ok(())
    }

    /// Undoes what was begun.
    pub(crate) async fn undo(&mut self) -> Result<()> {
        self.run("undoing an upload", [UNDO_UPLOAD, RELEASE_UPLOAD])
            .await
    }

    /// Undoes what has failed alone.
    pub(super) async fn undo_failed(&mut self, error: &CentreError) -> Result<()> {
        self.undo().await?;
        if let CentreError::Locked { .. } = error {
            self.hurries = true;
            self.driver.note_lock_in_the_way();
        }
        Ok(())
    }

    /// Commits all of the list.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        if self.endings.is_found {
            return Err(ended());
        }
        let last = Self::dialect().end_writing();
        let mut steps: Vec<_> = last.iter().map(FlightStep::System).collect();
        steps.push(FlightStep::Commit);
        self.connection().run("committing uploads", steps).await?;
        Ok(())
    }

    /// Has something tried once more after an error, if that may help; counts how often.
    ///
    /// # Errors
    /// The error, if it is not to be tried again.
    pub(crate) async fn try_again(
        &mut self,
        what: &'static str,
        error: CentreError,
        attempts: &mut u32,
    ) -> Result<()> {
        *attempts += 1;
        let most = match self.endings.is_found {
            true => TRIALS,
            false => ATTEMPTS,
        };
        if !error.is_retryable() || *attempts > most || self.connection().is_lost() {
            return Err(error);
        }
        self.has_begun = false;
        if self.is_usable() {
            self.connection().rollback().await?;
        }
        self.driver.pause_before_retry(*attempts).await;
        tracing::debug!(%error, attempts, what, "it is tried again");
        Ok(())
    }

    /// What was found of tables, and the role under which those of the application are read and
    /// written from now on.
    pub(super) fn open_tables(&mut self, live: D::LiveTables, role: AssumedRole) {
        self.role = role;
        self.driver.open_tables(live);
    }

    /// Begins to write the rows of an upload. With `immediate` all constraints are checked as soon
    /// as a row is written, also those that could wait.
    pub(super) async fn begin_rows(&mut self, immediate: bool) -> Result<()> {
        self.immediate = immediate;
        self.inexact.clear();
        self.has_run_scripts = false;
        let check = match immediate {
            true => Self::dialect().check_at_once(),
            false => "",
        };
        self.run("beginning to write rows", [SAVE_ROWS, check])
            .await
    }

    /// Undoes everything since.
    pub(super) async fn undo_rows(&mut self) -> Result<()> {
        let undoing = "undoing the rows of an upload";
        self.run(undoing, [UNDO_ROWS, RELEASE_ROWS]).await
    }

    /// Whether a constraint is violated, now that all rows are written. It is an error if they were
    /// checked at once.
    pub(super) async fn is_violated(&mut self, immediate: bool) -> Result<bool> {
        let checking = "checking deferred constraints";
        let check = Self::dialect().check_at_once();
        if !check.is_empty() {
            // Triggers of the application fire now.
            let steps = vec![self.role.enter(), FlightStep::run(check), self.role.leave()];
            let checked = self.driver.connection().run(checking, steps).await;
            if let Err(failure) = checked {
                let fault = failure.fault.filter(|it| self.role.explains(it));
                return match fault {
                    Some(_) if !immediate => Ok(true),
                    _ => Err(failure.error),
                };
            }
        }
        self.driver.has_deferred_violations()
    }

    /// Whether it can be told of single rows if they violate a constraint that could wait.
    pub(super) fn can_check_single_rows(&mut self) -> Result<bool> {
        Ok(!self.driver.has_deferred_violations()?)
    }

    /// Whether rows of several uploads can be written to a table by the same statements: nothing
    /// that happens then looks at who uploads.
    pub(super) fn is_shared(&self, table: &IncomingTable<'_, D::Tables>) -> bool {
        let state = self.driver.table_state(table.table);
        state.is_as_loaded && !state.depends_on_caller && !state.sets_off_more(table)
    }

    /// Why an image cannot be that of a row of the centre, if that is known without asking it.
    pub(super) fn misfit_reason(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        image: RowImage,
        row: &[Datum<'_>],
    ) -> Option<String> {
        if Self::dialect().write_strategy() == WriteStrategy::Rows {
            // It shows when it is written.
            return None;
        }
        let columns = &table.table.columns;
        self.room.clear();
        let misfit = table.sent.iter().find_map(|&index| {
            let is_key = table.table.key.contains(&index);
            columns[index].misfit(is_key, &row[index], &mut self.room)
        });
        if image == RowImage::New && !self.inexact.contains(&table.index) {
            let mut written = table.written.iter();
            if !written.all(|&index| columns[index].keeps(&row[index])) {
                self.inexact.insert(table.index);
            }
        }
        misfit
    }

    /// Inserts all inserts of a table in bulk, or none of them; whether they are in. `may_write`
    /// tells by the number of its chunk whether a row may be written by who sent it.
    pub(super) async fn insert_in_bulk(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        may_write: &mut MayWrite<'_>,
    ) -> Result<bool> {
        // What a role may not see or write, loading in bulk would not tell.
        if self.role.is_another() {
            return Ok(false);
        }
        let is_exact = self.driver.insert_in_bulk(table, may_write).await?;
        if is_exact == Some(false) {
            self.inexact.insert(table.index);
        }
        Ok(is_exact.is_some())
    }

    /// Whether what the centre has of a row may be something else than what was written: by a
    /// trigger, a generated column, or a type that keeps a value otherwise.
    pub(super) fn may_compute_values(&self, table: &IncomingTable<'_, D::Tables>) -> bool {
        let state = self.driver.table_state(table.table);
        state.effects.always
            || !state.is_as_loaded
            || table.table.fills()
            || self.has_run_scripts
            || self.inexact.contains(&table.index)
    }

    /// The version of what was written, for [`crate::OwnUpload`], and whether nothing else has it.
    pub(super) fn version(
        &self,
        tables: &[IncomingTable<'_, D::Tables>],
        is_alone: bool,
    ) -> (u64, bool) {
        let Some(version) = self.driver.version() else {
            return (0, false);
        };
        let is_plain = |table: &IncomingTable<'_, D::Tables>| {
            let state = self.driver.table_state(table.table);
            state.is_as_loaded && !table.table.fills() && !state.sets_off_more(table)
        };
        let is_exact = self.inexact.is_empty() && !self.has_run_scripts;
        (version, is_alone && is_exact && tables.iter().all(is_plain))
    }

    /// Whether the database is a remote of headquarters, which may have what it has forgotten.
    pub(super) fn has_headquarters(&mut self) -> Result<bool> {
        self.driver.has_headquarters()
    }

    /// See [`UploadDriver::note_given_back`].
    pub(super) fn note_given_back(&mut self) -> Result<()> {
        self.driver.note_given_back()
    }

    /// Writes rows, in their order.
    pub(super) async fn write(
        &mut self,
        batch: &RowBatch<'_, '_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        match Self::dialect().write_strategy() {
            WriteStrategy::Sets => self.write_sets(batch, rows).await,
            WriteStrategy::Rows => self.write_rows(batch, rows).await,
        }
    }

    /// Applies parts at once: what one row frees, another can take, and foreign keys are checked
    /// when all is done. Whether all rows could be written; otherwise none is.
    pub(super) async fn write_cycle(
        &mut self,
        parts: &[CyclePart<'_, '_, D::Tables>],
    ) -> Result<bool> {
        match Self::dialect().write_strategy() {
            WriteStrategy::Sets => self.write_jointly(parts).await,
            WriteStrategy::Rows => self.write_deferred(parts).await,
        }
    }

    /// From now on, [`Self::changed_tables`] can tell what is changed in the transaction, which is
    /// undone.
    pub(crate) async fn watch_changes(&mut self) -> Result<()> {
        let watching = "watching what is changed";
        let dialect = Self::dialect();
        let Some(query) = dialect.watched_tables() else {
            return Ok(());
        };
        let mut names = Vec::new();
        let mut statement = TableStatement::new(watching, query);
        statement.yields = vec![kind::<D>(SystemType::Text)];
        let step = FlightStep::table(statement, |row| {
            names.push(row[0].to_string());
            Ok(())
        });
        self.connection().run(watching, vec![step]).await?;
        self.run(watching, [&*dialect.watch_changes(&names)]).await
    }

    /// The tables of the application that were changed in the transaction.
    pub(crate) async fn changed_tables(&mut self) -> Result<Vec<ChangedTable>> {
        let counting = "counting what was changed";
        let mut changed = Vec::new();
        let Some(query) = Self::dialect().count_changes() else {
            return Ok(changed);
        };
        let mut statement = TableStatement::new(counting, query);
        let count = kind::<D>(SystemType::Integer);
        statement.yields = vec![kind::<D>(SystemType::Text), count, count, count];
        let step = FlightStep::table(statement, |row| {
            let number = |at: usize| match row[at] {
                Datum::Integer(number) => number.unsigned_abs(),
                _ => 0,
            };
            changed.push(ChangedTable {
                table: row[0].to_string(),
                inserted: number(1),
                updated: number(2),
                deleted: number(3),
            });
            Ok(())
        });
        self.connection().run(counting, vec![step]).await?;
        Ok(changed)
    }

    /// How many warnings the database has given since it was last asked.
    pub(crate) fn take_warnings(&mut self) -> u64 {
        self.driver.take_warnings()
    }
}

fn kind<D: UploadDriver>(of: SystemType) -> <D::Tables as ValueTypes>::Kind {
    <D::Tables as ValueTypes>::Kind::of_system(of)
}

/// Whether an error is one upload's own, and the others of the list can go on.
pub(super) fn fails_alone(error: &CentreError) -> bool {
    !error.is_retryable() && !matches!(error, CentreError::Unavailable { .. })
}
