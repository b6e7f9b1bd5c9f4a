//! Facts about changed keys: what an upload says of them, and what becomes of both rows that are
//! recorded of one.

use super::*;
use crate::database::RowSelection;
use tidewater_protocol::Code;

const NAMES: &str = "SELECT id || ':' || name || ':' || amount FROM item ORDER BY id";

/// Every table that was noted in has nothing left in it.
fn nothing_is_recorded(remote: &Remote) {
    for table in ["tidewater_change_item", "tidewater_rekeyed_item"] {
        let left = remote.query(&format!("SELECT generation FROM {table}"));
        assert_eq!(left, Vec::<String>::new(), "{table}");
    }
}

fn refuse(id: i64) -> impl FnOnce(&mut Sender<'_>) {
    move |server| {
        server.table("item", |rows| {
            let code = Code::RowCheck.number();
            rows.refused(&[Datum::Integer(id)], Op::Update, code, "no");
        });
    }
}

#[test]
fn a_changed_key_is_an_update_of_it() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5 WHERE id = 1");
    remote.run(
        "UPDATE item SET id = 6, name = 'B' WHERE id = 2; UPDATE item SET amount = 21 WHERE id = 6",
    );
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(5, "a", 10)),
            update(&item(2, "b", 20), &item(6, "B", 21)),
        ]
    );
    remote.acknowledge(|_| {});
    nothing_is_recorded(&remote);
    assert_eq!(remote.upload(), []);
}

#[test]
fn changes_of_a_key_are_net_over_a_generation() {
    let first = || item(1, "a", 10);
    for (statements, expected) in [
        (
            "UPDATE item SET id = 5 WHERE id = 1; UPDATE item SET id = 6 WHERE id = 5; \
             UPDATE item SET id = id + 1 WHERE id = 6",
            vec![update(&first(), &item(7, "a", 10))],
        ),
        (
            "INSERT INTO item VALUES (8, 'n', 1); UPDATE item SET id = 9 WHERE id = 8",
            vec![insert(&item(9, "n", 1))],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; DELETE FROM item WHERE id = 5",
            vec![delete(&first())],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; DELETE FROM item WHERE id = 5; \
             INSERT INTO item VALUES (5, 'another', 1)",
            vec![delete(&first()), insert(&item(5, "another", 1))],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; UPDATE item SET id = 1 WHERE id = 5",
            vec![],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; UPDATE item SET id = 1, name = 'A' WHERE id = 5; \
             UPDATE item SET id = 6 WHERE id = 1",
            vec![update(&first(), &item(6, "A", 10))],
        ),
        // The old key is another row's since: each key says what became of it.
        (
            "UPDATE item SET id = 5 WHERE id = 1; INSERT INTO item VALUES (1, 'another', 1)",
            vec![
                update(&first(), &item(1, "another", 1)),
                insert(&item(5, "a", 10)),
            ],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; INSERT INTO item VALUES (1, 'another', 1); \
             UPDATE item SET id = 6 WHERE id = 1",
            vec![
                update(&first(), &item(5, "a", 10)),
                insert(&item(6, "another", 1)),
            ],
        ),
        // Two rows exchange their keys.
        (
            "UPDATE item SET id = 0 WHERE id = 1; UPDATE item SET id = 1 WHERE id = 2; \
             UPDATE item SET id = 2 WHERE id = 0",
            vec![
                update(&first(), &item(1, "b", 20)),
                update(&item(2, "b", 20), &item(2, "a", 10)),
            ],
        ),
        // A row is pushed out.
        (
            "UPDATE OR REPLACE item SET id = 3 WHERE id = 2",
            vec![
                delete(&item(2, "b", 20)),
                update(&item(3, "c", 30), &item(3, "b", 20)),
            ],
        ),
        (
            "UPDATE item SET id = 5 WHERE id = 1; UPDATE OR REPLACE item SET id = 5 WHERE id = 2",
            vec![
                delete(&first()),
                update(&item(2, "b", 20), &item(5, "b", 20)),
            ],
        ),
        // Nothing happens.
        ("UPDATE OR IGNORE item SET id = 2 WHERE id = 1", vec![]),
        (
            "INSERT INTO item VALUES (5, 'n', 1); UPDATE OR IGNORE item SET id = 5 WHERE id = 1",
            vec![insert(&item(5, "n", 1))],
        ),
    ] {
        let mut remote = with_items();
        remote.run(statements);
        assert_eq!(remote.upload(), expected, "{statements}");
        remote.acknowledge(|_| {});
        nothing_is_recorded(&remote);
    }
}

/// Interleaving 12, for a changed key.
#[test]
fn a_retry_is_identical_whatever_became_of_the_row_since() {
    for since in [
        "UPDATE item SET name = 'later' WHERE id = 5",
        "UPDATE item SET id = 6 WHERE id = 5",
        "DELETE FROM item WHERE id = 5",
        "INSERT INTO item VALUES (1, 'another', 1)",
        "UPDATE item SET id = 1 WHERE id = 5",
    ] {
        let mut remote = with_items();
        remote.run("UPDATE item SET id = 5 WHERE id = 1; UPDATE item SET name = 'A' WHERE id = 5");
        let state = remote.begin();
        let first = remote.packed_upload(&state);
        remote.run(since);
        assert_eq!(remote.packed_upload(&state), first, "{since}");
        let expected = [update(&item(1, "a", 10), &item(5, "A", 10))];
        assert_eq!(remote.changes(&state), expected, "{since}");
    }
}

#[test]
fn what_is_changed_after_the_taking_goes_up_by_the_new_key() {
    let taken = || item(5, "A", 10);
    for (since, expected) in [
        (
            "UPDATE item SET name = 'later' WHERE id = 5",
            vec![update(&taken(), &item(5, "later", 10))],
        ),
        (
            "UPDATE item SET id = 6 WHERE id = 5",
            vec![update(&taken(), &item(6, "A", 10))],
        ),
        ("DELETE FROM item WHERE id = 5", vec![delete(&taken())]),
        (
            "UPDATE item SET id = 1 WHERE id = 5",
            vec![update(&taken(), &item(1, "A", 10))],
        ),
    ] {
        let mut remote = with_items();
        remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
        let state = remote.begin();
        remote.run(since);
        assert_eq!(remote.changes(&state).len(), 1);
        remote.acknowledge(|_| {});
        assert_eq!(remote.upload(), expected, "{since}");
    }
}

#[test]
fn a_refused_change_of_a_key_is_known_by_the_old_one() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
    let summary = remote.acknowledge(refuse(1));
    assert_eq!(summary.refused_rows[0].key, "[1]");
    let refused = remote.database().refused().unwrap();
    assert_eq!((refused.len(), &*refused[0].operation), (1, "update"));
    assert_eq!(remote.query(NAMES), ["2:b:20", "3:c:30", "5:A:10"]);
    assert_eq!(remote.upload(), []);
    // By the user's wish, or because the row is changed again.
    assert_eq!(
        remote
            .database_mut()
            .retry_refused(RowSelection::All)
            .unwrap(),
        1
    );
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(5, "A", 10))]
    );
    remote.acknowledge(refuse(1));
    remote.run("UPDATE item SET id = 6, amount = 11 WHERE id = 5");
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(6, "A", 11))]
    );
    remote.acknowledge(|_| {});
    nothing_is_recorded(&remote);
    assert!(remote.database().refused().unwrap().is_empty());
}

#[test]
fn a_refused_change_of_a_key_that_was_changed_again_goes_up_with_the_later_change() {
    let before = || item(1, "a", 10);
    for (since, expected) in [
        (
            "UPDATE item SET amount = 11 WHERE id = 5",
            vec![update(&before(), &item(5, "A", 11))],
        ),
        (
            "UPDATE item SET id = 6 WHERE id = 5",
            vec![update(&before(), &item(6, "A", 10))],
        ),
        ("DELETE FROM item WHERE id = 5", vec![delete(&before())]),
        (
            "UPDATE item SET id = 1 WHERE id = 5",
            vec![update(&before(), &item(1, "A", 10))],
        ),
        (
            "INSERT INTO item VALUES (1, 'another', 1)",
            vec![
                update(&before(), &item(1, "another", 1)),
                insert(&item(5, "A", 10)),
            ],
        ),
        (
            "UPDATE item SET id = 6 WHERE id = 5; UPDATE item SET id = 5 WHERE id = 2",
            vec![
                update(&before(), &item(6, "A", 10)),
                update(&item(2, "b", 20), &item(5, "b", 20)),
            ],
        ),
    ] {
        // Before the refusal is here, and after.
        for is_here in [false, true] {
            let mut remote = with_items();
            remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
            if is_here {
                remote.acknowledge(refuse(1));
                remote.run(since);
            } else {
                let state = remote.begin();
                remote.run(since);
                assert_eq!(remote.changes(&state).len(), 1);
                remote.acknowledge(refuse(1));
            }
            assert_eq!(remote.upload(), expected, "{since}, {is_here}");
            assert!(remote.database().refused().unwrap().is_empty());
            remote.acknowledge(|_| {});
            nothing_is_recorded(&remote);
        }
    }
}

#[test]
fn a_discarded_change_of_a_key_gives_the_row_its_old_key_back() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
    remote.acknowledge(refuse(1));
    let discarded = remote
        .database_mut()
        .discard_refused(RowSelection::All)
        .unwrap();
    assert_eq!(discarded, 1);
    assert_eq!(remote.query(NAMES), ["1:a:10", "2:b:20", "3:c:30"]);
    nothing_is_recorded(&remote);
    assert_eq!(remote.upload(), []);
}

#[test]
fn a_change_of_a_key_that_lost_gives_way_to_the_centres_row() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET id = 5, name = 'A' WHERE id = 1; UPDATE item SET id = 6 WHERE id = 2",
    );
    let summary = remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.row(Op::ConflictRow, &item(1, "theirs", 10));
            rows.key(Op::ConflictGone, &[Datum::Integer(2)]);
        });
    });
    assert_eq!(summary.conflicts, 2);
    assert_eq!(summary.conflict_rows[0].key, "[1]");
    assert_eq!(remote.query(NAMES), ["1:theirs:10", "3:c:30"]);
    nothing_is_recorded(&remote);
    assert_eq!(remote.upload(), []);
}

#[test]
fn a_change_of_a_key_that_lost_and_was_changed_again_keeps_the_later_change() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'AA' WHERE id = 5");
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.row(Op::ConflictRow, &item(1, "theirs", 10))
        });
    });
    assert_eq!(
        remote.query(NAMES),
        ["1:theirs:10", "2:b:20", "3:c:30", "5:AA:10"]
    );
    assert_eq!(
        remote.upload(),
        [update(&item(5, "A", 10), &item(5, "AA", 10))]
    );
}

#[test]
fn a_refused_change_of_a_key_leaves_with_all_its_values() {
    type Removal<'a> = (&'a dyn Fn(&mut RowsWriter<'_>), bool);
    let removals: [Removal<'_>; 2] = [
        (&|rows| rows.key(Op::Remove, &[Datum::Integer(1)]), false),
        (&|rows| rows.row(Op::Upsert, &item(2, "b", 20)), true),
    ];
    for (number, (removal, replace)) in removals.into_iter().enumerate() {
        let mut remote = with_items();
        remote
            .run("UPDATE item SET id = 5, amount = 77 WHERE id = 1; DELETE FROM item WHERE id = 3");
        remote.acknowledge(refuse(1));
        remote.download(|server| server.send("item", replace, removal));
        let values = [r#"{"amount":77,"id":5,"name":"a"}"#];
        assert_eq!(remote.kept_values(), values, "{number}");
        assert_eq!(remote.query(NAMES), ["2:b:20"], "{number}");
        nothing_is_recorded(&remote);
        assert_eq!(remote.database().refused().unwrap()[0].key, "[1]");
    }
}

/// A restored remote sends a change of a key again that a script of the centre has taken before, and
/// is refused. Both are then the same row: the one that leaves, and the one that has come.
#[test]
fn a_row_that_the_centre_has_under_a_refused_key_comes_when_the_change_has_left() {
    let ask = "SELECT hex(key_packed) FROM tidewater_stale";
    let gone = |rows: &mut RowsWriter<'_>| rows.key(Op::Remove, &[Datum::Integer(1)]);
    let there = |rows: &mut RowsWriter<'_>| rows.row(Op::Upsert, &item(5, "A", 10));
    type Download<'a> = (bool, &'a dyn Fn(&mut RowsWriter<'_>));
    let downloads: [Download<'_>; 3] = [
        (false, &gone),
        (false, &|rows| {
            there(rows);
            gone(rows);
        }),
        (true, &there),
    ];
    for (number, (replace, rows)) in downloads.into_iter().enumerate() {
        let mut remote = with_items();
        remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
        remote.acknowledge(refuse(1));
        remote.download(|server| server.send("item", replace, rows));
        assert!(
            !remote.query(NAMES).contains(&"5:A:10".to_owned()),
            "{number}"
        );
        assert_eq!(remote.query(ask).len(), 1, "{number}");
        remote.download(|server| {
            server.table("item", |rows| rows.row(Op::Upsert, &item(5, "A", 10)));
        });
        assert!(
            remote.query(NAMES).contains(&"5:A:10".to_owned()),
            "{number}"
        );
        assert_eq!(remote.query(ask), [""; 0], "{number}");
        nothing_is_recorded(&remote);
    }
}

#[test]
fn a_row_under_a_refused_key_that_was_changed_again_stays_until_that_went_up() {
    for replace in [false, true] {
        let mut remote = with_items();
        remote.run("UPDATE item SET id = 5 WHERE id = 1");
        remote.acknowledge(refuse(1));
        remote.run("UPDATE item SET name = 'A' WHERE id = 5");
        // The centre has deleted the row.
        remote.download(|server| {
            server.send("item", replace, |rows| match replace {
                true => rows.row(Op::Upsert, &item(2, "b", 20)),
                false => rows.key(Op::Remove, &[Datum::Integer(1)]),
            });
        });
        assert!(
            remote.query(NAMES).contains(&"5:A:10".to_owned()),
            "{replace}"
        );
        let pending = [update(&item(1, "a", 10), &item(5, "A", 10))];
        assert_eq!(remote.upload(), pending, "{replace}");
    }
}

#[test]
fn rows_of_a_changed_key_that_arrive_wait_for_the_change() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5 WHERE id = 1");
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "theirs", 10));
            rows.row(Op::Upsert, &item(5, "theirs", 10));
        });
    });
    assert_eq!(remote.query(NAMES), ["2:b:20", "3:c:30", "5:a:10"]);
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(5, "a", 10))]
    );
}

#[test]
fn a_value_that_is_too_long_sets_the_changed_key_aside() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5, name = printf('%*s', 70000000, '') WHERE id = 1");
    assert_eq!(remote.upload(), []);
    remote.run("UPDATE item SET name = 'short' WHERE id = 5");
    assert_eq!(remote.upload(), []);
    remote.acknowledge(|_| {});
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(5, "short", 10))]
    );
}

#[test]
fn a_parent_that_gets_another_key_takes_its_children_along() {
    let mut line = table(
        "line",
        vec![
            column("doc", ColumnType::Text, false),
            column("n", ColumnType::Integer, false),
        ],
        vec![0, 1],
    );
    line.foreign_keys = vec![tidewater_protocol::ForeignKey {
        columns: vec![0],
        parent: "doc".into(),
        parent_columns: vec!["id".into()],
        on_delete: tidewater_protocol::ForeignKeyAction::Cascade,
        on_update: tidewater_protocol::ForeignKeyAction::Cascade,
    }];
    let doc = table("doc", vec![column("id", ColumnType::Text, false)], vec![0]);
    let mut remote = Remote::new(publication(vec![doc, line]));
    remote.run("INSERT INTO doc VALUES ('d1'); INSERT INTO line VALUES ('d1', 1), ('d1', 2)");
    remote.acknowledge(|_| {});
    remote.run("UPDATE doc SET id = 'd1x'; INSERT INTO line VALUES ('d1x', 3)");
    let text = |text: &str| Value::Text(text.into());
    let line = |op, old: Option<i64>, new: i64| Change {
        table: "line".into(),
        op,
        old: old.map_or_else(Vec::new, |n| vec![text("d1"), Value::Integer(n)]),
        new: vec![text("d1x"), Value::Integer(new)],
    };
    let expected = [
        Change {
            table: "doc".into(),
            op: Op::Update,
            old: vec![text("d1")],
            new: vec![text("d1x")],
        },
        line(Op::Update, Some(1), 1),
        line(Op::Update, Some(2), 2),
        line(Op::Insert, None, 3),
    ];
    assert_eq!(remote.upload(), expected);
}
