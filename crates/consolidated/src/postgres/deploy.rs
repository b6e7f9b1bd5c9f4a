//! What of deploying is PostgreSQL's own: what change logs are made of, and whether that is there.
//!
//! Deploying goes on under an advisory lock and a short `lock_timeout`: a busy table makes it fail
//! instead of making the application wait behind it.

use std::collections::HashSet;

use tokio_postgres::{GenericClient, Row};

use super::Postgres;
use super::catalog::Catalog;
use super::connection::{Connection, refused};
use super::in_place;
use super::members::{self, Members};
use super::quote::literal;
use super::state::{ADVISORY_LOCK, PLACE};
use super::tracked::{self, Lost};
use super::triggers::{LogSpec, marker};
use crate::engine::connection::Connection as _;
use crate::engine::database::ChangeLog;
use crate::engine::deploy::{FoundLog, InPlace, Lock, Step};
use crate::engine::state::own_tables;
use crate::error::CentreError;

/// How long deploying waits for a table that is in use.
pub(super) const LOCK_TIMEOUT_MS: u32 = 5_000;

/// A change log, as the registry says.
struct Registered {
    id: i32,
    table_oid: u32,
    table_name: String,
    partition: Vec<String>,
    definition: String,
    /// Of a partitioned table: the partitions that are tracked.
    members: Option<String>,
    /// Whether its table and functions are there.
    exists: bool,
}

impl Registered {
    fn of(row: &Row) -> Registered {
        Registered {
            id: row.get(0),
            table_oid: row.get(1),
            table_name: row.get(2),
            partition: row.get(3),
            definition: row.get(4),
            exists: row.get(5),
            members: row.get(6),
        }
    }

    async fn all(client: &impl GenericClient) -> Result<Vec<Registered>, CentreError> {
        let sql = "SELECT id, table_oid, table_name, partition_columns, definition,
               to_regclass('tidewater.log_' || id) IS NOT NULL
               AND (SELECT count(*) FROM pg_catalog.pg_proc p
                    WHERE p.pronamespace = 'tidewater'::regnamespace
                      AND p.proname::text IN ('log_' || id || '_new', 'log_' || id || '_old',
                        'log_' || id || '_moved', 'log_' || id || '_truncated')) = 4,
               members
             FROM tidewater.change_log ORDER BY id";
        let rows = client.query(sql, &[]).await;
        let rows = rows.map_err(refused("reading the deployed state"))?;
        Ok(rows.iter().map(Registered::of).collect())
    }

    /// What has to be done about a log that is all there itself.
    fn mend(&self, spec: &LogSpec, lost: &[Lost], catalog: &Catalog, mends: &mut Vec<Step>) {
        let id = self.id;
        let missing = in_place::missing(spec, id, self.members.as_deref(), catalog);
        // Restored triggers have all rows sent again as well.
        let lost = lost.iter().find(|lost| lost.id == id);
        if let Some(lost) = lost.filter(|_| missing.is_empty()) {
            let description = format!(
                "send the rows of {} to all remotes again: {}",
                spec.title,
                lost.what_happened()
            );
            let send = Step::sql(description, String::new(), everything(id.into()));
            mends.push(send.unneeded());
        }
        for missing in missing {
            let description = format!(
                "restore triggers on {} ({}), and send its rows to all remotes again",
                missing.table,
                missing.names.join(", ")
            );
            let lock = lock(Lock::Everybody, &missing.table);
            let sql = missing.sql + &everything(id.into());
            mends.push(Step::sql(description, lock, sql));
        }
        let registered = self.members.as_deref();
        if let Some(change) = registered.and_then(|it| members::settle(spec, id, it, catalog)) {
            let lock = lock(Lock::Writers, "the partitions");
            mends.push(Step::sql(change.description, lock, change.sql).unneeded());
        }
    }
}

/// What there is of change logs, and what else has to be done in the database.
pub(super) async fn in_place(
    client: &impl GenericClient,
    catalog: &Catalog,
    wanted: &[LogSpec],
) -> Result<InPlace, CentreError> {
    let registered = Registered::all(client).await?;
    let lost = tracked::lost(client).await?;
    let at_home = format!("SELECT place = {PLACE} FROM tidewater.history");
    let at_home = client.query_one(&at_home, &[]).await;
    let at_home: bool = at_home
        .map_err(refused("reading the deployed state"))?
        .get(0);
    let mut mends = Vec::new();
    if !at_home {
        mends.push(Step::sql(
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
        let whole = spec.filter(|spec| log.exists && log.definition == spec.definition());
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
    Ok(InPlace {
        logs,
        next: i64::from(last.unwrap_or(0)) + 1,
        mends,
    })
}

/// Removes triggers from tables that are tracked no more.
fn strays(registered: &[Registered], catalog: &Catalog, wanted: &[LogSpec]) -> Vec<Step> {
    let mut tracked: HashSet<u32> = registered.iter().map(|log| log.table_oid).collect();
    for spec in wanted {
        tracked.extend(
            members_of(spec, catalog)
                .into_iter()
                .flat_map(Members::oids),
        );
    }
    let strays = in_place::strays(&tracked, catalog).map(|(table, drops)| {
        let title = &table.title;
        let is_new = |log: &Registered| log.table_name == *title && log.table_oid != table.oid;
        let description = match registered.iter().any(is_new) {
            true => format!(
                "remove the old triggers from {title}: the table was made anew (restored from a \
                 dump), and gets a new change log"
            ),
            false => format!("remove triggers from {title}, which is no partition any more"),
        };
        Step::sql(description, lock(Lock::Everybody, title), drops).unneeded()
    });
    strays.collect()
}

fn members_of<'c>(spec: &LogSpec, catalog: &'c Catalog) -> Option<&'c Members> {
    catalog.by_oid(spec.table_oid)?.members.as_ref()
}

/// The SQL that makes a change log.
pub(super) fn make_log(spec: &LogSpec, id: i32, catalog: &Catalog) -> String {
    let text = |text: &str| literal(text).unwrap_or_else(|| "''".into());
    let partition: Vec<String> = spec.partition.iter().map(|name| text(name)).collect();
    let mut sql = spec.create(id);
    for trigger in spec.triggers(id) {
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
        "INSERT INTO tidewater.change_log (id, table_oid, table_name, partition_columns, definition) \
         VALUES ({id}, {}, {}, ARRAY[{}]::text[], {});\n",
        spec.table_oid,
        text(&spec.title),
        partition.join(", "),
        text(&spec.definition())
    ));
    if let Some(members) = members {
        sql.push_str(&members::register(id, members));
    }
    // Whoever synced before this log existed knows nothing of the changes since.
    sql + &everything(id.into())
}

/// The SQL that has remotes fetch all rows of a log's table.
pub(super) fn everything(log_id: i64) -> String {
    marker(log_id as i32) + "\n"
}

/// The lock that a step on a table takes.
pub(super) fn lock(lock: Lock, table: &str) -> String {
    match lock {
        Lock::Writers => format!("SHARE ROW EXCLUSIVE on {table}"),
        Lock::Everybody => format!("ACCESS EXCLUSIVE on {table}"),
    }
}

/// What removes every trace.
pub(super) async fn traces(connection: &Connection) -> Result<Vec<Step>, CentreError> {
    let catalog = Catalog::read(connection.client()).await?;
    let triggers = catalog.tables.iter().filter_map(|table| {
        let drops = in_place::drops(table);
        let title = &table.title;
        let description = format!("remove the triggers from {title}");
        (!drops.is_empty()).then(|| Step::sql(description, lock(Lock::Everybody, title), drops))
    });
    let mut steps: Vec<Step> = triggers.collect();
    let found = found_tables(connection.client(), &own_tables::<Postgres>()).await?;
    if !found.is_empty() {
        let description = "remove the schema tidewater with everything in it".to_owned();
        let drop = "DROP SCHEMA tidewater CASCADE".to_owned();
        steps.push(Step::sql(description, String::new(), drop));
    }
    Ok(steps)
}

/// A remote's text may be any, and what is refused of it has to be kept.
pub(super) async fn check_encoding(client: &impl GenericClient) -> Result<(), CentreError> {
    let sql = "SELECT pg_catalog.current_setting('server_encoding')";
    let row = client.query_one(sql, &[]).await;
    match row
        .map_err(refused("reading the database's encoding"))?
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
pub(super) async fn found_tables(
    client: &impl GenericClient,
    wanted: &[&'static str],
) -> Result<Vec<&'static str>, CentreError> {
    let sql = "SELECT to_regnamespace('tidewater') IS NOT NULL, \
               ARRAY (SELECT own FROM unnest($1::text[]) AS own WHERE to_regclass(own) IS NOT NULL)";
    let row = client.query_one(sql, &[&wanted]).await;
    let row = row.map_err(refused("looking for the server's tables"))?;
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

/// Begins a transaction that alone may change what is deployed.
pub(super) async fn begin_alone(
    connection: &mut Connection,
    lock_timeout_ms: u32,
) -> Result<(), CentreError> {
    connection.begin().await?;
    let settings = format!(
        "SET LOCAL lock_timeout = {lock_timeout_ms}; \
         SELECT pg_catalog.pg_advisory_xact_lock({ADVISORY_LOCK});"
    );
    let alone = connection.client().batch_execute(&settings).await;
    alone.map_err(|failure| match failure.code().map(|code| code.code()) {
        Some("55P03") => CentreError::Locked {
            message: "somebody else deploys or prunes; nothing was changed".into(),
        },
        _ => refused("deploying")(failure),
    })
}
