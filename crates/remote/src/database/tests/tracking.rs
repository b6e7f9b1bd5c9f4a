//! Facts about tracking and about what an upload says.

use super::*;
use tidewater_protocol::{ForeignKey, ForeignKeyAction};

#[test]
fn a_download_is_not_tracked() {
    let mut remote = with_items();
    assert_eq!(remote.query("SELECT name FROM item"), ["a", "b", "c"]);
    assert_eq!(remote.upload(), []);
    assert_eq!(remote.begin().taken, None);
}

#[test]
fn insert_update_and_delete_are_uploaded_with_their_pre_images() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (9, 'new', 90)");
    remote.run("UPDATE item SET name = 'B' WHERE id = 2");
    remote.run("DELETE FROM item WHERE id = 3");
    assert_eq!(
        remote.upload(),
        [
            update(&item(2, "b", 20), &item(2, "B", 20)),
            delete(&item(3, "c", 30)),
            insert(&item(9, "new", 90)),
        ]
    );
}

#[test]
fn only_net_changes_are_uploaded() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (9, 'x', 1); UPDATE item SET name = 'y' WHERE id = 9");
    remote.run("INSERT INTO item VALUES (8, 'x', 1); DELETE FROM item WHERE id = 8");
    remote.run("UPDATE item SET name = 'x' WHERE id = 1; UPDATE item SET name = 'a' WHERE id = 1");
    remote.run("DELETE FROM item WHERE id = 2; INSERT INTO item VALUES (2, 'b', 21)");
    remote.run("UPDATE item SET name = 'z' WHERE id = 3; DELETE FROM item WHERE id = 3");
    assert_eq!(
        remote.upload(),
        [
            update(&item(2, "b", 20), &item(2, "b", 21)),
            delete(&item(3, "c", 30)),
            insert(&item(9, "y", 1)),
        ]
    );
}

/// Interleaving 8.
#[test]
fn every_conflict_clause_twice_in_one_generation_keeps_the_first_pre_image() {
    for statement in [
        "INSERT INTO item VALUES (1, ?1, 10) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        "UPDATE OR FAIL item SET name = ?1 WHERE id = 1",
        "UPDATE OR REPLACE item SET name = ?1 WHERE id = 1",
        "UPDATE OR IGNORE item SET name = ?1 WHERE id = 1",
        "UPDATE OR ROLLBACK item SET name = ?1 WHERE id = 1",
        "REPLACE INTO item VALUES (1, ?1, 10)",
        "INSERT OR REPLACE INTO item VALUES (1, ?1, 10)",
    ] {
        let mut remote = with_items();
        let application = remote.application();
        for name in ["first", "second"] {
            application.execute(statement, [name]).unwrap();
        }
        assert_eq!(
            remote.upload(),
            [update(&item(1, "a", 10), &item(1, "second", 10))],
            "{statement}"
        );
    }
}

#[test]
fn what_is_ignored_or_fails_is_no_change() {
    let mut remote = with_items();
    remote.run("INSERT OR IGNORE INTO item VALUES (1, 'x', 1)");
    remote.run("INSERT INTO item VALUES (2, 'x', 1) ON CONFLICT DO NOTHING");
    remote.run("INSERT OR IGNORE INTO item VALUES (NULL, 'x', 1)");
    remote.run("INSERT OR IGNORE INTO item VALUES ('abc', 'x', 1)");
    remote.fails("INSERT INTO item VALUES (7, 'x', 1), (1, 'x', 1)");
    remote.fails("UPDATE item SET id = 2 WHERE id = 1");
    assert_eq!(remote.upload(), []);
}

#[test]
fn what_is_rolled_back_is_no_change() {
    let mut remote = with_items();
    remote.run(
        "BEGIN; UPDATE item SET name = 'kept' WHERE id = 1; SAVEPOINT s; \
         UPDATE item SET name = 'lost' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         ROLLBACK TO s; COMMIT; BEGIN; DELETE FROM item; ROLLBACK",
    );
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "kept", 10))]
    );
}

/// Interleaving 9, the remote's side.
#[test]
fn replace_by_a_secondary_unique_key_is_a_tracked_delete() {
    for index in [
        "(name)",
        "(name COLLATE NOCASE)",
        "(lower(name))",
        "(lower(name) DESC, amount / 1000)",
        "(name) WHERE amount > 0",
        "/* (id) */ (lower(name)\nDESC)",
        "(lower(name) -- don't (care)\n)",
    ] {
        let mut remote = with_items();
        remote.run(&format!("CREATE UNIQUE INDEX own ON item {index}"));
        remote.begin();
        remote.run("REPLACE INTO item VALUES (9, 'a', 90)");
        remote.run("UPDATE OR REPLACE item SET name = 'b' WHERE id = 3");
        assert_eq!(
            remote.upload(),
            [
                delete(&item(1, "a", 10)),
                delete(&item(2, "b", 20)),
                update(&item(3, "c", 30), &item(3, "b", 30)),
                insert(&item(9, "a", 90)),
            ],
            "{index}"
        );
    }
}

/// BEFORE triggers see the NULL in whose place REPLACE puts the default.
#[test]
fn a_default_that_replace_puts_in_the_place_of_null_is_tracked() {
    let with_default = |name: &str, default: &str| Column {
        default: Some(default.into()),
        ..column(name, ColumnType::Text, false)
    };
    let schema = publication(vec![table(
        "item",
        vec![with_default("k", "'d'"), with_default("code", "'c'")],
        vec![0],
    )]);
    fn entry<'a>(k: &'a str, code: &'a str) -> [Datum<'a>; 2] {
        [k, code].map(Datum::Text)
    }
    let mut remote = Remote::new(schema);
    remote.download(|_| {});
    remote.run("INSERT OR REPLACE INTO item VALUES (NULL, 'mine')");
    assert_eq!(remote.upload(), [insert(&entry("d", "mine"))]);
    remote.begin();
    remote.acknowledge(|_| {});
    remote.run("INSERT OR REPLACE INTO item VALUES (NULL, 'again'), ('e', 'f')");
    remote.run("UPDATE OR REPLACE item SET k = NULL WHERE k = 'e'");
    let lost = update(&entry("d", "mine"), &entry("d", "f"));
    assert_eq!(remote.upload(), [lost]);
    remote.begin();
    remote.acknowledge(|_| {});
    remote.run("CREATE UNIQUE INDEX own ON item (code)");
    remote.run("INSERT INTO item VALUES ('x', 'c')");
    remote.begin();
    remote.acknowledge(|_| {});
    remote.run("INSERT OR REPLACE INTO item VALUES ('y', NULL)");
    let expected = [delete(&entry("x", "c")), insert(&entry("y", "c"))];
    assert_eq!(remote.upload(), expected);
    remote.begin();
    remote.acknowledge(|_| {});
    remote.run("UPDATE OR REPLACE item SET code = NULL WHERE k = 'd'");
    let expected = [
        update(&entry("d", "f"), &entry("d", "c")),
        delete(&entry("y", "c")),
    ];
    assert_eq!(remote.upload(), expected);
}

#[test]
fn setting_the_rowid_of_a_table_that_a_tool_made_again_is_changing_the_key() {
    let mut remote = with_items();
    remote.run(
        "ALTER TABLE item RENAME TO old; \
         CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER); \
         INSERT INTO item SELECT * FROM old; DROP TABLE old",
    );
    remote.begin();
    remote.run("UPDATE item SET rowid = 100 WHERE id = 1");
    let expected = [update(&item(1, "a", 10), &item(100, "a", 10))];
    assert_eq!(remote.upload(), expected);
}

#[test]
fn triggers_of_the_application_are_tracked_whatever_their_order() {
    for (when, sql) in [
        (
            "AFTER INSERT",
            "UPDATE item SET amount = amount + 1 WHERE id = NEW.id",
        ),
        ("BEFORE INSERT", "DELETE FROM item WHERE id = 3"),
        (
            "AFTER UPDATE",
            "UPDATE item SET amount = 99 WHERE id = NEW.id AND amount < 99",
        ),
        (
            "AFTER DELETE",
            "INSERT INTO item VALUES (OLD.id, 'again', 1)",
        ),
    ] {
        let mut remote = with_items();
        remote.run(&format!(
            "CREATE TRIGGER own {when} ON item BEGIN {sql}; END"
        ));
        remote.run("INSERT INTO item VALUES (9, 'new', 90)");
        remote.run("UPDATE item SET name = 'A' WHERE id = 1");
        remote.run("DELETE FROM item WHERE id = 2");
        let changes = remote.upload();
        let find = |id: i64| {
            changes.iter().find(|change| {
                let values = if change.new.is_empty() {
                    &change.old
                } else {
                    &change.new
                };
                values[0] == Value::Integer(id)
            })
        };
        assert_eq!(find(9).unwrap().op, Op::Insert, "{when}");
        assert_eq!(find(1).unwrap().old, stored(&item(1, "a", 10)), "{when}");
        assert_eq!(find(2).unwrap().old, stored(&item(2, "b", 20)), "{when}");
    }
}

fn with_cascade(on_delete: ForeignKeyAction) -> PublicationSchema {
    let parent = table(
        "parent",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    );
    let mut child = table(
        "child",
        vec![
            column("id", ColumnType::Integer, false),
            Column {
                default: Some("0".into()),
                ..column("parent", ColumnType::Integer, true)
            },
        ],
        vec![0],
    );
    child.foreign_keys = vec![ForeignKey {
        columns: vec![1],
        parent: "parent".into(),
        parent_columns: vec!["id".into()],
        on_delete,
        on_update: ForeignKeyAction::Cascade,
    }];
    publication(vec![parent, child])
}

#[test]
fn foreign_key_actions_are_tracked() {
    for action in [
        ForeignKeyAction::Cascade,
        ForeignKeyAction::SetNull,
        ForeignKeyAction::SetDefault,
    ] {
        let mut remote = Remote::new(with_cascade(action));
        remote.run(
            "INSERT INTO parent VALUES (0), (1), (2); INSERT INTO child VALUES (10, 1), (20, 2)",
        );
        remote.acknowledge(|_| {});
        remote.run("DELETE FROM parent WHERE id = 1; UPDATE parent SET id = 3 WHERE id = 2");
        let changes = remote.upload();
        let ops: Vec<(&str, Op)> = changes
            .iter()
            .map(|change| (change.table.as_str(), change.op))
            .collect();
        let first = if action == ForeignKeyAction::Cascade {
            Op::Delete
        } else {
            Op::Update
        };
        assert_eq!(
            ops,
            [
                ("parent", Op::Delete),
                ("parent", Op::Update),
                ("child", first),
                ("child", Op::Update),
            ]
        );
    }
}

/// Interleaving 12.
#[test]
fn the_upload_carries_the_values_as_of_the_taking_and_a_retry_is_identical() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'A' WHERE id = 1; INSERT INTO item VALUES (9, 'n', 9)");
    remote.run("DELETE FROM item WHERE id = 3");
    let state = remote.begin();
    let first = remote.packed_upload(&state);
    remote.run("UPDATE item SET name = 'AA' WHERE id = 1; DELETE FROM item WHERE id = 9");
    remote.run("INSERT INTO item VALUES (3, 'cc', 33); UPDATE item SET name = 'BB' WHERE id = 2");
    let retry = remote.begin();
    assert_eq!(retry.taken, state.taken);
    assert_eq!(remote.packed_upload(&retry), first);
    assert_eq!(remote.changes(&retry).len(), 3);
    remote.acknowledge(|_| {});
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "A", 10), &item(1, "AA", 10)),
            update(&item(2, "b", 20), &item(2, "BB", 20)),
            insert(&item(3, "cc", 33)),
            delete(&item(9, "n", 9)),
        ]
    );
}

#[test]
fn a_large_upload_comes_in_pieces_and_is_complete() {
    let mut remote = Remote::new(items());
    remote.run(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000) \
         INSERT INTO item SELECT n, 'name number ' || n || ' with some more text', n FROM n",
    );
    let state = remote.begin();
    let mut cursor = UploadCursor::default();
    let mut pieces = 0;
    let mut bytes = 0;
    while let Some(chunk) = remote.database().upload_chunk(&state, &mut cursor).unwrap() {
        assert_eq!(chunk.begin.is_some(), pieces == 0);
        pieces += 1;
        bytes += chunk.rows.len() as u64;
    }
    assert!(pieces > 2);
    assert_eq!(remote.changes(&state).len(), 5000);
    let (rows, estimated) = remote.database().upload_estimate(&state).unwrap();
    assert_eq!(rows, 5000);
    assert!(
        estimated.abs_diff(bytes) < bytes / 4,
        "{estimated} of {bytes}"
    );
}

/// Interleaving 12, between two pieces of one upload.
#[test]
fn an_edit_while_the_upload_is_read_leaves_what_is_read_as_it_was() {
    let mut remote = Remote::new(items());
    remote.run(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000) \
         INSERT INTO item SELECT n, 'name number ' || n || ' with some more text', n FROM n",
    );
    let state = remote.begin();
    let whole = remote.packed_upload(&state);
    let mut cursor = UploadCursor::default();
    let mut rows = Vec::new();
    let mut pieces = 0;
    while let Some(chunk) = remote.database().upload_chunk(&state, &mut cursor).unwrap() {
        rows.extend(chunk.rows);
        pieces += 1;
        // Rows that were read and rows that were not, among them the last.
        remote.run(
            "UPDATE item SET name = name || '!' WHERE id % 1000 = 0; \
             DELETE FROM item WHERE id IN (7, 4993); \
             UPDATE item SET id = -id WHERE id IN (8, 4992)",
        );
    }
    assert!(pieces > 2);
    assert!(
        rows == whole[0].1,
        "the pieces are not those of an undisturbed upload"
    );
}

/// Interleaving 21.
#[test]
fn a_key_that_is_not_canonical_is_a_clear_error_at_once() {
    let kinds = [
        (ColumnType::Uuid, "'0F8FAD5B-D9CB-469F-A165-70867728950E'"),
        (ColumnType::Decimal { scale: Some(2) }, "'1.5'"),
        (ColumnType::Integer, "'one'"),
        (ColumnType::Timestamp, "'2026-01-02 03:04:05'"),
        (ColumnType::Text, "x'00'"),
    ];
    for (column_type, value) in kinds {
        let keyed = table("keyed", vec![column("k", column_type, false)], vec![0]);
        let mut remote = Remote::new(publication(vec![keyed]));
        let error = remote.fails(&format!("INSERT INTO keyed VALUES ({value})"));
        assert!(error.contains("k in canonical form"), "{error}");
        let error = remote.fails("INSERT INTO keyed VALUES (NULL)");
        assert_eq!(error, "NOT NULL constraint failed: keyed.k");
        assert_eq!(remote.upload(), []);
    }
}

#[test]
fn a_value_spelled_differently_is_asked_for_in_the_centres_spelling() {
    let priced = table(
        "priced",
        vec![
            column("id", ColumnType::Integer, false),
            column("price", ColumnType::Decimal { scale: Some(2) }, true),
        ],
        vec![0],
    );
    let mut remote = Remote::new(publication(vec![priced]));
    remote.run("INSERT INTO priced VALUES (1, '1.5'), (2, '2.50'), (3, 'cheap')");
    let changes = remote.upload();
    let price = |index: usize| changes[index].new[1].clone();
    assert_eq!(price(0), Value::Text("1.50".into()));
    assert_eq!(
        price(2),
        Value::Text("cheap".into()),
        "refused by the centre, by name"
    );
    remote.acknowledge(|_| {});
    assert_eq!(remote.query("SELECT count(*) FROM tidewater_stale"), ["1"]);
    assert_eq!(remote.requested(), 1);
}

#[test]
fn bytes_stored_as_text_go_up_as_bytes_and_are_asked_for_as_such() {
    let mut blobs = Remote::new(publication(vec![table(
        "file",
        vec![
            column("id", ColumnType::Integer, false),
            column("content", ColumnType::Bytes, true),
            column("title", ColumnType::Text, true),
        ],
        vec![0],
    )]));
    blobs.run(
        "INSERT INTO file VALUES (1, CAST(x'ff00' AS TEXT), 'a'), (2, x'ff00', 'b'), \
         (3, 'plain', 'c'), (4, NULL, CAST(x'ff' AS TEXT))",
    );
    let news: Vec<Vec<Value>> = blobs
        .upload()
        .into_iter()
        .map(|change| change.new)
        .collect();
    let bytes = Value::Blob(vec![0xff, 0]);
    assert_eq!((&news[0][1], &news[1][1]), (&bytes, &bytes));
    // Not values of their types: the centre refuses them by name.
    assert_eq!(news[2][1], Value::Text("plain".into()));
    assert_eq!(news[3][2], Value::Blob(vec![0xff]));
    blobs.acknowledge(|_| {});
    assert_eq!(blobs.requested(), 1);
}

#[test]
fn download_only_tables_refuse_changes_with_a_clear_error() {
    let mut schema = items();
    schema.tables[0].direction = Direction::Download;
    let mut remote = Remote::new(schema);
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "a", 10)));
    });
    for sql in [
        "INSERT INTO item VALUES (2, 'b', 20)",
        "UPDATE item SET name = 'x'",
        "DELETE FROM item",
    ] {
        let error = remote.fails(sql);
        assert!(error.contains("table \"item\" is download-only"), "{error}");
    }
    assert_eq!(remote.upload(), []);
}

#[test]
fn triggers_that_vanished_are_restored_at_the_next_sync() {
    let mut remote = with_items();
    remote.run("DROP TRIGGER tidewater_update_item");
    remote.begin();
    remote.run("UPDATE item SET name = 'A' WHERE id = 1");
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "A", 10))]
    );
}

#[test]
fn a_table_rebuilt_with_a_rowid_is_tracked_again() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE other (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER); \
         INSERT INTO other SELECT * FROM item; DROP TABLE item; \
         ALTER TABLE other RENAME TO item",
    );
    remote.begin();
    remote.run("INSERT INTO item (name, amount) VALUES ('new', 4)");
    remote.run("UPDATE item SET name = 'A' WHERE id = 1");
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "A", 10)),
            insert(&item(4, "new", 4)),
        ]
    );
}

#[test]
fn any_name_can_be_synced() {
    for (table_name, column_name) in [
        ("a \"quoted\" name", "it's; DROP TABLE x; --"),
        ("select", "group"),
        ("заказы", "цена"),
        ("注文 [1]", "数量`"),
        ("new", "old"),
        ("generation", "present"),
    ] {
        let mut odd = table(
            table_name,
            vec![
                column("key", ColumnType::Text, false),
                column(column_name, ColumnType::Text, true),
            ],
            vec![0],
        );
        odd.partition = vec![1];
        odd.unique = vec![vec![1, 0]];
        let mut remote = Remote::new(publication(vec![odd]));
        let quoted = super::super::quote::name(table_name);
        remote.run(&format!(
            "CREATE UNIQUE INDEX own ON {quoted} (\"key\", \"key\")"
        ));
        remote.begin();
        let row = |value| [Datum::Text("k"), Datum::Text(value)];
        remote.download(|server| {
            server.table(table_name, |rows| rows.row(Op::Upsert, &row("v")));
        });
        remote.run(&format!(
            "UPDATE {quoted} SET {} = 'w'",
            super::super::quote::name(column_name)
        ));
        let changes = remote.upload();
        assert_eq!(changes.len(), 1, "{table_name}");
        assert_eq!(changes[0].old, stored(&row("v")));
        assert_eq!(changes[0].new, stored(&row("w")));
        remote.acknowledge(|server| {
            server.table(table_name, |rows| {
                rows.refused(&[Datum::Text("k")], Op::Update, 703, "no");
            });
        });
        remote.download(|server| {
            server.table(table_name, |rows| rows.key(Op::Remove, &[Datum::Text("k")]));
        });
        assert_eq!(
            remote.query(&format!("SELECT count(*) FROM {quoted}")),
            ["0"]
        );
        assert_eq!(remote.database().refused().unwrap().len(), 1);
    }
}
