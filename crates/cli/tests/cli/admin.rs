//! The admin endpoint of a real server, and `tidewater status`, which asks it.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::centre::Centre;
use crate::program::{Place, Server, free_url, until};
use crate::shop::{SCHEMA, Shop, TABLES, add_user, configure, password};

/// A place with a shop that has an admin endpoint, whose `host:port` this gives too.
fn shop(centre: fn(&Place) -> Centre) -> (Place, Centre, String) {
    let place = Place::new();
    let centre = centre(&place);
    centre.execute(SCHEMA);
    let address = free_url().replace("tcp://", "");
    let server = format!("admin = \"http://{address}\"\n[server.limits]\nupload_workers = 3");
    configure(&place, &centre, &server, TABLES);
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    (place, centre, address)
}

fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the endpoint listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("that is HTTP");
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// A sample of `/metrics`.
fn figure(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|it| it.parse().expect("a number"))
}

fn sync(place: &Place, server: &Server) {
    let arguments = ["sync", "nancy.db", "--server", server.url(), "--user"];
    let more = ["nancy", "--publication", "main"];
    let arguments = [&arguments[..], &more].concat();
    place.tidewater_as(&password("nancy"), &arguments).done();
}

#[test]
fn the_figures_follow_what_happens() {
    for centre in [Centre::sqlite as fn(&Place) -> Centre, |_| {
        Centre::postgres()
    }] {
        let (place, centre, address) = shop(centre);
        let server = place.serve(&[]);
        assert_eq!(get(&address, "/healthz"), (200, "alive\n".into()));
        assert_eq!(get(&address, "/readyz"), (200, "ready\n".into()));
        assert_eq!(get(&address, "/").0, 404);
        let metrics = || {
            let (status, text) = get(&address, "/metrics");
            assert_eq!(status, 200);
            assert!(text.ends_with("# EOF\n"), "{text}");
            text
        };
        assert_eq!(
            figure(&metrics(), "tidewater_syncs_total{outcome=\"done\"}"),
            Some(0.0)
        );
        sync(&place, &server);
        // A sync is counted after its remote has gone.
        until("one sync is counted", || {
            figure(&metrics(), "tidewater_syncs_total{outcome=\"done\"}") == Some(1.0)
        });
        let text = metrics();
        for (name, value) in [
            ("tidewater_rows_total{direction=\"downloaded\"}", 6.0),
            ("tidewater_refused_rows_total", 0.0),
            ("tidewater_conflicts_total", 0.0),
            ("tidewater_connections_limit", 10_000.0),
            ("tidewater_backlog{lane=\"downloads\"}", 0.0),
            ("tidewater_workers{lane=\"uploads\"}", 3.0),
            ("tidewater_busy_workers{lane=\"uploads\"}", 0.0),
            ("tidewater_memory_bytes", 0.0),
            ("tidewater_spooled_bytes", 0.0),
            ("tidewater_phase_seconds_count{phase=\"read\"}", 1.0),
            ("tidewater_phase_seconds_count{phase=\"sign_in\"}", 1.0),
        ] {
            assert_eq!(figure(&text, name), Some(value), "{name}: {text}");
        }
        until("the database has been asked", || {
            figure(&metrics(), "tidewater_oldest_watermark_seconds").is_some()
        });
        assert!(metrics().contains("tidewater_log_entries{table="));
        if let Centre::Postgres(..) = centre {
            let waits = figure(&metrics(), "tidewater_lock_waits");
            assert_eq!(waits, Some(0.0));
        }
        let status = ["status", "-c", "tidewater.toml"];
        let text = place.tidewater(&status).done().stdout;
        for told in ["is ready", "syncs", "backlog", "phase", "log entries"] {
            assert!(text.contains(told), "{told}: {text}");
        }
        let json = place.tidewater(&[&status[..], &["--json"]].concat());
        let json = &json.done().json()["server"];
        assert_eq!(json["ready"], true);
        assert_eq!(json["admin"], format!("http://{address}"));
        let is_done = |it: &&Value| it["labels"]["outcome"] == "done";
        let mut figures = json["figures"].as_array().expect("a list").iter();
        assert_eq!(figures.find(is_done).expect("it is told")["value"], 1.0);
    }
}

#[test]
fn a_status_without_an_answer_of_the_server_says_so() {
    let (place, _centre, address) = shop(Centre::sqlite);
    let status = ["status", "-c", "tidewater.toml"];
    let text = place.tidewater(&status).done().stdout;
    let told = format!("http://{address} does not answer");
    assert!(text.contains(&told), "{text}");
    let json = place.tidewater(&[&status[..], &["--json"]].concat());
    assert_eq!(json.done().json()["server"]["reachable"], false);
    let shop = Shop::open();
    let text = shop.place.tidewater(&status).done().stdout;
    assert!(text.contains("no admin endpoint"), "{text}");
}

#[test]
fn a_server_is_not_ready_while_its_database_is_away_or_not_as_it_was_deployed() {
    let (place, centre, address) = shop(|_| Centre::postgres());
    let _server = place.serve(&[]);
    let ready = || get(&address, "/readyz");
    until("it is ready", || ready().0 == 200);
    centre.execute("ALTER TABLE product RENAME TO goods");
    until("a missing table is noticed", || {
        let (status, reason) = ready();
        status == 503 && reason.contains("not deployed")
    });
    assert_eq!(get(&address, "/healthz").0, 200);
    centre.execute("ALTER TABLE goods RENAME TO product");
    until("it is ready again", || ready().0 == 200);
}

#[test]
fn an_admin_endpoint_that_everybody_reaches_is_refused() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let server = "admin = \"http://0.0.0.0:7440\"";
    configure(&place, &centre, server, TABLES);
    for command in ["deploy", "serve"] {
        let run = place.tidewater(&[command]).exits(1);
        run.tells(&["server.admin", "insecure = true"]);
    }
}
