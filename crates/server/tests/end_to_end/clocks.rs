//! Servers whose clocks are wrong by years, forward and back, and differ from each other.
//!
//! No change depends on what time it is; what does (tokens, new identities, retention) costs
//! another sign-in or another compare, and nothing else. The clock of a remote is the affair
//! of its own tests: it is only shown.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tempfile::TempDir;
use tidewater_centre::records::RetentionTimes;
use tidewater_client::{Remote, SyncProgress};
use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_server::Environment;
use tidewater_server::environment::Clock;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{audited_shop, shop};
use crate::world::{LiveServer, World};

const HOUR_MS: i64 = 60 * 60 * 1_000;
const YEAR_MS: i64 = 365 * 24 * HOUR_MS;

/// Sixty days, like the default of most of it.
const RETENTION: RetentionTimes = RetentionTimes {
    log_ms: 60 * 24 * HOUR_MS,
    history_ms: 60 * 24 * HOUR_MS,
    conflicts_ms: 60 * 24 * HOUR_MS,
};

/// A clock that is wrong by so much.
pub(crate) struct Wrong {
    by_ms: AtomicI64,
    right: Arc<dyn Clock>,
}

impl Wrong {
    pub(crate) fn by(by_ms: i64) -> Arc<Wrong> {
        Arc::new(Wrong {
            by_ms: AtomicI64::new(by_ms),
            right: Environment::real().clock,
        })
    }

    pub(crate) fn set(&self, by_ms: i64) {
        self.by_ms.store(by_ms, Ordering::Relaxed);
    }
}

impl Clock for Wrong {
    fn now_ms(&self) -> i64 {
        let by_ms = self.by_ms.load(Ordering::Relaxed);
        // As on a machine that begins at 1970 when it has lost its time.
        self.right.now_ms().saturating_add(by_ms).max(0)
    }
}

/// Twenty years ahead, as many back, 1970, and an hour either way.
const WRONG_BY: [i64; 5] = [
    20 * YEAR_MS,
    -20 * YEAR_MS,
    -100 * YEAR_MS,
    HOUR_MS + 1,
    -HOUR_MS - 1,
];

fn go_to(device: &Device, server: &LiveServer) {
    device.network.redirect(server.address);
}

/// A change here and one in the centre, and a sync.
fn make_a_day<B: Backend>(world: &World<B>, ada: &mut Device, ledger: &mut Ledger, day: i64) {
    let (own, theirs) = (1_000 + day, 5_000 + day);
    ada.edit(&format!(
        "INSERT INTO product VALUES ({own}, 'own {day}', 0)"
    ));
    ledger.product("insert", own, &format!("own {day}"));
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0)"
    ));
    ada.sync();
    ledger.assert_settled(world, ada);
    assert_converged(world, &[ada]);
}

/// The same remote at servers of different times, in turns.
fn servers_of_different_times_serve_one_remote_and_lose_nothing<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let servers = WRONG_BY.map(|by_ms| world.another_server_at(Wrong::by(by_ms)));
    let mut ada = world.device("ada");
    let mut ledger = Ledger::default();
    let all: Vec<&LiveServer> = servers.iter().chain([&world.server]).collect();
    let mut day = 0;
    ada.sync();
    for first in &all {
        for second in &all {
            for server in [first, second] {
                go_to(&ada, server);
                make_a_day(&world, &mut ada, &mut ledger, day);
                day += 1;
            }
        }
    }
}

/// A server's clock jumps between two syncs, and what is old by it is dropped.
fn a_clock_that_jumps_drops_nothing_that_is_not_in_the_centre<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let clock = Wrong::by(0);
    let server = world.another_server_at(clock.clone());
    let mut devices = ["ada", "bob", "bob"].map(|user| world.device(user));
    for device in &mut devices {
        go_to(device, &server);
        device.sync();
    }
    let [mut ada, mut bob, mut refused] = devices;
    let mut ledger = Ledger::default();
    make_a_day(&world, &mut ada, &mut ledger, 0);
    refused.edit("INSERT INTO product VALUES (900, '', 0)");
    assert_eq!(refused.sync().refused, 1);
    for (day, by_ms) in (1..).zip(WRONG_BY.into_iter().flat_map(|by_ms| [by_ms, 0])) {
        clock.set(by_ms);
        server
            .ask(async |centre| centre.prune(RETENTION, clock.now_ms()).await)
            .expect("what is old can be dropped");
        // What is pending meanwhile stays so.
        bob.edit(&format!(
            "UPDATE invoice SET note = 'by bob {day}' WHERE invoice_id = 2"
        ));
        make_a_day(&world, &mut ada, &mut ledger, day);
        bob.sync();
        ada.sync();
        refused.sync();
        let note = "SELECT note FROM invoice WHERE invoice_id = 2";
        assert_eq!(world.rows(note), [format!("by bob {day}")]);
        assert_converged(&world, &[&bob]);
        // A new device at this time.
        let mut cleo = world.device("cleo");
        go_to(&cleo, &server);
        cleo.sync();
        assert_converged(&world, &[&cleo]);
    }
    let kept = refused.refused();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let row = "SELECT count(*) FROM product WHERE product_id = 900";
    assert_eq!(refused.value(row), "1");
}

/// The new identity of a restored file is good for a month; by a server whose clock is ahead
/// it is over, which is told, and the password helps.
fn a_new_identity_that_is_over_by_the_clock_asks_for_the_password<B: Backend>() {
    let world = World::<B>::open(shop());
    let ahead = world.another_server_at(Wrong::by(20 * YEAR_MS));
    let mut ada = world.synced("ada");
    let folder = TempDir::new().expect("a temporary folder");
    let copy = folder.path().join("copy.db");
    save_sqlite(&ada.path, &copy);
    ada.edit("UPDATE product SET stock = 11 WHERE product_id = 1");
    ada.sync();
    let mut copy = Device::at(&copy, &ada);
    copy.edit("UPDATE product SET stock = 22 WHERE product_id = 2");
    // The identity is given here, and is to be taken up there.
    let network = copy.network.clone();
    let mut without_password = Remote::open(&copy.path).expect("the file is there");
    let elsewhere = ahead.address;
    let outcome = without_password.sync(&mut |progress| {
        if progress.bytes_received > 0 {
            network.redirect(elsewhere);
        }
        ControlFlow::Continue(())
    });
    let error = outcome.expect_err("it is over there");
    assert_eq!(error.code(), Code::CredentialInvalid, "{error}");
    assert!(error.hint().contains("password"), "{}", error.hint());
    assert_eq!(copy.pending(), 1);
    copy.sync();
    ada.sync();
    let stocks = "SELECT stock FROM product ORDER BY product_id";
    assert_eq!(world.rows(stocks), ["11", "22", "30"]);
    assert_converged(&world, &[&ada, &copy]);
}

/// Each day the credential is renewed; two syncs of one file at once keep a good one, whichever
/// of them stores what it was given last.
fn two_syncs_at_once_keep_a_good_credential<B: Backend>() {
    let world = World::<B>::open(shop());
    let clock = Wrong::by(0);
    let server = world.another_server_at(clock.clone());
    let mut ada = world.device("ada");
    go_to(&ada, &server);
    ada.sync();
    let go_on = |_: &SyncProgress| ControlFlow::Continue(());
    for day in 1..6 {
        clock.set(day * 25 * HOUR_MS);
        // Neither has a password or a token.
        ada.edit("UPDATE tidewater_state SET token = NULL");
        let handles = [(); 2].map(|()| Remote::open(&ada.path).expect("the file is there"));
        let let_in = |control: &Control| matches!(control, Control::SignedIn(_));
        ada.network
            .plan(Place::message(Way::Down, let_in), Accident::Stall);
        std::thread::scope(|scope| {
            let [mut first, mut second] = handles;
            let network = &ada.network;
            let sync = scope.spawn(move || first.sync(&mut |it| go_on(it)));
            network.wait_for_stall().expect("the first is let in");
            let outcome = second.sync(&mut |it| go_on(it));
            outcome.expect("nothing is in its way");
            network.release();
            if let Err(error) = sync.join().expect("it ends") {
                assert_eq!(error.code(), Code::SyncInProgress, "{error}");
            }
        });
        ada.network.finish_plan();
        // Tokens are over; only the credential speaks for it.
        clock.set(day * 25 * HOUR_MS + 2 * HOUR_MS);
        let mut alone = Remote::open(&ada.path).expect("the file is there");
        let outcome = alone.sync(&mut |it| go_on(it));
        outcome.expect("its credential is good");
    }
}

/// Two processes sync one file. What one of them has told the server is old when it arrives, and
/// the server takes it for a restored file. The new identity was stored, and what was on its way
/// under the other went up twice.
fn i1_a_sync_that_was_overtaken_takes_no_new_identity<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let mut slow = ada.second_handle();
    let hello = |control: &Control| matches!(control, Control::Hello(_));
    ada.network
        .plan(Place::message(Way::Up, hello), Accident::Stall);
    let identity = ada.value("SELECT hex(remote_id) FROM tidewater_state");
    std::thread::scope(|scope| {
        let sync = scope.spawn(move || slow.sync(&mut |_| ControlFlow::Continue(())));
        ada.network.wait_for_stall().expect("it says who it is");
        ada.edit("UPDATE product SET stock = 11 WHERE product_id = 1");
        ada.sync();
        ada.network.release();
        let error = sync.join().expect("it ends").expect_err("it is too late");
        assert_eq!(error.code(), Code::SyncInProgress, "{error}");
    });
    ada.network.finish_plan();
    let now = "SELECT hex(remote_id) FROM tidewater_state";
    assert_eq!(ada.value(now), identity);
    ada.edit("UPDATE product SET stock = 12 WHERE product_id = 1");
    let report = ada.sync();
    assert_eq!((report.uploaded.updates, report.conflicts), (1, 0));
    assert_converged(&world, &[&ada]);
    // Nobody has become another, so there is nothing for the operator to look at.
    assert_eq!(world.server.incidents(0), []);
}

on_both_adapters!(
    i1_a_sync_that_was_overtaken_takes_no_new_identity,
    two_syncs_at_once_keep_a_good_credential,
    servers_of_different_times_serve_one_remote_and_lose_nothing,
    a_clock_that_jumps_drops_nothing_that_is_not_in_the_centre,
    a_new_identity_that_is_over_by_the_clock_asks_for_the_password,
);
