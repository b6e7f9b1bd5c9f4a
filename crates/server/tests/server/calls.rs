//! Calls: of the server, of programs that provide procedures, and how each of them ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tidewater_centre::Centre;
use tidewater_client::{
    Answer, CallError, Code, ColumnType, Datum, Link, LinkOptions, ProvidedCall, Request, Value,
};

use crate::centre::Handle;
use crate::world::{PASSWORD, World};

const PROCEDURES: &str = r#"
[[procedure]]
name = "double"
provided_by = "bob"
allow = "everyone"
arguments = { number = "integer", note = "text?" }

[[procedure]]
name = "again"
provided_by = ["bob", "eve"]
allow = "everyone"
idempotent = true

[[procedure]]
name = "short"
provided_by = "bob"
allow = "everyone"
timeout = "100ms"

[[procedure]]
name = "where"
on_remotes = true
allow = "everyone"
"#;

fn link(world: &World, user: &str) -> Link {
    let options = LinkOptions::password(user, PASSWORD);
    Link::connect(&world.running.addresses[0], &options).unwrap()
}

fn failure(error: CallError) -> (Code, String) {
    match error {
        CallError::Failed(failed) => (failed.code().unwrap(), failed.argument),
        error => panic!("{error}"),
    }
}

fn double(called: &ProvidedCall) -> Result<Answer, tidewater_client::CallFailed> {
    let number = called.integer("number")?;
    Ok(Answer::value(
        ColumnType::Integer,
        &Datum::Integer(number * 2),
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_answered_by_the_server_or_by_who_provides_it() {
    let world = World::with_limits(PROCEDURES).await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (link(&world, "ada"), link(&world, "bob"));
        let echo = Request::new("tidewater.echo").with("value", Some("hello".into()));
        let answer = ada.call(&echo).unwrap();
        assert_eq!(answer.unpack().unwrap(), [[Value::Text("hello".into())]]);
        let request = Request::new("double").with("number", Some("21".into()));
        let (code, _) = failure(ada.call(&request).unwrap_err());
        assert_eq!(code, Code::NoProvider);
        bob.provide("double", |called| {
            assert_eq!((called.user(), called.remote_id()), ("ada", None));
            double(called)
        })
        .unwrap();
        let answer = ada.call(&request).unwrap();
        assert_eq!(answer.unpack().unwrap(), [[Value::Integer(42)]]);
        // Many at once, each with its own answer.
        let threads = (0..16).map(|number: i64| {
            let ada = ada.clone();
            thread::spawn(move || {
                for step in 0..50 {
                    let number = number * 100 + step;
                    let request = Request::new("double").with("number", Some(number.into()));
                    let answer = ada.call(&request).unwrap();
                    assert_eq!(answer.unpack().unwrap(), [[Value::Integer(number * 2)]]);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
        bob.withdraw("double").unwrap();
        let (code, _) = failure(ada.call(&request).unwrap_err());
        assert_eq!(code, Code::NoProvider);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_called_is_told_with_what_to_do() {
    let world = World::with_limits(PROCEDURES).await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (link(&world, "ada"), link(&world, "bob"));
        bob.provide("double", double).unwrap();
        let number = |value: &str| Some(value.into());
        for (request, expected) in [
            (Request::new("tripel"), (Code::NoSuchProcedure, "")),
            (Request::new("tidewater.x"), (Code::NoSuchProcedure, "")),
            (Request::new("double"), (Code::BadArgument, "number")),
            (
                Request::new("double").with("number", number("many")),
                (Code::BadArgument, "number"),
            ),
            (
                Request::new("double").with("numbr", number("1")),
                (Code::BadArgument, "numbr"),
            ),
            (
                Request::new("double")
                    .with("number", number("1"))
                    .with("number", number("2")),
                (Code::BadArgument, "number"),
            ),
            (
                Request::new("double").with("number", None),
                (Code::BadArgument, "number"),
            ),
            (
                Request::new("double")
                    .with("number", number("1"))
                    .to_user("eve"),
                (Code::NoProvider, ""),
            ),
        ] {
            let error = ada.call(&request).unwrap_err();
            assert!(!error.hint().is_empty());
            let (code, argument) = failure(error);
            assert_eq!((code, argument.as_str()), expected, "{request:?}");
        }
        for (who, name, expected) in [
            (&ada, "double", Code::NameTaken),
            (&bob, "where", Code::NameTaken),
            (&bob, "tripel", Code::NoSuchProcedure),
        ] {
            let provided = who.provide(name, |_| Ok(Answer::nothing()));
            assert_eq!(failure(provided.unwrap_err()).0, expected, "{name}");
        }
        // A refusal of one call is no end of the others.
        ada.tell(&Request::new("double").with("number", number("1")))
            .unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_call_everywhere_and_a_provider_that_dies_is_told_of() {
    let world = World::with_limits(PROCEDURES).await;
    tokio::task::block_in_place(|| {
        let (ada, bob, eve) = (
            link(&world, "ada"),
            link(&world, "bob"),
            link(&world, "eve"),
        );
        let (go, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let (begun, begins) = mpsc::channel();
        let (again, first) = (begun.clone(), begun.clone());
        bob.provide("short", move |called| {
            begun.send(called.left()).unwrap();
            let _ = wait.lock().unwrap().recv();
            Ok(Answer::nothing())
        })
        .unwrap();
        let error = ada.call(&Request::new("short")).unwrap_err();
        assert_eq!(failure(error).0, Code::DeadlineExceeded);
        let left = begins.recv().unwrap().unwrap();
        assert!(left <= Duration::from_millis(100));
        drop(go);
        // Both have it; the one who has less to do gets the call, and dies over it.
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        eve.provide("again", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Answer::nothing())
        })
        .unwrap();
        bob.provide("again", move |_| {
            again.send(None).unwrap();
            thread::sleep(Duration::from_secs(60));
            Ok(Answer::nothing())
        })
        .unwrap();
        bob.provide("double", move |_| {
            first.send(None).unwrap();
            thread::sleep(Duration::from_secs(60));
            Ok(Answer::nothing())
        })
        .unwrap();
        let to_bob = ada.begin(&Request::new("double").with("number", Some(1.into())));
        let to_bob = to_bob.unwrap();
        begins.recv().unwrap();
        let calls: Vec<_> = (0..8)
            .map(|_| ada.begin(&Request::new("again")).unwrap())
            .collect();
        begins.recv().unwrap();
        drop(bob);
        for call in calls {
            call.wait().unwrap();
        }
        assert_eq!(done.load(Ordering::SeqCst), 8);
        let (code, _) = failure(to_bob.wait().unwrap_err());
        assert_eq!(code, Code::ProviderGone);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_is_disabled_is_cut_off_with_all_programs() {
    let world = World::with_limits(PROCEDURES).await;
    let (ada, bob) = tokio::task::block_in_place(|| (link(&world, "ada"), link(&world, "bob")));
    tokio::task::block_in_place(|| bob.provide("double", double).unwrap());
    let handle = Handle(world.centre.clone());
    assert!(handle.set_disabled("bob", true).await.unwrap());
    tokio::task::block_in_place(|| {
        let lost = bob.wait_until_lost();
        assert_eq!(lost.code(), Code::UserDisabled);
        let request = Request::new("double").with("number", Some(1.into()));
        assert_eq!(failure(ada.call(&request).unwrap_err()).0, Code::NoProvider);
        let options = LinkOptions::password("bob", PASSWORD);
        let again = Link::connect(&world.running.addresses[0], &options);
        assert_eq!(again.err().unwrap().code(), Code::UserDisabled);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_shuts_down_lets_running_calls_finish() {
    let world = World::with_limits(PROCEDURES).await;
    let (begun, begins) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let (ada, bob) = tokio::task::block_in_place(|| {
        let (ada, bob) = (link(&world, "ada"), link(&world, "bob"));
        bob.provide("double", move |called| {
            begun.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
            double(called)
        })
        .unwrap();
        (ada, bob)
    });
    let request = Request::new("double").with("number", Some(4.into()));
    let call = tokio::task::block_in_place(|| {
        let call = ada.begin(&request).unwrap();
        begins.recv().unwrap();
        call
    });
    let stopping = tokio::spawn(world.running.shutdown());
    tokio::task::block_in_place(|| {
        // The server takes no new ones by then, or soon.
        loop {
            match ada.call(&Request::new("tidewater.echo").with("value", None)) {
                Ok(_) => thread::yield_now(),
                Err(error) => break assert_eq!(failure(error).0, Code::ShuttingDown),
            }
        }
        go.send(()).unwrap();
        let answer = call.wait().unwrap();
        assert_eq!(answer.unpack().unwrap(), [[Value::Integer(8)]]);
    });
    stopping.await.unwrap();
    drop(bob);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_told_is_accepted_before_it_is_done() {
    let world = World::with_limits(PROCEDURES).await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (link(&world, "ada"), link(&world, "bob"));
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        bob.provide("double", move |called| {
            wait.lock().unwrap().recv().unwrap();
            begun
                .send((called.user().to_owned(), called.integer("number")?))
                .unwrap();
            double(called)
        })
        .unwrap();
        let tell = |procedure: &str, number: &str| {
            ada.tell(&Request::new(procedure).with("number", Some(number.into())))
        };
        tell("double", "21").unwrap();
        go.send(()).unwrap();
        assert_eq!(begins.recv().unwrap(), ("ada".to_owned(), 21));
        // What cannot be called is not accepted.
        for (procedure, number, code) in [
            ("tripel", "1", Code::NoSuchProcedure),
            ("double", "many", Code::BadArgument),
        ] {
            let refused = tell(procedure, number).unwrap_err();
            assert_eq!(failure(refused).0, code, "{procedure}");
        }
    });
}

/// On one thread, which the centre keeps until the deadline has passed: it is the call that finds
/// out first.
#[tokio::test]
async fn a_key_that_is_noted_after_the_deadline_is_free_again() {
    let world = World::with_limits(&format!("call_workers = 1\n{PROCEDURES}")).await;
    let address = world.running.addresses[0].clone();
    let connect = |user: &'static str| {
        let address = address.clone();
        tokio::task::spawn_blocking(move || {
            Link::connect(&address, &LinkOptions::password(user, PASSWORD)).unwrap()
        })
    };
    let (ada, bob) = (connect("ada").await.unwrap(), connect("bob").await.unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let provided = tokio::task::spawn_blocking(move || {
        bob.provide("double", move |called| {
            counted.fetch_add(1, Ordering::SeqCst);
            double(called)
        })
        .unwrap();
        bob
    });
    let _bob = provided.await.unwrap();
    let call = |within: Option<Duration>| {
        let request = Request::new("double").with("number", Some(4.into()));
        let request = request.once([7; 16]);
        let request = match within {
            Some(time) => request.within(time),
            None => request,
        };
        let ada = ada.clone();
        tokio::task::spawn_blocking(move || ada.call(&request))
    };
    let deadline = Duration::from_millis(50);
    *world.centre.noted_after.lock().unwrap() = 2 * deadline;
    // Its time may be over before anything is noted.
    while world.centre.noted.load(Ordering::SeqCst) == 0 {
        let error = call(Some(deadline)).await.unwrap().unwrap_err();
        assert_eq!(failure(error).0, Code::DeadlineExceeded);
    }
    *world.centre.noted_after.lock().unwrap() = Duration::ZERO;
    let answer = call(None).await.unwrap().unwrap();
    assert_eq!(answer.unpack().unwrap(), [[Value::Integer(8)]]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    world.running.shutdown().await;
}
