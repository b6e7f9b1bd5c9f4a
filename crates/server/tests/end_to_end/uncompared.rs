//! Tables of which scripts tell what is new: what their devices changed while no trigger recorded
//! it, and what a compare says of them.

use tidewater_centre::ScriptSpec;

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::shop;
use crate::verifying::{behind_the_back, verify};
use crate::world::World;

const PRODUCTS: &str = "SELECT product_id, name, stock FROM product ORDER BY product_id";

/// Later than all downloads of these tests: what has this time comes with each of them.
const CHANGED: &str = "2999-01-01 00:00:00";

/// The shop, whose products are downloaded by the time of their last change.
fn by_time<B: Backend>(tells_deletes: bool) -> World<B> {
    let mut scenario = shop();
    let time = match B::NAME {
        "postgres" => "TIMESTAMPTZ",
        _ => "TEXT",
    };
    scenario.schema.push_str(&format!(
        "CREATE TABLE product_stamp (product_id INTEGER PRIMARY KEY, at {time});
         CREATE TABLE product_gone (product_id INTEGER PRIMARY KEY, at {time});
         INSERT INTO product VALUES (4, 'cup', 40), (5, 'hat', 50);"
    ));
    let script = |event, sql: &str| ScriptSpec::at("scripts", ["default", "product", event], sql);
    let mut scripts = vec![script(
        "download_cursor",
        "SELECT p.product_id, p.name, p.stock FROM product p \
         LEFT JOIN product_stamp s ON s.product_id = p.product_id \
         WHERE coalesce(s.at, '2000-01-01 00:00:00') >= {s.last_download}",
    )];
    if tells_deletes {
        scripts.push(script(
            "download_delete_cursor",
            "SELECT product_id FROM product_gone WHERE at >= {s.last_download}",
        ));
    }
    World::<B>::open_changed(B::new(), scenario, |config| {
        config.publications[0].scripts = scripts;
    })
}

/// Makes the table of products as a tool does; the application goes on without triggers.
fn rebuild_products(device: &Device) {
    device.edit(
        "CREATE TABLE other (product_id INTEGER PRIMARY KEY, name TEXT, stock INTEGER);
         INSERT INTO other SELECT product_id, name, stock FROM product;
         DROP TABLE product; ALTER TABLE other RENAME TO product;
         UPDATE product SET name = 'mine' WHERE product_id = 1;
         UPDATE product SET name = 'both' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;
         INSERT INTO product VALUES (50, 'new', 5)",
    );
}

/// Others change a product, add one, and delete one.
fn change_products<B: Backend>(world: &World<B>) {
    world.execute(&format!(
        "UPDATE product SET stock = 21 WHERE product_id = 2;
         INSERT INTO product VALUES (60, 'theirs', 6);
         DELETE FROM product WHERE product_id = 4;
         INSERT INTO product_stamp VALUES (2, '{CHANGED}'), (60, '{CHANGED}');
         INSERT INTO product_gone VALUES (4, '{CHANGED}')"
    ));
}

/// The keys of rows whose values are kept because nobody recorded who changed them.
fn kept(device: &mut Device) -> Vec<String> {
    let refused = device.refused().into_iter();
    let mut kept: Vec<String> = refused
        .filter(|it| it.code == "untracked")
        .map(|it| it.key)
        .collect();
    kept.sort();
    kept
}

fn what_is_changed_in_a_rebuilt_table_that_scripts_download_goes_up<B: Backend>() {
    let world = by_time::<B>(true);
    let mut ada = world.synced("ada");
    rebuild_products(&ada);
    change_products(&world);
    ada.sync();
    let expected = [
        "1|mine|10",
        "2|ink|21",
        "5|hat|50",
        "50|new|5",
        "60|theirs|6",
    ];
    assert_eq!(world.rows(PRODUCTS), expected);
    assert_eq!(ada.rows(PRODUCTS), expected);
    assert_eq!(ada.pending(), 0);
    // Two rows that others had changed, too.
    assert_eq!(kept(&mut ada), ["[2]", "[4]"]);
    // It is tracked again.
    ada.edit("UPDATE product SET stock = 51 WHERE product_id = 5");
    assert_eq!(ada.sync().uploaded.updates, 1);
    let untracked = "SELECT count(*) FROM tidewater_untracked";
    assert_eq!(ada.value(untracked), "0");
}

/// A row that only the device has may be one that was deleted in the centre: nobody tells.
fn a_rebuilt_table_whose_deletes_no_script_tells_brings_nothing_back<B: Backend>() {
    let world = by_time::<B>(false);
    let mut ada = world.synced("ada");
    rebuild_products(&ada);
    change_products(&world);
    ada.sync();
    let expected = ["1|mine|10", "2|ink|21", "5|hat|50", "60|theirs|6"];
    assert_eq!(world.rows(PRODUCTS), expected);
    assert_eq!(ada.rows(PRODUCTS), expected);
    assert_eq!(ada.pending(), 0);
    assert_eq!(kept(&mut ada), ["[2]", "[4]", "[50]"]);
}

fn a_table_that_scripts_download_is_told_as_not_compared<B: Backend>() {
    let world = by_time::<B>(true);
    let mut ada = world.synced("ada");
    behind_the_back(
        &ada,
        "product",
        "UPDATE product SET name = 'other' WHERE product_id = 1",
    );
    let changed = ada.rows(PRODUCTS);
    for repair in [false, true] {
        let found = verify(&mut ada, repair);
        assert!(found.is_equal && !found.repaired, "{found:?}");
        let of = |name: &str| found.tables.iter().find(|it| it.table == name);
        let product = of("product").expect("all tables are told");
        assert_eq!((product.uncompared, product.equal), (Some("script"), 0));
        let customer = of("customer").expect("all tables are told");
        assert_eq!(customer.uncompared, None);
        assert!(customer.equal > 0, "{customer:?}");
        assert_eq!(ada.rows(PRODUCTS), changed);
    }
}

on_both_adapters!(
    what_is_changed_in_a_rebuilt_table_that_scripts_download_goes_up,
    a_rebuilt_table_whose_deletes_no_script_tells_brings_nothing_back,
    a_table_that_scripts_download_is_told_as_not_compared,
);
