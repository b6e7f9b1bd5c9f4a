//! `upload = "transactional"`: each transaction of the application's goes up by itself, in its
//! order, and takes effect as a whole or not at all.

use std::collections::BTreeMap;

use tidewater_client::RowSelection;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::device::Device;
use crate::random::Random;
use crate::scenario::{Scenario, audited_shop, shop};
use crate::world::World;

const PRODUCTS: &str = "SELECT product_id, name, stock FROM product ORDER BY product_id";

fn transactional(mut scenario: Scenario) -> Scenario {
    let name = "name = \"main\"\n";
    let publication = scenario.publication;
    let with = format!("{name}upload = \"transactional\"\n");
    scenario.publication = publication.replacen(name, &with, 1).leak();
    scenario
}

/// What an application does that says where its transactions end.
fn commit(device: &Device, sql: &str) {
    device.edit(&format!(
        "BEGIN; {sql}; INSERT INTO tidewater_transaction DEFAULT VALUES; COMMIT;"
    ));
}

fn refused_keys(device: &mut Device) -> Vec<String> {
    let refused = device.refused().into_iter();
    let mut keys: Vec<String> = refused.map(|it| it.key).collect();
    keys.sort();
    keys
}

fn each_goes_in_whole_or_not_at_all_and_in_order<B: Backend>() {
    let world = World::<B>::open(transactional(audited_shop::<B>()));
    let mut ada = world.synced("ada");
    commit(
        &ada,
        "INSERT INTO product VALUES (10, 'first', 1); UPDATE product SET name = 'a' WHERE product_id = 1",
    );
    commit(
        &ada,
        "UPDATE product SET name = 'b' WHERE product_id = 2; INSERT INTO product VALUES (20, '', 1)",
    );
    commit(&ada, "UPDATE product SET name = 'c' WHERE product_id = 1");
    commit(
        &ada,
        "DELETE FROM product WHERE product_id = 10; INSERT INTO product VALUES (30, 'third', 3)",
    );
    // What nobody has ended goes last.
    ada.edit("UPDATE product SET stock = 31 WHERE product_id = 3");
    let report = ada.sync();
    assert_eq!(report.refused, 2);
    assert_eq!(refused_keys(&mut ada), ["[20]", "[2]"]);
    assert_eq!(
        world.rows(PRODUCTS),
        ["1|c|10", "2|ink|20", "3|cap|31", "30|third|3"]
    );
    let mut told = world.rows("SELECT line FROM audit ORDER BY id");
    // Within a transaction the centre decides.
    told[0..2].sort();
    told[3..5].sort();
    assert_eq!(
        told,
        [
            "product|insert|10|first",
            "product|update|1|a",
            "product|update|1|c",
            "product|delete|10|",
            "product|insert|30|third",
            "product|update|3|cap",
        ]
    );
    // Corrected, it goes up whole.
    commit(
        &ada,
        "UPDATE product SET name = 'twenty' WHERE product_id = 20",
    );
    assert_eq!(ada.sync().refused, 0);
    assert_eq!(world.rows(PRODUCTS)[1], "2|b|20");
    assert_converged(&world, &[&ada]);
}

fn a_transaction_that_builds_on_a_refused_one_waits_with_it<B: Backend>() {
    let world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    commit(
        &ada,
        "UPDATE product SET stock = 11 WHERE product_id = 1; INSERT INTO product VALUES (20, '', 1)",
    );
    commit(&ada, "UPDATE product SET stock = 12 WHERE product_id = 1");
    commit(&ada, "UPDATE product SET stock = 21 WHERE product_id = 2");
    ada.sync();
    // The first is refused, and the second with it: it has been made from what is not there.
    assert_eq!(refused_keys(&mut ada), ["[1]", "[20]"]);
    assert_eq!(world.rows(PRODUCTS), ["1|pen|10", "2|ink|21", "3|cap|30"]);
    assert_converged_but_refused(&world, &mut [&mut ada]);
    commit(
        &ada,
        "UPDATE product SET name = 'twenty' WHERE product_id = 20",
    );
    ada.sync();
    assert_eq!(refused_keys(&mut ada), [""; 0]);
    assert_eq!(
        world.rows(PRODUCTS),
        ["1|pen|12", "2|ink|21", "3|cap|30", "20|twenty|1"]
    );
    assert_converged(&world, &[&ada]);
}

fn what_is_sent_again_fails_with_nobody_else<B: Backend>() {
    let world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    let taken = "INSERT INTO customer VALUES (60, 1, 'same', 'one@x', '0.00')";
    commit(
        &ada,
        &format!("{taken}; UPDATE product SET stock = 1 WHERE product_id = 1"),
    );
    commit(
        &ada,
        "INSERT INTO product VALUES (20, '', 1); UPDATE product SET stock = 2 WHERE product_id = 2",
    );
    ada.sync();
    assert_eq!(refused_keys(&mut ada).len(), 4);
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    // Meanwhile the application goes on, also with a row that is refused.
    commit(&ada, "UPDATE product SET stock = 3 WHERE product_id = 3");
    commit(
        &ada,
        "UPDATE customer SET name = 'other' WHERE customer_id = 60",
    );
    ada.remote
        .retry_refused(RowSelection::All)
        .expect("they are there");
    ada.sync();
    assert_eq!(refused_keys(&mut ada), ["[20]", "[2]"]);
    assert_eq!(world.rows(PRODUCTS), ["1|pen|1", "2|ink|20", "3|cap|3"]);
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id = 60"),
        ["other"]
    );
    ada.discard_refused();
    ada.sync();
    assert_converged(&world, &[&ada]);
}

/// What others change in the rows of several transactions is what the next one is made from.
fn rows_of_many_transactions_meet_changes_of_others<B: Backend>() {
    let mut scenario = transactional(shop());
    let publication = scenario.publication.replace(
        "name = \"product\"\n",
        "name = \"product\"\nconflict = { detect = \"column\" }\n",
    );
    scenario.publication = publication.leak();
    let world = World::<B>::open(scenario);
    let mut ada = world.synced("ada");
    for name in ["a", "b", "c"] {
        commit(
            &ada,
            &format!("UPDATE product SET name = '{name}' WHERE product_id = 1"),
        );
        commit(
            &ada,
            "UPDATE product SET stock = stock + 1 WHERE product_id = 2",
        );
    }
    world.execute("UPDATE product SET stock = 77 WHERE product_id = 1");
    world.execute("UPDATE product SET name = 'blot' WHERE product_id = 2");
    ada.sync();
    assert_eq!(world.rows(PRODUCTS), ["1|c|77", "2|blot|23", "3|cap|30"]);
    assert_converged(&world, &[&ada]);
}

/// Whatever breaks: of each transaction all is in the audit, or nothing; and what is there is there
/// once, in order.
fn i1_transactions_are_whole_and_in_order_whatever_breaks<B: Backend>() {
    let world = World::<B>::open(transactional(audited_shop::<B>()));
    let mut ada = world.synced("ada");
    let mut random = Random::seeded(20_261_127);
    let mut bad = Vec::new();
    for number in 0..60_i64 {
        let (first, second) = (1 + random.below(3), 100 + number);
        let is_bad = random.below(5) == 0;
        bad.extend(is_bad.then_some(number));
        let own = if is_bad {
            String::new()
        } else {
            format!("t{number}")
        };
        commit(
            &ada,
            &format!(
                "INSERT INTO customer VALUES ({second}, 1, 't{number}', NULL, '0.00');
                 INSERT INTO product VALUES ({second}, '{own}', {first});
                 INSERT INTO invoice VALUES ({second}, 1, {second}, 't{number}')"
            ),
        );
        if number % 4 == 3 {
            let way = *random.one_of(&[Way::Up, Way::Down]);
            let accident = *random.one_of(&[Accident::CutAfter, Accident::CutInside]);
            ada.network
                .plan(Place::frame(way, random.below(20) as usize), accident);
            let outcome = ada.try_sync();
            let was_cut = ada.network.finish_plan();
            assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        }
    }
    ada.sync();
    let mut found: BTreeMap<i64, u64> = BTreeMap::new();
    let mut last = -1;
    for line in world.rows("SELECT line FROM audit ORDER BY id") {
        let text = line.rsplit("|t").next().and_then(|it| it.parse().ok());
        let number: i64 = text.unwrap_or_else(|| panic!("{line}"));
        assert!(number >= last, "{number} after {last}");
        last = number;
        *found.entry(number).or_default() += 1;
    }
    for number in 0..60 {
        let expected = (!bad.contains(&number)).then_some(&3);
        assert_eq!(found.get(&number), expected, "transaction {number}");
    }
    assert_eq!(ada.refused().len(), 3 * bad.len());
    assert_eq!(world.server.refused().len(), 3 * bad.len());
    ada.discard_refused();
    ada.sync();
    assert_converged(&world, &[&ada]);
}

/// Nobody knows what was changed from what where triggers were gone: then all is one transaction.
fn with_triggers_gone_what_waits_is_one_transaction<B: Backend>() {
    let world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    commit(&ada, "UPDATE product SET stock = 11 WHERE product_id = 1");
    commit(&ada, "UPDATE product SET stock = 12 WHERE product_id = 1");
    let trigger = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'product' \
                   AND name GLOB 'tidewater_*' ORDER BY name LIMIT 1";
    let trigger = ada.value(trigger);
    ada.edit(&format!("DROP TRIGGER \"{trigger}\""));
    commit(&ada, "UPDATE product SET stock = 21 WHERE product_id = 2");
    ada.sync();
    ada.sync();
    assert_eq!(ada.pending(), 0);
    assert_eq!(world.rows(PRODUCTS), ["1|pen|12", "2|ink|21", "3|cap|30"]);
    assert_converged(&world, &[&ada]);
}

/// The publication says otherwise, while transactions wait.
fn another_schema_finds_what_waits_as_one<B: Backend>() {
    let mut world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    commit(&ada, "INSERT INTO product VALUES (10, 'x', 1)");
    commit(&ada, "UPDATE product SET name = 'y' WHERE product_id = 10");
    ada.remote
        .set_direction(tidewater_client::SyncDirection::DownloadOnly);
    world.republish(shop().publication);
    ada.network.redirect(world.server.address);
    ada.sync();
    commit(&ada, "UPDATE product SET stock = 5 WHERE product_id = 10");
    ada.remote
        .set_direction(tidewater_client::SyncDirection::Both);
    ada.sync();
    assert_eq!(world.rows(PRODUCTS)[3], "10|y|5");
    world.republish(transactional(shop()).publication);
    ada.network.redirect(world.server.address);
    commit(&ada, "UPDATE product SET stock = 6 WHERE product_id = 10");
    ada.sync();
    commit(
        &ada,
        "INSERT INTO product VALUES (11, '', 1); DELETE FROM product WHERE product_id = 3",
    );
    commit(&ada, "INSERT INTO product VALUES (12, 'ok', 1)");
    ada.sync();
    assert_eq!(refused_keys(&mut ada), ["[11]", "[3]"]);
    assert_eq!(world.rows(PRODUCTS)[2..], ["3|cap|30", "10|y|6", "12|ok|1"]);
}

/// Remotes that verify themselves keep their transactions.
fn transactions_stay_what_they_are_when_a_remote_verifies_itself<B: Backend>() {
    let scenario = transactional(audited_shop::<B>());
    let world = World::<B>::open_changed(B::new(), scenario, |config| {
        config.server.verify_every = 1;
    });
    let mut ada = world.synced("ada");
    for round in 0..6 {
        for name in ["a", "b"] {
            commit(
                &ada,
                &format!("UPDATE product SET name = '{name}{round}' WHERE product_id = 1"),
            );
        }
        commit(
            &ada,
            &format!(
                "INSERT INTO product VALUES ({}, '', 1);
                 UPDATE product SET stock = 99 WHERE product_id = 2",
                100 + round
            ),
        );
        ada.sync();
        ada.discard_refused();
    }
    ada.sync();
    let lines = world.rows("SELECT line FROM audit ORDER BY id");
    let rounds =
        (0..6).flat_map(|it| ["a", "b"].map(|name| format!("product|update|1|{name}{it}")));
    assert_eq!(lines, rounds.collect::<Vec<_>>());
    let status = world.server.ask(async |centre| centre.status().await);
    let told = status.expect("it can be read").incidents;
    assert!(told.is_empty(), "{told:?}");
    assert_converged(&world, &[&ada]);
}

/// Two transactions have taken over rows of a refused one: it goes up whole all the same.
fn what_two_others_build_on_is_whole<B: Backend>() {
    let world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    commit(
        &ada,
        "INSERT INTO product VALUES (20, '', 1); UPDATE product SET stock = 11 WHERE product_id = 1;
         UPDATE product SET stock = 21 WHERE product_id = 2",
    );
    commit(&ada, "UPDATE product SET stock = 12 WHERE product_id = 1");
    commit(
        &ada,
        "UPDATE product SET name = 'twenty' WHERE product_id = 20;
         UPDATE product SET name = '' WHERE product_id = 3",
    );
    ada.sync();
    // The last one is refused, and so nothing of the first is there.
    assert_eq!(world.rows(PRODUCTS), ["1|pen|10", "2|ink|20", "3|cap|30"]);
    assert_eq!(refused_keys(&mut ada), ["[1]", "[20]", "[2]", "[3]"]);
    commit(&ada, "UPDATE product SET name = 'cup' WHERE product_id = 3");
    ada.sync();
    assert_eq!(refused_keys(&mut ada), [""; 0]);
    assert_eq!(
        world.rows(PRODUCTS),
        ["1|pen|12", "2|ink|21", "3|cup|30", "20|twenty|1"]
    );
    assert_converged(&world, &[&ada]);
}

/// Two rows of each transaction, which nobody else writes, are there together or not at all.
fn pairs<B: Backend>(world: &World<B>, when: &str) {
    let odd = world.rows(
        "SELECT 'product', product_id FROM product WHERE product_id >= 1000 AND product_id NOT IN
           (SELECT invoice_id FROM invoice)
         UNION ALL SELECT 'invoice', invoice_id FROM invoice WHERE invoice_id >= 1000
           AND invoice_id NOT IN (SELECT product_id FROM product)",
    );
    assert!(odd.is_empty(), "{when}: {odd:?}");
}

fn transactions_are_whole_in_any_history<B: Backend>() {
    for seed in 0..3 {
        play::<B>(seed);
    }
}

/// A history of one device that does anything, and of another one that meets it.
fn play<B: Backend>(seed: u64) {
    let world = World::<B>::open(transactional(shop()));
    let (mut ada, mut cleo) = (world.synced("ada"), world.synced("cleo"));
    let mut random = Random::seeded(1_000 + seed);
    let mut number = 1_000;
    for step in 0..40 {
        match random.below(10) {
            0..=4 => {
                number += 1;
                let bad = random.below(3) == 0;
                let name = if bad { "" } else { "fine" };
                let mut sql = format!(
                    "INSERT INTO product VALUES ({number}, '{name}', 1);
                     INSERT INTO invoice VALUES ({number}, 1, 1, 't{number}')"
                );
                for _ in 0..random.below(3) {
                    let (at, to) = (1 + random.below(6), 1 + random.below(6));
                    sql += &match random.below(6) {
                        0 => format!(";DELETE FROM product WHERE product_id = {at}"),
                        1 => format!(
                            ";INSERT OR IGNORE INTO product VALUES ({at}, 'p{number}', {to})"
                        ),
                        2 => format!(
                            ";UPDATE product SET product_id = {to} WHERE product_id = {at} AND NOT EXISTS (SELECT 1 FROM product WHERE product_id = {to})"
                        ),
                        3 => format!(
                            ";INSERT OR REPLACE INTO product VALUES ({at}, 'r{number}', {to})"
                        ),
                        4 => format!(
                            ";UPDATE OR REPLACE product SET product_id = {to} WHERE product_id = {at}"
                        ),
                        _ => format!(
                            ";UPDATE product SET name = 'n{number}' WHERE product_id = {at}"
                        ),
                    };
                }
                commit(&ada, &sql);
            }
            5 => {
                let (at, to) = (1 + random.below(6), random.below(100));
                let sql = format!("UPDATE product SET stock = {to} WHERE product_id = {at}");
                commit(&cleo, &sql);
                cleo.sync();
            }
            6 => {
                ada.remote
                    .retry_refused(RowSelection::All)
                    .expect("they are there");
            }
            7 => {
                // What is wrong is put right, sometimes.
                let sql = "UPDATE product SET name = 'right' WHERE product_id IN (SELECT product_id FROM product WHERE product_id >= 1000 AND name = '' LIMIT 1)";
                commit(&ada, sql);
            }
            _ => {
                let cut = random.below(2) == 0;
                if cut {
                    let way = *random.one_of(&[Way::Up, Way::Down]);
                    let at = random.below(24) as usize;
                    ada.network.plan(
                        Place::frame(way, at),
                        *random.one_of(&[Accident::CutAfter, Accident::CutInside]),
                    );
                }
                let outcome = ada.try_sync();
                let was_cut = ada.network.finish_plan();
                assert!(was_cut || outcome.is_ok(), "{outcome:?}");
            }
        }
        pairs(&world, &format!("seed {seed} step {step}"));
    }
    ada.sync();
    pairs(&world, "end");
    ada.edit("UPDATE product SET name = 'right' WHERE name = ''");
    ada.remote
        .retry_refused(RowSelection::All)
        .expect("they are there");
    ada.sync();
    pairs(&world, "corrected");
    for _ in 0..20 {
        if ada.refused().is_empty() && ada.pending() == 0 {
            break;
        }
        ada.discard_refused();
        ada.sync();
    }
    cleo.sync();
    ada.sync();
    assert_eq!((ada.pending(), ada.refused().len()), (0, 0));
    assert_converged(&world, &[&ada, &cleo]);
}

/// What was on its way when a sync broke off is followed by the others in the next one.
fn the_next_sync_goes_on_where_one_broke_off<B: Backend>() {
    let world = World::<B>::open(transactional(shop()));
    let mut ada = world.synced("ada");
    for number in 10..15 {
        commit(
            &ada,
            &format!("INSERT INTO product VALUES ({number}, 'x', 1)"),
        );
    }
    let result = |it: &Control| matches!(it, Control::ResultBegin(_));
    ada.network
        .plan(Place::message(Way::Down, result), Accident::CutInside);
    ada.try_sync().unwrap_err();
    assert_eq!(ada.pending(), 5);
    ada.sync();
    assert_eq!(ada.pending(), 0);
    assert_converged(&world, &[&ada]);
}

on_both_adapters!(
    the_next_sync_goes_on_where_one_broke_off,
    what_two_others_build_on_is_whole,
    transactions_are_whole_in_any_history,
    transactions_stay_what_they_are_when_a_remote_verifies_itself,
    each_goes_in_whole_or_not_at_all_and_in_order,
    a_transaction_that_builds_on_a_refused_one_waits_with_it,
    what_is_sent_again_fails_with_nobody_else,
    rows_of_many_transactions_meet_changes_of_others,
    i1_transactions_are_whole_and_in_order_whatever_breaks,
    with_triggers_gone_what_waits_is_one_transaction,
    another_schema_finds_what_waits_as_one,
);
