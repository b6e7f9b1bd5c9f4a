//! What the session does with each message of the server.

use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, FrameError, SYNC_CHANNEL, put_control, rows_header, take_frame,
};
use tidewater_protocol::message::{
    Ack, Control, Failure, PROTOCOL_VERSION, Pong, SignedIn, Welcome,
};
use tidewater_protocol::{Code, RemoteId};

use bytes::BytesMut;

use super::progress::Phase;
use super::welcome::{Admission, Answer};
use super::{
    MOVING, Now, Outcome, ProofKind, Session, Stage, Store, SyncDirection, SyncError, Verify,
};
use crate::database::{NewIdentity, Said};
use crate::report::Uploaded;

impl Session {
    /// Takes in what has arrived, as far as it is whole.
    pub(super) fn receive(&mut self) -> Result<(), SyncError> {
        while self.stage != Stage::Finished {
            self.check_first_bytes()?;
            let taken = take_frame(&mut self.input).map_err(|error| self.no_frame(error))?;
            match taken {
                None => return Ok(()),
                Some(frame) => self.frame(frame)?,
            }
        }
        Ok(())
    }

    fn check_first_bytes(&self) -> Result<(), SyncError> {
        if self.peer_known {
            Ok(())
        } else {
            SyncError::check_unencrypted(&self.input)
        }
    }

    fn no_frame(&self, error: FrameError) -> SyncError {
        if self.peer_known {
            return error.into();
        }
        SyncError::NotTidewater {
            what: error.to_string(),
            hint: "see that host and port are those of a Tidewater server",
        }
    }

    fn frame(&mut self, frame: Frame) -> Result<(), SyncError> {
        match &frame {
            Frame::Rows { channel, bytes } => {
                if *channel != SYNC_CHANNEL {
                    return Err(SyncError::unexpected(format!("rows on channel {channel}")));
                }
                if self.stage != Stage::Exchange {
                    return Err(SyncError::unexpected("rows after the end of the sync"));
                }
                if let Some(bytes) = self.incoming.rows(bytes)? {
                    self.outgoing.grant(bytes)?;
                }
                self.keep(&frame)
            }
            Frame::Control {
                channel: CONNECTION_CHANNEL | SYNC_CHANNEL,
                control,
            } => {
                self.peer_known = true;
                // What a newer server says beside the protocol that we know.
                let Some(control) = control else {
                    return Ok(());
                };
                if self.stage == Stage::Exchange {
                    self.control(control, &frame)
                } else {
                    self.late(control)
                }
            }
            Frame::Control { channel, .. } | Frame::Message { channel, .. } => Err(
                SyncError::unexpected(format!("a message on channel {channel}")),
            ),
        }
    }

    fn control(&mut self, control: &Control, frame: &Frame) -> Result<(), SyncError> {
        match control {
            Control::SignedIn(signed_in) => self.signed_in(signed_in.clone()),
            Control::Welcome(welcome) => self.welcome(welcome.clone()),
            Control::Busy(busy) => Err(SyncError::Busy {
                retry_after_ms: busy.retry_after_ms,
            }),
            Control::Failure(failure) => self.failure(failure.clone()),
            Control::Waiting(waiting) => {
                if self.outgoing.is_requested() {
                    self.progress.phase(Phase::Waiting {
                        ahead: waiting.ahead,
                    });
                }
                Ok(())
            }
            Control::Credit(_) | Control::Ping(_) | Control::Pong(_) => self.late(control),
            Control::ResultBegin(_)
            | Control::ResultEnd(_)
            | Control::DownloadBegin(_)
            | Control::DownloadEnd(_)
            | Control::TableBegin(_)
            | Control::SyncEnd(_) => {
                let outgoing = &self.outgoing;
                self.incoming.control(
                    control,
                    &self.subscriptions,
                    |index| outgoing.upload_is_over(index),
                    outgoing.is_requested(),
                )?;
                self.ordered(control, frame)
            }
            Control::SignIn(_)
            | Control::Hello(_)
            | Control::UploadBegin(_)
            | Control::UploadEnd(_)
            | Control::RequestBegin(_)
            | Control::DownloadRequest(_)
            | Control::Ack(_)
            | Control::Cancel(_)
            | Control::CompareTable(_) => Err(SyncError::unexpected(format!(
                "it sent a {}, which only remotes send",
                control.name()
            ))),
        }
    }

    /// A message that passed the check of its order.
    fn ordered(&mut self, control: &Control, frame: &Frame) -> Result<(), SyncError> {
        match control {
            Control::TableBegin(begin) => {
                self.progress
                    .table(Phase::Downloading, &begin.table, begin.expected_rows);
            }
            Control::ResultEnd(end) => {
                self.report.uploaded.add(Uploaded {
                    inserts: end.inserts,
                    updates: end.updates,
                    deletes: end.deletes,
                });
            }
            Control::SyncEnd(_) => return self.all_has_come(),
            _ => {}
        }
        self.keep(frame)
    }

    /// What may come at any time; once everything has come, nothing else matters.
    fn late(&mut self, control: &Control) -> Result<(), SyncError> {
        match control {
            Control::Credit(credit) if credit.channel == u32::from(SYNC_CHANNEL) => {
                self.outgoing.credit(credit.bytes);
                Ok(())
            }
            Control::Ping(ping) => {
                let pong = Pong {
                    nonce: ping.nonce,
                    server: String::new(),
                    protocol_version: PROTOCOL_VERSION,
                };
                self.outgoing
                    .urgent(CONNECTION_CHANNEL, Control::Pong(pong))
            }
            _ => Ok(()),
        }
    }

    fn signed_in(&mut self, signed_in: SignedIn) -> Result<(), SyncError> {
        if self.let_in_by.is_some() {
            return Err(SyncError::unexpected("a second SignedIn"));
        }
        let admission = Admission::read(signed_in)?;
        // Before anything is remembered of it.
        if [&self.centre, &admission.centre]
            .iter()
            .all(|it| !it.is_empty())
            && self.centre != admission.centre
        {
            return Err(SyncError::AnotherCentre);
        }
        let Admission {
            remote_id,
            token,
            credential,
            centre,
        } = admission;
        let Store::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        if let Some(server) = &self.server {
            database.store_server(server)?;
        }
        if self.remote_id.is_some_and(|own| own != remote_id) {
            // The server does not know us any more.
            self.let_in_by = Some(centre);
            return self.start_over(remote_id, token.as_deref(), credential.as_deref());
        }
        let (token, credential) = (token.as_deref(), credential.as_deref());
        database.store_sign_in(self.remote_id, remote_id, token, credential, &centre)?;
        self.remote_id = Some(remote_id);
        self.let_in_by = Some(centre);
        Ok(())
    }

    fn welcome(&mut self, welcome: Welcome) -> Result<(), SyncError> {
        if self.let_in_by.is_none() || self.incoming.is_welcomed() {
            return Err(SyncError::unexpected("a Welcome out of turn"));
        }
        let answer = Answer::read(welcome, &self.subscriptions)?;
        let said = Said {
            remote_id: self.remote_id,
            subscriptions: &self.subscriptions,
        };
        let Store::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        if let Some((remote_id, credential)) = answer.new_identity {
            let Some(states) = database.recognise(&self.subscriptions, &answer.has)? else {
                return self.start_over(remote_id, None, Some(&credential));
            };
            database.accept_centre_state(said, &states)?;
            self.begin_again();
            return Ok(());
        }
        if !answer.forgotten.is_empty() {
            database.accept_centre_state(said, &answer.forgotten)?;
            self.begin_again();
            return Ok(());
        }
        let is_new = database.is_new()?;
        self.agree(answer)?;
        // Nobody uses tables that are not there yet: no need to wait until all has come.
        if is_new && self.direction != SyncDirection::UploadOnly {
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
        let Store::Idle(database) = &mut self.store else {
            return Err(MOVING);
        };
        let said = Said {
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
        self.begin_again();
        Ok(())
    }

    /// The server ignores the rest of this sync: another one goes by what it said.
    fn begin_again(&mut self) {
        self.outgoing.stop();
        self.end(Outcome::Again(ProofKind::Token));
    }

    /// Settles what follows the Welcome.
    fn agree(&mut self, answer: Answer) -> Result<(), SyncError> {
        let mut results = Vec::new();
        for (index, &applied) in answer.already_applied.iter().enumerate() {
            if applied {
                self.outgoing.abandon(index)?;
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
        self.incoming.welcomed(results, downloads);
        for (subscription, schema) in self.subscriptions.iter().zip(answer.schemas) {
            if !upload_only && subscription.schema.is_none() && schema.is_none() {
                return Err(SyncError::Protocol {
                    code: Code::SchemaMismatch,
                    what: format!("it sent no schema of {:?}", subscription.publication),
                });
            }
            // A new schema is put in place by the download that was made for it. Without one it
            // still tells which of the uploaded columns have left.
            self.schemas.push(schema);
        }
        Ok(())
    }

    /// The server cannot go on, or does not like our proof.
    fn failure(&mut self, failure: Failure) -> Result<(), SyncError> {
        let next = match (Code::from_number(failure.code), self.proof) {
            (Some(Code::TokenExpired | Code::CredentialInvalid), ProofKind::Token)
                if self.has_credential =>
            {
                Some(ProofKind::Credential)
            }
            (
                Some(Code::TokenExpired | Code::CredentialInvalid),
                ProofKind::Token | ProofKind::Credential,
            ) if self.has_password => Some(ProofKind::Password),
            _ => None,
        };
        let next = next.filter(|_| self.let_in_by.is_none());
        let unknown = failure.code == Code::UnknownPublication.number();
        let Store::Idle(database) = &mut self.store else {
            return Err(failure.into());
        };
        if unknown {
            // Most likely mistyped: it would make every further sync fail.
            database.forget_never_synced(&[])?;
        }
        let Some(next) = next else {
            return Err(failure.into());
        };
        database.forget_token()?;
        self.outgoing.stop();
        self.end(Outcome::Again(next));
        Ok(())
    }

    /// Applies a frame at once, or keeps it until all has come.
    fn keep(&mut self, frame: &Frame) -> Result<(), SyncError> {
        if let Store::Applying(applier) = &mut self.store {
            let progress = &mut self.progress;
            return self
                .feed
                .frame(applier, frame, Phase::Downloading, progress);
        }
        let kept = match frame {
            Frame::Rows { channel, bytes } => {
                let header = rows_header(bytes.len(), *channel);
                self.spool
                    .append(&header)
                    .and_then(|()| self.spool.append(bytes))
            }
            Frame::Control {
                channel,
                control: Some(control),
            } => {
                let mut bytes = BytesMut::new();
                put_control(&mut bytes, *channel, control.clone())?;
                self.spool.append(&bytes)
            }
            Frame::Control { control: None, .. } | Frame::Message { .. } => Ok(()),
        };
        kept.map_err(SyncError::Spool)
    }

    fn all_has_come(&mut self) -> Result<(), SyncError> {
        self.progress.phase(Phase::Applying);
        self.stage = match self.store {
            Store::Applying(_) => Stage::Commit,
            Store::Idle(_) | Store::Moving => {
                self.spool.rewind().map_err(SyncError::Spool)?;
                Stage::Replay
            }
        };
        Ok(())
    }

    fn begin_apply(&mut self) -> Result<(), SyncError> {
        match std::mem::replace(&mut self.store, Store::Moving) {
            Store::Idle(database) => {
                match database.begin_apply(&self.subscriptions, &self.schemas) {
                    Ok(mut applier) => {
                        if self.verify == Verify::Look {
                            applier.only_tell_differences();
                        }
                        applier.keep_copies(self.outgoing.take_copies());
                        self.store = Store::Applying(applier);
                    }
                    Err(refused) => {
                        self.store = Store::Idle(refused.database);
                        return Err(refused.error.into());
                    }
                }
            }
            other => self.store = other,
        }
        Ok(())
    }

    /// Applies a step of the spool.
    pub(super) fn replay(&mut self) -> Result<(), SyncError> {
        self.begin_apply()?;
        let Store::Applying(applier) = &mut self.store else {
            return Err(MOVING);
        };
        let more = self
            .feed
            .step(&mut *self.spool, applier, &mut self.progress)?;
        if !more {
            self.stage = Stage::Commit;
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, now: Now) -> Result<(), SyncError> {
        let committed = match std::mem::replace(&mut self.store, Store::Moving) {
            Store::Applying(applier) => {
                let (database, committed) = applier.commit(now.unix_ms);
                self.store = Store::Idle(database);
                committed
            }
            other => {
                self.store = other;
                return Err(MOVING);
            }
        };
        let committed = committed?;
        // What waited for the compare, or is pending since, goes up with the same sync.
        let tracks_again = committed.tracks_again
            && self.direction == SyncDirection::Both
            && self.verify == Verify::No;
        self.report.applied(committed);
        // Ours is committed whatever becomes of the acknowledgement.
        let _ = self.outgoing.urgent(SYNC_CHANNEL, Control::Ack(Ack {}));
        self.progress.phase(Phase::Done);
        let report = std::mem::take(&mut self.report);
        self.end(match self.prepares || tracks_again {
            true => Outcome::More(report),
            false => Outcome::Done(report),
        });
        Ok(())
    }
}
