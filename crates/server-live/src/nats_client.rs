//! Other servers, and any other program, over NATS.
//!
//! An event of the space `fleet` with the subject `unit.7` is a message with the subject
//! `fleet.unit.7`, and its payload is the message's. So whatever speaks NATS takes part. A space is
//! subscribed to as long as somebody here is subscribed in it. Durable events go through the centre;
//! of them servers only tell each other to look, and so they do of uploads. Without NATS a server
//! goes on by itself: what is published meanwhile reaches its own subscribers only, and calls its own
//! providers.

mod remote_calls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

pub(crate) use self::remote_calls::{GONE, NOBODY, RemoteCalls, Word};
use tidewater_server_jobs::error::ServerError;

/// Chunks and words that wait for NATS at most.
const WAITING: usize = 1_024;

/// How long somebody who subscribes waits for NATS.
pub(crate) const WAIT: Duration = Duration::from_secs(1);

/// What goes out, from wherever in the server.
pub(crate) enum OutgoingWord {
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
pub struct NatsClient {
    out: Sender<OutgoingWord>,
    connected: Arc<AtomicBool>,
    far: Arc<RemoteCalls>,
}

impl std::fmt::Debug for OutgoingWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutgoingWord")
    }
}

/// The connection itself, for whoever runs it.
pub struct NatsLink {
    pub(crate) client: Client,
    pub(crate) out: Receiver<OutgoingWord>,
    pub(crate) connected: Arc<AtomicBool>,
    /// It has just connected.
    pub(crate) reached: Arc<Notify>,
    pub(crate) far: Arc<RemoteCalls>,
}

/// Begins to connect; goes on trying by itself.
///
/// # Errors
/// The URL is none.
pub async fn connect(url: &str) -> Result<(NatsClient, NatsLink), ServerError> {
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
    let far = RemoteCalls::new(client.clone());
    let nats = NatsClient {
        out: sender,
        connected: connected.clone(),
        far: far.clone(),
    };
    let link = NatsLink {
        client,
        out,
        connected,
        reached,
        far,
    };
    Ok((nats, link))
}

impl NatsClient {
    /// Whether NATS is there.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Passes events on. Whether they will go out: else nobody elsewhere gets them.
    pub fn publish(&self, packed: &Bytes) -> bool {
        self.is_connected()
            && self
                .out
                .try_send(OutgoingWord::Events(packed.clone()))
                .is_ok()
    }

    /// A durable space has more. Those who do not hear of it look anyway.
    pub fn kept(&self) {
        let _ = self.out.try_send(OutgoingWord::Kept);
    }

    /// Somebody has uploaded something. Those who do not hear of it look anyway.
    pub fn changed(&self) {
        let _ = self.out.try_send(OutgoingWord::Changed);
    }

    /// Nobody waits for an answer any longer. Those who do not hear of it know when its time is over.
    fn cancel(&self, reply: String) {
        let _ = self.out.try_send(OutgoingWord::Cancel(reply));
    }

    /// Ends when what was said has left, or NATS is away.
    pub async fn flush(&self) {
        if self.is_connected() {
            let _ = timeout(WAIT, self.far.flush()).await;
        }
    }

    /// Somebody is subscribed in a space. Ends when what others publish comes, or NATS is away.
    pub async fn want(&self, space: &str) {
        let (reply, known) = oneshot::channel();
        if self
            .out
            .send(OutgoingWord::Want(space.to_owned(), reply))
            .await
            .is_ok()
        {
            let _ = timeout(WAIT, known).await;
        }
    }
}
