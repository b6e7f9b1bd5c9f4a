//! Whether the tracking triggers of a served database still see everything.
//!
//! Their owner can switch triggers off, and a table can be dropped and made again: neither
//! tells anybody, and what is written meanwhile is in no change log. The same goes for a table
//! that took the name of the tracked one. So the registry remembers
//! each trigger and the transaction that made it (PostgreSQL writes its entry anew when it is
//! switched off or on), and servers compare every few seconds. A table whose triggers do not
//! fire is sent whole by every download until they do again, and once more then.
//!
//! Triggers on partitions that came or went are [`super::members`]' affair.

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Transaction};

use super::connection::refused;
use super::live::Catalog;
use super::triggers::LogSpec;
use super::{Shared, deploy, in_place};
use crate::error::CentreError;
use crate::records::IncidentKind;

/// How long a server waits for one that deploys or does the same.
const LOCK_TIMEOUT_MS: u32 = 200;

/// The tracking triggers that there are, as `log_id, table_oid, trigger_oid, since`.
const LIVE: &str = "
SELECT l.id, t.tgrelid, t.oid, t.xmin::text FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'tidewater'::regnamespace
JOIN tidewater.change_log l
  ON p.proname::text = ANY(ARRAY['log_' || l.id || '_new', 'log_' || l.id || '_old',
     'log_' || l.id || '_moved', 'log_' || l.id || '_truncated'])";

/// The change logs that miss triggers as they were made, or did and it is known. A trigger
/// on a partition goes with the partition. One on a table that has another name now tracks another
/// table than the one that is served.
const LOST: &str = "
SELECT l.id, EXISTS (SELECT FROM tidewater.untracked u WHERE u.log_id = l.id)
FROM tidewater.change_log l WHERE EXISTS (
  SELECT FROM tidewater.tracked k WHERE k.log_id = l.id
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
    WHERE t.oid = k.trigger_oid AND t.xmin::text = k.since)
  AND (k.table_oid = l.table_oid
    OR EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = k.table_oid)))
OR EXISTS (SELECT FROM tidewater.untracked u WHERE u.log_id = l.id)
OR EXISTS (SELECT FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = l.table_oid AND l.table_name <>
    CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname)
ORDER BY l.id";

/// Remembers all triggers as they are. Whoever deploys has seen to it that they are all there.
pub(super) fn remember_all() -> String {
    let remembered = as_they_are("TRUE", "TRUE");
    format!("DELETE FROM tidewater.untracked; {remembered}")
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

/// The change logs that miss triggers as they were made.
pub(super) async fn lost(client: &impl GenericClient) -> Result<Vec<i32>, CentreError> {
    let rows = client.query(LOST, &[]).await.map_err(error)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Looks whether triggers are missing, and sees to it that remotes miss nothing for it.
pub(super) async fn check(shared: &Shared, now_ms: i64) -> Result<(), CentreError> {
    let mut connection = shared.pool.get().await?;
    let statement = connection.prepare(LOST, &[]).await?;
    let lost = connection.client().query(&statement, &[]).await;
    if lost.map_err(error)?.is_empty() {
        return Ok(());
    }
    let transaction = deploy::begin(connection.client_mut(), LOCK_TIMEOUT_MS).await?;
    let catalog = Catalog::read(&transaction).await?;
    // Under the lock: another server may have seen to it meanwhile.
    for row in transaction.query(LOST, &[]).await.map_err(error)? {
        let (id, is_known): (i32, bool) = (row.get(0), row.get(1));
        if let Some((publication, spec)) = shared.tracked(id) {
            let found = Found {
                id,
                is_known,
                publication,
                spec,
            };
            found.settle(&transaction, &catalog, now_ms).await?;
        }
    }
    transaction.commit().await.map_err(error)
}

/// A change log that misses triggers.
struct Found {
    id: i32,
    /// Its table is sent whole already.
    is_known: bool,
    publication: String,
    spec: LogSpec,
}

impl Found {
    async fn settle(
        &self,
        transaction: &Transaction<'_>,
        catalog: &Catalog,
        now_ms: i64,
    ) -> Result<(), CentreError> {
        let registry = "SELECT members FROM tidewater.change_log WHERE id = $1";
        let members = transaction.query_one(registry, &[&self.id]).await;
        let members: Option<String> = members.map_err(error)?.get(0);
        let missing = in_place::missing(&self.spec, self.id, members.as_deref(), catalog);
        let title = &self.spec.title;
        let table = catalog.by_oid(self.spec.table_oid);
        let is_there = table.is_some_and(|live| live.title() == self.spec.title);
        if is_there && missing.is_empty() {
            let fire_again = self.fire_again();
            transaction
                .batch_execute(&fire_again)
                .await
                .map_err(error)?;
            let detail = format!(
                "the tracking triggers of {title} were off and are on again: all its rows are \
                 sent to remotes once more"
            );
            return self.tell(transaction, now_ms, &detail).await;
        }
        if self.is_known {
            return Ok(());
        }
        let untracked = "INSERT INTO tidewater.untracked VALUES ($1)";
        let noted = transaction.execute(untracked, &[&self.id]).await;
        noted.map_err(error)?;
        let where_missing = missing.iter();
        let where_missing =
            where_missing.map(|it| format!("{} ({})", it.table, it.names.join(", ")));
        let what = match is_there {
            true => format!(
                "tracking triggers are missing or switched off on {}",
                where_missing.collect::<Vec<_>>().join(", ")
            ),
            false => format!(
                "{title} was dropped or renamed, or another table has its name (made again, \
                 exchanged)"
            ),
        };
        let detail = format!(
            "{what}: every download sends the whole table until `tidewater deploy` has been run"
        );
        self.tell(transaction, now_ms, &detail).await
    }

    /// What has to be done once all triggers fire again: remotes need all rows once more.
    fn fire_again(&self) -> String {
        let id = self.id;
        let remembered = as_they_are(&format!("log_id = {id}"), &format!("l.id = {id}"));
        deploy::everything(id)
            + &format!("DELETE FROM tidewater.untracked WHERE log_id = {id}; {remembered}")
    }

    async fn tell(
        &self,
        transaction: &Transaction<'_>,
        now_ms: i64,
        detail: &str,
    ) -> Result<(), CentreError> {
        tracing::warn!(table = self.spec.title, detail, "changes were not tracked");
        let incident = "INSERT INTO tidewater.incident (at_ms, kind, remote_id, user_name, \
                        publication, detail) VALUES ($1, $2, '', '', $3, $4)";
        let kind = IncidentKind::TrackingLost.name();
        let parameters: [&(dyn ToSql + Sync); 4] = [&now_ms, &kind, &self.publication, &detail];
        let told = transaction.execute(incident, &parameters).await;
        told.map(drop).map_err(error)
    }
}

fn error(error: tokio_postgres::Error) -> CentreError {
    refused("looking whether changes are tracked")(error)
}
