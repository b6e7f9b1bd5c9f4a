//! The server as a whole: starting, accepting, housekeeping, shutting down.

mod regularly;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use tidewater_carrier::listen::{
    First, Incoming, Ledger, Listener, Packed, Shown, Stream, Tls, first,
};
use tidewater_carrier::proxied::Networks;
use tidewater_carrier::{Packing, ServerUrl};
use tidewater_centre::Centre;
use tidewater_protocol::RemoteId;
use tidewater_protocol::event::EVENT_BYTES;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, PREFACE, put_control};

use self::regularly::{
    check_tracking_regularly, feel_pulse_regularly, look_regularly, prune_regularly,
    renew_regularly, watch_regularly,
};
use crate::admin;
use crate::auth::external::Ways;
use crate::auth::password::PasswordChecks;
use crate::auth::signing::Signer;
use crate::auth::throttle::Throttle;
use crate::calls::Calls;
use crate::config::{Config, Limits, RetentionConfig};
use crate::connection::{self, LINGER};
use crate::drain::DrainRate;
use crate::environment::{Environment, random};
use crate::error::ServerError;
use crate::fault::Fault;
use crate::handlers::Handlers;
use crate::http;
use crate::http::Site;
use crate::listener::{self, Spoken};
use crate::memory::{MemoryBudget, MemoryGauge};
use crate::metrics::Metrics;
use crate::nats;
use crate::publications::Publications;
use crate::registry::Registry;
use crate::sign_in::Origin;
use crate::signal::Signal;
use crate::spaces::Hub;
use crate::wake::{self, Wakes};
use crate::worker::Workers;

/// Connections over the limit that are told so at the same time; others wait in the listener's
/// queue.
pub const TURNED_AWAY: usize = 1_024;

/// How long the log is silent about a server that is full once it has said so.
const FULL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How many live remotes leave when the server shuts down: one after the other on average, and all
/// within so long.
const LEAVE_EACH: Duration = Duration::from_millis(2);
const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// How far shutting down has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    Running,
    /// Everything as before, but balancers are told to send others elsewhere.
    Leaving,
    /// No new syncs.
    Draining,
    /// No syncs at all.
    Aborting,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    /// See [`crate::config::ServerConfig::verify_every`].
    verify_every: AtomicU64,
    pub(crate) environment: Environment,
    pub(crate) signer: Signer,
    pub(crate) passwords: PasswordChecks,
    pub(crate) throttle: Throttle,
    ways: RwLock<Arc<Ways>>,
    packing: RwLock<Packing>,
    pub(crate) registry: Registry,
    pub(crate) budget: MemoryBudget,
    pub(crate) workers: Workers,
    pub(crate) drain: DrainRate,
    pub(crate) publications: Publications,
    pub(crate) calls: Calls,
    pub(crate) handlers: Handlers,
    pub(crate) wakes: Wakes,
    pub(crate) spaces: Arc<Hub>,
    pub(crate) metrics: Metrics,
    /// Whose word counts about whom a connection or a request comes from.
    pub(crate) proxies: Networks,
    /// Where live remotes go when it shuts down.
    pub(crate) others: Vec<String>,
    phase: Arc<Signal<Phase>>,
}

impl Shared {
    /// How what is sent is packed.
    pub(crate) fn packing(&self) -> Packing {
        *self.packing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a remote that has synced so many times since is to compare everything.
    pub(crate) fn wants_verified(&self, unverified: u64) -> bool {
        let every = self.verify_every.load(Ordering::Relaxed);
        // This sync counts, too.
        every != 0 && unverified.saturating_add(1) >= every
    }

    /// Who may say who a user is.
    pub(crate) fn ways(&self) -> Arc<Ways> {
        self.ways
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Others may from now on.
    fn replace_ways(&self, ways: Arc<Ways>) {
        if ways.have_issuers() {
            // It ends by itself, with or without an answer.
            tokio::spawn(ways.clone().warm_up());
        }
        *self.ways.write().unwrap_or_else(PoisonError::into_inner) = ways;
    }

    /// Whether so many syncs wait that no other may begin.
    pub(crate) fn is_full(&self) -> bool {
        self.workers.backlog() >= self.limits.backlog
    }

    /// Come back later; when, follows from how fast the backlog drains.
    pub(crate) fn busy(&self) -> Fault {
        let jitter = random(&*self.environment.randomness).unwrap_or([128; 2]);
        let jitter = u16::from_le_bytes(jitter);
        Fault::busy(self.drain.retry_after_ms(Instant::now(), jitter))
    }

    /// When to come back after a while that is known: a little later, and not all at once.
    pub(crate) fn later_ms(&self, left: Duration) -> u64 {
        let [jitter] = random(&*self.environment.randomness).unwrap_or([128]);
        let left = left.max(Duration::from_secs(1));
        let left = left.mul_f32(1.0 + f32::from(jitter) / 1_024.0);
        u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
    }

    /// When one of the live remotes comes to another server that all go to: spread by chance, the
    /// longer, the more there are.
    pub(crate) fn leave_after(&self) -> Duration {
        let (live, _) = self.wakes.figures();
        let most = LEAVE_EACH * u32::try_from(live).unwrap_or(u32::MAX);
        let chance = random(&*self.environment.randomness).unwrap_or([128; 2]);
        let chance = f64::from(u16::from_le_bytes(chance)) / f64::from(u16::MAX);
        most.min(LEAVE_WITHIN).mul_f64(chance)
    }

    /// Why no sync should be sent here, if that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.phase.get() {
            Phase::Running => self.publications.trouble(),
            _ => Some("shutting down".into()),
        }
    }

    /// Whether nothing new may begin.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.get() >= Phase::Draining
    }

    /// Ends when no new syncs may begin.
    pub(crate) async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Ends when all syncs must.
    pub(crate) async fn aborted(&self) {
        self.reached(Phase::Aborting).await;
    }

    async fn reached(&self, phase: Phase) {
        self.phase.wait_for(|current| current >= phase).await;
    }
}

/// The server.
pub struct Server;

/// A server that runs until it is told to stop.
pub struct Running {
    /// The addresses that it listens on, as URLs, in the order of the
    /// configuration.
    pub addresses: Vec<String>,
    /// The URL of the admin endpoint, if there is one.
    pub admin: Option<String>,
    /// The URL of the web protocol.
    pub http: Option<String>,
    configured: Arc<Mutex<Config>>,
    certificate: Arc<Certificate>,
    retention: Arc<Mutex<RetentionConfig>>,
    shared: Arc<Shared>,
    phase: Phases,
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
    ) -> Result<Running, ServerError> {
        let places_to_listen = listener::addresses(&config.server)?;
        let admin = listener::admin(&config.server)?;
        let certificate = Certificate::load(&config)?;
        let ways = Arc::new(Ways::new(&config.sign_in)?);
        let handlers = Handlers::new(&config)?;
        let targets = config.wakes.iter().map(wake::Target::new);
        let targets: Vec<_> = targets.collect::<Result<_, _>>()?;
        let publications = Publications::load(centre.clone(), &config.publications).await;
        let publications = publications.map_err(|error| config.locate_error(error))?;
        let signer = Signer::load(centre.clone(), environment.clock.now_ms()).await?;
        let calls = Calls::load(centre.clone(), &config).await?;
        let outside = match &config.live.nats {
            Some(url) => Some(nats::connect(url).await?),
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

        let limits = config.server.limits.clone();
        let phase = Arc::new(Signal::new(Phase::Running));
        let most_waiting = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        let budget = MemoryBudget::new(limits.memory_bytes);
        let shared = Arc::new(Shared {
            signer,
            passwords: PasswordChecks::new(environment.blocking.clone(), limits.password_checks),
            throttle: Throttle::default(),
            ways: RwLock::new(ways.clone()),
            packing: RwLock::new(config.server.packing),
            registry: Registry::default(),
            workers: Workers::start(centre.clone(), &limits, &environment.clock, &budget),
            budget,
            drain: DrainRate::new(),
            publications,
            calls,
            handlers,
            wakes: Wakes::new(&config.wakes),
            spaces: Hub::new(config.spaces.clone(), EVENT_BYTES, most_waiting),
            metrics: Metrics::new(limits.connections, limits.memory_bytes),
            proxies: config.server.proxies.clone(),
            others: config.live.servers.clone(),
            phase: phase.clone(),
            verify_every: AtomicU64::new(config.server.verify_every),
            environment,
            limits,
        });
        shared.replace_ways(ways);
        shared.spaces.attach(shared.workers.events.clone());
        let bridge = outside.map(|(nats, bridge)| {
            shared.spaces.reach_out(nats);
            bridge
        });
        let (alive, connections) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(shared.limits.connections));
        let mut all = listeners.iter();
        let any_http = all.any(|(_, it)| it.plain.any_http() || it.encrypted.any_http());
        let site = any_http.then(|| Site::new(shared.clone(), places.clone(), alive.downgrade()));
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
        let mut addresses = Vec::new();
        let mut tasks = Vec::new();
        let mut web = Vec::new();
        let mut http_address = None;
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
            let speaks = |spoken: Spoken| Speaks {
                spoken,
                router: match &site {
                    Some(site) if spoken.any_http() => Some(site.router(spoken)),
                    _ => None,
                },
            };
            let door = Door {
                shared: shared.clone(),
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
            let door = tokio::spawn(Arc::new(door).accept_all(listener));
            match stays {
                true => web.push(door),
                false => tasks.push(door),
            }
        }
        for (number, target) in targets.into_iter().enumerate() {
            tasks.push(tokio::spawn(wake::tell(shared.clone(), number, target)));
        }
        if let Some(site) = site {
            tasks.push(tokio::spawn(async move { site.sweep().await }));
        }
        tasks.push(tokio::spawn(watch_regularly(shared.clone())));
        tasks.push(tokio::spawn(look_regularly(shared.clone())));
        let (following, of) = (shared.clone(), centre.clone());
        tasks.push(tokio::spawn(
            async move { following.wakes.follow(of).await },
        ));
        let bridge = bridge.map(|it| tokio::spawn(it.run(shared.clone(), alive.downgrade())));
        let spaces = shared.spaces.clone();
        tasks.push(tokio::spawn(async move { spaces.watch().await }));
        tasks.push(tokio::spawn(check_tracking_regularly(
            shared.clone(),
            centre.clone(),
        )));
        let (admin, admin_task) = match admin {
            None => (None, None),
            Some((url, listener)) => {
                tracing::info!(url, "listening for administration");
                let pulse = feel_pulse_regularly(shared.clone(), centre.clone());
                tasks.push(tokio::spawn(pulse));
                let serving = admin::serve(listener, shared.clone());
                (Some(url), Some(tokio::spawn(serving)))
            }
        };
        let retention = Arc::new(Mutex::new(config.retention));
        let configured = Arc::new(Mutex::new(config));
        tasks.push(tokio::spawn(renew_regularly(
            certificate.clone(),
            configured.clone(),
        )));
        let kept = retention.clone();
        tasks.push(tokio::spawn(prune_regularly(shared.clone(), centre, kept)));
        Ok(Running {
            addresses,
            http: http_address,
            admin,
            admin_task,
            configured,
            certificate,
            retention,
            shared,
            phase: Phases(phase),
            tasks,
            web,
            bridge,
            alive,
            connections,
        })
    }
}

impl Running {
    /// What becomes of the memory budget.
    pub fn memory(&self) -> MemoryGauge {
        self.shared.budget.gauge()
    }

    /// Goes by another configuration from now on, as far as that can be while it runs: the
    /// certificate, how what is sent is packed, who says who users are, how long things are kept,
    /// procedures and spaces. Gives the settings that are others and count when
    /// it is started anew.
    ///
    /// # Errors
    /// The configuration is wrong: the one before stays.
    pub async fn reconfigure(&self, config: Config) -> Result<Vec<&'static str>, ServerError> {
        listener::urls(&config.server)?;
        listener::admin(&config.server)?;
        let tls = Certificate::read(&config)?;
        let ways = self.shared.ways();
        let ways = match ways.are_of(&config.sign_in) {
            true => None,
            false => Some(Ways::new(&config.sign_in)?),
        };
        let handlers = self.shared.handlers.read(&config)?;
        self.shared.calls.declare(&config).await?;
        self.shared.handlers.replace(handlers);
        self.certificate.replace(tls);
        if let Some(ways) = ways {
            self.shared.replace_ways(Arc::new(ways));
        }
        let configured = self.configured.lock();
        let mut configured = configured.unwrap_or_else(PoisonError::into_inner);
        let (old, new) = (&configured.server, &config.server);
        let differ = [
            ("server.listen", old.listen != new.listen),
            ("server.admin", old.admin != new.admin),
            ("server.http", old.http != new.http),
            ("server.proxies", old.proxies != new.proxies),
            ("server.consolidated", old.consolidated != new.consolidated),
            ("server.limits", old.limits != new.limits),
            ("live", configured.live != config.live),
            ("wake", configured.wakes != config.wakes),
            ("log", configured.log != config.log),
        ];
        *self
            .retention
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = config.retention;
        self.shared.spaces.configure(config.spaces.clone());
        let packing = self.shared.packing.write();
        *packing.unwrap_or_else(PoisonError::into_inner) = config.server.packing;
        let every = config.server.verify_every;
        self.shared.verify_every.store(every, Ordering::Relaxed);
        let is_deployed = configured.publications == config.publications;
        *configured = config;
        if !is_deployed {
            tracing::info!("publications are served as they are deployed: run tidewater deploy");
        }
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        Ok(differ.map(|(setting, _)| setting).collect())
    }

    /// The remotes that are connected now, with their users; one may be several times.
    pub fn connected(&self) -> Vec<(RemoteId, String)> {
        self.shared.registry.connected()
    }

    fn drain_delay(&self) -> Duration {
        let configured = self.configured.lock();
        let configured = configured.unwrap_or_else(PoisonError::into_inner);
        configured.server.drain_delay
    }

    /// Stops: it is not ready any more, and serves all who come for `server.drain_delay`; then no
    /// new connections and syncs; running syncs may finish within `server.limits.shutdown` and are
    /// then told that the server shuts down.
    pub async fn shutdown(self) {
        let delay = self.drain_delay();
        if !delay.is_zero() {
            tracing::info!(
                ?delay,
                "not ready any more; everybody is served for a while"
            );
            self.phase.0.set(Phase::Leaving);
            sleep(delay).await;
        }
        let Running {
            shared,
            phase,
            tasks,
            web,
            bridge,
            admin_task,
            alive,
            mut connections,
            ..
        } = self;
        tracing::info!("shutting down");
        phase.0.set(Phase::Draining);
        for task in tasks {
            task.abort();
            // Either it ended or it was aborted; its listener is closed.
            let _ = task.await;
        }
        // From now on, only what is under way counts. What calls wait for may come over HTTP.
        drop(alive);
        if timeout(shared.limits.shutdown, connections.recv())
            .await
            .is_err()
        {
            tracing::warn!("syncs are cut short by the shutdown");
            phase.0.set(Phase::Aborting);
            let _ = timeout(LINGER * 2, connections.recv()).await;
        }
        if let Some(nats) = shared.spaces.outside() {
            nats.flush().await;
        }
        shared.workers.close(LINGER).await;
        for task in web.into_iter().chain(bridge).chain(admin_task) {
            task.abort();
        }
        tracing::info!("shut down");
    }
}

/// Who tells the phase; syncs do not go on without the server.
struct Phases(Arc<Signal<Phase>>);

impl Drop for Phases {
    fn drop(&mut self) {
        self.0.set(Phase::Aborting);
    }
}

/// The certificate of `tls://` and `https://`, which can be replaced.
struct Certificate(RwLock<Option<Served>>);

/// What TLS is set up with at the addresses of each protocol.
#[derive(Clone)]
struct Served {
    tidewater: Tls,
    /// Browsers would ask their users for a certificate.
    http: Tls,
}

impl Certificate {
    fn load(config: &Config) -> Result<Arc<Certificate>, ServerError> {
        let certificate = RwLock::new(Certificate::read(config)?);
        Ok(Arc::new(Certificate(certificate)))
    }

    /// The configured one, if there is an address for it.
    fn read(config: &Config) -> Result<Option<Served>, ServerError> {
        let server = &config.server;
        let mut urls = listener::urls(server)?;
        let encrypts = urls.iter().any(is_tls);
        urls.extend(listener::http(server)?);
        if config.sign_in.certificates.is_some() && !encrypts {
            return Err(ServerError::configuration(
                "sign_in.certificates: the server listens on no tls:// address",
                "write one into server.listen: without TLS nobody shows a certificate",
            ));
        }
        let Some(tls) = server.tls.as_ref().filter(|_| urls.iter().any(is_tls)) else {
            return Ok(None);
        };
        let http = listener::tls(tls)?;
        Ok(Some(Served {
            tidewater: match &config.sign_in.certificates {
                None => http.clone(),
                Some(clients) => listener::tls_for_known_clients(tls, clients)?,
            },
            http,
        }))
    }

    /// Connections that are accepted from now on get this one.
    fn replace(&self, tls: Option<Served>) {
        if tls.is_some() {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = tls;
        }
    }

    fn current(&self, is_web: bool) -> Option<Tls> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let served = current.clone()?;
        Some(if is_web {
            served.http
        } else {
            served.tidewater
        })
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

fn is_tls(url: &ServerUrl) -> bool {
    url.transport.is_encrypted()
}

/// What is spoken at an address.
struct Speaks {
    spoken: Spoken,
    /// What there is in HTTP.
    router: Option<Router>,
}

/// Lets connections in through one listener.
struct Door {
    shared: Arc<Shared>,
    site: Option<Arc<Site>>,
    plain: Speaks,
    encrypted: Speaks,
    certificate: Arc<Certificate>,
    /// Gone when the server shuts down and nothing is under way any more.
    alive: mpsc::WeakSender<()>,
    places: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
}

impl Door {
    async fn accept_all(self: Arc<Door>, mut listener: Box<dyn Listener>) {
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
                            limit = self.shared.limits.connections,
                            "server.limits.connections is reached: others are told to come back"
                        );
                    }
                    self.turn_away(incoming).await;
                }
            }
        }
    }

    /// Finds out what is spoken.
    async fn hear(&self, mut stream: Box<dyn Stream>) -> io::Result<Heard<'_>> {
        let (plain, encrypted) = (self.plain.spoken, self.encrypted.spoken);
        let mut begins = None;
        if plain.any() && (encrypted.any() || plain.tidewater && plain.any_http()) {
            let (first, again) = first(stream).await?;
            (begins, stream) = (Some(first), again);
        }
        let is_encrypted = encrypted.any() && begins.is_none_or(|it| it == First::Tls);
        let mut shown = Shown::new();
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
            Some(first) if speaks.spoken.any_http() => first == First::Preface,
            _ => speaks.spoken.tidewater,
        };
        Ok(Heard {
            stream,
            shown,
            router: speaks.router.as_ref().filter(|_| !is_tidewater),
        })
    }

    /// One connection from its first byte to its last.
    async fn serve(
        self: Arc<Door>,
        incoming: Incoming,
        _guard: (OwnedSemaphorePermit, mpsc::Sender<()>),
    ) {
        let shared = &self.shared;
        let _counted = shared.metrics.connected();
        let peer = incoming.peer.clone();
        let introduced = timeout(shared.limits.handshake, introduce(shared, incoming));
        let Incoming { stream, peer } = match introduced.await {
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
        let heard = match timeout(shared.limits.handshake, self.hear(stream)).await {
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
        let Heard {
            stream,
            shown,
            router,
        } = heard;
        match (&self.site, router) {
            (Some(site), Some(router)) => {
                site.serve(router.clone(), stream, peer, shown).await;
            }
            _ => {
                let origin = Origin {
                    peer: &peer,
                    shown: &shown,
                };
                connection::serve(shared, stream, origin).await;
            }
        }
    }

    /// Busy is an answer, not a dropped socket: whoever is only cut off does not know when to come
    /// back. A crowd that takes its answers slowly waits in the listener's queue.
    async fn turn_away(self: &Arc<Door>, incoming: Incoming) {
        let place = self.turned_away.clone().acquire_owned();
        let Ok(Ok(place)) = timeout(LINGER, place).await else {
            return;
        };
        self.shared.metrics.turned_away();
        let busy = self.shared.busy();
        let door = self.clone();
        tokio::spawn(async move {
            let goodbye = async {
                let Some(Incoming { stream, .. }) = introduce(&door.shared, incoming).await? else {
                    return Ok(());
                };
                let Heard { stream, router, .. } = door.hear(stream).await?;
                let mut answer = bytes::BytesMut::new();
                if router.is_some() {
                    answer.extend_from_slice(&http::too_many(busy));
                } else {
                    let _ = put_control(&mut answer, CONNECTION_CHANNEL, busy.to_control());
                }
                let mut stream = Packed::new(stream, Packing::default(), Unheeded);
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
struct Heard<'d> {
    stream: Box<dyn Stream>,
    shown: Shown,
    /// What there is, if it is HTTP.
    router: Option<&'d Router>,
}

/// Of a connection that is turned away nothing is counted. Nothing is read but its preface.
struct Unheeded;

impl Ledger for Unheeded {
    fn received(&mut self, _: usize) {}

    fn sent(&mut self, _: usize) {}

    fn hold(&mut self, bytes: usize) -> bool {
        bytes == 0
    }
}

/// Whom a connection comes from, by the word of a balancer that the configuration names and of
/// nobody else. `None` if a balancer only looked whether somebody is there.
async fn introduce(shared: &Shared, incoming: Incoming) -> io::Result<Option<Incoming>> {
    if shared.proxies.contain_text(&incoming.peer) {
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
