//! Two servers of one PostgreSQL behind a balancer: HAProxy, with the configuration of `deploy/`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tidewater_testing::Haproxy;

use crate::centre::{Centre, sqlite_rows};
use crate::kill::POSTGRES_AUDIT;
use crate::program::{Place, Server, free_url, sqlite, until};
use crate::shop::{SCHEMA, TABLES, add_user, configure_as, password};

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
fn with(text: &str, changes: &[(&str, String)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replace(from, to)
    })
}

/// HAProxy as `deploy/haproxy.cfg` sets it up.
fn balance(servers: &[Ports; 2]) -> Haproxy {
    let template = text_of("haproxy.cfg");
    let [one, two] = servers;
    let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
    let start = |[remotes, web]: [u16; 2]| {
        // Health is asked at a port for all servers; here they are on one machine.
        let server = |ports: &Ports| format!("check port {}", port(&ports.admin));
        with(
            &template,
            &[
                ("bind :7439", format!("bind 127.0.0.1:{remotes}")),
                (
                    "bind :443 ssl crt /etc/haproxy/tidewater.pem",
                    format!("bind 127.0.0.1:{web}"),
                ),
                ("check port 7440", format!("source {BALANCER}")),
                (
                    "192.0.2.11:7439",
                    format!("{} {}", one.remotes, server(one)),
                ),
                (
                    "192.0.2.12:7439",
                    format!("{} {}", two.remotes, server(two)),
                ),
                ("192.0.2.11:7441", format!("{} {}", one.web, server(one))),
                ("192.0.2.12:7441", format!("{} {}", two.web, server(two))),
            ],
        )
    };
    Haproxy::start(start).expect("HAProxy takes the configuration")
}

fn serve(place: &Place, ports: &[Ports; 2], number: usize) -> Server {
    let url = format!("tcp://{}", ports[number].remotes);
    let file = format!("{}.toml", NAMES[number]);
    place.serve_on(&url, &["-c", &file])
}

/// A farm with a shop.
struct Farm {
    // The servers go first: they hold files in the folder open.
    servers: [Option<Server>; 2],
    ports: [Ports; 2],
    balancer: Haproxy,
    centre: Centre,
    place: Place,
}

impl Farm {
    fn open(users: &[&str]) -> Farm {
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
            balancer: balance(&ports),
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
        let (file, url) = (format!("{user}.db"), self.url());
        let first = [
            "sync",
            &file,
            "--server",
            &url,
            "--user",
            user,
            "--publication",
            "main",
        ];
        until("a first sync", || {
            self.place.tidewater_as(&password(user), &first).code == 0
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
fn work(place: &Place, user: &str, number: usize, progress: &Progress) -> Vec<String> {
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

#[derive(Default)]
struct Progress {
    syncs: AtomicUsize,
    is_over: AtomicBool,
}

impl Progress {
    /// Waits until some more syncs have gone well.
    fn wait(&self) {
        let before = self.syncs.load(Ordering::Relaxed);
        until("syncs go on", || {
            self.syncs.load(Ordering::Relaxed) >= before + 6
        });
    }
}

#[test]
fn i1_servers_behind_a_balancer_that_are_killed_lose_and_double_nothing() {
    let users = ["nancy", "steve", "margaret", "andrew"];
    let mut farm = Farm::open(&users);
    for user in users {
        farm.first_sync(user);
    }
    let progress = Progress::default();
    let mut ledger = thread::scope(|scope| {
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
        progress.is_over.store(true, Ordering::Relaxed);
        let ledgers = workers.into_iter().map(|it| it.join().expect("it works"));
        ledgers.flatten().collect::<Vec<_>>()
    });
    for _ in 0..2 {
        for user in users {
            let sync = ["sync", &format!("{user}.db"), "--json"];
            farm.place.tidewater(&sync).done();
        }
    }
    let products = "SELECT product_id, name FROM product ORDER BY 1";
    let expected = farm.centre.rows(products);
    assert_eq!(expected.len(), ledger.len() + 2);
    for user in users {
        let remote = sqlite(&farm.place.path(&format!("{user}.db")));
        assert_eq!(sqlite_rows(&remote, products), expected, "{user}");
        let pending = "SELECT count(*) FROM tidewater_change_product";
        assert_eq!(sqlite_rows(&remote, pending), ["0"]);
    }
    let mut audit = farm.centre.rows("SELECT line FROM audit");
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
    let farm = Farm::open(&["nancy"]);
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
    let (_, head, _) = get(&farm.web(), "/openapi.json");
    assert!(head.contains("set-cookie: tidewater="), "{head}");
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
    let made = ["cert", "--out", ".", "--host", "localhost"];
    place.tidewater(&made).done();
    let [certificate, key] = ["tidewater-dev.pem", "tidewater-dev.key"];
    place.write("both.pem", &(place.read(certificate) + &place.read(key)));
    let path = |name: &str| place.path(name).display().to_string();

    let haproxy = [("/etc/haproxy/tidewater.pem", path("both.pem"))];
    place.write("haproxy.cfg", &with(&text_of("haproxy.cfg"), &haproxy));
    Haproxy::check(&place.path("haproxy.cfg")).unwrap();

    let nginx = [
        ("/etc/nginx/tidewater.pem", path(certificate)),
        ("/etc/nginx/tidewater.key", path(key)),
    ];
    let own = format!("pid {};\nerror_log stderr;\n", path("nginx.pid"));
    place.write("nginx.conf", &(own + &with(&text_of("nginx.conf"), &nginx)));
    accepts(
        Command::new("/usr/sbin/nginx")
            .args(["-t", "-q", "-c"])
            .arg(path("nginx.conf")),
    );

    let program = [(
        "/usr/bin/tidewater",
        env!("CARGO_BIN_EXE_tidewater").to_owned(),
    )];
    let unit = with(&text_of("tidewater.service"), &program);
    place.write("tidewater.service", &unit);
    accepts(
        Command::new("systemd-analyze")
            .arg("verify")
            .arg(path("tidewater.service")),
    );
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
