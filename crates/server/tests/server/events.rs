//! Events between connections of a server, from call to stream.

use tidewater_connection::ChannelInput;
use tidewater_protocol::Code;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, EVENT_CHANNEL};
use tidewater_protocol::message::{Argument, ArgumentValue, Call, CallKind, Control};

use crate::program::Program;
use crate::world::World;

const SPACES: &str = r#"
[[space]]
name = "fleet"
publish = ["unit.{s.username}.>"]
subscribe = "everyone"
"#;

#[tokio::test]
async fn an_event_goes_from_one_connection_to_those_that_subscribed() {
    let world = World::with_limits(SPACES).await;
    let mut ada = Program::connect(&world, "ada").await;
    let mut bob = Program::connect(&world, "bob").await;
    bob.call("tidewater.subscribe", "fleet", "unit.*.position")
        .await
        .unwrap();
    for (space, subject, code) in [
        ("fleet", "unit..a", Code::BadSubject),
        ("fleets", "unit.>", Code::NoSuchSpace),
    ] {
        let failed = bob.call("tidewater.subscribe", space, subject).await;
        let failed = failed.unwrap_err();
        assert_eq!(failed.code(), Some(code), "{failed}");
        assert!(!failed.hint.is_empty());
    }
    ada.publish("fleet/unit.ada.position", "here");
    ada.publish("fleet/unit.bob.position", "not mine");
    ada.publish("fleet/unit.ada.position", "there");
    let told = ada.message().await;
    assert_eq!(told.flags, CallKind::OneWay as u8);
    let told: Call = prost::Message::decode(told.payload).unwrap();
    assert_eq!(told.procedure, "tidewater.refused");
    let code = i64::from(Code::NotAllowed.number());
    assert_eq!(
        told.arguments[..2],
        [
            Argument::new("count", ArgumentValue::from(1)),
            Argument::new("code", ArgumentValue::from(code)),
        ]
    );
    assert_eq!(bob.events(2).await, ["here", "there"]);
    bob.call("tidewater.unsubscribe", "fleet", "unit.*.position")
        .await
        .unwrap();
    bob.call("tidewater.subscribe", "fleet", "unit.*.alarm")
        .await
        .unwrap();
    ada.publish("fleet/unit.ada.position", "nobody listens");
    ada.publish("fleet/unit.ada.alarm", "fire");
    ada.call("tidewater.subscribe", "fleet", ">").await.unwrap();
    assert_eq!(bob.events(1).await, ["fire"]);
    world.running.shutdown().await;
}

#[tokio::test]
async fn what_is_no_event_ends_the_connection_with_a_reason() {
    let world = World::with_limits(SPACES).await;
    let mut ada = Program::connect(&world, "ada").await;
    ada.machine.send_rows(EVENT_CHANNEL, vec![255; 8]);
    let ChannelInput::Control(Control::Failure(failure)) = ada.receive(CONNECTION_CHANNEL).await
    else {
        panic!("no failure");
    };
    assert_eq!(Code::from_number(failure.code), Some(Code::LimitExceeded));
    world.running.shutdown().await;
}
