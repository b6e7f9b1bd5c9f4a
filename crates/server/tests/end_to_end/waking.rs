//! Remotes that are not connected: an address of the operator's is told who has something to fetch.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::Value;
use tidewater_carrier::tls;
use tidewater_server::Config;
use tokio_rustls::rustls::{ServerConnection, StreamOwned};

use crate::backend::Backend;
use crate::scenario::shop;
use crate::world::World;

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// As long as nothing has to happen: longer than requests are held back for others.
const QUIET: Duration = Duration::from_millis(2_500);

trait Socket: Read + Write {}
impl<S: Read + Write> Socket for S {}

/// The operator's address: it refuses the first requests, and takes all others.
struct Operator {
    url: String,
    ca: Option<std::path::PathBuf>,
    requests: Receiver<(String, Value)>,
    _folder: tempfile::TempDir,
}

impl Operator {
    fn open(with_tls: bool, mut refused: usize) -> Operator {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let secure = with_tls.then(|| {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let (ca, key) = (folder.path().join("ca.pem"), folder.path().join("key.pem"));
            std::fs::write(&ca, cert.pem()).unwrap();
            std::fs::write(&key, signing_key.serialize_pem()).unwrap();
            (tls::server(&ca, &key).unwrap(), ca)
        });
        let ca = secure.as_ref().map(|(_, ca)| ca.clone());
        let config = secure.map(|(config, _)| config);
        let (tell, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut stream: Box<dyn Socket> = match &config {
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).unwrap();
                        Box::new(StreamOwned::new(connection, stream))
                    }
                    None => Box::new(stream),
                };
                let request = read(&mut *stream);
                let status = match refused {
                    0 => "204 No Content",
                    _ => "503 Service Unavailable",
                };
                refused = refused.saturating_sub(1);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
                let _ = stream.flush();
                if tell.send(request).is_err() {
                    return;
                }
            }
        });
        Operator {
            url: match with_tls {
                true => format!("https://localhost:{port}/wake"),
                false => format!("http://127.0.0.1:{port}/wake"),
            },
            ca,
            requests,
            _folder: folder,
        }
    }

    fn configure(&self, config: &mut Config, more: &str) {
        let ca = self.ca.as_ref().map(|it| format!("ca = {it:?}\n"));
        let text = format!(
            "[server]\nconsolidated = \"sqlite:x\"\n[[wake]]\nurl = {:?}\ntoken = \"secret\"\n{}{more}",
            self.url,
            ca.unwrap_or_default()
        );
        config.wakes = Config::parse(&text).unwrap().wakes;
    }

    /// Who is told of, by the next request.
    fn next(&self) -> BTreeSet<String> {
        let (head, body) = self.requests.recv_timeout(PATIENCE).expect("it comes");
        assert!(head.starts_with("POST /wake HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: Bearer secret\r\n"), "{head}");
        let remotes = body["remotes"].as_array().unwrap().iter().map(|it| {
            assert_eq!(it["remote_id"].as_str().unwrap().len(), 36);
            assert_eq!(it["publications"], serde_json::json!(["main"]));
            it["user"].as_str().unwrap().to_owned()
        });
        remotes.collect()
    }

    #[track_caller]
    fn is_quiet(&self) {
        let next = self.requests.recv_timeout(QUIET);
        assert_eq!(next, Err(RecvTimeoutError::Timeout));
    }
}

/// The head and the body of a request.
fn read(stream: &mut dyn Socket) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert_ne!(count, 0, "it ends early");
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            return (head.to_owned() + "\r\n", body);
        }
    }
}

fn users(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|it| (*it).to_owned()).collect()
}

fn those_who_are_not_connected_are_told_of_once_until_they_have_synced<B: Backend>() {
    let world = World::<B>::open(shop());
    let operator = Operator::open(false, 0);
    let server = world.server_with(|config| operator.configure(config, ""));
    let mut devices = ["bob", "bob", "cleo"].map(|user| {
        let mut device = world.device(user);
        device.network.redirect(server.address);
        device.sync();
        device
    });
    // Whoever has synced before the server's first look may have missed something, and is told of.
    world.execute("UPDATE customer SET name = 'Followed' WHERE region = 3");
    assert!(operator.next().contains("cleo"));
    devices.iter_mut().for_each(|it| drop(it.sync()));
    operator.is_quiet();
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    assert_eq!(operator.next(), users(&["bob"]));
    world.execute("UPDATE customer SET name = 'Again' WHERE region = 2");
    operator.is_quiet();
    // What it does itself is no news to it, but to the other one of the same user.
    devices[0].edit("UPDATE customer SET name = 'Mine' WHERE region = 2");
    devices[0].sync();
    operator.is_quiet();
    devices[1].sync();
    devices[0].edit("UPDATE customer SET name = 'More' WHERE region = 2");
    devices[0].sync();
    assert_eq!(operator.next(), users(&["bob"]));
    world.execute("UPDATE customer SET region = 3 WHERE customer_id = 2");
    assert_eq!(operator.next(), users(&["bob", "cleo"]));
}

fn what_the_operator_does_not_take_is_told_again<B: Backend>() {
    let world = World::<B>::open(shop());
    let operator = Operator::open(true, 2);
    let server = world.server_with(|config| operator.configure(config, ""));
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.sync();
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    for _ in 0..3 {
        assert_eq!(operator.next(), users(&["bob"]));
    }
    operator.is_quiet();
}

fn an_address_hears_only_of_its_publications<B: Backend>() {
    let world = World::<B>::open(shop());
    let operator = Operator::open(false, 0);
    let more = "publications = [\"another\"]";
    let server = world.server_with(|config| operator.configure(config, more));
    let mut bob = world.device("bob");
    bob.network.redirect(server.address);
    bob.sync();
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    operator.is_quiet();
}

on_both_adapters!(
    those_who_are_not_connected_are_told_of_once_until_they_have_synced,
    what_the_operator_does_not_take_is_told_again,
    an_address_hears_only_of_its_publications,
);
