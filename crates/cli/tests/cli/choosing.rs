//! What a remote chooses: parameters, the end of a subscription, adopting a file's own tables.

use crate::program::sqlite;
use crate::shop::{Shop, TABLES, configure};

#[test]
fn a_parameter_is_kept_until_it_is_changed_or_dropped() {
    Shop::on_both_centres(|shop| {
        let tables = TABLES.replace(
            "name = \"product\"\npartition = \"everyone\"",
            "name = \"product\"\npartition = { columns = [\"name\"], values = \"SELECT {u.thing}\" }\n\
             [[publication.parameter]]\nname = \"thing\"\n\
             allowed = \"SELECT name FROM product WHERE name <> 'ink' OR {s.username} <> 'nancy'\"",
        );
        configure(&shop.place, &shop.centre, "", &tables);
        shop.place.tidewater(&["deploy"]).done();
        let nancy = shop.remote("nancy");
        let names = || nancy.rows("SELECT name FROM product");
        let sync = |more: &[&str]| {
            let mut arguments = vec!["sync", nancy.name.as_str(), "--json"];
            arguments.extend(more);
            shop.place.tidewater(&arguments)
        };
        assert!(names().is_empty());
        sync(&["--parameter", "thing=pen"]).done();
        assert_eq!(names(), ["pen"]);
        sync(&[]).done();
        assert_eq!(names(), ["pen"]);
        let denied = sync(&["--parameter", "thing=ink"]);
        assert_eq!(denied.code, 3);
        assert_eq!(denied.json()["error"]["code"], "parameter_not_allowed");
        assert_eq!(names(), ["pen"]);
        // What was refused does not stay: the next sync goes on with what there was.
        sync(&[]).done();
        assert_eq!(names(), ["pen"]);
        sync(&["--parameter", "thing="]).done();
        assert!(names().is_empty());
        assert_eq!(sync(&["--parameter", "thing"]).code, 1);
    });
}

#[test]
fn a_parameter_that_the_query_cannot_use_is_not_kept() {
    let shop = Shop::open_on_postgres();
    let tables = TABLES.replace(
        "name = \"product\"\npartition = \"everyone\"",
        "name = \"product\"\npartition = { columns = [\"product_id\"], \
         values = \"SELECT CAST({u.number} AS integer)\" }",
    );
    configure(&shop.place, &shop.centre, "", &tables);
    shop.place.tidewater(&["deploy"]).done();
    let nancy = shop.remote("nancy");
    let set = |value: &str| {
        let parameter = format!("number={value}");
        let arguments = ["sync", &nancy.name, "--parameter", &parameter];
        shop.place.tidewater(&arguments)
    };
    set("1").done();
    assert_ne!(set("one").code, 0);
    nancy.execute("UPDATE product SET name = 'typed'");
    shop.sync(&nancy).done();
    let product = "SELECT name FROM product WHERE product_id = 1";
    assert_eq!(shop.centre.rows(product), ["typed"]);
}

#[test]
fn unsubscribing_takes_up_what_is_pending_or_says_what_it_discards() {
    let shop = Shop::open();
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    nancy.execute("UPDATE product SET name = 'typed' WHERE product_id = 1");
    shop.place
        .tidewater(&["unsubscribe", &nancy.name, "main"])
        .done();
    let product = "SELECT name FROM product WHERE product_id = 1";
    assert_eq!(shop.centre.rows(product), ["typed"]);
    let tables = "SELECT name FROM sqlite_master WHERE name IN ('rep', 'customer', 'product')";
    assert!(nancy.rows(tables).is_empty());
    steve.execute("UPDATE product SET name = 'lost'");
    let run = shop.place.tidewater(&[
        "unsubscribe",
        &steve.name,
        "main",
        "--discard-pending",
        "--json",
    ]);
    let tables = run.done().json()["tables"].clone();
    let discarded = tables.as_array().and_then(|tables| {
        let product = tables.iter().find(|it| it["table"] == "product");
        product.map(|it| it["discarded"].clone())
    });
    assert_eq!(discarded, Some(2.into()));
    assert_eq!(shop.centre.rows(product), ["typed"]);
}

#[test]
fn a_file_with_tables_of_its_own_is_adopted() {
    let shop = Shop::open();
    let own = |name: &str| {
        let file = sqlite(&shop.place.path(&format!("{name}.db")));
        file.execute_batch(
            "CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT, shelf TEXT);
             INSERT INTO product VALUES (1, 'pencil', 'A'), (2, 'ink', 'B'), (3, 'nib', 'C')",
        )
        .expect("valid SQL");
        file
    };
    let steves = own("steve");
    let refused = shop.first_sync("steve", &["--json"]);
    assert_eq!(refused.json()["error"]["code"], "table_in_the_way");
    shop.first_sync("steve", &["--adopt", "centre"]).done();
    let shelves = "SELECT name || coalesce(shelf, '') FROM product ORDER BY product_id";
    let rows = |file: &rusqlite::Connection| crate::centre::sqlite_rows(file, shelves);
    assert_eq!(rows(&steves), ["penA", "inkB"]);
    let nancys = own("nancy");
    shop.first_sync("nancy", &["--adopt", "mine"]).done();
    assert_eq!(rows(&nancys), ["pencilA", "inkB", "nibC"]);
    let products = "SELECT name FROM product ORDER BY product_id";
    assert_eq!(shop.centre.rows(products), ["pencil", "ink", "nib"]);
}
