//! Whether the tracking triggers of a served database have seen everything.
//!
//! Their owner can switch triggers off, and a table can be dropped and made again: neither
//! tells anybody, and what is written meanwhile is in no change log. The same goes for a table
//! that took the name of the tracked one. So the registry remembers
//! each trigger and the transaction that made it (PostgreSQL writes its entry anew when it is
//! switched off or on), and servers compare every few seconds. A table whose triggers do not
//! fire is sent whole by every download until they do again, and once more then. A column that
//! gets another type, or a value of an enumeration that is renamed, changes rows without any
//! trigger: so the types are remembered as well, and such a table is sent whole once. So it is
//! for a column that was dropped and added again: it has another number. A table that got heirs, an
//! ancestor or rules, or that is not logged any more, is sent whole as long as it is so.
//!
//! Triggers on partitions that came or went are [`super::members`]' affair.

use tokio_postgres::{GenericClient, Row};

use super::catalog::PostgresCatalog;
use super::connection::PostgresConnection;
use super::publication::Publication;
use super::quote::literal;
use super::triggers::LogSpec;
use super::{PostgresShared, existing_triggers};
use crate::driver_error::statement_failed;
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::engine::records::insert_incident;
use tidewater_centre::error::CentreError;
use tidewater_centre::records::{IncidentKind, IncidentRecord};

/// How long a server waits for one that deploys or does the same.
const LOCK_TIMEOUT_MS: u32 = 200;

/// The tracking triggers that there are, as `log_id, table_oid, trigger_oid, since`.
const LIVE: &str = "
SELECT l.id, t.tgrelid, t.oid, t.xmin::text FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'tidewater'::regnamespace
JOIN tidewater.change_log l
  ON p.proname::text ~ ('^log_' || l.id || '_')";

/// The types that there are, as [`super::state`]'s `column_type` has them, and of which table. The
/// values of an enumeration also where a type is made of it: an array, a domain, a range, a row.
const TYPES: &str = "
WITH RECURSIVE of_column AS (
  SELECT l.id AS log_id, l.table_oid, a.attname::text AS name, a.atttypid AS type_oid,
    pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, a.attnum AS number
  FROM tidewater.change_log l JOIN pg_catalog.pg_attribute a
    ON a.attrelid = l.table_oid AND a.attnum > 0 AND NOT a.attisdropped),
used AS (
  SELECT log_id, table_oid, name, type_oid FROM of_column
  UNION
  SELECT u.log_id, u.table_oid, u.name, part.type_oid FROM used u
  JOIN pg_catalog.pg_type t ON t.oid = u.type_oid,
  LATERAL (SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS part (type_oid)
  WHERE part.type_oid <> 0)
SELECT log_id, name, 0::oid AS label_oid, type, number, table_oid FROM of_column
UNION ALL
SELECT u.log_id, u.name, e.oid, e.enumlabel::text, NULL, u.table_oid
FROM used u JOIN pg_catalog.pg_enum e ON e.enumtypid = u.type_oid";

/// The columns of a log `l` whose type, or a value of which, is not what it was, or that are other
/// ones of the same name.
const RETYPED: &str = "
SELECT string_agg(DISTINCT k.name, ', ') FROM tidewater.column_type k
JOIN types t USING (log_id, name, label_oid)
WHERE k.log_id = l.id AND (k.type <> t.type OR k.number <> t.number)";

/// The change logs that miss triggers as they were made, or did and it is known. A trigger
/// on a partition goes with the partition. One on a table that has another name now tracks another
/// table than the one that is served. And those of which columns have got another type.
const LOST: &str = "
SELECT id, is_known, retyped, written_elsewhere FROM (
  SELECT l.id, EXISTS (SELECT FROM tidewater.untracked u WHERE u.log_id = l.id) AS is_known,
    EXISTS (
      SELECT FROM tidewater.tracked k WHERE k.log_id = l.id
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
        WHERE t.oid = k.trigger_oid AND t.xmin::text = k.since)
      AND (k.table_oid = l.table_oid OR k.table_oid = ANY (l.above)
        OR EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = k.table_oid)))
    OR EXISTS (SELECT FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      WHERE c.oid = l.table_oid AND l.table_name <>
        CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname)
    OR ({written_elsewhere}) IS NOT NULL AS is_lost,
    ({retyped}) AS retyped, ({written_elsewhere}) AS written_elsewhere
  FROM tidewater.change_log l) AS found
WHERE is_known OR is_lost OR retyped IS NOT NULL ORDER BY id";

/// Why what is written to the table of a log `l` does not go by its triggers alone; NULL if it does.
const WRITTEN_ELSEWHERE: &str = "
SELECT CASE
  WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid)
    THEN 'it has rewrite rules'
  WHEN c.relpersistence = 'u' THEN 'it is unlogged, and loses its rows in a crash'
  WHEN c.relkind = 'p' THEN (SELECT 'its partition ' || min(m.oid::regclass::text)
      || ' is a foreign or an unlogged table, or has rewrite rules'
    FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class m ON m.oid = p.relid
    WHERE m.relkind = 'f' OR m.relpersistence = 'u'
      OR EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = m.oid))
  ELSE (SELECT CASE min(h.inhrelid) WHEN c.oid
      THEN 'it inherits from ' || min(h.inhparent::regclass::text)
      ELSE min(h.inhrelid::regclass::text) || ' inherits from it' END
    FROM pg_catalog.pg_inherits h
    WHERE h.inhrelid = c.oid AND NOT c.relispartition OR h.inhparent = c.oid AND c.relkind <> 'p')
  END
FROM pg_catalog.pg_class c WHERE c.oid = l.table_oid";

/// The query of [`lost`].
fn lost_sql() -> String {
    let lost = LOST
        .replace("{retyped}", RETYPED)
        .replace("{written_elsewhere}", WRITTEN_ELSEWHERE);
    format!("WITH types AS ({TYPES}) {lost}")
}

/// Remembers the types of published columns as they are.
fn remember_types(published: &[Publication]) -> String {
    let tables = published.iter().flat_map(|publication| &publication.tables);
    let columns = tables.flat_map(|table| {
        let names = table.columns.iter().filter_map(|it| literal(&it.name));
        names.map(|name| format!("({}::oid, {name})", table.details.oid))
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let remembered = match columns.is_empty() {
        true => String::new(),
        false => format!(
            "INSERT INTO tidewater.column_type (log_id, name, label_oid, type, number)
             SELECT log_id, name, label_oid, type, number FROM ({TYPES}) AS t
             WHERE (table_oid, name) IN ({columns});\n"
        ),
    };
    format!("DELETE FROM tidewater.column_type;\n{remembered}")
}

/// Remembers all triggers and the types of published columns as they are. Whoever deploys has seen
/// to it that the triggers are all there.
pub(super) fn remember_all(published: &[Publication]) -> String {
    let triggers = as_they_are("TRUE", "TRUE");
    let types = remember_types(published);
    // What no trigger sees goes on to be sent whole.
    format!(
        "DELETE FROM tidewater.untracked u WHERE NOT EXISTS (SELECT FROM tidewater.change_log l
           WHERE l.id = u.log_id AND ({WRITTEN_ELSEWHERE}) IS NOT NULL);
         {triggers}{types}"
    )
}

/// Remembers the triggers of a log on these tables as they are; before, it knew none of them, or
/// what it knew is of no use any more.
pub(super) fn remember(id: i32, tables: impl Iterator<Item = u32>) -> String {
    let tables: Vec<String> = tables.map(|oid| oid.to_string()).collect();
    if tables.is_empty() {
        return String::new();
    }
    let tables = tables.join(", ");
    as_they_are(
        &format!("log_id = {id} AND table_oid IN ({tables})"),
        &format!("l.id = {id} AND t.tgrelid IN ({tables})"),
    )
}

/// Remembers some triggers as they are: which ones is a condition on what was known, and the
/// same on [`LIVE`].
fn as_they_are(known: &str, live: &str) -> String {
    format!(
        "DELETE FROM tidewater.tracked WHERE {known};
         INSERT INTO tidewater.tracked (log_id, table_oid, trigger_oid, since) {LIVE}
           WHERE {live};\n"
    )
}

/// A change log that has not seen everything.
#[derive(Debug)]
pub(super) struct IncompleteLog {
    pub(super) id: i32,
    /// Its table is sent whole already.
    is_known: bool,
    /// The columns that are not what they were, as [`RETYPED`] says.
    retyped: Option<String>,
    /// See [`WRITTEN_ELSEWHERE`].
    written_elsewhere: Option<String>,
}

impl IncompleteLog {
    fn from_row(row: &Row) -> IncompleteLog {
        IncompleteLog {
            id: row.get(0),
            is_known: row.get(1),
            retyped: row.get(2),
            written_elsewhere: row.get(3),
        }
    }

    /// Whether the table is sent whole by every download, whatever is done about its triggers.
    pub(super) fn goes_whole(&self) -> bool {
        self.written_elsewhere.is_some()
    }

    /// What has happened to a table whose triggers all fire.
    pub(super) fn what_happened(&self) -> String {
        match &self.retyped {
            Some(columns) if !self.is_known => {
                format!(
                    "columns, or values of their enumerations, were altered or made again \
                     ({columns})"
                )
            }
            _ => "its tracking triggers were off and are on again".into(),
        }
    }
}

/// The change logs that have not seen everything.
pub(super) async fn lost(client: &impl GenericClient) -> Result<Vec<IncompleteLog>, CentreError> {
    let rows = client.query(&lost_sql(), &[]).await;
    Ok(rows
        .map_err(error)?
        .iter()
        .map(IncompleteLog::from_row)
        .collect())
}

/// Looks whether triggers are missing, and sees to it that remotes miss nothing for it.
pub(super) async fn check(shared: &PostgresShared, now_ms: i64) -> Result<(), CentreError> {
    let mut connection = shared.pool.get().await?;
    let statement = connection.prepare(&lost_sql(), &[]).await?;
    let found = connection.client().query(&statement, &[]).await;
    if found.map_err(error)?.is_empty() {
        return Ok(());
    }
    connection.enter().await?;
    let repaired = repair(&mut connection, shared, now_ms).await;
    connection.leave(repaired).await
}

async fn repair(
    connection: &mut PostgresConnection,
    shared: &PostgresShared,
    now_ms: i64,
) -> Result<(), CentreError> {
    crate::deploy_lock::begin_alone(connection, LOCK_TIMEOUT_MS).await?;
    let catalog = PostgresCatalog::read(connection.client()).await?;
    // Under the lock: another server may have seen to it meanwhile.
    for lost in lost(connection.client()).await? {
        if let Some((publication, spec)) = shared.tracked(lost.id) {
            let found = ServedLog {
                lost,
                publication,
                spec,
            };
            found.repair(connection, &catalog, now_ms).await?;
        }
    }
    connection.commit().await
}

/// One that is served.
struct ServedLog {
    lost: IncompleteLog,
    publication: String,
    spec: LogSpec,
}

impl ServedLog {
    async fn repair(
        &self,
        connection: &mut PostgresConnection,
        catalog: &PostgresCatalog,
        now_ms: i64,
    ) -> Result<(), CentreError> {
        let registry = "SELECT members FROM tidewater.change_log WHERE id = $1";
        let id = self.lost.id;
        let members = connection.client().query_one(registry, &[&id]).await;
        let members: Option<String> = members.map_err(error)?.get(0);
        let missing = existing_triggers::missing(&self.spec, id, members.as_deref(), catalog);
        let title = &self.spec.title;
        let table = catalog.by_oid(self.spec.table_oid);
        let is_there = table.is_some_and(|live| live.title == self.spec.title);
        let elsewhere = self.lost.written_elsewhere.as_deref();
        if is_there && missing.is_empty() && elsewhere.is_none() {
            let fire_again = self.fire_again();
            let client = connection.client();
            client.batch_execute(&fire_again).await.map_err(error)?;
            let detail = format!(
                "{title}: {}; all its rows are sent to remotes once more",
                self.lost.what_happened()
            );
            return self.tell(connection, now_ms, &detail).await;
        }
        if self.lost.is_known {
            return Ok(());
        }
        let untracked = "INSERT INTO tidewater.untracked VALUES ($1)";
        let noted = connection.client().execute(untracked, &[&id]).await;
        noted.map_err(error)?;
        let where_missing = missing.iter();
        let where_missing =
            where_missing.map(|it| format!("{} ({})", it.table, it.names.join(", ")));
        let what = match (is_there, elsewhere) {
            (true, Some(elsewhere)) => {
                format!("{title}: {elsewhere}, and not all that is written is noticed (undo that)")
            }
            (true, None) => format!(
                "tracking triggers are missing or switched off on {}",
                where_missing.collect::<Vec<_>>().join(", ")
            ),
            (false, _) => format!(
                "{title} was dropped or renamed, or another table has its name (made again, \
                 exchanged)"
            ),
        };
        let detail = format!(
            "{what}: every download sends the whole table until {}",
            match elsewhere {
                Some(_) => "then",
                None => "`tidewater deploy` has been run",
            }
        );
        self.tell(connection, now_ms, &detail).await
    }

    /// What has to be done once all triggers fire again: remotes need all rows once more.
    fn fire_again(&self) -> String {
        let id = self.lost.id;
        let remembered = as_they_are(&format!("log_id = {id}"), &format!("l.id = {id}"));
        crate::deploy_lock::everything(i64::from(id))
            + &format!(
                "DELETE FROM tidewater.untracked WHERE log_id = {id}; {remembered}
                 UPDATE tidewater.column_type k SET type = t.type, number = t.number
                 FROM ({TYPES}) AS t
                 WHERE k.log_id = {id} AND (t.log_id, t.name, t.label_oid)
                   = (k.log_id, k.name, k.label_oid);"
            )
    }

    async fn tell(
        &self,
        connection: &mut PostgresConnection,
        now_ms: i64,
        detail: &str,
    ) -> Result<(), CentreError> {
        tracing::warn!(table = self.spec.title, detail, "changes were not tracked");
        let incident = insert_incident(&IncidentRecord {
            at_ms: now_ms,
            kind: IncidentKind::TrackingLost,
            remote_id: None,
            user: String::new(),
            publication: self.publication.clone(),
            detail: detail.to_owned(),
        });
        let what = "recording that changes were not tracked";
        connection.run_one(what, incident).await.map(drop)
    }
}

fn error(error: tokio_postgres::Error) -> CentreError {
    statement_failed("looking whether changes are tracked")(error)
}
