//! What a connection is beside one sync: the syncs after it, pings, its end.

use tidewater_protocol::Code;
use tidewater_protocol::message::{Control, FailureNotice, Ping, Pong, UploadState};

use super::*;
use crate::scripted::{
    NOW, Remote, Reply, SILENCE, SentMessages, later_reply, options, schema, signed_in, welcome,
};

fn events(connection: &mut RemoteConnection) -> Vec<DriverEvent> {
    std::iter::from_fn(|| connection.poll_event()).collect()
}

#[test]
fn two_syncs_on_one_connection_sign_in_once() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    let mut bytes_sent = 0;
    sent.take(|| {
        let bytes = connection.poll_transmit()?;
        bytes_sent += bytes.len() as u64;
        Some(bytes)
    });
    let reply = later_reply(&sent).0;
    connection.handle_bytes(&reply, NOW);
    assert_eq!(connection.traffic(), (bytes_sent, reply.len() as u64));
    assert!(!connection.can_sync());
    connection.work(NOW);
    let told = events(&mut connection);
    assert!(
        matches!(told[..], [DriverEvent::SignedIn, DriverEvent::SyncDone]),
        "{told:?}"
    );
    let (database, outcome) = connection.end_sync().unwrap();
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");

    remote.run("INSERT INTO item VALUES (8, 'eight')");
    assert!(connection.can_sync());
    connection.sync(database, options(), [9; 32]);
    sent.frames.clear();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names()[..3], ["Ack", "Hello", "UploadBegin"]);
    assert_eq!(sent.upload().sequence, 2);
    connection.handle_bytes(&Reply::default().later(&sent).0, NOW);
    connection.work(NOW);
    let outcome = connection.end_sync().unwrap().1;
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    assert_eq!(remote.open().subscriptions().unwrap()[0].sequence, 2);
}

#[test]
fn a_sync_that_begins_anew_stays_on_its_connection_and_is_not_mixed_with_the_last() {
    let remote = Remote::synced();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    let Control::Welcome(mut compare) = welcome(UploadState::InSequence, None) else {
        unreachable!()
    };
    compare.subscriptions[0].compare = true;
    let reply = Reply::default()
        .signed_in()
        .control(Control::Welcome(compare));
    connection.handle_bytes(&reply.0, NOW);
    let (database, outcome) = connection.end_sync().unwrap();
    assert!(matches!(outcome, SessionOutcome::Again(_)), "{outcome:?}");
    assert!(connection.can_sync());
    connection.sync(database, options(), [9; 32]);
    sent.frames.clear();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names(), ["Hello", "CompareTable", "DownloadRequest"]);
    // The end of the first one comes only now.
    let reply = Reply::default()
        .end()
        .control(welcome(UploadState::InSequence, Some(&schema())))
        .download(true, &[], 0, 0)
        .end();
    connection.handle_bytes(&reply.0, NOW);
    connection.work(NOW);
    let outcome = connection.end_sync().unwrap().1;
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
}

#[test]
fn a_remote_that_became_another_one_signs_in_on_another_connection() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let reply = Reply::default().welcome(UploadState::NewIdentity, None);
    connection.handle_bytes(&reply.0, NOW);
    let outcome = connection.end_sync().unwrap().1;
    assert!(matches!(outcome, SessionOutcome::Again(_)), "{outcome:?}");
    assert!(!connection.can_sync());
}

#[test]
fn pings_are_answered_while_somebody_is_at_work_whose_word_counts() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    connection.handle_bytes(&later_reply(&sent).0, NOW);
    let mut work = connection.poll_work().unwrap();
    let ping = Control::Ping(Ping { nonce: 3 });
    connection.handle_bytes(&Reply::default().connection(ping).0, NOW);
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names().last(), Some(&"Pong"));
    // All has come: neither the end of the connection nor a late reason makes a difference.
    let failure = Control::Failure(FailureNotice::new(Code::ShuttingDown, "bye", ""));
    connection.handle_bytes(&Reply::default().connection(failure).0, NOW);
    connection.handle_end(None);
    connection.cancel();
    assert!(connection.end_sync().is_none(), "somebody has the database");
    while !work.is_done() {
        work.step(NOW);
    }
    connection.handle_work(work);
    let outcome = connection.end_sync().unwrap().1;
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    assert!(!connection.can_sync());
}

#[test]
fn a_connection_without_a_sync_pings_and_tells_how_it_ends() {
    let mut connection = RemoteConnection::dial("test", SILENCE, NOW);
    connection.ping(5);
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names(), ["Ping"]);
    let pong = Pong {
        nonce: 5,
        ..Pong::default()
    };
    let reply = Reply::default().connection(Control::Pong(pong));
    connection.handle_bytes(&reply.0, NOW);
    let told = events(&mut connection);
    assert!(
        matches!(&told[..], [DriverEvent::Pong(pong)] if pong.nonce == 5),
        "{told:?}"
    );
    // Nobody has asked to be let in.
    let reply = Reply::default().connection(signed_in([7; 16]));
    connection.handle_bytes(&reply.0, NOW);
    connection.handle_end(None);
    let told = events(&mut connection);
    let [DriverEvent::Failed(error)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(error.code(), Code::UnexpectedMessage);
    assert!(!connection.can_sync());
}
