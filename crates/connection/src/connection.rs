//! The machine of one connection: from bytes to channels and back.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tidewater_protocol::frame::{
    CHANNELS, CONNECTION_CHANNEL, DEFAULT_MESSAGE_BYTES, Frame, FrameError, HEADER_BYTES,
    INITIAL_CREDIT_BYTES, MAX_MESSAGE_BYTES, Message, PREFACE, announced, announced_message,
    put_control, take_frame, take_preface,
};
use tidewater_protocol::message::{
    Control, Credit, MAX_BEARER_BYTES, PROTOCOL_VERSION, Ping, Pong,
};

use crate::ConnectionFault;
use crate::channel::{Channel, ChannelInput, FrameClass, drop_if_empty};

/// What the accepting side holds of a peer that is not let in yet; behind it, and behind one
/// frame more, bytes wait in the network.
pub const STRANGER_BYTES: usize = 64 << 10;

/// The largest frame that is taken of such a peer. A larger one of a channel waits until it is let
/// in; of the connection itself there is none but the first.
const STRANGER_FRAME_BYTES: usize = 16 << 10;

/// The largest first frame, which says who the peer is: with a token of an identity provider.
const SIGN_IN_FRAME_BYTES: usize = MAX_BEARER_BYTES + STRANGER_FRAME_BYTES;

/// Answers to pings that wait; a peer that takes none gets no more of them.
const MAX_PONGS: usize = 16;

/// So many frames go before one of a lower class that could go too.
const MAX_PASSED_OVER: u32 = 16;

/// A ping is given at least so many times the round trip that was measured last.
const ROUND_TRIPS: u32 = 8;

/// What was sent may be on its way for so long on the slowest lines, and a ping behind it.
const SLOWEST_BYTES_A_SECOND: u64 = 4 << 10;

/// When a silent peer is asked, and when it is given up.
#[derive(Clone, Copy, Debug)]
pub struct PingTimings {
    /// The silence after which a ping goes out.
    pub after: Duration,
    /// The time after which one goes out behind what was sent, if nothing has come since; and the
    /// silence after which one goes before what is sent.
    pub unanswered: Duration,
    /// How long a ping may be without an answer, beside the time for what was sent before it.
    pub patience: Duration,
    /// The silence after which the connection has failed, whatever was asked.
    pub give_up: Duration,
}

impl PingTimings {
    /// For a peer that answers pings at once, whatever else it does; `silence` is how long it may be
    /// silent at the most.
    pub fn for_prompt_peer(silence: Duration) -> PingTimings {
        let unanswered = Duration::from_secs(2).min(silence / 4);
        PingTimings {
            after: silence / 4,
            unanswered,
            patience: Duration::from_secs(12).min(silence - unanswered),
            give_up: silence,
        }
    }

    /// For one that may be busy for a while, and then answers nothing.
    pub fn for_busy_peer(after: Duration, give_up: Duration) -> PingTimings {
        PingTimings {
            after,
            unanswered: give_up,
            patience: give_up,
            give_up,
        }
    }
}

/// A ping that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct AskedPing {
    at: Duration,
    /// What may have been on its way before it.
    behind_bytes: u64,
}

/// Something that the caller may want to act on.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectionEvent {
    /// The channel had nothing to receive and has something now.
    Readable(u8),
    /// The channel got credit.
    Writable(u8),
    /// A Pong arrived.
    Pong(Pong),
}

/// Who the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerStanding {
    /// It has said nothing on the connection's own channel.
    Unknown,
    /// It has said who it is.
    Stranger,
    /// It was let in.
    Friend,
}

/// One side of a connection. Times are durations since an origin of the caller's choice.
///
/// After a [`ConnectionFault`] the connection takes no more bytes; what is queued can still be sent, so
/// that the peer learns why.
#[derive(Debug)]
pub struct FramedConnection {
    program: String,
    pings: Option<PingTimings>,
    fault: Option<ConnectionFault>,
    input: BytesMut,
    /// The preface is still to come, or to be sent.
    expects_preface: bool,
    owes_preface: bool,
    /// Those that were used, in the order of their numbers: few, and in a small place.
    channels: Vec<(u8, Channel)>,
    events: VecDeque<ConnectionEvent>,
    pongs: VecDeque<u64>,
    ping_due: bool,
    nonce: u64,
    /// The latest time that the caller has told.
    now: Duration,
    /// When bytes last came, or the network last took some.
    heard: Duration,
    /// When something last came from the peer.
    last_word: Duration,
    /// When something went out on a channel first since bytes came.
    unanswered: Option<Duration>,
    /// It was silent for so long that a ping goes before what is sent.
    is_quiet: bool,
    asked: Option<AskedPing>,
    /// What may be on its way: it shrinks as on the slowest line, and a pong tells that all before its
    /// ping has arrived.
    underway_bytes: u64,
    /// As of when.
    underway_at: Duration,
    /// How long the last ping was on its way and back.
    round_trip: Duration,
    peer: PeerStanding,
    /// A frame has begun that is too large to be taken before [`FramedConnection::let_in`].
    large_frame_waits: bool,
    /// The largest message that is sent and taken.
    message_bytes: usize,
    /// The channel of each class that was served last, and how often the class was passed over
    /// since.
    last: [u8; 3],
    passed_over: [u32; 3],
}

impl FramedConnection {
    /// The side that opened the connection. `program` names this side in its Pongs.
    pub fn dial(program: &str, pings: Option<PingTimings>, now: Duration) -> FramedConnection {
        FramedConnection::new(program, pings, now, true)
    }

    /// The side that was called.
    pub fn accept(program: &str, pings: Option<PingTimings>, now: Duration) -> FramedConnection {
        FramedConnection::new(program, pings, now, false)
    }

    fn new(
        program: &str,
        pings: Option<PingTimings>,
        now: Duration,
        dials: bool,
    ) -> FramedConnection {
        FramedConnection {
            program: program.to_owned(),
            pings,
            fault: None,
            input: BytesMut::new(),
            expects_preface: !dials,
            owes_preface: dials,
            // Few use more than these: their own, and that of syncs.
            channels: Vec::with_capacity(2),
            events: VecDeque::new(),
            pongs: VecDeque::new(),
            ping_due: false,
            nonce: 0,
            now,
            heard: now,
            last_word: now,
            unanswered: None,
            is_quiet: false,
            asked: None,
            underway_bytes: 0,
            underway_at: now,
            round_trip: Duration::ZERO,
            peer: if dials {
                PeerStanding::Friend
            } else {
                PeerStanding::Unknown
            },
            large_frame_waits: false,
            message_bytes: DEFAULT_MESSAGE_BYTES,
            last: [CONNECTION_CHANNEL; 3],
            passed_over: [0; 3],
        }
    }

    /// The peer has proven who it is: from now on only the credit of each channel counts, and
    /// silence. Called by the accepting side, which then calls [`Self::handle_input`] again with
    /// what was left.
    pub fn let_in(&mut self) {
        self.peer = PeerStanding::Friend;
        self.large_frame_waits = false;
    }

    /// Both sides have agreed on another size of the largest message.
    pub fn set_message_bytes(&mut self, bytes: usize) {
        self.message_bytes = bytes.min(MAX_MESSAGE_BYTES);
    }

    /// The largest message that may be sent, and is taken.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Takes bytes from the peer, cut anyhow.
    ///
    /// # Errors
    /// The peer broke the protocol; the same fault is returned from then on.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Duration) -> Result<(), ConnectionFault> {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let handled = self.handle_input(&mut input, now);
        if handled.is_ok() {
            self.input = input;
        }
        handled
    }

    /// The same for callers who have a buffer of their own: takes whole frames off it, as far as
    /// [`Self::wants_input`].
    ///
    /// # Errors
    /// As those of [`Self::handle_bytes`].
    pub fn handle_input(
        &mut self,
        input: &mut BytesMut,
        now: Duration,
    ) -> Result<(), ConnectionFault> {
        self.check()?;
        self.now = now;
        self.heard = now;
        self.last_word = now;
        self.unanswered = None;
        self.is_quiet = false;
        let taken = self.take_input(input);
        self.asked = None;
        self.ping_due = false;
        self.keep_fault(taken)
    }

    /// Whether more is taken from the peer now. Always, once it was let in.
    pub fn wants_input(&self) -> bool {
        let is_little = || self.held_bytes()[1] < STRANGER_BYTES && !self.large_frame_waits;
        self.peer == PeerStanding::Friend || is_little()
    }

    /// Bytes of control messages, and of everything, that came and wait for their handlers.
    pub fn held_bytes(&self) -> [usize; 2] {
        let channels = self.channels.iter().map(|(_, it)| it.held_bytes());
        channels.fold([0; 2], |sum, held| [sum[0] + held[0], sum[1] + held[1]])
    }

    /// How long the peer was silent, as of when time was last told.
    pub fn silent_for(&self) -> Duration {
        self.now.saturating_sub(self.last_word)
    }

    /// Lets time pass: pings a silent peer.
    ///
    /// # Errors
    /// The peer was silent for too long.
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), ConnectionFault> {
        self.check()?;
        let Some(pings) = self.watched() else {
            return Ok(());
        };
        self.now = now;
        let is_late = self.asked.is_some_and(|it| now >= self.deadline(it, pings));
        let silent = now.saturating_sub(self.heard);
        if is_late || silent >= pings.give_up {
            return self.keep_fault(Err(ConnectionFault::Silent));
        }
        self.is_quiet |= silent >= pings.unanswered;
        if self.asked.is_none() && now >= self.ping_time(pings) {
            self.ask();
        }
        Ok(())
    }

    /// The peer's network takes bytes: to a sender that counts like hearing from it, but for that
    /// nobody has answered.
    pub fn handle_sent(&mut self, now: Duration) {
        self.now = now;
        self.heard = now;
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let pings = self.watched().filter(|_| self.fault.is_none())?;
        let next = match self.asked {
            Some(asked) => self.deadline(asked, pings),
            None if self.is_quiet => self.ping_time(pings),
            None => self.ping_time(pings).min(self.heard + pings.unanswered),
        };
        Some(next.min(self.heard + pings.give_up))
    }

    /// When a ping is due, if none waits for its answer.
    fn ping_time(&self, pings: PingTimings) -> Duration {
        let silent = self.heard + pings.after;
        match self.unanswered {
            Some(since) => silent.min(since + pings.unanswered),
            None => silent,
        }
    }

    /// When a ping without an answer is too late.
    fn deadline(&self, asked: AskedPing, pings: PingTimings) -> Duration {
        let behind = Duration::from_millis(asked.behind_bytes * 1000 / SLOWEST_BYTES_A_SECOND);
        asked.at + pings.patience.max(self.round_trip * ROUND_TRIPS) + behind
    }

    fn ask(&mut self) {
        self.ping_due = true;
        self.asked = Some(AskedPing {
            at: self.now,
            behind_bytes: self.underway(),
        });
    }

    fn underway(&self) -> u64 {
        let passed = self.now.saturating_sub(self.underway_at);
        let gone = passed.as_secs_f64() * SLOWEST_BYTES_A_SECOND as f64;
        self.underway_bytes.saturating_sub(gone as u64)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        let event = self.events.pop_front();
        drop_if_empty(&mut self.events);
        event
    }

    /// What came next on a channel, if it is wanted.
    pub fn receive_if(
        &mut self,
        channel: u8,
        is_wanted: impl FnOnce(&ChannelInput) -> bool,
    ) -> Option<ChannelInput> {
        self.find_mut(channel)?.receive_if(is_wanted)
    }

    /// What came next on a channel. Its credit is the peer's again after [`Self::mark_consumed`].
    pub fn receive(&mut self, channel: u8) -> Option<ChannelInput> {
        self.find_mut(channel)?.receive()
    }

    /// The handler is done with so many bytes of credit of what it received.
    pub fn mark_consumed(&mut self, channel: u8, bytes: usize) {
        self.channel(channel).mark_consumed(bytes);
    }

    /// Queues a control message.
    ///
    /// # Errors
    /// It is too large for a frame.
    pub fn send_control(&mut self, channel: u8, control: Control) -> Result<(), ConnectionFault> {
        Ok(self.channel(channel).send_control(control)?)
    }

    /// Queues a message.
    ///
    /// # Errors
    /// It is too large for a frame.
    pub fn send_message(&mut self, channel: u8, message: Message) -> Result<(), ConnectionFault> {
        let most = self.message_bytes;
        Ok(self.channel(channel).send_message(message, most)?)
    }

    /// Queues packed rows, of any size.
    pub fn send_rows(&mut self, channel: u8, rows: impl Into<bytes::Bytes>) {
        self.channel(channel).send_rows(rows.into());
    }

    /// The bytes that wait to be sent on a channel: producers look at it before they go on.
    pub fn unsent_bytes(&self, channel: u8) -> usize {
        self.find(channel).map_or(0, Channel::unsent_bytes)
    }

    /// How many bytes of rows and messages may be queued on a channel so that they wait for
    /// nothing but the network. What is queued beyond waits for credit, and so does all behind it.
    pub fn room(&self, channel: u8) -> usize {
        let fresh = INITIAL_CREDIT_BYTES as usize;
        self.find(channel).map_or(fresh, Channel::room)
    }

    /// Forgets what waits to be sent on a channel, for whoever ends it with a last word.
    pub fn drop_unsent(&mut self, channel: u8) {
        self.channel(channel).drop_unsent();
    }

    /// Whether the connection itself has something to say: credits, pongs, a ping.
    pub fn has_own_output(&self) -> bool {
        let owes_pongs = !self.pongs.is_empty() || self.ping_due;
        owes_pongs || self.channels.iter().any(|(_, it)| it.owes_grant())
    }

    /// Appends frames to `out` until it has about `enough` bytes or nothing can go. Whether
    /// anything was appended.
    pub fn poll_transmit(&mut self, out: &mut BytesMut, enough: usize) -> bool {
        let start = out.len();
        if std::mem::take(&mut self.owes_preface) {
            out.put_slice(&PREFACE);
        }
        if self.is_quiet && self.asked.is_none() && self.watched().is_some() && self.has_ready() {
            self.ask();
        }
        if self.has_own_output() {
            self.transmit_own(out);
        }
        let unsent = self.channels.iter().map(|(_, it)| it.unsent_bytes());
        let unsent = unsent.sum();
        out.reserve(enough.min(unsent));
        while out.len() - start < enough {
            let Some(channel) = self.next_channel() else {
                break;
            };
            self.channel(channel).transmit(channel, out);
            self.unanswered.get_or_insert(self.now);
        }
        // More than its credit nobody has on its way.
        let sent = (out.len() - start) as u64;
        self.underway_bytes = (self.underway() + sent).min(INITIAL_CREDIT_BYTES);
        self.underway_at = self.now;
        out.len() > start
    }

    /// Whether something of a channel can go.
    fn has_ready(&self) -> bool {
        self.channels.iter().any(|(_, it)| it.ready().is_some())
    }

    fn find(&self, channel: u8) -> Option<&Channel> {
        let mut channels = self.channels.iter();
        channels
            .find(|(number, _)| *number == channel)
            .map(|(_, it)| it)
    }

    fn find_mut(&mut self, channel: u8) -> Option<&mut Channel> {
        let mut channels = self.channels.iter_mut();
        channels
            .find(|(number, _)| *number == channel)
            .map(|(_, it)| it)
    }

    /// The channel, which is there from its first use on.
    fn channel(&mut self, channel: u8) -> &mut Channel {
        debug_assert!(channel < CHANNELS);
        let channels = &mut self.channels;
        let place = match channels.binary_search_by_key(&channel, |(number, _)| *number) {
            Ok(place) => place,
            Err(place) => {
                channels.insert(place, (channel, Channel::new()));
                place
            }
        };
        &mut channels[place].1
    }

    fn check(&self) -> Result<(), ConnectionFault> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn keep_fault(&mut self, result: Result<(), ConnectionFault>) -> Result<(), ConnectionFault> {
        if let Err(fault) = &result {
            self.fault = Some(fault.clone());
        }
        result
    }

    /// How silence is judged: strangers have their deadlines elsewhere, and are asked nothing.
    fn watched(&self) -> Option<PingTimings> {
        self.pings.filter(|_| self.peer == PeerStanding::Friend)
    }

    fn take_input(&mut self, input: &mut BytesMut) -> Result<(), ConnectionFault> {
        if self.expects_preface {
            if input.is_empty() || take_preface(input)?.is_none() {
                return Ok(());
            }
            self.expects_preface = false;
        }
        while self.wants_input() {
            if let Some((length, channel)) = announced(input)
                && length > self.frame_limit(channel)
            {
                if self.peer == PeerStanding::Unknown || channel == CONNECTION_CHANNEL {
                    return Err(ConnectionFault::TooMuch(channel));
                }
                self.large_frame_waits = true;
                return Ok(());
            }
            if let Some(length) = announced_message(input)
                && length > self.message_bytes
            {
                return Err(FrameError::TooLarge(length).into());
            }
            let before = input.len();
            let Some(frame) = take_frame(input)? else {
                break;
            };
            let payload = before - input.len() - HEADER_BYTES;
            self.take_frame(frame, payload)?;
        }
        Ok(())
    }

    /// The largest frame of a channel that is taken now.
    fn frame_limit(&self, channel: u8) -> usize {
        match self.peer {
            PeerStanding::Friend => usize::MAX,
            PeerStanding::Unknown if channel == CONNECTION_CHANNEL => SIGN_IN_FRAME_BYTES,
            PeerStanding::Unknown | PeerStanding::Stranger => STRANGER_FRAME_BYTES,
        }
    }

    fn take_frame(&mut self, frame: Frame, payload: usize) -> Result<(), ConnectionFault> {
        let channel = frame.channel();
        if channel >= CHANNELS {
            return Err(ConnectionFault::UnknownChannel(channel));
        }
        let incoming = match frame {
            Frame::Control { control, .. } => match control {
                None => return Ok(()),
                Some(Control::Ping(ping)) => {
                    if self.pongs.len() < MAX_PONGS {
                        self.pongs.push_back(ping.nonce);
                    }
                    return Ok(());
                }
                Some(Control::Pong(pong)) => {
                    if let Some(asked) = self.asked.filter(|_| pong.nonce == self.nonce) {
                        self.round_trip = self.heard.saturating_sub(asked.at);
                        let before = asked.behind_bytes;
                        self.underway_bytes = self.underway().saturating_sub(before);
                        self.underway_at = self.heard;
                    }
                    // Only the last one is kept, so that nobody fills the queue.
                    self.events
                        .retain(|event| !matches!(event, ConnectionEvent::Pong(_)));
                    self.events.push_back(ConnectionEvent::Pong(pong));
                    return Ok(());
                }
                Some(Control::Credit(credit)) => return self.take_credit(&credit),
                Some(control) => ChannelInput::Control(control),
            },
            Frame::Rows { bytes, .. } if bytes.is_empty() => return Ok(()),
            Frame::Rows { bytes, .. } => ChannelInput::Rows(bytes),
            Frame::Message { message, .. } => ChannelInput::Message(message),
        };
        if self.peer == PeerStanding::Unknown {
            if channel != CONNECTION_CHANNEL {
                return Err(ConnectionFault::BeforeSignIn(channel));
            }
            self.peer = PeerStanding::Stranger;
        }
        let control_bytes = match incoming {
            // What a decoded message takes beside its payload is counted too.
            ChannelInput::Control(_) => payload + size_of::<Control>(),
            ChannelInput::Rows(_) | ChannelInput::Message(_) => 0,
        };
        let first = self
            .channel(channel)
            .arrive(channel, incoming, control_bytes)?;
        if first {
            self.tell(ConnectionEvent::Readable(channel));
        }
        Ok(())
    }

    /// Each event waits once.
    fn tell(&mut self, event: ConnectionEvent) {
        self.events.retain(|other| *other != event);
        self.events.push_back(event);
    }

    fn take_credit(&mut self, credit: &Credit) -> Result<(), ConnectionFault> {
        let number = u8::try_from(credit.channel).unwrap_or(u8::MAX);
        if number >= CHANNELS {
            return Err(ConnectionFault::UnknownChannel(number));
        }
        self.channel(number).add_credit(credit.bytes);
        self.tell(ConnectionEvent::Writable(number));
        Ok(())
    }

    /// What the connection itself has to say, which is bounded: credits, pongs, a ping.
    fn transmit_own(&mut self, out: &mut BytesMut) {
        let mut own = Vec::new();
        for (number, channel) in &mut self.channels {
            if let Some(bytes) = channel.take_grant() {
                own.push(Control::Credit(Credit {
                    channel: u32::from(*number),
                    bytes,
                }));
            }
        }
        for nonce in self.pongs.drain(..) {
            own.push(Control::Pong(Pong {
                nonce,
                server: self.program.clone(),
                protocol_version: PROTOCOL_VERSION,
            }));
        }
        if std::mem::take(&mut self.ping_due) {
            self.nonce += 1;
            own.push(Control::Ping(Ping { nonce: self.nonce }));
        }
        for control in own {
            put_control(out, CONNECTION_CHANNEL, control).expect("it is small");
        }
    }

    /// Who sends next: the connection itself; else the best class that can go, but a class that
    /// was passed over too often goes first; within a class the channels in turn.
    fn next_channel(&mut self) -> Option<u8> {
        let own = self.find(CONNECTION_CHANNEL);
        if own.is_some_and(|it| it.ready().is_some()) {
            return Some(CONNECTION_CHANNEL);
        }
        // The lowest channel that is ready after the one that was served last, else the lowest.
        let mut first: [Option<u8>; 3] = [None; 3];
        for (number, channel) in &self.channels {
            if let Some(class) = channel.ready() {
                let last = self.last[class as usize];
                match &mut first[class as usize] {
                    Some(found) if *found <= last && *number > last => *found = *number,
                    Some(_) => {}
                    none => *none = Some(*number),
                }
            }
        }
        let classes = [FrameClass::Rows, FrameClass::Message, FrameClass::Control]
            .map(|class| class as usize);
        let starved = classes
            .into_iter()
            .find(|class| first[*class].is_some() && self.passed_over[*class] >= MAX_PASSED_OVER);
        let chosen = starved.or_else(|| (0..3).find(|class| first[*class].is_some()))?;
        for class in classes {
            if class == chosen || first[class].is_none() {
                self.passed_over[class] = 0;
            } else {
                self.passed_over[class] += 1;
            }
        }
        let channel = first[chosen]?;
        self.last[chosen] = channel;
        Some(channel)
    }
}
