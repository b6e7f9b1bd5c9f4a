//! What the session does with each message of the server.

use bytes::Bytes;
use tidewater_connection::device::{DeviceError, SignInAnswer};
use tidewater_protocol::message::{Control, FailureNotice, Welcome};
use tidewater_protocol::{Code, RemoteId};

use super::apply_work::{ApplyStart, ApplyWork};
use super::kept_frames::{keep_control, keep_rows};
use super::progress::SyncPhase;
use super::welcome::WelcomeAnswer;
use super::{
    MOVING, ProofKind, SessionOutcome, SessionStage, SessionStore, SyncDirection, SyncError,
    SyncSession, VerifyMode,
};
use crate::database::{ApplySummary, CompareDue, HelloState, NewIdentity, SubscriptionState};
use crate::report::UploadedRows;

/// So many bytes of rows are applied in some milliseconds.
const SHORT_BYTES: usize = 256 << 10;

/// In a file of so many bytes even tables are made, changed or replaced in some milliseconds.
const SMALL_FILE_BYTES: u64 = 1 << 20;

impl SyncSession {
    /// Takes a message. Once everything has come, nothing else matters.
    pub(crate) fn handle_control(&mut self, control: Control) -> Result<(), SyncError> {
        if self.stage != SessionStage::Exchange {
            return Ok(());
        }
        match control {
            Control::Welcome(welcome) => self.handle_welcome(welcome),
            Control::Busy(busy) => Err(SyncError::Connection(DeviceError::Busy {
                retry_after_ms: busy.retry_after_ms,
            })),
            Control::Failure(failure) => self.handle_failure(failure),
            Control::Waiting(waiting) => {
                if self.outgoing.is_requested() {
                    self.progress.enter_phase(match waiting.handler {
                        true => SyncPhase::WaitingForHandler,
                        false => SyncPhase::Waiting {
                            ahead: waiting.ahead,
                        },
                    });
                }
                Ok(())
            }
            Control::ResultBegin(_)
            | Control::ResultEnd(_)
            | Control::DownloadBegin(_)
            | Control::DownloadMark(_)
            | Control::DownloadEnd(_)
            | Control::TableBegin(_)
            | Control::SyncEnd(_) => {
                let outgoing = &self.outgoing;
                self.incoming.check_control(
                    &control,
                    &self.subscriptions,
                    |index| outgoing.upload_is_over(index),
                    outgoing.is_requested(),
                )?;
                self.handle_in_order(control)
            }
            other => Err(SyncError::unexpected(format!(
                "it sent a {} on the channel of a sync",
                other.name()
            ))),
        }
    }

    /// Takes a piece of rows.
    pub(crate) fn handle_rows(&mut self, bytes: &Bytes) -> Result<(), SyncError> {
        if self.stage != SessionStage::Exchange {
            return Ok(());
        }
        self.incoming.check_rows(bytes)?;
        let is_applied = matches!(self.store, SessionStore::Applying(_));
        if self.parts.keep_rows(bytes, is_applied)? && !is_applied {
            self.spooled += bytes.len();
            return Ok(());
        }
        match (&mut self.store, &mut self.spool) {
            (SessionStore::Applying(applier), _) => {
                self.feed.apply_rows(applier, bytes, &mut self.progress)
            }
            (_, Some(spool)) => {
                self.spooled += bytes.len();
                keep_rows(&mut **spool, bytes).map(|_| ())
            }
            _ => Err(MOVING),
        }
    }

    /// A message that passed the check of its order: it is applied at once, or kept until all
    /// has come.
    fn handle_in_order(&mut self, control: Control) -> Result<(), SyncError> {
        let progress = &mut self.progress;
        match &control {
            Control::TableBegin(begin) => {
                progress.enter_table(SyncPhase::Downloading, &begin.table, begin.expected_rows);
                self.alters |= begin.replace || !begin.ranges.is_empty();
                self.brings_something = true;
            }
            Control::DownloadMark(mark) => progress.rows = mark.rows,
            Control::DownloadBegin(begin) => {
                self.brings_something |= begin.scope_changed || begin.verify || begin.resumed;
                // Of what has come before, nobody remembers.
                self.alters |= begin.resumed;
            }
            Control::DownloadEnd(end) => {
                let is_empty = end.upserts == 0 && end.removals == 0 && end.checkpoint.is_empty();
                self.brings_something |= !is_empty;
            }
            Control::ResultEnd(end) => {
                self.report.uploaded.add(UploadedRows {
                    inserts: end.inserts,
                    updates: end.updates,
                    deletes: end.deletes,
                });
            }
            Control::SyncEnd(_) => return self.finish_receiving(),
            _ => {}
        }
        let is_applied = matches!(self.store, SessionStore::Applying(_));
        if let Control::DownloadBegin(begin) = &control {
            self.report.bytes_kept += self.parts.begin(begin, is_applied)?;
        } else if self.parts.keep_control(&control, is_applied)? && !is_applied {
            return Ok(());
        }
        match (&mut self.store, &mut self.spool) {
            (SessionStore::Applying(applier), _) => {
                self.feed
                    .apply_control(applier, &control, SyncPhase::Downloading, progress)
            }
            (_, Some(spool)) => keep_control(&mut **spool, control).map(|_| ()),
            _ => Err(MOVING),
        }
    }

    /// The server has let the remote in.
    pub(crate) fn handle_sign_in(&mut self, admission: &SignInAnswer) -> Result<(), SyncError> {
        // Before anything is remembered of it.
        self.check_above(admission)?;
        self.let_in(&admission.centre)?;
        let (own, remote_id) = (self.remote_id, admission.remote_id);
        let server = self.server.take();
        let database = self.database()?;
        if let Some(server) = server {
            database.store_server(&server)?;
        }
        if let Some(user) = &admission.user {
            database.store_user(user)?;
        }
        let (token, credential) = (admission.token.as_deref(), admission.credential.as_deref());
        if own.is_some_and(|own| own != remote_id) {
            // The server does not know us any more.
            return self.start_over(remote_id, token, credential);
        }
        database.store_sign_in(own, remote_id, token, credential, &admission.centre)?;
        database.store_above(&admission.above)?;
        self.remote_id = Some(remote_id);
        Ok(())
    }

    /// A branch's file does not sync with the branch's own server, nor with one below it.
    fn check_above(&mut self, admission: &SignInAnswer) -> Result<(), SyncError> {
        let Some(own) = self.database()?.own_centre()? else {
            return Ok(());
        };
        let is_own = admission.centre == own;
        match is_own || admission.above.contains(&own) {
            true => Err(SyncError::OwnDescendant { is_own }),
            false => Ok(()),
        }
    }

    /// The remote is in, at the centre of this name; empty if it says none.
    pub(crate) fn let_in(&mut self, centre: &str) -> Result<(), SyncError> {
        if !self.centre.is_empty() && !centre.is_empty() && self.centre != centre {
            return Err(SyncError::AnotherCentre);
        }
        self.let_in_by = Some(centre.to_owned());
        Ok(())
    }

    fn handle_welcome(&mut self, welcome: Welcome) -> Result<(), SyncError> {
        if self.let_in_by.is_none() || self.incoming.is_welcomed() {
            return Err(SyncError::unexpected("a Welcome out of turn"));
        }
        let answer = WelcomeAnswer::read(welcome, &self.subscriptions)?;
        let has_told = self.subscriptions.iter().any(|it| it.verified.is_some());
        let said = HelloState {
            remote_id: self.remote_id,
            subscriptions: &self.subscriptions,
        };
        let SessionStore::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        if has_told {
            database.forget_verified()?;
        }
        if let Some((remote_id, credential)) = answer.new_identity {
            let Some(states) = database.recognise(&self.subscriptions, &answer.has)? else {
                return self.start_over(remote_id, None, Some(&credential));
            };
            let ids = &mut self.ids;
            database.accept_centre_state(said, &states, &mut || ids.next())?;
            self.end_for_retry(ProofKind::Token);
            return Ok(());
        }
        if !answer.forgotten.is_empty() {
            let ids = &mut self.ids;
            database.accept_centre_state(said, &answer.forgotten, &mut || ids.next())?;
            self.end_for_retry(ProofKind::Token);
            return Ok(());
        }
        if !answer.blocks.is_empty() {
            // At once: they are ours whatever becomes of the sync.
            database.store_numbers(self.remote_id, &answer.blocks)?;
        }
        let has_tables = self.subscriptions.iter().any(|it| it.schema.is_some());
        let is_new = !has_tables && database.is_new()?;
        self.agree(answer)?;
        // Nobody uses tables that are not there yet: no need to wait until all has come. Unless a
        // part of it has come before.
        if is_new && self.progress.bytes_kept == 0 && self.direction != SyncDirection::UploadOnly {
            self.begin_apply()?;
        }
        Ok(())
    }

    /// Becomes another remote, which signs in anew.
    fn start_over(
        &mut self,
        remote_id: RemoteId,
        token: Option<&[u8]>,
        credential: Option<&[u8]>,
    ) -> Result<(), SyncError> {
        let SessionStore::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        let said = HelloState {
            remote_id: self.remote_id,
            subscriptions: &self.subscriptions,
        };
        let identity = NewIdentity {
            remote_id,
            token,
            credential,
            centre: self.let_in_by.as_deref().unwrap_or_default(),
        };
        let ids = &mut self.ids;
        database.adopt_identity(said, &identity, &mut || ids.next())?;
        self.starts_over = true;
        self.end_for_retry(ProofKind::Token);
        Ok(())
    }

    /// Settles what follows the Welcome.
    fn agree(&mut self, answer: WelcomeAnswer) -> Result<(), SyncError> {
        let mut results = Vec::new();
        self.outgoing.welcomed(answer.received);
        for (index, &applied) in answer.already_applied.iter().enumerate() {
            if applied {
                self.outgoing.abandon(index);
            }
            let subscription = &self.subscriptions[index];
            let uploads = self.direction != SyncDirection::DownloadOnly
                && !subscription.compares
                && subscription.next_upload().is_some();
            if applied || uploads {
                results.push(index);
            }
        }
        let upload_only = self.direction == SyncDirection::UploadOnly;
        let downloads = if upload_only {
            0
        } else {
            self.subscriptions.len()
        };
        self.incoming.begin_results(results, downloads);
        let remote_id = self.remote_id;
        let answers = self.subscriptions.iter().zip(answer.schemas).enumerate();
        for (index, (subscription, schema)) in answers {
            if !upload_only && subscription.schema.is_none() && schema.is_none() {
                return Err(SyncError::Connection(DeviceError::Protocol {
                    code: Code::SchemaMismatch,
                    what: format!("it sent no schema of {:?}", subscription.publication),
                }));
            }
            // A new schema is put in place by the download that was made for it. Without one it
            // still tells which of the uploaded columns have left.
            self.alters |= schema.is_some();
            let hash = match &schema {
                Some(schema) => Some(schema.hash()),
                None => subscription.schema_hash.as_slice().try_into().ok(),
            };
            if let Some(hash) = hash {
                self.parts.agree(remote_id, index, hash);
            }
            self.schemas.push(schema);
        }
        Ok(())
    }

    /// The server cannot go on.
    fn handle_failure(&mut self, mut failure: FailureNotice) -> Result<(), SyncError> {
        if failure.code == Code::UnknownPublication.number()
            && let SessionStore::Idle(database) = &mut self.store
        {
            // Most likely mistyped: it would make every further sync fail.
            database.forget_never_synced(&[])?;
            let publication = &failure.subject;
            if !publication.is_empty() && database.note_dropped(publication)? {
                failure.hint = format!(
                    "its tables stay as they are, and the file's other publications sync without \
                     it; tidewater unsubscribe FILE {publication} takes its tables out of the \
                     file, and keeps what is pending in them among the refused rows; {}",
                    failure.hint
                );
            }
        }
        if failure.code == Code::ScriptFailed.number()
            && let SessionStore::Idle(database) = &mut self.store
            && let mut subscriptions = self.subscriptions.iter()
            && let Some(said) = subscriptions.find(|it| it.publication == failure.subject)
        {
            database.take_back(said)?;
        }
        Err(failure.into())
    }

    /// The server does not like the proof that was presented.
    pub(crate) fn retry_with_proof(&mut self, next: ProofKind) -> Result<(), SyncError> {
        self.database()?.forget_token()?;
        self.end_for_retry(next);
        Ok(())
    }

    /// What an apply begins with.
    fn take_apply_start(&mut self) -> ApplyStart {
        ApplyStart {
            subscriptions: self.subscriptions.clone(),
            schemas: std::mem::take(&mut self.schemas),
            verify: self.verify,
            adopt: self.adopt,
            copies: self.outgoing.take_copies(),
        }
    }

    fn begin_apply(&mut self) -> Result<(), SyncError> {
        let beginning = self.take_apply_start();
        match std::mem::replace(&mut self.store, SessionStore::Moving) {
            SessionStore::Idle(database) => match beginning.begin(database) {
                Ok(applier) => self.store = SessionStore::Applying(applier),
                Err(refused) => {
                    self.store = SessionStore::Idle(refused.database);
                    return Err(refused.error.into());
                }
            },
            other => self.store = other,
        }
        Ok(())
    }

    fn finish_receiving(&mut self) -> Result<(), SyncError> {
        self.progress.enter_phase(SyncPhase::Applying);
        let mut spool = self.spool.take().ok_or(MOVING)?;
        spool.rewind().map_err(SyncError::Spool)?;
        let bytes = self.spooled as u64 + self.report.bytes_kept;
        let (alters, little) = (self.alters, bytes <= SHORT_BYTES as u64);
        let idle_since_ms = self.idle_since_ms();
        let beginning = self.take_apply_start();
        let progress = self.progress.clone();
        let parts = std::mem::take(&mut self.parts);
        self.store = match std::mem::replace(&mut self.store, SessionStore::Moving) {
            SessionStore::Idle(database) => {
                // If that cannot be told now, what follows will say why.
                let is_small = || database.bytes().is_ok_and(|it| it <= SMALL_FILE_BYTES);
                let short = little && (!alters || is_small());
                let kept = (spool, parts);
                let work = ApplyWork::replay(database, beginning, kept, progress, short);
                SessionStore::Ready(Box::new(work.idle_since(idle_since_ms)))
            }
            SessionStore::Applying(applier) => {
                SessionStore::Ready(Box::new(ApplyWork::commit(applier, parts, progress)))
            }
            other => other,
        };
        self.stage = SessionStage::Work;
        Ok(())
    }

    /// When the file last synced, if applying what has come would change nothing else. Of refused
    /// changes some may wait for the end of a sync.
    fn idle_since_ms(&self) -> Option<i64> {
        let is_idle = |it: &SubscriptionState| {
            let has_upload = it.next_upload().is_some();
            let compares = it.compares || it.compare_due != CompareDue::No;
            it.schema.is_some() && !has_upload && !compares && !it.any_refused
        };
        let changes_schemas = self.schemas.iter().any(Option::is_some);
        if self.brings_something || changes_schemas || !self.subscriptions.iter().all(is_idle) {
            return None;
        }
        // The earliest, and none if there is one that never did.
        self.subscriptions.iter().map(|it| it.last_sync_ms).min()?
    }

    pub(super) fn note_committed(&mut self, summary: ApplySummary) {
        // What waited for the compare, or is pending since, goes up with the same sync.
        let tracks_again = summary.tracks_again
            && self.direction == SyncDirection::Both
            && self.verify == VerifyMode::No;
        // The server hears at once of what it wanted to be sure of.
        let has_verified = summary.has_verified && self.verify == VerifyMode::No;
        self.report.add_applied(summary);
        let report = std::mem::take(&mut self.report);
        self.end(match self.prepares || tracks_again || has_verified {
            true => SessionOutcome::More(report),
            false => SessionOutcome::Done(report),
        });
    }
}
