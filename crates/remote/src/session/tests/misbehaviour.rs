//! Servers that break the protocol, and callers that give up.

use bytes::BytesMut;
use proptest::prelude::*;
use tempfile::TempDir;
use tidewater_protocol::frame::{INITIAL_CREDIT_BYTES, put_rows};
use tidewater_protocol::message::{
    Ack, Control, DownloadEnd, DownloadRequest, FailureNotice, ResultEnd, SignedIn, UploadBegin,
    UploadState, Welcome,
};
use tidewater_protocol::{Code, Op, PublicationSchema};

use crate::RemoteConnection;
use crate::database::RemoteDatabase;
use crate::scripted::{
    NOW, REMOTE_ID, Remote, Reply, SILENCE, SentMessages, answer, download_begin, first_reply,
    items, later_reply, options, result_begin, schema, signed_in, welcome,
};
use crate::session::{Now, SessionOutcome, SyncError};

/// Every wrong answer to a sync with an upload, and the code that it must fail with.
#[rustfmt::skip]
fn wrong_answers(sent: &SentMessages) -> Vec<(&'static str, Reply, Code)> {
    let start = || Reply::default();
    let welcomed = || start().welcome(UploadState::InSequence, None);
    let upload = sent.upload();
    let done = || welcomed().result(&upload, &[]);
    let row = items(Op::Upsert, &[(4, "four")]);
    let mut other_upload = upload.clone();
    other_upload.upload_id = vec![1; 16];
    let mut later_upload = upload.clone();
    later_upload.sequence += 1;
    let download_end = |checksum, upserts| Control::DownloadEnd(DownloadEnd {
        checkpoint: vec![], upserts, removals: 0, checksum,
    });
    let result_end = Control::ResultEnd(ResultEnd::default());
    let hello = |edit: fn(&mut Welcome)| {
        let Control::Welcome(mut hello) = welcome(UploadState::InSequence, None) else { unreachable!() };
        edit(&mut hello);
        start().signed_in().control(Control::Welcome(hello))
    };
    let entry = |edit: fn(&mut SignedIn)| {
        let Control::SignedIn(mut entry) = signed_in(REMOTE_ID) else { unreachable!() };
        edit(&mut entry);
        start().connection(Control::SignedIn(entry))
    };
    let mut cut_row = row.clone();
    cut_row.pop();
    vec![
        ("a download before the Welcome", start().control(download_begin(0)), Code::UnexpectedMessage),
        ("the end before the Welcome", start().end(), Code::UnexpectedMessage),
        ("rows before the Welcome", start().rows(&row), Code::UnexpectedMessage),
        ("two Welcomes", welcomed().welcome(UploadState::InSequence, None), Code::UnexpectedMessage),
        ("a download before the result", welcomed().control(download_begin(0)), Code::UnexpectedMessage),
        ("the end before the result", welcomed().end(), Code::UnexpectedMessage),
        ("the result of another upload", welcomed().control(result_begin(&other_upload)), Code::UnexpectedMessage),
        ("the result of a later upload", welcomed().control(result_begin(&later_upload)), Code::UnexpectedMessage),
        ("two results", done().result(&upload, &[]), Code::UnexpectedMessage),
        ("a table outside of everything", welcomed().table(false), Code::UnexpectedMessage),
        ("rows without a table", welcomed().control(result_begin(&upload)).rows(&row), Code::UnexpectedMessage),
        ("the end of a result that did not begin", welcomed().control(result_end), Code::UnexpectedMessage),
        ("the end inside of a result", welcomed().control(result_begin(&upload)).end(), Code::UnexpectedMessage),
        ("a result inside of a result", welcomed().control(result_begin(&upload)).control(result_begin(&upload)), Code::UnexpectedMessage),
        ("the end before the download", done().end(), Code::UnexpectedMessage),
        ("the download of a subscription that is not there", done().control(download_begin(1)), Code::UnexpectedMessage),
        ("two downloads", done().download(false, &row, 1, 0).control(download_begin(0)), Code::UnexpectedMessage),
        ("the end inside of a download", done().control(download_begin(0)).end(), Code::UnexpectedMessage),
        ("a remote's message", welcomed().control(Control::DownloadRequest(DownloadRequest::default())), Code::UnexpectedMessage),
        ("an Ack", welcomed().control(Control::Ack(Ack {})), Code::UnexpectedMessage),
        ("a wrong checksum", done().control(download_begin(0)).table(false).rows(&row).control(download_end(1, 1)), Code::ChecksumMismatch),
        ("a wrong count", done().control(download_begin(0)).table(false).rows(&row)
            .control(download_end(crc32fast::hash(&row), 2)).end(), Code::ChecksumMismatch),
        ("an absurd count", done().download(false, &row, u64::MAX, u64::MAX).end(), Code::ChecksumMismatch),
        ("a cut row", done().download(false, &cut_row, 1, 0).end(), Code::ChecksumMismatch),
        ("rows that are none", done().download(false, &[99; 5], 1, 0).end(), Code::MalformedMessage),
        ("uploaded rows in a download", done().download(false, &items(Op::Insert, &[(4, "")]), 1, 0).end(), Code::MalformedMessage),
        ("a Welcome before SignedIn", start().control(welcome(UploadState::InSequence, None)), Code::UnexpectedMessage),
        ("two SignedIns", start().signed_in().signed_in(), Code::UnexpectedMessage),
        ("a remote id that is none", entry(|entry| entry.remote_id.truncate(4)), Code::MalformedMessage),
        ("a short new remote id", hello(|welcome| {
            welcome.subscriptions[0].upload_state = UploadState::NewIdentity as i32;
            welcome.remote_id = vec![1; 4];
        }), Code::MalformedMessage),
        ("another remote id", hello(|welcome| welcome.remote_id = vec![1; 16]), Code::UnexpectedMessage),
        ("a new identity without an id", hello(|welcome| {
            welcome.subscriptions[0].upload_state = UploadState::NewIdentity as i32;
        }), Code::UnexpectedMessage),
        ("an answer to no subscription", hello(|welcome| welcome.subscriptions.clear()), Code::MalformedMessage),
        ("an unknown upload state", hello(|welcome| welcome.subscriptions[0].upload_state = 9), Code::MalformedMessage),
        ("another major version", entry(|entry| entry.protocol_version = 9 << 16), Code::ProtocolVersion),
        ("a schema that is none", hello(|welcome| welcome.subscriptions[0].schema = vec![255; 9]), Code::MalformedMessage),
        ("the schema of another publication", hello(|welcome| {
            let other = PublicationSchema { name: "other".into(), ..schema() };
            welcome.subscriptions[0].schema = other.encode();
        }), Code::UnexpectedMessage),
        ("a failure in the middle", done().control(download_begin(0)).control(Control::Failure(
            FailureNotice::new(Code::ShuttingDown, "going down", "come back"))), Code::ShuttingDown),
    ]
}

#[test]
fn every_violation_is_a_clear_error_and_changes_nothing() {
    let remote = Remote::changed();
    let (_, sent) = remote.sync(|_| Reply::default());
    let before = remote.dump();
    let count = wrong_answers(&sent).len();
    for index in 0..count {
        let (name, _, code) = wrong_answers(&sent).swap_remove(index);
        let error = remote.fails(|sent| wrong_answers(sent).swap_remove(index).1);
        assert_eq!(error.code(), code, "{name}: {error}");
        assert!(
            !error.to_string().is_empty() && !error.hint().is_empty(),
            "{name}"
        );
        assert_eq!(remote.dump(), before, "{name}");
    }
    let (outcome, _) = remote.sync(later_reply);
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
}

#[test]
fn a_result_before_the_end_of_its_upload_is_refused() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    // Nothing was sent yet, so nothing can have a result.
    let reply = Reply::default().welcome(UploadState::InSequence, None);
    connection.handle_bytes(&reply.0, NOW);
    let begin = UploadBegin {
        subscription: 0,
        sequence: 1,
        upload_id: taken(&remote),
        rows: 0,
        bytes: 0,
        given_back: false,
        copied: false,
        given_up: Vec::new(),
        behind_bytes: 0,
        retried: Vec::new(),
        forgotten_refusals: Vec::new(),
    };
    connection.handle_bytes(&Reply::default().control(result_begin(&begin)).0, NOW);
    let SessionOutcome::Failed(error) = connection.end_sync().unwrap().1 else {
        panic!("it did not fail");
    };
    assert!(error.to_string().contains("before its end"), "{error}");
}

fn taken(remote: &Remote) -> Vec<u8> {
    let subscriptions = remote.open().subscriptions().unwrap();
    subscriptions[0].taken.unwrap().to_vec()
}

#[test]
fn a_schema_that_never_came_is_missed() {
    let remote = Remote::new();
    let error = remote.fails(|_| Reply::default().welcome(UploadState::InSequence, None));
    assert_eq!(error.code(), Code::SchemaMismatch);
}

#[test]
fn more_rows_than_credit_are_refused() {
    let remote = Remote::synced();
    let mut connection = remote.session(options());
    SentMessages::default().take(|| connection.poll_transmit());
    let begin = Reply::default()
        .welcome(UploadState::InSequence, None)
        .control(download_begin(0))
        .table(false);
    connection.handle_bytes(&begin.0, NOW);
    let half = vec![0; INITIAL_CREDIT_BYTES as usize / 2 - 1];
    let too_much = vec![0; INITIAL_CREDIT_BYTES as usize / 2 + 3];
    connection.handle_bytes(&Reply::default().rows(&half).0, NOW);
    assert!(connection.is_syncing());
    connection.handle_bytes(&Reply::default().rows(&too_much).0, NOW);
    let SessionOutcome::Failed(error) = connection.end_sync().unwrap().1 else {
        panic!("it did not fail");
    };
    assert_eq!(error.code(), Code::LimitExceeded);
}

#[test]
fn other_protocols_and_oversized_frames_are_told_apart() {
    let bytes = |bytes: &[u8]| Reply(BytesMut::from(bytes));
    let remote = Remote::synced();
    let web = remote.fails(|_| bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    assert_eq!(web.code(), Code::Usage);
    let tls = remote.fails(|_| bytes(&[0x15, 3, 3, 0, 2, 2, 0x28]));
    assert!(tls.hint().contains("tls://"));
    let oversized = remote.fails(|_| {
        let mut reply = Reply::default().welcome(UploadState::InSequence, None);
        reply.0.extend_from_slice(&[0, 0, 0x10, 1, 2, 1]);
        reply
    });
    assert_eq!(oversized.code(), Code::LimitExceeded);
    let channel = remote.fails(|_| {
        let mut reply = Reply::default().welcome(UploadState::InSequence, None);
        put_rows(&mut reply.0, 9, b"x");
        reply
    });
    assert_eq!(channel.code(), Code::UnexpectedMessage);
}

#[test]
fn a_silent_server_is_given_up() {
    let remote = Remote::changed();
    let mut connection = remote.session(options());
    SentMessages::default().take(|| connection.poll_transmit());
    let deadline = connection.poll_timeout().unwrap();
    let at = |ticks_ms| Now { ticks_ms, ..NOW };
    connection.handle_timeout(at(deadline - 1));
    assert!(connection.is_syncing());
    connection.handle_bytes(&[], at(deadline - 1));
    connection.handle_timeout(at(deadline));
    assert!(connection.is_syncing(), "it has just been heard");
    connection.handle_timeout(at(deadline - 1 + SILENCE.as_millis() as u64));
    let SessionOutcome::Failed(error) = connection.end_sync().unwrap().1 else {
        panic!("it did not fail");
    };
    assert_eq!(error.code(), Code::Timeout);
}

/// What time a device takes it to be makes no difference but to what it shows.
#[test]
fn a_clock_that_is_wrong_by_years_is_no_obstacle() {
    for unix_ms in [i64::MIN, -1, 0, 1, NOW.unix_ms * 20, i64::MAX] {
        let remote = Remote::changed();
        let mut connection = remote.session(options());
        let mut sent = SentMessages::default();
        sent.take(|| connection.poll_transmit());
        let now = Now { unix_ms, ..NOW };
        connection.handle_bytes(&later_reply(&sent).0, now);
        connection.work(now);
        let (database, outcome) = connection.end_sync().unwrap();
        assert!(
            matches!(outcome, SessionOutcome::Done(_)),
            "{unix_ms}: {outcome:?}"
        );
        let status = database.status().unwrap();
        assert_eq!(status.subscriptions[0].last_sync_at_ms, Some(unix_ms));
        // The clock is put right.
        remote.run("INSERT INTO item (id, name) VALUES (77, 'again')");
        let (outcome, _) = remote.sync(later_reply);
        assert!(
            matches!(outcome, SessionOutcome::Done(_)),
            "{unix_ms}: {outcome:?}"
        );
    }
}

#[test]
fn a_cancelled_sync_changes_nothing_wherever_it_is() {
    for steps in 0..3 {
        let remote = Remote::changed();
        let mut connection = remote.session(options());
        let mut sent = SentMessages::default();
        sent.take(|| connection.poll_transmit());
        let before = remote.dump();
        if steps > 0 {
            connection.handle_bytes(&later_reply(&sent).0, NOW);
        }
        if steps > 1 {
            let mut work = connection.poll_work().unwrap();
            work.step(NOW);
            connection.cancel();
            assert!(connection.is_syncing(), "somebody is at work");
            connection.handle_work(work);
        }
        connection.cancel();
        sent.take(|| connection.poll_transmit());
        assert_eq!(sent.names().last(), Some(&"Cancel"));
        let (database, outcome) = connection.end_sync().unwrap();
        drop(database);
        assert!(matches!(
            outcome,
            SessionOutcome::Failed(SyncError::Cancelled)
        ));
        assert_eq!(remote.dump(), before);
    }
}

#[test]
fn of_two_syncs_of_one_file_one_goes_ahead() {
    let remote = Remote::changed();
    let mut slow = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| slow.poll_transmit());
    let (outcome, _) = remote.sync(later_reply);
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    let after = remote.dump();
    answer(&mut slow, &later_reply(&sent).0);
    let SessionOutcome::Failed(error) = slow.end_sync().unwrap().1 else {
        panic!("both went ahead");
    };
    assert_eq!(error.code(), Code::SyncInProgress);
    assert_eq!(remote.dump(), after);
}

#[test]
fn a_remote_without_subscriptions_says_what_to_do() {
    let folder = TempDir::new().unwrap();
    let database = RemoteDatabase::open(&folder.path().join("empty.db")).unwrap();
    let mut connection = RemoteConnection::dial("test", SILENCE, NOW);
    connection.sync(database, options(), [0; 32]);
    assert!(!connection.is_syncing());
    let SessionOutcome::Failed(error) = connection.end_sync().unwrap().1 else {
        panic!("it did not fail");
    };
    assert_eq!(error.code(), Code::Usage);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let remote = Remote::new();
        let (outcome, _) = remote.sync(|_| Reply(BytesMut::from(&bytes[..])));
        prop_assert!(matches!(outcome, SessionOutcome::Failed(_)));
    }

    #[test]
    fn flipped_bits_never_panic_and_never_leave_a_half_applied_sync(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..4),
        first in any::<bool>(),
    ) {
        let remote = if first { Remote::new() } else { Remote::changed() };
        let (_, sent) = remote.sync(|_| Reply::default());
        let before = remote.dump();
        let mut reply = if first { first_reply() } else { later_reply(&sent) };
        for (index, bit) in flips {
            let index = index.index(reply.0.len());
            reply.0[index] ^= 1 << bit;
        }
        match remote.sync(|_| reply).0 {
            // The flip hit something that only people read, or the checkpoint.
            SessionOutcome::Done(_) => {}
            SessionOutcome::Again(_) => {}
            _ => prop_assert_eq!(remote.dump(), before),
        }
    }
}
