//! What a server does every now and then: it learns what changed elsewhere, and drops what is old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tidewater_centre::Centre;
use tokio::time::sleep;

use super::certificate::Certificate;
use tidewater_server_config::{Config, RetentionConfig};
use tidewater_server_identity::registry::ConnectionRegistry;
use tidewater_server_identity::registry::WATCH_EVERY;
use tidewater_server_identity::sign_in::{SignInService, shuts_programs_out};
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::environment::random;
use tidewater_server_jobs::environment::{Clock, Environment};
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_jobs::publications::{LOOK_AGAIN_AFTER, LOOK_EVERY, Publications};
use tidewater_server_live::spaces::Hub;
use tidewater_server_sync::session::SyncService;

/// Remotes that one look-up asks about: others wait behind it.
const ASKED_AT_ONCE: usize = 500;

/// How often it is looked whether changes are still tracked.
const CHECK_TRACKING_EVERY: Duration = Duration::from_secs(5);

/// How often the database is asked how it goes, if somebody may look.
const PULSE_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked whether there is another certificate.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// What operators change while the server runs.
pub(super) struct OperatorWatch {
    pub(super) sync: Arc<SyncService>,
    pub(super) signer: Arc<Signer>,
    pub(super) registry: Arc<ConnectionRegistry>,
    pub(super) lanes: Arc<WorkerLanes>,
    pub(super) sign_in: Arc<SignInService>,
    pub(super) clock: Arc<dyn Clock>,
}

impl OperatorWatch {
    /// Learns what operators changed: signing keys, and who may go on no longer.
    pub(super) async fn run(self) {
        loop {
            sleep(WATCH_EVERY).await;
            self.sync.kept_uploads.sweep();
            self.signer.refresh(self.clock.now_ms()).await;
            let inside = self.registry.inside_for(WATCH_EVERY);
            for remotes in inside.chunks(ASKED_AT_ONCE) {
                let sessions = &self.lanes.sessions;
                let shut_out =
                    sessions.ask(remotes.to_vec(), |worker, remotes| worker.shut_out(remotes));
                // Without an answer, the next round asks again.
                if let Ok(shut_out) = shut_out.await {
                    self.registry.end(&shut_out);
                }
            }
            for user in self.registry.users_inside_for(WATCH_EVERY) {
                // Without an answer, the next round asks again.
                let state = self.sign_in.look_up(&user, None, Vec::new()).await;
                if let Some(reason) = state.ok().as_ref().and_then(shuts_programs_out) {
                    self.registry.end_programs(&user, reason);
                }
            }
        }
    }
}

/// Serves new connections with the certificate that is in its files now. Files that do not go together
/// change nothing: one of them may be written a moment later.
pub(super) async fn renew_regularly(certificate: Arc<Certificate>, configured: Arc<Mutex<Config>>) {
    let current = || {
        let configured = configured.lock();
        configured.unwrap_or_else(PoisonError::into_inner).clone()
    };
    let mut seen = written(&current());
    loop {
        sleep(RENEW_EVERY).await;
        let config = current();
        let now = written(&config);
        if now == seen {
            continue;
        }
        seen = now;
        match Certificate::read(&config) {
            Ok(renewed) => {
                certificate.replace(renewed);
                tracing::info!("new connections get the certificate that has just been written");
            }
            Err(error) => {
                tracing::warn!(%error, "the certificate that was written is not used");
            }
        }
    }
}

/// When the files of TLS were written, and how long they are.
fn written(config: &Config) -> Vec<Option<(SystemTime, u64)>> {
    let tls = config.server.tls.iter();
    let clients = config.sign_in.certificates.iter();
    let files = tls
        .flat_map(|it| [&it.certificate, &it.key])
        .chain(clients.map(|it| &it.authority));
    let written = files.map(|file| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    });
    written.collect()
}

/// Learns what is deployed.
pub(super) async fn look_regularly(publications: Arc<Publications>) {
    loop {
        sleep(match publications.look().await {
            true => LOOK_EVERY,
            false => LOOK_AGAIN_AFTER,
        })
        .await;
    }
}

/// Learns whether somebody has switched the tracking of changes off.
pub(super) async fn check_tracking_regularly(clock: Arc<dyn Clock>, centre: Arc<dyn Centre>) {
    loop {
        let checked = centre.check_tracking(clock.now_ms());
        // Somebody deploys, or the database is away: the next round finds out.
        if let Err(error) = checked.await {
            tracing::debug!(%error, "whether changes are tracked is not known");
        }
        sleep(CHECK_TRACKING_EVERY).await;
    }
}

/// Learns what only the database knows of how it goes.
pub(super) async fn feel_pulse_regularly(
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    centre: Arc<dyn Centre>,
) {
    loop {
        let pulse = centre.pulse().await;
        if let Err(error) = &pulse {
            tracing::debug!(%error, "how the database goes is not known");
        }
        let now_ms = clock.now_ms();
        metrics.centre(pulse.as_ref().ok(), now_ms);
        sleep(PULSE_EVERY).await;
    }
}

/// Drops what is older than its retention time.
pub(super) async fn prune_regularly(
    hub: Arc<Hub>,
    environment: Environment,
    centre: Arc<dyn Centre>,
    retention: Arc<Mutex<RetentionConfig>>,
) {
    loop {
        let retention = *retention.lock().unwrap_or_else(PoisonError::into_inner);
        // Servers that were started together need not all try at once.
        let [jitter] = random(&*environment.randomness).unwrap_or([0]);
        sleep(
            retention
                .interval
                .mul_f64(1.0 + f64::from(jitter) / 2_560.0),
        )
        .await;
        let now_ms = environment.clock.now_ms();
        match centre.prune(retention.keep, now_ms).await {
            Ok(pruned) => tracing::debug!(
                log_entries = pruned.log_entries,
                history = pruned.history,
                conflicts = pruned.conflicts,
                "dropped what is older than its retention time"
            ),
            Err(error) => tracing::warn!(%error, "what is old cannot be dropped"),
        }
        let spaces = hub.retentions();
        if spaces.is_empty() {
            continue;
        }
        match centre.prune_events(&spaces, now_ms).await {
            Ok(events) => tracing::debug!(events, "dropped events that were kept long enough"),
            Err(error) => tracing::warn!(%error, "old events cannot be dropped"),
        }
    }
}
