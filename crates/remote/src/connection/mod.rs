//! A connection to a server, above its syncs, as a state machine: bytes and time in, bytes and
//! events out.
//!
//! Owns who the remote is on it, and which sync is under way: one after the other, with one
//! sign-in. Has no sockets, clocks, threads or randomness of its own: a driver feeds it, be it
//! blocking, async, in a browser, or the simulator. Leaves channels, credit and pings to
//! `tidewater-connection`, and what a sync is to [`crate::session`].
//!
//! A driver begins a sync with [`RemoteConnection::sync`] and loops: send what
//! [`RemoteConnection::poll_transmit`] gives, hand in what arrives with [`RemoteConnection::handle_bytes`],
//! have the work done that [`RemoteConnection::poll_work`] gives, until [`DriverEvent::SyncDone`]. Then
//! [`RemoteConnection::end_sync`] tells how it ended. Bytes may still wait to be sent.

mod sign_in;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidewater_connection::{
    ChannelInput, ConnectionEvent, ConnectionFault, FramedConnection, PingTimings,
};
use tidewater_protocol::RemoteId;
use tidewater_protocol::frame::{
    CALL_CHANNEL, CONNECTION_CHANNEL, DEFAULT_MESSAGE_BYTES, EVENT_CHANNEL, HEADER_BYTES, Message,
    ROWS_PAYLOAD_BYTES, SYNC_CHANNEL,
};
use tidewater_protocol::message::{
    Ack, Control, FailureNotice, Ping, Pong, Proof, SignedIn, SyncCancel,
};

use self::sign_in::PresentedProof;
pub(crate) use self::sign_in::SignInAnswer;
use crate::database::RemoteDatabase;
use crate::session::{
    ApplyWork, BEFORE_A_WORD, Now, OutgoingFrame, ProofKind, SessionOptions, SessionOutcome,
    SyncError, SyncProgress, SyncSession, UserProof,
};

/// What a driver may want to act on.
#[derive(Debug)]
#[non_exhaustive]
pub enum DriverEvent {
    /// The server has let the remote in.
    SignedIn,
    /// The sync has ended, well or not: see [`RemoteConnection::end_sync`].
    SyncDone,
    /// The server has answered to a ping.
    Pong(Pong),
    /// The connection is of no more use; no sync was under way.
    Failed(SyncError),
}

/// Who the remote is to the server.
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

/// One connection.
pub struct RemoteConnection {
    wire: FramedConnection,
    client: String,
    standing: SignInState,
    session: Option<SyncSession>,
    /// Whether the driver has been told that the session has ended.
    told: bool,
    /// What comes up to the next SyncEnd belongs to a sync that the server has sent away.
    skips: bool,
    /// Nothing more is begun on it.
    closing: bool,
    /// The first bytes that came, until the peer is known to speak the protocol.
    head: Vec<u8>,
    peer_known: bool,
    sent: u64,
    received: u64,
    events: VecDeque<DriverEvent>,
}

impl RemoteConnection {
    /// A connection that was just opened. `client` is the program that syncs, for the server's
    /// logs; `silence`, how long the server may be silent.
    pub fn dial(client: &str, silence: Duration, now: Now) -> RemoteConnection {
        let pings = PingTimings::for_prompt_peer(silence);
        let wire = FramedConnection::dial(client, Some(pings), ticks(now));
        RemoteConnection {
            wire,
            client: client.to_owned(),
            standing: SignInState::Stranger,
            session: None,
            told: false,
            skips: false,
            closing: false,
            head: Vec::new(),
            peer_known: false,
            sent: 0,
            received: 0,
            events: VecDeque::new(),
        }
    }

    /// The largest call, answer in one piece or event that the server takes.
    pub fn message_bytes(&self) -> usize {
        self.wire.message_bytes()
    }

    /// Whether a sync can begin.
    pub fn can_sync(&self) -> bool {
        !self.closing && self.session.is_none()
    }

    /// Begins a sync, when [`RemoteConnection::can_sync`], and signs in if need be. `seed` must be
    /// random. A failure shows as the sync's outcome.
    pub fn sync(&mut self, database: RemoteDatabase, mut options: SessionOptions, seed: [u8; 32]) {
        debug_assert!(self.can_sync());
        let (from, user_proof) = (options.first_proof, options.user_proof.take());
        let mut session = SyncSession::new(database, options, seed);
        if let Err(error) = self.begin_session(&mut session, from, user_proof) {
            session.fail(error);
        }
        self.session = Some(session);
        self.told = false;
        self.settle();
    }

    fn begin_session(
        &mut self,
        session: &mut SyncSession,
        from: ProofKind,
        user_proof: Option<UserProof>,
    ) -> Result<(), SyncError> {
        let account = session.account()?;
        let SignInState::In(remote_id, centre) = &self.standing else {
            let (presented, sign_in) = sign_in::present(&account, from, user_proof, &self.client)?;
            session.begin(account)?;
            self.standing = SignInState::Presented(presented);
            return Ok(self.send(CONNECTION_CHANNEL, sign_in)?);
        };
        if account.remote_id != Some(*remote_id) {
            // Another sync of the file has made another remote of it.
            self.closing = true;
            session.end_for_retry(ProofKind::Token);
            return Ok(());
        }
        session.begin(account)?;
        session.let_in(centre)
    }

    /// Signs a program without a file in: [`DriverEvent::SignedIn`] tells when it is in. It can do
    /// everything but sync.
    pub fn sign_in_program(&mut self, user: &str, proof: Proof) {
        let sign_in = sign_in::for_program(user, proof, &self.client);
        self.standing = SignInState::Program { is_in: false };
        if let Err(fault) = self.send(CONNECTION_CHANNEL, sign_in) {
            self.fail(self.told_by(fault));
        }
    }

    /// Whether calls and events can go over it: somebody is in, and nothing has ended it.
    pub fn is_open(&self) -> bool {
        let is_in = matches!(
            self.standing,
            SignInState::In(..) | SignInState::Program { is_in: true }
        );
        is_in && !self.closing
    }

    /// Whether it is of no more use to anybody: nothing is begun on it any more, and no sync is
    /// under way.
    pub fn has_ended(&self) -> bool {
        self.closing && !self.is_syncing()
    }

    /// Queues a message on the channel of calls.
    ///
    /// # Errors
    /// It is too large.
    pub fn send_call(&mut self, message: Message) -> Result<(), SyncError> {
        Ok(self.wire.send_message(CALL_CHANNEL, message)?)
    }

    /// What came next on the channel of calls. What is no message there is skipped.
    pub fn poll_call(&mut self) -> Option<Message> {
        let message = self.poll_call_to_hold()?;
        self.let_go(message.credit());
        Some(message)
    }

    /// The same, of which nothing more is asked for in its place: what it takes is let go by
    /// [`RemoteConnection::let_go`].
    pub fn poll_call_to_hold(&mut self) -> Option<Message> {
        loop {
            let incoming = self.wire.receive(CALL_CHANNEL)?;
            let credit = incoming.credit();
            match incoming {
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

    /// Queues packed events, beyond credit too: see [`RemoteConnection::unsent_events`].
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
            let incoming = self.wire.receive(EVENT_CHANNEL)?;
            self.wire.mark_consumed(EVENT_CHANNEL, incoming.credit());
            if let ChannelInput::Rows(bytes) = incoming {
                return Some(bytes);
            }
        }
    }

    /// Asks whether the server is there.
    pub fn ping(&mut self, nonce: u64) {
        if let Err(fault) = self.send(CONNECTION_CHANNEL, Control::Ping(Ping { nonce })) {
            self.fail(self.told_by(fault));
        }
    }

    /// Hands in bytes that arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Now) {
        self.received += bytes.len() as u64;
        if let Some(session) = &mut self.session {
            session.count(0, bytes.len());
        }
        if self.closing {
            return;
        }
        if let Err(error) = self.look_at_first(bytes) {
            self.fail(error);
            return;
        }
        let taken = self.wire.handle_bytes(bytes, ticks(now));
        self.receive();
        match taken {
            Ok(()) => self.peer_known |= self.head.len() >= HEADER_BYTES,
            Err(fault) => self.fail(self.told_by(fault)),
        }
        self.settle();
    }

    fn look_at_first(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        if self.peer_known {
            return Ok(());
        }
        let missing = HEADER_BYTES.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(missing));
        SyncError::check_first(&self.head)
    }

    /// The server closed the connection, or it broke.
    pub fn handle_end(&mut self, source: Option<std::io::Error>) {
        let during = self.before_a_word().unwrap_or_else(|| self.during());
        self.fail(SyncError::ConnectionLost { during, source });
    }

    /// What is going on, if nothing has come yet: then nobody knows who the other side is.
    fn before_a_word(&self) -> Option<&'static str> {
        (!self.peer_known && self.head.is_empty()).then_some(BEFORE_A_WORD)
    }

    /// Time has passed; see [`RemoteConnection::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        if !self.closing
            && let Err(fault) = self.wire.handle_timeout(ticks(now))
        {
            self.fail(self.told_by(fault));
        }
    }

    /// Bytes are on their way: as long as the remote has something to say, the connection is
    /// alive.
    pub fn handle_sent(&mut self, now: Now) {
        if self.session.as_ref().is_some_and(SyncSession::is_sending) {
            self.wire.handle_sent(ticks(now));
        }
    }

    /// When to call [`RemoteConnection::handle_timeout`], in ticks.
    pub fn poll_timeout(&self) -> Option<u64> {
        let deadline = self.wire.poll_timeout().filter(|_| !self.closing)?;
        u64::try_from(deadline.as_millis()).ok()
    }

    /// The next bytes to send, whole frames. Ask again when they are on their way.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while out.len() < ROWS_PAYLOAD_BYTES {
            self.fill();
            let left = ROWS_PAYLOAD_BYTES - out.len();
            if !self.wire.poll_transmit(&mut out, left) {
                break;
            }
        }
        self.sent += out.len() as u64;
        if let Some(session) = &mut self.session {
            session.count(out.len(), 0);
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        self.events.pop_front()
    }

    /// What a sync has to do in the database once all has come. It may be done on any thread;
    /// meanwhile the connection goes on. To be handed back with [`RemoteConnection::handle_work`].
    pub fn poll_work(&mut self) -> Option<ApplyWork> {
        self.session.as_mut()?.take_work()
    }

    /// The work is done, or given up: then the sync is cancelled.
    pub fn handle_work(&mut self, work: ApplyWork) {
        if let Some(session) = &mut self.session {
            session.take_back_work(work);
        }
        self.settle();
    }

    /// Does the work in place, if there is any.
    pub fn work(&mut self, now: Now) {
        if let Some(mut work) = self.poll_work() {
            while !work.is_done() {
                work.step(now);
            }
            self.handle_work(work);
        }
    }

    /// The caller wants no more of the sync under way. The remote is as it was before. Work that
    /// somebody is at decides by itself: see [`RemoteConnection::handle_work`].
    pub fn cancel(&mut self) {
        if let Some(session) = &mut self.session {
            session.fail(SyncError::Cancelled);
        }
        self.settle();
    }

    /// How far the sync is.
    pub fn progress(&self) -> Option<&SyncProgress> {
        self.session.as_ref().map(SyncSession::progress)
    }

    /// Whether a sync is under way.
    pub fn is_syncing(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.outcome().is_none())
    }

    /// Gives the database back, and tells how the sync ended. One that had not ended is given up.
    /// `None` if there was none, or somebody still has its work.
    pub fn end_sync(&mut self) -> Option<(RemoteDatabase, SessionOutcome)> {
        self.cancel();
        if self.is_syncing() {
            return None;
        }
        self.session.take()?.finish()
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// The connection is of no more use, and neither is a sync that still needs it.
    fn fail(&mut self, error: SyncError) {
        match &mut self.session {
            Some(session) if session.is_exchanging() => session.fail(error),
            Some(_) => {}
            None if self.closing => {}
            None => self.events.push_back(DriverEvent::Failed(error)),
        }
        self.closing = true;
        self.settle();
    }

    fn during(&self) -> &'static str {
        let session = self.session.as_ref();
        session.map_or("outside of a sync", SyncSession::during)
    }

    fn told_by(&self, fault: ConnectionFault) -> SyncError {
        match fault {
            ConnectionFault::Silent => SyncError::Timeout {
                after_ms: u64::try_from(self.wire.silent_for().as_millis()).unwrap_or(u64::MAX),
                during: self.before_a_word().unwrap_or_else(|| self.during()),
            },
            ConnectionFault::Frame(error) if !self.peer_known => SyncError::NotTidewater {
                what: error.to_string(),
                hint: "see that scheme, host and port are those of a Tidewater server",
            },
            fault => fault.into(),
        }
    }

    /// Takes what has come, as far as it is whole.
    fn receive(&mut self) {
        while let Some((channel, incoming)) = self.next_incoming() {
            self.peer_known = true;
            let credit = incoming.credit();
            let taken = match channel {
                CONNECTION_CHANNEL => self.handle_own_message(incoming),
                _ => self.handle_sync_input(incoming),
            };
            self.wire.mark_consumed(channel, credit);
            if let Err(error) = taken {
                self.fail(error);
            }
            self.settle();
        }
        while let Some(event) = self.wire.poll_event() {
            if let ConnectionEvent::Pong(pong) = event {
                self.peer_known = true;
                self.events.push_back(DriverEvent::Pong(pong));
            }
        }
    }

    /// Sign-in goes before what it lets through; a sync, before what ends the connection after
    /// it.
    fn next_incoming(&mut self) -> Option<(u8, ChannelInput)> {
        let order = match self.standing {
            SignInState::In(..) => [SYNC_CHANNEL, CONNECTION_CHANNEL],
            _ => [CONNECTION_CHANNEL, SYNC_CHANNEL],
        };
        let mut order = order.into_iter();
        order.find_map(|channel| Some((channel, self.wire.receive(channel)?)))
    }

    /// A message of the connection itself.
    fn handle_own_message(&mut self, incoming: ChannelInput) -> Result<(), SyncError> {
        if self.closing {
            return Ok(());
        }
        let ChannelInput::Control(control) = incoming else {
            return Err(SyncError::unexpected(
                "rows on the connection's own channel",
            ));
        };
        let presented = match (&self.standing, &mut self.session) {
            (SignInState::Presented(presented), Some(session)) => Some((*presented, session)),
            _ => None,
        };
        match (control, presented) {
            (Control::SignedIn(signed_in), None)
                if matches!(self.standing, SignInState::Program { is_in: false }) =>
            {
                self.wire.set_message_bytes(message_bytes(&signed_in));
                self.standing = SignInState::Program { is_in: true };
                self.events.push_back(DriverEvent::SignedIn);
                Ok(())
            }
            (Control::SignedIn(signed_in), Some((_, session))) => {
                let message_bytes = message_bytes(&signed_in);
                let admission = SignInAnswer::read(*signed_in)?;
                session.handle_sign_in(&admission)?;
                self.wire.set_message_bytes(message_bytes);
                self.standing = SignInState::In(admission.remote_id, admission.centre);
                self.events.push_back(DriverEvent::SignedIn);
                Ok(())
            }
            (Control::Failure(failure), Some((presented, session))) => {
                match presented.next(&failure) {
                    Some(next) => session.retry_with_proof(next),
                    None => session.handle_control(Control::Failure(failure)),
                }
            }
            (Control::Failure(failure), None) => Err(failure.into()),
            (Control::Busy(busy), _) => Err(SyncError::Busy {
                retry_after_ms: busy.retry_after_ms,
            }),
            (other, _) => Err(SyncError::unexpected(format!(
                "a {} on the connection's own channel",
                other.name()
            ))),
        }
    }

    /// A message of a sync, or rows.
    fn handle_sync_input(&mut self, incoming: ChannelInput) -> Result<(), SyncError> {
        if self.skips {
            match &incoming {
                ChannelInput::Control(Control::Failure(_) | Control::Busy(_)) => self.skips = false,
                incoming => {
                    self.skips = !matches!(incoming, ChannelInput::Control(Control::SyncEnd(_)));
                    return Ok(());
                }
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        match incoming {
            ChannelInput::Control(control) => session.handle_control(control),
            ChannelInput::Rows(bytes) => session.handle_rows(&bytes),
            ChannelInput::Message(_) => Err(SyncError::unexpected("a message on a sync's channel")),
        }
    }

    /// Takes from the session what there is room for.
    fn fill(&mut self) {
        while self.wire.unsent_bytes(SYNC_CHANNEL) < ROWS_PAYLOAD_BYTES {
            let room = self.wire.room(SYNC_CHANNEL);
            let session = self.session.as_mut();
            let sent = match session.and_then(|session| session.poll_output(room)) {
                None => break,
                Some(OutgoingFrame::Rows(rows)) => {
                    self.wire.send_rows(SYNC_CHANNEL, rows);
                    Ok(())
                }
                Some(OutgoingFrame::Control(control)) => self.send(SYNC_CHANNEL, control),
            };
            if let Err(fault) = sent {
                self.fail(fault.into());
            }
        }
        self.settle();
    }

    fn send(&mut self, channel: u8, control: Control) -> Result<(), ConnectionFault> {
        self.wire.send_control(channel, control)
    }

    /// Once the sync has ended: says so to the server, and to the driver.
    fn settle(&mut self) {
        let Some(session) = self.session.as_ref().filter(|_| !self.told) else {
            return;
        };
        let last = match session.outcome() {
            None => return,
            Some(SessionOutcome::Done(_) | SessionOutcome::More(_)) => Some(Control::Ack(Ack {})),
            Some(SessionOutcome::Again(_)) => {
                let is_in = matches!(self.standing, SignInState::In(..));
                self.closing |= !is_in || session.starts_over();
                // What it has said to the sync ends with a SyncEnd.
                self.skips = true;
                None
            }
            Some(SessionOutcome::Failed(error)) => {
                self.closing = true;
                farewell(error).filter(|_| !matches!(self.standing, SignInState::Stranger))
            }
        };
        self.told = true;
        self.events.push_back(DriverEvent::SyncDone);
        self.wire.drop_unsent(SYNC_CHANNEL);
        if let Some(last) = last {
            // A courtesy: where it cannot be said, the end of the connection says enough.
            let _ = self.send(SYNC_CHANNEL, last);
        }
    }
}

/// What the server is told when a sync fails.
fn farewell(error: &SyncError) -> Option<Control> {
    match error {
        SyncError::Protocol { code, what } => Some(Control::Failure(FailureNotice::new(
            *code,
            what.as_str(),
            String::new(),
        ))),
        SyncError::Server { .. } | SyncError::Busy { .. } => None,
        _ => Some(Control::Cancel(SyncCancel {})),
    }
}

fn ticks(now: Now) -> Duration {
    Duration::from_millis(now.ticks_ms)
}

#[cfg(test)]
mod tests;

/// The largest message that a server takes.
fn message_bytes(signed_in: &SignedIn) -> usize {
    match signed_in.message_bytes {
        0 => DEFAULT_MESSAGE_BYTES,
        bytes => bytes as usize,
    }
}
