//! Whom a connection comes from behind a balancer, and that nobody else can say so: failed
//! sign-ins are counted by it.

use std::net::Ipv4Addr;

use serde_json::json;
use tidewater_protocol::Code;
use tidewater_protocol::frame::PREFACE;
use tokio::io::AsyncWriteExt;

use crate::centre::MemoryCentre;
use crate::client::{Client, Remote, Reply};
use crate::http::request;
use crate::world::{PASSWORD, World};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A server with these proxies. All connections of the tests come from 127.0.0.1.
async fn behind(proxies: &str, limits: &str) -> World {
    let head = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nhttp = \"http://127.0.0.1:0\"\n\
         proxies = [{proxies}]"
    );
    let world = World::try_start(&MemoryCentre::new(), &head, limits).await;
    world.unwrap()
}

/// The header of a connection from this address.
fn of(address: &str) -> Vec<u8> {
    let source: Ipv4Addr = address.parse().unwrap();
    let rest = [127, 0, 0, 1, 0, 1, 0, 2];
    [SIGNATURE, b"\x21\x11\0\x0c", &source.octets(), &rest].concat()
}

fn local() -> Vec<u8> {
    [SIGNATURE, b"\x20\0\0\0"].concat()
}

async fn connect(world: &World, first: &[u8]) -> Client {
    let mut client = Client::connect_silent(&world.running.addresses[0]).await;
    client.put_bytes(first);
    client
}

async fn sign_in(world: &World, first: &[u8], user: &str, password: &str) -> Reply {
    let mut client = connect(world, first).await;
    client.put_bytes(&PREFACE);
    client.sync(Remote::new(user).password(password)).await
}

/// Guesses at users that there are not, until whoever comes this way has to wait.
async fn guess(world: &World, first: &[u8]) {
    for number in 0..10 {
        let reply = sign_in(world, first, &format!("user {number}"), "guessed").await;
        if reply.code() == Code::TooManyAttempts {
            return;
        }
    }
    panic!("never slowed down");
}

async fn is_let_in(world: &World, first: &[u8]) -> bool {
    let reply = sign_in(world, first, "ada", PASSWORD).await;
    assert!(reply.complete || reply.code() == Code::TooManyAttempts);
    reply.complete
}

#[tokio::test]
async fn who_guesses_behind_a_balancer_is_slowed_down_and_nobody_else() {
    let world = behind("\"127.0.0.0/8\"", "").await;
    let guesser = of("192.0.2.7");
    guess(&world, &guesser).await;
    assert!(!is_let_in(&world, &guesser).await);
    assert!(!is_let_in(&world, b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n").await);
    // Another client, the balancer itself, and one that it says nothing of.
    for other in [&of("192.0.2.8")[..], &local(), b"PROXY UNKNOWN\r\n", b""] {
        assert!(is_let_in(&world, other).await, "{other:?}");
    }
    guess(&world, &local()).await;
    assert!(!is_let_in(&world, b"").await);
    assert!(is_let_in(&world, &of("192.0.2.8")).await);
}

#[tokio::test]
async fn nobody_else_can_say_who_he_is() {
    for proxies in ["", "\"192.0.2.0/24\", \"::1\""] {
        let world = behind(proxies, "").await;
        for claim in [&of("192.0.2.7")[..], &local(), b"PROXY UNKNOWN\r\n"] {
            let mut client = connect(&world, claim).await;
            client.put_bytes(&PREFACE).flush().await;
            assert!(client.is_closed().await);
        }
        guess(&world, b"").await;
        assert!(!is_let_in(&world, b"").await);
    }
    // Nor behind a balancer: its header comes first, and a second one is none.
    let world = behind("\"127.0.0.1\"", "").await;
    let mut client = connect(&world, &of("192.0.2.7")).await;
    client.put_bytes(&of("192.0.2.8")).flush().await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn headers_that_are_none_harm_nobody() {
    let world = behind("\"127.0.0.1\"", "handshake_timeout = \"300ms\"").await;
    let mut waiting = Vec::new();
    for wrong in [
        [SIGNATURE, b"\x31\x11\0\x0c123456789012"].concat(),
        [SIGNATURE, b"\x21\x11\0\x01x"].concat(),
        [SIGNATURE, b"\x21\x21\xff\xff"].concat(),
        b"PROXY TCP4 somewhere\r\n".to_vec(),
        [&b"PROXY TCP6 "[..], &[b'1'; 5_000]].concat(),
    ] {
        // It may be closed before all was sent.
        let mut client = connect(&world, b"").await;
        let _ = client.stream.write_all(&wrong).await;
        assert!(client.is_closed().await, "{wrong:?}");
        waiting.push(connect(&world, &wrong[..wrong.len().min(14)]).await);
    }
    // Some say nothing more, and some leave.
    for (number, client) in waiting.iter_mut().enumerate() {
        client.flush().await;
        if number % 2 == 0 {
            client.stream.shutdown().await.unwrap();
        }
    }
    assert!(is_let_in(&world, &of("192.0.2.7")).await);
    for mut client in waiting {
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn whoever_is_turned_away_behind_a_balancer_is_told_when_to_come_back() {
    let world = behind("\"127.0.0.1\"", "connections = 1").await;
    let mut first = connect(&world, &of("192.0.2.7")).await;
    first.put_bytes(&PREFACE).ping().await;
    let mut second = connect(&world, &of("192.0.2.8")).await;
    second.put_bytes(&PREFACE).flush().await;
    assert!(second.reply().await.busy.is_some());
}

/// Guesses over HTTP with these headers; whether that is slowed down.
fn guesses(world: &World, headers: &[(&str, &str)]) -> bool {
    (0..10).any(|number| {
        let user = format!("user {number}");
        let body = json!({ "user": user, "password": "guessed" }).to_string();
        let (status, _, _) = request(world, "POST", "/v1/sign-in", headers, &body);
        assert!([401, 429].contains(&status), "{status}");
        status == 429
    })
}

fn enters(world: &World, headers: &[(&str, &str)]) -> bool {
    let body = json!({ "user": "ada", "password": PASSWORD }).to_string();
    let (status, _, _) = request(world, "POST", "/v1/sign-in", headers, &body);
    assert!([200, 429].contains(&status), "{status}");
    status == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_a_proxy_says_whom_a_request_comes_from_and_nobody_else() {
    let world = behind("\"127.0.0.1\", \"10.0.0.0/8\"", "").await;
    let alone = behind("\"10.0.0.0/8\"", "").await;
    tokio::task::block_in_place(|| {
        let x = "x-forwarded-for";
        assert!(guesses(&world, &[(x, "192.0.2.7, 10.0.0.3")]));
        // Whatever the client has written before.
        assert!(!enters(&world, &[(x, "192.0.2.8, 192.0.2.7")]));
        assert!(!enters(&world, &[("forwarded", "for=\"192.0.2.7:80\"")]));
        assert!(enters(&world, &[(x, "192.0.2.8")]));
        assert!(enters(&world, &[]));
        // To nobody else it helps to call himself another with each request.
        assert!(guesses(&alone, &[(x, "192.0.2.7")]));
        assert!(!enters(&alone, &[(x, "192.0.2.8")]));
    });
}
