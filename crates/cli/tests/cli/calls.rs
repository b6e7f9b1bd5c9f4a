//! The examples of docs/calls.md, run as they stand there, on ports that are free.

use crate::desk::Desk;
use crate::manual::blocks;

const MANUAL: &str = include_str!("../../../../docs/calls.md");

/// A program without a file, which `scripts/test.sh` builds without SQLite.
const LISTENER: &str = include_str!("../../../client/examples/listener.rs");

#[test]
fn the_manual_of_calls_shows_the_listener_as_it_is() {
    let shown = &blocks(MANUAL, "rust")[1];
    let (_, code) = LISTENER.split_once("\n\n").unwrap();
    let code: Vec<&str> = code.lines().map(str::trim_start).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), code);
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
    let mut to_somebody = wrong.to_vec();
    to_somebody[2] = "item=7";
    to_somebody.extend(["--to-user", "bela"]);
    let run = desk.place.tidewater_as("annas password", &to_somebody);
    run.exits(1)
        .tells(&["is done by the server, and not by user:bela"]);
}
