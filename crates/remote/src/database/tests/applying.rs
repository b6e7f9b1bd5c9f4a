//! Facts about applying downloads.

use super::*;
use tidewater_protocol::{ForeignKey, ForeignKeyAction};

const NAMES: &str = "SELECT id || ':' || name || ':' || amount FROM item ORDER BY id";

#[test]
fn rows_are_written_over_and_removed() {
    let mut remote = with_items();
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "A", 11));
            rows.key(Op::Remove, &[Datum::Integer(2)]);
            rows.key(Op::Remove, &[Datum::Integer(77)]);
            rows.row(Op::Upsert, &item(4, "d", 40));
        });
    });
    assert_eq!(remote.query(NAMES), ["1:A:11", "3:c:30", "4:d:40"]);
    assert_eq!(
        (summary.upserts, summary.removals, summary.stale),
        (2, 1, 0)
    );
    assert_eq!(remote.upload(), [], "nothing of it is a local change");
}

/// Interleaving 7.
#[test]
fn a_row_skipped_because_of_a_pending_change_still_arrives_after_the_change_is_undone() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let mut applier = remote.applier(None);
    applier.result_begin(0).unwrap();
    applier.result_end().unwrap();
    remote.commit(applier);
    let state = remote.begin();
    remote.run("UPDATE item SET name = 'mine again' WHERE id = 1");
    let summary = remote.download_into(&state, None, |server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "centre", 10)));
    });
    assert_eq!((summary.upserts, summary.stale), (0, 1));
    assert_eq!(remote.query(NAMES)[0], "1:mine again:10");
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    assert_eq!(remote.upload(), [], "no net change is left");
    assert_eq!(remote.requested(), 1, "and still the row is asked for");
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "centre", 10)));
    });
    assert_eq!(remote.query(NAMES)[0], "1:centre:10");
    assert_eq!(remote.requested(), 0);
}

/// Interleaving 11.
#[test]
fn a_download_of_an_earlier_state_is_not_applied() {
    let mut remote = with_items();
    let expected = remote.begin();
    remote.run("UPDATE item SET name = 'newer' WHERE id = 1");
    remote.acknowledge(|_| {});
    let database = remote.database.take().unwrap();
    let refused = database.begin_apply(&[expected], &[None]).unwrap_err();
    assert!(matches!(refused.error, RemoteError::AnotherSyncWentAhead));
    remote.database = Some(refused.database);
    assert_eq!(remote.query(NAMES)[0], "1:newer:10");
    assert_eq!(remote.begin().sequence, 1);
}

#[test]
fn an_edit_made_during_the_sync_is_not_overwritten() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'taken' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'meanwhile' WHERE id IN (1, 2)");
    let mut applier = remote.applier(None);
    let schema = remote.schema.clone();
    let mut server = Sender {
        applier: &mut applier,
        schema: &schema,
    };
    server.applier.result_begin(0).unwrap();
    server.table("item", |rows| {
        rows.row(Op::ConflictRow, &item(1, "winner", 1))
    });
    server.applier.result_end().unwrap();
    server.applier.download_begin(0, false).unwrap();
    server.table("item", |rows| {
        rows.row(Op::Upsert, &item(2, "centre", 2));
        rows.row(Op::Upsert, &item(3, "centre", 3));
    });
    server.applier.download_end(b"").unwrap();
    let summary = remote.commit(applier);
    assert_eq!(
        (summary.conflicts, summary.stale, summary.upserts),
        (1, 2, 1)
    );
    assert_eq!(
        remote.query(NAMES),
        ["1:meanwhile:10", "2:meanwhile:20", "3:centre:3"]
    );
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "taken", 10), &item(1, "meanwhile", 10)),
            update(&item(2, "b", 20), &item(2, "meanwhile", 20)),
        ]
    );
}

#[test]
fn a_change_that_lost_gives_way_to_the_centres_row() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine'; DELETE FROM item WHERE id = 3");
    let summary = remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.row(Op::ConflictRow, &item(1, "winner", 1));
            rows.key(Op::ConflictGone, &[Datum::Integer(2)]);
            rows.row(Op::ConflictRow, &item(3, "back", 3));
        });
    });
    assert_eq!(summary.conflicts, 3);
    let told = summary.conflict_rows.iter();
    let told: Vec<_> = told.map(|row| (&*row.table, &*row.key)).collect();
    assert_eq!(told, [("item", "[1]"), ("item", "[2]"), ("item", "[3]")]);
    assert_eq!(remote.query(NAMES), ["1:winner:1", "3:back:3"]);
    assert_eq!(remote.upload(), []);
}

#[test]
fn an_apply_that_is_dropped_or_aborted_changes_nothing() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE log (id); CREATE TRIGGER own AFTER UPDATE ON item BEGIN \
         INSERT INTO log VALUES (NEW.id); END",
    );
    for dropped in [false, true] {
        let mut applier = remote.applier(None);
        applier.download_begin(0, false).unwrap();
        let schema = remote.schema.clone();
        Sender {
            applier: &mut applier,
            schema: &schema,
        }
        .table("item", |rows| rows.row(Op::Upsert, &item(1, "lost", 1)));
        if dropped {
            drop(applier);
            remote.database = Some(RemoteDatabase::open(&remote.path()).unwrap());
        } else {
            remote.database = Some(applier.abort());
        }
        assert_eq!(remote.query(NAMES)[0], "1:a:10");
    }
    remote.run("UPDATE item SET name = 'A' WHERE id = 1");
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "A", 10))]
    );
}

/// Interleaving 4.
#[test]
fn a_trigger_that_writes_a_synced_table_does_not_repeat_itself_at_a_download() {
    let stock = table(
        "stock",
        vec![
            column("product", ColumnType::Integer, false),
            column("left", ColumnType::Integer, false),
        ],
        vec![0],
    );
    let line = table(
        "line",
        vec![
            column("id", ColumnType::Integer, false),
            column("product", ColumnType::Integer, false),
        ],
        vec![0],
    );
    let mut remote = Remote::new(publication(vec![stock, line]));
    let pair = |first, second| [Datum::Integer(first), Datum::Integer(second)];
    remote.download(|server| {
        server.table("stock", |rows| rows.row(Op::Upsert, &pair(1, 10)));
    });
    remote.run(
        "CREATE TABLE note (line, left); CREATE TABLE seen (line); \
         CREATE TRIGGER take AFTER INSERT ON line BEGIN \
           UPDATE stock SET left = left - 1 WHERE product = NEW.product; END; \
         CREATE TRIGGER audit AFTER INSERT ON line BEGIN \
           INSERT INTO seen VALUES (NEW.id); END; \
         CREATE TRIGGER far AFTER INSERT ON seen BEGIN \
           UPDATE stock SET left = left - 100; END;",
    );
    let triggers = "SELECT sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name";
    let before = remote.query(triggers);
    remote.download(|server| {
        server.table("stock", |rows| rows.row(Op::Upsert, &pair(1, 9)));
        server.table("line", |rows| rows.row(Op::Upsert, &pair(100, 1)));
    });
    assert_eq!(remote.query("SELECT left FROM stock"), ["9"]);
    assert_eq!(
        remote.query("SELECT line FROM seen"),
        ["100"],
        "harmless triggers fire"
    );
    assert_eq!(
        remote.query(triggers),
        before,
        "all triggers are back, word for word"
    );
    remote.run("INSERT INTO line VALUES (101, 1)");
    assert_eq!(remote.query("SELECT left FROM stock"), ["-92"]);
    assert_eq!(remote.upload().len(), 2, "and tracking goes on");
}

/// Interleaving 3, and the parent that a pending child needs.
#[test]
fn a_removed_parent_takes_no_children_along_and_stays_while_a_pending_child_needs_it() {
    let customer = table(
        "customer",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    );
    let mut invoice = table(
        "invoice",
        vec![
            column("id", ColumnType::Integer, false),
            column("customer", ColumnType::Integer, false),
        ],
        vec![0],
    );
    invoice.foreign_keys = vec![ForeignKey {
        columns: vec![1],
        parent: "customer".into(),
        parent_columns: vec!["id".into()],
        on_delete: ForeignKeyAction::Cascade,
        on_update: ForeignKeyAction::NoAction,
    }];
    let mut remote = Remote::new(publication(vec![customer, invoice]));
    let pair = |first, second| [Datum::Integer(first), Datum::Integer(second)];
    remote.download(|server| {
        server.table("customer", |rows| {
            rows.row(Op::Upsert, &[Datum::Integer(1)]);
            rows.row(Op::Upsert, &[Datum::Integer(2)]);
        });
        server.table("invoice", |rows| rows.row(Op::Upsert, &pair(10, 1)));
    });
    let mut applier = {
        remote.begin();
        remote.run("INSERT INTO invoice VALUES (20, 2)");
        remote.applier(None)
    };
    applier.download_begin(0, false).unwrap();
    let schema = remote.schema.clone();
    Sender {
        applier: &mut applier,
        schema: &schema,
    }
    .table("customer", |rows| {
        rows.key(Op::Remove, &[Datum::Integer(1)]);
        rows.key(Op::Remove, &[Datum::Integer(2)]);
    });
    applier.download_end(b"").unwrap();
    let summary = remote.commit(applier);
    assert_eq!((summary.removals, summary.stale), (1, 1));
    assert_eq!(
        remote.query("SELECT id FROM invoice ORDER BY id"),
        ["10", "20"]
    );
    assert_eq!(remote.query("SELECT id FROM customer"), ["2"]);
    let changes = remote.upload();
    assert_eq!(
        changes.len(),
        1,
        "the invoice that stays in scope is not deleted"
    );
    assert_eq!(changes[0].new, stored(&pair(20, 2)));
    assert_eq!(remote.requested(), 1);
}

#[test]
fn rows_leave_but_for_what_is_pending() {
    let mut remote = with_items();
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(4, "d", 10)));
    });
    let summary = remote.download(|server| {
        server.table("item", |rows| rows.key(Op::Remove, &[Datum::Integer(2)]));
    });
    assert_eq!(summary.removals, 1);
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    remote.run("UPDATE item SET amount = 77 WHERE id = 3");
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            for id in [1, 3, 4] {
                rows.key(Op::Remove, &[Datum::Integer(id)]);
            }
        });
    });
    assert_eq!((summary.removals, summary.stale), (1, 2));
    assert_eq!(remote.query(NAMES), ["1:mine:10", "3:c:77"]);
    assert_eq!(remote.upload().len(), 2);
    assert_eq!(
        remote.requested(),
        2,
        "asked for in the sync that uploads them"
    );
}

#[test]
fn a_replaced_table_keeps_only_what_is_pending() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2");
    let summary = remote.download(|server| {
        server.replace("item", |rows| {
            rows.row(Op::Upsert, &item(2, "b", 20));
            rows.row(Op::Upsert, &item(5, "e", 50));
        });
    });
    assert_eq!(summary.upserts, 1);
    assert_eq!(remote.query(NAMES), ["1:mine:10", "5:e:50"]);
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "mine", 10)),
            delete(&item(2, "b", 20)),
        ]
    );
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.replace("item", |rows| rows.row(Op::Upsert, &item(5, "e", 50)));
    });
    assert_eq!(remote.query(NAMES), ["5:e:50"]);
    assert_eq!(remote.requested(), 0);
}

/// Interleaving 16, the remote's side.
#[test]
fn two_rows_that_swap_a_locally_unique_value_both_arrive() {
    let mut remote = with_items();
    remote.run("CREATE UNIQUE INDEX own ON item (name)");
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "b", 10));
            rows.row(Op::Upsert, &item(2, "a", 20));
        });
    });
    assert_eq!(summary.upserts, 2);
    assert_eq!(remote.query(NAMES), ["1:b:10", "2:a:20", "3:c:30"]);
    assert_eq!(remote.requested(), 0);
}

#[test]
fn a_row_that_collides_with_a_pending_one_is_asked_for_later() {
    let mut remote = with_items();
    remote.run("CREATE UNIQUE INDEX own ON item (name)");
    remote.run("INSERT INTO item VALUES (9, 'x', 90)");
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(4, "x", 40));
            rows.row(Op::Upsert, &item(5, "y", 50));
        });
    });
    assert_eq!((summary.upserts, summary.stale), (1, 1));
    assert_eq!(remote.query(NAMES).len(), 5);
    assert_eq!(remote.upload(), [insert(&item(9, "x", 90))]);
    assert_eq!(remote.requested(), 1);
}

#[test]
fn two_rows_of_the_centre_that_cannot_both_be_here_do_not_stop_the_sync() {
    let mut remote = with_items();
    remote.run("CREATE UNIQUE INDEX own ON item (name)");
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(4, "x", 40));
            rows.row(Op::Upsert, &item(5, "x", 50));
        });
    });
    assert_eq!((summary.upserts, summary.stale), (1, 1));
}

#[test]
fn a_trigger_that_refuses_a_downloaded_row_does_not_stop_the_sync() {
    let mut remote = with_items();
    remote.run(
        "CREATE TRIGGER own BEFORE UPDATE ON item WHEN NEW.name = 'bad' \
         BEGIN SELECT RAISE(ABORT, 'never'); END; \
         CREATE TRIGGER keep BEFORE DELETE ON item WHEN OLD.id = 3 \
         BEGIN SELECT RAISE(ABORT, 'never'); END",
    );
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "bad", 1));
            rows.row(Op::Upsert, &item(2, "good", 1));
            rows.key(Op::Remove, &[Datum::Integer(3)]);
        });
    });
    assert_eq!(
        (summary.upserts, summary.removals, summary.stale),
        (1, 0, 2)
    );
    remote.download(|server| server.replace("item", |_| {}));
    assert_eq!(remote.query(NAMES), ["3:c:30"]);
}

#[test]
fn a_trigger_that_rolls_a_sync_back_is_told_by_its_message() {
    for (trigger, message) in [
        (
            "CREATE TRIGGER own BEFORE UPDATE ON item BEGIN SELECT RAISE(ROLLBACK, 'closed'); END",
            "closed",
        ),
        (
            "CREATE TRIGGER own AFTER DELETE ON item BEGIN SELECT RAISE(ROLLBACK, 'closed'); END",
            "closed",
        ),
        (
            "CREATE TABLE log (item INTEGER NOT NULL); CREATE TRIGGER own AFTER DELETE ON item \
             BEGIN INSERT OR ROLLBACK INTO log VALUES (NULL); END",
            "log.item",
        ),
    ] {
        let mut remote = with_items();
        remote.run(trigger);
        let mut applier = remote.applier(None);
        applier.download_begin(0, false).unwrap();
        let table = &remote.schema.tables[0];
        applier.table_begin(&TableBegin::for_table(table)).unwrap();
        let shape = table.shape();
        let mut rows = RowsWriter::new(&shape);
        rows.row(Op::Upsert, &item(1, "A", 11));
        rows.key(Op::Remove, &[Datum::Integer(2)]);
        let error = applier.rows(&rows.take()).unwrap_err();
        assert!(matches!(error, RemoteError::Trigger { .. }), "{error}");
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.hint().contains("RAISE(ABORT"), "{}", error.hint());
        remote.database = Some(applier.abort());
        assert_eq!(remote.query(NAMES), ["1:a:10", "2:b:20", "3:c:30"]);
    }
}

#[test]
fn a_row_that_a_trigger_keeps_in_the_way_of_another_does_not_stop_the_sync() {
    let mut remote = with_items();
    remote.run(
        "CREATE UNIQUE INDEX own ON item (name); \
         CREATE TRIGGER keep BEFORE DELETE ON item BEGIN SELECT RAISE(ABORT, 'never'); END",
    );
    let summary = remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(4, "a", 40)));
    });
    assert_eq!((summary.upserts, summary.stale), (0, 1));
    assert_eq!(remote.query(NAMES), ["1:a:10", "2:b:20", "3:c:30"]);
}

#[test]
fn a_row_that_a_trigger_ignores_is_not_lost_silently() {
    let mut remote = with_items();
    remote.run(
        "CREATE TRIGGER own BEFORE INSERT ON item WHEN NEW.name = 'ignored' \
         BEGIN SELECT RAISE(IGNORE); END; \
         CREATE TRIGGER keep BEFORE DELETE ON item WHEN OLD.id < 3 \
         BEGIN SELECT RAISE(IGNORE); END",
    );
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(4, "ignored", 4));
            rows.row(Op::Upsert, &item(5, "taken", 5));
            rows.key(Op::Remove, &[Datum::Integer(1)]);
        });
    });
    assert_eq!(
        (summary.upserts, summary.removals, summary.stale),
        (1, 0, 2)
    );
    assert_eq!(remote.requested(), 2);
    remote.download(|server| {
        server.table("item", |rows| rows.key(Op::Remove, &[Datum::Integer(2)]));
    });
    assert_eq!(
        remote.query(NAMES),
        ["1:a:10", "2:b:20", "3:c:30", "5:taken:5"]
    );
    assert_eq!(remote.requested(), 3);
    remote.run("DROP TRIGGER own; DROP TRIGGER keep");
    let summary = remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(4, "ignored", 4));
            rows.key(Op::Remove, &[Datum::Integer(1)]);
            rows.key(Op::Remove, &[Datum::Integer(2)]);
        });
    });
    assert_eq!((summary.upserts, summary.removals), (1, 2));
    assert_eq!(remote.requested(), 0);
}

#[test]
fn bytes_that_are_no_rows_are_refused() {
    let mut remote = with_items();
    for bytes in [&[0xff_u8, 1, 2][..], &[1, 0, 2, 1, 65, 2, 5]] {
        let mut applier = remote.applier(None);
        applier.download_begin(0, false).unwrap();
        applier
            .table_begin(&TableBegin::for_table(&remote.schema.tables[0]))
            .unwrap();
        assert!(matches!(
            applier.rows(bytes),
            Err(RemoteError::BadRows { .. })
        ));
        remote.database = Some(applier.abort());
    }
    let mut applier = remote.applier(None);
    applier.download_begin(0, false).unwrap();
    applier
        .table_begin(&TableBegin::for_table(&remote.schema.tables[0]))
        .unwrap();
    applier.rows(&[Op::Upsert as u8, 0]).unwrap();
    assert!(matches!(
        applier.download_end(b""),
        Err(RemoteError::BadRows { .. })
    ));
    remote.database = Some(applier.abort());
    assert!(matches!(
        remote.applier(None).result_begin(0),
        Err(RemoteError::BadRows { .. })
    ));
}

/// An SQLite centre has them, and blobs in columns of text.
#[test]
fn rows_whose_key_is_text_that_is_no_unicode_come_and_go_alone() {
    let word = table(
        "word",
        vec![
            column("w", ColumnType::Text, false),
            column("x", ColumnType::Text, true),
        ],
        vec![0],
    );
    let mut remote = Remote::new(publication(vec![word]));
    fn blob(bytes: &[u8]) -> Datum<'_> {
        Datum::Loose(tidewater_protocol::ValueRef::Blob(bytes))
    }
    let keys = [
        blob(b"a\xff"),
        blob(b"a"),
        Datum::Text("a"),
        Datum::Text("b"),
    ];
    let rows = "SELECT typeof(w) || hex(w) || typeof(x) FROM word ORDER BY 1";
    for value in [[0xfe, 0], [0xfe, 1]] {
        remote.download(|server| {
            server.table("word", |rows| {
                for key in keys {
                    rows.row(Op::Upsert, &[key, blob(&value)]);
                }
            });
        });
        assert_eq!(
            remote.query(rows),
            ["blob61blob", "text61FFblob", "text61blob", "text62blob"]
        );
    }
    for (gone, left) in [
        (0, "blob61blob text61blob text62blob"),
        (1, "text61blob text62blob"),
    ] {
        remote.download(|server| {
            server.table("word", |rows| rows.key(Op::Remove, &[keys[gone]]));
        });
        assert_eq!(remote.query(rows).join(" "), left);
    }
}
