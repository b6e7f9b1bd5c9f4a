//! Rows, partitions and users that come into scope and leave it.

use std::path::Path;

use tidewater_centre::Centre;
use tidewater_client::SyncDirection;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, save_sqlite};
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::device::Device;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

const CUSTOMERS: &str = "SELECT customer_id FROM customer ORDER BY 1";

fn i5_a_remote_receives_only_rows_of_its_partitions<B: Backend>() {
    let world = World::<B>::open(shop());
    world.execute(
        "UPDATE customer SET name = 'SECRET', email = 'SECRET' WHERE region <> 2 AND customer_id = 1;
         UPDATE invoice SET note = 'SECRET' WHERE region <> 2;",
    );
    let mut bob = world.device("bob");
    bob.network.record();
    bob.sync();
    world.execute("UPDATE invoice SET note = 'SECRET again' WHERE region <> 2");
    // Where a conflict or a unique key meets rows of others, that is all that is said.
    bob.edit(
        "INSERT INTO customer VALUES (1, 2, 'mine', NULL, '0.00'), (3, 2, 'mine', NULL, '0.00'),
                                     (40, 2, 'mine', 'SECRET', '0.00');
         INSERT INTO invoice VALUES (1, 2, 2, 'mine');
         UPDATE customer SET region = 1 WHERE customer_id = 2;",
    );
    let report = bob.sync();
    assert_eq!(report.refused, 5);
    let mut reasons: Vec<_> = bob
        .refused()
        .into_iter()
        .map(|it| (it.key, it.code))
        .collect();
    reasons.sort();
    let expected = [
        ("[1]", "key_in_use"),
        ("[1]", "key_in_use"),
        ("[2]", "out_of_scope"),
        ("[3]", "key_in_use"),
        ("[40]", "key_in_use"),
    ];
    assert_eq!(
        reasons,
        expected.map(|(key, code)| (key.to_owned(), code.to_owned()))
    );
    for refused in bob.refused() {
        if refused.code == "key_in_use" && refused.key != "[40]" {
            assert_eq!(refused.reason, "key in use");
        }
    }
    for journey in bob.network.journeys() {
        let received = journey.down.concat();
        assert!(!contains(&received, b"SECRET"), "a row of others was sent");
    }
    // What bob wrote himself is all that his file knows of it.
    bob.edit("UPDATE customer SET email = NULL WHERE customer_id = 40");
    bob.sync();
    assert_eq!(
        world.rows("SELECT region FROM customer WHERE customer_id = 2"),
        ["2"]
    );
    assert_converged_but_refused(&world, &mut [&mut bob]);
    assert_eq!(bob.discard_refused(), 4);
    bob.sync();
    assert_converged(&world, &[&bob]);
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

fn i5_a_row_that_moves_leaves_one_remote_and_reaches_another<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob, mut cleo) = (
        world.synced("ada"),
        world.synced("bob"),
        world.synced("cleo"),
    );
    // By the centre, ...
    world.execute("UPDATE customer SET region = 3 WHERE customer_id = 2");
    for device in [&mut ada, &mut bob, &mut cleo] {
        device.sync();
    }
    assert_eq!(bob.rows(CUSTOMERS), [""; 0]);
    assert_eq!(cleo.rows(CUSTOMERS), ["2", "3"]);
    assert_converged(&world, &[&ada, &bob, &cleo]);
    // ... and by a remote that holds both partitions.
    ada.edit("UPDATE customer SET region = 2 WHERE customer_id = 3");
    for device in [&mut ada, &mut bob, &mut cleo] {
        device.sync();
    }
    assert_eq!(bob.rows(CUSTOMERS), ["3"]);
    assert_converged(&world, &[&ada, &bob, &cleo]);
}

fn i5_partitions_gained_and_lost_come_and_go_whole<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    for (change, customers) in [
        ("INSERT INTO assignment VALUES ('bob', 1)", &["1", "2"][..]),
        (
            "DELETE FROM assignment WHERE login = 'bob' AND region = 2",
            &["1"],
        ),
        ("DELETE FROM assignment WHERE login = 'bob'", &[]),
        (
            "INSERT INTO assignment VALUES ('bob', 3), ('bob', 2)",
            &["2", "3"],
        ),
    ] {
        world.execute(change);
        // In the same breath a row of every region changes.
        world.execute("UPDATE customer SET balance = balance + 1");
        bob.sync();
        assert_eq!(bob.rows(CUSTOMERS), customers);
        assert_converged(&world, &[&bob]);
    }
}

fn i5_a_change_pending_in_a_lost_partition_is_uploaded_under_the_last_signed_scope<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut bob = world.synced("bob");
    bob.edit(
        "UPDATE customer SET name = 'made while it was his' WHERE customer_id = 2;
         INSERT INTO invoice VALUES (20, 2, 2, 'also his');",
    );
    world.execute("UPDATE assignment SET region = 3 WHERE login = 'bob'");
    let report = bob.sync();
    assert_eq!((report.uploaded.inserts, report.uploaded.updates), (1, 1));
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id = 2"),
        ["made while it was his"]
    );
    assert_eq!(bob.rows(CUSTOMERS), ["3"]);
    assert_converged(&world, &[&bob]);
}

/// Interleaving 20.
fn i5_an_old_signed_scope_is_refused_and_the_user_keeps_the_row_as_he_wrote_it<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    world.execute("INSERT INTO customer VALUES (9, 2, 'nine', 'nine@x', 0)");
    let mut bob = world.synced("bob");
    let old_copy = bob.path.with_file_name("old-copy.db");
    bob.edit("PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&bob.path, &old_copy).expect("the file can be copied");
    // The scope changes twice: only the last two that were issued count.
    for region in [3, 1] {
        world.execute(&format!(
            "UPDATE assignment SET region = {region} WHERE login = 'bob'"
        ));
        bob.sync();
    }
    let mut replayed = Device::at(&old_copy, &bob);
    replayed.edit(
        "UPDATE customer SET name = 'no longer his' WHERE customer_id = 2;
         DELETE FROM invoice WHERE invoice_id = 2;",
    );
    let report = replayed.sync();
    assert_eq!((report.uploaded.updates, report.uploaded.deletes), (0, 0));
    assert_eq!(report.refused, 2);
    let audit = "SELECT line FROM audit WHERE line LIKE '%no longer his%' OR line LIKE '%delete%'";
    assert_eq!(world.rows(audit), [""; 0]);
    assert_eq!(replayed.rows(CUSTOMERS), ["1"]);
    let refused = replayed.refused();
    let update = refused.iter().find(|it| it.operation == "update");
    let values = update
        .and_then(|it| it.values.as_deref())
        .expect("the row as he wrote it");
    for part in ["no longer his", "two@x"] {
        assert!(values.contains(part), "{values}");
    }
    // Of rows that he did not change the device keeps nothing.
    assert!(!file_contains(&mut replayed, b"nine@x"));
    assert_converged_but_refused(&world, &mut [&mut replayed]);
}

/// A copy from before a partition was lost is a device that was offline, but only until the
/// original has presented what it got instead.
fn i5_a_signed_scope_is_spent_when_the_device_presented_the_next<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut bob = world.synced("bob");
    let old_copy = bob.path.with_file_name("old-copy.db");
    bob.edit("PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&bob.path, &old_copy).expect("the file can be copied");
    world.execute("UPDATE assignment SET region = 3 WHERE login = 'bob'");
    bob.sync();
    // Nothing is uploaded: that he comes with the new scope is enough.
    bob.sync();
    let mut replayed = Device::at(&old_copy, &bob);
    replayed.edit("INSERT INTO customer VALUES (60, 2, 'no longer his', NULL, '0.00')");
    let report = replayed.sync();
    assert_eq!((report.uploaded.inserts, report.refused), (0, 1));
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id = 60"),
        [""; 0]
    );
    assert_converged_but_refused(&world, &mut [&mut replayed]);
}

/// Whether the database still knows a text anywhere, the internal tables included.
fn file_contains(device: &mut Device, text: &[u8]) -> bool {
    device.edit("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);");
    let path: &Path = &device.path;
    contains(&std::fs::read(path).expect("the file can be read"), text)
}

fn i5_a_disabled_user_is_kept_out_and_his_changes_stay_pending<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    bob.edit("UPDATE customer SET name = 'pending' WHERE customer_id = 2");
    let set_disabled = |disabled| {
        let found = world
            .server
            .ask(async |centre| centre.set_disabled("bob", disabled).await);
        assert!(found.expect("users can be disabled"));
    };
    set_disabled(true);
    let error = bob.try_sync().expect_err("he is kept out");
    assert_eq!(error.code(), tidewater_protocol::Code::UserDisabled);
    assert_eq!(bob.pending(), 1);
    set_disabled(false);
    bob.sync();
    assert_converged(&world, &[&bob]);
}

/// Syncs a pending change; while its end is on the way, something happens.
fn shut_out_in_the_middle<B: Backend>(
    world: &World<B>,
    device: &mut Device,
    meanwhile: impl FnOnce(),
) -> tidewater_protocol::Code {
    let before = world.rows("SELECT customer_id, name FROM customer ORDER BY 1");
    device.edit("UPDATE customer SET name = 'pending'");
    let network = device.network.clone();
    let end = Place::message(Way::Up, |it| matches!(it, Control::UploadEnd(_)));
    network.plan(end, Accident::Stall);
    let error = std::thread::scope(|scope| {
        let sync = scope.spawn(|| device.try_sync());
        network.wait_for_stall().expect("the upload is under way");
        meanwhile();
        network.release();
        let result = sync.join().expect("it ends");
        result.expect_err("the user is shut out")
    });
    let after = world.rows("SELECT customer_id, name FROM customer ORDER BY 1");
    assert_eq!(after, before, "nothing is applied any more");
    assert!(device.pending() > 0);
    error.code()
}

fn i5_a_running_sync_ends_when_its_user_is_disabled_or_its_remote_is_revoked<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    let set_disabled = |disabled| {
        let ask = async |centre: &dyn Centre| centre.set_disabled("bob", disabled).await;
        assert!(world.server.ask(ask).expect("users can be disabled"));
    };
    let code = shut_out_in_the_middle(&world, &mut bob, || set_disabled(true));
    assert_eq!(code, tidewater_protocol::Code::UserDisabled);
    set_disabled(false);
    bob.sync();
    assert_converged(&world, &[&bob]);

    let mut ada = world.synced("ada");
    let remotes = world.server.ask(async |centre| centre.remotes().await);
    let remotes = remotes.expect("remotes can be listed");
    let adas = remotes.iter().find(|remote| remote.user == "ada");
    let id = adas.expect("it has signed in").id;
    let code = shut_out_in_the_middle(&world, &mut ada, || {
        let revoked = world
            .server
            .ask(async |centre| centre.revoke_remote(id).await);
        assert!(revoked.expect("remotes can be revoked"));
    });
    assert_eq!(code, tidewater_protocol::Code::RemoteRevoked);
}

/// Interleaving 3.
fn a_customer_that_leaves_the_scope_takes_no_invoice_that_stays_in_it<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    world.execute("UPDATE customer SET region = 9 WHERE customer_id = 3");
    for _ in 0..2 {
        ada.sync();
        assert_eq!(ada.rows(CUSTOMERS), ["1", "2"]);
        assert_eq!(ada.value("SELECT count(*) FROM invoice"), "4");
        assert_eq!(ada.pending(), 0);
        assert_eq!(world.rows("SELECT count(*) FROM invoice"), ["4"]);
        assert_converged(&world, &[&ada]);
    }
    assert_eq!(
        world.rows("SELECT line FROM audit WHERE line LIKE '%delete%'"),
        [""; 0]
    );
}

fn i5_what_went_up_alone_into_a_partition_that_was_lost_since_goes<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    world.execute("INSERT INTO assignment VALUES ('bob', 1)");
    bob.edit("INSERT INTO customer VALUES (50, 1, 'mine', NULL, '0.00')");
    bob.sync_only(SyncDirection::UploadOnly);
    assert_eq!(bob.pending(), 0);
    assert_eq!(bob.refused().len(), 0);
    world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 1");
    bob.sync();
    assert_eq!(bob.rows(CUSTOMERS), ["2"]);
    assert_converged(&world, &[&bob]);
}

/// Seed 92736: a schema that comes and goes makes the upload one without a checkpoint, after
/// which everything would have been sent; but the result is told under the old checkpoint.
fn i5_what_went_up_under_a_schema_that_was_taken_back_leaves_with_its_partition<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    let publication = world.publication.clone();
    world.execute("INSERT INTO assignment VALUES ('bob', 1); ALTER TABLE customer ADD phone text");
    world.republish(&publication);
    bob.network.redirect(world.server.address);
    bob.edit(
        "INSERT INTO invoice (invoice_id, region, customer_id, note) VALUES (50, 1, 2, 'mine')",
    );
    let download = |control: &Control| matches!(control, Control::DownloadBegin(_));
    bob.network
        .plan(Place::message(Way::Down, download), Accident::CutInside);
    bob.try_sync().unwrap_err();
    assert!(bob.network.finish_plan());
    let customer = "name = \"customer\"\n";
    let columns = r#"columns = ["customer_id", "region", "name", "email", "balance"]"#;
    world.republish(&publication.replace(customer, &format!("{customer}{columns}\n")));
    bob.network.redirect(world.server.address);
    world.execute(
        "DELETE FROM invoice WHERE invoice_id = 50;
         DELETE FROM assignment WHERE login = 'bob' AND region = 1;",
    );
    bob.sync_only(SyncDirection::UploadOnly);
    bob.sync();
    let invoices = "SELECT count(*) FROM invoice WHERE invoice_id = 50";
    assert_eq!(bob.value(invoices), "0");
    assert_converged(&world, &[&bob]);
}

/// Seed 29767: the copy has downloaded in between, and gained nothing when it uploaded.
fn i5_what_a_copy_of_the_file_uploaded_leaves_the_original_with_its_partition<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    world.execute("INSERT INTO assignment VALUES ('bob', 1)");
    bob.edit("INSERT INTO customer VALUES (50, 1, 'mine', NULL, '0.00')");
    // The upload is taken, and so the same in both files.
    bob.network
        .plan(Place::frame(Way::Up, 0), Accident::CutInside);
    bob.try_sync().unwrap_err();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.db");
    save_sqlite(&bob.path, &path);
    let mut copy = Device::at(&path, &bob);
    copy.sync_only(SyncDirection::DownloadOnly);
    copy.sync();
    assert_eq!(copy.rows(CUSTOMERS), ["1", "2", "50"]);
    world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 1");
    bob.sync();
    bob.sync();
    assert_eq!(bob.rows(CUSTOMERS), ["2"]);
    assert_converged(&world, &[&bob]);
}

/// The fault rig found it.
fn i5_a_row_that_lost_without_a_download_leaves_with_its_partition<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    bob.edit("UPDATE customer SET name = 'mine' WHERE customer_id = 2");
    world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 2");
    bob.sync_only(SyncDirection::DownloadOnly);
    world.execute(
        "INSERT INTO assignment VALUES ('bob', 2);
         UPDATE customer SET name = 'theirs' WHERE customer_id = 2;",
    );
    bob.sync_only(SyncDirection::UploadOnly);
    world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 2");
    bob.sync();
    assert_eq!(bob.rows(CUSTOMERS), [""; 0]);
    assert_converged(&world, &[&bob]);
}

on_both_adapters!(
    i5_a_remote_receives_only_rows_of_its_partitions,
    i5_a_row_that_moves_leaves_one_remote_and_reaches_another,
    i5_partitions_gained_and_lost_come_and_go_whole,
    i5_what_went_up_alone_into_a_partition_that_was_lost_since_goes,
    i5_what_went_up_under_a_schema_that_was_taken_back_leaves_with_its_partition,
    i5_what_a_copy_of_the_file_uploaded_leaves_the_original_with_its_partition,
    i5_a_row_that_lost_without_a_download_leaves_with_its_partition,
    i5_a_change_pending_in_a_lost_partition_is_uploaded_under_the_last_signed_scope,
    i5_an_old_signed_scope_is_refused_and_the_user_keeps_the_row_as_he_wrote_it,
    i5_a_signed_scope_is_spent_when_the_device_presented_the_next,
    i5_a_disabled_user_is_kept_out_and_his_changes_stay_pending,
    i5_a_running_sync_ends_when_its_user_is_disabled_or_its_remote_is_revoked,
    a_customer_that_leaves_the_scope_takes_no_invoice_that_stays_in_it,
);
