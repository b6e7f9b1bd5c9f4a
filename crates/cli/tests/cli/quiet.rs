//! What a sync says while it waits, what it says once, and that `--quiet` says errors only.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::centre::Centre;
use crate::program::Place;
use crate::shop::{SCHEMA, Shop, TABLES, add_user, configure};

#[test]
fn a_quiet_sync_prints_errors_and_refused_rows_only() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    let quiet = ["sync", &nancy.name, "--quiet"];
    let run = shop.place.tidewater(&quiet).done();
    assert_eq!((&*run.stdout, &*run.stderr), ("", ""));
    // Lost: both versions are kept, which is a remark.
    nancy.execute("UPDATE product SET name = 'mine' WHERE product_id = 1");
    shop.centre
        .execute("UPDATE product SET name = 'theirs' WHERE product_id = 1");
    nancy.execute("INSERT INTO tidewater_interest (space, subject) VALUES ('nowhere', '>')");
    let run = shop.place.tidewater(&quiet).done();
    assert_eq!((&*run.stdout, &*run.stderr), ("", ""));
    // The object is what --json asks for.
    let run = shop
        .place
        .tidewater(&["sync", &nancy.name, "--quiet", "--json"])
        .done();
    assert_eq!(run.json()["uploaded"]["inserts"], 0);
    assert_eq!(run.stderr, "");
    nancy.execute("INSERT INTO customer VALUES (12, 1, ' ', NULL)");
    let run = shop.place.tidewater(&quiet).exits(6);
    assert_eq!(run.stdout, "");
    assert!(run.stderr.starts_with("refused:"), "{run:#?}");
    let run = shop
        .place
        .tidewater(&[
            "sync",
            &nancy.name,
            "--quiet",
            "--server",
            "tcp://127.0.0.1:1",
        ])
        .exits(2);
    assert_eq!(run.stdout, "");
    assert!(run.stderr.starts_with("error: "), "{run:#?}");
}

#[test]
fn a_refused_interest_is_told_by_one_sync() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute("INSERT INTO tidewater_interest (space, subject) VALUES ('nowhere', '>')");
    let told = || {
        let run = shop.place.tidewater(&["sync", &nancy.name]).done();
        run.stderr.contains("no events of nowhere/>")
    };
    assert!(told());
    assert!(!told());
    nancy.execute("UPDATE tidewater_interest SET code = NULL, reason = NULL");
    assert!(told());
}

/// A handler that answers nothing until it is told so, and then that it cannot. Gives its address.
fn reluctant_handler(go_on: Receiver<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    // Ends with the test process.
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let _ = go_on.recv();
            // Whoever asked may have gone.
            let _ = refuse(socket);
        }
    });
    format!("http://{address}/")
}

fn refuse(mut socket: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let _ = socket.read(&mut request)?;
    socket.write_all(
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    )
}

#[test]
fn a_sync_says_that_it_waits_for_a_handler_and_when_it_tries_again() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let (go_on, waits) = mpsc::channel();
    let handler = reluctant_handler(waits);
    let product = "name = \"product\"\n";
    let handled = format!(
        "{product}handler = {{ url = {handler:?}, retries = 0, breaker_failures = 100, timeout = \"60s\" }}\n"
    );
    let tables = TABLES.replace(product, &handled);
    let limits = "[server.limits]\nkeepalive_interval = \"50ms\"\n";
    configure(&place, &centre, limits, &tables);
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    let server = place.serve(&[]);
    place.first_sync("nancy", server.url(), "main", &[]).done();
    crate::program::sqlite(&place.path("nancy.db"))
        .execute_batch("INSERT INTO product VALUES (3, 'paper')")
        .expect("valid SQL");
    let mut child = place
        .command(&["sync", "nancy.db", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut told = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut next = || told.next().expect("it says something").expect("it is text");
    let waits = next();
    assert!(waits.contains("waits for a handler"), "{waits}");
    go_on.send(()).expect("the handler waits");
    let away = next();
    assert!(
        away.starts_with("a handler of the server does not answer it: again in"),
        "{away}"
    );
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(5));
    drop(go_on);
    let run = place.tidewater(&["sync", "nancy.db", "--json", "--no-retry"]);
    assert_eq!(run.exits(2).json()["error"]["code"], "handler_away");
}
