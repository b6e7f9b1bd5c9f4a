//! The examples of docs/calls.md, run as they stand there, on ports that are free.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::manual::blocks;
use crate::program::{Place, free_url};

const MANUAL: &str = include_str!("../../../../docs/calls.md");

/// A folder in which the examples work.
struct Desk {
    place: Place,
    /// What stands in the manual, and what is used in its place.
    instead: Vec<(&'static str, String)>,
}

impl Desk {
    fn new() -> Desk {
        let port = |url: String| url.rsplit(':').next().unwrap_or_default().to_owned();
        Desk {
            place: Place::new(),
            instead: vec![
                (":7439", format!(":{}", port(free_url()))),
                (":7441", format!(":{}", port(free_url()))),
            ],
        }
    }

    fn text(&self, text: &str) -> String {
        let instead = self.instead.iter();
        instead.fold(text.to_owned(), |text, (manual, here)| {
            text.replace(manual, here)
        })
    }

    /// Runs a block as a shell would, and gives what it prints.
    fn run(&self, block: &str) -> String {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_tidewater"));
        let known = std::env::var("PATH").unwrap_or_default();
        let folder = program.parent().unwrap().display();
        // What a block leaves in the background would hold a pipe open.
        let output = self.place.path("output");
        let mut shell = Command::new("sh")
            .args(["-e", "-c", &self.text(block)])
            .process_group(0)
            .current_dir(self.place.path(""))
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(Stdio::inherit())
            .env("PATH", format!("{folder}:{known}"))
            .env("TIDEWATER_PASSWORD", "annas password")
            .spawn()
            .expect("sh runs");
        let run = shell.wait().expect("it ends");
        // And whatever it has left behind.
        let group = format!("-{}", shell.id());
        let killed = Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
        killed.expect("kill runs");
        assert!(run.success(), "{block}");
        self.place.read("output").trim().to_owned()
    }
}

#[test]
fn what_the_manual_of_calls_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, call, http, provider, provide, exec] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(prepare);
    let server = desk.place.serve_as_configured();
    assert_eq!(desk.run(call), "1.2");
    assert_eq!(desk.run(http), "\"1.2\"");
    desk.run(provider);
    assert_eq!(desk.run(provide), "14");
    assert_eq!(desk.run(exec), "21");
    let wrong = [
        "call",
        "price",
        "item=seven",
        "--server",
        server.url(),
        "--user",
        "anna",
    ];
    let run = desk.place.tidewater_as("annas password", &wrong);
    run.exits(1).tells(&["item", "integer"]);
}
