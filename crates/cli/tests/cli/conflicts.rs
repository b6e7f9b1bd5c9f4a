//! Changes that lost: told on the device, kept and listed in the centre.

use serde_json::json;

use crate::program::Run;
use crate::shop::{Remote, Shop};

/// Both change the first product, and steve is late; he also deletes what nancy changed.
fn with_two_lost(shop: &Shop, arguments: &[&str]) -> (Remote, Run) {
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    nancy.execute("UPDATE product SET name = 'first ' || product_id");
    steve.execute(
        "UPDATE product SET name = 'second' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;",
    );
    assert_eq!(shop.sync(&nancy).done().json()["conflicts"], 0);
    let mut sync = vec!["sync", "steve.db"];
    sync.extend(arguments);
    (steve, shop.place.tidewater(&sync).done())
}

#[test]
fn changes_that_lost_are_told_by_table_and_key() {
    Shop::on_both_centres(|shop| {
        let (steve, run) = with_two_lost(&shop, &["--json"]);
        let report = run.json();
        assert_eq!(report["conflicts"], 2);
        let rows = report["conflict_rows"].as_array().expect("an array");
        for key in [json!([1]), json!([2])] {
            assert!(rows.contains(&json!({"table": "product", "key": key})));
        }
        let sql = "SELECT name FROM product ORDER BY product_id";
        assert_eq!(steve.rows(sql), ["first 1", "first 2"]);
        assert_eq!(shop.centre.rows(sql), ["first 1", "first 2"]);
    });
}

#[test]
fn people_are_told_what_they_lost_and_where_it_is_kept() {
    let shop = Shop::open();
    let (_steve, run) = with_two_lost(&shop, &[]);
    assert!(run.stdout.contains("2 changes lost"), "{run:?}");
    for part in [
        "product  [1]",
        "product  [2]",
        "both versions are kept in the centre; its operator lists them: tidewater conflicts list",
    ] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
}

#[test]
fn the_centre_lists_what_lost_and_what_won() {
    Shop::on_both_centres(|shop| {
        let _ = with_two_lost(&shop, &[]);
        let status = shop.place.tidewater(&["status", "-c", "tidewater.toml"]);
        let hint = "2 kept; see: tidewater conflicts list -c tidewater.toml";
        assert!(status.done().stdout.contains(hint));
        let list = |more: &[&str]| {
            let mut arguments = vec!["conflicts", "list", "-c", "tidewater.toml"];
            arguments.extend(more);
            shop.place.tidewater(&arguments).done()
        };
        let text = list(&[]).stdout;
        for part in [
            "steve  update product [1]",
            "lost  {\"product_id\":1,\"name\":\"second\"}",
            "won   {\"product_id\":1,\"name\":\"first 1\"}",
            "steve  delete product [2]",
            "lost  the delete",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let all = list(&["--json"]).json();
        let all = all["conflicts"].as_array().expect("an array").clone();
        assert_eq!(all.len(), 2);
        let update = all.iter().find(|it| it["operation"] == "update");
        let update = update.expect("the update lost");
        assert_eq!(update["user"], "steve");
        assert_eq!(update["key"], json!([1]));
        assert_eq!(update["uploaded"]["name"], "second");
        assert_eq!(update["winner"]["name"], "first 1");
        // The newest one.
        let one = list(&["--json", "--limit", "1"]).json();
        assert_eq!(one["conflicts"], json!([all[0]]));
    });
}
