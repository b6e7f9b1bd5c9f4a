//! What the engine asks of a database to notice the changes of tables: reading its catalog, and making and pruning change logs.

use tidewater_protocol::Table;

use crate::deploy_report::{DeployStep, MissingRight};
use crate::engine::catalog::CatalogReader;
use crate::engine::change_log::ChangeLog;
use crate::engine::compile::CompiledTable;
use crate::engine::connection::{DatabaseConnection, SystemStatement};
use crate::engine::deployment_step::{DeploymentStep, ExistingChangeLogs, ScopeSources};
use crate::engine::publication::Publication;
use crate::engine::scope_query::ScopeQuery;
use crate::engine::sql::lexing::SqlLexing;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::error::CentreError;
use crate::records::KeylessRows;

/// Numbers that are asked for.
#[derive(Clone, Copy, Debug)]
pub struct NumberBlockRequest<'a> {
    /// The column that they are for.
    pub column: &'a str,
    /// How many.
    pub count: u32,
    /// The highest that was handed out before.
    pub handed_out: i64,
}

/// For what rights are needed.
pub struct RightsPurpose<'a, T: ChangeTracking + ?Sized> {
    /// What is going to be served.
    pub publications: &'a [Publication<T::Tables>],
    /// The change logs that are made.
    pub made: Vec<&'a T::Log>,
    /// The tables of change logs that are removed or made anew, for people.
    pub removed: Vec<String>,
    /// Nothing was deployed before.
    pub is_first: bool,
}

/// What a role lacks.
#[derive(Debug, Default)]
pub struct RoleRights {
    /// Without these it is not deployed or not served.
    pub missing: Vec<MissingRight>,
    /// What it may not do afterwards.
    pub warnings: Vec<String>,
}

/// How pruning goes on once a connection is prepared for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruningStart {
    /// Not at all: another connection is at it.
    Elsewhere,
    /// In the transaction that is open, which is committed at the end.
    InTransaction,
    /// Statement by statement. It gives way to others that write.
    GivingWay,
}

/// How changes are noticed that anybody makes to published tables.
pub trait ChangeTracking: Send + Sync + 'static {
    /// A connection to the database.
    type Connection: DatabaseConnection<Tables = Self::Tables>;
    /// The application's tables.
    type Catalog: CatalogReader;
    /// A table of a publication.
    type Tables: TableAdapter<Column = <Self::Catalog as CatalogReader>::Column, Log = Self::Log>;
    /// A change log.
    type Log: ChangeLog;

    /// What nobody sees, if that has to be said whenever something was deployed.
    const UNSEEN: Option<&str>;

    /// How the database spells what the engine writes.
    fn dialect() -> &'static dyn SqlDialect {
        Self::Connection::DIALECT
    }

    /// Which quotes and comments its SQL has.
    fn lexing() -> SqlLexing {
        Self::dialect().lexing()
    }

    /// How the parameter with this number is written.
    fn parameter(number: usize) -> String {
        Self::dialect().parameter(number)
    }

    /// Reads the catalog.
    fn catalog(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Catalog, CentreError>> + Send;

    /// What serving a table needs.
    fn table(
        published: &CompiledTable<'_>,
        schema: &Table,
        catalog: &Self::Catalog,
    ) -> ServedTable<Self::Tables>;

    /// What has to be done so that writes to the tables which these queries read are noted, and
    /// writes to no others, and of which tables that cannot be. It is asked in the transaction of
    /// deploying.
    fn scope_sources(
        connection: &mut Self::Connection,
        catalog: &Self::Catalog,
        queries: &[&ScopeQuery],
    ) -> impl Future<Output = Result<ScopeSources, CentreError>> + Send;

    /// Takes numbers for a column of integers from what numbers the table's rows, in the transaction
    /// that is open, so that nobody else ever gets them: as intervals, each with its first and its
    /// last. They are above `handed_out`, and above what is in the column.
    fn take_numbers(
        connection: &mut Self::Connection,
        asked: NumberBlockRequest<'_>,
        table: &ServedTable<Self::Tables>,
    ) -> impl Future<Output = Result<Vec<(i64, i64)>, CentreError>> + Send;

    /// The rows of these tables, as remotes call them, that have no key. Where a primary key is never
    /// NULL there are none.
    fn keyless_rows(
        connection: &mut Self::Connection,
        tables: &[String],
    ) -> impl Future<Output = Result<Vec<KeylessRows>, CentreError>> + Send {
        let _ = (connection, tables);
        async { Ok(Vec::new()) }
    }

    /// The statements that make the adapter's part of the server's own tables, in neutral SQL but for
    /// the types. Where DDL is transactional, a text may be several of them.
    const LOGS: &[&str];

    /// Those of the server's own tables that are there, by their neutral names.
    fn found_tables(
        connection: &mut Self::Connection,
        wanted: &[&'static str],
    ) -> impl Future<Output = Result<Vec<&'static str>, CentreError>> + Send;

    /// Does, or in a dry run tells, what has to be done before the transaction of deploying.
    fn prepare(
        connection: &mut Self::Connection,
        dry_run: bool,
    ) -> impl Future<Output = Result<Vec<DeployStep>, CentreError>> + Send;

    /// Takes the right to change what is deployed, which one connection has at a time, and begins a
    /// transaction. Where DDL is transactional, the right may end with the transaction. Elsewhere it
    /// lasts until [`Self::end_alone`], over any number of transactions; it ends with the connection,
    /// so that a process that dies leaves nobody waiting.
    fn begin_alone(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// Gives back the right that [`Self::begin_alone`] took, also after an error; also if that has
    /// failed, perhaps after it had taken the right.
    fn end_alone(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// What there is of change logs, and whether it is as it has to be.
    fn in_place(
        connection: &mut Self::Connection,
        catalog: &Self::Catalog,
        wanted: &[Self::Log],
    ) -> impl Future<Output = Result<ExistingChangeLogs, CentreError>> + Send;

    /// The statements that make a change log with its triggers, under a number that none had before.
    /// See [`crate::engine::deployment_step`] for their order.
    fn make_log(log: &Self::Log, id: i64, catalog: &Self::Catalog) -> Vec<String>;

    /// The statements that have remotes fetch all rows of a change log's table.
    fn everything(id: i64) -> Vec<String>;

    /// The statements with which deploying ends. They are no DDL.
    fn deployed(publications: &[Publication<Self::Tables>]) -> Vec<String>;

    /// What removes every trace: triggers, then change logs, then the server's own tables in the order
    /// of [`own_tables`](crate::engine::state::own_tables).
    fn traces(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<DeploymentStep>, CentreError>> + Send;

    /// The rights that the connection's role lacks to do what deploying would do now, and to serve
    /// it afterwards; and what it will not be allowed to do once it is deployed. A database without
    /// roles has none.
    fn rights(
        connection: &mut Self::Connection,
        asked: RightsPurpose<'_, Self>,
    ) -> impl Future<Output = Result<RoleRights, CentreError>> + Send {
        let _ = (connection, asked);
        async { Ok(RoleRights::default()) }
    }

    /// The rights that the connection's role lacks to remove every trace.
    fn removal_rights(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<MissingRight>, CentreError>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Completes what is going to be served.
    fn complete(
        connection: &mut Self::Connection,
        publications: &mut [Publication<Self::Tables>],
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// See [`crate::publication::DeployedPublications::version`]; cheap enough to be asked twice a second.
    fn version<'t>(
        connection: &mut Self::Connection,
        tables: impl Iterator<Item = &'t ServedTable<Self::Tables>> + Send,
    ) -> impl Future<Output = Result<String, CentreError>> + Send;

    /// What has to be asked to tell whether change logs go back to a position, for
    /// [`DatabaseConnection::gather`]: it yields rows if they do not.
    fn ask_pruned(position: &[u8]) -> Vec<SystemStatement>;

    /// The change logs: the table's name and about how many entries there are.
    fn log_sizes(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(String, u64)>, CentreError>> + Send;

    /// The same in an instant, however many there are.
    fn about_log_sizes(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(String, u64)>, CentreError>> + Send {
        Self::log_sizes(connection)
    }

    /// Prepares a connection for pruning.
    fn begin_pruning(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<PruningStart, CentreError>> + Send;

    /// Drops what no watermark from `before_ms` on needs of change logs, and the marks that are of
    /// no more use; counts the entries.
    fn prune_logs(
        connection: &mut Self::Connection,
        before_ms: i64,
        now_ms: i64,
        random: [u8; 16],
        entries: &mut u64,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;
}
