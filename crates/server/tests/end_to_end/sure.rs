//! Remotes that compare everything every so many syncs, because the operator wants to be sure: what
//! differs is found, told and repaired, and nothing else is.

use std::time::Duration;

use tidewater_centre::records::{IncidentKind, IncidentRecord};

use crate::backend::Backend;
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::device::Device;
use crate::scenario::shop;
use crate::world::World;

fn world<B: Backend>(verify_every: u64) -> World<B> {
    World::open_changed(B::new(), shop(), |config| {
        config.server.verify_every = verify_every;
    })
}

/// Statements that drop the triggers of a table, and those that make them again.
fn triggers_of(rows: impl Fn(&str) -> Vec<String>, table: &str) -> [String; 2] {
    let of_table = format!("FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'");
    let names = rows(&format!("SELECT name {of_table} ORDER BY name"));
    let drops: Vec<String> = names
        .iter()
        .map(|name| format!("DROP TRIGGER \"{name}\";"))
        .collect();
    let makes = rows(&format!("SELECT sql {of_table} ORDER BY name"));
    [drops.concat(), makes.join(";")]
}

/// Changes rows of a remote without any trace.
fn on_the_device(device: &Device, table: &str, sql: &str) {
    let [drops, makes] = triggers_of(|sql| device.rows(sql), table);
    device.edit(&format!("BEGIN; {drops} {sql}; {makes}; COMMIT"));
}

/// Changes rows of the centre without any trace.
fn in_the_centre<B: Backend>(world: &World<B>, table: &str, sql: &str) {
    if world.backend.url().starts_with("sqlite:") {
        let [drops, makes] = triggers_of(|sql| world.rows(sql), table);
        world.execute(&format!("BEGIN; {drops} {sql}; {makes}; COMMIT"));
    } else {
        world.execute(&format!(
            "SET session_replication_role = replica; {sql}; SET session_replication_role = origin"
        ));
    }
}

/// The differences that the operator has been told of, once so many syncs are in the history.
fn told<B: Backend>(world: &World<B>, syncs: usize) -> Vec<IncidentRecord> {
    loop {
        let status = world.server.ask(async |centre| centre.status().await);
        let status = status.expect("the status can be read");
        if status.syncs.len() >= syncs {
            let incidents = status.incidents.into_iter();
            return incidents
                .filter(|it| it.kind == IncidentKind::Differed)
                .collect();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Syncs until somebody is told; when a sync is counted, is a moment after it.
fn synced_until_told<B: Backend>(world: &World<B>, device: &mut Device) -> Vec<IncidentRecord> {
    for _ in 0..20 {
        device.sync();
        let before = told(world, 0);
        if !before.is_empty() {
            return before;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("nobody was told");
}

fn what_was_changed_on_a_device_behind_the_triggers_is_found_and_repaired<B: Backend>() {
    let world = world::<B>(3);
    let mut ada = world.synced("ada");
    on_the_device(
        &ada,
        "product",
        "UPDATE product SET name = 'other' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;
         INSERT INTO product VALUES (99, 'extra', 1)",
    );
    // What is refused stays as the user wrote it, and what is pending goes up.
    ada.edit(
        "INSERT INTO customer VALUES (80, 9, 'elsewhere', NULL, 0);
         UPDATE product SET stock = 77 WHERE product_id = 3",
    );
    let incidents = synced_until_told(&world, &mut ada);
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    let detail = &incidents[0].detail;
    assert_eq!(
        detail,
        "product: 1 missing, 1 extra, 1 different: [1] [2] [99]"
    );
    assert_eq!(
        (&*incidents[0].user, &*incidents[0].publication),
        ("ada", "main")
    );
    assert_eq!(ada.refused().len(), 1);
    assert_eq!(
        ada.value("SELECT name FROM customer WHERE customer_id = 80"),
        "elsewhere"
    );
    assert_eq!(
        world.rows("SELECT stock FROM product WHERE product_id = 3"),
        ["77"]
    );
    assert_converged_but_refused(&world, &mut [&mut ada]);
    assert_eq!(ada.pending(), 0);
}

fn what_was_changed_in_the_centre_behind_the_triggers_is_found_and_repaired<B: Backend>() {
    let world = world::<B>(2);
    let (mut ada, bob) = (world.synced("ada"), world.synced("bob"));
    in_the_centre(
        &world,
        "product",
        "UPDATE product SET name = 'unseen' WHERE product_id = 1",
    );
    let incidents = synced_until_told(&world, &mut ada);
    assert_eq!(
        incidents[0].detail,
        "product: 0 missing, 0 extra, 1 different: [1]"
    );
    assert_eq!(
        ada.value("SELECT name FROM product WHERE product_id = 1"),
        "unseen"
    );
    assert_converged(&world, &[&ada]);
    // Whoever has not synced has not been asked yet.
    assert_ne!(
        bob.value("SELECT name FROM product WHERE product_id = 1"),
        "unseen"
    );
}

fn what_changes_in_the_ordinary_way_is_no_difference<B: Backend>() {
    let world = world::<B>(1);
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    for round in 0..4 {
        world.execute(&format!(
            "UPDATE product SET stock = {round} WHERE product_id = 1;
             INSERT INTO product VALUES (20{round}, 'new', 0);
             UPDATE customer SET name = 'round {round}' WHERE customer_id = 2;
             DELETE FROM product WHERE product_id = 20{round} - 1"
        ));
        ada.edit(&format!(
            "INSERT INTO product VALUES (30{round}, 'adas', 0);
             UPDATE customer SET name = 'ada {round}' WHERE customer_id = 1"
        ));
        if round == 2 {
            world.execute("DELETE FROM assignment WHERE login = 'bob'");
        }
        ada.sync();
        bob.sync();
    }
    let incidents = told(&world, 10);
    assert!(incidents.is_empty(), "{incidents:?}");
    ada.sync();
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
}

fn nobody_is_asked_unless_the_operator_wants_it<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    on_the_device(
        &ada,
        "product",
        "UPDATE product SET name = 'other' WHERE product_id = 1",
    );
    for _ in 0..5 {
        ada.sync();
    }
    assert!(told(&world, 6).is_empty());
    assert_eq!(
        ada.value("SELECT name FROM product WHERE product_id = 1"),
        "other"
    );
}

on_both_adapters!(
    what_was_changed_on_a_device_behind_the_triggers_is_found_and_repaired,
    what_was_changed_in_the_centre_behind_the_triggers_is_found_and_repaired,
    what_changes_in_the_ordinary_way_is_no_difference,
    nobody_is_asked_unless_the_operator_wants_it,
);
