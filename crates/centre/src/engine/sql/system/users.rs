//! The users.

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{InsertSource, SystemInsert, SystemSql, TakenKey};
use crate::engine::sql::tables::USER_ACCOUNT;
use crate::records::{ProvenIdentity, UserRecord};

macro_rules! columns {
    () => {
        "name, password_hash, disabled, created_ms, proven_ms, proven_by, claims"
    };
}

statements! {
    LIST = SystemSql::Text(concat!(
        "SELECT ",
        columns!(),
        " FROM tidewater.user_account ORDER BY name"
    ));
    FIND = SystemSql::Text(concat!(
        "SELECT v.n, ",
        columns!(),
        " FROM {rows TEXT} JOIN tidewater.user_account ON name = v.c1"
    ));
    READ_CLAIMS = SystemSql::Text("SELECT claims FROM tidewater.user_account WHERE name = ?1");
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &USER_ACCOUNT,
        columns: &[
            "name",
            "password_hash",
            "disabled",
            "created_ms",
            "proven_ms",
            "proven_by",
            "claims",
        ],
        source: InsertSource::Values(&["?1", "?2", "?3", "?4", "?5", "?6", "?7"]),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    PROVE = SystemSql::Text(
        "UPDATE tidewater.user_account SET proven_ms = ?2, proven_by = ?3, claims = ?4
         WHERE name = ?1",
    );
    SET_PASSWORD = SystemSql::Text(
        "UPDATE tidewater.user_account SET password_hash = ?2 WHERE name = ?1",
    );
    REPLACE_PASSWORD = SystemSql::Text(
        "UPDATE tidewater.user_account SET password_hash = ?3
         WHERE name = ?1 AND password_hash = ?2",
    );
    SET_DISABLED = SystemSql::Text(
        "UPDATE tidewater.user_account SET disabled = ?2 WHERE name = ?1",
    );
    DELETE = SystemSql::Text("DELETE FROM tidewater.user_account WHERE name = ?1");
}

/// Name, password's hash, whether disabled, when created; when, by whom and with which claims proven.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// The same of one user, for gathering.
pub(in crate::engine) fn find(name: &str) -> SystemStatement {
    each(FIND, vec![system_row![name]])
}

pub(in crate::engine) fn read_claims(name: &str) -> SystemStatement {
    system_sql!(READ_CLAIMS, name)
}

/// Changes nothing if there is a user of this name.
pub(in crate::engine) fn insert(user: &UserRecord) -> SystemStatement {
    system_sql!(
        INSERT,
        user.name,
        user.password_hash,
        user.disabled,
        user.created_ms,
        user.proven.at_ms,
        user.proven.by,
        user.proven.claims.to_json(),
    )
}

pub(in crate::engine) fn prove(name: &str, proven: &ProvenIdentity) -> SystemStatement {
    system_sql!(
        PROVE,
        name,
        proven.at_ms,
        proven.by,
        proven.claims.to_json()
    )
}

pub(in crate::engine) fn set_password(name: &str, hash: &str) -> SystemStatement {
    system_sql!(SET_PASSWORD, name, hash)
}

/// Changes nothing if the hash is another one than `before`.
pub(in crate::engine) fn replace_password(name: &str, before: &str, hash: &str) -> SystemStatement {
    system_sql!(REPLACE_PASSWORD, name, before, hash)
}

pub(in crate::engine) fn set_disabled(name: &str, disabled: bool) -> SystemStatement {
    system_sql!(SET_DISABLED, name, disabled)
}

pub(in crate::engine) fn delete(name: &str) -> SystemStatement {
    system_sql!(DELETE, name)
}
