//! What the admin endpoint shows of a server.

use std::fmt;
use std::sync::Arc;

use tidewater_admin::ProbeTarget;
use tidewater_server_jobs::admission::{Shutdown, ShutdownPhase};
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::metrics::{Metrics, ServerFigures};
use tidewater_server_jobs::publications::Publications;
use tidewater_server_jobs::upstream::Upstream;
use tidewater_server_live::spaces::Hub;
use tidewater_server_live::wake::Wakes;
use tidewater_server_sync::handlers::Handlers;

/// Looks at a server. Whether the database is there is looked up by the maintenance: no request asks
/// it.
pub(super) struct ServerProbe {
    pub(super) publications: Arc<Publications>,
    pub(super) shutdown: Shutdown,
    pub(super) metrics: Arc<Metrics>,
    pub(super) lanes: Arc<WorkerLanes>,
    pub(super) hub: Arc<Hub>,
    pub(super) handlers: Arc<Handlers>,
    pub(super) wakes: Arc<Wakes>,
    pub(super) upstream: Upstream,
    pub(super) budget: MemoryBudget,
}

impl ProbeTarget for ServerProbe {
    fn trouble(&self) -> Option<String> {
        match self.shutdown.phase() {
            ShutdownPhase::Running => self.publications.trouble(),
            _ => Some("shutting down".into()),
        }
    }

    fn figures(&self) -> Result<String, fmt::Error> {
        let (live, waking) = self.wakes.figures();
        let handlers = self.handlers.current();
        let handlers = handlers
            .all()
            .map(|it| (it.config.name.clone(), it.is_closed()));
        self.metrics.render(&ServerFigures {
            lanes: self.lanes.pool().figures(),
            events: self.hub.figures(),
            handlers: handlers.collect(),
            nats: self.hub.outside().map(|it| it.is_connected()),
            live,
            waking,
            waiting_event_bytes: self.hub.waiting_bytes(),
            upstream: self.upstream.figures(),
            memory: self.budget.gauge(),
        })
    }
}
