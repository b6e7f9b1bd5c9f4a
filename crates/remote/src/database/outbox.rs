//! The outbox: calls and events that the application has written down, as it does with rows.
//!
//! An application inserts into `tidewater_outbox` with any driver, in the transaction of its own
//! changes. What it inserts is executed after the upload of everything that was committed before
//! it: a take notes the last row before which all changes were taken, and rows up to that one are
//! executable once nothing that was taken waits for its acknowledgement. The key in each row makes
//! the centre do it once, whoever sends it however often.
//!
//! Owns the rows and their states. Sending is left to whoever drives: [`RemoteDatabase::next_of_outbox`]
//! gives one call after the other, and is told what came of each.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde_json::Value as Json;
use tidewater_protocol::message::{Answer, Call, CallFailed};
use tidewater_protocol::{Code, event, json};

use super::{RemoteDatabase, inbox};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "emptying the outbox";

/// What has become of the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutboxCounts {
    /// Calls that were answered, and events that were published.
    pub answered: u64,
    /// Those that came to nothing; each row tells why.
    pub failed: u64,
    /// Those that the next sync tries.
    pub pending: u64,
}

/// A call to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxCall {
    /// The row.
    pub id: i64,
    /// What is called, under its key.
    pub call: Call,
    /// How long it may take, in milliseconds, if its row has a deadline.
    pub within_ms: Option<u64>,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum OutboxOutcome {
    /// It is done.
    Answered(Answer),
    /// The other side says that it came to nothing.
    Failed(CallFailed),
    /// There is no connection any more; it may have been done or not.
    Lost {
        /// The stable name of what went wrong.
        code: Code,
        /// The same, for people.
        reason: String,
    },
}

/// The way through the outbox, row after row.
#[derive(Debug, Default)]
pub struct OutboxRun {
    last: i64,
    under_way: Option<UnderWay>,
    /// Procedures that nobody provides at the moment, and of whom: what is behind waits, too.
    not_provided: BTreeSet<ProcedureTarget>,
    /// Something is in the way of all of them.
    stopped: bool,
    counts: OutboxCounts,
    inbox: u64,
}

/// A procedure, and who is to do it: anybody, if that is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcedureTarget {
    name: String,
    recipient: String,
}

#[derive(Debug)]
struct UnderWay {
    id: i64,
    wanted: ProcedureTarget,
    is_call: bool,
    /// It may have been done by an earlier sync.
    was_sent: bool,
}

impl OutboxRun {
    /// What was answered and what failed so far, and how many rows came into the inbox.
    pub fn counts(&self) -> (OutboxCounts, u64) {
        (self.counts, self.inbox)
    }
}

/// A row of the outbox as it is stored, whatever that is.
struct OutboxRow {
    id: i64,
    kind: String,
    name: Option<String>,
    recipient: Recipient,
    arguments: Arguments,
    key: Option<[u8; 16]>,
    was_sent: bool,
    deadline: Deadline,
}

enum Recipient {
    Anybody,
    One(String),
    /// No text.
    Unfit,
}

enum Arguments {
    None,
    Text(String),
    Bytes(Vec<u8>),
    /// Neither text nor bytes.
    Unfit,
}

enum Deadline {
    None,
    At(i64),
    /// SQLite does not know it for a time.
    Unfit,
}

/// Why a row cannot be executed.
struct UnfitOutboxRow {
    code: Code,
    reason: String,
}

impl UnfitOutboxRow {
    fn bad(reason: impl Into<String>) -> UnfitOutboxRow {
        UnfitOutboxRow {
            code: Code::BadArgument,
            reason: reason.into(),
        }
    }
}

impl RemoteDatabase {
    /// The next call that the outbox has, once it is told what came of the one before. It is
    /// marked as sent before it is given: whatever happens, it will be asked for again under the
    /// same key. What cannot be executed fails on the way. `None`: there is nothing more to do now.
    ///
    /// # Errors
    /// The file is locked, or SQLite failed. What came of the call before is asked for again.
    pub fn next_of_outbox(
        &mut self,
        emptying: &mut OutboxRun,
        outcome: Option<OutboxOutcome>,
        unix_ms: i64,
    ) -> Result<Option<OutboxCall>, RemoteError> {
        if outcome.is_none() && (emptying.stopped || !has_executable(&self.connection)?) {
            return Ok(None);
        }
        let transaction = self.write(DOING)?;
        if let (Some(under_way), Some(outcome)) = (emptying.under_way.take(), outcome) {
            settle(&transaction, emptying, under_way, outcome, unix_ms)?;
        }
        let next = match emptying.stopped {
            true => None,
            false => choose(&transaction, emptying, unix_ms).doing(DOING)?,
        };
        transaction.commit().doing(DOING)?;
        Ok(next)
    }

    /// How many rows of the outbox wait for a sync.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn waiting_in_outbox(&self) -> Result<u64, RemoteError> {
        waiting(&self.connection).doing("counting the outbox")
    }
}

/// How many rows wait for a sync.
pub(super) fn waiting(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM tidewater_outbox WHERE state IN ('pending', 'sent')";
    let count = |row: &Row<'_>| row.get::<_, i64>(0);
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row([], count)?.unsigned_abs())
}

/// How many rows have failed.
pub(super) fn failed(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM tidewater_outbox WHERE state = 'failed'";
    let count = |row: &Row<'_>| row.get::<_, i64>(0);
    Ok(connection.query_row(sql, [], count)?.unsigned_abs())
}

/// Whether there is a row that no sync has tried yet.
pub(super) fn has_untried(connection: &Connection) -> Result<bool, RemoteError> {
    let sql = "SELECT 1 FROM tidewater_outbox WHERE state IN ('pending', 'sent') \
               AND state = 'pending' AND code IS NULL";
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.exists([]))
        .doing("looking into the outbox")
}

/// Whether there is a row behind the last one before which all changes were taken.
pub(super) fn has_uncovered(connection: &Connection) -> Result<bool, RemoteError> {
    let sql = "SELECT 1 FROM tidewater_outbox WHERE state IN ('pending', 'sent') \
               AND id > (SELECT outbox_covered FROM tidewater_state)";
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.exists([]))
        .doing("looking into the outbox")
}

/// All changes that were committed until now are taken: rows may be executed after those.
pub(super) fn cover(connection: &Connection) -> Result<(), RemoteError> {
    let sql = "UPDATE tidewater_state SET outbox_covered = \
               max(outbox_covered, (SELECT max(id) FROM tidewater_outbox)) \
               WHERE outbox_covered < (SELECT max(id) FROM tidewater_outbox)";
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([]))
        .map(drop)
        .doing("taking what is in the outbox")
}

/// The last row that may be executed: none as long as an upload waits for its acknowledgement, or
/// something is given back to the centre.
const LAST_EXECUTABLE: &str = "(SELECT outbox_covered FROM tidewater_state WHERE NOT EXISTS \
     (SELECT 1 FROM tidewater_subscription WHERE taken_generation IS NOT NULL) \
     AND NOT EXISTS (SELECT 1 FROM tidewater_kept WHERE giving = 1))";

fn has_executable(connection: &Connection) -> Result<bool, RemoteError> {
    let sql = format!(
        "SELECT 1 FROM tidewater_outbox WHERE state IN ('pending', 'sent') \
         AND id <= {LAST_EXECUTABLE}"
    );
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.exists([]))
        .doing("looking into the outbox")
}

fn choose(
    connection: &Connection,
    emptying: &mut OutboxRun,
    unix_ms: i64,
) -> rusqlite::Result<Option<OutboxCall>> {
    let sql = format!(
        "SELECT id, kind, name, arguments, key, state, deadline, \
         CAST(round((julianday(deadline) - 2440587.5) * 86400000.0) AS INTEGER), recipient \
         FROM tidewater_outbox WHERE state IN ('pending', 'sent') AND id > ?1 \
         AND id <= {LAST_EXECUTABLE} ORDER BY id LIMIT 1"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    loop {
        let stored = statement.query_row([emptying.last], read).optional()?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        emptying.last = stored.id;
        let (call, wanted) = match stored.call(unix_ms) {
            Ok(call) => call,
            Err(unfit) => {
                emptying.counts.failed += fail(
                    connection,
                    stored.id,
                    unfit.code.name(),
                    &unfit.reason,
                    unix_ms,
                )?;
                continue;
            }
        };
        if emptying.not_provided.contains(&wanted) {
            continue;
        }
        let sql = "UPDATE tidewater_outbox SET state = 'sent' WHERE id = ?1 AND state = 'pending'";
        connection.prepare_cached(sql)?.execute([stored.id])?;
        emptying.under_way = Some(UnderWay {
            id: stored.id,
            wanted,
            is_call: stored.kind == "call",
            was_sent: stored.was_sent,
        });
        return Ok(Some(call));
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<OutboxRow> {
    let text = |column| -> rusqlite::Result<Option<String>> {
        Ok(match row.get_ref(column)? {
            ValueRef::Text(text) => String::from_utf8(text.to_vec()).ok(),
            _ => None,
        })
    };
    let deadline = match (row.get_ref(6)?, text(6)?) {
        (ValueRef::Null, _) => Deadline::None,
        // `now` and numbers are times to SQLite, too.
        (_, Some(text)) if text.get(4..5) == Some("-") => match row.get(7)? {
            Some(at) => Deadline::At(at),
            None => Deadline::Unfit,
        },
        _ => Deadline::Unfit,
    };
    Ok(OutboxRow {
        id: row.get(0)?,
        kind: text(1)?.unwrap_or_default(),
        name: text(2)?,
        recipient: match row.get_ref(8)? {
            ValueRef::Null => Recipient::Anybody,
            _ => text(8)?.map_or(Recipient::Unfit, Recipient::One),
        },
        arguments: match row.get_ref(3)? {
            ValueRef::Null => Arguments::None,
            ValueRef::Blob(bytes) => Arguments::Bytes(bytes.to_vec()),
            _ => text(3)?.map_or(Arguments::Unfit, Arguments::Text),
        },
        key: match row.get_ref(4)? {
            ValueRef::Blob(key) => key.try_into().ok(),
            _ => None,
        },
        was_sent: text(5)?.as_deref() == Some("sent"),
        deadline,
    })
}

impl OutboxRow {
    /// What is to be called, and under what it is known that nobody provides it.
    fn call(&self, unix_ms: i64) -> Result<(OutboxCall, ProcedureTarget), UnfitOutboxRow> {
        let key = self.key.ok_or_else(|| {
            UnfitOutboxRow::bad("its key has not 16 bytes: leave it out of the INSERT")
        })?;
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| UnfitOutboxRow::bad("it has no name"))?;
        let recipient = match &self.recipient {
            Recipient::Anybody => String::new(),
            Recipient::One(_) if self.kind == "event" => {
                return Err(UnfitOutboxRow::bad(
                    "an event has no recipient: it reaches whoever subscribed",
                ));
            }
            Recipient::One(recipient) => recipient.clone(),
            Recipient::Unfit => return Err(UnfitOutboxRow::bad("its recipient is no text")),
        };
        let within_ms = self.left(unix_ms)?;
        let mut call = match self.kind.as_str() {
            "call" => self.procedure(name)?,
            "event" => self.event(name)?,
            kind => {
                let reason = format!("its kind is {kind:?}, and there are call and event");
                return Err(UnfitOutboxRow::bad(reason));
            }
        };
        call.key = Bytes::copy_from_slice(&key);
        call.to.clone_from(&recipient);
        let id = self.id;
        let call = OutboxCall {
            id,
            call,
            within_ms,
        };
        let wanted = ProcedureTarget {
            name: name.to_owned(),
            recipient,
        };
        Ok((call, wanted))
    }

    /// How much time there is.
    fn left(&self, unix_ms: i64) -> Result<Option<u64>, UnfitOutboxRow> {
        let at = match self.deadline {
            Deadline::None => return Ok(None),
            Deadline::At(at) => at,
            Deadline::Unfit => {
                return Err(UnfitOutboxRow::bad(
                    "its deadline is no time in UTC like 2026-11-26T10:00:00Z",
                ));
            }
        };
        match at.checked_sub(unix_ms) {
            Some(left) if left > 0 => Ok(Some(left.unsigned_abs())),
            _ if self.was_sent => Err(UnfitOutboxRow {
                code: Code::OutcomeUnknown,
                reason: "it was sent, no answer came, and its deadline has passed: it may have \
                         been done or not"
                    .into(),
            }),
            _ => Err(UnfitOutboxRow {
                code: Code::DeadlineExceeded,
                reason: "its deadline had passed before it could be sent: it was not done".into(),
            }),
        }
    }

    fn procedure(&self, name: &str) -> Result<Call, UnfitOutboxRow> {
        if name.starts_with("tidewater.") {
            return Err(UnfitOutboxRow::bad(
                "procedures of the server's own cannot be called from here",
            ));
        }
        let none = || UnfitOutboxRow::bad("its arguments are no JSON object");
        let arguments = match &self.arguments {
            Arguments::None => Vec::new(),
            Arguments::Text(text) => match serde_json::from_str(text) {
                Ok(Json::Object(object)) => json::arguments(&object),
                Ok(_) => return Err(none()),
                Err(error) => {
                    let reason = format!("its arguments are no JSON: {error}");
                    return Err(UnfitOutboxRow::bad(reason));
                }
            },
            Arguments::Bytes(_) | Arguments::Unfit => return Err(none()),
        };
        Ok(Call {
            procedure: name.to_owned(),
            arguments,
            ..Call::default()
        })
    }

    fn event(&self, name: &str) -> Result<Call, UnfitOutboxRow> {
        let payload = match &self.arguments {
            Arguments::None => &[],
            Arguments::Text(text) => text.as_bytes(),
            Arguments::Bytes(bytes) => &bytes[..],
            Arguments::Unfit => {
                return Err(UnfitOutboxRow::bad("its payload is neither text nor bytes"));
            }
        };
        let space = match name.split_once('/') {
            Some((space, subject)) if !space.is_empty() && !subject.is_empty() => space,
            _ => return Err(UnfitOutboxRow::bad("the name of an event is SPACE/SUBJECT")),
        };
        let mut packed = BytesMut::new();
        event::put_event(&mut packed, name, None, payload).map_err(|error| UnfitOutboxRow {
            code: error.code(),
            reason: error.to_string(),
        })?;
        Ok(inbox::publish(space, packed.freeze()))
    }
}

fn settle(
    connection: &Connection,
    emptying: &mut OutboxRun,
    under_way: UnderWay,
    outcome: OutboxOutcome,
    unix_ms: i64,
) -> Result<(), RemoteError> {
    let id = under_way.id;
    let failed = match outcome {
        OutboxOutcome::Answered(answer) => match json::answer(&answer) {
            Ok(answer) => {
                let answered = answered(connection, &under_way, &answer, unix_ms).doing(DOING)?;
                emptying.counts.answered += answered;
                emptying.inbox += answered * u64::from(under_way.is_call);
                return Ok(());
            }
            Err(_) => CallFailed::new(
                Code::MalformedMessage,
                "it was done, but its answer cannot be read",
                "",
            ),
        },
        OutboxOutcome::Failed(failed) => failed,
        OutboxOutcome::Lost { code, reason } => {
            emptying.stopped = true;
            return later(connection, id, true, code.name(), &reason).doing(DOING);
        }
    };
    let code = failed.code();
    let name = code.map_or_else(|| failed.code.to_string(), |code| code.name().into());
    match code {
        // What others have provided meanwhile can go on.
        Some(Code::NoProvider) => {
            emptying.not_provided.insert(under_way.wanted);
            later(connection, id, under_way.was_sent, &name, &failed.message).doing(DOING)
        }
        // It may have been committed just before its time was over: its key tells that next time.
        Some(Code::DeadlineExceeded) if !under_way.was_sent => {
            later(connection, id, true, &name, &failed.message).doing(DOING)
        }
        // What takes too long would take too long again and again.
        Some(Code::DeadlineExceeded) => {
            let reason = format!(
                "it took too long, again: it may have been done or not; {}",
                failed.message
            );
            let name = Code::OutcomeUnknown.name();
            emptying.counts.failed += fail(connection, id, name, &reason, unix_ms).doing(DOING)?;
            Ok(())
        }
        Some(code) if code.is_transient() => {
            emptying.stopped = true;
            // Whether a database that was lost has committed before, nobody knows.
            let not_begun = [Code::Busy, Code::ShuttingDown].contains(&code);
            let sent = under_way.was_sent || !not_begun;
            later(connection, id, sent, &name, &failed.message).doing(DOING)
        }
        _ => {
            let mut reason = failed.message;
            if !failed.own_code.is_empty() {
                reason = format!("{reason} ({})", failed.own_code);
            }
            if !failed.hint.is_empty() {
                reason = format!("{reason}; {}", failed.hint);
            }
            emptying.counts.failed += fail(connection, id, &name, &reason, unix_ms).doing(DOING)?;
            Ok(())
        }
    }
}

/// Another sync of the file may have been told before, or the application have withdrawn the row:
/// then this is no news.
fn answered(
    connection: &Connection,
    under_way: &UnderWay,
    answer: &Json,
    unix_ms: i64,
) -> rusqlite::Result<u64> {
    let sql = "UPDATE tidewater_outbox SET state = 'answered', code = NULL, reason = NULL, \
               settled_at = ?2 WHERE id = ?1 AND state IN ('pending', 'sent')";
    let mut update = connection.prepare_cached(sql)?;
    let changed = update.execute(params![under_way.id, unix_ms])?;
    if changed > 0 && under_way.is_call {
        inbox::answer(connection, under_way.id, answer, unix_ms)?;
    }
    Ok(changed as u64)
}

fn fail(
    connection: &Connection,
    id: i64,
    code: &str,
    reason: &str,
    unix_ms: i64,
) -> rusqlite::Result<u64> {
    let sql = "UPDATE tidewater_outbox SET state = 'failed', code = ?2, reason = ?3, \
               settled_at = ?4 WHERE id = ?1 AND state IN ('pending', 'sent')";
    let mut update = connection.prepare_cached(sql)?;
    let changed = update.execute(params![id, code, reason, unix_ms])?;
    Ok(changed as u64)
}

/// The next sync tries it again.
fn later(
    connection: &Connection,
    id: i64,
    may_be_done: bool,
    code: &str,
    reason: &str,
) -> rusqlite::Result<()> {
    let state = if may_be_done { "sent" } else { "pending" };
    let sql = "UPDATE tidewater_outbox SET state = ?2, code = ?3, reason = ?4 \
               WHERE id = ?1 AND state IN ('pending', 'sent')";
    let mut update = connection.prepare_cached(sql)?;
    update.execute(params![id, state, code, reason]).map(drop)
}
