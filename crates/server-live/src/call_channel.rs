//! The channel of calls of one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use prost::Message as _;
use tokio::time::timeout;

use tidewater_connection::ChannelInput;
use tidewater_protocol::Code;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Call, CallFailed, CallKind};

use crate::built_in;
use crate::call_outcome::{self as outcome, CallResult, ProcedureAnswer};
use crate::calls::{self, AnswerPart, AnswerStart, AnswerStream, Calls};
use crate::event_requests::EventRequests;
use crate::outgoing_calls::OutgoingCalls;
use crate::socket_loop::ConnectionChannel;
use crate::spaces::SpaceMember;
use crate::wake::Wakes;
use tidewater_server_config::BUILT_IN_PREFIX;
use tidewater_server_identity::registry::Registration;
use tidewater_server_jobs::admission::Shutdown;
use tidewater_server_jobs::environment::{Randomness, random};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{HeldMemory, MemoryBudget};
use tidewater_server_jobs::metrics::Metrics;

/// So many calls of one connection are under way at most; the others wait in the network.
const MAX_RUNNING: usize = 1_024;

/// What a call of the server's own is given that says nothing else.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many live remotes leave when the server shuts down: one after the other on average, and all
/// within so long.
const LEAVE_EACH: Duration = Duration::from_millis(2);
const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// A call under way: its id, and what came of it unless it was cancelled.
type RunningCall = BoxFuture<'static, (u64, Result<CallEnd, Aborted>)>;

/// What came of it, or begins to come.
type CallEnd = Result<AnswerStart, CallFailed>;

/// What comes next of an answer that goes on, unless its call was cancelled.
type Reading = BoxFuture<'static, Option<(u64, Box<AnswerStream>, Result<AnswerPart, CallFailed>)>>;

/// What the channel of calls needs of the server.
pub struct CallChannelServices {
    /// The procedures.
    pub calls: Arc<Calls>,
    /// What is asked of spaces.
    pub events: EventRequests,
    /// Who is told to sync.
    pub wakes: Arc<Wakes>,
    /// Memory for arguments.
    pub budget: MemoryBudget,
    /// Where calls are counted.
    pub metrics: Arc<Metrics>,
    /// Whether the server shuts down.
    pub shutdown: Shutdown,
    /// Where live remotes go then.
    pub others: Vec<String>,
    /// By chance, when.
    pub randomness: Arc<dyn Randomness>,
}

impl CallChannelServices {
    /// When one of the live remotes comes to another server that all go to: spread by chance, the
    /// longer, the more there are.
    fn leave_after(&self) -> Duration {
        let (live, _) = self.wakes.figures();
        let most = LEAVE_EACH * u32::try_from(live).unwrap_or(u32::MAX);
        let chance = random(&*self.randomness).unwrap_or([128; 2]);
        let chance = f64::from(u16::from_le_bytes(chance)) / f64::from(u16::MAX);
        most.min(LEAVE_WITHIN).mul_f64(chance)
    }
}

/// The channel of one connection.
pub struct CallChannel<'a> {
    services: &'a CallChannelServices,
    channel: ConnectionChannel<'a>,
    post: &'a Arc<OutgoingCalls>,
    member: &'a Arc<SpaceMember>,
    stay: &'a Registration<'a>,
    running: FuturesUnordered<RunningCall>,
    /// Answers that go on.
    streams: FuturesUnordered<Reading>,
    cancels: HashMap<u64, AbortHandle>,
    draining: bool,
    /// The memory of answers that have not left yet.
    unsent: Vec<HeldMemory>,
    /// Something was said that has not left yet.
    owes: bool,
}

impl<'a> CallChannel<'a> {
    /// Begins to serve a connection.
    pub fn open(
        services: &'a CallChannelServices,
        channel: ConnectionChannel<'a>,
        post: &'a Arc<OutgoingCalls>,
        member: &'a Arc<SpaceMember>,
        stay: &'a Registration<'a>,
    ) -> CallChannel<'a> {
        services.wakes.arrive(post.who());
        CallChannel {
            services,
            channel,
            post,
            member,
            stay,
            running: FuturesUnordered::new(),
            streams: FuturesUnordered::new(),
            cancels: HashMap::new(),
            draining: false,
            unsent: Vec::new(),
            owes: false,
        }
    }

    /// Serves the channel until the server shuts down and both sides have answered everything.
    ///
    /// # Errors
    /// The other side broke the protocol, or is gone.
    pub async fn run(mut self) -> Result<(), Fault> {
        let (channel, post, services) = (self.channel, self.post, self.services);
        while !(self.draining && self.is_idle() && post.is_idle()) {
            let mut is_full = channel.is_full();
            while !is_full && let Some(message) = post.next() {
                channel.send_message(message)?;
                self.owes = true;
                is_full = channel.is_full();
            }
            if !is_full {
                self.unsent.clear();
            }
            let under_way = self.running.len() + self.streams.len();
            let takes_more = !is_full && under_way < MAX_RUNNING;
            let next = match takes_more {
                true => channel.try_incoming(),
                false => None,
            };
            if let Some(incoming) = next {
                self.take(incoming?)?;
                continue;
            }
            // What is answered leaves together; what others produce is theirs to send.
            if is_full || std::mem::take(&mut self.owes) {
                channel.flush();
            }
            tokio::select! {
                biased;
                incoming = channel.incoming_without_flush(), if takes_more => {
                    self.take(incoming?)?;
                }
                Some((id, outcome)) = self.running.next(), if !is_full && !self.running.is_empty() => {
                    self.cancels.remove(&id);
                    match outcome {
                        Ok(Ok(AnswerStart::Rows(stream))) => self.read_on(id, stream),
                        Ok(Ok(AnswerStart::Whole(answered))) => self.answer(id, Ok(answered))?,
                        Ok(Err(failed)) => self.answer(id, Err(failed))?,
                        Err(Aborted) => {}
                    }
                }
                Some(read) = self.streams.next(), if !is_full && !self.streams.is_empty() => {
                    if let Some((id, stream, next)) = read {
                        self.pass_on(id, stream, next)?;
                    }
                }
                () = post.ready(), if !is_full => {}
                () = channel.progress(), if is_full => {}
                () = services.shutdown.draining(), if !self.draining => {
                    self.draining = true;
                    if services.wakes.is_live(self.stay.number()) {
                        let call = built_in::leaving(&services.others, services.leave_after());
                        post.tell(&call);
                    }
                }
            }
        }
        channel.flush();
        Ok(())
    }

    fn take(&mut self, incoming: ChannelInput) -> Result<(), Fault> {
        let credit = incoming.credit();
        let ChannelInput::Message(message) = incoming else {
            return Err(Fault::unexpected("something else than a call"));
        };
        self.channel.consumed(credit);
        self.stay.keep();
        let Message {
            id,
            deadline_ms,
            flags,
            payload,
        } = message;
        let kind = CallKind::from_flags(flags);
        match kind.ok_or_else(|| Fault::malformed("a call of an unknown kind"))? {
            kind @ (CallKind::Call | CallKind::OneWay) => {
                if self.cancels.contains_key(&id) {
                    return Err(Fault::malformed("two calls under one id"));
                }
                let bytes = payload.len();
                let call = Call::decode(payload);
                let call = call.map_err(|_| Fault::malformed("a call that cannot be read"))?;
                let deadline = (deadline_ms > 0).then(|| Duration::from_millis(deadline_ms.into()));
                self.begin(id, kind, (call, bytes), deadline)
            }
            CallKind::Cancel => {
                if let Some(cancel) = self.cancels.remove(&id) {
                    cancel.abort();
                }
                Ok(())
            }
            kind => self.post.answered(id, kind, payload),
        }
    }

    fn begin(
        &mut self,
        id: u64,
        kind: CallKind,
        (call, bytes): (Call, usize),
        deadline: Option<Duration>,
    ) -> Result<(), Fault> {
        if self.draining {
            return self.answer(id, Err(shutting_down()));
        }
        let held = match calls::hold(&self.services.budget, bytes) {
            Ok(held) => held,
            Err(busy) => return self.answer(id, Err(busy)),
        };
        if built_in::waits(&call) {
            let (events, member) = (self.services.events.clone(), self.member.clone());
            let caller = self.post.who().clone();
            let run = async move {
                let _held = held;
                let run = built_in::run_waiting(&events, &member, &caller, &call);
                let run = timeout(deadline.unwrap_or(PATIENCE), run);
                let answer = run.await.unwrap_or_else(|_| Err(too_late()));
                answer.map(|it| AnswerStart::Whole(it.into()))
            };
            return self.go(id, kind, run);
        }
        if call.procedure.starts_with(BUILT_IN_PREFIX) {
            let of = (&*self.services.calls, &*self.services.wakes);
            let answer = built_in::run(of, self.post, self.stay, self.member, &call);
            return match (kind, answer) {
                (CallKind::OneWay, Ok(_)) => self.say(id, CallKind::Accepted, Bytes::new()),
                (_, answer) => self.answer(id, answer.map(ProcedureAnswer::from)),
            };
        }
        let prepared = self.services.calls.prepare(self.post.who(), call, deadline);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failed) => return self.answer(id, Err(failed)),
        };
        let calls = self.services.calls.clone();
        let outlives_us = kind == CallKind::Call && prepared.outlives_its_caller();
        let streams = kind == CallKind::Call && !outlives_us;
        let run = async move {
            let _held = held;
            match streams {
                true => prepared.run_streaming(&calls).await,
                false => prepared.run(&calls).await.map(AnswerStart::Whole),
            }
        };
        if outlives_us {
            let goes_on = match self.services.calls.unawaited.enter(&self.post.who().user) {
                Ok(goes_on) => goes_on,
                Err(busy) => return self.answer(id, Err(busy)),
            };
            let run = tokio::spawn(async move {
                let _goes_on = goes_on;
                run.await
            });
            self.running.push(Box::pin(async move {
                let ended = run.await;
                (
                    id,
                    Ok(ended.unwrap_or_else(|_| Err(outcome::internal("a call panicked")))),
                )
            }));
            return Ok(());
        }
        self.go(id, kind, run)
    }

    /// Has a call done beside the others.
    fn go(
        &mut self,
        id: u64,
        kind: CallKind,
        run: impl Future<Output = CallEnd> + Send + 'static,
    ) -> Result<(), Fault> {
        if kind == CallKind::OneWay {
            let goes_on = match self.services.calls.unawaited.enter(&self.post.who().user) {
                Ok(goes_on) => goes_on,
                Err(busy) => return self.answer(id, Err(busy)),
            };
            tokio::spawn(async move {
                let _goes_on = goes_on;
                if let Err(error) = run.await {
                    tracing::debug!(%error, "what nobody waits for came to nothing");
                }
            });
            return self.say(id, CallKind::Accepted, Bytes::new());
        }
        let (run, cancel) = abortable(run);
        self.cancels.insert(id, cancel);
        self.running.push(Box::pin(async move { (id, run.await) }));
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.streams.is_empty()
    }

    /// Waits for what comes next of an answer.
    fn read_on(&mut self, id: u64, mut stream: Box<AnswerStream>) {
        let (read, cancel) = abortable(async move {
            let next = stream.next().await;
            (id, stream, next)
        });
        self.cancels.insert(id, cancel);
        self.streams.push(Box::pin(async move { read.await.ok() }));
    }

    /// Passes on what came next of an answer.
    fn pass_on(
        &mut self,
        id: u64,
        mut stream: Box<AnswerStream>,
        next: Result<AnswerPart, CallFailed>,
    ) -> Result<(), Fault> {
        match next {
            Ok(AnswerPart::Rows(rows)) => {
                let (returns, columns) = (stream.returns, &mut stream.columns);
                outcome::put_in_pieces(returns, columns, rows, |piece| {
                    self.say(id, CallKind::Piece, piece)
                })?;
                self.read_on(id, stream);
                Ok(())
            }
            Ok(AnswerPart::Last(answered)) => {
                self.cancels.remove(&id);
                self.answer(id, Ok(answered))
            }
            Err(failed) => {
                self.cancels.remove(&id);
                self.answer(id, Err(failed))
            }
        }
    }

    fn answer(&mut self, id: u64, outcome: CallResult) -> Result<(), Fault> {
        let failed = outcome.as_ref().err().map(CallFailed::code);
        self.services.metrics.call(failed);
        if let Ok(answered) = &outcome {
            self.unsent.push(answered.held.clone());
        }
        for (kind, piece) in outcome::in_pieces(outcome) {
            self.say(id, kind, piece)?;
        }
        Ok(())
    }

    fn say(&mut self, id: u64, kind: CallKind, payload: Bytes) -> Result<(), Fault> {
        self.owes = true;
        self.channel.send_message(Message {
            id,
            deadline_ms: 0,
            flags: kind as u8,
            payload,
        })
    }
}

/// A connection that has gone provides nothing any more, and what it was asked is answered.
impl Drop for CallChannel<'_> {
    fn drop(&mut self) {
        self.services.calls.gone(self.post);
        self.services
            .wakes
            .leave(self.stay.number(), self.post.who());
    }
}

fn too_late() -> CallFailed {
    CallFailed::new(
        Code::DeadlineExceeded,
        "the consolidated database took longer than the call was given",
        "give it more time; with a key, it can be called again without being done twice",
    )
}

fn shutting_down() -> CallFailed {
    let fault = Fault::shutting_down();
    CallFailed {
        retry_after_ms: fault.retry_after_ms,
        ..CallFailed::new(Code::ShuttingDown, fault.message, "call again later")
    }
}
