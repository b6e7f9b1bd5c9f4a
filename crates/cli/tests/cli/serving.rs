//! The server process: what it prints and logs, how it ends, and what a sync survives.

use std::process::Stdio;

use serde_json::Value;
use tidewater_testing::postgres::Postgres;

use crate::centre::Centre;
use crate::program::{Place, free_url};
use crate::shop::{Remote, Shop, password, prepared};

#[test]
fn logs_are_json_on_standard_error_with_one_summary_line_per_sync() {
    let place = Place::new();
    let _centre = prepared(&place);
    let server = place.serve(&["--log-format", "json"]);
    let url = server.url();
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
    place.tidewater_as(&password("nancy"), &first).done();
    place.tidewater(&["sync", "nancy.db"]).done();
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let syncs = lines.iter().filter(|it| it["fields"]["message"] == "sync");
    let upserts: Vec<&Value> = syncs.map(|it| &it["fields"]["upserts"]).collect();
    assert_eq!(upserts, [6, 0], "{log}");
    assert!(!log.contains(&password("nancy")), "{log}");
}

#[test]
fn the_configuration_says_where_to_listen_and_how_to_log() {
    let place = Place::new();
    let centre = prepared(&place);
    let url = free_url();
    let server = format!("listen = [{url:?}]\n[log]\nformat = \"json\"\nlevel = \"error\"");
    crate::shop::configure(&place, &centre, &server, crate::shop::TABLES);
    let server = place.serve_as_configured();
    assert_eq!(server.url(), url);
    place.tidewater(&["ping", &url]).done();
    place
        .tidewater(&["serve"])
        .exits(1)
        .tells(&["cannot listen on", &url]);
    let (_, log) = server.terminate();
    assert_eq!(log, "");
    place
        .tidewater(&["serve", "--log-level", "tidewater_server=loud"])
        .exits(1)
        .tells(&["loud"]);
}

/// A synced remote, whose SQLite centre then has an accident while it is served: nothing is
/// acknowledged any more. Gives the centre and the server's URL, without the server.
#[cfg(unix)]
fn nothing_is_acknowledged_after(accident: impl Fn(&Place)) -> (Place, Centre, String) {
    let url = free_url();
    let shop = Shop::open_on(&url);
    let nancy = shop.remote("nancy");
    let Shop {
        server,
        centre,
        place,
    } = shop;
    let backup = place.path("backup.db");
    centre.execute(&format!("VACUUM INTO '{}'", backup.display()));
    accident(&place);
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    let sync = ["sync", "nancy.db", "--json", "--no-retry"];
    let refused = place.tidewater(&sync).exits(2);
    assert_eq!(refused.json()["error"]["code"], "consolidated_unavailable");
    let (_, log) = server.terminate();
    assert!(log.contains("replaced while it was open"), "{log}");
    assert_eq!(centre.rows("SELECT count(*) FROM product"), ["2"]);
    (place, centre, url)
}

#[cfg(unix)]
#[test]
fn a_centre_restored_under_a_running_server_acknowledges_nothing_until_a_restart() {
    let (place, centre, url) = nothing_is_acknowledged_after(|place| {
        for name in ["centre.db", "centre.db-wal", "centre.db-shm"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
        std::fs::copy(place.path("backup.db"), place.path("centre.db")).unwrap();
    });
    place.tidewater(&["deploy"]).done();
    let _server = place.serve_on(&url, &[]);
    place.tidewater(&["sync", "nancy.db"]).done();
    assert_eq!(
        centre.rows("SELECT name FROM product WHERE product_id = 3"),
        ["paper"]
    );
}

#[cfg(unix)]
#[test]
fn a_centre_whose_log_is_removed_under_a_running_server_acknowledges_nothing() {
    nothing_is_acknowledged_after(|place| {
        for name in ["centre.db-wal", "centre.db-shm"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    });
}

#[test]
fn one_way_syncs_leave_the_other_way_for_later() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        shop.centre
            .execute("INSERT INTO product VALUES (4, 'glue')");
        let one_way = |option: &str| {
            let arguments = ["sync", "nancy.db", option, "--json"];
            shop.place.tidewater(&arguments).done().json()
        };
        let products = "SELECT product_id FROM product ORDER BY 1";
        let report = one_way("--download-only");
        assert_eq!(report["uploaded"]["inserts"], 0);
        assert_eq!(report["downloaded"]["upserts"], 1);
        assert_eq!(nancy.rows(products), ["1", "2", "3", "4"]);
        assert_eq!(shop.centre.rows(products), ["1", "2", "4"]);
        shop.centre
            .execute("INSERT INTO product VALUES (5, 'tape')");
        let report = one_way("--upload-only");
        assert_eq!(report["uploaded"]["inserts"], 1);
        assert_eq!(report["downloaded"]["upserts"], 0);
        assert_eq!(nancy.rows(products), ["1", "2", "3", "4"]);
        assert_eq!(shop.centre.rows(products), ["1", "2", "3", "4", "5"]);
        shop.sync(&nancy).done();
        assert_eq!(nancy.rows(products), shop.centre.rows(products));
    });
}

#[test]
fn a_value_that_postgresql_cannot_store_is_refused_alone() {
    let shop = Shop::open_on_postgres();
    let nancy = shop.remote("nancy");
    nancy.execute(
        "INSERT INTO product VALUES (3, 'paper'), (4, 'nul ' || char(0) || ' inside'), (5, x'ff');",
    );
    let report = shop.sync(&nancy).exits(6).json();
    assert_eq!(report["refused"], 2);
    assert_eq!(report["uploaded"]["inserts"], 1);
    let status = shop.place.tidewater(&["status", "nancy.db", "--json"]);
    assert_eq!(status.json()["refused"], 2);
    assert_eq!(nancy.rows("SELECT count(*) FROM product"), ["5"]);
}

#[test]
fn a_restart_of_postgresql_fails_no_later_sync() {
    let mut postgres = Postgres::start().expect("PostgreSQL starts");
    let centre = Centre::Postgres(postgres.fresh_database());
    let shop = Shop::open_in(Place::new(), centre);
    let users = ["nancy", "steve"];
    let remotes = users.map(|user| shop.remote(user));
    // While PostgreSQL is away, the server must have no business of its own with it.
    let recorded = || {
        let count = || {
            shop.centre
                .rows("SELECT count(*) FROM tidewater.sync_history")
        };
        assert!((0..1_000).any(|_| count() == ["2"]), "{:?}", count());
        shop.centre.execute("DELETE FROM tidewater.sync_history");
    };
    recorded();
    for round in 0..3 {
        // Several connections of every kind, so that several are stale afterwards.
        let syncs = remotes.each_ref().map(|remote| {
            remote.execute("UPDATE product SET name = name || '+' WHERE product_id = 1");
            let mut sync = shop.place.command(&["sync", &remote.name, "--quiet"]);
            let sync = sync.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            sync.expect("the program starts")
        });
        for mut sync in syncs {
            assert!(sync.wait().expect("a child ends").success(), "{round}");
        }
        recorded();
        if round == 1 {
            // Once in good order, once as after a power cut.
            postgres.kill().expect("PostgreSQL can be killed");
        }
        postgres.restart().expect("PostgreSQL starts again");
        for remote in &remotes {
            remote.execute("UPDATE product SET name = name || '-' WHERE product_id = 2");
            shop.sync(remote).done();
        }
        recorded();
    }
    drop(shop);
}

#[test]
fn a_server_that_is_killed_in_the_middle_applies_each_upload_once() {
    killed_in_the_middle(Shop::open);
    killed_in_the_middle(Shop::open_on_postgres);
}

/// Kills the server at moments that nobody chooses: whatever they are, it must come out.
fn killed_in_the_middle(open: fn() -> Shop) {
    let shop = open();
    let nancy = shop.remote("nancy");
    let Shop {
        server,
        centre,
        place,
    } = shop;
    drop(server);
    let url = free_url();
    // The address is new; as far as the remote knows it is the one of its first sync.
    nancy.execute(&format!("UPDATE tidewater_state SET server = '{url}'"));
    for round in 0..6_u32 {
        let server = place.serve_on(&url, &[]);
        let first = 10_000 * (round + 1);
        let last = first + 5_000;
        nancy.execute(&format!(
            "INSERT INTO product
             WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})
             SELECT i, 'product ' || i FROM n;
             UPDATE product SET name = name || '+' WHERE product_id < 10;"
        ));
        let mut sync = place
            .command(&["sync", "nancy.db"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        for _ in 0..round * 20_000 {
            if sync.try_wait().expect("a child can be asked").is_some() {
                break;
            }
        }
        drop(server);
        let _ = sync.wait();
    }
    let server = place.serve_on(&url, &[]);
    place.tidewater(&["sync", "nancy.db"]).done();
    same_products(&nancy, &centre.rows(PRODUCTS));
    assert_eq!(
        nancy.rows("SELECT name FROM product WHERE product_id = 1"),
        ["pen++++++"]
    );
    drop(server);
}

const PRODUCTS: &str = "SELECT product_id, name FROM product ORDER BY 1";

#[track_caller]
fn same_products(remote: &Remote, centre: &[String]) {
    let remote = remote.rows(PRODUCTS);
    assert_eq!(remote.len(), centre.len());
    assert!(remote == centre, "same keys, other names");
}
