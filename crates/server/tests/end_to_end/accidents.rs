//! Accidents of a remote's file that users cause: it is moved, copied, restored, synced twice
//! at once, held by the application's transactions; and changed at every stage of a sync.
//!
//! Whatever happens, nothing is lost or done twice, who cannot go on says so, and a retry
//! works. Accidents of its disk are the affair of `disks`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidewater_centre::records::IncidentKind;
use tidewater_client::ClientError;
use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, execute_sqlite, open_sqlite, rows_sqlite, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

/// Whether a message is the one that is waited for.
type IsIt = fn(&Control) -> bool;

/// No sync of these tests has so many frames in one direction.
const MANY_FRAMES: usize = 100;

/// An insert and an update here, and one of each in the centre.
fn make_a_day<B: Backend>(world: &World<B>, ada: &Device, ledger: &mut Ledger, day: i64) {
    let (own, theirs) = (1_000 + day, 5_000 + day);
    ada.edit(&format!(
        "INSERT INTO product VALUES ({own}, 'own {day}', 0);
         UPDATE product SET name = 'updated {day}' WHERE product_id = 1;"
    ));
    ledger.product("insert", own, &format!("own {day}"));
    ledger.product("update", 1, &format!("updated {day}"));
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0);
         UPDATE product SET name = 'elsewhere {day}' WHERE product_id = 2;"
    ));
}

fn remote_id(device: &mut Device) -> Option<tidewater_protocol::RemoteId> {
    device.remote.account().expect("it can be read").remote_id
}

/// It says why it did not happen, and what to do.
#[track_caller]
fn assert_told(error: &ClientError, code: Code) {
    assert_eq!(error.code(), code, "{error}");
    assert!(code.is_transient());
    assert!(error.hint().contains("sync again"), "{}", error.hint());
}

/// One sync stalls at each of its frames, and another of the same file is done meanwhile.
fn i1_two_syncs_of_one_file_at_any_frame_upload_once_and_the_loser_says_so<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    let (mut day, mut lost) = (0, 0);
    for way in [Way::Up, Way::Down] {
        for frame in 0..MANY_FRAMES {
            make_a_day(&world, &ada, &mut ledger, day);
            day += 1;
            let mut first = ada.second_handle();
            network.plan(Place::frame(way, frame), Accident::Stall);
            let stalled = std::thread::scope(|scope| {
                let sync = scope.spawn(|| {
                    let outcome = first.sync(&mut |_| std::ops::ControlFlow::Continue(()));
                    network.give_up_stall();
                    outcome
                });
                let stalled = network.wait_for_stall().is_ok();
                // The second takes the same upload, or what is left to do.
                ada.sync();
                network.release();
                let outcome = sync.join().expect("the sync ends");
                if let Err(error) = outcome {
                    assert!(stalled, "{error}");
                    assert_told(&error, Code::SyncInProgress);
                    lost += 1;
                }
                stalled
            });
            network.finish_plan();
            ledger.assert_somewhere(&world, &mut ada);
            // The loser's retry.
            first
                .sync(&mut |_| std::ops::ControlFlow::Continue(()))
                .expect("nothing is in its way");
            ledger.assert_settled(&world, &mut ada);
            assert_converged(&world, &[&ada]);
            if !stalled {
                assert!(frame > 4, "a sync has more than {frame} frames");
                break;
            }
        }
    }
    assert!(lost > 5, "{lost} syncs were overtaken");
    assert_eq!(world.server.conflicts().len(), 0);
}

/// Many at once, in threads of one process, whoever comes first; and each again and again
/// until it is through.
fn many_syncs_of_one_file_at_once_all_get_through<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let mut ledger = Ledger::default();
    for day in 0..4 {
        make_a_day(&world, &ada, &mut ledger, day);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut remote = ada.second_handle();
                scope.spawn(move || {
                    for _ in 0..50 {
                        match remote.sync(&mut |_| std::ops::ControlFlow::Continue(())) {
                            Ok(_) => return,
                            Err(error) => {
                                assert!(error.code().is_transient(), "{error}: {}", error.hint())
                            }
                        }
                    }
                    panic!("it is overtaken again and again");
                });
            }
        });
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
    }
    assert_eq!(world.server.conflicts().len(), 0);
}

/// Interleaving 12. The application inserts, updates and deletes at each frame of a sync, which does
/// not notice: what it changes goes up with this sync or the next, and stays.
fn edits_at_any_frame_of_a_sync_are_kept_and_go_up_once<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    let mut day = 0;
    for way in [Way::Up, Way::Down] {
        for frame in 0..MANY_FRAMES {
            make_a_day(&world, &ada, &mut ledger, day);
            let application = ada.another_application();
            network.plan(Place::frame(way, frame), Accident::Stall);
            let stalled = std::thread::scope(|scope| {
                let sync = scope.spawn(|| {
                    let report = ada.sync();
                    network.give_up_stall();
                    report
                });
                let stalled = network.wait_for_stall().is_ok();
                // A new row, the row that is on its way up, and the one on its way down, of
                // which the first to arrive wins.
                let own = 1_000 + day;
                application.edit(&format!(
                    "INSERT INTO product VALUES ({own} + 2000, 'meanwhile {day}', 0);
                     UPDATE product SET name = 'again {day}' WHERE product_id = {own};
                     SAVEPOINT undone;
                     UPDATE product SET name = 'undone';
                     DELETE FROM invoice;
                     ROLLBACK TO undone;
                     RELEASE undone;
                     UPDATE product SET name = 'mine {day}' WHERE product_id = 2;
                     DELETE FROM product WHERE product_id = {own} - 1;"
                ));
                network.release();
                sync.join().expect("it syncs");
                stalled
            });
            let own = 1_000 + day;
            ledger.product("insert", own + 2_000, &format!("meanwhile {day}"));
            ledger.product("update", own, &format!("again {day}"));
            ledger.product("update", 2, &format!("mine {day}"));
            if day > 0 {
                ledger.product("delete", own - 1, "");
            }
            network.finish_plan();
            ledger.assert_somewhere(&world, &mut ada);
            let name = ada.value(&format!(
                "SELECT name FROM product WHERE product_id = {own}"
            ));
            assert_eq!(name, format!("again {day}"));
            ada.sync();
            ada.sync();
            ledger.assert_settled(&world, &mut ada);
            assert_converged(&world, &[&ada]);
            day += 1;
            if !stalled {
                assert!(frame > 4, "a sync has more than {frame} frames");
                break;
            }
        }
    }
}

/// Only who has the file alone can change this.
fn set_journal(device: &mut Device, mode: &str) {
    let path = device.path.clone();
    device.reopen(|| {
        let set = format!("PRAGMA journal_mode = {mode}");
        assert_eq!(rows_sqlite(&open_sqlite(&path), &set), [mode]);
    });
}

/// The application begins to write when the server has let the sync in, and goes on for as
/// long as anybody waits. Also where it has given up write-ahead logging.
fn an_application_that_holds_a_write_transaction_is_named_and_nothing_is_half_done<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    for (day, mode) in (0..).zip(["wal", "delete", "truncate"]) {
        set_journal(&mut ada, mode);
        make_a_day(&world, &ada, &mut ledger, day);
        let welcome = |control: &Control| matches!(control, Control::Welcome(_));
        network.plan(Place::message(Way::Down, welcome), Accident::Stall);
        let application = open_sqlite(&ada.path);
        let before = ada.rows("SELECT * FROM product ORDER BY product_id");
        let error = std::thread::scope(|scope| {
            let sync = scope.spawn(|| ada.try_sync());
            network.wait_for_stall().expect("the server lets it in");
            execute_sqlite(&application, "BEGIN IMMEDIATE");
            execute_sqlite(
                &application,
                "UPDATE product SET stock = 9 WHERE product_id = 3",
            );
            network.release();
            sync.join()
                .expect("the sync ends")
                .expect_err("it is locked out")
        });
        assert_told(&error, Code::RemoteLocked);
        assert!(error.hint().contains("transaction"), "{}", error.hint());
        execute_sqlite(&application, "ROLLBACK");
        assert_eq!(
            ada.rows("SELECT * FROM product ORDER BY product_id"),
            before
        );
        ledger.assert_somewhere(&world, &mut ada);
        ada.sync();
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
    }
}

/// With write-ahead logging a reader is in nobody's way and keeps what it sees. With a rollback
/// journal it is in the way of the commit, which is told.
fn an_application_that_reads_for_minutes_is_in_the_way_only_of_a_rollback_journal<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let mut ledger = Ledger::default();
    for (day, mode) in (0..).zip(["wal", "delete"]) {
        set_journal(&mut ada, mode);
        make_a_day(&world, &ada, &mut ledger, day);
        let reader = open_sqlite(&ada.path);
        execute_sqlite(&reader, "BEGIN");
        let all = "SELECT * FROM product ORDER BY product_id";
        let seen = rows_sqlite(&reader, all);
        let outcome = ada.try_sync();
        assert_eq!(rows_sqlite(&reader, all), seen);
        match mode {
            "wal" => drop(outcome.expect("a reader is not in the way")),
            _ => assert_told(&outcome.expect_err("it is"), Code::RemoteLocked),
        }
        execute_sqlite(&reader, "COMMIT");
        ledger.assert_somewhere(&world, &mut ada);
        ada.sync();
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
    }
}

/// A database's files, whatever there is beside it.
fn files(path: &Path) -> Vec<PathBuf> {
    let with = |end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let files = ["", "-wal", "-shm", "-journal"].map(with);
    files.into_iter().filter(|file| file.exists()).collect()
}

/// Copies a database as a file manager does, while nobody writes: with what is in its log.
fn copy_files(from: &Path, to: &Path) {
    for file in files(from) {
        let end = file.display().to_string()[from.display().to_string().len()..].to_owned();
        if end != "-shm" {
            let to = PathBuf::from(format!("{}{end}", to.display()));
            std::fs::copy(&file, to).expect("it can be copied");
        }
    }
}

/// A file is moved to another folder under another name, with changes that are only in its
/// write-ahead log.
fn a_moved_file_goes_on_where_it_is<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let id = remote_id(&mut ada);
    let folder = TempDir::new().expect("a temporary folder");
    let elsewhere = folder.path().join("another name.sqlite");
    let mut ledger = Ledger::default();
    // As long as it is open, SQLite leaves the log as it is.
    let open = open_sqlite(&ada.path);
    make_a_day(&world, &ada, &mut ledger, 0);
    assert!(files(&ada.path).len() > 1, "there is a log");
    copy_files(&ada.path, &elsewhere);
    drop(open);
    let place = ada.path.clone();
    ada.reopen(|| {
        for file in files(&place) {
            std::fs::remove_file(file).expect("it can be moved");
        }
    });
    let mut ada = Device::at(&elsewhere, &ada);
    ada.sync();
    assert_eq!(remote_id(&mut ada), id);
    ledger.assert_settled(&world, &mut ada);
    make_a_day(&world, &ada, &mut ledger, 1);
    ada.sync();
    ledger.assert_settled(&world, &mut ada);
    assert_converged(&world, &[&ada]);
    assert_eq!(world.server.conflicts().len(), 0);
}

/// Where a file was when it was copied.
#[derive(Clone, Copy, Debug)]
enum At {
    /// With changes that no sync has seen.
    Pending,
    /// Its upload was lost on the way.
    Undelivered,
    /// Its upload was applied, and the answer was lost.
    Unanswered,
}

/// A file is copied in the middle of its work, and both go on, either one first.
fn both_copies_of_a_file_with_pending_changes_go_on<B: Backend>() {
    for at in [At::Pending, At::Undelivered, At::Unanswered] {
        for copy_first in [false, true] {
            let world = World::<B>::open(audited_shop::<B>());
            let mut ada = world.synced("ada");
            let mut ledger = Ledger::default();
            make_a_day(&world, &ada, &mut ledger, 0);
            let cut: Option<(Way, IsIt)> = match at {
                At::Pending => None,
                At::Undelivered => Some((Way::Up, |it| matches!(it, Control::UploadEnd(_)))),
                At::Unanswered => Some((Way::Down, |it| matches!(it, Control::ResultEnd(_)))),
            };
            if let Some((way, is_it)) = cut {
                let place = Place::message(way, is_it);
                ada.network.plan(place, Accident::CutInside);
                ada.try_sync().expect_err("it is cut");
                assert!(ada.network.finish_plan());
            }
            let folder = TempDir::new().expect("a temporary folder");
            let path = folder.path().join("copy.db");
            copy_files(&ada.path, &path);
            let mut copy = Device::at(&path, &ada);
            // Each has changes of its own, too.
            ada.edit("INSERT INTO product VALUES (7001, 'of the first', 0)");
            copy.edit("INSERT INTO product VALUES (7002, 'of the copy', 0)");
            copy.edit("UPDATE customer SET name = 'by the copy' WHERE customer_id = 1");
            let mut both = [&mut ada, &mut copy];
            if copy_first {
                both.reverse();
            }
            for _ in 0..3 {
                for device in &mut both {
                    device.sync();
                }
            }
            assert_eq!((ada.pending(), copy.pending()), (0, 0), "{at:?}");
            assert_ne!(remote_id(&mut ada), remote_id(&mut copy), "{at:?}");
            // What both had pending took effect once.
            for line in [
                "insert|1000|own 0",
                "update|1|updated 0",
                "insert|7001|of the first",
            ] {
                let count = format!("SELECT count(*) FROM audit WHERE line = 'product|{line}'");
                assert_eq!(world.rows(&count), ["1"], "{at:?} {line}");
            }
            let names = "SELECT name FROM product WHERE product_id > 7000 ORDER BY product_id";
            assert_eq!(world.rows(names), ["of the first", "of the copy"]);
            assert_converged(&world, &[&ada, &copy]);
        }
    }
}

/// A copy of last week takes the place of the file, more than once, and with a log that is
/// not its own missing.
fn a_file_that_is_restored_again_and_again_goes_on<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let folder = TempDir::new().expect("a temporary folder");
    let backup = folder.path().join("backup.db");
    ada.edit("UPDATE product SET name = 'in the backup' WHERE product_id = 1");
    save_sqlite(&ada.path, &backup);
    let mut ids = vec![remote_id(&mut ada)];
    for round in 0..3 {
        let key = 100 + round;
        ada.edit(&format!("INSERT INTO product VALUES ({key}, 'after', 0)"));
        ada.edit(&format!(
            "UPDATE product SET stock = {key} WHERE product_id = 2"
        ));
        ada.sync();
        let place = ada.path.clone();
        ada.reopen(|| {
            for file in files(&place) {
                std::fs::remove_file(file).expect("it can be removed");
            }
            std::fs::copy(&backup, &place).expect("it can be restored");
        });
        // Work of today on the file of last week.
        ada.edit(&format!(
            "UPDATE customer SET name = 'round {round}' WHERE customer_id = 1;
             INSERT INTO invoice VALUES ({key}, 1, 1, 'today')"
        ));
        ada.sync();
        ada.sync();
        assert_eq!(ada.pending(), 0);
        let stock = "SELECT stock FROM product WHERE product_id = 2";
        assert_eq!(world.rows(stock), [key.to_string()]);
        let name = "SELECT name FROM customer WHERE customer_id = 1";
        assert_eq!(world.rows(name).len(), 1);
        assert_converged(&world, &[&ada]);
        ids.push(remote_id(&mut ada));
    }
    let names = "SELECT count(*) FROM product WHERE name = 'after'";
    assert_eq!(world.rows(names), ["3"]);
    let today = "SELECT count(*) FROM invoice WHERE note = 'today'";
    assert_eq!(world.rows(today), ["3"]);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "each restored file is a remote of its own");
}

/// Two syncs of a restored file at once: both are told that they start over.
fn two_syncs_of_a_restored_file_at_once_end_equal<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("copy.db");
    save_sqlite(&ada.path, &path);
    ada.edit("UPDATE product SET stock = 5 WHERE product_id = 1");
    ada.sync();
    let mut copy = Device::at(&path, &ada);
    copy.edit("INSERT INTO product VALUES (7002, 'of the copy', 0)");
    let mut other = copy.second_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(other.sync(&mut |_| std::ops::ControlFlow::Continue(()))));
        drop(copy.try_sync());
    });
    copy.sync();
    ada.sync();
    copy.sync();
    assert_eq!(copy.pending(), 0);
    let line = "SELECT count(*) FROM audit WHERE line = 'product|insert|7002|of the copy'";
    assert_eq!(world.rows(line), ["1"]);
    assert_converged(&world, &[&ada, &copy]);
    let incidents = world.server.incidents(1);
    assert_eq!(incidents, [(IncidentKind::NewIdentity, "ada".to_owned())]);
}

on_both_adapters!(
    i1_two_syncs_of_one_file_at_any_frame_upload_once_and_the_loser_says_so,
    many_syncs_of_one_file_at_once_all_get_through,
    edits_at_any_frame_of_a_sync_are_kept_and_go_up_once,
    an_application_that_holds_a_write_transaction_is_named_and_nothing_is_half_done,
    an_application_that_reads_for_minutes_is_in_the_way_only_of_a_rollback_journal,
    a_moved_file_goes_on_where_it_is,
    both_copies_of_a_file_with_pending_changes_go_on,
    a_file_that_is_restored_again_and_again_goes_on,
    two_syncs_of_a_restored_file_at_once_end_equal,
);
