//! Rows of uploads on their way into a database, and what became of them.

use tidewater_protocol::{ColumnType, Datum, Op, Value, pack};

use super::Serials;
use super::incoming_rows::{IncomingTable, RowRef};
use crate::engine::exact::{pack_row, unpack};
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::upload::refusal_reason::FailedRow;
use crate::error::CentreError;
use crate::scope::Scope;

type Result<T> = std::result::Result<T, CentreError>;

/// What is known once an upload's number is taken.
pub struct ClaimedSequence {
    /// The serials of the subscription's scopes.
    pub serials: Serials,
    /// The scope as it is now.
    pub scope: Scope,
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
    pub fn pack(types: &[ColumnType], values: &[Datum<'_>]) -> CentralRow {
        if pack::too_long(values).is_none() {
            return CentralRow {
                packed: pack_row(types, values),
                is_whole: true,
            };
        }
        let mut values = values.to_vec();
        while let Some((column, _)) = pack::too_long(&values) {
            values[column] = Datum::Null;
        }
        CentralRow {
            packed: pack_row(types, &values),
            is_whole: false,
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
    /// By row: the values of the columns of [`ScriptStatement::set`](crate::engine::scripts::ScriptStatement::set).
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

/// The most rows of one statement.
const BATCH_ROWS: usize = 2_000;

/// The most bytes of one statement's parameters, unless one row has more.
const BATCH_BYTES: usize = 4 << 20;

/// How many rows of a list go into one statement.
pub(super) fn batch_size(rows: &[RowRef]) -> usize {
    // A row's distance to the next tells its size closely enough.
    let mut bytes = 0;
    for (index, pair) in rows.windows(2).take(BATCH_ROWS - 1).enumerate() {
        bytes += pair[0].distance(pair[1]);
        if bytes > BATCH_BYTES {
            return index + 1;
        }
    }
    rows.len().min(BATCH_ROWS)
}
