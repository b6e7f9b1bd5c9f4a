//! What change logs are made of here, and what of deploying is the database's own.
//!
//! Each statement of DDL commits. The right to deploy is a lock by a name, which outlives transactions
//! and ends with the connection.

use tidewater_centre::deploy_report::DeployStep;
use tidewater_centre::engine::change_tracking::{ChangeTracking, NumberBlockRequest, PruningStart};
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::connection::{
    DatabaseConnection as _, SystemStatement, TransactionMode,
};
use tidewater_centre::engine::deployment_step::{DeploymentStep, ExistingChangeLogs, ScopeSources};
use tidewater_centre::engine::scope_query::ScopeQuery;
use tidewater_centre::engine::sql::sql_dialect::{SqlDialect as _, StepLock};
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_centre::engine::state::own_tables;
use tidewater_centre::error::CentreError;
use tidewater_protocol::Table;

use crate::catalog::MysqlCatalog;
use crate::connection::{MysqlConnection, query_column};
use crate::dialect::MysqlDialect;
use crate::publication::{MysqlTables, Publication, ServedTable};
use crate::recorded_log::RecordedLog;
use crate::{MysqlCentre, state};

/// The name of the lock of deploying: names of locks are the server's, and no longer than 64
/// characters.
macro_rules! deploy_lock {
    () => {
        "concat('tidewater.', sha1(database()))"
    };
}

impl ChangeTracking for MysqlCentre {
    type Connection = MysqlConnection;
    type Catalog = MysqlCatalog;
    type Tables = MysqlTables;
    type Log = RecordedLog;

    const UNSEEN: Option<&str> = None;
    const LOGS: &[&str] = state::LOGS;

    async fn catalog(_: &mut MysqlConnection) -> Result<MysqlCatalog, CentreError> {
        Ok(MysqlCatalog::default())
    }

    fn table(_: &CompiledTable<'_>, _: &Table, _: &MysqlCatalog) -> ServedTable {
        todo!("publishing: what serving a table needs")
    }

    async fn scope_sources(
        _: &mut MysqlConnection,
        _: &MysqlCatalog,
        queries: &[&ScopeQuery],
    ) -> Result<ScopeSources, CentreError> {
        match queries {
            [] => Ok(ScopeSources::default()),
            _ => todo!("following: triggers on the tables that partition queries read"),
        }
    }

    async fn take_numbers(
        _: &mut MysqlConnection,
        _: NumberBlockRequest<'_>,
        _: &ServedTable,
    ) -> Result<Vec<(i64, i64)>, CentreError> {
        todo!("publishing: numbers for the rows that remotes insert")
    }

    async fn found_tables(
        connection: &mut MysqlConnection,
        wanted: &[&'static str],
    ) -> Result<Vec<&'static str>, CentreError> {
        state::found(connection, wanted).await
    }

    async fn prepare(_: &mut MysqlConnection, _: bool) -> Result<Vec<DeployStep>, CentreError> {
        Ok(Vec::new())
    }

    async fn begin_alone(connection: &mut MysqlConnection) -> Result<(), CentreError> {
        let sql = concat!("SELECT GET_LOCK(", deploy_lock!(), ", 2)");
        let what = "taking the right to deploy";
        let got: Vec<Option<i64>> = query_column(connection, what, sql).await?;
        if got != [Some(1)] {
            return Err(CentreError::Locked {
                message: "another deployment is running; nothing was changed".into(),
            });
        }
        connection.begin(TransactionMode::WRITING).await
    }

    async fn end_alone(connection: &mut MysqlConnection) -> Result<(), CentreError> {
        let sql = concat!("SELECT RELEASE_LOCK(", deploy_lock!(), ")");
        let what = "giving back the right to deploy";
        let released = query_column::<Option<i64>>(connection, what, sql).await;
        released.map(drop)
    }

    async fn in_place(
        _: &mut MysqlConnection,
        _: &MysqlCatalog,
        wanted: &[RecordedLog],
    ) -> Result<ExistingChangeLogs, CentreError> {
        match wanted {
            [] => Ok(ExistingChangeLogs {
                next: 1,
                ..ExistingChangeLogs::default()
            }),
            [log, ..] => match *log {},
        }
    }

    fn make_log(log: &RecordedLog, _: i64, _: &MysqlCatalog) -> Vec<String> {
        match *log {}
    }

    fn everything(_: i64) -> Vec<String> {
        todo!("change logs: the entry behind which everybody fetches all rows")
    }

    fn deployed(_: &[Publication]) -> Vec<String> {
        Vec::new()
    }

    async fn traces(connection: &mut MysqlConnection) -> Result<Vec<DeploymentStep>, CentreError> {
        let tables = state::found(connection, &own_tables::<Self>()).await?;
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        let drops = tables.iter().map(|it| MysqlDialect.drop_table(it));
        let what = "drop the server's state: users, remotes, history";
        let lock = MysqlDialect.lock_title(StepLock::Everybody, "the server's tables");
        let step = DeploymentStep::sql(what.to_owned(), lock, drops.collect());
        Ok(vec![step.of_state()])
    }

    async fn complete(_: &mut MysqlConnection, _: &mut [Publication]) -> Result<(), CentreError> {
        Ok(())
    }

    async fn version<'t>(
        _: &mut MysqlConnection,
        mut tables: impl Iterator<Item = &'t ServedTable> + Send,
    ) -> Result<String, CentreError> {
        match tables.next() {
            None => Ok(String::new()),
            Some(_) => todo!("publishing: what tells that a table is as it was loaded"),
        }
    }

    fn ask_pruned(_: &[u8]) -> Vec<SystemStatement> {
        todo!("downloads: whether change logs go back to a position")
    }

    async fn log_sizes(_: &mut MysqlConnection) -> Result<Vec<(String, u64)>, CentreError> {
        Ok(Vec::new())
    }

    /// Every statement is a transaction of its own, and waits for locks as briefly as all do.
    async fn begin_pruning(_: &mut MysqlConnection) -> Result<PruningStart, CentreError> {
        Ok(PruningStart::GivingWay)
    }

    async fn prune_logs(
        _: &mut MysqlConnection,
        _: i64,
        _: i64,
        _: [u8; 16],
        _: &mut u64,
    ) -> Result<(), CentreError> {
        // There are no change logs before tables are published.
        Ok(())
    }
}
