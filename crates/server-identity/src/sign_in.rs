//! Signing in: proof against record, new ids, credentials and tokens.
//!
//! Nothing is said about users or remotes to somebody who has not proved who he is:
//! unknown, disabled and wrong all look the same and take the same time.

mod claim;
mod passwords;

use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::rustls::pki_types::CertificateDer;

use tidewater_centre::records::{
    ProvenIdentity, RemoteRecord, SessionRequest, SessionState, ShutOutReason, SubscriptionRequest,
    UserRecord,
};
use tidewater_protocol::message::Proof;
use tidewater_protocol::{Code, RemoteId};
use tidewater_server_config::is_image_user;
use tidewater_server_jobs::admission::SyncAdmission;
use tidewater_server_jobs::environment::{Environment, random};
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::publications::Publications;

pub use self::claim::{ParsedSignIn, check_name, identity};
use self::passwords::changed_passwords;
pub use self::passwords::{GivenPassword, PasswordHandler, passwords_set_elsewhere};
use crate::credential::{self, PresentedCredential, ROTATE_AFTER_MS};
use crate::external::{Identity, IdentityProviders};
use crate::password::PasswordChecks;
use crate::registry::PROGRAM;
use crate::signing::{SigningKeys, TokenCheck};
use crate::throttle::Throttle;

/// What signing in needs of the server.
pub struct SignInServices {
    /// Where users and remotes are looked up.
    pub lanes: Arc<WorkerLanes>,
    /// What is deployed.
    pub publications: Arc<Publications>,
    /// When whoever has to wait comes back.
    pub admission: Arc<SyncAdmission>,
    /// Clock and randomness.
    pub environment: Environment,
    /// Asked where `passwords = "handler"`.
    pub password_handler: Arc<dyn PasswordHandler>,
}

/// Lets users and their remotes in.
pub struct SignInService {
    services: SignInServices,
    passwords: PasswordChecks,
    throttle: Throttle,
    providers: RwLock<Arc<IdentityProviders>>,
    /// Whose remotes alone may sign in, by their credentials, if the server is there to make an image.
    only: Option<String>,
}

/// Somebody who is who he says.
pub struct SignInOutcome {
    /// The user: as the proof tells, where it does.
    pub user: String,
    /// [`PROGRAM`] for a program without a file.
    pub remote_id: RemoteId,
    /// The id that it came with, if that is not known any more.
    pub unknown: Option<RemoteId>,
    /// What the remote was, if it comes for the first time under the new identity that it was
    /// offered.
    pub was: Option<RemoteId>,
    /// What was looked up for it.
    pub state: SessionState,
    /// Empty if nothing changes.
    pub token: Vec<u8>,
    /// The remote's next credential; empty if the one that it has stays.
    pub credential: Vec<u8>,
}

/// The remote, or the program, of a connection, once it is in.
pub struct Principal {
    /// [`PROGRAM`] for a program without a file.
    pub remote_id: RemoteId,
    /// See [`SignInOutcome`].
    pub unknown: Option<RemoteId>,
    /// See [`SignInOutcome`].
    pub was: Option<RemoteId>,
    /// The user's name.
    pub user: String,
    /// What people call the device; empty if nobody has named it.
    pub device_name: String,
    /// The program that speaks, and its address.
    pub client: String,
    /// The address.
    pub peer: String,
}

/// Where a sign-in comes from.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    /// The address.
    pub peer: &'a str,
    /// The certificates that were shown there.
    pub shown: &'a [CertificateDer<'static>],
}

/// What is to be done about the remote's credential.
enum Renewal {
    Nothing,
    /// The old one may still be what the remote has.
    Rotate {
        previous: Vec<u8>,
    },
}

/// A program that signs in all the time does not have the same noted each time.
const NOTED_FOR_MS: i64 = 60_000;

impl SignInService {
    /// `password_checks`: so many passwords are checked at the same time. `only`: the user whose
    /// remotes alone may sign in, if the server is there to make an image.
    pub fn new(
        services: SignInServices,
        password_checks: usize,
        providers: Arc<IdentityProviders>,
        only: Option<String>,
    ) -> SignInService {
        let blocking = services.environment.blocking.clone();
        warm_up(&providers);
        SignInService {
            services,
            passwords: PasswordChecks::new(blocking, password_checks),
            throttle: Throttle::default(),
            providers: RwLock::new(providers),
            only,
        }
    }

    /// Who may say who a user is.
    pub fn providers(&self) -> Arc<IdentityProviders> {
        self.providers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Others may from now on.
    pub fn replace_providers(&self, providers: Arc<IdentityProviders>) {
        warm_up(&providers);
        *self
            .providers
            .write()
            .unwrap_or_else(PoisonError::into_inner) = providers;
    }

    /// Lets a remote in. `asked` is looked up with it.
    pub async fn sign_in(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        origin: Origin<'_>,
    ) -> Result<SignInOutcome, Fault> {
        if let Some(only) = &self.only {
            let is_it = claim.user == *only && !claim.is_program;
            let is_remote = matches!(claim.proof, Proof::Token(_) | Proof::Credential(_));
            if !(is_it && is_remote) {
                return Err(Fault::new(
                    Code::NotAllowed,
                    "this server is there for an image that is being made",
                    "sync with the server that is there for everybody",
                ));
            }
        }
        // Each in a box: a crowd that signs in by token waits in futures of that size.
        let entered = match &claim.proof {
            Proof::Token(token) => Box::pin(self.by_token(claim, asked, keyring, token)).await,
            Proof::Credential(credential) => {
                Box::pin(self.by_credential(claim, asked, keyring, credential)).await
            }
            Proof::Password(password) => {
                let given = [GivenPassword {
                    password,
                    new: None,
                }];
                let given = (&given[..], origin.peer);
                Box::pin(self.by_password(claim, asked, keyring, given)).await
            }
            Proof::PasswordChange(change) => {
                let given = changed_passwords(change)?;
                let given = (&given[..], origin.peer);
                Box::pin(self.by_password(claim, asked, keyring, given)).await
            }
            Proof::Bearer(token) => {
                let now_ms = self.services.environment.clock.now_ms();
                let ways = self.providers();
                let identity = Box::pin(ways.by_bearer(token, now_ms)).await?;
                check_said(claim, &identity)?;
                Box::pin(self.by_identity(claim, asked, keyring, identity)).await
            }
            Proof::Certificate(_) => {
                let now_ms = self.services.environment.clock.now_ms();
                let identity = self.providers().by_certificate(origin.shown, now_ms)?;
                check_said(claim, &identity)?;
                Box::pin(self.by_identity(claim, asked, keyring, identity)).await
            }
        }?;
        self.note_device_name(claim, &entered);
        Ok(entered)
    }

    /// Has the name of a device noted that has none yet, or another one. Nothing waits for it.
    fn note_device_name(&self, claim: &ParsedSignIn, entered: &SignInOutcome) {
        let known = entered.state.remote.as_ref();
        let known = known.filter(|it| it.id == entered.remote_id);
        let is_known = known.is_some_and(|it| it.device_name == claim.device_name);
        if !(is_known || claim.is_program || claim.device_name.is_empty()) {
            // The next sign-in tries again.
            let missing = "the name of a device could not be noted";
            let named = (entered.remote_id, claim.device_name.clone());
            let sessions = &self.services.lanes.sessions;
            sessions.note(missing, named, |worker, (id, name)| {
                worker.name_device(*id, name)
            });
        }
    }

    async fn by_token(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        token: &[u8],
    ) -> Result<SignInOutcome, Fault> {
        let now_ms = self.services.environment.clock.now_ms();
        let expired = || {
            Fault::new(
                Code::TokenExpired,
                "the session token is not, or no longer, valid",
                "sign in with the remote's credential",
            )
        };
        let claimed = if claim.is_program {
            Some(PROGRAM)
        } else {
            claim.remote_id
        };
        let remote_id = claimed.ok_or_else(expired)?;
        let user = &claim.user;
        if keyring.check_token(token, remote_id, user, now_ms) == TokenCheck::Invalid {
            return Err(expired());
        }
        let looked_up = Some(remote_id).filter(|_| !claim.is_program);
        let state = self.look_up(user, looked_up, asked).await?;
        if claim.is_program {
            if let Some(reason) = shuts_programs_out(&state) {
                return Err(Fault::shut_out(reason));
            }
        } else {
            may_enter(&state, user)?;
        }
        self.check_again(&state)?;
        Ok(SignInOutcome {
            user: user.clone(),
            remote_id,
            unknown: None,
            was: None,
            state,
            token: Vec::new(),
            credential: Vec::new(),
        })
    }

    async fn by_credential(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        presented: &[u8],
    ) -> Result<SignInOutcome, Fault> {
        let user = &claim.user;
        let mut state = self.look_up(user, claim.remote_id, asked).await?;
        let mut was = None;
        if state.remote.is_none()
            && let Some((before, remote)) =
                Box::pin(self.take_up_identity(claim, keyring, presented)).await?
        {
            was = Some(before);
            state.remote = Some(remote);
        }
        let (_, remote) = known(&state, user)?;
        let now_ms = self.services.environment.clock.now_ms();
        let renewal = match credential::verify(remote, presented) {
            PresentedCredential::Wrong => return Err(Fault::shut_out(ShutOutReason::Removed)),
            PresentedCredential::Previous => Renewal::Rotate {
                previous: remote.previous_credential_hash.clone(),
            },
            PresentedCredential::Current
                if (now_ms - remote.rotated_ms).abs() > ROTATE_AFTER_MS =>
            {
                Renewal::Rotate {
                    previous: remote.credential_hash.clone(),
                }
            }
            PresentedCredential::Current => {
                if !remote.previous_credential_hash.is_empty() {
                    // The next use of the new credential tries again.
                    let missing = "an old credential could not be voided";
                    let previous = (remote.id, remote.previous_credential_hash.clone());
                    let sessions = &self.services.lanes.sessions;
                    sessions.note(missing, previous, |worker, (id, previous)| {
                        worker.forget_previous_credential(*id, previous.clone())
                    });
                }
                Renewal::Nothing
            }
        };
        may_enter(&state, user)?;
        self.check_again(&state)?;
        let remote = remote.clone();
        let credential = match renewal {
            Renewal::Nothing => Vec::new(),
            Renewal::Rotate { previous } => {
                let next = keyring.credential(remote.id, presented);
                Box::pin(self.replace(remote.clone(), previous, next)).await?
            }
        };
        Ok(SignInOutcome {
            user: claim.user.clone(),
            remote_id: remote.id,
            unknown: None,
            was,
            token: keyring.token(remote.id, &claim.user, now_ms),
            state,
            credential,
        })
    }

    /// Registers a remote under the new identity that it was offered at its last Hello, if that is
    /// what it presents; gives what it was, too. Only now is it known that the remote has it.
    async fn take_up_identity(
        &self,
        claim: &ParsedSignIn,
        keyring: &SigningKeys,
        presented: &[u8],
    ) -> Result<Option<(RemoteId, RemoteRecord)>, Fault> {
        let (user, now_ms) = (&claim.user, self.services.environment.clock.now_ms());
        let Some(remote_id) = claim.remote_id else {
            return Ok(None);
        };
        let Some(before) = keyring.open_identity(presented, remote_id, user, now_ms) else {
            return Ok(None);
        };
        // Whatever shut out the one that it was shuts out the one that it becomes.
        let state = self.look_up(user, Some(before), Vec::new()).await?;
        may_enter(&state, user)?;
        let remote = RemoteRecord {
            id: remote_id,
            credential_hash: credential::hash(presented),
            rotated_ms: now_ms,
            ..self.blank_remote(user)?
        };
        self.save(remote.clone()).await?;
        Ok(Some((before, remote)))
    }

    /// Lets in whom others have proven: if he is a user, or may become one.
    async fn by_identity(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        identity: Identity,
    ) -> Result<SignInOutcome, Fault> {
        let user = &identity.user;
        // They are there for images, whoever may be called so elsewhere.
        if is_image_user(user) {
            return Err(unknown_user(&identity));
        }
        let publications = named(&asked);
        let mut state = self.look_up(user, claim.remote_id, asked).await?;
        let creates = self.providers().creates_users();
        match &state.user {
            Some(known) if known.disabled => {
                return Err(Fault::shut_out(ShutOutReason::UserDisabled));
            }
            None if !creates => return Err(unknown_user(&identity)),
            _ => {}
        }
        // Nobody is added for a sync that cannot succeed.
        let served = self.services.publications.as_of(state.deployment).await;
        for publication in &publications {
            served.published(publication)?;
        }
        let mut record = state.user.take().unwrap_or_else(|| UserRecord {
            name: user.clone(),
            ..UserRecord::default()
        });
        let before = std::mem::take(&mut record.proven);
        let now_ms = self.services.environment.clock.now_ms();
        let proven = ProvenIdentity {
            at_ms: now_ms,
            by: identity.by.clone(),
            claims: identity.claims.clone().unwrap_or(before.claims.clone()),
        };
        let is_noted = before.by == proven.by
            && before.claims == proven.claims
            && (now_ms - before.at_ms).abs() < NOTED_FOR_MS;
        if !is_noted && !self.note(user, proven.clone(), creates).await? {
            return Err(unknown_user(&identity));
        }
        record.proven = proven;
        state.user = Some(record);
        let user = identity.user.as_str();
        self.admit(claim, keyring, (user, state), &publications)
            .await
    }

    /// Notes what was said of a user; tells whether he is there.
    async fn note(&self, user: &str, proven: ProvenIdentity, creates: bool) -> Result<bool, Fault> {
        let noted = (user.to_owned(), proven, creates);
        let sessions = &self.services.lanes.sessions;
        sessions
            .ask(noted, |worker, (user, proven, creates)| {
                worker.prove_user(user, proven, *creates)
            })
            .await
    }

    /// Lets in a user who is proven, and who may come in: as a program, or with a remote that is his, is
    /// known again, or is new.
    async fn admit(
        &self,
        claim: &ParsedSignIn,
        keyring: &SigningKeys,
        (user, state): (&str, SessionState),
        publications: &[String],
    ) -> Result<SignInOutcome, Fault> {
        let now_ms = self.services.environment.clock.now_ms();
        if claim.is_program {
            return Ok(SignInOutcome {
                user: user.to_owned(),
                remote_id: PROGRAM,
                unknown: None,
                was: None,
                state,
                token: keyring.token(PROGRAM, user, now_ms),
                credential: Vec::new(),
            });
        }
        // A first sync that cannot succeed must not leave a remote behind.
        let served = self.services.publications.as_of(state.deployment).await;
        for publication in publications {
            served.published(publication)?;
        }
        let (remote, is_new) = match (&state.remote, claim.remote_id) {
            (Some(remote), Some(_)) if remote.user != *user => {
                return Err(Fault::new(
                    Code::CredentialInvalid,
                    "this remote belongs to another user",
                    "sign in as the user who made it, or begin with a new file",
                ));
            }
            (Some(remote), Some(_)) if remote.revoked => {
                return Err(Fault::shut_out(ShutOutReason::RemoteRevoked));
            }
            (Some(remote), Some(_)) => (remote.clone(), false),
            // The centre was restored to before it knew the remote, which goes on as who it was.
            (None, Some(id)) if !state.removed && is_of_centre(claim, &state) => {
                let blank = self.blank_remote(user)?;
                (RemoteRecord { id, ..blank }, false)
            }
            _ => (self.blank_remote(user)?, true),
        };
        let remote_id = remote.id;
        let previous = remote.credential_hash.clone();
        let credential = self.renew(remote, previous).await?;
        Ok(SignInOutcome {
            user: user.to_owned(),
            remote_id,
            unknown: claim.remote_id.filter(|_| is_new),
            was: None,
            state,
            token: keyring.token(remote_id, user, now_ms),
            credential,
        })
    }

    /// Whether the user has to be proven again, before a credential or a token of ours counts.
    fn check_again(&self, state: &SessionState) -> Result<(), Fault> {
        let now_ms = self.services.environment.clock.now_ms();
        match &state.user {
            Some(user) => self.providers().check_again(user, now_ms),
            None => Ok(()),
        }
    }

    /// A new identity for a remote that was restored or copied. It is registered when the
    /// remote comes back with it: a Hello that was overtaken by later syncs, and whose
    /// connection nobody reads any more, leaves nothing behind.
    pub fn new_identity(
        &self,
        user: &str,
        keyring: &SigningKeys,
        successor_of: RemoteId,
    ) -> Result<(RemoteId, Vec<u8>), Fault> {
        let remote_id = self.blank_remote(user)?.id;
        let random = random(&*self.services.environment.randomness).map_err(no_randomness)?;
        let now_ms = self.services.environment.clock.now_ms();
        let identity = keyring.identity(remote_id, successor_of, user, random, now_ms);
        Ok((remote_id, identity))
    }

    /// Looks up who a remote is, and what is asked about its subscriptions: one statement flight.
    pub async fn look_up(
        &self,
        user: &str,
        remote_id: Option<RemoteId>,
        subscriptions: Vec<SubscriptionRequest>,
    ) -> Result<SessionState, Fault> {
        let session = SessionRequest {
            user: user.to_owned(),
            remote_id,
            subscriptions,
        };
        self.services.lanes.look_up(session).await
    }

    fn blank_remote(&self, user: &str) -> Result<RemoteRecord, Fault> {
        Ok(RemoteRecord {
            id: RemoteId::from_random(
                random(&*self.services.environment.randomness).map_err(no_randomness)?,
            ),
            user: user.to_owned(),
            revoked: false,
            credential_hash: Vec::new(),
            previous_credential_hash: Vec::new(),
            rotated_ms: 0,
            created_ms: self.services.environment.clock.now_ms(),
            last_sync_ms: 0,
            unverified: 0,
            device_name: String::new(),
        })
    }

    /// Gives a remote a new credential out of nothing that it had, durably.
    async fn renew(&self, remote: RemoteRecord, previous: Vec<u8>) -> Result<Vec<u8>, Fault> {
        let (credential, _) =
            credential::generate(&*self.services.environment.randomness).map_err(no_randomness)?;
        self.replace(remote, previous, credential).await
    }

    /// Gives a remote this credential, durably.
    async fn replace(
        &self,
        mut remote: RemoteRecord,
        previous: Vec<u8>,
        credential: Vec<u8>,
    ) -> Result<Vec<u8>, Fault> {
        remote.previous_credential_hash = previous;
        remote.credential_hash = credential::hash(&credential);
        remote.rotated_ms = self.services.environment.clock.now_ms();
        self.save(remote).await?;
        Ok(credential)
    }

    async fn save(&self, remote: RemoteRecord) -> Result<(), Fault> {
        let sessions = &self.services.lanes.sessions;
        sessions
            .ask(remote, |worker, remote| worker.save_remote(remote))
            .await
    }
}

/// Fetches the keys of identity providers before somebody needs them.
fn warm_up(providers: &Arc<IdentityProviders>) {
    if providers.have_issuers() {
        // It ends by itself, with or without an answer.
        tokio::spawn(providers.clone().warm_up());
    }
}

/// Whether the proof is of whom the SignIn names, if it names somebody.
fn check_said(claim: &ParsedSignIn, identity: &Identity) -> Result<(), Fault> {
    match claim.user.is_empty() || claim.user == identity.user {
        true => Ok(()),
        false => Err(Fault::new(
            Code::ProofRejected,
            format!(
                "what was presented is {:?}'s, and the sign-in is for {:?}",
                identity.user, claim.user
            ),
            "sign in as the user whom the token or the certificate names, or leave the user out; \
             a file stays the user's who made it",
        )),
    }
}

fn named(asked: &[SubscriptionRequest]) -> Vec<String> {
    asked.iter().map(|it| it.publication.clone()).collect()
}

fn unknown_user(identity: &Identity) -> Fault {
    let user = &identity.user;
    Fault::new(
        Code::UnknownUser,
        format!(
            "{} says that this is {user:?}, who is no user here",
            identity.by
        ),
        "ask the server's operator, who can add the user (tidewater user add NAME) or have whoever \
         is proven added by himself (create_users = true under [sign_in])",
    )
}

/// Whether the remote has its id from this centre.
fn is_of_centre(claim: &ParsedSignIn, state: &SessionState) -> bool {
    !state.centre.is_empty() && claim.centre == state.centre
}

fn known<'a>(
    state: &'a SessionState,
    user: &str,
) -> Result<(&'a UserRecord, &'a RemoteRecord), Fault> {
    match (&state.user, &state.remote) {
        (Some(record), Some(remote)) if remote.user == user => Ok((record, remote)),
        _ => Err(Fault::shut_out(ShutOutReason::Removed)),
    }
}

/// Whether the remote that was looked up may come in, or stay.
pub fn may_enter(state: &SessionState, user: &str) -> Result<(), Fault> {
    let (user, remote) = known(state, user)?;
    if user.disabled {
        return Err(Fault::shut_out(ShutOutReason::UserDisabled));
    }
    if remote.revoked {
        return Err(Fault::shut_out(ShutOutReason::RemoteRevoked));
    }
    Ok(())
}

/// Why the user who was looked up may have no programs connected, if that is so.
pub fn shuts_programs_out(state: &SessionState) -> Option<ShutOutReason> {
    match &state.user {
        Some(user) => user.disabled.then_some(ShutOutReason::UserDisabled),
        None => Some(ShutOutReason::Removed),
    }
}

fn no_randomness(error: std::io::Error) -> Fault {
    Fault::internal(error.to_string())
}
