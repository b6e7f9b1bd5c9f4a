//! Calls of what is provided at another server.
//!
//! A server listens to a subject of a procedure, and of a user or a remote as its provider, as long
//! as one of its connections provides that. Who has no provider of his own asks under this subject;
//! NATS chooses one of the servers that listen, or says at once that there is none. Who may call,
//! and what takes effect once, is found out before, where the caller is; here servers trust each
//! other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{Client, Message, StatusCode};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use prost::Message as _;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use tidewater_protocol::Code;
use tidewater_protocol::message::{Call, CallFailed, CallKind};

use super::NatsClient;
use crate::call_address::{CallAddress, subject};
use crate::call_outcome::{CallResult, no_room};
use crate::outgoing_calls::{GatheredAnswer, ProviderGone};
use tidewater_server_jobs::memory::MemoryBudget;

/// Who hears nothing for so long waits in vain: the other server is gone, or NATS.
const SILENCE: Duration = Duration::from_secs(7);

/// So many calls that nobody waits for are remembered, in case they come only then.
const CANCELLED: usize = 256;

/// Kinds that only servers say to each other: the provider has gone over the call, and nobody was
/// there, so that nothing was begun.
pub(crate) const GONE: u8 = 0x80;
pub(crate) const NOBODY: u8 = 0x81;

/// Bytes before the payload: the kind, and a number: of a call, how many milliseconds are left; of a
/// piece of an answer, its place among them, so that none is missing.
const HEAD_BYTES: usize = 5;

/// What servers say about a call.
#[derive(Debug, PartialEq)]
pub(crate) enum Word {
    Of(CallKind, Bytes),
    ProviderGone,
    Nobody,
}

impl Word {
    fn pack(kind: u8, number: u32, payload: &[u8]) -> Bytes {
        let mut packed = BytesMut::with_capacity(HEAD_BYTES + payload.len());
        packed.put_u8(kind);
        packed.put_u32_le(number);
        packed.put_slice(payload);
        packed.freeze()
    }

    /// With its number. `None` if a later version said it, or somebody else.
    pub(crate) fn read(message: &Message) -> Option<(Word, u32)> {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Some((Word::Nobody, 0));
        }
        let (head, _) = message.payload.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, number @ ..] = *head;
        let word = match kind {
            GONE => Word::ProviderGone,
            NOBODY => Word::Nobody,
            kind => Word::Of(
                CallKind::from_flags(kind)?,
                message.payload.slice(HEAD_BYTES..),
            ),
        };
        Some((word, u32::from_le_bytes(number)))
    }
}

/// Calls that others do for this server, and those that it does for others.
#[derive(Debug)]
pub(crate) struct RemoteCalls {
    client: Client,
    /// Behind it, a call's number is where its answer goes.
    inbox: String,
    last_id: AtomicU64,
    asked: Mutex<HashMap<u64, UnboundedSender<(Word, u32)>>>,
    doing: Mutex<ServedCalls>,
}

/// What is done for others.
#[derive(Debug, Default)]
struct ServedCalls {
    /// Ends it, by reply subject.
    running: HashMap<String, oneshot::Sender<()>>,
    /// Nobody waits for these any longer, and they have not begun here: they are others', or come
    /// in a moment.
    cancelled: VecDeque<String>,
}

impl ServedCalls {
    /// Ends when nobody waits any longer; `None` if nobody does by now.
    fn begin(&mut self, reply: &str) -> Option<oneshot::Receiver<()>> {
        if self.cancelled.iter().any(|it| it == reply) {
            return None;
        }
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert(reply.to_owned(), cancel);
        Some(cancelled)
    }

    fn cancel(&mut self, reply: &str) {
        if self.running.remove(reply).is_none() {
            self.cancelled.push_back(reply.to_owned());
            if self.cancelled.len() > CANCELLED {
                self.cancelled.pop_front();
            }
        }
    }
}

impl RemoteCalls {
    pub(crate) fn new(client: Client) -> Arc<RemoteCalls> {
        Arc::new(RemoteCalls {
            inbox: client.new_inbox(),
            client,
            last_id: AtomicU64::new(0),
            asked: Mutex::default(),
            doing: Mutex::default(),
        })
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<u64, UnboundedSender<(Word, u32)>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doing(&self) -> MutexGuard<'_, ServedCalls> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands answers to those who wait for them.
    pub(crate) async fn listen(self: Arc<Self>) {
        let mut answers = match self.client.subscribe(format!("{}.*", self.inbox)).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(%error, "NATS takes no subscription");
                return;
            }
        };
        while let Some(message) = answers.next().await {
            let id = message.subject.as_str().rsplit('.').next();
            let asked = id.and_then(|it| self.asked().get(&it.parse().ok()?).cloned());
            if let (Some(asked), Some(word)) = (asked, Word::read(&message)) {
                // Whoever waited may have gone just now.
                let _ = asked.send(word);
            }
        }
    }

    /// Ends when what was said has left.
    pub(crate) async fn flush(&self) {
        if let Err(error) = self.client.flush().await {
            tracing::debug!(%error, "NATS does not take what is left");
        }
    }

    /// Begins to do a call: ends when nobody waits for it any longer; `None` if nobody does by now.
    pub(crate) fn begin(&self, reply: &str) -> Option<oneshot::Receiver<()>> {
        self.doing().begin(reply)
    }

    /// A call is done.
    pub(crate) fn finish(&self, reply: &str) {
        self.doing().running.remove(reply);
    }

    /// Somebody does not wait any longer.
    pub(crate) fn cancel(&self, reply: &[u8]) {
        if let Ok(reply) = std::str::from_utf8(reply) {
            self.doing().cancel(reply);
        }
    }

    /// Says something about a call that is done here.
    pub(crate) async fn say(&self, reply: &str, kind: u8, number: u32, payload: &[u8]) {
        let said = Word::pack(kind, number, payload);
        if let Err(error) = self.client.publish(reply.to_owned(), said).await {
            tracing::warn!(%error, "NATS does not take an answer");
        }
    }
}

/// A call that another server has.
struct RemoteCall<'n> {
    nats: &'n NatsClient,
    id: u64,
    reply: String,
    is_over: bool,
}

impl Drop for RemoteCall<'_> {
    fn drop(&mut self) {
        self.nats.far.asked().remove(&self.id);
        if !self.is_over {
            self.nats.cancel(std::mem::take(&mut self.reply));
        }
    }
}

impl NatsClient {
    /// Has a provider at another server do something; `None` if there is nobody, and nothing was
    /// begun. To drop the future is to cancel the call.
    pub async fn ask(
        &self,
        call: Call,
        to: &CallAddress,
        deadline: Instant,
        (budget, answer_bytes): (&MemoryBudget, usize),
    ) -> Result<Option<CallResult>, ProviderGone> {
        let far = &self.far;
        let id = far.last_id.fetch_add(1, Ordering::Relaxed);
        let (sender, mut words) = unbounded_channel();
        far.asked().insert(id, sender);
        let mut asked = RemoteCall {
            nats: self,
            id,
            reply: format!("{}.{id}", far.inbox),
            is_over: false,
        };
        let subject = subject(&call.procedure, to);
        let call = Call {
            to: to.to_string(),
            ..call
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let request = Word::pack(CallKind::Call as u8, left, &call.encode_to_vec());
        let publish = far
            .client
            .publish_with_reply(subject, asked.reply.clone(), request);
        if let Err(error) = publish.await {
            asked.is_over = true;
            let is_large = error.kind() == PublishErrorKind::MaxPayloadExceeded;
            return Ok(is_large.then(|| Err(too_large())));
        }
        let mut gathered = GatheredAnswer::of_at_most(answer_bytes);
        // What is gathered, until all of it is.
        let mut pieces = Vec::new();
        let mut place = 0;
        loop {
            let Ok(Some((word, number))) = timeout(SILENCE, words.recv()).await else {
                return Err(ProviderGone);
            };
            let ended = match word {
                Word::Of(CallKind::Accepted, _) => continue,
                Word::Of(kind, payload) if number == place => {
                    match budget.hold(payload.len()) {
                        Some(held) => pieces.push(held),
                        None => return Ok(Some(Err(no_room(false)))),
                    }
                    gathered.take(kind, payload)
                }
                Word::Of(..) | Word::ProviderGone => return Err(ProviderGone),
                Word::Nobody => {
                    asked.is_over = true;
                    return Ok(None);
                }
            };
            place += 1;
            match ended {
                Ok(None) => {}
                Ok(Some(outcome)) => {
                    asked.is_over = true;
                    drop(pieces);
                    return Ok(Some(outcome.and_then(|it| it.held_in(budget))));
                }
                Err(_) => return Err(ProviderGone),
            }
        }
    }
}

fn too_large() -> CallFailed {
    CallFailed::new(
        Code::LimitExceeded,
        "the call is larger than what NATS takes to the server where it would be done",
        "send less at once, or have the server's operator raise max_payload of NATS",
    )
}
