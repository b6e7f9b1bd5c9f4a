//! What the devices of a market have done, and by how much that changes the counters.

use std::collections::{BTreeMap, BTreeSet};

/// By how much counters were changed, by table and key.
pub(super) type Differences = BTreeMap<(&'static str, i64), i64>;

/// Adds a difference of one counter.
pub(super) fn add(differences: &mut Differences, counter: (&'static str, i64), by: i64) {
    *differences.entry(counter).or_default() += by;
}

/// What the application of a device has committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// What it has taken from counters: less than nothing.
    pub(super) taken: Differences,
    /// The rows of families that it has inserted, by what they say, and under which sale.
    pub(super) entries: BTreeMap<String, String>,
    /// Rows of counters that it has inserted while its file was one of two of one origin, and did not
    /// know that.
    pub(super) inserted_in_copy: BTreeSet<(&'static str, i64)>,
    /// The tickets that it has numbered.
    pub(super) tickets: BTreeSet<String>,
}
