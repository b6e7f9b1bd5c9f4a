//! The relay as a whole: starting, reading its configuration again, shutting down.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use tidewater_admin::ProbeTarget;
use tidewater_carrier::Transport;
use tidewater_carrier::listen::{ServerNetwork, StreamListener, TcpNetwork, TlsServer};
use tidewater_carrier::tls::ClientAuthorities;

use crate::config::RelayServiceConfig;
use crate::error::RelayError;
use crate::metrics::Metrics;
use crate::tunnel_pool::TunnelPool;
use crate::{devices, servers};

/// What connections are given to end by themselves at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// What all connections share.
pub(crate) struct RelayState {
    pub(crate) lines: Arc<TunnelPool>,
    pub(crate) metrics: Metrics,
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
struct PeerSecret {
    tls: Option<TlsServer>,
    authority: Option<ClientAuthorities>,
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
    fn new(
        config: &RelayServiceConfig,
        known: PeerSecret,
        alive: mpsc::WeakSender<()>,
    ) -> RelayState {
        RelayState {
            lines: TunnelPool::new(&config.names, config.lines),
            metrics: Metrics::new(),
            secret: RwLock::new(known),
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
        let known = PeerSecret::load(config).expect("no files");
        Arc::new(RelayState::new(config, known, alive.downgrade()))
    }

    pub(crate) fn tls(&self) -> Option<TlsServer> {
        let known = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        known.tls.clone()
    }

    pub(crate) fn authority(&self) -> Option<ClientAuthorities> {
        let known = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        known.authority.clone()
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

/// The relay.
pub struct RelayService;

/// A relay that runs until it is told to stop.
pub struct RunningRelay {
    /// The URLs at which devices connect, in the order of the configuration.
    pub addresses: Vec<String>,
    /// The URL at which servers connect.
    pub servers: String,
    /// The URL of the admin endpoint, if there is one.
    pub admin: Option<String>,
    shared: Arc<RelayState>,
    tasks: Vec<JoinHandle<()>>,
    admin_task: Option<JoinHandle<()>>,
    alive: mpsc::Sender<()>,
    /// Yields nothing, and ends when the last device has.
    devices: mpsc::Receiver<()>,
}

impl RelayService {
    /// Whether a relay could start with a configuration, as far as files can tell.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn check(config: &RelayServiceConfig) -> Result<(), RelayError> {
        PeerSecret::load(config).map(|_| ())
    }

    /// Starts a relay: listens, and returns. Runs on the current tokio runtime.
    ///
    /// # Errors
    /// The configuration and the machine do not fit; nothing was started.
    pub async fn start(config: RelayServiceConfig) -> Result<RunningRelay, RelayError> {
        let known = PeerSecret::load(&config)?;
        let mut listeners = Vec::new();
        for url in &config.listen {
            listeners.push(listen(url.address(), &url.to_string()).await?);
        }
        let servers = &config.servers;
        let for_servers = listen(servers.address(), &servers.to_string()).await?;
        let admin = match &config.admin {
            None => None,
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                let listener = bound.map_err(|source| RelayError::Listen {
                    url: format!("http://{address}"),
                    source,
                })?;
                Some(listener)
            }
        };
        let (alive, devices) = mpsc::channel(1);
        let shared = Arc::new(RelayState::new(&config, known, alive.downgrade()));
        let scheme = config.servers.transport.scheme();
        let servers = format!("{scheme}://{}", for_servers.address());
        let mut tasks = vec![tokio::spawn(servers::accept_all(
            shared.clone(),
            for_servers,
        ))];
        let mut addresses = Vec::new();
        for listener in listeners {
            addresses.push(format!("tls://{}", listener.address()));
            tasks.push(tokio::spawn(devices::accept_all(shared.clone(), listener)));
        }
        tracing::info!(?addresses, servers, "listening for devices and servers");
        let (admin, admin_task) = match admin {
            None => (None, None),
            Some(listener) => {
                let url = format!("http://{}", StreamListener::address(&listener));
                let serving = tidewater_admin::serve(listener, shared.clone());
                (Some(url), Some(tokio::spawn(serving)))
            }
        };
        Ok(RunningRelay {
            addresses,
            servers,
            admin,
            shared,
            tasks,
            admin_task,
            alive,
            devices,
        })
    }
}

async fn listen(address: String, url: &str) -> Result<Box<dyn StreamListener>, RelayError> {
    let listener = TcpNetwork.listen(&address).await;
    listener.map_err(|source| RelayError::Listen {
        url: url.to_owned(),
        source,
    })
}

impl PeerSecret {
    fn load(config: &RelayServiceConfig) -> Result<PeerSecret, RelayError> {
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
                Some(known) => TlsServer::for_known_clients(&files.certificate, &files.key, known),
            }),
            _ => None,
        };
        Ok(PeerSecret {
            tls: tls.transpose().map_err(unusable)?,
            authority,
        })
    }
}

impl RunningRelay {
    /// Goes by another configuration from now on, as far as names, tokens, certificate and
    /// authority are concerned; whoever is registered stays. Everything else counts when it is
    /// started anew.
    ///
    /// # Errors
    /// A file cannot be used: everything stays as it is.
    pub fn reconfigure(&self, config: &RelayServiceConfig) -> Result<(), RelayError> {
        let known = PeerSecret::load(config)?;
        *(self.shared.secret.write()).unwrap_or_else(PoisonError::into_inner) = known;
        self.shared.lines.rename(&config.names);
        Ok(())
    }

    /// Stops: no new devices, and servers lose their idle lines; connections may end by themselves
    /// for a while, and are then ended.
    pub async fn shutdown(self) {
        tracing::info!("shutting down");
        let RunningRelay {
            shared,
            tasks,
            admin_task,
            alive,
            mut devices,
            ..
        } = self;
        shared.leaving.set();
        for task in tasks {
            task.abort();
            // Either it ended or it was aborted; its listener is closed.
            let _ = task.await;
        }
        drop(alive);
        if timeout(SHUTDOWN, devices.recv()).await.is_err() {
            tracing::warn!("connections are cut short by the shutdown");
            shared.aborted.set();
            let _ = timeout(Duration::from_secs(5), devices.recv()).await;
        }
        if let Some(task) = admin_task {
            task.abort();
        }
        tracing::info!("shut down");
    }
}
