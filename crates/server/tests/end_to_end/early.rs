//! Uploads that the centre applies while they arrive, exactly once all the same.
//!
//! Here every upload may go early, however small. SQLite centres take none early, and the
//! same must come of it there.

use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::cuts::cut_everywhere_in;
use crate::device::Device;
use crate::ledger::Ledger;
use crate::scenario::{Scenario, audited_shop};
use crate::world::World;

fn early_shop<B: Backend>() -> Scenario {
    Scenario {
        limits: "early_upload = 1\nupload_workers = 1",
        ..audited_shop::<B>()
    }
}

/// Inserts, and on other days updates and deletes too: nothing that would be refused.
fn make_a_quiet_day<B: Backend>(world: &World<B>, ada: &mut Device, ledger: &mut Ledger, day: i64) {
    let (own, theirs) = (1_000 + 2 * day, 5_000 + day);
    for id in [own, own + 1] {
        ada.edit(&format!("INSERT INTO product VALUES ({id}, 'own {id}', 0)"));
        ledger.product("insert", id, &format!("own {id}"));
    }
    if day % 2 == 1 {
        ada.edit(&format!(
            "UPDATE product SET name = 'updated {day}' WHERE product_id = 1;
             DELETE FROM product WHERE product_id = {own} - 1;"
        ));
        ledger.product("update", 1, &format!("updated {day}"));
        ledger.product("delete", own - 1, "");
    }
    world.execute(&format!(
        "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0)"
    ));
}

fn i1_a_cut_after_any_frame_of_an_early_upload_applies_every_change_once<B: Backend>() {
    for way in [Way::Up, Way::Down] {
        cut_everywhere_in::<B>(early_shop::<B>(), way, Accident::CutAfter, make_a_quiet_day);
    }
}

fn i1_a_cut_inside_any_frame_of_an_early_upload_applies_every_change_once<B: Backend>() {
    for way in [Way::Up, Way::Down] {
        cut_everywhere_in::<B>(
            early_shop::<B>(),
            way,
            Accident::CutInside,
            make_a_quiet_day,
        );
    }
}

/// The connection stands still in the middle of an early upload: the only worker applies
/// somebody else's meanwhile, who may even take the same number.
fn a_network_that_stalls_in_an_early_upload_holds_up_nobody<B: Backend>() {
    let world = World::<B>::open(early_shop::<B>());
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let network = ada.network.clone();
    for message in [is_table, is_end] {
        let day = ada.rows("SELECT count(*) FROM product")[0].clone();
        ada.edit(&format!(
            "INSERT INTO product VALUES (10{day}, 'ada {day}', 0)"
        ));
        bob.edit(&format!(
            "INSERT INTO product VALUES (20{day}, 'bob {day}', 0)"
        ));
        network.plan(Place::message(Way::Up, message), Accident::Stall);
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| ada.sync());
            network.wait_for_stall().expect("the upload comes so far");
            bob.sync();
            network.release();
            let report = sync.join().expect("the sync ends");
            assert_eq!(report.uploaded.inserts, 1);
        });
        network.finish_plan();
        bob.sync();
        assert_converged(&world, &[&ada, &bob]);
    }
}

fn is_table(control: &Control) -> bool {
    matches!(control, Control::TableBegin(_))
}

fn is_end(control: &Control) -> bool {
    matches!(control, Control::UploadEnd(_))
}

on_both_adapters!(
    i1_a_cut_after_any_frame_of_an_early_upload_applies_every_change_once,
    i1_a_cut_inside_any_frame_of_an_early_upload_applies_every_change_once,
    a_network_that_stalls_in_an_early_upload_holds_up_nobody,
);
