//! The publications as they are deployed, and schemas that are not deployed any more.

use tidewater_protocol::PublicationSchema;

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::{PAST_SCHEMA, PUBLICATION};

statements! {
    LIST = SystemSql::Text("SELECT name, definition, encoded_schema FROM tidewater.publication");
    SAVE = SystemSql::Insert(&SystemInsert {
        table: &PUBLICATION,
        columns: &["name", "definition", "encoded_schema"],
        source: InsertSource::Values(&["?1", "?2", "?3"]),
        taken: TakenKey::Updates {
            set: &[("definition", "{new.definition}"), ("encoded_schema", "{new.encoded_schema}")],
            only_if: None,
        },
        returning: &[],
    });
    DELETE = SystemSql::Text("DELETE FROM tidewater.publication WHERE name = ?1");
    LIST_PAST_SCHEMAS = SystemSql::Text("SELECT hash, encoded_schema FROM tidewater.past_schema");
    INSERT_PAST_SCHEMA = SystemSql::Insert(&SystemInsert {
        table: &PAST_SCHEMA,
        columns: &["hash", "publication", "encoded_schema"],
        source: InsertSource::Values(&["?1", "?2", "?3"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
}

/// Name, definition and schema.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

pub(in crate::engine) fn save(name: &str, definition: &str, schema: &[u8]) -> SystemStatement {
    system_sql!(SAVE, name, definition, schema)
}

pub(in crate::engine) fn delete(name: &str) -> SystemStatement {
    system_sql!(DELETE, name)
}

/// Hash and schema.
pub(in crate::engine) fn list_past_schemas() -> SystemStatement {
    system_sql!(LIST_PAST_SCHEMAS)
}

/// Changes nothing if it is kept.
pub(in crate::engine) fn insert_past_schema(schema: &PublicationSchema) -> SystemStatement {
    system_sql!(
        INSERT_PAST_SCHEMA,
        schema.hash().to_vec(),
        schema.name,
        schema.encode(),
    )
}
