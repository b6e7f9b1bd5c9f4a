//! Signing keys that are rotated and retired under running servers.

use tidewater_centre::Centre;
use tidewater_centre::records::SigningKey;
use tidewater_protocol::Code;

use crate::centre::Handle;
use crate::client::Remote;
use crate::world::{PASSWORD, World};

/// The number of the key that signed something.
fn key_of(signed: &[u8]) -> u32 {
    u32::from_be_bytes(signed[1..5].try_into().unwrap())
}

async fn rotate(world: &World, id: u32) {
    let key = SigningKey {
        id,
        secret: vec![id as u8; 32],
        created_ms: world.now_ms(),
    };
    let handle = Handle(world.centre.clone());
    assert!(handle.add_signing_key(&key).await.unwrap());
}

/// Signs in again and again until the server signs with this key.
async fn signed_by(world: &World, id: u32) -> Remote {
    for _ in 0..1_000 {
        let remote = world.remote("ada").await;
        if key_of(&remote.token) == id {
            return remote;
        }
    }
    panic!("key {id} never signs");
}

#[tokio::test]
async fn a_rotated_key_signs_at_every_server_and_the_old_one_verifies_until_it_is_retired() {
    let one = World::start().await;
    let two = World::beside(&one.centre, "").await;
    one.centre.write(1, Some("one"));
    let old = one.remote("ada").await;
    assert_eq!((key_of(&old.token), key_of(&old.checkpoint)), (1, 1));

    rotate(&one, 2).await;
    let young = two.remote("bob").await;
    assert_eq!(key_of(&young.token), 1, "not every server knows it yet");
    for world in [&one, &two] {
        world.clock.advance(11_000);
    }
    for (signs, verifies) in [(&one, &two), (&two, &one)] {
        let new = signed_by(signs, 2).await;
        let reply = verifies.connect().await.sync(new.token()).await;
        assert!(reply.complete && !reply.replaced, "{reply:?}");
        // What the old key signed is as good as ever, at both.
        let reply = signs.connect().await.sync(old.token()).await;
        assert!(reply.complete && !reply.replaced, "{reply:?}");
    }

    let handle = Handle(one.centre.clone());
    assert!(handle.retire_signing_key(1).await.unwrap());
    for world in [&one, &two] {
        let mut answer = world.connect().await.sync(old.token()).await;
        while answer.complete {
            answer = world.connect().await.sync(old.token()).await;
        }
        assert_eq!(answer.code(), Code::TokenExpired);
    }
    // The credential is not signed; the checkpoint is, and counts for nothing now.
    let reply = two.connect().await.sync(old.credential()).await;
    assert!(reply.complete && reply.answer().compare);
    let mut renewed = old.clone();
    renewed.learn(&reply);
    renewed.checkpoint.clear();
    let reply = two.connect().await.sync(renewed.token()).await;
    renewed.learn(&reply);
    assert_eq!(
        (key_of(&renewed.token), key_of(&renewed.checkpoint)),
        (2, 2)
    );
    let reply = one.connect().await.sync(old.password(PASSWORD)).await;
    assert!(reply.complete);
}
