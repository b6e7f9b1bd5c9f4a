//! What change logs are made of in PostgreSQL, and what of deploying is its own.
//!
//! Deploying goes on under an advisory lock and a short `lock_timeout`: a busy table makes it fail
//! instead of making the application wait behind it.

use std::collections::HashSet;

use tokio_postgres::{GenericClient, Row};

use tidewater_protocol::Table;

use super::acting::PostgresRoles;
use super::catalog::PostgresCatalog;
use super::connection::PostgresConnection;
use super::dialect::PostgresDialect;
use super::publication::{PostgresTables, Publication, ServedTable, served_table};
use super::quote::literal;
use super::state::{self, ADVISORY_LOCK, PLACE};
use super::table_statement;
use super::tracked::{self, IncompleteLog};
use super::triggers::LogSpec;
use super::{
    FINGERPRINTS, PostgresCentre, VERSION, existing_triggers, grants, members, numbers, rights,
    safe_time, scope, scope_sources, script_times, statement_check, waits, watermark,
};
use crate::deploy_lock::{begin_alone, everything};
use crate::driver_error::statement_failed;
use crate::partition_members::Members;
use tidewater_centre::deploy_report::{DeployStep, MissingRight};
use tidewater_centre::engine::callable_procedure::{CallableProcedure, StatementCheck};
use tidewater_centre::engine::catalog::TableInfo;
use tidewater_centre::engine::change_log::ChangeLog;
use tidewater_centre::engine::change_tracking::{
    ChangeTracking, NumberBlockRequest, RightsPurpose, RoleRights,
};
use tidewater_centre::engine::compile::{CompiledTable, WhichRule};
use tidewater_centre::engine::connection::{
    DatabaseConnection as _, StatementResult, SystemStatement, TransactionMode, each, system_row,
    system_sql,
};
use tidewater_centre::engine::deployment_step::{
    DeploymentStep, ExistingChangeLogs, FoundLog, ScopeSources,
};
use tidewater_centre::engine::role_assumption::RoleAdapter;
use tidewater_centre::engine::scope_query::ScopeQuery;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::scripts::{CheckedScript, SetColumn};
use tidewater_centre::engine::sql::sql_dialect::{SqlDialect as _, StepLock};
use tidewater_centre::engine::state::own_tables;
use tidewater_centre::error::CentreError;
use tidewater_centre::records::BlockingTransaction;

/// How long deploying waits for a table that is in use.
const LOCK_TIMEOUT_MS: u32 = 5_000;

impl ChangeTracking for PostgresCentre {
    type Connection = PostgresConnection;

    type Catalog = PostgresCatalog;
    type Tables = PostgresTables;
    type Log = LogSpec;

    const LOGS: &str = state::LOGS;

    const UNSEEN: Option<&str> = Some(
        "changes made with session_replication_role = replica or by logical replication are only \
         seen by tables with tracking = \"row\"",
    );

    async fn catalog(connection: &mut PostgresConnection) -> Result<PostgresCatalog, CentreError> {
        PostgresCatalog::read(connection.client()).await
    }

    fn table(published: &CompiledTable<'_>, _: &Table, catalog: &PostgresCatalog) -> ServedTable {
        served_table(published, catalog)
    }

    async fn take_numbers(
        connection: &mut PostgresConnection,
        asked: NumberBlockRequest<'_>,
        table: &ServedTable,
    ) -> Result<Vec<(i64, i64)>, CentreError> {
        numbers::take(connection, asked, table).await
    }

    async fn check_query(
        connection: &mut PostgresConnection,
        (place, query, which): (&str, &ScopeQuery, WhichRule),
        _: &CompiledTable<'_>,
        _: &[TableInfo],
        table: &ServedTable,
    ) -> Result<(), CentreError> {
        let columns = table.asked(which, None);
        scope::check(connection.client(), place, query, columns).await
    }

    async fn scope_sources(
        connection: &mut PostgresConnection,
        _: &PostgresCatalog,
        queries: &[&ScopeQuery],
    ) -> Result<ScopeSources, CentreError> {
        scope_sources::find(connection, queries).await
    }

    async fn check_allowed(
        connection: &mut PostgresConnection,
        named: &str,
        query: &ScopeQuery,
    ) -> Result<(), CentreError> {
        scope::check_allowed(connection.client(), named, query).await
    }

    async fn check_call(
        connection: &mut PostgresConnection,
        named: &str,
        procedure: &CallableProcedure,
        statement: &Script,
    ) -> Result<StatementCheck, CentreError> {
        statement_check::check_call(connection, named, procedure, statement).await
    }

    async fn check_safe_time(connection: &mut PostgresConnection) -> Result<(), CentreError> {
        safe_time::check_safe_time(connection).await
    }

    fn rows_sql(table: &ServedTable, columns: &[SetColumn], first: usize) -> String {
        table_statement::rows_sql(table, columns, first)
    }

    async fn check_script(
        connection: &mut PostgresConnection,
        named: &str,
        script: &Script,
        _: &[SetColumn],
    ) -> Result<CheckedScript, CentreError> {
        script_times::check_script(connection, named, script).await
    }

    fn roles() -> Option<&'static dyn RoleAdapter<PostgresConnection, PostgresTables>> {
        Some(&PostgresRoles)
    }

    async fn found_tables(
        connection: &mut PostgresConnection,
        wanted: &[&'static str],
    ) -> Result<Vec<&'static str>, CentreError> {
        found_tables(connection.client(), wanted).await
    }

    async fn prepare(
        connection: &mut PostgresConnection,
        _: bool,
    ) -> Result<Vec<DeployStep>, CentreError> {
        check_encoding(connection.client()).await?;
        Ok(Vec::new())
    }

    async fn begin_alone(connection: &mut PostgresConnection) -> Result<(), CentreError> {
        begin_alone(connection, LOCK_TIMEOUT_MS).await
    }

    async fn in_place(
        connection: &mut PostgresConnection,
        catalog: &PostgresCatalog,
        wanted: &[LogSpec],
    ) -> Result<ExistingChangeLogs, CentreError> {
        find_in_place(connection.client(), catalog, wanted).await
    }

    fn make_log(log: &LogSpec, id: i64, catalog: &PostgresCatalog) -> String {
        let (spec, id) = (log, id as i32);
        let text = |text: &str| literal(text).unwrap_or_else(|| "''".into());
        let partition: Vec<String> = spec.partition.iter().map(|name| text(name)).collect();
        let above = spec.route.steps().iter().map(|it| it.oid.to_string());
        let above: Vec<String> = above.collect();
        let mut sql = spec.create(id);
        let route = spec
            .route_triggers(id)
            .into_iter()
            .map(|(_, trigger)| trigger);
        for trigger in spec.triggers(id).into_iter().chain(route) {
            sql.push_str(&trigger.create());
        }
        let members = members_of(spec, catalog);
        for oid in members.into_iter().flat_map(Members::oids) {
            let member = catalog.by_oid(oid);
            for trigger in member
                .iter()
                .flat_map(|it| spec.member_triggers(id, &it.sql_name))
            {
                sql.push_str(&trigger.create());
            }
        }
        sql.push_str(&format!(
            "INSERT INTO tidewater.change_log \
             (id, table_oid, table_name, partition_columns, above, definition) \
             VALUES ({id}, {}, {}, ARRAY[{}]::text[], ARRAY[{}]::oid[], {});\n",
            spec.table_oid,
            text(&spec.title),
            partition.join(", "),
            above.join(", "),
            text(&spec.definition())
        ));
        if let Some(members) = members {
            sql.push_str(&members::register(id, members));
        }
        // Whoever synced before this log existed knows nothing of the changes since.
        sql + &everything(id.into())
    }

    fn everything(id: i64) -> String {
        everything(id)
    }

    fn deployed(publications: &[Publication]) -> String {
        tracked::remember_all(publications)
    }

    async fn traces(
        connection: &mut PostgresConnection,
    ) -> Result<Vec<DeploymentStep>, CentreError> {
        let catalog = PostgresCatalog::read(connection.client()).await?;
        let triggers = catalog.tables.iter().filter_map(|table| {
            let drops = existing_triggers::drops(table);
            let title = &table.title;
            let description = format!("remove the triggers from {title}");
            (!drops.is_empty()).then(|| {
                DeploymentStep::sql(
                    description,
                    PostgresDialect.lock_title(StepLock::Everybody, title),
                    drops,
                )
            })
        });
        let mut steps: Vec<DeploymentStep> = triggers.collect();
        let found = found_tables(connection.client(), &own_tables::<PostgresCentre>()).await?;
        if !found.is_empty() {
            let description = "remove the schema tidewater with everything in it".to_owned();
            let drop = "DROP SCHEMA tidewater CASCADE".to_owned();
            steps.push(DeploymentStep::sql(description, String::new(), drop));
        }
        Ok(steps)
    }

    async fn rights(
        connection: &mut PostgresConnection,
        asked: RightsPurpose<'_, PostgresCentre>,
    ) -> Result<RoleRights, CentreError> {
        rights::of_deploying(connection, asked).await
    }

    async fn removal_rights(
        connection: &mut PostgresConnection,
    ) -> Result<Vec<MissingRight>, CentreError> {
        rights::of_undeploying(connection).await
    }

    async fn other_sessions(connection: &mut PostgresConnection) -> Result<u64, CentreError> {
        rights::other_sessions(connection).await
    }

    /// Remembers how tables are now, to notice in every upload if they no longer are.
    async fn complete(
        connection: &mut PostgresConnection,
        publications: &mut [Publication],
    ) -> Result<(), CentreError> {
        let tables = publications.iter().flat_map(|it| &it.tables);
        let oids: Vec<u32> = tables.map(|table| table.details.oid).collect();
        let rows = connection.client().query(FINGERPRINTS, &[&oids]).await;
        let rows = rows.map_err(statement_failed("reading the catalog"))?;
        for table in publications.iter_mut().flat_map(|it| &mut it.tables) {
            let row = rows
                .iter()
                .find(|row| row.get::<_, i64>(0) == i64::from(table.details.oid));
            table.details.fingerprint = row.map(|row| row.get(1)).unwrap_or_default();
        }
        grants::tell_missing(connection, publications).await
    }

    async fn version<'t>(
        connection: &mut PostgresConnection,
        tables: impl Iterator<Item = &'t ServedTable> + Send,
    ) -> Result<String, CentreError> {
        let oids: Vec<u32> = tables.map(|table| table.details.oid).collect();
        let version = VERSION.replace("{fingerprints}", FINGERPRINTS);
        let statement = connection.prepare(&version, &[]).await?;
        let row = connection.client().query_one(&statement, &[&oids]).await;
        Ok(row.map_err(statement_failed("reading the catalog"))?.get(0))
    }

    fn ask_pruned(position: &[u8]) -> Vec<SystemStatement> {
        let pruned = "SELECT v.n, pg_catalog.pg_snapshot_xmin(v.c1::pg_snapshot) < log_floor
            FROM {rows TEXT}, tidewater.history";
        let snapshot = watermark::snapshot(position).into_iter();
        snapshot
            .map(|it| each(pruned, vec![system_row![it]]))
            .collect()
    }

    fn is_pruned(answers: &[StatementResult]) -> Result<bool, CentreError> {
        let row = answers.first().and_then(|answer| answer.rows.first());
        row.map_or(Ok(false), |row| row.get(0))
    }

    async fn log_sizes(
        connection: &mut PostgresConnection,
    ) -> Result<Vec<(String, u64)>, CentreError> {
        // Statistics know new entries at once, and the size of a log they never saw is
        // better than counting millions of them.
        let sizes = system_sql!(
            "SELECT l.table_name, greatest(coalesce(s.n_live_tup, 0), c.reltuples::int8, 0)
             FROM tidewater.change_log l
             JOIN pg_catalog.pg_class c ON c.oid = to_regclass('tidewater.log_' || l.id)
             LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid ORDER BY l.id"
        );
        let answer = connection.run_one("reading the status", sizes).await?;
        let rows = answer.rows.iter();
        rows.map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    async fn load(
        connection: &mut PostgresConnection,
    ) -> Result<(Option<i64>, Option<u64>), CentreError> {
        waits::load(connection).await
    }

    async fn blockers(
        connection: &mut PostgresConnection,
    ) -> Result<Vec<BlockingTransaction>, CentreError> {
        waits::blockers(connection).await
    }

    async fn begin_pruning(connection: &mut PostgresConnection) -> Result<bool, CentreError> {
        connection.begin(TransactionMode::WRITING).await?;
        let lock = system_sql!(
            "SELECT pg_catalog.pg_try_advisory_xact_lock(?1)",
            ADVISORY_LOCK
        );
        let locked = connection.run_one("pruning", lock).await?;
        if locked
            .rows
            .first()
            .is_some_and(|row| row.get(0).unwrap_or(false))
        {
            return Ok(true);
        }
        connection.rollback().await?;
        Ok(false)
    }

    async fn end_pruning(
        connection: &mut PostgresConnection,
        result: Result<(), CentreError>,
    ) -> Result<(), CentreError> {
        result?;
        connection.commit().await
    }

    async fn prune_logs(
        connection: &mut PostgresConnection,
        before_ms: i64,
        now_ms: i64,
        _: [u8; 16],
        entries: &mut u64,
    ) -> Result<(), CentreError> {
        let what = "pruning change logs";
        let marks = system_sql!(
            "DELETE FROM tidewater.mark WHERE created_ms < ?1",
            before_ms
        );
        // Now all transactions below the oldest running one have ended. What they wrote is
        // in every snapshot that is taken from now on; it goes when the last watermark from
        // before now is older than the retention time.
        let horizon = system_sql!(
            "INSERT INTO tidewater.horizon (at_ms, oldest_running, next_to_begin)
             VALUES (?1, pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()),
               pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()))",
            now_ms
        );
        let last_horizon = system_sql!(
            "SELECT oldest_running::text, next_to_begin::text FROM tidewater.horizon
             ORDER BY next_to_begin DESC LIMIT 1"
        );
        let floor = system_sql!(
            "UPDATE tidewater.history SET log_floor = h.oldest_running
             FROM (SELECT oldest_running FROM tidewater.horizon WHERE at_ms <= ?1
                   ORDER BY oldest_running DESC LIMIT 1) h
             WHERE log_floor < h.oldest_running
             RETURNING log_floor::text",
            before_ms
        );
        let logs = system_sql!("SELECT id FROM tidewater.change_log ORDER BY id");
        let noted = system_sql!(
            "DELETE FROM tidewater.scope_change WHERE at < pg_catalog.now() - interval '1 hour'"
        );
        let answers = connection
            .flight(what, &[marks, last_horizon, horizon, floor, logs, noted])
            .await?;
        if let Some(horizon) = answers[1].rows.first() {
            let horizon: (String, String) = (horizon.get(0)?, horizon.get(1)?);
            for log in &answers[4].rows {
                let log = log.get::<i64>(0)? as i32;
                *entries += compact(connection, log, &horizon).await?;
            }
        }
        let Some(floor) = answers[3].rows.first() else {
            return Ok(());
        };
        let floor: String = floor.get(0)?;
        let client = connection.client();
        for log in &answers[4].rows {
            let log = LogSpec::log_table(log.get(0)?);
            let delete = format!("DELETE FROM {log} WHERE version < $1::text::xid8");
            let count = client.execute(&delete, &[&floor]).await;
            *entries += count.map_err(statement_failed(what))?;
        }
        for delete in [
            "DELETE FROM tidewater.everything WHERE version < $1::text::xid8",
            "DELETE FROM tidewater.horizon WHERE oldest_running < $1::text::xid8",
        ] {
            let deleted = client.execute(delete, &[&floor]).await;
            deleted.map_err(statement_failed(what))?;
        }
        Ok(())
    }
}

/// Drops entries of a log that say no more than later ones of the same key and partition; counts
/// them. What is dropped had ended before the horizon, what stays for it began after that: so no
/// watermark sees the one that stays and not the other. A download that is being read sees both.
async fn compact(
    connection: &mut PostgresConnection,
    log: i32,
    (oldest_running, next_to_begin): &(String, String),
) -> Result<u64, CentreError> {
    let what = "compacting change logs";
    let client = connection.client();
    let columns = "SELECT pg_catalog.quote_ident(attname) FROM pg_catalog.pg_attribute
        WHERE attrelid = pg_catalog.to_regclass($1) AND attnum > 0 AND NOT attisdropped
          AND attname <> 'version' ORDER BY attnum";
    let table = LogSpec::log_table(log.into());
    let columns = client.query(columns, &[&table]).await;
    let columns = columns.map_err(statement_failed(what))?;
    let columns: Vec<&str> = columns.iter().map(|row| row.get(0)).collect();
    if columns.is_empty() {
        return Ok(0);
    }
    // By what they look like: remotes tell spellings apart that are equal to their types.
    let texts = |alias: &str| {
        let texts = columns.iter();
        texts
            .map(move |column| format!("{alias}.{column}::text COLLATE \"C\""))
            .collect::<Vec<_>>()
    };
    let selected = texts("l").into_iter().enumerate();
    let selected = selected.map(|(at, text)| format!("{text} AS t{at}"));
    let selected = selected.collect::<Vec<_>>().join(", ");
    let same = texts("d").into_iter().enumerate();
    let same = same.map(|(at, text)| format!("{text} = n.t{at}"));
    let same = same.collect::<Vec<_>>().join(" AND ");
    let delete = format!(
        "DELETE FROM {table} d USING (SELECT DISTINCT {selected} FROM {table} l
           WHERE l.version >= $2::text::xid8) n
         WHERE d.version < $1::text::xid8 AND {same}"
    );
    let deleted = client
        .execute(&delete, &[oldest_running, next_to_begin])
        .await;
    deleted.map_err(statement_failed(what))
}

/// A change log, as the registry says.
struct RegisteredLog {
    id: i32,
    table_oid: u32,
    table_name: String,
    partition: Vec<String>,
    definition: String,
    /// Of a partitioned table: the partitions that are tracked.
    members: Option<String>,
    /// How many functions it has; 0 if its table is not there.
    functions: i64,
}

impl RegisteredLog {
    fn from_row(row: &Row) -> RegisteredLog {
        RegisteredLog {
            id: row.get(0),
            table_oid: row.get(1),
            table_name: row.get(2),
            partition: row.get(3),
            definition: row.get(4),
            functions: row.get(5),
            members: row.get(6),
        }
    }

    async fn all(client: &impl GenericClient) -> Result<Vec<RegisteredLog>, CentreError> {
        let sql = "SELECT id, table_oid, table_name, partition_columns, definition,
               CASE WHEN to_regclass('tidewater.log_' || id) IS NULL THEN 0 ELSE
                 (SELECT count(*) FROM pg_catalog.pg_proc p
                  WHERE p.pronamespace = 'tidewater'::regnamespace
                    AND p.proname::text ~ ('^log_' || id || '_')) END,
               members
             FROM tidewater.change_log ORDER BY id";
        let rows = client.query(sql, &[]).await;
        let rows = rows.map_err(statement_failed("reading the deployed state"))?;
        Ok(rows.iter().map(RegisteredLog::from_row).collect())
    }

    /// What has to be done about a log that is all there itself.
    fn mend(
        &self,
        spec: &LogSpec,
        lost: &[IncompleteLog],
        catalog: &PostgresCatalog,
        mends: &mut Vec<DeploymentStep>,
    ) {
        let id = self.id;
        let missing = existing_triggers::missing(spec, id, self.members.as_deref(), catalog);
        // Restored triggers have all rows sent again as well.
        let lost = lost.iter().find(|lost| lost.id == id);
        if let Some(lost) = lost.filter(|it| missing.is_empty() && !it.goes_whole()) {
            let description = format!(
                "send the rows of {} to all remotes again: {}",
                spec.title,
                lost.what_happened()
            );
            let send = DeploymentStep::sql(description, String::new(), everything(id.into()));
            mends.push(send.unneeded());
        }
        for missing in missing {
            let description = format!(
                "restore triggers on {} ({}), and send its rows to all remotes again",
                missing.table,
                missing.names.join(", ")
            );
            let lock = PostgresDialect.lock_title(StepLock::Everybody, &missing.table);
            let sql = missing.sql + &everything(id.into());
            mends.push(DeploymentStep::sql(description, lock, sql));
        }
        let registered = self.members.as_deref();
        if let Some(change) = registered.and_then(|it| members::plan_members(spec, id, it, catalog))
        {
            let lock = PostgresDialect.lock_title(StepLock::Writers, "the partitions");
            mends.push(DeploymentStep::sql(change.description, lock, change.sql).unneeded());
        }
    }
}

/// What there is of change logs, and what else has to be done in the database.
async fn find_in_place(
    client: &impl GenericClient,
    catalog: &PostgresCatalog,
    wanted: &[LogSpec],
) -> Result<ExistingChangeLogs, CentreError> {
    let registered = RegisteredLog::all(client).await?;
    let lost = tracked::lost(client).await?;
    let at_home = format!("SELECT place = {PLACE} FROM tidewater.history");
    let at_home = client.query_one(&at_home, &[]).await;
    let at_home: bool = at_home
        .map_err(statement_failed("reading the deployed state"))?
        .get(0);
    let mut mends = Vec::new();
    if !at_home {
        mends.push(DeploymentStep::sql(
            "forget what remotes have: the database was restored to another place, and they \
             compare what they hold"
                .into(),
            String::new(),
            format!("UPDATE tidewater.history SET place = {PLACE}; DELETE FROM tidewater.mark"),
        ));
    }
    let mut logs = Vec::new();
    for log in &registered {
        let identity = LogSpec::identity_of(log.table_oid, &log.partition);
        let spec = wanted.iter().find(|it| it.identity() == identity);
        let whole = spec.filter(|spec| {
            log.functions == spec.function_count() && log.definition == spec.definition()
        });
        if let Some(spec) = whole {
            log.mend(spec, &lost, catalog, &mut mends);
        }
        logs.push(FoundLog {
            id: log.id.into(),
            table: log.table_name.clone(),
            identity,
            is_whole: whole.is_some(),
            removal: LogSpec::drop(log.id),
        });
    }
    mends.extend(strays(&registered, catalog, wanted));
    let last = registered.iter().map(|log| log.id).max();
    Ok(ExistingChangeLogs {
        logs,
        next: i64::from(last.unwrap_or(0)) + 1,
        mends,
    })
}

/// Removes triggers from tables that are tracked no more.
fn strays(
    registered: &[RegisteredLog],
    catalog: &PostgresCatalog,
    wanted: &[LogSpec],
) -> Vec<DeploymentStep> {
    let mut tracked: HashSet<u32> = registered.iter().map(|log| log.table_oid).collect();
    for spec in wanted {
        tracked.extend(spec.route.steps().iter().map(|it| it.oid));
        tracked.extend(
            members_of(spec, catalog)
                .into_iter()
                .flat_map(Members::oids),
        );
    }
    let strays = existing_triggers::strays(&tracked, catalog).map(|(table, drops)| {
        let title = &table.title;
        let is_new = |log: &RegisteredLog| log.table_name == *title && log.table_oid != table.oid;
        let description = match registered.iter().any(is_new) {
            true => format!(
                "remove the old triggers from {title}: the table was made anew (restored from a \
                 dump), and gets a new change log"
            ),
            false => format!("remove triggers from {title}, which is no partition any more"),
        };
        DeploymentStep::sql(
            description,
            PostgresDialect.lock_title(StepLock::Everybody, title),
            drops,
        )
        .unneeded()
    });
    strays.collect()
}

fn members_of<'c>(spec: &LogSpec, catalog: &'c PostgresCatalog) -> Option<&'c Members> {
    catalog.by_oid(spec.table_oid)?.members.as_ref()
}

/// A remote's text may be any, and what is refused of it has to be kept.
async fn check_encoding(client: &impl GenericClient) -> Result<(), CentreError> {
    let sql = "SELECT pg_catalog.current_setting('server_encoding')";
    let row = client.query_one(sql, &[]).await;
    match row
        .map_err(statement_failed("reading the database's encoding"))?
        .get(0)
    {
        "UTF8" => Ok(()),
        encoding => Err(CentreError::Configuration {
            message: format!("the database's encoding is {encoding}, and Tidewater needs UTF8"),
            hint: "dump it, and restore it into a database made with ENCODING 'UTF8'".into(),
        }),
    }
}

/// Those of the server's tables that are there.
///
/// # Errors
/// There is a schema of our name that is somebody else's: it is left alone.
async fn found_tables(
    client: &impl GenericClient,
    wanted: &[&'static str],
) -> Result<Vec<&'static str>, CentreError> {
    rights::check_schema(client).await?;
    let sql = "SELECT to_regnamespace('tidewater') IS NOT NULL, \
               ARRAY (SELECT own FROM unnest($1::text[]) AS own \
               WHERE to_regclass('tidewater.' || own) IS NOT NULL)";
    let row = client.query_one(sql, &[&wanted]).await;
    let row = row.map_err(statement_failed("looking for the server's tables"))?;
    let names: Vec<&str> = row.get(1);
    if row.get(0) && names.is_empty() {
        return Err(CentreError::Configuration {
            message: "the database has a schema tidewater that Tidewater did not make".into(),
            hint: "rename that schema, or drop it if it is empty: Tidewater needs the name".into(),
        });
    }
    let found = wanted.iter().filter(|table| names.contains(table));
    Ok(found.copied().collect())
}
