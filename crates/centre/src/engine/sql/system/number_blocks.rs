//! Which remote has which numbers for the rows that it inserts.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::IDENTITY_BLOCK;
use crate::records::NumbersRequest;

statements! {
    COUNT = SystemSql::Text(
        "SELECT table_name, min(column_name), CAST(sum(last - first + 1) AS {integer}), max(last),
         count(DISTINCT remote_id)
         FROM tidewater.identity_block GROUP BY table_name ORDER BY table_name",
    );
    LIST_LAST = SystemSql::Text(
        "SELECT table_name, remote_id, user_name, first, last, at_ms
         FROM tidewater.identity_block ORDER BY id DESC LIMIT 20",
    );
    READ_HIGHEST = SystemSql::Text(
        "SELECT max(last) FROM tidewater.identity_block WHERE table_name = ?1",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &IDENTITY_BLOCK,
        columns: &[
            "table_name",
            "column_name",
            "remote_id",
            "user_name",
            "first",
            "last",
            "at_ms",
        ],
        source: InsertSource::Values(&["?1", "?2", "?3", "?4", "?5", "?6", "?7"]),
        taken: TakenKey::Fails,
        returning: &[],
    });
}

/// By table: its name, the column, how many numbers, the highest, and how many remotes have some.
pub(in crate::engine) fn count() -> SystemStatement {
    system_sql!(COUNT)
}

/// The last 20: table, remote, user, first and last number, when.
pub(in crate::engine) fn list_last() -> SystemStatement {
    system_sql!(LIST_LAST)
}

/// The highest number of a table that was handed out.
pub(in crate::engine) fn read_highest(table: &str) -> SystemStatement {
    system_sql!(READ_HIGHEST, table)
}

/// Notes who has the numbers of a table's column from a first to a last one.
pub(in crate::engine) fn insert(
    (table, column): (&str, &str),
    asked: &NumbersRequest,
    (first, last): (i64, i64),
) -> SystemStatement {
    system_sql!(
        INSERT,
        table,
        column,
        asked.remote_id,
        asked.user,
        first,
        last,
        asked.now_ms,
    )
}
