//! The refused rows that are settled, each once.

use tidewater_protocol::RemoteId;

use super::refusals::columns;
use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::SETTLED_REFUSAL;
use crate::records::{RefusalEnd, RefusedFilter};

macro_rules! select {
    ($rest:literal) => {
        SystemSql::Text(concat!(
            "SELECT ",
            columns!(),
            ", r.attempts, r.settled_ms, r.settled_by, r.settled_as, r.settled_row,
             r.settled_reason FROM tidewater.settled_refusal AS r ",
            $rest
        ))
    };
}

statements! {
    FIND = select!(
        "WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2)
         AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4"
    );
    LIST_OF_ROW = select!("WHERE r.table_name = ?1 AND r.row_key = ?2");
    READ = select!("WHERE r.id = ?1");
    LIST_OF_OPERATORS = SystemSql::Text(
        "SELECT id, table_name, row_key, sequence, settled_ms, settled_by, settled_as
         FROM tidewater.settled_refusal WHERE remote_id = ?1 AND publication = ?2
         AND sequence >= ?3 AND id > ?4 AND settled_as IN ('replayed', 'edited', 'discarded')
         ORDER BY id LIMIT ?5",
    );
    LIST_SENT_AGAIN = SystemSql::Text(
        "SELECT table_name, row_key, sequence FROM tidewater.settled_refusal
         WHERE remote_id = ?1 AND publication = ?2 AND sequence >= ?3
         AND settled_as IN ('replayed', 'edited')",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &SETTLED_REFUSAL,
        columns: &[
            "id",
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
            "attempts",
            "settled_ms",
            "settled_by",
            "settled_as",
            "settled_row",
            "settled_reason",
        ],
        source: InsertSource::Query(concat!(
            "SELECT ",
            columns!(),
            ", v.c2, v.c3, v.c4, v.c5, v.c6, v.c7
             FROM {rows INTEGER INTEGER INTEGER TEXT TEXT TEXT TEXT}
             JOIN tidewater.refused AS r ON r.id = v.c1"
        )),
        taken: TakenKey::Fails,
        returning: &[],
    });
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &SETTLED_REFUSAL,
        condition: "settled_ms < ?1",
        limit: Some("?2"),
    });
}

/// The newest first.
pub(in crate::engine) fn find(filter: &RefusedFilter) -> SystemStatement {
    system_sql!(
        FIND,
        filter.table.as_deref().unwrap_or_default(),
        filter.user.as_deref().unwrap_or_default(),
        filter.cause.as_deref().unwrap_or_default(),
        filter.limit,
    )
}

pub(in crate::engine) fn list_of_row(table: &str, key: &str) -> SystemStatement {
    system_sql!(LIST_OF_ROW, table, key)
}

pub(in crate::engine) fn read(id: i64) -> SystemStatement {
    system_sql!(READ, id)
}

/// What operators have settled of a remote: of its uploads from this one on, behind this record, so
/// many of them.
pub(in crate::engine) fn list_of_operators(
    id: RemoteId,
    publication: &str,
    (from, after): (u64, u64),
    limit: u64,
) -> SystemStatement {
    system_sql!(LIST_OF_OPERATORS, id, publication, from, after, limit)
}

/// Table, key and the upload's number of what operators have sent again of a remote's uploads from
/// this one on.
pub(in crate::engine) fn list_sent_again(
    id: RemoteId,
    publication: &str,
    from: u64,
) -> SystemStatement {
    system_sql!(LIST_SENT_AGAIN, id, publication, from)
}

/// Keeps refused rows that are settled, each given by its attempts.
pub(in crate::engine) fn insert(rows: &[(Vec<i64>, RefusalEnd)]) -> SystemStatement {
    let ends = rows.iter().filter_map(|(attempts, end)| {
        let last = *attempts.iter().max()?;
        Some(system_row![
            last,
            attempts.len() as u64,
            end.at_ms,
            end.by,
            end.outcome.name(),
            end.row,
            end.reason,
        ])
    });
    each(INSERT, ends.collect())
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
