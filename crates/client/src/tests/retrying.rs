//! Servers that turn a sync away with a time to come back.

use tidewater_protocol::Code;
use tidewater_protocol::message::{Busy, Control, FailureNotice};
use tidewater_remote::SyncPhase;
use tidewater_testing::scripted::later_reply;

use super::*;
use crate::RetryPolicy;

/// Longer than any test waits.
const NEVER_MS: u64 = 3_000_000;

/// Turns a sync away before it has signed in.
fn busy(retry_after_ms: u64) -> Behaviour {
    turn_away(
        Control::Busy(Busy { retry_after_ms }),
        Reply::connection,
        "SignIn",
    )
}

fn turn_away(
    control: Control,
    answer: fn(Reply, Control) -> Reply,
    after: &'static str,
) -> Behaviour {
    Box::new(move |peer| {
        peer.read_until(after);
        peer.write(&answer(Reply::default(), control).0);
        peer.read_to_end();
    })
}

fn failure(code: Code, retry_after_ms: u64) -> Control {
    let mut failure = FailureNotice::new(code, "no", "");
    failure.retry_after_ms = retry_after_ms;
    Control::Failure(failure)
}

fn with(retry: RetryPolicy) -> SyncOptions {
    SyncOptions { retry, ..options() }
}

#[test]
fn a_busy_server_is_asked_again_while_the_file_and_the_server_are_free() {
    let unavailable = failure(Code::ConsolidatedUnavailable, 250);
    let server = Server::tcp(vec![
        busy(300),
        busy(0),
        // Let in, and turned away after it said what it wants.
        turn_away(
            unavailable,
            |reply, it| reply.signed_in().control(it),
            "DownloadRequest",
        ),
        serve(later_reply),
    ]);
    let remote = File::changed();
    let mut waits = Vec::new();
    let report = sync_watched(&remote, &server.url, &options(), &mut |progress| {
        if let SyncPhase::Retrying { reason, in_ms } = progress.phase {
            // Fails at once if anybody holds a lock.
            remote.run("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS app (x); COMMIT");
            waits.push((reason, in_ms));
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.retries, report.uploaded.inserts), (3, 1));
    let of = |code| waits.iter().filter(move |it| it.0 == code).map(|it| it.1);
    assert!(of(Code::Busy).max() <= Some(300));
    assert!(of(Code::ConsolidatedUnavailable).max() <= Some(250));
    // Each wait is told several times, down to its end.
    assert!(of(Code::Busy).filter(|left| *left == 0).count() >= 2);
    assert!(of(Code::ConsolidatedUnavailable).count() >= 2);
    assert!(report.duration_ms >= 550);
    server.done();
}

#[test]
fn a_wait_is_cancelled_from_its_progress() {
    let server = Server::tcp(vec![busy(NEVER_MS)]);
    let remote = File::changed();
    let forever = with(RetryPolicy::AsAdvised { limit: None });
    let mut told = 0;
    let result = sync_watched(&remote, &server.url, &forever, &mut |progress| {
        told += u32::from(matches!(progress.phase, SyncPhase::Retrying { .. }));
        match told {
            3.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    assert_eq!(result.unwrap_err().code(), Code::Cancelled);
    assert_eq!(remote.items().len(), 3);
    server.done();
}

#[test]
fn what_the_policy_does_not_wait_for_fails_with_the_time_to_come_back() {
    let server = Server::tcp(vec![
        busy(1_000),
        busy(NEVER_MS),
        turn_away(
            failure(Code::TooManyAttempts, 1_000),
            Reply::connection,
            "SignIn",
        ),
    ]);
    let remote = File::changed();
    let later = sync(&remote, &server.url, &with(RetryPolicy::Off)).unwrap_err();
    assert_eq!(
        (later.code(), later.retry_after_ms()),
        (Code::Busy, Some(1_000))
    );
    // It would be over the limit.
    let later = sync(&remote, &server.url, &options()).unwrap_err();
    assert_eq!(later.retry_after_ms(), Some(NEVER_MS));
    let wrong = sync(&remote, &server.url, &options()).unwrap_err();
    assert_eq!(wrong.code(), Code::TooManyAttempts);
    server.done();
}

#[test]
fn a_fixed_time_counts_whatever_the_server_says() {
    // More often than a server may send a remote away in vain.
    let turned_away = driver::MAX_VAIN_SESSIONS + 2;
    let mut behaviours: Vec<Behaviour> = (0..turned_away).map(|_| busy(NEVER_MS)).collect();
    behaviours.push(serve(later_reply));
    let server = Server::tcp(behaviours);
    let fixed = with(RetryPolicy::Fixed {
        delay: Duration::ZERO,
        limit: None,
    });
    let report = sync(&File::changed(), &server.url, &fixed).unwrap();
    assert_eq!(report.retries, turned_away as u64);
    server.done();
}
