//! Events over real links: plain and durable ones, in their order, and from other servers.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tidewater_centre::Centre;
use tidewater_client::{
    Code, EventPosition, Link, LinkOptions, Request, SpaceSubscription, SubscriptionStart,
};

use tidewater_testing::nats::Nats;

use crate::backend::Backend;
use crate::scenario::Scenario;
use crate::web::{WebProgram, member, whole};
use crate::world::{LiveServer, PASSWORD, World};

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// As long as nothing has to happen.
const QUIET: Duration = Duration::from_millis(300);

fn scenario() -> Scenario {
    Scenario {
        schema: "
            CREATE TABLE stock (id INTEGER NOT NULL PRIMARY KEY, note TEXT);
            CREATE TABLE staff (login TEXT NOT NULL);
            INSERT INTO staff VALUES ('ada');"
            .to_owned(),
        publication: r#"
[[space]]
name = "fleet"
publish = ["unit.{s.username}.>"]
subscribe = ["unit.{s.username}.>", "unit.*.position"]

[[space]]
name = "log"
publish = "everyone"
subscribe = "everyone"
durable = "1h"
queue_size = "64KiB"

[[space]]
name = "prices"
publish = { patterns = [">"], allow = "SELECT 1 FROM staff WHERE login = {s.username}" }
subscribe = { patterns = [">"], allow = "SELECT 1 FROM staff WHERE login = {s.username}" }
durable = "1h"
last_value = true

[[publication]]
name = "main"

[[publication.table]]
name = "stock"
partition = "everyone"
"#,
        tables: &[],
        users: &["ada", "bob"],
        limits: "",
    }
}

pub(crate) fn link_to(server: &LiveServer, user: &str) -> Link {
    let url = format!("tcp://{}", server.address);
    Link::connect(&url, &LinkOptions::password(user, PASSWORD)).expect("it is let in")
}

fn text(subscription: &mut SpaceSubscription) -> String {
    let event = subscription.recv(PATIENCE).expect("it comes");
    String::from_utf8(event.payload().to_vec()).unwrap()
}

fn texts(subscription: &mut SpaceSubscription, count: usize) -> Vec<String> {
    (0..count).map(|_| text(subscription)).collect()
}

fn keep(link: &Link, space: &str, events: &[(&str, &str)]) -> EventPosition {
    let events: Vec<(&str, &[u8])> = events.iter().map(|(s, p)| (*s, p.as_bytes())).collect();
    let kept = link.publish_durable(space, &events, None).unwrap();
    kept.expect("it has a position")
}

fn events_go_where_the_rules_let_them_in_the_order_of_their_publisher<B: Backend>() {
    let world = World::<B>::open(scenario());
    let (ada, bob) = (link_to(&world.server, "ada"), link_to(&world.server, "bob"));
    let refused = bob
        .subscribe("fleet", "unit.ada.>", SubscriptionStart::Now)
        .unwrap_err();
    assert_eq!(refused.code(), Some(Code::NotAllowed), "{refused}");
    assert!(refused.hint().contains("unit.bob.>"), "{}", refused.hint());
    let mut positions = bob
        .subscribe("fleet", "unit.*.position", SubscriptionStart::Now)
        .unwrap();
    let mut own = ada
        .subscribe("fleet", "unit.ada.>", SubscriptionStart::Now)
        .unwrap();
    for number in 0..1_000 {
        let payload = number.to_string();
        ada.publish("fleet", "unit.ada.position", payload.as_bytes())
            .unwrap();
    }
    // Those of this process have come already.
    let here: Vec<_> = std::iter::from_fn(|| own.recv(Duration::ZERO)).collect();
    assert_eq!(here.len(), 1_000);
    for number in 0..1_000 {
        assert_eq!(text(&mut positions), number.to_string());
    }
    ada.publish("fleet", "unit.bob.position", b"not hers")
        .unwrap();
    ada.publish("fleet", "unit.ada.position", b"last").unwrap();
    assert_eq!(text(&mut positions), "last");
    let refused = loop {
        if let Some(refused) = ada.take_refused() {
            break refused;
        }
        thread::yield_now();
    };
    assert_eq!(
        (refused.count, refused.why.code()),
        (1, Some(Code::NotAllowed))
    );
    assert!(
        refused.why.message.contains("unit.bob.position"),
        "{refused:?}"
    );
    assert_eq!(ada.take_refused(), None);
    assert_eq!(positions.take_missed(), 0);
    drop(positions);
    ada.publish("fleet", "unit.ada.position", b"nobody")
        .unwrap();
    let mut again = bob
        .subscribe("fleet", "unit.bob.>", SubscriptionStart::Now)
        .unwrap();
    bob.publish("fleet", "unit.bob.alarm", b"fire").unwrap();
    assert_eq!(text(&mut again), "fire");
    assert_eq!(again.recv(QUIET), None);
}

fn durable_events_wait_for_whoever_was_away<B: Backend>() {
    let world = World::<B>::open(scenario());
    let ada = link_to(&world.server, "ada");
    let bob = link_to(&world.server, "bob");
    let mut listening = bob.subscribe("log", "a.>", SubscriptionStart::Now).unwrap();
    let began = listening.started().expect("the space is durable");
    keep(
        &ada,
        "log",
        &[("a.1", "one"), ("b.1", "not his"), ("a.2", "two")],
    );
    assert_eq!(text(&mut listening), "one");
    let event = listening.recv(PATIENCE).unwrap();
    assert_eq!((event.subject(), event.payload()), ("log/a.2", &b"two"[..]));
    let seen = event.position().unwrap();
    assert_eq!(seen.id, 3);
    drop((listening, bob));
    keep(&ada, "log", &[("a.1", "three")]);
    let bob = link_to(&world.server, "bob");
    let mut listening = bob
        .subscribe("log", "a.>", SubscriptionStart::Position(seen))
        .unwrap();
    keep(&ada, "log", &[("a.3", "four")]);
    assert_eq!(texts(&mut listening, 2), ["three", "four"]);
    // Another one of the same link begins earlier, and takes nothing from the first.
    let mut all = bob.subscribe("log", ">", SubscriptionStart::First).unwrap();
    assert_eq!(
        texts(&mut all, 5),
        ["one", "not his", "two", "three", "four"]
    );
    let last = keep(&ada, "log", &[("a.4", "five")]);
    assert_eq!(
        (text(&mut listening), text(&mut all)),
        ("five".into(), "five".into())
    );
    assert_eq!(listening.recv(QUIET), None);
    // Before all, nothing was there.
    let mut early = bob
        .subscribe("log", "b.*", SubscriptionStart::Position(began))
        .unwrap();
    assert_eq!(text(&mut early), "not his");
    assert!(!early.take_begun_anew());
    // A position of another history.
    for position in [
        EventPosition {
            check: last.check ^ 1,
            ..last
        },
        EventPosition {
            id: 1_000,
            check: 1,
        },
    ] {
        let link = link_to(&world.server, "bob");
        let mut anew = link
            .subscribe("log", "b.*", SubscriptionStart::Position(position))
            .unwrap();
        assert_eq!(text(&mut anew), "not his");
        while !anew.take_begun_anew() {
            thread::yield_now();
        }
    }
    let refused = bob
        .publish_durable("log", &[("a..b", b"")], None)
        .unwrap_err();
    assert_eq!(refused.code(), Some(Code::BadSubject), "{refused}");
    let refused = bob.publish("log", "", b"").unwrap_err();
    assert_eq!(refused.code(), Some(Code::BadSubject), "{refused}");
}

fn events_under_a_key_are_kept_once<B: Backend>() {
    let world = World::<B>::open(scenario());
    let ada = link_to(&world.server, "ada");
    let mut listening = ada.subscribe("log", ">", SubscriptionStart::Now).unwrap();
    let key = Some([7; 16]);
    let first = ada.publish_durable("log", &[("a", b"once")], key).unwrap();
    let again = ada.publish_durable("log", &[("a", b"once")], key).unwrap();
    assert_eq!(first, again);
    keep(&ada, "log", &[("a", "other")]);
    assert_eq!(texts(&mut listening, 2), ["once", "other"]);
}

/// Numbers in an order that has no gap and nothing twice.
fn check_all(subscription: &mut SpaceSubscription, count: u64) {
    for id in 1..=count {
        let event = subscription.recv(PATIENCE).expect("it comes");
        assert_eq!(event.position().map(|it| it.id), Some(id));
    }
    assert_eq!(subscription.take_missed(), 0);
}

fn nothing_is_missing_and_nothing_comes_twice_whoever_publishes_meanwhile<B: Backend>() {
    const PUBLISHERS: u64 = 3;
    const LISTS: u64 = 40;
    const EVENTS: u64 = 25;
    const ALL: u64 = PUBLISHERS * LISTS * EVENTS;
    let world = World::<B>::open(scenario());
    let other = world.another_server();
    let payload = [b'x'; 200];
    thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let server = match publisher {
                0 => &other,
                _ => &world.server,
            };
            let link = link_to(server, "ada");
            scope.spawn(move || {
                let subject = format!("p.{publisher}");
                let events = vec![(subject.as_str(), &payload[..]); EVENTS as usize];
                for _ in 0..LISTS {
                    link.publish_durable("log", &events, None).unwrap();
                }
            });
        }
        for (server, slow) in [
            (&world.server, false),
            (&world.server, true),
            (&other, false),
        ] {
            let link = link_to(server, "bob");
            scope.spawn(move || {
                let mut listening = link
                    .subscribe("log", ">", SubscriptionStart::First)
                    .unwrap();
                if slow {
                    // More than may wait for it comes until then.
                    let publisher = link_to(server, "bob");
                    while publisher.publish_durable("log", &[], None).is_ok()
                        && link_end(&publisher) < ALL
                    {
                        thread::yield_now();
                    }
                }
                check_all(&mut listening, ALL);
            });
        }
    });
}

/// The number of the last event that is kept.
fn link_end(link: &Link) -> u64 {
    let subscription = link
        .subscribe("log", "none", SubscriptionStart::Now)
        .unwrap();
    subscription.started().map_or(0, |it| it.id)
}

fn who_may_is_asked_of_the_centre_and_the_newest_come_first<B: Backend>() {
    let world = World::<B>::open(scenario());
    let (ada, bob) = (link_to(&world.server, "ada"), link_to(&world.server, "bob"));
    let refused = bob.publish_durable("prices", &[("a", b"1")], None);
    assert_eq!(refused.unwrap_err().code(), Some(Code::NotAllowed));
    let refused = bob
        .subscribe("prices", "a", SubscriptionStart::Now)
        .unwrap_err();
    assert_eq!(refused.code(), Some(Code::NotAllowed));
    keep(
        &ada,
        "prices",
        &[("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")],
    );
    world.execute("INSERT INTO staff VALUES ('bob')");
    let mut listening = bob
        .subscribe("prices", ">", SubscriptionStart::Now)
        .unwrap();
    assert_eq!(texts(&mut listening, 3), ["2", "3", "4"]);
    keep(&ada, "prices", &[("b", "5")]);
    assert_eq!(text(&mut listening), "5");
}

/// A request over HTTP, whose answer is read line by line.
/// The next lines that begin with `id:`, `event:` or `data:`.
fn lines(answer: &mut BufReader<TcpStream>, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let mut line = String::new();
        assert_ne!(
            answer.read_line(&mut line).unwrap(),
            0,
            "it ended: {found:?}"
        );
        let line = line.trim_end();
        if ["id: ", "event: ", "data: "]
            .iter()
            .any(|it| line.starts_with(it))
        {
            found.push(line.to_owned());
        }
    }
    found
}

fn events_go_over_http_and_go_on_where_they_were<B: Backend>() {
    let world = World::<B>::open(scenario());
    let server = world.web_server();
    let web = WebProgram::sign_in(&server, "bob");
    let publish = |path: &str, body: &str| {
        let answer = whole(web.ask(&format!("POST /v1/publish/{path}"), body));
        let status: u16 = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    };
    let ada = link_to(&server, "ada");
    keep(&ada, "log", &[("a.1", "one"), ("a.1", "two\nlines")]);
    let mut feed = web.ask("GET /v1/events/log?subject=a.*&after=first", "");
    let first = lines(&mut feed, 5);
    assert_eq!(first[1], "data: one");
    assert_eq!(first[3..], ["data: two", "data: lines"]);
    let (status, answer) = publish("log/a.2", "three");
    assert!(
        status == 200 && answer.contains("\"position\":\""),
        "{answer}"
    );
    assert_eq!(lines(&mut feed, 2)[1], "data: three");
    drop(feed);
    // Back again, with the last that it had.
    let last = first[2].trim_start_matches("id: ");
    let path = "GET /v1/events/log?subject=a.*&format=json";
    let mut feed = web.ask(&format!("{path}\r\nlast-event-id: {last}"), "");
    let next = lines(&mut feed, 2);
    assert_eq!(next[1], "data: {\"subject\":\"a.2\",\"text\":\"three\"}");
    ada.publish_durable("log", &[("a.3", &[0xff, 0])], None)
        .unwrap();
    let next = lines(&mut feed, 2);
    assert_eq!(next[1], "data: {\"base64\":\"/wA=\",\"subject\":\"a.3\"}");
    // A space that is not durable.
    let mut positions = ada
        .subscribe("fleet", "unit.*.position", SubscriptionStart::Now)
        .unwrap();
    let (status, answer) = publish("fleet/unit.bob.position", "here");
    assert_eq!(status, 204, "{answer}");
    assert_eq!(text(&mut positions), "here");
    for (path, expected, code) in [
        ("fleet/unit.ada.position", 403, "not_allowed"),
        ("fleet/unit..position", 400, "bad_subject"),
        ("fleets/a", 404, "no_such_space"),
    ] {
        let (status, answer) = publish(path, "x");
        assert_eq!(status, expected, "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{answer}");
    }
    let refused = whole(web.ask("GET /v1/events/log?after=7", ""));
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
}

fn servers_and_other_programs_meet_over_nats<B: Backend>() {
    let world = World::<B>::open(scenario());
    let mut nats = Nats::start().unwrap();
    let url = nats.url();
    let servers =
        [(), ()].map(|()| world.server_with(|config| config.live.nats = Some(url.clone())));
    let (ada, bob) = (link_to(&servers[0], "ada"), link_to(&servers[1], "bob"));
    let mut far = bob
        .subscribe("fleet", "unit.*.position", SubscriptionStart::Now)
        .unwrap();
    let mut near = ada
        .subscribe("fleet", "unit.ada.>", SubscriptionStart::Now)
        .unwrap();
    // Until both are connected, events reach those of the same server only.
    let mut number = 0;
    let first = loop {
        ada.publish("fleet", "unit.ada.position", format!("{number}").as_bytes())
            .unwrap();
        number += 1;
        if let Some(event) = far.recv(QUIET) {
            break event;
        }
    };
    assert_eq!(first.subject(), "fleet/unit.ada.position");
    while far.recv(QUIET).is_some() {}
    for number in 0..100 {
        ada.publish(
            "fleet",
            "unit.ada.position",
            format!("n{number}").as_bytes(),
        )
        .unwrap();
    }
    for number in 0..100 {
        assert_eq!(text(&mut far), format!("n{number}"));
    }
    // Another program, which knows nothing of Tidewater.
    nats.publish("fleet.unit.ada.position", b"from elsewhere")
        .unwrap();
    assert_eq!(text(&mut far), "from elsewhere");
    // Its own come once, and from elsewhere, too.
    let own = std::iter::from_fn(|| near.recv(QUIET)).count();
    assert_eq!(own, number + 100 + 1);
    // Without it, a server goes on by itself, and durable events arrive.
    nats.stop();
    let mut kept = bob.subscribe("log", ">", SubscriptionStart::Now).unwrap();
    ada.publish("fleet", "unit.ada.position", b"near").unwrap();
    assert_eq!(text(&mut near), "near");
    keep(&ada, "log", &[("a", "kept")]);
    assert_eq!(text(&mut kept), "kept");
    // When it is back, subscriptions go on as they were.
    nats.restart().unwrap();
    let mut again = 0;
    let first = loop {
        again += 1;
        let payload = format!("again {again}");
        ada.publish("fleet", "unit.ada.position", payload.as_bytes())
            .unwrap();
        if let Some(event) = far.recv(QUIET) {
            break event;
        }
    };
    assert!(first.payload().starts_with(b"again "));
}

/// What is published under a key goes out once, also where it is not kept, and whichever server is
/// told of it the second time.
fn what_is_said_again_is_published_once<B: Backend>() {
    let world = World::<B>::open(scenario());
    let other = world.another_server();
    let (ada, again) = (link_to(&world.server, "ada"), link_to(&other, "ada"));
    let listen = |server: &LiveServer| {
        let bob = link_to(server, "bob");
        bob.subscribe("fleet", "unit.*.position", SubscriptionStart::Now)
            .unwrap()
    };
    let (mut here, mut there) = (listen(&world.server), listen(&other));
    let events = |payload: &'static str| [("unit.ada.position", payload.as_bytes())];
    for key in [[1; 16], [2; 16]] {
        for link in [&ada, &ada, &again] {
            let published = link.publish_durable("fleet", &events("once"), Some(key));
            assert_eq!(published.unwrap(), None);
        }
    }
    ada.publish_durable("fleet", &events("last"), None).unwrap();
    assert_eq!(texts(&mut here, 3), ["once", "once", "last"]);
    assert_eq!(there.recv(QUIET), None);
}

/// A user who is disabled hears and does nothing any more, and nobody does anything for him.
fn a_user_who_is_disabled_is_gone_with_subscriptions_and_calls<B: Backend>() {
    let mut scenario = scenario();
    scenario.limits =
        "[[procedure]]\nname = \"wait\"\nprovided_by = \"ada\"\nallow = \"everyone\"\n";
    let world = World::<B>::open(scenario);
    let server = world.web_server();
    let web = WebProgram::sign_in(&server, "ada");
    let _ = whole(web.ask("GET /v1/provide/wait?wait=0", ""));
    let bob = link_to(&server, "bob");
    let mut listening = bob.subscribe("log", ">", SubscriptionStart::Now).unwrap();
    let call = bob.begin(&Request::new("wait")).unwrap();
    let given = whole(web.ask("GET /v1/provide/wait", ""));
    let disable = async |centre: &dyn Centre| centre.set_disabled("bob", true).await;
    assert!(server.ask(disable).unwrap());
    assert_eq!(bob.wait_until_lost().code(), Code::UserDisabled);
    assert!(call.wait().is_err());
    keep(&link_to(&server, "ada"), "log", &[("a", "not for him")]);
    assert_eq!(listening.recv(QUIET), None);
    assert!(web.is_rid_of(member(&given, "call")), "it goes on");
}

/// The centre forgets events under a server that runs, and gives their numbers to others.
fn a_position_in_a_centre_that_was_restored_is_noticed<B: Backend>() {
    let world = World::<B>::open(scenario());
    let ada = link_to(&world.server, "ada");
    keep(&ada, "log", &[("a", "one"), ("a", "two")]);
    let mut listening = ada.subscribe("log", ">", SubscriptionStart::First).unwrap();
    assert_eq!(texts(&mut listening, 2), ["one", "two"]);
    let seen = keep(&ada, "log", &[("a", "three")]);
    assert_eq!(text(&mut listening), "three");
    let (table, bytes) = match world.backend.url().starts_with("sqlite:") {
        true => ("tidewater_centre_event", "x'0102030405060708'"),
        false => ("tidewater.event", "'\\x0102030405060708'"),
    };
    world.execute(&format!(
        "UPDATE {table} SET check_bytes = {bytes} WHERE id >= 2"
    ));
    let bob = link_to(&world.server, "bob");
    let mut anew = bob
        .subscribe("log", ">", SubscriptionStart::Position(seen))
        .unwrap();
    assert_eq!(texts(&mut anew, 3), ["one", "two", "three"]);
    while !anew.take_begun_anew() {
        thread::yield_now();
    }
}

on_both_adapters!(
    servers_and_other_programs_meet_over_nats,
    what_is_said_again_is_published_once,
    a_user_who_is_disabled_is_gone_with_subscriptions_and_calls,
    a_position_in_a_centre_that_was_restored_is_noticed,
    events_go_over_http_and_go_on_where_they_were,
    events_go_where_the_rules_let_them_in_the_order_of_their_publisher,
    durable_events_wait_for_whoever_was_away,
    events_under_a_key_are_kept_once,
    nothing_is_missing_and_nothing_comes_twice_whoever_publishes_meanwhile,
    who_may_is_asked_of_the_centre_and_the_newest_come_first,
);
