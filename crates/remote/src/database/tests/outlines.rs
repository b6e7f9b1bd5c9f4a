//! Facts about uploads that are too large to be kept whole: what of them is given back.

use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::Control;

use super::kept::{restored, restored_to};
use super::*;
use crate::database::{KeptLimits, NewIdentity, Said, kept};
use tidewater_protocol::RemoteId;

/// Every upload is too large to be kept whole.
const TINY: KeptLimits = KeptLimits {
    whole_upload_bytes: 1,
    whole_bytes: 1 << 20,
    outlines_bytes: 1 << 20,
    part_bytes: 1 << 20,
};

/// Rows 1 to 3, and outlines of everything that is uploaded.
fn outlining() -> Remote {
    let mut remote = with_items();
    remote.database_mut().limit_kept(TINY);
    remote
}

fn kept_rows(remote: &Remote) -> Vec<String> {
    remote.query(
        "SELECT sequence || '/' || coalesce(outline, 'whole') || '/' || giving \
         FROM tidewater_kept ORDER BY id",
    )
}

/// Gives back what the centre has forgotten, all of it: the ids and the changes.
fn given_back(remote: &mut Remote) -> (Vec<UploadId>, Vec<Change>) {
    let (mut ids, mut changes) = (Vec::new(), Vec::new());
    while let Some(giving) = remote.begin().giving {
        ids.push(giving.upload_id);
        let mut frames = remote.database().kept_frames(giving).unwrap();
        let mut table: Option<TableBegin> = None;
        while let Some(frame) = kept::next_frame(&mut frames).unwrap() {
            match frame {
                Frame::Control { control, .. } => match control.unwrap() {
                    Control::UploadBegin(begin) => {
                        assert_eq!(begin.upload_id, giving.upload_id.to_vec());
                    }
                    Control::TableBegin(begin) => table = Some(begin),
                    _ => {}
                },
                Frame::Rows { bytes, .. } => {
                    let begin = table.as_ref().unwrap();
                    let shape = begin.shape().unwrap();
                    let mut reader = RowsReader::new(&shape, &bytes);
                    let mut row = Row::default();
                    while reader.next(&mut row).unwrap() {
                        changes.push(Change {
                            table: begin.table.clone(),
                            op: row.op.unwrap(),
                            old: stored(&row.old),
                            new: stored(&row.new),
                        });
                    }
                }
            }
        }
        remote.acknowledge(|_| {});
    }
    (ids, changes)
}

#[test]
fn i2_what_was_too_large_to_be_kept_is_given_back_with_the_rows_as_they_are() {
    let mut remote = outlining();
    remote.run(
        "INSERT INTO item VALUES (9, 'new', 90); UPDATE item SET name = 'one' WHERE id = 1; \
         UPDATE item SET name = NULL, amount = 21 WHERE id = 2; DELETE FROM item WHERE id = 3",
    );
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET name = 'two' WHERE id = 2");
    remote.acknowledge(|_| {});
    let bytes = "SELECT max(instr(bytes, 'new'), instr(bytes, 'one')) FROM tidewater_kept";
    assert_eq!(remote.query(bytes), ["0", "0"], "values are not kept");
    // What is pending is none of what was uploaded.
    remote.run("UPDATE item SET amount = 91 WHERE id = 9; DELETE FROM item WHERE id = 1");
    restored(&mut remote);
    let two = [Datum::Integer(2), Datum::Text("two"), Datum::Integer(21)];
    let null = [Datum::Integer(2), Datum::Null, Datum::Integer(21)];
    let (ids, changes) = given_back(&mut remote);
    assert_eq!(ids, [UploadId([1; 16]), UploadId([2; 16])]);
    assert_eq!(
        changes,
        [
            update(&item(1, "a", 10), &item(1, "one", 10)),
            update(&item(2, "b", 20), &null),
            delete(&item(3, "c", 30)),
            insert(&item(9, "new", 90)),
            update(&null, &two),
        ]
    );
    assert_eq!(kept_rows(&remote), ["1/0/0", "2/0/0"], "outlined again");
    assert_eq!(
        remote.upload(),
        [
            delete(&item(1, "one", 10)),
            update(&item(9, "new", 90), &item(9, "new", 91)),
        ]
    );
}

#[test]
fn a_large_upload_is_given_back_in_parts_of_which_every_copy_knows_the_ids() {
    let mut remote = with_items();
    in_five_parts(&mut remote, |_| {});
    assert_eq!(
        kept_rows(&remote),
        ["1/1/0", "1/2/0", "1/3/0", "1/4/0", "1/5/0"]
    );
    let status = remote.database().status().unwrap();
    assert_eq!(status.subscriptions[0].kept, 1);
    restored(&mut remote);
    assert_eq!(
        kept_rows(&remote),
        ["1/-2/1", "1/-3/1", "1/-4/1", "1/-5/1", "1/-6/1"]
    );
    let (ids, changes) = given_back(&mut remote);
    assert_eq!(changes.len(), 2991);
    let mut expected = [[1; 16]; 5];
    for (number, id) in expected.iter_mut().enumerate() {
        id[15] += 1 + number as u8;
    }
    assert_eq!(ids, expected.map(UploadId));
    assert_eq!(
        kept_rows(&remote),
        ["1/0/0", "2/0/0", "3/0/0", "4/0/0", "5/0/0"]
    );
    // The centre has the third of them, by whatever number.
    restored_to(&mut remote, (77, Some(ids[2])));
    assert_eq!(given_back(&mut remote).0, ids[3..]);
}

/// Uploads 2,991 rows, and keeps the outlines of five parts; its id.
fn in_five_parts(remote: &mut Remote, result: impl FnOnce(&mut Sender<'_>)) -> UploadId {
    remote.database_mut().limit_kept(KeptLimits {
        whole_upload_bytes: 100_000,
        part_bytes: 100_000,
        ..KeptLimits::default()
    });
    remote.run(
        "WITH RECURSIVE number (id) AS (SELECT 10 UNION ALL SELECT id + 1 FROM number \
         WHERE id < 3000) INSERT INTO item SELECT id, printf('%.*c', 99, 'x'), 1 FROM number",
    );
    remote.acknowledge(result);
    UploadId([1; 16])
}

#[test]
fn a_centre_that_has_some_of_the_parts_is_given_the_others() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'earlier' WHERE id = 1");
    remote.acknowledge(|_| {});
    in_five_parts(&mut remote, |_| {});
    restored_to(&mut remote, (1, Some(UploadId([1; 16]))));
    let mut parts = Vec::new();
    while let Some(giving) = remote.begin().giving.filter(|_| parts.len() < 3) {
        parts.push(giving.upload_id);
        if parts.len() < 3 {
            remote.acknowledge(|_| {});
        }
    }
    // The third one has arrived, but its acknowledgement has not. Those that wait are still known
    // by the number of their upload, which is less.
    let numbers = "SELECT sequence || '/' || giving FROM tidewater_kept ORDER BY id";
    assert_eq!(
        remote.query(numbers),
        ["1/0", "2/0", "3/0", "2/1", "2/1", "2/1"]
    );
    restored_to(&mut remote, (4, Some(parts[2])));
    assert_eq!(given_back(&mut remote).0.len(), 2);
}

/// Found by the simulator, seed 30830: such a remote was taken for a copy of itself.
#[test]
fn an_upload_whose_first_part_was_refused_altogether_is_known_by_its_id() {
    let mut remote = with_items();
    let id = in_five_parts(&mut remote, |server| {
        server.table("item", |rows| {
            for id in 10..1500 {
                rows.refused(&[Datum::Integer(id)], Op::Insert, 703, "no");
            }
        });
    });
    assert_eq!(kept_rows(&remote), ["1/3/0", "1/4/0", "1/5/0"]);
    remote.run("UPDATE item SET name = 'later' WHERE id = 1");
    remote.acknowledge(|_| {});
    restored_to(&mut remote, (1, Some(id)));
    let state = remote.database().subscriptions().unwrap().remove(0);
    assert_eq!((state.sequence, state.upload_id), (1, Some(id)));
    assert_eq!(given_back(&mut remote).0, [UploadId([2; 16])]);
}

#[test]
fn a_row_that_is_not_here_any_more_is_not_deleted_but_told() {
    let mut remote = outlining();
    remote.run(
        "UPDATE item SET name = 'gone' WHERE id < 3; INSERT INTO item VALUES (9, 'new', 90); \
         DELETE FROM item WHERE id = 3",
    );
    remote.acknowledge(|_| {});
    // The user deletes one; one is taken away by somebody else, and another is brought back.
    remote.run("DELETE FROM item WHERE id = 2");
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| {
            rows.key(Op::Remove, &[Datum::Integer(1)]);
            rows.row(Op::Upsert, &item(3, "of another", 3));
        });
    });
    restored(&mut remote);
    let (_, changes) = given_back(&mut remote);
    let expected = [
        update(&item(2, "b", 20), &item(2, "gone", 20)),
        // It is another row's now: the centre finds that.
        delete(&item(3, "c", 30)),
        insert(&item(9, "new", 90)),
        delete(&item(2, "gone", 20)),
    ];
    assert_eq!(changes, expected);
    let refused = remote.database().refused().unwrap();
    let told: Vec<_> = refused
        .iter()
        .map(|it| {
            (
                it.code.as_str(),
                it.operation.as_str(),
                it.values.as_deref(),
            )
        })
        .collect();
    assert_eq!(told, [("forgotten", "update", Some(r#"{"id":1}"#))]);
}

#[test]
fn what_came_and_went_and_came_again_is_given_back_in_that_order() {
    let mut remote = outlining();
    let long = "00".repeat(700);
    for sql in [
        "INSERT INTO item VALUES (9, 'first', 90), (10, 'kept whole', 1)",
        "UPDATE item SET amount = 91 WHERE id = 9; DELETE FROM item WHERE id = 10",
        "DELETE FROM item WHERE id = 9; INSERT INTO item VALUES (11, hex(zeroblob(700)), 1)",
        "INSERT INTO item VALUES (9, 'again', 90); DELETE FROM item WHERE id = 11",
        "INSERT INTO item VALUES (11, 'short', 2)",
        "UPDATE item SET name = hex(zeroblob(700)) WHERE id = 11",
    ] {
        // The second upload is kept whole.
        let limits = match sql.contains("amount = 91") {
            true => KeptLimits::default(),
            false => TINY,
        };
        remote.database_mut().limit_kept(limits);
        remote.run(sql);
        remote.acknowledge(|_| {});
    }
    let whole = "SELECT sequence FROM tidewater_kept WHERE outline IS NULL";
    assert_eq!(remote.query(whole), ["2"]);
    restored(&mut remote);
    let (_, changes) = given_back(&mut remote);
    let expected = [
        insert(&item(9, "first", 90)),
        insert(&item(10, "kept whole", 1)),
        update(&item(9, "first", 90), &item(9, "first", 91)),
        delete(&item(10, "kept whole", 1)),
        delete(&item(9, "first", 91)),
        // The one with the long value is known by its key.
        insert(&item(9, "again", 90)),
        delete(&[Datum::Integer(11), Datum::Null, Datum::Null]),
        insert(&item(11, "short", 2)),
        update(&item(11, "short", 2), &item(11, &long, 2)),
    ];
    assert_eq!(changes, expected);
    assert_eq!(
        remote.query("SELECT count(*) FROM tidewater_refused"),
        ["0"]
    );
    let changes = "SELECT count(*) FROM tidewater_change_item";
    assert_eq!(remote.query(changes), ["0"]);
}

#[test]
fn what_was_refused_is_not_in_an_outline() {
    let mut remote = outlining();
    remote.run(
        "UPDATE item SET name = 'secret' WHERE id = 1; INSERT INTO item VALUES (9, 'no', 90); \
         UPDATE item SET amount = 21 WHERE id = 2",
    );
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(1)], Op::Update, 703, "no");
            rows.refused(&[Datum::Integer(9)], Op::Insert, 703, "no");
        });
    });
    restored(&mut remote);
    let (_, changes) = given_back(&mut remote);
    assert_eq!(changes, [update(&item(2, "b", 20), &item(2, "b", 21))]);
}

#[test]
fn values_of_every_kind_are_known_as_changed_and_as_what_they_were() {
    let kinds = [
        (ColumnType::Integer, "7", "8"),
        (ColumnType::Decimal { scale: Some(2) }, "'1.50'", "'2.50'"),
        (ColumnType::Real, "1.5", "2.5"),
        (ColumnType::Boolean, "1", "0"),
        (ColumnType::Text, "'a'", "''"),
        (ColumnType::Json, "'{}'", "'[1]'"),
        (ColumnType::Bytes, "x'01'", "x''"),
        (ColumnType::Date, "'2026-01-02'", "'2026-01-03'"),
        (ColumnType::Time, "'10:00:00'", "'11:00:00'"),
        (
            ColumnType::Uuid,
            "x'00112233445566778899aabbccddeeff'",
            "'loose'",
        ),
        (ColumnType::Text, "x'ff'", "1"),
    ];
    for (column_type, one, other) in kinds {
        let columns = vec![
            column("id", ColumnType::Integer, false),
            column("a", column_type, true),
            column("b", column_type, true),
        ];
        let mut remote = Remote::new(publication(vec![table("item", columns, vec![0])]));
        let values = [one, other, "NULL"];
        let pairs: Vec<(&str, &str)> = values
            .iter()
            .flat_map(|&from| values.map(|to| (from, to)))
            .collect();
        for (id, (from, to)) in pairs.iter().enumerate() {
            remote.run(&format!("INSERT INTO item VALUES ({id}, {from}, {to})"));
        }
        remote.acknowledge(|_| {});
        remote.database_mut().limit_kept(TINY);
        for (id, (from, to)) in pairs.iter().enumerate() {
            remote.run(&format!(
                "UPDATE item SET a = {to}, b = {from} WHERE id = {id}"
            ));
        }
        let uploaded = remote.upload();
        assert!(uploaded.len() >= 6, "{column_type:?}");
        remote.acknowledge(|_| {});
        remote.run("DELETE FROM tidewater_kept WHERE sequence = 1");
        restored(&mut remote);
        assert_eq!(given_back(&mut remote).1, uploaded, "{column_type:?}");
    }
}

#[test]
fn what_a_long_value_was_is_not_kept_and_its_change_is_given_back_against_null() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = hex(zeroblob(600)) WHERE id < 3");
    remote.acknowledge(|_| {});
    remote.database_mut().limit_kept(TINY);
    remote.run(
        "UPDATE item SET name = 'short' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         UPDATE item SET name = hex(zeroblob(700)) WHERE id = 3",
    );
    remote.acknowledge(|_| {});
    remote.run("DELETE FROM tidewater_kept WHERE sequence = 1");
    let short = "SELECT length(bytes) < 200 FROM tidewater_kept";
    assert_eq!(remote.query(short), ["1"]);
    restored(&mut remote);
    let long = "00".repeat(700);
    let was = |id, amount| [Datum::Integer(id), Datum::Null, Datum::Integer(amount)];
    assert_eq!(
        given_back(&mut remote).1,
        [
            update(&was(1, 10), &item(1, "short", 10)),
            delete(&[Datum::Integer(2), Datum::Null, Datum::Null]),
            update(&item(3, "c", 30), &item(3, &long, 30)),
        ]
    );
}

#[test]
fn a_row_is_given_back_with_the_columns_that_it_has_and_lost_changes_are_told() {
    let mut remote = outlining();
    remote.run(
        "UPDATE item SET name = 'one', amount = 11 WHERE id = 1; DELETE FROM item WHERE id = 3; \
         UPDATE item SET amount = 21 WHERE id = 2; INSERT INTO item VALUES (9, 'new', 90)",
    );
    remote.acknowledge(|_| {});
    let mut schema = items();
    schema.tables[0].columns.remove(1);
    schema.tables[0]
        .columns
        .push(column("unit", ColumnType::Text, true));
    schema.tables[0].partition = vec![1];
    remote.download_schema(Some(schema), |_| {});
    restored(&mut remote);
    let of = |id, amount| [Datum::Integer(id), Datum::Integer(amount), Datum::Null];
    assert_eq!(
        given_back(&mut remote).1,
        [
            update(&of(1, 10), &of(1, 11)),
            update(&of(2, 20), &of(2, 21)),
            delete(&of(3, 30)),
            insert(&of(9, 90)),
        ]
    );
    assert_eq!(told(&remote), ["update [1]"]);
}

#[test]
fn what_a_table_brought_that_has_left_or_has_another_key_is_told() {
    let change = |remote: &mut Remote| {
        remote.run(
            "UPDATE item SET name = 'one' WHERE id = 1; DELETE FROM item WHERE id = 3; \
             INSERT INTO item VALUES (9, 'new', 90)",
        );
        remote.acknowledge(|_| {});
    };
    let mut other_key = items();
    other_key.tables[0].key = vec![2];
    other_key.tables[0].columns[2].nullable = false;
    for schema in [publication(Vec::new()), other_key] {
        let mut remote = outlining();
        change(&mut remote);
        remote.download_schema(Some(schema), |_| {});
        restored(&mut remote);
        assert_eq!(given_back(&mut remote).1, []);
        assert_eq!(told(&remote), ["update [1]", "insert [9]"]);
    }
    // What only comes down now is refused by the centre, which names it.
    let mut down = items();
    down.tables[0].direction = Direction::Download;
    let mut remote = outlining();
    change(&mut remote);
    remote.download_schema(Some(down), |_| {});
    restored(&mut remote);
    assert_eq!(given_back(&mut remote).1.len(), 3);
}

/// The changes whose rows are gone.
fn told(remote: &Remote) -> Vec<String> {
    let refused = remote.database().refused().unwrap();
    let forgotten = refused.iter().filter(|it| it.code == "forgotten");
    forgotten
        .map(|it| format!("{} {}", it.operation, it.key))
        .collect()
}

#[test]
fn what_others_have_changed_since_is_not_given_back_for_them() {
    let mut remote = outlining();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 3");
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "mine", 77));
            rows.row(Op::Upsert, &item(3, "made anew", 33));
        });
    });
    restored(&mut remote);
    assert_eq!(
        given_back(&mut remote).1,
        [
            update(&item(1, "a", 10), &item(1, "mine", 10)),
            delete(&item(3, "c", 30)),
        ]
    );
}

#[test]
fn a_long_value_that_was_replaced_comes_with_its_row_if_that_was_forgotten_too() {
    let mut remote = outlining();
    for sql in [
        "INSERT INTO item VALUES (9, hex(zeroblob(600)), 90)",
        "UPDATE item SET name = hex(zeroblob(700)), amount = 91 WHERE id = 9",
        "UPDATE item SET amount = 92 WHERE id = 9",
    ] {
        remote.run(sql);
        remote.acknowledge(|_| {});
    }
    restored(&mut remote);
    let long = "00".repeat(700);
    assert_eq!(
        given_back(&mut remote).1,
        [
            insert(&item(9, &long, 90)),
            update(&item(9, &long, 90), &item(9, &long, 91)),
            update(&item(9, &long, 91), &item(9, &long, 92)),
        ]
    );
}

#[test]
fn rows_of_one_centre_are_not_given_back_to_another() {
    let mut remote = outlining();
    let identity = |number: u8, centre| NewIdentity {
        remote_id: RemoteId([number; 16]),
        token: None,
        credential: None,
        centre,
        give_back: &[],
    };
    let adopt = |remote: &mut Remote, number, centre| {
        let subscriptions = remote.database().subscriptions().unwrap();
        let remote_id = remote.database().account().unwrap().remote_id;
        let said = Said {
            remote_id,
            subscriptions: &subscriptions,
        };
        let database = remote.database_mut();
        let adopted =
            database.adopt_identity(said, &identity(number, centre), &mut || UploadId([99; 16]));
        adopted.unwrap();
    };
    adopt(&mut remote, 1, "one");
    remote.run("UPDATE item SET name = 'one' WHERE id = 1");
    remote.acknowledge(|_| {});
    // Another id of the same centre knows it by the id of the whole upload.
    adopt(&mut remote, 2, "one");
    assert_eq!(kept_rows(&remote), ["1/0/0"]);
    let state = remote.database().subscriptions().unwrap().remove(0);
    assert_eq!(state.formers.len(), 1);
    assert_eq!(state.formers[0].remote_id, RemoteId([1; 16]));
    adopt(&mut remote, 3, "another");
    assert_eq!(kept_rows(&remote).len(), 0);
}

#[test]
fn the_oldest_outlines_are_forgotten_when_they_are_too_many() {
    let mut remote = outlining();
    remote.database_mut().limit_kept(KeptLimits {
        outlines_bytes: 300,
        ..TINY
    });
    for number in 0..9 {
        remote.run(&format!("UPDATE item SET name = 'a{number}' WHERE id = 1"));
        remote.acknowledge(|_| {});
    }
    let kept = kept_rows(&remote);
    assert!((2..6).contains(&kept.len()), "{kept:?}");
    assert_eq!(kept.last().unwrap(), "9/0/0");
}
