//! Exactly once, wherever the connection breaks.

use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged_but_refused;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{Scenario, audited_shop};
use crate::world::World;

/// No sync of these tests has so many frames in one direction.
const MANY_FRAMES: usize = 100;

fn i1_a_cut_after_any_frame_up_applies_every_change_once<B: Backend>() {
    cut_everywhere::<B>(Way::Up, Accident::CutAfter);
}

fn i1_a_cut_inside_any_frame_up_applies_every_change_once<B: Backend>() {
    cut_everywhere::<B>(Way::Up, Accident::CutInside);
}

fn i1_a_cut_after_any_frame_down_applies_every_change_once<B: Backend>() {
    cut_everywhere::<B>(Way::Down, Accident::CutAfter);
}

fn i1_a_cut_inside_any_frame_down_applies_every_change_once<B: Backend>() {
    cut_everywhere::<B>(Way::Down, Accident::CutInside);
}

/// Cuts one sync after the other, each a frame later, until one has no more frames. The
/// ledger is checked after each cut (I2) and after each recovery (I1).
fn cut_everywhere<B: Backend>(way: Way, accident: Accident) {
    cut_everywhere_in::<B>(audited_shop::<B>(), way, accident, make_a_busy_day);
}

/// With these days between the cuts.
pub(crate) fn cut_everywhere_in<B: Backend>(
    scenario: Scenario,
    way: Way,
    accident: Accident,
    make_a_day: impl Fn(&World<B>, &mut Device, &mut Ledger, i64),
) {
    let world = World::<B>::open(scenario);
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let mut ledger = Ledger::default();
    for frame in 0..MANY_FRAMES {
        make_a_day(&world, &mut ada, &mut ledger, frame as i64);
        ada.network.plan(Place::frame(way, frame), accident);
        let outcome = ada.try_sync();
        let was_cut = ada.network.finish_plan();
        assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        ledger.assert_somewhere(&world, &mut ada);
        if was_cut {
            ada.sync();
        }
        ledger.assert_settled(&world, &mut ada);
        assert_eq!(ada.pending(), 0);
        bob.sync();
        assert_converged_but_refused(&world, &mut [&mut ada, &mut bob]);
        if !was_cut {
            assert!(frame > 5, "a sync has more than {frame} frames");
            return;
        }
    }
    panic!("a sync of more than {MANY_FRAMES} frames");
}

/// On the remote an insert, an update, a delete, a conflict and a row that will be refused;
/// in the centre an insert, an update and a delete.
fn make_a_busy_day<B: Backend>(world: &World<B>, ada: &mut Device, ledger: &mut Ledger, day: i64) {
    let (own, refused, theirs) = (1_000 + day, 2_000 + day, 3_000 + day);
    ada.edit(&format!(
        "INSERT INTO product VALUES ({own}, 'own {day}', 0);
         UPDATE product SET name = 'updated {day}' WHERE product_id = 1;
         UPDATE product SET name = 'lost {day}' WHERE product_id = 2;
         INSERT INTO product VALUES ({refused}, '', {day});
         DELETE FROM product WHERE product_id = {own} - 1;"
    ));
    ledger.product("insert", own, &format!("own {day}"));
    ledger.product("update", 1, &format!("updated {day}"));
    ledger.product("update", 2, &format!("lost {day}"));
    ledger.product("insert", refused, "");
    if day > 0 {
        ledger.product("delete", own - 1, "");
    }
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0);
         UPDATE product SET name = 'won {day}' WHERE product_id = 2;
         UPDATE customer SET balance = balance + 1 WHERE customer_id = 1;
         DELETE FROM product WHERE product_id = {theirs} - 1;"
    ));
}

on_both_adapters!(
    i1_a_cut_after_any_frame_up_applies_every_change_once,
    i1_a_cut_inside_any_frame_up_applies_every_change_once,
    i1_a_cut_after_any_frame_down_applies_every_change_once,
    i1_a_cut_inside_any_frame_down_applies_every_change_once,
);
