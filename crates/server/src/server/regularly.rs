//! What a server does every now and then: it learns what changed elsewhere, and drops what is old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tidewater_centre::Centre;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{Certificate, Shared};
use crate::config::{Config, RetentionConfig};
use crate::environment::random;
use crate::publications::{LOOK_AGAIN_AFTER, LOOK_EVERY};
use crate::registry::WATCH_EVERY;
use crate::sign_in;
use crate::worker::SessionTask;

/// Remotes that one look-up asks about: others wait behind it.
const ASKED_AT_ONCE: usize = 500;

/// How often it is looked whether changes are still tracked.
const CHECK_TRACKING_EVERY: Duration = Duration::from_secs(5);

/// How often the database is asked how it goes, if somebody may look.
const PULSE_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked whether there is another certificate.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Learns what operators changed: signing keys, and who may go on no longer.
pub(super) async fn watch_regularly(shared: Arc<Shared>) {
    loop {
        sleep(WATCH_EVERY).await;
        shared.kept_uploads.sweep();
        shared
            .signer
            .refresh(shared.environment.clock.now_ms())
            .await;
        for remotes in shared
            .registry
            .inside_for(WATCH_EVERY)
            .chunks(ASKED_AT_ONCE)
        {
            let (reply, answer) = oneshot::channel();
            let remotes = remotes.to_vec();
            let ask = SessionTask::ShutOut { remotes, reply };
            shared.workers.sessions.submit(ask);
            // Without an answer, the next round asks again.
            if let Ok(Ok(shut_out)) = answer.await {
                shared.registry.end(&shut_out);
            }
        }
        for user in shared.registry.users_inside_for(WATCH_EVERY) {
            // Without an answer, the next round asks again.
            let state = sign_in::look_up(&shared, &user, None, Vec::new()).await;
            if let Some(reason) = state.ok().as_ref().and_then(sign_in::shuts_programs_out) {
                shared.registry.end_programs(&user, reason);
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
pub(super) async fn look_regularly(shared: Arc<Shared>) {
    loop {
        sleep(match shared.publications.look().await {
            true => LOOK_EVERY,
            false => LOOK_AGAIN_AFTER,
        })
        .await;
    }
}

/// Learns whether somebody has switched the tracking of changes off.
pub(super) async fn check_tracking_regularly(shared: Arc<Shared>, centre: Arc<dyn Centre>) {
    loop {
        let checked = centre.check_tracking(shared.environment.clock.now_ms());
        // Somebody deploys, or the database is away: the next round finds out.
        if let Err(error) = checked.await {
            tracing::debug!(%error, "whether changes are tracked is not known");
        }
        sleep(CHECK_TRACKING_EVERY).await;
    }
}

/// Learns what only the database knows of how it goes.
pub(super) async fn feel_pulse_regularly(shared: Arc<Shared>, centre: Arc<dyn Centre>) {
    loop {
        let pulse = centre.pulse().await;
        if let Err(error) = &pulse {
            tracing::debug!(%error, "how the database goes is not known");
        }
        let now_ms = shared.environment.clock.now_ms();
        shared.metrics.centre(pulse.as_ref().ok(), now_ms);
        sleep(PULSE_EVERY).await;
    }
}

/// Drops what is older than its retention time.
pub(super) async fn prune_regularly(
    shared: Arc<Shared>,
    centre: Arc<dyn Centre>,
    retention: Arc<Mutex<RetentionConfig>>,
) {
    loop {
        let retention = *retention.lock().unwrap_or_else(PoisonError::into_inner);
        // Servers that were started together need not all try at once.
        let [jitter] = random(&*shared.environment.randomness).unwrap_or([0]);
        sleep(
            retention
                .interval
                .mul_f64(1.0 + f64::from(jitter) / 2_560.0),
        )
        .await;
        let now_ms = shared.environment.clock.now_ms();
        match centre.prune(retention.keep, now_ms).await {
            Ok(pruned) => tracing::debug!(
                log_entries = pruned.log_entries,
                history = pruned.history,
                conflicts = pruned.conflicts,
                "dropped what is older than its retention time"
            ),
            Err(error) => tracing::warn!(%error, "what is old cannot be dropped"),
        }
        let spaces = shared.spaces.retentions();
        if spaces.is_empty() {
            continue;
        }
        match centre.prune_events(&spaces, now_ms).await {
            Ok(events) => tracing::debug!(events, "dropped events that were kept long enough"),
            Err(error) => tracing::warn!(%error, "old events cannot be dropped"),
        }
    }
}
