//! Signing in: proof against record, new ids, credentials and tokens.
//!
//! Nothing is said about users or remotes to somebody who has not proved who he is:
//! unknown, disabled and wrong all look the same and take the same time.

mod claim;

use std::ops::RangeInclusive;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio_rustls::rustls::pki_types::CertificateDer;

use tidewater_protocol::message::{PasswordChange, Proof};
use tidewater_protocol::{Code, RemoteId, Value};

use crate::auth::credential::{self, Presented, ROTATE_AFTER_MS};
use crate::auth::external::Identity;
use crate::auth::password::{PasswordCheck, Place, check_new_password};
use crate::auth::signing::{Keyring, TokenCheck};
use crate::config::{Passwords, is_of_images};
use crate::environment::random;
use crate::fault::Fault;
use crate::script_sessions::ScriptUse;
use crate::server::Shared;
use crate::worker::{ScriptTask, SessionTask};
use tidewater_centre::context::DEFAULT;
use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::records::{
    ProvenIdentity, RemoteRecord, SessionRequest, SessionState, ShutOutReason, SubscriptionRequest,
    UserClaims, UserRecord,
};
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{CentreError, ScriptRun, SyncContext};

pub(crate) use self::claim::{Claim, MAX_NAME_BYTES, check_name, identity};

/// Somebody who is who he says.
pub(crate) struct SignedIn {
    /// The user: as the proof tells, where it does.
    pub(crate) user: String,
    /// [`PROGRAM`] for a program without a file.
    pub(crate) remote_id: RemoteId,
    /// The id that it came with, if that is not known any more.
    pub(crate) unknown: Option<RemoteId>,
    /// What the remote was, if it comes for the first time under the new identity that it was
    /// offered.
    pub(crate) was: Option<RemoteId>,
    pub(crate) state: SessionState,
    /// Empty if nothing changes.
    pub(crate) token: Vec<u8>,
    pub(crate) credential: Vec<u8>,
}

/// What stands for the remote of a program without a file. No remote has this id.
pub(crate) const PROGRAM: RemoteId = RemoteId([0; 16]);

/// The remote, or the program, of a connection, once it is in.
pub(crate) struct Guest {
    /// [`PROGRAM`] for a program without a file.
    pub(crate) remote_id: RemoteId,
    /// See [`SignedIn`].
    pub(crate) unknown: Option<RemoteId>,
    pub(crate) was: Option<RemoteId>,
    pub(crate) user: String,
    /// What people call the device; empty if nobody has named it.
    pub(crate) device_name: String,
    /// The program that speaks, and its address.
    pub(crate) client: String,
    pub(crate) peer: String,
}

/// Where a sign-in comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    /// The address.
    pub(crate) peer: &'a str,
    /// The certificates that were shown there.
    pub(crate) shown: &'a [CertificateDer<'static>],
}

/// What is to be done about the remote's credential.
enum Renewal {
    Nothing,
    /// The old one may still be what the remote has.
    Rotate {
        previous: Vec<u8>,
    },
}

/// Lets a remote in. `asked` is looked up with it.
pub(crate) async fn sign_in(
    server: &Arc<Shared>,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    origin: Origin<'_>,
) -> Result<SignedIn, Fault> {
    if let Some(only) = &server.only {
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
        Proof::Token(token) => Box::pin(by_token(server, claim, asked, keyring, token)).await,
        Proof::Credential(credential) => {
            Box::pin(by_credential(server, claim, asked, keyring, credential)).await
        }
        Proof::Password(password) => {
            let given = [GivenPassword {
                password,
                new: None,
            }];
            let given = (&given[..], origin.peer);
            Box::pin(by_password(server, claim, asked, keyring, given)).await
        }
        Proof::PasswordChange(change) => {
            let given = changed_passwords(change)?;
            let given = (&given[..], origin.peer);
            Box::pin(by_password(server, claim, asked, keyring, given)).await
        }
        Proof::Bearer(token) => {
            let now_ms = server.environment.clock.now_ms();
            let ways = server.ways();
            let identity = Box::pin(ways.by_bearer(token, now_ms)).await?;
            check_said(claim, &identity)?;
            Box::pin(by_identity(server, claim, asked, keyring, identity)).await
        }
        Proof::Certificate(_) => {
            let now_ms = server.environment.clock.now_ms();
            let identity = server.ways().by_certificate(origin.shown, now_ms)?;
            check_said(claim, &identity)?;
            Box::pin(by_identity(server, claim, asked, keyring, identity)).await
        }
    }?;
    note_device_name(server, claim, &entered);
    Ok(entered)
}

/// Has the name of a device noted that has none yet, or another one. Nothing waits for it.
fn note_device_name(server: &Shared, claim: &Claim, entered: &SignedIn) {
    let known = entered.state.remote.as_ref();
    let known = known.filter(|it| it.id == entered.remote_id);
    let is_known = known.is_some_and(|it| it.device_name == claim.device_name);
    if !(is_known || claim.is_program || claim.device_name.is_empty()) {
        let name = claim.device_name.clone();
        let noting = SessionTask::NameDevice(entered.remote_id, name);
        server.workers.sessions.submit(noting);
    }
}

/// Whether the proof is of whom the SignIn names, if it names somebody.
fn check_said(claim: &Claim, identity: &Identity) -> Result<(), Fault> {
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

async fn by_token(
    server: &Shared,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    token: &[u8],
) -> Result<SignedIn, Fault> {
    let now_ms = server.environment.clock.now_ms();
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
    let state = look_up(server, user, looked_up, asked).await?;
    if claim.is_program {
        if let Some(reason) = shuts_programs_out(&state) {
            return Err(Fault::shut_out(reason));
        }
    } else {
        may_enter(&state, user)?;
    }
    check_again(server, &state)?;
    Ok(SignedIn {
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
    server: &Shared,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    presented: &[u8],
) -> Result<SignedIn, Fault> {
    let user = &claim.user;
    let mut state = look_up(server, user, claim.remote_id, asked).await?;
    let mut was = None;
    if state.remote.is_none()
        && let Some((before, remote)) =
            Box::pin(take_up_identity(server, claim, keyring, presented)).await?
    {
        was = Some(before);
        state.remote = Some(remote);
    }
    let (_, remote) = known(&state, user)?;
    let now_ms = server.environment.clock.now_ms();
    let renewal = match credential::verify(remote, presented) {
        Presented::Wrong => return Err(Fault::shut_out(ShutOutReason::Removed)),
        Presented::Previous => Renewal::Rotate {
            previous: remote.previous_credential_hash.clone(),
        },
        Presented::Current if (now_ms - remote.rotated_ms).abs() > ROTATE_AFTER_MS => {
            Renewal::Rotate {
                previous: remote.credential_hash.clone(),
            }
        }
        Presented::Current => {
            if !remote.previous_credential_hash.is_empty() {
                let previous = remote.previous_credential_hash.clone();
                let forget = SessionTask::ForgetPrevious(remote.id, previous);
                server.workers.sessions.submit(forget);
            }
            Renewal::Nothing
        }
    };
    may_enter(&state, user)?;
    check_again(server, &state)?;
    let remote = remote.clone();
    let credential = match renewal {
        Renewal::Nothing => Vec::new(),
        Renewal::Rotate { previous } => {
            let next = keyring.credential(remote.id, presented);
            Box::pin(replace(server, remote.clone(), previous, next)).await?
        }
    };
    Ok(SignedIn {
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
    server: &Shared,
    claim: &Claim,
    keyring: &Keyring,
    presented: &[u8],
) -> Result<Option<(RemoteId, RemoteRecord)>, Fault> {
    let (user, now_ms) = (&claim.user, server.environment.clock.now_ms());
    let Some(remote_id) = claim.remote_id else {
        return Ok(None);
    };
    let Some(before) = keyring.open_identity(presented, remote_id, user, now_ms) else {
        return Ok(None);
    };
    // Whatever shut out the one that it was shuts out the one that it becomes.
    let state = look_up(server, user, Some(before), Vec::new()).await?;
    may_enter(&state, user)?;
    let remote = RemoteRecord {
        id: remote_id,
        credential_hash: credential::hash(presented),
        rotated_ms: now_ms,
        ..blank_remote(server, user)?
    };
    save(server, remote.clone()).await?;
    Ok(Some((before, remote)))
}

/// A password that somebody signs in with.
#[derive(Clone, Copy)]
pub(crate) struct GivenPassword<'a> {
    pub(crate) password: &'a str,
    /// The one that is to take its place.
    pub(crate) new: Option<&'a str>,
}

/// What counts of a change: the old password, or the new one, if an earlier change was made of which
/// the answer was lost.
fn changed_passwords(change: &PasswordChange) -> Result<[GivenPassword<'_>; 2], Fault> {
    let new = change.new_password.as_str();
    check_new_password(new)
        .map_err(|unfit| Fault::new(Code::ProofRejected, unfit.what, unfit.hint))?;
    Ok([
        GivenPassword {
            password: &change.password,
            new: Some(new),
        },
        GivenPassword {
            password: new,
            new: None,
        },
    ])
}

/// Lets somebody in with the first of these passwords that is right. All of them are one attempt.
async fn by_password(
    server: &Arc<Shared>,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    (given, peer): (&[GivenPassword<'_>], &str),
) -> Result<SignedIn, Fault> {
    let user = &claim.user;
    let now_ms = server.environment.clock.now_ms();
    let wait_ms = server.throttle.wait_ms(user, peer, now_ms);
    if wait_ms > 0 {
        return Err(too_many_attempts(wait_ms));
    }
    for given in given {
        let asked = asked.clone();
        let entered = by_one_password(server, claim, asked, keyring, (*given, peer)).await?;
        if let Some(entered) = entered {
            server.throttle.succeeded(user);
            return Ok(entered);
        }
    }
    server.throttle.failed(user, peer, now_ms);
    Err(Fault::new(
        Code::WrongPassword,
        "user and password do not fit",
        "check both; the server's operator can set a new password",
    ))
}

/// Lets somebody in; `None` if the password is wrong.
async fn by_one_password(
    server: &Arc<Shared>,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    (given, peer): (GivenPassword<'_>, &str),
) -> Result<Option<SignedIn>, Fault> {
    let user = &claim.user;
    let ways = server.ways();
    let identity = match ways.passwords() {
        Passwords::BuiltIn => return by_own_password(server, claim, asked, keyring, given).await,
        Passwords::Ldap if given.new.is_some() => {
            return Err(passwords_set_elsewhere("a directory"));
        }
        Passwords::Ldap => Box::pin(ways.by_directory(user, given.password)).await?,
        Passwords::Script => Box::pin(by_script(server, user, given)).await?,
        Passwords::Handler => {
            let known = server.handlers.known();
            let handler = known
                .of_passwords()
                .ok_or_else(|| Fault::internal("passwords = \"handler\" without a handler"))?;
            Box::pin(handler.authenticate(server, user, given, peer)).await?
        }
        Passwords::Off => {
            return Err(Fault::new(
                Code::ProofRejected,
                "this server takes no passwords",
                "sign in with a token of the identity provider, or with a certificate",
            ));
        }
    };
    match identity {
        Some(identity) => by_identity(server, claim, asked, keyring, identity)
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// The same with a password that Tidewater keeps.
async fn by_own_password(
    server: &Shared,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    given: GivenPassword<'_>,
) -> Result<Option<SignedIn>, Fault> {
    let user = &claim.user;
    let place = password_place(server)?;
    let publications = named(&asked);
    let state = look_up(server, user, claim.remote_id, asked).await?;
    let hash = state.user.as_ref().map(|user| user.password_hash.as_str());
    match place.check(hash, given.password).await {
        PasswordCheck::Dropped => return Err(server.busy()),
        PasswordCheck::Wrong => return Ok(None),
        PasswordCheck::Right => {}
    }
    let known = state.user.as_ref().filter(|user| !user.disabled);
    let known = known.ok_or_else(|| Fault::shut_out(ShutOutReason::UserDisabled))?;
    if let Some(new) = given.new
        && !replace_password(server, known, new).await?
    {
        return Ok(None);
    }
    admit(server, claim, keyring, (user, state), &publications)
        .await
        .map(Some)
}

/// A place among those whose passwords are checked.
fn password_place(server: &Shared) -> Result<Place<'_>, Fault> {
    server.passwords.admit().ok_or_else(|| {
        let [jitter] = random(&*server.environment.randomness).unwrap_or([128]);
        Fault::busy(server.passwords.retry_after_ms(jitter))
    })
}

/// Gives a user another password; tells whether nobody else has meanwhile.
async fn replace_password(server: &Shared, user: &UserRecord, new: &str) -> Result<bool, Fault> {
    let place = password_place(server)?;
    let salt = random(&*server.environment.randomness).map_err(no_randomness)?;
    let hash = place.hash(salt, new).await.ok_or_else(|| server.busy())?;
    let hash = hash.map_err(|error| Fault::internal(error.to_string()))?;
    let (reply, answer) = oneshot::channel();
    server
        .workers
        .sessions
        .submit(SessionTask::ReplacePassword {
            user: user.name.clone(),
            before: user.password_hash.clone(),
            hash,
            reply,
        });
    answered(answer).await
}

/// What somebody is told whose password whoever checks it does not set.
pub(crate) fn passwords_set_elsewhere(who: &str) -> Fault {
    Fault::new(
        Code::NotAllowed,
        format!("{who} checks the passwords of this server's users and does not set them"),
        "change the password where you change it for everything else",
    )
}

/// What an `authenticate_user` that lets somebody in sets.
const LET_IN: RangeInclusive<i64> = 1000..=1999;

/// Whoever the operator's script knows by user and password; `None` if they do not fit.
async fn by_script(
    server: &Shared,
    user: &str,
    given: GivenPassword<'_>,
) -> Result<Option<Identity>, Fault> {
    let Some((publication, scripts)) = server.publications.served().authenticates() else {
        return Err(Fault::internal(
            "passwords = \"script\", and scripts/default/connection/authenticate_user.sql is not \
             deployed",
        ));
    };
    if given.new.is_some() && !scripts.set_passwords() {
        return Err(passwords_set_elsewhere("the script authenticate_user"));
    }
    let notes = ScriptNotes::default();
    let tell = |name, name_of_hash, password: &str| {
        let hash = Sha256::digest(password.as_bytes()).to_vec();
        notes.set_fact(&publication, name, Value::Text(password.to_owned()));
        notes.set_fact(&publication, name_of_hash, Value::Blob(hash));
    };
    tell("password", "hashed_password", given.password);
    if let Some(new) = given.new {
        tell("new_password", "hashed_new_password", new);
    }
    let run = ScriptRun {
        context: SyncContext {
            user: user.to_owned(),
            remote_id: PROGRAM,
            now_ms: server.environment.clock.now_ms(),
            parameters: Arc::default(),
            claims: UserClaims::default(),
            scripts: notes.clone(),
            given: None,
        },
        publication: publication.clone(),
        checkpoint: None,
        transaction: ScriptTransaction::SigningIn,
    };
    let (reply, answer) = oneshot::channel();
    let scripts = ScriptUse {
        version: Some(DEFAULT.to_owned()),
        session: None,
    };
    server.workers.scripts.submit(ScriptTask {
        runs: vec![run],
        scripts,
        reply,
    });
    answered(answer).await?;
    let status = notes.fact(&publication, "authentication_status");
    let is_in = matches!(status, Some(Value::Integer(status)) if LET_IN.contains(&status));
    Ok(is_in.then(|| Identity {
        user: user.to_owned(),
        by: "the script authenticate_user".into(),
        claims: None,
    }))
}

fn named(asked: &[SubscriptionRequest]) -> Vec<String> {
    asked.iter().map(|it| it.publication.clone()).collect()
}

/// Lets in whom others have proven: if he is a user, or may become one.
async fn by_identity(
    server: &Shared,
    claim: &Claim,
    asked: Vec<SubscriptionRequest>,
    keyring: &Keyring,
    identity: Identity,
) -> Result<SignedIn, Fault> {
    let user = &identity.user;
    // They are there for images, whoever may be called so elsewhere.
    if is_of_images(user) {
        return Err(unknown_user(&identity));
    }
    let publications = named(&asked);
    let mut state = look_up(server, user, claim.remote_id, asked).await?;
    let creates = server.ways().creates_users();
    match &state.user {
        Some(known) if known.disabled => return Err(Fault::shut_out(ShutOutReason::UserDisabled)),
        None if !creates => return Err(unknown_user(&identity)),
        _ => {}
    }
    // Nobody is added for a sync that cannot succeed.
    let served = server.publications.as_of(state.deployment).await;
    for publication in &publications {
        served.published(publication)?;
    }
    let mut record = state.user.take().unwrap_or_else(|| UserRecord {
        name: user.clone(),
        ..UserRecord::default()
    });
    let before = std::mem::take(&mut record.proven);
    let now_ms = server.environment.clock.now_ms();
    let proven = ProvenIdentity {
        at_ms: now_ms,
        by: identity.by.clone(),
        claims: identity.claims.clone().unwrap_or(before.claims.clone()),
    };
    let is_noted = before.by == proven.by
        && before.claims == proven.claims
        && (now_ms - before.at_ms).abs() < NOTED_FOR_MS;
    if !is_noted && !note(server, user, proven.clone(), creates).await? {
        return Err(unknown_user(&identity));
    }
    record.proven = proven;
    state.user = Some(record);
    let user = identity.user.as_str();
    admit(server, claim, keyring, (user, state), &publications).await
}

/// A program that signs in all the time does not have the same noted each time.
const NOTED_FOR_MS: i64 = 60_000;

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

/// Notes what was said of a user; tells whether he is there.
async fn note(
    server: &Shared,
    user: &str,
    proven: ProvenIdentity,
    creates: bool,
) -> Result<bool, Fault> {
    let (reply, answer) = oneshot::channel();
    server.workers.sessions.submit(SessionTask::Prove {
        user: user.to_owned(),
        proven,
        creates,
        reply,
    });
    answered(answer).await
}

/// Lets in a user who is proven, and who may come in: as a program, or with a remote that is his, is
/// known again, or is new.
async fn admit(
    server: &Shared,
    claim: &Claim,
    keyring: &Keyring,
    (user, state): (&str, SessionState),
    publications: &[String],
) -> Result<SignedIn, Fault> {
    let now_ms = server.environment.clock.now_ms();
    if claim.is_program {
        return Ok(SignedIn {
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
    let served = server.publications.as_of(state.deployment).await;
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
            let blank = blank_remote(server, user)?;
            (RemoteRecord { id, ..blank }, false)
        }
        _ => (blank_remote(server, user)?, true),
    };
    let remote_id = remote.id;
    let previous = remote.credential_hash.clone();
    let credential = renew(server, remote, previous).await?;
    Ok(SignedIn {
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
fn check_again(server: &Shared, state: &SessionState) -> Result<(), Fault> {
    let now_ms = server.environment.clock.now_ms();
    match &state.user {
        Some(user) => server.ways().check_again(user, now_ms),
        None => Ok(()),
    }
}

fn too_many_attempts(wait_ms: u64) -> Fault {
    let hint = match wait_ms.div_ceil(1_000) {
        1 => "wait 1 second, then try again".to_owned(),
        seconds => format!("wait {seconds} seconds, then try again"),
    };
    Fault {
        retry_after_ms: wait_ms,
        ..Fault::new(
            Code::TooManyAttempts,
            "too many failed attempts to sign in",
            hint,
        )
    }
}

/// Whether the remote has its id from this centre.
fn is_of_centre(claim: &Claim, state: &SessionState) -> bool {
    !state.centre.is_empty() && claim.centre == state.centre
}

/// A new identity for a remote that was restored or copied. It is registered when the
/// remote comes back with it: a Hello that was overtaken by later syncs, and whose
/// connection nobody reads any more, leaves nothing behind.
pub(crate) fn new_identity(
    server: &Shared,
    user: &str,
    keyring: &Keyring,
    successor_of: RemoteId,
) -> Result<(RemoteId, Vec<u8>), Fault> {
    let remote_id = blank_remote(server, user)?.id;
    let random = random(&*server.environment.randomness).map_err(no_randomness)?;
    let now_ms = server.environment.clock.now_ms();
    let identity = keyring.identity(remote_id, successor_of, user, random, now_ms);
    Ok((remote_id, identity))
}

/// Looks up who a remote is, and what is asked about its subscriptions: one statement flight.
pub(crate) async fn look_up(
    server: &Shared,
    user: &str,
    remote_id: Option<RemoteId>,
    subscriptions: Vec<SubscriptionRequest>,
) -> Result<SessionState, Fault> {
    let (reply, answer) = oneshot::channel();
    server.workers.sessions.submit(SessionTask::Open {
        session: SessionRequest {
            user: user.to_owned(),
            remote_id,
            subscriptions,
        },
        reply,
    });
    answered(answer).await
}

/// The answer of a worker.
pub(crate) async fn answered<T>(
    answer: oneshot::Receiver<Result<T, CentreError>>,
) -> Result<T, Fault> {
    match answer.await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Fault::internal("a worker dropped its task")),
    }
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
pub(crate) fn may_enter(state: &SessionState, user: &str) -> Result<(), Fault> {
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
pub(crate) fn shuts_programs_out(state: &SessionState) -> Option<ShutOutReason> {
    match &state.user {
        Some(user) => user.disabled.then_some(ShutOutReason::UserDisabled),
        None => Some(ShutOutReason::Removed),
    }
}

fn blank_remote(server: &Shared, user: &str) -> Result<RemoteRecord, Fault> {
    Ok(RemoteRecord {
        id: RemoteId::from_random(random(&*server.environment.randomness).map_err(no_randomness)?),
        user: user.to_owned(),
        revoked: false,
        credential_hash: Vec::new(),
        previous_credential_hash: Vec::new(),
        rotated_ms: 0,
        created_ms: server.environment.clock.now_ms(),
        last_sync_ms: 0,
        unverified: 0,
        device_name: String::new(),
    })
}

/// Gives a remote a new credential out of nothing that it had, durably.
async fn renew(server: &Shared, remote: RemoteRecord, previous: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let (credential, _) =
        credential::generate(&*server.environment.randomness).map_err(no_randomness)?;
    replace(server, remote, previous, credential).await
}

/// Gives a remote this credential, durably.
async fn replace(
    server: &Shared,
    mut remote: RemoteRecord,
    previous: Vec<u8>,
    credential: Vec<u8>,
) -> Result<Vec<u8>, Fault> {
    remote.previous_credential_hash = previous;
    remote.credential_hash = credential::hash(&credential);
    remote.rotated_ms = server.environment.clock.now_ms();
    save(server, remote).await?;
    Ok(credential)
}

async fn save(server: &Shared, remote: RemoteRecord) -> Result<(), Fault> {
    let (reply, answer) = oneshot::channel();
    let save = SessionTask::Save { remote, reply };
    server.workers.sessions.submit(save);
    answered(answer).await
}

fn no_randomness(error: std::io::Error) -> Fault {
    Fault::internal(error.to_string())
}
