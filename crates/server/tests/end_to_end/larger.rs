//! Calls, answers and events that are larger than they may be by default, or not.

use std::time::Duration;

use tidewater_client::{Answer, CallError, Code, Request, SubscriptionStart, Value};

use crate::backend::Backend;
use crate::events::link_to;
use crate::scenario::{Scenario, shop};
use crate::web::{WebProgram, whole};
use crate::world::World;

const MIB: usize = 1 << 20;

const PROCEDURES: &str = r#"
[[procedure]]
name = "measure"
sql = "SELECT length({a.text})"
arguments = { text = "text" }
returns = "value"
read_only = true
allow = "everyone"

[[procedure]]
name = "pages"
sql = "SELECT body FROM page"
returns = "rows"
read_only = true
allow = "everyone"

[[procedure]]
name = "copies"
sql = "UPDATE page SET body = body RETURNING body"
returns = "rows"
allow = "everyone"

[[procedure]]
name = "many"
sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {a.count}) SELECT i, 'the row with the number ' || i AS text FROM n WHERE i <= {a.count}"
arguments = { count = "integer" }
returns = "rows"
read_only = true
allow = "everyone"

[[procedure]]
name = "endless"
sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
returns = "rows"
read_only = true
allow = "everyone"

[[procedure]]
name = "failing"
sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT i, abs(-9223372036854775807 - CASE WHEN i > 90000 THEN 1 ELSE 0 END) AS bad FROM n"
returns = "rows"
read_only = true
allow = "everyone"

[[space]]
name = "fleet"
publish = "everyone"
subscribe = "everyone"
queue_size = "16MiB"
"#;

/// Pages of one MiB each, which are no answer by default.
const PAGES: usize = 17;

fn scenario(limits: &str) -> Scenario {
    let mut scenario = shop();
    scenario.schema += "
        CREATE TABLE page (id INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL);";
    for id in 0..PAGES {
        let body = "x".repeat(MIB);
        scenario.schema += &format!("INSERT INTO page VALUES ({id}, '{body}');");
    }
    scenario.limits = format!("{limits}\n{PROCEDURES}").leak();
    scenario
}

fn code(error: &CallError) -> Option<Code> {
    error.code()
}

fn calls_events_and_answers_may_be_as_large_as_the_operator_says<B: Backend>() {
    let world = World::<B>::open(scenario("message_size = \"3MiB\"\nanswer_size = \"32MiB\""));
    let ada = link_to(&world.server, "ada");
    let bob = link_to(&world.server, "bob");
    let measure = |bytes: usize| {
        let text = "x".repeat(bytes);
        ada.call(&Request::new("measure").with("text", Some(text.as_str().into())))
    };
    let length = measure(2 * MIB).unwrap().unpack().unwrap();
    assert_eq!(length, [[Value::Integer(2 * MIB as i64)]]);
    // What is too large is told before it is sent, and the connection lasts.
    let refused = measure(3 * MIB).map(drop).unwrap_err();
    assert_eq!(code(&refused), Some(Code::LimitExceeded));
    let mut heard = bob.subscribe("fleet", ">", SubscriptionStart::Now).unwrap();
    ada.publish("fleet", "large", &vec![7; 2 * MIB]).unwrap();
    let event = heard.recv(Duration::from_secs(30)).unwrap();
    assert_eq!(event.payload().len(), 2 * MIB);
    let refused = ada
        .publish("fleet", "large", &vec![7; 3 * MIB])
        .unwrap_err();
    assert_eq!(code(&refused), Some(Code::LimitExceeded));
    let pages = ada.call(&Request::new("copies")).unwrap().unpack().unwrap();
    assert_eq!(pages.len(), PAGES);
}

fn what_is_larger_than_the_default_is_refused_by_name<B: Backend>() {
    let world = World::<B>::open(scenario(""));
    let ada = link_to(&world.server, "ada");
    let text = "x".repeat(MIB);
    let large = Request::new("measure").with("text", Some(text.as_str().into()));
    let refused = ada.call(&large).map(drop).unwrap_err();
    assert_eq!(code(&refused), Some(Code::LimitExceeded));
    assert!(refused.to_string().contains("1048576"), "{refused}");
    let refused = ada.publish("fleet", "large", &vec![7; MIB]).unwrap_err();
    assert_eq!(code(&refused), Some(Code::LimitExceeded));
    // What is sent while it is read may be larger, and what is not, may not.
    let pages = ada.call(&Request::new("pages")).unwrap().unpack().unwrap();
    assert_eq!(pages.len(), PAGES);
    let refused = ada.call(&Request::new("copies")).map(drop).unwrap_err();
    assert_eq!(code(&refused), Some(Code::AnswerTooLarge));
    assert!(
        refused.to_string().contains("limits.answer_size"),
        "{refused}"
    );
}

/// The numbers of an answer's rows, taken piece by piece.
fn numbers(piece: &Answer) -> Vec<i64> {
    let rows = piece.unpack().unwrap().into_iter();
    let numbers = rows.map(|row| match row[0] {
        Value::Integer(number) => number,
        ref other => panic!("{other:?}"),
    });
    numbers.collect()
}

fn rows_come_while_they_are_read_and_as_fast_as_they_are_taken<B: Backend>() {
    let world = World::<B>::open(scenario("answer_stream_size = \"40MiB\""));
    let ada = link_to(&world.server, "ada");
    let many = |count: i64| Request::new("many").with("count", Some(count.into()));
    let mut rows = ada.rows(&many(300_000)).unwrap();
    let (mut seen, mut pieces) = (Vec::new(), 0);
    while let Some(piece) = rows.next_piece().unwrap() {
        seen.extend(numbers(&piece));
        pieces += 1;
    }
    assert!(pieces > 20, "{pieces} pieces");
    assert_eq!(seen, (1..=300_000).collect::<Vec<i64>>());
    assert!(rows.next_piece().unwrap().is_none());
    // Nothing is held up by an answer that nobody takes, and what is dropped is ended.
    let mut slow = ada.rows(&many(300_000)).unwrap();
    let first = slow.next_piece().unwrap().unwrap();
    assert_eq!(numbers(&first)[0], 1);
    let measured = ada.call(&Request::new("measure").with("text", Some("abc".into())));
    assert_eq!(measured.unwrap().unpack().unwrap(), [[Value::Integer(3)]]);
    drop(slow);
    let mut endless = ada.rows(&Request::new("endless")).unwrap();
    assert_eq!(numbers(&endless.next_piece().unwrap().unwrap())[0], 1);
    drop(endless);
    // Too much of it, and what fails in the middle, ends it with the error.
    for (request, ended) in [
        (many(3_000_000), Code::AnswerTooLarge),
        (Request::new("failing"), Code::ProcedureFailed),
    ] {
        let mut rows = ada.rows(&request).unwrap();
        let failed = loop {
            match rows.next_piece() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it comes to its end"),
                Err(failed) => break failed,
            }
        };
        assert_eq!(code(&failed), Some(ended), "{failed}");
    }
    // Whatever else is called so, comes in one piece.
    let mut one = ada
        .rows(&Request::new("measure").with("text", Some("ab".into())))
        .unwrap();
    assert_eq!(numbers(&one.next_piece().unwrap().unwrap()), [2]);
    assert!(one.next_piece().unwrap().is_none());
    let mut none = ada.rows(&many(0)).unwrap();
    assert!(numbers(&none.next_piece().unwrap().unwrap()).is_empty());
    assert!(none.next_piece().unwrap().is_none());
}

/// What chunks of a body have together, and whether the last one has come.
fn joined(answer: &str) -> (String, bool) {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let mut body = String::new();
    while let Some((length, behind)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return (body, true);
        }
        body += &behind[..length];
        rest = &behind[length + 2..];
    }
    (body, false)
}

fn rows_go_over_http_as_a_list_that_is_sent_in_pieces<B: Backend>() {
    let world = World::<B>::open(scenario(""));
    let server = world.web_server();
    let web = WebProgram::sign_in(&server, "ada");
    let (body, is_whole) = joined(&whole(web.ask("POST /v1/call/many", "{\"count\": 20000}")));
    assert!(is_whole);
    let rows: serde_json::Value = serde_json::from_str(&body).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 20_000);
    assert_eq!(rows[19_999]["i"], 20_000);
    // What fails in the middle is no list.
    let failed = whole(web.ask("POST /v1/call/failing", "{}"));
    let (body, is_whole) = joined(&failed);
    let (begin, end) = (&body[..40], &body[body.len() - 40..]);
    assert!(
        begin.starts_with("[{") && begin.contains("\"i\":1}") && !is_whole,
        "{begin} ... {end} {is_whole}"
    );
}

on_both_adapters!(
    calls_events_and_answers_may_be_as_large_as_the_operator_says,
    what_is_larger_than_the_default_is_refused_by_name,
    rows_come_while_they_are_read_and_as_fast_as_they_are_taken,
    rows_go_over_http_as_a_list_that_is_sent_in_pieces,
);
