//! Syncing on the caller's thread, over TCP and TLS.
//!
//! Owns the loop between a [`Session`] and a connection, and the clock and randomness that
//! a session must not have. Leaves sockets and certificates to the carrier.
//!
//! One thread does everything and never waits for the server to read without reading
//! itself: two sides that only write would wait for each other for ever.

#![allow(
    clippy::disallowed_methods,
    reason = "a driver is where real time comes from"
)]

mod ping;

pub use ping::{PingReport, ping};

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_carrier::{Carrier, CarrierError, DialOptions, Received, ServerUrl, UrlError, tls};

use crate::database::{Account, Database};
use crate::report::Report;
use crate::session::{
    Now, Outcome, Progress, ProofKind, Session, SessionOptions, SyncDirection, SyncError, Verify,
};
use crate::spool::FileSpool;

/// How often the progress callback is asked whether to go on while nothing happens.
const TICK: Duration = Duration::from_millis(200);

/// How long the last words may take: nothing depends on them.
const FAREWELL: Duration = Duration::from_secs(2);

/// How many connections one sync may need in vain: token refused, credential refused, new
/// identity, centre restored, compare asked for.
const MAX_VAIN_CONNECTIONS: usize = 6;

/// How to sync.
#[derive(Clone)]
pub struct SyncOptions {
    /// The user's password, for the first sync or when the credential is no longer valid.
    pub password: Option<String>,
    /// Another address of the server than the one that the remote remembers. It is
    /// remembered as soon as the server there lets the remote in.
    pub server: Option<String>,
    /// Whether the file may go over to another centre: its rows then take the place of those
    /// that the file has of the former one. Otherwise that is [`SyncError::AnotherCentre`].
    pub other_centre: bool,
    /// Which way.
    pub direction: SyncDirection,
    /// Whether everything is compared instead: see [`Verify`].
    pub verify: Verify,
    /// A PEM file with the authorities to trust, instead of those that the remote
    /// remembers.
    pub ca_file: Option<PathBuf>,
    /// Whether `tcp://` to other machines is allowed.
    pub insecure: bool,
    /// How long the server may be silent.
    pub timeout: Duration,
    /// The program that syncs, for the server's logs.
    pub client: String,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions {
            password: None,
            server: None,
            other_centre: false,
            direction: SyncDirection::Both,
            verify: Verify::No,
            ca_file: None,
            insecure: false,
            timeout: Duration::from_secs(120),
            client: concat!("tidewater-remote/", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// A password is not for logs.
impl fmt::Debug for SyncOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncOptions")
            .field("password", &self.password.as_ref().map(|_| "..."))
            .field("server", &self.server)
            .field("other_centre", &self.other_centre)
            .field("direction", &self.direction)
            .field("verify", &self.verify)
            .field("ca_file", &self.ca_file)
            .field("insecure", &self.insecure)
            .field("timeout", &self.timeout)
            .field("client", &self.client)
            .finish()
    }
}

/// Syncs, and gives the database back.
///
/// # Errors
/// See [`SyncError`].
pub fn sync(
    database: Database,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> (Database, Result<Report, SyncError>) {
    let clock = Clock::start();
    let account = match database.account() {
        Ok(account) => account,
        Err(error) => return (database, Err(error.into())),
    };
    let mut database = database;
    let mut first_proof = ProofKind::Token;
    let (mut sent, mut received) = (0, 0);
    let mut total = Report::default();
    let mut in_vain = 0;
    while in_vain < MAX_VAIN_CONNECTIONS {
        in_vain += 1;
        let carrier = match dial_server(&account, options, progress) {
            Ok(carrier) => carrier,
            Err(error) => return (database, Err(error)),
        };
        let seed = match random_seed() {
            Ok(seed) => seed,
            Err(error) => return (database, Err(error)),
        };
        let session_options = SessionOptions {
            direction: options.direction,
            verify: options.verify,
            password: options.password.clone(),
            server: options.server.clone(),
            other_centre: options.other_centre,
            first_proof,
            client: options.client.clone(),
            silence_ms: u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX),
            spool: Box::new(FileSpool::beside(database.path())),
        };
        let mut session = Session::new(database, session_options, seed, clock.now());
        Drive {
            session: &mut session,
            carrier,
            clock: &clock,
        }
        .run(progress);
        let traffic = session.traffic();
        sent += traffic.0;
        received += traffic.1;
        let (back, outcome) = session.finish();
        database = back;
        match outcome {
            Outcome::Done(report) => {
                total.add(report);
                total.bytes_sent = sent;
                total.bytes_received = received;
                total.duration_ms = clock.now().ticks_ms;
                return (database, Ok(total));
            }
            Outcome::More(report) => {
                total.add(report);
                first_proof = ProofKind::Token;
                in_vain = 0;
            }
            Outcome::Again(proof) => first_proof = proof,
            Outcome::Failed(error) => return (database, Err(error)),
        }
    }
    let error = SyncError::unexpected("it sent the remote away again and again");
    (database, Err(error))
}

fn dial_server(
    account: &Account,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Carrier, SyncError> {
    let server = options.server.as_deref().unwrap_or(&account.server);
    if server.is_empty() {
        return Err(SyncError::Usage {
            what: "the remote does not know its server yet".into(),
            hint: "name a server, a user and a publication at the first sync".into(),
        });
    }
    let url: ServerUrl = server.parse()?;
    let remembered = account.ca.as_deref().map(Path::new);
    let ca_file = options.ca_file.as_deref().or(remembered);
    let connecting = Progress::new();
    let go_on = &mut || progress(&connecting);
    dial(&url, ca_file, options, go_on)
}

fn dial(
    url: &ServerUrl,
    ca_file: Option<&Path>,
    options: &SyncOptions,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Carrier, SyncError> {
    let options = DialOptions {
        ca_file,
        insecure: options.insecure,
        timeout: options.timeout,
    };
    Ok(Carrier::dial(url, &options, go_on)?)
}

impl From<UrlError> for SyncError {
    fn from(error: UrlError) -> SyncError {
        SyncError::Usage {
            what: error.to_string(),
            hint: "write it as tls://host:port or tcp://127.0.0.1:port".into(),
        }
    }
}

impl From<CarrierError> for SyncError {
    fn from(error: CarrierError) -> SyncError {
        let usage = |hint: &str| SyncError::Usage {
            what: error.to_string(),
            hint: hint.into(),
        };
        match error {
            CarrierError::Exposed { .. } => {
                usage("use tls://, or allow it with the option `insecure`")
            }
            CarrierError::HostName { .. } => usage("write the server's address as tls://host:port"),
            CarrierError::File { .. } => {
                usage("name a PEM file with the certificate of the server's authority")
            }
            CarrierError::Unreachable { server, source } => {
                SyncError::Unreachable { server, source }
            }
            CarrierError::Certificate {
                server,
                what,
                by_the_clock,
            } => SyncError::Certificate {
                server,
                what,
                by_the_clock,
            },
            CarrierError::Tls { server, what } => SyncError::Tls { server, what },
            CarrierError::Lost(source) => SyncError::ConnectionLost {
                during: "at the socket",
                source: Some(source),
            },
            CarrierError::Cancelled => SyncError::Cancelled,
            _ => SyncError::Defect {
                what: "the TLS library refuses its own defaults",
            },
        }
    }
}

fn random_seed() -> Result<[u8; 32], SyncError> {
    let mut seed = [0; 32];
    match tls::random(&mut seed) {
        Ok(()) => Ok(seed),
        Err(_) => Err(SyncError::Defect {
            what: "the system gives no random numbers",
        }),
    }
}

/// The clocks of a session.
struct Clock {
    start: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            start: Instant::now(),
        }
    }

    fn now(&self) -> Now {
        Now {
            ticks_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            unix_ms: unix_ms(),
        }
    }
}

/// The time in milliseconds since 1970.
pub(crate) fn unix_ms() -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_ms = unix
        .ok()
        .and_then(|unix| i64::try_from(unix.as_millis()).ok());
    unix_ms.unwrap_or(0)
}

/// The loop between a session and its connection.
struct Drive<'a> {
    session: &'a mut Session,
    carrier: Carrier,
    clock: &'a Clock,
}

impl Drive<'_> {
    fn run(mut self, progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>) {
        while !self.session.is_finished() {
            if let Err(error) = self.turn() {
                self.session.fail(error);
            }
            self.session.handle_timeout(self.clock.now());
            if let ControlFlow::Break(()) = progress(self.session.progress()) {
                self.session.cancel();
            }
        }
        // What is left to say is a courtesy to the server.
        let _ = self.farewell();
    }

    /// Applies, sends and receives what is possible now, or waits a moment for it.
    fn turn(&mut self) -> Result<(), SyncError> {
        self.refill();
        if self.session.wants_work() {
            // Everything has come: that the connection may end now is of no importance.
            let _ = self.receive(None).map(|_| self.carrier.send(false));
            self.session.handle_work(self.clock.now());
            return Ok(());
        }
        if !self.carrier.has_output() {
            self.receive(Some(self.patience()))?;
            return Ok(());
        }
        let mut sent = self.carrier.send(false)?;
        if !self.receive(None)? && !sent {
            sent = self.carrier.send(true)?;
        }
        if sent {
            self.session.handle_sent(self.clock.now());
        }
        Ok(())
    }

    fn refill(&mut self) {
        if self.carrier.takes_output()
            && let Some(bytes) = self.session.poll_transmit(self.clock.now())
        {
            self.carrier.push(bytes);
        }
    }

    /// Whether something came.
    fn receive(&mut self, wait: Option<Duration>) -> Result<bool, SyncError> {
        let session = &mut *self.session;
        let clock = self.clock;
        let mut handle = |bytes: &[u8]| session.handle_bytes(bytes, clock.now());
        let received = self.carrier.receive(wait, &mut handle)?;
        match received {
            Received::Nothing => return Ok(false),
            Received::Bytes => {}
            Received::End(error) => session.handle_end(error),
        }
        Ok(true)
    }

    /// How long nothing may happen before we look up.
    fn patience(&self) -> Duration {
        let deadline = self.session.poll_timeout().unwrap_or(u64::MAX);
        let left = deadline.saturating_sub(self.clock.now().ticks_ms);
        Duration::from_millis(left.max(1)).min(TICK)
    }

    /// Sends what is left and waits for the server to close: to close with unread bytes
    /// would destroy what is still on its way.
    fn farewell(&mut self) -> Result<(), SyncError> {
        let end = Instant::now() + FAREWELL;
        loop {
            self.refill();
            if !self.carrier.has_output() || Instant::now() >= end {
                break;
            }
            if !self.carrier.send(true)? {
                self.carrier.receive(None, &mut |_| {})?;
            }
        }
        self.carrier.close()?;
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            match self.carrier.receive(Some(left), &mut |_| {})? {
                Received::End(_) => break,
                Received::Bytes | Received::Nothing => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
