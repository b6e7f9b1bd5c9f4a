//! Downloads: nothing is skipped, nothing is half there, nothing local is overwritten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, Transaction};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

/// After this long a sync is taken to wait for the application's transaction.
const BLOCKED: Duration = Duration::from_secs(2);

fn the_end() -> Place {
    Place::message(Way::Down, |it| matches!(it, Control::SyncEnd(_)))
}

fn i3_what_an_older_transaction_commits_after_a_download_comes_with_the_next<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    for round in 0..3 {
        if B::CONCURRENT_WRITERS {
            world.execute(&format!(
                "UPDATE product SET stock = {round} WHERE product_id = 1"
            ));
        }
        let mut transaction = world.backend.begin();
        transaction.execute(&format!(
            "INSERT INTO product VALUES (10{round}, 'slow', 0);
             UPDATE customer SET name = 'slow {round}' WHERE customer_id = 2;
             DELETE FROM product WHERE product_id = 10{round} - 1;"
        ));
        if B::CONCURRENT_WRITERS {
            world.execute(&format!(
                "INSERT INTO product VALUES (20{round}, 'quick', 0)"
            ));
            bob.edit(&format!(
                "INSERT INTO product VALUES (30{round}, 'bob''s', 0)"
            ));
            bob.sync();
        }
        // Where there is one writer at a time, a download may wait for it, but not skip it.
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ada.sync();
                // Nobody listens any more if it took too long.
                let _ = done.send(());
            });
            let in_time = is_done.recv_timeout(BLOCKED).is_ok();
            assert!(
                in_time || !B::CONCURRENT_WRITERS,
                "a reader waited for a writer"
            );
            transaction.commit();
        });
        ada.sync();
        bob.sync();
        assert_eq!(
            ada.value(&format!(
                "SELECT name FROM product WHERE product_id = 10{round}"
            )),
            "slow"
        );
        assert_converged(&world, &[&ada, &bob]);
    }
}

/// The stock of all products stays the same in every transaction of the centre, and every
/// invoice's note is its customer's name.
fn i4_an_application_sees_only_whole_downloads<B: Backend>() {
    let world = World::<B>::open(shop());
    world.execute(
        "UPDATE invoice SET note = 'generation 0';
         UPDATE customer SET name = 'generation 0';
         INSERT INTO product
         WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 1999)
         SELECT i, 'generation 0', 5 FROM n;",
    );
    let mut ada = world.synced("ada");
    let application = ada.another_application();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let reader = scope.spawn(move || {
            let mut states = std::collections::BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                // One statement reads one state.
                let state = application.rows(
                    "SELECT (SELECT sum(stock) FROM product WHERE product_id >= 1000),
                            (SELECT count(DISTINCT name) FROM product WHERE product_id >= 1000),
                            (SELECT count(*) FROM invoice JOIN customer USING (customer_id)
                             WHERE note <> customer.name),
                            (SELECT min(name) FROM product WHERE product_id >= 1000)
                                = (SELECT min(name) FROM customer)",
                );
                states.insert(state[0].clone());
            }
            states
        });
        for generation in 1..=12 {
            let mut transaction = world.backend.begin();
            transaction.execute(&format!(
                "UPDATE product SET stock = stock + 1 WHERE product_id >= 1000 AND product_id % 2 = 0;
                 UPDATE product SET stock = stock - 1 WHERE product_id >= 1000 AND product_id % 2 = 1;
                 UPDATE product SET name = 'generation {generation}' WHERE product_id >= 1000;
                 UPDATE customer SET name = 'generation {generation}';
                 UPDATE invoice SET note = 'generation {generation}';"
            ));
            transaction.commit();
            ada.sync();
        }
        is_over.store(true, Ordering::Relaxed);
        let states = reader.join().expect("the reader reads");
        assert_eq!(states.into_iter().collect::<Vec<_>>(), ["5000|1|0|1"]);
    });
    assert_converged(&world, &[&ada]);
}

fn i4_a_local_edit_made_during_a_download_is_never_overwritten<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    world.execute(
        "UPDATE product SET name = 'theirs' WHERE product_id IN (1, 2);
         DELETE FROM product WHERE product_id = 3;
         UPDATE customer SET name = 'theirs' WHERE customer_id = 1;",
    );
    let application = ada.another_application();
    network.plan(the_end(), Accident::Stall);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        network.wait_for_stall().expect("the download is under way");
        application.edit(
            "UPDATE product SET name = 'mine' WHERE product_id = 1;
                 UPDATE product SET name = 'mine' WHERE product_id = 3;
                 INSERT INTO product VALUES (100, 'mine', 0);
                 DELETE FROM invoice WHERE invoice_id = 1;",
        );
        network.release();
        sync.join().expect("it syncs");
    });
    let names = "SELECT product_id, name FROM product ORDER BY 1";
    assert_eq!(
        ada.rows(names),
        ["1|mine", "2|theirs", "3|mine", "100|mine"]
    );
    assert_eq!(ada.pending(), 4);
    let report = ada.sync();
    // The first to arrive has won, and both images are kept.
    assert_eq!(report.conflicts, 2);
    assert_eq!(world.server.conflicts().len(), 2);
    assert_eq!(ada.rows(names), ["1|theirs", "2|theirs", "100|mine"]);
    assert_converged(&world, &[&ada]);
}

/// Interleaving 11.
fn i4_an_interrupted_download_that_resumes_after_another_sync_changes_nothing<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut second = ada.second_handle();
    world.execute("UPDATE product SET name = 'old' WHERE product_id IN (1, 2)");
    let application = ada.another_application();
    network.plan(the_end(), Accident::Stall);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.try_sync());
        network.wait_for_stall().expect("the download is under way");
        second
            .sync(&mut |_| std::ops::ControlFlow::Continue(()))
            .expect("another process syncs");
        application.edit("UPDATE product SET name = 'newer' WHERE product_id = 1");
        second
            .sync(&mut |_| std::ops::ControlFlow::Continue(()))
            .expect("and uploads");
        world.execute("UPDATE product SET name = 'newest' WHERE product_id = 2");
        second
            .sync(&mut |_| std::ops::ControlFlow::Continue(()))
            .expect("and downloads");
        network.release();
        let resumed = sync.join().expect("it ends");
        let error = resumed.expect_err("its place was taken");
        assert_eq!(error.code(), Code::SyncInProgress);
    });
    let names = "SELECT name FROM product WHERE product_id IN (1, 2) ORDER BY product_id";
    assert_eq!(ada.rows(names), ["newer", "newest"]);
    ada.sync();
    assert_eq!(ada.rows(names), ["newer", "newest"]);
    assert_eq!(world.rows(names), ["newer", "newest"]);
    assert_converged(&world, &[&ada]);
}

/// Interleaving 19. The download begins again, whole, from a newer state.
fn i4_a_download_that_broke_off_begins_again_on_another_server_from_one_newer_state<B: Backend>() {
    let world = World::<B>::open(shop());
    let another = world.another_server();
    let mut ada = world.synced("ada");
    // One that has nothing yet applies rows while they arrive.
    let mut fresh = world.device("ada");
    let products: Vec<String> = (1_000..6_000)
        .map(|id| format!("({id}, 'of the first download', 0)"))
        .collect();
    world.execute(&format!(
        "INSERT INTO product VALUES {};
         UPDATE customer SET name = 'first' WHERE customer_id IN (1, 2);
         INSERT INTO customer VALUES (10, 1, 'first', NULL, 0);
         INSERT INTO invoice VALUES (10, 1, 10, 'first'), (11, 2, 2, 'first');",
        products.join(", ")
    ));
    let mut before = [dump(&ada), Vec::new()];
    let mut devices = [&mut ada, &mut fresh];
    for (device, before) in devices.iter_mut().zip(&mut before) {
        device.network.plan_cut(Way::Down, 60_000);
        device.try_sync().expect_err("the connection broke");
        assert!(device.network.happened());
        if before.is_empty() {
            let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'product'";
            assert_eq!(device.value(tables), "0");
        } else {
            assert_eq!(dump(device), *before, "nothing of it is here");
        }
    }
    // Parents and children come and go, and a row leaves the scope and comes back.
    world.execute(
        "INSERT INTO customer VALUES (20, 2, 'second', NULL, 0);
         UPDATE invoice SET customer_id = 20 WHERE invoice_id IN (10, 11);
         INSERT INTO invoice VALUES (20, 2, 20, 'second');
         DELETE FROM customer WHERE customer_id = 10;
         UPDATE customer SET name = 'second' WHERE customer_id = 1;
         UPDATE customer SET region = 4 WHERE customer_id = 3;
         DELETE FROM product WHERE product_id BETWEEN 1000 AND 2000;
         UPDATE product SET name = 'of the second' WHERE product_id > 3000;",
    );
    for (device, before) in devices.into_iter().zip(before) {
        device.network.redirect(another.address);
        if before.is_empty() {
            device.sync();
            continue;
        }
        let application = device.another_application();
        device.network.plan(the_end(), Accident::Stall);
        let network = device.network.clone();
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| device.sync());
            network.wait_for_stall().expect("the download is under way");
            let first = "SELECT count(*) FROM product WHERE name = 'of the first download'";
            assert_eq!(application.rows(first), ["0"], "nothing before all of it");
            network.release();
            sync.join().expect("it syncs");
        });
    }
    for device in [&ada, &fresh] {
        // Of those that did not leave the scope.
        let orphans = "SELECT count(*) FROM invoice WHERE customer_id <> 3 AND customer_id NOT IN \
                       (SELECT customer_id FROM customer)";
        assert_eq!(device.value(orphans), "0", "parents are there");
        let count = "SELECT count(*) FROM product";
        assert_eq!(device.value(count), "4002");
    }
    assert_converged(&world, &[&ada, &fresh]);
}

/// All rows that a device has of the shop.
fn dump(device: &Device) -> Vec<String> {
    device.rows(
        "SELECT 'c', customer_id, region, name FROM customer
         UNION ALL SELECT 'i', invoice_id, customer_id, note FROM invoice
         UNION ALL SELECT 'p', product_id, stock, name FROM product ORDER BY 1, 2",
    )
}

/// Interleaving 7.
fn a_row_that_was_skipped_for_a_pending_change_arrives_when_the_user_undoes_it<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    world.execute("UPDATE product SET name = 'theirs' WHERE product_id = 1");
    let application = ada.another_application();
    network.plan(the_end(), Accident::Stall);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        network.wait_for_stall().expect("the download is under way");
        application.edit("UPDATE product SET name = 'mine' WHERE product_id = 1");
        network.release();
        sync.join().expect("it syncs");
    });
    assert_eq!(
        ada.value("SELECT name FROM product WHERE product_id = 1"),
        "mine"
    );
    ada.edit("UPDATE product SET name = 'pen' WHERE product_id = 1");
    let report = ada.sync();
    assert_eq!((report.uploaded.updates, report.conflicts), (0, 0));
    assert_eq!(
        ada.value("SELECT name FROM product WHERE product_id = 1"),
        "theirs"
    );
    assert_converged(&world, &[&ada]);
}

/// Interleaving 4.
fn a_trigger_of_the_user_on_eleven_remotes_lowers_the_stock_once<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let users = [
        "ada", "bob", "bob", "bob", "bob", "bob", "ada", "ada", "ada", "ada", "ada",
    ];
    let mut devices = users.map(|user| world.synced(user));
    for device in &devices {
        device.edit(
            "CREATE TRIGGER own AFTER INSERT ON invoice BEGIN
                 UPDATE product SET stock = stock - 1 WHERE product_id = 1;
             END",
        );
    }
    devices[0].edit("INSERT INTO invoice VALUES (10, 2, 2, 'one pen')");
    assert_eq!(
        devices[0].value("SELECT stock FROM product WHERE product_id = 1"),
        "9"
    );
    for _ in 0..2 {
        for device in &mut devices {
            device.sync();
        }
    }
    assert_eq!(
        world.rows("SELECT stock FROM product WHERE product_id = 1"),
        ["9"]
    );
    assert_converged(&world, &devices.each_ref());
    let applied = "SELECT count(*) FROM audit WHERE line LIKE 'product|update|1|%'";
    assert_eq!(world.rows(applied), ["1"]);
    // It is still there.
    devices[3].edit("INSERT INTO invoice VALUES (11, 2, 2, 'another')");
    assert_eq!(
        devices[3].value("SELECT stock FROM product WHERE product_id = 1"),
        "8"
    );
}

on_both_adapters!(
    i3_what_an_older_transaction_commits_after_a_download_comes_with_the_next,
    i4_an_application_sees_only_whole_downloads,
    i4_a_local_edit_made_during_a_download_is_never_overwritten,
    i4_an_interrupted_download_that_resumes_after_another_sync_changes_nothing,
    i4_a_download_that_broke_off_begins_again_on_another_server_from_one_newer_state,
    a_row_that_was_skipped_for_a_pending_change_arrives_when_the_user_undoes_it,
    a_trigger_of_the_user_on_eleven_remotes_lowers_the_stock_once,
);
