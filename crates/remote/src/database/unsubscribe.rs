//! Ending a subscription: its tables leave the file, for they are the centre's.
//!
//! What the subscription was to the server stays known: its number, its last upload, and what was
//! kept of earlier ones. Subscribed to again, it goes on from there, and begins with a first
//! download.

use rusqlite::{Connection, OptionalExtension, params};
use tidewater_protocol::Table;

use super::apply::{ApplySummary, keep_values};
use super::changes::PARKED;
use super::subscription::{leave_out_dropped, load_all};
use super::tables::{QuotedNames, name_is_taken};
use super::{
    CompareDue, RemoteDatabase, SubscriptionState, compare, inbox, outbox, quote, triggers,
};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "ending a subscription";

/// Why the values of a change are among the refused.
const LEFT: &str = "the remote does not subscribe to the publication any more";
const DROPPED: &str = "the server has no such publication any more";

/// A table that has left the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftTable {
    /// The table.
    pub table: String,
    /// How many rows it had.
    pub rows: u64,
    /// How many rows had pending changes, which are gone.
    pub discarded: u64,
    /// How many rows had pending changes that nobody takes any more: their values are among the
    /// refused ones.
    pub refused: u64,
}

impl RemoteDatabase {
    /// Whether something of a subscription waits for a sync: changes, an upload without its
    /// result, a compare.
    ///
    /// # Errors
    /// There is no such subscription, or SQLite failed.
    pub fn has_pending(&mut self, publication: &str) -> Result<bool, RemoteError> {
        let transaction = self.write(DOING)?;
        let subscriptions = checked(&transaction)?;
        let found = has_pending(&transaction, find(&subscriptions, publication)?)?;
        transaction.commit().doing(DOING)?;
        Ok(found)
    }

    /// Whether the server has no publication of this name any more, as far as it was asked.
    ///
    /// # Errors
    /// There is no such subscription, or SQLite failed.
    pub fn is_dropped(&self, publication: &str) -> Result<bool, RemoteError> {
        let subscriptions = load_all(&self.connection)?;
        Ok(find(&subscriptions, publication)?.is_dropped)
    }

    /// Notes that the server has no such publication any more; whether the remote has one that has
    /// synced. Its tables stay, and others sync without it, until it is subscribed to again.
    ///
    /// # Errors
    /// SQLite failed.
    pub(crate) fn note_dropped(&mut self, publication: &str) -> Result<bool, RemoteError> {
        let sql = "UPDATE tidewater_subscription SET is_dropped = 1 \
                   WHERE publication = ?1 AND schema IS NOT NULL";
        let noted = self.connection.execute(sql, [publication]);
        Ok(noted.doing("noting that a publication is gone")? > 0)
    }

    /// Whether a sync has something to bring up: changes, or what is in the outbox and was not tried
    /// yet; or something to ask for that was not asked for yet.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn has_something_to_upload(&self) -> Result<bool, RemoteError> {
        let mut subscriptions = load_all(&self.connection)?;
        leave_out_dropped(&mut subscriptions);
        for subscription in subscriptions {
            if has_pending(&self.connection, &subscription)? {
                return Ok(true);
            }
        }
        Ok(outbox::has_untried(&self.connection)? || inbox::has_new_interest(&self.connection)?)
    }

    /// A number that changes whenever another connection commits to the file.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn version(&self) -> Result<i64, RemoteError> {
        super::data_version(&self.connection).doing("looking for changes")
    }

    /// Ends a subscription. Its tables go, with whatever the application has made on them. What of
    /// it was refused stays listed, with its values. Pending changes go only if they are to be
    /// discarded; where the server has no such publication any more, they are listed as refused.
    ///
    /// # Errors
    /// There is no such subscription, something of it is pending, or SQLite failed.
    pub fn unsubscribe(
        &mut self,
        publication: &str,
        discard_pending: bool,
    ) -> Result<Vec<LeftTable>, RemoteError> {
        let transaction = self.write(DOING)?;
        let subscriptions = match discard_pending {
            true => load_all(&transaction)?,
            false => checked(&transaction)?,
        };
        let subscription = find(&subscriptions, publication)?;
        let refuses = subscription.is_dropped && !discard_pending;
        if !discard_pending && !refuses && has_pending(&transaction, subscription)? {
            return Err(RemoteError::Usage {
                what: format!("something of {publication:?} is not uploaded yet"),
                hint: "sync, then try again; or give it up with --discard-pending".into(),
            });
        }
        let mut left = Vec::new();
        for table in subscription.schema.iter().flat_map(|it| &it.tables) {
            left.push(drop_table(&transaction, subscription, table, refuses)?);
        }
        remember(&transaction, subscription.id).doing(DOING)?;
        transaction.commit().doing(DOING)?;
        Ok(left)
    }
}

fn find<'s>(
    subscriptions: &'s [SubscriptionState],
    publication: &str,
) -> Result<&'s SubscriptionState, RemoteError> {
    let found = subscriptions
        .iter()
        .find(|it| it.publication == publication);
    found.ok_or_else(|| {
        let known = quote::list(subscriptions, ", ", |it| format!("{:?}", it.publication));
        RemoteError::Usage {
            what: format!("the remote does not subscribe to {publication:?}"),
            hint: match known.is_empty() {
                true => "it subscribes to nothing".into(),
                false => format!("it subscribes to {known}"),
            },
        }
    })
}

/// The subscriptions, once it is noted which tables have lost their triggers: nobody knows what was
/// done to these.
fn checked(connection: &Connection) -> Result<Vec<SubscriptionState>, RemoteError> {
    let subscriptions = load_all(connection)?;
    if triggers::are_checked(connection)? {
        return Ok(subscriptions);
    }
    let untracked = triggers::ensure(connection, &subscriptions)?;
    compare::note_untracked(connection, &untracked).doing(DOING)?;
    load_all(connection)
}

fn has_pending(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> Result<bool, RemoteError> {
    if subscription.taken.is_some()
        || subscription.giving.is_some()
        || subscription.compare_due != CompareDue::No
    {
        return Ok(true);
    }
    for table in subscription.schema.iter().flat_map(|it| &it.tables) {
        if compare::is_untracked(connection, &table.name).doing(DOING)?
            || pending(connection, table).doing(DOING)? > 0
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How many rows of a table have pending changes.
fn pending(connection: &Connection, table: &Table) -> rusqlite::Result<u64> {
    let names = QuotedNames::for_table(table);
    let sql = format!(
        "SELECT count(*) FROM (SELECT DISTINCT {} FROM {} WHERE generation > {PARKED})",
        names.change_key.join(", "),
        names.change
    );
    let count: Option<i64> = connection
        .query_row(&sql, [], |row| row.get(0))
        .optional()?;
    Ok(count.unwrap_or_default().unsigned_abs())
}

fn drop_table(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    refuses: bool,
) -> Result<LeftTable, RemoteError> {
    let names = QuotedNames::for_table(table);
    let pending = pending(connection, table).doing(DOING)?;
    let mut rows = 0;
    // A table that was dropped or taken apart has nothing more to tell.
    if name_is_taken(connection, &table.name)? && triggers::lack(connection, table)?.is_none() {
        let forget = || -> rusqlite::Result<i64> {
            let mut told = ApplySummary::default();
            let reason = match refuses {
                true => DROPPED,
                false => {
                    let sql = format!("DELETE FROM {} WHERE generation > {PARKED}", names.change);
                    connection.execute_batch(&sql)?;
                    LEFT
                }
            };
            keep_values(connection, subscription, table, reason, &mut told)?;
            let count = format!("SELECT count(*) FROM {}", names.table);
            connection.query_row(&count, [], |row| row.get(0))
        };
        rows = forget().doing(DOING)?.unsigned_abs();
    }
    let forget = || -> rusqlite::Result<()> {
        connection.execute_batch(&format!(
            "DROP TABLE IF EXISTS {}; DROP TABLE IF EXISTS {}; DROP TABLE IF EXISTS {};",
            names.table, names.change, names.rekeyed
        ))?;
        compare::forget_untracked(connection, &table.name)?;
        for internal in ["tidewater_stale", "tidewater_gave_way"] {
            let sql = format!("DELETE FROM {internal} WHERE table_name = ?1");
            connection.execute(&sql, [&table.name])?;
        }
        Ok(())
    };
    forget().doing(DOING)?;
    Ok(LeftTable {
        table: table.name.clone(),
        rows,
        discarded: if refuses { 0 } else { pending },
        refused: if refuses { pending } else { 0 },
    })
}

/// Ends a subscription, and remembers what it is to the server.
pub(super) fn remember(connection: &Connection, id: i64) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO tidewater_unsubscribed (id, publication, sequence, upload_id) \
         SELECT id, publication, sequence, upload_id FROM tidewater_subscription WHERE id = ?1",
        [id],
    )?;
    connection.execute(
        "DELETE FROM tidewater_parameter WHERE publication = \
         (SELECT publication FROM tidewater_subscription WHERE id = ?1)",
        [id],
    )?;
    let sql = "DELETE FROM tidewater_identity_block WHERE subscription = ?1";
    connection.execute(sql, [id])?;
    let sql = "DELETE FROM tidewater_subscription WHERE id = ?1";
    connection.execute(sql, [id]).map(drop)
}

/// Subscribes to a publication, unless the remote does already; one that it had goes on from where
/// it was.
pub(super) fn subscribe(connection: &Connection, publication: &str) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO tidewater_subscription (id, publication, sequence, upload_id) \
         SELECT coalesce(u.id, 1 + max(\
           coalesce((SELECT max(id) FROM tidewater_subscription), 0), \
           coalesce((SELECT max(id) FROM tidewater_unsubscribed), 0))), \
         ?1, coalesce(u.sequence, 0), u.upload_id \
         FROM (SELECT 1) LEFT JOIN tidewater_unsubscribed AS u ON u.publication = ?1 \
         WHERE NOT EXISTS (SELECT 1 FROM tidewater_subscription WHERE publication = ?1)",
        params![publication],
    )?;
    // The server may have it again.
    let sql = "UPDATE tidewater_subscription SET is_dropped = 0 WHERE publication = ?1";
    connection.execute(sql, [publication])?;
    let sql = "DELETE FROM tidewater_unsubscribed WHERE publication = ?1";
    connection.execute(sql, [publication]).map(drop)
}

/// Under another id of the remote nothing of former subscriptions holds any more.
pub(super) fn start_over(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE tidewater_unsubscribed SET sequence = 0, upload_id = NULL";
    connection.execute(sql, []).map(drop)
}
