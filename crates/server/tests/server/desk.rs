//! The channel of calls of a program that does not take what it is answered.

use std::collections::HashSet;

use tidewater_protocol::frame::CALL_CHANNEL;
use tidewater_protocol::message::{Answer, CallKind};
use tidewater_protocol::{ColumnType, Datum, Value};

use crate::program::Program;
use crate::world::World;

const DOUBLE: &str = r#"
[[procedure]]
name = "double"
provided_by = "bob"
allow = "everyone"
arguments = { number = "integer" }
"#;

/// Together they are several times what may be on its way in one direction.
const CALLS: usize = 60;
const CALL_BYTES: usize = 100_000;

#[tokio::test]
async fn who_takes_no_answers_is_heard_no_further_and_gets_every_answer_later() {
    let world = World::with_limits(DOUBLE).await;
    let mut ada = Program::connect(&world, "ada").await;
    let mut bob = Program::connect(&world, "bob").await;
    bob.begin("tidewater.provide", &[("name", "double")]);
    assert_eq!(bob.message().await.flags, CallKind::Answer as u8);
    let doubled = ada.begin("double", &[("number", "21")]);
    ada.fill().await;
    let asked = bob.message().await;
    let long = "x".repeat(CALL_BYTES);
    let mut unanswered: HashSet<u64> = (0..CALLS)
        .map(|_| ada.begin("tidewater.echo", &[("value", &long)]))
        .collect();
    ada.fill().await;
    // What a provider answers meanwhile waits behind that.
    let answer = Answer::value(ColumnType::Integer, &Datum::Integer(42));
    bob.say(asked.id, CallKind::Answer, &answer);
    bob.begin("tidewater.echo", &[("value", "it was heard")]);
    assert_eq!(bob.message().await.flags, CallKind::Answer as u8);
    ada.fill().await;
    let unheard = ada.machine.unsent_bytes(CALL_CHANNEL);
    assert!(unheard > CALLS * CALL_BYTES / 2, "{unheard} bytes wait");
    unanswered.insert(doubled);
    while !unanswered.is_empty() {
        let message = ada.message().await;
        assert_eq!(message.flags, CallKind::Answer as u8);
        let answer: Answer = prost::Message::decode(message.payload).unwrap();
        let expected = match message.id == doubled {
            true => Value::Integer(42),
            false => Value::Text(long.as_str().into()),
        };
        assert_eq!(answer.unpack().unwrap(), [[expected]]);
        assert!(unanswered.remove(&message.id), "{} twice", message.id);
    }
    world.running.shutdown().await;
}
