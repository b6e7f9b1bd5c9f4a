//! Thousands of connections that wait, against a real server process: what each costs it.

use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{Resource, getrlimit, setrlimit};
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, PREFACE, SYNC_CHANNEL, put_control, take_frame,
};
use tidewater_protocol::message::{
    Control, DownloadRequest, Hello, HelloSubscription, PROTOCOL_VERSION, Ping, Proof, SignIn,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::centre::Centre;
use crate::program::{Place, Server, free_url, sqlite};
use crate::shop::{SCHEMA, TABLES, add_user, configure, password};

const CONNECTIONS: usize = 5_000;

/// What each may cost: some more than what docs/performance.md says, because compilers and
/// allocators differ.
const MOST_BYTES: u64 = 17 << 10;

/// Those that are not counted: the server makes its own buffers when they come.
const WARM: usize = 200;

/// As many connections as this system lets a process have, up to what is wanted.
fn connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS + WARM) as u64 + 500;
    let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    let least = allowed.saturating_sub(500) as usize;
    CONNECTIONS.min(least.saturating_sub(WARM))
}

/// Anonymous memory that is in use: not the program itself.
fn resident_bytes(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.process());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: u64 = number
        .and_then(|it| it.parse().ok())
        .expect("a number of KiB");
    kib << 10
}

struct Waiter {
    stream: TcpStream,
    input: BytesMut,
}

impl Waiter {
    async fn come(address: &str) -> Waiter {
        let stream = TcpStream::connect(address).await.expect("it listens");
        Waiter {
            stream,
            input: BytesMut::new(),
        }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("it reads");
    }

    /// Reads on until this comes.
    async fn hear(&mut self, what: &str, is_it: impl Fn(&Control) -> bool) {
        loop {
            match take_frame(&mut self.input).expect("it speaks the protocol") {
                Some(Frame::Control {
                    control: Some(control),
                    ..
                }) if is_it(&control) => break,
                Some(Frame::Control {
                    control: Some(control @ (Control::Failure(_) | Control::Busy(_))),
                    ..
                }) => panic!("{control:?} instead of {what}"),
                Some(_) => {}
                None => {
                    let count = self.stream.read_buf(&mut self.input).await;
                    assert!(count.expect("it answers") > 0, "the end instead of {what}");
                }
            }
        }
    }
}

fn framed(channel: u8, control: Control) -> BytesMut {
    let mut out = BytesMut::new();
    put_control(&mut out, channel, control).expect("it is small");
    out
}

/// What a remote says to a server that knows it, up to its Hello.
fn opening(place: &Place) -> BytesMut {
    let file = sqlite(&place.path("nancy.db"));
    let sql = "SELECT remote_id, token, centre FROM tidewater_state";
    let known = file.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (remote_id, token, centre): (Vec<u8>, Vec<u8>, String) = known.expect("it has synced");
    let sign_in = SignIn {
        protocol_version: PROTOCOL_VERSION,
        remote_id,
        user: "nancy".into(),
        centre,
        proof: Some(Proof::Token(token)),
        client: "waiter".into(),
        is_program: false,
        device_name: String::new(),
    };
    let hello = Hello {
        subscriptions: vec![HelloSubscription {
            publication: "main".into(),
            ..HelloSubscription::default()
        }],
    };
    let mut out = framed(CONNECTION_CHANNEL, Control::SignIn(Box::new(sign_in)));
    out.unsplit(framed(SYNC_CHANNEL, Control::Hello(hello)));
    out
}

#[test]
fn thousands_that_wait_cost_a_few_kilobytes_each() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let server = "[server.limits]\nbacklog = 12000\nhandshake_timeout = \"5m\"\nidle_timeout = \"5m\"\nkeepalive_interval = \"1s\"";
    configure(&place, &centre, server, TABLES);
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    let server = place.serve_on(&free_url(), &["--log-level", "error"]);
    let url = server.url().to_owned();
    let account = ["--user", "nancy", "--publication", "main"];
    let first = [&["sync", "nancy.db", "--server", &url][..], &account].concat();
    place.tidewater_as(&password("nancy"), &first).done();

    let count = connections();
    let address = url.strip_prefix("tcp://").expect("it is tcp");
    let opening = opening(&place);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let measured = async {
        // As they come, so that the listener's queue never overflows.
        let come = async |count: usize| {
            let mut waiters = Vec::with_capacity(count);
            for _ in 0..count {
                let mut waiter = Waiter::come(address).await;
                let ping = framed(CONNECTION_CHANNEL, Control::Ping(Ping { nonce: 7 }));
                waiter.say(&[&PREFACE[..], &ping].concat()).await;
                waiter
                    .hear("Pong", |it| matches!(it, Control::Pong(_)))
                    .await;
                waiters.push(waiter);
            }
            waiters
        };
        let enter = async |waiters: &mut [Waiter]| {
            for waiter in &mut *waiters {
                waiter.say(&opening).await;
            }
            for waiter in waiters {
                let is_welcome = |it: &Control| matches!(it, Control::Welcome(_));
                waiter.hear("Welcome", is_welcome).await;
            }
        };
        let mut warm = come(WARM).await;
        enter(&mut warm).await;
        let mut each = Vec::new();
        let before = resident_bytes(&server);
        let mut measure = |what| {
            let grown = resident_bytes(&server).saturating_sub(before);
            each.push((what, grown / count as u64));
        };
        let mut waiters = come(count).await;
        measure("connected");
        enter(&mut waiters).await;
        measure("welcome");
        // Nobody gets a download while somebody writes.
        let application = sqlite(&place.path("centre.db"));
        application.execute_batch("BEGIN IMMEDIATE").unwrap();
        let request = DownloadRequest::default();
        let request = framed(SYNC_CHANNEL, Control::DownloadRequest(request));
        for waiter in &mut waiters {
            waiter.say(&request).await;
        }
        for waiter in &mut waiters {
            let is_waiting = |it: &Control| matches!(it, Control::Waiting(_));
            waiter.hear("Waiting", is_waiting).await;
        }
        measure("waiting");
        application.execute_batch("COMMIT").unwrap();
        each
    };
    let patience = Duration::from_secs(120);
    let each = runtime.block_on(async { tokio::time::timeout(patience, measured).await });
    let each = each.expect("the server answers");
    println!("{count} connections, bytes each: {each:?}");
    for (what, bytes) in each {
        assert!(bytes < MOST_BYTES, "{bytes} bytes for each that is {what}");
    }
}
