//! Servers that go on: with another deployment, another configuration, altered tables, and beside
//! applications that hold locks.

use std::process::Command;

use crate::program::{Place, Server, until};
use crate::shop::{Shop, TABLES, configure, prepared};

const NOTES: &str = r#"
[[publication.table]]
name = "note"
partition = "everyone"
"#;

/// Asks a server to read its configuration again, as a service manager does.
fn hang_up(server: &Server) {
    let pid = server.process().to_string();
    let kill = Command::new("kill").args(["-HUP", &pid]).status();
    assert!(kill.is_ok_and(|status| status.success()));
}

#[test]
fn a_deployment_reaches_remotes_of_every_running_server_without_a_restart() {
    Shop::on_both_centres(|shop| {
        let other = shop.place.serve(&[]);
        let nancy = shop.remote("nancy");
        shop.centre.execute(
            "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT);
             INSERT INTO note VALUES (1, 'new')",
        );
        nancy.execute("UPDATE product SET name = 'typed before' WHERE product_id = 1");
        configure(&shop.place, &shop.centre, "", &format!("{TABLES}{NOTES}"));
        shop.place.tidewater(&["deploy"]).done();
        for server in [&other, &shop.server] {
            let url = server.url();
            let arguments = ["sync", &nancy.name, "--server", url];
            shop.place.tidewater(&arguments).done();
            assert_eq!(nancy.rows("SELECT body FROM note"), ["new"]);
        }
        // And one that begins with another file serves what is deployed.
        configure(&shop.place, &shop.centre, "", TABLES);
        let third = shop.place.serve(&[]);
        let arguments = ["sync", &nancy.name, "--server", third.url()];
        shop.place.tidewater(&arguments).done();
        assert_eq!(nancy.rows("SELECT body FROM note"), ["new"]);
        let (_, log) = third.terminate();
        assert!(log.contains("run tidewater deploy"), "{log}");
        assert_eq!(
            shop.centre
                .rows("SELECT name FROM product WHERE product_id = 1"),
            ["typed before"]
        );
    });
}

#[test]
fn a_column_that_is_widened_fails_no_sync() {
    let shop = Shop::open_on_postgres();
    shop.centre
        .execute("ALTER TABLE customer ADD amount integer DEFAULT 1");
    shop.place.tidewater(&["deploy"]).done();
    let nancy = shop.remote("nancy");
    shop.centre.execute(
        "ALTER TABLE customer ALTER amount TYPE bigint;
         UPDATE customer SET amount = 5000000000 WHERE customer_id = 10",
    );
    shop.place.tidewater(&["sync", &nancy.name]).done();
    assert_eq!(
        nancy.rows("SELECT amount FROM customer WHERE customer_id = 10"),
        ["5000000000"]
    );
    nancy.execute("UPDATE customer SET amount = 6000000000 WHERE customer_id = 10");
    shop.place.tidewater(&["sync", &nancy.name]).done();
    assert_eq!(
        shop.centre
            .rows("SELECT amount FROM customer WHERE customer_id = 10"),
        ["6000000000"]
    );
}

#[test]
fn a_certificate_is_replaced_while_the_server_runs_and_a_wrong_file_changes_nothing() {
    let place = Place::new();
    let centre = prepared(&place);
    let make = ["cert", "--out", ".", "--host", "127.0.0.1", "--force"];
    let lines = place.tidewater(&make).done().stdout;
    configure(&place, &centre, &lines, TABLES);
    let server = place.serve(&["--listen", "tls://127.0.0.1:0"]);
    let url = server.urls[1].clone();
    let ping = || {
        let arguments = ["ping", &url, "--ca", "tidewater-dev.pem"];
        place.tidewater(&arguments).code
    };
    assert_eq!(ping(), 0);
    place.tidewater(&make).done();
    assert_eq!(ping(), 3);
    place.write("tidewater.toml", "[server]\nlisten = [\"nowhere\"]\n");
    hang_up(&server);
    server.logs("the one before stays");
    assert_eq!(ping(), 3);
    configure(&place, &centre, &lines, TABLES);
    hang_up(&server);
    until("the new certificate is shown", || ping() == 0);
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
}

/// The remote is told to come back, others go on, and the status says for whom it waits.
#[test]
fn a_transaction_that_is_left_open_is_named_by_the_status() {
    let shop = Shop::open_on_postgres();
    let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
    let application = shop.centre.session().expect("it is PostgreSQL");
    application.execute("SET application_name = 'the till'; BEGIN");
    application.execute("UPDATE product SET name = 'held' WHERE product_id = 1");
    nancy.execute("UPDATE product SET name = 'nancy' WHERE product_id = 1");
    steve.execute("UPDATE product SET name = 'steve' WHERE product_id = 2");
    let busy = shop.sync_without_retry(&nancy).exits(2).json();
    assert_eq!(busy["error"]["code"], "busy");
    assert!(busy["error"]["retry_after_ms"].as_u64() > Some(0));
    shop.sync(&steve).done();
    let status = ["status", "-c", "tidewater.toml"];
    let text = shop.place.tidewater(&status).done().stdout;
    for word in ["waiting", "the till", "UPDATE product SET name = 'held'"] {
        assert!(text.contains(word), "{text}");
    }
    let json = shop.place.tidewater(&[&status[..], &["--json"]].concat());
    let json = json.done().json();
    assert_eq!(json["blockers"][0]["application"], "the till");
    application.execute("ROLLBACK");
    shop.sync(&nancy).done();
    assert_eq!(
        shop.centre
            .rows("SELECT name FROM product ORDER BY product_id"),
        ["nancy", "steve"]
    );
}
