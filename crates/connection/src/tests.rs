use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tidewater_protocol::frame::{
    DEFAULT_MESSAGE_BYTES, Frame, FrameError, HEADER_BYTES, INITIAL_CREDIT_BYTES,
    MAX_MESSAGE_BYTES, Message, PREFACE, put_rows, take_frame,
};
use tidewater_protocol::message::{Control, MAX_BEARER_BYTES, Ping, Proof, SignIn, SyncWaiting};

use super::*;

const NOW: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

fn pair() -> [FramedConnection; 2] {
    [
        FramedConnection::dial("remote", None, NOW),
        FramedConnection::accept("server", None, NOW),
    ]
}

fn friends() -> [FramedConnection; 2] {
    let mut sides = pair();
    sides.iter_mut().for_each(FramedConnection::let_in);
    sides
}

fn waiting(ahead: u64) -> Control {
    Control::Waiting(SyncWaiting {
        ahead,
        handler: false,
    })
}

fn message(id: u64, bytes: usize) -> Message {
    Message {
        id,
        deadline_ms: 0,
        flags: 0,
        payload: vec![id as u8; bytes].into(),
    }
}

/// Everything that can go from one to the other, at once.
fn carry(from: &mut FramedConnection, to: &mut FramedConnection) -> Result<(), ConnectionFault> {
    let mut wire = BytesMut::new();
    while from.poll_transmit(&mut wire, 64 << 10) {
        to.handle_bytes(&wire, NOW)?;
        wire.clear();
    }
    Ok(())
}

fn receive_bytes(side: &mut FramedConnection, channel: u8) -> usize {
    let mut bytes = 0;
    while let Some(incoming) = side.receive(channel) {
        bytes += incoming.credit();
    }
    bytes
}

#[test]
fn a_slow_channel_stops_no_other_one() {
    let [mut remote, mut server] = friends();
    remote.send_rows(1, vec![1; 3 << 20]);
    carry(&mut remote, &mut server).unwrap();
    remote.send_rows(2, vec![2; 100]);
    remote.send_control(3, waiting(7)).unwrap();
    carry(&mut remote, &mut server).unwrap();
    assert_eq!(receive_bytes(&mut server, 2), 100);
    assert_eq!(server.receive(3), Some(ChannelInput::Control(waiting(7))));
    assert_eq!(remote.unsent_bytes(1), 2 << 20);
    // What is consumed may be sent again.
    let held = receive_bytes(&mut server, 1);
    assert_eq!(held as u64, INITIAL_CREDIT_BYTES);
    server.mark_consumed(1, held);
    carry(&mut server, &mut remote).unwrap();
    carry(&mut remote, &mut server).unwrap();
    assert_eq!(remote.unsent_bytes(1), 1 << 20);
}

#[test]
fn more_than_the_credit_allows_is_a_breach_and_stays_one() {
    let [_, mut server] = friends();
    let mut wire = BytesMut::from(&PREFACE[..]);
    put_rows(&mut wire, 1, &vec![0; INITIAL_CREDIT_BYTES as usize]);
    server.handle_bytes(&wire, NOW).unwrap();
    wire.clear();
    put_rows(&mut wire, 1, &[0]);
    assert_eq!(
        server.handle_bytes(&wire, NOW),
        Err(ConnectionFault::TooMuch(1))
    );
    assert_eq!(
        server.handle_bytes(&[], NOW),
        Err(ConnectionFault::TooMuch(1))
    );
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn control_messages_that_nobody_takes_are_bounded() {
    let [mut remote, mut server] = friends();
    let sent = loop {
        for _ in 0..10_000 {
            remote.send_control(1, waiting(1)).unwrap();
        }
        if let Err(fault) = carry(&mut remote, &mut server) {
            break fault;
        }
    };
    assert_eq!(sent, ConnectionFault::TooMuch(1));
}

#[test]
fn a_frame_on_a_channel_that_is_not_open_is_a_breach() {
    let [_, mut server] = friends();
    let mut wire = BytesMut::from(&PREFACE[..]);
    put_rows(&mut wire, 9, &[0]);
    assert_eq!(
        server.handle_bytes(&wire, NOW),
        Err(ConnectionFault::UnknownChannel(9))
    );
}

#[test]
fn of_a_stranger_little_is_taken_until_it_is_let_in() {
    let [mut remote, mut server] = pair();
    remote.send_control(0, waiting(0)).unwrap();
    remote.send_rows(1, vec![1; 500_000]);
    let mut wire = BytesMut::new();
    remote.poll_transmit(&mut wire, usize::MAX);
    let all = wire.len();
    server.handle_input(&mut wire, NOW).unwrap();
    assert!(!server.wants_input() && all - wire.len() < 2 * STRANGER_BYTES);
    // What is behind waits, also when the first is taken by a handler that does not consume it.
    let taken = receive_bytes(&mut server, 1);
    server.handle_input(&mut wire, NOW).unwrap();
    assert_eq!(receive_bytes(&mut server, 1), 0);
    server.let_in();
    server.handle_input(&mut wire, NOW).unwrap();
    assert_eq!(taken + receive_bytes(&mut server, 1), 500_000);
    assert!(wire.is_empty() && server.wants_input());
}

#[test]
fn a_large_frame_of_a_stranger_waits_until_it_is_let_in() {
    let [mut remote, mut server] = pair();
    remote.send_control(0, waiting(0)).unwrap();
    remote.send_rows(1, vec![1; 20_000]);
    let mut input = BytesMut::new();
    remote.poll_transmit(&mut input, 1 << 20);
    server.handle_input(&mut input, NOW).unwrap();
    assert_eq!(server.receive(0), Some(ChannelInput::Control(waiting(0))));
    assert!(!server.wants_input());
    assert_eq!(input.len(), 20_000 + HEADER_BYTES);
    server.let_in();
    server.handle_input(&mut input, NOW).unwrap();
    assert_eq!(receive_bytes(&mut server, 1), 20_000);
    // Of the connection itself there is none but the first, and nothing else is taken of who has not
    // said a word.
    for (channel, length) in [(0, 100_000_u32), (1, 20_000)] {
        let mut header = PREFACE.to_vec();
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(&[1, channel]);
        let [_, mut server] = pair();
        let refused = server.handle_bytes(&header, NOW);
        assert_eq!(refused, Err(ConnectionFault::TooMuch(channel)));
    }
    let [mut remote, mut server] = pair();
    remote.send_control(0, waiting(0)).unwrap();
    let mut input = BytesMut::new();
    remote.poll_transmit(&mut input, 1 << 20);
    input.extend_from_slice(&20_000_u32.to_le_bytes());
    input.extend_from_slice(&[1, 0]);
    assert_eq!(
        server.handle_input(&mut input, NOW),
        Err(ConnectionFault::TooMuch(0))
    );
}

/// With the longest token that an identity provider may give.
#[test]
fn the_longest_sign_in_of_a_stranger_is_taken() {
    let [mut remote, mut server] = pair();
    let sign_in = Control::SignIn(Box::new(SignIn {
        proof: Some(Proof::Bearer("x".repeat(MAX_BEARER_BYTES))),
        user: "u".repeat(512),
        ..SignIn::default()
    }));
    remote.send_control(0, sign_in.clone()).unwrap();
    let mut input = BytesMut::new();
    remote.poll_transmit(&mut input, 1 << 20);
    // As a network brings it.
    let mut held = BytesMut::new();
    while !input.is_empty() {
        held.extend_from_slice(&input.split_to(input.len().min(7_000)));
        server.handle_input(&mut held, NOW).unwrap();
    }
    assert_eq!(server.receive(0), Some(ChannelInput::Control(sign_in)));
}

#[test]
fn a_stranger_says_who_it_is_before_all_else_but_pings() {
    let [mut remote, mut server] = pair();
    let ping = Control::Ping(Ping { nonce: 7 });
    remote.send_control(0, ping).unwrap();
    remote.send_control(1, waiting(1)).unwrap();
    assert_eq!(
        carry(&mut remote, &mut server),
        Err(ConnectionFault::BeforeSignIn(1))
    );
    carry(&mut server, &mut remote).unwrap();
    assert!(matches!(remote.poll_event(), Some(ConnectionEvent::Pong(pong)) if pong.nonce == 7));
}

#[test]
fn what_needs_credit_is_known_and_can_be_dropped_before_a_last_word() {
    let [mut remote, mut server] = friends();
    let credit = INITIAL_CREDIT_BYTES as usize;
    remote.send_rows(1, vec![1; credit - 10]);
    assert_eq!(remote.room(1), 10);
    remote.send_rows(1, vec![1; 20]);
    assert_eq!(remote.room(1), 0);
    carry(&mut remote, &mut server).unwrap();
    remote.send_control(1, waiting(1)).unwrap();
    assert!(remote.unsent_bytes(1) > 10);
    remote.drop_unsent(1);
    assert_eq!(remote.unsent_bytes(1), 0);
    remote.send_control(1, waiting(2)).unwrap();
    carry(&mut remote, &mut server).unwrap();
    assert_eq!(receive_bytes(&mut server, 1), credit);
    server.mark_consumed(1, credit);
    assert!(server.has_own_output());
    carry(&mut server, &mut remote).unwrap();
    assert_eq!(remote.poll_event(), Some(ConnectionEvent::Writable(1)));
    assert_eq!(remote.room(1), credit);
}

#[test]
fn control_goes_before_messages_and_messages_before_rows() {
    let [mut remote, mut server] = friends();
    remote.send_rows(1, vec![1; 100]);
    remote.send_message(2, message(1, 100)).unwrap();
    remote.send_control(3, waiting(1)).unwrap();
    carry(&mut remote, &mut server).unwrap();
    let readable: Vec<ConnectionEvent> = std::iter::from_fn(|| server.poll_event()).collect();
    assert_eq!(readable, [3, 2, 1].map(ConnectionEvent::Readable));
}

#[test]
fn nothing_starves_beside_an_endless_higher_class() {
    let [mut remote, mut server] = friends();
    remote.send_rows(2, vec![2; 100]);
    remote.send_rows(3, vec![3; 100]);
    let mut frames = 0;
    while remote.unsent_bytes(2) + remote.unsent_bytes(3) > 0 {
        remote.send_control(1, waiting(1)).unwrap();
        let mut wire = BytesMut::new();
        remote.poll_transmit(&mut wire, 1);
        server.handle_bytes(&wire, NOW).unwrap();
        frames += 1;
        assert!(frames < 100, "rows starve");
    }
}

#[test]
fn channels_with_rows_take_turns() {
    let [mut remote, mut server] = friends();
    for channel in 1..4 {
        remote.send_rows(channel, vec![0; 500_000]);
    }
    let mut wire = BytesMut::new();
    for _ in 0..6 {
        remote.poll_transmit(&mut wire, 1);
    }
    // The preface was the first thing to go, and enough.
    remote.poll_transmit(&mut wire, 1);
    server.handle_bytes(&wire, NOW).unwrap();
    let came = [1, 2, 3].map(|channel| receive_bytes(&mut server, channel));
    assert_eq!(came, [128 << 10; 3]);
}

#[test]
fn the_largest_message_can_go_once_all_before_it_is_consumed() {
    let [mut remote, mut server] = friends();
    assert_eq!(DEFAULT_MESSAGE_BYTES, 1 << 20);
    for id in 0..5 {
        remote
            .send_message(1, message(id, DEFAULT_MESSAGE_BYTES))
            .unwrap();
        remote.send_rows(1, vec![0; 300_000]);
    }
    for _ in 0..20 {
        carry(&mut remote, &mut server).unwrap();
        let held = receive_bytes(&mut server, 1);
        server.mark_consumed(1, held);
        carry(&mut server, &mut remote).unwrap();
    }
    assert_eq!(remote.unsent_bytes(1), 0);
    assert!(
        remote
            .send_message(1, message(0, DEFAULT_MESSAGE_BYTES + 1))
            .is_err()
    );
}

#[test]
fn sides_that_have_agreed_on_it_send_larger_messages_and_no_larger_ones() {
    let [mut remote, mut server] = friends();
    let most = 3 << 20;
    server.set_message_bytes(most);
    remote.set_message_bytes(most);
    remote.send_message(1, message(7, most)).unwrap();
    assert!(remote.send_message(1, message(8, most + 1)).is_err());
    carry(&mut remote, &mut server).unwrap();
    assert!(receive_bytes(&mut server, 1) > most);
    // Whoever has agreed to less does not wait for the rest of what is too large.
    remote.set_message_bytes(usize::MAX);
    assert_eq!(remote.message_bytes(), MAX_MESSAGE_BYTES);
    let [mut remote, mut server] = friends();
    remote.set_message_bytes(most);
    remote
        .send_message(1, message(9, DEFAULT_MESSAGE_BYTES + 1))
        .unwrap();
    let mut wire = BytesMut::new();
    remote.poll_transmit(&mut wire, 1_000);
    let fault = server.handle_bytes(&wire[..100.min(wire.len())], NOW);
    assert!(
        matches!(fault, Err(ConnectionFault::Frame(FrameError::TooLarge(_)))),
        "{fault:?}"
    );
}

#[test]
fn a_silent_peer_is_asked_once_and_then_given_up() {
    let pings = PingTimings::for_busy_peer(SECOND, 3 * SECOND);
    let mut remote = FramedConnection::dial("remote", Some(pings), NOW);
    let mut server = FramedConnection::accept("server", None, NOW);
    let mut wire = BytesMut::new();
    remote.poll_transmit(&mut wire, 1024);
    assert_eq!(remote.poll_timeout(), Some(SECOND));
    remote.handle_timeout(SECOND).unwrap();
    remote.handle_timeout(SECOND).unwrap();
    remote.poll_transmit(&mut wire, 1024);
    server.handle_bytes(&wire, NOW).unwrap();
    wire.clear();
    server.poll_transmit(&mut wire, 1024);
    remote.handle_bytes(&wire, 2 * SECOND).unwrap();
    let Some(ConnectionEvent::Pong(pong)) = remote.poll_event() else {
        panic!("no answer");
    };
    assert_eq!((pong.nonce, pong.server.as_str()), (1, "server"));
    assert_eq!(remote.poll_event(), None);
    assert_eq!(remote.poll_timeout(), Some(3 * SECOND));
    remote.handle_timeout(3 * SECOND).unwrap();
    assert_eq!(remote.poll_timeout(), Some(5 * SECOND));
    assert_eq!(
        remote.handle_timeout(5 * SECOND),
        Err(ConnectionFault::Silent)
    );
}

/// A connection that was answered once, in two seconds.
fn answered() -> FramedConnection {
    let pings = PingTimings::for_prompt_peer(120 * SECOND);
    let mut remote = FramedConnection::dial("remote", Some(pings), NOW);
    let mut server = FramedConnection::accept("server", None, NOW);
    let mut wire = BytesMut::new();
    remote.poll_transmit(&mut wire, 1024);
    remote.handle_timeout(2 * SECOND).unwrap();
    assert_eq!(remote.poll_timeout(), Some(30 * SECOND));
    remote.handle_timeout(30 * SECOND).unwrap();
    remote.poll_transmit(&mut wire, 1024);
    server.handle_bytes(&wire, NOW).unwrap();
    wire.clear();
    server.poll_transmit(&mut wire, 1024);
    remote.handle_bytes(&wire, 32 * SECOND).unwrap();
    remote
}

/// What was sent is asked after soon, and an answer that does not come in time is the end, whatever
/// else is sent meanwhile. It may take eight times as long as the last one.
#[test]
fn a_peer_that_does_not_answer_what_was_sent_is_given_up_soon() {
    let mut remote = answered();
    let mut lost = BytesMut::new();
    remote.send_message(1, message(0, 10)).unwrap();
    assert!(remote.poll_transmit(&mut lost, 1024));
    remote.handle_sent(32 * SECOND);
    assert_eq!(remote.poll_timeout(), Some(34 * SECOND));
    remote.handle_timeout(34 * SECOND).unwrap();
    for second in 35..50 {
        remote.send_message(1, message(0, 10)).unwrap();
        assert!(remote.poll_transmit(&mut lost, 1024));
        remote.handle_sent(second * SECOND);
        remote.handle_timeout(second * SECOND).unwrap();
    }
    assert_eq!(
        remote.handle_timeout(51 * SECOND),
        Err(ConnectionFault::Silent)
    );
    // What was sent meanwhile is no word of the peer's.
    assert!(remote.silent_for() > 15 * SECOND);
}

/// A ping behind much is given the time that all of it takes on the slowest line.
#[test]
fn a_slow_line_is_no_silent_one() {
    let mut remote = answered();
    let mut slow = BytesMut::new();
    remote.send_rows(1, vec![0; 200 << 10]);
    while remote.poll_transmit(&mut slow, 64 << 10) {}
    remote.handle_sent(32 * SECOND);
    remote.handle_timeout(34 * SECOND).unwrap();
    remote.handle_timeout(98 * SECOND).unwrap();
    assert_eq!(
        remote.handle_timeout(100 * SECOND),
        Err(ConnectionFault::Silent)
    );
}

/// Where the line was silent for a while a ping goes first: its answer waits for nothing that follows.
#[test]
fn a_quiet_line_is_tried_before_much_is_sent() {
    let mut remote = answered();
    remote.handle_timeout(34 * SECOND).unwrap();
    let mut lost = BytesMut::new();
    remote.send_rows(1, vec![0; 200 << 10]);
    while remote.poll_transmit(&mut lost, 64 << 10) {}
    let first = take_frame(&mut lost).unwrap().unwrap();
    assert!(
        matches!(
            first,
            Frame::Control {
                control: Some(Control::Ping(_)),
                ..
            }
        ),
        "{first:?}"
    );
    remote.handle_sent(34 * SECOND);
    remote.handle_timeout(49 * SECOND).unwrap();
    assert_eq!(
        remote.handle_timeout(51 * SECOND),
        Err(ConnectionFault::Silent)
    );
}

#[test]
fn who_takes_no_answers_gets_no_more_of_them() {
    let [mut remote, mut server] = friends();
    for nonce in 0..10_000 {
        remote
            .send_control(0, Control::Ping(Ping { nonce }))
            .unwrap();
    }
    carry(&mut remote, &mut server).unwrap();
    let mut wire = BytesMut::new();
    server.poll_transmit(&mut wire, usize::MAX);
    assert!(wire.len() < 1024);
}

/// What a step of a random run does.
#[derive(Clone, Debug)]
enum Step {
    Control(usize, u8),
    Message(usize, u8, usize),
    Rows(usize, u8, usize),
    /// Takes what a channel has, and gives its credit back.
    Receive(usize, u8),
    /// Moves so many bytes of what a side wants to send.
    Carry(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (side, channel) = (0..2_usize, 1..4_u8);
    prop_oneof![
        (side.clone(), channel.clone()).prop_map(|(s, c)| Step::Control(s, c)),
        (side.clone(), channel.clone(), 0..=DEFAULT_MESSAGE_BYTES)
            .prop_map(|(s, c, n)| Step::Message(s, c, n)),
        (side.clone(), channel.clone(), 1..900_000_usize).prop_map(|(s, c, n)| Step::Rows(s, c, n)),
        (side.clone(), channel).prop_map(|(s, c)| Step::Receive(s, c)),
        (side, 1..400_000_usize).prop_map(|(s, n)| Step::Carry(s, n)),
    ]
}

/// One direction of a run, and what its two ends have seen.
#[derive(Default)]
struct Direction {
    wire: BytesMut,
    /// By channel: a digest of what was sent and what arrived. Rows are a stream, whose pieces
    /// are written by their bytes.
    sent: [Vec<u8>; 4],
    arrived: [Vec<u8>; 4],
    /// Numbers what is sent.
    counter: u64,
}

fn write(log: &mut Vec<u8>, incoming: &ChannelInput) {
    match incoming {
        ChannelInput::Control(Control::Waiting(waiting)) => {
            log.extend_from_slice(b"c");
            log.extend_from_slice(&waiting.ahead.to_le_bytes());
        }
        ChannelInput::Control(other) => panic!("nobody sent {other:?}"),
        ChannelInput::Message(message) => {
            log.extend_from_slice(b"m");
            log.extend_from_slice(&message.id.to_le_bytes());
            log.extend_from_slice(&(message.payload.len() as u64).to_le_bytes());
        }
        ChannelInput::Rows(bytes) => log.extend_from_slice(bytes),
    }
}

struct Run {
    sides: [FramedConnection; 2],
    directions: [Direction; 2],
}

impl Run {
    fn send(&mut self, side: usize, channel: u8, incoming: ChannelInput) {
        write(
            &mut self.directions[side].sent[usize::from(channel)],
            &incoming,
        );
        let from = &mut self.sides[side];
        match incoming {
            ChannelInput::Control(control) => from.send_control(channel, control).unwrap(),
            ChannelInput::Message(message) => from.send_message(channel, message).unwrap(),
            ChannelInput::Rows(rows) => from.send_rows(channel, rows),
        }
    }

    fn number(&mut self, side: usize) -> u64 {
        self.directions[side].counter += 1;
        self.directions[side].counter
    }

    fn receive(&mut self, side: usize, channel: u8) {
        let mut held = 0;
        while let Some(incoming) = self.sides[side].receive(channel) {
            held += incoming.credit();
            let arrived = &mut self.directions[1 - side].arrived;
            write(&mut arrived[usize::from(channel)], &incoming);
        }
        let most = INITIAL_CREDIT_BYTES as usize * 3 / 2 + 13;
        assert!(held <= most, "credit bounds memory");
        self.sides[side].mark_consumed(channel, held);
    }

    fn carry(&mut self, side: usize, bytes: usize) {
        let wire = &mut self.directions[side].wire;
        self.sides[side].poll_transmit(wire, bytes);
        let piece = wire.split_to(bytes.min(wire.len()));
        self.sides[1 - side].handle_bytes(&piece, NOW).unwrap();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Control(side, channel) => {
                let control = waiting(self.number(side));
                self.send(side, channel, ChannelInput::Control(control));
            }
            Step::Message(side, channel, bytes) => {
                let message = message(self.number(side), bytes);
                self.send(side, channel, ChannelInput::Message(message));
            }
            Step::Rows(side, channel, bytes) => {
                let rows = Bytes::from(vec![self.number(side) as u8; bytes]);
                self.send(side, channel, ChannelInput::Rows(rows));
            }
            Step::Receive(side, channel) => self.receive(side, channel),
            Step::Carry(side, bytes) => self.carry(side, bytes),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_that_was_sent_arrives_in_order_within_the_credit(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut run = Run { sides: friends(), directions: Default::default() };
        for step in steps {
            run.step(step);
        }
        // With everything taken as it comes, all ends within a bounded number of rounds.
        for _ in 0..200 {
            for side in 0..2 {
                run.carry(side, 1 << 20);
                (1..4).for_each(|channel| run.receive(1 - side, channel));
            }
        }
        for direction in &run.directions {
            prop_assert!(direction.wire.is_empty());
            for channel in 1..4 {
                prop_assert!(direction.sent[channel] == direction.arrived[channel]);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let [_, mut server] = pair();
        let mut wire = BytesMut::from(&PREFACE[..]);
        wire.extend_from_slice(&bytes);
        let _ = server.handle_bytes(&wire, NOW);
        let mut out = BytesMut::new();
        server.poll_transmit(&mut out, 1 << 20);
    }
}
