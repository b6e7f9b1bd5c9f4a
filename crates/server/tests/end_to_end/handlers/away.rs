//! Handlers that are away, late or wrong: nothing is lost, and others go on.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::json;
use tidewater_protocol::Code;
use tidewater_testing::proxy::Accident;

use super::{PRODUCTS, apply, by_name, handled, result_begins, world_with};
use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::handler::{Answer, Asked, Handler, Say};
use crate::scenario::shop;
use crate::world::World;

fn nothing_is_lost_while_a_handler_is_away_and_keys_stay_the_same<B: Backend>() {
    let more = ", retries = 1, breaker_failures = 3, breaker_pause = \"50ms\", timeout = \"5s\"";
    let (world, handler) = world_with::<B>(more, |_| Say::Status(503));
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (30, 'new', 1), (31, 'newer', 1)");
    ada.edit("UPDATE invoice SET note = 'paid' WHERE invoice_id = 1");
    let fails = |ada: &mut crate::device::Device| {
        let error = ada.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::HandlerAway, "{error}");
        assert_eq!(ada.pending(), 3);
    };
    fails(&mut ada);
    let asked = handler.asked();
    assert_eq!(asked.len(), 2, "it is asked once more");
    handler.says(|_| Say::Nothing);
    fails(&mut ada);
    let again = handler.asked();
    assert!(!again.is_empty());
    // A server that dies after the verdict asks again, under the same keys.
    let network = ada.network.clone();
    handler.says(|asked| asked.each(apply));
    let mut answered = Vec::new();
    for _ in 0..2_000 {
        // It is left alone for a while.
        if ada.pending() == 0 {
            break;
        }
        network.plan(result_begins(), Accident::CutInside);
        if ada.try_sync().is_ok() {
            break;
        }
        answered.extend(handler.asked());
    }
    let keys = asked[0].keys();
    assert_eq!(keys.len(), 2);
    for one in asked.iter().chain(&again).chain(&answered) {
        assert_eq!(one.keys(), keys);
        assert_eq!(
            one.header("idempotency-key"),
            asked[0].header("idempotency-key")
        );
    }
    ada.sync();
    // It was applied, and is not asked about any more.
    assert!(handler.asked().len() <= 1);
    assert_eq!(ada.pending(), 0);
    assert_converged(&world, &[&ada]);
}

fn an_upload_that_was_applied_is_not_asked_about_again<B: Backend>() {
    let (world, handler) = world_with::<B>("", |asked| asked.each(by_name));
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO product VALUES (30, 'done', 1); DELETE FROM product WHERE product_id = 1",
    );
    ada.network.plan(result_begins(), Accident::CutInside);
    assert!(ada.try_sync().is_err());
    assert_eq!(handler.asked().len(), 1);
    ada.sync();
    assert!(handler.asked().is_empty());
    assert_eq!(ada.rows(PRODUCTS), ["2|ink|20", "3|cap|30"]);
    assert_converged(&world, &[&ada]);
}

fn nonsense_ends_the_sync_and_loses_nothing<B: Backend>() {
    let (world, handler) = world_with::<B>(", retries = 0", |_| Say::Json(json!({})));
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (30, 'new', 1), (31, 'newer', 1)");
    let half = |asked: &Asked| {
        let Say::Json(mut said) = asked.each(apply) else {
            unreachable!("it says JSON");
        };
        said["rows"].as_array_mut().unwrap().pop();
        said
    };
    let twice = move |asked: &Asked| {
        let mut said = half(asked);
        let first = said["rows"][0].clone();
        said["rows"].as_array_mut().unwrap().push(first);
        said
    };
    let nonsense: Vec<Answer> = vec![
        Box::new(|_| Say::Json(json!({}))),
        Box::new(|_| Say::Text("text/html", "<html>".into())),
        Box::new(|_| Say::Status(404)),
        Box::new(|_| Say::Status(302)),
        Box::new(move |asked| Say::Json(half(asked))),
        Box::new(move |asked| Say::Json(twice(asked))),
        Box::new(|asked| asked.each(|_| json!({ "verdict": "perhaps" }))),
        Box::new(|_| Say::Text("application/json", "[".repeat(3 << 20))),
    ];
    for answer in nonsense {
        handler.says(answer);
        let error = ada.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::HandlerFailed, "{error}");
        assert_eq!(ada.pending(), 2);
        assert_eq!(
            world.rows("SELECT 1 FROM product WHERE product_id >= 30"),
            [""; 0]
        );
    }
    handler.says(|asked| {
        let Say::Json(said) = asked.each(apply) else {
            unreachable!("it says JSON");
        };
        let lines = said["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| format!("{it}\n"));
        Say::Text("application/x-ndjson", lines.collect())
    });
    ada.sync();
    assert_converged(&world, &[&ada]);
}

/// What comes after the deadline is not taken; the same is asked again, and answered by what the
/// handler remembers.
fn a_late_answer_is_asked_for_again_under_the_same_key<B: Backend>() {
    let (told, late) = channel::<()>();
    let (mut is_first, late) = (true, Mutex::new(late));
    let (world, handler) = world_with::<B>(", retries = 0, timeout = \"200ms\"", move |asked| {
        if std::mem::take(&mut is_first) {
            // It goes on when its answer is late for sure.
            let _ = late.lock().expect("nobody panics").recv();
        }
        asked.each(by_name)
    });
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (30, 'dear', 1)");
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::HandlerAway, "{error}");
    assert_eq!(world.rows(PRODUCTS).len(), 3);
    told.send(()).expect("it waits");
    ada.sync();
    let asked = handler.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].keys(), asked[1].keys());
    assert_eq!(ada.rows(PRODUCTS)[3], "30|dear|7");
    assert_converged(&world, &[&ada]);
}

fn other_publications_go_on_while_a_handler_is_left_alone<B: Backend>() {
    const OTHER: &str = "
[[publication]]
name = \"other\"

[[publication.table]]
name = \"note\"
partition = \"everyone\"
";
    let handler = Handler::start(|_| Say::Status(500));
    let mut scenario = shop();
    scenario.schema += "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL);";
    let mut world = World::<B>::open(scenario);
    let url = format!(
        "{{ url = {:?}, retries = 0, breaker_failures = 1, breaker_pause = \"1h\" }}",
        handler.url
    );
    world.republish(&(handled(&url) + OTHER));
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (30, 'new', 1)");
    for _ in 0..2 {
        assert_eq!(ada.try_sync().unwrap_err().code(), Code::HandlerAway);
    }
    // It is left alone for an hour.
    assert_eq!(handler.asked().len(), 1);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("other.db");
    let mut other = tidewater_client::Remote::open(&path).unwrap();
    let url = format!("tcp://{}", world.server.address);
    other.subscribe(&url, "bob", &["other"]).unwrap();
    other.set_password(crate::world::PASSWORD);
    let mut sync = || other.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    sync();
    let application = crate::backend::open_sqlite(&path);
    application
        .execute_batch("INSERT INTO note VALUES (1, 'goes on')")
        .unwrap();
    assert_eq!(sync().uploaded.inserts, 1);
    assert_eq!(world.rows("SELECT body FROM note"), ["goes on"]);
}

on_both_adapters!(
    nothing_is_lost_while_a_handler_is_away_and_keys_stay_the_same,
    an_upload_that_was_applied_is_not_asked_about_again,
    nonsense_ends_the_sync_and_loses_nothing,
    a_late_answer_is_asked_for_again_under_the_same_key,
    other_publications_go_on_while_a_handler_is_left_alone,
);
