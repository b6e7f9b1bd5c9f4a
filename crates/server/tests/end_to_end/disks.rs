//! Accidents of a remote's disk: the process that syncs is killed at every single write, and
//! a disk that is full at every single write.
//!
//! The disk is a whole process's, so the remote syncs in one of its own: this very program,
//! which runs the one test that is meant for it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tidewater_client::{Remote, RetryPolicy};
use tidewater_protocol::Code;
use tidewater_testing::disk::{Disk, DiskFault, KILLED};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{PUBLICATION, audited_shop};
use crate::world::{PASSWORD, World};

/// How the child process is told what to do.
const CHILD: &str = "TIDEWATER_TEST_OF_A_DISK";

/// No sync of these tests has so many writes.
const MANY_WRITES: u64 = 2_000;

/// What a child does: `kill N FILE URL USER` or `full FILE URL USER`.
fn child(task: &[&str]) -> Output {
    let program = std::env::current_exe().expect("a test has a program");
    Command::new(program)
        .args(["--exact", "disks::what_another_process_does", "--nocapture"])
        .env(CHILD, task.join("\n"))
        .output()
        .expect("the program starts")
}

/// Nothing by itself: the other tests of this file run it in a process of its own.
#[test]
fn what_another_process_does() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let disk = Disk::install();
    match task.split('\n').collect::<Vec<_>>()[..] {
        ["kill", write, file, url, user] => {
            let write = write.parse().expect("a number");
            disk.fail_at(write, DiskFault::Kill);
            let mut remote = open(Path::new(file), url, user);
            sync(&mut remote).expect("nothing else goes wrong");
        }
        ["full", file, url, user] => fill(disk, Path::new(file), url, user),
        ref other => panic!("no such task: {other:?}"),
    }
}

fn open(file: &Path, url: &str, user: &str) -> Remote {
    let mut remote = Remote::open(file).expect("a file can be made");
    remote
        .subscribe(url, user, &[PUBLICATION])
        .expect("a remote can subscribe");
    remote.set_password(PASSWORD);
    remote.set_retry(RetryPolicy::Off);
    remote
}

fn sync(remote: &mut Remote) -> Result<(), tidewater_client::ClientError> {
    let report = remote.sync(&mut |_| ControlFlow::Continue(()));
    report.map(drop)
}

/// On the remote an insert, an update and a delete; in the centre, too.
fn make_a_day<B: Backend>(world: &World<B>, ada: &Device, ledger: &mut Ledger, day: i64) {
    let (own, theirs) = (1_000 + day, 5_000 + day);
    ada.edit(&format!(
        "INSERT INTO product VALUES ({own}, 'own {day}', 0);
         UPDATE product SET name = 'updated {day}' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = {own} - 1;"
    ));
    ledger.product("insert", own, &format!("own {day}"));
    ledger.product("update", 1, &format!("updated {day}"));
    if day > 0 {
        ledger.product("delete", own - 1, "");
    }
    // Rows that fill pages, so that there is more to write.
    let long = format!("{day} ").repeat(1_000);
    for key in 0..4 {
        let (own, theirs) = (9_000 + key, 9_100 + key);
        let write = |key: i64| match day {
            0 => format!("INSERT INTO product VALUES ({key}, '{long}', 0)"),
            _ => format!("UPDATE product SET name = '{long}' WHERE product_id = {key}"),
        };
        ada.edit(&write(own));
        world.execute(&write(theirs));
    }
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0);
         UPDATE product SET name = 'elsewhere {day}' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = {theirs} - 1;"
    ));
}

fn assert_whole(ada: &Device) {
    assert_eq!(ada.rows("PRAGMA integrity_check"), ["ok"]);
}

/// The process that syncs is killed in the middle of its n-th write, for every n. The file is
/// whole, every change is somewhere, and the next sync settles them all, once. (I1, I2)
fn i1_a_remote_killed_at_any_write_loses_nothing_and_does_nothing_twice<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let mut ledger = Ledger::default();
    // What the centre is makes no difference to the remote's writes: every one of them is
    // tried with the quicker.
    let step = if B::NAME == "sqlite" { 1 } else { 7 };
    for (day, write) in (0..).zip((1..MANY_WRITES).step_by(step)) {
        make_a_day(&world, &ada, &mut ledger, day);
        let (path, url) = (ada.path.clone(), ada.network.url());
        let mut killed = false;
        ada.reopen(|| killed = kill_at(write, &path, &url));
        assert_whole(&ada);
        ledger.assert_somewhere(&world, &mut ada);
        ada.sync();
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
        if !killed {
            assert!(write > 20, "a sync has more than {write} writes");
            return;
        }
    }
    panic!("a sync of more than {MANY_WRITES} writes");
}

/// Whether the process was killed before its sync was over.
fn kill_at(write: u64, path: &Path, url: &str) -> bool {
    let path = path.to_str().expect("it is UTF-8");
    let output = child(&["kill", &write.to_string(), path, url, "ada"]);
    match output.status.code() {
        Some(0) => false,
        Some(KILLED) => true,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The same for the first sync, which makes the file and applies what comes as it comes.
fn a_first_sync_killed_at_any_write_can_be_done_again<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let step = if B::NAME == "sqlite" { 3 } else { 23 };
    for write in (1..MANY_WRITES).step_by(step) {
        let mut ada = world.device("ada");
        let (path, url) = (ada.path.with_extension("new"), ada.network.url());
        let killed = kill_at(write, &path, &url);
        ada = Device::at(&path, &ada);
        ada.sync();
        assert_whole(&ada);
        assert_converged(&world, &[&ada]);
        if !killed {
            assert!(write > 20, "a first sync has more than {write} writes");
            return;
        }
    }
    panic!("a sync of more than {MANY_WRITES} writes");
}

/// From some write on files do not grow any more, for every write of a sync. Each time the
/// error says so, nothing is half done, and the sync goes on as soon as there is space.
fn a_full_disk_at_any_write_is_told_and_the_sync_goes_on_after_it<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let (path, url) = (ada.path.clone(), ada.network.url());
    ada.reopen(|| {
        let path = path.to_str().expect("it is UTF-8");
        let output = child(&["full", path, &url, "ada"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    });
    assert_whole(&ada);
    ada.sync();
    assert_converged(&world, &[&ada]);
    let filled = world.rows("SELECT count(*) FROM product WHERE name LIKE 'full %'");
    assert_ne!(filled, ["0"]);
}

/// The child's part of a full disk. The other remote has a disk without faults only because
/// it syncs while this one's is whole.
fn fill(disk: Disk, file: &Path, url: &str, user: &str) {
    let other: PathBuf = file.with_extension("other");
    let mut other_remote = open(&other, url, user);
    sync(&mut other_remote).expect("a first sync");
    for write in 1..MANY_WRITES {
        let edit = |path: &Path, key: u64| {
            let sql = "INSERT INTO product VALUES (?1, 'full ' || ?1 || hex(randomblob(3000)), 0)";
            let connection = rusqlite::Connection::open(path).expect("the file is there");
            connection.execute(sql, [key]).expect("it can be written");
        };
        edit(&other, 20_000 + write);
        sync(&mut other_remote).expect("its disk is whole");
        edit(file, 10_000 + write);
        let mut remote = open(file, url, user);
        let checkpoints = |path: &Path| -> Vec<u8> {
            let connection = rusqlite::Connection::open(path).expect("the file is there");
            let sql = "SELECT checkpoint FROM tidewater_subscription";
            connection
                .query_row(sql, [], |row| row.get(0))
                .expect("it has one")
        };
        let before = checkpoints(file);
        disk.fail_at(write, DiskFault::Full);
        let outcome = sync(&mut remote);
        let failed = disk.heal();
        if let Err(error) = &outcome {
            let told = format!("{error}: {}", error.hint());
            assert_eq!(error.code(), Code::RemoteDatabase, "{told}");
            assert!(told.contains("full"), "{told}");
            assert_eq!(checkpoints(file), before, "half of a download was applied");
        }
        let again = sync(&mut remote);
        assert!(again.is_ok(), "after write {write}: {again:?}");
        assert_ne!(checkpoints(file), before);
        if !failed {
            assert!(outcome.is_ok() && write > 10, "{write}: {outcome:?}");
            return;
        }
    }
    panic!("a sync of more than {MANY_WRITES} writes");
}

on_both_adapters!(
    i1_a_remote_killed_at_any_write_loses_nothing_and_does_nothing_twice,
    a_first_sync_killed_at_any_write_can_be_done_again,
    a_full_disk_at_any_write_is_told_and_the_sync_goes_on_after_it,
);
