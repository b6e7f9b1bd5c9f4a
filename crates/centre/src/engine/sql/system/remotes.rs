//! The remotes, and those that were removed.

use tidewater_protocol::{RemoteId, Value};

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemInsert, SystemSql, SystemUpdate, TakenKey,
};
use crate::engine::sql::tables::{REMOTE, REMOVED_REMOTE};
use crate::records::RemoteRecord;

macro_rules! columns {
    () => {
        "id, user_name, revoked, credential_hash, previous_credential_hash, rotated_ms, created_ms,
         last_sync_ms, unverified, device_name"
    };
}

statements! {
    LIST = SystemSql::Text(concat!(
        "SELECT ",
        columns!(),
        " FROM tidewater.remote ORDER BY user_name, created_ms, id"
    ));
    FIND = SystemSql::Text(concat!(
        "SELECT v.n, ",
        columns!(),
        " FROM {rows BLOB} JOIN tidewater.remote ON id = v.c1"
    ));
    LIST_SCHEMAS = SystemSql::Text(
        "SELECT id, user_name, last_sync_ms, held_schemas FROM tidewater.remote
         WHERE NOT revoked ORDER BY user_name, id",
    );
    FIND_STANDING = SystemSql::Text(
        "SELECT r.id, r.revoked, u.disabled FROM {rows BLOB}
         JOIN tidewater.remote r ON r.id = v.c1
         LEFT JOIN tidewater.user_account u ON u.name = r.user_name",
    );
    READ_OLDEST_SYNC = SystemSql::Text(
        "SELECT min(last_sync_ms) FROM tidewater.remote WHERE last_sync_ms > 0 AND NOT revoked",
    );
    SAVE = SystemSql::Insert(&SystemInsert {
        table: &REMOTE,
        columns: &[
            "id",
            "user_name",
            "revoked",
            "credential_hash",
            "previous_credential_hash",
            "rotated_ms",
            "created_ms",
            "last_sync_ms",
            "device_name",
        ],
        source: InsertSource::Values(&[
            "?1", "?2", "?3", "?4", "?5", "?6", "?7", "?8", "?9",
        ]),
        taken: TakenKey::Updates {
            set: &[
                ("credential_hash", "{new.credential_hash}"),
                ("previous_credential_hash", "{new.previous_credential_hash}"),
                ("rotated_ms", "{new.rotated_ms}"),
            ],
            only_if: None,
        },
        returning: &[],
    });
    NAME_DEVICE = SystemSql::Text("UPDATE tidewater.remote SET device_name = ?2 WHERE id = ?1");
    SET_REVOKED = SystemSql::Text("UPDATE tidewater.remote SET revoked = ?2 WHERE id = ?1");
    REPLACE_PREVIOUS_CREDENTIAL = SystemSql::Text(
        "UPDATE tidewater.remote SET previous_credential_hash = ?2
         WHERE id = ?1 AND previous_credential_hash = ?3",
    );
    NOTE_SYNCS = SystemSql::Update(&SystemUpdate {
        table: &REMOTE,
        rows: "BLOB INTEGER TEXT INTEGER",
        key: &["id"],
        only_if: None,
        set: &[
            (
                "last_sync_ms",
                "CASE WHEN last_sync_ms < v.c2 THEN v.c2 ELSE last_sync_ms END",
            ),
            ("held_schemas", "CASE v.c3 WHEN '' THEN held_schemas ELSE v.c3 END"),
            (
                "unverified",
                "CASE WHEN v.c2 = 0 THEN unverified WHEN v.c4 = 1 THEN 0 ELSE unverified + 1 END",
            ),
        ],
        returning: &[],
    });
    DELETE = SystemSql::Text("DELETE FROM tidewater.remote WHERE id = ?1");
    DELETE_OF_USER = SystemSql::Text("DELETE FROM tidewater.remote WHERE user_name = ?1");
    DELETE_ALL = SystemSql::Text("DELETE FROM tidewater.remote");
    FIND_REMOVED = SystemSql::Text(
        "SELECT v.n FROM {rows BLOB} JOIN tidewater.removed_remote ON id = v.c1",
    );
    NOTE_REMOVED = SystemSql::Insert(&SystemInsert {
        table: &REMOVED_REMOTE,
        columns: &["id"],
        source: InsertSource::Query("SELECT id FROM tidewater.remote WHERE id = ?1"),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    NOTE_REMOVED_OF_USER = SystemSql::Insert(&SystemInsert {
        table: &REMOVED_REMOTE,
        columns: &["id"],
        source: InsertSource::Query("SELECT id FROM tidewater.remote WHERE user_name = ?1"),
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    DELETE_ALL_REMOVED = SystemSql::Text("DELETE FROM tidewater.removed_remote");
}

/// That a remote synced.
pub(in crate::engine) struct SyncNote {
    pub(in crate::engine) id: RemoteId,
    /// When the sync ended; 0 if it failed.
    pub(in crate::engine) ended_ms: i64,
    /// The schemas that it has, encoded; empty if they are not known.
    pub(in crate::engine) schemas: String,
    /// Whether it compared everything.
    pub(in crate::engine) verified: bool,
}

/// Id, user, whether revoked, hashes of the credential and the previous one, when rotated, created
/// and synced last, unverified syncs, the device's name.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// The same of one remote, for gathering.
pub(in crate::engine) fn find(id: RemoteId) -> SystemStatement {
    each(FIND, vec![system_row![id]])
}

/// Id, user, last sync and schemas of those that are not revoked.
pub(in crate::engine) fn list_schemas() -> SystemStatement {
    system_sql!(LIST_SCHEMAS)
}

/// Id, whether revoked, whether the user is disabled, if there is one.
pub(in crate::engine) fn find_standing(ids: &[RemoteId]) -> SystemStatement {
    each(
        FIND_STANDING,
        ids.iter().map(|id| system_row![id]).collect(),
    )
}

/// When the one synced that has not for the longest time.
pub(in crate::engine) fn read_oldest_sync() -> SystemStatement {
    system_sql!(READ_OLDEST_SYNC)
}

/// Of one that is there only the credentials are written.
pub(in crate::engine) fn save(remote: &RemoteRecord) -> SystemStatement {
    system_sql!(
        SAVE,
        remote.id,
        remote.user,
        remote.revoked,
        remote.credential_hash,
        remote.previous_credential_hash,
        remote.rotated_ms,
        remote.created_ms,
        remote.last_sync_ms,
        remote.device_name,
    )
}

pub(in crate::engine) fn name_device(id: RemoteId, name: &str) -> SystemStatement {
    system_sql!(NAME_DEVICE, id, name)
}

pub(in crate::engine) fn set_revoked(id: RemoteId, revoked: bool) -> SystemStatement {
    system_sql!(SET_REVOKED, id, revoked)
}

/// Changes nothing if the previous credential is another one.
pub(in crate::engine) fn forget_previous_credential(
    id: RemoteId,
    previous: &[u8],
) -> SystemStatement {
    system_sql!(REPLACE_PREVIOUS_CREDENTIAL, id, Vec::new(), previous)
}

/// Of each remote once.
pub(in crate::engine) fn note_syncs(notes: &[SyncNote]) -> SystemStatement {
    let row =
        |it: &SyncNote| -> Vec<Value> { system_row![it.id, it.ended_ms, it.schemas, it.verified] };
    each(NOTE_SYNCS, notes.iter().map(row).collect())
}

pub(in crate::engine) fn delete(id: RemoteId) -> SystemStatement {
    system_sql!(DELETE, id)
}

pub(in crate::engine) fn delete_of_user(user: &str) -> SystemStatement {
    system_sql!(DELETE_OF_USER, user)
}

pub(in crate::engine) fn delete_all() -> SystemStatement {
    system_sql!(DELETE_ALL)
}

/// A row if it was removed, for gathering.
pub(in crate::engine) fn find_removed(id: RemoteId) -> SystemStatement {
    each(FIND_REMOVED, vec![system_row![id]])
}

pub(in crate::engine) fn note_removed(id: RemoteId) -> SystemStatement {
    system_sql!(NOTE_REMOVED, id)
}

pub(in crate::engine) fn note_removed_of_user(user: &str) -> SystemStatement {
    system_sql!(NOTE_REMOVED_OF_USER, user)
}

pub(in crate::engine) fn delete_all_removed() -> SystemStatement {
    system_sql!(DELETE_ALL_REMOVED)
}
