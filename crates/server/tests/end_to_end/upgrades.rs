//! Files and databases of earlier versions: they are opened, upgraded, and go on where
//! they stopped.
//!
//! `fixtures/N` holds, for each adapter, a centre and the files of two remotes in the middle
//! of their work. Fixtures are only ever added: whoever changes the format of the remote's
//! file or of the server's state runs this test with `TIDEWATER_ADD_FIXTURES=1`, which makes
//! the next one with the current program, and commits it. `fixtures/SHA256SUMS` has a line for
//! each file, so that none is changed unnoticed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use tidewater_protocol::message::Control;
use tidewater_remote::SyncDirection;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, Postgres, Sqlite, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::shop;
use crate::world::World;

const SUMS: &str = "SHA256SUMS";
const ADD: &str = "TIDEWATER_ADD_FIXTURES";

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The adapter's folders of all fixtures, oldest first.
fn folders<B: Backend>() -> Vec<PathBuf> {
    let mut numbers: Vec<u32> = std::fs::read_dir(fixtures())
        .expect("the fixtures are there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let folder = |number: u32| fixtures().join(number.to_string()).join(B::NAME);
    let folders = numbers.into_iter().map(folder);
    folders.filter(|folder| folder.is_dir()).collect()
}

/// A centre and two remotes in the middle of everything that a file can hold: changes
/// acknowledged, pending, refused, arrived without an answer, and lost on the way; rows that
/// wait to be asked for again.
fn make<B: Backend>(folder: &Path) {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("UPDATE customer SET name = 'acknowledged' WHERE customer_id = 1");
    ada.edit("INSERT INTO customer VALUES (50, 1, 'refused', 'two@x', '0.00')");
    assert_eq!(ada.sync().refused, 1);
    // What comes collides with what the user has inserted: it is stale.
    ada.edit("CREATE UNIQUE INDEX of_the_user ON product (name)");
    ada.edit("INSERT INTO product VALUES (60, 'twice', 1)");
    world.execute("INSERT INTO product VALUES (61, 'twice', 5)");
    ada.remote.set_direction(SyncDirection::DownloadOnly);
    ada.sync();
    ada.remote.set_direction(SyncDirection::Both);
    assert_ne!(ada.value("SELECT count(*) FROM tidewater_stale"), "0");
    // Applied, but the answer never came.
    ada.edit("UPDATE product SET stock = stock + 1 WHERE product_id = 1");
    let answer = |control: &Control| matches!(control, Control::ResultEnd(_));
    let place = Place::message(Way::Down, answer);
    ada.network.plan(place, Accident::CutInside);
    ada.try_sync().expect_err("the answer does not come");
    assert!(ada.network.finish_plan());
    ada.edit("UPDATE invoice SET note = 'pending' WHERE invoice_id = 1");
    ada.edit("DELETE FROM invoice WHERE invoice_id = 3");
    // Sent, but it never arrived.
    bob.edit("UPDATE customer SET name = 'taken' WHERE customer_id = 2");
    let sent = |control: &Control| matches!(control, Control::UploadEnd(_));
    let place = Place::message(Way::Up, sent);
    bob.network.plan(place, Accident::CutInside);
    bob.try_sync().expect_err("the upload does not arrive");
    assert!(bob.network.finish_plan());
    bob.edit("INSERT INTO invoice VALUES (40, 2, 2, 'pending')");
    world.execute("UPDATE product SET stock = 7 WHERE product_id = 3");
    for device in [&ada, &bob] {
        save_sqlite(&device.path, &folder.join(format!("{}.db", device.user)));
    }
    world.shut_down().save(folder);
}

/// Makes the next fixture if the environment says so.
#[test]
fn a_fixture_is_added_on_request() {
    if std::env::var_os(ADD).is_none() {
        return;
    }
    let number = 1 + folders::<Sqlite>().len();
    let folder = fixtures().join(number.to_string());
    for (name, make) in [
        (Sqlite::NAME, make::<Sqlite> as fn(&Path)),
        (Postgres::NAME, make::<Postgres>),
    ] {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        make(&folder);
    }
    std::fs::write(fixtures().join(SUMS), sums(&fixtures())).expect("the folder can be written");
}

/// What `sha256sum` prints for every fixture's files.
fn sums(folder: &Path) -> String {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(inner).expect("the fixtures are there") {
            let path = entry.expect("the fixtures can be read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).expect("it is in the folder");
            let name = name.to_string_lossy().replace('\\', "/");
            let bytes = std::fs::read(&path).expect("the fixtures can be read");
            let hash = digest(&SHA256, &bytes);
            let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
            files.insert(name, hash);
        }
    }
    files.remove(SUMS);
    let lines = files.iter().map(|(name, hash)| format!("{hash}  {name}\n"));
    lines.collect()
}

#[test]
fn committed_fixtures_are_what_they_were() {
    let committed = include_str!("../fixtures/SHA256SUMS");
    assert_eq!(sums(&fixtures()), committed);
}

fn every_earlier_version_is_upgraded_and_goes_on_where_it_stopped<B: Backend>() {
    for folder in folders::<B>() {
        let scenario = shop();
        let world = World::restored(B::restore(&folder), scenario);
        let mut ada = world.device_from("ada", &folder.join("ada.db"));
        let mut bob = world.device_from("bob", &folder.join("bob.db"));
        assert_goes_on(&world, &mut ada, &mut bob);
    }
}

/// What [`make`] left is continued, nothing of it lost or done twice.
fn assert_goes_on<B: Backend>(world: &World<B>, ada: &mut Device, bob: &mut Device) {
    let id = ada.remote.account().expect("it has one").remote_id;
    let stock = "SELECT stock FROM product WHERE product_id = 1";
    assert_eq!(world.rows(stock), ["11"], "the first answer was lost");
    let refused = |ada: &mut Device| {
        let refused = ada.refused();
        let keys = refused.into_iter().map(|it| (it.table, it.key));
        keys.collect::<Vec<_>>()
    };
    let expected = [("customer".to_owned(), "[50]".to_owned())];
    assert_eq!(refused(ada), expected);
    // What another application does to the upgraded file is tracked like before.
    ada.edit("UPDATE product SET name = 'mine' WHERE product_id = 60");
    ada.edit("UPDATE customer SET name = 'later' WHERE customer_id = 3");
    ada.sync();
    bob.sync();
    ada.sync();
    assert_eq!(ada.remote.account().expect("it has one").remote_id, id);
    assert_eq!(world.rows(stock), ["11"]);
    assert_eq!(refused(ada), expected);
    assert_eq!((ada.pending(), bob.pending()), (0, 0));
    assert_eq!(ada.value("SELECT count(*) FROM tidewater_stale"), "0");
    let customers = "SELECT name FROM customer ORDER BY customer_id";
    assert_eq!(world.rows(customers), ["acknowledged", "taken", "later"]);
    let invoices = "SELECT invoice_id, note FROM invoice ORDER BY invoice_id";
    assert_eq!(
        world.rows(invoices),
        ["1|pending", "2|b", "4|d", "40|pending"]
    );
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    let now = ["1|pen|11", "2|ink|20", "3|cap|7", "60|mine|1", "61|twice|5"];
    assert_eq!(world.rows(products), now);
    ada.discard_refused();
    ada.sync();
    assert_converged(world, &[ada, bob]);
}

on_both_adapters!(every_earlier_version_is_upgraded_and_goes_on_where_it_stopped);
