//! Facts about what the centre made of an uploaded row.

use super::*;

const NAMES: &str = "SELECT id || ':' || name || ':' || amount FROM item ORDER BY id";

fn made(rows: &[[Datum<'static>; 3]]) -> impl FnOnce(&mut Sender<'_>) {
    move |server| {
        server.table("item", |writer| {
            for row in rows {
                writer.row(Op::Made, row);
            }
        });
    }
}

#[test]
fn what_the_centre_made_of_a_row_becomes_the_row() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; INSERT INTO item VALUES (9, 'new', 0); \
         UPDATE item SET id = 6 WHERE id = 3",
    );
    let summary = remote.acknowledge(made(&[
        item(1, "mine", 11),
        item(6, "c", 31),
        item(9, "NEW", 90),
    ]));
    assert_eq!(
        (summary.conflicts, summary.refused, summary.stale),
        (0, 0, 0)
    );
    assert_eq!(
        remote.query(NAMES),
        ["1:mine:11", "2:b:20", "6:c:31", "9:NEW:90"]
    );
    assert_eq!(remote.upload(), []);
}

/// Interleaving 29.
#[test]
fn what_the_centre_made_of_a_row_is_what_a_newer_edit_was_made_from() {
    for (since, expected, rows) in [
        (
            "UPDATE item SET name = 'v2' WHERE id = 1",
            vec![update(&item(1, "v1", 11), &item(1, "v2", 11))],
            vec!["1:v2:11"],
        ),
        (
            "UPDATE item SET amount = 12 WHERE id = 1",
            vec![update(&item(1, "v1", 11), &item(1, "v1", 12))],
            vec!["1:v1:12"],
        ),
        (
            "UPDATE item SET id = 7, name = 'v2' WHERE id = 1",
            vec![update(&item(1, "v1", 11), &item(7, "v2", 11))],
            vec!["7:v2:11"],
        ),
        (
            "DELETE FROM item WHERE id = 1",
            vec![delete(&item(1, "v1", 11))],
            vec![],
        ),
        (
            "UPDATE item SET name = name WHERE id = 1",
            vec![],
            vec!["1:v1:11"],
        ),
    ] {
        let mut remote = with_items();
        remote.run("DELETE FROM item WHERE id > 1");
        remote.acknowledge(|_| {});
        remote.run("UPDATE item SET name = 'v1' WHERE id = 1");
        remote.begin();
        remote.run(since);
        let summary = remote.acknowledge(made(&[item(1, "v1", 11)]));
        assert_eq!((summary.conflicts, summary.stale), (0, 0));
        assert_eq!(remote.query(NAMES), rows, "{since}");
        assert_eq!(remote.upload(), expected, "{since}");
    }
}

#[test]
fn what_the_centre_made_waits_where_the_application_forbids_it() {
    let mut remote = with_items();
    remote
        .run("CREATE UNIQUE INDEX own ON item (amount); UPDATE item SET name = 'v1' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'v2' WHERE id IN (1, 2)");
    let summary = remote.acknowledge(made(&[item(1, "v1", 20)]));
    assert_eq!(summary.stale, 1);
    assert_eq!(remote.query(NAMES), ["1:v2:10", "2:v2:20", "3:c:30"]);
}

#[test]
fn a_newer_edit_is_not_made_from_what_others_have_of_a_merged_row() {
    for (since, expected) in [
        // Both sides are still to be added up: the centre has somebody else's 5 in it.
        (
            "UPDATE item SET amount = amount + 3 WHERE id = 1",
            vec![update(&item(1, "theirs", 11), &item(1, "theirs", 14))],
        ),
        (
            "UPDATE item SET name = 'mine' WHERE id = 1",
            vec![update(&item(1, "a", 16), &item(1, "mine", 16))],
        ),
        (
            "DELETE FROM item WHERE id = 1",
            vec![delete(&item(1, "a", 11))],
        ),
    ] {
        let mut remote = with_items();
        remote.run("DELETE FROM item WHERE id > 1");
        remote.acknowledge(|_| {});
        remote.run("UPDATE item SET amount = amount + 1 WHERE id = 1");
        remote.begin();
        remote.run(since);
        let merged = |server: &mut Sender<'_>| {
            server.table("item", |writer| {
                writer.row(Op::Merged, &item(1, "theirs", 16));
            });
        };
        let summary = remote.acknowledge(merged);
        assert_eq!((summary.conflicts, summary.stale), (1, 0), "{since}");
        assert_eq!(remote.upload(), expected, "{since}");
    }
}
