//! Triggers as they are: which are missing, and which stand where they should not.
//!
//! What they have to be is `triggers`' affair.

use std::collections::HashSet;

use super::catalog::{PostgresCatalog, PostgresTable};
use super::quote::ident;
use super::scope_sources;
use super::triggers::{LogSpec, Trigger};
use crate::partition_members::Members;

/// Triggers that are not there, or cannot fire.
pub(super) struct MissingTriggers {
    /// Where, for people.
    pub(super) table: String,
    pub(super) names: Vec<String>,
    /// What restores them.
    pub(super) sql: String,
}

/// The missing triggers of a log, on its table and on the partitions that are tracked.
/// Those that came since are not missed yet: [`super::members::plan_members`] takes them in.
pub(super) fn missing(
    spec: &LogSpec,
    id: i32,
    registered: Option<&str>,
    catalog: &PostgresCatalog,
) -> Vec<MissingTriggers> {
    let Some(root) = catalog.by_oid(spec.table_oid) else {
        return Vec::new();
    };
    let registered = registered.map(Members::parse);
    let kept = root.members.as_ref().zip(registered);
    let kept = kept.map(|(live, registered)| live.kept(&registered));
    let kept: Vec<&PostgresTable> = kept
        .iter()
        .flat_map(Members::oids)
        .filter_map(|oid| catalog.by_oid(oid))
        .collect();
    let fires = |table: &PostgresTable, name: &str| {
        table.own_triggers.iter().any(|trigger| {
            let enabled = match spec.by_row {
                true => trigger.enabled == 'A',
                false => matches!(trigger.enabled, 'O' | 'A'),
            };
            trigger.name == name && enabled
        })
    };
    let mut missing = Vec::new();
    let mut look = |table: &PostgresTable, triggers: Vec<Trigger>, copies: &[&PostgresTable]| {
        let gone = triggers.iter().filter(|trigger| {
            let copied = copies.iter().all(|it| fires(it, &trigger.name));
            !fires(table, &trigger.name) || (trigger.by_row && !copied)
        });
        let gone: Vec<&Trigger> = gone.collect();
        if !gone.is_empty() {
            let restored = gone.iter().map(|it| it.replace(&table.sql_name));
            missing.push(MissingTriggers {
                table: table.title.clone(),
                sql: restored.collect(),
                names: gone.iter().map(|it| it.name.clone()).collect(),
            });
        }
    };
    look(root, spec.triggers(id), &kept);
    for (oid, trigger) in spec.route_triggers(id) {
        if let Some(above) = catalog.by_oid(oid) {
            look(above, vec![trigger], &[]);
        }
    }
    for member in &kept {
        let triggers = spec.member_triggers(id, &member.sql_name);
        look(member, triggers, &[]);
    }
    missing
}

/// Triggers on tables of which none belongs to `tracked`: they stay on a partition that was
/// detached, and what is written there is nobody's news.
pub(super) fn strays<'a>(
    tracked: &HashSet<u32>,
    catalog: &'a PostgresCatalog,
) -> impl Iterator<Item = (&'a PostgresTable, String)> {
    let tables = catalog.tables.iter();
    let tables = tables.filter(|table| !tracked.contains(&table.oid));
    let tables = tables.map(|table| (table, drops_but(table, scope_sources::TRIGGER)));
    tables.filter(|(_, drops)| !drops.is_empty())
}

/// The statements that remove Tidewater's triggers from a table; copies go with the trigger
/// that they are copies of.
pub(super) fn drops(table: &PostgresTable) -> String {
    drops_but(table, "")
}

/// The same, but for the trigger of this name.
fn drops_but(table: &PostgresTable, kept: &str) -> String {
    let triggers = table.own_triggers.iter();
    let triggers = triggers.filter(|it| !it.cloned && it.name != kept);
    let drop = |name: &str| {
        let table = &table.sql_name;
        format!("DROP TRIGGER IF EXISTS {} ON {table};\n", ident(name))
    };
    triggers.map(|it| drop(&it.name)).collect()
}
