//! Calls of what is provided at another server.
//!
//! A server listens to a subject of a procedure, and of a user or a remote as its provider, as long
//! as one of its connections provides that. Who has no provider of his own asks under this subject;
//! NATS chooses one of the servers that listen, or says at once that there is none. Who may call,
//! and what takes effect once, is found out before, where the caller is; here servers trust each
//! other.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{Client, Message, StatusCode, Subscriber};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use prost::Message as _;
use tokio::sync::mpsc::{UnboundedSender, WeakSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use tidewater_protocol::Code;
use tidewater_protocol::message::{Call, CallFailed, CallKind};

use super::Nats;
use crate::calls::post::{Gathered, Gone};
use crate::calls::{Address, Caller, Outcome, in_pieces, no_room};
use crate::memory::MemoryBudget;
use crate::server::Shared;

/// What subjects of calls begin with.
const PREFIX: &str = "_tidewater.call";

/// Servers that listen to the same subject take turns.
pub(super) const GROUP: &str = "tidewater";

/// Nobody waits for an answer any longer: its reply subject.
pub(super) const CANCEL: &str = "_tidewater.cancel";

/// How often whoever waits hears that his call is under way.
const BEAT: Duration = Duration::from_secs(2);

/// Who hears nothing for so long waits in vain: the other server is gone, or NATS.
const SILENCE: Duration = Duration::from_secs(7);

/// So many calls that nobody waits for are remembered, in case they come only then.
const CANCELLED: usize = 256;

/// Kinds that only servers say to each other: the provider has gone over the call, and nobody was
/// there, so that nothing was begun.
const GONE: u8 = 0x80;
const NOBODY: u8 = 0x81;

/// Bytes before the payload: the kind, and a number: of a call, how many milliseconds are left; of a
/// piece of an answer, its place among them, so that none is missing.
const HEAD_BYTES: usize = 5;

/// The subject of those who provide a procedure and are meant.
pub(crate) fn subject(procedure: &str, to: &Address) -> String {
    // A dot would begin another part of the subject.
    let name = procedure.replace('.', "~");
    match to {
        Address::Anybody => format!("{PREFIX}.{name}"),
        Address::User(user) => format!("{PREFIX}.{name}.user.{}", URL_SAFE_NO_PAD.encode(user)),
        Address::Remote(id) => format!("{PREFIX}.{name}.remote.{id}"),
    }
}

/// All subjects under which somebody who provides a procedure can be meant.
pub(crate) fn subjects(procedure: &str, who: &Caller) -> Vec<String> {
    let user = Address::User(who.user.clone());
    let remote = who.remote_id.map(Address::Remote);
    let addresses = [Address::Anybody, user].into_iter().chain(remote);
    addresses.map(|to| subject(procedure, &to)).collect()
}

/// What servers say about a call.
#[derive(Debug, PartialEq)]
enum Word {
    Of(CallKind, Bytes),
    Gone,
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
    fn read(message: &Message) -> Option<(Word, u32)> {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Some((Word::Nobody, 0));
        }
        let (head, _) = message.payload.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, number @ ..] = *head;
        let word = match kind {
            GONE => Word::Gone,
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
pub(super) struct Far {
    client: Client,
    /// Behind it, a call's number is where its answer goes.
    inbox: String,
    last_id: AtomicU64,
    asked: Mutex<HashMap<u64, UnboundedSender<(Word, u32)>>>,
    doing: Mutex<Doing>,
}

/// What is done for others.
#[derive(Debug, Default)]
struct Doing {
    /// Ends it, by reply subject.
    running: HashMap<String, oneshot::Sender<()>>,
    /// Nobody waits for these any longer, and they have not begun here: they are others', or come
    /// in a moment.
    cancelled: VecDeque<String>,
}

impl Doing {
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

impl Far {
    pub(super) fn new(client: Client) -> Arc<Far> {
        Arc::new(Far {
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

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands answers to those who wait for them.
    pub(super) async fn listen(self: Arc<Self>) {
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
    pub(super) async fn flush(&self) {
        if let Err(error) = self.client.flush().await {
            tracing::debug!(%error, "NATS does not take what is left");
        }
    }

    /// Somebody does not wait any longer.
    pub(super) fn cancel(&self, reply: &[u8]) {
        if let Ok(reply) = std::str::from_utf8(reply) {
            self.doing().cancel(reply);
        }
    }

    /// Does what others ask under a subject until it is to `stop`.
    pub(super) async fn serve(
        self: Arc<Self>,
        server: Arc<Shared>,
        mut requests: Subscriber,
        stop: oneshot::Receiver<()>,
        alive: WeakSender<()>,
    ) {
        let mut stop = pin!(stop);
        let mut stopped = false;
        loop {
            let request = tokio::select! {
                biased;
                // It is told to, or whoever could tell it is gone.
                _ = &mut stop, if !stopped => {
                    stopped = true;
                    if requests.drain().await.is_err() {
                        return;
                    }
                    continue;
                }
                request = requests.next() => request,
            };
            let Some(request) = request else {
                return;
            };
            // The server ends when all that it has begun is done.
            let alive = alive.upgrade();
            let (far, server) = (self.clone(), server.clone());
            tokio::spawn(async move {
                far.answer(&server, request).await;
                drop(alive);
            });
        }
    }

    /// Does one call, and tells what came of it.
    async fn answer(&self, server: &Shared, request: Message) {
        let read = Word::read(&request);
        let (Some((Word::Of(CallKind::Call, payload), left)), Some(reply)) = (read, request.reply)
        else {
            return;
        };
        let Ok(call) = Call::decode(payload) else {
            return;
        };
        let Some(cancelled) = self.doing().begin(&reply) else {
            return;
        };
        let deadline = Instant::now() + Duration::from_millis(left.into());
        tokio::select! {
            biased;
            _ = cancelled => return,
            // Whoever waits knows that himself.
            () = sleep_until(deadline) => {}
            () = self.run(server, call, deadline, &reply) => {}
        }
        self.doing().running.remove(reply.as_str());
    }

    async fn run(&self, server: &Shared, mut call: Call, deadline: Instant, reply: &str) {
        let to = Address::parse(&std::mem::take(&mut call.to));
        let outcome = match to.and_then(|to| server.calls.choose(&call.procedure, &to)) {
            Ok(post) => {
                let Some(post) = post.filter(|_| !server.is_draining()) else {
                    return self.say(reply, NOBODY, 0, &[]).await;
                };
                let mut asked = pin!(post.ask(&call, deadline));
                let mut beat = interval_at(Instant::now() + BEAT, BEAT);
                loop {
                    tokio::select! {
                        biased;
                        outcome = &mut asked => break outcome,
                        _ = beat.tick() => self.say(reply, CallKind::Accepted as u8, 0, &[]).await,
                    }
                }
            }
            Err(failed) => Ok(Err(failed)),
        };
        match outcome {
            Ok(outcome) => {
                for (place, (kind, piece)) in (0..).zip(in_pieces(outcome)) {
                    self.say(reply, kind as u8, place, &piece).await;
                }
            }
            Err(Gone) => self.say(reply, GONE, 0, &[]).await,
        }
    }

    async fn say(&self, reply: &str, kind: u8, number: u32, payload: &[u8]) {
        let said = Word::pack(kind, number, payload);
        if let Err(error) = self.client.publish(reply.to_owned(), said).await {
            tracing::warn!(%error, "NATS does not take an answer");
        }
    }
}

/// A call that another server has.
struct Asked<'n> {
    nats: &'n Nats,
    id: u64,
    reply: String,
    is_over: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.nats.far.asked().remove(&self.id);
        if !self.is_over {
            self.nats.cancel(std::mem::take(&mut self.reply));
        }
    }
}

impl Nats {
    /// Has a provider at another server do something; `None` if there is nobody, and nothing was
    /// begun. To drop the future is to cancel the call.
    pub(crate) async fn ask(
        &self,
        call: Call,
        to: &Address,
        deadline: Instant,
        (budget, answer_bytes): (&MemoryBudget, usize),
    ) -> Result<Option<Outcome>, Gone> {
        let far = &self.far;
        let id = far.last_id.fetch_add(1, Ordering::Relaxed);
        let (sender, mut words) = unbounded_channel();
        far.asked().insert(id, sender);
        let mut asked = Asked {
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
        let mut gathered = Gathered::of_at_most(answer_bytes);
        // What is gathered, until all of it is.
        let mut pieces = Vec::new();
        let mut place = 0;
        loop {
            let Ok(Some((word, number))) = timeout(SILENCE, words.recv()).await else {
                return Err(Gone);
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
                Word::Of(..) | Word::Gone => return Err(Gone),
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
                Err(_) => return Err(Gone),
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

#[cfg(test)]
mod tests {
    use tidewater_protocol::RemoteId;

    use super::*;

    #[test]
    fn a_provider_is_meant_under_subjects_without_parts_of_its_own() {
        let who = Caller {
            user: "a.b c*>".into(),
            remote_id: Some(RemoteId([7; 16])),
        };
        assert_eq!(
            subjects("print.label", &who),
            [
                "_tidewater.call.print~label",
                "_tidewater.call.print~label.user.YS5iIGMqPg",
                "_tidewater.call.print~label.remote.07070707-0707-0707-0707-070707070707",
            ]
        );
    }
}
