//! Procedures and spaces under another configuration, and tables that are altered under them,
//! while everybody stays connected.

use tidewater_client::{Answer, CallError, Code, Link, Request, SubscriptionStart, Value};

use crate::backend::Backend;
use crate::events::link_to;
use crate::scenario::{Scenario, shop};
use crate::world::World;

const BEFORE: &str = r#"
[[procedure]]
name = "name"
sql = "SELECT * FROM thing WHERE id = {a.id}"
arguments = { id = "integer" }
returns = "row"
allow = "everyone"

[[procedure]]
name = "print"
provided_by = "bob"
allow = "everyone"

[[space]]
name = "news"
publish = "everyone"
subscribe = "everyone"
"#;

const AFTER: &str = r#"
[[procedure]]
name = "name"
sql = "SELECT 'another' WHERE {a.id} = 1"
arguments = { id = "integer" }
returns = "value"
allow = "everyone"

[[procedure]]
name = "print"
provided_by = "cleo"
allow = "everyone"

[[procedure]]
name = "new"
sql = "SELECT 1"
returns = "value"
allow = "SELECT 1 WHERE {s.username} = 'ada'"

[[space]]
name = "news"
publish = "everyone"
subscribe = { patterns = [">"], allow = "SELECT 1 WHERE {s.username} = 'ada'" }
"#;

fn scenario() -> Scenario {
    let mut scenario = shop();
    scenario.schema += "
        CREATE TABLE thing (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
        INSERT INTO thing VALUES (1, 'pen');";
    scenario.limits = BEFORE;
    scenario
}

fn row(link: &Link, procedure: &str) -> Vec<Value> {
    let answer = link.call(&name(procedure)).unwrap();
    answer.unpack().unwrap().remove(0).to_vec()
}

fn name(procedure: &str) -> Request {
    let request = Request::new(procedure);
    match procedure {
        "name" => request.with("id", Some(1.into())),
        _ => request,
    }
}

fn code(result: Result<Answer, CallError>) -> Code {
    let error = result.unwrap_err();
    error.code().expect("it is told")
}

fn another_configuration_counts_for_those_who_are_connected<B: Backend>() {
    let mut world = World::<B>::open(scenario());
    let links = ["ada", "bob", "cleo"].map(|user| link_to(&world.server, user));
    let [ada, bob, cleo] = &links;
    bob.provide("print", |_| Ok(Answer::nothing())).unwrap();
    ada.call(&name("print")).unwrap();
    let text = |text: &str| Value::Text(text.into());
    assert_eq!(row(ada, "name"), [Value::Integer(1), text("pen")]);
    assert_eq!(code(ada.call(&name("new"))), Code::NoSuchProcedure);
    // What the database does, no program can take over; nor what is another's.
    for (link, taken) in [(bob, "name"), (cleo, "print")] {
        let error = link.provide(taken, |_| Ok(Answer::nothing())).unwrap_err();
        assert_eq!(error.code(), Some(Code::NameTaken), "{taken}");
    }
    // What cannot be run changes nothing, and is told with its line.
    for (from, to, expected) in [
        ("SELECT 'another'", "SELECT nothing", "procedure \"name\""),
        ("'ada'\" }", "{s.usernam}\" }", "space \"news\": subscribe"),
    ] {
        world.scenario.limits = AFTER.replacen(from, to, 1).leak();
        let error = world.reconfigure().unwrap_err().to_string();
        let (line, rest) = error.split_once(": ").unwrap();
        assert!(
            line.starts_with("line ") && rest.starts_with(expected),
            "{error}"
        );
        assert_eq!(row(ada, "name"), [Value::Integer(1), text("pen")]);
    }
    world.scenario.limits = AFTER;
    world.reconfigure().unwrap();
    assert_eq!(row(ada, "name"), [text("another")]);
    assert_eq!(row(ada, "new"), [Value::Integer(1)]);
    assert_eq!(code(bob.call(&name("new"))), Code::NotAllowed);
    // Who may provide it no longer does not.
    assert_eq!(code(ada.call(&name("print"))), Code::NoProvider);
    cleo.provide("print", |_| Ok(Answer::nothing())).unwrap();
    ada.call(&name("print")).unwrap();
    // What nobody declares any longer and somebody does again is provided by whoever was there.
    world.scenario.limits = AFTER
        .replacen(r#"name = "print""#, r#"name = "other""#, 1)
        .leak();
    world.reconfigure().unwrap();
    assert_eq!(code(ada.call(&name("print"))), Code::NoSuchProcedure);
    world.scenario.limits = AFTER;
    world.reconfigure().unwrap();
    ada.call(&name("print")).unwrap();
    cleo.withdraw("print").unwrap();
    assert_eq!(code(ada.call(&name("print"))), Code::NoProvider);
    // Who has taken it back while he may not does not either when he may again.
    world.scenario.limits = BEFORE;
    world.reconfigure().unwrap();
    ada.call(&name("print")).unwrap();
    world.scenario.limits = AFTER;
    world.reconfigure().unwrap();
    bob.withdraw("print").unwrap();
    world.scenario.limits = BEFORE;
    world.reconfigure().unwrap();
    assert_eq!(code(ada.call(&name("print"))), Code::NoProvider);
    world.scenario.limits = AFTER;
    world.reconfigure().unwrap();
    ada.subscribe("news", ">", SubscriptionStart::Now).unwrap();
    let refused = bob
        .subscribe("news", ">", SubscriptionStart::Now)
        .unwrap_err();
    assert_eq!(refused.code(), Some(Code::NotAllowed));
}

fn a_statement_outlives_the_tables_that_it_was_prepared_for<B: Backend>() {
    let world = World::<B>::open(scenario());
    let ada = link_to(&world.server, "ada");
    let text = |text: &str| Value::Text(text.into());
    for _ in 0..3 {
        assert_eq!(row(&ada, "name"), [Value::Integer(1), text("pen")]);
    }
    world.execute("ALTER TABLE thing ADD COLUMN note TEXT DEFAULT 'blue'");
    let expected = [Value::Integer(1), text("pen"), text("blue")];
    assert_eq!(row(&ada, "name"), expected);
    world.execute("DROP TABLE thing");
    assert_eq!(code(ada.call(&name("name"))), Code::ProcedureFailed);
    world.execute("CREATE TABLE thing (id INTEGER, amount INTEGER)");
    world.execute("INSERT INTO thing VALUES (1, 7)");
    assert_eq!(row(&ada, "name"), [Value::Integer(1), Value::Integer(7)]);
}

on_both_adapters!(
    another_configuration_counts_for_those_who_are_connected,
    a_statement_outlives_the_tables_that_it_was_prepared_for,
);
