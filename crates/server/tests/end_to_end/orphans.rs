//! Rows that refer to nothing: both sides say which value it is, and of which table.

use tidewater_centre::records::RefusedFilter;

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::{Column, Scenario, Table, shop};
use crate::world::World;

/// Key, code and reason of what was refused, as the device and the centre say them.
fn both_say<B: Backend>(world: &World<B>, device: &mut Device) -> Vec<(String, String)> {
    let filter = RefusedFilter {
        limit: 100,
        ..RefusedFilter::default()
    };
    let found = world
        .server
        .ask(async |centre| centre.find_refused(&filter).await);
    let found = found.expect("they can be read").into_iter();
    let mut of_centre: Vec<_> = found.map(|it| (it.key, it.reason)).collect();
    of_centre.sort();
    let refused = device.refused().into_iter();
    let mut of_device: Vec<_> = refused.map(|it| (it.key, it.reason)).collect();
    of_device.sort();
    assert_eq!(of_device, of_centre);
    let listed = device.rows("SELECT key, reason FROM tidewater_refused ORDER BY key");
    let own: Vec<_> = of_device
        .iter()
        .map(|it| format!("{}|{}", it.0, it.1))
        .collect();
    assert_eq!(listed, own);
    of_device
}

fn a_refused_foreign_key_names_value_table_and_columns<B: Backend>() {
    let mut scenario = shop();
    scenario.schema += "INSERT INTO customer VALUES (90, 1, 'gone', NULL, 0);";
    let world = World::<B>::open(scenario);
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO invoice VALUES (200, 1, 90, 'new'), (201, 1, 1, 'fine');
         UPDATE invoice SET customer_id = 90 WHERE invoice_id = 1",
    );
    world.execute("DELETE FROM customer WHERE customer_id = 90");
    assert_eq!(ada.sync().refused, 2);
    let reason = "the row of customer with customer_id = 90 is not there; invoice.customer_id \
                  refers to it";
    let expected = ["[1]", "[200]"].map(|key| (key.to_owned(), reason.to_owned()));
    assert_eq!(both_say(&world, &mut ada), expected);
    let taken = "SELECT note FROM invoice WHERE invoice_id = 201";
    assert_eq!(world.rows(taken), ["fine"]);
}

/// As many as are looked for together, and one of them at a time where some are taken.
fn each_of_many_orphans_is_named<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit(
        "PRAGMA foreign_keys = OFF;
         WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 1099)
         INSERT INTO invoice SELECT i, 1, CASE i % 2 WHEN 0 THEN 1 ELSE i END, 'x' FROM n",
    );
    assert_eq!(ada.sync().refused, 50);
    let told = both_say(&world, &mut ada);
    assert_eq!(told.len(), 50);
    for (key, reason) in told {
        let id = key.trim_matches(['[', ']']);
        let named = format!("the row of customer with customer_id = {id} is not there;");
        assert!(reason.starts_with(&named), "{key}: {reason}");
    }
}

const NODES: &[Table] = &[Table {
    name: "node",
    columns: &[
        Column::Plain("id"),
        Column::Plain("region"),
        Column::Plain("parent_region"),
        Column::Plain("parent_id"),
        Column::Plain("twin_region"),
        Column::Plain("twin_id"),
    ],
    scope: "1 = 1",
    parents: &[],
}];

/// Several columns, several keys, the row itself, and a check that waits for the end.
fn keys_of_several_columns_that_may_wait_are_named<B: Backend>() {
    let world = World::<B>::open(Scenario {
        schema: "CREATE TABLE node (id INTEGER NOT NULL, region VARCHAR(20) NOT NULL,
                   parent_region VARCHAR(20), parent_id INTEGER,
                   twin_region VARCHAR(20), twin_id INTEGER,
                   PRIMARY KEY (id, region),
                   FOREIGN KEY (parent_id, parent_region) REFERENCES node (id, region)
                     DEFERRABLE INITIALLY DEFERRED,
                   FOREIGN KEY (twin_id, twin_region) REFERENCES node (id, region));"
            .into(),
        publication: "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"node\"
partition = \"everyone\"
",
        tables: NODES,
        users: &["ada"],
        limits: "",
    });
    let mut ada = world.synced("ada");
    ada.edit(
        "PRAGMA foreign_keys = OFF;
         INSERT INTO node VALUES
           (1, 'a', 'a', 1, 'a', 1),
           (2, 'a', 'no \"b\"', 7, NULL, NULL),
           (3, 'a', 'a', 1, 'c', 8),
           (4, 'a', 'd', 9, 'd', 9),
           (5, 'a', 'e', NULL, NULL, 5)",
    );
    assert_eq!(ada.sync().refused, 3);
    let told = both_say(&world, &mut ada);
    let reasons: Vec<&str> = told.iter().map(|it| &*it.1).collect();
    let parent = "node.parent_id and node.parent_region refer to it";
    let twin = "node.twin_id and node.twin_region refer to it";
    let missing = |id: u8, region: &str, refer: &str| {
        format!("the row of node with id = {id} and region = {region} is not there; {refer}")
    };
    assert_eq!(reasons[0], missing(7, "\"no \\\"b\\\"\"", parent));
    assert_eq!(reasons[1], missing(8, "\"c\"", twin));
    let mut both: Vec<&str> = reasons[2].split("; the row").collect();
    both.sort_unstable();
    let both = both.join("; the row");
    for refer in [parent, twin] {
        assert!(both.contains(refer), "{both}");
    }
    assert_eq!(world.rows("SELECT id FROM node ORDER BY id"), ["1", "5"]);
}

on_both_adapters!(
    a_refused_foreign_key_names_value_table_and_columns,
    each_of_many_orphans_is_named,
    keys_of_several_columns_that_may_wait_are_named,
);
