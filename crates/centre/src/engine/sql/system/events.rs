//! Durable events, and the number of the last one of each space.

use tidewater_protocol::Value;

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::{EVENT, SPACE};

statements! {
    TAKE_NUMBERS = SystemSql::Insert(&SystemInsert {
        table: &SPACE,
        columns: &["name", "last"],
        source: InsertSource::Rows,
        taken: TakenKey::Updates {
            set: &[("last", "{old.last} + {new.last}")],
            only_if: None,
        },
        returning: &["name", "last"],
    });
    FIND_LAST_NUMBERS = SystemSql::Text(
        "SELECT v.n, last FROM {rows TEXT} JOIN tidewater.space ON name = v.c1",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &EVENT,
        columns: &[
            "space",
            "id",
            "check_bytes",
            "subject",
            "payload",
            "user_name",
            "at_ms",
        ],
        source: InsertSource::Rows,
        taken: TakenKey::Fails,
        returning: &[],
    });
    LIST = SystemSql::Text(
        "SELECT id, check_bytes, subject, payload, user_name, at_ms FROM (
           SELECT e.*, sum(length(payload)) OVER (ORDER BY id) - length(payload) AS bytes_before
           FROM (SELECT id, check_bytes, subject, payload, user_name, at_ms FROM tidewater.event
                 WHERE space = ?1 AND id > ?2 ORDER BY id LIMIT ?3) e) s
         WHERE bytes_before < ?4 ORDER BY id",
    );
    /// From subject to subject by the index, whatever the number of their events.
    LIST_LAST_VALUES = SystemSql::Text(
        "WITH RECURSIVE subjects (subject) AS (
           SELECT (SELECT subject FROM tidewater.event WHERE space = ?1 AND subject > ?2
                   ORDER BY subject LIMIT 1)
           UNION ALL
           SELECT (SELECT e.subject FROM tidewater.event e
                   WHERE e.space = ?1 AND e.subject > s.subject ORDER BY e.subject LIMIT 1)
           FROM subjects s WHERE s.subject IS NOT NULL
         ), found AS (SELECT subject FROM subjects WHERE subject IS NOT NULL LIMIT ?3)
         SELECT id, check_bytes, subject, payload, user_name, at_ms FROM (
           SELECT e.*, sum(length(payload)) OVER (ORDER BY subject) - length(payload)
             AS bytes_before
           FROM tidewater.event e WHERE space = ?1 AND id IN (
             SELECT (SELECT max(m.id) FROM tidewater.event m
                     WHERE m.space = ?1 AND m.subject = f.subject) FROM found f)) s
         WHERE bytes_before < ?4 ORDER BY subject",
    );
    READ_CHECK = SystemSql::Text(
        "SELECT check_bytes FROM tidewater.event WHERE space = ?1 AND id = ?2",
    );
    READ_PIECE = SystemSql::Text(
        "SELECT max(id), min(at_ms) FROM (SELECT id, at_ms FROM tidewater.event
         WHERE space = ?1 AND id > ?2 ORDER BY id LIMIT ?3) p",
    );
    PRUNE = SystemSql::Text(
        "DELETE FROM tidewater.event
         WHERE space = ?1 AND id > ?2 AND id <= ?3 AND at_ms < ?4",
    );
    PRUNE_BUT_LAST = SystemSql::Delete(&SystemDelete {
        table: &EVENT,
        condition: "space = ?1 AND id > ?2 AND id <= ?3 AND at_ms < ?4
                    AND id < (SELECT max(m.id) FROM tidewater.event m WHERE m.space = ?1
                      AND m.subject = tidewater.event.subject)",
        limit: None,
    });
}

/// An event that is to be kept.
pub(in crate::engine) struct EventRow<'e> {
    pub(in crate::engine) space: &'e str,
    pub(in crate::engine) id: u64,
    pub(in crate::engine) check: &'e [u8],
    pub(in crate::engine) subject: &'e str,
    pub(in crate::engine) payload: &'e [u8],
    pub(in crate::engine) user: &'e str,
    pub(in crate::engine) now_ms: i64,
}

impl EventRow<'_> {
    /// A row of [`insert`].
    pub(in crate::engine) fn values(&self) -> Vec<Value> {
        system_row![
            self.space,
            self.id,
            self.check,
            self.subject,
            self.payload,
            self.user,
            self.now_ms,
        ]
    }
}

/// How much of a space's events is read: behind what, how many, and how many bytes of payload.
pub(in crate::engine) struct EventRange<T> {
    pub(in crate::engine) after: T,
    pub(in crate::engine) limit: u64,
    pub(in crate::engine) max_bytes: u64,
}

/// Events of a space from one behind `from` to `to` that are from before a time.
pub(in crate::engine) struct PrunedEvents<'e> {
    pub(in crate::engine) space: &'e str,
    pub(in crate::engine) from: u64,
    pub(in crate::engine) to: u64,
    pub(in crate::engine) before_ms: i64,
    /// Whether the last event of each subject stays.
    pub(in crate::engine) keeps_last: bool,
}

/// So many numbers of each space; gives the space's name and the last number.
pub(in crate::engine) fn take_numbers<'e>(
    counts: impl Iterator<Item = (&'e str, u64)>,
) -> SystemStatement {
    let rows = counts.map(|(space, count)| system_row![space, count]);
    each(TAKE_NUMBERS, rows.collect())
}

/// The row's number and the last event's of each space that has some.
pub(in crate::engine) fn find_last_numbers(spaces: &[String]) -> SystemStatement {
    each(
        FIND_LAST_NUMBERS,
        spaces.iter().map(|it| system_row![it]).collect(),
    )
}

/// See [`EventRow::values`].
pub(in crate::engine) fn insert(rows: Vec<Vec<Value>>) -> SystemStatement {
    each(INSERT, rows)
}

/// Number, check, subject, payload, user and time, in the order of the numbers. The first one comes
/// whatever its size.
pub(in crate::engine) fn list(space: &str, range: &EventRange<u64>) -> SystemStatement {
    system_sql!(
        LIST,
        space,
        range.after,
        range.limit,
        range.max_bytes.max(1),
    )
}

/// The same of the last event of each subject, in their order.
pub(in crate::engine) fn list_last_values(
    space: &str,
    range: &EventRange<&str>,
) -> SystemStatement {
    system_sql!(
        LIST_LAST_VALUES,
        space,
        range.after,
        range.limit,
        range.max_bytes.max(1),
    )
}

pub(in crate::engine) fn read_check(space: &str, id: u64) -> SystemStatement {
    system_sql!(READ_CHECK, space, id)
}

/// Of so many events behind one: the number of the last, and the time of the oldest.
pub(in crate::engine) fn read_piece(space: &str, from: u64, count: u64) -> SystemStatement {
    system_sql!(READ_PIECE, space, from, count)
}

pub(in crate::engine) fn prune(pruned: &PrunedEvents<'_>) -> SystemStatement {
    let delete = match pruned.keeps_last {
        false => PRUNE,
        true => PRUNE_BUT_LAST,
    };
    system_sql!(
        delete,
        pruned.space,
        pruned.from,
        pruned.to,
        pruned.before_ms,
    )
}
