//! Comparing a table's rows with what a remote has of it: sums in one pass, then which
//! rows of a second one are sent. How rows are read is left to the adapters, the
//! checksums are [`tidewater_protocol::compare`]'s affair.

use tidewater_protocol::compare::{CompareError, Intervals, Ranges};
use tidewater_protocol::message::{KeyInterval, KeyRange, TableBegin};
use tidewater_protocol::{Code, Datum, PublicationSchema, RowShape};

use crate::download::TableCompare;
use crate::error::CentreError;

/// So many rows are compared before it is asked whether the remote is still there.
const ROWS_BETWEEN_QUESTIONS: u64 = 4_096;

/// Keys of up to so many columns need no allocation.
const SHORT_KEY: usize = 4;

/// What a remote has of each table of the publication, by the table's index; `None` for
/// tables that it does not compare, or never holds rows of.
pub fn by_table<'c>(
    schema: &PublicationSchema,
    compares: &'c [TableCompare],
) -> Vec<Option<&'c TableCompare>> {
    let tables = schema.tables.iter();
    let compares = tables.map(|table| {
        let compare = compares.iter().find(|it| it.table == table.name)?;
        table.direction.downloads().then_some(compare)
    });
    compares.collect()
}

/// The first pass: the sums of the rows of a table.
pub struct RangeSums<'a> {
    shape: &'a RowShape,
    theirs: &'a [KeyRange],
    ranges: Ranges<'a>,
    rows: u64,
}

impl<'a> RangeSums<'a> {
    /// # Errors
    /// [`CentreError::Peer`]: the ranges do not fit the table.
    pub fn new(shape: &'a RowShape, theirs: &'a [KeyRange]) -> Result<RangeSums<'a>, CentreError> {
        Ok(RangeSums {
            shape,
            theirs,
            ranges: Ranges::like(shape, theirs).map_err(unusable)?,
            rows: 0,
        })
    }

    /// Adds a row that the remote holds. True if it is time to ask whether somebody still
    /// waits for the outcome.
    pub fn add(&mut self, row: &[Datum<'_>]) -> bool {
        with_key(self.shape, row, |key| self.ranges.add(key, row));
        self.rows += 1;
        self.rows.is_multiple_of(ROWS_BETWEEN_QUESTIONS)
    }

    /// What has to be sent of the table; `None` if it is equal.
    pub fn outcome(&self) -> Option<RangeDifferences<'a>> {
        let intervals = self.ranges.differing(self.theirs);
        let sums = self.ranges.sums().iter().zip(self.theirs);
        let differing =
            sums.filter(|(own, their)| own.rows != their.rows || own.checksum != their.checksum);
        (!intervals.is_empty()).then_some(RangeDifferences {
            shape: self.shape,
            intervals,
            rows: differing.map(|(own, _)| own.rows).sum(),
        })
    }
}

/// What differs.
pub struct RangeDifferences<'a> {
    shape: &'a RowShape,
    intervals: Vec<KeyInterval>,
    /// The rows of the second pass that are sent.
    rows: u64,
}

impl RangeDifferences<'_> {
    /// Makes a table's header announce the rows. `follows_changes` says that this download
    /// has read all of the table's changes since the remote's checkpoint before.
    pub fn announce(&self, begin: &mut TableBegin, follows_changes: bool) {
        begin.replace = true;
        begin.follows_changes = follows_changes;
        begin.expected_rows = self.rows;
        begin.ranges.clone_from(&self.intervals);
    }

    /// The second pass.
    ///
    /// # Errors
    /// None that the first pass would not have found.
    pub fn selection(&self) -> Result<Selection<'_>, CentreError> {
        Ok(Selection {
            shape: self.shape,
            intervals: Intervals::new(self.shape, &self.intervals).map_err(unusable)?,
        })
    }
}

/// The second pass: which rows are sent.
pub struct Selection<'a> {
    shape: &'a RowShape,
    intervals: Intervals<'a>,
}

impl Selection<'_> {
    /// Whether the row is in an interval that differs.
    pub fn has(&self, row: &[Datum<'_>]) -> bool {
        with_key(self.shape, row, |key| self.intervals.contains(key))
    }
}

fn with_key<R>(shape: &RowShape, row: &[Datum<'_>], take: impl FnOnce(&[Datum<'_>]) -> R) -> R {
    if shape.key.len() > SHORT_KEY {
        let key: Vec<_> = shape.key.iter().map(|&index| row[index]).collect();
        return take(&key);
    }
    let mut key = [Datum::Null; SHORT_KEY];
    for (value, &index) in key.iter_mut().zip(&shape.key) {
        *value = row[index];
    }
    take(&key[..shape.key.len()])
}

/// The server has checked them against the schema that it serves: this is a deployment
/// between the two.
fn unusable(error: CompareError) -> CentreError {
    CentreError::Peer {
        message: format!("a comparison that does not fit the table: {error}"),
        code: Code::SchemaMismatch,
    }
}
