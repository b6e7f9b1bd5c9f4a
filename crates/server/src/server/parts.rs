//! The services of a server, each given what it needs.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock};

use tidewater_centre::Centre;
use tidewater_server_config::{Config, ServerLimits};
use tidewater_server_identity::external::IdentityProviders;
use tidewater_server_identity::registry::ConnectionRegistry;
use tidewater_server_identity::sign_in::{SignInService, SignInServices};
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::admission::{Shutdown, SyncAdmission};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_jobs::publications::Publications;
use tidewater_server_jobs::upstream::Upstream;
use tidewater_server_live::call_channel::CallChannelServices;
use tidewater_server_live::calls::{CallServices, Calls, DeclaredProcedures};
use tidewater_server_live::event_requests::EventRequests;
use tidewater_server_live::nats_bridge::NatsBridge;
use tidewater_server_live::nats_client::{NatsClient, NatsLink};
use tidewater_server_live::spaces::{EventStore, Hub};
use tidewater_server_live::wake::Wakes;
use tidewater_server_sync::handlers::{HandlerPasswords, HandlerServices, Handlers};
use tidewater_server_sync::session::SyncService;
use tidewater_server_sync::session::kept_uploads::KeptUploads;

use crate::connection::ConnectionService;
use crate::http::WebServices;
use crate::server::maintenance::OperatorWatch;
use crate::server::probe::ServerProbe;

/// What was read and looked up before anything was started.
pub(super) struct LoadedParts {
    pub(super) publications: Publications,
    pub(super) signer: Signer,
    pub(super) declared: DeclaredProcedures,
    pub(super) nats: Option<(NatsClient, NatsLink)>,
    pub(super) providers: IdentityProviders,
    pub(super) handlers: Handlers,
}

/// The services of a server.
pub(super) struct ServerParts {
    pub(super) limits: ServerLimits,
    pub(super) environment: Environment,
    pub(super) budget: MemoryBudget,
    pub(super) lanes: Arc<WorkerLanes>,
    pub(super) publications: Arc<Publications>,
    pub(super) admission: Arc<SyncAdmission>,
    pub(super) shutdown: Shutdown,
    pub(super) metrics: Arc<Metrics>,
    pub(super) registry: Arc<ConnectionRegistry>,
    pub(super) signer: Arc<Signer>,
    pub(super) sign_in: Arc<SignInService>,
    pub(super) calls: Arc<Calls>,
    pub(super) hub: Arc<Hub>,
    pub(super) wakes: Arc<Wakes>,
    pub(super) handlers: Arc<Handlers>,
    pub(super) sync: Arc<SyncService>,
    pub(super) connections: Arc<ConnectionService>,
    /// The line to headquarters, where the server is a branch's.
    pub(super) upstream: Upstream,
}

impl ServerParts {
    /// Starts the workers, and everything that works with them. The bridge to other servers is to be
    /// run.
    pub(super) fn start(
        config: &Config,
        centre: Arc<dyn Centre>,
        environment: Environment,
        loaded: LoadedParts,
    ) -> (ServerParts, Option<NatsBridge>) {
        let limits = config.server.limits.clone();
        let budget = MemoryBudget::new(limits.memory_bytes);
        let lanes = Arc::new(WorkerLanes::start(centre.clone(), &limits));
        let publications = Arc::new(loaded.publications);
        let signer = Arc::new(loaded.signer);
        let shutdown = Shutdown::default();
        let admission = SyncAdmission::new(lanes.clone(), limits.backlog, environment.clone());
        let admission = Arc::new(admission);
        let metrics = Arc::new(Metrics::new(limits.connections, limits.memory_bytes));
        let registry = Arc::<ConnectionRegistry>::default();
        let wakes = Arc::new(Wakes::new(&config.wakes));
        let upstream = Upstream::default();
        let (nats, link) = loaded.nats.unzip();
        let calls = Arc::new(Calls::start(
            centre,
            loaded.declared,
            CallServices {
                pool: lanes.pool(),
                limits: &limits,
                clock: environment.clock.clone(),
                budget: budget.clone(),
                nats: nats.clone(),
            },
        ));
        let hub = Hub::new(
            config.spaces.clone(),
            limits.message_bytes,
            usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX),
            Some(EventStore::start(lanes.pool(), &environment.clock)),
            nats,
        );
        let bridge = link.map(|link| {
            let (hub, wakes) = (hub.clone(), wakes.clone());
            NatsBridge::new(link, hub, wakes, calls.clone(), shutdown.clone())
        });
        let handlers = Arc::new(loaded.handlers);
        let handler_services = Arc::new(HandlerServices {
            environment: environment.clone(),
            metrics: metrics.clone(),
            admission: admission.clone(),
            calls: calls.clone(),
        });
        let sign_in = Arc::new(SignInService::new(
            SignInServices {
                lanes: lanes.clone(),
                publications: publications.clone(),
                admission: admission.clone(),
                environment: environment.clone(),
                password_handler: Arc::new(HandlerPasswords {
                    handlers: handlers.clone(),
                    services: handler_services.clone(),
                }),
            },
            limits.password_checks,
            Arc::new(loaded.providers),
            config.only.clone(),
        ));
        let sync = Arc::new(SyncService {
            lanes: lanes.clone(),
            publications: publications.clone(),
            admission: admission.clone(),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            budget: budget.clone(),
            limits: limits.clone(),
            environment: environment.clone(),
            signer: signer.clone(),
            sign_in: sign_in.clone(),
            hub: hub.clone(),
            wakes: wakes.clone(),
            handlers: handlers.clone(),
            handler_services,
            kept_uploads: KeptUploads::new(limits.memory_bytes),
            verify_every: AtomicU64::new(config.server.verify_every),
            given: config.given.clone(),
        });
        let connections = Arc::new(ConnectionService {
            limits: limits.clone(),
            environment: environment.clone(),
            budget: budget.clone(),
            metrics: metrics.clone(),
            admission: admission.clone(),
            shutdown: shutdown.clone(),
            registry: registry.clone(),
            signer: signer.clone(),
            sign_in: sign_in.clone(),
            sync: sync.clone(),
            calls: CallChannelServices {
                calls: calls.clone(),
                events: EventRequests::new(hub.clone(), calls.clone()),
                wakes: wakes.clone(),
                budget: budget.clone(),
                metrics: metrics.clone(),
                shutdown: shutdown.clone(),
                others: config.live.servers.clone(),
                randomness: environment.randomness.clone(),
            },
            upstream: upstream.clone(),
            packing: RwLock::new(config.server.packing),
        });
        let parts = ServerParts {
            limits,
            environment,
            budget,
            lanes,
            publications,
            admission,
            shutdown,
            metrics,
            registry,
            signer,
            sign_in,
            calls,
            hub,
            wakes,
            handlers,
            sync,
            connections,
            upstream,
        };
        (parts, bridge)
    }

    /// What the web needs.
    pub(super) fn web(&self, config: &Config) -> WebServices {
        WebServices {
            connections: self.connections.clone(),
            calls: self.calls.clone(),
            events: EventRequests::new(self.hub.clone(), self.calls.clone()),
            sign_in: self.sign_in.clone(),
            signer: self.signer.clone(),
            lanes: self.lanes.clone(),
            publications: self.publications.clone(),
            metrics: self.metrics.clone(),
            admission: self.admission.clone(),
            shutdown: self.shutdown.clone(),
            budget: self.budget.clone(),
            limits: self.limits.clone(),
            environment: self.environment.clone(),
            proxies: config.server.proxies.clone(),
            images: config.images.clone(),
        }
    }

    /// What looks for what operators change.
    pub(super) fn watch(&self) -> OperatorWatch {
        OperatorWatch {
            sync: self.sync.clone(),
            signer: self.signer.clone(),
            registry: self.registry.clone(),
            lanes: self.lanes.clone(),
            sign_in: self.sign_in.clone(),
            clock: self.environment.clock.clone(),
        }
    }

    /// What the admin endpoint shows.
    pub(super) fn probe(&self) -> ServerProbe {
        ServerProbe {
            publications: self.publications.clone(),
            shutdown: self.shutdown.clone(),
            metrics: self.metrics.clone(),
            lanes: self.lanes.clone(),
            hub: self.hub.clone(),
            handlers: self.handlers.clone(),
            wakes: self.wakes.clone(),
            upstream: self.upstream.clone(),
            budget: self.budget.clone(),
        }
    }
}
