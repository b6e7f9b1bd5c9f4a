//! Ways to change a row that need more than a statement: other files, full-text indexes,
//! and a sync that is under way.

use tidewater_protocol::{ForeignKey, ForeignKeyAction};

use super::*;

#[test]
fn what_is_written_through_another_database_is_tracked() {
    let mut remote = with_items();
    let other = remote.folder.path().join("other.db");
    let path = remote.path();
    // Both files have a table of this name, and a `tidewater_` one that is not ours.
    let main = Connection::open(&other).unwrap();
    main.execute_batch(&format!(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER);
         CREATE TABLE tidewater_subscription (id, generation);
         INSERT INTO item VALUES (1, 'other', 0), (7, 'seven', 70);
         ATTACH '{}' AS remote;
         BEGIN;
         UPDATE remote.item SET name = 'A' WHERE id = 1;
         INSERT OR REPLACE INTO remote.item SELECT * FROM main.item WHERE id = 7;
         DELETE FROM remote.item WHERE id IN (SELECT id + 1 FROM main.item);
         UPDATE main.item SET name = 'not synced';
         COMMIT",
        path.display()
    ))
    .unwrap();
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "A", 10)),
            delete(&item(2, "b", 20)),
            insert(&item(7, "seven", 70)),
        ]
    );
}

#[test]
fn databases_attached_to_a_remote_are_left_alone() {
    let mut remote = with_items();
    let mut second = with_items();
    remote.run(&format!(
        "ATTACH '{}' AS second; \
         UPDATE second.item SET name = 'in the second' WHERE id = 1; \
         UPDATE main.item SET name = 'in the first' WHERE id = 2; \
         CREATE TEMP TABLE jotted (x); \
         CREATE TEMP TRIGGER follow AFTER INSERT ON jotted BEGIN \
           DELETE FROM item WHERE id = NEW.x; END; \
         INSERT INTO jotted VALUES (3)",
        second.path().display()
    ));
    assert_eq!(
        remote.upload(),
        [
            update(&item(2, "b", 20), &item(2, "in the first", 20)),
            delete(&item(3, "c", 30)),
        ]
    );
    assert_eq!(
        second.upload(),
        [update(&item(1, "a", 10), &item(1, "in the second", 10))]
    );
}

#[test]
fn a_full_text_index_with_external_content_follows_both_sides_and_is_not_uploaded() {
    let mut remote = with_items();
    remote.run(
        "CREATE VIRTUAL TABLE found USING fts5 (name, content = 'item', content_rowid = 'id');
         INSERT INTO found (found) VALUES ('rebuild');
         CREATE TRIGGER fts_insert AFTER INSERT ON item BEGIN
           INSERT INTO found (rowid, name) VALUES (NEW.id, NEW.name); END;
         CREATE TRIGGER fts_delete AFTER DELETE ON item BEGIN
           INSERT INTO found (found, rowid, name) VALUES ('delete', OLD.id, OLD.name); END;
         CREATE TRIGGER fts_update AFTER UPDATE ON item BEGIN
           INSERT INTO found (found, rowid, name) VALUES ('delete', OLD.id, OLD.name);
           INSERT INTO found (rowid, name) VALUES (NEW.id, NEW.name); END",
    );
    remote.run("UPDATE item SET name = 'apple' WHERE id = 1; DELETE FROM item WHERE id = 2");
    remote.run("INSERT INTO item VALUES (4, 'apple pie', 40)");
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "apple", 10)),
            delete(&item(2, "b", 20)),
            insert(&item(4, "apple pie", 40)),
        ]
    );
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(5, "apple tree", 50));
            rows.row(Op::Upsert, &item(1, "pear", 10));
            rows.key(Op::Remove, &[Datum::Integer(3)]);
        });
    });
    let search = "SELECT rowid FROM found WHERE found MATCH 'apple' ORDER BY rowid";
    assert_eq!(remote.query(search), ["4", "5"]);
    remote.run("INSERT INTO found (found, rank) VALUES ('integrity-check', 1)");
    assert_eq!(remote.upload(), []);
}

fn tree(on_delete: ForeignKeyAction) -> PublicationSchema {
    let mut node = table(
        "node",
        vec![
            column("id", ColumnType::Integer, false),
            Column {
                default: Some("0".into()),
                ..column("parent", ColumnType::Integer, true)
            },
        ],
        vec![0],
    );
    node.foreign_keys = vec![ForeignKey {
        columns: vec![1],
        parent: "node".into(),
        parent_columns: vec!["id".into()],
        on_delete,
        on_update: ForeignKeyAction::Cascade,
    }];
    publication(vec![node])
}

#[test]
fn foreign_key_actions_within_one_table_are_tracked() {
    let node = |id: i64, parent: Option<i64>| -> Vec<Value> {
        vec![
            Value::Integer(id),
            parent.map_or(Value::Null, Value::Integer),
        ]
    };
    for action in [
        ForeignKeyAction::Cascade,
        ForeignKeyAction::SetNull,
        ForeignKeyAction::SetDefault,
    ] {
        let mut remote = Remote::new(tree(action));
        remote.run("INSERT INTO node VALUES (0, NULL), (1, 0), (2, 1), (3, 2), (4, NULL), (5, 4)");
        remote.acknowledge(|_| {});
        remote.run("DELETE FROM node WHERE id = 1; UPDATE node SET id = 9 WHERE id = 4");
        let change = |op, old: &[Value], new: &[Value]| Change {
            table: "node".into(),
            op,
            old: old.to_vec(),
            new: new.to_vec(),
        };
        let gone = |id, parent| change(Op::Delete, &node(id, parent), &[]);
        let second = |parent| change(Op::Update, &node(2, Some(1)), &node(2, parent));
        let mut expected = vec![gone(1, Some(0))];
        match action {
            ForeignKeyAction::Cascade => expected.extend([gone(2, Some(1)), gone(3, Some(2))]),
            ForeignKeyAction::SetNull => expected.push(second(None)),
            _ => expected.push(second(Some(0))),
        }
        expected.extend([
            change(Op::Update, &node(4, None), &node(9, None)),
            change(Op::Update, &node(5, Some(4)), &node(5, Some(9))),
        ]);
        assert_eq!(remote.upload(), expected, "{action:?}");
    }
}

/// Interleaving 12. Each change is made at another stage of a sync; all are uploaded once, by this
/// sync or the next.
#[test]
fn changes_at_every_stage_of_a_sync_go_up_once() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'before' WHERE id = 1");
    let state = remote.begin();
    remote.run("UPDATE item SET name = 'after the taking' WHERE id = 1");
    let mut cursor = UploadCursor::default();
    assert!(
        remote
            .database()
            .upload_estimate(&state)
            .is_ok_and(|(rows, _)| rows == 1)
    );
    remote.run("UPDATE item SET name = 'before the reading' WHERE id = 2");
    let first = remote.changes(&state);
    assert_eq!(first, [update(&item(1, "a", 10), &item(1, "before", 10))]);
    while let Some(chunk) = remote.database().upload_chunk(&state, &mut cursor).unwrap() {
        assert_eq!((chunk.inserts, chunk.updates, chunk.deletes), (0, 1, 0));
        remote.run("INSERT INTO item VALUES (4, 'during the reading', 40)");
    }
    remote.run("DELETE FROM item WHERE id = 3");
    assert_eq!(remote.changes(&state), first);

    let mut applier = remote.applier_of(&state, None);
    let application = remote.application();
    let write = "INSERT INTO item VALUES (5, 'during the apply', 50)";
    application.busy_timeout(std::time::Duration::ZERO).unwrap();
    let error = application.execute_batch(write).unwrap_err();
    assert_eq!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy)
    );
    applier.result_begin(0).unwrap();
    applier.result_end().unwrap();
    remote.commit(applier);
    application.execute_batch(write).unwrap();
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "before", 10), &item(1, "after the taking", 10)),
            update(&item(2, "b", 20), &item(2, "before the reading", 20)),
            delete(&item(3, "c", 30)),
            insert(&item(4, "during the reading", 40)),
            insert(&item(5, "during the apply", 50)),
        ]
    );
}
