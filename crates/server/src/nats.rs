//! Other servers, and any other program, over NATS.
//!
//! An event of the space `fleet` with the subject `unit.7` is a message with the subject
//! `fleet.unit.7`, and its payload is the message's. So whatever speaks NATS takes part. A space is
//! subscribed to as long as somebody here is subscribed in it. Durable events go through the centre;
//! of them servers only tell each other to look, and so they do of uploads. Without NATS a server
//! goes on by itself: what is published meanwhile reaches its own subscribers only, and calls its own
//! providers.

pub(crate) mod calls;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, Message};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc::{Receiver, Sender, WeakSender, channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, timeout};

use tidewater_protocol::event::{EventsReader, put_event};

use self::calls::{CANCEL, Far, GROUP};
use crate::error::ServerError;
use crate::server::Shared;
use crate::spaces::Hub;

/// Chunks and words that wait for NATS at most.
const WAITING: usize = 1_024;

/// How often it is looked which spaces nobody here is subscribed in any more.
const TIDY_EVERY: Duration = Duration::from_secs(5);

/// How long somebody who subscribes waits for NATS.
const WAIT: Duration = Duration::from_secs(1);

/// Messages that are handed on together.
const TOGETHER: usize = 256;

/// Look into the centre: a durable space has more, or somebody has uploaded.
const KEPT: &str = "_tidewater.kept";
const CHANGED: &str = "_tidewater.changed";

/// What goes out, from wherever in the server.
enum Out {
    /// Packed events.
    Events(Bytes),
    Kept,
    Changed,
    /// Nobody waits for this answer any longer.
    Cancel(String),
    /// Somebody has subscribed in this space, and waits until NATS knows.
    Want(String, oneshot::Sender<()>),
}

/// The way out.
#[derive(Clone, Debug)]
pub(crate) struct Nats {
    out: Sender<Out>,
    connected: Arc<AtomicBool>,
    far: Arc<Far>,
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Out")
    }
}

/// What comes and goes, to be run.
pub(crate) struct Bridge {
    client: Client,
    out: Receiver<Out>,
    connected: Arc<AtomicBool>,
    /// It has just connected.
    reached: Arc<Notify>,
    far: Arc<Far>,
    /// By space.
    subscribed: HashMap<String, AbortHandle>,
    /// By the subject of what is provided here. Dropped, it is not listened to any more.
    served: HashMap<String, oneshot::Sender<()>>,
}

/// Begins to connect; goes on trying by itself.
///
/// # Errors
/// The URL is none.
pub(crate) async fn connect(url: &str) -> Result<(Nats, Bridge), ServerError> {
    let connected = Arc::new(AtomicBool::new(false));
    let reached = Arc::new(Notify::new());
    let (seen, awaited) = (connected.clone(), reached.clone());
    let options = ConnectOptions::new()
        .name("tidewater")
        .no_echo()
        .retry_on_initial_connect()
        .event_callback(move |event| {
            match &event {
                Event::Connected => {
                    seen.store(true, Ordering::Relaxed);
                    awaited.notify_one();
                    tracing::info!("connected to NATS");
                }
                Event::Disconnected => {
                    if seen.swap(false, Ordering::Relaxed) {
                        tracing::warn!(
                            "NATS is away: events and calls reach only those of this server"
                        );
                    }
                }
                event => tracing::warn!(%event, "NATS"),
            }
            std::future::ready(())
        });
    let client = options.connect(url).await.map_err(|error| {
        ServerError::configuration(
            format!("live.nats: {error}"),
            "write nats = \"nats://HOST:4222\", with USER:PASSWORD@ before the host if it asks",
        )
    })?;
    let (sender, out) = channel(WAITING);
    let far = Far::new(client.clone());
    let nats = Nats {
        out: sender,
        connected: connected.clone(),
        far: far.clone(),
    };
    let bridge = Bridge {
        client,
        out,
        connected,
        reached,
        far,
        subscribed: HashMap::new(),
        served: HashMap::new(),
    };
    Ok((nats, bridge))
}

impl Nats {
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Passes events on. Whether they will go out: else nobody elsewhere gets them.
    pub(crate) fn publish(&self, packed: &Bytes) -> bool {
        self.is_connected() && self.out.try_send(Out::Events(packed.clone())).is_ok()
    }

    /// A durable space has more. Those who do not hear of it look anyway.
    pub(crate) fn kept(&self) {
        let _ = self.out.try_send(Out::Kept);
    }

    /// Somebody has uploaded something. Those who do not hear of it look anyway.
    pub(crate) fn changed(&self) {
        let _ = self.out.try_send(Out::Changed);
    }

    /// Nobody waits for an answer any longer. Those who do not hear of it know when its time is over.
    fn cancel(&self, reply: String) {
        let _ = self.out.try_send(Out::Cancel(reply));
    }

    /// Ends when what was said has left, or NATS is away.
    pub(crate) async fn flush(&self) {
        if self.is_connected() {
            let _ = timeout(WAIT, self.far.flush()).await;
        }
    }

    /// Somebody is subscribed in a space. Ends when what others publish comes, or NATS is away.
    pub(crate) async fn want(&self, space: &str) {
        let (reply, known) = oneshot::channel();
        if self
            .out
            .send(Out::Want(space.to_owned(), reply))
            .await
            .is_ok()
        {
            let _ = timeout(WAIT, known).await;
        }
    }
}

impl Bridge {
    /// Runs until the server ends. What is done for other servers keeps it `alive`.
    pub(crate) async fn run(mut self, server: Arc<Shared>, alive: WeakSender<()>) {
        let hub = server.spaces.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(hear(self.client.clone(), server.clone(), self.far.clone()));
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
                () = server.calls.provided(), if self.is_connected() && !draining => {
                    self.serve(&server, &alive).await;
                }
                () = self.reached.notified() => {}
                // New calls are for others.
                () = server.draining(), if !draining => {
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
    async fn serve(&mut self, server: &Arc<Shared>, alive: &WeakSender<()>) {
        for (subject, is_provided) in server.calls.changes() {
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
                    let far = self.far.clone();
                    tokio::spawn(far.serve(server.clone(), requests, stopped, alive.clone()));
                    self.served.insert(subject, stop);
                }
                Err(error) => tracing::warn!(%error, subject, "NATS takes no subscription"),
            }
        }
    }

    async fn say(&mut self, hub: &Arc<Hub>, out: Out) {
        match out {
            // It would wait, and come when nobody expects it any more.
            Out::Events(_) | Out::Kept | Out::Changed | Out::Cancel(_) if !self.is_connected() => {}
            Out::Events(packed) => {
                let mut events = EventsReader::new(&packed, usize::MAX);
                while let Ok(Some(event)) = events.next_event() {
                    let subject = event.subject.replacen('/', ".", 1);
                    let payload = packed.slice_ref(event.payload);
                    if let Err(error) = self.client.publish(subject, payload).await {
                        tracing::debug!(%error, "NATS does not take an event");
                    }
                }
            }
            Out::Kept => self.tell(KEPT, Bytes::new()).await,
            Out::Changed => self.tell(CHANGED, Bytes::new()).await,
            Out::Cancel(reply) => self.tell(CANCEL, reply.into()).await,
            Out::Want(space, reply) => {
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

impl Drop for Bridge {
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
async fn hear(client: Client, server: Arc<Shared>, far: Arc<Far>) {
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
            KEPT => server.spaces.poke(),
            CHANGED => server.wakes.poke(),
            CANCEL => far.cancel(&word.payload),
            _ => {}
        }
    }
}
