//! The beginning of a sync: the Hello against what the centre knows, and the Welcome.
//!
//! Here is decided whether a subscription goes on, or the remote has something else to
//! do first: begin with a new identity, give uploads back to a restored centre, compare.

use std::sync::Arc;

use tidewater_consolidated::records::{
    History, IncidentKind, IncidentRecord, SessionState, SubscriptionRecord,
};
use tidewater_consolidated::{Checkpoint, SyncUpload};
use tidewater_protocol::message::{Control, Proof, UploadState, Welcome, WelcomeSubscription};
use tidewater_protocol::{RemoteId, UploadId};

use super::Sync;
use super::hello::Greeting;
use super::sign_in::{SignedIn, new_identity, sign_in};
use super::upload::ReceivedUpload;
use crate::auth::signing::Keyring;
use crate::fault::Fault;
use crate::link::SERVER_NAME;
use crate::server::Published;

/// The subscriptions of a Hello, with what the server knows of them.
pub(super) struct Opened {
    pub(super) remote_id: RemoteId,
    pub(super) user: String,
    pub(super) subscriptions: Vec<OpenSubscription>,
    pub(super) keyring: Keyring,
}

pub(super) struct OpenSubscription {
    pub(super) published: Arc<Published>,
    pub(super) state: UploadState,
    /// The last upload that the centre has.
    pub(super) stored: Option<SubscriptionRecord>,
    /// The upload that may come.
    pub(super) sequence: u64,
    pub(super) pending: Option<UploadId>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) schema_differs: bool,
    /// What the centre knows of its checkpoint; `None` without a genuine one.
    history: Option<History>,
    /// It sends checksums of its tables.
    pub(super) compares: bool,
    /// It shall come back and do so.
    pub(super) compare: bool,
    /// The centre is from before it knew the remote.
    pub(super) give_back: bool,
    /// The last uploads that the centre has under the remote's former ids.
    formers: Vec<u64>,
}

impl Sync<'_> {
    /// Signs in and says Welcome. `None`: the remote has to do something else first, and
    /// comes back.
    pub(super) async fn open(&mut self, mut greeting: Greeting) -> Result<Option<Opened>, Fault> {
        let server = self.server;
        let mut signed: Vec<&[u8]> = greeting
            .subscriptions
            .iter()
            .map(|subscription| subscription.checkpoint.as_slice())
            .collect();
        if let Proof::Token(token) = &greeting.proof {
            signed.push(token);
        }
        let now_ms = server.environment.clock.now_ms();
        let mut keyring = server.signer.keyring(&signed, now_ms).await;
        greeting.verify(&keyring);
        let SignedIn {
            remote_id,
            new_id,
            was,
            state,
            token,
            credential,
        } = sign_in(server, &greeting, &keyring, self.peer).await?;
        self.signed_in = true;
        self.record.remote_id = Some(remote_id);
        if new_id && greeting.remote_id.is_some() {
            // Whoever was deployed anew knows neither the remote nor the key that signed its
            // checkpoints; keys that this server has not yet forgotten prove nothing.
            server.signer.refresh(now_ms).await;
            keyring = server.signer.keyring(&[], now_ms).await;
            greeting.verify(&keyring);
        }
        self.link.sign_in();

        let mut subscriptions = self.subscriptions(&greeting, new_id, &state)?;
        // A remote that had an id and gets another starts over.
        let restored = new_id && greeting.remote_id.is_some()
            || subscriptions
                .iter()
                .any(|subscription| subscription.state == UploadState::NewIdentity);
        let (remote_id, token, credential) = if restored && !new_id {
            new_identity(server, &greeting, &keyring, remote_id)?
        } else {
            (remote_id, token, credential)
        };
        self.note_incidents(&greeting, &subscriptions, new_id, remote_id);
        if let Some(was) = was {
            self.note_successor(&greeting, was, remote_id);
        }
        if restored {
            tracing::info!(
                user = greeting.user,
                old = ?greeting.remote_id,
                new = %remote_id,
                "a remote was restored or copied, or is not known any more: it becomes another"
            );
            for subscription in &mut subscriptions {
                subscription.state = UploadState::NewIdentity;
                subscription.compare = false;
            }
        }
        let goes_on = subscriptions.iter().all(OpenSubscription::goes_on);
        let welcome = Welcome {
            protocol_version: greeting.version,
            remote_id: remote_id.to_vec(),
            token,
            credential,
            subscriptions: subscriptions
                .iter()
                .map(|subscription| subscription.answer())
                .collect(),
            server: SERVER_NAME.into(),
            centre: state.centre,
        };
        self.link.send(Control::Welcome(welcome))?;
        let known = greeting.subscriptions.iter();
        let known = known.filter(|subscription| !subscription.schema_hash.is_empty());
        self.record.schemas = known
            .map(|it| (it.publication.clone(), it.schema_hash.clone()))
            .collect();
        self.client = greeting.client;
        Ok(goes_on.then_some(Opened {
            remote_id,
            user: greeting.user,
            subscriptions,
            keyring,
        }))
    }

    /// Notes what the remote and the centre are at odds about. `now` is the remote's id
    /// from now on.
    fn note_incidents(
        &mut self,
        greeting: &Greeting,
        subscriptions: &[OpenSubscription],
        unknown: bool,
        now: RemoteId,
    ) {
        // Whoever comes for the first time is at odds with nobody.
        let Some(before) = greeting.remote_id else {
            return;
        };
        for (said, subscription) in greeting.subscriptions.iter().zip(subscriptions) {
            let mut found = Vec::new();
            let has = subscription.stored.as_ref().map_or(0, |it| it.sequence);
            match subscription.state {
                _ if unknown => found.push((
                    IncidentKind::NewIdentity,
                    format!("the centre does not know the remote, which is {now} from now on"),
                )),
                UploadState::CentreRestored => found.push((
                    IncidentKind::UploadsMissing,
                    match has < said.sequence {
                        true => format!("uploads {} to {} are missing", has + 1, said.sequence),
                        false => "uploads under a former id of the remote are missing".into(),
                    },
                )),
                // A sync that another of the same file overtook looks like this, too, and takes
                // no new identity: it is noted when somebody comes with it.
                UploadState::NewIdentity
                | UploadState::InSequence
                | UploadState::AlreadyApplied => {}
            }
            if subscription.history == Some(History::Unknown) && !said.compares && !unknown {
                let detail = match subscription.compare {
                    true => "the remote compares what it holds",
                    false => "the remote is sent everything",
                };
                found.push((IncidentKind::HistoryUnknown, detail.to_owned()));
            }
            let incidents = found.into_iter().map(|(kind, detail)| IncidentRecord {
                at_ms: self.record.started_ms,
                kind,
                remote_id: Some(before),
                user: greeting.user.clone(),
                publication: said.publication.clone(),
                detail,
            });
            self.record.incidents.extend(incidents);
        }
    }

    /// Notes that a remote whose file was restored or copied is another from now on.
    fn note_successor(&mut self, greeting: &Greeting, was: RemoteId, now: RemoteId) {
        let incidents = greeting.subscriptions.iter().map(|said| IncidentRecord {
            at_ms: self.record.started_ms,
            kind: IncidentKind::NewIdentity,
            remote_id: Some(was),
            user: greeting.user.clone(),
            publication: said.publication.clone(),
            detail: format!(
                "the remote's file was restored or copied; the remote is {now} from now on"
            ),
        });
        self.record.incidents.extend(incidents);
    }

    /// Compares what the remote says of its subscriptions with what is stored. A remote
    /// that has got a new id has nothing stored, whatever there is of the old one.
    fn subscriptions(
        &self,
        greeting: &Greeting,
        new_id: bool,
        state: &SessionState,
    ) -> Result<Vec<OpenSubscription>, Fault> {
        let subscriptions = greeting.subscriptions.iter().enumerate();
        let opened = subscriptions.map(|(index, subscription)| {
            let published = self.server.published(&subscription.publication)?;
            let stored = state.subscriptions.get(index).cloned().flatten();
            let stored = stored.filter(|_| !new_id);
            let schema_differs = subscription.schema_hash != published.hash;
            let genuine = subscription.genuine.as_ref();
            let checkpoint = genuine.filter(|_| !new_id && !schema_differs);
            let history = state.histories.get(index).copied().flatten();
            let history = history.filter(|_| genuine.is_some());
            let formers = state.formers.get(index).into_iter().flatten();
            let formers: Vec<u64> = subscription
                .formers
                .iter()
                .zip(formers)
                .map(|(former, known)| former.has(known))
                .collect();
            let mut ahead = subscription.formers.iter().zip(&formers);
            let upload_state = match subscription.upload_state(stored.as_ref()) {
                // Not before the remote knows the result of an upload that was applied already.
                UploadState::InSequence if ahead.any(|(it, has)| it.is_ahead_of(*has)) => {
                    UploadState::CentreRestored
                }
                state => state,
            };
            let strange = !subscription.checkpoint.is_empty() && history != Some(History::Known);
            Ok(OpenSubscription {
                state: upload_state,
                formers,
                stored,
                sequence: subscription.sequence + 1,
                pending: subscription.pending,
                published,
                checkpoint: checkpoint.cloned(),
                schema_differs,
                history,
                compares: subscription.compares,
                // With another schema everything is sent whole in any case.
                compare: strange && !subscription.compares && !schema_differs,
                // Of a remote that does not know the centre's name yet, the checkpoint tells:
                // a mark that the centre knows is from before the remote was removed, and what
                // it uploaded then may have been deleted since.
                give_back: new_id
                    && greeting.centre.is_empty()
                    && history == Some(History::Unknown),
            })
        });
        opened.collect()
    }
}

impl Opened {
    /// What a worker needs to apply an upload; the time is the caller's.
    pub(super) fn job(&self, upload: ReceivedUpload) -> SyncUpload {
        let subscription = &self.subscriptions[upload.subscription];
        SyncUpload {
            remote_id: self.remote_id,
            user: self.user.clone(),
            publication: subscription.published.schema.name.clone(),
            sequence: subscription.sequence,
            upload_id: subscription.upload_id(),
            checkpoint: subscription.checkpoint.clone(),
            given_back: upload.given_back,
            tables: upload.tables,
            now_ms: 0,
        }
    }
}

impl OpenSubscription {
    /// Whether the remote has nothing else to do first.
    fn goes_on(&self) -> bool {
        let at_odds = [UploadState::NewIdentity, UploadState::CentreRestored];
        !at_odds.contains(&self.state) && !self.compare
    }

    /// What the remote is told.
    fn answer(&self) -> WelcomeSubscription {
        let new_identity = self.state == UploadState::NewIdentity;
        let restored = self.state == UploadState::CentreRestored;
        // Whom the numbers make a copy may know the upload, and so know better.
        let at_odds = restored || new_identity;
        let has = self.stored.as_ref().filter(|_| at_odds);
        WelcomeSubscription {
            upload_state: self.state as i32,
            schema: match self.schema_differs {
                true => self.published.encoded.clone(),
                false => Vec::new(),
            },
            sequence: has.map_or(0, |has| has.sequence),
            upload_id: has
                .and_then(|has| has.upload_id)
                .map_or_else(Vec::new, UploadId::to_vec),
            give_back: new_identity && self.give_back,
            compare: self.compare,
            formers: match restored {
                true => self.formers.clone(),
                false => Vec::new(),
            },
        }
    }

    /// The id of the upload that came: the receiver takes none without one.
    pub(super) fn upload_id(&self) -> UploadId {
        self.pending.unwrap_or(UploadId([0; 16]))
    }
}
