//! What the engine asks of a database to notice the changes of tables: reading its catalog, and making, checking and pruning change logs.

use tidewater_protocol::Table;

use crate::deploy_report::{DeployStep, MissingRight};
use crate::engine::callable_procedure::{CallableProcedure, StatementCheck};
use crate::engine::catalog::{CatalogReader, TableInfo};
use crate::engine::change_log::ChangeLog;
use crate::engine::compile::{CompiledTable, WhichRule};
use crate::engine::connection::{DatabaseConnection, StatementResult, SystemStatement};
use crate::engine::deployment_step::{DeploymentStep, ExistingChangeLogs, ScopeSources};
use crate::engine::publication::Publication;
use crate::engine::role_assumption::RoleAdapter;
use crate::engine::scope_query::ScopeQuery;
use crate::engine::script::Script;
use crate::engine::scripts::{CheckedScript, SetColumn};
use crate::engine::sql::lexing::SqlLexing;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::error::CentreError;
use crate::records::{BlockingTransaction, KeylessRows};

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

    /// Checks that the query of a rule can be run, and yields what the partition columns are. What
    /// is asked: the query, named with its place in the configuration, and the table's rule.
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_query(
        connection: &mut Self::Connection,
        asked: (&str, &ScopeQuery, WhichRule),
        published: &CompiledTable<'_>,
        catalog: &[TableInfo],
        table: &ServedTable<Self::Tables>,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

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

    /// Checks that the query for the values that a parameter may have can be run, and yields one
    /// column. It is named with its place in the configuration.
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_allowed(
        connection: &mut Self::Connection,
        named: &str,
        query: &ScopeQuery,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// Checks that a statement of a procedure can be run. It is named with its place in the
    /// configuration.
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_call(
        connection: &mut Self::Connection,
        named: &str,
        procedure: &CallableProcedure,
        statement: &Script,
    ) -> impl Future<Output = Result<StatementCheck, CentreError>> + Send;

    /// How a statement spells the relation of a table's rows that has these columns, by parameters
    /// from this number on: [`UploadDriver::run_set`](super::upload::upload_driver::UploadDriver::run_set) binds them.
    fn rows_sql(table: &ServedTable<Self::Tables>, columns: &[SetColumn], first: usize) -> String;

    /// The rows of these tables, as remotes call them, that have no key. Where a primary key is never
    /// NULL there are none.
    fn keyless_rows(
        connection: &mut Self::Connection,
        tables: &[String],
    ) -> impl Future<Output = Result<Vec<KeylessRows>, CentreError>> + Send {
        let _ = (connection, tables);
        async { Ok(Vec::new()) }
    }

    /// Checks that it can be told up to when everything is visible that was written, by
    /// [`Opened::safe_until`](super::download::OpenedSubscription::safe_until).
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_safe_time(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// Checks that a statement of a script can be run, which reads a relation of these columns, if it
    /// reads one. It is named by its file.
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_script(
        connection: &mut Self::Connection,
        named: &str,
        script: &Script,
        set: &[SetColumn],
    ) -> impl Future<Output = Result<CheckedScript, CentreError>> + Send;

    /// The roles under which remotes may act; `None` if the database has no roles.
    fn roles() -> Option<&'static dyn RoleAdapter<Self::Connection, Self::Tables>>;

    /// Makes the adapter's part of the server's own tables, in neutral SQL but for the types.
    const LOGS: &str;

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

    /// Begins a transaction that alone may change what is deployed.
    fn begin_alone(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// What there is of change logs, and whether it is as it has to be.
    fn in_place(
        connection: &mut Self::Connection,
        catalog: &Self::Catalog,
        wanted: &[Self::Log],
    ) -> impl Future<Output = Result<ExistingChangeLogs, CentreError>> + Send;

    /// The SQL that makes a change log with its triggers, under a number that none had before.
    fn make_log(log: &Self::Log, id: i64, catalog: &Self::Catalog) -> String;

    /// The SQL that has remotes fetch all rows of a change log's table.
    fn everything(id: i64) -> String;

    /// The SQL with which deploying ends.
    fn deployed(publications: &[Publication<Self::Tables>]) -> String;

    /// What removes every trace.
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

    /// See [`crate::Centre::other_sessions`]. A database that cannot tell counts none.
    fn other_sessions(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<u64, CentreError>> + Send {
        let _ = connection;
        async { Ok(0) }
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
    /// [`DatabaseConnection::gather`].
    fn ask_pruned(position: &[u8]) -> Vec<SystemStatement>;

    /// Judges the answers to [`Self::ask_pruned`].
    fn is_pruned(answers: &[StatementResult]) -> Result<bool, CentreError>;

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

    /// When the oldest transaction that is open began, and how many sessions wait for a lock. A
    /// database that cannot tell tells neither.
    fn load(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(Option<i64>, Option<u64>), CentreError>> + Send {
        let _ = connection;
        async { Ok((None, None)) }
    }

    /// See [`crate::records::CentreStatus::blockers`]. A database that cannot tell names none.
    fn blockers(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<BlockingTransaction>, CentreError>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Prepares a connection for pruning. False if another one is at it.
    fn begin_pruning(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, CentreError>> + Send;

    /// Ends what [`Self::begin_pruning`] began, and judges how it went: to have given way to others
    /// is no error.
    fn end_pruning(
        connection: &mut Self::Connection,
        result: Result<(), CentreError>,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

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
