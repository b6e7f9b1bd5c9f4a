//! A program that speaks the protocol itself, and takes from each channel only what a test asks
//! for.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use tidewater_connection::{ChannelInput, ConnectionEvent, FramedConnection};
use tidewater_protocol::event::{EVENT_BYTES, EventsReader, put_event};
use tidewater_protocol::frame::{CALL_CHANNEL, CONNECTION_CHANNEL, EVENT_CHANNEL, Message};
use tidewater_protocol::message::{
    Argument, ArgumentValue, Call, CallFailed, CallKind, Control, PROTOCOL_VERSION, Ping, Proof,
    SignIn,
};
use tidewater_server::environment::ByteStream;

use crate::world::{PASSWORD, World};

const PATIENCE: Duration = Duration::from_secs(20);

/// With each ping goes what the server has given credit for since the one before.
const FILLING_PINGS: u64 = 30;

/// A program that is connected.
pub(crate) struct Program {
    stream: Box<dyn ByteStream>,
    pub(crate) machine: FramedConnection,
    calls: u64,
}

impl Program {
    pub(crate) async fn connect(world: &World, user: &str) -> Program {
        let mut program = Program {
            stream: world.connect().await.stream,
            machine: FramedConnection::dial("program", None, Duration::ZERO),
            calls: 0,
        };
        let sign_in = Control::SignIn(Box::new(SignIn {
            protocol_version: PROTOCOL_VERSION,
            user: user.into(),
            proof: Some(Proof::Password(PASSWORD.into())),
            is_program: true,
            ..SignIn::default()
        }));
        let machine = &mut program.machine;
        machine.send_control(CONNECTION_CHANNEL, sign_in).unwrap();
        let signed_in = program.receive(CONNECTION_CHANNEL).await;
        assert!(matches!(
            signed_in,
            ChannelInput::Control(Control::SignedIn(_))
        ));
        program
    }

    /// Sends what may be sent.
    async fn send(&mut self) {
        let mut output = BytesMut::new();
        while self.machine.poll_transmit(&mut output, 64 << 10) {}
        self.stream.write_all(&output).await.unwrap();
    }

    async fn read(&mut self) {
        let mut input = BytesMut::new();
        let count = self.stream.read_buf(&mut input).await.unwrap();
        assert_ne!(count, 0, "the server closed the connection");
        self.machine.handle_bytes(&input, Duration::ZERO).unwrap();
    }

    /// Sends as much as the server takes while nothing is received of what it answers.
    pub(crate) async fn fill(&mut self) {
        let filling = async {
            for nonce in 0..FILLING_PINGS {
                let ping = Control::Ping(Ping { nonce });
                let machine = &mut self.machine;
                machine.send_control(CONNECTION_CHANNEL, ping).unwrap();
                self.send().await;
                while !self.is_pinged() {
                    self.read().await;
                    self.send().await;
                }
            }
        };
        timeout(PATIENCE, filling)
            .await
            .expect("pings are answered");
    }

    /// Whether the server has answered a ping.
    fn is_pinged(&mut self) -> bool {
        std::iter::from_fn(|| self.machine.poll_event())
            .any(|it| matches!(it, ConnectionEvent::Pong(_)))
    }

    /// The next thing on a channel, once what was said has left.
    pub(crate) async fn receive(&mut self, channel: u8) -> ChannelInput {
        let receiving = async {
            loop {
                self.send().await;
                if let Some(incoming) = self.machine.receive(channel) {
                    if channel != CONNECTION_CHANNEL {
                        self.machine.mark_consumed(channel, incoming.credit());
                    }
                    return incoming;
                }
                self.read().await;
            }
        };
        timeout(PATIENCE, receiving).await.expect("it comes soon")
    }

    pub(crate) async fn message(&mut self) -> Message {
        match self.receive(CALL_CHANNEL).await {
            ChannelInput::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    /// Calls a procedure, with text for its arguments; under the id that it gives.
    pub(crate) fn begin(&mut self, procedure: &str, arguments: &[(&str, &str)]) -> u64 {
        self.calls += 1;
        let arguments = arguments
            .iter()
            .map(|(name, value)| Argument::new(*name, ArgumentValue::from(*value)));
        let call = Call {
            procedure: procedure.into(),
            arguments: arguments.collect(),
            ..Call::default()
        };
        self.say(self.calls, CallKind::Call, &call);
        self.calls
    }

    /// Says something of a call.
    pub(crate) fn say(&mut self, id: u64, kind: CallKind, payload: &impl prost::Message) {
        let message = Message {
            id,
            deadline_ms: 0,
            flags: kind as u8,
            payload: payload.encode_to_vec().into(),
        };
        self.machine.send_message(CALL_CHANNEL, message).unwrap();
    }

    /// Calls a procedure of a space's, and waits for the answer.
    pub(crate) async fn call(
        &mut self,
        name: &str,
        space: &str,
        subject: &str,
    ) -> Result<(), CallFailed> {
        let id = self.begin(name, &[("space", space), ("subject", subject)]);
        let answer = self.message().await;
        assert_eq!(answer.id, id);
        match CallKind::from_flags(answer.flags) {
            Some(CallKind::Answer) => Ok(()),
            Some(CallKind::Failed) => Err(prost::Message::decode(answer.payload).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn publish(&mut self, subject: &str, payload: &str) {
        let mut packed = BytesMut::new();
        put_event(&mut packed, subject, None, payload.as_bytes()).unwrap();
        self.machine.send_rows(EVENT_CHANNEL, packed);
    }

    /// The payloads of so many events.
    pub(crate) async fn events(&mut self, count: usize) -> Vec<String> {
        let (mut came, mut events) = (BytesMut::new(), Vec::new());
        while events.len() < count {
            let ChannelInput::Rows(bytes) = self.receive(EVENT_CHANNEL).await else {
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
