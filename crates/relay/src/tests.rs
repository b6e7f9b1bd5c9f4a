//! A relay without sockets, in a time that passes only when everybody waits.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use tidewater_admin::ProbeTarget;
use tidewater_carrier::listen::{
    IncomingStream, RegistrationRefusal, RelayToken, RelayTunnel, ServerRegistration, TunnelError,
};

use crate::client_hello::MAX_HELLO_BYTES;
use crate::config::RelayServiceConfig;
use crate::relay_state::RelayState;
use crate::{devices, servers};

const NAME: &str = "sync.example.com";

fn token() -> RelayToken {
    "the-token-of-the-test".parse().unwrap()
}

fn relay(more: &str) -> Arc<RelayState> {
    let text = format!(
        "listen = [\"tls://127.0.0.1:0\"]\nservers = \"tcp://127.0.0.1:0\"\n{more}\n\
         [[server]]\nname = \"{NAME}\"\ntokens = [\"{}\"]\n",
        token().hash()
    );
    RelayState::from_config(&RelayServiceConfig::parse(&text).unwrap())
}

fn incoming(stream: DuplexStream, peer: &str) -> IncomingStream {
    IncomingStream {
        stream: Box::new(stream),
        peer: peer.into(),
    }
}

/// A line that a server has opened, and what comes over it.
async fn line(
    relay: &Arc<RelayState>,
    instance: u64,
) -> Result<JoinHandle<IncomingStream>, TunnelError> {
    let (server, other) = duplex(1 << 16);
    let relay = relay.clone();
    tokio::spawn(async move {
        if let Some((line, place)) = servers::register(&relay, incoming(other, "10.0.0.1")).await {
            servers::keep(&relay, line, place).await;
        }
    });
    let registration = ServerRegistration {
        name: NAME.into(),
        instance,
        token: Some(token()),
    };
    let line = RelayTunnel::open(Box::new(server), &registration).await?;
    // It is offered now.
    sleep(Duration::from_millis(1)).await;
    Ok(tokio::spawn(async move { line.taken().await.unwrap() }))
}

/// A device that has connected.
fn device(relay: &Arc<RelayState>, peer: &str) -> DuplexStream {
    let (device, other) = duplex(1 << 16);
    let (relay, incoming) = (relay.clone(), incoming(other, peer));
    tokio::spawn(async move { devices::serve(&relay, incoming).await });
    device
}

fn hello(name: &str, protocol: Option<&str>) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(tidewater_carrier::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = protocol.iter().map(|it| it.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// All that a device hears until the end, and after how long.
async fn heard(device: &mut DuplexStream) -> (Vec<u8>, Duration) {
    let began = Instant::now();
    let mut all = Vec::new();
    device.read_to_end(&mut all).await.unwrap();
    (all, began.elapsed())
}

const UNRECOGNIZED_NAME: &[u8] = &[0x15, 3, 3, 0, 2, 2, 112];
const INTERNAL_ERROR: &[u8] = &[0x15, 3, 3, 0, 2, 2, 80];
const DECODE_ERROR: &[u8] = &[0x15, 3, 3, 0, 2, 2, 50];

#[tokio::test(start_paused = true)]
async fn a_device_and_its_server_have_each_others_bytes_and_ends() {
    let relay = relay("");
    let taken = line(&relay, 1).await.unwrap();
    let mut device = device(&relay, "192.0.2.7");
    let hello = hello(NAME, None);
    for piece in hello.chunks(7) {
        device.write_all(piece).await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    let IncomingStream { mut stream, peer } = taken.await.unwrap();
    assert_eq!(peer, "192.0.2.7");
    device.write_all(b"up").await.unwrap();
    device.shutdown().await.unwrap();
    let mut up = Vec::new();
    stream.read_to_end(&mut up).await.unwrap();
    assert_eq!(up, [&hello[..], b"up"].concat());
    // Half of it has ended only.
    stream.write_all(b"down").await.unwrap();
    assert_eq!(relay.lines.standing()[0].taken, 1);
    stream.shutdown().await.unwrap();
    assert_eq!(heard(&mut device).await.0, b"down");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        relay.lines.standing()[0].servers,
        0,
        "its only line has ended"
    );
}

#[tokio::test]
async fn who_says_nothing_at_the_port_for_servers_takes_few_places() {
    let relay = relay("");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = servers::accept_all(relay.clone(), Box::new(listener));
    let accepting = tokio::spawn(accepting);
    let mut silent = Vec::new();
    for _ in 0..=64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut last = silent.pop().unwrap();
    let closed = timeout(Duration::from_secs(60), last.read(&mut [0])).await;
    assert!(!matches!(closed.unwrap(), Ok(1..)), "it is closed at once");
    let figures = relay.figures().unwrap();
    assert!(
        figures.contains("refused_total{reason=\"crowded\"} 1"),
        "{figures}"
    );
    // What they leave is free for a server.
    drop(silent);
    let registration = ServerRegistration {
        name: NAME.into(),
        instance: 1,
        token: Some(token()),
    };
    let opened = async {
        loop {
            let stream = TcpStream::connect(address).await.unwrap();
            match RelayTunnel::open(Box::new(stream), &registration).await {
                Ok(line) => return line,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    drop(timeout(Duration::from_secs(60), opened).await.unwrap());
    accepting.abort();
}

#[tokio::test(start_paused = true)]
async fn who_gets_nowhere_is_told_at_once() {
    let relay = relay("");
    let endless = [
        &[0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..],
        &[0; MAX_HELLO_BYTES],
    ]
    .concat();
    let at_once = Duration::from_secs(1);
    for (bytes, answer) in [
        (hello("other.example.com", None), UNRECOGNIZED_NAME),
        (hello("192.0.2.7", None), UNRECOGNIZED_NAME),
        // Nobody has registered.
        (hello(NAME, None), INTERNAL_ERROR),
        (endless, DECODE_ERROR),
    ] {
        let mut device = device(&relay, "192.0.2.7");
        device.write_all(&bytes).await.unwrap();
        let (said, after) = heard(&mut device).await;
        assert_eq!((said.as_slice(), after < at_once), (answer, true));
    }
    // Who says nothing, or does not go on.
    for bytes in [&b""[..], b"\x16\x03"] {
        let mut device = device(&relay, "192.0.2.7");
        device.write_all(bytes).await.unwrap();
        let (said, after) = heard(&mut device).await;
        assert!(
            said.is_empty() && after < Duration::from_secs(11),
            "{after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_server_opens_lines_waits_for_one() {
    let relay = relay("");
    let first = line(&relay, 1).await.unwrap();
    let mut one = device(&relay, "192.0.2.1");
    one.write_all(&hello(NAME, None)).await.unwrap();
    let _taken = first.await.unwrap();
    let mut two = device(&relay, "192.0.2.2");
    two.write_all(&hello(NAME, None)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let second = line(&relay, 1).await.unwrap();
    assert_eq!(second.await.unwrap().peer, "192.0.2.2");
    // But not for ever.
    let mut three = device(&relay, "192.0.2.3");
    three.write_all(&hello(NAME, None)).await.unwrap();
    let (said, after) = heard(&mut three).await;
    assert_eq!(said, INTERNAL_ERROR);
    assert!(after < Duration::from_secs(5), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_nobody_is_passed_by() {
    let relay = relay("");
    // It has registered, and is gone without a word.
    let (mut mute, other) = duplex(1 << 16);
    let of = relay.clone();
    tokio::spawn(async move {
        let (line, place) = servers::register(&of, incoming(other, "10.0.0.1"))
            .await
            .unwrap();
        servers::keep(&of, line, place).await;
    });
    let text = format!("TIDEWATER-LINE 1 {NAME} 0000000000000009 the-token-of-the-test\n");
    mute.write_all(text.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    let good = line(&relay, 1).await.unwrap();
    let mut device = device(&relay, "192.0.2.7");
    device.write_all(&hello(NAME, None)).await.unwrap();
    let taken = timeout(Duration::from_secs(5), good).await;
    assert_eq!(taken.unwrap().unwrap().peer, "192.0.2.7");
}

#[tokio::test(start_paused = true)]
async fn a_farm_takes_turns_and_http_stays_where_it_is() {
    let relay = relay("");
    let mut lines = Vec::new();
    for instance in [1, 1, 1, 1, 2, 2, 2, 2] {
        lines.push((instance, line(&relay, instance).await.unwrap()));
    }
    let mut devices = Vec::new();
    for number in 1..=4 {
        let mut device = device(&relay, &format!("192.0.2.{number}"));
        device.write_all(&hello(NAME, None)).await.unwrap();
        devices.push(device);
        sleep(Duration::from_millis(10)).await;
    }
    let ended = |of: u64| {
        lines
            .iter()
            .filter(|(it, line)| *it == of && line.is_finished())
            .count()
    };
    assert_eq!((ended(1), ended(2)), (2, 2));

    // The two that are left of each: one device's requests go to one of them.
    for _ in 0..2 {
        let mut device = device(&relay, "192.0.2.77");
        device
            .write_all(&hello(NAME, Some("http/1.1")))
            .await
            .unwrap();
        devices.push(device);
        sleep(Duration::from_millis(10)).await;
    }
    let mut each = [ended(1), ended(2)];
    each.sort_unstable();
    assert_eq!(each, [2, 4]);
    // It waits for this one a while, and takes another then.
    let mut device = device(&relay, "192.0.2.77");
    device
        .write_all(&hello(NAME, Some("http/1.1")))
        .await
        .unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(ended(1) + ended(2), 7);
}

#[tokio::test(start_paused = true)]
async fn there_are_only_so_many_lines() {
    let relay = relay("lines = 2");
    let _lines = (
        line(&relay, 1).await.unwrap(),
        line(&relay, 2).await.unwrap(),
    );
    let error = line(&relay, 2).await.err().unwrap();
    assert!(
        matches!(error, TunnelError::Refused(RegistrationRefusal::Full)),
        "{error}"
    );
}
