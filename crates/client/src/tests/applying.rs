//! The connection while a download is applied, which an application's lock holds up here.

use std::sync::mpsc::{Receiver, Sender, channel};

use tidewater_protocol::Op;
use tidewater_protocol::message::{Control, DownloadEnd, Ping, UploadState};
use tidewater_remote::SyncPhase;
use tidewater_testing::scripted::{download_begin, items};

use super::*;

/// A server's answer whose second half comes when the application has locked the file.
fn answer(peer: &mut Peer, locked: &Receiver<()>, rest: impl FnOnce(Reply) -> Reply) {
    let rows: Vec<(i64, String)> = (10..500).map(|id| (id, "z".repeat(1_000))).collect();
    let rows: Vec<(i64, &str)> = rows.iter().map(|(id, name)| (*id, &name[..])).collect();
    let rows = items(Op::Upsert, &rows);
    peer.read_until("DownloadRequest");
    let begin = Reply::default()
        .welcome(UploadState::InSequence, None)
        .control(download_begin(0))
        .table(false);
    peer.write(&begin.0);
    locked.recv().unwrap();
    let end = Control::DownloadEnd(DownloadEnd {
        checkpoint: vec![1],
        upserts: 490,
        removals: 0,
        checksum: crc32fast::hash(&rows),
    });
    peer.write(&rest(Reply::default().rows(&rows).control(end).end()).0);
}

/// An application that locks the file during a download.
struct Application {
    connection: Connection,
    locked: Sender<()>,
    has_locked: bool,
    /// How often it was seen that something is applied.
    applying: usize,
}

impl Application {
    fn of(file: &File, locked: Sender<()>) -> Application {
        Application {
            connection: Connection::open(file.path()).unwrap(),
            locked,
            has_locked: false,
            applying: 0,
        }
    }

    fn watch(&mut self, progress: &SyncProgress) {
        if progress.phase == SyncPhase::Downloading && !self.has_locked {
            self.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            self.has_locked = true;
            self.locked.send(()).unwrap();
        }
        self.applying += usize::from(progress.phase == SyncPhase::Applying);
    }

    fn unlock(&self) {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("COMMIT").unwrap();
        }
    }
}

#[test]
fn a_ping_is_answered_during_a_long_apply() {
    let file = File::synced();
    let (locked, was_locked) = channel();
    let (answered, was_answered) = channel();
    let server = Server::tcp(vec![Box::new(move |peer| {
        let ping = Control::Ping(Ping { nonce: 7 });
        answer(peer, &was_locked, |rest| rest.connection(ping));
        peer.read_until("Pong");
        assert!(!peer.sent.names().contains(&"Ack"), "it is applied");
        answered.send(()).unwrap();
        peer.read_to_end();
        assert_eq!(peer.sent.names().last(), Some(&"Ack"));
    })]);
    let mut application = Application::of(&file, locked);
    let report = sync_watched(&file, &server.url, &options(), &mut |progress| {
        application.watch(progress);
        if was_answered.try_recv().is_ok() {
            application.unlock();
        }
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().downloaded.upserts, 490);
    server.done();
}

#[test]
fn a_connection_that_dies_during_the_apply_changes_nothing() {
    let file = File::synced();
    let (locked, was_locked) = channel();
    let server = Server::tcp(vec![Box::new(move |peer| {
        answer(peer, &was_locked, |rest| rest);
    })]);
    let mut application = Application::of(&file, locked);
    let report = sync_watched(&file, &server.url, &options(), &mut |progress| {
        application.watch(progress);
        let thread = server.thread.as_ref();
        if application.applying > 1 && thread.is_some_and(JoinHandle::is_finished) {
            application.unlock();
        }
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().downloaded.upserts, 490);
    assert_eq!(file.items().len(), 492);
    server.done();
}

#[test]
fn an_apply_that_is_cancelled_leaves_nothing() {
    let file = File::synced();
    let before = file.items();
    let (locked, was_locked) = channel();
    let server = Server::tcp(vec![Box::new(move |peer| {
        answer(peer, &was_locked, |rest| rest);
        peer.read_to_end();
        assert_eq!(peer.sent.names().last(), Some(&"Cancel"));
    })]);
    let mut application = Application::of(&file, locked);
    let result = sync_watched(&file, &server.url, &options(), &mut |progress| {
        application.watch(progress);
        match application.applying {
            // The first time, nobody is at work yet.
            0 | 1 => ControlFlow::Continue(()),
            2 => ControlFlow::Break(()),
            _ => {
                application.unlock();
                ControlFlow::Continue(())
            }
        }
    });
    let error = result.unwrap_err();
    assert!(
        matches!(error, ClientError::Sync(SyncError::Cancelled)),
        "{error}"
    );
    assert_eq!(file.items(), before);
    server.done();
}
