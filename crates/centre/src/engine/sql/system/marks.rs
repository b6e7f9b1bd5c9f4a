//! Marks, by which a watermark proves that it is of this history. The table is the adapter's.

use crate::engine::connection::{SystemStatement, each, system_row};
use crate::engine::sql::statement_shape::SystemSql;

statements! {
    /// A query of its own for each: a database that planned this when there were no marks would go on
    /// reading all of them.
    FIND = SystemSql::Text(
        "SELECT v.n FROM {rows BLOB}
         WHERE (SELECT id FROM tidewater.mark WHERE id = v.c1) IS NOT NULL",
    );
}

/// A row if it is there, for gathering.
pub(in crate::engine) fn find(id: &[u8]) -> SystemStatement {
    each(FIND, vec![system_row![id]])
}
