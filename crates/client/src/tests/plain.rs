//! Over plain TCP.

use std::time::{Duration, Instant};

use tidewater_connection::device::DeviceError;
use tidewater_protocol::frame::INITIAL_CREDIT_BYTES;
use tidewater_protocol::message::{
    Control, Credit, DownloadEnd, FailureNotice, Pong, SyncWaiting, UploadState,
};
use tidewater_protocol::{Code, Op};

use super::*;
use crate::carrier_loop::CarrierLoop;
use crate::clock::DriverClock;
use crate::link::Link;
use crate::ping;
use tidewater_remote::session::{ProofKind, SessionOptions};
use tidewater_remote::spool::{FileDownloadStore, FileSpool};
use tidewater_remote::{SyncDirection, SyncPhase, VerifyMode};
use tidewater_testing::scripted::{download_begin, items, later_reply};

#[test]
fn a_sync_goes_through_and_tells_what_it_moved() {
    let server = Server::tcp(vec![serve(|_| first_reply()), serve(later_reply)]);
    let remote = File::new();
    let mut phases = Vec::new();
    let report = sync_watched(&remote, &server.url, &options(), &mut |progress| {
        phases.push(progress.phase);
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().downloaded.upserts, 2);
    assert_eq!(phases.last(), Some(&SyncPhase::Done));
    remote.run("INSERT INTO item VALUES (3, 'three')");
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert_eq!(report.uploaded.inserts, 1);
    assert_eq!(report.downloaded.removals, 1);
    assert!(report.bytes_sent > 0 && report.bytes_received > 0);
    assert_eq!(remote.items().len(), 3);
    server.done();
}

#[test]
fn a_refused_token_and_credential_end_in_one_successful_sync() {
    let refuse = |code| -> Behaviour {
        Box::new(move |peer| {
            peer.read_until("DownloadRequest");
            let failure = Control::Failure(FailureNotice::new(code, "no", ""));
            peer.write(&Reply::default().connection(failure).0);
            peer.read_to_end();
        })
    };
    let server = Server::tcp(vec![
        refuse(Code::TokenExpired),
        refuse(Code::CredentialInvalid),
        serve(later_reply),
    ]);
    let remote = File::changed();
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert_eq!(report.uploaded.inserts, 1);
    server.done();
}

#[test]
fn a_server_that_sends_the_remote_away_for_ever_is_given_up() {
    let again = || -> Behaviour {
        Box::new(|peer| {
            peer.read_until("DownloadRequest");
            let reply = Reply::default().welcome(UploadState::NewIdentity, None);
            peer.write(&reply.0);
            peer.read_to_end();
        })
    };
    let server = Server::tcp((0..driver::MAX_VAIN_SESSIONS).map(|_| again()).collect());
    let error = sync(&File::changed(), &server.url, &options()).unwrap_err();
    assert_eq!(error.code(), Code::UnexpectedMessage);
    server.done();
}

#[test]
fn a_server_that_closes_at_once_or_in_the_middle_is_a_lost_connection() {
    let cut = |bytes: usize| -> Behaviour {
        Box::new(move |peer| {
            peer.read_until("DownloadRequest");
            let reply = later_reply(&peer.sent);
            peer.write(&reply.0[..bytes]);
        })
    };
    let server = Server::tcp(vec![
        Box::new(|_| {}),
        cut(0),
        cut(9),
        cut(120),
        serve(later_reply),
    ]);
    let remote = File::changed();
    let before = remote.items();
    for _ in 0..4 {
        let error = sync(&remote, &server.url, &options()).unwrap_err();
        assert_eq!(error.code(), Code::ConnectionLost, "{error}");
        assert_eq!(remote.items(), before);
    }
    sync(&remote, &server.url, &options()).unwrap();
    server.done();
}

#[test]
fn a_reason_given_before_closing_is_heard_also_in_the_middle_of_an_upload() {
    let remote = File::synced();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 900)
         INSERT INTO item SELECT i, printf('%.*c', 1000, 'x') FROM n",
    );
    let server = Server::tcp(vec![Box::new(|peer| {
        peer.read_until("Hello");
        let failure = Control::Failure(FailureNotice::new(Code::RemoteRevoked, "revoked", "ask"));
        peer.write(&Reply::default().control(failure).0);
        peer.read_to_end();
    })]);
    let error = sync(&remote, &server.url, &options()).unwrap_err();
    assert_eq!(error.code(), Code::RemoteRevoked);
    assert_eq!(error.hint(), "ask");
    server.done();
}

#[test]
fn a_server_that_stalls_is_given_up_after_the_timeout() {
    let server = Server::tcp(vec![Box::new(Peer::read_to_end)]);
    let hasty = SyncOptions {
        timeout: Duration::from_millis(300),
        ..options()
    };
    let start = Instant::now();
    let error = sync(&File::changed(), &server.url, &hasty).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    assert!(start.elapsed() >= Duration::from_millis(300));
    server.done();
}

#[test]
fn a_sync_is_cancelled_from_its_progress_while_the_server_is_silent() {
    let server = Server::tcp(vec![Box::new(|peer: &mut Peer| {
        peer.read_to_end();
        assert_eq!(peer.sent.names().last(), Some(&"Cancel"));
    })]);
    let remote = File::changed();
    let error = sync_watched(
        &remote,
        &server.url,
        &options(),
        &mut |progress| match progress.phase {
            SyncPhase::Waiting { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        },
    );
    assert!(matches!(
        error,
        Err(ClientError::Sync(SyncError::Cancelled))
    ));
    server.done();
}

#[test]
fn garbage_is_told_from_the_protocol() {
    let server = Server::tcp(vec![Box::new(|peer| {
        peer.read_until("Hello");
        peer.write(b"SSH-2.0-OpenSSH_9.2\r\n");
        peer.read_to_end();
    })]);
    let error = sync(&File::changed(), &server.url, &options()).unwrap_err();
    assert!(
        matches!(error.device_error(), Some(DeviceError::NotTidewater { .. })),
        "{error}"
    );
    server.done();
}

/// If either side only wrote, both would wait for each other: the network between them
/// holds less than what each of them sends.
#[test]
fn a_server_that_writes_before_it_reads_and_a_large_upload_do_not_wait_for_each_other() {
    let remote = File::synced();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 16000)
         INSERT INTO item SELECT i, printf('%.*c', 1000, 'x') FROM n",
    );
    let server = Server::tcp(vec![Box::new(|peer| {
        let credit = Control::Credit(Credit {
            channel: 1,
            bytes: 1 << 40,
        });
        peer.write(&Reply::default().connection(credit).0);
        let waiting = Reply::default().control(Control::Waiting(SyncWaiting {
            ahead: u64::MAX,
            handler: false,
        }));
        let waiting = waiting.0.repeat(50_000);
        for _ in 0..16 {
            peer.write(&waiting);
        }
        peer.read_until("DownloadRequest");
        let reply = later_reply(&peer.sent);
        peer.write(&reply.0);
        peer.read_to_end();
    })]);
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert!(
        (15_000_000..25_000_000).contains(&report.bytes_sent),
        "{report:?}"
    );
    assert!(report.bytes_received > 10_000_000);
    server.done();
}

/// Larger than what the spool keeps in memory, and than the credit of a server.
#[test]
fn a_large_download_waits_in_a_file_that_nobody_sees() {
    let rows: Vec<(i64, String)> = (10..5_000).map(|id| (id, "z".repeat(1_000))).collect();
    let rows: Vec<(i64, &str)> = rows.iter().map(|(id, name)| (*id, &name[..])).collect();
    let packed = items(Op::Upsert, &rows);
    let server = Server::tcp(vec![Box::new(move |peer| {
        peer.read_until("DownloadRequest");
        let reply = Reply::default()
            .welcome(UploadState::InSequence, None)
            .control(download_begin(0))
            .table(false);
        peer.write(&reply.0);
        for (index, piece) in packed.chunks(INITIAL_CREDIT_BYTES as usize / 2).enumerate() {
            peer.write(&Reply::default().rows(piece).0);
            peer.read_while(|sent| credits(sent) < index);
        }
        let end = Control::DownloadEnd(DownloadEnd {
            checkpoint: vec![1],
            upserts: 4_990,
            removals: 0,
            checksum: crc32fast::hash(&packed),
        });
        peer.write(&Reply::default().control(end).end().0);
        peer.read_to_end();
    })]);
    let remote = File::synced();
    let mut applied = 0;
    let report = sync_watched(&remote, &server.url, &options(), &mut |progress| {
        if progress.phase == SyncPhase::Applying {
            applied = applied.max(progress.rows);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().downloaded.upserts, 4_990);
    assert_eq!(applied, 4_990);
    let files = std::fs::read_dir(remote.path().parent().unwrap()).unwrap();
    let left = files.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("download")
    });
    assert_eq!(left.count(), 0);
    server.done();
}

fn credits(sent: &SentMessages) -> usize {
    sent.names()
        .iter()
        .filter(|&&name| name == "Credit")
        .count()
}

#[test]
fn a_server_that_is_not_there_cannot_be_reached() {
    // A port that was free a moment ago may be another test's by now: nobody listens at this one.
    let url = "tcp://127.0.0.1:1";
    let error = sync(&File::changed(), url, &options()).unwrap_err();
    assert_eq!(error.code(), Code::Unreachable);
    assert!(error.to_string().contains(url), "{error}");
    assert_eq!(ping(url, &options()).unwrap_err().code(), Code::Unreachable);
}

#[test]
fn unencrypted_connections_to_other_machines_are_refused_unless_allowed() {
    let error = sync(&File::changed(), "tcp://192.0.2.1:7439", &options()).unwrap_err();
    assert_eq!(error.code(), Code::Usage);
    assert!(error.hint().contains("tls://"));
}

#[test]
fn a_remote_that_was_never_subscribed_says_what_to_do() {
    let folder = TempDir::new().unwrap();
    let mut remote = crate::Remote::open(folder.path().join("new.db")).unwrap();
    let error = remote.sync(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.code(), Code::Usage);
    assert!(error.hint().contains("server"));
}

#[test]
fn the_paved_path_opens_subscribes_and_syncs() {
    let server = Server::tcp(vec![serve(|_| first_reply()), serve(later_reply)]);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("new.db");
    let mut remote = crate::Remote::open(&path).unwrap();
    remote.subscribe(&server.url, "ann", &["sales"]).unwrap();
    remote.set_password("secret");
    remote.set_direction(SyncDirection::Both);
    let report = remote.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.downloaded.upserts, 2);
    // Another program, without the password.
    let mut remote = crate::Remote::open(&path).unwrap();
    let application = rusqlite::Connection::open(&path).unwrap();
    application
        .execute_batch("INSERT INTO item VALUES (3, 'three')")
        .unwrap();
    let report = remote.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.uploaded.inserts, 1);
    assert_eq!(remote.status().unwrap().subscriptions[0].sequence, 1);
    server.done();
}

#[test]
fn what_was_changed_after_a_broken_sync_goes_up_in_the_next_call_too() {
    fn sequence(peer: &Peer) -> u64 {
        peer.sent.upload().sequence
    }
    let server = Server::tcp(vec![
        Box::new(|peer| peer.read_until("DownloadRequest")),
        Box::new(|peer| {
            peer.read_until("DownloadRequest");
            assert_eq!(sequence(peer), 1);
            let reply = later_reply(&peer.sent);
            peer.write(&reply.0);
            peer.read_to_end();
        }),
        Box::new(|peer| {
            peer.read_until("DownloadRequest");
            assert_eq!(sequence(peer), 2);
            let reply = Reply::default()
                .welcome(UploadState::InSequence, None)
                .result(&peer.sent.upload(), &[])
                .download(false, &[], 0, 0);
            peer.write(&reply.end().0);
            peer.read_to_end();
        }),
    ]);
    let file = File::changed();
    file.point_at(&server.url);
    let mut remote = crate::Remote::open(file.path()).unwrap();
    let go_on = &mut |_: &SyncProgress| ControlFlow::Continue(());
    let error = remote.sync(go_on).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionLost);
    file.run("INSERT INTO item VALUES (8, 'eight')");
    let report = remote.sync(go_on).unwrap();
    assert_eq!(report.uploaded.inserts, 2);
    assert_eq!(remote.status().unwrap().subscriptions[0].sequence, 2);
    server.done();
}

#[test]
fn a_ping_is_answered_or_times_out() {
    let answer: Behaviour = Box::new(|peer| {
        let mut buffer = [0; 1000];
        for nonce in [1, 2] {
            let count = peer.stream.read(&mut buffer).unwrap();
            assert!(count > 0);
            let pong = Control::Pong(Pong {
                nonce,
                server: "scripted/1".into(),
                protocol_version: 1 << 16,
            });
            peer.write(&Reply::default().connection(pong).0);
        }
        peer.read_to_end();
    });
    let server = Server::tcp(vec![answer, Box::new(Peer::read_to_end)]);
    let report = ping(&server.url, &options()).unwrap();
    assert_eq!(report.server, "scripted/1");
    assert_eq!(report.protocol_version, "1.0");
    assert_eq!(report.url, server.url);
    let hasty = SyncOptions {
        timeout: Duration::from_millis(100),
        ..options()
    };
    let error = ping(&server.url, &hasty).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    server.done();
}

#[test]
fn a_sync_on_a_connection_that_the_server_has_left_is_told_so_and_gives_the_file_back() {
    let server = Server::tcp(vec![Box::new(|_| {})]);
    let remote = File::changed();
    let urls = server.url.parse().unwrap();
    let go_on = &mut || ControlFlow::Continue(());
    let options = options();
    let (dial, clock) = (options.dial(None, None), DriverClock::start());
    let (line, _) = CarrierLoop::dial(&urls, &dial, &options.client, clock, go_on).unwrap();
    let link = Link::over(line).unwrap();
    link.keep().unwrap();
    server.done();
    while link.can_sync() {
        std::thread::yield_now();
    }
    let database = remote.open();
    let session = SessionOptions {
        direction: SyncDirection::Both,
        verify: VerifyMode::default(),
        user_proof: None,
        server: None,
        other_centre: false,
        adopt: None,
        first_proof: ProofKind::Credential,
        spool: Box::new(FileSpool::beside(database.path())),
        keep: Box::new(FileDownloadStore::beside(database.path())),
    };
    let (database, outcome) = link.sync(database, session, [7; 32], &mut |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(outcome.unwrap_err().code(), Code::ConnectionLost);
    assert_eq!(database.path(), remote.path());
}
