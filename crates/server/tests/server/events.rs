//! Events between connections of a server, from call to stream.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use tidewater_connection::{Connection, Incoming};
use tidewater_protocol::Code;
use tidewater_protocol::event::{EVENT_BYTES, EventsReader, put_event};
use tidewater_protocol::frame::{CALL_CHANNEL, CONNECTION_CHANNEL, EVENT_CHANNEL, Message};
use tidewater_protocol::message::{
    Argument, Call, CallFailed, CallKind, Control, Given, PROTOCOL_VERSION, Proof, SignIn,
};
use tidewater_server::environment::Stream;

use crate::world::{PASSWORD, World};

const SPACES: &str = r#"
[[space]]
name = "fleet"
publish = ["unit.{s.username}.>"]
subscribe = "everyone"
"#;

const PATIENCE: Duration = Duration::from_secs(20);

/// A program that is connected.
struct Program {
    stream: Box<dyn Stream>,
    machine: Connection,
    calls: u64,
}

impl Program {
    async fn connect(world: &World, user: &str) -> Program {
        let mut program = Program {
            stream: world.connect().await.stream,
            machine: Connection::dial("program", None, Duration::ZERO),
            calls: 0,
        };
        let sign_in = Control::SignIn(SignIn {
            protocol_version: PROTOCOL_VERSION,
            user: user.into(),
            proof: Some(Proof::Password(PASSWORD.into())),
            is_program: true,
            ..SignIn::default()
        });
        let machine = &mut program.machine;
        machine.send_control(CONNECTION_CHANNEL, sign_in).unwrap();
        let signed_in = program.receive(CONNECTION_CHANNEL).await;
        assert!(matches!(signed_in, Incoming::Control(Control::SignedIn(_))));
        program
    }

    /// The next thing on a channel, once what was said has left.
    async fn receive(&mut self, channel: u8) -> Incoming {
        let receiving = async {
            loop {
                let mut output = BytesMut::new();
                while self.machine.poll_transmit(&mut output, 64 << 10) {}
                self.stream.write_all(&output).await.unwrap();
                if let Some(incoming) = self.machine.receive(channel) {
                    if channel != CONNECTION_CHANNEL {
                        self.machine.consumed(channel, incoming.credit());
                    }
                    return incoming;
                }
                let mut input = BytesMut::new();
                let count = self.stream.read_buf(&mut input).await.unwrap();
                assert_ne!(count, 0, "the server closed the connection");
                self.machine.handle_bytes(&input, Duration::ZERO).unwrap();
            }
        };
        timeout(PATIENCE, receiving).await.expect("it comes soon")
    }

    async fn message(&mut self) -> Message {
        match self.receive(CALL_CHANNEL).await {
            Incoming::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    async fn call(&mut self, name: &str, space: &str, subject: &str) -> Result<(), CallFailed> {
        self.calls += 1;
        let text = |name: &str, value: &str| Argument::new(name, Given::from(value));
        let call = Call {
            procedure: name.into(),
            arguments: vec![text("space", space), text("subject", subject)],
            ..Call::default()
        };
        let message = Message {
            id: self.calls,
            deadline_ms: 0,
            flags: CallKind::Call as u8,
            payload: prost::Message::encode_to_vec(&call).into(),
        };
        self.machine.send_message(CALL_CHANNEL, message).unwrap();
        let answer = self.message().await;
        assert_eq!(answer.id, self.calls);
        match CallKind::from_flags(answer.flags) {
            Some(CallKind::Answer) => Ok(()),
            Some(CallKind::Failed) => Err(prost::Message::decode(answer.payload).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn publish(&mut self, subject: &str, payload: &str) {
        let mut packed = BytesMut::new();
        put_event(&mut packed, subject, None, payload.as_bytes()).unwrap();
        self.machine.send_rows(EVENT_CHANNEL, packed);
    }

    /// The payloads of so many events.
    async fn events(&mut self, count: usize) -> Vec<String> {
        let (mut came, mut events) = (BytesMut::new(), Vec::new());
        while events.len() < count {
            let Incoming::Rows(bytes) = self.receive(EVENT_CHANNEL).await else {
                panic!("something else than events");
            };
            came.extend_from_slice(&bytes);
            let mut reader = EventsReader::new(&came, EVENT_BYTES);
            while let Some(event) = reader.next_event().unwrap() {
                events.push(String::from_utf8(event.payload.to_vec()).unwrap());
            }
            let consumed = reader.consumed();
            came = came.split_off(consumed);
        }
        events
    }
}

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
            Argument::new("count", Given::from(1)),
            Argument::new("code", Given::from(code)),
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
    let Incoming::Control(Control::Failure(failure)) = ada.receive(CONNECTION_CHANNEL).await else {
        panic!("no failure");
    };
    assert_eq!(Code::from_number(failure.code), Some(Code::LimitExceeded));
    world.running.shutdown().await;
}
