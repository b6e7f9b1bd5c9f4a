//! The steps of a deployment that are still to be done.

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::DEPLOYMENT_STEP;

statements! {
    LIST = SystemSql::Text(
        "SELECT description, is_of_state FROM tidewater.deployment_step ORDER BY number",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &DEPLOYMENT_STEP,
        columns: &["number", "description", "is_of_state"],
        source: InsertSource::Rows,
        taken: TakenKey::Fails,
        returning: &[],
    });
    DELETE = SystemSql::Text("DELETE FROM tidewater.deployment_step WHERE number = ?1");
    DELETE_ALL = SystemSql::Text("DELETE FROM tidewater.deployment_step");
}

/// What each is, and whether it makes or drops the server's own tables, in their order.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// In their order: what each is, and whether it makes or drops the server's own tables.
pub(in crate::engine) fn insert<'s>(
    steps: impl Iterator<Item = (&'s str, bool)>,
) -> SystemStatement {
    let rows = (1_i64..).zip(steps);
    let rows = rows
        .map(|(number, (description, is_of_state))| system_row![number, description, is_of_state]);
    each(INSERT, rows.collect())
}

pub(in crate::engine) fn delete(number: i64) -> SystemStatement {
    system_sql!(DELETE, number)
}

pub(in crate::engine) fn delete_all() -> SystemStatement {
    system_sql!(DELETE_ALL)
}
