//! What comes from other servers over NATS and goes to them: events of spaces, words to look into the
//! centre, and calls of what is provided here.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use prost::Message as _;
use tokio::sync::mpsc::{Receiver, WeakSender};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval, interval_at, sleep_until, timeout};

use tidewater_protocol::event::{EventsReader, put_event};
use tidewater_protocol::message::{Call, CallKind};
use tidewater_server_jobs::admission::Shutdown;

use crate::call_address::CallAddress;
use crate::call_outcome::in_pieces;
use crate::calls::Calls;
use crate::nats_client::{GONE, NOBODY, NatsLink, OutgoingWord, RemoteCalls, WAIT, Word};
use crate::outgoing_calls::ProviderGone;
use crate::spaces::Hub;
use crate::wake::Wakes;

/// How often it is looked which spaces nobody here is subscribed in any more.
const TIDY_EVERY: Duration = Duration::from_secs(5);

/// Messages that are handed on together.
const TOGETHER: usize = 256;

/// Look into the centre: a durable space has more, or somebody has uploaded.
const KEPT: &str = "_tidewater.kept";
const CHANGED: &str = "_tidewater.changed";

/// Servers that listen to the same subject take turns.
pub(crate) const GROUP: &str = "tidewater";

/// Nobody waits for an answer any longer: its reply subject.
pub(crate) const CANCEL: &str = "_tidewater.cancel";

/// How often whoever waits hears that his call is under way.
const BEAT: Duration = Duration::from_secs(2);

/// What comes and goes, to be run.
pub struct NatsBridge {
    hub: Arc<Hub>,
    wakes: Arc<Wakes>,
    served_calls: Arc<CallServer>,
    client: Client,
    out: Receiver<OutgoingWord>,
    connected: Arc<AtomicBool>,
    /// It has just connected.
    reached: Arc<Notify>,
    far: Arc<RemoteCalls>,
    /// By space.
    subscribed: HashMap<String, AbortHandle>,
    /// By the subject of what is provided here. Dropped, it is not listened to any more.
    served: HashMap<String, oneshot::Sender<()>>,
}

/// Does for other servers what is provided here.
struct CallServer {
    far: Arc<RemoteCalls>,
    calls: Arc<Calls>,
    shutdown: Shutdown,
}

impl CallServer {
    /// Does what others ask under a subject until it is to `stop`.
    async fn serve(
        self: Arc<Self>,
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
            let server = self.clone();
            tokio::spawn(async move {
                server.answer(request).await;
                drop(alive);
            });
        }
    }

    /// Does one call, and tells what came of it.
    async fn answer(&self, request: Message) {
        let read = Word::read(&request);
        let (Some((Word::Of(CallKind::Call, payload), left)), Some(reply)) = (read, request.reply)
        else {
            return;
        };
        let Ok(call) = Call::decode(payload) else {
            return;
        };
        let Some(cancelled) = self.far.begin(&reply) else {
            return;
        };
        let deadline = Instant::now() + Duration::from_millis(left.into());
        tokio::select! {
            biased;
            _ = cancelled => return,
            // Whoever waits knows that himself.
            () = sleep_until(deadline) => {}
            () = self.run(call, deadline, &reply) => {}
        }
        self.far.finish(&reply);
    }

    async fn run(&self, mut call: Call, deadline: Instant, reply: &str) {
        let to = CallAddress::parse(&std::mem::take(&mut call.to));
        let outcome = match to.and_then(|to| self.calls.choose(&call.procedure, &to)) {
            Ok(post) => {
                let Some(post) = post.filter(|_| !self.shutdown.is_draining()) else {
                    return self.far.say(reply, NOBODY, 0, &[]).await;
                };
                let mut asked = pin!(post.ask(&call, deadline));
                let mut beat = interval_at(Instant::now() + BEAT, BEAT);
                loop {
                    tokio::select! {
                        biased;
                        outcome = &mut asked => break outcome,
                        _ = beat.tick() => self.far.say(reply, CallKind::Accepted as u8, 0, &[]).await,
                    }
                }
            }
            Err(failed) => Ok(Err(failed)),
        };
        match outcome {
            Ok(outcome) => {
                for (place, (kind, piece)) in (0..).zip(in_pieces(outcome)) {
                    self.far.say(reply, kind as u8, place, &piece).await;
                }
            }
            Err(ProviderGone) => self.far.say(reply, GONE, 0, &[]).await,
        }
    }
}

impl NatsBridge {
    /// Serves what is provided by `calls`, and passes on events of `hub`.
    pub fn new(
        link: NatsLink,
        hub: Arc<Hub>,
        wakes: Arc<Wakes>,
        calls: Arc<Calls>,
        shutdown: Shutdown,
    ) -> NatsBridge {
        let NatsLink {
            client,
            out,
            connected,
            reached,
            far,
        } = link;
        let served_calls = Arc::new(CallServer {
            far: far.clone(),
            calls,
            shutdown,
        });
        NatsBridge {
            hub,
            wakes,
            served_calls,
            client,
            out,
            connected,
            reached,
            far,
            subscribed: HashMap::new(),
            served: HashMap::new(),
        }
    }

    /// Runs until the server ends. What is done for other servers keeps it `alive`.
    pub async fn run(mut self, alive: WeakSender<()>) {
        let hub = self.hub.clone();
        let (calls, shutdown) = (
            self.served_calls.calls.clone(),
            self.served_calls.shutdown.clone(),
        );
        let mut tasks = JoinSet::new();
        let words = (hub.clone(), self.wakes.clone(), self.far.clone());
        tasks.spawn(hear(self.client.clone(), words));
        tasks.spawn(self.far.clone().listen());
        let mut draining = false;
        for space in hub.remembering() {
            self.subscribe(&hub, &space).await;
        }
        let mut tidy = interval(TIDY_EVERY);
        loop {
            tokio::select! {
                out = self.out.recv() => match out {
                    Some(out) => self.say(&hub, out).await,
                    None => break,
                },
                () = calls.provided(), if self.is_connected() && !draining => {
                    self.serve(&calls, &alive).await;
                }
                () = self.reached.notified() => {}
                // New calls are for others.
                () = shutdown.draining(), if !draining => {
                    draining = true;
                    self.served.clear();
                }
                _ = tidy.tick() => {
                    let (wanted, remembering) = (hub.subscribed(), hub.remembering());
                    self.subscribed.retain(|space, task| {
                        let stays = wanted.contains(space) || remembering.contains(space);
                        if !stays {
                            task.abort();
                        }
                        stays
                    });
                }
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Listens to calls of what is provided here, and no longer to those of what is not any more.
    async fn serve(&mut self, calls: &Calls, alive: &WeakSender<()>) {
        for (subject, is_provided) in calls.changes() {
            if !is_provided {
                self.served.remove(&subject);
                continue;
            }
            if self.served.contains_key(&subject) {
                continue;
            }
            let listening = self.client.queue_subscribe(subject.clone(), GROUP.into());
            match listening.await {
                Ok(requests) => {
                    let (stop, stopped) = oneshot::channel();
                    let serving = self.served_calls.clone();
                    tokio::spawn(serving.serve(requests, stopped, alive.clone()));
                    self.served.insert(subject, stop);
                }
                Err(error) => tracing::warn!(%error, subject, "NATS takes no subscription"),
            }
        }
    }

    async fn say(&mut self, hub: &Arc<Hub>, out: OutgoingWord) {
        match out {
            // It would wait, and come when nobody expects it any more.
            OutgoingWord::Events(_)
            | OutgoingWord::Kept
            | OutgoingWord::Changed
            | OutgoingWord::Cancel(_)
                if !self.is_connected() => {}
            OutgoingWord::Events(packed) => {
                let mut events = EventsReader::new(&packed, usize::MAX);
                while let Ok(Some(event)) = events.next_event() {
                    let subject = event.subject.replacen('/', ".", 1);
                    let payload = packed.slice_ref(event.payload);
                    if let Err(error) = self.client.publish(subject, payload).await {
                        tracing::debug!(%error, "NATS does not take an event");
                    }
                }
            }
            OutgoingWord::Kept => self.tell(KEPT, Bytes::new()).await,
            OutgoingWord::Changed => self.tell(CHANGED, Bytes::new()).await,
            OutgoingWord::Cancel(reply) => self.tell(CANCEL, reply.into()).await,
            OutgoingWord::Want(space, reply) => {
                self.subscribe(hub, &space).await;
                // Whoever waited may have gone on.
                let _ = reply.send(());
            }
        }
    }

    async fn tell(&self, subject: &'static str, word: Bytes) {
        if let Err(error) = self.client.publish(subject, word).await {
            tracing::debug!(%error, "NATS does not take a word");
        }
    }

    async fn subscribe(&mut self, hub: &Arc<Hub>, space: &str) {
        if self.subscribed.contains_key(space) {
            return;
        }
        let subscriber = match self.client.subscribe(format!("{space}.>")).await {
            Ok(subscriber) => subscriber,
            Err(error) => {
                tracing::warn!(%error, space, "NATS takes no subscription");
                return;
            }
        };
        if self.is_connected() {
            let _ = timeout(WAIT, self.client.flush()).await;
        }
        let (hub, name) = (hub.clone(), space.to_owned());
        let task = tokio::spawn(async move {
            let mut messages = subscriber.ready_chunks(TOGETHER);
            while let Some(messages) = messages.next().await {
                let chunk = pack(&name, &messages);
                // It was packed here.
                let _ = hub.deliver(&chunk);
            }
        });
        self.subscribed
            .insert(space.to_owned(), task.abort_handle());
    }
}

impl Drop for NatsBridge {
    fn drop(&mut self) {
        self.subscribed.values().for_each(AbortHandle::abort);
    }
}

/// Packs messages as events of a space; what is too large for one is left out.
fn pack(space: &str, messages: &[Message]) -> Bytes {
    let mut packed = BytesMut::new();
    for message in messages {
        let rest = message.subject.as_str().strip_prefix(space);
        let Some(rest) = rest.and_then(|it| it.strip_prefix('.')) else {
            continue;
        };
        let subject = format!("{space}/{rest}");
        let _ = put_event(&mut packed, &subject, None, &message.payload);
    }
    packed.freeze()
}

/// Does as other servers say.
async fn hear(client: Client, (hub, wakes, far): (Arc<Hub>, Arc<Wakes>, Arc<RemoteCalls>)) {
    let subscribed = client.subscribe("_tidewater.*").await;
    let mut words = match subscribed {
        Ok(words) => words,
        Err(error) => {
            tracing::warn!(%error, "NATS takes no subscription");
            return;
        }
    };
    while let Some(word) = words.next().await {
        match word.subject.as_str() {
            KEPT => hub.poke(),
            CHANGED => wakes.poke(),
            CANCEL => far.cancel(&word.payload),
            _ => {}
        }
    }
}
