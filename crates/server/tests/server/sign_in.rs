//! Passwords, credentials, tokens, and what they are worth when something changed.

use std::collections::HashSet;
use std::sync::Arc;

use tidewater_centre::Centre;
use tidewater_centre::records::SigningKey;
use tidewater_protocol::message::UploadState;
use tidewater_protocol::{Code, RemoteId};

use crate::centre::{Handle, MemoryCentre};
use crate::client::{Remote, inserts};
use crate::world::{HOUR_MS, PASSWORD, World, eventually};

#[tokio::test]
async fn the_first_sign_in_gives_id_credential_token_schema_and_rows() {
    let world = World::start().await;
    world.centre.write(1, Some("one"));
    let mut client = world.connect().await;
    let reply = client.sync(Remote::new("ada").password(PASSWORD)).await;
    assert!(reply.complete);
    assert_eq!(reply.state(), UploadState::InSequence);
    assert!(reply.replaced);
    assert_eq!(reply.rows, [(1, Some("one".into()))]);
    let signed_in = reply.signed_in();
    assert_eq!(signed_in.remote_id.len(), 16);
    assert_eq!(signed_in.credential.len(), 32);
    assert!(!signed_in.token.is_empty() && !reply.checkpoint.is_empty());
    let schema = crate::centre::schema();
    assert_eq!(reply.answer().schema, schema.encode());
    let state = world.centre.state();
    let remote = &state.remotes[&RemoteId::from_slice(&signed_in.remote_id).unwrap()];
    assert_ne!(
        remote.credential_hash, signed_in.credential,
        "stored hashed"
    );
}

#[tokio::test]
async fn a_token_is_good_for_an_hour_then_the_credential_gives_another() {
    let world = World::start().await;
    let mut remote = world.remote("ada").await;
    let mut client = world.connect().await;
    let reply = client.sync(remote.token()).await;
    let signed_in = reply.signed_in();
    assert!(reply.complete && signed_in.token.is_empty() && signed_in.credential.is_empty());
    assert!(reply.answer().schema.is_empty(), "it has the schema");
    world.clock.advance(HOUR_MS + 1);
    let reply = world.connect().await.sync(remote.token()).await;
    assert_eq!(reply.code(), Code::TokenExpired);
    let reply = world.connect().await.sync(remote.credential()).await;
    assert!(reply.complete);
    remote.learn(&reply);
    assert!(world.connect().await.sync(remote.token()).await.complete);
}

#[tokio::test]
async fn a_credential_is_rotated_after_a_day_and_the_old_one_is_good_until_the_new_is_used() {
    let world = World::start().await;
    let old = world.remote("ada").await;
    world.clock.advance(25 * HOUR_MS);
    let lost = world.connect().await.sync(old.credential()).await;
    let lost = lost.signed_in().credential.clone();
    assert_eq!(lost.len(), 32);
    // The SignedIn that brought it never arrived: the old one still works, and
    // brings the same. So it does if there are two syncs at once.
    let reply = world.connect().await.sync(old.credential()).await;
    assert!(reply.complete);
    let mut new = old.clone();
    new.learn(&reply);
    assert!(new.credential != old.credential && new.credential == lost);
    let reply = world.connect().await.sync(new.credential()).await;
    assert!(reply.complete && reply.signed_in().credential.is_empty());
    let id = RemoteId::from_slice(&new.id).unwrap();
    eventually("the old credential is void", || {
        world.centre.state().remotes[&id]
            .previous_credential_hash
            .is_empty()
    })
    .await;
    let reply = world.connect().await.sync(old.credential()).await;
    assert_eq!(reply.code(), Code::CredentialInvalid);
}

/// A server that is there for the remote of an image gives what is not its user's.
#[tokio::test]
async fn a_server_for_one_remote_lets_nobody_else_in() {
    let centre = MemoryCentre::new();
    let open = World::beside(&centre, "").await;
    let (ada, bob) = (open.remote("ada").await, open.remote("bob").await);
    let mut config = World::config("[server]\nlisten = [\"tcp://127.0.0.1:0\"]\n", "").unwrap();
    config.only = Some("ada".into());
    let world = World::run(&centre, config).await.unwrap();
    for claim in [
        bob.credential(),
        bob.token(),
        Remote::new("bob").password(PASSWORD),
        Remote::new("ada").password(PASSWORD),
    ] {
        let reply = world.connect().await.sync(claim).await;
        assert_eq!(reply.code(), Code::NotAllowed);
        assert!(reply.signed_in.is_none() && reply.rows.is_empty());
    }
    assert!(world.connect().await.sync(ada.credential()).await.complete);
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user_look_the_same() {
    let world = World::start().await;
    let mut failures = Vec::new();
    for (user, password) in [
        ("ada", "wrong"),
        ("nobody", "wrong"),
        ("x' OR '1'='1", PASSWORD),
    ] {
        let mut client = world.connect().await;
        let reply = client.sync(Remote::new(user).password(password)).await;
        assert_eq!(reply.code(), Code::WrongPassword);
        assert!(reply.signed_in.is_none() && reply.welcome.is_none());
        failures.push(reply.failure.unwrap());
        assert!(client.is_closed().await);
    }
    assert!(failures.iter().all(|failure| *failure == failures[0]));
    world.centre.state().users.get_mut("ada").unwrap().disabled = true;
    let mut client = world.connect().await;
    let reply = client.sync(Remote::new("ada").password("wrong")).await;
    assert_eq!(reply.failure.unwrap(), failures[0], "disabled is no hint");
}

#[tokio::test]
async fn repeated_failures_are_slowed_down_whether_the_user_exists_or_not() {
    let world = World::start().await;
    for user in ["ada", "nobody"] {
        let attempt = async || {
            let mut client = world.connect().await;
            client.sync(Remote::new(user).password("wrong")).await
        };
        let mut failed = 0;
        let reply = loop {
            let reply = attempt().await;
            if reply.code() != Code::WrongPassword {
                break reply;
            }
            failed += 1;
            assert!(failed < 10, "never slowed down");
        };
        assert_eq!(reply.code(), Code::TooManyAttempts);
        let failure = reply.failure.unwrap();
        assert_eq!(failure.retry_after_ms, 500);
        assert_eq!(failure.hint, "wait 1 second, then try again");
        // The right password has to wait as well.
        let mut client = world.connect().await;
        let reply = client.sync(Remote::new(user).password(PASSWORD)).await;
        assert_eq!(reply.code(), Code::TooManyAttempts);
        world.clock.advance(HOUR_MS);
    }
    world.remote("ada").await;
}

#[tokio::test]
async fn a_fleet_may_sign_in_for_the_first_time_from_one_address() {
    let world = Arc::new(World::start().await);
    let fleet: Vec<_> = (0..20)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.remote("ada").await })
        })
        .collect();
    let mut ids = HashSet::new();
    for remote in fleet {
        ids.insert(remote.await.unwrap().id);
    }
    assert_eq!(ids.len(), 20);
}

#[tokio::test]
async fn a_disabled_user_and_a_revoked_remote_stay_out_even_with_a_valid_token() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    let handle = Handle(world.centre.clone());
    handle.set_disabled("ada", true).await.unwrap();
    let id = RemoteId::from_slice(&bob.id).unwrap();
    handle.revoke_remote(id).await.unwrap();
    for (hello, code) in [
        (ada.token(), Code::UserDisabled),
        (ada.credential(), Code::UserDisabled),
        (ada.password(PASSWORD), Code::UserDisabled),
        (bob.token(), Code::RemoteRevoked),
        (bob.credential(), Code::RemoteRevoked),
        (bob.password(PASSWORD), Code::RemoteRevoked),
    ] {
        assert_eq!(world.connect().await.sync(hello).await.code(), code);
    }
}

#[tokio::test]
async fn proofs_of_one_remote_or_user_are_worth_nothing_for_another() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    let mut as_bob = bob.clone();
    as_bob.token.clone_from(&ada.token);
    as_bob.credential.clone_from(&ada.credential);
    let mut other_user = ada.clone();
    other_user.user = "bob".into();
    let mut garbage = ada.clone();
    garbage.token[7] ^= 1;
    garbage.credential.clear();
    for (hello, code) in [
        (as_bob.token(), Code::TokenExpired),
        (as_bob.credential(), Code::CredentialInvalid),
        (other_user.token(), Code::TokenExpired),
        (other_user.credential(), Code::CredentialInvalid),
        (other_user.password(PASSWORD), Code::CredentialInvalid),
        (garbage.token(), Code::TokenExpired),
        (garbage.credential(), Code::CredentialInvalid),
    ] {
        assert_eq!(world.connect().await.sync(hello).await.code(), code);
    }
}

#[tokio::test]
async fn a_lost_credential_is_replaced_by_the_password_and_the_remote_stays_itself() {
    let world = World::start().await;
    let mut remote = world.remote("ada").await;
    let rows = inserts(0..1, "x");
    let mut client = world.connect().await;
    let reply = client.upload(&remote, remote.token(), 1, &rows, 1).await;
    assert!(reply.complete);
    remote.sequence = 1;
    remote.upload_id = vec![1; 16];
    remote.credential.clear();
    let reply = world.connect().await.sync(remote.password(PASSWORD)).await;
    assert_eq!(reply.state(), UploadState::InSequence);
    assert_eq!(reply.remote_id(), remote.id);
    remote.learn(&reply);
    assert!(
        world
            .connect()
            .await
            .sync(remote.credential())
            .await
            .complete
    );
}

#[tokio::test]
async fn a_remote_that_was_removed_gets_a_new_identity_for_its_password() {
    let world = World::start().await;
    let remote = world.remote("ada").await;
    let id = RemoteId::from_slice(&remote.id).unwrap();
    world.centre.state().remotes.clear();
    world.centre.state().removed.insert(id);
    let reply = world.connect().await.sync(remote.credential()).await;
    assert_eq!(reply.code(), Code::CredentialInvalid);
    let reply = world.connect().await.sync(remote.password(PASSWORD)).await;
    assert_eq!(reply.state(), UploadState::NewIdentity);
    assert!(reply.complete && reply.rows.is_empty());
    assert!(reply.remote_id() != remote.id && reply.signed_in().credential.len() == 32);
}

#[tokio::test]
async fn what_another_server_signed_with_a_newer_key_is_verified() {
    let world = World::start().await;
    world.centre.state().keys.insert(
        0,
        SigningKey {
            id: 2,
            secret: vec![9; 32],
            created_ms: 5,
        },
    );
    let other = World::beside(&world.centre, "").await;
    let remote = other.remote("ada").await;
    world.clock.advance(10_000);
    world.centre.write(1, Some("one"));
    let reply = world.connect().await.sync(remote.token()).await;
    assert!(reply.complete, "{reply:?}");
    assert!(!reply.replaced, "the checkpoint is verified, too");
    assert_eq!(reply.rows.len(), 1);
}

#[tokio::test]
async fn a_first_sync_of_an_unknown_publication_registers_no_remote() {
    let world = World::start().await;
    let mut hello = Remote::new("ada").password(PASSWORD);
    hello.subscriptions[0].publication = "nots".into();
    let reply = world.connect().await.sync(hello).await;
    assert_eq!(reply.code(), Code::UnknownPublication);
    assert!(world.centre.state().remotes.is_empty());
}

/// A remote whose Hello was overtaken by its own later syncs looks like a restored one.
async fn given_a_new_identity(world: &World) -> (Remote, Remote) {
    let remote = world.remote("ada").await;
    let rows = inserts(0..1, "x");
    let mut client = world.connect().await;
    let reply = client.upload(&remote, remote.token(), 1, &rows, 1).await;
    assert!(reply.complete);
    let stale = world.connect().await.sync(remote.token()).await;
    assert_eq!(stale.state(), UploadState::NewIdentity);
    let mut renewed = remote.clone();
    renewed.learn(&stale);
    assert!(renewed.id != remote.id && renewed.credential != remote.credential);
    (remote, renewed)
}

#[tokio::test]
async fn a_stale_hello_registers_no_orphan_and_a_restored_remote_registers_once() {
    let world = World::start().await;
    let (_, mut renewed) = given_a_new_identity(&world).await;
    assert_eq!(world.centre.state().remotes.len(), 1);
    for _ in 0..2 {
        let reply = world.connect().await.sync(renewed.credential()).await;
        assert!(reply.complete, "{reply:?}");
        assert_eq!(world.centre.state().remotes.len(), 2);
    }
    let reply = world.connect().await.sync(renewed.credential()).await;
    renewed.learn(&reply);
    for hello in [renewed.token(), renewed.credential()] {
        assert!(world.connect().await.sync(hello).await.complete);
    }
}

#[tokio::test]
async fn a_new_identity_is_worth_nothing_to_a_remote_that_is_shut_out_meanwhile() {
    let world = World::start().await;
    let (remote, renewed) = given_a_new_identity(&world).await;
    let handle = Handle(world.centre.clone());
    handle.set_disabled("ada", true).await.unwrap();
    let reply = world.connect().await.sync(renewed.credential()).await;
    assert_eq!(reply.code(), Code::UserDisabled);
    handle.set_disabled("ada", false).await.unwrap();
    let id = RemoteId::from_slice(&remote.id).unwrap();
    handle.revoke_remote(id).await.unwrap();
    let reply = world.connect().await.sync(renewed.credential()).await;
    assert_eq!(reply.code(), Code::RemoteRevoked);
    world.centre.state().remotes.clear();
    let reply = world.connect().await.sync(renewed.credential()).await;
    assert_eq!(reply.code(), Code::CredentialInvalid);
    assert!(world.centre.state().remotes.is_empty());
}
