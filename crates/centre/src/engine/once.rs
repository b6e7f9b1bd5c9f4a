//! What takes effect once: the keys that users chose for it, and what came of each.
//!
//! A key is noted in the transaction of what is done under it, so that it is known if and only if
//! that was done. Of what a program does elsewhere it is noted before and again after.

use super::connection::{Connection, Durability, Own, own};
use crate::error::CentreError;
use crate::procedure::Begun;

type Result<T> = std::result::Result<T, CentreError>;

/// What a key was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call that the database runs.
    Call,
    /// A call that a program answers.
    Provided,
    /// Events.
    Events,
}

impl Kind {
    fn number(self) -> i64 {
        match self {
            Kind::Call => 1,
            Kind::Provided => 2,
            Kind::Events => 3,
        }
    }

    fn of(number: i64) -> Result<Kind> {
        let kinds = [Kind::Call, Kind::Provided, Kind::Events];
        let kind = kinds.into_iter().find(|it| it.number() == number);
        kind.ok_or_else(|| CentreError::Internal {
            message: format!("a key was used for something of the unknown kind {number}"),
        })
    }
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) kind: Kind,
    /// What came of it; `None` if it was begun and nobody knows.
    pub(super) outcome: Option<Vec<u8>>,
    /// When that was noted.
    pub(super) at_ms: i64,
}

/// Notes that something is begun under a key; changes nothing if the key is taken.
pub(super) fn note(user: &str, key: [u8; 16], kind: Kind, now_ms: i64) -> Own {
    own!(
        "INSERT INTO tidewater.once (user_name, call_key, kind, at_ms) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (user_name, call_key) DO NOTHING",
        user,
        key[..],
        kind.number(),
        now_ms,
    )
}

/// Notes what came of it.
pub(super) fn finish(user: &str, key: [u8; 16], kind: Kind, outcome: Vec<u8>) -> Own {
    own!(
        "UPDATE tidewater.once SET outcome = ?4
         WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL",
        user,
        key[..],
        kind.number(),
        outcome,
    )
}

/// Both at once.
pub(super) fn note_done(
    user: &str,
    key: [u8; 16],
    kind: Kind,
    outcome: Vec<u8>,
    now_ms: i64,
) -> Own {
    own!(
        "INSERT INTO tidewater.once (user_name, call_key, kind, at_ms, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (user_name, call_key) DO NOTHING",
        user,
        key[..],
        kind.number(),
        now_ms,
        outcome,
    )
}

/// What is known of a key; `None` if it is free.
pub(super) async fn kept(
    connection: &mut impl Connection,
    user: &str,
    key: [u8; 16],
) -> Result<Option<Kept>> {
    let select = own!(
        "SELECT kind, outcome, at_ms FROM tidewater.once
         WHERE user_name = ?1 AND call_key = ?2",
        user,
        key[..],
    );
    let answer = connection.run_one("looking for a key", select).await?;
    let row = answer.rows.first().map(|row| -> Result<Kept> {
        Ok(Kept {
            kind: Kind::of(row.get(0)?)?,
            outcome: row.get(1)?,
            at_ms: row.get(2)?,
        })
    });
    row.transpose()
}

/// See [`crate::Worker::begin_once`].
pub(super) async fn begin(
    connection: &mut impl Connection,
    user: &str,
    key: [u8; 16],
    now_ms: i64,
) -> Result<Begun> {
    let note = note(user, key, Kind::Provided, now_ms);
    let what = "beginning a call";
    let noted = connection
        .transact(what, Durability::Durable, &[note])
        .await?;
    if noted.first().is_some_and(|it| it.changed > 0) {
        return Ok(Begun::New);
    }
    Ok(match kept(connection, user, key).await? {
        Some(Kept {
            kind: Kind::Provided,
            outcome,
            at_ms: begun_ms,
        }) => outcome.map_or(Begun::Unfinished { begun_ms }, Begun::Done),
        Some(_) => Begun::KeyTaken,
        // It was pruned in between, and is older than anything that is known.
        None => Begun::Unfinished { begun_ms: 0 },
    })
}

/// See [`crate::Worker::forget_once`].
pub(super) async fn forget_provided(
    connection: &mut impl Connection,
    user: &str,
    key: [u8; 16],
) -> Result<()> {
    let forget = own!(
        "DELETE FROM tidewater.once
         WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL",
        user,
        key[..],
        Kind::Provided.number(),
    );
    let what = "giving a call's key back";
    connection
        .transact(what, Durability::Durable, &[forget])
        .await?;
    Ok(())
}

/// See [`crate::Worker::finish_once`].
pub(super) async fn finish_provided(
    connection: &mut impl Connection,
    user: &str,
    key: [u8; 16],
    outcome: Vec<u8>,
) -> Result<()> {
    let finish = finish(user, key, Kind::Provided, outcome);
    let what = "keeping what became of a call";
    connection
        .transact(what, Durability::Durable, &[finish])
        .await?;
    Ok(())
}
