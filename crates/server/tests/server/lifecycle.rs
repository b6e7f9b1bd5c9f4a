//! Starting, shutting down, a database that comes and goes, TLS.

use std::sync::atomic::Ordering;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use tidewater_protocol::Code;
use tidewater_server::dev_certificate;

use crate::centre::MemoryCentre;
use crate::client::{Client, Remote, inserts};
use crate::world::{PASSWORD, World, eventually};

#[tokio::test]
async fn shutting_down_lets_running_syncs_finish_and_tells_the_others() {
    let world = World::with_limits("keepalive_interval = \"20ms\"").await;
    let ada = world.remote("ada").await;
    let mut idle = world.connect().await;
    assert!(idle.sync(ada.token()).await.complete);
    world.centre.download_gate.send_replace(false);
    let mut running = world.connect().await;
    running.put_opening(ada.token()).put_request();
    assert!(running.flush_until_waiting().await.is_none());
    let address = world.running.addresses[0].clone();
    let centre = world.centre.clone();
    let shutdown = tokio::spawn(world.running.shutdown());
    assert_eq!(idle.reply().await.code(), Code::ShuttingDown);
    let address = address.strip_prefix("tcp://").unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "still listening"
    );
    centre.download_gate.send_replace(true);
    assert!(running.reply().await.complete);
    drop((idle, running));
    shutdown.await.unwrap();
    assert_eq!(centre.state().history.len(), 3, "all syncs are recorded");
}

#[tokio::test]
async fn a_sync_that_outlasts_the_shutdown_is_told_why_it_ends() {
    let world =
        World::with_limits("shutdown_timeout = \"50ms\"\nkeepalive_interval = \"20ms\"").await;
    let ada = world.remote("ada").await;
    world.centre.download_gate.send_replace(false);
    let mut running = world.connect().await;
    running.put_opening(ada.token()).put_request();
    assert!(running.flush_until_waiting().await.is_none());
    let shutdown = tokio::spawn(world.running.shutdown());
    let reply = running.reply().await;
    assert_eq!(reply.code(), Code::ShuttingDown);
    assert!(reply.failure.unwrap().retry_after_ms > 0);
    world.centre.download_gate.send_replace(true);
    shutdown.await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_away_is_a_reason_to_come_back_and_it_is_found_again() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let before = world.centre.workers.load(Ordering::SeqCst);
    world.centre.unavailable.store(true, Ordering::SeqCst);
    let reply = world.connect().await.sync(ada.token()).await;
    assert_eq!(reply.code(), Code::ConsolidatedUnavailable);
    let failure = reply.failure.unwrap();
    assert!(failure.retry_after_ms > 0);
    assert!(!failure.message.contains("secret-host"));
    world.centre.unavailable.store(false, Ordering::SeqCst);
    let mut complete = false;
    for _ in 0..1_000 {
        complete = world.connect().await.sync(ada.token()).await.complete;
        if complete {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(complete, "the database is never found again");
    assert!(world.centre.workers.load(Ordering::SeqCst) > before);
}

/// Uploads a row of this number.
async fn upload_row(world: &World, remote: &mut Remote, id: u8) {
    let rows = inserts(id.into()..i64::from(id) + 1, "note");
    let mut client = world.connect().await;
    let reply = client.upload(remote, remote.token(), id, &rows, 1).await;
    assert!(reply.complete, "{id}: {reply:?}");
    remote.learn(&reply);
    remote.sequence += 1;
    remote.upload_id = vec![id; 16];
}

/// Whoever has his turn takes the connection that was used last.
#[tokio::test]
async fn no_more_connections_are_opened_than_work_at_the_same_time() {
    let world = World::start().await;
    let mut ada = world.remote("ada").await;
    for id in 1..=30 {
        upload_row(&world, &mut ada, id).await;
    }
    // Two look up who signs in and write the history, one applies, one reads.
    let opened = world.centre.workers.load(Ordering::SeqCst);
    assert!(opened <= 4, "{opened} connections for one sync at a time");
}

#[tokio::test]
async fn a_restart_of_the_database_between_two_syncs_fails_none() {
    let workers = "session_workers = 2\nupload_workers = 2\ndownload_workers = 2";
    let world = World::with_limits(workers).await;
    let mut ada = world.remote("ada").await;
    for id in 1..=6 {
        upload_row(&world, &mut ada, id).await;
        world.centre.restarts.fetch_add(1, Ordering::SeqCst);
        // A new sign-in writes before it reads.
        let _ = world.remote("ada").await;
    }
    let state = world.centre.state();
    assert!((1..=6).all(|id| state.rows[&id].1.as_deref() == Some("note")));
}

#[tokio::test]
async fn a_defect_in_an_adapter_costs_one_sync_and_no_worker() {
    let world = World::with_limits("download_workers = 1\nkeepalive_interval = \"20ms\"").await;
    let ada = world.remote("ada").await;
    eventually("the history is written", || {
        !world.centre.state().history.is_empty()
    })
    .await;
    world.centre.download_gate.send_replace(false);
    let mut client = world.connect().await;
    client.put_opening(ada.token()).put_request();
    assert!(client.flush_until_waiting().await.is_none());
    world.centre.defective.store(true, Ordering::SeqCst);
    world.centre.download_gate.send_replace(true);
    assert_eq!(client.reply().await.code(), Code::Internal);
    assert!(world.connect().await.sync(ada.token()).await.complete);
}

#[tokio::test]
async fn what_is_old_is_pruned_now_and_then() {
    let world = World::start().await;
    eventually("the server prunes", || {
        world.centre.prunes.load(Ordering::SeqCst) >= 2
    })
    .await;
}

#[tokio::test]
async fn tls_carries_a_sync_and_refuses_what_is_no_tls() {
    let directory = tempfile::tempdir().unwrap();
    let tls = dev_certificate(directory.path(), &["localhost".to_owned()]).unwrap();
    let centre = MemoryCentre::new();
    let head = format!(
        "[server.tls]\ncertificate = {:?}\nkey = {:?}\n[server]\n\
         listen = [\"tls://127.0.0.1:0\", \"tcp://127.0.0.1:0\"]",
        tls.certificate, tls.key
    );
    let world = World::try_start(&centre, &head, "").await.unwrap();
    let [secure, plain] = &world.running.addresses[..] else {
        panic!("two addresses");
    };
    let address = secure.strip_prefix("tls://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector =
        TlsConnector::from(tidewater_carrier::tls::client(Some(&tls.certificate)).unwrap());
    let stream = connector.connect(name, stream).await.unwrap();
    let mut client = Client::over(Box::new(stream));
    let hello = Remote::new("ada").password(PASSWORD);
    assert!(client.preface().sync(hello).await.complete);
    let mut confused = Client::connect(&format!("tcp://{address}")).await;
    confused.flush_if_possible().await;
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut confused.stream, &mut answer).await;
    assert!(!answer.starts_with(b"TIDE"));
    let mut client = Client::connect(plain).await;
    let hello = Remote::new("ada").password(PASSWORD);
    assert!(client.sync(hello).await.complete);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_to_come_back_over_tls_too() {
    let directory = tempfile::tempdir().unwrap();
    let tls = dev_certificate(directory.path(), &["localhost".to_owned()]).unwrap();
    let head = format!(
        "[server.tls]\ncertificate = {:?}\nkey = {:?}\n[server]\n\
         listen = [\"tls://127.0.0.1:0\"]",
        tls.certificate, tls.key
    );
    let centre = MemoryCentre::new();
    let world = World::try_start(&centre, &head, "connections = 1");
    let world = world.await.unwrap();
    let address = world.running.addresses[0].strip_prefix("tls://").unwrap();
    let connect = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let trusted = tidewater_carrier::tls::client(Some(&tls.certificate)).unwrap();
        let stream = TlsConnector::from(trusted).connect(name, stream).await;
        Client::over(Box::new(stream.unwrap()))
    };
    let mut first = connect().await;
    first.preface().ping().await;
    let mut second = connect().await;
    second.preface().flush_if_possible().await;
    assert!(second.reply().await.busy.unwrap().retry_after_ms > 0);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let world = World::start().await;
    let head = format!("[server]\nlisten = [{:?}]", world.running.addresses[0]);
    let error = World::try_start(&world.centre, &head, "").await.err();
    let error = error.expect("the port is taken");
    assert!(error.to_string().contains(&world.running.addresses[0]));
    assert!(!error.hint().is_empty());
}
