//! What a server says of its own accord to the other side of a connection: calls, and their end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, Call, CallFailed, CallKind};

use super::{Answered, Caller, Outcome};
use crate::fault::Fault;

/// An answer that is put together of pieces has at most so many bytes.
pub(crate) const MAX_ANSWER_BYTES: usize = 16 << 20;

/// So many calls one provider has at most at the same time.
const MAX_ASKED: usize = 1_000;

/// So many bytes wait to be sent to it at most, and one message more.
const MAX_OUT_BYTES: usize = 4 << 20;

/// The provider has gone; what it had may have been done or not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// The box of one connection.
pub(crate) struct Post {
    who: Arc<Caller>,
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Default)]
struct State {
    out: VecDeque<Message>,
    out_bytes: usize,
    /// In the order in which they were asked: when the connection goes, they hear of it in this.
    asked: BTreeMap<u64, Asked>,
    last_id: u64,
    closed: bool,
    unattended: bool,
}

impl State {
    fn push(&mut self, message: Message) {
        self.out_bytes += message.credit();
        self.out.push_back(message);
    }
}

/// A call that the other side has.
struct Asked {
    reply: oneshot::Sender<Outcome>,
    gathered: Gathered,
}

/// An answer that comes in pieces.
#[derive(Default)]
pub(crate) struct Gathered {
    answered: Answered,
    bytes: usize,
}

impl Gathered {
    /// One more of them; what came of the call, when it is the last one.
    pub(crate) fn take(
        &mut self,
        kind: CallKind,
        payload: Bytes,
    ) -> Result<Option<Outcome>, prost::DecodeError> {
        if kind == CallKind::Accepted {
            return Ok(None);
        }
        if kind == CallKind::Failed {
            return CallFailed::decode(payload).map(|failed| Some(Err(failed)));
        }
        let answer = Answer::decode(payload)?;
        self.bytes += answer.rows.len();
        if self.bytes > MAX_ANSWER_BYTES {
            return Ok(Some(Err(super::built_in::too_large())));
        }
        self.answered.add(answer);
        let is_last = kind == CallKind::Answer;
        Ok(is_last.then(|| Ok(std::mem::take(&mut self.answered))))
    }
}

impl Post {
    pub(crate) fn new(who: Arc<Caller>) -> Arc<Post> {
        Arc::new(Post {
            who,
            state: Mutex::default(),
            ready: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is on the other side.
    pub(crate) fn who(&self) -> &Arc<Caller> {
        &self.who
    }

    /// How many calls it has; `None` if it takes no more.
    pub(crate) fn asked(&self) -> Option<usize> {
        let state = self.state();
        let takes_more = state.asked.len() < MAX_ASKED && state.out_bytes < MAX_OUT_BYTES;
        takes_more.then_some(state.asked.len())
    }

    /// Whether somebody is there to take a call at once. Who asks for calls, instead of being
    /// connected, may never come back.
    pub(crate) fn is_attended(&self) -> bool {
        !self.state().unattended
    }

    /// Tells that.
    pub(crate) fn attend(&self, attended: bool) {
        self.state().unattended = !attended;
    }

    /// Has the other side do something. To drop the future is to cancel the call.
    pub(crate) async fn ask(&self, call: &Call, deadline: Instant) -> Result<Outcome, Gone> {
        let (reply, answer) = oneshot::channel();
        let id = {
            let mut state = self.state();
            if state.closed {
                return Err(Gone);
            }
            state.last_id += 1;
            let id = state.last_id;
            let asked = Asked {
                reply,
                gathered: Gathered::default(),
            };
            state.asked.insert(id, asked);
            state.push(message(id, CallKind::Call, call, Some(deadline)));
            id
        };
        self.ready.notify_one();
        let _cancel = CancelOnDrop { post: self, id };
        answer.await.map_err(|_| Gone)
    }

    /// Whether the other side has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().asked.is_empty()
    }

    /// Tells the other side something, and does not wait for what comes of it.
    pub(crate) fn tell(&self, call: &Call) {
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
    pub(crate) fn next(&self) -> Option<Message> {
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
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Something came back from the other side. What nobody waits for any more is dropped.
    pub(crate) fn answered(&self, id: u64, kind: CallKind, payload: Bytes) -> Result<(), Fault> {
        let ended = match self.state().asked.get_mut(&id) {
            Some(asked) => asked.gathered.take(kind, payload),
            None => return Ok(()),
        };
        match ended {
            Ok(Some(outcome)) => self.end(id, outcome),
            Ok(None) => {}
            Err(_) => return Err(Fault::malformed("an answer that cannot be read")),
        }
        Ok(())
    }

    /// Whether the other side has this call.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.state().asked.contains_key(&id)
    }

    /// A call of the other side has come to this.
    pub(crate) fn end(&self, id: u64, outcome: Outcome) {
        let asked = self.state().asked.remove(&id);
        if let Some(asked) = asked {
            // The caller may have gone meanwhile.
            let _ = asked.reply.send(outcome);
            self.ready.notify_one();
        }
    }

    fn cancel(&self, id: u64) {
        let mut state = self.state();
        if state.asked.remove(&id).is_some() && !state.closed {
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
    pub(crate) fn close(&self) {
        let mut state = self.state();
        *state = State {
            closed: true,
            ..State::default()
        };
    }
}

impl Answered {
    fn add(&mut self, answer: Answer) {
        if self.returns.is_none() {
            *self = Answered {
                rows: Vec::new(),
                ..Answered::from(Answer {
                    rows: Bytes::new(),
                    ..answer.clone()
                })
            };
        }
        if !answer.rows.is_empty() {
            self.rows.push(answer.rows);
        }
    }
}

struct CancelOnDrop<'p> {
    post: &'p Post,
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
