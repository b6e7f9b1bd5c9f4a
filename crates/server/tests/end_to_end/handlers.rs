//! Handlers: programs of the operator's that are asked about syncs, with whatever they answer.

mod away;
mod compared;

use std::sync::Arc;

use ring::hmac;
use serde_json::{Value, json};
use tidewater_client::{
    ColumnType, Datum, Link, LinkOptions, LinkProof, ProvidedCall, Request, SyncDirection,
};
use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::events::link_to;
use crate::handler::{Asked, Handler, Say};
use crate::scenario::shop;
use crate::world::World;

/// The shop, with a handler for products and customers.
fn handled(handler: &str) -> String {
    let customer = "name = \"customer\"\n";
    let product = "name = \"product\"\n";
    shop()
        .publication
        .replace(customer, &format!("{customer}handler = {handler}\n"))
        .replace(product, &format!("{product}handler = {handler}\n"))
}

/// The same world with a handler that answers so.
fn world_with<B: Backend>(
    more: &str,
    answer: impl FnMut(&Asked) -> Say + Send + 'static,
) -> (World<B>, Handler) {
    let handler = Handler::start(answer);
    let mut world = World::<B>::open(shop());
    world.republish(&handled(&format!("{{ url = {:?}{more} }}", handler.url)));
    (world, handler)
}

fn result_begins() -> Place {
    Place::message(Way::Down, |it| matches!(it, Control::ResultBegin(_)))
}

fn apply(_: &Value) -> Value {
    json!({ "verdict": "apply" })
}

const PRODUCTS: &str = "SELECT product_id, name, stock FROM product ORDER BY product_id";

/// By what a row is called.
fn by_name(row: &Value) -> Value {
    match row["new"]["name"].as_str() {
        Some("bad") => json!({ "verdict": "refuse", "reason": "we do not sell that" }),
        Some("dear") => json!({ "verdict": "change", "new": { "stock": 7 } }),
        Some("other key") => json!({ "verdict": "change", "new": { "product_id": 99 } }),
        Some("done") => json!({ "verdict": "handled" }),
        _ => apply(row),
    }
}

fn verdicts_decide_what_becomes_of_uploaded_rows<B: Backend>() {
    let (world, handler) = world_with::<B>("", |asked| asked.each(by_name));
    let mut ada = world.synced("ada");
    assert!(handler.asked().is_empty());
    ada.edit(
        "INSERT INTO product VALUES (10, 'good', 1), (11, 'bad', 1), (12, 'dear', 1);
         INSERT INTO product VALUES (13, 'other key', 1), (14, 'done', 1);
         UPDATE product SET name = 'dear', stock = 1 WHERE product_id = 1;
         UPDATE product SET name = 'done' WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;",
    );
    ada.sync();
    let [asked] = &handler.asked()[..] else {
        panic!("one request");
    };
    assert_eq!(asked.event(), "upload");
    assert_eq!(asked.body["table"], "product");
    assert_eq!(asked.body["user"], "ada");
    assert_eq!(asked.body["publication"], "main");
    // The host's, as nobody has given it another one.
    assert!(asked.body["device_name"].is_string(), "{}", asked.body);
    let of = |operation: &str, id: i64| {
        let mut rows = asked.rows().iter();
        let found = rows.find(|it| it["operation"] == operation && it["key"]["product_id"] == id);
        found
            .unwrap_or_else(|| panic!("no {operation} of {id}"))
            .clone()
    };
    assert_eq!(
        of("update", 1)["old"],
        json!({ "product_id": 1, "name": "pen", "stock": 10 })
    );
    assert_eq!(of("insert", 10)["new"]["name"], "good");
    assert!(of("delete", 3).get("new").is_none());
    let expected = ["1|dear|7", "2|ink|20", "10|good|1", "12|dear|7"];
    assert_eq!(world.rows(PRODUCTS), expected);
    // It has what the centre has, and what was refused.
    let own = [
        "1|dear|7",
        "2|ink|20",
        "10|good|1",
        "11|bad|1",
        "12|dear|7",
        "13|other key|1",
    ];
    assert_eq!(ada.rows(PRODUCTS), own);
    let refused = ada.refused();
    let told: Vec<_> = refused
        .iter()
        .map(|it| (it.key.as_str(), it.code.as_str(), it.reason.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("[11]", "handler_refused", "we do not sell that"),
            (
                "[13]",
                "handler_refused",
                "the handler gives the row another key (product_id)"
            ),
        ]
    );
    assert!(world.server.conflicts().is_empty());
    ada.discard_refused();
    ada.sync();
    assert_eq!(ada.rows(PRODUCTS), expected);
    assert!(handler.asked().is_empty(), "nothing new was uploaded");
    assert_converged(&world, &[&ada]);
}

fn what_a_handler_has_written_itself_is_what_the_remote_gets<B: Backend>() {
    let (world, handler) = world_with::<B>("", |_| Say::Nothing);
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO product VALUES (20, 'mine', 1);
         UPDATE product SET stock = 0 WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3;",
    );
    let world = Arc::new(world);
    let application = world.clone();
    handler.says(move |asked| {
        application.execute(
            "INSERT INTO product VALUES (20, 'theirs', 5);
             UPDATE product SET stock = 11 WHERE product_id = 1;
             DELETE FROM product WHERE product_id = 3;",
        );
        asked.each(|_| json!({ "verdict": "handled" }))
    });
    ada.sync_only(SyncDirection::UploadOnly);
    assert_eq!(ada.pending(), 0);
    ada.sync();
    let expected = ["1|pen|11", "2|ink|20", "20|theirs|5"];
    assert_eq!(world.rows(PRODUCTS), expected);
    assert_eq!(ada.rows(PRODUCTS), expected);
    assert!(world.server.conflicts().is_empty());
    assert_converged(&world, &[&ada]);
}

fn rights_hold_whatever_a_handler_says<B: Backend>() {
    let (world, handler) = world_with::<B>("", |asked| {
        asked.each(|row| match row["key"]["customer_id"].as_i64() {
            Some(50) => json!({ "verdict": "change", "new": { "region": 1 } }),
            Some(51) => json!({ "verdict": "change", "new": { "name": " " } }),
            Some(52) => json!({ "verdict": "handled" }),
            _ => apply(row),
        })
    });
    let mut bob = world.synced("bob");
    bob.edit(
        "INSERT INTO customer VALUES (50, 2, 'moved', NULL, 1), (51, 2, 'unnamed', NULL, 1);
         INSERT INTO customer VALUES (52, 1, 'elsewhere', NULL, 1), (53, 1, 'too', NULL, 1);
         INSERT INTO invoice VALUES (50, 2, 50, 'of one that is refused');",
    );
    bob.sync();
    assert_eq!(handler.asked().len(), 1, "invoices are nobody's");
    let mut refused = bob.refused();
    refused.sort_by_key(|it| (it.table.clone(), it.key.clone()));
    let codes = refused.iter().map(|it| (it.key.as_str(), it.code.as_str()));
    assert_eq!(
        codes.collect::<Vec<_>>(),
        [
            ("[50]", "handler_refused"),
            ("[51]", "check"),
            ("[52]", "out_of_scope"),
            ("[53]", "out_of_scope"),
            ("[50]", "foreign_key"),
        ]
    );
    assert_eq!(
        world.rows("SELECT customer_id FROM customer WHERE customer_id > 9"),
        [""; 0]
    );
}

fn requests_are_cut_signed_and_written_as_the_handler_wants_them<B: Backend>() {
    let more = ", batch_rows = 3, format = \"lines\", secret = [\"new\", \"old\"]";
    let (world, handler) = world_with::<B>(more, |asked| asked.each(apply));
    let mut ada = world.synced("ada");
    ada.edit(
        "WITH RECURSIVE n (i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 107)
         INSERT INTO product SELECT i, 'row', i FROM n",
    );
    ada.sync();
    let asked = handler.asked();
    assert_eq!(asked.len(), 3, "8 rows, 3 at once");
    let mut keys: Vec<String> = asked.iter().flat_map(Asked::keys).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 8);
    for one in &asked {
        assert_eq!(one.header("content-type"), "application/x-ndjson");
        assert_eq!(one.header("tidewater-event"), "upload");
        let signed = format!("{}.{}", one.header("tidewater-timestamp"), one.text);
        let of = |secret: &str| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            let tag = hmac::sign(&key, signed.as_bytes());
            let digits = tag.as_ref().iter().map(|it| format!("{it:02x}"));
            format!("v1={}", digits.collect::<String>())
        };
        let expected = format!("{},{}", of("new"), of("old"));
        assert_eq!(one.header("tidewater-signature"), expected);
    }
    assert_converged(&world, &[&ada]);
}

/// A shop whose conflicts of products a handler decides, and nothing else.
fn resolving(url: &str) -> String {
    let product = "name = \"product\"\n";
    shop().publication.replace(
        product,
        &format!(
            "{product}handler = {{ url = {url:?}, events = [\"resolve_conflict\"] }}\n\
             conflict = {{ resolve = \"handler\" }}\n"
        ),
    )
}

fn a_handler_decides_of_rows_that_two_sides_have_changed<B: Backend>() {
    let handler = Handler::start(|asked| {
        assert_eq!(asked.event(), "resolve_conflict");
        asked.each(|row| match row["key"]["product_id"].as_i64() {
            Some(1) => json!({ "verdict": "remote" }),
            Some(2) => json!({ "verdict": "merge", "new": { "name": "both", "stock": 5 } }),
            Some(3) => json!({ "verdict": "park" }),
            Some(4) => json!({ "verdict": "centre" }),
            _ => json!({ "verdict": "merge", "new": { "name": "back" } }),
        })
    });
    let mut world = World::<B>::open(shop());
    world.execute("INSERT INTO product VALUES (4, 'nib', 40), (5, 'pad', 50), (6, 'bag', 60)");
    world.republish(&resolving(&handler.url));
    let mut ada = world.synced("ada");
    world.execute("UPDATE product SET stock = stock + 1 WHERE product_id < 5");
    world.execute("DELETE FROM product WHERE product_id = 5");
    ada.edit("UPDATE product SET stock = 0; DELETE FROM product WHERE product_id = 4");
    ada.sync();
    let [asked] = &handler.asked()[..] else {
        panic!("one request");
    };
    let of = |id: i64| {
        let mut rows = asked.rows().iter();
        rows.find(|it| it["key"]["product_id"] == id)
            .unwrap()
            .clone()
    };
    assert_eq!(asked.rows().len(), 5, "nobody else has changed 6");
    let ink = of(2);
    assert_eq!(ink["operation"], "update");
    assert_eq!(
        [
            &ink["old"]["stock"],
            &ink["new"]["stock"],
            &ink["theirs"]["stock"]
        ],
        [20, 0, 21]
    );
    assert!(of(4).get("new").is_none());
    assert!(of(5).get("theirs").is_none());
    let expected = [
        "1|pen|0", "2|both|5", "3|cap|31", "4|nib|41", "5|back|0", "6|bag|0",
    ];
    assert_eq!(world.rows(PRODUCTS), expected);
    assert_eq!(ada.rows(PRODUCTS), expected);
    let kept = world.server.conflicts();
    let kept = kept
        .iter()
        .map(|it| format!("{} {}", it.key, it.outcome.name()));
    let mut kept: Vec<String> = kept.collect();
    kept.sort();
    let outcomes = [
        "[1] remote",
        "[2] merged",
        "[3] parked",
        "[4] centre",
        "[5] merged",
    ];
    assert_eq!(kept, outcomes);
    assert_converged(&world, &[&ada]);
}

fn a_decision_counts_for_the_row_that_it_was_made_for<B: Backend>() {
    let handler = Handler::start(|_| Say::Nothing);
    let mut world = World::<B>::open(shop());
    world.republish(&resolving(&handler.url));
    let mut ada = world.synced("ada");
    world.execute("UPDATE product SET stock = 1 WHERE product_id = 1");
    ada.edit("UPDATE product SET stock = 0 WHERE product_id = 1");
    ada.edit("UPDATE customer SET name = 'beside' WHERE customer_id = 1");
    let world = Arc::new(world);
    let application = world.clone();
    // Somebody is always faster.
    let racing = move |asked: &Asked| {
        application.execute("UPDATE product SET stock = stock + 1 WHERE product_id = 1");
        asked.each(|_| json!({ "verdict": "remote" }))
    };
    handler.says(racing);
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::Busy);
    let asked = handler.asked();
    assert_eq!(asked.len(), 5);
    let mut keys: Vec<_> = asked.iter().flat_map(Asked::keys).collect();
    keys.dedup();
    assert_eq!(keys.len(), 5, "each is another question");
    assert_eq!(ada.pending(), 2);
    assert_eq!(
        world.rows("SELECT name FROM customer WHERE customer_id = 1"),
        ["one"]
    );
    let application = world.clone();
    let mut races = 2;
    handler.says(move |asked| {
        races -= 1;
        if races > 0 {
            application.execute("UPDATE product SET stock = stock + 1 WHERE product_id = 1");
        }
        asked.each(|_| json!({ "verdict": "remote" }))
    });
    ada.sync();
    assert_eq!(
        world.rows("SELECT stock FROM product WHERE product_id = 1"),
        ["0"]
    );
    assert_converged(&world, &[&ada]);
}

/// Somewhere else than in the consolidated database: notes of users, with a number of the last
/// change.
#[derive(Default)]
struct Notes {
    changes: Vec<(i64, Option<String>)>,
    /// Cursors from before are not known any more.
    since: usize,
    keys: std::collections::HashSet<String>,
}

impl Notes {
    fn write(&mut self, id: i64, text: Option<&str>) {
        self.changes.push((id, text.map(str::to_owned)));
    }

    fn answer(&mut self, asked: &Asked) -> Say {
        if asked.event() == "upload" {
            for row in asked.rows() {
                let key = row["idempotency_key"].as_str().unwrap().to_owned();
                if self.keys.insert(key) && row["new"]["text"] != "bad" {
                    let id = row["key"]["id"].as_i64().unwrap();
                    self.write(id, row["new"]["text"].as_str());
                }
            }
            return asked.each(|row| match row["new"]["text"].as_str() {
                Some("bad") => json!({ "verdict": "refuse", "reason": "bad words" }),
                _ => json!({ "verdict": "handled" }),
            });
        }
        assert_eq!(asked.event(), "download");
        let begin = match asked.body["cursor"]["at"].as_u64() {
            Some(at) if (at as usize) < self.since => return Say::Json(json!({ "reset": true })),
            at => at.unwrap_or(0) as usize,
        };
        // Three at once.
        let end = self.changes.len().min(begin + 3);
        let (mut rows, mut removed) = (Vec::new(), Vec::new());
        for (id, text) in &self.changes[begin..end] {
            match text {
                Some(text) => rows.push(json!({ "id": id, "text": text })),
                None => removed.push(json!({ "id": id })),
            }
        }
        let again = asked.body["again"].as_array().into_iter().flatten();
        rows.extend(again.map(|key| json!({ "id": key["id"], "text": "again" })));
        Say::Json(json!({
            "rows": rows, "removed": removed, "cursor": { "at": end },
            "more": end < self.changes.len(),
        }))
    }
}

fn a_table_can_live_anywhere<B: Backend>() {
    let notes = Arc::new(std::sync::Mutex::new(Notes::default()));
    let backend = notes.clone();
    let handler = Handler::start(move |asked| backend.lock().unwrap().answer(asked));
    let write = |id, text| notes.lock().unwrap().write(id, text);
    for id in 1..=7 {
        write(id, Some("first"));
    }
    write(7, None);
    let mut world = World::<B>::open(shop());
    world.execute("CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL)");
    world.execute("INSERT INTO note VALUES (99, 'of nobody')");
    let table = format!(
        "[[publication.table]]\nname = \"note\"\npartition = \"everyone\"\nhandler = {:?}\n\
         upload = \"handler\"\ndownload = \"handler\"\n",
        handler.url
    );
    world.republish(&format!("{}\n{table}", shop().publication));
    const NOTES: &str = "SELECT id, text FROM note ORDER BY id";
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    let all = [
        "1|first", "2|first", "3|first", "4|first", "5|first", "6|first",
    ];
    assert_eq!(ada.rows(NOTES), all);
    assert_eq!(handler.asked().len(), 6, "three pages for each");
    ada.edit("UPDATE note SET text = 'mine' WHERE id = 1; DELETE FROM note WHERE id = 2");
    ada.edit("INSERT INTO note VALUES (10, 'new'), (11, 'bad')");
    ada.sync();
    let refused = ada.refused();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].reason, "bad words");
    assert_eq!(ada.discard_refused(), 1);
    ada.sync();
    write(3, Some("theirs"));
    ada.sync();
    bob.sync();
    let expected = [
        "1|mine", "3|theirs", "4|first", "5|first", "6|first", "10|new",
    ];
    let without_refused = |rows: Vec<String>| -> Vec<String> {
        rows.into_iter()
            .filter(|it| !it.starts_with("11|"))
            .collect()
    };
    assert_eq!(without_refused(ada.rows(NOTES)), expected);
    assert_eq!(bob.rows(NOTES), expected);
    assert_eq!(world.rows(NOTES), ["99|of nobody"]);
    // Nothing new comes again.
    handler.asked();
    bob.sync();
    let asked = handler.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(
        asked[0].body["cursor"],
        json!({ "at": notes.lock().unwrap().changes.len() })
    );
    assert_eq!(asked[0].body["user"], "bob");
    // The source has forgotten what the cursors mean: everything comes anew, and the rest goes.
    {
        let mut notes = notes.lock().unwrap();
        notes.changes = vec![(1, Some("only".to_owned())), (20, Some("other".to_owned()))];
        notes.since = usize::MAX;
    }
    bob.sync();
    assert_eq!(bob.rows(NOTES), ["1|only", "20|other"]);
    // While it is away, nothing is lost.
    notes.lock().unwrap().since = 0;
    bob.edit("INSERT INTO note VALUES (30, 'kept')");
    handler.says(|_| Say::Status(500));
    assert_eq!(bob.try_sync().unwrap_err().code(), Code::HandlerAway);
    assert_eq!(bob.pending(), 1);
}

fn a_page_that_is_none_ends_the_sync<B: Backend>() {
    let handler = Handler::start(|_| Say::Json(json!({ "cursor": 1, "rows": [] })));
    let mut world = World::<B>::open(shop());
    world.execute("CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL)");
    let table = format!(
        "[[publication.table]]\nname = \"note\"\npartition = \"everyone\"\ndirection = \"download\"\n\
         handler = {:?}\ndownload = \"handler\"\n",
        handler.url
    );
    world.republish(&format!("{}\n{table}", shop().publication));
    let mut ada = world.synced("ada");
    for nonsense in [
        json!({}),
        json!({ "cursor": "x".repeat(5_000) }),
        json!({ "cursor": 1, "rows": [{ "id": 1 }] }),
        json!({ "cursor": 1, "rows": [{ "id": 1, "text": "a", "more": 1 }] }),
        json!({ "cursor": 1, "removed": [{ "text": "a" }] }),
        json!({ "cursor": 1, "rows": 3 }),
        json!({ "cursor": 1, "more": true }),
        json!({ "cursor": 2, "more": "yes" }),
    ] {
        let told = nonsense.clone();
        handler.says(move |_| Say::Json(told.clone()));
        let error = ada.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::HandlerFailed, "{nonsense}");
    }
    handler.says(|_| Say::Json(json!({ "cursor": 1, "rows": [{ "id": 1, "text": "a" }] })));
    ada.sync();
    assert_eq!(ada.rows("SELECT text FROM note"), ["a"]);
}

fn a_handler_lets_syncs_begin_and_is_told_of_their_end<B: Backend>() {
    let handler = Handler::start(|_| Say::Json(json!({})));
    let mut world = World::<B>::open(shop());
    let name = "name = \"main\"\n";
    let publication =
        shop()
            .publication
            .replacen(name, &format!("{name}handler = {:?}\n", handler.url), 1);
    world.republish(&publication);
    let mut ada = world.device("ada");
    handler.says(|asked| match asked.event() {
        "begin_synchronization" => Say::Json(json!({
            "verdict": "refuse", "reason": "closed until six"
        })),
        _ => Say::Nothing,
    });
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::SyncRefused);
    assert!(error.to_string().contains("closed until six"), "{error}");
    handler.asked();
    let mut lost = 1;
    handler.says(move |asked| match asked.event() {
        "end_synchronization" if lost > 0 => {
            lost -= 1;
            Say::Nothing
        }
        _ => Say::Json(json!({})),
    });
    ada.sync();
    ada.edit("INSERT INTO product VALUES (9, 'hat', 1)");
    ada.sync();
    let mut all = Vec::new();
    let ended = |all: &[Asked]| {
        let ends = all.iter().filter(|it| it.event() == "end_synchronization");
        ends.filter(|it| it.body["inserts"] == 1).count() > 0
    };
    for _ in 0..30_000 {
        all.extend(handler.asked());
        if ended(&all) && all.len() >= 5 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(ended(&all), "the end is told");
    let ends: Vec<&Asked> = all
        .iter()
        .filter(|it| it.event() == "end_synchronization")
        .collect();
    assert!(ends.iter().all(|it| it.body["outcome"] == "done"));
    // What got no answer is told again, under the same key.
    assert_eq!(ends.len(), 3);
    let first = ends[0].header("idempotency-key");
    assert_eq!(
        ends.iter()
            .filter(|it| it.header("idempotency-key") == first)
            .count(),
        2
    );
    let begun = all
        .iter()
        .filter(|it| it.event() == "begin_synchronization");
    assert_eq!(begun.count(), 2);
}

fn a_handler_knows_passwords<B: Backend>() {
    let handler = Handler::start(|asked| {
        assert_eq!(asked.event(), "authenticate_user");
        match (asked.body["user"].as_str(), asked.body["password"].as_str()) {
            (Some("nancy"), Some("nancys secret")) => Say::Json(json!({
                "verdict": "accept", "user": "n1", "claims": { "region": "north", "level": 3 }
            })),
            (Some("odd"), _) => Say::Json(json!({ "verdict": "maybe" })),
            (Some("away"), _) => Say::Status(503),
            (Some("olga"), Some("olgas secret")) => Say::Json(json!({
                "verdict": "accept", "password_set": asked.body["new_password"] == "another"
            })),
            _ => Say::Json(json!({ "verdict": "refuse" })),
        }
    });
    let world = World::<B>::open(crate::signing_in::regions());
    let server = world.server_with(|config| {
        let text = format!(
            "[server]\nconsolidated = \"sqlite:x\"\n[sign_in]\npasswords = \"handler\"\n\
             create_users = true\nhandler = {{ url = {:?}, retries = 0 }}\n",
            handler.url
        );
        let other = tidewater_server::Config::parse(&text).unwrap();
        config.sign_in = other.sign_in;
        config.handlers = other.handlers;
        config.handling = other.handling;
    });
    let sign_in = |user: &str, password: &str| {
        let mut stranger = crate::signing_in::Stranger::named(user, &server);
        stranger.remote.set_password(password);
        (stranger.try_sync(), stranger)
    };
    let (synced, nancy) = sign_in("nancy", "nancys secret");
    synced.unwrap();
    drop(nancy);
    let users = crate::signing_in::users(&world);
    let n1 = users.iter().find(|it| it.name == "n1").unwrap();
    assert_eq!(n1.proven.claims.named("region"), Some("north"));
    assert_eq!(n1.proven.claims.named("level"), Some("3"));
    let code = |user: &str| sign_in(user, "wrong").0.unwrap_err().code();
    assert_eq!(code("nancy"), Code::WrongPassword);
    assert_eq!(code("odd"), Code::HandlerFailed);
    assert_eq!(code("away"), Code::IdentityUnavailable);
    // A password that it is to replace, and has to say so.
    let change = |new: &str| {
        let proof = LinkProof::PasswordChange {
            password: "olgas secret".into(),
            new_password: new.into(),
        };
        let url = format!("tcp://{}", server.address);
        Link::connect(&url, &LinkOptions::proven("olga", proof)).map(drop)
    };
    change("another").unwrap();
    assert_eq!(change("a third").unwrap_err().code(), Code::NotAllowed);
}

/// A program that is connected to the server, in place of an address.
fn a_provider_judges_rows<B: Backend>() {
    const PROCEDURE: &str = "
[[procedure]]
name = \"judge\"
provided_by = \"bob\"
arguments = { request = \"json\" }
allow = \"SELECT 1 WHERE 1 = 0\"
idempotent = true
";
    let mut world = World::<B>::open(shop());
    let called = "{ url = \"call:judge\", retries = 0, breaker_failures = 100 }";
    world.republish(&(handled(called) + PROCEDURE));
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (10, 'good', 1), (11, 'bad', 1), (12, 'dear', 1)");
    // Nobody provides it yet.
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::HandlerAway, "{error}");
    assert_eq!(ada.pending(), 3);
    let link = link_to(&world.server, "bob");
    let judge = |called: &ProvidedCall| {
        let body: Value = serde_json::from_str(called.text("request")?).unwrap();
        let (head, text) = (String::new(), String::new());
        let Say::Json(said) = (Asked { head, text, body }).each(by_name) else {
            panic!("it says something of each row");
        };
        Ok(tidewater_client::Answer::value(
            ColumnType::Json,
            &Datum::Text(&said.to_string()),
        ))
    };
    link.provide("judge", judge).expect("it may");
    ada.sync();
    let expected = ["1|pen|10", "2|ink|20", "3|cap|30", "10|good|1", "12|dear|7"];
    assert_eq!(world.rows(PRODUCTS), expected);
    assert_eq!(ada.refused().len(), 1);
    // Nobody may call it.
    let request = Request::new("judge").with("request", Some("{}".into()));
    let denied = link_to(&world.server, "ada").call(&request).map(drop);
    assert_eq!(denied.unwrap_err().code(), Some(Code::NotAllowed));
}

on_both_adapters!(
    a_provider_judges_rows,
    verdicts_decide_what_becomes_of_uploaded_rows,
    what_a_handler_has_written_itself_is_what_the_remote_gets,
    rights_hold_whatever_a_handler_says,
    requests_are_cut_signed_and_written_as_the_handler_wants_them,
    a_handler_decides_of_rows_that_two_sides_have_changed,
    a_decision_counts_for_the_row_that_it_was_made_for,
    a_table_can_live_anywhere,
    a_page_that_is_none_ends_the_sync,
    a_handler_lets_syncs_begin_and_is_told_of_their_end,
    a_handler_knows_passwords,
);
