//! What an apply did, for reports: counts, and the first rows of each kind.

use std::collections::BTreeSet;

use serde::Serialize;

/// How many rows that lost, how many that were refused and how many that are stale are told by
/// their keys.
pub(crate) const ROWS_TOLD: usize = 100;

/// What an apply did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplySummary {
    /// Rows written by downloads.
    pub upserts: u64,
    /// Rows removed by downloads.
    pub removals: u64,
    /// The tables of which rows were written or removed.
    pub tables: BTreeSet<String>,
    /// Rows written and removed up to the end of the last table.
    counted: u64,
    /// Changes that lost against the centre.
    pub conflicts: u64,
    /// The first 100 of them.
    pub conflict_rows: Vec<ConflictSummary>,
    /// Changes that the centre refused.
    pub refused: u64,
    /// The first 100 of them.
    pub refused_rows: Vec<RefusedSummary>,
    /// Rows that could not be applied and will be asked for again.
    pub stale: u64,
    /// The SQL of the application's own indexes, triggers and views that a new schema made
    /// impossible.
    pub not_restored: Vec<String>,
    /// Each table that was compared, where [`super::Applier::only_tell_differences`] asked for it; those
    /// that were not equal, where the server did.
    pub compared: Vec<TableDifferences>,
    /// Tables that had not been tracked were compared: what waited for that can go up now.
    pub tracks_again: bool,
    /// The server is to hear what was not equal.
    pub has_verified: bool,
}

/// How a table differs from the centre. Rows with local changes are left out: they differ
/// because the user says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableDifferences {
    /// The table.
    pub table: String,
    /// Rows that are the same.
    pub equal: u64,
    /// Rows that only the centre has.
    pub missing: u64,
    /// Rows that are only here.
    pub extra: u64,
    /// Rows that have other values.
    pub different: u64,
    /// Rows of the centre that have no key, and so can be on no remote.
    pub keyless: u64,
    /// Why the table was not compared, and all figures are 0: `script` (scripts tell what is new in
    /// it), `handler` (its handler has not told everything), or `unknown`.
    pub uncompared: Option<&'static str>,
    /// The first 100 of those that differ.
    pub rows: Vec<RowDifference>,
}

/// A row that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowDifference {
    /// The key, readable: a JSON array.
    pub key: String,
    /// `missing`, `extra` or `different`.
    pub what: &'static str,
}

impl ApplySummary {
    /// Everything of a table has arrived.
    pub(super) fn end_table(&mut self, table: &str) {
        let counted = self.upserts + self.removals;
        if std::mem::replace(&mut self.counted, counted) != counted {
            self.tables.insert(table.to_owned());
        }
    }
}

impl TableDifferences {
    /// Whether the table is equal.
    pub fn is_equal(&self) -> bool {
        self.missing + self.extra + self.different == 0
    }
}

/// One change that lost, in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConflictSummary {
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
}

/// One refused change in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedSummary {
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl ApplySummary {
    /// A change is among the refused ones now that was not before.
    pub(crate) fn note_refused(&mut self, table: &str, key: &str, reason: &str) {
        self.refused += 1;
        if self.refused_rows.len() < ROWS_TOLD {
            self.refused_rows.push(RefusedSummary {
                table: table.to_owned(),
                key: key.to_owned(),
                reason: reason.to_owned(),
            });
        }
    }
}
