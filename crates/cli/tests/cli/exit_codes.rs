//! Each exit code, by a cause that a user meets.

use crate::centre::{Centre, on_both_centres};
use crate::program::{Place, free_url};
use crate::shop::{SCHEMA, Shop, TABLES, configure, prepared};

#[test]
fn asking_for_help_is_no_error() {
    let place = Place::new();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["help"],
        &["sync", "--help"],
        &["user", "add", "--help"],
    ] {
        let run = place.tidewater(arguments).done();
        assert!(!run.stdout.is_empty() && run.stderr.is_empty(), "{run:?}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.tidewater(&["completions", shell]).done().stdout;
        assert!(script.contains("tidewater"), "{script}");
    }
}

#[test]
fn wrong_usage_exits_with_1() {
    let place = Place::new();
    for arguments in [
        &[][..],
        &["no-such-command"],
        &["sync"],
        &["sync", "a.db", "--upload-only", "--download-only"],
        &["sync", "a.db"],
        &["sync", "a.db", "--server", "tcp://127.0.0.1:1"],
        &["status"],
        &["refused", "discard", "a.db"],
        &["deploy", "-c", "missing.toml"],
        &["remote", "revoke", "no-uuid"],
        &["remote", "restore", "no-uuid"],
    ] {
        place.tidewater(arguments).exits(1);
        assert!(!place.path("a.db").exists(), "{arguments:?}");
    }
}

#[test]
fn what_was_meant_is_told_to_who_names_the_wrong_file_or_none() {
    let place = Place::new();
    place
        .tidewater(&["status"])
        .exits(1)
        .tells(&["tidewater status -c FILE"]);
    std::fs::write(place.path("notes.db"), "milk, bread").unwrap();
    place
        .tidewater(&["init", "--consolidated", "sqlite:notes.db"])
        .exits(1)
        .tells(&["notes.db is not an SQLite database", "check the path"]);
    prepared(&place);
    let status = place.tidewater(&["status"]).done().stdout;
    assert!(status.contains("users      2"), "{status}");
    for list in ["refused", "conflicts"] {
        place
            .tidewater(&[list, "list", "-c", "tidewater.toml", "--limit", "0"])
            .exits(1)
            .tells(&["--limit"]);
    }
    place
        .tidewater(&["status", "tidewater.toml"])
        .exits(1)
        .tells(&["not a remote database", "-c tidewater.toml"]);
    let account = ["--server", "tcp://127.0.0.1:1", "--user", "nancy"];
    let first = [
        &["sync", "nodir/a.db"][..],
        &account,
        &["--publication", "main"],
    ]
    .concat();
    place
        .tidewater_as("x", &first)
        .exits(1)
        .tells(&["the folder nodir does not exist"]);
    drop(tidewater_client::Remote::open(place.path("nancy.db")).unwrap());
    place
        .tidewater_as("x", &[&["sync", "nancy.db"][..], &account].concat())
        .exits(1)
        .tells(&["first sync: add --publication NAME"]);
    let status = place.tidewater(&["status", "nancy.db"]).done().stdout;
    assert!(status.contains("this file has never signed in"), "{status}");
}

#[test]
fn a_ping_of_something_else_says_so() {
    let place = Place::new();
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", stranger.local_addr().unwrap());
    let answering = std::thread::spawn(move || drop(stranger.accept()));
    let run = place.tidewater(&["ping", &url]).exits(2);
    answering.join().unwrap();
    let run = run.tells(&["answers nothing that a Tidewater server would say"]);
    assert!(!run.stderr.contains("local changes"), "{run:?}");
    let run = place.tidewater(&["ping", "tcp://127.0.0.1:1"]).exits(2);
    assert!(!run.stderr.contains("local changes"), "{run:?}");
}

#[test]
fn who_has_no_configuration_file_is_told_how_to_get_one() {
    let place = Place::new();
    for command in ["deploy", "serve"] {
        place.tidewater(&[command]).exits(1).tells(&[
            "tidewater.toml",
            "-c FILE",
            "tidewater init",
        ]);
    }
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_known_one() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    configure(&place, &centre, "lisen = []", TABLES);
    place
        .tidewater(&["deploy"])
        .exits(1)
        .tells(&["unknown key \"lisen\"", "hint: did you mean \"listen\"?"]);
}

#[test]
fn a_server_that_is_down_exits_with_2_and_syncs_when_it_is_back() {
    let url = free_url();
    let shop = Shop::open_on(&url);
    let nancy = shop.remote("nancy");
    let Shop {
        server,
        centre,
        place,
    } = shop;
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    place
        .tidewater(&["sync", "nancy.db"])
        .exits(2)
        .tells(&["hint: "]);
    place.tidewater(&["ping", &url]).exits(2);
    let _server = place.serve_on(&url, &[]);
    place.tidewater(&["sync", "nancy.db"]).done();
    assert_eq!(centre.rows("SELECT count(*) FROM product"), ["3"]);
}

#[test]
fn who_is_not_allowed_in_exits_with_3_and_learns_nothing() {
    let shop = Shop::open();
    let attempt = |file: &str, user: &str| {
        let url = shop.server.url();
        let run = shop.place.tidewater_as(
            "wrong",
            &[
                "sync",
                file,
                "--server",
                url,
                "--user",
                user,
                "--publication",
                "main",
            ],
        );
        run.exits(3).stderr
    };
    // Whether the user exists makes no difference.
    assert_eq!(attempt("a.db", "nancy"), attempt("b.db", "nobody"));
}

#[test]
fn who_has_to_wait_after_wrong_passwords_exits_with_2_and_is_told_how_long() {
    let shop = Shop::open();
    let attempt = |password: &str| {
        let url = shop.server.url();
        let account = ["--user", "nancy", "--publication", "main", "--json"];
        let sync = [&["sync", "nancy.db", "--server", url][..], &account].concat();
        shop.place.tidewater_as(password, &sync)
    };
    let slowed_down = (0..20)
        .map(|_| attempt("wrong"))
        .find(|run| run.code != 3)
        .expect("guessing is slowed down");
    let error = slowed_down.exits(2).json()["error"].clone();
    assert_eq!(error["code"], "too_many_attempts");
    assert!(error["retry_after_ms"].as_u64() > Some(0), "{error}");
}

#[test]
fn a_wrong_password_can_be_corrected_in_the_same_file() {
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
        "main",
    ];
    shop.place.tidewater_as("wrong", &first).exits(3);
    shop.first_sync("nancy", &[]).done();
}

#[test]
fn disabled_users_and_revoked_remotes_exit_with_3() {
    let shop = Shop::open();
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    shop.place.tidewater(&["user", "disable", "nancy"]).done();
    shop.sync(&nancy).exits(3);
    shop.place.tidewater(&["user", "enable", "nancy"]).done();
    shop.sync(&nancy).done();
    let status = shop.place.tidewater(&["status", "steve.db", "--json"]);
    let id = status.json()["remote_id"].as_str().unwrap().to_owned();
    shop.place.tidewater(&["remote", "revoke", &id]).done();
    let run = shop.sync(&steve).exits(3);
    assert_eq!(run.json()["error"]["code"], "remote_revoked");
    let list = shop.place.tidewater(&["remote", "list"]).done().stdout;
    assert!(list.contains("revoked"), "{list}");
    steve.execute("INSERT INTO product VALUES (3, 'paper')");
    let run = shop.place.tidewater(&["sync", "steve.db"]).exits(3);
    run.tells(&[
        "its changes stay in the file",
        "tidewater remote restore ID",
    ]);
    shop.place.tidewater(&["remote", "restore", &id]).done();
    shop.sync(&steve).done();
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
}

#[test]
fn an_unknown_publication_exits_with_4_and_can_be_corrected() {
    let shop = Shop::open();
    let url = shop.server.url();
    let wrong = [
        "sync",
        "nancy.db",
        "--server",
        url,
        "--user",
        "nancy",
        "--publication",
        "man",
        "--json",
    ];
    let password = crate::shop::password("nancy");
    let run = shop.place.tidewater_as(&password, &wrong).exits(4);
    assert_eq!(run.json()["error"]["code"], "unknown_publication");
    shop.first_sync("nancy", &[]).done();
    assert_eq!(shop.place.tidewater(&["sync", "nancy.db"]).code, 0);
}

#[test]
fn a_table_in_the_way_exits_with_4_and_changes_nothing() {
    let shop = Shop::open();
    let own = crate::program::sqlite(&shop.place.path("nancy.db"));
    own.execute_batch("CREATE TABLE product (mine TEXT); INSERT INTO product VALUES ('x');")
        .unwrap();
    shop.first_sync("nancy", &[]).exits(4).tells(&["product"]);
    let rows = crate::centre::sqlite_rows(&own, "SELECT * FROM product");
    assert_eq!(rows, ["x"]);
}

#[test]
fn a_centre_that_is_not_deployed_says_what_to_run() {
    on_both_centres(|place, centre| {
        centre.execute(SCHEMA);
        configure(place, centre, "", TABLES);
        for command in [
            &["serve", "--listen", "tcp://127.0.0.1:0"][..],
            &["user", "add", "nancy"],
            &["user", "list"],
            &["user", "disable", "nancy"],
            &["remote", "list"],
            &["status", "-c", "tidewater.toml"],
        ] {
            place
                .tidewater_as("x", command)
                .exits(1)
                .tells(&["tidewater deploy"]);
        }
        for command in [
            &["user", "add", "nancy"][..],
            &["status", "-c", "tidewater.toml"],
        ] {
            place
                .tidewater_as("x", command)
                .exits(1)
                .tells(&["the database is not prepared for Tidewater yet"]);
        }
        place.tidewater(&["undeploy", "--yes"]).done();
        let server = place.serve(&["--deploy"]);
        place.tidewater(&["ping", server.url()]).done();
    });
}
