//! Whatever happened: when everybody has synced and nobody writes, all are equal.

use tidewater_client::RowSelection;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::device::Device;
use crate::random::Random;
use crate::scenario::shop;
use crate::world::World;

/// Few keys and few values, so that everybody meets everybody.
const KEYS: u64 = 6;
const STEPS: u64 = 60;
const SEEDS: std::ops::Range<u64> = 1..5;
/// Syncs for each remote until nothing moves any more: a conflict and a stale row take one
/// more each.
const QUIET_ROUNDS: usize = 4;

fn i6_after_any_history_every_remote_equals_the_centre<B: Backend>() {
    for seed in SEEDS {
        let history = std::panic::catch_unwind(|| live_through::<B>(seed, |_| {}));
        if let Err(panic) = history {
            eprintln!("the seed of this history is {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A history of four remotes, once something was done to them.
pub(crate) fn live_through<B: Backend>(seed: u64, prepare: impl FnOnce(&[Device])) {
    let world = World::<B>::open(shop());
    let mut random = Random::seeded(seed);
    // Two that hold everything, and two that share parts.
    let mut devices = ["ada", "ada", "bob", "cleo"].map(|user| world.device(user));
    prepare(&devices);
    for device in &mut devices {
        device.sync();
    }
    for _ in 0..STEPS {
        let sql = statement(&mut random);
        let device = &mut devices[random.below(4) as usize];
        match random.below(16) {
            // What the centre's constraints refuse, its applications do not do.
            0..3 => world.try_execute(&sql),
            3 => world.execute(&reassignment(&mut random)),
            4..8 => sync_through_a_bad_network(device, &mut random),
            8 => sync_while_the_application_works(device, &sql),
            9 if random.once_in(4) => sync_at_once(&mut devices),
            10 if random.once_in(2) => drop(device.remote.retry_refused(RowSelection::All)),
            _ => device.try_edit(&sql),
        }
    }
    for _ in 0..QUIET_ROUNDS {
        sync_at_once(&mut devices);
    }
    for device in &mut devices {
        device.sync();
        assert_eq!(device.pending(), 0);
    }
    for device in &mut devices {
        device.sync();
        assert_converged_but_refused(&world, &mut [&mut *device]);
        device.discard_refused();
        device.sync();
    }
    for device in &mut devices {
        device.sync();
    }
    assert_converged(&world, &devices.each_ref());
}

fn sync_at_once(devices: &mut [Device]) {
    std::thread::scope(|scope| {
        for device in devices {
            scope.spawn(|| device.sync());
        }
    });
}

fn sync_through_a_bad_network(device: &mut Device, random: &mut Random) {
    if random.once_in(2) {
        device.sync();
        return;
    }
    let way = *random.one_of(&[Way::Up, Way::Down]);
    let accident = *random.one_of(&[Accident::CutAfter, Accident::CutInside]);
    let frame = random.below(12) as usize;
    device.network.plan(Place::frame(way, frame), accident);
    let outcome = device.try_sync();
    let was_cut = device.network.finish_plan();
    assert!(was_cut || outcome.is_ok(), "{outcome:?}");
}

/// The edit comes between the taking of the upload and the applying of the download.
fn sync_while_the_application_works(device: &mut Device, sql: &str) {
    let network = device.network.clone();
    let place = Place::message(Way::Down, |it| matches!(it, Control::Welcome(_)));
    network.plan(place, Accident::Stall);
    let application = device.another_application();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| device.sync());
        network.wait_for_stall().expect("the server lets it in");
        application.try_edit(sql);
        network.release();
        sync.join().expect("it syncs");
    });
}

/// A user gets a region, or loses one.
fn reassignment(random: &mut Random) -> String {
    let (login, region) = (random.one_of(&["ada", "bob", "cleo"]), random.below(4));
    match random.below(3) {
        0 => format!("DELETE FROM assignment WHERE login = '{login}' AND region = {region}"),
        _ => format!("INSERT INTO assignment VALUES ('{login}', {region}) ON CONFLICT DO NOTHING"),
    }
}

/// Something that an application may do, though a constraint may be against it.
fn statement(random: &mut Random) -> String {
    let (key, other, region) = (random.below(KEYS), random.below(KEYS), random.below(4));
    let text = random.below(1_000);
    match random.below(14) {
        0 => format!("INSERT INTO product VALUES ({key}, 'n{text}', {text})"),
        1 => format!("UPDATE product SET name = 'u{text}' WHERE product_id = {key}"),
        2 => format!("UPDATE product SET stock = stock + 1 WHERE product_id <> {key}"),
        3 => format!("DELETE FROM product WHERE product_id = {key}"),
        4 => format!("UPDATE product SET name = '' WHERE product_id = {key}"),
        5 => format!("UPDATE product SET product_id = {other} WHERE product_id = {key}"),
        6 | 7 => format!(
            "INSERT INTO customer VALUES ({key}, {region}, 'c{text}', 'e{other}@x', '{text}.10')"
        ),
        8 => format!("UPDATE customer SET region = {region} WHERE customer_id = {key}"),
        9 => format!("UPDATE customer SET email = 'e{other}@x' WHERE customer_id = {key}"),
        10 => format!("DELETE FROM customer WHERE customer_id = {key}"),
        11 => format!("INSERT INTO invoice VALUES ({key}, {region}, {other}, 'i{text}')"),
        12 => format!("UPDATE invoice SET customer_id = {other} WHERE invoice_id = {key}"),
        _ => format!("DELETE FROM invoice WHERE invoice_id <> {key} AND region = {region}"),
    }
}

/// Two remotes do the worst that they can to the same rows between two syncs.
fn i6_two_remotes_that_fight_over_the_same_rows_end_equal<B: Backend>() {
    let world = World::<B>::open(shop());
    let worst = [
        "UPDATE product SET name = 'x' || name",
        "DELETE FROM product",
        "INSERT INTO product VALUES (1, 'again', 0), (2, 'again', 0), (9, 'new', 1)
             ON CONFLICT (product_id) DO UPDATE SET name = excluded.name || 'st'",
        "INSERT OR REPLACE INTO product VALUES (1, 'replaced', 7)",
        "UPDATE OR REPLACE product SET product_id = 3 - product_id WHERE product_id IN (1, 2)",
        "DELETE FROM product WHERE product_id = 1; INSERT INTO product VALUES (1, 'reborn', 1)",
    ];
    let (mut first, mut second) = (world.synced("ada"), world.synced("ada"));
    for mine in worst {
        for theirs in worst {
            first.edit(mine);
            second.edit(theirs);
            for _ in 0..2 {
                first.sync();
                second.sync();
            }
            assert_converged(&world, &[&first, &second]);
            let rows = world.rows("SELECT count(*) FROM product");
            if rows == ["0"] {
                world.execute("INSERT INTO product VALUES (1, 'pen', 1), (2, 'ink', 2)");
                first.sync();
                second.sync();
            }
        }
    }
}

on_both_adapters!(
    i6_after_any_history_every_remote_equals_the_centre,
    i6_two_remotes_that_fight_over_the_same_rows_end_equal,
);
