//! Calls after a sync, with a server that answers as a test says.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use tidewater_protocol::frame::{CALL_CHANNEL, Frame, Message, put_message};
use tidewater_protocol::message::{Answer, ArgumentValue, Call, CallKind};
use tidewater_protocol::{Code, ColumnType, Datum, json};
use tidewater_remote::SyncPhase;
use tidewater_testing::scripted::first_reply;

use super::*;

/// The calls that have come so far, with their ids.
fn calls(sent: &SentMessages) -> Vec<(u64, Call)> {
    let messages = sent.frames.iter().filter_map(|frame| match frame {
        Frame::Message {
            channel: CALL_CHANNEL,
            message,
        } if message.flags == CallKind::Call as u8 => Some(message),
        _ => None,
    });
    let calls = messages.map(|it| (it.id, Call::decode(it.payload.clone()).unwrap()));
    calls.collect()
}

/// Reads the call with this number, counted from 0.
fn call(peer: &mut Peer, number: usize) -> (u64, Call) {
    peer.read_while(|sent| calls(sent).len() <= number);
    calls(&peer.sent).remove(number)
}

fn answer(peer: &mut Peer, id: u64, answer: &Answer) {
    let message = Message {
        id,
        deadline_ms: 0,
        flags: CallKind::Answer as u8,
        payload: Bytes::from(answer.encode_to_vec()),
    };
    let mut bytes = BytesMut::new();
    put_message(&mut bytes, CALL_CHANNEL, &message).unwrap();
    peer.write(&bytes);
}

fn serve_first(peer: &mut Peer) {
    peer.read_until("DownloadRequest");
    peer.write(&first_reply().0);
}

/// A remote with a call in its outbox.
fn calling() -> File {
    let remote = File::new();
    remote.run("INSERT INTO tidewater_outbox (name, arguments) VALUES ('price', '{\"item\": 7}')");
    remote
}

fn row(remote: &File, sql: &str) -> String {
    let application = Connection::open(remote.path()).unwrap();
    application.query_row(sql, [], |row| row.get(0)).unwrap()
}

const STATE: &str = "SELECT state || coalesce(' ' || code, '') FROM tidewater_outbox";

#[test]
fn what_is_in_the_outbox_is_called_on_the_connection_of_the_sync() {
    let server = Server::tcp(vec![Box::new(|peer| {
        serve_first(peer);
        let (id, call) = call(peer, 0);
        assert_eq!(call.procedure, "price");
        assert_eq!(call.arguments[0].given, Some(ArgumentValue::Integer(7)));
        answer(peer, id, &json::to_answer(&3.into()));
        peer.read_to_end();
    })]);
    let remote = calling();
    let mut phases = Vec::new();
    let report = sync_watched(&remote, &server.url, &options(), &mut |progress| {
        phases.push(progress.phase);
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.outbox.answered, report.inbox), (1, 1));
    assert_eq!(phases.last(), Some(&SyncPhase::Calling));
    assert_eq!(row(&remote, "SELECT payload FROM tidewater_inbox"), "3");
    server.done();
}

#[test]
fn a_call_whose_caller_loses_patience_is_made_again_under_the_same_key() {
    let (key, keys) = std::sync::mpsc::channel();
    let again = key.clone();
    let server = Server::tcp(vec![
        Box::new(move |peer| {
            serve_first(peer);
            key.send(call(peer, 0).1.key).unwrap();
            peer.read_to_end();
        }),
        Box::new(move |peer| {
            peer.read_until("DownloadRequest");
            let end = Reply::default()
                .welcome(tidewater_protocol::message::UploadState::InSequence, None)
                .download(false, &[], 0, 0)
                .end();
            peer.write(&end.0);
            let (id, call) = call(peer, 0);
            again.send(call.key).unwrap();
            answer(peer, id, &Answer::nothing());
            peer.read_to_end();
        }),
    ]);
    let remote = calling();
    let mut first = None;
    let cancelled = sync_watched(&remote, &server.url, &options(), &mut |progress| {
        if progress.phase == SyncPhase::Calling {
            first = first.take().or_else(|| keys.try_recv().ok());
        }
        match first {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    assert_eq!(cancelled.unwrap_err().code(), Code::Cancelled);
    // The sync itself is committed.
    assert_eq!(remote.items().len(), 2);
    assert_eq!(row(&remote, STATE), "sent");
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert_eq!((report.outbox.answered, report.outbox.pending), (1, 0));
    assert_eq!(first, keys.recv().ok());
    server.done();
}

#[test]
fn a_server_that_goes_in_the_middle_of_a_call_is_no_error_of_the_sync() {
    let server = Server::tcp(vec![Box::new(|peer| {
        serve_first(peer);
        call(peer, 0);
    })]);
    let remote = calling();
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert_eq!((report.outbox.pending, report.downloaded.upserts), (1, 2));
    assert_eq!(row(&remote, STATE), "sent connection_lost");
    server.done();
}

#[test]
fn events_that_cannot_be_had_are_told_with_the_interest() {
    let server = Server::tcp(vec![Box::new(|peer| {
        serve_first(peer);
        let (id, call) = call(peer, 0);
        assert_eq!(call.procedure, "tidewater.events");
        answer(
            peer,
            id,
            &Answer::value(ColumnType::Text, &Datum::Text("what")),
        );
        peer.read_to_end();
    })]);
    let remote = File::new();
    remote.run("INSERT INTO tidewater_interest (space, subject) VALUES ('field', '>')");
    let report = sync(&remote, &server.url, &options()).unwrap();
    assert_eq!(report.inbox, 0);
    let code = "SELECT code FROM tidewater_interest WHERE since > 0 AND reason <> ''";
    assert_eq!(row(&remote, code), "malformed_message");
    server.done();
}
