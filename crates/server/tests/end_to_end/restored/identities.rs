//! Who a remote is when the centre was restored, its file was, or both were: what it uploaded
//! under any of its ids comes back once.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use tempfile::TempDir;
use tidewater_client::SyncDirection;
use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use super::{backup, restore};
use crate::backend::{Backend, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

const PRODUCTS: &str = "SELECT product_id FROM product WHERE product_id >= 70 ORDER BY 1";

fn insert(device: &Device, id: u32) {
    device.edit(&format!("INSERT INTO product VALUES ({id}, 'w', 1)"));
}

/// The remote's file, copied: the backup of a device, or a second one.
fn copy_of(device: &Device, folder: &TempDir) -> Device {
    let path = folder.path().join("copy.db");
    save_sqlite(&device.path, &path);
    Device::at(&path, device)
}

fn remote_id(device: &mut Device) -> String {
    let id = device.remote.account().expect("it can be read").remote_id;
    id.expect("it has signed in").to_string()
}

/// Monday's backup by mistake, from before the remote, then Tuesday's.
fn i1_a_backup_from_before_the_remote_and_then_a_newer_one_get_what_each_lacks<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let monday = backup(&world);
    let mut ada = world.synced("ada");
    insert(&ada, 70);
    ada.sync();
    world.execute("DELETE FROM product WHERE product_id = 70");
    let tuesday = backup(&world);
    insert(&ada, 71);
    ada.sync();
    let id = remote_id(&mut ada);
    restore(&mut world, &monday, &[&ada]);
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["70", "71"]);
    restore(&mut world, &tuesday, &[&ada]);
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["71"]);
    assert_converged(&world, &[&ada]);
    assert_eq!(remote_id(&mut ada), id);
}

fn i1_what_an_identity_without_a_download_uploaded_is_given_back<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let folder = TempDir::new().expect("a temporary folder");
    let mut restored = copy_of(&ada, &folder);
    insert(&ada, 70);
    ada.sync();
    let before = backup(&world);
    insert(&restored, 71);
    restored.sync_only(SyncDirection::UploadOnly);
    assert_ne!(remote_id(&mut restored), remote_id(&mut ada));
    restore(&mut world, &before, &[&ada]);
    restored.sync();
    assert_eq!(world.rows(PRODUCTS), ["70", "71"]);
    assert_converged(&world, &[&restored]);
}

fn i1_what_a_restored_file_keeps_of_its_former_id_is_given_back<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let early = backup(&world);
    let mut ada = world.synced("ada");
    insert(&ada, 70);
    ada.sync();
    let between = backup(&world);
    insert(&ada, 71);
    ada.sync();
    let folder = TempDir::new().expect("a temporary folder");
    let mut restored = copy_of(&ada, &folder);
    insert(&ada, 72);
    ada.sync();
    restored.sync();
    assert_ne!(remote_id(&mut restored), remote_id(&mut ada));
    insert(&restored, 73);
    restored.sync();
    // What only the lost file had is lost: 72. The row that was deleted stays so.
    world.execute("DELETE FROM product WHERE product_id = 70");
    for (backup, expected) in [
        (&between, &["70", "71", "73"]),
        (&early, &["70", "71", "73"]),
    ] {
        restore(&mut world, backup, &[&restored]);
        for _ in 0..2 {
            let report = restored.sync();
            assert_eq!((report.conflicts, report.refused), (0, 0));
            assert_eq!(&world.rows(PRODUCTS), expected);
        }
        assert_converged(&world, &[&restored]);
    }
}

/// Both have what was uploaded before the file was copied.
fn i1_two_copies_of_a_file_give_back_once<B: Backend>() {
    for copy_first in [false, true] {
        let mut world = World::<B>::open(shop());
        let before = backup(&world);
        let mut ada = world.synced("ada");
        insert(&ada, 70);
        ada.sync();
        let folder = TempDir::new().expect("a temporary folder");
        let mut copy = copy_of(&ada, &folder);
        for (device, id) in [(&mut ada, 71), (&mut copy, 72)] {
            insert(device, id);
            device.sync();
        }
        assert_ne!(remote_id(&mut copy), remote_id(&mut ada));
        restore(&mut world, &before, &[&ada]);
        let mut devices = [&mut ada, &mut copy];
        if copy_first {
            devices.reverse();
        }
        let [first, second] = devices;
        first.sync();
        assert_eq!(
            world.rows("SELECT 1 FROM product WHERE product_id = 70"),
            ["1"]
        );
        world.execute("DELETE FROM product WHERE product_id = 70");
        second.sync();
        first.sync();
        assert_eq!(world.rows(PRODUCTS), ["71", "72"], "{copy_first}");
        assert_converged(&world, &[&ada, &copy]);
    }
}

/// The copy has uploaded, but never heard of it, when the original comes: which knows nothing of
/// this upload, and cannot go on under the same id.
fn i1_a_copy_that_a_restored_centre_knows_first_keeps_the_id<B: Backend>() {
    let mut world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let id = remote_id(&mut ada);
    let before = backup(&world);
    let folder = TempDir::new().expect("a temporary folder");
    let mut copy = copy_of(&ada, &folder);
    for product in [70, 71] {
        insert(&ada, product);
        ada.sync();
    }
    restore(&mut world, &before, &[&ada]);
    insert(&copy, 72);
    let answer = |control: &Control| matches!(control, Control::ResultEnd(_));
    let place = Place::message(Way::Down, answer);
    copy.network.plan(place, Accident::CutInside);
    copy.try_sync().expect_err("the answer does not come");
    assert!(copy.network.finish_plan());
    ada.sync();
    copy.sync();
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["70", "71", "72"]);
    let inserts = "SELECT count(*) FROM audit WHERE line LIKE 'product|insert|7%'";
    assert_eq!(world.rows(inserts), ["3"]);
    assert_eq!(remote_id(&mut copy), id);
    assert_ne!(remote_id(&mut ada), id);
    assert_converged(&world, &[&ada, &copy]);
}

/// A file that has been to another centre, by mistake, still has what the first one may want back.
fn i1_what_is_kept_survives_a_visit_to_another_centre<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let before = backup(&world);
    insert(&ada, 70);
    ada.sync();
    let first = backup(&world);
    let other = World::<B>::open(shop());
    ada.network.redirect(other.server.address);
    ada.remote.set_other_centre(true);
    ada.sync();
    assert_eq!(other.rows(PRODUCTS), [""; 0]);
    insert(&ada, 71);
    ada.sync();
    // Back again, and all is there; then the centre is restored to before it was.
    for backup in [&first, &before] {
        restore(&mut world, backup, &[&ada]);
        for _ in 0..2 {
            ada.sync();
        }
        assert_eq!(world.rows(PRODUCTS), ["70"]);
        assert_converged(&world, &[&ada]);
    }
    assert_eq!(other.rows(PRODUCTS), ["71"]);
}

/// A staging server's address, or a centre made anew without its backup: its rows, or none at
/// all, would take the place of what may be the only copy.
fn i2_a_file_does_not_go_over_to_another_centre_unless_it_is_told_to<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    insert(&ada, 70);
    ada.sync();
    insert(&ada, 71);
    let other = World::<B>::open(shop());
    other.execute("INSERT INTO product VALUES (72, 'other', 1)");
    ada.network.redirect(other.server.address);
    for direction in [
        SyncDirection::Both,
        SyncDirection::UploadOnly,
        SyncDirection::DownloadOnly,
    ] {
        ada.remote.set_direction(direction);
        let error = ada.try_sync().expect_err("it is another centre");
        assert_eq!(error.code(), Code::AnotherCentre, "{error}");
        assert!(error.hint().contains("--other-centre"), "{}", error.hint());
    }
    assert_eq!(ada.rows(PRODUCTS), ["70", "71"]);
    assert_eq!(other.rows(PRODUCTS), ["72"]);

    ada.remote.set_direction(SyncDirection::Both);
    ada.network.redirect(world.server.address);
    let report = ada.sync();
    assert_eq!(report.uploaded.inserts, 1);
    assert_eq!(world.rows(PRODUCTS), ["70", "71"]);

    insert(&ada, 73);
    ada.network.redirect(other.server.address);
    ada.remote.set_other_centre(true);
    ada.sync();
    ada.remote.set_other_centre(false);
    ada.sync();
    assert_eq!(other.rows(PRODUCTS), ["72", "73"]);
    assert_converged(&other, &[&ada]);
}

/// A download alone would take from the file what the centre has forgotten and lacks.
fn i2_nothing_is_downloaded_before_what_the_centre_lacks_is_given_back<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let before = backup(&world);
    insert(&ada, 70);
    ada.sync();
    restore(&mut world, &before, &[&ada]);
    ada.remote.set_direction(SyncDirection::DownloadOnly);
    for _ in 0..2 {
        let error = ada.try_sync().expect_err("it has to give back first");
        assert!(error.to_string().contains("restored"), "{error}");
        assert!(error.hint().contains("both directions"), "{}", error.hint());
        assert_eq!(ada.rows(PRODUCTS), ["70"]);
    }
    ada.remote.set_direction(SyncDirection::Both);
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["70"]);
    assert_converged(&world, &[&ada]);
}

/// What a user uploaded who was removed since may have been deleted on purpose.
fn i1_what_a_removed_remote_uploaded_is_not_given_back<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    insert(&ada, 70);
    ada.sync();
    let id = remote_id(&mut ada);
    world.execute("DELETE FROM product WHERE product_id = 70");
    world.server.ask(async |centre| {
        let users = centre.users().await.expect("users can be listed");
        let user = users
            .iter()
            .find(|user| user.name == "ada")
            .expect("she is there");
        assert!(centre.remove_user("ada").await.expect("she can be removed"));
        assert!(centre.add_user(user).await.expect("she can be added"));
    });
    insert(&ada, 71);
    ada.sync();
    assert_ne!(remote_id(&mut ada), id);
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["71"]);
    assert_converged(&world, &[&ada]);
}

/// A connection from before the centre was restored is slow: what is pending arrives with it when
/// the rest was given back, which the remote does not know either.
fn i1_what_an_old_connection_brings_after_all_was_given_back_is_applied_once<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.remote.set_direction(SyncDirection::UploadOnly);
    insert(&ada, 70);
    ada.sync();
    insert(&ada, 71);
    ada.network.record();
    let result = || {
        Place::message(Way::Down, |control| {
            matches!(control, Control::ResultEnd(_))
        })
    };
    ada.network.plan(result(), Accident::CutInside);
    ada.try_sync().expect_err("the connection breaks");
    let old = ada.network.journeys().pop().expect("there was one").up;
    restore(&mut world, &backup, &[&ada]);
    ada.network.plan(result(), Accident::CutInside);
    ada.try_sync().expect_err("the connection breaks");
    assert!(ada.network.finish_plan());
    assert_eq!(world.rows(PRODUCTS), ["70"]);
    let mut socket = TcpStream::connect(world.server.address).expect("the server listens");
    socket.write_all(&old.concat()).expect("it listens");
    let arrives = (0..3_000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        world.rows(PRODUCTS) == ["70", "71"]
    });
    assert!(arrives);
    drop(socket);
    // Somebody else goes on with it.
    world.execute("DELETE FROM product WHERE product_id = 71");
    let id = remote_id(&mut ada);
    ada.remote.set_direction(SyncDirection::Both);
    ada.sync();
    ada.sync();
    assert_eq!((remote_id(&mut ada), ada.pending()), (id, 0));
    assert_eq!(world.rows(PRODUCTS), ["70"]);
    assert_converged(&world, &[&ada]);
}

/// To the older file, what it uploaded is taken: nobody tells it that the restored centre has
/// refused a part when it came back.
fn i6_a_file_that_is_restored_to_before_it_gave_back_ends_equal<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    ada.edit("INSERT INTO customer VALUES (90, 1, 'hers', 'taken@x', '1.00')");
    ada.sync_only(SyncDirection::UploadOnly);
    let folder = TempDir::new().expect("a temporary folder");
    let mut restored = copy_of(&ada, &folder);
    restore(&mut world, &backup, &[&ada]);
    world.execute("INSERT INTO customer VALUES (91, 9, 'other', 'taken@x', 0)");
    assert_eq!(ada.sync().refused, 1);
    assert_converged(&world, &[&ada]);
    restored.sync();
    assert_converged(&world, &[&restored]);
    assert_eq!(remote_id(&mut restored), remote_id(&mut ada));
    // Once: from then on it has what changes.
    world.execute("UPDATE customer SET name = 'renamed' WHERE customer_id = 1");
    assert_eq!(restored.sync().downloaded.upserts, 1);
    assert_converged(&world, &[&restored]);
}

on_both_adapters!(
    i1_a_backup_from_before_the_remote_and_then_a_newer_one_get_what_each_lacks,
    i1_what_an_identity_without_a_download_uploaded_is_given_back,
    i1_what_a_restored_file_keeps_of_its_former_id_is_given_back,
    i1_two_copies_of_a_file_give_back_once,
    i1_a_copy_that_a_restored_centre_knows_first_keeps_the_id,
    i1_what_is_kept_survives_a_visit_to_another_centre,
    i2_a_file_does_not_go_over_to_another_centre_unless_it_is_told_to,
    i2_nothing_is_downloaded_before_what_the_centre_lacks_is_given_back,
    i1_what_a_removed_remote_uploaded_is_not_given_back,
    i1_what_an_old_connection_brings_after_all_was_given_back_is_applied_once,
    i6_a_file_that_is_restored_to_before_it_gave_back_ends_equal,
);
