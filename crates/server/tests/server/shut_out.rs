//! Users that are disabled and remotes that are revoked in the middle of a sync.

use tidewater_centre::Centre;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::Control;
use tidewater_protocol::{Code, RemoteId};

use crate::centre::Handle;
use crate::client::{Client, Remote, inserts, pending};
use crate::world::{World, eventually};

/// Has been let in, and has sent nothing else yet.
async fn welcomed(world: &World, remote: &Remote) -> Client {
    let mut client = world.connect().await;
    client.put_opening(pending(remote.token(), 1));
    client.flush().await;
    client.welcome().await;
    client
}

async fn revoke(world: &World, remote: &Remote) {
    let id = RemoteId::from_slice(&remote.id).unwrap();
    let handle = Handle(world.centre.clone());
    assert!(handle.revoke_remote(id).await.unwrap());
}

async fn disable(world: &World, user: &str) {
    let handle = Handle(world.centre.clone());
    assert!(handle.set_disabled(user, true).await.unwrap());
}

#[tokio::test]
async fn nothing_is_applied_for_a_user_who_was_disabled_since_the_hello() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    let mut ada_client = welcomed(&world, &ada).await;
    let mut bob_client = welcomed(&world, &bob).await;
    disable(&world, "ada").await;
    for client in [&mut ada_client, &mut bob_client] {
        client.put_upload(1, 1, &inserts(0..3, "x"), 3);
        client.put_request();
        client.flush().await;
    }
    let reply = ada_client.reply().await;
    assert_eq!(reply.code(), Code::UserDisabled);
    assert!(!reply.complete && reply.results.is_empty() && reply.rows.is_empty());
    assert!(bob_client.reply().await.complete);
    let changes = world.centre.state().changes.clone();
    let bob = RemoteId::from_slice(&bob.id).unwrap();
    assert!(changes.iter().all(|(change, _)| change.remote_id == bob));
    assert_eq!(changes.len(), 3);
}

#[tokio::test]
async fn nothing_is_sent_to_a_remote_that_was_revoked_or_removed_since_the_hello() {
    let world = World::start().await;
    world.centre.write(1, Some("secret"));
    for removed in [false, true] {
        let ada = world.remote("ada").await;
        let mut client = welcomed(&world, &ada).await;
        if removed {
            world.centre.state().remotes.clear();
        } else {
            revoke(&world, &ada).await;
        }
        world.centre.write(2, Some("more"));
        client.put_request().flush().await;
        let reply = client.reply().await;
        let expected = if removed {
            Code::CredentialInvalid
        } else {
            Code::RemoteRevoked
        };
        assert_eq!(reply.code(), expected);
        assert!(reply.rows.is_empty() && reply.checkpoint.is_empty());
    }
}

#[tokio::test]
async fn an_upload_that_waits_in_the_backlog_ends_with_its_user() {
    let world = World::with_limits("upload_workers = 1").await;
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    world.centre.apply_gate.send_replace(false);
    let mut ahead = world.connect().await;
    ahead.put_opening(pending(bob.token(), 1));
    ahead.put_upload(1, 1, &inserts(10..11, "bob"), 1);
    ahead.put_request().flush().await;
    eventually("an upload is at the worker", || {
        world
            .centre
            .applying
            .load(std::sync::atomic::Ordering::SeqCst)
            == 1
    })
    .await;
    let mut client = welcomed(&world, &ada).await;
    client.put_upload(1, 1, &inserts(0..1, "ada"), 1);
    client.put_request().flush().await;
    disable(&world, "ada").await;
    // Long before a worker is free: running syncs are watched.
    assert_eq!(client.reply().await.code(), Code::UserDisabled);
    world.centre.apply_gate.send_replace(true);
    assert!(ahead.reply().await.complete);
    let again = welcomed(&world, &bob).await;
    drop(again);
    eventually("the backlog is empty", || {
        world.centre.state().changes.len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_long_upload_and_a_long_download_end_before_they_are_complete() {
    let world = World::start().await;
    for id in 0..2_000 {
        world.centre.write(id, Some(&"x".repeat(1_000)));
    }
    let bob = world.remote("bob").await;
    let mut fresh = bob.clone();
    fresh.checkpoint.clear();
    let mut down = world.connect().await;
    down.put_opening(fresh.token()).put_request();
    down.flush().await;
    let eve = world.remote("eve").await;
    let mut up = welcomed(&world, &eve).await;
    up.put_upload_begin(1, 1, &inserts(0..100, "x"), 100);
    up.put_rows(&inserts(0..50, "x"));
    up.flush().await;
    disable(&world, "bob").await;
    disable(&world, "eve").await;
    // Neither says another word, and the server's patience is a minute.
    assert_eq!(up.reply().await.code(), Code::UserDisabled);
    let (mut bytes, mut failure) = (0, None);
    while let Some(frame) = down.frame().await {
        match frame {
            Frame::Rows { bytes: rows, .. } => bytes += rows.len(),
            Frame::Control {
                control: Some(Control::Failure(it)),
                ..
            } => failure = Some(it),
            _ => {}
        }
    }
    assert_eq!(failure.unwrap().code, Code::UserDisabled.number());
    assert!(bytes < 1_500_000, "no more than the first credit: {bytes}");
}
