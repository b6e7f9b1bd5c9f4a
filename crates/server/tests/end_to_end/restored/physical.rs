//! PostgreSQL, physically: a volume put back under a server, a dump in another cluster, a
//! standby that is promoted with loss.

use tidewater_centre::records::IncidentKind;
use tidewater_testing::Postgres as Cluster;

use super::{backup, redirect};
use crate::backend::{Backend, Postgres};
use crate::compare::assert_converged;
use crate::scenario::shop;
use crate::world::World;

/// The next transaction id that this history of the database hands out.
fn next_id(world: &World<Postgres>) -> u64 {
    let next = world.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())");
    next[0].parse().expect("a transaction id")
}

/// Spends transaction ids.
fn spend(world: &World<Postgres>, count: u64) {
    world.backend.execute_each(&[&format!(
        "DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; \
         END $$"
    )]);
}

/// Interleaving 2: the same system identifier, the same timeline, the same ids once more.
#[test]
fn i1_i3_a_volume_that_is_put_back_loses_and_skips_nothing() {
    let mut cluster = Cluster::start().expect("PostgreSQL starts");
    let url = cluster.fresh_database();
    let mut world = World::open_in(Postgres::at(url.clone()), shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let snapshot = cluster.snapshot().expect("the volume is copied");
    // Its connections broke.
    world.replace(Postgres::at(url.clone()));
    redirect(&world, &[&ada, &bob]);
    ada.edit("INSERT INTO product VALUES (70, 'forgotten', 1)");
    ada.edit("UPDATE customer SET name = 'forgotten' WHERE customer_id = 2");
    ada.sync();
    world.execute("INSERT INTO product VALUES (80, 'of an application', 1)");
    for device in [&mut ada, &mut bob] {
        device.sync();
    }
    assert_converged(&world, &[&ada, &bob]);
    let seen = next_id(&world);

    cluster.put_back(&snapshot).expect("the volume is put back");
    world.replace(Postgres::at(url));
    redirect(&world, &[&ada, &bob]);
    assert!(next_id(&world) < seen, "ids are handed out again");
    // Under ids that both have seen.
    world.execute("INSERT INTO product VALUES (81, 'newer', 1)");
    world.execute("UPDATE product SET stock = 99 WHERE product_id = 1");
    world.execute("DELETE FROM invoice WHERE invoice_id = 2");
    assert!(next_id(&world) <= seen);
    for _ in 0..2 {
        for device in [&mut ada, &mut bob] {
            let report = device.sync();
            assert_eq!((report.conflicts, report.refused), (0, 0));
        }
    }
    assert_converged(&world, &[&ada, &bob]);
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    let expected = [
        "1|pen|99",
        "2|ink|20",
        "3|cap|30",
        "70|forgotten|1",
        "81|newer|1",
    ];
    assert_eq!(world.rows(products), expected);
    let name = "SELECT name FROM customer WHERE customer_id = 2";
    assert_eq!(world.rows(name), ["forgotten"]);
    // Hers are two: her checkpoint was from the lost time, too.
    let incidents = world.server.incidents(3);
    assert!(incidents.contains(&(IncidentKind::UploadsMissing, "ada".into())));
    assert!(incidents.contains(&(IncidentKind::HistoryUnknown, "bob".into())));
}

/// The dump has marks, and the new cluster's ids are far below those of the old one.
#[test]
fn i3_a_dump_restored_to_another_cluster_skips_no_change() {
    let old = Cluster::start().expect("PostgreSQL starts");
    old.create_database("before").expect("a database");
    let mut world = World::open_in(Postgres::at(old.fresh_database()), shop());
    let (mut ada, mut bob) = (world.device("ada"), world.device("bob"));
    spend(&world, 3_000);
    ada.sync();
    bob.sync();
    let reached = next_id(&world);
    let dump = backup(&world);
    ada.edit("INSERT INTO product VALUES (70, 'forgotten', 1)");
    ada.sync();

    let new = Cluster::start().expect("PostgreSQL starts");
    let restored = Postgres::at(new.fresh_database());
    let sql = std::fs::read_to_string(dump.path().join("centre.sql")).expect("the dump is there");
    restored.execute(&sql);
    world.replace(restored);
    redirect(&world, &[&ada, &bob]);
    world.execute("INSERT INTO product VALUES (80, 'new', 1)");
    world.execute("DELETE FROM invoice WHERE invoice_id = 2");
    assert!(next_id(&world) < reached);
    bob.edit("UPDATE customer SET name = 'pending' WHERE customer_id = 2");
    for _ in 0..2 {
        for device in [&mut ada, &mut bob] {
            let report = device.sync();
            assert_eq!((report.conflicts, report.refused), (0, 0));
        }
    }
    assert_converged(&world, &[&ada, &bob]);
    let products = "SELECT product_id FROM product WHERE product_id > 3 ORDER BY 1";
    assert_eq!(world.rows(products), ["70", "80"]);
    let name = "SELECT name FROM customer WHERE customer_id = 2";
    assert_eq!(world.rows(name), ["pending"]);
}

/// An asynchronous standby takes over, and the last moments are missing: another timeline.
#[test]
fn i1_a_failover_with_loss_is_noticed_and_everybody_ends_equal() {
    let mut primary = Cluster::start().expect("PostgreSQL starts");
    let url = primary.fresh_database();
    let mut world = World::open_in(Postgres::at(url.clone()), shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let mut standby = primary.standby().expect("a standby starts");
    // It streams.
    ada.edit("INSERT INTO product VALUES (70, 'replicated', 1)");
    ada.sync();
    let database = url.rsplit('/').next().expect("a URL names a database");
    let on_standby = Postgres::at(standby.url(database));
    let there = "SELECT count(*) FROM product WHERE product_id = 70";
    while on_standby.rows(there) != ["1"] {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // It is behind from now on.
    standby.stop().expect("the standby stops");
    ada.edit("UPDATE product SET name = 'lost' WHERE product_id = 70");
    ada.edit("INSERT INTO product VALUES (71, 'lost', 1)");
    ada.sync();
    bob.sync();
    bob.edit("UPDATE product SET stock = 5 WHERE product_id = 71");
    bob.sync();
    primary.kill().expect("the primary dies");
    standby.restart().expect("the standby starts");
    standby.promote().expect("the standby is promoted");

    world.replace(on_standby);
    redirect(&world, &[&ada, &bob]);
    world.execute("INSERT INTO product VALUES (80, 'after the failover', 1)");
    // Bob comes first: what he changed is not there yet.
    for _ in 0..2 {
        for device in [&mut bob, &mut ada] {
            let report = device.sync();
            assert_eq!(report.refused, 0);
        }
    }
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
    let products = "SELECT product_id, name FROM product WHERE product_id > 3 ORDER BY 1";
    assert_eq!(
        world.rows(products),
        ["70|lost", "71|lost", "80|after the failover"]
    );
    // His change met no row, and is told as such.
    let conflicts = world.server.conflicts();
    let told: Vec<_> = conflicts.iter().map(|it| (&*it.user, &*it.key)).collect();
    assert_eq!(told, [("bob", "[71]")]);
    let incidents = world.server.incidents(4);
    for user in ["ada", "bob"] {
        assert!(incidents.contains(&(IncidentKind::UploadsMissing, user.into())));
    }
}
