//! What a server says of its own accord to the other side of a connection: calls, and their end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, Call, CallFailed, CallKind};

use tidewater_centre::Caller;

use crate::call_outcome::{self as outcome, CallResult, ProcedureAnswer};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::MemoryBudget;

/// All answers that come in pieces to one connection have at most so many bytes together, in largest
/// answers.
const MAX_GATHERED: usize = 4;

/// What a piece takes beside its bytes.
const PIECE_BYTES: usize = 128;

/// A piece of fewer bytes is copied: it would keep all that was read together with it.
const SHORT_BYTES: usize = 16 << 10;

/// So many calls one provider has at most at the same time.
const MAX_ASKED: usize = 1_000;

/// So many bytes wait to be sent to it at most, and one message more.
const MAX_OUT_BYTES: usize = 4 << 20;

/// The provider has gone; what it had may have been done or not.
#[derive(Debug, PartialEq, Eq)]
pub struct ProviderGone;

/// The box of one connection.
pub struct OutgoingCalls {
    who: Arc<Caller>,
    budget: MemoryBudget,
    /// The most bytes of an answer.
    answer_bytes: usize,
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Default)]
struct State {
    out: VecDeque<Message>,
    out_bytes: usize,
    /// In the order in which they were asked: when the connection goes, they hear of it in this.
    asked: BTreeMap<u64, OutgoingCall>,
    last_id: u64,
    /// What all pieces together take that came.
    gathered_bytes: usize,
    closed: bool,
    unattended: bool,
}

impl State {
    fn push(&mut self, message: Message) {
        self.out_bytes += message.credit();
        self.out.push_back(message);
    }

    fn remove(&mut self, id: u64) -> Option<OutgoingCall> {
        let asked = self.asked.remove(&id)?;
        self.gathered_bytes -= asked.takes;
        Some(asked)
    }

    /// Something came back; what came of the call, when it is over.
    fn gather(
        &mut self,
        id: u64,
        kind: CallKind,
        payload: Bytes,
        answer_bytes: usize,
    ) -> Result<Option<CallResult>, prost::DecodeError> {
        let Some(asked) = self.asked.get_mut(&id) else {
            return Ok(None);
        };
        if kind == CallKind::Piece {
            let takes = payload.len() + PIECE_BYTES;
            asked.takes += takes;
            self.gathered_bytes += takes;
            if self.gathered_bytes > answer_bytes.saturating_mul(MAX_GATHERED) {
                return Ok(Some(Err(outcome::too_large())));
            }
        }
        asked.gathered.take(kind, payload)
    }
}

/// A call that the other side has.
struct OutgoingCall {
    reply: oneshot::Sender<CallResult>,
    gathered: GatheredAnswer,
    /// What its pieces take.
    takes: usize,
}

/// An answer that comes in pieces.
pub struct GatheredAnswer {
    answered: ProcedureAnswer,
    bytes: usize,
    most: usize,
}

impl GatheredAnswer {
    /// One of at most so many bytes.
    pub fn of_at_most(most: usize) -> GatheredAnswer {
        GatheredAnswer {
            answered: ProcedureAnswer::default(),
            bytes: 0,
            most,
        }
    }

    /// One more of them; what came of the call, when it is the last one.
    pub fn take(
        &mut self,
        kind: CallKind,
        payload: Bytes,
    ) -> Result<Option<CallResult>, prost::DecodeError> {
        if kind == CallKind::Accepted {
            return Ok(None);
        }
        if kind == CallKind::Failed {
            return CallFailed::decode(payload).map(|failed| Some(Err(failed)));
        }
        let answer = Answer::decode(payload)?;
        self.bytes += answer.rows.len();
        if self.bytes > self.most {
            return Ok(Some(Err(outcome::too_large())));
        }
        self.answered.add(answer);
        let is_last = kind == CallKind::Answer;
        Ok(is_last.then(|| Ok(std::mem::take(&mut self.answered))))
    }
}

impl OutgoingCalls {
    /// The calls to one connection. Answers have at most so many bytes.
    pub fn new(who: Arc<Caller>, budget: &MemoryBudget, answer_bytes: usize) -> Arc<OutgoingCalls> {
        Arc::new(OutgoingCalls {
            who,
            budget: budget.clone(),
            answer_bytes,
            state: Mutex::default(),
            ready: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is on the other side.
    pub fn who(&self) -> &Arc<Caller> {
        &self.who
    }

    /// How many calls it has; `None` if it takes no more.
    pub fn asked(&self) -> Option<usize> {
        let state = self.state();
        let takes_more = state.asked.len() < MAX_ASKED && state.out_bytes < MAX_OUT_BYTES;
        takes_more.then_some(state.asked.len())
    }

    /// Whether somebody is there to take a call at once. Who asks for calls, instead of being
    /// connected, may never come back.
    pub fn is_attended(&self) -> bool {
        !self.state().unattended
    }

    /// Tells that.
    pub fn attend(&self, attended: bool) {
        self.state().unattended = !attended;
    }

    /// Has the other side do something. To drop the future is to cancel the call.
    pub async fn ask(&self, call: &Call, deadline: Instant) -> Result<CallResult, ProviderGone> {
        let (reply, answer) = oneshot::channel();
        let id = {
            let mut state = self.state();
            if state.closed {
                return Err(ProviderGone);
            }
            state.last_id += 1;
            let id = state.last_id;
            let asked = OutgoingCall {
                reply,
                gathered: GatheredAnswer::of_at_most(self.answer_bytes),
                takes: 0,
            };
            state.asked.insert(id, asked);
            state.push(message(id, CallKind::Call, call, Some(deadline)));
            id
        };
        self.ready.notify_one();
        let _cancel = CancelOnDrop { post: self, id };
        answer.await.map_err(|_| ProviderGone)
    }

    /// Whether the other side has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.state().asked.is_empty()
    }

    /// Tells the other side something, and does not wait for what comes of it.
    pub fn tell(&self, call: &Call) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.push(message(id, CallKind::OneWay, call, None));
        drop(state);
        self.ready.notify_one();
    }

    /// The next message to the other side, if there is one.
    pub fn next(&self) -> Option<Message> {
        let mut state = self.state();
        let next = state.out.pop_front();
        state.out_bytes -= next.as_ref().map_or(0, Message::credit);
        if state.out.is_empty() {
            state.out = VecDeque::new();
        } else {
            // Others may wait for the rest.
            self.ready.notify_one();
        }
        next
    }

    /// Ends when there may be something to say. Safe to drop.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Something came back from the other side. What nobody waits for any more is dropped.
    pub fn answered(&self, id: u64, kind: CallKind, payload: Bytes) -> Result<(), Fault> {
        let ended = self.state().gather(id, kind, payload, self.answer_bytes);
        match ended {
            Ok(Some(outcome)) => self.end(id, outcome),
            Ok(None) => {}
            Err(_) => return Err(Fault::malformed("an answer that cannot be read")),
        }
        Ok(())
    }

    /// Whether the other side has this call.
    pub fn has(&self, id: u64) -> bool {
        self.state().asked.contains_key(&id)
    }

    /// A call of the other side has come to this.
    pub fn end(&self, id: u64, outcome: CallResult) {
        let asked = self.state().remove(id);
        if let Some(asked) = asked {
            // It waits until the caller, who may be slow, takes it.
            let outcome = outcome.and_then(|it| it.held_in(&self.budget));
            // The caller may have gone meanwhile.
            let _ = asked.reply.send(outcome);
            self.ready.notify_one();
        }
    }

    fn cancel(&self, id: u64) {
        let mut state = self.state();
        if state.remove(id).is_some() && !state.closed {
            // What has not left yet needs no second word.
            let waits = state.out.iter().position(|it| it.id == id);
            match waits.and_then(|place| state.out.remove(place)) {
                Some(message) => state.out_bytes -= message.credit(),
                None => state.push(Message {
                    id,
                    deadline_ms: 0,
                    flags: CallKind::Cancel as u8,
                    payload: Bytes::new(),
                }),
            }
            drop(state);
            self.ready.notify_one();
        }
    }

    /// The connection is gone, and with it whatever the other side had to do.
    pub fn close(&self) {
        let mut state = self.state();
        *state = State {
            closed: true,
            ..State::default()
        };
    }
}

impl ProcedureAnswer {
    fn add(&mut self, answer: Answer) {
        if self.returns.is_none() {
            *self = ProcedureAnswer {
                rows: Vec::new(),
                ..ProcedureAnswer::from(Answer {
                    rows: Bytes::new(),
                    ..answer.clone()
                })
            };
        }
        if !answer.rows.is_empty() {
            self.rows.push(match answer.rows.len() < SHORT_BYTES {
                true => Bytes::copy_from_slice(&answer.rows),
                false => answer.rows,
            });
        }
    }

    /// Reserves the memory that it is in.
    pub fn held_in(self, budget: &MemoryBudget) -> CallResult {
        let bytes = self.rows.iter().map(Bytes::len).sum();
        match budget.hold(bytes) {
            Some(held) => Ok(ProcedureAnswer { held, ..self }),
            None => Err(outcome::no_room(false)),
        }
    }
}

struct CancelOnDrop<'p> {
    post: &'p OutgoingCalls,
    id: u64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.post.cancel(self.id);
    }
}

fn message(id: u64, kind: CallKind, call: &Call, deadline: Option<Instant>) -> Message {
    let left = deadline.map(|it| it.saturating_duration_since(Instant::now()).as_millis());
    Message {
        id,
        // Nothing is left is not the same as no deadline.
        deadline_ms: left.map_or(0, |it| u32::try_from(it).unwrap_or(u32::MAX).max(1)),
        flags: kind as u8,
        payload: Bytes::from(call.encode_to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::Code;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// A provider that has so many calls.
    async fn asked(
        budget: &MemoryBudget,
        calls: u64,
    ) -> (Arc<OutgoingCalls>, Vec<JoinHandle<CallResult>>) {
        let who = Caller {
            user: "bob".into(),
            remote_id: None,
        };
        let post = OutgoingCalls::new(Arc::new(who), budget, 16 << 20);
        let waiting = (1..=calls).map(|id| {
            let asked = post.clone();
            let waiting = tokio::spawn(async move {
                let deadline = Instant::now() + std::time::Duration::from_secs(3_600);
                asked.ask(&Call::default(), deadline).await.unwrap()
            });
            (id, waiting)
        });
        let mut all = Vec::new();
        for (id, waiting) in waiting {
            while !post.has(id) {
                yield_now().await;
            }
            all.push(waiting);
        }
        (post, all)
    }

    fn answer(bytes: usize) -> Bytes {
        let answer = Answer {
            returns: 1,
            columns: Vec::new(),
            rows: vec![7; bytes].into(),
        };
        answer.encode_to_vec().into()
    }

    #[tokio::test]
    async fn pieces_without_an_end_are_bounded_over_all_calls() {
        let (post, mut waiting) = asked(&MemoryBudget::new(1 << 30), 20).await;
        let piece = answer(4 << 20);
        for id in 1..=15 {
            post.answered(id, CallKind::Piece, piece.clone()).unwrap();
        }
        assert_eq!((1..=15).filter(|id| post.has(*id)).count(), 15);
        post.answered(16, CallKind::Piece, piece.clone()).unwrap();
        let failed = waiting.remove(15).await.unwrap().unwrap_err();
        assert_eq!(failed.code(), Some(Code::AnswerTooLarge));
        // What is over makes room.
        post.answered(1, CallKind::Answer, answer(1)).unwrap();
        post.answered(17, CallKind::Piece, piece).unwrap();
        assert!(!post.has(1) && post.has(17));
        for id in 1..=20 {
            post.cancel(id);
        }
        assert_eq!(post.state().gathered_bytes, 0);
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_its_caller_has_its_memory_reserved() {
        let budget = MemoryBudget::new(100_000);
        let (post, mut waiting) = asked(&budget, 3).await;
        for id in 1..=3 {
            let bytes = if id == 3 { 100 } else { 60_000 };
            post.answered(id, CallKind::Answer, answer(bytes)).unwrap();
        }
        assert_eq!(budget.free(), 40_000);
        let small = waiting.pop().unwrap().await.unwrap();
        assert!(small.is_ok());
        let second = waiting.pop().unwrap().await.unwrap().unwrap_err();
        assert_eq!(second.code(), Some(Code::OutcomeUnknown));
        drop(waiting.pop().unwrap().await.unwrap().unwrap());
        assert_eq!(budget.free(), 100_000);
    }
}
