//! The refused rows that nobody has settled: each attempt is a row.

use tidewater_protocol::{RemoteId, Value};

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::REFUSED;
use crate::records::RefusedFilter;

/// The columns that are read, but for the number of attempts, which follows them.
macro_rules! columns {
    () => {
        "r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key,
         r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table,
         r.parent_key"
    };
}
pub(super) use columns;

/// Each row by its last attempt.
macro_rules! select {
    ($rest:literal) => {
        SystemSql::Text(concat!(
            "SELECT ",
            columns!(),
            ", g.attempts FROM (SELECT max(id) AS id, count(*) AS attempts FROM tidewater.refused
             GROUP BY remote_id, publication, table_name, row_key) AS g
             JOIN tidewater.refused AS r ON r.id = g.id ",
            $rest
        ))
    };
}

statements! {
    LIST = SystemSql::Text(concat!(
        "SELECT ",
        columns!(),
        ", 1 FROM tidewater.refused AS r ORDER BY r.id"
    ));
    FIND = select!(
        "WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2)
         AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4"
    );
    LIST_OF_ROW = select!("WHERE r.table_name = ?1 AND r.row_key = ?2");
    READ = SystemSql::Text(concat!(
        "SELECT ",
        columns!(),
        ", (SELECT count(*) FROM tidewater.refused AS b WHERE b.remote_id = r.remote_id
         AND b.publication = r.publication AND b.table_name = r.table_name
         AND b.row_key = r.row_key)
         FROM tidewater.refused AS a JOIN tidewater.refused AS r
         ON a.remote_id = r.remote_id AND a.publication = r.publication
         AND a.table_name = r.table_name AND a.row_key = r.row_key
         WHERE a.id = ?1 ORDER BY r.id DESC LIMIT 1"
    ));
    READ_NOTES = SystemSql::Text("SELECT sync_notes FROM tidewater.refused WHERE id = ?1");
    LIST_ATTEMPTS = SystemSql::Text(
        "SELECT id FROM tidewater.refused WHERE remote_id = ?1 AND publication = ?2
         AND table_name = ?3 AND row_key = ?4",
    );
    LIST_OF_REMOTE = SystemSql::Text(
        "SELECT id, table_name, row_key, code, sequence FROM tidewater.refused
         WHERE remote_id = ?1 AND publication = ?2",
    );
    LIST_INSERTS_OF_REMOTE = SystemSql::Text(
        "SELECT table_name, row_key, uploaded, sequence, code FROM tidewater.refused
         WHERE remote_id = ?1 AND publication = ?2 AND operation = 'insert'",
    );
    LIST_WRITES_OF_REMOTE = SystemSql::Text(
        "SELECT table_name, row_key, uploaded FROM tidewater.refused
         WHERE remote_id = ?1 AND publication = ?2 AND operation <> 'delete'",
    );
    FIND_REMOTES = SystemSql::Text(
        "SELECT DISTINCT r.remote_id FROM {rows BLOB TEXT}
         JOIN tidewater.refused r ON r.remote_id = v.c1 AND r.publication = v.c2",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &REFUSED,
        columns: &[
            "at_ms",
            "remote_id",
            "user_name",
            "publication",
            "table_name",
            "row_key",
            "operation",
            "uploaded",
            "code",
            "reason",
            "sequence",
            "pre_image",
            "parent_table",
            "parent_key",
            "sync_notes",
        ],
        source: InsertSource::RowsInOrder,
        taken: TakenKey::Fails,
        returning: &[],
    });
    LOCK = SystemSql::Text("UPDATE tidewater.refused SET code = code WHERE id = ?1");
    DELETE = SystemSql::Text(
        "DELETE FROM tidewater.refused WHERE id IN (SELECT v.c1 FROM {rows INTEGER})",
    );
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &REFUSED,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// A refused row that is to be kept. Images are JSON.
pub(in crate::engine) struct RefusedAttempt<'r> {
    pub(in crate::engine) now_ms: i64,
    pub(in crate::engine) remote_id: RemoteId,
    pub(in crate::engine) user: &'r str,
    pub(in crate::engine) publication: &'r str,
    pub(in crate::engine) table: &'r str,
    pub(in crate::engine) key: &'r str,
    pub(in crate::engine) operation: &'r str,
    pub(in crate::engine) uploaded: &'r str,
    pub(in crate::engine) code: &'r str,
    pub(in crate::engine) reason: &'r str,
    pub(in crate::engine) sequence: u64,
    pub(in crate::engine) pre_image: Option<&'r str>,
    /// Table and key of the refused row that it refers to.
    pub(in crate::engine) parent: Option<(String, &'r str)>,
    pub(in crate::engine) sync_notes: String,
}

impl RefusedAttempt<'_> {
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
            self.uploaded,
            self.code,
            self.reason,
            self.sequence,
            self.pre_image,
            self.parent.as_ref().map(|it| &it.0),
            self.parent.as_ref().map(|it| it.1),
            self.sync_notes,
        ]
    }
}

/// Every attempt, the oldest first.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// Each row by its last attempt, the newest first.
pub(in crate::engine) fn find(filter: &RefusedFilter) -> SystemStatement {
    // What is not asked for is empty: no table, user or code is.
    system_sql!(
        FIND,
        filter.table.as_deref().unwrap_or_default(),
        filter.user.as_deref().unwrap_or_default(),
        filter.cause.as_deref().unwrap_or_default(),
        filter.limit,
    )
}

/// Of each remote once, by the last attempt.
pub(in crate::engine) fn list_of_row(table: &str, key: &str) -> SystemStatement {
    system_sql!(LIST_OF_ROW, table, key)
}

/// The last attempt at a row, given by any.
pub(in crate::engine) fn read(id: i64) -> SystemStatement {
    system_sql!(READ, id)
}

/// What the scripts of the sync went by.
pub(in crate::engine) fn read_notes(id: i64) -> SystemStatement {
    system_sql!(READ_NOTES, id)
}

/// The numbers of the attempts at a row of a remote.
pub(in crate::engine) fn list_attempts(
    id: RemoteId,
    publication: &str,
    table: &str,
    key: &str,
) -> SystemStatement {
    system_sql!(LIST_ATTEMPTS, id, publication, table, key)
}

/// Number, table, key, code and the upload's number of each attempt.
pub(in crate::engine) fn list_of_remote(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(LIST_OF_REMOTE, id, publication)
}

/// Table, key, image, the upload's number and code of inserts.
pub(in crate::engine) fn list_inserts_of_remote(
    id: RemoteId,
    publication: &str,
) -> SystemStatement {
    system_sql!(LIST_INSERTS_OF_REMOTE, id, publication)
}

/// Table, key and image of all but deletes.
pub(in crate::engine) fn list_writes_of_remote(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(LIST_WRITES_OF_REMOTE, id, publication)
}

/// Those of some remotes of which something is refused in these publications.
pub(in crate::engine) fn find_remotes<'r>(
    subscriptions: impl Iterator<Item = (RemoteId, &'r str)>,
) -> SystemStatement {
    let rows = subscriptions.map(|(id, publication)| system_row![id, publication]);
    each(FIND_REMOTES, rows.collect())
}

/// Keeps refused rows; see [`RefusedAttempt::values`].
pub(in crate::engine) fn insert(rows: Vec<Vec<Value>>) -> SystemStatement {
    each(INSERT, rows)
}

pub(in crate::engine) fn lock(id: i64) -> SystemStatement {
    system_sql!(LOCK, id)
}

pub(in crate::engine) fn delete<'i>(ids: impl Iterator<Item = &'i i64>) -> SystemStatement {
    each(DELETE, ids.map(|id| system_row![*id]).collect())
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
