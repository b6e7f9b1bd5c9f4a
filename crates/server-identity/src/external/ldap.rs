//! A directory that knows passwords: whether somebody can bind as a user's entry.
//!
//! Owns the way to the entry, what is read of it, and that whatever a stranger types stays a value:
//! it is escaped where it becomes part of a name (RFC 4514) or a filter (RFC 4515). Each sign-in has
//! a connection of its own, a few at a time, within a deadline; nothing is kept of passwords.

use std::sync::Arc;
use std::time::Duration;

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, Scope, SearchEntry};
use tidewater_protocol::Code;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use tidewater_carrier::tls;

use super::{Identity, away, kept, user_name};
use tidewater_server_config::{KeptClaim, LdapAccount, LdapConfig, LdapEntry, USER_PLACEHOLDER};
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;

/// So many ask at the same time.
const AT_ONCE: usize = 32;

/// Longer passwords are wrong passwords.
const MAX_PASSWORD_BYTES: usize = 1_024;

/// One entry is wanted: a second one tells that the filter is wrong.
const MOST_FOUND: i32 = 2;

/// What LDAP answers: RFC 4511, 4.1.9.
const SUCCESS: u32 = 0;
const SIZE_LIMIT_EXCEEDED: u32 = 4;
const NO_SUCH_OBJECT: u32 = 32;

/// A directory.
pub(super) struct Directory {
    config: LdapConfig,
    tls: Arc<ClientConfig>,
    places: Semaphore,
}

/// Why a sign-in came to nothing, for the log.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Ldap(#[from] LdapError),
    #[error("it takes longer than {0:?}")]
    TooLong(Duration),
    #[error("the account {name:?} cannot bind (result {code}): {text}")]
    Account {
        name: String,
        code: u32,
        text: String,
    },
    #[error("{path}: {source}")]
    PasswordFile {
        path: String,
        source: std::io::Error,
    },
    #[error("it answers with result {code}: {text}")]
    Result { code: u32, text: String },
    #[error("it found more than one entry with the filter {0}")]
    Several(String),
    #[error(
        "it does not tell the attribute {attribute:?} of {name:?}: let users read that of their \
         own entry, or write user_from"
    )]
    Nameless { attribute: String, name: String },
}

impl Directory {
    pub(super) fn new(config: &LdapConfig) -> Result<Directory, ServerError> {
        let tls = tls::client(config.ca.as_deref()).map_err(|error| {
            ServerError::configuration(
                format!("sign_in.ldap: ca: {error}"),
                "name a PEM file with the certificate of the authority, or remove ca",
            )
        })?;
        Ok(Directory {
            config: config.clone(),
            tls,
            places: Semaphore::new(AT_ONCE),
        })
    }

    /// Who has this password; `None` if nobody of this name has.
    ///
    /// # Errors
    /// The directory does not answer, or not as it is configured.
    pub(super) async fn check(
        &self,
        user: &str,
        password: &str,
    ) -> Result<Option<Identity>, Fault> {
        // A bind without a password succeeds: it is one as nobody (RFC 4513, 5.1.2).
        if user.is_empty() || password.is_empty() || password.len() > MAX_PASSWORD_BYTES {
            return Ok(None);
        }
        let asked = async {
            // It is never closed.
            let _place = self.places.acquire().await;
            self.ask(user, password).await
        };
        let patience = self.config.timeout;
        let asked = timeout(patience, asked).await;
        match asked.unwrap_or(Err(Trouble::TooLong(patience))) {
            Ok(None) => Ok(None),
            Ok(Some(entry)) => self.identity(&entry).map(Some),
            Err(trouble) => {
                let url = &self.config.url;
                tracing::warn!(url, %trouble, "the directory cannot be asked");
                let what = "the directory that knows the users' passwords does not answer";
                Err(away(what, trouble.to_string()))
            }
        }
    }

    async fn ask(&self, user: &str, password: &str) -> Result<Option<SearchEntry>, Trouble> {
        let mut settings = LdapConnSettings::new().set_conn_timeout(self.config.timeout);
        settings = settings.set_starttls(self.config.starttls);
        settings = settings.set_config(self.tls.clone());
        let (connection, mut ldap) =
            LdapConnAsync::with_settings(settings, &self.config.url).await?;
        // It ends when this is dropped.
        let mut driver = JoinSet::new();
        driver.spawn(connection.drive());
        let found = match &self.config.entry {
            LdapEntry::Named(name) => {
                let name = name.replace(USER_PLACEHOLDER, &ldap3::dn_escape(user));
                self.bind_and_read(&mut ldap, &name, password).await
            }
            LdapEntry::Found { .. } => self.find_and_bind(&mut ldap, user, password).await,
        };
        // A courtesy.
        let _ = ldap.unbind().await;
        found
    }

    /// Binds as the entry of this name, and reads what is wanted of it.
    async fn bind_and_read(
        &self,
        ldap: &mut Ldap,
        name: &str,
        password: &str,
    ) -> Result<Option<SearchEntry>, Trouble> {
        if !binds(ldap, name, password).await? {
            return Ok(None);
        }
        let all = "(objectClass=*)";
        let mut found = self.search(ldap, name, Scope::Base, all).await?;
        Ok(Some(found.pop().unwrap_or_else(|| SearchEntry {
            dn: name.to_owned(),
            attrs: Default::default(),
            bin_attrs: Default::default(),
        })))
    }

    /// Searches for the user's entry, and binds as that.
    async fn find_and_bind(
        &self,
        ldap: &mut Ldap,
        user: &str,
        password: &str,
    ) -> Result<Option<SearchEntry>, Trouble> {
        let LdapEntry::Found {
            account,
            base,
            filter,
        } = &self.config.entry
        else {
            return Ok(None);
        };
        if let Some(account) = account {
            let secret = password_of(account)?;
            let bound = ldap.simple_bind(&account.name, &secret).await?;
            if bound.rc != SUCCESS {
                return Err(Trouble::Account {
                    name: account.name.clone(),
                    code: bound.rc,
                    text: bound.text,
                });
            }
        }
        let filter = filter.replace(USER_PLACEHOLDER, &ldap3::ldap_escape(user));
        let mut found = self.search(ldap, base, Scope::Subtree, &filter).await?;
        if found.len() > 1 {
            return Err(Trouble::Several(filter));
        }
        let Some(entry) = found.pop() else {
            // As long as for somebody who is there: nobody learns who is.
            binds(ldap, base, password).await?;
            return Ok(None);
        };
        Ok(binds(ldap, &entry.dn, password).await?.then_some(entry))
    }

    async fn search(
        &self,
        ldap: &mut Ldap,
        base: &str,
        scope: Scope,
        filter: &str,
    ) -> Result<Vec<SearchEntry>, Trouble> {
        let claims = self.config.claims.iter().map(|it| it.from.as_str());
        let wanted: Vec<&str> = claims.chain([self.config.user_from.as_str()]).collect();
        let options = ldap3::SearchOptions::new().sizelimit(MOST_FOUND);
        ldap.with_search_options(options);
        let answer = ldap.search(base, scope, filter, wanted).await?;
        let (code, text) = (answer.1.rc, answer.1.text);
        match code {
            SUCCESS | SIZE_LIMIT_EXCEEDED => {}
            NO_SUCH_OBJECT => return Ok(Vec::new()),
            code => return Err(Trouble::Result { code, text }),
        }
        let entries = answer.0.into_iter();
        let entries = entries.filter(|it| !it.is_ref() && !it.is_intermediate());
        Ok(entries.map(SearchEntry::construct).collect())
    }

    fn identity(&self, entry: &SearchEntry) -> Result<Identity, Fault> {
        let config = &self.config;
        // The directory's spelling: it takes others, too, and they would be other users here.
        let name = values(entry, &config.user_from).first().cloned();
        let Some(name) = name else {
            let trouble = Trouble::Nameless {
                attribute: config.user_from.clone(),
                name: entry.dn.clone(),
            };
            tracing::warn!(url = config.url, %trouble, "the directory cannot be asked");
            return Err(Fault::new(
                Code::ProofRejected,
                "the directory does not tell the user's name",
                "tell the server's operator, who finds the reason in the server's log",
            ));
        };
        let found = config.claims.iter().filter_map(|KeptClaim { name, from }| {
            Some((name.clone(), text(values(entry, from))?))
        });
        Ok(Identity {
            user: user_name(&name, "the name in the directory")?,
            by: config.url.clone(),
            claims: Some(kept(found)?),
        })
    }
}

/// Read each time: whoever changes it need not tell the server.
fn password_of(account: &LdapAccount) -> Result<String, Trouble> {
    let path = &account.password_file;
    let read = std::fs::read_to_string(path).map_err(|source| Trouble::PasswordFile {
        path: path.display().to_string(),
        source,
    })?;
    Ok(read.trim_end_matches(['\r', '\n']).to_owned())
}

/// Whether somebody can bind with this password.
async fn binds(ldap: &mut Ldap, name: &str, password: &str) -> Result<bool, Trouble> {
    let bound = ldap.simple_bind(name, password).await?;
    match bound.rc {
        SUCCESS => Ok(true),
        code if is_refusal(code) => {
            tracing::debug!(
                code,
                text = bound.text,
                "the directory does not let somebody in"
            );
            Ok(false)
        }
        code => Err(Trouble::Result {
            code,
            text: bound.text,
        }),
    }
}

/// Whether a result says that it is about whoever wants to bind, and not about the directory: no
/// such password, entry or name, an account that is locked, no right.
fn is_refusal(code: u32) -> bool {
    matches!(code, 19 | 32 | 34 | 48 | 49 | 50 | 53)
}

/// The values of an attribute, in whatever case it is written.
fn values<'e>(entry: &'e SearchEntry, name: &str) -> &'e [String] {
    let mut attributes = entry.attrs.iter();
    let found = attributes.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map_or(&[], |(_, values)| values)
}

/// As it is kept: several values as JSON.
fn text(values: &[String]) -> Option<String> {
    match values {
        [] => None,
        [one] => Some(one.clone()),
        // In an order of its own: a directory has none.
        several => {
            let mut sorted = several.to_vec();
            sorted.sort();
            serde_json::to_string(&sorted).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_types_stays_a_value_of_a_name_and_of_a_filter() {
        let name = "uid={user},ou=people"
            .replace(USER_PLACEHOLDER, &ldap3::dn_escape("a,ou=admins+b=\"c\""));
        assert_eq!(name, "uid=a\\2cou\\3dadmins\\2bb\\3d\\22c\\22,ou=people");
        assert_eq!(ldap3::dn_escape(" a "), "\\20a\\20");
        assert_eq!(ldap3::dn_escape("#a\0"), "\\23a\\00");
        let filter = "(uid={user})".replace(USER_PLACEHOLDER, &ldap3::ldap_escape("*)(uid=admin"));
        assert_eq!(filter, "(uid=\\2a\\29\\28uid=admin)");
    }

    #[test]
    fn an_attribute_is_found_in_any_case_and_several_values_are_a_list() {
        let entry = SearchEntry {
            dn: "uid=nancy".into(),
            attrs: [
                ("departmentNumber".to_owned(), vec!["7".to_owned()]),
                ("ou".to_owned(), vec!["west".to_owned(), "east".to_owned()]),
            ]
            .into(),
            bin_attrs: Default::default(),
        };
        let text = |name| text(values(&entry, name));
        assert_eq!(text("departmentnumber").as_deref(), Some("7"));
        assert_eq!(text("OU").as_deref(), Some("[\"east\",\"west\"]"));
        assert_eq!(text("cn"), None);
    }
}
