//! Calls that an application writes down: executed once, after the upload of what goes before them,
//! wherever connections break and whoever dies.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewater_client::{Answer, Code, Request, SyncDirection};
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, Transaction};
use crate::clocks::Wrong;
use crate::device::Device;
use crate::events::link_to;
use crate::provider::Provider;
use crate::scenario::{Scenario, shop};
use crate::world::World;

/// No sync of these tests has so many frames in one direction.
const MANY_FRAMES: usize = 100;

/// `place` writes down the name under which the centre has a product, and answers with it;
/// `fail` is against a constraint; a program has to `print`.
const PROCEDURES: &str = r#"
[[procedure]]
name = "place"
sql = """
INSERT INTO placed (at, number, name)
SELECT (SELECT count(*) FROM placed), product_id, name FROM product
WHERE product_id = {a.number} RETURNING name"""
arguments = { number = "integer" }
returns = "value"
allow = "everyone"

[[procedure]]
name = "fail"
sql = "INSERT INTO placed (at, number, name) VALUES (0, -1, 'never')"
returns = "nothing"
allow = "everyone"

[[procedure]]
name = "print"
provided_by = "cleo"
arguments = { text = "text" }
allow = "everyone"

[[procedure]]
name = "whose"
on_remotes = true
allow = "everyone"

[[space]]
name = "field"
publish = "everyone"
subscribe = ["unit.>"]
durable = "1h"
"#;

pub(crate) fn placing_shop() -> Scenario {
    let mut scenario = shop();
    scenario.schema += "
        CREATE TABLE placed (
            at INTEGER NOT NULL,
            number INTEGER NOT NULL CHECK (number > 0),
            name TEXT NOT NULL);";
    scenario.limits = PROCEDURES;
    scenario
}

/// Adds a product and has it placed, in one transaction.
pub(crate) fn place(device: &Device, number: i64) {
    device.edit(&format!(
        "BEGIN;
         INSERT INTO product VALUES ({number}, 'number {number}', 0);
         INSERT INTO tidewater_outbox (name, arguments)
         VALUES ('place', '{{\"number\": {number}}}');
         COMMIT;"
    ));
}

fn placed<B: Backend>(world: &World<B>) -> Vec<String> {
    world.rows("SELECT number, name FROM placed ORDER BY at")
}

fn states(device: &Device) -> Vec<String> {
    device.rows("SELECT state, coalesce(code, '') FROM tidewater_outbox ORDER BY id")
}

fn a_call_made_offline_sees_the_changes_made_before_it<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    place(&ada, 101);
    place(&ada, 100);
    let report = ada.sync();
    assert_eq!((report.outbox.answered, report.inbox), (2, 2));
    assert_eq!(placed(&world), ["101|number 101", "100|number 100"]);
    assert_eq!(
        ada.rows("SELECT outbox, payload FROM tidewater_inbox ORDER BY id"),
        ["1|\"number 101\"", "2|\"number 100\""]
    );
    assert_eq!(states(&ada), ["answered|", "answered|"]);
    // One that only downloads leaves them, one that only uploads does not.
    place(&ada, 102);
    let report = ada.sync_only(SyncDirection::DownloadOnly);
    assert_eq!((report.outbox.pending, placed(&world).len()), (1, 2));
    let report = ada.sync_only(SyncDirection::UploadOnly);
    assert_eq!((report.outbox.answered, placed(&world).len()), (1, 3));
}

fn a_call_that_fails_tells_why_and_stops_no_other<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    place(&ada, 100);
    ada.edit(
        "INSERT INTO tidewater_outbox (name, arguments, deadline) VALUES
         ('fail', NULL, NULL),
         ('place', '{\"number\": ', NULL),
         ('place', '{\"number\": 1, \"more\": 2}', NULL),
         ('nothing', NULL, NULL),
         ('place', '{\"number\": 1}', '2001-01-01T00:00:00Z'),
         ('print', '{\"text\": \"x\"}', NULL),
         ('place', '{\"number\": 1}', '2999-01-01T00:00:00Z')",
    );
    let report = ada.sync();
    let counts = report.outbox;
    assert_eq!((counts.answered, counts.failed, counts.pending), (2, 5, 1));
    assert_eq!(
        states(&ada),
        [
            "answered|",
            "failed|procedure_failed",
            "failed|bad_argument",
            "failed|bad_argument",
            "failed|no_such_procedure",
            "failed|deadline_exceeded",
            "pending|no_provider",
            "answered|",
        ]
    );
    assert_eq!(placed(&world), ["100|number 100", "1|pen"]);
    let status = ada.remote.status().expect("the state can be read");
    assert_eq!((status.outbox.pending, status.outbox.failed), (1, 5));
}

fn i1_a_cut_after_any_frame_up_executes_every_call_once<B: Backend>() {
    cut_everywhere::<B>(Way::Up, Accident::CutAfter);
}

fn i1_a_cut_inside_any_frame_up_executes_every_call_once<B: Backend>() {
    cut_everywhere::<B>(Way::Up, Accident::CutInside);
}

fn i1_a_cut_after_any_frame_down_executes_every_call_once<B: Backend>() {
    cut_everywhere::<B>(Way::Down, Accident::CutAfter);
}

fn i1_a_cut_inside_any_frame_down_executes_every_call_once<B: Backend>() {
    cut_everywhere::<B>(Way::Down, Accident::CutInside);
}

/// Cuts one sync after the other, each a frame later, until one has no more frames.
fn cut_everywhere<B: Backend>(way: Way, accident: Accident) {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    let mut expected = Vec::new();
    let mut cut_at_calls = 0;
    for frame in 0..MANY_FRAMES {
        for number in [2 * frame, 2 * frame + 1] {
            place(&ada, 1_000 + number as i64);
            expected.push(format!("{0}|number {0}", 1_000 + number));
        }
        ada.network.plan(Place::frame(way, frame), accident);
        let outcome = ada.try_sync();
        let was_cut = ada.network.finish_plan();
        assert!(was_cut || outcome.is_ok(), "{outcome:?}");
        // The sync itself was committed.
        cut_at_calls += usize::from(outcome.is_ok_and(|it| it.outbox.pending > 0));
        if was_cut {
            ada.sync();
        }
        assert_eq!(placed(&world), expected, "frame {frame}");
        let answers = "SELECT payload FROM tidewater_inbox WHERE outbox = o.id";
        let settled = ada.rows(&format!(
            "SELECT state, (SELECT count(*) FROM ({answers})), ({answers}) \
             FROM tidewater_outbox AS o ORDER BY id DESC LIMIT 2"
        ));
        let answered = |number| format!("answered|1|\"number {}\"", 1_000 + 2 * frame + number);
        assert_eq!(settled, [answered(1), answered(0)]);
        if !was_cut {
            assert!(cut_at_calls >= 2, "{cut_at_calls} of {frame}");
            return;
        }
    }
    panic!("a sync of more than {MANY_FRAMES} frames");
}

fn i1_two_copies_of_a_file_execute_a_call_once<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    place(&ada, 100);
    let copied = ada.path.with_extension("copied.db");
    std::fs::copy(&ada.path, &copied).expect("the file is there");
    // What is not in the file yet.
    for of_wal in ["-wal", "-shm"] {
        let [from, to] = [&ada.path, &copied].map(|path| {
            let mut name = path.clone().into_os_string();
            name.push(of_wal);
            name
        });
        if std::fs::metadata(&from).is_ok() {
            std::fs::copy(from, to).expect("the file is there");
        }
    }
    let mut copy = Device::at(&copied, &ada);
    for device in [&mut ada, &mut copy] {
        device.sync();
        assert_eq!(states(device), ["answered|"]);
        assert_eq!(
            device.rows("SELECT payload FROM tidewater_inbox"),
            ["\"number 100\""]
        );
    }
    assert_eq!(placed(&world), ["100|number 100"]);
}

fn i1_two_processes_on_one_file_execute_a_call_once<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    let numbers = 100..120;
    numbers.clone().for_each(|number| place(&ada, number));
    let mut second = ada.second_handle();
    // They may be in each other's way, but not for ever.
    let until_done = |remote: &mut tidewater_client::Remote| {
        while remote.status().expect("it can be read").outbox.pending > 0 {
            match remote.sync(&mut |_| std::ops::ControlFlow::Continue(())) {
                Ok(_) => {}
                Err(error) if error.code().is_transient() => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| until_done(&mut second));
        until_done(&mut ada.remote);
    });
    let expected: Vec<_> = numbers.map(|it| format!("{it}|number {it}")).collect();
    let mut placed = placed(&world);
    placed.sort();
    assert_eq!(placed, expected);
    assert_eq!(
        ada.rows("SELECT count(*), count(DISTINCT outbox) FROM tidewater_inbox"),
        ["20|20"]
    );
    assert_eq!(states(&ada), vec!["answered|"; 20]);
}

fn publish(device: &Device, subject: &str, payload: &str) {
    device.edit(&format!(
        "INSERT INTO tidewater_outbox (kind, name, arguments)
         VALUES ('event', 'field/{subject}', '{payload}')"
    ));
}

fn events(device: &Device) -> Vec<String> {
    device
        .rows("SELECT subject, payload, user FROM tidewater_inbox WHERE kind = 'event' ORDER BY id")
}

fn durable_events_of_the_outbox_come_once_into_the_inbox_of_others<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit(
        "INSERT INTO tidewater_interest (space, subject)
         VALUES ('field', 'unit.*.free'), ('field', 'secret'), ('nowhere', '>')",
    );
    let mut expected = Vec::new();
    for (way, accident) in [
        (Way::Up, Accident::CutAfter),
        (Way::Up, Accident::CutInside),
        (Way::Down, Accident::CutAfter),
        (Way::Down, Accident::CutInside),
    ] {
        for frame in 0..MANY_FRAMES {
            let number = expected.len();
            publish(&ada, "unit.7.free", &format!("free {number}"));
            publish(&ada, "unit.7.other", "of no interest");
            expected.push(format!("unit.7.free|free {number}|ada"));
            let mut was_cut = false;
            for device in [&mut ada, &mut bob] {
                device.network.plan(Place::frame(way, frame), accident);
                // Whatever comes of it.
                let _ = device.try_sync();
                was_cut |= device.network.finish_plan();
                device.sync();
            }
            assert_eq!(events(&bob), expected, "{way:?} {accident:?} {frame}");
            if !was_cut {
                break;
            }
        }
    }
    assert_eq!(states(&ada), vec!["answered|"; 2 * expected.len()]);
    assert_eq!(
        bob.rows("SELECT coalesce(code, 'fine') FROM tidewater_interest ORDER BY id"),
        ["fine", "not_allowed", "no_such_space"]
    );
    assert_eq!(
        bob.rows("SELECT count(*) FROM tidewater_inbox WHERE kind <> 'event'"),
        ["0"]
    );
    // An event that cannot be, or that nobody may publish, fails.
    publish(&bob, "a..b", "x");
    let report = bob.sync();
    assert_eq!(report.outbox.failed, 1);
    // What cannot be had was reported by the first sync, and is no news.
    assert_eq!(report.refused_interests, []);
    bob.edit("INSERT INTO tidewater_interest (space, subject) VALUES ('elsewhere', '>')");
    let report = bob.sync();
    let refused = report.refused_interests.iter();
    let refused: Vec<&str> = refused.map(|it| &*it.space).collect();
    assert_eq!(refused, ["elsewhere"]);
    assert_eq!(states(&bob), ["failed|bad_subject"]);
}

fn print(device: &Device) {
    device.edit(
        "INSERT INTO tidewater_outbox (name, arguments) VALUES ('print', '{\"text\": \"x\"}')",
    );
}

fn what_a_provider_makes_of_a_call_is_heard_after_the_connection_broke<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let printer = Provider::at(&world.server, "cleo", "print");
    let mut ada = world.synced("ada");
    print(&ada);
    let network = ada.network.clone();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        printer.begun.recv().expect("it is asked");
        network.break_connections();
        let report = sync.join().expect("that is no error");
        assert_eq!((report.outbox.pending, report.outbox.failed), (1, 0));
    });
    // It is at it still.
    assert_eq!(ada.sync().outbox.pending, 1);
    assert_eq!(states(&ada), ["sent|busy"]);
    printer.finish_one();
    while ada.sync().outbox.pending > 0 {}
    assert_eq!(states(&ada), ["answered|"]);
    assert_eq!(ada.rows("SELECT payload FROM tidewater_inbox"), ["1"]);
    assert_eq!(printer.done.load(Ordering::SeqCst), 1);
}

fn a_call_whose_provider_or_server_died_is_not_done_again<B: Backend>() {
    let mut world = World::<B>::open(placing_shop());
    let printer = Provider::at(&world.server, "cleo", "print");
    let mut ada = world.synced("ada");
    print(&ada);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        printer.begun.recv().expect("it is asked");
        drop(printer.link);
        let report = sync.join().expect("that is no error");
        assert_eq!((report.outbox.pending, report.outbox.failed), (0, 1));
    });
    assert_eq!(states(&ada), ["failed|provider_gone"]);
    // Let go of the handler's thread.
    let _ = printer.go_on.send(());

    let printer = Provider::at(&world.server, "cleo", "print");
    print(&ada);
    let clock = Wrong::by(0);
    let second = world.another_server_at(clock.clone());
    let network = ada.network.clone();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| ada.sync());
        printer.begun.recv().expect("it is asked");
        network.redirect(second.address);
        let killed = std::mem::replace(&mut world.server, second);
        drop(killed);
        network.break_connections();
        let report = sync.join().expect("that is no error");
        assert_eq!((report.outbox.pending, report.outbox.failed), (1, 0));
    });
    printer.finish_one();
    let another = Provider::at(&world.server, "cleo", "print");
    // For all that another server knows, the first one may be at it.
    assert_eq!(ada.sync().outbox.pending, 1);
    assert_eq!(states(&ada), ["failed|provider_gone", "sent|busy"]);
    clock.set(10 * 60 * 1_000);
    let report = ada.sync();
    assert_eq!((report.outbox.pending, report.outbox.failed), (0, 1));
    assert_eq!(
        states(&ada),
        ["failed|provider_gone", "failed|outcome_unknown"]
    );
    assert_eq!(another.done.load(Ordering::SeqCst), 0);
}

fn a_call_that_no_provider_got_in_time_is_done_under_its_key_later<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let (ada, cleo) = (
        link_to(&world.server, "ada"),
        link_to(&world.server, "cleo"),
    );
    cleo.provide("print", |_| Ok(Answer::nothing())).unwrap();
    let print = |key: u8| {
        let print = Request::new("print").with("text", Some("x".into()));
        print.once([key; 16])
    };
    // Nobody can note a key meanwhile.
    let mut holding = world.backend.begin();
    if world.backend.url().starts_with("postgres") {
        holding.execute("LOCK TABLE tidewater.once IN EXCLUSIVE MODE");
    }
    // When the second one's time is over for its caller, the first one's is for the server.
    for key in [1, 2] {
        let within = print(key).within(Duration::from_millis(100));
        let error = ada.call(&within).unwrap_err();
        assert_eq!(error.code(), Some(Code::DeadlineExceeded));
    }
    holding.commit();
    // It is busy at most until its key was given back.
    loop {
        match ada.call(&print(1)) {
            Err(error) if error.code() == Some(Code::Busy) => std::thread::yield_now(),
            answered => break drop(answered.unwrap()),
        }
    }
}

on_both_adapters!(
    a_call_made_offline_sees_the_changes_made_before_it,
    a_call_that_fails_tells_why_and_stops_no_other,
    i1_a_cut_after_any_frame_up_executes_every_call_once,
    i1_a_cut_inside_any_frame_up_executes_every_call_once,
    i1_a_cut_after_any_frame_down_executes_every_call_once,
    i1_a_cut_inside_any_frame_down_executes_every_call_once,
    i1_two_copies_of_a_file_execute_a_call_once,
    durable_events_of_the_outbox_come_once_into_the_inbox_of_others,
    i1_two_processes_on_one_file_execute_a_call_once,
    what_a_provider_makes_of_a_call_is_heard_after_the_connection_broke,
    a_call_whose_provider_or_server_died_is_not_done_again,
    a_call_that_no_provider_got_in_time_is_done_under_its_key_later,
);
