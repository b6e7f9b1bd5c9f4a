//! The subscriptions of remotes: the number and result of the last upload, the serials of scopes.

use tidewater_protocol::{RemoteId, UploadId, Value};

use crate::engine::connection::{SystemStatement, each, system_row, system_sql};
use crate::engine::sql::statement_shape::{
    InsertSource, SystemInsert, SystemSql, SystemUpdate, TakenKey,
};
use crate::engine::sql::tables::SUBSCRIPTION;

statements! {
    LIST = SystemSql::Text("SELECT remote_id, publication FROM tidewater.subscription");
    LIST_OF_REMOTE = SystemSql::Text(
        "SELECT publication FROM tidewater.subscription WHERE remote_id = ?1 ORDER BY publication",
    );
    FIND_UPLOAD = SystemSql::Text(
        "SELECT v.n, sequence, upload_id FROM {rows BLOB TEXT}
         JOIN tidewater.subscription ON remote_id = v.c1 AND publication = v.c2",
    );
    FIND_UPLOAD_OF_USER = SystemSql::Text(
        "SELECT v.n, sequence, upload_id FROM {rows BLOB TEXT TEXT}
         JOIN tidewater.subscription ON remote_id = v.c1 AND publication = v.c2
         JOIN tidewater.remote ON id = v.c1 AND user_name = v.c3",
    );
    READ_UPLOAD = SystemSql::Text(
        "SELECT sequence, upload_id, result FROM tidewater.subscription
         WHERE remote_id = ?1 AND publication = ?2",
    );
    READ_RESULT = SystemSql::Text(
        "SELECT result FROM tidewater.subscription WHERE remote_id = ?1 AND publication = ?2",
    );
    READ_UPLOAD_TIME = SystemSql::Text(
        "SELECT uploaded_ms FROM tidewater.subscription
         WHERE remote_id = ?1 AND publication = ?2",
    );
    READ_SERIALS = SystemSql::Text(
        "SELECT scope_serial, previous_serial, graced_serial, given_back_serial
         FROM tidewater.subscription WHERE remote_id = ?1 AND publication = ?2",
    );
    INSERT = SystemSql::Insert(&SystemInsert {
        table: &SUBSCRIPTION,
        columns: &["remote_id", "publication"],
        source: InsertSource::Rows,
        taken: TakenKey::PassesOver,
        returning: &[],
    });
    TAKE_NUMBERS = SystemSql::Update(&SystemUpdate {
        table: &SUBSCRIPTION,
        rows: "BLOB TEXT INTEGER BLOB",
        key: &["remote_id", "publication"],
        only_if: Some("sequence + 1 = v.c3"),
        set: &[("sequence", "v.c3"), ("upload_id", "v.c4")],
        returning: &[
            "upload_id",
            "remote_id",
            "scope_serial",
            "previous_serial",
            "graced_serial",
        ],
    });
    STORE_RESULTS = SystemSql::Update(&SystemUpdate {
        table: &SUBSCRIPTION,
        rows: "BLOB TEXT BLOB INTEGER INTEGER",
        key: &["remote_id", "publication"],
        only_if: None,
        set: &[
            ("result", "v.c3"),
            ("graced_serial", "v.c4"),
            ("uploaded_ms", "v.c5"),
        ],
        returning: &[],
    });
    NOTE_GIVEN_BACK = SystemSql::Text(
        "UPDATE tidewater.subscription SET given_back_serial = scope_serial
         WHERE remote_id = ?1 AND publication = ?2",
    );
    GRACE_PREVIOUS_SCOPE = SystemSql::Text(
        "UPDATE tidewater.subscription SET graced_serial = previous_serial
         WHERE remote_id = ?1 AND publication = ?2 AND scope_serial = ?3
           AND graced_serial < previous_serial",
    );
    ISSUE_SCOPE = SystemSql::Insert(&SystemInsert {
        table: &SUBSCRIPTION,
        columns: &["remote_id", "publication", "scope_serial"],
        source: InsertSource::Values(&["?1", "?2", "1"]),
        taken: TakenKey::Updates {
            set: &[
                (
                    "previous_serial",
                    "CASE WHEN ?3 IN ({old.scope_serial}, {old.previous_serial}) THEN ?3
                     ELSE {old.scope_serial} END",
                ),
                ("scope_serial", "{old.scope_serial} + 1"),
            ],
            only_if: None,
        },
        returning: &["scope_serial"],
    });
    DELETE_OF_REMOTE = SystemSql::Text("DELETE FROM tidewater.subscription WHERE remote_id = ?1");
    DELETE_OF_USER = SystemSql::Text(
        "DELETE FROM tidewater.subscription WHERE remote_id IN
         (SELECT id FROM tidewater.remote WHERE user_name = ?1)",
    );
    DELETE_ALL = SystemSql::Text("DELETE FROM tidewater.subscription");
}

/// A remote and a publication.
pub(in crate::engine) struct SubscriptionKey<'s> {
    pub(in crate::engine) remote_id: RemoteId,
    pub(in crate::engine) publication: &'s str,
}

/// The number that an upload wants.
pub(in crate::engine) struct UploadNumber<'s> {
    pub(in crate::engine) subscription: SubscriptionKey<'s>,
    pub(in crate::engine) sequence: u64,
    pub(in crate::engine) upload_id: UploadId,
}

/// The result of an upload.
pub(in crate::engine) struct StoredUploadResult<'s> {
    pub(in crate::engine) subscription: SubscriptionKey<'s>,
    /// Encoded.
    pub(in crate::engine) result: Vec<u8>,
    /// The serial of the scope that is graced from now on.
    pub(in crate::engine) graced: u64,
    pub(in crate::engine) now_ms: i64,
}

/// Remote and publication of all.
pub(in crate::engine) fn list() -> SystemStatement {
    system_sql!(LIST)
}

/// The names of the publications.
pub(in crate::engine) fn list_of_remote(id: RemoteId) -> SystemStatement {
    system_sql!(LIST_OF_REMOTE, id)
}

/// Number and id of the last upload, for gathering.
pub(in crate::engine) fn find_upload(id: RemoteId, publication: &str) -> SystemStatement {
    each(FIND_UPLOAD, vec![system_row![id, publication]])
}

/// The same if the remote is of this user.
pub(in crate::engine) fn find_upload_of_user(
    user: &str,
    id: RemoteId,
    publication: &str,
) -> SystemStatement {
    each(
        FIND_UPLOAD_OF_USER,
        vec![system_row![id, publication, user]],
    )
}

/// Number, id and result of the last upload.
pub(in crate::engine) fn read_upload(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(READ_UPLOAD, id, publication)
}

pub(in crate::engine) fn read_result(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(READ_RESULT, id, publication)
}

/// When the last upload was applied.
pub(in crate::engine) fn read_upload_time(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(READ_UPLOAD_TIME, id, publication)
}

/// The serials of the last scope, the previous one, the graced one and the last one given back.
pub(in crate::engine) fn read_serials(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(READ_SERIALS, id, publication)
}

/// Those that are there are passed over.
pub(in crate::engine) fn insert<'s>(
    keys: impl Iterator<Item = SubscriptionKey<'s>>,
) -> SystemStatement {
    let rows = keys.map(|it| system_row![it.remote_id, it.publication]);
    each(INSERT, rows.collect())
}

/// Takes the numbers that follow the last ones. Gives the uploads whose number it was: id, remote, and
/// the serials of the last scope, the previous one and the graced one.
pub(in crate::engine) fn take_numbers<'s>(
    numbers: impl Iterator<Item = UploadNumber<'s>>,
) -> SystemStatement {
    let rows = numbers.map(|it| {
        let key = it.subscription;
        system_row![key.remote_id, key.publication, it.sequence, it.upload_id]
    });
    each(TAKE_NUMBERS, rows.collect())
}

/// A row of [`store_results`].
pub(in crate::engine) fn stored_result(it: &StoredUploadResult<'_>) -> Vec<Value> {
    let key = &it.subscription;
    system_row![
        key.remote_id,
        key.publication,
        it.result,
        it.graced,
        it.now_ms
    ]
}

/// Keeps results; see [`stored_result`].
pub(in crate::engine) fn store_results(rows: Vec<Vec<Value>>) -> SystemStatement {
    each(STORE_RESULTS, rows)
}

/// Notes which scope is the newest at an upload that is given back.
pub(in crate::engine) fn note_given_back(id: RemoteId, publication: &str) -> SystemStatement {
    system_sql!(NOTE_GIVEN_BACK, id, publication)
}

/// Ends the time of the scope before this one; changes nothing if this one is not the last.
pub(in crate::engine) fn grace_previous_scope(
    id: RemoteId,
    publication: &str,
    serial: Option<u64>,
) -> SystemStatement {
    system_sql!(GRACE_PREVIOUS_SCOPE, id, publication, serial)
}

/// Gives the next serial. The one that the remote holds becomes the previous one, if it is one of the
/// last two.
pub(in crate::engine) fn issue_scope(
    id: RemoteId,
    publication: &str,
    held: Option<u64>,
) -> SystemStatement {
    system_sql!(ISSUE_SCOPE, id, publication, held)
}

pub(in crate::engine) fn delete_of_remote(id: RemoteId) -> SystemStatement {
    system_sql!(DELETE_OF_REMOTE, id)
}

pub(in crate::engine) fn delete_of_user(user: &str) -> SystemStatement {
    system_sql!(DELETE_OF_USER, user)
}

pub(in crate::engine) fn delete_all() -> SystemStatement {
    system_sql!(DELETE_ALL)
}
