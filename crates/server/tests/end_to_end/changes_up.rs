//! Uploads: retries, queues, servers that change, and edits that come in between.

use std::ops::ControlFlow;

use tidewater_client::SyncPhase;
use tidewater_protocol::frame::{Frame, take_frame};
use tidewater_protocol::message::{Control, UploadBegin};
use tidewater_testing::proxy::{Accident, Journey, Place, Way};

use crate::backend::{Backend, Transaction};
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::ledger::Ledger;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

/// One worker for uploads, and remotes hear soon that they wait for it.
const ONE_UPLOAD_WORKER: &str = "upload_workers = 1\nkeepalive_interval = \"20ms\"";

/// The server has everything and has no worker for it yet.
fn waits_for_a_worker() -> Place {
    Place::message(Way::Down, |it| matches!(it, Control::Waiting(_)))
}

/// Interleaving 5. Where writers wait for one another, the other server waits as well.
fn i1_an_upload_that_waits_at_one_server_while_the_remote_goes_on_at_another_is_applied_once<
    B: Backend,
>() {
    let mut scenario = audited_shop::<B>();
    scenario.limits = ONE_UPLOAD_WORKER;
    let world = World::<B>::open(scenario);
    let other_server = world.another_server();
    let (mut ada, mut cleo) = (world.synced("ada"), world.synced("cleo"));
    let (adas_network, cleos_network) = (ada.network.clone(), cleo.network.clone());
    let mut ledger = Ledger::default();

    let mut lock = world.backend.begin();
    lock.execute("UPDATE product SET name = name WHERE product_id = 3");
    cleo.edit("UPDATE product SET stock = 99 WHERE product_id = 3");
    ada.edit(
        "INSERT INTO product VALUES (100, 'sixth', 0);
         UPDATE product SET name = 'changed' WHERE product_id = 1;",
    );
    ledger.product("insert", 100, "sixth");
    ledger.product("update", 1, "changed");
    let ada = std::thread::scope(|scope| {
        cleos_network.plan(waits_for_a_worker(), Accident::Stall);
        let cleo_syncs = scope.spawn(move || cleo.sync());
        cleos_network.wait_for_stall().expect("cleo waits");
        adas_network.plan(waits_for_a_worker(), Accident::Stall);
        let ada_syncs = scope.spawn(move || (ada.try_sync().is_err(), ada));
        adas_network.wait_for_stall().expect("ada waits");
        adas_network.break_connections();
        let (failed, mut ada) = ada_syncs.join().expect("a broken sync ends");
        assert!(failed);

        adas_network.redirect(other_server.address);
        let ada_syncs_again = scope.spawn(move || {
            ada.sync();
            ada.edit("UPDATE product SET name = 'seventh' WHERE product_id = 100");
            ada.sync();
            ada
        });
        let ada = if B::CONCURRENT_WRITERS {
            let ada = ada_syncs_again.join().expect("ada syncs");
            lock.commit();
            ada
        } else {
            lock.commit();
            ada_syncs_again.join().expect("ada syncs")
        };
        cleos_network.release();
        cleo_syncs.join().expect("cleo syncs");
        ada
    });
    let mut ada = ada;
    ledger.product("update", 100, "seventh");
    // Whatever the first server had in its backlog is dealt with before this.
    adas_network.redirect(world.server.address);
    ada.edit("INSERT INTO product VALUES (101, 'eighth', 0)");
    ledger.product("insert", 101, "eighth");
    ada.sync();
    ledger.assert_settled(&world, &mut ada);
    assert_converged(&world, &[&ada]);
}

/// Nothing discards a change that nobody asked to discard: before the sync, when it is cut,
/// when it is refused, edited again, and refused again.
fn i2_every_change_is_in_the_centre_or_pending_or_refused_on_both_sides<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let mut ledger = Ledger::default();
    ada.edit(
        "INSERT INTO product VALUES (100, 'taken', 0), (101, '', 0);
         UPDATE product SET name = 'mine' WHERE product_id = 1;
         UPDATE product SET name = 'lost' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;",
    );
    world.execute("UPDATE product SET name = 'won' WHERE product_id = 2");
    ledger.product("insert", 100, "taken");
    ledger.product("insert", 101, "");
    ledger.product("update", 1, "mine");
    ledger.product("update", 2, "lost");
    ledger.product("delete", 3, "");
    ledger.assert_somewhere(&world, &mut ada);

    let places: [fn(&Control) -> bool; 4] = [
        |it| matches!(it, Control::Welcome(_)),
        |it| matches!(it, Control::ResultBegin(_)),
        |it| matches!(it, Control::DownloadBegin(_)),
        |it| matches!(it, Control::SyncEnd(_)),
    ];
    for place in places {
        ada.network
            .plan(Place::message(Way::Down, place), Accident::CutInside);
        assert!(ada.try_sync().is_err());
        ledger.assert_somewhere(&world, &mut ada);
    }
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (1, 1));
    ledger.assert_settled(&world, &mut ada);

    // What was refused stays until it is changed, and is taken then.
    assert_eq!(ada.sync().uploaded, Default::default());
    assert_eq!(
        ada.value("SELECT count(*) FROM product WHERE product_id = 101"),
        "1"
    );
    ada.edit("UPDATE product SET name = 'named' WHERE product_id = 101");
    assert_eq!(ada.sync().uploaded.inserts, 1);
    assert!(ada.refused().is_empty());
    assert_eq!(
        world.rows("SELECT name FROM product WHERE product_id = 101"),
        ["named"]
    );
    assert_converged(&world, &[&ada]);
}

/// Interleaving 6.
fn i1_a_lost_acknowledgement_is_told_again_with_the_same_refusals_and_conflicts<B: Backend>() {
    let [undisturbed, disturbed] = [false, true].map(|is_lost| {
        let world = World::<B>::open(audited_shop::<B>());
        let mut ada = world.synced("ada");
        ada.edit(
            "INSERT INTO product VALUES (100, 'new', 0), (101, '', 0);
             INSERT INTO customer VALUES (50, 77, 'not mine', NULL, '1.00');
             UPDATE product SET name = 'lost' WHERE product_id = 1;
             DELETE FROM product WHERE product_id = 2;
             DELETE FROM product WHERE product_id = 3;",
        );
        world.execute(
            "UPDATE product SET name = 'won' WHERE product_id = 1;
             UPDATE product SET stock = 1000 WHERE product_id = 2;",
        );
        if is_lost {
            let place = Place::message(Way::Down, |it| matches!(it, Control::ResultBegin(_)));
            ada.network.plan(place, Accident::CutInside);
            assert!(ada.try_sync().is_err());
            // The centre goes on meanwhile.
            world.execute("UPDATE product SET stock = -1 WHERE product_id = 1");
        }
        let report = ada.sync();
        assert_converged_but_refused(&world, &mut [&mut ada]);
        let conflicts = world.server.conflicts().into_iter();
        let mut conflicts: Vec<_> = conflicts
            .map(|it| (it.key, it.operation, it.pre_image, it.uploaded, it.winner))
            .collect();
        conflicts.sort();
        let refused_there = world.server.refused().into_iter();
        let mut refused_there: Vec<_> = refused_there
            .map(|it| (it.table, it.key, it.row, it.code, it.reason))
            .collect();
        refused_there.sort();
        (
            report.uploaded,
            report.conflicts,
            report.refused,
            report.refused_rows,
            conflicts,
            refused_there,
        )
    });
    assert_eq!(undisturbed, disturbed);
    assert_eq!((undisturbed.1, undisturbed.2), (2, 2));
    assert_eq!((undisturbed.4.len(), undisturbed.5.len()), (2, 2));
}

/// Interleaving 12.
fn an_edit_between_taking_and_reading_belongs_to_the_next_upload<B: Backend>() {
    // On a machine that is busy all may be sent before anybody is asked.
    let (world, mut ada) = loop {
        let world = World::<B>::open(audited_shop::<B>());
        let mut ada = world.synced("ada");
        // More than may be sent before the server asks for more.
        ada.edit(
            "INSERT INTO product
             WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 25000)
             SELECT i, 'a name that is long enough to fill a few frames before the end ' || i, 0
             FROM n",
        );
        ada.network.record();
        let last_rows = Place::message(Way::Up, |it| matches!(it, Control::UploadEnd(_)));
        ada.network.plan(last_rows, Accident::CutInside);
        let application = ada.another_application();
        let mut edited = false;
        let outcome = ada.remote.sync(&mut |progress| {
            if progress.phase == SyncPhase::Uploading && progress.bytes_sent > 0 && !edited {
                edited = true;
                let sql = "UPDATE product SET name = 'edited later' WHERE product_id = 24999;
                           DELETE FROM product WHERE product_id = 25000;";
                application.edit(sql);
            }
            ControlFlow::Continue(())
        });
        assert!(outcome.is_err());
        if edited {
            break (world, ada);
        }
    };

    // A sync that settles an older upload goes on with what came after it.
    let report = ada.sync();
    assert_eq!(report.uploaded.inserts, 24_001);
    assert_eq!((report.uploaded.updates, report.uploaded.deletes), (1, 1));
    let journeys = ada.network.journeys();
    let uploads: Vec<_> = journeys.iter().filter_map(uploaded).collect();
    let [(taken, taken_rows), (again, rows_again), (next, _)] = &uploads[..] else {
        panic!("{} uploads", uploads.len());
    };
    assert_eq!(
        (taken.sequence, &taken.upload_id),
        (again.sequence, &again.upload_id)
    );
    assert!(
        taken_rows.ends_with(rows_again),
        "a retry goes on with the rest"
    );
    assert_eq!(next.sequence, taken.sequence + 1);
    let name = "a name that is long enough to fill a few frames before the end";
    assert_eq!(
        world.rows("SELECT line FROM audit WHERE line LIKE '%|24999|%' OR line LIKE '%|25000|%' ORDER BY id"),
        [
            format!("product|insert|24999|{name} 24999"),
            format!("product|insert|25000|{name} 25000"),
            "product|delete|25000|".to_owned(),
            "product|update|24999|edited later".to_owned(),
        ]
    );
    assert_converged(&world, &[&ada]);
}

/// The upload of a connection: how it was announced, and its rows.
fn uploaded(journey: &Journey) -> Option<(UploadBegin, Vec<u8>)> {
    let mut begin = None;
    let mut rows = Vec::new();
    for bytes in &journey.up {
        match take_frame(&mut bytes.as_slice().into()) {
            Ok(Some(Frame::Rows { bytes, .. })) => rows.extend_from_slice(&bytes),
            Ok(Some(Frame::Control {
                control: Some(Control::UploadBegin(it)),
                ..
            })) => begin = Some(it),
            _ => {}
        }
    }
    begin.map(|begin| (begin, rows))
}

/// Interleaving 10.
fn what_triggers_and_cascades_of_the_centre_do_reaches_everybody_the_uploader_too<B: Backend>() {
    let mut scenario = shop();
    scenario.schema += &B::late_trigger(
        "invoice",
        "UPDATE product SET stock = stock - 1 WHERE product_id = 1",
    );
    let customer = "name = \"customer\"\n";
    let cascades = format!("{customer}on_unseen_children = \"cascade\"\n");
    scenario.publication = scenario.publication.replace(customer, &cascades).leak();
    let world = World::<B>::open(scenario);
    let (mut ada, mut bob, mut cleo) = (
        world.synced("ada"),
        world.synced("bob"),
        world.synced("cleo"),
    );
    ada.edit(
        "INSERT INTO invoice VALUES (10, 1, 1, 'new'), (11, 2, 2, 'new');
         UPDATE invoice SET note = 'of customer 3, but of region 2' WHERE invoice_id = 4;",
    );
    ada.sync();
    assert_eq!(
        ada.value("SELECT stock FROM product WHERE product_id = 1"),
        "8"
    );
    assert_converged(&world, &[&ada]);
    bob.sync();
    assert_converged(&world, &[&bob]);
    // Bob holds an invoice of this customer, Cleo does not: the centre's cascade takes it.
    cleo.edit("DELETE FROM customer WHERE customer_id = 3");
    cleo.sync();
    bob.sync();
    ada.sync();
    assert_eq!(
        world.rows("SELECT * FROM invoice WHERE customer_id = 3"),
        [""; 0]
    );
    assert_eq!(
        bob.rows("SELECT * FROM invoice WHERE invoice_id = 4"),
        [""; 0]
    );
    assert_converged(&world, &[&ada, &bob, &cleo]);
}

/// Interleaving 23.
fn of_two_updates_of_one_row_in_one_batch_the_second_is_a_conflict<B: Backend>() {
    let mut scenario = audited_shop::<B>();
    scenario.limits = ONE_UPLOAD_WORKER;
    let world = World::<B>::open(scenario);
    let devices = ["cleo", "ada", "bob"].map(|user| world.synced(user));
    let mut lock = world.backend.begin();
    lock.execute("UPDATE product SET name = name WHERE product_id = 3");
    devices[0].edit("UPDATE product SET stock = 99 WHERE product_id = 3");
    devices[1].edit("UPDATE product SET name = 'by ada' WHERE product_id = 2");
    devices[2].edit("UPDATE product SET name = 'by bob' WHERE product_id = 2");
    let outcomes = std::thread::scope(|scope| {
        // One after the other they come to wait for the worker, the first inside it.
        let syncs = devices.map(|mut device| {
            let network = device.network.clone();
            network.plan(waits_for_a_worker(), Accident::Stall);
            let sync = scope.spawn(move || (device.sync(), device));
            network.wait_for_stall().expect("it waits for the worker");
            (network, sync)
        });
        lock.commit();
        syncs.map(|(network, sync)| {
            network.release();
            sync.join().expect("it syncs")
        })
    });
    let [(cleos, mut cleo), (adas, ada), (bobs, mut bob)] = outcomes;
    assert_eq!((cleos.conflicts, adas.conflicts, bobs.conflicts), (0, 0, 1));
    assert_eq!(
        bob.value("SELECT name FROM product WHERE product_id = 2"),
        "by ada"
    );
    let conflicts = world.server.conflicts();
    assert_eq!(conflicts.len(), 1);
    assert!(
        conflicts[0]
            .uploaded
            .as_ref()
            .is_some_and(|it| it.contains("by bob"))
    );
    assert!(
        conflicts[0]
            .winner
            .as_ref()
            .is_some_and(|it| it.contains("by ada"))
    );
    let applied = "SELECT line FROM audit WHERE line LIKE '%|2|%'";
    assert_eq!(world.rows(applied), ["product|update|2|by ada"]);
    let mut ada = ada;
    for device in [&mut cleo, &mut ada, &mut bob] {
        device.sync();
    }
    assert_converged(&world, &[&ada, &bob, &cleo]);
}

on_both_adapters!(
    i1_an_upload_that_waits_at_one_server_while_the_remote_goes_on_at_another_is_applied_once,
    i1_a_lost_acknowledgement_is_told_again_with_the_same_refusals_and_conflicts,
    i2_every_change_is_in_the_centre_or_pending_or_refused_on_both_sides,
    an_edit_between_taking_and_reading_belongs_to_the_next_upload,
    what_triggers_and_cascades_of_the_centre_do_reaches_everybody_the_uploader_too,
    of_two_updates_of_one_row_in_one_batch_the_second_is_a_conflict,
);
