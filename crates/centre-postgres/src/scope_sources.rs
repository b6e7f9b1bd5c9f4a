//! The tables that partition queries read: whoever writes them may give users other partitions.
//!
//! A trigger for each statement notes in `tidewater.scope_change` that something was written, and
//! not what: who holds other partitions now, the queries themselves are asked.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio_postgres::{Row, SimpleQueryMessage};

use super::connection::PostgresConnection;
use super::quote::ident;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::deployment_step::{DeploymentStep, ScopeSources};
use tidewater_centre::engine::scope_query::ScopeQuery;
use tidewater_centre::error::CentreError;

/// The trigger on such a table.
pub(super) const TRIGGER: &str = "tidewater_scope";

/// How PostgreSQL tells the tables that a query reads: views and policies are looked through, and no
/// table is left out for the value of a parameter.
const SETTINGS: &str = "SAVEPOINT tidewater_sources;
  SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_partition_pruning = off;
  SET LOCAL constraint_exclusion = off";

/// The tables `$1`, `$2` (schemas and names) with all partitions of theirs, and those that have the
/// trigger: the name in SQL and for people, whether it is read, whether triggers can see its
/// changes, whether we may make one, whether it has one, and whether that fires.
const SOURCES: &str = "
WITH source AS (
  SELECT c.oid FROM unnest($1::text[], $2::text[]) AS s (schema, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = s.name
  WHERE n.nspname !~ '^pg_' AND n.nspname <> ALL ('{information_schema,tidewater}')),
whole AS (
  SELECT oid FROM source UNION
  SELECT t.relid::oid FROM source,
    LATERAL pg_catalog.pg_partition_tree(pg_catalog.pg_partition_root(source.oid)) AS t),
watched AS (
  SELECT t.tgrelid AS oid, t.tgenabled IN ('O', 'A') AS fires FROM pg_catalog.pg_trigger t
  JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname = 'tidewater' AND p.proname = 'note_scope_change')
SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname),
  CASE WHEN n.nspname = 'public' THEN c.relname::text ELSE n.nspname || '.' || c.relname END,
  s.oid IS NOT NULL, c.relkind IN ('r', 'p'),
  pg_catalog.has_table_privilege(c.oid, 'TRIGGER'),
  w.oid IS NOT NULL, coalesce(w.fires, false)
FROM whole s FULL JOIN watched w ON w.oid = s.oid
JOIN pg_catalog.pg_class c ON c.oid = coalesce(s.oid, w.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 2";

/// See [`ChangeTracking::scope_sources`](tidewater_centre::engine::change_tracking::ChangeTracking::scope_sources).
pub(super) async fn find(
    connection: &mut PostgresConnection,
    queries: &[&ScopeQuery],
) -> Result<ScopeSources, CentreError> {
    let mut read = BTreeSet::new();
    let mut sources = ScopeSources::default();
    for query in queries {
        let unreadable = read_by(connection, query, &mut read).await?;
        sources.warnings.extend(unreadable.map(|why| {
            format!(
                "a partition query cannot be explained ({why}), so that nobody knows what it reads: \
                 a live device hears of other partitions by it with its next regular sync: {}",
                query.inner
            )
        }));
    }
    let (schemas, names): (Vec<String>, Vec<String>) = read.into_iter().unzip();
    let rows = connection
        .client()
        .query(SOURCES, &[&schemas, &names])
        .await;
    let rows = rows.map_err(statement_failed("looking for triggers"))?;
    rows.iter().for_each(|row| plan_table(row, &mut sources));
    Ok(sources)
}

/// What has to be done about a table.
fn plan_table(row: &Row, sources: &mut ScopeSources) {
    let (table, title): (String, String) = (row.get(0), row.get(1));
    let (is_read, can_be_watched, may): (bool, bool, bool) = (row.get(2), row.get(3), row.get(4));
    let (is_watched, fires): (bool, bool) = (row.get(5), row.get(6));
    let lock = format!("SHARE ROW EXCLUSIVE on {title}");
    let drop = format!("DROP TRIGGER IF EXISTS {} ON {table};\n", ident(TRIGGER));
    if is_read && is_watched && fires {
        return;
    }
    if !is_read {
        let description = format!(
            "remove the trigger that notes writes to {title}: no partition query reads the table"
        );
        sources
            .steps
            .push(DeploymentStep::sql(description, lock, vec![drop]).unneeded());
    } else if !can_be_watched || !may {
        let why = match can_be_watched {
            true => "the role that deploys has no TRIGGER privilege on it",
            false => "it is no ordinary table",
        };
        sources.warnings.push(format!(
            "{title}: a partition query reads it, and {why}: a live device hears of other \
             partitions by it with its next regular sync"
        ));
    } else {
        let create = format!(
            "CREATE TRIGGER {} AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION tidewater.note_scope_change();\n",
            ident(TRIGGER)
        );
        let description =
            format!("note when {title} is written to, because a partition query reads it");
        sources
            .steps
            .push(DeploymentStep::sql(description, lock, vec![drop, create]).unneeded());
    }
}

/// Adds the tables that a query reads, by schema and name; says why PostgreSQL does not tell them.
async fn read_by(
    connection: &mut PostgresConnection,
    query: &ScopeQuery,
    read: &mut BTreeSet<(String, String)>,
) -> Result<Option<String>, CentreError> {
    let looking = statement_failed("looking what a partition query reads");
    let list = |word: &str| match query.parameters.len() {
        0 => String::new(),
        count => format!("({})", vec![word; count].join(", ")),
    };
    let (types, nothing) = (list("text"), list("NULL"));
    let inner = &query.inner;
    let client = connection.client();
    client.batch_execute(SETTINGS).await.map_err(&looking)?;
    let prepare = format!("PREPARE tidewater_sources{types} AS {inner}\n");
    client.batch_execute(&prepare).await.map_err(&looking)?;
    let explain = format!("EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE tidewater_sources{nothing}");
    let plan = client.simple_query(&explain).await;
    let undo = "ROLLBACK TO SAVEPOINT tidewater_sources; RELEASE SAVEPOINT tidewater_sources;
        DEALLOCATE tidewater_sources";
    client.batch_execute(undo).await.map_err(&looking)?;
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => match error.as_db_error() {
            Some(refusal) => return Ok(Some(refusal.message().to_owned())),
            None => return Err(looking(error)),
        },
    };
    for message in plan {
        if let SimpleQueryMessage::Row(row) = message
            && let Some(plan) = row.get(0)
        {
            let plan = serde_json::from_str(plan).map_err(|error| CentreError::Internal {
                message: format!("the plan of a partition query cannot be read: {error}"),
            })?;
            collect(&plan, read);
        }
    }
    Ok(None)
}

/// The tables of a plan, at whatever depth.
fn collect(plan: &Value, read: &mut BTreeSet<(String, String)>) {
    match plan {
        Value::Array(plans) => plans.iter().for_each(|it| collect(it, read)),
        Value::Object(node) => {
            let text = |name: &str| node.get(name)?.as_str().map(str::to_owned);
            read.extend(text("Schema").zip(text("Relation Name")));
            node.values().for_each(|it| collect(it, read));
        }
        _ => {}
    }
}
