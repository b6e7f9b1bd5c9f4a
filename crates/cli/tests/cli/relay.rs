//! Relays: devices that reach servers through them, over whatever carries a connection, while
//! relays and servers are killed; and whoever gets nowhere.

use std::thread;

use crate::centre::{Centre, sqlite_rows};
use crate::farm::{Progress, assert_equal, work};
use crate::kill::POSTGRES_AUDIT;
use crate::program::{Place, Run, Server, free_url, sqlite, until};
use crate::shop::{SCHEMA, TABLES, configure_as, password};

/// Where relays wait for servers: devices of the tests come from 127.0.0.1.
const RELAY: &str = "127.0.0.9";

const NAMES: [&str; 2] = ["one", "two"];

/// The addresses of a relay.
#[derive(Clone)]
struct Ports {
    devices: String,
    servers: String,
    admin: String,
}

impl Ports {
    fn free() -> Ports {
        let port = || free_url().replace("tcp://127.0.0.1:", "");
        Ports {
            devices: format!("127.0.0.1:{}", port()),
            servers: format!("{RELAY}:{}", port()),
            admin: format!("127.0.0.1:{}", port()),
        }
    }

    fn url(&self, scheme: &str) -> String {
        format!(
            "{scheme}://{}",
            self.devices.replace("127.0.0.1", "localhost")
        )
    }
}

/// A certificate for relays and one for the server, and a token.
fn certify(place: &Place) {
    for (folder, host) in [("relay", RELAY), ("server", "localhost")] {
        let made = ["cert", "--out", folder, "--host", host];
        place.tidewater(&made).done();
    }
    let token = ["relay", "token", "--out", "token"];
    let hash = place.tidewater(&token).done().stdout;
    place.write("hash", &hash);
}

fn relay_config(place: &Place, name: &str, ports: &Ports, more: &str) {
    let Ports {
        devices,
        servers,
        admin,
    } = ports;
    let hash = place.read("hash");
    place.write(
        &format!("relay-{name}.toml"),
        &format!(
            "listen = [\"tls://{devices}\"]\nservers = \"tls://{servers}\"\n\
             admin = \"http://{admin}\"\n{more}\n\
             [tls]\ncertificate = \"relay/tidewater-dev.pem\"\nkey = \"relay/tidewater-dev.key\"\n\
             [[server]]\nname = \"localhost\"\n{hash}"
        ),
    );
}

/// What makes a server dial relays; it has a certificate for that.
fn dials(relays: &[Ports], more: &str) -> String {
    let relays = relays.iter().map(|it| format!("\"tls://{}\"", it.servers));
    let relays = relays.collect::<Vec<_>>().join(", ");
    format!(
        "[server.tls]\ncertificate = \"server/tidewater-dev.pem\"\nkey = \"server/tidewater-dev.key\"\n\
         [relay]\nconnect = [{relays}]\nname = \"localhost\"\nca = \"relay/tidewater-dev.pem\"\n{more}\n"
    )
}

const TOKEN: &str = "token_file = \"token\"";

fn first_sync(place: &Place, user: &str, url: &str) -> Run {
    let file = format!("{user}.db");
    let first = [
        "sync",
        &file,
        "--server",
        url,
        "--user",
        user,
        "--publication",
        "main",
        "--ca",
        "server/tidewater-dev.pem",
        "--no-retry",
    ];
    place.tidewater_as(&password(user), &first)
}

/// A shop that only relays reach.
fn deploy(place: &Place, centre: &Centre, relays: &[Ports], more: &str, users: &[&str]) {
    centre.execute(SCHEMA);
    certify(place);
    configure_as(
        place,
        "tidewater.toml",
        centre,
        &dials(relays, more),
        TABLES,
    );
    place.tidewater(&["deploy"]).done();
    for user in users {
        place
            .tidewater_as(&password(user), &["user", "add", user])
            .done();
    }
}

#[test]
fn a_device_syncs_through_a_relay_over_all_that_is_encrypted() {
    let place = Place::new();
    let ports = Ports::free();
    let centre = Centre::sqlite(&place);
    let users = ["nancy", "steve", "margaret"];
    deploy(&place, &centre, &[ports.clone()], TOKEN, &users);
    relay_config(&place, "one", &ports, "");
    let relay = place.relay("relay-one.toml");
    let server = place.serve(&[]);
    server.logs("registered at the relay");
    relay.logs("a server is registered");
    for (user, scheme) in users.into_iter().zip(["tls", "wss", "https"]) {
        let url = ports.url(scheme);
        until(scheme, || first_sync(&place, user, &url).code == 0);
        let insert = "INSERT INTO product VALUES (100 + (SELECT count(*) FROM product), 'new')";
        let remote = sqlite(&place.path(&format!("{user}.db")));
        remote.execute_batch(insert).unwrap();
        place.tidewater(&["sync", &format!("{user}.db")]).done();
    }
    assert_eq!(centre.rows("SELECT count(*) FROM product"), ["5"]);
    // The device's address, and not that of the relay.
    let log = server.log();
    assert!(log.contains("peer=\"127.0.0.1\""), "{log}");
    assert!(!log.contains(&format!("peer=\"{RELAY}\"")), "{log}");
    place
        .tidewater(&[
            "ping",
            &ports.url("tls"),
            "--ca",
            "server/tidewater-dev.pem",
        ])
        .done();
}
