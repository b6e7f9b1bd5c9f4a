//! Signing in with a password: of those that Tidewater keeps, of a directory, a script or a handler.

use std::ops::RangeInclusive;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};

use tidewater_centre::context::DEFAULT;
use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::records::{ShutOutReason, SubscriptionRequest, UserClaims, UserRecord};
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{ScriptRun, SyncContext};
use tidewater_protocol::message::PasswordChange;
use tidewater_protocol::{Code, Value};
use tidewater_server_config::PasswordSource;
use tidewater_server_jobs::environment::random;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::script_sessions::ScriptUse;

use super::{ParsedSignIn, SignInOutcome, SignInService, named, no_randomness};
use crate::external::Identity;
use crate::password::{CheckPlace, PasswordCheck, check_new_password};
use crate::registry::PROGRAM;
use crate::signing::SigningKeys;

/// A program of the operator that knows passwords.
pub trait PasswordHandler: Send + Sync {
    /// Who has this password, according to the program; `None` if nobody has. `peer`: the address
    /// from which somebody signs in.
    ///
    /// # Errors
    /// It does not say.
    fn authenticate<'a>(
        &'a self,
        user: &'a str,
        given: GivenPassword<'a>,
        peer: &'a str,
    ) -> BoxFuture<'a, Result<Option<Identity>, Fault>>;
}

/// A password that somebody signs in with.
#[derive(Clone, Copy)]
pub struct GivenPassword<'a> {
    /// The password as it was typed.
    pub password: &'a str,
    /// The one that is to take its place.
    pub new: Option<&'a str>,
}

/// What an `authenticate_user` that lets somebody in sets.
const LET_IN: RangeInclusive<i64> = 1000..=1999;

impl SignInService {
    /// Lets somebody in with the first of these passwords that is right. All of them are one attempt.
    pub(super) async fn by_password(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        (given, peer): (&[GivenPassword<'_>], &str),
    ) -> Result<SignInOutcome, Fault> {
        let user = &claim.user;
        let now_ms = self.services.environment.clock.now_ms();
        let wait_ms = self.throttle.wait_ms(user, peer, now_ms);
        if wait_ms > 0 {
            return Err(too_many_attempts(wait_ms));
        }
        for given in given {
            let asked = asked.clone();
            let entered = self
                .by_one_password(claim, asked, keyring, (*given, peer))
                .await?;
            if let Some(entered) = entered {
                self.throttle.succeeded(user);
                return Ok(entered);
            }
        }
        self.throttle.failed(user, peer, now_ms);
        Err(Fault::new(
            Code::WrongPassword,
            "user and password do not fit",
            "check both; the server's operator can set a new password",
        ))
    }

    /// Lets somebody in; `None` if the password is wrong.
    async fn by_one_password(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        (given, peer): (GivenPassword<'_>, &str),
    ) -> Result<Option<SignInOutcome>, Fault> {
        let user = &claim.user;
        let providers = self.providers();
        let identity = match providers.passwords() {
            PasswordSource::BuiltIn => {
                return self.by_own_password(claim, asked, keyring, given).await;
            }
            PasswordSource::Ldap if given.new.is_some() => {
                return Err(passwords_set_elsewhere("a directory"));
            }
            PasswordSource::Ldap => Box::pin(providers.by_directory(user, given.password)).await?,
            PasswordSource::Script => Box::pin(self.by_script(user, given)).await?,
            PasswordSource::Handler => {
                let handler = &self.services.password_handler;
                handler.authenticate(user, given, peer).await?
            }
            PasswordSource::Off => {
                return Err(Fault::new(
                    Code::ProofRejected,
                    "this server takes no passwords",
                    "sign in with a token of the identity provider, or with a certificate",
                ));
            }
        };
        match identity {
            Some(identity) => self
                .by_identity(claim, asked, keyring, identity)
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    /// The same with a password that Tidewater keeps.
    async fn by_own_password(
        &self,
        claim: &ParsedSignIn,
        asked: Vec<SubscriptionRequest>,
        keyring: &SigningKeys,
        given: GivenPassword<'_>,
    ) -> Result<Option<SignInOutcome>, Fault> {
        let user = &claim.user;
        let place = self.password_place()?;
        let publications = named(&asked);
        let state = self.look_up(user, claim.remote_id, asked).await?;
        let hash = state.user.as_ref().map(|user| user.password_hash.as_str());
        match place.check(hash, given.password).await {
            PasswordCheck::Dropped => return Err(self.services.admission.busy()),
            PasswordCheck::Wrong => return Ok(None),
            PasswordCheck::Right => {}
        }
        let known = state.user.as_ref().filter(|user| !user.disabled);
        let known = known.ok_or_else(|| Fault::shut_out(ShutOutReason::UserDisabled))?;
        if let Some(new) = given.new
            && !self.replace_password(known, new).await?
        {
            return Ok(None);
        }
        self.admit(claim, keyring, (user, state), &publications)
            .await
            .map(Some)
    }

    /// A place among those whose passwords are checked.
    fn password_place(&self) -> Result<CheckPlace<'_>, Fault> {
        self.passwords.admit().ok_or_else(|| {
            let [jitter] = random(&*self.services.environment.randomness).unwrap_or([128]);
            Fault::busy(self.passwords.retry_after_ms(jitter))
        })
    }

    /// Gives a user another password; tells whether nobody else has meanwhile.
    async fn replace_password(&self, user: &UserRecord, new: &str) -> Result<bool, Fault> {
        let place = self.password_place()?;
        let salt = random(&*self.services.environment.randomness).map_err(no_randomness)?;
        let hash = place
            .hash(salt, new)
            .await
            .ok_or_else(|| self.services.admission.busy())?;
        let hash = hash.map_err(|error| Fault::internal(error.to_string()))?;
        let replaced = (user.name.clone(), user.password_hash.clone(), hash);
        self.services
            .lanes
            .sessions
            .ask(replaced, |worker, (user, before, hash)| {
                worker.replace_password(user, before, hash)
            })
            .await
    }

    /// Whoever the operator's script knows by user and password; `None` if they do not fit.
    async fn by_script(
        &self,
        user: &str,
        given: GivenPassword<'_>,
    ) -> Result<Option<Identity>, Fault> {
        let Some((publication, scripts)) = self.services.publications.served().authenticates()
        else {
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
                now_ms: self.services.environment.clock.now_ms(),
                parameters: Arc::default(),
                claims: UserClaims::default(),
                scripts: notes.clone(),
                given: None,
            },
            publication: publication.clone(),
            checkpoint: None,
            transaction: ScriptTransaction::SigningIn,
        };
        let scripts = ScriptUse {
            version: Some(DEFAULT.to_owned()),
            session: None,
        };
        self.services.lanes.run_scripts(vec![run], scripts).await?;
        let status = notes.fact(&publication, "authentication_status");
        let is_in = matches!(status, Some(Value::Integer(status)) if LET_IN.contains(&status));
        Ok(is_in.then(|| Identity {
            user: user.to_owned(),
            by: "the script authenticate_user".into(),
            claims: None,
        }))
    }
}

/// What counts of a change: the old password, or the new one, if an earlier change was made of which
/// the answer was lost.
pub(super) fn changed_passwords(change: &PasswordChange) -> Result<[GivenPassword<'_>; 2], Fault> {
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

/// What somebody is told whose password whoever checks it does not set.
pub fn passwords_set_elsewhere(who: &str) -> Fault {
    Fault::new(
        Code::NotAllowed,
        format!("{who} checks the passwords of this server's users and does not set them"),
        "change the password where you change it for everything else",
    )
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
