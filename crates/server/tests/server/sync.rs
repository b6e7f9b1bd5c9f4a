//! Uploads, results, downloads, and what happens when they are repeated, cut off or
//! collide.

use std::sync::atomic::Ordering;

use tidewater_protocol::Code;
use tidewater_protocol::message::{Control, DownloadRequest, SyncCancel, UploadEnd, UploadState};

use crate::client::{Client, Remote, inserts, pending};
use crate::world::{World, eventually};

#[tokio::test]
async fn an_upload_reaches_the_others_and_not_its_sender() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    let rows = inserts(0..10, "from ada");
    let mut client = world.connect().await;
    let reply = client.upload(&ada, ada.token(), 1, &rows, 10).await;
    assert!(reply.complete);
    assert_eq!(reply.results[0].inserts, 10);
    assert!(reply.rows.is_empty());
    let reply = world.connect().await.sync(bob.token()).await;
    assert_eq!(reply.rows.len(), 10);
    assert!(!reply.replaced);
    eventually("the history has the syncs", || {
        let state = world.centre.state();
        let uploads = state.history.iter().filter(|sync| sync.uploaded[0] == 10);
        let downloads = state.history.iter().filter(|sync| sync.downloaded[0] == 10);
        uploads.count() == 1 && downloads.count() == 1
    })
    .await;
    let state = world.centre.state();
    let sync = state.history.iter().find(|s| s.uploaded[0] == 10).unwrap();
    assert_eq!((sync.user.as_str(), sync.error.as_str()), ("ada", ""));
    assert!(sync.bytes[0] > rows.len() as u64 && sync.bytes[1] > 0);
}

#[tokio::test]
async fn a_repeated_upload_is_answered_with_the_stored_result_and_applied_once() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let rows = inserts(0..3, "x");
    let mut client = world.connect().await;
    let first = client.upload(&ada, ada.token(), 1, &rows, 3).await;
    assert_eq!(first.state(), UploadState::InSequence);
    // The acknowledgement was lost: the same again, whole.
    let mut client = world.connect().await;
    let second = client.upload(&ada, ada.token(), 1, &rows, 3).await;
    assert_eq!(second.state(), UploadState::AlreadyApplied);
    assert_eq!(second.results, first.results);
    // The same again, but the remote listens before it sends.
    let mut client = world.connect().await;
    client.put_opening(pending(ada.token(), 1));
    client.put_upload_begin(1, 1, &rows, 3);
    client.put(Control::UploadEnd(UploadEnd {
        abandoned: true,
        ..UploadEnd::default()
    }));
    client.put(Control::DownloadRequest(DownloadRequest {
        upload_only: true,
    }));
    client.flush().await;
    let third = client.reply().await;
    assert!(third.complete && third.checkpoint.is_empty());
    assert_eq!(third.results, first.results);
    assert_eq!(world.centre.state().lists, [1]);
}

#[tokio::test]
async fn a_restored_remote_gets_a_new_identity_and_may_go_on_at_once() {
    let world = World::start().await;
    let before = world.remote("ada").await;
    let rows = inserts(0..1, "x");
    let mut client = world.connect().await;
    client.upload(&before, before.token(), 1, &rows, 1).await;
    // The copy of before has another upload pending under the same number.
    let mut client = world.connect().await;
    let mut copy = before.clone();
    let reply = client.upload(&copy, copy.token(), 2, &rows, 1).await;
    assert_eq!(reply.state(), UploadState::NewIdentity);
    assert!(reply.complete && reply.results.is_empty());
    assert_eq!(world.centre.state().lists, [1]);
    copy.learn(&reply);
    assert_ne!(copy.id, before.id);
    copy.checkpoint.clear();
    let rows = inserts(5..6, "pending");
    let mut client = world.connect().await;
    let reply = client.upload(&copy, copy.credential(), 2, &rows, 1).await;
    assert_eq!(reply.state(), UploadState::InSequence);
    assert_eq!(reply.results[0].inserts, 1);
    assert!(reply.replaced, "compared in full");
}

#[tokio::test]
async fn of_two_syncs_with_the_same_number_one_is_applied_and_the_other_comes_back() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let rows = inserts(0..1, "x");
    let mut one = world.connect().await;
    let mut two = world.connect().await;
    for (client, id) in [(&mut one, 1), (&mut two, 2)] {
        client.put_opening(pending(ada.token(), id));
        client.flush().await;
        client.welcome().await;
    }
    let mut replies = Vec::new();
    for (client, id) in [(&mut one, 1), (&mut two, 2)] {
        client.put_upload(1, id, &rows, 1);
        client.put_request();
        client.flush().await;
        replies.push(client.reply().await);
    }
    assert!(replies[0].complete);
    assert_eq!(replies[1].code(), Code::SyncInProgress);
    assert!(replies[1].code().is_transient());
}

#[tokio::test]
async fn an_upload_of_many_credits_arrives_whole() {
    arrives_whole(5_000, 1_000, 50_000).await;
}

/// The rows that came before fill the budget, and frames have to be whole in memory.
#[tokio::test]
async fn an_upload_of_large_rows_beyond_the_budget_arrives_whole() {
    arrives_whole(100, 100_000, 500_000).await;
}

/// Uploads so many rows, with notes of so many bytes, in frames of so many bytes.
async fn arrives_whole(count: i64, note_bytes: usize, frame_bytes: usize) {
    let world = World::with_limits("memory = \"1MiB\"").await;
    let ada = world.remote("ada").await;
    let note = "n".repeat(note_bytes);
    let rows = inserts(0..count, &note);
    let count = count as u64;
    let mut client = world.connect().await;
    client.put_opening(pending(ada.token(), 1));
    client.put_upload_begin(1, 1, &rows, count);
    client.flush().await;
    let mut credit = 1 << 20;
    let mut rest = &rows[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(credit).min(frame_bytes));
        if piece.is_empty() {
            match client.control().await {
                Some(Control::Credit(more)) => credit += more.bytes as usize,
                Some(Control::SignedIn(_) | Control::Welcome(_)) => {}
                other => panic!("{other:?}"),
            }
            continue;
        }
        client.put_rows(piece);
        client.flush().await;
        credit -= piece.len();
        rest = after;
    }
    client.put_upload_end(&rows, count);
    client.put_request();
    client.flush().await;
    let reply = client.reply().await;
    assert_eq!(reply.results[0].inserts, count);
    let bob = world.remote("bob").await;
    assert!(!bob.checkpoint.is_empty());
}

#[tokio::test]
async fn waiting_syncs_are_applied_as_one_list() {
    let world = World::with_limits("upload_workers = 1\nkeepalive_interval = \"20ms\"").await;
    world.centre.apply_gate.send_replace(false);
    let mut clients = Vec::new();
    for number in 0..6 {
        let remote = world.remote("ada").await;
        clients.push(waiting_upload(&world, &remote, number).await);
    }
    world.centre.apply_gate.send_replace(true);
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!(reply.results[0].inserts, 1);
    }
    // The worker took one at once and, when it was done, all that had come.
    assert_eq!(world.centre.state().lists, [1, 5]);
}

/// An upload of one row that the server has put into the backlog.
async fn waiting_upload(world: &World, remote: &Remote, number: i64) -> Client {
    let mut client = world.connect().await;
    client.put_opening(pending(remote.token(), 1));
    client.put_upload(1, 1, &inserts(number..number + 1, "x"), 1);
    client.put_request();
    assert!(client.flush_until_waiting().await.is_none());
    client
}

#[tokio::test]
async fn one_sync_that_spoils_the_list_does_not_spoil_the_others() {
    let world = World::with_limits("upload_workers = 1\nkeepalive_interval = \"20ms\"").await;
    world.centre.apply_gate.send_replace(false);
    let mut clients = Vec::new();
    for (number, user) in ["ada", "eve", "bob"].into_iter().enumerate() {
        let remote = world.remote(user).await;
        clients.push(waiting_upload(&world, &remote, number as i64).await);
    }
    world.centre.apply_gate.send_replace(true);
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!(reply.results[0].inserts, 1);
    }
    assert_eq!(world.centre.state().lists, [1, 1, 1]);
}

#[tokio::test]
async fn a_sync_can_be_cancelled_and_the_connection_used_again() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    world.centre.download_gate.send_replace(false);
    let mut client = world.connect().await;
    client.put_opening(ada.token()).put_request();
    client.put(Control::Cancel(SyncCancel {}));
    client.flush().await;
    world.centre.download_gate.send_replace(true);
    let reply = client.sync(ada.token()).await;
    assert!(reply.complete, "{reply:?}");
    client.ack().await;
    let reply = client.sync(ada.token()).await;
    assert!(reply.complete);
}

#[tokio::test]
async fn a_checkpoint_that_is_not_the_servers_is_worth_nothing() {
    let world = World::start().await;
    world.centre.write(1, Some("one"));
    let ada = world.remote("ada").await;
    let bob = world.remote("bob").await;
    let reply = world.connect().await.sync(ada.token()).await;
    assert!(reply.rows.is_empty() && reply.checkpoint.is_empty());
    let mut forged = ada.clone();
    forged.checkpoint.clone_from(&bob.checkpoint);
    let reply = world.connect().await.sync(forged.token()).await;
    assert!(reply.complete && reply.answer().compare, "another remote's");
    assert!(reply.checkpoint.is_empty() && !reply.replaced);
    let last = forged.checkpoint.len() - 1;
    forged.checkpoint.clone_from(&ada.checkpoint);
    forged.checkpoint[last] ^= 1;
    let reply = world.connect().await.sync(forged.token()).await;
    assert!(reply.complete && reply.answer().compare, "a changed one");
    assert!(reply.checkpoint.is_empty() && !reply.replaced);
}

#[tokio::test]
async fn another_schema_is_sent_and_the_download_is_whole() {
    let world = World::start().await;
    world.centre.write(1, Some("one"));
    let mut ada = world.remote("ada").await;
    ada.schema_hash = vec![3; 32];
    let mut client = world.connect().await;
    let rows = inserts(5..6, "under the old schema");
    let reply = client.upload(&ada, ada.token(), 1, &rows, 1).await;
    assert!(reply.complete && reply.replaced);
    assert_eq!(reply.results[0].inserts, 1);
    let welcome = reply.welcome.unwrap();
    assert!(!welcome.subscriptions[0].schema.is_empty());
}

#[tokio::test]
async fn an_unknown_publication_is_named_and_the_known_ones_are_listed() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let mut hello = ada.token();
    hello.subscriptions[0].publication = "note\"; DROP TABLE x".into();
    let reply = world.connect().await.sync(hello).await;
    assert_eq!(reply.code(), Code::UnknownPublication);
    assert!(reply.failure.unwrap().hint.contains("notes"));
}

#[tokio::test]
async fn an_empty_sync_is_answered_with_one_write() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    for _ in 0..20 {
        let mut client = world.connect().await;
        let before = world.writes.load(Ordering::SeqCst);
        let reply = client.sync(ada.token()).await;
        assert!(reply.complete);
        assert_eq!(world.writes.load(Ordering::SeqCst) - before, 1);
    }
}
