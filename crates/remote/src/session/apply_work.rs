//! Applying what has come, as a value: it may be done on any thread, while the connection goes on.

use super::applier_feed::ApplierFeed;
use super::download_parts::DownloadParts;
use super::error::SyncError;
use super::progress::{SyncPhase, SyncProgress};
use super::{Now, VerifyMode};
use crate::database::kept_uploads::UploadCopies;
use crate::database::{
    AdoptionRule, Applier, ApplyRefused, ApplySummary, RemoteDatabase, SubscriptionState,
};
use crate::spool::Spool;
use tidewater_protocol::PublicationSchema;

/// What an apply begins with.
pub(super) struct ApplyStart {
    pub(super) subscriptions: Vec<SubscriptionState>,
    pub(super) schemas: Vec<Option<PublicationSchema>>,
    pub(super) verify: VerifyMode,
    pub(super) adopt: Option<AdoptionRule>,
    pub(super) copies: UploadCopies,
}

impl ApplyStart {
    /// Begins to apply, or gives the database back.
    pub(super) fn begin(self, database: RemoteDatabase) -> Result<Applier, Box<ApplyRefused>> {
        let mut applier = database.begin_apply(&self.subscriptions, &self.schemas)?;
        if self.verify == VerifyMode::Look {
            applier.only_tell_differences();
        }
        applier.adopt(self.adopt);
        applier.keep_copies(self.copies);
        Ok(applier)
    }
}

/// Where the database is.
enum WorkStore {
    Idle(RemoteDatabase),
    Applying(Applier),
    /// Only while a step moves it from one to the other.
    Moving,
}

/// Applying a sync, from the spool to the commit. Whoever gets it from
/// [`crate::RemoteConnection::poll_work`] takes steps until [`ApplyWork::is_done`], and hands it back; to
/// hand it back before cancels the sync.
pub struct ApplyWork {
    store: WorkStore,
    beginning: Option<ApplyStart>,
    feed: ApplierFeed,
    /// `None` once all of it is applied.
    spool: Option<Box<dyn Spool>>,
    /// What is of use only until this is done, whatever comes of it.
    parts: DownloadParts,
    progress: SyncProgress,
    result: Option<Result<ApplySummary, SyncError>>,
    short: bool,
    /// Nothing has come, and nothing of the file would change but the time of the last sync,
    /// which is this.
    idle_since_ms: Option<i64>,
}

/// An idle sync that comes so soon after the last one leaves the file as it is. A commit would cost
/// more than all the rest of it, and its time is for people only.
const SAME_TIME_MS: i64 = 60_000;

impl ApplyWork {
    /// Work that begins with the spool.
    pub(super) fn replay(
        database: RemoteDatabase,
        beginning: ApplyStart,
        (spool, parts): (Box<dyn Spool>, DownloadParts),
        progress: SyncProgress,
        short: bool,
    ) -> ApplyWork {
        ApplyWork {
            store: WorkStore::Idle(database),
            beginning: Some(beginning),
            feed: ApplierFeed::default(),
            spool: Some(spool),
            parts,
            progress,
            result: None,
            short,
            idle_since_ms: None,
        }
    }

    /// Nothing has come: it is enough that the file says when it last synced. It does, to the
    /// minute.
    pub(super) fn idle_since(mut self, last_sync_ms: Option<i64>) -> ApplyWork {
        self.idle_since_ms = last_sync_ms;
        self
    }

    /// Work that has only the commit left: all was applied while it came.
    pub(super) fn commit(
        applier: Applier,
        parts: DownloadParts,
        progress: SyncProgress,
    ) -> ApplyWork {
        ApplyWork {
            store: WorkStore::Applying(applier),
            beginning: None,
            feed: ApplierFeed::default(),
            spool: None,
            parts,
            progress,
            result: None,
            short: false,
            idle_since_ms: None,
        }
    }

    /// Applies a piece of what has come, or commits it all.
    pub fn step(&mut self, now: Now) {
        if self.result.is_none()
            && let Err(error) = self.try_step(now)
        {
            self.result = Some(Err(error));
        }
    }

    /// Whether it takes no time worth speaking of: little has come, and no table of a large file is
    /// made, changed or replaced.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.result.is_some()
    }

    /// How far it is.
    pub fn progress(&self) -> &SyncProgress {
        &self.progress
    }

    fn try_step(&mut self, now: Now) -> Result<(), SyncError> {
        let is_same_time = |last: i64| {
            let passed = now.unix_ms.checked_sub(last);
            passed.is_some_and(|passed| (0..SAME_TIME_MS).contains(&passed))
        };
        if self.idle_since_ms.take().is_some_and(is_same_time) {
            self.result = Some(Ok(ApplySummary::default()));
            self.progress.enter_phase(SyncPhase::Done);
            return Ok(());
        }
        self.begin()?;
        let WorkStore::Applying(applier) = &mut self.store else {
            return Err(super::MOVING);
        };
        if let Some(spool) = &mut self.spool {
            let (parts, progress) = (&mut self.parts, &mut self.progress);
            let more = self.feed.step(&mut **spool, parts, applier, progress)?;
            if !more {
                self.spool = None;
            }
            return Ok(());
        }
        let WorkStore::Applying(applier) = std::mem::replace(&mut self.store, WorkStore::Moving)
        else {
            return Err(super::MOVING);
        };
        let (database, committed) = applier.commit(now.unix_ms);
        self.store = WorkStore::Idle(database);
        self.result = Some(Ok(committed?));
        self.progress.enter_phase(SyncPhase::Done);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), SyncError> {
        let Some(beginning) = self.beginning.take() else {
            return Ok(());
        };
        let WorkStore::Idle(database) = std::mem::replace(&mut self.store, WorkStore::Moving)
        else {
            return Err(super::MOVING);
        };
        match beginning.begin(database) {
            Ok(applier) => self.store = WorkStore::Applying(applier),
            Err(refused) => {
                self.store = WorkStore::Idle(refused.database);
                return Err(refused.error.into());
            }
        }
        Ok(())
    }

    /// The database, the progress, and what came of it. Nothing is left of what was not
    /// committed.
    pub(super) fn end(
        mut self,
    ) -> (
        RemoteDatabase,
        SyncProgress,
        Option<Result<ApplySummary, SyncError>>,
    ) {
        if self.result.is_some() {
            // What could not be applied comes anew.
            self.parts.remove();
        }
        let database = match self.store {
            WorkStore::Idle(database) => database,
            WorkStore::Applying(applier) => applier.abort(),
            WorkStore::Moving => unreachable!("every step puts the database back"),
        };
        (database, self.progress, self.result)
    }
}
