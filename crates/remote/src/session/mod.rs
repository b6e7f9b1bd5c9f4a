//! One sync as a state machine: bytes and time in, bytes and a report out.
//!
//! Owns what a remote does during a sync, on one connection. Has no sockets, clocks,
//! threads or randomness of its own: a driver feeds it, be it blocking, async, in a
//! browser, or the simulator. Leaves the file to [`crate::database`], the order of the
//! server's messages to `incoming`, sending to `outgoing`, applying to `applying`.
//!
//! A driver loops: send what [`Session::poll_transmit`] gives, hand in what arrives with
//! [`Session::handle_bytes`], call [`Session::handle_work`] while there is work, until
//! [`Session::is_finished`]. Then it sends what is left and calls [`Session::finish`].

mod applying;
mod error;
mod hello;
mod incoming;
mod outgoing;
mod progress;
mod receive;
mod welcome;

pub use error::SyncError;
pub use progress::{Phase, Progress};

use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};
use tidewater_protocol::frame::SYNC_CHANNEL;
use tidewater_protocol::message::{Cancel, Control, Failure};
use tidewater_protocol::{PublicationSchema, RemoteId, UploadId};

use self::applying::Feed;
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use crate::database::{Applier, CompareDue, Database, SubscriptionState};
use crate::report::Report;
use crate::spool::Spool;

/// The time, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub ticks_ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: i64,
}

/// Which way a sync goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDirection {
    /// Up and down.
    #[default]
    Both,
    /// Local changes go up; nothing comes down but what became of them.
    UploadOnly,
    /// Changes come down; local ones stay pending.
    DownloadOnly,
}

/// Whether a session compares all tables, whatever is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Only what is due.
    #[default]
    No,
    /// All tables; what differs is told and stays.
    Look,
    /// All tables; the centre's rows take the place of what differs.
    Repair,
}

/// How a remote can prove who it is, cheapest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProofKind {
    /// The session token of an earlier sync.
    #[default]
    Token,
    /// The remote's own credential.
    Credential,
    /// The user's password.
    Password,
}

/// What a session needs to know beside the database.
pub struct SessionOptions {
    /// Which way the sync goes.
    pub direction: SyncDirection,
    /// Whether everything is compared. Nothing is uploaded then.
    pub verify: Verify,
    /// The user's password, for the first sync or when the credential is no longer valid.
    pub password: Option<String>,
    /// Where the server is, to be remembered when it lets the remote in.
    pub server: Option<String>,
    /// Whether the file may go over to another centre, whose rows take the place of its own.
    pub other_centre: bool,
    /// The proof to begin with; [`Outcome::Again`] says which.
    pub first_proof: ProofKind,
    /// The program that syncs, for the server's logs.
    pub client: String,
    /// How long the server may be silent.
    pub silence_ms: u64,
    /// Where the download waits until it is complete.
    pub spool: Box<dyn Spool>,
}

/// How a session ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Everything is committed.
    Done(Report),
    /// What went up is committed, and the sync goes on with another session at once: uploads
    /// that a restored centre has forgotten go up one by one, and what is pending goes up
    /// before tables are compared.
    More(Report),
    /// Nothing went wrong, but the sync must be tried again at once, beginning with this
    /// proof: the one presented was refused, or the server has told what to do instead (take
    /// a new identity, give uploads back, compare).
    Again(ProofKind),
    /// It did not happen.
    Failed(SyncError),
}

/// Where the database is.
#[derive(Debug)]
enum Store {
    Idle(Database),
    Applying(Applier),
    /// Only while a method moves it from one to the other.
    Moving,
}

/// How far the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Messages go back and forth.
    Exchange,
    /// All has come; the spool is to be applied.
    Replay,
    /// All is applied; it is to be committed.
    Commit,
    /// It is over.
    Finished,
}

/// One sync on one connection.
pub struct Session {
    store: Store,
    remote_id: Option<RemoteId>,
    subscriptions: Vec<SubscriptionState>,
    schemas: Vec<Option<PublicationSchema>>,
    direction: SyncDirection,
    verify: Verify,
    /// Only uploads, and another session follows.
    prepares: bool,
    /// The server's new address.
    server: Option<String>,
    /// The name of the one centre that may let us in; empty: any.
    centre: String,
    other_centre: bool,
    /// The name of the centre that has let us in.
    let_in_by: Option<String>,
    /// What was presented, and what else could be.
    proof: ProofKind,
    has_credential: bool,
    has_password: bool,
    ids: UploadIds,
    stage: Stage,
    outcome: Option<Outcome>,
    incoming: Incoming,
    outgoing: Outgoing,
    feed: Feed,
    spool: Box<dyn Spool>,
    input: BytesMut,
    /// Whether a frame has come: then the peer speaks the protocol.
    peer_known: bool,
    silence_ms: u64,
    last_activity_ms: u64,
    report: Report,
    progress: Progress,
    reported: Option<Progress>,
}

impl Session {
    /// Begins a sync: takes what is pending and prepares the first flight. `seed` must be
    /// random. A failure shows as the session's outcome.
    pub fn new(database: Database, options: SessionOptions, seed: [u8; 32], now: Now) -> Session {
        let SessionOptions {
            direction,
            verify,
            password,
            server,
            other_centre,
            first_proof,
            client,
            silence_ms,
            spool,
        } = options;
        let mut session = Session {
            store: Store::Idle(database),
            remote_id: None,
            subscriptions: Vec::new(),
            schemas: Vec::new(),
            direction: match verify {
                Verify::No => direction,
                Verify::Look | Verify::Repair => SyncDirection::DownloadOnly,
            },
            verify,
            prepares: false,
            server,
            centre: String::new(),
            other_centre,
            let_in_by: None,
            proof: first_proof,
            has_credential: false,
            has_password: password.is_some(),
            ids: UploadIds { seed, count: 0 },
            stage: Stage::Exchange,
            outcome: None,
            incoming: Incoming::new(),
            outgoing: Outgoing::new(BytesMut::new(), &[], false, false),
            feed: Feed::default(),
            spool,
            input: BytesMut::new(),
            peer_known: false,
            silence_ms,
            last_activity_ms: now.ticks_ms,
            report: Report::default(),
            progress: Progress::default(),
            reported: None,
        };
        if let Err(error) = session.open(password.as_deref(), &client) {
            session.outgoing.stop();
            session.end(Outcome::Failed(error));
        }
        session
    }

    fn open(&mut self, password: Option<&str>, client: &str) -> Result<(), SyncError> {
        let Store::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        let account = database.account()?;
        let download_only = self.direction == SyncDirection::DownloadOnly;
        let (kind, proof) = hello::choose_proof(&account, self.proof, password)?;
        self.subscriptions = database.begin_sync(self.direction, &mut || self.ids.next())?;
        if self.subscriptions.is_empty() {
            return Err(SyncError::Usage {
                what: "the remote subscribes to nothing".into(),
                hint: "name a server, a user and a publication at the first sync".into(),
            });
        }
        if download_only && self.subscriptions.iter().any(|it| it.giving.is_some()) {
            // It would take away what the file alone still has.
            return Err(SyncError::Usage {
                what: "the centre was restored, and lacks what this remote has uploaded".into(),
                hint: "sync in both directions once, which gives it back".into(),
            });
        }
        self.plan(download_only);
        let upload_only = self.direction == SyncDirection::UploadOnly;
        self.remote_id = account.remote_id;
        self.has_credential = account.credential.is_some();
        self.proof = kind;
        let first = hello::opening(&account, proof, client, &self.subscriptions, !upload_only)?;
        self.outgoing = Outgoing::new(first, &self.subscriptions, !download_only, upload_only);
        let holds_rows = self.subscriptions.iter().any(|it| it.schema.is_some());
        if holds_rows && !self.other_centre {
            self.centre = account.centre;
        }
        Ok(())
    }

    /// Decides what this session is for. Uploads go before a compare, each that is given back
    /// in a session of its own; a compare has no uploads.
    fn plan(&mut self, download_only: bool) {
        let gives = |it: &SubscriptionState| it.giving.is_some();
        let is_due = |it: &SubscriptionState| it.compare_due != CompareDue::No;
        let subscriptions = &mut self.subscriptions;
        let upload_only = self.direction == SyncDirection::UploadOnly;
        let uploads_first = |it: &SubscriptionState| {
            gives(it) || (!upload_only && is_due(it) && it.taken.is_some())
        };
        self.prepares = !download_only && subscriptions.iter().any(uploads_first);
        if self.prepares {
            self.direction = SyncDirection::UploadOnly;
        } else if !upload_only {
            for subscription in subscriptions.iter_mut() {
                let compares = is_due(subscription) || self.verify != Verify::No;
                subscription.compares = compares && subscription.schema.is_some();
            }
        }
    }

    /// Hands in bytes that arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Now) {
        self.last_activity_ms = now.ticks_ms;
        self.progress.bytes_received += bytes.len() as u64;
        if self.stage == Stage::Finished {
            return;
        }
        self.input.extend_from_slice(bytes);
        if let Err(error) = self.receive() {
            self.fail(error);
        }
    }

    /// The server closed the connection, or it broke.
    pub fn handle_end(&mut self, source: Option<std::io::Error>) {
        if self.stage == Stage::Exchange {
            let during = self.incoming.during();
            self.fail(SyncError::ConnectionLost { during, source });
        }
    }

    /// Time has passed; see [`Session::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        if self
            .poll_timeout()
            .is_some_and(|deadline| now.ticks_ms >= deadline)
        {
            self.fail(SyncError::Timeout {
                after_ms: self.silence_ms,
                during: self.incoming.during(),
            });
        }
    }

    /// The caller wants no more of it. The remote is as it was before.
    pub fn cancel(&mut self) {
        self.fail(SyncError::Cancelled);
    }

    /// Ends the session with an error of the driver.
    pub fn fail(&mut self, error: SyncError) {
        if self.stage == Stage::Finished {
            return;
        }
        self.outgoing.stop();
        let farewell = match &error {
            SyncError::Protocol { code, what } => Some(Control::Failure(Failure::new(
                *code,
                what.as_str(),
                String::new(),
            ))),
            SyncError::Server { .. } | SyncError::Busy { .. } => None,
            _ => Some(Control::Cancel(Cancel {})),
        };
        if let Some(control) = farewell {
            // A courtesy: where it cannot be said, the end of the connection says enough.
            let _ = self.outgoing.urgent(SYNC_CHANNEL, control);
        }
        self.end(Outcome::Failed(error));
    }

    /// Whether [`Session::handle_work`] has something to do.
    pub fn wants_work(&self) -> bool {
        matches!(self.stage, Stage::Replay | Stage::Commit)
    }

    /// Applies a piece of what has come, or commits it.
    pub fn handle_work(&mut self, now: Now) {
        let worked = match self.stage {
            Stage::Replay => self.replay(),
            Stage::Commit => self.commit(now),
            Stage::Exchange | Stage::Finished => Ok(()),
        };
        if let Err(error) = worked {
            self.fail(error);
        }
    }

    /// The next bytes to send, whole frames. Ask again when they are on their way.
    pub fn poll_transmit(&mut self, now: Now) -> Option<Bytes> {
        let database = match &self.store {
            Store::Idle(database) => Some(database),
            Store::Applying(_) | Store::Moving => None,
        };
        let was_requested = self.outgoing.is_requested();
        let polled = self
            .outgoing
            .poll(database, &self.subscriptions, &mut self.progress);
        match polled {
            Ok(Some(bytes)) => {
                self.last_activity_ms = now.ticks_ms;
                self.progress.bytes_sent += bytes.len() as u64;
                if !was_requested && self.outgoing.is_requested() {
                    self.progress.phase(Phase::Waiting { ahead: 0 });
                }
                Some(bytes)
            }
            Ok(None) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Bytes are on their way: the connection is alive.
    pub fn handle_sent(&mut self, now: Now) {
        self.last_activity_ms = now.ticks_ms;
    }

    /// When to call [`Session::handle_timeout`], in ticks.
    pub fn poll_timeout(&self) -> Option<u64> {
        (self.stage == Stage::Exchange)
            .then(|| self.last_activity_ms.saturating_add(self.silence_ms))
    }

    /// How far the sync is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How far the sync is, if that has changed since the last call.
    pub fn poll_progress(&mut self) -> Option<&Progress> {
        if self.reported.as_ref() == Some(&self.progress) {
            return None;
        }
        self.reported = Some(self.progress.clone());
        self.reported.as_ref()
    }

    /// Whether the sync is over. Bytes may still wait to be sent.
    pub fn is_finished(&self) -> bool {
        self.stage == Stage::Finished
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        (self.progress.bytes_sent, self.progress.bytes_received)
    }

    /// Gives the database back and tells how the sync ended. One that had not ended is
    /// given up.
    pub fn finish(mut self) -> (Database, Outcome) {
        self.cancel();
        let mut outcome = self
            .outcome
            .take()
            .unwrap_or(Outcome::Failed(SyncError::Cancelled));
        if let Outcome::Done(report) | Outcome::More(report) = &mut outcome {
            report.bytes_sent = self.progress.bytes_sent;
            report.bytes_received = self.progress.bytes_received;
        }
        match self.store {
            Store::Idle(database) => (database, outcome),
            Store::Applying(applier) => (applier.abort(), outcome),
            Store::Moving => unreachable!("every method puts the database back"),
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.store = match std::mem::replace(&mut self.store, Store::Moving) {
            Store::Applying(applier) => Store::Idle(applier.abort()),
            other => other,
        };
        if let Store::Idle(database) = &mut self.store {
            match outcome {
                Outcome::Done(_) | Outcome::Failed(_) => database.sync_is_over(),
                Outcome::More(_) => {
                    // What is pending behind an upload that was on its way already was made from
                    // the same history, and goes before the compare, too.
                    let was_on_its_way =
                        |it: &SubscriptionState| it.taken.is_some() && it.taken_under.is_none();
                    let mut subscriptions = self.subscriptions.iter();
                    let takes = subscriptions.any(|it| it.giving.is_some() || was_on_its_way(it));
                    database.sync_goes_on(self.prepares && !takes);
                }
                Outcome::Again(_) => {}
            }
        }
        self.stage = Stage::Finished;
        self.input = BytesMut::new();
        self.outcome = Some(outcome);
    }
}

/// What cannot be: a method of the session found the database gone.
const MOVING: SyncError = SyncError::Defect {
    what: "the session lost its database",
};

/// Random ids out of a random seed.
#[derive(Debug)]
struct UploadIds {
    seed: [u8; 32],
    count: u64,
}

impl UploadIds {
    fn next(&mut self) -> UploadId {
        let mut hash = Sha256::new();
        hash.update(self.seed);
        hash.update(self.count.to_le_bytes());
        self.count += 1;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        UploadId::from_random(bytes)
    }
}

#[cfg(test)]
mod tests;
