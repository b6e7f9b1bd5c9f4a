//! Deploying: what has to be made so that the database fits the publications.
//!
//! Everything happens in one transaction under an advisory lock and a short
//! `lock_timeout`: it is done as a whole or not at all, and a busy table makes
//! deploying fail instead of making the application wait behind it.

mod scope_queries;

use std::collections::HashSet;

use tokio_postgres::GenericClient;

use tidewater_protocol::PublicationSchema;

use super::catalog::{Catalog, TableInfo};
use super::connection::{Connection, centre_error, refused};
use super::members::{self, Members};
use super::model::{Compiled, CompiledTable, compile, logs};
use super::quote::literal;
use super::state::{self, ADVISORY_LOCK, PLACE};
use super::tracked::{self, Lost};
use super::triggers::{LogSpec, marker};
use super::{fill_random, in_place};
use crate::engine;
use crate::engine::compile::columns_differ;
use crate::engine::connection::{Connection as _, Own};
use crate::engine::deploy::Recorded;
use crate::engine::state::{META, judge};
use crate::error::CentreError;
use crate::evolution::{Mode, Review};
use crate::publication::{DeployReport, DeployStep, PublicationSpec};

/// How long deploying waits for a table that is in use.
const LOCK_TIMEOUT_MS: u32 = 5_000;

const NO_ROWS_WAIT: &str = "SHARE ROW EXCLUSIVE on";
const NOBODY: &str = "ACCESS EXCLUSIVE on";

/// What is deployed, as the state tables say.
#[derive(Debug, Default)]
struct Deployed {
    /// Whether anything is.
    is_deployed: bool,
    logs: Vec<DeployedLog>,
    /// Whether the state was made here, and not brought along by a dump.
    at_home: bool,
    /// The change logs that have not seen everything.
    lost: Vec<Lost>,
}

#[derive(Debug)]
struct DeployedLog {
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

/// Something to do: the SQL that does it, and then the statements on the server's own tables.
#[derive(Debug)]
struct Step {
    told: DeployStep,
    sql: String,
    statements: Vec<Own>,
}

/// Things to do.
#[derive(Debug, Default)]
struct Plan {
    steps: Vec<Step>,
    warnings: Vec<String>,
    review: Review,
    /// Nothing was deployed before.
    is_first: bool,
}

impl Plan {
    fn step(&mut self, description: String, lock: String, sql: String) {
        self.steps.push(Step {
            told: DeployStep { description, lock },
            sql,
            statements: Vec::new(),
        });
    }

    fn record(&mut self, step: engine::deploy::Step) {
        self.steps.push(Step {
            told: DeployStep {
                description: step.description,
                lock: String::new(),
            },
            sql: String::new(),
            statements: step.statements,
        });
    }

    fn report(self) -> DeployReport {
        DeployReport {
            steps: self.steps.into_iter().map(|step| step.told).collect(),
            warnings: self.warnings,
            effects: self.review.effects,
            held_up: self.review.held_up,
            is_first: self.is_first,
        }
    }
}

impl DeployedLog {
    /// Whether it is as it would be made.
    fn fits(&self, spec: &LogSpec) -> bool {
        self.exists && self.definition == spec.definition()
    }

    /// Whether only its functions have to be made anew, and nothing was missed so far.
    fn is_renewed(&self, spec: &LogSpec, catalog: &Catalog) -> bool {
        let members = self.members.as_deref();
        self.exists
            && members.is_none()
            && spec.renews(&self.definition)
            && in_place::missing(spec, self.id, members, catalog).is_empty()
    }
}

impl Deployed {
    async fn read(client: &impl GenericClient) -> Result<Deployed, CentreError> {
        let error = |error| refused("reading the deployed state")(error);
        if !check_state(client).await? {
            return Ok(Deployed {
                at_home: true,
                ..Deployed::default()
            });
        }
        let logs = client
            .query(
                "SELECT id, table_oid, table_name, partition_columns, definition,
                   to_regclass('tidewater.log_' || id) IS NOT NULL
                   AND (SELECT count(*) FROM pg_catalog.pg_proc p
                        WHERE p.pronamespace = 'tidewater'::regnamespace
                          AND p.proname::text IN ('log_' || id || '_new', 'log_' || id || '_old',
                            'log_' || id || '_moved', 'log_' || id || '_truncated')) = 4,
                   members
                 FROM tidewater.change_log ORDER BY id",
                &[],
            )
            .await
            .map_err(error)?;
        let at_home = client
            .query_one(
                &format!("SELECT place = {PLACE} FROM tidewater.history"),
                &[],
            )
            .await
            .map_err(error)?;
        let log = |row: &tokio_postgres::Row| DeployedLog {
            id: row.get(0),
            table_oid: row.get(1),
            table_name: row.get(2),
            partition: row.get(3),
            definition: row.get(4),
            exists: row.get(5),
            members: row.get(6),
        };
        Ok(Deployed {
            is_deployed: true,
            logs: logs.iter().map(log).collect(),
            at_home: at_home.get(0),
            lost: tracked::lost(client).await?,
        })
    }

    fn log(&self, spec: &LogSpec) -> Option<&DeployedLog> {
        let mut logs = self.logs.iter();
        logs.find(|log| log.table_oid == spec.table_oid && log.partition == spec.partition)
    }
}

/// Makes the database fit the publications, or tells what would be done.
pub(super) async fn deploy(
    connection: &mut Connection,
    publications: &[PublicationSpec],
    mode: Mode,
    now_ms: i64,
) -> Result<DeployReport, CentreError> {
    begin_alone(connection, LOCK_TIMEOUT_MS).await?;
    check_encoding(connection.client()).await?;
    let catalog = Catalog::read(connection.client()).await?;
    let compiled = compile_all(publications, &catalog)?;
    scope_queries::check(connection.client(), &compiled).await?;
    let deployed = Deployed::read(connection.client()).await?;
    let recorded = match deployed.is_deployed {
        true => Recorded::read(connection).await?,
        false => Recorded::default(),
    };
    let mut plan = Plan {
        is_first: !deployed.is_deployed,
        ..Plan::default()
    };
    plan_state(&mut plan, &deployed);
    let mut random = [0; 48];
    fill_random(&mut random)?;
    let key = recorded.first_key(&random, now_ms);
    key.into_iter().for_each(|step| plan.record(step));
    plan_logs(&mut plan, &deployed, &compiled, &catalog);
    let schemas = compiled.iter().map(|it| &*it.schema);
    for step in recorded.record(publications, schemas.clone())? {
        plan.record(step);
    }
    plan_changed_tables(&mut plan, &deployed, &recorded, &compiled);
    let live = catalog.tables();
    plan.warnings = engine::deploy::warnings(publications, &live);
    if !plan.steps.is_empty() {
        plan.warnings.push(
            "changes made with session_replication_role = replica or by logical replication are \
             only seen by tables with tracking = \"row\""
                .into(),
        );
    }
    let schemas: Vec<&PublicationSchema> = schemas.collect();
    plan.review = recorded.review(connection, &schemas).await?;
    plan.review.allow(mode)?;
    if mode == Mode::DryRun {
        connection.rollback().await?;
    } else {
        run(&plan, connection).await?;
        let remember = tracked::remember_all(&compiled);
        let remembered = connection.client().batch_execute(&remember).await;
        remembered.map_err(refused("deploying"))?;
        connection.commit().await?;
    }
    Ok(plan.report())
}

/// A remote's text may be any, and what is refused of it has to be kept.
async fn check_encoding(client: &impl GenericClient) -> Result<(), CentreError> {
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

/// Removes the schema `tidewater` and all triggers, or tells what would be done.
pub(super) async fn undeploy(
    connection: &mut Connection,
    dry_run: bool,
) -> Result<DeployReport, CentreError> {
    begin_alone(connection, LOCK_TIMEOUT_MS).await?;
    let catalog = Catalog::read(connection.client()).await?;
    let mut plan = Plan::default();
    for table in &catalog.tables {
        let drops = in_place::drops(table);
        if !drops.is_empty() {
            let title = table.title();
            plan.step(
                format!("remove the triggers from {title}"),
                format!("{NOBODY} {title}"),
                drops,
            );
        }
    }
    if is_there(connection.client()).await? {
        plan.step(
            "remove the schema tidewater with everything in it".into(),
            String::new(),
            "DROP SCHEMA tidewater CASCADE".into(),
        );
    }
    if dry_run {
        connection.rollback().await?;
    } else {
        run(&plan, connection).await?;
        connection.commit().await?;
    }
    Ok(plan.report())
}

/// Compiles publications and finds their change logs.
pub(super) async fn load(
    connection: &mut Connection,
    publications: &[PublicationSpec],
) -> Result<Vec<Compiled>, CentreError> {
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    let begun = connection.client().batch_execute(begin).await;
    begun.map_err(refused("reading the deployed state"))?;
    let catalog = Catalog::read(connection.client()).await?;
    let mut compiled = compile_all(publications, &catalog)?;
    let deployed = Deployed::read(connection.client()).await?;
    if !deployed.is_deployed {
        return Err(not_deployed("nothing is deployed".into()));
    }
    if !deployed.at_home {
        return Err(not_deployed(
            "the database was restored to another place, and remotes do not know yet".into(),
        ));
    }
    let recorded = Recorded::read(connection).await?;
    connection.commit().await?;
    let wanted = logs(&compiled);
    for (publication, spec) in compiled.iter_mut().zip(publications) {
        let name = &spec.name;
        match recorded.fits(spec, &publication.schema) {
            Some(true) => {}
            Some(false) => {
                return Err(not_deployed(format!(
                    "the publication {name:?} or one of its tables has changed"
                )));
            }
            None => {
                return Err(not_deployed(format!(
                    "the publication {name:?} is not deployed"
                )));
            }
        }
        for table in &mut publication.tables {
            let Some(log) = &table.log else { continue };
            let found = deployed.log(log).filter(|found| {
                let spec = wanted.iter().find(|it| it.identity() == log.identity());
                spec.is_some_and(|spec| {
                    found.fits(spec)
                        && in_place::missing(spec, found.id, found.members.as_deref(), &catalog)
                            .is_empty()
                })
            });
            let found = found.ok_or_else(|| {
                not_deployed(format!(
                    "change log or triggers of {} are missing or changed",
                    table.title
                ))
            })?;
            table.log_id = found.id;
        }
    }
    Ok(compiled)
}

/// Whether our schema is there. One of the same name that is somebody else's is left alone.
async fn is_there(client: &impl GenericClient) -> Result<bool, CentreError> {
    let sql = "SELECT to_regnamespace('tidewater') IS NOT NULL, \
               EXISTS (SELECT FROM unnest($1::text[]) AS own WHERE to_regclass(own) IS NOT NULL)";
    let row = client.query_one(sql, &[&state::wanted()]).await;
    let row = row.map_err(refused("reading the deployed state"))?;
    match (row.get(0), row.get(1)) {
        (true, false) => Err(CentreError::Configuration {
            message: "the database has a schema tidewater that Tidewater did not make".into(),
            hint: "rename that schema, or drop it if it is empty: Tidewater needs the name".into(),
        }),
        (_, ours) => Ok(ours),
    }
}

/// Whether the server's tables are there.
///
/// # Errors
/// Some are missing, though others are there; or a newer program has been here.
pub(super) async fn check_state(client: &impl GenericClient) -> Result<bool, CentreError> {
    if !is_there(client).await? {
        return Ok(false);
    }
    let wanted = state::wanted();
    let sql = "SELECT own FROM unnest($1::text[]) AS own WHERE to_regclass(own) IS NOT NULL";
    let rows = client.query(sql, &[&wanted]).await;
    let rows = rows.map_err(refused("looking for the server's tables"))?;
    let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    let mut version = None;
    if found.contains(&META) {
        let sql = "SELECT format_version FROM tidewater.meta";
        let row = client.query_opt(sql, &[]).await;
        let row = row.map_err(refused("reading the deployed state"))?;
        version = row.map(|row| row.get(0));
    }
    judge::<Connection>(version, &wanted, &found)?;
    Ok(true)
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

async fn run(plan: &Plan, connection: &mut Connection) -> Result<(), CentreError> {
    for step in &plan.steps {
        let DeployStep { description, lock } = &step.told;
        if let Err(error) = connection.client().batch_execute(&step.sql).await {
            if error.code().is_some_and(|code| code.code() == "55P03") {
                return Err(CentreError::Locked {
                    message: format!(
                        "cannot {description}: the table is locked by another session ({lock} was \
                         not to be had within {} seconds); nothing was changed",
                        LOCK_TIMEOUT_MS / 1000
                    ),
                });
            }
            return Err(centre_error(description, &error));
        }
        connection.flight("deploying", &step.statements).await?;
    }
    Ok(())
}

fn compile_all(
    publications: &[PublicationSpec],
    catalog: &Catalog,
) -> Result<Vec<Compiled>, CentreError> {
    let described = catalog.described();
    let compiled = publications.iter();
    compiled
        .map(|spec| compile(spec, catalog, &described))
        .collect()
}

fn not_deployed(message: String) -> CentreError {
    CentreError::NotDeployed { message }
}

fn plan_state(plan: &mut Plan, deployed: &Deployed) {
    if !deployed.is_deployed {
        plan.step(
            "create the schema tidewater with the server's state".into(),
            String::new(),
            state::state(),
        );
    }
    if !deployed.at_home {
        plan.step(
            "forget what remotes have: the database was restored to another place, and they \
             compare what they hold"
                .into(),
            String::new(),
            format!("UPDATE tidewater.history SET place = {PLACE}; DELETE FROM tidewater.mark"),
        );
    }
}

fn plan_logs(plan: &mut Plan, deployed: &Deployed, compiled: &[Compiled], catalog: &Catalog) {
    let wanted = logs(compiled);
    let mut next_id = deployed.logs.iter().map(|log| log.id).max().unwrap_or(0) + 1;
    for log in &deployed.logs {
        let still = wanted
            .iter()
            .find(|spec| spec.table_oid == log.table_oid && spec.partition == log.partition);
        let keeps = still.is_some_and(|spec| log.fits(spec) || log.is_renewed(spec, catalog));
        if !keeps {
            plan.step(
                format!("remove change log {} of {}", log.id, log.table_name),
                format!("{NOBODY} {}", log.table_name),
                LogSpec::drop(log.id),
            );
        }
    }
    for spec in &wanted {
        let log = match deployed.log(spec) {
            Some(log) if log.fits(spec) => log,
            Some(log) if log.is_renewed(spec, catalog) => {
                plan_renewal(plan, spec, log.id);
                continue;
            }
            _ => {
                plan_log(plan, spec, next_id, catalog);
                next_id += 1;
                continue;
            }
        };
        let missing = in_place::missing(spec, log.id, log.members.as_deref(), catalog);
        // Restored triggers have all rows sent again as well.
        let lost = deployed.lost.iter().find(|lost| lost.id == log.id);
        if let Some(lost) = lost.filter(|_| missing.is_empty()) {
            plan.step(
                format!(
                    "send the rows of {} to all remotes again: {}",
                    spec.title,
                    lost.what_happened()
                ),
                String::new(),
                everything(log.id),
            );
        }
        for missing in missing {
            let mut sql = missing.sql;
            sql.push_str(&everything(log.id));
            plan.step(
                format!(
                    "restore triggers on {} ({}), and send its rows to all remotes again",
                    missing.table,
                    missing.names.join(", ")
                ),
                format!("{NOBODY} {}", missing.table),
                sql,
            );
        }
        let registered = log.members.as_deref();
        if let Some(change) = registered.and_then(|it| members::settle(spec, log.id, it, catalog)) {
            let lock = format!("{NO_ROWS_WAIT} the partitions");
            plan.step(change.description, lock, change.sql);
        }
    }
    let mut tracked: HashSet<u32> = deployed.logs.iter().map(|log| log.table_oid).collect();
    for spec in &wanted {
        let members = catalog.by_oid(spec.table_oid);
        let members = members.and_then(|table| table.members.as_ref());
        tracked.extend(members.into_iter().flat_map(Members::oids));
    }
    for (table, drops) in in_place::strays(&tracked, catalog) {
        let title = table.title();
        let is_new = |log: &DeployedLog| log.table_name == title && log.table_oid != table.oid;
        let description = match deployed.logs.iter().any(is_new) {
            true => format!(
                "remove the old triggers from {title}: the table was made anew (restored from a \
                 dump), and gets a new change log"
            ),
            false => format!("remove triggers from {title}, which is no partition any more"),
        };
        plan.step(description, format!("{NOBODY} {title}"), drops);
    }
}

/// Another version of Tidewater made the log, and its entries are still good.
fn plan_renewal(plan: &mut Plan, spec: &LogSpec, id: i32) {
    let definition = literal(&spec.definition()).unwrap_or_default();
    let mut sql = spec.renew(id);
    sql.push_str(&format!(
        "UPDATE tidewater.change_log SET definition = {definition} WHERE id = {id};\n"
    ));
    plan.step(
        format!(
            "renew the trigger functions of change log {id} of {}",
            spec.title
        ),
        format!("{NOBODY} {}", spec.title),
        sql,
    );
}

fn plan_log(plan: &mut Plan, spec: &LogSpec, id: i32, catalog: &Catalog) {
    let text = |text: &str| literal(text).unwrap_or_else(|| "''".into());
    let definition = spec.definition();
    let partition: Vec<String> = spec.partition.iter().map(|name| text(name)).collect();
    let mut sql = spec.create(id);
    for trigger in spec.triggers(id) {
        sql.push_str(&trigger.create());
    }
    let members = catalog.by_oid(spec.table_oid);
    let members = members.and_then(|table| table.members.as_ref());
    for oid in members.into_iter().flat_map(Members::oids) {
        let name = catalog.by_oid(oid).map(TableInfo::sql_name);
        for trigger in name.iter().flat_map(|name| spec.member_triggers(id, name)) {
            sql.push_str(&trigger.create());
        }
    }
    sql.push_str(&format!(
        "INSERT INTO tidewater.change_log (id, table_oid, table_name, partition_columns, definition) \
         VALUES ({id}, {}, {}, ARRAY[{}]::text[], {});\n",
        spec.table_oid,
        text(&spec.title),
        partition.join(", "),
        text(&definition)
    ));
    if let Some(members) = members {
        sql.push_str(&members::register(id, members));
    }
    // Whoever synced before this log existed knows nothing of the changes since.
    sql.push_str(&everything(id));
    let rule = match spec.partition.is_empty() {
        true => "everyone".to_owned(),
        false => spec.partition.join(", "),
    };
    plan.step(
        format!(
            "create change log {id} and triggers for {} ({rule})",
            spec.title
        ),
        format!("{NO_ROWS_WAIT} {}", spec.title),
        sql,
    );
}

pub(super) fn everything(log_id: i32) -> String {
    marker(log_id) + "\n"
}

/// Remotes need all rows of tables whose columns or direction are others than before.
fn plan_changed_tables(
    plan: &mut Plan,
    deployed: &Deployed,
    recorded: &Recorded,
    compiled: &[Compiled],
) {
    for publication in compiled {
        let before = recorded.schema(&publication.schema.name);
        let changed = changed_tables(before.as_ref(), publication);
        for log in logs(compiled) {
            let is_its = |table: &&CompiledTable| table.oid == log.table_oid;
            // A log that is made in this deployment has its marker already.
            let there = deployed.log(&log);
            if let (Some(table), Some(there)) = (changed.iter().copied().find(is_its), there) {
                plan.step(
                    format!("send all rows of {} to remotes again", table.title),
                    String::new(),
                    everything(there.id),
                );
            }
        }
    }
}

/// Tables whose published columns or direction are others than before.
fn changed_tables<'a>(
    old: Option<&PublicationSchema>,
    publication: &'a Compiled,
) -> Vec<&'a CompiledTable> {
    let Some(old) = old else { return Vec::new() };
    let tables = publication.schema.tables.iter().zip(&publication.tables);
    let changed = tables.filter(|(table, _)| {
        let before = old.table(&table.name);
        before.is_some_and(|before| columns_differ(before, table))
    });
    changed.map(|(_, compiled)| compiled).collect()
}
