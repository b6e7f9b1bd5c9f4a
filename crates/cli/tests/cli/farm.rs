//! Two servers of one PostgreSQL behind a balancer: HAProxy or nginx, with the configurations of `deploy/`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tidewater_testing::Balancer;
use tidewater_testing::balancer::Kind;

use crate::centre::{Centre, sqlite_rows};
use crate::kill::POSTGRES_AUDIT;
use crate::manual::blocks;
use crate::operations::path;
use crate::program::{Place, Server, free_url, sqlite, until};
use crate::shop::{SCHEMA, TABLES, add_user, configure_as, password};

const MANUAL: &str = include_str!("../../../../docs/farm.md");

/// Where the balancer's connections come from: clients of the tests come from 127.0.0.1.
const BALANCER: &str = "127.0.0.9";

const NAMES: [&str; 2] = ["one", "two"];

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(file)
}

fn text_of(file: &str) -> String {
    fs::read_to_string(deploy(file)).expect("deploy/ is complete")
}

/// The addresses of a server.
#[derive(Clone)]
struct Ports {
    remotes: String,
    web: String,
    admin: String,
}

impl Ports {
    fn free() -> Ports {
        let address = || free_url().replace("tcp://", "");
        Ports {
            remotes: address(),
            web: address(),
            admin: address(),
        }
    }
}

/// Replaces what is there, as whoever sets up a balancer does.
pub(crate) fn with(text: &str, changes: &[(&str, String)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replace(from, to)
    })
}

/// HAProxy or nginx as `deploy/` sets them up.
fn balance(kind: Kind, servers: &[Ports; 2]) -> Balancer {
    let [one, two] = servers;
    let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
    // Health is asked at a port for all servers; here they are on one machine.
    let health = |ports: &Ports| match kind {
        Kind::Haproxy => format!(" check port {}", port(&ports.admin)),
        Kind::Nginx => String::new(),
    };
    let place = Place::new();
    certify(&place);
    let path = |name: &str| place.path(name).display().to_string();
    let start = |[remotes, web]: [u16; 2]| {
        let servers = [
            ("192.0.2.11:7439", one.remotes.clone() + &health(one)),
            ("192.0.2.12:7439", two.remotes.clone() + &health(two)),
            ("192.0.2.11:7441", one.web.clone() + &health(one)),
            ("192.0.2.12:7441", two.web.clone() + &health(two)),
        ];
        let (file, changes) = match kind {
            Kind::Haproxy => (
                "haproxy.cfg",
                [
                    // As many files as a test may have open.
                    ("maxconn 20000", "maxconn 500".to_owned()),
                    ("bind :7439", format!("bind 127.0.0.1:{remotes}")),
                    (
                        "bind :443 ssl crt /etc/haproxy/tidewater.pem",
                        format!("bind 127.0.0.1:{web}"),
                    ),
                    ("check port 7440", format!("source {BALANCER}")),
                ]
                .to_vec(),
            ),
            Kind::Nginx => (
                "nginx.conf",
                [
                    (
                        "worker_connections 20000",
                        "worker_connections 500".to_owned(),
                    ),
                    ("listen 7439", format!("listen 127.0.0.1:{remotes}")),
                    ("listen 443 ssl", format!("listen 127.0.0.1:{web}")),
                    (
                        "proxy_protocol on;",
                        format!("proxy_protocol on; proxy_bind {BALANCER};"),
                    ),
                    (
                        "proxy_pass http://web;",
                        format!("proxy_pass http://web; proxy_bind {BALANCER};"),
                    ),
                    ("/etc/nginx/tidewater.pem", path(CERTIFICATE)),
                    ("/etc/nginx/tidewater.key", path(KEY)),
                ]
                .to_vec(),
            ),
        };
        with(&with(&text_of(file), &changes), &servers)
    };
    Balancer::start(kind, start).expect("the balancer takes the configuration")
}

/// What `tidewater cert` makes.
const CERTIFICATE: &str = "tidewater-dev.pem";
const KEY: &str = "tidewater-dev.key";

fn certify(place: &Place) {
    let made = ["cert", "--out", ".", "--host", "localhost"];
    place.tidewater(&made).done();
}

fn serve(place: &Place, ports: &[Ports; 2], number: usize) -> Server {
    serve_over("tcp", place, ports, number)
}

/// A server whose remotes come over this, and over the web.
fn serve_over(scheme: &str, place: &Place, ports: &[Ports; 2], number: usize) -> Server {
    let Ports { remotes, web, .. } = &ports[number];
    let [url, http, ws] = [(scheme, remotes), ("http", web), ("ws", web)]
        .map(|(scheme, at)| format!("{scheme}://{at}"));
    let file = format!("{}.toml", NAMES[number]);
    place.serve_on(&url, &["--listen", &http, "--listen", &ws, "-c", &file])
}

/// A farm with a shop.
struct Farm {
    // The servers go first: they hold files in the folder open.
    servers: [Option<Server>; 2],
    ports: [Ports; 2],
    balancer: Balancer,
    centre: Centre,
    place: Place,
}

impl Farm {
    fn open(kind: Kind, users: &[&str]) -> Farm {
        let place = Place::new();
        let centre = Centre::postgres();
        centre.execute(SCHEMA);
        centre.execute(POSTGRES_AUDIT);
        let ports = [Ports::free(), Ports::free()];
        for (name, ports) in NAMES.iter().zip(&ports) {
            let server = format!(
                "proxies = [\"{BALANCER}\"]\nadmin = \"http://{}\"\nhttp = \"http://{}\"",
                ports.admin, ports.web
            );
            configure_as(&place, &format!("{name}.toml"), &centre, &server, TABLES);
        }
        place.tidewater(&["deploy", "-c", "one.toml"]).done();
        for user in users {
            let add = ["user", "add", user, "-c", "one.toml"];
            place.tidewater_as(&password(user), &add).done();
        }
        Farm {
            servers: [0, 1].map(|number| Some(serve(&place, &ports, number))),
            balancer: balance(kind, &ports),
            ports,
            centre,
            place,
        }
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().flatten()
    }

    /// The balancer's address for remotes.
    fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.balancer.ports[0])
    }

    fn web(&self) -> String {
        format!("127.0.0.1:{}", self.balancer.ports[1])
    }

    fn first_sync(&self, user: &str) {
        self.first_sync_over(user, &self.url());
    }

    fn first_sync_over(&self, user: &str, url: &str) {
        until("a first sync", || {
            self.place.first_sync(user, url, "main", &[]).code == 0
        });
    }
}

/// One request: the status, the head and the body.
fn ask(address: &str, request: &str) -> (u16, String, String) {
    let address = address.to_socket_addrs().unwrap().next().unwrap();
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.unwrap_or(0), head.to_lowercase(), body.to_owned())
}

fn get(address: &str, path: &str) -> (u16, String, String) {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    )
}

/// A device that works and syncs again and again.
pub(crate) fn work(place: &Place, user: &str, number: usize, progress: &Progress) -> Vec<String> {
    let file = format!("{user}.db");
    let mut ledger = Vec::new();
    for day in 0.. {
        if progress.is_over.load(Ordering::Relaxed) {
            break;
        }
        let id = 1_000 * (number + 1) + day;
        let insert = format!("INSERT INTO product VALUES ({id}, '{user} {day}')");
        sqlite(&place.path(&file)).execute_batch(&insert).unwrap();
        ledger.push(format!("insert {id} {user} {day}"));
        // What was broken off is done by the next one.
        let run = place.tidewater(&["sync", &file, "--json"]);
        assert!([0, 2].contains(&run.code), "{run:#?}");
        if run.code == 0 {
            progress.syncs.fetch_add(1, Ordering::Relaxed);
        }
    }
    ledger
}

/// How far devices have come.
#[derive(Default)]
pub(crate) struct Progress {
    syncs: AtomicUsize,
    is_over: AtomicBool,
}

impl Progress {
    /// Has them end.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until some more syncs have gone well.
    pub(crate) fn wait(&self) {
        let before = self.syncs.load(Ordering::Relaxed);
        until("syncs go on", || {
            self.syncs.load(Ordering::Relaxed) >= before + 6
        });
    }
}

#[test]
fn i1_servers_behind_a_balancer_that_are_killed_lose_and_double_nothing() {
    let users = ["nancy", "steve", "margaret", "andrew"];
    let mut farm = Farm::open(Kind::Haproxy, &users);
    // Over all that carries connections.
    let web = ["http", "ws"].map(|scheme| format!("{scheme}://{}", farm.web()));
    let urls = [farm.url(), farm.url()].into_iter().chain(web);
    for (user, url) in users.into_iter().zip(urls) {
        farm.first_sync_over(user, &url);
    }
    let progress = Progress::default();
    let ledger = thread::scope(|scope| {
        let (place, ports, servers) = (&farm.place, &farm.ports, &mut farm.servers);
        let progress = &progress;
        let work = |(number, user)| scope.spawn(move || work(place, user, number, progress));
        let workers: Vec<_> = users.into_iter().enumerate().map(work).collect();
        for round in 0..4 {
            progress.wait();
            // Killed: nothing is said to anybody.
            servers[round % 2] = None;
            progress.wait();
            let server = servers[round % 2].insert(serve(place, ports, round % 2));
            // It is given work again without anybody's doing.
            server.logs(" sync remote=");
        }
        progress.end();
        let ledgers = workers.into_iter().map(|it| it.join().expect("it works"));
        ledgers.flatten().collect::<Vec<_>>()
    });
    assert_equal(&farm.place, &farm.centre, &users, ledger);
}

/// After plain syncs all are equal, and everything has happened once.
pub(crate) fn assert_equal(
    place: &Place,
    centre: &Centre,
    users: &[&str],
    mut ledger: Vec<String>,
) {
    for _ in 0..2 {
        for user in users {
            let sync = ["sync", &format!("{user}.db"), "--json"];
            place.tidewater(&sync).done();
        }
    }
    let products = "SELECT product_id, name FROM product ORDER BY 1";
    let expected = centre.rows(products);
    assert_eq!(expected.len(), ledger.len() + 2);
    for user in users {
        let remote = sqlite(&place.path(&format!("{user}.db")));
        assert_eq!(sqlite_rows(&remote, products), expected, "{user}");
        let pending = "SELECT count(*) FROM tidewater_change_product";
        assert_eq!(sqlite_rows(&remote, pending), ["0"]);
    }
    let mut audit = centre.rows("SELECT line FROM audit");
    audit.sort();
    ledger.sort();
    assert_eq!(audit, ledger);
}

/// A guess at a password over HTTP: the status.
fn guess(address: &str, more: &str) -> u16 {
    let body = "{\"user\": \"nobody\", \"password\": \"guessed\"}";
    let request = format!(
        "POST /v1/sign-in HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    ask(address, &request).0
}

#[test]
fn servers_behind_a_balancer_know_their_clients_by_address() {
    for kind in [Kind::Haproxy, Kind::Nginx] {
        known_by_address(kind);
    }
}

fn known_by_address(kind: Kind) {
    let farm = Farm::open(kind, &["nancy"]);
    farm.first_sync("nancy");
    let logs = |part: &str| {
        until(part, || farm.servers().any(|it| it.log().contains(part)));
    };
    logs("peer=\"127.0.0.1\"");
    // Over HTTP, whatever the client itself says.
    let claims = "X-Forwarded-For: 203.0.113.1\r\nForwarded: for=203.0.113.2\r\n";
    assert_eq!(guess(&farm.web(), claims), 401);
    logs("peer=\"127.0.0.1\" code=\"wrong_password\"");
    // What does not come through the balancer cannot say where it comes from.
    let direct = &farm.ports[0];
    let mut stream = TcpStream::connect(&*direct.remotes).unwrap();
    let header = b"PROXY TCP4 203.0.113.3 127.0.0.1 1 2\r\nTIDE";
    stream.write_all(header).unwrap();
    logs("a connection with a PROXY header was refused");
    for server in farm.servers() {
        let log = server.log();
        assert!(!log.contains("203.0.113"), "{log}");
        // Nor is the balancer's looking after it anybody's business.
        assert!(!log.contains(BALANCER), "{log}");
    }
    let (status, head, _) = get(&farm.web(), "/openapi.json");
    assert_eq!(status, 200, "{head}");
    // nginx goes by addresses.
    let has_cookie = head.contains("set-cookie: tidewater=");
    assert_eq!(has_cookie, matches!(kind, Kind::Haproxy), "{head}");
}

#[test]
fn a_server_that_is_told_to_end_serves_until_the_balancer_has_noticed() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let ports = Ports::free();
    let server = format!("admin = \"http://{}\"\ndrain_delay = \"1h\"", ports.admin);
    configure_as(&place, "tidewater.toml", &centre, &server, TABLES);
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    let server = place.serve_on(&format!("tcp://{}", ports.remotes), &[]);
    assert_eq!(get(&ports.admin, "/readyz").0, 200);
    server.signal("TERM");
    until("it is not ready", || get(&ports.admin, "/readyz").0 == 503);
    assert!(get(&ports.admin, "/readyz").2.contains("shutting down"));
    assert_eq!(get(&ports.admin, "/healthz").0, 200);
    let url = server.url().to_owned();
    let first = [
        "sync",
        "nancy.db",
        "--server",
        &url,
        "--user",
        "nancy",
        "--publication",
        "main",
    ];
    place.tidewater_as(&password("nancy"), &first).done();
    place.tidewater(&["sync", "nancy.db"]).done();
    // Whoever does not want to wait says so once more.
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
    // With a short delay it goes through all of it by itself.
    let text = place.read("tidewater.toml").replace("\"1h\"", "\"100ms\"");
    place.write("tidewater.toml", &text);
    let server = place.serve_on(&url, &[]);
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
    let at = |part: &str| log.find(part).unwrap_or_else(|| panic!("{part}: {log}"));
    assert!(
        at("not ready any more") < at("shutting down") && at("shutting down") < at("shut down")
    );
}

#[test]
fn the_configurations_for_deployment_are_accepted_by_the_programs_they_are_for() {
    let place = Place::new();
    certify(&place);
    place.write("both.pem", &(place.read(CERTIFICATE) + &place.read(KEY)));
    let path = |name: &str| place.path(name).display().to_string();
    let haproxy = [("/etc/haproxy/tidewater.pem", path("both.pem"))];
    let nginx = [
        ("/etc/nginx/tidewater.pem", path(CERTIFICATE)),
        ("/etc/nginx/tidewater.key", path(KEY)),
    ];
    for (kind, file, changes) in [
        (Kind::Haproxy, "haproxy.cfg", &haproxy[..]),
        (Kind::Nginx, "nginx.conf", &nginx),
    ] {
        let text = with(&text_of(file), changes);
        let file = kind.write(&place.path(""), &text).unwrap();
        kind.check(&file).unwrap();
    }

    let program = [(
        "/usr/bin/tidewater",
        env!("CARGO_BIN_EXE_tidewater").to_owned(),
    )];
    for name in ["tidewater.service", "tidewater-relay.service"] {
        place.write(name, &with(&text_of(name), &program));
        accepts(
            Command::new("systemd-analyze")
                .arg("verify")
                .arg(path(name)),
        );
    }
}

/// It says nothing against it.
fn accepts(command: &mut Command) {
    let output = command
        .output()
        .expect("it is installed: see scripts/test.sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{command:?}\n{said}"
    );
}

/// The chart as far as it can be looked at without Helm.
#[test]
fn the_chart_uses_only_values_that_there_are() {
    let chart = deploy("helm/tidewater");
    let values = yaml(&chart.join("values.yaml"));
    assert_eq!(yaml(&chart.join("Chart.yaml"))["name"], "tidewater");
    let mut names = 0;
    for entry in fs::read_dir(chart.join("templates")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut open = 0_i32;
        for action in text.split("{{").skip(1) {
            let (action, rest) = action.split_once("}}").expect("an action ends");
            assert!(!rest.contains("}}"), "{}: {rest}", path.display());
            let words = action.trim_matches(['-', ' ']).split_whitespace();
            match words.clone().next() {
                Some("if" | "with" | "range" | "define") => open += 1,
                Some("end") => open -= 1,
                _ => {}
            }
            for word in words {
                let word = word.trim_matches(['(', ')']);
                let Some(name) = word.strip_prefix(".Values.") else {
                    continue;
                };
                let pointer = format!("/{}", name.replace('.', "/"));
                let value = values.pointer(&pointer);
                assert!(value.is_some(), "{}: {name}", path.display());
                names += 1;
            }
        }
        assert_eq!(open, 0, "{}: as many ends as beginnings", path.display());
    }
    assert!(names > 20, "{names}");
}

/// A file of YAML, by the library that the validator of the web protocol brings.
fn yaml(path: &Path) -> serde_json::Value {
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(path)
        .output();
    let output = output.expect("it is installed: see scripts/test.sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("that is JSON")
}

#[test]
fn what_the_manual_of_a_farm_shows_works() {
    let [config] = &blocks(MANUAL, "toml")[..] else {
        panic!("the manual has other configurations");
    };
    let [deployed, tried] = &blocks(MANUAL, "sh")[..] else {
        panic!("the manual has other examples");
    };
    let place = Place::new();
    let centre = Centre::postgres();
    centre.execute(SCHEMA);
    certify(&place);
    let ports = [Ports::free(), Ports::free()];
    for (name, ports) in NAMES.iter().zip(&ports) {
        let changes = [
            ("0.0.0.0:7439", ports.remotes.clone()),
            ("${ADDRESS}:7441", ports.web.clone()),
            ("${ADDRESS}:7440", ports.admin.clone()),
            ("192.0.2.1\"", format!("{BALANCER}\"")),
            (
                "postgres://tidewater:${DATABASE_PASSWORD}@db.example.com/shop",
                centre.url(),
            ),
            ("/etc/tidewater/server.pem", CERTIFICATE.into()),
            ("/etc/tidewater/server.key", KEY.into()),
        ];
        place.write(&format!("{name}.toml"), &with(config, &changes));
    }
    let run = |block: &str, changes: &[(&str, String)]| {
        let block = with(block, changes);
        let run = Command::new("sh")
            .args(["-e", "-c", &block])
            .current_dir(place.path(""))
            .env("PATH", path(&[]))
            .env("TIDEWATER_PASSWORD", password("nancy"))
            .output()
            .expect("sh runs");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{block}\n{errors}");
    };
    run(
        deployed,
        &[("/etc/tidewater/tidewater.toml", "one.toml".into())],
    );
    let servers = [0, 1].map(|number| serve_over("tls", &place, &ports, number));
    let balancer = balance(Kind::Haproxy, &ports);
    let url = format!("tls://localhost:{}", balancer.ports[0]);
    let web = format!("ws://localhost:{}", balancer.ports[1]);
    let changes = [
        ("tls://sync.example.com", url),
        // Here the balancer has no certificate.
        ("wss://sync.example.com", web),
        ("server.pem", CERTIFICATE.into()),
    ];
    run(tried, &changes);
    let remote = sqlite(&place.path("nancy.db"));
    let products = "SELECT * FROM product ORDER BY 1";
    assert_eq!(sqlite_rows(&remote, products), centre.rows(products));
    // Through TLS, and known by address.
    let synced = "peer=\"127.0.0.1\"";
    until(synced, || {
        servers.iter().any(|it| it.log().contains(synced))
    });
    for server in &servers {
        assert!(!server.log().contains(BALANCER), "{}", server.log());
    }
}
