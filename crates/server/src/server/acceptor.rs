//! Letting connections in: whom they come from, whether they are encrypted, what is spoken, and what
//! those hear for whom there is no place.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};

use tidewater_carrier::listen::{
    BlockStream, ByteAccount, ByteStream, IncomingStream, PeerCertificates, SpokenProtocol,
    StreamListener, first, first_within,
};
use tidewater_carrier::{CompressionOptions, SCHEME_HEADER};
use tidewater_protocol::frame::{CONNECTION_CHANNEL, PREFACE, put_control};

use super::certificate::Certificate;
use crate::connection::{ConnectionService, LINGER};
use crate::http::{self, Site};
use crate::listener::SpokenProtocols;
use tidewater_carrier::proxy_header::IpNetworks;
use tidewater_server_config::ServerLimits;
use tidewater_server_identity::sign_in::Origin;
use tidewater_server_jobs::admission::SyncAdmission;
use tidewater_server_jobs::metrics::Metrics;

/// How long the log is silent about a server that is full once it has said so.
const FULL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What is spoken at an address.
pub(super) struct SpokenAt {
    pub(super) spoken: SpokenProtocols,
    /// What there is in HTTP.
    pub(super) router: Option<Router>,
}

/// Lets connections in through one listener.
pub(super) struct Acceptor {
    pub(super) connections: Arc<ConnectionService>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) admission: Arc<SyncAdmission>,
    pub(super) limits: ServerLimits,
    /// Whose word counts about whom a connection comes from.
    pub(super) proxies: IpNetworks,
    pub(super) site: Option<Arc<Site>>,
    pub(super) plain: SpokenAt,
    pub(super) encrypted: SpokenAt,
    pub(super) certificate: Arc<Certificate>,
    /// Gone when the server shuts down and nothing is under way any more.
    pub(super) alive: mpsc::WeakSender<()>,
    pub(super) places: Arc<Semaphore>,
    pub(super) turned_away: Arc<Semaphore>,
}

impl Acceptor {
    pub(super) async fn accept_all(self: Arc<Acceptor>, mut listener: Box<dyn StreamListener>) {
        let mut said: Option<Instant> = None;
        loop {
            let incoming = match listener.accept().await {
                Ok(incoming) => incoming,
                Err(error) => {
                    // Out of file descriptors, most likely: some will be closed.
                    tracing::warn!(%error, "a connection cannot be accepted");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(alive) = self.alive.upgrade() else {
                return;
            };
            match self.places.clone().try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(self.clone().serve(incoming, (place, alive)));
                }
                Err(_) => {
                    if said.is_none_or(|at| at.elapsed() >= FULL_AGAIN_AFTER) {
                        said = Some(Instant::now());
                        tracing::warn!(
                            limit = self.limits.connections,
                            "server.limits.connections is reached: others are told to come back"
                        );
                    }
                    self.turn_away(incoming).await;
                }
            }
        }
    }

    /// Finds out what is spoken.
    async fn hear(&self, mut stream: Box<dyn ByteStream>) -> io::Result<ClassifiedConnection<'_>> {
        let (plain, encrypted) = (self.plain.spoken, self.encrypted.spoken);
        let mut begins = None;
        if plain.any() && (encrypted.any() || plain.tidewater && plain.any_http()) {
            let (first, again) = first(stream).await?;
            (begins, stream) = (Some(first), again);
        }
        let is_encrypted = encrypted.any() && begins.is_none_or(|it| it == SpokenProtocol::Tls);
        let mut shown = PeerCertificates::new();
        if is_encrypted {
            // Browsers would ask their users for a certificate.
            let only_web = encrypted.web && !(encrypted.tidewater || encrypted.http);
            let tls = self.certificate.current(only_web && !encrypted.websocket);
            let tls = tls.ok_or(io::ErrorKind::NotFound)?;
            (stream, shown) = tls.accept(stream).await?;
            begins = None;
        }
        let speaks = match is_encrypted {
            true => &self.encrypted,
            false => &self.plain,
        };
        if speaks.spoken.tidewater && speaks.spoken.any_http() && begins.is_none() {
            let (first, again) = first(stream).await?;
            (begins, stream) = (Some(first), again);
        }
        let is_tidewater = match begins {
            Some(first) if speaks.spoken.any_http() => first == SpokenProtocol::Preface,
            _ => speaks.spoken.tidewater,
        };
        Ok(ClassifiedConnection {
            stream,
            shown,
            begins,
            scheme: if is_encrypted { "tls" } else { "tcp" },
            router: speaks.router.as_ref().filter(|_| !is_tidewater),
        })
    }

    /// One connection from its first byte to its last.
    async fn serve(
        self: Arc<Acceptor>,
        incoming: IncomingStream,
        _guard: (OwnedSemaphorePermit, mpsc::Sender<()>),
    ) {
        let _counted = self.metrics.connected();
        let peer = incoming.peer.clone();
        let introduced = timeout(self.limits.handshake, introduce(&self.proxies, incoming));
        let IncomingStream { stream, peer } = match introduced.await {
            Ok(Ok(Some(incoming))) => incoming,
            // A balancer that looked whether somebody is there.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                tracing::warn!(peer, %error, "a balancer does not say whom a connection comes from");
                return;
            }
            Err(_) => {
                tracing::warn!(
                    peer,
                    "no first byte of a balancer's connection came in time"
                );
                return;
            }
        };
        // What only some connections go through waits in boxes of its own, so that a connection costs no
        // more than what it is served by.
        let hearing = Box::pin(timeout(self.limits.handshake, self.hear(stream)));
        let heard = match hearing.await {
            Ok(Ok(heard)) => heard,
            Ok(Err(error)) => {
                tracing::warn!(peer, %error, "no connection");
                return;
            }
            Err(_) => {
                tracing::warn!(peer, "the handshake took too long");
                return;
            }
        };
        let ClassifiedConnection {
            mut stream,
            shown,
            begins,
            scheme,
            router,
        } = heard;
        if router.is_none() && begins.is_none() {
            let meeting = Box::pin(meet(stream, scheme, self.limits.handshake, &peer));
            let Some(met) = meeting.await else {
                return;
            };
            stream = met;
        }
        match (&self.site, router) {
            (Some(site), Some(router)) => {
                Box::pin(site.serve(router.clone(), stream, peer, shown)).await;
            }
            _ => {
                let origin = Origin {
                    peer: &peer,
                    shown: &shown,
                };
                self.connections.serve(stream, origin).await;
            }
        }
    }

    /// Busy is an answer, not a dropped socket: whoever is only cut off does not know when to come
    /// back. A crowd that takes its answers slowly waits in the listener's queue.
    async fn turn_away(self: &Arc<Acceptor>, incoming: IncomingStream) {
        let place = self.turned_away.clone().acquire_owned();
        let Ok(Ok(place)) = timeout(LINGER, place).await else {
            return;
        };
        self.metrics.turned_away();
        let busy = self.admission.busy();
        let door = self.clone();
        tokio::spawn(async move {
            let goodbye = async {
                let Some(IncomingStream { stream, .. }) =
                    introduce(&door.proxies, incoming).await?
                else {
                    return Ok(());
                };
                let ClassifiedConnection { stream, router, .. } = door.hear(stream).await?;
                let mut answer = bytes::BytesMut::new();
                if router.is_some() {
                    answer.extend_from_slice(&http::too_many(busy));
                } else {
                    let _ = put_control(&mut answer, CONNECTION_CHANNEL, busy.to_control());
                }
                let mut stream = BlockStream::new(stream, CompressionOptions::default(), NoAccount);
                if router.is_none() {
                    // It says what it can read.
                    stream.read_exact(&mut [0; PREFACE.len()]).await?;
                }
                stream.write_all(&answer).await?;
                stream.shutdown().await?;
                let mut stream = stream.into_inner();
                let read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                read.map(|_| ())
            };
            let _ = timeout(LINGER, goodbye).await;
            drop(place);
        });
    }
}

/// A connection of which it is known what is spoken.
struct ClassifiedConnection<'d> {
    stream: Box<dyn ByteStream>,
    shown: PeerCertificates,
    /// What it begins with, where more than one thing is spoken.
    begins: Option<SpokenProtocol>,
    /// The scheme of Tidewater's own protocol here.
    scheme: &'static str,
    /// What there is, if it is HTTP.
    router: Option<&'d Router>,
}

/// Hears what a connection begins with, and gives it back; nothing if somebody speaks another protocol,
/// who has been told.
async fn meet(
    stream: Box<dyn ByteStream>,
    scheme: &str,
    handshake: Duration,
    peer: &str,
) -> Option<Box<dyn ByteStream>> {
    let (first, stream) = first_within(stream, handshake).await.ok()?;
    if !matches!(first, SpokenProtocol::Http | SpokenProtocol::Tls) {
        return Some(stream);
    }
    tracing::debug!(peer, "somebody speaks another protocol");
    // Whoever takes longer is cut off.
    let _ = timeout(LINGER, tell_stranger(stream, scheme)).await;
    None
}

/// Tells whoever speaks HTTP, or TLS, where neither is spoken for what this is an address. A client of
/// TLS only learns that it gets no TLS.
async fn tell_stranger(mut stream: Box<dyn ByteStream>, scheme: &str) -> io::Result<()> {
    let told = format!("A Tidewater server listens here for {scheme}://, and for nothing else.\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
         connection: close\r\n{SCHEME_HEADER}: {scheme}\r\n\r\n{told}",
        told.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // To close with unread bytes would destroy what is still on its way.
    let read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    read.map(|_| ())
}

/// Of a connection that is turned away nothing is counted. Nothing is read but its preface.
struct NoAccount;

impl ByteAccount for NoAccount {
    fn count_received(&mut self, _: usize) {}

    fn count_sent(&mut self, _: usize) {}

    fn hold(&mut self, bytes: usize) -> bool {
        bytes == 0
    }
}

/// Whom a connection comes from, by the word of a balancer that the configuration names and of
/// nobody else. `None` if a balancer only looked whether somebody is there.
async fn introduce(
    proxies: &IpNetworks,
    incoming: IncomingStream,
) -> io::Result<Option<IncomingStream>> {
    if proxies.contain_text(&incoming.peer) {
        return incoming.introduced().await;
    }
    let peer = incoming.peer.clone();
    let refused = move || {
        tracing::warn!(
            peer,
            "a connection with a PROXY header was refused: server.proxies does not name its address"
        );
    };
    Ok(Some(incoming.unintroduced(refused)))
}
