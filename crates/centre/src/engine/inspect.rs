//! What explaining and previewing ask of a database, in the reading transaction that is open.

use tidewater_protocol::{Datum, Value};

use super::publication::Publication;
use crate::context::SyncContext;
use crate::engine::assumed_role::ask_role;
use crate::engine::catalog::CatalogReader as _;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::DatabaseConnection;
use crate::engine::flight::{FlightStep, TableStatement};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::condition_arguments::ConditionArguments;
use crate::engine::sql::reading::row_of_key;
use crate::engine::sql::served_table::{TableAdapter, rule_alias};
use crate::engine::sql::sql_dialect::SqlDialect;
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

/// Reads columns of a row, and of those above it; NULL where there is none above. `None`: there is no
/// row of this key.
///
/// # Errors
/// The database failed.
pub(super) async fn read_cells<T: DatabaseInspection>(
    connection: &mut T::Connection,
    catalog: &T::Catalog,
    row: &KeyedRow<'_, T::Tables>,
    cells: &[InspectedCell],
) -> Result<Option<Vec<Value>>, CentreError> {
    let columns = cells.iter().map(|cell| {
        let column = &catalog.sql_table(cell.table).columns[cell.column];
        let alias = rule_alias(cell.rule, cell.level);
        (
            column.output(&format!("{alias}.")),
            kind_of::<T::Tables>(column),
        )
    });
    let (outputs, kinds): (Vec<String>, Vec<_>) = columns.unzip();
    let Some(mut statement) = row.select(T::dialect(), &outputs.join(", ")) else {
        return Ok(None);
    };
    statement.yields = kinds;
    let mut found = None;
    let step = FlightStep::table(statement, |row| {
        found = Some(row.iter().map(Datum::to_value).collect());
        Ok(())
    });
    connection.run("reading a row", vec![step]).await?;
    Ok(found)
}

/// The role under which a remote reads the publication, and whether it sees the row; `None` if that
/// is the server's own.
///
/// # Errors
/// The database failed, or there is no role that can be assumed.
pub(super) async fn find_seen<C: DatabaseConnection<Tables: TableAdapter>>(
    connection: &mut C,
    row: &KeyedRow<'_, C::Tables>,
    context: &SyncContext,
) -> Result<Option<(String, bool)>, CentreError> {
    let acting = ask_role(connection, row.publication, context).await?;
    let statement = row.select(C::DIALECT, "1 AS one");
    let Some(statement) = statement.filter(|_| acting.is_another()) else {
        return Ok(None);
    };
    let mut is_seen = false;
    let step = FlightStep::table(statement, |_| {
        is_seen = true;
        Ok(())
    });
    acting.run(connection, step).await?;
    Ok(Some((acting.role().to_owned(), is_seen)))
}

fn kind_of<T: TableAdapter>(column: &T::Column) -> T::Kind {
    column.kind()
}

impl<'a, T: TableAdapter> KeyedRow<'a, T> {
    /// Reads something of the row; `None` if no row can have its key.
    fn select(
        &self,
        dialect: &'static dyn SqlDialect,
        outputs: &str,
    ) -> Option<TableStatement<'a, T>> {
        let table = &self.publication.tables[self.table];
        let mut arguments = ConditionArguments::new(dialect);
        let key = arguments.push_key::<T::Rows, _>(table.key_columns(), self.key)?;
        let sql = row_of_key(table, outputs, &key);
        let mut statement = TableStatement::new("reading a row", sql);
        statement.arguments = arguments.into_list();
        Some(statement)
    }
}
