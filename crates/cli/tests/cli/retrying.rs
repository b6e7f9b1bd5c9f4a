//! Servers that are busy and say when to come back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use bytes::BytesMut;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, put_control};
use tidewater_protocol::message::{Busy, Control};
use tidewater_testing::bad_line::BadLine;

use crate::program::{Run, until};
use crate::shop::{Shop, password};

/// Tells the first remotes that the server is busy, until each of these times is told, and leads
/// the others to it. Gives its address, and the news of each that was turned away.
fn busy_at_first(server: &str, times_ms: Vec<u64>) -> (String, Receiver<()>) {
    let server = server.trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (told, news) = mpsc::channel();
    // Ends with the test process.
    std::thread::spawn(move || {
        let mut times_ms = times_ms.into_iter();
        for socket in listener.incoming().flatten() {
            let turned_away = match times_ms.next() {
                Some(retry_after_ms) => turn_away(socket, retry_after_ms),
                None => lead(&socket, &server),
            };
            turned_away.expect("loopback carries it");
            let _ = told.send(());
        }
    });
    (format!("tcp://{address}"), news)
}

fn turn_away(mut socket: TcpStream, retry_after_ms: u64) -> io::Result<()> {
    let mut answer = BytesMut::new();
    let busy = Control::Busy(Busy { retry_after_ms });
    put_control(&mut answer, CONNECTION_CHANNEL, busy).expect("it is small");
    socket.write_all(&answer)?;
    socket.shutdown(Shutdown::Write)?;
    // Until the remote has read it and gone: closing at once could cut it off.
    socket.read_to_end(&mut Vec::new()).map(drop)
}

fn lead(remote: &TcpStream, server: &str) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    let copy = |from: &TcpStream, to: &TcpStream| {
        let (mut reader, mut writer) = (from, to);
        let copied = io::copy(&mut reader, &mut writer);
        let _ = to.shutdown(Shutdown::Write);
        copied.map(drop)
    };
    std::thread::scope(|scope| {
        let down = scope.spawn(|| copy(&server, remote));
        copy(remote, &server)?;
        down.join().expect("it does not panic")
    })
}

#[test]
fn a_busy_server_is_asked_again_until_it_has_time() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    let (url, _news) = busy_at_first(shop.server.url(), vec![10, 10]);
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    let arguments = ["sync", &nancy.name, "--server", &url, "--json"];
    let report = shop.place.tidewater(&arguments).done().json();
    assert_eq!(report["retries"], 2);
    assert_eq!(report["uploaded"]["inserts"], 1);
    let (url, _news) = busy_at_first(shop.server.url(), vec![10]);
    let arguments = ["sync", &nancy.name, "--server", &url];
    let told = shop.place.tidewater(&arguments).done().stdout;
    assert!(told.contains("turned away 1 time by the server"), "{told}");
}

#[test]
fn waiting_for_a_busy_server_ends_with_an_interrupt() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    // Not longer than the program waits at all.
    let (url, news) = busy_at_first(shop.server.url(), vec![200_000]);
    let child = shop
        .place
        .command(&["sync", &nancy.name, "--server", &url, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    news.recv().expect("it was turned away");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success());
    let run = Run::from(child.wait_with_output().expect("the program ends"));
    assert_eq!(run.exits(5).json()["error"]["code"], "cancelled");
    shop.sync(&nancy).done();
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
}

/// A line brings some of a download and then breaks each time before a row is through: the program
/// tells so once each time, ends after some tries, and keeps what has come.
#[test]
fn a_line_that_brings_nothing_more_ends_the_sync_with_a_hint() {
    let shop = Shop::open();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 139)
         INSERT INTO product SELECT i, hex(randomblob(50000)) FROM n";
    shop.centre.execute(rows);
    let address = shop.server.url().trim_start_matches("tcp://");
    let line = BadLine::start(address.parse().expect("an address")).expect("it listens");
    line.carry(1_000_000);
    let arguments = [
        "sync",
        "nancy.db",
        "--server",
        &format!("tcp://{}", line.address()),
        "--user",
        "nancy",
        "--publication",
        "main",
        "--json",
    ];
    let child = shop
        .place
        .command(&arguments)
        .env("TIDEWATER_PASSWORD", password("nancy"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    until("the line has broken", || line.cuts() > 0);
    line.carry(20_000);
    let run = Run::from(child.wait_with_output().expect("the program ends")).exits(2);
    assert!(run.stderr.contains("the connection broke"), "{run:#?}");
    let error = &run.json()["error"];
    let message = error["message"].as_str().expect("it says what is wrong");
    assert!(message.contains("broke 8 times in a row"), "{message}");
    let hint = error["hint"].as_str().expect("it says what to do");
    assert!(hint.contains("sync again over a better line"), "{hint}");
    let synced = shop.place.tidewater_as(
        &password("nancy"),
        &[
            "sync",
            "nancy.db",
            "--server",
            shop.server.url(),
            "--user",
            "nancy",
            "--publication",
            "main",
            "--json",
        ],
    );
    let kept = synced.done().json()["bytes_kept"].as_u64();
    assert!(kept.is_some_and(|it| it > 500_000), "{kept:?}");
}
