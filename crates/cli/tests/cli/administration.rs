//! Users, passwords, and the end of it all.

use crate::centre::Centre;
use crate::program::Place;
use crate::shop::{Shop, TABLES, configure, password, prepared};

#[test]
fn a_password_is_never_an_argument_and_never_guessed() {
    let place = Place::new();
    let _centre = prepared(&place);
    place
        .tidewater(&["user", "add", "carol", "--password", "secret"])
        .exits(1);
    place
        .tidewater(&["user", "add", "carol"])
        .exits(1)
        .tells(&["--password-stdin", "TIDEWATER_PASSWORD"]);
    place
        .tidewater_with_input(&["user", "add", "carol", "--password-stdin"], "")
        .exits(1)
        .tells(&["empty"]);
    let list = place.tidewater(&["user", "list"]).done().stdout;
    assert!(!list.contains("carol"), "{list}");
}

#[test]
fn a_new_password_is_the_one_that_counts() {
    let shop = Shop::open();
    shop.place
        .tidewater_with_input(
            &["user", "set-password", "nancy", "--password-stdin"],
            "another\r\n",
        )
        .done();
    shop.first_sync("nancy", &[]).exits(3);
    let url = shop.server.url();
    let arguments = [
        "sync",
        "nancy.db",
        "--server",
        url,
        "--user",
        "nancy",
        "--publication",
        "main",
        "--password-stdin",
    ];
    shop.place
        .tidewater_with_input(&arguments, "another\n")
        .done();
}

#[test]
fn users_change_their_own_passwords() {
    Shop::on_both_centres(|shop| {
        let (place, url) = (&shop.place, shop.server.url());
        let old = password("nancy");
        let remote = shop.remote("nancy");
        place
            .change_password(("nancy", "wrong"), url, "another")
            .exits(3);
        place
            .change_password(("nancy", &old), url, "")
            .exits(1)
            .tells(&["TIDEWATER_NEW_PASSWORD"]);
        place
            .change_password(("nancy", &old), url, &"x".repeat(1_025))
            .exits(1)
            .tells(&["longer than 1024 bytes"]);
        place
            .change_password(("nobody", &old), url, "another")
            .exits(3);
        // The answer to the first was lost, as it were: it is asked again in the same words.
        for _ in 0..2 {
            let changed = place
                .change_password(("nancy", &old), url, "another")
                .done();
            assert_eq!(changed.stdout, "password of nancy changed\n");
        }
        let sync = |password: &str| {
            place.first_sync_as(
                ("nancy", password),
                url,
                "main",
                &["--device-name", "second"],
            )
        };
        shop.sync(&remote).done();
        let first = place.path("nancy.db");
        std::fs::rename(&first, place.path("first.db")).unwrap();
        sync(&old).exits(3);
        sync("another").done();
        shop.place.tidewater(&["user", "disable", "nancy"]).done();
        place
            .change_password(("nancy", "another"), url, &old)
            .exits(3)
            .tells(&["disabled"]);
    });
}

#[test]
fn a_remote_whose_user_was_removed_signs_in_again_and_keeps_its_changes() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        shop.place.tidewater(&["user", "remove", "nancy"]).done();
        shop.sync(&nancy).exits(3);
        crate::shop::add_user(&shop.place, "nancy");
        shop.sync(&nancy).exits(3).tells(&["--password-stdin"]);
        shop.place
            .tidewater_as(&password("nancy"), &["sync", "nancy.db"])
            .done();
        assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
        shop.sync(&nancy).done();
    });
}

#[test]
fn a_deployment_that_would_hold_up_remotes_lists_them_and_asks() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        let list = shop.place.tidewater(&["remote", "list", "--json"]).done();
        let id = list.stdout.split('"').nth(5).expect("a remote").to_owned();
        let without = TABLES.replace(
            "[[publication.table]]\nname = \"product\"\npartition = \"everyone\"\n",
            "",
        );
        configure(&shop.place, &shop.centre, "", &without);
        for arguments in [&["deploy"][..], &["deploy", "--dry-run"]] {
            let refused = shop.place.tidewater(arguments).exits(1);
            let refused = refused.tells(&["1 remote may have", "--refuse-pending"]);
            for told in [&*id, "\"product\" leaves remotes", "nothing was changed"] {
                assert!(refused.stdout.contains(told), "{told}: {}", refused.stdout);
            }
        }
        // The server that runs still takes it; a new one would not.
        let planned = ["deploy", "--dry-run", "--refuse-pending"];
        shop.place.tidewater(&planned).done();
        let object = shop.place.tidewater(&[&planned[..], &["--json"]].concat());
        let object = object.done().json();
        assert_eq!(object["dry_run"], true);
        assert_eq!(object["held_up"][0]["id"], *id);
        assert_eq!(object["held_up"][0]["user"], "nancy");
        assert!(
            object["held_up"][0].get("last_sync_ms").is_some(),
            "{object}"
        );
        assert_eq!(object["effects"][0]["publication"], "main");
        assert_eq!(object["effects"][0]["refuses_pending"], true);
        let refused = shop.place.tidewater(&["deploy", "--json"]).exits(1).json();
        assert_eq!(refused["error"]["code"], "usage");
        let done = shop.place.tidewater(&["deploy", "--refuse-pending"]).done();
        assert!(done.stdout.contains(&id), "{}", done.stdout);
        assert_eq!(
            shop.place.tidewater(&["deploy"]).done().stdout,
            shop.place
                .tidewater(&["deploy", "--refuse-pending"])
                .done()
                .stdout,
        );
        drop(shop.server);
        let server = shop.place.serve(&[]);
        let url = server.url();
        shop.place
            .tidewater(&["sync", "nancy.db", "--server", url])
            .exits(6);
        let refused = shop.place.tidewater(&["refused", "list", "nancy.db"]);
        assert!(refused.done().stdout.contains("paper"));
    });
}

#[test]
fn users_that_are_or_are_not_there_are_told() {
    let place = Place::new();
    let _centre = prepared(&place);
    place
        .tidewater_as("x", &["user", "add", "nancy"])
        .exits(1)
        .tells(&["already", "set-password"]);
    // Before a password is asked for.
    let without = |action| place.tidewater(&["user", action, "nancy"]).exits(1);
    without("add").tells(&["already"]);
    let nobody = ["user", "set-password", "nobody"];
    place.tidewater(&nobody).exits(1).tells(&["no user"]);
    for action in ["disable", "enable", "remove"] {
        place
            .tidewater(&["user", action, "nobody"])
            .exits(1)
            .tells(&["no user \"nobody\""]);
    }
    place
        .tidewater_as("x", &["user", "set-password", "nobody"])
        .exits(1);
    place.tidewater(&["user", "remove", "nancy"]).done();
    let list = place.tidewater(&["user", "list"]).done().stdout;
    assert!(!list.contains("nancy") && list.contains("steve"), "{list}");
}

#[test]
fn sql_in_user_names_is_only_a_name() {
    Shop::on_both_centres(|shop| {
        for (number, user) in [
            "o'brien'; DROP TABLE rep; --",
            "\"quoted\" \\ back",
            "名前 {s.username} ${HOME} %s $1 ?1",
        ]
        .into_iter()
        .enumerate()
        {
            crate::shop::add_user(&shop.place, user);
            let quoted = user.replace('\'', "''");
            let rep = 100 + number;
            shop.centre.execute(&format!(
                "INSERT INTO rep VALUES ({rep}, '{quoted}');
                 INSERT INTO customer VALUES ({rep}, {rep}, '{quoted}', '{quoted}');"
            ));
            let file = format!("{number}.db");
            let url = shop.server.url();
            let first = [
                "sync",
                &file,
                "--server",
                url,
                "--user",
                user,
                "--publication",
                "main",
            ];
            shop.place.tidewater_as(&password(user), &first).done();
            let remote = crate::program::sqlite(&shop.place.path(&file));
            let rows = crate::centre::sqlite_rows(&remote, "SELECT name, note FROM customer");
            assert_eq!(rows, [format!("{user}|{user}")]);
        }
    });
}

#[test]
fn nothing_that_only_tidewater_knows_is_thrown_away_by_undeploy() {
    Shop::on_both_centres(undeploy_keeps_records);
}

fn undeploy_keeps_records(shop: Shop) {
    let before = relations(&shop.centre);
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    nancy.execute("UPDATE product SET name = 'first' WHERE product_id = 1");
    steve.execute("UPDATE product SET name = 'it''s \"2nd\"' WHERE product_id = 1");
    shop.sync(&nancy).done();
    nancy.execute("UPDATE customer SET rep_id = 2 WHERE customer_id = 10");
    shop.sync(&nancy).exits(6);
    shop.sync(&steve).done();
    let Shop {
        server,
        centre,
        place,
    } = shop;
    place
        .tidewater(&["undeploy", "--discard", "--yes"])
        .exits(1)
        .tells(&[
            "a server serves this database",
            "nothing was removed",
            "--force",
        ]);
    server.terminate();

    place.tidewater(&["undeploy"]).exits(1).tells(&[
        "1 conflict and 1 refused row",
        "--export",
        "--discard",
    ]);
    let told = place.tidewater(&["undeploy", "--dry-run"]).done();
    for part in [
        "goes: change logs and triggers of 3 tables (",
        "goes: 2 users, and 2 remotes",
        "goes: 1 conflict, 0 of them open, and 1 refused row",
        "stays: your tables",
    ] {
        assert!(told.stdout.contains(part), "{part}: {told:#?}");
    }
    assert_eq!(relations(&centre), before);
    place
        .tidewater(&["undeploy", "--export", "kept"])
        .exits(1)
        .tells(&["2 users and 2 remotes", "no terminal", "--yes"]);
    assert_eq!(relations(&centre), before);
    let run = ["undeploy", "--export", "kept", "--yes"];
    place.tidewater(&run).done();
    let conflict: serde_json::Value =
        serde_json::from_str(place.read("kept/conflicts.jsonl").trim_end()).unwrap();
    assert_eq!(conflict["uploaded"]["name"], "it's \"2nd\"");
    assert_eq!(conflict["winner"]["name"], "first");
    assert_eq!(conflict["user"], "steve");
    let refused: serde_json::Value =
        serde_json::from_str(place.read("kept/refused.jsonl").trim_end()).unwrap();
    assert_eq!(refused["table"], "customer");
    assert_eq!(refused["row"]["rep_id"], 2);
    assert_eq!(relations(&centre), ["customer", "product", "rep"]);
    assert_eq!(centre.rows("SELECT count(*) FROM customer"), ["3"]);
}

/// Everything with a name of its own in the database.
fn relations(centre: &Centre) -> Vec<String> {
    centre.rows(match centre {
        Centre::Sqlite(_) => {
            "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        }
        Centre::Postgres { .. } => {
            "SELECT name FROM (
               SELECT relname::text AS name FROM pg_class c
                 JOIN pg_namespace n ON n.oid = relnamespace
                 WHERE relkind IN ('r', 'p', 'v', 'S')
                 AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
               UNION ALL SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal
               UNION ALL SELECT proname::text FROM pg_proc p
                 JOIN pg_namespace n ON n.oid = pronamespace
                 WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
               UNION ALL SELECT nspname::text FROM pg_namespace WHERE nspname = 'tidewater'
             ) names ORDER BY name COLLATE \"C\""
        }
    })
}

#[test]
fn a_remote_that_never_synced_is_listed_as_such_and_a_mistyped_publication_lists_none() {
    let shop = Shop::open();
    let url = shop.server.url();
    let first = [
        "sync",
        "nancy.db",
        "--server",
        url,
        "--user",
        "nancy",
        "--publication",
        "mian",
    ];
    let password = password("nancy");
    shop.place
        .tidewater_as(&password, &first)
        .exits(4)
        .tells(&["no publication \"mian\""]);
    let list = || shop.place.tidewater(&["remote", "list", "--json"]).json();
    assert_eq!(list()["remotes"].as_array().map(Vec::len), Some(0));
    // The sync itself fails after signing in: there is nothing to download from.
    shop.centre
        .execute("ALTER TABLE product RENAME TO elsewhere");
    let failed = shop.first_sync("nancy", &[]);
    assert_ne!(failed.code, 0, "{failed:#?}");
    assert!(list()["remotes"][0]["last_sync_ms"].is_null());
    let table = shop.place.tidewater(&["remote", "list"]).done().stdout;
    assert!(table.contains("never synced"), "{table}");
}
