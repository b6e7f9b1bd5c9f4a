//! Servers that are not what the program expects: another protocol, too busy, or no
//! Tidewater server at all.

use std::io::{Read, Write};
use std::net::TcpListener;

use bytes::BytesMut;
use tidewater_protocol::Code;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_control};
use tidewater_protocol::message::{Busy, Control, Failure};

use crate::program::{Place, Run};

/// Syncs, for the first time, with a server that gives everybody this answer.
fn sync_with(answer: Vec<u8>) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    // Ends with the test process: nobody waits for a stranger.
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut opening = [0; 1024];
            if socket.read(&mut opening).is_ok() {
                let _ = socket.write_all(&answer);
            }
            let _ = socket.shutdown(std::net::Shutdown::Write);
            // Until the remote has read it and gone: closing at once could cut it off.
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    let url = format!("tcp://{address}");
    let arguments = [
        "sync",
        "a.db",
        "--server",
        &url,
        "--user",
        "nancy",
        "--publication",
        "main",
        "--no-retry",
        "--json",
    ];
    Place::new().tidewater_as("secret", &arguments)
}

fn framed(control: Control) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_control(&mut out, SYNC_CHANNEL, control).expect("it is small");
    out.to_vec()
}

#[test]
fn a_server_of_another_protocol_exits_with_4() {
    let failure = Failure::new(
        Code::ProtocolVersion,
        "this server speaks protocol 9.0",
        "update the remote's program",
    );
    let run = sync_with(framed(Control::Failure(failure))).exits(4);
    let error = &run.json()["error"];
    assert_eq!(error["code"], "protocol_version");
    assert_eq!(error["hint"], "update the remote's program");
}

#[test]
fn a_busy_server_exits_with_2_and_says_when_to_come_back() {
    let busy = Busy {
        retry_after_ms: 1_500,
    };
    let run = sync_with(framed(Control::Busy(busy))).exits(2);
    let error = &run.json()["error"];
    assert_eq!(error["code"], "busy");
    assert_eq!(error["retry_after_ms"], 1_500);
}

#[test]
fn whatever_a_stranger_answers_is_an_error_that_says_what_to_do() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        &[0xff; 4_096],
        &[0; 4_096],
    ] {
        let run = sync_with(answer.to_vec());
        assert!(matches!(run.code, 2 | 5), "{run:?}");
        let error = &run.json()["error"];
        assert!(
            error["hint"].as_str().is_some_and(|it| !it.is_empty()),
            "{run:?}"
        );
    }
}
