//! The tables that partition queries read: whoever writes them may give users other partitions.
//!
//! Triggers count that something was written, and not what: who holds other partitions now, the
//! queries themselves are asked.

use std::collections::BTreeSet;

use super::catalog::SqliteCatalog;
use super::connection::SqliteConnection;
use super::dialect::PREFIX;
use super::quote;
use tidewater_centre::engine::deployment_step::{DeploymentStep, ScopeSources};
use tidewater_centre::engine::scope_query::ScopeQuery;

const LOCK: &str = "writers wait until it is done";

/// What fires a trigger; behind the table's name it ends the trigger's.
const EVENTS: [&str; 3] = ["insert", "update", "delete"];

/// See [`ChangeTracking::scope_sources`](tidewater_centre::engine::change_tracking::ChangeTracking::scope_sources).
pub(super) fn find(
    connection: &SqliteConnection,
    catalog: &SqliteCatalog,
    queries: &[&ScopeQuery],
) -> rusqlite::Result<ScopeSources> {
    let mut read = BTreeSet::new();
    for query in queries {
        read_by(connection, query, &mut read)?;
    }
    let in_place = in_place(connection)?;
    let mut sources = ScopeSources::default();
    let mut kept = BTreeSet::new();
    for table in &read {
        if !catalog.infos.iter().any(|it| it.name == *table) {
            sources.warnings.push(format!(
                "{table}: a partition query reads it, and it is no ordinary table: a live device \
                 hears of other partitions by it with its next regular sync"
            ));
            continue;
        }
        let triggers = EVENTS.map(|event| (trigger_name(table, event), trigger(table, event)));
        let missing = triggers.iter().filter(|(name, sql)| {
            let is_it = |it: &ExistingTrigger| it.name == *name && it.sql == *sql;
            !in_place.iter().any(is_it)
        });
        let sql = missing.flat_map(|(name, sql)| {
            let drop = format!("DROP TRIGGER IF EXISTS {}", quote(name));
            [drop, sql.clone()]
        });
        let sql: Vec<String> = sql.collect();
        if !sql.is_empty() {
            let description =
                format!("note when {table} is written to, because a partition query reads it");
            let step = DeploymentStep::sql(description, LOCK.into(), sql);
            sources.steps.push(step.unneeded());
        }
        kept.extend(triggers.map(|(name, _)| name));
    }
    let others = in_place.iter().filter(|it| !kept.contains(&it.name));
    let others: Vec<&ExistingTrigger> = others.collect();
    if !others.is_empty() {
        let description = "remove triggers that note writes to tables which no partition query \
                           reads";
        sources.steps.push(removal(description, &others).unneeded());
    }
    Ok(sources)
}

/// What removes every trace.
pub(super) fn traces(connection: &SqliteConnection) -> rusqlite::Result<Option<DeploymentStep>> {
    let found = in_place(connection)?;
    let found: Vec<&ExistingTrigger> = found.iter().collect();
    let description = "drop the triggers on tables that partition queries read";
    Ok((!found.is_empty()).then(|| removal(description, &found)))
}

fn removal(description: &str, found: &[&ExistingTrigger]) -> DeploymentStep {
    let drops = found
        .iter()
        .map(|it| format!("DROP TRIGGER {}", quote(&it.name)));
    DeploymentStep::sql(description.to_owned(), LOCK.into(), drops.collect())
}

/// Adds the tables that a query reads: SQLite compiles it to a program that opens them, or their
/// indexes.
fn read_by(
    connection: &SqliteConnection,
    query: &ScopeQuery,
    read: &mut BTreeSet<String>,
) -> rusqlite::Result<()> {
    let mut explain = connection.prepare(&format!("EXPLAIN {}", query.sql))?;
    let mut table_of = connection.prepare_cached(
        "SELECT tbl_name FROM sqlite_schema WHERE rootpage = ?1 AND type IN ('table', 'index')
         AND tbl_name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let nothing = vec![rusqlite::types::Null; query.parameters.len()];
    let mut program = explain.query(rusqlite::params_from_iter(nothing))?;
    while let Some(step) = program.next()? {
        let (code, root, database): (String, i64, i64) = (step.get(1)?, step.get(3)?, step.get(4)?);
        if database == 0 && matches!(&*code, "OpenRead" | "ReopenIdx") {
            let mut tables = table_of.query([root])?;
            while let Some(table) = tables.next()? {
                read.insert(table.get(0)?);
            }
        }
    }
    Ok(())
}

/// A trigger that is there.
struct ExistingTrigger {
    name: String,
    sql: String,
}

fn in_place(connection: &SqliteConnection) -> rusqlite::Result<Vec<ExistingTrigger>> {
    let mut statement = connection.prepare_cached(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name GLOB ?1 || '*'",
    )?;
    let found = statement.query_map([prefix()], |row| {
        Ok(ExistingTrigger {
            name: row.get(0)?,
            sql: row.get(1)?,
        })
    })?;
    found.collect()
}

fn prefix() -> String {
    format!("{PREFIX}scope_")
}

fn trigger_name(table: &str, event: &str) -> String {
    format!("{}{table}_{event}", prefix())
}

/// Rows that `REPLACE` displaces fire no trigger, but the row that displaces them does.
fn trigger(table: &str, event: &str) -> String {
    format!(
        "CREATE TRIGGER {} AFTER {} ON {} FOR EACH ROW BEGIN \
         UPDATE {PREFIX}scope_change SET version = version + 1; END",
        quote(&trigger_name(table, event)),
        event.to_uppercase(),
        quote(table)
    )
}
