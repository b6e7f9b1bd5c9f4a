//! The examples of docs/spaces.md, run as they stand there, on ports that are free; and what
//! `tidewater publish` and `tidewater listen` do besides.

use serde_json::{Value, json};

use crate::desk::Desk;
use crate::manual::blocks;

const MANUAL: &str = include_str!("../../../../docs/spaces.md");

/// A place for which `tidewater.toml` of the manual is deployed.
fn prepared() -> Desk {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    desk.run(&commands[0]);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(&commands[1]);
    desk
}

#[test]
fn what_the_manual_of_spaces_shows_works() {
    let desk = prepared();
    let commands = blocks(MANUAL, "sh");
    let [_, _, listen, publish, durable, device, http] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    let _server = desk.place.serve_as_configured();
    let listening = desk.start(listen);
    listening.prints("listening to fleet/unit.*.position");
    assert_eq!(desk.run(publish), "");
    listening.prints("fleet/unit.anna.position 52.52,13.40\n");
    let printed = desk.run(durable);
    let (position, event) = printed.split_once('\n').expect("two lines");
    assert_eq!(
        (position.len(), event),
        (32, "orders/new {\"item\": \"ink\"}")
    );
    let inbox = desk.run(device);
    let expected = "new|{\"item\": \"ink\"}|anna\nnew|{\"item\": \"pen\"}|anna";
    assert!(inbox.ends_with(expected), "{inbox}");
    drop(listening);
    let feed = desk.start(http);
    feed.prints(&format!("id: {position}\ndata: {{\"item\": \"ink\"}}\n\n"));
    feed.prints("data: {\"item\": \"cap\"}\n\n");
}

#[test]
fn events_are_published_and_listened_to_as_scripts_need_it() {
    let desk = prepared();
    let server = desk.place.serve_as_configured();
    let as_user = |user: &str, arguments: &[&str], input: &[u8]| {
        let rest = ["--server", server.url(), "--user", user, "--json"];
        let arguments = [arguments, &rest].concat();
        desk.place.tidewater_fed("a password", &arguments, input)
    };
    let publish = |payload: &[u8]| {
        let run = as_user("anna", &["publish", "orders/new", "-"], payload).done();
        run.json()["position"].as_str().map(str::to_owned)
    };
    let listen = |arguments: &[&str]| -> Vec<Value> {
        let run = as_user("office", &[&["listen"], arguments].concat(), b"").done();
        let lines = run.stdout.lines();
        lines.map(|it| serde_json::from_str(it).unwrap()).collect()
    };
    // What is no text is base64, and a line of text stays one.
    let first = publish(&[0xff, 0]).expect("the space is durable");
    let second = publish(b"two\nlines").unwrap();
    let third = publish(b"").unwrap();
    let event = |position: &str, key: &str, payload: &str| {
        json!({
            "event": "published", "space": "orders", "subject": "new",
            key: payload, "position": position,
        })
    };
    assert_eq!(
        listen(&["orders/new", "--after", "first", "--count", "3"]),
        [
            event(&first, "base64", "/wA="),
            event(&second, "text", "two\nlines"),
            event(&third, "text", ""),
        ]
    );
    // Several patterns, behind a position.
    let patterns = ["orders/new", "orders/team.office.>"];
    let events = listen(&[&patterns[..], &["--after", &first, "--count", "2"]].concat());
    assert_eq!(
        events,
        [
            event(&second, "text", "two\nlines"),
            event(&third, "text", "")
        ]
    );
    // Said again under a key, it is kept once.
    let key = [
        "publish",
        "orders/new",
        "x",
        "--key",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
    ];
    let once = [(), ()].map(|()| as_user("anna", &key, b"").done().stdout);
    assert_eq!(once[0], once[1]);
    let two_spaces = ["listen", "orders/new", "fleet/>", "--after", &first];
    for (user, arguments, code, name) in [
        ("anna", &two_spaces[..], 1, "usage"),
        (
            "anna",
            &["publish", "fleet/unit.office.position", "x"][..],
            3,
            "not_allowed",
        ),
        (
            "anna",
            &["listen", "orders/team.office.lunch"],
            3,
            "not_allowed",
        ),
        ("anna", &["publish", "orders/a..b", "x"], 1, "bad_subject"),
        ("anna", &["listen", "nowhere/>"], 1, "no_such_space"),
        ("anna", &["publish", "orders", "x"], 1, "usage"),
        (
            "anna",
            &["listen", "orders/new", "--after", "7"],
            1,
            "usage",
        ),
        (
            "anna",
            &["listen", "fleet/>", "--after", "first"],
            1,
            "bad_argument",
        ),
    ] {
        let run = as_user(user, arguments, b"").exits(code);
        assert_eq!(run.json()["error"]["code"], name, "{run:#?}");
    }
}

#[test]
fn whoever_listens_goes_on_behind_the_last_event_when_the_server_comes_back() {
    let desk = prepared();
    let url = "tcp://127.0.0.1:7439";
    let publish = |payload: &str| {
        desk.run(&format!(
            "export TIDEWATER_PASSWORD='a password'
             tidewater publish orders/new {payload} --server {url} --user anna"
        ))
    };
    let server = desk.place.serve_as_configured();
    publish("-1");
    let listening = desk.start(&format!(
        "export TIDEWATER_PASSWORD='a password'
         tidewater listen orders/new --after first --count 3 --server {url} --user office
         echo all"
    ));
    listening.prints("orders/new -1\n");
    drop(server);
    listening.prints("trying again");
    let _server = desk.place.serve_as_configured();
    publish("two");
    publish("three");
    listening.prints("orders/new -1\norders/new two\norders/new three\nall\n");
}
