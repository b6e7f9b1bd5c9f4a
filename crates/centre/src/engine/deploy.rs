//! Deploying: what has to be done so that the database fits the publications.
//!
//! The plan is made from what is recorded in the server's own tables, what is in place of the
//! change logs, and the publications as they are configured. A dry run tells it, deploying carries
//! it out, and a server serves what nothing has to be done for. Where DDL is transactional, deploying
//! is one transaction; elsewhere it is a journal of steps ([`super::deployment_journal`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tidewater_protocol::Table;

use super::catalog::{CatalogReader, listed};
use super::compile::{follows, tables_differ};
use super::connection::{DatabaseConnection, TransactionMode};
use super::deployment_journal::{DeploymentJournal, run};
use super::publication::Publication;
use super::recorded::{DeploymentRecord, Random, past_schemas};
use super::sql::system::meta;
use super::state::{FoundState, check, create_tables, find_state, unfinished};
use crate::deploy_report::DeployReport;
use crate::engine::change_log::ChangeLog;
use crate::engine::change_tracking::{ChangeTracking, RightsPurpose, RoleRights};
use crate::engine::deployment_step::{DeploymentStep, ExistingChangeLogs};
use crate::engine::evolution::{DeploymentMode, PastSchemas};
use crate::engine::publication_compiler::compile_all;
use crate::engine::scope_query::ScopeQuery;
use crate::engine::served_publications::ServedPublications;
use crate::engine::sql::served_table::ServedTable;
use crate::engine::sql::sql_dialect::StepLock;
use crate::error::CentreError;
use crate::publication::{
    self, PublicationSpec, ScriptSpec, TableSpec, circle_warnings, self_service_warnings,
};
use crate::records::KeylessRows;

type Result<T> = std::result::Result<T, CentreError>;

/// What has to be done for some publications.
struct DeploymentPlan<T: ChangeTracking> {
    steps: Vec<DeploymentStep>,
    publications: Vec<Publication<T::Tables>>,
    recorded: DeploymentRecord,
    past: PastSchemas,
    catalog: T::Catalog,
    /// The change logs that are made.
    made: Vec<T::Log>,
    /// The tables of those that are removed or made anew, for people.
    removed: Vec<String>,
    /// Nothing was deployed before.
    is_first: bool,
    /// The last deployment ended before it had done everything.
    is_unfinished: bool,
}

/// See [`crate::Centre::deploy`].
pub(super) async fn deploy<T: ChangeTracking>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
    mode: DeploymentMode,
    now_ms: i64,
    random: &Random,
) -> Result<DeployReport> {
    let prepared = T::prepare(connection, mode == DeploymentMode::DryRun).await?;
    let deployed = deploy_alone::<T>(connection, specs, mode, now_ms, random).await;
    let ended = T::end_alone(connection).await;
    let mut report = deployed?;
    ended?;
    report.steps.splice(0..0, prepared);
    Ok(report)
}

async fn deploy_alone<T: ChangeTracking>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
    mode: DeploymentMode,
    now_ms: i64,
    random: &Random,
) -> Result<DeployReport> {
    T::begin_alone(connection).await?;
    let mut plan = DeploymentPlan::<T>::make(connection, specs, now_ms, random).await?;
    plan.check_keys(connection).await?;
    let unwatched = plan.watch_scopes(connection).await?;
    plan.finish_the_last();
    let schemas: Vec<_> = plan.publications.iter().map(|it| &*it.schema).collect();
    let review = plan.recorded.review(connection, &schemas).await?;
    review.allow(mode)?;
    let mut rights = RoleRights::default();
    if mode == DeploymentMode::DryRun {
        rights = T::rights(connection, plan.rights_asked()).await?;
        connection.rollback().await?;
    } else {
        plan.carry_out(connection).await?;
    }
    let mut warnings = plan.warnings(specs);
    warnings.extend(rights.warnings);
    warnings.extend(unwatched);
    Ok(DeployReport {
        steps: plan.steps.into_iter().map(|step| step.told).collect(),
        warnings,
        missing_rights: rights.missing,
        effects: review.effects,
        held_up: review.held_up,
        is_first: plan.is_first,
    })
}

/// See [`crate::Centre::undeploy`].
pub(super) async fn undeploy<T: ChangeTracking>(
    connection: &mut T::Connection,
    dry_run: bool,
) -> Result<DeployReport> {
    let undeployed = undeploy_alone::<T>(connection, dry_run).await;
    let ended = T::end_alone(connection).await;
    let report = undeployed?;
    ended?;
    Ok(report)
}

async fn undeploy_alone<T: ChangeTracking>(
    connection: &mut T::Connection,
    dry_run: bool,
) -> Result<DeployReport> {
    T::begin_alone(connection).await?;
    let mut steps = T::traces(connection).await?;
    let journal = DeploymentJournal::read::<T>(connection).await?;
    if journal.is_there() {
        let description = "drop the journal of deployments".to_owned();
        steps.push(DeploymentStep::record(description, Vec::new()));
    }
    let mut missing_rights = Vec::new();
    if dry_run {
        missing_rights = T::removal_rights(connection).await?;
        connection.rollback().await?;
    } else if connection.has_transactional_ddl() || steps.is_empty() {
        run_at_once(connection, &steps).await?;
        connection.commit().await?;
    } else {
        connection.rollback().await?;
        journal.carry_out::<T>(connection, &steps).await?;
        DeploymentJournal::drop::<T>(connection).await?;
    }
    Ok(DeployReport {
        steps: steps.into_iter().map(|step| step.told).collect(),
        missing_rights,
        ..DeployReport::default()
    })
}

/// Runs steps in the transaction that is open.
async fn run_at_once(
    connection: &mut impl DatabaseConnection,
    steps: &[DeploymentStep],
) -> Result<()> {
    for step in steps {
        let done = run(connection, &step.told.description, &step.sql).await;
        done.map_err(|error| step.locked(error, "nothing was changed"))?;
        connection.flight("deploying", &step.statements).await?;
    }
    Ok(())
}

/// Compiles publications for serving, as they are configured.
///
/// # Errors
/// [`CentreError::NotDeployed`] if something has to be done before.
pub async fn load<T: ChangeTracking>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
) -> Result<ServedPublications<T::Tables>> {
    connection.begin(TransactionMode::Trying).await?;
    let plan = DeploymentPlan::<T>::make(connection, specs, 0, &[0; 48]).await?;
    plan.load(connection).await
}

/// Compiles what is deployed for serving, whatever is configured: the tables as they are now,
/// with the columns that remotes know.
///
/// # Errors
/// [`CentreError::NotDeployed`] if nothing is, or if the database does not fit any more.
pub async fn load_deployed<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<ServedPublications<T::Tables>> {
    connection.begin(TransactionMode::Trying).await?;
    let plan = DeploymentPlan::<T>::deployed(connection).await?;
    plan.load(connection).await
}

/// What is deployed: as it was configured, with the columns that remotes know, and compiled; and the
/// tables of the database. It is read in the transaction that is open.
///
/// # Errors
/// [`CentreError::NotDeployed`] if nothing is, or if the database does not fit any more.
pub(super) async fn deployed<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<(
    Vec<PublicationSpec>,
    Vec<Publication<T::Tables>>,
    T::Catalog,
)> {
    let plan = DeploymentPlan::<T>::deployed(connection).await?;
    plan.fits()?;
    let specs = plan.recorded.specs(plan.catalog.tables())?;
    Ok((specs, plan.publications, plan.catalog))
}

/// Loads what is deployed if it is not what is served, or if the tables are not as they were.
pub async fn reload<T: ChangeTracking>(
    connection: &mut T::Connection,
    served: &ServedPublications<T::Tables>,
) -> Result<Option<ServedPublications<T::Tables>>> {
    let is_served = !served.publications.is_empty();
    if is_served
        && number(connection).await? == served.number
        && T::version(connection, served.tables()).await? == served.version
    {
        return Ok(None);
    }
    load_deployed::<T>(connection).await.map(Some)
}

/// See [`crate::publication::DeployedPublications::number`].
async fn number(connection: &mut impl DatabaseConnection) -> Result<i64> {
    let answer = connection
        .run_one("looking for a deployment", meta::read_deployment())
        .await?;
    answer.rows.first().map_or(Ok(0), |row| row.get(0))
}

impl<T: ChangeTracking> DeploymentPlan<T> {
    /// What would have to be done so that what is deployed can be served.
    async fn deployed(connection: &mut T::Connection) -> Result<DeploymentPlan<T>> {
        if !check::<T>(connection).await? {
            return Err(CentreError::NotDeployed {
                message: "nothing is deployed".into(),
            });
        }
        let catalog = T::catalog(connection).await?;
        let recorded = DeploymentRecord::read(connection).await?;
        let specs = recorded.specs(catalog.tables())?;
        let mut publications = compile_all::<T>(connection, &specs, &catalog).await?;
        for publication in &mut publications {
            let name = publication.schema.name.clone();
            let known = recorded.schema(&name);
            let known = known.filter(|known| !tables_differ(known, &publication.schema));
            let (true, Some(known)) = (recorded.number(publication), known) else {
                return Err(CentreError::NotDeployed {
                    message: format!("remotes know other columns or keys of {name:?}"),
                });
            };
            publication.announced = Arc::new(known);
        }
        let wanted = wanted::<T>(&publications);
        let in_place = T::in_place(connection, &catalog, &wanted).await?;
        let mut plan = DeploymentPlan {
            steps: Vec::new(),
            publications,
            recorded,
            past: PastSchemas::new(),
            catalog,
            made: Vec::new(),
            removed: Vec::new(),
            is_first: false,
            is_unfinished: false,
        };
        plan.logs(in_place, &wanted);
        Ok(plan)
    }

    /// Carries the plan out: in the transaction that is open, or by the journal.
    async fn carry_out(&self, connection: &mut T::Connection) -> Result<()> {
        let last = T::deployed(&self.publications);
        if !connection.has_transactional_ddl() && !self.steps.is_empty() {
            connection.rollback().await?;
            let journal = DeploymentJournal::read::<T>(connection).await?;
            journal.carry_out::<T>(connection, &self.steps).await?;
            return DeploymentJournal::close::<T>(connection, &last).await;
        }
        run_at_once(connection, &self.steps).await?;
        if !self.steps.is_empty() {
            let count = meta::count_deployment();
            connection.run_one("deploying", count).await?;
        }
        run(connection, "deploying", &last).await?;
        connection.commit().await
    }

    /// Nothing may be left to do of a deployment that is unfinished all the same.
    fn finish_the_last(&mut self) {
        if self.is_unfinished {
            let description =
                "finish the last deployment, which ended before it had done everything";
            let finish = DeploymentStep::record(description.to_owned(), Vec::new());
            self.steps.push(finish);
        }
    }

    /// For what a role needs rights.
    fn rights_asked(&self) -> RightsPurpose<'_, T> {
        RightsPurpose {
            publications: &self.publications,
            made: self.made.iter().collect(),
            removed: self.removed.clone(),
            is_first: self.is_first,
        }
    }

    /// Whether it can be served without anything being done before.
    fn fits(&self) -> Result<()> {
        if self.is_unfinished {
            return Err(unfinished());
        }
        let needed = self.steps.iter().filter(|step| step.is_needed);
        let needed: Vec<&str> = needed.map(|step| &*step.told.description).collect();
        match needed.is_empty() {
            true => Ok(()),
            false => Err(CentreError::NotDeployed {
                message: format!("deploying would {}", needed.join("; ")),
            }),
        }
    }

    /// Completes what is served, if nothing has to be done before.
    async fn load(
        mut self,
        connection: &mut T::Connection,
    ) -> Result<ServedPublications<T::Tables>> {
        self.fits()?;
        T::complete(connection, &mut self.publications).await?;
        let past = past_schemas(connection).await?;
        for publication in &mut self.publications {
            let past = past.iter();
            let past = past.filter(|(_, past)| past.name == publication.schema.name);
            let past = past.map(|(hash, past)| (hash.clone(), past.clone()));
            publication.past = Arc::new(past.collect());
        }
        let mut loaded = ServedPublications {
            publications: self.publications.into_iter().map(Arc::new).collect(),
            number: number(connection).await?,
            version: String::new(),
        };
        loaded.version = T::version(connection, loaded.tables()).await?;
        connection.commit().await?;
        Ok(loaded)
    }

    /// Refuses tables with rows that no remote could have.
    async fn check_keys(&self, connection: &mut T::Connection) -> Result<()> {
        let schemas = self.publications.iter().map(|it| &it.schema);
        let tables = schemas.flat_map(|it| it.tables.iter().map(|it| it.name.clone()));
        let tables: BTreeSet<String> = tables.collect();
        let tables: Vec<String> = tables.into_iter().collect();
        let keyless = T::keyless_rows(connection, &tables).await?;
        let Some(KeylessRows { table, rows }) = keyless.first() else {
            return Ok(());
        };
        Err(CentreError::Configuration {
            message: format!(
                "table {table:?} cannot be published: {} whose primary key is NULL, and no device \
                 could have them",
                match rows {
                    1 => "it has a row".to_owned(),
                    rows => format!("it has {rows} rows"),
                }
            ),
            hint: "give them a key or delete them, and declare the columns of the key NOT NULL"
                .into(),
        })
    }

    /// Has writes noted to the tables that tell who holds what; gives what cannot be noted.
    async fn watch_scopes(&mut self, connection: &mut T::Connection) -> Result<Vec<String>> {
        let publications = self.publications.iter();
        let queries = publications.flat_map(|it| {
            let held = it.rules.iter().filter_map(|rule| rule.query.as_ref());
            held.chain(it.permits.iter().map(|permit| &permit.query))
        });
        let queries: Vec<&ScopeQuery> = queries.collect();
        let sources = T::scope_sources(connection, &self.catalog, &queries).await?;
        self.steps.extend(sources.steps);
        Ok(sources.warnings)
    }

    async fn make(
        connection: &mut T::Connection,
        specs: &[PublicationSpec],
        now_ms: i64,
        random: &Random,
    ) -> Result<DeploymentPlan<T>> {
        let state = find_state::<T>(connection).await?;
        let is_first = matches!(state, FoundState::Nothing | FoundState::Remains);
        let catalog = T::catalog(connection).await?;
        let publications = compile_all::<T>(connection, specs, &catalog).await?;
        let wanted = wanted::<T>(&publications);
        let mut plan = DeploymentPlan {
            steps: Vec::new(),
            publications,
            recorded: DeploymentRecord::default(),
            past: PastSchemas::new(),
            catalog,
            made: Vec::new(),
            removed: Vec::new(),
            is_first,
            is_unfinished: state
                == FoundState::Whole {
                    is_unfinished: true,
                },
        };
        let mut in_place = ExistingChangeLogs {
            next: 1,
            ..ExistingChangeLogs::default()
        };
        if is_first {
            if state == FoundState::Remains {
                plan.steps.extend(T::traces(connection).await?);
            }
            let description = "create the server's own tables".to_owned();
            let create = DeploymentStep::sql(description, String::new(), create_tables::<T>());
            plan.steps.push(create.of_state());
        } else {
            plan.recorded = DeploymentRecord::read(connection).await?;
            plan.past = past_schemas(connection).await?;
            in_place = T::in_place(connection, &plan.catalog, &wanted).await?;
        }
        let key = plan.recorded.first_key(random, now_ms);
        plan.steps.extend(key);
        plan.logs(in_place, &wanted);
        let record = plan.recorded.record(specs, &mut plan.publications)?;
        plan.steps.extend(record);
        Ok(plan)
    }

    /// Makes the change logs that are missing, removes those that nobody needs, and has remotes
    /// fetch the tables that are published otherwise than before.
    fn logs(&mut self, in_place: ExistingChangeLogs, wanted: &[T::Log]) {
        let mut next = in_place.next;
        let mut kept = HashMap::new();
        let mut missing: Vec<&T::Log> = wanted.iter().collect();
        for found in in_place.logs {
            let place = missing
                .iter()
                .position(|it| it.identity() == found.identity);
            let log = place.map(|place| missing.remove(place));
            let lock = T::dialect().lock_title(StepLock::Everybody, &found.table);
            let (table, mut sql) = (&found.table, found.removal);
            if log.is_none() || !found.is_whole {
                self.removed.push(found.table.clone());
            }
            match log {
                Some(_) if found.is_whole => {
                    kept.insert(found.identity, found.id);
                }
                Some(log) => {
                    sql.extend(T::make_log(log, next, &self.catalog));
                    self.made.push(log.clone());
                    next += 1;
                    let description = format!(
                        "make the change log and the triggers of {table} anew, and send its rows to \
                         all remotes again: they were missing or are others"
                    );
                    self.steps.push(DeploymentStep::sql(description, lock, sql));
                }
                None => {
                    let description = format!("remove a change log of {table}");
                    self.steps
                        .push(DeploymentStep::sql(description, lock, sql).unneeded());
                }
            }
        }
        for log in missing {
            let table = log.title();
            let by = match log.by() {
                [] => "everyone".to_owned(),
                columns => columns.join(", "),
            };
            self.steps.push(DeploymentStep::sql(
                format!("create the change log and the triggers of {table} ({by})"),
                T::dialect().lock_title(StepLock::Writers, table),
                T::make_log(log, next, &self.catalog),
            ));
            self.made.push(log.clone());
            next += 1;
        }
        self.steps.extend(in_place.mends);
        self.changed_tables(&kept);
        for table in self.publications.iter_mut().flat_map(|it| &mut it.tables) {
            let logs: Vec<String> = table.logs().map(ChangeLog::identity).collect();
            for (rule, log) in logs.iter().enumerate() {
                table.rules[rule].log_id = kept.get(log).copied().unwrap_or_default();
            }
        }
    }

    /// Remotes need all rows of tables that they cannot follow. A log that is made in this
    /// deployment is known to none of them. Of a column that comes back, some may still have what
    /// it was.
    fn changed_tables(&mut self, kept: &HashMap<String, i64>) {
        let mut sent = Vec::new();
        for publication in &self.publications {
            let Some(before) = self.recorded.schema(&publication.schema.name) else {
                continue;
            };
            for (table, served) in publication.schema.tables.iter().zip(&publication.tables) {
                let before = before.table(&table.name);
                let is_back = |before: &Table| {
                    let new = table.columns.iter().map(|column| &column.name);
                    let mut new = new.filter(|name| before.column(name).is_none());
                    new.any(|name| self.was_published(&publication.schema.name, table, name))
                };
                let is_changed =
                    before.is_some_and(|before| !follows(before, table) || is_back(before));
                let logs = served.logs().filter(|_| is_changed);
                for log in logs {
                    let Some(id) = kept.get(&log.identity()).copied() else {
                        continue;
                    };
                    if !sent.contains(&id) {
                        sent.push(id);
                        let description =
                            format!("send all rows of {} to remotes again", log.title());
                        self.steps.push(DeploymentStep::sql(
                            description,
                            String::new(),
                            T::everything(id),
                        ));
                    }
                }
            }
        }
    }

    /// Whether a column was published before the last deployment.
    fn was_published(&self, publication: &str, table: &Table, column: &str) -> bool {
        let past = self.past.values().filter(|past| past.name == publication);
        let mut past = past.filter_map(|past| past.table(&table.name));
        past.any(|past| past.column(column).is_some())
    }

    /// What works, but not as its operator may think.
    fn warnings(&self, specs: &[PublicationSpec]) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        let mut warn = |warning: String| {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        };
        for (spec, table) in specs
            .iter()
            .flat_map(|it| it.tables.iter().map(move |of| (it, of)))
        {
            let scripted = DownloadScript::for_table(spec, table);
            match (table.handled.download, scripted) {
                (true, _) => warn(format!(
                    "{}: its handler says what comes down: tidewater verify does not compare it, its \
                     changes wake no live device, and a download that breaks begins anew",
                    table.name
                )),
                (false, Some(script)) => {
                    warn(format!(
                        "{}: {} says what comes down: tidewater verify does not compare it, its \
                         changes wake no live device, and a download that breaks begins anew",
                        table.name, script.file
                    ));
                    // Of devices of other versions.
                    if table.tracking == publication::TrackingMode::Off && !script.is_of_all {
                        warn(untracked(&table.name));
                    }
                }
                (false, None)
                    if table.tracking == publication::TrackingMode::Off
                        && table.direction.downloads() =>
                {
                    warn(untracked(&table.name));
                }
                (false, None) => {}
            }
            if table.handled.download && table.handled.keeps_uploads && spec.act_as.is_some() {
                warn(format!(
                    "{}: act_as has no effect on it: its handler keeps the rows, and the role of the \
                     database is not asked",
                    table.name
                ));
            }
            if let Some(file) = unasked_resolver(spec, table) {
                warn(format!(
                    "{}: conflict.resolve has no effect on updates: {file} writes them, and scripts \
                     decide of those that are conflicts (resolve_conflict.sql)",
                    table.name
                ));
            }
        }
        let published = self.publications.iter().flat_map(|it| &it.warnings);
        published.cloned().for_each(&mut warn);
        warnings.extend(self_service_warnings(specs));
        warnings.extend(circle_warnings(specs, &listed(self.catalog.tables())));
        if !self.steps.is_empty() {
            warnings.extend(T::UNSEEN.map(str::to_owned));
        }
        warnings
    }
}

fn untracked(table: &str) -> String {
    format!("{table}: tracking is off, every download sends its partitions whole")
}

/// A script that says which rows of a table come down.
struct DownloadScript<'s> {
    file: &'s str,
    /// Every version of the publication's scripts has one.
    is_of_all: bool,
}

impl<'s> DownloadScript<'s> {
    fn for_table(spec: &'s PublicationSpec, table: &TableSpec) -> Option<DownloadScript<'s>> {
        let is_it = |it: &&ScriptSpec| it.event == "download_cursor" && is_of(it, table);
        let versions: BTreeSet<&str> = spec.scripts.iter().map(|it| &*it.version).collect();
        let found = spec.scripts.iter().filter(is_it);
        let file = &found.clone().next()?.file;
        let mut versions = versions.iter();
        let is_of_all = versions.all(|version| found.clone().any(|it| it.version == *version));
        Some(DownloadScript { file, is_of_all })
    }
}

/// Whether a script is one of a table. Remotes have tables without their schema.
fn is_of(script: &ScriptSpec, table: &TableSpec) -> bool {
    script.table.as_deref() == table.name.rsplit('.').next()
}

/// The script that writes updates of a table whose resolver is another, which nobody asks then.
fn unasked_resolver<'s>(spec: &'s PublicationSpec, table: &TableSpec) -> Option<&'s str> {
    let mut resolve = table.conflict.resolve.iter();
    if !resolve.any(|it| it.trim() != "script") {
        return None;
    }
    let mut scripts = spec.scripts.iter();
    let found = scripts.find(|it| it.event == "upload_update" && is_of(it, table));
    found.map(|it| &*it.file)
}

/// The distinct change logs that publications need.
fn wanted<T: ChangeTracking>(publications: &[Publication<T::Tables>]) -> Vec<T::Log> {
    let mut wanted: Vec<T::Log> = Vec::new();
    let tables = publications.iter().flat_map(|it| &it.tables);
    for log in tables.flat_map(ServedTable::logs) {
        let mut same = wanted.iter_mut();
        match same.find(|it| it.identity() == log.identity()) {
            Some(same) => same.join(log),
            None => wanted.push(log.clone()),
        }
    }
    wanted
}
