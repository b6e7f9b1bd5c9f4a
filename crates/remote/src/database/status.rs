//! What a remote can tell about itself without a server.

use rusqlite::Connection;
use serde::Serialize;
use tidewater_protocol::{Datum, PublicationSchema, Table, Value};

use super::apply::referring_row;
use super::changes::PARKED;
use super::stale_rows::stale_keys;
use super::subscription::load_all;
use super::tables::QuotedNames;
use super::{
    CompareDue, RemoteDatabase, SubscriptionState, changes, conflicts, inbox, outbox, quote, row,
};
use crate::error::{ErrorContext, RemoteError};

/// The state of a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemoteStatus {
    /// The remote's id, once it has one.
    pub remote_id: Option<String>,
    /// What people call the device; empty if nobody has named it.
    pub device_name: String,
    /// The server's URL.
    pub server: String,
    /// The user.
    pub user: String,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// All refused changes, also those of tables that the remote does not have any more.
    #[serde(skip)]
    pub refused: u64,
    /// Conflicts that are listed.
    pub conflicts: u64,
    /// What is in the outbox.
    pub outbox: OutboxStatus,
    /// Rows of the inbox that the application has not deleted yet.
    pub inbox: u64,
}

/// The state of the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutboxStatus {
    /// Rows that wait for a sync.
    pub pending: u64,
    /// Rows that came to nothing.
    pub failed: u64,
}

/// The state of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubscriptionStatus {
    /// The publication.
    pub publication: String,
    /// When it last synced, in milliseconds since 1970.
    pub last_sync_at_ms: Option<i64>,
    /// The last acknowledged upload.
    pub sequence: u64,
    /// Whether an upload was taken whose acknowledgement is missing.
    pub upload_in_flight: bool,
    /// Whether the next sync compares the tables with the centre.
    pub compare_due: bool,
    /// Acknowledged uploads that are kept for a centre that is restored.
    pub kept: u64,
    /// Those among them that go up again.
    pub giving: u64,
    /// Its tables.
    pub tables: Vec<TableStatus>,
}

/// The state of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableStatus {
    /// The table.
    pub table: String,
    /// Its rows.
    pub rows: u64,
    /// Keys with changes that the next sync uploads, or that are on their way.
    pub pending: u64,
    /// Changes that the centre refused.
    pub refused: u64,
    /// Rows that the next sync asks for again.
    pub stale: u64,
}

impl RemoteDatabase {
    /// The state of the remote.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn status(&self) -> Result<RemoteStatus, RemoteError> {
        let account = self.account()?;
        let doing = "reading the state of the remote";
        // One snapshot for all the counts.
        let snapshot = self.connection.unchecked_transaction().doing(doing)?;
        let subscriptions = load_all(&snapshot)?;
        let subscriptions = subscriptions
            .iter()
            .map(|subscription| subscription_status(&snapshot, subscription))
            .collect::<rusqlite::Result<_>>()
            .doing(doing)?;
        let refused: i64 = snapshot
            .query_row("SELECT count(*) FROM tidewater_refused", [], |row| {
                row.get(0)
            })
            .doing(doing)?;
        let outbox = OutboxStatus {
            pending: outbox::waiting(&snapshot).doing(doing)?,
            failed: outbox::failed(&snapshot).doing(doing)?,
        };
        let inbox = inbox::count(&snapshot).doing(doing)?;
        let conflicts = conflicts::count(&snapshot).doing(doing)?;
        Ok(RemoteStatus {
            conflicts,
            outbox,
            inbox,
            refused: refused.unsigned_abs(),
            remote_id: account.remote_id.map(|id| id.to_string()),
            device_name: account.device_name,
            server: account.server,
            user: account.user,
            subscriptions,
        })
    }
}

fn subscription_status(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> rusqlite::Result<SubscriptionStatus> {
    let last_sync_at_ms = connection.query_row(
        "SELECT last_sync_at FROM tidewater_subscription WHERE id = ?1",
        [subscription.id],
        |row| row.get(0),
    )?;
    let kept = |giving: &str| -> rusqlite::Result<u64> {
        // Of a large upload there may be several parts.
        let sql = format!(
            "SELECT count(DISTINCT upload_id) FROM tidewater_kept WHERE subscription = ?1{giving}"
        );
        connection.query_row(&sql, [subscription.id], |row| {
            Ok(row.get::<_, i64>(0)?.unsigned_abs())
        })
    };
    let (kept, giving) = (kept("")?, kept(" AND giving = 1")?);
    let tables = subscription
        .schema
        .iter()
        .flat_map(|schema| &schema.tables)
        .map(|table| table_status(connection, table))
        .collect::<rusqlite::Result<_>>()?;
    Ok(SubscriptionStatus {
        publication: subscription.publication.clone(),
        last_sync_at_ms,
        sequence: subscription.sequence,
        upload_in_flight: subscription.taken.is_some(),
        compare_due: subscription.compare_due != CompareDue::No,
        kept,
        giving,
        tables,
    })
}

/// The query for how many keys of a table have changes that wait.
fn pending(names: &QuotedNames) -> String {
    format!(
        "SELECT count(*) FROM (SELECT DISTINCT {} FROM {} WHERE generation > {PARKED})",
        names.change_key.join(", "),
        names.change
    )
}

fn table_status(connection: &Connection, table: &Table) -> rusqlite::Result<TableStatus> {
    let names = QuotedNames::for_table(table);
    let name = quote::text(&table.name);
    let count = |sql: &str| -> rusqlite::Result<u64> {
        connection.query_row(sql, [], |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()))
    };
    Ok(TableStatus {
        table: table.name.clone(),
        rows: count(&format!("SELECT count(*) FROM {}", names.table))?,
        pending: count(&pending(&names))?,
        refused: count(&format!(
            "SELECT count(*) FROM tidewater_refused WHERE table_name = {name}"
        ))?,
        stale: count(&format!(
            "SELECT count(*) FROM tidewater_stale WHERE table_name = {name}"
        ))?,
    })
}

/// A row that the centre has otherwise, or not any more, and that something here keeps as it is.
/// It is asked for again when that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StaleRow {
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// What keeps it.
    pub reason: String,
}

const CHANGED: &str = "it was changed here too, and the change has not gone up";
const REFUSED: &str = "a change of it is refused";
const KEPT: &str =
    "it arrives with the next sync, unless something of the application keeps it out";

impl RemoteDatabase {
    /// How many keys have changes that wait for a sync, and how many changes are refused. What it
    /// costs depends on them and not on the size of the tables.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn waiting(&self) -> Result<(u64, u64), RemoteError> {
        let count = |sql: &str| -> Result<u64, RemoteError> {
            let counted = self.connection.prepare_cached(sql);
            let counted = counted.and_then(|mut it| it.query_row([], |row| row.get::<_, i64>(0)));
            counted
                .map(i64::unsigned_abs)
                .doing("counting what waits for a sync")
        };
        let mut waiting = 0;
        for subscription in self.subscriptions()? {
            for table in subscription.schema.iter().flat_map(|it| &it.tables) {
                waiting += count(&pending(&QuotedNames::for_table(table)))?;
            }
        }
        Ok((waiting, count("SELECT count(*) FROM tidewater_refused")?))
    }

    /// How many rows are stale, and the first so many of them.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn stale(&self, at_most: usize) -> Result<(u64, Vec<StaleRow>), RemoteError> {
        let doing = "reading stale rows";
        let mut count = 0;
        let mut rows = Vec::new();
        let any = self
            .connection
            .prepare_cached("SELECT 1 FROM tidewater_stale");
        if !any.and_then(|mut any| any.exists([])).doing(doing)? {
            return Ok((count, rows));
        }
        for subscription in self.subscriptions()? {
            let Some(schema) = &subscription.schema else {
                continue;
            };
            for table in &schema.tables {
                let keys = stale_keys(&self.connection, table).doing(doing)?;
                count += keys.len() as u64;
                for packed in keys.iter().take(at_most - rows.len()) {
                    let Ok(key) = row::unpack_key(&row::key_types(table), packed) else {
                        continue;
                    };
                    let owned: Vec<Value> = key.iter().map(Datum::to_value).collect();
                    rows.push(StaleRow {
                        table: table.name.clone(),
                        key: row::readable_key(&key),
                        reason: keeps(&self.connection, schema, table, &owned).doing(doing)?,
                    });
                }
            }
        }
        Ok((count, rows))
    }
}

/// What keeps a stale row as it is.
fn keeps(
    connection: &Connection,
    schema: &PublicationSchema,
    table: &Table,
    key: &[Value],
) -> rusqlite::Result<String> {
    let names = QuotedNames::for_table(table);
    if changes::later_than(connection, &names, key, PARKED)?.is_some() {
        return Ok(CHANGED.into());
    }
    if changes::has_change(connection, &names, key, PARKED)? {
        return Ok(REFUSED.into());
    }
    if let Some(child) = referring_row(connection, schema, table, key)? {
        let change = match child.is_refused {
            true => "is refused",
            false => "has not gone up",
        };
        let (table, key) = (child.table, child.key);
        return Ok(format!(
            "the row {key} of {table} refers to it, and what was changed of that here {change}"
        ));
    }
    Ok(KEPT.into())
}
