//! The scripts of a sync: those that have a transaction of their own, and the connection to which
//! the sync keeps for all of them.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use tidewater_centre::ScriptRun;
use tidewater_centre::engine::scripts::{ScriptTransaction, check_one_version, chosen, version};

use super::Sync;
use super::opening::Opened;
use super::reply::Watch;
use crate::fault::Fault;
use crate::script_sessions::{ScriptSession, ScriptUse};
use crate::server::Shared;
use crate::sign_in::answered;
use crate::worker::ScriptTask;

/// By which scripts a sync goes.
pub(super) struct SyncScripts {
    /// The version, if its scripts leave something in sessions.
    version: Option<String>,
    /// The session that the sync keeps, if its scripts find in it what others have left.
    session: Option<ScriptSession>,
}

impl SyncScripts {
    /// # Errors
    /// There is no such version, or several are asked for that cannot be run in one session.
    pub(super) fn of(opened: &Opened, server: &Arc<Shared>) -> Result<SyncScripts, Fault> {
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
            session: session.map(|it| server.workers.sessions_of_scripts.session(it)),
            version,
        })
    }
}

impl Sync<'_> {
    /// The connection for what is done next, which is the server's turn: nothing of it may wait for
    /// the remote.
    pub(super) async fn script_use(&self, scripts: &SyncScripts) -> Result<ScriptUse, Fault> {
        let mut script_use = ScriptUse {
            version: scripts.version.clone(),
            session: None,
        };
        let Some(session) = &scripts.session else {
            return Ok(script_use);
        };
        let server = self.server;
        if server.workers.sessions_of_scripts.waiting() >= server.limits.backlog {
            return Err(server.busy());
        }
        let mut watch = Watch::new(self.channel, server.limits.waiting);
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
    pub(super) async fn run_scripts(
        &self,
        opened: &Opened,
        scripts: &SyncScripts,
        transaction: ScriptTransaction,
    ) -> Result<(), Fault> {
        let now_ms = self.server.environment.clock.now_ms();
        let runs = opened.scripts(transaction, now_ms)?;
        if runs.is_empty() {
            return Ok(());
        }
        let scripts = self.script_use(scripts).await?;
        let (reply, answer) = oneshot::channel();
        self.server.workers.scripts.submit(ScriptTask {
            runs,
            scripts,
            reply,
        });
        let mut watch = Watch::new(self.channel, self.server.limits.waiting);
        let mut answer = pin!(answered(answer));
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
pub(super) async fn run_acknowledged(server: &Shared, runs: Vec<ScriptRun>) {
    let Some(first) = runs.first() else {
        return;
    };
    let version = version(&first.context, &first.publication).to_owned();
    let scripts = ScriptUse {
        version: Some(version),
        session: None,
    };
    let (reply, answer) = oneshot::channel();
    server.workers.scripts.submit(ScriptTask {
        runs,
        scripts,
        reply,
    });
    if let Err(fault) = answered(answer).await {
        tracing::error!(%fault, detail = fault.detail, "a script of an acknowledgement failed");
    }
}
