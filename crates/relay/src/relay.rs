//! The relay as a whole: starting, reading its configuration again, shutting down.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use tidewater_carrier::listen::{ServerNetwork, StreamListener, TcpNetwork};

use crate::config::RelayServiceConfig;
use crate::error::RelayError;
use crate::relay_state::{PeerSecret, RelayState};
use crate::{devices, servers};

/// What connections are given to end by themselves at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(30);

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
        let secret = PeerSecret::load(&config)?;
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
        let shared = Arc::new(RelayState::new(&config, secret, alive.downgrade()));
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

impl RunningRelay {
    /// Goes by another configuration from now on, as far as names, tokens, certificate and
    /// authority are concerned; whoever is registered stays. Everything else counts when it is
    /// started anew.
    ///
    /// # Errors
    /// A file cannot be used: everything stays as it is.
    pub fn reconfigure(&self, config: &RelayServiceConfig) -> Result<(), RelayError> {
        let secret = PeerSecret::load(config)?;
        self.shared.replace_secret(secret);
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
        shared.leave();
        for task in tasks {
            task.abort();
            // Either it ended or it was aborted; its listener is closed.
            let _ = task.await;
        }
        drop(alive);
        if timeout(SHUTDOWN, devices.recv()).await.is_err() {
            tracing::warn!("connections are cut short by the shutdown");
            shared.abort();
            let _ = timeout(Duration::from_secs(5), devices.recv()).await;
        }
        if let Some(task) = admin_task {
            task.abort();
        }
        tracing::info!("shut down");
    }
}
