//! Refused changes that go up together: rows with those that were refused because of them, and all
//! of an upload that was aborted as a whole.

use std::collections::{HashMap, HashSet, hash_map};

use rusqlite::Connection;
use rusqlite::types::Value as Stored;
use tidewater_protocol::{Code, Table, Value};

use super::{PARKED, RefusedRow, RemoteDatabase, SELECT, is_parked, key_of, read, settled_changes};
use crate::database::changes::{has_change, move_to, next_of};
use crate::database::subscription::load_all;
use crate::database::tables::QuotedNames;
use crate::database::{SubscriptionState, quote};
use crate::error::{ErrorContext, RemoteError};

/// A refused change that still has its row.
struct RowRefusal<'s> {
    refused: RefusedRow,
    subscription: &'s SubscriptionState,
    table: &'s Table,
    key: Vec<Value>,
}

/// The numbers of refused changes, and of those that go with them.
pub(super) fn with(database: &RemoteDatabase, ids: &[i64]) -> Result<Vec<i64>, RemoteError> {
    let connection = &database.connection;
    let subscriptions = load_all(connection)?;
    let read = || -> rusqlite::Result<Vec<i64>> {
        let entries = entries(connection, &subscriptions)?;
        let mut chosen: HashSet<i64> = ids.iter().copied().collect();
        expand(connection, &entries, &mut chosen)?;
        Ok(chosen.into_iter().collect())
    };
    read().doing("looking for what goes with a refused row")
}

/// What goes with refused changes that were changed again goes up with them.
pub(crate) fn take(
    connection: &Connection,
    subscription: &SubscriptionState,
    generation: i64,
) -> Result<(), RemoteError> {
    let doing = "trying refused rows again";
    let entries = entries(connection, std::slice::from_ref(subscription)).doing(doing)?;
    let waits = |entry: &RowRefusal<'_>| {
        let codes = [Code::RowForeignKey, Code::RowAborted];
        codes.iter().any(|it| it.name() == entry.refused.code)
    };
    let one_by_one = subscription.is_transactional();
    if !one_by_one && !entries.iter().any(waits) {
        return Ok(());
    }
    let mut chosen = HashSet::new();
    for entry in &entries {
        let names = QuotedNames::for_table(entry.table);
        if has_change(connection, &names, &entry.key, generation).doing(doing)? {
            chosen.insert(entry.refused.id);
        }
    }
    let changed = chosen.clone();
    expand(connection, &entries, &mut chosen).doing(doing)?;
    for entry in &entries {
        let id = entry.refused.id;
        let names = QuotedNames::for_table(entry.table);
        let is_parked = is_parked(connection, &names, &entry.key).doing(doing)?;
        match changed.contains(&id) {
            // It was in another transaction since, which has taken it over.
            true if one_by_one && !is_parked => {}
            false if chosen.contains(&id) && is_parked => {
                move_to(connection, &names, &entry.key, PARKED, generation).doing(doing)?;
            }
            _ => continue,
        }
        let end = settled_changes::SettledEnd::retried(generation);
        settled_changes::settle(connection, id, &end).doing(doing)?;
    }
    Ok(())
}

/// The refused changes that go up again next, of those that wait for it: what was refused first, and
/// what goes with that. They are a transaction of their own, so that others do not fail with them.
pub(crate) fn first_waiting(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> Result<Vec<i64>, RemoteError> {
    let read = || -> rusqlite::Result<Vec<i64>> {
        let entries = entries(connection, std::slice::from_ref(subscription))?;
        let waiting: HashSet<i64> = connection
            .prepare_cached(
                "SELECT id FROM tidewater_refused WHERE publication = ?1 AND again = 1 \
                 AND row_values IS NULL",
            )?
            .query_map([&subscription.publication], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut left = waiting.clone();
        loop {
            let waits = entries.iter().filter(|it| left.contains(&it.refused.id));
            let Some(first) = waits.clone().map(|it| it.refused.sequence).min() else {
                return Ok(Vec::new());
            };
            let of_first = waits.filter(|it| it.refused.sequence == first);
            let mut chosen: HashSet<i64> = of_first.map(|it| it.refused.id).collect();
            expand(connection, &entries, &mut chosen)?;
            // It goes up whole with the transaction that has taken over some of it.
            if taken_over(connection, &entries, &chosen, PARKED)?.is_none() {
                return Ok(chosen.intersection(&waiting).copied().collect());
            }
            left.retain(|it| !chosen.contains(it));
        }
    };
    read().doing("trying refused rows again")
}

/// The last transaction after this one that has taken over something of what goes up with it.
pub(crate) fn last_taken_over(
    connection: &Connection,
    subscription: &SubscriptionState,
    generation: i64,
) -> Result<Option<i64>, RemoteError> {
    let read = || -> rusqlite::Result<Option<i64>> {
        let entries = entries(connection, std::slice::from_ref(subscription))?;
        let mut chosen = HashSet::new();
        for entry in &entries {
            if has_change(
                connection,
                &QuotedNames::for_table(entry.table),
                &entry.key,
                generation,
            )? {
                chosen.insert(entry.refused.id);
            }
        }
        if chosen.is_empty() {
            return Ok(None);
        }
        expand(connection, &entries, &mut chosen)?;
        taken_over(connection, &entries, &chosen, generation)
    };
    read().doing("trying refused rows again")
}

/// The last transaction after this one that has taken over any of the chosen changes, which are not
/// parked then.
fn taken_over(
    connection: &Connection,
    entries: &[RowRefusal<'_>],
    chosen: &HashSet<i64>,
    generation: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut last = None;
    for entry in entries.iter().filter(|it| chosen.contains(&it.refused.id)) {
        let (names, key) = (QuotedNames::for_table(entry.table), &entry.key);
        let is_in = |generation| has_change(connection, &names, key, generation);
        if !(is_in(PARKED)? || generation > PARKED && is_in(generation)?) {
            last = last.max(next_of(connection, &names, key, generation)?);
        }
    }
    Ok(last)
}

fn entries<'s>(
    connection: &Connection,
    subscriptions: &'s [SubscriptionState],
) -> rusqlite::Result<Vec<RowRefusal<'s>>> {
    let sql = format!(
        "{}, key_packed FROM tidewater_refused WHERE row_values IS NULL ORDER BY id",
        SELECT.trim_end_matches(" FROM tidewater_refused")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| Ok((read(row)?, row.get::<_, Vec<u8>>(10)?)))?;
    let mut entries = Vec::new();
    for found in rows {
        let (refused, key_packed) = found?;
        let mut subscriptions = subscriptions.iter();
        let Some(subscription) = subscriptions.find(|it| it.publication == refused.publication)
        else {
            continue;
        };
        let schema = subscription.schema.as_deref();
        let Some(table) = schema.and_then(|schema| schema.table(&refused.table)) else {
            continue;
        };
        entries.extend(key_of(table, &key_packed).map(|key| RowRefusal {
            refused,
            subscription,
            table,
            key,
        }));
    }
    Ok(entries)
}

/// Adds what goes with the chosen ones.
fn expand(
    connection: &Connection,
    entries: &[RowRefusal<'_>],
    chosen: &mut HashSet<i64>,
) -> rusqlite::Result<()> {
    let upload = |it: &RowRefusal<'_>| (it.subscription.id, it.refused.sequence);
    let aborted = entries.iter();
    let aborted = aborted.filter(|it| it.refused.code == Code::RowAborted.name());
    let aborted: HashSet<(i64, u64)> = aborted.map(upload).collect();
    let mut waiting: Vec<&RowRefusal<'_>> = entries.iter().collect();
    loop {
        let is_chosen = |it: &&&RowRefusal<'_>| chosen.contains(&it.refused.id);
        let all: Vec<&RowRefusal<'_>> = entries.iter().collect();
        let parents: Vec<&&RowRefusal<'_>> = all.iter().filter(is_chosen).collect();
        let uploads: HashSet<(i64, u64)> = parents.iter().map(|it| upload(it)).collect();
        let (mut found, mut known) = (Vec::new(), HashMap::new());
        waiting.retain(|it| !chosen.contains(&it.refused.id));
        for it in &waiting {
            let is_of_aborted = aborted.contains(&upload(it)) && uploads.contains(&upload(it));
            if is_of_aborted || refers_to_one(connection, it, &parents, &mut known)? {
                found.push(it.refused.id);
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        chosen.extend(found);
    }
}

/// Whether a row was refused for what it refers to, and refers to one of these. What these have in
/// the columns that are referred to is read once.
fn refers_to_one<'e>(
    connection: &Connection,
    child: &'e RowRefusal<'_>,
    parents: &[&&RowRefusal<'_>],
    known: &mut HashMap<(&'e str, &'e [String]), HashSet<String>>,
) -> rusqlite::Result<bool> {
    if child.refused.code != Code::RowForeignKey.name() {
        return Ok(false);
    }
    for key in &child.table.foreign_keys {
        let of_parents = match known.entry((&key.parent, &key.parent_columns)) {
            hash_map::Entry::Occupied(known) => known.into_mut(),
            hash_map::Entry::Vacant(unknown) => {
                let mut all = HashSet::new();
                for parent in parents.iter().filter(|it| it.table.name == key.parent) {
                    let columns = key.parent_columns.iter().map(|it| parent.table.column(it));
                    if let Some(columns) = columns.collect::<Option<Vec<usize>>>() {
                        let values = values(connection, parent, &columns)?;
                        all.extend(values.map(|it| format!("{it:?}")));
                    }
                }
                unknown.insert(all)
            }
        };
        if !of_parents.is_empty()
            && let Some(values) = values(connection, child, &key.columns)?
            && of_parents.contains(&format!("{values:?}"))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Some values of a row as it is here; `None` if it is not, or one of them is NULL.
fn values(
    connection: &Connection,
    entry: &RowRefusal<'_>,
    columns: &[usize],
) -> rusqlite::Result<Option<Vec<Stored>>> {
    let names = QuotedNames::for_table(entry.table);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM {} WHERE {}",
        quote::list(columns, ", ", |&at| names.columns[at].clone()),
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut statement, &entry.key)?;
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let values = (0..columns.len()).map(|at| found.get::<_, Stored>(at));
    let values = values.collect::<rusqlite::Result<Vec<Stored>>>()?;
    Ok((!values.contains(&Stored::Null)).then_some(values))
}
