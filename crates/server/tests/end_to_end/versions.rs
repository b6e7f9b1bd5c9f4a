//! A server and a remote one minor version of the protocol apart, in both directions.
//!
//! The network makes both take the other for a peer of 1.0, and lets nothing pass that 1.0
//! does not know: so each has to do with what was there then. What a server says after the
//! Hello, and what a remote says after the Welcome, has to be of 1.0 from the beginning; what
//! a remote says before it knows whom it talks to, a server of 1.0 ignores.

use std::path::Path;

use tempfile::TempDir;
use tidewater_protocol::message::Control;
use tidewater_testing::older::{Dropped, speak_1_0};
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, save_sqlite};
use crate::compare::assert_converged;
use crate::convergence::live_through;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

/// Whether a message is the one that is waited for.
type IsIt = fn(&Control) -> bool;

/// What a remote may say before it knows the server's version: that it compares, and what; what
/// it had uploaded before, and to which centre.
const BEFORE_THE_WELCOME: [&str; 4] = ["Up 1.7.7", "Up 1.7.8", "Up 1.9", "Up 21"];

/// From now on the remote and its servers speak 1.0.
fn step_back(device: &Device) -> Dropped {
    let (translate, dropped) = speak_1_0();
    device.network.translate(Some(translate));
    dropped
}

/// From now on they speak what they like.
fn step_forward(device: &Device) {
    device.network.translate(None);
}

#[track_caller]
fn assert_nothing_newer(dropped: &Dropped) {
    let newer = dropped.fields().into_iter();
    let newer: Vec<String> = newer
        .filter(|field| !BEFORE_THE_WELCOME.contains(&field.as_str()))
        .collect();
    assert_eq!(newer, [""; 0], "1.0 does not know these");
}

fn remotes_of_both_versions_end_equal_after_any_history<B: Backend>() {
    for seed in 11..13 {
        let mut dropped = Vec::new();
        live_through::<B>(seed, |devices| {
            dropped.extend([&devices[0], &devices[2]].map(step_back));
        });
        dropped.iter().for_each(assert_nothing_newer);
    }
}

/// The remote or the server is updated, and falls back, while an answer or an upload is lost.
fn i1_an_update_between_a_sync_and_its_retry_applies_every_change_once<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let mut ledger = Ledger::default();
    let mut dropped = Vec::new();
    let ways: [(Way, IsIt); 2] = [
        (Way::Down, |control| {
            matches!(control, Control::ResultEnd(_))
        }),
        (Way::Up, |control| matches!(control, Control::UploadEnd(_))),
    ];
    for (day, (way, is_it)) in (1_000..).zip(ways.into_iter().cycle().take(8)) {
        if day % 4 < 2 {
            dropped.push(step_back(&ada));
        } else {
            step_forward(&ada);
        }
        ada.edit(&format!(
            "INSERT INTO product VALUES ({day}, 'day {day}', 0)"
        ));
        ledger.product("insert", day, &format!("day {day}"));
        world.execute(&format!(
            "INSERT INTO product VALUES ({day} + 5000, 'theirs', 0)"
        ));
        ada.network
            .plan(Place::message(way, is_it), Accident::CutInside);
        ada.try_sync().expect_err("the connection breaks");
        assert!(ada.network.finish_plan());
        if day % 4 < 2 {
            step_forward(&ada);
        } else {
            dropped.push(step_back(&ada));
        }
        ada.sync();
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
    }
    dropped.iter().for_each(assert_nothing_newer);
}

/// A file is restored from a backup while another goes on, with changes pending in both.
fn a_copied_remote_gets_a_new_identity_from_a_server_of_1_0<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let dropped = step_back(&ada);
    ada.sync();
    let folder = TempDir::new().expect("a temporary folder");
    let copy = folder.path().join("copy.db");
    ada.edit("UPDATE product SET stock = 11 WHERE product_id = 1");
    save_sqlite(&ada.path, &copy);
    ada.sync();
    ada.edit("UPDATE product SET stock = 22 WHERE product_id = 2");
    ada.sync();
    let mut copy = Device::at(&copy, &ada);
    copy.edit("INSERT INTO product VALUES (70, 'of the copy', 0)");
    copy.edit("UPDATE customer SET name = 'by the copy' WHERE customer_id = 1");
    copy.sync();
    ada.edit("UPDATE product SET stock = 33 WHERE product_id = 3");
    for device in [&mut ada, &mut copy] {
        device.sync();
    }
    ada.sync();
    copy.sync();
    let stocks = "SELECT stock FROM product ORDER BY product_id";
    assert_eq!(world.rows(stocks), ["11", "22", "33", "0"]);
    let ids = [&mut ada, &mut copy].map(|it| it.remote.account().expect("it has one").remote_id);
    assert_ne!(ids[0], ids[1]);
    assert_eq!((ada.pending(), copy.pending()), (0, 0));
    assert_converged(&world, &[&ada, &copy]);
    assert_nothing_newer(&dropped);
    // After the update they go on as who they are.
    step_forward(&ada);
    copy.edit("UPDATE product SET stock = 44 WHERE product_id = 70");
    copy.sync();
    ada.sync();
    let now = [&mut ada, &mut copy].map(|it| it.remote.account().expect("it has one").remote_id);
    assert_eq!(now, ids);
    assert_converged(&world, &[&ada, &copy]);
}

fn saved<B: Backend>(world: &World<B>, folder: &Path) {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    world.backend.save(folder);
}

/// The centre is restored from an hour ago: a remote of 1.0 takes what it has, and what is
/// pending goes up.
fn a_restored_centre_and_a_remote_of_1_0_end_equal<B: Backend>() {
    let folder = TempDir::new().expect("a temporary folder");
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let dropped = [&ada, &bob].map(step_back);
    ada.edit("UPDATE product SET stock = 11 WHERE product_id = 1");
    ada.sync();
    saved(&world, folder.path());
    ada.edit("UPDATE product SET stock = 22 WHERE product_id = 2");
    ada.sync();
    bob.sync();
    ada.edit("UPDATE product SET stock = 33 WHERE product_id = 3");
    bob.edit("INSERT INTO product VALUES (70, 'pending', 0)");
    world.shut_down();
    let world = World::restored(B::restore(folder.path()), shop());
    for device in [&ada, &bob] {
        device.network.redirect(world.server.address);
    }
    world.execute("UPDATE product SET name = 'other' WHERE product_id = 1");
    for device in [&mut ada, &mut bob] {
        device.sync();
    }
    ada.sync();
    bob.sync();
    let stocks = "SELECT stock FROM product WHERE product_id IN (1, 3) ORDER BY product_id";
    assert_eq!(world.rows(stocks), ["11", "33"]);
    let names = "SELECT name FROM product WHERE product_id IN (1, 70) ORDER BY product_id";
    assert_eq!(world.rows(names), ["other", "pending"]);
    assert_eq!((ada.pending(), bob.pending()), (0, 0));
    assert_converged(&world, &[&ada, &bob]);
    dropped.iter().for_each(assert_nothing_newer);
}

on_both_adapters!(
    remotes_of_both_versions_end_equal_after_any_history,
    i1_an_update_between_a_sync_and_its_retry_applies_every_change_once,
    a_copied_remote_gets_a_new_identity_from_a_server_of_1_0,
    a_restored_centre_and_a_remote_of_1_0_end_equal,
);
