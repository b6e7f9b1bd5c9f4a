//! One sync as a state machine: control messages and rows in, control messages and rows out.
//!
//! Owns what a remote does during a sync. Leaves the file to [`crate::database`], and channels,
//! credit, sign-in and time to [`crate::connection`]; the order of the server's messages to
//! `incoming`, what they mean to `receive`, sending to `outgoing`, applying to `work`.

mod applier_feed;
mod apply_work;
mod download_parts;
mod error;
mod hello;
mod incoming_messages;
mod kept_frames;
mod outgoing_messages;
mod progress;
mod receive;
mod welcome;

pub(crate) use outgoing_messages::OutgoingFrame;

pub use crate::sync_direction::SyncDirection;
pub use apply_work::ApplyWork;
pub use error::SyncError;
pub use progress::{SyncPhase, SyncProgress};
pub use tidewater_connection::device::{Now, ProofKind, SignInRequest, UserProof};

use sha2::{Digest, Sha256};
use tidewater_protocol::{PublicationSchema, RemoteId, UploadId};

use self::applier_feed::ApplierFeed;
use self::download_parts::DownloadParts;
use self::incoming_messages::IncomingMessages;
use self::outgoing_messages::OutgoingMessages;
use crate::database::{
    AdoptionRule, Applier, CompareDue, RemoteAccount, RemoteDatabase, SubscriptionState,
};
use crate::report::Report;
use crate::spool::{DownloadStore, Spool};

/// Whether a session compares all tables, whatever is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// Only what is due.
    #[default]
    No,
    /// All tables; what differs is told and stays.
    Look,
    /// All tables; the centre's rows take the place of what differs.
    Repair,
}

/// What a session needs to know beside the database.
pub struct SessionOptions {
    /// Which way the sync goes.
    pub direction: SyncDirection,
    /// Whether everything is compared. Nothing is uploaded then.
    pub verify: VerifyMode,
    /// For the first sync, or when the credential is no longer enough.
    pub user_proof: Option<UserProof>,
    /// Where the server is, to be remembered when it lets the remote in.
    pub server: Option<String>,
    /// Whether the file may go over to another centre, whose rows take the place of its own.
    pub other_centre: bool,
    /// What becomes of tables of the application's that have the names of published ones; without
    /// it they are in the way.
    pub adopt: Option<AdoptionRule>,
    /// The proof to begin with; [`SessionOutcome::Again`] says which.
    pub first_proof: ProofKind,
    /// Where the download waits until it is complete.
    pub spool: Box<dyn Spool>,
    /// Where what comes of downloads is kept, should the sync break.
    pub keep: Box<dyn DownloadStore>,
}

/// How a session ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionOutcome {
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
enum SessionStore {
    Idle(RemoteDatabase),
    /// All is applied as it comes.
    Applying(Applier),
    /// All has come.
    Ready(Box<ApplyWork>),
    /// Somebody does the work.
    Away,
    /// Only while a method moves it from one to the other.
    Moving,
}

/// How far the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionStage {
    /// Messages go back and forth.
    Exchange,
    /// All has come, and is to be applied and committed.
    Work,
    /// It is over.
    Finished,
}

/// One sync.
pub(crate) struct SyncSession {
    store: SessionStore,
    remote_id: Option<RemoteId>,
    subscriptions: Vec<SubscriptionState>,
    schemas: Vec<Option<PublicationSchema>>,
    direction: SyncDirection,
    verify: VerifyMode,
    /// Only uploads, and another session follows.
    prepares: bool,
    /// The server's new address.
    server: Option<String>,
    /// The name of the one centre that may let us in; empty: any.
    centre: String,
    other_centre: bool,
    adopt: Option<AdoptionRule>,
    /// The name of the centre that has let us in.
    let_in_by: Option<String>,
    /// The remote has become another one.
    starts_over: bool,
    ids: UploadIds,
    stage: SessionStage,
    outcome: Option<SessionOutcome>,
    incoming: IncomingMessages,
    outgoing: OutgoingMessages,
    feed: ApplierFeed,
    spool: Option<Box<dyn Spool>>,
    keep: Box<dyn DownloadStore>,
    parts: DownloadParts,
    /// Bytes of rows in the spool.
    spooled: usize,
    /// Whether a table is made, changed or replaced.
    alters: bool,
    /// Whether there is anything in what has come for the file to keep.
    brings_something: bool,
    report: Report,
    progress: SyncProgress,
}

impl SyncSession {
    /// A sync that has not begun. `seed` must be random.
    pub(crate) fn new(
        database: RemoteDatabase,
        options: SessionOptions,
        seed: [u8; 32],
    ) -> SyncSession {
        SyncSession {
            store: SessionStore::Idle(database),
            remote_id: None,
            subscriptions: Vec::new(),
            schemas: Vec::new(),
            direction: match options.verify {
                VerifyMode::No => options.direction,
                VerifyMode::Look | VerifyMode::Repair => SyncDirection::DownloadOnly,
            },
            verify: options.verify,
            prepares: false,
            server: options.server,
            centre: String::new(),
            other_centre: options.other_centre,
            adopt: options.adopt,
            let_in_by: None,
            starts_over: false,
            ids: UploadIds { seed, count: 0 },
            stage: SessionStage::Exchange,
            outcome: None,
            incoming: IncomingMessages::new(),
            outgoing: OutgoingMessages::default(),
            feed: ApplierFeed::default(),
            spool: Some(options.spool),
            keep: options.keep,
            parts: DownloadParts::default(),
            spooled: 0,
            alters: false,
            brings_something: false,
            report: Report::default(),
            progress: SyncProgress::default(),
        }
    }

    /// Whom the remote belongs to.
    pub(crate) fn account(&mut self) -> Result<RemoteAccount, SyncError> {
        Ok(self.database()?.account()?)
    }

    /// Takes what is pending, and has the first flight ready.
    pub(crate) fn begin(&mut self, account: RemoteAccount) -> Result<(), SyncError> {
        let SessionStore::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        let download_only = self.direction == SyncDirection::DownloadOnly;
        let adopts = self.adopt == Some(AdoptionRule::Mine);
        self.subscriptions =
            database.begin_sync(self.direction, adopts, &mut || self.ids.next())?;
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
        if !upload_only {
            let kept = self.subscriptions.iter().map(|it| {
                let is_from_image = !it.image.is_empty() && !it.checkpoint.is_empty();
                let keeps = !it.compares && !is_from_image;
                keeps.then(|| (&*it.publication, hello::checkpoint(it, true)))
            });
            self.parts = DownloadParts::open(&mut *self.keep, self.remote_id, kept);
            self.progress.bytes_kept = self.parts.kept_bytes();
        }
        let hello = hello::hello(&self.subscriptions, &self.parts, !upload_only);
        self.outgoing =
            OutgoingMessages::new(hello, &self.subscriptions, !download_only, upload_only);
        let holds_rows = self.subscriptions.iter().any(|it| it.schema.is_some());
        if holds_rows && !self.other_centre {
            self.centre = account.centre;
        }
        Ok(())
    }

    /// Decides what this session is for. Uploads go before a compare, each that is given back, and
    /// each transaction that others wait behind, in a session of its own; a compare has no uploads.
    fn plan(&mut self, download_only: bool) {
        let gives = |it: &SubscriptionState| it.giving.is_some();
        let is_due = |it: &SubscriptionState| it.compare_due != CompareDue::No;
        let subscriptions = &mut self.subscriptions;
        let upload_only = self.direction == SyncDirection::UploadOnly;
        let uploads_first = |it: &SubscriptionState| {
            gives(it) || it.more || (!upload_only && is_due(it) && it.taken.is_some())
        };
        self.prepares = !download_only && subscriptions.iter().any(uploads_first);
        if self.prepares {
            self.direction = SyncDirection::UploadOnly;
        } else if !upload_only {
            for subscription in subscriptions.iter_mut() {
                let compares = is_due(subscription) || self.verify != VerifyMode::No;
                subscription.compares = compares && subscription.schema.is_some();
            }
        }
    }

    /// Ends the session, unless all has come and somebody is at work.
    pub(crate) fn fail(&mut self, error: SyncError) {
        if self.stage != SessionStage::Finished && !matches!(self.store, SessionStore::Away) {
            self.end(SessionOutcome::Failed(error));
        }
    }

    /// The sync begins anew at once, with this proof.
    pub(crate) fn end_for_retry(&mut self, proof: ProofKind) {
        self.end(SessionOutcome::Again(proof));
    }

    /// What is to be applied and committed, once.
    pub(crate) fn take_work(&mut self) -> Option<ApplyWork> {
        match std::mem::replace(&mut self.store, SessionStore::Away) {
            SessionStore::Ready(work) => Some(*work),
            other => {
                self.store = other;
                None
            }
        }
    }

    /// The work is done, or given up.
    pub(crate) fn take_back_work(&mut self, work: ApplyWork) {
        let (database, progress, result) = work.end();
        self.store = SessionStore::Idle(database);
        self.progress = SyncProgress {
            bytes_sent: self.progress.bytes_sent,
            bytes_received: self.progress.bytes_received,
            bytes_kept: self.progress.bytes_kept,
            ..progress
        };
        match result {
            Some(Ok(summary)) => self.note_committed(summary),
            Some(Err(error)) => self.fail(error),
            None => self.fail(SyncError::Cancelled),
        }
    }

    /// The next message or piece of rows to send, if there is one; of rows, what there is room
    /// for.
    pub(crate) fn poll_output(&mut self, room: usize) -> Option<OutgoingFrame> {
        if self.stage != SessionStage::Exchange {
            return None;
        }
        let database = match &self.store {
            SessionStore::Idle(database) => database,
            SessionStore::Applying(applier) => applier.database(),
            SessionStore::Ready(_) | SessionStore::Away | SessionStore::Moving => return None,
        };
        let was_requested = self.outgoing.is_requested();
        let polled = self
            .outgoing
            .poll(room, database, &self.subscriptions, &mut self.progress);
        if !was_requested && self.outgoing.is_requested() {
            self.progress.enter_phase(SyncPhase::Waiting { ahead: 0 });
        }
        polled.unwrap_or_else(|error| {
            self.fail(error);
            None
        })
    }

    /// Whether something of the sync is still to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.is_exchanging() && !self.outgoing.is_requested()
    }

    /// What is going on, for messages to people.
    pub(crate) fn during(&self) -> &'static str {
        self.incoming.during()
    }

    /// How far the sync is.
    pub(crate) fn progress(&self) -> &SyncProgress {
        &self.progress
    }

    /// So much was sent or received while the sync was under way.
    pub(crate) fn count(&mut self, sent: usize, received: usize) {
        self.progress.bytes_sent += sent as u64;
        self.progress.bytes_received += received as u64;
    }

    /// Whether messages still go back and forth.
    pub(crate) fn is_exchanging(&self) -> bool {
        self.stage == SessionStage::Exchange
    }

    /// How it ended.
    pub(crate) fn outcome(&self) -> Option<&SessionOutcome> {
        self.outcome.as_ref()
    }

    /// Whether the remote has become another one, which has to sign in.
    pub(crate) fn starts_over(&self) -> bool {
        self.starts_over
    }

    /// Gives the database back and tells how the sync ended.
    pub(crate) fn finish(self) -> Option<(RemoteDatabase, SessionOutcome)> {
        let SessionStore::Idle(database) = self.store else {
            return None;
        };
        Some((database, self.outcome?))
    }

    fn database(&mut self) -> Result<&mut RemoteDatabase, SyncError> {
        match &mut self.store {
            SessionStore::Idle(database) => Ok(database),
            _ => Err(MOVING),
        }
    }

    fn end(&mut self, outcome: SessionOutcome) {
        self.outgoing.stop();
        self.store = match std::mem::replace(&mut self.store, SessionStore::Moving) {
            SessionStore::Applying(applier) => SessionStore::Idle(applier.abort()),
            SessionStore::Ready(work) => SessionStore::Idle(work.end().0),
            other => other,
        };
        if let SessionStore::Idle(database) = &mut self.store {
            match outcome {
                SessionOutcome::Done(_) | SessionOutcome::Failed(_) => database.finish_sync(),
                SessionOutcome::More(_) => {
                    // What is pending behind an upload that was on its way already was made from
                    // the same history, and goes before the compare, too.
                    let was_on_its_way =
                        |it: &SubscriptionState| it.taken.is_some() && it.taken_under.is_none();
                    let mut subscriptions = self.subscriptions.iter();
                    let takes = subscriptions.any(|it| it.giving.is_some() || was_on_its_way(it));
                    database.continue_sync(self.prepares && !takes);
                }
                SessionOutcome::Again(_) => {}
            }
        }
        self.stage = SessionStage::Finished;
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
