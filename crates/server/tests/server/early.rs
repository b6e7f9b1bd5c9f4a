//! Uploads that a worker applies while they arrive: nothing counts before the end, whatever
//! becomes of the attempt, and nobody waits for a remote that is slow.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewater_protocol::Code;
use tidewater_protocol::message::{Control, DownloadRequest, UploadEnd};

use crate::client::{Client, Remote, inserts, pending};
use crate::world::{World, eventually};

const ROWS: u64 = 1_000;

/// Every upload may go early, and there is one worker.
async fn world() -> World {
    World::with_limits("early_upload = 1\nupload_workers = 1").await
}

fn rows() -> Vec<u8> {
    inserts(0..ROWS as i64, "a note that is neither short nor long")
}

/// A client that has sent the first half of an upload's rows, which a worker has.
async fn halfway(world: &World, remote: &Remote, rows: &[u8]) -> Client {
    let attempts = world.centre.early_begun.load(Ordering::SeqCst);
    let mut client = world.connect().await;
    client.put(Control::Hello(pending(remote.token(), 1)));
    client.put_upload_begin(1, 1, rows, ROWS);
    client.put_rows(&rows[..rows.len() / 2]);
    client.flush().await;
    eventually("a worker has the upload", || {
        world.centre.early_begun.load(Ordering::SeqCst) > attempts
    })
    .await;
    client
}

/// The attempts that are over: whether something came of them.
fn attempts(world: &World) -> Vec<bool> {
    world.centre.state().early.clone()
}

fn complete_uploads(world: &World) -> usize {
    world.centre.state().lists.len()
}

#[tokio::test]
async fn an_upload_is_applied_by_a_worker_that_had_it_before_its_end() {
    let world = world().await;
    let (ada, rows) = (world.remote("ada").await, rows());
    let mut client = halfway(&world, &ada, &rows).await;
    assert!(world.centre.state().notes().is_empty());
    client.put_rows(&rows[rows.len() / 2..]);
    client.put_upload_end(&rows, ROWS);
    client.put_request();
    client.flush().await;
    let reply = client.reply().await;
    assert!(reply.complete, "{reply:?}");
    assert_eq!(reply.results[0].inserts, ROWS);
    assert!(reply.rows.is_empty(), "its own rows do not come back");
    assert_eq!(
        (attempts(&world), complete_uploads(&world)),
        (vec![true], 0)
    );
    assert_eq!(world.centre.state().notes().len(), ROWS as usize);
    eventually("the history has the upload", || {
        let state = world.centre.state();
        state.history.iter().any(|sync| sync.uploaded[0] == ROWS)
    })
    .await;
}

#[tokio::test]
async fn nothing_counts_before_the_request_for_the_download() {
    let world = world().await;
    let (ada, rows) = (world.remote("ada").await, rows());
    let mut client = halfway(&world, &ada, &rows).await;
    client.put_rows(&rows[rows.len() / 2..]);
    client.put_upload_end(&rows, ROWS);
    client.flush().await;
    // What today's path would not take, an early worker does not either.
    client.put_upload_begin(1, 1, &rows, ROWS);
    client.flush().await;
    assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
    eventually("the attempt is over", || attempts(&world) == [false]).await;
    assert!(world.centre.state().notes().is_empty());
}

#[tokio::test]
async fn a_remote_that_pauses_gives_its_worker_back_and_is_applied_when_it_is_complete() {
    let world = world().await;
    let (ada, bob, rows) = (world.remote("ada").await, world.remote("bob").await, rows());
    let mut client = halfway(&world, &ada, &rows).await;
    // Ada says nothing more; the only worker is soon free for others all the same.
    let reply = world
        .connect()
        .await
        .upload(&bob, bob.token(), 1, &inserts(5_000..5_001, "b"), 1)
        .await;
    assert!(reply.complete, "{reply:?}");
    assert!(!attempts(&world)[0], "the pause was too long");
    client.put_rows(&rows[rows.len() / 2..]);
    client.put_upload_end(&rows, ROWS);
    client.put_request();
    client.flush().await;
    let reply = client.reply().await;
    assert!(reply.complete, "{reply:?}");
    assert_eq!(reply.results[0].inserts, ROWS);
    // Once per upload is enough.
    let begun = world.centre.early_begun.load(Ordering::SeqCst);
    assert!(begun <= 2, "{begun} attempts for two uploads");
    assert_eq!(world.centre.state().notes().len(), ROWS as usize + 1);
}

#[tokio::test]
async fn a_damaged_a_cut_and_an_abandoned_upload_take_no_effect() {
    let world = world().await;
    let (ada, rows) = (world.remote("ada").await, rows());
    // Damaged: the checksum is another.
    let mut client = halfway(&world, &ada, &rows).await;
    let mut damaged = rows.clone();
    *damaged.last_mut().unwrap() ^= 1;
    client.put_rows(&damaged[rows.len() / 2..]);
    client.put_upload_end(&rows, ROWS);
    client.put_request();
    client.flush().await;
    assert_eq!(client.reply().await.code(), Code::ChecksumMismatch);
    eventually("the first attempt is over", || attempts(&world) == [false]).await;
    // Cut off.
    drop(halfway(&world, &ada, &rows).await);
    eventually("the second attempt is over", || attempts(&world).len() == 2).await;
    // Abandoned by the remote, which is content with a download.
    let mut client = halfway(&world, &ada, &rows).await;
    client.put(Control::UploadEnd(UploadEnd {
        abandoned: true,
        ..UploadEnd::default()
    }));
    client.put(Control::DownloadRequest(DownloadRequest {
        upload_only: false,
    }));
    client.flush().await;
    assert!(client.reply().await.complete);
    eventually("the third attempt is over", || attempts(&world).len() == 3).await;
    assert_eq!(attempts(&world), [false; 3]);
    assert!(world.centre.state().notes().is_empty());
    // And then it comes as it should.
    let mut client = world.connect().await;
    let reply = client.upload(&ada, ada.token(), 1, &rows, ROWS).await;
    assert_eq!(reply.results[0].inserts, ROWS);
}

#[tokio::test]
async fn a_user_who_is_disabled_while_his_upload_arrives_takes_no_effect() {
    let world = world().await;
    let (ada, rows) = (world.remote("ada").await, rows());
    let mut client = halfway(&world, &ada, &rows).await;
    let disable = |disabled| {
        let mut state = world.centre.state();
        state.users.get_mut("ada").expect("ada").disabled = disabled;
    };
    disable(true);
    client.put_rows(&rows[rows.len() / 2..]);
    client.put_upload_end(&rows, ROWS);
    client.put_request();
    client.flush().await;
    assert_eq!(client.reply().await.code(), Code::UserDisabled);
    eventually("the attempt is over", || attempts(&world) == [false]).await;
    assert!(world.centre.state().notes().is_empty());
    disable(false);
    let mut client = world.connect().await;
    let reply = client.upload(&ada, ada.token(), 1, &rows, ROWS).await;
    assert_eq!(reply.results[0].inserts, ROWS);
}

#[tokio::test]
async fn an_attempt_that_fails_is_made_good_by_the_complete_upload() {
    let world = world().await;
    let (ada, rows) = (world.remote("ada").await, rows());
    for id in 1..=2 {
        let ada = Remote {
            sequence: id - 1,
            upload_id: vec![id as u8 - 1; if id == 1 { 0 } else { 16 }],
            ..ada.clone()
        };
        // A database that refuses, and a worker that panics.
        match id {
            1 => world.centre.refuses_early.store(true, Ordering::SeqCst),
            _ => world.centre.early_defect.store(true, Ordering::SeqCst),
        }
        let mut client = world.connect().await;
        let rows = match id {
            1 => rows.clone(),
            _ => inserts(5_000..6_000, "more"),
        };
        let reply = client
            .upload(&ada, ada.token(), id as u8, &rows, ROWS)
            .await;
        assert!(reply.complete, "{reply:?}");
        assert_eq!(reply.results[0].inserts, ROWS);
        assert_eq!(complete_uploads(&world), id as usize);
        world.centre.refuses_early.store(false, Ordering::SeqCst);
    }
    assert_eq!(world.centre.state().notes().len(), 2 * ROWS as usize);
}

#[tokio::test]
async fn while_no_worker_is_idle_an_upload_waits_for_its_end() {
    let world = world().await;
    let (ada, bob, rows) = (world.remote("ada").await, world.remote("bob").await, rows());
    world.centre.apply_gate.send_replace(false);
    // Bob's upload holds the only worker; it is complete before anybody looks.
    let mut busy = world.connect().await;
    busy.put(Control::Hello(pending(bob.token(), 1)));
    busy.put_upload(1, 1, &[], 0);
    busy.put_request();
    busy.flush().await;
    eventually("the worker is busy", || {
        world.centre.applying.load(Ordering::SeqCst) == 1
    })
    .await;
    let mut client = world.connect().await;
    client.put(Control::Hello(pending(ada.token(), 1)));
    client.put_upload(1, 1, &rows, ROWS);
    client.put_request();
    client.flush().await;
    assert!(matches!(client.control().await, Some(Control::Welcome(_))));
    world.centre.apply_gate.send_replace(true);
    assert!(busy.reply().await.complete);
    assert!(client.reply().await.complete);
    assert_eq!(world.centre.early_begun.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_shutdown_in_the_middle_of_an_upload_waits_for_nobody() {
    let limits = "early_upload = 1\nupload_workers = 1\nshutdown = \"100ms\"";
    let world = World::with_limits(limits).await;
    let (ada, rows) = (world.remote("ada").await, rows());
    let mut client = halfway(&world, &ada, &rows).await;
    let centre = world.centre.clone();
    let shutdown = tokio::time::timeout(Duration::from_secs(20), world.running.shutdown());
    shutdown.await.expect("the server ends");
    assert_eq!(client.reply().await.code(), Code::ShuttingDown);
    assert_eq!(centre.state().early, [false]);
    assert!(centre.state().notes().is_empty());
}
