//! Remotes whose files were changed behind the back of tracking: tables that a tool rebuilt,
//! emptied or took apart; and the command that finds out and repairs.

use std::ops::ControlFlow;

use tidewater_client::Verification;

use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::shop;
use crate::world::World;

pub(crate) fn verify(device: &mut Device, repair: bool) -> Verification {
    let verified = device
        .remote
        .verify(repair, &mut |_| ControlFlow::Continue(()));
    verified.expect("the remote can be verified")
}

/// Changes rows of a table without any trace.
pub(crate) fn behind_the_back(device: &Device, table: &str, sql: &str) {
    let triggers = device.rows(&format!(
        "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'"
    ));
    let names = device.rows(&format!(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'"
    ));
    let drops: Vec<String> = names
        .iter()
        .map(|name| format!("DROP TRIGGER \"{name}\";"))
        .collect();
    device.edit(&format!(
        "BEGIN; {} {sql}; {}; COMMIT",
        drops.concat(),
        triggers.join(";")
    ));
}

fn what_differs_is_told_and_stays_until_it_is_repaired<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let found = verify(&mut ada, false);
    assert!(found.is_equal && !found.repaired, "{found:?}");
    assert!(found.tables.iter().all(|table| table.is_equal()));
    behind_the_back(
        &ada,
        "product",
        "UPDATE product SET name = 'other' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;
         INSERT INTO product VALUES (99, 'extra', 1)",
    );
    ada.edit("UPDATE product SET stock = 77 WHERE product_id = 3");
    let rows = "SELECT product_id || name FROM product ORDER BY product_id";
    let changed = ada.rows(rows);
    // The change of the user's is uploaded first, and is no difference.
    let found = verify(&mut ada, false);
    assert!(!found.is_equal && !found.repaired, "{found:?}");
    assert_eq!(found.sync.uploaded.updates, 1);
    let product = found.tables.iter().find(|it| it.table == "product");
    let product = product.expect("all tables are told");
    assert_eq!(
        (product.missing, product.extra, product.different),
        (1, 1, 1)
    );
    assert_eq!(product.equal, 1);
    let mut told: Vec<_> = product
        .rows
        .iter()
        .map(|it| (&it.key[..], it.what))
        .collect();
    told.sort_unstable();
    let expected = [("[1]", "different"), ("[2]", "missing"), ("[99]", "extra")];
    assert_eq!(told, expected);
    assert_eq!(ada.rows(rows), changed);
    // Nor does an ordinary sync see it.
    ada.sync();
    assert_eq!(ada.rows(rows), changed);
    let repaired = verify(&mut ada, true);
    assert!(repaired.is_equal && repaired.repaired, "{repaired:?}");
    assert_converged(&world, &[&ada]);
    assert_eq!(ada.pending(), 0);
}

/// Interleaving 24.
fn what_is_changed_after_a_tool_rebuilt_a_table_goes_up<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("UPDATE product SET stock = 15 WHERE product_id = 1");
    ada.edit(
        "CREATE TABLE other AS SELECT * FROM product;
         DROP TABLE product;
         CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT, stock INTEGER);
         INSERT INTO product (product_id, name, stock) \
           SELECT product_id, name, stock FROM other;
         DROP TABLE other;
         UPDATE product SET name = 'renamed' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;
         INSERT INTO product VALUES (50, 'new', 5);",
    );
    ada.sync();
    bob.sync();
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    assert_eq!(
        world.rows(products),
        ["1|pen|15", "2|renamed|20", "50|new|5"]
    );
    assert_eq!((ada.pending(), ada.refused().len()), (0, 0));
    assert_converged(&world, &[&ada, &bob]);
}

/// Rebuilds the table of products as a tool does; the application goes on without triggers.
fn rebuild_products(device: &Device, sql: &str) {
    device.edit(&format!(
        "CREATE TABLE other (product_id INTEGER PRIMARY KEY, name TEXT, stock INTEGER);
         INSERT INTO other SELECT product_id, name, stock FROM product;
         DROP TABLE product; ALTER TABLE other RENAME TO product; {sql}"
    ));
}

/// What the user changes again before the tables are compared was made from what nobody recorded:
/// it would lose against a row that nobody else has changed.
fn what_is_changed_before_an_untracked_table_is_compared_goes_up<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    rebuild_products(
        &ada,
        "UPDATE product SET name = 'mine' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;
         INSERT INTO product VALUES (50, 'new', 5)",
    );
    ada.network
        .plan(Place::frame(Way::Down, 0), Accident::CutInside);
    ada.try_sync().expect_err("the connection is cut");
    ada.edit(
        "UPDATE product SET stock = 21 WHERE product_id = 2;
         INSERT INTO product VALUES (3, 'cap again', 30);
         UPDATE product SET stock = 6 WHERE product_id = 50",
    );
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused), (0, 0), "{report:?}");
    assert_eq!(ada.pending(), 0);
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    assert_eq!(
        world.rows(products),
        ["1|pen|10", "2|mine|21", "3|cap again|30", "50|new|6"]
    );
    assert_converged(&world, &[&ada]);
}

/// What others add meanwhile is not taken for rows that the user deleted, and what the user
/// changed is kept.
fn nothing_of_others_is_deleted<B: Backend>(empty: impl FnOnce(&mut World<B>)) {
    let mut world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    rebuild_products(
        &ada,
        "UPDATE product SET name = 'mine' WHERE product_id = 2;
         INSERT INTO product VALUES (50, 'mine too', 5)",
    );
    ada.edit("UPDATE customer SET name = 'pending' WHERE customer_id = 1");
    empty(&mut world);
    world.execute("INSERT INTO product VALUES (1, 'pen', 11), (60, 'others', 6)");
    for device in [&ada, &bob] {
        device.network.redirect(world.server.address);
    }
    bob.edit("INSERT INTO product VALUES (61, 'of bob', 6)");
    bob.sync();
    for _ in 0..3 {
        ada.sync();
    }
    bob.sync();
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    let mut there = world.rows(products);
    let added = there.iter().position(|row| row == "50|mine too|5");
    let goes_up = added.map(|at| there.remove(at)).is_some();
    assert_eq!(there, ["1|pen|11", "60|others|6", "61|of bob|6"]);
    let renamed = "SELECT name FROM customer WHERE customer_id = 1";
    assert_eq!(world.rows(renamed), ["pending"]);
    let refused = ada.refused();
    let kept = |what: &str| {
        let mut values = refused.iter().filter_map(|it| it.values.as_deref());
        values.any(|values| values.contains(what))
    };
    // Where the centre knows that nobody there has added it, the user's row goes up.
    assert!(
        kept("\"mine\"") && kept("mine too") != goes_up,
        "{refused:?}"
    );
    assert_eq!(ada.pending(), 0);
    assert_converged(&world, &[&ada, &bob]);
}

fn after_a_tool_rebuilt_a_table_that_others_emptied_nothing_of_theirs_is_deleted<B: Backend>() {
    nothing_of_others_is_deleted::<B>(|world| {
        // Only where the fastest way leaves no word of the rows, there is something to fear.
        world.execute(match B::NAME {
            "postgres" => "TRUNCATE product",
            _ => "DELETE FROM product",
        });
    });
}

fn after_a_tool_rebuilt_a_table_whose_log_began_anew_nothing_of_others_is_deleted<B: Backend>() {
    nothing_of_others_is_deleted::<B>(|world| {
        let publication = world.publication.clone();
        world.republish(&format!("{publication}tracking = \"off\"\n"));
        world.execute("DELETE FROM product");
        world.republish(&publication);
    });
}

fn a_table_that_was_dropped_is_made_again_and_nothing_is_deleted<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit("UPDATE product SET stock = 1 WHERE product_id = 1; DROP TABLE product");
    let error = ada.try_sync().expect_err("the table is missing");
    let told = format!("{error}; {}", error.hint());
    assert!(
        told.contains("product") && told.contains("--repair"),
        "{told}"
    );
    let repaired = verify(&mut ada, true);
    assert_eq!(repaired.rebuilt, ["product"]);
    assert!(repaired.is_equal, "{repaired:?}");
    assert_eq!(world.rows("SELECT count(*) FROM product"), ["3"]);
    assert_converged(&world, &[&ada]);
    ada.edit("UPDATE product SET stock = 2 WHERE product_id = 1");
    assert_eq!(ada.sync().uploaded.updates, 1);
    assert_converged(&world, &[&ada]);
}

fn a_column_that_a_tool_left_out_is_made_again_and_filled<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit("UPDATE product SET name = 'pending' WHERE product_id = 1");
    ada.edit(
        "CREATE TABLE other (product_id INTEGER PRIMARY KEY, name TEXT, mine TEXT);
         INSERT INTO other SELECT product_id, name, 'mine' FROM product;
         DROP TABLE product; ALTER TABLE other RENAME TO product;
         UPDATE product SET name = 'untracked' WHERE product_id = 2;
         INSERT INTO product VALUES (4, 'new', 'mine')",
    );
    let error = ada.try_sync().expect_err("a column is missing");
    assert!(error.to_string().contains("\"stock\""), "{error}");
    let repaired = verify(&mut ada, true);
    assert!(repaired.is_equal, "{repaired:?}");
    let products = "SELECT product_id, name, stock FROM product ORDER BY product_id";
    assert_eq!(
        world.rows(products),
        ["1|pending|10", "2|untracked|20", "3|cap|30"]
    );
    // The centre takes no row without the column.
    assert_eq!(ada.rows(products)[..3], world.rows(products));
    assert_eq!(ada.rows(products)[3], "4|new|NULL");
    assert_eq!(ada.value("SELECT key FROM tidewater_refused"), "[4]");
    assert_eq!(ada.value("SELECT DISTINCT mine FROM product"), "mine");
}

on_both_adapters!(
    what_differs_is_told_and_stays_until_it_is_repaired,
    what_is_changed_after_a_tool_rebuilt_a_table_goes_up,
    what_is_changed_before_an_untracked_table_is_compared_goes_up,
    after_a_tool_rebuilt_a_table_that_others_emptied_nothing_of_theirs_is_deleted,
    after_a_tool_rebuilt_a_table_whose_log_began_anew_nothing_of_others_is_deleted,
    a_table_that_was_dropped_is_made_again_and_nothing_is_deleted,
    a_column_that_a_tool_left_out_is_made_again_and_filled,
);
