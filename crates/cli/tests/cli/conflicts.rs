//! Rows that two sides have changed: told on the device, kept in the centre, chosen otherwise.

use serde_json::json;

use crate::desk::Desk;
use crate::manual::blocks;
use crate::program::Run;
use crate::shop::{Remote, Shop, configure};

const MANUAL: &str = include_str!("../../../../docs/conflicts.md");

const NAMES: &str = "SELECT name FROM product ORDER BY product_id";

/// Both change the first product, and steve is late; he also deletes what nancy changed.
fn with_two_lost(shop: &Shop, arguments: &[&str]) -> ([Remote; 2], Run) {
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    nancy.execute("UPDATE product SET name = 'first ' || product_id");
    steve.execute(
        "UPDATE product SET name = 'second' WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;",
    );
    assert_eq!(shop.sync(&nancy).done().json()["conflicts"], 0);
    let mut sync = vec!["sync", "steve.db"];
    sync.extend(arguments);
    let run = shop.place.tidewater(&sync).done();
    ([nancy, steve], run)
}

/// The operator's command.
fn conflicts(shop: &Shop, arguments: &[&str]) -> Run {
    let all = [&["conflicts"], arguments, &["-c", "tidewater.toml"]].concat();
    shop.place.tidewater(&all)
}

/// The number of the conflict of a row, in the centre.
fn id_of(shop: &Shop, key: i64) -> String {
    let listed = conflicts(shop, &["list", "--json"]).done().json();
    let listed = listed["conflicts"].as_array().expect("an array").clone();
    let found = listed.iter().find(|it| it["key"] == json!([key]));
    found.expect("it is kept")["id"].to_string()
}

#[test]
fn changes_that_lost_are_told_by_table_and_key() {
    Shop::on_both_centres(|shop| {
        let ([_, steve], run) = with_two_lost(&shop, &["--json"]);
        let report = run.json();
        assert_eq!(report["conflicts"], 2);
        let rows = report["conflict_rows"].as_array().expect("an array");
        for key in [json!([1]), json!([2])] {
            assert!(rows.contains(&json!({"table": "product", "key": key})));
        }
        assert_eq!(steve.rows(NAMES), ["first 1", "first 2"]);
        assert_eq!(shop.centre.rows(NAMES), ["first 1", "first 2"]);
    });
}

#[test]
fn people_are_told_what_they_lost_and_where_it_is_kept() {
    let shop = Shop::open();
    let (_remotes, run) = with_two_lost(&shop, &[]);
    assert!(
        run.stdout.contains("2 changes met somebody else's"),
        "{run:?}"
    );
    for part in [
        "product  [1]",
        "product  [2]",
        "both versions are kept; see: tidewater conflicts list steve.db",
    ] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
}

#[test]
fn a_device_lists_what_it_lost_and_has_it_again_or_not() {
    let shop = Shop::open();
    let ([nancy, steve], _) = with_two_lost(&shop, &[]);
    let status = shop.place.tidewater(&["status", "steve.db"]).done().stdout;
    let hint = "2 conflicts with somebody else's changes; see: tidewater conflicts list steve.db";
    assert!(status.contains(hint), "{status}");
    let status = ["status", "steve.db", "--json"];
    assert_eq!(shop.place.tidewater(&status).done().json()["conflicts"], 2);
    let list = ["conflicts", "list", "steve.db"];
    let text = shop.place.tidewater(&list).done().stdout;
    for part in [
        "lost update product [1]",
        "mine    {\"product_id\":1,\"name\":\"second\"}",
        "theirs  {\"product_id\":1,\"name\":\"first 1\"}",
        "lost delete product [2]",
        "mine    deleted",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let listed = || {
        let arguments = ["conflicts", "list", "steve.db", "--json"];
        shop.place.tidewater(&arguments).done().json()["conflicts"].clone()
    };
    let all = listed();
    let update = all.as_array().expect("an array");
    let update = update.iter().find(|it| it["operation"] == "update");
    let update = update.expect("the update lost");
    assert_eq!(update["key"], json!([1]));
    assert_eq!(update["outcome"], "lost");
    assert_eq!(update["pre_image"]["name"], "pen");
    assert_eq!(update["mine"]["name"], "second");
    assert_eq!(update["theirs"]["name"], "first 1");

    let on_file = |action: &str, more: &[&str]| {
        let all = [&["conflicts", action, "steve.db"], more].concat();
        shop.place.tidewater(&all)
    };
    let id = update["id"].to_string();
    for action in ["apply", "dismiss"] {
        on_file(action, &["99", &id])
            .exits(1)
            .tells(&["there is no conflict 99; nothing was changed"]);
    }
    on_file("apply", &[]).exits(1).tells(&["ID"]);
    on_file("dismiss", &[]).exits(1).tells(&["--all"]);
    steve.execute(
        "CREATE TRIGGER no BEFORE UPDATE ON product BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    on_file("apply", &[&id])
        .exits(1)
        .tells(&["cannot be applied again", "not now", "by hand"]);
    steve.execute("DROP TRIGGER no");
    let applied = on_file("apply", &[&id, "--json"]).done();
    assert_eq!(applied.json(), json!({"applied": 1}));
    assert_eq!(listed().as_array().expect("an array").len(), 1);
    let dismissed = on_file("dismiss", &["--all", "--json"]).done();
    assert_eq!(dismissed.json(), json!({"dismissed": 1}));
    assert_eq!(listed(), json!([]));
    let text = shop.place.tidewater(&list).done();
    assert!(text.stderr.contains("no conflicts"), "{text:?}");
    for remote in [&steve, &nancy] {
        assert_eq!(shop.sync(remote).done().json()["conflicts"], 0);
        assert_eq!(remote.rows(NAMES), ["second", "first 2"]);
    }
}

#[test]
fn the_centre_lists_shows_and_exports_what_it_keeps() {
    Shop::on_both_centres(|shop| {
        let _ = with_two_lost(&shop, &[]);
        let status = shop.place.tidewater(&["status", "-c", "tidewater.toml"]);
        let hint = "2 kept; see: tidewater conflicts list -c tidewater.toml";
        assert!(status.done().stdout.contains(hint));
        let list = |more: &[&str]| conflicts(&shop, &[&["list"], more].concat()).done();
        let text = list(&[]).stdout;
        for part in ["[1]", "[2]", "centre", "update", "delete", "steve"] {
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
        assert_eq!(update["outcome"], "centre");
        assert_eq!(update["settled"], json!(null));
        // The newest one.
        let one = list(&["--json", "--limit", "1"]).json();
        assert_eq!(one["conflicts"], json!([all[0]]));
        for (filter, count) in [
            (&["--user", "steve"][..], 2),
            (&["--user", "nancy"], 0),
            (&["--table", "product"], 2),
            (&["--table", "customer"], 0),
            (&["--outcome", "centre"], 2),
            (&["--outcome", "parked"], 0),
            (&["--open"], 0),
        ] {
            let found = list(&[filter, &["--json"]].concat()).json();
            let found = found["conflicts"].as_array().expect("an array").len();
            assert_eq!(found, count, "{filter:?}");
        }
        assert!(list(&["--open"]).stderr.contains("no such conflicts"));
        conflicts(&shop, &["list", "--outcome", "lost"])
            .exits(1)
            .tells(&["parked"]);

        let id = update["id"].to_string();
        let shown = conflicts(&shop, &["show", &id]).done().stdout;
        let line = shown.lines().find(|it| it.starts_with("name"));
        let line = line.expect("a line for the column");
        let values: Vec<&str> = line.split('"').map(str::trim).collect();
        let values: Vec<&str> = values.into_iter().filter(|it| !it.is_empty()).collect();
        assert_eq!(
            values,
            ["name", "pen", "second", "first 1", "first 1"],
            "{shown}"
        );
        assert!(shown.contains("update by steve"), "{shown}");
        let shown = conflicts(&shop, &["show", &id, "--json"]).done().json();
        assert_eq!(shown, *update);
        conflicts(&shop, &["show", "99"])
            .exits(1)
            .tells(&["no conflict 99 is kept", "tidewater conflicts list"]);

        let lines = conflicts(&shop, &["export"]).done().stdout;
        let lines: Vec<serde_json::Value> = lines
            .lines()
            .map(|it| serde_json::from_str(it).expect("JSON"))
            .collect();
        assert_eq!(lines, [all[1].clone(), all[0].clone()]);
        let csv = conflicts(&shop, &["export", "--format", "csv"])
            .done()
            .stdout;
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let names = reader.headers().expect("names").clone();
        let at = |name: &str| names.iter().position(|it| it == name).expect("a column");
        let rows: Vec<csv::StringRecord> = reader.records().map(|it| it.expect("a row")).collect();
        assert_eq!(rows.len(), 2);
        let updated = rows.iter().find(|it| it[at("operation")] == *"update");
        let updated = updated.expect("the update");
        assert_eq!(updated[at("id")], *id);
        assert_eq!(
            &updated[at("uploaded")],
            r#"{"product_id":1,"name":"second"}"#
        );
        assert_eq!(&updated[at("settled_by")], "");
    });
}

#[test]
fn the_operator_chooses_otherwise_and_everybody_gets_it() {
    Shop::on_both_centres(|shop| {
        let ([nancy, steve], _) = with_two_lost(&shop, &[]);
        let (update, delete) = (id_of(&shop, 1), id_of(&shop, 2));
        let resolve = |id: &str, version: &str, more: &[&str]| {
            let all = [&["resolve", id, "--with", version], more].concat();
            conflicts(&shop, &all)
        };
        resolve("99", "uploaded", &[])
            .exits(1)
            .tells(&["no conflict 99"]);
        resolve(&update, "mine", &[])
            .exits(1)
            .tells(&["cannot read mine", "uploaded, centre or pre-image"]);
        shop.place.write("row.json", "[1]");
        resolve(&update, "row.json", &[])
            .exits(1)
            .tells(&["row.json has no JSON object"]);
        shop.place.write("row.json", r#"{"nam": "x"}"#);
        resolve(&update, "row.json", &[])
            .exits(5)
            .tells(&["no published column \"nam\"", "nothing was changed"]);
        shop.place.write("row.json", r#"{"name": null}"#);
        let refused = resolve(&update, "row.json", &["--json"]).exits(5);
        assert_eq!(refused.json()["error"]["code"], "not_null");

        let settled = resolve(&update, "uploaded", &["--by", "olga", "--json"]).done();
        let row = json!({"product_id": 1, "name": "second"});
        let id: i64 = update.parse().expect("a number");
        let expected = json!({"id": id, "settled_as": "uploaded", "row": row});
        assert_eq!(settled.json(), expected);
        shop.place.write("row.json", "null");
        let settled = resolve(&delete, "row.json", &[]).done();
        assert!(settled.stderr.contains("the row is gone"), "{settled:?}");
        for remote in [&nancy, &steve] {
            assert_eq!(shop.sync(remote).done().json()["conflicts"], 0);
            assert_eq!(remote.rows(NAMES), ["second"]);
        }
        assert_eq!(shop.centre.rows(NAMES), ["second"]);
        let shown = conflicts(&shop, &["show", &update, "--json"]).done().json();
        assert_eq!(shown["settled"]["by"], "olga");
        assert_eq!(shown["settled"]["as"], "uploaded");
        let shown = conflicts(&shop, &["show", &update]).done().stdout;
        assert!(shown.contains("uploaded by olga"), "{shown}");

        nancy.execute("UPDATE product SET name = 'third'");
        shop.sync(&nancy).done();
        resolve(&update, "centre", &[]).exits(1).tells(&[
            "the row is not any more what conflict",
            "\"name\":\"third\"",
            "--force",
        ]);
        resolve(&update, "centre", &["--force"]).done();
        assert_eq!(shop.centre.rows(NAMES), ["first 1"]);
    });
}

#[test]
fn what_is_parked_is_open_until_the_operator_decides() {
    let shop = Shop::open();
    let tables = crate::shop::TABLES.replace(
        "name = \"product\"",
        "name = \"product\"\nconflict = { resolve = \"park\" }",
    );
    configure(&shop.place, &shop.centre, "", &tables);
    shop.place.tidewater(&["deploy"]).done();
    let Shop {
        server,
        centre,
        place,
    } = shop;
    server.terminate();
    let shop = Shop {
        server: place.serve(&[]),
        centre,
        place,
    };
    let _ = with_two_lost(&shop, &[]);
    let status = |more: &[&str]| {
        let all = [&["status", "-c", "tidewater.toml"], more].concat();
        shop.place.tidewater(&all).done()
    };
    assert!(status(&[]).stdout.contains("2 kept, 2 open; see:"));
    assert_eq!(status(&["--json"]).json()["open_conflicts"], 2);
    let open = conflicts(&shop, &["list", "--open"]).done().stdout;
    assert_eq!(open.matches("parked, open").count(), 2, "{open}");
    let id = id_of(&shop, 1);
    conflicts(&shop, &["resolve", &id, "--with", "centre"]).done();
    assert_eq!(status(&["--json"]).json()["open_conflicts"], 1);
    let all = conflicts(&shop, &["list"]).done().stdout;
    assert!(all.contains("parked, settled: centre"), "{all}");
}

#[test]
fn what_the_manual_of_conflicts_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, first, sell, told, again] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.run(shop);
    // The first one shows a table alone.
    let configuration = &blocks(MANUAL, "toml")[2];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(prepare);
    let _server = desk.place.serve_as_configured();
    desk.run(first);
    let sold = desk.run(sell);
    assert!(sold.ends_with("blue pen|5\nblue pen|5"), "{sold}");
    assert_eq!(desk.run(told), "merged|pen, blue|blue pen");
    let applied = desk.run(again);
    assert!(applied.ends_with("pen, blue|5"), "{applied}");
}
