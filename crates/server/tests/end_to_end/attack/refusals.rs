//! Refused rows in odd company.

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::scenario::shop;
use crate::world::World;

fn a_refused_insert_stays_whatever_else_is_asked_for<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    // The balance is spelled as no centre spells it, so the row is asked for at once.
    ada.edit("INSERT INTO customer VALUES (70, 1, '', NULL, 2.5)");
    ada.edit("UPDATE customer SET name = '', balance = 3.5 WHERE customer_id = 1");
    for _ in 0..3 {
        ada.sync();
        assert_eq!(ada.refused().len(), 2);
        assert_eq!(
            ada.value("SELECT name FROM customer WHERE customer_id = 70"),
            ""
        );
        assert_eq!(
            ada.value("SELECT name FROM customer WHERE customer_id = 1"),
            ""
        );
    }
    ada.edit("UPDATE customer SET name = 'good' WHERE customer_id IN (1, 70)");
    ada.sync();
    assert_eq!(ada.refused(), []);
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id IN (1, 70)"),
        ["good", "good"]
    );
    assert_converged(&world, &[&ada]);
}

fn a_refused_insert_survives_a_table_that_is_sent_whole<B: Backend>() {
    let mut scenario = shop();
    scenario.publication = UNTRACKED;
    let world = World::<B>::open(scenario);
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (70, '', 1)");
    ada.sync();
    ada.sync();
    assert_eq!(
        ada.value("SELECT stock FROM product WHERE product_id = 70"),
        "1"
    );
    ada.edit("UPDATE product SET name = 'good' WHERE product_id = 70");
    ada.sync();
    assert_eq!(
        world.rows("SELECT name FROM product WHERE product_id = 70"),
        ["good"]
    );
    assert_converged(&world, &[&ada]);
}

const UNTRACKED: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "invoice"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
tracking = "off"
"#;

fn refused_edited_refused_retried_and_discarded_ends_equal<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit("UPDATE customer SET name = '' WHERE customer_id = 1");
    ada.sync();
    ada.edit("UPDATE customer SET balance = '9.00' WHERE customer_id = 1");
    ada.sync();
    assert_eq!(ada.refused().len(), 1);
    // Somebody else changes it in the centre, and it is refused again.
    world.execute("UPDATE customer SET balance = 77 WHERE customer_id = 1");
    ada.sync();
    ada.edit(
        "DELETE FROM invoice WHERE customer_id = 1; DELETE FROM customer WHERE customer_id = 1;
              INSERT INTO customer VALUES (1, 2, '', NULL, 1);",
    );
    ada.sync();
    ada.sync();
    world.execute("DELETE FROM assignment WHERE login = 'ada' AND region = 1");
    ada.sync();
    ada.sync();
    assert_eq!(ada.rows("SELECT * FROM customer WHERE region = 1"), [""; 0]);
    world.execute("INSERT INTO assignment VALUES ('ada', 1)");
    ada.sync();
    ada.discard_refused();
    ada.sync();
    ada.sync();
    assert_eq!(ada.refused(), []);
    assert_converged(&world, &[&ada]);
}

fn a_parent_that_leaves_while_its_child_is_pending_ends_equal<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    ada.edit("INSERT INTO invoice VALUES (50, 2, 2, 'pending'); UPDATE invoice SET note = 'x' WHERE invoice_id = 2");
    bob.edit("DELETE FROM customer WHERE customer_id = 2");
    bob.sync();
    ada.sync();
    ada.sync();
    bob.sync();
    ada.sync();
    let refused = ada.refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    ada.discard_refused();
    ada.sync();
    ada.sync();
    assert_converged(&world, &[&ada, &bob]);
}

fn a_row_that_moves_while_it_is_edited_on_both_sides_ends_equal<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let mut cleo = world.synced("cleo");
    ada.edit("UPDATE customer SET region = 3, name = 'moved' WHERE customer_id = 2");
    bob.edit("UPDATE customer SET name = 'bobs' WHERE customer_id = 2");
    cleo.edit("INSERT INTO customer VALUES (2, 3, 'cleos', NULL, '0.00')");
    ada.sync();
    cleo.sync();
    bob.sync();
    for _ in 0..2 {
        ada.sync();
        bob.sync();
        cleo.sync();
    }
    bob.discard_refused();
    cleo.discard_refused();
    bob.sync();
    cleo.sync();
    assert_eq!(
        bob.rows("SELECT * FROM customer WHERE customer_id = 2"),
        [""; 0]
    );
    assert_converged(&world, &[&ada, &bob, &cleo]);
}

on_both_adapters!(
    a_refused_insert_stays_whatever_else_is_asked_for,
    a_refused_insert_survives_a_table_that_is_sent_whole,
    refused_edited_refused_retried_and_discarded_ends_equal,
    a_parent_that_leaves_while_its_child_is_pending_ends_equal,
    a_row_that_moves_while_it_is_edited_on_both_sides_ends_equal,
);
