//! A device against the accepting side, in memory.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidewater_protocol::frame::{CALL_CHANNEL, CONNECTION_CHANNEL, EVENT_CHANNEL, Message};
use tidewater_protocol::message::{
    Control, FailureNotice, PROTOCOL_VERSION, Pong, Proof, SignIn, SignedIn,
};
use tidewater_protocol::{Code, RemoteId};

use super::*;
use crate::{ChannelInput, FramedConnection};

const SILENCE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Now {
    Now {
        ticks_ms: seconds * 1_000,
        unix_ms: 1_700_000_000_000,
    }
}

/// A device, and the server that it is connected to.
struct Pair {
    device: DeviceConnection,
    server: FramedConnection,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            device: DeviceConnection::dial("test", SILENCE, at(0)),
            server: FramedConnection::accept("server", None, Duration::ZERO),
        }
    }

    /// One whose program is in.
    fn signed_in() -> Pair {
        let mut pair = Pair::new();
        let proof = Proof::Password("secret".into());
        let request = SignInRequest::for_program("ann", proof);
        pair.device.sign_in(request).unwrap();
        let said = pair.take_sign_in();
        assert!(said.is_program);
        assert_eq!((said.user.as_str(), said.client.as_str()), ("ann", "test"));
        pair.server.let_in();
        pair.server_says(SignedIn::default());
        let event = pair.device.poll_event();
        assert!(
            matches!(event, Some(DeviceEvent::ProgramSignedIn)),
            "{event:?}"
        );
        assert!(pair.device.is_open());
        pair
    }

    /// Carries what the device has to say, and gives its sign-in.
    fn take_sign_in(&mut self) -> SignIn {
        self.up();
        match self.server.receive(CONNECTION_CHANNEL) {
            Some(ChannelInput::Control(Control::SignIn(said))) => *said,
            other => panic!("no sign-in: {other:?}"),
        }
    }

    fn server_says(&mut self, signed_in: SignedIn) {
        let signed_in = Control::SignedIn(Box::new(SignedIn {
            protocol_version: PROTOCOL_VERSION,
            ..signed_in
        }));
        self.server
            .send_control(CONNECTION_CHANNEL, signed_in)
            .unwrap();
        self.down();
    }

    fn up(&mut self) {
        while let Some(bytes) = self.device.poll_transmit() {
            self.server.handle_bytes(&bytes, Duration::ZERO).unwrap();
        }
    }

    fn down(&mut self) {
        let mut bytes = BytesMut::new();
        while self.server.poll_transmit(&mut bytes, 1 << 16) {}
        self.device.handle_bytes(&bytes, at(1));
    }

    fn fails(&mut self, code: Code) {
        let failure = Control::Failure(FailureNotice::new(code, "no", "do something"));
        self.server
            .send_control(CONNECTION_CHANNEL, failure)
            .unwrap();
        self.down();
    }
}

fn message(id: u64, payload: &'static [u8]) -> Message {
    Message {
        id,
        deadline_ms: 0,
        flags: 0,
        payload: Bytes::from_static(payload),
    }
}

fn device(remote_id: Option<RemoteId>) -> DeviceCredentials {
    DeviceCredentials {
        remote_id,
        user: "ann".into(),
        credential: Some(b"credential".to_vec()),
        token: Some(b"token".to_vec()),
        ..DeviceCredentials::default()
    }
}

#[test]
fn a_program_calls_and_hears_events_without_a_sync() {
    let mut pair = Pair::signed_in();
    pair.device.send_call(message(1, b"question")).unwrap();
    pair.device.send_events(Bytes::from_static(b"up"));
    pair.up();
    let asked = pair.server.receive(CALL_CHANNEL);
    assert_eq!(asked, Some(ChannelInput::Message(message(1, b"question"))));
    let heard = pair.server.receive(EVENT_CHANNEL);
    assert_eq!(heard, Some(ChannelInput::Rows(Bytes::from_static(b"up"))));
    let answer = message(1, b"answer");
    pair.server.send_message(CALL_CHANNEL, answer).unwrap();
    pair.server
        .send_rows(EVENT_CHANNEL, Bytes::from_static(b"down"));
    pair.down();
    assert!(pair.device.poll_event().is_none());
    assert_eq!(pair.device.poll_call(), Some(message(1, b"answer")));
    assert_eq!(pair.device.poll_call(), None);
    let events = pair.device.poll_events();
    assert_eq!(events, Some(Bytes::from_static(b"down")));
}

#[test]
fn an_answer_that_came_just_before_the_connection_was_lost_is_handed_out() {
    let mut pair = Pair::signed_in();
    let answer = message(7, b"answer");
    pair.server.send_message(CALL_CHANNEL, answer).unwrap();
    pair.down();
    pair.device.handle_end(None);
    let event = pair.device.poll_event();
    let Some(DeviceEvent::Failed(error)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(error.code(), Code::ConnectionLost);
    assert!(!error.is_before_a_word());
    assert_eq!(pair.device.poll_call(), Some(message(7, b"answer")));
    assert!(!pair.device.is_open());
    assert!(pair.device.poll_event().is_none(), "it fails once");
}

#[test]
fn the_servers_reason_counts_and_not_the_end_that_follows_it() {
    let mut pair = Pair::signed_in();
    pair.fails(Code::ShuttingDown);
    pair.device.handle_end(None);
    let event = pair.device.poll_event();
    let Some(DeviceEvent::Failed(error)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(error.code(), Code::ShuttingDown);
    assert_eq!(error.hint(), "do something");
    assert!(pair.device.poll_event().is_none());
}

#[test]
fn a_connection_without_a_sign_in_pings_and_takes_no_sign_in_for_an_answer() {
    let mut pair = Pair::new();
    pair.device.ping(5);
    pair.up();
    pair.down();
    let event = pair.device.poll_event();
    assert!(
        matches!(&event, Some(DeviceEvent::Pong(Pong { nonce: 5, .. }))),
        "{event:?}"
    );
    pair.server_says(SignedIn::default());
    let event = pair.device.poll_event();
    let Some(DeviceEvent::Failed(error)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(error.code(), Code::UnexpectedMessage);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let mut device = DeviceConnection::dial("test", SILENCE, at(0));
    device.handle_timeout(at(61));
    let event = device.poll_event();
    let Some(DeviceEvent::Failed(error)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(error.code(), Code::Timeout);
    assert!(error.is_before_a_word());
}

#[test]
fn a_device_presents_its_cheapest_proof_and_is_told_the_next_one() {
    let remote_id = RemoteId::from_slice(&[7; 16]).unwrap();
    let known = device(Some(remote_id));
    let new = device(None);
    let password = || Some(UserProof::Password("secret".into()));
    let cheapest = ProofKind::Token;
    for (credentials, from, user_proof, presented, next) in [
        (
            &known,
            cheapest,
            None,
            Proof::Token(b"token".to_vec()),
            Some(ProofKind::Credential),
        ),
        (
            &known,
            ProofKind::Credential,
            password(),
            Proof::Credential(b"credential".to_vec()),
            Some(ProofKind::User),
        ),
        (
            &new,
            cheapest,
            password(),
            Proof::Password("secret".into()),
            None,
        ),
    ] {
        let mut pair = Pair::new();
        let request = SignInRequest::for_device(credentials.clone(), from, user_proof).unwrap();
        pair.device.sign_in(request).unwrap();
        assert_eq!(pair.take_sign_in().proof, Some(presented));
        pair.fails(Code::CredentialInvalid);
        let event = pair.device.poll_event();
        let Some(DeviceEvent::SignInRefused { next: told, .. }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(told, next);
        assert!(pair.device.has_ended());
    }
    let without = SignInRequest::for_device(new, cheapest, None);
    assert!(matches!(without.err(), Some(DeviceError::ProofMissing)));
}

#[test]
fn a_device_that_is_let_in_knows_who_it_is() {
    let mut pair = Pair::new();
    let remote_id = RemoteId::from_slice(&[7; 16]).unwrap();
    let request = SignInRequest::for_device(device(Some(remote_id)), ProofKind::Token, None);
    pair.device.sign_in(request.unwrap()).unwrap();
    pair.take_sign_in();
    assert!(pair.device.has_presented());
    assert_eq!(pair.device.identity(), None);
    pair.server_says(SignedIn {
        remote_id: remote_id.to_vec(),
        centre: "main".into(),
        ..SignedIn::default()
    });
    let event = pair.device.poll_event();
    let Some(DeviceEvent::SignedIn(answer)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(answer.remote_id, remote_id);
    assert_eq!(pair.device.identity(), Some((remote_id, "main")));
}
