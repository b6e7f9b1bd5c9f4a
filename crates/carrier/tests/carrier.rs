//! Dialing against listening: what goes in on one side comes out on the other.
#![allow(
    clippy::disallowed_methods,
    reason = "real sockets are waited for in real time"
)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;
use tidewater_carrier::listen::{
    BlockStream, ByteAccount, ServerNetwork, TcpNetwork, TlsServer, accept_key,
};
use tidewater_carrier::{
    Carrier, CarrierError, Compression, CompressionOptions, DialOptions, Pin, ReceiveOutcome,
    ServerUrl, WebSite, WebSiteRequest, tls,
};
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

/// A server that sends back all that a connection brings, and then closes it; one connection after
/// the other.
fn echo(runtime: &Runtime, tls: Option<TlsServer>) -> ServerUrl {
    let mut listener = runtime.block_on(TcpNetwork.listen("127.0.0.1:0")).unwrap();
    let scheme = if tls.is_some() { "tls" } else { "tcp" };
    let url = format!("{scheme}://{}", listener.address());
    runtime.spawn(async move {
        loop {
            let mut stream = listener.accept().await.unwrap().stream;
            if let Some(tls) = &tls {
                match tls.accept(stream).await {
                    Ok((encrypted, _)) => stream = encrypted,
                    Err(_) => continue,
                }
            }
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    url.parse().unwrap()
}

fn options(ca_file: Option<&Path>) -> DialOptions<'_> {
    DialOptions {
        certificate: None,
        ca_file,
        pin: None,
        insecure: false,
        proxy: None,
        compression: CompressionOptions::default(),
        timeout: PATIENCE,
    }
}

fn dial(url: &ServerUrl, ca_file: Option<&Path>) -> Result<Carrier, CarrierError> {
    Carrier::dial(url, &options(ca_file), &mut || ControlFlow::Continue(()))
}

/// Sends the bytes, closes, and gives what comes until the server closes.
fn exchange(carrier: &mut Carrier, bytes: Vec<u8>) -> Result<Vec<u8>, CarrierError> {
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
        if let ReceiveOutcome::End(_) = carrier.receive(wait, handle)? {
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
    let tls = TlsServer::new(&certificate.file(), &certificate.key()).unwrap();
    for tls in [None, Some(tls)] {
        let url = echo(&runtime, tls);
        let mut carrier = dial(&url, Some(&certificate.file())).unwrap();
        assert!(
            exchange(&mut carrier, sent.clone()).unwrap() == sent,
            "{url}"
        );
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
        let tls = TlsServer::new(&shown.file(), &shown.key()).unwrap();
        let mut carrier = dial(&echo(&runtime, Some(tls)), trusted.as_deref()).unwrap();
        let error = exchange(&mut carrier, b"secret".to_vec()).unwrap_err();
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

/// Keeps account of one connection.
#[derive(Clone, Default)]
struct Account {
    received: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
    most_held: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
}

impl ByteAccount for Account {
    fn count_received(&mut self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::SeqCst);
    }

    fn count_sent(&mut self, bytes: usize) {
        self.sent.fetch_add(bytes, Ordering::SeqCst);
    }

    fn hold(&mut self, bytes: usize) -> bool {
        self.held.store(bytes, Ordering::SeqCst);
        self.most_held.fetch_max(bytes, Ordering::SeqCst);
        true
    }
}

/// As [`echo`], packed. What it sends back begins behind the preface.
fn packed_echo(runtime: &Runtime, compression: Compression) -> (ServerUrl, Account) {
    let account = Account::default();
    let mut listener = runtime.block_on(TcpNetwork.listen("127.0.0.1:0")).unwrap();
    let url = format!("tcp://{}", listener.address());
    let packing = packing(compression);
    let ledger = account.clone();
    runtime.spawn(async move {
        let stream = listener.accept().await.unwrap().stream;
        let mut stream = BlockStream::new(stream, packing, ledger);
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all[8..]).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    (url.parse().unwrap(), account)
}

fn packing(compression: Compression) -> CompressionOptions {
    CompressionOptions {
        compression,
        level: None,
    }
}

fn dial_packed(url: &ServerUrl, compression: Compression) -> Carrier {
    let options = DialOptions {
        certificate: None,
        ca_file: None,
        pin: None,
        insecure: false,
        proxy: None,
        compression: packing(compression),
        timeout: PATIENCE,
    };
    Carrier::dial(url, &options, &mut || ControlFlow::Continue(())).unwrap()
}

const PREFACE: &[u8] = b"TIDE\x01\x00\0\0";

#[test]
fn what_is_packed_on_one_side_comes_out_on_the_other_whatever_each_has_set() {
    let runtime = Runtime::new().unwrap();
    let said: Vec<u8> = (0..LARGE).map(|i| (i % 251) as u8).collect();
    let sent = [PREFACE, &said].concat();
    for of_client in Compression::ALL {
        for of_server in Compression::ALL {
            let (url, account) = packed_echo(&runtime, of_server);
            let mut carrier = dial_packed(&url, of_client);
            let came = exchange(&mut carrier, sent.clone()).unwrap();
            assert!(came == said, "{of_client} and {of_server}");
            let [up, down] = carrier.traffic().map(|it| it as usize);
            assert_eq!(up, account.received.load(Ordering::SeqCst));
            assert_eq!(down, account.sent.load(Ordering::SeqCst));
            // On one machine nothing is packed unless somebody wants that.
            let packs = matches!(of_client, Compression::Zstd | Compression::Deflate);
            assert_eq!(up < LARGE / 10, packs, "{of_client}: {up}");
            match (packs, of_server) {
                (false, _) => assert_eq!([up, down], [LARGE + 8, LARGE]),
                (true, Compression::Off) => assert!(down > LARGE, "{down}"),
                (true, Compression::Auto) => assert!(down <= LARGE + 1_000, "{down}"),
                (true, _) => assert!(down < LARGE / 10, "{of_client}, {of_server}: {down}"),
            }
            assert_eq!(account.held.load(Ordering::SeqCst), 0);
            assert!(account.most_held.load(Ordering::SeqCst) <= 256 << 10);
        }
    }
}

#[test]
fn an_answer_that_is_no_block_is_told_as_such() {
    let runtime = Runtime::new().unwrap();
    let mut listener = runtime.block_on(TcpNetwork.listen("127.0.0.1:0")).unwrap();
    let url = format!("tcp://{}", listener.address());
    runtime.spawn(async move {
        let mut stream = listener.accept().await.unwrap().stream;
        stream.write_all(b"HTTP/1.1 400 Bad").await.unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).await.unwrap();
    });
    let mut carrier = dial_packed(&url.parse().unwrap(), Compression::Zstd);
    let error = exchange(&mut carrier, PREFACE.to_vec()).unwrap_err();
    assert!(matches!(error, CarrierError::Blocks { .. }), "{error}");
}

#[test]
fn what_comes_is_handed_over_though_the_socket_has_nothing_more() {
    let runtime = Runtime::new().unwrap();
    let (url, _) = packed_echo(&runtime, Compression::Zstd);
    let mut carrier = dial_packed(&url, Compression::Zstd);
    // A block of this is far smaller than one read, and what it says far larger.
    carrier.push([PREFACE, &[b'x'; 100 << 10]].concat().into());
    while carrier.has_output() {
        carrier.send(true).unwrap();
    }
    carrier.close().unwrap();
    let mut came = 0;
    let mut ended = false;
    while !ended {
        // The carrier has the socket not wait.
        let comes = (0..PATIENCE.as_millis()).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            carrier.socket().peek(&mut [0]).is_ok()
        });
        assert!(comes);
        let handle = &mut |bytes: &[u8]| came += bytes.len();
        ended = matches!(
            carrier.receive(None, handle).unwrap(),
            ReceiveOutcome::End(_)
        );
    }
    assert_eq!(came, 100 << 10);
}

#[test]
fn messages_that_come_together_are_handed_over_together() {
    let runtime = Runtime::new().unwrap();
    let mut listener = runtime.block_on(TcpNetwork.listen("127.0.0.1:0")).unwrap();
    let url = format!("ws://{}/", listener.address()).parse().unwrap();
    let (asked, ask) = tokio::sync::oneshot::channel::<()>();
    let server = runtime.spawn(async move {
        let mut stream = listener.accept().await.unwrap().stream;
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap().into());
        }
        let key = request.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("sec-websocket-key")
                .then_some(value)
        });
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            accept_key(key.unwrap().as_bytes())
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        ask.await.unwrap();
        // Three binary messages: of one, two and three bytes.
        let messages = b"\x82\x01a\x82\x02bc\x82\x03def";
        stream.write_all(messages).await.unwrap();
        stream
    });
    let mut carrier = dial(&url, None).unwrap();
    asked.send(()).unwrap();
    let _stream = runtime.block_on(server).unwrap();
    let mut came = Vec::new();
    let handle = &mut |bytes: &[u8]| came.extend_from_slice(bytes);
    // Whoever waits at the socket hears of nothing that the carrier has read from it already.
    let received = carrier.receive(Some(PATIENCE), handle).unwrap();
    assert!(matches!(received, ReceiveOutcome::Bytes));
    assert_eq!(came, b"abcdef");
}

/// A server of one version of TLS, with tickets as ours make them.
fn of_version(
    certificate: &Certificate,
    version: &'static rustls::SupportedProtocolVersion,
) -> TlsServer {
    of_version_with(&certificate.file(), &certificate.key(), version)
}

fn of_version_with(
    certificate: &Path,
    key: &Path,
    version: &'static rustls::SupportedProtocolVersion,
) -> TlsServer {
    let ours = tls::server(certificate, key).unwrap();
    let chain = CertificateDer::pem_file_iter(certificate).unwrap();
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let mut config = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.ticketer = ours.ticketer.clone();
    TlsServer::from_config(Arc::new(config))
}

/// Whether a new connection goes on from an earlier one.
fn is_resumed(url: &ServerUrl, ca_file: &Path) -> bool {
    let mut carrier = dial(url, Some(ca_file)).unwrap();
    assert_eq!(exchange(&mut carrier, b"hello".to_vec()).unwrap(), b"hello");
    carrier.is_resumed()
}

#[test]
fn a_second_connection_goes_on_from_the_first_with_either_version() {
    let runtime = Runtime::new().unwrap();
    for version in [&TLS12, &TLS13] {
        let certificate = Certificate::for_name("127.0.0.1");
        let url = echo(&runtime, Some(of_version(&certificate, version)));
        assert!(!is_resumed(&url, &certificate.file()));
        assert!(is_resumed(&url, &certificate.file()), "{version:?}");
        // Another server with the same certificate takes the ticket too.
        let another = echo(&runtime, Some(of_version(&certificate, version)));
        assert!(is_resumed(&another, &certificate.file()), "{version:?}");
    }
}

#[test]
fn nothing_goes_on_from_another_certificate_or_other_trust() {
    let runtime = Runtime::new().unwrap();
    let [one, other] = ["127.0.0.1"; 2].map(Certificate::for_name);
    let trusted = one.folder.path().join("both.pem");
    let both = [&one, &other].map(|it| std::fs::read_to_string(it.file()).unwrap());
    std::fs::write(&trusted, both.concat()).unwrap();
    let [url, another] = [&one, &other].map(|it| {
        let tls = TlsServer::new(&it.file(), &it.key()).unwrap();
        echo(&runtime, Some(tls))
    });
    assert!(!is_resumed(&url, &trusted));
    assert!(!is_resumed(&another, &trusted), "a ticket of another");
    assert!(is_resumed(&another, &trusted));
    // What is trusted has changed, under the same name.
    std::fs::write(&trusted, &both[1]).unwrap();
    assert!(!is_resumed(&another, &trusted));
    std::fs::write(&trusted, &both[0]).unwrap();
    let mut carrier = dial(&another, Some(&trusted)).unwrap();
    let error = exchange(&mut carrier, b"secret".to_vec()).unwrap_err();
    assert!(matches!(error, CarrierError::Certificate { .. }), "{error}");
}

#[test]
fn a_server_that_has_the_pinned_key_is_trusted_and_no_other() {
    let runtime = Runtime::new().unwrap();
    // Nobody vouches for it, and it has another name.
    let [one, other] = ["sync.example.com"; 2].map(Certificate::for_name);
    let [pin, other_pin] = [&one, &other].map(|it| Pin::from_file(&it.file()).unwrap());
    assert_eq!(pin.to_string().parse(), Ok(pin));
    for version in [&TLS12, &TLS13] {
        let url = echo(&runtime, Some(of_version(&one, version)));
        let dial = |pin| {
            let options = DialOptions {
                certificate: None,
                // What a pin stands in place of.
                ca_file: Some(Path::new("there is no such file")),
                pin: Some(pin),
                insecure: false,
                proxy: None,
                compression: CompressionOptions::default(),
                timeout: PATIENCE,
            };
            Carrier::dial(&url, &options, &mut || ControlFlow::Continue(())).unwrap()
        };
        let came = exchange(&mut dial(pin), b"hello".to_vec()).unwrap();
        assert_eq!(came, b"hello");
        let mut second = dial(pin);
        exchange(&mut second, b"hello".to_vec()).unwrap();
        assert!(second.is_resumed());
        let error = exchange(&mut dial(other_pin), b"secret".to_vec()).unwrap_err();
        let CarrierError::OtherKey { found, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*found, pin);
        assert!(error.to_string().contains(&pin.to_string()), "{error}");
    }
    for wrong in ["", "sha256/", "sha1/AAAA", "sha256/AAAA", "AAAA"] {
        assert!(wrong.parse::<Pin>().is_err(), "{wrong:?}");
    }
}

/// The other tests have keys of elliptic curves, which rcgen makes. The RSA key and its certificate
/// are in the repository, for nobody to use but this test.
#[test]
fn keys_of_rsa_and_of_curves_serve_with_either_version() {
    let runtime = Runtime::new().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/for_tests_only");
    let rsa = [folder.join("rsa.pem"), folder.join("rsa.key")];
    let curve = Certificate::for_name("127.0.0.1");
    for [certificate, key] in [rsa, [curve.file(), curve.key()]] {
        for version in [&TLS12, &TLS13] {
            let url = echo(&runtime, Some(of_version_with(&certificate, &key, version)));
            let mut carrier = dial(&url, Some(&certificate)).unwrap();
            let came = exchange(&mut carrier, b"hello".to_vec()).unwrap();
            assert_eq!(came, b"hello", "{version:?}");
            let ours = echo(&runtime, Some(TlsServer::new(&certificate, &key).unwrap()));
            let mut carrier = dial(&ours, Some(&certificate)).unwrap();
            let came = exchange(&mut carrier, b"hello".to_vec()).unwrap();
            assert_eq!(came, b"hello", "either may be spoken");
        }
    }
}

#[test]
fn who_asks_a_site_again_says_the_cookies_that_it_has_set() {
    let runtime = Runtime::new().unwrap();
    let mut listener = runtime.block_on(TcpNetwork.listen("127.0.0.1:0")).unwrap();
    let url: ServerUrl = format!("http://{}", listener.address()).parse().unwrap();
    // Each answer ends its connection, and says what was asked.
    runtime.spawn(async move {
        loop {
            let mut stream = listener.accept().await.unwrap().stream;
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nset-cookie: FARM=two; Path=/; Secure\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n",
                asked.len()
            );
            let answer = [head.as_bytes(), &asked].concat();
            stream.write_all(&answer).await.unwrap();
        }
    });
    let mut site = WebSite::new(&url, &options(None)).unwrap();
    let mut ask = || {
        let asked = WebSiteRequest {
            method: "GET",
            path: "/",
            headers: &[],
            body: &[],
        };
        let page = site.ask(asked, &mut || ControlFlow::Continue(())).unwrap();
        String::from_utf8(page.body.to_vec()).unwrap()
    };
    assert!(!ask().contains("cookie"));
    assert!(ask().contains("cookie: FARM=two\r\n"));
}
