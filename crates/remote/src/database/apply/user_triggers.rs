//! The application's own triggers during an apply.
//!
//! A trigger that writes a synced table or the outbox is off: its effects happened where the row
//! was first written, and arrive as rows. One that writes only other tables (full-text indexes, local
//! audit) fires. When no synced table has a trigger of the application, which is usual,
//! nothing needs to be told apart and no trigger of any kind is on.
//!
//! The triggers of a centre in the same file, which is then a branch's, count as the application's:
//! they write only its change logs, so they fire, and devices hear of what came from headquarters.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode};
use tidewater_protocol::PublicationSchema;

use super::dependents;
use crate::database::layout::is_own_trigger;
use crate::database::tables::QuotedNames;
use crate::database::{SubscriptionState, quote, triggers};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "switching triggers off";

/// What was done to the triggers, and how to undo it.
#[derive(Debug, Default)]
pub(super) struct UserTriggers {
    switched: bool,
    /// Tracking triggers were dropped.
    dropped: bool,
    saved: Vec<SavedTrigger>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SavedTrigger {
    /// The order in which they were made, which is the order in which they run.
    position: i64,
    name: String,
    table: String,
    sql: String,
}

impl UserTriggers {
    /// Makes sure that nothing but harmless triggers of the application will fire. Does its
    /// work once.
    pub(super) fn switch_off(
        &mut self,
        connection: &Connection,
        schemas: &[Arc<PublicationSchema>],
    ) -> Result<(), RemoteError> {
        if self.switched {
            return Ok(());
        }
        self.switched = true;
        if triggers::are_plain(connection).doing(DOING)? {
            return Ok(());
        }
        let all = application_triggers(connection).doing(DOING)?;
        let is_synced = |table: &str| {
            let mut tables = schemas.iter().flat_map(|schema| &schema.tables);
            tables.any(|synced| synced.name.eq_ignore_ascii_case(table))
        };
        if !all.iter().any(|trigger| is_synced(&trigger.table)) {
            return Ok(());
        }
        self.dropped = true;
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true)
            .doing(DOING)?;
        for table in schemas.iter().flat_map(|schema| &schema.tables) {
            triggers::drop_table_triggers(connection, &table.name)?;
        }
        let writers = writers(connection, schemas, &all, &is_synced)?;
        for trigger in all.into_iter().filter(|each| writers.contains(&each.name)) {
            self.save(connection, trigger).doing(DOING)?;
        }
        Ok(())
    }

    /// Sets aside the triggers of a table that is about to be rebuilt.
    pub(super) fn save_table(
        &mut self,
        connection: &Connection,
        table: &str,
    ) -> rusqlite::Result<()> {
        for trigger in application_triggers(connection)? {
            if trigger.table.eq_ignore_ascii_case(table) {
                self.save(connection, trigger)?;
            }
        }
        Ok(())
    }

    fn save(&mut self, connection: &Connection, trigger: SavedTrigger) -> rusqlite::Result<()> {
        connection.execute_batch(&format!("DROP TRIGGER {}", quote::name(&trigger.name)))?;
        self.saved.push(trigger);
        Ok(())
    }

    /// Whether tracking triggers have to be made again.
    pub(super) fn were_dropped(&self) -> bool {
        self.dropped
    }

    /// Makes the saved triggers again, word for word; returns those that a new schema made
    /// impossible. `columns_changed`: a trigger may name a column that is gone. SQLite only
    /// notices when it fires, and then every write of the application would fail.
    pub(super) fn restore(
        &mut self,
        connection: &Connection,
        columns_changed: bool,
    ) -> Result<Vec<String>, RemoteError> {
        self.saved.sort_by_key(|trigger| trigger.position);
        let mut lost = Vec::new();
        for trigger in self.saved.drain(..) {
            if let Err(error) = connection.execute_batch(&trigger.sql) {
                if !is_impossible(&error) {
                    return Err(RemoteError::sqlite("restoring a trigger", error));
                }
                lost.push(trigger.sql);
            } else if columns_changed
                && dependents::lacks_column(connection, &trigger.table)
                    .doing("restoring a trigger")?
            {
                let drop = format!("DROP TRIGGER {}", quote::name(&trigger.name));
                connection
                    .execute_batch(&drop)
                    .doing("restoring a trigger")?;
                lost.push(trigger.sql);
            }
        }
        Ok(lost)
    }
}

/// Writes rows outside of an apply, in the caller's transaction, with the triggers on that
/// fire in one. If tracking triggers are missing, all are off: the next sync has to find them
/// as they are now.
pub(in crate::database) fn fire_harmless_triggers<T>(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
    write: impl FnOnce() -> Result<T, RemoteError>,
) -> Result<T, RemoteError> {
    if !tracking_is_in_order(connection, subscriptions)? {
        return write();
    }
    let schemas = subscriptions.iter().filter_map(|it| it.schema.clone());
    let schemas: Vec<_> = schemas.collect();
    let mut user_triggers = UserTriggers::default();
    let written = user_triggers
        .switch_off(connection, &schemas)
        .and_then(|()| write());
    // Cannot fail: it only sets a flag of the connection.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false);
    let written = written?;
    if user_triggers.were_dropped() {
        user_triggers.restore(connection, false)?;
        triggers::put_back(connection, subscriptions)?;
    }
    Ok(written)
}

/// Looks without leaving a trace.
fn tracking_is_in_order(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
) -> Result<bool, RemoteError> {
    if triggers::are_checked(connection)? {
        return Ok(true);
    }
    connection.execute_batch("SAVEPOINT looking").doing(DOING)?;
    let untracked = triggers::ensure(connection, subscriptions);
    connection
        .execute_batch("ROLLBACK TO looking; RELEASE looking")
        .doing(DOING)?;
    Ok(untracked?.is_empty())
}

fn application_triggers(connection: &Connection) -> rusqlite::Result<Vec<SavedTrigger>> {
    connection
        .prepare_cached(
            "SELECT rowid, name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' \
             ORDER BY rowid",
        )?
        .query_map([], |row| {
            Ok(SavedTrigger {
                position: row.get(0)?,
                name: row.get(1)?,
                table: row.get(2)?,
                sql: row.get(3)?,
            })
        })?
        .filter(|trigger| !matches!(trigger, Ok(trigger) if is_own_trigger(&trigger.name)))
        .collect()
}

/// The names of the triggers that write a synced table, directly or as the trigger of a
/// trigger. SQLite itself tells: compiling a statement compiles everything that it fires, and
/// the authorizer hears who wants to write what.
fn writers(
    connection: &Connection,
    schemas: &[Arc<PublicationSchema>],
    all: &[SavedTrigger],
    is_synced: &dyn Fn(&str) -> bool,
) -> Result<BTreeSet<String>, RemoteError> {
    let heard: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let listener = Arc::clone(&heard);
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        let written = match context.action {
            AuthAction::Insert { table_name }
            | AuthAction::Delete { table_name }
            | AuthAction::Update { table_name, .. } => Some(table_name),
            _ => None,
        };
        if let (Some(table), Some(trigger)) = (written, context.accessor)
            && let Ok(mut heard) = listener.lock()
        {
            heard.push((trigger.to_owned(), table.to_owned()));
        }
        Authorization::Allow
    }));
    let mut names = BTreeSet::new();
    for table in schemas.iter().flat_map(|schema| &schema.tables) {
        let own = |trigger: &&SavedTrigger| trigger.table.eq_ignore_ascii_case(&table.name);
        if !all.iter().any(|trigger| own(&trigger)) {
            continue;
        }
        let compiles = statements(&QuotedNames::for_table(table))
            .iter()
            .all(|sql| connection.prepare(sql).is_ok());
        if !compiles {
            // It needs functions or modules that only the application has: it cannot fire here.
            names.extend(all.iter().filter(own).map(|trigger| trigger.name.clone()));
        }
    }
    connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>);
    let heard = heard.lock().map(|heard| heard.clone()).unwrap_or_default();
    // What a row has to do with a call was done where it was first written, too.
    let calls = |table: &str| table.eq_ignore_ascii_case("tidewater_outbox");
    let writing = heard
        .into_iter()
        .filter(|(_, table)| is_synced(table) || calls(table));
    names.extend(writing.map(|(trigger, _)| trigger));
    Ok(names)
}

/// Statements that fire every trigger of a table.
fn statements(names: &QuotedNames) -> [String; 3] {
    let table = &names.table;
    let columns = &names.columns;
    [
        format!(
            "INSERT INTO {table} ({}) VALUES ({})",
            columns.join(", "),
            vec!["?"; columns.len()].join(", ")
        ),
        format!(
            "UPDATE {table} SET {}",
            quote::list(columns, ", ", |column| format!("{column} = ?"))
        ),
        format!("DELETE FROM {table}"),
    ]
}

/// Whether a statement that was fine under the old schema makes no sense under the new one,
/// or its rows break it.
pub(super) fn is_impossible(error: &rusqlite::Error) -> bool {
    // Depending on its features, rusqlite gives no code for SQL that does not compile.
    error
        .sqlite_error_code()
        .is_none_or(|code| matches!(code, ErrorCode::Unknown | ErrorCode::ConstraintViolation))
}
