//! Every committed local change is somewhere: in the centre, pending, or refused on both
//! sides.

use std::collections::BTreeSet;

use tidewater_client::RowSelection;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::random::Random;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

const SEED: u64 = 20_260_802;
const SYNCS: u64 = 30;
/// What the application inserts while a sync runs.
const ROWS_PER_SYNC: i64 = 40;
/// The first key that the application inserts.
const FIRST: i64 = 1_000;

/// An application inserts row after row while the network breaks again and again.
fn i2_every_local_change_is_in_the_centre_or_pending_at_any_moment<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let mut application = ada.another_application();
    let mut random = Random::seeded(SEED);
    let mut end = FIRST;
    for _ in 0..SYNCS {
        let way = *random.one_of(&[Way::Up, Way::Down]);
        let accident = *random.one_of(&[Accident::CutAfter, Accident::CutInside]);
        let place = Place::frame(way, random.below(12) as usize);
        ada.network.plan(place, accident);
        let burst = end..end + ROWS_PER_SYNC;
        end = burst.end;
        std::thread::scope(|scope| {
            let application = &mut application;
            let writer = scope.spawn(move || {
                for key in burst {
                    application.edit(&format!("INSERT INTO product VALUES ({key}, 'row', 0)"));
                }
            });
            let outcome = ada.try_sync();
            let was_cut = ada.network.finish_plan();
            assert!(was_cut || outcome.is_ok(), "{outcome:?}");
            writer.join().expect("the application writes");
        });
        let pending = ada.rows(
            "SELECT DISTINCT key_product_id FROM tidewater_change_product
             WHERE generation > 0",
        );
        let applied = world.rows(&format!(
            "SELECT product_id FROM product WHERE product_id >= {FIRST}"
        ));
        let somewhere = [pending, applied].concat();
        let somewhere: BTreeSet<i64> = somewhere
            .iter()
            .map(|key| key.parse().expect("a key"))
            .collect();
        assert!(somewhere.into_iter().eq(FIRST..end));
    }
    ada.sync();
    assert_converged(&world, &[&ada]);
}

fn i2_a_refused_change_stays_on_both_sides_until_the_user_decides<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit(
        "INSERT INTO product VALUES (100, '', 0);
         UPDATE product SET name = '' WHERE product_id = 1;
         INSERT INTO customer VALUES (60, 1, 'same', 'one@x', '0.00');
         INSERT INTO product VALUES (101, 'fine', 0);",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.uploaded.inserts), (3, 1));
    // Others change what they like meanwhile; nothing goes up again by itself.
    world.execute("UPDATE product SET stock = 77 WHERE product_id = 1");
    for _ in 0..3 {
        let report = ada.sync();
        assert_eq!((report.refused, report.uploaded.inserts), (0, 0));
        assert_eq!(ada.refused().len(), 3);
        assert_eq!(world.server.refused().len(), 3);
        assert_eq!(
            ada.value("SELECT count(*) FROM product WHERE name = ''"),
            "2"
        );
    }
    // The reason is gone for one: the user says that it shall be tried again.
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    let retried = ada
        .remote
        .retry_refused(RowSelection::All)
        .expect("it is there");
    assert_eq!(retried, 3);
    let report = ada.sync();
    assert_eq!((report.refused, report.uploaded.inserts), (1, 1));
    // The centre has gone on from where the update began.
    assert_eq!(report.conflicts, 1);
    assert_eq!(
        ada.rows("SELECT * FROM product WHERE product_id = 1"),
        ["1|pen|77"]
    );
    // Another is given up by name.
    let left = ada.refused();
    assert_eq!(left.len(), 1);
    let ids = [left[0].id];
    let discarded = ada.remote.discard_refused(RowSelection::Ids(&ids));
    assert_eq!(discarded.expect("it is there"), 1);
    // A refused row that is changed goes up by itself.
    ada.edit("INSERT INTO product VALUES (102, '', 0)");
    assert_eq!(ada.sync().refused, 1);
    ada.edit("UPDATE product SET name = 'named' WHERE product_id = 102");
    let report = ada.sync();
    assert_eq!((report.refused, report.uploaded.inserts), (0, 1));
    assert_eq!(ada.refused().len(), 0);
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
}

/// Tracking learns of a unique index of the user's at the beginning of a sync.
fn i2_a_row_that_replace_pushed_out_through_a_new_unique_index_is_lost_nowhere<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let before = ada.value("SELECT name FROM product WHERE product_id = 1");
    ada.edit(&format!(
        "CREATE UNIQUE INDEX of_the_user ON product (name);
         REPLACE INTO product VALUES (70, '{before}', 1);"
    ));
    bob.edit("UPDATE product SET stock = 77 WHERE product_id = 2");
    bob.sync();
    let report = ada.sync();
    assert_eq!((report.uploaded.inserts, report.uploaded.deletes), (1, 0));
    assert_eq!(report.refused, 0);
    assert_eq!(
        world.rows("SELECT product_id FROM product WHERE product_id IN (1, 70) ORDER BY 1"),
        ["1", "70"]
    );
    // One of the two waits until both can be here.
    assert_eq!(ada.value("SELECT count(*) FROM tidewater_stale"), "1");
    ada.edit("DROP INDEX of_the_user");
    ada.sync();
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
}

on_both_adapters!(
    i2_a_row_that_replace_pushed_out_through_a_new_unique_index_is_lost_nowhere,
    i2_every_local_change_is_in_the_centre_or_pending_at_any_moment,
    i2_a_refused_change_stays_on_both_sides_until_the_user_decides,
);
