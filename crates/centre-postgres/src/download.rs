//! The snapshot from which a download is read.
//!
//! One flight opens it, looks at the watermarks, runs the partition queries and asks whether the
//! logs have anything new for what the remotes hold.

mod read;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join, join_all, join3};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use tidewater_protocol::{Datum, Value};

use self::read::Reader;
use super::acting::{AssumedRole, RoleQuery};
use super::array::Array;
use super::connection::PostgresConnection;
use super::publication::{Publication, ServedTable, TableRule};
use super::scope::{ScopeQueries, partition_arrays};
use super::triggers::LogSpec;
use super::watermark::snapshot;
use super::{PostgresShared, members};
use crate::caller::WHO;
use crate::driver_error::statement_failed;
use tidewater_centre::download::{DownloadJob, DownloadSubscription};
use tidewater_centre::engine::connection::{
    DatabaseConnection as _, StatementResult, SystemStatement,
};
use tidewater_centre::engine::download::{
    DownloadSnapshot, DurableMark, KeyOrder, OpenedSubscription, RuleHolding, RuleRows, TablePlace,
    TakeKey,
};
use tidewater_centre::engine::flight::TakeRow;
use tidewater_centre::engine::scope::{ScopeChange, ScopePurpose, SerialValidity, Serials};
use tidewater_centre::engine::scripts;
use tidewater_centre::engine::watermark::PresentedCheckpoint;
use tidewater_centre::error::{CentreError, CentreResult};
use tidewater_centre::scope::{self, HeldRule, Partitions, Scope};

pub(super) use self::read::held_rows;

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// How long nothing is done again about partitions that could not be tracked.
pub(super) const ADOPT_AGAIN_MS: u64 = 60_000;

/// Of subscriptions, `$1`: mark, `$2`: snapshot of the watermark; both NULL without one. `$3` and
/// `$4`: remote and publication. The columns: the subscription's number from 1; the snapshot; when
/// the mark was made, NULL if there is none or its snapshot is from before the logs begin; the logs
/// of which everything is sent; the serials of the subscription's scopes.
const STATE: &str = "
SELECT v.n, pg_catalog.pg_current_snapshot()::text,
  (SELECT created_ms FROM tidewater.mark WHERE id = v.mark
    AND pg_catalog.pg_snapshot_xmin(v.known::pg_snapshot) >= (SELECT log_floor FROM tidewater.history)),
  ARRAY (SELECT log_id FROM tidewater.everything
    WHERE version >= pg_catalog.pg_snapshot_xmin(v.known::pg_snapshot)
      AND NOT pg_catalog.pg_visible_in_snapshot(version, v.known::pg_snapshot)
    UNION ALL SELECT log_id FROM tidewater.untracked),
  (SELECT ARRAY[scope_serial, previous_serial, graced_serial, given_back_serial]
    FROM tidewater.subscription WHERE remote_id = v.remote AND publication = v.publication)
FROM unnest($1::bytea[], $2::text[], $3::bytea[], $4::text[])
  WITH ORDINALITY AS v(mark, known, remote, publication, n)";

/// What a remote presented and holds, as far as it can be understood.
struct PresentedState<'c> {
    presented: PresentedCheckpoint<'c>,
    snapshot: String,
}

/// See [`DownloadSnapshot`].
pub(super) struct DatabaseSnapshot<'p> {
    connection: &'p mut PostgresConnection,
    shared: &'p PostgresShared,
    publications: &'p [Arc<Publication>],
    opened: Vec<OpenedSubscription>,
    /// By subscription.
    logs: Vec<LogReading>,
    /// Who syncs, by job: user and remote.
    who: Vec<[String; 2]>,
    /// The job whose user the transaction knows.
    said: usize,
}

/// How the change logs are read for a subscription.
struct LogReading {
    /// The number of its job.
    job: usize,
    /// As text, the snapshot that the remote knows.
    since: Option<String>,
    /// See [`own_version`].
    own_version: String,
    /// Reads the application's tables.
    acting: AssumedRole,
}

impl<'p> DatabaseSnapshot<'p> {
    /// Opens the snapshot, and looks what each subscription has.
    pub(super) async fn open(
        connection: &'p mut PostgresConnection,
        shared: &'p PostgresShared,
        jobs: &[&DownloadJob],
        publications: &'p [Arc<Publication>],
    ) -> Result<DatabaseSnapshot<'p>, CentreError> {
        let found = open_adopting(connection, shared, jobs, publications).await?;
        let (opened, logs) = found.into_iter().unzip();
        let who = jobs.iter().map(|it| &it.context);
        let who = who.map(|it| [it.user.clone(), it.remote_id.to_string()]);
        Ok(DatabaseSnapshot {
            who: who.collect(),
            // It was opened in the name of one after the other.
            said: jobs.len() - 1,
            connection,
            shared,
            publications,
            opened,
            logs,
        })
    }

    fn table(&self, place: TablePlace) -> &'p ServedTable {
        &self.publications[place.subscription].tables[place.table]
    }

    /// Says for whom rows are read from now on: policies and functions of the application may look.
    async fn say_who(&mut self, place: TablePlace) -> Result<(), CentreError> {
        let job = self.logs[place.subscription].job;
        if self.said == job {
            return Ok(());
        }
        let who = self.connection.prepare(WHO, &[]).await?;
        let [user, remote] = &self.who[job];
        let parameters: [&(dyn ToSql + Sync); 2] = [user, remote];
        let said = self.connection.client().query_one(&who, &parameters).await;
        said.map_err(statement_failed("saying who syncs"))?;
        self.said = job;
        Ok(())
    }

    /// Reads a table as the remote sees it.
    fn reader(&self, place: TablePlace) -> Reader<'p> {
        Reader {
            acting: self.logs[place.subscription].acting.clone(),
            ..self.ourselves(place)
        }
    }

    /// Reads all of a table.
    fn ourselves(&self, place: TablePlace) -> Reader<'p> {
        Reader {
            table: self.table(place),
            acting: AssumedRole::default(),
        }
    }
}

impl DownloadSnapshot for DatabaseSnapshot<'_> {
    fn take_opened(&mut self) -> Vec<OpenedSubscription> {
        std::mem::take(&mut self.opened)
    }

    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, DurableMark> {
        Box::pin(async move {
            let id = self.shared.marks.ask(now_ms).await?;
            let mut serials = Vec::with_capacity(changes.len());
            if !changes.is_empty() {
                let mut connection = self.shared.pool.get().await?;
                for change in &changes {
                    let noted = connection.flight("noting a scope", &change.note()).await?;
                    serials.push(change.noted(&noted)?);
                }
            }
            Ok(DurableMark { id, serials })
        })
    }

    fn row_estimate(&self, place: TablePlace) -> u64 {
        self.table(place).details.row_estimate
    }

    fn may_weigh(&mut self, place: TablePlace, bytes: u64) -> CentreResult<'_, bool> {
        let reader = self.ourselves(place);
        Box::pin(async move { reader.may_weigh(self.connection, bytes).await })
    }

    fn rows<'s>(
        &'s mut self,
        place: TablePlace,
        part: &'s RuleRows<'s>,
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            self.say_who(place).await?;
            let publication = &self.publications[place.subscription];
            let rule = publication.rules_of(place.table).start + part.rule;
            let windows = publication.rules[rule].windows.iter();
            let types: Vec<_> = windows.map(|it| it.column_type).collect();
            let reader = match part.leaves {
                true => self.ourselves(place),
                false => self.reader(place),
            };
            reader.copy_rows(self.connection, part, &types, take).await
        })
    }

    fn is_same_for_all(&mut self, place: TablePlace) -> CentreResult<'_, bool> {
        Box::pin(async move {
            let oid = self.table(place).details.oid;
            let asked = self.connection.prepare(HAS_POLICIES, &[]).await?;
            let has_policies = self.connection.client().query_opt(&asked, &[&oid]).await;
            let has_policies =
                has_policies.map_err(statement_failed("looking for policies of a table"))?;
            Ok(has_policies.is_some_and(|it| !it.get::<_, bool>(0)))
        })
    }

    fn own(&mut self, statements: Vec<SystemStatement>) -> CentreResult<'_, Vec<StatementResult>> {
        Box::pin(async move {
            let what = "reading a scope that was handed out";
            self.connection.flight(what, &statements).await
        })
    }

    fn changes<'s>(
        &'s mut self,
        place: TablePlace,
        asked: &'s [Option<Vec<&'s [u8]>>],
        order: Option<&'s KeyOrder<'s>>,
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            self.say_who(place).await?;
            let logs = &self.logs[place.subscription];
            let Some(since) = &logs.since else {
                return Ok(());
            };
            let reader = self.reader(place);
            let own = &logs.own_version;
            let since = (&**since, &**own);
            reader
                .changes(self.connection, since, (asked, order), take)
                .await
        })
    }

    fn script<'s>(
        &'s mut self,
        place: TablePlace,
        statement: &'s scripts::ScriptStatement,
        values: &'s [Value],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            self.say_who(place).await?;
            let reader = self.reader(place);
            reader
                .script(self.connection, statement, values, take)
                .await
        })
    }

    fn by_keys<'s>(
        &'s mut self,
        place: TablePlace,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            self.say_who(place).await?;
            let reader = self.reader(place);
            reader.by_keys(self.connection, keys, take).await
        })
    }

    fn end(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            // Nobody waits for the end of a transaction that only read.
            let ended = self.connection.client().batch_execute("COMMIT");
            match ended.now_or_never() {
                Some(ended) => ended.map_err(statement_failed("ending a download")),
                None => Ok(()),
            }
        })
    }
}

/// The publications of some jobs, one for each subscription.
pub(super) fn publications(
    shared: &PostgresShared,
    jobs: &[&DownloadJob],
) -> Result<Vec<Arc<Publication>>, CentreError> {
    let names = jobs.iter().flat_map(|job| &job.subscriptions);
    names
        .map(|it| shared.publication(&it.publication))
        .collect()
}

/// Policies may look at the user for whom the server reads.
const HAS_POLICIES: &str = "SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = $1";

type Found = Vec<(OpenedSubscription, LogReading)>;

/// Opens the snapshot; first takes in the partitions that came or went, if it can be done
/// at once. If not, their tables go whole.
async fn open_adopting(
    connection: &mut PostgresConnection,
    shared: &PostgresShared,
    jobs: &[&DownloadJob],
    publications: &[Arc<Publication>],
) -> Result<Found, CentreError> {
    let (found, strange) = open(connection, shared, jobs, publications).await?;
    let now_ms = jobs.first().map_or(0, |job| job.context.now_ms);
    if strange.is_empty() || !shared.may_adopt(now_ms) {
        return Ok(found);
    }
    let rules = publications
        .iter()
        .flat_map(|it| &it.tables)
        .flat_map(|it| &it.rules);
    let strange = rules.filter(|rule| strange.contains(&(rule.log_id as i32)));
    let logs: Vec<&LogSpec> = strange.filter_map(|rule| rule.log.as_ref()).collect();
    let mut side = shared.pool.get().await?;
    if let Err(error) = members::adopt(&mut side, &logs).await {
        if matches!(error, CentreError::Unavailable { .. }) {
            return Err(error);
        }
        shared.adopt_failed(now_ms);
        let tables: Vec<&str> = logs.iter().map(|log| log.title.as_str()).collect();
        tracing::warn!(
            %error,
            tables = tables.join(", "),
            "partitions came that could not be tracked: every download sends the whole table \
             until `tidewater deploy` has been run by a role that owns them"
        );
        return Ok(found);
    }
    let rollback = connection.client().batch_execute("ROLLBACK").await;
    rollback.map_err(statement_failed("opening a download"))?;
    Ok(open(connection, shared, jobs, publications).await?.0)
}

/// Opens the snapshot and finds out what each subscription needs; with the change logs
/// whose table has other partitions than are tracked.
async fn open(
    connection: &mut PostgresConnection,
    shared: &PostgresShared,
    jobs: &[&DownloadJob],
    publications: &[Arc<Publication>],
) -> Result<(Found, Vec<i32>), CentreError> {
    let of_jobs = jobs.iter().enumerate();
    let subscriptions =
        of_jobs.flat_map(|(at, job)| job.subscriptions.iter().map(move |it| (at, it)));
    let subscriptions: Vec<(usize, &DownloadSubscription)> = subscriptions.collect();
    let mut rest = publications;
    let mut asking = Vec::with_capacity(jobs.len());
    let who = connection.prepare(WHO, &[]).await?;
    for job in jobs {
        let (own, others) = rest.split_at(job.subscriptions.len());
        rest = others;
        let own: Vec<&Publication> = own.iter().map(|it| &**it).collect();
        let queries = ScopeQueries::prepare(connection, &job.context, &own, ScopePurpose::Reading);
        let queries = queries.await?;
        let mut roles = Vec::with_capacity(own.len());
        for publication in own {
            roles.push(RoleQuery::prepare(connection, &job.context, publication).await?);
        }
        asking.push(JobQuestions {
            user: &job.context.user,
            remote: job.context.remote_id.to_string(),
            queries,
            roles,
        });
    }
    let served = distinct(publications);
    let state = connection.prepare(STATE, &[]).await?;
    let partitioned = MembersQuestion::prepare(connection, &served).await?;
    let helds: Vec<Option<PresentedState<'_>>> = subscriptions
        .iter()
        .map(|(_, it)| PresentedState::from_subscription(it))
        .collect();
    let news =
        NewsQuestion::prepare(connection, &served, publications, &subscriptions, &helds).await?;
    let client = connection.client();
    let known = || helds.iter().map(Option::as_ref);
    let marks = known().map(|it| it.map(|it| it.presented.watermark.mark.as_slice()));
    let marks: Vec<Option<&[u8]>> = marks.collect();
    let snapshots: Vec<Option<&str>> = known().map(|it| it.map(|it| &*it.snapshot)).collect();
    let remotes = subscriptions.iter();
    let remotes = remotes.map(|(job, _)| jobs[*job].context.remote_id.0.as_slice());
    let remotes: Vec<&[u8]> = remotes.collect();
    let names = subscriptions.iter().map(|(_, it)| &*it.publication);
    let names: Vec<&str> = names.collect();
    let parameters: [&(dyn ToSql + Sync); 4] = [&marks, &snapshots, &remotes, &names];
    let has_scripts = |it: &&Publication| it.scripts.values().any(|it| it.has_downloads());
    // Before the snapshot: who is not in it has begun by then, or later.
    let safe_time = match served.iter().any(has_scripts) {
        true => Some(shared.safe_times.look(client).await?),
        false => None,
    };
    // One flight: each future sends when it is first polled, in this order.
    let begin = begin(&served);
    let (begun, (states, ((news, strange), answers))) = join(
        client.batch_execute(&begin),
        join(
            client.query(&state, &parameters),
            join(
                join(
                    join_all(news.iter().map(|it| it.ask(client))),
                    MembersQuestion::changed(partitioned.as_ref(), client),
                ),
                join_all(asking.iter().map(|it| it.ask(client, &who))),
            ),
        ),
    )
    .await;
    begun.map_err(statement_failed("opening a download"))?;
    let states = states.map_err(statement_failed("opening a download"))?;
    let mut has_news = vec![false; subscriptions.len()];
    for numbers in news {
        for number in numbers? {
            has_news[number] = true;
        }
    }
    let strange = strange?;
    let mut scopes = Vec::with_capacity(subscriptions.len());
    for (asking, answers) in asking.iter().zip(answers) {
        let (results, roles) = answers?;
        for (index, acting) in roles.into_iter().enumerate() {
            scopes.push((asking.queries.scope(index, &results)?, acting));
        }
    }
    let mut rows: Vec<Option<&Row>> = vec![None; subscriptions.len()];
    for row in &states {
        rows[row.get::<_, i64>(0) as usize - 1] = Some(row);
    }
    let mut found = Vec::with_capacity(subscriptions.len());
    let of_subscriptions = rows.into_iter().zip(helds).zip(scopes).enumerate();
    for (number, ((row, held), (scope, acting))) in of_subscriptions {
        let row = row.ok_or_else(|| CentreError::Internal {
            message: "the state of a subscription is missing".into(),
        })?;
        let publication = &*publications[number];
        let marked_ms: Option<i64> = row.get(2);
        let mut restarted: Vec<i32> = row.get(3);
        restarted.extend(&strange);
        let tables = publication.tables.iter().flat_map(|it| &it.rules);
        let rules = tables
            .zip(&*publication.rules)
            .map(|(table, rule)| RuleHolding {
                place: held.as_ref().and_then(|it| it.presented.place(rule.id)),
                is_traced: marked_ms.is_some()
                    && table.log.is_some()
                    && !restarted.contains(&(table.log_id as i32)),
            });
        let rules = rules.collect();
        let (job, subscription) = subscriptions[number];
        let serial = subscription.checkpoint.as_ref().map(|it| it.serial);
        let watermark = held.as_ref().map(|it| &it.presented.watermark);
        // Times of another history say nothing of this one.
        let watermark = watermark.filter(|_| marked_ms.is_some());
        let last_download = watermark.and_then(|it| it.last_download);
        let mut news = held.is_none() || has_news[number];
        if let Some(held) = held.as_ref().filter(|_| !news && marked_ms.is_some()) {
            let own = own_version(subscription);
            news = held
                .has_news_of_many(connection, publication, &scope, &own)
                .await?;
        }
        let opened = OpenedSubscription {
            published: publication.published(),
            position: row.get::<_, String>(1).into_bytes(),
            scope,
            role: acting.role().to_owned(),
            held: rules,
            standing: SerialValidity::from_serials(serial, serials(row)),
            news,
            marked_ms,
            safe_until: safe_time.map_or(0, |it| it.for_remote(last_download)),
        };
        let logs = LogReading {
            job,
            since: held.filter(|_| marked_ms.is_some()).map(|it| it.snapshot),
            own_version: own_version(subscription),
            acting,
        };
        found.push((opened, logs));
    }
    Ok((found, strange))
}

/// Each of some publications once.
fn distinct(publications: &[Arc<Publication>]) -> Vec<&Publication> {
    let mut distinct: Vec<&Publication> = Vec::new();
    for publication in publications {
        if !distinct.iter().any(|it| std::ptr::eq(*it, &**publication)) {
            distinct.push(publication);
        }
    }
    distinct
}

/// What is asked for one job, in the name of its user.
struct JobQuestions<'j> {
    user: &'j str,
    remote: String,
    queries: ScopeQueries<'j>,
    /// By publication.
    roles: Vec<RoleQuery>,
}

impl JobQuestions<'_> {
    /// Says who syncs, and asks what he holds and under which roles he reads.
    async fn ask(
        &self,
        client: &Client,
        who: &Statement,
    ) -> Result<(Vec<Arc<Partitions>>, Vec<AssumedRole>), CentreError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.user, &self.remote];
        let roles = self.roles.iter().map(|role| role.ask(client));
        let (said, results, roles) = join3(
            client.query_one(who, &parameters),
            self.queries.run(client),
            join_all(roles),
        )
        .await;
        said.map_err(statement_failed("opening a download"))?;
        let roles = roles.into_iter().collect::<Result<_, _>>()?;
        Ok((results?, roles))
    }
}

/// The serials of a subscription's scopes, in a row of [`STATE`].
fn serials(row: &Row) -> Option<Serials> {
    let serials: Option<Vec<Option<i64>>> = row.get(4);
    let number = |serial: Option<i64>| serial.and_then(|it| u64::try_from(it).ok());
    match *serials? {
        [last, previous, graced, given_back] => Some((
            number(last)?,
            number(previous)?,
            number(graced)?,
            number(given_back),
        )),
        _ => None,
    }
}

/// Begins the snapshot with the tables locked as reading them would: what does not go by
/// snapshots (TRUNCATE, a new type of a column, DETACH) has happened for all of the download
/// or for none of it.
fn begin(publications: &[&Publication]) -> String {
    let tables = publications.iter().flat_map(|it| &it.tables);
    let tables = tables.filter(|table| table.direction.downloads());
    let tables: BTreeSet<&str> = tables.map(|table| table.sql_name.as_str()).collect();
    if tables.is_empty() {
        return BEGIN.to_owned();
    }
    let tables: Vec<&str> = tables.into_iter().collect();
    format!(
        "{BEGIN}; LOCK TABLE {} IN ACCESS SHARE MODE",
        tables.join(", ")
    )
}

/// The question whether partitioned tables still have the partitions that are tracked.
struct MembersQuestion {
    statement: Statement,
    logs: Vec<i32>,
}

impl MembersQuestion {
    async fn prepare(
        connection: &mut PostgresConnection,
        publications: &[&Publication],
    ) -> Result<Option<MembersQuestion>, CentreError> {
        let tables = publications.iter().flat_map(|it| &it.tables);
        let logs = tables.flat_map(|it| &it.rules);
        let logs = logs.filter(|rule| rule.log.as_ref().is_some_and(|log| log.partitioned));
        let logs: Vec<i32> = logs.map(|rule| rule.log_id as i32).collect();
        if logs.is_empty() {
            return Ok(None);
        }
        let statement = connection.prepare(&members::changed(), &[]).await?;
        Ok(Some(MembersQuestion { statement, logs }))
    }

    async fn changed(this: Option<&Self>, client: &Client) -> Result<Vec<i32>, CentreError> {
        let Some(this) = this else {
            return Ok(Vec::new());
        };
        let rows = client.query(&this.statement, &[&this.logs]).await;
        let rows = rows.map_err(statement_failed("looking at partitions"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// The partitions of a rule in a statement: each part begins with what joins it to what is before.
struct PartitionJoin {
    /// Array parameters.
    parameters: String,
    /// The names `s0`, `s1` and so on, unnested.
    names: String,
    /// That an entry `l` of the log is of the partition `s`.
    conditions: String,
}

impl PartitionJoin {
    /// Of a rule whose partition values are parameters from `first` on.
    fn for_rule(rule: &TableRule, first: usize) -> PartitionJoin {
        let mut asked = PartitionJoin {
            parameters: String::new(),
            names: String::new(),
            conditions: String::new(),
        };
        for (at, column) in rule.columns.iter().enumerate() {
            let parameter = Array::parameter(column.kind, first + at);
            asked.parameters.push_str(&format!(", {parameter}"));
            asked.names.push_str(&format!(", s{at}"));
            let held = column.held(&format!("s.s{at}"));
            let condition = format!("l.c{at} = {held} AND ");
            asked.conditions.push_str(&condition);
        }
        asked
    }
}

/// The part of a statement that finds new entries of a log, as `FROM` and `WHERE`:
/// `$1` the watermark's snapshot, `$2` its xmin, `$3` the upload's own version,
/// partition values from the parameter `first` on.
pub(super) fn new_entries(rule: &TableRule, first: usize) -> String {
    let asked = PartitionJoin::for_rule(rule, first);
    let mut from = String::new();
    if !rule.columns.is_empty() {
        let (parameters, names) = (&asked.parameters[2..], &asked.names[2..]);
        from = format!("unnest({parameters}) AS s({names}), ");
    }
    // By its index for each partition, however many entries there are: OFFSET keeps PostgreSQL from
    // reading all of the log once instead.
    format!(
        "FROM {from}LATERAL (SELECT * FROM {} l WHERE {}l.version >= (SELECT $2::text::xid8) \
         AND NOT pg_catalog.pg_visible_in_snapshot(l.version, (SELECT $1::text::pg_snapshot)) \
         AND l.version <> (SELECT $3::text::xid8) OFFSET 0) l",
        rule.log_table(),
        asked.conditions
    )
}

/// The lowest transaction id that a snapshot does not see for certain.
pub(super) fn xmin(snapshot: &str) -> &str {
    snapshot.split(':').next().unwrap_or("0")
}

/// The version that the download leaves out, as a parameter.
fn own_version(subscription: &DownloadSubscription) -> String {
    let own = subscription.own.as_ref().filter(|own| own.skip_version);
    own.map_or(0, |own| own.version).to_string()
}

/// The question for which of some subscriptions the log of a rule has anything new.
struct NewsQuestion {
    statement: Statement,
    /// Of the subscriptions that may: their numbers, the snapshots that they know, the versions that
    /// they leave out; for each partition that they hold.
    numbers: Vec<i32>,
    snapshots: Vec<String>,
    own_versions: Vec<String>,
    partitions: Vec<Array>,
}

impl NewsQuestion {
    /// The questions that have to be asked.
    async fn prepare(
        connection: &mut PostgresConnection,
        served: &[&Publication],
        publications: &[Arc<Publication>],
        subscriptions: &[(usize, &DownloadSubscription)],
        helds: &[Option<PresentedState<'_>>],
    ) -> Result<Vec<NewsQuestion>, CentreError> {
        let mut questions = Vec::new();
        for publication in served {
            let tables = publication.tables.iter().flat_map(|it| &it.rules);
            for (table, rule) in tables.zip(&*publication.rules) {
                if table.log.is_none() {
                    continue;
                }
                let (mut numbers, mut listed) = (Vec::new(), Vec::<&[u8]>::new());
                for (number, held) in helds.iter().enumerate() {
                    let Some(held) = held else { continue };
                    if !std::ptr::eq(&*publications[number], *publication) {
                        continue;
                    }
                    let Some(held) = held.presented.held(rule.id) else {
                        continue;
                    };
                    match &held.partitions {
                        _ if table.columns.is_empty() => numbers.push(number),
                        scope::HeldPartitions::Listed(partitions) => {
                            numbers.extend(partitions.iter().map(|_| number));
                            listed.extend(partitions.iter().map(Vec::as_slice));
                        }
                        // Of many it is asked when it is known whether they are still the same.
                        scope::HeldPartitions::Digest(_) => {}
                    }
                }
                if numbers.is_empty() {
                    continue;
                }
                let known = |&number: &usize| helds[number].as_ref();
                let snapshots = numbers.iter().filter_map(known);
                let own_versions = numbers.iter().map(|&it| own_version(subscriptions[it].1));
                questions.push(NewsQuestion {
                    statement: connection.prepare(&news(table), &[]).await?,
                    snapshots: snapshots.map(|it| it.snapshot.clone()).collect(),
                    own_versions: own_versions.collect(),
                    partitions: partition_arrays(table, listed.into_iter())?,
                    numbers: numbers.into_iter().map(|it| it as i32).collect(),
                });
            }
        }
        Ok(questions)
    }

    /// The numbers of the subscriptions for which there is something new.
    async fn ask(&self, client: &Client) -> Result<Vec<usize>, CentreError> {
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
            vec![&self.numbers, &self.snapshots, &self.own_versions];
        parameters.extend(self.partitions.iter().map(|it| it as &(dyn ToSql + Sync)));
        let rows = client.query(&self.statement, &parameters).await;
        let rows = rows.map_err(statement_failed("looking for changes"))?;
        Ok(rows
            .iter()
            .map(|row| row.get::<_, i32>(0) as usize)
            .collect())
    }
}

/// The text of [`NewsQuestion`]. By the log's index for each partition, however many entries there are:
/// LIMIT keeps PostgreSQL from reading all of the log once instead.
fn news(rule: &TableRule) -> String {
    let PartitionJoin {
        parameters,
        names,
        conditions,
    } = PartitionJoin::for_rule(rule, 4);
    format!(
        "SELECT s.n FROM (SELECT n, known::pg_snapshot AS known, \
         pg_catalog.pg_snapshot_xmin(known::pg_snapshot) AS low, own::xid8 AS own{names} \
         FROM unnest($1::int4[], $2::text[], $3::text[]{parameters}) AS u(n, known, own{names}) \
         OFFSET 0) s, LATERAL (SELECT FROM {} l WHERE {conditions}l.version >= s.low \
         AND NOT pg_catalog.pg_visible_in_snapshot(l.version, s.known) \
         AND l.version <> s.own LIMIT 1) l",
        rule.log_table(),
    )
}

impl<'c> PresentedState<'c> {
    /// What a remote presented, unless it presented nothing, or something of another database.
    fn from_subscription(subscription: &'c DownloadSubscription) -> Option<PresentedState<'c>> {
        let presented = subscription
            .checkpoint
            .as_ref()
            .and_then(PresentedCheckpoint::from_checkpoint)?;
        let snapshot = snapshot(&presented.watermark.position)?.to_owned();
        Some(PresentedState {
            presented,
            snapshot,
        })
    }

    /// Whether the logs have anything new for rules of which the checkpoint has but a digest of the
    /// partitions. If these changed, everybody knows that there is something to do.
    async fn has_news_of_many(
        &self,
        connection: &mut PostgresConnection,
        publication: &Publication,
        scope: &Scope,
        own_version: &str,
    ) -> Result<bool, CentreError> {
        let tables = publication.tables.iter().flat_map(|it| &it.rules);
        let rules = tables.zip(&*publication.rules).zip(&scope.rules);
        for ((table, rule), now) in rules {
            let held = self.presented.held(rule.id).filter(|_| table.log.is_some());
            let is_digest =
                |held: &HeldRule| matches!(held.partitions, scope::HeldPartitions::Digest(_));
            if !held.is_some_and(is_digest) {
                continue;
            }
            let question = format!("SELECT EXISTS (SELECT {})", new_entries(table, 4));
            let statement = connection.prepare(&question, &[]).await?;
            let partitions = now.partitions.iter().map(Vec::as_slice);
            let arrays = partition_arrays(table, partitions)?;
            let (since, xmin) = (&self.snapshot, xmin(&self.snapshot));
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![since, &xmin, &own_version];
            parameters.extend(arrays.iter().map(|it| it as &(dyn ToSql + Sync)));
            let row = connection.client().query_one(&statement, &parameters).await;
            if row.map_err(statement_failed("looking for changes"))?.get(0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
