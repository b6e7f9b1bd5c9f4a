//! A connection to a server with its syncs, as a state machine: bytes and time in, bytes and
//! events out.
//!
//! Owns which sync is under way: one after the other, with one sign-in. Has no sockets, clocks,
//! threads or randomness of its own: a driver feeds it, be it blocking, async, in a browser, or
//! the simulator. Leaves sign-in, calls, events and pings to [`DeviceConnection`], and what a sync is
//! to [`crate::session`].
//!
//! A driver begins a sync with [`RemoteConnection::sync`] and loops: send what
//! [`RemoteConnection::poll_transmit`] gives, hand in what arrives with [`RemoteConnection::handle_bytes`],
//! have the work done that [`RemoteConnection::poll_work`] gives, until [`DriverEvent::SyncDone`]. Then
//! [`RemoteConnection::end_sync`] tells how it ended. Bytes may still wait to be sent.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidewater_connection::ChannelInput;
use tidewater_connection::device::{
    DeviceConnection, DeviceError, DeviceEvent, Now, SignInAnswer, SignInRequest, SyncActivity,
};
use tidewater_protocol::frame::{Message, ROWS_PAYLOAD_BYTES};
use tidewater_protocol::message::{Ack, Control, FailureNotice, Pong, SyncCancel};

use crate::database::RemoteDatabase;
use crate::session::{
    ApplyWork, OutgoingFrame, ProofKind, SessionOptions, SessionOutcome, SyncError, SyncProgress,
    SyncSession, UserProof,
};

/// What a driver may want to act on.
#[derive(Debug)]
#[non_exhaustive]
pub enum DriverEvent {
    /// The server has let the remote, or the program, in.
    SignedIn,
    /// The sync has ended, well or not: see [`RemoteConnection::end_sync`].
    SyncDone,
    /// The server has answered to a ping.
    Pong(Pong),
    /// The connection is of no more use; no sync was under way.
    Failed(DeviceError),
}

/// One connection.
pub struct RemoteConnection {
    device: DeviceConnection,
    session: Option<SyncSession>,
    /// Whether the driver has been told that the session has ended.
    told: bool,
    /// What comes up to the next SyncEnd belongs to a sync that the server has sent away.
    skips: bool,
    events: VecDeque<DriverEvent>,
}

impl RemoteConnection {
    /// A connection that was just opened. `client` is the program that syncs, for the server's
    /// logs; `silence`, how long the server may be silent.
    pub fn dial(client: &str, silence: Duration, now: Now) -> RemoteConnection {
        RemoteConnection {
            device: DeviceConnection::dial(client, silence, now),
            session: None,
            told: false,
            skips: false,
            events: VecDeque::new(),
        }
    }

    /// Whether a sync can begin.
    pub fn can_sync(&self) -> bool {
        !self.device.has_ended() && self.session.is_none()
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
        let Some((remote_id, centre)) = self.device.identity() else {
            let request = SignInRequest::for_device(account.credentials(), from, user_proof)?;
            session.begin(account)?;
            return Ok(self.device.sign_in(request)?);
        };
        if account.remote_id != Some(remote_id) {
            // Another sync of the file has made another remote of it.
            self.device.retire();
            session.end_for_retry(ProofKind::Token);
            return Ok(());
        }
        session.begin(account)?;
        session.let_in(centre)
    }

    /// Whether it is of no more use to anybody: nothing is begun on it any more, and no sync is
    /// under way.
    pub fn has_ended(&self) -> bool {
        self.device.has_ended() && !self.is_syncing()
    }

    /// Hands in bytes that arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Now) {
        if let Some(session) = &mut self.session {
            session.count(0, bytes.len());
        }
        self.note_activity();
        self.device.handle_bytes(bytes, now);
        self.receive();
    }

    /// The server closed the connection, or it broke.
    pub fn handle_end(&mut self, source: Option<std::io::Error>) {
        self.note_activity();
        self.device.handle_end(source);
        self.receive();
    }

    /// Time has passed; see [`RemoteConnection::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        self.note_activity();
        self.device.handle_timeout(now);
        self.receive();
    }

    /// Bytes are on their way: as long as the remote has something to say, the connection is
    /// alive.
    pub fn handle_sent(&mut self, now: Now) {
        self.note_activity();
        self.device.handle_sent(now);
    }

    /// When to call [`RemoteConnection::handle_timeout`], in ticks.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.device.poll_timeout()
    }

    /// The next bytes to send, whole frames. Ask again when they are on their way.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while out.len() < ROWS_PAYLOAD_BYTES {
            self.fill();
            let left = ROWS_PAYLOAD_BYTES - out.len();
            if !self.device.transmit_frames(&mut out, left) {
                break;
            }
        }
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

    /// The sync fails, and the connection is of no more use.
    fn fail(&mut self, error: SyncError) {
        if let Some(session) = self.session.as_mut().filter(|it| it.is_exchanging()) {
            session.fail(error);
        }
        self.device.retire();
        self.settle();
    }

    fn note_activity(&mut self) {
        let session = self.session.as_ref();
        self.device
            .set_sync_activity(session.map(|session| SyncActivity {
                during: session.during(),
                is_sending: session.is_sending(),
            }));
    }

    /// Takes what has come, as far as it is whole.
    fn receive(&mut self) {
        while let Some(event) = self.device.poll_event() {
            let taken = match event {
                DeviceEvent::SignedIn(answer) => self.handle_sign_in(&answer),
                DeviceEvent::SignInRefused { failure, next } => self.handle_refusal(failure, next),
                DeviceEvent::SyncInput(input) => self.handle_sync_input(input),
                DeviceEvent::Failed(error) => {
                    self.handle_failure(error);
                    Ok(())
                }
                DeviceEvent::ProgramSignedIn => {
                    self.events.push_back(DriverEvent::SignedIn);
                    Ok(())
                }
                DeviceEvent::Pong(pong) => {
                    self.events.push_back(DriverEvent::Pong(pong));
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(error) = taken {
                self.fail(error);
            }
            self.settle();
        }
    }

    fn handle_sign_in(&mut self, answer: &SignInAnswer) -> Result<(), SyncError> {
        if let Some(session) = &mut self.session {
            session.handle_sign_in(answer)?;
            self.events.push_back(DriverEvent::SignedIn);
        }
        Ok(())
    }

    fn handle_refusal(
        &mut self,
        failure: FailureNotice,
        next: Option<ProofKind>,
    ) -> Result<(), SyncError> {
        match (&mut self.session, next) {
            (Some(session), Some(next)) => session.retry_with_proof(next),
            (Some(session), None) => session.handle_control(Control::Failure(failure)),
            (None, _) => Ok(()),
        }
    }

    /// The connection has failed, and so has a sync that still needs it.
    fn handle_failure(&mut self, error: DeviceError) {
        match &mut self.session {
            Some(session) if session.is_exchanging() => session.fail(error.into()),
            Some(_) => {}
            None => self.events.push_back(DriverEvent::Failed(error)),
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
        while self.device.unsent_sync_bytes() < ROWS_PAYLOAD_BYTES {
            let room = self.device.sync_room();
            let session = self.session.as_mut();
            let sent = match session.and_then(|session| session.poll_output(room)) {
                None => break,
                Some(OutgoingFrame::Rows(rows)) => {
                    self.device.send_sync_rows(rows);
                    Ok(())
                }
                Some(OutgoingFrame::Control(control)) => self.device.send_sync_control(control),
            };
            if let Err(error) = sent {
                self.fail(error.into());
            }
        }
        self.settle();
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
                if self.device.identity().is_none() || session.starts_over() {
                    self.device.retire();
                }
                // What it has said to the sync ends with a SyncEnd.
                self.skips = true;
                None
            }
            Some(SessionOutcome::Failed(error)) => {
                self.device.retire();
                farewell(error).filter(|_| self.device.has_presented())
            }
        };
        self.told = true;
        self.events.push_back(DriverEvent::SyncDone);
        self.device.drop_unsent_sync();
        if let Some(last) = last {
            // A courtesy: where it cannot be said, the end of the connection says enough.
            let _ = self.device.send_sync_control(last);
        }
    }
}

/// What is the same without a sync: see [`DeviceConnection`].
impl RemoteConnection {
    /// Signs in a program without a file, which can do everything but sync.
    /// [`DriverEvent::SignedIn`] tells when it is in.
    ///
    /// # Errors
    /// What is said is too large.
    pub fn sign_in(&mut self, request: SignInRequest) -> Result<(), DeviceError> {
        self.device.sign_in(request)
    }

    /// See [`DeviceConnection::is_open`].
    pub fn is_open(&self) -> bool {
        self.device.is_open()
    }

    /// See [`DeviceConnection::message_bytes`].
    pub fn message_bytes(&self) -> usize {
        self.device.message_bytes()
    }

    /// See [`DeviceConnection::traffic`].
    pub fn traffic(&self) -> (u64, u64) {
        self.device.traffic()
    }

    /// See [`DeviceConnection::ping`].
    pub fn ping(&mut self, nonce: u64) {
        self.device.ping(nonce);
    }

    /// See [`DeviceConnection::send_call`].
    ///
    /// # Errors
    /// It is too large.
    pub fn send_call(&mut self, message: Message) -> Result<(), DeviceError> {
        self.device.send_call(message)
    }

    /// See [`DeviceConnection::poll_call`].
    pub fn poll_call(&mut self) -> Option<Message> {
        self.device.poll_call()
    }

    /// See [`DeviceConnection::poll_call_to_hold`].
    pub fn poll_call_to_hold(&mut self) -> Option<Message> {
        self.device.poll_call_to_hold()
    }

    /// See [`DeviceConnection::let_go`].
    pub fn let_go(&mut self, credit: usize) {
        self.device.let_go(credit);
    }

    /// See [`DeviceConnection::send_events`].
    pub fn send_events(&mut self, events: Bytes) {
        self.device.send_events(events);
    }

    /// See [`DeviceConnection::unsent_events`].
    pub fn unsent_events(&self) -> usize {
        self.device.unsent_events()
    }

    /// See [`DeviceConnection::poll_events`].
    pub fn poll_events(&mut self) -> Option<Bytes> {
        self.device.poll_events()
    }
}

/// What the server is told when a sync fails.
fn farewell(error: &SyncError) -> Option<Control> {
    match error {
        SyncError::Connection(DeviceError::Protocol { code, what }) => Some(Control::Failure(
            FailureNotice::new(*code, what.as_str(), String::new()),
        )),
        SyncError::Connection(DeviceError::Server { .. } | DeviceError::Busy { .. }) => None,
        _ => Some(Control::Cancel(SyncCancel {})),
    }
}

#[cfg(test)]
mod tests;
