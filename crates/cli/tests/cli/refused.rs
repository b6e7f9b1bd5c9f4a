//! Rows that the centre does not take: told, listed, sent again, given up.

use serde_json::json;

use crate::desk::Desk;
use crate::manual::blocks;
use crate::program::{Place, Run};
use crate::shop::{Remote, Shop};

const MANUAL: &str = include_str!("../../../../docs/refused-rows.md");

/// A remote with two refused changes: a forbidden value and a stolen customer.
fn with_two_refused(shop: &Shop) -> (Remote, Run) {
    let nancy = shop.remote("nancy");
    nancy.execute(
        "INSERT INTO customer VALUES (13, 1, '', 'empty name');
         UPDATE customer SET rep_id = 2 WHERE customer_id = 10;
         INSERT INTO product VALUES (3, 'paper');",
    );
    let run = shop.place.tidewater(&["sync", "nancy.db"]).exits(6);
    (nancy, run)
}

#[test]
fn refused_rows_are_told_listed_and_do_not_hold_up_the_others() {
    Shop::on_both_centres(|shop| {
        let (_nancy, run) = with_two_refused(&shop);
        let printed = format!("{}{}", run.stdout, run.stderr);
        for part in [
            "customer",
            "[13]",
            "[10]",
            "tidewater refused list nancy.db",
        ] {
            assert!(printed.contains(part), "{part}: {printed}");
        }
        assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
        let list = shop
            .place
            .tidewater(&["refused", "list", "nancy.db"])
            .done()
            .stdout;
        for part in [
            "insert customer [13]",
            "update customer [10]",
            "check",
            "out_of_scope",
        ] {
            assert!(list.contains(part), "{part}: {list}");
        }
        // Nothing goes up again by itself, and nothing is forgotten either.
        let again = shop.place.tidewater(&["sync", "nancy.db", "--json"]).done();
        assert_eq!(again.json()["refused"], 0);
        assert_eq!(again.json()["refused_before"], 2);
        let told = shop.place.tidewater(&["sync", "nancy.db"]).done().stderr;
        let hint = "2 rows refused earlier; see: tidewater refused list nancy.db";
        assert!(told.contains(hint), "{told}");
        let listed = shop
            .place
            .tidewater(&["refused", "list", "nancy.db", "--json"])
            .done()
            .json();
        for row in listed["refused"].as_array().expect("an array") {
            assert!([json!([10]), json!([13])].contains(&row["key"]), "{listed}");
        }
        let status = shop.place.tidewater(&["status", "nancy.db", "--json"]);
        assert_eq!(status.json()["refused"], 2);
        let status = shop.place.tidewater(&["status", "nancy.db"]).done();
        assert!(status.stdout.contains("tidewater refused list nancy.db"));
    });
}

#[test]
fn the_operator_sees_each_refused_row_once_however_often_it_was_sent() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        for _ in 0..2 {
            let retry = ["refused", "retry", "nancy.db"];
            shop.place.tidewater(&retry).done();
            let report = shop.sync(&nancy).exits(6).json();
            assert_eq!(
                (&report["refused"], &report["refused_before"]),
                (&json!(2), &json!(0))
            );
        }
        let status = shop.place.tidewater(&["status", "-c", "tidewater.toml"]);
        let hint = "refused    2 open; see: tidewater refused list --open -c tidewater.toml";
        assert!(status.done().stdout.contains(hint));
        let list = |more: &[&str]| {
            let command = ["refused", "list", "-c", "tidewater.toml"];
            shop.place.tidewater(&[&command, more].concat()).done()
        };
        let text = list(&[]).stdout;
        // The configuration of the folder is meant where nothing is named.
        let here = shop.place.tidewater(&["refused", "list"]).done().stdout;
        assert_eq!(here, text);
        for part in [
            "nancy  insert customer [13]  (3 attempts)",
            "nancy  update customer [10]  (3 attempts)",
            "out_of_scope",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let all = list(&["--json"]).json();
        let rows = all["refused"].as_array().expect("an array");
        assert_eq!(rows.len(), 2, "{all}");
        for row in rows {
            assert_eq!(
                (&row["user"], &row["attempts"]),
                (&json!("nancy"), &json!(3))
            );
            assert!(row["key"].is_array() && row["row"].is_object(), "{row}");
        }
        let newest = list(&["--limit", "1", "--json"]).json();
        assert_eq!(newest["refused"], json!([rows[0]]));
    });
}

#[test]
fn a_retry_succeeds_once_the_centre_takes_the_row() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        // The customer's new representative is one of nancy's own.
        shop.centre
            .execute("UPDATE rep SET login = 'nancy' WHERE rep_id = 2");
        shop.place
            .tidewater(&["refused", "retry", "nancy.db"])
            .done();
        let report = shop.sync(&nancy).exits(6).json();
        assert_eq!(report["uploaded"]["updates"], 1);
        assert_eq!(report["refused"], 1);
        let moved = "SELECT rep_id FROM customer WHERE customer_id = 10";
        assert_eq!(shop.centre.rows(moved), ["2"]);
    });
}

#[test]
fn a_retry_names_what_has_no_row_any_more() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        // The row leaves nancy, and with it all of her change but its values.
        shop.centre
            .execute("UPDATE customer SET rep_id = 2 WHERE customer_id = 10");
        shop.sync(&nancy);
        let retry = ["refused", "retry", "nancy.db"];
        let told = shop.place.tidewater(&retry).done().stderr;
        for part in [
            "1 change to be sent again with the next sync",
            "1 change cannot be: only the values are left of it, not the row",
            "tidewater refused restore nancy.db",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    });
}

/// A change of customer 10 was refused, and the row has left and come back since.
fn with_values_left(shop: &Shop) -> Remote {
    let nancy = shop.remote("nancy");
    nancy.execute("UPDATE customer SET name = '', note = 'mine' WHERE customer_id = 10");
    shop.sync(&nancy).exits(6);
    for rep in [2, 1] {
        let moved = format!("UPDATE customer SET rep_id = {rep} WHERE customer_id = 10");
        shop.centre.execute(&moved);
        shop.sync(&nancy).done();
    }
    let note = "SELECT name, note FROM customer WHERE customer_id = 10";
    assert_eq!(nancy.rows(note), ["Ada|"]);
    let list = ["refused", "list", "nancy.db", "--json"];
    let listed = shop.place.tidewater(&list).done().json();
    assert_eq!(
        listed["refused"][0]["values"],
        json!({"customer_id": 10, "rep_id": 1, "name": "", "note": "mine"})
    );
    nancy
}

fn nothing_is_refused(shop: &Shop) {
    let list = ["refused", "list", "nancy.db", "--open", "--json"];
    let listed = shop.place.tidewater(&list).done().json();
    assert_eq!(listed, json!({"refused": [], "settled": []}));
}

#[test]
fn what_is_left_of_a_refused_row_is_restored_and_goes_up() {
    Shop::on_both_centres(|shop| {
        let nancy = with_values_left(&shop);
        let restore = ["refused", "restore", "nancy.db"];
        let told = shop.place.tidewater(&restore).done().stderr;
        assert!(told.contains("1 row written again"), "{told}");
        nothing_is_refused(&shop);
        let row = "SELECT name, note FROM customer WHERE customer_id = 10";
        assert_eq!(nancy.rows(row), ["|mine"]);
        nancy.execute("UPDATE customer SET name = 'Ada B' WHERE customer_id = 10");
        shop.sync(&nancy).done();
        assert_eq!(shop.centre.rows(row), ["Ada B|mine"]);
    });
}

#[test]
fn what_is_written_again_and_taken_is_not_listed_any_more() {
    Shop::on_both_centres(|shop| {
        let nancy = with_values_left(&shop);
        nancy.execute("UPDATE customer SET note = 'mine again' WHERE customer_id = 10");
        shop.sync(&nancy).done();
        nothing_is_refused(&shop);
        let of_centre = [
            "rejected",
            "list",
            "--open",
            "-c",
            "tidewater.toml",
            "--json",
        ];
        let listed = shop.place.tidewater(&of_centre).done().json();
        assert_eq!(listed, json!({"refused": []}));
        let listed = operator(&shop, &["list", "--json"]).done().json();
        let settled = &listed["refused"][0]["settled"];
        assert_eq!(
            (&settled["as"], &settled["by"]),
            (&json!("taken"), &json!("nancy"))
        );
        let restore = ["refused", "restore", "nancy.db", "1"];
        shop.place.tidewater(&restore).exits(1);
    });
}

#[test]
fn rows_that_stay_otherwise_than_in_the_centre_are_told() {
    Shop::on_both_centres(|shop| {
        shop.centre.execute("INSERT INTO rep VALUES (3, 'maria')");
        let nancy = shop.remote("nancy");
        nancy.execute(
            "INSERT INTO customer VALUES (30, 3, 'Dan', NULL);
             UPDATE product SET name = 'pencil' WHERE product_id = 1",
        );
        // Nobody but maria takes on a customer of hers.
        shop.sync(&nancy).exits(6);
        shop.centre
            .execute("DELETE FROM rep WHERE rep_id = 3; DELETE FROM product WHERE product_id = 1");
        nancy.execute("UPDATE product SET name = 'crayon' WHERE product_id = 1");
        let sync = ["sync", "nancy.db", "--download-only"];
        let run = shop.place.tidewater(&sync).done();
        assert!(run.stdout.contains("stale       2 rows"), "{}", run.stdout);
        for part in [
            "rep",
            "[3]",
            "refers to it",
            "product",
            "[1]",
            "changed here too",
        ] {
            assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
        }
        let json = [&sync[..], &["--json"]].concat();
        let report = shop.place.tidewater(&json).done().json();
        assert_eq!(report["stale_count"], 2);
        assert_eq!(report["stale"][0]["table"], "rep");
        assert_eq!(report["stale"][0]["key"], json!([3]));
        assert_eq!(report["stale"][1]["key"], json!([1]));
        // The user gives his change up, and the other one is decided as a conflict.
        let discard = ["refused", "discard", "nancy.db", "--all"];
        shop.place.tidewater(&discard).done();
        shop.sync(&nancy).done();
        let report = shop.sync(&nancy).done().json();
        assert_eq!(
            (&report["stale_count"], &report["stale"]),
            (&json!(0), &json!([]))
        );
        assert_eq!(nancy.rows("SELECT rep_id FROM rep"), ["1", "2"]);
    });
}

#[test]
fn discarding_brings_back_what_the_centre_has() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        shop.place
            .tidewater(&["refused", "discard", "nancy.db", "999"])
            .exits(1)
            .tells(&["no refused change 999", "tidewater refused list nancy.db"]);
        shop.place
            .tidewater(&["refused", "discard", "nancy.db", "--all"])
            .done();
        shop.sync(&nancy).done();
        let sql = "SELECT * FROM customer ORDER BY 1";
        let own = "SELECT * FROM customer WHERE rep_id = 1 ORDER BY 1";
        assert_eq!(nancy.rows(sql), shop.centre.rows(own));
        nothing_is_refused(&shop);
        let list = ["refused", "list", "nancy.db"];
        let told = shop.place.tidewater(&list).done().stdout;
        assert_eq!(told.matches("given up by nancy").count(), 2, "{told}");
        let listed = operator(&shop, &["list"]).done().stdout;
        assert_eq!(listed.matches("given up by nancy").count(), 2, "{listed}");
    });
}

/// The operator's command.
fn operator(shop: &Shop, arguments: &[&str]) -> Run {
    let all = [&["refused"], arguments, &["-c", "tidewater.toml"]].concat();
    shop.place.tidewater(&all)
}

/// The number of an open row of the centre.
fn id_of(shop: &Shop, key: i64) -> String {
    let listed = operator(shop, &["list", "--open", "--json"]).done().json();
    let listed = listed["refused"].as_array().expect("an array").clone();
    let found = listed.iter().find(|it| it["key"] == json!([key]));
    found.expect("it is open")["id"].to_string()
}

#[test]
fn the_operator_shows_edits_replays_and_discards() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        let (empty, stolen) = (id_of(&shop, 13), id_of(&shop, 10));
        let shown = operator(&shop, &["show", &stolen]).done().stdout;
        for part in ["update customer [10]", "before", "\"rep_id\":1", "upload"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        for (filter, count) in [
            (&["--cause", "check"][..], 1),
            (&["--cause", "not_null"], 0),
            (&["--table", "customer"], 2),
            (&["--user", "steve"], 0),
        ] {
            let found = operator(&shop, &[&["list", "--json"], filter].concat());
            let found = found.done().json()["refused"]
                .as_array()
                .expect("an array")
                .len();
            assert_eq!(found, count, "{filter:?}");
        }
        for action in [
            &["show", "99"][..],
            &["replay", "99"],
            &["edit", "99", "--set", "a=1"],
        ] {
            operator(&shop, action)
                .exits(1)
                .tells(&["no refused row 99 is kept", "tidewater refused list"]);
        }
        operator(&shop, &["replay"]).exits(1).tells(&["--all"]);
        operator(&shop, &["discard", &empty])
            .exits(1)
            .tells(&["--reason"]);
        operator(&shop, &["edit", &empty])
            .exits(1)
            .tells(&["--set COLUMN=VALUE"]);
        operator(&shop, &["edit", &empty, "--set", "name"])
            .exits(1)
            .tells(&["names no column and value"]);
        // Values that still fail change nothing.
        let failed = operator(&shop, &["replay", &empty]).exits(5);
        failed.tells(&[
            "refused row",
            "customer [13]",
            "check",
            "tidewater refused edit",
        ]);
        operator(&shop, &["edit", &empty, "--set", "name= "])
            .exits(5)
            .tells(&["customer [13]", "nothing of it was changed"]);
        operator(&shop, &["edit", &empty, "--set", "nam=x"])
            .exits(5)
            .tells(&["no published column \"nam\""]);
        assert_eq!(id_of(&shop, 13), empty);

        shop.place.write("row.json", r#"{"name": "Zoe"}"#);
        let edited = operator(
            &shop,
            &["edit", &empty, "row.json", "--by", "olga", "--json"],
        );
        let edited = edited.done().json()["settled"][0].clone();
        assert_eq!(
            (&edited["as"], &edited["row"]["name"]),
            (&json!("edited"), &json!("Zoe"))
        );
        let again = operator(&shop, &["replay", &empty]).exits(1);
        again.tells(&["is settled already: edited by olga"]);
        let discard = ["discard", &stolen, "--reason", "not hers"];
        operator(&shop, &discard).done();
        let shown = operator(&shop, &["show", &stolen]).done().stdout;
        assert!(shown.contains("not hers"), "{shown}");
        shop.sync(&nancy).done();
        nothing_is_refused(&shop);
        let own = "SELECT * FROM customer WHERE rep_id = 1 ORDER BY 1";
        assert_eq!(
            nancy.rows("SELECT * FROM customer ORDER BY 1"),
            shop.centre.rows(own)
        );
        let told = shop
            .place
            .tidewater(&["refused", "list", "nancy.db"])
            .done()
            .stdout;
        for part in [
            "settled by operator: edited by olga",
            "settled by operator: discarded by",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let status = shop
            .place
            .tidewater(&["status", "-c", "tidewater.toml"])
            .done()
            .stdout;
        assert!(status.contains("refused    0 open"), "{status}");
    });
}

#[test]
fn a_device_shows_and_edits_a_refused_row() {
    let shop = Shop::open();
    let (nancy, _) = with_two_refused(&shop);
    let on_file = |action: &str, more: &[&str]| {
        let all = [&["refused", action, "nancy.db"], more].concat();
        shop.place.tidewater(&all)
    };
    let listed = on_file("list", &["--json"]).done().json();
    let listed = listed["refused"].as_array().expect("an array").clone();
    let empty = listed.iter().find(|it| it["key"] == json!([13]));
    let empty = empty.expect("it is refused")["id"].to_string();
    let shown = on_file("show", &[&empty, "--json"]).done().json();
    assert_eq!(shown["values"]["note"], json!("empty name"));
    on_file("show", &["99"])
        .exits(1)
        .tells(&["no refused change 99"]);
    on_file("edit", &[&empty, "--set", "nam=x"])
        .exits(1)
        .tells(&["cannot be edited", "no synced column \"nam\""]);
    on_file("edit", &[&empty, "--set", "name=Zoe"]).done();
    shop.sync(&nancy).done();
    let name = "SELECT name FROM customer WHERE customer_id = 13";
    assert_eq!(shop.centre.rows(name), ["Zoe"]);
    let shown = on_file("show", &[&empty]).done().stdout;
    assert!(shown.contains("sent again and taken for nancy"), "{shown}");
}

#[test]
fn what_the_manual_of_refused_rows_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, first, discard, operate] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(prepare);
    let _server = desk.place.serve_as_configured();
    let refused = desk.run(first);
    for part in [
        "exit code 6",
        "product [3]",
        "product [4]",
        "price [40]",
        "refers to",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    desk.run(discard);
    let settled = desk.run(operate);
    for part in [
        "pen, red|250",
        "given up by anna",
        "edited by",
        "replayed by",
    ] {
        assert!(settled.contains(part), "{part}: {settled}");
    }
    let plain = "[[publication]]\nname = \"main\"\n";
    let configuration = configuration.replace(plain, &blocks(MANUAL, "toml")[2]);
    desk.place
        .write("tidewater.toml", &desk.text(&configuration));
    let transaction = &blocks(MANUAL, "sql")[0];
    let written = desk.run(&format!(
        "tidewater deploy\ntidewater sync anna.db\nsqlite3 anna.db \"{transaction}\"\n\
         tidewater sync anna.db\nsqlite3 shop.db \"SELECT name FROM product WHERE id = 5\""
    ));
    assert!(written.contains("chalk"), "{written}");
}

#[test]
fn a_corrected_row_goes_up_by_itself() {
    Shop::on_both_centres(|shop| {
        let (nancy, _) = with_two_refused(&shop);
        nancy.execute(
            "UPDATE customer SET name = 'Zoe' WHERE customer_id = 13;
             UPDATE customer SET rep_id = 1 WHERE customer_id = 10;",
        );
        shop.sync(&nancy).done();
        let sql = "SELECT name FROM customer WHERE customer_id = 13";
        assert_eq!(shop.centre.rows(sql), ["Zoe"]);
        let status = shop.place.tidewater(&["status", "nancy.db", "--json"]);
        assert_eq!(status.json()["refused"], 0);
    });
}

#[test]
fn a_list_of_nothing_asks_what_is_meant() {
    Place::new()
        .tidewater(&["refused", "list"])
        .exits(1)
        .tells(&["no remote is named", "tidewater.toml", "-c FILE"]);
}
