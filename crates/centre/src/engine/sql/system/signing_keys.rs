//! The keys with which the server signs.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::SIGNING_KEY;
use crate::records::SigningKey;

statements! {
    LIST = SystemSql::Text(
        "SELECT id, secret, created_ms FROM tidewater.signing_key
         ORDER BY created_ms DESC, id DESC",
    );
    FIND_ANY = SystemSql::Text("SELECT 1 FROM tidewater.signing_key LIMIT 1");
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &SIGNING_KEY,
        columns: &["id", "secret", "created_ms"],
        source: InsertSource::Values(&["?1", "?2", "?3"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    INSERT_FIRST = SystemSql::Insert(&SystemInsert {
        table: &SIGNING_KEY,
        columns: &["id", "secret", "created_ms"],
        source: InsertSource::Values(&["1", "?1", "?2"]),
        taken: TakenKey::Fails,
        returning: &[],
    });
    INSERT_NEXT = SystemSql::Insert(&SystemInsert {
        table: &SIGNING_KEY,
        columns: &["id", "secret", "created_ms"],
        source: InsertSource::Query(
            "SELECT coalesce(max(id), 0) + 1, ?1, ?2 FROM tidewater.signing_key",
        ),
        taken: TakenKey::Fails,
        returning: &[],
    });
    DELETE_UNLESS_LAST = SystemSql::Delete(&SystemDelete {
        table: &SIGNING_KEY,
        condition: "id = ?1 AND EXISTS (SELECT 1 FROM tidewater.signing_key WHERE id <> ?1)",
        limit: None,
    });
    DELETE_OTHERS = SystemSql::Text("DELETE FROM tidewater.signing_key WHERE secret <> ?1");
    /// A key goes when it was superseded longer ago than a watermark can be of use.
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &SIGNING_KEY,
        condition: "EXISTS (SELECT 1 FROM tidewater.signing_key newer
                    WHERE newer.id > tidewater.signing_key.id AND newer.created_ms < ?1)",
        limit: Some("?2"),
    });
}

/// The newest first.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// A row if there is a key.
pub(in crate::engine) fn find_any() -> SystemStatement {
    system_sql!(FIND_ANY)
}

/// Changes nothing if there is a key of this number.
pub(in crate::engine) fn insert(key: &SigningKey) -> SystemStatement {
    system_sql!(INSERT, key.id, key.secret, key.created_ms)
}

pub(in crate::engine) fn insert_first(secret: &[u8], now_ms: i64) -> SystemStatement {
    system_sql!(INSERT_FIRST, secret, now_ms)
}

/// Under the number behind the last one.
pub(in crate::engine) fn insert_next(secret: &[u8], now_ms: i64) -> SystemStatement {
    system_sql!(INSERT_NEXT, secret, now_ms)
}

pub(in crate::engine) fn delete_unless_last(id: u32) -> SystemStatement {
    system_sql!(DELETE_UNLESS_LAST, id)
}

pub(in crate::engine) fn delete_others(secret: &[u8]) -> SystemStatement {
    system_sql!(DELETE_OTHERS, secret)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
