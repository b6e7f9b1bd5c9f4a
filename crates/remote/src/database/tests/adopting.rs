//! Facts about tables that the application had before the publication's came.

use super::*;
use crate::database::AdoptionRule;

/// A file with a table of the application's, which has synced nothing yet.
fn file_with(sql: &str) -> Remote {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("remote.db");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let mut database = RemoteDatabase::open(&path).unwrap();
    let schema = items();
    database
        .subscribe("tcp://127.0.0.1", "ann", &[&schema.name])
        .unwrap();
    Remote {
        database: Some(database),
        schema,
        folder,
        next_upload_id: 0,
    }
}

/// The first download, which has the items 1 and 2.
fn try_adopt(
    remote: &mut Remote,
    adopt: Option<AdoptionRule>,
) -> Result<ApplySummary, RemoteError> {
    let schema = remote.schema.clone();
    let mut applier = remote.applier(Some(schema.clone()));
    applier.adopt(adopt);
    let mut fill = || -> Result<(), RemoteError> {
        applier.download_begin(0, false)?;
        let mut server = Sender {
            applier: &mut applier,
            schema: &schema,
        };
        server.replace("item", |rows| {
            rows.row(Op::Upsert, &item(1, "a", 10));
            rows.row(Op::Upsert, &item(2, "b", 20));
            rows.row(Op::Upsert, &item(4, "d", 40));
        });
        applier.download_end(b"checkpoint")
    };
    if let Err(error) = fill() {
        remote.database = Some(applier.abort());
        return Err(error);
    }
    Ok(remote.commit(applier))
}

const OWN: &str = "
    CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, amount TEXT,
        mark TEXT NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
    CREATE INDEX by_mark ON item (mark);
    CREATE TABLE log (id INTEGER);
    CREATE TRIGGER logging AFTER UPDATE ON item BEGIN INSERT INTO log VALUES (NEW.id); END;
    CREATE TABLE child (item_id INTEGER REFERENCES item (id));
    INSERT INTO item VALUES (1, 'a', '10', 'same', 'x'), (2, 'mine', '20', 'other', 'x'),
        (3, 'only here', NULL, 'new', 'x');
    INSERT INTO child VALUES (3);";

const ROWS: &str = "SELECT id || ':' || name || ':' || coalesce(mark, '') FROM item ORDER BY id";

#[test]
fn what_is_adopted_goes_up_before_the_outbox() {
    let mut remote = file_with(OWN);
    remote.run("INSERT INTO tidewater_outbox (name) VALUES ('p')");
    let covered = |remote: &mut Remote, adopts: bool| {
        let mut new_upload_id = || UploadId([1; 16]);
        let database = remote.database_mut();
        let begun = database.begin_sync(SyncDirection::Both, adopts, &mut new_upload_id);
        assert!(begun.is_ok());
        remote.query("SELECT outbox_covered FROM tidewater_state")
    };
    assert_eq!(covered(&mut remote, true), ["0"]);
    // Where the centre's rows count, nothing is to go up.
    assert_eq!(covered(&mut remote, false), ["1"]);
}

#[test]
fn what_an_adopted_table_has_otherwise_becomes_pending() {
    let mut remote = file_with(OWN);
    let summary = try_adopt(&mut remote, Some(AdoptionRule::Mine)).unwrap();
    assert_eq!(summary.not_restored, Vec::<String>::new());
    let rows = ["1:a:same", "2:mine:other", "3:only here:new", "4:d:"];
    assert_eq!(remote.query(ROWS), rows);
    let mine = [Datum::Integer(3), Datum::Text("only here"), Datum::Null];
    assert_eq!(
        remote.upload(),
        [
            update(&item(2, "b", 20), &item(2, "mine", 20)),
            insert(&mine)
        ]
    );
    assert_eq!(remote.query("SELECT count(*) FROM log"), ["0"]);
    let names = "SELECT name FROM sqlite_master WHERE name IN ('by_mark', 'logging') \
                 OR name LIKE '%unsynced%' ORDER BY 1";
    assert_eq!(remote.query(names), ["by_mark", "logging"]);
    // It is a synced table like any other.
    remote.run("UPDATE item SET name = 'later' WHERE id = 4");
    assert_eq!(remote.query("SELECT id FROM log"), ["4"]);
    assert_eq!(
        remote.query("PRAGMA foreign_key_check"),
        Vec::<String>::new()
    );
}

#[test]
fn what_an_adopted_table_has_otherwise_gives_way_to_the_centre() {
    let mut remote = file_with(OWN);
    try_adopt(&mut remote, Some(AdoptionRule::Centre)).unwrap();
    assert_eq!(remote.query(ROWS), ["1:a:same", "2:b:other", "4:d:"]);
    assert_eq!(remote.upload(), []);
}

#[test]
fn unless_it_is_wanted_no_table_is_adopted() {
    let mut remote = file_with(OWN);
    let error = try_adopt(&mut remote, None).unwrap_err();
    assert!(matches!(error, RemoteError::TableInTheWay { .. }));
    assert!(error.hint().contains("--adopt mine"));
    assert_eq!(remote.query("SELECT count(*) FROM item"), ["3"]);
}

#[test]
fn what_cannot_be_adopted_is_named_and_stays() {
    for (sql, expected) in [
        ("CREATE TABLE item (name TEXT, amount INTEGER)", "\"id\""),
        (
            "CREATE TABLE item (id TEXT, name TEXT); INSERT INTO item VALUES ('x-1', 'a')",
            "x-1",
        ),
        (
            "CREATE TABLE item (id INTEGER, name TEXT); INSERT INTO item VALUES (NULL, 'a')",
            "Null",
        ),
    ] {
        let mut remote = file_with(sql);
        let before = remote.query("SELECT sql FROM sqlite_master WHERE name = 'item'");
        let error = try_adopt(&mut remote, Some(AdoptionRule::Mine)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let after = remote.query("SELECT sql FROM sqlite_master WHERE name = 'item'");
        assert_eq!(before, after);
    }
    let mut remote = file_with("CREATE VIEW item AS SELECT 1 AS id");
    let error = try_adopt(&mut remote, Some(AdoptionRule::Mine)).unwrap_err();
    assert!(matches!(error, RemoteError::TableInTheWay { .. }));
}

#[test]
fn rows_that_spell_the_same_otherwise_are_the_same() {
    let mut remote = file_with(
        "CREATE TABLE item (id TEXT PRIMARY KEY, name TEXT, amount TEXT);
         INSERT INTO item VALUES ('1', 'a', '10'), ('2', 'b', '20')",
    );
    try_adopt(&mut remote, Some(AdoptionRule::Mine)).unwrap();
    assert_eq!(remote.upload(), []);
    assert_eq!(
        remote.query("SELECT typeof(id) || amount FROM item"),
        ["integer10", "integer20", "integer40"]
    );
}
