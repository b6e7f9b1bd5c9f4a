//! The beginning of a sync: the Hello against what the centre knows, and the Welcome.
//!
//! Here is decided whether a subscription goes on, or the remote has something else to
//! do first: begin with a new identity, give uploads back to a restored centre, compare.

use std::sync::Arc;
use std::time::Duration;

use tidewater_centre::engine::scripts::{ScriptTransaction, chosen};
use tidewater_centre::records::{
    HistoryCheck, IncidentKind, IncidentRecord, NumbersRequest, SessionState, SubscriptionRecord,
    UserClaims,
};
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{
    Checkpoint, GivenPartitions, Parameters, Resolutions, ScriptRun, SyncContext, SyncUpload,
    Verdicts,
};
use tidewater_protocol::message::{
    Control, NumberBlock, UploadState, VerifiedTables, Welcome, WelcomeSubscription,
};
use tidewater_protocol::{RemoteId, UploadId};

use super::hello::{ParsedHello, RefusalNews};
use super::kept_uploads::UploadName;
use super::upload::{BrokenUpload, ReceivedUpload, place_of};
use super::{LookedUp, PendingHello, Sync};
use tidewater_server_identity::sign_in::may_enter;
use tidewater_server_identity::signing::{CheckpointFor, SigningKeys};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::publications::{DeploymentInService, ServedPublication};

/// So many tables that were not equal are told, and so many characters of their rows' keys.
const TABLES_TOLD: usize = 20;
const KEYS_TOLD: usize = 500;

/// The subscriptions of a Hello, with what the server knows of them.
pub(crate) struct OpenedSync {
    pub(crate) remote_id: RemoteId,
    pub(crate) user: String,
    pub(crate) subscriptions: Vec<OpenSubscription>,
    pub(crate) keyring: SigningKeys,
    /// What is served to it.
    pub(crate) served: Arc<DeploymentInService>,
    /// What the remote has set.
    parameters: Arc<Parameters>,
    /// What is known of the user.
    claims: UserClaims,
    /// See [`SyncContext::given`].
    given: Option<Arc<GivenPartitions>>,
    /// What scripts have set.
    scripts: ScriptNotes,
    /// It has synced so often that it is to compare everything.
    verify_due: bool,
}

pub(crate) struct OpenSubscription {
    pub(crate) published: Arc<ServedPublication>,
    pub(crate) state: UploadState,
    /// The last upload that the centre has.
    pub(crate) stored: Option<SubscriptionRecord>,
    /// The upload that may come.
    pub(crate) sequence: u64,
    pub(crate) pending: Option<UploadId>,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// The checkpoint is an image's: it says what the remote has, and nothing of what its user may
    /// write.
    pub(crate) from_image: bool,
    pub(crate) schema_differs: bool,
    /// The hash of the schema that the remote has, if that is another one.
    pub(crate) before: Option<Vec<u8>>,
    /// What the centre knows of its checkpoint; `None` without a genuine one.
    history: Option<HistoryCheck>,
    /// It keeps what comes of this download should it break, and has a part of one up to this mark:
    /// see [`tidewater_centre::DownloadSubscription::kept`].
    pub(crate) mark: Option<Vec<u8>>,
    /// What that part tells of it, see [`tidewater_centre::DownloadSubscription::part_of`].
    pub(crate) part: Option<Box<Checkpoint>>,
    /// It sends checksums of its tables.
    pub(crate) compares: bool,
    /// It shall come back and do so.
    pub(crate) compare: bool,
    /// The last uploads that the centre has under the remote's former ids.
    formers: Vec<u64>,
    /// What has come of the pending upload with an earlier sync.
    pub(crate) broken: Option<Box<BrokenUpload>>,
    /// What it wants to hear of its refused rows.
    pub(crate) refusal_news: RefusalNews,
}

impl Sync<'_> {
    /// Says Welcome. `None`: the remote has to do something else first, and comes back.
    pub(crate) async fn open(
        &mut self,
        arrival: Box<PendingHello>,
    ) -> Result<Option<OpenedSync>, Fault> {
        let PendingHello {
            greeting,
            looked_up,
            ..
        } = *arrival;
        let mut greeting = greeting?;
        let (service, guest) = (self.service, self.guest);
        let LookedUp { keyring, state } = match looked_up {
            Some(looked_up) => looked_up,
            None => self.look_up(&mut greeting).await?,
        };
        self.counts = true;
        let served = service.publications.as_of(state.deployment).await;
        let mut subscriptions = self.subscriptions(&greeting, &state, &served)?;
        let copied = subscriptions
            .iter()
            .any(|subscription| subscription.state == UploadState::NewIdentity);
        let mut welcome = Welcome::default();
        let mut becomes = guest.remote_id;
        if copied && guest.unknown.is_none() {
            let (remote_id, credential) =
                service
                    .sign_in
                    .new_identity(&guest.user, &keyring, guest.remote_id)?;
            becomes = remote_id;
            (welcome.remote_id, welcome.credential) = (remote_id.to_vec(), credential);
        }
        self.note_incidents(&greeting, &subscriptions, becomes);
        self.note_verified(&greeting);
        if copied {
            tracing::info!(
                user = guest.user,
                old = %guest.unknown.unwrap_or(guest.remote_id),
                new = %becomes,
                "a remote was restored or copied, or is not known any more: it becomes another"
            );
            for subscription in &mut subscriptions {
                subscription.state = UploadState::NewIdentity;
                subscription.compare = false;
            }
        }
        let goes_on = subscriptions.iter().all(OpenSubscription::goes_on);
        let answers = subscriptions.iter().map(OpenSubscription::answer);
        welcome.subscriptions = answers.collect();
        if goes_on {
            for (index, answer) in welcome.subscriptions.iter_mut().enumerate() {
                let (said, known) = (&greeting.subscriptions[index], &subscriptions[index]);
                let wanted = said.wants_numbers(&known.published.schema);
                answer.blocks = self.numbers(&said.publication, wanted).await;
            }
        }
        self.channel.send(Control::Welcome(welcome))?;
        let known = greeting.subscriptions.iter();
        let known = known.filter(|it| !it.schema_hash.is_empty());
        self.record.schemas = known
            .map(|it| (it.publication.clone(), it.schema_hash.clone()))
            .collect();
        let set = greeting.subscriptions.into_iter();
        let set = set.filter(|it| !it.parameters.is_empty());
        let set = set.map(|it| (it.publication, it.parameters));
        Ok(goes_on.then_some(OpenedSync {
            parameters: Arc::new(set.collect()),
            claims: state.user.map(|it| it.proven.claims).unwrap_or_default(),
            given: service.given.clone(),
            scripts: ScriptNotes::default(),
            verify_due: state
                .remote
                .is_some_and(|it| service.wants_verified(it.unverified)),
            remote_id: guest.remote_id,
            user: guest.user.clone(),
            subscriptions,
            keyring,
            served,
        }))
    }

    /// Asks the centre about a Hello that came without a SignIn, and whether its remote may
    /// still come in.
    async fn look_up(&self, greeting: &mut ParsedHello) -> Result<LookedUp, Fault> {
        let (service, guest) = (self.service, self.guest);
        let now_ms = service.environment.clock.now_ms();
        let keyring = service.signer.keyring(&greeting.signed(), now_ms).await;
        greeting.verify(&keyring, Some(guest.remote_id))?;
        let (user, asked) = (&guest.user, greeting.asked());
        let state = service
            .sign_in
            .look_up(user, Some(guest.remote_id), asked)
            .await?;
        may_enter(&state, user)?;
        Ok(LookedUp { keyring, state })
    }

    /// Numbers for the remote's rows. Without, the sync goes on: what is pending goes up.
    async fn numbers(&self, publication: &str, tables: Vec<String>) -> Vec<NumberBlock> {
        if tables.is_empty() {
            return Vec::new();
        }
        let (service, guest) = (self.service, self.guest);
        let wanted = NumbersRequest {
            remote_id: guest.remote_id,
            user: guest.user.clone(),
            publication: publication.to_owned(),
            tables,
            now_ms: service.environment.clock.now_ms(),
        };
        let sessions = &service.lanes.sessions;
        let numbers = sessions.ask_once("", wanted, |worker, wanted| worker.hand_out(wanted));
        numbers.await.unwrap_or_else(|fault| {
            tracing::error!(
                publication,
                remote = %guest.remote_id,
                error = ?fault,
                "no numbers could be handed out"
            );
            Vec::new()
        })
    }

    /// Notes what the remote and the centre are at odds about. `now` is the remote's id
    /// from now on.
    fn note_incidents(
        &mut self,
        greeting: &ParsedHello,
        subscriptions: &[OpenSubscription],
        now: RemoteId,
    ) {
        let guest = self.guest;
        let unknown = guest.unknown.is_some();
        let before = guest.unknown.unwrap_or(guest.remote_id);
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
            if subscription.history == Some(HistoryCheck::Unknown) && !said.compares && !unknown {
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
                user: guest.user.clone(),
                publication: said.publication.clone(),
                detail,
            });
            self.record.incidents.extend(incidents);
        }
        if let Some(was) = guest.was.filter(|_| self.is_first) {
            self.note_successor(greeting, was);
        }
    }

    /// Notes what was not equal when the remote compared everything to be sure.
    fn note_verified(&mut self, greeting: &ParsedHello) {
        let remote = self.guest.remote_id;
        for said in &greeting.subscriptions {
            let Some(verified) = &said.verified else {
                continue;
            };
            let rows = verified.tables.iter().fold(0_u64, |sum, table| {
                let rows = table.missing.saturating_add(table.extra);
                sum.saturating_add(rows.saturating_add(table.different))
            });
            let detail = told(verified);
            tracing::warn!(
                %remote,
                user = self.guest.user,
                publication = said.publication,
                rows,
                detail,
                "a remote was not equal to the centre, and has taken its rows"
            );
            self.service.metrics.differed(rows);
            self.record.incidents.push(IncidentRecord {
                at_ms: self.record.started_ms,
                kind: IncidentKind::Differed,
                remote_id: Some(remote),
                user: self.guest.user.clone(),
                publication: said.publication.clone(),
                detail,
            });
        }
    }

    /// Notes that a remote whose file was restored or copied is another from now on.
    fn note_successor(&mut self, greeting: &ParsedHello, was: RemoteId) {
        let (user, now) = (&self.guest.user, self.guest.remote_id);
        let incidents = greeting.subscriptions.iter().map(|said| IncidentRecord {
            at_ms: self.record.started_ms,
            kind: IncidentKind::NewIdentity,
            remote_id: Some(was),
            user: user.clone(),
            publication: said.publication.clone(),
            detail: format!(
                "the remote's file was restored or copied; the remote is {now} from now on"
            ),
        });
        self.record.incidents.extend(incidents);
    }

    /// Compares what the remote says of its subscriptions with what is stored. Of one that is
    /// not known any more nothing is, and it starts over.
    fn subscriptions(
        &self,
        greeting: &ParsedHello,
        state: &SessionState,
        served: &DeploymentInService,
    ) -> Result<Vec<OpenSubscription>, Fault> {
        let unknown = self.guest.unknown.is_some();
        let subscriptions = greeting.subscriptions.iter().enumerate();
        let opened = subscriptions.map(|(index, subscription)| {
            let published = served.published(&subscription.publication)?;
            let stored = state.subscriptions.get(index).cloned().flatten();
            let stored = stored.filter(|_| !unknown);
            let is_same = subscription.schema_hash == published.hash;
            let genuine = subscription.genuine.as_ref();
            let history = state.histories.get(index).copied().flatten();
            let history = history.filter(|_| genuine.is_some());
            // A part is of use or not: then the download begins anew.
            let keeps = !subscription.compares && subscription.image.is_none();
            let part = subscription.part.as_ref();
            let part = part.filter(|it| keeps && it.schema_hash == published.hash);
            let part = part.and_then(|it| Some((it.mark.clone(), Box::new(it.genuine.clone()?))));
            let (mark, part) = part.unzip();
            let schema_differs = !is_same;
            // What is compared, or of an unknown history, goes whole under another schema.
            let follows = history == Some(HistoryCheck::Known) && !subscription.compares;
            let checkpoint = genuine.filter(|_| is_same || follows);
            let formers = state.formers.get(index).into_iter().flatten();
            let formers: Vec<u64> = subscription
                .formers
                .iter()
                .zip(formers)
                .map(|(former, known)| former.has(known))
                .collect();
            let mut ahead = subscription.formers.iter().zip(&formers);
            let upload_state = match subscription.upload_state(stored.as_ref()) {
                _ if unknown => UploadState::NewIdentity,
                // Not before the remote knows the result of an upload that was applied already.
                UploadState::InSequence if ahead.any(|(it, has)| it.is_ahead_of(*has)) => {
                    UploadState::CentreRestored
                }
                state => state,
            };
            let is_known = history == Some(HistoryCheck::Known);
            let strange = !subscription.checkpoint.is_empty() && !is_known;
            let next = subscription.pending;
            let next = next.filter(|_| upload_state == UploadState::InSequence);
            let broken = next.and_then(|upload_id| {
                self.service.kept_uploads.take(|| UploadName {
                    remote_id: self.guest.remote_id,
                    publication: subscription.publication.clone(),
                    sequence: subscription.sequence + 1,
                    upload_id,
                    schema_hash: published.hash,
                })
            });
            Ok(OpenSubscription {
                broken,
                state: upload_state,
                formers,
                refusal_news: subscription.refusal_news,
                stored,
                sequence: subscription.sequence + 1,
                pending: subscription.pending,
                published,
                checkpoint: checkpoint.cloned(),
                from_image: subscription.image.is_some(),
                schema_differs,
                before: (!is_same).then(|| subscription.schema_hash.clone()),
                mark: keeps.then(|| mark.unwrap_or_default()),
                part,
                history,
                compares: subscription.compares,
                // With another schema everything is sent whole then.
                compare: strange && !subscription.compares && !schema_differs,
            })
        });
        let mut opened: Vec<OpenSubscription> = opened.collect::<Result<_, Fault>>()?;
        // They stay as long as the sync waits, and most remotes have one.
        opened.shrink_to_fit();
        Ok(opened)
    }
}

/// What was not equal, for people.
fn told(verified: &VerifiedTables) -> String {
    let tables = verified.tables.iter().map(|table| {
        let keys: String = table.keys.join(" ").chars().take(KEYS_TOLD).collect();
        format!(
            "{}: {} missing, {} extra, {} different: {keys}",
            table.table, table.missing, table.extra, table.different
        )
    });
    let told = tables.take(TABLES_TOLD).collect::<Vec<_>>().join("; ");
    // Not every database keeps what an odd remote could say.
    told.replace(char::is_control, " ")
}

impl OpenSubscription {
    /// Whether the centre knows the history in which the remote's checkpoint was made.
    pub(crate) fn knows_history(&self) -> bool {
        self.history == Some(HistoryCheck::Known)
    }
}

impl OpenedSync {
    /// Whether the remote is asked to compare a subscription with the next sync.
    pub(crate) fn wants_verified(&self, index: usize) -> bool {
        let subscription = self.subscriptions.get(index);
        self.verify_due && subscription.is_some_and(|it| !it.compares && it.checkpoint.is_some())
    }

    /// The checkpoint of a subscription as it is handed out; empty for none.
    pub(crate) fn signed(&self, index: usize, checkpoint: Option<Checkpoint>) -> Vec<u8> {
        let subscription = self.subscriptions.get(index);
        let Some((checkpoint, OpenSubscription { published, .. })) = checkpoint.zip(subscription)
        else {
            return Vec::new();
        };
        let subject = CheckpointFor {
            remote_id: self.remote_id,
            publication: &published.schema.name,
            schema_hash: &published.hash,
        };
        self.keyring.sign_checkpoint(subject, &checkpoint)
    }

    /// Whether it compares everything.
    pub(crate) fn verifies(&self) -> bool {
        !self.subscriptions.is_empty() && self.subscriptions.iter().all(|it| it.compares)
    }

    /// For whom uploads are applied and downloads are read.
    pub(crate) fn context(&self, now_ms: i64) -> SyncContext {
        SyncContext {
            user: self.user.clone(),
            remote_id: self.remote_id,
            now_ms,
            parameters: self.parameters.clone(),
            claims: self.claims.clone(),
            scripts: self.scripts.clone(),
            given: self.given.clone(),
        }
    }

    /// The scripts that there are for a transaction, by what the remote has chosen.
    ///
    /// # Errors
    /// There is no such version.
    pub(crate) fn scripts(
        &self,
        transaction: ScriptTransaction,
        now_ms: i64,
    ) -> Result<Vec<ScriptRun>, Fault> {
        let mut runs = Vec::new();
        for subscription in &self.subscriptions {
            let published = &subscription.published;
            if published.scripts.is_empty() {
                continue;
            }
            let (context, name) = (self.context(now_ms), &published.schema.name);
            let scripts = chosen(&published.scripts, &context, name)?;
            if scripts.is_some_and(|it| it.has(transaction)) {
                runs.push(ScriptRun {
                    context,
                    publication: name.clone(),
                    checkpoint: subscription.own_checkpoint().cloned(),
                    transaction,
                });
            }
        }
        Ok(runs)
    }

    /// Notes how long a part of the sync took, for scripts.
    pub(crate) fn took(&self, part: &'static str, took: Duration) {
        let millis = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let published = self.subscriptions.iter().map(|it| &it.published);
        for published in published.filter(|it| !it.scripts.is_empty()) {
            self.scripts.took(&published.schema.name, part, millis);
        }
    }

    /// What a worker needs to apply an upload.
    pub(crate) fn job(&self, upload: ReceivedUpload, context: SyncContext) -> SyncUpload {
        let subscription = &self.subscriptions[place_of(&upload.begin)];
        let ReceivedUpload { begin, tables } = upload;
        SyncUpload {
            context,
            publication: subscription.published.schema.name.clone(),
            sequence: subscription.sequence,
            upload_id: subscription.upload_id(),
            checkpoint: subscription.own_checkpoint().cloned(),
            given_back: begin.given_back,
            copied: begin.copied,
            retried: begin.retried,
            given_up: begin.given_up,
            forgotten_refusals: begin.forgotten_refusals,
            tables,
            verdicts: Verdicts::new(),
            resolutions: Resolutions::new(),
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
            compare: self.compare,
            blocks: Vec::new(),
            received_bytes: self.broken.as_ref().map_or(0, |it| it.bytes),
            received_checksum: self.broken.as_ref().map_or(0, |it| it.checksum),
            formers: match restored {
                true => self.formers.clone(),
                false => Vec::new(),
            },
        }
    }

    /// The checkpoint, if it was signed for the remote.
    pub(crate) fn own_checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref().filter(|_| !self.from_image)
    }

    /// The id of the upload that came: the receiver takes none without one.
    pub(crate) fn upload_id(&self) -> UploadId {
        self.pending.unwrap_or(UploadId([0; 16]))
    }
}
