//! Who has written a row last by an upload.

use tidewater_protocol::Value;

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, TakenKey,
};
use crate::engine::sql::tables::ROW_WRITER;

statements! {
    FIND = SystemSql::Text(
        "SELECT v.n, user_rank, image FROM {rows TEXT TEXT BLOB}
         JOIN tidewater.row_writer ON publication = v.c1 AND table_name = v.c2 AND row_key = v.c3",
    );
    /// Who repeats what somebody of a higher rank has written does not take the row from him.
    SAVE = SystemSql::Insert(&SystemInsert {
        table: &ROW_WRITER,
        columns: &[
            "publication",
            "table_name",
            "row_key",
            "user_name",
            "user_rank",
            "image",
            "at_ms",
        ],
        source: InsertSource::Rows,
        taken: TakenKey::Updates {
            set: &[
                ("user_name", "{new.user_name}"),
                ("user_rank", "{new.user_rank}"),
                ("image", "{new.image}"),
                ("at_ms", "{new.at_ms}"),
            ],
            only_if: Some(
                "{old.image} <> {new.image} OR {old.user_rank} IS NULL
                 OR {old.user_rank} <= {new.user_rank}",
            ),
        },
        returning: &[],
    });
    /// Who comes later than that compares, and has no pending change of an older row.
    PRUNE = SystemSql::Delete(&SystemDelete {
        table: &ROW_WRITER,
        condition: "at_ms < ?1",
        limit: Some("?2"),
    });
}

/// Who has written a row.
pub(in crate::engine) struct WriterRow<'w> {
    pub(in crate::engine) publication: &'w str,
    pub(in crate::engine) table: &'w str,
    /// Packed.
    pub(in crate::engine) key: Vec<u8>,
    pub(in crate::engine) user: &'w str,
    pub(in crate::engine) rank: Option<i64>,
    /// The digest of what the row is.
    pub(in crate::engine) image: &'w [u8],
    pub(in crate::engine) now_ms: i64,
}

impl WriterRow<'_> {
    /// A row of [`save`].
    pub(in crate::engine) fn values(&self) -> Vec<Value> {
        system_row![
            self.publication,
            self.table,
            self.key,
            self.user,
            self.rank,
            self.image,
            self.now_ms,
        ]
    }
}

/// The row's number, the writer's rank and the image, of each packed key that is there.
pub(in crate::engine) fn find(publication: &str, table: &str, keys: &[Vec<u8>]) -> SystemStatement {
    let rows = keys.iter().map(|key| system_row![publication, table, key]);
    each(FIND, rows.collect())
}

/// See [`WriterRow::values`].
pub(in crate::engine) fn save(rows: Vec<Vec<Value>>) -> SystemStatement {
    each(SAVE, rows)
}

pub(in crate::engine) fn prune(before_ms: i64, limit: i64) -> SystemStatement {
    system_sql!(PRUNE, before_ms, limit)
}
