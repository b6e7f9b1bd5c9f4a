//! The conflicts that are kept for people.

use tidewater_protocol::{RemoteId, Value};

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::CONFLICT;
use crate::records::{ConflictFilter, ConflictOutcome};

macro_rules! select {
    ($rest:literal) => {
        SystemSql::Text(concat!(
            "SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation,
             pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as
             FROM tidewater.conflict ",
            $rest
        ))
    };
}

statements! {
    LIST = select!("ORDER BY id");
    FIND = select!(
        "WHERE (?1 = '' OR table_name = ?1) AND (?2 = '' OR user_name = ?2)
         AND (?3 = '' OR outcome = ?3)
         AND (?4 = '' OR (outcome = ?4 AND settled_ms IS NULL))
         ORDER BY id DESC LIMIT ?5"
    );
    READ = select!("WHERE id = ?1");
    LIST_OF_ROW = select!("WHERE table_name = ?1 AND row_key = ?2 ORDER BY id DESC");
    READ_NOTES = SystemSql::Text("SELECT sync_notes FROM tidewater.conflict WHERE id = ?1");
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &CONFLICT,
        columns: &[
            "at_ms",
            "remote_id",
            "user_name",
            "publication",
            "table_name",
            "row_key",
            "operation",
            "pre_image",
            "uploaded",
            "winner",
            "replaced",
            "outcome",
            "sync_notes",
        ],
        source: InsertSource::RowsInOrder,
        taken: TakenKey::Fails,
        returning: &[],
    });
    LOCK = SystemSql::Text("UPDATE tidewater.conflict SET outcome = outcome WHERE id = ?1");
    SETTLE = SystemSql::Text(
        "UPDATE tidewater.conflict SET settled_ms = ?2, settled_by = ?3, settled_as = ?4
         WHERE id = ?1",
    );
    /// One that waits for the operator stays.
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &CONFLICT,
        condition: "at_ms < ?1 AND (outcome <> 'parked' OR settled_ms IS NOT NULL)",
        limit: Some("?2"),
    });
}

/// A conflict that is to be kept. Images are JSON.
pub(in crate::engine) struct ConflictRow<'c> {
    pub(in crate::engine) now_ms: i64,
    pub(in crate::engine) remote_id: RemoteId,
    pub(in crate::engine) user: &'c str,
    pub(in crate::engine) publication: &'c str,
    pub(in crate::engine) table: &'c str,
    pub(in crate::engine) key: &'c str,
    pub(in crate::engine) operation: &'c str,
    pub(in crate::engine) pre_image: Option<&'c str>,
    pub(in crate::engine) uploaded: Option<&'c str>,
    pub(in crate::engine) winner: Option<&'c str>,
    pub(in crate::engine) replaced: Option<&'c str>,
    pub(in crate::engine) outcome: ConflictOutcome,
    pub(in crate::engine) sync_notes: String,
}

impl ConflictRow<'_> {
    /// A row of [`insert`].
    pub(in crate::engine) fn values(&self) -> Vec<Value> {
        system_row![
            self.now_ms,
            self.remote_id,
            self.user,
            self.publication,
            self.table,
            self.key,
            self.operation,
            self.pre_image,
            self.uploaded,
            self.winner,
            self.replaced,
            self.outcome.name(),
            self.sync_notes,
        ]
    }
}

/// The oldest first.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// The newest first.
pub(in crate::engine) fn find(filter: &ConflictFilter) -> SystemStatement {
    // What is not asked for is empty: no table, user or outcome is.
    system_sql!(
        FIND,
        filter.table.as_deref().unwrap_or_default(),
        filter.user.as_deref().unwrap_or_default(),
        filter.outcome.map_or("", ConflictOutcome::name),
        match filter.open {
            true => ConflictOutcome::Parked.name(),
            false => "",
        },
        filter.limit,
    )
}

pub(in crate::engine) fn read(id: i64) -> SystemStatement {
    system_sql!(READ, id)
}

/// The newest first.
pub(in crate::engine) fn list_of_row(table: &str, key: &str) -> SystemStatement {
    system_sql!(LIST_OF_ROW, table, key)
}

/// What the scripts of the sync went by.
pub(in crate::engine) fn read_notes(id: i64) -> SystemStatement {
    system_sql!(READ_NOTES, id)
}

/// Keeps conflicts; see [`ConflictRow::values`].
pub(in crate::engine) fn insert(rows: Vec<Vec<Value>>) -> SystemStatement {
    each(INSERT, rows)
}

pub(in crate::engine) fn lock(id: i64) -> SystemStatement {
    system_sql!(LOCK, id)
}

/// Notes when, by whom and as which version it was settled.
pub(in crate::engine) fn settle(id: i64, now_ms: i64, by: &str, version: &str) -> SystemStatement {
    system_sql!(SETTLE, id, now_ms, by, version)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
