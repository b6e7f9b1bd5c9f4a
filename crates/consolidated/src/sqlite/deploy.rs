//! Makes the file fit the publications, tells whether it does, and removes every
//! trace.
//!
//! One procedure serves all three: it runs in a transaction and notes each difference
//! that it removes. A dry run rolls back, and what is served must be what a dry run
//! finds nothing to do for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use tidewater_protocol::{PublicationSchema, Table};

use super::catalog::{self, Live};
use super::compile::{Deployed, Publication};
use super::database::{at_once, ended};
use super::own::spell;
use super::triggers::Log;
use super::{failure, quote, state};
use crate::engine;
use crate::engine::catalog::{TableInfo, listed};
use crate::engine::compile::columns_differ;
use crate::engine::connection::Connection as _;
use crate::engine::deploy::{Random, Recorded};
use crate::error::CentreError;
use crate::evolution::Mode;
use crate::publication::{DeployReport, DeployStep, PublicationSpec};

/// Publications as they are served, and the change logs that they read.
#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) publications: Vec<Publication>,
    pub(super) logs: BTreeMap<i64, Log>,
    specs: Vec<PublicationSpec>,
    /// SQLite's counter of schema changes when the rest was found to fit the file.
    schema_version: i64,
}

/// Deploys, or tells what that would do.
pub(super) fn deploy(
    connection: &mut Connection,
    specs: &[PublicationSpec],
    mode: Mode,
    now_ms: i64,
    random: &Random,
) -> Result<(DeployReport, Served), CentreError> {
    ended(connection, |connection| {
        try_deploy(connection, specs, mode, now_ms, random)
    })
}

fn try_deploy(
    connection: &mut Connection,
    specs: &[PublicationSpec],
    mode: Mode,
    now_ms: i64,
    random: &Random,
) -> Result<(DeployReport, Served), CentreError> {
    let mut report = DeployReport::default();
    let dry_run = mode == Mode::DryRun;
    use_write_ahead_log(connection, dry_run, &mut report)?;
    let begun = at_once(connection.begin());
    begun.map_err(locked)?;
    report.is_first = !state::check(connection)?;
    let live = catalog::tables(connection)?;
    let catalog = catalog::described(connection, &live);
    if report.is_first {
        let description = "create the server's state (tables tidewater_*)";
        report.steps.push(step(description.into()));
        state::create(connection)?;
    }
    let recorded = at_once(Recorded::read(connection))?;
    let mut deployment = Deployment {
        connection,
        live,
        catalog: &catalog,
        report,
    };
    let served = deployment.run(specs, &recorded)?;
    let mut report = deployment.report;
    let schemas = served.publications.iter().map(|it| &*it.schema);
    let mut steps = recorded.record(specs, schemas.clone())?;
    steps.extend(recorded.first_key(random, now_ms));
    for it in steps {
        report.steps.push(step(it.description));
        at_once(connection.flight("deploying", &it.statements))?;
    }
    let schemas: Vec<&PublicationSchema> = schemas.collect();
    let review = at_once(recorded.review(connection, &schemas))?;
    review.allow(mode)?;
    report.effects = review.effects;
    report.held_up = review.held_up;
    let listed = listed(&catalog);
    report
        .warnings
        .extend(engine::deploy::warnings(specs, &listed));
    // A dry run ends without: nothing of it stays.
    if !dry_run {
        at_once(connection.commit())?;
    }
    Ok((report, served))
}

/// Says of a database that is busy that nothing was done.
fn locked(error: CentreError) -> CentreError {
    if !error.is_retryable() {
        return error;
    }
    CentreError::Locked {
        message: "the database file is locked by another connection; nothing was changed".into(),
    }
}

/// The publications, if the file is deployed for exactly them.
pub(super) fn load(
    connection: &mut Connection,
    specs: &[PublicationSpec],
) -> Result<Served, CentreError> {
    let (report, served) = deploy(connection, specs, Mode::DryRun, 0, &[0; 48])?;
    if report.steps.is_empty() {
        return Ok(served);
    }
    let steps = report.steps.into_iter().map(|step| step.description);
    Err(CentreError::NotDeployed {
        message: format!("deploying would {}", steps.collect::<Vec<_>>().join("; ")),
    })
}

/// What is served, checked and compiled anew if the file's schema has changed since: a
/// new unique index needs a trigger of ours, a new trigger may fail half-way. A column that
/// was added and deployed by another process is left out until a new server begins: ours has
/// told remotes of the columns that there were.
///
/// # Errors
/// [`CentreError::NotDeployed`] when the file does not fit any more. Deploying has
/// remotes fetch what may have been missed.
pub(super) fn refresh(
    connection: &mut Connection,
    shared: &RwLock<Arc<Served>>,
) -> Result<Arc<Served>, CentreError> {
    let served = shared
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if served.publications.is_empty() || schema_version(connection)? == served.schema_version {
        return Ok(served);
    }
    let mut fresh = load(connection, &served.specs).map_err(changed_since)?;
    fresh.keep_columns(connection, &served)?;
    let served = Arc::new(fresh);
    *shared.write().unwrap_or_else(PoisonError::into_inner) = served.clone();
    Ok(served)
}

/// The file fitted when the server began.
fn changed_since(error: CentreError) -> CentreError {
    match error {
        CentreError::NotDeployed { message } | CentreError::Configuration { message, .. } => {
            CentreError::NotDeployed {
                message: format!(
                    "the file was changed or deployed otherwise since the server began: {message}"
                ),
            }
        }
        other => other,
    }
}

impl Served {
    /// Serves the columns that were served before.
    fn keep_columns(
        &mut self,
        connection: &Connection,
        before: &Served,
    ) -> Result<(), CentreError> {
        let old = before.publications.iter().map(|it| &it.schema);
        for ((now, old), spec) in self.publications.iter_mut().zip(old).zip(&self.specs) {
            if !tables_differ(old, &now.schema) {
                continue;
            }
            let live = catalog::tables(connection)?;
            let catalog = catalog::described(connection, &live);
            let spec = with_columns_of(spec, old);
            let kept = Publication::compile(connection, &live, &catalog, &spec);
            let mut kept = kept.map_err(changed_since)?;
            if tables_differ(old, &kept.schema) {
                return Err(changed_since(CentreError::NotDeployed {
                    message: format!("remotes know other columns or keys of {:?}", old.name),
                }));
            }
            for (table, compiled) in kept.schema.tables.iter().zip(&mut kept.tables) {
                let mut now = now.schema.tables.iter().zip(&now.tables);
                let deployed = now.find(|(it, _)| it.name == table.name);
                let deployed = deployed.ok_or_else(|| CentreError::Internal {
                    message: format!("the table {:?} was deployed and is not there", table.name),
                })?;
                compiled.deployed = deployed.1.deployed;
            }
            *now = kept;
        }
        Ok(())
    }
}

/// Whether remotes that know one schema would be told of other tables, columns or keys by the
/// other.
fn tables_differ(old: &PublicationSchema, new: &PublicationSchema) -> bool {
    old.tables.len() != new.tables.len()
        || old.tables.iter().any(|old| {
            new.table(&old.name)
                .is_none_or(|new| columns_differ(old, new) || old.partition != new.partition)
        })
}

/// A publication that names its columns: those that a schema has.
fn with_columns_of(spec: &PublicationSpec, schema: &PublicationSchema) -> PublicationSpec {
    let mut spec = spec.clone();
    for table in &mut spec.tables {
        let name = table.name.strip_prefix("main.").unwrap_or(&table.name);
        let mut known = schema.tables.iter();
        if let Some(known) = known.find(|it| it.name.eq_ignore_ascii_case(name)) {
            let columns = known.columns.iter().map(|column| column.name.clone());
            table.columns = Some(columns.collect());
        }
    }
    spec
}

fn schema_version(connection: &Connection) -> Result<i64, CentreError> {
    connection
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(failure("reading the schema's version"))
}

/// Removes every trace, or tells what that would be.
pub(super) fn undeploy(
    connection: &mut Connection,
    dry_run: bool,
) -> Result<DeployReport, CentreError> {
    let mut report = DeployReport::default();
    let undeploying = failure("undeploying");
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(undeploying)?;
    let tables = state::tables(&transaction)?;
    if tables.contains(&"tidewater.change_log") {
        for id in state::logs(&transaction)? {
            let table = drop_log(&transaction, id)?;
            report.steps.push(step(format!(
                "drop the change log and the triggers of {table:?}"
            )));
        }
    }
    for leftover in logs_left_over(&transaction).map_err(undeploying)? {
        let sql = format!("DROP {leftover}");
        transaction.execute_batch(&sql).map_err(undeploying)?;
        report.steps.push(step(format!("drop the {leftover}")));
    }
    if !tables.is_empty() {
        let drop = |name: &&str| format!("DROP TABLE {};", spell(name));
        let drops: String = tables.iter().map(drop).collect();
        transaction.execute_batch(&drops).map_err(undeploying)?;
        report.steps.push(step(
            "drop the server's state: users, remotes, history".into(),
        ));
    }
    let end = if dry_run {
        transaction.rollback()
    } else {
        transaction.commit()
    };
    end.map_err(undeploying)?;
    Ok(report)
}

/// Readers must not wait for writers: that takes the write-ahead log.
fn use_write_ahead_log(
    connection: &Connection,
    dry_run: bool,
    report: &mut DeployReport,
) -> Result<(), CentreError> {
    let switching = failure("switching to the write-ahead log");
    let mode = |sql: &str| {
        let mode: Result<String, _> = connection.query_row(sql, [], |row| row.get(0));
        mode.map_err(switching)
    };
    if mode("PRAGMA journal_mode")? == "wal" {
        return Ok(());
    }
    report.steps.push(DeployStep {
        description: "switch the file to write-ahead logging".into(),
        lock: "the whole file, for a moment".into(),
    });
    if dry_run || mode("PRAGMA journal_mode = WAL")? == "wal" {
        return Ok(());
    }
    Err(CentreError::Configuration {
        message: "the file cannot be switched to write-ahead logging".into(),
        hint: "put it on a local disk and close other programs that use it".into(),
    })
}

fn step(description: String) -> DeployStep {
    DeployStep {
        description,
        lock: "writers wait until it is done".into(),
    }
}

fn drop_log(connection: &Connection, id: i64) -> Result<String, CentreError> {
    let dropping = failure("dropping a change log");
    let table: String = connection
        .query_row(
            "DELETE FROM tidewater_change_log WHERE id = ?1 RETURNING table_name",
            [id],
            |row| row.get(0),
        )
        .map_err(dropping)?;
    for (name, _) in triggers_of(connection, id)? {
        let sql = format!("DROP TRIGGER {}", quote(&name));
        connection.execute_batch(&sql).map_err(dropping)?;
    }
    let sql = format!("DROP TABLE IF EXISTS {}", quote(&state::log_table(id)));
    connection.execute_batch(&sql).map_err(dropping)?;
    Ok(table)
}

/// Change logs and their triggers that are in no list, because somebody dropped the list:
/// `TRIGGER "name"` or `TABLE "name"`, in the order in which they can be dropped.
fn logs_left_over(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare(
            "SELECT upper(type), name FROM sqlite_schema WHERE type IN ('trigger', 'table')
             AND name GLOB ?1 || '[0-9]*' ORDER BY type DESC, name",
        )?
        .query_map([state::log_prefix()], |row| {
            let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
            Ok(format!("{kind} {}", quote(&name)))
        })?
        .collect()
}

/// The triggers that feed a log now: name and SQL.
fn triggers_of(connection: &Connection, id: i64) -> Result<BTreeMap<String, String>, CentreError> {
    let reading = failure("reading the triggers");
    let mut statement = connection
        .prepare_cached(
            "SELECT name, sql FROM sqlite_schema
             WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1",
        )
        .map_err(reading)?;
    let prefix = format!("{}_", state::log_table(id));
    let triggers = statement
        .query_map([prefix], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(reading)?;
    triggers.collect::<rusqlite::Result<_>>().map_err(reading)
}

/// One run of deploying, inside its transaction.
struct Deployment<'c> {
    connection: &'c Connection,
    live: Vec<Live>,
    catalog: &'c [TableInfo],
    report: DeployReport,
}

impl Deployment<'_> {
    fn step(&mut self, description: String) {
        self.report.steps.push(step(description));
    }

    fn run(
        &mut self,
        specs: &[PublicationSpec],
        recorded: &Recorded,
    ) -> Result<Served, CentreError> {
        let mut publications = Vec::with_capacity(specs.len());
        for spec in specs {
            publications.push(Publication::compile(
                self.connection,
                &self.live,
                self.catalog,
                spec,
            )?);
        }
        for publication in &publications {
            self.warn(publication);
        }
        let (logs, interrupted) = self.logs(&publications)?;
        for publication in &mut publications {
            let before = recorded.schema(&publication.schema.name);
            self.publish(publication, before.as_ref(), &logs, &interrupted)?;
        }
        self.unpublish(specs)?;
        Ok(Served {
            publications,
            logs,
            specs: specs.to_vec(),
            schema_version: schema_version(self.connection)?,
        })
    }

    /// Makes the change logs and triggers that are missing and removes those that are
    /// not needed. Gives the logs, and those whose triggers had been missing.
    fn logs(
        &mut self,
        publications: &[Publication],
    ) -> Result<(BTreeMap<i64, Log>, BTreeSet<i64>), CentreError> {
        let mut wanted: BTreeMap<(String, String), Log> = BTreeMap::new();
        for publication in publications {
            for (table, compiled) in publication.schema.tables.iter().zip(&publication.tables) {
                if compiled.is_logged {
                    let log = Log {
                        id: 0,
                        table: table.name.clone(),
                        partition: compiled.partition_names.clone(),
                        key: compiled.key_names.clone(),
                    };
                    wanted.insert((table.name.clone(), log_identity(&log)), log);
                }
            }
        }
        let mut logs = BTreeMap::new();
        let mut interrupted = BTreeSet::new();
        for (id, table, identity) in self.existing_logs()? {
            let listed = (table.clone(), identity);
            if !self.log_exists(id)? {
                // It is made anew below if it is wanted.
                drop_log(self.connection, id)?;
                self.step(format!("the change log of {table:?} is missing: forget it"));
                continue;
            }
            match wanted.remove(&listed) {
                Some(log) => {
                    let log = Log { id, ..log };
                    if self.triggers(&table, &log, false)? {
                        interrupted.insert(id);
                    }
                    logs.insert(id, log);
                }
                None => {
                    drop_log(self.connection, id)?;
                    self.step(format!(
                        "drop the change log of {table:?}, not needed any more"
                    ));
                }
            }
        }
        for ((table, identity), log) in wanted {
            let creating = failure("creating a change log");
            let sql = "INSERT INTO tidewater_change_log (table_name, identity) VALUES (?1, ?2)
                       RETURNING id";
            let id = self
                .connection
                .query_row(sql, [&table, &identity], |row| row.get(0));
            let log = Log {
                id: id.map_err(creating)?,
                ..log
            };
            self.connection
                .execute_batch(&log.create())
                .map_err(creating)?;
            self.step(match log.partition.as_slice() {
                [] => format!("create the change log of {table:?}"),
                columns => format!(
                    "create the change log of {table:?} by {}",
                    columns.join(", ")
                ),
            });
            self.triggers(&table, &log, true)?;
            logs.insert(log.id, log);
        }
        Ok((logs, interrupted))
    }

    fn log_exists(&self, id: i64) -> Result<bool, CentreError> {
        state::is_there(self.connection, &state::log_table(id))
            .map_err(failure("looking for a change log"))
    }

    fn existing_logs(&self) -> Result<Vec<(i64, String, String)>, CentreError> {
        let reading = failure("reading the list of change logs");
        let mut statement = self
            .connection
            .prepare("SELECT id, table_name, identity FROM tidewater_change_log ORDER BY id")
            .map_err(reading)?;
        let logs = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .map_err(reading)?;
        logs.collect::<rusqlite::Result<_>>().map_err(reading)
    }

    /// Makes the triggers of a log what they should be. True if they were not.
    fn triggers(&mut self, table: &str, log: &Log, new: bool) -> Result<bool, CentreError> {
        let live = self.live.iter().find(|live| live.name == table);
        let live = live.ok_or_else(|| CentreError::Internal {
            message: format!("the published table {table:?} is not among the live ones"),
        })?;
        let wanted = log.triggers(live);
        let mut found = triggers_of(self.connection, log.id)?;
        let creating = failure("creating triggers");
        let mut created = false;
        for trigger in wanted {
            if found
                .remove(&trigger.name)
                .is_some_and(|sql| sql == trigger.sql)
            {
                continue;
            }
            created = true;
            let name = quote(&trigger.name);
            let sql = format!("DROP TRIGGER IF EXISTS {name}; {}", trigger.sql);
            self.connection.execute_batch(&sql).map_err(creating)?;
        }
        for name in found.keys() {
            created = true;
            let sql = format!("DROP TRIGGER {}", quote(name));
            self.connection.execute_batch(&sql).map_err(creating)?;
        }
        if created {
            let again = if new { "" } else { " anew" };
            self.step(format!("create the triggers of {table:?}{again}"));
        }
        Ok(created)
    }

    /// Records the tables of a publication, and fills in what is deployed.
    fn publish(
        &mut self,
        publication: &mut Publication,
        before: Option<&PublicationSchema>,
        logs: &BTreeMap<i64, Log>,
        interrupted: &BTreeSet<i64>,
    ) -> Result<(), CentreError> {
        let name = publication.schema.name.clone();
        for index in 0..publication.tables.len() {
            let table = &publication.schema.tables[index];
            let old = before.and_then(|schema| schema.table(&table.name));
            let changed = old.is_some_and(|old| columns_differ(old, table));
            let log = publication.tables[index]
                .is_logged
                .then(|| log_of(table, &publication.tables[index].partition_names, logs))
                .transpose()?;
            let again = changed || log.is_some_and(|log| interrupted.contains(&log));
            let identity = publication.identity(index);
            let deployed = self.published_table(&name, &table.name, &identity, log, again)?;
            publication.tables[index].deployed = deployed;
        }
        self.unpublish_tables(publication)
    }

    /// Records one published table; `again`: remotes must fetch it whole.
    fn published_table(
        &mut self,
        publication: &str,
        table: &str,
        identity: &str,
        log: Option<i64>,
        again: bool,
    ) -> Result<Deployed, CentreError> {
        let recording = failure("recording a published table");
        let stored: Option<(Deployed, String)> = self
            .connection
            .query_row(
                "SELECT id, generation, log_id, identity FROM tidewater_published_table
                 WHERE publication = ?1 AND name = ?2",
                [publication, table],
                |row| {
                    let deployed = Deployed {
                        id: row.get(0)?,
                        generation: row.get(1)?,
                        log: row.get(2)?,
                    };
                    Ok((deployed, row.get(3)?))
                },
            )
            .optional()
            .map_err(recording)?;
        if let Some((deployed, old_identity)) = stored {
            if old_identity == identity {
                if deployed.log == log && !again {
                    return Ok(deployed);
                }
                self.step(format!(
                    "have remotes fetch {table:?} of {publication:?} anew"
                ));
                let deployed = Deployed {
                    generation: deployed.generation + 1,
                    log,
                    ..deployed
                };
                self.connection
                    .execute(
                        "UPDATE tidewater_published_table SET generation = ?2, log_id = ?3
                         WHERE id = ?1",
                        params![deployed.id, deployed.generation, log],
                    )
                    .map_err(recording)?;
                return Ok(deployed);
            }
            self.connection
                .execute(
                    "DELETE FROM tidewater_published_table WHERE id = ?1",
                    [deployed.id],
                )
                .map_err(recording)?;
        }
        self.step(format!("publish {table:?} in {publication:?}"));
        let id = self.connection.query_row(
            "INSERT INTO tidewater_published_table (publication, name, identity, log_id)
             VALUES (?1, ?2, ?3, ?4) RETURNING id",
            params![publication, table, identity, log],
            |row| row.get(0),
        );
        Ok(Deployed {
            id: id.map_err(recording)?,
            generation: 1,
            log,
        })
    }

    /// Forgets tables that a publication has no more.
    fn unpublish_tables(&mut self, publication: &Publication) -> Result<(), CentreError> {
        let removing = failure("removing a published table");
        let name = &publication.schema.name;
        let mut statement = self
            .connection
            .prepare("SELECT id, name FROM tidewater_published_table WHERE publication = ?1")
            .map_err(removing)?;
        let tables = statement
            .query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(removing)?;
        let tables: Vec<(i64, String)> =
            tables.collect::<rusqlite::Result<_>>().map_err(removing)?;
        for (id, table) in tables {
            if publication.schema.table(&table).is_none() {
                self.step(format!("remove {table:?} from {name:?}"));
                self.connection
                    .execute("DELETE FROM tidewater_published_table WHERE id = ?1", [id])
                    .map_err(removing)?;
            }
        }
        Ok(())
    }

    /// Forgets the tables of publications that the configuration has no more.
    fn unpublish(&self, specs: &[PublicationSpec]) -> Result<(), CentreError> {
        let removing = failure("removing a publication");
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let names = serde_json::json!(names).to_string();
        let sql = "DELETE FROM tidewater_published_table
                   WHERE publication NOT IN (SELECT value FROM json_each(?1))";
        self.connection.execute(sql, [names]).map_err(removing)?;
        Ok(())
    }

    /// What works, but not as well as it could.
    fn warn(&mut self, publication: &Publication) {
        for (table, compiled) in publication.schema.tables.iter().zip(&publication.tables) {
            let Some(live) = self.live.iter().find(|live| live.name == table.name) else {
                continue;
            };
            let is_prefix = |index: &Vec<String>| index.starts_with(&compiled.partition_names);
            if !live.indexed.iter().any(is_prefix) && !compiled.partition_names.is_empty() {
                self.report.warnings.push(format!(
                    "{:?} has no index on {}: sending a partition whole reads the whole table",
                    table.name,
                    compiled.partition_names.join(", ")
                ));
            }
            let unwritten = live.columns.iter().filter(|column| {
                let published = table.column(&column.name).is_some();
                !published && !column.nullable && column.default.is_none() && !column.generated
            });
            for column in unwritten.filter(|_| table.direction.uploads()) {
                self.report.warnings.push(format!(
                    "{:?}: the column {:?} is not published, NOT NULL and without a default: \
                     inserts of remotes will be refused",
                    table.name, column.name
                ));
            }
        }
    }
}

/// The change log of a published table.
fn log_of(
    table: &Table,
    partition: &[String],
    logs: &BTreeMap<i64, Log>,
) -> Result<i64, CentreError> {
    let mut logs = logs.values();
    let log = logs.find(|log| log.table == table.name && log.partition == partition);
    log.map(|log| log.id).ok_or_else(|| CentreError::Internal {
        message: format!("no change log was made for {:?}", table.name),
    })
}

/// What makes two change logs of a table different.
fn log_identity(log: &Log) -> String {
    serde_json::json!({ "partition": log.partition, "key": log.key }).to_string()
}
