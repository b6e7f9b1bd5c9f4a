//! Connections that are more than one sync: idle ones, several syncs, one channel beside another.

use tidewater_centre::Centre;
use tidewater_protocol::frame::{Frame, put_rows};
use tidewater_protocol::message::{Control, FailureNotice};
use tidewater_protocol::{Code, RemoteId};

use crate::centre::Handle;
use crate::client::{Client, Remote, inserts, pending};
use crate::world::{World, eventually};

/// What the server says at last, and whether on the connection's own channel.
async fn last_word(client: &mut Client) -> (Option<FailureNotice>, bool) {
    let mut last = (None, false);
    while let Some(frame) = client.frame().await {
        if let Frame::Control {
            channel,
            control: Some(Control::Failure(failure)),
        } = frame
        {
            last = (Some(failure), channel == 0);
        }
    }
    last
}

#[tokio::test]
async fn one_sign_in_serves_several_syncs() {
    let world = World::start().await;
    let mut ada = world.remote("ada").await;
    let mut client = world.connect().await;
    let signed_in = client.sign_in(ada.token()).await;
    assert_eq!(signed_in.remote_id, ada.id);
    let rows = inserts(0..2, "x");
    let reply = client.upload(&ada, ada.token(), 1, &rows, 2).await;
    assert!(reply.complete && reply.signed_in.is_none());
    assert_eq!(reply.results[0].inserts, 2);
    ada.learn(&reply);
    (ada.sequence, ada.upload_id) = (1, vec![1; 16]);
    client.ack().await;
    world.centre.write(9, Some("nine"));
    let reply = client.sync(ada.token()).await;
    assert!(reply.complete && reply.signed_in.is_none());
    assert_eq!(reply.rows, [(9, Some("nine".into()))]);
    eventually("each sync is recorded", || {
        world.centre.state().history.len() == 3
    })
    .await;
    // Each with its own bytes, also those that came with its Hello.
    let state = world.centre.state();
    assert!(
        state
            .history
            .iter()
            .all(|it| it.bytes.iter().all(|&it| it > 0)),
        "{:?}",
        state.history
    );
}

#[tokio::test]
async fn who_is_connected_is_known_as_often_as_it_is() {
    let world = World::start().await;
    let (ada, bob) = (world.remote("ada").await, world.remote("bob").await);
    eventually("nobody is there", || world.running.connected().is_empty()).await;
    let mut clients = Vec::new();
    for remote in [&ada, &ada, &bob] {
        let mut client = world.connect().await;
        client.sign_in(remote.token()).await;
        clients.push(client);
    }
    let entry = |remote: &Remote| {
        let id = RemoteId::from_slice(&remote.id).unwrap();
        (id, remote.user.clone())
    };
    let mut expected = vec![entry(&ada), entry(&ada), entry(&bob)];
    expected.sort();
    assert_eq!(world.running.connected(), expected);
    // Both connections of one remote serve it.
    for client in &mut clients[..2] {
        assert!(client.sync(ada.token()).await.complete);
    }
    clients.truncate(1);
    eventually("the others have left", || {
        world.running.connected() == [entry(&ada)]
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_is_pinged_and_closed_after_a_while() {
    let world = World::with_limits("keepalive_interval = \"20ms\"\nidle_timeout = \"3s\"").await;
    let ada = world.remote("ada").await;
    let mut client = world.connect().await;
    client.sign_in(ada.token()).await;
    let pinged = client.frame().await;
    let is_ping = |frame: &Frame| {
        matches!(
            frame,
            Frame::Control {
                channel: 0,
                control: Some(Control::Ping(_))
            }
        )
    };
    assert!(pinged.as_ref().is_some_and(is_ping), "{pinged:?}");
    assert_eq!(last_word(&mut client).await, (None, false));
}

#[tokio::test]
async fn who_is_shut_out_while_idle_is_told_and_loses_the_connection() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let mut client = world.connect().await;
    client.sign_in(ada.token()).await;
    let handle = Handle(world.centre.clone());
    handle.set_disabled("ada", true).await.unwrap();
    let (failure, own) = last_word(&mut client).await;
    assert_eq!(failure.unwrap().code, Code::UserDisabled.number());
    assert!(own, "no sync was there to be told");
    // And before anybody has looked, the next Hello finds out.
    handle.set_disabled("ada", false).await.unwrap();
    let mut client = world.connect().await;
    client.sign_in(ada.token()).await;
    handle.set_disabled("ada", true).await.unwrap();
    assert_eq!(client.sync(ada.token()).await.code(), Code::UserDisabled);
}

#[tokio::test]
async fn pings_are_answered_while_a_sync_is_stuck_either_way() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let rows = inserts(0..900, &"x".repeat(1_000));
    let mut client = world.connect().await;
    client.sign_in(ada.token()).await;
    // Nobody takes what it sends.
    world.centre.session_gate.send_replace(false);
    client.put_opening(pending(ada.token(), 1));
    client.put_upload(1, 1, &rows, 900);
    client.put_request().flush().await;
    client.ping().await;
    world.centre.session_gate.send_replace(true);
    assert_eq!(client.reply().await.results[0].inserts, 900);
    // It takes nothing of what it is sent.
    for id in 0..2_000 {
        world.centre.write(id, Some(&"y".repeat(1_000)));
    }
    let mut fresh = world.remote("bob").await;
    fresh.checkpoint.clear();
    let mut client = world.connect().await;
    client.put_opening(fresh.token()).put_request();
    client.flush().await;
    let mut came = 0;
    while came < 1 << 20 {
        if let Some(Frame::Rows { bytes, .. }) = client.frame().await {
            came += bytes.len();
        }
    }
    client.ping().await;
}

#[tokio::test]
async fn a_stranger_who_says_more_than_is_taken_hears_all_the_same_why_it_is_not_let_in() {
    let world = World::start().await;
    let mut client = world.connect().await;
    client.put_opening(Remote::new("ada").password("wrong"));
    client.put_upload_begin(1, 1, &[], 1);
    for _ in 0..30 {
        client.put_rows(&[0; 30_000]);
    }
    client.flush().await;
    let (failure, own) = last_word(&mut client).await;
    assert_eq!(failure.unwrap().code, Code::WrongPassword.number());
    assert!(own);
}

#[tokio::test]
async fn other_channels_and_a_second_sign_in_end_the_connection() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let mut rows = bytes::BytesMut::new();
    put_rows(&mut rows, 4, b"x");
    let mut client = world.connect().await;
    client.sign_in(ada.token()).await;
    client.put_bytes(&rows).flush().await;
    let (failure, own) = last_word(&mut client).await;
    assert!(own && failure.unwrap().message.contains("channel 4"));
    let mut again = bytes::BytesMut::new();
    let sign_in = Control::SignIn(Box::default());
    tidewater_protocol::frame::put_control(&mut again, 0, sign_in).unwrap();
    for in_a_sync in [false, true] {
        let mut client = world.connect().await;
        client.sign_in(ada.token()).await;
        if in_a_sync {
            client.put_opening(pending(ada.token(), 1));
        }
        client.put_bytes(&again).flush().await;
        let (failure, own) = last_word(&mut client).await;
        assert_eq!(failure.unwrap().code, Code::UnexpectedMessage.number());
        assert_eq!(own, !in_a_sync);
    }
}
