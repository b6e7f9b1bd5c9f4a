//! Refused rows that are settled: how, by whom and when. By the user on this device, by an operator
//! in the centre, or because they went up again and were taken.
//!
//! What is not settled for good has a generation: a change that is pending again has that with which
//! it goes up, and what the user gave up that of the upload which tells the centre, or 0 until
//! one is taken. What an operator has written for the user has that of a change that was made from it
//! before the word of him came, for the centre has some of that change already.

use rusqlite::{Connection, params};
use serde::Serialize;
use tidewater_protocol::Table;
use tidewater_protocol::message::{GivenUp, MAX_GIVEN_UP, MAX_RETRIED, SettledRefusal};

use super::{
    PARKED, RefusalToDecide, RefusedRow, RemoteDatabase, TIME_UNKNOWN, find, give_up, key_of,
};
use crate::database::SubscriptionState;
use crate::database::changes::{is_net, later_than};
use crate::database::stale_rows::mark_stale;
use crate::database::tables::QuotedNames;
use crate::error::{ErrorContext, RemoteError};

/// So many are kept in a file, the newest ones.
const MOST_KEPT: u64 = 10_000;

/// So many bytes of keys and names go with one upload: all that its beginning says has to fit into
/// one frame.
pub(super) const MOST_BYTES: usize = 200 << 10;

/// About how many bytes texts take in a message, with what stands around them.
pub(super) fn told_size(texts: &[&str]) -> usize {
    const AROUND: usize = 20;
    texts.iter().map(|it| it.len()).sum::<usize>() + AROUND
}

/// The generation of what the centre is to be told with the next upload.
const UNTOLD: i64 = 0;

/// A change that the centre once refused, and that is settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettledChange {
    /// The change as it was refused.
    #[serde(flatten)]
    pub refused: RefusedRow,
    /// `retried` (it goes up again), `taken` (it has, and is in the centre), `lost` (it has, and
    /// lost as a conflict), `given_up` by the user; `replayed`, `edited` or `discarded` by an
    /// operator.
    pub outcome: String,
    /// Who: the user, or an operator.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub settled_at_ms: i64,
}

/// How a change is settled.
pub(crate) struct SettledEnd<'e> {
    pub(crate) outcome: &'e str,
    /// The user if `None`.
    pub(crate) by: Option<&'e str>,
    /// Now, by SQLite's clock, if `None`.
    pub(crate) at_ms: Option<i64>,
    pub(crate) generation: Option<i64>,
}

impl SettledEnd<'_> {
    /// It is pending again.
    pub(crate) fn retried(generation: i64) -> SettledEnd<'static> {
        SettledEnd {
            outcome: "retried",
            by: None,
            at_ms: None,
            generation: Some(generation),
        }
    }

    /// It was given up.
    pub(super) fn given_up() -> SettledEnd<'static> {
        SettledEnd {
            outcome: "given_up",
            ..SettledEnd::retried(UNTOLD)
        }
    }

    /// It was written again, and the apply under way has brought the news that it was taken.
    pub(super) fn taken() -> SettledEnd<'static> {
        SettledEnd {
            outcome: "taken",
            by: None,
            at_ms: Some(TIME_UNKNOWN),
            generation: None,
        }
    }
}

/// Settles a refused row. If it goes up again, and was refused when the file was not known to be a
/// copy, so does the word that another copy may send it, too.
pub(crate) fn settle(
    connection: &Connection,
    id: i64,
    end: &SettledEnd<'_>,
) -> rusqlite::Result<()> {
    if let Some(generation) = end.generation.filter(|it| *it != UNTOLD) {
        connection
            .prepare_cached(
                "UPDATE tidewater_subscription SET copied_until = max(copied_until, ?2) \
                 WHERE publication = (SELECT publication FROM tidewater_refused \
                 WHERE id = ?1 AND copied = 1)",
            )?
            .execute([id, generation])?;
    }
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO tidewater_settled (id, publication, table_name, key, \
             key_packed, operation, code, reason, sequence, at, row_values, outcome, settled_by, \
             settled_at, generation) \
             SELECT id, publication, table_name, key, key_packed, operation, code, reason, \
             sequence, at, row_values, ?2, \
             coalesce(?3, (SELECT user FROM tidewater_state), ''), \
             coalesce(?4, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)), ?5 \
             FROM tidewater_refused WHERE id = ?1",
        )?
        .execute(params![id, end.outcome, end.by, end.at_ms, end.generation])?;
    connection
        .prepare_cached("DELETE FROM tidewater_refused WHERE id = ?1")?
        .execute([id])?;
    // Whoever settles many does not keep many more.
    match id.unsigned_abs().is_multiple_of(MOST_KEPT) {
        true => drop_oldest(connection),
        false => Ok(()),
    }
}

/// Drops the oldest beyond [`MOST_KEPT`].
pub(super) fn drop_oldest(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "DELETE FROM tidewater_settled WHERE generation IS NULL AND id <= \
               (SELECT id FROM tidewater_settled ORDER BY id DESC LIMIT 1 OFFSET ?1)";
    connection
        .prepare_cached(sql)?
        .execute([MOST_KEPT])
        .map(drop)
}

/// A key that was refused is pending again; entries that hold the user's values stay.
pub(crate) fn retried(
    connection: &Connection,
    table: &str,
    key_packed: &[u8],
    generation: i64,
) -> Result<(), RemoteError> {
    let settle_all = || -> rusqlite::Result<()> {
        let ids: Vec<i64> = connection
            .prepare_cached(
                "SELECT id FROM tidewater_refused WHERE table_name = ?1 AND key_packed = ?2 \
                 AND row_values IS NULL",
            )?
            .query_map(params![table, key_packed], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for id in ids {
            settle(connection, id, &SettledEnd::retried(generation))?;
        }
        Ok(())
    };
    settle_all().doing("trying a refused row again")
}

/// A key is refused again: what was said of it before counts no longer.
pub(super) fn refused_again(
    connection: &Connection,
    table: &str,
    key_packed: &[u8],
) -> rusqlite::Result<()> {
    let was_retried = connection
        .prepare_cached(
            "DELETE FROM tidewater_settled WHERE table_name = ?1 AND key_packed = ?2 \
             AND generation IS NOT NULL AND outcome = 'retried'",
        )?
        .execute(params![table, key_packed])?;
    if was_retried > 0 {
        // It is asked for when somebody has decided about it.
        connection
            .prepare_cached(
                "DELETE FROM tidewater_stale WHERE table_name = ?1 AND key_packed = ?2",
            )?
            .execute(params![table, key_packed])?;
    }
    Ok(())
}

/// The change of a generation has lost.
pub(crate) fn lost(
    connection: &Connection,
    table: &str,
    key_packed: &[u8],
    generation: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE tidewater_settled SET outcome = 'lost', settled_at = ?4, generation = NULL \
             WHERE table_name = ?1 AND key_packed = ?2 AND outcome = 'retried' \
             AND generation <= ?3",
        )?
        .execute(params![table, key_packed, generation, TIME_UNKNOWN])
        .map(drop)
}

/// An upload of this generation is taken. What goes up again with it is asked for: where it is in
/// effect in the centre already, nothing changes there that would tell whether the row is held here.
/// What the user has given up goes with it, too, as much as one takes.
pub(crate) fn take(
    connection: &Connection,
    publication: &str,
    generation: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO tidewater_stale (table_name, key_packed) \
             SELECT table_name, key_packed FROM tidewater_settled WHERE publication = ?1 \
             AND generation = ?2 AND outcome = 'retried' ON CONFLICT DO NOTHING",
        )?
        .execute(params![publication, generation])?;
    let mut statement = connection.prepare_cached(
        "SELECT id, table_name, key FROM tidewater_settled WHERE publication = ?1 \
         AND generation = ?2 ORDER BY id LIMIT ?3",
    )?;
    let parameters = params![publication, UNTOLD, MAX_GIVEN_UP as i64];
    let found = statement.query_map(parameters, |row| {
        let (table, key): (String, String) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, told_size(&[&table, &key])))
    })?;
    let mut bytes = 0;
    for found in found.collect::<rusqlite::Result<Vec<(i64, usize)>>>()? {
        // One that no message has room for is told to nobody.
        let (id, size) = found;
        let is_too_long = size > MOST_BYTES;
        if !is_too_long && bytes + size > MOST_BYTES {
            break;
        }
        bytes += if is_too_long { 0 } else { size };
        connection
            .prepare_cached("UPDATE tidewater_settled SET generation = ?2 WHERE id = ?1")?
            .execute(params![id, (!is_too_long).then_some(generation)])?;
    }
    Ok(())
}

/// The upload of a generation is not sent as it was: what it was to tell waits for another one, and
/// what was pending with it is pending with the other generation.
pub(crate) fn taken_back(
    connection: &Connection,
    publication: &str,
    (taken, now): (i64, i64),
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE tidewater_settled SET generation = CASE outcome WHEN 'given_up' THEN ?4 \
             ELSE ?3 END WHERE publication = ?1 AND generation = ?2",
        )?
        .execute(params![publication, taken, now, UNTOLD])
        .map(drop)
}

/// Changes that go up again with a generation come to nothing where the user has undone them: the
/// upload does not have them, so the centre has to hear that they are given up. An operator could carry
/// them out otherwise, and another row may have the key of an insert there.
pub(crate) fn give_up_undone(
    connection: &Connection,
    subscription: &SubscriptionState,
    generation: i64,
) -> Result<(), RemoteError> {
    let undone = |table: &Table| -> rusqlite::Result<()> {
        let again: Vec<(i64, Vec<u8>)> = connection
            .prepare_cached(
                "SELECT id, key_packed FROM tidewater_settled WHERE publication = ?1 \
                 AND table_name = ?2 AND generation = ?3 AND outcome = 'retried'",
            )?
            .query_map(
                params![subscription.publication, table.name, generation],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?
            .collect::<rusqlite::Result<_>>()?;
        let names = QuotedNames::for_table(table);
        for (id, key_packed) in again {
            let Some(key) = key_of(table, &key_packed) else {
                continue;
            };
            if is_net(connection, &names, &key, generation)?
                || later_than(connection, &names, &key, generation)?.is_some()
            {
                continue;
            }
            connection
                .prepare_cached(
                    "UPDATE tidewater_settled SET outcome = 'given_up', generation = ?2 \
                     WHERE id = ?1",
                )?
                .execute([id, UNTOLD])?;
            mark_stale(connection, &table.name, &key_packed)?;
        }
        Ok(())
    };
    for table in subscription.schema.iter().flat_map(|schema| &schema.tables) {
        undone(table).doing("looking for refused changes that were undone")?;
    }
    Ok(())
}

/// Whether the centre is to be told with the next upload what the user has given up.
pub(crate) fn has_untold(connection: &Connection, publication: &str) -> Result<bool, RemoteError> {
    connection
        .prepare_cached(
            "SELECT 1 FROM tidewater_settled WHERE publication = ?1 AND generation = ?2 \
             AND generation IS NOT NULL",
        )
        .and_then(|mut statement| statement.exists(params![publication, UNTOLD]))
        .doing("looking for what was given up")
}

/// What the upload of a generation tells of it.
pub(crate) fn given_up(
    connection: &Connection,
    publication: &str,
    generation: i64,
) -> Result<Vec<GivenUp>, RemoteError> {
    let read = || -> rusqlite::Result<Vec<GivenUp>> {
        connection
            .prepare_cached(
                "SELECT table_name, key, sequence FROM tidewater_settled WHERE publication = ?1 \
                 AND generation = ?2 AND generation IS NOT NULL AND outcome = 'given_up' \
                 ORDER BY id",
            )?
            .query_map(params![publication, generation], |row| {
                Ok(GivenUp {
                    table: row.get(0)?,
                    key: row.get(1)?,
                    sequence: row.get::<_, i64>(2)?.unsigned_abs(),
                })
            })?
            .collect()
    };
    read().doing("reading what was given up")
}

/// Of what goes up with a generation and was refused before, or was made from such: the numbers of the
/// uploads with which it was refused last. See [`tidewater_protocol::message::UploadBegin::retried`].
fn retried_uploads(
    connection: &Connection,
    publication: &str,
    generation: i64,
) -> Result<Vec<u64>, RemoteError> {
    let read = || -> rusqlite::Result<Vec<u64>> {
        connection
            .prepare_cached(
                "SELECT DISTINCT sequence FROM tidewater_settled WHERE publication = ?1 \
                 AND generation > 0 AND generation <= ?2 AND generation IS NOT NULL \
                 AND outcome IN ('retried', 'replayed', 'edited') ORDER BY sequence LIMIT ?3",
            )?
            .query_map(
                params![publication, generation, MAX_RETRIED as i64 + 1],
                |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()),
            )?
            .collect()
    };
    let uploads = read().doing("reading what goes up again")?;
    Ok(match uploads.len() > MAX_RETRIED {
        true => vec![0],
        false => uploads,
    })
}

/// The upload of a generation is acknowledged: what went up again with it and was neither refused
/// nor lost is in the centre, and what was given up is known there.
pub(crate) fn acknowledged(
    connection: &Connection,
    publication: &str,
    generation: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE tidewater_settled SET generation = NULL, \
             settled_at = CASE outcome WHEN 'retried' THEN ?3 ELSE settled_at END, \
             outcome = CASE outcome WHEN 'retried' THEN 'taken' ELSE outcome END \
             WHERE publication = ?1 AND generation > 0 AND generation <= ?2 \
             AND generation IS NOT NULL",
        )?
        .execute(params![publication, generation, TIME_UNKNOWN])
        .map(drop)
}

/// Gives what an apply has refused and settled its time, and drops the oldest.
pub(crate) fn settle_times(connection: &Connection, now_ms: i64) -> Result<(), RemoteError> {
    let doing = "settling refused rows";
    connection
        .execute(
            "UPDATE tidewater_settled SET at = iif(at = ?2, ?1, at), \
             settled_at = iif(settled_at = ?2, ?1, settled_at) WHERE ?2 IN (at, settled_at)",
            [now_ms, TIME_UNKNOWN],
        )
        .doing(doing)?;
    drop_oldest(connection).doing(doing)
}

/// Operators have settled refused rows of a subscription: its changes give way to what the centre
/// has. What the user has changed or sent again since is an ordinary change and stays. Tracking and foreign-key actions are off.
pub(crate) fn told(
    connection: &Connection,
    state: &SubscriptionState,
    settled: &[SettledRefusal],
) -> Result<(), RemoteError> {
    let subscriptions = std::slice::from_ref(state);
    let settle_one = |told: &SettledRefusal| -> rusqlite::Result<()> {
        let sequence = i64::try_from(told.sequence).unwrap_or(i64::MAX);
        let found: Vec<RefusedRow> = connection
            .prepare_cached(&format!(
                "{} WHERE publication = ?1 AND table_name = ?2 AND key = ?3 AND sequence = ?4",
                super::SELECT
            ))?
            .query_map(
                params![state.publication, told.table, told.key, sequence],
                super::read,
            )?
            .collect::<rusqlite::Result<_>>()?;
        for entry in found {
            let Some(RefusalToDecide {
                key_packed, parked, ..
            }) = find(connection, subscriptions, &entry)?
            else {
                continue;
            };
            let mut generation = None;
            if let Some(parked) = parked {
                // What the user has made of the row since takes the pre-image over, and so has in it
                // what the operator may have written.
                generation = later_than(connection, &parked.names, &parked.key, PARKED)?;
                give_up(connection, &parked)?;
                mark_stale(connection, &entry.table, &key_packed)?;
            }
            let end = SettledEnd {
                outcome: &told.outcome,
                by: Some(&told.by),
                at_ms: Some(told.at_ms),
                generation: generation.filter(|_| told.outcome != "discarded"),
            };
            settle(connection, entry.id, &end)?;
        }
        Ok(())
    };
    for told in settled {
        settle_one(told).doing("settling refused rows")?;
    }
    Ok(())
}

impl RemoteDatabase {
    /// What the taken upload tells of what the user has given up.
    pub(crate) fn given_up(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<Vec<GivenUp>, RemoteError> {
        match subscription.taken_generation {
            Some(generation) if subscription.any_unsettled => {
                given_up(&self.connection, &subscription.publication, generation)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What the taken upload tells of changes that were refused before.
    pub(crate) fn retried(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<Vec<u64>, RemoteError> {
        match subscription.taken_generation {
            Some(generation) if subscription.any_unsettled => {
                retried_uploads(&self.connection, &subscription.publication, generation)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Every refused change that is settled, or goes up again, oldest first.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn settled_refused(&self) -> Result<Vec<SettledChange>, RemoteError> {
        let read = || -> rusqlite::Result<Vec<SettledChange>> {
            self.connection
                .prepare(
                    "SELECT id, publication, table_name, key, operation, code, reason, sequence, \
                     at, row_values, outcome, settled_by, settled_at FROM tidewater_settled \
                     ORDER BY id",
                )?
                .query_map([], |row| {
                    Ok(SettledChange {
                        refused: super::read(row)?,
                        outcome: row.get(10)?,
                        by: row.get(11)?,
                        settled_at_ms: row.get(12)?,
                    })
                })?
                .collect()
        };
        read().doing("reading settled rows")
    }
}
