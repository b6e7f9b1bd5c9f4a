//! Files that are not what they should be, and signals.

use std::process::Stdio;

use crate::centre::sqlite_rows;
use crate::program::{Place, Run, free_url, sqlite};
use crate::shop::{Shop, add_user, password};

/// The centre is gone, and what a device holds is the only copy.
#[test]
fn a_centre_that_was_made_anew_empties_no_device_unasked() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    shop.place
        .tidewater(&["undeploy", "--force", "--yes"])
        .done();
    shop.centre.execute("DELETE FROM product");
    shop.place.tidewater(&["deploy"]).done();
    add_user(&shop.place, "nancy");
    let server = shop.place.serve(&[]);
    let sync = ["sync", "nancy.db", "--server", server.url(), "--json"];
    let password = password("nancy");
    let run = shop.place.tidewater_as(&password, &sync).exits(4);
    let run = run.tells(&["another centre", "--other-centre"]);
    assert_eq!(run.json()["error"]["code"], "another_centre");
    let count = "SELECT count(*) FROM product";
    assert_ne!(nancy.rows(count), ["0"]);
    let sync = [&sync[..], &["--other-centre"]].concat();
    let report = shop.place.tidewater_as(&password, &sync).done().json();
    assert_eq!(report["downloaded"]["removals"], 2);
    assert_eq!(nancy.rows(count), ["0"]);
}

#[test]
fn looking_at_a_file_does_not_make_it_a_remote() {
    let place = Place::new();
    sqlite(&place.path("other.db"))
        .execute_batch("CREATE TABLE mine (x)")
        .unwrap();
    place.write("text.db", "no database at all, just some text");
    place.write("empty.db", "");
    std::fs::create_dir(place.path("folder.db")).unwrap();
    for file in ["other.db", "text.db", "empty.db", "folder.db", "missing.db"] {
        let before = std::fs::read(place.path(file)).ok();
        for command in [
            &["status", file][..],
            &["refused", "list", file],
            &["refused", "retry", file],
            &["refused", "discard", file, "--all"],
            &["sync", file],
        ] {
            place.tidewater(command).exits(1).tells(&[file, "hint: "]);
        }
        assert_eq!(std::fs::read(place.path(file)).ok(), before, "{file}");
    }
}

#[test]
fn a_foreign_file_is_not_synced_over() {
    let shop = Shop::open();
    shop.place
        .write("nancy.db", "no database at all, just some text");
    shop.first_sync("nancy", &[]).exits(1).tells(&["nancy.db"]);
    assert_eq!(
        shop.place.read("nancy.db"),
        "no database at all, just some text"
    );
}

#[test]
fn an_sqlite_file_of_ones_own_keeps_its_tables() {
    let shop = Shop::open();
    let own = sqlite(&shop.place.path("nancy.db"));
    own.execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1);")
        .unwrap();
    shop.first_sync("nancy", &[]).done();
    assert_eq!(sqlite_rows(&own, "SELECT x FROM mine"), ["1"]);
    assert_eq!(sqlite_rows(&own, "SELECT count(*) FROM product"), ["2"]);
}

#[test]
fn a_locked_file_is_told_and_syncs_when_the_lock_is_gone() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    let application = sqlite(&shop.place.path("nancy.db"));
    application
        .execute_batch("BEGIN IMMEDIATE; INSERT INTO product VALUES (4, 'glue');")
        .unwrap();
    let run = shop.sync(&nancy).exits(2);
    assert_eq!(run.json()["error"]["code"], "remote_locked");
    application.execute_batch("COMMIT").unwrap();
    shop.sync(&nancy).done();
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["4"]);
}

#[test]
fn another_account_is_refused_for_a_remote_that_has_one() {
    let shop = Shop::open();
    let _nancy = shop.remote("nancy");
    let url = shop.server.url();
    shop.place
        .tidewater_as(
            "x",
            &[
                "sync",
                "nancy.db",
                "--server",
                url,
                "--user",
                "steve",
                "--publication",
                "main",
            ],
        )
        .exits(1)
        .tells(&["nancy"]);
}

#[test]
fn one_mistyped_publication_does_not_break_later_syncs() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    let mistyped = ["sync", "nancy.db", "--publication", "mian"];
    shop.place
        .tidewater(&mistyped)
        .exits(4)
        .tells(&["mian", "it has: main"]);
    shop.sync(&nancy).done();
}

#[test]
fn a_remote_moves_to_another_address_of_its_server_and_stays_there() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    let elsewhere = shop.place.serve(&[]);
    let server = || {
        let status = shop.place.tidewater(&["status", "nancy.db", "--json"]);
        status.done().json()["server"].clone()
    };
    let nobody = free_url();
    shop.place
        .tidewater(&["sync", "nancy.db", "--server", &nobody])
        .exits(2);
    assert_eq!(server(), shop.server.url());
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    shop.place
        .tidewater(&["sync", "nancy.db", "--server", elsewhere.url()])
        .done();
    assert_eq!(server(), elsewhere.url());
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
    shop.sync(&nancy).done();
}

#[test]
fn values_with_metacharacters_travel_unchanged() {
    let shop = Shop::open();
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    let values = [
        "'; DROP TABLE product; --",
        "\"\\ \t\r\n%s {r.col} ${HOME} $1",
        "\u{0}nul inside",
        "𝄞 ünï \u{202e}",
        "",
    ];
    let connection = sqlite(&shop.place.path(&nancy.name));
    for (number, value) in (50..).zip(values) {
        connection
            .execute("INSERT INTO product VALUES (?1, ?2)", (number, value))
            .unwrap();
    }
    shop.sync(&nancy).done();
    shop.sync(&steve).done();
    let sql = "SELECT product_id, name FROM product ORDER BY 1";
    assert_eq!(steve.rows(sql), nancy.rows(sql));
    assert_eq!(steve.rows(sql), shop.centre.rows(sql));
}

#[test]
fn an_interrupted_sync_loses_nothing() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute(
        "INSERT INTO product
         WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
         SELECT i, 'product ' || i FROM n",
    );
    let mut child = shop
        .place
        .command(&["sync", "nancy.db", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    // Wherever it is by then: before the connection, in the upload, or done.
    while child.try_wait().unwrap().is_none() {
        let _ = std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status();
        std::thread::yield_now();
    }
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 5) | None), "{code:?}");
    shop.sync(&nancy).done();
    let sql = "SELECT count(*), sum(product_id) FROM product";
    assert_eq!(shop.centre.rows(sql), nancy.rows(sql));
}

#[test]
fn a_remote_that_was_restored_from_a_copy_goes_on_as_a_new_one() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        shop.sync(&nancy).done();
        let id = |file: &str| {
            let status = shop.place.tidewater(&["status", file, "--json"]).done();
            status.json()["remote_id"].clone()
        };
        let original = id("nancy.db");
        let copy = shop.place.path("copy.db");
        nancy.execute(&format!("VACUUM INTO '{}'", copy.display()));
        nancy.execute(
            "INSERT INTO product VALUES (4, 'glue'); DELETE FROM customer WHERE customer_id = 11",
        );
        shop.sync(&nancy).done();
        // The laptop died; here is last week's copy, with work of today on it.
        let copy = sqlite(&shop.place.path("copy.db"));
        copy.execute_batch(
            "INSERT INTO product VALUES (5, 'tape');
             UPDATE customer SET note = 'from the copy' WHERE customer_id = 10;",
        )
        .unwrap();
        shop.place.tidewater(&["sync", "copy.db"]).done();
        assert_ne!(id("copy.db"), original);
        assert_eq!(id("nancy.db"), original);
        shop.sync(&nancy).done();
        for sql in [
            "SELECT * FROM product ORDER BY 1",
            "SELECT * FROM customer WHERE rep_id = 1 ORDER BY 1",
        ] {
            assert_eq!(sqlite_rows(&copy, sql), shop.centre.rows(sql));
            assert_eq!(nancy.rows(sql), shop.centre.rows(sql));
        }
        let products = shop.centre.rows("SELECT count(*) FROM product");
        assert_eq!(products, ["5"]);
    });
}

#[test]
fn syncs_of_one_file_at_the_same_time_do_no_harm() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        for round in 0..3 {
            let first = 1_000 * (round + 1);
            let last = first + 500;
            nancy.execute(&format!(
                "INSERT INTO product
                 WITH RECURSIVE n (i) AS
                   (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})
                 SELECT i, 'product ' || i FROM n;
                 UPDATE product SET name = name || '+' WHERE product_id < 10;"
            ));
            shop.centre.execute(&format!(
                "INSERT INTO product VALUES ({}, 'the centre''s')",
                last + 1
            ));
            let start = || {
                let mut command = shop.place.command(&["sync", "nancy.db"]);
                command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("the program starts")
            };
            let syncs: Vec<_> = (0..4).map(|_| start()).collect();
            for sync in syncs {
                let run = Run::from(sync.wait_with_output().expect("the program ends"));
                // Another one was faster, or held the lock, and it says so.
                if run.code != 0 {
                    run.exits(2).tells(&["sync", "hint: ", "sync again"]);
                }
            }
        }
        shop.sync(&nancy).done();
        let sql = "SELECT product_id, name FROM product ORDER BY 1";
        assert_eq!(nancy.rows(sql), shop.centre.rows(sql));
        let sql = "SELECT name FROM product WHERE product_id = 1";
        assert_eq!(nancy.rows(sql), ["pen+++"]);
        let status = shop
            .place
            .tidewater(&["status", "-c", "tidewater.toml", "--json"]);
        assert_eq!(status.json()["conflicts"], 0);
    });
}
