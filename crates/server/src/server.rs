//! The server as a whole: starting, accepting, housekeeping, shutting down.

mod acceptor;
mod certificate;
mod maintenance;
mod parts;
mod prepared;
mod probe;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use tidewater_carrier::ServerUrl;
use tidewater_centre::records::UserClaims;
use tidewater_centre::{Centre, GivenPartitions};
use tidewater_protocol::RemoteId;
use tidewater_server_config::{Config, RetentionConfig};
use tidewater_server_identity::external::IdentityProviders;
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::admission::{Shutdown, ShutdownPhase};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::memory::MemoryGauge;
use tidewater_server_jobs::publications::Publications;
use tidewater_server_jobs::upstream::Upstream;
use tidewater_server_live::calls::DeclaredProcedures;
use tidewater_server_live::{nats_client, wake};
use tidewater_server_sync::images::{DownloadProbe, ProbedDownload, check_scripts};

use self::acceptor::{Acceptor, SpokenAt};
use self::certificate::Certificate;
use self::maintenance::{
    check_tracking_regularly, feel_pulse_regularly, look_regularly, prune_regularly,
    renew_regularly,
};
use self::parts::{LoadedParts, ServerParts};
use self::prepared::PreparedServer;
use crate::connection::LINGER;
use crate::http::Site;
use crate::http::exchange::Exchanges;
use crate::listener::SpokenProtocols;

/// Connections over the limit that are told so at the same time; others wait in the listener's
/// queue.
pub const TURNED_AWAY: usize = 1_024;

/// The server.
pub struct Server;

/// A server that runs until it is told to stop.
pub struct RunningServer {
    /// The addresses that it listens on, as URLs, in the order of the
    /// configuration.
    pub addresses: Vec<String>,
    /// The URL of the admin endpoint, if there is one.
    pub admin: Option<String>,
    /// The URL of the web protocol.
    pub http: Option<String>,
    /// What it was started with.
    started: Config,
    /// What it goes by, as far as that may change while it runs.
    configured: Arc<Mutex<Config>>,
    certificate: Arc<Certificate>,
    retention: Arc<Mutex<RetentionConfig>>,
    parts: ServerParts,
    /// What everybody holds, if the server is there to make an image.
    given: Option<Arc<GivenPartitions>>,
    shutdown: ShutdownGuard,
    tasks: Vec<JoinHandle<()>>,
    /// Take connections of the web protocol until then, too: what comes of calls may come over it.
    web: Vec<JoinHandle<()>>,
    /// Serves other servers until all that is under way has ended.
    bridge: Option<JoinHandle<()>>,
    /// Serves the admin endpoint to the end.
    admin_task: Option<JoinHandle<()>>,
    /// As long as it is there, connections may come.
    alive: mpsc::Sender<()>,
    /// Yields nothing, and ends when the last connection has.
    connections: mpsc::Receiver<()>,
}

impl Server {
    /// Whether a server could start with a configuration, as far as that and the files that it
    /// names tell.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(config: &Config, environment: &Environment) -> Result<(), ServerError> {
        PreparedServer::of(config, environment).map(drop)
    }

    /// Starts a server: checks the configuration and what is deployed, listens, and
    /// returns. Runs on the current tokio runtime.
    ///
    /// # Errors
    /// The configuration and the machine or the database do not fit; nothing was
    /// started.
    pub async fn start(
        config: Config,
        centre: Arc<dyn Centre>,
        environment: Environment,
    ) -> Result<RunningServer, ServerError> {
        let PreparedServer {
            addresses: places_to_listen,
            admin,
            certificate,
            relays,
            providers,
            handlers,
            targets,
        } = PreparedServer::of(&config, &environment)?;
        let publications = Publications::load(centre.clone(), &config.publications).await;
        let publications = publications.map_err(|error| config.locate_error(error))?;
        let signer = Signer::load(centre.clone(), environment.clock.now_ms()).await?;
        let declared = DeclaredProcedures::read(&*centre, &config).await?;
        let nats = match &config.live.nats {
            Some(url) => Some(nats_client::connect(url).await?),
            None => None,
        };
        let mut listeners = Vec::new();
        for place in places_to_listen {
            let listener = environment.network.listen(&place.address).await;
            let listener = listener.map_err(|source| ServerError::Listen {
                url: place
                    .urls
                    .first()
                    .map_or(String::new(), ToString::to_string),
                source,
            })?;
            listeners.push((listener, place));
        }

        let admin = match &admin {
            Some(url) => Some(bind_admin(url).await?),
            None => None,
        };

        let loaded = LoadedParts {
            publications,
            signer,
            declared,
            nats,
            providers,
            handlers,
        };
        let (parts, bridge) = ServerParts::start(&config, centre.clone(), environment, loaded);
        let (alive, connections) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(parts.limits.connections));
        let mut all = listeners.iter();
        let any_http = all.any(|(_, it)| it.plain.any_http() || it.encrypted.any_http());
        let any_http = any_http || relays.is_some();
        let site = any_http.then(|| {
            Site::new(
                Arc::new(parts.web(&config)),
                places.clone(),
                alive.downgrade(),
            )
        });
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
        let mut addresses = Vec::new();
        let mut tasks = Vec::new();
        let mut web = Vec::new();
        let mut http_address = None;
        if let Some((relays, relayed)) = relays {
            listeners.push((
                Box::new(relays.keep(&parts.shutdown, &parts.environment.randomness)),
                relayed,
            ));
        }
        for (listener, place) in listeners {
            let last = place.urls.len().saturating_sub(1);
            for (index, url) in place.urls.iter().enumerate() {
                let scheme = url.transport.scheme();
                let address = format!("{scheme}://{}", listener.address());
                tracing::info!(address, "listening");
                match place.is_web && index == last {
                    true => http_address = Some(address),
                    false => addresses.push(address),
                }
            }
            let speaks = |spoken: SpokenProtocols| SpokenAt {
                spoken,
                router: match &site {
                    Some(site) if spoken.any_http() => Some(site.router(spoken)),
                    _ => None,
                },
            };
            let acceptor = Acceptor {
                connections: parts.connections.clone(),
                metrics: parts.metrics.clone(),
                admission: parts.admission.clone(),
                limits: parts.limits.clone(),
                proxies: config.server.proxies.clone(),
                site: site.clone(),
                plain: speaks(place.plain),
                encrypted: speaks(place.encrypted),
                certificate: certificate.clone(),
                alive: alive.downgrade(),
                places: places.clone(),
                turned_away: turned_away.clone(),
            };
            // What calls wait for, and connections that are under way, may come over HTTP.
            let stays = place.plain.any_http() || place.encrypted.any_http();
            let accepting = tokio::spawn(Arc::new(acceptor).accept_all(listener));
            match stays {
                true => web.push(accepting),
                false => tasks.push(accepting),
            }
        }
        for (number, target) in targets.into_iter().enumerate() {
            tasks.push(tokio::spawn(wake::tell(
                parts.wakes.clone(),
                number,
                target,
            )));
        }
        if let Some(site) = site {
            tasks.push(tokio::spawn(async move { site.sweep().await }));
        }
        tasks.push(tokio::spawn(parts.watch().run()));
        tasks.push(tokio::spawn(look_regularly(parts.publications.clone())));
        let (following, of) = (parts.wakes.clone(), centre.clone());
        tasks.push(tokio::spawn(async move { following.follow(of).await }));
        let asking = wake::ask_scopes(parts.wakes.clone(), parts.lanes.clone());
        tasks.push(tokio::spawn(asking));
        let bridge = bridge.map(|it| tokio::spawn(it.run(alive.downgrade())));
        let hub = parts.hub.clone();
        tasks.push(tokio::spawn(async move { hub.watch().await }));
        let clock = parts.environment.clock.clone();
        tasks.push(tokio::spawn(check_tracking_regularly(
            clock.clone(),
            centre.clone(),
        )));
        let (admin, admin_task) = match admin {
            None => (None, None),
            Some((url, listener)) => {
                tracing::info!(url, "listening for administration");
                let pulse = feel_pulse_regularly(parts.metrics.clone(), clock, centre.clone());
                tasks.push(tokio::spawn(pulse));
                let serving = tidewater_admin::serve(listener, Arc::new(parts.probe()));
                (Some(url), Some(tokio::spawn(serving)))
            }
        };
        let given = config.given.clone();
        let retention = Arc::new(Mutex::new(config.retention));
        let started = config.clone();
        let configured = Arc::new(Mutex::new(config));
        tasks.push(tokio::spawn(renew_regularly(
            certificate.clone(),
            configured.clone(),
        )));
        let kept = retention.clone();
        let (hub, environment) = (parts.hub.clone(), parts.environment.clone());
        tasks.push(tokio::spawn(prune_regularly(
            hub,
            environment,
            centre,
            kept,
        )));
        Ok(RunningServer {
            addresses,
            http: http_address,
            admin,
            admin_task,
            started,
            configured,
            certificate,
            retention,
            shutdown: ShutdownGuard(parts.shutdown.clone()),
            parts,
            given,
            tasks,
            web,
            bridge,
            alive,
            connections,
        })
    }
}

impl RunningServer {
    /// What it knows of the line to headquarters, for whoever keeps that.
    pub fn upstream(&self) -> Upstream {
        self.parts.upstream.clone()
    }

    /// Sees whether a publication has the partitions that this server is there to make an image of:
    /// a remote would only hear that something is wrong.
    ///
    /// # Errors
    /// It has not, or the database is away.
    pub async fn check_given(
        &self,
        centre: &dyn Centre,
        publication: &str,
    ) -> Result<(), ServerError> {
        let given = self.given.clone();
        let published = self.parts.publications.served().published(publication);
        // That there is no such publication, the remote hears.
        let Ok(published) = published else {
            return Ok(());
        };
        let opening = ProbedDownload {
            user: String::new(),
            claims: UserClaims::default(),
            given,
            schema: published.schema.clone(),
            before: None,
            image: None,
        };
        let job = opening.job(self.parts.environment.clock.now_ms());
        let mut worker = centre.worker().await?;
        Ok(worker
            .download_one(job, &mut DownloadProbe::default())
            .await?)
    }

    /// Whether there can be images of a publication: by its scripts as they are deployed.
    ///
    /// # Errors
    /// Scripts say which rows each user gets.
    pub fn check_image(&self, publication: &str) -> Result<(), ServerError> {
        let published = self.parts.publications.served().published(publication);
        // That there is no such publication, the remote hears.
        published.map_or(Ok(()), |it| check_scripts(&it.schema, &it.scripts))
    }

    /// What becomes of the memory budget.
    pub fn memory(&self) -> MemoryGauge {
        self.parts.budget.gauge()
    }

    /// Connections in requests, for whoever carries these otherwise than HTTP does.
    #[doc(hidden)]
    pub fn exchanges(&self) -> Exchanges {
        Exchanges::new(self.parts.budget.clone())
    }

    /// Goes by another configuration from now on, as far as that can be while it runs: the
    /// certificate, how what is sent is packed, who says who users are, how long things are kept,
    /// how often remotes verify themselves, handlers, procedures and spaces. Gives the settings that
    /// are others than at its start, and count when it is started anew.
    ///
    /// # Errors
    /// The configuration is wrong: the one before stays.
    pub async fn reconfigure(&self, config: Config) -> Result<Vec<&'static str>, ServerError> {
        config.server.listen_urls()?;
        config.server.admin_url()?;
        let tls = Certificate::read(&config)?;
        let providers = self.parts.sign_in.providers();
        let providers = match providers.are_of(&config.sign_in) {
            true => None,
            false => Some(IdentityProviders::new(&config.sign_in)?),
        };
        let handlers = self.parts.handlers.read(&config)?;
        self.parts.calls.declare(&config).await?;
        self.parts.handlers.replace(handlers);
        self.certificate.replace(tls);
        if let Some(providers) = providers {
            self.parts.sign_in.replace_providers(Arc::new(providers));
        }
        let configured = self.configured.lock();
        let mut configured = configured.unwrap_or_else(PoisonError::into_inner);
        let changes = self.started.changes_for_start(&config);
        *self
            .retention
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = config.retention;
        self.parts.hub.configure(config.spaces.clone());
        self.parts.connections.set_packing(config.server.packing);
        self.parts.sync.set_verify_every(config.server.verify_every);
        let is_deployed = configured.publications == config.publications;
        *configured = config;
        if !is_deployed {
            tracing::info!("publications are served as they are deployed: run tidewater deploy");
        }
        Ok(changes)
    }

    /// The remotes that are connected now, with their users; one may be several times.
    pub fn connected(&self) -> Vec<(RemoteId, String)> {
        self.parts.registry.connected()
    }

    fn drain_delay(&self) -> Duration {
        let configured = self.configured.lock();
        let configured = configured.unwrap_or_else(PoisonError::into_inner);
        configured.server.drain_delay
    }

    /// Stops: it is not ready any more, and serves all who come for `server.drain_delay`; then no
    /// new connections and syncs; running syncs may finish within `server.limits.shutdown_timeout` and are
    /// then told that the server shuts down.
    pub async fn shutdown(self) {
        let delay = self.drain_delay();
        if !delay.is_zero() {
            tracing::info!(
                ?delay,
                "not ready any more; everybody is served for a while"
            );
            self.shutdown.0.enter(ShutdownPhase::Leaving);
            sleep(delay).await;
        }
        let RunningServer {
            parts,
            shutdown,
            tasks,
            web,
            bridge,
            admin_task,
            alive,
            mut connections,
            ..
        } = self;
        tracing::info!("shutting down");
        shutdown.0.enter(ShutdownPhase::Draining);
        for task in tasks {
            task.abort();
            // Either it ended or it was aborted; its listener is closed.
            let _ = task.await;
        }
        // From now on, only what is under way counts. What calls wait for may come over HTTP.
        drop(alive);
        if timeout(parts.limits.shutdown, connections.recv())
            .await
            .is_err()
        {
            tracing::warn!("syncs are cut short by the shutdown");
            shutdown.0.enter(ShutdownPhase::Aborting);
            let _ = timeout(LINGER * 2, connections.recv()).await;
        }
        if let Some(nats) = parts.hub.outside() {
            nats.flush().await;
        }
        parts.lanes.close(LINGER).await;
        for task in web.into_iter().chain(bridge).chain(admin_task) {
            task.abort();
        }
        tracing::info!("shut down");
    }
}

/// Syncs do not go on without the server.
struct ShutdownGuard(Shutdown);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.0.enter(ShutdownPhase::Aborting);
    }
}

/// Gives the endpoint's URL with its listener.
async fn bind_admin(url: &ServerUrl) -> Result<(String, TcpListener), ServerError> {
    let bind = async {
        let listener = TcpListener::bind(url.address()).await?;
        let address = listener.local_addr()?;
        Ok((format!("http://{address}"), listener))
    };
    bind.await.map_err(|source| ServerError::Listen {
        url: format!("http://{}", url.address()),
        source,
    })
}
