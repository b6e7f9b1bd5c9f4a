//! The shapes of `--json`: one object, these fields, nothing else on standard output.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::centre::{Centre, on_both_centres};
use crate::program::Place;
use crate::shop::{SCHEMA, Shop, TABLES, configure};

/// The object has at least these fields: more may be added.
#[track_caller]
fn has(object: &Value, fields: &[&str]) {
    let object = object.as_object().expect("an object");
    let present: BTreeSet<&str> = object.keys().map(String::as_str).collect();
    for field in fields {
        assert!(present.contains(field), "{field} is not in {present:?}");
    }
}

#[test]
fn a_sync_reports_every_promised_field() {
    let shop = Shop::open();
    let report = shop.first_sync("nancy", &["--json"]).done().json();
    has(
        &report,
        &[
            "uploaded",
            "downloaded",
            "conflicts",
            "conflict_rows",
            "refused",
            "refused_rows",
            "refused_before",
            "stale_count",
            "stale",
            "not_restored",
            "outbox",
            "inbox",
            "bytes_sent",
            "bytes_received",
            "retries",
            "duration_ms",
        ],
    );
    assert_eq!(
        report["uploaded"],
        json!({"inserts": 0, "updates": 0, "deletes": 0})
    );
    assert_eq!(report["downloaded"], json!({"upserts": 6, "removals": 0}));
    assert_eq!(report["conflicts"], 0);
    assert_eq!(report["refused"], 0);
    assert_eq!(report["refused_rows"], json!([]));
    assert!(report["bytes_sent"].as_u64() > Some(0));
    assert!(report["bytes_received"].as_u64() > Some(0));
    assert!(report["duration_ms"].is_u64());
}

#[test]
fn deploying_and_undeploying_tell_their_steps() {
    on_both_centres(|place, centre| {
        centre.execute(SCHEMA);
        configure(place, centre, "", TABLES);
        let run = |arguments: &[&str]| place.tidewater(arguments).done().json();
        let steps = |object: &Value| object["steps"].as_array().expect("steps").len();
        let planned = run(&["deploy", "--dry-run", "--json"]);
        assert_eq!(
            (&planned["dry_run"], &planned["first"]),
            (&json!(true), &json!(true))
        );
        has(&planned["steps"][0], &["description", "lock"]);
        has(&planned, &["effects", "held_up", "warnings"]);
        let done = run(&["deploy", "--json"]);
        assert_eq!(
            (&done["dry_run"], &done["first"]),
            (&json!(false), &json!(true))
        );
        assert!(steps(&done) > 0, "{done}");
        let again = run(&["deploy", "--json"]);
        assert_eq!((steps(&again), &again["first"]), (0, &json!(false)));
        assert!(steps(&run(&["undeploy", "--dry-run", "--json"])) > 0);
        let undone = run(&["undeploy", "--yes", "--json"]);
        assert!(steps(&undone) > 0);
        assert_eq!(undone["goes"]["users"], 0);
    });
}

#[test]
fn refused_rows_are_reported_by_table_key_and_reason() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("UPDATE customer SET rep_id = 2 WHERE customer_id = 10");
        let report = shop.sync(&nancy).exits(6).json();
        assert_eq!(report["refused"], 1);
        let row = &report["refused_rows"][0];
        assert_eq!(row["table"], "customer");
        assert_eq!(row["key"], json!([10]));
        assert!(
            row["reason"]
                .as_str()
                .is_some_and(|it| it.contains("partitions"))
        );
    });
}

#[test]
fn a_failure_is_an_object_too() {
    let place = Place::new();
    let run = place
        .tidewater_as(
            "secret",
            &[
                "sync",
                "a.db",
                "--server",
                "tcp://127.0.0.1:1",
                "--user",
                "nancy",
                "--publication",
                "main",
                "--json",
            ],
        )
        .exits(2);
    let error = &run.json()["error"];
    has(error, &["code", "message", "hint", "retry_after_ms"]);
    assert_eq!(error["code"], "unreachable");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.ends_with("; local changes are kept"), "{hint}");
    for wrong_usage in [
        &["sync", "--json"][..],
        &["sync", "a.db", "--json", "--no-such-option"],
        &["status", "missing.db", "--json"],
        &["user", "list", "-c", "missing.toml", "--json"],
    ] {
        let run = place.tidewater(wrong_usage).exits(1);
        assert_eq!(run.json()["error"]["code"], "usage", "{run:?}");
    }
}

#[test]
fn the_state_of_a_remote_tells_what_is_pending_and_no_secret() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute(
        "INSERT INTO product VALUES (3, 'paper'); DELETE FROM customer WHERE customer_id = 11",
    );
    let run = shop
        .place
        .tidewater(&["status", "nancy.db", "--json"])
        .done();
    let status = run.json();
    has(
        &status,
        &[
            "remote_id",
            "user",
            "server",
            "pending",
            "refused",
            "outbox",
            "inbox",
            "subscriptions",
        ],
    );
    assert_eq!(status["outbox"], json!({"pending": 0, "failed": 0}));
    assert_eq!(status["pending"], 2);
    assert_eq!(status["refused"], 0);
    assert_eq!(status["user"], "nancy");
    let subscription = &status["subscriptions"][0];
    assert_eq!(subscription["publication"], "main");
    assert!(subscription["last_sync_at_ms"].as_i64() > Some(0));
    let product = subscription["tables"]
        .as_array()
        .and_then(|tables| tables.iter().find(|it| it["table"] == "product"));
    assert_eq!(product.expect("the table is listed")["pending"], 1);
    for word in ["password", "token", "credential"] {
        assert!(!run.stdout.contains(word), "{run:?}");
    }
    let text = shop.place.tidewater(&["status", "nancy.db"]).done().stdout;
    assert!(text.contains("2 changes to upload, 0 refused"), "{text}");
}

#[test]
fn the_state_of_the_centre_tells_who_synced() {
    Shop::on_both_centres(|shop| {
        let _nancy = shop.remote("nancy");
        let Shop { server, place, .. } = shop;
        // A sync is recorded after its remote has gone; a server that ended has done it.
        server.terminate();
        let arguments = ["status", "-c", "tidewater.toml", "--json"];
        let status = place.tidewater(&arguments).done().json();
        has(
            &status,
            &["users", "remotes", "conflicts", "refused", "logs", "syncs"],
        );
        assert_eq!(status["users"], 2);
        assert_eq!(status["remotes"], 1);
        assert_eq!(status["syncs"][0]["user"], "nancy");
        assert_eq!(status["syncs"][0]["publications"], json!(["main"]));
        let text = place.tidewater(&arguments[..3]).done().stdout;
        assert!(text.contains("users      2 (0 disabled)"), "{text}");
    });
}

#[test]
fn the_state_of_the_centre_tells_who_has_which_numbers() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute("CREATE TABLE invoice (id INTEGER NOT NULL PRIMARY KEY, note TEXT)");
    let config = format!(
        "[server]\nconsolidated = \"{}\"\nlisten = [\"tcp://127.0.0.1:0\"]\n\
         [[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"invoice\"\n\
         partition = \"everyone\"\nidentity = {{ column = \"id\", block = 50 }}\n",
        centre.url()
    );
    place.write("tidewater.toml", &config);
    place.tidewater(&["deploy"]).done();
    let add = ["user", "add", "nancy"];
    place.tidewater_as("secret", &add).done();
    let running = place.serve(&[]);
    let first = ["sync", "a.db", "--user", "nancy", "--publication", "main"];
    let first = [&first[..], &["--server", running.url()]].concat();
    place.tidewater_as("secret", &first).done();
    let status = place.tidewater(&["status", "-c", "tidewater.toml", "--json"]);
    let status = status.done().json();
    let numbers = &status["numbers"][0];
    has(numbers, &["table", "column", "count", "highest", "remotes"]);
    assert_eq!(
        (&numbers["count"], &numbers["remotes"]),
        (&json!(50), &json!(1))
    );
    let block = &status["number_blocks"][0];
    has(
        block,
        &["table", "remote_id", "user", "first", "last", "at_ms"],
    );
    assert_eq!(block["user"], "nancy");
    assert_eq!(block["last"], numbers["highest"]);
    let text = place.tidewater(&["status", "-c", "tidewater.toml"]);
    let text = text.done().stdout;
    for told in ["numbers of", "last blocks of", "nancy"] {
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn a_ping_tells_who_answers() {
    let shop = Shop::open();
    let url = shop.server.url();
    let pong = shop.place.tidewater(&["ping", url, "--json"]).done().json();
    has(
        &pong,
        &["url", "server", "protocol_version", "round_trip_ms"],
    );
    assert_eq!(pong["url"], url);
    let text = shop.place.tidewater(&["ping", url]).done().stdout;
    assert!(text.contains(url), "{text}");
}

#[test]
fn lists_are_objects_with_one_array() {
    let shop = Shop::open();
    let _nancy = shop.remote("nancy");
    let users = shop
        .place
        .tidewater(&["user", "list", "--json"])
        .done()
        .json();
    let names: Vec<&Value> = users["users"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|user| &user["name"])
        .collect();
    assert_eq!(names, ["nancy", "steve"]);
    has(
        &users["users"][0],
        &["name", "disabled", "created_ms", "proven"],
    );
    let remotes = shop
        .place
        .tidewater(&["remote", "list", "--json"])
        .done()
        .json();
    has(
        &remotes["remotes"][0],
        &["id", "user", "revoked", "created_ms", "last_sync_ms"],
    );
    let refused = shop
        .place
        .tidewater(&["refused", "list", "nancy.db", "--json"])
        .done();
    // And one of those that are settled.
    assert_eq!(refused.json(), json!({"refused": [], "settled": []}));
}
