//! Facts about inserts whose key is another row's in the centre: what the application sees under it,
//! the new key that such a row gets, and what a file says of changes that its original may have sent.

use super::*;
use crate::database::{HelloState, NewIdentity, RowSelection};
use tidewater_protocol::{Code, ForeignKey, ForeignKeyAction, RemoteId};

fn refers(columns: &[usize], parent: &str, parent_columns: &[&str]) -> ForeignKey {
    ForeignKey {
        columns: columns.to_vec(),
        parent: parent.into(),
        parent_columns: parent_columns.iter().map(|&it| it.into()).collect(),
        on_delete: ForeignKeyAction::NoAction,
        on_update: ForeignKeyAction::NoAction,
    }
}

/// `item`, `line(item_id, product, n)` below it, and `note(id, item_id, product)` below that.
fn family() -> PublicationSchema {
    let mut line = table(
        "line",
        vec![
            column("item_id", ColumnType::Integer, false),
            column("product", ColumnType::Text, false),
            column("n", ColumnType::Integer, true),
        ],
        vec![0, 1],
    );
    line.foreign_keys = vec![refers(&[0], "item", &["id"])];
    let mut note = table(
        "note",
        vec![
            column("id", ColumnType::Integer, false),
            column("item_id", ColumnType::Integer, true),
            column("product", ColumnType::Text, true),
        ],
        vec![0],
    );
    note.foreign_keys = vec![refers(&[1, 2], "line", &["item_id", "product"])];
    let mut schema = items();
    schema.tables.extend([line, note]);
    schema
}

const LINES: &str = "SELECT item_id || ':' || product || ':' || n FROM line ORDER BY 1";

/// Item 9 with line x and note 1 is inserted and refused. Line y of the centre's item 9 is there
/// before the item was inserted, and was edited; line z of it comes afterwards.
fn with_another_family() -> Remote {
    let mut remote = with_items_of(family());
    remote.run(
        "INSERT INTO item VALUES (9, 'mine', 1); INSERT INTO line VALUES (9, 'x', 1); \
                INSERT INTO note VALUES (1, 9, 'x'), (2, NULL, NULL)",
    );
    remote.acknowledge(|server| {
        let key_in_use = Code::RowKeyInUse.number();
        let foreign_key = Code::RowForeignKey.number();
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(9)], Op::Insert, key_in_use, "in use");
        });
        server.table("line", |rows| {
            let key = [Datum::Integer(9), Datum::Text("x")];
            rows.refused(&key, Op::Insert, foreign_key, "its parent");
        });
        server.table("note", |rows| {
            rows.refused(&[Datum::Integer(1)], Op::Insert, foreign_key, "its parent");
        });
    });
    theirs_arrive(&mut remote);
    remote
}

/// What the centre has under the key.
fn theirs_arrive(remote: &mut Remote) {
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(9, "theirs", 2));
        });
        server.table("line", |rows| {
            let z = [Datum::Integer(9), Datum::Text("z"), Datum::Integer(7)];
            rows.row(Op::Upsert, &z);
            let of_another = [Datum::Integer(1), Datum::Text("z"), Datum::Integer(8)];
            rows.row(Op::Upsert, &of_another);
        });
    });
}

fn refused_item(remote: &Remote) -> i64 {
    let refused = remote.database().refused().unwrap();
    refused.iter().find(|it| it.table == "item").unwrap().id
}

#[test]
fn rows_of_another_parent_wait_as_long_as_there_is_one_of_ones_own() {
    let mut remote = with_another_family();
    assert_eq!(remote.query(LINES), ["1:z:8", "9:x:1"]);
    // The item itself is asked for when its user has decided.
    assert_eq!(remote.requested(), 1, "the centre's line");
    remote
        .database_mut()
        .discard_refused(RowSelection::All)
        .unwrap();
    theirs_arrive(&mut remote);
    assert_eq!(remote.query(LINES), ["1:z:8", "9:z:7"]);
    let name = remote.query("SELECT name FROM item WHERE id = 9");
    assert_eq!(name, ["theirs"]);
}

#[test]
fn what_refers_to_a_row_that_waits_waits_too() {
    let mut remote = with_another_family();
    let notes_arrive = |remote: &mut Remote| {
        remote.download(|server| {
            server.table("note", |rows| {
                let of_theirs = [Datum::Integer(5), Datum::Integer(9), Datum::Text("z")];
                rows.row(Op::Upsert, &of_theirs);
                let of_another = [Datum::Integer(6), Datum::Integer(1), Datum::Text("z")];
                rows.row(Op::Upsert, &of_another);
            });
        });
    };
    notes_arrive(&mut remote);
    let notes = "SELECT id FROM note WHERE id > 2 ORDER BY id";
    assert_eq!(remote.query(notes), ["6"]);
    assert_eq!(remote.requested(), 2, "the centre's line, and its note");
    remote
        .database_mut()
        .discard_refused(RowSelection::All)
        .unwrap();
    theirs_arrive(&mut remote);
    notes_arrive(&mut remote);
    assert_eq!(remote.query(notes), ["5", "6"]);
}

#[test]
fn a_row_under_a_new_key_takes_along_what_this_remote_has_under_it() {
    let mut remote = with_another_family();
    // Another row of its own comes to refer to it, before it has a new key.
    remote.run("UPDATE note SET item_id = 9, product = 'x' WHERE id = 2");
    let id = refused_item(&remote);
    let key = remote.database_mut().renumber_refused(id, Some("12"));
    assert_eq!(key.unwrap(), "[12]");
    assert_eq!(remote.query(LINES), ["12:x:1", "1:z:8"]);
    let notes = "SELECT id || ':' || item_id FROM note ORDER BY id";
    assert_eq!(remote.query(notes), ["1:12", "2:12"]);
    let state = remote.begin();
    let number = Value::Integer;
    let text = |text: &str| Value::Text(text.into());
    let of = |table: &str, op, old: Vec<Value>, new: Vec<Value>| Change {
        table: table.into(),
        op,
        old,
        new,
    };
    let none = Vec::new;
    assert_eq!(
        remote.changes(&state),
        [
            of(
                "item",
                Op::Insert,
                none(),
                vec![number(12), text("mine"), number(1)]
            ),
            of(
                "line",
                Op::Insert,
                none(),
                vec![number(12), text("x"), number(1)]
            ),
            of(
                "note",
                Op::Insert,
                none(),
                vec![number(1), number(12), text("x")]
            ),
            of(
                "note",
                Op::Update,
                vec![number(2), Value::Null, Value::Null],
                vec![number(2), number(12), text("x")],
            ),
        ]
    );
    let told = remote.database().given_up(&state).unwrap();
    let told: Vec<_> = told
        .iter()
        .map(|it| format!("{} {}", it.table, it.key))
        .collect();
    assert_eq!(told, ["item [9]", "line [9,\"x\"]"]);
    remote.acknowledge(|_| {});
    assert_eq!(remote.database().refused().unwrap(), []);
    theirs_arrive(&mut remote);
    assert_eq!(remote.query(LINES), ["12:x:1", "1:z:8", "9:z:7"]);
}

/// Who gives up a row gives up what was refused because of it: it would belong to another row.
#[test]
fn what_refers_to_a_row_that_is_given_up_goes_with_it() {
    let mut remote = with_another_family();
    let id = refused_item(&remote);
    remote.run("INSERT INTO line VALUES (9, 'unsent', 1)");
    let error = remote
        .database_mut()
        .discard_refused(RowSelection::Ids(&[id]))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("line [9,\"unsent\"] refers to it"),
        "{error}"
    );
    assert_eq!(remote.query(LINES), ["1:z:8", "9:unsent:1", "9:x:1"]);
    remote.run("DELETE FROM line WHERE product = 'unsent'");
    let count = remote
        .database_mut()
        .discard_refused(RowSelection::Ids(&[id]));
    assert_eq!(count.unwrap(), 3);
    theirs_arrive(&mut remote);
    assert_eq!(remote.query(LINES), ["1:z:8", "9:z:7"]);
    assert_eq!(remote.query("SELECT id FROM note"), ["2"]);
}

/// A refused insert that its user deletes is given up, and the centre hears it: the key is another
/// row's there.
#[test]
fn a_refused_insert_that_is_deleted_is_told_as_given_up() {
    let mut remote = with_another_family();
    remote.run(
        "PRAGMA foreign_keys = OFF; DELETE FROM note WHERE id = 1; \
                DELETE FROM line WHERE item_id = 9; DELETE FROM item WHERE id = 9",
    );
    let state = remote.begin();
    assert_eq!(remote.changes(&state), []);
    let told = remote.database().given_up(&state).unwrap();
    assert_eq!(told.len(), 3, "{told:?}");
    remote.acknowledge(|_| {});
    let settled = remote.database().settled_refused().unwrap();
    assert!(
        settled.iter().all(|it| it.outcome == "given_up"),
        "{settled:?}"
    );
    theirs_arrive(&mut remote);
    assert_eq!(remote.query(LINES), ["1:z:8", "9:z:7"]);
}

#[test]
fn a_key_that_cannot_be_is_named_and_nothing_changes() {
    let mut remote = with_another_family();
    let id = refused_item(&remote);
    for (key, told) in [
        (None, "neither numbers of its own nor UUIDs"),
        (Some("twelve"), "no value of the key"),
        (Some("1"), "there is a row [1] already"),
    ] {
        let error = remote.database_mut().renumber_refused(id, key).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
    let error = remote
        .database_mut()
        .renumber_refused(99, Some("12"))
        .unwrap_err();
    assert!(
        error.to_string().contains("no refused change 99"),
        "{error}"
    );
    assert_eq!(remote.query(LINES), ["1:z:8", "9:x:1"]);
}

/// Takes another identity, as a file does that turns out to be a copy.
fn become_another(remote: &mut Remote) {
    let subscriptions = remote.database().subscriptions().unwrap();
    let account = remote.database().account().unwrap();
    let identity = NewIdentity {
        remote_id: RemoteId([7; 16]),
        token: None,
        credential: Some(b"credential"),
        centre: "",
    };
    let said = HelloState {
        remote_id: account.remote_id,
        subscriptions: &subscriptions,
    };
    let adopted = remote
        .database_mut()
        .adopt_identity(said, &identity, &mut || UploadId([99; 16]));
    adopted.unwrap();
}

#[test]
fn what_is_pending_in_a_copied_file_is_told_as_what_its_original_may_have_sent() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 9 WHERE id = 1; UPDATE item SET amount = 19 WHERE id = 2");
    remote.acknowledge_refused_item();
    remote.run("UPDATE item SET amount = 29 WHERE id = 3");
    assert!(!remote.begin().may_be_sent_twice());
    become_another(&mut remote);
    assert!(remote.state().may_be_sent_twice(), "it was taken before");
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 28 WHERE id = 3");
    assert!(
        !remote.begin().may_be_sent_twice(),
        "nothing was pending then"
    );
    // What is written while a sync is under way may have been written before the file was copied.
    remote.run("UPDATE item SET amount = 27 WHERE id = 3");
    become_another(&mut remote);
    assert!(remote.state().may_be_sent_twice());
    remote.acknowledge(|_| {});
    assert!(remote.begin().may_be_sent_twice());
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 26 WHERE id = 3");
    assert!(!remote.begin().may_be_sent_twice());
    remote.acknowledge(|_| {});
    // An operator may have written for the original what was refused of it.
    remote
        .database_mut()
        .retry_refused(RowSelection::All)
        .unwrap();
    assert!(remote.begin().may_be_sent_twice());
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 25 WHERE id = 3");
    assert!(!remote.begin().may_be_sent_twice());
}

/// What goes up of a table's rows: its name and the operation.
fn sent(remote: &mut Remote) -> Vec<(String, Op)> {
    let state = remote.state();
    let changes = remote.changes(&state).into_iter();
    changes.map(|it| (it.table, it.op)).collect()
}

#[test]
fn a_refused_row_goes_up_again_with_what_was_taken_under_it_before_its_centre_forgot_it() {
    let forgets: [fn(&mut Remote); 2] = [become_another, |remote| {
        super::kept::restored_to(remote, (0, None));
    }];
    for forget in forgets {
        let mut remote = with_another_family();
        remote.run("INSERT INTO line VALUES (9, 'w', 3)");
        let taken = remote.begin().next_upload();
        assert_eq!(sent(&mut remote), [("line".to_owned(), Op::Insert)]);
        forget(&mut remote);
        let of = |table: &str| (table.to_owned(), Op::Insert);
        let family = [of("item"), of("line"), of("line"), of("note")];
        assert_eq!(sent(&mut remote), family);
        assert_ne!(remote.state().next_upload(), taken, "another upload");
    }
}

/// A restored centre has refused an item that was given back, and only its values are left: a centre
/// that forgets that as well is told it with every upload, until the user has decided.
#[test]
fn a_refused_insert_of_which_only_the_values_are_left_is_told_to_a_centre_that_forgot_it() {
    let forgets: [fn(&mut Remote); 2] = [become_another, super::kept::restored];
    for forget in forgets {
        let mut remote = with_items_of(family());
        remote.run("INSERT INTO item VALUES (8, 'taken', 1), (9, 'mine', 1)");
        remote.acknowledge(|_| {});
        super::kept::restored(&mut remote);
        remote.acknowledge(|server| {
            server.table("item", |rows| {
                let key_in_use = Code::RowKeyInUse.number();
                rows.refused(&[Datum::Integer(9)], Op::Insert, key_in_use, "in use");
            });
        });
        let told = |remote: &Remote| {
            let told = remote.database().forgotten_refusals(&remote.state());
            let told = told.unwrap().into_iter();
            told.map(|it| (it.table, it.key, it.values))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&remote), [], "the centre has just said it");
        forget(&mut remote);
        let item = ("item".into(), "[9]".into(), r#"{"id":9}"#.into());
        assert_eq!(told(&remote), [item]);
        remote
            .database_mut()
            .discard_refused(RowSelection::All)
            .unwrap();
        assert_eq!(told(&remote), []);
    }
}

/// What the beginning of an upload says has to fit into a frame: the centre would never hear of any
/// otherwise, nor of the upload.
#[test]
fn a_forgotten_refusal_with_a_long_key_keeps_no_others_from_being_told() {
    let mut remote = with_items_of(family());
    remote.run("INSERT INTO item VALUES (8, 'mine', 1), (9, 'mine', 1)");
    remote.acknowledge(|_| {});
    super::kept::restored(&mut remote);
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            let key_in_use = Code::RowKeyInUse.number();
            for id in [8, 9] {
                rows.refused(&[Datum::Integer(id)], Op::Insert, key_in_use, "in use");
            }
        });
    });
    become_another(&mut remote);
    remote.run(
        "UPDATE tidewater_refused SET key = key || printf('%.300000c', ' ') WHERE key = '[9]'",
    );
    let told = remote.database().forgotten_refusals(&remote.state());
    let told = told.unwrap().into_iter();
    assert_eq!(told.map(|it| it.key).collect::<Vec<_>>(), ["[8]"]);
}
