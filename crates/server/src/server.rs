//! The server as a whole: starting, accepting, housekeeping, shutting down.

mod certificate;
mod door;
mod prepared;
mod regularly;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use tidewater_admin::ProbeTarget;
use tidewater_carrier::proxy_header::IpNetworks;
use tidewater_carrier::{CompressionOptions, ServerUrl};
use tidewater_centre::records::Claims;
use tidewater_centre::{Centre, GivenPartitions};
use tidewater_protocol::RemoteId;

use self::certificate::Certificate;
use self::door::{Door, Speaks};
use self::prepared::Prepared;
use self::regularly::{
    check_tracking_regularly, feel_pulse_regularly, look_regularly, prune_regularly,
    renew_regularly, watch_regularly,
};
use crate::auth::external::Ways;
use crate::auth::password::PasswordChecks;
use crate::auth::signing::Signer;
use crate::auth::throttle::Throttle;
use crate::calls::Calls;
use crate::config::{Config, ImagesConfig, RetentionConfig, ServerLimits};
use crate::connection::LINGER;
use crate::drain::DrainRate;
use crate::environment::{Environment, random};
use crate::error::ServerError;
use crate::fault::Fault;
use crate::handlers::Handlers;
use crate::http::Site;
use crate::http::exchange::Exchanges;
use crate::images::{Opened, Opening, check_scripts};
use crate::listener::Spoken;
use crate::memory::{MemoryBudget, MemoryGauge};
use crate::metrics::Metrics;
use crate::nats;
use crate::publications::Publications;
use crate::registry::Registry;
use crate::session::kept_uploads::KeptUploads;
use crate::signal::Signal;
use crate::spaces::Hub;
use crate::upstream::Upstream;
use crate::wake::{self, Wakes};
use crate::worker::Workers;

/// Connections over the limit that are told so at the same time; others wait in the listener's
/// queue.
pub const TURNED_AWAY: usize = 1_024;

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
    pub(crate) limits: ServerLimits,
    /// See [`crate::config::ServerConfig::verify_every`].
    verify_every: AtomicU64,
    pub(crate) environment: Environment,
    pub(crate) signer: Signer,
    pub(crate) passwords: PasswordChecks,
    pub(crate) throttle: Throttle,
    ways: RwLock<Arc<Ways>>,
    packing: RwLock<CompressionOptions>,
    pub(crate) registry: Registry,
    pub(crate) budget: MemoryBudget,
    pub(crate) kept_uploads: KeptUploads,
    pub(crate) workers: Workers,
    pub(crate) drain: DrainRate,
    pub(crate) publications: Publications,
    pub(crate) calls: Calls,
    pub(crate) handlers: Handlers,
    pub(crate) wakes: Wakes,
    pub(crate) spaces: Arc<Hub>,
    pub(crate) metrics: Metrics,
    /// Whose word counts about whom a connection or a request comes from.
    pub(crate) proxies: IpNetworks,
    /// The line to headquarters, where the server is a branch's.
    pub(crate) upstream: Upstream,
    /// The files from which new remotes begin.
    pub(crate) images: Option<ImagesConfig>,
    /// What everybody holds, if the server is there to make an image.
    pub(crate) given: Option<Arc<GivenPartitions>>,
    /// Whose remotes alone may sign in, by their credentials, if it is there to make an image.
    pub(crate) only: Option<String>,
    /// Where live remotes go when it shuts down.
    pub(crate) others: Vec<String>,
    phase: Arc<Signal<Phase>>,
}

impl Shared {
    /// How what is sent is packed.
    pub(crate) fn packing(&self) -> CompressionOptions {
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

    /// Whether nothing new may begin.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.get() >= Phase::Draining
    }

    /// Ends when others are to be sent elsewhere.
    pub(crate) async fn leaving(&self) {
        self.reached(Phase::Leaving).await;
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

/// Whether the database is there is looked up by the maintenance: no request asks it.
impl ProbeTarget for Shared {
    fn trouble(&self) -> Option<String> {
        match self.phase.get() {
            Phase::Running => self.publications.trouble(),
            _ => Some("shutting down".into()),
        }
    }

    fn figures(&self) -> Result<String, fmt::Error> {
        self.metrics.render(self)
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
    /// Whether a server could start with a configuration, as far as that and the files that it
    /// names tell.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(config: &Config, environment: &Environment) -> Result<(), ServerError> {
        Prepared::of(config, environment).map(drop)
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
    ) -> Result<Running, ServerError> {
        let Prepared {
            addresses: places_to_listen,
            admin,
            certificate,
            relays,
            ways,
            handlers,
            targets,
        } = Prepared::of(&config, &environment)?;
        let ways = Arc::new(ways);
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
            kept_uploads: KeptUploads::new(limits.memory_bytes),
            budget,
            drain: DrainRate::new(),
            publications,
            calls,
            handlers,
            wakes: Wakes::new(&config.wakes),
            spaces: Hub::new(config.spaces.clone(), limits.message_bytes, most_waiting),
            metrics: Metrics::new(limits.connections, limits.memory_bytes),
            proxies: config.server.proxies.clone(),
            upstream: Upstream::default(),
            images: config.images.clone(),
            given: config.given.clone(),
            only: config.only.clone(),
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
        let any_http = any_http || relays.is_some();
        let site = any_http.then(|| Site::new(shared.clone(), places.clone(), alive.downgrade()));
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
        let mut addresses = Vec::new();
        let mut tasks = Vec::new();
        let mut web = Vec::new();
        let mut http_address = None;
        if let Some((relays, relayed)) = relays {
            listeners.push((Box::new(relays.keep(&shared)), relayed));
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
        tasks.push(tokio::spawn(wake::ask_scopes(shared.clone())));
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
                let serving = tidewater_admin::serve(listener, shared.clone());
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
    /// What it knows of the line to headquarters, for whoever keeps that.
    pub fn upstream(&self) -> Upstream {
        self.shared.upstream.clone()
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
        let given = self.shared.given.clone();
        let published = self.shared.publications.served().published(publication);
        // That there is no such publication, the remote hears.
        let Ok(published) = published else {
            return Ok(());
        };
        let opening = Opening {
            user: String::new(),
            claims: Claims::default(),
            given,
            schema: published.schema.clone(),
            before: None,
            image: None,
        };
        let job = opening.job(self.shared.environment.clock.now_ms());
        let mut worker = centre.worker().await?;
        Ok(worker.download_one(job, &mut Opened::default()).await?)
    }

    /// Whether there can be images of a publication: by its scripts as they are deployed.
    ///
    /// # Errors
    /// Scripts say which rows each user gets.
    pub fn check_image(&self, publication: &str) -> Result<(), ServerError> {
        let published = self.shared.publications.served().published(publication);
        // That there is no such publication, the remote hears.
        published.map_or(Ok(()), |it| check_scripts(&it.schema, &it.scripts))
    }

    /// What becomes of the memory budget.
    pub fn memory(&self) -> MemoryGauge {
        self.shared.budget.gauge()
    }

    /// Connections in requests, for whoever carries these otherwise than HTTP does.
    #[doc(hidden)]
    pub fn exchanges(&self) -> Exchanges {
        Exchanges::new(self.shared.budget.clone())
    }

    /// Goes by another configuration from now on, as far as that can be while it runs: the
    /// certificate, how what is sent is packed, who says who users are, how long things are kept,
    /// procedures and spaces. Gives the settings that are others and count when
    /// it is started anew.
    ///
    /// # Errors
    /// The configuration is wrong: the one before stays.
    pub async fn reconfigure(&self, config: Config) -> Result<Vec<&'static str>, ServerError> {
        config.server.listen_urls()?;
        config.server.admin_url()?;
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
            ("relay", configured.relay != config.relay),
            ("wake", configured.wakes != config.wakes),
            ("upstream", configured.upstream != config.upstream),
            ("images", configured.images != config.images),
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
    /// new connections and syncs; running syncs may finish within `server.limits.shutdown_timeout` and are
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
