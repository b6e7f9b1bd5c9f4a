//! The keys of what takes effect once.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::ONCE;

statements! {
    READ = SystemSql::Text(
        "SELECT kind, procedure_name, outcome, at_ms FROM tidewater.once
         WHERE user_name = ?1 AND call_key = ?2",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &ONCE,
        columns: &["user_name", "call_key", "kind", "procedure_name", "at_ms"],
        source: InsertSource::Values(&["?1", "?2", "?3", "?4", "?5"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    INSERT_FINISHED = SystemSql::Insert(&SystemInsert {
        table: &ONCE,
        columns: &[
            "user_name",
            "call_key",
            "kind",
            "procedure_name",
            "at_ms",
            "outcome",
        ],
        source: InsertSource::Values(&["?1", "?2", "?3", "?4", "?5", "?6"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    FINISH = SystemSql::Text(
        "UPDATE tidewater.once SET outcome = ?4
         WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL",
    );
    DELETE_UNFINISHED = SystemSql::Text(
        "DELETE FROM tidewater.once
         WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL",
    );
    /// Keys go with the logs: whoever comes back later has been told to begin anew.
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &ONCE,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// A key, by the user who chose it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct OnceKey<'k> {
    pub(in crate::engine) user: &'k str,
    pub(in crate::engine) key: [u8; 16],
}

/// What a key is used for.
#[derive(Clone, Copy)]
pub(in crate::engine) struct OnceUse<'k> {
    pub(in crate::engine) kind: i64,
    /// The procedure's name; empty if it is none.
    pub(in crate::engine) procedure: &'k str,
    pub(in crate::engine) now_ms: i64,
}

/// Kind, procedure, outcome and time.
pub(in crate::engine) fn read(key: OnceKey<'_>) -> SystemStatement {
    system_sql!(READ, key.user, key.key[..])
}

/// Changes nothing if the key is taken.
pub(in crate::engine) fn insert(key: OnceKey<'_>, used: OnceUse<'_>) -> SystemStatement {
    system_sql!(
        INSERT,
        key.user,
        key.key[..],
        used.kind,
        used.procedure,
        used.now_ms,
    )
}

/// The same with the outcome.
pub(in crate::engine) fn insert_finished(
    key: OnceKey<'_>,
    used: OnceUse<'_>,
    outcome: &[u8],
) -> SystemStatement {
    system_sql!(
        INSERT_FINISHED,
        key.user,
        key.key[..],
        used.kind,
        used.procedure,
        used.now_ms,
        outcome,
    )
}

/// Notes the outcome if there is none.
pub(in crate::engine) fn finish(key: OnceKey<'_>, kind: i64, outcome: &[u8]) -> SystemStatement {
    system_sql!(FINISH, key.user, key.key[..], kind, outcome)
}

/// If there is no outcome.
pub(in crate::engine) fn delete_unfinished(key: OnceKey<'_>, kind: i64) -> SystemStatement {
    system_sql!(DELETE_UNFINISHED, key.user, key.key[..], kind)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
