//! The inbox: answers to what was in the outbox, and durable events that the application asked for.
//!
//! An application inserts the subjects that it is interested in into `tidewater_interest`. The place
//! up to which it has their events stands there too, and moves in the transaction that writes
//! them into `tidewater_inbox`, where they stay until the application deletes them.

use bytes::Bytes;
use rusqlite::{Connection, params};
use serde_json::Value as Json;
use tidewater_protocol::Value;
use tidewater_protocol::event::EventPosition;
use tidewater_protocol::message::{Answer, Argument, ArgumentValue, Call};

use super::RemoteDatabase;
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "filling the inbox";

/// So many events are asked for at once.
const EVENTS_AT_ONCE: i64 = 500;

/// Subjects of a space whose events the application wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventInterest {
    id: i64,
    /// The space.
    pub space: String,
    /// Which subjects: may have wildcards.
    pub subject: String,
    /// Up to where the file has them; `None` before the first.
    position: Option<Vec<u8>>,
}

/// What is left to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxProgress {
    /// So many events, and there may be more.
    More(u64),
    /// Nothing: that was all.
    All,
    /// Another sync of the file has taken them.
    Others,
}

/// A row of what the server tells: an event, or only how far it has read. Such a row before others
/// says that it knows nothing of the place that it was asked for, and begins anew.
struct InboxRow {
    position: [u8; 16],
    event: Option<InboxEvent>,
}

struct InboxEvent {
    subject: String,
    payload: rusqlite::types::Value,
    user: String,
    at: Option<i64>,
}

impl EventInterest {
    /// Up to where the file has its events; `None` before the first time.
    pub fn position(&self) -> Option<EventPosition> {
        EventPosition::from_bytes(self.position.as_deref()?)
    }

    /// Asks the server for what comes next.
    pub fn call(&self) -> Call {
        let text = |name: &str, text: &str| Argument::new(name, ArgumentValue::from(text));
        let after = self
            .position
            .clone()
            .map(|it| ArgumentValue::Bytes(it.into()));
        Call {
            procedure: "tidewater.events".into(),
            arguments: vec![
                text("space", &self.space),
                text("subject", &self.subject),
                Argument::new("after", after),
                Argument::new("limit", ArgumentValue::from(EVENTS_AT_ONCE)),
            ],
            ..Call::default()
        }
    }
}

/// Publishes packed events of one space.
pub(super) fn publish(space: &str, events: Bytes) -> Call {
    Call {
        procedure: "tidewater.publish".into(),
        arguments: vec![
            Argument::new("space", ArgumentValue::from(space)),
            Argument::new("events", ArgumentValue::Bytes(events)),
        ],
        ..Call::default()
    }
}

impl RemoteDatabase {
    /// What the application is interested in.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn interests(&self) -> Result<Vec<EventInterest>, RemoteError> {
        // Whatever the application has written: the server says what is no subject.
        let sql = "SELECT id, space, subject, CAST(position AS BLOB) FROM tidewater_interest \
                   ORDER BY id";
        let read = |row: &rusqlite::Row<'_>| {
            let text = |column| -> rusqlite::Result<String> {
                let bytes = row.get_ref(column)?.as_bytes().unwrap_or_default();
                Ok(String::from_utf8_lossy(bytes).into_owned())
            };
            Ok(EventInterest {
                id: row.get(0)?,
                space: text(1)?,
                subject: text(2)?,
                position: row.get(3)?,
            })
        };
        let mut statement = self.connection.prepare_cached(sql).doing(DOING)?;
        let interests = statement.query_map([], read).doing(DOING)?;
        interests.collect::<rusqlite::Result<_>>().doing(DOING)
    }

    /// Takes what the server has answered to [`EventInterest::call`]: events and their place, in one
    /// transaction. `None`: the answer cannot be read.
    ///
    /// # Errors
    /// The file is locked, or SQLite failed.
    pub fn take_events(
        &mut self,
        interest: &mut EventInterest,
        answer: &Answer,
        unix_ms: i64,
    ) -> Result<Option<InboxProgress>, RemoteError> {
        let Ok(rows) = answer.unpack() else {
            return Ok(None);
        };
        let told: Option<Vec<InboxRow>> = rows.into_iter().map(InboxRow::from_row).collect();
        let Some(told) = told else {
            return Ok(None);
        };
        let position = told.last().map(|last| last.position.to_vec());
        let position = position.or_else(|| interest.position.clone());
        let count = told.iter().filter(|it| it.event.is_some()).count() as u64;
        if count == 0 && position == interest.position {
            self.note_since(interest, unix_ms)?;
            return Ok(Some(InboxProgress::All));
        }
        let transaction = self.write(DOING)?;
        let moved = transaction
            .execute(
                "UPDATE tidewater_interest SET position = ?2, since = coalesce(since, ?4), \
                 code = NULL, reason = NULL WHERE id = ?1 AND position IS ?3",
                params![interest.id, position, interest.position, unix_ms],
            )
            .doing(DOING)?;
        if moved == 0 {
            return Ok(Some(InboxProgress::Others));
        }
        for (at, row) in told.iter().enumerate() {
            // Before others it says that they may have been here before.
            let is_anew = row.event.is_none() && at + 1 < told.len();
            if row.event.is_some() || is_anew {
                row.write(&transaction, interest, unix_ms).doing(DOING)?;
            }
        }
        transaction.commit().doing(DOING)?;
        interest.position = position;
        Ok(Some(match count {
            0 => InboxProgress::All,
            _ => InboxProgress::More(count),
        }))
    }

    /// Notes why the events of an interest cannot be had. Gives whether that is news: the row does
    /// not say so yet.
    ///
    /// # Errors
    /// The file is locked, or SQLite failed.
    pub fn refuse_interest(
        &mut self,
        interest: &EventInterest,
        code: &str,
        reason: &str,
        unix_ms: i64,
    ) -> Result<bool, RemoteError> {
        self.connection
            .execute(
                "UPDATE tidewater_interest SET code = ?2, reason = ?3, \
                 since = coalesce(since, ?4) WHERE id = ?1 \
                 AND (code IS NOT ?2 OR reason IS NOT ?3)",
                params![interest.id, code, reason, unix_ms],
            )
            .map(|changed| changed > 0)
            .doing(DOING)
    }

    fn note_since(&self, interest: &EventInterest, unix_ms: i64) -> Result<(), RemoteError> {
        self.connection
            .prepare_cached(
                "UPDATE tidewater_interest SET since = coalesce(since, ?2), code = NULL, \
                 reason = NULL WHERE id = ?1 AND (since IS NULL OR code IS NOT NULL)",
            )
            .and_then(|mut statement| statement.execute(params![interest.id, unix_ms]))
            .map(drop)
            .doing(DOING)
    }
}

/// Whether there is an interest that no sync has asked for yet.
pub(super) fn has_new_interest(connection: &Connection) -> Result<bool, RemoteError> {
    connection
        .prepare_cached("SELECT 1 FROM tidewater_interest WHERE since IS NULL")
        .and_then(|mut statement| statement.exists([]))
        .doing("looking for interests")
}

/// How many rows wait for the application.
pub(super) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM tidewater_inbox";
    let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Writes the answer to a row of the outbox.
pub(super) fn answer(
    connection: &Connection,
    outbox: i64,
    answer: &Json,
    unix_ms: i64,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO tidewater_inbox (kind, outbox, payload, received_at) \
               VALUES ('answer', ?1, ?2, ?3)";
    let mut insert = connection.prepare_cached(sql)?;
    insert
        .execute(params![outbox, answer.to_string(), unix_ms])
        .map(drop)
}

impl InboxRow {
    /// A row of the answer: id, check, subject, payload, user, at_ms.
    fn from_row(row: Vec<Value>) -> Option<InboxRow> {
        let mut values = row.into_iter();
        let (id, check) = (values.next()?, values.next()?);
        let mut position = [0; 16];
        let Value::Integer(id) = id else {
            return None;
        };
        position[..8].copy_from_slice(&id.to_le_bytes());
        match check {
            Value::Integer(check) => position[8..].copy_from_slice(&check.to_le_bytes()),
            Value::Blob(check) if check.len() == 8 => position[8..].copy_from_slice(&check),
            _ => return None,
        }
        let event = match values.next()? {
            Value::Null => None,
            Value::Text(subject) => Some(InboxEvent::from_values(subject, values)?),
            _ => return None,
        };
        Some(InboxRow { position, event })
    }

    fn write(
        &self,
        connection: &Connection,
        interest: &EventInterest,
        unix_ms: i64,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO tidewater_inbox \
                   (kind, space, subject, payload, position, user, published_at, received_at) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let mut insert = connection.prepare_cached(sql)?;
        let EventInterest { space, subject, .. } = interest;
        let Some(event) = &self.event else {
            let none = rusqlite::types::Null;
            let anew = params!["anew", space, subject, none, none, none, none, unix_ms];
            return insert.execute(anew).map(drop);
        };
        let subject = event.subject.strip_prefix(space.as_str());
        let subject = subject.and_then(|rest| rest.strip_prefix('/'));
        insert
            .execute(params![
                "event",
                space,
                subject.unwrap_or(&event.subject),
                event.payload,
                self.position,
                event.user,
                event.at,
                unix_ms
            ])
            .map(drop)
    }
}

impl InboxEvent {
    fn from_values(subject: String, mut values: impl Iterator<Item = Value>) -> Option<InboxEvent> {
        let payload = match values.next()? {
            Value::Blob(bytes) => match String::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(error) => error.into_bytes().into(),
            },
            Value::Text(text) => text.into(),
            _ => return None,
        };
        let user = match values.next() {
            Some(Value::Text(user)) => user,
            _ => String::new(),
        };
        let at = match values.next() {
            Some(Value::Integer(at)) => Some(at),
            _ => None,
        };
        Some(InboxEvent {
            subject,
            payload,
            user,
            at,
        })
    }
}
