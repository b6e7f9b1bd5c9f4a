//! Calls, answers and events that are larger than they may be by default, or not.

use std::time::Duration;

use tidewater_client::{CallError, Code, Request, Since, Value};

use crate::backend::Backend;
use crate::events::link_to;
use crate::scenario::{Scenario, shop};
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

[[space]]
name = "fleet"
publish = "everyone"
subscribe = "everyone"
queue = "16MiB"
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
    let world = World::<B>::open(scenario("message = \"3MiB\"\nanswer = \"32MiB\""));
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
    let mut heard = bob.subscribe("fleet", ">", Since::Now).unwrap();
    ada.publish("fleet", "large", &vec![7; 2 * MIB]).unwrap();
    let event = heard.recv(Duration::from_secs(30)).unwrap();
    assert_eq!(event.payload().len(), 2 * MIB);
    let refused = ada
        .publish("fleet", "large", &vec![7; 3 * MIB])
        .unwrap_err();
    assert_eq!(code(&refused), Some(Code::LimitExceeded));
    let pages = ada.call(&Request::new("pages")).unwrap().unpack().unwrap();
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
    let refused = ada.call(&Request::new("pages")).map(drop).unwrap_err();
    assert_eq!(code(&refused), Some(Code::AnswerTooLarge));
    assert!(refused.to_string().contains("limits.answer"), "{refused}");
}

on_both_adapters!(
    calls_events_and_answers_may_be_as_large_as_the_operator_says,
    what_is_larger_than_the_default_is_refused_by_name,
);
