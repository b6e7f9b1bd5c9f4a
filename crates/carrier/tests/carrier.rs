//! Dialing against listening: what goes in on one side comes out on the other.
#![allow(
    clippy::disallowed_methods,
    reason = "real sockets are waited for in real time"
)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use tidewater_carrier::listen::{Network, Tcp, Tls};
use tidewater_carrier::{Carrier, CarrierError, DialOptions, Received, ServerUrl, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

/// More than sockets and TLS keep for themselves.
const LARGE: usize = 3 << 20;

struct Certificate {
    folder: TempDir,
}

impl Certificate {
    fn for_name(name: &str) -> Certificate {
        let folder = TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(folder.path().join("it.pem"), made.cert.pem()).unwrap();
        let key = made.signing_key.serialize_pem();
        std::fs::write(folder.path().join("it.key"), key).unwrap();
        Certificate { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("it.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("it.key")
    }
}

/// A server that sends back all that one connection brings, and then closes.
fn echo(runtime: &Runtime, tls: Option<Tls>) -> ServerUrl {
    let mut listener = runtime.block_on(Tcp.listen("127.0.0.1:0")).unwrap();
    let scheme = if tls.is_some() { "tls" } else { "tcp" };
    let url = format!("{scheme}://{}", listener.address());
    runtime.spawn(async move {
        let mut stream = listener.accept().await.unwrap().stream;
        if let Some(tls) = tls {
            match tls.accept(stream).await {
                Ok((encrypted, _)) => stream = encrypted,
                Err(_) => return,
            }
        }
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    url.parse().unwrap()
}

fn dial(url: &ServerUrl, ca_file: Option<&Path>) -> Result<Carrier, CarrierError> {
    let options = DialOptions {
        certificate: None,
        ca_file,
        insecure: false,
        timeout: PATIENCE,
    };
    Carrier::dial(url, &options, &mut || ControlFlow::Continue(()))
}

/// Sends the bytes, closes, and gives what comes until the server closes.
fn exchange(mut carrier: Carrier, bytes: Vec<u8>) -> Result<Vec<u8>, CarrierError> {
    let deadline = Instant::now() + PATIENCE;
    let mut came = Vec::new();
    carrier.push(bytes.into());
    let mut closed = false;
    while Instant::now() < deadline {
        if carrier.has_output() && !carrier.send(false)? {
            carrier.send(true)?;
        } else if carrier.takes_output() && !closed {
            carrier.close()?;
            closed = true;
        }
        let wait = (!carrier.has_output()).then_some(Duration::from_millis(50));
        let handle = &mut |bytes: &[u8]| came.extend_from_slice(bytes);
        if let Received::End(_) = carrier.receive(wait, handle)? {
            return Ok(came);
        }
    }
    panic!("the server does not close");
}

#[test]
fn bytes_come_back_through_every_layer() {
    let runtime = Runtime::new().unwrap();
    let certificate = Certificate::for_name("127.0.0.1");
    let sent: Vec<u8> = (0..LARGE).map(|i| (i % 251) as u8).collect();
    let tls = Tls::new(&certificate.file(), &certificate.key()).unwrap();
    for tls in [None, Some(tls)] {
        let url = echo(&runtime, tls);
        let carrier = dial(&url, Some(&certificate.file())).unwrap();
        assert!(exchange(carrier, sent.clone()).unwrap() == sent, "{url}");
    }
}

#[test]
fn only_a_server_with_the_right_name_and_issuer_is_trusted() {
    let runtime = Runtime::new().unwrap();
    let other_name = Certificate::for_name("sync.example.com");
    let right = Certificate::for_name("127.0.0.1");
    let cases = [
        (&other_name, Some(other_name.file())),
        (&right, Some(other_name.file())),
        (&right, None),
    ];
    for (shown, trusted) in cases {
        let tls = Tls::new(&shown.file(), &shown.key()).unwrap();
        let carrier = dial(&echo(&runtime, Some(tls)), trusted.as_deref()).unwrap();
        let error = exchange(carrier, b"secret".to_vec()).unwrap_err();
        assert!(matches!(error, CarrierError::Certificate { .. }), "{error}");
    }
}

#[test]
fn nothing_goes_out_before_the_handshake_is_over() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tls://{}", silent.local_addr().unwrap());
    let mut carrier = dial(&url.parse().unwrap(), None).unwrap();
    carrier.push(Bytes::from_static(b"secret"));
    assert!(carrier.send(true).unwrap(), "the hello of TLS");
    assert!(!carrier.has_output() && !carrier.takes_output());
    assert!(!carrier.send(true).unwrap());
    drop(silent.accept().unwrap());
    let ended = carrier.receive(Some(PATIENCE), &mut |_| {}).unwrap_err();
    assert!(matches!(ended, CarrierError::Tls { .. }), "{ended}");
}

#[test]
fn plain_connections_off_this_machine_are_refused() {
    let error = dial(&"tcp://192.0.2.1".parse().unwrap(), None).unwrap_err();
    assert!(matches!(error, CarrierError::Exposed { .. }), "{error}");
}

#[test]
fn files_that_do_not_fit_are_named() {
    let [one, other] = ["one", "other"].map(Certificate::for_name);
    let missing = one.folder.path().join("missing.pem");
    let cases = [
        (one.key(), one.key(), one.key()),
        (one.file(), one.file(), one.file()),
        (missing.clone(), one.key(), missing.clone()),
        (one.file(), missing.clone(), missing),
        (one.file(), other.key(), one.file()),
    ];
    for (certificate, key, named) in cases {
        let error = tls::server(&certificate, &key).unwrap_err();
        assert!(matches!(&error, CarrierError::File { file, .. } if *file == named));
    }
    assert!(tls::client(Some(&one.key())).is_err(), "no certificate");
}
