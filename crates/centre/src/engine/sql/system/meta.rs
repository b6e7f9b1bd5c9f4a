//! The one row about the centre: the format of the server's own tables, its name, how often it was
//! deployed.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::META;

statements! {
    /// Part of making the tables, so the values are in the text.
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &META,
        columns: &["format_version", "centre"],
        source: InsertSource::Values(&["1", "''"]),
        taken: TakenKey::Fails,
        returning: &[],
    });
    READ_VERSION = SystemSql::Text("SELECT format_version FROM tidewater.meta");
    READ_CENTRE = SystemSql::Text("SELECT centre, deployment FROM tidewater.meta");
    READ_DEPLOYMENT = SystemSql::Text("SELECT deployment FROM tidewater.meta");
    LOCK = SystemSql::Text("UPDATE tidewater.meta SET centre = centre");
    COUNT_DEPLOYMENT = SystemSql::Text("UPDATE tidewater.meta SET deployment = deployment + 1");
    NAME = SystemSql::Text("UPDATE tidewater.meta SET centre = ?1 WHERE centre = ''");
    RENAME = SystemSql::Text(
        "UPDATE tidewater.meta SET centre = ?1, deployment = deployment + 1",
    );
}

/// In the format of version 1, without a name.
pub(in crate::engine) fn insert() -> SystemStatement {
    system_sql!(INSERT)
}

pub(in crate::engine) fn read_version() -> SystemStatement {
    system_sql!(READ_VERSION)
}

pub(in crate::engine) fn read_centre() -> SystemStatement {
    system_sql!(READ_CENTRE)
}

pub(in crate::engine) fn read_deployment() -> SystemStatement {
    system_sql!(READ_DEPLOYMENT)
}

/// Of two that do it at once, the other waits until the first has committed.
pub(in crate::engine) fn lock() -> SystemStatement {
    system_sql!(LOCK)
}

pub(in crate::engine) fn count_deployment() -> SystemStatement {
    system_sql!(COUNT_DEPLOYMENT)
}

/// Names the centre if it has no name.
pub(in crate::engine) fn name(name: &str) -> SystemStatement {
    system_sql!(NAME, name)
}

/// Gives the centre another name, which is another deployment.
pub(in crate::engine) fn rename(name: &str) -> SystemStatement {
    system_sql!(RENAME, name)
}
