//! Durable events: appending them, reading them in their order, and dropping old ones.
//!
//! The number of a space's last event is updated in the transaction that appends, before anything is
//! numbered: who comes second waits until the first one has committed. So numbers become visible in
//! their order, and no reader passes one that is still to come.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use tidewater_protocol::Value;

use super::connection::{DatabaseConnection, ResultRow, SystemStatement, TransactionMode};
use super::once::{self, KeyRecord, KeyUse};
use super::sql::system::events::{self as sql, EventRange, EventRow, PrunedEvents};
use crate::error::CentreError;
use crate::events::{AppendOutcome, NewEvents, SpaceRetention, StoredEvent};

type Result<T> = std::result::Result<T, CentreError>;

/// How often appending is begun that others undo.
const ATTEMPTS: u32 = 8;

/// How many rows one statement appends.
const ROWS_AT_ONCE: usize = 10_000;

/// How many events one statement of pruning looks at.
const PRUNED_AT_ONCE: u64 = 10_000;

const APPENDING: &str = "appending events";

/// See [`crate::Worker::append_events`].
pub(super) async fn append(
    connection: &mut impl DatabaseConnection,
    batch: &[NewEvents],
    check: [u8; 8],
    now_ms: i64,
) -> Result<Vec<AppendOutcome>> {
    let mut attempt = 1;
    loop {
        connection.begin(TransactionMode::WRITING).await?;
        let appended = append_once(connection, batch, check, now_ms).await;
        let committed = match appended {
            Ok(appended) => connection.commit().await.map(|()| appended),
            Err(error) => Err(error),
        };
        match committed {
            Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                connection.rollback().await?;
                attempt += 1;
            }
            committed => return committed,
        }
    }
}

async fn append_once(
    connection: &mut impl DatabaseConnection,
    batch: &[NewEvents],
    check: [u8; 8],
    now_ms: i64,
) -> Result<Vec<AppendOutcome>> {
    let mut appended = known(connection, batch, now_ms).await?;
    // Of each space in the same order, so that two who append never wait for each other.
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (new, known) in batch.iter().zip(&appended) {
        if known.is_none() {
            *counts.entry(&new.space).or_default() += new.events.len() as u64;
        }
    }
    if counts.is_empty() {
        again(batch, &mut appended);
        return Ok(appended.into_iter().flatten().collect());
    }
    let mut next = numbers(connection, &counts).await?;
    let mut rows = Vec::new();
    let mut finished = Vec::new();
    for (place, new) in batch.iter().enumerate() {
        if appended[place].is_some() {
            continue;
        }
        let first = next.get_mut(&*new.space).ok_or_else(lost)?;
        let at = AppendOutcome::At {
            first: *first,
            check,
        };
        appended[place] = Some(at);
        finished.extend(new.once.map(|key| {
            let outcome = encode(*first, check);
            once::finish(&new.user, key, KeyUse::Events, outcome)
        }));
        for (subject, payload) in &new.events {
            let row = EventRow {
                space: &new.space,
                id: *first,
                check: &check,
                subject,
                payload,
                user: &new.user,
                now_ms,
            };
            rows.push(row.values());
            *first += 1;
        }
    }
    let mut statements = finished;
    while !rows.is_empty() {
        let rest = rows.split_off(rows.len().min(ROWS_AT_ONCE));
        statements.push(sql::insert(std::mem::replace(&mut rows, rest)));
    }
    connection.flight(APPENDING, &statements).await?;
    again(batch, &mut appended);
    Ok(appended.into_iter().flatten().collect())
}

/// Notes keys, and finds out which of the events were appended before. Those with a key that is twice
/// in the batch are left for [`again`].
async fn known(
    connection: &mut impl DatabaseConnection,
    batch: &[NewEvents],
    now_ms: i64,
) -> Result<Vec<Option<AppendOutcome>>> {
    let mut known = vec![None; batch.len()];
    // In the same order, too.
    let mut keys: BTreeMap<(&str, [u8; 16]), usize> = BTreeMap::new();
    for (place, new) in batch.iter().enumerate() {
        let Some(key) = new.once else { continue };
        let first = *keys.entry((&new.user, key)).or_insert(place);
        if first != place {
            // Until it is known what becomes of the first one.
            known[place] = Some(AppendOutcome::KeyTaken);
        }
    }
    if keys.is_empty() {
        return Ok(known);
    }
    let notes = keys
        .keys()
        .map(|(user, key)| once::note(user, *key, KeyUse::Events, now_ms));
    let noted = connection
        .flight(APPENDING, &notes.collect::<Vec<SystemStatement>>())
        .await?;
    for (((user, key), &place), answer) in keys.iter().zip(noted) {
        if answer.changed > 0 {
            continue;
        }
        known[place] = Some(
            match once::kept(connection, user, *key, KeyUse::Events).await? {
                Some(KeyRecord {
                    is_same: true,
                    outcome: Some(outcome),
                    ..
                }) => decode(&outcome)?,
                _ => AppendOutcome::KeyTaken,
            },
        );
    }
    Ok(known)
}

/// Tells events with a key that was in the batch before what became of those.
fn again(batch: &[NewEvents], appended: &mut [Option<AppendOutcome>]) {
    let mut first: BTreeMap<(&str, [u8; 16]), usize> = BTreeMap::new();
    for (place, new) in batch.iter().enumerate() {
        let Some(key) = new.once else { continue };
        let first = *first.entry((&new.user, key)).or_insert(place);
        appended[place] = appended[first];
    }
}

/// Numbers for so many events of each space; gives the first ones.
async fn numbers<'s>(
    connection: &mut impl DatabaseConnection,
    counts: &BTreeMap<&'s str, u64>,
) -> Result<BTreeMap<&'s str, u64>> {
    let take = sql::take_numbers(counts.iter().map(|(space, count)| (*space, *count)));
    let answer = connection.run_one(APPENDING, take).await?;
    let mut next = BTreeMap::new();
    for row in &answer.rows {
        let (name, last): (String, u64) = (row.get(0)?, row.get(1)?);
        let (space, count) = counts.get_key_value(&*name).ok_or_else(lost)?;
        next.insert(*space, last - count + 1);
    }
    Ok(next)
}

fn lost() -> CentreError {
    CentreError::Internal {
        message: "a space has got no numbers for its events".into(),
    }
}

fn encode(first: u64, check: [u8; 8]) -> Vec<u8> {
    [first.to_le_bytes(), check].concat()
}

fn decode(outcome: &[u8]) -> Result<AppendOutcome> {
    let halves = outcome.split_at_checked(8);
    let read = halves.and_then(|(first, check)| {
        Some(AppendOutcome::At {
            first: u64::from_le_bytes(first.try_into().ok()?),
            check: check.try_into().ok()?,
        })
    });
    read.ok_or_else(|| CentreError::Internal {
        message: "the numbers of events are not as they were kept".into(),
    })
}

// ---------------------------------------------------------------------------
// Reading

/// See [`crate::Worker::events_after`].
pub(super) async fn after(
    connection: &mut impl DatabaseConnection,
    space: &str,
    after: u64,
    (limit, max_bytes): (u64, u64),
) -> Result<Vec<StoredEvent>> {
    let range = EventRange {
        after,
        limit,
        max_bytes,
    };
    read(connection, sql::list(space, &range)).await
}

/// See [`crate::Worker::last_values`].
pub(super) async fn last_values(
    connection: &mut impl DatabaseConnection,
    space: &str,
    after_subject: &str,
    (limit, max_bytes): (u64, u64),
) -> Result<Vec<StoredEvent>> {
    let range = EventRange {
        after: after_subject,
        limit,
        max_bytes,
    };
    read(connection, sql::list_last_values(space, &range)).await
}

async fn read(
    connection: &mut impl DatabaseConnection,
    select: SystemStatement,
) -> Result<Vec<StoredEvent>> {
    let answer = connection.run_one("reading events", select).await?;
    answer.rows.into_iter().map(stored).collect()
}

fn stored(mut row: ResultRow) -> Result<StoredEvent> {
    // Without copying it once more.
    let payload = match row
        .0
        .get_mut(3)
        .map(|it| std::mem::replace(it, Value::Null))
    {
        Some(Value::Blob(payload)) => Bytes::from(payload),
        _ => Bytes::new(),
    };
    Ok(StoredEvent {
        id: row.get(0)?,
        check: check(&row.get::<Vec<u8>>(1)?)?,
        subject: row.get(2)?,
        payload,
        user: row.get(4)?,
        at_ms: row.get(5)?,
    })
}

fn check(bytes: &[u8]) -> Result<[u8; 8]> {
    bytes.try_into().map_err(|_| CentreError::Internal {
        message: "the check of an event is not as it was kept".into(),
    })
}

/// See [`crate::Worker::event_check`].
pub(super) async fn event_check(
    connection: &mut impl DatabaseConnection,
    space: &str,
    id: u64,
) -> Result<Option<[u8; 8]>> {
    let select = sql::read_check(space, id);
    let answer = connection.run_one("reading events", select).await?;
    let row = answer.rows.first();
    row.map(|row| check(&row.get::<Vec<u8>>(0)?)).transpose()
}

/// See [`crate::Worker::space_ends`].
pub(super) async fn ends(
    connection: &mut impl DatabaseConnection,
    spaces: &[String],
) -> Result<Vec<u64>> {
    let select = sql::find_last_numbers(spaces);
    let answer = connection.run_one("reading events", select).await?;
    let mut ends = vec![0; spaces.len()];
    for row in &answer.rows {
        let number: u64 = row.get(0)?;
        if let Some(end) = ends.get_mut(number as usize - 1) {
            *end = row.get(1)?;
        }
    }
    Ok(ends)
}

// ---------------------------------------------------------------------------
// Pruning

/// See [`crate::Centre::prune_events`].
pub(super) async fn prune(
    connection: &mut impl DatabaseConnection,
    spaces: &[SpaceRetention],
    now_ms: i64,
) -> Result<u64> {
    let mut pruned = 0;
    let mut seen = BTreeSet::new();
    for retention in spaces.iter().filter(|it| seen.insert(&it.space)) {
        pruned += prune_space(connection, retention, now_ms).await?;
    }
    Ok(pruned)
}

/// From the oldest one on, in pieces: nobody waits long for it.
async fn prune_space(
    connection: &mut impl DatabaseConnection,
    retention: &SpaceRetention,
    now_ms: i64,
) -> Result<u64> {
    let what = "pruning events";
    let space = &retention.space;
    let before_ms = now_ms.saturating_sub(retention.kept_ms);
    let (mut pruned, mut from) = (0, 0);
    loop {
        let piece = sql::read_piece(space, from, PRUNED_AT_ONCE);
        let answer = connection.run_one(what, piece).await?;
        let row = answer.rows.first();
        let piece = row.map(|row| -> Result<_> { Ok((row.get(0)?, row.get(1)?)) });
        let Some((Some(to), Some(oldest_ms))) = piece.transpose()? else {
            return Ok(pruned);
        };
        let (to, oldest_ms): (u64, i64) = (to, oldest_ms);
        if oldest_ms >= before_ms {
            return Ok(pruned);
        }
        let delete = sql::prune(&PrunedEvents {
            space,
            from,
            to,
            before_ms,
            keeps_last: retention.keeps_last,
        });
        pruned += connection.run_one(what, delete).await?.changed;
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_events_is_kept() {
        let at = AppendOutcome::At {
            first: 7,
            check: *b"12345678",
        };
        assert_eq!(decode(&encode(7, *b"12345678")).unwrap(), at);
        assert!(decode(b"short").is_err());
    }
}
