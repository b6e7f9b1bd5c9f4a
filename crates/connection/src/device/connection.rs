//! The machine of a device's connection: who the device is on it, and what comes on its channels.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidewater_protocol::RemoteId;
use tidewater_protocol::frame::{
    CALL_CHANNEL, CONNECTION_CHANNEL, DEFAULT_MESSAGE_BYTES, EVENT_CHANNEL, HEADER_BYTES, Message,
    ROWS_PAYLOAD_BYTES, SYNC_CHANNEL,
};
use tidewater_protocol::message::{Control, FailureNotice, Ping, Pong, SignedIn};

use super::Now;
use super::error::{BEFORE_A_WORD, DeviceError};
use super::sign_in::{PresentedProof, ProofKind, SignInAnswer, SignInRequest};
use crate::{ChannelInput, ConnectionEvent, ConnectionFault, FramedConnection, PingTimings};

/// What was going on while no sync was under way.
const CONNECTED: &str = "while connected";

/// What a driver may want to act on.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The server has let a program without a file in.
    ProgramSignedIn,
    /// The server has let a device in.
    SignedIn(Box<SignInAnswer>),
    /// The server has not let a device in.
    SignInRefused {
        /// Why not.
        failure: FailureNotice,
        /// The proof that may do in place of the one that was presented, on another connection.
        next: Option<ProofKind>,
    },
    /// Something has come on the channel of syncs.
    SyncInput(ChannelInput),
    /// The server has answered to a ping.
    Pong(Pong),
    /// The connection is of no more use.
    Failed(DeviceError),
}

/// What a sync on the connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncActivity {
    /// What is going on, for messages to people.
    pub during: &'static str,
    /// Whether something of it is still to be sent: as long as bytes are on their way, the
    /// connection is alive.
    pub is_sending: bool,
}

/// Who the device is to the server.
enum SignInState {
    Stranger,
    /// The answer is still to come.
    Presented(PresentedProof),
    /// Who, and at the centre of which name.
    In(RemoteId, String),
    /// A program without a file has said who it is, or is in.
    Program {
        is_in: bool,
    },
}

/// One connection of a device or a program to a server.
///
/// A driver signs in with [`Self::sign_in`] and loops: it sends what [`Self::poll_transmit`] gives,
/// hands in what arrives with [`Self::handle_bytes`], tells the end with [`Self::handle_end`] and the
/// time with [`Self::handle_timeout`], and after each takes all of [`Self::poll_event`],
/// [`Self::poll_call`] and [`Self::poll_events`]. What came before the connection ended is handed out
/// before [`DeviceEvent::Failed`]; calls and events can be taken after it, too.
pub struct DeviceConnection {
    wire: FramedConnection,
    client: String,
    standing: SignInState,
    sync: Option<SyncActivity>,
    /// Nothing more is begun on it.
    closing: bool,
    /// Why it ended, to be told behind what came before.
    fault: Option<DeviceError>,
    /// The first bytes that came, until the peer is known to speak the protocol.
    head: Vec<u8>,
    peer_known: bool,
    sent: u64,
    received: u64,
    pongs: VecDeque<Pong>,
}

impl DeviceConnection {
    /// A connection that was just opened. `client` is the program that connects, for the server's
    /// logs; `silence`, how long the server may be silent.
    pub fn dial(client: &str, silence: Duration, now: Now) -> DeviceConnection {
        let pings = PingTimings::for_prompt_peer(silence);
        DeviceConnection {
            wire: FramedConnection::dial(client, Some(pings), ticks(now)),
            client: client.to_owned(),
            standing: SignInState::Stranger,
            sync: None,
            closing: false,
            fault: None,
            head: Vec::new(),
            peer_known: false,
            sent: 0,
            received: 0,
            pongs: VecDeque::new(),
        }
    }

    /// Says who this side is. [`DeviceEvent::SignedIn`], or [`DeviceEvent::ProgramSignedIn`], tells
    /// when it is in.
    ///
    /// # Errors
    /// What is said is too large.
    pub fn sign_in(&mut self, request: SignInRequest) -> Result<(), DeviceError> {
        self.standing = match request.presented() {
            Some(presented) => SignInState::Presented(presented),
            None => SignInState::Program { is_in: false },
        };
        let message = request.into_message(&self.client);
        Ok(self.wire.send_control(CONNECTION_CHANNEL, message)?)
    }

    /// Whether calls and events can go over it: somebody is in, and nothing has ended it.
    pub fn is_open(&self) -> bool {
        let is_in = matches!(
            self.standing,
            SignInState::In(..) | SignInState::Program { is_in: true }
        );
        is_in && !self.closing
    }

    /// Whether nothing more is begun on it.
    pub fn has_ended(&self) -> bool {
        self.closing
    }

    /// Begins nothing more on it. What is queued can still be sent.
    pub fn retire(&mut self) {
        self.closing = true;
        self.fault = None;
    }

    /// The largest call, answer in one piece or event that the server takes.
    pub fn message_bytes(&self) -> usize {
        self.wire.message_bytes()
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// Asks whether the server is there.
    pub fn ping(&mut self, nonce: u64) {
        let ping = Control::Ping(Ping { nonce });
        if let Err(fault) = self.wire.send_control(CONNECTION_CHANNEL, ping) {
            self.fail(fault.into());
        }
    }
}

/// What the driver tells, and what it sends.
impl DeviceConnection {
    /// Hands in bytes that arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Now) {
        self.received += bytes.len() as u64;
        if self.closing {
            return;
        }
        if let Err(error) = self.look_at_first(bytes) {
            self.fail(error);
            return;
        }
        let taken = self.wire.handle_bytes(bytes, ticks(now));
        while let Some(event) = self.wire.poll_event() {
            // A whole frame has come.
            self.peer_known = true;
            if let ConnectionEvent::Pong(pong) = event {
                self.pongs.push_back(pong);
            }
        }
        match taken {
            Ok(()) => self.peer_known |= self.head.len() >= HEADER_BYTES,
            Err(fault) => self.fail(self.told_by(fault)),
        }
    }

    fn look_at_first(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.peer_known {
            return Ok(());
        }
        let missing = HEADER_BYTES.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(missing));
        DeviceError::check_first(&self.head)
    }

    /// The server closed the connection, or it broke.
    pub fn handle_end(&mut self, source: Option<std::io::Error>) {
        let during = self.during();
        self.fail(DeviceError::ConnectionLost { during, source });
    }

    /// Time has passed; see [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        if !self.closing
            && let Err(fault) = self.wire.handle_timeout(ticks(now))
        {
            self.fail(self.told_by(fault));
        }
    }

    /// Bytes are on their way: as long as a sync has something to say, the connection is alive.
    pub fn handle_sent(&mut self, now: Now) {
        if self.sync.is_some_and(|sync| sync.is_sending) {
            self.wire.handle_sent(ticks(now));
        }
    }

    /// When to call [`Self::handle_timeout`], in ticks.
    pub fn poll_timeout(&self) -> Option<u64> {
        let deadline = self.wire.poll_timeout().filter(|_| !self.closing)?;
        u64::try_from(deadline.as_millis()).ok()
    }

    /// The next bytes to send, whole frames. Ask again when they are on their way.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while out.len() < ROWS_PAYLOAD_BYTES {
            let left = ROWS_PAYLOAD_BYTES - out.len();
            if !self.transmit_frames(&mut out, left) {
                break;
            }
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// Appends the next frames to send, if there are any, of about so many bytes.
    pub fn transmit_frames(&mut self, out: &mut BytesMut, bytes: usize) -> bool {
        let before = out.len();
        let has_sent = self.wire.poll_transmit(out, bytes);
        self.sent += (out.len() - before) as u64;
        has_sent
    }

    /// The next event. Sign-in goes before what it lets through; a sync, before what ends the
    /// connection after it.
    pub fn poll_event(&mut self) -> Option<DeviceEvent> {
        while let Some((channel, input)) = self.next_input() {
            self.wire.mark_consumed(channel, input.credit());
            if channel == SYNC_CHANNEL {
                return Some(DeviceEvent::SyncInput(input));
            }
            // Nothing counts after the connection has failed, or was given up.
            if self.closing && self.fault.is_none() {
                continue;
            }
            return Some(self.handle_own_message(input).unwrap_or_else(|error| {
                self.retire();
                DeviceEvent::Failed(error)
            }));
        }
        if let Some(pong) = self.pongs.pop_front() {
            return Some(DeviceEvent::Pong(pong));
        }
        self.fault.take().map(DeviceEvent::Failed)
    }

    fn next_input(&mut self) -> Option<(u8, ChannelInput)> {
        let order = match self.standing {
            SignInState::In(..) => [SYNC_CHANNEL, CONNECTION_CHANNEL],
            _ => [CONNECTION_CHANNEL, SYNC_CHANNEL],
        };
        let mut order = order.into_iter();
        order.find_map(|channel| Some((channel, self.wire.receive(channel)?)))
    }

    /// A message of the connection itself.
    fn handle_own_message(&mut self, input: ChannelInput) -> Result<DeviceEvent, DeviceError> {
        let ChannelInput::Control(control) = input else {
            return Err(DeviceError::unexpected(
                "rows on the connection's own channel",
            ));
        };
        match (control, &self.standing) {
            (Control::SignedIn(signed_in), SignInState::Program { is_in: false }) => {
                self.wire.set_message_bytes(message_bytes(&signed_in));
                self.standing = SignInState::Program { is_in: true };
                Ok(DeviceEvent::ProgramSignedIn)
            }
            (Control::SignedIn(signed_in), SignInState::Presented(_)) => {
                let message_bytes = message_bytes(&signed_in);
                let answer = SignInAnswer::read(*signed_in)?;
                self.wire.set_message_bytes(message_bytes);
                self.standing = SignInState::In(answer.remote_id, answer.centre.clone());
                Ok(DeviceEvent::SignedIn(Box::new(answer)))
            }
            (Control::Failure(failure), SignInState::Presented(presented)) => {
                let next = presented.next(&failure);
                self.retire();
                Ok(DeviceEvent::SignInRefused { failure, next })
            }
            (Control::Failure(failure), _) => Err(failure.into()),
            (Control::Busy(busy), _) => Err(DeviceError::Busy {
                retry_after_ms: busy.retry_after_ms,
            }),
            (other, _) => Err(DeviceError::unexpected(format!(
                "a {} on the connection's own channel",
                other.name()
            ))),
        }
    }

    /// The first reason counts.
    fn fail(&mut self, error: DeviceError) {
        if !self.closing {
            self.closing = true;
            self.fault = Some(error);
        }
    }

    /// What is going on. If nothing has come yet, nobody knows who the other side is.
    fn during(&self) -> &'static str {
        match &self.sync {
            _ if !self.peer_known && self.head.is_empty() => BEFORE_A_WORD,
            Some(sync) => sync.during,
            None => CONNECTED,
        }
    }

    fn told_by(&self, fault: ConnectionFault) -> DeviceError {
        match fault {
            ConnectionFault::Silent => DeviceError::Timeout {
                after_ms: u64::try_from(self.wire.silent_for().as_millis()).unwrap_or(u64::MAX),
                during: self.during(),
            },
            ConnectionFault::Frame(error) if !self.peer_known => DeviceError::NotTidewater {
                what: error.to_string(),
                hint: "see that scheme, host and port are those of a Tidewater server",
            },
            fault => fault.into(),
        }
    }
}

/// Calls and events.
impl DeviceConnection {
    /// Queues a message on the channel of calls.
    ///
    /// # Errors
    /// It is too large.
    pub fn send_call(&mut self, message: Message) -> Result<(), DeviceError> {
        Ok(self.wire.send_message(CALL_CHANNEL, message)?)
    }

    /// What came next on the channel of calls. What is no message there is skipped.
    pub fn poll_call(&mut self) -> Option<Message> {
        let message = self.poll_call_to_hold()?;
        self.let_go(message.credit());
        Some(message)
    }

    /// The same, of which nothing more is asked for in its place: what it takes is let go by
    /// [`Self::let_go`].
    pub fn poll_call_to_hold(&mut self) -> Option<Message> {
        loop {
            let input = self.wire.receive(CALL_CHANNEL)?;
            let credit = input.credit();
            match input {
                ChannelInput::Message(message) => return Some(message),
                _ => self.let_go(credit),
            }
        }
    }

    /// So many bytes of what came on the channel of calls are done with: the server may send as many
    /// more.
    pub fn let_go(&mut self, credit: usize) {
        self.wire.mark_consumed(CALL_CHANNEL, credit);
    }

    /// Queues packed events, beyond credit too: see [`Self::unsent_events`].
    pub fn send_events(&mut self, events: Bytes) {
        self.wire.send_rows(EVENT_CHANNEL, events);
    }

    /// Bytes of events that wait to be sent.
    pub fn unsent_events(&self) -> usize {
        self.wire.unsent_bytes(EVENT_CHANNEL)
    }

    /// The next piece of the stream of events that comes.
    pub fn poll_events(&mut self) -> Option<Bytes> {
        loop {
            let input = self.wire.receive(EVENT_CHANNEL)?;
            self.wire.mark_consumed(EVENT_CHANNEL, input.credit());
            if let ChannelInput::Rows(bytes) = input {
                return Some(bytes);
            }
        }
    }
}

/// The channel of syncs, for whoever has one under way.
impl DeviceConnection {
    /// Who the device is, and the name of the centre that has let it in.
    pub fn identity(&self) -> Option<(RemoteId, &str)> {
        match &self.standing {
            SignInState::In(remote_id, centre) => Some((*remote_id, centre)),
            _ => None,
        }
    }

    /// Whether this side has said who it is.
    pub fn has_presented(&self) -> bool {
        !matches!(self.standing, SignInState::Stranger)
    }

    /// What the sync is at; `None` if there is none.
    pub fn set_sync_activity(&mut self, sync: Option<SyncActivity>) {
        self.sync = sync;
    }

    /// Queues a message of the sync.
    ///
    /// # Errors
    /// It is too large.
    pub fn send_sync_control(&mut self, control: Control) -> Result<(), DeviceError> {
        Ok(self.wire.send_control(SYNC_CHANNEL, control)?)
    }

    /// Queues rows of the sync.
    pub fn send_sync_rows(&mut self, rows: Bytes) {
        self.wire.send_rows(SYNC_CHANNEL, rows);
    }

    /// How many more bytes of rows may be queued that need nothing but the network.
    pub fn sync_room(&self) -> usize {
        self.wire.room(SYNC_CHANNEL)
    }

    /// Bytes of the sync that wait to be sent.
    pub fn unsent_sync_bytes(&self) -> usize {
        self.wire.unsent_bytes(SYNC_CHANNEL)
    }

    /// Forgets what the sync has queued.
    pub fn drop_unsent_sync(&mut self) {
        self.wire.drop_unsent(SYNC_CHANNEL);
    }
}

fn ticks(now: Now) -> Duration {
    Duration::from_millis(now.ticks_ms)
}

/// The largest message that a server takes.
fn message_bytes(signed_in: &SignedIn) -> usize {
    match signed_in.message_bytes {
        0 => DEFAULT_MESSAGE_BYTES,
        bytes => bytes as usize,
    }
}
