//! Servers and databases that die while remotes sync.

#![allow(
    clippy::disallowed_methods,
    reason = "a database that restarts is waited for, with a deadline of real time"
)]

use std::time::{Duration, Instant};

use tidewater_testing::proxy::{Accident, Place, Way};
use tidewater_testing::{Postgres as PostgresServer, PostgresOptions};

use crate::backend::{Backend, Postgres};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::audited_shop;
use crate::world::World;

/// No sync of these tests has so many frames in one direction.
const MANY_FRAMES: usize = 100;

/// One change of every kind on the remote and in the centre, without conflicts.
fn make_a_day<B: Backend>(world: &World<B>, ada: &Device, ledger: &mut Ledger, day: i64) {
    let (own, theirs) = (1_000 + day, 3_000 + day);
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
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0);
         UPDATE product SET name = 'elsewhere {day}' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = {theirs} - 1;"
    ));
}

/// Kills the server at every frame of a sync and goes on at another server.
fn i7_any_server_goes_on_where_a_killed_one_stopped<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    let mut day = 0;
    for way in [Way::Up, Way::Down] {
        for frame in 0..MANY_FRAMES {
            make_a_day(&world, &ada, &mut ledger, day);
            day += 1;
            let victim = world.another_server();
            network.redirect(victim.address);
            network.plan(Place::frame(way, frame), Accident::Stall);
            let killed = std::thread::scope(|scope| {
                let sync = scope.spawn(|| {
                    let outcome = ada.try_sync();
                    // Whoever waits for the frame need not any more.
                    network.give_up_stall();
                    outcome
                });
                let killed = network.wait_for_stall().is_ok();
                drop(victim);
                network.break_connections();
                let outcome = sync.join().expect("the sync ends");
                assert!(killed || outcome.is_ok(), "{outcome:?}");
                killed
            });
            network.finish_plan();
            network.redirect(world.server.address);
            ledger.assert_somewhere(&world, &mut ada);
            ada.sync();
            ledger.assert_settled(&world, &mut ada);
            assert_converged(&world, &[&ada]);
            if !killed {
                assert!(frame > 4, "a sync has more than {frame} frames");
                break;
            }
        }
    }
}

fn i7_a_shutdown_in_good_order_lets_the_running_sync_finish<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    make_a_day(&world, &ada, &mut ledger, 0);
    let other = world.another_server();
    network.redirect(other.address);
    network.plan(Place::frame(Way::Down, 1), Accident::Stall);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        network.wait_for_stall().expect("the sync is under way");
        let shutdown = scope.spawn(|| other.shut_down());
        network.release();
        sync.join().expect("it is finished");
        shutdown.join().expect("the server stops");
    });
    ledger.assert_settled(&world, &mut ada);
    assert_converged(&world, &[&ada]);
}

/// A PostgreSQL of the test's own, whose commits reach the disk.
fn postgres_that_can_crash() -> PostgresServer {
    PostgresServer::start_with(PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    })
    .expect("PostgreSQL starts")
}

/// How long somebody tries again before a restarted database must be found.
const PATIENCE: Duration = Duration::from_secs(20);

/// Syncs as somebody does who tries again when told to come back later.
fn sync_patiently(device: &mut Device) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match device.try_sync() {
            Ok(_) => return,
            Err(error) if error.code().is_transient() => std::thread::yield_now(),
            Err(error) => panic!("{error:?}"),
        }
    }
    device.sync();
}

#[test]
fn i1_a_crash_of_postgresql_at_any_frame_applies_every_change_once() {
    let mut postgres = postgres_that_can_crash();
    let world = World::open_in(
        Postgres::at(postgres.fresh_database()),
        audited_shop::<Postgres>(),
    );
    let mut ada = world.synced("ada");
    let network = ada.network.clone();
    let mut ledger = Ledger::default();
    // The frames between which something happens in the centre.
    let places = [
        (Way::Up, 1),
        (Way::Up, 3),
        (Way::Up, 5),
        (Way::Up, 6),
        (Way::Down, 1),
        (Way::Down, 3),
        (Way::Down, 6),
    ];
    for (day, (way, frame)) in (0..).zip(places) {
        make_a_day(&world, &ada, &mut ledger, day);
        network.plan(Place::frame(way, frame), Accident::Stall);
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| {
                let outcome = ada.try_sync();
                network.give_up_stall();
                outcome
            });
            let stalled = network.wait_for_stall();
            assert!(stalled.is_ok(), "{:?} instead", sync.join());
            postgres.kill().expect("it can be killed");
            network.release();
            // Whether it succeeded depends on what was still to do in the centre.
            drop(sync.join().expect("the sync ends"));
        });
        postgres.restart().expect("it recovers");
        ledger.assert_somewhere(&world, &mut ada);
        sync_patiently(&mut ada);
        ledger.assert_settled(&world, &mut ada);
        assert_converged(&world, &[&ada]);
    }
}

/// Interleaving 1: transaction ids that only aborted transactions have used are handed out again
/// after a crash.
#[test]
fn i3_a_change_under_a_transaction_id_that_was_used_before_a_crash_is_sent() {
    let mut postgres = postgres_that_can_crash();
    let world = World::open_in(
        Postgres::at(postgres.fresh_database()),
        audited_shop::<Postgres>(),
    );
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    for round in 0..3 {
        // Something to download, so that a new watermark is handed out, ...
        world.execute(&format!(
            "INSERT INTO product VALUES (10{round}, 'before', 0)"
        ));
        // ... and ids beyond it that leave nothing durable behind.
        world.backend.execute_each(&[
            "BEGIN; INSERT INTO product VALUES (900, 'aborted', 0); ROLLBACK",
            "BEGIN; UPDATE product SET stock = 0; ROLLBACK",
        ]);
        ada.sync();
        if round > 0 {
            // An empty download as well.
            ada.sync();
        }
        postgres.kill().expect("it can be killed");
        postgres.restart().expect("it recovers");
        world.execute(&format!(
            "INSERT INTO product VALUES (20{round}, 'after', 0)"
        ));
        world.execute("UPDATE customer SET balance = balance + 1");
        sync_patiently(&mut ada);
        sync_patiently(&mut bob);
        assert_eq!(
            ada.value(&format!(
                "SELECT name FROM product WHERE product_id = 20{round}"
            )),
            "after"
        );
        assert_converged(&world, &[&ada, &bob]);
    }
}

on_both_adapters!(
    i7_any_server_goes_on_where_a_killed_one_stopped,
    i7_a_shutdown_in_good_order_lets_the_running_sync_finish,
);
