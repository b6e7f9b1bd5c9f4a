//! Syncing on the caller's thread, over whatever carries the connection.
//!
//! Owns the loop between a [`Session`] and a connection, and the clock and randomness that
//! a session must not have. Leaves sockets and certificates to the carrier.
//!
//! One thread does everything and never waits for the server to read without reading
//! itself: two sides that only write would wait for each other for ever.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_carrier::{Carrier, CarrierError, DialOptions, Received, ServerUrl, tls};
use tidewater_protocol::Code;
use tidewater_remote::Report;
use tidewater_remote::database::{Account, Database};
use tidewater_remote::session::{
    Now, Outcome, Progress, ProofKind, Session, SessionOptions, SyncError,
};
use tidewater_remote::spool::FileSpool;

use crate::error::ClientError;
use crate::options::SyncOptions;

/// How often the progress callback is asked whether to go on while nothing happens.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// How long the last words may take: nothing depends on them.
const FAREWELL: Duration = Duration::from_secs(2);

/// How many connections one sync may need in vain: token refused, credential refused, new
/// identity, centre restored, compare asked for.
pub(crate) const MAX_VAIN_CONNECTIONS: usize = 6;

/// Syncs, and gives the database back.
///
/// # Errors
/// See [`ClientError`].
pub(crate) fn sync(
    database: Database,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> (Database, Result<Report, ClientError>) {
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
            Err(error) => return (database, Err(error.into())),
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
        let driven = Drive {
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
        if let Err(error) = driven {
            return (database, Err(error.into()));
        }
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
            Outcome::Failed(error) => return (database, Err(error.into())),
            _ => break,
        }
    }
    let error = SyncError::Protocol {
        code: Code::UnexpectedMessage,
        what: "it sent the remote away again and again".into(),
    };
    (database, Err(error.into()))
}

fn dial_server(
    account: &Account,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Carrier, ClientError> {
    let server = options.server.as_deref().unwrap_or(&account.server);
    if server.is_empty() {
        return Err(SyncError::Usage {
            what: "the remote does not know its server yet".into(),
            hint: "name a server, a user and a publication at the first sync".into(),
        }
        .into());
    }
    let url: ServerUrl = server.parse()?;
    let remembered = account.ca.as_deref().map(Path::new);
    let ca_file = options.ca_file.as_deref().or(remembered);
    let connecting = Progress::default();
    let go_on = &mut || progress(&connecting);
    dial(&url, ca_file, options, go_on)
}

pub(crate) fn dial(
    url: &ServerUrl,
    ca_file: Option<&Path>,
    options: &SyncOptions,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Carrier, ClientError> {
    let options = DialOptions {
        ca_file,
        insecure: options.insecure,
        timeout: options.timeout,
    };
    Ok(Carrier::dial(url, &options, go_on)?)
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
    fn run(
        mut self,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<(), CarrierError> {
        let mut broken = Ok(());
        while !self.session.is_finished() {
            if let Err(error) = self.turn() {
                broken = Err(error);
                self.session.cancel();
            }
            self.session.handle_timeout(self.clock.now());
            if let ControlFlow::Break(()) = progress(self.session.progress()) {
                self.session.cancel();
            }
        }
        // What is left to say is a courtesy to the server.
        let _ = self.farewell();
        broken
    }

    /// Applies, sends and receives what is possible now, or waits a moment for it.
    fn turn(&mut self) -> Result<(), CarrierError> {
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
    fn receive(&mut self, wait: Option<Duration>) -> Result<bool, CarrierError> {
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
    fn farewell(&mut self) -> Result<(), CarrierError> {
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
