//! Ten thousand first sign-ins at once, against a real server process.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{Resource, getrlimit, setrlimit};
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, PREFACE, SYNC_CHANNEL, put_control, take_frame,
};
use tidewater_protocol::message::{
    Control, Hello, HelloSubscription, PROTOCOL_VERSION, Proof, SignIn,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::centre::Centre;
use crate::program::{Place, free_url};
use crate::shop::{SCHEMA, TABLES, add_user, configure, password};

const SIGN_INS: usize = 10_000;

/// What the server's process may take, all its threads and ten thousand sockets together.
const MOST_MEMORY_KIB: u64 = 512 << 10;

/// What the server said to somebody.
#[derive(Debug, PartialEq)]
enum Answer {
    Welcome,
    Busy(u64),
}

/// As many connections as this system lets a process have, up to what is wanted.
fn connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = SIGN_INS as u64 + 500;
    let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    SIGN_INS.min(allowed.saturating_sub(500) as usize)
}

async fn connect(address: &str) -> TcpStream {
    // A full queue of connections that nobody has accepted yet is a matter of moments.
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect(address).await {
            return stream;
        }
        tokio::task::yield_now().await;
    }
    panic!("{address} does not answer");
}

fn hello() -> BytesMut {
    let sign_in = SignIn {
        protocol_version: PROTOCOL_VERSION,
        user: "nancy".into(),
        proof: Some(Proof::Password(password("nancy"))),
        client: "storm".into(),
        ..SignIn::default()
    };
    let hello = Hello {
        subscriptions: vec![HelloSubscription {
            publication: "main".into(),
            ..HelloSubscription::default()
        }],
    };
    let mut out = BytesMut::from(&PREFACE[..]);
    put_control(
        &mut out,
        CONNECTION_CHANNEL,
        Control::SignIn(Box::new(sign_in)),
    )
    .unwrap();
    put_control(&mut out, SYNC_CHANNEL, Control::Hello(hello)).unwrap();
    out
}

async fn sign_in(mut stream: TcpStream, hello: BytesMut) -> io::Result<Answer> {
    stream.write_all(&hello).await?;
    let mut input = BytesMut::new();
    loop {
        match take_frame(&mut input).map_err(io::Error::other)? {
            Some(Frame::Control {
                control: Some(Control::Welcome(_)),
                ..
            }) => return Ok(Answer::Welcome),
            Some(Frame::Control {
                control: Some(Control::Busy(busy)),
                ..
            }) => return Ok(Answer::Busy(busy.retry_after_ms)),
            Some(Frame::Control {
                control: Some(Control::Failure(failure)),
                ..
            }) => return Err(io::Error::other(failure.message)),
            Some(_) => {}
            None if stream.read_buf(&mut input).await? == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            None => {}
        }
    }
}

/// All of them connected before the first says a word.
async fn storm(address: &str, count: usize) -> Vec<Answer> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        streams.push(connect(address).await);
    }
    let hello = hello();
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn(sign_in(stream, hello.clone()));
    }
    let mut answers = Vec::with_capacity(count);
    while let Some(answer) = tasks.join_next().await {
        answers.push(answer.unwrap().expect("everybody is answered"));
    }
    answers
}

fn peak_memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|it| it.parse().ok())
        .expect("a number of KiB")
}

/// On this scale and with the passwords' real cost: most are asked to come back, one after
/// the other, while those who have signed in before sync as ever.
#[test]
fn ten_thousand_first_sign_ins_are_answered_in_bounded_memory_while_others_sync() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let server = "[server.limits]\nconnections = 12000\nhandshake_timeout = \"2m\"";
    configure(&place, &centre, server, TABLES);
    place.tidewater(&["deploy"]).done();
    for user in ["nancy", "steve"] {
        add_user(&place, user);
    }
    let server = place.serve_on(&free_url(), &["--log-level", "error"]);
    let url = server.url().to_owned();
    let account = ["--user", "steve", "--publication", "main"];
    let first = [&["sync", "steve.db", "--server", &url][..], &account].concat();
    place.tidewater_as(&password("steve"), &first).done();

    let count = connections();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let address = server.urls.last().unwrap().strip_prefix("tcp://").unwrap();
    let (answers, syncs) = std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let patience = Duration::from_secs(120);
            runtime.block_on(async {
                let storm = tokio::time::timeout(patience, storm(address, count));
                storm.await.expect("answered in time")
            })
        });
        let mut syncs = 0;
        while !storm.is_finished() {
            let remote = crate::program::sqlite(&place.path("steve.db"));
            let sql = format!("INSERT INTO product VALUES ({}, 'x')", 100 + syncs);
            remote.execute_batch(&sql).unwrap();
            drop(remote);
            let report = place.tidewater(&["sync", "steve.db", "--json"]).done();
            assert_eq!(report.json()["uploaded"]["inserts"], 1);
            syncs += 1;
        }
        (storm.join().unwrap(), syncs)
    });

    let memory = peak_memory_kib(server.process());
    assert!(
        memory < MOST_MEMORY_KIB,
        "{memory} KiB for {count} sign-ins"
    );
    assert_eq!(answers.len(), count);
    let welcome = answers.iter().filter(|it| **it == Answer::Welcome).count();
    assert!(welcome >= 1, "somebody gets in");
    let told = answers.iter().filter_map(|answer| match answer {
        Answer::Busy(after_ms) => Some(*after_ms),
        Answer::Welcome => None,
    });
    let mut told: Vec<u64> = told.collect();
    told.sort_unstable();
    assert!(
        told.len() > count / 2,
        "the pool is bounded: {welcome} let in"
    );
    assert!(
        told[0] >= 1_000 && told[told.len() - 1] <= 180_000,
        "{told:?}"
    );
    // They come back spread, not all at once: no second gets more than the pool can check.
    let spread = told[told.len() - 1] - told[0];
    assert!(
        spread > 20_000,
        "{spread} ms between the first and the last"
    );
    assert!(syncs >= 1);
    let uploaded = centre.rows("SELECT count(*) FROM product WHERE product_id >= 100");
    assert_eq!(uploaded, [syncs.to_string()]);
}
