//! What the stages of a sync use of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_centre::GivenPartitions;
use tidewater_server_config::ServerLimits;
use tidewater_server_identity::sign_in::SignInService;
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::admission::{Shutdown, SyncAdmission};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_jobs::publications::Publications;
use tidewater_server_live::spaces::Hub;
use tidewater_server_live::wake::Wakes;

use super::kept_uploads::KeptUploads;
use crate::handlers::{HandlerServices, Handlers};

/// Serves the syncs of connections: what their stages use of the server.
pub struct SyncService {
    /// Where uploads are applied and downloads are read.
    pub lanes: Arc<WorkerLanes>,
    /// What is deployed.
    pub publications: Arc<Publications>,
    /// Whether a sync may begin.
    pub admission: Arc<SyncAdmission>,
    /// Whether the server shuts down.
    pub shutdown: Shutdown,
    /// Where syncs are counted.
    pub metrics: Arc<Metrics>,
    /// Memory for rows on their way.
    pub budget: MemoryBudget,
    /// What one sync may take.
    pub limits: ServerLimits,
    /// Clock and randomness.
    pub environment: Environment,
    /// Signs checkpoints and identities.
    pub signer: Arc<Signer>,
    /// Looks up remotes, and gives them new identities.
    pub sign_in: Arc<SignInService>,
    /// Tells other servers that something was uploaded.
    pub hub: Arc<Hub>,
    /// Tells live remotes.
    pub wakes: Arc<Wakes>,
    /// The programs that are asked.
    pub handlers: Arc<Handlers>,
    /// What these need.
    pub handler_services: Arc<HandlerServices>,
    /// Uploads that broke off, for their remotes to go on with.
    pub kept_uploads: KeptUploads,
    /// See [`tidewater_server_config::ServerConfig::verify_every`].
    pub verify_every: AtomicU64,
    /// What everybody holds, if the server is there to make an image.
    pub given: Option<Arc<GivenPartitions>>,
}

impl SyncService {
    /// Remotes that have synced so often since compare everything, from now on.
    pub fn set_verify_every(&self, every: u64) {
        self.verify_every.store(every, Ordering::Relaxed);
    }

    /// Whether a remote that has synced so many times since is to compare everything.
    pub(crate) fn wants_verified(&self, unverified: u64) -> bool {
        let every = self.verify_every.load(Ordering::Relaxed);
        // This sync counts, too.
        every != 0 && unverified.saturating_add(1) >= every
    }
}
