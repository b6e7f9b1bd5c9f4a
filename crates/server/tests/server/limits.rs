//! Limits, deadlines, busy answers, flow control: no remote holds up another.

use std::time::Duration;

use tidewater_protocol::Code;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::Control;

use crate::client::{inserts, pending};
use crate::world::{World, eventually};

#[tokio::test]
async fn a_remote_that_takes_nothing_holds_no_worker_and_little_memory() {
    let world = World::with_limits("download_workers = 1\nmemory = \"4MiB\"").await;
    let note = "n".repeat(10_000);
    for id in 0..2_000 {
        world.centre.write(id, Some(&note));
    }
    let ada = world.remote("ada").await;
    let mut fresh = ada.clone();
    fresh.checkpoint.clear();
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut client = world.connect().await;
        client.put_opening(fresh.token()).put_request();
        client.flush().await;
        // It has got its Welcome, and never reads on.
        client.welcome().await;
        slow.push(client);
    }
    // The only worker is free for others all the same.
    let reply = world.connect().await.sync(ada.token()).await;
    assert!(reply.complete);
    // And when the slow ones read on, everything is there.
    for client in &mut slow {
        let reply = client.reply().await;
        assert!(reply.complete, "{reply:?}");
        assert_eq!(reply.rows.len(), 2_000);
    }
}

#[tokio::test]
async fn a_remote_that_takes_nothing_is_given_up_after_a_while() {
    let world = World::with_limits("idle_timeout = \"2s\"").await;
    let note = "n".repeat(10_000);
    for id in 0..1_000 {
        world.centre.write(id, Some(&note));
    }
    let mut ada = world.remote("ada").await;
    ada.checkpoint.clear();
    let mut client = world.connect().await;
    client.put_opening(ada.token()).put_request();
    client.flush().await;
    // It reads, but grants no credit.
    let mut rows = 0;
    let failure = loop {
        match client.frame().await.expect("a Failure before the end") {
            Frame::Rows { bytes, .. } => rows += bytes.len(),
            Frame::Control {
                control: Some(Control::Failure(failure)),
                ..
            } => break failure,
            _ => {}
        }
    };
    assert_eq!(rows, 1 << 20, "what it may be sent unasked");
    assert_eq!(failure.code, Code::Timeout.number());
}

#[tokio::test]
async fn uploads_over_the_limit_are_refused_by_their_announcement() {
    let world = World::with_limits("upload_rows = 10\nupload_size = 1000").await;
    let ada = world.remote("ada").await;
    for (rows, count) in [
        (inserts(0..11, "x"), 11),
        (inserts(0..1, &"x".repeat(2_000)), 1),
    ] {
        let mut client = world.connect().await;
        let reply = client.upload(&ada, ada.token(), 1, &rows, count).await;
        assert_eq!(reply.code(), Code::LimitExceeded);
        let hint = reply.failure.unwrap().hint;
        assert!(hint.contains("server.limits.upload_"), "{hint}");
    }
}

#[tokio::test]
async fn a_full_backlog_is_answered_with_busy() {
    let world =
        World::with_limits("backlog = 1\ndownload_workers = 1\nkeepalive_interval = \"20ms\"")
            .await;
    let ada = world.remote("ada").await;
    world.centre.download_gate.send_replace(false);
    let mut waiting = Vec::new();
    let mut busy = None;
    for _ in 0..10 {
        let mut client = world.connect().await;
        client.put_opening(ada.token()).put_request();
        busy = client.flush_until_waiting().await;
        if busy.is_some() {
            break;
        }
        waiting.push(client);
    }
    let busy = busy.expect("somebody is turned away");
    assert!((50..30_000).contains(&busy.retry_after_ms));
    assert_eq!(waiting.len(), 2, "one with the worker, one in the backlog");
    world.centre.download_gate.send_replace(true);
    for client in &mut waiting {
        assert!(client.reply().await.complete);
    }
}

#[tokio::test]
async fn a_waiting_remote_hears_of_it() {
    let world = World::with_limits("keepalive_interval = \"20ms\"").await;
    let ada = world.remote("ada").await;
    let rows = inserts(0..1, "x");
    for gate in [&world.centre.apply_gate, &world.centre.download_gate] {
        gate.send_replace(false);
        let mut ada = ada.clone();
        let id = if std::ptr::eq(gate, &world.centre.apply_gate) {
            1
        } else {
            ada.sequence = 1;
            ada.upload_id = vec![1; 16];
            2
        };
        let mut client = world.connect().await;
        client.put_opening(pending(ada.token(), id));
        client.put_upload(ada.sequence + 1, id, &rows, 1);
        client.put_request();
        client.flush().await;
        client.welcome().await;
        for _ in 0..3 {
            assert!(matches!(client.control().await, Some(Control::Waiting(_))));
        }
        gate.send_replace(true);
        assert!(client.reply().await.complete);
    }
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_to_come_back() {
    let world = World::with_limits("connections = 1").await;
    let mut first = world.connect().await;
    first.ping().await;
    let mut second = world.connect().await;
    second.flush_if_possible().await;
    let reply = second.reply().await;
    assert!(reply.busy.unwrap().retry_after_ms > 0);
    drop(first);
    drop(second);
    let ada = async || {
        let mut client = world.connect().await;
        client.put_ping();
        client.flush_if_possible().await;
        matches!(client.control().await, Some(Control::Pong(_)))
    };
    for _ in 0..1_000 {
        if ada().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the place never became free");
}

#[tokio::test]
async fn each_of_a_crowd_over_the_limit_is_told_when_to_come_back() {
    let world = World::with_limits("connections = 1").await;
    let mut first = world.connect().await;
    first.ping().await;
    // All of them are there before the first one listens.
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(world.connect().await);
    }
    let mut told = Vec::new();
    for client in &mut crowd {
        client.flush_if_possible().await;
        told.push(client.reply().await.busy.unwrap().retry_after_ms);
    }
    assert!(told.iter().all(|it| (50..30_000).contains(it)), "{told:?}");
}

#[tokio::test]
async fn whoever_says_nothing_is_closed() {
    // Signing in takes as long as it takes: that is another server's affair.
    let patient = World::start().await;
    let ada = patient.remote("ada").await;
    let world = World::beside(&patient.centre, "handshake_timeout = \"50ms\"").await;
    let mut silent = world.connect().await;
    silent.flush().await;
    assert_eq!(silent.reply().await.code(), Code::Timeout);
    let world = World::beside(&patient.centre, "idle_timeout = \"1s\"").await;
    let mut halfway = world.connect().await;
    halfway.put_opening(ada.token());
    halfway.flush().await;
    let reply = halfway.reply().await;
    assert!(reply.welcome.is_some());
    assert_eq!(reply.code(), Code::Timeout);
    // Between syncs nothing is owed: closed without a word.
    let mut idle = world.connect().await;
    assert!(idle.sync(ada.token()).await.complete);
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn a_sync_has_a_deadline() {
    // Signing in takes as long as it takes: that is another server's affair.
    let patient = World::start().await;
    let ada = patient.remote("ada").await;
    let world = World::beside(&patient.centre, "sync_timeout = \"100ms\"").await;
    world.centre.download_gate.send_replace(false);
    let reply = world.connect().await.sync(ada.token()).await;
    assert_eq!(reply.code(), Code::Timeout);
    world.centre.download_gate.send_replace(true);
    eventually("the failure is in the history", || {
        let state = world.centre.state();
        state.history.iter().any(|sync| sync.error == "timeout")
    })
    .await;
}
