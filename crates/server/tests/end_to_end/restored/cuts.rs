//! Broken off anywhere while something is given back: exactly once all the same.

use std::path::Path;

use tempfile::TempDir;
use tidewater_testing::proxy::{Accident, Place, Way};

use super::backup;
use crate::backend::{Backend, save_sqlite};
use crate::compare::assert_converged;
use crate::scenario::audited_shop;
use crate::world::World;

/// No connection of these tests has so many frames in one direction.
const MANY: usize = 200;

fn i1_a_cut_inside_any_frame_up_gives_back_once<B: Backend>() {
    cut_everywhere::<B>(Way::Up);
}

fn i1_a_cut_inside_any_frame_down_gives_back_once<B: Backend>() {
    cut_everywhere::<B>(Way::Down);
}

/// The same restored centre and the same file again and again, each time cut a frame later.
fn cut_everywhere<B: Backend>(way: Way) {
    let mut world = World::<B>::open(audited_shop::<B>());
    let mut ada = world.synced("ada");
    let backup = backup(&world);
    for number in 1..=2 {
        ada.edit(&format!(
            "INSERT INTO product VALUES ({0}, 'given back', 1);
             UPDATE product SET name = 'update {number}' WHERE product_id = 1;",
            70 + number
        ));
        ada.sync();
    }
    ada.edit("INSERT INTO product VALUES (90, 'pending', 1)");
    let files = TempDir::new().expect("a temporary folder");
    let file = files.path().join("ada.db");
    save_sqlite(&ada.path, &file);
    drop(ada);
    for frame in 0..MANY {
        world.replace(B::restore(backup.path()));
        if !cut_once(&world, &file, Place::frame(way, frame)) {
            // Told to give back, twice that, what is pending, the comparison: at least a
            // question, an upload or its result, and an end of each.
            assert!(frame >= 12, "it gives back in {frame} frames");
            return;
        }
    }
    panic!("a sync of more than {MANY} frames");
}

/// Whether the frame was there to be cut.
fn cut_once<B: Backend>(world: &World<B>, file: &Path, place: Place) -> bool {
    let mut ada = world.device_from("ada", file);
    ada.network.plan(place, Accident::CutInside);
    let outcome = ada.try_sync();
    let was_cut = ada.network.finish_plan();
    assert!(was_cut || outcome.is_ok(), "{outcome:?}");
    // What is not in the file is forgotten.
    ada.reopen(|| {});
    ada.sync();
    assert_eq!(ada.pending(), 0);
    assert_converged(world, &[&ada]);
    let once = [
        "product|insert|71|given back",
        "product|insert|72|given back",
        "product|insert|90|pending",
        "product|update|1|update 1",
        "product|update|1|update 2",
    ];
    let mut audit = world.rows("SELECT line FROM audit");
    audit.sort();
    assert_eq!(audit, once);
    assert_eq!(world.server.conflicts(), []);
    was_cut
}

on_both_adapters!(
    i1_a_cut_inside_any_frame_up_gives_back_once,
    i1_a_cut_inside_any_frame_down_gives_back_once,
);
