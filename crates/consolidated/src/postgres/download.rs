//! The snapshot from which a download is read.
//!
//! One flight opens it, looks at the watermarks, runs the partition queries and asks whether the
//! logs have anything new for what the remotes hold.

mod read;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use tidewater_protocol::{Code, Datum};

use super::Shared;
use super::array::Array;
use super::connection::{Connection, refused};
use super::members;
use super::model::{Compiled, CompiledTable};
use super::scope::{Facts, ScopeQueries, partition_arrays};
use super::triggers::LogSpec;
use super::watermark::Watermark;
use crate::centre::CentreResult;
use crate::download::{DownloadJob, DownloadSubscription};
use crate::engine::download::{
    Held, Mark, Opened, Place, PublishedSchema, ScopeChange, Snapshot, Standing, TakeKey, TakeRow,
};
use crate::error::CentreError;

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// How long nothing is done again about partitions that could not be tracked.
pub(super) const ADOPT_AGAIN_MS: u64 = 60_000;

/// `$1`: mark, `$2`: snapshot of the watermark; both NULL without one. `$3` to `$5`: remote,
/// publication and serial of the scope, NULL without one. `$6`: whether it compares its tables.
/// The last column is whether the remote
/// presents the newest scope for the first time; NULL if the serial is none of the last two, or
/// is spent: changes could not be taken under it. One from before the remote gave back what a
/// restored centre had forgotten is in an older copy of the file that was told what became of
/// that: it counts for nothing, unless the tables are compared.
const STATE: &str = "
SELECT pg_catalog.pg_current_snapshot()::text,
  EXISTS (SELECT FROM tidewater.mark WHERE id = $1)
    AND pg_catalog.pg_snapshot_xmin($2::text::pg_snapshot) >= (SELECT log_floor FROM tidewater.history)
    AND ($6 OR NOT EXISTS (SELECT FROM tidewater.subscription
      WHERE remote_id = $3 AND publication = $4
        AND given_back_serial IS NOT NULL AND NOT ($5 > given_back_serial AND $5 <= scope_serial))),
  ARRAY (SELECT log_id FROM tidewater.everything
    WHERE version >= (SELECT pg_catalog.pg_snapshot_xmin($2::text::pg_snapshot))
      AND NOT pg_catalog.pg_visible_in_snapshot(version, (SELECT $2::text::pg_snapshot))
    UNION ALL SELECT log_id FROM tidewater.untracked),
  (SELECT scope_serial = $5 AND graced_serial < previous_serial FROM tidewater.subscription
    WHERE remote_id = $3 AND publication = $4
      AND $5 IN (scope_serial, previous_serial) AND $5 > graced_serial
      AND $5 > coalesce(given_back_serial, 0))";

/// What a remote presented and holds, as far as it can be understood.
struct Presented {
    watermark: Watermark,
    /// The question whether the logs have anything new for it; `None` if there is no
    /// log to ask.
    check: Option<(Statement, Vec<Array>)>,
}

/// See [`Snapshot`].
pub(super) struct DatabaseSnapshot<'p> {
    connection: &'p mut Connection,
    shared: &'p Shared,
    publications: &'p [Arc<Compiled>],
    opened: Vec<Opened>,
    /// By subscription.
    logs: Vec<LogReading>,
}

/// How the change logs are read for a subscription.
struct LogReading {
    /// As text: the snapshot, and the one that the remote knows.
    now: String,
    since: Option<String>,
    /// See [`own_version`].
    own_version: String,
}

impl<'p> DatabaseSnapshot<'p> {
    /// Opens the snapshot, and looks what each subscription has.
    pub(super) async fn open(
        connection: &'p mut Connection,
        shared: &'p Shared,
        job: &DownloadJob,
        publications: &'p [Arc<Compiled>],
    ) -> Result<DatabaseSnapshot<'p>, CentreError> {
        let found = open_adopting(connection, shared, job, publications).await?;
        let (opened, logs) = found.into_iter().unzip();
        Ok(DatabaseSnapshot {
            connection,
            shared,
            publications,
            opened,
            logs,
        })
    }

    fn table(&self, place: Place) -> &'p CompiledTable {
        &self.publications[place.subscription].tables[place.table]
    }
}

impl Snapshot for DatabaseSnapshot<'_> {
    fn published(&self, subscription: usize) -> PublishedSchema {
        let publication = &self.publications[subscription];
        PublishedSchema {
            schema: publication.schema.clone(),
            shapes: publication.shapes.clone(),
        }
    }

    fn take_opened(&mut self) -> Vec<Opened> {
        std::mem::take(&mut self.opened)
    }

    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, Mark> {
        Box::pin(async move {
            let id = self.shared.marks.mark(now_ms).await?;
            let mut serials = Vec::with_capacity(changes.len());
            if !changes.is_empty() {
                let mut connection = self.shared.pool.get().await?;
                for change in &changes {
                    serials.push(note_scope(&mut connection, change).await?);
                }
            }
            let id = id.to_vec();
            Ok(Mark { id, serials })
        })
    }

    fn watermark(&mut self, subscription: usize, mark: &[u8]) -> Result<Vec<u8>, CentreError> {
        let mark = mark.try_into().map_err(|_| CentreError::Internal {
            message: "a mark of another length".into(),
        })?;
        let watermark = Watermark {
            mark,
            layout: self.publications[subscription].layout,
            snapshot: self.logs[subscription].now.clone(),
        };
        Ok(watermark.encode())
    }

    fn row_estimate(&self, place: Place) -> u64 {
        self.table(place).row_estimate
    }

    fn rows<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            read::copy_rows(self.connection, self.table(place), partitions, take).await
        })
    }

    fn changes<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let logs = &self.logs[place.subscription];
            let Some(since) = &logs.since else {
                return Ok(());
            };
            let table = self.table(place);
            let own = &logs.own_version;
            read::changes(self.connection, table, (since, own), partitions, take).await
        })
    }

    fn by_keys<'s>(
        &'s mut self,
        place: Place,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move { read::by_keys(self.connection, self.table(place), keys, take).await })
    }

    fn end(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            // Nobody waits for the end of a transaction that only read.
            let ended = self.connection.client().batch_execute("COMMIT");
            match ended.now_or_never() {
                Some(ended) => ended.map_err(refused("ending a download")),
                None => Ok(()),
            }
        })
    }
}

/// The publications of a job.
pub(super) fn publications(
    shared: &Shared,
    job: &DownloadJob,
) -> Result<Vec<Arc<Compiled>>, CentreError> {
    let names = job.subscriptions.iter();
    names
        .map(|it| shared.publication(&it.publication))
        .collect()
}

type Found = Vec<(Opened, LogReading)>;

/// Opens the snapshot; first takes in the partitions that came or went, if it can be done
/// at once. If not, their tables go whole.
async fn open_adopting(
    connection: &mut Connection,
    shared: &Shared,
    job: &DownloadJob,
    publications: &[Arc<Compiled>],
) -> Result<Found, CentreError> {
    let (found, strange) = open(connection, job, publications).await?;
    if strange.is_empty() || !shared.may_adopt(job.now_ms) {
        return Ok(found);
    }
    let tables = publications.iter().flat_map(|it| &it.tables);
    let strange = tables.filter(|table| strange.contains(&table.log_id));
    let logs: Vec<&LogSpec> = strange.filter_map(|table| table.log.as_ref()).collect();
    let mut side = shared.pool.get().await?;
    if let Err(error) = members::adopt(&mut side, &logs).await {
        if matches!(error, CentreError::Unavailable { .. }) {
            return Err(error);
        }
        shared.adopt_failed(job.now_ms);
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
    rollback.map_err(refused("opening a download"))?;
    Ok(open(connection, job, publications).await?.0)
}

/// Opens the snapshot and finds out what each subscription needs; with the change logs
/// whose table has other partitions than are tracked.
async fn open(
    connection: &mut Connection,
    job: &DownloadJob,
    publications: &[Arc<Compiled>],
) -> Result<(Found, Vec<i32>), CentreError> {
    let facts = Facts {
        user: &job.user,
        remote_id: job.remote_id.to_string(),
    };
    let compiled: Vec<&Compiled> = publications.iter().map(|it| &**it).collect();
    let queries = ScopeQueries::prepare(connection, &facts, &compiled).await?;
    let state = connection.prepare(STATE, &[]).await?;
    let partitioned = Partitioned::of(connection, &compiled).await?;
    let mut helds = Vec::with_capacity(compiled.len());
    for (subscription, publication) in job.subscriptions.iter().zip(&compiled) {
        helds.push(Presented::of(connection, publication, subscription).await?);
    }
    let client = connection.client();
    let remote = job.remote_id.0.as_slice();
    let states = helds.iter().zip(&job.subscriptions);
    let states = states.map(|(held, subscription)| {
        let state = &state;
        async move {
            let mark = held.as_ref().map(|it| it.watermark.mark.as_slice());
            let snapshot = held.as_ref().map(|it| it.watermark.snapshot.as_str());
            let (publication, serial) = (&subscription.publication, serial(subscription));
            let compares = !subscription.compares.is_empty();
            let parameters: [&(dyn ToSql + Sync); 6] =
                [&mark, &snapshot, &remote, publication, &serial, &compares];
            let row = client.query_one(state, &parameters).await;
            row.map_err(refused("opening a download"))
        }
    });
    let checks = helds.iter().zip(&job.subscriptions);
    let checks =
        checks.map(|(held, subscription)| Presented::news(held.as_ref(), client, subscription));
    // One flight: each future sends when it is first polled, in this order.
    let begin = begin(&compiled);
    let (begun, (states, ((results, news), strange))) = join(
        client.batch_execute(&begin),
        join(
            join_all(states),
            join(
                join(queries.run(client), join_all(checks)),
                Partitioned::changed(partitioned.as_ref(), client),
            ),
        ),
    )
    .await;
    begun.map_err(refused("opening a download"))?;
    let (results, strange) = (results?, strange?);
    let mut found = Vec::with_capacity(states.len());
    for (index, ((row, held), news)) in states.into_iter().zip(helds).zip(news).enumerate() {
        let row = row?;
        let publication = compiled[index];
        let valid: Option<bool> = row.get(1);
        let held = held.filter(|_| valid == Some(true));
        let mut restarted: Vec<i32> = row.get(2);
        restarted.extend(&strange);
        let tables = publication.tables.iter().enumerate();
        let tables = tables.map(|(place, table)| Held {
            place: held.as_ref().map(|_| place),
            is_traced: held.is_some() && table.log.is_some() && !restarted.contains(&table.log_id),
        });
        let opened = Opened {
            scope: queries.scope(index, publication, &results)?,
            held: tables.collect(),
            standing: match row.get(3) {
                Some(true) => Standing::Arrived,
                Some(false) => Standing::Known,
                None => Standing::Replaced,
            },
            news: news?,
            renew: false,
        };
        let logs = LogReading {
            now: row.get(0),
            since: held.map(|it| it.watermark.snapshot),
            own_version: own_version(&job.subscriptions[index]),
        };
        found.push((opened, logs));
    }
    Ok((found, strange))
}

/// Begins the snapshot with the tables locked as reading them would: what does not go by
/// snapshots (TRUNCATE, a new type of a column, DETACH) has happened for all of the download
/// or for none of it.
fn begin(publications: &[&Compiled]) -> String {
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
struct Partitioned {
    statement: Statement,
    logs: Vec<i32>,
}

impl Partitioned {
    async fn of(
        connection: &mut Connection,
        publications: &[&Compiled],
    ) -> Result<Option<Partitioned>, CentreError> {
        let tables = publications.iter().flat_map(|it| &it.tables);
        let logs = tables.filter(|table| table.log.as_ref().is_some_and(|log| log.partitioned));
        let logs: Vec<i32> = logs.map(|table| table.log_id).collect();
        if logs.is_empty() {
            return Ok(None);
        }
        let statement = connection.prepare(&members::changed(), &[]).await?;
        Ok(Some(Partitioned { statement, logs }))
    }

    async fn changed(this: Option<&Self>, client: &Client) -> Result<Vec<i32>, CentreError> {
        let Some(this) = this else {
            return Ok(Vec::new());
        };
        let rows = client.query(&this.statement, &[&this.logs]).await;
        let rows = rows.map_err(refused("looking at partitions"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// The part of a statement that finds new entries of a log, as `FROM` and `WHERE`:
/// `$1` the watermark's snapshot, `$2` its xmin, `$3` the upload's own version,
/// partition values from the parameter `first` on.
pub(super) fn new_entries(table: &CompiledTable, first: usize) -> String {
    let mut from = format!("{} l", table.log_table());
    let mut conditions = String::new();
    if table.scope.is_some() {
        let columns: Vec<_> = table.partition_columns().collect();
        let parameters = columns.iter().enumerate();
        let parameters = parameters.map(|(at, it)| Array::parameter(it.kind, first + at));
        let names = (0..columns.len()).map(|at| format!("s{at}"));
        from.push_str(&format!(
            ", unnest({}) AS s({})",
            parameters.collect::<Vec<_>>().join(", "),
            names.collect::<Vec<_>>().join(", ")
        ));
        for (at, column) in columns.iter().enumerate() {
            let equal = format!("l.c{at} = {}", column.held(&format!("s.s{at}")));
            conditions.push_str(&format!("{equal} AND "));
        }
    }
    format!(
        "FROM {from} WHERE {conditions}l.version >= (SELECT $2::text::xid8) \
         AND NOT pg_catalog.pg_visible_in_snapshot(l.version, (SELECT $1::text::pg_snapshot)) \
         AND l.version <> (SELECT $3::text::xid8)"
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

impl Presented {
    /// What a remote presented, unless it presented nothing, or something of another
    /// database or of another list of tables.
    async fn of(
        connection: &mut Connection,
        publication: &Compiled,
        subscription: &DownloadSubscription,
    ) -> Result<Option<Presented>, CentreError> {
        let Some(checkpoint) = &subscription.checkpoint else {
            return Ok(None);
        };
        let Some(watermark) = Watermark::decode(&checkpoint.watermark) else {
            return Ok(None);
        };
        let scope = &checkpoint.scope;
        if watermark.layout != publication.layout || scope.tables.len() != publication.tables.len()
        {
            return Ok(None);
        }
        let mut parameters = Vec::new();
        let mut questions = Vec::new();
        for (table, held) in publication.tables.iter().zip(&scope.tables) {
            let nothing_held = table.scope.is_some() && held.is_empty();
            if table.log.is_none() || nothing_held {
                continue;
            }
            let entries = new_entries(table, 4 + parameters.len());
            questions.push(format!("EXISTS (SELECT {entries})"));
            if table.scope.is_some() {
                parameters.extend(partition_arrays(table, held.iter().map(Vec::as_slice))?);
            }
        }
        let check = match questions.is_empty() {
            true => None,
            false => {
                let question = format!("SELECT {}", questions.join(" OR "));
                Some((connection.prepare(&question, &[]).await?, parameters))
            }
        };
        Ok(Some(Presented { watermark, check }))
    }

    /// Asks whether the logs have anything new.
    async fn news(
        held: Option<&Self>,
        client: &Client,
        subscription: &DownloadSubscription,
    ) -> Result<bool, CentreError> {
        let Some(held) = held else { return Ok(true) };
        let Some((statement, arrays)) = &held.check else {
            return Ok(false);
        };
        let (snapshot, own) = (&held.watermark.snapshot, own_version(subscription));
        let xmin = xmin(snapshot);
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![snapshot, &xmin, &own];
        parameters.extend(arrays.iter().map(|it| it as &(dyn ToSql + Sync)));
        let row = client.query_one(statement, &parameters).await;
        Ok(row.map_err(refused("looking for changes"))?.get(0))
    }
}

/// The scope that the remote holds (`$3`) stays known, also when the answers between it and the
/// new one were lost.
const NEW_SERIAL: &str = "
INSERT INTO tidewater.subscription AS s (remote_id, publication, scope_serial) VALUES ($1, $2, 1)
ON CONFLICT (remote_id, publication) DO UPDATE
  SET previous_serial = CASE WHEN $3::bigint IN (s.scope_serial, s.previous_serial) THEN $3
        ELSE s.scope_serial END,
    scope_serial = s.scope_serial + 1
RETURNING scope_serial";

/// Does nothing if a newer scope was issued meanwhile, or another sync was first.
const SPEND_PREVIOUS: &str = "
UPDATE tidewater.subscription SET graced_serial = previous_serial
WHERE remote_id = $1 AND publication = $2 AND scope_serial = $3 AND graced_serial < previous_serial";

/// Notes what became of a scope; gives the serial that counts. Of the newest, when it arrives,
/// changes under the one before are not taken any more; until it is presented the one before
/// counts, for the answer with the newest may have been lost.
async fn note_scope(connection: &mut Connection, change: &ScopeChange) -> Result<u64, CentreError> {
    let error = |error| refused("noting a scope")(error);
    let serial = change.presented.and_then(|it| i64::try_from(it).ok());
    let remote = change.remote_id.0.as_slice();
    let parameters: [&(dyn ToSql + Sync); 3] = [&remote, &change.publication, &serial];
    if let Some(serial) = change.presented.filter(|_| change.arrived) {
        let statement = connection.prepare(SPEND_PREVIOUS, &[]).await?;
        let spent = connection.client().execute(&statement, &parameters).await;
        return spent.map(|_| serial).map_err(error);
    }
    let statement = connection.prepare(NEW_SERIAL, &[]).await?;
    let row = connection.client().query_one(&statement, &parameters).await;
    u64::try_from(row.map_err(error)?.get::<_, i64>(0)).map_err(|_| CentreError::Internal {
        message: "a scope's serial is negative".into(),
    })
}

/// The serial of the scope that a remote presents; `None` too for one that was never issued.
fn serial(subscription: &DownloadSubscription) -> Option<i64> {
    let checkpoint = subscription.checkpoint.as_ref()?;
    i64::try_from(checkpoint.serial).ok()
}

/// The error of [`Shared::publication`].
pub(super) fn unknown_publication(name: &str) -> CentreError {
    CentreError::Peer {
        message: format!("the name of a publication that there is not: {name:?}"),
        code: Code::UnknownPublication,
    }
}
