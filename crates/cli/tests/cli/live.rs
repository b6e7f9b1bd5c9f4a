//! The commands of docs/live.md: a file that stays in sync.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::program::{Place, sqlite};
use crate::shop::{Shop, password};

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

const MANUAL: &str = include_str!("../../../../docs/live.md");

/// A command that keeps nancy's file in sync.
pub(crate) struct LiveCommand {
    child: Child,
    told: Receiver<String>,
    reader: JoinHandle<()>,
}

impl LiveCommand {
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> LiveCommand {
        let arguments = [arguments, &["--json"]].concat();
        let mut child = place
            .command(&arguments)
            .env("TIDEWATER_PASSWORD", password("nancy"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, told) = channel();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody listens at the end.
                let _ = tell.send(line);
            }
        });
        LiveCommand {
            child,
            told,
            reader,
        }
    }

    /// The next sync of which this is true: beside what happens here there may be syncs for what has
    /// happened before.
    pub(crate) fn next(&self, is_it: &dyn Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.told.recv_timeout(PATIENCE).expect("it goes on");
            let event: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(event["event"], "synced", "{event}");
            if is_it(&event) {
                return event;
            }
        }
    }

    pub(crate) fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap();
    }
}

fn has_changed(event: &Value) -> bool {
    event["tables"].as_array().is_some_and(|it| !it.is_empty())
}

#[test]
fn a_live_file_gets_what_others_change_and_brings_up_what_is_changed_in_it() {
    Shop::on_both_centres(|shop| {
        let command = crate::manual::blocks(MANUAL, "sh").remove(0);
        let command = command.replace("tcp://127.0.0.1:7439", shop.server.url());
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        let living = LiveCommand::start(&shop.place, &arguments);
        let first = living.next(&has_changed);
        assert_eq!(first["why"], "connected", "{first}");
        shop.centre
            .execute("UPDATE customer SET name = 'By itself'");
        let event = living.next(&has_changed);
        assert_eq!(event["why"], "told", "{event}");
        assert_eq!(event["tables"], serde_json::json!(["customer"]), "{event}");
        let file = sqlite(&shop.place.path("nancy.db"));
        let changed = file
            .execute("UPDATE customer SET name = 'Mine'", [])
            .unwrap();
        assert!(changed > 0);
        living.next(&|event| event["report"]["uploaded"]["updates"] == changed);
        let names = shop
            .centre
            .rows("SELECT DISTINCT name FROM customer WHERE name = 'Mine'");
        assert_eq!(names.len(), 1);
        living.end();
        // The other way to say it.
        let watching = LiveCommand::start(&shop.place, &["sync", "nancy.db", "--watch"]);
        watching.next(&|event| event["why"] == "connected");
        shop.centre.execute("UPDATE customer SET name = 'Watched'");
        let event = watching.next(&has_changed);
        assert_eq!(event["why"], "told", "{event}");
        watching.end();
    });
}

/// Another program keeps the file locked when it starts: it waits, and says so.
#[test]
fn a_file_that_is_locked_at_the_start_is_waited_for() {
    Shop::on_both_centres(|shop| {
        let command = crate::manual::blocks(MANUAL, "sh").remove(0);
        let command = command.replace("tcp://127.0.0.1:7439", shop.server.url());
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        let living = LiveCommand::start(&shop.place, &arguments);
        living.next(&has_changed);
        living.end();
        let file = sqlite(&shop.place.path("nancy.db"));
        file.execute_batch("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE")
            .unwrap();
        let arguments = [&arguments[..], &["--json"]].concat();
        let mut child = shop
            .place
            .command(&arguments)
            .env("TIDEWATER_PASSWORD", password("nancy"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        notes.read_line(&mut told).unwrap();
        assert!(
            told.contains("nancy.db is locked by another program; waiting"),
            "{told}"
        );
        file.execute_batch("COMMIT").unwrap();
        let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: Value = serde_json::from_str(&events.next().unwrap().unwrap()).unwrap();
        assert_eq!(first["event"], "synced", "{first}");
        child.kill().unwrap();
        child.wait().unwrap();
    });
}
