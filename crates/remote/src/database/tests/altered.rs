//! What users and their tools do to the synced tables themselves: columns, indexes, keys, names.
//! What does no harm goes on working; anything else is named before anything is taken, and
//! when it is put right, nothing is lost.

use tidewater_protocol::{ForeignKey, ForeignKeyAction};

use super::*;

const ROWS: &str = "SELECT id || ':' || name FROM item ORDER BY id";

/// The error of a sync, which has taken nothing.
#[track_caller]
fn sync_fails(remote: &mut Remote) -> RemoteError {
    let result = remote
        .database_mut()
        .begin_sync(SyncDirection::Both, false, &mut || UploadId([1; 16]));
    let taken = "SELECT count(*) FROM tidewater_subscription WHERE taken_generation IS NOT NULL";
    assert_eq!(remote.query(taken), ["0"]);
    result.unwrap_err()
}

#[track_caller]
fn tells(error: &RemoteError, parts: &[&str]) {
    let told = format!("{error}; {}", error.hint());
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
}

fn with_note() -> PublicationSchema {
    let mut schema = items();
    let note = column("note", ColumnType::Text, true);
    schema.tables[0].columns.push(note);
    schema
}

fn noted(id: i64, name: &str, amount: i64) -> [Datum<'_>; 4] {
    let [id, name, amount] = item(id, name, amount);
    [id, name, amount, Datum::Null]
}

#[test]
fn a_column_of_the_applications_own_is_left_alone_also_by_new_schemas() {
    let mut remote = with_items();
    remote.run(
        "ALTER TABLE item ADD COLUMN mine TEXT;
         ALTER TABLE item ADD COLUMN \"how many\" INTEGER NOT NULL DEFAULT 2;
         UPDATE item SET mine = 'kept ' || id;
         UPDATE item SET name = 'A' WHERE id = 1",
    );
    // Only what is published is a change.
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "A", 10))]
    );
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(2, "B", 20));
            rows.row(Op::Upsert, &item(4, "d", 40));
        });
    });
    remote.run("UPDATE item SET name = 'pending', mine = 'newer' WHERE id = 3");
    let summary = remote.download_schema(Some(with_note()), |server| {
        server.replace("item", |rows| {
            for (id, name) in [(1, "A"), (2, "B"), (3, "c"), (4, "d")] {
                rows.row(Op::Upsert, &noted(id, name, 10 * id));
            }
        });
    });
    assert_eq!(summary.not_restored, Vec::<String>::new());
    assert_eq!(
        remote.query("SELECT id || name || coalesce(mine, '-') || \"how many\" FROM item"),
        ["1Akept 12", "2Bkept 22", "3pendingnewer2", "4d-2"]
    );
    assert_eq!(
        remote.upload(),
        [update(&noted(3, "c", 30), &noted(3, "pending", 30))]
    );
}

#[test]
fn a_generated_column_of_the_applications_own_that_a_new_schema_loses_is_told() {
    let mut remote = with_items();
    remote.run("ALTER TABLE item ADD COLUMN upper_name AS (upper(name))");
    let summary = remote.download_schema(Some(with_note()), |_| {});
    assert_eq!(
        summary.not_restored,
        ["generated column \"upper_name\" of table \"item\""]
    );
    assert_eq!(remote.query(ROWS).len(), 3);
}

#[test]
fn a_published_column_that_the_application_has_already_is_named() {
    let mut remote = with_items();
    remote.run("ALTER TABLE item ADD COLUMN Note TEXT; UPDATE item SET note = 'precious'");
    let mut applier = remote.applier(Some(with_note()));
    let error = applier.download_begin(0, false).unwrap_err();
    tells(&error, &["\"Note\"", "\"item\"", "sales", "RENAME COLUMN"]);
    assert_eq!(error.code(), tidewater_protocol::Code::TableInTheWay);
    remote.database = Some(applier.abort());
    assert_eq!(remote.query("SELECT DISTINCT note FROM item"), ["precious"]);
    // The way out that the hint names.
    remote.run("ALTER TABLE item RENAME COLUMN note TO own_note");
    remote.download_schema(Some(with_note()), |_| {});
    let both = "SELECT DISTINCT own_note || coalesce(note, '-') FROM item";
    assert_eq!(remote.query(both), ["precious-"]);
}

#[test]
fn a_renamed_table_is_named_and_goes_on_under_its_old_name() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'before' WHERE id = 1");
    remote.run("ALTER TABLE item RENAME TO thing");
    let error = sync_fails(&mut remote);
    tells(&error, &["\"item\"", "no longer", "verify", "--repair"]);
    // The triggers went with it, and go on.
    remote.run("UPDATE thing SET name = 'meanwhile' WHERE id = 2");
    remote.run("ALTER TABLE thing RENAME TO item");
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "before", 10)),
            update(&item(2, "b", 20), &item(2, "meanwhile", 20)),
        ]
    );
}

#[test]
fn a_view_in_place_of_a_synced_table_is_named() {
    let mut remote = with_items();
    remote.run(
        "ALTER TABLE item RENAME TO hidden;
         CREATE VIEW item AS SELECT * FROM hidden WHERE amount > 10",
    );
    tells(&sync_fails(&mut remote), &["\"item\"", "no longer"]);
    remote.run("DROP VIEW item; ALTER TABLE hidden RENAME TO item");
    assert_eq!(remote.upload(), []);
}

#[test]
fn tracking_keeps_a_published_column_from_being_dropped_and_follows_no_other_name() {
    let mut remote = with_items();
    let error = remote.fails("ALTER TABLE item DROP COLUMN name");
    assert!(error.contains("trigger tidewater_"), "{error}");
    remote.run("ALTER TABLE item RENAME COLUMN name TO title");
    remote.run("UPDATE item SET title = 'A' WHERE id = 1");
    tells(&sync_fails(&mut remote), &["\"name\"", "gone", "--repair"]);
    remote.run("ALTER TABLE item RENAME COLUMN title TO name");
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "A", 10))]
    );
}

#[test]
fn a_tool_that_leaves_out_a_column_or_the_key_is_told_before_anything_is_taken() {
    for (definition, copied, missing) in [
        (
            "id INTEGER PRIMARY KEY, name TEXT",
            "id, name",
            "\"amount\" is gone",
        ),
        (
            "id INTEGER, name TEXT, amount INTEGER, UNIQUE (id, amount)",
            "id, name, amount",
            "key (id) is gone",
        ),
        (
            "id INTEGER, name TEXT, amount INTEGER, PRIMARY KEY (id, name)",
            "id, name, amount",
            "key (id) is gone",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT AS (amount || ''), amount INTEGER",
            "id, amount",
            "\"name\" is a generated one",
        ),
        (
            "id VARCHAR(9) PRIMARY KEY, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" is VARCHAR(9) now, and was INTEGER",
        ),
        (
            "id REAL PRIMARY KEY, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" is REAL now",
        ),
        (
            "id PRIMARY KEY, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" is without a type now",
        ),
        (
            "id BLOB NOT NULL PRIMARY KEY, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" is BLOB now",
        ),
        (
            "id INT PRIMARY KEY, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" may be NULL now",
        ),
        (
            "id INTEGER PRIMARY KEY DESC, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" may be NULL now",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT, amount TEXT",
            "id, name, amount",
            "column \"amount\" is TEXT now, and was INTEGER",
        ),
        (
            "id INTEGER PRIMARY KEY, name NUMERIC, amount INTEGER",
            "id, name, amount",
            "column \"name\" is NUMERIC now, and was TEXT",
        ),
        (
            "id INTEGER NOT NULL COLLATE NOCASE UNIQUE, name TEXT, amount INTEGER",
            "id, name, amount",
            "its key column \"id\" has a COLLATE clause now",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT UNIQUE ON  conflict\nREPLACE, amount INTEGER",
            "id, name, amount",
            "ON CONFLICT REPLACE",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT, amount INTEGER, UNIQUE (name)ON/**/CONFLICT\tFAIL",
            "id, name, amount",
            "ON CONFLICT FAIL",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT, amount INTEGER, \
             own DEFAULT '' NOT NULL ON CONFLICT IGNORE",
            "id, name, amount",
            "ON CONFLICT IGNORE",
        ),
        (
            "id INTEGER PRIMARY KEY, name TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '', \
             amount INTEGER",
            "id, name, amount",
            "ON CONFLICT REPLACE",
        ),
    ] {
        let mut remote = with_items();
        remote.run("UPDATE item SET name = 'before' WHERE id = 1");
        remote.run(&format!(
            "CREATE TABLE other ({definition});
             INSERT INTO other ({copied}) SELECT {copied} FROM item;
             ALTER TABLE item RENAME TO backup; ALTER TABLE other RENAME TO item"
        ));
        tells(&sync_fails(&mut remote), &["\"item\"", missing, "--repair"]);
        remote.run("DROP TABLE item; ALTER TABLE backup RENAME TO item");
        assert_eq!(
            remote.upload(),
            [update(&item(1, "a", 10), &item(1, "before", 10))],
            "{definition}"
        );
    }
}

#[test]
fn words_of_a_table_that_only_look_like_a_conflict_clause_do_no_harm() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE other (id INTEGER PRIMARY KEY ON CONFLICT ABORT, name TEXT DEFAULT
           'it''s UNIQUE ON CONFLICT IGNORE', amount INTEGER, -- UNIQUE ON CONFLICT FAIL
           [UNIQUE ON CONFLICT FAIL], \"on\" TEXT NOT NULL ON CONFLICT REPLACE DEFAULT 'x'
           /* UNIQUE ON CONFLICT REPLACE */);
         INSERT INTO other (id, name, amount) SELECT * FROM item;
         DROP TABLE item; ALTER TABLE other RENAME TO item",
    );
    remote.begin();
    remote.run("UPDATE item SET name = 'A', \"on\" = NULL WHERE id = 1");
    let expected = [update(&item(1, "a", 10), &item(1, "A", 10))];
    assert_eq!(remote.upload(), expected);
}

/// An upsert takes any unique index of the key: `A` would be written over `a`.
#[test]
fn a_unique_index_of_the_key_that_has_a_collation_is_named() {
    let columns = vec![
        column("code", ColumnType::Text, false),
        column("name", ColumnType::Text, true),
    ];
    let schema = publication(vec![table("thing", columns, vec![0])]);
    let own = "CREATE UNIQUE INDEX own ON thing (code COLLATE NOCASE)";
    let rebuilt = "CREATE TABLE other (code TEXT NOT NULL, name TEXT); DROP TABLE thing;
                   ALTER TABLE other RENAME TO thing;";
    for sql in [own.to_owned(), format!("{rebuilt} {own}")] {
        let mut remote = Remote::new(schema.clone());
        remote.run(&sql);
        tells(
            &sync_fails(&mut remote),
            &["\"thing\"", "\"own\"", "COLLATE"],
        );
        remote.run("DROP INDEX own; CREATE UNIQUE INDEX own ON thing (code)");
        remote.begin();
    }
}

/// Change tables call the columns of keys so, too.
#[test]
fn a_column_that_has_the_name_of_one_of_ours_is_told_apart() {
    let mut columns = vec![
        column("id", ColumnType::Integer, false),
        column("key_id", ColumnType::Text, true),
        column("pre_key_id", ColumnType::Text, true),
        column("generation", ColumnType::Text, true),
        column("present", ColumnType::Text, true),
    ];
    let schema = |columns: &[Column]| publication(vec![table("door", columns.to_vec(), vec![0])]);
    let mut remote = Remote::new(schema(&columns));
    let texts = |texts: [&'static str; 4]| texts.map(Datum::Text);
    let door = |[a, b, c, d]: [Datum<'static>; 4]| [Datum::Integer(1), a, b, c, d];
    let (old, new) = (texts(["a", "b", "c", "d"]), texts(["new", "b", "c", "e"]));
    remote.download(|server| {
        server.table("door", |rows| rows.row(Op::Upsert, &door(old)));
    });
    // Without tracking, and then with it.
    remote.run("DROP TRIGGER tidewater_update_door; UPDATE door SET key_id = 'new'");
    remote.begin();
    remote.run("UPDATE door SET present = 'e'");
    let state = remote.begin_in(SyncDirection::Both);
    remote.download_into(&state, None, |server| {
        server.table("door", |rows| rows.row(Op::Upsert, &door(old)));
    });
    let of_door = format!("{:?}", remote.upload());
    let expected = format!(
        "{:?}",
        [Change {
            table: "door".into(),
            ..update(&door(texts(["new", "b", "c", "d"])), &door(new))
        }]
    );
    assert_eq!(of_door, expected);
    // The column leaves before its change goes up.
    columns.pop();
    remote.download_schema(Some(schema(&columns)), |_| {});
    // It also leaves a copy, for nobody has compared the table.
    let kept = [r#"{"id":1,"present":"e"}"#, "{}"];
    assert_eq!(remote.kept_values(), kept);
}

#[test]
fn what_is_pending_in_a_table_that_is_set_aside_is_listed_with_its_values() {
    for definition in [
        // With the key gone, with another type, and with another column missing.
        "id INTEGER, name TEXT, amount INTEGER",
        "id, name TEXT, amount INTEGER",
        "id TEXT, name TEXT",
    ] {
        let mut remote = with_items();
        remote.run(
            "UPDATE item SET amount = 11 WHERE id = 1; DELETE FROM item WHERE id = 2;
             INSERT INTO item VALUES (9, 'new', 90)",
        );
        let copied = definition.replace(" INTEGER", "").replace(" TEXT", "");
        remote.run(&format!(
            "CREATE TABLE other ({definition}); INSERT INTO other SELECT {copied} FROM item;
             DROP TABLE item; ALTER TABLE other RENAME TO item"
        ));
        let rebuilt = remote.database_mut().rebuild_broken_tables(5).unwrap();
        assert_eq!(rebuilt, ["item"]);
        let refused = remote.database().refused().unwrap();
        let told: Vec<(&str, &str, i64)> = refused
            .iter()
            .map(|it| (it.operation.as_str(), it.key.as_str(), it.at_ms))
            .collect();
        let expected = [
            ("update", "[1]", 5),
            ("delete", "[2]", 5),
            ("insert", "[9]", 5),
        ];
        assert_eq!(told, expected, "{definition}");
        assert!(refused[0].reason.contains("item_unsynced_1"), "{refused:?}");
        if definition.contains("amount") {
            let values = |index: usize| refused[index].values.as_deref().unwrap();
            assert_eq!(values(0), r#"{"amount":11,"id":1,"name":"a"}"#);
            assert_eq!(values(2), r#"{"amount":90,"id":9,"name":"new"}"#);
        }
        let aside = remote.query("SELECT count(*) FROM item_unsynced_1");
        assert_eq!(aside, ["3"]);
        assert_eq!(remote.upload(), []);
    }
}

/// The centre would take both spellings of a key for one row.
#[test]
fn keys_that_were_misspelt_in_a_table_without_our_checks_are_spelled_as_the_centre_does() {
    let columns = vec![
        column("id", ColumnType::Uuid, false),
        column("name", ColumnType::Text, true),
    ];
    let mut remote = Remote::new(publication(vec![table("thing", columns, vec![0])]));
    let id = |number: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, number];
    let thing = |number, name| [Datum::Uuid(id(number)), Datum::Text(name)];
    remote.download(|server| {
        server.table("thing", |rows| rows.row(Op::Upsert, &thing(1, "a")));
    });
    let key = "00000000-0000-0000-0000-00000000ab0";
    remote.run(&format!(
        "CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY, name TEXT) WITHOUT ROWID;
         INSERT INTO other SELECT * FROM thing; DROP TABLE thing;
         ALTER TABLE other RENAME TO thing; UPDATE thing SET id = upper(id), name = 'mine';
         INSERT INTO thing VALUES ('{key}2', 'new'), (replace(upper('{key}2'), '-', ''), 'twin'),
           (upper('{key}3'), 'newer'), ('none', 'at all')",
    ));
    remote.begin_in(SyncDirection::Both);
    let things = [
        format!("{key}1mine"),
        format!("{key}2new"),
        format!("{key}3newer"),
        "noneat all".to_owned(),
    ];
    assert_eq!(
        remote.query("SELECT id || name FROM thing ORDER BY id"),
        things
    );
    let twin = format!(r#"{{"id":"{key}2","name":"twin"}}"#);
    assert_eq!(remote.kept_values(), [twin]);
    // From now on, the application hears of it.
    for sql in [
        "INSERT INTO thing SELECT upper(id), name FROM thing",
        "UPDATE thing SET id = upper(id)",
    ] {
        let told = remote.fails(sql);
        assert!(told.contains("id in canonical form"), "{told}");
    }
    remote.run("UPDATE thing SET name = 'c' WHERE name = 'newer'");
    // What has its CHECKs needs no triggers for it.
    let triggers = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'tidewater_spelling%'";
    assert_eq!(remote.query(triggers), ["2"]);
    assert_eq!(with_items().query(triggers), ["0"]);
}

/// A tool leaves out our CHECKs and puts our triggers back word for word.
#[test]
fn what_is_recorded_of_misspelt_keys_and_refers_to_them_is_spelled_as_well() {
    let columns = vec![
        column("id", ColumnType::Uuid, false),
        column("name", ColumnType::Text, true),
    ];
    let mut part = table(
        "part",
        vec![
            column("id", ColumnType::Integer, false),
            column("of", ColumnType::Uuid, true),
        ],
        vec![0],
    );
    part.foreign_keys = vec![ForeignKey {
        columns: vec![1],
        parent: "thing".into(),
        parent_columns: vec!["id".into()],
        on_delete: ForeignKeyAction::NoAction,
        on_update: ForeignKeyAction::NoAction,
    }];
    let things = table("thing", columns, vec![0]);
    let mut remote = Remote::new(publication(vec![things, part]));
    let id = |number: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, number];
    let thing = |number, name| [Datum::Uuid(id(number)), Datum::Text(name)];
    remote.download(|server| {
        server.table("thing", |rows| {
            for (number, name) in [(1, "a"), (2, "b"), (4, "d")] {
                rows.row(Op::Upsert, &thing(number, name));
            }
        });
    });
    let triggers = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'thing'";
    let triggers = remote.query(triggers).join(";\n");
    let key = "00000000-0000-0000-0000-00000000ab0";
    remote.run(&format!(
        "PRAGMA foreign_keys = OFF;
         CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY, name TEXT) WITHOUT ROWID;
         INSERT INTO other SELECT * FROM thing; DROP TABLE thing;
         ALTER TABLE other RENAME TO thing; {triggers};
         INSERT INTO thing VALUES (upper('{key}1'), 'twin'), (upper('{key}3'), 'new');
         UPDATE thing SET name = 'twice' WHERE name = 'twin';
         UPDATE thing SET id = upper(id), name = 'mine' WHERE name = 'b';
         UPDATE thing SET id = upper(id) WHERE name = 'd'; DELETE FROM thing WHERE name = 'd';
         INSERT INTO part VALUES (7, upper('{key}3')), (8, upper('{key}1'))",
    ));
    let noted = "SELECT table_name FROM tidewater_untracked";
    let uploaded = remote.upload();
    assert_eq!(remote.query(noted), ["thing"]);
    let of_thing = |change: Change| Change {
        table: "thing".into(),
        ..change
    };
    let part = |number, of| Change {
        table: "part".into(),
        ..insert(&[Datum::Integer(number), Datum::Uuid(id(of))])
    };
    let expected = [
        of_thing(update(&thing(2, "b"), &thing(2, "mine"))),
        of_thing(insert(&thing(3, "new"))),
        of_thing(delete(&thing(4, "d"))),
        part(7, 3),
        part(8, 1),
    ];
    assert_eq!(uploaded, expected);
    let twice = format!(r#"{{"id":"{key}1","name":"twice"}}"#);
    assert_eq!(remote.kept_values(), [twice]);
    let parts = "SELECT thing.name FROM part JOIN thing ON thing.id = part.\"of\" ORDER BY part.id";
    assert_eq!(remote.query(parts), ["new", "a"]);
    // It has a time, although no session brought it.
    remote.acknowledge(|_| {});
    assert_eq!(remote.query("SELECT at FROM tidewater_refused"), ["1000"]);
}

#[test]
fn keys_of_a_table_that_is_only_downloaded_are_spelled_too() {
    let columns = vec![
        column("id", ColumnType::Uuid, false),
        column("name", ColumnType::Text, true),
    ];
    let mut things = table("thing", columns, vec![0]);
    things.direction = Direction::Download;
    let mut remote = Remote::new(publication(vec![things]));
    let thing = |name| [Datum::Uuid([0xab; 16]), Datum::Text(name)];
    remote.download(|server| server.table("thing", |rows| rows.row(Op::Upsert, &thing("a"))));
    remote.run(
        "CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY, name TEXT) WITHOUT ROWID;
         INSERT INTO other SELECT upper(id), name FROM thing; DROP TABLE thing;
         ALTER TABLE other RENAME TO thing",
    );
    remote.download(|server| server.table("thing", |rows| rows.row(Op::Upsert, &thing("b"))));
    assert_eq!(remote.query("SELECT name FROM thing"), ["b"]);
    assert_eq!(remote.kept_values(), Vec::<String>::new());
}

#[test]
fn a_tool_that_makes_the_key_a_unique_index_is_followed() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE other (amount INTEGER, name TEXT, id INTEGER NOT NULL UNIQUE, extra);
         INSERT INTO other (id, name, amount) SELECT id, name, amount FROM item;
         DROP TABLE item; ALTER TABLE other RENAME TO item",
    );
    remote.begin();
    remote.run("UPDATE item SET name = 'A' WHERE id = 1; DELETE FROM item WHERE id = 2");
    remote.run("INSERT OR REPLACE INTO item (id, name, amount) VALUES (3, 'C', 30)");
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "A", 10)),
            delete(&item(2, "b", 20)),
            update(&item(3, "c", 30), &item(3, "C", 30)),
        ]
    );
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(3, "centre", 30)));
    });
    assert_eq!(remote.query(ROWS), ["1:A", "3:centre"]);
}
