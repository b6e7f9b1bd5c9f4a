//! Transactions of the application's that go up one by one, where the publication says so.
//!
//! SQLite tells no trigger which transaction it runs in. So the application says where one ends,
//! with `INSERT INTO tidewater_transaction DEFAULT VALUES` as its last statement: a generation ends
//! with it. What is not ended so belongs to the one that follows, or goes up with the sync that
//! finds it.
//!
//! Each generation is an upload, the oldest first; all but the last go up in sessions of their own
//! that only upload. Generations go by two: what was refused and is sent again is a transaction of
//! its own, in the room before the oldest one that waits.

use rusqlite::Connection;
use tidewater_protocol::{PublicationSchema, Table};

use super::changes::PARKED;
use super::refused::{self, linked_refusals};
use super::row::read_keys;
use super::tables::{QuotedNames, TABLES_AT_ONCE, change_table};
use super::{CompareDue, SubscriptionState, changes, quote};
use crate::error::{ErrorContext, RemoteError};

/// From one generation to the next.
pub(crate) const STEP: i64 = 2;

const DOING: &str = "looking for transactions to upload";

/// What the next upload of a subscription is.
pub(super) struct NextUpload {
    pub(super) generation: i64,
    /// The refused changes that are sent again with it.
    pub(super) again: Vec<i64>,
}

impl SubscriptionState {
    /// Whether transactions go up one by one.
    pub(crate) fn is_transactional(&self) -> bool {
        self.schema.as_ref().is_some_and(|it| it.transactional)
    }
}

/// The oldest generation after this one of which anything is pending.
pub(super) fn oldest(
    connection: &Connection,
    schema: &PublicationSchema,
    after: i64,
) -> Result<Option<i64>, RemoteError> {
    let tables = schema.tables.iter().filter(|it| it.direction.uploads());
    let tables: Vec<&Table> = tables.collect();
    let mut oldest: Option<i64> = None;
    for tables in tables.chunks(TABLES_AT_ONCE) {
        let sql = quote::list(tables, " UNION ALL ", |table| {
            let change = quote::name(&change_table(&table.name));
            format!("SELECT min(generation) AS g FROM {change} WHERE generation > ?1")
        });
        let found: Option<i64> = connection
            .prepare_cached(&format!("SELECT min(g) FROM ({sql})"))
            .and_then(|mut statement| statement.query_row([after], |row| row.get(0)))
            .doing(DOING)?;
        oldest = oldest.into_iter().chain(found).min();
    }
    Ok(oldest)
}

/// What is taken next: a group of refused changes that wait for another try, else the oldest
/// transaction. If it takes along what was refused, and later transactions have taken over some of
/// that, it is one with all up to the last of these: what they were made from is whole then.
pub(super) fn next(
    connection: &Connection,
    subscription: &SubscriptionState,
    schema: &PublicationSchema,
) -> Result<NextUpload, RemoteError> {
    let (mut generation, mut again) = (subscription.generation, Vec::new());
    if subscription.any_refused {
        again = linked_refusals::first_waiting(connection, subscription)?;
    }
    if let Some(oldest) = oldest(connection, schema, PARKED)? {
        generation = oldest;
        while again.is_empty()
            && subscription.any_refused
            && let Some(last) =
                linked_refusals::last_taken_over(connection, subscription, generation)?
        {
            unite(connection, schema, (generation - 1, last))?;
            generation = last;
        }
    }
    if !again.is_empty() {
        generation -= 1;
    }
    Ok(NextUpload { generation, again })
}

/// Whether anything waits behind what was just taken as `taken`.
pub(super) fn waits(
    connection: &Connection,
    subscription: &SubscriptionState,
    schema: &PublicationSchema,
    taken: i64,
) -> Result<bool, RemoteError> {
    if oldest(connection, schema, taken)?.is_some() {
        return Ok(true);
    }
    let publication = &subscription.publication;
    Ok(subscription.any_refused && refused::wait_for_another_try(connection, publication)?)
}

/// Whether all that is pending has to be one transaction: what belongs to which is told by what
/// rows were before, and that is not known, or changes.
pub(super) fn has_to_be_one(subscription: &SubscriptionState, is_untracked: bool) -> bool {
    // That the server wants to be sure says nothing against what is known here.
    let is_unknown = subscription.compare_due > CompareDue::Verify || is_untracked;
    subscription.is_transactional() && (is_unknown || subscription.giving.is_some())
}

/// Makes one transaction of all that waits, and of what is not ended yet.
pub(super) fn make_one(
    connection: &Connection,
    subscription: &SubscriptionState,
    schema: &PublicationSchema,
) -> Result<(), RemoteError> {
    let taken = subscription.taken_generation.unwrap_or(PARKED);
    unite(connection, schema, (taken, subscription.generation))
}

/// Makes one transaction, the last, of those after the one and up to the other.
pub(super) fn unite(
    connection: &Connection,
    schema: &PublicationSchema,
    (after, last): (i64, i64),
) -> Result<(), RemoteError> {
    for table in schema.tables.iter().filter(|it| it.direction.uploads()) {
        let names = QuotedNames::for_table(table);
        let waiting: Vec<i64> = connection
            .prepare_cached(&format!(
                "SELECT DISTINCT generation FROM {} WHERE generation > ?1 AND generation < ?2 \
                 ORDER BY generation DESC",
                names.change
            ))
            .and_then(|mut statement| {
                let found = statement.query_map([after, last], |row| row.get(0))?;
                found.collect()
            })
            .doing(DOING)?;
        // The newest first: what moves is always older than what it meets.
        for generation in waiting {
            let sql = format!(
                "SELECT {} FROM {} WHERE generation = ?1",
                names.change_key.join(", "),
                names.change
            );
            let keys = read_keys(connection, &sql, &[&generation], table).doing(DOING)?;
            for key in &keys {
                changes::move_to(connection, &names, key, generation, last).doing(DOING)?;
            }
        }
    }
    Ok(())
}
