//! The history of syncs.

use tidewater_protocol::{RemoteId, Value};

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::SYNC_HISTORY;
use crate::records::SyncRecord;

macro_rules! select {
    ($rest:literal) => {
        SystemSql::Text(concat!(
            "SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts, updates,
             deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error
             FROM tidewater.sync_history ",
            $rest
        ))
    };
}

statements! {
    LIST_LAST = select!("ORDER BY started_ms DESC, id DESC LIMIT 20");
    LIST_UPLOADS = select!(
        "WHERE inserts + updates + deletes > 0
         AND started_ms <= ?2 AND started_ms + duration_ms >= ?1
         ORDER BY started_ms DESC, id DESC LIMIT ?3"
    );
    READ_LAST_END = SystemSql::Text(
        "SELECT max(started_ms + duration_ms) FROM tidewater.sync_history
         WHERE remote_id = ?1 AND error = ''",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &SYNC_HISTORY,
        columns: &[
            "remote_id",
            "user_name",
            "publications",
            "started_ms",
            "duration_ms",
            "inserts",
            "updates",
            "deletes",
            "upserts",
            "removals",
            "conflicts",
            "refused",
            "bytes_received",
            "bytes_sent",
            "error",
        ],
        source: InsertSource::Rows,
        taken: TakenKey::Fails,
        returning: &[],
    });
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &SYNC_HISTORY,
        condition: "started_ms < ?1",
        limit: Some("?2"),
    });
}

/// The last 20, the newest first.
pub(in crate::engine) fn list_last() -> SystemStatement {
    system_sql!(LIST_LAST)
}

/// Those that have changed rows in the centre and were under way between two times, the newest first.
pub(in crate::engine) fn list_uploads(
    (after_ms, before_ms): (i64, i64),
    limit: u64,
) -> SystemStatement {
    system_sql!(LIST_UPLOADS, after_ms, before_ms, limit)
}

/// When the last one of a remote ended that did not fail.
pub(in crate::engine) fn read_last_end(id: RemoteId) -> SystemStatement {
    system_sql!(READ_LAST_END, id)
}

pub(in crate::engine) fn insert(records: &[SyncRecord]) -> SystemStatement {
    each(INSERT, records.iter().map(row).collect())
}

fn row(record: &SyncRecord) -> Vec<Value> {
    let [inserts, updates, deletes] = record.uploaded;
    let [upserts, removals] = record.downloaded;
    let [received, sent] = record.bytes;
    system_row![
        record.remote_id,
        record.user,
        record.publications,
        record.started_ms,
        record.duration_ms,
        inserts,
        updates,
        deletes,
        upserts,
        removals,
        record.conflicts,
        record.refused,
        received,
        sent,
        record.error,
    ]
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
