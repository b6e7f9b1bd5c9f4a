//! Partitions of which checkpoints have a digest.

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::SCOPE_PIECE;
use crate::scope::Digest;

statements! {
    READ = SystemSql::Text("SELECT content FROM tidewater.scope_piece WHERE digest = ?1");
    FIND = SystemSql::Text(
        "SELECT v.n, content FROM {rows BLOB} JOIN tidewater.scope_piece ON digest = v.c1",
    );
    /// Its time is written once a day.
    SAVE = SystemSql::Insert(&SystemInsert {
        table: &SCOPE_PIECE,
        columns: &["digest", "at_ms", "content"],
        source: InsertSource::Values(&["?1", "?2", "?3"]),
        taken: TakenKey::Updates {
            set: &[("at_ms", "{new.at_ms}")],
            only_if: Some("{old.at_ms} < {new.at_ms} - 86400000"),
        },
        returning: &[],
    });
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &SCOPE_PIECE,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// Its content.
pub(in crate::engine) fn read(digest: &Digest) -> SystemStatement {
    system_sql!(READ, digest[..])
}

/// The row's number and the content, of each that is there.
pub(in crate::engine) fn find(digests: &[Digest]) -> SystemStatement {
    each(FIND, digests.iter().map(|it| system_row![it[..]]).collect())
}

pub(in crate::engine) fn save(digest: &Digest, now_ms: i64, content: &[u8]) -> SystemStatement {
    system_sql!(SAVE, digest[..], now_ms, content)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
