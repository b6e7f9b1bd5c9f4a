//! Tables and columns that leave the publication while remotes have changes of them.

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::shop;
use crate::world::World;

/// The shop without products.
const NO_PRODUCTS: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "invoice"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }
"#;

/// The shop without the stock of products.
const NO_STOCK: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
columns = ["product_id", "name"]
"#;

fn republish<B: Backend>(world: &mut World<B>, device: &Device, publication: &'static str) {
    world.republish(publication);
    device.network.redirect(world.server.address);
}

fn i2_changes_of_a_table_that_is_not_published_any_more_are_refused_on_both_sides<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO product VALUES (7, 'mine', 1); DELETE FROM product WHERE product_id = 2;
         UPDATE product SET name = 'mine' WHERE product_id = 1;
         UPDATE customer SET name = 'mine' WHERE customer_id = 1;",
    );
    republish(&mut world, &ada, NO_PRODUCTS);
    let report = ada.sync();
    assert_eq!((report.uploaded.updates, report.refused), (1, 3));
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id = 1"),
        ["mine"]
    );
    let values = |rows: Vec<(String, String, String)>| {
        let mut rows = rows;
        rows.sort();
        rows
    };
    let here = ada
        .refused()
        .into_iter()
        .map(|it| (it.key, it.code, it.values.unwrap_or_default()));
    let here = values(here.collect());
    let expected = [
        ("[1]", r#"{"name":"mine","product_id":1,"stock":10}"#),
        ("[2]", r#"{"product_id":2}"#),
        ("[7]", r#"{"name":"mine","product_id":7,"stock":1}"#),
    ];
    let expected =
        expected.map(|(key, row)| (key.to_owned(), "not_published".to_owned(), row.to_owned()));
    assert_eq!(here, expected);
    let there = world.server.refused();
    let there = values(
        there
            .into_iter()
            .map(|it| (it.key, it.code, it.row))
            .collect(),
    );
    assert_eq!(there.len(), 3);
    assert!(there.iter().all(|it| it.1 == "not_published"), "{there:?}");
    assert!(there[2].2.contains(r#""name":"mine""#), "{there:?}");
    let tables = "SELECT count(*) FROM sqlite_master WHERE name LIKE '%product%'";
    assert_eq!(ada.value(tables), "0");
    assert_eq!(ada.remote.status().expect("it can be read").refused, 3);
    // Nothing is in the way of the next syncs.
    ada.edit("UPDATE customer SET name = 'again' WHERE customer_id = 1");
    let report = ada.sync();
    assert_eq!((report.uploaded.updates, report.refused), (1, 0));
}

fn a_column_that_is_not_published_any_more_does_not_hold_up_changes_of_others<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit(
        "UPDATE product SET name = 'mine', stock = 5 WHERE product_id = 1;
         UPDATE product SET stock = 6 WHERE product_id = 2;
         UPDATE invoice SET note = 'mine' WHERE invoice_id = 1;",
    );
    republish(&mut world, &ada, NO_STOCK);
    let report = ada.sync();
    // One of the table that left, and two of the column.
    assert_eq!(report.refused, 3);
    assert_eq!(
        world.rows("SELECT name, stock FROM product WHERE product_id = 1"),
        ["mine|10"]
    );
    let of_products = |table: &str| table == "product";
    let here = ada.refused().into_iter();
    let here = here.filter(|it| of_products(&it.table));
    let here: Vec<_> = here.map(|it| it.values.unwrap_or_default()).collect();
    let lost = [
        r#"{"product_id":1,"stock":5}"#,
        r#"{"product_id":2,"stock":6}"#,
    ];
    assert_eq!(here, lost);
    let there = world.server.refused().into_iter();
    let there = there.filter(|it| of_products(&it.table));
    assert_eq!(there.map(|it| it.row).collect::<Vec<_>>(), lost);
    assert_eq!(
        ada.rows("SELECT name FROM product ORDER BY product_id"),
        ["mine", "ink", "cap"]
    );
    assert_eq!(ada.sync().refused, 0);
}

fn changes_refused_with_a_changed_scope_are_listed_and_tried_with_the_next_sync<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    // A partition that bob does not have, while another one comes.
    bob.edit("INSERT INTO customer VALUES (50, 3, 'fifty', NULL, '0.00')");
    world.execute("INSERT INTO assignment VALUES ('bob', 1)");
    let report = bob.sync();
    assert_eq!(report.refused, 1);
    let refused = bob.refused();
    assert_eq!(refused.len(), 1);
    assert_eq!(
        (&*refused[0].key, &*refused[0].code),
        ("[50]", "out_of_scope")
    );
    world.execute("INSERT INTO assignment VALUES ('bob', 3)");
    let report = bob.sync();
    assert_eq!((report.uploaded.inserts, report.refused), (1, 0));
    assert_eq!(bob.refused().len(), 0);
    assert_converged(&world, &[&bob]);
}

fn a_child_of_a_refused_parent_stays_on_the_remote_with_its_reason<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.synced("bob");
    bob.edit(
        "INSERT INTO customer VALUES (3, 2, 'mine', NULL, '0.00');
         INSERT INTO invoice VALUES (60, 2, 3, 'for mine'), (61, 2, 2, 'for two');",
    );
    let report = bob.sync();
    assert_eq!((report.uploaded.inserts, report.refused), (1, 2));
    let mut reasons: Vec<_> = bob
        .refused()
        .into_iter()
        .map(|it| (it.table, it.reason))
        .collect();
    reasons.sort();
    let expected = [
        ("customer", "key in use"),
        (
            "invoice",
            "the row that it refers to was refused: customer [3]",
        ),
    ];
    assert_eq!(
        reasons,
        expected.map(|(table, reason)| (table.to_owned(), reason.to_owned()))
    );
    assert_eq!(
        world.rows("SELECT invoice_id FROM invoice WHERE customer_id = 3 ORDER BY 1"),
        ["3", "4"]
    );
}

on_both_adapters!(
    i2_changes_of_a_table_that_is_not_published_any_more_are_refused_on_both_sides,
    a_column_that_is_not_published_any_more_does_not_hold_up_changes_of_others,
    changes_refused_with_a_changed_scope_are_listed_and_tried_with_the_next_sync,
    a_child_of_a_refused_parent_stays_on_the_remote_with_its_reason,
);
