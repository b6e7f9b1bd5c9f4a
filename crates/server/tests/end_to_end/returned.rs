//! Downloads of remotes that have something already, over lines that break: of gained partitions, of
//! much that changed, and of tables that come whole because the log does not go back so far. They go on
//! with the next sync, as first ones do, and what is applied is one state of the centre.

use std::ops::ControlFlow;

use tidewater_centre::MarkFrequency;
use tidewater_centre::records::RetentionTimes;
use tidewater_client::SyncDirection;
use tidewater_testing::bad_line::BadLine;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::carriers::{SCHEMES, device_over, everything};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::resumed::parts;
use crate::scenario::{SHOP_PUBLICATION, shop};
use crate::world::{LiveServer, World};

/// A line breaks after so many bytes: after some marks of [`server`].
const LINE_BYTES: usize = 400_000;

/// In the year 2109.
const LONG_AFTER_MS: i64 = 1 << 42;

fn server<B: Backend>(world: &World<B>) -> LiveServer {
    world.server_with(|config| {
        config.server.limits.marks = MarkFrequency {
            bytes: 100_000,
            changes_after_ms: 0,
        }
    })
}

fn insert_customers<B: Backend>(world: &World<B>, region: u64, first: u64, count: u64) {
    let text = "x".repeat(200);
    for first in (first..first + count).step_by(500) {
        let numbers = first..(first + 500);
        let rows = numbers.map(|it| format!("({it}, {region}, 'c{it} {text}', NULL, 1)"));
        let rows = rows.collect::<Vec<_>>().join(", ");
        world.execute(&format!("INSERT INTO customer VALUES {rows}"));
    }
}

/// Bob has regions 2 and 3; another region 1 of a megabyte and a half waits for him.
fn shop_to_gain<B: Backend>() -> World<B> {
    let world = World::<B>::open(shop());
    world.execute("INSERT INTO assignment VALUES ('bob', 3)");
    insert_customers(&world, 1, 10_000, 6_000);
    insert_customers(&world, 2, 20_000, 1_500);
    insert_customers(&world, 3, 30_000, 1_000);
    world
}

/// He gains region 1, loses 3 and keeps 2.
const GAINS: &str = "INSERT INTO assignment VALUES ('bob', 1);
     DELETE FROM assignment WHERE login = 'bob' AND region = 3;";

/// Everything that can happen to rows of a gained, a lost and a kept partition.
fn change<B: Backend>(world: &World<B>, round: u64) {
    for first in [
        10_010 + 20 * round,
        15_900 - 20 * round,
        20_010 + 20 * round,
        30_010 + 20 * round,
    ] {
        let inserted = first + 80_000;
        world.execute(&format!(
            "UPDATE customer SET name = 'changed {round}' WHERE customer_id = {first};
             DELETE FROM customer WHERE customer_id = {first} + 1;
             UPDATE customer SET region = 1 WHERE customer_id = {first} + 2;
             UPDATE customer SET region = 2 WHERE customer_id = {first} + 3;
             UPDATE customer SET region = 3 WHERE customer_id = {first} + 4;
             UPDATE customer SET customer_id = {inserted} WHERE customer_id = {first} + 5;
             INSERT INTO invoice VALUES ({first}, 2, {first}, 'new');
             INSERT INTO product (product_id, name, stock) VALUES ({first}, 'new', 0);"
        ));
    }
}

fn a_gained_partition_goes_on_wherever_it_breaks<B: Backend>() {
    let world = shop_to_gain::<B>();
    let servers = [server(&world), server(&world)];
    let mut whole = world.device("bob");
    whole.network.redirect(servers[0].address);
    let mut bob = world.device("bob");
    bob.network.redirect(servers[0].address);
    whole.sync();
    bob.sync();
    world.execute(GAINS);
    let all = whole.sync().bytes_received;
    let mut breaks = 0;
    loop {
        bob.network.redirect(servers[breaks % 2].address);
        bob.network.plan_cut(Way::Down, LINE_BYTES);
        bob.edit(&format!(
            "UPDATE customer SET name = 'mine {breaks}' WHERE customer_id = 21400 + {breaks};
             UPDATE product SET stock = stock + 1"
        ));
        let outcome = bob.try_sync();
        if let Ok(report) = outcome {
            assert!(!bob.network.finish_plan());
            assert!(report.bytes_received < all / 2, "only the rest comes");
            assert!(report.bytes_kept > 0);
            break;
        }
        assert_eq!(parts(&bob).len(), 1);
        breaks += 1;
        assert!(breaks as u64 <= all / (LINE_BYTES as u64 / 2), "it gets on");
        // He has nothing of it yet, and still all of the other.
        let gained = "SELECT count(*) FROM customer WHERE region = 1";
        assert_eq!(bob.value(gained), "0");
        change(&world, breaks as u64);
        if breaks == 2 {
            // It goes on after the process has ended, too.
            bob.reopen(|| {});
        }
    }
    assert!(breaks >= 2);
    assert!(parts(&bob).is_empty());
    bob.sync();
    whole.sync();
    assert_converged(&world, &[&bob, &whole]);
    let mine = world.rows("SELECT count(*) FROM customer WHERE name LIKE 'mine %'");
    assert_eq!(mine, [(breaks + 1).to_string()]);
}

fn a_gained_partition_that_breaks_after_any_frame_ends_right<B: Backend>() {
    let world = shop_to_gain::<B>();
    let server = server(&world);
    for frame in (0..120).step_by(3) {
        world.execute(
            "DELETE FROM assignment WHERE login = 'bob';
             INSERT INTO assignment VALUES ('bob', 2), ('bob', 3);",
        );
        let mut bob = world.device("bob");
        bob.network.redirect(server.address);
        bob.sync();
        world.execute(GAINS);
        bob.edit(&format!(
            "UPDATE customer SET name = 'mine {frame}' WHERE customer_id IN (21400, 30900)"
        ));
        bob.network
            .plan(Place::frame(Way::Down, frame), Accident::CutInside);
        let outcome = bob.try_sync();
        let was_cut = bob.network.finish_plan();
        assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        change(&world, frame as u64 / 3);
        bob.sync();
        bob.sync();
        bob.discard_refused();
        bob.sync();
        assert_converged(&world, &[&bob]);
        if !was_cut {
            return;
        }
    }
    panic!("a sync of more frames");
}

/// The changes of one table are not sent again once they are there.
fn many_changes_go_on_from_table_to_table<B: Backend>() {
    let world = World::<B>::open(shop());
    insert_customers(&world, 2, 20_000, 3_000);
    let server = server(&world);
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.sync();
    let text = "y".repeat(200);
    world.execute("UPDATE customer SET balance = balance + 1");
    for first in (1_000..3_000).step_by(500) {
        let products = (first..first + 500).map(|it| format!("({it}, 'p{it} {text}', {it})"));
        let products = products.collect::<Vec<_>>().join(", ");
        world.execute(&format!("INSERT INTO product VALUES {products}"));
    }
    // After the customers.
    bob.network.plan_cut(Way::Down, 800_000);
    bob.try_sync().unwrap_err();
    assert_eq!(parts(&bob).len(), 1);
    world.execute(
        "UPDATE customer SET name = 'since' WHERE customer_id = 20007;
         DELETE FROM customer WHERE customer_id = 20008;",
    );
    let report = bob.sync();
    assert!(
        report.bytes_kept > 500_000,
        "{} were kept",
        report.bytes_kept
    );
    assert!(
        report.bytes_received < 600_000,
        "{} came",
        report.bytes_received
    );
    assert_converged(&world, &[&bob]);
}

/// Nor are those that have come of one table, however many there are.
fn many_changes_of_one_table_go_on_wherever_they_break<B: Backend>() {
    let world = World::<B>::open(shop());
    insert_customers(&world, 2, 20_000, 6_000);
    let server = server(&world);
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.sync();
    // One is written and stays what it is: bob may change it without a conflict.
    world.execute(
        "UPDATE customer SET balance = balance + 1 WHERE customer_id <> 20300;
         UPDATE customer SET balance = balance WHERE customer_id = 20300;",
    );
    let mut breaks = 0;
    loop {
        bob.network.plan_cut(Way::Down, LINE_BYTES);
        bob.edit("UPDATE product SET stock = stock + 1 WHERE product_id = 2");
        if let Ok(report) = bob.try_sync() {
            assert!(!bob.network.finish_plan());
            assert!(report.bytes_kept > 3 * LINE_BYTES as u64 / 2);
            break;
        }
        breaks += 1;
        assert!(breaks < 10, "it gets on");
        world.execute(&format!(
            "UPDATE customer SET name = 'since' WHERE customer_id IN (20001 + {breaks}, 25900 + {breaks});
             DELETE FROM customer WHERE customer_id IN (20101 + {breaks}, 25800 + {breaks});
             UPDATE customer SET region = 1 WHERE customer_id IN (20201 + {breaks}, 25700 + {breaks});"
        ));
        if breaks == 1 {
            // An upload without a download is acknowledged meanwhile, and its value stays.
            bob.edit("UPDATE customer SET name = 'alone' WHERE customer_id = 20300");
            bob.sync_only(SyncDirection::UploadOnly);
        }
    }
    assert!(breaks >= 2, "{breaks}");
    let alone = "SELECT name FROM customer WHERE customer_id = 20300";
    assert_eq!(bob.value(alone), "alone");
    bob.sync();
    assert_converged(&world, &[&bob]);
}

/// The same rows by another rule: all come once more. What the application has of its own in the table,
/// and what is refused, stays.
fn a_table_that_comes_whole_goes_on_and_keeps_what_is_the_remotes_own<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let text = "x".repeat(200);
    for first in (1_000..6_000).step_by(500) {
        let products = (first..first + 500).map(|it| format!("({it}, 'p{it} {text}', 10)"));
        let products = products.collect::<Vec<_>>().join(", ");
        world.execute(&format!("INSERT INTO product VALUES {products}"));
    }
    let mut bob = world.synced("bob");
    bob.edit("ALTER TABLE product ADD COLUMN seen TEXT");
    bob.edit("UPDATE product SET seen = 'by bob'");
    // One at each end is refused.
    bob.edit("UPDATE product SET name = ' ' WHERE product_id IN (1001, 5990)");
    bob.sync();
    assert_eq!(bob.refused().len(), 2);
    let by_stock =
        r#"partition = { columns = ["stock"], values = "SELECT DISTINCT stock FROM product" }"#;
    let publication = SHOP_PUBLICATION.replace(r#"partition = "everyone""#, by_stock);
    world.republish(&publication);
    let server = server(&world);
    bob.network.redirect(server.address);
    let mut breaks = 0;
    loop {
        bob.network.plan_cut(Way::Down, LINE_BYTES);
        if let Ok(report) = bob.try_sync() {
            assert!(!bob.network.finish_plan());
            assert!(report.bytes_kept > LINE_BYTES as u64);
            break;
        }
        breaks += 1;
        assert!(breaks < 8, "it gets on");
        world.execute(&format!(
            "UPDATE product SET name = 'since' WHERE product_id IN (1001 + {breaks}, 5980 + {breaks});
             DELETE FROM product WHERE product_id IN (1101 + {breaks}, 5880 + {breaks});"
        ));
    }
    assert!(breaks >= 2, "{breaks}");
    // What was refused was tried once more, because something else is deployed.
    bob.sync();
    assert_eq!(bob.refused().len(), 2);
    let unseen = "SELECT count(*) FROM product WHERE seen IS NULL";
    assert_eq!(bob.value(unseen), "0");
    bob.discard_refused();
    bob.sync();
    assert_converged(&world, &[&bob]);
}

/// Breaks the download of what bob gains.
fn broken<B: Backend>(world: &World<B>, server: &LiveServer) -> Device {
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.sync();
    world.execute(GAINS);
    bob.network.plan_cut(Way::Down, 2 * LINE_BYTES);
    bob.try_sync().unwrap_err();
    assert_eq!(parts(&bob).len(), 1);
    bob
}

fn a_scope_that_changes_meanwhile_leaves_nothing_of_the_part<B: Backend>() {
    let world = shop_to_gain::<B>();
    let server = server(&world);
    let mut bob = broken(&world, &server);
    // What he had gained he loses before it has arrived.
    world.execute(
        "DELETE FROM assignment WHERE login = 'bob' AND region = 1;
         INSERT INTO assignment VALUES ('bob', 3);",
    );
    change(&world, 1);
    let report = bob.sync();
    assert_eq!(report.bytes_kept, 0);
    assert!(parts(&bob).is_empty());
    bob.sync();
    assert_converged(&world, &[&bob]);
}

fn another_schema_or_a_pruned_log_leaves_nothing_of_the_part<B: Backend>() {
    let mut world = shop_to_gain::<B>();
    let mut bob = {
        let server = server(&world);
        broken(&world, &server)
    };
    world.execute("ALTER TABLE product ADD COLUMN colour TEXT");
    world.republish(SHOP_PUBLICATION);
    change(&world, 1);
    let server = server(&world);
    bob.network.redirect(server.address);
    bob.network.plan_cut(Way::Down, 2 * LINE_BYTES);
    bob.try_sync().unwrap_err();
    // And once more: there is a part again, and no log.
    change(&world, 2);
    let nothing = RetentionTimes {
        log_ms: 0,
        history_ms: 0,
        conflicts_ms: 0,
    };
    let pruned = server.ask(async |centre| centre.prune(nothing, LONG_AFTER_MS).await);
    pruned.unwrap();
    change(&world, 3);
    bob.sync();
    bob.sync();
    assert_converged(&world, &[&bob]);
}

/// A part is of use only to the state of the file in which it was begun.
fn a_download_that_was_applied_meanwhile_leaves_nothing_of_the_part<B: Backend>() {
    let world = shop_to_gain::<B>();
    let server = server(&world);
    let mut bob = broken(&world, &server);
    let part = parts(&bob).remove(0);
    let bytes = std::fs::read(&part).unwrap();
    change(&world, 1);
    bob.sync();
    change(&world, 2);
    std::fs::write(&part, bytes).unwrap();
    let report = bob.sync();
    assert_eq!(report.bytes_kept, 0);
    assert!(parts(&bob).is_empty());
    assert_converged(&world, &[&bob]);
}

fn a_gained_partition_gets_through_on_every_carrier<B: Backend>() {
    let world = World::<B>::open(shop());
    for first in (50_000..50_040).step_by(10) {
        let text = "z".repeat(100_000);
        let rows = (first..first + 10).map(|it| format!("({it}, 1, '{text}', NULL, 1)"));
        let rows = rows.collect::<Vec<_>>().join(", ");
        world.execute(&format!("INSERT INTO customer VALUES {rows}"));
    }
    let everything = everything(&world);
    for scheme in SCHEMES {
        let line = BadLine::start(everything.address).unwrap();
        line.carry(700_000);
        let mut bob = device_over(&world, &everything, (scheme, &line));
        bob.sync();
        world.execute("INSERT INTO assignment VALUES ('bob', 1)");
        let synced = bob.remote.sync(&mut |_| ControlFlow::Continue(()));
        synced.unwrap_or_else(|error| panic!("{scheme}: {error:?}"));
        assert!(line.cuts() > 3, "{scheme}: {} cuts", line.cuts());
        let passed = line.passed();
        assert!(passed < 8_000_000, "{scheme}: {passed} bytes came");
        assert_converged(&world, &[&bob]);
        world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 1");
    }
}

on_both_adapters!(
    a_gained_partition_goes_on_wherever_it_breaks,
    a_gained_partition_that_breaks_after_any_frame_ends_right,
    many_changes_go_on_from_table_to_table,
    many_changes_of_one_table_go_on_wherever_they_break,
    a_table_that_comes_whole_goes_on_and_keeps_what_is_the_remotes_own,
    a_scope_that_changes_meanwhile_leaves_nothing_of_the_part,
    another_schema_or_a_pruned_log_leaves_nothing_of_the_part,
    a_download_that_was_applied_meanwhile_leaves_nothing_of_the_part,
    a_gained_partition_gets_through_on_every_carrier,
);
