//! Several subscriptions in one sync, and values larger than a frame.

use rusqlite::Connection;
use tidewater_protocol::frame::INITIAL_CREDIT_BYTES;
use tidewater_protocol::message::{
    Control, Credit, DownloadEnd, ResultEnd, TableBegin, UploadBegin, UploadState, Welcome,
    WelcomeSubscription,
};
use tidewater_protocol::{Code, Op, PublicationSchema, UploadId};

use crate::scripted::{
    NOW, Remote, Reply, SentMessages, answer, download_begin, items, options, result_begin, schema,
    welcome,
};
use crate::session::{SessionOutcome, SyncDirection};

/// The same publication under other names.
fn renamed(publication: &str, table: &str) -> PublicationSchema {
    let mut schema = schema();
    schema.name = publication.into();
    schema.tables[0].name = table.into();
    schema
}

fn staff() -> PublicationSchema {
    renamed("staff", "person")
}

fn welcome_two(states: [UploadState; 2], schemas: bool) -> Reply {
    let Control::Welcome(single) = welcome(UploadState::InSequence, None) else {
        unreachable!()
    };
    let encoded = [schema().encode(), staff().encode()];
    let subscriptions = states.into_iter().zip(encoded);
    let subscriptions = subscriptions.map(|(state, schema)| WelcomeSubscription {
        upload_state: state as i32,
        schema: if schemas { schema } else { Vec::new() },
        ..WelcomeSubscription::default()
    });
    Reply::default()
        .signed_in()
        .control(Control::Welcome(Welcome {
            subscriptions: subscriptions.collect(),
            ..single
        }))
}

fn download(reply: Reply, index: u32, table: &PublicationSchema, rows: &[u8], count: u64) -> Reply {
    let begin = TableBegin {
        replace: count > 1,
        ..TableBegin::for_table(&table.tables[0])
    };
    reply
        .control(download_begin(index))
        .control(Control::TableBegin(begin))
        .rows(rows)
        .control(Control::DownloadEnd(DownloadEnd {
            checkpoint: vec![index as u8],
            upserts: count,
            removals: 0,
            checksum: crc32fast::hash(rows),
        }))
}

/// A remote with two subscriptions that has synced once and was changed in both.
fn changed() -> Remote {
    let remote = Remote::new();
    let mut database = remote.open();
    let server = "tcp://127.0.0.1:7439";
    database.subscribe(server, "ann", &["staff"]).unwrap();
    drop(database);
    let rows = items(Op::Upsert, &[(1, "one"), (2, "two")]);
    let (outcome, sent) = remote.sync(|_| {
        let reply = welcome_two([UploadState::InSequence; 2], true);
        let reply = download(reply, 0, &schema(), &rows, 2);
        download(reply, 1, &staff(), &rows, 2).end()
    });
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    assert_eq!(sent.hello().subscriptions[1].publication, "staff");
    remote.run("INSERT INTO item VALUES (3, 'three'); DELETE FROM person WHERE id = 1");
    remote
}

fn people(remote: &Remote) -> Vec<i64> {
    let connection = Connection::open(remote.path()).unwrap();
    let mut rows = connection
        .prepare("SELECT id FROM person ORDER BY id")
        .unwrap();
    let rows = rows.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// The subscriptions of kept uploads, and whether they are the one that inserted a row.
fn kept(remote: &Remote) -> Vec<(i64, bool)> {
    let connection = Connection::open(remote.path()).unwrap();
    let mut kept = connection
        .prepare(
            "SELECT subscription, instr(bytes, CAST('three' AS BLOB)) > 0 FROM tidewater_kept \
             ORDER BY id",
        )
        .unwrap();
    let kept = kept.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    kept.unwrap().map(Result::unwrap).collect()
}

fn uploads(sent: &SentMessages) -> Vec<UploadBegin> {
    let begins = sent.controls().filter_map(|control| match control {
        Control::UploadBegin(begin) => Some(begin.clone()),
        _ => None,
    });
    begins.collect()
}

fn result(reply: Reply, upload: &UploadBegin) -> Reply {
    reply
        .control(result_begin(upload))
        .control(Control::ResultEnd(ResultEnd {
            inserts: 1,
            ..ResultEnd::default()
        }))
}

#[test]
fn each_subscription_has_its_own_upload_result_and_download() {
    let remote = changed();
    let (outcome, sent) = remote.sync(|sent| {
        let uploads = uploads(sent);
        assert_eq!(uploads.len(), 2);
        assert_ne!(uploads[0].upload_id, uploads[1].upload_id);
        let reply = welcome_two([UploadState::InSequence; 2], false);
        let reply = result(result(reply, &uploads[0]), &uploads[1]);
        let reply = download(reply, 0, &schema(), &[], 0);
        let row = items(Op::Upsert, &[(7, "seven")]);
        download(reply, 1, &staff(), &row, 1).end()
    });
    let SessionOutcome::Done(report) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(report.uploaded.inserts, 2);
    assert_eq!(report.downloaded.upserts, 1);
    assert_eq!(people(&remote), [2, 7]);
    assert_eq!(kept(&remote), [(1, true), (2, false)]);
    let expected = [
        "SignIn",
        "Hello",
        "UploadBegin",
        "TableBegin",
        "UploadEnd",
        "UploadBegin",
        "TableBegin",
        "UploadEnd",
        "DownloadRequest",
        "Ack",
    ];
    assert_eq!(sent.names(), expected);
}

#[test]
fn results_that_count_beyond_all_numbers_are_told_as_the_largest() {
    let remote = changed();
    let (outcome, _) = remote.sync(|sent| {
        let mut reply = welcome_two([UploadState::InSequence; 2], false);
        for upload in &uploads(sent) {
            reply = reply.control(result_begin(upload));
            reply = reply.control(Control::ResultEnd(ResultEnd {
                inserts: u64::MAX,
                ..ResultEnd::default()
            }));
        }
        let reply = download(reply, 0, &schema(), &[], 0);
        download(reply, 1, &staff(), &[], 0).end()
    });
    let SessionOutcome::Done(report) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(report.uploaded.inserts, u64::MAX);
}

#[test]
fn one_upload_may_have_been_applied_while_the_other_was_not() {
    let remote = changed();
    let (_, lost) = remote.sync(|_| Reply::default());
    let lost = uploads(&lost);
    let (outcome, _) = remote.sync(|_| {
        let states = [UploadState::AlreadyApplied, UploadState::InSequence];
        let reply = welcome_two(states, false);
        let reply = result(result(reply, &lost[0]), &lost[1]);
        let reply = download(reply, 0, &schema(), &[], 0);
        download(reply, 1, &staff(), &[], 0).end()
    });
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    // A download-only sync gets the result of what was applied, and no other.
    let remote = changed();
    let (_, lost) = remote.sync(|_| Reply::default());
    let lost = uploads(&lost);
    let mut download_only = options();
    download_only.direction = SyncDirection::DownloadOnly;
    let (outcome, _) = remote.sync_with(download_only, |_| {
        let states = [UploadState::InSequence, UploadState::AlreadyApplied];
        let reply = result(welcome_two(states, false), &lost[1]);
        let reply = download(reply, 0, &schema(), &[], 0);
        download(reply, 1, &staff(), &[], 0).end()
    });
    assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
    let state = remote.open().subscriptions().unwrap();
    assert_eq!((state[0].sequence, state[1].sequence), (0, 1));
    let pending = UploadId::from_slice(&lost[0].upload_id);
    assert_eq!((state[0].taken, state[1].taken), (pending, None));
}

#[test]
fn results_and_downloads_of_subscriptions_in_the_wrong_order_are_refused() {
    let remote = changed();
    let before = |remote: &Remote| (remote.items(), people(remote));
    let rows = before(&remote);
    let error = remote.fails(|sent| {
        let reply = welcome_two([UploadState::InSequence; 2], false);
        result(reply, &uploads(sent)[1])
    });
    assert_eq!(error.code(), Code::UnexpectedMessage);
    let error = remote.fails(|sent| {
        let uploads = uploads(sent);
        let reply = welcome_two([UploadState::InSequence; 2], false);
        let reply = result(result(reply, &uploads[0]), &uploads[1]);
        download(reply, 1, &staff(), &[], 0)
    });
    assert_eq!(error.code(), Code::UnexpectedMessage);
    let error = remote.fails(|sent| {
        let uploads = uploads(sent);
        let reply = welcome_two([UploadState::InSequence; 2], false);
        let reply = result(result(reply, &uploads[0]), &uploads[1]);
        // A table of the other subscription.
        let reply = download(reply, 0, &staff(), &items(Op::Upsert, &[(8, "x")]), 1);
        download(reply, 1, &staff(), &[], 0).end()
    });
    assert_eq!(error.code(), Code::SchemaMismatch);
    assert_eq!(before(&remote), rows);
}

#[test]
fn a_value_larger_than_a_frame_goes_up_and_comes_down() {
    let remote = Remote::synced();
    let size = 3 * INITIAL_CREDIT_BYTES as usize + 17;
    remote.run(&format!(
        "INSERT INTO item VALUES (3, printf('%.*c', {size}, 'x'))"
    ));
    let mut connection = remote.session(options());
    let credit = Control::Credit(Credit {
        channel: 1,
        bytes: 1 << 30,
    });
    connection.handle_bytes(&Reply::default().connection(credit).0, NOW);
    let mut sent = SentMessages::default();
    sent.take(|| connection.poll_transmit());
    assert!(sent.rows() == items(Op::Insert, &[(3, &"x".repeat(size))]));
    let begin = Reply::default()
        .welcome(UploadState::InSequence, None)
        .result(&sent.upload(), &[])
        .control(download_begin(0))
        .table(false);
    connection.handle_bytes(&begin.0, NOW);
    let rows = items(Op::Upsert, &[(4, &"y".repeat(size))]);
    for piece in rows.chunks(300_000) {
        connection.handle_bytes(&Reply::default().rows(piece).0, NOW);
        sent.take(|| connection.poll_transmit());
    }
    let end = Reply::default().control(Control::DownloadEnd(DownloadEnd {
        upserts: 1,
        checksum: crc32fast::hash(&rows),
        ..DownloadEnd::default()
    }));
    answer(&mut connection, &end.end().0);
    assert!(matches!(
        connection.end_sync().unwrap().1,
        SessionOutcome::Done(_)
    ));
    let items = remote.items();
    assert_eq!(items[2].1.len(), size);
    assert!(items[3].1 == "y".repeat(size));
}
