//! Beginning a sync: restoring the triggers and taking the current generation.
//!
//! Taking is one durable update of the subscription's row. Everything recorded under the
//! generation that was current is then the next upload; what the application changes from
//! now on is recorded under the next.

use rusqlite::{Connection, params};
use tidewater_protocol::{PublicationSchema, Table, UploadId};

use super::changes::PARKED;
use super::outbox;
use super::refused;
use super::row::read_keys;
use super::subscription::{leave_out_dropped, load_all};
use super::tables::{QuotedNames, TABLES_AT_ONCE, change_table};
use super::transactions::{self, STEP};
use super::{
    CompareDue, RemoteDatabase, RowSelection, SubscriptionState, changes, compare, data_version,
    quote, row, triggers,
};
use crate::error::{ErrorContext, RemoteError};
use crate::sync_direction::SyncDirection;

impl RemoteDatabase {
    /// Begins a sync: restores tracking triggers that are missing (their tables are compared
    /// then) and, unless only a download is wanted, takes what is pending as the next upload of
    /// each subscription. What is in the outbox may be executed after that, if nothing is left to
    /// take; `adopts`: what the file has of tables that it has not synced yet is to go up, too.
    /// What was taken before and not acknowledged stays as it is. Nothing is taken while
    /// something is given back, nor between the upload that goes before a compare and the
    /// compare, unless refused changes wait for another try, nor before a compare that tells what
    /// changes of an untracked table were made from and what goes with them.
    ///
    /// # Errors
    /// The file is locked, a synced table is missing, or SQLite failed.
    pub fn begin_sync(
        &mut self,
        direction: SyncDirection,
        adopts: bool,
        new_upload_id: &mut dyn FnMut() -> UploadId,
    ) -> Result<Vec<SubscriptionState>, RemoteError> {
        let compares_next = self.compares_next;
        let doing = "beginning a sync";
        // Most syncs find nothing to take: then nothing is written either.
        let snapshot = self.connection.unchecked_transaction().doing(doing)?;
        let mut subscriptions = load_all(&snapshot)?;
        let seen = data_version(&snapshot).doing(doing)?;
        let in_order = triggers::are_checked(&snapshot)?;
        let mut to_take = false;
        if direction != SyncDirection::DownloadOnly {
            for subscription in &mut subscriptions {
                note_more(&snapshot, subscription)?;
                to_take |= can_take(&snapshot, subscription, direction, compares_next)?
                    || is_scattered(&snapshot, subscription)?;
            }
            to_take |= outbox::has_uncovered(&snapshot)?;
        }
        snapshot.commit().doing(doing)?;
        if in_order && !to_take {
            leave_out_dropped(&mut subscriptions);
            return Ok(subscriptions);
        }
        let transaction = self.write(doing)?;
        let data_version = data_version(&transaction).doing(doing)?;
        // Mostly nobody has written between the look and the lock.
        if data_version != seen {
            subscriptions = load_all(&transaction)?;
        }
        if !triggers::are_checked(&transaction)? {
            let untracked = triggers::ensure(&transaction, &subscriptions)?;
            compare::note_untracked(&transaction, &untracked).doing(doing)?;
            subscriptions = load_all(&transaction)?;
        }
        leave_out_dropped(&mut subscriptions);
        if direction != SyncDirection::DownloadOnly {
            let mut all_taken = true;
            for subscription in &mut subscriptions {
                note_more(&transaction, subscription)?;
                if is_scattered(&transaction, subscription)?
                    && let Some(schema) = &subscription.schema
                {
                    transactions::make_one(&transaction, subscription, schema)?;
                }
                if can_take(&transaction, subscription, direction, compares_next)? {
                    take(&transaction, subscription, new_upload_id())?;
                    subscription.taken_under = (!subscription.more).then_some(data_version);
                    all_taken &= !subscription.more;
                } else {
                    all_taken &= !is_left(&transaction, subscription, adopts)?;
                }
                all_taken &= !has_untracked(&transaction, subscription)?;
            }
            if all_taken {
                outbox::cover(&transaction)?;
            }
        }
        transaction.commit().doing(doing)?;
        Ok(subscriptions)
    }

    /// Takes an upload back of which the server has said that it took no effect: the next sync takes
    /// what is pending by then, under the same number and another id. So whoever changes or deletes
    /// the row for which a script of the server's ends each sync gets on. A transaction of the
    /// application's stays what it was. `said` is what the server was told.
    ///
    /// # Errors
    /// The file is locked, or SQLite failed.
    pub(crate) fn take_back(&mut self, said: &SubscriptionState) -> Result<(), RemoteError> {
        let doing = "taking an upload back";
        let transaction = self.write(doing)?;
        let subscriptions = load_all(&transaction)?;
        let now = subscriptions.iter().find(|it| said.still_is(it));
        let Some((now, schema)) = now.and_then(|it| Some((it, it.schema.as_ref()?))) else {
            return Ok(());
        };
        let Some(taken) = now.taken_generation else {
            return Ok(());
        };
        if now.giving.is_some() || schema.transactional {
            return Ok(());
        }
        transactions::unite(&transaction, schema, (taken - 1, now.generation))?;
        refused::settled_changes::taken_back(
            &transaction,
            &now.publication,
            (taken, now.generation),
        )
        .doing(doing)?;
        // What another copy may have sent is in a later generation now. What is in the outbox waits
        // for the changes before it again.
        transaction
            .execute(
                "UPDATE tidewater_subscription SET taken_generation = NULL, \
                 taken_upload_id = NULL, copied_until = CASE WHEN copied_until >= ?2 \
                 THEN generation ELSE copied_until END WHERE id = ?1",
                params![now.id, taken],
            )
            .doing(doing)?;
        transaction
            .execute("UPDATE tidewater_state SET outbox_covered = 0", [])
            .doing(doing)?;
        transaction.commit().doing(doing)
    }
}

/// Notes whether transactions wait behind one that was on its way already.
fn note_more(
    connection: &Connection,
    subscription: &mut SubscriptionState,
) -> Result<(), RemoteError> {
    let schema = subscription.schema.as_ref();
    if let (Some(schema), Some(taken)) = (
        schema.filter(|it| it.transactional),
        subscription.taken_generation,
    ) {
        subscription.more = transactions::waits(connection, subscription, schema, taken)?;
    }
    Ok(())
}

/// Whether there are changes of the current generation and nothing is on its way.
fn can_take(
    connection: &Connection,
    subscription: &SubscriptionState,
    direction: SyncDirection,
    compares_next: bool,
) -> Result<bool, RemoteError> {
    let Some(schema) = &subscription.schema else {
        return Ok(false);
    };
    // What is given back goes first.
    if subscription.taken_generation.is_some() || subscription.giving.is_some() {
        return Ok(false);
    }
    if is_unreliable(connection, subscription, direction)? {
        return Ok(false);
    }
    // What a restored centre has forgotten to have refused could not go with an upload that had
    // been taken before. Applications may write on and on: what they do has to wait.
    if !compares_next && has_pending(connection, subscription, schema)? {
        return Ok(true);
    }
    let publication = &subscription.publication;
    Ok(
        subscription.any_refused && refused::wait_for_another_try(connection, publication)?
            || subscription.any_unsettled
                && refused::settled_changes::has_untold(connection, publication)?,
    )
}

/// Whether there are changes that are neither taken nor known to the centre.
fn is_left(
    connection: &Connection,
    subscription: &SubscriptionState,
    adopts: bool,
) -> Result<bool, RemoteError> {
    match &subscription.schema {
        None => Ok(adopts),
        Some(_) if subscription.giving.is_some() => Ok(true),
        Some(schema) => has_pending(connection, subscription, schema),
    }
}

/// Whether there are transactions that have to be one before anything else.
fn is_scattered(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> Result<bool, RemoteError> {
    let Some(schema) = subscription.schema.as_ref().filter(|it| it.transactional) else {
        return Ok(false);
    };
    let is_untracked = has_untracked(connection, subscription)?;
    if !transactions::has_to_be_one(subscription, is_untracked) {
        return Ok(false);
    }
    let taken = subscription.taken_generation.unwrap_or(PARKED);
    let oldest = transactions::oldest(connection, schema, taken)?;
    Ok(oldest.is_some_and(|it| it < subscription.generation))
}

/// Whether there are changes that nobody has taken.
fn has_pending(
    connection: &Connection,
    subscription: &SubscriptionState,
    schema: &PublicationSchema,
) -> Result<bool, RemoteError> {
    if !schema.transactional {
        return has_generation(connection, schema, subscription.generation);
    }
    let taken = subscription.taken_generation.unwrap_or(PARKED);
    Ok(transactions::oldest(connection, schema, taken)?.is_some())
}

/// Whether a table was untracked, and is not compared yet: nobody knows what its changes were made
/// from, for some of its triggers may have been there, nor what else has to go up with those of
/// other tables, such as parents. A sync that will not compare takes them all the same: better
/// that they meet the centre's rows as conflicts than that they stay.
fn is_unreliable(
    connection: &Connection,
    subscription: &SubscriptionState,
    direction: SyncDirection,
) -> Result<bool, RemoteError> {
    let compares = subscription.compare_due != CompareDue::No;
    match compares && direction == SyncDirection::Both {
        true => has_untracked(connection, subscription),
        false => Ok(false),
    }
}

/// Whether a table was untracked, and is not compared yet: it may have changes that nobody has
/// recorded.
fn has_untracked(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> Result<bool, RemoteError> {
    for table in subscription.schema.iter().flat_map(|it| &it.tables) {
        if compare::is_untracked(connection, &table.name).doing("looking for changes")? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The last generation with changes that were made until now. What is made from now on is of a later
/// one, unless there are changes of the current one, or some that nobody has recorded.
pub(super) fn last_pending(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> Result<i64, RemoteError> {
    let generation = subscription.generation;
    let Some(schema) = &subscription.schema else {
        return Ok(generation);
    };
    let is_begun =
        has_generation(connection, schema, generation)? || has_untracked(connection, subscription)?;
    Ok(if is_begun { generation } else { generation - 1 })
}

/// Whether any table has changes of this generation.
fn has_generation(
    connection: &Connection,
    schema: &PublicationSchema,
    generation: i64,
) -> Result<bool, RemoteError> {
    let tables = schema.tables.iter().filter(|it| it.direction.uploads());
    let changed: Vec<String> = tables
        .map(|table| {
            let change = quote::name(&change_table(&table.name));
            format!("SELECT 1 FROM {change} WHERE generation = ?1")
        })
        .collect();
    for changed in changed.chunks(TABLES_AT_ONCE) {
        let found = connection
            .prepare_cached(&changed.join(" UNION ALL "))
            .and_then(|mut statement| statement.exists([generation]))
            .doing("looking for changes")?;
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn take(
    connection: &Connection,
    subscription: &mut SubscriptionState,
    upload_id: UploadId,
) -> Result<(), RemoteError> {
    let one_by_one = subscription.schema.clone().filter(|it| it.transactional);
    let next = match &one_by_one {
        Some(schema) => Some(transactions::next(connection, subscription, schema)?),
        None => None,
    };
    let generation = next
        .as_ref()
        .map_or(subscription.generation, |it| it.generation);
    if subscription.any_refused {
        let again = next
            .as_ref()
            .map_or(RowSelection::All, |it| RowSelection::Ids(&it.again));
        refused::unpark_waiting(connection, subscription, generation, again)?;
        refused::linked_refusals::take(connection, subscription, generation)?;
    }
    if let Some(schema) = &subscription.schema {
        for table in &schema.tables {
            if subscription.any_refused {
                adopt_parked(connection, table, generation)?;
            }
            changes::keep_whole(connection, &QuotedNames::for_table(table), generation)
                .doing("taking an upload")?;
        }
    }
    // Trying again may have settled the first ones.
    if subscription.any_unsettled || subscription.any_refused {
        refused::settled_changes::give_up_undone(connection, subscription, generation)?;
        refused::settled_changes::take(connection, &subscription.publication, generation)
            .doing("taking an upload")?;
    }
    subscription.any_unsettled |= subscription.any_refused;
    // What follows is recorded under the next, if this was not one that had ended before.
    let current = subscription.generation.max(generation + STEP);
    connection
        .prepare_cached(
            "UPDATE tidewater_subscription SET taken_generation = ?3, generation = ?4, \
             taken_upload_id = ?2 WHERE id = ?1 RETURNING copied_until",
        )
        .and_then(|mut statement| {
            let taken = params![subscription.id, upload_id.0, generation, current];
            subscription.copied_until = statement.query_row(taken, |row| row.get(0))?;
            Ok(())
        })
        .doing("taking an upload")?;
    subscription.taken = Some(upload_id);
    subscription.taken_generation = Some(generation);
    subscription.generation = current;
    if let Some(schema) = &one_by_one {
        subscription.more = transactions::waits(connection, subscription, schema, generation)?;
    }
    Ok(())
}

/// A refused change that was changed again goes up with the new one: the change of the
/// current generation takes over its pre-image, and the refusal is forgotten.
fn adopt_parked(
    connection: &Connection,
    table: &Table,
    generation: i64,
) -> Result<(), RemoteError> {
    if !refused::exist(connection, &table.name)? {
        return Ok(());
    }
    let names = QuotedNames::for_table(table);
    let keys = quote::list(&names.change_key, ", ", |key| format!("p.{key}"));
    let same = quote::list(&names.change_key, " AND ", |key| {
        format!("p.{key} = c.{key}")
    });
    let change = &names.change;
    let sql = format!(
        "SELECT {keys} FROM {change} AS p JOIN {change} AS c ON {same} AND c.generation = ?1 \
         WHERE p.generation = {PARKED}"
    );
    let doing = "taking refused changes that were changed again";
    let found = read_keys(connection, &sql, &[&generation], table).doing(doing)?;
    for key in &found {
        let key = changes::move_to(connection, &names, key, PARKED, generation).doing(doing)?;
        let packed = row::pack_key(
            &row::key_types(table),
            &row::datums(&row::key_types(table), &key),
        );
        refused::settled_changes::retried(connection, &table.name, &packed, generation)?;
    }
    Ok(())
}
