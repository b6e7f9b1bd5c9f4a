//! The connection is lost at every byte of the server's answer.

use tidewater_connection::device::DeviceError;
use tidewater_protocol::Op;

use crate::scripted::{
    NOW, Remote, Reply, SentMessages, answer, first_reply, items, later_reply, options,
};
use crate::session::{SessionOutcome, SyncError};

/// Cuts an answer at every byte. Every time the remote must be as it was before; on every
/// eleventh, so that the test stays quick, a whole sync must follow.
fn cut_everywhere(remote: &Remote, script: fn(&SentMessages) -> Reply, after: &[(i64, &str)]) {
    let before = remote.sync(|_| Reply::default());
    let before = (before, remote.dump()).1;
    let mut cut = 0;
    loop {
        let mut length = 0;
        let (outcome, _) = remote.sync(|sent| {
            let mut reply = script(sent);
            length = reply.0.len();
            reply.0.truncate(cut);
            reply
        });
        assert!(cut < length);
        match outcome {
            SessionOutcome::Failed(SyncError::Connection(DeviceError::ConnectionLost {
                ..
            })) => {}
            other => panic!("cut at {cut} of {length}: {other:?}"),
        }
        assert_eq!(remote.dump(), before, "cut at {cut}");
        if cut % 11 == 0 {
            let copy = remote.copy();
            let (outcome, _) = copy.sync(script);
            assert!(
                matches!(outcome, SessionOutcome::Done(_)),
                "{cut}: {outcome:?}"
            );
            assert_items(&copy, after);
        }
        cut += 1;
        if cut == length {
            break;
        }
    }
    let (outcome, _) = remote.sync(script);
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    assert_items(remote, after);
}

fn assert_items(remote: &Remote, expected: &[(i64, &str)]) {
    let items = remote.items();
    let items: Vec<(i64, &str)> = items.iter().map(|(id, name)| (*id, &name[..])).collect();
    assert_eq!(items, expected);
}

#[test]
fn a_first_sync_cut_anywhere_leaves_nothing_and_succeeds_later() {
    let remote = Remote::new();
    cut_everywhere(&remote, |_| first_reply(), &[(1, "one"), (2, "two")]);
}

#[test]
fn a_later_sync_cut_anywhere_changes_nothing_and_succeeds_later() {
    let remote = Remote::changed();
    cut_everywhere(
        &remote,
        later_reply,
        &[(2, "two"), (3, "three"), (4, "four")],
    );
}

#[test]
fn an_answer_in_single_bytes_is_the_same_answer() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    for &byte in &later_reply(&sent).0 {
        assert!(connection.poll_work().is_none());
        connection.handle_bytes(&[byte], NOW);
    }
    connection.work(NOW);
    assert!(matches!(
        connection.end_sync().unwrap().1,
        SessionOutcome::Done(_)
    ));
    assert_items(&remote, &[(2, "two"), (3, "three"), (4, "four")]);
}

#[test]
fn a_retry_after_a_cut_sends_the_same_upload() {
    let remote = Remote::changed();
    let (_, first) = remote.sync(|_| Reply::default());
    remote.run("UPDATE item SET name = 'drei' WHERE id = 3; INSERT INTO item VALUES (9, 'x')");
    let (_, second) = remote.sync(|_| Reply::default());
    assert_eq!(first.upload(), second.upload());
    assert_eq!(first.rows(), second.rows());
    assert!(!first.rows().is_empty());
}

#[test]
fn an_edit_between_taking_and_reading_is_of_the_next_upload() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    remote.run("UPDATE item SET name = 'drei' WHERE id = 3; DELETE FROM item WHERE id = 1");
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.rows(), items(Op::Insert, &[(3, "three")]));
    answer(&mut connection, &later_reply(&sent).0);
    assert!(matches!(
        connection.end_sync().unwrap().1,
        SessionOutcome::Done(_)
    ));
    let (_, next) = remote.sync(|_| Reply::default());
    assert_eq!(next.upload().sequence, 2);
    assert_eq!(remote.items()[1], (3, "drei".into()));
}

#[test]
fn a_connection_lost_after_the_end_of_the_sync_loses_nothing() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    connection.handle_bytes(&later_reply(&sent).0, NOW);
    connection.handle_end(None);
    connection.work(NOW);
    assert!(matches!(
        connection.end_sync().unwrap().1,
        SessionOutcome::Done(_)
    ));
}
