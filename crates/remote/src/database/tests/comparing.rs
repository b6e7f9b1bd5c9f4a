//! Facts about comparing: what is compared, what a differing interval changes, what becomes
//! of tables that were not tracked.

use super::*;
use tidewater_protocol::Code;
use tidewater_protocol::compare::{Intervals, Ranges};

use crate::database::{CompareDue, RowSelection};

pub(super) type ItemRow = (i64, &'static str, i64);

const ROWS: &str = "SELECT id || name || amount FROM item ORDER BY id";

/// What [`with_items`] has downloaded.
pub(super) const CENTRE: [ItemRow; 3] = [(1, "a", 10), (2, "b", 20), (3, "c", 30)];

impl Remote {
    /// What the centre has otherwise than this remote believes.
    fn differing(&self, centre: &[ItemRow]) -> Vec<tidewater_protocol::message::KeyInterval> {
        let table = &self.schema.tables[0];
        let theirs = self.database().agreed_ranges(table, 1 << 20).unwrap();
        let shape = table.shape();
        let mut own = Ranges::like(&shape, &theirs).unwrap();
        for &(id, name, amount) in centre {
            own.add(&[Datum::Integer(id)], &item(id, name, amount));
        }
        own.differing(&theirs)
    }

    /// A sync that compares: changes since the checkpoint, then what differs.
    fn compare(
        &mut self,
        centre: &[ItemRow],
        changes: impl FnOnce(&mut RowsWriter<'_>),
    ) -> ApplySummary {
        self.compare_saying(true, centre, changes)
    }

    /// The same; the server says whether it knows the changes since the checkpoint.
    pub(super) fn compare_saying(
        &mut self,
        follows_changes: bool,
        centre: &[ItemRow],
        changes: impl FnOnce(&mut RowsWriter<'_>),
    ) -> ApplySummary {
        let state = self.begin();
        self.compare_from(state, follows_changes, centre, changes)
    }

    /// The same, of a sync that has begun.
    fn compare_from(
        &mut self,
        mut state: SubscriptionState,
        follows_changes: bool,
        centre: &[ItemRow],
        changes: impl FnOnce(&mut RowsWriter<'_>),
    ) -> ApplySummary {
        state.compares = true;
        let intervals = self.differing(centre);
        let shape = self.schema.tables[0].shape();
        self.download_into(&state, None, |server| {
            server.table("item", changes);
            if intervals.is_empty() {
                return;
            }
            let begin = TableBegin {
                replace: true,
                ranges: intervals.clone(),
                follows_changes,
                ..TableBegin::for_table(&items().tables[0])
            };
            server.applier.table_begin(&begin).unwrap();
            let within = Intervals::new(&shape, &intervals).unwrap();
            let mut rows = RowsWriter::new(&shape);
            for &(id, name, amount) in centre {
                if within.contains(&[Datum::Integer(id)]) {
                    rows.row(Op::Upsert, &item(id, name, amount));
                }
            }
            for piece in rows.take().chunks(7) {
                server.applier.rows(piece).unwrap();
            }
        })
    }
}

#[test]
fn only_what_differs_is_written_and_removed() {
    let mut remote = with_items();
    let mut centre: Vec<ItemRow> = vec![(1, "a", 10), (2, "b", 20), (3, "c", 30)];
    assert_eq!(remote.differing(&centre), []);
    centre[1].1 = "B";
    centre.remove(2);
    centre.push((4, "d", 40));
    remote.run(
        "CREATE TABLE written (id);
         CREATE TRIGGER of_the_user AFTER UPDATE ON item BEGIN \
           INSERT INTO written VALUES (NEW.id); END",
    );
    let summary = remote.compare(&centre, |_| {});
    assert_eq!(
        (summary.upserts, summary.removals, summary.stale),
        (2, 1, 0)
    );
    assert_eq!(remote.query(ROWS), ["1a10", "2B20", "4d40"]);
    assert_eq!(remote.query("SELECT id FROM written"), ["2"]);
    assert_eq!(remote.differing(&centre), []);
    assert_eq!(remote.upload(), []);
}

#[test]
fn a_large_table_is_divided_and_one_range_is_enough() {
    let mut remote = with_items();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
         INSERT INTO item SELECT i, 'x', i FROM n",
    );
    remote.acknowledge(|_| {});
    let mut centre: Vec<ItemRow> = vec![(1, "a", 10), (2, "b", 20), (3, "c", 30)];
    centre.extend((4..=2000).map(|id| (id, "x", id)));
    assert_eq!(remote.differing(&centre), []);
    centre[999].1 = "other";
    let intervals = remote.differing(&centre);
    assert_eq!(intervals.len(), 1);
    assert!(!intervals[0].after.is_empty() && !intervals[0].until.is_empty());
    let summary = remote.compare(&centre, |_| {});
    assert_eq!((summary.upserts, summary.removals), (1, 0));
    assert_eq!(remote.differing(&centre), []);
    // Fewer ranges where there is no room for more.
    let table = &remote.schema.tables[0];
    let few = remote.database().agreed_ranges(table, 100).unwrap();
    let many = remote.database().agreed_ranges(table, 1 << 20).unwrap();
    assert!(few.len() < many.len(), "{} {}", few.len(), many.len());
}

#[test]
fn what_is_pending_or_refused_counts_as_it_was() {
    let mut remote = with_items();
    let centre = CENTRE;
    remote.run("UPDATE item SET name = 'refused' WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.run("UPDATE item SET name = 'taken' WHERE id = 2; INSERT INTO item VALUES (9, 'n', 9)");
    remote.begin();
    remote.run("DELETE FROM item WHERE id = 2; DELETE FROM item WHERE id = 3");
    remote.run("UPDATE item SET name = 'later' WHERE id = 9");
    assert_eq!(remote.differing(&centre), []);
    // Somebody else has changed two of them, and deleted one.
    let centre = [(1, "A", 10), (2, "B", 20)];
    let summary = remote.compare(&centre, |_| {});
    assert_eq!((summary.upserts, summary.removals), (0, 0));
    assert_eq!(remote.query(ROWS), ["1refused10", "9later9"]);
    // The third is the insert that the centre does not have.
    let stale = "SELECT count(*) FROM tidewater_stale";
    assert_eq!(remote.query(stale), ["3"]);
}

#[test]
fn a_row_in_another_spelling_is_written_again() {
    let mut remote = with_items();
    remote.run(
        "DROP TRIGGER tidewater_update_item; \
         UPDATE item SET amount = 30.0 || '' WHERE id = 3",
    );
    remote.begin();
    remote.run("DELETE FROM tidewater_untracked");
    let centre = [(1, "x", 10), (2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |_| {});
    assert_eq!(
        remote.query("SELECT DISTINCT typeof(amount) FROM item"),
        ["integer"]
    );
}

#[test]
fn what_was_changed_without_triggers_becomes_pending() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (4, 'd', 40)");
    remote.acknowledge(|_| {});
    // A tool rebuilds the table, and the application goes on without tracking.
    remote.run(
        "CREATE TABLE other (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER); \
         INSERT INTO other SELECT * FROM item; DROP TABLE item; \
         ALTER TABLE other RENAME TO item; \
         UPDATE item SET name = 'mine' WHERE id = 1; \
         DELETE FROM item WHERE id = 2; \
         INSERT INTO item VALUES (5, 'new', 50)",
    );
    remote.begin();
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    remote.run("UPDATE item SET amount = 31 WHERE id = 3");
    let centre = [(1, "a", 10), (2, "b", 20), (3, "c", 30), (4, "d", 40)];
    let summary = remote.compare(&centre, |_| {});
    assert_eq!(
        (summary.upserts, summary.removals, summary.refused),
        (0, 0, 0)
    );
    assert_eq!(remote.state().compare_due, CompareDue::No);
    assert_eq!(remote.query("SELECT * FROM tidewater_untracked").len(), 0);
    // What was tracked again had been taken by the sync that compared.
    remote.acknowledge(|_| {});
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "mine", 10)),
            delete(&item(2, "b", 20)),
            insert(&item(5, "new", 50)),
        ]
    );
}

/// What was written between the moment in which tracking was found to be off and the compare was
/// made from what nobody recorded: it would lose against a row that nobody else has changed.
#[test]
fn what_is_changed_before_an_untracked_table_is_compared_is_made_from_the_centres_row() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE other (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER); \
         INSERT INTO other SELECT * FROM item; DROP TABLE item; \
         ALTER TABLE other RENAME TO item; \
         UPDATE item SET name = 'mine' WHERE id = 1; \
         DELETE FROM item WHERE id = 2; \
         UPDATE item SET name = 'mine' WHERE id = 3; \
         INSERT INTO item VALUES (4, 'new', 40), (5, 'new', 50)",
    );
    // This sync gets no further.
    remote.begin();
    remote.run(
        "UPDATE item SET amount = 11 WHERE id = 1; \
         INSERT INTO item VALUES (2, 'again', 20); \
         UPDATE item SET amount = 31 WHERE id = 3; \
         UPDATE item SET amount = 41 WHERE id = 4; \
         DELETE FROM item WHERE id = 5",
    );
    let waiting = remote.begin_in(SyncDirection::Both);
    assert_eq!(waiting.taken, None, "it waits for the compare");
    let centre = [(1, "a", 10), (2, "b", 20), (3, "theirs", 30)];
    let summary = remote.compare_from(waiting, true, &centre, |rows| {
        rows.row(Op::Upsert, &item(3, "theirs", 30));
    });
    assert!(summary.tracks_again);
    assert_eq!((summary.upserts, summary.refused), (0, 0));
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "mine", 11)),
            update(&item(2, "b", 20), &item(2, "again", 20)),
            // Somebody else has changed it as well: a conflict, and told as one.
            update(&item(3, "mine", 30), &item(3, "mine", 31)),
            insert(&item(4, "new", 41)),
        ]
    );
}

/// Seed 21238: of what became of a row one trigger was missing and the next was there. A refused
/// change that was to be tried again let both go up before the compare.
#[test]
fn a_refused_change_that_is_tried_again_waits_for_the_compare_of_an_untracked_table() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'refused' WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.run(
        "UPDATE tidewater_refused SET again = 1; \
         DROP TRIGGER tidewater_update_item; \
         UPDATE item SET name = 'mine' WHERE id = 2; \
         DELETE FROM item WHERE id = 2",
    );
    let waiting = remote.begin_in(SyncDirection::Both);
    assert_eq!(waiting.taken, None, "it waits for the compare");
    let summary = remote.compare_from(waiting, true, &CENTRE, |_| {});
    assert!(summary.tracks_again);
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "refused", 10)),
            delete(&item(2, "b", 20)),
        ]
    );
}

/// Seed 85483: the change was refused because its row was out of scope, and in the same download
/// the row left by one rule and came by another.
#[test]
fn a_refused_change_of_an_untracked_row_that_leaves_and_comes_back_is_no_delete() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'refused' WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.run("DROP TRIGGER tidewater_update_item");
    let centre = [(1, "a", 40), (2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |rows| rows.key(Op::Remove, &[Datum::Integer(1)]));
    assert_eq!(remote.query(ROWS), ["1a40", "2b20", "3c30"]);
    assert_eq!(
        remote.kept_values(),
        [r#"{"amount":10,"id":1,"name":"refused"}"#]
    );
    assert_eq!(remote.upload(), []);
}

/// The crowd of seed 50: a refused change of a key left with its old key, and the row under the new
/// one, which was here when the compare began, became an insert without a row.
#[test]
fn a_refused_change_of_a_key_that_leaves_an_untracked_table_is_no_insert() {
    let mut remote = with_items();
    remote.run("UPDATE item SET id = 7, name = 'refused' WHERE id = 1");
    remote.download(|server| {
        server.table("item", |rows| rows.key(Op::Remove, &[Datum::Integer(1)]));
    });
    remote.acknowledge_refused_item();
    remote.run("DROP TRIGGER tidewater_update_item");
    let centre = [(2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |_| {});
    assert_eq!(remote.query(ROWS), ["2b20", "3c30"]);
    assert_eq!(
        remote.kept_values(),
        [r#"{"amount":10,"id":7,"name":"refused"}"#]
    );
    let pending = "SELECT key_id FROM tidewater_change_item";
    assert_eq!(remote.query(pending), [""; 0]);
}

/// What the centre may have forgotten the server has to hear of, also after the compare.
#[test]
fn after_a_compare_without_history_what_waited_for_it_goes_up_before_another_one() {
    for (follows_changes, due) in [(true, CompareDue::No), (false, CompareDue::Yes)] {
        let mut remote = with_items();
        remote
            .run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1");
        let centre = CENTRE;
        let summary = remote.compare_saying(follows_changes, &centre, |_| {});
        assert!(summary.tracks_again);
        assert_eq!(remote.state().compare_due, due);
        assert!(
            !remote
                .compare_saying(follows_changes, &centre, |_| {})
                .tracks_again
        );
        assert_eq!(remote.state().compare_due, CompareDue::No);
    }
}

/// Seed 4314: a download alone compares while an upload is on its way, and learns that it is in the
/// centre. Its rows counted as pending, so that the compare said nothing of them.
#[test]
fn what_is_acknowledged_while_tables_are_compared_is_compared_again() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (4, 'd', 40)");
    let mut state = remote.begin();
    remote
        .database
        .as_mut()
        .unwrap()
        .make_compare_due()
        .unwrap();
    state.compares = true;
    let mut applier = remote.applier_of(&state, None);
    applier.result_begin(0).unwrap();
    applier.result_end().unwrap();
    applier.download_begin(0, false).unwrap();
    applier.download_end(b"checkpoint").unwrap();
    remote.commit(applier);
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    // The row's partition is not the user's any more.
    remote.compare(&[(1, "a", 10), (2, "b", 20), (3, "c", 30)], |_| {});
    assert_eq!(remote.query(ROWS), ["1a10", "2b20", "3c30"]);
    assert_eq!(remote.state().compare_due, CompareDue::No);
}

/// Nobody knows yet which rows of such a table are merely older.
#[test]
fn a_row_of_an_untracked_table_stays_in_the_way_of_the_centres() {
    let mut remote = with_items();
    remote.run("CREATE UNIQUE INDEX of_the_user ON item (name)");
    let mut centre = vec![(1, "a", 10), (2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |_| {});
    remote.run("DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (5, 'new', 50)");
    centre.push((6, "new", 60));
    remote.compare(&centre, |rows| rows.row(Op::Upsert, &item(6, "new", 60)));
    assert_eq!(remote.query(ROWS), ["1a10", "2b20", "3c30", "5new50"]);
    assert_eq!(remote.upload(), [insert(&item(5, "new", 50))]);
    assert_eq!(remote.requested(), 1);
}

#[test]
fn what_was_written_untracked_over_a_change_that_loses_is_kept() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'sent' WHERE id = 1; DELETE FROM item WHERE id = 2");
    remote.begin();
    remote.run(
        "DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1; \
         DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (2, 'again', 21)",
    );
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.row(Op::ConflictRow, &item(1, "winner", 10));
            rows.key(Op::ConflictGone, &[Datum::Integer(2)]);
        });
    });
    assert_eq!(remote.query(ROWS), ["1winner10", "3c30"]);
    assert_eq!(
        remote.kept_values(),
        [
            r#"{"id":1,"name":"mine"}"#,
            r#"{"amount":21,"id":2,"name":"again"}"#
        ]
    );
}

#[test]
fn what_was_changed_untracked_in_a_row_that_had_to_stay_is_kept() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 2");
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(2, "centre", 20)));
    });
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET name = 'b' WHERE id = 2");
    remote.acknowledge(|_| {});
    assert_eq!(remote.requested(), 1);
    remote.run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 2");
    let centre = [(1, "a", 10), (2, "centre", 20), (3, "c", 30)];
    remote.compare(&centre, |_| {});
    assert_eq!(remote.query(ROWS), ["1a10", "2centre20", "3c30"]);
    assert_eq!(remote.kept_values(), [r#"{"id":2,"name":"mine"}"#]);
}

/// Better that it meets the centre's rows as a conflict than that it stays on the device.
#[test]
fn a_sync_that_only_uploads_does_not_wait_for_a_compare() {
    let mut remote = with_items();
    remote.run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET amount = 11 WHERE id = 1");
    assert_eq!(remote.begin_in(SyncDirection::Both).taken, None);
    assert_ne!(remote.begin_in(SyncDirection::UploadOnly).taken, None);
}

/// A trigger that goes with its table when that is renamed tracks nothing of the one that takes
/// the name.
#[test]
fn a_table_that_a_tool_made_beside_the_old_one_is_compared() {
    let mut remote = with_items();
    remote.run(
        "ALTER TABLE item RENAME TO backup;
         CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT, amount INTEGER) \
         WITHOUT ROWID;
         INSERT INTO item SELECT * FROM backup;
         UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2;
         INSERT INTO item VALUES (4, 'new', 40)",
    );
    remote.compare(&CENTRE, |_| {});
    let expected = [
        update(&item(1, "a", 10), &item(1, "mine", 10)),
        delete(&item(2, "b", 20)),
        insert(&item(4, "new", 40)),
    ];
    assert_eq!(remote.upload(), expected);
    remote.acknowledge(|_| {});
    remote.run("DELETE FROM backup; INSERT INTO backup VALUES (9, 'x', 90)");
    assert_eq!(remote.upload(), []);
}

/// What is not in it is nobody's delete, also if it was noted as untracked before it went.
#[test]
fn a_table_that_was_untracked_and_is_made_again_deletes_nothing() {
    let mut remote = with_items();
    remote.run("DROP TRIGGER tidewater_update_item");
    remote.begin();
    remote.run("DROP TABLE item");
    let rebuilt = remote.database_mut().rebuild_broken_tables(5).unwrap();
    assert_eq!(rebuilt, ["item"]);
    remote.compare(&CENTRE, |_| {});
    assert_eq!(remote.query(ROWS), ["1a10", "2b20", "3c30"]);
    assert_eq!(remote.upload(), []);
}

/// The result of an upload has the columns that the centre had then.
#[test]
fn an_untracked_row_that_lost_against_one_of_another_layout_waits_for_it() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'sent' WHERE id = 1; DROP TRIGGER tidewater_update_item");
    remote.begin();
    remote.acknowledge(|server| {
        let mut narrow = items().tables.remove(0);
        narrow.columns.truncate(2);
        narrow.partition.clear();
        let begin = TableBegin::for_table(&narrow);
        server.applier.table_begin(&begin).unwrap();
        let shape = narrow.shape();
        let mut rows = RowsWriter::new(&shape);
        rows.row(Op::ConflictRow, &item(1, "winner", 10)[..2]);
        server.applier.rows(&rows.take()).unwrap();
    });
    assert_eq!(remote.query(ROWS), ["1sent10", "2b20", "3c30"]);
    assert_eq!(remote.requested(), 1);
    let centre = [(1, "winner", 10), (2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |rows| rows.row(Op::Upsert, &item(1, "winner", 10)));
    assert_eq!(remote.query(ROWS), ["1winner10", "2b20", "3c30"]);
    assert_eq!(remote.kept_values(), [r#"{"id":1,"name":"sent"}"#]);
}

/// What is kept of it stays among the refused rows as long as the user wants.
#[test]
fn a_row_that_gave_way_once_can_be_deleted_untracked_later() {
    let mut remote = with_items();
    remote.run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1");
    let centre = [(1, "centre", 10), (2, "b", 20), (3, "c", 30)];
    remote.compare(&centre, |rows| rows.row(Op::Upsert, &item(1, "centre", 10)));
    assert_eq!(remote.kept_values(), [r#"{"id":1,"name":"mine"}"#]);
    remote.run("DROP TRIGGER tidewater_delete_item; DELETE FROM item WHERE id = 1");
    remote.compare(&centre, |_| {});
    assert_eq!(remote.upload(), [delete(&item(1, "centre", 10))]);
}

/// Where the trigger for inserts is gone, that for updates takes for the centre's what is not.
#[test]
fn what_was_recorded_while_a_trigger_was_gone_is_made_from_the_centres_row() {
    let mut remote = with_items();
    remote.run(
        "DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (4, 'new', 40);
         UPDATE item SET name = 'newer' WHERE id = 4; UPDATE item SET name = 'mine' WHERE id = 1",
    );
    let state = remote.begin_in(SyncDirection::Both);
    assert_eq!(state.taken, None);
    remote.compare_from(state, true, &CENTRE, |_| {});
    let expected = [
        update(&item(1, "a", 10), &item(1, "mine", 10)),
        insert(&item(4, "newer", 40)),
    ];
    assert_eq!(remote.upload(), expected);
}

/// A statement without effect writes down what the user had made of the row before.
#[test]
fn what_was_changed_untracked_is_not_lost_under_a_change_of_nothing() {
    for follows_changes in [true, false] {
        let mut remote = with_items();
        remote.run(
            "DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (4, 'new', 40);
             DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1;
             UPDATE item SET name = 'yours' WHERE id = 2",
        );
        remote.begin();
        remote.run("UPDATE item SET name = name; INSERT OR IGNORE INTO item VALUES (2, 'x', 0)");
        let state = remote.begin_in(SyncDirection::Both);
        assert_eq!(state.taken, None);
        let centre = [(1, "centre", 10), (2, "b", 20), (3, "c", 30)];
        remote.compare_from(state, follows_changes, &centre, |rows| {
            rows.row(Op::Upsert, &item(1, "centre", 10));
        });
        let of_1 = r#"{"id":1,"name":"mine"}"#;
        let (kept, pending): (Vec<&str>, _) = match follows_changes {
            true => {
                let of_2 = update(&item(2, "b", 20), &item(2, "yours", 20));
                (vec![of_1], vec![of_2, insert(&item(4, "new", 40))])
            }
            false => {
                let (of_2, of_4) = (
                    r#"{"id":2,"name":"yours"}"#,
                    r#"{"amount":40,"id":4,"name":"new"}"#,
                );
                (vec![of_1, of_2, of_4], vec![])
            }
        };
        assert_eq!(remote.kept_values(), kept);
        assert_eq!(remote.upload(), pending);
    }
}

/// Nobody knows what the user has changed in it.
#[test]
fn the_rows_of_an_untracked_table_that_leaves_or_loses_a_column_are_kept_beside_it() {
    let other = || {
        table(
            "other",
            vec![column("id", ColumnType::Integer, false)],
            vec![0],
        )
    };
    let rekeyed = || {
        let mut rekeyed = items().tables.remove(0);
        rekeyed.key = vec![0, 2];
        rekeyed
    };
    let narrow = || {
        let mut narrow = items().tables.remove(0);
        narrow.columns.remove(1);
        narrow.partition.clear();
        narrow
    };
    let directed = |direction| Table {
        direction,
        ..items().tables.remove(0)
    };
    let closed = || directed(Direction::Download);
    let hidden = || directed(Direction::Upload);
    for changed in [other(), rekeyed(), narrow(), closed(), hidden()] {
        let mut remote = with_items();
        remote.run(
            "DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (4, 'new', 40);
             DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1",
        );
        remote.begin();
        remote.run("UPDATE item SET amount = 41 WHERE id = 4");
        remote.download_schema(Some(publication(vec![changed])), |_| {});
        let kept = remote.query("SELECT id || name || amount FROM item_unsynced_1");
        assert_eq!(kept, ["1mine10", "2b20", "3c30", "4new41"]);
        let refused = remote.database().refused().unwrap();
        let told = refused
            .iter()
            .filter(|it| it.reason.contains("item_unsynced_1"));
        assert_eq!(told.count(), 1);
        remote
            .database_mut()
            .discard_refused(RowSelection::All)
            .unwrap();
        assert_eq!(remote.database().refused().unwrap(), []);
    }
}

/// A child must not go up before the parent that nobody has recorded.
#[test]
fn changes_of_other_tables_wait_for_what_an_untracked_one_has() {
    let mut schema = items();
    let child = table(
        "child",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    );
    schema.tables.push(child);
    let mut remote = Remote::new(schema);
    remote.download(|_| {});
    remote.run(
        "DROP TRIGGER tidewater_insert_item; INSERT INTO item VALUES (4, 'new', 40);
         INSERT INTO child VALUES (1)",
    );
    let state = remote.begin_in(SyncDirection::Both);
    assert_eq!(state.taken, None);
    remote.compare_from(state, true, &[], |_| {});
    let of_child = Change {
        table: "child".into(),
        ..insert(&[Datum::Integer(1)])
    };
    let expected = [insert(&item(4, "new", 40)), of_child];
    assert_eq!(remote.upload(), expected);
}

/// A column that was made again holds nobody's values, but for what is written into it since.
#[test]
fn an_untracked_table_whose_column_is_made_again_keeps_what_the_user_wrote() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE other (id INTEGER NOT NULL PRIMARY KEY, amount INTEGER);
         INSERT INTO other SELECT id, amount FROM item;
         DROP TABLE item; ALTER TABLE other RENAME TO item;
         INSERT INTO item VALUES (4, 40); UPDATE item SET amount = 31 WHERE id = 3",
    );
    let rebuilt = remote.database_mut().rebuild_broken_tables(5).unwrap();
    assert_eq!(rebuilt, ["item"]);
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 2; UPDATE item SET amount = 11 WHERE id = 1;
         UPDATE item SET name = 'new' WHERE id = 4",
    );
    let state = remote.begin_in(SyncDirection::Both);
    remote.compare_from(state, true, &CENTRE, |_| {});
    assert_eq!(remote.query(ROWS), ["1a11", "2mine20", "3c31", "4new40"]);
    let expected = [
        update(&item(1, "a", 10), &item(1, "a", 11)),
        update(&item(2, "b", 20), &item(2, "mine", 20)),
        update(&item(3, "c", 30), &item(3, "c", 31)),
        insert(&item(4, "new", 40)),
    ];
    assert_eq!(remote.upload(), expected);
}

/// What the centre changed while nobody knows since when would go up as the user's changes: the
/// rows that others added as deletes. Whether somebody knows, only the server can say: here the
/// checkpoint is good, but the table was truncated.
#[test]
fn without_triggers_and_history_nothing_of_the_centre_is_taken_back() {
    let mut remote = with_items();
    remote.run(
        "DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1; \
         INSERT INTO item VALUES (5, 'new', 50); \
         DELETE FROM tidewater_change_item",
    );
    remote.begin();
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    let centre = [(1, "centre", 10), (3, "c", 30), (4, "others", 40)];
    let summary = remote.compare_saying(false, &centre, |_| {});
    assert_eq!(summary.refused, 3);
    assert_eq!(remote.query(ROWS), ["1centre10", "3c30", "4others40"]);
    let refused = remote.database().refused().unwrap();
    let values: Vec<_> = refused.iter().map(|it| it.values.as_deref()).collect();
    assert_eq!(
        values,
        [
            Some(r#"{"id":1,"name":"mine"}"#),
            Some(r#"{"amount":20,"id":2,"name":"b"}"#),
            Some(r#"{"amount":50,"id":5,"name":"new"}"#),
        ]
    );
    assert_eq!(remote.upload(), []);
}

#[test]
fn without_triggers_the_centres_change_wins_and_the_users_values_stay() {
    let mut remote = with_items();
    remote.run(
        "DROP TRIGGER tidewater_update_item; DROP TRIGGER tidewater_delete_item; \
         UPDATE item SET name = 'mine' WHERE id < 3",
    );
    remote.begin();
    // The first was changed in the centre too, the second went there.
    let centre = [(1, "centre", 10), (3, "c", 30)];
    let summary = remote.compare(&centre, |rows| {
        rows.row(Op::Upsert, &item(1, "centre", 10));
        rows.key(Op::Remove, &[Datum::Integer(2)]);
    });
    assert_eq!(summary.refused, 2);
    assert_eq!(remote.query(ROWS), ["1centre10", "3c30"]);
    let refused = remote.database().refused().unwrap();
    let told: Vec<_> = refused
        .iter()
        .map(|it| (it.key.as_str(), it.code.as_str(), it.values.as_deref()))
        .collect();
    let code = Code::RowUntracked.name();
    assert_eq!(
        told,
        [
            ("[1]", code, Some(r#"{"id":1,"name":"mine"}"#)),
            ("[2]", code, Some(r#"{"amount":20,"id":2,"name":"mine"}"#)),
        ]
    );
    assert_eq!(remote.upload(), []);
}

#[test]
fn triggers_that_vanish_during_a_sync_let_nothing_be_overwritten() {
    let mut remote = with_items();
    let state = remote.begin();
    remote.run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'mine' WHERE id = 1");
    let database = remote.database.take().unwrap();
    let refused = database.begin_apply(&[state], &[None]).unwrap_err();
    remote.database = Some(refused.database);
    assert_eq!(refused.error.code(), Code::SyncInProgress);
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    let centre = CENTRE;
    remote.compare(&centre, |_| {});
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "mine", 10))]
    );
}

#[test]
fn what_replace_pushed_out_through_a_new_unique_index_comes_back() {
    let mut remote = with_items();
    remote.run(
        "CREATE UNIQUE INDEX of_the_user ON item (name); \
         REPLACE INTO item VALUES (9, 'a', 90)",
    );
    remote.begin();
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    assert_eq!(remote.upload(), [insert(&item(9, "a", 90))]);
    remote.acknowledge(|_| {});
    // Meanwhile somebody has changed a row: nobody here has, so nothing is refused.
    let centre = [(1, "a", 10), (2, "B", 20), (3, "c", 30), (9, "a", 90)];
    let summary = remote.compare(&centre, |rows| rows.row(Op::Upsert, &item(2, "B", 20)));
    assert_eq!(summary.refused, 0);
    assert_eq!(remote.state().compare_due, CompareDue::No);
    // The two cannot both be here, and none is taken for a delete.
    assert_eq!(remote.requested(), 1);
    assert_eq!(remote.upload(), []);
    remote.run("DROP INDEX of_the_user");
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "a", 10));
            rows.row(Op::Upsert, &item(9, "a", 90));
        });
    });
    assert_eq!(remote.query(ROWS), ["1a10", "2B20", "3c30", "9a90"]);
    assert_eq!(remote.requested(), 0);
}

#[test]
fn only_a_unique_index_that_is_new_makes_a_compare_due() {
    let mut remote = with_items();
    for (ddl, due) in [
        ("CREATE UNIQUE INDEX one ON item (name)", CompareDue::Yes),
        ("CREATE UNIQUE INDEX two ON item (amount)", CompareDue::Yes),
        ("DROP INDEX one", CompareDue::No),
        ("CREATE INDEX three ON item (name)", CompareDue::No),
    ] {
        remote.run(ddl);
        remote.begin();
        assert_eq!(remote.state().compare_due, due, "{ddl}");
        let centre = CENTRE;
        remote.compare(&centre, |_| {});
    }
}
