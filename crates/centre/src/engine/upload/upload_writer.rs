//! What the engine asks of a database that uploads are written to.

use std::sync::Arc;

use tidewater_protocol::{ColumnType, Datum, Op, Value, pack};

use super::Serials;
use super::incoming_rows::{IncomingTable, RowRef};
use crate::engine::assumed_role::AssumedRole;
use crate::engine::connection::{DatabaseConnection, SystemStatement};
use crate::engine::exact::{pack_row, unpack};
use crate::engine::flight::FlightStep;
use crate::engine::publication::Publication;
use crate::engine::scripts::ScriptStatement;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::upload::refusal_reason::{FailedRow, RefusalReason};
use crate::error::CentreError;
use crate::scope::Scope;
use crate::trying::ChangedTable;

type Result<T> = std::result::Result<T, CentreError>;

/// What is known once an upload's number is taken.
pub struct ClaimedSequence {
    /// The serials of the subscription's scopes.
    pub serials: Serials,
    /// The scope as it is now.
    pub scope: Scope,
}

/// Which of a row's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowImage {
    /// As it was.
    Old,
    /// As it is to be.
    New,
}

/// How rows of one operation of one table are written.
pub struct RowBatch<'b, 'u, T: TableAdapter> {
    /// The table.
    pub table: &'b IncomingTable<'u, T>,
    /// What is done with them.
    pub op: Op,
    /// The columns that an update sets.
    pub changed: &'b [usize],
    /// An insert that finds a unique value taken fails; otherwise it may be passed over, whatever
    /// it is that is taken. An update or delete takes its row as it is now; otherwise only as its
    /// pre-image says.
    pub insists: bool,
    /// Under which key the rows are that an update insists on.
    pub key: RowImage,
}

impl<'b, 'u, T: TableAdapter> RowBatch<'b, 'u, T> {
    /// Rows that find what they expect, or are passed over.
    pub(crate) fn new(
        table: &'b IncomingTable<'u, T>,
        op: Op,
        changed: &'b [usize],
    ) -> RowBatch<'b, 'u, T> {
        RowBatch {
            table,
            op,
            changed,
            insists: false,
            key: RowImage::Old,
        }
    }
}

/// What became of the rows of a [`RowBatch`].
#[derive(Default)]
pub struct BatchOutcome {
    /// How many are in the centre as they were sent.
    pub applied: u64,
    /// Those that did not find the centre as they expect it: an insert its key free, the others
    /// their rows as their pre-images say.
    pub passed_over: Vec<RowRef>,
    /// Those that failed: the database may take them when others are in.
    pub failed: Vec<FailedRow>,
    /// Those that are refused: it will never take them.
    pub refused: Vec<FailedRow>,
    /// Those that a trigger of the centre has put under another key.
    pub elsewhere: Vec<RowRef>,
    /// Deletes in whose place a trigger of the centre has done something else, such as mark the row:
    /// each was there as it was expected, and is there still.
    pub kept: Vec<RowRef>,
}

/// A row of the centre that an uploaded one met.
pub struct MetRow {
    /// Its values.
    pub central: CentralRow,
    /// Whether it is what an insert or update wants it to be, as far as the centre lets it.
    pub is_as_uploaded: bool,
}

/// The values of a row of the centre.
pub struct CentralRow {
    packed: Vec<u8>,
    /// Whether all of them could be packed: one that is too long to be synced is NULL here.
    pub is_whole: bool,
}

impl CentralRow {
    /// Packs the values of a row.
    pub fn pack(types: &[ColumnType], mut values: Vec<Datum<'_>>) -> CentralRow {
        let is_whole = pack::too_long(&values).is_none();
        while let Some((column, _)) = pack::too_long(&values) {
            values[column] = Datum::Null;
        }
        CentralRow {
            packed: pack_row(types, &values),
            is_whole,
        }
    }

    /// The values.
    ///
    /// # Errors
    /// They are of other types.
    pub fn values(&self, types: &[ColumnType]) -> Result<Vec<Datum<'_>>> {
        unpack(&self.packed, types)
    }
}

/// Tells by the number of a row's chunk, and by its values, whether it may be written.
pub type MayWrite<'m> = dyn FnMut(usize, &[Datum<'_>]) -> bool + Send + 'm;

/// A foreign key between published tables.
pub struct ParentReference<'r, T: TableAdapter> {
    /// The columns that refer, as indexes into those of the schema.
    pub columns: &'r [usize],
    /// The index of the table that is referred to.
    pub parent: usize,
    /// What the adapter knows of it.
    pub parent_table: &'r ServedTable<T>,
    /// Its columns, as indexes into those of the schema.
    pub parent_columns: &'r [usize],
}

/// Rows of one operation of one table that are applied with others.
pub struct CyclePart<'b, 'u, T: TableAdapter> {
    /// The table.
    pub table: &'b IncomingTable<'u, T>,
    /// What is done with them.
    pub op: Op,
    /// The columns that an update sets.
    pub changed: Vec<usize>,
    /// The rows.
    pub rows: Vec<RowRef>,
}

/// Rows for which the statements of a script are run once.
pub struct RowSet {
    /// By statement: the values of its parameters beside the rows.
    pub values: Vec<Vec<Value>>,
    /// By row: the values of the columns of [`ScriptStatement::set`].
    pub rows: Vec<Vec<Value>>,
}

/// What the statements of a script have come to, for one row.
#[derive(Clone, Debug)]
pub enum ScriptOutcome {
    /// They have run.
    Done {
        /// How many rows it has changed, if that tells anything: the least of its updates.
        changed: Option<u64>,
        /// The first row that it yields, if that is read.
        row: Option<Vec<Value>>,
    },
    /// The database has refused one of them, and none has done anything.
    Refused(RefusalReason),
}

impl Default for ScriptOutcome {
    fn default() -> ScriptOutcome {
        ScriptOutcome::Done {
            changed: None,
            row: None,
        }
    }
}

/// Has something tried once more after an error, if that may help; counts how often.
///
/// # Errors
/// The error, if it is not to be tried again.
pub(crate) async fn try_again(
    rows: &mut impl UploadWriter,
    what: &'static str,
    error: CentreError,
    attempts: &mut u32,
) -> Result<()> {
    *attempts += 1;
    if !rows.rollback_for_retry(&error, *attempts).await? {
        return Err(error);
    }
    tracing::debug!(%error, attempts, what, "it is tried again");
    Ok(())
}

/// Writes the rows of a list of uploads, on one connection and in one transaction. What is to be
/// written, in which order, and what becomes of a row that meets another, is the engine's affair.
pub trait UploadWriter: Send {
    /// The connection.
    type Connection: DatabaseConnection<Tables = Self::Tables>;
    /// A table of a publication.
    type Tables: TableAdapter;
    /// What the tables of an upload are now.
    type LiveTables: Default + Send;

    /// Whether the database is a remote of headquarters, which may have what it has forgotten.
    ///
    /// # Errors
    /// The database failed.
    fn has_headquarters(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// The database was restored, and rows that were given back to it are written: if it has
    /// headquarters, its upload says that these may have them already.
    ///
    /// # Errors
    /// The database failed.
    fn note_given_back(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the transaction can go on, as far as can be told without a word to the database.
    fn is_usable(&self) -> bool;

    /// The connection, for the server's own tables.
    fn connection(&mut self) -> &mut Self::Connection;

    /// A publication that is served.
    fn publication(&self, name: &str) -> Result<Arc<Publication<Self::Tables>>>;

    /// Begins an upload, or several that share statements, and with the first ones the
    /// transaction. The number is the same whenever the list is tried again.
    fn begin(&mut self, number: usize) -> impl Future<Output = Result<()>> + Send;

    /// Keeps what was begun, and with it its result.
    fn store_result(&mut self, result: SystemStatement) -> impl Future<Output = Result<()>> + Send;

    /// An upload of the list has waited for a lock in vain: the next ones do not wait for long, so
    /// that somebody's transaction holds up only who needs what it holds.
    fn shorten_lock_timeout(&mut self) {}

    /// Undoes what was begun.
    fn undo(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Commits all of the list.
    fn commit(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Undoes all of the list after an error; whether it is to be tried once more, which it has
    /// been so often.
    fn rollback_for_retry(
        &mut self,
        error: &CentreError,
        attempts: u32,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Looks what the tables of uploads are now: steps of a flight behind a lock that keeps anybody
    /// from changing them.
    fn look_at_tables<'s>(
        tables: &'s [IncomingTable<'_, Self::Tables>],
        live: &'s mut Self::LiveTables,
    ) -> Vec<FlightStep<'s, Self::Tables>> {
        let _ = (tables, live);
        Vec::new()
    }

    /// What was found, and the role under which the application's tables are read and written from
    /// now on.
    ///
    /// # Errors
    /// The publication is not served any more.
    fn open_tables(
        &mut self,
        publication: &Publication<Self::Tables>,
        live: Self::LiveTables,
        role: AssumedRole,
    ) -> Result<()>;

    /// Whether rows of several uploads can be written to a table by the same statements: nothing
    /// that happens then looks at who uploads.
    fn is_shared(&self, table: &IncomingTable<'_, Self::Tables>) -> bool;

    /// Begins to write the rows of an upload. With `immediate` all constraints are checked as soon
    /// as a row is written, also those that could wait.
    fn begin_rows(&mut self, immediate: bool) -> impl Future<Output = Result<()>> + Send;

    /// Undoes everything since.
    fn undo_rows(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Whether a constraint is violated, now that all rows are written.
    fn is_violated(&mut self, immediate: bool) -> impl Future<Output = Result<bool>> + Send;

    /// Whether it can be told of single rows if they violate a constraint that could wait.
    fn can_check_single_rows(&mut self) -> Result<bool>;

    /// Why an image cannot be that of a row of the centre, if that is known without asking it.
    fn misfit_reason(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        image: RowImage,
        row: &[Datum<'_>],
    ) -> Option<String>;

    /// Inserts all inserts of a table in bulk, or none of them; whether they are in. `may_write`
    /// tells by the number of its chunk whether a row may be written by who sent it.
    fn insert_in_bulk(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        may_write: &mut MayWrite<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Writes rows, in their order.
    fn write(
        &mut self,
        batch: &RowBatch<'_, '_, Self::Tables>,
        rows: &[RowRef],
    ) -> impl Future<Output = Result<BatchOutcome>> + Send;

    /// Reads the rows of the centre with the keys of uploaded ones, as these are or are to be.
    fn find(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        op: Op,
        rows: &[RowRef],
        key: RowImage,
    ) -> impl Future<Output = Result<Vec<Option<MetRow>>>> + Send;

    /// Locks the rows of the centre with the keys of uploaded ones, as these are: until the transaction
    /// ends, nobody else changes them.
    fn lock_rows(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        rows: &[RowRef],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Those of some deletes that find their rows as their pre-images say (or with `insists`, find
    /// them), and would do something to published rows which refer to these and are none of them:
    /// by foreign keys that act. Nobody adds such a row before the transaction ends.
    fn find_rows_with_children(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        rows: &[RowRef],
        insists: bool,
    ) -> impl Future<Output = Result<Vec<RowRef>>> + Send;

    /// Those of some rows that refer to a row which is not in the centre, as they are to be, whoever
    /// may see that row. One that cannot be looked for counts as there.
    fn find_rows_without_parent(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        reference: &ParentReference<'_, Self::Tables>,
        rows: &[RowRef],
    ) -> impl Future<Output = Result<Vec<RowRef>>> + Send;

    /// Applies parts at once: what one row frees, another can take, and foreign keys are checked
    /// when all is done. Whether all rows could be written; otherwise none is.
    fn write_cycle(
        &mut self,
        parts: &[CyclePart<'_, '_, Self::Tables>],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Runs the statements of a script for each row, in order; of a row, all statements or none. By
    /// row and statement: the values of the parameters.
    fn run_script(
        &mut self,
        statements: &[ScriptStatement],
        rows: &[Vec<Vec<Value>>],
    ) -> impl Future<Output = Result<Vec<ScriptOutcome>>> + Send;

    /// Runs the statements of a script once for all of a set of rows of a table: how many rows the
    /// least of those updates that read the set has changed. If the database refuses something,
    /// nothing is done.
    fn run_set(
        &mut self,
        table: &ServedTable<Self::Tables>,
        statements: &[ScriptStatement],
        set: &RowSet,
    ) -> impl Future<Output = Result<ScriptOutcome>> + Send;

    /// Whether what the centre has of a row may be something else than what was written: by a
    /// trigger, a generated column, or a type that keeps a value otherwise.
    fn may_compute_values(&self, table: &IncomingTable<'_, Self::Tables>) -> bool;

    /// From now on, [`UploadWriter::changed_tables`] can tell what is changed in the transaction, which is
    /// undone.
    fn watch_changes(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// The tables of the application that were changed in the transaction.
    fn changed_tables(&mut self) -> impl Future<Output = Result<Vec<ChangedTable>>> + Send;

    /// How many warnings the database has given since it was last asked.
    fn take_warnings(&mut self) -> u64 {
        0
    }

    /// The version of what was written, for [`crate::OwnUpload`], and whether nothing else has it.
    fn version(&self, tables: &[IncomingTable<'_, Self::Tables>], is_alone: bool) -> (u64, bool);
}

/// Undoes what has failed alone.
pub(super) async fn undo(rows: &mut impl UploadWriter, error: &CentreError) -> Result<()> {
    rows.undo().await?;
    if let CentreError::Locked { .. } = error {
        rows.shorten_lock_timeout();
    }
    Ok(())
}

/// Whether an error is one upload's own, and the others of the list can go on.
pub(super) fn fails_alone(error: &CentreError) -> bool {
    !error.is_retryable() && !matches!(error, CentreError::Unavailable { .. })
}
