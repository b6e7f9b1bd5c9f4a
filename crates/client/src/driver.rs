//! Syncing on the caller's thread, over whatever carries the connection: one sync, in as many
//! sessions and connections as it takes.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tidewater_carrier::{NoPin, Pin, ServerUrls};
use tidewater_connection::device::DeviceError;
use tidewater_protocol::Code;
use tidewater_remote::database::{RemoteAccount, RemoteDatabase};
use tidewater_remote::session::{ProofKind, SessionOptions, SessionOutcome};
use tidewater_remote::spool::{FileDownloadStore, FileSpool};
use tidewater_remote::{Report, SyncDirection, SyncError, SyncProgress, VerifyMode};

use crate::broken_download::BrokenDownload;
use crate::carrier_loop::{CarrierLoop, TICK};
use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::link::Link;
use crate::options::SyncOptions;
use crate::outbox::OutboxCalls;
use crate::retry_pause::random_seed;
use crate::retry_policy::RetryPolicy;

/// How many sessions one sync may need in vain: token refused, credential refused, new identity,
/// centre restored, compare asked for, publications changed.
pub(crate) const MAX_VAIN_SESSIONS: usize = 6;

/// One sync.
struct SyncRun<'a> {
    options: &'a SyncOptions,
    /// Where it connects this time.
    elsewhere: Option<&'a str>,
    clock: DriverClock,
    account: RemoteAccount,
    /// The addresses to be remembered, if they or their order are others than those that are.
    moves_to: Option<String>,
    link: &'a mut Option<Link>,
    /// The connection stays when the sync has ended.
    keeps: bool,
    /// Bytes that the link had sent and received before.
    before: [u64; 2],
    total: Report,
}

/// Syncs over the link that there is, if it can be used, and gives the database back. If `keeps`,
/// there is a link afterwards, unless the sync fails.
///
/// # Errors
/// See [`ClientError`].
pub(crate) fn sync(
    database: RemoteDatabase,
    options: &SyncOptions,
    elsewhere: Option<&str>,
    link: &mut Option<Link>,
    keeps: bool,
    progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
) -> (RemoteDatabase, Result<Report, ClientError>) {
    let clock = DriverClock::start();
    let account = match database.account() {
        Ok(account) => account,
        Err(error) => return (database, Err(error.into())),
    };
    let was = account.remote_id;
    let mut syncing = SyncRun {
        options,
        elsewhere,
        clock,
        account,
        moves_to: None,
        link,
        keeps,
        before: [0; 2],
        total: Report::default(),
    };
    syncing.begin();
    let (mut database, mut result) = syncing.run(database, progress);
    if result.is_ok() {
        result = syncing.call(&mut database, progress);
    }
    match keeps && result.is_ok() {
        true => syncing.count(),
        false => syncing.hang_up(),
    }
    let SyncRun { mut total, .. } = syncing;
    total.duration_ms = clock.now().ticks_ms;
    let result = result.and_then(|()| {
        total.tell_stale(&database)?;
        total.starts_over = was.is_some() && database.account()?.remote_id != was;
        Ok(total)
    });
    (database, result.map_err(ClientError::in_sync))
}

/// Fills the inbox, over a link that is open. Whether that is lost meanwhile, it tells itself.
///
/// # Errors
/// The caller wants no more, or the file cannot be written.
pub(crate) fn fill_inbox(
    database: &mut RemoteDatabase,
    link: &Link,
    progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
) -> Result<Report, ClientError> {
    let clock = DriverClock::start();
    let before = link.traffic();
    let mut calling = OutboxCalls {
        database,
        link,
        progress,
        clock,
    };
    let mut report = Report::default();
    let filled = calling.run(SyncDirection::DownloadOnly, &mut report);
    filled.map_err(ClientError::in_sync)?;
    let (sent, received) = link.traffic();
    report.bytes_sent = sent - before.0;
    report.bytes_received = received - before.1;
    report.duration_ms = clock.now().ticks_ms;
    Ok(report)
}

impl<'a> SyncRun<'a> {
    fn run(
        &mut self,
        mut database: RemoteDatabase,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> (RemoteDatabase, Result<(), ClientError>) {
        let mut first_proof = ProofKind::Token;
        let mut in_vain = 0;
        // Since when the server has not served it.
        let mut turned_away = None;
        let mut broken = BrokenDownload::default();
        while in_vain < MAX_VAIN_SESSIONS {
            in_vain += 1;
            let ended;
            (database, ended) = self.session(database, first_proof, progress);
            let error = match ended {
                Ok(SessionOutcome::Done(report)) => {
                    self.total.add(report);
                    return (database, Ok(()));
                }
                Ok(SessionOutcome::More(report)) => {
                    self.total.add(report);
                    first_proof = ProofKind::Token;
                    in_vain = 0;
                    turned_away = None;
                    continue;
                }
                Ok(SessionOutcome::Again(proof)) => {
                    first_proof = proof;
                    continue;
                }
                Ok(SessionOutcome::Failed(error)) => ClientError::from(error),
                Ok(_) => break,
                Err(error) => error,
            };
            let waited = match error.code() {
                // What is published has changed under it: the next session goes by that.
                Code::Redeployed if in_vain < MAX_VAIN_SESSIONS => {
                    let wait = Duration::from_millis(error.retry_after_ms().unwrap_or(0));
                    first_proof = ProofKind::Token;
                    self.wait_as_advised(error.code(), wait, progress)
                }
                Code::ConnectionLost | Code::Timeout | Code::Unreachable
                    if self.options.retry != RetryPolicy::Off && broken.look(&database) =>
                {
                    let Some(wait) = broken.pause() else {
                        return (database, Err(broken.given_up(error)));
                    };
                    in_vain = 0;
                    first_proof = ProofKind::Token;
                    self.pause(error.code(), wait, progress)
                }
                code => {
                    let since = *turned_away.get_or_insert(self.clock.elapsed());
                    let waited = self.clock.elapsed().saturating_sub(since);
                    let Some(wait) = self.options.retry.wait(&error, waited) else {
                        return (database, Err(error));
                    };
                    in_vain = 0;
                    self.wait_as_advised(code, wait, progress)
                }
            };
            if let Err(error) = waited {
                return (database, Err(error));
            }
        }
        let error = DeviceError::unexpected("it sent the remote away again and again");
        (database, Err(error.into()))
    }

    /// Executes what is in the outbox and fills the inbox, over the connection of the sync.
    fn call(
        &mut self,
        database: &mut RemoteDatabase,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let Some(link) = self
            .link
            .as_ref()
            .filter(|_| self.options.verify == VerifyMode::No)
        else {
            return Ok(());
        };
        let link = link.clone();
        let mut calling = OutboxCalls {
            database,
            link: &link,
            progress,
            clock: self.clock,
        };
        calling.run(self.options.direction, &mut self.total)
    }

    /// One session, over the connection that there is or a new one.
    fn session(
        &mut self,
        database: RemoteDatabase,
        first_proof: ProofKind,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> (RemoteDatabase, Result<SessionOutcome, ClientError>) {
        let prepared = self
            .link(progress)
            .and_then(|link| Ok((link, random_seed()?)));
        let (link, seed) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return (database, Err(error)),
        };
        let options = match self.session_options(&database, first_proof) {
            Ok(options) => options,
            Err(error) => return (database, Err(error)),
        };
        link.sync(database, options, seed, progress)
    }

    /// Waits until the server wants it back.
    fn wait_as_advised(
        &mut self,
        reason: Code,
        wait: Duration,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        self.pause(reason, wait, progress)?;
        self.total.retries += 1;
        Ok(())
    }

    /// Waits before the next session, without a connection: a server that has too much to do
    /// needs the place for others.
    fn pause(
        &mut self,
        reason: Code,
        wait: Duration,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        self.hang_up();
        let end = self.clock.elapsed().saturating_add(wait);
        loop {
            let left = end.saturating_sub(self.clock.elapsed());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            if progress(&SyncProgress::retrying(reason, left_ms)).is_break() {
                return Err(SyncError::Cancelled.into());
            }
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(TICK));
        }
    }

    /// The connection that there is, if another session can go over it, or a new one.
    fn link(
        &mut self,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Link, ClientError> {
        if let Some(link) = &self.link
            && link.can_sync()
        {
            return Ok(link.clone());
        }
        self.hang_up();
        let server = self.elsewhere.or(self.options.server.as_deref());
        let server = server.unwrap_or(&self.account.server);
        if server.is_empty() {
            return Err(SyncError::Usage {
                what: "the remote does not know its server yet".into(),
                hint: "name a server, a user and a publication at the first sync".into(),
            }
            .into());
        }
        let known = &self.account.server;
        let mut urls: ServerUrls = server.parse()?;
        if let Ok(known) = known.parse() {
            // That has those first that got through.
            urls = urls.in_the_order_of(known);
        }
        let remembered = self.account.ca.as_deref().map(Path::new);
        let ca_file = self.options.ca_file.as_deref().or(remembered);
        let pin = match (self.options.pin, &self.account.pin) {
            (None, Some(pin)) if self.options.ca_file.is_none() => Some(remembered_pin(pin)?),
            (pin, _) => pin,
        };
        let connecting = SyncProgress::default();
        let go_on = &mut || progress(&connecting);
        let dial = self.options.dial(ca_file, pin);
        let (line, url) = CarrierLoop::dial(&urls, &dial, &self.options.client, self.clock, go_on)?;
        let urls = urls.beginning_with(&url).to_string();
        let is_kept = self.elsewhere.is_none() && urls != *known;
        self.moves_to = is_kept.then_some(urls);
        let link = Link::over(line)?;
        if self.keeps {
            link.keep()?;
        }
        Ok(self.link.insert(link).clone())
    }

    fn session_options(
        &self,
        database: &RemoteDatabase,
        first_proof: ProofKind,
    ) -> Result<SessionOptions, ClientError> {
        let options = self.options;
        let account = database.account()?;
        let has_own = account.remote_id.is_some() && account.credential.is_some();
        let is_needed = first_proof == ProofKind::User || !has_own;
        Ok(SessionOptions {
            direction: options.direction,
            verify: options.verify,
            user_proof: options.user_proof(is_needed)?,
            server: self.moves_to.clone(),
            other_centre: options.other_centre,
            adopt: options.adopt,
            first_proof,
            spool: Box::new(FileSpool::beside(database.path())),
            keep: Box::new(FileDownloadStore::beside(database.path())),
        })
    }

    /// What went over the link before is not this sync's.
    fn begin(&mut self) {
        if let Some(link) = &self.link {
            let (sent, received) = link.traffic();
            self.before = [sent, received];
        }
    }

    fn count(&mut self) {
        if let Some(link) = &self.link {
            let (sent, received) = link.traffic();
            self.total.bytes_sent += sent - self.before[0];
            self.total.bytes_received += received - self.before[1];
        }
        self.before = [0; 2];
    }

    fn hang_up(&mut self) {
        if let Some(link) = self.link.take() {
            link.hang_up();
            *self.link = Some(link);
            self.count();
            *self.link = None;
        }
    }
}

/// What the file remembers. Whoever changes it there is told before anybody is trusted.
fn remembered_pin(text: &str) -> Result<Pin, ClientError> {
    text.parse().map_err(|error: NoPin| {
        ClientError::Sync(SyncError::Usage {
            what: format!("the remote's file pins {text:?}: {error}"),
            hint: "pin the server's key once more with --pin".into(),
        })
    })
}
