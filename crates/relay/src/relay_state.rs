//! What all connections of a relay share: tunnels, figures, the relay's certificate, and whether it
//! shuts down.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use tidewater_admin::ProbeTarget;
use tidewater_carrier::Transport;
use tidewater_carrier::listen::TlsServer;
use tidewater_carrier::tls::ClientAuthorities;

use crate::config::RelayServiceConfig;
use crate::error::RelayError;
use crate::metrics::RelayMetrics;
use crate::tunnel_pool::TunnelPool;

/// See the module.
pub(crate) struct RelayState {
    pub(crate) lines: Arc<TunnelPool>,
    pub(crate) metrics: RelayMetrics,
    secret: RwLock<PeerSecret>,
    places: Arc<Semaphore>,
    most: usize,
    leaving: OnceSignal,
    aborted: OnceSignal,
    /// Gone when it shuts down and no device is there any more.
    alive: mpsc::WeakSender<()>,
}

/// With what the relay and servers know each other.
#[derive(Clone)]
pub(crate) struct PeerSecret {
    tls: Option<TlsServer>,
    authority: Option<ClientAuthorities>,
}

impl PeerSecret {
    pub(crate) fn load(config: &RelayServiceConfig) -> Result<PeerSecret, RelayError> {
        let unusable = |error: tidewater_carrier::CarrierError| {
            RelayError::configuration(
                error.to_string(),
                "give [tls] a certificate chain and its private key, and authority certificates, \
                 all as PEM",
            )
        };
        let authority = config.authority.as_deref().map(ClientAuthorities::load);
        let authority = authority.transpose().map_err(unusable)?;
        let tls = match (&config.tls, config.servers.transport) {
            (Some(files), Transport::Tls) => Some(match &authority {
                None => TlsServer::new(&files.certificate, &files.key),
                Some(authority) => {
                    TlsServer::for_known_clients(&files.certificate, &files.key, authority)
                }
            }),
            _ => None,
        };
        Ok(PeerSecret {
            tls: tls.transpose().map_err(unusable)?,
            authority,
        })
    }
}

/// Something that happens once.
#[derive(Default)]
struct OnceSignal {
    happens: Notify,
    is_set: AtomicBool,
}

impl OnceSignal {
    fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.happens.notify_waiters();
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        let mut set = pin!(self.happens.notified());
        set.as_mut().enable();
        if !self.is_set() {
            set.await;
        }
    }
}

/// What a connection of a device holds as long as it lasts.
pub(crate) type DeviceGuard = (OwnedSemaphorePermit, mpsc::Sender<()>);

impl RelayState {
    pub(crate) fn new(
        config: &RelayServiceConfig,
        secret: PeerSecret,
        alive: mpsc::WeakSender<()>,
    ) -> RelayState {
        RelayState {
            lines: TunnelPool::new(&config.names, config.lines),
            metrics: RelayMetrics::new(),
            secret: RwLock::new(secret),
            places: Arc::new(Semaphore::new(config.connections)),
            most: config.connections,
            leaving: OnceSignal::default(),
            aborted: OnceSignal::default(),
            alive,
        }
    }

    /// Of a relay without sockets.
    #[cfg(test)]
    pub(crate) fn from_config(config: &RelayServiceConfig) -> Arc<RelayState> {
        let (alive, _) = mpsc::channel(1);
        let secret = PeerSecret::load(config).expect("no files");
        Arc::new(RelayState::new(config, secret, alive.downgrade()))
    }

    pub(crate) fn tls(&self) -> Option<TlsServer> {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        secret.tls.clone()
    }

    pub(crate) fn authority(&self) -> Option<ClientAuthorities> {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        secret.authority.clone()
    }

    /// Goes by another certificate and authority from now on.
    pub(crate) fn replace_secret(&self, secret: PeerSecret) {
        *self.secret.write().unwrap_or_else(PoisonError::into_inner) = secret;
    }

    /// A place for one more device.
    pub(crate) fn enter(&self) -> Option<DeviceGuard> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some((place, self.alive.upgrade()?))
    }

    pub(crate) fn connections(&self) -> usize {
        self.most - self.places.available_permits()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_set()
    }

    /// Nothing new may begin.
    pub(crate) fn leave(&self) {
        self.leaving.set();
    }

    /// Everything must end.
    pub(crate) fn abort(&self) {
        self.aborted.set();
    }

    /// Ends when nothing new may begin.
    pub(crate) async fn leaving(&self) {
        self.leaving.wait().await;
    }

    /// Ends when everything must.
    pub(crate) async fn aborted(&self) {
        self.aborted.wait().await;
    }
}

impl ProbeTarget for RelayState {
    fn trouble(&self) -> Option<String> {
        self.is_leaving().then(|| "shutting down".into())
    }

    fn figures(&self) -> Result<String, fmt::Error> {
        self.metrics.render(&self.lines, self.connections())
    }
}
