//! Uploads that were forgotten, and have come back.

use tidewater_protocol::UploadId;

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::GIVEN_BACK;

statements! {
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &GIVEN_BACK,
        columns: &["upload_id", "at_ms"],
        source: InsertSource::Values(&["?1", "?2"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    DELETE_ALL = SystemSql::Text("DELETE FROM tidewater.given_back");
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &GIVEN_BACK,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// Changes nothing if it is noted.
pub(in crate::engine) fn insert(id: UploadId, now_ms: i64) -> SystemStatement {
    system_sql!(INSERT, id, now_ms)
}

pub(in crate::engine) fn delete_all() -> SystemStatement {
    system_sql!(DELETE_ALL)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
