//! Facts about refused changes of which only the values are left: they are written again, and
//! settled once they are taken. And about rows that stay otherwise than in the centre.

use super::*;
use crate::database::RowSelection;
use tidewater_protocol::{Code, ForeignKey, ForeignKeyAction};

const NAMES: &str = "SELECT id || ':' || coalesce(name, '') || ':' || amount FROM item ORDER BY id";

/// Changes are made and refused, and the rows leave.
fn with_left_behind(changes: &str, refused: &[(i64, Op)]) -> Remote {
    let mut remote = with_items();
    remote.run(changes);
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            for &(id, op) in refused {
                rows.refused(&[Datum::Integer(id)], op, Code::RowCheck.number(), "no");
            }
        });
    });
    remote.download(|server| {
        server.table("item", |rows| {
            for id in [1, 2, 3] {
                rows.key(Op::Remove, &[Datum::Integer(id)]);
            }
        });
    });
    assert_eq!(remote.query(NAMES), Vec::<String>::new());
    assert_eq!(remote.upload(), []);
    remote
}

fn restored(remote: &mut Remote) -> u64 {
    remote
        .database_mut()
        .restore_refused(RowSelection::All)
        .unwrap()
}

#[test]
fn what_left_with_its_row_is_written_again_as_a_new_row() {
    let changes = "UPDATE item SET name = 'mine' WHERE id = 1; \
                   UPDATE item SET name = NULL WHERE id = 3; \
                   UPDATE item SET id = 5, name = 'moved' WHERE id = 2";
    let refused = [(1, Op::Update), (3, Op::Update), (2, Op::Update)];
    let mut remote = with_left_behind(changes, &refused);
    assert_eq!(remote.kept_values().len(), 3);
    assert_eq!(restored(&mut remote), 3);
    assert!(remote.database().refused().unwrap().is_empty());
    assert_eq!(remote.query(NAMES), ["1:mine:10", "3::30", "5:moved:20"]);
    let [first, second] = [item(1, "mine", 10), item(5, "moved", 20)];
    let third = [Datum::Integer(3), Datum::Null, Datum::Integer(30)];
    let expected = [insert(&first), insert(&third), insert(&second)];
    assert_eq!(remote.upload(), expected);
}

#[test]
fn values_are_put_onto_the_row_that_is_there() {
    let changes = "UPDATE item SET name = 'mine' WHERE id = 1; \
                   UPDATE item SET id = 5, name = 'moved' WHERE id = 2; \
                   DELETE FROM item WHERE id = 3";
    let refused = [(1, Op::Update), (2, Op::Update), (3, Op::Delete)];
    let mut remote = with_left_behind(changes, &refused);
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "theirs", 11));
            rows.row(Op::Upsert, &item(2, "theirs", 12));
            rows.row(Op::Upsert, &item(3, "theirs", 13));
        });
    });
    assert_eq!(restored(&mut remote), 3);
    assert_eq!(remote.query(NAMES), ["1:mine:10", "5:moved:20"]);
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "theirs", 11), &item(1, "mine", 10)),
            update(&item(2, "theirs", 12), &item(5, "moved", 20)),
            delete(&item(3, "theirs", 13)),
        ]
    );
}

#[test]
fn what_cannot_be_written_again_stays_listed() {
    let mut remote = with_left_behind("DELETE FROM item WHERE id = 3", &[(3, Op::Delete)]);
    remote.run("INSERT INTO item VALUES (7, 'parked', 1)");
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(7)], Op::Insert, 703, "no");
        });
    });
    assert_eq!(restored(&mut remote), 0);
    assert_eq!(remote.database().refused().unwrap().len(), 2);
    assert_eq!(remote.upload(), []);
}

#[test]
fn every_value_comes_back_as_it_was() {
    let types = [
        ColumnType::Integer,
        ColumnType::Real,
        ColumnType::Boolean,
        ColumnType::Text,
        ColumnType::Bytes,
        ColumnType::Decimal { scale: Some(2) },
        ColumnType::Json,
    ];
    let columns = types.into_iter().enumerate();
    let mut columns: Vec<Column> = columns
        .map(|(number, column_type)| column(&format!("c{number}"), column_type, true))
        .collect();
    columns.insert(0, column("id", ColumnType::Integer, false));
    let kinds = table("kind", columns, vec![0]);
    let mut remote = Remote::new(publication(vec![kinds]));
    let rows = "(1, 9223372036854775807, 0.1, 1, 'a\"''x''00''', x'00ff', '1.50', '[1, {}]'), \
                (2, 'abc', 1e300, 0, '', x'', '12345678901234567890.12', 'null'), \
                (3, -1, 9e999, NULL, NULL, NULL, 'NaN', NULL), \
                (4, 0, 'NaN', 1, x'41', 'text', '1.50', '1'), \
                (5, 0, 2.2250738585072011e-308, 1, 'x', NULL, '-0.01', '2')";
    remote.run("INSERT INTO kind (id) VALUES (1), (2), (3), (4), (5)");
    remote.acknowledge(|_| {});
    remote.run(&format!("REPLACE INTO kind VALUES {rows}"));
    let all = "SELECT quote(id) || quote(c0) || quote(c1) || quote(c2) || quote(c3) || quote(c4) \
               || quote(c5) || quote(c6) FROM kind ORDER BY id";
    let before = remote.query(all);
    remote.acknowledge(|server| {
        server.table("kind", |rows| {
            for id in 1..=5 {
                rows.refused(&[Datum::Integer(id)], Op::Update, 703, "no");
            }
        });
    });
    remote.download(|server| {
        server.table("kind", |rows| {
            for id in 1..=5 {
                rows.key(Op::Remove, &[Datum::Integer(id)]);
            }
        });
    });
    assert_eq!(remote.query(all), Vec::<String>::new());
    assert_eq!(restored(&mut remote), 5);
    let after = remote.query(all);
    for (before, after) in before.iter().zip(&after) {
        // Bytes that were written into a column of text are kept as they are told.
        assert_eq!(&before.replace("X'41'", "'x''41'''"), after);
    }
    assert_eq!(after.len(), 5);
}

#[test]
fn a_row_that_is_written_again_and_taken_settles_its_older_refusal() {
    let changes = "UPDATE item SET name = 'mine' WHERE id = 1; \
                   UPDATE item SET id = 5, name = 'moved' WHERE id = 2; \
                   UPDATE item SET name = 'new' WHERE id = 3";
    let refused = [(1, Op::Update), (2, Op::Update), (3, Op::Update)];
    let mut remote = with_left_behind(changes, &refused);
    remote.run("INSERT INTO item VALUES (1, 'again', 10), (5, 'again', 20), (3, 'again', 30)");
    remote.begin();
    let keys = |remote: &Remote| -> Vec<String> {
        let refused = remote.database().refused().unwrap();
        refused.into_iter().map(|row| row.key).collect()
    };
    assert_eq!(keys(&remote).len(), 3);
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(3)], Op::Insert, 703, "still no");
        });
    });
    // The third is refused once more: as values, and as the row.
    assert_eq!(keys(&remote), ["[3]", "[3]"]);
}

#[test]
fn what_changes_nothing_settles_nothing() {
    let mut remote = with_left_behind(
        "UPDATE item SET name = 'mine' WHERE id = 1",
        &[(1, Op::Update)],
    );
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "theirs", 11)));
    });
    remote.run("UPDATE item SET name = name WHERE id = 1; INSERT INTO item VALUES (8, 'x', 1)");
    remote.acknowledge(|_| {});
    assert_eq!(remote.database().refused().unwrap().len(), 1);
    remote.run("UPDATE item SET name = 'B' WHERE id = 1");
    remote.acknowledge(|_| {});
    assert!(remote.database().refused().unwrap().is_empty());
}

#[test]
fn rows_that_stay_otherwise_than_in_the_centre_are_told_with_what_keeps_them() {
    let mut line = table(
        "line",
        vec![
            column("id", ColumnType::Integer, false),
            column("doc", ColumnType::Integer, true),
        ],
        vec![0],
    );
    line.foreign_keys = vec![ForeignKey {
        columns: vec![1],
        parent: "doc".into(),
        parent_columns: vec!["id".into()],
        on_delete: ForeignKeyAction::Cascade,
        on_update: ForeignKeyAction::Cascade,
    }];
    let doc = table(
        "doc",
        vec![
            column("id", ColumnType::Integer, false),
            column("name", ColumnType::Text, true),
        ],
        vec![0],
    );
    let mut remote = Remote::new(publication(vec![doc, line]));
    remote.run("INSERT INTO doc VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')");
    remote.acknowledge(|_| {});
    remote.run("INSERT INTO line VALUES (10, 1); UPDATE doc SET name = 'B' WHERE id = 2");
    let state = remote.begin_in(SyncDirection::DownloadOnly);
    remote.download_into(&state, None, |server| {
        server.table("doc", |rows| {
            for id in 1..=3 {
                rows.key(Op::Remove, &[Datum::Integer(id)]);
            }
        });
    });
    let (count, stale) = remote.database().stale(10).unwrap();
    let told: Vec<(&str, &str)> = stale.iter().map(|it| (&*it.key, &*it.reason)).collect();
    let expected = [
        (
            "[1]",
            "the row [10] of line refers to it, and what was changed of that here has not gone up",
        ),
        (
            "[2]",
            "it was changed here too, and the change has not gone up",
        ),
    ];
    assert_eq!((count, told), (2, expected.to_vec()));
    let (count, first) = remote.database().stale(1).unwrap();
    assert_eq!((count, first.len()), (2, 1));
}

#[test]
fn an_insert_is_not_written_onto_the_row_of_somebody_else() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (9, 'mine', 90)");
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            let code = Code::RowKeyInUse.number();
            rows.refused(&[Datum::Integer(9)], Op::Insert, code, "key in use");
        });
    });
    // A device that has begun anew has the row of somebody else, and of its own the values.
    remote
        .application()
        .execute_batch(
            "UPDATE tidewater_refused SET row_values = '{\"id\":9,\"name\":\"mine\",\"amount\":90}';
             DELETE FROM tidewater_change_item;
             UPDATE item SET name = 'theirs', amount = 19 WHERE id = 9;
             DELETE FROM tidewater_change_item",
        )
        .unwrap();
    assert_eq!(restored(&mut remote), 0);
    assert_eq!(
        remote.query("SELECT name FROM item WHERE id = 9"),
        ["theirs"]
    );
    assert_eq!(remote.upload(), []);
    assert_eq!(remote.database().refused().unwrap().len(), 1);
}
