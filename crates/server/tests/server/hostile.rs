//! Bytes that no remote would send: each gets its answer or a closed door, and the
//! others do not notice.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use tidewater_protocol::Code;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, PREFACE, put_control};
use tidewater_protocol::message::{
    Ack, Control, DownloadEnd, Hello, PROTOCOL_VERSION, SyncEnd, TableBegin, Welcome,
};

use crate::client::{Client, Opening, Remote, inserts, pending};
use crate::world::{PASSWORD, World};

#[tokio::test]
async fn another_major_version_is_told_so() {
    let world = World::start().await;
    let mut client = Client::connect_silent(&world.running.addresses[0]).await;
    client.put_bytes(b"TIDE\x09\x00\0\0").flush().await;
    let reply = client.reply().await;
    assert_eq!(reply.code(), Code::ProtocolVersion);
    assert!(reply.failure.unwrap().hint.contains("update"));
    let mut client = world.connect().await;
    let mut hello = Remote::new("ada").password(PASSWORD);
    hello.sign_in.protocol_version = 9 << 16;
    let reply = client.sync(hello).await;
    assert_eq!(reply.code(), Code::ProtocolVersion);
    // A later minor version is welcome, and hears which one is spoken.
    let mut client = world.connect().await;
    let mut hello = Remote::new("ada").password(PASSWORD);
    hello.sign_in.protocol_version = PROTOCOL_VERSION + 7;
    let reply = client.sync(hello).await;
    assert_eq!(reply.signed_in().protocol_version, PROTOCOL_VERSION);
}

#[tokio::test]
async fn other_protocols_are_closed_and_http_and_tls_are_told() {
    let world = World::start().await;
    let address = &world.running.addresses[0];
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ] {
        let mut client = Client::connect_silent(address).await;
        client.put_bytes(bytes).flush().await;
        client.stream.shutdown().await.unwrap();
        let mut told = String::new();
        client.stream.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
        assert!(told.contains("\r\ntidewater-scheme: tcp\r\n"), "{told}");
    }
    for bytes in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"T"] {
        let mut client = Client::connect_silent(address).await;
        client.put_bytes(bytes).flush().await;
        client.stream.shutdown().await.unwrap();
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn a_ping_is_answered_without_signing_in() {
    let world = World::start().await;
    let mut client = world.connect().await;
    client.ping().await;
}

#[tokio::test]
async fn broken_frames_get_a_code_and_do_not_disturb_others() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    // Somebody in the middle of an upload, to go on after each attack.
    let mut victim = world.connect().await;
    let rows = inserts(0..100, "victim");
    victim.put_opening(pending(ada.token(), 1));
    victim.put_upload_begin(1, 1, &rows, 100);
    victim.flush().await;
    let mut sent = 0;
    let attacks: [(&[u8], Code); 6] = [
        (b"\xff\xff\xff\xff\x02\x01", Code::LimitExceeded),
        (b"\x00\x00\x00\x00\x07\x01", Code::MalformedFrame),
        (b"\x02\x00\x00\x00\x01\x01\xff\xff", Code::MalformedMessage),
        (b"\x01\x00\x00\x00\x02\x01x", Code::UnexpectedMessage),
        (b"\x01\x00\x00\x00\x02\x05x", Code::UnexpectedMessage),
        (b"\x02\x00\x00\x00\x01\x05\x6a\x00", Code::UnexpectedMessage),
    ];
    for (bytes, code) in attacks {
        let mut attacker = world.connect().await;
        attacker.put_bytes(bytes).flush().await;
        let reply = attacker.reply().await;
        if code == Code::UnexpectedMessage && reply.failure.is_none() {
            panic!("{bytes:?} was taken");
        }
        assert_eq!(reply.code(), code, "{bytes:?}");
        victim.put_rows(&rows[sent..sent + 7]).flush().await;
        sent += 7;
    }
    // A header and half a payload, then nothing more.
    let mut attacker = world.connect().await;
    attacker
        .put_bytes(b"\x10\x00\x00\x00\x01\x01abc")
        .flush()
        .await;
    drop(attacker);
    victim.put_rows(&rows[sent..]);
    victim.put_upload_end(&rows, 100);
    victim.put_request();
    victim.flush().await;
    let reply = victim.reply().await;
    assert_eq!(reply.results[0].inserts, 100);
}

#[tokio::test]
async fn messages_out_of_turn_end_the_connection() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let table = || Control::TableBegin(TableBegin::for_table(&crate::centre::schema().tables[0]));
    for control in [
        Control::Ack(Ack {}),
        Control::Welcome(Welcome::default()),
        Control::SyncEnd(SyncEnd {}),
        Control::DownloadEnd(DownloadEnd::default()),
        table(),
    ] {
        // Before the Hello, after it, and after the request.
        let mut client = world.connect().await;
        client.put(control.clone()).flush().await;
        assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
        let mut client = world.connect().await;
        client
            .put_opening(ada.token())
            .put(control.clone())
            .flush()
            .await;
        assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
    }
    world.centre.download_gate.send_replace(false);
    let mut client = world.connect().await;
    client.put_opening(ada.token()).put_request();
    client.put_opening(ada.token()).flush().await;
    assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
    world.centre.download_gate.send_replace(true);
    let mut client = world.connect().await;
    let reply = client.sync(Opening::default()).await;
    assert_eq!(reply.code(), Code::ProtocolVersion);
}

#[tokio::test]
async fn uploads_that_lie_are_refused_whole() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let rows = inserts(0..5, "x");
    let mut damaged = rows.clone();
    damaged[9] ^= 1;
    for (sent, told, count, code) in [
        (&rows, &rows, 4, Code::ChecksumMismatch),
        (&damaged, &rows, 5, Code::ChecksumMismatch),
        (&rows[..7].to_vec(), &rows, 5, Code::MalformedMessage),
    ] {
        let mut client = world.connect().await;
        client.put_opening(pending(ada.token(), 1));
        client.put_upload_begin(1, 1, told, 5);
        client.put_rows(sent);
        client.put_upload_end(told, count);
        client.put_request();
        client.flush().await;
        assert_eq!(client.reply().await.code(), code);
    }
    assert!(world.centre.state().lists.is_empty());
}

#[tokio::test]
async fn a_flood_of_small_messages_is_taken_a_few_at_a_time() {
    let world = World::start().await;
    let mut client = world.connect().await;
    let ping = || Control::Ping(Default::default());
    let mut flood = bytes::BytesMut::new();
    for _ in 0..20_000 {
        put_control(&mut flood, CONNECTION_CHANNEL, ping()).unwrap();
    }
    client.put_bytes(&flood).flush().await;
    // The answers that fit the buffers come; the server lives.
    assert!(matches!(client.control().await, Some(Control::Pong(_))));
    world.remote("ada").await;
}

#[tokio::test]
async fn strangers_cannot_fill_the_memory() {
    let world = World::with_limits("memory = \"32KiB\"").await;
    let mut header = (1u32 << 20).to_le_bytes().to_vec();
    header.extend_from_slice(&[2, 1]);
    header.resize(200_000, 0);
    let mut client = world.connect().await;
    client.put_bytes(&header).flush_if_possible().await;
    let failure = client.reply().await.failure.expect("it is too much");
    assert_eq!(failure.code, Code::LimitExceeded.number());
    world.remote("ada").await;
}

#[test]
fn random_bytes_never_harm() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(World::start());
    let ada = runtime.block_on(world.remote("ada"));
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = (
        0usize..4,
        proptest::collection::vec(any::<u8>(), 0..400),
        any::<prop::sample::Index>(),
        any::<u8>(),
    );
    let test = |(kind, noise, at, with): (usize, Vec<u8>, prop::sample::Index, u8)| {
        runtime.block_on(async {
            let mut client = Client::connect_silent(&world.running.addresses[0]).await;
            let mut bytes = bytes::BytesMut::new();
            if kind > 0 {
                bytes.extend_from_slice(&PREFACE);
            }
            if kind > 1 {
                let opening = pending(ada.token(), 1);
                put_control(&mut bytes, 0, Control::SignIn(Box::new(opening.sign_in))).unwrap();
                let hello = Hello {
                    subscriptions: opening.subscriptions,
                };
                put_control(&mut bytes, 1, Control::Hello(hello)).unwrap();
            }
            bytes.extend_from_slice(&noise);
            if kind == 3 && !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            client.put_bytes(&bytes);
            client.flush_if_possible().await;
            let _ = client.stream.shutdown().await;
            client.hear_to_end().await;
        });
        Ok(())
    };
    runner.run(&strategy, test).unwrap();
    let reply = runtime.block_on(async { world.connect().await.sync(ada.token()).await });
    assert!(reply.complete);
}

/// A frame is taken only when all of it is there, and what is not there yet needs memory.
#[tokio::test]
async fn strangers_that_announce_large_frames_keep_nobody_out() {
    let world = World::with_limits("memory = \"4MiB\"").await;
    let ada = world.remote("ada").await;
    let mut header = ((1_u32 << 20) - 1).to_le_bytes().to_vec();
    header.extend_from_slice(&[1, 0]);
    header.resize(1_000_000, 0);
    let mut strangers = Vec::new();
    for _ in 0..5 {
        let mut client = world.connect().await;
        client.put_bytes(&header).flush_if_possible().await;
        strangers.push(client);
    }
    let rows = inserts(0..400, &"x".repeat(400));
    let mut client = world.connect().await;
    client.put_opening(pending(ada.token(), 1));
    client.put_upload(1, 1, &rows, 400);
    client.put_request().flush_if_possible().await;
    let reply = client.reply().await;
    assert!(reply.complete, "{:?} {:?}", reply.busy, reply.failure);
}
