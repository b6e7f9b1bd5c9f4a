use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::time::timeout;

use tidewater_connection::{ChannelInput, FramedConnection};
use tidewater_protocol::event::{EVENT_BYTES, EventPosition, EventsReader, put_event};
use tidewater_protocol::frame::{EVENT_CHANNEL, INITIAL_CREDIT_BYTES};
use tidewater_protocol::{Code, RemoteId};
use tidewater_spaces::{PatternTemplate, WhenFull};

use super::*;
use crate::socket_loop::SocketLoop;
use crate::spaces::refusal::{Grant, Right};
use crate::spaces::{Hub, Notice, SpaceMember};
use tidewater_server_config::{ServerLimits, SpaceConfig, SubjectRule};
use tidewater_server_identity::registry::ConnectionRegistry;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::MemoryBudget;

const QUERY: &str = "SELECT 1";

const MUCH: usize = 1 << 30;

fn open_space(name: &str) -> SpaceConfig {
    SpaceConfig {
        name: name.into(),
        publish: SubjectRule::Everyone,
        subscribe: SubjectRule::Everyone,
        durable: None,
        last_value: false,
        slow: WhenFull::DropOldest,
        queue_bytes: 4 << 20,
    }
}

fn patterns(space: &str, texts: &[&str], allow: Option<&str>) -> SubjectRule {
    let read = |text: &&str| PatternTemplate::parse(space, text).unwrap();
    SubjectRule::Patterns {
        patterns: texts.iter().map(read).collect(),
        allow: allow.map(str::to_owned),
    }
}

fn granted(right: Right) -> Grant {
    Grant {
        space: "asked".into(),
        right,
        query: QUERY.into(),
        is_given: true,
    }
}

fn hub(spaces: Vec<SpaceConfig>) -> Arc<Hub> {
    Hub::new(spaces, EVENT_BYTES, MUCH, None, None)
}

fn events<'a>(events: impl IntoIterator<Item = (&'a str, &'a str)>) -> Bytes {
    let mut out = BytesMut::new();
    for (subject, payload) in events {
        put_event(&mut out, subject, None, payload.as_bytes()).unwrap();
    }
    out.freeze()
}

fn read(packed: &[u8]) -> Vec<(String, String)> {
    let mut reader = EventsReader::new(packed, EVENT_BYTES);
    let mut read = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        let payload = String::from_utf8(event.payload.to_vec()).unwrap();
        read.push((event.subject.to_owned(), payload));
    }
    assert_eq!(reader.rest(), 0);
    read
}

/// All that waits for it.
fn drain(member: &SpaceMember) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while let Some(slice) = member.try_next().unwrap() {
        all.extend(read(&slice));
    }
    all
}

fn payloads(member: &SpaceMember) -> Vec<String> {
    drain(member)
        .into_iter()
        .map(|(_, payload)| payload)
        .collect()
}

/// What the future has now.
async fn now<F: Future>(future: F) -> Option<F::Output> {
    timeout(Duration::ZERO, future).await.ok()
}

#[test]
fn an_event_goes_to_whoever_subscribed_and_not_back_to_its_publisher() {
    let hub = hub(vec![open_space("n"), open_space("m")]);
    let [ann, ben, cid] = ["ann", "ben", "cid"].map(|user| SpaceMember::join(&hub, user));
    ann.subscribe("n", ">").unwrap();
    ben.subscribe("n", "a.*").unwrap();
    ben.subscribe("n", ">").unwrap();
    cid.subscribe("m", ">").unwrap();
    let chunk = events([("n/a.b", "1"), ("n/c", "2"), ("m/c", "3"), ("n/a.b", "4")]);
    let published = ann.publish(&chunk).unwrap();
    assert_eq!((published.events, published.refused), (4, 0));
    assert_eq!(published.consumed, chunk.len());
    assert_eq!(payloads(&ann), [""; 0]);
    assert_eq!(payloads(&ben), ["1", "2", "4"]);
    assert_eq!(payloads(&cid), ["3"]);
    assert_eq!(ben.unsubscribe("n", ">"), Ok(true));
    assert_eq!(ben.unsubscribe("n", ">"), Ok(false));
    ann.publish(&chunk).unwrap();
    assert_eq!(payloads(&ben), ["1", "4"]);
    hub.deliver(&chunk).unwrap();
    assert_eq!(payloads(&ann), ["1", "2", "4"]);
}

#[test]
fn a_long_run_is_one_slice_of_the_chunk_for_all_and_a_short_one_holds_no_chunk() {
    let hub = hub(vec![open_space("n")]);
    let [ann, ben, cid] = ["ann", "ben", "cid"].map(|user| SpaceMember::join(&hub, user));
    ben.subscribe("n", "a").unwrap();
    cid.subscribe("n", "*").unwrap();
    let long = "x".repeat(1000);
    let mut all = vec![("n/a", &*long); 100];
    all.push(("n/b", "y"));
    let chunk = events(all);
    ann.publish(&chunk).unwrap();
    for member in [&ben, &cid] {
        let slice = member.try_next().unwrap().unwrap();
        assert_eq!(slice.as_ptr(), chunk.as_ptr(), "nothing is copied");
    }
    let short = cid.try_next().unwrap().unwrap();
    assert!(!chunk.as_ptr_range().contains(&short.as_ptr()));
    assert_eq!(read(&short), [("n/b".into(), "y".into())]);
}

#[tokio::test(start_paused = true)]
async fn what_a_user_may_not_publish_is_left_out_and_told() {
    let hub = hub(vec![
        SpaceConfig {
            publish: patterns("n", &["unit.{s.username}.>", "news"], None),
            ..open_space("n")
        },
        SpaceConfig {
            publish: SubjectRule::Nobody,
            ..open_space("closed")
        },
        SpaceConfig {
            publish: patterns("asked", &[">"], Some(QUERY)),
            ..open_space("asked")
        },
        SpaceConfig {
            durable: Some(Duration::from_secs(60)),
            ..open_space("kept")
        },
    ]);
    let ann = SpaceMember::join(&hub, "ann");
    let ben = SpaceMember::join(&hub, "b.en");
    ben.user().grant(granted(Right::Publish));
    let listener = SpaceMember::join(&hub, "listener");
    for space in ["n", "closed", "asked", "kept"] {
        listener.subscribe(space, ">").unwrap();
    }
    let chunk = events([
        ("n/unit.ann.a", "1"),
        ("n/unit.ben.a", "2"),
        ("n/news", "3"),
        ("closed/a", "4"),
        ("asked/a", "5"),
    ]);
    let published = ann.publish(&chunk).unwrap();
    assert_eq!((published.events, published.refused), (2, 3));
    assert_eq!(payloads(&listener), ["1", "3"]);
    let published = ben.publish(&chunk).unwrap();
    assert_eq!((published.events, published.refused), (2, 3));
    assert_eq!(payloads(&listener), ["3", "5"]);
    let Notice::Refused { events: 3, refusal } = ann.notice().await else {
        panic!("three were refused");
    };
    assert_eq!(refusal.code(), Code::NotAllowed);
    for (subject, code, hint) in [
        ("n/unit.ben.a", Code::NotAllowed, "n/unit.ann.>, n/news"),
        ("closed/a", Code::NotAllowed, "it may publish to nothing"),
        ("kept/a", Code::UnexpectedMessage, "call tidewater.publish"),
        ("other/a", Code::NoSuchSpace, "a misspelling"),
        ("n/a..b", Code::BadSubject, "the dots"),
        ("n/a.*", Code::BadSubject, "wildcards are for subscribing"),
        (&"n/a.b".repeat(100), Code::BadSubject, "payload"),
    ] {
        let chunk = events([(subject, "x"), (subject, "x")]);
        assert_eq!(ann.publish(&chunk).unwrap().refused, 2, "{subject}");
        let Notice::Refused { events: 2, refusal } = ann.notice().await else {
            panic!("{subject} was refused twice");
        };
        assert_eq!(refusal.code(), code, "{refusal}");
        assert!(refusal.hint().contains(hint), "{}", refusal.hint());
    }
    // Only the server gives positions.
    let mut durable = BytesMut::new();
    let position = Some(EventPosition { id: 1, check: 2 });
    put_event(&mut durable, "n/news", position, b"p").unwrap();
    put_event(&mut durable, "n/news", None, b"q").unwrap();
    let published = ann.publish(&durable.freeze()).unwrap();
    assert_eq!((published.events, published.refused), (1, 1));
    assert_eq!(payloads(&listener), ["q"]);
    let mut durable = BytesMut::new();
    put_event(&mut durable, "kept/a", position, b"p").unwrap();
    hub.deliver(&durable.freeze()).unwrap();
    assert_eq!(payloads(&listener), ["p"]);
}

#[test]
fn a_user_subscribes_to_what_its_patterns_contain() {
    let hub = hub(vec![
        SpaceConfig {
            subscribe: patterns("n", &["unit.{s.username}.>", "news.*"], None),
            ..open_space("n")
        },
        SpaceConfig {
            subscribe: patterns("asked", &[">"], Some(QUERY)),
            ..open_space("asked")
        },
    ]);
    let ann = SpaceMember::join(&hub, "ann");
    for pattern in ["unit.ann.>", "unit.ann.*.a", "news.*", "news.a"] {
        ann.subscribe("n", pattern).unwrap();
    }
    for (space, pattern, code) in [
        ("n", ">", Code::NotAllowed),
        ("n", "unit.*.a", Code::NotAllowed),
        ("n", "news.>", Code::NotAllowed),
        ("n", "a..b", Code::BadSubject),
        ("asked", "a", Code::NotAllowed),
        ("other", "a", Code::NoSuchSpace),
    ] {
        let refusal = ann.subscribe(space, pattern).unwrap_err();
        assert_eq!(refusal.code(), code, "{refusal}");
        assert!(!refusal.hint().is_empty());
    }
    // A user cannot be a wildcard.
    for user in ["*", ">", "ann.a"] {
        let refusal = SpaceMember::join(&hub, user).subscribe("n", "unit.ann.a");
        assert_eq!(refusal.unwrap_err().code(), Code::NotAllowed);
    }
    let asked = SpaceMember::join(&hub, "ann");
    asked.user().grant(granted(Right::Subscribe));
    asked.subscribe("asked", "a").unwrap();
    let mut number = 0;
    let refusal = loop {
        number += 1;
        if let Err(refusal) = asked.subscribe("asked", &format!("a.{number}")) {
            break refusal;
        }
    };
    assert_eq!((refusal.code(), number), (Code::LimitExceeded, 1000));
}

#[test]
fn whoever_leaves_is_gone_with_all_that_waits() {
    let hub = hub(vec![open_space("n")]);
    let ann = SpaceMember::join(&hub, "ann");
    let chunk = events([("n/a", "1")]);
    for _ in 0..3 {
        let ben = SpaceMember::join(&hub, "ben");
        ben.subscribe("n", ">").unwrap();
        ann.publish(&chunk).unwrap();
        assert!(hub.waiting_bytes() > 0);
        drop(ben);
        assert_eq!(hub.waiting_bytes(), 0);
        // What the publisher remembers of it does no harm.
        ann.publish(&chunk).unwrap();
        assert_eq!(hub.waiting_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_misses_the_oldest_and_is_told_how_many() {
    let slow = SpaceConfig {
        queue_bytes: 64 << 10,
        ..open_space("n")
    };
    let hub = hub(vec![slow, open_space("m")]);
    let [ann, ben, cid] = ["ann", "ben", "cid"].map(|user| SpaceMember::join(&hub, user));
    cid.subscribe("n", ">").unwrap();
    cid.subscribe("m", ">").unwrap();
    ben.publish(&events([("n/b", "little"), ("m/b", "other")]))
        .unwrap();
    let payload = "x".repeat(1000);
    for _ in 0..1000 {
        ann.publish(&events([("n/a", &*payload)])).unwrap();
    }
    assert!(hub.waiting_bytes() <= 65 << 10);
    assert_eq!(now(cid.notice()).await, None);
    let got = payloads(&cid);
    // Another publisher's and another space's were not dropped for it.
    assert!(got.contains(&"little".into()) && got.contains(&"other".into()));
    let missed = 1000 - (got.len() - 2) as u64;
    assert!(missed > 900);
    let space = "n".into();
    let told = cid.notice().await;
    assert_eq!(
        told,
        Notice::Missed {
            space,
            events: missed
        }
    );
    assert_eq!(now(cid.notice()).await, None);
    assert_eq!(hub.waiting_bytes(), 0);
    // What has no place in any queue.
    let huge = "x".repeat(100 << 10);
    ann.publish(&events([("n/a", &*huge)])).unwrap();
    assert_eq!(payloads(&cid), [""; 0]);
    let space = "n".into();
    assert_eq!(cid.notice().await, Notice::Missed { space, events: 1 });
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_is_cut_off_where_nothing_may_be_missed() {
    let strict = SpaceConfig {
        queue_bytes: 64 << 10,
        slow: WhenFull::Disconnect,
        ..open_space("n")
    };
    let hub = hub(vec![strict]);
    let [ann, ben, cid] = ["ann", "ben", "cid"].map(|user| SpaceMember::join(&hub, user));
    ben.subscribe("n", ">").unwrap();
    cid.subscribe("n", ">").unwrap();
    let payload = "x".repeat(1000);
    for _ in 0..100 {
        ann.publish(&events([("n/a", &*payload)])).unwrap();
        assert_eq!(ben.next().await.map(|it| read(&it).len()), Ok(1));
    }
    let refusal = cid.next().await.unwrap_err();
    assert_eq!(refusal, Refusal::TooSlow("n".into()));
    assert_eq!(hub.waiting_bytes(), 0);
    assert!(refusal.hint().contains("queue"));
}

#[test]
fn where_all_queues_together_hold_too_much_each_has_little() {
    let most = 1 << 20;
    let hub = Hub::new(vec![open_space("n")], EVENT_BYTES, most, None, None);
    let ann = SpaceMember::join(&hub, "ann");
    let members: Vec<SpaceMember> = (0..30).map(|_| SpaceMember::join(&hub, "ben")).collect();
    for member in &members {
        member.subscribe("n", ">").unwrap();
    }
    let payload = "x".repeat(1000);
    for _ in 0..1000 {
        ann.publish(&events([("n/a", &*payload)])).unwrap();
        assert!(hub.waiting_bytes() < most + 30 * (64 << 10));
    }
    assert!(members.iter().all(|it| drain(it).len() > 20));
}

#[test]
fn whoever_subscribes_gets_the_newest_of_each_subject_first() {
    let hub = hub(vec![SpaceConfig {
        last_value: true,
        ..open_space("n")
    }]);
    let [ann, ben] = ["ann", "ben"].map(|user| SpaceMember::join(&hub, user));
    ann.publish(&events([
        ("n/a", "1"),
        ("n/b", "2"),
        ("n/a", "3"),
        ("n/c.d", "4"),
    ]))
    .unwrap();
    ben.subscribe("n", "*").unwrap();
    ann.publish(&events([("n/b", "5")])).unwrap();
    assert_eq!(payloads(&ben), ["2", "3", "5"]);
    // Also what it published itself.
    ann.subscribe("n", ">").unwrap();
    assert_eq!(payloads(&ann), ["3", "4", "5"]);
    // What it is subscribed to it has, or it waits.
    ann.publish(&events([("n/b", "6")])).unwrap();
    ben.subscribe("n", ">").unwrap();
    assert_eq!(payloads(&ben), ["6", "4"]);
}

#[test]
fn no_newest_event_is_missed_by_whoever_subscribes_meanwhile() {
    const CHUNKS: u32 = 20;
    const OF_A_CHUNK: u32 = 500;
    const LAST: u32 = CHUNKS * OF_A_CHUNK;
    let hub = hub(vec![SpaceConfig {
        last_value: true,
        queue_bytes: 64 << 20,
        ..open_space("n")
    }]);
    // Every event is a run of its own, and so a chunk takes long.
    let listener = SpaceMember::join(&hub, "listener");
    listener.subscribe("n", "a").unwrap();
    let subjects = ["n/a", "n/b"];
    let numbers_of = |seen: &[(String, String)], subject: &str| -> Vec<u32> {
        let of = seen.iter().filter(|(it, _)| it == subject);
        of.map(|(_, it)| it.parse().unwrap()).collect()
    };
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let ann = SpaceMember::join(&hub, "ann");
            for chunk in 0..CHUNKS {
                let numbers = chunk * OF_A_CHUNK + 1..=(chunk + 1) * OF_A_CHUNK;
                let numbers: Vec<String> = numbers.map(|it| it.to_string()).collect();
                let all = numbers
                    .iter()
                    .flat_map(|it| subjects.map(|subject| (subject, &**it)));
                ann.publish(&events(all)).unwrap();
            }
        });
        let (mut members, mut before) = (Vec::new(), 0);
        while before < LAST {
            let member = SpaceMember::join(&hub, "ben");
            member.subscribe("n", ">").unwrap();
            let seen = drain(&member);
            // Some at each time, not all of them.
            let newest = numbers_of(&seen, subjects[1]).last().copied().unwrap_or(0);
            if newest >= before + OF_A_CHUNK / 2 || newest == LAST {
                before = newest;
                members.push((member, seen));
            }
        }
        publisher.join().unwrap();
        for (member, mut seen) in members {
            let ended = |seen: &[_]| {
                let mut last = subjects
                    .iter()
                    .map(|it| numbers_of(seen, it).last().copied());
                last.all(|it| it == Some(LAST))
            };
            seen.extend(drain(&member));
            assert!(ended(&seen), "the newest is there");
            for subject in subjects {
                let numbers = numbers_of(&seen, subject);
                assert!(numbers.is_sorted(), "an older one after a newer one");
                let gap = numbers.windows(2).find(|two| two[1] > two[0] + 1);
                assert_eq!(gap, None, "none in between is missed");
            }
        }
    });
}

#[tokio::test(start_paused = true)]
async fn another_configuration_ends_what_it_does_not_let_be() {
    let kept = SpaceConfig {
        last_value: true,
        ..open_space("kept")
    };
    let mut spaces = vec![kept.clone()];
    spaces.extend(["n", "gone", "durable"].map(open_space));
    let hub = hub(spaces);
    let [ann, ben] = ["ann", "ben"].map(|user| SpaceMember::join(&hub, user));
    for space in ["kept", "n", "gone"] {
        ben.subscribe(space, ">").unwrap();
        ben.subscribe(space, "ben.a").unwrap();
    }
    ben.subscribe("durable", ">").unwrap();
    let all = ["kept/ben.a", "n/ben.a", "n/b", "gone/a"];
    let chunk = events(all.map(|subject| (subject, subject)));
    ann.publish(&chunk).unwrap();
    assert_eq!(payloads(&ben).len(), 4);
    let narrower = SpaceConfig {
        subscribe: patterns("n", &["{s.username}.>"], None),
        ..open_space("n")
    };
    let durable = SpaceConfig {
        durable: Some(Duration::from_secs(60)),
        ..open_space("durable")
    };
    hub.configure(vec![kept, narrower, open_space("new"), durable]);
    let published = ann.publish(&chunk).unwrap();
    assert_eq!((published.events, published.refused), (3, 1));
    assert_eq!(payloads(&ben), ["kept/ben.a", "n/ben.a"]);
    let mut ended = Vec::new();
    while let Some(Notice::Unsubscribed { pattern }) = now(ben.notice()).await {
        ended.push(pattern.to_string());
    }
    ended.sort();
    assert_eq!(ended, ["durable/>", "gone/>", "gone/ben.a", "n/>"]);
    // What was kept of an unchanged space still is.
    let cid = SpaceMember::join(&hub, "cid");
    cid.subscribe("kept", ">").unwrap();
    assert_eq!(payloads(&cid), ["kept/ben.a"]);
}

/// The other side of a connection.
struct Client {
    machine: FramedConnection,
    stream: DuplexStream,
    /// What came on the channel of events.
    came: BytesMut,
    gives_credit: bool,
}

impl Client {
    fn new(stream: DuplexStream) -> Client {
        Client {
            machine: FramedConnection::dial("client", None, Duration::ZERO),
            stream,
            came: BytesMut::new(),
            gives_credit: true,
        }
    }

    fn publish(&mut self, stream: &[u8], piece_bytes: usize) {
        for piece in stream.chunks(piece_bytes) {
            self.machine.send_rows(EVENT_CHANNEL, piece.to_vec());
        }
    }

    /// Sends and receives until so many bytes have come and all has gone.
    async fn until(&mut self, came: usize) {
        loop {
            let mut output = BytesMut::new();
            while self.machine.poll_transmit(&mut output, 64 << 10) {}
            self.stream.write_all(&output).await.unwrap();
            if self.came.len() >= came && self.machine.unsent_bytes(EVENT_CHANNEL) == 0 {
                return;
            }
            let mut input = BytesMut::new();
            assert_ne!(self.stream.read_buf(&mut input).await.unwrap(), 0);
            self.machine.handle_bytes(&input, Duration::ZERO).unwrap();
            while let Some(incoming) = self.machine.receive(EVENT_CHANNEL) {
                let ChannelInput::Rows(bytes) = incoming else {
                    panic!("something else than events");
                };
                self.came.extend_from_slice(&bytes);
                if self.gives_credit {
                    self.machine.mark_consumed(EVENT_CHANNEL, bytes.len());
                }
            }
        }
    }
}

/// Serves a member's channel over a wire of its own until that ends.
async fn serve_member(member: &SpaceMember, stream: DuplexStream) -> Fault {
    let wire = SocketLoop::new(MemoryBudget::new(64 << 20), &ServerLimits::default());
    wire.let_in();
    let (read_half, write_half) = split(stream);
    let mut reader = pin!(wire.read(read_half));
    let mut writer = pin!(wire.write(write_half));
    let registry = ConnectionRegistry::default();
    let stay = registry.enter(RemoteId::from_random([7; 16]), "ann");
    let mut running = pin!(serve(member, wire.events(), &stay, None));
    let mut reading = true;
    loop {
        tokio::select! {
            biased;
            () = &mut reader, if reading => reading = false,
            ended = &mut running => {
                let Err(fault) = ended;
                return fault;
            }
            () = &mut writer => panic!("the writer ends last"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_goes_through_however_it_is_cut() {
    let hub = hub(vec![SpaceConfig {
        queue_bytes: 64 << 20,
        ..open_space("n")
    }]);
    let [ann, ben] = ["ann", "ben"].map(|user| SpaceMember::join(&hub, user));
    ben.subscribe("n", "a.*").unwrap();
    let ((ours, theirs), (our_other, their_other)) = (duplex(16 << 10), duplex(16 << 10));
    let (mut publisher, mut subscriber) = (Client::new(theirs), Client::new(their_other));
    // More than the first credit, some events longer than any frame.
    let long = "x".repeat(200_000);
    let mut all = Vec::new();
    for number in 0..30_000 {
        let payload = if number % 3_000 == 7 {
            &*long
        } else {
            "payload"
        };
        all.push((["n/a.b", "n/a.c", "n/other"][number / 50 % 3], payload));
    }
    let wanted: Vec<_> = all
        .iter()
        .copied()
        .filter(|(it, _)| *it != "n/other")
        .collect();
    let (sent, wanted) = (events(all), events(wanted));
    assert!(sent.len() as u64 > 2 * INITIAL_CREDIT_BYTES);
    let script = async {
        publisher.publish(&sent[..1000], 1);
        publisher.publish(&sent[1000..20_000], 37);
        publisher.publish(&sent[20_000..], 50_001);
        tokio::join!(publisher.until(0), subscriber.until(wanted.len()));
    };
    tokio::select! {
        fault = serve_member(&ann, ours) => panic!("{fault}"),
        fault = serve_member(&ben, our_other) => panic!("{fault}"),
        done = timeout(Duration::from_secs(60), script) => done.expect("all goes through"),
    }
    assert_eq!(subscriber.came.len(), wanted.len());
    assert!(subscriber.came == wanted, "each in its order");
    assert_eq!(hub.waiting_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_gets_no_more_than_its_credit_and_the_rest_when_it_gives_more() {
    let hub = hub(vec![open_space("n")]);
    let [ann, ben] = ["ann", "ben"].map(|user| SpaceMember::join(&hub, user));
    ben.subscribe("n", ">").unwrap();
    let (ours, theirs) = duplex(4 << 20);
    let mut subscriber = Client::new(theirs);
    subscriber.gives_credit = false;
    let payload = "x".repeat(1000);
    let chunk = events(vec![("n/a", &*payload); 2_000]);
    ann.publish(&chunk).unwrap();
    let credit = INITIAL_CREDIT_BYTES as usize;
    let script = async {
        subscriber.until(credit).await;
        let more = timeout(Duration::from_secs(300), subscriber.until(credit + 1));
        assert!(
            more.await.is_err(),
            "nothing without credit, and nobody is cut off"
        );
        subscriber.gives_credit = true;
        subscriber.machine.mark_consumed(EVENT_CHANNEL, credit);
        subscriber.until(chunk.len()).await;
    };
    tokio::select! {
        fault = serve_member(&ben, ours) => panic!("{fault}"),
        () = script => {}
    }
    assert!(subscriber.came == chunk);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_event_or_comes_too_slowly_out_ends_the_connection() {
    let strict = SpaceConfig {
        slow: WhenFull::Disconnect,
        queue_bytes: 64 << 10,
        ..open_space("n")
    };
    let hub = hub(vec![strict]);
    let [ann, ben] = ["ann", "ben"].map(|user| SpaceMember::join(&hub, user));
    ben.subscribe("n", ">").unwrap();
    for (broken, code) in [
        (&[0; 4][..], Code::MalformedMessage),
        (&[255; 4][..], Code::LimitExceeded),
    ] {
        let (ours, theirs) = duplex(16 << 10);
        let mut client = Client::new(theirs);
        let good = events([("n/a", "good")]);
        client.publish(&[&good[..], broken].concat(), 1 << 10);
        let (fault, ()) = tokio::join!(serve_member(&ann, ours), client.until(0));
        assert_eq!(fault.code, code);
        assert_eq!(payloads(&ben), ["good"], "what came before it");
    }
    let payload = "x".repeat(1000);
    ann.publish(&events(vec![("n/a", &*payload); 100])).unwrap();
    let (ours, _theirs) = duplex(16 << 10);
    let fault = serve_member(&ben, ours).await;
    assert_eq!(fault.code, Code::LimitExceeded);
    assert!(fault.hint.contains("subscribe again"));
}
