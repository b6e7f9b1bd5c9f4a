//! Why a row is on a remote or not, and what a configuration would mean, before it is deployed.

use serde_json::{Value, json};

use crate::desk::Desk;
use crate::manual::blocks;
use crate::program::{Run, until};
use crate::shop::{Shop, TABLES, configure};

const MANUAL: &str = include_str!("../../../../docs/explain.md");

/// The id of the remote of a user.
fn remote_id(shop: &Shop, user: &str) -> String {
    let listed = shop.place.tidewater(&["remote", "list", "--json"]).done();
    let listed = listed.json();
    let mut remotes = listed["remotes"].as_array().expect("an array").iter();
    let found = remotes.find(|it| it["user"] == user);
    found.expect("it has synced")["id"]
        .as_str()
        .expect("a text")
        .to_owned()
}

fn explain(shop: &Shop, user: &str, more: &[&str]) -> Run {
    let id = remote_id(shop, user);
    let all = [&["explain", "--remote", &id], more].concat();
    shop.place.tidewater(&all)
}

fn explained(shop: &Shop, user: &str, table: &str, key: &str) -> Value {
    explain(shop, user, &[table, key, "--json"]).done().json()
}

#[test]
fn the_operator_is_told_why_a_row_is_on_a_remote_or_not() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        let told = explain(&shop, "nancy", &["customer", "20"]).done().stdout;
        let first = told.lines().next().expect("a line");
        assert!(
            first.contains("its rep_id is 2 and nancy holds 1"),
            "{told}"
        );
        for part in ["SELECT rep_id FROM rep", "direction both", "note", "row"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let held = explained(&shop, "nancy", "customer", "10");
        assert_eq!(held["key"], json!([10]));
        assert_eq!(held["row"]["name"], "Ada");
        assert_eq!(held["publications"][0]["rules"][0]["holds"], true);
        shop.centre
            .execute("UPDATE customer SET rep_id = 2 WHERE customer_id = 10");
        let moved = explained(&shop, "nancy", "customer", "10");
        assert_eq!(moved["publications"][0]["holds"], false, "{moved}");
        let sentence = moved["sentence"].as_str().expect("a text");
        assert!(
            sentence.contains("it was nancy's in the partition (1)"),
            "{sentence}"
        );
        // What was refused of it is told with it, whoever sent it.
        nancy.execute("INSERT INTO customer VALUES (13, 1, '', 'empty')");
        shop.sync(&nancy).exits(6);
        let refused = explained(&shop, "nancy", "customer", "[13]");
        assert_eq!(refused["verdict"], "absent");
        assert_eq!(refused["refused"][0]["operation"], "insert");
    });
}

#[test]
fn what_is_mistyped_is_named_with_what_was_meant() {
    let shop = Shop::open();
    let _nancy = shop.remote("nancy");
    explain(&shop, "nancy", &["custmer", "1"])
        .exits(1)
        .tells(&["has a table \"custmer\"", "did you mean \"customer\"?"]);
    explain(&shop, "nancy", &["customer", "x"])
        .exits(1)
        .tells(&["x is no value of \"customer_id\"", "'[1]'"]);
    let place = &shop.place;
    place
        .tidewater(&["explain", "customer", "1"])
        .exits(1)
        .tells(&["which remote is meant?", "tidewater remote list"]);
    place
        .tidewater(&["explain", "--remote", "nancy", "customer", "1"])
        .exits(1)
        .tells(&["\"nancy\" is not a remote id"]);
    let stranger = "00000000-0000-4000-8000-000000000000";
    place
        .tidewater(&["explain", "--remote", stranger, "customer", "1"])
        .exits(1)
        .tells(&["there is no remote", "tidewater remote list"]);
    place
        .tidewater(&["explain", "nancy.db", "custmer", "1"])
        .exits(1)
        .tells(&["no synced table \"custmer\"", "customer"]);
}

#[test]
fn a_device_tells_what_is_pending_refused_and_lost_of_a_row() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    let on_device = |more: &[&str]| {
        let all = [&["explain", "nancy.db"], more].concat();
        shop.place.tidewater(&all).done()
    };
    let still = on_device(&["customer", "10"]).stdout;
    assert!(still.contains("nothing of it is pending"), "{still}");
    nancy.execute(
        "UPDATE customer SET note = 'mine' WHERE customer_id = 10;
         INSERT INTO customer VALUES (13, 1, '', 'empty name')",
    );
    let pending = on_device(&["customer", "10", "--json"]).json();
    assert_eq!(pending["pending"][0]["operation"], "update");
    assert_eq!(pending["pending"][0]["pre_image"]["note"], json!(null));
    assert_eq!(pending["pending"][0]["row"]["note"], "mine");
    let told = on_device(&["customer", "10"]).stdout;
    assert!(
        told.contains("its update here goes up with the next sync"),
        "{told}"
    );
    // Somebody else was faster.
    shop.centre
        .execute("UPDATE customer SET note = 'theirs' WHERE customer_id = 10");
    shop.sync(&nancy).exits(6);
    let lost = on_device(&["customer", "10", "--json"]).json();
    assert_eq!(lost["conflicts"][0]["outcome"], "lost");
    assert_eq!(lost["pending"], json!([]));
    let refused = on_device(&["customer", "[13]", "--json"]).json();
    assert_eq!(refused["refused"][0]["code"], "check");
    let sentence = refused["sentence"].as_str().expect("a text");
    assert!(
        sentence.contains("its insert here was refused: check"),
        "{sentence}"
    );
    let none = on_device(&["customer", "99"]).stdout;
    assert!(none.contains("The row is not on this device"), "{none}");
}

#[test]
fn a_preview_counts_what_would_come_and_go_and_changes_nothing() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        let _steve = shop.remote("steve");
        let preview = |more: &[&str]| {
            let all = [&["preview"], more].concat();
            shop.place.tidewater(&all).done()
        };
        let nothing = preview(&[]).stdout;
        let still = "0 rows would come and 0 rows would go, on 0 of 2 remotes";
        assert!(nothing.contains(still), "{nothing}");
        let shared = TABLES.replace(
            "SELECT rep_id FROM rep WHERE login = {s.username}",
            "SELECT 2",
        );
        configure(&shop.place, &shop.centre, "", &shared);
        let told = preview(&["--rows", "1"]).stdout;
        for part in [
            "1 row would come and 2 rows would go, on 1 of 2 remotes",
            "nancy  + customer [20]",
            "nancy  - customer [10]",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let id = remote_id(&shop, "steve");
        let of_steve = preview(&["--remote", &id, "--json"]).json();
        assert_eq!(
            (&of_steve["added"], &of_steve["removed"]),
            (&json!(0), &json!(0))
        );
        // What is deployed is what it was, and so is what nancy gets.
        shop.centre
            .execute("UPDATE customer SET note = 'seen' WHERE rep_id = 1");
        shop.sync(&nancy).done();
        let own = "SELECT customer_id, note FROM customer ORDER BY 1";
        assert_eq!(nancy.rows(own), ["10|seen", "11|seen"]);
        shop.place
            .tidewater(&["preview", "--remote", "x"])
            .exits(1)
            .tells(&["is not a remote id"]);
        shop.place
            .tidewater(&["preview", "--parameter", "x"])
            .exits(1)
            .tells(&["--parameter NAME=VALUE"]);
    });
}

#[test]
fn what_the_manual_of_explaining_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, sync, move_one, on_device, preview] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(prepare);
    let _server = desk.place.serve_as_configured();
    desk.run(sync);
    let list = ["remote", "list", "--json"];
    until("the sync is in the history", || {
        let listed = desk.place.tidewater(&list).done().json();
        !listed["remotes"][0]["last_sync_ms"].is_null()
    });
    let moved = desk.run(move_one);
    for part in [
        "it was anna's in the partition (north) and has moved",
        "its region is south and anna holds north",
    ] {
        assert!(moved.contains(part), "{part}: {moved}");
    }
    let pending = desk.run(on_device);
    assert!(pending.contains("its update here goes up"), "{pending}");
    let previewed = desk.run(preview);
    let first = "2 rows would come and 0 rows would go, on 1 of 1 remote";
    assert!(previewed.contains(first), "{previewed}");
    assert!(previewed.contains("anna  + customer [3]"), "{previewed}");
}
