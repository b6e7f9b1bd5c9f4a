//! Relays: devices that reach servers through them, over whatever carries a connection, while
//! relays and servers are killed; and whoever gets nowhere.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::slice::from_ref;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::centre::{Centre, sqlite_rows};
use crate::farm::{Progress, assert_equal, with, work};
use crate::kill::POSTGRES_AUDIT;
use crate::manual::blocks;
use crate::operations::path;
use crate::program::{Place, Run, Server, free_url, sqlite, until};
use crate::shop::{SCHEMA, TABLES, configure_as, password};

const MANUAL: &str = include_str!("../../../../docs/relay.md");

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
    let more = ["--ca", "server/tidewater-dev.pem", "--no-retry"];
    place.first_sync(user, url, "main", &more)
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
    deploy(&place, &centre, from_ref(&ports), TOKEN, &users);
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

#[test]
fn i1_relays_and_servers_that_are_killed_lose_and_double_nothing() {
    let place = Place::new();
    let centre = Centre::postgres();
    let ports = [Ports::free(), Ports::free()];
    let users = ["nancy", "steve", "margaret", "andrew"];
    deploy(&place, &centre, &ports, TOKEN, &users);
    centre.execute(POSTGRES_AUDIT);
    let start = |number: usize| place.relay(&format!("relay-{}.toml", NAMES[number]));
    for (name, ports) in NAMES.iter().zip(&ports) {
        relay_config(&place, name, ports, "");
    }
    let mut relays = [0, 1].map(|number| Some(start(number)));
    let serve = || {
        let server = place.serve(&[]);
        server.logs("registered at the relay");
        server
    };
    let mut servers = [Some(serve()), Some(serve())];
    let url = |scheme| ports.each_ref().map(|it| it.url(scheme)).join(",");
    for (user, scheme) in users.into_iter().zip(["tls", "tls", "https", "wss"]) {
        let url = url(scheme);
        until("a first sync", || first_sync(&place, user, &url).code == 0);
    }
    let progress = Progress::default();
    let ledger = thread::scope(|scope| {
        let (place, progress) = (&place, &progress);
        let work = |(number, user)| scope.spawn(move || work(place, user, number, progress));
        let workers: Vec<_> = users.into_iter().enumerate().map(work).collect();
        for round in 0..4 {
            // Killed: nothing is said to anybody.
            progress.wait();
            servers[round % 2] = None;
            progress.wait();
            servers[round % 2] = Some(serve());
            progress.wait();
            relays[round % 2] = None;
            progress.wait();
            relays[round % 2] = Some(start(round % 2));
            for server in servers.iter().flatten() {
                registered_again(server, &ports[round % 2]);
            }
        }
        progress.end();
        let ledgers = workers.into_iter().map(|it| it.join().expect("it works"));
        ledgers.flatten().collect::<Vec<_>>()
    });
    // Both have been given work.
    for server in servers.iter().flatten() {
        server.logs(" sync remote=");
    }
    assert_equal(&place, &centre, &users, ledger);
}

/// Waits until a server has come back to a relay by itself.
fn registered_again(server: &Server, ports: &Ports) {
    let relay = format!("relay=tls://{}", ports.servers);
    until("the server comes back", || {
        let log = server.log();
        let mut lines = log.lines().rev();
        let last = lines.find(|it| it.contains(&relay) && !it.contains("is lost"));
        last.is_some_and(|it| it.contains("registered at the relay"))
    });
}

/// What is answered to bytes that are no handshake.
fn answer(ports: &Ports, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(&ports.devices).expect("the relay listens");
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn whoever_gets_nowhere_is_told_why_at_once() {
    let place = Place::new();
    let ports = Ports::free();
    let centre = Centre::sqlite(&place);
    deploy(&place, &centre, from_ref(&ports), TOKEN, &["nancy"]);
    relay_config(&place, "one", &ports, "");
    let relay = place.relay("relay-one.toml");

    // A server that is not there.
    for scheme in ["tls", "wss", "https"] {
        first_sync(&place, "nancy", &ports.url(scheme))
            .exits(2)
            .tells(&["is away", "registered at the relay"]);
    }
    relay.logs("no server of this name is registered");
    // A name that nobody has: addresses are none.
    let by_address = ports.url("tls").replace("localhost", "127.0.0.1");
    first_sync(&place, "nancy", &by_address)
        .exits(2)
        .tells(&["no server of this name is known", "[[server]]"]);
    relay.logs("no server has this name");

    let (status, metrics) = get(&ports.admin, "/metrics");
    assert_eq!(status, 200);
    let refused = "tidewater_relay_refused_total{reason=\"unknown_name\"} 1";
    assert!(metrics.contains(refused), "{metrics}");

    // Other protocols.
    let http = answer(&ports, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(http.starts_with("HTTP/1.1 400 TLS only"), "{http}");
    let alert = answer(&ports, b"SSH-2.0-x\r\n");
    assert!(alert.starts_with('\x15'), "{alert:?}");
    place
        .tidewater(&["ping", &ports.url("tcp")])
        .exits(1)
        .tells(&["listens on tls://"]);
    place
        .tidewater(&["ping", &ports.url("http")])
        .tells(&["400 TLS only", "write https"]);

    // A server that proves nothing, and one that has another name.
    let token = place.read("token");
    place.write("token", "not-the-token\n");
    let wrong = place.serve(&[]);
    wrong.logs("neither the token nor the certificate of this server proves");
    wrong.logs("compare relay.name and the token");
    relay.logs("reason=\"proof\"");
    place.write("token", &token);
    let text = place.read("tidewater.toml");
    let other = text.replace(
        "name = \"localhost\"\nca",
        "name = \"other.example.com\"\nca",
    );
    place.write("other.toml", &other);
    let other = place.serve(&["-c", "other.toml"]);
    other.logs("has no [[server]] of this name");
    // The address for devices is none for servers.
    place.write(
        "devices.toml",
        &text.replace(&ports.servers, &ports.devices),
    );
    let astray = place.serve(&["-c", "devices.toml"]);
    astray.logs("what answers is no relay");
    astray.logs("not the one for devices");

    // A name is added while it runs, and the server that waits for it comes in.
    let hash = place.read("hash");
    let named = format!("[[server]]\nname = \"other.example.com\"\n{hash}");
    let config = place.read("relay-one.toml");
    place.write("relay-one.toml", &format!("{config}{named}"));
    relay.signal("HUP");
    relay.logs("were read again");
    let again = place.serve(&["-c", "other.toml"]);
    again.logs("registered at the relay");
    place.write("relay-one.toml", "listen = 7");
    relay.signal("HUP");
    relay.logs("the one before stays");
}

fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.unwrap_or(0), answer)
}

/// A certificate with which a server says that it has this name.
fn issue(place: &Place, authority: &CertifiedIssuer<'_, KeyPair>, name: &str) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let issued = params.signed_by(&key, authority).unwrap();
    place.write(&format!("{name}.pem"), &issued.pem());
    place.write(&format!("{name}.key"), &key.serialize_pem());
}

#[test]
fn a_server_proves_itself_by_a_certificate_that_has_its_name() {
    let place = Place::new();
    let ports = Ports::free();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = CertifiedIssuer::self_signed(authority, key).unwrap();
    place.write("authority.pem", &authority.pem());
    for name in ["localhost", "other.example.com"] {
        issue(&place, &authority, name);
    }
    let by = |name: &str| format!("certificate = \"{name}.pem\"\nkey = \"{name}.key\"");
    let centre = Centre::sqlite(&place);
    deploy(
        &place,
        &centre,
        from_ref(&ports),
        &by("localhost"),
        &["nancy"],
    );
    relay_config(&place, "one", &ports, "authority = \"authority.pem\"");
    let check = ["relay", "-c", "relay-one.toml", "--check"];
    let checked = place.tidewater(&check).done();
    assert!(checked.stdout.contains("1 server"), "{checked:#?}");
    let _relay = place.relay("relay-one.toml");
    let text = place.read("tidewater.toml");
    let other = text.replace(&by("localhost"), &by("other.example.com"));
    place.write("other.toml", &other);
    let own = "certificate = \"server/tidewater-dev.pem\"\nkey = \"server/tidewater-dev.key\"";
    place.write("own.toml", &text.replace(&by("localhost"), own));
    for file in ["other.toml", "own.toml"] {
        let server = place.serve(&["-c", file]);
        server.logs("neither the token nor the certificate of this server proves");
    }
    let server = place.serve(&[]);
    server.logs("registered at the relay");
    first_sync(&place, "nancy", &ports.url("tls")).done();
}

#[test]
fn a_server_and_a_relay_that_are_told_to_end_send_devices_elsewhere_first() {
    let place = Place::new();
    let ports = [Ports::free(), Ports::free()];
    let centre = Centre::sqlite(&place);
    deploy(&place, &centre, &ports, TOKEN, &["nancy"]);
    for (name, ports) in NAMES.iter().zip(&ports) {
        relay_config(&place, name, ports, "");
    }
    let text = place.read("tidewater.toml");
    let slow = text.replace("[server]\n", "[server]\ndrain_delay = \"1h\"\n");
    place.write("tidewater.toml", &slow);
    let relays = NAMES.map(|name| place.relay(&format!("relay-{name}.toml")));
    let [one, two] = [0, 1].map(|_| place.serve(&[]));
    let of = |state: &str| {
        let text = get(&ports[0].admin, "/metrics").1;
        let line = format!("tidewater_relay_lines{{name=\"localhost\",state=\"{state}\"}} ");
        let line = text.lines().find_map(|it| it.strip_prefix(&line));
        line.and_then(|it| it.parse::<u32>().ok())
    };
    until("all lines are there", || of("idle") == Some(8));
    let url = ports.each_ref().map(|it| it.url("tls")).join(",");
    first_sync(&place, "nancy", &url).done();
    one.signal("TERM");
    until("its lines are gone", || of("idle") == Some(4));
    place.tidewater(&["sync", "nancy.db", "--no-retry"]).done();
    let [first, second] = relays;
    assert_eq!(get(&ports[0].admin, "/readyz").0, 200);
    let (code, log) = first.terminate();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("shut down"), "{log}");
    place.tidewater(&["sync", "nancy.db", "--no-retry"]).done();
    two.logs(" sync remote=");
    drop(second);
    place
        .tidewater(&["sync", "nancy.db", "--no-retry"])
        .exits(2);
}

#[test]
fn what_the_manual_of_relays_shows_works() {
    let [relay_toml, server_toml] = &blocks(MANUAL, "toml")[..] else {
        panic!("the manual has other configurations");
    };
    let [token, check, tried] = &blocks(MANUAL, "sh")[..] else {
        panic!("the manual has other examples");
    };
    let place = Place::new();
    let ports = Ports::free();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    certify(&place);
    let run = |block: &str| {
        let run = Command::new("sh")
            .args(["-e", "-c", block])
            .current_dir(place.path(""))
            .env("PATH", path(&[]))
            .env("TIDEWATER_PASSWORD", password("nancy"))
            .output()
            .expect("sh runs");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{block}\n{errors}");
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    let hash = run(token);
    let (certificate, key) = ("tidewater-dev.pem", "tidewater-dev.key");
    let changes = [
        ("0.0.0.0:443", ports.devices.clone()),
        ("0.0.0.0:7444", ports.servers.clone()),
        ("127.0.0.1:7440", ports.admin.clone()),
        ("/etc/tidewater/relay.pem", format!("relay/{certificate}")),
        ("/etc/tidewater/relay.key", format!("relay/{key}")),
        ("sync.example.com", "localhost".into()),
        ("tokens = [\"sha256:...\"]\n", hash),
    ];
    place.write("relay.toml", &with(relay_toml, &changes));
    run(&with(
        check,
        &[("/etc/tidewater/relay.toml", "relay.toml".into())],
    ));
    let relay = place.relay("relay.toml");
    let changes = [
        ("sqlite:shop.db", centre.url()),
        ("/etc/tidewater/server.pem", format!("server/{certificate}")),
        ("/etc/tidewater/server.key", format!("server/{key}")),
        ("relay.example.com:7444", ports.servers.clone()),
        (
            "name = \"sync.example.com\"\n",
            "name = \"localhost\"\nca = \"relay/tidewater-dev.pem\"\n".into(),
        ),
    ];
    place.write("tidewater.toml", &with(server_toml, &changes));
    place.tidewater(&["deploy"]).done();
    place
        .tidewater_as(&password("nancy"), &["user", "add", "nancy"])
        .done();
    let server = place.serve(&[]);
    server.logs("registered at the relay");
    relay.logs("a server is registered");
    let changes = [
        ("tls://sync.example.com:443", ports.url("tls")),
        ("wss://sync.example.com", ports.url("wss")),
        ("server.pem", format!("server/{certificate}")),
    ];
    run(&with(tried, &changes));
    let remote = sqlite(&place.path("nancy.db"));
    let products = "SELECT * FROM product ORDER BY 1";
    assert_eq!(sqlite_rows(&remote, products), centre.rows(products));
}
