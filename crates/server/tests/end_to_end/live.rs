//! Remotes that stay in sync: told by the server, and watching their files.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewater_client::{
    Answer, Code, ColumnType, Datum, LiveEvent, LiveOptions, Remote, Request, SyncReason,
};

use crate::backend::Backend;
use crate::device::Device;
use crate::events::link_to;
use crate::outbox::{place, placing_shop};
use crate::provider::Provider;
use crate::scenario::{Scenario, shop};
use crate::world::World;

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// As long as nothing has to happen.
const QUIET: Duration = Duration::from_secs(1);

/// What a live remote tells.
#[derive(Debug, PartialEq)]
enum Told {
    Synced(&'static str, Vec<String>),
    Failed,
}

impl Told {
    /// Whether it is for events that it has synced, as a number.
    fn of_events(&self) -> usize {
        usize::from(matches!(self, Told::Synced("event", _)))
    }
}

pub(crate) struct Live {
    told: Receiver<Told>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Has another process, so to speak, keep a device's file in sync.
pub(crate) fn live(device: &Device) -> Live {
    live_with(device, |_| {})
}

/// The same, after something was done to its handle.
pub(crate) fn live_with(device: &Device, prepare: impl FnOnce(&mut Remote)) -> Live {
    let mut remote: Remote = device.second_handle();
    prepare(&mut remote);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, (tell, told)) = (stop.clone(), channel());
    let thread = std::thread::spawn(move || {
        let mut callback = |event: &LiveEvent<'_>| {
            tell_of(event, &tell);
            match stopped.load(Ordering::SeqCst) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        remote
            .live(&LiveOptions::default(), &mut callback)
            .expect("nothing is wrong that only somebody can change");
    });
    Live { told, stop, thread }
}

fn tell_of(event: &LiveEvent<'_>, tell: &mpsc::Sender<Told>) {
    let told = match event {
        LiveEvent::Synced { why, report } => {
            let tables = report.tables.iter().cloned().collect();
            Told::Synced(why.name(), tables)
        }
        LiveEvent::Failed { .. } => Told::Failed,
        _ => return,
    };
    // Nobody listens at the end.
    let _ = tell.send(told);
}

impl Live {
    #[track_caller]
    fn next(&self) -> Told {
        self.told.recv_timeout(PATIENCE).expect("something happens")
    }

    /// Syncs that bring nothing are of no interest: a commit may be seen that was made before.
    #[track_caller]
    fn next_change(&self) -> Told {
        loop {
            match self.next() {
                Told::Synced(_, tables) if tables.is_empty() => {}
                told => return told,
            }
        }
    }

    /// It syncs at first, and then there is nothing more to do.
    #[track_caller]
    pub(crate) fn has_connected(&self) {
        assert!(matches!(self.next(), Told::Synced("connected", _)));
        self.settle();
    }

    /// Nothing more comes of what was before.
    fn settle(&self) {
        loop {
            match self.told.recv_timeout(QUIET) {
                Ok(Told::Synced(_, tables)) if tables.is_empty() => {}
                Ok(told) => panic!("{told:?}"),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
            }
        }
    }

    /// It is told of nothing.
    #[track_caller]
    fn stays_quiet(&self) {
        let told = self.told.recv_timeout(QUIET);
        assert_eq!(told, Err(RecvTimeoutError::Timeout));
    }

    pub(crate) fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it ends in good order");
    }
}

fn a_commit_wakes_exactly_the_live_remotes_whose_partitions_it_touches<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut devices = ["bob", "bob", "cleo"].map(|user| world.device(user));
    devices.iter_mut().for_each(|it| drop(it.sync()));
    let lives = devices.each_ref().map(live);
    for live in &lives {
        live.has_connected();
    }
    let [first, second, other] = &lives;
    // Until the server has looked for the first time, anybody may be told.
    world.execute("UPDATE customer SET name = 'All'");
    for live in &lives {
        assert!(matches!(live.next_change(), Told::Synced("told", _)));
        live.settle();
    }
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    for live in [first, second] {
        assert_eq!(live.next(), Told::Synced("told", vec!["customer".into()]));
    }
    other.stays_quiet();
    // What is changed on one device comes to the other by itself.
    devices[0].edit("UPDATE customer SET name = 'Mine' WHERE region = 2");
    assert!(matches!(first.next(), Told::Synced("local", _)));
    assert_eq!(
        second.next_change(),
        Told::Synced("told", vec!["customer".into()])
    );
    other.stays_quiet();
    // A row moves: both hear of it.
    world.execute("UPDATE customer SET region = 3 WHERE customer_id = 2");
    for live in &lives {
        assert!(matches!(live.next_change(), Told::Synced("told", _)));
        live.settle();
    }
    lives.into_iter().for_each(Live::end);
}

fn a_live_remote_hears_at_once_of_partitions_that_its_user_gains_and_loses<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut devices = ["bob", "cleo"].map(|user| world.device(user));
    devices.iter_mut().for_each(|it| drop(it.sync()));
    let lives = devices.each_ref().map(live);
    let [bob, cleo] = &lives;
    lives.iter().for_each(Live::has_connected);
    // Until the server has looked for the first time, anybody may be told.
    world.execute("UPDATE customer SET name = 'All'");
    for live in &lives {
        assert!(matches!(live.next_change(), Told::Synced("told", _)));
        live.settle();
    }
    let theirs = || Told::Synced("told", vec!["customer".into(), "invoice".into()]);
    world.execute("INSERT INTO assignment VALUES ('bob', 3)");
    assert_eq!(bob.next(), theirs());
    cleo.stays_quiet();
    world.execute("DELETE FROM assignment WHERE login = 'bob' AND region = 3");
    assert_eq!(bob.next(), theirs());
    cleo.stays_quiet();
    world.execute("UPDATE assignment SET region = 2 WHERE login = 'cleo'");
    assert_eq!(cleo.next(), theirs());
    bob.stays_quiet();
    // Of whom nothing has changed, nobody is told.
    world.execute("INSERT INTO assignment VALUES ('dora', 2)");
    lives.iter().for_each(Live::stays_quiet);
    lives.into_iter().for_each(Live::end);
}

fn a_live_remote_comes_back_when_its_server_does<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut bob = world.device("bob");
    bob.sync();
    let live = live(&bob);
    live.has_connected();
    bob.network.break_connections();
    assert_eq!(live.next(), Told::Failed);
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    assert_eq!(
        live.next_change(),
        Told::Synced(SyncReason::Connected.name(), vec!["customer".into()])
    );
    live.settle();
    world.execute("UPDATE customer SET name = 'Again' WHERE region = 2");
    assert_eq!(
        live.next_change(),
        Told::Synced("told", vec!["customer".into()])
    );
    live.end();
}

fn a_live_remote_goes_on_at_another_server_when_its_own_shuts_down<B: Backend>() {
    let world = World::<B>::open(asking_shop());
    let servers = vec![format!("tcp://{}", world.server.address)];
    let near = world.server_with(|config| config.live.servers = servers);
    let mut bob = world.device("bob");
    bob.network.redirect(near.address);
    bob.sync();
    let (begin, begun) = channel();
    let (go_on, may) = channel();
    let (begin, may) = (Mutex::new(begin), Mutex::new(may));
    let live = live_with(&bob, |remote| {
        remote.provide("where", move |_| {
            begin.lock().unwrap().send(()).unwrap();
            may.lock().unwrap().recv().unwrap();
            Ok(Answer::nothing())
        });
    });
    live.has_connected();
    let ada = link_to(&near, "ada");
    let call = ada.begin(&Request::new("where").to_user("bob")).unwrap();
    begun.recv().unwrap();
    std::thread::scope(|scope| {
        let shutdown = scope.spawn(|| near.shut_down());
        // It is there before the other one ends.
        assert!(matches!(live.next(), Told::Synced("connected", _)));
        go_on.send(()).unwrap();
        call.wait().unwrap();
        shutdown.join().unwrap();
    });
    world.execute("UPDATE customer SET name = 'Changed' WHERE region = 2");
    assert_eq!(
        live.next_change(),
        Told::Synced("told", vec!["customer".into()])
    );
    live.end();
    // It was sent there for this time only.
    let address = bob.remote.account().unwrap().server;
    assert_ne!(address, format!("tcp://{}", world.server.address));
}

/// What is asked of remotes themselves.
fn asking_shop() -> Scenario {
    let mut scenario = shop();
    scenario.limits = "[[procedure]]\nname = \"where\"\non_remotes = true\nallow = \"everyone\"";
    scenario
}

fn a_live_remote_executes_what_is_put_into_the_outbox<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut bob = world.device("bob");
    bob.sync();
    let live = live(&bob);
    live.has_connected();
    place(&bob, 100);
    assert!(matches!(live.next(), Told::Synced("local", _)));
    assert_eq!(
        bob.rows("SELECT state, payload FROM tidewater_outbox, tidewater_inbox"),
        ["answered|\"number 100\""]
    );
    // Nobody provides it: it is tried again by itself, until somebody does.
    bob.edit(
        "INSERT INTO tidewater_outbox (name, arguments) VALUES ('print', '{\"text\": \"x\"}')",
    );
    while !matches!(live.next(), Told::Synced("local", _)) {}
    assert!(matches!(live.next(), Told::Synced("regular", _)));
    let printer = Provider::at(&world.server, "cleo", "print");
    printer.finish_one();
    let waits = "SELECT 1 FROM tidewater_outbox WHERE state <> 'answered'";
    while !bob.rows(waits).is_empty() {
        live.next();
    }
    live.end();
}

fn a_live_remote_hears_of_durable_events_at_once_and_of_a_burst_once<B: Backend>() {
    const BURST: usize = 1_000;
    let world = World::<B>::open(placing_shop());
    let mut bob = world.device("bob");
    bob.sync();
    let live = live(&bob);
    live.has_connected();
    // An interest is a reason to sync: from then on it hears.
    bob.edit("INSERT INTO tidewater_interest (space, subject) VALUES ('field', 'unit.>')");
    assert!(matches!(live.next(), Told::Synced("local", _)));
    let ada = link_to(&world.server, "ada");
    let events = vec![("unit.7.free", &b"free"[..]); BURST];
    let mut heard = 0;
    for round in 1..=3 {
        ada.publish_durable("field", &events, None).unwrap();
        ada.publish_durable("field", &[("other", b"of no interest")], None)
            .unwrap();
        let come = "SELECT count(*), count(DISTINCT position) FROM tidewater_inbox";
        while bob.rows(come) != [format!("{0}|{0}", round * BURST)] {
            heard += live.next().of_events();
        }
    }
    while let Ok(told) = live.told.recv_timeout(QUIET) {
        heard += told.of_events();
    }
    // A commit that was made before may have brought it a burst, too.
    assert!((1..=3).contains(&heard), "{heard}");
    // It hears on after it has lost the connection, and of what came meanwhile.
    bob.network.break_connections();
    assert_eq!(live.next(), Told::Failed);
    ada.publish_durable("field", &[("unit.8.free", b"away")], None)
        .unwrap();
    assert!(matches!(live.next(), Told::Synced("connected", _)));
    ada.publish_durable("field", &[("unit.8.free", b"back")], None)
        .unwrap();
    let came = "SELECT payload FROM tidewater_inbox WHERE subject = 'unit.8.free' ORDER BY id";
    while bob.rows(came).len() < 2 {
        live.next();
    }
    assert_eq!(bob.rows(came), ["away", "back"]);
    live.end();
}

fn a_call_written_offline_goes_to_the_user_or_the_device_that_it_names<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut ada = world.synced("ada");
    let mut others = ["bob", "cleo"].map(|user| world.synced(user));
    let cleo = others[1].remote.account().expect("it can be read");
    let cleo = cleo.remote_id.expect("it has synced");
    ada.edit(&format!(
        "INSERT INTO tidewater_outbox (name, recipient)
         VALUES ('whose', 'user:bob'), ('whose', 'remote:{cleo}'), ('whose', 'user:nobody')"
    ));
    assert_eq!(ada.sync().outbox.pending, 3);
    let lives = others.each_ref().map(|device| {
        let user = device.user.clone();
        live_with(device, move |remote| {
            remote.provide("whose", move |_| {
                Ok(Answer::value(ColumnType::Text, &Datum::Text(&user)))
            });
        })
    });
    for live in &lives {
        assert!(matches!(live.next(), Told::Synced("connected", _)));
    }
    let report = ada.sync();
    assert_eq!((report.outbox.answered, report.outbox.pending), (2, 1));
    assert_eq!(
        ada.rows("SELECT outbox, payload FROM tidewater_inbox ORDER BY id"),
        ["1|\"bob\"", "2|\"cleo\""]
    );
    lives.into_iter().for_each(Live::end);
}

fn a_live_remote_that_may_not_provide_something_is_told_so<B: Backend>() {
    let world = World::<B>::open(placing_shop());
    let mut bob = world.device("bob");
    bob.sync();
    for (name, code) in [
        ("place", Code::NameTaken),
        ("print", Code::NameTaken),
        ("nothing", Code::NoSuchProcedure),
    ] {
        let mut remote = bob.second_handle();
        remote.provide(name, |_| Ok(Answer::nothing()));
        let go_on = &mut |_: &LiveEvent<'_>| ControlFlow::Continue(());
        let error = remote.live(&LiveOptions::default(), go_on).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

on_both_adapters!(
    a_live_remote_that_may_not_provide_something_is_told_so,
    a_call_written_offline_goes_to_the_user_or_the_device_that_it_names,
    a_live_remote_hears_of_durable_events_at_once_and_of_a_burst_once,
    a_live_remote_executes_what_is_put_into_the_outbox,
    a_commit_wakes_exactly_the_live_remotes_whose_partitions_it_touches,
    a_live_remote_hears_at_once_of_partitions_that_its_user_gains_and_loses,
    a_live_remote_comes_back_when_its_server_does,
    a_live_remote_goes_on_at_another_server_when_its_own_shuts_down,
);
