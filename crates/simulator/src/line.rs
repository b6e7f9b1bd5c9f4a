//! One connection to a server: its bytes, and the calls that go over it beside syncs.
//!
//! What the client's threads do around [`RemoteConnection`], one simulated turn after the other.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, Call, CallFailed, CallKind};
use tidewater_remote::RemoteConnection;
use tidewater_remote::session::{Now, SessionOutcome};

use crate::failure::SimulationFailure;

/// How long a client bears silence.
const SILENCE: Duration = Duration::from_secs(30);

/// Longer than anything that a server is asked for may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(240);

/// A connection, and how its bytes go.
pub(crate) struct ServerLine {
    pub(crate) connection: RemoteConnection,
    /// `None` if the server cannot be reached.
    stream: Option<(ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)>,
    /// On their way to the server.
    output: Bytes,
    /// Whether what it says last does not arrive.
    pub(crate) last_is_lost: bool,
    /// The server tells on it what has changed.
    pub(crate) is_live: bool,
    last_call: u64,
    /// What has come of calls, as far as it has come.
    answers: HashMap<u64, PendingAnswer>,
    /// What the server has said of its own accord.
    pub(crate) said: VecDeque<ServerMessage>,
}

/// The moment of so many ticks since then.
fn moment(began: Instant, ticks_ms: u64) -> Instant {
    // Longer than any simulation, and short enough to be a time.
    began + Duration::from_millis(ticks_ms.min(1 << 40))
}

/// An answer that comes in pieces, or something else that has come of a call.
#[derive(Default)]
struct PendingAnswer {
    first: Answer,
    rows: BytesMut,
    outcome: Option<CallEnd>,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) enum CallEnd {
    Answered(Answer),
    Failed(CallFailed),
    /// There is no connection any more.
    Lost,
}

/// What a server says of its own accord.
pub(crate) enum ServerMessage {
    Call {
        id: u64,
        call: Call,
    },
    /// Nobody waits for what was called.
    Cancel {
        id: u64,
    },
}

impl ServerLine {
    pub(crate) fn new(stream: Option<DuplexStream>, last_is_lost: bool, now: Now) -> ServerLine {
        ServerLine {
            connection: RemoteConnection::dial("simulator", SILENCE, now),
            stream: stream.map(tokio::io::split),
            output: Bytes::new(),
            last_is_lost,
            is_live: false,
            last_call: 0,
            answers: HashMap::new(),
            said: VecDeque::new(),
        }
    }

    /// Says what is left; whether it is lost, if there was anything.
    pub(crate) async fn hang_up(mut self) -> bool {
        let mut rest = self.output.to_vec();
        while let Some(bytes) = self.connection.poll_transmit() {
            rest.extend_from_slice(&bytes);
        }
        if !rest.is_empty() && self.last_is_lost {
            return true;
        }
        if let Some((_reader, mut writer)) = self.stream {
            // A courtesy: the server may have closed first.
            let farewell = async {
                let _ = writer.write_all(&rest).await;
                let _ = writer.shutdown().await;
            };
            let _ = timeout(Duration::from_secs(10), farewell).await;
        }
        false
    }

    /// Nothing more comes or goes.
    pub(crate) fn cut(&mut self) {
        self.stream = None;
    }

    /// Has ready what is to be sent next.
    pub(crate) fn fill(&mut self) {
        if self.output.is_empty()
            && let Some(bytes) = self.connection.poll_transmit()
        {
            self.output = bytes;
        }
    }

    /// Waits until bytes come or go, or it is time for something, at the latest then.
    ///
    /// # Errors
    /// The connection has ended, which it has not been told yet.
    pub(crate) async fn turn(
        &mut self,
        began: Instant,
        now: &dyn Fn() -> Now,
        until: Option<Instant>,
    ) -> Result<(), Option<io::Error>> {
        self.fill();
        let Some((reader, writer)) = &mut self.stream else {
            return Err(None);
        };
        let connection = &mut self.connection;
        let deadline = moment(began, connection.poll_timeout().unwrap_or(u64::MAX));
        let deadline = until.map_or(deadline, |until| until.min(deadline));
        let mut buffer = [0; 2_048];
        tokio::select! {
            biased;
            read = reader.read(&mut buffer) => match read {
                Ok(count) if count > 0 => connection.handle_bytes(&buffer[..count], now()),
                Ok(_) => return Err(None),
                Err(error) => return Err(Some(error)),
            },
            written = writer.write(&self.output), if !self.output.is_empty() => match written {
                Ok(count) => {
                    self.output.advance(count);
                    connection.handle_sent(now());
                }
                Err(error) => return Err(Some(error)),
            },
            () = sleep_until(deadline) => connection.handle_timeout(now()),
        }
        Ok(())
    }

    /// As [`ServerLine::turn`], where no sync is under way; then hears what was said.
    pub(crate) async fn wait(
        &mut self,
        began: Instant,
        now: &dyn Fn() -> Now,
        until: Option<Instant>,
    ) {
        if let Err(error) = self.turn(began, now, until).await {
            self.connection.handle_end(error);
        }
        self.listen();
    }

    /// Hears what was said on the channel of calls.
    pub(crate) fn listen(&mut self) {
        while self.connection.poll_event().is_some() {}
        while let Some(message) = self.connection.poll_call() {
            let Message {
                id, flags, payload, ..
            } = message;
            match CallKind::from_flags(flags) {
                Some(CallKind::Call | CallKind::OneWay) => {
                    if let Ok(call) = Call::decode(payload) {
                        self.said.push_back(ServerMessage::Call { id, call });
                    }
                }
                Some(CallKind::Cancel) => self.said.push_back(ServerMessage::Cancel { id }),
                Some(kind) => self.answers.entry(id).or_default().take(kind, payload),
                None => {}
            }
        }
    }

    /// Sends a message on the channel of calls.
    pub(crate) fn say(
        &mut self,
        id: u64,
        kind: CallKind,
        payload: Vec<u8>,
        within_ms: Option<u64>,
    ) {
        let within_ms = within_ms.map_or(0, |ms| u32::try_from(ms.max(1)).unwrap_or(u32::MAX));
        let said = self.connection.send_call(Message {
            id,
            deadline_ms: within_ms,
            flags: kind as u8,
            payload: payload.into(),
        });
        debug_assert!(said.is_ok(), "everything that is said here is short");
    }

    /// Calls, and waits for what comes of it.
    ///
    /// # Errors
    /// Nothing comes of it, though the server is there.
    pub(crate) async fn call(
        &mut self,
        began: Instant,
        now: &dyn Fn() -> Now,
        call: &Call,
        within_ms: Option<u64>,
    ) -> Result<CallEnd, SimulationFailure> {
        self.last_call += 1;
        let id = self.last_call;
        self.say(id, CallKind::Call, call.encode_to_vec(), within_ms);
        let end = Instant::now() + ANSWERED_WITHIN;
        while Instant::now() < end {
            let coming = self.answers.get_mut(&id);
            if let Some(outcome) = coming.and_then(|it| it.outcome.take()) {
                self.answers.remove(&id);
                return Ok(outcome);
            }
            if !self.connection.is_open() {
                return Ok(CallEnd::Lost);
            }
            self.wait(began, now, Some(end)).await;
        }
        let procedure = &call.procedure;
        Err(SimulationFailure(format!(
            "a call of {procedure} is never answered"
        )))
    }
}

impl PendingAnswer {
    fn take(&mut self, kind: CallKind, payload: Bytes) {
        if kind == CallKind::Failed {
            let failed = CallFailed::decode(payload).unwrap_or_default();
            self.outcome = Some(CallEnd::Failed(failed));
            return;
        }
        let answer = Answer::decode(payload).unwrap_or_default();
        if self.rows.is_empty() {
            self.first = answer.clone();
        }
        self.rows.extend_from_slice(&answer.rows);
        if kind != CallKind::Piece {
            let rows = std::mem::take(&mut self.rows).freeze();
            let first = std::mem::take(&mut self.first);
            self.outcome = Some(CallEnd::Answered(Answer { rows, ..first }));
        }
    }
}

/// How a session ended, in a line.
pub(crate) fn summary(outcome: &SessionOutcome) -> String {
    match outcome {
        SessionOutcome::Done(report) => format!("{report:?}"),
        SessionOutcome::More(report) => format!("more after {report:?}"),
        SessionOutcome::Again(proof) => format!("again with {proof:?}"),
        SessionOutcome::Failed(error) => format!("{} {error}", error.code().name()),
        other => format!("{other:?}"),
    }
}
