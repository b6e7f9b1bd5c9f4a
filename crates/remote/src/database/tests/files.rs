//! Facts about the file: whose it is, what it must be, and who else may use it.

use super::*;
use tidewater_protocol::{Code, RemoteId};

#[test]
fn a_file_that_is_no_database_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("text.db");
    std::fs::write(
        &path,
        "this is no database, but it is longer than a header ".repeat(20),
    )
    .unwrap();
    let error = RemoteDatabase::open(&path).unwrap_err();
    assert_eq!(error.code(), Code::NotARemote);
    assert!(!error.hint().is_empty());
    assert_eq!(
        RemoteDatabase::open(folder.path()).unwrap_err().code(),
        Code::NotARemote
    );
}

#[test]
fn a_database_of_the_applications_own_becomes_a_remote_and_keeps_its_tables() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("own.db");
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE own (a); INSERT INTO own VALUES (1)")
        .unwrap();
    let database = RemoteDatabase::open(&path).unwrap();
    assert!(!database.is_new().unwrap());
    let count: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM own", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 1);
}

#[cfg(unix)]
#[test]
fn a_new_file_is_for_its_owner_only_and_an_old_one_stays_as_it_was() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).unwrap();
        metadata.permissions().mode() & 0o777
    };
    let new = folder.path().join("new.db");
    RemoteDatabase::open(&new).unwrap();
    assert_eq!(mode(&new), 0o600);
    let shared = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(&new, shared).unwrap();
    RemoteDatabase::open(&new).unwrap();
    assert_eq!(mode(&new), 0o660);
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let remote = with_items();
    remote.run("UPDATE tidewater_state SET format_version = 99");
    let error = RemoteDatabase::open(&remote.path()).unwrap_err();
    assert!(
        matches!(error, RemoteError::TooNew { found: 99, .. }),
        "{error}"
    );
    assert_eq!(error.code(), Code::RemoteTooNew);
}

#[test]
fn files_with_other_tables_of_ours_are_no_remotes_and_stay_as_they_are() {
    let folder = TempDir::new().unwrap();
    for (table, what) in [
        (
            "tidewater_centre_user_account",
            "it is a consolidated database",
        ),
        (
            "tidewater_subscription",
            "its table tidewater_state is gone",
        ),
    ] {
        let path = folder.path().join(table);
        let file = Connection::open(&path).unwrap();
        file.execute_batch(&format!("CREATE TABLE {table} (name)"))
            .unwrap();
        let error = RemoteDatabase::open(&path).unwrap_err();
        assert_eq!(error.code(), Code::NotARemote);
        assert!(error.to_string().contains(what), "{error}");
        let tables: i64 = file
            .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 1);
    }
}

#[test]
fn a_table_of_ours_that_is_gone_is_told_from_a_full_disk() {
    let remote = with_items();
    remote.run("DROP TABLE tidewater_subscription");
    let error = RemoteDatabase::open(&remote.path())
        .and_then(|database| database.status())
        .unwrap_err();
    assert_eq!(error.code(), Code::RemoteDatabase);
    assert!(error.hint().contains("Tidewater's own"), "{error}");
}

#[test]
fn a_remote_that_has_signed_in_belongs_to_one_user_and_keeps_its_server() {
    let mut remote = with_items();
    let database = remote.database_mut();
    database
        .store_sign_in(None, RemoteId([5; 16]), None, None, "")
        .unwrap();
    database
        .subscribe("tcp://127.0.0.1", "ann", &["sales", "stock"])
        .unwrap();
    assert_eq!(database.subscriptions().unwrap().len(), 2);
    let error = database
        .subscribe("tcp://127.0.0.1", "bob", &[])
        .unwrap_err();
    assert!(matches!(error, RemoteError::OtherAccount { .. }), "{error}");
    let server = database.account().unwrap().server;
    database.subscribe("tls://elsewhere", "ann", &[]).unwrap();
    assert_eq!(database.account().unwrap().server, server);
    database.store_server("tls://elsewhere").unwrap();
    assert_eq!(database.account().unwrap().server, "tls://elsewhere");
}

#[test]
fn what_a_welcome_brought_is_kept() {
    let mut remote = with_items();
    let id = RemoteId([5; 16]);
    let database = remote.database_mut();
    database
        .store_sign_in(None, id, Some(b"token"), Some(b"credential"), "")
        .unwrap();
    database
        .store_sign_in(Some(id), id, None, None, "")
        .unwrap();
    // An answer to what is not so any more.
    let other = RemoteId([6; 16]);
    let error = database
        .store_sign_in(None, other, Some(b"its token"), None, "")
        .unwrap_err();
    assert!(matches!(error, RemoteError::AnotherSyncWentAhead));
    database.store_ca(Some("ca.pem")).unwrap();
    let account = RemoteDatabase::open(&remote.path())
        .unwrap()
        .account()
        .unwrap();
    assert_eq!(account.remote_id, Some(id));
    assert_eq!(account.token.as_deref(), Some(&b"token"[..]));
    assert_eq!(account.credential.as_deref(), Some(&b"credential"[..]));
    assert_eq!(account.ca.as_deref(), Some("ca.pem"));
    remote.database_mut().store_pin(Some("sha256/key")).unwrap();
    let account = remote.database().account().unwrap();
    assert_eq!(account.pin.as_deref(), Some("sha256/key"));
    assert_eq!(account.ca, None, "the one that was named last counts");
    remote.database_mut().forget_token().unwrap();
    assert_eq!(remote.database().account().unwrap().token, None);
}

#[test]
fn after_the_first_download_others_may_read_while_we_write() {
    let mut remote = with_items();
    assert_eq!(remote.query("PRAGMA journal_mode"), ["wal"]);
    let mut applier = remote.applier(None);
    applier.download_begin(0, false).unwrap();
    let schema = remote.schema.clone();
    Sender {
        applier: &mut applier,
        schema: &schema,
    }
    .table("item", |rows| rows.row(Op::Upsert, &item(1, "new", 1)));
    assert_eq!(remote.query("SELECT name FROM item WHERE id = 1"), ["a"]);
    applier.download_end(b"").unwrap();
    remote.commit(applier);
    assert_eq!(remote.query("SELECT name FROM item WHERE id = 1"), ["new"]);
}

#[test]
fn a_lock_that_the_application_holds_is_named_and_nothing_is_lost() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let state = remote.begin();
    let application = remote.application();
    application.execute_batch("BEGIN IMMEDIATE").unwrap();
    let database = remote.database.take().unwrap();
    database
        .connection
        .busy_timeout(std::time::Duration::ZERO)
        .unwrap();
    let refused = database
        .begin_apply(std::slice::from_ref(&state), &[None])
        .unwrap_err();
    assert_eq!(refused.error.code(), Code::RemoteLocked);
    assert!(refused.error.code().is_transient());
    application.execute_batch("COMMIT").unwrap();
    remote.database = Some(refused.database);
    assert_eq!(remote.changes(&state).len(), 1);
}

#[test]
fn a_dropped_synced_table_is_named() {
    let mut remote = with_items();
    remote.run("DROP TABLE item");
    let error = remote
        .database_mut()
        .begin_sync(SyncDirection::Both, false, &mut || UploadId([1; 16]))
        .unwrap_err();
    assert!(
        matches!(&error, RemoteError::TableMissing { table } if table == "item"),
        "{error}"
    );
}

#[test]
fn a_sync_with_nothing_to_take_writes_nothing() {
    let mut remote = with_items();
    let watcher = remote.application();
    let data_version = || -> i64 {
        watcher
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .unwrap()
    };
    let before = data_version();
    remote.begin();
    assert_eq!(data_version(), before);
}
