//! What remotes and the centre were found at odds about.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::INCIDENT;
use crate::records::IncidentRecord;

statements! {
    COUNT = SystemSql::Text(
        "SELECT kind, count(*) FROM tidewater.incident GROUP BY kind ORDER BY kind",
    );
    LIST_LAST = SystemSql::Text(
        "SELECT at_ms, kind, remote_id, user_name, publication, detail
         FROM tidewater.incident ORDER BY id DESC LIMIT 20",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &INCIDENT,
        columns: &["at_ms", "kind", "remote_id", "user_name", "publication", "detail"],
        source: InsertSource::Values(&["?1", "?2", "?3", "?4", "?5", "?6"]),
        taken: TakenKey::Fails,
        returning: &[],
    });
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &INCIDENT,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// How many there are of each kind.
pub(in crate::engine) fn count() -> SystemStatement {
    system_sql!(COUNT)
}

/// The last 20, the newest first.
pub(in crate::engine) fn list_last() -> SystemStatement {
    system_sql!(LIST_LAST)
}

pub(in crate::engine) fn insert(incident: &IncidentRecord) -> SystemStatement {
    system_sql!(
        INSERT,
        incident.at_ms,
        incident.kind.name(),
        incident.remote_id,
        incident.user,
        incident.publication,
        incident.detail,
    )
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
