//! The rules of published tables as they are deployed.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::RULE;

statements! {
    LIST = SystemSql::Text("SELECT id, publication, table_name, identity FROM tidewater.rule");
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &RULE,
        columns: &["publication", "table_name", "identity"],
        source: InsertSource::Values(&["?1", "?2", "?3"]),
        taken: TakenKey::Fails,
        returning: &[],
    });
    DELETE = SystemSql::Text("DELETE FROM tidewater.rule WHERE id = ?1");
    DELETE_OF_PUBLICATION = SystemSql::Text("DELETE FROM tidewater.rule WHERE publication = ?1");
}

/// Number, publication, table and identity.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

pub(in crate::engine) fn insert(publication: &str, table: &str, identity: &str) -> SystemStatement {
    system_sql!(INSERT, publication, table, identity)
}

pub(in crate::engine) fn delete(id: i64) -> SystemStatement {
    system_sql!(DELETE, id)
}

pub(in crate::engine) fn delete_of_publication(publication: &str) -> SystemStatement {
    system_sql!(DELETE_OF_PUBLICATION, publication)
}
