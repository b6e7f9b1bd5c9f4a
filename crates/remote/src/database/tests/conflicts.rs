//! Facts about what the device is told of changes that met somebody else's.

use super::*;
use crate::database::{ConflictedChange, RowSelection, conflicts::MOST_KEPT};
use tidewater_protocol::{ForeignKey, ForeignKeyAction};

const ROWS: &str = "SELECT id || ':' || name || ':' || amount FROM item ORDER BY id";

/// What is listed: operation, outcome, key, and the three images.
fn listed(remote: &Remote) -> Vec<[String; 6]> {
    let image = |it: &Option<String>| it.clone().unwrap_or_else(|| "-".into());
    let conflicts = remote.database().conflicts().unwrap();
    let listed = conflicts.iter().map(|it: &ConflictedChange| {
        assert_eq!(
            (it.at_ms, &*it.table, &*it.publication),
            (1_000, "item", "sales")
        );
        [
            it.operation.clone(),
            it.outcome.clone(),
            it.key.clone(),
            image(&it.pre_image),
            image(&it.mine),
            image(&it.theirs),
        ]
    });
    listed.collect()
}

fn json(id: i64, name: &str, amount: i64) -> String {
    format!(r#"{{"id":{id},"name":"{name}","amount":{amount}}}"#)
}

fn lost(rows: &[[Datum<'static>; 3]], gone: &[i64]) -> impl FnOnce(&mut Sender<'_>) {
    let gone: Vec<Datum<'static>> = gone.iter().map(|&id| Datum::Integer(id)).collect();
    move |server| {
        server.table("item", |writer| {
            for row in rows {
                writer.row(Op::ConflictRow, row);
            }
            for key in &gone {
                writer.key(Op::ConflictGone, &[*key]);
            }
        });
    }
}

#[test]
fn both_versions_of_what_lost_are_listed() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         UPDATE item SET amount = 31 WHERE id = 3; INSERT INTO item VALUES (4, 'new', 40)",
    );
    let theirs = [item(1, "theirs", 10), item(2, "B", 20), item(4, "they", 41)];
    remote.acknowledge(lost(&theirs, &[3]));
    let dash = || "-".to_owned();
    let expected = [
        [
            "update",
            "lost",
            "[1]",
            &json(1, "a", 10),
            &json(1, "mine", 10),
            &json(1, "theirs", 10),
        ],
        [
            "delete",
            "lost",
            "[2]",
            &json(2, "b", 20),
            &dash(),
            &json(2, "B", 20),
        ],
        [
            "insert",
            "lost",
            "[4]",
            &dash(),
            &json(4, "new", 40),
            &json(4, "they", 41),
        ],
        [
            "update",
            "lost",
            "[3]",
            &json(3, "c", 30),
            &json(3, "c", 31),
            &dash(),
        ],
    ];
    assert_eq!(listed(&remote), expected.map(|it| it.map(str::to_owned)));
    assert_eq!(remote.database().status().unwrap().conflicts, 4);
    // It is the application's to say that it has seen them.
    remote.run("DELETE FROM tidewater_conflicts WHERE id = 2");
    assert_eq!(remote.database().status().unwrap().conflicts, 3);
    let dismissed = remote
        .database_mut()
        .dismiss_conflicts(RowSelection::Ids(&[1, 2]));
    assert_eq!(dismissed.unwrap(), 1);
    assert_eq!(
        remote
            .database_mut()
            .dismiss_conflicts(RowSelection::All)
            .unwrap(),
        2
    );
    assert_eq!(remote.query(ROWS), ["1:theirs:10", "2:B:20", "4:they:41"]);
    assert_eq!(remote.upload(), []);
}

#[test]
fn what_lost_is_listed_as_it_was_taken_and_not_as_it_was_changed_since() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'taken'; DELETE FROM item WHERE id = 3");
    remote.begin();
    remote.run(
        "UPDATE item SET name = 'later' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         INSERT INTO item VALUES (3, 'again', 33)",
    );
    let theirs = [
        item(1, "theirs", 10),
        item(2, "theirs", 20),
        item(3, "theirs", 30),
    ];
    remote.acknowledge(lost(&theirs, &[]));
    let mine: Vec<[String; 2]> = listed(&remote)
        .into_iter()
        .map(|[_, _, _, before, mine, _]| [before, mine])
        .collect();
    assert_eq!(
        mine,
        [
            [json(1, "a", 10), json(1, "taken", 10)],
            [json(2, "b", 20), json(2, "taken", 20)],
            [json(3, "c", 30), "-".to_owned()],
        ]
    );
}

#[test]
fn a_row_that_got_another_key_and_lost_is_listed_under_the_old_one() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 5, name = 'A' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'AA' WHERE id = 5");
    remote.acknowledge(lost(&[item(1, "theirs", 10)], &[]));
    let expected = [
        "update",
        "lost",
        "[1]",
        &json(1, "a", 10),
        &json(5, "A", 10),
        &json(1, "theirs", 10),
    ];
    assert_eq!(listed(&remote), [expected.map(str::to_owned)]);
    remote.run("DELETE FROM item WHERE id = 5");
    remote.acknowledge(|_| {});
    assert_eq!(
        remote
            .database_mut()
            .apply_conflicts(RowSelection::All)
            .unwrap(),
        1
    );
    assert_eq!(remote.query(ROWS), ["2:b:20", "3:c:30", "5:A:10"]);
    assert_eq!(
        remote.upload(),
        [update(&item(1, "theirs", 10), &item(5, "A", 10))]
    );
}

#[test]
fn what_was_merged_is_listed_with_what_has_come_of_it() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 8 WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'later' WHERE id = 1");
    let summary = remote.acknowledge(|server| {
        server.table("item", |rows| rows.row(Op::Merged, &item(1, "a", 5)));
    });
    assert_eq!(summary.conflicts, 1);
    let expected = [
        "update",
        "merged",
        "[1]",
        &json(1, "a", 10),
        &json(1, "a", 8),
        &json(1, "a", 5),
    ];
    assert_eq!(listed(&remote), [expected.map(str::to_owned)]);
    assert_eq!(remote.query(ROWS)[0], "1:later:5");
    // Mine is written whole.
    assert_eq!(
        remote
            .database_mut()
            .apply_conflicts(RowSelection::Ids(&[1]))
            .unwrap(),
        1
    );
    assert_eq!(remote.query(ROWS)[0], "1:a:8");
    assert_eq!(listed(&remote).len(), 0);
}

/// The result of an upload has the columns that the centre had then.
#[test]
fn a_row_of_another_layout_is_listed_with_its_own_columns() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    remote.acknowledge(|server| {
        let mut narrow = items().tables.remove(0);
        narrow.columns.truncate(2);
        narrow.partition.clear();
        let begin = TableBegin::for_table(&narrow);
        server.applier.table_begin(&begin).unwrap();
        let shape = narrow.shape();
        let mut rows = RowsWriter::new(&shape);
        rows.row(Op::ConflictRow, &item(1, "theirs", 10)[..2]);
        server.applier.rows(&rows.take()).unwrap();
    });
    let [_, _, _, before, mine, theirs] = listed(&remote).remove(0);
    assert_eq!(before, json(1, "a", 10));
    assert_eq!(mine, json(1, "mine", 10));
    assert_eq!(theirs, r#"{"id":1,"name":"theirs"}"#);
}

#[test]
fn what_is_applied_again_is_an_ordinary_change() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         UPDATE item SET amount = 31 WHERE id = 3",
    );
    let theirs = [item(1, "theirs", 11), item(2, "B", 20)];
    remote.acknowledge(lost(&theirs, &[3]));
    assert_eq!(remote.query(ROWS), ["1:theirs:11", "2:B:20"]);
    remote.run(
        "CREATE TABLE seen (what); CREATE TRIGGER own AFTER DELETE ON item \
                BEGIN INSERT INTO seen VALUES (OLD.name); END",
    );
    assert_eq!(
        remote
            .database_mut()
            .apply_conflicts(RowSelection::All)
            .unwrap(),
        3
    );
    assert_eq!(remote.query(ROWS), ["1:mine:10", "3:c:31"]);
    assert_eq!(remote.query("SELECT what FROM seen"), ["B"]);
    assert_eq!(listed(&remote).len(), 0);
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "theirs", 11), &item(1, "mine", 10)),
            delete(&item(2, "B", 20)),
            insert(&item(3, "c", 31)),
        ]
    );
}

#[test]
fn what_cannot_be_applied_again_says_why_and_changes_nothing() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id < 3");
    remote.acknowledge(lost(&[item(1, "theirs", 10), item(2, "b", 20)], &[]));
    for (obstacle, told) in [
        (
            "CREATE TRIGGER no BEFORE UPDATE ON item WHEN NEW.id = 2 \
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
            "not this one",
        ),
        (
            "CREATE TRIGGER no BEFORE UPDATE ON item WHEN NEW.id = 2 \
             BEGIN SELECT RAISE(IGNORE); END",
            "a trigger of the application keeps it out",
        ),
        (
            "CREATE UNIQUE INDEX no ON item (name)",
            "UNIQUE constraint failed",
        ),
    ] {
        remote.run(obstacle);
        let error = remote
            .database_mut()
            .apply_conflicts(RowSelection::All)
            .unwrap_err();
        let error = error.to_string();
        assert!(error.contains("conflict 2 (update item [2])"), "{error}");
        assert!(error.contains(told), "{error}");
        assert_eq!(listed(&remote).len(), 2);
        assert_eq!(remote.query(ROWS)[0], "1:theirs:10");
        remote.run("DROP TRIGGER IF EXISTS no; DROP INDEX IF EXISTS no");
    }
    remote.database_mut().unsubscribe("sales", true).unwrap();
    // What is listed stays, to be read.
    let error = remote
        .database_mut()
        .apply_conflicts(RowSelection::Ids(&[1]));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("its table is not in the file any more"),
        "{error}"
    );
    assert_eq!(listed(&remote).len(), 2);
}

#[test]
fn a_delete_that_is_applied_again_takes_children_along() {
    let mut schema = items();
    let mut line = table(
        "line",
        vec![
            column("id", ColumnType::Integer, false),
            column("item", ColumnType::Integer, false),
        ],
        vec![0],
    );
    line.foreign_keys.push(ForeignKey {
        columns: vec![1],
        parent: "item".into(),
        parent_columns: vec!["id".into()],
        on_delete: ForeignKeyAction::Cascade,
        on_update: ForeignKeyAction::NoAction,
    });
    schema.tables.push(line);
    let mut remote = Remote::new(schema);
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "a", 10)));
    });
    remote.run("DELETE FROM item WHERE id = 1");
    remote.acknowledge(lost(&[item(1, "a", 11)], &[]));
    remote.download(|server| {
        server.table("line", |rows| {
            rows.row(Op::Upsert, &[Datum::Integer(7), Datum::Integer(1)]);
        });
    });
    assert_eq!(
        remote
            .database_mut()
            .apply_conflicts(RowSelection::All)
            .unwrap(),
        1
    );
    let deleted: Vec<String> = remote.upload().into_iter().map(|it| it.table).collect();
    assert_eq!(deleted, ["item", "line"]);
}

#[test]
fn what_lost_when_it_was_given_back_is_listed_out_of_the_kept_upload() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'one' WHERE id = 1; DELETE FROM item WHERE id = 2");
    remote.acknowledge(|_| {});
    kept::restored(&mut remote);
    remote.acknowledge(lost(&[item(1, "theirs", 9)], &[2]));
    let dash = "-".to_owned();
    let expected = [
        [
            "update",
            "lost",
            "[1]",
            &json(1, "a", 10),
            &json(1, "one", 10),
            &json(1, "theirs", 9),
        ],
        ["delete", "lost", "[2]", &json(2, "b", 20), &dash, &dash],
    ];
    assert_eq!(listed(&remote), expected.map(|it| it.map(str::to_owned)));
}

#[test]
fn the_oldest_conflicts_give_way_to_new_ones() {
    let mut remote = with_items();
    remote.run(&format!(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {MOST_KEPT}) \
         INSERT INTO tidewater_conflicts (publication, table_name, key, key_packed, operation, \
         outcome, at) SELECT 'sales', 'item', '[0]', x'00', 'delete', 'lost', 1000 FROM n; \
         UPDATE item SET name = 'mine'"
    ));
    remote.acknowledge(lost(&[item(1, "theirs", 10)], &[2, 3]));
    let kept = remote.database().conflicts().unwrap();
    assert_eq!(kept.len() as u64, MOST_KEPT);
    assert_eq!((kept[0].id, &*kept.last().unwrap().key), (4, "[3]"));
}
