//! The scripts of a sync: those that have a transaction of their own, and the connection to which
//! the sync keeps for all of them.

use std::pin::pin;

use tidewater_centre::ScriptRun;
use tidewater_centre::engine::scripts::{ScriptTransaction, check_one_version, chosen, version};

use super::opening::OpenedSync;
use super::reply::Watch;
use super::{Sync, SyncService};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::script_sessions::{ScriptSession, ScriptUse};

/// By which scripts a sync goes.
pub(crate) struct SyncScripts {
    /// The version, if its scripts leave something in sessions.
    version: Option<String>,
    /// The session that the sync keeps, if its scripts find in it what others have left.
    session: Option<ScriptSession>,
}

impl SyncScripts {
    /// # Errors
    /// There is no such version, or several are asked for that cannot be run in one session.
    pub(crate) fn new(opened: &OpenedSync, service: &SyncService) -> Result<SyncScripts, Fault> {
        let context = opened.context(0);
        let mut all = Vec::new();
        for subscription in &opened.subscriptions {
            let published = &subscription.published;
            let name = published.schema.name.as_str();
            if published.scripts.is_empty() {
                continue;
            }
            if let Some(scripts) = chosen(&published.scripts, &context, name)? {
                all.push((name, version(&context, name), scripts));
            }
        }
        check_one_version(all.iter().cloned())?;
        let needs = all.iter().find(|(.., it)| it.needs_a_session());
        let version = needs.map(|(_, version, _)| (*version).to_owned());
        let keeps = all.iter().any(|(.., it)| it.keeps_a_session());
        let session = version.clone().filter(|_| keeps);
        Ok(SyncScripts {
            session: session.map(|it| service.lanes.script_sessions.session(it)),
            version,
        })
    }
}

impl Sync<'_> {
    /// The connection for what is done next, which is the server's turn: nothing of it may wait for
    /// the remote.
    pub(crate) async fn script_use(&self, scripts: &SyncScripts) -> Result<ScriptUse, Fault> {
        let mut script_use = ScriptUse {
            version: scripts.version.clone(),
            session: None,
        };
        let Some(session) = &scripts.session else {
            return Ok(script_use);
        };
        let service = self.service;
        let waiting = service.lanes.script_sessions.waiting();
        if service.admission.exceeds_backlog(waiting) {
            return Err(service.admission.busy());
        }
        let mut watch = Watch::new(self.channel, service.limits.waiting);
        let mut hold = pin!(session.hold());
        loop {
            tokio::select! {
                biased;
                held = &mut hold => {
                    script_use.session = Some(held);
                    return Ok(script_use);
                }
                () = watch.tick() => watch.waiting(0)?,
            }
        }
    }

    /// Runs scripts of a transaction of their own, if there are some.
    pub(crate) async fn run_scripts(
        &self,
        opened: &OpenedSync,
        scripts: &SyncScripts,
        transaction: ScriptTransaction,
    ) -> Result<(), Fault> {
        let now_ms = self.service.environment.clock.now_ms();
        let runs = opened.scripts(transaction, now_ms)?;
        if runs.is_empty() {
            return Ok(());
        }
        let scripts = self.script_use(scripts).await?;
        let mut watch = Watch::new(self.channel, self.service.limits.waiting);
        let mut answer = pin!(self.service.lanes.run_scripts(runs, scripts));
        loop {
            tokio::select! {
                biased;
                ran = &mut answer => return ran,
                () = watch.tick() => watch.waiting(0)?,
            }
        }
    }
}

/// Runs what is to be run when a remote has everything. It has, whatever comes of that.
pub(crate) async fn run_acknowledged(lanes: &WorkerLanes, runs: Vec<ScriptRun>) {
    let Some(first) = runs.first() else {
        return;
    };
    let version = version(&first.context, &first.publication).to_owned();
    let scripts = ScriptUse {
        version: Some(version),
        session: None,
    };
    if let Err(fault) = lanes.run_scripts(runs, scripts).await {
        tracing::error!(%fault, detail = fault.detail, "a script of an acknowledgement failed");
    }
}
