//! Users whom others prove: identity providers, a directory, an authority of certificates.
//!
//! Each way takes what a stranger presents and says who he is, or what is wrong with it and what
//! to do. Whether whoever is proven may come in is the sign-in's affair. A further way is a module
//! beside these, which gives an [`Identity`].

mod certificate;
mod jws;
mod ldap;
mod oidc;

pub use self::certificate::authorities;
pub use self::jws::is_signed_by;

use std::sync::Arc;
use std::time::Duration;

use tidewater_centre::records::{UserClaims, UserRecord};
use tidewater_protocol::Code;
use tokio_rustls::rustls::pki_types::CertificateDer;

use self::certificate::Certificates;
use self::ldap::Directory;
use self::oidc::OidcIssuer;
use tidewater_server_config::MAX_NAME_BYTES;
use tidewater_server_config::{PasswordSource, SignInConfig};
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;

/// As much may be kept of a user, as JSON.
const MAX_CLAIMS_BYTES: usize = 64 << 10;

/// When somebody comes back whose provider does not answer now.
const AWAY_RETRY_AFTER_MS: u64 = 5_000;

/// Somebody who is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name.
    pub user: String,
    /// Who says so.
    pub by: String,
    /// What else; `None` if this way tells nothing of it, and what is kept stays.
    pub claims: Option<UserClaims>,
}

/// What is configured under `[sign_in]`, ready to be asked.
pub struct IdentityProviders {
    config: SignInConfig,
    issuers: Vec<Arc<OidcIssuer>>,
    directory: Option<Directory>,
    certificates: Option<Certificates>,
}

impl IdentityProviders {
    /// # Errors
    /// A file cannot be read or used.
    pub fn new(config: &SignInConfig) -> Result<IdentityProviders, ServerError> {
        let issuers = config
            .oidc
            .iter()
            .map(|it| OidcIssuer::new(it).map(Arc::new));
        Ok(IdentityProviders {
            issuers: issuers.collect::<Result<_, _>>()?,
            directory: config.ldap.as_ref().map(Directory::new).transpose()?,
            certificates: config
                .certificates
                .as_ref()
                .map(Certificates::new)
                .transpose()?,
            config: config.clone(),
        })
    }

    /// Whether this is what they were made of.
    pub fn are_of(&self, config: &SignInConfig) -> bool {
        self.config == *config
    }

    /// Whether there is an identity provider.
    pub fn have_issuers(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// Asks issuers for their keys, so that the first sign-in need not wait, and that the log tells
    /// of an address that is wrong.
    pub async fn warm_up(self: Arc<IdentityProviders>) {
        for issuer in &self.issuers {
            issuer.warm_up().await;
        }
    }

    /// Who knows passwords.
    pub fn passwords(&self) -> PasswordSource {
        self.config.passwords
    }

    /// Whether somebody who is proven becomes a user.
    pub fn creates_users(&self) -> bool {
        self.config.create_users
    }

    /// Whether a user has been proven too long ago. Whom only this database knows never is.
    ///
    /// # Errors
    /// He has.
    pub fn check_again(&self, user: &UserRecord, now_ms: i64) -> Result<(), Fault> {
        let Some(after) = self.config.again_after else {
            return Ok(());
        };
        let after_ms = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        let proven = &user.proven;
        if proven.at_ms == 0 || now_ms.saturating_sub(proven.at_ms) <= after_ms {
            return Ok(());
        }
        Err(Fault::new(
            Code::SignInAgain,
            format!(
                "the user last signed in {}, which is too long ago",
                ago(now_ms.saturating_sub(proven.at_ms))
            ),
            "sign in again: with a new token of the identity provider, the directory's password \
             or the certificate; nothing is lost meanwhile",
        ))
    }

    /// Who presents this token of an identity provider.
    ///
    /// # Errors
    /// It proves nothing, or its issuer does not tell its keys.
    pub async fn by_bearer(&self, token: &str, now_ms: i64) -> Result<Identity, Fault> {
        if self.issuers.is_empty() {
            return Err(rejected(
                "this server takes no tokens of identity providers",
                "sign in another way; the server's operator can add [[sign_in.oidc]]",
            ));
        }
        oidc::check(&self.issuers, token, now_ms).await
    }

    /// Who has this password in the directory; `None` if nobody has.
    ///
    /// # Errors
    /// The directory does not answer.
    pub async fn by_directory(
        &self,
        user: &str,
        password: &str,
    ) -> Result<Option<Identity>, Fault> {
        match &self.directory {
            Some(directory) => directory.check(user, password).await,
            None => Err(Fault::internal("passwords = \"ldap\" without a directory")),
        }
    }

    /// Who has shown these certificates.
    ///
    /// # Errors
    /// They prove nothing.
    pub fn by_certificate(
        &self,
        shown: &[CertificateDer<'_>],
        now_ms: i64,
    ) -> Result<Identity, Fault> {
        match &self.certificates {
            Some(certificates) => certificates.check(shown, now_ms),
            None => Err(rejected(
                "this server takes no certificates of clients",
                "sign in another way; the server's operator can add [sign_in.certificates]",
            )),
        }
    }
}

/// What was presented proves nothing.
fn rejected(what: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(Code::ProofRejected, what, hint)
}

/// Whoever could say does not answer. What he says of it is for the log.
fn away(what: impl Into<String>, detail: impl Into<String>) -> Fault {
    let mut fault = Fault::new(
        Code::IdentityUnavailable,
        what,
        "try again in a while; whoever has signed in before can sync meanwhile",
    );
    fault.detail = detail.into();
    fault.retry_after_ms = AWAY_RETRY_AFTER_MS;
    fault
}

/// A name that can be a user's.
///
/// # Errors
/// It cannot.
pub fn user_name(name: &str, from: &str) -> Result<String, Fault> {
    let what = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is too long"
    } else if name.chars().any(char::is_control) {
        "holds control characters"
    } else {
        return Ok(name.to_owned());
    };
    Err(rejected(
        format!("{from} {what}, and so is no user's name"),
        "the server's operator can take the name from elsewhere: user_from under [sign_in]",
    ))
}

/// What is kept of a user: of what is wanted, all that is there.
///
/// # Errors
/// It is too much, or cannot be kept.
pub fn kept(claims: impl Iterator<Item = (String, String)>) -> Result<UserClaims, Fault> {
    let claims = UserClaims::new(claims.collect());
    let bytes = claims.to_json().len();
    let unfit = claims.iter().find(|(_, value)| value.contains('\0'));
    if let Some((name, _)) = unfit {
        return Err(rejected(
            format!("the claim {name:?} holds a zero byte"),
            "correct it where the users are kept",
        ));
    }
    match bytes > MAX_CLAIMS_BYTES {
        true => Err(rejected(
            format!("the claims that are kept have {bytes} bytes, and {MAX_CLAIMS_BYTES} may be"),
            "the server's operator can keep fewer: claims under [sign_in]",
        )),
        false => Ok(claims),
    }
}

/// How long ago that was, or is from now, for people.
fn span(ms: i64) -> String {
    let seconds = Duration::from_millis(ms.unsigned_abs()).as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    match count {
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    }
}

fn ago(ms: i64) -> String {
    format!("{} ago", span(ms))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidewater_centre::records::ProvenIdentity;

    use super::*;

    #[test]
    fn only_whom_others_have_proven_is_wanted_again_and_only_where_that_is_configured() {
        let ways = |again_after| {
            let config = SignInConfig {
                again_after,
                ..SignInConfig::default()
            };
            IdentityProviders::new(&config).unwrap()
        };
        let user = |at_ms| UserRecord {
            proven: ProvenIdentity {
                at_ms,
                ..ProvenIdentity::default()
            },
            ..UserRecord::default()
        };
        let month = Some(Duration::from_secs(30 * 86_400));
        let now_ms = 100 * 86_400_000;
        ways(None).check_again(&user(1), now_ms).unwrap();
        ways(month).check_again(&user(0), now_ms).unwrap();
        ways(month)
            .check_again(&user(now_ms - 30 * 86_400_000), now_ms)
            .unwrap();
        // Of a server whose clock runs ahead.
        ways(month).check_again(&user(i64::MAX), now_ms).unwrap();
        let fault = ways(month).check_again(&user(1), now_ms).unwrap_err();
        assert_eq!(fault.code, Code::SignInAgain);
        assert!(fault.message.contains("99 days ago"), "{fault}");
    }

    #[test]
    fn a_name_is_short_and_visible_and_claims_are_few_bytes() {
        assert_eq!(user_name("änne", "it").unwrap(), "änne");
        for wrong in ["", "a\nb", "a\0", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(
                user_name(wrong, "it").unwrap_err().code,
                Code::ProofRejected
            );
        }
        let claim = |value: &str| std::iter::once(("region".to_owned(), value.to_owned()));
        let few = BTreeMap::from([("region".to_owned(), "north".to_owned())]);
        assert_eq!(kept(claim("north")).unwrap(), UserClaims::new(few));
        let most = "x".repeat(MAX_CLAIMS_BYTES);
        assert!(kept(claim(&most)).unwrap_err().message.contains("bytes"));
        assert!(
            kept(claim("a\0b"))
                .unwrap_err()
                .message
                .contains("zero byte")
        );
    }
}
