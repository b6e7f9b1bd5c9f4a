//! Signing keys: rotated under running servers, listed, retired.

use serde_json::Value;

use crate::shop::Shop;

fn keys(shop: &Shop, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["key"], arguments, &["--json"]].concat();
    let listed = shop.place.tidewater(&arguments).done().json();
    listed["keys"].as_array().unwrap().clone()
}

#[test]
fn keys_are_rotated_and_retired_while_remotes_go_on() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        assert_eq!(keys(&shop, &["list"])[0]["state"], "signs");
        let rotated = keys(&shop, &["rotate"]);
        assert_eq!(
            (&rotated[0]["id"], &rotated[1]["id"]),
            (&2.into(), &1.into())
        );
        assert_eq!(rotated[0]["state"], "signs soon");
        assert_eq!(rotated[1]["state"], "signs");
        let retention_ms = 60 * 24 * 60 * 60 * 1_000;
        let made = rotated[0]["created_ms"].as_i64().unwrap();
        assert_eq!(rotated[1]["retires_ms"], made + retention_ms);
        // A second server, that has known both keys from its start.
        let other = shop.place.serve(&[]);
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        let elsewhere = ["sync", "nancy.db", "--server", other.url(), "--json"];
        let report = shop.place.tidewater(&elsewhere).done().json();
        assert_eq!(report["uploaded"]["inserts"], 1);
        assert_eq!(report["downloaded"]["upserts"], 0, "the checkpoint counts");

        shop.place
            .tidewater(&["key", "retire", "2"])
            .exits(1)
            .tells(&["newest", "key rotate"]);
        shop.place
            .tidewater(&["key", "retire", "7"])
            .exits(1)
            .tells(&["no key 7", "key list"]);
        let left = keys(&shop, &["retire", "1"]);
        assert_eq!(left.len(), 1);
        nancy.execute("INSERT INTO product VALUES (4, 'glue')");
        shop.sync(&nancy).done();
        let products = "SELECT count(*) FROM product";
        assert_eq!(shop.centre.rows(products), nancy.rows(products));
        let table = shop.place.tidewater(&["key", "list"]).done().stdout;
        assert!(table.contains("signs"), "{table}");
    });
}
