//! What carries a connection: TCP, TLS, WebSocket and HTTP, all at one address; through proxies that
//! ask who we are, lose, repeat, and answer in place of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidewater_carrier::CarrierError;
use tidewater_client::{
    ArgumentValue, ClientError, Code, Link, LinkOptions, Request, RetryPolicy, SubscriptionStart,
};
use tidewater_server::{Config, dev_certificate};
use tidewater_testing::bad_line::BadLine;
use tidewater_testing::claim_port;

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::live::{Live, live_with};
use crate::outbox::placing_shop;
use crate::scenario::{PUBLICATION, shop};
use crate::world::{LiveServer, PASSWORD, World, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// Every scheme that there is.
pub(crate) const SCHEMES: [&str; 6] = ["tcp", "tls", "ws", "wss", "http", "https"];

/// A server that speaks everything at one address, and the file with its certificate.
pub(crate) struct Everything {
    pub(crate) server: LiveServer,
    pub(crate) address: SocketAddr,
    pub(crate) certificate: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

pub(crate) fn everything<B: Backend>(world: &World<B>) -> Everything {
    everything_with(world, |_| ())
}

/// The same with more in its configuration.
pub(crate) fn everything_with<B: Backend>(
    world: &World<B>,
    more: impl FnOnce(&mut Config),
) -> Everything {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tls = dev_certificate(folder.path(), &["127.0.0.1".into()]).expect("it can be made");
    let port = claim_port().expect("a port is free");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let certificate = tls.certificate.clone();
    let server = world.server_with(|config| {
        let urls = SCHEMES.iter().map(|scheme| format!("{scheme}://{address}"));
        config.server.listen = urls.collect();
        config.server.http = Some(format!("http://{address}"));
        config.server.tls = Some(tls);
        more(config);
    });
    Everything {
        server,
        address,
        certificate,
        _folder: folder,
    }
}

/// Has a device sync over another way.
pub(crate) fn go_by(device: &mut Device, urls: &str) {
    let user = device.user.clone();
    let subscribed = device.remote.subscribe(urls, &user, &[PUBLICATION]);
    subscribed.expect("the address can be one");
}

/// A device that syncs over a line to the server, and goes on by itself when that breaks.
pub(crate) fn device_over<B: Backend>(
    world: &World<B>,
    everything: &Everything,
    (scheme, line): (&str, &BadLine),
) -> Device {
    let mut device = world.device("bob");
    go_by(&mut device, &format!("{scheme}://{}", line.address()));
    let trusted = device.remote.set_ca_file(Some(&everything.certificate));
    trusted.expect("it is a file");
    device.remote.set_retry(RetryPolicy::default());
    device
}

fn rows_up_and_down_over_every_carrier_at_one_address<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    let mut devices = Vec::new();
    for (number, scheme) in SCHEMES.iter().enumerate() {
        let mut ada = world.device("ada");
        go_by(&mut ada, &format!("{scheme}://{}", everything.address));
        let trusted = ada.remote.set_ca_file(Some(&everything.certificate));
        trusted.expect("it is a file");
        ada.sync();
        // More than an answer and a request hold, and values larger than a frame.
        let first = 10_000 * (number + 1);
        ada.edit(&format!(
            "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {first} + 3000)
             INSERT INTO product SELECT i, printf('%.400c', 'x') || i, i FROM n;
             UPDATE product SET name = printf('%.2000000c', 'y') WHERE product_id = {first}"
        ));
        let report = ada.sync();
        assert_eq!(report.uploaded.inserts, 3001, "{scheme}");
        ada.sync();
        devices.push(ada);
    }
    for device in &mut devices {
        device.sync();
    }
    assert_converged(&world, &devices.iter().collect::<Vec<_>>());
    // And the web protocol is there as well.
    let (head, _) = ask(everything.address, "GET /openapi.json HTTP/1.1\r\n", b"");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(everything.server);
}

fn calls_and_events_interleave_over_every_carrier<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let everything = everything(&world);
    for scheme in SCHEMES {
        let url = format!("{scheme}://{}", everything.address);
        let mut options = LinkOptions::password("ada", PASSWORD);
        options.ca_file = Some(everything.certificate.clone());
        let link = Link::connect(&url, &options).expect("it is let in");
        let other = Link::connect(&url, &options).expect("it is let in");
        let mut heard = other
            .subscribe("field", "unit.>", SubscriptionStart::Now)
            .expect("it may");
        // While one request is held, others go.
        for number in 1..=3 {
            let call = Request::new("place").with("number", ArgumentValue::Integer(number));
            link.call(&call).expect("it is done");
            let word = format!("{scheme} {number}");
            let kept = link.publish_durable("field", &[("unit.ada", word.as_bytes())], None);
            kept.expect("it may");
            let event = heard.recv(PATIENCE).expect("it comes");
            assert_eq!(event.payload(), word.as_bytes());
        }
    }
}

/// Lines go mute under live remotes, which have something to say then: they do not wait as long as a
/// silent server is borne with, but connect again.
fn a_live_remote_leaves_a_line_that_went_mute<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    let connected: Vec<(BadLine, Device, Live)> = SCHEMES
        .iter()
        .map(|scheme| {
            let line = BadLine::start(everything.address).expect("it listens");
            let device = world.device("ada");
            let live = live_with(&device, |remote| {
                let url = format!("{scheme}://{}", line.address());
                let subscribed = remote.subscribe(&url, "ada", &[PUBLICATION]);
                subscribed.expect("the address can be one");
                let trusted = remote.set_ca_file(Some(&everything.certificate));
                trusted.expect("it is a file");
                remote.set_timeout(Duration::from_secs(3600));
            });
            live.has_connected();
            (line, device, live)
        })
        .collect();
    for (number, (line, device, _)) in connected.iter().enumerate() {
        line.mute();
        let row = 700_000 + number;
        device.edit(&format!("INSERT INTO product VALUES ({row}, 'mute', 1)"));
    }
    let count = "SELECT count(*) FROM product WHERE product_id >= 700000";
    until(|| world.rows(count) == [SCHEMES.len().to_string()]);
    for (_, _, live) in connected {
        live.end();
    }
    drop(everything.server);
}

/// What a network does to requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Passes,
    /// The server never sees it.
    Lost,
    /// The server answers, and nobody hears it.
    AnswerLost,
    /// The server sees it twice.
    Twice,
    /// A balancer has no server at the moment.
    BadGateway,
    /// The answer comes in chunks.
    Chunked,
    /// The network wants its guest to sign in.
    LoginPage,
}

/// A proxy that passes on whole requests, and not all of them.
struct Middle {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

/// One request or answer: its head, and its body.
fn message(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.split("content-length:").nth(1).map_or("0", |it| it);
    let length = length.lines().next()?.trim().parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Has a server answer.
fn ask(server: SocketAddr, head: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server).expect("the server is there");
    let head = match head.ends_with("\r\n\r\n") {
        true => head.to_owned(),
        false => format!("{head}host: x\r\ncontent-length: {}\r\n\r\n", body.len()),
    };
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body).expect("it reads");
    message(&mut BufReader::new(stream)).expect("it answers")
}

impl Middle {
    fn start(server: SocketAddr, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Middle {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let (requests, fate) = (Arc::new(AtomicUsize::new(0)), Arc::new(fate));
        let counted = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (fate, counted) = (fate.clone(), counted.clone());
                thread::spawn(move || Middle::pass(stream, server, &*fate, &counted));
            }
        });
        Middle { address, requests }
    }

    fn pass(
        stream: TcpStream,
        server: SocketAddr,
        fate: &dyn Fn(usize) -> Fate,
        counted: &AtomicUsize,
    ) -> Option<()> {
        let mut from = BufReader::new(stream.try_clone().ok()?);
        let mut to = stream;
        loop {
            let (head, body) = message(&mut from)?;
            let fate = fate(counted.fetch_add(1, Ordering::Relaxed));
            match fate {
                Fate::Lost => return to.shutdown(Shutdown::Both).ok(),
                Fate::BadGateway => {
                    to.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno")
                        .ok()?;
                    continue;
                }
                Fate::LoginPage => {
                    let page = b"HTTP/1.1 302 Found\r\nlocation: http://hotel/\r\ncontent-length: 0\r\n\r\n";
                    to.write_all(page).ok()?;
                    continue;
                }
                Fate::Twice => {
                    let again = (head.clone(), body.clone());
                    thread::spawn(move || ask(server, &again.0, &again.1));
                }
                Fate::Passes | Fate::AnswerLost | Fate::Chunked => {}
            }
            let (head, body) = ask(server, &head, &body);
            match fate {
                Fate::AnswerLost => return to.shutdown(Shutdown::Both).ok(),
                Fate::Chunked => {
                    let head: String = head
                        .split_inclusive("\r\n")
                        .filter(|line| !line.starts_with("content-length"))
                        .collect();
                    let head = head.replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n");
                    to.write_all(head.as_bytes()).ok()?;
                    for piece in body.chunks(1_000) {
                        to.write_all(format!("{:x}\r\n", piece.len()).as_bytes())
                            .ok()?;
                        to.write_all(piece).ok()?;
                        to.write_all(b"\r\n").ok()?;
                    }
                    to.write_all(b"0\r\n\r\n").ok()?;
                }
                _ => {
                    to.write_all(head.as_bytes()).ok()?;
                    to.write_all(&body).ok()?;
                }
            }
        }
    }
}

fn requests_that_are_lost_and_repeated_change_nothing<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    for unkind in [
        Fate::Lost,
        Fate::AnswerLost,
        Fate::Twice,
        Fate::BadGateway,
        Fate::Chunked,
    ] {
        // The first one tells the client the name of its connection.
        let middle = Middle::start(everything.address, move |number| match number % 3 {
            1 => unkind,
            _ => Fate::Passes,
        });
        let mut ada = world.device("ada");
        go_by(&mut ada, &format!("http://{}", middle.address));
        ada.sync();
        ada.edit(
            "WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
             INSERT OR REPLACE INTO product SELECT i, printf('%.300c', 'x') || random(), i FROM n",
        );
        ada.sync();
        ada.sync();
        assert_converged(&world, &[&ada]);
        assert!(middle.requests.load(Ordering::Relaxed) > 3, "{unkind:?}");
    }
}

fn a_page_in_place_of_the_server_is_told<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    for (from, schemes) in [(0, &["http", "ws"][..]), (1, &["http"])] {
        for scheme in schemes {
            let middle = Middle::start(everything.address, move |number| match number < from {
                true => Fate::Passes,
                false => Fate::LoginPage,
            });
            let mut ada = world.device("ada");
            go_by(&mut ada, &format!("{scheme}://{}", middle.address));
            let error = ada.try_sync().expect_err("something else answers");
            let ClientError::Carrier(CarrierError::Other { what, .. }) = &error else {
                panic!("{error:?}");
            };
            assert!(
                what.contains("302") && what.contains("http://hotel/"),
                "{what}"
            );
            assert_eq!(error.code(), Code::Unreachable);
        }
    }
}

fn the_address_that_got_through_is_tried_first_the_next_time<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    let port = claim_port().expect("a port is free");
    let gone = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let urls = format!("tcp://{gone}, ws://{gone} http://{}", everything.address);
    let mut ada = world.device("ada");
    go_by(&mut ada, &urls);
    ada.sync();
    let kept = ada.value("SELECT server FROM tidewater_state");
    let address = everything.address;
    assert_eq!(kept, format!("http://{address},tcp://{gone},ws://{gone}"));
    // Named once more, they are the same.
    go_by(&mut ada, &urls);
    ada.sync();
    assert_eq!(ada.value("SELECT server FROM tidewater_state"), kept);
}

fn a_proxy_that_asks_who_we_are_connects_us<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let proxy = listener.local_addr().expect("it has one");
    let heads = Arc::new(Mutex::new(Vec::new()));
    let heard = heads.clone();
    let server = everything.address;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let heard = heard.clone();
            thread::spawn(move || {
                let mut from = BufReader::new(stream.try_clone().ok()?);
                let (head, _) = message(&mut from)?;
                let mut to = stream;
                let is_known = head.contains("Basic YWRhOnNlY3JldA==");
                heard.lock().ok()?.push(head);
                if !is_known {
                    return to.write_all(b"HTTP/1.1 407 Who\r\n\r\n").ok();
                }
                to.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
                let mut up = TcpStream::connect(server).ok()?;
                let (mut down, mut back) = (up.try_clone().ok()?, to);
                thread::spawn(move || {
                    let _ = std::io::copy(&mut down, &mut back);
                    back.shutdown(Shutdown::Write)
                });
                let _ = std::io::copy(&mut from, &mut up);
                up.shutdown(Shutdown::Write).ok()
            });
        }
    });
    for scheme in ["tls", "wss", "https"] {
        let mut ada = world.device("ada");
        go_by(&mut ada, &format!("{scheme}://{}", everything.address));
        let trusted = ada.remote.set_ca_file(Some(&everything.certificate));
        trusted.expect("it is a file");
        ada.remote.set_proxy(Some(format!("http://{proxy}")));
        let error = ada.try_sync().expect_err("the proxy does not know us");
        assert!(error.to_string().contains("name and a password"), "{error}");
        ada.remote
            .set_proxy(Some(format!("http://ada:secret@{proxy}")));
        ada.sync();
    }
    let heads = heads.lock().expect("nobody panicked");
    let connect = format!("CONNECT {} HTTP/1.1\r\n", everything.address);
    assert!(heads.iter().all(|it| it.starts_with(&connect)), "{heads:?}");
}

fn connections_in_requests_are_not_guessed_and_their_numbers_count<B: Backend>() {
    let world = World::<B>::open(shop());
    let everything = everything(&world);
    let request = |number: u64, session: Option<&str>, body: &[u8]| {
        let session = session.map(|it| format!("tidewater-session: {it}\r\n"));
        let head = format!(
            "POST /tidewater HTTP/1.1\r\ntidewater-number: {number}\r\n{}",
            session.unwrap_or_default()
        );
        ask(everything.address, &head, body)
    };
    let (head, _) = request(2, None, b"");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = request(1, Some("00000000000000000000000000000000"), b"");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    // A major version that there is not is answered with a failure.
    let (head, first) = request(1, None, b"TIDE\x63\0\0\0");
    assert!(
        head.starts_with("HTTP/1.1 200") && !first.is_empty(),
        "{head}"
    );
    let session = head
        .split("tidewater-session: ")
        .nth(1)
        .expect("it has a name");
    let session = session.lines().next();
    let (_, again) = request(1, session, b"something else");
    assert_eq!(first, again, "the first answer is repeated");
    let (head, _) = request(4, session, b"");
    assert!(head.starts_with("HTTP/1.1 409"), "{head}");
    let (head, _) = request(2, session, b"");
    assert!(head.contains("tidewater-end: 1"), "{head}");
    let (_, again) = request(1, session, b"");
    assert_eq!(first, again, "and so is the last but one");
    let (head, _) = request(3, session, b"");
    assert!(head.contains("tidewater-end: 1"), "{head}");
    let (head, _) = request(1, session, b"");
    assert!(head.starts_with("HTTP/1.1 409"), "{head}");
    for (head, body) in [
        (
            "POST /tidewater HTTP/1.1\r\ntidewater-number: x\r\n",
            &b""[..],
        ),
        ("POST /tidewater HTTP/1.1\r\n", b""),
        ("GET /tidewater HTTP/1.1\r\n", b""),
        (
            "GET /tidewater HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n",
            b"",
        ),
    ] {
        let (answer, _) = ask(everything.address, head, body);
        assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
    }
    let large = vec![0; 600 << 10];
    let (head, _) = request(1, None, &large);
    assert!(head.starts_with("HTTP/1.1 413"), "{head}");
    world.synced("ada");
}

on_both_adapters!(
    rows_up_and_down_over_every_carrier_at_one_address,
    calls_and_events_interleave_over_every_carrier,
    a_live_remote_leaves_a_line_that_went_mute,
    requests_that_are_lost_and_repeated_change_nothing,
    a_page_in_place_of_the_server_is_told,
    the_address_that_got_through_is_tried_first_the_next_time,
    a_proxy_that_asks_who_we_are_connects_us,
    connections_in_requests_are_not_guessed_and_their_numbers_count,
);
