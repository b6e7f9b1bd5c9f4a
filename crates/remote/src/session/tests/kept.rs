//! What a session keeps of the uploads that it sends: the same, to the byte, whether it was
//! copied on its way or is read out of the file later, and never what was refused.

use tidewater_protocol::Op;
use tidewater_protocol::message::{Control, Credit, UploadBegin, UploadState};

use crate::RemoteConnection;
use crate::scripted::{NOW, Remote, Reply, SentMessages, answer, items, options};
use crate::session::SessionOutcome;

/// The kept uploads.
fn kept(remote: &Remote) -> Vec<Vec<u8>> {
    let connection = rusqlite::Connection::open(remote.path()).unwrap();
    let mut kept = connection
        .prepare("SELECT bytes FROM tidewater_kept ORDER BY id")
        .unwrap();
    let kept = kept.query_map([], |row| row.get(0)).unwrap();
    kept.map(Result::unwrap).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

fn credit(connection: &mut RemoteConnection, bytes: u64) {
    let credit = Control::Credit(Credit { channel: 1, bytes });
    connection.handle_bytes(&Reply::default().connection(credit).0, NOW);
}

/// The rest of a sync, all of it.
fn acknowledge(connection: RemoteConnection, upload: &UploadBegin, refused: &[(i64, &str)]) {
    let welcome = Reply::default().welcome(UploadState::InSequence, None);
    tell_result(connection, welcome, upload, refused);
}

fn tell_result(
    mut connection: RemoteConnection,
    reply: Reply,
    upload: &UploadBegin,
    refused: &[(i64, &str)],
) {
    let reply = reply
        .result(upload, &items(Op::Refused, refused))
        .download(false, &[], 0, 0)
        .end();
    answer(&mut connection, &reply.0);
    let outcome = connection.end_sync().unwrap().1;
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
}

/// A remote that inserted, updated and deleted: 2.5 MB in many pieces.
fn changed_much() -> Remote {
    let remote = Remote::synced();
    remote.run(
        "WITH RECURSIVE number (id) AS (SELECT 10 UNION ALL SELECT id + 1 FROM number \
         WHERE id < 5000) \
         INSERT INTO item SELECT id, printf('%.*c', 17 + id % 900, 'x') || id FROM number; \
         UPDATE item SET name = 'uno' WHERE id = 1; DELETE FROM item WHERE id = 2",
    );
    remote
}

/// Sends the upload, whose frames are cut by the credit; the application writes meanwhile.
fn send(remote: &Remote) -> (RemoteConnection, SentMessages) {
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    for (number, bytes) in [100_001, 33, 500_000, 1 << 30].into_iter().enumerate() {
        sent.take(|| connection.poll_transmit());
        remote.run(&format!(
            "UPDATE item SET name = 'later {number}' WHERE id IN (1, 20, 4000 + {number}); \
             DELETE FROM item WHERE id = 30 + {number}"
        ));
        credit(&mut connection, bytes);
    }
    sent.take(|| connection.poll_transmit());
    assert!(sent.names().contains(&"DownloadRequest"));
    (connection, sent)
}

#[test]
fn what_is_kept_is_the_same_copied_while_sent_or_read_after_a_lost_acknowledgement() {
    let remote = changed_much();
    let copied = remote.copy();
    let (connection, sent) = send(&copied);
    acknowledge(connection, &sent.upload(), &[]);

    // The server has it, but we are not told.
    let (connection, again) = send(&remote);
    drop(connection);
    assert!(again.rows() == sent.rows());
    assert_eq!(kept(&remote).len(), 0);
    // Then we are told before anything of it is sent again.
    let mut connection = remote.session(options());
    let welcome = Reply::default().welcome(UploadState::AlreadyApplied, None);
    connection.handle_bytes(&welcome.0, NOW);
    let mut retry = SentMessages::default();
    retry.take(|| connection.poll_transmit());
    assert!(!retry.names().contains(&"UploadBegin"));
    tell_result(connection, Reply::default(), &again.upload(), &[]);

    let (copied, read) = (kept(&copied), kept(&remote));
    assert_eq!((copied.len(), read.len()), (1, 1));
    assert!(copied[0].len() > 2 << 20);
    assert!(copied == read, "they differ");
}

#[test]
fn an_upload_that_was_given_up_halfway_is_read_out_of_the_file() {
    let remote = changed_much();
    let copied = remote.copy();
    let (connection, sent) = send(&copied);
    acknowledge(connection, &sent.upload(), &[]);

    let mut connection = remote.session(options());
    let mut half = SentMessages::default();
    half.take(|| connection.poll_transmit());
    assert!(!half.names().contains(&"UploadEnd"));
    let welcome = Reply::default().welcome(UploadState::AlreadyApplied, None);
    connection.handle_bytes(&welcome.0, NOW);
    half.take(|| connection.poll_transmit());
    assert!(half.rows().len() < sent.rows().len());
    tell_result(connection, Reply::default(), &half.upload(), &[]);
    assert!(kept(&copied) == kept(&remote), "they differ");
}

#[test]
fn what_was_sent_is_not_read_again_to_be_kept() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    // There is nothing left that could be read.
    remote.run("DELETE FROM tidewater_change_item");
    acknowledge(connection, &sent.upload(), &[]);
    let kept = kept(&remote);
    assert_eq!(kept.len(), 1);
    assert!(holds(&kept[0], "three"));
}

#[test]
fn what_was_too_large_when_it_was_sent_is_not_read_again_either() {
    let remote = Remote::changed();
    remote.run("INSERT INTO item VALUES (4, hex(zeroblob(4500000)))");
    let mut connection = remote.session(options());
    credit(&mut connection, 1 << 30);
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert!(sent.rows().len() > 8 << 20);
    // What is left would be small enough.
    remote.run("DELETE FROM tidewater_change_item WHERE key_id = 4");
    acknowledge(connection, &sent.upload(), &[]);
    let kept = kept(&remote);
    assert_eq!(kept.len(), 1);
    assert!(kept[0].is_empty(), "only that it was there is kept");
}

#[test]
fn what_was_refused_is_not_kept_of_a_copy() {
    let remote = Remote::changed();
    remote.run("INSERT INTO item VALUES (4, 'secret')");
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert!(holds(&sent.rows(), "secret"));
    acknowledge(connection, &sent.upload(), &[(4, "no")]);
    let first = kept(&remote);
    assert_eq!(first.len(), 1);
    assert!(holds(&first[0], "three") && !holds(&first[0], "secret"));

    remote.run("INSERT INTO item VALUES (5, 'hidden')");
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    acknowledge(connection, &sent.upload(), &[(5, "no")]);
    assert!(kept(&remote) == first, "nothing is left of it");
}
