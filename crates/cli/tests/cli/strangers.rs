//! Servers that are not what the program expects: another protocol, too busy, or no
//! Tidewater server at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use bytes::BytesMut;
use tidewater_protocol::Code;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_control};
use tidewater_protocol::message::{Busy, Control, FailureNotice};

use crate::program::{Place, Run};
use crate::shop::{Shop, TABLES, configure, prepared};

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
    let failure = FailureNotice::new(
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
    for (answer, code) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            1,
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 1),
        (b"220 mail.example.com ESMTP\r\n", 1),
        (&[0xff; 4_096], 1),
        (&[0; 4_096], 1),
        // A balancer without a server says nothing, either.
        (b"", 2),
    ] {
        let run = sync_with(answer.to_vec()).exits(code);
        let error = &run.json()["error"];
        let hint = error["hint"].as_str().expect("it says what to do");
        assert!(hint.contains("host and port"), "{run:?}");
        assert!(!hint.contains("when the network is better"), "{run:?}");
    }
}

/// A first sync, whose password is at hand.
fn first_sync(place: &Place, url: &str) -> Run {
    let arguments = [
        "sync",
        "a.db",
        "--server",
        url,
        "--user",
        "nancy",
        "--publication",
        "main",
        "--json",
    ];
    place.tidewater_as("secret", &arguments)
}

/// What answers no TLS may be a line that damages what goes over it: the sync says what it may be, and
/// is worth another try.
#[track_caller]
fn has_no_encryption(url: &str) {
    let run = first_sync(&Place::new(), url).exits(2);
    run.tells(&["what it answers is not TLS", "listens for this scheme"]);
}

/// What people write for the address of another program, or of a server that listens for another
/// scheme: it is told at once, as a mistake of the address.
fn is_told(url: &str, parts: &[&str]) {
    let run = first_sync(&Place::new(), url).exits(1);
    let error = &run.json()["error"];
    assert_eq!(error["code"], "usage", "{url}: {run:?}");
    let told = format!("{} {}", error["message"], error["hint"]);
    for part in parts {
        assert!(told.contains(part), "{url}: {part:?} is not in {told}");
    }
}

#[test]
fn an_ssh_server_behind_the_address_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    // Ends with the test process.
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n");
            let _ = socket.read(&mut [0; 1024]);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    is_told(&format!("tcp://{address}"), &["SSH", "host and port"]);
    has_no_encryption(&format!("tls://{address}"));
    is_told(&format!("http://{address}"), &["does not speak HTTP"]);
    is_told(&format!("ws://{address}"), &["does not speak HTTP"]);
}

/// A web server that knows nothing of Tidewater.
struct WebServer {
    child: Child,
    address: String,
}

impl WebServer {
    fn start(place: &Place) -> WebServer {
        let folder = place.path("pages");
        std::fs::create_dir(&folder).expect("the folder can be made");
        let mut child = Command::new("python3")
            .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Python runs");
        let stdout = child.stdout.take().expect("it is piped");
        let mut said = String::new();
        let read = BufReader::new(stdout).read_line(&mut said);
        read.expect("it says where it listens");
        let mut words = said.split_whitespace().skip_while(|it| *it != "port");
        let port = words.nth(1).expect("it names its port");
        WebServer {
            address: format!("127.0.0.1:{port}"),
            child,
        }
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_web_server_behind_the_address_is_told() {
    let place = Place::new();
    let web = WebServer::start(&place);
    let address = &web.address;
    is_told(&format!("tcp://{address}"), &["host and port"]);
    has_no_encryption(&format!("tls://{address}"));
    is_told(
        &format!("http://{address}"),
        &["a web server answers there"],
    );
    is_told(&format!("ws://{address}"), &["does not speak WebSocket"]);
}

#[test]
fn a_server_that_listens_for_another_scheme_says_so() {
    let shop = Shop::open();
    let tcp = shop.server.url();
    for scheme in ["http", "ws"] {
        let url = tcp.replace("tcp", scheme);
        is_told(&url, &["a Tidewater server listens there, but for tcp://"]);
    }
    has_no_encryption(&tcp.replace("tcp", "tls"));
    let place = Place::new();
    let centre = prepared(&place);
    let cert = ["cert", "--out", "tls", "--host", "127.0.0.1"];
    let lines = place.tidewater(&cert).done().stdout;
    configure(&place, &centre, &lines, TABLES);
    let server = place.serve_on("tls://127.0.0.1:0", &[]);
    let tls = server.url();
    is_told(&tls.replace("tls", "tcp"), &["tls://"]);
    for scheme in ["http", "ws"] {
        is_told(&tls.replace("tls", scheme), &["does not speak HTTP"]);
    }
    for scheme in ["https", "wss"] {
        let url = tls.replace("tls", scheme);
        let ca = place.path("tls/tidewater-dev.pem");
        let ca = ca.to_str().expect("it is text");
        let arguments = [
            "sync",
            "other.db",
            "--server",
            &url,
            "--user",
            "nancy",
            "--publication",
            "main",
            "--ca",
            ca,
        ];
        let run = place.tidewater_as("secret", &arguments).exits(1);
        run.tells(&["a Tidewater server listens there, but for tls://"]);
    }
}
