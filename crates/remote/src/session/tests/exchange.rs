//! Syncs with a server that keeps to the protocol.

use tidewater_connection::device::DeviceError;
use tidewater_protocol::frame::INITIAL_CREDIT_BYTES;
use tidewater_protocol::message::{
    Busy, Control, Credit, DownloadEnd, FailureNotice, Ping, Proof, SignedIn, SyncWaiting,
    UploadState,
};
use tidewater_protocol::{Code, Datum, Op, RowsWriter};

use crate::database::RowSelection;
use crate::scripted::{
    NOW, REMOTE_ID, Remote, Reply, SentMessages, answer, download_begin, first_reply, items,
    later_reply, options, schema,
};
use crate::session::{
    Now, ProofKind, SessionOptions, SessionOutcome, SyncDirection, SyncError, SyncPhase,
};

fn report(outcome: SessionOutcome) -> crate::report::Report {
    match outcome {
        SessionOutcome::Done(report) => report,
        other => panic!("the sync did not succeed: {other:?}"),
    }
}

fn failure(code: Code) -> Reply {
    Reply::default().connection(Control::Failure(FailureNotice::new(code, "no", "")))
}

#[test]
fn a_first_sync_signs_in_by_password_and_makes_the_tables() {
    let remote = Remote::new();
    let (outcome, sent) = remote.sync(|_| first_reply());
    let report = report(outcome);
    assert_eq!(report.downloaded.upserts, 2);
    assert_eq!(remote.items(), [(1, "one".into()), (2, "two".into())]);
    assert_eq!(sent.names(), ["SignIn", "Hello", "DownloadRequest", "Ack"]);
    assert_eq!(sent.sign_in().proof, Some(Proof::Password("secret".into())));
    assert!(sent.sign_in().remote_id.is_empty());

    let (_, sent) = remote.sync(|_| Reply::default());
    assert_eq!(sent.sign_in().remote_id, REMOTE_ID);
    assert_eq!(sent.sign_in().proof, Some(Proof::Token(b"token".to_vec())));
    let subscription = &sent.hello().subscriptions[0];
    assert_eq!(subscription.checkpoint, b"checkpoint");
    assert_eq!(subscription.schema_hash, schema().hash());
}

/// What a server says when nothing has happened.
fn nothing() -> Reply {
    Reply::default()
        .welcome(UploadState::InSequence, None)
        .control(download_begin(0))
        .control(Control::DownloadEnd(DownloadEnd::default()))
        .end()
}

/// A sync by token at which nothing happens, so long after the last one.
fn idle_sync(remote: &Remote, after_ms: i64) {
    let now = Now {
        unix_ms: NOW.unix_ms + after_ms,
        ..NOW
    };
    let mut connection = remote.session(options());
    connection.poll_transmit();
    let reply = Reply::default().connection(Control::SignedIn(Box::new(SignedIn {
        token: Vec::new(),
        credential: Vec::new(),
        ..match tidewater_testing::scripted::signed_in(REMOTE_ID) {
            Control::SignedIn(signed_in) => *signed_in,
            other => panic!("{other:?}"),
        }
    })));
    connection.handle_bytes(&reply.0, now);
    let rest = nothing().0.split_off(Reply::default().signed_in().0.len());
    connection.handle_bytes(&rest, now);
    connection.work(now);
    let (_, outcome) = connection.end_sync().unwrap();
    assert_eq!(report(outcome), crate::report::Report::default());
}

#[test]
fn an_idle_sync_leaves_the_file_as_it_is_but_for_the_minute() {
    let remote = Remote::synced();
    let last_sync = || remote.open().status().unwrap().subscriptions[0].last_sync_at_ms;
    let observer = rusqlite::Connection::open(remote.path()).unwrap();
    let commits = || -> i64 {
        let version = observer.query_row("PRAGMA data_version", [], |row| row.get(0));
        version.unwrap()
    };
    let before = commits();
    for after_ms in [0, 1_000, 59_999] {
        idle_sync(&remote, after_ms);
        assert_eq!(commits(), before, "{after_ms}");
        assert_eq!(last_sync(), Some(NOW.unix_ms));
    }
    for after_ms in [60_000, -1] {
        let before = commits();
        idle_sync(&remote, after_ms);
        assert_ne!(commits(), before, "{after_ms}");
        assert_eq!(last_sync(), Some(NOW.unix_ms + after_ms));
    }
    // What the application writes goes up with the next one.
    remote.run("INSERT INTO item VALUES (3, 'three')");
    let (outcome, _) = remote.sync(later_reply);
    assert_eq!(report(outcome).uploaded.inserts, 1);
}

#[test]
fn an_upload_leaves_in_one_flight_and_its_acknowledgement_ends_it() {
    let remote = Remote::changed();
    let (outcome, sent) = remote.sync(later_reply);
    let report = report(outcome);
    assert_eq!(report.uploaded.inserts, 1);
    assert_eq!(report.downloaded.upserts, 1);
    assert_eq!(report.downloaded.removals, 1);
    assert_eq!(
        sent.names(),
        [
            "SignIn",
            "Hello",
            "UploadBegin",
            "TableBegin",
            "UploadEnd",
            "DownloadRequest",
            "Ack"
        ]
    );
    assert_eq!(sent.rows(), items(Op::Insert, &[(3, "three")]));
    let Some(Control::UploadEnd(end)) = sent.controls().nth(4) else {
        panic!("no UploadEnd");
    };
    assert_eq!((end.inserts, end.updates, end.deletes), (1, 0, 0));
    assert_eq!(end.checksum, crc32fast::hash(&sent.rows()));

    let (_, sent) = remote.sync(|_| Reply::default());
    let subscription = &sent.hello().subscriptions[0];
    assert_eq!(subscription.sequence, 1);
    assert!(subscription.pending_upload_id.is_empty());
    assert_eq!(
        sent.names(),
        ["SignIn", "Hello", "DownloadRequest", "Cancel"]
    );
}

#[test]
fn refused_rows_are_reported_and_stay() {
    let remote = Remote::changed();
    let (outcome, _) = remote.sync(|sent| {
        let refused = items(Op::Refused, &[(3, "price is missing")]);
        Reply::default()
            .welcome(UploadState::InSequence, None)
            .result(&sent.upload(), &refused)
            .download(false, &[], 0, 0)
            .end()
    });
    let report = report(outcome);
    assert_eq!(report.refused, 1);
    assert_eq!(report.refused_rows[0].table, "item");
    assert_eq!(report.refused_rows[0].reason, "price is missing");
    assert_eq!(remote.items().len(), 3);
    assert_eq!(remote.open().refused().unwrap().len(), 1);
    assert_eq!(remote.open().retry_refused(RowSelection::All).unwrap(), 1);
    let (_, sent) = remote.sync(|_| Reply::default());
    assert_eq!(sent.upload().sequence, 2);
}

#[test]
fn a_lost_acknowledgement_is_made_good_without_sending_the_rows_again() {
    let remote = Remote::changed();
    let (_, first) = remote.sync(|_| Reply::default());
    let mut connection = remote.session(options());
    // The Welcome is there before anything was sent: the upload never begins.
    connection.handle_bytes(
        &Reply::default()
            .welcome(UploadState::AlreadyApplied, None)
            .0,
        NOW,
    );
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names(), ["SignIn", "Hello", "DownloadRequest"]);
    let rest = Reply::default()
        .result(&first.upload(), &[])
        .download(false, &[], 0, 0)
        .end();
    answer(&mut connection, &rest.0);
    let report = report(connection.end_sync().unwrap().1);
    assert_eq!(report.uploaded.inserts, 1);
    let (_, sent) = remote.sync(|_| Reply::default());
    assert_eq!(sent.hello().subscriptions[0].sequence, 1);
}

#[test]
fn an_upload_that_a_script_has_ended_is_taken_anew() {
    let remote = Remote::changed();
    let ended = |publication: &str| {
        let failure = FailureNotice {
            subject: publication.to_owned(),
            ..FailureNotice::new(Code::ScriptFailed, "no", "")
        };
        Reply::default()
            .welcome(UploadState::InSequence, None)
            .control(Control::Failure(failure))
    };
    // As long as nobody says that it took no effect, it stays what it was.
    let (_, first) = remote.sync(|_| ended(""));
    remote.run("UPDATE item SET name = 'tres' WHERE id = 3");
    let publication = first.hello().subscriptions[0].publication.clone();
    let (outcome, second) = remote.sync(|_| ended(&publication));
    assert!(matches!(outcome, SessionOutcome::Failed(_)), "{outcome:?}");
    assert_eq!(second.upload().upload_id, first.upload().upload_id);
    assert_eq!(second.rows(), first.rows());
    remote.run("INSERT INTO item VALUES (4, 'four')");
    let (_, third) = remote.sync(|_| Reply::default());
    assert_eq!(third.upload().sequence, 1);
    assert_ne!(third.upload().upload_id, first.upload().upload_id);
    assert_eq!(
        third.hello().subscriptions[0].pending_upload_id,
        third.upload().upload_id
    );
    assert_eq!(third.rows(), items(Op::Insert, &[(3, "tres"), (4, "four")]));
    // Its answer was lost: it is sent again as it was.
    remote.run("DELETE FROM item WHERE id = 3");
    let (_, fourth) = remote.sync(|_| ended(&publication));
    assert_eq!(fourth.upload().upload_id, third.upload().upload_id);
    let (_, fifth) = remote.sync(|_| Reply::default());
    assert_eq!(fifth.rows(), items(Op::Insert, &[(4, "four")]));
}

/// A remote with an upload that is larger than the initial credit.
fn large_upload() -> Remote {
    let remote = Remote::synced();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
         INSERT INTO item SELECT i, printf('%.*c', 1000, 'x') FROM n",
    );
    remote
}

#[test]
fn a_large_upload_waits_for_credit() {
    let remote = large_upload();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.rows().len() as u64, INITIAL_CREDIT_BYTES);
    assert_eq!(
        sent.names(),
        ["SignIn", "Hello", "UploadBegin", "TableBegin"]
    );
    let credit = Control::Credit(Credit {
        channel: 1,
        bytes: 1000,
    });
    connection.handle_bytes(&Reply::default().connection(credit).0, NOW);
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.rows().len() as u64, INITIAL_CREDIT_BYTES + 1000);
    let credit = Control::Credit(Credit {
        channel: 1,
        bytes: u64::MAX,
    });
    connection.handle_bytes(&Reply::default().connection(credit).0, NOW);
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names()[4..], ["UploadEnd", "DownloadRequest"]);
    let Some(Control::UploadEnd(end)) = sent.controls().nth(4) else {
        panic!("no UploadEnd");
    };
    assert_eq!(end.inserts, 2991);
    assert_eq!(end.checksum, crc32fast::hash(&sent.rows()));
    let reply = Reply::default()
        .welcome(UploadState::InSequence, None)
        .result(&sent.upload(), &[])
        .download(false, &[], 0, 0)
        .end();
    answer(&mut connection, &reply.0);
    report(connection.end_sync().unwrap().1);
}

#[test]
fn an_upload_that_the_server_has_is_abandoned_in_the_middle() {
    let remote = large_upload();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    let upload = sent.upload();
    let reply = Reply::default().welcome(UploadState::AlreadyApplied, None);
    connection.handle_bytes(&reply.0, NOW);
    sent.take(|| connection.poll_transmit());
    assert_eq!(sent.names()[4..], ["UploadEnd", "DownloadRequest"]);
    let Some(Control::UploadEnd(end)) = sent.controls().nth(4) else {
        panic!("no UploadEnd");
    };
    assert!(end.abandoned);
    let reply = Reply::default()
        .result(&upload, &[])
        .download(false, &[], 0, 0)
        .end();
    answer(&mut connection, &reply.0);
    report(connection.end_sync().unwrap().1);
}

#[test]
fn a_restored_or_copied_remote_starts_over_with_what_is_pending() {
    let remote = Remote::changed();
    let (outcome, first) =
        remote.sync(|_| Reply::default().welcome(UploadState::NewIdentity, None));
    assert!(matches!(outcome, SessionOutcome::Again(ProofKind::Token)));
    let (_, sent) = remote.sync(|_| Reply::default());
    assert_eq!(sent.sign_in().remote_id, [8; 16]);
    let subscription = &sent.hello().subscriptions[0];
    assert_eq!(subscription.sequence, 0);
    assert!(subscription.checkpoint.is_empty());
    assert_ne!(sent.upload().upload_id, first.upload().upload_id);
    assert_eq!(sent.rows(), first.rows());
}

#[test]
fn a_download_only_sync_leaves_changes_pending_but_tells_what_was_taken() {
    let remote = Remote::changed();
    let download_only = || SessionOptions {
        direction: SyncDirection::DownloadOnly,
        ..options()
    };
    let reply = |_: &SentMessages| {
        Reply::default()
            .welcome(UploadState::InSequence, None)
            .download(false, &items(Op::Upsert, &[(4, "four")]), 1, 0)
            .end()
    };
    let (outcome, sent) = remote.sync_with(download_only(), reply);
    report(outcome);
    assert_eq!(sent.names(), ["SignIn", "Hello", "DownloadRequest", "Ack"]);
    assert!(sent.hello().subscriptions[0].pending_upload_id.is_empty());
    // Now an upload is taken, and lost.
    let (_, lost) = remote.sync(|_| Reply::default());
    let (outcome, sent) = remote.sync_with(download_only(), reply);
    report(outcome);
    assert_eq!(sent.names(), ["SignIn", "Hello", "DownloadRequest", "Ack"]);
    assert_eq!(
        sent.hello().subscriptions[0].pending_upload_id,
        lost.upload().upload_id
    );
    let (_, again) = remote.sync(|_| Reply::default());
    assert_eq!(again.upload(), lost.upload());
}

#[test]
fn an_upload_only_sync_takes_no_download() {
    let remote = Remote::changed();
    let upload_only = SessionOptions {
        direction: SyncDirection::UploadOnly,
        ..options()
    };
    let (outcome, sent) = remote.sync_with(upload_only, |sent| {
        Reply::default()
            .welcome(UploadState::InSequence, Some(&schema()))
            .result(&sent.upload(), &[])
            .end()
    });
    assert_eq!(report(outcome).uploaded.inserts, 1);
    assert!(sent.controls().any(
        |control| matches!(control, Control::DownloadRequest(request) if request.upload_only)
    ));
}

#[test]
fn a_row_that_could_not_be_applied_is_asked_for_again() {
    let remote = Remote::synced();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    // The application changes a row while its download is on the way.
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let reply = Reply::default()
        .welcome(UploadState::InSequence, None)
        .download(false, &items(Op::Upsert, &[(1, "theirs")]), 1, 0)
        .end();
    answer(&mut connection, &reply.0);
    report(connection.end_sync().unwrap().1);
    assert_eq!(remote.items()[0].1, "mine");
    remote.run("UPDATE item SET name = 'one' WHERE id = 1");
    let (_, sent) = remote.sync(|_| Reply::default());
    assert!(sent.names().contains(&"RequestBegin"));
    assert!(sent.rows().ends_with(&items_request(1)));
}

fn items_request(id: i64) -> Vec<u8> {
    let shape = schema().tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    writer.key(Op::Request, &[Datum::Integer(id)]);
    writer.take()
}

#[test]
fn a_refused_token_is_followed_by_the_credential_and_that_by_the_password() {
    let remote = Remote::synced();
    let (outcome, _) = remote.sync(|_| failure(Code::TokenExpired));
    assert!(matches!(
        outcome,
        SessionOutcome::Again(ProofKind::Credential)
    ));
    let mut retry = options();
    retry.first_proof = ProofKind::Credential;
    let (outcome, sent) = remote.sync_with(retry, |_| failure(Code::CredentialInvalid));
    let credential = Proof::Credential(b"credential".to_vec());
    assert_eq!(sent.sign_in().proof, Some(credential));
    assert!(matches!(outcome, SessionOutcome::Again(ProofKind::User)));
    let mut retry = options();
    retry.first_proof = ProofKind::User;
    let (outcome, sent) = remote.sync_with(retry, |_| failure(Code::WrongPassword));
    assert_eq!(sent.sign_in().proof, Some(Proof::Password("secret".into())));
    let SessionOutcome::Failed(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.code(), Code::WrongPassword);
    assert!(!error.hint().is_empty());
}

#[test]
fn a_new_address_is_remembered_once_the_server_lets_the_remote_in() {
    let remote = Remote::synced();
    let before = remote.open().account().unwrap().server;
    let moved = || SessionOptions {
        server: Some("tls://elsewhere:7439".into()),
        ..options()
    };
    let (outcome, _) = remote.sync_with(moved(), |_| failure(Code::UserDisabled));
    assert!(matches!(outcome, SessionOutcome::Failed(_)), "{outcome:?}");
    assert_eq!(remote.open().account().unwrap().server, before);
    let (outcome, _) = remote.sync_with(moved(), later_reply_without_upload);
    report(outcome);
    assert_eq!(
        remote.open().account().unwrap().server,
        "tls://elsewhere:7439"
    );
}

fn later_reply_without_upload(_: &SentMessages) -> Reply {
    Reply::default()
        .welcome(UploadState::InSequence, None)
        .download(false, &[], 0, 0)
        .end()
}

#[test]
fn a_table_that_is_sent_whole_counts_the_rows_that_it_has_lost() {
    let remote = Remote::synced();
    let before = remote.items().len() as u64;
    for (names, removals) in [(&["one"][..], before - 1), (&["one", "two"], 0), (&[], 2)] {
        let rows = (1..).zip(names.iter().copied()).collect::<Vec<_>>();
        let (outcome, _) = remote.sync(|_| {
            let count = rows.len() as u64;
            Reply::default()
                .welcome(UploadState::InSequence, None)
                .download(true, &items(Op::Upsert, &rows), count, 0)
                .end()
        });
        let downloaded = report(outcome).downloaded;
        assert_eq!(
            (downloaded.upserts, downloaded.removals),
            (rows.len() as u64, removals)
        );
        assert_eq!(remote.items().len(), rows.len());
    }
}

/// Whether a table that is sent whole is replaced in a moment.
fn replaces_shortly(remote: &Remote) -> bool {
    let mut connection = remote.session(options());
    while connection.poll_transmit().is_some() {}
    let rows = items(Op::Upsert, &[(1, "one"), (2, "two")]);
    let reply = Reply::default()
        .welcome(UploadState::InSequence, None)
        .download(true, &rows, 2, 0)
        .end();
    connection.handle_bytes(&reply.0, NOW);
    let mut work = connection.poll_work().expect("something to apply");
    let is_short = work.is_short();
    while !work.is_done() {
        work.step(NOW);
    }
    connection.handle_work(work);
    connection.handle_end(None);
    report(connection.end_sync().unwrap().1);
    is_short
}

#[test]
fn a_table_is_replaced_in_a_moment_unless_the_file_is_large() {
    let remote = Remote::synced();
    assert!(replaces_shortly(&remote));
    remote.run("CREATE TABLE own AS SELECT zeroblob(2 << 20) AS blob");
    assert!(!replaces_shortly(&remote));
    remote.run("DROP TABLE own; VACUUM");
    assert!(replaces_shortly(&remote));
}

#[test]
fn a_publication_that_the_server_does_not_know_is_given_up_unless_it_has_synced() {
    let remote = Remote::synced();
    let subscribe = |publication| {
        let account = remote.open().account().unwrap();
        let mut database = remote.open();
        let (server, user) = (&account.server, &account.user);
        database.subscribe(server, user, &[publication]).unwrap();
    };
    subscribe("mistyped");
    let (outcome, sent) = remote.sync(|_| failure(Code::Busy));
    assert!(matches!(outcome, SessionOutcome::Failed(_)), "{outcome:?}");
    assert_eq!(sent.hello().subscriptions.len(), 2);
    // Nobody has said yet that there is none.
    let (_, sent) = remote.sync(|_| failure(Code::UnknownPublication));
    assert_eq!(sent.hello().subscriptions.len(), 2);
    let (_, sent) = remote.sync(|_| failure(Code::UnknownPublication));
    assert_eq!(sent.hello().subscriptions.len(), 1);
    let (outcome, sent) = remote.sync(later_reply_without_upload);
    assert_eq!(sent.hello().subscriptions.len(), 1);
    report(outcome);
}

#[test]
fn without_a_password_an_invalid_credential_is_an_error_that_says_what_to_do() {
    let remote = Remote::synced();
    let no_password = SessionOptions {
        user_proof: None,
        first_proof: ProofKind::Credential,
        ..options()
    };
    let (outcome, _) = remote.sync_with(no_password, |_| failure(Code::CredentialInvalid));
    let SessionOutcome::Failed(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.code(), Code::CredentialInvalid);
    assert!(error.hint().contains("password"));
    let never_signed_in = Remote::new();
    let no_password = SessionOptions {
        user_proof: None,
        ..options()
    };
    let (outcome, sent) = never_signed_in.sync_with(no_password, |_| Reply::default());
    assert!(matches!(
        outcome,
        SessionOutcome::Failed(SyncError::Connection(DeviceError::ProofMissing))
    ));
    assert!(sent.frames.is_empty());
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let remote = Remote::changed();
    let error = remote.fails(|_| {
        Reply::default().control(Control::Busy(Busy {
            retry_after_ms: 2500,
        }))
    });
    assert_eq!(error.code(), Code::Busy);
    assert_eq!(error.retry_after_ms(), Some(2500));
}

#[test]
fn waiting_shows_as_progress_and_pings_are_answered() {
    let remote = Remote::synced();
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert_eq!(
        connection.progress().unwrap().phase,
        SyncPhase::Waiting { ahead: 0 }
    );
    let reply = Reply::default()
        .control(Control::Waiting(SyncWaiting {
            ahead: 17,
            handler: false,
        }))
        .connection(Control::Ping(Ping { nonce: 99 }));
    connection.handle_bytes(&reply.0, NOW);
    let progress = connection.progress().unwrap();
    assert_eq!(progress.phase, SyncPhase::Waiting { ahead: 17 });
    sent.take(|| connection.poll_transmit());
    assert!(matches!(
        sent.controls().last(),
        Some(Control::Pong(pong)) if pong.nonce == 99
    ));
}

#[test]
fn a_download_in_many_frames_is_given_credit() {
    let remote = Remote::new();
    let name = "y".repeat(2000);
    let rows: Vec<(i64, &str)> = (0..1500).map(|id| (id, &name[..])).collect();
    let rows = items(Op::Upsert, &rows);
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    let begin = Reply::default()
        .welcome(UploadState::InSequence, Some(&schema()))
        .control(download_begin(0))
        .table(true);
    connection.handle_bytes(&begin.0, NOW);
    for piece in rows.chunks(100_001) {
        connection.handle_bytes(&Reply::default().rows(piece).0, NOW);
        sent.take(|| connection.poll_transmit());
    }
    assert_eq!(connection.progress().unwrap().rows, 1500);
    assert_eq!(
        connection.progress().unwrap().table.as_deref(),
        Some("item")
    );
    let granted: u64 = sent
        .controls()
        .map(|control| match control {
            Control::Credit(credit) => credit.bytes,
            _ => 0,
        })
        .sum();
    assert!(granted > rows.len() as u64 - INITIAL_CREDIT_BYTES);
    let end = Reply::default()
        .control(Control::DownloadEnd(DownloadEnd {
            checkpoint: vec![1],
            upserts: 1500,
            removals: 0,
            checksum: crc32fast::hash(&rows),
        }))
        .end();
    answer(&mut connection, &end.0);
    assert_eq!(
        report(connection.end_sync().unwrap().1).downloaded.upserts,
        1500
    );
}

#[test]
fn an_application_that_has_tables_in_the_file_can_write_during_the_first_download() {
    let remote = Remote::new();
    remote.run("CREATE TABLE own (x)");
    let mut connection = remote.session(options());
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    let reply = first_reply().0;
    connection.handle_bytes(&reply[..reply.len() - 10], NOW);
    remote.run("INSERT INTO own VALUES (1)");
    answer(&mut connection, &reply[reply.len() - 10..]);
    report(connection.end_sync().unwrap().1);
    assert_eq!(remote.items().len(), 2);
}
