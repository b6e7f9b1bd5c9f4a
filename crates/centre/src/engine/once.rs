//! What takes effect once: the keys that users chose for it, and what came of each.
//!
//! A key is noted in the transaction of what is done under it, so that it is known if and only if
//! that was done. Of what a program does elsewhere it is noted before and again after.

use super::connection::{DatabaseConnection, Durability, SystemStatement};
use super::sql::system::once_keys::{self, OnceKey, OnceUse};
use crate::error::CentreError;
use crate::procedure::OnceKeyState;

type Result<T> = std::result::Result<T, CentreError>;

/// What a key is used for: nothing else is done under it.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyUse<'c> {
    /// A call of this procedure, which the database runs.
    Call(&'c str),
    /// A call of this one, which a program answers.
    Provided(&'c str),
    /// Events.
    Events,
}

impl<'c> KeyUse<'c> {
    fn kind(self) -> i64 {
        match self {
            KeyUse::Call(_) => 1,
            KeyUse::Provided(_) => PROVIDED,
            KeyUse::Events => 3,
        }
    }

    fn procedure(self) -> &'c str {
        match self {
            KeyUse::Call(name) | KeyUse::Provided(name) => name,
            KeyUse::Events => "",
        }
    }

    fn at(self, now_ms: i64) -> OnceUse<'c> {
        OnceUse {
            kind: self.kind(),
            procedure: self.procedure(),
            now_ms,
        }
    }
}

/// The kind of [`KeyUse::Provided`].
const PROVIDED: i64 = 2;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyRecord {
    /// Whether the key was used for the same.
    pub(super) is_same: bool,
    /// What came of it; `None` if it was begun and nobody knows.
    pub(super) outcome: Option<Vec<u8>>,
    /// When that was noted.
    pub(super) at_ms: i64,
}

/// Notes that something is begun under a key; changes nothing if the key is taken.
pub(super) fn note(user: &str, key: [u8; 16], used: KeyUse<'_>, now_ms: i64) -> SystemStatement {
    once_keys::insert(OnceKey { user, key }, used.at(now_ms))
}

/// Notes what came of what was begun under a key, if that was a use of this kind.
pub(super) fn finish(
    user: &str,
    key: [u8; 16],
    used: KeyUse<'_>,
    outcome: Vec<u8>,
) -> SystemStatement {
    once_keys::finish(OnceKey { user, key }, used.kind(), &outcome)
}

/// Both at once.
pub(super) fn note_done(
    user: &str,
    key: [u8; 16],
    used: KeyUse<'_>,
    outcome: Vec<u8>,
    now_ms: i64,
) -> SystemStatement {
    once_keys::insert_finished(OnceKey { user, key }, used.at(now_ms), &outcome)
}

/// What is known of a key that is wanted for something; `None` if it is free.
pub(super) async fn kept(
    connection: &mut impl DatabaseConnection,
    user: &str,
    key: [u8; 16],
    wanted: KeyUse<'_>,
) -> Result<Option<KeyRecord>> {
    let select = once_keys::read(OnceKey { user, key });
    let answer = connection.run_one("looking for a key", select).await?;
    let row = answer.rows.first().map(|row| -> Result<KeyRecord> {
        Ok(KeyRecord {
            is_same: row.get::<i64>(0)? == wanted.kind()
                && row.get::<String>(1)? == wanted.procedure(),
            outcome: row.get(2)?,
            at_ms: row.get(3)?,
        })
    });
    row.transpose()
}

/// See [`crate::Worker::begin_once`].
pub(super) async fn begin(
    connection: &mut impl DatabaseConnection,
    user: &str,
    key: [u8; 16],
    procedure: &str,
    now_ms: i64,
) -> Result<OnceKeyState> {
    let used = KeyUse::Provided(procedure);
    let note = note(user, key, used, now_ms);
    let what = "beginning a call";
    loop {
        let noted = connection
            .transact(what, Durability::Durable, std::slice::from_ref(&note))
            .await?;
        if noted.first().is_some_and(|it| it.changed > 0) {
            return Ok(OnceKeyState::New);
        }
        return Ok(match kept(connection, user, key, used).await? {
            Some(KeyRecord {
                is_same: true,
                outcome,
                at_ms: begun_ms,
            }) => outcome.map_or(OnceKeyState::Unfinished { begun_ms }, OnceKeyState::Done),
            Some(_) => OnceKeyState::KeyTaken,
            // Whoever had it has given it back in between: it is free.
            None => continue,
        });
    }
}

/// See [`crate::Worker::forget_once`].
pub(super) async fn forget_provided(
    connection: &mut impl DatabaseConnection,
    user: &str,
    key: [u8; 16],
) -> Result<()> {
    let forget = once_keys::delete_unfinished(OnceKey { user, key }, PROVIDED);
    let what = "giving a call's key back";
    connection
        .transact(what, Durability::Durable, &[forget])
        .await?;
    Ok(())
}

/// See [`crate::Worker::finish_once`].
pub(super) async fn finish_provided(
    connection: &mut impl DatabaseConnection,
    user: &str,
    key: [u8; 16],
    outcome: Vec<u8>,
) -> Result<()> {
    let finish = once_keys::finish(OnceKey { user, key }, PROVIDED, &outcome);
    let what = "keeping what became of a call";
    connection
        .transact(what, Durability::Durable, &[finish])
        .await?;
    Ok(())
}
