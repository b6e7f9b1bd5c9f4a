//! Answers of the database, and the memory that they wait in.

use tidewater_client::{Answer, CallError, Code, Link, Request, Value};

use crate::backend::Backend;
use crate::events::link_to;
use crate::scenario::{Scenario, shop};
use crate::world::World;

const LIMITS: &str = r#"
memory = "300KiB"

[[procedure]]
name = "read"
sql = "SELECT body FROM page WHERE id = {a.id}"
arguments = { id = "integer" }
returns = "value"
read_only = true
allow = "everyone"

[[procedure]]
name = "count"
sql = "UPDATE page SET times = times + 1 WHERE id = {a.id} RETURNING body"
arguments = { id = "integer" }
returns = "value"
allow = "everyone"
"#;

/// A page that the memory holds once, and one that it does not hold.
const PAGES: [usize; 2] = [200_000, 400_000];

fn scenario() -> Scenario {
    let mut scenario = shop();
    scenario.schema += "
        CREATE TABLE page (id INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL, times INTEGER);";
    for (id, length) in PAGES.into_iter().enumerate() {
        let body = "x".repeat(length);
        scenario.schema += &format!("INSERT INTO page VALUES ({id}, '{body}', 0);");
    }
    scenario.limits = LIMITS;
    scenario
}

fn call(link: &Link, procedure: &str, id: i64) -> Result<Answer, CallError> {
    link.call(&Request::new(procedure).with("id", Some(id.into())))
}

fn an_answer_that_the_memory_has_no_room_for_is_told_for_what_it_is<B: Backend>() {
    let world = World::<B>::open(scenario());
    let ada = link_to(&world.server, "ada");
    let refused = |procedure: &str| call(&ada, procedure, 1).map(drop).unwrap_err();
    // What was only read can be read again, what was done must not be done again.
    assert_eq!(refused("read").code(), Some(Code::Busy));
    assert_eq!(refused("count").code(), Some(Code::OutcomeUnknown));
    let times = world.rows("SELECT times FROM page ORDER BY id");
    assert_eq!(times, ["0", "1"]);
    // The memory of an answer that was taken is there for the next one.
    for procedure in ["read", "count", "read"] {
        let answer = call(&ada, procedure, 0).unwrap().unpack().unwrap();
        assert_eq!(answer, [[Value::Text("x".repeat(PAGES[0]))]]);
    }
}

on_both_adapters!(an_answer_that_the_memory_has_no_room_for_is_told_for_what_it_is);
