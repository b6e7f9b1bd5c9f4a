//! First downloads that break off go on with the next sync, on whatever server, and what is applied
//! is one state of the centre.

use std::ops::ControlFlow;
use std::path::PathBuf;

use tidewater_centre::MarkFrequency;
use tidewater_centre::records::RetentionTimes;
use tidewater_client::{Code, RetryPolicy, SyncPhase};
use tidewater_testing::bad_line::BadLine;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::carriers::{SCHEMES, device_over, everything, go_by};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{SHOP_PUBLICATION, audited_shop, shop};
use crate::world::{LiveServer, World};

/// So many products and customers, of some hundred bytes.
const ROWS: u64 = 5_000;

/// A line breaks after so many bytes: after some marks of [`server`].
const LINE_BYTES: usize = 400_000;

/// In the year 2109.
const LONG_AFTER_MS: i64 = 1 << 42;

fn server<B: Backend>(world: &World<B>) -> LiveServer {
    world.server_with(|config| {
        config.server.limits.marks = MarkFrequency {
            bytes: 100_000,
            changes_after_ms: 0,
        };
    })
}

/// A shop with much to download.
fn large_shop<B: Backend>() -> World<B> {
    let world = World::<B>::open(shop());
    let text = "x".repeat(200);
    for first in (0..ROWS).step_by(500) {
        let numbers = || 1_000 + first..1_500 + first;
        let products = numbers().map(|it| format!("({it}, 'p{it} {text}', {it})"));
        let customers = numbers().map(|it| format!("({it}, {}, 'c{it} {text}', NULL, 1)", it % 4));
        world.execute(&format!(
            "INSERT INTO product VALUES {};
             INSERT INTO customer VALUES {};",
            products.collect::<Vec<_>>().join(", "),
            customers.collect::<Vec<_>>().join(", "),
        ));
    }
    world
}

/// The files beside a device's.
pub(crate) fn parts(device: &Device) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(device.path.parent().unwrap()).unwrap();
    let name = device.path.file_name().unwrap().to_str().unwrap();
    let paths = folder.map(|it| it.unwrap().path());
    paths
        .filter(|it| {
            let it = it.file_name().unwrap().to_str().unwrap();
            it.starts_with(name) && it.contains("-tidewater-part-")
        })
        .collect()
}

/// Everything that can happen to rows that have come, and to rows that have not.
fn change<B: Backend>(world: &World<B>, round: u64) {
    let (early, late) = (1_010 + 20 * round, 5_900 - 20 * round);
    let (moved, taken, inserted) = (early + 4, late + 3, 400 + round);
    for (side, key) in (0..).zip([early, late]) {
        // A unique value moves between rows of both kinds.
        let email = (side + round) % 2;
        world.execute(&format!(
            "UPDATE product SET name = 'changed {round}' WHERE product_id = {key};
             DELETE FROM product WHERE product_id = {key} + 1;
             UPDATE product SET product_id = {key} + 20000 WHERE product_id = {key} + 2;
             UPDATE customer SET region = 2 WHERE customer_id = {key} + 4;
             UPDATE customer SET region = 3 WHERE customer_id = {key} + 5;
             UPDATE customer SET email = NULL WHERE email = '{email}@x';
             UPDATE customer SET email = '{email}@x' WHERE customer_id = {key} + 8 + 2 * {side};"
        ));
    }
    world.execute(&format!(
        "INSERT INTO product VALUES ({inserted}, 'early', 0), (90000 + {round}, 'late', 0);
         INSERT INTO customer VALUES ({inserted}, 2, 'new', NULL, 1);
         INSERT INTO invoice VALUES (700 + {round}, 2, {inserted}, 'new');
         INSERT INTO invoice VALUES (800 + {round}, 2, {moved}, 'of one that moved');
         INSERT INTO invoice VALUES (900 + {round}, 2, {taken}, 'of a late one');"
    ));
}

fn a_first_download_goes_on_wherever_it_breaks_while_the_centre_changes<B: Backend>() {
    let world = large_shop::<B>();
    let servers = [server(&world), server(&world)];
    let mut whole = world.device("bob");
    whole.network.redirect(servers[0].address);
    let all = whole.sync().bytes_received;
    let mut bob = world.device("bob");
    let mut breaks = 0;
    loop {
        let server = &servers[breaks % 2];
        bob.network.redirect(server.address);
        bob.network.plan_cut(Way::Down, LINE_BYTES);
        let outcome = bob.try_sync();
        if let Ok(report) = outcome {
            assert!(!bob.network.finish_plan());
            assert!(report.bytes_received < all / 2, "only the rest comes");
            break;
        }
        assert_eq!(parts(&bob).len(), 1);
        breaks += 1;
        assert!(breaks as u64 <= all / (LINE_BYTES as u64 / 2), "it gets on");
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
}

fn a_download_that_breaks_after_any_frame_ends_right<B: Backend>() {
    let world = large_shop::<B>();
    let server = server(&world);
    for frame in (0..200).step_by(3) {
        let mut bob = world.device("bob");
        bob.network.redirect(server.address);
        bob.network
            .plan(Place::frame(Way::Down, frame), Accident::CutInside);
        let outcome = bob.try_sync();
        let was_cut = bob.network.finish_plan();
        assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        change(&world, frame as u64);
        bob.sync();
        bob.sync();
        assert_converged(&world, &[&bob]);
        if !was_cut {
            return;
        }
    }
    panic!("a sync of more frames");
}

/// By default it goes on by itself.
fn a_first_download_goes_on_by_itself<B: Backend>() {
    let world = large_shop::<B>();
    let server = server(&world);
    let mut bob = world.device("bob");
    bob.remote.set_retry(RetryPolicy::default());
    bob.network.redirect(server.address);
    bob.network.plan_cut(Way::Down, 2 * LINE_BYTES);
    let report = bob.sync();
    assert!(bob.network.happened());
    assert!(report.bytes_kept > LINE_BYTES as u64 / 2);
    assert!(parts(&bob).is_empty());
    assert_converged(&world, &[&bob]);
    // Nothing is gone on with that brought nothing.
    let mut bob = world.device("bob");
    bob.remote.set_retry(RetryPolicy::default());
    bob.network.redirect(server.address);
    bob.network.plan_cut(Way::Down, 10_000);
    bob.try_sync().unwrap_err();
}

/// Rows of 100 KB, and many small ones: so much there is to fetch.
const HEAVY_BYTES: u64 = 60 * 100_000 + 3_000 * 200;

fn heavy_shop<B: Backend>() -> World<B> {
    let world = World::<B>::open(shop());
    for first in (0..60).step_by(10) {
        let numbers = 1_000 + first..1_010 + first;
        let products = numbers.map(|it| format!("({it}, '{}', {it})", "x".repeat(100_000)));
        let products = products.collect::<Vec<_>>().join(", ");
        world.execute(&format!("INSERT INTO product VALUES {products}"));
    }
    let text = "y".repeat(200);
    let customers = (1_000..4_000).map(|it| format!("({it}, {}, '{text}', NULL, 1)", it % 4));
    let customers = customers.collect::<Vec<_>>().join(", ");
    world.execute(&format!("INSERT INTO customer VALUES {customers}"));
    world
}

/// With the marks that servers make by default, between large rows, too.
fn a_first_download_ends_over_a_line_that_breaks_each_time_on_every_carrier<B: Backend>() {
    let world = heavy_shop::<B>();
    let everything = everything(&world);
    for scheme in SCHEMES {
        let line = BadLine::start(everything.address).unwrap();
        line.carry(700_000);
        let mut bob = device_over(&world, &everything, (scheme, &line));
        let mut breaks = 0;
        let synced = bob.remote.sync(&mut |progress| {
            breaks += u64::from(matches!(progress.phase, SyncPhase::Retrying { .. }));
            ControlFlow::Continue(())
        });
        synced.unwrap_or_else(|error| panic!("{scheme}: {error:?}"));
        assert!(line.cuts() > 5, "{scheme}: {} cuts", line.cuts());
        // HTTP repeats the request whose answer broke off, and the sync does not hear of it.
        assert_eq!(breaks > 0, !scheme.starts_with("http"), "{scheme}");
        let passed = line.passed();
        assert!(passed < 2 * HEAVY_BYTES, "{scheme}: {passed} bytes came");
        assert!(parts(&bob).is_empty());
        assert_converged(&world, &[&bob]);
    }
}

/// What is kept is gone on with by the next sync.
fn a_line_that_brings_nothing_more_ends_the_sync<B: Backend>() {
    let world = heavy_shop::<B>();
    let server = world.another_server();
    let line = BadLine::start(server.address).unwrap();
    line.carry(700_000);
    let mut bob = world.device("bob");
    go_by(&mut bob, &format!("tcp://{}", line.address()));
    bob.remote.set_retry(RetryPolicy::default());
    let mut pauses = Vec::new();
    let stopped = bob.remote.sync(&mut |progress| {
        if let SyncPhase::Retrying { in_ms, .. } = progress.phase {
            // It breaks before a row is through.
            line.carry(50_000);
            match pauses.last_mut() {
                Some(last) if *last >= in_ms && in_ms > 0 => {}
                _ if in_ms > 0 => pauses.push(in_ms),
                _ => {}
            }
        }
        match pauses.len() {
            5.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    assert_eq!(stopped.unwrap_err().code(), Code::Cancelled);
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!(parts(&bob).len(), 1);
    line.carry(u64::MAX);
    let report = bob.sync();
    assert!(report.bytes_kept > 400_000);
    assert_converged(&world, &[&bob]);
}

/// Breaks a first download of bob's.
fn broken<B: Backend>(world: &World<B>, server: &LiveServer) -> Device {
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.network.plan_cut(Way::Down, 2 * LINE_BYTES);
    bob.try_sync().unwrap_err();
    assert_eq!(parts(&bob).len(), 1);
    bob
}

fn what_cannot_be_gone_on_with_comes_anew<B: Backend>() {
    let world = large_shop::<B>();
    let server = server(&world);
    // The user has other regions now.
    let mut bob = broken(&world, &server);
    world.execute("INSERT INTO assignment VALUES ('bob', 1)");
    bob.sync();
    assert_converged(&world, &[&bob]);
    // The part is damaged, or of another remote.
    for damage in [5, 30, 60, 1_000, 500_000] {
        let mut bob = broken(&world, &server);
        let part = parts(&bob).remove(0);
        let mut bytes = std::fs::read(&part).unwrap();
        bytes[damage] ^= 1;
        std::fs::write(&part, bytes).unwrap();
        bob.sync();
        assert_converged(&world, &[&bob]);
        assert!(parts(&bob).is_empty());
    }
    // It ends in the middle of anything.
    let mut bob = broken(&world, &server);
    let part = parts(&bob).remove(0);
    for length in [0, 20, 100_000, 600_000] {
        let bytes = std::fs::read(&part).unwrap();
        std::fs::write(&part, &bytes[..length.min(bytes.len())]).unwrap();
        bob.network.plan_cut(Way::Down, LINE_BYTES);
        bob.try_sync().unwrap_err();
    }
    bob.sync();
    assert_converged(&world, &[&bob]);
}

fn another_schema_begins_anew<B: Backend>() {
    let mut world = large_shop::<B>();
    let mut bob = {
        let server = server(&world);
        broken(&world, &server)
    };
    world.execute("ALTER TABLE product ADD COLUMN colour TEXT");
    world.republish(SHOP_PUBLICATION);
    let server = server(&world);
    bob.network.redirect(server.address);
    bob.sync();
    assert_converged(&world, &[&bob]);
}

fn a_log_that_was_pruned_begins_anew<B: Backend>() {
    let world = large_shop::<B>();
    let server = server(&world);
    let mut bob = broken(&world, &server);
    change(&world, 1);
    let nothing = RetentionTimes {
        log_ms: 0,
        history_ms: 0,
        conflicts_ms: 0,
    };
    let pruned = server.ask(async |centre| centre.prune(nothing, LONG_AFTER_MS).await);
    pruned.unwrap();
    bob.sync();
    bob.sync();
    assert_converged(&world, &[&bob]);
}

/// Much that goes up: about two megabytes of rows of two tables.
fn work_for_long(device: &Device) {
    let text = "y".repeat(200);
    for first in (0..ROWS).step_by(500) {
        let numbers = || 40_000 + first..40_500 + first;
        let products = numbers().map(|it| format!("({it}, 'p{it} {text}', {it})"));
        let customers = numbers().map(|it| format!("({it}, 2, 'c{it} {text}', NULL, 1)"));
        device.edit(&format!(
            "INSERT INTO product VALUES {};
             INSERT INTO customer VALUES {};",
            products.collect::<Vec<_>>().join(", "),
            customers.collect::<Vec<_>>().join(", "),
        ));
    }
}

fn an_upload_goes_on_where_it_broke_off_on_the_server_that_has_it<B: Backend>() {
    let world = World::<B>::open(shop());
    let servers = [world.another_server(), world.another_server()];
    let mut bob = world.synced("bob");
    work_for_long(&bob);
    let mut go_up = |server: &LiveServer, cut_after: usize| {
        bob.network.redirect(server.address);
        bob.network.plan_cut(Way::Up, cut_after);
        bob.try_sync().unwrap_err();
        server.is_left_by_all();
    };
    go_up(&servers[0], 900_000);
    // Another one knows nothing of it.
    go_up(&servers[1], 600_000);
    go_up(&servers[0], 900_000);
    // What is changed meanwhile goes up the next time.
    bob.edit("UPDATE product SET name = 'meanwhile' WHERE product_id = 40001");
    bob.network.redirect(servers[0].address);
    let report = bob.sync();
    assert_eq!(report.uploaded.inserts, 2 * ROWS);
    assert!(
        report.bytes_sent < 800_000,
        "{} were sent",
        report.bytes_sent
    );
    bob.sync();
    assert_eq!(bob.pending(), 0);
    assert_converged(&world, &[&bob]);
}

fn an_upload_that_breaks_after_any_frame_is_applied_once<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let server = world.another_server();
    for frame in (0..100).step_by(4) {
        let mut bob = world.device("bob");
        bob.network.redirect(server.address);
        bob.sync();
        let key = 100_000 + 1_000 * frame as u64;
        let text = "z".repeat(2_000);
        let rows = (key..key + 500).map(|it| format!("({it}, '{text}', 0)"));
        let rows = rows.collect::<Vec<_>>().join(", ");
        bob.edit(&format!("INSERT INTO product VALUES {rows}"));
        bob.network
            .plan(Place::frame(Way::Up, frame), Accident::CutInside);
        let outcome = bob.try_sync();
        let was_cut = bob.network.finish_plan();
        assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        bob.sync();
        assert_eq!(bob.pending(), 0);
        let written = "SELECT count(*) FROM audit WHERE line LIKE 'product|insert|%'";
        assert_eq!(world.rows(written), [(500 * (1 + frame / 4)).to_string()]);
        assert_converged(&world, &[&bob]);
        if !was_cut {
            return;
        }
    }
    panic!("a sync of more frames");
}

on_both_adapters!(
    an_upload_goes_on_where_it_broke_off_on_the_server_that_has_it,
    an_upload_that_breaks_after_any_frame_is_applied_once,
    a_first_download_goes_on_wherever_it_breaks_while_the_centre_changes,
    a_first_download_goes_on_by_itself,
    a_download_that_breaks_after_any_frame_ends_right,
    what_cannot_be_gone_on_with_comes_anew,
    another_schema_begins_anew,
    a_log_that_was_pruned_begins_anew,
    a_first_download_ends_over_a_line_that_breaks_each_time_on_every_carrier,
    a_line_that_brings_nothing_more_ends_the_sync,
);
