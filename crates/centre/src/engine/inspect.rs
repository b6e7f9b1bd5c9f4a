//! What explaining and previewing ask of a database, in the reading transaction that is open.

use tidewater_protocol::{Datum, Value};

use super::publication::Publication;
use crate::context::SyncContext;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::scope::RuleScope;

/// A row of a publication's table, by its key.
#[derive(Debug)]
pub struct KeyedRow<'a, T: TableAdapter> {
    /// The publication.
    pub publication: &'a Publication<T>,
    /// The table, by its place there.
    pub table: usize,
    /// The key, in the order of the key's columns.
    pub key: &'a [Datum<'a>],
}

/// A column of a row, or of one above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectedCell {
    /// The number of the rule along whose route it is.
    pub rule: usize,
    /// How many steps along the route.
    pub level: usize,
    /// The table there, by its index in the catalog.
    pub table: usize,
    /// The column, by its index there.
    pub column: usize,
}

/// An entry of a change log.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeLogEntry {
    /// The version, in the database's own terms.
    pub version: String,
    /// It was made after this time; `None` if that is not known.
    pub after_ms: Option<i64>,
    /// And before this one.
    pub before_ms: Option<i64>,
    /// What stands in the partition columns.
    pub partition: Vec<Value>,
    /// Whether a mark was made after it, until the time that was asked for.
    pub is_covered: bool,
}

/// So many entries of a change log are told of a key, the newest.
pub const ENTRIES_TOLD: usize = 10;

/// The rows of a table that somebody holds under a configuration.
#[derive(Debug)]
pub struct ConfigurationSide<'a, T: TableAdapter> {
    /// The publication.
    pub publication: &'a Publication<T>,
    /// The table, by its place there.
    pub table: usize,
    /// What is held by each of the table's rules.
    pub scope: &'a [RuleScope],
}

impl<T: TableAdapter> Clone for ConfigurationSide<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: TableAdapter> Copy for ConfigurationSide<'_, T> {}

/// How two sets of rows of a table differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowsDiffer {
    /// How many are only in the second one.
    pub added: u64,
    /// How many only in the first one.
    pub removed: u64,
    /// The keys of the first of them.
    pub added_keys: Vec<Vec<Value>>,
    /// Those of the others.
    pub removed_keys: Vec<Vec<Value>>,
}

/// What a database tells of rows, rules and change logs.
pub trait DatabaseInspection: ChangeTracking {
    /// Reads columns of a row, and of those above it; NULL where there is none above. `None`: there
    /// is no row of this key.
    fn cells(
        connection: &mut Self::Connection,
        catalog: &Self::Catalog,
        row: &KeyedRow<'_, Self::Tables>,
        cells: &[InspectedCell],
    ) -> impl Future<Output = Result<Option<Vec<Value>>, CentreError>> + Send;

    /// The role under which a remote reads the publication, and whether it sees the row; `None` if
    /// that is the server's own.
    fn seen(
        connection: &mut Self::Connection,
        row: &KeyedRow<'_, Self::Tables>,
        context: &SyncContext,
    ) -> impl Future<Output = Result<Option<(String, bool)>, CentreError>> + Send {
        let _ = (connection, row, context);
        async { Ok(None) }
    }

    /// What the change log of a rule has of a key, newest first, no more than [`ENTRIES_TOLD`].
    /// Whether a mark was made until `until_ms` that is later, is told with each.
    fn entries(
        connection: &mut Self::Connection,
        row: &KeyedRow<'_, Self::Tables>,
        rule: usize,
        until_ms: i64,
    ) -> impl Future<Output = Result<Vec<ChangeLogEntry>, CentreError>> + Send;

    /// How the rows of a table that somebody holds under one configuration differ from those under
    /// another; at least one of them has the table. `rows` of each kind are told by their keys.
    /// `None`: they are read under different roles, so that nothing can be said.
    fn difference(
        connection: &mut Self::Connection,
        context: &SyncContext,
        sides: [Option<ConfigurationSide<'_, Self::Tables>>; 2],
        rows: usize,
    ) -> impl Future<Output = Result<Option<RowsDiffer>, CentreError>> + Send;
}
