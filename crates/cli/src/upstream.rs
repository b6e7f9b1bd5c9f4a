//! The line of a branch to headquarters: the branch's file is a remote there, and kept in sync by a
//! thread of the server's for as long as that runs.
//!
//! Owns when it syncs, what the log says of it, and that the branch deploys by itself what follows
//! from headquarters' schema. Syncing is the client library's, what the two roles of the file have
//! to do with each other the SQLite adapter's.
//!
//! Nothing here ever stops the server: as long as headquarters is away, devices are served, and
//! what they upload waits in the file.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidewater_centre::Centre;
use tidewater_client::{
    BearerToken, ClientCertificate, ClientError, LiveEvent, LiveOptions, Remote, RemoteDatabase,
    Report,
};
use tidewater_protocol::Code;
use tidewater_server::config::{UpstreamConfig, UpstreamPace, UpstreamProof};
use tidewater_server::{Config, Upstream};
use tidewater_terminal::Failure;
use tokio::runtime::Handle;

use crate::clock::now_ms;

/// The pause after a first failure, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How often it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(100);

/// After so many looks it counts what waits.
const TICKS_BETWEEN_COUNTS: u32 = 50;

/// Where the file of the consolidated database is, if it is one.
pub(crate) fn file_of(config: &Config) -> Option<PathBuf> {
    let path = config.server.consolidated.strip_prefix("sqlite:")?;
    Some(path.strip_prefix("//").unwrap_or(path).into())
}

/// A branch's file, as headquarters' remote.
pub(crate) struct UpstreamLine {
    remote: Remote,
    /// Another handle of the same file, to look at it while it syncs.
    file: RemoteDatabase,
    server: String,
    every: UpstreamPace,
}

impl UpstreamLine {
    /// Opens the file, or makes it.
    pub(crate) fn open(config: &UpstreamConfig, path: PathBuf) -> Result<UpstreamLine, Failure> {
        let mut remote = Remote::open(&path).map_err(|error| {
            let mut failure = Failure::from(error);
            if failure.code == Code::NotARemote {
                failure.hint =
                    "a branch begins with a file that is not there yet: serve fetches it \
                                from headquarters. Name another one in `consolidated`, or leave \
                                [upstream] out"
                        .into();
            }
            failure
        })?;
        let server = config.server.to_string();
        let publications: Vec<&str> = config.publications.iter().map(String::as_str).collect();
        // A name that was mistyped the last time would fail for ever.
        remote.database()?.forget_never_synced(&publications)?;
        remote.subscribe(&server, &config.user, &publications)?;
        if let Some(file) = &config.ca {
            remote.set_ca_file(Some(file))?;
        }
        if let Some(pin) = config.pin {
            remote.set_pin(Some(pin))?;
        }
        remote.set_insecure(config.insecure);
        remote.set_proxy(config.proxy.clone());
        remote.set_compression(config.packing);
        remote.set_client(concat!("tidewater/", env!("CARGO_PKG_VERSION"), " branch"));
        let is_known = remote.account()?.credential.is_some();
        prove(&mut remote, config.proof.as_ref(), is_known)?;
        Ok(UpstreamLine {
            remote,
            file: RemoteDatabase::open(&path)?,
            server,
            every: config.every,
        })
    }

    /// Fetches what the branch holds if it has nothing to serve yet, however long that takes; false
    /// if it was to stop first.
    pub(crate) fn fetch(&mut self, stop: &AtomicBool) -> Result<bool, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut told = None;
        while self.file.own_centre()?.is_none() && !self.has_tables()? {
            if told.is_none() {
                tracing::info!(
                    server = self.server,
                    "the file is new: fetching it from headquarters before anybody is served"
                );
            }
            let stopping = &mut || stop.load(Ordering::Relaxed);
            let error = match sync(&mut self.remote, stopping) {
                Ok(_) => continue,
                Err(_) if stop.load(Ordering::Relaxed) => return Ok(false),
                Err(error) if !error.code().is_transient() => {
                    let mut failure = Failure::from(error);
                    failure.message = format!("headquarters {}: {}", self.server, failure.message);
                    return Err(failure);
                }
                Err(error) => error,
            };
            if told.replace(error.code()) != Some(error.code()) {
                tracing::warn!(%error, hint = error.hint(), "headquarters cannot be reached; trying again");
            }
            let advised = error.retry_after_ms().map(Duration::from_millis);
            if !sleep(pause.max(advised.unwrap_or_default()), stopping) {
                return Ok(false);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(true)
    }

    /// Whether every publication has come.
    fn has_tables(&self) -> Result<bool, Failure> {
        let subscriptions = self.file.subscriptions()?;
        Ok(subscriptions.iter().all(|it| it.schema.is_some()))
    }

    /// Whether the file is no centre yet.
    pub(crate) fn is_undeployed(&self) -> Result<bool, Failure> {
        Ok(self.file.own_centre()?.is_none())
    }

    /// Keeps the file in sync until it is told to stop.
    pub(crate) fn keep(self, upstream: Upstream, deploying: BranchDeployment) -> KeptLine {
        let stop = Arc::new(AtomicBool::new(false));
        let keeper = Keeper {
            server: self.server,
            file: self.file,
            upstream,
            deploying,
            stop: stop.clone(),
            ticks: 0,
            failed: None,
            schemas: Vec::new(),
        };
        let (remote, every) = (self.remote, self.every);
        let thread = thread::Builder::new().name("upstream".into());
        let thread = thread.spawn(move || keeper.keep(remote, every));
        if let Err(error) = &thread {
            tracing::error!(%error, "there is no thread to sync with headquarters");
        }
        KeptLine {
            stop,
            thread: thread.ok(),
        }
    }
}

/// What a deployment takes that follows from headquarters' schema.
pub(crate) struct BranchDeployment {
    pub(crate) centre: Arc<dyn Centre>,
    pub(crate) config: Config,
    pub(crate) runtime: Handle,
}

/// A line that is kept until this is dropped.
pub(crate) struct KeptLine {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KeptLine {
    /// Ends it: what is under way is cancelled, and nothing is lost.
    pub(crate) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the line to headquarters has ended by a defect");
        }
    }
}

impl Drop for KeptLine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Keeper {
    server: String,
    file: RemoteDatabase,
    upstream: Upstream,
    deploying: BranchDeployment,
    stop: Arc<AtomicBool>,
    ticks: u32,
    /// Why the last sync failed, if it did.
    failed: Option<Code>,
    /// The schemas that the branch was last deployed for, as hashes.
    schemas: Vec<Vec<u8>>,
}

impl Keeper {
    fn keep(mut self, mut remote: Remote, every: UpstreamPace) {
        self.look_above();
        self.schemas = self.schemas_now();
        let mut pause = FIRST_PAUSE;
        while !self.is_over() {
            let rest = match every {
                UpstreamPace::Every(every) => match sync(&mut remote, &mut || self.is_over()) {
                    Ok(report) => {
                        self.synced(&report);
                        pause = FIRST_PAUSE;
                        every
                    }
                    Err(error) => {
                        self.failed(&error);
                        let rest = rest(&error, pause);
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        rest
                    }
                },
                UpstreamPace::Live => {
                    let options = LiveOptions::default();
                    let lived = remote.live(&options, &mut |event| self.hear(event));
                    match lived {
                        Ok(()) => FIRST_PAUSE,
                        Err(_) => LONGEST_PAUSE,
                    }
                }
            };
            if !sleep(rest, &mut || self.is_over()) {
                return;
            }
        }
    }

    fn hear(&mut self, event: &LiveEvent<'_>) -> ControlFlow<()> {
        match event {
            LiveEvent::Synced { report, .. } => self.synced(report),
            LiveEvent::Failed { error, .. } => self.failed(error),
            _ => {}
        }
        match self.is_over() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Whether it is to stop; now and then it counts what waits.
    fn is_over(&mut self) -> bool {
        if self.ticks == 0 {
            self.count();
        }
        self.ticks = (self.ticks + 1) % TICKS_BETWEEN_COUNTS;
        self.stop.load(Ordering::Relaxed)
    }

    fn synced(&mut self, report: &Report) {
        self.upstream.synced();
        if self.failed.take().is_some() {
            tracing::info!(server = self.server, "in step with headquarters again");
        }
        let up = report.uploaded;
        let uploaded = up.inserts + up.updates + up.deletes;
        let downloaded = report.downloaded.upserts + report.downloaded.removals;
        if uploaded + downloaded + report.conflicts + report.refused > 0 {
            tracing::info!(
                uploaded,
                downloaded,
                conflicts = report.conflicts,
                refused = report.refused,
                "synced with headquarters"
            );
        }
        if report.refused > 0 {
            tracing::warn!(
                refused = report.refused,
                hint = format!("see: tidewater refused list {}", self.file.path().display()),
                "headquarters has refused rows of this branch"
            );
        }
        self.look_above();
        self.count();
        self.follow_schema();
    }

    /// Said once, until it is something else.
    fn failed(&mut self, error: &ClientError) {
        // A sync that was cancelled because the server stops is no failure.
        if self.stop.load(Ordering::Relaxed) {
            return;
        }
        self.upstream.failed();
        let code = error.code();
        if self.failed.replace(code) == Some(code) {
            return;
        }
        let (server, hint) = (&self.server, error.hint());
        match code.is_transient() {
            true => tracing::warn!(
                server, %error, hint,
                "headquarters cannot be reached; devices are served, and what they upload waits"
            ),
            false => tracing::error!(
                server, %error, hint,
                "the branch cannot sync with headquarters; devices are served, and what they upload \
                 waits"
            ),
        }
    }

    fn look_above(&self) {
        match self.file.above() {
            Ok(above) => self.upstream.set_above(above),
            Err(error) => tracing::warn!(%error, "what is above the branch cannot be read"),
        }
    }

    fn count(&self) {
        // If it is locked for so long, the next count tells.
        if let Ok((pending, refused)) = self.file.waiting() {
            self.upstream.set_waiting(pending, refused);
        }
    }

    fn schemas_now(&self) -> Vec<Vec<u8>> {
        let subscriptions = self.file.subscriptions().unwrap_or_default();
        subscriptions.into_iter().map(|it| it.schema_hash).collect()
    }

    /// Headquarters has other tables: what the branch publishes is deployed again.
    fn follow_schema(&mut self) {
        let now = self.schemas_now();
        if now == self.schemas {
            return;
        }
        let BranchDeployment {
            centre,
            config,
            runtime,
        } = &self.deploying;
        let deployed = runtime.block_on(centre.deploy(&config.publications, false, now_ms()));
        match deployed {
            Ok(report) => {
                self.schemas = now;
                let steps = report.steps.len();
                tracing::info!(steps, "headquarters' tables have changed: deployed again");
            }
            Err(error) => tracing::error!(
                %error,
                hint = error.hint(),
                "headquarters' tables have changed, and the branch cannot deploy what it publishes"
            ),
        }
    }
}

/// After a failure: sooner than the next regular sync, but not at once; what somebody has to put
/// right is tried seldom.
fn rest(error: &ClientError, pause: Duration) -> Duration {
    let advised = error.retry_after_ms().map(Duration::from_millis);
    match error.code().is_transient() {
        true => pause.max(advised.unwrap_or_default()),
        false => LONGEST_PAUSE,
    }
}

fn sync(remote: &mut Remote, stops: &mut dyn FnMut() -> bool) -> Result<Report, ClientError> {
    remote.sync(&mut |_| match stops() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
}

/// Whether to go on afterwards.
fn sleep(pause: Duration, stops: &mut dyn FnMut() -> bool) -> bool {
    let mut left = pause;
    while !left.is_zero() {
        if stops() {
            return false;
        }
        thread::sleep(TICK.min(left));
        left = left.saturating_sub(TICK);
    }
    !stops()
}

/// What a remote without a credential signs in with; one that has one may need it again.
fn prove(
    remote: &mut Remote,
    proof: Option<&UpstreamProof>,
    is_known: bool,
) -> Result<(), Failure> {
    match proof {
        None => {}
        Some(UpstreamProof::Password(password)) => remote.set_password(password),
        Some(UpstreamProof::PasswordFile(file)) => match std::fs::read_to_string(file) {
            Ok(password) => remote.set_password(password.trim_end_matches(['\r', '\n'])),
            Err(_) if is_known => {}
            Err(error) => return Err(Failure::file("read", file, &error)),
        },
        Some(UpstreamProof::TokenFile(file)) => remote.set_bearer(BearerToken::File(file.clone())),
        Some(UpstreamProof::Certificate(certificate, key)) => {
            remote.set_certificate(ClientCertificate {
                certificate: certificate.clone(),
                key: key.clone(),
            });
        }
    }
    if proof.is_none() && !is_known {
        return Err(Failure::new(
            Code::CredentialInvalid,
            "the branch has never signed in at headquarters, and [upstream] does not say with what",
            "write password = \"${VARIABLE}\" or password_file = \"FILE\" under [upstream]; once it \
             has signed in, it has a credential of its own in its file",
        ));
    }
    Ok(())
}
