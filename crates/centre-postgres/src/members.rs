//! Partitioned tables: what is below them, and how it is noticed that this changed.
//!
//! Triggers of statements stand on the root and on every member, because PostgreSQL fires
//! those of the table only that a statement names. A member that is attached brings rows,
//! one that is detached takes rows, and neither fires a trigger: so the registry of
//! change logs remembers the members, each download compares them in its snapshot, and
//! whoever finds a difference removes it in a transaction of its own.

use super::catalog::PostgresCatalog;
use super::connection::PostgresConnection;
use super::quote::literal;
use super::tracked;
use super::triggers::LogSpec;
use crate::driver_error::statement_failed;
use crate::partition_members::Members;
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::error::CentreError;

/// How long a download's side task waits for a lock; writers of the new member wait
/// behind it.
const LOCK_TIMEOUT_MS: u32 = 200;

/// The text of the members of a table, as a subquery in the statement's snapshot.
fn live_members(root: &str) -> String {
    format!(
        "(WITH RECURSIVE member AS (
            SELECT i.inhrelid, i.xmin::text AS since FROM pg_catalog.pg_inherits i
            WHERE i.inhparent = {root}
            UNION ALL
            SELECT i.inhrelid, i.xmin::text FROM member m
            JOIN pg_catalog.pg_inherits i ON i.inhparent = m.inhrelid)
          SELECT coalesce(pg_catalog.string_agg(inhrelid || ':' || since, ',' ORDER BY inhrelid), '')
          FROM member)"
    )
}

/// Of some change logs, an array, those whose table has other members than the registry says.
pub(super) fn changed(logs: &str) -> String {
    format!(
        "SELECT l.id FROM tidewater.change_log l WHERE l.id = ANY({logs}::int4[]) \
         AND l.members IS DISTINCT FROM {}",
        live_members("l.table_oid")
    )
}

/// What has to be done about members that came and went.
pub(super) struct MembersChange {
    /// For people.
    pub(super) description: String,
    pub(super) sql: String,
}

/// What removes the difference between the registry and the catalog; `None` if there is
/// none.
///
/// The rows of members that came are logged, one by one. Which rows left with a member
/// nobody can tell any more: all rows are sent again.
pub(super) fn plan_members(
    spec: &LogSpec,
    id: i32,
    registered: &str,
    catalog: &PostgresCatalog,
) -> Option<MembersChange> {
    let live = catalog.by_oid(spec.table_oid)?.members.as_ref()?;
    let before = Members::parse(registered);
    let (came, gone) = (live.without(&before), before.without(live));
    if came.is_empty() && gone.is_empty() {
        return None;
    }
    let mut sql = String::new();
    let mut names = Vec::new();
    for member in came.oids().filter_map(|oid| catalog.by_oid(oid)) {
        let name = &member.sql_name;
        for trigger in spec.member_triggers(id, name) {
            if !member.own_triggers.iter().any(|it| it.name == trigger.name) {
                sql.push_str(&trigger.create());
            }
        }
        // What is below a member is a member too.
        if member.members.is_none() {
            sql.push_str(&spec.log_rows(id, name));
        }
        names.push(member.title.clone());
    }
    if !gone.is_empty() {
        sql.push_str(&crate::deploy_lock::everything(i64::from(id)));
    }
    sql.push_str(&register(id, live));
    sql.push_str(&tracked::remember(id, came.oids().chain(gone.oids())));
    let mut description = format!("partitions of {}:", spec.title);
    if !names.is_empty() {
        description.push_str(&format!(" track {}", names.join(", ")));
    }
    if !gone.is_empty() {
        description.push_str(" send all rows to remotes again, because some were detached");
    }
    Some(MembersChange { description, sql })
}

/// The statement that makes the registry say what the members are.
pub(super) fn register(id: i32, live: &Members) -> String {
    let text = literal(&live.text()).unwrap_or_default();
    format!("UPDATE tidewater.change_log SET members = {text} WHERE id = {id};\n")
}

/// Settles, for a download that found a difference, the members of these logs.
///
/// Nobody may wait long for it: if a member is locked, or belongs to somebody who gives us
/// no right to it, the error says so, and the table goes whole.
pub(super) async fn adopt(
    connection: &mut PostgresConnection,
    logs: &[&LogSpec],
) -> Result<(), CentreError> {
    connection.enter().await?;
    let adopted = try_adopt(connection, logs).await;
    connection.leave(adopted).await
}

async fn try_adopt(
    connection: &mut PostgresConnection,
    logs: &[&LogSpec],
) -> Result<(), CentreError> {
    let error = |error| statement_failed("tracking new partitions")(error);
    crate::deploy_lock::begin_alone(connection, LOCK_TIMEOUT_MS).await?;
    let client = connection.client();
    // Under the lock: another server may have done it meanwhile.
    let catalog = PostgresCatalog::read(client).await?;
    let registry = "SELECT id, coalesce(members, '') FROM tidewater.change_log \
                    WHERE table_oid = $1 AND partition_columns = $2";
    for spec in logs {
        let row = client
            .query_opt(registry, &[&spec.table_oid, &spec.partition])
            .await;
        let Some(row) = row.map_err(error)? else {
            continue;
        };
        if let Some(change) = plan_members(spec, row.get(0), row.get(1), &catalog) {
            tracing::info!(change = change.description, "partitions changed");
            client.batch_execute(&change.sql).await.map_err(error)?;
        }
    }
    connection.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_apart_by_table_and_by_when_they_came() {
        let before = Members::parse("10:700,11:700,12:700");
        let now = Members::parse("10:700,12:731,13:732");
        assert_eq!(Members::parse(&now.text()), now);
        assert_eq!(now.without(&before).text(), "12:731,13:732");
        assert_eq!(before.without(&now).text(), "11:700,12:700");
        assert_eq!(now.kept(&before).text(), "10:700");
        assert!(Members::parse("").is_empty());
    }
}
