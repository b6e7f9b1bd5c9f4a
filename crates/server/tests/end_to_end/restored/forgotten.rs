//! Restored from a backup: uploads are given back, tables compared.

use std::cell::Cell;
use std::ops::ControlFlow;

use bytes::BytesMut;
use tidewater_centre::records::IncidentKind;
use tidewater_client::{RowSelection, SyncDirection};
use tidewater_protocol::Code;
use tidewater_protocol::frame::{Frame, take_frame};
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use super::{backup, restore};
use crate::backend::{Backend, Sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::meeting::{LINES, orders};
use crate::scenario::{Column, Scenario, Table, audited_shop, shop};
use crate::world::World;

/// Interleaving 2, and its everyday form: the centre is as it was some uploads ago.
fn i1_what_a_restored_centre_forgot_is_given_back_and_everybody_ends_equal<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let mut cleo = world.synced("cleo");
    ada.edit("INSERT INTO product VALUES (70, 'before', 1)");
    ada.sync();
    bob.sync();
    let backup = backup(&world);

    // Everything that can happen to a row after the backup.
    ada.edit("INSERT INTO product VALUES (71, 'first', 1)");
    ada.edit("UPDATE customer SET name = 'renamed' WHERE customer_id = 1");
    ada.sync();
    ada.edit("UPDATE product SET name = 'second' WHERE product_id = 71");
    ada.edit("UPDATE customer SET name = 'renamed again' WHERE customer_id = 1");
    ada.edit("DELETE FROM invoice WHERE invoice_id = 1");
    ada.sync();
    bob.sync();
    bob.edit("UPDATE product SET name = 'of both' WHERE product_id = 71");
    bob.sync();
    world.execute("INSERT INTO product VALUES (80, 'of an application', 1)");
    world.execute("UPDATE product SET stock = 99 WHERE product_id = 2");
    for device in [&mut ada, &mut bob, &mut cleo] {
        device.sync();
    }
    assert_converged(&world, &[&ada, &bob, &cleo]);
    restore(&mut world, &backup, &[&ada, &bob, &cleo]);
    ada.edit("UPDATE customer SET balance = '7.00' WHERE customer_id = 3");
    assert_eq!(ada.pending(), 1);

    // One sync of each is enough for what it knew itself.
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused, ada.pending()), (0, 0, 0));
    for device in [&mut bob, &mut cleo, &mut ada] {
        let report = device.sync();
        assert_eq!((report.conflicts, report.refused), (0, 0), "{report:?}");
    }
    assert_converged(&world, &[&ada, &bob]);
    cleo.sync();
    assert_converged(&world, &[&ada, &bob, &cleo]);
    let rows = |sql: &str| world.rows(sql);
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    // What the application wrote after the backup is lost, and at nobody left over.
    let expected = [
        "1|pen|10",
        "2|ink|20",
        "3|cap|30",
        "70|before|1",
        "71|of both|1",
    ];
    assert_eq!(rows(products), expected);
    let customers = "SELECT customer_id, name FROM customer ORDER BY customer_id";
    assert_eq!(rows(customers), ["1|renamed again", "2|two", "3|three"]);
    assert_eq!(
        rows("SELECT count(*) FROM invoice WHERE invoice_id = 1"),
        ["0"]
    );
    assert_eq!(world.server.conflicts(), []);
    let incidents = world.server.incidents(5);
    for (kind, user) in [
        (IncidentKind::UploadsMissing, "ada"),
        (IncidentKind::UploadsMissing, "bob"),
        (IncidentKind::HistoryUnknown, "cleo"),
    ] {
        assert!(incidents.contains(&(kind, user.into())), "{incidents:?}");
    }
    // It goes on as ever.
    bob.edit("UPDATE product SET stock = 5 WHERE product_id = 71");
    bob.sync();
    let report = ada.sync();
    assert_eq!((report.downloaded.upserts, report.conflicts), (1, 0));
    assert_converged(&world, &[&ada, &bob]);
}

/// Interleaving 13.
fn i1_a_row_that_left_the_scope_is_given_back_and_not_deleted<B: Backend>() {
    let mut world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let before = backup(&world);
    ada.edit("INSERT INTO customer VALUES (90, 1, 'hers', NULL, '1.00')");
    ada.sync();
    let between = backup(&world);
    world.execute("UPDATE customer SET region = 9 WHERE customer_id = 90");
    ada.sync();
    let there = "SELECT count(*) FROM customer WHERE customer_id = 90";
    assert_eq!(ada.value(there), "0");
    let deletes = "SELECT count(*) FROM audit WHERE line LIKE 'customer|delete%'";
    // Restored to when the centre had the row, and to before it did.
    for backup in [between, before] {
        restore(&mut world, &backup, &[&ada]);
        let report = ada.sync();
        assert_eq!((report.conflicts, report.refused), (0, 0));
        assert_eq!(
            (world.rows(there), world.rows(deletes)),
            (vec!["1".into()], vec!["0".into()])
        );
        assert_converged(&world, &[&ada]);
        assert_eq!(ada.value(there), "1");
    }
}

fn i1_a_centre_from_before_it_knew_the_remote_gets_everything_back<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let backup = backup(&world);
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (70, 'first', 1)");
    ada.sync();
    ada.edit("UPDATE product SET name = 'second' WHERE product_id = 70");
    ada.edit("DELETE FROM invoice WHERE invoice_id = 2");
    ada.sync();
    world.execute("INSERT INTO product VALUES (80, 'of an application', 1)");
    ada.sync();
    restore(&mut world, &backup, &[&ada]);
    ada.edit("INSERT INTO product VALUES (71, 'pending', 1)");
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused, ada.pending()), (0, 0, 0));
    let products = "SELECT product_id, name FROM product WHERE product_id > 3 ORDER BY 1";
    assert_eq!(world.rows(products), ["70|second", "71|pending"]);
    assert_eq!(world.rows("SELECT count(*) FROM invoice"), ["3"]);
    assert_converged(&world, &[&ada]);
    let incidents = world.server.incidents(2);
    let expected = [IncidentKind::HistoryUnknown, IncidentKind::UploadsMissing];
    assert_eq!(incidents, expected.map(|kind| (kind, "ada".to_owned())));
}

/// Two processes sync one file. What the centre has forgotten is told to both; when the second
/// hears of it, the first has given everything back, and the file is as if nobody had.
fn i1_what_one_sync_gave_back_another_one_does_not_give_back_again<B: Backend>() {
    let mut world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("INSERT INTO product VALUES (70, 'came', 1)");
    ada.sync();
    ada.edit("DELETE FROM product WHERE product_id = 70");
    ada.sync();
    restore(&mut world, &backup, &[&ada]);
    let mut slow = ada.second_handle();
    let welcome = |control: &Control| matches!(control, Control::Welcome(_));
    ada.network
        .plan(Place::message(Way::Down, welcome), Accident::Stall);
    let late = std::thread::scope(|scope| {
        let sync = scope.spawn(move || slow.sync(&mut |_| ControlFlow::Continue(())));
        ada.network.wait_for_stall().expect("it is let in");
        ada.sync_only(SyncDirection::UploadOnly);
        ada.network.release();
        sync.join().expect("it ends")
    });
    ada.network.finish_plan();
    ada.sync();
    let audit = "SELECT count(*) FROM audit WHERE line LIKE 'product|%'";
    assert_eq!(world.rows(audit), ["2"]);
    let error = late.expect_err("it is too late");
    assert_eq!(error.code(), Code::SyncInProgress, "{error}");
    assert_converged(&world, &[&ada]);
}

/// Monday's backup by mistake, then Tuesday's: what was given back to the first one meanwhile
/// makes the remote look older than the second one.
fn i1_a_newer_backup_after_a_give_back_that_broke_off_gets_the_rest<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let monday = backup(&world);
    let upload = |ada: &mut Device, ids: std::ops::Range<i64>| {
        for id in ids {
            ada.edit(&format!("INSERT INTO product VALUES ({id}, 'w', 1)"));
            ada.sync();
        }
    };
    upload(&mut ada, 70..73);
    let tuesday = backup(&world);
    upload(&mut ada, 73..75);
    restore(&mut world, &monday, &[&ada]);
    // It is told what is missing, gives one upload back, and no more.
    let hellos = Cell::new(0);
    let third_hello = Place::message(Way::Up, move |control| {
        hellos.set(hellos.get() + usize::from(matches!(control, Control::Hello(_))));
        hellos.get() == 3
    });
    ada.network.plan(third_hello, Accident::CutInside);
    ada.try_sync().expect_err("the connection is cut");
    assert!(ada.network.finish_plan());
    restore(&mut world, &tuesday, &[&ada]);
    ada.sync();
    let products = "SELECT count(*) FROM product WHERE product_id >= 70";
    assert_eq!(world.rows(products), ["5"]);
    assert_converged(&world, &[&ada]);
}

/// An upload that was refused as a whole is not kept: the next one takes its number when it is
/// given back. A newer backup has them under their first numbers.
fn i1_uploads_are_known_by_their_ids_when_a_newer_backup_counts_them_otherwise<B: Backend>() {
    for later in [1, 4] {
        let mut world = World::<B>::open(shop());
        let mut ada = world.synced("ada");
        let monday = backup(&world);
        ada.edit("INSERT INTO customer VALUES (90, 9, 'of no region of hers', NULL, '1.00')");
        assert_eq!(ada.sync().refused, 1);
        ada.discard_refused();
        ada.edit("INSERT INTO product VALUES (70, 'w', 1)");
        ada.sync();
        let tuesday = backup(&world);
        restore(&mut world, &monday, &[&ada]);
        ada.sync();
        for id in 0..later {
            ada.edit(&format!("INSERT INTO product VALUES ({}, 'w', 1)", 71 + id));
            ada.sync();
        }
        restore(&mut world, &tuesday, &[&ada]);
        ada.sync();
        let products = "SELECT count(*) FROM product WHERE product_id >= 70";
        assert_eq!(world.rows(products), [(1 + later).to_string()]);
        assert_converged(&world, &[&ada]);
    }
}

/// The server still has the signing keys of before, which it looks at every second.
fn i1_nothing_is_given_back_to_a_database_that_is_deployed_anew<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (70, 'sold out', 1)");
    ada.sync();
    world.execute("DELETE FROM product WHERE product_id = 70");
    world.deploy_anew();
    ada.edit("INSERT INTO product VALUES (71, 'pending', 1)");
    ada.remote.set_other_centre(true);
    ada.sync();
    let rows = world.rows("SELECT product_id FROM product WHERE product_id >= 70");
    assert_eq!(rows, ["71"]);
    assert_converged(&world, &[&ada]);
}

fn i1_an_update_that_is_given_back_and_lost_is_a_conflict_with_both_images<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("UPDATE customer SET name = 'hers' WHERE customer_id = 1");
    ada.edit("UPDATE customer SET name = 'hers too' WHERE customer_id = 2");
    ada.sync();
    restore(&mut world, &backup, &[&ada]);
    world.execute("UPDATE customer SET name = 'newer' WHERE customer_id = 1");
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused), (1, 0));
    let conflicts = world.server.conflicts();
    let [conflict] = &*conflicts else {
        panic!("{conflicts:?}");
    };
    assert_eq!(
        (conflict.key.as_str(), &*conflict.operation),
        ("[1]", "update")
    );
    for (image, name) in [
        (&conflict.pre_image, "\"one\""),
        (&conflict.uploaded, "\"hers\""),
        (&conflict.winner, "\"newer\""),
    ] {
        assert!(
            image.as_ref().is_some_and(|it| it.contains(name)),
            "{conflict:?}"
        );
    }
    let customers = "SELECT name FROM customer ORDER BY customer_id";
    assert_eq!(world.rows(customers), ["newer", "hers too", "three"]);
    assert_converged(&world, &[&ada]);
}

/// What came and went and came again ends as its remote left it.
fn i1_a_remote_gives_back_in_its_own_order<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    for sql in [
        "INSERT INTO product VALUES (70, 'same', 1); UPDATE product SET stock = 1",
        "DELETE FROM product WHERE product_id = 70; UPDATE product SET stock = 2",
        "INSERT INTO product VALUES (70, 'same', 1); UPDATE product SET stock = 1",
    ] {
        ada.edit(sql);
        ada.sync();
    }
    restore(&mut world, &backup, &[&ada]);
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused), (0, 0));
    let products = "SELECT product_id, stock FROM product ORDER BY 1";
    assert_eq!(world.rows(products), ["1|1", "2|1", "3|1", "70|1"]);
    assert_converged(&world, &[&ada]);
}

/// A day's photos: too much to be kept, and a smaller upload after it that may need them.
fn i2_what_was_too_large_to_be_kept_is_told_with_its_values<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let backup = backup(&world);
    ada.edit("INSERT INTO product SELECT 70, hex(zeroblob(4500000)), 7");
    ada.edit("UPDATE customer SET name = 'photographed' WHERE customer_id = 1");
    ada.edit("DELETE FROM invoice WHERE invoice_id = 1");
    ada.sync();
    ada.edit("UPDATE product SET stock = 10 WHERE product_id = 3");
    ada.sync();
    let kept = "SELECT count(*) || '/' || sum(bytes = x'') FROM tidewater_kept";
    assert_eq!(ada.value(kept), "2/1");
    bob.sync();
    bob.edit("UPDATE product SET stock = 20 WHERE product_id = 2");
    bob.sync();
    ada.sync();
    ada.edit("INSERT INTO customer VALUES (70, 2, 'pending', NULL, 0)");
    restore(&mut world, &backup, &[&ada, &bob]);
    bob.sync();
    let report = ada.sync();
    assert_eq!((report.conflicts, report.uploaded.inserts), (0, 1));
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
    let told = ada.remote.refused().unwrap().into_iter().map(|it| {
        let values = it.values.unwrap_or_default();
        let values = values.get(..60).unwrap_or(&values);
        format!("{} {} {} {values}", it.table, it.operation, it.code)
    });
    let mut told: Vec<String> = told.collect();
    told.sort_unstable();
    let zeros = "0".repeat(51);
    assert_eq!(
        told,
        [
            r#"customer update untracked {"customer_id":1,"name":"photographed"}"#.to_owned(),
            r#"invoice delete forgotten {"invoice_id":1}"#.to_owned(),
            format!(r#"product update untracked {{"name":"{zeros}"#),
            r#"product update untracked {"product_id":3,"stock":10}"#.to_owned(),
        ]
    );
    let customers = "SELECT name FROM customer WHERE customer_id = 70";
    assert_eq!(world.rows(customers), ["pending"]);
    // It is told once.
    assert_eq!(ada.sync().refused, 0);
}

/// Bob's delete was newer, but he comes first, and finds no row.
fn i2_a_delete_that_is_given_back_before_its_row_is_told<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let backup = backup(&world);
    ada.edit("INSERT INTO product VALUES (70, 'hers', 1)");
    ada.sync();
    bob.sync();
    bob.edit("DELETE FROM product WHERE product_id = 70");
    bob.sync();
    restore(&mut world, &backup, &[&ada, &bob]);
    assert_eq!(bob.sync().conflicts, 1);
    assert_eq!(ada.sync().conflicts, 0);
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
    assert_eq!(
        world.rows("SELECT name FROM product WHERE product_id = 70"),
        ["hers"]
    );
    assert_eq!(told(&world), ["bob delete [70]"]);
}

/// The conflicts that the centre tells: whose, which change, which row.
fn told<B: Backend>(world: &World<B>) -> Vec<String> {
    let told = world.server.conflicts().into_iter();
    let told = told.map(|it| format!("{} {} {}", it.user, it.operation, it.key));
    let mut told: Vec<String> = told.collect();
    told.sort_unstable();
    told
}

fn i2_what_a_restored_centre_refuses_to_take_back_stays_visible<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("INSERT INTO customer VALUES (90, 1, 'hers', 'taken@x', '1.00')");
    ada.sync();
    restore(&mut world, &backup, &[&ada]);
    world.execute("INSERT INTO customer VALUES (91, 9, 'other', 'taken@x', 0)");
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused), (0, 1));
    let refused = ada.refused();
    assert_eq!(refused.len(), 1);
    assert_eq!((&*refused[0].table, &*refused[0].key), ("customer", "[90]"));
    assert_eq!(world.server.refused().len(), 1);
    // Her values are in the list; the row is the centre's.
    assert_converged(&world, &[&ada]);
    assert_eq!(ada.pending(), 0);
    ada.sync();
    assert_eq!(ada.refused().len(), 1);
}

/// What was pending had been taken as an upload before the centre said that it was restored.
fn i2_what_a_restored_centre_had_refused_is_refused_again_by_the_next_sync<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("INSERT INTO customer VALUES (90, 9, 'one', NULL, 0)");
    ada.edit("INSERT INTO customer VALUES (91, 9, 'two', NULL, 0)");
    assert_eq!(ada.sync().refused, 2);
    restore(&mut world, &backup, &[&ada]);
    assert_eq!(world.server.refused(), []);
    ada.edit("UPDATE customer SET name = 'one more' WHERE customer_id = 90");
    assert_eq!(ada.sync().refused, 2);
    let refused = world.server.refused().into_iter().map(|it| it.key);
    assert_eq!(refused.collect::<Vec<String>>(), ["[90]", "[91]"]);
    // What the report tells, the remote lists, also where the centre comes from a dump; there
    // they are tried once more.
    for _ in 0..2 {
        let mut refused: Vec<String> = ada.refused().into_iter().map(|it| it.key).collect();
        refused.sort_unstable();
        assert_eq!(
            (refused, ada.pending()),
            (vec!["[90]".into(), "[91]".into()], 0)
        );
        ada.sync();
    }
}

/// A restored centre refuses an order that is given back, and with it a line that follows. A newer
/// backup knows neither, and has somebody else's order under the number.
fn i2_a_line_of_an_order_that_two_restored_centres_lack_goes_to_no_other_order<B: Backend>() {
    let mut world = World::<B>::open(orders("", ""));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let older = backup(&world);
    ada.edit("INSERT INTO orders VALUES (10, 'Sven'), (11, 'Sven')");
    ada.sync();
    restore(&mut world, &older, &[&ada, &bob]);
    bob.edit("INSERT INTO orders VALUES (10, 'Nora'); INSERT INTO line VALUES (10, 'apples', 1)");
    bob.sync();
    let newer = backup(&world);
    ada.edit("INSERT INTO line VALUES (10, 'bananas', 1)");
    assert_eq!(ada.try_sync().expect("it syncs").refused, 2);
    let both = ["[10]", "[10,\"bananas\"]"];
    let keys = |ada: &mut Device| -> Vec<String> {
        let refused = ada.refused().into_iter();
        refused.map(|it| it.key).collect()
    };
    assert_eq!(keys(&mut ada), both);
    restore(&mut world, &newer, &[&ada, &bob]);
    for _ in 0..3 {
        ada.try_sync().expect("it syncs");
        assert_eq!(world.rows(LINES), ["10 Nora apples"]);
        assert_eq!(keys(&mut ada), both);
    }
    // The centre lists each attempt at the line, and nothing of the order.
    let mut refused = world.server.refused().into_iter();
    assert!(refused.len() > 0 && refused.all(|it| it.key == both[1]));
    // Its user gives up the order, and has the line go to the other one.
    let refused = ada.refused();
    let (order, line) = (refused[0].id, refused[1].id);
    let mut decide = |ids: &[i64]| ada.remote.discard_refused(RowSelection::Ids(ids));
    assert_eq!(decide(&[order]).expect("it is given up"), 1);
    let again = ada.remote.retry_refused(RowSelection::Ids(&[line]));
    assert_eq!(again.expect("it goes up again"), 1);
    assert_eq!(ada.sync().refused, 0);
    assert_eq!(world.rows(LINES), ["10 Nora apples", "10 Nora bananas"]);
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
}

/// Interleaving 24.
fn i2_a_table_that_a_tool_rebuilt_is_compared_and_its_changes_are_pending<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let make = ada.value("SELECT sql FROM sqlite_schema WHERE name = 'product' AND type = 'table'");
    let new = make.replacen("product", "product_new", 1);
    ada.edit(&format!(
        "{new}; INSERT INTO product_new SELECT * FROM product; DROP TABLE product;
         ALTER TABLE product_new RENAME TO product;"
    ));
    ada.edit(
        "INSERT INTO product VALUES (70, 'untracked', 1);
         UPDATE product SET name = 'untracked' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;
         UPDATE product SET name = 'lost' WHERE product_id = 3;",
    );
    world.execute("UPDATE product SET name = 'newer' WHERE product_id = 3");
    world.execute("INSERT INTO product VALUES (80, 'of an application', 1)");
    for _ in 0..2 {
        ada.sync();
        bob.sync();
    }
    let products = "SELECT product_id, name FROM product ORDER BY product_id";
    assert_eq!(
        world.rows(products),
        [
            "1|untracked",
            "3|newer",
            "70|untracked",
            "80|of an application"
        ]
    );
    assert_eq!(ada.pending(), 0);
    assert_converged(&world, &[&ada, &bob]);
    // Her values of the row that somebody else had changed are not lost.
    let refused = ada.refused();
    let told: Vec<_> = refused.iter().map(|it| (&*it.table, &*it.key)).collect();
    assert_eq!(told, [("product", "[3]")]);
    ada.edit("UPDATE product SET stock = 77 WHERE product_id = 70");
    ada.sync();
    assert_eq!(
        world.rows("SELECT stock FROM product WHERE product_id = 70"),
        ["77"]
    );
}

const NOTE: Table = Table {
    name: "note",
    columns: &[Column::Plain("id"), Column::Plain("text")],
    scope: "1 = 1",
    parents: &[],
};

fn a_hundred_thousand_equal_rows_cost_less_than_64_kib<B: Backend>() {
    let schema = "
        CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL);
        INSERT INTO note WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
            WHERE i < 100000) SELECT i, 'note number ' || i FROM n;";
    let scenario = Scenario {
        schema: schema.to_owned(),
        publication: "[[publication]]\nname = \"main\"\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n",
        tables: &[NOTE],
        users: &["ada"],
        limits: "",
    };
    let mut world = World::<B>::open(scenario);
    let before = backup(&world);
    let mut ada = world.synced("ada");
    let known = backup(&world);
    ada.edit("UPDATE note SET text = 'changed' WHERE id = 50000");
    ada.sync();
    // Restored to when it knew her, and to before it did.
    for backup in [known, before] {
        restore(&mut world, &backup, &[&ada]);
        let report = ada.sync();
        let bytes = report.bytes_sent + report.bytes_received;
        assert!(bytes < 64 << 10, "{bytes} bytes: {report:?}");
        assert_eq!((report.conflicts, report.refused), (0, 0));
        let text = world.rows("SELECT text FROM note WHERE id = 50000");
        assert_eq!(text, ["changed"]);
        assert_converged(&world, &[&ada]);
    }
}

const DOCUMENTS: &[Table] = &[
    Table {
        name: "document",
        columns: &[
            Column::Plain("id"),
            Column::Plain("body"),
            Column::Plain("day"),
        ],
        scope: "1 = 1",
        parents: &[],
    },
    NOTE,
];

/// SQLite makes numbers of some values in columns of the centre, and texts of these numbers on
/// a remote: that is no difference.
#[test]
fn what_sqlite_keeps_differently_here_and_there_compares_equal() {
    let scenario = Scenario {
        schema: "
            CREATE TABLE document (id INTEGER NOT NULL PRIMARY KEY, body JSON, day DATE);
            INSERT INTO document VALUES (1, '1', 2024), (2, '1.5', '2026-01-02'),
                (3, '{\"a\": 1}', 'soon'), (4, 1e20, NULL);
            CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL);"
            .to_owned(),
        publication: "[[publication]]\nname = \"main\"\n\
             [[publication.table]]\nname = \"document\"\npartition = \"everyone\"\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n",
        tables: DOCUMENTS,
        users: &["ada"],
        limits: "",
    };
    let mut world = World::<Sqlite>::open(scenario);
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("INSERT INTO note VALUES (1, 'forgotten')");
    ada.sync();
    restore(&mut world, &backup, &[&ada]);
    ada.network.record();
    ada.sync();
    let (mut compared, mut sent) = (Vec::new(), Vec::new());
    for journey in ada.network.journeys() {
        // The preface is no frame.
        let up = journey.up.iter().skip(1);
        compared.extend(up.filter_map(|frame| match control(frame)? {
            Control::CompareTable(compare) => Some(compare.table?.table),
            _ => None,
        }));
        sent.extend(
            journey
                .down
                .iter()
                .filter_map(|frame| match control(frame)? {
                    Control::TableBegin(begin) => Some(begin.table),
                    _ => None,
                }),
        );
    }
    assert_eq!(compared, ["document", "note"]);
    assert_eq!(sent, [] as [&str; 0]);
    assert_eq!(world.rows("SELECT text FROM note"), ["forgotten"]);
}

fn control(frame: &[u8]) -> Option<Control> {
    match take_frame(&mut BytesMut::from(frame)).ok()?? {
        Frame::Control { control, .. } => control,
        Frame::Rows { .. } | Frame::Message { .. } => None,
    }
}

on_both_adapters!(
    i1_what_a_restored_centre_forgot_is_given_back_and_everybody_ends_equal,
    i1_a_row_that_left_the_scope_is_given_back_and_not_deleted,
    i1_a_centre_from_before_it_knew_the_remote_gets_everything_back,
    i1_a_remote_gives_back_in_its_own_order,
    i2_what_was_too_large_to_be_kept_is_told_with_its_values,
    i2_a_delete_that_is_given_back_before_its_row_is_told,
    i1_what_one_sync_gave_back_another_one_does_not_give_back_again,
    i1_a_newer_backup_after_a_give_back_that_broke_off_gets_the_rest,
    i1_uploads_are_known_by_their_ids_when_a_newer_backup_counts_them_otherwise,
    i1_nothing_is_given_back_to_a_database_that_is_deployed_anew,
    i1_an_update_that_is_given_back_and_lost_is_a_conflict_with_both_images,
    i2_what_a_restored_centre_refuses_to_take_back_stays_visible,
    i2_what_a_restored_centre_had_refused_is_refused_again_by_the_next_sync,
    i2_a_line_of_an_order_that_two_restored_centres_lack_goes_to_no_other_order,
    i2_a_table_that_a_tool_rebuilt_is_compared_and_its_changes_are_pending,
    a_hundred_thousand_equal_rows_cost_less_than_64_kib,
);
