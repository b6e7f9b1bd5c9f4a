//! Calls of what is provided at another server, over NATS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tidewater_client::{
    Answer, CallError, CallFailed, Code, ColumnType, Datum, Link, Remote, Request, Value,
};
use tidewater_testing::nats::Nats;

use crate::backend::Backend;
use crate::events::link_to;
use crate::live::live_with;
use crate::provider::Provider;
use crate::scenario::{Scenario, shop};
use crate::web::{WebProgram, member, whole};
use crate::world::{LiveServer, World};

const PROCEDURES: &str = r#"
[[procedure]]
name = "print.label"
provided_by = "bob"
arguments = { text = "text" }
allow = "everyone"
timeout = "1h"

[[procedure]]
name = "again"
provided_by = ["bob", "cleo"]
idempotent = true
allow = "everyone"

[[procedure]]
name = "where"
on_remotes = true
allow = "everyone"
"#;

fn scenario() -> Scenario {
    let mut scenario = shop();
    scenario.limits = PROCEDURES;
    scenario
}

/// Two servers of one centre that find each other over NATS.
fn two<B: Backend>(world: &World<B>, nats: &Nats) -> [LiveServer; 2] {
    [(), ()].map(|()| {
        world.server_with(|config| {
            config.live.nats = Some(nats.url());
            config.server.http = Some("http://127.0.0.1:0".into());
        })
    })
}

fn code(error: &CallError) -> Code {
    match error {
        CallError::Failed(failed) => failed.code().expect("a known one"),
        error => panic!("{error}"),
    }
}

/// Servers hear of a provider a moment after it is there, and of its end a moment after it has
/// gone.
fn call_until(link: &Link, request: &Request, has: bool) -> Result<Answer, CallError> {
    loop {
        let called = link.call(request);
        let nobody = matches!(&called, Err(error) if code(error) == Code::NoProvider);
        if nobody != has {
            return called;
        }
        std::thread::yield_now();
    }
}

fn text(answer: &Answer) -> String {
    match &answer.unpack().expect("it is packed")[..] {
        [row] => match &row[..] {
            [Value::Text(text)] => text.to_string(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn print(text: &str) -> Request {
    Request::new("print.label").with("text", Some(text.into()))
}

fn a_call_goes_to_the_server_where_it_is_provided<B: Backend>() {
    let world = World::<B>::open(scenario());
    let nats = Nats::start().unwrap();
    let servers = two(&world, &nats);
    let (ada, bob) = (link_to(&servers[0], "ada"), link_to(&servers[1], "bob"));
    let key = [7; 16];
    // That nobody was there uses no key up.
    let error = ada.call(&print("x").once(key)).unwrap_err();
    assert_eq!(code(&error), Code::NoProvider);
    let printed = Arc::new(AtomicUsize::new(0));
    let counted = printed.clone();
    bob.provide("print.label", move |called| {
        assert_eq!((called.user(), called.remote_id()), ("ada", None));
        assert!(called.left().is_some());
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let text = match called.text("text")? {
            "fail" => {
                return Err(CallFailed {
                    own_code: "E17".into(),
                    ..CallFailed::new(Code::ProcedureFailed, "out of paper", "refill it")
                });
            }
            "much" => "x".repeat(900 << 10),
            text => format!("{text} {number}"),
        };
        Ok(Answer::value(ColumnType::Text, &Datum::Text(&text)))
    })
    .unwrap();
    let answer = call_until(&ada, &print("once").once(key), true).unwrap();
    assert_eq!(text(&answer), "once 1");
    let answer = ada.call(&print("once").once(key)).unwrap();
    assert_eq!(text(&answer), "once 1");
    assert_eq!(text(&ada.call(&print("b")).unwrap()), "b 2");
    let to_bob = call_until(&ada, &print("c").to_user("bob"), true).unwrap();
    assert_eq!(text(&to_bob), "c 3");
    let error = ada.call(&print("d").to_user("cleo")).unwrap_err();
    assert_eq!(code(&error), Code::NoProvider);
    assert_eq!(text(&ada.call(&print("much")).unwrap()).len(), 900 << 10);
    match ada.call(&print("fail")).unwrap_err() {
        CallError::Failed(failed) => assert_eq!(
            (failed.message.as_str(), failed.own_code.as_str()),
            ("out of paper", "E17")
        ),
        error => panic!("{error}"),
    }
    // Many at once, each with its own answer.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let ada = ada.clone();
            scope.spawn(move || {
                for step in 0..50 {
                    let name = format!("{thread}-{step}");
                    let answer = text(&ada.call(&print(&name)).unwrap());
                    assert_eq!(answer.split(' ').next(), Some(name.as_str()));
                }
            });
        }
    });
    assert_eq!(printed.load(Ordering::SeqCst), 405);
    bob.withdraw("print.label").unwrap();
    let error = call_until(&ada, &print("e"), false).unwrap_err();
    assert_eq!(code(&error), Code::NoProvider);
}

fn a_remote_is_asked_wherever_it_is_connected<B: Backend>() {
    let world = World::<B>::open(scenario());
    let nats = Nats::start().unwrap();
    let servers = two(&world, &nats);
    let mut bob = world.device("bob");
    bob.network.redirect(servers[1].address);
    bob.sync();
    let id = bob.remote.status().unwrap().remote_id.expect("it has one");
    let id = id.parse().unwrap();
    let live = live_with(&bob, |remote: &mut Remote| {
        remote.provide("where", |_| {
            Ok(Answer::value(ColumnType::Text, &Datum::Text("here")))
        });
    });
    let ada = link_to(&servers[0], "ada");
    let request = Request::new("where").to_remote(id);
    assert_eq!(text(&call_until(&ada, &request, true).unwrap()), "here");
    live.end();
    let error = call_until(&ada, &request, false).unwrap_err();
    assert_eq!(code(&error), Code::NoProvider);
}

/// What comes of a call, if this happens while its provider is at it.
fn call_during(
    link: &Link,
    request: &Request,
    begun: &Receiver<()>,
    happens: impl FnOnce(),
) -> Result<Answer, CallError> {
    std::thread::scope(|scope| {
        let call = scope.spawn(|| call_until(link, request, true));
        begun.recv().unwrap();
        happens();
        call.join().unwrap()
    })
}

fn a_provider_that_dies_elsewhere_is_told_of_or_another_one_does_it<B: Backend>() {
    let world = World::<B>::open(scenario());
    let nats = Nats::start().unwrap();
    let [near, far] = two(&world, &nats);
    let ada = link_to(&near, "ada");
    let bob = Provider::at(&far, "bob", "print.label");
    let died = call_during(&ada, &print("x"), &bob.begun, || drop(bob.link));
    assert_eq!(code(&died.unwrap_err()), Code::ProviderGone);
    let _ = bob.go_on.send(());
    // What can be done again is done by another one, once more elsewhere.
    let bob = Provider::at(&far, "bob", "again");
    let cleo = link_to(&far, "cleo");
    let again = Request::new("again");
    let done = call_during(&ada, &again, &bob.begun, || {
        cleo.provide("again", |_| Ok(Answer::nothing())).unwrap();
        drop(bob.link);
    });
    done.unwrap();
    let _ = bob.go_on.send(());
    // The whole server dies over a call: nobody says so.
    let bob = Provider::at(&far, "bob", "print.label");
    let died = call_during(&ada, &print("x"), &bob.begun, || drop(far));
    assert_eq!(code(&died.unwrap_err()), Code::ProviderGone);
    let _ = bob.go_on.send(());
}

fn whoever_does_not_wait_any_longer_ends_the_call_elsewhere<B: Backend>() {
    let world = World::<B>::open(scenario());
    let nats = Nats::start().unwrap();
    let [near, far] = two(&world, &nats);
    let bob = WebProgram::sign_in(&far, "bob");
    let ada = link_to(&near, "ada");
    std::thread::scope(|scope| {
        let take = bob.ask("GET /v1/provide/print.label?wait=25", "");
        let given = scope.spawn(move || whole(take));
        let call = loop {
            let call = ada.begin(&print("x")).unwrap();
            if given.is_finished() {
                break call;
            }
            // It waits for an answer, or there was nobody yet.
            drop(call);
            std::thread::yield_now();
        };
        drop(call);
        let given = given.join().unwrap();
        assert!(bob.is_rid_of(member(&given, "call")), "it goes on");
    });
}

fn a_server_that_shuts_down_finishes_what_it_does_for_others<B: Backend>() {
    let world = World::<B>::open(scenario());
    let nats = Nats::start().unwrap();
    let [near, far] = two(&world, &nats);
    let ada = link_to(&near, "ada");
    let bob = Provider::at(&far, "bob", "print.label");
    std::thread::scope(|scope| {
        let done = call_during(&ada, &print("x"), &bob.begun, || {
            scope.spawn(|| far.shut_down());
            // New calls are not for it; one that comes before it knows waits in vain.
            let another = print("y").within(Duration::from_millis(200));
            let error = call_until(&ada, &another, false).unwrap_err();
            assert_eq!(code(&error), Code::NoProvider);
            // Both, if it was given the other one before it was told.
            drop(bob.go_on);
        });
        done.unwrap();
    });
}

on_both_adapters!(
    a_call_goes_to_the_server_where_it_is_provided,
    a_remote_is_asked_wherever_it_is_connected,
    a_provider_that_dies_elsewhere_is_told_of_or_another_one_does_it,
    whoever_does_not_wait_any_longer_ends_the_call_elsewhere,
    a_server_that_shuts_down_finishes_what_it_does_for_others,
);
